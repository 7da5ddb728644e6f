"""Status of a delegate: the whole, the same for who looks every second, lists page by page, explanations."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.info_object import Head, Parcel, TypeName
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.overview import (
    leases_ending,
    page_of_subscriptions,
    page_of_terms,
    publishers_by_name,
    sessions_by_name,
    types_of,
)
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.late_join import LateJoiners
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.matching.explanation import (
    Standing,
    contradictions,
    explain,
    find_subscription,
    queue_of,
    recall,
)
from jbi_pubsub.pad.matching.registration import Entries
from jbi_pubsub.pad.model.events import proved
from jbi_pubsub.pad.model.subscription import Subscription, shown
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import (
    BuffersStatus,
    ClientStatus,
    CountsStatus,
    DelegateFacts,
    DelegateOverview,
    DelegateStatus,
    PageStatus,
    PublisherStatus,
    SubscriptionStatus,
)
from jbi_pubsub.protocol.status.quality import QualityStatus, TypeQuality
from jbi_pubsub.protocol.status.terms import Terms

TYPES_JUDGED: Final = 8
"""Types by whose schemas it is said that a subscription can't match; who may have more is not told."""
SOURCES_MOST: Final = 3
"""Names of publishers told of one type."""
TYPES_MOST: Final = 200
"""Types told with them."""


