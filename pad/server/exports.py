"""Calls of a delegate or peer publisher on the control plane: an object for each name that it exports.

Each call asks the access policy, unless an id that was given when something was allowed is the right, and hands on to
the server or its delegate; nothing is decided here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import structs

from jbi_pubsub.core.access import NONE_IN_PARTICULAR, AccessAdmin, AccessPolicy, Question, Subject, denied
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    JbiError,
    OversizeError,
    ProtocolError,
    QosDeniedError,
    UnknownUidError,
    report,
)
from jbi_pubsub.core.history import GivenUp, Progress, TakenIn
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import PolicyChanged
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.wire.control import exported, leasing
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import BOUNDS
from jbi_pubsub.pad.matching.explanation import recall
from jbi_pubsub.pad.server.presence import LOOKUP_SECONDS
from jbi_pubsub.pad.server.service import DelegateService
from jbi_pubsub.protocol.mail_links import LinkAction
from jbi_pubsub.protocol.replies import (
    Answers,
    ArchivedSource,
    DeletionCount,
    ObjectCount,
    OpenReply,
    QueryExplanation,
    QueryOpened,
    Registered,
    SubscribeReply,
)
from jbi_pubsub.protocol.requests import MAX_OWNER, PublisherRequest, QueryRequest, Start, SubscriptionRequest
from jbi_pubsub.protocol.services import NO_CLAIMS, STANDING_SECONDS, SUBSCRIBE_AT_ONCE, WANTED_SECONDS, Claims
from jbi_pubsub.protocol.status.delegate import (
    CountsStatus,
    DelegateOverview,
    DelegateStatus,
    MailSubscription,
    PageStatus,
)
from jbi_pubsub.protocol.status.terms import Terms
from jbi_pubsub.protocol.wanted import Wanted

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.service import ArchiveAdministration, ArchiveService

log = logging.getLogger("jbi_pubsub.pad")

JUDGED: Final = 10
"""Subscriptions of one call whose XPaths are compared with the schemas, 50 us each: who makes more is a program."""
STATUS_ROWS: Final = 5_000
"""Rows of a list in a status that is asked for over the network: about 3 MB of subscriptions."""

CONTRACTS: Final = ("publish", "subscribe", "query")
"""Actions that open one."""

TOLD_MOST: Final = 200
"""Characters of what is set, and why, that are written down."""

DRAIN_MOST: Final = 60.0
"""Seconds that a call to drain waits at most."""


class DelegateCalls:
    """Calls of one exported name."""

    def __init__(self, server: DelegateService) -> None:
        self._server = server


class PublisherCalls(DelegateCalls):
    """The publishers' calls."""

    @exported
    @leasing
    def connect(self, caller: Caller, name: str, duration: float, claims: Claims) -> OpenReply:
        caller = _named(caller, name, claims)
        with self._server.guard.deciding():
            self._server.guard.allow(caller, "connect")
            self._server.presence.refuse_when_draining()
            connection, lease = self._server.delegate.publishers.connect(name[:200], duration, caller)
        return OpenReply(connection.connection_id, lease, self._server.server_id)

    @exported
    @leasing
    def renew(self, caller: Caller, lease_id: str, duration: float) -> float:  # noqa: ARG002  # the lease id is the right
        return self._server.delegate.renew(lease_id, duration).duration

    @exported
    def disconnect(self, caller: Caller, connection_id: str) -> None:  # noqa: ARG002  # the connection id is the right
        self._server.delegate.publishers.disconnect(connection_id)
        self._server.data.forget(connection_id)

    @exported
    def register(
        self, caller: Caller, connection_id: str, request: PublisherRequest, uid: str, number: int
    ) -> Registered:
        self._server.presence.refuse_when_stopping()
        with self._server.guard.deciding():
            granted = self._register(caller, connection_id, request, uid, number)
        try:
            self._server.presence.wait_announced(uid, LOOKUP_SECONDS)
        except JbiError as exc:
            if exc.is_final and self._server.delegate.publishers.take_back_unlisted(connection_id, uid):
                raise
            log.warning("registration %s is listed later: %s", uid, exc)
        return granted

    def _register(
        self, caller: Caller, connection_id: str, request: PublisherRequest, uid: str, number: int
    ) -> Registered:
        connection = self._server.delegate.tables.connection(connection_id)
        caller = _named(caller, connection.name, NO_CLAIMS)
        self._server.guard.allow(caller, "connect")
        self._server.guard.allow(caller, "publish", Subject(some=True))  # before it costs anything
        opened = self._server.repositories.check_type(request, caller.peer)
        try:
            self._server.guard.allow(caller, "publish", Subject(opened.name, opened.version))
            if request.persist:
                self._server.guard.allow(caller, "persist", Subject(opened.name, opened.version))
            if request.origin is not None:
                self._server.guard.allow(caller, "bridge", Subject(opened.name, opened.version))
                self._server.presence.check_relayed(uid, request.origin)
        except JbiError:
            self._server.delegate.registrations.forget_type(opened)
            raise
        registration = self._server.delegate.registrations.register(connection_id, request, uid=uid, number=number)
        return self._server.data.granted(registration)

    @exported
    def unregister(self, caller: Caller, connection_id: str, uid: str) -> None:  # noqa: ARG002  # the id is the right
        self._server.delegate.publishers.unregister(connection_id, uid)

    @exported
    def filtered(self, caller: Caller, connection_id: str, uid: str, count: int) -> None:  # noqa: ARG002  # the id is the right
        self._server.delegate.publishers.tell_filtered(connection_id, uid, count)

    @exported
    def wait_for_subscriptions(self, caller: Caller, connection_id: str, uid: str, count: int, seconds: float) -> int:  # noqa: ARG002  # the id is the right
        return self._server.delegate.publishers.wait_for_subscriptions(
            connection_id, uid, count, min(max(0.0, seconds), STANDING_SECONDS)
        )

    @exported
    def open_publications(self, caller: Caller, connection_id: str) -> str:  # noqa: ARG002  # the id is the right
        self._server.delegate.tables.connection(connection_id)
        return self._server.data.issue_token("publish", connection_id)


