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
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

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
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import Progress
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, decode
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.renewal import RENEW_AT, LeaseRenewalManager
from jbi_pubsub.core.spool import Spool
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.endpoint import DATA, dial
from jbi_pubsub.core.wire.stream import WINDOW_BATCHES, Hello, Line, Receiver, greet
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.deliveries import (
    ASK_AGAIN,
    CHUNK,
    END,
    FINISHED,
    ITEM,
    LAST_CHUNK,
    LOSS,
    OBJECT,
    PLACED,
    POSITION,
    QUALITY,
    SHARED,
    SHARED_MOST,
    Heard,
)
from jbi_pubsub.protocol.entries import ArchiveEntry
from jbi_pubsub.protocol.replies import Finished, Granted, Opened, QueryOpened, Subscribed
from jbi_pubsub.protocol.requests import NOT_BEFORE
from jbi_pubsub.protocol.services import SUBSCRIBE_AT_ONCE, Claims, HistoryProxy, SubscriptionsProxy

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

CREDIT_PART: Final = 4
"""Consumption is reported with each acknowledgement, and by itself when a quarter of the bound is unreported, or of
what it may have under quality of service, which is less."""

TIMED_SECONDS: Final = 1.0
"""Between two objects of which it is looked how long the application lets them wait."""
DELAYS_MOST: Final = 1_000
"""Subscriptions of which that is told in one acknowledgement."""
LEAVE_SECONDS: Final = 1.0
"""For the delegate to read the last of it when we leave."""
MICROS_MOST: Final = 2**40

ACK_AFTER: Final = WINDOW_BATCHES // 2
"""Batches that are acknowledged together while they come one upon the other: as many again may be under way."""