class StatusReports:
    """Reports of a delegate's state, made under its lock."""

    def __init__(self, core: DelegateCore, late_joiners: LateJoiners, mail: MailDispatcher, budget: Budget) -> None:
        self._tables, self._contracts = core.tables, core.contracts
        self._late_joiners = late_joiners
        self._mail = mail
        self._budget = budget

    def status(self, facts: DelegateFacts) -> DelegateStatus:
        """Everything a status page shows, with the `facts` of its server. The totals are of all that was ever here:

        published = unmatched - found_late + what matched at least one subscription, now or late
        matched = suppressed + delivered + lost + queued + in_flight, with direct subscriptions alone (for mail see
        docs/mail.md) and but for a lost `sequence_gap` or `missed`: whether that would have matched is not known
        """
        quality = self._contracts.quality
        told = replace(quality.status(), series=quality.series()) if quality is not None else None
        with self._tables.lock:
            connections = self._tables.connections.values()
            names = {c.connection_id: c.name for c in connections}
            return DelegateStatus(
                publishers=[
                    PublisherStatus(id=shown(c.connection_id), name=c.name, registrations=len(c.registrations))
                    for c in connections
                ],
                registrations=[r.status(names.get(r.connection, "")) for r in self._tables.registrations.values()],
                sessions=[s.status() for s in self._tables.sessions.values()],
                subscriptions=[s.status(SubscriptionStatus) for s in self._tables.subscriptions.values()],
                **facts,
                **self._totals(),
                **self._qos(told),
            )

    def overview(self, facts: DelegateFacts) -> DelegateOverview:
        """The same for who looks every second (see overview.py): without rows, what is of one name together. The work
        is in proportion to the number of subscriptions, the answer is not."""
        told = self._contracts.quality.status() if self._contracts.quality is not None else None
        with self._tables.lock:
            connections = list(self._tables.connections.values())
            registrations = list(self._tables.registrations.values())
            subscriptions = list(self._tables.subscriptions.values())
            sessions = list(self._tables.sessions.values())
            totals, qos = self._totals(), self._qos(told)
            now = self._tables.clock()
            left = partial(self._tables.leases.landlord.left, now=now)
            leases = [
                *(("publisher", c.name, left(c.lease_id)) for c in connections if c.lease_id),
                *(("subscriber", s.name, left(s.lease_id)) for s in sessions),
                *(("e-mail subscription", s.uid, left(s.lease_id)) for s in subscriptions if s.lease_id),
            ]
        return DelegateOverview(
            publishers=publishers_by_name((c.name, list(c.registrations.values())) for c in connections),
            sessions=sessions_by_name(sessions, subscriptions),
            types=types_of(registrations),
            ending=leases_ending(leases),
            mailing=sum(1 for s in subscriptions if s.request.recipients),
            counts=CountsStatus(
                publishers=len(connections),
                registrations=len(registrations),
                sessions=len(sessions),
                subscriptions=len(subscriptions),
            ),
            **facts,
            **totals,
            **qos,
        )

    def _qos(self, told: QualityStatus | None) -> dict[str, Any]:
        """Under the lock: quality of service, its types with who publishes them."""
        if told is None:
            return {}
        names: dict[str, set[str]] = {}
        for registration in self._tables.registrations.values():
            connection = self._tables.connections.get(registration.connection)
            of = names.setdefault(registration.gate.type.name, set())
            if connection is not None and len(of) < SOURCES_MOST:
                of.add(connection.name[:200])
        known = {each.name: each for each in told.types}
        types = [replace(each, sources=sorted(names.get(name, ()))) for name, each in known.items()]
        types += [
            TypeQuality(name=name[:200], sources=sorted(of)) for name, of in names.items() if name[:200] not in known
        ]
        return {"qos": replace(told, types=types[:TYPES_MOST])}

    def _totals(self) -> dict[str, Any]:
        """Under the lock: the fields of DelegateLoad."""
        sessions = self._tables.sessions.values()
        # with those that are ending: a counter that goes back would be taken for a restart
        counted = [*self._tables.subscriptions.values(), *self._tables.ending]
        return {
            **self._tables.account.totals(self._tables.registrations.values(), counted),
            "found_late": self._tables.buffers.found_late,
            "leases": len(self._tables.leases.landlord),
            "queued": sum(s.queued for s in sessions),
            "in_flight": sum(s.in_flight for s in sessions),
            "delay_ms": max((s.delay_ms for s in sessions), default=0.0),
            "queued_bytes": self._budget.used,
            "kept": BuffersStatus(objects=len(self._tables.buffers), bytes=self._tables.buffers.size),
            "catching_up": self._late_joiners.count,
            "mail": self._mail.status(),
        }

    def page(self, search: str, order: str, start: int, count: int) -> PageStatus:
        """Subscriptions page by page (see overview.page_of_subscriptions). Raises OversizeError, ConfigurationError."""
        with self._tables.lock:
            subscriptions = list(self._tables.subscriptions.values())
            sessions = list(self._tables.sessions.values())
        names = {s.session_id: s.name for s in sessions}
        queued = {(s.session_id, uid): waiting for s in sessions for uid, waiting in s.waiting().items()}
        return page_of_subscriptions(subscriptions, queued, names, search=search, order=order, start=start, count=count)

    def terms(self, after: int, count: int) -> tuple[Terms, ...]:
        """Terms of the subscriptions, page by page (see overview.page_of_terms). Raises OversizeError."""
        with self._tables.lock:
            subscriptions = list(self._tables.subscriptions.values())
            names = {s.session_id: s.name for s in self._tables.sessions.values()}
        return page_of_terms(subscriptions, names, after=after, count=count)

    def clients(self) -> list[ClientStatus]:
        """Publishers and subscriber processes, with who they are and where."""
        with self._tables.lock:
            found = [
                ("publisher", c.connection_id, c.name, c.caller, len(c.registrations))
                for c in self._tables.connections.values()
                if c.lease_id
            ]
            sequences = Counter(owner for owner, _ in self._tables.subscriptions)
            found += [
                ("subscriber", s.session_id, s.name, s.caller, sequences[s.session_id])
                for s in self._tables.sessions.values()
            ]
        return [
            ClientStatus(
                id=shown(uid),
                role=role,
                client=name,
                user=proved(caller),
                address=caller.address if caller is not None else "",
                sequences=count,
            )
            for role, uid, name, caller, count in found
        ]

    def impossible(self, request: SubscriptionRequest) -> tuple[tuple[str, ...], int]:
        """Why a subscription can match nothing of what is registered here, as it contradicts their schemas or
        invariants, and of how many registrations that is said; () and 0 if it may, or that is not known."""
        with self._tables.lock:
            topics = [(each, each.gate) for each in self._tables.topics.find(request.entries) if each.gate is not None]
        found: dict[TypeName, tuple[InformationTypeGate, list[Entries]]] = {}
        for each, gate in topics:
            if not each.is_validated:
                return (), 0
            found.setdefault(each.type, (gate, []))[1].append(each.entries)
        if len(found) > TYPES_JUDGED:
            return (), 0
        return contradictions(request, [*found.values()]), sum(each.registrations for each, _ in topics)

    def explain(self, uid: str, metadata: bytes, payload: bytes) -> dict[str, object]:
        """Why an object would be delivered to a subscription, or not, for each registration here, as plain data (see
        explanation.py). The beginning of an id will do, if it is no other's.

        Raises UnknownUidError, ConfigurationError for an ambiguous id.
        """
        head = Head("", "", 0, time.time(), "", "", metadata, len(payload))
        found, registered, queue = self._asked_of(uid)
        return explain(found, registered, Parcel(head, (payload,), len(payload), 0), queue)

    def explain_object(self, uid: str, object_id: str) -> dict[str, object]:
        """As `explain`, for an object that was published here some seconds ago, and for its own `registration` alone;
        "": that has ended, and it is for the others. Raises UnknownUidError as well when it is not known any more, and
        StorageError."""
        parcel = recall(object_id, self._tables.buffers.find)
        found, registered, queue = self._asked_of(uid)
        own = parcel.head.registration if parcel.head.registration in registered else ""
        told = explain(found, {own: registered[own]} if own else registered, parcel, queue, is_published=True)
        return {**told, "registration": own}

    def _asked_of(self, uid: str) -> tuple[Subscription, dict[str, Standing], dict[str, object]]:
        """A subscription, the registrations as they stand for it, and its queue. Raises UnknownUidError,
        ConfigurationError."""
        with self._tables.lock:
            by_uid = {known: subscription for (_, known), subscription in self._tables.subscriptions.items()}
            found = by_uid[find_subscription(uid, by_uid)]
            registrations = list(self._tables.registrations.values())
            let_in = self._tables.let_in(found, {r.topic for r in registrations})
            registered = {
                r.uid: Standing(
                    r.judgement,
                    r.topic.entries,
                    r.topic in let_in,
                    let_in.get(r.topic),
                    found.set_aside if found not in r.topic.table else "",
                )
                for r in registrations
            }
            session = self._tables.sessions.get(found.owner)
        return found, registered, queue_of(session.status(), found.uid) if session is not None else {}

    def explain_contract(self, uid: str) -> dict[str, Any]:
        """Why a subscription or registration has the importance and preferences that it has. Raises UnknownUidError,
        and ConfigurationError without quality of service."""
        if self._contracts.quality is None:
            raise ConfigurationError("this server manages no quality of service", hint="Set [qos] mode = 'on'")
        with self._tables.lock:
            registration = self._tables.registrations.get(uid)
            found = [registration.contract] if registration is not None else []
            found += [each.contract for (_, name), each in self._tables.subscriptions.items() if name == uid]
        contract = next((each for each in found if each is not None), None)
        if contract is None:
            raise UnknownUidError(f"no subscription or registration {uid[:64]} here", uid=uid[:64])
        return self._contracts.quality.explain_contract(contract)
