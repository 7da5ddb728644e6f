"""Pace, distance and turns: a token bucket, a measured round trip, and levels that share what is short. Pure.

`now` (seconds, any monotonic scale) is an argument; one that is earlier than the last counts as the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from jbi_pubsub.core.quality import LEVELS, Strategy

WINDOW: Final = 10.0
"""Seconds for which the shortest round trip counts."""
PAID: Final = 1e-6
"""A debt of so little is none: what sums of floating point numbers leave."""


class TokenBucket:
    """So much a second, and at most `burst` at once after a pause. What is taken may be more than what is there: then
    the bucket is in debt, and nothing goes before that is paid. In any stretch of t seconds at most rate x t + burst
    and one such item go."""

    __slots__ = ("_at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: float = 0.0) -> None:
        """`rate` and `burst` above 0, in the same unit (bytes, objects); it begins full."""
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self._at = now

    def set(self, rate: float, burst: float, now: float, *, sooner: bool = False) -> None:
        """Another rate from now on. A debt is paid by when it would have been: it was made under the other rate; or
        `sooner`, where the new one pays it sooner: not for rates that go up and down, which would wipe it out."""
        self.fill(now)
        if self.tokens < 0:
            self.tokens *= min(1.0, rate / self.rate) if sooner else rate / self.rate
        self.rate, self.burst = rate, burst
        self.tokens = min(self.tokens, burst)

    def fill(self, now: float) -> float:
        """Tokens that are there by now; below 0: debt."""
        if now > self._at:
            self.tokens = min(self.burst, self.tokens + (now - self._at) * self.rate)
            self._at = now
        return self.tokens

    def take(self, size: float, now: float) -> None:
        """Take so much, whether it is there or not."""
        self.fill(now)
        self.tokens -= size

    def ready_in(self, now: float) -> float:
        """Seconds until the debt is paid; 0: something may go."""
        debt = -self.fill(now)
        return debt / self.rate if debt > PAID else 0.0


class RoundTrip:
    """Time there and back, from samples in seconds: smoothed (RFC 6298, section 2), and the least of WINDOW."""

    __slots__ = ("_least", "deviation", "smoothed")

    def __init__(self) -> None:
        self.smoothed = 0.0
        """0 before the first sample."""
        self.deviation = 0.0
        self._least: deque[tuple[float, float]] = deque()
        """(when, sample), each larger than those before it."""

    def add(self, sample: float, now: float) -> None:
        """One more."""
        if self.smoothed:
            self.deviation += (abs(sample - self.smoothed) - self.deviation) / 4
            self.smoothed += (sample - self.smoothed) / 8
        else:
            self.smoothed, self.deviation = sample, sample / 2
        while self._least and self._least[-1][1] >= sample:
            self._least.pop()
        self._least.append((now, sample))

    def least(self, now: float) -> float:
        """The shortest of the last WINDOW seconds, the last one if there was none in them; 0 before the first."""
        least = self._least
        while len(least) > 1 and least[0][0] < now - WINDOW:
            least.popleft()
        return least[0][1] if least else 0.0


class Shares:
    """Which of the levels that wait is served next: under `strict` the highest, under `weighted_fair` by start-time
    fair queueing (Goyal, Vin and Cheng 1996): each level has a time of its own, which goes on by what it is charged,
    divided by its weight, and the one whose time is least is next. One that was idle begins at the present time:
    idleness is not saved up."""

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
        times = self._times
        return min((level for level in range(LEVELS - 1, -1, -1) if waiting >> level & 1), key=times.__getitem__)

    def order(self, waiting: int) -> list[int]:
        """All that wait, the next one first."""
        if waiting != self._active:
            self._wake(waiting)
        levels = [level for level in range(LEVELS - 1, -1, -1) if waiting >> level & 1]
        return levels if self._strict else sorted(levels, key=self._times.__getitem__)

    def charge(self, level: int, amount: float) -> None:
        """Note that it was served so much."""
        time = self._times[level]
        if time > self._present:
            self._present = time
        self._times[level] = time + amount / self._weights[level]

    def _wake(self, waiting: int) -> None:
        woken = waiting & ~self._active
        self._active = waiting
        for level in range(LEVELS):
            if woken >> level & 1 and self._times[level] < self._present:
                self._times[level] = self._present
