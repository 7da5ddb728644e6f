"""Catalogue of an archive, beside its volumes, in one SQLite file: registrations, durable subscriptions, ids of deleted
objects, counts, and its incarnations.

Rules:
- What can be told from volumes is behind them: `checkpoint` is the position up to which it is right, and whoever opens
  the archive reads on from there (`engine.py`). All else is on disk when the call returns (WAL, synchronous=FULL).
- A file that is damaged is set aside, and what it alone knew is taken over; where that can't be read, the archive is
  not opened: durable subscriptions would lose objects, and nobody would know. Their rows have checksums.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.history import MAX_POSITION, Consumer
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.sqlite import storage_errors, transaction
from jbi_pubsub.core.values import decoder_of

log = logging.getLogger("jbi_pubsub.archive")

VERSION: Final = 1
"""Version of the tables (SQLite user_version)."""
MAX_CONSUMERS: Final = 100_000
MAX_NAME: Final = 200
"""Characters of a durable subscription's name, and of its owner's."""
MAX_EXPIRED: Final = 100_000
"""Rows of what was given up: one for each volume and registration."""
MAX_INCARNATIONS: Final = 10_000
MAX_INTERVALS: Final = 10_000
"""Acknowledged above the position, of one of them: its bound of objects under way keeps it far below."""

_TABLES: Final = {
    "archive": "(id BLOB NOT NULL, ends INTEGER NOT NULL, checkpoint INTEGER NOT NULL)",
    "registrations": "(uid TEXT PRIMARY KEY, type TEXT NOT NULL, version TEXT NOT NULL, publisher TEXT NOT NULL,"
    " entries BLOB NOT NULL, sequence INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,"
    " objects INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "consumers": "(name TEXT NOT NULL, owner TEXT NOT NULL, request BLOB NOT NULL, position INTEGER NOT NULL,"
    " acknowledged BLOB NOT NULL, ends REAL NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (name, owner))"
    " WITHOUT ROWID",
    "deleted": "(id TEXT PRIMARY KEY) WITHOUT ROWID",
    "expired": "(type TEXT NOT NULL, version TEXT NOT NULL, registration TEXT NOT NULL, first INTEGER NOT NULL,"
    " last INTEGER NOT NULL, objects INTEGER NOT NULL)",
    "counters": "(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
}
_INCARNATIONS: Final = "CREATE TABLE IF NOT EXISTS incarnations (id TEXT NOT NULL, above INTEGER NOT NULL)"
"""Each time that the archive was opened, with the last position before. Files of before have none, and a damaged one's
are not taken over: positions of those are not known as this archive's any more."""
_TAKEN_OVER: Final = ("archive", "registrations", "consumers", "deleted", "expired")
"""Tables that are taken over from a damaged file. Counting begins anew."""
_COLUMNS: Final = "uid, type, version, publisher, entries, sequence, first, last, objects, bytes"
_intervals = decoder_of(tuple[tuple[int, int], ...])


class Kept(msgspec.Struct, frozen=True):
    """A registration of which objects are kept, or that was told to the archive. `entries` are its caller's."""

    uid: str
    type: str
    version: str
    publisher: str = ""
    entries: bytes = b""
    sequence: int = 0
    """Sequence number of its last object that is kept."""
    first: int = 0
    """Positions of the first and last object that was kept; 0: none."""
    last: int = 0
    objects: int = 0
    """Kept ever; what has gone since is counted too."""
    bytes: int = 0


class Lost(msgspec.Struct, frozen=True):
    """Loss of a registration's objects, by rules, for want of room or by a deletion, between two positions."""

    type: str
    version: str
    registration: str
    first: int
    last: int
    objects: int

    def between(self, after: int, up_to: int) -> int:
        """Number of them above one position and not above another, about: those of two parts make up that of both."""
        span = self.last - self.first + 1
        low, high = (min(max(position - self.first + 1, 0), span) for position in (after, up_to))
        return self.objects * high // span - self.objects * low // span


class LossSpans:
    """Losses by registration, as they are found."""

    def __init__(self, told: Container[int] = ()) -> None:
        """`told`: positions that do not count."""
        self._told = told
        self._found: dict[tuple[str, str, str], list[int]] = {}

    def add(self, type_name: str, version: str, registration: str, position: int) -> None:
        """One object."""
        if position in self._told:
            return
        span = self._found.setdefault((type_name, version, registration), [position, position, 0])
        span[0], span[1] = min(span[0], position), max(span[1], position)
        span[2] += 1

    def all(self) -> tuple[Lost, ...]:
        """Losses of all registrations."""
        return tuple(Lost(*key, *span) for key, span in self._found.items())


