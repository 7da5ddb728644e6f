"""Amending a subscription that stands at a delegate: each object is judged by its old terms or by the new ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.errors import ConfigurationError, JbiError, StorageError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.tables import Key
from jbi_pubsub.pad.egress.late_join import LateJoiners
from jbi_pubsub.pad.egress.queues import Delivery
from jbi_pubsub.pad.matching.dissemination import takes
from jbi_pubsub.pad.matching.match_table import amending
from jbi_pubsub.pad.matching.recent import WITHDRAWN, RecentObject
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.requests import amended, check_request

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.catch_up import ArchiveCatchUps


FIRST_MOST: Final = 300
"""Objects that are looked at for who has waited for them, under the lock; those of topics beyond that are missed."""


class Amendments:
    """Under the delegate's lock, and taken back if what is to be kept of them can't be."""

    def __init__(self, core: DelegateCore, late_joiners: LateJoiners, catch_ups: ArchiveCatchUps | None) -> None:
        _, self._tables, self._contracts, self._events = core
        self._late_joiners = late_joiners
        self._catch_ups = catch_ups

    def amend(self, key: Key, known: Subscription, other: Subscription, since: float = math.inf) -> Subscription | None:
        """Under the lock: a subscription that stands has the terms of `other` from now on, between two objects. What it
        was before, None if these are the same. `since`: those for whom it is amended have stood since then (clock), and
        get what is kept of topics that it has had nothing of. Raises as `subscribe`; it has the old terms then."""
        changed = amended(known.request, other.request)
        if changed is None:
            raise ConfigurationError(
                f"subscription {known.uid} is registered here with other terms", hint="Cancel it first"
            )
        if changed == known.request:
            return None
        former, other.request, other.contract = copy(known), changed, known.contract
        let_in = self._tables.let_in(other, self._tables.topics.find(changed.entries))
        with contextlib.ExitStack() as undo:
            self._take_share(known, check_request(changed), undo)
            if changed.qos != known.request.qos:
                other.contract, _ = self._contracts.open_for(known, changed.qos, changed)
                undo.callback(self._contracts.end, other.contract)
            self._exchange(known, other, let_in, since)
            undo.pop_all()
        if other.contract is not former.contract:
            self._contracts.end(former.contract)
        self._tables.waiting.add(key, changed.entries)
        self._late_joiners.narrow(known, let_in)
        self._contracts.offers.forget(known)
        self._contracts.offers.required_by(known)
        if self._catch_ups is not None and known.is_replayed:
            self._catch_ups.amend(key[0], known)
        self._events.tell_subscription("updated", known)
        return former

    @contextlib.contextmanager
    def or_back(self, key: Key, known: Subscription, former: Subscription) -> Iterator[None]:
        """Keep the new terms of a subscription: if that fails it has the former ones again."""
        request = known.request
        try:
            yield
        except StorageError:
            with self._tables.lock, contextlib.suppress(JbiError):  # others may have taken what the former ones need
                if self._tables.subscriptions.get(key) is known and known.request is request:
                    self.amend(key, known, former)
            raise

    def _take_share(self, known: Subscription, size: int, undo: contextlib.ExitStack) -> None:
        """Its request has another size, and so what is kept of it if it is durable. Raises OversizeError."""
        for each in (known, known.durable):
            if each is not None:
                before, each.share = each.share, self._contracts.quota.take(known.caller, size, each.share)
                undo.callback(setattr, each, "share", before)
                undo.callback(self._contracts.quota.give_back, each.share, before)

    def _exchange(
        self, known: Subscription, other: Subscription, let_in: Mapping[Topic, Predicate | None], since: float
    ) -> None:
        """Give it the terms of `other`, in the tables of other topics. Raises OversizeError; nothing has changed
        then."""
        before = now = {topic: topic.table.predicate_of(known) for topic in self._tables.topics_of(known)}
        tables = dict.fromkeys(topic.table for topic in (*now, *let_in))
        catching_up = self._late_joiners.table_of(known)
        if catching_up is not None:
            tables[catching_up] = None
        with amending(tables):
            for table in tables:
                table.remove(known, to_amend=True)
            self._tables.refund(known)
            try:
                self._tables.check_cost(other, let_in)
                known.amend(other)
                now = dict(let_in)
            finally:
                if known.request.direct:
                    self._tables.charge(known)
                for topic, predicate in now.items():
                    topic.table.add(known, predicate)
                if catching_up is not None:
                    catching_up.add(known)
            if since < math.inf and catching_up is None:
                self._bring_first(known, before, let_in, since)

    def _bring_first(
        self, known: Subscription, before: Mapping[Topic, Predicate | None],
        let_in: Mapping[Topic, Predicate | None], since: float,
    ) -> None:  # fmt: skip
        """While nobody judges by its new terms: objects of topics that are kept whole, and of which the terms before
        have let nothing through. Who judges one of them meanwhile judges it again, and its subscriber drops that by its
        number."""
        session = self._tables.sessions.get(known.owner)
        if session is None or known.is_replayed or known.payload_filter is not None or known.combined is not None:
            return
        found: list[RecentObject] = []
        room, missed = FIRST_MOST, 0
        for topic, predicate in let_in.items():
            kept, gone, _ = self._tables.buffers.look(topic.buffer, ())
            looked = () if gone else kept[:room]
            room -= len(looked)
            if topic in before and any(_is_for(known, before[topic], each) for each in looked):
                continue
            if len(looked) == len(kept):
                found += (each for each in kept if each.time >= since and _is_for(known, predicate, each))
            elif not gone:
                missed += sum(each.time >= since for each in kept)
        parcels = [(known, each.parcel) for each in sorted(found, key=lambda each: each.position)]
        blocked: list[Delivery] = []
        session.offer(parcels, blocked=blocked)
        if missed + len(blocked):
            session.lose(known, Cause.MISSED, missed + len(blocked))


def _is_for(known: Subscription, predicate: Predicate | None, kept: RecentObject) -> bool:
    """Whether it is to have an object of those that a predicate lets through."""
    if kept.position >= WITHDRAWN or not takes(known, kept.reader.origin):
        return False
    metadata = bytes(kept.parcel.head.metadata)
    document = None if predicate is None else kept.reader.read(metadata)
    if predicate is None or document is None:
        return predicate is None
    return predicate.decide(document if isinstance(document, Element) else document.root, len(metadata)) is True
