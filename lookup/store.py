"""The store: what a registrar keeps over restarts and crashes, in one SQLite file.

Rules
- The registrar hands in records under its lock (`write`: memory only); `sync` makes them durable off that lock. Whoever
  comes first commits for all that wait (group commit), so a burst costs few fsyncs. There is no thread here.
- Leases end at times of the file's own clock, which goes as the monotonic one does, whatever becomes of the wall
  clock. At the next start in the same boot of the machine the monotonic clock tells how long we were away; after a
  reboot the wall clock has to, but for its jumps that a running service has seen (`align`).
- Renewals are lazy: the end on disk lies one term beyond the lease's, and a renewal that stays within it writes
  nothing. After a restart a lease has at least what was left of it, at most its term.
- Event numbers are not stored: they jump by 2**31 - 1 at least with each restart, and the gap makes clients look up
  again.
- A start needs no room on the disk, but for a new file.
- On a full disk nothing is lost that was promised: what could not be written waits in memory (one record per item) and
  is tried again by each `sync`; meanwhile `admit` refuses what is new, and `status` says so.

How a server uses it: registrar calls and `write` under its lock; then `sync`; then send events and answer. When `sync`
raises after register, cancel that lease, tell nobody and hand the error on; after a change of attributes hand it on,
the change will be written; after any other call go on serving.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.lookup.administration import RegistrarAdmin
from jbi_pubsub.lookup.events import NUMBER_JUMP
from jbi_pubsub.lookup.items import uncollected
from jbi_pubsub.lookup.records import Dropped, InterestKept, ItemKept, KeptState, LeaseMoved, LogRecord
from jbi_pubsub.lookup.status import StoreStatus
from jbi_pubsub.lookup.store_file import MAX_BYTES, FileClock, FileEpoch, FileRecord, Key, StoreFile

log = logging.getLogger("jbi_pubsub.lookup")

CLOCK_SLACK: Final = 1.0
"""Seconds by which the wall clock may move before it is noted: leases are longer."""


def boot_id() -> str:
    """Which boot of the machine this is: the monotonic clock goes on within it. "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return ""


