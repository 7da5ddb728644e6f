"""A subscription in the subscriber's process: its terms, its queue, its account of losses."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import TIMES, Cause, InfoObject, LossNotice
from jbi_pubsub.core.quality import GrantedQos, Wish
from jbi_pubsub.core.signing import filter_digest
from jbi_pubsub.protocol.replies import SubscribeReply
from jbi_pubsub.protocol.requests import SubscriptionRequest

from .first_level import FirstLevel, Fitness
from .listeners import ListenerPool, SubscriptionListener, SubscriptionUid
from .published import type_asked
from .queue import Consumer, ObjectQueue

log = logging.getLogger("jbi_pubsub.subscriber")
matching_log = logging.getLogger("jbi_pubsub.subscriber.matching")
"""Matching of subscriptions, for people: a line when one is made, when that changes before something matches, and when
it can match nothing."""

CONTRADICTIONS_MOST: Final = 100
"""Delegates and peer publishers of which a subscription knows whether it can match nothing there; the last ones."""


class Contradiction(NamedTuple):
    """Why a subscription can match nothing at a delegate or peer publisher, a line for each condition, and of how many
    registrations that was said."""

    lines: tuple[str, ...] = ()
    judged: int = 0


_NONE: Final = Contradiction()

FILTERS_MOST: Final = 4
"""Payload filters of a subscription, the last ones, by which what comes may be cut."""


def _digests(request: SubscriptionRequest) -> tuple[bytes, ...]:
    return (filter_digest(request.payload_filter, request.namespaces),) if request.payload_filter else ()


REGISTRATIONS_REMEMBERED: Final = 10_000
"""Publisher registrations whose last sequence number a subscription keeps to drop duplicates; the least recent go."""


class RegistrationProgress:
    """Progress of one registration: the last number, and what happened when a delegate took over from another.

    Whoever takes over publishes everything from the first object on that its predecessor had not taken. So what the
    predecessor still has between its last delivery and the successor's first one comes from nobody else.
    """

    __slots__ = ("is_counted", "last", "overtaken", "since", "source", "turn")

    def __init__(self, source: Consumer, turn: int) -> None:
        """`turn`: of the source that stood last when it began; what a later one has from before is not of interest."""
        self.turn = turn
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

    def is_late(self, sequence: int, source: Consumer, turn: int) -> bool:
        """Whether an object that is not new was never seen, nor is from before; asked once for each."""
        if source == self.source or self.is_counted or not self.overtaken < sequence < self.since:
            return False
        if not self.overtaken and turn > self.turn:
            return False
        self.overtaken = sequence
        return True


class ArrivalOrder:
    """The order of what comes for a subscription: copies are known by their registration's numbers, and delegates that
    take over from others by the gaps that they leave. The queue's lock covers it."""

    def __init__(self) -> None:
        self._registrations: OrderedDict[str, RegistrationProgress] = OrderedDict()
        self._turns: dict[Consumer, int] = {}
        """Sources that stand, by the order in which they came to do so."""
        self._turn = 0
        self._moved: set[Consumer] = set()
        """Sources from which registrations have moved, and whose session has not ended."""
        self.missing: tuple[Consumer | None, int] = (None, 0)
        """Objects that never came to a source, which has just told so: their numbers are before that of the next."""
        self.told: dict[Consumer, int] = {}
        """Losses that a source has told by number, of whose numbers nothing behind has come yet."""

    def open(self, source: Consumer) -> None:
        """The subscription stands at a source from now on. One that was started again hears all that its network still
        has, also from before the subscription."""
        self._turn += 1
        self._turns[source] = self._turn

    def is_late(self, progress: RegistrationProgress, sequence: int, source: Consumer) -> bool:
        """See `RegistrationProgress.is_late`."""
        return progress.is_late(sequence, source, self._turns.get(source, 0))

    def of(self, registration: str, source: Consumer) -> RegistrationProgress:
        """Progress of a registration, of which something comes from that source."""
        progress = self._registrations.get(registration)
        if progress is None:
            progress = self._registrations[registration] = RegistrationProgress(source, self._turn)
            if len(self._registrations) > REGISTRATIONS_REMEMBERED:
                self._registrations.popitem(last=False)
        self._registrations.move_to_end(registration)
        return progress

    def begin(self, progress: RegistrationProgress, sequence: int, source: Consumer) -> int:
        """Begin with the first object of a registration from there; see `RegistrationProgress.begin`."""
        before = progress.source if progress.last else None
        gap = progress.begin(sequence, source)
        if before is not None and before != source:
            self._moved.add(before)
        return gap

    def lose(self, source: Consumer, count: int, *, is_gap: bool) -> None:
        """A source tells that so many objects are lost; `is_gap`: they never came to it."""
        if count:
            self.told[source] = self.told.get(source, 0) + count
        if is_gap:
            before, missing = self.missing
            self.missing = source, count + (missing if before == source else 0)

    def pass_over(self, source: Consumer, numbers: int) -> int:
        """So many numbers of a registration do not come from there: they are among those told. How many others are."""
        left = self.told.pop(source, 0) - numbers
        if left > 0:
            self.told[source] = left
        return max(left, 0)

    def may_lack(self, source: Consumer, matched: Iterable[str]) -> bool:
        """Whether there may have been something that has not come, and was not told: of a registration whose objects
        came from there last, or never came, of those that are `matched`."""
        if source not in self._moved or any(uid not in self._registrations for uid in matched):
            return True
        return any(progress.source == source for progress in self._registrations.values())

    def settle(self, source: Consumer) -> None:
        """Expect nothing more from there: what was lost there is told, or about to be."""
        self._moved.discard(source)
        self._turns.pop(source, None)
        self.told.pop(source, None)
        for progress in self._registrations.values():
            if progress.source == source:
                progress.source = None


