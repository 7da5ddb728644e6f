"""Bytes that wait for subscribers, and how many may: of a queue, a session and a whole delegate."""

from __future__ import annotations

import threading
from typing import Final

SHARE: Final = 8
"""One queue may hold an eighth of a delegate's memory; then its policy decides as if its bound were reached."""


SESSION_SHARE: Final = 4
"""All of one session together a quarter: who takes nothing fills his own share, and holds up no publisher."""


class Budget:
    """Bytes that wait for all sessions of a delegate. An object counts once for each session, although its bytes are
    shared between them as well: an upper bound. `_changed` covers all state."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit // SHARE
        self.session_share = limit // SESSION_SHARE
        self.used = 0
        self._changed = threading.Condition()

    def add(self, size: int) -> None:
        """So many bytes more wait (fewer, if negative)."""
        with self._changed:
            self.used += size
            if size < 0:
                self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Whether there is room, at last after `timeout` seconds."""
        if self.used < self.limit:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self.used < self.limit, timeout)