class BridgingCalls(DelegateCalls):
    """The calls of bridges."""

    @exported
    def wanted(
        self,
        caller: Caller,
        bridge: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)],
        after: int,
        seconds: float,
        members: bool,  # a call's
    ) -> Wanted:
        """Types that the caller may not relay are left out: another policy counts as another interest."""
        self._server.guard.allow(caller, "bridge", Subject(some=True))
        policy = self._server.guard.policy
        version, most = policy.version, min(max(0.0, seconds), WANTED_SECONDS)
        told = self._server.delegate.interest.wanted(bridge, after - version, most, members=members)
        types = told.types and tuple(
            each for each in told.types if policy.allow(caller, "bridge", Subject(each.type.name, each.type.version))
        )
        return Wanted(told.revision + version, types)


class SubscriberCalls(DelegateCalls):
    """The subscribers' calls: what the proxy in the lookup service offers, nothing else."""

    @exported
    @leasing
    def open(self, caller: Caller, name: str, duration: float, claims: Claims) -> OpenReply:
        caller = _named(caller, name, claims)
        with self._server.guard.deciding():
            self._server.guard.allow(caller, "connect")
            self._server.presence.refuse_when_stopping()
            session_id, lease = self._server.delegate.sessions.open(name[:200], duration, caller)
        return OpenReply(session_id, lease, self._server.server_id)

    @exported
    @leasing
    def renew(self, caller: Caller, lease_id: str, duration: float) -> float:  # noqa: ARG002  # the lease id is the right
        return self._server.delegate.renew(lease_id, duration).duration

    @exported
    def close(self, caller: Caller, session_id: str) -> None:  # noqa: ARG002  # the session id is the right
        self._server.delegate.sessions.close(session_id)

    @exported
    def subscribe(
        self,
        caller: Caller,
        session_id: str,
        requests: tuple[msgspec.Raw, ...],
        duration: float,
        ages: tuple[float, ...],
        elapsed: float,
        claims: Claims,
    ) -> Answers:
        """Each request is read by itself: one that makes no sense is refused, and none of the others."""
        self._server.presence.refuse_when_stopping()
        if len(requests) > SUBSCRIBE_AT_ONCE:
            raise OversizeError(f"{len(requests)} subscriptions in one call, the limit is {SUBSCRIBE_AT_ONCE}")
        if len(ages) != len(requests):
            raise ProtocolError(f"{len(requests)} subscriptions with {len(ages)} ages")
        name = self._server.delegate.tables.session(session_id).name if session_id else ""
        caller = _named(caller, name, claims)
        with self._server.guard.deciding():
            given = tuple(
                self._subscribe(caller, session_id, request, duration, age, elapsed, is_judged=number < JUDGED)
                for number, (request, age) in enumerate(zip(requests, ages, strict=True))
            )
        return Answers(given, self._server.delegate.sessions.seconds_open(session_id))

    def _subscribe(
        self,
        caller: Caller,
        session_id: str,
        said: msgspec.Raw,
        duration: float,
        age: float,
        elapsed: float,
        *,
        is_judged: bool,
    ) -> SubscribeReply:
        delegate = self._server.delegate
        try:
            late = max(0.0, elapsed)
            BOUNDS.check_size("a subscription", said)  # before it takes more room than that
            request = decoded(decoder_of(SubscriptionRequest), said, "subscription request")
            granted = delegate.subscribers.subscribe(session_id, request, duration, age, elapsed=late, caller=caller)
            impossible, judged = delegate.reports.impossible(request) if is_judged else ((), 0)
            return SubscribeReply(granted, impossible=impossible, judged=judged)
        except UnknownUidError:
            raise  # the session is gone, and with it all of the call
        except JbiError as exc:
            if session_id and isinstance(exc, AccessDeniedError | QosDeniedError):
                delegate.tables.session(session_id).note_refused()
            return SubscribeReply(error=report(exc))

    @exported
    def unsubscribe(self, caller: Caller, right: str, uid: str) -> None:
        if not right:  # somebody else's e-mail subscription; otherwise the session or lease id is the right
            self._server.guard.allow(caller, "administer")
        self._server.delegate.subscribers.unsubscribe(right, uid, administer=not right)

    @exported
    def open_deliveries(self, caller: Caller, session_id: str) -> str:  # noqa: ARG002  # the session id is the right
        self._server.delegate.tables.session(session_id)
        return self._server.data.issue_token("deliver", session_id)

    @exported
    def explain(self, caller: Caller, uid: str, metadata: bytes, payload: bytes) -> dict[str, Any]:
        self._server.guard.allow(caller, "status")
        return self._server.delegate.reports.explain(uid, metadata, payload)

    @exported
    def explain_object(self, caller: Caller, uid: str, object_id: str) -> dict[str, Any]:
        self._server.guard.allow(caller, "administer")  # it shows what is in an object that may not be the caller's
        self._server.guard.allow_object(caller, recall(object_id, self._server.delegate.tables.buffers.find))
        return self._server.delegate.reports.explain_object(uid, object_id)

    @exported
    def mail_subscriptions(self, caller: Caller) -> list[MailSubscription]:
        self._server.guard.allow(caller, "administer")
        return self._server.delegate.mail.rows()

    @exported
    def durable_subscriptions(self, caller: Caller) -> list[dict[str, Any]]:
        self._server.guard.allow(caller, "administer")
        history = self._server.delegate.subscribers.history
        catch_ups = history.catch_ups if history is not None else None
        return catch_ups.durables.status() if catch_ups is not None else []

    @exported
    def mail_losses(self, caller: Caller, lease_ids: tuple[str, ...]) -> dict[str, dict[str, int]]:  # noqa: ARG002  # the lease id is the right
        if len(lease_ids) > SUBSCRIBE_AT_ONCE:
            raise OversizeError(f"{len(lease_ids)} leases in one call, the limit is {SUBSCRIBE_AT_ONCE}")
        return self._server.delegate.mail.losses(lease_ids)

    @exported
    def renew_mail(self, caller: Caller, uid: str, duration: float) -> Lease:
        self._server.guard.allow(caller, "administer")
        return self._server.delegate.mail.renew_by_uid(uid, duration)

    @exported
    def signing_key(self, caller: Caller, uid: str) -> SigningKey | None:
        self._server.guard.allow(caller, "connect")
        return self._server.delegate.signing_key(uid)


