"""What a subscription can match is said: which types are published, which is meant, in which versions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapter
from jbi_pubsub.core.errors import JbiError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.protocol.services import fetch_schema
from jbi_pubsub.subscriber import table

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"
ALERT = "{urn:oasis:names:tc:emergency:cap:1.2}alert"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is looked at again at once, and answers are not kept."""
    monkeypatch.setattr(table, "AGAIN_FIRST", 0.05)
    monkeypatch.setattr(table, "AGAIN_MOST", 0.05)
    monkeypatch.setattr("jbi_pubsub.subscriber.published.FRESH_SECONDS", 0.0)


def subscribe(walk: Any, **options: Any) -> Any:
    return walk.subscriber.register_subscriber(**options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "matches 1 registration now"),
        ({"type_name": IMAGERY}, "matches 1 registration now"),
        ({"type_name": "Intel_Imagery"}, "matches 1 registration now"),
        ({"type_name": "intel_imagry"}, f"none so far: nobody publishes intel_imagry; there are {IMAGERY}"),
        ({"type_name": IMAGERY, "version": "1.1"}, f"none so far: {IMAGERY} is published in version 1.0, not 1.1"),
        ({"version": "1.1"}, "none so far: no registration has the values of the template"),
    ],
)
def test_a_subscription_says_what_it_matches(
    own_walk: Any, options: dict[str, str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Given one registration; When somebody subscribes
    own_walk.register()
    with caplog.at_level(logging.INFO, "jbi_pubsub.subscriber.matching"):
        uid = subscribe(own_walk, **options)
    # Expect it to be said what matches, or which types and versions there are, in the log and when asked
    assert str(own_walk.subscriber.matching(uid)) == line
    [record] = [r for r in caplog.records if r.name == "jbi_pubsub.subscriber.matching"]
    assert record.getMessage() == f"subscription {uid} {line}"
    assert record.levelno == (logging.WARNING if "none" in line else logging.INFO)


def test_values_of_a_template_that_nobody_has_are_said(own_walk: Any) -> None:
    own_walk.register()
    other = own_walk.figures.figure_3.replace(b"418th", b"999th")
    uid = own_walk.subscriber.register_subscriber(other, schema=own_walk.figures.schema)
    said = f"none so far: {IMAGERY} is published, but without the values of the template"
    assert str(own_walk.subscriber.matching(uid)) == said


def test_what_is_registered_while_it_is_looked_is_no_silence(
    own_walk: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that has not heard of the registration that matches it
    own_walk.register()
    late: list[bool] = []
    items = LookupCache.items
    monkeypatch.setattr(LookupCache, "items", lambda cache: items(cache) if len(late) > 3 else late.append(True) or [])
    with caplog.at_level(logging.INFO, "jbi_pubsub.subscriber.matching"):
        uid = subscribe(own_walk, type_name=IMAGERY)
        assert str(own_walk.subscriber.matching(uid)) == "none so far"
        # Expect no warning, and the truth when it is heard of
        eventually(lambda: any("matches 1 registration now" in record.getMessage() for record in caplog.records))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_before_anything_is_published_that_is_said(federation: Any) -> None:
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=IMAGERY)
    assert str(subscriber.matching(uid)) == "none so far: nothing is published now"
    subscriber.cancel_subscription(uid)
    with pytest.raises(UnknownUidError):
        subscriber.matching(uid)


def test_a_local_name_that_several_types_have_stands_for_none(own_walk: Any, figures: Any) -> None:
    # Given two types with one local name
    for name in ("org.a.Imagery", "{urn:b}Imagery"):
        own_walk.register(type_name=name)
    # When it is subscribed to; Expect no match, and both names
    uid = own_walk.subscriber.register_subscriber(type_name="Imagery")
    why = own_walk.subscriber.matching(uid).why
    assert why == "Imagery may be one of several types: org.a.Imagery, {urn:b}Imagery; name one in full"
    assert own_walk.subscriber.wait_matched(uid, timeout=0.0) == 0


def test_a_local_name_stands_for_a_type_that_is_published_later(
    own_walk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a subscription by the local name of a type that nobody publishes yet
    uid = subscribe(own_walk, type_name="Intel_Imagery")
    assert own_walk.subscriber.matching(uid).registrations == 0
    # When it is published; Expect it to be delivered, and the match to be said
    with caplog.at_level(logging.INFO, "jbi_pubsub.subscriber.matching"):
        own_walk.register()
        assert own_walk.subscriber.wait_matched(uid) == 1
        own_walk.publish(payload=b"later")
        assert own_walk.subscriber.receive(uid).payload == b"later"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"predicate": "/metadata/RequiredMetadata/publisher = '418th'"},
        {"validate": True},
        {"is_template": True},
        {"is_template": True, "version": "1.0"},
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_local_name_stands_for_the_type_of_a_schema_of_ones_own(
    own_walk: Any, options: dict[str, Any], is_first: bool
) -> None:
    # Given a subscription with the schema and the local name of a type, before or after the type is published
    figures = own_walk.figures
    given = {"type_name": "Intel_Imagery", "schema": figures.schema, **options}
    if given.pop("is_template", False):
        given["template"] = figures.figure_3
    if is_first:
        own_walk.register()
    uid = subscribe(own_walk, **given)
    if not is_first:
        own_walk.register()
    # When an object is published; Expect it
    assert own_walk.subscriber.wait_matched(uid, timeout=5.0) == 1
    own_walk.publish(payload=b"by the schema")
    assert own_walk.subscriber.receive(uid).payload == b"by the schema"


def test_a_schema_says_which_of_several_types_with_one_local_name_is_meant(own_walk: Any) -> None:
    # Given the type of a schema, and another one with its local name
    own_walk.register()
    own_walk.register(type_name="org.a.Intel_Imagery")
    # When it is subscribed to by that and the schema; Expect one match
    uid = subscribe(own_walk, type_name="Intel_Imagery", schema=own_walk.figures.schema)
    assert str(own_walk.subscriber.matching(uid)) == "matches 1 registration now"


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", ["Intel_Imagery", "org.a.Intel_Imagery"])
def test_a_publisher_may_call_the_type_of_a_schema_otherwise(own_walk: Any, name: str, is_first: bool) -> None:
    # Given a publisher that has named its type itself; When it is subscribed to by the last part, and the schema
    if is_first:
        own_walk.register(type_name=name)
    predicate = "/metadata/RequiredMetadata/publisher = '418th'"
    uid = subscribe(own_walk, type_name="Intel_Imagery", schema=own_walk.figures.schema, predicate=predicate)
    if not is_first:
        own_walk.register(type_name=name)
    # Expect it to be matched
    assert own_walk.subscriber.wait_matched(uid, timeout=5.0) == 1


def test_a_whole_name_stands_for_no_type_that_ends_so(own_walk: Any) -> None:
    # Given a type that ends as the name of a subscription, which is to be whole
    own_walk.register(type_name="org.a.Note")
    uid = subscribe(own_walk, type_name="Note", whole_name=True)
    assert str(own_walk.subscriber.matching(uid)) == "none so far: nobody publishes Note; there are org.a.Note"
    # When the type of that name is published; Expect it alone
    note = own_walk.register(type_name="Note")
    own_walk.register(type_name="org.b.Note")
    assert own_walk.subscriber.wait_matched(uid) == 1
    own_walk.publish(payload=b"a")
    own_walk.publishing.publish(note, own_walk.figures.figure_1, b"own")
    assert own_walk.subscriber.receive(uid).payload == b"own"
    assert own_walk.subscriber.receive(uid, timeout=0.2) is None


@pytest.mark.parametrize(
    ("before", "later", "others"),
    [
        (["org.a.Note"], ["Note"], "Note"),
        ([], ["org.a.Note", "org.b.Note"], "org.a.Note, org.b.Note"),
        ([], ["org.a.Note", "Note"], "Note, org.a.Note"),
    ],
)
def test_a_last_part_that_another_type_has_later_is_told(
    own_walk: Any,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
    before: list[str],
    later: list[str],
    others: str,
) -> None:
    # Given a subscription by the last part of a name, which at most one type has
    for name in before:
        own_walk.register(type_name=name)
    uid = subscribe(own_walk, type_name="Note")
    # When another type has it, too; Expect that to be said
    with caplog.at_level(logging.WARNING, "jbi_pubsub.subscriber.matching"):
        for name in later:
            own_walk.register(type_name=name)
        line = f"its type's name may mean {others} as well; name one in full"
        eventually(lambda: line in caplog.text)
    assert line in str(own_walk.subscriber.matching(uid))


def test_an_amended_subscription_is_for_the_type_that_it_was_made_for(own_walk: Any) -> None:
    # Given a subscription by the last part of a name, and a later type of that very name
    own_walk.register(type_name="org.a.Note")
    uid = subscribe(own_walk, type_name="Note")
    own_walk.register(type_name="Note")
    # When it is amended; Expect it to be for the first one
    own_walk.subscriber.amend_subscription(uid, predicate="//lat > 3")
    own_walk.publish(payload=b"a")
    assert own_walk.subscriber.receive(uid).payload == b"a"


def test_a_local_name_is_as_good_as_the_whole_one_for_the_first_object_of_a_short_life(
    own_walk: Any, federation: Any, figures: Any
) -> None:
    # Given two subscriptions, by the local name and by the whole one, before anybody publishes
    names = ("Intel_Imagery", IMAGERY)
    uids = [own_walk.subscriber.register_subscriber(type_name=name) for name in names]
    # When publishers come that publish one object and leave
    for number in range(3):
        with PublisherAdapter(federation.config) as peer:
            peer.publish(peer.register_publisher(figures.schema, figures.figure_1), figures.figure_1, b"%d" % number)
    # Expect all of them at both
    for uid in uids:
        assert [own_walk.subscriber.receive(uid).payload for _ in range(3)] == [b"0", b"1", b"2"]


def test_who_waits_is_told_when_another_version_comes(
    own_walk: Any, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    # Given a template of version 1.0 that waits; When 1.1 alone is published
    subscribe(own_walk, template=own_walk.figures.figure_3, schema=own_walk.figures.schema, version="1.0")
    own_walk.register(version="1.1")
    # Expect that to be said
    eventually(lambda: f"{IMAGERY} is published in version 1.1, not 1.0" in caplog.text)


# -- the schema of a type that is known in the federation -----------------------------------------------------------


def entries_of(walk: Any, uid: Any) -> list[str]:
    return [e.cls.name.rpartition("#")[2] for e in walk.subscriber._subscriptions.find(uid).request.entries]


@pytest.mark.parametrize("options", [{}, {"version": "1.0"}])
def test_a_template_of_another_schema_than_the_one_in_use_is_told_so(
    own_walk: Any, other_schema: Any, options: dict[str, str]
) -> None:
    # Given a publisher; When somebody subscribes with a template by another copy of its schema, which nothing matches
    own_walk.register()
    copy = other_schema('name="publisher" type="xs:token"', 'name="publisher" type="xs:string"')
    template = own_walk.figures.figure_3.replace(b"418th", b" 418th")
    uid = subscribe(own_walk, template=template, schema=copy, **options)
    # Expect that to be said
    said = f"none so far: {IMAGERY} is published with another schema than that of the template, and without its values"
    assert str(own_walk.subscriber.matching(uid)) == said


@pytest.mark.row("J-22")
@pytest.mark.parametrize("name", [IMAGERY, "Intel_Imagery"])
def test_a_predicate_on_a_published_type_derives_a_template_without_a_schema(own_walk: Any, name: str) -> None:
    # Given a publisher of the 418th; When two subscribe by type and predicate, to it and to another one
    own_walk.register()
    predicate = "/metadata/RequiredMetadata/publisher = '{}'"
    fits, misses = (
        subscribe(own_walk, type_name=name, version="1.0", predicate=predicate.format(p)) for p in ("418th", "999th")
    )
    # Expect the publisher to be matched at the first level: the other stands nowhere
    assert entries_of(own_walk, fits) == ["jbi.InformationType", "RequiredMetadataEntry"]
    assert own_walk.subscriber.wait_matched(fits) == 1
    assert own_walk.subscriber.wait_matched(misses, timeout=0.0) == 0
    own_walk.publish(payload=b"first level")
    assert own_walk.subscriber.receive(fits).payload == b"first level"


@pytest.mark.parametrize("has_schema", [False, True])
def test_without_a_version_a_predicate_keeps_no_later_version_away(
    own_walk: Any, other_schema: Any, has_schema: bool
) -> None:
    # Given a publisher, and a subscription by type and predicate to any version, perhaps with the schema of one
    own_walk.register()
    given = {"schema": own_walk.figures.schema} if has_schema else {}
    uid = subscribe(own_walk, type_name=IMAGERY, predicate="/metadata/RequiredMetadata/publisher = '418th'", **given)
    assert entries_of(own_walk, uid) == ["jbi.InformationType"]
    # When a version is published later whose invariants are others
    further = '<xs:element name="region" type="xs:token" minOccurs="0"/>'
    changed = other_schema('<xs:element name="publisher"', f'{further}<xs:element name="publisher"')
    later = own_walk.register(schema=changed, version="1.1")
    own_walk.publishing.publish(later, own_walk.figures.figure_1, b"later")
    # Expect it to come
    assert own_walk.subscriber.receive(uid).payload == b"later"


def test_without_one_schema_in_the_federation_a_predicate_derives_nothing(own_walk: Any, other_schema: Any) -> None:
    # Given a type that nobody publishes; Expect a subscription to its name alone
    predicate = "/metadata/RequiredMetadata/publisher = '418th'"
    assert entries_of(own_walk, subscribe(own_walk, type_name=IMAGERY, predicate=predicate)) == ["jbi.InformationType"]
    # Given two versions with two schemas; Expect the same unless a version is named
    own_walk.register()
    own_walk.register(schema=other_schema("<xs:documentation>", "<xs:documentation>Not "), version="1.1")
    uids = [subscribe(own_walk, type_name=IMAGERY, predicate=predicate, version=v) for v in ("", "1.1")]
    assert [len(entries_of(own_walk, uid)) for uid in uids] == [1, 2]


def test_a_schema_that_is_not_what_is_registered_is_not_used(own_walk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a server that gives another schema than the one whose digest its registration names
    own_walk.register()

    def other(*given: Any, **named: Any) -> Any:
        bundle = fetch_schema(*given, **named)
        [(name, text)] = bundle.documents
        further = text.replace(b'type="xs:decimal"', b'type="xs:double"')
        assert further != text
        return msgspec.structs.replace(bundle, documents=((name, further),))

    monkeypatch.setattr("jbi_pubsub.subscriber.published.fetch_schema", other)
    predicate = "/metadata/RequiredMetadata/publisher = '418th'"
    uid = subscribe(own_walk, type_name=IMAGERY, version="1.0", predicate=predicate)
    # Expect it not to narrow the subscription
    assert entries_of(own_walk, uid) == ["jbi.InformationType"]


def test_the_schema_of_a_type_is_given_to_whoever_may_ask(own_walk: Any) -> None:
    own_walk.register()
    address = own_walk.publishing.status()["address"]
    ref = ServiceRef("", "types", (address,))
    assert b"Intel_Imagery" in fetch_schema(ref, Security(), IMAGERY, "1.0", timeout=5.0).documents[0][1]
    with pytest.raises(UnknownUidError, match=r"1\.1 is not published here"):
        fetch_schema(ref, Security(), IMAGERY, "1.1", timeout=5.0)
    with pytest.raises(JbiError):
        fetch_schema(ref, Security(), IMAGERY, 1, timeout=5.0)  # type: ignore[arg-type]  # the mistake
