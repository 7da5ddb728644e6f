"""What is wrong: values of other types, several threads at once, calls from within callbacks, and objects that are too
large. Each gets an exception of the API, or ArgumentError, and leaves the rest as it was."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import JbiError
from jbi_pubsub.capi import (
    CapiException,
    Connection,
    ConnectionManager,
    InfoObjectDescriptor,
    InvalidMetadataException,
    InvalidPayloadException,
    InvalidPredicateException,
    MetadataRepository,
    ObjectSizeException,
    PublisherSequence,
    QuerySequence,
    SequenceStateException,
    SubscriberSequence,
    VersionNumberException,
)
from jbi_pubsub.capi.errors import EXCEPTIONS, exception_of
from jbi_pubsub.capi.objects import type_of
from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.core.errors import ArgumentError, ConfigurationError, SchemaError
from jbi_pubsub.subscriber.options import query_request

WRONG: list[Any] = [
    None,
    5,
    -1,
    float("nan"),
    b"bytes",
    "",
    "text",
    [],
    {},
    object(),
    "\ud800",
    True,
    "\x00",
    "<a>" * 999,
]


def test_a_wrong_argument_is_told_by_the_name_of_the_call(connection: Connection) -> None:
    # Given sequences; When an argument is wrong, expect the call as the caller knows it
    publisher = connection.createPublisherSequence("t", "1.0")
    subscriber = connection.createSubscriberSequence("t", "1.0")
    with pytest.raises(ArgumentError, match=r"^PublisherSequence.publishInfoObject: io is None"):
        publisher.publishInfoObject(None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^SubscriberSequence.getNext: timeout is '1'"):
        subscriber.getNext("1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [Connection, PublisherSequence, SubscriberSequence, QuerySequence, MetadataRepository, ConnectionManager]
)
def test_no_call_raises_anything_but_our_errors_for_values_of_any_type(
    connection: Connection, node: Any, kind: type
) -> None:
    made: dict[type, Any] = {
        Connection: lambda: connection,
        PublisherSequence: lambda: connection.createPublisherSequence("t", "1.0"),
        SubscriberSequence: lambda: connection.createSubscriberSequence("t", "1.0"),
        QuerySequence: lambda: connection.createQuerySequence("t", "1.0"),
        MetadataRepository: connection.getMetadataRepository,
        ConnectionManager: lambda: ConnectionManager(node.config),
    }
    skipped = {"disconnect", "connect", "destroy", "forget", "publisher", "subscriber", "node_addresses", "refused"}
    told: dict[str, str] = {}
    for name, call in inspect.getmembers(kind, inspect.isfunction):
        count = len(inspect.signature(call).parameters) - 1
        if name[0] == "_" or name in skipped or not count:
            continue
        for wrong in WRONG:
            try:
                getattr(made[kind](), name)(*[wrong] * count)
            except (CapiException, ArgumentError) as exc:
                told[name] = str(exc)
    assert told
    assert all(len(text) < 1_000 for text in told.values())


@pytest.mark.row("G-143")
def test_each_exception_is_one_of_our_errors_with_a_code_of_its_own() -> None:
    assert len({each.code for each in EXCEPTIONS}) == len(EXCEPTIONS) == 16
    assert all(issubclass(each, JbiError) and each.code.startswith("capi_") for each in EXCEPTIONS)


def test_what_the_adapters_raise_is_told_by_an_exception_of_the_same_kind() -> None:
    kinds = [JbiError]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if not issubclass(each, CapiException)]
    for kind in kinds:
        told = exception_of(kind("what", hint="how", a=1))
        assert isinstance(told, CapiException | ArgumentError)
        assert (told.message, told.hint, told.facts["a"]) == ("what", "how", 1)


@pytest.mark.row("G-50")
def test_metadata_and_payloads_of_the_largest_size_pass_and_of_one_byte_more_do_not(empty_node: Any) -> None:
    # Given limits of this client
    empty_node.start()
    client = msgspec.structs.replace(empty_node.config.client, max_metadata=100, max_payload=1_000)
    empty_node.federation.config = msgspec.structs.replace(empty_node.config, client=client)
    connection = empty_node.connected()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setValidationAttribute(True, False)
    publisher.activateSequence()

    def publish(metadata: int, payload: int) -> str:
        text = f"<a>{'x' * (metadata - 7)}</a>"
        return publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"x" * payload, text))  # type: ignore[no-any-return]

    # Expect
    assert publish(100, 1_000)
    with pytest.raises(ObjectSizeException, match="the limit is 100"):
        publish(101, 1_000)
    with pytest.raises(ObjectSizeException, match="the limit is 1000"):
        publish(100, 1_001)


def test_limits_of_the_node_hold_for_clients_that_do_not_know_them(empty_node: Any) -> None:
    # Given a node that takes less than its client would publish
    config = empty_node.config
    limited = msgspec.structs.replace(config.client, max_payload=100)
    empty_node.federation.config = msgspec.structs.replace(config, client=limited)
    empty_node.start(archive=False)
    empty_node.federation.config = config
    connection = empty_node.connected()
    publisher, subscriber = (
        connection.createPublisherSequence("t", "1.0"),
        connection.createSubscriberSequence("t", "1.0"),
    )
    for sequence in (publisher, subscriber):
        sequence.activateSequence()
    assert connection.getNodeDetails().max_payload == 100

    def publish(size: int) -> str:
        return publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"x" * size, "<a/>"))  # type: ignore[no-any-return]

    # When an object is one byte too large, Expect a later call to say so of it, having published nothing
    good, bad = [publish(100)], publish(101)
    connection._lights[False][0].flush(30.0)
    with pytest.raises(ObjectSizeException, match=bad):
        publish(99)
    good.append(publish(98))
    assert [subscriber.getNext(20_000).getInfoObjectID() for _ in good] == good
    # and the end of the sequence, if nobody calls any more
    bad = publish(101)
    with pytest.raises(ObjectSizeException, match=bad):
        connection.destroySequence(publisher)


def test_metadata_in_another_encoding_come_as_they_are(connection: Connection, publisher: Any) -> None:
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.activateSequence()
    sequence = publisher()
    documents: list[str | bytes] = [
        '<?xml version="1.0" encoding="UTF-8"?>\n<a>ö</a>',
        "<a>ö</a>",
        '<?xml version="1.0" encoding="ISO-8859-1"?><a>ö</a>'.encode("latin-1"),
        '<?xml version="1.0" encoding="UTF-16"?><a>ö</a>'.encode("utf-16"),
    ]
    for document in documents:
        sequence.publishInfoObject(connection.createInfoObject("t", "1.0", None, document))
    for document in documents:
        found = subscriber.getNext(20_000)
        assert found.getMetadataBytes() == (document if isinstance(document, bytes) else document.encode())
        assert found.getMetadata().endswith("<a>ö</a>")


def test_metadata_that_are_no_text_are_told(connection: Connection) -> None:
    io = connection.createInfoObject("t", "1.0", None, b"\xff\x00<a/>")
    with pytest.raises(InvalidMetadataException):
        io.getMetadata()
    assert io.getMetadataBytes() == b"\xff\x00<a/>"


def test_a_file_that_is_not_there_is_told(connection: Connection, publisher: Any, tmp_path: Any) -> None:
    file = tmp_path / "payload"
    io = connection.createInfoObject("t", "1.0", file, None)
    with pytest.raises(InvalidPayloadException, match="No such file"):
        io.getPayload()
    with pytest.raises(InvalidPayloadException):
        publisher().publishInfoObject(io)
    file.write_bytes(b"now")
    assert publisher("t").publishInfoObject(io)
    assert io.getPayload() == b"now"


def test_of_a_file_without_an_end_no_more_is_read_than_may_be_published(node: Any, publisher: Any) -> None:
    client = msgspec.structs.replace(node.config.client, max_payload=1_000)
    node.federation.config = msgspec.structs.replace(node.config, client=client)
    connection = node.connected()
    sequence = publisher("t", connection)
    with pytest.raises(ObjectSizeException, match="1001 bytes or more"):
        sequence.publishInfoObject(connection.createInfoObject("t", "1.0", Path("/dev/zero"), None))
    with pytest.raises(InvalidPayloadException, match="null byte"):
        connection.createInfoObject("t", "1.0", Path("a\0b"), None).getPayload()


@pytest.mark.row("G-114")
@pytest.mark.parametrize(
    "document",
    [
        ("<predicate><predicateType>XPath</predicateType><predicateInstance>a</predicateInstance>"
        "<predicateInstance>b</predicateInstance></predicate>"),
        "<predicates><predicate/><predicate/></predicates>",
        "<predicate><predicateType>XPath</predicateType><predicateInstance><a/></predicateInstance></predicate>",
        "<predicate><predicateType>XPath</predicateType></predicate>",
        "<predicate><predicateType>XPath</predicateType><predicateInstance>a[</predicateInstance></predicate>",
        "<predicate><predicateType>XPath</predicateType><predicateInstance>document('x')</predicateInstance></predicate>",
        "<predicate>" + "<predicateName/>" * 50_000 + "</predicate>",
        ('<!DOCTYPE p [<!ENTITY a "b">]><predicate><predicateType>XPath</predicateType>'
        "<predicateInstance>&a;</predicateInstance></predicate>"),
    ],
)  # fmt: skip
def test_a_predicate_document_that_is_none_is_refused(connection: Connection, document: str) -> None:
    for sequence in (connection.createSubscriberSequence("t", "1.0"), connection.createQuerySequence("t", "1.0")):
        with pytest.raises(InvalidPredicateException):
            sequence.setSequencePredicate(document)


def test_a_predicate_document_of_any_size_is_looked_at_once(connection: Connection, predicate: Any) -> None:
    sequence = connection.createQuerySequence("t", "1.0")
    began = time.process_time()
    with pytest.raises(InvalidPredicateException, match="200000 characters"):
        sequence.setSequencePredicate(predicate("a" * 200_000))
    assert time.process_time() - began < 30.0  # by the square it took minutes


@pytest.mark.parametrize("version", ["", "1", "1.0.0", " 1.0", "1.0\n", "\u0661.\u0660", "-1.0", "1." + "0" * 10])
def test_what_is_no_version_is_told(connection: Connection, version: str) -> None:
    with pytest.raises(VersionNumberException):
        connection.createPublisherSequence("t", version)


def test_a_prefix_that_nobody_has_said_is_told_when_the_sequence_opens(connection: Connection, predicate: Any) -> None:
    sequence = connection.createSubscriberSequence("t", "1.0")
    sequence.setSequencePredicate(predicate("//mine:a"))
    with pytest.raises(InvalidPredicateException, match="mine"):
        sequence.activateSequence()
    assert sequence.getSequenceState() == 0
    sequence.setNamespacePrefixes({"mine": "urn:mine"})
    sequence.activateSequence()


def test_a_prefix_may_be_any_name_of_xml(connection: Connection, predicate: Any) -> None:
    sequence = connection.createSubscriberSequence("t", "1.0")
    sequence.setSequencePredicate(predicate("//é:a[कि:b='c:d' and child::e]"))
    sequence.setNamespacePrefixes({"é": "urn:1", "कि": "urn:2"})
    sequence.activateSequence()


def test_one_sequence_opened_and_destroyed_by_many_threads_is_opened_once_and_left_closed(
    connection: Connection, node: Any
) -> None:
    for make in (connection.createPublisherSequence, connection.createSubscriberSequence):
        for _ in range(10):
            sequence: Any = make("t", "1.0")
            sequence.setValidationAttribute(True, False)
            outcomes: list[str] = []
            begin = threading.Barrier(8)

            def do(call: Any, sequence: Any = sequence, outcomes: Any = outcomes, begin: Any = begin) -> None:
                begin.wait(60.0)
                try:
                    call(sequence)
                    outcomes.append(call.__name__)
                except SequenceStateException:
                    outcomes.append("refused")

            def activate(sequence: Any) -> None:
                sequence.activateSequence()

            def destroy(sequence: Any) -> None:
                connection.destroySequence(sequence)

            threads = [threading.Thread(target=do, args=[activate if n % 2 else destroy]) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60.0)
            # Expect
            assert outcomes.count("destroy") == 1
            assert outcomes.count("activate") <= 1
            assert sequence.getSequenceState() == 3
            assert sequence._at is None
    light, _delegate = connection._lights[False]
    assert light.status()["registrations"] == {}
    assert connection._subscriber is not None
    assert connection._subscriber.status()["subscriptions"] == {}


def test_an_object_that_is_published_while_its_sequence_ends_leaves_no_registration(
    connection: Connection, figures: Any
) -> None:
    # Given a sequence of a type with invariant elements, that ends when an object of other values is on its way
    repository, described = connection.getMetadataRepository(), InfoObjectDescriptor()
    described.setType("mil.af.rl.jbi.Intel_Imagery")
    described.setVersion("1.0")
    described.setMetadataXMLSchema(figures.schema.read_text())
    repository.add(described)
    sequence = connection.createPublisherSequence("mil.af.rl.jbi.Intel_Imagery", "1.0")
    sequence.activateSequence()
    assert sequence._at is not None
    light, delegate = sequence._at
    io = connection.createInfoObject("mil.af.rl.jbi.Intel_Imagery", "1.0", b"", figures.figure_1)
    connection.destroySequence(sequence)
    # When, Expect
    with pytest.raises(SequenceStateException):
        sequence._publish(light, delegate, io)
    assert light.status()["registrations"] == {}


def test_everything_may_be_called_from_within_a_callback(connection: Connection, publisher: Any) -> None:
    # Given a callback that publishes, asks, pauses, resumes, and ends its own connection
    done = threading.Event()
    errors: list[BaseException] = []
    archive = connection.createPublisherSequence("answer", "1.0")
    archive.setValidationAttribute(True, False)
    archive.setPersistenceAttribute(True)
    archive.activateSequence()

    class Busy:
        def infoObjectAvailable(self, io: Any) -> None:
            try:
                archive.publishInfoObject(connection.createInfoObject("answer", "1.0", b"", io.getMetadata()))
                query = connection.createQuerySequence("answer", "1.0")
                query.activateSequence()
                query.executeDistributedQuery(20_000)
                query.getNext(1, 20_000)
                sequence.pauseSequence()
                sequence.resumeSequence()
                connection.disconnect()
            except BaseException as exc:  # noqa: BLE001  # told below
                errors.append(exc)
            done.set()

    sequence = connection.createSubscriberSequence("t", "1.0")
    sequence.setSequenceCallback(Busy())
    sequence.activateSequence()
    # When
    publisher().publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    # Expect
    assert done.wait(60.0)
    assert errors == []
    assert sequence.getSequenceState() == 3


@pytest.mark.parametrize("version", ["01.0", "1.00", "00.1"])
def test_a_version_with_zeros_before_a_number_is_none_to_anybody(version: str) -> None:
    with pytest.raises(VersionNumberException):
        type_of("report", version)
    with pytest.raises(SchemaError, match="begins a number with 0"):
        checked_name("report", version)
    with pytest.raises(ConfigurationError, match="begins a number with 0"):
        query_request("report", {"version": version}, now=0.0)


def test_other_versions_are_as_they_were() -> None:
    for version in ("0.1", "1.0", "10.20"):
        assert type_of("report", version).version == checked_name("report", version).version == version
    assert checked_name("report", "2026-11").version == "2026-11"
