"""Hops: over how many nodes a message goes, new or repaired, and that nobody behind them asks for it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from jbi_pubsub.network.bodies import decoded_request
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.message import MessageForm

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

FEW = ExchangeSettings(cache_bytes=5 * 2_000)


def _chain(loss: float, hops: int, settings: ExchangeSettings) -> tuple[World, list[Segment], Node, list[Node]]:
    """Four networks one behind the other, a node at the begin whose messages go over so many others, and two at each
    network."""
    world = World(1)
    segments = [Segment(world, loss=loss) for _ in range(4)]
    for at, each in enumerate(pairwise(segments)):
        Node(world, 10 + at, list(each), settings)
    first = Node(world, 1, segments[:1], ExchangeSettings(form=MessageForm(max_hops=hops)))
    ends = [Node(world, 100 + 10 * at + number, [segment], ExchangeSettings())
            for at, segment in enumerate(segments) for number in (0, 1)]  # fmt: skip
    world.run(3.0)
    return world, segments, first, ends


@pytest.mark.row("G-58")
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_message_goes_over_so_many_nodes_and_nobody_behind_them_gets_it_or_asks(hops: int, loss: float) -> None:
    # Given a chain of networks, and a node whose messages go over a few others
    world, segments, first, ends = _chain(loss, hops, ExchangeSettings())
    sent = [each.watch() for each in segments]
    # When it says some of two modes, and another one comes late behind each node
    modes = [DatagramMode.RELIABLE, DatagramMode.DURABLE]
    for number in range(60):
        first.say(b"%d" % number, modes[number % 2], expiration=600_000, durability=b"%016d" % number)
    world.run(20.0)
    ends += [Node(world, 200 + at, [segment], ExchangeSettings()) for at, segment in enumerate(segments)]
    world.run(60.0)
    # Expect all of it so far, and nothing beyond
    for each in ends:
        at = segments.index(each.segments[0])
        came = Counter(message.mode for message in each.heard)
        assert came == (dict.fromkeys(modes, 30) if at <= hops else {}), at
    beyond = [each for datagrams in sent[hops + 1 :] for each in datagrams]
    assert not any(each.origin == first.id for each in beyond)
    # nor a question for it
    asked = [decoded_request(bytes(each.data)) for each in beyond if each.kind == DatagramKind.REQUEST]
    assert first.id not in {log_id.origin for each in asked for log_id in each.wanted}


@pytest.mark.row("G-58", "G-95")
def test_repairs_count_the_nodes_that_they_have_gone_over() -> None:
    # Given a chain whose relays hold a few blocks, so that they ask further
    world, segments, first, ends = _chain(0.2, 3, FEW)
    sent = [each.watch() for each in segments]
    for number in range(100):
        first.say(b"%d" % number + bytes(1_300), expiration=600_000)
    assert world.run(60.0, lambda: all(len(each.heard) == 100 for each in ends))
    # Expect as many hops as there are nodes before it, in whatever was sent again
    for at, datagrams in enumerate(sent):
        assert {each.hops for each in datagrams if each.is_repair and each.origin == first.id} == {at}
