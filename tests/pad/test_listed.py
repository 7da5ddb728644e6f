"""What lookup services take of a registration is known when it is made; what they refuse, its publisher is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Wish
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.errors import ErrorReport, JbiError, MetadataError, OversizeError, report
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import BOUNDS, ServiceTemplate
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE
from jbi_pubsub.protocol.sending import sending_terms

TRACK = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="Track"><xs:complexType><xs:sequence><xs:element name="unit" type="xs:string"/>
<xs:element name="point" maxOccurs="unbounded"><xs:complexType><xs:attribute name="lat" type="xs:decimal"/>
<xs:attribute name="name" type="xs:string"/></xs:complexType></xs:element>
<xs:element name="n" type="xs:int" jbi:variance="variant"/></xs:sequence></xs:complexType></xs:element></xs:schema>"""
FEW = RegistrarLimits(entries=20)


def track(points: int, name: str = "p", n: int = 0) -> str:
    places = "".join(f'<point lat="{number}.5" name="{name}"/>' for number in range(points))
    return f"<Track><unit>a</unit>{places}<n>{n}</n></Track>"


def alone(federation: Any, limits: RegistrarLimits) -> Any:
    """A delegate whose only lookup service has these bounds."""
    federation.lookups.pop().stop()
    federation.lookup(limits=limits)
    return federation.pad()


@pytest.fixture
def registered() -> Callable[..., str]:
    """Registers a track at the delegate, or at a peer publisher's own."""

    def register(adapter: Any, *document: Any) -> str:
        if hasattr(adapter, "connect_to_delegate"):
            return str(adapter.register_publisher(adapter.connect_to_delegate("alpha", "rome"), *document))
        return str(adapter.register_publisher(*document))

    return register


@pytest.mark.parametrize("kind", ["light", "peer"])
@pytest.mark.parametrize(
    ("document", "kinds", "bound"),
    [
        (track(BOUNDS.entries + 1), (MetadataError, OversizeError), BOUNDS.entries),
        (track(BOUNDS.entries - 1), (OversizeError,), BOUNDS.entries),  # with those that the delegate adds
        (track(100, "x" * 4_000), (OversizeError,), BOUNDS.item_bytes),
    ],
    ids=["entries", "entries with those of the delegate", "bytes"],
)
def test_a_registration_that_no_lookup_service_takes_is_refused_at_the_call(
    kind: str, document: str, kinds: tuple[type[JbiError], ...], bound: int,
    federation: Any, registered: Callable[..., str],
) -> None:  # fmt: skip
    pad = federation.pad()
    with pytest.raises(kinds) as refused:
        registered(getattr(federation, kind)(), TRACK, document)
    assert f"{bound:,}" in str(refused.value)
    assert "variant" in refused.value.hint
    assert pad.status()["registrations"] == []


def test_values_counted_for_each_class_are_bounded_alike() -> None:
    deep = define("test.Deep", {f"f{number}": str for number in range(200)})
    entries = tuple(EntryRep(deep, (str(number),) * 200) for number in range(70))
    with pytest.raises(OversizeError) as refused:
        BOUNDS.check("template", ServiceTemplate(entries=entries))
    assert f"{BOUNDS.postings:,}" in str(refused.value)


def test_a_track_of_hundreds_of_points_arrives(federation: Any, registered: Callable[..., str]) -> None:
    """Given a subscriber, when somebody registers and publishes a track of many points, then it gets it."""
    federation.pad()
    subscriber, publisher = federation.subscriber(), federation.light()
    standing = subscriber.register_subscriber(type_name="Track")
    points = BOUNDS.entries - 50
    registration = registered(publisher, TRACK, track(points))
    assert subscriber.wait_matched(standing) == 1
    publisher.publish(registration, track(points, n=1))
    assert subscriber.receive(standing, 60.0) is not None