class Store:
    """A registrar's log (RegistrarLog) in the file `path`, which one process has for itself.

    `max_bytes` bounds the file. Raises StorageError when the file can't be opened, is none of ours, in use, or of
    another version. `write`, `admit` and `align` only touch memory; `sync` and `recover` may be called from any
    thread, and block for the disk.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._waiting: dict[Key, FileRecord] = {}
        self._ends: dict[Key, tuple[float, float]] = {}  # (end, term) on disk or waiting to be
        self._written = self._durable = 0
        self._busy = False
        self._fault: StorageError | None = None
        self._commits = self._records = self._spared = 0
        self._clock = FileClock("", 0.0, 0.0)
        self._epoch = 0
        self._file = StoreFile(path, max_bytes)

    def recover(self, now: float, wall: float, *, boot: str = "") -> KeptState:
        """Recover what was kept, for `Registrar.restore`, without what has ended meanwhile. Call it once, first. A
        destroyed lookup service has left nothing: its file begins a new one.

        `now` is monotonic, `wall` seconds since the epoch; `boot` (see `boot_id`) names the boot in which the monotonic
        clock goes on, "" if it does not. Raises StorageError when the file is damaged. Where only the disk takes
        nothing, `status` and `admit` say so, and `sync` tries again.
        """
        with self._file.errors(), uncollected():
            self._file.check()
            self._clock = self._set_clock(now, wall, boot)
            before = self._file.meta("epoch", FileEpoch) or FileEpoch(0)
            admin = self._file.meta("admin", RegistrarAdmin)
            self._epoch = max(before.number + 1, int(wall))  # new also where the one before could not be noted
            if admin is not None and admin.destroyed:
                log.warning("store %s belongs to a destroyed lookup service: this is a new one", self.path)
                admin = None
            items, interests = self._read(now)
        try:
            self._file.begin(now, self._clock, FileEpoch(self._epoch))
        except StorageError as fault:
            if str(fault.facts.get("code")).startswith("SQLITE_CORRUPT"):
                raise
            log.error("new state is refused until the disk works again: %s", fault)
            self._fault, self._written = fault, self._written + 1
            self._waiting = {("clock", ""): self._clock, ("epoch", ""): FileEpoch(self._epoch), **self._waiting}
        return KeptState(admin, tuple(items), tuple(interests))

    def align(self, now: float, wall: float) -> None:
        """The monotonic and the wall clock at this moment. Tell it now and then: wall clocks are corrected, and only
        what was seen can be told from time that has passed when the machine was off."""
        with self._changed:
            if abs(wall - now - self._clock.wall) > CLOCK_SLACK:
                self._clock = self._waiting["clock", ""] = msgspec.structs.replace(self._clock, wall=wall - now)
                self._written += 1

    def admit(self) -> None:
        """Raise StorageError if nothing new may be accepted, because the last commit failed."""
        fault = self._fault
        if fault is not None:
            raise StorageError(fault.message, hint=fault.hint, **fault.facts)

    def write(self, records: Sequence[LogRecord]) -> None:
        """Take the records of one call; `sync` makes them durable together."""
        with self._changed:
            for record in records:
                self._take(record)
            self._written += 1

    def sync(self) -> None:
        """Return when all that was written before this call is durable. Raises StorageError when that fails; the
        records wait for the next try."""
        with self._changed:
            wanted = self._written
            while self._busy and self._durable < wanted:
                self._changed.wait()
            if self._durable >= wanted:
                return
            self._busy = True
            batch, self._waiting, upto = self._waiting, {}, self._written
        self._commit_or_keep(batch, upto)

    def status(self) -> StoreStatus:
        """The store in numbers."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        with self._changed:
            fault = str(self._fault) if self._fault else ""
            return StoreStatus(
                path=str(self.path),
                waiting=len(self._waiting),
                commits=self._commits,
                records=self._records,
                spared=self._spared,
                bytes=size,
                fault=fault,
            )

    def close(self) -> None:
        """Make durable what waits, and close the file. Raises StorageError when that fails; it is closed anyway."""
        try:
            self.sync()
        finally:
            with self._alone():
                self._file.close()

    # -- memory -------------------------------------------------------------------------------------------------

    def _take(self, record: LogRecord) -> None:
        """Put a record in place of the one that waits for the same item: only the last state matters."""
        match record:
            case ItemKept(item=item):
                self._keep(("items", item.service_id), record)
            case InterestKept(interest=interest):
                self._keep(("event_registrations", interest.event_id), record)
            case LeaseMoved(kind=kind, kept=kept):
                self._move((kind, kept), record)
            case Dropped(kind=kind, kept=kept):
                self._ends.pop((kind, kept), None)
                self._waiting[kind, kept] = record
            case RegistrarAdmin():
                if record.destroyed:
                    self._waiting.clear()
                    self._ends.clear()
                self._waiting["admin", ""] = record

    def _keep(self, key: Key, record: ItemKept | InterestKept) -> None:
        self._waiting[key] = record
        self._ends[key] = (self._clock.end(record), record.term)

    def _move(self, key: Key, record: LeaseMoved) -> None:
        expires, (end, term) = record.expires + self._clock.offset, self._ends.get(key, (0.0, 0.0))
        if expires <= end <= expires + 2 * record.term and record.term <= term:
            self._spared += 1
            return
        self._waiting[key] = _moved(self._waiting.get(key), record)
        self._ends[key] = (self._clock.end(record), record.term)

    # -- disk ---------------------------------------------------------------------------------------------------

    def _set_clock(self, now: float, wall: float, boot: str) -> FileClock:
        last = self._file.meta("clock", FileClock)
        if last is None:  # a new file
            return FileClock(boot, wall - now, wall - now)
        same = boot and last.boot == boot
        return FileClock(boot, last.offset if same else wall - now - (last.wall - last.offset), wall - now)

    def _read(self, now: float) -> tuple[list[ItemKept], list[InterestKept]]:
        here = now + self._clock.offset
        items: list[ItemKept] = []
        interests: list[InterestKept] = []
        for kept, epoch, ends, term in self._file.rows(here):
            expires = now + min(ends - here, term)
            if isinstance(kept, ItemKept):
                self._ends["items", kept.item.service_id] = (ends, term)
                items.append(msgspec.structs.replace(kept, expires=expires))
            else:
                self._ends["event_registrations", kept.event_id] = (ends, term)
                number = kept.number + (self._epoch - epoch) * NUMBER_JUMP
                interests.append(InterestKept(msgspec.structs.replace(kept, number=number), expires, term))
        return items, interests

    def _commit_or_keep(self, batch: dict[Key, FileRecord], upto: int) -> None:
        """Commit; or put the batch back under what has come since, and raise."""
        fault: StorageError | None = None
        durable = False
        try:
            with self._file.errors():
                self._commit(batch)
            durable = True
        except StorageError as error:
            fault = error
        finally:
            with self._changed:
                self._busy = False
                self._fault = fault
                if durable:
                    self._durable = upto
                    self._commits += 1
                    self._records += len(batch)
                else:
                    self._put_back(batch)
                    # Something has to be written by the next try, or what needs no room (to drop what never came to
                    # the disk) would look like a disk that is well again.
                    self._waiting.setdefault(("clock", ""), self._clock)
                self._changed.notify_all()
        if fault is not None:
            raise fault

    def _put_back(self, batch: dict[Key, FileRecord]) -> None:
        newer, self._waiting = self._waiting, batch
        for key, record in newer.items():
            self._waiting[key] = _moved(batch.get(key), record) if isinstance(record, LeaseMoved) else record

    def _commit(self, batch: dict[Key, FileRecord]) -> None:
        self._file.commit(batch, self._clock, self._epoch)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The file for this thread: no commit meanwhile."""
        with self._changed:
            while self._busy:
                self._changed.wait()
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


def _moved(before: FileRecord | None, moved: LeaseMoved) -> FileRecord:
    """A record for a lease that has moved: that it has, or the one that waited before, with its new end."""
    if isinstance(before, ItemKept | InterestKept):
        return msgspec.structs.replace(before, expires=moved.expires, term=moved.term)
    return moved
