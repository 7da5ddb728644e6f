"""Where queries are answered and what was kept is indexed, in small steps: by a process of its own, or a thread.

Rules:
- A query gets on when somebody takes its results, and no further: what was found and not taken is bounded by what was
  asked for (`More`). Queries get on in turn.
- Indexing and answering share the time; where nobody asks, all of it is for indexing.
- An index that can't be opened or written is done without, and tried again: the same answers, later.
- Positions that are deleted are in no answer from the moment on that this is told of them.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.archive.catalogue import Lost
from jbi_pubsub.archive.folder import INDEX
from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.query import Cursor, explained
from jbi_pubsub.archive.store import VolumeStore
from jbi_pubsub.archive.upkeep import EndedError, Free, Going, Retain, Upkeep
from jbi_pubsub.archive.volume import LogVolume, Record
from jbi_pubsub.core.errors import ConfigurationError, ErrorReport, JbiError, StorageError, report
from jbi_pubsub.core.guard import note
from jbi_pubsub.core.history import Explanation, HistoryQuery, Progress, QueryResult

log = logging.getLogger("jbi_pubsub.archive")

INDEX_ROWS: Final = 2_048
INDEX_BYTES: Final = 8 << 20
"""Taken in at a time: a query that comes meanwhile waits some 60 ms."""
INDEX_ROWS_BESIDE: Final = 512
"""While somebody asks."""
INDEX_SECONDS: Final = 0.5
"""Seconds that fewer than INDEX_ROWS wait for more."""
FORGET_AT_ONCE: Final = 100_000
IDLE_SECONDS: Final = 0.2
"""Between two looks at what there may be to do."""
INDEX_AGAIN: Final = 30.0
"""Seconds until an index that could not be used is tried again, at most."""
LACKS_TOLD: Final = 3
"""Damages that a query names."""
BATCH_BYTES: Final = 1 << 20
"""Bytes of results that are told at once."""


# -- what it is told ------------------------------------------------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, tag=True):
    """Setup of a desk. `memory`: bytes for the index, `columns` of it; 0: no index."""

    folder: str
    archive: bytes
    end: int
    columns: int
    memory: int
    metadata: str = "deflated"
    payloads: str = "file"
    """Names of the stores of packs."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A query, of objects up to position `end`. `beyond`: results were given up to that one already, and those do not
    come again; 0: none."""

    number: int
    query: HistoryQuery
    end: int
    count_only: bool = False
    beyond: int = 0


class More(msgspec.Struct, frozen=True, tag=True):
    """So many more results, and bytes of them, may be told of a query."""

    number: int
    count: int
    size: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """A query is over."""

    number: int


class Explain(msgspec.Struct, frozen=True, tag=True):
    """Request to explain how a query would be answered. `objects`: how many there are, about."""

    number: int
    query: HistoryQuery
    end: int
    objects: int


class Synced(msgspec.Struct, frozen=True, tag=True):
    """Position up to which the log is on disk."""

    position: int


class Deleted(msgspec.Struct, frozen=True, tag=True):
    """Objects that are deleted."""

    positions: tuple[int, ...]


class Rebuild(msgspec.Struct, frozen=True, tag=True):
    """Make the index anew."""


# -- what it tells --------------------------------------------------------------------------------------------------


class Results(msgspec.Struct, frozen=True, tag=True):
    """Results of a query: (position, received, data) of some, and its progress."""

    number: int
    found: tuple[tuple[int, float, bytes], ...]
    progress: Progress


class ExplainReply(msgspec.Struct, frozen=True, tag=True):
    """An answer to Explain."""

    number: int
    explanation: Explanation | None
    error: ErrorReport | None = None


class Indexed(msgspec.Struct, frozen=True, tag=True):
    """State of the index: how far it is; why there is none, or it is being made anew."""

    position: int
    size: int
    trouble: str = ""
    troubles: tuple[str, ...] = ()
    """Troubles of volumes."""


class _DeskQuery:
    """A query on its way."""

    def __init__(self, ask: Ask, cursor: Cursor) -> None:
        self.ask = ask
        self.cursor = cursor
        self.count = self.size = 0
        """Results that may be told still, and their bytes."""
        self.seconds = 0.0
        self.told = Progress()

    @property
    def may_go_on(self) -> bool:
        return self.count > 0 and self.size > 0


class Desk:
    """See the module. One thread."""

    def __init__(self, setup: Setup, tell: Callable[[Any], None]) -> None:
        """Opens nothing yet. `tell` is called by the thread that steps and by upkeep's; it may wait."""
        self._setup = setup
        self._tell = tell
        self._store = VolumeStore(Path(setup.folder), setup.archive)
        self._index: DuckIndex | None = None
        self._synced = setup.end
        self._seen = -1
        """As far as the store knows."""
        self._queries: dict[int, _DeskQuery] = {}
        self._turn: list[int] = []
        self._deleted: set[int] = set()
        self._forgotten: set[int] = set()
        """Those of them that the index has been told."""
        self._waits_since = 0.0
        self._index_at = 0.0
        """When it may be looked at next (monotonic seconds)."""
        self._index_pause = 0.5
        self._why_none = ""
        self._told = Indexed(-1, 0)
        self.wake: Callable[[], None] = lambda: None
        """Has whoever waits for messages call `step`. Any thread."""
        self._calls: deque[tuple[Future[None], Callable[[], None]]] = deque()
        """Calls that upkeep wants to have done."""
        self._is_closed = False
        self._upkeep = Upkeep(
            Path(setup.folder), setup.archive, tell, self._call, metadata=setup.metadata, payloads=setup.payloads
        )
        self._upkeep.forget, self._upkeep.lose, self._upkeep.went = self.forget, self.lose, self.went
        self._upkeep.deleted = self._deleted

    def take(self, message: object) -> None:
        """Do as one of the messages above says, soon. Others are none of a desk's."""
        match message:
            case Ask():
                self._ask(message)
            case More(number, count, size):
                if (known := self._queries.get(number)) is not None:
                    known.count += count
                    known.size += size
            case Drop(number):
                self._queries.pop(number, None)
            case Explain():
                self._explain(message)
            case Synced(position):
                self._synced = max(self._synced, position)
            case Deleted(positions):
                self._deleted.update(positions)
            case Retain() | Free():
                self._upkeep.take(message)
            case Rebuild():
                self._rebuild("it was asked for")

    def begin(self) -> None:
        """Open what there is to be opened."""
        self._refresh(self._synced)
        self._upkeep.start()
        self.step()

    def step(self) -> float:
        """Do some of what there is to do; seconds until there may be more, 0 if there is now."""
        while self._calls:
            done, what = self._calls.popleft()
            try:
                what()
            except StorageError as exc:
                done.set_exception(exc)
            finally:
                if not done.done():
                    done.set_result(None)
        is_busy = False
        for number in list(self._queries):
            query = self._queries.get(number)
            if query is not None and query.may_go_on:
                is_busy = True
                self._go_on(number, query)
        now = time.monotonic()
        if not self._setup.memory:
            return 0.0 if is_busy else IDLE_SECONDS
        if now < self._index_at:
            return 0.0 if is_busy else min(IDLE_SECONDS, self._index_at - now)
        pause = self._index_some(now, INDEX_ROWS_BESIDE if is_busy else INDEX_ROWS)
        if is_busy:
            self._index_at = time.monotonic() + max(pause, time.monotonic() - now)
            return 0.0
        return pause

    def forget(self, positions: Iterable[int]) -> None:
        """Take objects out of the index, before they go from the disk: what it counts is there. Raises StorageError."""
        these = positions if isinstance(positions, range) else sorted(positions)
        if not these or not self._setup.memory:
            return
        if self._index is None:  # one that nobody could tell is made anew
            shutil.rmtree(Path(self._setup.folder) / INDEX, ignore_errors=True)
            return
        try:
            for start in range(0, len(these), FORGET_AT_ONCE):
                self._index.forget(these[start : start + FORGET_AT_ONCE])
        except StorageError as exc:  # on a full disk nothing would ever go
            self._rebuild(str(exc))

    def lose(self, positions: Iterable[int], lost: tuple[Lost, ...]) -> None:
        """Take objects out of the index and all answers, and tell of it, before they go. Raises StorageError."""
        self.forget(positions)
        self._deleted.update(positions)
        for query in self._queries.values():
            query.cursor.drop_gone()
        self._tell(Going(tuple(positions), lost))

    def went(self, positions: Iterable[int]) -> None:
        """These are on disk no more."""
        self._store.refresh(self._seen)
        self._deleted.difference_update(positions)
        self._forgotten.intersection_update(self._deleted)

    def close(self) -> None:
        """Close all files."""
        self._is_closed = True
        self._upkeep.close()
        self._queries.clear()
        self._store.close()
        self._close_index()

    def _call(self, what: Callable[[], None]) -> None:
        """Have something done by the desk's thread. Raises what that raises; EndedError when the desk is closed."""
        done = Future[None]()
        self._calls.append((done, what))
        self.wake()
        while True:
            with suppress(TimeoutError):
                return done.result(0.1)
            if self._is_closed:
                raise EndedError

    # -- queries ------------------------------------------------------------------------------------------------

    def _ask(self, ask: Ask) -> None:
        self._synced = max(self._synced, ask.end)
        try:
            self._refresh(ask.end)
            cursor = Cursor(ask.query, self._store, self._index, ask.end, gone=self._deleted, count_only=ask.count_only)
        except (JbiError, OSError) as exc:
            self._tell(Results(ask.number, (), Progress(state="failed", error=str(exc))))
            return
        self._queries[ask.number] = _DeskQuery(ask, cursor)

    def _go_on(self, number: int, query: _DeskQuery) -> None:
        """One step of a query."""
        started = time.monotonic()
        try:
            found = query.cursor.step(query.count, min(query.size, BATCH_BYTES))
        except Exception as exc:  # noqa: BLE001  # a query must not end all others
            note("archive query", exc)
            query.cursor.cancel("failed", f"{type(exc).__name__}: {exc}")
            found = []
        query.seconds += time.monotonic() - started
        if query.ask.beyond:
            found = [each for each in found if not _was_given(each.position, query.ask)]
        query.count -= len(found)
        query.size -= sum([len(each.data) for each in found])
        progress = msgspec.structs.replace(query.cursor.progress, seconds=query.seconds)
        if progress.state == "finished":
            progress = msgspec.structs.replace(progress, error=self._lacks(query.ask))
        if found or progress.state != "running" or progress.done != query.told.done:
            query.told = progress
            self._tell(Results(number, tuple(map(_plain, found)), progress))
        if progress.state != "running":
            del self._queries[number]

    def _lacks(self, ask: Ask) -> str:
        """Why what a query has found is incomplete; "" if it is not."""
        lost = self._store.lacks(ask.query.after, min(ask.query.up_to, ask.end))
        more = f"; and {len(lost) - LACKS_TOLD} more" if len(lost) > LACKS_TOLD else ""
        return "incomplete: " + "; ".join(lost[:LACKS_TOLD]) + more if lost else ""

    def _explain(self, message: Explain) -> None:
        try:
            self._refresh(message.end)
            found = explained(message.query, self._index, message.end, objects=message.objects)
        except JbiError as exc:
            self._tell(ExplainReply(message.number, None, report(exc)))
        else:
            self._tell(ExplainReply(message.number, found))

    # -- volumes and index --------------------------------------------------------------------------------------

    def _refresh(self, up_to: int) -> None:
        if up_to <= self._seen:
            return
        self._store.refresh(up_to)
        self._seen = up_to
        for volume in self._store.volumes:
            if isinstance(volume, LogVolume) and volume.deleted:
                self._deleted.update(volume.deleted)

    def _index_some(self, now: float, rows: int) -> float:
        """Take in what has come. Seconds until there may be more."""
        try:
            if self._index is None:
                self._open_index()
            return self._take_in(now, rows)
        except (ConfigurationError, StorageError) as exc:
            self._index_pause = min(2 * self._index_pause, INDEX_AGAIN)
            if self._index is not None and self._index_pause >= INDEX_AGAIN / 2:
                self._rebuild(str(exc))
            self._index_at = now + self._index_pause
            if str(exc) != self._why_none:
                log.error("the archive's index can't be used, queries are answered without it: %s", exc)
            self._why_none = str(exc)
            self._tell_index()
            return IDLE_SECONDS

    def _take_in(self, now: float, rows: int) -> float:
        index = self._index
        assert index is not None
        behind = index.position
        if self._deleted - self._forgotten:
            self.forget(self._deleted - self._forgotten)
            self._forgotten = set(self._deleted)
        if behind >= self._synced:
            self._waits_since = 0.0
            self._tell_index()
            return IDLE_SECONDS
        self._refresh(self._synced)
        records, is_whole = self._behind(behind, rows)
        if is_whole and len(records) < rows:
            self._waits_since = self._waits_since or now
            if now - self._waits_since < INDEX_SECONDS:
                return INDEX_SECONDS - (now - self._waits_since)
        self._waits_since = 0.0
        up_to = self._synced if is_whole else records[-1].position
        index.add((each for each in records if each.position not in self._deleted), up_to)
        self._index_pause, self._why_none = 0.5, ""
        self._tell_index()
        return 0.0

    def _behind(self, position: int, rows: int) -> tuple[list[Record], bool]:
        """Some objects behind a position, and whether these are all."""
        records: list[Record] = []
        size = 0
        for record in self._store.read(position, self._synced):
            if len(records) >= rows or size >= INDEX_BYTES:
                return records, False
            records.append(record)
            size += len(record.data)
        return records, True

    def _open_index(self) -> None:
        setup = self._setup
        index = DuckIndex(
            Path(setup.folder) / INDEX, setup.archive, self._synced, columns=setup.columns, memory=setup.memory
        )
        self._index = index
        self._forgotten = set()
        if index.why_anew:
            log.warning("the archive's index is built again: %s", index.why_anew)

    def _rebuild(self, why: str) -> None:
        log.warning("the archive's index is built again: %s", why)
        self._told = Indexed(-1, 0)  # whoever waits for it hears of it, also when it ends where it was
        if self._index is not None:
            try:
                self._index.drop()
            except StorageError as exc:
                log.error("the archive's index could not be deleted: %s", exc)
                self._close_index()
        self._index_at = 0.0

    def _close_index(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _tell_index(self) -> None:
        index = self._index
        position = index.position if index is not None else 0
        troubles = tuple(self._store.troubles[:100])
        if (position, self._why_none, troubles) != (self._told.position, self._told.trouble, self._told.troubles):
            size = index.size if index is not None else 0
            self._told = Indexed(position, size, self._why_none, troubles)
            self._tell(self._told)


def _plain(found: QueryResult) -> tuple[int, float, bytes]:
    return found.position, found.received, bytes(found.data)


def _was_given(position: int, ask: Ask) -> bool:
    return position >= ask.beyond if ask.query.order == "newest" else position <= ask.beyond
