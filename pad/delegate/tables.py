"""A delegate's state: who publishes, who subscribes, and which subscriptions stand in which topics' tables.

A registration is matched with the waiting subscriptions, a subscription with the standing registrations, once, when the
later of the two comes (paper section 1); publishing asks predicates only. `lock` covers all of it; what changes several
tables is a method, called under the lock. Dissemination reads snapshots without it.

Leases are the only clean-up path: a publisher's covers its registrations, a subscriber's its direct subscriptions; an
e-mail-only subscription has a lease of its own and outlives its subscriber's process.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import IncompatibleEntryError, JbiError, OversizeError, PredicateError, UnknownUidError
from jbi_pubsub.core.info_object import Cause, TypeName
from jbi_pubsub.core.lease import ANY, FixedLeasePeriodPolicy, Landlord, Lease
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import MAX_COST_OF_SUBSCRIBER, CostBudget, Predicate
from jbi_pubsub.lookup.index import TemplateIndex
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.ingress.totals import Totals
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.matching.registration import Entries, Registration, Topic
from jbi_pubsub.pad.matching.topics import Topics
from jbi_pubsub.pad.model.events import Happening, What, Witness, proved
from jbi_pubsub.pad.model.rights import effective
from jbi_pubsub.pad.model.subscription import FAR, Subscription, shown

log = logging.getLogger("jbi_pubsub.pad")

UNATTACHED_SECONDS: Final = 15.0
"""Longest lease of a publisher or subscriber session whose data connection has not come yet, whatever is asked for:
clients open it at once, which takes some seconds over 7,200 bit/s, and renew at 2/5 of the term meanwhile."""

Key = tuple[str, str]
"""A subscription's: the id of its session ("mail" for one by e-mail alone), and its own."""


@dataclass(eq=False, slots=True)
class PublisherConnection:
    """A publishing application connected under a lease."""

    connection_id: str = field(repr=False)
    name: str
    lease_id: str = field(repr=False)
    term: float = ANY
    """Term of its lease, as it was asked for (seconds)."""
    registrations: dict[int, Registration] = field(default_factory=dict)
    untold: dict[str, JbiError] = field(default_factory=dict)
    """By registration why a lookup service refuses to list it, until this is told."""
    caller: Caller | None = None
    """None: the application that a peer publisher lives in, which may do everything."""


class Leases:
    """The book of leases, of publishers, subscriber sessions and e-mail subscriptions; each holds what is called when
    it ends. Under the delegate's lock."""

    def __init__(self, config: Config, stall: float) -> None:
        """`stall`: see Landlord."""
        policy = FixedLeasePeriodPolicy(config.lease.maximum, min(300.0, config.lease.maximum))
        self.landlord: Final = Landlord[Callable[[], None]](policy, stall=stall)
        self.unattached: Final[dict[str, float]] = {}
        """Leases of those whose data connection has not come yet, with the seconds asked for."""
        self._most = config.pad.max_sessions

    def make_room(self, holders: Mapping[str, PublisherConnection | SubscriberSession], what: str) -> str:
        """Id of the one of `holders` that has to end for one more: nobody ("") while there is room, else the first
        whose data connection has not come. Raises OversizeError when all have one."""
        if len(holders) < self._most:
            return ""
        for uid, holder in holders.items():  # as they came
            if holder.lease_id in self.unattached:
                self.landlord.drop(holder.lease_id)
                return uid
        raise OversizeError(f"the delegate holds its limit of {len(holders)} {what}")

    def grant_unattached(self, drop: Callable[[], None], duration: float, now: float) -> Lease:
        """A lease that is short until the data connection of its holder has come. Raises LeaseDeniedError."""
        lease = self.landlord.grant(drop, _short(duration), now)
        self.unattached[lease.lease_id] = duration
        return lease

    def attach(self, lease_id: str, now: float) -> None:
        """The data connection of its holder stands: the lease is what was asked for."""
        asked = self.unattached.pop(lease_id, None)
        if asked is not None and self.landlord.is_live(lease_id, now):
            self.landlord.renew(lease_id, asked, now)

    def renew(self, lease_id: str, duration: float, now: float) -> Lease:
        """Renew a lease; it stays short until the data connection has come. Raises UnknownLeaseError."""
        unattached = lease_id in self.unattached
        lease = self.landlord.renew(lease_id, _short(duration) if unattached else duration, now)
        if unattached:
            self.unattached[lease_id] = duration
        return lease


