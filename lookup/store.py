"""The store: what a registrar keeps over restarts and crashes, in one SQLite file.

Rules
- The registrar hands in records under its lock (`write`: memory only); `sync` makes them durable off that lock. Whoever
  comes first commits for all that wait (group commit), so a burst costs few fsyncs. There is no thread here.
- A commit is one transaction in WAL mode with synchronous=FULL: after a kill or a power cut the file holds all
  synced calls, and each call whole or not at all.
- Leases end at times of the file's own clock, which goes as the monotonic one does, whatever becomes of the wall
  clock. At the next start in the same boot of the machine the monotonic clock tells how long we were away; after a
  reboot the wall clock has to, but for its jumps that a running service has seen (`align`).
- Renewals are lazy: the end on disk lies one term beyond the lease's, and a renewal that stays within it writes
  nothing. After a restart a lease has at least what was left of it, at most its term.
- The file stays within twice what is in it: after each commit some free pages are given back while more than half are
  free (SQLite joins half-empty pages itself), and the log is cut to `LOG_BYTES` when SQLite begins it anew, after
  every 1,000 pages. All of that is part of SQLite's own transactions: a kill in the middle leaves none half done.
- Event numbers are not stored: they jump by 2**31 - 1 with each restart, and the gap makes clients look up again.
- On a full disk nothing is lost that was promised: what could not be written waits in memory (one record per item) and
  is tried again by each `sync`; meanwhile `admit` refuses what is new, and `status` says so.

How a server uses it: registrar calls and `write` under its lock; then `sync`; then answer and send events. When `sync`
raises after register or notify, cancel that lease and hand the error on; after a change of attributes hand it on, the
change will be written; after any other call go on serving.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.lookup.events import NUMBER_JUMP, Interest
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.registrar import (
    Dropped,
    InterestKept,
    ItemKept,
    KeptState,
    LeaseMoved,
    LogRecord,
    RegistrarAdmin,
    uncollected,
)

MAX_BYTES: Final = 4 * 2**30
"""Bound of the file: a million items of 2 KB, twice."""

APPLICATION_ID: Final = 0x4A42494C
"""Marks the file as ours (SQLite header, offset 68): "JBIL"."""

VERSION: Final = 1
"""Version of the tables (SQLite user_version)."""

VACUUM_PAGES: Final = 1000
"""Free pages given back after one commit at most, when more than half of the file is free: 4 MB take some 10 ms."""

LOG_BYTES: Final = 1000 * 4096
"""Size of SQLite's log (WAL) that is kept for the next commits: what SQLite fills before it begins anew
(wal_autocheckpoint). A burst makes it larger for a moment."""

CLOCK_SLACK: Final = 1.0
"""Seconds by which the wall clock may move before it is noted: leases are longer."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (
    kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL,
    ends REAL NOT NULL, term REAL NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
);
"""

_HINTS: Final = {
    "SQLITE_FULL": "The disk is full: free some space; nothing new is registered until then",
    "SQLITE_IOERR": "The disk can't be written: see the system's log",
    "SQLITE_READONLY": "Make the file and its folder writable for this service",
    "SQLITE_CANTOPEN": "The folder must exist and be writable",
    "SQLITE_BUSY": "Another lookup service uses this file: give each its own",
    "SQLITE_NOTADB": "The file is no store: move it away",
    "SQLITE_CORRUPT": "The file is damaged: move it away, the services will register again",
}

_Key = tuple[str, str]


class StoreStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store in numbers: records waiting for `sync`, commits and records committed so far, renewals that needed no
    write, size of the file and its log in bytes, and what is wrong with the disk ("" if nothing is)."""

    path: str
    waiting: int
    commits: int
    records: int
    spared: int
    bytes: int
    fault: str = ""


class _ItemBody(msgspec.Struct, array_like=True, frozen=True, gc=False):
    item: ServiceItem
    lease_id: str
    owner: str
    seal: str = ""


class _Clock(msgspec.Struct, array_like=True, frozen=True):
    """The file's clock: monotonic + `offset` in that boot of the machine, where the wall's is monotonic + `wall`."""

    boot: str
    offset: float
    wall: float


