"""Interest of the subscriptions here in what bridges relay to us: who relays it asks, and may leave out what nobody
wants.

It is made of the match tables, when somebody asks and they are not what they were. So it costs nothing where there is
no bridge, and nothing per object.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.xpath.narrowing import joined
from jbi_pubsub.core.xpath.predicate import XPATH
from jbi_pubsub.pad.delegate.tables import Tables
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import bridge_name
from jbi_pubsub.protocol.wanted import (
    EVERYTHING,
    PREDICATES_MOST,
    PREDICATES_TEXT,
    TYPES_MOST,
    WANTED_TEXT,
    Demand,
    InterestMembers,
    Wanted,
    WantedPredicate,
    WantedType,
)

LOOK_SECONDS: Final = 0.2
"""Interval at which whoever waits looks, as nobody is told of what has ended, was amended, or is kept from now on."""
GATHER_SECONDS: Final = 0.02
"""For more subscriptions to come: many come one behind the other."""
BRIDGES_MOST: Final = 100
"""Bridges that are remembered."""

Stamp = tuple[tuple[str, int, bool], ...]
"""Topics by key, with the versions of their tables, and whether they are archived."""
NEVER: Final[tuple[Stamp | None, Wanted]] = (None, EVERYTHING)
Asked = tuple[Topic, bool, InformationTypeGate, Sequence[Subscription]]
"""A topic, whether it is archived, its type, and its subscriptions."""


@dataclass(slots=True)
class _TypeInterest:
    predicates: Counter[WantedPredicate] | None = field(default_factory=Counter)
    """Number of subscriptions that have each; None: all of its objects are wanted."""
    demands: set[Demand] = field(default_factory=set)
    subscriptions: int = 0
    importance: int = 0
    has_waited: bool = False

    def members(self, predicates: Sequence[WantedPredicate]) -> InterestMembers:
        counts = self.predicates or Counter()
        behind = tuple(counts[each] for each in predicates) or (self.subscriptions,)
        return InterestMembers(behind, self.importance or None, self.has_waited)


class RelayedInterest:
    """See the module. Any thread."""

    def __init__(self, tables: Tables, stopping: threading.Event, wall: Callable[[], float] = time.time) -> None:
        """Nobody waits any more once `stopping` is set."""
        self._tables = tables
        self._stopping = stopping
        self._revision = int(wall() * 1e3)  # beyond those of a process before this one
        self._told: Cache[tuple[str, bool], tuple[Stamp | None, Wanted]] = Cache(BRIDGES_MOST)

    def wanted(self, bridge: str, after: int, timeout: float, *, members: bool = False) -> Wanted:
        """Interest in relayed registrations, as soon as it is not that of revision `after`, or after `timeout`
        seconds. Subscriptions to what is published here alone do not count, nor do those of that bridge, which wants
        for the other side what is published here; those of other bridges do, for whoever is behind them. What is
        archived is wanted as a whole. `members`: with who wants it."""
        who = bridge, members
        deadline = time.monotonic() + timeout
        while True:
            with self._tables.lock:
                topics = self._topics()
                stamp = tuple((topic.key, topic.table.version, is_kept) for topic, (is_kept, _) in topics.items())
                before, told = self._told.get(who, NEVER)
                left = deadline - time.monotonic()
                is_over = left <= 0 or self._stopping.is_set()
                if before == stamp and (told.revision != after or is_over):
                    return told
                if before == stamp:
                    self._tables.changed.wait(min(left, LOOK_SECONDS))
                else:
                    asked = [(each, *of, each.table.subscriptions()) for each, of in topics.items()]
            if before == stamp:
                self._stopping.wait(GATHER_SECONDS)
            else:
                told = self._noted(who, stamp, _told(_by_type(asked, bridge), members=members))
                if told.revision != after or is_over:
                    return told

    def _topics(self) -> Mapping[Topic, tuple[bool, InformationTypeGate]]:
        """Under the lock: those of what is relayed, whether something of it is archived here, and its type."""
        found: dict[Topic, tuple[bool, InformationTypeGate]] = {}
        for each in self._tables.registrations.values():
            if each.origin is not None:
                is_kept = each.persist or (each.topic in found and found[each.topic][0])
                found[each.topic] = is_kept, each.gate
        return found

    def _noted(self, who: tuple[str, bool], stamp: Stamp, types: tuple[WantedType, ...] | None) -> Wanted:
        with self._tables.lock:
            before, told = self._told.get(who, NEVER)
            if before is None or told.types != types:
                self._revision += 1
                told = Wanted(self._revision, types)
            self._told[who] = stamp, told
            return told


def _by_type(asked: Iterable[Asked], bridge: str) -> dict[TypeName, _TypeInterest]:
    """Interest by type."""
    found: dict[TypeName, _TypeInterest] = {}
    counted: set[tuple[TypeName, Subscription]] = set()
    for topic, is_archived, gate, subscriptions in asked:
        known = found.get(topic.type) or _TypeInterest()
        is_wanted = is_archived
        for subscription in _others(subscriptions, bridge):
            is_wanted = True
            known.has_waited |= topic.has_waited
            if (topic.type, subscription) in counted:  # its template matches several topics
                continue
            counted.add((topic.type, subscription))
            known.subscriptions += 1
            known.importance = max(known.importance, subscription.request.qos.importance or 0)
            known.demands.update(subscription.request.demands)
            _add(known, subscription, gate)
        if is_archived:
            known.predicates = None
        if is_wanted:
            found[topic.type] = known
    return found


def _add(known: _TypeInterest, subscription: Subscription, gate: InformationTypeGate) -> None:
    """By its own predicate, as what rules add is nothing for others, and by its template, as far as that is XPath."""
    own, entries = subscription.predicate, subscription.request.entries
    condition = gate.condition(entries) if len(entries) > 1 and known.predicates is not None else ""
    if known.predicates is None or (own is None and not condition):
        known.predicates = None
        return
    asked = WantedPredicate(own.expression, own.namespaces, own.language) if own is not None else WantedPredicate("")
    if condition and asked.language == XPATH:
        parts = [(condition, ())] + ([(asked.text, asked.namespaces)] if asked.text else [])
        asked = WantedPredicate(*joined(parts, "and"))
    known.predicates[asked] += 1
    if len(known.predicates) > PREDICATES_MOST:
        known.predicates = None


def _others(subscriptions: Iterable[Subscription], bridge: str) -> Iterable[Subscription]:
    """Those for which something is that the bridge relays: for its own processes side by side it is an echo."""
    name = bridge_name(bridge)
    return (
        each
        for each in subscriptions
        if not each.request.local and not (each.request.unlike and bridge_name(each.request.unlike) == name)
    )


def _told(found: Mapping[TypeName, _TypeInterest], *, members: bool) -> tuple[WantedType, ...] | None:
    """None: there are too many types."""
    if len(found) > TYPES_MOST:
        return None
    told, size = [], 0
    for type_ in sorted(found):
        known = found[type_]
        predicates = tuple(sorted(known.predicates or ()))
        more = sum(map(_size, predicates))
        size += more
        some = predicates if more <= PREDICATES_TEXT and size <= WANTED_TEXT else ()
        who = known.members(some) if members else None
        told.append(WantedType(type_, some, tuple(sorted(known.demands)), who))
    return tuple(told)


def _size(predicate: WantedPredicate) -> int:
    return len(predicate.text) + sum(len(prefix) + len(uri) for prefix, uri in predicate.namespaces)
