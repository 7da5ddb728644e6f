"""Queries of our subscribers that are answered from another platform, or by an application: the server's side of a
bridge or query provider.

It is an archive to whoever asks: an item of the lookup services with an Entry `jbi.Archive`, sessions, queries with
credits, FINISHED. Nothing is kept here: each query has a thread that takes from its answers as far as there is room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import closing
from functools import lru_cache, partial
from typing import Final

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Decision, Subject
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import (
    BackPressureError,
    JbiError,
    MetadataError,
    OversizeError,
    StorageError,
    WireTimeoutError,
)
from jbi_pubsub.core.history import Explanation, HistoryQuery, Progress, QueryResult, State
from jbi_pubsub.core.info_object import InfoObject, packed
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate, compile_predicate
from jbi_pubsub.pad.past.feeds import FeedThread
from jbi_pubsub.pad.past.queries import COUNT_SECONDS
from jbi_pubsub.pad.past.scopes import QueryPlan, check_allowed
from jbi_pubsub.pad.past.store_protocol import looks
from jbi_pubsub.protocol.merging import chosen, everything
from jbi_pubsub.protocol.remote import KEYS_MOST, RemoteAnswers, RemoteArchive, with_keys
from jbi_pubsub.protocol.replies import ObjectCount, QueryExplanation
from jbi_pubsub.protocol.requests import QueryRequest

log = logging.getLogger("jbi_pubsub.pad")

OPEN_MOST: Final = 32
"""Queries that are answered at a time: each has a thread."""
AHEAD_OBJECTS: Final = 200
AHEAD_BYTES: Final = 4 << 20
"""Answers to one query that have come and wait for room."""
WAIT_SECONDS: Final = 0.5
"""For room, until it is looked whether the query is over."""

Choice = Callable[[Iterable[InfoObject]], Iterator[InfoObject]]


class RemoteResults:
    """A query that is open (see QueryResults)."""

    def __init__(
        self,
        ask: Callable[[], RemoteAnswers],
        wake: Callable[[], None],
        choice: Choice,
        keys: MutableMapping[str, SigningKey],
        name: str,
    ) -> None:
        """`ask` may wait for others: it is called on our thread. `choice`: of the answers what the caller gets. `keys`:
        what these are signed with, by their registrations, is noted there."""
        self._ask = ask
        self._answers: RemoteAnswers | None = None
        self._wake = wake
        self._choice = choice
        self._keys = keys
        self._changed = threading.Condition()
        self._ahead: deque[QueryResult] = deque()
        self._bytes = self._matched = 0
        self._state: State = "running"
        self._error = ""
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread is still there."""
        return self._thread.is_alive()

    def take(self, count: int, size: int) -> list[QueryResult]:
        """See QueryResults."""
        taken: list[QueryResult] = []
        with self._changed:
            while self._ahead and len(taken) < count and size > 0:
                found = self._ahead.popleft()
                self._bytes -= len(found.data)
                size -= len(found.data)
                taken.append(found)
            self._changed.notify_all()
        return taken

    def progress(self) -> Progress:
        """See QueryResults: what has come counts as found."""
        with self._changed:
            state: State = "running" if self._ahead else self._state
            seconds = time.monotonic() - self._began
            return Progress(state, matched=self._matched, seconds=seconds, error=self._error)

    def cancel(self) -> None:
        """See QueryResults."""
        with self._changed:
            if self._state == "running":
                self._state = "cancelled"
            self._changed.notify_all()
            answers = self._answers
        if answers is not None:
            answers.cancel()

    def join(self, timeout: float) -> None:
        """Wait for its thread, unless it is that which waits: who answers may end what he answers by."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        state: State = "finished"
        error = ""
        try:
            answers = self._ask()
            with self._changed:
                self._answers = answers
                is_over = self._state != "running"
            if is_over:
                answers.cancel()
                return
            for obj, key in with_keys(answers, self._choice(answers)):
                if key is not None:
                    self._keys[obj.platform.registration] = key
                if not self._put(obj):
                    return
            error = answers.lacks
        except JbiError as exc:
            state, error = "failed", exc.message
        except Exception as exc:  # of another platform's code
            log.exception("a query of another platform failed")
            state, error = "failed", f"{type(exc).__name__} on the other side of a bridge"
        with self._changed:
            if self._state == "running":
                self._state, self._error = state, error
        self._wake()

    def _put(self, obj: InfoObject) -> bool:
        """False: it is over."""
        parcel = packed(obj).in_memory()  # one that is too large for that ends the query, which says so
        found = QueryResult(max(1, obj.platform.position), obj.platform.published, b"".join(parcel.parts))
        with self._changed:
            while self._state == "running" and (len(self._ahead) >= AHEAD_OBJECTS or self._bytes >= AHEAD_BYTES):
                self._changed.wait(WAIT_SECONDS)
            if self._state != "running":
                return False
            self._ahead.append(found)
            self._bytes += len(found.data)
            self._matched += 1
        self._wake()
        return True


class RemoteSource:
    """Another platform as the source of queries, see QuerySource. Rules of access hold as for an archive: of each type
    what they let through, which is looked at for each answer, before the newest of a key and a limit are.
    `_lock` covers the queries that are open."""

    incarnations: Final[tuple[str, ...]] = ()

    def __init__(self, remote: RemoteArchive, access: AccessPolicy, thread: FeedThread) -> None:
        self._remote = remote
        self._access = access
        self._thread = thread
        self._lock = threading.Lock()
        self._open: list[RemoteResults] = []
        self._keys: Cache[str, SigningKey] = Cache(KEYS_MOST)

    def plan(self, request: QueryRequest, caller: Caller | None) -> QueryPlan:
        """See QuerySource."""
        check_allowed(self._access, request, caller)
        return QueryPlan(request, caller, HistoryQuery(scopes=(), up_to=request.up_to))

    def open(self, plan: QueryPlan, wake: Callable[[], None]) -> RemoteResults:
        """See QuerySource. Raises BackPressureError."""
        whole = msgspec.structs.replace(plan.request, payload_filter="", suppress_empty=False)  # that is cut here

        def choice(answers: Iterable[InfoObject]) -> Iterator[InfoObject]:
            return chosen(filter(partial(self._is_allowed, plan.caller), answers), plan.request)

        with self._lock:
            self._open = [each for each in self._open if each.is_alive]
            if len(self._open) >= OPEN_MOST:
                raise BackPressureError(
                    f"{OPEN_MOST} queries are answered by this bridge now, its limit", hint="Try again, or cancel some"
                )
            ask = partial(self._remote.answers, everything(whole))
            results = RemoteResults(ask, wake, choice, self._keys, f"{self._thread.name}-query")
            self._open.append(results)
        return results

    def count(self, request: QueryRequest, seconds: float, caller: Caller | None) -> ObjectCount:
        """See HistoryProxy.count: they are fetched, as nobody else can say what comes through."""
        plan = self.plan(request, caller)
        deadline = self._thread.clock() + max(0.0, min(seconds, COUNT_SECONDS))
        with closing(looks(partial(self.open, plan), AHEAD_OBJECTS, AHEAD_BYTES)) as found:
            for progress, _ in found:
                if progress.state == "running" and self._thread.clock() >= deadline:
                    raise WireTimeoutError(f"{progress.matched} objects came within {seconds:g} s, and there are more")
        if progress.state != "finished":
            raise StorageError(f"the other platform could not count: {progress.error}")
        return ObjectCount(progress.matched, (), progress.error)

    def explain(self, request: QueryRequest, caller: Caller | None) -> QueryExplanation:
        """See HistoryProxy.explain_query: how it is done elsewhere is not known here."""
        self.plan(request, caller)
        return QueryExplanation(Explanation(steps=(), objects=0, not_indexed=0, is_exact=False, seconds=0.0), ())

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key of the objects of a registration that were found lately, as whoever answered has said."""
        return self._keys.get(uid)

    def stop(self, timeout: float) -> None:
        """See QuerySource."""
        with self._lock:
            results = list(self._open)
        for each in results:
            each.join(timeout)

    def _is_allowed(self, caller: Caller | None, obj: InfoObject) -> bool:
        if caller is None:
            return True
        decision = self._access.allow(caller, "query", Subject(obj.type.name, obj.type.version))
        return bool(decision) and _holds(decision, obj)


def _holds(decision: Decision, obj: InfoObject) -> bool:
    """Whether what a rule lets through is that object; not one that can't be read."""
    if not decision.where:
        return True
    try:
        return _condition(decision.where, decision.namespaces).matches(parse_metadata(obj.metadata))
    except (MetadataError, OversizeError):
        return False


@lru_cache(maxsize=1_000)
def _condition(where: str, namespaces: tuple[tuple[str, str], ...]) -> Predicate:
    return compile_predicate(where, namespaces=dict(namespaces))
