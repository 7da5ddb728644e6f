"""A relay between a fast network and a slow one: what goes over the slow one, how often, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest

from jbi_pubsub.network.datagram import DatagramKind
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
