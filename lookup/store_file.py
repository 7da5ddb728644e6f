"""The SQLite file of a store: its tables, and what is read and written there.

Rules
- A commit is one transaction in WAL mode with synchronous=FULL: after a kill or a power cut the file holds all
  synced calls, and each call whole or not at all.
- The file stays within twice what is in it: after each commit some free pages are given back while more than half are
  free (SQLite joins half-empty pages itself), and the log is cut to `LOG_BYTES` when SQLite begins it anew, after
  every 1,000 pages. All of that is part of SQLite's own transactions: a kill in the middle leaves none half done.
- What is read at a start is checked: the file's structure by SQLite, each record by its own checksums. A file that is
  no store of this version, or a damaged one, is refused and left as it is.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.sqlite import transaction
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.lookup.administration import RegistrarAdmin
from jbi_pubsub.lookup.events import Interest
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.records import Dropped, InterestKept, ItemKept, LeaseMoved, LogRecord

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

Key = tuple[str, str]
"""Kind and id of what is kept."""

T = TypeVar("T")


class FileClock(msgspec.Struct, array_like=True, frozen=True):
    """The file's clock: monotonic + `offset` in that boot of the machine, where the wall's is monotonic + `wall`."""

    boot: str
    offset: float
    wall: float

    def end(self, record: ItemKept | InterestKept | LeaseMoved) -> float:
        """The end on disk: one term beyond the lease's, so that the next renewal costs nothing."""
        return record.expires + record.term + self.offset


class FileEpoch(msgspec.Struct, array_like=True, frozen=True):
    """Grows with each start, to the seconds of the wall clock at least: each gives event numbers of its own."""

    number: int


FileRecord = LogRecord | FileClock | FileEpoch


def _checksum(data: bytes, *about: str | int | float) -> int:
    """CRC-32 of `data` and of what it is about: any flipped bit, and nearly anything else, changes it."""
    return zlib.crc32(data, zlib.crc32(repr(about).encode()))


def _lease(kind: str, kept: str, ends: float, term: float) -> tuple[float, float, int]:
    return ends, float(term), _checksum(b"", kind, kept, ends, float(term))


class _ItemBody(msgspec.Struct, array_like=True, frozen=True, gc=False):
    item: ServiceItem
    lease_id: str
    owner: str
    seal: str = ""


class StoreFile:
    """The file `path`, which one process has for itself; `max_bytes` bounds it. For one thread at a time.

    Raises StorageError when it can't be opened, is none of ours, in use, or of another version.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._base = self._open(max_bytes)

    def check(self) -> None:
        """Raise StorageError when it is damaged."""
        if (said := self._base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise self.damaged(said)

    def meta(self, name: str, kind: type[T]) -> T | None:
        """Something that is there once; None: it is not. Raises StorageError."""
        row = self._base.execute("SELECT value, checksum FROM meta WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        if row[1] != _checksum(row[0], name):
            raise self.damaged(f"{name} does not fit its checksum")
        return decoder_of(kind).decode(row[0])

    def rows(self, here: float) -> Iterator[tuple[ItemKept | Interest, int, float, float]]:
        """All that has not ended `here`, on the file's clock: an item or event registration, the epoch that has written
        it, the end and the term of its lease. `expires` of an item is to be set from the end. Raises StorageError."""
        item_decoder = decoder_of(_ItemBody)
        interest_decoder = decoder_of(Interest)
        for kind, kept, body, epoch, body_checksum, ends, term, lease_checksum in self._base.execute(
            "SELECT kind, id, body, epoch, body_checksum, ends, term, lease_checksum FROM kept"
        ):
            checksums = _checksum(body, kind, kept, epoch), _checksum(b"", kind, kept, ends, term)
            if (body_checksum, lease_checksum) != checksums:
                raise self.damaged(f"the record of {kept!r} does not fit its checksum")
            if ends <= here:
                continue
            if kind == "items":
                read = item_decoder.decode(body)
                yield ItemKept(read.item, read.lease_id, read.owner, 0.0, term, len(body), read.seal), epoch, ends, term
            else:
                yield interest_decoder.decode(body), epoch, ends, term

    def begin(self, now: float, clock: FileClock, epoch: FileEpoch) -> None:
        """Note a start at monotonic `now`, and take out what has ended. Raises StorageError."""
        with self.errors(), transaction(self._base) as base:
            base.execute("DELETE FROM kept WHERE ends <= ?", (now + clock.offset,))
            self._put_meta("clock", clock)
            self._put_meta("epoch", epoch)

    def commit(self, batch: Mapping[Key, FileRecord], clock: FileClock, epoch: int) -> None:
        """Write records in one transaction, within `errors`."""
        with transaction(self._base) as base:
            for (kind, kept), record in batch.items():
                match record:
                    case ItemKept():
                        body = _ItemBody(record.item, record.lease_id, record.owner, record.seal)
                        self._insert(kind, kept, body, epoch, clock.end(record), record.term)
                    case InterestKept():
                        self._insert(kind, kept, record.interest, epoch, clock.end(record), record.term)
                    case LeaseMoved():
                        base.execute(
                            "UPDATE kept SET ends = ?, term = ?, lease_checksum = ? WHERE kind = ? AND id = ?",
                            (*_lease(kind, kept, clock.end(record), record.term), kind, kept),
                        )
                    case Dropped():
                        base.execute("DELETE FROM kept WHERE kind = ? AND id = ?", (kind, kept))
                    case RegistrarAdmin():
                        if record.destroyed:
                            base.execute("DELETE FROM kept")
                        self._put_meta("admin", record)
                    case FileClock() | FileEpoch():
                        self._put_meta(kind, record)
        pages, free = (base.execute(f"PRAGMA {p}").fetchone()[0] for p in ("page_count", "freelist_count"))
        if free > VACUUM_PAGES and 2 * free > pages:
            # The file itself becomes shorter with a checkpoint. A script: execute would stop after one page.
            base.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES}); PRAGMA wal_checkpoint(TRUNCATE)")

    def _insert(self, kind: str, kept: str, body: _ItemBody | Interest, epoch: int, ends: float, term: float) -> None:
        data = msgspec.msgpack.encode(body)
        row = (kind, kept, data, epoch, _checksum(data, kind, kept, epoch), *_lease(kind, kept, ends, term))
        self._base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close it."""
        self._base.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors, and undecodable rows, as StorageError."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), "")
            raise StorageError(f"store {self.path}: {error}", hint=hint, path=str(self.path), code=name) from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise self.damaged(str(error)) from error

    def _put_meta(self, name: str, value: object) -> None:
        data = msgspec.msgpack.encode(value)
        self._base.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, data, _checksum(data, name)))

    def _open(self, max_bytes: int) -> sqlite3.Connection:
        with self.errors():
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

    def damaged(self, why: str) -> StorageError:
        """An error for a file that is."""
        return self._refused(f"damaged: {' '.join(why.split())}", _HINTS["SQLITE_CORRUPT"])
