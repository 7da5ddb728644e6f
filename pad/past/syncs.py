"""Waiting for an archive until objects are on disk, or lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.pad.past.store_protocol import Keeping

Synced = Callable[[StorageError | None], None]
"""Told that what was waited for is on disk, or why it never will be."""

SYNC_AGAIN: Final = 0.05
"""Seconds until the thread goes on after a fault of ours."""


class SyncQueue:
    """Those who are told when a position is on disk, on one thread, started when it is first needed. `_changed` covers
    them."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, Synced]] = []
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def failure(self, position: int) -> StorageError | None:
        """Why that will not be on disk; None: it is. Waits until it is, or lost."""
        try:
            self._keeping.sync(position)
        except StorageError as exc:
            return exc
        return None

    def put(self, position: int, told: Synced) -> None:
        """Have `told` called on the thread: for who may not wait."""
        with self._changed:
            if not self._is_stopping:
                self._waiting.append((position, told))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="archive-sync", daemon=True)
                    self._thread.start()
                self._changed.notify()

    def close(self) -> bool:
        """Tell those who wait, and end the thread; whether nobody has closed it before."""
        with self._changed:
            is_first, self._is_stopping = not self._is_stopping, True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(10.0)
        return is_first

    def _run(self) -> None:
        while not self._is_stopping or self._waiting:
            with guarded("archive-sync"):
                self._sync()
                continue
            with self._changed:
                self._changed.wait(SYNC_AGAIN)

    def _sync(self) -> None:
        with self._changed:
            while not self._waiting and not self._is_stopping:
                self._changed.wait()
            waiting, self._waiting = self._waiting, []
        if waiting:
            self.failure(max(position for position, _ in waiting))  # once for all
        for position, told in waiting:
            with guarded("archive-sync"):
                told(self.failure(position))
