"""Late subscribers catch up here, with what lies in the buffers since the subscription stood (see recent.py).

One thread a delegate, started when it is first needed. The late joiners of a session make a group: one pass over what
is kept serves them together, with a match table of their own. What comes live waits in their queues, so no publisher
waits for them. A pass goes in slices of some ms, with a pause as long behind each; between slices the turn is that of
the peer, then of the session, that has used the least: a stranger with costly predicates, or who comes and goes, holds
up himself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.pad.egress.buffer_pass import BufferPass, LateDelivery, LateJoiner
from jbi_pubsub.pad.egress.queue import Backlog
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.subscription import Subscription

log = logging.getLogger("jbi_pubsub.pad")

STARTED_MOST: Final = 16
"""Groups that are under way at once: each holds what it has found so far."""
PAID_OFF: Final = 4
"""Use is forgotten at a quarter of the speed of time: who has used a second is as good as new after four."""
NOT_NARROWED: Final[Mapping[Topic, Predicate]] = {}


def narrowing(subscription: Subscription, let_in: Mapping[Topic, Predicate | None]) -> dict[Topic, Predicate]:
    """The topics in which another predicate than its own holds."""
    return {topic: p for topic, p in let_in.items() if p is not None and p is not subscription.predicate}


class LateJoiners:
    """See the module. `_changed` covers the groups."""

    def __init__(self, delivery: LateDelivery, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._delivery = delivery
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, BufferPass] = {}
        """By session, or peer of who have mail alone: whoever comes joins; the others are under way."""
        self._started: dict[Hashable, BufferPass] = {}
        self._of: dict[int, BufferPass] = {}
        self._used: dict[Hashable, float] = {}
        self._counted_at = 0.0
        self._groups = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._name = name

    def welcome(
        self,
        subscription: Subscription,
        session: SubscriberSession | None,
        topics: Iterable[tuple[Topic, int]],
        since: float,
        peer: str = "",
        narrowed: Mapping[Topic, Predicate] = NOT_NARROWED,
    ) -> None:
        """Let a subscription catch up that has just been put into the topics' tables. Its queue is held until then.
        `narrowed`: the predicates that hold in some of them instead of its own."""
        backlog = Backlog(subscription, self._delivery.budget.share)
        joiner = LateJoiner(subscription, dict(topics), since, backlog, narrowed)
        if not any(self._delivery.buffers.owes(topic.buffer, since) for topic in joiner.topics):
            self._let_go(session, [joiner])
            return
        with self._changed:
            is_taken = self._has_thread()
            if is_taken:
                key: Hashable = session if session is not None else ("mail", peer)
                group = self._waiting.get(key)
                if group is None:
                    self._groups += 1
                    group = self._waiting[key] = BufferPass(self._delivery, session, peer, self._groups)
                group.joiners[id(subscription)] = joiner
                group.table.add(subscription)
                self._of[id(subscription)] = group
                self._changed.notify_all()
        if not is_taken:
            self._let_go(session, [joiner], is_unknown=True)

    def narrow(self, subscription: Subscription, let_in: Mapping[Topic, Predicate | None]) -> None:
        """Note that it may have another part from now on: it catches up with nothing else."""
        with self._changed:
            group = self._of.get(id(subscription))
            joiner = group.joiners.get(id(subscription)) if group is not None else None
            if joiner is not None:
                joiner.narrowed = narrowing(subscription, let_in)
                joiner.refused = frozenset(topic for topic in joiner.topics if topic not in let_in)

    def table_of(self, subscription: Subscription) -> MatchTable | None:
        """Where it is matched as long as it catches up."""
        with self._changed:
            group = self._of.get(id(subscription))
            return group.table if group is not None else None

    def forget(self, subscription: Subscription) -> None:
        """Look for nothing any more: the subscription has ended."""
        with self._changed:
            group = self._of.pop(id(subscription), None)
            if group is not None:
                group.joiners.pop(id(subscription), None)
                group.table.remove(subscription)
                self._changed.notify_all()

    @property
    def count(self) -> int:
        """Number of subscriptions that are catching up."""
        return len(self._of)

    def drain(self, timeout: float) -> None:
        """Wait until nobody is catching up, `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._of, timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread. Who is not done is told that he may have missed something."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(timeout)
        with self._changed:
            groups = [*self._started.values(), *self._waiting.values()]
            self._started, self._waiting, self._of = {}, {}, {}
        for group in groups:
            self._let_go(group.session, group.joiners.values(), is_unknown=True)

    def _has_thread(self) -> bool:
        """Under the lock: whether there is a thread, or could be started."""
        if self._thread is None and not self._stopping:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:  # the system has none for us now
                log.warning("catch-up is not possible: %s", exc)
                return False
            self._thread = thread
        return not self._stopping

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._started or self._waiting)
                if self._stopping:
                    return
            began = time.monotonic()
            with guarded("catching up of subscriptions"):
                self.step()
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, time.monotonic() - began)

    def step(self) -> None:
        """A slice of whoever's turn it is; done groups are let go."""
        with self._changed:
            key = self._turn()
            if key is None:
                return
            group = self._started.get(key) or self._waiting.pop(key)
            self._started[key] = group
        began = self._clock()
        is_done, has_failed = True, True
        with guarded("catching up of subscriptions"):
            is_done = group.go_on(lambda: self._stopping)
            has_failed = False
        with self._changed:
            for used in (key, group.peer):
                self._used[used] = self._used.get(used, 0.0) + self._clock() - began
            if is_done:
                self._started.pop(key, None)
                joiners = list(group.joiners.values())
                for joiner in joiners:
                    self._of.pop(id(joiner.subscription), None)
        if is_done:
            self._let_go(group.session, joiners, is_unknown=has_failed)
            with self._changed:
                self._changed.notify_all()

    def _turn(self) -> Hashable | None:
        """Under the lock: the group whose peer, and then whose session, has used the least; the older at a tie."""
        now = self._clock()
        paid = (now - self._counted_at) / PAID_OFF
        self._counted_at = now
        self._used = {key: used - paid for key, used in self._used.items() if used > paid}
        candidates = list(self._started.items())
        if len(candidates) < STARTED_MOST:
            candidates += [(key, group) for key, group in self._waiting.items() if key not in self._started]
        if not candidates:
            return None
        used = self._used
        return min(candidates, key=lambda c: (used.get(c[1].peer, 0.0), used.get(c[0], 0.0), c[1].number))[0]

    def _let_go(
        self, session: SubscriberSession | None, joiners: Iterable[LateJoiner], *, is_unknown: bool = False
    ) -> None:
        """A session's in one step, so that what several of them get goes over the link once."""
        joiners = list(joiners)
        if session is not None:
            session.catch_up([(n.subscription, n.backlog, n.missed) for n in joiners])
        for joiner in joiners:
            subscription = joiner.subscription
            if session is not None:
                if is_unknown:
                    session.lose(subscription, Cause.MISSED, 0)
            elif joiner.missed or is_unknown:
                subscription.lost[Cause.MISSED] += joiner.missed
                count = "an unknown number of" if is_unknown else joiner.missed
                log.warning("subscription %s: %s objects missed", subscription.uid, count)
