"""The mail queue on disk, in one SQLite file.

Rules: mail by the thousand in one transaction (WAL, synchronous=FULL); times are wall-clock times there and are told
by the caller, anew when the clock was set; a file that can't be read or written is a StorageError, never a silent loss.
No mail takes the room that it takes to note that all mail has been sent; what has been sent gives its room back.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.sqlite import check_tables, opened, storage_errors, transaction
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wall_clock import SLACK
from jbi_pubsub.pad.mail.journal import Changes
from jbi_pubsub.pad.mail.letters import Ledger, Letter
from jbi_pubsub.pad.mail.message import Content

MAIL_VERSION: Final = 1
"""Version of the mail queue's tables (SQLite user_version)."""

SPARE_BYTES: Final = 1 << 20
"""Room on the disk that new mail leaves, beside twice what is to be moved into the file: to move it, and to take mail
out."""
FREE_PAGES: Final = 256
"""Free pages of the file, of 4 KiB, below which it is left as large as it is."""
WAL_BYTES: Final = 4 << 20
"""Size that SQLite's log is cut to when all of it is in the file."""

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
        self._offset: float | None = None
        """The one that the times in the file have; None: not told yet."""
        with self._translated():
            self._base = opened(path, self._set_up, timeout=1.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        """An existing file is not written: its disk may be full."""
        base.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        if base.execute("PRAGMA page_count").fetchone() == (0,):
            base.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"journal_size_limit={WAL_BYTES}"):
            base.execute(f"PRAGMA {pragma}").fetchall()
        with transaction(base):
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version not in (0, MAIL_VERSION):
                raise StorageError(
                    f"mail queue {self.path} is of version {version}, not {MAIL_VERSION}", hint="Move it away"
                )
            check_tables(base, {"contents", "letters", "ledgers"}, f"mail queue {self.path}")
            if not version:
                base.execute(f"PRAGMA user_version={MAIL_VERSION}")
            for table in _MAIL_TABLES.split(";"):
                base.execute(table)

    def load(self, offset: float) -> KeptMail:
        """All that is there; our clock + `offset` is seconds since the epoch. Raises StorageError."""
        self._offset = offset
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
                letter = Letter(number, uid, contents[content], tuple(recipients.split()), queued - offset, tries)
                letters.setdefault(uid, []).append(letter)
                first = max(first, number + 1)
            ledgers = {
                uid: decoder_of(Ledger).decode(ledger)
                for uid, ledger in self._base.execute("SELECT uid, ledger FROM ledgers")
            }
        return KeptMail(letters, ledgers, first)

    def commit(self, changes: Changes, offset: float) -> None:
        """Write them in one transaction, all or nothing; where `offset` is another one, the wall clock was set: the
        times that are there are set with it. Raises StorageError."""
        with self._translated():
            size = sum({x.content.number: len(x.content.data) for x in changes.letters}.values())
            if changes.letters and (why := self.lack(size)):
                raise StorageError(f"mail queue in {self.path}: {why}", hint="Free some space", path=str(self.path))
            self._write(changes, offset)
            if self._offset is None or abs(offset - self._offset) > SLACK:
                self._offset = offset
            if changes.dropped:
                self._give_back()

    def lack(self, size: int = 0) -> str:
        """Why there is no room for mail of so many bytes; "" if there is. Raises OSError."""
        log, disk = self.path.with_name(f"{self.path.name}-wal"), os.statvfs(self.path)
        left, waiting = disk.f_frsize * disk.f_bavail, log.stat().st_size if log.exists() else 0
        if left < 2 * (waiting + size) + SPARE_BYTES:
            return f"{left / 2**20:.1f} MiB of the disk are left, too little for more mail"
        return ""

    def _give_back(self) -> None:
        """Give free pages back to the disk, where they are the half of the file or more."""
        (free,), (pages,) = (self._base.execute(f"PRAGMA {what}_count").fetchone() for what in ("freelist", "page"))
        if free >= max(FREE_PAGES, pages // 2):
            self._base.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")

    def _write(self, changes: Changes, offset: float) -> None:
        contents = {x.content.number: x.content for x in changes.letters}
        with transaction(self._base):
            many = self._base.executemany
            shift = offset - self._offset if self._offset is not None else 0.0
            if abs(shift) > SLACK:
                self._base.execute("UPDATE letters SET queued = queued + ?", (shift,))
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

    def _translated(self) -> AbstractContextManager[None]:
        return storage_errors("mail queue in", self.path, "Check the disk and the file; another delegate may use it")
