"""Who subscribes late catches up here, with what lies on the shelves since the subscription stood (see shelf.py).

One thread a delegate, started when it is first needed. It takes all newcomers that wait at once and goes over what is
kept once for them together, with a match table of their own: who comes meanwhile shares the next pass. What comes live
waits in their outlets, so nobody waits for them, nor for what a pass costs. A session that comes and goes waits the
longer for its next pass, the longer its last one took.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.pad.delivery import SubscriberSession
from jbi_pubsub.pad.dissemination import MatchTable, disseminate
from jbi_pubsub.pad.outlet import Arrears, Budget, Waiting
from jbi_pubsub.pad.registration import Topic
from jbi_pubsub.pad.shelf import OVERHEAD, Kept, Shelves
from jbi_pubsub.pad.subscription import Subscription

log = logging.getLogger("jbi_pubsub.pad")

PASS_PART: Final = 4
"""A session's newcomers cost at most a quarter of the time: after a pass of 10 ms they wait 30 ms for the next."""
REFERENCE_BYTES: Final = 8
"""What it takes to put an object down for one more subscription."""


@dataclass(eq=False, slots=True)
class Newcomer:
    """A subscription that was put into the tables of its `topics`, each with its mark on the shelf, and stood before
    that, `since` (delegate's clock).

    `session` is None for one that has mail alone."""

    subscription: Subscription
    session: SubscriberSession | None
    topics: list[tuple[Topic, int]]
    since: float
    arrears: Arrears
    missed: int = 0