class HistoryCalls(DelegateCalls):
    """Queries of subscribers to the archive."""

    @exported
    def open_query(self, caller: Caller, session_id: str, request: QueryRequest, claims: Claims) -> QueryOpened:
        self._server.presence.refuse_when_stopping()
        session = self._server.delegate.tables.session(session_id)
        with self._server.guard.deciding():
            return self._service.queries.open(session, request, _named(caller, session.name, claims))

    @exported
    def cancel_query(self, caller: Caller, session_id: str, number: int) -> None:  # noqa: ARG002  # the session id is the right
        self._service.queries.cancel(session_id, number)

    @exported
    def progress(self, caller: Caller, session_id: str, number: int) -> Progress:  # noqa: ARG002  # the session id is the right
        return self._service.queries.progress(session_id, number)

    @exported
    def count(self, caller: Caller, request: QueryRequest, seconds: float, claims: Claims) -> ObjectCount:
        self._server.presence.refuse_when_stopping()
        return self._service.queries.source.count(request, seconds, _named(caller, "", claims))

    @exported
    def explain_query(self, caller: Caller, request: QueryRequest, claims: Claims) -> QueryExplanation:
        return self._service.queries.source.explain(request, _named(caller, "", claims))

    @exported
    def reset(self, caller: Caller, name: str, secret: str, start: Start, claims: Claims) -> bool:
        caller = _named(caller, "", claims)
        self._server.guard.allow(caller, "connect")
        catch_ups = self._service.catch_ups
        return catch_ups is not None and catch_ups.reset(name, secret, start, caller)

    @exported
    def end_durable(self, caller: Caller, name: str, secret: str, claims: Claims) -> bool:
        caller = _named(caller, "", claims)
        self._server.guard.allow(caller, "connect")
        catch_ups = self._service.catch_ups
        return catch_ups is not None and catch_ups.end(name, secret, caller)

    @exported
    def delete(self, caller: Caller, request: QueryRequest, seconds: float) -> DeletionCount:
        self._server.guard.allow(caller, "administer")
        return self._administration.delete(request, seconds)

    @exported
    def retain(self, caller: Caller, is_dry: bool, seconds: float) -> tuple[GivenUp, ...]:
        self._server.guard.allow(caller, "administer")
        return self._administration.retain(seconds, is_dry=is_dry)

    @exported
    def rebuild(self, caller: Caller) -> None:
        self._server.guard.allow(caller, "administer")
        self._administration.rebuild()

    @exported
    def take_in(self, caller: Caller, objects: tuple[bytes, ...], of: tuple[ArchivedSource, ...]) -> TakenIn:
        self._server.guard.allow(caller, "administer")  # it says of others what they have published
        self._server.presence.refuse_when_stopping()
        return self._administration.take_in(objects, of)

    @exported
    def describe(self, caller: Caller, uids: tuple[str, ...], claims: Claims) -> tuple[ArchivedSource, ...]:
        self._server.guard.allow(caller, "query", Subject(some=True))
        administration = self._service.administration
        return administration.describe(uids, _named(caller, "", claims)) if administration is not None else ()

    @exported
    def types_called(self, caller: Caller, name: str, claims: Claims) -> tuple[str, ...]:
        self._server.guard.allow(caller, "query", Subject(some=True))
        return self._administration.types_called(name, _named(caller, "", claims))

    @property
    def _service(self) -> ArchiveService:
        service = self._server.delegate.history
        if service is None:
            raise UnknownUidError("there is no archive here", hint="Set [archive] folder")
        return service

    @property
    def _administration(self) -> ArchiveAdministration:
        administration = self._service.administration
        if administration is None:
            raise ConfigurationError("this is the archive of another platform", hint="Administer it there")
        return administration


