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
- Event numbers are not stored: they jump by 2**31 - 1 at least with each restart, and the gap makes clients look up
  again.
- What is read at a start is checked: the file's structure by SQLite, each record by its own checksums. A file that is
  no store of this version, or a damaged one, is refused and left as it is.
- A start needs no room on the disk, but for a new file.
- On a full disk nothing is lost that was promised: what could not be written waits in memory (one record per item) and
  is tried again by each `sync`; meanwhile `admit` refuses what is new, and `status` says so.

How a server uses it: registrar calls and `write` under its lock; then `sync`; then send events and answer. When `sync`
raises after register, cancel that lease, tell nobody and hand the error on; after a change of attributes hand it on,
the change will be written; after any other call go on serving.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.sqlite import transaction
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.lookup.administration import RegistrarAdmin
from jbi_pubsub.lookup.events import NUMBER_JUMP, Interest
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.items import uncollected
from jbi_pubsub.lookup.records import Dropped, InterestKept, ItemKept, KeptState, LeaseMoved, LogRecord
from jbi_pubsub.lookup.status import StoreStatus

log = logging.getLogger("jbi_pubsub.lookup")

MAX_BYTES: Final = 4 * 2**30
"""Bound of the file: a million items of 2 KB, twice."""

APPLICATION_ID: Final = 0x4A42494C
"""Marks the file as ours (SQLite header, offset 68): "JBIL"."""

VERSION: Final = 2
"""Version of the tables (SQLite user_version, offset 60)."""

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
"""Beginning and length of a database's header (SQLite file format, section 1.3)."""

VACUUM_PAGES: Final = 1000
"""Free pages given back after one commit at most, when more than half of the file is free: 4 MB take some 10 ms."""

LOG_BYTES: Final = 1000 * 4096
"""Size of SQLite's log (WAL) that is kept for the next commits: what SQLite fills before it begins anew
(wal_autocheckpoint). A burst makes it larger for a moment."""

CLOCK_SLACK: Final = 1.0
"""Seconds by which the wall clock may move before it is noted: leases are longer."""

_SCHEMA: Final = f"""
PRAGMA journal_mode = WAL;
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE kept (
    kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, epoch INTEGER NOT NULL, body_checksum INTEGER NOT NULL,
    ends REAL NOT NULL, term REAL NOT NULL, lease_checksum INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
);
COMMIT;
"""
"""A renewal changes the last three columns alone, hence two checksums."""

_HINTS: Final = {
    "SQLITE_FULL": "The disk is full: free some space; nothing new is registered until then",
    "SQLITE_IOERR": "The disk can't be written: see the system's log",
    "SQLITE_READONLY": "Make the file and its folder writable for this service",
    "SQLITE_CANTOPEN": "The folder must exist and be writable",
    "SQLITE_BUSY": "Another lookup service uses this file: give each its own",
    "SQLITE_NOTADB": "The file is not a store: move it away",
    "SQLITE_CORRUPT": "The file is damaged: move it away, the services will register again",
}

_Key = tuple[str, str]

T = TypeVar("T")


def _checksum(data: bytes, *about: str | int | float) -> int:
    """CRC-32 of `data` and of what it is about: any flipped bit, and nearly anything else, changes it."""
    return zlib.crc32(data, zlib.crc32(repr(about).encode()))


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


