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

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import msgspec

from jbi_pubsub.core import combined
from jbi_pubsub.core.access import Action, AllowAll, Subject, demand
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    ConfigurationError,
    ErrorReport,
    IncompatibleEntryError,
    JbiError,
    OversizeError,
    PredicateError,
    SchemaError,
    StorageError,
    UnknownUidError,
    report,
)
from jbi_pubsub.core.info_object import Cause, Head, Parcel, SchemaBundle, TypeName
from jbi_pubsub.core.lease import ANY, FixedLeasePeriodPolicy, Landlord, Lease
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish, unmanaged
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.core.wire.places import Place
from jbi_pubsub.core.xpath import MAX_COST_OF_SUBSCRIBER, CostBudget, Predicate
from jbi_pubsub.lookup.entry import check_rep
from jbi_pubsub.lookup.index import TemplateIndex
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem
from jbi_pubsub.pad.delegate.overview import (
    leases_ending,
    page_of_subscriptions,
    page_of_terms,
    publishers_by_name,
    sessions_by_name,
    types_of,
)
from jbi_pubsub.pad.delegate.store import UNSUBSCRIBED_MOST, Kept, SubscriptionStore, Whose
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.late_join import LateJoiners, narrowing
from jbi_pubsub.pad.egress.session import Deliveries, SubscriberSession
from jbi_pubsub.pad.ingress.pipeline import GAP_MOST, Pipeline, Refused
from jbi_pubsub.pad.ingress.stages import PEER, Stages, stages_of
from jbi_pubsub.pad.ingress.totals import Account
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.mail.reminder import Schedule
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.explanation import Standing, explain, find_subscription, queue_of, recall
from jbi_pubsub.pad.matching.match_table import PARTITIONED_SECONDS, amending
from jbi_pubsub.pad.matching.registration import Entries, Registration, Topic
from jbi_pubsub.pad.matching.requested_offered import Offers
from jbi_pubsub.pad.matching.signatures import Seals
from jbi_pubsub.pad.matching.topics import GHOSTS_MOST, Topics
from jbi_pubsub.pad.model.events import Happening, What, Witness, proved
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.model.rights import Rights, effective, type_wanted
from jbi_pubsub.pad.model.subscription import FAR, Subscription, compile_subscription, shown
from jbi_pubsub.pad.model.type_repository import TypeRepository
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import (
    PEER_TYPE,
    PUBLISHER_TYPE,
    ExpirationEntry,
    InformationType,
    LocalEntry,
    NumberedEntry,
    Origin,
    RelayedEntry,
    SigningKeyEntry,
    local_name,
)
from jbi_pubsub.protocol.mail_links import LinkAction, recipient_of, uid_of
from jbi_pubsub.protocol.ownership import check_owner, check_publisher
from jbi_pubsub.protocol.replies import PREFETCH_LEAST, Granted
from jbi_pubsub.protocol.requests import NOT_BEFORE, PublisherRequest, SubscriptionRequest, amended, check_request
from jbi_pubsub.protocol.status import Terms

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.queries import History

log = logging.getLogger("jbi_pubsub.pad")

SWEEP_SECONDS: Final = 0.25
"""How often it is looked at what expires, and whose settings have changed; with quality of service alone."""

CANCEL_SECONDS: Final = 1.0
"""For a subscriber to be told that its subscription was cancelled."""

UNATTACHED_SECONDS: Final = 15.0
"""Longest lease of a publisher or subscriber session whose data connection has not come yet, whatever is asked for:
clients open it at once, which takes some seconds over 7,200 bit/s, and renew at 2/5 of the term meanwhile."""

FOLLOWED_SECONDS: Final = 10.0
"""Longest that, behind the end of a relayed registration, a bridge has to wait that lacks what follows; if the lease of
the bridge before was shorter, as long as that. One that has it comes as soon as the lookup services tell of the end."""

NO_WISH: Final = Wish()
NO_SCHEMA: Final = SchemaBundle("", ())

PART_SECONDS: Final = 1.0
"""For all subscribers to acknowledge that nothing comes any more: round trips, not queues."""

SOURCES_MOST: Final = 3
"""Names of publishers told of one type."""
TYPES_MOST: Final = 200
"""Types told with them."""


class Announcer(Protocol):
    """Makes registrations known to the lookup services."""

    def join(self, item: ServiceItem, secret: str = "") -> None:
        """Keep the item registered from now on; only who knows `secret` can take it over ("": nobody)."""
        ...

    def leave(self, *service_ids: str) -> None:
        """Cancel them, all at once."""
        ...


