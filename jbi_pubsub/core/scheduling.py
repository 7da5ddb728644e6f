"""Order of service by importance: levels that share what is short, and members of each level that take turns. Pure.

The owner's lock covers it. A level is importance - 1; several levels together are a bit mask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import LEVELS, Strategy

ALL_LEVELS: Final = (1 << LEVELS) - 1

LEVELS_OF: Final = tuple(
    tuple(level for level in range(LEVELS - 1, -1, -1) if mask >> level & 1) for mask in range(ALL_LEVELS + 1)
)
"""Levels of each bit mask, the highest first."""

M = TypeVar("M", bound=Hashable)


class Work(Protocol):
    """Work that is done in steps, when it is its turn. `importance` and `size` are asked under a lock: they may not
    wait."""

    def importance(self) -> int:
        """The importance of the next step, 1 to 5."""
        ...

    def size(self) -> int:
        """Bytes of what is next, at least 1; 0: there is nothing to do."""
        ...

    def step(self, most: int) -> tuple[int, int, float]:
        """Do some of it, about `most` bytes, at least one piece, without waiting: how many pieces it was, their bytes,
        and in how many seconds there may be a next step (0.0: at once). No lock is held, and steps of one piece of work
        follow each other."""
        ...


class QueuedObject(Protocol):
    """An object that waits for a subscriber."""

    parcel: Parcel
    arrived: float
    """When it was published, by our clock; 0: now."""


class Shares:
    """Which of the levels that wait is served next: under `strict` the highest, under `weighted_fair` by start-time
    fair queueing (Goyal, Vin and Cheng 1996): each level has a time of its own, which goes on by what it is charged,
    divided by its weight, and the one whose time is least is next, of equals the highest. One that was idle begins at
    the present time: idleness is not saved up."""

    __slots__ = ("_active", "_present", "_strict", "_times", "_weights")

    def __init__(self, strategy: Strategy, weights: Sequence[float]) -> None:
        """`weights` of level 0 to 4, above 0."""
        self.set(strategy, weights)

    def set(self, strategy: Strategy, weights: Sequence[float]) -> None:
        """From now on. What was served before does not count any more: under `strict` it was no share."""
        self._strict = strategy.name == "strict"
        self._weights = tuple(weights)
        self._times = [0.0] * LEVELS
        self._present = 0.0
        self._active = 0

    def next(self, waiting: int) -> int:
        """The level, from a bit mask of those that wait, at least one."""
        if self._strict:
            return waiting.bit_length() - 1
        if waiting != self._active:
            self._wake(waiting)
        if not waiting & (waiting - 1):
            return waiting.bit_length() - 1
        return min(LEVELS_OF[waiting], key=self._times.__getitem__)

    def order(self, waiting: int) -> Sequence[int]:
        """All that wait, the next one first."""
        if waiting != self._active:
            self._wake(waiting)
        levels = LEVELS_OF[waiting]
        return levels if self._strict else sorted(levels, key=self._times.__getitem__)

    def charge(self, level: int, amount: float) -> None:
        """Note that it was served so much."""
        time = self._times[level]
        if time > self._present:
            self._present = time
        self._times[level] = time + amount / self._weights[level]

    def _wake(self, waiting: int) -> None:
        for level in LEVELS_OF[waiting & ~self._active]:
            if self._times[level] < self._present:
                self._times[level] = self._present
        self._active = waiting


class PriorityRing(Generic[M]):
    """Members that wait for their turns, each at one level or several. Members of a level take turns; levels share by
    a strategy. What costs the same at 10 members and at a million; `remove` alone looks through a level."""

    __slots__ = ("_rings", "_shares", "levels", "standing")

    def __init__(self, strategy: Strategy, weights: Sequence[float]) -> None:
        """`weights` of level 0 to 4, above 0."""
        self._shares = Shares(strategy, weights)
        self._rings: tuple[deque[M], ...] = tuple(deque() for _ in range(LEVELS))
        self.standing: dict[M, int] = {}
        """Levels at which each member waits."""
        self.levels = 0
        """Levels at which somebody waits. May be read without the lock."""

    def __len__(self) -> int:
        return len(self.standing)

    def set(self, strategy: Strategy, weights: Sequence[float]) -> None:
        """Another strategy, or other weights, from now on."""
        self._shares.set(strategy, weights)

    def put(self, member: M, levels: int) -> None:
        """Let it wait at these levels, behind the others, as far as it does not yet."""
        known = self.standing.get(member, 0)
        if new := levels & ~known:
            self.standing[member] = known | new
            self.levels |= new
            for level in LEVELS_OF[new]:
                self._rings[level].append(member)

    def next(self, levels: int = ALL_LEVELS) -> int:
        """The level whose turn it is, of these; -1: nobody waits there."""
        waiting = self.levels & levels
        return self._shares.next(waiting) if waiting else -1

    def order(self) -> Sequence[int]:
        """The levels at which somebody waits, the next one first."""
        return self._shares.order(self.levels)

    def pop(self, level: int) -> M:
        """Take the member of that level whose turn it is; at other levels it waits on. Raises IndexError."""
        ring = self._rings[level]
        member = ring.popleft()
        if not ring:
            self.levels &= ~(1 << level)
        if left := self.standing[member] & ~(1 << level):
            self.standing[member] = left
        else:
            del self.standing[member]
        return member

    def charge(self, level: int, amount: float) -> None:
        """Note that a level was served so much."""
        self._shares.charge(level, amount)

    def remove(self, member: M) -> None:
        """Let it wait at no level any more."""
        for level in LEVELS_OF[self.standing.pop(member, 0)]:
            ring = self._rings[level]
            ring.remove(member)
            if not ring:
                self.levels &= ~(1 << level)

    def lengths(self) -> list[int]:
        """Number of members that wait, by level."""
        return [len(ring) for ring in self._rings]

    def clear(self) -> None:
        """Let nobody wait any more."""
        for ring in self._rings:
            ring.clear()
        self.standing.clear()
        self.levels = 0
