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
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NoReturn, cast

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Decision, Subject, demand
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    ConfigurationError,
    JbiError,
    MetadataError,
    OversizeError,
    StorageError,
    WireTimeoutError,
)
from jbi_pubsub.core.history import Explanation, Found, Progress, Query, State
from jbi_pubsub.core.info_object import InfoObject, Parcel, TypeName, packed
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate, compile_predicate
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.past.archiving import Archiving
from jbi_pubsub.pad.past.queries import COUNT_SECONDS, Asked, History, QueryFeed, check_query
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.replies import Counted, Explained, QueryOpened
from jbi_pubsub.protocol.requests import QueryRequest

log = logging.getLogger("jbi_pubsub.pad")

OPEN_MOST: Final = 32
"""Queries that are answered at a time: each has a thread."""
AHEAD_OBJECTS: Final = 200
AHEAD_BYTES: Final = 4 << 20
"""Answers to one query that have come and wait for room."""
WAIT_SECONDS: Final = 0.5
"""For room, until it is looked whether the query is over."""

Allowed = Callable[[InfoObject], bool]


class ForeignResults:
    """A query that is open (see store_protocol.Results)."""

    def __init__(self, ask: Callable[[], RemoteAnswers], wake: Callable[[], None], allowed: Allowed, name: str) -> None:
        """`ask` may wait for others: it is called on our thread."""
        self._ask = ask
        self._answers: RemoteAnswers | None = None
        self._wake = wake
        self._allowed = allowed
        self._changed = threading.Condition()
        self._ahead: deque[Found] = deque()
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

    def take(self, count: int, size: int) -> list[Found]:
        """See keeping.Results."""
        taken: list[Found] = []
        with self._changed:
            while self._ahead and len(taken) < count and size > 0:
                found = self._ahead.popleft()
                self._bytes -= len(found.data)
                size -= len(found.data)
                taken.append(found)
            self._changed.notify_all()
        return taken

    def progress(self) -> Progress:
        """See keeping.Results: what has come counts as found."""
        with self._changed:
            state: State = "running" if self._ahead else self._state
            seconds = time.monotonic() - self._began
            return Progress(state, matched=self._matched, seconds=seconds, error=self._error)

    def cancel(self) -> None:
        """See keeping.Results."""
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
            for obj in answers:
                if self._allowed(obj) and not self._put(obj):
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
        found = Found(max(1, obj.platform.position), obj.platform.published, b"".join(parcel.parts))
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


class _NoKeeping:
    """No durable subscriptions: their places are of archives that are here."""

    incarnations: Final[dict[str, int]] = {}

    def consumers(self) -> tuple[()]:
        """None."""
        return ()


class _NoArchive:
    """No archive, for what a History asks of one beside queries."""

    keeping: Final = _NoKeeping()

    def under_way(self) -> list[tuple[int, int]]:
        """Nothing."""
        return []

    def whole(self, found: Found) -> Parcel:
        """A result, which has all of it. Raises ProtocolError."""
        return Parcel.received(found.data)


