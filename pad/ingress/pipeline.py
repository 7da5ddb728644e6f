"""The way of objects through a delegate or peer publisher: admit, check, keep, match, cut, queue.

They go in runs, consecutive objects of one registration. `admit` may wait and refuse: all back-pressure is there.
`judge` decides what becomes of the objects, and never waits. What it comes to is gathered in Deliveries: the caller has
them `deliver`ed, once for a batch, and then `sync`ed before it acknowledges the batch. One thread at a time for one
registration, which keeps its order.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final, Protocol

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.errors import (
    BackPressureError,
    JbiError,
    MetadataError,
    OversizeError,
    SignatureError,
    StorageError,
    UnknownUidError,
)
from jbi_pubsub.core.guard import note
from jbi_pubsub.core.info_object import Cause, Head, InfoObject, LargeObject, Parcel, Platform, TypeName
from jbi_pubsub.core.quality import LEVELS, Shape
from jbi_pubsub.core.spool import COST_LEAST, MEMORY_BYTES
from jbi_pubsub.core.xml import Element
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.session import Deliveries, SubscriberSession
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.ingress.totals import Account
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.matching.dissemination import (
    Disseminated,
    Judgement,
    Selected,
    ShapedLater,
    disseminate,
    is_shaped,
    shaped,
)
from jbi_pubsub.pad.matching.partition import Partition
from jbi_pubsub.pad.matching.recent import Kept
from jbi_pubsub.pad.matching.registration import Registration, Topic
from jbi_pubsub.pad.matching.signatures import Seals
from jbi_pubsub.pad.model.subscription import Subscription

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.archiving import Synced

log = logging.getLogger("jbi_pubsub.pad")

RUN_MOST: Final = 50
"""Objects after which what they come to is delivered: about half a millisecond's work."""
RUN_BYTES: Final = 1 << 20
"""The same for large objects: what is gathered counts in no queue's bound yet."""

GAP_MOST: Final = 1_000_000
"""Objects that a publisher may claim to have lost between two: 20 s of the fastest. A number beyond is no gap but a
lie, and whoever tells it once could tell all subscribers of 2^53 lost objects."""

SHAPED_AT_ONCE: Final = 0.002
"""Estimated seconds of shaping that is not done at once, but when it is its turn."""

Refused = list[tuple[Parcel, JbiError]]
"""Objects that were not taken, each with the reason."""

NO_OBJECT: Final = InfoObject("", TypeName(""), b"", b"", Platform(0.0, "", 0, 0, 0))
"""Before the first one."""


Good = tuple[Parcel, bytes, Element | Traced | None]
"""An object that is as it was registered, with its metadata and document."""


@dataclass(eq=False, slots=True)
class Staged:
    """An object that goes through the levels of a partitioned table: the next one (-1: it is through), whether it
    matched anybody before, and for how many levels it waits, or is not handed out."""

    kept: Kept
    parts: Partition
    level: int
    is_matched: bool = False
    waits: int = 0

    def leave(self) -> None:
        """If it is through all levels, and handed out."""
        if self.level < 0 and not self.waits:
            self.parts.between.pop(self.kept.position, None)


class Later(Protocol):
    """Takes what of an object is done when it is its turn."""

    def below(self, parts: Partition, level: int) -> int:
        """The next level below that one at which somebody is, or an object before; -1: none. LEVELS is above all."""
        ...

    def may_match(self, staged: Staged) -> bool:
        """Whether no object before it is to be judged for the subscriptions of its level."""
        ...

    def match(self, staged: Staged) -> None:
        """`Pipeline.judge_at` is to be called."""
        ...

    @property
    def behind(self) -> Container[Subscription]:
        """Subscriptions that wait for an object being shaped: what comes for them comes behind that."""
        ...

    def shape(self, published: Parcel, selected: Sequence[Selected]) -> None:
        """`Pipeline.shape` is to be called."""
        ...


