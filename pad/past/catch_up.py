"""Subscriptions that begin in the past, and durable ones: an archive fills their queues until they have caught up.

Rules:
- One goes in rounds of queries, each up to where positions stood when its queue was armed, until nothing was too much
  meanwhile. It never loses what is kept: what is too much to wait behind comes with another round.
- What may be seen is decided for each round. When the access rules change, or its terms, it goes on by those.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

import msgspec

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import ConfigurationError, JbiError, StorageError, WireTimeoutError
from jbi_pubsub.core.history import MAX_POSITION, HistoryQuery, Progress, QueryResult
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.egress.catch_up import CatchUpState
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.durable import Durable
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.pad.past.archiving import Archiving
from jbi_pubsub.pad.past.durable import Durables, owner_of
from jbi_pubsub.pad.past.feeds import AGAIN_SECONDS, TAKEN_BYTES, ArchiveFeed, FeedThread
from jbi_pubsub.pad.past.scopes import ArchiveScopes, conditions_of
from jbi_pubsub.pad.past.store_protocol import QueryResults, looks, open_query
from jbi_pubsub.protocol.requests import QueryRequest, Start

log = logging.getLogger("jbi_pubsub.pad")

NOTE_SECONDS: Final = 1.0
"""Between two times that it is put down what durable subscriptions have had."""
FIRST_SECONDS: Final = 10.0
"""For an archive to say where a time is."""
FULL_SECONDS: Final = 0.2
"""Until it is looked at again whether who has caught up has room to live."""
ARRIVAL_SECONDS: Final = 0.05
"""Until it is looked at again whether the archive has what was on its way."""
FAILED_SECONDS: Final = 5.0
"""Longest pause until who catches up tries again with an archive that fails."""
IN_ROUND: Final = frozenset((CatchUpState.BEHIND, CatchUpState.FILLING, CatchUpState.OVERRUN))
"""States in which a round is under way, or to begin."""


class ArchiveCatchUp(ArchiveFeed):
    """The way of one subscription. It is of the thread."""

    def __init__(
        self,
        thread: FeedThread,
        session: SubscriberSession,
        subscription: Subscription,
        archive: Archiving,
        scopes: ArchiveScopes,
        *,
        after: int,
        is_told: bool,
        left: Callable[[ArchiveCatchUp], None],
    ) -> None:
        """`after`: the position up to which it has all; `is_told`: whether one that begins is told already what was
        removed before; `left(catch_up)` is called when it has caught up for good, or its queue is gone."""
        super().__init__(thread, session, subscription)
        self.after = after
        self.target = 0
        self.is_changed = False
        """The access rules are others, or its terms."""
        durable = subscription.durable
        self._archive = archive
        self._scopes = scopes
        self._left = left
        self._is_first = durable is None or durable.is_new
        """Whether what the subscription says of its beginning counts for the round."""
        self._is_newest = False
        """Whether the first round does not bring all, but what is to come."""
        goes_on = 0 < subscription.request.start.after < MAX_POSITION  # its subscriber has had what was before
        is_told = is_told or not (durable is not None or goes_on)
        self._asked = MAX_POSITION if is_told and self._is_first else after
        """Position up to which it was asked what of it was removed before it came."""
        self._again: set[int] = set()
        """Positions up to there that had come, made way in the queue, and are to come again."""
        self._results: QueryResults | None = None
        """Results of the round; None between two."""
        self._query = HistoryQuery(scopes=())
        """Query of the round."""
        self._revision = 0
        """Revision of the terms by which the round is asked."""
        self._backoff = Backoff(2 * AGAIN_SECONDS, FAILED_SECONDS)
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether it may have to bring something yet."""
        return not self._is_over

    @property
    def is_behind(self) -> bool:
        """Whether there is something to catch up with yet."""
        state = self.session.feeds.state_of(self.subscription)
        return state not in (CatchUpState.SETTLING, CatchUpState.LIVE)

    @property
    def is_stale(self) -> bool:
        """Whether its round was asked by former terms."""
        return self.subscription.revision != self._revision

    def wants(self, position: int) -> bool:
        """Whether it is wanted: of a durable one not what was acknowledged, or is on its way."""
        durable = self.subscription.durable
        return durable is None or not durable.has(position)

    def prepare(self) -> QueryResults | None:
        """Results of the round that is under way, or of another one."""
        changes = self.is_changed or self.is_stale
        if changes and self._results is not None and self._is_another():
            self._drop_round()
        self.is_changed = False
        state = self.session.feeds.go_live(self.subscription)
        if state is CatchUpState.SETTLING:
            self.thread.wake(self, FULL_SECONDS)  # nobody tells that what waits has gone out
        elif state is CatchUpState.LIVE and self.subscription.durable is None:
            self.part()
        elif state in IN_ROUND:
            if self._results is None:
                self._open_round(state)
            return self._results
        return None

    def bring(self, found: list[QueryResult]) -> int:
        """See ArchiveFeed."""
        self._again.difference_update(each.position for each in found)
        self._tell_removed(max(each.position for each in found))
        count = super().bring(found)
        self.subscription.replayed += count
        if found:
            self._advance(max(self.after, *(each.position for each in found)))
        self._backoff.reset()
        return count

    def conclude(self, progress: Progress) -> bool:
        """The round is over, or has failed."""
        if progress.state != "finished":
            log.warning("subscription %s catches up again: %s", self.subscription.uid, progress.error)
            self.fail()
            return False
        if progress.error:
            log.warning("subscription %s: its catch-up is %s", self.subscription.uid, progress.error)
            self.session.lose(self.subscription, Cause.STORAGE)
        self._drop_round()
        if self._is_first:
            self._is_first, self._asked = False, min(self._asked, self.target)
        self._tell_removed(self.target)
        self._advance(self.target)
        self.session.feeds.brought(self.subscription)
        return True

    def part(self) -> None:
        """Nothing is to be brought any more."""
        self._is_over = True
        self._drop_round()
        self._left(self)

    def fail(self) -> None:
        """Go on from where it is, after a pause; what comes meanwhile is not lost."""
        self._drop_round()
        self.thread.wake(self, self._backoff.pause())

    def _drop_round(self) -> None:
        results, self._results = self._results, None
        if results is not None:
            results.cancel()

    def _advance(self, position: int) -> None:
        """Note that it has brought all up to there. A durable one is told at the end of a first round of the newest."""
        durable = self.subscription.durable
        self.after, before = position, self.after
        if durable is not None and not (self._is_first and self._is_newest):
            durable.fed(0 if self._is_newest else before, position)
            self._is_newest = False

    def _tell_removed(self, position: int) -> None:
        """Tell of what was removed from the archive up to there, before what is behind that goes out. All that comes of
        it is found by now: what is removed later counts no more."""
        gone = {each for each in self._again if each <= position}
        count = len(gone)
        if position > self._asked:
            durable, passed = self.subscription.durable, [(self._asked, position)]
            for after, up_to in durable.not_acknowledged(*passed[0]) if durable is not None else passed:
                part = msgspec.structs.replace(self._query, after=after, up_to=up_to)
                count += self._archive.keeping.expired(part)
            self._asked = position
        self._again -= gone
        if count:
            self.session.lose(self.subscription, Cause.EXPIRED, count)

    def _arm(self, position: int) -> None:
        self.target = position
        again, dropped = self.session.feeds.arm(self.subscription, position)
        if again >= 0:
            self._again.update(each for each in dropped if again < each <= self._asked)
            self.after, self._asked = again, max(self._asked, again) if dropped else again

    def _open_round(self, state: CatchUpState) -> None:
        """Ask for what is between where it is and where positions stand now; later, if that can't be."""
        subscription = self.subscription
        try:
            if state is CatchUpState.BEHIND:
                if not self._archive.arrivals.have_come(self):
                    self.thread.wake(self, ARRIVAL_SECONDS)
                    return
                self._archive.here(self._arm)
            self._archive.wait_synced(self.target)
            self._revision = subscription.revision & ~1  # one that is being amended is asked for again
            self._query = self._round()
            self._results = open_query(self._archive.keeping, self._query, self.wake)
        except JbiError as exc:  # no room for one more query; or the disk fails
            log.info("subscription %s waits for the archive: %s", subscription.uid, exc)
            self.fail()

    def _round(self) -> HistoryQuery:
        request, caller = self.subscription.request, self.subscription.caller
        start = request.start
        scopes, *_ = self._scopes.scopes_of(
            QueryRequest(
                entries=request.entries, predicate=request.predicate, namespaces=request.namespaces, view=request.view
            ),
            caller,
            "subscribe",
        )
        if request.unlike or request.local:
            scopes = self._scopes.without_unwanted(scopes, self.subscription)
        query = HistoryQuery(scopes=scopes, after=min(self.after, self.target), up_to=self.target)
        if not self._is_first:
            return query
        if start.kind == "since":
            return msgspec.structs.replace(query, since=start.since)
        if start.kind == "last":
            self._is_newest, self._asked = True, MAX_POSITION  # it wants nothing of before
        if start.kind == "last" and start.latest_by:
            return msgspec.structs.replace(query, latest_by=start.latest_by)
        if start.kind == "last":
            return msgspec.structs.replace(query, order="newest", limit=1)
        return query

    def _is_another(self) -> bool:
        """Whether it asks for something else now than in its round, or may see something else."""
        return self.is_stale or conditions_of(self._round().scopes) != conditions_of(self._query.scopes)


