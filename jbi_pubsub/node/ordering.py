"""Order of a registration's objects, which come in any order from another node. Pure.

Rules:
- Objects go in the order of their numbers, each once.
- One waits for those before it as long as they may still come: until its node's log is settled up to its serial.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

WAITING_MOST: Final = 10_000
"""Objects of a registration that wait; then the first of them goes, whatever it waits for."""

Thing = TypeVar("Thing")


class Numbered(NamedTuple, Generic[Thing]):
    """Something with the numbers `first` to `last` of its registration, at a serial of its node's log."""

    last: int
    first: int
    epoch: int
    serial: int
    thing: Thing


class ObjectOrder(Generic[Thing]):
    """Order of one registration."""

    def __init__(self) -> None:
        self.next = 1
        """Number that goes next."""
        self._waiting: list[tuple[int, int, Numbered[Thing]]] = []
        self._count = 0

    def __len__(self) -> int:
        """Objects that wait."""
        return len(self._waiting)

    def add(self, numbered: Numbered[Thing]) -> Iterator[Thing]:
        """One has come; those that go now."""
        if numbered.last >= self.next:
            self._count += 1
            heapq.heappush(self._waiting, (numbered.first, self._count, numbered))
        yield from self._ready()

    def skip_to(self, numbered: Numbered[Thing]) -> Iterator[Thing]:
        """One has come for which none before it is waited for; itself, if it is newer than all that have gone."""
        if numbered.last >= self.next:
            self.next = numbered.last + 1
            yield numbered.thing

    def settled(self, epoch: int, serial: int) -> Iterator[Thing]:
        """Nothing more comes of the log up to that serial; those that go now."""
        while self._waiting and (self._waiting[0][2].epoch, self._waiting[0][2].serial) <= (epoch, serial):
            yield self._pop()
            yield from self._ready()

    def _ready(self) -> Iterator[Thing]:
        while self._waiting and (self._waiting[0][0] <= self.next or len(self._waiting) > WAITING_MOST):
            if self._waiting[0][2].last < self.next:  # it has gone
                heapq.heappop(self._waiting)
            else:
                yield self._pop()

    def _pop(self) -> Thing:
        numbered = heapq.heappop(self._waiting)[2]
        self.next = max(self.next, numbered.last + 1)
        return numbered.thing
