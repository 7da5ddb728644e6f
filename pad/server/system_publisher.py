"""Publications of a delegate or peer publisher itself, as an application of its own: measurements, events."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from secrets import token_hex
from typing import Final

import msgspec

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import Head, Parcel, SchemaBundle, pack
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.signing import Signer, anchor_of, digest, head_bytes, signed_uid
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest

log = logging.getLogger("jbi_pubsub.pad")

WISH: Final = Wish(importance=1)
"""The least: to measure is to disturb nobody."""
MEASURE_SECONDS: Final = 2.0
"""Between two measurements of a series."""


class OwnRegistration:
    """One registration at our own delegate. Of one thread."""

    def __init__(
        self, delegate: Delegate, signer: Signer | None, schema: SchemaBundle, invariants: bytes, what: str
    ) -> None:
        """`what` is published, for the log."""
        self._delegate = delegate
        self._signer = signer
        self._schema, self._invariants = schema, invariants
        self._what = what
        self._generation = -1
        self._secret = token_hex(16)
        self.uid = owned_uid("registration", self._secret)
        if signer is not None:
            self.uid = signed_uid(anchor_of(self._secret), signer.public)
        self._sequence = 0
        self._fault = ""
        self._connection = ""
        self._registration: Registration | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether somebody has subscribed. Registers if that has not been possible until now."""
        if self._registration is None:
            self._register()
        return self._registration is not None and len(self._registration.topic.table) > 0

    def _register(self) -> None:
        """Again, when another certificate answers for our key. What is refused now may be granted later."""
        signing = None
        if self._signer is not None:
            self._generation = self._signer.generation
            signing = self._signer.bound(self.uid, anchor_of(self._secret))
        try:
            self._connection = self._connection or self._delegate.publishers.connect_own().connection_id
            entries = self._delegate.registrations.open_type(self._schema, "").entries(parse_metadata(self._invariants))
            request = PublisherRequest(self._schema, entries, secret=self._secret, signing=signing, qos=WISH)
            self._registration = self._delegate.registrations.register(
                self._connection, request, uid=self.uid, number=1
            )
        except JbiError as exc:
            if str(exc) != self._fault:
                self._fault = str(exc)
                log.error("%s are not published: %s", self._what, exc)

    def publish(self, documents: Iterable[bytes]) -> None:
        """Objects of these metadata; nobody is asked to wait."""
        if self._signer is not None and self._generation != self._signer.generation:
            self._register()
        registration = self._registration
        if registration is None:
            return
        parcels = [self._next(registration, each) for each in documents]
        deliveries = Deliveries()
        try:
            refused = self._delegate.publishers.publish(registration, parcels, deliveries)
        finally:
            self._delegate.pipeline.distribution.deliver(deliveries)
        self._delegate.pipeline.persistence.sync()
        fault = str(refused[0][1]) if refused else ""
        if fault and fault != self._fault:  # the log is told when that changes
            log.error("%d %s were refused: %s", len(refused), self._what, fault)
        self._fault = fault

    def _next(self, registration: Registration, metadata: bytes) -> Parcel:
        self._sequence += 1
        kind = registration.gate.type
        head = Head("", self.uid, self._sequence, time.time(), kind.name, kind.version, metadata, 0)
        if self._signer is not None:
            head = msgspec.structs.replace(head, signature=self._signer.sign(head_bytes(head, digest(b""))))
        return pack(head, b"")


def measuring(delegate: Delegate, quality: Quality, signer: Signer | None) -> Job:
    """A job that publishes what is measured ([qos] publish_measurements), as long as somebody has subscribed; nothing
    is made for nobody."""
    own = OwnRegistration(delegate, signer, *quality.measurement_type(), "measurements")

    def measure() -> None:
        if own.is_wanted:
            own.publish(quality.measurements())

    return Job("measurements", MEASURE_SECONDS, measure, slow=True)