class Newcomers:
    """See the module. `_changed` covers who waits."""

    def __init__(
        self,
        shelves: Shelves,
        budget: Budget,
        mail_out: Callable[[Subscription, Parcel, Parcel], None],
        *,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`mail_out(subscription, parcel, published)` sends an object by mail."""
        self._shelves = shelves
        self._budget = budget
        self._mail_out = mail_out
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[Newcomer] = []
        self._not_before: WeakKeyDictionary[SubscriberSession, float] = WeakKeyDictionary()
        self._busy = 0
        self._gathered = 0
        """Bytes that the pass has taken so far: cut payloads and references. No more than one queue may hold; what is
        over that is dropped, and told."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._name = name

    def welcome(
        self,
        subscription: Subscription,
        session: SubscriberSession | None,
        topics: list[tuple[Topic, int]],
        since: float,
    ) -> None:
        """Let a subscription catch up that has just been put into the topics' tables. Its outlet is held until then."""
        newcomer = Newcomer(subscription, session, topics, since, Arrears(subscription.request, self._budget.share))
        if not any(self._shelves.owes(topic.shelf, since) for topic, _ in topics):
            self._let_go([newcomer])
            return
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting.append(newcomer)
            self._changed.notify_all()

    @property
    def count(self) -> int:
        """How many are catching up."""
        with self._changed:
            return len(self._waiting) + self._busy

    def drain(self, timeout: float) -> int:
        """Wait until nobody is catching up; how many are after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)
            return len(self._waiting) + self._busy

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread. Who still waits gets nothing more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and not self._due():
                    self._changed.wait(self._pause())
                if self._stopping:
                    return
                newcomers = self._due()
                self._waiting = [n for n in self._waiting if n not in newcomers]
                self._busy = len(newcomers)
            self._serve(newcomers)
            with self._changed:
                self._busy = 0
                self._changed.notify_all()

    def _due(self) -> list[Newcomer]:
        now = self._clock()
        return [n for n in self._waiting if n.session is None or self._not_before.get(n.session, now) <= now]

    def _pause(self) -> float | None:
        """Until the first of those that wait may come; None: nobody waits."""
        if not self._waiting:
            return None
        first = min(self._not_before[n.session] for n in self._waiting if n.session is not None)
        return max(0.0, first - self._clock())

    def _serve(self, newcomers: list[Newcomer]) -> None:
        began = self._clock()
        done = False
        with guarded("catching up of subscriptions"):
            self._gather(newcomers)
            done = True
        if not done:  # what there was for them is not known, but they are not to wait for ever
            for newcomer in newcomers:
                newcomer.arrears = Arrears(newcomer.subscription.request, self._budget.share)
        self._let_go(newcomers, is_unknown=not done)
        now = self._clock()
        wait_until = now + (PASS_PART - 1) * (now - began)
        with self._changed:
            for session in {n.session for n in newcomers if n.session is not None}:
                self._not_before[session] = wait_until

    def _gather(self, newcomers: list[Newcomer]) -> None:
        """Find what each of them is owed: one pass over what is kept."""
        self._gathered = 0
        by_topic: dict[Topic, list[tuple[Newcomer, int]]] = {}
        for newcomer in newcomers:
            for topic, mark in newcomer.topics:
                by_topic.setdefault(topic, []).append((newcomer, mark))
        of_subscription = {id(n.subscription): n for n in newcomers}
        shelves = []
        for topic, those in by_topic.items():
            table = MatchTable()
            lying, missed = self._shelves.look(topic.shelf, [(newcomer.since, mark) for newcomer, mark in those])
            for (newcomer, _), count in zip(those, missed, strict=True):
                table.add(newcomer.subscription)
                newcomer.missed += count
            first, last = min(n.since for n, _ in those), max(n.subscription.place for n, _ in those)
            shelves.append([(k.position, k, table) for k in lying if k.time >= first and k.position <= last])
        for _, kept, table in heapq.merge(*shelves, key=lambda entry: entry[0]):
            if self._stopping:
                return
            self._owe(kept, table, of_subscription)

    def _owe(self, kept: Kept, table: MatchTable, newcomers: dict[int, Newcomer]) -> None:
        """Put one kept object down for those that it matches."""
        metadata = kept.parcel.head.metadata
        document = kept.reader.read(metadata) if table.predicates else None
        matched = table.match(document, len(metadata))
        matched = [s for s in matched if kept.position <= s.place and kept.time >= newcomers[id(s)].since]
        if not matched:
            return
        self._shelves.found(kept)
        result = disseminate(kept.parcel, matched)
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        together: dict[tuple[SubscriberSession | None, int], Waiting] = {}
        for subscription, parcel, is_filtered in result.selected:
            subscription.unfiltered += not is_filtered
            newcomer = newcomers[id(subscription)]
            if newcomer.session is not None:
                self._put_down(newcomer, parcel, kept.parcel, together)
            if subscription.request.recipients:
                self._mail_out(subscription, parcel, kept.parcel)

    def _put_down(
        self,
        newcomer: Newcomer,
        parcel: Parcel,
        published: Parcel,
        together: dict[tuple[SubscriberSession | None, int], Waiting],
    ) -> None:
        if self._gathered > self._budget.share:
            newcomer.arrears.dropped += 1
            return
        key = newcomer.session, id(parcel)
        if key not in together:
            together[key] = Waiting(parcel)
            self._gathered += OVERHEAD + (0 if parcel is published else parcel.size)
        self._gathered += REFERENCE_BYTES
        newcomer.arrears.owe(together[key])

    def _let_go(self, newcomers: Iterable[Newcomer], *, is_unknown: bool = False) -> None:
        """Each session's in one step, so that what several of them get goes over the link once."""
        by_session: dict[SubscriberSession, list[Newcomer]] = {}
        for newcomer in newcomers:
            if newcomer.session is not None:
                by_session.setdefault(newcomer.session, []).append(newcomer)
            elif newcomer.missed:
                newcomer.subscription.lost[Cause.MISSED] += newcomer.missed
                log.warning("subscription %s: %d objects missed", newcomer.subscription.uid, newcomer.missed)
        for session, those in by_session.items():
            session.catch_up((n.subscription, n.arrears, n.missed) for n in those)
            if is_unknown:
                for newcomer in those:
                    session.lose(newcomer.subscription, Cause.MISSED, 0)