class MailLinkCalls(DelegateCalls):
    """Links in a mail, for whoever reads it."""

    @exported
    def follow(self, caller: Caller, action: LinkAction, token: str) -> None:  # noqa: ARG002  # the token is the right
        self._server.delegate.mail.follow(action, token)


class JoinAdminCalls(DelegateCalls):
    """Administration of the delegate's own entry in the lookup services (Jini's JoinAdmin)."""

    @exported
    def lookup_attributes(self, caller: Caller) -> tuple[EntryRep, ...]:
        self._server.guard.allow(caller, "status")
        return self._server.presence.community.lookup_attributes(self._server.server_id)

    @exported
    def add_lookup_attributes(self, caller: Caller, entries: tuple[EntryRep, ...]) -> None:
        self._server.guard.allow(caller, "administer")
        self._server.presence.community.add_lookup_attributes(self._server.server_id, entries)

    @exported
    def remove_lookup_attributes(self, caller: Caller, templates: tuple[EntryRep, ...]) -> int:
        self._server.guard.allow(caller, "administer")
        return self._server.presence.community.remove_lookup_attributes(self._server.server_id, templates)


class DelegateStatusCalls(DelegateCalls):
    """Status for everybody; the terms of contracts are for administrators."""

    def __init__(
        self, server: DelegateService, status: Callable[[], DelegateStatus], overview: Callable[[], DelegateOverview]
    ) -> None:
        """`status` and `overview` of the whole server."""
        super().__init__(server)
        self._status, self._overview = status, overview

    @exported
    def status(self, caller: Caller) -> DelegateStatus:
        self._server.guard.allow(caller, "status")
        return shortened(self._status())

    @exported
    def overview(self, caller: Caller) -> DelegateOverview:
        self._server.guard.allow(caller, "status")
        return self._overview()

    @exported
    def subscriptions(self, caller: Caller, search: str, order: str, start: int, count: int) -> PageStatus:
        self._server.guard.allow(caller, "status")
        return self._server.delegate.reports.page(search, order, start, count)

    @exported
    def terms(self, caller: Caller, after: int, count: int) -> tuple[Terms, ...]:
        self._server.guard.allow(caller, "administer")  # what somebody asks for says what he looks for
        return self._server.delegate.reports.terms(after, count)