class Catalogue:
    """See the module. Any thread; each call is one transaction."""

    def __init__(self, path: Path, archive: bytes) -> None:
        """Opens or makes the file of the archive with that id. Raises StorageError."""
        self.path = path
        self.troubles: list[str] = []
        """Troubles with the file."""
        self.removing = threading.Lock()
        """Held by whoever takes objects out of all answers, until it has written here that they are lost: who asks for
        losses waits for that."""
        self._archive = archive
        self._missed = LossSpans()
        """Losses that are not written yet."""
        self._lock = threading.Lock()
        self._base: sqlite3.Connection
        with self._translated():
            try:
                self._base = _opened(path, archive)
            except sqlite3.DatabaseError as exc:
                if isinstance(exc, sqlite3.OperationalError) and "malformed" not in str(exc):
                    raise  # locked, full, not permitted: nothing is wrong with the file
                self._make_anew(exc)
            (self._expired_up_to,) = self._base.execute("SELECT coalesce(max(last), 0) FROM expired").fetchone()

    # -- where it ends ------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The last position that was ever known to be given."""
        with self._translated():
            (end,) = self._base.execute("SELECT ends FROM archive").fetchone()
            (had,) = self._base.execute("SELECT coalesce(max(position), 0) FROM consumers").fetchone()
        return max(int(end), int(had))

    @property
    def checkpoint(self) -> int:
        """Up to which position the registrations here are right."""
        with self._translated():
            return int(self._base.execute("SELECT checkpoint FROM archive").fetchone()[0])

    # -- incarnations -------------------------------------------------------------------------------------------

    def begin(self, incarnation: str, above: int) -> dict[str, int]:
        """The archive is open from now on, as that incarnation, which gives positions above one. The latest
        incarnations, that first, each with the last position of its own. Raises StorageError."""
        with self._translated(), transaction(self._base) as base:
            base.execute(_INCARNATIONS)
            base.execute("INSERT INTO incarnations VALUES (?, ?)", (incarnation, above))
            most = MAX_INCARNATIONS
            base.execute("DELETE FROM incarnations WHERE rowid <= (SELECT max(rowid) FROM incarnations) - ?", (most,))
            rows = base.execute("SELECT id, above FROM incarnations ORDER BY rowid DESC").fetchall()
        ends = [MAX_POSITION, *(above for _, above in rows)]
        return {each: end for (each, _), end in zip(rows, ends, strict=False)}

    # -- registrations ------------------------------------------------------------------------------------------

    def registrations(self) -> list[Kept]:
        """All of them. Raises StorageError."""
        with self._translated():
            return [Kept(*row) for row in self._base.execute(f"SELECT {_COLUMNS} FROM registrations")]  # noqa: S608

    def keep(self, changed: Iterable[Kept], checkpoint: int, counters: Mapping[str, int]) -> None:
        """Registrations as they are at that position, and what was counted or missed. Raises StorageError."""
        with self._translated():
            with transaction(self._base) as base:
                base.executemany(
                    f"INSERT OR REPLACE INTO registrations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                    (msgspec.structs.astuple(kept) for kept in changed),
                )
                base.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters.items())
                base.execute("UPDATE archive SET checkpoint = max(checkpoint, ?1), ends = max(ends, ?1)", (checkpoint,))
                _expire(base, self._missed.all())
            self._missed = LossSpans()

    def register(self, registrations: Iterable[Kept]) -> None:
        """Note registrations: their publishers, and the types and entries of their objects. Raises StorageError."""
        with self._translated(), transaction(self._base) as base:
            base.executemany(
                f"INSERT INTO registrations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, 0)"  # noqa: S608
                " ON CONFLICT (uid) DO UPDATE SET publisher = excluded.publisher, entries = excluded.entries",
                ((kept.uid, kept.type, kept.version, kept.publisher, kept.entries) for kept in registrations),
            )

    def forget(self, uids: Iterable[str]) -> None:
        """Registrations of which nothing is kept any more. Raises StorageError."""
        with self._translated(), transaction(self._base) as base:
            base.executemany("DELETE FROM registrations WHERE uid = ?", ((uid,) for uid in uids))

    # -- durable subscriptions ----------------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        """All of them. Raises StorageError."""
        with self._translated():
            return list(map(_consumer, self._base.execute("SELECT * FROM consumers").fetchall()))

    def note(self, consumers: Iterable[Consumer]) -> int:
        """Durable subscriptions as they are now: new ones, or known ones further on; how many there are. Raises
        StorageError, also for one more than there may be."""
        consumers = list(consumers)
        for each in consumers:
            _check(each)
        with self._translated(), transaction(self._base) as base:
            base.executemany(
                "INSERT OR REPLACE INTO consumers VALUES (?, ?, ?, ?, ?, ?, ?)",
                map(_row, consumers),
            )
            (count,) = base.execute("SELECT count(*) FROM consumers").fetchone()
            if count > MAX_CONSUMERS:
                raise StorageError(
                    f"the archive has {MAX_CONSUMERS} durable subscriptions already",
                    hint="Cancel some that nobody comes for any more, or shorten [lease] durable",
                )
        return int(count)

    def cancel(self, name: str, owner: str) -> bool:
        """A durable subscription is over; whether there was one. Raises StorageError."""
        with self._translated(), transaction(self._base) as base:
            return base.execute("DELETE FROM consumers WHERE name = ? AND owner = ?", (name, owner)).rowcount > 0

    # -- deleted objects ----------------------------------------------------------------------------------------

    def delete(
        self, object_ids: Iterable[str], lost: Sequence[Lost] = (), do: Callable[[], None] = lambda: None
    ) -> None:
        """Have them deleted by `do`, and remember that they never come back, and what was lost with them: not if `do`
        raises, and nothing is done if that can't be written. Raises StorageError."""
        with self._translated():
            with transaction(self._base) as base:
                base.executemany("INSERT OR IGNORE INTO deleted VALUES (?)", ((each,) for each in object_ids))
                up_to = _expire(base, lost)
                do()
            self._expired_up_to = max(self._expired_up_to, up_to)

    def are_deleted(self, object_ids: Iterable[str]) -> set[str]:
        """Which of these were deleted. Raises StorageError."""
        with self._translated():
            one = "SELECT 1 FROM deleted WHERE id = ?"
            return {each for each in object_ids if self._base.execute(one, (each,)).fetchone()}

    # -- what was given up --------------------------------------------------------------------------------------

    def expire(self, lost: Sequence[Lost]) -> None:
        """Remember what was given up; of very much the older part by registration alone. Raises StorageError."""
        with self._translated(), transaction(self._base) as base:
            self._expired_up_to = max(self._expired_up_to, _expire(base, lost))

    def miss(self, run: Sequence[tuple[int, Parcel]]) -> None:
        """Remember what was never kept; it is written at the next checkpoint."""
        with self._lock:
            for position, parcel in run:
                head = parcel.head
                self._missed.add(head.type_name, head.type_version, head.registration, position)
            self._expired_up_to = max(self._expired_up_to, run[-1][0])

    def expired(self, type_name: str, version: str, after: int, up_to: int) -> list[Lost]:
        """Losses of a type between these positions, in part or whole. Raises StorageError."""
        with self.removing:
            if after >= self._expired_up_to:
                return []
        with self._translated():
            rows = self._base.execute(
                "SELECT * FROM expired WHERE type = ? AND version = ? AND last > ? AND first <= ?",
                (type_name, version, after, up_to),
            )
            known = [*(Lost(*row) for row in rows), *self._missed.all()]
        return [e for e in known if (e.type, e.version) == (type_name, version) and e.last > after and e.first <= up_to]

    # -- counts -------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Counters over all starts. Raises StorageError."""
        with self._translated():
            return dict(self._base.execute("SELECT name, value FROM counters"))

    def close(self) -> None:
        """Close the file. Raises StorageError."""
        with self._translated():
            self._base.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _make_anew(self, why: Exception) -> None:
        """Set a damaged file aside, and make another of what it alone knew. Raises StorageError."""
        told = f"{self.path} is damaged: {why}"
        try:
            rows = _salvaged(self.path)
        except (sqlite3.Error, ValueError) as exc:
            raise StorageError(
                f"{told}; nor can be read which durable subscriptions there are: {exc}",
                hint="Restore the file from a copy; or move it away: it is built again from the volumes,"
                " without durable subscriptions and the ids of deleted objects",
                path=str(self.path),
            ) from exc
        beside = _free_name(self.path)
        for tail in ("", "-wal", "-shm"):
            file = self.path.with_name(self.path.name + tail)
            if file.exists():
                file.rename(beside.with_name(beside.name + tail))
        self._base = _opened(self.path, self._archive, rows)
        self.troubles.append(f"{told}; it is kept as {beside.name}, and a new one was made")
        log.error("%s", self.troubles[-1])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with storage_errors("the archive's catalogue", self.path, "Check the disk"), self._lock:
            yield


