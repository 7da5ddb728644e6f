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
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    JbiError,
    OversizeError,
    ProtocolError,
    QosDeniedError,
    UnknownLeaseError,
    UnknownUidError,
    WireError,
    rebuild,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Part, decode, decode_cut
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.deflate import described
from jbi_pubsub.core.wire.endpoint import DATA, dial
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES, WINDOW_BATCHES, Hello, Line, Receiver, greet
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delivery import ASK_AGAIN, CHUNK, END, ITEM, LAST_CHUNK, LOSS, OBJECT, QUALITY, SHARED, SHARED_MOST
from jbi_pubsub.pad.proxy import SUBSCRIBE_AT_ONCE, Claims, Opened, Subscribed, SubscriptionsProxy
from jbi_pubsub.pad.subscription import NOT_BEFORE, Granted

from .signed import Looked, SessionSignatures, SignatureCheck
from .subscription import LocalSubscription

log = logging.getLogger("jbi_pubsub.subscriber")

BACKOFF_FIRST: Final = 0.05
BACKOFF_MOST: Final = 5.0

REFUSED_AGAIN: Final = 60.0
"""Seconds after which what a delegate has refused is asked for again: there may be room by then. A delegate that is
full for a thousand subscribers is asked 17 times a second."""

ASK_SECONDS: Final = 3.0
"""Within which those who were refused ask again when a delegate says that its rules have changed."""

CREDIT_PART: Final = 4
"""Consumption is reported with each acknowledgement, and by itself when a quarter of the bound is unreported, or of
what it may have under quality of service, which is less."""

KEPT_BYTES: Final = 4096
"""A smaller piece of a large object is copied: to keep it for itself costs more than what it holds."""

ACK_AFTER: Final = WINDOW_BATCHES // 2
"""Batches that are acknowledged together while they come one upon the other: as many again may be under way."""


