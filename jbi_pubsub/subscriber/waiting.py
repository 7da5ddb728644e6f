"""Subscriptions that nothing matches yet: looked at again from time to time, so that nobody waits in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.guard import guarded

AGAIN_FIRST: Final = 5.0
"""Seconds until they are looked at again; twice as long each time."""
AGAIN_MOST: Final = 300.0
"""What is looked at costs a lookup service some milliseconds: 10,000 subscribers that wait ask it 33 times a second."""


class Waiting:
    """Calls `look(uid)` again and again until it says that it need not. The thread starts with the first of them."""

    def __init__(self, look: Callable[[str], bool], *, name: str) -> None:
        self._look = look
        self._backoff = Backoff(AGAIN_FIRST, AGAIN_MOST)
        self._changed = threading.Condition()
        self._waiting: dict[str, None] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._name = f"{name}-waiting"

    def add(self, uid: str) -> None:
        """Look at that one from now on."""
        with self._changed:
            if self._stopping:
                return
            self._waiting[uid] = None
            self._backoff.reset()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self, timeout: float = 5.0) -> None:
        """Look at nothing any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(timeout)  # not one that a signal has kept from being started

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting)
                self._changed.wait_for(lambda: self._stopping, self._backoff.pause())
                if self._stopping:
                    return
                waiting = list(self._waiting)
            for uid in waiting:
                with guarded("look at a subscription without a match"):
                    if not self._stopping and self._look(uid):
                        with self._changed:
                            self._waiting.pop(uid, None)
