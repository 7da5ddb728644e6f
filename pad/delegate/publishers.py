"""Publishing applications at a delegate: they connect under a lease, publish, and are told what lookup services say."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from uuid import uuid4

from jbi_pubsub.core.errors import BackPressureError, ErrorReport, JbiError, UnknownUidError, report
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.registrations import Registrations
from jbi_pubsub.pad.delegate.tables import PublisherConnection
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.persistence import Refused
from jbi_pubsub.pad.ingress.pipeline import GAP_MOST, Pipeline
from jbi_pubsub.pad.matching.registration import Registration


class PublisherConnections:
    """They come with `connect` and go with `drop`, with all their registrations."""

    def __init__(self, core: DelegateCore, registrations: Registrations, pipeline: Pipeline) -> None:
        config, self._tables, self._contracts, self._events = core
        self._registrations = registrations
        self._pipeline = pipeline
        self._settle = config.pad.settle_seconds

    def connect(self, name: str, duration: float, caller: Caller | None = None) -> tuple[PublisherConnection, Lease]:
        """A publishing application comes (paper section 2.4(1)). Raises LeaseDeniedError."""
        connection_id = f"connection-{uuid4().hex}"
        with self._tables.lock:
            idle = self._tables.leases.make_room(self._tables.connections, "publishers")
            lease = self._tables.leases.grant_unattached(
                lambda: self.drop(connection_id), duration, self._tables.clock()
            )
            connection = PublisherConnection(connection_id, name, lease.lease_id, duration, caller=caller)
            self._tables.connections[connection_id] = connection
            self._events.tell_connection("created", connection)
        self.drop(idle)
        return connection, lease

    def connect_own(self) -> PublisherConnection:
        """The application that this peer publisher lives in: no lease, it ends with its process."""
        connection = PublisherConnection(f"connection-{uuid4().hex}", "own", "")
        with self._tables.lock:
            self._tables.connections[connection.connection_id] = connection
        return connection

    def disconnect(self, connection_id: str) -> None:
        """Let a publisher leave, with all its registrations. Raises UnknownUidError."""
        with self._tables.lock:
            self._tables.leases.landlord.drop(self._tables.connection(connection_id).lease_id)
        self.drop(connection_id)

    def drop(self, connection_id: str) -> None:
        """A publisher has gone, with all its registrations; "": none has."""
        with self._tables.lock:
            connection = self._tables.connections.pop(connection_id, None)
            registrations = list(connection.registrations.values()) if connection else []
            self._tables.leases.unattached.pop(connection.lease_id if connection else "", None)
        self._registrations.drop(registrations, connection)
        if connection is not None:
            self._events.tell_connection("removed", connection)

    def publish(self, registration: Registration, run: Sequence[Parcel], deliveries: Deliveries) -> Refused:
        """Admit and judge consecutive objects (see pipeline.py), with quality of service when it is their turn; those
        that were refused."""
        refused: Refused = []
        admitted = self._pipeline.admit(registration, run, refused)
        judge = partial(self._pipeline.judge, registration, admitted, deliveries, refused)
        quality = self._contracts.quality
        try:
            if quality is None:
                judge()
            else:
                quality.tasks.run(registration.contract or Contract(), registration, judge)
        except (UnknownUidError, BackPressureError) as exc:
            refused += [(parcel, exc) for parcel in admitted]
        return refused

    def tell_filtered(self, connection_id: str, uid: str, count: int) -> None:
        """Note what a bridge of before NumberedEntry says: it has left out so many objects of a registration that it
        relays. Raises UnknownUidError for one that is not relayed by it."""
        self._tables.connection(connection_id)
        registration = self._tables.registrations.get(uid)
        if registration is None or registration.connection != connection_id or registration.origin is None:
            raise UnknownUidError(f"no registration {uid[:64]} of this bridge", uid=uid[:64])
        self._pipeline.lose(registration, Cause.FILTERED, min(max(0, count), GAP_MOST))

    def unregister(self, connection_id: str, uid: str) -> None:
        """Take a registration back. Raises UnknownUidError for one that is not this publisher's."""
        connection = self._tables.connection(connection_id)
        with self._tables.lock:
            registration = self._registration(connection_id, uid)
            connection.registrations.pop(registration.number, None)
        self._registrations.drop([registration])

    def unlisted(self, uid: str, why: JbiError) -> None:
        """A lookup service refuses to list a registration: its publisher is told, unless it may pass by itself. Unknown
        ids are ignored."""
        with self._tables.lock:
            registration = self._tables.registrations.get(uid)
            of = self._tables.connections.get(registration.connection) if registration is not None else None
            if of is not None and why.is_final:
                of.untold[uid] = why

    def refusals(self, connection: PublisherConnection) -> list[tuple[str, ErrorReport]]:
        """Registrations that lookup services refuse to list, and why; each once. Asked with each batch."""
        if not connection.untold:
            return []
        with self._tables.lock:
            untold, connection.untold = connection.untold, {}
        return [(uid, report(why)) for uid, why in untold.items()]

    def take_back_unlisted(self, connection_id: str, uid: str) -> bool:
        """Take a registration back that no lookup service has listed yet; whether that was so."""
        with self._tables.lock:
            registration = self._tables.registrations.get(uid)
            if registration is not None and uid not in registration.topic.unannounced:
                return False
        with contextlib.suppress(UnknownUidError):  # gone already
            self.unregister(connection_id, uid)
        return True

    def wait_for_late_joiners(self) -> None:
        """Before we stop: who was told of a new registration and comes for its first objects is let come, for at most
        [pad] settle_seconds since it was told. A publisher that closes at once takes nothing away from him."""
        with self._tables.lock:
            while awaited := [topic.announced for topic in self._tables.topics if topic.is_awaited]:
                left = max(awaited) + self._settle - self._tables.clock()
                if left <= 0:
                    return
                self._tables.changed.wait(left)

    def wait_for_subscriptions(self, connection_id: str, uid: str, count: int, timeout: float) -> int:
        """Number of subscriptions that a registration matches, as soon as there are `count`, or after `timeout`
        seconds. Raises UnknownUidError for one that is not this publisher's."""
        deadline = time.monotonic() + timeout
        with self._tables.lock:
            while True:
                self._tables.connection(connection_id)
                standing = len(self._registration(connection_id, uid).topic.table)
                left = deadline - time.monotonic()
                if standing >= count or left <= 0 or self._pipeline.control.stopping.is_set():
                    return standing
                self._tables.changed.wait(left)

    def _registration(self, connection_id: str, uid: str) -> Registration:
        """Under the lock. Raises UnknownUidError for one that is not this publisher's."""
        registration = self._tables.registrations.get(uid)
        if registration is None or registration.connection != connection_id:
            raise UnknownUidError(f"no registration {uid} of this publisher", uid=uid)
        return registration
