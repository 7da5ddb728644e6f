"""A pass over what a delegate has in memory, for the late joiners of one session: what came before they stood in the
tables, and since they stand.

The cursor says how far each buffer has been looked at; a mark, where the live objects of a late joiner begin. Of what
leaves a buffer meanwhile it is counted how much was missed.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.queue import Backlog, Waiting
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.dissemination import Disseminated, Seal, disseminate, takes
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.recent import OVERHEAD, RecentBuffers, RecentObject
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.quality import Shaping
from jbi_pubsub.pad.model.subscription import Subscription

SLICE_SECONDS: Final = 0.02
"""Length of a turn: some 1,000 objects with usual predicates. The pause behind leaves publishers half of the time."""
NOBODY: Final = Disseminated(())
"""The result for an object that no late joiner gets."""
REFERENCE_BYTES: Final = 64
"""Size of the note of an object for one more subscription."""


@dataclass(frozen=True)
class LateDelivery:
    """Where the objects of late joiners come from, and go to. `mail_out(subscription, parcel, published)` sends one by
    mail; `seal` says what was cut, `shaper` shapes it; `refuse(subscription, cause)` loses one that is not for it."""

    buffers: RecentBuffers
    budget: Budget
    mail_out: Callable[[Subscription, Parcel, Parcel], None]
    refuse: Callable[[Subscription, Cause], None]
    seal: Seal | None = None
    shaper: Shaping | None = None


@dataclass(eq=False, slots=True)
class LateJoiner:
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

    def may_have(self, kept: RecentObject, topic: Topic, document: Element | Traced | None, size: int) -> bool:
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


class BufferPass:
    """Late joiners of one session (None: who have mail alone), and how far their pass has got."""

    def __init__(self, delivery: LateDelivery, session: SubscriberSession | None, peer: str, number: int) -> None:
        self.session, self.peer, self.number = session, peer, number
        self.joiners: dict[int, LateJoiner] = {}
        """By identity of the subscription. Those that come and go meanwhile do so under the lock of LateJoiners."""
        self.table = MatchTable()
        self._delivery = delivery
        self._next: dict[Topic, int] = {}
        """Objects of each buffer that have been looked at or have gone."""
        self._found = 0
        """Bytes found: cut payloads and references. No more than one queue may hold; what is over that is dropped."""

    def go_on(self, is_stopping: Callable[[], bool]) -> bool:
        """Look at what is kept, until the slice is over, or the thread stops; whether all was looked at."""
        if not self.joiners:
            return True
        lists = [self._ahead(topic) for topic in {t for n in list(self.joiners.values()) for t in n.topics}]
        until = time.monotonic() + SLICE_SECONDS
        for _, topic, kept in heapq.merge(*lists, key=lambda entry: entry[0]):
            if time.monotonic() > until or is_stopping():
                return False
            with guarded("catching up with an object"):  # one that fails is nobody's; the others go on
                self._owe(kept, topic)
            self._next[topic] += 1
        return True

    def _ahead(self, topic: Topic) -> list[tuple[int, Topic, RecentObject]]:
        """The part of a topic's buffer that the group has not seen; what has gone unseen is missed."""
        those = [n for n in list(self.joiners.values()) if topic in n.topics]
        last = max((n.topics[topic] for n in those), default=0)
        lying, gone, missed = self._delivery.buffers.look(topic.buffer, [(n.since, n.topics[topic]) for n in those])
        seen = self._next.get(topic)
        for joiner, count in zip(those, missed, strict=True):
            joiner.missed += count if seen is None else max(0, min(gone, joiner.topics[topic]) - seen)
        start = self._next[topic] = max(gone, seen or 0)
        return [(kept.position, topic, kept) for kept in lying[start - gone : max(0, last - gone)]]

    def _owe(self, kept: RecentObject, topic: Topic) -> None:
        """Put one kept object down for those that it matches."""
        joiners, metadata = self.joiners, bytes(kept.parcel.head.metadata)
        if kept.time < min((n.since for n in list(joiners.values())), default=math.inf):
            return
        result = self._decide(kept, topic, metadata)
        if result is None:  # one of them was amended meanwhile
            with self.table.amendment:
                result = self._decide(kept, topic, metadata)
        if result is None or result is NOBODY:
            return
        self._delivery.buffers.found(kept)
        for subscription in result.oversize:
            subscription.meter_lost(kept.parcel.head.type_name)
            self._delivery.refuse(subscription, Cause.OVERSIZE)
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        together: dict[int, Waiting] = {}
        for subscription, parcel, is_filtered, _ in result.selected:
            subscription.unfiltered += not is_filtered
            if self.session is not None:
                self._put_down(joiners.get(id(subscription)), parcel, kept.parcel, together, kept.time)
            if subscription.request.recipients:
                self._delivery.mail_out(subscription, parcel, kept.parcel)

    def _decide(self, kept: RecentObject, topic: Topic, metadata: bytes) -> Disseminated | None:
        """The result of an object for late joiners; None: one was amended meanwhile (see `match_table.amending`)."""
        joiners, table = self.joiners, self.table
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
        result = disseminate(kept.parcel, matched, self._delivery.seal, self._delivery.shaper) if matched else NOBODY
        return result if revision % 2 == 0 and table.revision == revision else None

    def _put_down(
        self,
        joiner: LateJoiner | None,
        parcel: Parcel,
        published: Parcel,
        together: dict[int, Waiting],
        came: float,
    ) -> None:
        if joiner is None:  # cancelled just now
            return
        if self._found > self._delivery.budget.share:
            joiner.backlog.drop(parcel)
            return
        if parcel.expires and self.session is not None:
            self.session.expect_expiry()
        if joiner.subscription.is_replayed:  # its queue is placed: nothing goes out together with others
            self._found += OVERHEAD + parcel.size
            joiner.backlog.owe(Waiting(parcel, arrived=parcel.since or came))
            return
        if id(parcel) not in together:
            together[id(parcel)] = Waiting(parcel, arrived=parcel.since or came)
            self._found += OVERHEAD + (0 if parcel is published else parcel.size)
        self._found += REFERENCE_BYTES
        joiner.backlog.owe(together[id(parcel)])


def _selected(table: MatchTable, matched: list[Subscription], kept: RecentObject) -> list[Subscription]:
    """Those that want an object, of whom its metadata match."""
    head, origin = kept.parcel.head, kept.reader.origin
    wanted = [each for each in matched if takes(each, origin)]
    if not any(each.combined is not None for each in wanted):
        return wanted
    seen = table.view(head, origin)
    return [each for each in wanted if each.combined is None or each in seen]