class Pipeline:
    """See the module. Methods are safe from several threads, each registration's from one at a time."""

    def __init__(
        self,
        *,
        config: Config,
        stages: Stages,
        budget: Budget,
        sessions: Mapping[str, SubscriberSession],
        mail: MailDispatcher,
        account: Account,
        seals: Seals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sessions` by id: they come and go meanwhile; `account` takes what comes for those who have gone; `seals` say
        what was cut."""
        self._config = config
        self._buffers = stages.buffers
        self._archive = stages.archive
        self._room = stages.room if stages.archive is None else (*stages.room, stages.archive.room)
        self._signatures = stages.signatures
        self._seal = seals.seal if seals is not None else None
        self._shaper = stages.quality.shaper if stages.quality is not None else None
        self._budget = budget
        self._sessions = sessions
        self._mail = mail
        self._account = account
        self._clock = clock
        self._unpacked: tuple[Head | None, InfoObject] = (None, NO_OBJECT)
        self.stopping = Event()

    def admit(
        self, registration: Registration, run: Sequence[Parcel], refused: Refused, *, waits: bool = True
    ) -> list[Parcel]:
        """Take consecutive objects of a registration in, each as soon as there is room; those that were not seen
        before. To `refused` with BackPressureError what found no room in time, with StorageError what can't be
        archived, with OversizeError what is too large, with MetadataError what is not the registration's. Without
        `waits` who judges looks for room (`settling`, `has_room`)."""
        admitted: list[Parcel] = []
        for parcel in run:
            gap = parcel.head.sequence - registration.sequence - 1
            if gap < 0:
                continue
            head = parcel.head
            if not head.type_name and registration.origin is not None and head.registration == registration.uid:
                self._leave_out(registration, head)
                continue
            try:
                self._admit(registration, parcel, gap, waits=waits)
            except (BackPressureError, MetadataError, OversizeError, StorageError) as exc:
                registration.refused += 1
                refused.append((parcel, exc))
            else:
                registration.sequence = parcel.head.sequence
                admitted.append(parcel)
        return admitted

    def _admit(self, registration: Registration, parcel: Parcel, gap: int, *, waits: bool) -> None:
        if waits:
            if self._budget.used >= self._budget.limit:
                self._wait_for_budget()
            if pause := self.settling(registration, parcel):
                self.stopping.wait(pause)
            if self._room:
                self._wait_for_stages(registration, parcel)
        registration.check_head(parcel.head)
        if parcel.size >= COST_LEAST and (spooled := parcel.spooled) is not None and spooled.failure is not None:
            raise spooled.failure
        if gap and registration.tells_gaps:
            self._tell_of_gap(registration, gap)

    def judge(
        self,
        registration: Registration,
        run: Sequence[Parcel],
        deliveries: Deliveries,
        refused: Refused,
        later: Later | None = None,
    ) -> int:
        """Decide what becomes of objects that were admitted; how many subscriptions they match. What takes long goes to
        `later`; without it all is done now.

        To `refused` with MetadataError, InvariantError, OversizeError or SignatureError what is not as it was
        registered, with StorageError what was to be archived and could not be, and with JbiError what has met a fault
        of ours: nothing of it is delivered. Raises UnknownUidError when the registration has ended."""
        if registration.has_ended:  # nobody counts for it any more
            raise UnknownUidError(f"registration {registration.uid} has ended", uid=registration.uid)
        if registration.persist and len(run) > 1 and any(parcel.size >= COST_LEAST for parcel in run):
            # one that can't be archived is refused with its run: a large one is a run by itself
            return sum(self.judge(registration, (parcel,), deliveries, refused, later) for parcel in run)
        judgement, topic = registration.judgement, registration.topic
        good = self._check(registration, run, refused)
        if registration.expiration:
            self._expire(good, registration.expiration, deliveries)
        parts = judgement.table.enter() if later is not None else None
        try:
            kept = self._keep(registration, topic, [parcel for parcel, _, _ in good], refused)
            if kept is None:
                return 0
            registration.published += len(good)
            registration.judged = run[-1].head.sequence if run else registration.judged
            if parts is not None and later is not None:
                return self._judge_by_level(registration, parts, good, kept, deliveries, refused, later)
        finally:
            if parts is not None:
                del parts.between[0]
        return self._judge_at_once(registration, good, kept, deliveries, refused, later)

    def _expire(self, good: Sequence[Good], seconds: float, deliveries: Deliveries) -> None:
        """They are not to wait longer than that, counted from their publication."""
        now = self._clock()
        for parcel, _, _ in good:
            parcel.expires = (parcel.since or now) + seconds
        deliveries.is_expiring = True

    def _keep(
        self, registration: Registration, topic: Topic, run: Sequence[Parcel], refused: Refused
    ) -> Sequence[Kept] | None:
        """Objects with their positions, in the buffer, and in the archive if their registration is kept there; None:
        that could not be, and they are refused."""
        if self._archive is None or not registration.persist:
            return self._buffers.keep(topic.buffer, run, registration.judgement, self._clock())
        try:
            return self._archive.keep(registration, run, self._clock())
        except StorageError as exc:
            registration.refused += len(run)
            refused += [(parcel, exc) for parcel in run]
            return None

    def _judge_at_once(
        self,
        registration: Registration,
        good: Sequence[Good],
        kept: Sequence[Kept],
        deliveries: Deliveries,
        refused: Refused,
        later: Later | None,
    ) -> int:
        judgement = registration.judgement
        matches = 0
        for (parcel, metadata, document), each in zip(good, kept, strict=True):
            try:
                matched, result = self._decide(judgement, each, later, metadata, document)
                if not matched:
                    registration.unmatched += 1
                    self._buffers.unmatched(each)
                else:
                    matches += len(matched)
                    self.hand_out(parcel, matched, deliveries, result, later)
            except Exception as exc:  # noqa: BLE001  # noted; `guarded` would cost as much as a match
                refused.append((parcel, fault_of(exc)))
        return matches

    def _decide(
        self,
        judgement: Judgement,
        kept: Kept,
        later: Later | None,
        metadata: bytes,
        document: Element | Traced | None,
        at: tuple[Partition, int] | None = None,
    ) -> tuple[list[Subscription], Disseminated | None]:
        """Subscriptions that a kept object matches, `at` one level of a partition if it goes through levels; and what
        it comes to, if somebody has it filtered or shaped. Once more if a subscription was amended meanwhile."""
        table = judgement.table
        revision = table.revision
        decided = self._decide_once(judgement, kept, later, metadata, document, at)
        if table.revision != revision or revision % 2:
            with table.amendment:
                decided = self._decide_once(judgement, kept, later, metadata, document, at)
        return decided

    def _decide_once(
        self,
        judgement: Judgement,
        kept: Kept,
        later: Later | None,
        metadata: bytes,
        document: Element | Traced | None,
        at: tuple[Partition, int] | None,
    ) -> tuple[list[Subscription], Disseminated | None]:
        table, parcel = judgement.table, kept.parcel
        if at is None:
            matched = judgement.match(metadata, document)
        else:
            matched = judgement.match_at(*at, kept.position, metadata, document)
        if table.selective:
            matched = judgement.select(matched, parcel.head)
        if kept.position <= table.settled:  # somebody has just come: this he gets from the buffer
            matched = [s for s in matched if s.place < kept.position]
        if (table.filters and any(s.payload_filter is not None for s in matched)) or (
            self._shaper is not None and ((later is not None and later.behind) or any(map(is_shaped, matched)))
        ):
            wait = None if later is None else self._shaped_later(parcel, later.behind)
            return matched, disseminate(parcel, matched, self._seal, self._shaper, wait)
        return matched, None

    def _judge_by_level(
        self,
        registration: Registration,
        parts: Partition,
        good: Sequence[Good],
        kept: Sequence[Kept],
        deliveries: Deliveries,
        refused: Refused,
        later: Later,
    ) -> int:
        """For the most important subscriptions now, unless an object before is to be judged for them; for the others
        later."""
        matches = 0
        is_put_off = False
        for one, each in zip(good, kept, strict=True):
            level = later.below(parts, LEVELS)
            if level < 0:
                matches += self._judge_at_once(registration, [one], [each], deliveries, refused, later)
                continue
            parts.between[each.position] = None
            staged = Staged(each, parts, level)
            if is_put_off or not later.may_match(staged):
                is_put_off = True  # those behind it, too
                later.match(staged)
                continue
            try:
                matches += self.judge_at(registration, staged, deliveries, later, one[2])
            except Exception as exc:  # noqa: BLE001  # noted
                refused.append((each.parcel, fault_of(exc)))
            staged.leave()
        return matches

    def judge_at(
        self,
        registration: Registration,
        staged: Staged,
        deliveries: Deliveries,
        later: Later,
        document: Element | Traced | None = None,
    ) -> int:
        """Judge an object for the subscriptions of its level; how many it matches. What is below is for
        `later`."""
        judgement, kept, level = registration.judgement, staged.kept, staged.level
        metadata, at = bytes(kept.parcel.head.metadata), (staged.parts, level)
        staged.level = -1  # unless all goes well
        matched, result = self._decide(judgement, kept, later, metadata, document, at)
        if matched:
            staged.is_matched = True
            self.hand_out(kept.parcel, matched, deliveries, result, later)
        staged.level = later.below(staged.parts, level)
        if staged.level >= 0:
            later.match(staged)
        elif not staged.is_matched:
            registration.unmatched += 1
            self._buffers.unmatched(kept)
        return len(matched)

    def _check(self, registration: Registration, run: Sequence[Parcel], refused: Refused) -> list[Good]:
        """Those that are as they were registered, each with its metadata and document."""
        check, signatures = registration.judgement.check, self._signatures
        good: list[Good] = []
        for parcel in run:
            metadata = bytes(parcel.head.metadata)
            try:
                document = check(metadata)
                if signatures is not None:
                    signatures.check(registration, parcel)
                good.append((parcel, metadata, document))
            except (MetadataError, OversizeError, SignatureError) as exc:
                registration.refused += 1
                refused.append((parcel, exc))
            except Exception as exc:  # noqa: BLE001  # noted
                refused.append((parcel, fault_of(exc)))
        return good

    def deliver(self, deliveries: Deliveries) -> None:
        """Bring what `judge` has gathered to the subscribers' queues, and out."""
        gone = deliveries.offer()
        if gone:  # cancelled, or their session over, since the match: those have accounted for what they held
            self._came_to_nothing(gone)

    def deliver_without_waiting(self, deliveries: Deliveries, waited: float = 0.0) -> Deliveries | None:
        """The same, for who may not wait for subscribers under policy `block`: what they have no room for, to be tried
        again; None: nothing. `waited`: the seconds since it was tried first."""
        gone, blocked = deliveries.offer_without_waiting(waited)
        if gone:
            self._came_to_nothing(gone)
        return blocked

    def sync(self, taken: Sequence[Parcel] = (), *, comes_again: bool = False) -> Refused:
        """Return when the mail of all objects published before is on disk, where it is kept, and those of `taken` that
        are archived, which were delivered; which of them never will be, with StorageError. `comes_again`: some were
        taken before, perhaps just now, by a connection that has broken: all that was appended is waited for."""
        if self._archive is not None:
            self._archive.offered(taken)
        self._mail.sync()
        return [*self._archive.sync(taken, comes_again=comes_again)] if self._archive is not None else []

    @property
    def archives(self) -> bool:
        """Whether `sync` is to be told what was taken."""
        return self._archive is not None

    def when_archived(self, taken: Sequence[Parcel | int], told: Synced) -> bool:
        """Have `told` called, from another thread, when those objects are on disk that are archived; False: none is.
        They were delivered."""
        if self._archive is None:
            return False
        parcels = [each for each in taken if isinstance(each, Parcel)]
        self._archive.offered(parcels)
        last = max((each.position for each in parcels), default=0)
        if last:
            self._archive.when_synced(last, told)
        return last > 0

    def hand_out(
        self,
        parcel: Parcel,
        matched: list[Subscription],
        deliveries: Deliveries,
        result: Disseminated | None = None,
        later: Later | None = None,
    ) -> None:
        """An object for those whom it matched; `result`: what their filters and shapes have made of it, if any has
        one."""
        if result is None:
            for subscription in matched:
                self._deliver(subscription, parcel, parcel, deliveries)
            return
        self._deliver_filtered(result, parcel, deliveries)
        if later is not None and result.later:
            later.shape(parcel, result.later)

    def _shaped_later(self, published: Parcel, behind: Container[Subscription]) -> ShapedLater:
        """Test of who has an object shaped later: it takes long, or he waits for one before it."""

        def is_later(each: Selected, shapes: tuple[Shape, ...]) -> bool:
            if each.subscription in behind:
                return True
            assert self._shaper is not None
            return bool(shapes) and (
                self._shaper.seconds(published.head, each.wanted, each.parcel.payload, shapes) > SHAPED_AT_ONCE
            )

        return is_later

    def shape(self, published: Parcel, selected: Sequence[Selected], deliveries: Deliveries) -> None:
        """An object in the shapes of those who were to wait for it."""
        assert self._shaper is not None
        self._deliver_filtered(shaped(published, selected, self._seal, self._shaper), published, deliveries)

    @property
    def patience(self) -> float:
        """Seconds that an object waits for memory."""
        return self._config.queue.block_seconds

    def is_clear(self, registration: Registration, size: int) -> bool:
        """Whether an object of any importance may be judged at once: there is memory for all, and nobody to be waited
        for. Otherwise see `settling` and `has_room`."""
        budget = self._budget
        return budget.used * 2 < budget.limit and (registration.has_settled or self._buffers.has_room(size))

    def has_room(self, importance: int) -> bool:
        """Whether an object of that importance (1 to 5) may take memory: the more important, the more of it."""
        return self._budget.used < self._budget.limit * (50 + 10 * importance) / 100

    def no_room(self) -> BackPressureError:
        """The error for an object that has waited for memory in vain."""
        return BackPressureError(
            f"the delegate's queues hold {self._budget.used} bytes, the limit is {self._budget.limit}",
            hint="Subscribers are too slow; see `jbi status`, or raise [pad] max_queued_bytes",
        )

    @property
    def has_stages(self) -> bool:
        """Whether `room_in` is to be asked about each object, by who has it admitted without waiting."""
        return bool(self._room)

    def room_in(self, registration: Registration, parcel: Parcel) -> float:
        """In how many seconds all stages may have room for an object; 0.0: they have. Raises BackPressureError,
        OversizeError or StorageError when one of them will have none."""
        for asked in self._room:
            if pause := asked(registration, parcel):
                return pause
        return 0.0

    def _wait_for_stages(self, registration: Registration, parcel: Parcel) -> None:
        deadline = time.monotonic() + self.patience
        while pause := self.room_in(registration, parcel):
            left = deadline - time.monotonic()
            if left <= 0 or self.stopping.wait(min(pause, left)):
                raise self.no_stage()

    def no_stage(self) -> BackPressureError:
        """The error for an object that has waited for another stage's room in vain."""
        return BackPressureError(
            f"no room for this object within {self.patience:g} s: it is kept or sent on more slowly than it comes",
            hint="Publish more slowly, or raise [queue] block_seconds",
        )

    def _wait_for_budget(self) -> None:
        if not self._budget.wait_for_room(self.patience):
            raise self.no_room()

    def settling(self, registration: Registration, parcel: Parcel) -> float:
        """Seconds to wait before that object is judged. A publisher that fills the buffers within moments waits once:
        who was told of it and is on the way here gets its first objects, too."""
        if registration.has_settled or self._buffers.has_room(parcel.size):
            return 0.0
        settle, topic = self._config.pad.settle_seconds, registration.topic
        if topic.is_awaited and self._buffers.is_crowded(topic.buffer, parcel.size, self._clock(), settle):
            registration.has_settled = True
            return settle
        return 0.0

    @property
    def mails(self) -> int:
        """Number of the last mail that is to be on disk; see `is_synced`."""
        return self._mail.offered

    def is_synced(self, mail: int) -> bool:
        """Whether the mail up to that number is on disk, or lost."""
        return self._mail.is_durable(mail)

    def _tell_of_gap(self, registration: Registration, count: int) -> None:
        if count > GAP_MOST:
            if registration.origin is None:
                raise MetadataError(
                    f"the object's number leaves out {count} of registration {registration.uid}, more than {GAP_MOST}",
                    hint="Number the objects of a registration one after the other",
                )
            count = 0  # its bridge may have been away for days
        level = logging.WARNING if registration.origin is None else logging.INFO  # there it may be a rule's doing
        log.log(level, "registration %s: %s objects never came", registration.uid, count or "many")
        self.lose(registration, Cause.SEQUENCE_GAP, count)

    def _leave_out(self, registration: Registration, head: Head) -> None:
        """A bridge has left out objects of a registration that it relays, with numbers up to that of the head."""
        numbers = head.sequence - registration.sequence
        count = min(head.left_out, numbers, GAP_MOST)
        if count:
            self.lose(registration, Cause.FILTERED, count)
        if numbers > count and registration.tells_gaps:
            self._tell_of_gap(registration, numbers - count)
        if registration.judged == registration.sequence:  # otherwise what is under way before it
            registration.judged = head.sequence
        registration.sequence = head.sequence

    def lose(self, registration: Registration, cause: Cause, count: int) -> None:
        """So many objects of a registration never came (0: it is not known how many): its subscribers are told, and who
        comes late."""
        topic = registration.topic
        position = self._buffers.lose(topic.buffer, cause, count, self._clock())
        for subscription in topic.table.subscriptions():
            session = self._sessions.get(subscription.owner)
            if session is not None and subscription.place < position:
                session.lose(subscription, cause, count)

    def _deliver_filtered(self, result: Disseminated, published: Parcel, deliveries: Deliveries) -> None:
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        for selected in result.selected:
            selected.subscription.unfiltered += not selected.filtered
            self._deliver(selected.subscription, selected.parcel, published, deliveries)
        for subscription in result.oversize:
            subscription.meter_lost(published.head.type_name)
            self.refuse(subscription, Cause.OVERSIZE)

    def refuse(self, subscription: Subscription, cause: Cause) -> None:
        """An object that it matches is not for it."""
        request = subscription.request
        session = self._sessions.get(subscription.owner) if request.direct else None
        if request.direct and (session is None or not session.refuse(subscription, cause)):
            self._came_to_nothing((subscription,))
        if request.recipients and not self._mail.refuse(subscription, cause):
            self._mail_came_to_nothing(subscription)

    def _deliver(self, subscription: Subscription, parcel: Parcel, published: Parcel, deliveries: Deliveries) -> None:
        """`parcel` is what the subscription's filter has left of `published`."""
        request = subscription.request
        if request.direct:
            session = self._sessions.get(subscription.owner)
            if session is not None:
                deliveries.add(session, subscription, parcel)
            else:
                self._came_to_nothing((subscription,))
        if request.recipients:
            self.mail_out(subscription, parcel, published)

    def mail_out(self, subscription: Subscription, parcel: Parcel, published: Parcel) -> None:
        """An object for the subscription's recipients; `parcel` is what its filter has left of `published`."""
        if len(published.payload) > MEMORY_BYTES:
            if not self._mail.refuse(subscription, Cause.OVERSIZE):
                self._mail_came_to_nothing(subscription)
            return
        head, obj = self._unpacked
        if head is not published.head:  # mails of one object share what is made of it
            obj = published.unpacked()
            if not isinstance(obj, LargeObject):  # its file is to go with the last who gets it
                self._unpacked = published.head, obj
        payload = obj.payload if parcel is published else bytes(parcel.payload)
        contract = subscription.contract
        if contract is None and not published.expires:
            is_taken = self._mail.offer(subscription, obj, payload)
        else:
            by_object = contract is not None and contract.by_object is not None
            deadline = contract.of(published).deadline if contract is not None and by_object else None
            since = published.since
            if published.expires:
                since = since or self._clock()
                deadline = min(published.expires - since, math.inf if deadline is None else deadline)
            is_taken = self._mail.offer(subscription, obj, payload, deadline, since)
        if not is_taken:  # cancelled since the match
            self._mail_came_to_nothing(subscription)

    def _mail_came_to_nothing(self, subscription: Subscription) -> None:
        lost = {str(subscription.ended): len(subscription.request.recipients)}
        self._account.add(matched=int(not subscription.request.direct), lost=lost)

    def _came_to_nothing(self, gone: Sequence[Subscription]) -> None:
        for subscription in gone:
            self._account.add(matched=1, lost={str(subscription.ended): 1})


def fault_of(exc: Exception) -> JbiError:
    """The error that a publisher is told for a fault of ours, which is noted here."""
    note("judging an object", exc)
    return JbiError("the delegate failed on this object", hint="Its log says how")