def boot_id() -> str:
    """Which boot of the machine this is: the monotonic clock goes on within it. "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return ""


class Store:
    """A registrar's log (RegistrarLog) in the file `path`, which one process has for itself.

    `max_bytes` bounds the file. Raises StorageError when the file can't be opened, is damaged, in use, or of
    another version. `write`, `admit` and `align` only touch memory; `sync` and `recover` may be called from any
    thread, and block for the disk.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._waiting: dict[_Key, LogRecord | _Clock] = {}
        self._ends: dict[_Key, tuple[float, float]] = {}  # (end, term) on disk or waiting to be
        self._written = self._durable = 0
        self._busy = False
        self._fault: StorageError | None = None
        self._commits = self._records = self._spared = 0
        self._clock = _Clock("", 0.0, 0.0)
        self._epoch = 0
        self._base = self._open(max_bytes)

    def recover(self, now: float, wall: float, *, boot: str = "") -> KeptState:
        """What was kept, for `Registrar.restore`; leases that ended meanwhile are taken out. Call it once, first.

        `now` is monotonic, `wall` seconds since the epoch; `boot` (see `boot_id`) names the boot in which the monotonic
        clock goes on, "" if it does not. Raises StorageError.
        """
        with self._disk(), self._transaction() as base:
            self._clock = self._set_clock(now, wall, boot)
            self._put_meta("clock", self._clock)
            base.execute("DELETE FROM kept WHERE ends <= ?", (now + self._clock.offset,))
            epoch, admin = self._meta("epoch"), self._meta("admin")
            self._epoch = 1 + (msgspec.msgpack.decode(epoch, type=int) if epoch else 0)
            self._put_meta("epoch", self._epoch)
            with uncollected():
                items, interests = self._read(now)
            known = msgspec.msgpack.decode(admin, type=RegistrarAdmin) if admin else None
        return KeptState(known, tuple(items), tuple(interests))

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
                str(self.path), len(self._waiting), self._commits, self._records, self._spared, size, fault
            )

    def close(self) -> None:
        """Make durable what waits, and close the file. Raises StorageError when that fails; it is closed anyway."""
        try:
            self.sync()
        finally:
            with self._alone():
                self._base.close()

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

    def _keep(self, key: _Key, record: ItemKept | InterestKept) -> None:
        self._waiting[key] = record
        self._ends[key] = (self._end(record), record.term)

    def _move(self, key: _Key, record: LeaseMoved) -> None:
        expires, (end, term) = record.expires + self._clock.offset, self._ends.get(key, (0.0, 0.0))
        if expires <= end <= expires + 2 * record.term and record.term <= term:
            self._spared += 1
            return
        before = self._waiting.get(key)
        if isinstance(before, ItemKept | InterestKept):
            self._waiting[key] = msgspec.structs.replace(before, expires=record.expires, term=record.term)
        else:
            self._waiting[key] = record
        self._ends[key] = (self._end(record), record.term)

    def _end(self, record: ItemKept | InterestKept | LeaseMoved) -> float:
        """The end on disk: one term beyond the lease's, so that the next renewal costs nothing."""
        return record.expires + record.term + self._clock.offset

    # -- disk ---------------------------------------------------------------------------------------------------

    def _open(self, max_bytes: int) -> sqlite3.Connection:
        with self._disk():
            try:
                # For the owner alone: lease ids are secrets. SQLite gives its log the same mode.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise StorageError(
                    f"store {self.path}: {error.strerror}", hint=_HINTS["SQLITE_CANTOPEN"], path=str(self.path)
                ) from error
            base = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
            try:
                self._set_up(base, max_bytes)
            except (sqlite3.Error, StorageError):
                base.close()
                raise
            return base

    def _set_up(self, base: sqlite3.Connection, max_bytes: int) -> None:
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        base.execute("PRAGMA auto_vacuum = INCREMENTAL")
        base.execute("PRAGMA journal_mode = WAL").fetchall()
        base.execute("PRAGMA synchronous = FULL")
        base.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}").fetchall()
        base.execute("PRAGMA trusted_schema = OFF")
        base.execute("BEGIN EXCLUSIVE")
        application, version = (base.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version"))
        (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version) == (0, 0) and tables:
            raise StorageError(
                f"store {self.path}: the tables in it are something else's",
                hint="The file is no store: give another one",
                path=str(self.path),
            )
        if (application, version) not in ((0, 0), (APPLICATION_ID, VERSION)):
            raise StorageError(
                f"store {self.path} is of version {version}, not {VERSION}",
                hint="Move it away, the services will register again",
                path=str(self.path),
            )
        base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        base.execute(f"PRAGMA user_version = {VERSION}")
        for statement in _SCHEMA.split(";"):
            base.execute(statement)
        base.execute("COMMIT")
        page_size = base.execute("PRAGMA page_size").fetchone()[0]
        base.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_size)}").fetchall()

    def _set_clock(self, now: float, wall: float, boot: str) -> _Clock:
        kept = self._meta("clock")
        if kept is None:  # a new file, or one from before there was a clock in it: it went as the wall's
            return _Clock(boot, wall - now, wall - now)
        last = msgspec.msgpack.decode(kept, type=_Clock)
        same = boot and last.boot == boot
        return _Clock(boot, last.offset if same else wall - now - (last.wall - last.offset), wall - now)

    def _read(self, now: float) -> tuple[list[ItemKept], list[InterestKept]]:
        here = now + self._clock.offset
        items: list[ItemKept] = []
        interests: list[InterestKept] = []
        item_decoder = msgspec.msgpack.Decoder(_ItemBody)
        interest_decoder = msgspec.msgpack.Decoder(Interest)
        for kind, kept, body, ends, term, epoch in self._base.execute(
            "SELECT kind, id, body, ends, term, epoch FROM kept"
        ):
            expires = now + min(ends - here, term)
            self._ends[kind, kept] = (ends, term)
            if kind == "items":
                read = item_decoder.decode(body)
                items.append(ItemKept(read.item, read.lease_id, read.owner, expires, term, len(body), read.seal))
            else:
                interest = interest_decoder.decode(body)
                number = interest.number + (self._epoch - epoch) * NUMBER_JUMP
                interests.append(InterestKept(msgspec.structs.replace(interest, number=number), expires, term))
        return items, interests

    def _meta(self, name: str) -> bytes | None:
        row = self._base.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _put_meta(self, name: str, value: object) -> None:
        self._base.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, msgspec.msgpack.encode(value)))

    def _commit_or_keep(self, batch: dict[_Key, LogRecord | _Clock], upto: int) -> None:
        """Commit; or put the batch back under what has come since, and raise."""
        fault: StorageError | None = None
        durable = False
        try:
            with self._disk():
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

    def _put_back(self, batch: dict[_Key, LogRecord | _Clock]) -> None:
        newer, self._waiting = self._waiting, batch
        for key, record in newer.items():
            before = batch.get(key)
            if isinstance(record, LeaseMoved) and isinstance(before, ItemKept | InterestKept):
                record = msgspec.structs.replace(before, expires=record.expires, term=record.term)
            self._waiting[key] = record

    def _commit(self, batch: dict[_Key, LogRecord | _Clock]) -> None:
        with self._transaction() as base:
            for (kind, kept), record in batch.items():
                match record:
                    case ItemKept():
                        body = _ItemBody(record.item, record.lease_id, record.owner, record.seal)
                        self._insert(kind, kept, body, record)
                    case InterestKept():
                        self._insert(kind, kept, record.interest, record)
                    case LeaseMoved():
                        base.execute(
                            "UPDATE kept SET ends = ?, term = ? WHERE kind = ? AND id = ?",
                            (self._end(record), record.term, kind, kept),
                        )
                    case Dropped():
                        base.execute("DELETE FROM kept WHERE kind = ? AND id = ?", (kind, kept))
                    case RegistrarAdmin():
                        if record.destroyed:
                            base.execute("DELETE FROM kept")
                        self._put_meta("admin", record)
                    case _Clock():
                        self._put_meta("clock", record)
        pages, free = (base.execute(f"PRAGMA {p}").fetchone()[0] for p in ("page_count", "freelist_count"))
        if free > VACUUM_PAGES and 2 * free > pages:
            # The file itself becomes shorter with a checkpoint. A script: execute would stop after one page.
            base.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES}); PRAGMA wal_checkpoint(TRUNCATE)")

    def _insert(self, kind: str, kept: str, body: _ItemBody | Interest, record: ItemKept | InterestKept) -> None:
        self._base.execute(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?, ?)",
            (kind, kept, msgspec.msgpack.encode(body), self._end(record), record.term, self._epoch),
        )

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

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield self._base
            self._base.execute("COMMIT")
        finally:
            if self._base.in_transaction:  # SQLite has rolled back by itself after some errors
                self._base.execute("ROLLBACK")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """SQLite's errors, and undecodable rows, as StorageError."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), "")
            raise StorageError(f"store {self.path}: {error}", hint=hint, path=str(self.path), code=name) from error
        except msgspec.MsgspecError as error:
            raise StorageError(
                f"store {self.path}: {error}", hint=_HINTS["SQLITE_CORRUPT"], path=str(self.path)
            ) from error