class _Standing:
    """A subscription as it stands at the delegate."""

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
        self.quality = GrantedQos()
        """What it has got there of what it wishes."""
        self._news = news
        self._is_news = False
        self._due = due
        bound = subscription.request.bound
        self._report_after = max(1, min(bound, prefetch or bound) // CREDIT_PART)
        self._lock = threading.Lock()  # covers consumed: several threads of an application may take
        self.consumed = 0
        self._chunks: list[Part] = []
        """Of a large object that is still coming."""
        self._gathered = 0

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        with self._lock:
            self.consumed += count
        if not self._is_news:
            self._is_news = True
            self._news.append(self)
        if self.consumed - self.reported >= self._report_after:
            self._due()

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

    def gather(self, chunk: memoryview) -> None:
        """Some more of a large object. Raises ProtocolError when it becomes too large."""
        self._gathered += len(chunk)
        if self._gathered > MAX_ITEM_BYTES:
            raise ProtocolError(f"object of more than {MAX_ITEM_BYTES} bytes")
        if len(chunk) >= KEPT_BYTES and 2 * len(chunk) > memoryview(chunk.obj).nbytes:
            self._chunks.append(chunk)
        elif self._chunks and isinstance(self._chunks[-1], bytearray):
            self._chunks[-1] += chunk
        else:  # a copy: it would keep the others of its batch
            self._chunks.append(bytearray(chunk))

    def gathered(self) -> list[Part]:
        """All of it."""
        whole, self._chunks, self._gathered = self._chunks, [], 0
        return whole


class _ReplacedError(JbiError):
    """A delegate was started again at its old address: the lookup service lists the new one, it gets a session of its
    own, and with one for the old one as well everything would come twice."""

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
        signatures: SignatureCheck | None = None,
    ) -> None:
        """`is_listed(service id)`: whether a lookup service still knows the delegate; `ended` is called once;
        `item(uid)`: what the lookup services say of a registration; `signatures`: who looks at them."""
        self.ref = ref
        self._config = config
        self._claims = Claims(config.client.user, config.client.role)
        self._renewals = renewals
        self._name = name
        self._is_listed = is_listed
        self._ended = ended
        self._proxy = SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
        self._signatures = None if signatures is None else SessionSignatures(signatures, ref, self._proxy, item)
        self._changed = threading.Condition()
        self._wanted: dict[str, LocalSubscription] = {}
        self._standing: dict[str, _Standing] = {}
        self._refused: dict[str, str] = {}
        self._denied: dict[str, QosDeniedError] = {}
        """Those of them that require what is not granted."""
        self._refused_before: set[str] = set()
        """When they were asked for last: said once is enough."""
        self._ask_refused = math.inf
        """When the refused ones are asked for again (monotonic seconds)."""
        self._cancelled: dict[str, str] = {}
        """What the delegate has not confirmed the end of, with the right to it."""
        self._unsure: dict[str, LocalSubscription] = {}
        """What the delegate has not answered to: it may stand there or not."""
        self._untold: list[LocalSubscription] = []
        """What stood there when the session was lost, until it is known whether the delegate is gone as well."""
        self._by_number: dict[int, _Standing] = {}
        self._news: deque[_Standing] = deque()
        """Of which something was consumed since the last acknowledgement."""
        self._highest = 0
        """Number of the latest subscription granted, whether it is still wanted or not: later ones have higher ones."""
        self._opened: Opened | None = None
        self._receiver: Receiver | None = None
        self._lost = False
        self._parted = False
        """The delegate has said that nothing comes any more, and told what was lost."""
        self._dirty = False
        self._stopping = threading.Event()
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
        with self._changed:
            if self._stopping.is_set():
                return False
            self._wanted[subscription.uid] = subscription
            self._dirty = True
            self._changed.notify_all()
            return True

    def unwant(self, uid: str, *, cancel_mail: bool = True) -> None:
        """Cancel it there. Waits for the delegate's answer, so that nothing is delivered afterwards."""
        with self._changed:
            self._wanted.pop(uid, None)
            self._refused.pop(uid, None)
            self._denied.pop(uid, None)
            standing = self._standing.pop(uid, None)
            if standing is not None:
                self._by_number.pop(standing.number, None)
            session_id = self._opened.uid if self._opened else ""
        if standing is None:
            return
        self._renewals.remove((self, uid))
        if standing.lease is None or cancel_mail:
            self._cancel(standing.lease.lease_id if standing.lease else session_id, uid)

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

    def quality(self, uid: str) -> GrantedQos | None:
        """What the subscription has got there by now; None where it does not stand."""
        with self._changed:
            standing = self._standing.get(uid)
            return standing.quality if standing is not None else None

    def denied(self, uid: str) -> QosDeniedError | None:
        """Why it does not stand there, if it requires what is not granted."""
        with self._changed:
            return self._denied.get(uid)

    def close(self, timeout: float = 5.0) -> None:
        """Leave: direct subscriptions end, e-mail ones live on by their leases."""
        self._stopping.set()
        self._renew_nothing()
        with self._changed:
            opened, receiver = self._opened, self._receiver
            self._changed.notify_all()
        if receiver is not None:
            receiver.stop()
        if opened is not None and not self._lost:
            try:
                self._proxy.close_session(opened.uid)
            except JbiError as exc:
                log.debug("the delegate will notice by the lease: %s", exc)
        self._proxy.close()
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
        backoff = BACKOFF_FIRST
        unreachable_since: float | None = None
        while not self._stopping.is_set():
            with guarded("subscriber session"):
                try:
                    if self._is_needless():
                        self._end(WireError("nothing is wanted there any more"))
                        return
                    self._open_if_needed()
                    self._reconcile()
                    backoff, unreachable_since = BACKOFF_FIRST, None
                    self._wait_for_work()
                    continue
                except (UnknownUidError, UnknownLeaseError) as exc:
                    self._lose_session(exc)
                except _ReplacedError as exc:
                    self._end(exc)
                    return
                except WireError as exc:
                    log.debug("%s: delegate %s is away: %s", self._name, self.ref.endpoints, exc)
                    unreachable_since = unreachable_since or time.monotonic()
                    if self._is_over(time.monotonic() - unreachable_since):
                        self._end(exc)
                        return
                except AccessDeniedError as exc:
                    self._refuse_all(exc)
                    continue
                except JbiError as exc:
                    log.error("%s: delegate %s refuses the session: %s", self._name, self.ref.endpoints, exc)
            self._stopping.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret
            backoff = min(2 * backoff, BACKOFF_MOST)

    def _refuse_all(self, why: AccessDeniedError) -> None:
        """We may not be there: what is wanted is told so, once, and asked for again in a minute, or when something else
        is wanted."""
        log.info("%s: delegate %s refuses the session: %s", self._name, self.ref.endpoints, why)
        with self._changed:
            wanted = [uid for uid in self._wanted if uid not in self._refused]
            self._dirty = False
            self._ask_refused = math.inf
            self._untold = []  # they are told now
        for uid in wanted:
            self._refuse(uid, why)
        again = time.monotonic() + REFUSED_AGAIN * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret
        with self._changed:
            self._changed.wait_for(lambda: self._dirty or self._stopping.is_set(), again - time.monotonic())
            self._refused_before |= set(self._refused)
            self._refused.clear()

    def _open_if_needed(self) -> None:
        with self._changed:
            if self._opened is not None and not self._lost:
                return
            needed = any(s.request.direct for s in self._wanted.values())
            if not needed:
                self._opened, self._lost = None, False  # one that was lost is not missed
                return
        opened = self._proxy.open(self._name, self._config.lease.subscriber, self._claims)
        if opened.server != self.ref.service_id:
            self._proxy.close_session(opened.uid)
            raise _ReplacedError(f"another server answers at {', '.join(self.ref.endpoints)}")
        self._renewals.manage(
            self, opened.lease.duration, lambda: self._renew(opened.lease.lease_id), self._lose_session, grantor=self
        )
        with self._changed:
            self._opened, self._lost, self._parted = opened, False, False
            self._refused.clear()  # another session, another answer
            self._changed.notify_all()
        self._tell_losses(Cause.SUBSCRIBER_DEAD, "the lease at the delegate ran out")

    def _reconcile(self) -> None:
        with self._changed:
            self._dirty = False
            if time.monotonic() >= self._ask_refused:
                self._refused_before, self._ask_refused = set(self._refused), math.inf
                self._refused.clear()
            missing = [s for uid, s in self._wanted.items() if uid not in self._standing and uid not in self._refused]
            missing += [s for uid, s in self._unsure.items() if uid not in self._wanted]  # so that it can be cancelled
            session_id = self._opened.uid if self._opened else ""
            cancelled = dict(self._cancelled)
        for uid, right in cancelled.items():
            if not self._is_cancelled(right, uid):
                raise WireError(f"no answer to the cancellation of subscription {uid}")
            with self._changed:
                self._cancelled.pop(uid, None)
        for at in range(0, len(missing), SUBSCRIBE_AT_ONCE):
            self._subscribe(session_id, missing[at : at + SUBSCRIBE_AT_ONCE])

    def _subscribe(self, session_id: str, subscriptions: list[LocalSubscription]) -> None:
        requests = [s.request for s in subscriptions]
        ages = [self._age(s, session_id) for s in subscriptions]
        try:
            answers = self._proxy.subscribe(session_id, requests, self._config.lease.mail, ages, self._claims)
        except (ProtocolError, OversizeError) as exc:
            if len(subscriptions) > 1:  # one of them, or all together: the others are not to suffer for it
                half = len(subscriptions) // 2
                self._subscribe(session_id, subscriptions[:half])
                self._subscribe(session_id, subscriptions[half:])
                return
            answers = (Subscribed(error=report(exc)),)
        except WireError:
            with self._changed:
                self._unsure |= {s.uid: s for s in subscriptions}
            raise
        if len(answers) != len(subscriptions):
            answers = tuple(Subscribed(error=report(ProtocolError("not an answer for each"))) for _ in requests)
        for subscription, answer in zip(subscriptions, answers, strict=True):
            with self._changed:
                self._unsure.pop(subscription.uid, None)
            if answer.granted is not None:
                self._stand(session_id, subscription, answer.granted)
            else:
                self._refuse(subscription.uid, rebuild(answer.error) if answer.error else ProtocolError("no answer"))

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
            if isinstance(why, QosDeniedError):
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
            uid = standing.subscription.uid
            if self._standing.get(uid) is standing:
                del self._standing[uid]
            self._refused[uid] = "access was withdrawn"
            self._refused_before.add(uid)
            self._ask_refused = min(self._ask_refused, time.monotonic() + REFUSED_AGAIN)
        self._renewals.remove((self, uid))

    def _stand(self, session_id: str, subscription: LocalSubscription, granted: Granted) -> None:
        uid = subscription.uid
        due = self._report_credits
        standing = _Standing(subscription, granted.number, granted.lease, self._news, due, granted.prefetch)
        standing.quality = granted.qos
        with self._changed:
            subscription.stood_at.add(self.ref.service_id)
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
                lambda _why: self._subscribe_again(uid),
                grantor=self,
            )

    def _subscribe_again(self, uid: str) -> None:
        with self._changed:
            standing = self._standing.pop(uid, None)
            if standing is not None:
                self._by_number.pop(standing.number, None)
            self._dirty = True
            self._changed.notify_all()

    def _wait_for_work(self) -> None:
        with self._changed:
            while not (self._dirty or self._lost or self._stopping.is_set() or self._stands_empty()):
                if time.monotonic() >= self._ask_refused:
                    return
                self._changed.wait(1.0)

    def _renew(self, lease_id: str) -> float:
        return self._proxy.renew(lease_id, self._config.lease.subscriber).duration

    def _lose_session(self, why: JbiError) -> None:
        """The delegate does not know us any more. Called on the session's threads or the renewal manager's."""
        with self._changed:
            if self._lost or self._opened is None:
                return
            address = ", ".join(self.ref.endpoints)
            if self._parted:
                log.info("%s: delegate %s has stopped", self._name, address)
            else:
                log.warning("%s: session at delegate %s lost: %s", self._name, address, why)
            self._lost = True
            self._cancelled = {uid: right for uid, right in self._cancelled.items() if right != self._opened.uid}
            self._unsure = {uid: s for uid, s in self._unsure.items() if not s.request.direct}
            direct = [s for s in self._standing.values() if s.subscription.request.direct]
            for standing in direct:
                self._standing.pop(standing.subscription.uid)
                self._by_number.pop(standing.number, None)
            receiver = self._receiver
            self._changed.notify_all()
        self._renewals.remove(self)
        if receiver is not None:
            receiver.stop()
        if not self._parted:  # else it has told what was lost
            with self._changed:
                self._untold += [standing.subscription for standing in direct]

    def _tell_losses(self, cause: Cause, why: str) -> None:
        """What stood there when the session was lost may have lost something. Whose death it was is the cause."""
        with self._changed:
            untold, self._untold = self._untold, []
        for subscription in untold:
            subscription.lose(cause, 0, why)

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
        return (self._opened is None or self._lost) and not (self._wanted or self._cancelled or self._unsure)

    def _end(self, why: JbiError) -> None:
        self._lose_session(why)
        with self._changed:  # objects for these were perhaps there, too
            self._untold += [
                s for s in self._wanted.values() if s.request.direct and self.ref.service_id not in s.stood_at
            ]
        self._tell_losses(Cause.DELEGATE_DEAD, why.message)
        self._stopping.set()
        self._renew_nothing()
        self._proxy.close()
        self._ended(self)

    def _renew_nothing(self) -> None:
        """The leases run out, or are taken over by the next session: e-mail subscriptions live on."""
        self._renewals.remove(self)
        with self._changed:
            for uid in self._standing:
                self._renewals.remove((self, uid))

    # -- the delivery connection --------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        receiver: Receiver | None = None
        session_id = ""
        backoff = BACKOFF_FIRST
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
                    self._lose_session(exc)
                except JbiError as exc:
                    log.debug("%s: deliveries from %s ended: %s", self._name, self.ref.endpoints, exc)
                    if self._parted:
                        self._lose_session(exc)
            useful = receiver.position > position or time.monotonic() - began > 1.0
            backoff = BACKOFF_FIRST if useful else min(2 * backoff, BACKOFF_MOST)
            self._stopping.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

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
                self._renewals.hasten(self)
            with self._changed:
                self._receiver = receiver
                for standing in self._by_number.values():
                    standing.report_again()  # the last line may have swallowed it
            receiver.run(line)
        finally:
            with self._changed:
                self._receiver = None
            sock.close()

    def _take(self, items: list[memoryview]) -> None:
        """Hand a batch on: to each subscription at once what is for it."""
        arrived: dict[_Standing, list[InfoObject]] = {}
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
            standing.gather(body)
            if kind == LAST_CHUNK:
                arrived.setdefault(standing, []).append(decode_cut(standing.gathered()))
        elif kind == LOSS:
            self._hand_on(arrived)  # what came before the loss is told before it
            notice = _notice(body)
            standing.subscription.lose(notice.cause, notice.count, notice.detail)
        elif kind == QUALITY:
            standing.quality = _granted(body)
            standing.subscription.qos_changed(standing.quality)
        else:
            raise ProtocolError(f"delivery of kind {kind}")

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
        return self._dirty or any(uid not in self._standing and uid not in self._refused for uid in self._wanted)

    def _hand_on(self, arrived: dict[_Standing, list[InfoObject]]) -> None:
        if self._signatures is None:
            for standing, objects in arrived.items():
                standing.subscription.add(objects, standing.consume)
        else:
            self._signatures.begin()
            for standing, objects in arrived.items():
                of = standing.subscription
                looked = self._signatures.look(objects, of.filter_digest, takes_shapes=of.takes_shapes)
                self._hand_on_signed(standing, looked)
        arrived.clear()

    def _hand_on_signed(self, standing: _Standing, looked: Looked) -> None:
        if looked.dropped:
            standing.consume(looked.dropped)
            standing.subscription.lose(Cause.BAD_SIGNATURE, looked.dropped, looked.why)
        if looked.objects:
            standing.subscription.add(looked.objects, standing.consume)

    def _report_credits(self) -> None:
        receiver = self._receiver
        if receiver is not None:
            receiver.report()

    def _consumed(self) -> bytes:
        """The note of an acknowledgement: what was consumed in all, of those of which something was since the last."""
        consumed = {}
        while self._news:
            try:
                standing = self._news.popleft()
            except IndexError:  # another thread reports as well
                break
            if standing.report() and self._by_number.get(standing.number) is standing:
                consumed[standing.number] = standing.reported
        return msgspec.msgpack.encode(consumed) if consumed else b""


def _at_most(count: int) -> int:
    if not 1 <= count <= SHARED_MOST:
        raise ProtocolError(f"delivery for {count} subscriptions, the limit is {SHARED_MOST}")
    return count


def _granted(body: memoryview) -> GrantedQos:
    try:
        return decoder_of(GrantedQos).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad notice of quality: {exc}") from exc


def _notice(body: memoryview) -> LossNotice:
    try:
        return decoder_of(LossNotice).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad loss notice: {exc}") from exc