PERHAPS_NONE: Final = frozenset({Cause.DELEGATE_DEAD, Cause.SUBSCRIBER_DEAD, Cause.REFUSED, Cause.CANCELLED})
"""Causes by which, where no number is told, nothing need be lost; by others something is."""

AS_ASKED: Final = frozenset((Cause.RATE, Cause.DEADLINE, Cause.REPLACED))
"""Causes that no fault is behind: a policy or a wish limits what comes."""


class LossAccount:
    """Losses of a subscription: counted by cause, told its listener, and logged. The queue's lock covers it."""

    def __init__(self, uid: SubscriptionUid, queue: ObjectQueue) -> None:
        self.by_cause: Counter[str] = Counter()
        self._uid = uid
        self._queue = queue
        self._mail: dict[str, Counter[Cause]] = {}
        """Losses of mail that are told, by the lease at its delegate."""

    def add(self, cause: Cause, count: int, detail: str = "") -> None:
        """Objects were lost: `count` of them, 0 when that is not known. The log is told of the first of a cause, then
        of the sum whenever that has doubled; of what was asked for, once."""
        if not count and "perhaps none" not in detail:
            side = "how many is not known, " + ("perhaps none" if cause in PERHAPS_NONE else "at least one")
            detail = f"{detail}; {side}" if detail else side
        with self._queue.changed:
            if self._queue.is_closed:
                return
            self.note(cause, count, detail)
        self.log(cause, count, detail)

    def add_mail(self, lease_id: str, totals: Mapping[Cause, int], detail: str) -> None:
        """The delegate of that lease has lost so many in all by now: what of that is new is told. After a crash it may
        know of fewer, and lose these again."""
        with self._queue.changed:
            new = Counter(totals) - self._mail.get(lease_id, Counter())
            if new:
                self._mail.setdefault(lease_id, Counter()).update(new)
        for cause, count in new.items():
            self.add(cause, count, detail)

    def note(self, cause: Cause, count: int, detail: str) -> None:
        """Under the lock: count it, and have the listener told before the next object."""
        self.by_cause[cause] += max(count, 1)
        self._queue.tell(LossNotice(self._uid, cause, count, detail))

    def log(self, cause: Cause, count: int, detail: str) -> None:
        total = self.by_cause[cause]
        before = total - max(count, 1)
        if before.bit_length() == total.bit_length():
            return  # a full queue loses object by object: told are the first, and each power of two that is passed
        number = f"{total} objects so far" if before and count else _objects(count)
        if cause in AS_ASKED:
            if not before:
                log.info("subscription %s: objects are left out, as a policy or its wish asks: %s", self._uid, cause)
            return
        facts = {"subscription": self._uid, "cause": cause.value, "count": total if before else count}
        why = f"{cause}, {detail}" if detail else cause
        if cause is Cause.REFUSED and not count:
            matching_log.warning(
                "subscription %s is refused: %s", self._uid, detail or "access was withdrawn", extra=facts
            )
            return
        log.warning("subscription %s lost %s: %s", self._uid, number, why, extra=facts)


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count or 'an unknown number of'} objects"


