"""Log of what a port refuses, which may happen often: each reason once a minute."""

from __future__ import annotations

import math
import threading
from typing import Final

TOLD_MOST: Final = 20
"""Refusals that are logged in a minute, each peer and reason once."""


class RefusalLog:
    """Which refusals were logged in this minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = -math.inf
        self._known: set[tuple[str, str]] = set()

    def is_new(self, peer: str, why: str, now: float) -> bool:
        """Whether to log it: not yet in this minute, and not one of too many."""
        with self._lock:
            if now - self._since >= 60.0:
                self._since, self._known = now, set()
            if (peer, why) in self._known or len(self._known) >= TOLD_MOST:
                return False
            self._known.add((peer, why))
            return True
