"""Subscriptions that nothing matches yet: looked at again from time to time, so that nobody waits in silence."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.ticker import Job

AGAIN_FIRST: Final = 5.0
"""Seconds until they are looked at again; twice as long each time."""
AGAIN_MOST: Final = 300.0
"""What is looked at costs a lookup service some milliseconds: 10,000 subscribers that wait ask it 33 times a second."""


class Waiting:
    """Calls `look(uid)` again and again until it says that it need not."""

    def __init__(self, look: Callable[[str], bool]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._backoff = Backoff(AGAIN_FIRST, AGAIN_MOST)
        self._waiting: dict[str, None] = {}
        self._job = Job("look at subscriptions without a match", AGAIN_MOST, self._look_at_all, slow=True)

    def add(self, uid: str) -> None:
        """Look at that one from now on."""
        with self._lock:
            self._waiting[uid] = None
            self._backoff.reset()
            pause = self._backoff.pause()
        self._job.start(after=pause)
        self._job.wake(after=pause)

    def stop(self, timeout: float = 5.0) -> None:
        """Look at nothing any more."""
        self._job.stop(timeout)

    def _look_at_all(self) -> float:
        """Seconds until the next look."""
        for uid in list(self._waiting):
            with guarded("look at a subscription without a match"):
                if not self._job.is_over and self._look(uid):
                    with self._lock:
                        self._waiting.pop(uid, None)
        with self._lock:
            return self._backoff.pause() if self._waiting else math.inf
