"""SQLite files of servers: opened once, with their own tables alone, changed in transactions."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jbi_pubsub.core.errors import StorageError


def opened(path: Path | None, set_up: Callable[[sqlite3.Connection], None], *, timeout: float) -> sqlite3.Connection:
    """The file, made for the owner alone (SQLite gives its log the same mode) and set up; None: one in memory. Raises
    OSError, sqlite3.Error and StorageError; it is closed then."""
    if path is not None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    base = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=timeout)
    try:
        set_up(base)
    except (sqlite3.Error, StorageError):
        base.close()
        raise
    return base


@contextmanager
def transaction(base: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield base
        base.execute("COMMIT")
    finally:
        if base.in_transaction:  # something failed, or the commit itself; SQLite has rolled back after some errors
            base.execute("ROLLBACK")


@contextmanager
def storage_errors(what: str, path: Path | None, hint: str) -> Iterator[None]:
    """Whatever a file, or what is in it, fails with is a StorageError that says `what` is in it; ours stay as they
    are."""
    try:
        yield
    except StorageError:
        raise  # is an OSError, and says all of it already
    except (sqlite3.Error, OSError, KeyError, ValueError) as exc:  # msgspec's are ValueErrors
        raise StorageError(f"{what} {path}: {exc}", hint=hint, path=str(path)) from exc


def check_tables(base: sqlite3.Connection, ours: set[str], what: str) -> None:
    """Raises StorageError for a file that holds something else's tables."""
    found = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if found - ours:
        raise StorageError(f"{what}: the tables in it are something else's", hint="Give another file")
