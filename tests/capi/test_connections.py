"""Connections: finding a node, credentials, being told that it is away, coming back, and leaving."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.capi import (
    ConnectionException,
    ConnectionManager,
    InfoObjectDescriptor,
    InvalidMetadataException,
    InvalidPredicateException,
    NodeAwayException,
    ObjectSizeException,
    PermissionDeniedException,
    PlatformFailureException,
    PropertyDescriptor,
    SequenceStateException,
    TimeoutException,
)
from jbi_pubsub.capi.bindings import NAMESPACE, ConnectionDescriptor, Credentials, write
from jbi_pubsub.core.errors import OversizeError, StorageError
from jbi_pubsub.policy import users as accounts
from jbi_pubsub.policy.users import Account, write_accounts


@pytest.mark.row("G-43")
def test_a_manager_without_arguments_goes_by_the_configuration_of_the_process(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    # Given
    file = tmp_path / "client.toml"
    locators = ", ".join(f'"{each}"' for each in node.config.lookup.locators)
    file.write_text(f'[lookup]\ngroups = ["{world}"]\nlocators = [{locators}]\nmulticast = false\n')
    monkeypatch.setenv("JBI_CONFIG", str(file))
    # When
    manager = ConnectionManager()
    connection = manager.createConnection("client")
    connection.connect()
    # Expect
    assert connection.getNodeDetails().name == "node"
    manager.destroyConnection(connection)


def test_a_descriptor_names_the_node(empty_node: Any) -> None:
    # Given
    empty_node.start("first")
    second = empty_node.start("second")
    # When
    connection = empty_node.connected(descriptor=write(ConnectionDescriptor(name="node", location="second")))
    # Expect
    details = connection.getNodeDetails()
    assert (details.id, details.location) == (second.server_id, "second")


@pytest.mark.parametrize("descriptor", ["no xml", "<connectionDescriptor/>", f'<other xmlns="{NAMESPACE}"/>'])
def test_a_descriptor_that_is_none_is_refused(empty_node: Any, descriptor: str) -> None:
    with pytest.raises(InvalidMetadataException):
        empty_node.created(descriptor=descriptor)


def test_a_node_that_is_not_there_is_told_in_time(node: Any) -> None:
    connection = node.created(descriptor=write(ConnectionDescriptor(name="nobody", timeout=100)))
    with pytest.raises(ConnectionException, match=r"no delegate \(nobody"):
        connection.connect()
    with pytest.raises(ConnectionException, match="not connected"):
        connection.createPublisherSequence("t", "1.0")


def test_what_the_node_allows_is_said(connection: Any, node: Any) -> None:
    details = connection.getNodeDetails()
    assert details.addresses
    assert details.compression_allowed
    assert details.has_archive
    assert details.has_type_repository
    assert details.max_metadata == node.config.client.max_metadata
    assert details.max_payload == node.config.client.max_payload
    assert details.version


# -- users ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "credentials",
    ["", "x", "<credentials/>", f'<credentials xmlns="{NAMESPACE}"><unknown/></credentials>'],
)
def test_credentials_that_are_none_are_refused(empty_node: Any, credentials: str) -> None:
    with pytest.raises(InvalidMetadataException):
        empty_node.created().authenticate(credentials)


def test_a_certificate_that_is_not_there_is_told(empty_node: Any, tmp_path: Path) -> None:
    connection = empty_node.created()
    with pytest.raises(ConnectionException, match="certificate"):
        connection.authenticate(write(Credentials(certificate=str(tmp_path / "nobody"))))


@pytest.mark.row("G-47")
def test_who_may_not_is_told_so_by_each_call(empty_node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given rules that allow nothing but to somebody else, who publishes
    monkeypatch.setattr(accounts, "COST", 4)
    users, policy = tmp_path / "users", tmp_path / "policy.toml"
    write_accounts(users, {"alice": Account.of("alice", "right")})
    alone = '[[access]]\nuser = "alice"\naction = "*"\n'
    policy.write_text(alone)
    empty_node.start(policy=str(policy), users=str(users))
    alice = empty_node.created("alice")
    alice.authenticate(write(Credentials(user="alice", password="right")))
    alice.connect()
    published = alice.createPublisherSequence("t", "1.0")
    published.setPersistenceAttribute(True)
    published.activateSequence()
    published.publishInfoObject(alice.createInfoObject("t", "1.0", b"", "<a/>"))
    # When others connect, Expect a refusal
    with pytest.raises(PermissionDeniedException):
        empty_node.connected()
    # Given rules by which they may connect, and nothing else
    policy.write_text(alone + '[[access]]\naction = ["connect"]\n')
    connection = empty_node.created()
    _until(connection.connect)
    publisher = connection.createPublisherSequence("t", "1.0")
    subscriber, listener = (connection.createSubscriberSequence("t", "1.0") for _ in range(2))
    losses: list[tuple[str, int]] = []

    class Callback:
        def infoObjectAvailable(self, io: Any) -> None:
            losses.append((io.getInfoObjectID(), -1))

        def infoObjectsLost(self, cause: str, count: int) -> None:
            losses.append((cause, count))

    listener.setSequenceCallback(Callback())
    query = connection.createQuerySequence("t", "1.0")
    for sequence in (subscriber, listener, query):
        sequence.activateSequence()
    repository = connection.getMetadataRepository()
    described, attached = InfoObjectDescriptor(), PropertyDescriptor()
    for each in (described, attached):
        each.setType("x")
        each.setVersion("1.0")
    described.setMetadataXMLSchema(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="x"/></xs:schema>'
    )
    attached.setName("icon")
    # When, Expect
    calls: dict[str, Any] = {
        "activateSequence": publisher.activateSequence,
        "getNext": lambda: subscriber.getNext(20_000),
        "executeQuery": query.executeQuery,
        "executeDistributedQuery": lambda: query.executeDistributedQuery(20_000),
        "getNodeDetails": connection.getNodeDetails,
        "list": repository.list,
        **{
            f"{name} {type(each).__name__}": partial(getattr(repository, name), each)
            for name in ("add", "get", "update", "remove") for each in (described, attached)
        },
    }  # fmt: skip
    for name, call in calls.items():
        began = time.monotonic()
        with pytest.raises(PermissionDeniedException) as refused:
            call()
        assert type(refused.value) is PermissionDeniedException, name
        assert time.monotonic() - began < 19.0, name  # not the 20 s that it may wait
    assert publisher.getSequenceState() == 0
    assert losses == [("refused", 0)]


def _until(call: Any) -> None:
    """Rules are in force within 2 s."""
    for _ in range(1_000):
        try:
            return call()  # type: ignore[no-any-return]
        except PermissionDeniedException:
            threading.Event().wait(0.05)
    pytest.fail("the new rules are not in force")


def test_a_rule_that_comes_later_ends_what_is_open(empty_node: Any, tmp_path: Path, eventually: Any) -> None:
    # Given open sequences of each kind, with which objects come
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\naction = ["connect", "publish", "persist", "subscribe", "query"]\n')
    empty_node.start(policy=str(policy))
    connection = empty_node.connected()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setPersistenceAttribute(True)
    subscriber = connection.createSubscriberSequence("t", "1.0")
    query = connection.createQuerySequence("t", "1.0")
    for sequence in (publisher, subscriber, query):
        sequence.activateSequence()
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    publisher.publishInfoObject(io)
    assert subscriber.getNext(20_000).getMetadata() == "<a/>"
    query.executeQuery()
    query.cancelQuery()

    def refused(call: Any) -> bool:
        try:
            call()
        except PermissionDeniedException:
            return True
        except TimeoutException:
            return False
        else:
            query.cancelQuery()
            return False

    # When each right is taken away, Expect it to be felt
    for left, call in (
        (["connect", "publish", "persist", "subscribe"], query.executeQuery),
        (["connect", "publish", "persist"], lambda: subscriber.getNext(0)),
        (["connect"], lambda: publisher.publishInfoObject(io)),
    ):
        policy.write_text(f"[[access]]\naction = {left}\n".replace("'", '"'))
        eventually(partial(refused, call), what=left)
    # When they are given again, Expect the sequences to go on
    policy.write_text('[[access]]\naction = ["connect", "publish", "persist", "subscribe", "query"]\n')
    found: list[str] = []
    while not found:
        with suppress(PermissionDeniedException, TimeoutException):
            publisher.publishInfoObject(io)
            found.append(subscriber.getNext(100).getMetadata())
    assert found == ["<a/>"]


@pytest.mark.parametrize(("password", "may"), [("right", True), ("wrong", False), (None, False)])
def test_a_password_proves_who_connects(empty_node: Any, tmp_path: Path, password: str | None, may: bool) -> None:
    # Given
    users, policy = tmp_path / "users", tmp_path / "policy.toml"
    write_accounts(users, {"alice": Account.of("alice", "right")})
    policy.write_text('[[access]]\nuser = "alice"\naction = "*"\n')
    empty_node.start(policy=str(policy), users=str(users))
    connection = empty_node.created()
    connection.authenticate(write(Credentials(user="alice", password=password)))
    # When, Expect
    if may:
        connection.connect()
        connection.createSubscriberSequence("t", "1.0").activateSequence()
        assert connection.getNodeDetails().location == "node"
    else:
        with pytest.raises(PermissionDeniedException):
            connection.connect()


def test_a_process_subscribes_as_one_user(node: Any) -> None:
    # Given
    first, second = node.created("first"), node.created("second")
    for connection, user in ((first, "alice"), (second, "bob")):
        connection.authenticate(write(Credentials(user=user)))
        connection.connect()
    first.createSubscriberSequence("t", "1.0")
    # Expect: bob must not get what alice may
    with pytest.raises(ConnectionException, match="other credentials"):
        second.createSubscriberSequence("t", "1.0")
    with pytest.raises(ConnectionException, match="other credentials"):
        second.createQuerySequence("t", "1.0")
    second.createPublisherSequence("t", "1.0")
    # When alice leaves
    first.disconnect()
    # Expect
    second.createSubscriberSequence("t", "1.0")


def test_an_application_may_have_an_adapter_of_its_own_under_another_name(node: Any) -> None:
    connection = node.connected("mine")
    with (
        SubscriberAdapter(node.config, name="mine"),
        pytest.raises(PlatformFailureException, match="open in this process"),
    ):
        connection.createSubscriberSequence("t", "1.0")
    with SubscriberAdapter(node.config):
        connection.createSubscriberSequence("t", "1.0")


def test_connections_share_what_they_subscribe_with_and_the_last_one_closes_it(node: Any, publisher: Any) -> None:
    first, second = node.connected("first"), node.connected("second")
    sequences = []
    for connection in (first, second):
        sequence = connection.createSubscriberSequence("t", "1.0")
        sequence.activateSequence()
        sequences.append(sequence)
    assert first._subscriber is second._subscriber
    first.disconnect()
    publisher().publishInfoObject(second.createInfoObject("t", "1.0", b"", "<a/>"))
    assert sequences[1].getNext(20_000).getMetadata() == "<a/>"
    with pytest.raises(SequenceStateException):
        sequences[0].getNext(1)
    second.disconnect()
    with SubscriberAdapter(node.config):
        """It is free again."""


# -- coming and going -----------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.all: list[str] = []

    def connectionLost(self, reason: str) -> None:
        assert reason
        self.all.append("lost")

    def connectionRestored(self) -> None:
        self.all.append("restored")


def test_a_client_goes_on_at_another_node_by_itself(empty_node: Any, eventually: Any) -> None:
    # Given
    first = empty_node.start("first")
    connection, told = empty_node.connected(), Told()
    connection.setConnectionCallback(told)
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setValidationAttribute(True, False)
    publisher.activateSequence()
    subscriber = connection.createSubscriberSequence("t", "1.0")
    subscriber.activateSequence()
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    before = publisher.publishInfoObject(io)
    assert subscriber.getNext(20_000).getInfoObjectID() == before
    second = empty_node.start("second")
    # When
    first.stop(0.5)
    # Expect
    eventually(lambda: told.all == ["lost", "restored"])
    after = [publisher.publishInfoObject(io) for _ in range(3)]
    assert [subscriber.getNext(20_000).getInfoObjectID() for _ in after] == after
    assert connection.getNodeDetails().id == second.server_id


@pytest.mark.parametrize("mistake", [ValueError("a bug in the application"), asyncio.CancelledError()])
def test_a_callback_that_fails_or_takes_its_time_disturbs_nobody(
    mistake: BaseException, empty_node: Any, eventually: Any
) -> None:
    # Given
    first = empty_node.start("first")
    connection = empty_node.connected()
    called, go, restored = threading.Event(), threading.Event(), threading.Event()

    class Bad:
        def connectionLost(self, *_: str) -> None:
            called.set()
            go.wait(60.0)
            raise mistake

        def connectionRestored(self, *_: str) -> None:
            restored.set()

    connection.setConnectionCallback(Bad())
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.setValidationAttribute(True, False)
    publisher.activateSequence()
    # When
    first.stop(0.5)
    empty_node.start("second")
    # Expect: published while the callback sleeps
    assert called.wait(60.0)
    publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    light, _ = connection._lights[False]
    light.flush(30.0)
    # Expect the next call to be made though it fails
    go.set()
    assert restored.wait(30.0)


def test_a_sequence_that_ends_while_the_node_is_away_tells_what_waits(empty_node: Any) -> None:
    # Given a publisher that waits for half a second at most, and a node that dies
    server = empty_node.start("first")
    queue = msgspec.structs.replace(empty_node.config.queue, publish_seconds=0.5)
    empty_node.federation.config = msgspec.structs.replace(empty_node.config, queue=queue)
    connection = empty_node.connected()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.activateSequence()
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    publisher.publishInfoObject(io)
    connection._lights[False][0].flush(30.0)
    server.stop(0.5)
    publisher.publishInfoObject(io)
    # When, Expect
    with pytest.raises(PlatformFailureException, match="1 objects not taken"):
        connection.destroySequence(publisher)
    assert publisher.getSequenceState() == 3
    with pytest.raises(SequenceStateException):
        publisher.publishInfoObject(io)


def test_a_connection_that_ends_while_the_node_is_away_waits_once_for_all_its_sequences(empty_node: Any) -> None:
    # Given a connection that waits for a second at most, and a node that dies before it took what many have published
    server = empty_node.start("first")
    queue = msgspec.structs.replace(empty_node.config.queue, publish_seconds=1.0)
    empty_node.federation.config = msgspec.structs.replace(empty_node.config, queue=queue)
    connection = empty_node.connected()
    publishers = [connection.createPublisherSequence("t", "1.0") for _ in range(20)]
    for each in publishers:
        each.activateSequence()
    server.stop(0.5)
    for each in publishers:
        each.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    # When it ends, Expect not to wait for each of them, and to be told what is lost
    began = time.monotonic()
    with pytest.raises(PlatformFailureException, match=r"20 objects not taken .* within 1 s; they are lost"):
        connection.disconnect()
    assert time.monotonic() - began < 60.0
    # Expect it to be left all the same
    assert {each.getSequenceState() for each in publishers} == {3}
    with pytest.raises(ConnectionException, match="not connected"):
        connection.disconnect()


@pytest.fixture
def without_room(connection: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sequence for an archive that has no room."""

    def room(_archive: Archive, _size: int) -> float:
        raise StorageError("the archive has no room")

    monkeypatch.setattr(Archive, "room", room)
    sequence = connection.createPublisherSequence("t", "1.0")
    sequence.setPersistenceAttribute(True)
    sequence.activateSequence()
    return sequence