def _expire(base: sqlite3.Connection, lost: Sequence[Lost]) -> int:
    """Write losses down; the last position of them, 0 for none."""
    if not lost:
        return 0
    base.executemany("INSERT INTO expired VALUES (?, ?, ?, ?, ?, ?)", map(msgspec.structs.astuple, lost))
    (count,) = base.execute("SELECT count(*) FROM expired").fetchone()
    if count > MAX_EXPIRED:
        (middle,) = base.execute("SELECT last FROM expired ORDER BY last LIMIT 1 OFFSET ?", (count // 2,)).fetchone()
        merged = base.execute(
            "SELECT type, version, registration, min(first), max(last), sum(objects) FROM expired"
            " WHERE last <= ? GROUP BY type, version, registration",
            (middle,),
        ).fetchall()
        base.execute("DELETE FROM expired WHERE last <= ?", (middle,))
        base.executemany("INSERT INTO expired VALUES (?, ?, ?, ?, ?, ?)", merged)
    return max(each.last for each in lost)


def _opened(
    path: Path, archive: bytes, rows: Mapping[str, list[tuple[object, ...]]] | None = None
) -> sqlite3.Connection:
    """The file, checked; a new one with these rows. Raises sqlite3.Error, StorageError, OSError."""
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    base = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cell_size_check=ON", "trusted_schema=OFF"):
            base.execute(f"PRAGMA {pragma}").fetchall()
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise StorageError(
                f"{path} is of version {version}, not {VERSION}", hint="Use the version that made it", path=str(path)
            )
        if version == VERSION:
            (found,) = base.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(str(found))
            (owner,) = base.execute("SELECT id FROM archive").fetchone() or (None,)
            if owner is None:
                raise sqlite3.DatabaseError("it does not say which archive it is of")
            if owner != archive:
                raise StorageError(f"{path} is of another archive", hint="Put it back to where it is from")
            return base
        base.execute("BEGIN IMMEDIATE")
        for name, columns in _TABLES.items():
            base.execute(f"CREATE TABLE {name} {columns}")
            for row in (rows or {}).get(name, ()):
                base.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
        if not rows or not rows["archive"]:
            base.execute("INSERT INTO archive VALUES (?, 0, 0)", (archive,))
        base.execute(f"PRAGMA user_version={VERSION}")
        base.execute("COMMIT")
    except BaseException:
        base.close()
        raise
    return base


def read_only(path: Path) -> closing[sqlite3.Connection]:
    """The file, for a `with` that changes nothing. Raises sqlite3.Error."""
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0))


