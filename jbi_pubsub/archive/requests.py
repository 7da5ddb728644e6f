"""Requests to the worker of an archive: open queries, questions that wait for an answer, positions that are deleted;
and all of it again for the worker that comes after one that died.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any, Final, TypeVar

import msgspec

from jbi_pubsub.archive.desk import Ask, Deleted, Explain, ExplainReply, Indexed, More, Rebuild, Setup, Synced
from jbi_pubsub.archive.desk import Results as FoundSome
from jbi_pubsub.archive.log import Log
from jbi_pubsub.archive.opened import PAGE, PAGE_BYTES, OpenQuery
from jbi_pubsub.archive.upkeep import AGAIN_SECONDS, Applied, Free, Going, Retain, Retained, Stored
from jbi_pubsub.archive.worker import Asked, ProcessWorker, ThreadWorker, Told
from jbi_pubsub.core.errors import BackPressureError, StorageError, rebuild, report
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import Explanation, HistoryQuery

EXPLAIN_SECONDS: Final = 20.0
UNINDEXED_MOST: Final = 1_000
"""Objects that may come before a worker process is started for them alone: a query reads these in a moment."""

_Answer = TypeVar("_Answer", ExplainReply, Retained)


class WorkerRequests:
    """A worker, and what it is asked. Any thread."""

    def __init__(
        self,
        setup: Setup,
        log: Log,
        hear: Callable[[Stored | Going | Retained], None],
        *,
        deleted: set[int],
        lock: int | None,
        sealed: int,
        max_queries: int,
    ) -> None:
        """`setup`: its `end` is the log's whenever a worker starts. `hear` is told, by the worker's thread, of what
        lies on disk, and of what was given up where nobody waits for that. `deleted`: positions of what lies there
        and is in no answer. `lock`: the locked file of the folder, for a worker that is a process, which is started
        when there is something to do; None: it is a thread. `sealed`: the last position that lies in a pack."""
        self._setup = setup
        self._log = log
        self._hear_of = hear
        self._max_queries = max_queries
        self._lock = threading.Lock()
        self._queries: dict[int, OpenQuery] = {}
        self._questions: dict[int, Future[ExplainReply | Retained]] = {}
        self._number = itertools.count(1)
        self._deleted = deleted
        """Positions of what is deleted, and on disk still."""
        self._free_at = 0.0
        """When room may be made: not while it is being made, nor soon after that has failed (monotonic seconds)."""
        self._starts = 0
        self._told = 0 if lock is None else sealed
        """Position up to which the worker knows the log to be on disk, or knew before it put that into packs."""
        self.indexed = Indexed(self._told, 0)
        self._is_closed = False
        self._worker: ProcessWorker | ThreadWorker
        if lock is not None:
            self._worker = ProcessWorker(self._begin, self._hear, self._again, lock=lock)
        else:
            self._worker = ThreadWorker(self._begin(), self._hear)

    def open(self, query: HistoryQuery, wake: Callable[[], None], *, count_only: bool) -> OpenQuery:
        """See Keeping.open."""
        with self._lock:
            self._clear()
            if len(self._queries) >= self._max_queries:
                raise BackPressureError(
                    f"{self._max_queries} queries of the archive are open",
                    hint="Wait for some to end, or close them; see [archive] max_queries",
                )
            self._check_open()
            number = next(self._number)
            opened = OpenQuery(Ask(number, query, self._log.synced, count_only), wake, self._worker.tell)
            self._queries[number] = opened
            self._worker.tell(opened.ask)
            self._worker.tell(More(number, PAGE, PAGE_BYTES))
        return opened

    def explain(self, query: HistoryQuery, objects: int) -> Explanation:
        """See Keeping.explain. `objects`: how many there are, about."""
        answer = self._ask(
            lambda number: Explain(number, query, self._log.synced, objects), ExplainReply, EXPLAIN_SECONDS
        )
        assert answer.explanation is not None
        return answer.explanation

    def retain(self, request: Retain, timeout: float) -> Retained:
        """Have objects given up, and wait for the answer. Raises StorageError."""
        return self._ask(lambda number: msgspec.structs.replace(request, number=number), Retained, timeout)

    def retain_soon(self, request: Retain) -> None:
        """Have objects given up; `hear` is told what went."""
        self._worker.tell(request)

    def free(self, request: Free) -> None:
        """Have the oldest volumes given up, unless that is being done or has just failed; `hear` is told what went."""
        with self._lock:
            if time.monotonic() < self._free_at:
                return
            self._free_at = inf
        self._worker.tell(request)

    def rebuild(self) -> None:
        """Have the index made anew."""
        with self._lock:
            self._check_open()
            self.indexed = Indexed(0, 0, "it is being built again")
            self._worker.tell(Rebuild())

    def delete(self, positions: Sequence[int]) -> None:
        """These are in no answer from now on."""
        with self._lock:
            self._deleted.update(positions)
            for query in self._queries.values():
                query.deleted(positions)
            self._worker.tell(Deleted(tuple(positions)))

    def lose(self, positions: Sequence[int]) -> None:
        """The worker finds these no more: what it has found of them goes, too."""
        gone = frozenset(positions)
        with self._lock:
            for query in self._queries.values():
                query.lose(gone)

    def tell_synced(self) -> None:
        """Let the worker index what is on disk."""
        synced = self._log.synced
        is_there = self._starts > 0 or isinstance(self._worker, ThreadWorker)
        least = 1 if is_there or self._log.begun > 1 else UNINDEXED_MOST
        if synced >= self._told + least:
            self._told = synced
            self._worker.tell(Synced(synced))

    def status(self) -> dict[str, Any]:
        """The index, open queries, the worker."""
        with self._lock:
            self._clear()
            queries = len(self._queries)
        indexed = self.indexed
        return {
            "indexed": indexed.position,
            "index_bytes": indexed.size,
            "index_trouble": indexed.trouble,
            "queries": queries,
            "worker": self._worker.status(),
        }

    def refuse(self) -> None:
        """Take no more requests."""
        with self._lock:
            self._is_closed = True

    def close(self) -> None:
        """End the worker; queries that are open fail."""
        self.refuse()
        with self._lock:
            queries = list(self._queries.values())
        self._worker.close()
        for query in queries:
            query.fail("the archive was closed")

    def _begin(self) -> Setup:
        return msgspec.structs.replace(self._setup, end=self._log.synced)

    def _again(self, forget: Callable[[], None]) -> list[Asked]:
        """Messages for a new worker, ahead of what waits; `forget` drops that, where it was for one that died."""
        messages: list[Asked] = []
        with self._lock:
            self._clear()
            if self._deleted:
                messages.append(Deleted(tuple(self._deleted)))
            self._starts += 1
            if self._starts == 1:
                return messages
            forget()
            for query in self._queries.values():
                messages += query.again()
            if self._free_at == inf:
                self._free_at = 0.0
            numbers, queries = list(self._questions), list(self._queries.values())
        for number in numbers:
            self._is_answer(number, ExplainReply(0, None, report(StorageError("the archive's worker has died"))))
        for query in queries:
            query.told()
        return messages

    def _hear(self, message: Told) -> None:
        """Take a message of the worker; on its thread."""
        with guarded("archive worker's message"):
            self._do(message)

    def _do(self, message: Told) -> None:
        match message:
            case FoundSome(number):
                with self._lock:
                    query = self._queries.get(number)
                if query is not None:
                    query.came(message)
            case ExplainReply(number):
                self._is_answer(number, message)
            case Retained(number, error=error):
                if self._is_answer(number, message):
                    return
                if not number:
                    with self._lock:
                        self._free_at = time.monotonic() + AGAIN_SECONDS if error is not None else 0.0
                if error is None:  # else nothing went
                    self._hear_of(message)
            case Indexed():
                self.indexed = message
            case Stored() | Going():
                self._hear_of(message)
            case Applied(positions):
                with self._lock:
                    self._deleted.difference_update(positions)

    def _is_answer(self, number: int, message: ExplainReply | Retained) -> bool:
        """Whether somebody waits for it, who is given it."""
        with self._lock:
            question = self._questions.get(number)
        if question is not None and not question.done():
            question.set_result(message)
        return question is not None

    def _ask(self, request: Callable[[int], Explain | Retain], kind: type[_Answer], timeout: float) -> _Answer:
        """Ask, and wait. Raises the worker's error; StorageError when no answer comes in time."""
        question = Future[ExplainReply | Retained]()
        with self._lock:
            self._check_open()
            number = next(self._number)
            self._questions[number] = question
            self._worker.tell(request(number))
        try:
            answer = question.result(timeout)
        except TimeoutError as exc:
            told = f"the archive's worker did not answer within {timeout:g} s"
            raise StorageError(told, hint="Try again later") from exc
        finally:
            with self._lock:
                self._questions.pop(number, None)
        if answer.error is not None:
            raise rebuild(answer.error)
        assert isinstance(answer, kind)
        return answer

    def _clear(self) -> None:
        """Queries that are over count no more. The lock is held."""
        for number in [number for number, query in self._queries.items() if query.is_over]:
            del self._queries[number]

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError(f"the archive in {self._setup.folder} is closed")
