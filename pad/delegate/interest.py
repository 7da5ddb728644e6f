"""Interest of the subscriptions here in what bridges relay to us: who relays it asks, and may leave out what nobody
wants.

It is made of the match tables, when somebody asks and they are not what they were. So it costs nothing where there is
no bridge, and nothing per object.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.pad.delegate.tables import Tables
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.entries import bridge_name
from jbi_pubsub.protocol.wanted import (
    PREDICATES_MOST,
    PREDICATES_TEXT,
    TYPES_MOST,
    WANTED_TEXT,
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

Topics = Mapping[Topic, bool]
"""Topics, and whether objects of theirs are archived here."""
Stamp = tuple[tuple[str, int, bool], ...]
"""Topics by key, with the versions of their tables, and whether they are archived."""
Predicates = set[WantedPredicate] | None
"""Predicates of a type; None: all of its objects."""


class RelayedInterest:
    """See the module. Any thread."""

    def __init__(self, tables: Tables, stopping: threading.Event, wall: Callable[[], float] = time.time) -> None:
        """Nobody waits any more once `stopping` is set."""
        self._tables = tables
        self._stopping = stopping
        self._revision = int(wall() * 1e3)  # beyond those of a process before this one
        self._told: Cache[str, tuple[Stamp, Wanted]] = Cache(BRIDGES_MOST)

    def wanted(self, bridge: str, after: int, timeout: float) -> Wanted:
        """What is wanted of relayed registrations, as soon as it is not that of revision `after`, or after `timeout`
        seconds. Subscriptions to what is published here alone do not count, nor do those of that bridge, which wants
        for the other side what is published here; those of other bridges do, for whoever is behind them. What is
        archived is wanted as a whole."""
        deadline = time.monotonic() + timeout
        while True:
            with self._tables.lock:
                told = self._look(bridge)
                left = deadline - time.monotonic()
                if told.revision != after or left <= 0 or self._stopping.is_set():
                    return told
                self._tables.changed.wait(min(left, LOOK_SECONDS))
            self._stopping.wait(min(GATHER_SECONDS, max(0.0, left)))

    def _look(self, bridge: str) -> Wanted:
        """Under the lock."""
        topics: dict[Topic, bool] = {}
        for registration in self._tables.registrations.values():
            if registration.origin is not None:
                topic = registration.topic
                topics[topic] = topics.get(topic, False) or registration.persist
        stamp = tuple((topic.key, topic.table.version, is_archived) for topic, is_archived in topics.items())
        before = self._told.get(bridge)
        if before is not None and before[0] == stamp:
            return before[1]
        told = Wanted(0, _told(_by_type(topics, bridge)))
        if before is not None and before[1].types == told.types:
            told = before[1]
        else:
            self._revision += 1
            told = msgspec.structs.replace(told, revision=self._revision)
        self._told[bridge] = stamp, told
        return told


def _by_type(topics: Topics, bridge: str) -> dict[TypeName, Predicates]:
    found: dict[TypeName, Predicates] = {}
    for topic, is_archived in topics.items():
        known = found.get(topic.type, set())
        more = None if is_archived or known is None else _predicates(topic.table, bridge, known)
        if more is None or more:
            found[topic.type] = more
    return found


def _predicates(table: MatchTable, bridge: str, known: set[WantedPredicate]) -> Predicates:
    """Those of a table's subscriptions, and those `known` already."""
    found = set(known)
    for subscription in _others(table.subscriptions(), bridge):
        predicate = subscription.predicate  # its own: what rules add is nothing for others
        if predicate is None:
            return None
        found.add(WantedPredicate(predicate.expression, predicate.namespaces, predicate.language))
        if len(found) > PREDICATES_MOST:
            return None
    return found if sum(map(_size, found)) <= PREDICATES_TEXT else None


def _others(subscriptions: Iterable[Subscription], bridge: str) -> Iterable[Subscription]:
    """Those for which something is that the bridge relays: for its own processes side by side it is an echo."""
    name = bridge_name(bridge)
    return (
        each
        for each in subscriptions
        if not each.request.local and not (each.request.unlike and bridge_name(each.request.unlike) == name)
    )


def _told(found: Mapping[TypeName, Predicates]) -> tuple[WantedType, ...] | None:
    """None: there are too many types."""
    if len(found) > TYPES_MOST:
        return None
    told, size = [], 0
    for type_ in sorted(found):
        predicates = found[type_]
        size += sum(map(_size, predicates or ()))
        some = tuple(sorted(predicates)) if predicates is not None and size <= WANTED_TEXT else ()
        told.append(WantedType(type_, some))
    return tuple(told)


def _size(predicate: WantedPredicate) -> int:
    return len(predicate.text) + sum(len(prefix) + len(uri) for prefix, uri in predicate.namespaces)
