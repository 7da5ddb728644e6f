"""The topics of a delegate: what is published here, by entries. Pure; the delegate's lock covers them.

A topic outlives its last registration as a ghost: whoever comes late for its objects gets what is kept, or is told how
many he has missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final
from uuid import uuid4

from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.lookup.index import EntryIndex
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.matching.registration import Entries, Registration, Topic

GHOST_SECONDS: Final = 60.0
"""Time that a topic whose last registration has gone is remembered behind the last object of its buffer: who comes then
is told how many he has missed."""
GHOSTS_MOST: Final = 1_000
"""Such topics; beyond that the oldest is forgotten."""


class Topics:
    """See the module."""

    def __init__(self, buffers: RecentBuffers) -> None:
        self._buffers = buffers
        self._topics: dict[str, Topic] = {}
        self._keys: dict[Entries, str] = {}
        self._published: EntryIndex[str] = EntryIndex()
        self.ghosts: dict[Topic, SchemaBundle | None] = {}
        """Topics without a registration, whose objects somebody may still come for, and their schemas; the oldest
        first."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def of(self, entries: Entries, type_: TypeName) -> Topic:
        """That of all registrations with such entries."""
        key = self._keys.get(entries)
        if key is None:
            key = self._keys[entries] = uuid4().hex
            self._topics[key] = Topic(key, entries, type_)
            self._published.add(key, entries)
        return self._topics[key]

    def find(self, template: Entries) -> list[Topic]:
        """Those that a template matches. Raises IncompatibleEntryError."""
        return [self._topics[key] for key in self._published.find(template)]

    def leave(self, registration: Registration, now: float) -> None:
        """A registration has gone, perhaps the last one of its topic."""
        topic = registration.topic
        topic.registrations -= 1
        topic.unannounced.discard(registration.uid)
        if not topic.unannounced and math.isinf(topic.buffer.young_until):  # it was never told of: so is nobody to come
            self._buffers.announced(topic.buffer, now)
        if topic.registrations == 0:
            schema = topic.gate.bundle if topic.gate is not None and not topic.gate.bundle.is_none else None
            topic.table, topic.gate = MatchTable(), None
            alike = (each for each in self.ghosts.values() if each == schema)
            self.ghosts[topic] = next(alike, schema)  # once in memory, however many have gone
            if not topic.buffer.total:  # nobody can have missed anything
                self._forget(topic)

    def forget_ghosts(self, now: float) -> None:
        """Topics whose last registration has gone, and that nobody can come late for any more. Of too many those go
        first of which nothing lies in a buffer, then the oldest."""
        before = now - GHOST_SECONDS
        for topic in list(self.ghosts):
            if topic.registrations:  # it lives again
                del self.ghosts[topic]
            elif not topic.buffer.kept and topic.buffer.gone.last < before:
                self._forget(topic)
        if len(self.ghosts) > GHOSTS_MOST:
            by_worth = sorted(self.ghosts, key=lambda topic: bool(topic.buffer.kept))  # stable: the oldest first
            for topic in by_worth[: len(self.ghosts) - GHOSTS_MOST]:
                self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        self.ghosts.pop(topic, None)
        self._buffers.drop(topic.buffer)
        self._published.remove(topic.key)
        del self._topics[topic.key], self._keys[topic.entries]
