"""Blocks on disk, for which there is no room in memory: in a file of this start, which goes with it.

Bounded by bytes; the oldest of the origin that has most go first. A disk that is full or fails loses blocks, as a cache
without room does, and is counted.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from struct import Struct
from typing import Final

from jbi_pubsub.core.sqlite import opened, storage_errors
from jbi_pubsub.network.cache import OVERHEAD, HeldBlock
from jbi_pubsub.network.log import LogId

log = logging.getLogger("jbi_pubsub.network")

EXPIRED_MOST: Final = 1_000
"""Blocks that go at once as they are over: others follow."""
_PLACE: Final = Struct("!16s3Q")
"""Origin, epoch, stream and serial."""
_SET_UP: Final = (
    "PRAGMA journal_mode = MEMORY",  # nothing outlives a crash; but what a full disk refuses is undone
    "PRAGMA synchronous = OFF",
    """CREATE TABLE blocks (number INTEGER PRIMARY KEY, origin BLOB NOT NULL, place BLOB NOT NULL UNIQUE,
       expires REAL NOT NULL, level INTEGER NOT NULL, data BLOB NOT NULL)""",
    "CREATE INDEX of_origin ON blocks (origin, number)",
    "CREATE INDEX expiring ON blocks (expires)",
)


class DiskBlocks:
    """See the module. One thread at a time."""

    def __init__(self, path: Path, most: int) -> None:
        """`most`: bytes. Raises StorageError."""
        self._path, self._most = path, most
        self._sizes: Counter[bytes] = Counter()
        """Bytes of each origin."""
        self.size = 0
        """Bytes."""
        self._first_over = inf
        """When the first of them is over, or later."""
        self.failed = 0
        """Blocks that could not be written or read."""
        with storage_errors("blocks in", path, "Give the node a folder on a disk that it may write"):
            path.unlink(missing_ok=True)
            self._base = opened(path, self._set_up, timeout=0.0)

    def put(self, log_id: LogId, serial: int, block: HeldBlock) -> Iterator[tuple[LogId, int]]:
        """Keep one more; those that are given up for it, which may be itself."""
        size = len(block.data) + OVERHEAD
        row = (log_id.origin, _PLACE.pack(*log_id, serial), block.expires, block.level, block.data)
        with self._counted():
            added = self._base.execute(
                "INSERT OR IGNORE INTO blocks (origin, place, expires, level, data) VALUES (?, ?, ?, ?, ?)", row
            )
            self._count_in(log_id.origin, size * added.rowcount)
            self._first_over = min(self._first_over, block.expires)
            while self.size > self._most:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                yield from self._removed("number = (SELECT min(number) FROM blocks WHERE origin = ?)", largest)
            return
        yield log_id, serial

    def get(self, log_id: LogId, serial: int) -> HeldBlock | None:
        """A block, or None."""
        with self._counted():
            place = _PLACE.pack(*log_id, serial)
            found = self._base.execute("SELECT data, expires, level FROM blocks WHERE place = ?", (place,)).fetchone()
            return HeldBlock(*found) if found is not None else None
        return None

    def remove(self, log_id: LogId, serial: int) -> None:
        """Give one up."""
        with self._counted():
            for _ in self._removed("place = ?", _PLACE.pack(*log_id, serial)):
                pass

    def expire(self, now: float) -> Iterator[tuple[LogId, int]]:
        """Some of those that are over by now."""
        if now < self._first_over:
            return
        with self._counted():
            yield from self._removed(
                "number IN (SELECT number FROM blocks WHERE expires <= ? LIMIT ?)", now, EXPIRED_MOST
            )
            (first,) = self._base.execute("SELECT min(expires) FROM blocks").fetchone()
            self._first_over = inf if first is None else first

    def close(self) -> None:
        """Remove the file. Safe to call twice."""
        self._base.close()
        self._path.unlink(missing_ok=True)

    def _set_up(self, base: sqlite3.Connection) -> None:
        for each in _SET_UP:
            base.execute(each)

    def _removed(self, where: str, *values: object) -> Iterator[tuple[LogId, int]]:
        """Remove some, and name them."""
        rows = self._base.execute(f"DELETE FROM blocks WHERE {where} RETURNING place, length(data)", values)  # noqa: S608  # ours
        for place, size in rows.fetchall():
            *log_id, serial = _PLACE.unpack(place)
            found = LogId(*log_id)
            self._count_in(found.origin, -size - OVERHEAD)
            yield found, serial

    def _count_in(self, origin: bytes, size: int) -> None:
        self.size += size
        self._sizes[origin] += size
        if not self._sizes[origin]:
            del self._sizes[origin]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Whatever SQLite fails with is one block less."""
        try:
            yield
        except sqlite3.Error as exc:
            self.failed += 1
            if self.failed == 1:
                log.warning("%s: %s: blocks that have no room in memory are given up", self._path, exc)
