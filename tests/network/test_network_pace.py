"""A network's own pace: it goes in trains, and at its rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink

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
    network = Network(ME, 1, [NetworkLink(link, 2e6)], lambda _: None)
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
