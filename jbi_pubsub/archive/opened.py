"""A query that is open at the archive: what its worker has found and nobody has taken, and how much more may come.

Credits are counted here, so that a worker finds no more than is wanted soon. It outlives workers: the next one goes on
behind the last result.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any, Final

import msgspec

from jbi_pubsub.archive.desk import Ask, Drop, More
from jbi_pubsub.archive.desk import Results as FoundSome
from jbi_pubsub.core.history import Progress, QueryResult

PAGE: Final = 256
PAGE_BYTES: Final = 1 << 20
"""Results of a query that are there to take, or on their way; of bytes one object more."""
DEATHS_MOST: Final = 3
"""Times that the worker may die on a query that gets no further meanwhile."""


class OpenQuery:
    """`keeping.Results`: what was found and not taken, and how much more may come. Any thread."""

    def __init__(self, ask: Ask, wake: Callable[[], None], tell: Callable[[Any], None]) -> None:
        self.ask = ask
        self._wake = wake
        self._tell = tell
        self._gone: set[int] = set()
        """Positions that were deleted since it was opened: they may have been found before."""
        self._lock = threading.Lock()
        self._waiting: deque[QueryResult] = deque()
        self._size = 0
        self._owed = self._owed_size = 0
        """Taken, and not told to the worker."""
        self._last = 0
        """Position of the last result that has come."""
        self._before = Progress()
        """Progress when the worker died."""
        self._progress = Progress(end=ask.end)
        self._deaths = 0

    @property
    def is_over(self) -> bool:
        """Nothing more comes, and nothing is there to take."""
        return self._progress.state != "running" and not self._waiting

    def take(self, count: int, size: int) -> list[QueryResult]:
        """See Results."""
        found: list[QueryResult] = []
        with self._lock:
            while self._waiting and count > 0 and (size > 0 or not found):
                each = self._waiting.popleft()
                length = len(each.data)
                self._size -= length
                self._owed += 1
                self._owed_size += length
                if each.position not in self._gone:
                    found.append(each)
                    count -= 1
                    size -= length
            more = None
            if self._progress.state == "running" and (
                not self._waiting or self._owed >= PAGE // 2 or self._owed_size >= PAGE_BYTES // 2
            ):
                more = More(self.ask.number, self._owed, self._owed_size)
                self._owed = self._owed_size = 0
        if more is not None and (more.count or more.size):
            self._tell(more)
        return found

    def progress(self) -> Progress:
        """See Results."""
        return self._progress

    def cancel(self) -> None:
        """See Results."""
        with self._lock:
            was_running = self._progress.state == "running"
            if was_running:
                self._progress = msgspec.structs.replace(self._progress, state="cancelled")
            self._waiting.clear()
        if was_running:
            self._tell(Drop(self.ask.number))

    def came(self, results: FoundSome) -> None:
        """The worker has found some."""
        with self._lock:
            if self._progress.state != "running":
                return
            if results.found:
                self._last, self._deaths = results.found[-1][0], 0
            self._waiting.extend(QueryResult(*each) for each in results.found)
            self._size += sum([len(each[2]) for each in results.found])
            before, now = self._before, results.progress
            self._progress = msgspec.structs.replace(
                now,
                matched=before.matched + now.matched,
                candidates=before.candidates + now.candidates,
                verified=before.verified + now.verified,
                seconds=before.seconds + now.seconds,
            )
        self._wake()

    def again(self) -> list[Ask | More]:
        """Messages for a new worker, so that it goes on where the one that died was; nothing if too many have died."""
        with self._lock:
            if self._progress.state != "running":
                return []
            self._deaths += 1
            if self._deaths > DEATHS_MOST:
                error = f"the archive's worker has died {self._deaths} times on it"
                self._progress = msgspec.structs.replace(self._progress, state="failed", error=error)
                return []
            self._before = self._progress
            self._owed = self._owed_size = 0
            return [self._resumed(), More(self.ask.number, *self._left())]

    def told(self) -> None:
        """Have whoever asks look, if it has failed."""
        if self._progress.state == "failed":
            self._wake()

    def lose(self, positions: Container[int]) -> None:
        """These go, and are in no result that comes after this."""
        with self._lock:
            self._gone.update(each.position for each in self._waiting if each.position in positions)

    def deleted(self, positions: Iterable[int]) -> None:
        """These are in no answer any more."""
        with self._lock:
            self._gone.update(positions)

    def fail(self, why: str) -> None:
        """Note that it will not get on any more."""
        with self._lock:
            if self._progress.state != "running":
                return
            self._progress = msgspec.structs.replace(self._progress, state="failed", error=why)
        self._wake()

    def _left(self) -> tuple[int, int]:
        """Results and bytes that may come before something is taken."""
        return max(0, PAGE - len(self._waiting)), max(0, PAGE_BYTES - self._size)

    def _resumed(self) -> Ask:
        """The query for what has not come yet."""
        ask, query, last = self.ask, self.ask.query, self._last
        if not last or self.ask.count_only:
            self._before = Progress()
            return ask
        if query.order == "newest" and query.latest_by:  # what is the newest of a key is known by those before alone
            self._before = Progress()
            return msgspec.structs.replace(ask, beyond=last)
        limit = query.limit - self._before.matched if query.limit else 0
        part = {"up_to": last - 1} if query.order == "newest" else {"after": last}
        return msgspec.structs.replace(ask, query=msgspec.structs.replace(query, limit=limit, **part))