class _Epoch(msgspec.Struct, array_like=True, frozen=True):
    """Grows with each start, to the seconds of the wall clock at least: each gives event numbers of its own."""

    number: int


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
        self._waiting: dict[_Key, LogRecord | _Clock | _Epoch] = {}
        self._ends: dict[_Key, tuple[float, float]] = {}  # (end, term) on disk or waiting to be
        self._written = self._durable = 0
        self._busy = False
        self._fault: StorageError | None = None
        self._commits = self._records = self._spared = 0
        self._clock = _Clock("", 0.0, 0.0)
        self._epoch = 0
        self._base = self._open(max_bytes)

    def recover(self, now: float, wall: float, *, boot: str = "") -> KeptState:
        """Recover what was kept, for `Registrar.restore`, without what has ended meanwhile. Call it once, first. A
        destroyed lookup service has left nothing: its file begins a new one.

        `now` is monotonic, `wall` seconds since the epoch; `boot` (see `boot_id`) names the boot in which the monotonic
        clock goes on, "" if it does not. Raises StorageError when the file is damaged. Where only the disk takes
        nothing, `status` and `admit` say so, and `sync` tries again.
        """
        with self._disk(), uncollected():
            if (said := self._base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise self._damaged(said)
            self._clock = self._set_clock(now, wall, boot)
            before = self._meta("epoch", _Epoch) or _Epoch(0)
            admin = self._meta("admin", RegistrarAdmin)
            self._epoch = max(before.number + 1, int(wall))  # new also where the one before could not be noted
            if admin is not None and admin.destroyed:
                log.warning("store %s belongs to a destroyed lookup service: this is a new one", self.path)
                admin = None
            items, interests = self._read(now)
        try:
            with self._disk(), transaction(self._base) as base:
                base.execute("DELETE FROM kept WHERE ends <= ?", (now + self._clock.offset,))
                self._put_meta("clock", self._clock)
                self._put_meta("epoch", _Epoch(self._epoch))
        except StorageError as fault:
            if str(fault.facts.get("code")).startswith("SQLITE_CORRUPT"):
                raise
            log.error("new state is refused until the disk works again: %s", fault)
            self._fault, self._written = fault, self._written + 1
            self._waiting = {("clock", ""): self._clock, ("epoch", ""): _Epoch(self._epoch), **self._waiting}
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
            self._check_kind()
            base = self._connect(self.path)
            try:
                base.execute("PRAGMA synchronous = FULL")
                base.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}").fetchall()
                page_size = base.execute("PRAGMA page_size").fetchone()[0]
                base.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_size)}").fetchall()
            except (sqlite3.Error, UnicodeError):
                base.close()
                raise
            return base

    def _check_kind(self) -> None:
        """Make a new file where there is none; else look at it without touching it. Raises StorageError."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self._refused("is not a file", "Give the path of a file, or of one to make")
            with self.path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except FileNotFoundError:
            self._make()
            return
        except OSError as error:
            raise self._refused(error.strerror or str(error), _HINTS["SQLITE_CANTOPEN"]) from error
        version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise self._refused("is not a store of a lookup service", "Move it away, or give another path")
        if application != APPLICATION_ID:
            raise self._refused("the tables in it are something else's", "Give another path")
        if version != VERSION:
            raise self._refused(
                f"is of version {version} of the tables, and this program knows {VERSION} alone",
                "Move it away, the services will register again",
            )

    def _make(self) -> None:
        """A new file comes to its place whole: one that is cut short was never ours."""
        new = self.path.with_name(self.path.name + ".new")
        try:
            # For the owner alone: lease ids are secrets. SQLite gives its log the same mode.
            os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with closing(self._connect(new, "PRAGMA auto_vacuum = INCREMENTAL")) as base:
                if not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:  # else whole, but not moved
                    base.executescript(_SCHEMA)
                if self.path.exists():
                    raise self._refused("another process has just made it", _HINTS["SQLITE_BUSY"])
            new.rename(self.path)
        except OSError as error:
            raise self._refused(error.strerror or str(error), _HINTS["SQLITE_CANTOPEN"]) from error

    def _connect(self, path: Path, *first: str) -> sqlite3.Connection:
        base = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA trusted_schema = OFF", *first):
                base.execute(statement)
            base.execute("BEGIN EXCLUSIVE")  # ours from now on
            base.execute("COMMIT")
        except (sqlite3.Error, UnicodeError):
            base.close()
            raise
        return base

    def _refused(self, why: str, hint: str) -> StorageError:
        return StorageError(f"store {self.path}: {why}", hint=hint, path=str(self.path))

    def _damaged(self, why: str) -> StorageError:
        return self._refused(f"damaged: {' '.join(why.split())}", _HINTS["SQLITE_CORRUPT"])

    def _set_clock(self, now: float, wall: float, boot: str) -> _Clock:
        last = self._meta("clock", _Clock)
        if last is None:  # a new file
            return _Clock(boot, wall - now, wall - now)
        same = boot and last.boot == boot
        return _Clock(boot, last.offset if same else wall - now - (last.wall - last.offset), wall - now)

    def _read(self, now: float) -> tuple[list[ItemKept], list[InterestKept]]:
        here = now + self._clock.offset
        items: list[ItemKept] = []
        interests: list[InterestKept] = []
        item_decoder = decoder_of(_ItemBody)
        interest_decoder = decoder_of(Interest)
        for kind, kept, body, epoch, body_checksum, ends, term, lease_checksum in self._base.execute(
            "SELECT kind, id, body, epoch, body_checksum, ends, term, lease_checksum FROM kept"
        ):
            checksums = _checksum(body, kind, kept, epoch), _checksum(b"", kind, kept, ends, term)
            if (body_checksum, lease_checksum) != checksums:
                raise self._damaged(f"the record of {kept!r} does not fit its checksum")
            if ends <= here:
                continue
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

    def _meta(self, name: str, kind: type[T]) -> T | None:
        row = self._base.execute("SELECT value, checksum FROM meta WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        if row[1] != _checksum(row[0], name):
            raise self._damaged(f"{name} does not fit its checksum")
        return decoder_of(kind).decode(row[0])

    def _put_meta(self, name: str, value: object) -> None:
        data = msgspec.msgpack.encode(value)
        self._base.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, data, _checksum(data, name)))

    def _commit_or_keep(self, batch: dict[_Key, LogRecord | _Clock | _Epoch], upto: int) -> None:
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

    def _put_back(self, batch: dict[_Key, LogRecord | _Clock | _Epoch]) -> None:
        newer, self._waiting = self._waiting, batch
        for key, record in newer.items():
            before = batch.get(key)
            if isinstance(record, LeaseMoved) and isinstance(before, ItemKept | InterestKept):
                record = msgspec.structs.replace(before, expires=record.expires, term=record.term)
            self._waiting[key] = record

    def _commit(self, batch: dict[_Key, LogRecord | _Clock | _Epoch]) -> None:
        with transaction(self._base) as base:
            for (kind, kept), record in batch.items():
                match record:
                    case ItemKept():
                        body = _ItemBody(record.item, record.lease_id, record.owner, record.seal)
                        self._insert(kind, kept, body, record)
                    case InterestKept():
                        self._insert(kind, kept, record.interest, record)
                    case LeaseMoved():
                        base.execute(
                            "UPDATE kept SET ends = ?, term = ?, lease_checksum = ? WHERE kind = ? AND id = ?",
                            (*self._lease(kind, kept, record), kind, kept),
                        )
                    case Dropped():
                        base.execute("DELETE FROM kept WHERE kind = ? AND id = ?", (kind, kept))
                    case RegistrarAdmin():
                        if record.destroyed:
                            base.execute("DELETE FROM kept")
                        self._put_meta("admin", record)
                    case _Clock() | _Epoch():
                        self._put_meta(kind, record)
        pages, free = (base.execute(f"PRAGMA {p}").fetchone()[0] for p in ("page_count", "freelist_count"))
        if free > VACUUM_PAGES and 2 * free > pages:
            # The file itself becomes shorter with a checkpoint. A script: execute would stop after one page.
            base.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES}); PRAGMA wal_checkpoint(TRUNCATE)")

    def _insert(self, kind: str, kept: str, body: _ItemBody | Interest, record: ItemKept | InterestKept) -> None:
        data = msgspec.msgpack.encode(body)
        row = (kind, kept, data, self._epoch, _checksum(data, kind, kept, self._epoch))
        self._base.execute(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, *self._lease(kind, kept, record))
        )

    def _lease(self, kind: str, kept: str, record: ItemKept | InterestKept | LeaseMoved) -> tuple[float, float, int]:
        ends, term = self._end(record), float(record.term)
        return ends, term, _checksum(b"", kind, kept, ends, term)

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
    def _disk(self) -> Iterator[None]:
        """SQLite's errors, and undecodable rows, as StorageError."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), "")
            raise StorageError(f"store {self.path}: {error}", hint=hint, path=str(self.path), code=name) from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self._damaged(str(error)) from error
