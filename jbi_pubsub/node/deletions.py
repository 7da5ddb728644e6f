"""Deletions of this node's archive that others are told of: on disk, so that they are said again after a start, until
everybody who was away may have heard them."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_bytes
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.sqlite import check_tables, opened, storage_errors, transaction
from jbi_pubsub.core.wall_clock import WallClock

from .bodies import IDS_MOST, VERSION, DeletionBody

log = logging.getLogger("jbi_pubsub.node")

TOLD_SECONDS: Final = 30 * 86_400.0
"""For which a deletion is told."""
BATCHES_MOST: Final = 10_000
"""Messages that are told at a time; the oldest go."""
_TABLE: Final = "CREATE TABLE IF NOT EXISTS deletions (key BLOB PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL)"


class ToldDeletion(NamedTuple):
    """A message of deletions that is to be said: its durability identifier, body, and milliseconds that it lives. With
    b"" what was said is over."""

    key: bytes
    body: bytes
    life: int


class NodeDeletions:
    """See the module. Any thread."""

    def __init__(
        self, path: Path, *, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises StorageError."""
        self._path = path
        self._wall, self._wall_clock = wall, WallClock(wall, clock)
        self._shift = 0.0
        """Seconds by which the wall clock was set, and that are not noted yet: the disk may refuse it."""
        self._lock = threading.Lock()
        self._said: set[bytes] = set()
        """Those that this process has said."""
        with self._translated():
            self._base = opened(path, self._set_up, timeout=5.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        check_tables(base, {"deletions"}, str(self._path))
        base.execute(_TABLE)
        base.execute("UPDATE deletions SET at = ?1 WHERE at > ?1", (self._wall(),))  # the clock was ahead then

    def add(self, ids: Sequence[str]) -> None:
        """Objects were deleted. Raises StorageError."""
        at = self._wall()
        rows = [
            (token_bytes(16), at, msgspec.msgpack.encode(DeletionBody(VERSION, tuple(ids[start : start + IDS_MOST]))))
            for start in range(0, len(ids), IDS_MOST)
        ]
        with self._lock, self._translated(), transaction(self._base) as base:
            base.executemany("INSERT INTO deletions VALUES (?, ?, ?)", rows)
            base.execute("DELETE FROM deletions WHERE rowid <= (SELECT max(rowid) FROM deletions) - ?", (BATCHES_MOST,))

    def due(self) -> Iterator[ToldDeletion]:
        """Those that are to be said now, as this process has not, or as they are over: not by that the wall clock was
        set. Raises StorageError."""
        with self._lock, self._translated():
            self._shift, now = self._shift + self._wall_clock.shift(), self._wall()
            if self._shift:
                self._base.execute("UPDATE deletions SET at = at + ?", (self._shift,))
                self._shift = 0.0
            over = self._base.execute("SELECT key FROM deletions WHERE at <= ?", (now - TOLD_SECONDS,)).fetchall()
            if over:
                with transaction(self._base) as base:
                    base.execute("DELETE FROM deletions WHERE at <= ?", (now - TOLD_SECONDS,))
            rows = self._base.execute("SELECT key, at, body FROM deletions ORDER BY rowid").fetchall()
        for (key,) in over:
            if key in self._said:
                yield ToldDeletion(key, b"", 1_000)
        for key, at, body in rows:
            if key not in self._said:
                yield ToldDeletion(key, body, int(min(TOLD_SECONDS, at + TOLD_SECONDS - now) * 1000))

    def said(self, deletion: ToldDeletion) -> None:
        """One was said."""
        if deletion.body:
            self._said.add(deletion.key)
        else:
            self._said.discard(deletion.key)

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._translated():
            self._base.close()

    def _translated(self) -> AbstractContextManager[None]:
        return storage_errors("deletions in", self._path, "Make room, or see to who may write there")
