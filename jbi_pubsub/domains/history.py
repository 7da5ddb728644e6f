"""History of what a client has consumed, as it says itself, in batches: objects that archives keep like others (paper
3.2(5))."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from jbi_pubsub.core.errors import AccessDeniedError, JbiError, MetadataError, PredicateError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.subscriber.moments import Moment
from jbi_pubsub.subscriber.query import Query

from .channel import DomainChannel
from .event import CONSUMED, StructuredEvent, quoted
from .service_type import PropertyValue

log = logging.getLogger("jbi_pubsub.domains")

BATCH_SECONDS: Final = 1.0
BATCH_MOST: Final = 1_000
"""Objects of one batch."""
WAITING_MOST: Final = 10_000
"""Objects whose batch was not published yet; of more the first are left out, and logged."""
DENIED_SECONDS: Final = 600.0
"""Until it is tried again to publish what rules of access have denied."""
MARGIN: Final = 0.001
"""Seconds by which times that were rounded may be off."""

Watched = tuple[str, str]
"""Type and constraint."""


class ConsumptionRecord:
    """Record of what a client consumes. Any thread. `_lock` covers what waits."""

    def __init__(self, domain: DomainChannel, client: str) -> None:
        self._domain, self._client = domain, client
        self._lock = threading.Lock()
        self._waiting: dict[Watched, dict[str, float]] = {}
        """Ids, and when they were published."""
        self._left_out = 0
        self._job = Job(f"consumption of {client[:40]}", BATCH_SECONDS, self._publish, slow=True)
        self._job.start(BATCH_SECONDS)

    def add(self, watched: Watched, obj: InfoObject) -> None:
        """Note that it has consumed an object."""
        with self._lock:
            batch = self._waiting.setdefault(watched, {})
            batch[obj.object_id] = obj.platform.published
            if len(batch) > WAITING_MOST:
                del batch[next(iter(batch))]
                self._left_out += 1

    def stop(self) -> None:
        """Publish what waits, and end. Safe to repeat."""
        self._job.stop()
        self._publish()

    def _publish(self) -> float:
        """Publish what waits, in batches; seconds until the next ones."""
        with self._lock:
            batches, self._waiting = self._waiting, {}
            left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("%d objects that %s has consumed are missing from its history", left_out, self._client)
        for watched, objects in batches.items():
            rest = iter(objects.items())
            while batch := dict(islice(rest, BATCH_MOST)):
                try:
                    self._domain.publish(self._event(watched, batch), CONSUMED)
                except AccessDeniedError as exc:
                    log.warning("consumed objects of %s are not in its history: %s", self._client, exc)
                    return DENIED_SECONDS
                except JbiError as exc:
                    log.info("the consumed objects of %s are published later: %s", self._client, exc)
                    with self._lock:  # what has come meanwhile is behind it
                        self._waiting[watched] = batch | dict(rest) | self._waiting.get(watched, {})
        return BATCH_SECONDS

    def _event(self, watched: Watched, batch: dict[str, float]) -> StructuredEvent:
        first, last = min(batch.values()), max(batch.values())
        body: dict[str, PropertyValue] = {
            "client": self._client,
            "type": watched[0],
            "constraint": watched[1],
            "first": first,
            "last": last,
        }
        return StructuredEvent(self._client, "Consumed", "", body, {}, "\n".join(batch).encode())


def events_of(query: Query, ids: Container[str] | None = None) -> Iterator[StructuredEvent]:
    """The events that archives have, of those with these ids alone if any are given; what is none, and what could not
    be had, is logged."""
    for obj in query:
        if ids is not None and obj.object_id not in ids:
            continue
        try:
            yield StructuredEvent.read(obj.metadata, obj.payload)
        except MetadataError as exc:
            log.warning("object %s is not an event: %s", obj.object_id, exc)
    if query.partial:
        log.warning("a history is incomplete: %s", "; ".join(query.partial))


def consumed(
    domain: DomainChannel, client: str, since: Moment | None, until: Moment | None = None
) -> Iterator[StructuredEvent]:
    """Events that a client has consumed between these times, as archives have them. Raises UnknownUidError."""
    with domain.past(CONSUMED, f"$domain == {quoted(client)}", since, until) as records:
        for record in events_of(records):
            try:
                batch, ids = _batch(domain, record)
            except (UnknownUidError, PredicateError, KeyError, ValueError, OverflowError, OSError) as exc:
                log.warning("some consumed objects of %s are not available: %s", client, exc)
                continue
            with batch as objects:
                yield from events_of(objects, ids)


def _batch(domain: DomainChannel, record: StructuredEvent) -> tuple[Query, set[str]]:
    """The query of a batch, and the ids of its events. Raises UnknownUidError, PredicateError, and what a record that
    says anything may."""
    ids = set(record.remainder.decode("ascii").split("\n"))
    first = datetime.fromtimestamp(float(str(record.body["first"])) - MARGIN, UTC)
    last = datetime.fromtimestamp(float(str(record.body["last"])) + MARGIN, UTC)
    return domain.past(str(record.body["type"]), str(record.body["constraint"]), first, last), ids
