"""A durable subscription's record: what of an archive its application has had.

Objects are not offered in the order of their positions: several publishers' threads do. So what lies between two
acknowledged ones counts as had only if nothing of it waits, is on its way, may still be offered (`under_way`), or is
to come by the feed.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Protocol

import msgspec

from jbi_pubsub.core.history import Consumer
from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.model.quota import NO_SHARE, Share
from jbi_pubsub.protocol.requests import NEW, SubscriptionRequest

UnderWay = Callable[[], list[tuple[int, int]]]


class Holder(Protocol):
    """The session that has it."""

    session_id: str
    name: str

    @property
    def has_gone(self) -> bool:
        """Whether its subscriber was connected, and is not now."""
        ...

    def note_refused(self) -> None:
        """Note that it is to be told when what it wants may be allowed."""
        ...


class Durable:
    """One of them. Any thread; `lock` covers all state."""

    def __init__(self, consumer: Consumer, entries: tuple[EntryRep, ...], under_way: UnderWay, ends: float) -> None:
        """`under_way`: see Archiving; `ends`: when its lease ends (monotonic seconds)."""
        self._under_way = under_way
        self.lock = threading.Lock()
        self.name, self.owner = consumer.name, consumer.owner
        self.request = consumer.request
        self.entries = entries
        self.position = consumer.position
        """All that matches up to there is acknowledged."""
        self._above = RangeSet(consumer.acknowledged)
        """Acknowledged above it; between two ranges is something unacknowledged."""
        self._open: list[int] = []
        """Positions of what waits, or was sent, and is not acknowledged, ascending."""
        self._limit: float = self.position
        """Position above which the feed is to bring all yet; infinite when it has brought all."""
        self.share: Share = NO_SHARE
        self.ends = ends
        self.is_changed = False
        self.is_new = True
        """Whether it never was in this process, nor before."""
        self.session: Holder | None = None
        """The session that has it."""

    def amend(self, request: SubscriptionRequest) -> None:
        """Give it these terms from now on."""
        self.request, self.entries, self.is_changed = kept_terms(request), request.entries, True

    def attach(self, session: Holder) -> None:
        """That one has it from now on; what was not acknowledged is to be sent again."""
        with self.lock:
            self.session = session
            self._open.clear()
            self._limit = self.position

    def has(self, position: int) -> bool:
        """Whether that was acknowledged, or is on its way."""
        with self.lock:
            return position <= self.position or position in self._above or _in(self._open, position)

    def entered(self, position: int) -> None:
        """An object waits, or goes out, from now on."""
        with self.lock:
            if not _in(self._open, position):
                insort(self._open, position)

    def fed(self, above: int, up_to: float) -> None:
        """The feed has brought all between; it does not count when it is to go back below that."""
        with self.lock:
            if above <= self._limit < up_to:
                self._limit = up_to

    def back(self, position: int, dropped: Iterable[int]) -> int:
        """The feed is to bring again what was dropped, and all from that position on, or from what is still under way:
        behind which position."""
        gone, under_way = set(dropped), self._under_way()
        with self.lock:
            self._open = [each for each in self._open if each not in gone]
            first = min([position, *gone, *(first for first, _ in under_way)])
            self._limit = min(self._limit, max(first - 1, self.position))
            return int(self._limit)

    def acknowledge(self, positions: Iterable[int]) -> int:
        """Objects that were sent need not come again; how many of them were not acknowledged before."""
        count = 0
        with self.lock:
            for position in positions:
                at = bisect_left(self._open, position)
                if at == len(self._open) or self._open[at] != position:
                    continue  # never sent, or acknowledged before
                del self._open[at]
                count += 1
                self._above.add(position)
            if count:
                self._fold()
                self.is_changed = True
        return count

    def not_acknowledged(self, above: int, up_to: int) -> list[tuple[int, int]]:
        """Parts between two positions, each (above, up_to), without what was acknowledged."""
        with self.lock:
            return [(first - 1, last) for first, last in self._above.gaps(above + 1, up_to)]

    def passed(self, position: int) -> None:
        """Nothing that matches is between what was sent and that position."""
        with self.lock:
            if position > self.position and not self._open and position <= self._limit:
                self.position, self.is_changed = position, True
                self._above.remove_range(0, position)

    def reset(self, position: int) -> None:
        """Let it go on behind that position."""
        with self.lock:
            self.position, self.is_changed = position, True
            self._limit = position
            self._above = RangeSet()
            self._open.clear()

    def consumer(self, ahead: float) -> Consumer:
        """As it is kept; `ahead`: see WallClock."""
        with self.lock:
            self.is_changed = False
            return Consumer(self.name, self.owner, self.request, self.position, tuple(self._above), self.ends + ahead)

    def _fold(self) -> None:
        """Intervals with nothing unacknowledged between are one; what reaches down to the position raises it."""
        under_way = self._under_way()  # before what waits is looked at: what has left it meanwhile is there

        def is_had(above: int, below: int) -> bool:
            return (
                below <= self._limit + 1
                and not _any_between(self._open, above, below)
                and not any(first < below and last > above for first, last in under_way)
            )

        for (_, before), (behind, _) in pairwise(tuple(self._above)):
            if is_had(before, behind):
                self._above.add_range(before + 1, behind - 1)
        if len(self._above):
            first, last = next(iter(self._above))
            if first == self.position + 1 or is_had(self.position, first):
                self.position = max(self.position, last)
                self._above.remove_range(0, self.position)


def kept_terms(request: SubscriptionRequest) -> bytes:
    """As it is put down: whose it is stands beside it, and where it began counts once."""
    return msgspec.msgpack.encode(msgspec.structs.replace(request, secret="", start=NEW))


def _in(positions: list[int], position: int) -> bool:
    at = bisect_left(positions, position)
    return at < len(positions) and positions[at] == position


def _any_between(positions: list[int], above: int, below: int) -> bool:
    at = bisect_left(positions, above + 1)
    return at < len(positions) and positions[at] < below
