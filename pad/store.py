"""What a delegate keeps over restarts: its e-mail subscriptions and its mail queue, each in one SQLite file.

Rules: a subscription is on disk before it is acknowledged (WAL, synchronous=FULL), mail by the thousand in one
transaction; times are wall-clock times there and are told by the caller; a file that can't be read or written is a
StorageError, never a silent loss. Two files, so that neither waits for the other's disk writes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.pad.message import Content
from jbi_pubsub.pad.outbox import Changes, Ledger, Letter
from jbi_pubsub.pad.subscription import SubscriptionRequest

MAIL_VERSION: Final = 1
"""Version of the mail queue's tables (SQLite user_version)."""

_MAIL_TABLES: Final = """
CREATE TABLE IF NOT EXISTS contents (
    number INTEGER PRIMARY KEY, object TEXT NOT NULL, type TEXT NOT NULL, subject TEXT NOT NULL, data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS letters (
    number INTEGER PRIMARY KEY, uid TEXT NOT NULL, content INTEGER NOT NULL,
    recipients TEXT NOT NULL, queued REAL NOT NULL, tries INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS ledgers (uid TEXT PRIMARY KEY, ledger BLOB NOT NULL) WITHOUT ROWID
"""


class Kept(msgspec.Struct, frozen=True):
    """An e-mail subscription on disk; `ends` is when its lease does, in seconds since the epoch."""

    request: SubscriptionRequest
    lease_id: str
    ends: float


class SubscriptionStore:
    """Safe for several threads. Each call is one transaction."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, for the owner alone: lease ids are secrets. Raises StorageError."""
        self.path = path
        self._lock = threading.Lock()
        with self._translated():
            self._base = _opened(path, self._set_up, timeout=5.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=FULL")
        _check_tables(base, {"mail"}, f"e-mail subscriptions in {self.path}")
        base.execute(
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
        except (OSError, sqlite3.Error, msgspec.DecodeError) as exc:
            raise StorageError(
                f"e-mail subscriptions in {self.path}: {exc}",
                hint="Check the disk and the file, or choose another [pad] state",
                path=str(self.path),
            ) from exc


class KeptMail(msgspec.Struct, frozen=True):
    """A mail queue on disk: letters in order and ledgers, by subscription; numbers from `first` on are free."""

    letters: dict[str, list[Letter]]
    ledgers: dict[str, Ledger]
    first: int


class MailStore:
    """The mail queue on disk. One process has the file for itself: two would send everything twice.

    `load` once, first; then one thread calls `commit`. The content of a mail is there once for all its subscriptions.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, for the owner alone: there is mail in it. Raises StorageError."""
        self.path = path
        with self._translated():
            self._base = _opened(path, self._set_up, timeout=1.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL"):
            base.execute(f"PRAGMA {pragma}").fetchall()
        with _transaction(base):
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version not in (0, MAIL_VERSION):
                raise StorageError(
                    f"mail queue {self.path} is of version {version}, not {MAIL_VERSION}", hint="Move it away"
                )
            _check_tables(base, {"contents", "letters", "ledgers"}, f"mail queue {self.path}")
            base.execute(f"PRAGMA user_version={MAIL_VERSION}")
            for table in _MAIL_TABLES.split(";"):
                base.execute(table)

    def load(self, offset: float) -> KeptMail:
        """All that is there; our clock + `offset` is seconds since the epoch. Raises StorageError."""
        with self._translated():
            contents = {
                row[0]: Content(*row)
                for row in self._base.execute("SELECT number, object, type, subject, data FROM contents")
            }
            rows = self._base.execute(
                "SELECT number, uid, content, recipients, queued, tries FROM letters ORDER BY number"
            )
            letters: dict[str, list[Letter]] = {}
            first = 1 + max(contents, default=0)
            for number, uid, content, recipients, queued, tries in rows:
                letter = Letter(
                    number, uid, contents[content], tuple(recipients.split()), queued - offset, tries, durable=True
                )
                letters.setdefault(uid, []).append(letter)
                first = max(first, number + 1)
            ledgers = {
                uid: msgspec.msgpack.decode(ledger, type=Ledger)
                for uid, ledger in self._base.execute("SELECT uid, ledger FROM ledgers")
            }
        return KeptMail(letters, ledgers, first)

    def commit(self, changes: Changes, offset: float) -> None:
        """Write them in one transaction, all or nothing. Raises StorageError."""
        contents = {x.content.number: x.content for x in changes.letters}
        with self._translated(), _transaction(self._base):
            many = self._base.executemany
            many("DELETE FROM letters WHERE number = ?", ((n,) for n in changes.deleted))
            many("DELETE FROM contents WHERE number = ?", ((n,) for n in changes.dropped))
            many("DELETE FROM ledgers WHERE uid = ?", ((uid,) for uid in changes.forgotten))
            many(
                "INSERT OR IGNORE INTO contents VALUES (?, ?, ?, ?, ?)",
                ((c.number, c.object_id, c.type_name, c.subject, c.data) for c in contents.values()),
            )
            many(
                "INSERT INTO letters VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (x.number, x.uid, x.content.number, " ".join(x.recipients), x.queued + offset, x.tries)
                    for x in changes.letters
                ),
            )
            many(
                "UPDATE letters SET recipients = ?, tries = ? WHERE number = ?",
                ((" ".join(x.recipients), x.tries, x.number) for x in changes.updated),
            )
            many(
                "INSERT OR REPLACE INTO ledgers VALUES (?, ?)",
                ((uid, msgspec.msgpack.encode(ledger)) for uid, ledger in changes.ledgers.items()),
            )

    def close(self) -> None:
        """Give free pages back, and close the file. Raises StorageError."""
        with self._translated():
            try:
                self._base.executescript("PRAGMA incremental_vacuum")
            finally:
                self._base.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except (sqlite3.Error, OSError, KeyError, ValueError) as exc:  # msgspec's are ValueErrors
            raise StorageError(
                f"mail queue in {self.path}: {exc}",
                hint="Check the disk and the file; another delegate may use it",
                path=str(self.path),
            ) from exc


def _opened(path: Path, set_up: Callable[[sqlite3.Connection], None], *, timeout: float) -> sqlite3.Connection:
    """The file, made for the owner alone (SQLite gives its log the same mode) and set up. Raises OSError, sqlite3.Error
    and StorageError; it is closed then."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    base = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=timeout)
    try:
        set_up(base)
    except (sqlite3.Error, StorageError):
        base.close()
        raise
    return base


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
        base.execute("COMMIT")
    finally:
        if base.in_transaction:  # something failed, or the commit itself
            base.execute("ROLLBACK")


def _check_tables(base: sqlite3.Connection, ours: set[str], what: str) -> None:
    """Raises StorageError for a file that holds something else's tables."""
    found = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if found - ours:
        raise StorageError(f"{what}: the tables in it are something else's", hint="Give another file")
