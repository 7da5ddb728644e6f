"""What the Common API promises, as a client of any platform meets it: a class name is all that it is told.

    python tests/capi/conformance.py jbi_pubsub.capi.ConnectionManager [DESCRIPTOR.xml] [CREDENTIALS.xml]

Made of the calls of the API alone, against a node with an archive and a type repository. Each check is a function with
a name that says what is promised; all are run, what fails is told, and the exit code is 1 then.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREDICATE = (
    "<predicate><predicateName>p</predicateName><predicateType>XPath</predicateType>"
    "<predicateInstance>{}</predicateInstance></predicate>"
)
VALIDATION = (
    '<validationAttribute xmlns="http://gdc4s.com/oim/gemini">'
    "<validateXmlIsWellFormed>true</validateXmlIsWellFormed>"
    "<validateXmlAgainstSchema>{}</validateXmlAgainstSchema></validationAttribute>"
)
SCHEMA = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="image"><xs:complexType><xs:sequence>
<xs:element name="name" type="xs:string"/><xs:element name="priority" type="xs:int"/></xs:sequence></xs:complexType>
</xs:element></xs:schema>"""
SOON = 20_000
"""ms for what comes."""
NEVER = 300
"""ms for what does not."""


def image(priority: int, name: str = "sample") -> str:
    return f"<image><name>{name}</name><priority>{priority}</priority></image>"


class Client:
    """A connected client, and what it has to clean up."""

    def __init__(self, manager: Any, descriptor: str, credentials: str, errors: Any) -> None:
        self.manager = manager
        self.descriptor = descriptor
        self.credentials = credentials
        self.errors = errors
        self.type = f"conformance.{uuid.uuid4().hex[:12]}"
        self._connections: list[Any] = []
        self.connection = self.connected()

    def connected(self) -> Any:
        connection = self.manager.createConnection(f"conformance-{len(self._connections)}", self.descriptor)
        self._connections.append(connection)
        if self.credentials:
            connection.authenticate(self.credentials)
        connection.connect()
        return connection

    def publisher(self, type: str = "", connection: Any = None, **attributes: str) -> Any:  # noqa: A002
        made = (connection or self.connection).createPublisherSequence(type or self.type, "1.0")
        made.setSequenceAttribute("Validation", "1.0", VALIDATION.format("false"))
        for name, document in attributes.items():
            made.setSequenceAttribute(name, "1.0", document)
        made.activateSequence()
        return made

    def subscriber(self, predicate: str = "", callback: Any = None, connection: Any = None, **attributes: str) -> Any:
        made = (connection or self.connection).createSubscriberSequence(self.type, "1.0")
        if predicate:
            made.setSequencePredicate(PREDICATE.format(predicate))
        if callback is not None:
            made.setSequenceCallback(callback)
        for name, document in attributes.items():
            made.setSequenceAttribute(name, "1.0", document)
        made.activateSequence()
        return made

    def query(self, predicate: str = "", **attributes: str) -> Any:
        made = self.connection.createQuerySequence(self.type, "1.0")
        if predicate:
            made.setSequencePredicate(PREDICATE.format(predicate))
        for name, document in attributes.items():
            made.setSequenceAttribute(name, "1.0", document)
        made.activateSequence()
        return made

    def object(self, metadata: str | None, payload: bytes | None = b"payload", connection: Any = None) -> Any:
        return (connection or self.connection).createInfoObject(self.type, "1.0", payload, metadata)

    def publish(self, *priorities: int, also: str = "") -> list[str]:
        """Archived objects of these priorities, and one more: their ids."""
        persist = (
            '<persistenceAttribute xmlns="http://gdc4s.com/oim/gemini"><persist>true</persist></persistenceAttribute>'
        )
        sequence = self.publisher(Persistence=persist)
        documents = [*(image(p) for p in priorities), *([also] if also else [])]
        ids = [sequence.publishInfoObject(self.object(document)) for document in documents]
        self.connection.destroySequence(sequence)  # which waits until the node has them
        return ids

    def raises(self, name: str, call: Callable[[], object]) -> None:
        """That a call raises that exception of the API."""
        wanted = getattr(self.errors, name)
        try:
            found = call()
        except wanted:
            return
        raise AssertionError(f"{name} was not raised, but {found!r} returned")

    def close(self) -> None:
        for connection in self._connections:
            self.manager.destroyConnection(connection)