def test_what_a_lookup_service_refuses_comes_back_at_the_call(
    federation: Any, registered: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Given a lookup service that takes less than others, the error is its own, and nobody is said to be away."""
    pad = alone(federation, FEW)
    publisher = federation.light()
    with caplog.at_level(logging.WARNING), pytest.raises(OversizeError, match=r"At most 20$"):
        registered(publisher, TRACK, track(30))
    assert pad.status()["registrations"] == []
    assert "answered" not in caplog.text
    assert "is back" not in caplog.text
    registered(publisher, TRACK, track(5))


@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_another_lookup_service_refuses_later_comes_back_with_the_next_object(
    mode: str, federation: Any, registered: Callable[..., str], eventually: Callable[..., Any]
) -> None:
    """Given a registration that one lookup service lists, when another one comes and refuses it, then its publisher is
    told of the registration, and why; who stands goes on."""
    federation.config = msgspec.structs.replace(federation.config, qos=QosSection(mode=mode))
    pad = federation.pad()
    told: dict[str, JbiError] = {}
    subscriber = federation.subscriber()
    publisher = federation.light(refused=lambda uid, why: told.setdefault(uid, why))
    standing = subscriber.register_subscriber(type_name="Track")
    registration = registered(publisher, TRACK, track(30))
    assert subscriber.wait_matched(standing) == 1
    federation.lookup(limits=FEW)
    pad.community.look_in(federation.config.lookup.groups, federation.config.lookup.locators)
    eventually(lambda: any(registration in each.untold for each in pad.delegate.tables.connections.values()))
    publisher.publish(registration, track(30, n=1))
    assert subscriber.receive(standing, 60.0) is not None
    assert isinstance(eventually(lambda: told.get(registration)), OversizeError)
    assert "20" in told[registration].hint
    assert publisher.status()["delegates"].popitem()[1]["refused"] == 0, "no object was refused"


def test_a_refusal_that_comes_while_another_is_told_is_told_next(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two registrations that a lookup service refuses, when it refuses one again while the publisher is told,
    then each refusal is told once; nothing is kept of a registration that was taken back."""
    delegate, publisher = federation.pad().delegate, federation.light()
    alpha = publisher.connect_to_delegate("alpha", "rome")
    first, second = (str(publisher.register_publisher(alpha, TRACK, track(points))) for points in (2, 3))
    (connection,) = delegate.tables.connections.values()
    delegate.publishers.unlisted(first, OversizeError("first"))
    delegate.publishers.unlisted(second, OversizeError("second"))

    def telling(why: JbiError) -> ErrorReport:
        if why.message == "first":
            delegate.publishers.unlisted(first, OversizeError("again"))
        return report(why)

    monkeypatch.setattr("jbi_pubsub.pad.delegate.publishers.report", telling)
    told = [(uid, why.message) for uid, why in delegate.publishers.refusals(connection)]
    assert told == [(first, "first"), (second, "second")]
    assert [(uid, why.message) for uid, why in delegate.publishers.refusals(connection)] == [(first, "again")]
    assert delegate.publishers.refusals(connection) == []
    delegate.publishers.unlisted(second, OversizeError("second"))
    publisher.unregister_publisher(second)
    assert delegate.publishers.refusals(connection) == []


def test_what_passes_by_itself_is_waited_for_and_called_by_its_name(
    federation: Any, registered: Callable[..., str], caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    """Given a lookup service that is full, a registration is listed as soon as it has room."""
    pad = alone(federation, RegistrarLimits(items_per_owner=2))
    publisher, other = federation.light(), federation.light()
    first = registered(other, TRACK, track(2))
    with caplog.at_level(logging.WARNING):
        registration = registered(publisher, TRACK, track(3))
    assert "has its 2 items" in caplog.text
    assert "answered" not in caplog.text
    other.unregister_publisher(first)
    eventually(lambda: pad.community.lookup(ServiceTemplate(registration, (PUBLISHER_TYPE,))))


def test_an_administrator_can_add_no_more_entries_than_lookup_services_take(federation: Any) -> None:
    pad = federation.pad()
    note = define("test.Note", {"text": str})
    community: JoinManager = pad.community
    before = community.lookup_attributes(pad.server_id)
    with pytest.raises(OversizeError, match=f"{BOUNDS.entries + 2:,} entries"):
        community.add_lookup_attributes(
            pad.server_id, [EntryRep(note, (str(number),)) for number in range(BOUNDS.entries + 1)]
        )
    assert community.lookup_attributes(pad.server_id) == before


@pytest.mark.parametrize(("mode", "listed"), [("off", 5), ("on", 2)])
def test_importance_that_is_listed_is_the_one_that_policies_grant(
    mode: str, listed: int, federation: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with a policy for the importance of tracks, in force or not
    file = tmp_path / "policy.toml"
    file.write_text('[[policy]]\nname = "tracks"\ntype = "Track"\nimportance = 2\n')
    config = federation.config
    federation.config = msgspec.structs.replace(config, qos=QosSection(mode=mode), policy=PolicySection(file=str(file)))
    pad = federation.pad()
    # When somebody publishes tracks, and wishes more
    adapter = federation.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, TRACK, track(1), qos=Wish(importance=5))
    # Expect who hands them on to other nodes to find what they have
    found = eventually(lambda: pad.community.lookup(ServiceTemplate(types=(PUBLISHER_TYPE,)), timeout=5.0))
    assert [(each.service_id, sending_terms(each.entries).importance) for each in found] == [(registration, listed)]
