"""Applications that ask of what the platform says, too: live, late, of archives, with rights, over both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import InfoObject, PublisherAdapterLight, RegistrationUid, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.archive.folder import archive_of
from jbi_pubsub.core.access import Decision
from jbi_pubsub.core.config import ArchiveSection, ClientSection
from jbi_pubsub.core.errors import ConfigurationError, PredicateError
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE, LocalEntry
from tests.conftest import Federation, Figures, eventually

OG = "http://gdc4s.com/oim/gemini"
LARGE = "/og:metadata/og:baseObject[og:PayloadLength>1000]"
TYPE = "mil.af.rl.jbi.Intel_Imagery"


def _untyped(federation: Federation, name: str = "camera", **terms: Any) -> tuple[PublisherAdapterLight, Any]:
    publisher = federation.light(name=name)
    at = publisher.connect_to_delegate("alpha", "rome")
    uid = publisher.register_publisher(at, type_name="image", validate=False, **terms)
    return publisher, uid


def _drained(subscriber: SubscriberAdapter, uid: SubscriptionUid, count: int) -> list[InfoObject]:
    """So many objects, as soon as they are there."""
    eventually(lambda: subscriber.queue_size(uid) >= count, what=lambda: subscriber.queue_size(uid))
    return subscriber.drain(uid)


def _taken(subscriber: SubscriberAdapter, uid: SubscriptionUid, count: int) -> list[bytes]:
    return [obj.payload for _ in range(count) if (obj := subscriber.receive(uid, 60.0)) is not None]


def test_one_predicate_speaks_of_both_parts(publishing: Any, federation: Federation, figures: Figures) -> None:
    # Given subscriptions that ask of both, of one alone, and of the metadata as they are
    subscriber = federation.subscriber()
    asked = {
        "both": {"predicate": f"{LARGE} and //lat > 33", "view": "combined"},
        "their root": {"predicate": "/og:metadata/*[local-name() = 'metadata']//lat > 33", "view": "combined"},
        "none": {"predicate": f"{LARGE} and //lat > 50", "view": "combined"},
        "plain": {"predicate": "//lat > 33"},
        "no root": {"predicate": "/metadata//lat > 33", "view": "combined"},
    }
    uids = {name: subscriber.register_subscriber(type_name=TYPE, **terms) for name, terms in asked.items()}
    last = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    # When a large and a small object are published
    for payload in (b"x" * 1_001, b"small"):
        publishing.publish(registration, figures.metadata(lat="40"), payload)
    assert len(_taken(subscriber, last, 2)) == 2
    # Expect each to get what it asks for, as it was published
    meant = {"both": [1_001], "their root": [1_001, 5], "none": [], "plain": [1_001, 5], "no root": []}
    assert {
        name: [len(obj.payload) for obj in _drained(subscriber, uid, len(meant[name]))] for name, uid in uids.items()
    } == meant


@pytest.mark.row("G-111", "G-112")
def test_the_metadata_are_never_changed_and_archives_answer_as_subscriptions(archived: Federation) -> None:
    # Given objects with odd bytes around and in their metadata, without some, and with a size to tell them by
    archived.pad()
    publisher, uid = _untyped(archived, persist=True)
    subscriber = archived.subscriber()
    texts = [
        b'<?xml version="1.0" encoding="ISO-8859-1"?>\r\n<!-- a -->\n<image><p>\xe9</p></image>\n\n',
        b"<image  xmlns='urn:x'><priority>1</priority></image>",
        b"<image><priority>1</priority></image>",
        b"",
    ]
    predicates = [
        "//image[priority='1']",
        LARGE,
        "/og:metadata/og:baseObject/og:MetadataLength = 0",
        "/og:metadata/og:baseObject[og:PublisherID = 'camera' and og:PayloadLength <= 1000]",
        "not(/og:metadata/image)",
        "count(/og:metadata/*) = 2 and contains(., 'é')",
        f"string-length(//og:NodeID) = 32 and //og:NodeAddress = '127.0.0.1' and namespace-uri(/*) = '{OG}'",
        "//image and //og:PayloadLength = 0",
    ]
    live = {text: subscriber.register_subscriber(predicate=text, view="combined") for text in predicates}
    last = subscriber.register_subscriber(type_name="image")
    # When they are published
    for metadata in texts:
        for payload in (b"", b"x" * 1_000, b"y" * 1_001):
            publisher.publish(uid, metadata, payload or None)
    publisher.flush()
    every = [subscriber.receive(last, 60.0) for _ in range(12)]
    # Expect their bytes
    assert [obj.metadata for obj in every if obj] == [text for text in texts for _ in range(3)]
    # Expect queries to find what subscriptions got, and some of it each
    for text, subscription in live.items():
        got = [(obj.object_id, obj.metadata, obj.payload) for obj in subscriber.drain(subscription)]
        found = [
            (obj.object_id, obj.metadata, obj.payload) for obj in subscriber.query(predicate=text, view="combined")
        ]
        assert found == got, text
        assert len(got) > 0, text
        replayed = subscriber.register_subscriber(predicate=text, view="combined", start="all")
        assert _taken(subscriber, replayed, len(got)) == [payload for _, _, payload in got]


def test_what_is_archived_says_the_archives_id_whichever_delegate_had_it(
    federation: Federation, tmp_path: Path
) -> None:
    # Given objects in an archive that two delegates have had
    section = ArchiveSection(folder=str(tmp_path), workers=0, reserve=0.0, memory=64 << 20)
    federation.config = msgspec.structs.replace(federation.config, archive=section)
    for number in range(2):
        pad = federation.pad()
        publisher, uid = _untyped(federation, persist=True)
        publisher.publish(uid, b"<image/>", bytes(number))
        publisher.close()
        if not number:
            pad.stop(0.5)
    # When it is asked for those that were published there, expect all
    predicate = f"//og:NodeID = '{archive_of(tmp_path).hex()}'"
    found = federation.subscriber().query(type_name="image", predicate=predicate, view="combined")
    assert [len(obj.payload) for obj in found] == [0, 1]


def test_who_comes_late_gets_the_same(federation: Federation) -> None:
    # Given a registration, and objects that nobody waits for yet at the delegate
    federation.pad()
    publisher, uid = _untyped(federation)
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="image", predicate=LARGE, view="combined")
    for number in range(200):
        publisher.publish(uid, b"<a/>", bytes(1_001 if number % 2 else 5))
    # Expect it to get those that it wants, wherever they came from
    assert len(_taken(subscriber, subscription, 100)) == 100
    assert subscriber.receive(subscription, 0.2) is None


def test_an_access_rule_holds_for_the_metadata_beside_it(federation: Federation) -> None:
    # Given a rule that lets through a part of the type
    pad = federation.pad()

    def allow(_caller: Any, action: str, _subject: Any) -> Decision:
        return Decision(True, where="/image/open = 1", rule="one") if action == "subscribe" else Decision(True)

    object.__setattr__(pad.delegate.contracts.permissions, "access", _Rules(allow))
    publisher, uid = _untyped(federation)
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name="image", predicate=LARGE, view="combined")
    subscriber.wait_matched(subscription)
    # When objects are published within and beyond it
    for is_open, size in ((1, 2_000), (0, 2_001), (1, 5), (1, 2_002)):
        publisher.publish(uid, b"<image><open>%d</open></image>" % is_open, bytes(size))
    # Expect both conditions to hold
    assert [len(payload) for payload in _taken(subscriber, subscription, 2)] == [2_000, 2_002]
    assert subscriber.receive(subscription, 0.2) is None


class _Rules:
    """A policy that says what a function says."""

    version = 1

    def __init__(self, allow: Any) -> None:
        self.allow = allow

    def record(self, *_: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.row("G-49", "G-113")
def test_prefixes_of_the_configuration_are_there_and_those_given_go_before(federation: Federation) -> None:
    # Given a configuration with a prefix of its own beside the usual one
    federation.pad()
    client = ClientSection(namespaces=(f"og={OG}", f"sys={OG}"))
    publisher, uid = _untyped(federation)
    subscriber = federation.subscriber(msgspec.structs.replace(federation.config, client=client))
    both = subscriber.register_subscriber(predicate="//og:PublisherID = 'camera' and //sys:Name", view="combined")
    other = subscriber.register_subscriber(
        predicate="//og:thing", namespaces={"og": "urn:other"}, type_name="image", payload_filter="//sys:x"
    )
    with pytest.raises(PredicateError, match="none"):
        subscriber.register_subscriber(predicate="//none:PublisherID", view="combined")
    # When objects with such elements are published
    publisher.publish(uid, b"<thing xmlns='urn:other'/>", f"<a><x xmlns='{OG}'/><y/></a>".encode())
    publisher.publish(uid, f"<thing xmlns='{OG}'/>".encode())
    # Expect the prefix to mean what was said
    assert len(_taken(subscriber, both, 2)) == 2
    (payload,) = _taken(subscriber, other, 1)
    assert b"y" not in payload
    assert subscriber.receive(other, 0.2) is None
    # Expect a request to carry what it uses, and nothing else
    said = {s.request.predicate: dict(s.request.namespaces) for s in subscriber._subscriptions.all()}
    assert said["//og:thing"] == {"og": "urn:other", "sys": OG}


@pytest.mark.row("G-174")
def test_publications_of_ones_own_stay_away(publishing: Any, federation: Federation, figures: Figures) -> None:
    # Given two owners, and subscriptions of the first that want all, or nothing of its own
    registrations = [publishing.register(figures.figure_1, figures.schema, owner=owner) for owner in ("one", "two")]
    registrations.append(publishing.register(figures.figure_1, figures.schema))
    subscriber = federation.subscriber()
    everything = subscriber.register_subscriber(type_name=TYPE)
    others = subscriber.register_subscriber(type_name=TYPE, unlike="one")
    few = subscriber.register_subscriber(type_name=TYPE, unlike="one", predicate=LARGE, view="combined", local=True)
    for uid in (everything, others, few):
        subscriber.wait_matched(uid)
    # When all publish
    for registration in registrations:
        for size in (5, 1_001):
            publishing.publish(registration, figures.figure_1, bytes(size))
    # Expect none of its own
    assert len(_taken(subscriber, everything, 6)) == 6
    assert [obj.platform.registration for obj in _drained(subscriber, others, 4)] == [
        uid for uid in registrations[1:] for _ in range(2)
    ]
    assert [len(obj.payload) for obj in _drained(subscriber, few, 2)] == [1_001, 1_001]


def test_a_replay_has_nothing_of_ones_own_either(archived: Federation) -> None:
    archived.pad()
    for owner in ("one", "two", None):
        publisher, uid = _untyped(archived, persist=True, owner=owner)
        publisher.publish(uid, b"<a/>", (owner or "nobody").encode())
        publisher.flush()
    subscriber = archived.subscriber()
    replayed = subscriber.register_subscriber(type_name="image", unlike="one", start="all")
    assert _taken(subscriber, replayed, 2) == [b"two", b"nobody"]
    assert subscriber.receive(replayed, 0.2) is None


def test_a_registration_for_this_delegate_alone_says_so_where_bridges_look(federation: Federation) -> None:
    federation.pad()
    _, local = _untyped(federation, local=True)
    _, other = _untyped(federation)
    subscriber = federation.subscriber()
    items = {item.service_id: item for item in subscriber._community.lookup(ServiceTemplate(types=(PUBLISHER_TYPE,)))}
    assert [any(e.cls.name == LocalEntry.entry_name for e in items[uid].entries) for uid in (local, other)] == [
        True,
        False,
    ]


def test_what_is_not_asked_for_is_not_made(federation: Federation) -> None:
    # Given a delegate with a plain subscription, and one that asks of the view
    pad = federation.pad()
    publisher, uid = _untyped(federation)
    subscriber = federation.subscriber()
    subscriber.register_subscriber(type_name="image", predicate="/a")
    combined = subscriber.register_subscriber(type_name="image", predicate=LARGE, view="combined")
    (registration,) = _registrations(pad, uid)
    eventually(lambda: registration.topic.table.selective == 1)
    assert registration.topic.table._view is not None
    # When that one goes
    subscriber.cancel_subscription(combined)
    # Expect nothing of it to be left, not even its cost
    eventually(lambda: registration.topic.table.selective == 0)
    assert registration.topic.table._view is None
    publisher.publish(uid, b"<a/>")


def _registrations(pad: Any, uid: RegistrationUid) -> list[Any]:
    return [each for each in pad.delegate.tables.registrations.values() if each.uid == uid]


@pytest.mark.parametrize(
    ("terms", "what"),
    [
        ({"view": "everything"}, "view"),
        ({"unlike": "x" * 65}, "unlike"),
        ({"predicate": "//og:", "view": "combined"}, "predicate|XPath"),
    ],
)
def test_what_makes_no_sense_is_refused(federation: Federation, terms: dict[str, Any], what: str) -> None:
    with pytest.raises((ConfigurationError, PredicateError), match=what):
        federation.subscriber().register_subscriber(type_name="image", **terms)
