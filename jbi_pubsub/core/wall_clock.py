"""The wall clock beside the monotonic one. Leases in memory go by the monotonic clock, which nobody sets. On disk their
ends are times of the wall clock, and are written anew when that has been set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SLACK: Final = 1.0
"""Seconds by which the wall clock may move against the monotonic one before it counts as set: leases are longer."""


class WallClock:
    """Both clocks of this process."""

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        """`wall`: seconds since the epoch."""
        self._wall, self._clock = wall, clock
        self._known = self.ahead()

    def ahead(self) -> float:
        """Seconds by which the wall clock is ahead of the monotonic one now."""
        return self._wall() - self._clock()

    def shift(self) -> float:
        """Seconds by which the wall clock has been set since this was asked last; 0.0: it was not."""
        ahead = self.ahead()
        shift = ahead - self._known
        if abs(shift) <= SLACK:
            return 0.0
        self._known = ahead
        return shift
