"""Queries of an archive, served as what waits for a subscriber: each fills a queue of its caller's session.

Rules:
- A query is a queue with a feed (see feeds.py).
- What may be seen is decided when a query opens (see scopes.py). When the rules change, a query that would be another
  one now ends.
- A query ends with its session, at its timeout, when it is cancelled, or behind its last result: its subscriber is told
  once, with the last item of its number.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import Action
from jbi_pubsub.core.errors import BackPressureError, JbiError, StorageError, UnknownUidError, WireTimeoutError
from jbi_pubsub.core.history import Explanation, Progress, State
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish
from jbi_pubsub.core.state import StateTable
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.lookup.item import size_of
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.quality import Pulled
from jbi_pubsub.pad.model.quota import NO_SHARE, RequestQuota, Share
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.pad.past.feeds import ArchiveFeed, FeedThread
from jbi_pubsub.pad.past.scopes import ArchiveScopes, QueryPlan
from jbi_pubsub.pad.past.store_protocol import Keeping, QueryResults, looks, open_query
from jbi_pubsub.protocol.replies import ObjectCount, QueryEnd, QueryExplanation, QueryOpened
from jbi_pubsub.protocol.requests import QueryRequest, SubscriptionRequest

log = logging.getLogger("jbi_pubsub.pad")

SESSION_MOST: Final = 20
"""Open queries of one session."""
COUNT_SECONDS: Final = 300.0
"""That a call to count takes at most."""
CALLS_PART: Final = 4
"""Part of a delegate's queries (one in so many) that may be calls of those who have no session."""
INCARNATIONS_TOLD: Final = 64
"""So often an archive may be started within the lease of an item of its own until a query is called incomplete."""
OpenedContract = tuple[Contract | None, GrantedQos]


class QueryContracts(Protocol):
    """Contracts for queries at a delegate, and what its callers may have standing there."""

    @property
    def quota(self) -> RequestQuota:
        """Bytes of requests."""
        ...

    def open(self, caller: Caller | None, action: Action, type_: TypeName, wish: Wish) -> OpenedContract:
        """The decision of policies for a query. Raises ConfigurationError, QosDeniedError."""
        ...

    def end(self, contract: Contract | None) -> None:
        """A contract is over."""
        ...


class QueryState(Enum):
    """States of a query of an archive."""

    OPENING = auto()
    """The archive is asked; it may tell that there is something before it has answered."""
    RUNNING = auto()
    """Results come, as far as its subscriber gives credit."""
    ENDING = auto()
    """Somebody has cancelled it, or it took too long, or lost its right: it ends at its next turn, whatever is left."""
    FINISHED = auto()
    """Its end waits in the queue behind its last result, or is on its way."""
    CLOSED = auto()
    """Nothing is left of it."""


class QueryEvent(Enum):
    """Events in the life of such a query."""

    OPENED = auto()
    """The archive has answered: there are results to take."""
    STOPPED = auto()
    """Somebody does not want it any more."""
    FINISHED = auto()
    """Its last result is in the queue, or it is to have none."""
    LEFT = auto()
    """Its queue is gone, the archive has refused it, or the delegate closes."""


QUERY: Final = StateTable(
    "query of an archive",
    QueryState.OPENING,
    {
        (QueryState.OPENING, QueryEvent.OPENED): QueryState.RUNNING,
        (QueryState.OPENING, QueryEvent.STOPPED): QueryState.ENDING,
        (QueryState.OPENING, QueryEvent.LEFT): QueryState.CLOSED,
        (QueryState.RUNNING, QueryEvent.STOPPED): QueryState.ENDING,
        (QueryState.RUNNING, QueryEvent.FINISHED): QueryState.FINISHED,
        (QueryState.RUNNING, QueryEvent.LEFT): QueryState.CLOSED,
        (QueryState.ENDING, QueryEvent.OPENED): QueryState.ENDING,
        (QueryState.ENDING, QueryEvent.STOPPED): QueryState.ENDING,
        (QueryState.ENDING, QueryEvent.FINISHED): QueryState.FINISHED,
        (QueryState.ENDING, QueryEvent.LEFT): QueryState.CLOSED,
        # the archive answers one that has ended meanwhile, or has ended what was closed meanwhile
        (QueryState.FINISHED, QueryEvent.OPENED): QueryState.FINISHED,
        (QueryState.FINISHED, QueryEvent.STOPPED): QueryState.FINISHED,
        (QueryState.FINISHED, QueryEvent.LEFT): QueryState.CLOSED,
        (QueryState.CLOSED, QueryEvent.OPENED): QueryState.CLOSED,
        (QueryState.CLOSED, QueryEvent.STOPPED): QueryState.CLOSED,
        (QueryState.CLOSED, QueryEvent.FINISHED): QueryState.CLOSED,
        (QueryState.CLOSED, QueryEvent.LEFT): QueryState.CLOSED,
    },
)