class ArchiveCatchUps:
    """The catch-ups of a delegate or peer publisher. `_lock` covers them. Any thread."""

    def __init__(
        self,
        archive: Archiving,
        scopes: ArchiveScopes,
        thread: FeedThread,
        incarnations: tuple[str, ...],
        lease: float,
        quota: RequestQuota,
        wall: Callable[[], float],
    ) -> None:
        """`incarnations`: those that subscribers are told; `lease`, `quota`: see Durables. Raises StorageError."""
        self._archive = archive
        self._scopes = scopes
        self._thread = thread
        self._incarnations = incarnations
        self.durables: Final = Durables(archive.keeping, lease, archive.under_way, quota, wall=wall, clock=thread.clock)
        archive.is_wanted = self.durables.wants
        self._noted = thread.clock()
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], ArchiveCatchUp] = {}

    # -- of a subscription ----------------------------------------------------------------------------------------

    def attach(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """A durable subscription comes, perhaps again; a new one that begins with the present, with the object at
        position `first`. Raises AccessDeniedError, ConfigurationError, StorageError."""
        request, begin = subscription.request, partial(self._beginning, subscription.request.start, first)
        subscription.durable = self.durables.attach(request, subscription.caller, session, begin)

    def open(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Open the queue of a subscription, and let it catch up with what its `start` says, from `begin` on: one that
        begins behind the greatest position, which nothing has, begins with the present, as in `attach`."""
        start, durable = subscription.request.start, subscription.durable
        catch_up = ArchiveCatchUp(
            self._thread, session, subscription, self._archive, self._scopes,
            after=durable.position if durable is not None else self._beginning(start, first),
            is_told=self._scopes.is_elsewhere(start), left=self._forget,
        )  # fmt: skip
        with self._lock:
            self._open[catch_up.key] = catch_up
        self._thread.start()
        session.feeds.add_replay(subscription, catch_up.wake, durable)

    def begin(self, session_id: str, subscription: Subscription) -> None:
        """Begin, as the subscription is in the match tables now."""
        catch_up = self._open.get((session_id, subscription.number))
        if catch_up is not None:
            catch_up.wake()

    def amend(self, session_id: str, subscription: Subscription) -> None:
        """One has other terms: what it has not caught up with yet is looked for by these."""
        if subscription.durable is not None:
            subscription.durable.amend(subscription.request)
        catch_up = self._open.get((session_id, subscription.number))
        if catch_up is not None:
            catch_up.is_changed = True
            catch_up.wake()

    def archive_of(self, subscription: Subscription) -> tuple[tuple[str, ...], bool, bool]:
        """The facts that `Granted` tells of the archive to one that is filled from it."""
        durable = subscription.durable
        begins = durable is None or durable.is_new
        is_elsewhere = begins and self._scopes.is_elsewhere(subscription.request.start)
        return self._incarnations, is_elsewhere, begins and durable is not None

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
        for catch_up in self._all():
            if catch_up.subscription.durable is durable:
                catch_up.session.feeds.fall_back(catch_up.subscription, position)
                catch_up.wake()
        return True

    def end(self, name: str, secret: str, caller: Caller | None) -> bool:
        """See HistoryProxy.end_durable."""
        durable = self.durables.find(name, owner_of(secret, caller))
        if durable is None:
            return False
        if (holder := durable.session) is not None and not holder.has_gone:
            raise ConfigurationError(
                f"durable subscription {name!r} is open in a process of {holder.name[:100]!r}",
                hint="Close it there first",
            )
        self.durables.cancel(durable)
        return True

    # -- of all ---------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Put down what durable subscriptions have had. Often."""
        if self._thread.clock() - self._noted >= NOTE_SECONDS:
            self._noted = self._thread.clock()
            self.note()

    def note(self) -> None:
        """The same now: what can't be is in the log."""
        try:
            self.durables.note()
        except StorageError as exc:
            log.error("the positions of durable subscriptions are not stored: %s", exc)

    def ask_again(self) -> None:
        """The access rules have changed: who catches up goes on by those."""
        for catch_up in self._all():
            catch_up.is_changed = True
            catch_up.wake()

    @property
    def count(self) -> int:
        """Number of subscriptions that have something to catch up with."""
        return sum(each.is_behind for each in self._all())

    def stop(self) -> None:
        """End all without a word. The thread has ended."""
        for catch_up in self._all():
            catch_up.part()

    def _beginning(self, start: Start, first: int) -> int:
        """The position behind which a beginning begins; `first`: that of the first object of the present."""
        if start.kind == "new" or start.after == MAX_POSITION:
            return first - 1
        return start.after if start.kind == "after" and not self._scopes.is_elsewhere(start) else 0

    def _all(self) -> list[ArchiveCatchUp]:
        with self._lock:
            return list(self._open.values())

    def _forget(self, catch_up: ArchiveCatchUp) -> None:
        with self._lock:
            self._open.pop(catch_up.key, None)

    def _position_of(self, start: Start, durable: Durable, caller: Caller | None) -> int:
        """Behind which a durable subscription has what a beginning says."""
        here = self._archive.here()
        self._scopes.check_place(start.after, start.archive)
        if start.kind in ("all", "after"):
            return min(start.after, here)
        if start.kind == "new":
            return here
        self._archive.wait_synced(here)
        scopes, *_ = self._scopes.scopes_of(QueryRequest(entries=durable.entries), caller, "subscribe")
        query = HistoryQuery(scopes=scopes, up_to=here, order="newest", limit=1)
        if start.kind == "since":
            query = msgspec.structs.replace(query, until=max(0.0, math.nextafter(start.since, 0.0)))
        found = self._first(query)
        if found is None:
            return 0
        return found.position - (start.kind == "last")

    def _first(self, query: HistoryQuery) -> QueryResult | None:
        """The first result. Raises WireTimeoutError, StorageError."""
        deadline = self._thread.clock() + FIRST_SECONDS
        with closing(looks(partial(open_query, self._archive.keeping, query), 1, TAKEN_BYTES)) as all_found:
            for progress, found in all_found:
                if found:
                    return found[0]
                if progress.state == "running" and self._thread.clock() >= deadline:
                    raise WireTimeoutError(f"the archive did not answer within {FIRST_SECONDS:g} s")
        if progress.state != "finished":
            raise StorageError(f"the archive could not look: {progress.error or progress.state}")
        return None