def _salvaged(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of a damaged file that nothing else knows. Raises sqlite3.Error if one of them can't be read."""
    with read_only(path) as base:
        rows = {name: base.execute(f"SELECT * FROM {name}").fetchall() for name in _TAKEN_OVER}  # noqa: S608
    if len(rows["archive"]) != 1:
        raise sqlite3.DatabaseError("it does not say which archive it is of")
    return rows


def _row(consumer: Consumer) -> tuple[object, ...]:
    acknowledged = msgspec.msgpack.encode(consumer.acknowledged)
    # as SQLite gives it back
    told = consumer.name, consumer.owner, consumer.request, consumer.position, acknowledged, float(consumer.ends)
    return *told, _checksum(told)


def _consumer(row: tuple[Any, ...]) -> Consumer:
    """A durable subscription from its row. Raises StorageError for a damaged one."""
    *told, checksum = row
    if checksum != _checksum(tuple(told)):
        raise StorageError(
            f"the archive's catalogue is damaged: the row of durable subscription {told[0]!r:.100} does not fit its"
            " checksum",
            hint="Restore archive.db from a copy, or move it away: it is built again from the volumes, without durable"
            " subscriptions and the ids of deleted objects",
        )
    name, owner, request, position, acknowledged, ends = told
    return Consumer(name, owner, request, position, _intervals.decode(acknowledged), ends)


def _checksum(row: tuple[object, ...]) -> int:
    """CRC-32 of all that is said of a durable subscription: SQLite checks the form of its pages alone."""
    return zlib.crc32(repr(row).encode(errors="surrogatepass"))


def _free_name(path: Path) -> Path:
    number = 1
    while (found := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    return found


def _check(consumer: Consumer) -> None:
    if not 0 < len(consumer.name) <= MAX_NAME or len(consumer.owner) > MAX_NAME:
        raise StorageError(f"a durable subscription's name has 1 to {MAX_NAME} characters, its owner's at most that")
    if len(consumer.acknowledged) > MAX_INTERVALS:
        raise StorageError(
            f"durable subscription {consumer.name} has {len(consumer.acknowledged)} gaps in what it acknowledged,"
            f" at most {MAX_INTERVALS} are kept",
            hint="Acknowledge what came first",
        )
