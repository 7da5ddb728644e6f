"""Pace: a token bucket, what has left lately, and the time there and back. Pure.

`now` (seconds, any monotonic scale) is an argument; one that is earlier than the last counts as the last.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PAID: Final = 1e-6
"""A debt of so little is none: what sums of floating point numbers leave."""
PARTS: Final = 10
"""Parts of the time in which what has left is counted."""


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
    """Time there and back, from samples in seconds: smoothed, with its deviation (RFC 6298, section 2)."""

    __slots__ = ("deviation", "smoothed")

    def __init__(self) -> None:
        self.smoothed = 0.0
        """0 before the first sample."""
        self.deviation = 0.0

    def add(self, sample: float) -> None:
        """One more."""
        if self.smoothed:
            self.deviation += (abs(sample - self.smoothed) - self.deviation) / 4
            self.smoothed += (sample - self.smoothed) / 8
        else:
            self.smoothed, self.deviation = sample, sample / 2


class RecentBytes:
    """Bytes that have left somewhere in the last seconds: so many may wait there, and are gone in about that time."""

    __slots__ = ("_noted", "_seconds", "_total")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noted: deque[tuple[float, int]] = deque()
        """Times, a part of these seconds from each other, and what had left by then."""
        self._total = 0

    def note(self, total: int, now: float) -> None:
        """So many bytes have left by now, from the first one on."""
        self._total = total
        if not self._noted or now - self._noted[-1][0] >= self._seconds / PARTS:
            self._noted.append((now, total))

    def size(self, now: float) -> int:
        """Bytes of the last seconds."""
        while len(self._noted) > 1 and self._noted[1][0] <= now - self._seconds:
            self._noted.popleft()
        return self._total - self._noted[0][1] if self._noted else 0