class Tables:
    """See the module."""

    def __init__(self, config: Config, buffers: RecentBuffers, clock: Callable[[], float], stall: float) -> None:
        self.lock: Final = threading.RLock()
        self.changed: Final = threading.Condition(self.lock)
        """A subscription has come, or a registration has gone."""
        self.clock = clock
        self.leases: Final = Leases(config, stall)
        self.connections: Final[dict[str, PublisherConnection]] = {}
        self.registrations: Final[dict[str, Registration]] = {}
        self.sessions: Final[dict[str, SubscriberSession]] = {}
        self.subscriptions: Final[dict[Key, Subscription]] = {}
        self.waiting: Final = TemplateIndex[Key]()
        self.buffers: Final = buffers
        self.topics: Final = Topics(buffers)
        self.costs: Final[dict[str, CostBudget]] = {}
        """Budget of each session."""
        self.ending: Final[list[Subscription]] = []
        """Gone, and not yet in the totals of what has ended."""
        self.account: Final = Totals()
        self.next_number: Final[Callable[[], int]] = itertools.count(1).__next__
        """The number of one more queue."""

    def connection(self, connection_id: str) -> PublisherConnection:
        """Raises UnknownUidError: expired, disconnected, or never connected here."""
        with self.lock:
            found = self.connections.get(connection_id)
        if found is None:
            raise UnknownUidError(
                f"no publisher connection {connection_id} here", hint="Connect again", uid=connection_id
            )
        return found

    def session(self, session_id: str) -> SubscriberSession:
        """Raises UnknownUidError: expired, closed, or never opened here."""
        with self.lock:
            found = self.sessions.get(session_id)
        if found is None:
            raise UnknownUidError(f"no subscriber session {session_id} here", hint="Open it again", uid=session_id)
        return found

    def attached(self, uid: str) -> None:
        """The data connection of a publisher or subscriber session stands: its lease is what it has asked for."""
        with self.lock:
            connection, session = self.connections.get(uid), self.sessions.get(uid)
            found = connection or session
            self.leases.attach(found.lease_id if found is not None else "", self.clock())

    def counted(self) -> tuple[int, int]:
        """Objects that matched the subscriptions there are, and that they lost."""
        standing = list(self.subscriptions.values())
        return sum(each.matched for each in standing), sum(sum(each.lost.copy().values()) for each in standing)

    def let_in(self, subscription: Subscription, topics: Iterable[Topic]) -> dict[Topic, Predicate | None]:
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

    def check_cost(self, subscription: Subscription, let_in: Mapping[Topic, Predicate | None]) -> None:
        """Raises OversizeError when what is evaluated for its session, or for a registration, would cost too much. An
        e-mail subscription has no session: what one costs by itself was bounded when it was compiled."""
        mine = self.costs.get(subscription.owner)
        if mine is not None:
            mine.check(subscription.charges, "this subscriber")
        for topic, predicate in let_in.items():
            charges = subscription.charges_by(predicate)
            topic.table.budget.check(charges, "all subscriptions to a registration that it matches")

    def charge(self, subscription: Subscription) -> None:
        """Charge what is evaluated for it to its session."""
        self.costs.setdefault(subscription.owner, CostBudget(MAX_COST_OF_SUBSCRIBER)).add(subscription.charges)

    def refund(self, subscription: Subscription) -> None:
        """Undo `charge`."""
        mine = self.costs.get(subscription.owner)
        if mine is not None:
            mine.remove(subscription.charges)
            if not len(mine):
                del self.costs[subscription.owner]

    def put_in(
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
            topic.has_waited |= since < topic.began
        subscription.place, marks, lost = self.buffers.mark([topic.buffer for topic in topics], since)
        for topic in topics:
            topic.table.settled = subscription.place
        return list(zip(topics, marks, strict=True)), lost

    def take_out(self, subscription: Subscription) -> None:
        """Out of all topics' tables: what is published from now on is not for it."""
        for topic in self.topics_of(subscription):
            topic.table.remove(subscription)

    def topics_of(self, subscription: Subscription) -> list[Topic]:
        """The topics whose tables it is in: of a thousand registrations it matches a few."""
        try:
            topics = self.topics.find(subscription.request.entries)
        except IncompatibleEntryError:  # of the class that it means none is registered any more
            return []
        return [topic for topic in topics if subscription in topic.table]

    def topic_for(self, entries: Entries, type_: TypeName) -> Topic:
        """The topic of one more registration, with those who wait for it."""
        topic = self.topics.of(entries, type_)
        if topic.registrations == 0:
            topic.began, topic.has_waited = self.clock(), False
            self._take_in_waiting(topic)
        topic.registrations += 1
        return topic

    def _take_in_waiting(self, topic: Topic) -> None:
        """Those that have come before it. Who would cost too much beside the others is set aside, and told."""
        for key in self.waiting.find(topic.entries):
            subscription = self.subscriptions[key]
            try:
                let_in = self.let_in(subscription, [topic])
                for predicate in let_in.values():
                    charges = subscription.charges_by(predicate)
                    topic.table.budget.check(charges, "all subscriptions to a registration")
            except (OversizeError, PredicateError) as exc:
                log.warning("subscription %s is not evaluated any more: %s", subscription.uid, exc)
                subscription.set_aside = str(exc)
                session = self.sessions.get(subscription.owner)
                if session is None or not session.lose(subscription, Cause.REFUSED, 0):
                    subscription.lost[Cause.REFUSED] += 0
            else:
                for predicate in let_in.values():
                    topic.table.add(subscription, predicate)
                    topic.note(subscription)
                    topic.has_waited = True


class ContractEvents:
    """Events of contracts, told to a witness, if there is one, under the delegate's lock."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.witness: Witness | None = None
        """Receiver that is told what happens to contracts."""

    def tell_connection(self, what: What, connection: PublisherConnection) -> None:
        """A publisher's connection."""
        if self.witness is not None and connection.lease_id:  # our own is nobody's
            uid, user = shown(connection.connection_id), proved(connection.caller)
            self.witness(Happening("connection", what, "publisher", uid, connection.name, user))

    def tell_registration(self, what: What, registration: Registration, of: PublisherConnection | None = None) -> None:
        """A registration, `of` a connection that has gone."""
        of = of or self._tables.connections.get(registration.connection)
        if self.witness is not None and (of is None or of.lease_id):
            name, user = (of.name, proved(of.caller)) if of is not None else ("", "")
            type_ = str(registration.gate.type)
            self.witness(Happening("sequence", what, "publisher", registration.uid, name, user, type_))

    def tell_session(self, what: What, session: SubscriberSession) -> None:
        """A subscriber's session."""
        if self.witness is not None:
            uid, user = shown(session.session_id), proved(session.caller)
            self.witness(Happening("connection", what, "subscriber", uid, session.name, user))

    def tell_subscription(self, what: What, subscription: Subscription, of: SubscriberSession | None = None) -> None:
        """A subscription, `of` a session that has gone."""
        if self.witness is not None:
            of = of or self._tables.sessions.get(subscription.owner)
            name, user = of.name if of is not None else "", proved(subscription.caller)
            self.witness(Happening("sequence", what, "subscriber", subscription.uid, name, user))


def _short(duration: float) -> float:
    """Duration that is granted before a data connection has come; what is no duration stays so."""
    return UNATTACHED_SECONDS if duration == ANY or duration > UNATTACHED_SECONDS else duration
