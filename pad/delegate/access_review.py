"""The access policy has changed, or certificates were revoked: who holds contracts at a delegate is asked about again.

Others get in between: one contract at a time is looked at under the lock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from jbi_pubsub.core.access import Action, Subject
from jbi_pubsub.core.errors import AccessDeniedError, IncompatibleEntryError, PredicateError, UnknownUidError
from jbi_pubsub.core.info_object import Cause, TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.pad.delegate.contracts import DelegateCore, holder_of
from jbi_pubsub.pad.delegate.publishers import PublisherConnections
from jbi_pubsub.pad.delegate.sessions import PART_SECONDS, SubscriberSessions
from jbi_pubsub.pad.delegate.subscribers import SubscriptionRegistry
from jbi_pubsub.pad.delegate.tables import Key, PublisherConnection
from jbi_pubsub.pad.matching.registration import Topic
from jbi_pubsub.pad.model.subscription import Subscription

log = logging.getLogger("jbi_pubsub.pad")


class AccessReview:
    """Review of all standing contracts."""

    def __init__(
        self,
        core: DelegateCore,
        publishers: PublisherConnections,
        subscribers: SubscriptionRegistry,
        sessions: SubscriberSessions,
    ) -> None:
        self._tables = core.tables
        self._contracts = core.contracts
        self._permissions = core.contracts.permissions
        self._quality = core.contracts.quality
        self._publishers = publishers
        self._subscribers = subscribers
        self._sessions = sessions
        self._checked = self._in_force
        self._expelled: dict[str, float] = {}
        """Sessions that may not be here any more, and when they end: once they have been told."""

    def ask_again(self) -> int:
        """Ask about all standing contracts, if the policy has changed since; how many publishers have ended. Others get
        in between."""
        now = self._tables.clock()
        for session_id in [uid for uid, end in self._expelled.items() if end <= now]:
            del self._expelled[session_id]
            self._sessions.drop(session_id, Cause.REFUSED)
        before, self._checked = self._checked, self._in_force
        if self._checked != before:
            self._check_types()
        if self._checked[1] != before[1]:
            for session in [each for each in list(self._tables.sessions.values()) if each.was_refused]:
                session.ask_again()  # what it requires may be granted now
        version = self._permissions.access.version
        if version == self._permissions.asked_version:
            return 0
        self._permissions.asked_version = version  # first: what changes meanwhile is asked about again
        with self._tables.lock:
            connections, sessions = list(self._tables.connections.values()), list(self._tables.sessions.values())
            keys = list(self._tables.subscriptions)
        ended = [c.connection_id for c in connections if not self._may_publish(c)]
        for connection_id in ended:  # it comes back, and is told which of its registrations are refused
            with contextlib.suppress(UnknownUidError):  # it has left
                self._publishers.disconnect(connection_id)
        refused = [session for session in sessions if session.was_refused]
        for session in sessions:
            if session.caller is not None and not self._permissions.is_allowed(session.caller, "connect", Subject()):
                self._expelled[session.session_id] = now + PART_SECONDS
        changed: dict[Topic, dict[Subscription, Predicate | None]] = {}
        for key in keys:
            self._ask_about(key, changed)
        for topic, predicates in changed.items():
            with self._tables.lock:
                topic.table.replace(predicates)
        for session in refused:
            session.ask_again()
        if self._subscribers.history is not None:
            self._subscribers.history.ask_again()
        return len(ended)

    @property
    def _in_force(self) -> tuple[int, int]:
        """Version of the policy, and of the decisions on quality of service."""
        return self._permissions.access.version, self._quality.rounds if self._quality is not None else 0

    def _check_types(self) -> None:
        """Judge rules and policies by the schemas of all types again."""
        told = self._contracts.forget_types()  # first: a type that comes meanwhile is judged by both or by one
        with self._tables.lock:
            registrations = list(self._tables.registrations.values())
        for gate in {each.gate.digest: each.gate for each in registrations if each.judgement.validates}.values():
            self._contracts.check_type(gate, told)

    def _may_publish(self, connection: PublisherConnection) -> bool:
        caller = connection.caller
        if caller is None:
            return True
        registrations = list(connection.registrations.values())
        asked: set[tuple[Action, TypeName]] = {("publish", r.gate.type) for r in registrations}
        asked |= {("persist", r.gate.type) for r in registrations if r.terms.persist}
        asked |= {("bridge", r.gate.type) for r in registrations if r.origin is not None}
        return self._permissions.is_allowed(caller, "connect", Subject()) and all(
            self._permissions.is_allowed(caller, action, Subject(type_.name, type_.version))
            for action, type_ in sorted(asked)
        )

    def _ask_about(self, key: Key, changed: dict[Topic, dict[Subscription, Predicate | None]]) -> None:
        """Whether a subscription may stay, and where; what it is to be matched by instead goes into `changed`."""
        subscription = self._tables.subscriptions.get(key)
        if subscription is None or subscription.rights is None:
            return
        try:
            subscription.rights.check(subscription.request)
            with self._tables.lock:
                if self._tables.subscriptions.get(key) is subscription:
                    self._move(subscription, changed)
        except (AccessDeniedError, PredicateError) as exc:
            log.warning("subscription %s ends: %s", subscription.uid, exc.message)
            self._subscribers.forget(key, Cause.REFUSED)

    def _move(self, subscription: Subscription, changed: dict[Topic, dict[Subscription, Predicate | None]]) -> None:
        """Out of the tables of what it may not have any more, into those of what it may have now."""
        subscription.narrowed_by = ""
        try:
            topics = self._tables.topics.find(subscription.request.entries)
        except IncompatibleEntryError:
            return
        let_in = self._tables.let_in(subscription, topics)
        self._subscribers.late_joiners.narrow(subscription, let_in)
        for topic in topics:
            if topic not in let_in:
                topic.table.remove(subscription)
            elif subscription not in topic.table:
                topic.table.add(subscription, let_in[topic])
            elif not _is_same(topic.table.predicate_of(subscription), let_in[topic]):
                changed.setdefault(topic, {})[subscription] = let_in[topic]

    def end_held(self, is_revoked: Callable[[str], bool]) -> int:
        """End the publishers, sessions and e-mail subscriptions of certificates that are revoked; how many."""

        def ends(caller: Caller | None) -> bool:
            return bool(holder := holder_of(caller)) and is_revoked(holder)

        with self._tables.lock:
            connections = [uid for uid, each in self._tables.connections.items() if ends(each.caller)]
            sessions = [uid for uid, each in self._tables.sessions.items() if ends(each.caller)]
            mails = [key for key, each in self._tables.subscriptions.items() if key[0] == "mail" and ends(each.caller)]
        for uid in connections:
            with contextlib.suppress(UnknownUidError):  # it has left
                self._publishers.disconnect(uid)
        for uid in sessions:
            with contextlib.suppress(UnknownUidError):
                self._sessions.close(uid)
        for key in mails:
            self._subscribers.forget(key)
        return len(connections) + len(sessions) + len(mails)


def _is_same(one: Predicate | None, other: Predicate | None) -> bool:
    return one is other or (one is not None and other is not None and one.identity == other.identity)
