"""A subscription in the subscriber's process: its own queue, its listener, its account of losses."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NewType, Protocol, runtime_checkable

from jbi_pubsub.core.arguments import called, may_have
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import TOLD_WHOLE
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice
from jbi_pubsub.core.quality import GrantedQos, Wish
from jbi_pubsub.core.signing import filter_digest
from jbi_pubsub.protocol.requests import SubscriptionRequest

from .first_level import FirstLevel
from .fitness import Fitness
from .listeners import ListenerPool, Tries

log = logging.getLogger("jbi_pubsub.subscriber")

SubscriptionUid = NewType("SubscriptionUid", str)
"""Identifies a subscription, in all calls of the adapter that made it."""

SERVED_AT_ONCE: Final = 32
"""Calls of one listener before others have their turn."""
CLOSE_SECONDS: Final = 5.0
"""How long closing a subscription waits for its listener to return."""

REGISTRATIONS_REMEMBERED: Final = 10_000
"""Publisher registrations whose last sequence number a subscription keeps to drop duplicates; the least recent go."""


PERHAPS_NONE: Final = frozenset({Cause.DELEGATE_DEAD, Cause.SUBSCRIBER_DEAD, Cause.REFUSED, Cause.CANCELLED})
"""Causes by which, where no number is told, nothing need be lost; by others something is."""

AS_ASKED: Final = frozenset((Cause.RATE, Cause.DEADLINE, Cause.REPLACED))
"""Causes that no fault is behind: a policy or a wish limits what comes."""


@may_have("qos_changed")
@runtime_checkable
class SubscriptionListener(Protocol):
    """What an application is told (paper section 2.4(5)). Calls are serial per subscription, on a library thread: plain
    functions, no `async def`. A listener that takes its time delays only its own subscription (see listeners.py).

    A listener that raises has not taken the object, which a durable subscription does not acknowledge then: it gets it
    again, five times at most, after pauses that double from 0.1 s to 5 s as long as it takes none, and what follows
    waits. An object that it failed on each time is told as lost (`listener_failed`). Exceptions are counted and logged,
    the first ones with their tracebacks, then each power of two; those of `lost` are nothing else.
    """

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object arrived. It is consumed by this call and does not go to the queue."""

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Objects were lost: how many (0: not known, `notice.detail` says whether perhaps none) and why."""


@runtime_checkable
class QualityListener(Protocol):
    """What a listener may have besides."""

    def qos_changed(self, subscription: SubscriptionUid, granted: GrantedQos) -> None:
        """A delegate or peer publisher grants something else of what was wished than before."""


class Told:
    """A function as a listener: called with each object. Losses are logged and counted (`losses`)."""

    def __init__(self, function: Callable[[SubscriptionUid, InfoObject], object]) -> None:
        self._function = function

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object arrived."""
        called(self._function, subscription, obj)

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Nothing to be done: it is in the log and in the account already."""


FILTERS_MOST: Final = 4
"""Payload filters of a subscription, the last ones, by which what comes may be cut."""


def _digests(request: SubscriptionRequest) -> tuple[bytes, ...]:
    return (filter_digest(request.payload_filter, request.namespaces),) if request.payload_filter else ()


Consumer = Callable[[int], None]
"""Called with the number of objects that the application has taken: returns credits to where they came from."""


class _Seen:
    """What has come of one registration: the last number, and what happened when a delegate took over from another.

    Whoever takes over publishes everything from the first object on that its predecessor had not taken. So what the
    predecessor still has between its last delivery and the successor's first one comes from nobody else.
    """

    __slots__ = ("is_counted", "last", "overtaken", "since", "source")

    def __init__(self, source: Consumer) -> None:
        self.source: Consumer | None = source
        """None: it has told what was lost there, and gives no more."""
        self.last = self.since = self.overtaken = 0
        self.is_counted = False
        """Whether what came between is told as lost already, object by object."""

    def begin(self, sequence: int, source: Consumer) -> int:
        """An object that is new, the first one at all or the next one from `source`. How many numbers have not come
        from the source before, which has not said what has become of them."""
        if self.last and source == self.source:
            self.source = source  # another object may stand for the same: asked by identity from now on
            return 0
        is_open, self.is_counted = bool(self.last) and self.source is not None, False
        self.source, self.overtaken, self.since = source, self.last, sequence
        return sequence - self.overtaken - 1 if is_open else 0

    def is_late(self, sequence: int, source: Consumer) -> bool:
        """Whether an object that is not new was never seen; asked once for each."""
        if source == self.source or self.is_counted or not self.overtaken < sequence < self.since:
            return False
        self.overtaken = sequence
        return True


class LocalSubscription:
    """Objects wait here for the application. Any thread may add or take; `_changed` covers all state."""

    def __init__(
        self, request: SubscriptionRequest, listener: SubscriptionListener | None, listeners: ListenerPool
    ) -> None:
        """`listeners` calls the `listener`, if there is one."""
        self.fitness: Fitness | None = None
        """What metadata have to be; None: whatever was published."""
        self.uid = SubscriptionUid(request.uid)
        self.request = request
        self.filter_digests = _digests(request)
        """Of the payload filters that it has, and had before it was amended: what comes may be cut by one of these."""
        self.first_level: FirstLevel | None = None
        """What its template is made of; None for who has no predicate to amend."""
        self.amending = threading.Lock()
        """One amendment at a time."""
        self.revision = 0
        """How often it was amended."""
        self._refusals: dict[int, JbiError | None] = {}
        """Of the amendment whose caller waits for answers: why a delegate refuses it."""
        self.takes_shapes = bool(request.qos.shape)
        """Whether a delegate's word is taken for payloads that it has shaped (docs/signatures.md)."""
        self._listener = listener
        self._changed = threading.Condition()
        self._waiting: deque[tuple[InfoObject, Consumer]] = deque()
        self._notices: deque[LossNotice | GrantedQos] = deque()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._moved: set[Consumer] = set()
        """From where registrations have moved, whose session has not ended."""
        self._closed = False
        self.is_narrowed = False
        """Access rules may keep objects from it that it matches."""
        self.has_begun = False
        """Whether its application has been told that it stands."""
        self._since: float | None = None
        self.stood_at: set[str] = set()
        """Delegates and peer publishers (service ids) at which it has stood: there it has got what was published
        meanwhile, or is told of the loss."""
        self.arrived = 0
        self.duplicates = 0
        self.listener_errors = 0
        self.lost: Counter[str] = Counter()
        self._mail_lost: dict[str, Counter[Cause]] = {}
        """What of that is told of mail alone, by the lease at its delegate."""
        self._listeners = listeners
        self._tries = Tries()
        self._submitted = False
        self._is_paused = False
        self._served_by: threading.Thread | None = None

    def stand(self) -> float:
        """Since when it stands (monotonic seconds): its application has been told so, or a delegate is about to hear of
        it, whichever is first. What is published from then on it is to get."""
        with self._changed:
            if self._since is None:
                self._since = time.monotonic()
            return self._since

    def request_at(self, server: str) -> SubscriptionRequest:  # noqa: ARG002  # others go on where they were there
        """What a delegate or peer publisher (service id) is asked."""
        return self.request

    def amend(self, request: SubscriptionRequest, *, is_awaited: bool) -> int:
        """It asks for something else from now on; the number of the amendment. `is_awaited`: a delegate's refusal is
        for the caller."""
        with self._changed:
            self.request = request
            self.filter_digests = tuple(dict.fromkeys((*_digests(request), *self.filter_digests)))[:FILTERS_MOST]
            self.takes_shapes = self.takes_shapes or bool(request.qos.shape)
            self.revision += 1
            self._refusals = {self.revision: None} if is_awaited else {}
            return self.revision

    def refuse(self, revision: int, why: JbiError) -> bool:
        """A delegate refuses an amendment; whether its caller is told."""
        with self._changed:
            if revision not in self._refusals:
                return False
            self._refusals[revision] = self._refusals[revision] or why
            return True

    def refusal(self) -> JbiError | None:
        """Why the amendment that is waited for is refused."""
        return next(iter(self._refusals.values()), None)

    def end_amendment(self) -> None:
        """Nobody waits for answers any more."""
        with self._changed:
            self._refusals = {}

    def add(self, objects: Sequence[InfoObject], consumed: Consumer) -> None:
        """Objects have come; those seen before are dropped (same registration, not a later sequence number)."""
        dropped = late = 0
        registration, seen = "", None
        told: list[tuple[Cause, int, str]] = []
        with self._changed:
            if self._closed:
                dropped, objects = len(objects), ()
            for obj in objects:
                platform = obj.platform
                if seen is None or platform.registration != registration:
                    registration = platform.registration
                    seen = self._seen_of(registration, consumed)
                sequence = platform.sequence
                if sequence > seen.last:
                    if consumed is not seen.source or not seen.last:
                        told += self._begin(seen, obj, consumed)
                    seen.last = sequence
                    self._waiting.append((obj, consumed))
                    continue
                dropped += 1
                late += seen.is_late(sequence, consumed)
            if objects:
                self.arrived += len(objects) - dropped
                self.duplicates += dropped - late
                self._announce()
        for cause, count, detail in told:
            self._log_loss(cause, count, detail)
        if dropped:
            consumed(dropped)
        if late:
            self.lose(Cause.LATE, late)

    def _begin(self, seen: _Seen, obj: InfoObject, consumed: Consumer) -> list[tuple[Cause, int, str]]:
        """Under the lock: the first object of a registration from there. What is told as lost before it: what the
        delegate before had, and has not given; how many these are is known where all objects are wanted."""
        before, last = seen.source, seen.last
        gap = seen.begin(obj.platform.sequence, consumed)
        if before is not None and last and before != consumed:
            self._moved.add(before)
        if not gap or obj.platform.via:  # a bridge may leave objects out
            return []
        request = self.request
        chooses = request.predicate or request.suppress_empty or request.qos != Wish() or self.fitness is not None
        seen.is_counted = not (chooses or self.is_narrowed or self.lost)
        span = f"numbers {last + 1} to {obj.platform.sequence - 1} of registration {obj.platform.registration}"
        loss = (
            Cause.DELEGATE_DEAD,
            gap if seen.is_counted else 0,
            f"{span} have not come from the delegate that it had before"
            + ("" if seen.is_counted else f"; {gap} at most, perhaps none"),
        )
        self._note_loss(*loss)
        return [loss]

    def may_lack(self, source: Consumer, matched: Collection[str], *, is_placed: bool) -> bool:  # noqa: ARG002
        """Whether there may have been something that has not come, and was not told: of a registration whose objects
        came from there last, or never came, of those that it has `matched`. `is_placed`: an archive has what was
        there."""
        with self._changed:
            if source not in self._moved or any(uid not in self._seen for uid in matched):
                return True
            return any(seen.source == source for seen in self._seen.values())

    def settle(self, source: Consumer) -> None:
        """Nothing more comes from there, and what was lost there is told, or about to be."""
        with self._changed:
            self._moved.discard(source)
            for seen in self._seen.values():
                if seen.source == source:
                    seen.source = None

    def _seen_of(self, registration: str, source: Consumer) -> _Seen:
        seen = self._seen.get(registration)
        if seen is None:
            seen = self._seen[registration] = _Seen(source)
            if len(self._seen) > REGISTRATIONS_REMEMBERED:
                self._seen.popitem(last=False)
        self._seen.move_to_end(registration)
        return seen

    def lose(self, cause: Cause, count: int, detail: str = "") -> None:
        """Objects were lost: `count` of them, 0 when that is not known. The log is told of the first of a cause, then
        of the sum whenever that has doubled; of what was asked for, once."""
        if not count and "perhaps none" not in detail:
            side = "how many is not known, " + ("perhaps none" if cause in PERHAPS_NONE else "at least one")
            detail = f"{detail}; {side}" if detail else side
        with self._changed:
            if self._closed:
                return
            self._note_loss(cause, count, detail)
        self._log_loss(cause, count, detail)

    def lose_mail(self, lease_id: str, totals: Mapping[Cause, int], detail: str) -> None:
        """The delegate of that lease has lost so many in all by now: what of that is new is told. After a crash it may
        know of fewer, and lose these again."""
        with self._changed:
            new = Counter(totals) - self._mail_lost.get(lease_id, Counter())
            if new:
                self._mail_lost.setdefault(lease_id, Counter()).update(new)
        for cause, count in new.items():
            self.lose(cause, count, detail)

    def _note_loss(self, cause: Cause, count: int, detail: str) -> None:
        """Under the lock: count it, and have the listener told before the next object."""
        self.lost[cause] += max(count, 1)
        if self._listener is not None:
            self._notices.append(LossNotice(self.uid, cause, count, detail))
            self._announce()

    def _log_loss(self, cause: Cause, count: int, detail: str) -> None:
        total = self.lost[cause]
        before = total - max(count, 1)
        if before.bit_length() == total.bit_length():
            return  # a full queue loses object by object: told are the first, and each power of two that is passed
        number = f"{total} objects so far" if before and count else _objects(count)
        if cause in AS_ASKED:
            if not before:
                log.info("subscription %s: objects are left out, as a policy or its wish asks: %s", self.uid, cause)
            return
        facts = {"subscription": self.uid, "cause": cause.value, "count": total if before else count}
        why = f"{cause}, {detail}" if detail else cause
        if cause is Cause.REFUSED and not count:
            log.warning("subscription %s is refused: %s", self.uid, detail or "access was withdrawn", extra=facts)
            return
        log.warning("subscription %s lost %s: %s", self.uid, number, why, extra=facts)

    def qos_changed(self, granted: GrantedQos) -> None:
        """It has got something else of its wish: whoever listens is told."""
        with self._changed:
            if not self._closed and isinstance(self._listener, QualityListener):
                self._notices.append(granted)
                self._announce()

    def take(self, timeout: float) -> InfoObject | None:
        """The next object, or None after `timeout` seconds or when closed."""
        taken: tuple[InfoObject, Consumer] | None
        try:
            taken = self._waiting.popleft()  # what waits needs no lock and no clock
        except IndexError:
            taken = None
        if taken is None:  # not in the handler: Ctrl-C would be told "during handling of" a queue that is empty
            taken = self._await(timeout)
        if taken is None:
            return None
        obj, consumed = taken
        consumed(1)
        return obj

    def _await(self, timeout: float) -> tuple[InfoObject, Consumer] | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._closed and not self._is_paused:
                with suppress(IndexError):  # who has not waited may have been quicker
                    return self._waiting.popleft()
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
        return None

    def drain(self) -> list[InfoObject]:
        """All objects that wait, without waiting."""
        taken = []
        with self._changed, suppress(IndexError):  # nothing more comes under the lock; others may take without it
            while True:
                taken.append(self._waiting.popleft())
        for consumed, count in Counter(consumed for _, consumed in taken).items():
            consumed(count)
        return [obj for obj, _ in taken]

    def __len__(self) -> int:
        return len(self._waiting)

    def pause(self) -> None:
        """What comes waits, within the bound, and whoever waits gets None, until `resume`. The listener is not being
        called any more when this returns, unless it takes longer than some seconds, or calls this itself."""
        with self._changed:
            self._is_paused = True
            self._changed.notify_all()
            if self._served_by is not threading.current_thread():
                self._changed.wait_for(lambda: self._served_by is None, CLOSE_SECONDS)

    def resume(self) -> None:
        """Undo `pause`."""
        with self._changed:
            self._is_paused = False
            self._announce()

    def close(self) -> None:
        """No more objects; whoever waits gets None."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._notices.clear()
            self._changed.notify_all()
            if self._served_by is not threading.current_thread():
                self._changed.wait_for(lambda: self._served_by is None, CLOSE_SECONDS)

    def serve(self) -> bool:
        """Tell the listener some of what waits; whether there is more. One thread at a time (a pool's Client)."""
        with self._changed:
            self._served_by = threading.current_thread()
        for _ in range(SERVED_AT_ONCE):
            if self._is_paused:
                break
            try:
                notice = self._notices.popleft() if self._notices else None
                obj, consumed = (None, None) if notice is not None else self._waiting.popleft()
            except IndexError:  # all of it is told, or it was closed
                break
            why = self._tell(obj, notice)
            if obj is not None and consumed is not None and (why is None or self._is_given_up(obj, consumed, why)):
                consumed(1)
        with self._changed:
            return self._rest()

    def _rest(self) -> bool:
        self._served_by = None
        self._submitted = bool(self._waiting or self._notices) and not self._is_paused
        self._changed.notify_all()
        return self._submitted

    def _announce(self) -> None:
        """Something waits: for the listener, or for those who take."""
        if self._listener is None:
            self._changed.notify(len(self._waiting))
        elif not self._submitted and not self._is_paused and (self._waiting or self._notices):
            self._submitted = True
            self._listeners.submit(self)

    def _is_given_up(self, obj: InfoObject, consumed: Consumer, why: BaseException) -> bool:
        """The listener has failed on an object: told as lost if that was the last time, else it comes again when this
        returns, before all others."""
        pause = self._tries.failed(obj.object_id)
        if pause is None:
            self.lose(Cause.LISTENER_FAILED, 1, f"object {obj.object_id}: {type(why).__name__}: {str(why)[:200]}")
            return True
        with self._changed:
            if not self._closed:
                self._waiting.appendleft((obj, consumed))
                self._changed.wait_for(lambda: self._closed or self._is_paused, pause)
        return False

    def _tell(self, obj: InfoObject | None, notice: LossNotice | GrantedQos | None) -> BaseException | None:
        """What the listener has raised."""
        assert self._listener is not None
        try:
            if isinstance(notice, GrantedQos):
                if isinstance(self._listener, QualityListener):
                    called(self._listener.qos_changed, self.uid, notice)
            elif notice is not None:
                called(self._listener.lost, self.uid, notice)
            elif obj is not None:
                called(self._listener.arrived, self.uid, obj)
                self._tries.taken()
        except (Exception, SystemExit) as exc:  # an application's mistake must not stop its deliveries
            self.listener_errors = count = self.listener_errors + 1
            if count <= TOLD_WHOLE:
                log.error("listener of subscription %s failed", self.uid, exc_info=exc)
            elif count & (count - 1) == 0:
                what = type(exc).__name__
                log.error("listener of subscription %s failed, %d times: %s: %s", self.uid, count, what, exc)
            return exc
        return None


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count or 'an unknown number of'} objects"
