"""Late subscribers catch up here, with what lies in the buffers since the subscription stood (see recent.py).

One thread a delegate, started when it is first needed. The late joiners of a session make a group: one pass over what
is kept serves them together, with a match table of their own. What comes live waits in their queues, so no publisher
waits for them. A pass goes in slices of some ms, with a pause as long behind each; between slices the turn is that of
the peer, then of the session, that has used the least: a stranger with costly predicates, or who comes and goes, holds
up himself. Of what leaves the buffer meanwhile it is counted how much was missed.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.queue import Backlog, Waiting, backlog_of
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.dissemination import Disseminated, Seal, disseminate, takes
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.recent import OVERHEAD, Kept, RecentBuffers
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.quality import Shaping
from jbi_pubsub.pad.model.subscription import Subscription

log = logging.getLogger("jbi_pubsub.pad")

SLICE_SECONDS: Final = 0.02
"""Length of a turn: some 1,000 objects with usual predicates. The pause behind leaves publishers half of the time."""
STARTED_MOST: Final = 16
"""Groups that are under way at once: each holds what it has found so far."""
PAID_OFF: Final = 4
"""Use is forgotten at a quarter of the speed of time: who has used a second is as good as new after four."""
NOBODY: Final = Disseminated(())
"""The result for an object that no late joiner gets."""
NOT_NARROWED: Final[Mapping[Topic, Predicate]] = {}
REFERENCE_BYTES: Final = 64
"""Size of the note of an object for one more subscription."""


@dataclass(eq=False, slots=True)
class _Joiner:
    """A subscription that was put into the tables of its `topics`, each with its mark in the buffer, and stood before
    that, `since` (delegate's clock)."""

    subscription: Subscription
    topics: dict[Topic, int]
    since: float
    backlog: Backlog
    narrowed: Mapping[Topic, Predicate]
    """Where it is matched by more than its own predicate."""
    refused: frozenset[Topic] = frozenset()
    """Those of its topics that it may have nothing of any more."""
    missed: int = 0

    def may_have(self, kept: Kept, topic: Topic, document: Element | Traced | None, size: int) -> bool:
        """Whether it may have an object that its own predicate matches."""
        if (
            topic not in self.topics
            or topic in self.refused
            or kept.position > self.subscription.place
            or kept.time < self.since
            or (self.subscription.is_replayed and (kept.parcel.position or kept.parcel.was_kept))  # its feed has it
        ):
            return False
        predicate = self.narrowed.get(topic)
        if predicate is None or document is None:
            return predicate is None
        return predicate.decide(document if isinstance(document, Element) else document.root, size) is True


def narrowing(subscription: Subscription, let_in: Mapping[Topic, Predicate | None]) -> dict[Topic, Predicate]:
    """The topics in which another predicate than its own holds."""
    return {topic: p for topic, p in let_in.items() if p is not None and p is not subscription.predicate}


@dataclass(eq=False)
class _Group:
    """Late joiners of one session (None: who have mail alone), and how far their pass has got."""

    session: SubscriberSession | None
    peer: str
    number: int
    joiners: dict[int, _Joiner] = field(default_factory=dict)
    table: MatchTable = field(default_factory=MatchTable)
    next: dict[Topic, int] = field(default_factory=dict)
    """Objects of each buffer that have been looked at or have gone."""
    found: int = 0
    """Bytes found: cut payloads and references. No more than one queue may hold; what is over that is dropped."""


def _selected(table: MatchTable, matched: list[Subscription], kept: Kept) -> list[Subscription]:
    """Those that want an object, of whom its metadata match."""
    head, origin = kept.parcel.head, kept.reader.origin
    wanted = [each for each in matched if takes(each, origin)]
    if not any(each.combined is not None for each in wanted):
        return wanted
    seen = table.view(head, origin)
    return [each for each in wanted if each.combined is None or each in seen]


class LateJoiners:
    """See the module. `_changed` covers the groups."""

    def __init__(
        self,
        buffers: RecentBuffers,
        budget: Budget,
        mail_out: Callable[[Subscription, Parcel, Parcel], None],
        *,
        name: str,
        seal: Seal | None = None,
        shaper: Shaping | None = None,
        refuse: Callable[[Subscription, Cause], None] = lambda subscription, cause: None,  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`mail_out(subscription, parcel, published)` sends an object by mail; `seal` says what was cut, `shaper`
        shapes it; `refuse(subscription, cause)` loses an object that is not for it."""
        self._buffers = buffers
        self._seal = seal
        self._shaper = shaper
        self._refuse = refuse
        self._budget = budget
        self._mail_out = mail_out
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, _Group] = {}
        """By session, or peer of who have mail alone: whoever comes joins; the others are under way."""
        self._started: dict[Hashable, _Group] = {}
        self._of: dict[int, _Group] = {}
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
        backlog = backlog_of(subscription, self._budget.share)
        joiner = _Joiner(subscription, dict(topics), since, backlog, narrowed)
        if not any(self._buffers.owes(topic.buffer, since) for topic in joiner.topics):
            self._let_go(session, [joiner])
            return
        with self._changed:
            is_taken = self._has_thread()
            if is_taken:
                key: Hashable = session if session is not None else ("mail", peer)
                group = self._waiting.get(key)
                if group is None:
                    self._groups += 1
                    group = self._waiting[key] = _Group(session, peer, self._groups)
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
                log.warning("nobody can catch up: %s", exc)
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
            is_done = self._pass(group)
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

    def _pass(self, group: _Group) -> bool:
        """Look at what is kept, until the slice is over; whether all was looked at."""
        if not group.joiners:
            return True
        lists = [self._ahead(group, topic) for topic in {t for n in list(group.joiners.values()) for t in n.topics}]
        until = time.monotonic() + SLICE_SECONDS
        for _, topic, kept in heapq.merge(*lists, key=lambda entry: entry[0]):
            if time.monotonic() > until or self._stopping:
                return False
            with guarded("catching up with an object"):  # one that fails is nobody's; the others go on
                self._owe(kept, topic, group)
            group.next[topic] += 1
        return True

    def _ahead(self, group: _Group, topic: Topic) -> list[tuple[int, Topic, Kept]]:
        """The part of a topic's buffer that the group has not seen; what has gone unseen is missed."""
        those = [n for n in list(group.joiners.values()) if topic in n.topics]
        last = max((n.topics[topic] for n in those), default=0)
        lying, gone, missed = self._buffers.look(topic.buffer, [(n.since, n.topics[topic]) for n in those])
        seen = group.next.get(topic)
        for joiner, count in zip(those, missed, strict=True):
            joiner.missed += count if seen is None else max(0, min(gone, joiner.topics[topic]) - seen)
        start = group.next[topic] = max(gone, seen or 0)
        return [(kept.position, topic, kept) for kept in lying[start - gone : max(0, last - gone)]]

    def _owe(self, kept: Kept, topic: Topic, group: _Group) -> None:
        """Put one kept object down for those that it matches."""
        joiners, metadata = group.joiners, bytes(kept.parcel.head.metadata)
        if kept.time < min((n.since for n in list(joiners.values())), default=math.inf):
            return
        result = self._decide(kept, topic, group, metadata)
        if result is None:  # one of them was amended meanwhile
            with group.table.amendment:
                result = self._decide(kept, topic, group, metadata)
        if result is None or result is NOBODY:
            return
        self._buffers.found(kept)
        for subscription in result.oversize:
            subscription.meter_lost(kept.parcel.head.type_name)
            self._refuse(subscription, Cause.OVERSIZE)
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        together: dict[int, Waiting] = {}
        for subscription, parcel, is_filtered, _ in result.selected:
            subscription.unfiltered += not is_filtered
            if group.session is not None:
                self._put_down(group, joiners.get(id(subscription)), parcel, kept.parcel, together, kept.time)
            if subscription.request.recipients:
                self._mail_out(subscription, parcel, kept.parcel)

    def _decide(self, kept: Kept, topic: Topic, group: _Group, metadata: bytes) -> Disseminated | None:
        """The result of an object for late joiners; None: one was amended meanwhile (see `match_table.amending`)."""
        joiners, table = group.joiners, group.table
        revision = table.revision
        is_read = table.predicates or any(topic in n.narrowed for n in list(joiners.values()))
        document = kept.reader.read(metadata) if is_read else None
        matched = [
            s
            for s in table.match(document, len(metadata))
            if (n := joiners.get(id(s))) is not None and n.may_have(kept, topic, document, len(metadata))
        ]
        if matched and table.selective:
            matched = _selected(table, matched, kept)
        result = disseminate(kept.parcel, matched, self._seal, self._shaper) if matched else NOBODY
        return result if revision % 2 == 0 and table.revision == revision else None

    def _put_down(
        self,
        group: _Group,
        joiner: _Joiner | None,
        parcel: Parcel,
        published: Parcel,
        together: dict[int, Waiting],
        came: float,
    ) -> None:
        if joiner is None:  # cancelled just now
            return
        if group.found > self._budget.share:
            joiner.backlog.drop(parcel)
            return
        if parcel.expires and group.session is not None:
            group.session.expect_expiry()
        if joiner.subscription.is_replayed:  # its queue is placed: nothing goes out together with others
            group.found += OVERHEAD + parcel.size
            joiner.backlog.owe(Waiting(parcel, arrived=parcel.since or came))
            return
        if id(parcel) not in together:
            together[id(parcel)] = Waiting(parcel, arrived=parcel.since or came)
            group.found += OVERHEAD + (0 if parcel is published else parcel.size)
        group.found += REFERENCE_BYTES
        joiner.backlog.owe(together[id(parcel)])

    def _let_go(
        self, session: SubscriberSession | None, joiners: Iterable[_Joiner], *, is_unknown: bool = False
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
