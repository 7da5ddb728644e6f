"""A delegate or peer publisher publishes what it measures, as an application of its own: [qos] publish_measurements."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Final

import msgspec

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Head, Parcel, pack
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.signing import Signer, anchor_of, digest, head_bytes, signed_uid
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.pad.delegate import Delegate
from jbi_pubsub.pad.delivery import Deliveries
from jbi_pubsub.pad.quality import Quality
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.subscription import PublisherRequest, owned_uid

log = logging.getLogger("jbi_pubsub.pad")

EVERY_SECONDS: Final = 2.0
"""Between two measurements of a series."""
WISH: Final = Wish(importance=1)
"""The least: to measure is to disturb nobody."""


class Measurements:
    """A thread that publishes, as long as somebody has subscribed; nothing is made for nobody."""

    def __init__(self, delegate: Delegate, quality: Quality, signer: Signer | None, name: str) -> None:
        self._delegate = delegate
        self._quality = quality
        self._signer = signer
        self._generation = -1
        self._secret = token_hex(16)
        self._uid = owned_uid("registration", self._secret)
        if signer is not None:
            self._uid = signed_uid(anchor_of(self._secret), signer.public)
        self._sequence = 0
        self._fault = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"measure-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Safe to repeat."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        connection = self._delegate.connect_own().connection_id
        registration = None
        while registration is None:
            with guarded("measurements"):
                registration = self._register(connection)
            if self._stopping.wait(EVERY_SECONDS):
                return
        while not self._stopping.wait(EVERY_SECONDS):
            with guarded("measurements"):
                if len(registration.topic.table):
                    self._publish(connection, registration)

    def _register(self, connection: str) -> Registration | None:
        """At our own delegate; again, when another certificate answers for our key. None: it is refused now."""
        signing = None
        if self._signer is not None:
            self._generation = self._signer.generation
            signing = self._signer.bound(self._uid, anchor_of(self._secret))
        schema, invariants = self._quality.measurement_type()
        try:
            entries = self._delegate.open_type(schema, "").entries(parse_metadata(invariants))
            request = PublisherRequest(schema, entries, secret=self._secret, signing=signing, qos=WISH)
            return self._delegate.register_publisher(connection, request, uid=self._uid, number=1)
        except JbiError as exc:
            if str(exc) != self._fault:
                self._fault = str(exc)
                log.error("measurements are not published: %s", exc)
            return None

    def _publish(self, connection: str, registration: Registration) -> None:
        if self._signer is not None and self._generation != self._signer.generation:
            self._register(connection)
        parcels = [self._next(registration, each) for each in self._quality.measurements()]
        deliveries = Deliveries()
        try:
            refused = self._delegate.publish(registration, parcels, deliveries)
        finally:
            self._delegate.pipeline.deliver(deliveries)
        self._delegate.pipeline.sync()
        self._note(refused)

    def _next(self, registration: Registration, metadata: bytes) -> Parcel:
        self._sequence += 1
        kind = registration.gate.type
        head = Head("", self._uid, self._sequence, time.time(), kind.name, kind.version, metadata, 0)
        if self._signer is not None:
            head = msgspec.structs.replace(head, signature=self._signer.sign(head_bytes(head, digest(b""))))
        return pack(head, b"")

    def _note(self, refused: Sequence[tuple[Parcel, JbiError]]) -> None:
        """The log is told when that changes."""
        fault = str(refused[0][1]) if refused else ""
        if fault and fault != self._fault:
            log.error("%d measurements were refused: %s", len(refused), fault)
        self._fault = fault