class ForeignHistory(History):
    """Queries to another platform. Rules of access hold as for an archive: of each type what they let
    through, which is looked at for each answer."""

    def __init__(self, foreign: RemoteArchive, *, access: AccessPolicy, name: str, **others: Any) -> None:
        super().__init__(cast("Archiving", _NoArchive()), access=access, name=name, **others)
        self._foreign = foreign
        self._open: list[ForeignResults] = []

    # -- calls ----------------------------------------------------------------------------------------------------

    def open(self, session: SubscriberSession, request: QueryRequest, caller: Caller | None) -> QueryOpened:
        """See HistoryProxy.open_query."""
        self._check(request, caller)
        subscription = self._compiled(session, request)
        contract, granted = self._contract(caller, TypeName(request.type, request.version), request.qos)
        asked = Asked(Query(scopes=(), up_to=request.up_to), ())
        feed = QueryFeed(self, session, subscription, request, caller, asked, contract, self._clock())
        try:
            self._enter(feed)
            feed.results = self._ask(request, caller, feed.wake)
        except BaseException:
            self._leave(feed, "")
            raise
        if request.timeout:
            self._alarm(feed, request.timeout)
        self.wake(feed)
        return QueryOpened(subscription.number, request.up_to, (), granted)

    def count(self, request: QueryRequest, seconds: float, caller: Caller | None) -> Counted:
        """See HistoryProxy.count: they are fetched, as nobody else can say what comes through."""
        self._check(request, caller)
        deadline = self._clock() + max(0.0, min(seconds, COUNT_SECONDS))
        came = threading.Event()
        results = self._ask(request, caller, came.set)
        try:
            while True:
                came.clear()
                results.take(AHEAD_OBJECTS, AHEAD_BYTES)
                progress = results.progress()
                if progress.state == "finished":
                    return Counted(progress.matched, (), progress.error)
                if progress.state != "running":
                    raise StorageError(f"the other platform could not count: {progress.error}")
                if self._clock() >= deadline:
                    raise WireTimeoutError(f"{progress.matched} objects came within {seconds:g} s, and there are more")
                came.wait(0.1)
        finally:
            results.cancel()

    def explain(self, request: QueryRequest, caller: Caller | None) -> Explained:
        """See HistoryProxy.explain_query: how it is done elsewhere is not known here."""
        self._check(request, caller)
        return Explained(Explanation(steps=(), objects=0, not_indexed=0, is_exact=False, seconds=0.0), ())

    def delete(self, request: QueryRequest, seconds: float) -> NoReturn:  # noqa: ARG002  # the archive's form
        """Refused, as all that changes an archive is."""
        self._refuse()

    def retain(self, seconds: float, *, is_dry: bool) -> NoReturn:  # noqa: ARG002  # as above
        """Refused."""
        self._refuse()

    def rebuild(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def take_in(self, objects: object, of: object) -> NoReturn:  # noqa: ARG002  # as above
        """Refused."""
        self._refuse()

    def describe(self, uids: object, caller: object) -> tuple[()]:  # noqa: ARG002  # as above
        """Nothing is archived here."""
        return ()

    def reset(self, name: str, secret: str, start: object, caller: object) -> bool:  # noqa: ARG002  # as above
        """There are no durable subscriptions here."""
        return False

    def note(self) -> None:
        """Nothing is to be put down."""

    def ask_again(self) -> None:
        """The access rules have changed: of queries that go on each answer is looked at by the new ones; who may not
        ask any more is told."""
        with self._changed:
            feeds = list(self._feeds.values())
        for feed in feeds:
            try:
                self._check(feed.request, feed.caller)
            except AccessDeniedError as exc:
                log.warning("query %s ends: %s", feed.subscription.uid, exc.message)
                self._end(feed, "failed", "access was withdrawn")

    def stop(self, timeout: float = 5.0) -> None:
        """End the threads, and all queries without a word."""
        super().stop(timeout)
        for results in self._open:
            results.join(timeout)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _check(self, request: QueryRequest, caller: Caller | None) -> None:
        """Raises as an archive does."""
        check_query(request)
        if caller is not None:
            subject = Subject(request.type, request.version, some=not (request.type and request.version))
            demand(self._access, caller, ("connect", Subject()))
            demand(self._access, caller, ("query", subject))

    def _ask(self, request: QueryRequest, caller: Caller | None, wake: Callable[[], None]) -> ForeignResults:
        with self._changed:
            self._open = [each for each in self._open if each.is_alive]
            if len(self._open) >= OPEN_MOST:
                raise BackPressureError(
                    f"{OPEN_MOST} queries are answered by this bridge now, its limit", hint="Try again, or cancel some"
                )
        whole = msgspec.structs.replace(request, payload_filter="", suppress_empty=False)  # that is cut here
        ask = partial(self._foreign.answers, whole)
        results = ForeignResults(ask, wake, self._allowed_to(caller), f"{self._name}-query")
        with self._changed:
            self._open.append(results)
        return results

    def _allowed_to(self, caller: Caller | None) -> Allowed:
        def allowed(obj: InfoObject) -> bool:
            if caller is None:
                return True
            decision = self._access.allow(caller, "query", Subject(obj.type.name, obj.type.version))
            return bool(decision) and _holds(decision, obj)

        return allowed

    def _refuse(self) -> NoReturn:
        raise ConfigurationError("this is the archive of another platform", hint="Administer it there")


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
