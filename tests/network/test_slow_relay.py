"""Slow networks: what goes over one, how often, in which order, and how long a call to another node waits there."""

from __future__ import annotations

from collections import Counter

import pytest

from jbi_pubsub.network.datagram import Datagram, DatagramKind, read
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.message import MessageForm

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

SETTINGS = ExchangeSettings(announce_seconds=15.0, node_timeout=60.0, form=MessageForm(block=500))
OBJECTS = 80


@pytest.mark.row("G-151", "G-192")
@pytest.mark.parametrize("is_relays", [False, True])
@pytest.mark.parametrize(("loss", "share"), [(0.0, 1.0), (0.05, 1.1)])
def test_what_waits_for_a_slow_network_is_neither_asked_for_nor_sent_twice(
    loss: float, share: float, is_relays: bool
) -> None:
    # Given a relay of a fast network and one of 2,400 bytes a second, which loses some
    world = World(1)
    fast, slow = Segment(world), Segment(world, rate=2_400, delay=0.3, loss=loss)
    relay, near = Node(world, 10, [fast, slow], SETTINGS), Node(world, 1, [fast], SETTINGS)
    far = Node(world, 2, [slow], SETTINGS)
    world.run(6.0)
    sent = slow.watch()
    # When a node of the fast one, or the relay, says more than the slow one takes meanwhile
    publisher = relay if is_relays else near
    for number in range(OBJECTS):
        publisher.say(b"%02d" % number + bytes(1_000))
        world.run(world.now + 0.1)
    assert world.run(60.0, lambda: len(far.heard) == OBJECTS)
    # Expect about what was lost again, and a few announcements and requests
    kinds = Counter(each.kind for each in sent)
    assert kinds[DatagramKind.PUBLICATION] <= share * 3 * OBJECTS
    assert kinds[DatagramKind.ANNOUNCEMENT] <= 30
    assert kinds[DatagramKind.REQUEST] <= 400 * loss
    # and all in its order where nothing is lost
    bodies = [each.body for each in far.heard]
    assert loss or bodies == sorted(bodies)


@pytest.mark.row("X-12")
@pytest.mark.parametrize("backlog", [0, 60])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_call_to_another_node_comes_soon_whatever_waits_and_if_its_first_datagram_is_lost(
    backlog: int, is_lost: bool
) -> None:
    # Given two nodes on a network of 2,400 bytes a second, where nothing was lost, and that announce themselves seldom
    world, settings = World(1), ExchangeSettings(announce_seconds=30.0, node_timeout=120.0, form=MessageForm(block=500))
    slow = Segment(world, rate=2_400, delay=0.3)
    near, far = (Node(world, number, [slow], settings) for number in (1, 2))
    world.run(100.0)
    sent = slow.watch()
    lost: list[bytes] = []

    def loses(_: Node, data: bytes) -> bool:
        datagram = read(data)
        is_first = not lost and isinstance(datagram, Datagram) and datagram.kind == DatagramKind.STREAM
        lost.extend([data] * is_first)
        return is_first

    slow.drops = loses if is_lost else slow.drops
    # When one says much, and then calls the other
    for number in range(backlog):
        near.say(b"%d" % number + bytes(1_000))
    near.say(b"call", kind=DatagramKind.STREAM, to=far.id)
    # Expect that it comes within some seconds, and that a few announcements do for that
    assert world.run(104.0, lambda: any(each.body == b"call" for each in far.heard))
    assert sum(each.kind == DatagramKind.ANNOUNCEMENT for each in sent) <= 3
    # and all else after it
    assert world.run(160.0, lambda: len(far.heard) == backlog + 1)
