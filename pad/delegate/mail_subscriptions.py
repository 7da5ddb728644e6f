"""A delegate's e-mail subscriptions: their leases, the links in their mails, reminders, and what is kept on disk.

One by e-mail alone has a lease of its own and outlives its subscriber's process. Decided under the delegate's lock,
written to disk after it.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ConfigurationError, JbiError, OversizeError, StorageError, UnknownUidError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.wall_clock import WallClock
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.contracts import DelegateCore, holder_of
from jbi_pubsub.pad.delegate.store import (
    UNSUBSCRIBED_MOST,
    DelegateOptions,
    KeptSubscription,
    SubscriptionStore,
    caller_of,
    whose_of,
)
from jbi_pubsub.pad.delegate.tables import Key
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.mail.reminder import Schedule
from jbi_pubsub.pad.mail.smtp import check_password
from jbi_pubsub.pad.model.rights import Rights
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.mail_links import LinkAction, recipient_of, uid_of
from jbi_pubsub.protocol.requests import SubscriptionRequest, check_request
from jbi_pubsub.protocol.status.delegate import MailSubscription

log = logging.getLogger("jbi_pubsub.pad")


class MailSubscriptions:
    """Those with recipients, by e-mail alone or beside a subscriber's queue."""

    def __init__(
        self, core: DelegateCore, options: DelegateOptions, *, name: str, forget: Callable[[Key], None]
    ) -> None:
        """`forget` ends a subscription. Raises StorageError, ConfigurationError."""
        config, self._tables, self._contracts, self._events = core
        check_password(config.mail, insecure=config.tls.insecure)
        self._landlord = self._tables.leases.landlord
        self._forget = forget
        self._term = config.lease.mail
        self._wall = options.wall
        self._wall_clock = WallClock(options.wall, self._tables.clock)
        self._most = config.lease.maximum
        self.store: Final = options.store
        self._uids: dict[str, str] = {}
        """Ids of those by e-mail alone, by lease."""
        self._by_uid: dict[str, list[Subscription]] = {}
        """Subscriptions of one id: one bound to each process, and one that is not."""
        self._unsubscribed: Cache[tuple[str, str], None] = Cache(UNSUBSCRIBED_MOST)
        """(subscription, recipient) of those who have, in that order; also of subscriptions that have ended."""
        if self.store is not None:
            self._unsubscribed.update(dict.fromkeys(self.store.unsubscribed()))
        self._schedule = Schedule(config.mail.reminder_seconds)
        quality = self._contracts.quality
        self.dispatcher: Final = MailDispatcher(
            config.mail,
            name=name,
            lost=self.lose,
            store=options.mails,
            wall=options.wall,
            link_rate=(lambda: quality.mail_rate) if quality is not None else lambda: 0.0,
        )

    def start(self) -> None:
        """Take over what was kept, and begin to send. Raises StorageError."""
        if self.store is not None:
            wall = self._wall()
            found = self.store.load(wall)
            for kept in found:
                self._take_over(kept)
            if any(kept.ends - wall > self._most for kept in found):
                self._set_times(self.store)
        for ended in self.dispatcher.start():
            self._tables.account.add(matched=ended.offered, mailed=ended.mailed, lost=ended.lost)

    def _take_over(self, kept: KeptSubscription) -> None:
        """A subscription of our time before: its lease goes on, with no more than any gets, whatever the clock was
        then. One that nobody wants any more would have ended."""
        key = ("mail", kept.request.uid)
        if not self._is_wanted(kept.request):
            assert self.store is not None
            self.store.forget(kept.request.uid)
            return
        number = self._tables.next_number()
        try:
            subscription = compile_subscription(kept.request, owner="mail", number=number)
        except JbiError as exc:  # another version's, or its language is not installed any more
            log.error("e-mail subscription %s is not restored: %s", kept.request.uid, exc)
            return
        subscription.caller = caller_of(kept.whose)
        with contextlib.suppress(OversizeError):  # it was promised
            subscription.share = self._contracts.quota.take(subscription.caller, check_request(kept.request))
        subscription.rights = self._contracts.permissions.rights_of(subscription.caller)
        self._contracts.permissions.ask_all()  # the rules may be others than they were
        ends = self._tables.clock() + min(kept.ends - self._wall(), self._most)
        self._landlord.restore(kept.lease_id, lambda: self._forget(key), ends)
        self._uids[kept.lease_id] = kept.request.uid
        subscription.lease_id = kept.lease_id
        self._schedule.set(subscription, ends + kept.remind - kept.ends if kept.remind is not None else math.inf)
        subscription.contract, _ = self._contracts.open_for(subscription, _modest(kept.request.qos))
        self._tables.subscriptions[key] = subscription
        self.open(subscription)
        self._tables.waiting.add(key, kept.request.entries)
        self._contracts.offers.required_by(subscription)

    def grant(self, subscription: Subscription, key: Key, duration: float) -> Lease:
        """Under the lock: a lease for one by e-mail alone. Raises LeaseDeniedError."""
        now = self._tables.clock()
        lease = self._landlord.grant(lambda: self._forget(key), duration, now)
        subscription.lease_id = lease.lease_id
        self._uids[lease.lease_id] = subscription.uid
        self._schedule.set(subscription, self._schedule.moment(now, lease.duration))
        return lease

    def open(self, subscription: Subscription) -> None:
        """Under the lock. Whoever has unsubscribed stays so."""
        uid = subscription.uid
        self._by_uid.setdefault(uid, []).append(subscription)
        self.dispatcher.open(subscription)
        gone = [a for a in subscription.request.recipients if (uid, a) in self._unsubscribed]
        self.dispatcher.unsubscribe(subscription, gone)

    def close(self, subscription: Subscription) -> None:
        """Under the lock: it ends, and its lease."""
        if subscription.lease_id:
            self._uids.pop(subscription.lease_id, None)
            self._landlord.drop(subscription.lease_id)
        self._schedule.set(subscription, math.inf)
        others = [s for s in self._by_uid.pop(subscription.uid, ()) if s is not subscription]
        if others:
            self._by_uid[subscription.uid] = others

    def keep(self, subscription: Subscription, lease: Lease | None) -> None:
        """One that is new is on disk, if there is one, before it is acknowledged. Raises StorageError; it has ended
        then."""
        if lease is None or self.store is None:
            return
        wall, whose = self._wall(), whose_of(subscription.caller)
        told = _told_at(wall, self._schedule.moment(0.0, lease.duration))
        try:
            self.store.keep(KeptSubscription(subscription.request, lease.lease_id, wall + lease.duration, told, whose))
        except StorageError:
            self._forget(("mail", subscription.uid))  # what is not on disk is not promised
            raise
        if ("mail", subscription.uid) not in self._tables.subscriptions:  # it has ended meanwhile
            self.store.forget(subscription.uid)

    def keep_terms(self, known: Subscription) -> None:
        """Its new terms are on disk, too. Raises StorageError."""
        if known.lease_id and self.store is not None:
            self.store.amend(known.request)

    def hand_over(self, known: Subscription, caller: Caller | None, rights: Rights | None) -> None:
        """An e-mail subscription was asked for again: with another certificate it hangs on that one. Raises
        StorageError; it hangs on the old one then."""
        if not known.lease_id or caller is None or holder_of(known.caller) == caller.holder:
            return
        if self.store is not None:
            self.store.hand_over(known.uid, whose_of(caller))
        with self._tables.lock:
            if self._tables.subscriptions.get(("mail", known.uid)) is not known:
                return  # it has ended meanwhile
            known.caller, known.rights = caller, rights
            self._events.tell_subscription("updated", known)
            self._contracts.permissions.ask_all()  # other rules may hold for it
            before, (known.contract, _) = known.contract, self._contracts.open_for(known, _modest(known.request.qos))
            self._contracts.end(before)

    def lease_of(self, subscription: Subscription) -> Lease | None:
        """Lease of one by e-mail alone, with the time that is left; None for others."""
        if not subscription.lease_id:
            return None
        return Lease(subscription.lease_id, self._landlord.left(subscription.lease_id, self._tables.clock()))

    def check_wanted(self, request: SubscriptionRequest) -> None:
        """Raises ConfigurationError for one that nobody wants any more."""
        if not self._is_wanted(request):
            raise ConfigurationError(
                f"all recipients of subscription {request.uid} have unsubscribed",
                hint="If they ask for it, make a new one",
            )

    def _is_wanted(self, request: SubscriptionRequest) -> bool:
        """Not one by e-mail alone whose recipients have all unsubscribed."""
        with self._tables.lock:
            return request.direct or any((request.uid, a) not in self._unsubscribed for a in request.recipients)

    def follow(self, action: LinkAction, token: str) -> None:
        """Do what a link of a mail says (see protocol/mail_links.py): its recipient gets no more mail of the
        subscription, or its lease begins anew. When this returns it is on disk, if there is one; a second time changes
        nothing.

        Raises UnknownUidError for a subscription that is not here, and for a link that proves nothing alike;
        StorageError.
        """
        uid = uid_of(token)
        with self._tables.lock:
            named = list(self._by_uid.get(uid, ()))
        standing = {s: recipient for s in named if (recipient := recipient_of(token, action, s.request))}
        if action == "renew":
            standing = {s: a for s, a in standing.items() if s.lease_id and (uid, a) not in self._unsubscribed}
        if not standing:
            raise UnknownUidError("no subscription of this link here", uid=uid)
        for subscription, recipient in standing.items():
            if action == "unsubscribe":
                self._unsubscribe(subscription, recipient)
            else:
                self.renew(subscription.lease_id, self._term)

    def _unsubscribe(self, subscription: Subscription, recipient: str) -> None:
        """Its owner is told by the loss of each object that is not mailed; it ends if it is for nobody any more."""
        uid, request = subscription.uid, subscription.request
        with self._tables.lock:
            known = (uid, recipient) in self._unsubscribed
            self._unsubscribed[uid, recipient] = None
            self.dispatcher.unsubscribe(subscription, [recipient])
            wanted = self._is_wanted(request)
        if self.store is not None:  # again, when it is known: it may not have been written then
            self.store.unsubscribe(uid, recipient)
        if not known:
            log.info("subscription %s: %s has unsubscribed%s", uid, recipient, "" if wanted else ", the last recipient")
        if not wanted:
            self._forget(("mail", uid))

    def renew(self, lease_id: str, duration: float) -> Lease:
        """Renew the lease of a publisher, subscriber or e-mail subscription. Raises UnknownLeaseError."""
        with self._tables.lock:
            now, remind = self._tables.clock(), math.inf
            lease = self._tables.leases.renew(lease_id, duration, now)
            uid = self._uids.get(lease_id)
            if uid is not None:  # its recipients are reminded later
                subscription = self._tables.subscriptions["mail", uid]
                due = self._schedule.moment(now, lease.duration)
                self._schedule.set(subscription, due)
                self.dispatcher.withdraw(subscription)
                remind = due - now
        if uid is not None and self.store is not None:
            wall = self._wall()
            self.store.set_times([(uid, wall + lease.duration, _told_at(wall, remind))])
        return lease

    def renew_by_uid(self, uid: str, duration: float) -> Lease:
        """Renew the lease of an e-mail-only subscription for its administrator, who has no lease id. Raises
        UnknownUidError, LeaseDeniedError."""
        with self._tables.lock:
            found = self._tables.subscriptions.get(("mail", uid))
        if found is None:
            raise UnknownUidError(f"no e-mail subscription {uid[:64]} here", uid=uid[:64])
        return self.renew(found.lease_id, duration)

    def rows(self) -> list[MailSubscription]:
        """The e-mail-only subscriptions."""
        with self._tables.lock:
            now = self._tables.clock()
            return [
                s.status(MailSubscription, lease=round(self._landlord.left(s.lease_id, now), 1))
                for (owner, _), s in self._tables.subscriptions.items()
                if owner == "mail"
            ]

    def losses(self, lease_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """Objects that e-mail-only subscriptions have lost so far, by cause: of those with these leases that lack
        something."""
        with self._tables.lock:
            uids = [self._uids[lease_id] for lease_id in lease_ids if lease_id in self._uids]
            return {uid: dict(lost) for uid in uids if (lost := self._tables.subscriptions["mail", uid].lost)}

    def remind(self) -> None:
        """Tell those whose lease is about to end, and keep that they were told; when the wall clock was set, also when
        that is by now."""
        if self.store is not None and self._wall_clock.shift():
            self.dispatcher.writer.note_set()
            self._set_times(self.store)
        with self._tables.lock:
            now, wall = self._tables.clock(), self._wall()
            for subscription in self._schedule.take(now):
                self.dispatcher.remind(subscription, wall + self._landlord.left(subscription.lease_id, now))
            told = [uid for uid in self.dispatcher.reminded() if self._is_told(uid)]
        for uid in told:
            self._keep_told(uid)

    def _set_times(self, store: SubscriptionStore) -> None:
        """Have on disk when leases end, and their recipients are reminded, by the wall clock as it is."""
        with self._tables.lock:
            now, wall = self._tables.clock(), self._wall()
            times = [
                (uid, wall + self._landlord.left(lease_id, now), _told_at(wall - now, self._schedule.due(known)))
                for lease_id, uid in self._uids.items()
                if (known := self._tables.subscriptions.get(("mail", uid))) is not None
            ]
        try:
            store.set_times(times)
        except StorageError as exc:
            log.error("after a restart leases of e-mail subscriptions end by the clock as it was before: %s", exc)

    def _is_told(self, uid: str) -> bool:
        """Under the lock: its lease has not begun anew since its recipients were reminded."""
        subscription = self._tables.subscriptions.get(("mail", uid))
        return subscription is not None and subscription not in self._schedule

    def _keep_told(self, uid: str) -> None:
        try:
            if self.store is not None:
                self.store.reminded(uid)
        except StorageError as exc:
            log.error("after a restart the reminder of subscription %s will be repeated: %s", uid, exc)

    def lose(self, subscription: Subscription, cause: Cause, count: int, why: str) -> None:
        """Mails are lost: its subscriber is told, if he is here."""
        if why:
            facts = {"subscription": subscription.uid, "cause": cause.value, "count": count}
            log.warning("subscription %s: %d mails lost (%s): %s", subscription.uid, count, cause, why, extra=facts)
        session = self._tables.sessions.get(subscription.owner)
        if session is not None and session.lose(subscription, cause, count):
            return
        with self._tables.lock:
            if self._tables.subscriptions.get((subscription.owner, subscription.uid)) is subscription:
                subscription.lost[cause] += count
            else:
                self._tables.account.add(lost={cause: count})


def _modest(wish: Wish) -> Wish:
    """A wish that requires nothing: of a contract that stands, whatever it gets."""
    return msgspec.structs.replace(wish, require=())


def _told_at(wall: float, seconds: float) -> float | None:
    """When recipients are reminded, for the disk: in so many seconds, or never."""
    return wall + seconds if seconds < math.inf else None
