"""What a delegate keeps over restarts: its e-mail subscriptions, in one SQLite file.

Rules: a subscription is on disk before it is acknowledged (WAL, synchronous=FULL); lease ends are wall-clock times
there and are told by the caller; a file that can't be read or written is a StorageError, never a silent loss.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.pad.subscription import SubscriptionRequest


class Kept(msgspec.Struct, frozen=True):
    """An e-mail subscription on disk; `ends` is when its lease does, in seconds since the epoch."""

    request: SubscriptionRequest
    lease_id: str
    ends: float


class SubscriptionStore:
    """Safe for several threads. Each call is one transaction."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. Raises StorageError."""
        self.path = path
        self._lock = threading.Lock()
        with self._translated():
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5.0)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS mail (uid TEXT PRIMARY KEY, request BLOB NOT NULL,"
                " lease TEXT NOT NULL, ends REAL NOT NULL) WITHOUT ROWID"
            )

    def load(self, wall: float) -> list[Kept]:
        """All whose lease has not ended at `wall`; the others are removed. Raises StorageError."""
        with self._lock, self._translated():
            self._base.execute("DELETE FROM mail WHERE ends <= ?", (wall,))
            rows = self._base.execute("SELECT request, lease, ends FROM mail").fetchall()
            return [Kept(msgspec.msgpack.decode(r, type=SubscriptionRequest), lease, ends) for r, lease, ends in rows]

    def keep(self, kept: Kept) -> None:
        """Add or replace a subscription. Raises StorageError."""
        row = (kept.request.uid, msgspec.msgpack.encode(kept.request), kept.lease_id, kept.ends)
        with self._lock, self._translated():
            self._base.execute("INSERT OR REPLACE INTO mail VALUES (?, ?, ?, ?)", row)

    def renew(self, uid: str, ends: float) -> None:
        """The lease ends later (or earlier). Raises StorageError."""
        with self._lock, self._translated():
            self._base.execute("UPDATE mail SET ends = ? WHERE uid = ?", (ends, uid))

    def forget(self, uid: str) -> None:
        """The subscription is gone. Raises StorageError."""
        with self._lock, self._translated():
            self._base.execute("DELETE FROM mail WHERE uid = ?", (uid,))

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._translated():
            self._base.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, msgspec.DecodeError) as exc:
            raise StorageError(
                f"e-mail subscriptions in {self.path}: {exc}",
                hint="Check the disk and the file, or choose another [pad] state",
                path=str(self.path),
            ) from exc
