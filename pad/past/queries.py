"""Queries of an archive, served as what waits for a subscriber: each fills a queue of its caller's session.

Rules:
- A query is a queue with a *feed*: results are taken from the archive as far as the queue has room, which its
  subscriber's credit gives (`bound`). Nothing piles up here, and turns, chunks, levels and links are those of others.
- One thread a delegate, started when it is first needed, moves results: some from each query in turn, for some ms at
  most, with a pause as long behind: live objects do not wait for it.
- What may be seen is decided when a query opens: of each type what the access rules let through. When they change, a
  query that would be another one now ends.
- A subscription that begins in the past has a feed as well, until it has caught up with what comes live: rounds of
  queries, each up to where positions stood when its queue was armed. It never loses what is kept: what is too much to
  wait behind comes with another round.
- A query ends with its session, at its timeout, when it is cancelled, or behind its last result: its subscriber is told
  once, with the last item of its number.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Action, Subject, demand, denied
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.errors import (
    BackPressureError,
    ConfigurationError,
    IncompatibleEntryError,
    JbiError,
    PredicateError,
    ProtocolError,
    StorageError,
    UnknownUidError,
    WireTimeoutError,
)
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.history import (
    MAX_POSITION,
    Explanation,
    Found,
    GivenUp,
    Progress,
    Query,
    Scope,
    Source,
    State,
    TakenIn,
)
from jbi_pubsub.core.info_object import Cause, Parcel, TypeName
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.narrowing import Condition, joined
from jbi_pubsub.lookup.entry import EntryRep, matches
from jbi_pubsub.lookup.item import BOUNDS, ServiceTemplate, size_of
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.dissemination import Seal, disseminate, takes
from jbi_pubsub.pad.model.durable import Durable
from jbi_pubsub.pad.model.quality import Pulled, Shaping
from jbi_pubsub.pad.model.quota import NO_SHARE, RequestQuota, Share
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.pad.past.archiving import Archiving, entries_of, provenance_of
from jbi_pubsub.pad.past.durable import Durables, owner_of
from jbi_pubsub.pad.past.store_protocol import Results
from jbi_pubsub.protocol.replies import Counted, Deleted, Described, Explained, Finished, QueryOpened
from jbi_pubsub.protocol.requests import QueryRequest, Start, SubscriptionRequest, View, check_namespaces

log = logging.getLogger("jbi_pubsub.pad")

SESSION_MOST: Final = 20
"""Open queries of one session."""
CALLS_PART: Final = 4
"""Part of a delegate's queries (one in so many) that may be calls of those who have no session."""
SLICE_SECONDS: Final = 0.005
"""Length of one query's turn: some hundred objects."""
TAKEN_MOST: Final = 100
"""Results that are taken at once."""
TAKEN_BYTES: Final = 1 << 20
AGAIN_SECONDS: Final = 0.05
"""Until a query is looked at again for which the delegate has no memory, which nobody tells of."""
NOTE_SECONDS: Final = 1.0
"""Between two times that it is put down what durable subscriptions have had."""
FIRST_SECONDS: Final = 10.0
"""For an archive to say where a time is."""
FULL_SECONDS: Final = 0.2
"""Until it is looked at again whether who has caught up has room to live."""
FAILED_SECONDS: Final = 5.0
"""Longest pause until who catches up tries again with an archive that fails."""
COUNT_SECONDS: Final = 300.0
"""That a call to count takes at most."""
RETAIN_SECONDS: Final = 3_600.0
"""That a call to retain takes at most."""
OBJECT_IDS_MOST: Final = 10_000
REGISTRATIONS_MOST: Final = 10_000
INCARNATIONS_TOLD: Final = 64
"""So often an archive may be started within the lease of an item of its own until a query is called incomplete."""
TEXT_MOST: Final = 1_024
"""Characters of the name of a type or registration."""
QUERY_BOUNDS: Final = msgspec.structs.replace(BOUNDS, item_bytes=1 << 20)
"""Bytes of a query: 10,000 ids of objects are half of it."""

Contracting = Callable[[Caller | None, TypeName, Wish], tuple[Contract | None, GrantedQos]]
"""The decision of policies for a query. Raises ConfigurationError, QosDeniedError."""


class Asked(NamedTuple):
    """A caller's query as allowed, and what is left out of it, in his own words."""

    query: Query
    left_out: tuple[str, ...]


class Nothing:
    """The results of a query that no type is left of."""

    def take(self, count: int, size: int) -> list[Found]:  # noqa: ARG002  # the protocol's
        """None."""
        return []

    def progress(self) -> Progress:
        """At the end from the beginning."""
        return Progress("finished")

    def cancel(self) -> None:
        """Nothing to do."""


class Opening(Nothing):
    """Those of a query whose archive is asked yet: it may tell that there is something before it has answered."""

    def progress(self) -> Progress:
        """There is more to come."""
        return Progress()


