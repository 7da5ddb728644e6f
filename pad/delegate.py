"""The delegate's state and decisions: who publishes, who subscribes, who gets what. No network here.

One code for the publisher-adapter delegate (behind `server`) and the peer publisher (inside the application).

Rules:
- A registration is matched with the waiting subscriptions, a subscription with the standing registrations, once,
  when the later of the two comes (paper section 1); publishing asks predicates only.
- Leases are the only clean-up path: a publisher's covers its registrations, a subscriber's its direct
  subscriptions; an e-mail-only subscription has a lease of its own and outlives its subscriber's process.
- `_lock` covers all tables. Dissemination reads snapshots without it; announcing and closing happen behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, Protocol
from uuid import uuid4

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    BackPressureError,
    ConfigurationError,
    IncompatibleEntryError,
    JbiError,
    MetadataError,
    OversizeError,
    StorageError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import (
    Cause,
    Head,
    InfoObject,
    Parcel,
    Platform,
    SchemaBundle,
    TypeName,
    object_id_of,
)
from jbi_pubsub.core.lease import FixedLeasePeriodPolicy, Landlord, Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.lookup.entry import EntryRep, check_rep
from jbi_pubsub.lookup.index import EntryIndex, TemplateIndex
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delivery import Budget, Deliveries, SubscriberSession
from jbi_pubsub.pad.dissemination import (
    Disseminated,
    InformationTypeGate,
    Judgement,
    MatchTable,
    disseminate,
    explain,
)
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.store import Kept, SubscriptionStore
from jbi_pubsub.pad.subscription import (
    PEER_TYPE,
    PUBLISHER_TYPE,
    InformationType,
    PublisherRequest,
    Subscription,
    SubscriptionRequest,
    check_owner,
    compile_subscription,
    shown,
)

log = logging.getLogger("jbi_pubsub.pad")

Entries = tuple[EntryRep, ...]

PART_SECONDS: Final = 1.0
"""For all subscribers to acknowledge that nothing comes any more: round trips, not queues."""

NO_OBJECT: Final = InfoObject("", TypeName(""), b"", b"", Platform(0.0, "", 0, 0, 0))
"""Before the first one."""


class TypeRepository(Protocol):
    """The type repository as a delegate sees it: nobody else opens a schema."""

    def open(self, bundle: SchemaBundle, *, caller: str = "") -> InformationTypeGate:
        """`caller` is who gave it: each may cause so much work. Raises SchemaError, or TypeConflictError for a second,
        different schema of a type."""
        ...

    def forget(self, type: TypeName) -> None:  # noqa: A002  # the field's word
        """The last registration of the type is gone."""
        ...


class Announcer(Protocol):
    """Makes registrations known to the lookup services."""

    def join(self, item: ServiceItem, secret: str = "") -> None:
        """Keep the item registered from now on; only who knows `secret` can take it over ("": nobody)."""
        ...

    def leave(self, *service_ids: str) -> None:
        """Cancel them, all at once."""
        ...


@dataclass(eq=False, slots=True)
class _Topic:
    """All registrations with equal entries share one match table."""

    key: str
    entries: Entries
    table: MatchTable
    registrations: int = 0


@dataclass(eq=False, slots=True)
class Registration:
    """A publisher registration at a delegate. `sequence` is that of the last object taken."""

    uid: str
    number: int
    connection: str = field(repr=False)
    gate: InformationTypeGate
    topic: _Topic
    judgement: Judgement
    sequence: int = 0
    published: int = 0
    refused: int = 0
    unmatched: int = 0

    def check_head(self, head: Head) -> None:
        """Raises MetadataError for an object of another registration or type, or with another's id: mail servers and
        readers drop what has the id of a mail that they had."""
        known = self.gate.type
        if head.registration != self.uid or head.type_name != known.name or head.type_version != known.version:
            raise MetadataError(f"object {head.object_id} is not of registration {self.uid}")
        if head.object_id != object_id_of(self.uid, head.sequence):
            raise MetadataError(f"object id {head.object_id} is not that of number {head.sequence} of {self.uid}")

    def status(self) -> dict[str, object]:
        """Plain data."""
        return {
            "uid": self.uid,
            "type": str(self.gate.type),
            "published": self.published,
            "refused": self.refused,
            "unmatched": self.unmatched,
            "subscriptions": len(self.topic.table),
            **self.topic.table.stats(),
        }


@dataclass(eq=False, slots=True)
class PublisherConnection:
    """A publishing application connected under a lease."""

    connection_id: str = field(repr=False)
    name: str
    lease_id: str = field(repr=False)
    registrations: dict[int, Registration] = field(default_factory=dict)


class Granted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a subscription: its number on the session's delivery connection; a lease if it is e-mail-only."""

    number: int
    lease: Lease | None = None


