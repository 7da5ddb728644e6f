"""Announcements: how often they are said, how much stands in one, and that all is told in some of them."""

from __future__ import annotations

import pytest

from jbi_pubsub.network.announcing import OWN_MOST, TOLD, TOLD_MOST, NodeAnnouncer
from jbi_pubsub.network.bodies import NodeAnnouncement, decoded_announcement
from jbi_pubsub.network.datagram import DatagramKind
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.log import LogBook, LogId
from jbi_pubsub.network.peers import Peers

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

RANGES = 5
HOUR = 3_600_000


def _announced(segment: Segment, world: World, seconds: float, origin: bytes) -> list[NodeAnnouncement]:
    """Announcements of a node in so many seconds."""
    sent = segment.watch()
    world.run(world.now + seconds)
    return [
        decoded_announcement(bytes(each.data))
        for each in sent
        if each.kind == DatagramKind.ANNOUNCEMENT and each.origin == origin
    ]


def _with_gaps(world: World, segment: Segment, count: int) -> Node:
    """A node that holds so many messages, each with one between that is over."""
    settings = ExchangeSettings(ack_ranges=RANGES)
    node = Node(world, 1, [segment], settings)
    world.run(1.0)
    for number in range(count):
        node.say(b"lasts %d" % number, expiration=HOUR)
        node.say(b"ends %d" % number, expiration=100)
    world.run(3.0)
    return node


@pytest.mark.row("G-54")
@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_a_node_announces_itself_as_often_as_it_is_set(seconds: float) -> None:
    world = World(1)
    segment = Segment(world)
    node = Node(world, 1, [segment], ExchangeSettings(announce_seconds=seconds))
    told = _announced(segment, world, 100 * seconds, node.id)
    assert 90 <= len(told) <= 112


@pytest.mark.row("G-55")
def test_an_announcement_has_no_more_ranges_than_are_set_and_all_stand_in_some() -> None:
    # Given a node that holds forty messages that do not follow each other, where five ranges are to stand in one
    world = World(1)
    segment = Segment(world)
    node = _with_gaps(world, segment, 40)
    # Expect so many of its own in each, and the last one always; and all of them in turn
    told = [each.held for each in _announced(segment, world, 60.0, node.id)]
    ranges = [[each for log in held for each in log.ranges] for held in told]
    assert max(map(len, ranges)) <= RANGES
    assert all((79, 79) in each for each in ranges)
    assert {each for some in ranges for each in some} == {(serial, serial) for serial in range(1, 80, 2)}


@pytest.mark.row("G-55", "G-86")
@pytest.mark.parametrize("is_gone", [False, True])
def test_one_who_comes_late_hears_of_all_however_few_stand_in_an_announcement(is_gone: bool) -> None:
    # Given two nodes that hold as much, one of which leaves perhaps
    world = World(1)
    segment = Segment(world)
    other = Node(world, 2, [segment], ExchangeSettings(ack_ranges=RANGES))
    node = _with_gaps(world, segment, 40)
    assert len(other.heard) == 80
    node.is_up = not is_gone
    world.run(20.0)
    # When a node comes late, expect all that still lives there
    late = Node(world, 3, [segment], ExchangeSettings())
    world.run(120.0)
    assert sorted(each.body for each in late.heard) == sorted(b"lasts %d" % number for number in range(40))
    assert other.exchange.sides[0].queues.repairs == 0


@pytest.mark.row("G-55")
def test_of_many_logs_an_announcement_has_some_and_all_stand_in_some() -> None:
    # Given a node that holds a message of each of fifteen nodes that have left
    world = World(1)
    segment = Segment(world)
    origins = [Node(world, number, [segment], ExchangeSettings()) for number in range(2, 17)]
    keeper = Node(world, 1, [segment], ExchangeSettings(ack_ranges=RANGES))
    world.run(2.5)
    for each in origins:
        each.say(each.id, expiration=HOUR)
    world.run(4.0)
    for each in origins:
        each.is_up = False
    world.run(20.0)
    told = _announced(segment, world, 60.0, keeper.id)
    assert max(sum(len(log.ranges) for log in each.held if log.origin != keeper.id) for each in told) <= RANGES
    assert {log.origin for each in told for log in each.held} >= {each.id for each in origins}


def test_of_messages_to_many_nodes_the_last_one_is_told_too() -> None:
    # Given a node that has said something to each of many others, the last of which lost it
    world = World(1)
    segment = Segment(world)
    node, last = (Node(world, number, [segment], ExchangeSettings()) for number in (1, 2))
    world.run(2.5)
    segment.drops = lambda to, data: to is last and data[3] == DatagramKind.PUBLICATION
    for number in range(1_000, 1_020 + OWN_MOST):
        node.say(b"%d" % number, to=number.to_bytes(4) + bytes(12), expiration=HOUR)
    node.say(b"last", to=last.id, expiration=HOUR)
    world.run(4.0)
    segment.drops = lambda _, __: False
    # Expect it there, though nothing more is said
    assert world.run(20.0, lambda: [each.body for each in last.heard] == [b"last"])


def test_up_to_where_each_of_many_others_is_heard_is_told_in_turn() -> None:
    # Given a node that hears more others than it can tell of at once, all of them for the first time
    me, origins = b"m" * 16, {number.to_bytes(4) + bytes(12) for number in range(3 * TOLD_MOST)}
    logs, peers = LogBook(me, 1, origins), Peers(me, 10.0)
    announcer = NodeAnnouncer(me, ExchangeSettings().announcement(1), RANGES, 1)
    for each in origins:
        logs.open(LogId(each, 1)).add(1)
    told = [announcer.next(0, logs, peers, {}).settled for _ in range(TOLD)]
    assert max(map(len, told)) <= TOLD_MOST
    assert set().union(*told) == {each[:4] for each in origins}
