"""Bursts: what is to go over a link that is keyed is gathered for a while, and goes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.flow import LinkBurst
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import RATE, Network, NetworkLink
from jbi_pubsub.network.side import SideTerms

from .simulated import Node, Segment, World

pytestmark = pytest.mark.row("G-168")

BURST = 0.25


def _keyed(segment: Segment, world: World, node: Node) -> list[float]:
    """When a node begins to send, after it had nothing to send for a while, from now on."""
    times: list[float] = []
    began: list[float] = []
    send = segment._send

    def sent(sender: Node, data: bytes) -> None:
        if sender is node:
            if not times or world.now - times[-1] > 0.002:
                began.append(world.now)
            times.append(world.now)
        send(sender, data)

    segment._send = sent  # type: ignore[method-assign]
    return began


@pytest.mark.unit
def test_what_waits_goes_together_until_nothing_waits() -> None:
    burst = LinkBurst(0.5)
    assert burst.wait(10.0, is_waiting=True) == 0.5
    assert burst.wait(10.4, is_waiting=True) == pytest.approx(0.1)
    assert burst.wait(10.5, is_waiting=True) == burst.wait(10.7, is_waiting=True) == 0.0
    assert burst.wait(10.8, is_waiting=False) == 0.0
    assert burst.wait(11.0, is_waiting=True) == 0.5
    assert LinkBurst(0.0).wait(1.0, is_waiting=True) == 0.0


@pytest.mark.unit
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_radio_is_keyed_once_for_all_that_is_said_in_a_while_and_all_comes(loss: float) -> None:
    # Given two nodes on a network where a quarter of a second is gathered
    world = World(1)
    segment = Segment(world, loss=loss)
    segment.burst_seconds = BURST
    first, other = (Node(world, number, [segment], ExchangeSettings()) for number in (1, 2))
    world.run(3.0)
    began = _keyed(segment, world, first)
    # When one says something each 10 ms for five seconds
    for number in range(500):
        world.at(world.now + number / 100, lambda number=number: first.say(b"%d" % number + bytes(500)))  # type: ignore[misc]
    world.run(8.0)
    # Expect four keyings a second at most, and all of it there a burst later, or some questions later
    assert 15 <= len(began) <= 5 / BURST + 1
    assert world.run(20.0 if loss else 8.3, lambda: len(other.heard) == 500)


@pytest.mark.unit
def test_what_is_asked_for_is_awaited_as_long_as_bursts_take() -> None:
    # Given two nodes on a network that gathers and loses a fifth
    world = World(1)
    segment = Segment(world, loss=0.2)
    segment.burst_seconds = BURST
    first, other = (Node(world, number, [segment], ExchangeSettings()) for number in (1, 2))
    world.run(3.0)
    sent = segment.watch()
    # When much is said, expect about as many repairs as there are losses: nobody asks again before an answer may come
    for number in range(300):
        first.say(b"%d" % number + bytes(1_300))
    assert world.run(30.0, lambda: len(other.heard) == 300)
    assert sum(each.is_repair for each in sent) <= 0.35 * 300


def test_a_network_gives_its_link_what_was_said_in_a_while_at_once(eventually: Callable[..., Any]) -> None:
    # Given two nodes, the first of which gathers
    heard: list[NodeMessage] = []
    link = LocalLink("bursts")
    calls: list[int] = []
    send = link.send

    def sent(datagrams: Sequence[bytes]) -> int:
        calls.append(len(datagrams))
        return send(datagrams)

    link.send = sent  # type: ignore[method-assign]
    settings = ExchangeSettings(announce_seconds=60.0)
    one = Network(b"1" * 16, 1, [NetworkLink(link, SideTerms(RATE, burst_seconds=0.3))], lambda _: None, settings)
    other = Network(b"2" * 16, 1, [NetworkLink(LocalLink("bursts"))], heard.append, settings)
    try:
        other.start()
        one.start()
        # When it says twenty messages, one after the other, expect them in the first call
        for number in range(20):
            one.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d" % number))
        eventually(lambda: len(heard) == 20)
        assert calls[0] >= 20
    finally:
        one.stop()
        other.stop()
