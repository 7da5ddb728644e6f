"""One subscriber process at one delegate or peer publisher: lease, subscriptions there, and the delivery connection.

Theory of operation: the session knows which subscriptions are wanted there and which stand. One thread brings the
second to the first; another owns the delivery connection and mends it. A cut shorter than the lease loses nothing:
the delegate keeps what was not acknowledged. If the delegate has forgotten us (restart, lease run out), a new session
is opened, everything is registered again, and the subscriptions are told that objects may be lost.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from jbi_pubsub.core.backoff import Backoff, jitter
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    BackPressureError,
    JbiError,
    OversizeError,
    ProtocolError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    rebuild,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import Progress
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.renewal import RENEW_AT, LeaseRenewalManager
from jbi_pubsub.core.spool import Spool
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.endpoint import DATA, dial
from jbi_pubsub.core.wire.stream import WINDOW_BATCHES, Hello, Line, Receiver, greet
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import ArchiveEntry
from jbi_pubsub.protocol.replies import Finished, Granted, Opened, QueryOpened, Subscribed
from jbi_pubsub.protocol.requests import NOT_BEFORE
from jbi_pubsub.protocol.services import SUBSCRIBE_AT_ONCE, Claims, HistoryProxy, SubscriptionsProxy

from .deliveries import DeliveryReader
from .flows import DeliveryFlow, FlowTable, PlacedFlow, TimedFlow
from .query import QueryPart
from .signed import SessionSignatures, SignatureCheck
from .subscription import LocalSubscription, PlacedSubscription

log = logging.getLogger("jbi_pubsub.subscriber")

BACKOFF_FIRST: Final = 0.05
BACKOFF_MOST: Final = 5.0

REFUSED_AGAIN: Final = 60.0
"""Seconds after which what a delegate has refused is asked for again: there may be room by then. A delegate that is
full for a thousand subscribers is asked 17 times a second."""

SHOWN_SECONDS: Final = 5.0
"""Within which publishers of a delegate that is dead go on elsewhere: their numbers tell what is lost of theirs."""
LOOK_SECONDS: Final = 0.1
"""Between two looks at that."""

ASK_SECONDS: Final = 3.0
"""Within which those who were refused ask again when a delegate says that its rules have changed."""

LEAVE_SECONDS: Final = 1.0
"""For the delegate to read the last of it when we leave."""
ACK_AFTER: Final = WINDOW_BATCHES // 2
"""Batches that are acknowledged together while they come one upon the other: as many again may be under way."""


class _ReplacedError(JbiError):
    """A delegate was started again at its old address: the lookup service lists the new one, it gets a session of its
    own, and with one for the old one as well everything would come twice. Fact `server`: the id of who answers."""

    code = "replaced"


class DelegateSession:
    """See the module. `_changed` covers all state."""

    def __init__(
        self,
        ref: ServiceRef,
        config: Config,
        renewals: LeaseRenewalManager,
        *,
        name: str,
        is_listed: Callable[[str], bool],
        ended: Callable[[DelegateSession], None],
        item: Callable[[str], ServiceItem | None] = lambda uid: None,  # noqa: ARG005  # nobody knows
        matched: Callable[[str], Collection[str]] = lambda uid: (),  # noqa: ARG005  # as above
        signatures: SignatureCheck | None = None,
        spool: Spool | None = None,
    ) -> None:
        """`is_listed(service id)`: whether a lookup service still knows the delegate; `ended` is called once;
        `item(uid)`: what the lookup services say of a registration; `matched(uid)`: which registrations a subscription
        matches; `signatures`: who looks at them; `spool`:
        where large payloads are kept, with those of other sessions."""
        self.ref = ref
        self._config = config
        self._claims = Claims(config.client.user, config.client.role)
        self._renewals = renewals
        self._name = name
        self._is_listed = is_listed
        self._ended = ended
        self._matched = matched
        self._item = item
        self._proxy = SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
        self._history = HistoryProxy(ref, config.security(), timeout=config.lookup.timeout)
        self._changed = threading.Condition()
        self._wanted: dict[str, LocalSubscription] = {}
        self._standing: dict[str, DeliveryFlow] = {}
        self._refused: dict[str, str] = {}
        self._denied: dict[str, JbiError] = {}
        """Why; and of those that stand, but are not evaluated for some registration."""
        self._refused_before: set[str] = set()
        """When they were asked for last: said once is enough."""
        self._ask_refused = math.inf
        """When the refused ones are asked for again (monotonic seconds)."""
        self._ask_losses = math.inf
        """When the delegate is asked what the mail lacks that it sends (monotonic seconds)."""
        self._cancelled: dict[str, str] = {}
        """What the delegate has not confirmed the end of, with the right to it."""
        self._asked: frozenset[str] = frozenset()
        """Those that the delegate is asked for at this moment."""
        self._unsure: dict[str, LocalSubscription] = {}
        """What the delegate has not answered to: it may stand there or not."""
        self._parts: dict[str, QueryPart] = {}
        """Queries that are asked here, and have not ended."""
        self._unasked: dict[int, str] = {}
        """Numbers of queries that are not wanted any more and were not cancelled yet, with their session."""
        self._untold: list[DeliveryFlow] = []
        """What stood there when the session was lost, until it is known whether the delegate is gone as well."""
        self._expected: set[str] = set()
        """Subscriptions that are older than what they are to stand for there: it may have had objects for them."""
        self.flows = FlowTable(self._changed, self._expects_answers)
        kept = spool or config.link.spooling()
        checks = None if signatures is None else SessionSignatures(signatures, ref, self._proxy, item)
        self.reader = DeliveryReader(self.flows, self, config, kept, checks)
        self._opened: Opened | None = None
        self._receiver: Receiver | None = None
        self._lost = False
        self._doubted = False
        """Its lease should have run out, and the delegate has not said so: it may not have listened."""
        self._parted = False
        """The delegate has said that nothing comes any more, and told what was lost."""
        self._dirty = False
        self._stopping = threading.Event()
        self._left = threading.Event()
        """It is closed: nobody is to be told anything."""
        self._threads = [
            threading.Thread(target=self._keep, name=f"{name}-session-{ref.service_id[:8]}", daemon=True),
            threading.Thread(target=self._receive_all, name=f"{name}-receive-{ref.service_id[:8]}", daemon=True),
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def want(self, subscription: LocalSubscription) -> bool:
        """Have the subscription stand there from now on. False: the session has ended, another one has to do it."""
        is_expected = subscription.has_begun and not (isinstance(subscription, PlacedSubscription) and self._archives())
        with self._changed:
            if self._stopping.is_set():
                return False
            self._wanted[subscription.uid] = subscription
            if is_expected:
                self._expected.add(subscription.uid)
            self._dirty = True
            self._changed.notify_all()
            return True

    def _archives(self) -> bool:
        """Whether an archive is listed there: what it has is not lost with it."""
        item = self._item(self.ref.service_id)
        return item is not None and any(rep.cls.name == ArchiveEntry.entry_name for rep in item.entries)

    def unwant(self, uid: str, *, cancel_mail: bool = True) -> None:
        """Cancel it there. Waits for the delegate's answer, so that nothing is delivered afterwards."""
        with self._changed:
            self._wanted.pop(uid, None)
            self._expected.discard(uid)
            self._refused.pop(uid, None)
            self._denied.pop(uid, None)
        self._end_standing(uid, cancel_mail=cancel_mail)

    def _end_standing(self, uid: str, *, cancel_mail: bool = True) -> None:
        """Cancel what stands there."""
        with self._changed:
            standing = self._standing.pop(uid, None)
            if standing is not None:
                self.flows.remove(standing.number)
            session_id = self._opened.uid if self._opened else ""
        if standing is None:
            return
        self._renewals.remove((self, uid))
        if standing.lease is None or cancel_mail:
            self._cancel(standing.lease.lease_id if standing.lease else session_id, uid)

    def ask(self, part: QueryPart) -> bool:
        """Have a query opened there; the part is told. False: the session has ended, another one has to do it."""
        with self._changed:
            if self._stopping.is_set():
                return False
            part.at = self
            self._parts[part.uid] = part
            self._dirty = True
            self._changed.notify_all()
            return True

    def unask(self, part: QueryPart) -> None:
        """It is not wanted any more. The delegate is told by the session's thread."""
        with self._changed:
            self._parts.pop(part.uid, None)
            number = part.opened.number if part.opened is not None else 0
            if self._opened is not None and self.flows.remove(number) is not None:
                self._unasked[number] = self._opened.uid
                self._dirty = True
            self._changed.notify_all()

    def progress(self, part: QueryPart) -> Progress | None:
        """How a query is getting on there. Raises WireError."""
        with self._changed:
            session_id = self._opened.uid if self._opened else ""
        if part.opened is None or not session_id:
            return None
        try:
            return self._history.progress(session_id, part.opened.number)
        except UnknownUidError:  # its end is on the way
            return None

    def _cancel(self, right: str, uid: str) -> None:
        """Cancel it at the delegate; if nobody answers, the session's thread tries again: nothing else would end a
        subscription whose session goes on."""
        if not self._is_cancelled(right, uid):
            with self._changed:
                self._cancelled[uid] = right
                self._dirty = True
                self._changed.notify_all()

    def _is_cancelled(self, right: str, uid: str) -> bool:
        """Cancel it at the delegate; whether that has answered."""
        try:
            self._proxy.unsubscribe(right, uid)
        except JbiError as exc:
            log.debug("%s: subscription %s is not cancelled: %s", self._name, uid, exc)
            return not isinstance(exc, WireError) or isinstance(exc, ProtocolError)
        return True

    def stands(self, uid: str) -> bool:
        """Whether the delegate has the subscription now."""
        with self._changed:
            return uid in self._standing

    def amend(self, uid: str) -> None:
        """A subscription has other terms: have it stand by these, if it stands."""
        with self._changed:
            self._refused.pop(uid, None)
            self._denied.pop(uid, None)
            self._dirty = True
            self._changed.notify_all()

    def has_amended(self, uid: str) -> bool | None:
        """Whether a subscription stands there by its last terms; None: it does not stand there."""
        with self._changed:
            standing = self._standing.get(uid)
            if uid in self._asked:
                return False
            return standing.revision == standing.subscription.revision if standing is not None else None

    def quality(self, uid: str) -> GrantedQos | None:
        """What the subscription has got there by now; None where it does not stand."""
        with self._changed:
            standing = self._standing.get(uid)
            return standing.quality if standing is not None else None

    def denied(self, uid: str) -> JbiError | None:
        """Why it does not stand there, if it was refused; or stands, and is not evaluated for some registration."""
        with self._changed:
            return self._denied.get(uid)

    def close(self, timeout: float = 5.0) -> None:
        """Leave: direct subscriptions end, e-mail ones live on by their leases."""
        self._stopping.set()
        self._left.set()
        self._renew_nothing()
        with self._changed:
            opened, receiver = self._opened, self._receiver
            is_told = self.flows.is_told_last()
            self._changed.notify_all()
        if receiver is not None:
            if is_told:
                receiver.leave(min(timeout, LEAVE_SECONDS))  # what was taken last: else it comes again the next time
            receiver.stop()
        if opened is not None and not self._lost:
            try:
                self._proxy.close_session(opened.uid)
            except JbiError as exc:
                log.debug("the delegate will notice by the lease: %s", exc)
        self._proxy.close()
        self._history.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._changed:
            return {
                "delegate": self.ref.service_id,
                "address": ", ".join(self.ref.endpoints),
                "connected": self._receiver is not None,
                **described(self._receiver.compression if self._receiver is not None else None),
                "subscriptions": list(self._standing),
                "refused": dict(self._refused),
            }

    # -- the session's thread -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        unreachable_since: float | None = None
        while not self._stopping.is_set():
            with guarded("subscriber session"):
                try:
                    if self._is_needless():
                        self._end(WireError("nothing is wanted there any more"))
                        return
                    self._open_if_needed()
                    self._reconcile()
                    backoff.reset()
                    unreachable_since = None
                    self._wait_for_work()
                    continue
                except (UnknownUidError, UnknownLeaseError) as exc:
                    self._lose_session(exc)
                except _ReplacedError as exc:
                    self._end(exc)
                    return
                except WireError as exc:
                    log.debug("%s: delegate %s is away: %s", self._name, self.ref.endpoints, exc)
                    if isinstance(exc.__cause__, ConnectionRefusedError):
                        self._fail_unopened(exc)
                    unreachable_since = unreachable_since or time.monotonic()
                    if self._is_over(time.monotonic() - unreachable_since):
                        self._end(exc)
                        return
                except AccessDeniedError as exc:
                    self._refuse_all(exc)
                    continue
                except JbiError as exc:
                    log.error("%s: delegate %s refuses the session: %s", self._name, self.ref.endpoints, exc)
            self._pause(backoff.pause())

    def _pause(self, seconds: float) -> None:
        """Until the delegate is tried again: so long, or until a query is asked, whose application waits."""
        with self._changed:
            known = set(self._parts)
            self._changed.wait_for(lambda: self._stopping.is_set() or not self._parts.keys() <= known, seconds)

    def _refuse_all(self, why: AccessDeniedError) -> None:
        """We may not be there: what is wanted is told so, once, and asked for again in a minute, or when something else
        is wanted."""
        log.info("%s: delegate %s refuses the session: %s", self._name, self.ref.endpoints, why)
        with self._changed:
            wanted = [uid for uid in self._wanted if uid not in self._refused]
            asked, self._parts = list(self._parts.values()), {}
            self._dirty = False
            self._ask_refused = math.inf
            self._untold = []  # they are told now
        for part in asked:
            part.fail(why)
        for uid in wanted:
            self._refuse(uid, why)
        again = time.monotonic() + REFUSED_AGAIN * jitter()
        with self._changed:
            self._changed.wait_for(lambda: self._dirty or self._stopping.is_set(), again - time.monotonic())
            self._refused_before |= set(self._refused)
            self._refused.clear()

    def _open_if_needed(self) -> None:
        with self._changed:
            opened = self._opened
            stands, doubted = opened is not None and not self._lost, self._doubted
        if opened is not None and stands:
            if doubted:
                duration = self._renew(opened.lease.lease_id)
                self._doubted = False
                self._manage(opened, duration)
            return
        with self._changed:
            needed = bool(self._parts) or any(s.request.direct for s in self._wanted.values())
            if not needed:
                self._opened, self._lost = None, False  # one that was lost is not missed
                return
        opened = self._proxy.open(self._name, self._config.lease.subscriber, self._claims)
        if opened.server != self.ref.service_id:
            self._proxy.close_session(opened.uid)
            where = ", ".join(self.ref.endpoints)
            raise _ReplacedError(f"another server answers at {where}", server=opened.server)
        with self._changed:
            is_late = self._stopping.is_set()  # whoever closes has seen no session to end
            if not is_late:
                self._opened, self._lost, self._parted, self._doubted = opened, False, False, False
                self._refused.clear()  # another session, another answer
                self._changed.notify_all()
        if is_late:
            self._proxy.close_session(opened.uid)
            raise WireError("closed while the session was opened")
        self._manage(opened, opened.lease.duration)
        self._tell_losses(Cause.SUBSCRIBER_DEAD, "the lease at the delegate ran out")

    def _manage(self, opened: Opened, duration: float) -> None:
        self._renewals.manage(
            (self, opened.uid),
            duration,
            lambda: self._renew(opened.lease.lease_id),
            lambda why: self._lease_over(why, opened.uid),
            grantor=self,
        )
        with self._changed:
            stands = self._is_open(opened.uid) and not self._stopping.is_set()
        if not stands:
            self._renewals.remove((self, opened.uid))

    def _lease_over(self, why: JbiError, session_id: str) -> None:
        """The delegate says so, or has not answered until then: in that case it is asked as soon as it does."""
        if not isinstance(why, WireError):
            self._lose_session(why, session_id)
            return
        with self._changed:
            if self._is_open(session_id):
                self._doubted = self._dirty = True
                self._changed.notify_all()

    def _reconcile(self) -> None:
        with self._changed:
            self._dirty = False
            if time.monotonic() >= self._ask_refused:
                self._refused_before, self._ask_refused = set(self._refused), math.inf
                self._refused.clear()
            missing = [s for uid, s in self._wanted.items() if uid not in self._standing and uid not in self._refused]
            missing += [s for uid, s in self._unsure.items() if uid not in self._wanted]  # so that it can be cancelled
            missing += [s.subscription for s in self._standing.values() if s.revision != s.subscription.revision]
            session_id = self._opened.uid if self._opened else ""
            cancelled = dict(self._cancelled)
        for uid, right in cancelled.items():
            if not self._is_cancelled(right, uid):
                raise WireError(f"no answer to the cancellation of subscription {uid}")
            with self._changed:
                self._cancelled.pop(uid, None)
        for at in range(0, len(missing), SUBSCRIBE_AT_ONCE):
            self._subscribe(session_id, missing[at : at + SUBSCRIBE_AT_ONCE])
        self._cancel_queries(session_id)
        self._open_queries(session_id)
        self._ask_for_losses()

    def _ask_for_losses(self) -> None:
        """Of e-mail-only subscriptions: no session is there for them in which they would be told."""
        now = time.monotonic()
        with self._changed:
            mailed = [(s.subscription, s.lease.lease_id) for s in self._standing.values() if s.lease is not None]
            is_due = now >= self._ask_losses
            if is_due or not mailed or self._ask_losses == math.inf:
                self._ask_losses = now + RENEW_AT * self._config.lease.subscriber if mailed else math.inf
        if not is_due:
            return
        try:
            for at in range(0, len(mailed), SUBSCRIBE_AT_ONCE):
                some = mailed[at : at + SUBSCRIBE_AT_ONCE]
                lost = self._proxy.mail_losses([lease_id for _, lease_id in some])
                for subscription, lease_id in some:
                    totals = lost.get(subscription.uid, {})
                    subscription.lose_mail(lease_id, totals, f"by mail from {', '.join(self.ref.endpoints)}")
        except JbiError as exc:  # away, or of a version that does not tell: the lease is what counts
            log.debug("%s: delegate %s does not say what mail is lost: %s", self._name, self.ref.endpoints, exc)

    def _cancel_queries(self, session_id: str) -> None:
        with self._changed:
            self._unasked, unasked = {}, self._unasked
        for number, session in unasked.items():
            if session == session_id:
                try:
                    self._history.cancel_query(session_id, number)
                except JbiError as exc:  # it ends with the session
                    log.debug("%s: query %d is not cancelled: %s", self._name, number, exc)

    def _open_queries(self, session_id: str) -> None:
        with self._changed:
            waiting = [part for part in self._parts.values() if part.opened is None]
        for part in waiting:
            try:
                opened = self._history.open_query(session_id, part.asked, self._claims)
            except (UnknownUidError, UnknownLeaseError):
                raise  # the session is not known any more
            except WireError as exc:
                if not isinstance(exc, (ProtocolError, BackPressureError)):
                    raise
                self._fail_part(part, exc)
            except JbiError as exc:
                self._fail_part(part, exc)
            else:
                self._begin_query(session_id, part, opened)

    def _fail_part(self, part: QueryPart, why: JbiError) -> None:
        with self._changed:
            self._parts.pop(part.uid, None)
            self._changed.notify_all()
        part.fail(why)

    def _fail_unopened(self, why: WireError) -> None:
        """Nobody listens there: the others that are asked are not to wait for it."""
        with self._changed:
            unopened = [part for part in self._parts.values() if part.opened is None]
        for part in unopened:
            self._fail_part(part, why)

    def _begin_query(self, session_id: str, part: QueryPart, opened: QueryOpened) -> None:
        standing = DeliveryFlow(part, opened.number, None, self.flows.news, self._report_credits)
        standing.is_placed, standing.archive = True, next(iter(opened.incarnations), "")
        with self._changed:
            if not self._is_open(session_id):
                return  # it was lost meanwhile: the query is asked in the next one
            self.flows.highest = max(self.flows.highest, opened.number)
            if part.uid in self._parts:
                self.flows.add(standing)
            else:  # it was cancelled meanwhile
                self._unasked[opened.number] = session_id
                self._dirty = True
            part.open(opened)
            self._changed.notify_all()

    def _subscribe(self, session_id: str, subscriptions: list[LocalSubscription]) -> None:
        with self._changed:
            self._asked = frozenset(s.uid for s in subscriptions)
        try:
            self._ask_for(session_id, subscriptions)
        finally:
            with self._changed:
                self._asked = frozenset()

    def _ask_for(self, session_id: str, subscriptions: list[LocalSubscription]) -> None:
        revisions = [s.revision for s in subscriptions]
        requests = [s.request_at(self.ref.service_id) for s in subscriptions]
        ages = [self._age(s, session_id) for s in subscriptions]
        try:
            answers = self._proxy.subscribe(session_id, requests, self._config.lease.mail, ages, self._claims)
        except (ProtocolError, OversizeError) as exc:
            if len(subscriptions) > 1:  # one of them, or all together: the others are not to suffer for it
                half = len(subscriptions) // 2
                self._ask_for(session_id, subscriptions[:half])
                self._ask_for(session_id, subscriptions[half:])
                return
            answers = (Subscribed(error=report(exc)),)
        except WireError:
            with self._changed:
                self._unsure |= {s.uid: s for s in subscriptions}
            raise
        if len(answers) != len(subscriptions):
            answers = tuple(Subscribed(error=report(ProtocolError("not an answer for each"))) for _ in requests)
        for subscription, revision, answer in zip(subscriptions, revisions, answers, strict=True):
            with self._changed:
                self._unsure.pop(subscription.uid, None)
                standing = self._standing.get(subscription.uid)
            if answer.granted is None:
                why = rebuild(answer.error) if answer.error else ProtocolError("no answer")
                if standing is None or not self._is_told(standing, revision, why):
                    self._refuse(subscription.uid, why)
            elif standing is not None and standing.number == answer.granted.number:
                standing.take_quality(answer.granted.qos)
                standing.revision = revision
            else:
                self._stand(session_id, subscription, answer.granted, revision)

    def _is_told(self, standing: DeliveryFlow, revision: int, why: JbiError) -> bool:
        """An amendment is refused: whoever has made it is told, and takes it back; if he waits no more the subscription
        ends here."""
        subscription = standing.subscription
        if subscription.refuse(revision, why):
            return True
        if revision == subscription.revision:
            self._end_standing(subscription.uid)
        return revision != subscription.revision

    def _age(self, subscription: LocalSubscription, session_id: str) -> float:
        """How long it had stood when the session was opened; see Delegate.subscribe.

        Two clocks are tied by the opening: the delegate knows when it did that, we know when its answer came. So an age
        is too long by the way of that answer at most, and never too short."""
        since = subscription.stand()
        if self.ref.service_id in subscription.stood_at:
            return NOT_BEFORE
        return (self._proxy.opened_at if session_id else time.monotonic()) - since

    def _refuse(self, uid: str, why: JbiError) -> None:
        """Told to the subscription the first time that it is refused here: said once is enough."""
        with self._changed:
            subscription = self._wanted.get(uid)
            self._denied[uid] = why
            if subscription is not None:
                self._refused[uid] = str(why)
                self._ask_refused = min(self._ask_refused, time.monotonic() + REFUSED_AGAIN)
        if subscription is not None and uid not in self._refused_before:
            subscription.lose(Cause.REFUSED, 0, f"by {', '.join(self.ref.endpoints)}: {why}")

    def expel(self, number: int) -> None:
        """The delegate has ended a subscription, and has told it: it is asked for again later."""
        with self._changed:
            standing = self.flows.remove(number)
            if standing is None:
                return
            expelled, why = standing.subscription, AccessDeniedError("access was withdrawn")
            uid = expelled.uid
            if not isinstance(expelled, QueryPart):
                if self._standing.get(uid) is standing:
                    del self._standing[uid]
                self._refused[uid] = why.message
                self._denied[uid] = why
                self._refused_before.add(uid)
                self._ask_refused = min(self._ask_refused, time.monotonic() + REFUSED_AGAIN)
        if isinstance(expelled, QueryPart):
            self._fail_part(expelled, why)
        else:
            expelled.settle(standing.consume)
            self._renewals.remove((self, uid))

    def _stand(self, session_id: str, subscription: LocalSubscription, granted: Granted, revision: int) -> None:
        uid = subscription.uid
        due = self._report_credits
        kind: Callable[..., DeliveryFlow] = TimedFlow if granted.prefetch else DeliveryFlow
        if granted.placed and isinstance(subscription, PlacedSubscription):
            kind = partial(PlacedFlow, self.ref.service_id)
            subscription.placed_at(", ".join(self.ref.endpoints), granted)
        elif subscription.request.start.kind != "new" and not isinstance(subscription, QueryPart):
            where = ", ".join(self.ref.endpoints)
            log.warning("subscription %s begins now at %s: there is no archive, nothing is kept", uid, where)
        standing = kind(subscription, granted.number, granted.lease, self.flows.news, due, granted.prefetch)
        standing.is_placed, standing.revision = granted.placed, revision
        standing.archive = next(iter(granted.incarnations), "")
        standing.take_quality(granted.qos)
        with self._changed:
            self._dirty = self._dirty or revision != subscription.revision  # amended meanwhile
            subscription.stood_at.add(self.ref.service_id)
            subscription.is_narrowed = subscription.is_narrowed or granted.narrowed
            if subscription.request.direct and not self._is_open(session_id):
                self._untold.append(standing)  # it stood in one that was lost meanwhile: the next one has it again
                return
            self.flows.highest = max(self.flows.highest, granted.number)
            cancelled = uid not in self._wanted
            self._denied.pop(uid, None)
            if not cancelled:
                self._standing[uid] = standing
                self.flows.add(standing)
                self._changed.notify_all()
        if cancelled:
            self._cancel(granted.lease.lease_id if granted.lease else session_id, uid)
        elif granted.lease is not None:
            lease = granted.lease
            self._renewals.manage(
                (self, uid),
                lease.duration,
                lambda: self._proxy.renew(lease.lease_id, self._config.lease.mail).duration,
                lambda _why: self._subscribe_again(standing),
                grantor=self,
            )
            with self._changed:
                stands = self._standing.get(uid) is standing
            if not stands:  # cancelled meanwhile
                self._renewals.remove((self, uid))

    def _subscribe_again(self, standing: DeliveryFlow) -> None:
        with self._changed:
            if self._standing.get(standing.subscription.uid) is not standing:
                return
            del self._standing[standing.subscription.uid]
            self.flows.remove(standing.number)
            self._dirty = True
            self._changed.notify_all()

    def _wait_for_work(self) -> None:
        with self._changed:
            while not (self._dirty or self._lost or self._stopping.is_set() or self._stands_empty()):
                if time.monotonic() >= min(self._ask_refused, self._ask_losses):
                    return
                self._changed.wait(1.0)

    def _renew(self, lease_id: str) -> float:
        return self._proxy.renew(lease_id, self._config.lease.subscriber).duration

    def _is_open(self, session_id: str) -> bool:
        """Under the lock: whether that is the session now. Only the session's thread opens the next one; it is lost on
        any."""
        return not self._lost and self._opened is not None and self._opened.uid == session_id

    def _lose_session(self, why: JbiError, session_id: str = "") -> None:
        """The delegate does not know that session any more ("": whichever it is). Called on the session's threads or
        the renewal manager's."""
        with self._changed:
            opened = self._opened
            if opened is None or not self._is_open(session_id or opened.uid):
                return
            address = ", ".join(self.ref.endpoints)
            if self._parted:
                log.info("%s: delegate %s has stopped", self._name, address)
            else:
                log.warning("%s: session at delegate %s lost: %s", self._name, address, why)
            self._lost = True
            self._cancelled = {uid: right for uid, right in self._cancelled.items() if right != opened.uid}
            self._unsure = {uid: s for uid, s in self._unsure.items() if not s.request.direct}
            direct = [s for s in self._standing.values() if s.subscription.request.direct]
            for standing in direct:
                self._standing.pop(standing.subscription.uid)
                self.flows.remove(standing.number)
            begun = [part for part in self._parts.values() if part.opened is not None]
            for part in begun:
                del self._parts[part.uid]
                if part.opened is not None:
                    self.flows.remove(part.opened.number)
            is_told = self._parted
            if not is_told:
                self._untold += direct
            receiver = self._receiver
            self._changed.notify_all()
        if is_told:
            for standing in direct:
                standing.subscription.settle(standing.consume)
        self._renewals.remove((self, opened.uid))  # from here on the next session may stand
        for part in begun:
            part.fail(WireError(f"the session at {address} was lost: {why}"))
        if receiver is not None:
            receiver.stop()

    def _tell_losses(self, cause: Cause, why: str, *, wait: float = 0.0) -> None:
        """What stood there when the session was lost may have lost something. Whose death it was is the cause. `wait`:
        seconds within which objects from elsewhere may show that it has not, or what."""
        with self._changed:
            untold, self._untold = self._untold, []
        matched = {standing: self._matched(standing.subscription.uid) for standing in untold}
        until, lacks = time.monotonic() + wait, untold
        while lacks := [standing for standing in lacks if standing.may_lack(matched[standing])]:
            if (left := until - time.monotonic()) <= 0 or self._left.wait(min(left, LOOK_SECONDS)):
                break
        for standing in untold:
            standing.subscription.settle(standing.consume)
        for standing in lacks:
            standing.subscription.lose(cause, 0, why)

    def _is_over(self, away: float) -> bool:
        """Nobody answers there, our lease has run out, and no lookup service lists the delegate."""
        return away > self._config.lease.subscriber and not self._is_listed(self.ref.service_id)

    def _is_needless(self) -> bool:
        """Whether there is no session, or it is lost, and nothing is left to do: then nobody can want it any more."""
        with self._changed:
            if self._stands_empty():
                self._stopping.set()
            return self._stopping.is_set()

    def _stands_empty(self) -> bool:
        needs = self._wanted or self._cancelled or self._unsure or self._parts
        return (self._opened is None or self._lost) and not needs

    def _end(self, why: JbiError) -> None:
        self._lose_session(why)
        with self._changed:  # objects for these were perhaps there, too
            missed = [
                subscription
                for uid, subscription in self._wanted.items()
                if uid in self._expected and subscription.request.direct
                and self.ref.service_id not in subscription.stood_at
            ]  # fmt: skip
            self._stopping.set()  # no further subscription or query is taken
            asked, self._parts = list(self._parts.values()), {}
        for part in asked:
            if isinstance(why, _ReplacedError):
                part.replaced(str(why.facts["server"]))
            else:
                part.fail(why)
        self._renew_nothing()
        self._proxy.close()
        self._history.close()
        for subscription in missed:
            subscription.lose(Cause.DELEGATE_DEAD, 0, why.message)
        self._tell_losses(Cause.DELEGATE_DEAD, why.message, wait=SHOWN_SECONDS)
        self._ended(self)

    def _renew_nothing(self) -> None:
        """The leases run out, or are taken over by the next session: e-mail subscriptions live on."""
        with self._changed:
            keys = [*self._standing, *([self._opened.uid] if self._opened else [])]
        for key in keys:
            self._renewals.remove((self, key))

    # -- the delivery connection --------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        receiver: Receiver | None = None
        session_id = ""
        backoff = Backoff(BACKOFF_FIRST, BACKOFF_MOST)
        while not self._stopping.is_set():
            opened = self._await_session()
            if opened is None:
                return
            if opened.uid != session_id or receiver is None:
                session_id, receiver = (
                    opened.uid,
                    Receiver(self.reader.take_batch, self.flows.note, ack_after=ACK_AFTER),
                )
            began, position = time.monotonic(), receiver.position
            with guarded("delivery connection"):
                try:
                    self._receive(opened, receiver)
                except (UnknownUidError, UnknownLeaseError) as exc:
                    self._lose_session(exc, opened.uid)
                except JbiError as exc:
                    log.debug("%s: deliveries from %s ended: %s", self._name, self.ref.endpoints, exc)
                    if self._parted:
                        self._lose_session(exc, opened.uid)
            if receiver.position > position or time.monotonic() - began > 1.0:
                backoff.reset()
            self._stopping.wait(backoff.pause())

    def _await_session(self) -> Opened | None:
        with self._changed:
            while (self._opened is None or self._lost) and not self._stopping.is_set():
                self._changed.wait(1.0)
            return None if self._stopping.is_set() else self._opened

    def _receive(self, opened: Opened, receiver: Receiver) -> None:
        token = self._proxy.open_deliveries(opened.uid)
        link = self._config.link
        sock = dial(self.ref, DATA, self._config.security(), self._config.lookup.timeout, window=link.window)
        try:
            line = Line(sock)
            greet(line, Hello.of(token, receiver.position, compression=link.compression))
            if opened.lease.duration < self._config.lease.subscriber:  # until now it was short
                self._renewals.hasten((self, opened.uid))
            with self._changed:
                if self._stopping.is_set() or not self._is_open(opened.uid):
                    return  # nobody would stop it
                self._receiver = receiver
                self.flows.report_again()
            receiver.run(line)  # nothing of a subscription is named here: it would be held for as long as that runs
        finally:
            with self._changed:
                self._receiver = None
            sock.close()

    def _expects_answers(self) -> bool:
        """Whether the delegate has been asked, or will be, for subscriptions that may stand there by now."""
        if self._lost or self._stopping.is_set():
            return False
        if any(part.opened is None for part in self._parts.values()):
            return True
        return self._dirty or any(uid not in self._standing and uid not in self._refused for uid in self._wanted)

    def ask_again(self) -> None:
        """The delegate's rules have changed: what it has refused is asked for again soon."""
        with self._changed:
            soon = time.monotonic() + random.uniform(0.0, ASK_SECONDS)  # noqa: S311  # jitter, not a secret
            self._ask_refused = min(self._ask_refused, soon) if self._refused else self._ask_refused
            self._changed.notify_all()

    def part(self) -> None:
        """The delegate stops: nothing comes any more, and what was lost is told."""
        self._parted = True

    def deny(self, uid: str, why: JbiError) -> None:
        """A subscription that stands is not evaluated for some registration."""
        with self._changed:
            self._denied[uid] = why

    def end_query(self, flow: DeliveryFlow, how: Finished) -> None:
        """All results of a query have come. Raises ProtocolError for what is no query."""
        part = flow.subscription
        if not isinstance(part, QueryPart):
            raise ProtocolError("the end of a query for a subscription")
        with self._changed:
            self.flows.remove(flow.number)
            self._parts.pop(part.uid, None)
        part.finish(how)

    def _report_credits(self) -> None:
        receiver = self._receiver
        if receiver is not None:
            receiver.report()
