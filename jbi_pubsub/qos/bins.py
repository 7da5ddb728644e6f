"""Order of service: tasks in bins by importance and estimated cost. Pure: no thread or clock, the owner's lock.

The priority of a task is p = (importance - 1 + s) / 5 with s = c0 / (c0 + cost), its bin floor(p x bins): importance
beats any cost, of equal importance the cheaper one goes first (QED, section III.A; FIFO with one bin, whatever the
strategy, by level with five). What costs the same at 10 tasks and at a million: every operation looks at the levels,
never at the tasks.

- strict: the highest bin that is not empty, in it the oldest task.
- weighted_fair: levels share by what their tasks turn out to cost (see core/scheduling.py). In a level the highest bin,
  each eighth time the oldest task, so that costly ones come as well.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from jbi_pubsub.core.quality import LEVELS, Strategy
from jbi_pubsub.core.scheduling import Shares

T = TypeVar("T")

USUAL_COST: Final = 0.001
"""Seconds (c0): what costs as much is in the middle between what costs nothing and what has no end."""
OLDEST_EVERY: Final = 8
"""One in so many tasks of a level is its oldest, whatever it costs."""
COST_SHARE: Final = 1 / 8
"""Weight of one more piece in an estimate (the gain of TCP's round trip, RFC 6298)."""
_NUMERATOR: Final = USUAL_COST * (1 - 1e-9)
"""So that what costs nothing has a bin of its own level."""


Ticket = int
"""Ticket of what was taken: what `charge` has to know. Level and bin are `ticket // bins` and `ticket % bins`."""


class Bins(Generic[T]):
    """See the module. Levels are importance - 1."""

    def __init__(self, strategy: Strategy, *, bins: int = 15) -> None:
        """`bins`: 1 to 50."""
        self.bins = bins
        self._width = bins / LEVELS
        self._are_shared = bins % LEVELS != 0
        """Some bins hold tasks of two levels or more."""
        self._lines: list[list[deque[tuple[int, T]]]] = [[deque() for _ in range(bins)] for _ in range(LEVELS)]
        self._masks = [0] * LEVELS
        """Bins of each level that are not empty."""
        self._active = 0
        """The levels that are not empty, as bits."""
        self._turns = 0
        self._arrived = self.waiting = 0
        self.switch(strategy)

    def __len__(self) -> int:
        return self.waiting

    def switch(self, strategy: Strategy) -> None:
        """Another strategy, or other weights, also for what waits already. What levels have had is forgotten."""
        self.strategy = strategy
        self._is_strict = strategy.name == "strict" or self.bins == 1  # in one bin there is nothing to share
        self._shares = Shares(strategy, strategy.cpu)

    def put(self, task: T, importance: int, cost: float) -> int:
        """Add a task of that importance (1 to 5), which will cost about so many seconds; its bin."""
        level = importance - 1
        at = int(self._width * (level + _NUMERATOR / (USUAL_COST + cost)))  # as `ticket`; a call would double its cost
        line = self._lines[level][at]
        if not line:
            self._active |= 1 << level
            self._masks[level] |= 1 << at
        self._arrived += 1
        self.waiting += 1
        line.append((self._arrived, task))
        return at

    def ticket(self, importance: int, cost: float) -> Ticket:
        """Ticket that `take` would give with such a task, which is done at once, as nothing waits: a level that is
        served for hours while nobody else wants anything owes nothing for that."""
        level = importance - 1
        self._shares.next(1 << level)
        return level * self.bins + int(self._width * (level + _NUMERATOR / (USUAL_COST + cost)))

    def take(self) -> tuple[T, Ticket]:
        """Remove the next one. Raises IndexError when nothing waits."""
        at = -1
        if self._is_strict:
            level = self._highest() if self._are_shared else self._active.bit_length() - 1
        else:
            level = self._shares.next(self._active)
            self._turns += 1
            if not self._turns % OLDEST_EVERY:
                at = self._oldest_of(level)
        mask = self._masks[level]
        if at < 0:
            at = mask.bit_length() - 1
        line = self._lines[level][at]
        _, task = line.popleft()
        self.waiting -= 1
        if not line:
            self._masks[level] = mask = mask & ~(1 << at)
            if not mask:
                self._active &= ~(1 << level)
        return task, level * self.bins + at

    def charge(self, ticket: Ticket, spent: float) -> None:
        """Note that what was taken has cost so many seconds."""
        self._shares.charge(ticket // self.bins, spent)

    def clear(self) -> list[T]:
        """Remove all tasks; as they came. In proportion to their number, unlike all else."""
        lines = [line for lines in self._lines for line in lines]
        waiting = sorted((each for line in lines for each in line), key=lambda each: each[0])
        for line in lines:
            line.clear()
        self._masks = [0] * LEVELS
        self._active = self.waiting = 0
        return [task for _, task in waiting]

    def depths(self) -> list[list[int]]:
        """Number of tasks that wait, by level and bin."""
        return [[len(line) for line in lines] for lines in self._lines]

    def _highest(self) -> int:
        """The level of the highest bin; of several that share it that of its oldest task."""
        top = max(self._masks).bit_length() - 1
        sharing = [level for level, mask in enumerate(self._masks) if mask >> max(top, 0) & 1]
        return min(sharing, key=lambda level: self._lines[level][top][0][0], default=0)

    def _oldest_of(self, level: int) -> int:
        mask, lines = self._masks[level], self._lines[level]
        found, oldest = -1, 0
        while mask:
            at = mask.bit_length() - 1
            mask ^= 1 << at
            arrived = lines[at][0][0]
            if found < 0 or arrived < oldest:
                found, oldest = at, arrived
        return found


class Cost:
    """Cost of one kind of work, learned from what it has cost: seconds by size, as most work is in proportion to what
    is read. An exponential average."""

    __slots__ = ("_seconds", "_size")

    def __init__(self) -> None:
        self._seconds = self._size = 0.0

    @property
    def each(self) -> float:
        """The estimate for a piece of the size that they had lately, in seconds; 0.0 as long as nothing is known."""
        return self._seconds

    @property
    def is_known(self) -> bool:
        """Whether anything was learned."""
        return self._size > 0

    def of(self, size: int) -> float:
        """The estimate for so many bytes, in seconds; USUAL_COST as long as nothing is known."""
        return self._seconds * size / self._size if self._size else USUAL_COST

    def learn(self, spent: float, count: int, size: int) -> None:
        """`count` pieces of `size` bytes together, at least one of each, have cost `spent` seconds."""
        seconds, mean = max(0.0, spent) / count, max(1, size) / count
        if not self._size:
            self._seconds, self._size = seconds, mean
            return
        share = COST_SHARE if count == 1 else 1 - (1 - COST_SHARE) ** count
        self._seconds += (seconds - self._seconds) * share
        self._size += (mean - self._size) * share