@dataclass(eq=False)
class QueryFeed:
    """A query that is open. Its History's lock covers the flags; the rest is of the thread."""

    history: History
    session: SubscriberSession
    subscription: Subscription
    request: QueryRequest
    caller: Caller | None
    asked: Asked
    contract: Contract | None
    opened: float
    results: Results = field(default_factory=Opening)
    is_ready: bool = False
    """Whether it waits for its turn."""
    ending: Literal["", "cancelled", "timed_out", "failed"] = ""
    """The state that it is to end in, whatever is left."""
    why: str = ""
    told: Progress | None = None
    """The progress that it has ended with: that is on its way."""
    share: Share = NO_SHARE

    def wake(self) -> None:
        """See Feed."""
        self.history.wake(self)

    @property
    def key(self) -> tuple[str, int]:
        """Session and number."""
        return self.session.session_id, self.subscription.number


@dataclass(eq=False)
class ReplayFeed:
    """A subscription that catches up. It goes in rounds: from where it is to a target that the queue is armed with,
    until nothing was too much meanwhile. It is of the thread."""

    history: History
    session: SubscriberSession
    subscription: Subscription
    after: int = 0
    """Position up to which it has all."""
    target: int = 0
    is_first: bool = True
    """Round: what the subscription says of its beginning counts."""
    is_newest: bool = False
    """Whether the first round does not bring all, but what is to come."""
    results: Results | None = None
    """Results of the round; None between two."""
    conditions: set[tuple[TypeName, Condition]] = field(default_factory=set)
    """Conditions on what may be seen in the round."""
    is_asked: bool = False
    """Whether what has gone meanwhile is told, of a durable one and of one that goes on behind a position."""
    is_through: bool = False
    """The round is over, and nothing is decided yet."""
    is_changed: bool = False
    """The access rules are others, or its terms."""
    revision: int = 0
    """Revision of the terms by which the round is asked."""
    backoff: Backoff = field(default_factory=lambda: Backoff(2 * AGAIN_SECONDS, FAILED_SECONDS))
    """Pauses while the archive fails."""
    is_ready: bool = False

    def wake(self) -> None:
        """See Feed."""
        self.history.wake(self)

    @property
    def key(self) -> tuple[str, int]:
        """Session and number."""
        return self.session.session_id, self.subscription.number

    @property
    def goes_on(self) -> bool:
        """Whether its subscriber has had what was there before, and says up to where."""
        return 0 < self.subscription.request.start.after < MAX_POSITION


AnyFeed = QueryFeed | ReplayFeed