class SubscriptionTerms:
    """Terms of a subscription, which may be amended."""

    def __init__(self, request: SubscriptionRequest) -> None:
        self.request = request
        self.first_level: FirstLevel | None = None
        """Options that its template is made of; None for what has no predicate to amend."""
        self.language = ""
        """Language that the application says its predicates in; "" for the default."""
        self.filter_digests = _digests(request)
        """Digests of the payload filters that it has, and had before it was amended: what comes may be cut by one of
        these."""
        self.takes_shapes = bool(request.qos.shape)
        """Whether a delegate's word is taken for payloads that it has shaped (docs/signatures.md)."""
        self.amending = threading.Lock()
        """One amendment at a time."""
        self.revision = 0
        """Number of amendments."""
        self.since: float | None = None
        """Since when those stand for whom it is amended now (monotonic seconds), who are to get first objects."""
        self._lock = threading.Lock()
        self._refusals: dict[int, JbiError | None] = {}
        """Reason of a delegate's refusal, of the amendment whose caller waits for answers."""

    @property
    def decided(self) -> FirstLevel:
        """Options of its template, for the type that was decided on when it was made."""
        assert self.first_level is not None
        meant = type_asked(self.request.entries).name if self.first_level.last_part else None
        return replace(self.first_level, name=meant, is_whole=True) if meant else self.first_level

    @property
    def last_part(self) -> str:
        """Last part of its type's name if it was made by that alone, and others may have it; else ""."""
        given, meant = self.first_level, type_asked(self.request.entries).name
        if given is None or given.last_part == meant or (meant and given.options.get("schema")):
            return ""  # of several types a schema says which is meant
        return given.last_part

    def amend(self, request: SubscriptionRequest, *, is_awaited: bool) -> int:
        """Have it ask for something else from now on; the number of the amendment. `is_awaited`: a delegate's refusal
        is for the caller."""
        with self._lock:
            self.request = request
            self.filter_digests = tuple(dict.fromkeys((*_digests(request), *self.filter_digests)))[:FILTERS_MOST]
            self.takes_shapes = self.takes_shapes or bool(request.qos.shape)
            self.revision += 1
            self._refusals = {self.revision: None} if is_awaited else {}
            return self.revision

    def refuse(self, revision: int, why: JbiError) -> bool:
        """A delegate refuses an amendment; whether its caller is told."""
        with self._lock:
            if revision not in self._refusals:
                return False
            self._refusals[revision] = self._refusals[revision] or why
            return True

    def refusal(self) -> JbiError | None:
        """Why the amendment that is waited for is refused."""
        return next(iter(self._refusals.values()), None)

    def end_amendment(self) -> None:
        """Nobody waits for answers any more."""
        with self._lock:
            self._refusals = {}


