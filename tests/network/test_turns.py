"""What is published waits where it does not grow old: as much goes into a network as leaves it in some seconds."""

from __future__ import annotations

from collections import deque

import pytest

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.side import LINK_LEAST, QUEUE_LEAST, SideTerms

pytestmark = pytest.mark.unit

SIZE = 1_000
LIFE = 60.0
STEP = 0.05


class Line:
    """A node on links that carry so many bytes a second, one after the other, and how fast what it says goes."""

    def __init__(self, *carried: float, rate: float = 0.0) -> None:
        """`rate`: that its settings say; 0: none."""
        terms = [SideTerms(rate)] * len(carried)
        settings = ExchangeSettings(announce_seconds=1e6)
        self.exchange = Exchange(b"\1" * 16, 1, len(carried), lambda low, high: (low + high) / 2, settings, terms)
        self.carried = carried
        self.now = 0.0
        self.said: dict[bytes, float] = {}
        self.took: list[float] = []
        """Seconds that messages have waited until they left the first link."""
        self.most_in_link = 0
        self._count = 0
        self._links: list[deque[bytes]] = [deque() for _ in carried]
        self._left = [0.0] * len(carried)

    def say(self) -> bool:
        """Say another one, if there is room; whether there was."""
        if self.exchange.room(self.now):
            return False
        self._count += 1
        body = b"%08d" % self._count + bytes(SIZE - 8)
        self.said[body[:8]] = self.now
        kind, mode = DatagramKind.PUBLICATION, DatagramMode.RELIABLE
        self.exchange.say(NodeMessage(kind, mode, body, expiration=int(LIFE * 1000)), self.now)
        return True

    def step(self) -> None:
        """Some time passes."""
        self.now += STEP
        for at, (link, carried) in enumerate(zip(self._links, self.carried, strict=True)):
            self._left[at] += carried * STEP
            while link and len(link[0]) <= self._left[at]:
                data = link.popleft()
                self._left[at] -= len(data)
                if at == 0 and (name := next((each for each in self.said if each in data), None)) is not None:
                    self.took.append(self.now - self.said.pop(name))
            self._left[at] = self._left[at] if link else 0.0
            while self.exchange.has_outgoing(at):
                waiting = sum(map(len, link))
                if self.exchange.sides[at].link_room(waiting, waiting, self.now) <= 0:
                    break
                if (data := self.exchange.outgoing(at, self.now)) is not None:
                    link.append(data)
            if at == 0:
                self.most_in_link = max(self.most_in_link, sum(map(len, link)))


@pytest.mark.parametrize("rate", [0.0, 8_000.0])
def test_on_a_slow_link_nothing_expires_as_its_publisher_waits(rate: float) -> None:
    # Given a link of 64,000 bit/s, whether that is known or not
    line, said = Line(8_000.0, rate=rate), 0
    # When ten minutes of its rate are said, as soon as there is room
    while said < 4_800:
        said += line.say() or (line.step() or 0)
    while line.exchange.has_outgoing(0):
        line.step()
    for _ in range(200):
        line.step()
    # Expect all of it to go before it expires, ten seconds of it waiting at a time when that is known
    assert len(line.took) == said
    assert line.exchange.sides[0].expired == 0
    assert max(line.took) < QUEUE_LEAST / 8_000 + 10.0
    assert max(line.took[500:]) < 15.0
    # and a second or two of it to wait in the link, where nothing overtakes it
    assert line.most_in_link <= max(LINK_LEAST, 2 * 8_000) + 2 * SIZE


def test_on_a_fast_link_publishers_wait_for_no_more_than_it_carries() -> None:
    # Given a link of 10 MB/s of which nothing is known
    line, said = Line(10e6), 0
    # When 4 MB are said, as soon as there is room, expect it to be busy all the time
    while said < 4_000:
        said += line.say() or (line.step() or 0)
    assert line.now <= 4_000 * SIZE / 10e6 * 1.5


def test_publishers_wait_for_the_network_that_carries_most() -> None:
    # Given a node on a fast link and a slow one
    line, said = Line(1e6, 1_000.0), 0
    # When more is said than the slow one carries
    while said < 2_000:
        said += line.say() or (line.step() or 0)
    # Expect nobody to wait for that
    assert line.now <= 2_000 * SIZE / 1e6 * 1.5
    # and what expires there to be counted
    while line.exchange.has_outgoing(1):
        line.step()
    assert line.exchange.sides[0].expired == 0
    assert line.exchange.sides[1].expired > 1_900