class History:
    """The archive of a delegate or peer publisher, as subscribers ask it. See the module. Any thread."""

    def __init__(
        self,
        archive: Archiving,
        *,
        access: AccessPolicy,
        max_queries: int,
        numbers: Callable[[], int],
        quota: RequestQuota,
        contract: Contracting,
        end_contract: Callable[[Contract | None], None],
        name: str,
        seal: Seal | None = None,
        lease: float = 0.0,
        shaper: Shaping | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`numbers` gives the number of a new queue; `lease`: see Durables; `seal` says what was cut, `shaper` shapes
        it."""
        self._archive = archive
        self._access = access
        self._max_queries = max_queries
        self._numbers = numbers
        self._quota = quota
        self._contract = contract
        self._end_contract = end_contract
        self._name = name
        self._seal = seal
        self._shaper = shaper
        self._clock = clock
        self._changed = threading.Condition()
        """Covers all state."""
        self._feeds: dict[tuple[str, int], QueryFeed] = {}
        self._calls = Counter[str]()
        """Under way of those that count or explain: their callers need no session, so they have a share alone."""
        self._replays: dict[tuple[str, int], ReplayFeed] = {}
        self._ready: deque[AnyFeed] = deque()
        self._alarms: list[tuple[float, int, AnyFeed]] = []
        """When a feed is to be looked at, whatever happens; a heap."""
        self._tick = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self.durables: Final = Durables(archive.keeping, lease, archive.under_way, quota, wall=wall)
        archive.is_wanted = self.durables.wants
        self._incarnations = tuple(itertools.islice(archive.keeping.incarnations, INCARNATIONS_TOLD))
        self._noted = clock()
        self._ended: dict[str, int] = {}
        """Number of queries that have ended, by state."""
        self._results = 0

    # -- calls ----------------------------------------------------------------------------------------------------

    def open(self, session: SubscriberSession, request: QueryRequest, caller: Caller | None) -> QueryOpened:
        """See HistoryProxy.open_query."""
        asked = self._asked(request, caller)
        subscription = self._compiled(session, request)
        contract, granted = self._contract(caller, TypeName(request.type, request.version), request.qos)
        if contract is not None:
            subscription.contract = Pulled(contract)
        feed = QueryFeed(self, session, subscription, request, caller, asked, contract, self._clock())
        try:
            self._enter(feed)
            feed.results = self._archive.keeping.open(asked.query, feed.wake) if asked.query.scopes else Nothing()
        except BaseException:
            self._leave(feed, "")
            raise
        if request.timeout:
            self._alarm(feed, request.timeout)
        self.wake(feed)
        return QueryOpened(subscription.number, asked.query.up_to, asked.left_out, granted, self._incarnations)

    def cancel(self, session_id: str, number: int) -> None:
        """See HistoryProxy.cancel_query."""
        self._end(self._feeds.get((session_id, number)), "cancelled")

    def progress(self, session_id: str, number: int) -> Progress:
        """See HistoryProxy.progress."""
        feed = self._feeds.get((session_id, number))
        if feed is None:
            raise UnknownUidError(f"no query {number} of this session is open", number=number)
        return feed.told or _seen(feed.results.progress(), feed.asked)

    def count(self, request: QueryRequest, seconds: float, caller: Caller | None) -> Counted:
        """See HistoryProxy.count."""
        asked = self._asked(request, caller)
        if not asked.query.scopes:
            return Counted(0, asked.left_out, "", self._incarnations)
        with self._call(caller):
            progress = self._counted(asked.query, seconds)
        if progress.state != "finished":
            raise StorageError(f"the archive could not count: {progress.error or progress.state}")
        return Counted(progress.matched, asked.left_out, progress.error, self._incarnations)

    def _counted(self, query: Query, seconds: float) -> Progress:
        deadline = self._clock() + max(0.0, min(seconds, COUNT_SECONDS))
        has_more = threading.Event()
        results = self._archive.keeping.open(query, has_more.set, count_only=True)
        try:
            while True:
                has_more.clear()
                progress = results.progress()
                if progress.state != "running":
                    return progress
                left = deadline - self._clock()
                if left <= 0 or self._is_stopping:
                    raise WireTimeoutError(
                        f"{progress.matched} objects were counted within {seconds:g} s, and there are more",
                        hint="Ask for less, or allow more time",
                    )
                has_more.wait(min(left, 0.1))
        finally:
            results.cancel()

    @contextmanager
    def _call(self, caller: Caller | None) -> Iterator[None]:
        """One of the calls without a session. Raises BackPressureError when these have their share."""
        most, peer = max(1, self._max_queries // CALLS_PART), caller.peer if caller is not None else ""
        with self._changed:
            if self._calls.total() >= most or self._calls[peer] >= share_of(most):
                what = f"{most} calls count or explain here, the limit: a quarter of [archive] max_queries"
                raise BackPressureError(what, hint="Try again")
            self._calls[peer] += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= Counter([peer])

    def explain(self, request: QueryRequest, caller: Caller | None) -> Explained:
        """See HistoryProxy.explain_query."""
        asked = self._asked(request, caller, apart=True)
        if not asked.query.scopes:
            nothing = Explanation(steps=(), objects=0, not_indexed=0, is_exact=True, seconds=0.0)
            return Explained(nothing, asked.left_out)
        with self._call(caller):
            return Explained(self._archive.keeping.explain(asked.query), asked.left_out)

    def delete(self, request: QueryRequest, seconds: float) -> Deleted:
        """See HistoryProxy.delete."""
        asked = self._asked(request, None)
        count = 0
        if asked.query.scopes:
            count = self._archive.keeping.delete(asked.query, timeout=max(0.0, min(seconds, COUNT_SECONDS)))
            self._archive.deleted()
        return Deleted(count, asked.query.up_to)

    def retain(self, seconds: float, *, is_dry: bool) -> tuple[GivenUp, ...]:
        """See HistoryProxy.retain."""
        found = self._archive.keeping.retain(is_dry=is_dry, timeout=max(0.0, min(seconds, RETAIN_SECONDS)))
        return tuple(
            GivenUp(each.first, each.last, each.objects, each.reasons, each.is_whole, each.is_done) for each in found
        )

    def rebuild(self) -> None:
        """See HistoryProxy.rebuild."""
        self._archive.keeping.rebuild()

    def take_in(self, objects: Sequence[bytes], of: Sequence[Described]) -> TakenIn:
        """See HistoryProxy.take_in."""
        return self._archive.take_in([Parcel.received(data) for data in objects], {o.uid: o.entries for o in of})

    def describe(self, uids: Sequence[str], caller: Caller) -> tuple[Described, ...]:
        """See HistoryProxy.describe."""
        wanted = frozenset(uids)
        found = [source for source in self._archive.keeping.sources() if source.uid in wanted]
        types = {source.type for source in found}
        may = {t for t in types if self._access.allow(caller, "query", Subject(t.name, t.version))}
        return tuple(Described(each.uid, entries_of(each.entries)) for each in found if each.type in may)

    def replay(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Open the queue of a subscription, and let it catch up with what its `start` says: one that begins behind the
        greatest position, which nothing has, begins with the present, as in `attach`."""
        start, durable = subscription.request.start, subscription.durable
        is_elsewhere = self._is_elsewhere(start)
        after = first - 1 if start.after == MAX_POSITION else start.after
        after = after if start.kind == "after" and not is_elsewhere else 0
        feed = ReplayFeed(self, session, subscription, after=after, is_asked=is_elsewhere)
        if durable is not None:
            feed.after, feed.is_first = durable.position, durable.is_new
        with self._changed:
            self._replays[feed.key] = feed
            self._begin()
        session.feeds.add_replay(subscription, feed, durable)

    def attach(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """A durable subscription comes, perhaps again; a new one that begins with the present, with the object at
        position `first`. Raises AccessDeniedError, ConfigurationError, StorageError."""
        request = subscription.request
        start = request.start

        def begin() -> int:
            here = self._archive.here(lambda _: None)
            if start.kind == "new" or start.after == MAX_POSITION:
                return min(first - 1, here)
            return start.after if start.kind == "after" and not self._is_elsewhere(start) else 0

        subscription.durable = self.durables.attach(request, subscription.caller, session, begin)

    def archive_of(self, subscription: Subscription) -> tuple[tuple[str, ...], bool, bool]:
        """The facts that `Granted` tells of the archive to one that is filled from it."""
        durable = subscription.durable
        begins = durable is None or durable.is_new
        is_elsewhere = begins and self._is_elsewhere(subscription.request.start)
        return self._incarnations, is_elsewhere, begins and durable is not None

    def _is_elsewhere(self, start: Start) -> bool:
        """Whether it is behind a position that this archive has not given: that of another one, or of what this one
        was before it was put back from a copy."""
        has_place = start.kind == "after" and start.after < MAX_POSITION
        return has_place and start.after > self._reached(start.archive)

    def _reached(self, archive: str) -> int:
        """The last position that is this archive's of those that one gave; "": of whatever archive."""
        keeping = self._archive.keeping
        return min(keeping.end, keeping.incarnations.get(archive, 0) if archive else MAX_POSITION)

    def _check_place(self, position: int, archive: str) -> None:
        """Raises ConfigurationError for a place in another archive."""
        if archive and position > self._reached(archive):
            raise ConfigurationError(
                f"position {position} is not one of this archive", hint="Name a time, or a place in this one"
            )

    def detach(self, session_id: str, subscription: Subscription) -> None:
        """Its subscriber has gone, or does not want it any more."""
        durable = subscription.durable
        if durable is not None and durable.session is not None and durable.session.session_id == session_id:
            self.durables.detach(durable)

    def reset(self, name: str, secret: str, start: Start, caller: Caller | None) -> bool:
        """See HistoryProxy.reset."""
        durable = self.durables.find(name, owner_of(secret, caller))
        if durable is None:
            return False
        position = self._position_of(start, durable, caller)
        durable.reset(position)
        self.durables.note()
        with self._changed:
            open_now = [feed for feed in self._replays.values() if feed.subscription.durable is durable]
        for feed in open_now:
            feed.session.feeds.fall_back(feed.subscription, position)
            feed.wake()
        return True

    def _position_of(self, start: Start, durable: Durable, caller: Caller | None) -> int:
        """Behind which a durable subscription has what a beginning says."""
        here = self._archive.here(lambda _: None)
        self._check_place(start.after, start.archive)
        if start.kind in ("all", "after"):
            return min(start.after, here)
        if start.kind == "new":
            return here
        self._archive.wait_synced(here)
        scopes, *_ = self._scopes(QueryRequest(entries=durable.entries), caller, "subscribe")
        query = Query(scopes=scopes, up_to=here, order="newest", limit=1)
        if start.kind == "since":
            query = msgspec.structs.replace(query, until=max(0.0, math.nextafter(start.since, 0.0)))
        found = self._first(query) if scopes else None
        if found is None:
            return 0
        return found.position - (start.kind == "last")

    def _first(self, query: Query) -> Found | None:
        """The first result. Raises WireTimeoutError, StorageError."""
        has_more = threading.Event()
        results = self._archive.keeping.open(query, has_more.set)
        deadline = self._clock() + FIRST_SECONDS
        try:
            while True:
                has_more.clear()
                progress = results.progress()
                if found := results.take(1, TAKEN_BYTES):
                    return found[0]
                if progress.state == "finished":
                    return None
                if progress.state != "running":
                    raise StorageError(f"the archive could not look: {progress.error or progress.state}")
                if self._clock() >= deadline:
                    raise WireTimeoutError(f"the archive did not answer within {FIRST_SECONDS:g} s")
                has_more.wait(0.1)
        finally:
            results.cancel()

    def tend(self) -> None:
        """Put down what durable subscriptions have had. Often."""
        if self._clock() - self._noted >= NOTE_SECONDS:
            self._noted = self._clock()
            self.note()

    def note(self) -> None:
        """The same now: what can't be is in the log."""
        try:
            self.durables.note()
        except StorageError as exc:
            log.error("what durable subscriptions have had is not put down: %s", exc)

    def begin_replay(self, session_id: str, subscription: Subscription) -> None:
        """Begin, as the subscription is in the match tables now."""
        feed = self._replays.get((session_id, subscription.number))
        if feed is not None:
            feed.wake()

    def amend(self, session_id: str, subscription: Subscription) -> None:
        """One that begins in the past has other terms: what it has not caught up with yet is looked for by these."""
        if subscription.durable is not None:
            subscription.durable.amend(subscription.request)
        feed = self._replays.get((session_id, subscription.number))
        if feed is not None:
            feed.is_changed = True
            feed.wake()

    def ask_again(self) -> None:
        """The access rules have changed: queries that would be others now end, who catches up goes on by those."""
        with self._changed:
            feeds, replays = list(self._feeds.values()), list(self._replays.values())
        for replay in replays:
            replay.is_changed = True
            replay.wake()
        for feed in feeds:
            try:
                asked = self._asked(feed.request, feed.caller)
                is_same = _conditions(asked.query) >= _conditions(feed.asked.query)
            except JbiError as exc:
                log.warning("query %s ends: %s", feed.subscription.uid, exc.message)
                is_same = False
            if not is_same:
                self._end(feed, "failed", "access was withdrawn")

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._changed:
            return {
                "open": len(self._feeds),
                "ended": dict(self._ended),
                "replays": sum(not each.is_through for each in self._replays.values()),
                "results": self._results,
            }

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, and all queries without a word."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread, feeds, replays = self._thread, list(self._feeds.values()), list(self._replays.values())
        if thread is not None:
            thread.join(timeout)
        for feed in feeds:
            self._leave(feed, "cancelled")
        for replay in replays:
            self._leave_replay(replay)

    # -- what is asked --------------------------------------------------------------------------------------------

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

    def _asked(self, request: QueryRequest, caller: Caller | None, *, apart: bool = False) -> Asked:
        """That query for this caller, over all that is on disk by now; `apart` as in `_scopes`. Raises
        AccessDeniedError, PredicateError, ConfigurationError, EntryError, StorageError."""
        check_query(request)
        if caller is not None:
            subject = Subject(request.type, request.version, some=not (request.type and request.version))
            demand(self._access, caller, ("connect", Subject()))
            demand(self._access, caller, ("query", subject))
        self._check_place(request.after, request.archive)
        up_to = min(request.up_to, self._archive.keeping.synced)
        scopes, left_out, is_narrowed = self._scopes(request, caller, "query", apart=apart)
        if left_out and not scopes and caller is not None:
            raise denied(caller, "query", Subject(request.type, request.version))
        query = Query(
            scopes=scopes, after=min(request.after, up_to), up_to=up_to, since=request.since, until=request.until,
            by_receipt=request.by_receipt, least_payload=request.least_payload, most_payload=request.most_payload,
            object_ids=request.object_ids, latest_by=request.latest_by, order=request.order, limit=request.limit,
            is_narrowed=is_narrowed,
        )  # fmt: skip
        return Asked(query, left_out)

    def _scopes(
        self, request: QueryRequest, caller: Caller | None, action: Action, *, apart: bool = False
    ) -> tuple[tuple[Scope, ...], tuple[str, ...], bool]:
        """The types that the caller may read something of, with what; what is left out, in his own words, as he is not
        told which types there are that he may not read; and whether rules hide anything. `apart`: what they let him
        have stands beside what he asks for."""
        scopes: list[Scope] = []
        left_out: tuple[str, ...] = ()
        is_narrowed = False
        for type_, uids in self._wanted(request).items():
            is_combined = request.view == "combined" and bool(request.predicate)
            condition: Condition = ("", ()) if is_combined else (request.predicate, request.namespaces)
            rule: Condition = ("", ())
            if caller is not None:
                decision = self._access.allow(caller, action, Subject(type_.name, type_.version))
                if not decision:
                    self._access.record(caller, action, Subject(type_.name, type_.version), decision)
                    left_out, is_narrowed = (str(TypeName(request.type or "*", request.version or "*")),), True
                    continue
                if decision.where:
                    is_narrowed = True
                    rule = decision.where, decision.namespaces
                    both = _narrowed(condition, rule)
                    condition, rule = (condition, rule) if apart else (both, ("", ()))
            scope = Scope(type_, *condition, tuple(uids) if uids is not None else None)
            if apart:
                scope = msgspec.structs.replace(scope, where=rule[0], bound=rule[1])
            if is_combined:
                scope = msgspec.structs.replace(
                    scope, combined=request.predicate, prefixes=request.namespaces, origins=self._origins(type_, uids)
                )
            scopes.append(scope)
        return tuple(scopes), left_out, is_narrowed

    def _origins(self, type_: TypeName, uids: Sequence[str] | None) -> tuple[tuple[Provenance, tuple[str, ...]], ...]:
        """Publishers of a type, each with its registrations, of these or of all."""
        wanted = frozenset(uids) if uids is not None else None
        found: dict[Provenance, list[str]] = {}
        for source in self._archive.keeping.sources():
            if source.type == type_ and (wanted is None or source.uid in wanted):
                found.setdefault(provenance_of(source), []).append(source.uid)
        return tuple((origin, tuple(those)) for origin, those in found.items())

    def _wanted(self, request: QueryRequest) -> dict[TypeName, list[str] | None]:
        """The types that have something of what is asked for, and of which registrations; None: of all."""
        uids = set(request.registrations) if request.registrations is not None else None
        all_of = uids is None and not (request.entries or request.publisher)
        found: dict[TypeName, list[str] | None] = {}
        for source in self._archive.keeping.sources():
            type_ = source.type
            if request.type not in ("", type_.name) or request.version not in ("", type_.version):
                continue
            if request.publisher not in ("", source.publisher):
                continue
            if all_of:
                found[type_] = None
            elif (uids is None or source.uid in uids) and _fits(request.entries, source):
                known = found.setdefault(type_, [])
                assert known is not None
                known.append(source.uid)
        return found

    # -- queries that are open ------------------------------------------------------------------------------------

    def _enter(self, feed: QueryFeed) -> None:
        with self._changed:
            if self._is_stopping:
                raise BackPressureError("the archive is closing", hint="Ask another delegate")
            by = feed.caller.peer if feed.caller is not None else None
            theirs = sum(each.caller is not None and each.caller.peer == by for each in self._feeds.values())
            if len(self._feeds) >= self._max_queries or theirs >= share_of(self._max_queries):
                what = f"{len(self._feeds)} queries are open here, {theirs} of them yours: see [archive] max_queries"
                raise BackPressureError(what, hint="Try again, or cancel some")
            if sum(each.session is feed.session for each in self._feeds.values()) >= SESSION_MOST:
                raise BackPressureError(
                    f"{SESSION_MOST} queries of this subscriber are open here, the limit",
                    hint="Take their results, or cancel some",
                )
            feed.share = self._quota.take(feed.caller, size_of("a query", feed.request))
            self._feeds[feed.key] = feed
            self._begin()
        feed.session.feeds.add_query(feed.subscription, feed)

    def _begin(self) -> None:
        """Under the lock: there is something for the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _is_open(self, feed: AnyFeed) -> bool:
        """Under the lock."""
        return self._feeds.get(feed.key) is feed or self._replays.get(feed.key) is feed

    def _leave(self, feed: QueryFeed, state: str) -> None:
        """Forget a query that is over, for whatever reason: nothing of it is left."""
        with self._changed:
            is_known = self._feeds.pop(feed.key, None) is feed
            if is_known and state:
                self._ended[state] = self._ended.get(state, 0) + 1
        feed.results.cancel()
        feed.session.remove(feed.subscription)
        if is_known or not state:
            self._quota.give_back(feed.share)
            feed.share = NO_SHARE
            self._end_contract(feed.contract)

    def wake(self, feed: AnyFeed) -> None:
        """Give a turn to a feed that has something to do."""
        with self._changed:
            if not feed.is_ready:
                feed.is_ready = True
                self._ready.append(feed)
                self._changed.notify_all()

    def _alarm(self, feed: AnyFeed, seconds: float) -> None:
        with self._changed:
            if len(self._alarms) > 2 * (len(self._feeds) + len(self._replays)) + SESSION_MOST:
                self._alarms = [alarm for alarm in self._alarms if self._is_open(alarm[2])]
                heapq.heapify(self._alarms)
            heapq.heappush(self._alarms, (self._clock() + seconds, next(self._tick), feed))
            self._changed.notify_all()

    def _end(self, feed: QueryFeed | None, how: Literal["cancelled", "timed_out", "failed"], why: str = "") -> None:
        if feed is not None and not feed.ending:
            feed.ending, feed.why = how, why
            self.wake(feed)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            feed = self._next()
            if feed is None:
                continue
            began = self._clock()
            with guarded(self._name):
                if isinstance(feed, QueryFeed):
                    self._serve(feed)
                else:
                    self._serve_replay(feed)
                time.sleep(min(SLICE_SECONDS, self._clock() - began))
                continue
            if isinstance(feed, QueryFeed):
                self._leave(feed, "failed")  # a fault of ours: it does not come again and again
            else:
                self._try_again(feed)

    def _next(self) -> AnyFeed | None:
        """The feed whose turn it is, as soon as there is one."""
        with self._changed:
            while not self._is_stopping:
                now = self._clock()
                while self._alarms and self._alarms[0][0] <= now:
                    self._ring(heapq.heappop(self._alarms)[2], now)
                if self._ready:
                    feed = self._ready.popleft()
                    feed.is_ready = False
                    return feed
                self._changed.wait(min(60.0, self._alarms[0][0] - now if self._alarms else math.inf))
        return None

    def _ring(self, feed: AnyFeed, now: float) -> None:
        if self._is_open(feed):
            if isinstance(feed, QueryFeed) and feed.request.timeout and now >= feed.opened + feed.request.timeout:
                self._end(feed, "timed_out")
            self.wake(feed)

    def _serve(self, feed: QueryFeed) -> None:
        """Move some results of one query."""
        if self._feeds.get(feed.key) is not feed:
            return
        until = self._clock() + SLICE_SECONDS
        while True:
            count, size = feed.session.feeds.room(feed.subscription)
            if count < 0:  # its end is told, or on its way, or its session is over
                if feed.session.feeds.has(feed.subscription):
                    return
                self._leave(feed, feed.told.state if feed.told is not None else "cancelled")
                return
            if feed.ending:
                self._finish(feed, feed.results.progress(), feed.ending, feed.why, drop=feed.ending != "failed")
                return
            if not count:
                return
            if not size:
                self._alarm(feed, AGAIN_SECONDS)
                return
            progress = feed.results.progress()
            found = feed.results.take(min(count, TAKEN_MOST), min(size, TAKEN_BYTES))
            if found:
                self._move(feed, found)
            elif progress.state != "running":
                gone = ", ".join(f"{cause} {count}" for cause, count in feed.subscription.lost.items())
                lacks = f"results that are lost: {gone}" if gone and progress.state == "finished" else ""
                self._finish(feed, progress, progress.state, progress.error or lacks)
                return
            else:
                return
            if self._clock() >= until:
                self.wake(feed)
                return

    def _move(self, feed: AnyFeed, found: list[Found]) -> int:
        """Results to the queue, as its filter and shapes leave them; how many. What is behind an amendment is taken
        out of `found`: it is looked for again."""
        subscription = feed.subscription
        parcels: list[Parcel] = []
        for at, each in enumerate(found):
            try:
                parcel = self._archive.whole(each)
            except (ProtocolError, StorageError, BackPressureError) as exc:
                note("reading an object of the archive", exc)
                feed.session.lose(subscription, Cause.STORAGE)
                continue
            parcel.position = each.position
            result = disseminate(parcel, [subscription], self._seal, self._shaper)
            if isinstance(feed, ReplayFeed) and subscription.revision != feed.revision:
                del found[at:]
                break
            if isinstance(feed, ReplayFeed) and not self._is_wanted(feed, each.position):
                continue
            if isinstance(feed, ReplayFeed):
                subscription.matched += len(result.suppressed) + len(result.oversize)
            subscription.suppressed += len(result.suppressed)
            for _ in result.oversize:
                feed.session.lose(subscription, Cause.OVERSIZE)
            parcels += [selected.parcel for selected in result.selected]
        self._results += len(parcels)
        feed.session.feeds.put(subscription, parcels)
        return len(parcels)

    # -- who catches up -------------------------------------------------------------------------------------------

    def _serve_replay(self, feed: ReplayFeed) -> None:
        """Move some of what one subscription catches up with."""
        if self._replays.get(feed.key) is not feed:
            return
        until = self._clock() + SLICE_SECONDS
        while True:
            count, size = feed.session.feeds.room(feed.subscription)
            if count < 0:
                self._leave_replay(feed)
                return
            changes = feed.is_changed or feed.subscription.revision != feed.revision
            if changes and feed.results is not None and self._is_another(feed):
                feed.results.cancel()
                feed.results = None
            feed.is_changed = False
            if feed.is_through and not self._goes_on(feed):
                return
            if feed.results is None and not self._open_round(feed):
                return
            if not count:
                return
            if not size:
                self._alarm(feed, AGAIN_SECONDS)
                return
            assert feed.results is not None
            progress = feed.results.progress()
            found = feed.results.take(min(count, TAKEN_MOST), min(size, TAKEN_BYTES))
            if found:
                feed.subscription.replayed += self._move(feed, found)
                if found:
                    self._is_at(feed, max(feed.after, *(each.position for each in found)))
                feed.backoff.reset()
            elif progress.state == "finished":
                if progress.error:
                    log.warning("subscription %s: what it catches up with is %s", feed.subscription.uid, progress.error)
                    feed.session.lose(feed.subscription, Cause.STORAGE)
                feed.results.cancel()
                feed.results, feed.is_through, feed.is_first = None, True, False
                self._is_at(feed, feed.target)
            else:
                if progress.state != "running":
                    log.warning("subscription %s catches up again: %s", feed.subscription.uid, progress.error)
                    self._try_again(feed)
                return
            if self._clock() >= until:
                self.wake(feed)
                return

    def _is_at(self, feed: ReplayFeed, position: int) -> None:
        """Note that it has brought all up to there. A durable one is told at the end of a first round of the newest."""
        durable = feed.subscription.durable
        feed.after, before = position, feed.after
        if durable is not None and not (feed.is_first and feed.is_newest):
            durable.fed(0 if feed.is_newest else before, position)
            feed.is_newest = False

    def _is_wanted(self, feed: ReplayFeed, position: int) -> bool:
        """Whether it is wanted: of a durable one not what was acknowledged, or is on its way."""
        durable = feed.subscription.durable
        return durable is None or not durable.has(position)

    def _open_round(self, feed: ReplayFeed) -> bool:
        """Ask for what is between where it is and where positions stand now. False: later."""
        try:
            if feed.target <= feed.after:
                feed.target = self._archive.here(lambda position: feed.session.feeds.rearm(feed.subscription, position))
            self._archive.wait_synced(feed.target)
            feed.revision = feed.subscription.revision & ~1  # one that is being amended is asked for again
            query = self._round(feed)
            if not feed.is_asked and (feed.subscription.durable is not None or feed.goes_on):
                feed.is_asked = True
                if gone := self._archive.keeping.expired(query):
                    feed.session.lose(feed.subscription, Cause.EXPIRED, gone)
            feed.conditions = _conditions(query)
            feed.results = self._archive.keeping.open(query, feed.wake) if query.scopes else Nothing()
        except JbiError as exc:  # no room for one more query; or the disk fails
            log.info("subscription %s waits for the archive: %s", feed.subscription.uid, exc)
            self._try_again(feed)
            return False
        return True

    def _round(self, feed: ReplayFeed) -> Query:
        request, caller = feed.subscription.request, feed.subscription.caller
        start = request.start
        scopes, *_ = self._scopes(
            QueryRequest(
                entries=request.entries, predicate=request.predicate, namespaces=request.namespaces, view=request.view
            ),
            caller,
            "subscribe",
        )
        if request.unlike or request.local:
            scopes = self._taken(scopes, feed.subscription)
        query = Query(scopes=scopes, after=min(feed.after, feed.target), up_to=feed.target)
        if not feed.is_first:
            return query
        if start.kind == "since":
            return msgspec.structs.replace(query, since=start.since)
        feed.is_newest = start.kind == "last"
        if start.kind == "last" and start.latest_by:
            return msgspec.structs.replace(query, latest_by=start.latest_by)
        if start.kind == "last":
            return msgspec.structs.replace(query, order="newest", limit=1)
        return query

    def _taken(self, scopes: Sequence[Scope], subscription: Subscription) -> tuple[Scope, ...]:
        """Without registrations that a subscription does not want anything of."""
        refused = {s.uid for s in self._archive.keeping.sources() if not takes(subscription, provenance_of(s))}
        if not refused:
            return tuple(scopes)
        found: list[Scope] = []
        for scope in scopes:
            uids = scope.registrations
            if uids is None:
                uids = tuple(s.uid for s in self._archive.keeping.sources() if s.type == scope.type)
            if left := tuple(uid for uid in uids if uid not in refused):
                found.append(msgspec.structs.replace(scope, registrations=left))
        return tuple(found)

    def _is_another(self, feed: ReplayFeed) -> bool:
        """Whether it asks for something else now than in its round, or may see something else."""
        return feed.subscription.revision != feed.revision or _conditions(self._round(feed)) != feed.conditions

    def _goes_on(self, feed: ReplayFeed) -> bool:
        """A round is over: whether there is another one now."""
        found = feed.session.feeds.go_live(feed.subscription)
        if found == "overrun":
            feed.is_through = False
            if (again := feed.session.feeds.again_from(feed.subscription)) >= 0:
                feed.after, feed.target = again, 0
        elif found == "full":
            self._alarm(feed, FULL_SECONDS)  # nobody tells that what waits has gone out
        elif feed.subscription.durable is None:
            with self._changed:
                self._replays.pop(feed.key, None)
        return found == "overrun"

    def _try_again(self, feed: ReplayFeed) -> None:
        """From where it is, after a pause; what comes meanwhile is not lost."""
        if feed.results is not None:
            feed.results.cancel()
        feed.results = None
        self._alarm(feed, feed.backoff.pause())

    def _leave_replay(self, feed: ReplayFeed) -> None:
        with self._changed:
            self._replays.pop(feed.key, None)
        if feed.results is not None:
            feed.results.cancel()

    def _finish(self, feed: QueryFeed, progress: Progress, state: State, why: str, *, drop: bool = False) -> None:
        """Have its end told, and give up what it holds."""
        progress = _seen(progress, feed.asked)
        feed.told = msgspec.structs.replace(progress, state=state, error=why)
        feed.results.cancel()
        told = Finished(
            state, progress.matched, progress.candidates, progress.verified, self._clock() - feed.opened, why,
            feed.asked.left_out,
        )  # fmt: skip
        feed.session.feeds.finish(feed.subscription, msgspec.msgpack.encode(told), drop=drop)


def _seen(progress: Progress, asked: Asked) -> Progress:
    """As its caller may know it: how many objects were candidates before the rules were asked he may not."""
    if not asked.query.is_narrowed:
        return progress
    return msgspec.structs.replace(progress, candidates=progress.matched, verified=0)


def _conditions(query: Query) -> set[tuple[TypeName, Condition]]:
    """Conditions on what may be seen of which types, whatever is asked of the combined view: that does not change."""
    return {(scope.type, (scope.predicate, scope.namespaces)) for scope in query.scopes}


def check_query(request: QueryRequest) -> None:
    """Raises ConfigurationError, PredicateError, EntryError, OversizeError."""
    if request.since > request.until:
        raise ConfigurationError(f"since ({request.since:.3f}) is after until ({request.until:.3f})")
    if request.least_payload > request.most_payload:
        raise ConfigurationError("least_payload is more than most_payload")
    if not (math.isfinite(request.timeout) and request.timeout >= 0):
        raise ConfigurationError(f"timeout {request.timeout} is no number of seconds")
    if request.language != "xpath":
        raise ConfigurationError(
            f"archives are asked in XPath, not in {request.language[:40]!r}", hint="Leave the language out"
        )
    for what, many, most in (
        ("object ids", request.object_ids, OBJECT_IDS_MOST),
        ("registrations", request.registrations, REGISTRATIONS_MOST),
    ):
        if many is not None and (len(many) > most or any(len(each) > TEXT_MOST for each in many)):
            raise ConfigurationError(f"more than {most} {what}, or one of more than {TEXT_MOST} characters")
    if max(len(request.type), len(request.version), len(request.publisher)) > TEXT_MOST:
        raise ConfigurationError(f"the name of a type, version or publisher of more than {TEXT_MOST} characters")
    BOUNDS.check_parts("a query", ServiceTemplate(entries=request.entries))
    QUERY_BOUNDS.check_size("a query", request)
    check_namespaces(request.namespaces)
    spaces = dict(request.namespaces)
    if request.predicate:
        compile_predicate(request.predicate, namespaces=spaces)
    if request.view not in get_args(View):
        raise ConfigurationError(f"unknown view {request.view!r}", hint=f"Use {' or '.join(get_args(View))}")
    if request.latest_by:
        compile_predicate(request.latest_by, namespaces=spaces, argument="latest_by")


def _narrowed(condition: Condition, where: Condition) -> Condition:
    """With what an access rule lets through. Raises PredicateError, which does not say what the rules are."""
    if not condition[0]:
        return where
    both = joined([condition, where], "and")
    try:
        compile_predicate(both[0], namespaces=dict(both[1]))
    except PredicateError as exc:
        raise PredicateError(
            "the predicate is too long or too costly together with what the access policy adds",
            hint="Make it simpler",
            argument="predicate",
        ) from exc
    return both


def _fits(template: Iterable[EntryRep], source: Source) -> bool:
    """Whether a registration's entries match a template, as for subscriptions; of other generations' nothing does."""
    if not template:
        return True
    entries = entries_of(source.entries)
    try:
        return all(any(matches(wanted, entry) for entry in entries) for wanted in template)
    except IncompatibleEntryError:
        return False
