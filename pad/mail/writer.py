"""Writes of the mail queue to disk: one job commits for all that wait (group commit)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.pad.mail.journal import Changes
from jbi_pubsub.pad.mail.letters import Loss
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.mail.store import MailStore

log = logging.getLogger("jbi_pubsub.mail")

FLUSH_SECONDS: Final = 0.1
"""Longest time until what has been sent is noted on disk: a kill sends again what was sent in that time."""

FAULT_SECONDS: Final = 1.0
"""Pause before a disk that has failed is tried again, unless there is new mail."""

SYNC_SECONDS: Final = 10.0
"""Longest that a publisher waits for a disk that does not answer at all."""


class MailWriter:
    """Writes what changes in a queue. The queue's lock covers it, too."""

    def __init__(
        self, store: MailStore | None, queue: MailQueue, changed: threading.Condition, ahead: Callable[[], float],
        written: Callable[[list[Loss]], None],
    ) -> None:  # fmt: skip
        """None: nothing is to survive. `ahead`: see WallClock. `written` is called after each
        transaction, without the lock, with what was lost."""
        self.store = store
        self.fault = ""
        """Why the disk does not take mail, as long as it does not."""
        self._journal, self._queue = queue.journal, queue
        self._changed = changed
        self._ahead = ahead
        self._written = written
        self._is_closing = False
        self._is_set = False
        """The wall clock was, and the file has times of before."""
        self._is_over = True
        """There is nothing more to write."""
        self._job = Job("mail store writer", FAULT_SECONDS, self._write, slow=True)
        self._write_at = math.inf
        """When what has changed is written at the latest (monotonic seconds)."""

    def start(self) -> None:
        """Begin to write."""
        if self.store is not None:
            with self._changed:
                self._is_over = False
            self._job.start()

    def notify(self) -> None:
        """Under the lock: what has changed is written, and who waits looks again."""
        if self._journal.is_urgent or (self._journal.has_changed and self._write_at == math.inf):
            self._job.wake()
        self._changed.notify_all()

    def note_set(self) -> None:
        """Have the times in the file written anew: the wall clock was set."""
        if self.store is not None:
            with self._changed:
                self._is_set = True
                self._job.wake()

    @property
    def offered(self) -> int:
        """Number of mails offered that are to be on disk."""
        return self._journal.added

    def is_durable(self, number: int) -> bool:
        """Whether so many of them are, or were lost for the disk's fault: as `sync`, without waiting."""
        return self._journal.settled >= number or self._is_over

    def sync(self) -> None:
        """Return when all that was offered before this call is on disk, or lost for the disk's fault."""
        with self._changed:
            wanted = self.offered
            if not self._changed.wait_for(lambda: self.is_durable(wanted), SYNC_SECONDS):
                log.error("the disk of the mail queue has not answered for %g s", SYNC_SECONDS)

    def stop(self, timeout: float) -> None:
        """Write the last time, and close the file; one that does not answer for so many seconds stays open: to close it
        would wait for it."""
        ends = time.monotonic() + timeout
        with self._changed:
            self._is_closing = True
            self._job.wake()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over, timeout)
        if not self._job.stop(max(0.0, ends - time.monotonic())):
            log.error("the disk of the mail queue has not answered for %g s: its file is not closed", timeout)
            return
        try:
            if self.store is not None:
                self.store.close()
        except StorageError as exc:
            log.error("what was committed is on disk, the file was not closed: %s", exc)

    def _write(self) -> float:
        """Commit what has changed, at once or a while after the first of it; the last time when nothing is sent any
        more. Seconds until it is looked at again."""
        with self._changed:
            is_last, now = self._is_closing, time.monotonic()
            if not (self._journal.has_changed or self._is_set or is_last):
                return math.inf
            if self._write_at == math.inf:
                self._write_at = now + (FAULT_SECONDS if self.fault else FLUSH_SECONDS)
            if now < self._write_at and not (self._journal.is_urgent or self._is_set or is_last):
                return self._write_at - now
            self._write_at, self._is_set = math.inf, False
        try:
            self._write_all()
        finally:
            with self._changed:
                self._is_over |= is_last
                self.notify()
        return math.inf

    def _write_all(self) -> None:
        with self._changed:
            changes = self._journal.take()
        why = self._commit(changes)
        lasting = self._lack() if self.fault and not why else ""
        with self._changed:
            losses = self._queue.not_kept(changes) if why else []
            if not why:
                self._queue.kept(changes, time.monotonic())
            before, self.fault = self.fault, why or lasting
        if self.fault and not before:
            log.error("mail is lost, the disk can't store it: %s", why)
        elif before and not self.fault:
            log.warning("the disk stores mail again")
        self._written(losses)

    def _lack(self) -> str:
        """Why new mail would find no room though what was sent has been noted."""
        assert self.store is not None
        try:
            return self.store.lack()
        except OSError as exc:
            return str(exc)

    def _commit(self, changes: Changes) -> str:
        """Write them; why they are not on disk, "" if they are."""
        assert self.store is not None
        with guarded("mail store"):
            try:
                self.store.commit(changes, self._ahead())
            except StorageError as exc:
                return str(exc)
            return ""
        return "writing has failed in an unforeseen way"
