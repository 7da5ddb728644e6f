"""Attributes: as XML or by methods, read back equal, and with effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub.capi import (
    Connection,
    InfoObjectDescriptor,
    InvalidMetadataException,
    ObjectUnavailableException,
    TimeoutException,
    UnrecognizedObjectTypeException,
    UnsupportedVersionException,
)
from jbi_pubsub.capi.attributes import KINDS
from jbi_pubsub.capi.bindings import NAMESPACE

NS = f'xmlns="{NAMESPACE}"'
FORMS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "Validation": (
        "publisher subscriber query",
        lambda s: s.setValidationAttribute(True, False),
        (
            f"<validationAttribute {NS}><validateXmlIsWellFormed>true</validateXmlIsWellFormed>"
            "<validateXmlAgainstSchema>false</validateXmlAgainstSchema></validationAttribute>"
        ),
    ),
    "ReliableDelivery": (
        "publisher",
        lambda s: s.setReliableDeliveryAttribute(True, 60_000),
        (
            f"<reliableDeliveryAttribute {NS}><reliable>true</reliable><expiration>60000</expiration>"
            "</reliableDeliveryAttribute>"
        ),
    ),
    "Persistence": (
        "publisher",
        lambda s: s.setPersistenceAttribute(True),
        f"<persistenceAttribute {NS}><persist>true</persist></persistenceAttribute>",
    ),
    "Compression": (
        "publisher",
        lambda s: s.setCompressionAttribute(True),
        f"<compressionAttribute {NS}><compress>true</compress></compressionAttribute>",
    ),
    "Invariants": (
        "publisher",
        lambda s: s.setInvariantsAttribute("<a/>"),
        f"<invariantsAttribute {NS}><metadata>&lt;a/&gt;</metadata></invariantsAttribute>",
    ),
    "NamespacePrefixes": (
        "subscriber query",
        lambda s: s.setNamespacePrefixes({"og": "urn:other"}),
        (
            f"<namespacePrefixesAttribute {NS}><mapping><prefix>og</prefix><uri>urn:other</uri></mapping>"
            "</namespacePrefixesAttribute>"
        ),
    ),
    "Local": (
        "publisher subscriber",
        lambda s: s.setLocalAttribute(True),
        f"<localAttribute {NS}><localOnly>true</localOnly></localAttribute>",
    ),
    "OwnPublications": (
        "subscriber",
        lambda s: s.setOwnPublicationsAttribute(False),
        f"<ownPublicationsAttribute {NS}><receiveOwn>false</receiveOwn></ownPublicationsAttribute>",
    ),
    "Order": (
        "publisher subscriber",
        lambda s: s.setOrderAttribute(True),
        f"<orderAttribute {NS}><inOrder>true</inOrder></orderAttribute>",
    ),
    "Durable": (
        "subscriber",
        lambda s: s.setDurableAttribute("vehicle 7"),
        f"<durableAttribute {NS}><id>vehicle 7</id></durableAttribute>",
    ),
    "Latest": (
        "subscriber query",
        lambda s: s.setLatestAttribute("//id"),
        f"<latestAttribute {NS}><key>//id</key></latestAttribute>",
    ),
}


def sequences(connection: Connection) -> dict[str, Any]:
    return {
        "publisher": connection.createPublisherSequence("t", "1.0"),
        "subscriber": connection.createSubscriberSequence("t", "1.0"),
        "query": connection.createQuerySequence("t", "1.0"),
    }


@pytest.mark.row("G-09", "G-44", "G-45", "G-147")
def test_each_attribute_has_both_forms_and_they_are_equal(connection: Connection) -> None:
    assert set(FORMS) == set(KINDS)
    for name, (roles, by_method, document) in FORMS.items():
        for role, by_name in sequences(connection).items():
            other = sequences(connection)[role]
            if role not in roles.split():
                with pytest.raises(ObjectUnavailableException):
                    by_name.setSequenceAttribute(name, "1.0", document)
                continue
            # When
            by_name.setSequenceAttribute(name, "1.0", document)
            by_method(other)
            # Expect
            assert by_name.getSequenceAttribute(name, "1.0") == other.getSequenceAttribute(name, "1.0") == document
            assert by_name.getSequenceAttributes() == other.getSequenceAttributes() == [(name, "1.0", document)]


def test_what_is_not_set_or_not_known_is_told(connection: Connection) -> None:
    sequence = connection.createPublisherSequence("t", "1.0")
    with pytest.raises(ObjectUnavailableException, match="not set"):
        sequence.getSequenceAttribute("Validation", "1.0")
    with pytest.raises(ObjectUnavailableException, match="They have Validation, ReliableDelivery"):
        sequence.setSequenceAttribute("validation", "1.0", FORMS["Validation"][2])
    with pytest.raises(UnsupportedVersionException, match=r"in version 1\.0"):
        sequence.setSequenceAttribute("Validation", "2.0", FORMS["Validation"][2])
    with pytest.raises(InvalidMetadataException):
        sequence.setSequenceAttribute("Validation", "1.0", FORMS["Persistence"][2])
    assert sequence.getSequenceAttributes() == []


NUMBER = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="n" type="xs:int"/></xs:schema>'


def describe_number(connection: Connection) -> None:
    """Type `number` with its schema, at the node."""
    described = InfoObjectDescriptor()
    described.setType("number")
    described.setVersion("1.0")
    described.setMetadataXMLSchema(NUMBER)
    connection.getMetadataRepository().add(described)


@pytest.mark.row("G-51")
@pytest.mark.parametrize("default", [True, False])
def test_publications_are_checked_as_their_sequence_says_or_else_as_the_configuration_does(
    empty_node: Any, default: bool
) -> None:
    # Given a configuration that says one thing of a check, and sequences that say the same, another, or nothing
    empty_node.start(archive=False)
    describe_number(empty_node.connected())
    config = empty_node.config
    for check, bad in (("well_formed", "<n"), ("validate", "<n>one</n>")):
        other = {"well_formed": True, "validate": False} | {check: default}
        client = msgspec.structs.replace(config.client, **other)
        empty_node.federation.config = msgspec.structs.replace(config, client=client)
        connection = empty_node.connected(check)
        for said in (True, False, None):
            sequence = connection.createPublisherSequence("number", "1.0")
            if said is not None:
                sequence.setValidationAttribute(*((said, False) if check == "well_formed" else (True, said)))
            sequence.activateSequence()
            io = connection.createInfoObject("number", "1.0", b"", bad)
            # When something bad is published, Expect the sequence's word to count, else the configuration's
            if default if said is None else said:
                with pytest.raises(InvalidMetadataException):
                    sequence.publishInfoObject(io)
            else:
                assert sequence.publishInfoObject(io), (check, said)
            assert sequence.publishInfoObject(connection.createInfoObject("number", "1.0", b"", "<n>1</n>"))


@pytest.mark.row("G-70")
def test_a_publisher_of_what_is_not_checked_and_a_subscriber_of_what_is_valid(
    connection: Connection, predicate: Any
) -> None:
    # Given: a type with a schema, and a publisher that checks nothing
    describe_number(connection)
    loose = connection.createPublisherSequence("number", "1.0")
    loose.setValidationAttribute(False, False)
    loose.setPersistenceAttribute(True)
    loose.activateSequence()
    # and subscribers and queries that want what is well-formed, what is valid, and all
    asked = {}
    for name, validation in {
        "all": None,
        "whatever": (False, False),
        "well-formed": (True, False),
        "valid": (True, True),
    }.items():
        subscriber = connection.createSubscriberSequence("number", "1.0")
        query = connection.createQuerySequence("number", "1.0")
        for sequence in (subscriber, query):
            if validation is not None:
                sequence.setValidationAttribute(*validation)
            sequence.activateSequence()
        asked[name] = subscriber, query
    # When
    for text in ("<n>1</n>", "<n>one</n>", "<n", "<n>2</n>"):
        loose.publishInfoObject(connection.createInfoObject("number", "1.0", b"", text))
    connection.destroySequence(loose)
    # Expect
    expected = {
        "all": ["<n>1</n>", "<n>one</n>", "<n", "<n>2</n>"],
        "whatever": ["<n>1</n>", "<n>one</n>", "<n", "<n>2</n>"],
        "well-formed": ["<n>1</n>", "<n>one</n>", "<n>2</n>"],
        "valid": ["<n>1</n>", "<n>2</n>"],
    }
    for name, (subscriber, query) in asked.items():
        assert [subscriber.getNext(20_000).getMetadata() for _ in expected[name]] == expected[name]
        query.executeQuery()
        assert [io.getMetadata() for io in query.getNext(10, 20_000)] == expected[name]


def test_a_subscriber_of_what_is_valid_needs_a_schema(connection: Connection) -> None:
    sequence = connection.createSubscriberSequence("nobody.knows", "1.0")
    sequence.setValidationAttribute(True, True)
    with pytest.raises(UnrecognizedObjectTypeException):
        sequence.activateSequence()


@pytest.mark.row("G-13", "G-74")
def test_a_compressed_publisher_has_a_compressed_connection(connection: Connection, node: Any) -> None:
    # Given
    sequence = connection.createPublisherSequence("t", "1.0")
    sequence.setValidationAttribute(True, False)
    sequence.setCompressionAttribute(True)
    subscriber = connection.createSubscriberSequence("t", "1.0")
    # When
    sequence.activateSequence()
    subscriber.activateSequence()
    sequence.publishInfoObject(connection.createInfoObject("t", "1.0", b"x" * 100_000, "<a/>"))
    # Expect
    assert subscriber.getNext(20_000).getPayload() == b"x" * 100_000
    (light, delegate) = connection._lights[True]
    assert light.status()["delegates"][delegate]["compression"] == "deflate"
    assert light.status()["delegates"][delegate]["ratio"] > 10


@pytest.mark.row("G-48", "G-53")
def test_an_object_that_waits_longer_than_it_may_is_given_up(empty_node: Any) -> None:
    # Given a client whose publications may wait for 3 s unless a sequence says otherwise, and one that does
    client = msgspec.structs.replace(empty_node.config.client, expiration=3.0, reliable=False)
    empty_node.federation.config = msgspec.structs.replace(empty_node.config, client=client)
    first = empty_node.start("first", archive=False)
    connection = empty_node.connected()
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.activateSequence()
    passing, lasting = (connection.createPublisherSequence("t", "1.0") for _ in range(2))
    lasting.setReliableDeliveryAttribute(True, 60_000)
    for sequence in (passing, lasting):
        sequence.activateSequence()

    def publish(sequence: Any, text: str) -> None:
        sequence.publishInfoObject(connection.createInfoObject("t", "1.0", b"", f"<a>{text}</a>"))

    def came(count: int) -> list[str]:
        return sorted(subscriber.getNext(20_000).getMetadata() for _ in range(count))

    publish(passing, "passing")
    publish(lasting, "lasting")
    assert came(2) == ["<a>lasting</a>", "<a>passing</a>"]
    (light, _) = connection._lights[False]
    light.flush(30.0)
    # When both wait longer than that for a node
    first.stop(0.5)
    publish(passing, "stale")
    publish(lasting, "late")
    time.sleep(3.5)
    empty_node.start("second", archive=False)
    publish(passing, "fresh")
    # Expect what may not wait so long to be given up, and nothing else
    assert came(2) == ["<a>fresh</a>", "<a>late</a>"]
    with pytest.raises(TimeoutException):
        subscriber.getNext(100)
    # and the default of reliability to hold where nothing is said
    said = [light._publications[each._registrations[0]][0].terms.reliable for each in (passing, lasting)]
    assert said == [False, True]


@pytest.mark.row("G-175")
def test_local_publications_and_subscriptions_say_so_to_the_node(connection: Connection) -> None:
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setValidationAttribute(True, False)
    publisher.setLocalAttribute(True)
    publisher.activateSequence()
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.setLocalAttribute(True)
    subscriber.activateSequence()
    publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    assert subscriber.getNext(20_000).getMetadata() == "<a/>"
    (light, _) = connection._lights[False]
    assert light._publications[publisher._registrations[0]][0].request().local


def test_a_type_with_invariant_elements_is_published_by_a_client_that_knows_nothing_of_them(
    connection: Connection, figures: Any, predicate: Any
) -> None:
    # Given a type whose schema has marks
    described = InfoObjectDescriptor()
    described.setType("mil.af.rl.jbi.Intel_Imagery")
    described.setVersion("1.0")
    described.setMetadataXMLSchema(figures.schema.read_text())
    connection.getMetadataRepository().add(described)
    publisher = connection.createPublisherSequence("mil.af.rl.jbi.Intel_Imagery", "1.0")
    publisher.activateSequence()
    wanted = connection.createSubscriberSequence("mil.af.rl.jbi.Intel_Imagery", "1.0")
    wanted.setSequencePredicate(predicate("//lat < 41"))
    wanted.activateSequence()
    # When objects differ in what is invariant
    documents = [figures.metadata(publisher=name).decode() for name in ("first", "second", "first", "third")]
    for document in documents:
        publisher.publishInfoObject(connection.createInfoObject("mil.af.rl.jbi.Intel_Imagery", "1.0", b"", document))
    # Expect all of them, from a registration for each set of values
    assert sorted(wanted.getNext(20_000).getMetadata() for _ in documents) == sorted(documents)
    assert len(publisher._registrations) == 3
    with pytest.raises(InvalidMetadataException):
        publisher.publishInfoObject(connection.createInfoObject("mil.af.rl.jbi.Intel_Imagery", "1.0", b"", "<a/>"))


def test_invariants_that_are_said_hold_for_all(connection: Connection, figures: Any) -> None:
    described = InfoObjectDescriptor()
    described.setType("mil.af.rl.jbi.Intel_Imagery")
    described.setVersion("1.0")
    described.setMetadataXMLSchema(figures.schema.read_text())
    connection.getMetadataRepository().add(described)
    publisher = connection.createPublisherSequence("mil.af.rl.jbi.Intel_Imagery", "1.0")
    publisher.setInvariantsAttribute(figures.figure_1.decode())
    publisher.activateSequence()
    first = connection.createInfoObject("mil.af.rl.jbi.Intel_Imagery", "1.0", b"", figures.figure_1)
    publisher.publishInfoObject(first)
    other = figures.metadata(publisher="999th")
    with pytest.raises(InvalidMetadataException):
        publisher.publishInfoObject(connection.createInfoObject("mil.af.rl.jbi.Intel_Imagery", "1.0", b"", other))


def test_a_subscriber_may_begin_with_the_newest_of_each_key(connection: Connection, publisher: Any) -> None:
    # Given
    archived = connection.createPublisherSequence("t", "1.0")
    archived.setValidationAttribute(True, False)
    archived.setPersistenceAttribute(True)
    archived.activateSequence()
    for number, force in enumerate(("red", "blue", "red")):
        text = f"<metadata><force><ID>{force}</ID></force><n>{number}</n></metadata>"
        archived.publishInfoObject(connection.createInfoObject("t", "1.0", b"", text))
    connection.destroySequence(archived)
    # When
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.setLatestAttribute("//metadata/force/ID")
    subscriber.activateSequence()
    # Expect
    found = [subscriber.getNext(20_000).getMetadata() for _ in range(2)]
    assert ["<n>1</n>" in found[0], "<n>2</n>" in found[1]] == [True, True]
    with pytest.raises(TimeoutException):
        subscriber.getNext(100)
