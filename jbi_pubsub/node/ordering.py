"""Order of a registration's objects, which come in any order from another node. Pure.

Rules:
- Objects go in the order of their numbers, each once.
- One waits for those before it as long as they may still come: until its node's log is settled up to its serial, or
  it has been here as long as they may live.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

WAITING_MOST: Final = 10_000
"""Objects of a registration that wait; then the first of them goes, whatever it waits for."""

WAITING_BYTES: Final = 64 << 20
"""Limit of what waits of all registrations: whoever keeps them lets the first of the largest go."""

Thing = TypeVar("Thing")


class Numbered(NamedTuple, Generic[Thing]):
    """Something with the numbers `first` to `last` of its registration, at a serial of its node's log."""

    last: int
    first: int
    epoch: int
    serial: int
    thing: Thing
    size: int = 0
    """Bytes, about."""
    until: float = inf
    """Until when one before it may live (monotonic seconds)."""


class WaitingRoom:
    """Bytes that wait of all registrations."""

    def __init__(self) -> None:
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether something is to go."""
        return self.size > WAITING_BYTES


class ObjectOrder(Generic[Thing]):
    """Order of one registration."""

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self._room = room or WaitingRoom()
        self.size = 0
        """Bytes that wait."""
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
            self._count_in(numbered.size)
        yield from self._ready()

    def skip_to(self, numbered: Numbered[Thing]) -> Iterator[Thing]:
        """One has come for which none before it is waited for; itself, if it is newer than all that have gone."""
        if numbered.last >= self.next:
            self.next = numbered.last + 1
            yield numbered.thing

    def first(self) -> Iterator[Thing]:
        """Nobody waits for what is before the first one any more; those that go now."""
        if self._waiting:
            yield self._pop()
            yield from self._ready()

    def all(self) -> Iterator[Thing]:
        """Nobody waits any more: all that are here, in order."""
        while self._waiting:
            yield from self.first()

    def settled(self, epoch: int, serial: int, now: float = -inf) -> Iterator[Thing]:
        """Nothing more comes of the log up to that serial, or of what is over by `now`; those that go now."""
        while self._waiting and (
            (self._waiting[0][2].epoch, self._waiting[0][2].serial) <= (epoch, serial)
            or self._waiting[0][2].until <= now
        ):
            yield self._pop()
            yield from self._ready()

    def _ready(self) -> Iterator[Thing]:
        while self._waiting and (self._waiting[0][0] <= self.next or len(self._waiting) > WAITING_MOST):
            if self._waiting[0][2].last < self.next:  # it has gone
                self._count_in(-heapq.heappop(self._waiting)[2].size)
            else:
                yield self._pop()

    def _pop(self) -> Thing:
        numbered = heapq.heappop(self._waiting)[2]
        self._count_in(-numbered.size)
        self.next = max(self.next, numbered.last + 1)
        return numbered.thing

    def _count_in(self, size: int) -> None:
        self.size += size
        self._room.size += size