@dataclass(eq=False, slots=True)
class PublisherConnection:
    """A publishing application connected under a lease."""

    connection_id: str = field(repr=False)
    name: str
    lease_id: str = field(repr=False)
    term: float = ANY
    """Of its lease, as it was asked for (seconds)."""
    registrations: dict[int, Registration] = field(default_factory=dict)
    untold: dict[str, JbiError] = field(default_factory=dict)
    """By registration why a lookup service refuses to list it, until this is told."""
    caller: Caller | None = None
    """None: the application that a peer publisher lives in, which may do everything."""


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
        stages: Stages | None = None,
        wall: Callable[[], float] = time.time,
        node: str = "",
        stall: float = math.inf,
    ) -> None:
        """`subscriptions_ref` is the proxy handed to subscribers; `peer`: inside a publishing application; `store`
        keeps e-mail subscriptions, `mails` their mail; those in it are taken over; `stages` of the pipeline, by default
        those of the configuration; `node`: the id of the node that we are part of; `stall`: seconds between two
        calls of `expire` beyond which we did not listen (see Landlord). Raises StorageError."""
        self._store = store
        self._wall = wall
        self._mail_leases: dict[str, str] = {}
        self._mailed: dict[str, list[Subscription]] = {}
        """Those with recipients, by uid: of one subscription one that is bound to each process, and one that is not."""
        self._unsubscribed = dict.fromkeys(store.unsubscribed()) if store is not None else {}
        """(subscription, recipient) of those who have, in that order; also of subscriptions that have ended."""
        self._schedule = Schedule(config.mail.reminder_seconds)
        self._unattached: dict[str, float] = {}
        """Leases of those whose data connection has not come yet, with the seconds asked for."""
        self.delegate_id = delegate_id
        self.witness: Witness | None = None
        """Who is told what happens to contracts."""
        self._config = config
        self._types = types
        self._announcer = announcer
        self._ref = subscriptions_ref
        ways = [each.rpartition(":")[0].strip("[]") for each in subscriptions_ref.endpoints if "/" not in each]
        self._hosts = tuple(dict.fromkeys(ways))
        """Of the addresses that we are reached at."""
        self._clock = clock
        self._is_peer = peer
        self._item_types = (PEER_TYPE, PUBLISHER_TYPE) if peer else (PUBLISHER_TYPE,)
        self._lock = threading.RLock()
        self._stood = threading.Condition(self._lock)
        """A subscription has come, or a registration has gone."""
        self._landlord: Landlord[Callable[[], None]] = Landlord(
            FixedLeasePeriodPolicy(config.lease.maximum, min(300.0, config.lease.maximum)), stall=stall
        )
        self._connections: dict[str, PublisherConnection] = {}
        self._registrations: dict[str, Registration] = {}
        self._sessions: dict[str, SubscriberSession] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._waiting: TemplateIndex[tuple[str, str]] = TemplateIndex()
        self._next_number = 0
        self._costs: dict[str, CostBudget] = {}
        """Of each session."""
        self._budget = Budget(config.pad.max_queued_bytes)
        self._ending: list[Subscription] = []
        """Gone, and not yet in the totals of what has ended."""
        self._account = Account()
        self._quota = RequestQuota()
        stages = stages or stages_of(config, PEER if peer else delegate_id)
        self._quality = stages.quality
        turns = self._quality.links if self._quality is not None else None
        self._hub = SenderHub(name=f"deliver-{delegate_id[:8]}", turns=turns)
        if self._quality is not None:
            self._hub.every(SWEEP_SECONDS, self._sweep)
        client = config.client
        self._own = Caller("", user=client.user, claimed=True, role=client.role)
        """The application that a peer publisher lives in."""
        self._buffers = stages.buffers
        self._topics = Topics(stages.buffers)
        self._offers = Offers()
        self._signatures = stages.signatures
        self._archive = stages.archive
        self._node = node or (stages.archive.keeping.id if stages.archive is not None else "") or delegate_id
        """Where objects are said to be published: after a restart the same, where something is kept that knows it."""
        self._seals = Seals(stages.signer, delegate_id) if stages.signer is not None else None
        self._partitioned: list[Topic] = []
        """Whose predicates are partitioned by importance."""
        self._former_keys: dict[str, SigningKey] = {}
        """Of registrations that have gone: somebody may still come for their objects."""
        self._relayed_before: dict[str, tuple[int, float]] = {}
        """Of relayed registrations that have gone the number of the last object, and until when a bridge that lacks the
        next one is not taken (clock)."""
        self.access: Final = stages.access
        self._asked_version = self.access.version
        """Of the policy that all standing contracts have been asked about."""
        self._asked_round = self._quality.rounds if self._quality is not None else 0
        self._expelled: dict[str, float] = {}
        """Sessions that may not be here any more, and when they end: once they have been told."""
        quality = self._quality
        self._mail = MailDispatcher(
            config.mail,
            name=delegate_id[:8],
            lost=self._mail_lost,
            store=mails,
            link_rate=(lambda: quality.mail_rate) if quality is not None else None,
        )
        self.pipeline = Pipeline(
            config=config,
            stages=stages,
            budget=self._budget,
            sessions=self._sessions,
            mail=self._mail,
            account=self._account,
            seals=self._seals,
            clock=clock,
        )
        self._late_joiners = LateJoiners(
            stages.buffers,
            self._budget,
            self.pipeline.mail_out,
            name=f"catch-up-{delegate_id[:8]}",
            seal=self._seals.seal if self._seals is not None else None,
            shaper=quality.shaper if quality is not None else None,
            refuse=self.pipeline.refuse,
        )
        self.history = self._history_of(stages)
        if self._quality is not None:
            self._quality.watch(self._queued, self._counted)
        for kept in store.load(wall()) if store is not None else ():
            self._take_over(kept)
        for ended in self._mail.start():
            self._account.add(matched=ended.offered, mailed=ended.mailed, lost=ended.lost)

    def _history_of(self, stages: Stages) -> History | None:
        """What subscribers ask of the past, here or elsewhere; what is off is not imported."""
        if stages.archive is not None:
            from jbi_pubsub.pad.past.queries import History

            return self._made_history(partial(History, stages.archive))
        if stages.foreign is not None:
            from jbi_pubsub.pad.past.remote import ForeignHistory

            return self._made_history(partial(ForeignHistory, stages.foreign))
        return None

    def _made_history(self, kind: Callable[..., History]) -> History:
        return kind(
            access=self.access,
            max_queries=self._config.archive.max_queries,
            numbers=self._number,
            quota=self._quota,
            contract=lambda caller, type_, wish: self._contract(caller, "query", type_, wish),
            end_contract=self._end_contract,
            name=f"history-{self.delegate_id[:8]}",
            lease=self._config.lease.durable,
            wall=self._wall,
            seal=self._seals.seal if self._seals is not None else None,
            shaper=self._quality.shaper if self._quality is not None else None,
        )

    def _number(self) -> int:
        """Of one more queue."""
        with self._lock:
            self._next_number += 1
            return self._next_number

    def start(self) -> None:
        """Begin to deliver."""
        self._hub.start()

    # -- publishers ---------------------------------------------------------------------------------------------

    def connect(self, name: str, duration: float, caller: Caller | None = None) -> tuple[PublisherConnection, Lease]:
        """A publishing application comes (paper section 2.4(1)). Raises LeaseDeniedError."""
        connection_id = f"connection-{uuid4().hex}"
        with self._lock:
            known = ((c.lease_id, uid) for uid, c in self._connections.items())
            idle = self._give_way(len(self._connections), known, "publishers")
            lease = self._grant_unattached(lambda: self._drop_connection(connection_id), duration)
            connection = PublisherConnection(connection_id, name, lease.lease_id, duration, caller=caller)
            self._connections[connection_id] = connection
            self._tell_connection("created", connection)
        self._drop_connection(idle)
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

    @property
    def registrations(self) -> int:
        """How many there are."""
        return len(self._registrations)

    def open_type(self, bundle: SchemaBundle, caller: str) -> InformationTypeGate:
        """The type a schema stands for, for whom it is opened. Raises SchemaError or TypeConflictError."""
        return self._types.open(bundle, caller=caller)

    def publishing(self, type: TypeName) -> int:  # noqa: A002  # the field's word
        """How many registrations of a type there are."""
        with self._lock:
            return sum(r.gate.type == type for r in self._registrations.values())

    def former_schema(self, type: TypeName) -> SchemaBundle | None:  # noqa: A002  # the field's word
        """Of a type that nobody publishes any more, as long as somebody may come for its objects; None for others."""
        with self._lock:
            return next((topic.schema for topic in self._topics.ghosts if topic.type == type), None)

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
        AccessDeniedError (`uid` is not the secret's), SignatureError (we want signed objects, and its key does not
        hold), SchemaError, TypeConflictError, MetadataError, OversizeError, QosDeniedError, ConfigurationError (it is
        to be archived, and there is no archive), StorageError.
        """
        self.connection(connection_id)
        for entry in request.entries:
            check_rep(entry)
        return self._register_opened(connection_id, request, self._types.open(request.schema), uid, number)

    def register_relayed(
        self,
        uid: str,
        entries: Entries,
        gate: InformationTypeGate,
        origin: Origin,
        *,
        connection_id: str,
        number: int,
        secret: str,
        validate: bool = True,
        signing: SigningKey | None = None,
        qos: Wish = NO_WISH,
        persist: bool | None = None,
        expiration: float = 0.0,
    ) -> Registration:
        """Register what is published on another platform, under the id that it has there; its objects keep theirs, and
        say by which platforms they came. That `uid` is the publisher's own, whoever relays it vouches for (the action
        `bridge`), unless it signs; so nobody else need know its secret. `secret` is the bridge's: with it the
        registration can be taken over in the lookup services. `gate`, `entries`, `validate` and `expiration` are as of
        any registration, and so is all that becomes of its objects; what a bridge leaves out it says
        (`info_object.left_out`). Where the original stands it is refused; for a while also where another bridge's has
        ended, if what follows that is missing: whoever has it goes first. Raises as `register_publisher`,
        AccessDeniedError for an original that is here, another bridge's, or what is missing."""
        request = PublisherRequest(
            gate.bundle, entries, validate, secret, signing, qos, persist, expiration=expiration, origin=origin
        )
        return self._register_opened(connection_id, request, gate, uid, number)

    def _register_opened(
        self, connection_id: str, request: PublisherRequest, gate: InformationTypeGate, uid: str, number: int
    ) -> Registration:
        try:
            if self._signatures is not None:
                self._signatures.welcome(uid, request.signing)
            registration, entries = self._register(connection_id, request, gate, uid, number)
        except JbiError:
            self.forget_type(gate.type)
            raise
        self._announcer.join(self._item(uid, request, entries), request.secret)
        with self._lock:
            ended = registration.uid not in self._registrations
        if ended:  # its publisher's lease ran out meanwhile: taking it back came before there was something to take
            self._announcer.leave(registration.uid)
        return registration

    def _item(self, uid: str, request: PublisherRequest, entries: Entries) -> ServiceItem:
        """What lookup services are told of a registration."""
        key = () if request.signing is None else (SigningKeyEntry.of(request.signing).rep(),)
        local = (LocalEntry().rep(),) if request.local else ()
        lasting = (ExpirationEntry(seconds=repr(request.expiration)).rep(),) if request.expiration else ()
        origin = request.origin
        told = () if origin is None else (RelayedEntry(via=" ".join(origin.via), bridge=origin.bridge).rep(),)
        numbered = () if origin is None or origin.first is None else (NumberedEntry().rep(),)
        return ServiceItem(uid, self._item_types, self._ref, (*entries, *key, *told, *numbered, *local, *lasting))

    def _register(
        self, connection_id: str, request: PublisherRequest, gate: InformationTypeGate, uid: str, number: int
    ) -> tuple[Registration, Entries]:
        check_publisher(uid, request)
        if request.schema.is_none and (request.validate or request.entries):
            raise SchemaError(
                f"there is no schema of {gate.type} to validate by, nor one that says what is invariant",
                hint="Give the schema, or register with validate=False and no invariant metadata",
            )
        name = gate.type.name
        described = InformationType(
            name=name, version=gate.type.version, schema=gate.digest, local=local_name(name)
        ).rep()
        entries = (described, *request.entries)
        try:
            BOUNDS.check("its item", self._item(uid, request, entries))
            size = BOUNDS.check_size("its request", msgspec.structs.replace(request, schema=NO_SCHEMA))
        except OversizeError as exc:
            raise OversizeError(
                f"no lookup service lists the registration of {gate.type}: {exc.message}",
                hint=f"{exc.hint}. Mark as variant what repeats or is long (docs/codegen.md)",
            ) from exc
        if request.origin is None:
            self._give_way_to_original(uid)
        is_kept, archived = self._archived(connection_id, request, gate.type, uid, entries)
        with self._lock:
            connection = self.connection(connection_id)  # asked again: its lease may have run out meanwhile
            if uid in self._registrations:
                known = self._registrations[uid]
                if request.origin is not None and known.connection != connection_id:
                    what = "is published here" if known.origin is None else "is relayed here by another bridge"
                    raise AccessDeniedError(f"registration {uid} {what}: it can't be relayed", uid=uid)
                if known.connection == connection_id and connection.registrations.get(number, known) is known:
                    connection.registrations[number] = connection.registrations.pop(known.number)
                    known.number = number  # where it is another one the answer was lost, and nothing was published
                    known.origin = request.origin
                    known.signing = request.signing  # another certificate may answer for it by now
                    self._tell_registration("updated", known)
                    return known, known.topic.entries
                raise UnknownUidError(f"registration {uid} belongs to another publisher", uid=uid)
            if number in connection.registrations:
                raise UnknownUidError(f"registration {uid!r} number {number} can't be made", uid=uid)
            had = self._relayed_up_to(uid, request.origin)
            if len(self._registrations) >= self._config.pad.max_registrations:
                raise OversizeError(f"the delegate holds its limit of {len(self._registrations)} registrations")
            with contextlib.ExitStack() as undo:
                share = self._quota.take(connection.caller, size)
                undo.callback(self._quota.give_back, share)
                contract, _ = self._contract(connection.caller, "publish", gate.type, request.qos)
                undo.callback(self._end_contract, contract)
                topic = self._topic_for(entries, gate.type)
                undo.pop_all()
            judgement = Judgement(
                gate, request.entries, topic.table, validate=request.validate, well_formed=request.well_formed,
                origin=self._origin(connection.name, request),
            )  # fmt: skip
            registration = Registration(uid, number, connection_id, gate, topic, judgement, signing=request.signing)
            registration.expiration, registration.local = request.expiration, request.local
            registration.contract, registration.share = contract, share
            registration.persist, registration.archived = is_kept, archived
            registration.origin = request.origin
            registration.sequence = registration.judged = had
            self._relayed_before.pop(uid, None)
            topic.is_partly_kept = topic.is_partly_kept or not is_kept
            topic.schema = None if gate.bundle.is_none else gate.bundle
            registration.marked = request.persist
            topic.unannounced.add(uid)
            topic.buffer.young_until = math.inf
            connection.registrations[registration.number] = registration
            self._registrations[registration.uid] = registration
            self._tell_quality(self._offers.made_by(registration, request.qos))
            self._tell_registration("created", registration)
        return registration, entries

    def _give_way_to_original(self, uid: str) -> None:
        """A publisher has come to the platform that its objects were relayed to."""
        with self._lock:
            shadow = self._registrations.get(uid)
            if shadow is None or shadow.origin is None:
                return
            connection = self._connections.get(shadow.connection)
            if connection is not None:
                connection.registrations.pop(shadow.number, None)
        self._drop_registrations([shadow])

    def _relayed_up_to(self, uid: str, origin: Origin | None) -> int:
        """Under the lock: the number up to which a registration is accounted for here that a bridge wants to relay.
        Raises AccessDeniedError while another bridge may come that has what follows, and this one has not."""
        if origin is None or origin.first is None:
            return 0
        had, until = self._relayed_before.get(uid, (0, 0.0))
        if had and not 0 < origin.first <= had + 1 and self._clock() < until:
            raise AccessDeniedError(
                f"registration {uid} was relayed here up to number {had}: a bridge that has what follows goes first",
                hint="Ask again: after some seconds nobody is waited for",
                uid=uid,
            )
        return had or max(0, origin.first - 1)

    def tell_filtered(self, connection_id: str, uid: str, count: int) -> None:
        """What a bridge of before NumberedEntry says: it has left out so many objects of a registration that it relays.
        Raises UnknownUidError for one that is not relayed by it."""
        self.connection(connection_id)
        registration = self._registrations.get(uid)
        if registration is None or registration.connection != connection_id or registration.origin is None:
            raise UnknownUidError(f"no registration {uid[:64]} of this bridge", uid=uid[:64])
        self.pipeline.lose(registration, Cause.FILTERED, min(max(0, count), GAP_MOST))

    def _archived(
        self, connection_id: str, request: PublisherRequest, type_: TypeName, uid: str, entries: Entries
    ) -> tuple[bool, int]:
        """Whether a registration is archived, and up to which number it is already. Raises ConfigurationError,
        StorageError."""
        if self._archive is None:
            if request.persist:
                raise ConfigurationError(
                    "a registration with persist=True needs an archive, and there is none here",
                    hint="Set [archive] folder, use another delegate, or leave persist out",
                )
            return False, 0
        if not self._archive.is_kept(request.persist, type_, entries):
            return False, 0
        origin = self._origin(self.connection(connection_id).name, request)
        return True, self._archive.open(uid, type_, origin, entries)

    def _origin(self, publisher: str, request: PublisherRequest) -> combined.Provenance:
        is_relayed = request.origin is not None
        return combined.Provenance(publisher, self._node, self._hosts, request.owner, is_relayed)

    def _contract(
        self,
        caller: Caller | None,
        action: Action,
        type_: TypeName,
        wish: Wish,
        *,
        by_mail: bool = False,
        changed: Callable[[GrantedQos], None] | None = None,
    ) -> tuple[Contract | None, GrantedQos]:
        """What policies decide for a contract that opens; None without quality of service, where no wish is granted.
        Raises ConfigurationError, QosDeniedError."""
        if self._quality is None:
            return None, unmanaged(wish)
        delivery = "mail" if by_mail else "peer" if self._is_peer else "queue"
        told = changed if wish != Wish() else None
        return self._quality.opened(caller or self._own, action, type_.name, type_.version, delivery, wish, told)

    def _queued(self) -> tuple[int, int]:
        """Objects that wait in all queues, and their bytes."""
        return sum(session.queued for session in list(self._sessions.values())), self._budget.used

    def _counted(self) -> tuple[int, int]:
        """Objects that matched the subscriptions there are, and that they lost."""
        standing = list(self._subscriptions.values())
        return sum(each.matched for each in standing), sum(sum(each.lost.copy().values()) for each in standing)

    def _end_contract(self, contract: Contract | None) -> None:
        if self._quality is not None and contract is not None:
            self._quality.ended(contract)

    def explain_contract(self, uid: str) -> dict[str, Any]:
        """Why a subscription or registration has the importance and preferences that it has. Raises UnknownUidError,
        and ConfigurationError without quality of service."""
        if self._quality is None:
            raise ConfigurationError("this server manages no quality of service", hint="Set [qos] mode = 'on'")
        with self._lock:
            registration = self._registrations.get(uid)
            found = [registration.contract] if registration is not None else []
            found += [each.contract for (_, name), each in self._subscriptions.items() if name == uid]
        contract = next((each for each in found if each is not None), None)
        if contract is None:
            raise UnknownUidError(f"no subscription or registration {uid[:64]} here", uid=uid[:64])
        return self._quality.explain_contract(contract)

    def unregister_publisher(self, connection_id: str, uid: str) -> None:
        """Take a registration back. Raises UnknownUidError for one that is not this publisher's."""
        connection = self.connection(connection_id)
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is None or registration.connection != connection_id:
                raise UnknownUidError(f"no registration {uid} of this publisher", uid=uid)
            connection.registrations.pop(registration.number, None)
        self._drop_registrations([registration])

    def publish(self, registration: Registration, run: Sequence[Parcel], deliveries: Deliveries) -> Refused:
        """Admit and judge consecutive objects (see pipeline.py), with quality of service when it is their turn; those
        that were refused."""
        refused: Refused = []
        admitted = self.pipeline.admit(registration, run, refused)
        try:
            if self._quality is None:
                self.pipeline.judge(registration, admitted, deliveries, refused)
            else:
                self._quality.tasks.run(
                    registration.contract or Contract(),
                    lambda: self.pipeline.judge(registration, admitted, deliveries, refused),
                )
        except (UnknownUidError, BackPressureError) as exc:
            refused += [(parcel, exc) for parcel in admitted]
        return refused

    def balance(self) -> None:
        """With quality of service: predicates are partitioned by importance where they cost much, and follow the
        importance of their subscriptions. Now and then."""
        with self._lock:
            registrations = list(self._registrations.values())
        costs = dict.fromkeys(self._partitioned, 0.0)
        for each in registrations:
            if each.seconds is not None:
                costs[each.topic] = max(costs.get(each.topic, 0.0), each.seconds())
        for topic, cost in costs.items():
            if topic in self._partitioned or cost > PARTITIONED_SECONDS:
                with self._lock:
                    topic.table.balance(cost, self._buffers.stamp)
        self._partitioned = [topic for topic in costs if topic.table.parts is not None]

    def announced(self, uid: str, told: int) -> None:
        """A lookup service has begun to tell of a registration, `told` so many of it. Unknown ids are ignored."""
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is not None:
                topic = registration.topic
                topic.unannounced.discard(uid)
                topic.announced, topic.told = self._clock(), max(topic.told, told)
                if not topic.unannounced:
                    self._buffers.announced(topic.buffer, topic.announced)

    def unlisted(self, uid: str, why: JbiError) -> None:
        """A lookup service refuses to list a registration: its publisher is told, unless it may pass by itself. Unknown
        ids are ignored."""
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is not None and why.is_final and (of := self._connections.get(registration.connection)):
                of.untold[uid] = why

    def refusals(self, connection: PublisherConnection) -> list[tuple[str, ErrorReport]]:
        """Registrations that lookup services refuse to list, and why; each once. Asked with each batch."""
        if not connection.untold:
            return []
        with self._lock:
            untold, connection.untold = connection.untold, {}
        return [(uid, report(why)) for uid, why in untold.items()]

    def take_back_unlisted(self, connection_id: str, uid: str) -> bool:
        """Take a registration back that no lookup service has listed yet; whether that was so."""
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is not None and uid not in registration.topic.unannounced:
                return False
        with contextlib.suppress(UnknownUidError):  # gone already
            self.unregister_publisher(connection_id, uid)
        return True

    def wait_for_late_joiners(self) -> None:
        """Before we stop: who was told of a new registration and comes for its first objects is let come, for at most
        [pad] settle_seconds since it was told. A publisher that closes at once takes nothing away from him."""
        settle = self._config.pad.settle_seconds
        with self._lock:
            while (left := self._settling(settle)) > 0:
                self._stood.wait(left)

    def _settling(self, settle: float) -> float:
        """Seconds until all have come or had the time to; 0: they have."""
        now = self._clock()
        return max((topic.announced + settle - now for topic in self._topics if topic.is_awaited), default=0.0)

    def wait_for_subscriptions(self, connection_id: str, uid: str, count: int, timeout: float) -> int:
        """How many subscriptions a registration matches, as soon as there are `count`, or after `timeout` seconds.
        Raises UnknownUidError for one that is not this publisher's."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while True:
                self.connection(connection_id)
                registration = self._registrations.get(uid)
                if registration is None or registration.connection != connection_id:
                    raise UnknownUidError(f"no registration {uid} of this publisher", uid=uid)
                standing = len(registration.topic.table)
                left = deadline - time.monotonic()
                if standing >= count or left <= 0 or self.pipeline.stopping.is_set():
                    return standing
                self._stood.wait(left)

    def kept(self, object_id: str) -> Parcel | None:
        """An object that was published moments ago."""
        return self._buffers.find(object_id)

    def signing_key(self, uid: str) -> SigningKey | None:
        """What the objects of a registration that is here, or was, are signed with; our own if it is our id."""
        with self._lock:
            registration = self._registrations.get(uid)
            if registration is not None:
                return registration.signing
            if uid == self.delegate_id:
                return self._seals.key if self._seals is not None else None
            return self._former_keys.get(uid)

    # -- subscribers --------------------------------------------------------------------------------------------

    def open_session(self, name: str, duration: float, caller: Caller | None = None) -> tuple[str, Lease]:
        """A subscriber process comes: its session id and lease. Raises LeaseDeniedError."""
        session_id = f"session-{uuid4().hex}"
        session = self._new_session(session_id, name)
        session.caller = caller
        with self._lock:
            known = ((session.lease_id, uid) for uid, session in self._sessions.items())
            idle = self._give_way(len(self._sessions), known, "subscriber sessions")
            lease = self._grant_unattached(lambda: self._drop_session(session_id, Cause.SUBSCRIBER_DEAD), duration)
            session.lease_id = lease.lease_id
            self._sessions[session_id] = session
            self._tell_session("created", session)
            session.opened = self._clock()  # last of all: ages count from here to the answer
        self._drop_session(idle, Cause.SUBSCRIBER_DEAD)
        return session_id, lease

    def _new_session(self, session_id: str, name: str) -> SubscriberSession:
        budget, chunk = self._budget, self._config.link.chunk
        if self._quality is None:
            return SubscriberSession(session_id, name=name, budget=budget, hub=self._hub, chunk=chunk)
        from jbi_pubsub.pad.ingress.levels import LevelledSession  # here: what is off is not imported

        return LevelledSession(session_id, quality=self._quality, name=name, budget=budget, hub=self._hub, chunk=chunk)

    def _sweep(self) -> None:
        """What waits follows its policies. On the hub's thread."""
        for session in list(self._sessions.values()):
            session.sweep()

    def _give_way(self, taken: int, known: Iterable[tuple[str, str]], what: str) -> str:
        """Who of the `known` (lease and id) has to end for one more: nobody ("") while there is room, else the first
        whose data connection has not come. Raises OversizeError when all have one."""
        if taken < self._config.pad.max_sessions:
            return ""
        for lease_id, uid in known:  # as they came
            if lease_id in self._unattached:
                self._landlord.drop(lease_id)
                return uid
        raise OversizeError(f"the delegate holds its limit of {taken} {what}")

    def _grant_unattached(self, drop: Callable[[], None], duration: float) -> Lease:
        lease = self._landlord.grant(drop, _short(duration), self._clock())
        self._unattached[lease.lease_id] = duration
        return lease

    def attached(self, uid: str) -> None:
        """The data connection of a publisher or subscriber session stands: its lease is what it has asked for."""
        with self._lock:
            connection, session = self._connections.get(uid), self._sessions.get(uid)
            found = connection or session
            lease_id = found.lease_id if found is not None else ""
            asked = self._unattached.pop(lease_id, None)
            if asked is not None and self._landlord.is_live(lease_id, self._clock()):
                self._landlord.renew(lease_id, asked, self._clock())

    def close_session(self, session_id: str) -> None:
        """The subscriber leaves. Raises UnknownUidError."""
        with self._lock:
            self._landlord.drop(self.session(session_id).lease_id)
        self._drop_session(session_id, Cause.CANCELLED)

    def session(self, session_id: str) -> SubscriberSession:
        """Raises UnknownUidError: expired, closed, or never opened here."""
        with self._lock:
            found = self._sessions.get(session_id)
        if found is None:
            raise UnknownUidError(f"no subscriber session {session_id} here", hint="Open it again", uid=session_id)
        return found

    def open_for(self, session_id: str) -> float:
        """Seconds since a session was opened; 0.0 if there is none."""
        with self._lock:
            session = self._sessions.get(session_id)
            return self._clock() - session.opened if session is not None else 0.0

    def subscribe(
        self,
        session_id: str,
        request: SubscriptionRequest,
        duration: float,
        age: float = NOT_BEFORE,
        *,
        elapsed: float = 0.0,
        caller: Caller | None = None,
    ) -> Granted:
        """Register a subscription (paper section 2.4(7)); `duration` is for the lease of an e-mail-only one.

        `age`: for how many seconds it stood already when the session was opened (negative: it came afterwards), or
        stands by now if it is e-mail-only; what was published since is delivered, too, as far as it is kept.
        NOT_BEFORE: nothing that was published before. `elapsed`: how long ago the session was opened by the caller's
        clock, when it asked: clocks drift. `caller`: who asks; None may have everything. The same request again is the
        same subscription, and mail that was suspended is sent again; with another template, predicate, payload filter
        or wish it is amended: each object is judged by the old terms or by the new ones, and comes once at most. One
        with recipients has to prove that its id is its own. Raises UnknownUidError, AccessDeniedError, QosDeniedError,
        PredicateError, AddressError, ConfigurationError, IncompatibleEntryError, OversizeError, LeaseDeniedError,
        StorageError; no state is left then, and what stood stands as it was.
        """
        rights = self._rights(caller)
        if rights is not None:
            rights.check(request)
        if request.recipients:
            check_owner("subscription", request.uid, request.secret)
            self._check_wanted(request)
        key = (session_id if request.direct else "mail", request.uid)
        if request.direct:
            self.session(session_id)
        subscription = compile_subscription(request, owner=key[0], number=0)
        subscription.caller, subscription.rights = caller, rights
        with self._lock:
            known = self._subscriptions.get(key)
            former = None
            if known is None:
                granted = self._open_contract(key, subscription, duration, age, elapsed)
            else:
                former = self._amend(key, known, subscription)
                if former is not None and known.durable is not None and self._archive is not None:
                    with self._or_back(key, known, former):
                        self._begin_to_keep(self._unkept())
                self._mail.resume(known)
                granted = self._granted(known, self._mail_lease(known), self._quality_of(known))
        if known is not None:
            if former is not None and known.lease_id and self._store is not None:
                with self._or_back(key, known, former):
                    self._store.amend(known.request)
            self._hand_over(known, caller, rights)
        elif granted.lease is not None and self._store is not None:
            wall, term = self._wall(), granted.lease.duration
            told = _told_at(wall, self._schedule.moment(0.0, term))
            self._keep(Kept(request, granted.lease.lease_id, wall + term, told, _whose(caller)), key)
        return granted

    def _open_contract(
        self, key: tuple[str, str], subscription: Subscription, duration: float, age: float, elapsed: float
    ) -> Granted:
        """Under the lock: a subscription that is new here, with its contract. Raises as `subscribe`."""
        subscription.share = self._quota.take(subscription.caller, check_request(subscription.request))
        try:
            subscription.contract, given = self._contract_of(subscription, subscription.request.qos)
            lease = self._open(key, subscription, duration, age, elapsed)
        except JbiError:
            self._quota.give_back(subscription.share)
            self._end_contract(subscription.contract)
            raise
        self._offers.required_by(subscription)
        given = msgspec.structs.replace(given, unmet=subscription.unmet)
        return self._granted(subscription, lease, given)

    def _granted(self, subscription: Subscription, lease: Lease | None, given: GrantedQos) -> Granted:
        """Also of the archive that fills it, if one does."""
        at: tuple[tuple[str, ...], bool, bool] = (), False, False
        if self.history is not None and subscription.is_replayed:
            at = self.history.archive_of(subscription)
        prefetch = PREFETCH_LEAST if self._quality is not None else 0
        is_narrowed = subscription.rights is not None
        return Granted(subscription.number, lease, given, prefetch, subscription.is_replayed, *at, narrowed=is_narrowed)

    def _amend(self, key: tuple[str, str], known: Subscription, other: Subscription) -> Subscription | None:
        """Under the lock: a subscription that stands has the terms of `other` from now on, between two objects. What it
        was before, None if these are the same. Raises as `subscribe`; it has the old terms then."""
        changed = amended(known.request, other.request)
        if changed is None:
            raise ConfigurationError(f"subscription {known.uid} stands here with other terms", hint="Cancel it first")
        if changed == known.request:
            return None
        former, other.request, other.contract = copy(known), changed, known.contract
        let_in = self._let_in(other, self._topics.find(changed.entries))
        with contextlib.ExitStack() as undo:
            self._take_share(known, check_request(changed), undo)
            if changed.qos != known.request.qos:
                other.contract, _ = self._contract_of(known, changed.qos, changed)
                undo.callback(self._end_contract, other.contract)
            self._exchange(known, other, let_in)
            undo.pop_all()
        if other.contract is not former.contract:
            self._end_contract(former.contract)
        self._waiting.add(key, changed.entries)
        self._late_joiners.narrow(known, let_in)
        self._offers.forget(known)
        self._offers.required_by(known)
        if self.history is not None and known.is_replayed:
            self.history.amend(key[0], known)
        self._tell_subscription("updated", known)
        return former

    def _take_share(self, known: Subscription, size: int, undo: contextlib.ExitStack) -> None:
        """Its request has another size, and so what is kept of it if it is durable. Raises OversizeError."""
        for each in (known, known.durable):
            if each is not None:
                before, each.share = each.share, self._quota.take(known.caller, size, each.share)
                undo.callback(setattr, each, "share", before)
                undo.callback(self._quota.put_back, each.share, before)

    def _exchange(self, known: Subscription, other: Subscription, let_in: Mapping[Topic, Predicate | None]) -> None:
        """It has the terms of `other`, and is in the tables of other topics. Raises OversizeError; nothing has changed
        then."""
        now = {topic: topic.table.predicate_of(known) for topic in self._standing(known)}
        tables = dict.fromkeys(topic.table for topic in (*now, *let_in))
        catching_up = self._late_joiners.table_of(known)
        if catching_up is not None:
            tables[catching_up] = None
        with amending(tables):
            for table in tables:
                table.remove(known, to_amend=True)
            self._refund(known)
            try:
                self._check_cost(other, let_in)
                known.amend(other)
                now = dict(let_in)
            finally:
                if known.request.direct:
                    self._costs.setdefault(known.owner, CostBudget(MAX_COST_OF_SUBSCRIBER)).add(known.charges)
                for topic, predicate in now.items():
                    topic.table.add(known, predicate)
                if catching_up is not None:
                    catching_up.add(known)

    @contextlib.contextmanager
    def _or_back(self, key: tuple[str, str], known: Subscription, former: Subscription) -> Iterator[None]:
        """What is kept of the new terms of a subscription: if that fails it has the former ones again."""
        request = known.request
        try:
            yield
        except StorageError:
            with self._lock, contextlib.suppress(JbiError):  # others may have taken what the former ones need
                if self._subscriptions.get(key) is known and known.request is request:
                    self._amend(key, known, former)
            raise

    def _contract_of(
        self, subscription: Subscription, wish: Wish, request: SubscriptionRequest | None = None
    ) -> tuple[Contract | None, GrantedQos]:
        """`request`: where it is not the subscription's own yet."""
        return self._contract(
            subscription.caller,
            "subscribe",
            type_wanted(request or subscription.request),
            wish,
            by_mail=not subscription.request.direct,
            changed=lambda _given: self._tell_quality([subscription]),
        )

    def _tell_quality(self, subscriptions: Iterable[Subscription]) -> None:
        """To their subscribers: what they have got by now. By e-mail nobody is told; the status says it."""
        for subscription in subscriptions:
            session = self._sessions.get(subscription.owner)
            if session is not None:
                session.tell_quality(subscription, partial(self._quality_of, subscription))

    def _quality_of(self, subscription: Subscription) -> GrantedQos:
        if self._quality is None or subscription.contract is None:
            return unmanaged(subscription.request.qos)
        return msgspec.structs.replace(self._quality.granted(subscription.contract), unmet=subscription.unmet)

    def _open(
        self, key: tuple[str, str], subscription: Subscription, duration: float, age: float, elapsed: float
    ) -> Lease | None:
        """Under the lock: a subscription that is new here; the lease of one by e-mail. Raises as `subscribe`; no state
        is left then."""
        request = subscription.request
        session = self.session(key[0]) if request.direct else None  # its lease may have run out meanwhile
        if len(self._subscriptions) >= self._config.pad.max_subscriptions:
            raise OversizeError(f"the delegate holds its limit of {len(self._subscriptions)} subscriptions")
        let_in = self._let_in(subscription, self._topics.find(request.entries))
        self._check_cost(subscription, let_in)
        now = self._clock()
        opened = min(session.opened, now - elapsed) if session is not None else now
        since = opened - age if age > NOT_BEFORE else now
        lease = None
        if session is None:
            lease = self._landlord.grant(lambda: self._forget_subscription(key), duration, now)
            subscription.lease_id = lease.lease_id
            self._mail_leases[lease.lease_id] = request.uid
            self._schedule.set(subscription, self._schedule.moment(now, lease.duration))
        self._next_number += 1
        subscription.number = self._next_number
        if session is not None:
            first = self._buffers.first_since([t.buffer for t in let_in], since if age > NOT_BEFORE else math.inf)
            self._open_queue(session, subscription, first)
            self._costs.setdefault(key[0], CostBudget(MAX_COST_OF_SUBSCRIBER)).add(subscription.charges)
        self._subscriptions[key] = subscription
        self._tell_subscription("created", subscription)
        if request.recipients:
            self._open_mail(subscription)
        self._waiting.add(key, request.entries)
        marks, lost = self._put_in(subscription, let_in, since if age > NOT_BEFORE else math.inf)
        for cause, count in lost.items():
            if count and session is not None:
                session.lose(subscription, cause, count)
        narrowed = narrowing(subscription, let_in)
        peer = subscription.caller.place.peer if subscription.caller is not None else ""
        if subscription.is_replayed:
            marks = [(topic, mark) for topic, mark in marks if topic.is_partly_kept]  # the archive has all the others
        self._late_joiners.welcome(subscription, session, marks if age > NOT_BEFORE else [], since, peer, narrowed)
        if subscription.is_replayed and self.history is not None:
            self.history.begin_replay(key[0], subscription)
        self._stood.notify_all()  # whoever stops now sees that it is catching up
        return lease

    def _open_queue(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Under the lock: that of a subscription that begins in the past is filled by the archive, too. `first`: the
        position of the first object that it may have if it begins with the present."""
        request = subscription.request
        if self.history is not None and self._archive is None:  # the past is another platform's, which is asked alone
            session.add(subscription, held=True)
            return
        if request.durable:
            self._attach(session, subscription, first)
        elif self.history is None or request.start.kind == "new":
            session.add(subscription, held=True)
            return
        assert self.history is not None
        subscription.is_replayed = True
        self.history.replay(session, subscription, first)

    def _attach(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Under the lock: a durable one comes, perhaps again. Raises AccessDeniedError, ConfigurationError,
        StorageError."""
        if self.history is None or self._archive is None:
            raise ConfigurationError(
                "a durable subscription needs an archive, and there is none here", hint="Set [archive] folder"
            )
        self.history.attach(session, subscription, first)
        for key, other in list(self._subscriptions.items()):
            if other.durable is subscription.durable:  # its process is gone, or has it by another id as well
                self._forget_subscription(key)
        self._begin_to_keep(self._unkept())

    def _unkept(self) -> list[Registration]:
        """The registrations that are not archived, and may be."""
        return [each for each in self._registrations.values() if not each.persist and each.marked is None]

    def _begin_to_keep(self, registrations: Iterable[Registration]) -> None:
        """Those that a durable subscription waits for."""
        assert self._archive is not None
        wanted = [each for each in registrations if self._archive.is_wanted(each.topic.entries)]
        if wanted:
            self._archive.open_all([(r.uid, r.topic.type, r.judgement.origin, r.topic.entries) for r in wanted])
        for each in wanted:
            each.archived = self._archive.keeping.last_sequence(each.uid)
            each.persist = True

    def _hand_over(self, known: Subscription, caller: Caller | None, rights: Rights | None) -> None:
        """An e-mail subscription was asked for again: with another certificate it hangs on that one. Raises
        StorageError."""
        with self._lock:
            if not known.lease_id or caller is None or _holder(known.caller) == caller.holder:
                return
            known.caller, known.rights = caller, rights
            self._tell_subscription("updated", known)
            self._asked_version = -1  # other rules may hold for it
            before, (known.contract, _) = known.contract, self._contract_of(known, _modest(known.request.qos))
            self._end_contract(before)
        if self._store is not None:
            self._store.hand_over(known.uid, _whose(caller))

    def _rights(self, caller: Caller | None) -> Rights | None:
        """Of somebody who subscribes; None where all are allowed everything."""
        return None if caller is None or isinstance(self.access, AllowAll) else Rights(self.access, caller)

    def _check_wanted(self, request: SubscriptionRequest) -> None:
        """Raises ConfigurationError for one that nobody wants any more."""
        if not self._is_wanted(request):
            raise ConfigurationError(
                f"all recipients of subscription {request.uid} have unsubscribed",
                hint="If they ask for it, make a new one",
            )

    def _is_wanted(self, request: SubscriptionRequest) -> bool:
        """Not one by e-mail alone whose recipients have all unsubscribed."""
        with self._lock:
            return request.direct or any((request.uid, a) not in self._unsubscribed for a in request.recipients)

    def _open_mail(self, subscription: Subscription) -> None:
        """Under the lock. Whoever has unsubscribed stays so."""
        uid = subscription.uid
        self._mailed.setdefault(uid, []).append(subscription)
        self._mail.open(subscription)
        gone = [a for a in subscription.request.recipients if (uid, a) in self._unsubscribed]
        self._mail.unsubscribe(subscription, gone)

    def _let_in(self, subscription: Subscription, topics: Iterable[Topic]) -> dict[Topic, Predicate | None]:
        """Those of the topics that its owner may have objects of, and what it is matched by there. Raises
        PredicateError."""
        rights = subscription.rights
        if rights is None:
            return dict.fromkeys(topics, subscription.predicate)
        topics = list(topics)
        predicates: dict[TypeName, Predicate | None] = {}
        for type_ in {topic.type for topic in topics}:
            decision = rights.of(type_)
            if decision:
                predicates[type_] = effective(subscription.predicate, decision)
                subscription.narrowed_by = decision.rule if decision.where else subscription.narrowed_by
        return {topic: predicates[topic.type] for topic in topics if topic.type in predicates}

    def _check_cost(self, subscription: Subscription, let_in: Mapping[Topic, Predicate | None]) -> None:
        """Raises OversizeError when what is evaluated for its session, or for a registration, would cost too much. An
        e-mail subscription has no session: what one costs by itself was bounded when it was compiled."""
        mine = self._costs.get(subscription.owner)
        if mine is not None:
            mine.check(subscription.charges, "this subscriber")
        for topic, predicate in let_in.items():
            charges = subscription.charges_by(predicate)
            topic.table.budget.check(charges, "all subscriptions to a registration that it matches")

    def _put_in(
        self, subscription: Subscription, let_in: Mapping[Topic, Predicate | None], since: float
    ) -> tuple[list[tuple[Topic, int]], Mapping[Cause, int]]:
        """Into the topics' tables; each topic with the mark in its buffer, and what never came since then.

        Invariant: an object up to `place` comes to it from the buffer alone, a later one through the tables alone. An
        object is first kept and then matched. So one that is matched with the subscription while FAR stands here was
        kept before the place is taken, and is up to it."""
        topics = list(let_in)
        subscription.place = FAR
        for topic, predicate in let_in.items():
            topic.table.settled = FAR
            topic.table.add(subscription, predicate)
            topic.note(subscription)
        subscription.place, marks, lost = self._buffers.mark([topic.buffer for topic in topics], since)
        for topic in topics:
            topic.table.settled = subscription.place
        return list(zip(topics, marks, strict=True)), lost

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
        """A subscription of our time before: its lease goes on. One that nobody wants any more would have ended."""
        key = ("mail", kept.request.uid)
        if not self._is_wanted(kept.request):
            assert self._store is not None
            self._store.forget(kept.request.uid)
            return
        self._next_number += 1
        try:
            subscription = compile_subscription(kept.request, owner="mail", number=self._next_number)
        except JbiError as exc:  # another version's, or its language is not installed any more
            log.error("e-mail subscription %s is not taken over: %s", kept.request.uid, exc)
            return
        subscription.caller = _caller_of(kept.whose)
        with contextlib.suppress(OversizeError):  # it was promised
            subscription.share = self._quota.take(subscription.caller, check_request(kept.request))
        subscription.rights = self._rights(subscription.caller)
        self._asked_version = -1  # the rules may be others than they were
        now, wall = self._clock(), self._wall()
        self._landlord.restore(kept.lease_id, lambda: self._forget_subscription(key), now + kept.ends - wall)
        self._mail_leases[kept.lease_id] = kept.request.uid
        subscription.lease_id = kept.lease_id
        self._schedule.set(subscription, now + kept.remind - wall if kept.remind is not None else math.inf)
        subscription.contract, _ = self._contract_of(subscription, _modest(kept.request.qos))
        self._subscriptions[key] = subscription
        self._open_mail(subscription)
        self._waiting.add(key, kept.request.entries)
        self._offers.required_by(subscription)

    def end_held(self, is_revoked: Callable[[str], bool]) -> int:
        """End the publishers, sessions and e-mail subscriptions of certificates that are revoked; how many."""

        def ends(caller: Caller | None) -> bool:
            return bool(holder := _holder(caller)) and is_revoked(holder)

        with self._lock:
            connections = [uid for uid, each in self._connections.items() if ends(each.caller)]
            sessions = [uid for uid, each in self._sessions.items() if ends(each.caller)]
            mails = [key for key, each in self._subscriptions.items() if key[0] == "mail" and ends(each.caller)]
        for uid in connections:
            with contextlib.suppress(UnknownUidError):  # it has left
                self.disconnect(uid)
        for uid in sessions:
            with contextlib.suppress(UnknownUidError):
                self.close_session(uid)
        for key in mails:
            self._forget_subscription(key)
        return len(connections) + len(sessions) + len(mails)

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
            durable = self._subscriptions[key].durable
        self._forget_subscription(key)
        if durable is not None and self.history is not None:
            self.history.durables.cancel(durable)

    def cancel(self, uid: str) -> int:
        """An administrator cancels a subscription, whosesoever it is; in how many sessions it stood (an application's
        queue and its e-mail are two). Its subscriber is told that something is lost (`cancelled`, number unknown), and
        gets no more of it. Raises UnknownUidError."""
        with self._lock:
            found = {key: s for key, s in self._subscriptions.items() if key[1] == uid}
            sessions = {owner: self._sessions.get(owner) for owner, _ in found}
            for subscription in found.values():  # first: what is published from now on is not for them
                self._take_from_tables(subscription)
        if not found:
            raise UnknownUidError(f"no subscription {uid} here", uid=uid)
        for key, subscription in found.items():
            if (session := sessions[key[0]]) is not None:
                session.end(subscription, Cause.CANCELLED, CANCEL_SECONDS)
            self._forget_subscription(key)
            if subscription.durable is not None and self.history is not None:
                self.history.durables.cancel(subscription.durable)
        return len(found)

    def follow(self, action: LinkAction, token: str) -> None:
        """Do what a link of a mail says (see mail/links.py): its recipient gets no more mail of the subscription, or
        its lease begins anew. When this returns it is on disk, if there is one; a second time changes nothing.

        Raises UnknownUidError for a subscription that is not here, and for a link that proves nothing alike;
        StorageError.
        """
        uid = uid_of(token)
        with self._lock:
            named = list(self._mailed.get(uid, ()))
        standing = {s: recipient for s in named if (recipient := recipient_of(token, action, s.request))}
        if action == "renew":
            standing = {s: a for s, a in standing.items() if s.lease_id and (uid, a) not in self._unsubscribed}
        if not standing:
            raise UnknownUidError("no subscription of this link here", uid=uid)
        for subscription, recipient in standing.items():
            if action == "unsubscribe":
                self._unsubscribe(subscription, recipient)
            else:
                self.renew(subscription.lease_id, self._config.lease.mail)

    def _unsubscribe(self, subscription: Subscription, recipient: str) -> None:
        """Its owner is told by the loss of each object that is not mailed; it ends if it is for nobody any more."""
        uid, request = subscription.uid, subscription.request
        with self._lock:
            known = (uid, recipient) in self._unsubscribed
            self._unsubscribed[uid, recipient] = None
            while len(self._unsubscribed) > UNSUBSCRIBED_MOST:
                del self._unsubscribed[next(iter(self._unsubscribed))]
            self._mail.unsubscribe(subscription, [recipient])
            wanted = self._is_wanted(request)
        if self._store is not None:  # again, when it is known: it may not have been written then
            self._store.unsubscribe(uid, recipient)
        if not known:
            log.info("subscription %s: %s has unsubscribed%s", uid, recipient, "" if wanted else ", the last recipient")
        if not wanted:
            self._forget_subscription(("mail", uid))

    def renew_mail(self, uid: str, duration: float) -> Lease:
        """Renew the lease of an e-mail-only subscription for its administrator, who has no lease id. Raises
        UnknownUidError, LeaseDeniedError."""
        with self._lock:
            found = self._subscriptions.get(("mail", uid))
        if found is None:
            raise UnknownUidError(f"no e-mail subscription {uid[:64]} here", uid=uid[:64])
        return self.renew(found.lease_id, duration)

    def mail_subscriptions(self) -> list[dict[str, object]]:
        """The e-mail-only subscriptions, as plain data; `lease` is how many seconds of theirs are left."""
        with self._lock:
            now = self._clock()
            return [
                {**s.status(), "lease": round(self._landlord.left(s.lease_id, now), 1)}
                for (owner, _), s in self._subscriptions.items()
                if owner == "mail"
            ]

    def mail_losses(self, lease_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """What e-mail-only subscriptions have lost so far, by cause: of those with these leases that lack something."""
        with self._lock:
            uids = [self._mail_leases[lease_id] for lease_id in lease_ids if lease_id in self._mail_leases]
            return {uid: dict(lost) for uid in uids if (lost := self._subscriptions["mail", uid].lost)}

    def explain(self, uid: str, metadata: bytes, payload: bytes, head: Head | None = None) -> dict[str, object]:
        """Why an object would be delivered to a subscription, or not, for each registration here, as plain data (see
        explanation.py). The beginning of an id will do, if it is no other's. `head`: of an object that was published.

        Raises UnknownUidError, ConfigurationError for an ambiguous id, MetadataError, OversizeError.
        """
        with self._lock:
            by_uid = {known: subscription for (_, known), subscription in self._subscriptions.items()}
            found = by_uid[find_subscription(uid, by_uid)]
            registrations = list(self._registrations.values())
            let_in = self._let_in(found, {r.topic for r in registrations})
            registered = {
                r.uid: Standing(
                    r.gate,
                    r.topic.entries,
                    r.judgement.validates,
                    r.topic in let_in,
                    let_in.get(r.topic),
                    r.judgement.origin,
                )
                for r in registrations
            }
            session = self._sessions.get(found.owner)
        queue = queue_of(session.status(), found.uid) if session is not None else {}
        return explain(found, registered, metadata, payload, queue, head)

    def explain_object(self, uid: str, object_id: str) -> dict[str, object]:
        """As `explain`, for an object that was published here some seconds ago. Raises UnknownUidError as well when it
        is not known any more."""
        parcel = recall(object_id, self.kept)
        return self.explain(uid, bytes(parcel.head.metadata), bytes(parcel.payload), parcel.head)

    # -- leases and life ----------------------------------------------------------------------------------------

    def renew(self, lease_id: str, duration: float) -> Lease:
        """Renew the lease of a publisher, subscriber or e-mail subscription. Raises UnknownLeaseError."""
        with self._lock:
            unattached = lease_id in self._unattached
            lease = self._landlord.renew(lease_id, _short(duration) if unattached else duration, self._clock())
            if unattached:
                self._unattached[lease_id] = duration
            uid = self._mail_leases.get(lease_id)
            remind = self._put_off_reminder(uid, lease.duration) if uid is not None else math.inf
        if uid is not None and self._store is not None:
            wall = self._wall()
            self._store.renew(uid, wall + lease.duration, _told_at(wall, remind))
        return lease

    def _put_off_reminder(self, uid: str, term: float) -> float:
        """Under the lock: its lease has begun anew; in how many seconds its recipients are reminded of its end."""
        subscription, now = self._subscriptions["mail", uid], self._clock()
        due = self._schedule.moment(now, term)
        self._schedule.set(subscription, due)
        self._mail.withdraw(subscription)
        return due - now

    def expire(self) -> int:
        """Clean up whose lease has run out; how many there were."""
        with self._lock:
            gone = self._landlord.expire(self._clock())
        for drop in gone:
            try:
                drop()
            except JbiError as exc:
                log.error("cleaning up behind a lease: %s", exc)
        self._remind()
        if self.history is not None:
            self.history.tend()
        self._buffers.trim(self._clock())
        with self._lock:
            self._topics.forget_ghosts(self._clock())
        return len(gone) + self._ask_again()

    def _remind(self) -> None:
        """Whose lease is about to end is told, and that he has been told is kept."""
        with self._lock:
            now, wall = self._clock(), self._wall()
            for subscription in self._schedule.take(now):
                self._mail.remind(subscription, wall + self._landlord.left(subscription.lease_id, now))
            told = [uid for uid in self._mail.reminded() if self._is_told(uid)]
        for uid in told:
            self._keep_told(uid)

    def _is_told(self, uid: str) -> bool:
        """Under the lock: its lease has not begun anew since its recipients were reminded."""
        subscription = self._subscriptions.get(("mail", uid))
        return subscription is not None and subscription not in self._schedule

    def _keep_told(self, uid: str) -> None:
        try:
            if self._store is not None:
                self._store.reminded(uid)
        except StorageError as exc:
            log.error("a restart will remind of subscription %s again: %s", uid, exc)

    def drain(self, timeout: float, *, closing: bool = False) -> int:
        """Wait for deliveries and mails to go out; how many objects are left after `timeout` seconds.

        `closing` leaves nothing for later that would not survive."""
        with self._lock:
            sessions = list(self._sessions.values())
        deadline = self._clock() + timeout
        self._late_joiners.drain(min(timeout, self._config.pad.settle_seconds))
        left = 0
        coming = self._config.pad.settle_seconds if closing else math.inf
        for session in sessions:  # one that has gone may never come back; one that has just come is about to connect
            most = math.inf if session.connected else 0.0 if session.has_gone else coming
            left += session.drain(min(most, max(0.0, deadline - self._clock())))
        return left + self._mail.drain(max(0.0, deadline - self._clock()), closing=closing)

    def close(self) -> None:
        """End everything: registrations leave the lookup services, what still waits is lost (shutdown)."""
        self.pipeline.stopping.set()
        self._late_joiners.stop()
        if self.history is not None:
            self.history.stop()
        with self._lock:
            self._stood.notify_all()
            connections, sessions = list(self._connections), list(self._sessions)
        for connection_id in connections:
            self._drop_connection(connection_id)
        self._part()
        for session_id in sessions:
            self._drop_session(session_id, Cause.SHUTDOWN)
        self._hub.stop()
        self._mail.stop()
        if self.history is not None and self._archive is not None:
            self.history.note()
            self._archive.close()
        self.access.close()
        if self._store is not None:
            self._remind()  # what was sent at the end
            self._store.close()

    def _part(self) -> None:
        """Tell the subscribers that we stop: who has got everything is not to think that something may be lost."""
        with self._lock:
            connected = [s for s in self._sessions.values() if s.connected]
        for session in connected:
            session.part()
        deadline = self._clock() + PART_SECONDS
        for session in connected:
            session.wait_parted(max(0.0, deadline - self._clock()))

    def status(self) -> dict[str, object]:
        """Everything a status page shows, as plain data. The totals are of all that was ever here:

        published = unmatched - found_late + what matched at least one subscription, now or late
        matched = suppressed + delivered + lost + queued + in_flight, with direct subscriptions alone (for mail see
        docs/mail.md) and but for a lost `sequence_gap` or `missed`: whether that would have matched is not known
        """
        told = self._quality_told()
        if self._quality is not None:
            told["series"] = self._quality.series()
        with self._lock:
            registrations = list(self._registrations.values())
            subscriptions = list(self._subscriptions.values())
            sessions = list(self._sessions.values())
            names = {c.connection_id: c.name for c in self._connections.values()}
            return {
                "publishers": [
                    {"id": shown(c.connection_id), "name": c.name, "registrations": len(c.registrations)}
                    for c in self._connections.values()
                ],
                "registrations": [{**r.status(), "publisher": names.get(r.connection, "")} for r in registrations],
                "sessions": [s.status() for s in sessions],
                "subscriptions": [s.status() for s in subscriptions],
                **self._totals(registrations, subscriptions, sessions),
                **self._qos(told, registrations),
            }

    def overview(self) -> dict[str, object]:
        """The same for who looks every second (see overview.py): without rows, what is of one name together. The work
        is in proportion to the number of subscriptions, the answer is not."""
        told = self._quality_told()
        with self._lock:
            connections = list(self._connections.values())
            registrations = list(self._registrations.values())
            subscriptions = list(self._subscriptions.values())
            sessions = list(self._sessions.values())
            totals = self._totals(registrations, subscriptions, sessions)
            qos = self._qos(told, registrations)
            now = self._clock()
            leases = [
                *(("publisher", c.name, self._landlord.left(c.lease_id, now)) for c in connections if c.lease_id),
                *(("subscriber", s.name, self._landlord.left(s.lease_id, now)) for s in sessions),
                *(("e-mail subscription", s.uid, self._landlord.left(s.lease_id, now))
                  for s in subscriptions if s.lease_id),
            ]  # fmt: skip
        return {
            "publishers": publishers_by_name((c.name, list(c.registrations.values())) for c in connections),
            "sessions": sessions_by_name(sessions, subscriptions),
            "types": types_of(registrations),
            "ending": leases_ending(leases),
            "mailing": sum(1 for s in subscriptions if s.request.recipients),
            "counts": {
                "publishers": len(connections),
                "registrations": len(registrations),
                "sessions": len(sessions),
                "subscriptions": len(subscriptions),
            },
            **totals,
            **qos,
        }

    def _quality_told(self) -> dict[str, Any]:
        """What quality of service says of itself; nothing without it. Not under the lock: systems are asked."""
        return self._quality.status() if self._quality is not None else {}

    def _qos(self, told: dict[str, Any], registrations: Iterable[Registration]) -> dict[str, object]:
        """Under the lock: that, its types with who publishes them."""
        if not told:
            return {}
        names: dict[str, set[str]] = {}
        for registration in registrations:
            connection = self._connections.get(registration.connection)
            of = names.setdefault(registration.gate.type.name, set())
            if connection is not None and len(of) < SOURCES_MOST:
                of.add(connection.name[:200])
        known = {each["name"]: each for each in told.get("types", ())}
        types = [{**each, "sources": sorted(names.get(each["name"], ()))} for each in known.values()]
        types += [{"name": name[:200], "sources": sorted(of)} for name, of in names.items() if name[:200] not in known]
        return {"qos": {**told, "types": types[:TYPES_MOST]}}

    def page(self, search: str, order: str, start: int, count: int) -> dict[str, object]:
        """Subscriptions page by page (see overview.page_of_subscriptions). Raises OversizeError, ConfigurationError."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
            sessions = list(self._sessions.values())
        names = {s.session_id: s.name for s in sessions}
        queued = {(s.session_id, uid): waiting for s in sessions for uid, waiting in s.waiting().items()}
        return page_of_subscriptions(subscriptions, queued, names, search=search, order=order, start=start, count=count)

    def terms(self, after: int, count: int) -> tuple[Terms, ...]:
        """What the subscriptions ask for, page by page (see overview.page_of_terms). Raises OversizeError."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
            names = {s.session_id: s.name for s in self._sessions.values()}
        return page_of_terms(subscriptions, names, after=after, count=count)

    def _totals(
        self, registrations: list[Registration], subscriptions: list[Subscription], sessions: list[SubscriberSession]
    ) -> dict[str, object]:
        """Under the lock: what a status says of all together."""
        counted = [*subscriptions, *self._ending]  # a counter that goes back would be taken for a restart
        return {
            **self._account.totals(registrations, counted),
            "found_late": self._buffers.found_late,
            "leases": len(self._landlord),
            "queued": sum(s.queued for s in sessions),
            "in_flight": sum(s.in_flight for s in sessions),
            "delay_ms": max((s.delay_ms for s in sessions), default=0.0),
            "queued_bytes": self._budget.used,
            "kept": {"objects": len(self._buffers), "bytes": self._buffers.size},
            "catching_up": self._late_joiners.count,
            "mail": self._mail.status(),
        }

    # -- the policy has changed ---------------------------------------------------------------------------------

    def decided(self, version: int) -> None:
        """A contract stands now that was decided under that version of the policy: if all others have been asked about
        a later one since, it is to be asked about, too."""
        if version != self._asked_version:
            self._asked_version = -1

    def _ask_again(self) -> int:
        """Ask about all standing contracts, if the policy has changed since; how many publishers have ended. Others get
        in between."""
        now = self._clock()
        for session_id in [uid for uid, end in self._expelled.items() if end <= now]:
            del self._expelled[session_id]
            self._drop_session(session_id, Cause.REFUSED)
        if self._quality is not None and self._quality.rounds != self._asked_round:
            self._asked_round = self._quality.rounds
            for session in [each for each in list(self._sessions.values()) if each.was_refused]:
                session.ask_again()  # what it requires may be granted now
        version = self.access.version
        if version == self._asked_version:
            return 0
        self._asked_version = version  # first: what changes meanwhile is asked about again
        with self._lock:
            connections, sessions = list(self._connections.values()), list(self._sessions.values())
            keys = list(self._subscriptions)
        ended = [c.connection_id for c in connections if not self._may_publish(c)]
        for connection_id in ended:  # it comes back, and is told which of its registrations are refused
            with contextlib.suppress(UnknownUidError):  # it has left
                self.disconnect(connection_id)
        refused = [session for session in sessions if session.was_refused]
        for session in sessions:
            if session.caller is not None and not self._is_allowed(session.caller, "connect", Subject()):
                self._expelled[session.session_id] = now + PART_SECONDS
        changed: dict[Topic, dict[Subscription, Predicate | None]] = {}
        for key in keys:
            self._ask_about(key, changed)
        for topic, predicates in changed.items():
            with self._lock:
                topic.table.replace(predicates)
        for session in refused:
            session.ask_again()
        if self.history is not None:
            self.history.ask_again()
        return len(ended)

    def _is_allowed(self, caller: Caller, action: Action, subject: Subject) -> bool:
        try:
            demand(self.access, caller, (action, subject))
        except AccessDeniedError as exc:
            log.warning("%s: %s", caller.client or caller.address, exc.message)
            return False
        return True

    def _may_publish(self, connection: PublisherConnection) -> bool:
        caller = connection.caller
        if caller is None:
            return True
        registrations = list(connection.registrations.values())
        asked: set[tuple[Action, TypeName]] = {("publish", r.gate.type) for r in registrations}
        asked |= {("persist", r.gate.type) for r in registrations if r.marked}
        asked |= {("bridge", r.gate.type) for r in registrations if r.origin is not None}
        return self._is_allowed(caller, "connect", Subject()) and all(
            self._is_allowed(caller, action, Subject(type_.name, type_.version)) for action, type_ in sorted(asked)
        )

    def _ask_about(self, key: tuple[str, str], changed: dict[Topic, dict[Subscription, Predicate | None]]) -> None:
        """Whether a subscription may stay, and where; what it is to be matched by instead goes into `changed`."""
        subscription = self._subscriptions.get(key)
        if subscription is None or subscription.rights is None:
            return
        try:
            subscription.rights.check(subscription.request)
            with self._lock:
                if self._subscriptions.get(key) is subscription:
                    self._move(subscription, changed)
        except (AccessDeniedError, PredicateError) as exc:
            log.warning("subscription %s ends: %s", subscription.uid, exc.message)
            self._forget_subscription(key, Cause.REFUSED)

    def _move(self, subscription: Subscription, changed: dict[Topic, dict[Subscription, Predicate | None]]) -> None:
        """Out of the tables of what it may not have any more, into those of what it may have now."""
        subscription.narrowed_by = ""
        try:
            topics = self._topics.find(subscription.request.entries)
        except IncompatibleEntryError:
            return
        let_in = self._let_in(subscription, topics)
        self._late_joiners.narrow(subscription, let_in)
        for topic in topics:
            if topic not in let_in:
                topic.table.remove(subscription)
            elif subscription not in topic.table:
                topic.table.add(subscription, let_in[topic])
            elif not _is_same(topic.table.predicate_of(subscription), let_in[topic]):
                changed.setdefault(topic, {})[subscription] = let_in[topic]

    # -- inside -------------------------------------------------------------------------------------------------

    def _topic_for(self, entries: Entries, type_: TypeName) -> Topic:
        topic = self._topics.of(entries, type_)
        if topic.registrations == 0:
            self._take_in_waiting(topic)
        topic.registrations += 1
        return topic

    def _take_in_waiting(self, topic: Topic) -> None:
        """Those that have come before it. Who would cost too much beside the others is set aside, and told."""
        for key in self._waiting.find(topic.entries):
            subscription = self._subscriptions[key]
            try:
                let_in = self._let_in(subscription, [topic])
                for predicate in let_in.values():
                    charges = subscription.charges_by(predicate)
                    topic.table.budget.check(charges, "all subscriptions to a registration")
            except (OversizeError, PredicateError) as exc:
                log.warning("subscription %s is set aside: %s", subscription.uid, exc)
                subscription.set_aside = str(exc)
                session = self._sessions.get(subscription.owner)
                if session is None or not session.lose(subscription, Cause.REFUSED, 0):
                    subscription.lost[Cause.REFUSED] += 0
            else:
                for predicate in let_in.values():
                    topic.table.add(subscription, predicate)
                    topic.note(subscription)

    def _drop_connection(self, connection_id: str) -> None:
        with self._lock:
            connection = self._connections.pop(connection_id, None)
            registrations = list(connection.registrations.values()) if connection else []
            self._unattached.pop(connection.lease_id if connection else "", None)
        self._drop_registrations(registrations, connection)
        if connection is not None:
            self._tell_connection("removed", connection)

    def _drop_registrations(self, registrations: list[Registration], of: PublisherConnection | None = None) -> None:
        """Those of them that nobody else has dropped meanwhile; `of` a connection that has gone."""
        with self._lock:
            registrations = [r for r in registrations if self._registrations.get(r.uid) is r]
            for registration in registrations:
                del self._registrations[registration.uid]
                registration.has_ended = True
                self._tell_registration("removed", registration, of)
                self._end_contract(registration.contract)
                self._quota.give_back(registration.share)
                self._keep_key(registration)
                if (whose := of or self._connections.get(registration.connection)) is not None:
                    whose.untold.pop(registration.uid, None)
                self._keep_number(registration, whose)
                self._account.close_registration(registration)
                self._topics.leave(registration, self._clock())
            self._tell_quality(self._offers.withdraw(registrations))
            self._stood.notify_all()
            used = {r.gate.type for r in self._registrations.values()}
            idle = [t for t in {r.gate.type for r in registrations} if t not in used]
        if registrations:
            self._announcer.leave(*(registration.uid for registration in registrations))
        for unused in idle:
            self._types.forget(unused)

    def _keep_key(self, registration: Registration) -> None:
        if registration.signing is not None:
            self._former_keys[registration.uid] = registration.signing
            if len(self._former_keys) > GHOSTS_MOST:
                del self._former_keys[next(iter(self._former_keys))]

    def _keep_number(self, registration: Registration, of: PublisherConnection | None) -> None:
        """Of one that was relayed, for the bridge that relays it next."""
        if registration.origin is None or registration.origin.first is None or not registration.judged:
            return
        wait = of.term if of is not None and 0 <= of.term < FOLLOWED_SECONDS else FOLLOWED_SECONDS
        self._relayed_before[registration.uid] = registration.judged, self._clock() + wait
        if len(self._relayed_before) > self._config.pad.max_registrations:
            del self._relayed_before[next(iter(self._relayed_before))]

    def _drop_session(self, session_id: str, cause: Cause) -> None:
        with self._lock:
            found = self._sessions.get(session_id)
            keys = [key for key in self._subscriptions if key[0] == session_id]
            for key in keys:  # first: what is published from now on is not for them
                self._subscriptions[key].ended = cause
                self._take_from_tables(self._subscriptions[key])
            self._sessions.pop(session_id, None)
            self._unattached.pop(found.lease_id if found else "", None)
        if found is None:
            return
        found.close(cause)
        for key in keys:
            self._forget_subscription(key, of=found)
        self._tell_session("removed", found)

    def _forget_subscription(
        self, key: tuple[str, str], cause: Cause = Cause.CANCELLED, of: SubscriberSession | None = None
    ) -> None:
        """`of` a session that has gone."""
        with self._lock:
            subscription = self._subscriptions.pop(key, None)
            if subscription is None:
                return
            self._tell_subscription("removed", subscription, of)
            self._ending.append(subscription)
            self._end_contract(subscription.contract)
            if subscription.lease_id:
                self._mail_leases.pop(subscription.lease_id, None)
                self._landlord.drop(subscription.lease_id)
            self._waiting.remove(key)
            self._take_from_tables(subscription)
            self._offers.forget(subscription)
            self._schedule.set(subscription, math.inf)
            self._close_mail(subscription)
            self._late_joiners.forget(subscription)
            self._refund(subscription)
            self._quota.give_back(subscription.share)
            if subscription.durable is not None and self.history is not None:
                self.history.detach(key[0], subscription)
            session = self._sessions.get(key[0])
        if session is not None:
            leave = session.expel if cause is Cause.REFUSED else session.remove
            lost = leave(subscription)
            if subscription.durable is None:
                subscription.lost[cause] += lost
            else:
                subscription.matched -= lost  # it comes again
        subscription.lost[cause] += self._mail.cancel(subscription)
        with self._lock:
            self._ending.remove(subscription)
            self._account.close_subscription(subscription)
            refused = [each for each in self._sessions.values() if each.was_refused] if subscription.durable else []
        for each in refused:
            each.ask_again()  # who wanted it may have it now
        if key[0] == "mail" and self._store is not None:
            self._store.forget(key[1])

    # -- who is told ---------------------------------------------------------------------------------------------

    def _tell_connection(self, what: What, connection: PublisherConnection) -> None:
        if self.witness is not None and connection.lease_id:  # our own is nobody's
            uid, user = shown(connection.connection_id), proved(connection.caller)
            self.witness(Happening("connection", what, "publisher", uid, connection.name, user))

    def _tell_registration(self, what: What, registration: Registration, of: PublisherConnection | None = None) -> None:
        of = of or self._connections.get(registration.connection)
        if self.witness is not None and (of is None or of.lease_id):
            name, user = (of.name, proved(of.caller)) if of is not None else ("", "")
            type_ = str(registration.gate.type)
            self.witness(Happening("sequence", what, "publisher", registration.uid, name, user, type_))

    def _tell_session(self, what: What, session: SubscriberSession) -> None:
        if self.witness is not None:
            uid, user = shown(session.session_id), proved(session.caller)
            self.witness(Happening("connection", what, "subscriber", uid, session.name, user))

    def _tell_subscription(self, what: What, subscription: Subscription, of: SubscriberSession | None = None) -> None:
        if self.witness is not None:
            of = of or self._sessions.get(subscription.owner)
            name, user = of.name if of is not None else "", proved(subscription.caller)
            self.witness(Happening("sequence", what, "subscriber", subscription.uid, name, user))

    def clients(self) -> list[dict[str, Any]]:
        """Publishers and subscriber processes, with who they are and where."""
        with self._lock:
            found = [
                ("publisher", c.connection_id, c.name, c.caller, len(c.registrations))
                for c in self._connections.values()
                if c.lease_id
            ]
            sequences = Counter(owner for owner, _ in self._subscriptions)
            found += [
                ("subscriber", s.session_id, s.name, s.caller, sequences[s.session_id]) for s in self._sessions.values()
            ]
        return [
            {
                "id": shown(uid),
                "role": role,
                "client": name,
                "user": proved(caller),
                "address": caller.address if caller is not None else "",
                "sequences": count,
            }
            for role, uid, name, caller, count in found
        ]

    def _close_mail(self, subscription: Subscription) -> None:
        others = [s for s in self._mailed.pop(subscription.uid, ()) if s is not subscription]
        if others:
            self._mailed[subscription.uid] = others

    def _refund(self, subscription: Subscription) -> None:
        mine = self._costs.get(subscription.owner)
        if mine is not None:
            mine.remove(subscription.charges)
            if not len(mine):
                del self._costs[subscription.owner]

    def _take_from_tables(self, subscription: Subscription) -> None:
        for topic in self._standing(subscription):
            topic.table.remove(subscription)

    def _standing(self, subscription: Subscription) -> list[Topic]:
        """The topics whose tables it is in: of a thousand registrations it matches a few."""
        try:
            topics = self._topics.find(subscription.request.entries)
        except IncompatibleEntryError:  # of the class that it means none is registered any more
            return []
        return [topic for topic in topics if subscription in topic.table]

    def _mail_lost(self, subscription: Subscription, cause: Cause, count: int, why: str) -> None:
        if why:
            facts = {"subscription": subscription.uid, "cause": cause.value, "count": count}
            log.warning("subscription %s: %d mails lost (%s): %s", subscription.uid, count, cause, why, extra=facts)
        session = self._sessions.get(subscription.owner)
        if session is not None and session.lose(subscription, cause, count):
            return
        with self._lock:
            if self._subscriptions.get((subscription.owner, subscription.uid)) is subscription:
                subscription.lost[cause] += count
            else:
                self._account.lose(cause, count)


def _modest(wish: Wish) -> Wish:
    """A wish that requires nothing: of a contract that stands, whatever it gets."""
    return msgspec.structs.replace(wish, require=())


def _told_at(wall: float, seconds: float) -> float | None:
    """When recipients are reminded, for the disk: in so many seconds, or never."""
    return wall + seconds if seconds < math.inf else None


def _short(duration: float) -> float:
    """Of what is asked for that which is granted before a data connection has come; what is no duration stays so."""
    return UNATTACHED_SECONDS if duration == ANY or duration > UNATTACHED_SECONDS else duration


def _is_same(one: Predicate | None, other: Predicate | None) -> bool:
    return one is other or (one is not None and other is not None and one.identity == other.identity)


def _holder(caller: Caller | None) -> str:
    """Of what certificate; "" for none."""
    return caller.holder if caller is not None else ""


def _whose(caller: Caller | None) -> Whose | None:
    if caller is None:
        return None
    return Whose(caller.address, caller.user, caller.claimed, caller.client, caller.holder)


def _caller_of(whose: Whose | None) -> Caller:
    """Nobody, for a subscription of an earlier version, which did not say whose it is."""
    if whose is None:
        return Caller("")
    place = Place(holder=whose.holder)
    return Caller(whose.address, place=place, user=whose.user, claimed=whose.claimed, client=whose.client)
