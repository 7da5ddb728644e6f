"""Match tables: who wants what of a topic, by predicate, and an index over all of these. Pure.

Predicates that cost much are partitioned by importance (see partition.py). A subscription whose terms change is
amended in all its tables at once (`amending`): an object is judged by the old terms or by the new ones, predicate and
filter alike.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from jbi_pubsub.core.combined import OWN_BYTES, Provenance, combined
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.info_object import Head
from jbi_pubsub.core.quality import LEVELS
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import MAX_COST_OF_REGISTRATION, CostBudget, Predicate, PredicateIndex
from jbi_pubsub.pad.matching.partition import Partition, Stamp, level_of
from jbi_pubsub.pad.model.subscription import Subscription

COUNTERS: Final = ("documents", "evaluations", "xpath_evaluations", "errors")
"""Counters of an index, those that only grow."""

PARTITIONED_SECONDS: Final = 0.001
UNITED_SECONDS: Final = 0.0005
"""Time for judging an object above which predicates are partitioned by importance, and below which no more."""


class MatchTable:
    """The subscriptions whose template matched one set of invariants, with their predicates indexed.

    One writer at a time (the delegate's lock); readers need none: the index swaps snapshots.
    """

    def __init__(self) -> None:
        self._index: PredicateIndex[Subscription] | Partition = PredicateIndex()
        self.parts: Partition | None = None
        """The same, where predicates are partitioned by importance: see `balance`."""
        self._counted: Counter[str] = Counter()
        """Counts of indexes before this one."""
        self._narrowed: dict[Subscription, Predicate] = {}
        """Predicates of those subscriptions of which access rules let through a part."""
        self.predicates = 0
        """Number of subscriptions with a predicate: without any the metadata need not be read."""
        self.filters = 0
        """Number of subscriptions with a payload filter: without any payloads need not be parsed."""
        self.selective = 0
        """Number of subscriptions that do not want all that they match by the metadata: see Subscription."""
        self._view: PredicateIndex[Subscription] | None = None
        """Predicates on the combined view, as long as there are some."""
        self.budget = CostBudget(MAX_COST_OF_REGISTRATION)
        """Costs of all that is evaluated for an object."""
        self.version = 0
        """Changes with every subscription that comes or goes."""
        self.revision = 0
        """Grows when a subscription is amended here; odd while it is. What was decided over a change is decided again,
        with `amendment` held."""
        self.amendment = threading.Lock()
        self.settled = 0
        """Position in the buffer (see recent.py) up to which some of the subscriptions get objects from there, although
        they are here; FAR while one is on its way in."""

    def __len__(self) -> int:
        return len(self._index)

    def subscriptions(self) -> list[Subscription]:
        """All of them."""
        return self._index.keys()

    def __contains__(self, subscription: object) -> bool:
        return subscription in self._index

    def predicate_of(self, subscription: Subscription) -> Predicate | None:
        """The predicate that it is matched by."""
        return self._narrowed.get(subscription, subscription.predicate)

    def add(self, subscription: Subscription, predicate: Predicate | None = None) -> None:
        """Add a subscription that matched at the first level; twice counts once. `predicate`: what it is matched by
        instead of its own."""
        if subscription in self._index:
            return
        if predicate is not None and predicate is not subscription.predicate:
            self._narrowed[subscription] = predicate
        self._index.add(subscription, self.predicate_of(subscription))
        self.predicates += self.predicate_of(subscription) is not None
        self.filters += subscription.payload_filter is not None
        if subscription.is_selective:
            self._add_selective(subscription)
        self.budget.add(subscription.charges_by(self.predicate_of(subscription)))
        self.version += 1

    def remove(self, subscription: Subscription, *, to_amend: bool = False) -> None:
        """Take it out; unknown ones are ignored. `to_amend`: `add` puts it back where it stood among levels, until what
        is within `amending` ends."""
        if subscription in self._index:
            if to_amend and self.parts is not None:
                self.parts.lift(subscription)
            else:
                self._index.remove(subscription)
            self.predicates -= self.predicate_of(subscription) is not None
            self.filters -= subscription.payload_filter is not None
            if subscription.is_selective:
                self._remove_selective(subscription)
            self.budget.remove(subscription.charges_by(self.predicate_of(subscription)))
            self._narrowed.pop(subscription, None)
            self.version += 1

    def _add_selective(self, subscription: Subscription) -> None:
        if subscription.combined is not None:
            view = self._view or PredicateIndex()
            view.add(subscription, subscription.combined)
            self._view = view
        self.selective += 1

    def _remove_selective(self, subscription: Subscription) -> None:
        self.selective -= 1
        view = self._view
        if view is not None and subscription in view:
            view.remove(subscription)
            self._view = view if len(view) else None

    def view(self, head: Head, origin: Provenance) -> frozenset[Subscription]:
        """Those whose predicate is true for the combined view of an object."""
        view = self._view
        if view is None:  # whoever asked has just gone
            return frozenset()
        return frozenset(view.match(combined(head, origin), len(head.metadata) + OWN_BYTES))

    def replace(self, predicates: Mapping[Subscription, Predicate | None]) -> None:
        """Match these by other predicates from the next object on. Each object is matched by the old ones or by the new
        ones: none is lost or comes twice. It costs as much as to add all of the table's subscriptions."""
        effective = {each: self.predicate_of(each) for each in self._index.keys()}  # noqa: SIM118  # no dict
        for each, predicate in predicates.items():
            if each in effective:
                self.budget.remove(each.charges_by(effective[each]))
                self.budget.add(each.charges_by(predicate))
                effective[each] = predicate
        count = sum(predicate is not None for predicate in effective.values())
        self._narrowed = {each: p for each, p in effective.items() if p is not None and p is not each.predicate}
        self.predicates = max(self.predicates, count)  # while readers may have either index
        if self.parts is not None:
            self._count()
            self.parts.rebuild(effective)
        else:
            self._use(_index_of(effective))
        self.predicates = count
        self.version += 1

    def _use(self, index: PredicateIndex[Subscription] | Partition) -> None:
        self._count()
        self._index = index

    def _count(self) -> None:
        """Add up what the index has counted: another one takes its place."""
        stats = self._index.stats()
        self._counted.update({name: stats[name] for name in COUNTERS})

    def match(self, document: Element | Traced | None, size: int = 0) -> list[Subscription]:
        """Those whose predicate is true; without `document` those that have none. `size`: its bytes, if known."""
        has_predicates, index = self.predicates, self._index  # in this order: see `replace`
        if document is None or not has_predicates:
            return index.unconditional()
        return index.match(document, size)

    def count_again(self) -> None:
        """The last answer of `match` was given once more."""
        if self.predicates:
            self._index.count_again()

    def stats(self) -> dict[str, int]:
        """Counters of the predicate index (`evaluations` among them)."""
        stats = self._index.stats()
        return {**stats, **{name: stats[name] + self._counted[name] for name in COUNTERS}}

    # -- by importance ------------------------------------------------------------------------------------------

    def balance(self, cost: float, stamp: Stamp) -> None:
        """Partition the predicates by importance where an object costs `cost` seconds, and that is much; there, follow
        the importance of the subscriptions. `stamp`: see RecentBuffers.stamp. Now and then."""
        parts = self.parts
        if parts is None:
            if cost > PARTITIONED_SECONDS and len(set(map(level_of, self.subscriptions()))) > 1:
                self.partition()
            return
        if cost < UNITED_SECONDS or sum(map(parts.has, range(LEVELS))) < 2:
            self.unite()
        if self.parts is not None:
            parts.follow(self.predicate_of, self._changed, stamp)

    def partition(self) -> None:
        """An index for each level of importance from now on."""
        parts = Partition({each: self.predicate_of(each) for each in self.subscriptions()})
        self._use(parts)
        self.parts = parts
        self.version += 1

    def unite(self) -> None:
        """One index again, unless objects are between levels."""
        parts = self.parts
        if parts is None or parts.between:
            return
        index = _index_of({each: self.predicate_of(each) for each in self.subscriptions()})
        if not parts.end():  # one came in at this moment
            return
        self.parts = None
        self._use(index)
        self.version += 1

    def enter(self) -> Partition | None:
        """See Partition, which is to be left. None: there are no levels."""
        parts = self.parts
        return parts if parts is not None and parts.enter() else None

    def _changed(self) -> None:
        self.version += 1


@contextmanager
def amending(tables: Iterable[MatchTable]) -> Iterator[None]:
    """Within, terms of subscriptions in these tables change: what is decided meanwhile is decided again afterwards."""
    tables = list(tables)
    with ExitStack() as held:
        for table in tables:
            held.enter_context(table.amendment)
            table.revision += 1
        try:
            yield
        finally:
            for table in tables:
                if table.parts is not None:
                    table.parts.drop_lifted()
                table.version += 1
                table.revision += 1


def _index_of(predicates: Mapping[Subscription, Predicate | None]) -> PredicateIndex[Subscription]:
    index: PredicateIndex[Subscription] = PredicateIndex()
    for each, predicate in predicates.items():
        index.add(each, predicate)
    return index
