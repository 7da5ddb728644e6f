"""Batches that a receiver has handed on and may not acknowledge yet, as they are not on disk: see `receiver`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.guard import note

LOOK_SECONDS: Final = 1.0
"""Length of one wait before it is begun again."""

Settle = Callable[[], None]
"""Returns when a batch may be acknowledged, as for whether it is on disk."""


class Settlement:
    """Batches that were handed on and are not acknowledged yet, in order: each is when its `settle` has returned, and
    those before have. A thread of its own waits for that, from the first such batch of a line to its end."""

    def __init__(self, report: Callable[[], None], fail: Callable[[], None], *, most: int) -> None:
        """`report` acknowledges, `fail` ends the line; `most` batches wait, beyond that `put` does."""
        self._most = most
        self._report = report
        self._fail = fail
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Settle | None]] = deque()
        """With the position before."""
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._has_failed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def settled(self, position: int) -> int:
        """Last position that may be acknowledged of what was handed on up to there."""
        try:
            return min(position, self._waiting[0][0])
        except IndexError:
            return position

    def put(self, before: int, settle: Settle | None) -> None:
        """A batch; waits while there are many."""
        with self._changed:
            while len(self._waiting) >= self._most and not self._has_failed:
                self._changed.wait(LOOK_SECONDS)
            self._waiting.append((before, settle))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acknowledge", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def end(self, position: int) -> int:
        """The line is over: wait for all, and for the thread. The last position that may be acknowledged."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
        position = self.settled(position)
        self._waiting.clear()
        self._thread, self._is_ending, self._has_failed = None, False, False
        return position

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait(LOOK_SECONDS)
                count = len(self._waiting)
            if not count:
                return
            try:
                for _ in range(count):
                    settle = self._waiting[0][1]
                    if settle is not None:
                        settle()
                    with self._changed:
                        self._waiting.popleft()
                        self._changed.notify_all()
            except Exception as exc:  # noqa: BLE001  # noted; as for a sink that fails, the rest comes again
                note("settling what was received", exc)
                with self._changed:
                    self._has_failed = True
                    self._changed.notify_all()
                self._fail()
                return
            self._report()
