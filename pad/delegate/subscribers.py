"""Subscriptions at a delegate: they are opened, amended and ended here, whoever asked for them.

Decided under the delegate's lock; what their subscribers are told, and what is kept on disk, comes after it.
"""

from __future__ import annotations

import math
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, JbiError, OversizeError, UnknownUidError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.amendments import Amendments
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.mail_subscriptions import MailSubscriptions
from jbi_pubsub.pad.delegate.registrations import Registrations
from jbi_pubsub.pad.delegate.tables import Key
from jbi_pubsub.pad.egress.late_join import LateJoiners, narrowing
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.ownership import check_owner
from jbi_pubsub.protocol.replies import Grant
from jbi_pubsub.protocol.requests import NOT_BEFORE, SubscriptionRequest, check_request

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.service import ArchiveService

CANCEL_SECONDS: Final = 1.0
"""For a subscriber to be told that its subscription was cancelled."""


class SubscriptionRegistry:
    """They come with `subscribe` and go with `forget`."""

    def __init__(
        self,
        core: DelegateCore,
        *,
        registrations: Registrations,
        mail: MailSubscriptions,
        late_joiners: LateJoiners,
        history: ArchiveService | None,
    ) -> None:
        """`history`: what fills those that begin in the past, here or elsewhere."""
        config, self._tables, self._contracts, self._events = core
        self._most = config.pad.max_subscriptions
        self._registrations = registrations
        self._mail = mail
        self.late_joiners: Final = late_joiners
        self.history: Final = history
        self._catch_ups = history.catch_ups if history is not None else None
        self._amendments = Amendments(core, late_joiners, self._catch_ups)

    def subscribe(
        self,
        session_id: str,
        request: SubscriptionRequest,
        duration: float,
        age: float = NOT_BEFORE,
        *,
        elapsed: float = 0.0,
        caller: Caller | None = None,
    ) -> Grant:
        """Register a subscription (paper section 2.4(7)); `duration` is for the lease of an e-mail-only one.

        `age`: for how many seconds it stood already when the session was opened (negative: it came afterwards), or
        stands by now if it is e-mail-only; what was published since is delivered, too, as far as it is kept.
        NOT_BEFORE: nothing that was published before. Of one that is amended, how long those stood already for whom it
        is: they get first objects of topics that it has had nothing of. `elapsed`: how long ago the session was opened
        by the caller's clock, when it asked: clocks drift. `caller`: who asks; None may have everything. The same
        request again is the same subscription, and mail that was suspended is sent again; with another template,
        predicate, payload filter or wish it is amended: each object is judged by the old terms or by the new ones, and
        comes once at most. One with recipients has to prove that its id is its own. Raises UnknownUidError,
        AccessDeniedError, QosDeniedError, PredicateError, AddressError, ConfigurationError, IncompatibleEntryError,
        OversizeError, LeaseDeniedError, StorageError; no state is left then, and what stood stands as it was.
        """
        rights = self._contracts.permissions.rights_of(caller)
        if rights is not None:
            rights.check(request)
        if request.recipients:
            check_owner("subscription", request.uid, request.secret)
            self._mail.check_wanted(request)
        key = (session_id if request.direct else "mail", request.uid)
        if request.direct:
            self._tables.session(session_id)
        may_bridge = rights is None or rights.may_bridge()
        subscription = compile_subscription(request, owner=key[0], number=0, may_bridge=may_bridge)
        subscription.caller, subscription.rights = caller, rights
        with self._tables.lock:
            if (known := self._tables.subscriptions.get(key)) is None:
                granted = self._open_contract(key, subscription, duration, age, elapsed)
            else:
                granted, former = self._ask_again(key, known, subscription, age)
        if known is None:
            self._mail.keep(subscription, granted.lease)
            return granted
        if former is not None:
            with self._amendments.or_back(key, known, former):
                self._mail.keep_terms(known)
        self._mail.hand_over(known, caller, rights)
        return granted

    def _ask_again(
        self, key: Key, known: Subscription, other: Subscription, age: float
    ) -> tuple[Grant, Subscription | None]:
        """Under the lock: one that stands, perhaps with other terms; and what it was before then."""
        session = self._tables.sessions.get(key[0])
        since = session.opened - age if session is not None and age > NOT_BEFORE else math.inf
        former = self._amendments.amend(key, known, other, since)
        if former is not None and known.durable is not None:
            with self._amendments.or_back(key, known, former):
                self._registrations.keep_wanted()
        self._mail.dispatcher.resume(known)
        return self._granted(known, self._mail.lease_of(known), self._contracts.granted_to(known)), former

    def _open_contract(
        self, key: Key, subscription: Subscription, duration: float, age: float, elapsed: float
    ) -> Grant:
        """Under the lock: a subscription that is new here, with its contract. Raises as `subscribe`."""
        subscription.share = self._contracts.quota.take(subscription.caller, check_request(subscription.request))
        try:
            subscription.contract, given = self._contracts.open_for(subscription, subscription.request.qos)
            lease = self._open(key, subscription, duration, age, elapsed)
        except JbiError:
            self._contracts.quota.give_back(subscription.share)
            self._contracts.end(subscription.contract)
            raise
        self._contracts.offers.required_by(subscription)
        given = msgspec.structs.replace(given, unmet=subscription.unmet)
        return self._granted(subscription, lease, given)

    def _granted(self, subscription: Subscription, lease: Lease | None, given: GrantedQos) -> Grant:
        """Also of the archive that fills it, if one does."""
        at: tuple[tuple[str, ...], bool, bool] = (), False, False
        if self._catch_ups is not None and subscription.is_replayed:
            at = self._catch_ups.archive_of(subscription)
        prefetch = subscription.prefetch if self._contracts.quality is not None else 0
        is_narrowed = subscription.rights is not None
        return Grant(subscription.number, lease, given, prefetch, subscription.is_replayed, *at, narrowed=is_narrowed)

    def _open(self, key: Key, subscription: Subscription, duration: float, age: float, elapsed: float) -> Lease | None:
        """Under the lock: a subscription that is new here; the lease of one by e-mail. Raises as `subscribe`; no state
        is left then."""
        request = subscription.request
        session = self._tables.session(key[0]) if request.direct else None  # its lease may have run out meanwhile
        if len(self._tables.subscriptions) >= self._most:
            raise OversizeError(f"the delegate holds its limit of {len(self._tables.subscriptions)} subscriptions")
        let_in = self._tables.let_in(subscription, self._tables.topics.find(request.entries))
        self._tables.check_cost(subscription, let_in)
        now = self._tables.clock()
        opened = min(session.opened, now - elapsed) if session is not None else now
        since = opened - age if age > NOT_BEFORE else math.inf
        subscription.since = since if age > NOT_BEFORE else -math.inf
        lease = None
        if session is None:
            lease = self._mail.grant(subscription, key, duration)
        subscription.number = self._tables.next_number()
        if session is not None:
            first = self._tables.buffers.first_since([topic.buffer for topic in let_in], since)
            self._open_queue(session, subscription, first)
            self._tables.charge(subscription)
        self._tables.subscriptions[key] = subscription
        self._events.tell_subscription("created", subscription)
        if request.recipients:
            self._mail.open(subscription)
        self._tables.waiting.add(key, request.entries)
        marks, lost = self._tables.put_in(subscription, let_in, since)
        for cause, count in lost.items():
            if count and session is not None:
                session.lose(subscription, cause, count)
        narrowed = narrowing(subscription, let_in)
        peer = subscription.caller.place.peer if subscription.caller is not None else ""
        if subscription.is_replayed:
            marks = [(topic, mark) for topic, mark in marks if topic.is_partly_kept]  # the archive has all the others
        self.late_joiners.welcome(subscription, session, marks, since, peer, narrowed)
        if subscription.is_replayed and self._catch_ups is not None:
            self._catch_ups.begin(key[0], subscription)
        self._tables.changed.notify_all()  # whoever stops now sees that it is catching up
        return lease

    def _open_queue(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Under the lock: that of a subscription that begins in the past is filled by the archive, too. `first`: the
        position of the first object that it may have if it begins with the present."""
        request = subscription.request
        if self.history is not None and self._catch_ups is None:  # another platform's, asked alone
            session.add(subscription, held=True)
            return
        if request.durable:
            self._attach(session, subscription, first)
        elif self._catch_ups is None or request.start.kind == "new":
            session.add(subscription, held=True)
            return
        assert self._catch_ups is not None
        subscription.is_replayed = True
        self._catch_ups.open(session, subscription, first)

    def _attach(self, session: SubscriberSession, subscription: Subscription, first: int) -> None:
        """Under the lock: a durable one comes, perhaps again. Raises AccessDeniedError, ConfigurationError,
        StorageError."""
        if self._catch_ups is None:
            raise ConfigurationError(
                "a durable subscription needs an archive, and there is none here", hint="Set [archive] folder"
            )
        self._catch_ups.attach(session, subscription, first)
        for key, other in list(self._tables.subscriptions.items()):
            if other.durable is subscription.durable:  # its process is gone, or has it by another id as well
                self.forget(key)
        self._registrations.keep_wanted()

    def unsubscribe(self, right: str, uid: str, *, administer: bool = False) -> None:
        """Cancel a subscription: nothing is delivered to it once this has returned.

        `right` is the session id, or the lease id of an e-mail-only one; an administrator needs neither. Raises
        UnknownUidError.
        """
        with self._tables.lock:
            mailed = self._tables.subscriptions.get(("mail", uid))
            if (right, uid) in self._tables.subscriptions and right != "mail":
                key = (right, uid)
            elif mailed is not None and (administer or compare_digest(right.encode(), mailed.lease_id.encode())):
                key = ("mail", uid)
            else:
                raise UnknownUidError(f"no subscription {uid} here", uid=uid)
            durable = self._tables.subscriptions[key].durable
        self.forget(key)
        if durable is not None and self._catch_ups is not None:
            self._catch_ups.durables.cancel(durable)

    def cancel(self, uid: str) -> int:
        """An administrator cancels a subscription, whosesoever it is; in how many sessions it stood (an application's
        queue and its e-mail are two). Its subscriber is told that something is lost (`cancelled`, number unknown), and
        gets no more of it. Raises UnknownUidError."""
        with self._tables.lock:
            found = {key: s for key, s in self._tables.subscriptions.items() if key[1] == uid}
            sessions = {owner: self._tables.sessions.get(owner) for owner, _ in found}
            for subscription in found.values():  # first: what is published from now on is not for them
                self._tables.take_out(subscription)
        if not found:
            raise UnknownUidError(f"no subscription {uid} here", uid=uid)
        for key, subscription in found.items():
            if (session := sessions[key[0]]) is not None:
                session.end(subscription, Cause.CANCELLED, CANCEL_SECONDS)
            self.forget(key)
            if subscription.durable is not None and self._catch_ups is not None:
                self._catch_ups.durables.cancel(subscription.durable)
        return len(found)

    def forget(self, key: Key, cause: Cause = Cause.CANCELLED, of: SubscriberSession | None = None) -> None:
        """A subscription has ended, perhaps with its session (`of`); nothing is delivered to it from now on."""
        with self._tables.lock:
            subscription = self._tables.subscriptions.pop(key, None)
            if subscription is None:
                return
            self._events.tell_subscription("removed", subscription, of)
            self._tables.ending.append(subscription)
            self._contracts.end(subscription.contract)
            self._mail.close(subscription)
            self._tables.waiting.remove(key)
            self._tables.take_out(subscription)
            self._contracts.offers.forget(subscription)
            self.late_joiners.forget(subscription)
            self._tables.refund(subscription)
            self._contracts.quota.give_back(subscription.share)
            if subscription.durable is not None and self._catch_ups is not None:
                self._catch_ups.detach(key[0], subscription)
            session = self._tables.sessions.get(key[0])
        if session is not None:
            leave = session.expel if cause is Cause.REFUSED else session.remove
            lost = leave(subscription)
            if subscription.durable is None:
                subscription.lost[cause] += lost
            else:
                subscription.matched -= lost  # it comes again
        subscription.lost[cause] += self._mail.dispatcher.cancel(subscription)
        with self._tables.lock:
            self._tables.ending.remove(subscription)
            self._tables.account.close_subscription(subscription)
            is_durable = subscription.durable is not None
            refused = [each for each in self._tables.sessions.values() if is_durable and each.was_refused]
        for each in refused:
            each.ask_again()  # who wanted it may have it now
        if key[0] == "mail" and self._mail.store is not None:
            self._mail.store.forget(key[1])