class LocalSubscription:
    """Objects for the application, and what became of others. Its queue's `changed` covers all state."""

    def __init__(
        self, request: SubscriptionRequest, listener: SubscriptionListener | None, listeners: ListenerPool
    ) -> None:
        """`listeners` calls the `listener`, if there is one."""
        self.uid = SubscriptionUid(request.uid)
        self.terms = SubscriptionTerms(request)
        self.fitness: Fitness | None = None
        """Check that metadata have to pass; None: whatever was published."""
        self.queue = ObjectQueue(self.uid, listener, listeners, self.lose)
        self.losses = LossAccount(self.uid, self.queue)
        self.order = ArrivalOrder()
        self.arrived = 0
        self.duplicates = 0
        self.is_narrowed = False
        """Access rules may keep objects from it that it matches."""
        self.has_begun = False
        """Whether its application has been told that it stands."""
        self.stood_at: set[str] = set()
        """Delegates and peer publishers (service ids) at which it has stood: there it has got what was published
        meanwhile, or is told of the loss."""
        self._contradictions: Cache[str, Contradiction] = Cache(CONTRADICTIONS_MOST)
        """Those of delegates and peer publishers, by service ids."""
        self._since: float | None = None

    def impossible(self, registrations: Mapping[str, int]) -> tuple[str, ...]:
        """Why it can match nothing of `registrations`, which match it now, by service ids of delegates and peer
        publishers; () if it may, or if other ones have come since that was judged."""
        said = [self._contradictions.get(server, _NONE) for server in registrations]
        if not all(each.lines for each in said):
            return ()
        if any(each.judged < count for each, count in zip(said, registrations.values(), strict=True)):
            return ()
        return tuple(dict.fromkeys(line for each in said for line in each.lines))

    def note_contradictions(self, server: str, answer: SubscribeReply) -> None:
        """A delegate or peer publisher may have said why it can match nothing there. Its application is told once."""
        if answer.granted is None:
            return
        with self.queue.changed:
            before = self._contradictions.get(server, _NONE)
            self._contradictions[server] = Contradiction(answer.impossible, answer.judged)
        if not all(each.lines for each in list(self._contradictions.values())):
            return
        for line in answer.impossible:
            if line not in before.lines:
                matching_log.warning("subscription %s: %s", self.uid, line, extra={"subscription": self.uid})

    def stand_at(self, server: str, source: Consumer) -> None:
        """Note that it stands at a delegate or peer publisher from now on, of which `source` is told what is taken."""
        with self.queue.changed:
            self.stood_at.add(server)
            self.order.open(source)

    def kept_at(self) -> list[str]:
        """Archives (addresses) that keep it when its session has ended."""
        return []

    def close(self) -> None:
        """Nobody takes from it any more, and nothing of its sources is held, such as files of objects that have come by
        half."""
        with self.queue.changed:
            self.order = ArrivalOrder()
        self.queue.close()

    def note_gone(self, server: str) -> None:
        """A registration has gone at a delegate or peer publisher: the next one there has not been judged."""
        with self.queue.changed:
            if (said := self._contradictions.get(server)) is not None:
                self._contradictions[server] = said._replace(judged=said.judged - 1)

    @property
    def request(self) -> SubscriptionRequest:
        """Its request, as it was amended last."""
        return self.terms.request

    def stand(self, since: float | None = None) -> float:
        """Since when it stands (monotonic seconds): its application has been told so, or a delegate is about to hear of
        it, whichever is first, or for whom it stands had been (`since`). What is published from then on it is to
        get."""
        with self.queue.changed:
            if self._since is None:
                self._since = time.monotonic() if since is None else since
            return self._since

    def request_at(self, server: str) -> SubscriptionRequest:  # noqa: ARG002  # others go on where they were there
        """Request to a delegate or peer publisher (service id)."""
        return self.request

    def add(self, objects: Sequence[InfoObject], consumed: Consumer) -> None:
        """Objects have come; those seen before are dropped (same registration, not a later sequence number)."""
        dropped = late = 0
        registration, progress = "", None
        told: list[tuple[Cause, int, str]] = []
        with self.queue.changed:
            lost = self.order.told.get(consumed, 0)
            if self.queue.is_closed:
                dropped, objects = len(objects), ()
            for obj in objects:
                platform = obj.platform
                if progress is None or platform.registration != registration:
                    registration = platform.registration
                    progress = self.order.of(registration, consumed)
                sequence = platform.sequence
                if sequence > progress.last:
                    if lost and progress.last and progress.source == consumed and not platform.via:
                        lost = self.order.pass_over(consumed, sequence - progress.last - 1)
                    if consumed is not progress.source or not progress.last:
                        told += self._begin(progress, obj, consumed)
                    progress.last = sequence
                    self.queue.waiting.append((obj, consumed))
                    continue
                dropped += 1
                late += self.order.is_late(progress, sequence, consumed)
            if objects:
                self.order.missing = (None, 0)
                self.arrived += len(objects) - dropped
                self.duplicates += dropped - late
                self.queue.announce()
        for cause, count, detail in told:
            self.losses.log(cause, count, detail)
        if dropped:
            consumed(dropped)
        if late:
            self.lose(Cause.LATE, late)

    def _begin(
        self, progress: RegistrationProgress, obj: InfoObject, consumed: Consumer
    ) -> list[tuple[Cause, int, str]]:
        """Under the lock: begin with the first object of a registration from there; losses that are told before it:
        what the delegate before had, and has not given. Their number is known where all objects are wanted."""
        last, before = progress.last, progress.source
        gap = self.order.begin(progress, obj.platform.sequence, consumed)
        request = self.request
        chooses = request.predicate or request.suppress_empty or request.qos != Wish() or self.fitness is not None
        chooses = chooses or bool(obj.platform.via)  # a bridge may leave objects out
        (source, missing), self.order.missing = self.order.missing, (None, 0)
        if source == consumed and not chooses:  # where it chooses, these may be another registration's
            missing = min(gap, missing)
            gap -= missing
            self.order.pass_over(consumed, missing)
        if not gap:
            return []
        is_told = before in self.order.told or consumed in self.order.told  # some of these, perhaps
        progress.is_counted = not (chooses or self.is_narrowed or is_told)
        registration = f"registration {obj.platform.registration}"
        detail = f"numbers {last + 1} to {obj.platform.sequence - 1} of {registration} have not come"
        detail += " from the delegate that it had before"
        if obj.platform.sequence >= TIMES:
            detail = f"{registration} goes on at another delegate; how many is not known, perhaps none"
        elif not progress.is_counted:
            detail += f"; {gap} at most, perhaps none"
        loss = Cause.DELEGATE_DEAD, gap if progress.is_counted else 0, detail
        self.losses.note(*loss)
        return [loss]

    def may_lack(self, source: Consumer, matched: Collection[str], *, is_placed: bool) -> bool:  # noqa: ARG002
        """Whether there may have been something that has not come, and was not told; see `ArrivalOrder`. `is_placed`:
        an archive has what was there."""
        with self.queue.changed:
            return self.order.may_lack(source, matched)

    def settle(self, source: Consumer) -> None:
        """Expect nothing more from there: what was lost there is told, or about to be."""
        with self.queue.changed:
            self.order.settle(source)

    def lose(self, cause: Cause, count: int, detail: str = "", source: Consumer | None = None) -> None:
        """Note a loss: see `LossAccount`. `source`: the one that tells it."""
        with self.queue.changed:
            if source is not None and not self.queue.is_closed:
                self.order.lose(source, count, is_gap=cause is Cause.SEQUENCE_GAP)
        self.losses.add(cause, count, detail)

    def qos_changed(self, granted: GrantedQos) -> None:
        """Have its listener told that it has got something else of its wish."""
        with self.queue.changed:
            if not self.queue.is_closed:
                self.queue.tell(granted)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "arrived": self.arrived,
            "waiting": len(self.queue.waiting),
            "duplicates": self.duplicates,
            "listener_errors": self.queue.calls.errors,
            "lost": dict(self.losses.by_cause),
        }