class AdminCalls(AccessAdmin):
    """Administration of what stands here."""

    def __init__(self, server: DelegateService, access: AccessPolicy) -> None:
        super().__init__(access)
        self._server = server

    @exported
    def explain(self, caller: Caller, asked: Question) -> dict[str, Any]:
        """Explain a decision; of what opens a contract also what importance and preferences it would get."""
        found = super().explain(caller, asked)
        if asked.action in CONTRACTS and (quality := self._server.quality) is not None:
            who = Caller(asked.address, user=asked.user, client=asked.client)
            found["quality"] = quality.explain(who, asked.action, asked.type, asked.version)
        return found

    @exported
    def explain_contract(self, caller: Caller, uid: str) -> dict[str, Any]:
        self._server.guard.allow(caller, "administer")
        return self._server.delegate.reports.explain_contract(uid)

    @exported
    def set_policy(self, caller: Caller, key: str, value: str, why: str) -> PolicyChanged:
        """Each is in the audit log, whether its rule asks for that or not."""
        subject = Subject(name=f"{key} = {value}"[:TOLD_MOST])
        decision = self._policy.allow(caller, "steer", subject)
        self._policy.record(caller, "steer", subject, dataclasses.replace(decision, audit=True))
        if not decision:
            raise denied(caller, "steer", subject)
        quality = self._server.quality
        if quality is None:
            raise ConfigurationError("this server manages no quality of service", hint="Set [qos] mode = 'on'")
        people = bool(self._policy.allow(caller, "administer", NONE_IN_PARTICULAR))
        told = quality.set(key, value, people=people)
        if told.changed:
            who = caller.identity or caller.address
            log.warning("%s has set %s (%s): version %d", who, subject.name, why[:TOLD_MOST] or "-", told.version)
        return told

    @exported
    def cancel(self, caller: Caller, uid: str) -> int:
        self._server.guard.allow(caller, "administer")
        return self._server.delegate.subscribers.cancel(uid)

    @exported
    def drain(self, caller: Caller, seconds: float) -> int:
        self._server.guard.allow(caller, "administer")
        return self._server.drain(min(max(0.0, seconds), DRAIN_MOST))

    @exported
    def resume(self, caller: Caller) -> None:
        self._server.guard.allow(caller, "administer")
        self._server.presence.resume()


def shortened(status: DelegateStatus, most: int = STATUS_ROWS) -> DelegateStatus:
    """A delegate's status with at most so many rows in each list, and `counts`, which says how many there are; of each
    session's queues the longest. The whole of a large one would not go into an answer."""
    lists = CountsStatus.__struct_fields__
    cut = {name: getattr(status, name)[:most] for name in lists}
    per_session = max(10, most // max(1, len(cut["sessions"])))
    cut["sessions"] = [
        structs.replace(s, queued=dict(nlargest(per_session, s.queued.items(), key=lambda pair: pair[1])))
        for s in cut["sessions"]
    ]
    return structs.replace(status, **cut, counts=CountsStatus(**{name: len(getattr(status, name)) for name in lists}))


def _named(caller: Caller, client: str, claims: Claims) -> Caller:
    """With the name that the application has given itself, and what it says of its user, who is nobody for rights."""
    user, role = claims.user[:200], claims.role[:200]
    return dataclasses.replace(caller, client=client[:200], user=user, claimed=bool(user), role=role)
