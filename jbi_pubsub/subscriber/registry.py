"""Subscriptions registered with one delegate: brought there by the session's thread, and told what becomes of them.

What is decided under the lock (remote.py) is done here after it: calls, leases of mail, losses that are told.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection
from typing import Final

from jbi_pubsub.core.backoff import jitter
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    JbiError,
    OversizeError,
    ProtocolError,
    WireError,
    rebuild,
    report,
)
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.renewal import RENEW_AT
from jbi_pubsub.protocol.replies import Grant, SubscribeReply
from jbi_pubsub.protocol.requests import NOT_BEFORE
from jbi_pubsub.protocol.services import SUBSCRIBE_AT_ONCE

from .flows import DeliveryFlow, FlowTable, TimedFlow
from .link import SessionLink
from .placed import PlacedFlow, PlacedSubscription
from .remote import WITHDRAWN, RemoteEvent, RemoteState, RemoteSubscription, RemoteSubscriptions
from .subscription import LocalSubscription

log = logging.getLogger("jbi_pubsub.subscriber")

REFUSED_AGAIN: Final = 60.0
"""Seconds after which what a delegate has refused is asked for again: there may be room by then. A delegate that is
full for a thousand subscribers is asked 17 times a second."""

ASK_FIRST: Final = 100
"""Subscriptions in one call as long as nobody knows how long that takes; then twice as many each time."""

QUICK_SECONDS: Final = 0.5
"""A call that takes longer, over a slow link or at a busy delegate, is followed by one of ASK_FIRST again."""

LOOK_SECONDS: Final = 0.1
"""Before the second look whether publishers of a delegate that is dead have gone on elsewhere; then twice as long each
time: at ten thousand subscriptions a look takes some ms."""

ASK_SECONDS: Final = 3.0
"""Within which those who were refused ask again when a delegate says that its rules have changed."""


class RemoteRegistry:
    """See the module. The link's condition covers all state."""

    def __init__(self, link: SessionLink, flows: FlowTable) -> None:
        self.remotes = RemoteSubscriptions(flows)
        self._link = link
        self._flows = flows
        self.ask_at = math.inf
        """When the refused ones are asked for again (monotonic seconds)."""
        self._at_once = ASK_FIRST

    # -- wishes -------------------------------------------------------------------------------------------------

    def want(self, subscription: LocalSubscription, *, is_expected: bool) -> None:
        """Under the lock: have it stand there."""
        self._mark_to_cancel(self.remotes.want(subscription, is_expected=is_expected))
        self._link.demand()

    def unwant(self, subscription: LocalSubscription) -> bool:
        """Cancel it there; whether the delegate has ended it. Waits for its answer, so that nothing is delivered
        afterwards."""
        with self._link.changed:
            flow = self.remotes.unwant(subscription)
            right = self._mark_to_cancel(flow)
            if flow is None:
                return False
            self.remotes.ending.add(subscription.uid)
        try:
            return self._cancel_flow(flow, right)
        finally:
            with self._link.changed:
                self.remotes.ending.discard(subscription.uid)
                self._link.demand()  # what waited for that

    def amend(self, uid: str) -> None:
        """A subscription has other terms: have it stand by these, if it stands."""
        with self._link.changed:
            if (record := self.remotes.get(uid)) is not None:
                record.why = None
                if record.state is RemoteState.REFUSED:
                    record.happen(RemoteEvent.RETRY)
            self._link.demand()

    def has_amended(self, uid: str) -> bool | None:
        """Whether a subscription stands there by its last terms; None: it does not stand there."""
        with self._link.changed:
            record = self.remotes.get(uid)
            if record is None or record.state in (RemoteState.ASKED, RemoteState.DROPPED):
                return None if record is None else False
            return not record.is_to_ask if record.stands else None

    def needs_session(self) -> bool:
        """Under the lock: whether one that is wanted needs a session; mail alone does not."""
        return any(each.is_wanted and each.subscription.request.direct for each in self.remotes)

    # -- bringing them there ------------------------------------------------------------------------------------

    def reconcile(self, session_id: str) -> None:
        """Have the delegate cancel, register and amend what is to be."""
        with self._link.changed:
            if time.monotonic() >= self.ask_at:
                for each in self.remotes:
                    each.was_refused = each.state is RemoteState.REFUSED
                self.ask_at = math.inf
                self.remotes.retry()
            to_cancel, to_ask = self.remotes.due()
        for uid, right in to_cancel.items():
            if not _is_answer(_unsubscribe(self._link, right, uid)):
                raise WireError(f"no answer to the cancellation of subscription {uid}")
            with self._link.changed:
                self.remotes.confirm(uid, right)
        while to_ask:
            began, size, self._at_once = time.monotonic(), self._at_once, ASK_FIRST  # also after one that fails
            self._subscribe(session_id, to_ask[:size])
            to_ask = to_ask[size:]
            if time.monotonic() - began < QUICK_SECONDS:
                self._at_once = min(2 * size, SUBSCRIBE_AT_ONCE)

    def _subscribe(self, session_id: str, records: list[RemoteSubscription]) -> None:
        with self._link.changed:
            asked = self.remotes.ask(records)
        try:
            if asked:
                self._ask_for(session_id, asked)
        finally:
            with self._link.changed:
                self.remotes.miss(asked)

    def _ask_for(self, session_id: str, records: list[RemoteSubscription]) -> None:
        link = self._link
        revisions = [each.subscription.terms.revision for each in records]
        requests = [each.subscription.request_at(link.ref.service_id) for each in records]
        ages = [self._age(each.subscription, session_id) for each in records]
        try:
            answers = link.proxy.subscribe(session_id, requests, link.config.lease.mail, ages, link.claims)
        except (ProtocolError, OversizeError) as exc:
            if len(records) > 1:  # one of them, or all together: the others are not to suffer for it
                half = len(records) // 2
                self._ask_for(session_id, records[:half])
                self._ask_for(session_id, records[half:])
                return
            answers = (SubscribeReply(error=report(exc)),)
        if len(answers) != len(records):
            answers = tuple(SubscribeReply(error=report(ProtocolError("not an answer for each"))) for _ in requests)
        for record, revision, answer in zip(records, revisions, answers, strict=True):
            record.subscription.note_contradictions(link.ref.service_id, answer)
            if answer.granted is None:
                why = rebuild(answer.error) if answer.error else ProtocolError("no answer")
                self._take_refusal(record, revision, why)
            elif answer.granted.number == record.expelled:
                self._take_refusal(record, revision, AccessDeniedError(WITHDRAWN))
            elif not self._has_kept(record, answer.granted, revision):
                self._stand(session_id, record, answer.granted, revision)

    def _age(self, subscription: LocalSubscription, session_id: str) -> float:
        """Seconds that it had stood when the session was opened; see Delegate.subscribe.

        Two clocks are tied by the opening: the delegate knows when it did that, we know when its answer came. So an age
        is too long by the way of that answer at most, and never too short."""
        has_stood = self._link.ref.service_id in subscription.stood_at
        if (since := subscription.terms.since if has_stood else subscription.stand()) is None:
            return NOT_BEFORE
        return (self._link.proxy.opened_at if session_id else time.monotonic()) - since

    def _has_kept(self, record: RemoteSubscription, granted: Grant, revision: int) -> bool:
        """Whether one that stands goes on under its number, by the terms of that revision."""
        with self._link.changed:
            flow = record.flow if record.stands else None
            if flow is None or flow.number != granted.number:
                return False
            record.happen(RemoteEvent.GRANT)
            flow.revision = revision
        flow.take_quality(granted.qos)
        return True

    def _flow(self, subscription: LocalSubscription, granted: Grant, revision: int) -> DeliveryFlow:
        given = (subscription, granted.number, self._flows, granted.lease, granted.prefetch)
        if granted.placed and isinstance(subscription, PlacedSubscription):
            subscription.placed_at(self._link.address, granted)
            flow: DeliveryFlow = PlacedFlow(self._link.ref.service_id, *given)
        else:
            if subscription.request.start.kind != "new":
                log.warning(
                    "subscription %s begins now at %s: there is no archive, nothing is kept",
                    subscription.uid, self._link.address,
                )  # fmt: skip
            flow = TimedFlow(*given) if granted.prefetch else DeliveryFlow(*given)
        flow.is_placed, flow.revision = granted.placed, revision
        flow.archive = next(iter(granted.incarnations), "")
        flow.take_quality(granted.qos)
        return flow

    def _stand(self, session_id: str, record: RemoteSubscription, granted: Grant, revision: int) -> None:
        link, subscription = self._link, record.subscription
        flow = self._flow(subscription, granted, revision)
        subscription.stand_at(link.ref.service_id, flow.consume)
        with link.changed:
            link.is_dirty = link.is_dirty or revision != subscription.terms.revision  # amended meanwhile
            subscription.is_narrowed = subscription.is_narrowed or granted.narrowed
            if subscription.request.direct and not link.is_open(session_id):
                self.remotes.lose_granted(record, flow)  # the next session has it again
                return
            self._flows.highest = max(self._flows.highest, granted.number)
            self.remotes.grant(record, flow)
            is_to_cancel = not record.stands
            right = self._mark_to_cancel(flow) if is_to_cancel else ""
            link.changed.notify_all()
        if is_to_cancel:
            self._cancel(right, subscription.uid)
        elif granted.lease is not None:
            self._manage_mail(record, flow, granted.lease)

    def _manage_mail(self, record: RemoteSubscription, flow: DeliveryFlow, lease: Lease) -> None:
        link, uid = self._link, flow.subscription.uid
        link.manage(
            uid,
            lease.duration,
            lambda: link.proxy.renew(lease.lease_id, link.config.lease.mail).duration,
            lambda _why: self._lapse(flow),
            lambda: record.stands and record.flow is flow,
        )

    def _lapse(self, flow: DeliveryFlow) -> None:
        with self._link.changed:
            if self.remotes.lapse(flow):
                self._link.demand()

    # -- refusals -----------------------------------------------------------------------------------------------

    def _take_refusal(self, record: RemoteSubscription, revision: int, why: JbiError) -> None:
        """Tell whoever has made an amendment that it is refused: he takes it back; if he waits no more the subscription
        ends."""
        with self._link.changed:
            stands, is_lost = record.stands, record.state is RemoteState.LOST
        terms = record.subscription.terms
        if is_lost:
            return  # the next session is asked
        if stands and (terms.refuse(revision, why) or revision != terms.revision):
            with self._link.changed:
                if record.stands:
                    record.happen(RemoteEvent.KEEP)
                    return
        self._refuse(record, why)

    def _refuse(self, record: RemoteSubscription, why: JbiError) -> None:
        """Told to the subscription the first time that it is refused here: said once is enough."""
        with self._link.changed:
            if not record.allows(RemoteEvent.REFUSE):
                return
            flow = self.remotes.refuse(record, why)
            right = self._mark_to_cancel(flow)
            is_told = record.is_wanted and not record.was_refused
            if record.is_wanted:
                self.ask_at = min(self.ask_at, time.monotonic() + REFUSED_AGAIN)
        if flow is not None:
            self._cancel_flow(flow, right)
        if is_told:
            self._tell_refusal(record, why)

    def _tell_refusal(self, record: RemoteSubscription, why: JbiError) -> None:
        record.subscription.lose(Cause.REFUSED, 0, f"by {self._link.address}: {why}")

    def refuse_all(self, why: AccessDeniedError) -> float:
        """We may not be there: what is wanted is told so, once; when it is asked for again (monotonic seconds). Mail
        that stands, or may stand, goes on."""
        with self._link.changed:
            records = [each for each in self.remotes if each.is_wanted]
            kept = [each for each in records if each.may_stand]
            refused = [each for each in records if not each.may_stand and each.state is not RemoteState.REFUSED]
            to_tell = [each for each in kept if not each.was_refused]
            for each in kept:
                each.why, each.was_refused = why, True
            self.ask_at = math.inf
        for record in to_tell:
            self._tell_refusal(record, why)
        for record in refused:
            self._refuse(record, why)
        return time.monotonic() + REFUSED_AGAIN * jitter()

    def retry_all(self) -> None:
        """Under the lock: those that were refused are asked for again, and not told a second time."""
        for each in self.remotes:
            each.was_refused = each.was_refused or each.state is RemoteState.REFUSED
        self.remotes.retry()

    def ask_again(self) -> None:
        """The delegate's rules have changed: what it has refused is asked for again soon."""
        with self._link.changed:
            if any(each.state is RemoteState.REFUSED for each in self.remotes):
                soon = time.monotonic() + random.uniform(0.0, ASK_SECONDS)  # noqa: S311  # jitter, not a secret
                self.ask_at = min(self.ask_at, soon)
            self._link.changed.notify_all()

    def deny(self, uid: str, why: JbiError) -> None:
        """Note why a subscription that stands is not evaluated for some registration."""
        with self._link.changed:
            if (record := self.remotes.get(uid)) is not None:
                record.why = why

    def expel(self, flow: DeliveryFlow) -> None:
        """The delegate has ended a subscription, and has told it: it is asked for again later."""
        with self._link.changed:
            if not self.remotes.expel(flow):
                return
            self.ask_at = min(self.ask_at, time.monotonic() + REFUSED_AGAIN)
        flow.subscription.settle(flow.consume)
        self._link.renewals.remove((self._link, flow.subscription.uid))

    # -- ends ---------------------------------------------------------------------------------------------------

    def _mark_to_cancel(self, flow: DeliveryFlow | None) -> str:
        """Under the lock: what stood under that flow is to be cancelled; by which right."""
        if flow is None:
            return ""
        right = flow.lease.lease_id if flow.lease is not None else self._link.session_id
        self.remotes.to_cancel[flow.subscription.uid] = right
        return right

    def _cancel_flow(self, flow: DeliveryFlow, right: str) -> bool:
        self._link.renewals.remove((self._link, flow.subscription.uid))
        return self._cancel(right, flow.subscription.uid)

    def _cancel(self, right: str, uid: str) -> bool:
        """Cancel it at the delegate; whether that has ended it. If nobody answers, the session's thread tries again:
        nothing else would end a subscription whose session goes on."""
        why = _unsubscribe(self._link, right, uid)
        with self._link.changed:
            if _is_answer(why):
                self.remotes.confirm(uid, right)
                self._link.changed.notify_all()
            else:
                self._link.demand()
        return why is None