class Delegate:
    """See the module's rules. Methods raise our errors and are safe from several threads."""

    def __init__(
        self,
        delegate_id: str,
        *,
        config: Config,
        types: TypeRepository,
        announcer: Announcer,
        subscriptions_ref: ServiceRef,
        clock: Callable[[], float],
        peer: bool = False,
        store: SubscriptionStore | None = None,
        mails: MailStore | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`subscriptions_ref` is the proxy handed to subscribers; `peer`: inside a publishing application; `store`
        keeps e-mail subscriptions, `mails` their mail; those in it are taken over. Raises StorageError."""
        self._store = store
        self._wall = wall
        self._mail_leases: dict[str, str] = {}
        self.delegate_id = delegate_id
        self._config = config
        self._types = types
        self._announcer = announcer
        self._ref = subscriptions_ref
        self._clock = clock
        self._item_types = (PEER_TYPE, PUBLISHER_TYPE) if peer else (PUBLISHER_TYPE,)
        self._lock = threading.RLock()
        self._landlord: Landlord[Callable[[], None]] = Landlord(
            FixedLeasePeriodPolicy(config.lease.maximum, min(300.0, config.lease.maximum))
        )
        self._connections: dict[str, PublisherConnection] = {}
        self._registrations: dict[str, Registration] = {}
        self._sessions: dict[str, tuple[SubscriberSession, str]] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._topics: dict[str, _Topic] = {}
        self._topic_keys: dict[Entries, str] = {}
        self._published: EntryIndex[str] = EntryIndex()
        self._waiting: TemplateIndex[tuple[str, str]] = TemplateIndex()
        self._next_number = 0
        self._budget = Budget(config.pad.max_queued_bytes)
        self._hub = SenderHub(name=f"deliver-{delegate_id[:8]}")
        self._ending: list[Subscription] = []
        """Gone, and not yet in the totals of what has ended."""
        self._closed_lost: Counter[str] = Counter()
        self._closed_delivered = 0
        self._closed_mailed = 0
        self._closed_matched = 0
        self._closed_suppressed = 0
        self._closed_published = 0
        self._closed_unmatched = 0
        self._closed_refused = 0
        self._unpacked: tuple[Head | None, InfoObject] = (None, NO_OBJECT)
        self._mail = MailDispatcher(config.mail, name=delegate_id[:8], lost=self._mail_lost, store=mails)
        for kept in store.load(wall()) if store is not None else ():
            self._take_over(kept)
        for ended in self._mail.start():
            self._closed_matched += ended.offered
            self._closed_lost.update(ended.lost)
            self._closed_mailed += ended.mailed

    def start(self) -> None:
        """Begin to deliver."""
        self._hub.start()

    # -- publishers ---------------------------------------------------------------------------------------------

    def connect(self, name: str, duration: float) -> tuple[PublisherConnection, Lease]:
        """A publishing application comes (paper section 2.4(1)). Raises LeaseDeniedError."""
        connection_id = f"connection-{uuid4().hex}"
        with self._lock:
            self._check_room(len(self._connections), "publishers")
            lease = self._landlord.grant(lambda: self._drop_connection(connection_id), duration, self._clock())
            connection = PublisherConnection(connection_id, name, lease.lease_id)
            self._connections[connection_id] = connection
        return connection, lease

    def connect_own(self) -> PublisherConnection:
        """The application that this peer publisher lives in: no lease, it ends with its process."""
        connection = PublisherConnection(f"connection-{uuid4().hex}", "own", "")
        with self._lock:
            self._connections[connection.connection_id] = connection
        return connection

    def disconnect(self, connection_id: str) -> None:
        """It leaves, with all its registrations. Raises UnknownUidError."""
        with self._lock:
            self._landlord.drop(self.connection(connection_id).lease_id)
        self._drop_connection(connection_id)

    def connection(self, connection_id: str) -> PublisherConnection:
        """Raises UnknownUidError: expired, disconnected, or never connected here."""
        with self._lock:
            found = self._connections.get(connection_id)
        if found is None:
            raise UnknownUidError(
                f"no publisher connection {connection_id} here", hint="Connect again", uid=connection_id
            )
        return found

    def open_type(self, bundle: SchemaBundle, caller: str) -> InformationTypeGate:
        """The type a schema stands for, for whom it is opened. Raises SchemaError or TypeConflictError."""
        return self._types.open(bundle, caller=caller)

    def forget_type(self, type: TypeName) -> None:  # noqa: A002  # the field's word
        """Drop a type that was opened for a registration which then came to nothing."""
        with self._lock:
            used = any(r.gate.type == type for r in self._registrations.values())
        if not used:
            self._types.forget(type)

    def register_publisher(
        self, connection_id: str, request: PublisherRequest, *, uid: str, number: int
    ) -> Registration:
        """Register what will be published (paper section 2.4(3)-(4)).

        `uid` is made from the request's secret, which the publisher keeps over failures, so that nobody else can
        publish under it; the publisher chooses `number`, which its publications start with. Raises UnknownUidError,
        AccessDeniedError (`uid` is not the secret's), SchemaError, TypeConflictError, MetadataError, OversizeError.
        """
        self.connection(connection_id)
        for entry in request.entries:
            check_rep(entry)
        gate = self._types.open(request.schema)
        try:
            registration, entries = self._register(connection_id, request, gate, uid, number)
        except JbiError:
            self.forget_type(gate.type)
            raise
        item = ServiceItem(registration.uid, self._item_types, self._ref, entries)
        self._announcer.join(item, request.secret)
        with self._lock:
            ended = registration.uid not in self._registrations
        if ended:  # its publisher's lease ran out meanwhile: taking it back came before there was something to take
            self._announcer.leave(registration.uid)
        return registration

    def _register(
        self, connection_id: str, request: PublisherRequest, gate: InformationTypeGate, uid: str, number: int
    ) -> tuple[Registration, Entries]:
        check_owner("registration", uid, request.secret)
        described = InformationType(name=gate.type.name, version=gate.type.version, schema=gate.digest).rep()
        entries = (described, *request.entries)
        with self._lock:
            connection = self.connection(connection_id)  # asked again: its lease may have run out meanwhile
            if uid in self._registrations:
                known = self._registrations[uid]
                if known.connection == connection_id:
                    return known, known.topic.entries
                raise UnknownUidError(f"registration {uid} belongs to another publisher", uid=uid)
            if number in connection.registrations:
                raise UnknownUidError(f"registration {uid!r} number {number} can't be made", uid=uid)
            if len(self._registrations) >= self._config.pad.max_registrations:
                raise OversizeError(f"the delegate holds its limit of {len(self._registrations)} registrations")
            topic = self._topic_for(entries)
            judgement = Judgement(gate, request.entries, topic.table, validate=request.validate)
            registration = Registration(uid, number, connection_id, gate, topic, judgement)
            connection.registrations[registration.number] = registration
            self._registrations[registration.uid] = registration
        return registration, entries

    def unregister_publisher(self, connection_id: str, uid: str) -> None:
        """Take a registration back. Raises UnknownUidError for one that is not this publisher's."""
        connection = self.connection(connection_id)
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is None or registration.connection != connection_id:
                raise UnknownUidError(f"no registration {uid} of this publisher", uid=uid)
            connection.registrations.pop(registration.number, None)
        self._drop_registrations([registration])

    def publish(self, registration: Registration, parcel: Parcel, deliveries: Deliveries) -> int:
        """Disseminate an object; how many subscriptions it matched. An object seen before is passed over (0).

        What subscribers get is added to `deliveries`: the caller has them `deliver`ed, once for a batch.

        Waits for room in the delegate's memory. Raises MetadataError, InvariantError, OversizeError or
        BackPressureError: nothing is delivered then. One thread at a time publishes for one registration, which keeps
        its order.
        """
        head = parcel.head
        gap = head.sequence - registration.sequence - 1
        if gap < 0:
            return 0
        if not self._budget.wait_for_room(self._config.queue.block_seconds):
            registration.refused += 1
            raise BackPressureError(
                f"the delegate's queues hold {self._budget.used} bytes, the limit is {self._budget.limit}",
                hint="Subscribers are too slow; see `jbi status`, or raise [pad] max_queued_bytes",
            )
        if gap and registration.sequence:  # the first one may be any: an earlier delegate had those before it
            self._tell_of_gap(registration, gap)
        registration.sequence = head.sequence
        try:
            registration.check_head(head)
            matched = registration.judgement.match(head.metadata)
        except (MetadataError, OversizeError):
            registration.refused += 1
            raise
        registration.published += 1
        if not matched:
            registration.unmatched += 1
        elif registration.topic.table.filters and any(s.payload_filter is not None for s in matched):
            self._deliver_filtered(disseminate(parcel, matched), parcel, deliveries)
        else:
            for subscription in matched:
                self._deliver(subscription, parcel, parcel, deliveries)
        return len(matched)

    def deliver(self, deliveries: Deliveries) -> None:
        """What `publish` has gathered goes to the subscribers' queues, and out."""
        gone = deliveries.offer()
        if gone:  # cancelled, or their session over, since the match: those have accounted for what they held
            self._came_to_nothing(gone)

    def _came_to_nothing(self, gone: Sequence[Subscription]) -> None:
        with self._lock:
            self._closed_lost.update(subscription.ended for subscription in gone)
            self._closed_matched += len(gone)

    def _tell_of_gap(self, registration: Registration, count: int) -> None:
        log.warning("registration %s: %d objects never came", registration.uid, count)
        for subscription in registration.topic.table.subscriptions():
            session = self._sessions.get(subscription.owner)
            if session is not None:
                session[0].lose(subscription, Cause.SEQUENCE_GAP, count)

    def _deliver_filtered(self, result: Disseminated, published: Parcel, deliveries: Deliveries) -> None:
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        for selected in result.selected:
            selected.subscription.unfiltered += not selected.filtered
            self._deliver(selected.subscription, selected.parcel, published, deliveries)

    def _deliver(self, subscription: Subscription, parcel: Parcel, published: Parcel, deliveries: Deliveries) -> None:
        """`parcel` is what the subscription's filter has left of `published`."""
        request = subscription.request
        if request.direct:
            session = self._sessions.get(subscription.owner)
            if session is not None:
                deliveries.add(session[0], subscription, parcel)
            else:
                self._came_to_nothing((subscription,))
        if request.recipients:
            self._mail_out(subscription, parcel, published)

    def _mail_out(self, subscription: Subscription, parcel: Parcel, published: Parcel) -> None:
        request = subscription.request
        head, obj = self._unpacked
        if head is not published.head:  # mails of one object share what is made of it
            obj = published.unpacked()
            self._unpacked = published.head, obj
        payload = obj.payload if parcel is published else bytes(parcel.payload)
        if not self._mail.offer(subscription, obj, payload):  # cancelled since the match
            with self._lock:
                self._closed_lost[subscription.ended] += len(request.recipients)
                self._closed_matched += not request.direct

    def sync_mail(self) -> None:
        """Return when the mail of all objects published before is on disk, where it is kept."""
        self._mail.sync()

    # -- subscribers --------------------------------------------------------------------------------------------

    def open_session(self, name: str, duration: float) -> tuple[str, Lease]:
        """A subscriber process comes: its session id and lease. Raises LeaseDeniedError."""
        session_id = f"session-{uuid4().hex}"
        session = SubscriberSession(
            session_id, name=name, budget=self._budget, hub=self._hub, chunk=self._config.link.chunk
        )
        with self._lock:
            self._check_room(len(self._sessions), "subscriber sessions")
            lease = self._landlord.grant(
                lambda: self._drop_session(session_id, Cause.SUBSCRIBER_DEAD), duration, self._clock()
            )
            self._sessions[session_id] = (session, lease.lease_id)
        return session_id, lease

    def _check_room(self, taken: int, what: str) -> None:
        if taken >= self._config.pad.max_sessions:
            raise OversizeError(f"the delegate holds its limit of {taken} {what}")

    def close_session(self, session_id: str) -> None:
        """The subscriber leaves. Raises UnknownUidError."""
        with self._lock:
            self.session(session_id)
            self._landlord.drop(self._sessions[session_id][1])
        self._drop_session(session_id, Cause.CANCELLED)

    def session(self, session_id: str) -> SubscriberSession:
        """Raises UnknownUidError: expired, closed, or never opened here."""
        with self._lock:
            found = self._sessions.get(session_id)
        if found is None:
            raise UnknownUidError(f"no subscriber session {session_id} here", hint="Open it again", uid=session_id)
        return found[0]

    def subscribe(self, session_id: str, request: SubscriptionRequest, duration: float) -> Granted:
        """Register a subscription (paper section 2.4(7)); `duration` is for the lease of an e-mail-only one.

        The same request again is the same subscription; mail that was suspended is sent again.
        One with recipients has to prove that its id is its own. Raises UnknownUidError, AccessDeniedError,
        PredicateError, AddressError, ConfigurationError, IncompatibleEntryError, OversizeError, LeaseDeniedError; no
        state is left then.
        """
        if request.recipients:
            check_owner("subscription", request.uid, request.secret)
        owner = session_id if request.direct else "mail"
        key = (owner, request.uid)
        if request.direct:
            self.session(session_id)
        subscription = compile_subscription(request, owner=owner, number=0)
        with self._lock:
            known = self._subscriptions.get(key)
            if known is not None and known.request == request:
                self._mail.resume(known)
                return Granted(known.number, self._mail_lease(known))
            if known is not None:
                raise ConfigurationError(
                    f"subscription {request.uid} stands here with other terms", hint="Cancel it first"
                )
            session = self.session(session_id) if request.direct else None  # its lease may have run out meanwhile
            if len(self._subscriptions) >= self._config.pad.max_subscriptions:
                raise OversizeError(f"the delegate holds its limit of {len(self._subscriptions)} subscriptions")
            topics = [self._topics[topic] for topic in self._published.find(request.entries)]
            lease = None
            if session is None:
                lease = self._landlord.grant(lambda: self._forget_subscription(key), duration, self._clock())
                subscription.lease_id = lease.lease_id
                self._mail_leases[lease.lease_id] = request.uid
            self._next_number += 1
            subscription.number = self._next_number
            if session is not None:
                session.add(subscription)
            self._subscriptions[key] = subscription
            if request.recipients:
                self._mail.open(subscription)
            self._waiting.add(key, request.entries)
            for topic in topics:
                topic.table.add(subscription)
        if lease is not None and self._store is not None:
            self._keep(Kept(request, lease.lease_id, self._wall() + lease.duration), key)
        return Granted(subscription.number, lease)

    def _mail_lease(self, subscription: Subscription) -> Lease | None:
        if not subscription.lease_id:
            return None
        return Lease(subscription.lease_id, self._landlord.left(subscription.lease_id, self._clock()))

    def _keep(self, kept: Kept, key: tuple[str, str]) -> None:
        assert self._store is not None
        try:
            self._store.keep(kept)
        except StorageError:
            self._forget_subscription(key)  # what is not on disk is not promised
            raise

    def _take_over(self, kept: Kept) -> None:
        """A subscription of our time before: its lease goes on."""
        key = ("mail", kept.request.uid)
        self._next_number += 1
        subscription = compile_subscription(kept.request, owner="mail", number=self._next_number)
        now = self._clock()
        self._landlord.restore(kept.lease_id, lambda: self._forget_subscription(key), now + kept.ends - self._wall())
        self._mail_leases[kept.lease_id] = kept.request.uid
        subscription.lease_id = kept.lease_id
        self._subscriptions[key] = subscription
        self._mail.open(subscription)
        self._waiting.add(key, kept.request.entries)

    def unsubscribe(self, right: str, uid: str, *, administer: bool = False) -> None:
        """Cancel a subscription: nothing is delivered to it once this has returned.

        `right` is the session id, or the lease id of an e-mail-only one; an administrator needs neither. Raises
        UnknownUidError.
        """
        with self._lock:
            mailed = self._subscriptions.get(("mail", uid))
            if (right, uid) in self._subscriptions and right != "mail":
                key = (right, uid)
            elif mailed is not None and (administer or compare_digest(right.encode(), mailed.lease_id.encode())):
                key = ("mail", uid)
            else:
                raise UnknownUidError(f"no subscription {uid} here", uid=uid)
        self._forget_subscription(key)

    def mail_subscriptions(self) -> list[dict[str, object]]:
        """The e-mail-only subscriptions, as plain data."""
        with self._lock:
            return [s.status() for (owner, _), s in self._subscriptions.items() if owner == "mail"]

    def explain(self, uid: str, metadata: bytes, payload: bytes) -> dict[str, object]:
        """Why an object would be delivered to a subscription, or not, for each registration here, as plain data; under
        `terms` all that the subscription asks for, and its account.

        Raises UnknownUidError, MetadataError.
        """
        with self._lock:
            found = next((s for (_, known), s in self._subscriptions.items() if known == uid), None)
            registered = {r.uid: r.topic.entries for r in self._registrations.values()}
        if found is None:
            raise UnknownUidError(f"no subscription {uid} here", uid=uid)
        return {**explain(found, registered, metadata, payload), "terms": found.status()}

    # -- leases and life ----------------------------------------------------------------------------------------

    def renew(self, lease_id: str, duration: float) -> Lease:
        """Renew the lease of a publisher, subscriber or e-mail subscription. Raises UnknownLeaseError."""
        with self._lock:
            lease = self._landlord.renew(lease_id, duration, self._clock())
            uid = self._mail_leases.get(lease_id)
        if uid is not None and self._store is not None:
            self._store.renew(uid, self._wall() + lease.duration)
        return lease

    def expire(self) -> int:
        """Clean up whose lease has run out; how many there were."""
        with self._lock:
            gone = self._landlord.expire(self._clock())
        for drop in gone:
            try:
                drop()
            except JbiError as exc:
                log.error("cleaning up behind a lease: %s", exc)
        return len(gone)

    def drain(self, timeout: float, *, closing: bool = False) -> int:
        """Wait for deliveries and mails to go out; how many objects are left after `timeout` seconds.

        `closing` leaves nothing for later that would not survive."""
        with self._lock:
            sessions = [s for s, _ in self._sessions.values()]
        deadline = self._clock() + timeout
        left = sum(s.drain(max(0.0, deadline - self._clock()) if s.connected else 0.0) for s in sessions)
        return left + self._mail.drain(max(0.0, deadline - self._clock()), closing=closing)

    def close(self) -> None:
        """End everything: registrations leave the lookup services, what still waits is lost (shutdown)."""
        with self._lock:
            connections, sessions = list(self._connections), list(self._sessions)
        for connection_id in connections:
            self._drop_connection(connection_id)
        self._part()
        for session_id in sessions:
            self._drop_session(session_id, Cause.SHUTDOWN)
        self._hub.stop()
        self._mail.stop()
        if self._store is not None:
            self._store.close()

    def _part(self) -> None:
        """Tell the subscribers that we stop: who has got everything is not to think that something may be lost."""
        with self._lock:
            connected = [s for s, _ in self._sessions.values() if s.connected]
        for session in connected:
            session.part()
        deadline = self._clock() + PART_SECONDS
        for session in connected:
            session.wait_parted(max(0.0, deadline - self._clock()))

    def status(self) -> dict[str, object]:
        """Everything a status page shows, as plain data. The totals are of all that was ever here:

        published = unmatched + what matched at least one subscription
        matched = suppressed + delivered + lost + queued + in_flight, with direct subscriptions alone (for mail see
        docs/mail.md) and but for a lost `sequence_gap`: whether that would have matched is not known
        """
        with self._lock:
            registrations = list(self._registrations.values())
            subscriptions = list(self._subscriptions.values())
            sessions = [s for s, _ in self._sessions.values()]
            counted = [*subscriptions, *self._ending]  # a counter that goes back would be taken for a restart
            lost = Counter(self._closed_lost)
            for s in counted:
                lost.update(s.lost)
            return {
                "publishers": [
                    {"id": shown(c.connection_id), "name": c.name, "registrations": len(c.registrations)}
                    for c in self._connections.values()
                ],
                "registrations": [r.status() for r in registrations],
                "sessions": [s.status() for s in sessions],
                "subscriptions": [s.status() for s in subscriptions],
                "published": self._closed_published + sum(r.published for r in registrations),
                "refused": self._closed_refused + sum(r.refused for r in registrations),
                "unmatched": self._closed_unmatched + sum(r.unmatched for r in registrations),
                "matched": self._closed_matched + sum(s.matched for s in counted),
                "suppressed": self._closed_suppressed + sum(s.suppressed for s in counted),
                "delivered": self._closed_delivered + sum(s.delivered for s in counted),
                "mailed": self._closed_mailed + sum(s.mailed for s in counted),
                "lost": dict(lost),
                "leases": len(self._landlord),
                "queued": sum(s.queued for s in sessions),
                "in_flight": sum(s.in_flight for s in sessions),
                "queued_bytes": self._budget.used,
                "mail": self._mail.status(),
            }

    # -- inside -------------------------------------------------------------------------------------------------

    def _topic_for(self, entries: Entries) -> _Topic:
        key = self._topic_keys.get(entries)
        if key is None:
            key = self._topic_keys[entries] = uuid4().hex
            topic = self._topics[key] = _Topic(key, entries, MatchTable())
            for subscription in self._waiting.find(entries):
                topic.table.add(self._subscriptions[subscription])
            self._published.add(key, entries)
        self._topics[key].registrations += 1
        return self._topics[key]

    def _drop_connection(self, connection_id: str) -> None:
        with self._lock:
            connection = self._connections.pop(connection_id, None)
            registrations = list(connection.registrations.values()) if connection else []
        self._drop_registrations(registrations)

    def _drop_registrations(self, registrations: list[Registration]) -> None:
        """Those of them that nobody else has dropped meanwhile."""
        with self._lock:
            registrations = [r for r in registrations if self._registrations.get(r.uid) is r]
            for registration in registrations:
                del self._registrations[registration.uid]
                self._closed_published += registration.published
                self._closed_unmatched += registration.unmatched
                self._closed_refused += registration.refused
                topic = registration.topic
                topic.registrations -= 1
                if topic.registrations == 0:
                    del self._topics[topic.key], self._topic_keys[topic.entries]
                    self._published.remove(topic.key)
            used = {r.gate.type for r in self._registrations.values()}
            idle = [t for t in {r.gate.type for r in registrations} if t not in used]
        if registrations:
            self._announcer.leave(*(registration.uid for registration in registrations))
        for unused in idle:
            self._types.forget(unused)

    def _drop_session(self, session_id: str, cause: Cause) -> None:
        with self._lock:
            found = self._sessions.get(session_id)
            keys = [key for key in self._subscriptions if key[0] == session_id]
            for key in keys:  # first: what is published from now on is not for them
                self._subscriptions[key].ended = cause
                self._take_from_tables(self._subscriptions[key])
            self._sessions.pop(session_id, None)
        if found is None:
            return
        found[0].close(cause)
        for key in keys:
            self._forget_subscription(key)

    def _forget_subscription(self, key: tuple[str, str]) -> None:
        with self._lock:
            subscription = self._subscriptions.pop(key, None)
            if subscription is None:
                return
            self._ending.append(subscription)
            if subscription.lease_id:
                self._mail_leases.pop(subscription.lease_id, None)
                self._landlord.drop(subscription.lease_id)
            self._waiting.remove(key)
            self._take_from_tables(subscription)
            session = self._sessions.get(key[0])
        if session is not None:
            subscription.lost[Cause.CANCELLED] += session[0].remove(subscription)
        subscription.lost[Cause.CANCELLED] += self._mail.cancel(subscription)
        with self._lock:
            self._ending.remove(subscription)
            self._closed_lost.update(+subscription.lost)
            self._closed_delivered += subscription.delivered
            self._closed_mailed += subscription.mailed
            self._closed_matched += subscription.matched
            self._closed_suppressed += subscription.suppressed
        if key[0] == "mail" and self._store is not None:
            self._store.forget(key[1])

    def _take_from_tables(self, subscription: Subscription) -> None:
        """Out of the tables that it was put in: of a thousand registrations it matches a few."""
        try:
            keys = list(self._published.find(subscription.request.entries))
        except IncompatibleEntryError:  # of the class that it means none is registered any more
            keys = []
        for key in keys:
            self._topics[key].table.remove(subscription)

    def _mail_lost(self, subscription: Subscription, cause: Cause, count: int, why: str) -> None:
        if why:
            facts = {"subscription": subscription.uid, "cause": cause.value, "count": count}
            log.warning("subscription %s: %d mails lost (%s): %s", subscription.uid, count, cause, why, extra=facts)
        session = self._sessions.get(subscription.owner)
        if session is not None and session[0].lose(subscription, cause, count):
            return
        with self._lock:
            stands = self._subscriptions.get((subscription.owner, subscription.uid)) is subscription
            (subscription.lost if stands else self._closed_lost)[cause] += count
