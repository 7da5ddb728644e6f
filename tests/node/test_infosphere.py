"""The infosphere alone, with a network that notes what is said: what others say is bounded, and what is lost heals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.platform import BridgedRegistration
from jbi_pubsub.core.fault_counts import FAULTS_MOST
from jbi_pubsub.core.info_object import InfoObject, Platform, SchemaBundle, TypeName, packed
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.node import ordering, remote, schemas, words
from jbi_pubsub.node.bodies import COUNT_MOST, VERSION, LeftOutBody, SequenceBody, WantedBody, decoded_body, encoded
from jbi_pubsub.node.infosphere import Infosphere
from jbi_pubsub.protocol.sending import Sending
from jbi_pubsub.protocol.wanted import Wanted, WantedType

TYPE = TypeName("x")
ALPHA, BRAVO = b"a" * 16, b"b" * 16


class Wire:
    """A network of two other nodes, and of what comes from them."""

    def __init__(self) -> None:
        self.said: list[NodeMessage] = []
        self.up_to = 0
        self.heard: dict[bytes, NodePeer] = {each: NodePeer("n", (), (), 1, 0, 0.0, 0.0) for each in (ALPHA, BRAVO)}

    def say(self, message: NodeMessage, timeout: float = 0.0) -> None:  # noqa: ARG002  # the protocol's
        self.said.append(message)

    def peers(self) -> dict[bytes, NodePeer]:
        return self.heard

    def settled(self, origin: bytes, epoch: int) -> int:  # noqa: ARG002  # the protocol's
        return self.up_to


class Taken:
    """A receiver."""

    def __init__(self) -> None:
        self.came: list[tuple[str, int]] = []
        self.numbers: list[int] = []
        """Of the last ones that were lost, each time."""

    def arrived(self, obj: InfoObject) -> None:
        self.came.append((obj.platform.registration, obj.platform.sequence))

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None:  # noqa: ARG002  # the protocol's
        self.came.append((cause, count))
        self.numbers.append(up_to)

    def waiting(self, uid: str) -> int:  # noqa: ARG002  # the protocol's
        return 0


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def side(wire: Wire, taken: Taken) -> Infosphere:
    made = Infosphere(lambda: wire, NodeSection(), "bridge")
    made.subscribe((), taken)
    return made


def obj(uid: str, number: int, payload: bytes = b"") -> InfoObject:
    platform = Platform(0.0, uid, number, 4, len(payload))
    return InfoObject(f"{uid}-{number}", TYPE, b"<x/>", payload, platform)


def publication(uid: str, number: int, serial: int, origin: bytes = ALPHA, payload: bytes = b"") -> NodeMessage:
    body = b"".join(packed(obj(uid, number, payload), "far").in_memory().parts)
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body, origin, epoch=1, serial=serial)


def as_said(by: Infosphere, wire: Wire, origin: bytes, *uids: str, ends: bool = False) -> list[NodeMessage]:
    """Messages of a node that registers something, or ends it."""
    before = len(wire.said)
    for uid in uids:
        if ends:
            by.unregister(uid, waits=False)
        else:
            by.register(
                BridgedRegistration(uid, TYPE), TYPE, SchemaBundle("x", (("x", uid.encode()),)), (), validate=True
            )
    return [each._replace(origin=origin, epoch=1) for each in wire.said[before:]]


def shown(side: Infosphere) -> set[str]:
    return {each.uid for each in side.published()}


def test_a_registration_that_is_the_same_again_is_other_words(side: Infosphere, wire: Wire) -> None:
    # Given a registration that is made, ended, and made again as it was
    said = as_said(side, wire, ALPHA, "r")
    said += as_said(side, wire, ALPHA, "r", ends=True)
    said += as_said(side, wire, ALPHA, "r")
    # Expect no message to be one that others have heard before: they would drop it
    bodies = [each.body for each in said if each.body]
    assert len(set(bodies)) == len(bodies)


def test_objects_without_a_registration_leave_nothing_behind(
    side: Infosphere, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given objects of as many registrations as a node may have, none of which is told
    monkeypatch.setattr(remote, "SEQUENCES_MOST", 50)
    monkeypatch.setattr(remote, "UNKNOWN_SECONDS", 0.0)
    for number in range(60):
        side.deliver(publication(f"unknown-{number}", 1, number + 1))
    # When a real one is told some time later, expect it
    side.published()
    other = Infosphere(lambda: wire, NodeSection(), "other")
    for message in as_said(other, wire, ALPHA, "real"):
        side.deliver(message)
    assert shown(side) == {"real"}


def test_what_waits_for_an_object_is_bounded_in_bytes(
    side: Infosphere, wire: Wire, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given registrations of which every second object does not come
    monkeypatch.setattr(ordering, "WAITING_BYTES", 1_000_000)
    for number in range(2, 82, 2):
        for uid in ("one", "two"):
            side.deliver(publication(uid, number, 10 * number, payload=bytes(50_000)))
    # Expect those that there is no room for to go, in order, without what does not come
    waiting = side.status()["waiting"]
    assert 10 < waiting < 21
    for uid in ("one", "two"):
        numbers = [number for name, number in taken.came if name == uid]
        assert numbers == sorted(numbers)
    assert len(taken.came) + waiting == 80
    # And the rest when the network says that nothing comes
    wire.up_to = 10_000
    side.idle()
    assert side.status()["waiting"] == 0
    for uid in ("one", "two"):
        assert [number for name, number in taken.came if name == uid] == list(range(2, 82, 2))
    # And room to be free again
    side.deliver(publication("three", 2, 20_000, payload=bytes(900_000)))
    assert side.status()["waiting"] == 1


def test_a_node_that_can_not_ask_waits_no_longer_than_objects_live(
    side: Infosphere, wire: Wire, taken: Taken, eventually: Callable[..., Any]
) -> None:
    # Given a registration whose objects live for a second, at a node that hears and is not heard
    said = as_said(Infosphere(lambda: wire, NodeSection(), "other"), wire, ALPHA, "r")
    for message in said:
        body = decoded_body(message.body)
        if isinstance(body, SequenceBody):
            message = message._replace(body=encoded(msgspec.structs.replace(body, expiration=1.0)))
        side.deliver(message)
    # When the second of four objects is lost
    for number in (1, 3, 4):
        side.deliver(publication("r", number, 10 + number))
    side.idle()
    assert taken.came == [("r", 1)]
    # Expect those behind it, though the log is never settled
    eventually(lambda: side.idle() or taken.came == [("r", 1), ("r", 3), ("r", 4)])


def test_registrations_that_end_push_out_none_that_stand(
    side: Infosphere, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a registration that stands, and many that come and go
    monkeypatch.setattr(words, "ENDED_MOST", 10)
    as_said(side, wire, ALPHA, "stands")
    for number in range(100):
        as_said(side, wire, ALPHA, f"r{number}")
        as_said(side, wire, ALPHA, f"r{number}", ends=True)
    side.published()
    # Expect the durable messages that are to be said for ever to be few: those of the first, and of the last ends
    held: dict[bytes, bytes] = {}
    for each in wire.said:
        held[each.durability] = each.body
    assert sum(map(bool, held.values())) <= 2 + 10


def test_an_object_waits_as_long_as_its_node_lets_it_live(
    side: Infosphere, wire: Wire, taken: Taken, eventually: Callable[..., Any]
) -> None:
    # Given a registration that says no expiration, of a node whose objects live for longer than here
    for message in as_said(Infosphere(lambda: wire, NodeSection(), "other"), wire, ALPHA, "r"):
        side.deliver(message)
    side._section = msgspec.structs.replace(side._section, object_seconds=0.1)
    # When the second of three is lost, and the one behind it has been here as long as objects live here
    side.deliver(publication("r", 1, 11))
    side.deliver(publication("r", 3, 13)._replace(expiration=2_000))
    time.sleep(0.3)
    side.idle()
    # Expect it to be waited for, as it may come again; and no longer than it may live there
    assert taken.came == [("r", 1)]
    side.deliver(publication("r", 2, 12)._replace(expiration=2_000))
    assert taken.came == [("r", 1), ("r", 2), ("r", 3)]
    side.deliver(publication("r", 5, 15)._replace(expiration=1_000))
    eventually(lambda: side.idle() or taken.came[3:] == [("r", 5)])


@pytest.mark.parametrize("silent", [False, True])
def test_what_a_node_has_said_once_is_said_again_and_over_when_it_is_not(
    side: Infosphere, wire: Wire, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    # Given a node that has told of a registration
    other = Infosphere(lambda: wire, NodeSection(silent_receivers=silent), "other")
    for message in as_said(other, wire, ALPHA, "r"):
        side.deliver(message)
    assert shown(side) == {"r"}
    # When it is time to say it again, expect it with its schema
    monkeypatch.setattr(words, "SILENT_SECONDS" if silent else "AGAIN_SECONDS", 0.0)
    before = len(wire.said)
    other.published()
    again = [decoded_body(each.body) for each in wire.said[before:]]
    assert {type(each).__name__ for each in again} == {"SequenceBody", "SchemaBody"}
    # And when it never is, expect it to be over, although the node is heard
    monkeypatch.setattr(remote, "SAID_SECONDS", 0.0)
    time.sleep(0.01)
    side.published()
    assert shown(side) == set()


def test_of_two_nodes_with_one_registration_the_other_has_it_when_the_first_ends_it(
    side: Infosphere, wire: Wire, taken: Taken
) -> None:
    # Given a registration that two nodes tell of
    first, second = (Infosphere(lambda: wire, NodeSection(), name) for name in ("first", "second"))
    for message in as_said(first, wire, ALPHA, "r") + as_said(second, wire, BRAVO, "r"):
        side.deliver(message)
    side.deliver(publication("r", 1, 1))
    side.deliver(publication("r", 1, 1, BRAVO))
    # When the first one ends it
    for message in as_said(first, wire, ALPHA, "r", ends=True):
        side.deliver(message)
    # Expect it to stand, with the objects of the second from there on
    assert shown(side) == {"r"}
    assert side.registrations()[BRAVO] == 1
    side.deliver(publication("r", 2, 2, BRAVO))
    assert taken.came == [("r", 1), ("r", 2)]


def test_schemas_are_bounded_in_bytes_and_the_lack_of_room_is_told(
    side: Infosphere, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given room for a few schemas
    monkeypatch.setattr(schemas, "SCHEMA_BYTES", 100_000)
    other = Infosphere(lambda: wire, NodeSection(), "other")
    before = len(wire.said)
    for number in range(10):
        schema = SchemaBundle("x", (("x", b"%d" % number + bytes(20_000)),))
        other.register(BridgedRegistration(f"r{number}", TYPE), TYPE, schema, (), validate=True)
    # When a node tells of more, expect those there is room for, and a fault
    for message in wire.said[before:]:
        side.deliver(message._replace(origin=ALPHA, epoch=1))
    assert 2 < len(shown(side)) < 6
    assert any("room" in fault for fault in side.status()["faults"])


def test_what_a_nodes_subscribers_want_is_remembered_while_it_is_away(side: Infosphere, wire: Wire) -> None:
    # Given a node that wants nothing
    other = Infosphere(lambda: wire, NodeSection(), "other")
    other.want(Wanted(1, ()))
    before = len(wire.said)
    other.published()
    for message in wire.said[before:]:
        side.deliver(message._replace(origin=ALPHA, epoch=1))
    wire.heard.pop(BRAVO)
    side.published()
    assert not side._remote.is_wanted(TYPE)
    # When it is away, and back
    away = wire.heard.pop(ALPHA)
    with side._lock:
        side._remote.look({}, time.monotonic() + 1_000.0, timeout=1.0, seconds=1.0)
    wire.heard[ALPHA] = away
    side.published()
    # Expect it to want nothing still
    assert not side._remote.is_wanted(TYPE)


@pytest.mark.row("G-56")
def test_registrations_of_a_silent_node_end_after_their_time_and_return_with_it(
    wire: Wire, eventually: Callable[..., Any]
) -> None:
    # Given registrations of a node, at one that waits for long and at one that does not
    sides = [Infosphere(lambda: wire, NodeSection(sequence_timeout=each), "bridge") for each in (60.0, 0.2)]
    for message in as_said(Infosphere(lambda: wire, NodeSection(), "other"), wire, ALPHA, "r"):
        for side in sides:
            side.deliver(message)
    assert [shown(side) for side in sides] == [{"r"}, {"r"}]
    # When that is not heard any more
    announced = wire.heard.pop(ALPHA)
    assert [shown(side) for side in sides] == [{"r"}, {"r"}]
    # Expect them to end where the time is over, and to be there again when it is heard again
    eventually(lambda: not shown(sides[1]))
    assert shown(sides[0]) == {"r"}
    wire.heard[ALPHA] = announced
    assert [shown(side) for side in sides] == [{"r"}, {"r"}]


@pytest.mark.row("G-96")
def test_a_node_whose_announcements_do_not_come_is_there_while_its_objects_do(
    wire: Wire, taken: Taken, eventually: Callable[..., Any]
) -> None:
    # Given a registration of a node behind a relay that carries on no announcements
    side = Infosphere(lambda: wire, NodeSection(sequence_timeout=0.2), "bridge")
    side.subscribe((), taken)
    wire.heard.pop(ALPHA)
    for message in as_said(Infosphere(lambda: wire, NodeSection(), "other"), wire, ALPHA, "r"):
        side.deliver(message)
    assert shown(side) == {"r"}
    # When nothing more comes from there, expect it to end after its time
    eventually(lambda: not shown(side))
    # And to be there again with the next object
    side.deliver(publication("r", 1, 9))
    assert (shown(side), taken.came) == ({"r"}, [("r", 1)])


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode(["sequence", 1])])
def test_garbage_is_counted(side: Infosphere, data: bytes) -> None:
    side.deliver(NodeMessage(DatagramKind.SEQUENCE, DatagramMode.RELIABLE, data, ALPHA, epoch=1, serial=1))
    side.deliver(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, data, ALPHA, epoch=1, serial=2))
    assert side.status()["faults"]


def test_garbage_of_each_its_own_kind_is_counted_together(side: Infosphere, caplog: pytest.LogCaptureFixture) -> None:
    # Given bodies of kinds that there are not, whose names a node has the say in
    for serial in range(1, 1_001):
        data = msgspec.msgpack.encode([f"kind {serial}"])
        side.deliver(NodeMessage(DatagramKind.SEQUENCE, DatagramMode.RELIABLE, data, ALPHA, epoch=1, serial=serial))
    # Expect all to be counted, the first of each cause to be logged, and causes to be bounded
    faults = side.status()["faults"]
    assert sum(faults.values()) == 1_000
    assert len(faults) == len(caplog.records) == FAULTS_MOST + 1


def test_what_was_lost_before_it_came_is_not_told_as_left_out(side: Infosphere, wire: Wire) -> None:
    # Given a registration of which objects 2 and 3 are left out, 4 to 6 are lost, and 7 is left out
    as_said(side, wire, ALPHA, "r")
    side.publish("r", obj("r", 1), "here", 0.0)
    before = len(wire.said)
    side.tell_filtered("r", 2, 3, 0.0)
    side.tell_filtered("r", 1, 7, 0.0)
    side.publish("r", obj("r", 8), "here", 0.0)
    side.publish("r", obj("r", 12), "here", 0.0)
    # Expect those to be told that were left out, and the others not: their numbers are lacking where they are awaited
    said = [decoded_body(each.body) for each in wire.said[before:] if each.kind == DatagramKind.SEQUENCE]
    assert [(each.count, each.up_to) for each in said if isinstance(each, LeftOutBody)] == [(2, 3), (1, 7)]
    assert len(said) == 2


def test_what_was_left_out_before_anybody_here_wanted_it_is_lacking_to_nobody(
    side: Infosphere, wire: Wire, taken: Taken
) -> None:
    # Given a registration of another node, and subscribers here that want its type from now on
    other = Infosphere(lambda: wire, NodeSection(), "other")
    for message in as_said(other, wire, ALPHA, "r"):
        side.deliver(message)
    side.want(Wanted(1, (WantedType(TYPE),)))
    # When objects were left out a minute ago, or lost, and others just now
    most = (1 << 62) - 1
    words = ((2, 2, 60_000, 1), (3, 5), (3, 8, 0, 2), (1, 9, 0, 7))
    words += ((most, most - 1, 0, most // 2), (most, most, 0, most))
    for serial, left in enumerate((LeftOutBody(VERSION, "r", *word) for word in words), 1):
        side.deliver(
            NodeMessage(DatagramKind.SEQUENCE, DatagramMode.RELIABLE, encoded(left), ALPHA, epoch=1, serial=serial)
        )
    # Expect those of just now to be lacking alone, each for its cause, and no more than can be, whatever a node says
    assert taken.came == [
        ("filtered", 0), ("filtered", 3), ("filtered", 1), ("sequence_gap", 2), ("sequence_gap", 1),
        ("filtered", COUNT_MOST), ("sequence_gap", COUNT_MOST), ("sequence_gap", COUNT_MOST),
    ]  # fmt: skip
    assert taken.numbers[:5] == [2, 5, 6, 8, 9]


def test_durable_objects_wait_until_a_subscriber_somewhere_wants_them(wire: Wire) -> None:
    # Given a durable object of a node that keeps at home what nobody wants, and another node that has just come
    side = Infosphere(lambda: wire, NodeSection(silent_receivers=False), "bridge")
    published = BridgedRegistration("r", TYPE, expiration=60.0, sending=Sending("durable", "/x"))
    side.register(published, TYPE, SchemaBundle("x", (("x", b"r"),)), (), validate=True)
    side.published()
    side.publish("r", obj("r", 1), "here", 0.0)
    # When that tells that it wants nothing yet, and then something
    said = []
    for types in (), (WantedType(TYPE),):
        body = encoded(WantedBody(VERSION, Wanted(1, types)))
        side.deliver(NodeMessage(DatagramKind.SEQUENCE, DatagramMode.DURABLE, body, ALPHA, epoch=1))
        side.published()
        said.append([each.mode for each in wire.said if each.kind == DatagramKind.PUBLICATION])
    # Expect it to go then
    assert said == [[], [DatagramMode.DURABLE]]


def test_an_object_that_has_waited_is_said_with_the_life_that_it_has_left(side: Infosphere, wire: Wire) -> None:
    # Given a registration whose objects live for 20 s
    published = BridgedRegistration("r", TYPE, expiration=20.0)
    side.register(published, TYPE, SchemaBundle("x", (("x", b"r"),)), (), validate=True)
    # When three have waited, one of them for too long
    for number, waited in ((1, 0.0), (2, 5.0), (3, 25.0)):
        side.publish("r", obj("r", number), "here", 0.0, waited)
    # Expect the others with the rest of it, and of that one to be told, though nothing follows
    said = [each for each in wire.said if each.kind == DatagramKind.PUBLICATION]
    assert [each.expiration for each in said] == [20_000, 15_000]
    left = decoded_body(wire.said[-1].body)
    assert isinstance(left, LeftOutBody)
    assert (left.uid, left.count, left.up_to, left.lost) == ("r", 1, 3, 1)
    assert side.status()["faults"] == {"objects that expired before they came to the network": 1}


def test_what_has_not_come_of_a_registration_is_lost_when_that_is_over(
    side: Infosphere, wire: Wire, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two registrations of another node, and of five objects of each two come of the one, and none of the other
    other = Infosphere(lambda: wire, NodeSection(), "other")
    for message in as_said(other, wire, ALPHA, "r", "s"):
        side.deliver(message)
    for number in range(1, 6):
        other.publish("r", obj("r", number), "far", 0.0)
        other.publish("s", obj("s", number), "far", 0.0)
    for number in (1, 2):
        side.deliver(publication("r", number, number))
    # When they end, and as much time passes as their objects live
    for message in as_said(other, wire, ALPHA, "r", "s", ends=True):
        side.deliver(message)
    later = time.monotonic() + 120.0
    monkeypatch.setattr("jbi_pubsub.node.infosphere.time.monotonic", lambda: later)
    side.published()
    side.published()
    # Expect the others of the one to be told as lost, once, and nothing of what may have been before we came
    assert taken.came == [("r", 1), ("r", 2), ("sequence_gap", 3)]