def _unsubscribe(link: SessionLink, right: str, uid: str) -> JbiError | None:
    """Cancel a subscription at the delegate; why it is not cancelled there."""
    try:
        link.proxy.unsubscribe(right, uid)
    except JbiError as exc:
        log.debug("%s: subscription %s is not cancelled: %s", link.name, uid, exc)
        return exc
    return None


def _is_answer(why: JbiError | None) -> bool:
    """Whether the delegate has answered."""
    return not isinstance(why, WireError) or isinstance(why, ProtocolError)


class SessionLosses:
    """Losses of a session that its delegate does not tell in the deliveries."""

    def __init__(
        self, link: SessionLink, remotes: RemoteSubscriptions, matched: Callable[[str], Collection[str]]
    ) -> None:
        """`matched(uid)`: the registrations that a subscription matches."""
        self._link = link
        self._remotes = remotes
        self._matched = matched
        self.ask_at = math.inf
        """When the delegate is asked what the mail lacks that it sends (monotonic seconds)."""

    def tell(self, cause: Cause, why: str, *, wait: float = 0.0) -> None:
        """Tell what stood there when the session was lost that it may have lost something. Whose death it was is the
        cause. `wait`: seconds within which objects from elsewhere may show that it has not, or what."""
        with self._link.changed:
            lost = self._remotes.take_lost()
        registrations = {flow: self._matched(flow.subscription.uid) for flow in lost}
        until, pause, lacks = time.monotonic() + wait, LOOK_SECONDS, lost
        while lacks := [flow for flow in lacks if flow.may_lack(registrations[flow])]:
            if (left := until - time.monotonic()) <= 0 or self._link.left.wait(min(left, pause)):
                break
            pause *= 2
        for flow in lost:
            flow.subscription.settle(flow.consume)
        for flow in lacks:
            flow.subscription.lose(cause, 0, why)

    def missed(self) -> list[LocalSubscription]:
        """Under the lock: those that never stood there, and for which there were objects perhaps."""
        server = self._link.ref.service_id
        return [
            each.subscription
            for each in self._remotes
            if each.is_expected and each.is_wanted and each.subscription.request.direct
            and server not in each.subscription.stood_at
        ]  # fmt: skip

    def ask_for_mail(self) -> None:
        """Ask for losses of e-mail-only subscriptions: no session is there for them in which they would be told."""
        link, now = self._link, time.monotonic()
        with link.changed:
            mailed = [(f.subscription, f.lease.lease_id) for f in self._remotes.standing() if f.lease is not None]
            is_due = now >= self.ask_at
            if is_due or not mailed or self.ask_at == math.inf:
                self.ask_at = now + RENEW_AT * link.config.lease.subscriber if mailed else math.inf
        if not is_due:
            return
        try:
            for at in range(0, len(mailed), SUBSCRIBE_AT_ONCE):
                some = mailed[at : at + SUBSCRIBE_AT_ONCE]
                lost = link.proxy.mail_losses([lease_id for _, lease_id in some])
                for subscription, lease_id in some:
                    totals = lost.get(subscription.uid, {})
                    subscription.losses.add_mail(lease_id, totals, f"by mail from {link.address}")
        except JbiError as exc:  # away, or of a version that does not tell: the lease is what counts
            log.debug("%s: delegate %s does not say what mail is lost: %s", link.name, link.address, exc)