def test_a_connection_that_ends_tells_what_the_node_refuses_until_then(connection: Any, without_room: Any) -> None:
    # Given an archive without room, of which nobody has heard
    # When a connection ends after an object that is refused; Expect that to be told
    without_room.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    with pytest.raises(PlatformFailureException, match="has no room"):
        connection.disconnect()


def test_a_durable_sequence_that_the_node_keeps_is_told(node: Any) -> None:
    # Given a durable sequence at a node that goes away
    connection = node.connected()
    sequence = connection.createSubscriberSequence("t", "1.0")
    sequence.setDurableAttribute("vehicle 7")
    sequence.activateSequence()
    publisher = connection.createPublisherSequence("t", "1.0")
    publisher.activateSequence()
    publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    sequence.getNext(20_000)
    node.servers[0].stop(0.5)
    # When it is destroyed, expect to be told that it stands there yet, and how it ends
    with pytest.raises(NodeAwayException, match="'vehicle 7' is not ended") as told:
        connection.destroySequence(sequence)
    assert "jbi subscriptions end 'vehicle 7'" in told.value.hint
    assert sequence.getSequenceState() == 3


@pytest.mark.row("G-198")
def test_who_publishes_for_an_archive_that_is_full_is_told(
    connection: Any, without_room: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    # Given a node whose archive has no room
    sequence = without_room
    io = connection.createInfoObject("t", "1.0", b"", "<a/>")
    # When something is published, Expect that to be told by one of the next calls
    sequence.publishInfoObject(io)
    eventually(lambda: sequence._refusal is not None)
    with pytest.raises(PlatformFailureException, match="has no room"):
        sequence.publishInfoObject(io)
    # When there is room again, Expect it to go on
    monkeypatch.undo()
    assert sequence.publishInfoObject(io)


def test_of_several_threads_one_opens_a_durable_sequence(connection: Any) -> None:
    # Given
    sequences = [connection.createSubscriberSequence("t", "1.0") for _ in range(4)]
    begin = threading.Barrier(4)
    told: list[str] = []

    def activate(sequence: Any) -> None:
        sequence.setDurableAttribute("mine")
        begin.wait(60.0)
        try:
            sequence.activateSequence()
            told.append("open")
        except SequenceStateException as exc:
            told.append(exc.message)

    threads = [threading.Thread(target=activate, args=[each]) for each in sequences]
    # When
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    # Expect one, and the name free when that has ended
    assert sorted(told) == ["open", *["the durable sequence 'mine' is open in this process"] * 3]
    for sequence in sequences:
        connection.destroySequence(sequence)
    again = connection.createSubscriberSequence("t", "1.0")
    again.setDurableAttribute("mine")
    again.activateSequence()


def test_a_durable_sequence_that_could_not_be_opened_leaves_its_name(connection: Any, predicate: Any) -> None:
    for prefixes in ({}, {"mine": "urn:mine"}):
        sequence = connection.createSubscriberSequence("t", "1.0")
        sequence.setDurableAttribute("mine")
        sequence.setSequencePredicate(predicate("//mine:a"))
        if prefixes:
            sequence.setNamespacePrefixes(prefixes)
            sequence.activateSequence()
        else:
            with pytest.raises(InvalidPredicateException):
                sequence.activateSequence()


def test_a_durable_sequence_that_another_connection_left_is_taken_up_in_the_same_process(
    node: Any, publisher: Any
) -> None:
    # Given
    stays, away = node.connected("stays"), node.connected("away")
    keeps = stays.createSubscriberSequence("other", "1.0")
    keeps.activateSequence()

    def durable(connection: Any) -> Any:
        sequence = connection.createSubscriberSequence("t", "1.0")
        sequence.setDurableAttribute("vehicle 7")
        sequence.activateSequence()
        return sequence

    first = durable(away)
    publishes = publisher("t", stays)

    def publish(text: str) -> None:
        publishes.publishInfoObject(stays.createInfoObject("t", "1.0", b"", text))

    publish("<a/>")
    assert first.getNext(20_000).getMetadata() == "<a/>"
    # When
    away.disconnect()
    publish("<b/>")
    away.connect()
    again = durable(away)
    publish("<c/>")
    # Expect
    assert [again.getNext(20_000).getMetadata() for _ in range(2)] == ["<b/>", "<c/>"]
    away.destroySequence(again)


def test_many_connections_leave_nothing_behind(node: Any, eventually: Any) -> None:
    for number in range(8):
        connection = node.connected(f"client-{number}")
        sequence = connection.createSubscriberSequence("t", "1.0")
        sequence.activateSequence()
        connection.destroy()
    eventually(lambda: not [each.name for each in threading.enumerate() if "client-" in each.name])


def test_a_sequence_that_a_lookup_service_does_not_list_says_so_once(connection: Any, publisher: Any) -> None:
    """Given a lookup service that refuses to list its registration, the next call says so, and publishing goes on."""
    sequence = publisher()
    (registration,) = sequence._registrations
    connection._refused(registration, OversizeError("item with 2,000 entries", hint="At most 1,024"))
    document = connection.createInfoObject("t", "1.0", b"x", "<a/>")
    with pytest.raises(ObjectSizeException, match=r"a lookup service does not list registration-.*2,000 entries"):
        sequence.publishInfoObject(document)
    assert sequence.publishInfoObject(document)
