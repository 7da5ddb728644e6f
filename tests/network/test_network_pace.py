"""A network's own pace: it goes in trains, and at its rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, packed
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import Assembler, MessageForm, NodeMessage, blocks
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms

ME = b"\1" * 16


class Watched(LocalLink):
    """A link that nobody else is on; how many datagrams, and bytes, it was given at once, when."""

    def __init__(self) -> None:
        super().__init__(f"watched-{id(self)}")
        self.given: list[tuple[float, int, int]] = []

    def send(self, datagrams: Sequence[bytes]) -> int:
        self.given.append((time.monotonic(), len(datagrams), sum(map(len, datagrams))))
        return super().send(datagrams)


def test_what_waits_goes_in_trains_at_the_rate_of_its_link(eventually: Callable[..., Any]) -> None:
    # Given a network of 2 MB/s
    link = Watched()
    network = Network(ME, 1, [NetworkLink(link, SideTerms(2e6))], lambda _: None)
    network.start()
    try:
        # When it is to say 400 KB, expect it to go in trains of some milliseconds, no faster than that
        for _ in range(4):
            network.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.UNRELIABLE, os.urandom(100_000), ME))
        eventually(lambda: sum(size for _, _, size in link.given) > 400_000, timeout=20.0)
    finally:
        network.stop()
    trains = [each for each in link.given if each[1] > 1]
    assert sum(count for _, count, _ in trains) / len(trains) > 4
    began, sent = link.given[0][0], 0
    for at, _, size in link.given:
        sent += size
        assert sent <= (at - began) * 2e6 + 2e6 * 0.02 + 3_000


def test_a_rate_is_that_of_the_line_with_the_headers_of_datagrams(eventually: Callable[..., Any]) -> None:
    # Given a network of 100,000 bytes a second, and small blocks
    link = Watched()
    settings = ExchangeSettings(form=MessageForm(block=100))
    network = Network(ME, 1, [NetworkLink(link, SideTerms(100_000.0))], lambda _: None, settings)
    network.start()
    try:
        # When more is to go than one second has room for
        network.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.UNRELIABLE, os.urandom(50_000), ME))
        eventually(lambda: sum(count for _, count, _ in link.given) > 500, timeout=20.0)
    finally:
        network.stop()
    # Expect the line to have room for it, each datagram behind 28 bytes of IP and UDP
    began, sent = link.given[0][0], 0
    for at, count, size in link.given:
        sent += size + 28 * count
        assert sent <= (at - began) * 100_000 + 100_000 * 0.02 + 3_000


def test_what_there_was_no_room_for_is_told_in_the_status(eventually: Callable[..., Any]) -> None:
    # Given a network with room for parts of four messages, and another node that sends the first blocks of twenty
    other, heard = LocalLink("room"), LocalLink("room")
    network = Network(ME, 1, [NetworkLink(heard)], lambda _: None)
    network._exchange.assembler = Assembler(most=4)
    network.start()
    try:
        for number in range(20):
            said = NodeMessage(DatagramKind.REQUEST, DatagramMode.UNRELIABLE, b"%d" % number * 3_000, b"o" * 16)
            first, *_ = blocks(said, MessageForm())
            other.send([packed(first._replace(sender=b"oooo", number=number + 1))])
        # Expect those that were given up to be counted
        eventually(lambda: network.status()["faults"].get("no room for parts of messages", 0) > 10)
    finally:
        network.stop()
        other.close()
