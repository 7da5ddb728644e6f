"""Who holds a message to send it again: all who get it, or its origin alone, in virtual time."""

from __future__ import annotations

import pytest

from jbi_pubsub.network.datagram import Holders
from jbi_pubsub.network.exchange import ExchangeSettings

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

BODIES = [b"%06d" % number + bytes(1_300) for number in range(200)]


def _bytes(node: Node) -> int:
    return node.exchange.held.size


def _says(node: Node, holders: Holders, life: int = 60_000) -> None:
    for each in BODIES:
        node.say(each, holders=holders, expiration=life)


def _has_all(node: Node) -> bool:
    return sorted(each.body for each in node.heard) == BODIES


def _said(world: World, node: Node, holders: Holders, others: list[Node]) -> None:
    """Have a node say all, some seconds after the nodes have found each other, and others get it."""
    world.run(world.now + 3.0)
    _says(node, holders)
    assert world.run(world.now + 30.0, lambda: all(map(_has_all, others)))


def _nodes(world: World, count: int, *segments: Segment, settings: ExchangeSettings | None = None) -> list[Node]:
    return [Node(world, number, list(segments), settings or ExchangeSettings()) for number in range(1, count + 1)]


@pytest.mark.row("G-153")
def test_where_the_sender_alone_retransmits_no_other_node_holds_anything() -> None:
    # Given nodes on a network that loses a fifth
    world = World(seed=1)
    segment = Segment(world, loss=0.2)
    first, *others = _nodes(world, 4, segment)
    # When one says much that only it is to send again, expect it everywhere, and held there alone
    _said(world, first, Holders.ORIGIN, others)
    assert [_bytes(each) for each in others] == [0, 0, 0]
    assert _bytes(first) > sum(map(len, BODIES))
    # When another node comes late, expect all there as well
    late = Node(world, 9, [segment], ExchangeSettings())
    assert world.run(world.now + 30.0, lambda: _has_all(late))
    assert _bytes(late) == 0


@pytest.mark.row("G-153")
def test_a_relay_holds_what_only_the_sender_retransmits_as_nobody_behind_it_hears_him() -> None:
    # Given a relay between two networks, the second of which loses much
    world = World(seed=2)
    near, far = Segment(world), Segment(world, loss=0.3)
    first = Node(world, 1, [near], ExchangeSettings())
    relay = Node(world, 2, [near, far], ExchangeSettings())
    last = Node(world, 3, [far], ExchangeSettings())
    # When what goes over it is for the sender alone to send again, expect it behind the relay, which holds it
    _said(world, first, Holders.ORIGIN, [relay, last])
    assert _bytes(relay) > sum(map(len, BODIES))
    assert _bytes(last) == 0


@pytest.mark.row("G-152")
def test_what_is_for_connected_nodes_is_freed_when_all_have_seen_it() -> None:
    # Given nodes on a network that loses a fifth
    world = World(seed=3)
    segment = Segment(world, loss=0.2)
    first, *others = _nodes(world, 4, segment)
    # When one says much for those who are connected
    _said(world, first, Holders.UNTIL_SEEN, others)
    # Expect that all of it is freed soon, long before it expires
    assert world.run(world.now + 10.0, lambda: not any(map(_bytes, [first, *others])))
    # When another node comes late, expect that it gets nothing of it, and asks for nothing
    late = Node(world, 9, [segment], ExchangeSettings())
    sent = segment.watch()
    world.run(world.now + 10.0)
    assert late.heard == []
    assert not any(here.missing for side in late.exchange.sides for here in side.recovery._here.values())
    assert sum(len(each.data) for each in sent) < len(BODIES[0]) * 10
    # and that what is said from then on comes to it as well
    first.say(b"more", holders=Holders.UNTIL_SEEN)
    assert world.run(world.now + 5.0, lambda: [each.body for each in late.heard] == [b"more"])
    assert world.run(world.now + 10.0, lambda: not _bytes(first))


@pytest.mark.row("G-152")
def test_what_one_connected_node_lacks_stays_until_it_has_it_or_has_left() -> None:
    # Given nodes of which one hears nothing for a while, and counts as connected
    world = World(seed=4)
    segment = Segment(world)
    first, other, deaf = _nodes(world, 3, segment)
    world.run(3.0)
    segment.drops = lambda node, data: node is deaf  # noqa: ARG005
    _says(first, Holders.UNTIL_SEEN)
    world.run(world.now + 5.0)
    assert _has_all(other)
    assert _bytes(first) > sum(map(len, BODIES))
    # When it hears again, expect all of it, and nothing that is held then
    segment.drops = lambda node, data: False  # noqa: ARG005
    assert world.run(world.now + 10.0, lambda: _has_all(deaf))
    assert world.run(world.now + 10.0, lambda: not _bytes(first))
    # When one leaves with something that it has not heard, expect that nobody waits for it
    deaf.is_up = False
    first.say(b"more", holders=Holders.UNTIL_SEEN)
    assert world.run(world.now + 20.0, lambda: not _bytes(first))


@pytest.mark.row("G-152")
def test_a_node_that_is_started_anew_is_waited_for_as_it_is_connected() -> None:
    # Given a node that has seen much, and is started anew
    world = World(seed=5)
    segment = Segment(world)
    first, old = _nodes(world, 2, segment)
    _said(world, first, Holders.UNTIL_SEEN, [old])
    assert world.run(world.now + 10.0, lambda: not _bytes(first))
    old.is_up = False
    segment.members.remove((old, 0))
    new = Node(world, 2, [segment], ExchangeSettings(), epoch=2)
    world.run(world.now + 5.0)
    # When it does not hear what is said next, expect that this stays until it has
    segment.drops = lambda node, data: node is new  # noqa: ARG005
    first.say(b"more", holders=Holders.UNTIL_SEEN)
    world.run(world.now + 4.0)
    assert _bytes(first)
    segment.drops = lambda node, data: False  # noqa: ARG005
    assert world.run(world.now + 10.0, lambda: [each.body for each in new.heard] == [b"more"])
    assert world.run(world.now + 10.0, lambda: not _bytes(first))


@pytest.mark.row("G-152")
def test_where_nobody_is_connected_nothing_is_held() -> None:
    world = World(seed=6)
    (only,) = _nodes(world, 1, Segment(world))
    world.run(1.0)
    _says(only, Holders.UNTIL_SEEN)
    assert world.run(world.now + 10.0, lambda: not only.exchange.has_outgoing(0) and not _bytes(only))


def test_what_is_held_by_all_stays_though_others_around_it_are_freed() -> None:
    # Given two nodes
    world = World(seed=7)
    segment = Segment(world)
    first, other = _nodes(world, 2, segment)
    world.run(3.0)
    # When one says by turns what is for all, also late, and what is for those who are connected
    for number in range(20):
        first.say(b"late %d" % number, expiration=60_000)
        first.say(b"now %d" % number, holders=Holders.UNTIL_SEEN, expiration=60_000)
    assert world.run(world.now + 10.0, lambda: len(other.heard) == 40)
    world.run(world.now + 10.0)
    # Expect that one that comes late gets the former alone
    late = Node(world, 9, [segment], ExchangeSettings())
    world.run(world.now + 10.0)
    assert sorted(each.body for each in late.heard) == sorted(b"late %d" % number for number in range(20))
