"""Journal of a client, on disk: the objects that it has had of what it watches. So it goes on where it was, in another
process and in another domain, and gets nothing twice. Its application carries the file along."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import AdapterStateError, StorageError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.core.sqlite import check_tables, opened, storage_errors, transaction

log = logging.getLogger("jbi_pubsub.domains")

FORMER_SECONDS: Final = 3_600.0
"""Seconds that a registration's newest object may be older than the newest of all for more of it to be expected: so far
apart may clocks be, and so long may a link have been down. Others are over. So much earlier than the last object it is
asked for more, also of registrations that are new."""
AGAIN_SECONDS: Final = 1.0
"""Seconds before its beginning from which more is asked for."""
REGISTRATIONS_MOST: Final = 1_000
"""Registrations of one watch that are remembered; of more those with the newest objects."""
RANGES_MOST: Final = 1_000
"""Ranges of a registration's numbers while it is caught up with; of more the lower ones become one."""
ROWS_MOST: Final = 10_000
"""Rows of a watch that are written until ranges are put together."""
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS client (name TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS watch (text TEXT PRIMARY KEY, began REAL NOT NULL, since REAL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS had (text TEXT, registration TEXT, first INTEGER, last INTEGER, published REAL,
    PRIMARY KEY (text, registration, first)) WITHOUT ROWID""",
)


class ClientJournal:
    """See the module. Any thread. `_lock` covers the file."""

    def __init__(self, path: Path, client: str, *, wall: Callable[[], float] = time.time) -> None:
        """Raises StorageError: it can't be opened, another process has it open, or it is another client's."""
        self._path, self._client, self.wall = path, client, wall
        self._lock = threading.Lock()
        self._is_broken = False
        self._open: set[str] = set()
        with self._translated():
            self._base = opened(path, self._set_up, timeout=1.0)

    def _set_up(self, base: sqlite3.Connection) -> None:
        base.execute("PRAGMA locking_mode = EXCLUSIVE")  # one process at a time
        base.execute("PRAGMA journal_mode = TRUNCATE")  # all is in the one file, which is carried along
        base.execute("PRAGMA synchronous = OFF")  # it holds when the process dies, not when the machine does
        with transaction(base):
            check_tables(base, {"client", "watch", "had"}, str(self._path))
            for table in _TABLES:
                base.execute(table)
            names = [name for (name,) in base.execute("SELECT name FROM client")]
            if not names:
                base.execute("INSERT INTO client VALUES (?)", (self._client,))
            elif names != [self._client]:
                raise StorageError(
                    f"{self._path} is the journal of {str(names[0])[:80]}", hint="Each client has a file of its own"
                )

    def record(self, text: str) -> WatchRecord:
        """Record of what is watched by that text, begun now if there is none. Raises StorageError, and
        AdapterStateError while another one of it is open."""
        with self._lock, self._translated(), transaction(self._base) as base:
            if text in self._open:
                raise AdapterStateError(f"{self._client} watches that durably already", hint="unwatch() first")
            self._open.add(text)
            found = base.execute("SELECT began, since FROM watch WHERE text = ?", (text,)).fetchone()
            if found is None:
                base.execute("INSERT INTO watch VALUES (?, ?, NULL)", (text, self.wall()))
                return WatchRecord(self, text, None, {})
            had: dict[str, _Had] = {}
            rows = base.execute("SELECT registration, first, last, published FROM had WHERE text = ?", (text,))
            for registration, first, last, published in rows:
                each = had.setdefault(str(registration), _Had())
                each.numbers.add_range(int(first), int(last))
                each.published = max(each.published, float(published))
            since = _since(had, float(found[0])) if found[1] is None else float(found[1])
            base.execute("UPDATE watch SET since = ? WHERE text = ?", (since, text))
        return WatchRecord(self, text, since, had)

    def write(
        self,
        text: str,
        rows: Sequence[tuple[str, int, int, float]],
        *,
        instead: bool = False,
        since: float | None = None,
    ) -> None:
        """Note ranges of registrations, and when their last was published; `instead` of all before, where it may lack
        what was published `since` then (Unix time; None: nothing). What can't be written is logged, once."""
        try:
            with self._lock, self._translated(), transaction(self._base) as base:
                if instead:
                    base.execute("DELETE FROM had WHERE text = ?", (text,))
                    base.execute("UPDATE watch SET since = ? WHERE text = ?", (since, text))
                base.executemany("REPLACE INTO had VALUES (?, ?, ?, ?, ?)", [(text, *row) for row in rows])
        except StorageError as exc:
            if not self._is_broken:
                self._is_broken = True
                log.error("objects that %s gets from now on come again after a restart: %s", self._client, exc)

    def release(self, text: str) -> None:
        """Its record is open no more."""
        with self._lock:
            self._open.discard(text)

    def forget(self, text: str) -> None:
        """Forget what is watched no more. Raises StorageError."""
        with self._lock, self._translated(), transaction(self._base) as base:
            base.execute("DELETE FROM had WHERE text = ?", (text,))
            base.execute("DELETE FROM watch WHERE text = ?", (text,))

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        with self._lock:
            self._base.close()

    def _translated(self) -> AbstractContextManager[None]:
        hint = "Another client may have it open: close that first, or give another file"
        return storage_errors("journal", self._path, hint)


class _Had:
    """Numbers of a registration, and when the newest of their objects was published, or came, if that is earlier."""

    def __init__(self) -> None:
        self.numbers = RangeSet()
        self.published = 0.0


def _since(had: dict[str, _Had], began: float) -> float:
    """Time of publication (Unix time) from which on there may be objects that were not had: all that came until it
    ended has come in order, and publishers' clocks differ. What was published before it began is not for it, unless
    our clock was ahead of theirs then."""
    times = [each.published for each in had.values()]
    newest = max(times, default=began)
    oldest = min((each for each in times if each >= newest - FORMER_SECONDS), default=newest)
    since, began = oldest - FORMER_SECONDS, began - AGAIN_SECONDS
    if len(times) >= REGISTRATIONS_MOST:  # those before are not remembered any more
        since = max(since, min(times) - AGAIN_SECONDS)
    return max(0.0, since, began if began <= oldest else 0.0)


class WatchRecord:
    """Record of what one watch has had. For one thread at a time.

    While it catches up, the numbers of a registration come in any order, and each is remembered. Behind that they come
    in theirs, and the last one stands for all before."""

    def __init__(self, journal: ClientJournal, text: str, since: float | None, had: dict[str, _Had]) -> None:
        """Made by ClientJournal.record."""
        self._journal, self._text, self._had = journal, text, had
        self.since: Final = since
        """Time of publication (Unix time) from which on there may be objects that it has not had; None: it begins."""
        self._is_settled = since is None
        self._rows = 0
        """Written since all was written."""

    def __contains__(self, obj: InfoObject) -> bool:
        """Whether it has had it."""
        had = self._had.get(obj.platform.registration)
        return had is not None and obj.platform.sequence in had.numbers

    def add(self, obj: InfoObject) -> None:
        """Note that it has had it."""
        registration, number = obj.platform.registration, obj.platform.sequence
        had = self._had.setdefault(registration, _Had())
        had.published = max(had.published, min(obj.platform.published, self._journal.wall()))  # a clock may be ahead
        first = 1 if self._is_settled else number
        had.numbers.add_range(first, number)
        self._rows += 1
        if self._rows > ROWS_MOST:
            self._write_all()
        else:
            self._journal.write(self._text, [(registration, first, number, had.published)])

    def unsettle(self) -> None:
        """There may be more of what was published since then."""
        if self._is_settled and self.since is not None:
            self._is_settled = False
            self._write_all()

    def settle(self) -> None:
        """All that there was has come."""
        self._is_settled = True
        for had in self._had.values():
            had.numbers.add_range(1, had.numbers.top)
        self._write_all()

    def _write_all(self) -> None:
        """Instead of what was written before, as far as there is room."""
        self._rows = 0
        newest = sorted(self._had.items(), key=lambda each: each[1].published)
        self._had = dict(newest[-REGISTRATIONS_MOST:])
        rows = []
        for registration, had in self._had.items():
            if len(had.numbers) > RANGES_MOST:
                had.numbers.add_range(1, list(had.numbers)[-RANGES_MOST][1])
            rows += [(registration, first, last, had.published) for first, last in had.numbers]
        self._journal.write(self._text, rows, instead=True, since=None if self._is_settled else self.since)

    def close(self) -> None:
        """Nothing is noted in it any more."""
        self._journal.release(self._text)

    def forget(self) -> None:
        """Forget what is watched no more. Raises StorageError."""
        self.close()
        self._journal.forget(self._text)
