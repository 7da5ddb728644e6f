"""Memory of a policy manager over restarts: versions, who it is, who had which share of which link. An SQLite file.

Rules: a version is on disk before anybody is told of it; one process has the file for itself; a file that can't be read
or written is a StorageError, never a silent loss.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.sqlite import opened, storage_errors, transaction
from jbi_pubsub.core.values import decoder_of

from .space import HISTORY_MOST, Version

log = logging.getLogger("jbi_pubsub.policy")

TABLES: Final = {
    "version": "version INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL,"
    " toml TEXT NOT NULL",
    "fact": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
    "share": "lqm TEXT PRIMARY KEY, component TEXT NOT NULL, rates BLOB NOT NULL",
}
"""Columns of each."""
Shares = Mapping[str, tuple[str, Mapping[str, float]]]
"""By local manager: what it is called, and its shares of links, bytes a second."""


class History:
    """Safe for several threads. Each call is one transaction."""

    def __init__(self, path: Path | None) -> None:
        """Opens or makes the file, for the owner alone; None: in memory. Raises StorageError."""
        self.path = path
        self.has_fault = False
        """Whether the shares of links are not kept as they are now."""
        self._noted: Shares = {}
        self._lock = threading.Lock()
        with self._translated():
            self._base = opened(path, self._set_up, timeout=1.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        base.execute("PRAGMA locking_mode = EXCLUSIVE")  # a second manager on it would mix up two histories
        base.execute("PRAGMA synchronous = FULL")
        with transaction(base):
            found = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if found - TABLES.keys():
                raise StorageError(f"{self.path}: the tables in it are something else's", hint="Give another --state")
            for table, columns in TABLES.items():
                base.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def versions(self) -> list[Version]:
        """All that are kept, the oldest first. Raises StorageError."""
        with self._lock, self._translated():
            rows = self._base.execute("SELECT version, at, who, why, toml FROM version ORDER BY version").fetchall()
        return [Version(version=n, at=at, who=who, why=why, toml=toml) for n, at, who, why, toml in rows]

    def facts(self) -> dict[str, str]:
        """Facts that were `put`. Raises StorageError."""
        with self._lock, self._translated():
            return dict(self._base.execute("SELECT name, value FROM fact").fetchall())

    def shares(self) -> Shares:
        """Shares as they were kept last. Raises StorageError."""
        with self._lock, self._translated():
            rows = self._base.execute("SELECT lqm, component, rates FROM share").fetchall()
            return {lqm: (component, decoder_of(dict[str, float]).decode(rates)) for lqm, component, rates in rows}

    def keep(self, version: Version) -> None:
        """One more version; of too many the oldest is forgotten. Raises StorageError."""
        row = (version.version, version.at, version.who, version.why, version.toml)
        with self._lock, self._translated(), transaction(self._base) as base:
            base.execute("INSERT INTO version (version, at, who, why, toml) VALUES (?, ?, ?, ?, ?)", row)
            base.execute("DELETE FROM version WHERE version <= ?", (version.version - HISTORY_MOST,))

    def put(self, facts: Mapping[str, str]) -> None:
        """Facts by name. Raises StorageError."""
        with self._lock, self._translated(), transaction(self._base) as base:
            base.executemany("INSERT OR REPLACE INTO fact (name, value) VALUES (?, ?)", facts.items())

    def note_shares(self, shares: Shares) -> None:
        """Keep who has what from now on, where that has changed; a fault is told once."""
        if shares == self._noted:
            return
        rows = [(lqm, component, msgspec.msgpack.encode(rates)) for lqm, (component, rates) in shares.items()]
        try:
            with self._lock, self._translated(), transaction(self._base) as base:
                base.execute("DELETE FROM share")
                base.executemany("INSERT INTO share (lqm, component, rates) VALUES (?, ?, ?)", rows)
        except StorageError as exc:
            if not self.has_fault:
                log.error("shares of links are not kept: %s", exc)
            self.has_fault = True
        else:
            self.has_fault = False
            self._noted = shares

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._translated():
            self._base.close()

    def _translated(self) -> AbstractContextManager[None]:
        hint = "Check the disk and the file, and that no other manager uses it; or choose another --state"
        return storage_errors("policy history in", self.path, hint)