class QuerySource(Protocol):
    """Archive, here or elsewhere, that answers queries. Any thread."""

    @property
    def incarnations(self) -> tuple[str, ...]:
        """Those that its callers are told."""
        ...

    def plan(self, request: QueryRequest, caller: Caller | None) -> QueryPlan:
        """A query as that caller may ask it now. Raises AccessDeniedError, and as `check_query`."""
        ...

    def open(self, plan: QueryPlan, wake: Callable[[], None]) -> QueryResults:
        """See Keeping."""
        ...

    def count(self, request: QueryRequest, seconds: float, caller: Caller | None) -> ObjectCount:
        """See HistoryProxy."""
        ...

    def explain(self, request: QueryRequest, caller: Caller | None) -> QueryExplanation:
        """See HistoryProxy.explain_query."""
        ...

    def stop(self, timeout: float) -> None:
        """Wait for the threads of queries that have ended."""
        ...


class ArchiveSource:
    """The delegate's own archive, see QuerySource. `_lock` covers the calls that are under way."""

    def __init__(self, keeping: Keeping, scopes: ArchiveScopes, thread: FeedThread, max_queries: int) -> None:
        self.incarnations = tuple(itertools.islice(keeping.incarnations, INCARNATIONS_TOLD))
        self._keeping = keeping
        self._scopes = scopes
        self._max_calls = max(1, max_queries // CALLS_PART)
        self._thread = thread
        self._lock = threading.Lock()
        self._calls = Counter[str]()
        """Under way of those that count or explain: their callers need no session, so they have a share alone."""

    def plan(self, request: QueryRequest, caller: Caller | None) -> QueryPlan:
        """See QuerySource."""
        return self._scopes.plan(request, caller)

    def open(self, plan: QueryPlan, wake: Callable[[], None]) -> QueryResults:
        """See QuerySource."""
        return open_query(self._keeping, plan.query, wake)

    def count(self, request: QueryRequest, seconds: float, caller: Caller | None) -> ObjectCount:
        """See HistoryProxy.count."""
        plan = self._scopes.plan(request, caller)
        if not plan.query.scopes:
            return ObjectCount(0, plan.left_out, "", self.incarnations)
        deadline = self._thread.clock() + max(0.0, min(seconds, COUNT_SECONDS))
        with self._call(caller), closing(looks(partial(self._keeping.open, plan.query, count_only=True))) as found:
            for progress, _ in found:
                if progress.state == "running" and (self._thread.clock() >= deadline or self._thread.is_stopping):
                    raise WireTimeoutError(
                        f"{progress.matched} objects were counted within {seconds:g} s, and there are more",
                        hint="Ask for less, or allow more time",
                    )
        if progress.state != "finished":
            raise StorageError(f"the archive could not count: {progress.error or progress.state}")
        return ObjectCount(progress.matched, plan.left_out, progress.error, self.incarnations)

    def explain(self, request: QueryRequest, caller: Caller | None) -> QueryExplanation:
        """See HistoryProxy.explain_query."""
        plan = self._scopes.plan(request, caller, apart=True)
        if not plan.query.scopes:
            nothing = Explanation(steps=(), objects=0, not_indexed=0, is_exact=True, seconds=0.0)
            return QueryExplanation(nothing, plan.left_out)
        with self._call(caller):
            return QueryExplanation(self._keeping.explain(plan.query), plan.left_out)

    def stop(self, timeout: float) -> None:  # the protocol's
        """Calls that count end with the thread."""

    @contextmanager
    def _call(self, caller: Caller | None) -> Iterator[None]:
        """One of the calls without a session. Raises BackPressureError when these have their share."""
        most, peer = self._max_calls, caller.peer if caller is not None else ""
        with self._lock:
            if self._calls.total() >= most or self._calls[peer] >= share_of(most):
                what = f"{most} calls count or explain here, the limit: a quarter of [archive] max_queries"
                raise BackPressureError(what, hint="Try again")
            self._calls[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= Counter([peer])


class ArchiveQuery(ArchiveFeed):
    """A query that a subscriber has opened. `_lock` covers its state."""

    def __init__(
        self,
        thread: FeedThread,
        session: SubscriberSession,
        subscription: Subscription,
        plan: QueryPlan,
        left: Callable[[ArchiveQuery, str], None],
    ) -> None:
        """`left(query, outcome)` is called once, when nothing is left of it."""
        super().__init__(thread, session, subscription)
        self.plan = plan
        self.state = QUERY.initial
        self.contract: Contract | None = None
        self.share: Share = NO_SHARE
        self._left = left
        self._opened = thread.clock()
        self._lock = threading.Lock()
        self._results: QueryResults | None = None
        self._outcome = Progress()
        """The progress that it ends with, once it does not run any more."""

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self.state is not QueryState.CLOSED

    @property
    def patience(self) -> float:
        """Seconds until its timeout."""
        timeout = self.plan.request.timeout
        if not timeout or self.state is not QueryState.RUNNING:
            return math.inf
        return self._opened + timeout - self.thread.clock()

    def open(self, results: QueryResults) -> None:
        """The archive has answered."""
        if self._follow(QueryEvent.OPENED, results) is not QueryState.RUNNING:
            results.cancel()
        self.wake()

    def stop(self, how: State, why: str = "") -> None:
        """Have it end soon with that state, whatever is left; the first one who says so is heard."""
        self._follow(QueryEvent.STOPPED, outcome=Progress(how, error=why))
        self.wake()

    def leave(self, outcome: str) -> None:
        """Forget it: nothing of it is left. `outcome`: how it has ended, "" if it has never been open."""
        with self._lock:
            before, self.state = self.state, QUERY.after(self.state, QueryEvent.LEFT)
            results = self._results
        if results is not None:
            results.cancel()
        self.session.remove(self.subscription)
        if before is not QueryState.CLOSED:
            self._left(self, outcome)

    def progress(self) -> Progress:
        """The progress so far, as its caller may know it."""
        if self.state is QueryState.FINISHED:
            return self._outcome
        results = self._results
        progress = results.progress() if results is not None else Progress()
        if not self.plan.query.is_narrowed:
            return progress
        # how many objects were candidates before the rules were asked he may not know
        return msgspec.structs.replace(progress, candidates=progress.matched, verified=0)

    def prepare(self) -> QueryResults | None:
        """Its results, unless it is to end now."""
        if self.patience <= 0:
            self._follow(QueryEvent.STOPPED, outcome=Progress("timed_out"))
        if self.state is QueryState.ENDING:
            self._finish(self._outcome.state, self._outcome.error, drop=self._outcome.state != "failed")
            return None
        return self._results

    def conclude(self, progress: Progress) -> bool:
        """All results are in the queue, or it has failed."""
        gone = ", ".join(f"{cause} {count}" for cause, count in self.subscription.lost.items())
        lacks = f"results that are lost: {gone}" if gone and progress.state == "finished" else ""
        self._finish(progress.state, progress.error or lacks)
        return False

    def part(self) -> None:
        """Its end has gone out, or its session is over."""
        self.leave(self._outcome.state if self.state is QueryState.FINISHED else "cancelled")

    def fail(self) -> None:
        """Nothing is told."""
        self.leave("failed")

    def _finish(self, state: State, why: str, *, drop: bool = False) -> None:
        """Have its end told behind its last result, at once if those that wait are dropped."""
        progress = msgspec.structs.replace(self.progress(), state=state, error=why)
        self._follow(QueryEvent.FINISHED, outcome=progress)
        if self._results is not None:
            self._results.cancel()
        told = QueryEnd(
            state, progress.matched, progress.candidates, progress.verified, self.thread.clock() - self._opened, why,
            self.plan.left_out,
        )  # fmt: skip
        self.session.feeds.finish(self.subscription, msgspec.msgpack.encode(told), drop=drop)

    def _follow(
        self, event: QueryEvent, results: QueryResults | None = None, outcome: Progress | None = None
    ) -> QueryState:
        """Go on to the state that follows, with what belongs to it."""
        with self._lock:
            state = QUERY.after(self.state, event)
            if results is not None:
                self._results = results
            if outcome is not None and state is not self.state:
                self._outcome = outcome
            self.state = state  # last: others see it without the lock, and what belongs to it with it
            return state


class QueryService:
    """Queries that the subscribers of a delegate or peer publisher have open. `_lock` covers them. Any thread."""

    def __init__(
        self,
        source: QuerySource,
        thread: FeedThread,
        contracts: QueryContracts,
        numbers: Callable[[], int],
        max_queries: int,
    ) -> None:
        """`numbers` gives the number of a new queue."""
        self.source: Final = source
        self._thread = thread
        self._contracts = contracts
        self._numbers = numbers
        self._max_queries = max_queries
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], ArchiveQuery] = {}
        self._ended = Counter[str]()
        """Number of queries that have ended, by outcome."""

    def open(self, session: SubscriberSession, request: QueryRequest, caller: Caller | None) -> QueryOpened:
        """See HistoryProxy.open_query."""
        plan = self.source.plan(request, caller)
        subscription = self._compiled(session, request)
        contract, granted = self._contracts.open(caller, "query", TypeName(request.type, request.version), request.qos)
        if contract is not None:
            subscription.contract = Pulled(contract)
        query = ArchiveQuery(self._thread, session, subscription, plan, self._forget)
        query.contract = contract
        try:
            self._enter(query)
            query.open(self.source.open(plan, query.wake))
        except BaseException:
            query.leave("")
            raise
        return QueryOpened(subscription.number, plan.query.up_to, plan.left_out, granted, self.source.incarnations)

    def cancel(self, session_id: str, number: int) -> None:
        """See HistoryProxy.cancel_query."""
        query = self._open.get((session_id, number))
        if query is not None:
            query.stop("cancelled")

    def progress(self, session_id: str, number: int) -> Progress:
        """See HistoryProxy.progress."""
        query = self._open.get((session_id, number))
        if query is None:
            raise UnknownUidError(f"no query {number} of this session is open", number=number)
        return query.progress()

    def ask_again(self) -> None:
        """The access rules have changed: queries that would be others now end."""
        with self._lock:
            queries = list(self._open.values())
        for query in queries:
            try:
                plan = self.source.plan(query.plan.request, query.plan.caller)
                is_same = plan.conditions >= query.plan.conditions
            except JbiError as exc:
                log.warning("query %s ends: %s", query.subscription.uid, exc.message)
                is_same = False
            if not is_same:
                query.stop("failed", "access was withdrawn")

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            return {"open": len(self._open), "ended": dict(self._ended)}

    def stop(self, timeout: float) -> None:
        """End all queries without a word. The thread has ended."""
        with self._lock:
            queries = list(self._open.values())
        for query in queries:
            query.leave("cancelled")
        self.source.stop(timeout)

    def _compiled(self, session: SubscriberSession, request: QueryRequest) -> Subscription:
        """The query as a queue knows it: its results are chosen already. Raises PredicateError and others."""
        terms = SubscriptionRequest(
            f"query-{uuid4().hex}",
            payload_filter=request.payload_filter,
            namespaces=request.namespaces,
            suppress_empty=request.suppress_empty,
            unfiltered=request.unfiltered,
            bound=request.bound,
            policy="drop_newest",
            qos=request.qos,
        )
        return compile_subscription(terms, owner=session.session_id, number=self._numbers())

    def _enter(self, query: ArchiveQuery) -> None:
        caller = query.plan.caller
        with self._lock:
            if self._thread.is_stopping:
                raise BackPressureError("the archive is closing", hint="Ask another delegate")
            by, open_now = caller.peer if caller is not None else None, self._open.values()
            theirs = sum(each.plan.caller is not None and each.plan.caller.peer == by for each in open_now)
            if len(open_now) >= self._max_queries or theirs >= share_of(self._max_queries):
                what = f"{len(open_now)} queries are open here, {theirs} of them yours: see [archive] max_queries"
                raise BackPressureError(what, hint="Try again, or cancel some")
            if sum(each.session is query.session for each in open_now) >= SESSION_MOST:
                raise BackPressureError(
                    f"{SESSION_MOST} queries of this subscriber are open here, the limit",
                    hint="Take their results, or cancel some",
                )
            query.share = self._contracts.quota.take(caller, size_of("a query", query.plan.request))
            self._open[query.key] = query
        self._thread.start()
        query.session.feeds.add_query(query.subscription, query.wake)

    def _forget(self, query: ArchiveQuery, outcome: str) -> None:
        with self._lock:
            self._open.pop(query.key, None)
            if outcome:
                self._ended[outcome] += 1
        self._contracts.quota.give_back(query.share)
        self._contracts.end(query.contract)
