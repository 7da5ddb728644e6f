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
from collections.abc import Callable, Sequence
from typing import Final

from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.errors import (
    BackPressureError,
    MetadataError,
    OversizeError,
    SignatureError,
    StorageError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import Cause, Head, Parcel
from jbi_pubsub.core.quality import LEVELS
from jbi_pubsub.core.spool import COST_LEAST
from jbi_pubsub.core.xml import Element
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.control import AdmissionControl
from jbi_pubsub.pad.ingress.deferred import DeferredWork, StagedObject, fault_of
from jbi_pubsub.pad.ingress.distribution import Distribution
from jbi_pubsub.pad.ingress.persistence import Persistence, Refused
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.matching.dissemination import Disseminated, Judgement
from jbi_pubsub.pad.matching.partition import Partition
from jbi_pubsub.pad.matching.recent import RecentObject
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription

log = logging.getLogger("jbi_pubsub.pad")

RUN_MOST: Final = 50
"""Objects after which what they come to is delivered: about half a millisecond's work."""
RUN_BYTES: Final = 1 << 20
"""The same for large objects: what is gathered counts in no queue's bound yet."""

GAP_MOST: Final = 1_000_000
"""Objects that a publisher may claim to have lost between two: 20 s of the fastest. A number beyond is no gap but a
lie, and whoever tells it once could tell all subscribers of 2^53 lost objects."""

Good = tuple[Parcel, bytes, Element | Traced | None]
"""An object that is as it was registered, with its metadata and document."""
Level = tuple[Partition, int]
"""One level of a partitioned table."""
Decided = tuple[list[Subscription], Disseminated | None]
"""Subscriptions that an object matches, and what their filters and shapes make of it, if any has one."""


class Pipeline:
    """See the module. Methods are safe from several threads, each registration's from one at a time."""

    def __init__(
        self,
        stages: Stages,
        control: AdmissionControl,
        persistence: Persistence,
        distribution: Distribution,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.control = control
        self.persistence = persistence
        self.distribution = distribution
        self.numbers_again = False
        """Whether the number of an object that is refused is that of the next one: then it is no gap."""
        self._signatures = stages.signatures
        self._clock = clock

    def admit(
        self, registration: Registration, run: Sequence[Parcel], refused: Refused, *, waits: bool = True
    ) -> list[Parcel]:
        """Take consecutive objects of a registration in, each as soon as there is room; those that were not seen
        before. To `refused` with BackPressureError what found no room in time, with StorageError what can't be
        archived, with OversizeError what is too large, with MetadataError what is not the registration's. Without
        `waits` who judges looks for room (see AdmissionControl)."""
        admitted: list[Parcel] = []
        for parcel in run:
            gap = parcel.head.sequence - registration.sequence - 1
            if gap < 0:
                continue
            head = parcel.head
            if self._is_left_out(registration, head):
                self._leave_out(registration, parcel)
                continue
            try:
                self._admit(registration, parcel, gap, waits=waits)
            except (BackPressureError, MetadataError, OversizeError, StorageError) as exc:
                registration.totals.refused += 1
                refused.append((parcel, exc))
            else:
                registration.sequence = parcel.head.sequence
                admitted.append(parcel)
        return admitted

    def _is_left_out(self, registration: Registration, head: Head) -> bool:
        """Whether it stands for objects that a bridge has left out, or that their publisher has lost."""
        if head.type_name or head.registration != registration.uid:
            return False
        return registration.origin is not None or (head.is_lost and head.left_out <= GAP_MOST)

    def _admit(self, registration: Registration, parcel: Parcel, gap: int, *, waits: bool) -> None:
        if waits:
            self.control.wait(registration, parcel)
        registration.check_head(parcel.head)
        if parcel.size >= COST_LEAST and (spooled := parcel.spooled) is not None and spooled.failure is not None:
            raise spooled.failure
        if registration.marks.is_torn or (gap and registration.tells_gaps):
            self._tell_of_gap(registration, 0 if registration.marks.is_torn else gap)
            registration.marks.is_torn = False

    def judge(
        self,
        registration: Registration,
        run: Sequence[Parcel],
        deliveries: Deliveries,
        refused: Refused,
        later: DeferredWork | None = None,
    ) -> None:
        """Decide what becomes of objects that were admitted. What takes long goes to `later`; without it all is done
        now.

        To `refused` with MetadataError, InvariantError, OversizeError or SignatureError what is not as it was
        registered, with StorageError what was to be archived and could not be, and with JbiError what has met a fault
        of ours: nothing of it is delivered. Of those that are refused before anybody has them, subscribers are told, as
        their numbers were taken. Raises UnknownUidError when the registration has ended."""
        if registration.has_ended:  # nobody counts for it any more
            raise UnknownUidError(f"registration {registration.uid} has ended", uid=registration.uid)
        if registration.archived is not None and len(run) > 1 and any(parcel.size >= COST_LEAST for parcel in run):
            for parcel in run:  # one that can't be archived is refused with its run: a large one is a run by itself
                self.judge(registration, (parcel,), deliveries, refused, later)
            return
        judgement, topic, before = registration.judgement, registration.topic, len(refused)
        good = self._check(registration, run, refused)
        self._expire(good, registration.terms.expiration, deliveries)
        parts = judgement.table.enter() if later is not None else None
        try:
            kept = self.persistence.keep(registration, topic, [parcel for parcel, _, _ in good], refused)
            if len(refused) > before and not self.numbers_again:
                self._tell_of_gap(registration, len(refused) - before)
            if kept is None:
                return
            registration.totals.published += len(good)
            registration.judged = run[-1].head.sequence if run else registration.judged
            if parts is not None and later is not None:
                self._judge_by_level(registration, parts, good, kept, deliveries, refused, later)
                return
        finally:
            if parts is not None:
                parts.leave()
        self._judge_at_once(registration, good, kept, deliveries, refused, later)

    def _expire(self, good: Sequence[Good], seconds: float, deliveries: Deliveries) -> None:
        """They are not to wait longer than that (0.0: for ever), or than they say, counted from their publication."""
        for parcel, _, _ in good:
            if not seconds and parcel.head.attributes is None:
                continue
            most = min(seconds or math.inf, parcel.head.timeout or math.inf)
            if most < math.inf:
                parcel.expires = (parcel.since or self._clock()) + most
                deliveries.is_expiring = True

    def _judge_at_once(
        self,
        registration: Registration,
        good: Sequence[Good],
        kept: Sequence[RecentObject],
        deliveries: Deliveries,
        refused: Refused,
        later: DeferredWork | None,
    ) -> None:
        judgement = registration.judgement
        for one, each in zip(good, kept, strict=True):
            parcel = one[0]
            try:
                matched, result = self._decide(judgement, each, one, later)
                if not matched:
                    registration.totals.unmatched += 1
                    self.persistence.buffers.unmatched(each)
                else:
                    selected = self.distribution.hand_out(parcel, matched, deliveries, result)
                    if selected and later is not None:
                        later.shape(parcel, selected)
            except Exception as exc:  # noqa: BLE001  # noted; `guarded` would cost as much as a match
                refused.append((parcel, fault_of(exc)))

    def _decide(
        self, judgement: Judgement, kept: RecentObject, good: Good, later: DeferredWork | None, at: Level | None = None
    ) -> Decided:
        """Subscriptions that a kept object matches, `at` one level of a partition if it goes through levels; and what
        it comes to, if somebody has it filtered or shaped. Once more if a subscription was amended meanwhile."""
        table = judgement.table
        revision = table.revision
        decided = self._decide_once(judgement, kept, good, later, at)
        if table.revision != revision or revision % 2:
            with table.amendment:
                decided = self._decide_once(judgement, kept, good, later, at)
        return decided

    def _decide_once(
        self, judgement: Judgement, kept: RecentObject, good: Good, later: DeferredWork | None, at: Level | None
    ) -> Decided:
        table, (parcel, metadata, document) = judgement.table, good
        if at is None:
            matched = judgement.match(metadata, document)
        else:
            matched = judgement.match_at(*at, kept.position, metadata, document)
        if table.selective:
            matched = judgement.select(matched, parcel.head)
        if kept.position <= table.settled:  # somebody has just come: this he gets from the buffer
            matched = [s for s in matched if s.place < kept.position]
        if table.filters or self.distribution.shaper is not None:
            behind = later.behind if later is not None else None
            return matched, self.distribution.cut(parcel, matched, behind, has_filters=table.filters > 0)
        return matched, None

    def _judge_by_level(
        self,
        registration: Registration,
        parts: Partition,
        good: Sequence[Good],
        kept: Sequence[RecentObject],
        deliveries: Deliveries,
        refused: Refused,
        later: DeferredWork,
    ) -> None:
        """For the most important subscriptions now, unless an object before is to be judged for them; for the others
        later."""
        is_put_off = False
        for one, each in zip(good, kept, strict=True):
            level = later.below(parts, LEVELS)
            if level < 0:
                self._judge_at_once(registration, [one], [each], deliveries, refused, later)
                continue
            parts.between[each.position] = None
            staged = StagedObject(each, parts, level)
            if is_put_off or not later.may_match(staged):
                is_put_off = True  # those behind it, too
                later.match(staged)
                continue
            try:
                self.judge_at(registration, staged, deliveries, later, one[2])
            except Exception as exc:  # noqa: BLE001  # noted
                refused.append((each.parcel, fault_of(exc)))
            staged.leave()

    def judge_at(
        self,
        registration: Registration,
        staged: StagedObject,
        deliveries: Deliveries,
        later: DeferredWork,
        document: Element | Traced | None = None,
    ) -> None:
        """Judge an object for the subscriptions of its level. What is below is for `later`."""
        judgement, kept, level = registration.judgement, staged.kept, staged.level
        good = kept.parcel, bytes(kept.parcel.head.metadata), document
        staged.level = -1  # unless all goes well
        matched, result = self._decide(judgement, kept, good, later, (staged.parts, level))
        if matched:
            staged.is_matched = True
            if selected := self.distribution.hand_out(kept.parcel, matched, deliveries, result):
                later.shape(kept.parcel, selected)
        staged.level = later.below(staged.parts, level)
        if staged.level >= 0:
            later.match(staged)
        elif not staged.is_matched:
            registration.totals.unmatched += 1
            self.persistence.buffers.unmatched(kept)

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
                registration.totals.refused += 1
                refused.append((parcel, exc))
            except Exception as exc:  # noqa: BLE001  # noted
                refused.append((parcel, fault_of(exc)))
        return good

    def _tell_of_gap(self, registration: Registration, count: int, since: float = 0.0) -> None:
        if count > GAP_MOST:
            if registration.origin is None:
                raise MetadataError(
                    f"the object's number leaves out {count} of registration {registration.uid}, more than {GAP_MOST}",
                    hint="Number the objects of a registration one after the other",
                )
            count = 0  # its bridge may have been away for days
        level = logging.WARNING if registration.origin is None else logging.INFO  # there it may be a rule's doing
        log.log(level, "registration %s: %s objects never came", registration.uid, count or "many")
        self.lose(registration, Cause.SEQUENCE_GAP, count, since)

    def _leave_out(self, registration: Registration, parcel: Parcel) -> None:
        """Objects of a registration were left out, with numbers up to that of the parcel, which stands for them."""
        head = parcel.head
        numbers = head.sequence - registration.sequence
        count = min(head.left_out, numbers, GAP_MOST)
        if head.is_lost:
            self._tell_of_gap(registration, head.left_out, parcel.since)
        elif count:
            self.lose(registration, Cause.FILTERED, count)
        if numbers > count > 0 and registration.tells_gaps and not head.is_lost:
            self._tell_of_gap(registration, numbers - count)
        if registration.judged == registration.sequence:  # otherwise what is under way before it
            registration.judged = head.sequence
        registration.sequence = head.sequence

    def lose(self, registration: Registration, cause: Cause, count: int, since: float = 0.0) -> None:
        """So many objects of a registration never came (0: it is not known how many): its subscribers are told, and who
        comes late, if they stood when the last was published, `since` (0.0: now)."""
        topic = registration.topic
        position = self.persistence.lose(topic, cause, count, since)
        self.distribution.lose(topic.table.subscriptions(), cause, count, position, since or math.inf)
