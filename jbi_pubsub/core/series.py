"""Course of a quantity in the last seconds: rate, mean, deviation, trend, and the points of a plot. Pure.

Rules:
- `now` (seconds, any monotonic scale) is an argument; samples come in its order, one that is not later than the last
  takes its place.
- A window holds at most so many samples, the newest: one that is fed more often covers less time, never more memory.
- A counter that falls (its server was restarted, a part of a sum has gone) has grown by nothing meanwhile: too little
  for one step, never a peak that nobody sent.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

WINDOW: Final = 10.0
"""Seconds, unless told otherwise: long enough to be steady, short enough to be seen to change."""
MOST: Final = 600
"""Samples of a window at most."""


class SeriesPoint(NamedTuple):
    """A value at a moment."""

    at: float
    value: float


class Gauge:
    """A quantity that goes up and down, over the last `window` seconds. Not thread-safe; the owner's lock covers it."""

    def __init__(self, window: float = WINDOW, most: int = MOST) -> None:
        self.window = window
        self._points: deque[SeriesPoint] = deque(maxlen=most)

    def add(self, now: float, value: float) -> None:
        """The value at `now`. What is no finite number is no value, and left out."""
        if not math.isfinite(value):
            return
        if self._points and now <= self._points[-1].at:
            self._points[-1] = SeriesPoint(self._points[-1].at, value)
        else:
            self._points.append(SeriesPoint(now, value))
        self._forget(now)

    def last(self) -> float | None:
        """The newest value, however old; None without any."""
        return self._points[-1].value if self._points else None

    def points(self, now: float) -> list[SeriesPoint]:
        """The samples of the window, oldest first."""
        self._forget(now)
        return list(self._points)

    def mean(self, now: float) -> float | None:
        """Mean of the samples; None without any."""
        values = [value for _, value in self.points(now)]
        return math.fsum(values) / len(values) if values else None

    def deviation(self, now: float) -> float | None:
        """Standard deviation of the samples (of all there are, not of a sample of more); None without any."""
        values = [value for _, value in self.points(now)]
        if not values:
            return None
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))

    def trend(self, now: float) -> float | None:
        """Growth in a second: the slope of the least-squares line. None with fewer than two samples."""
        points = self.points(now)
        if len(points) < 2:
            return None
        middle = math.fsum(p.at for p in points) / len(points)
        mean = math.fsum(p.value for p in points) / len(points)
        spread = math.fsum((p.at - middle) ** 2 for p in points)
        return math.fsum((p.at - middle) * (p.value - mean) for p in points) / spread

    def _forget(self, now: float) -> None:
        while self._points and self._points[0].at < now - self.window:
            self._points.popleft()


class Counter:
    """A count of events, over the last `window` seconds: how fast it grows. Not thread-safe."""

    def __init__(self, window: float = WINDOW, most: int = MOST) -> None:
        self._grown = Gauge(window, most)
        self._count: float | None = None
        self.rates = Gauge(window, most)
        """Per second, from each sample to the next: for mean, deviation, trend and plots."""

    def add(self, now: float, count: float) -> None:
        """Note what is counted by `now`."""
        if not math.isfinite(count):
            return
        grown = self._grown.points(now)
        step = max(0.0, count - self._count) if self._count is not None else 0.0
        self._count = count
        total = step + (self._grown.last() or 0.0)
        if grown and now > grown[-1].at:
            self.rates.add(now, step / (now - grown[-1].at))
        self._grown.add(now, total)

    def last(self) -> float | None:
        """The count; None before the first sample."""
        return self._count

    def rate(self, now: float) -> float | None:
        """Per second over the window; None with fewer than two samples in it."""
        grown = self._grown.points(now)
        if len(grown) < 2:
            return None
        return (grown[-1].value - grown[0].value) / (grown[-1].at - grown[0].at)
