"""Stalled peers of a hub: those that take nothing of what waits for them. Pure.

A peer that takes nothing of what waits for it for so many seconds is disconnected, and may come back and resume. The
time in which the hub's thread was kept from its work counts for nobody.
"""

from __future__ import annotations

from typing import Final

from .turns import HubStream

LOOK_SECONDS: Final = 1.0
"""Time between two looks for stalled peers, while something is unsent."""


class StallWatch:
    """Streams with something unsent, and the clock by which their peers are measured. For the hub's thread."""

    def __init__(self, seconds: float, now: float) -> None:
        """`seconds`: how long a peer may take nothing."""
        self.unsent: set[HubStream] = set()
        self._seconds = seconds
        self._listened = 0.0
        """Seconds in which the thread looked at its sockets: what peers are measured by."""
        self._looked = now
        self._look_at = 0.0

    def listened(self, now: float) -> None:
        """Note that the thread has looked at its sockets."""
        self._listened += min(now - self._looked, LOOK_SECONDS)
        self._looked = now

    def deadline(self) -> float:
        """Until when a peer has to take something that has just taken some."""
        return self._listened + self._seconds

    def is_past(self, deadline: float) -> bool:
        """Whether a peer has taken nothing for too long."""
        return self._listened >= deadline

    def due(self, now: float) -> list[HubStream]:
        """Streams to be looked at, once in LOOK_SECONDS."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        return list(self.unsent)
