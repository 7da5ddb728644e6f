"""A delegate's registrations: what is going to be published here, by publishers of our own platform and by bridges.

Decided under the lock; lookup services are told after it.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, OversizeError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.lookup.entry import check_rep
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.listing import RegistrationListing
from jbi_pubsub.pad.delegate.tables import PublisherConnection
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.match_table import PARTITIONED_SECONDS
from jbi_pubsub.pad.matching.registration import DeclaredTerms, Entries, Registration, Topic
from jbi_pubsub.pad.matching.signatures import SignatureCheck
from jbi_pubsub.pad.matching.topics import GHOSTS_MOST
from jbi_pubsub.pad.model.type_repository import DelegateTypes
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import Origin, SigningKeyEntry
from jbi_pubsub.protocol.ownership import check_publisher
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.sending import check_sending

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.archiving import Archiving

FOLLOWED_SECONDS: Final = 10.0
"""Longest that, behind the end of a relayed registration, a bridge has to wait that lacks what follows; if the lease of
the bridge before was shorter, as long as that. One that has it comes as soon as the lookup services tell of the end."""


class Registrations:
    """They come with `register` and go with `drop`."""

    def __init__(
        self,
        core: DelegateCore,
        *,
        types: DelegateTypes,
        listing: RegistrationListing,
        signatures: SignatureCheck | None,
        archive: Archiving | None,
        keeps_elsewhere: bool = False,
    ) -> None:
        """`keeps_elsewhere`: whether others keep what is to be kept, where `archive` is None."""
        config, self._tables, self._contracts, self._events = core
        self._most = config.pad.max_registrations
        self._types = types
        self._listing = listing
        self._signatures = signatures
        self.archive: Final = archive
        self._keeps_elsewhere = keeps_elsewhere
        self._partitioned: list[Topic] = []
        """Topics whose predicates are partitioned by importance."""
        self._former_keys: Cache[str, SigningKey] = Cache(GHOSTS_MOST)
        """Keys of registrations that have gone: somebody may still come for their objects."""
        self._relayed_before: Cache[str, tuple[int, float]] = Cache(self._most)
        """Relayed registrations that have gone: the number of the last object, and until when a bridge that lacks the
        next one is not taken (clock)."""

    def open_type(self, bundle: SchemaBundle, caller: str) -> InformationTypeGate:
        """The type a schema stands for, for whom it is opened. Raises SchemaError or TypeConflictError."""
        return self._types.open(bundle, caller=caller)

    def publishing(self, type: TypeName) -> int:  # noqa: A002  # the field's word
        """Number of registrations of a type."""
        with self._tables.lock:
            return sum(r.gate.type == type for r in self._tables.registrations.values())

    def former_schema(self, type: TypeName) -> SchemaBundle | None:  # noqa: A002  # the field's word
        """Schema of a type that nobody publishes any more, as long as somebody may come for its objects; None for
        others."""
        with self._tables.lock:
            return next((schema for topic, schema in self._tables.topics.ghosts.items() if topic.type == type), None)

    def forget_type(self, type: TypeName) -> None:  # noqa: A002  # the field's word
        """Drop a type that was opened for a registration which then came to nothing."""
        if not self.publishing(type):
            self._types.forget(type)

    def register(self, connection_id: str, request: PublisherRequest, *, uid: str, number: int) -> Registration:
        """Register what will be published (paper section 2.4(3)-(4)).

        `uid` is made from the request's secret, which the publisher keeps over failures, so that nobody else can
        publish under it; the publisher chooses `number`, which its publications start with. Raises UnknownUidError,
        AccessDeniedError (`uid` is not the secret's), SignatureError (we want signed objects, and its key does not
        hold), SchemaError, TypeConflictError, MetadataError, OversizeError, QosDeniedError, ConfigurationError (it is
        to be archived, and there is no archive), StorageError.

        With an origin in the request it is published on another platform, under the id that it has there; its objects
        keep theirs, and say by which platforms they came. That `uid` is the publisher's own, whoever relays it vouches
        for (the action `bridge`), unless it signs; so nobody else need know its secret. The request's secret is the
        bridge's: with it the registration can be taken over in the lookup services. Where the original stands it is
        refused; for a while also where another bridge's has ended, if what follows that is missing: whoever has it goes
        first. AccessDeniedError then.
        """
        self._tables.connection(connection_id)
        for entry in request.entries:
            check_rep(entry)
        gate = self._types.open(request.schema)
        try:
            if self._signatures is not None:
                self._signatures.welcome(uid, request.signing)
            registration, entries = self._register(connection_id, request, gate, uid, number)
        except JbiError:
            self.forget_type(gate.type)
            raise
        if registration.topic.registrations == 1:
            if self.archive is not None:
                self.archive.check_rule(gate)
            if request.validate:
                self._contracts.check_type(gate)
        item = self._listing.item(uid, request, entries, registration.contract)
        self._listing.announcer.join(item, request.secret)
        with self._tables.lock:
            ended = registration.uid not in self._tables.registrations
        if ended:  # its publisher's lease ran out meanwhile: taking it back came before there was something to take
            self._listing.announcer.leave(registration.uid)
        return registration

    def _register(
        self, connection_id: str, request: PublisherRequest, gate: InformationTypeGate, uid: str, number: int
    ) -> tuple[Registration, Entries]:
        check_publisher(uid, request)
        check_sending(request.sending)
        entries, size = self._listing.describe(uid, request, gate)
        if request.origin is None:
            self._give_way_to_original(uid)
        archived = self._archived(connection_id, request, gate.type, uid, entries)
        with self._tables.lock:
            connection = self._tables.connection(connection_id)  # asked again: its lease may have run out meanwhile
            if (known := self._tables.registrations.get(uid)) is not None:
                self._register_again(known, connection, request, number)
                if known.archived is None and request.origin is not None:
                    known.archived = archived  # from now on: whoever relays it has been asked to keep it
                return known, known.topic.entries
            if number in connection.registrations:
                raise UnknownUidError(f"registration {uid!r} number {number} can't be made", uid=uid)
            had, lacks = self._relayed_up_to(uid, request.origin)
            if len(self._tables.registrations) >= self._most:
                raise OversizeError(f"the delegate holds its limit of {self._most} registrations")
            registration = self._open(connection, request, gate, uid, number, entries, size)
            registration.archived = archived
            registration.sequence = registration.judged = had
            registration.marks.is_torn = request.origin is not None and request.origin.is_sparse and lacks
            self._relayed_before.pop(uid, None)
            topic = registration.topic
            topic.is_partly_kept = topic.is_partly_kept or archived is None
            topic.gate, topic.is_validated = gate, topic.is_validated and request.validate
            topic.unannounced.add(uid)
            topic.buffer.young_until = math.inf
            connection.registrations[number] = registration
            self._tables.registrations[uid] = registration
            self._contracts.tell_quality(self._contracts.offers.made_by(registration, request.qos))
            self._events.tell_registration("created", registration)
        return registration, entries

    def _register_again(
        self, known: Registration, connection: PublisherConnection, request: PublisherRequest, number: int
    ) -> None:
        """Under the lock: the answer to its publisher was lost, or another certificate answers for its key by now.
        Raises AccessDeniedError, UnknownUidError for another's."""
        uid, is_own = known.uid, known.connection == connection.connection_id
        if request.origin is not None and not is_own:
            what = "is published here" if known.origin is None else "is relayed here by another bridge"
            raise AccessDeniedError(f"registration {uid} {what}: it can't be relayed", uid=uid)
        if not is_own or connection.registrations.get(number, known) is not known:
            raise UnknownUidError(f"registration {uid} belongs to another publisher", uid=uid)
        connection.registrations[number] = connection.registrations.pop(known.number)
        known.number = number  # where it is another one nothing was published
        known.terms = replace(known.terms, origin=request.origin, signing=request.signing, persist=request.persist)
        self._events.tell_registration("updated", known)

    def _open(
        self,
        connection: PublisherConnection,
        request: PublisherRequest,
        gate: InformationTypeGate,
        uid: str,
        number: int,
        entries: Entries,
        size: int,
    ) -> Registration:
        """Under the lock: with its share, its contract and its topic; no state is left if one of them is refused."""
        with contextlib.ExitStack() as undo:
            share = self._contracts.quota.take(connection.caller, size)
            undo.callback(self._contracts.quota.give_back, share)
            contract, _ = self._contracts.open(connection.caller, "publish", gate.type, request.qos)
            undo.callback(self._contracts.end, contract)
            topic = self._tables.topic_for(entries, gate.type)
            undo.pop_all()
        judgement = Judgement(
            gate, request.entries, topic.table, validate=request.validate, well_formed=request.well_formed,
            origin=self._listing.origin(connection.name, request),
        )  # fmt: skip
        terms = DeclaredTerms(request.signing, request.persist, request.expiration, request.origin)
        return Registration(
            uid, number, connection.connection_id, topic, judgement, terms, contract=contract, share=share
        )

    def _give_way_to_original(self, uid: str) -> None:
        """A publisher has come to the platform that its objects were relayed to."""
        with self._tables.lock:
            shadow = self._tables.registrations.get(uid)
            if shadow is None or shadow.origin is None:
                return
            connection = self._tables.connections.get(shadow.connection)
            if connection is not None:
                connection.registrations.pop(shadow.number, None)
        self.drop([shadow])

    def _relayed_up_to(self, uid: str, origin: Origin | None) -> tuple[int, bool]:
        """Under the lock: the number up to which a registration is accounted for here that a bridge wants to relay, and
        whether that bridge lacks what follows. Raises AccessDeniedError while another one may come that has it."""
        if origin is None or origin.first is None:
            return 0, False
        had, until = self._relayed_before.get(uid, (0, 0.0))
        lacks = had > 0 and not 0 < origin.first <= had + 1
        if lacks and self._tables.clock() < until:
            raise AccessDeniedError(
                f"registration {uid} was relayed here up to number {had}: a bridge that has what follows goes first",
                hint="Ask again: after some seconds nobody is waited for",
                uid=uid,
            )
        return had or max(0, origin.first - 1), lacks

    def _archived(
        self, connection_id: str, request: PublisherRequest, type_: TypeName, uid: str, entries: Entries
    ) -> int | None:
        """Number up to which a registration is archived already; None: it is not to be. Raises ConfigurationError,
        StorageError."""
        if self.archive is None:
            if request.persist and not self._keeps_elsewhere:
                raise ConfigurationError(
                    "a registration with persist=True needs an archive, and there is none here",
                    hint="Set [archive] folder, use another delegate, or leave persist out",
                )
            return None
        if not self.archive.is_kept(request.persist, type_, entries, is_relayed=request.origin is not None):
            return None
        origin = self._listing.origin(self._tables.connection(connection_id).name, request)
        return self.archive.open(uid, type_, origin, _kept(entries, request.signing))

    def keep_wanted(self) -> None:
        """Under the lock: what a durable subscription waits for is archived from now on, unless its publisher does not
        want that. Raises StorageError."""
        if self.archive is None:
            return
        spare = [r for r in self._tables.registrations.values() if not r.persist and r.terms.persist is None]
        wanted = [each for each in spare if self.archive.is_wanted(each.topic.entries)]
        if wanted:
            whole = [(r.uid, r.topic.type, r.judgement.origin, _kept(r.topic.entries, r.terms.signing)) for r in wanted]
            self.archive.open_all(whole)
        for each in wanted:
            each.archived = self.archive.keeping.last_sequence(each.uid)

    def drop(self, registrations: list[Registration], of: PublisherConnection | None = None) -> None:
        """Those of them that nobody else has dropped meanwhile; `of` a connection that has gone."""
        with self._tables.lock:
            registrations = [r for r in registrations if self._tables.registrations.get(r.uid) is r]
            for registration in registrations:
                del self._tables.registrations[registration.uid]
                registration.has_ended = True
                self._events.tell_registration("removed", registration, of)
                self._contracts.end(registration.contract)
                self._contracts.quota.give_back(registration.share)
                if registration.terms.signing is not None:
                    self._former_keys[registration.uid] = registration.terms.signing
                if (whose := of or self._tables.connections.get(registration.connection)) is not None:
                    whose.untold.pop(registration.uid, None)
                self._keep_number(registration, whose)
                self._tables.account.close_registration(registration)
                self._tables.topics.leave(registration, self._tables.clock())
            self._contracts.tell_quality(self._contracts.offers.withdraw(registrations))
            self._tables.changed.notify_all()
            used = {r.gate.type for r in self._tables.registrations.values()}
            idle = [t for t in {r.gate.type for r in registrations} if t not in used]
        if registrations:
            self._listing.announcer.leave(*(registration.uid for registration in registrations))
        for unused in idle:
            self._types.forget(unused)

    def _keep_number(self, registration: Registration, of: PublisherConnection | None) -> None:
        """Keep the last number of one that was relayed, for the bridge that relays it next."""
        if registration.origin is None or registration.origin.first is None or not registration.judged:
            return
        wait = of.term if of is not None and 0 <= of.term < FOLLOWED_SECONDS else FOLLOWED_SECONDS
        self._relayed_before[registration.uid] = registration.judged, self._tables.clock() + wait

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key of the objects of a registration that is here, or was."""
        with self._tables.lock:
            registration = self._tables.registrations.get(uid)
            return registration.terms.signing if registration is not None else self._former_keys.get(uid)

    def balance(self) -> None:
        """With quality of service: predicates are partitioned by importance where they cost much, and follow the
        importance of their subscriptions. Now and then."""
        with self._tables.lock:
            registrations = list(self._tables.registrations.values())
        costs = dict.fromkeys(self._partitioned, 0.0)
        for each in registrations:
            if each.seconds is not None:
                costs[each.topic] = max(costs.get(each.topic, 0.0), each.seconds())
        for topic, cost in costs.items():
            if topic in self._partitioned or cost > PARTITIONED_SECONDS:
                with self._tables.lock:
                    topic.table.balance(cost, self._tables.buffers.stamp)
        self._partitioned = [topic for topic in costs if topic.table.parts is not None]

    def announced(self, uid: str, told: int) -> None:
        """A lookup service has begun to tell of a registration, `told` so many of it. Unknown ids are ignored."""
        with self._tables.lock:
            registration = self._tables.registrations.get(uid)
            if registration is not None:
                topic = registration.topic
                topic.unannounced.discard(uid)
                topic.announced, topic.told = self._tables.clock(), max(topic.told, told)
                if not topic.unannounced:
                    self._tables.buffers.announced(topic.buffer, topic.announced)


def _kept(entries: Entries, signing: SigningKey | None) -> Entries:
    """Entries of a registration as they are archived: with what its objects are verified by."""
    return (*entries, *SigningKeyEntry.reps(signing))