class Heard:
    """A callback of any kind, which notes what it is told."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.states: list[str] = []
        self._changed = threading.Condition()

    def infoObjectAvailable(self, io: Any) -> None:
        with self._changed:
            self.objects.append(io)
            self._changed.notify_all()

    def queryFinished(self, state: str) -> None:
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def wait(self, good: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(good, SOON / 1000), f"{len(self.objects)} objects, {self.states} came"


# -- what is promised -----------------------------------------------------------------------------------------------


def what_is_published_comes_to_who_subscribes(client: Client) -> None:
    subscriber, publisher = client.subscriber(), client.publisher()
    published = client.object(image(1), b"\x00\xff payload")
    assert published.getInfoObjectID() == ""
    object_id = publisher.publishInfoObject(published)
    found = subscriber.getNext(SOON)
    assert found.getInfoObjectID() == object_id == published.getInfoObjectID() != ""
    assert (found.getType(), found.getVersion()) == (client.type, "1.0")
    assert found.getMetadata() == image(1)
    assert found.getPayload() == b"\x00\xff payload"


def the_extended_metadata_say_what_the_platform_knows(client: Client) -> None:
    subscriber, publisher = client.subscriber(), client.publisher()
    object_id = publisher.publishInfoObject(client.object(image(1), b"12345"))
    said = subscriber.getNext(SOON).getExtendedMetadata()
    for part in (f"<og:Name>{client.type}<", "MajorVersion>1<", "MinorVersion>0<", f"InfoObjectID>{object_id}<"):
        assert part in said, part
    assert f"MetadataLength>{len(image(1))}<" in said
    assert "PayloadLength>5<" in said
    assert "PublicationTime>20" in said
    assert "PublisherID>" in said


def a_predicate_decides_what_comes(client: Client) -> None:
    subscriber, publisher = client.subscriber("//image[priority='1']"), client.publisher()
    for priority in (2, 1, 3, 1):
        publisher.publishInfoObject(client.object(image(priority)))
    assert [subscriber.getNext(SOON).getMetadata() for _ in range(2)] == [image(1), image(1)]
    client.raises("TimeoutException", lambda: subscriber.getNext(NEVER))


def a_predicate_may_speak_of_what_the_platform_says(client: Client) -> None:
    large = client.subscriber("/og:metadata/og:baseObject[og:PayloadLength&gt;1000]")
    both = client.subscriber("/og:metadata[og:baseObject/og:PayloadLength&gt;1000]/image[priority=2]")
    publisher = client.publisher()
    for priority, size in ((1, 999), (1, 1001), (2, 1001)):
        publisher.publishInfoObject(client.object(image(priority), b"x" * size))
    assert [large.getNext(SOON).getMetadata() for _ in range(2)] == [image(1), image(2)]
    assert both.getNext(SOON).getMetadata() == image(2)
    client.raises("TimeoutException", lambda: both.getNext(NEVER))


def prefixes_may_mean_something_else_in_one_sequence(client: Client) -> None:
    prefixes = (
        '<namespacePrefixesAttribute xmlns="http://gdc4s.com/oim/gemini">'
        "<mapping><prefix>og</prefix><uri>urn:mine</uri></mapping></namespacePrefixesAttribute>"
    )
    mine = client.subscriber("//og:thing", NamespacePrefixes=prefixes)
    client.publish(1, 2, also='<thing xmlns="urn:mine"/>')
    assert mine.getNext(SOON).getMetadata() == '<thing xmlns="urn:mine"/>'
    for predicate, given, count in (
        ("//og:thing", prefixes, 1),
        ("//og:baseObject", prefixes, 0),
        ("//og:baseObject", "", 3),
    ):
        asked = client.query(predicate, **({"NamespacePrefixes": given} if given else {}))
        asked.executeQuery()
        assert len(asked.getNext(10, SOON)) == count, predicate


def another_version_is_another_type(client: Client) -> None:
    subscriber = client.subscriber()
    for version in ("1.1", "1.0"):
        publisher = client.connection.createPublisherSequence(client.type, version)
        publisher.activateSequence()
        publisher.publishInfoObject(client.connection.createInfoObject(client.type, version, b"", image(1)))
    assert subscriber.getNext(SOON).getVersion() == "1.0"
    client.raises("TimeoutException", lambda: subscriber.getNext(NEVER))


def metadata_or_payload_may_be_absent(client: Client) -> None:
    subscriber, publisher = client.subscriber(), client.publisher()
    publisher.publishInfoObject(client.object(image(1), None))
    publisher.publishInfoObject(client.object(None, b"payload"))
    first, second = subscriber.getNext(SOON), subscriber.getNext(SOON)
    assert (first.getMetadata(), first.getPayload()) == (image(1), b"")
    assert (second.getMetadata(), second.getPayload()) == ("", b"payload")


def a_callback_is_told_of_each_object_in_order(client: Client) -> None:
    heard = Heard()
    sequence, publisher = client.subscriber(callback=heard), client.publisher()
    client.raises("SequenceStateException", lambda: sequence.getNext(NEVER))
    ids = [publisher.publishInfoObject(client.object(image(n))) for n in range(20)]
    heard.wait(lambda: len(heard.objects) == 20)
    assert [io.getInfoObjectID() for io in heard.objects] == ids


def a_callback_may_destroy_its_own_sequence(client: Client) -> None:
    told: list[Any] = []
    done = threading.Event()

    class Once:
        def infoObjectAvailable(self, io: Any) -> None:
            told.append(io)
            client.connection.destroySequence(sequence)
            done.set()

    sequence, publisher = client.subscriber(callback=Once()), client.publisher()
    for n in range(5):
        publisher.publishInfoObject(client.object(image(n)))
    assert done.wait(SOON / 1000)
    time.sleep(NEVER / 1000)
    assert len(told) == 1
    assert sequence.getSequenceState() == 3


def what_comes_to_a_paused_subscriber_waits(client: Client) -> None:
    heard = Heard()
    pulled, told, publisher = client.subscriber(), client.subscriber(callback=heard), client.publisher()
    pulled.pauseSequence()
    told.pauseSequence()
    assert pulled.getSequenceState() == 2
    publisher.publishInfoObject(client.object(image(1)))
    client.raises("PausedSequenceException", lambda: pulled.getNext(NEVER))
    time.sleep(NEVER / 1000)
    assert heard.objects == []
    pulled.resumeSequence()
    told.resumeSequence()
    assert pulled.getNext(SOON).getMetadata() == image(1)
    heard.wait(lambda: len(heard.objects) == 1)


def pausing_and_destroying_end_a_wait(client: Client) -> None:
    for end, name in (
        (lambda sequence: sequence.pauseSequence(), "PausedSequenceException"),
        (client.connection.destroySequence, "SequenceStateException"),
    ):
        sequence = client.subscriber()
        threading.Timer(0.2, end, [sequence]).start()
        began = time.monotonic()
        client.raises(name, lambda sequence=sequence: sequence.getNext(SOON))
        assert time.monotonic() - began < SOON / 2000


def a_paused_publisher_does_not_publish(client: Client) -> None:
    publisher = client.publisher()
    publisher.pauseSequence()
    client.raises("PausedSequenceException", lambda: publisher.publishInfoObject(client.object(image(1))))
    publisher.resumeSequence()
    assert publisher.publishInfoObject(client.object(image(1)))


def the_predicate_may_change_while_paused_alone(client: Client) -> None:
    sequence, publisher = client.subscriber("//image[priority=1]"), client.publisher()
    client.raises(
        "SequenceStateException", lambda: sequence.setSequencePredicate(PREDICATE.format("//image[priority=2]"))
    )
    sequence.pauseSequence()
    sequence.setSequencePredicate(PREDICATE.format("//image[priority=2]"))
    sequence.resumeSequence()
    for priority in (1, 2):
        publisher.publishInfoObject(client.object(image(priority)))
    assert sequence.getNext(SOON).getMetadata() == image(2)


def own_publications_may_be_unwanted(client: Client) -> None:
    no = '<ownPublicationsAttribute xmlns="http://gdc4s.com/oim/gemini"><receiveOwn>false</receiveOwn></ownPublicationsAttribute>'
    other = client.connected()
    sequence = client.subscriber(OwnPublications=no)
    client.publisher().publishInfoObject(client.object(image(1)))
    client.publisher(connection=other).publishInfoObject(client.object(image(2), connection=other))
    assert sequence.getNext(SOON).getMetadata() == image(2)
    client.raises("TimeoutException", lambda: sequence.getNext(NEVER))


def a_query_finds_what_was_published(client: Client) -> None:
    ids = client.publish(1, 2, 1)
    query = client.query("//image[priority=1]")
    query.executeQuery()
    found = query.getNext(10, SOON)
    assert [io.getInfoObjectID() for io in found] == [ids[0], ids[2]]
    assert query.getNext(10, SOON) == []
    assert query.getResultCount() == 2


def a_query_may_tell_a_callback(client: Client) -> None:
    client.publish(*range(50))
    query, heard = client.query(), Heard()
    query.executeQuery(heard)
    heard.wait(lambda: heard.states == ["finished"])
    assert len(heard.objects) == 50
    client.raises("SequenceStateException", lambda: query.getNext(1, NEVER))


def a_query_may_ask_everybody(client: Client) -> None:
    ids = client.publish(1, 2)
    query, heard = client.query(), Heard()
    query.executeDistributedQuery(SOON, heard)
    heard.wait(lambda: heard.states == ["finished"])
    assert [io.getInfoObjectID() for io in heard.objects] == ids


def one_query_at_a_time_and_a_cancelled_one_gives_nothing(client: Client) -> None:
    client.publish(*range(50))
    query = client.query()
    query.executeQuery()
    client.raises("SequenceStateException", query.executeQuery)
    assert len(query.getNext(5, SOON)) == 5
    query.cancelQuery()
    assert query.getNext(5, SOON) == []
    query.executeQuery()
    assert len(query.getNext(50, SOON)) == 50


def the_newest_of_each_key_can_be_asked_for(client: Client) -> None:
    ids = client.publish(1, 2, 1, 2, 3)
    sequence = client.connection.createQuerySequence(client.type, "1.0")
    latest = '<latestAttribute xmlns="http://gdc4s.com/oim/gemini"><key>//image/priority</key></latestAttribute>'
    sequence.setSequenceAttribute("Latest", "1.0", latest)
    sequence.activateSequence()
    sequence.executeQuery()
    assert [io.getInfoObjectID() for io in sequence.getNext(10, SOON)] == ids[2:]


def a_durable_sequence_gets_what_its_client_missed(client: Client) -> None:
    durable = f'<durableAttribute xmlns="http://gdc4s.com/oim/gemini"><id>{client.type}</id></durableAttribute>'
    away = client.connected()
    first = client.subscriber(connection=away, Durable=durable)
    client.publish(1)
    assert first.getNext(SOON).getMetadata() == image(1)
    away.disconnect()
    client.publish(2, 3)
    away.connect()
    again = client.subscriber(connection=away, Durable=durable)
    assert [again.getNext(SOON).getMetadata() for _ in range(2)] == [image(2), image(3)]
    away.destroySequence(again)


def types_can_be_described_found_and_removed(client: Client) -> None:
    repository = client.connection.getMetadataRepository()
    described = client.errors.InfoObjectDescriptor()
    described.setType(client.type)
    described.setVersion("1.0")
    described.setMetadataXMLSchema(SCHEMA)
    described.setDescription("an image")
    repository.add(described)
    found = repository.get(described)
    assert (found.getMetadataXMLSchema(), found.getDescription()) == (SCHEMA, "an image")
    assert (client.type, "1.0") in [
        (each.getType(), each.getVersion()) for each in repository.list() if hasattr(each, "getType")
    ]
    described.setDescription("a picture")
    repository.update(described)
    assert repository.get(described).getDescription() == "a picture"
    described.setMetadataXMLSchema(SCHEMA.replace("xs:int", "xs:string"))
    client.raises("VersionNumberException", lambda: repository.update(described))
    attached = client.errors.PropertyDescriptor()
    attached.setType(client.type)
    attached.setVersion("1.0")
    attached.setName("icon")
    attached.setValue(b"\x89PNG")
    repository.add(attached)
    assert repository.get(attached).getValue() == b"\x89PNG"
    assert [each.getName() for each in repository.list(described)] == ["icon"]
    repository.remove(attached)
    client.raises("ObjectUnavailableException", lambda: repository.get(attached))
    repository.remove(described)
    client.raises("ObjectUnavailableException", lambda: repository.get(described))


def attributes_can_be_described(client: Client) -> None:
    repository = client.connection.getMetadataRepository()
    described = client.errors.AttributeDescriptor()
    described.setName(client.type)
    described.setVersion("1.0")
    described.setXMLSchema(SCHEMA)
    repository.add(described)
    assert repository.get(described).getXMLSchema() == SCHEMA
    repository.remove(described)


def metadata_are_validated_if_that_is_wanted(client: Client) -> None:
    repository = client.connection.getMetadataRepository()
    described = client.errors.InfoObjectDescriptor()
    described.setType(client.type)
    described.setVersion("1.0")
    described.setMetadataXMLSchema(SCHEMA)
    repository.add(described)
    strict = client.connection.createPublisherSequence(client.type, "1.0")
    strict.setSequenceAttribute("Validation", "1.0", VALIDATION.format("true"))
    strict.activateSequence()
    client.raises(
        "InvalidMetadataException",
        lambda: strict.publishInfoObject(client.object("<image><name>n</name><priority>high</priority></image>")),
    )
    assert strict.publishInfoObject(client.object(image(1)))


def who_says_nothing_of_validation_publishes_any_type_by_its_schema_if_there_is_one(client: Client) -> None:
    plain = client.connection.createPublisherSequence(client.type, "1.0")
    plain.activateSequence()
    assert plain.publishInfoObject(client.object("<anything/>"))
    client.raises("InvalidMetadataException", lambda: plain.publishInfoObject(client.object("<not well-formed")))
    client.connection.destroySequence(plain)
    described = client.errors.InfoObjectDescriptor()
    described.setType(client.type)
    described.setVersion("1.0")
    described.setMetadataXMLSchema(SCHEMA)
    client.connection.getMetadataRepository().add(described)
    known = client.connection.createPublisherSequence(client.type, "1.0")
    known.activateSequence()
    assert known.publishInfoObject(client.object(image(1)))
    client.raises("InvalidMetadataException", lambda: known.publishInfoObject(client.object("<anything/>")))


def a_type_without_schema_is_published_if_nothing_is_validated(client: Client) -> None:
    strict = client.connection.createPublisherSequence(client.type, "1.0")
    strict.setSequenceAttribute("Validation", "1.0", VALIDATION.format("true"))
    client.raises("UnrecognizedObjectTypeException", strict.activateSequence)
    assert strict.getSequenceState() == 0
    client.raises(
        "InvalidMetadataException", lambda: client.publisher().publishInfoObject(client.object("<not well-formed"))
    )


def what_is_wrong_has_its_exception(client: Client) -> None:
    connection = client.connection
    client.raises("VersionNumberException", lambda: connection.createPublisherSequence(client.type, "one"))
    client.raises("UnrecognizedObjectTypeException", lambda: connection.createPublisherSequence("", "1.0"))
    client.raises("InvalidPayloadException", lambda: connection.createInfoObject(client.type, "1.0", 5, None))
    client.raises("InvalidMetadataException", lambda: connection.createInfoObject(client.type, "1.0", b"", 5))
    other = connection.createInfoObject("conformance.another", "1.0", b"", None)
    client.raises("UnrecognizedObjectTypeException", lambda: client.publisher().publishInfoObject(other))
    later = connection.createInfoObject(client.type, "1.1", b"", None)
    client.raises("UnrecognizedObjectTypeException", lambda: client.publisher().publishInfoObject(later))
    sequence = connection.createSubscriberSequence(client.type, "1.0")
    for bad in ("", "<predicate/>", "no xml", PREDICATE.format("///"), PREDICATE.replace("</predicate>", PREDICATE)):
        client.raises("InvalidPredicateException", lambda bad=bad: sequence.setSequencePredicate(bad))
    client.raises(
        "PredicateLanguageException",
        lambda: sequence.setSequencePredicate(PREDICATE.replace("XPath", "SQL").format("a")),
    )
    document = VALIDATION.format("true")
    client.raises("ObjectUnavailableException", lambda: sequence.setSequenceAttribute("Nonsense", "1.0", document))
    client.raises("UnsupportedVersionException", lambda: sequence.setSequenceAttribute("Validation", "9.0", document))
    client.raises("InvalidMetadataException", lambda: sequence.setSequenceAttribute("Validation", "1.0", "<x/>"))
    foreign = client.connected().createPublisherSequence(client.type, "1.0")
    client.raises("SequenceStateException", lambda: connection.destroySequence(foreign))


def a_connection_that_is_not_connected_does_nothing(client: Client) -> None:
    connection = client.manager.createConnection("idle", client.descriptor)
    client.raises("ConnectionException", lambda: connection.createPublisherSequence(client.type, "1.0"))
    client.raises("ConnectionException", connection.disconnect)
    client.manager.destroyConnection(connection)
    client.raises("ConnectionException", connection.connect)
    client.raises("ConnectionException", lambda: client.manager.destroyConnection(connection))


def disconnecting_ends_the_sequences(client: Client) -> None:
    connection = client.connected()
    publisher = client.publisher(connection=connection)
    io = client.object(image(1))
    connection.disconnect()
    client.raises("SequenceStateException", lambda: publisher.publishInfoObject(io))
    connection.connect()
    assert client.publisher(connection=connection).publishInfoObject(io)


CHECKS: list[Callable[[Client], None]] = [
    each
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__ and not isinstance(each, type) and name != "image"
]


def run(manager: Any, descriptor: str = "", credentials: str = "") -> dict[str, str]:
    """What failed, by the names of the checks; {} when all is as promised."""
    module = importlib.import_module(type(manager).__module__.rpartition(".")[0])
    failed: dict[str, str] = {}
    for check in CHECKS:
        client = Client(manager, descriptor, credentials, module)
        try:
            check(client)
        except Exception:  # noqa: BLE001  # whatever is raised is told
            failed[check.__name__] = traceback.format_exc()
        finally:
            client.close()
    return failed


def main(name: str, *documents: str) -> int:
    module, _, kind = name.rpartition(".")
    manager = getattr(importlib.import_module(module), kind)()
    failed = run(manager, *[Path(file).read_text() for file in documents])
    for check in CHECKS:
        print(f"{'failed' if check.__name__ in failed else 'ok':7}{check.__name__.replace('_', ' ')}")
    for name, why in failed.items():
        print(json.dumps({"check": name}), why, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