class _Standing:
    """A subscription, or a query, as it stands at the delegate."""

    def __init__(
        self,
        subscription: LocalSubscription,
        number: int,
        lease: Lease | None,
        news: deque[_Standing],
        due: Callable[[], None],
        prefetch: int = 0,
    ) -> None:
        """It puts itself among the `news` when something was consumed, and calls `due` when that is enough for a report
        of its own."""
        self.subscription = subscription
        self.number = number
        self.lease = lease
        self.reported = 0
        self.revision = subscription.revision
        """Of the terms that it has there."""
        self.quality = GrantedQos()
        """What it has got there of what it wishes."""
        self._news = news
        self._is_news = False
        self._due = due
        bound = subscription.request.bound
        self._report_after = max(1, min(bound, prefetch or bound) // CREDIT_PART)
        self._lock = threading.Lock()  # covers consumed: several threads of an application may take
        self.consumed = 0
        self.coming: Gathering | None = None
        """A large object of which there is more."""
        self.is_placed = False
        """Whether its objects come with their positions in an archive."""
        self.archive = ""
        """The incarnation of that."""

    def take_quality(self, granted: GrantedQos) -> None:
        """What it has got there from now on. What is required and not offered is said once."""
        for each in granted.unmet:
            if each not in self.quality.unmet:
                log.warning(
                    "subscription %s requires %s %g, and registration %s offers %g: its objects come all the same",
                    self.subscription.uid, each.field, each.required, each.registration[:64], each.offered,
                )  # fmt: skip
        self.quality = granted

    def came(self, count: int) -> None:
        """So many objects more have come."""

    def delay(self) -> tuple[int, int] | None:
        """How long the application lets objects wait: nobody asks."""
        return None

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        with self._lock:
            self.consumed += count
        if not self._is_news:
            self._is_news = True
            self._news.append(self)
        if self.consumed - self.reported >= self._report_after:
            self._due()

    def may_lack(self, matched: Collection[str]) -> bool:
        """Whether something may be lost there that is not told; `matched`: registrations."""
        return self.subscription.may_lack(self.consume, matched, is_placed=self.is_placed)

    def hand_on(self, objects: Sequence[InfoObject]) -> None:
        """Objects have come for it."""
        self.subscription.add(objects, self.consume)

    def drop(self, objects: Sequence[InfoObject]) -> None:
        """These have come, and it does not get them."""
        self.consume(len(objects))

    def acknowledged(self) -> tuple[int, ...]:
        """Positions that the application has acknowledged since they were told last."""
        return ()

    def report(self) -> bool:
        """Whether something was consumed since the last report; from now on it is reported."""
        self._is_news = False  # before the number is read: what is consumed from here on makes it news again
        total = self.consumed
        is_more, self.reported = total > self.reported, total
        return is_more

    def report_again(self) -> None:
        """The last report may not have come."""
        self.reported = 0
        self._is_news = True
        self._news.append(self)


class _Placed(_Standing):
    """One that begins in the past, or is durable: what the delegate is told of it is what it goes on from.

    Objects that have come before, from another delegate, are dropped at once. But what was consumed is told as a
    number, in the order in which the objects came: so a dropped one counts when all before it were taken.
    """

    def __init__(self, server: str, *given: Any) -> None:
        super().__init__(*given)
        self.server = server
        self.is_placed = True
        self._runs: deque[list[int]] = deque()
        """What came: how many the application is to take, how many were dropped behind these."""
        self._news_of: deque[int] = deque()
        """Positions that were acknowledged and not told yet."""
        self._told: deque[int] = deque(maxlen=self.subscription.request.bound)
        """Those that were, the last ones: so many at most may be unacknowledged there."""

    def hand_on(self, objects: Sequence[InfoObject]) -> None:
        """Objects have come for it."""
        assert isinstance(self.subscription, PlacedSubscription)
        self.subscription.add_placed(objects, self)

    def drop(self, objects: Sequence[InfoObject]) -> None:
        """These have come, and it does not get them: nor would it the next time."""
        self.taken_over(0, len(objects))
        if self.subscription.request.ack == "explicit":
            for obj in objects:
                self.acknowledge(obj.platform.position)

    def taken_over(self, kept: int, dropped: int) -> None:
        """So many objects came for the application, then so many that it has."""
        with self._lock:
            if not kept and self._runs:
                self._runs[-1][1] += dropped
                return
            if kept:
                self._runs.append([kept, dropped])
                return
        super().consume(dropped)

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        total = count
        with self._lock:
            while count and self._runs:
                taken = min(count, self._runs[0][0])
                self._runs[0][0] -= taken
                count -= taken
                if not self._runs[0][0]:
                    total += self._runs.popleft()[1]
        super().consume(total)

    def acknowledge(self, position: int) -> None:
        """The application has acknowledged that object."""
        self._news_of.append(position)
        super().consume(0)
        self._due()

    def acknowledged(self) -> tuple[int, ...]:
        """Positions that the application has acknowledged since they were told last."""
        positions = []
        with suppress(IndexError):
            while True:
                positions.append(self._news_of.popleft())
        self._told.extend(positions)
        return tuple(positions)

    def report(self) -> bool:
        """Whether something was consumed or acknowledged since the last report."""
        return super().report() or bool(self._news_of)

    def report_again(self) -> None:
        """The last report may not have come."""
        again = list(self._told)
        self._told.clear()
        self._news_of.extendleft(reversed(again))
        super().report_again()


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
        self._spool = spool or config.link.spooling()
        self._claims = Claims(config.client.user, config.client.role)
        self._renewals = renewals
        self._name = name
        self._is_listed = is_listed
        self._ended = ended
        self._matched = matched
        self._item = item
        self._proxy = SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
        self._history = HistoryProxy(ref, config.security(), timeout=config.lookup.timeout)
        self._signatures = None if signatures is None else SessionSignatures(signatures, ref, self._proxy, item)
        self._changed = threading.Condition()
        self._wanted: dict[str, LocalSubscription] = {}
        self._standing: dict[str, _Standing] = {}
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
        self._untold: list[_Standing] = []
        """What stood there when the session was lost, until it is known whether the delegate is gone as well."""
        self._expected: set[str] = set()
        """Subscriptions that are older than what they are to stand for there: it may have had objects for them."""
        self._by_number: dict[int, _Standing] = {}
        self._news: deque[_Standing] = deque()
        """Of which something was consumed since the last acknowledgement."""
        self._highest = 0
        """Number of the latest subscription granted, whether it is still wanted or not: later ones have higher ones."""
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
                self._by_number.pop(standing.number, None)
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
            if self._opened is not None and self._by_number.pop(number, None) is not None:
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
            is_told = any(isinstance(standing, _Placed) for standing in self._by_number.values())
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
        standing = _Standing(part, opened.number, None, self._news, self._report_credits)
        standing.is_placed, standing.archive = True, next(iter(opened.incarnations), "")
        with self._changed:
            if not self._is_open(session_id):
                return  # it was lost meanwhile: the query is asked in the next one
            self._highest = max(self._highest, opened.number)
            if part.uid in self._parts:
                self._by_number[opened.number] = standing
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

    def _is_told(self, standing: _Standing, revision: int, why: JbiError) -> bool:
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

    def _expelled(self, number: int) -> None:
        """The delegate has ended a subscription, and has told it: it is asked for again later."""
        with self._changed:
            standing = self._by_number.pop(number, None)
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
        kind: Callable[..., _Standing] = _Timed if granted.prefetch else _Standing
        if granted.placed and isinstance(subscription, PlacedSubscription):
            kind = partial(_Placed, self.ref.service_id)
            subscription.placed_at(", ".join(self.ref.endpoints), granted)
        elif subscription.request.start.kind != "new" and not isinstance(subscription, QueryPart):
            where = ", ".join(self.ref.endpoints)
            log.warning("subscription %s begins now at %s: there is no archive, nothing is kept", uid, where)
        standing = kind(subscription, granted.number, granted.lease, self._news, due, granted.prefetch)
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
            self._highest = max(self._highest, granted.number)
            cancelled = uid not in self._wanted
            self._denied.pop(uid, None)
            if not cancelled:
                self._standing[uid] = standing
                self._by_number[granted.number] = standing
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

    def _subscribe_again(self, standing: _Standing) -> None:
        with self._changed:
            if self._standing.get(standing.subscription.uid) is not standing:
                return
            del self._standing[standing.subscription.uid]
            self._by_number.pop(standing.number, None)
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
                self._by_number.pop(standing.number, None)
            begun = [part for part in self._parts.values() if part.opened is not None]
            for part in begun:
                del self._parts[part.uid]
                if part.opened is not None:
                    self._by_number.pop(part.opened.number, None)
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
                session_id, receiver = opened.uid, Receiver(self._take, self._consumed, ack_after=ACK_AFTER)
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
                self._report_again()
            receiver.run(line)  # nothing of a subscription is named here: it would be held for as long as that runs
        finally:
            with self._changed:
                self._receiver = None
            sock.close()

    def _report_again(self) -> None:
        """The last line may have swallowed what was reported there."""
        for standing in self._by_number.values():
            standing.report_again()

    def _take(self, items: list[memoryview]) -> None:
        """Hand a batch on: to each subscription at once what is for it."""
        arrived: dict[_Standing, list[InfoObject]] = {}
        archive = ""  # of that run
        for_whom: int | bytes = -1  # the number, or numbers, of the run of objects that was begun
        lists: Sequence[list[InfoObject]] = ()  # of those in `arrived`
        for item in items:
            try:
                kind, number = ITEM.unpack_from(item)
                if kind == OBJECT:
                    at = ITEM.size
                    if number != for_whom:
                        for_whom, lists = number, self._lists((number,), arrived)
                elif kind == SHARED:
                    at = ITEM.size + 4 * _at_most(number)
                    if (numbers := bytes(item[ITEM.size : at])) != for_whom:
                        lists = self._lists(struct.unpack(f"!{number}I", numbers), arrived)
                        for_whom = numbers
                elif kind == PLACED:
                    (place,) = POSITION.unpack_from(item, ITEM.size)
                    if number != for_whom:
                        for_whom, lists = number, self._lists((number,), arrived)
                        archive = standing.archive if (standing := self._by_number.get(number)) is not None else ""
                    if lists:
                        lists[0].append(decode(item[ITEM.size + POSITION.size :], place, archive))
                    continue
                else:
                    self._take_other(kind, number, item[ITEM.size :], arrived)
                    for_whom = -1
                    continue
            except struct.error as exc:
                raise ProtocolError(f"bad delivery: {exc}") from exc
            if lists:  # else they were cancelled meanwhile
                obj = decode(item[at:])
                for objects in lists:
                    objects.append(obj)
        self._hand_on(arrived)

    def _lists(self, numbers: Sequence[int], arrived: dict[_Standing, list[InfoObject]]) -> list[list[InfoObject]]:
        """Where objects for these subscriptions are gathered."""
        standing = [self._of_number(number, arrived) for number in numbers]  # first: it may hand on what was gathered
        return [arrived.setdefault(one, []) for one in standing if one is not None]

    def _take_other(self, kind: int, number: int, body: memoryview, arrived: dict[_Standing, list[InfoObject]]) -> None:
        if kind == END and number == ASK_AGAIN:
            with self._changed:
                soon = time.monotonic() + random.uniform(0.0, ASK_SECONDS)  # noqa: S311  # jitter, not a secret
                self._ask_refused = min(self._ask_refused, soon) if self._refused else self._ask_refused
                self._changed.notify_all()
            return
        if kind == END and number:
            self._hand_on(arrived)
            self._expelled(number)
            return
        if kind == END:
            self._parted = True
            return
        standing = self._of_number(number, arrived)
        if standing is None:
            return
        if kind in (CHUNK, LAST_CHUNK):
            place = POSITION.unpack_from(body)[0] if standing.is_placed else 0
            coming = standing.coming = standing.coming or self._gathering()
            coming.add(body[POSITION.size :] if standing.is_placed else body)
            if kind == LAST_CHUNK:
                standing.coming = None
                self._take_large(standing, coming, place, arrived)
        elif kind == FINISHED:
            self._hand_on(arrived)  # what came before the end is there before it
            self._end_query(standing, _finished(body))
        elif kind == LOSS:
            self._hand_on(arrived)  # what came before the loss is told before it
            standing.coming = None  # the rest of it can't be read there
            notice = _notice(body)
            if notice.cause is Cause.REFUSED and notice.detail:
                with self._changed:
                    self._denied[standing.subscription.uid] = OversizeError(notice.detail)
            standing.subscription.lose(notice.cause, notice.count, notice.detail)
        elif kind == QUALITY:
            standing.take_quality(_granted(body))
            standing.subscription.qos_changed(standing.quality)
        else:
            raise ProtocolError(f"delivery of kind {kind}")

    def _gathering(self) -> Gathering:
        """A large object begins to come."""
        config = self._config
        wait, looks = config.queue.block_seconds, self._signatures is not None
        return Gathering(self._spool, config.client.max_payload, wait, is_cut=True, is_looked_at=looks)

    def _take_large(
        self, standing: _Standing, coming: Gathering, place: int, arrived: dict[_Standing, list[InfoObject]]
    ) -> None:
        """All of a large object has come; if it could not be kept here, it is lost."""
        obj, why = coming.info_object(place, standing.archive), coming.failure
        if why is None:
            arrived.setdefault(standing, []).append(obj)
            return
        self._hand_on(arrived)
        cause = Cause.OVERSIZE if isinstance(why, OversizeError) else Cause.STORAGE
        standing.came(1)
        standing.subscription.lose(cause, 1, f"object {obj.object_id}: {why}")
        standing.drop([obj])

    def _end_query(self, standing: _Standing, how: Finished) -> None:
        part = standing.subscription
        if not isinstance(part, QueryPart):
            raise ProtocolError("the end of a query for a subscription")
        with self._changed:
            self._by_number.pop(standing.number, None)
            self._parts.pop(part.uid, None)
        part.finish(how)

    def _of_number(self, number: int, arrived: dict[_Standing, list[InfoObject]]) -> _Standing | None:
        """The subscription of that number; None if it was cancelled meanwhile."""
        standing = self._by_number.get(number)
        if standing is None:
            self._hand_on(arrived)  # nobody else is to wait for this one
            standing = self._await_standing(number)
        return standing

    def _await_standing(self, number: int) -> _Standing | None:
        """The subscription of that number. Its first object may overtake the answer to subscribe: wait for that,
        however often it has to be asked for; to pass over the object would be a loss that nobody counts."""
        with self._changed:
            while number > self._highest and self._expects_answers():
                self._changed.wait(0.05)
            return self._by_number.get(number)

    def _expects_answers(self) -> bool:
        """Whether the delegate has been asked, or will be, for subscriptions that may stand there by now."""
        if self._lost or self._stopping.is_set():
            return False
        if any(part.opened is None for part in self._parts.values()):
            return True
        return self._dirty or any(uid not in self._standing and uid not in self._refused for uid in self._wanted)

    def _hand_on(self, arrived: dict[_Standing, list[InfoObject]]) -> None:
        if self._signatures is not None:
            self._signatures.begin()
        for standing, objects in arrived.items():
            standing.came(len(objects))
            if self._signatures is None and standing.subscription.fitness is None:
                standing.hand_on(objects)
            else:
                self._hand_on_looked_at(standing, objects)
        arrived.clear()

    def _hand_on_looked_at(self, standing: _Standing, objects: Sequence[InfoObject]) -> None:
        of, good = standing.subscription, objects
        if self._signatures is not None:
            looked = self._signatures.look(objects, of.filter_digests, takes_shapes=of.takes_shapes)
            good = looked.objects
            if looked.dropped:
                of.lose(Cause.BAD_SIGNATURE, looked.dropped, looked.why)
        if of.fitness is not None:
            fit = of.fitness.look(good)
            good = fit.objects
            if fit.dropped:
                of.lose(Cause.INVALID, fit.dropped, fit.why)
        if good:
            standing.hand_on(good)
        if len(good) < len(objects):  # behind the others: what is told as taken is told in order
            ids = {obj.object_id for obj in good}
            standing.drop([obj for obj in objects if obj.object_id not in ids])

    def _report_credits(self) -> None:
        receiver = self._receiver
        if receiver is not None:
            receiver.report()

    def _consumed(self) -> bytes:
        """The note of an acknowledgement: what was consumed in all, of those of which something was since the last."""
        consumed: dict[int, int] = {}
        delays: dict[int, tuple[int, int]] = {}
        acknowledged: dict[int, tuple[int, ...]] = {}
        while self._news:
            try:
                standing = self._news.popleft()
            except IndexError:  # another thread reports as well
                break
            if standing.report() and self._by_number.get(standing.number) is standing:
                consumed[standing.number] = standing.reported
                if len(delays) < DELAYS_MOST and (delay := standing.delay()) is not None:
                    delays[standing.number] = delay
                if positions := standing.acknowledged():
                    acknowledged[standing.number] = positions
        return msgspec.msgpack.encode(Heard(consumed, delays, acknowledged)) if consumed else b""


class _Timed(_Standing):
    """Where quality of service is managed: looks at one object a second, how long it waits for the application."""

    def __init__(self, *given: Any, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(*given)
        self._clock = clock
        self._came = 0
        self._probe: tuple[int, float] | None = None
        """The number of the object that is looked at, and when it came."""
        self._again = 0.0
        """Nothing is looked at before."""
        self._waited: float | None = None
        self._jitter = 0.0
        self._is_told = True

    def came(self, count: int) -> None:
        """So many objects more have come."""
        self._came += count
        if self._probe is None and (now := self._clock()) >= self._again:
            self._probe, self._again = (self._came, now), now + TIMED_SECONDS

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        super().consume(count)
        probe = self._probe
        if probe is not None and self.consumed >= probe[0]:
            waited = max(0.0, self._clock() - probe[1])
            if self._waited is not None:
                self._jitter += (abs(waited - self._waited) - self._jitter) / 16
            self._waited, self._probe, self._is_told = waited, None, False

    def delay(self) -> tuple[int, int] | None:
        """What is new of it, for the delegate."""
        if self._is_told or self._waited is None:
            return None
        self._is_told = True
        return min(MICROS_MOST, int(1e6 * self._waited)), min(MICROS_MOST, int(1e6 * self._jitter))


def _at_most(count: int) -> int:
    if not 1 <= count <= SHARED_MOST:
        raise ProtocolError(f"delivery for {count} subscriptions, the limit is {SHARED_MOST}")
    return count


def _granted(body: memoryview) -> GrantedQos:
    try:
        return decoder_of(GrantedQos).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad notice of quality: {exc}") from exc


def _finished(body: memoryview) -> Finished:
    try:
        return decoder_of(Finished).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad end of a query: {exc}") from exc


def _notice(body: memoryview) -> LossNotice:
    try:
        return decoder_of(LossNotice).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad loss notice: {exc}") from exc
