"""History of what a client has consumed, as it says itself, in batches: objects that archives keep like others (paper
3.2(5))."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from jbi_pubsub.core.errors import AccessDeniedError, JbiError, MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.subscriber.moments import Moment

from .channel import DomainChannel
from .event import CONSUMED, StructuredEvent, quoted
from .service_type import PropertyValue

log = logging.getLogger("jbi_pubsub.domains")

BATCH_SECONDS: Final = 1.0
BATCH_MOST: Final = 1_000
"""Objects of one batch."""
WAITING_MOST: Final = 10_000
"""Objects whose batch was not published yet; of more the first are left out, and logged."""
MARGIN: Final = 0.001
"""Seconds by which times that were rounded may be off."""

Watched = tuple[str, str]
"""Type and constraint."""


class ConsumptionRecord:
    """What a client consumes. Any thread. `_lock` covers what waits."""

    def __init__(self, domain: DomainChannel, client: str) -> None:
        self._domain, self._client = domain, client
        self._lock = threading.Lock()
        self._waiting: dict[Watched, dict[str, float]] = {}
        """Ids, and when they were published."""
        self._left_out = 0
        self._job = Job(f"consumption of {client[:40]}", BATCH_SECONDS, self._publish, slow=True)
        self._job.start(BATCH_SECONDS)

    def add(self, watched: Watched, obj: InfoObject) -> None:
        """It has consumed an object."""
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

    def _publish(self) -> None:
        with self._lock:
            batches, self._waiting = self._waiting, {}
            left_out, self._left_out = self._left_out, 0
        if left_out:
            log.warning("%d objects that %s has consumed are missing in its history", left_out, self._client)
        for watched, objects in batches.items():
            rest = iter(objects.items())
            while batch := dict(islice(rest, BATCH_MOST)):
                try:
                    self._domain.publish(self._event(watched, batch), CONSUMED)
                except AccessDeniedError as exc:
                    log.warning("%s keeps no history of what it consumes: %s", self._client, exc)
                    self._job.stop()
                    return
                except JbiError as exc:
                    log.info("what %s has consumed is published later: %s", self._client, exc)
                    with self._lock:  # what has come meanwhile is behind it
                        self._waiting[watched] = batch | dict(rest) | self._waiting.get(watched, {})

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


def consumed(domain: DomainChannel, client: str, since: Moment | None) -> Iterator[StructuredEvent]:
    """Events that a client has consumed since some time, as archives have them. Raises UnknownUidError."""
    with domain.past(CONSUMED, f"$domain == {quoted(client)}", since) as records:
        for record in records:
            try:
                event = StructuredEvent.read(record.metadata, record.payload)
                ids = set(event.remainder.decode("ascii").split("\n"))
                type_, constraint = str(event.body["type"]), str(event.body["constraint"])
                first = datetime.fromtimestamp(float(str(event.body["first"])) - MARGIN, UTC)
                last = datetime.fromtimestamp(float(str(event.body["last"])) + MARGIN, UTC)
            except (MetadataError, KeyError, ValueError, OverflowError, OSError) as exc:
                log.warning("object %s says in no known way what %s has consumed: %s", record.object_id, client, exc)
                continue
            with domain.past(type_, constraint, first, last) as objects:
                for obj in objects:
                    if obj.object_id in ids:
                        yield StructuredEvent.read(obj.metadata, obj.payload)
