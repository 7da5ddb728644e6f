"""The lane of a registration: its objects between admission and done, which are judged in order when it is their turn.

- Whoever judges never waits. Where an object would have to, for memory or the room of another stage, for those who come
  late, for a subscriber under policy `block`, its lane is parked, with its registration, and tried again.
- What is left of an object when its step is over is deferred (see deferred.py); an object is done when all of it is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import BackPressureError, JbiError, OversizeError, StorageError, UnknownUidError
from jbi_pubsub.core.info_object import ObjectAttributes, Parcel
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import Contract, Rate
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.deferred import (
    AGAIN_FIRST,
    DeferredWork,
    DeliveringWork,
    Entry,
    JudgedRun,
    LaneBatch,
    fault_of,
)
from jbi_pubsub.pad.ingress.persistence import Refused
from jbi_pubsub.pad.ingress.pipeline import RUN_BYTES, RUN_MOST, Pipeline
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import WorkTurns

RUN_SECONDS: Final = 0.1
"""Share of its rate that a registration is given in one step, in seconds, but for one object that takes more."""
PACE_SECONDS: Final = 1.0
"""Longest time that a lane that waits for its rate is not looked at: policies may change it meanwhile."""
AT_ONCE: Final = 1e-6
"""Burst of a rate that nothing was used of, in seconds: nothing is saved up."""
RATES_MOST: Final = 8
"""Different rates of one registration that are known; with one more the first one begins anew."""
LOOKED_AFTER: Final = 10
"""Objects of a step after which it is looked at whether they take much longer than it was thought."""
STEP_LONG: Final = 0.02
"""Seconds after which a step ends, though more was to be judged in it: something more important may wait."""
PUBLISHED_LEAST: Final = 128
"""Objects until it is said what one takes: the first ones load and compile, and of cheap ones few are measured."""


class UnsyncedBatch:
    """Objects of one step that are done when all is on disk that has to be."""

    __slots__ = ("is_archived", "judged", "mail", "since")

    def __init__(self, judged: LaneBatch, mail: int, *, is_archived: bool = False) -> None:
        self.judged = judged
        self.mail = mail
        """Number of their last mail; 0: none."""
        self.since = time.monotonic()
        self.is_archived = is_archived
        """Those that are kept are on disk, or were refused."""


class LaneProgress:
    """Objects of a lane between admission and done: what their publisher is told. Its connection's lock covers it."""

    __slots__ = ("admitted", "bytes", "done", "told", "unsynced")

    def __init__(self) -> None:
        self.admitted = self.bytes = 0
        """Objects that are not done, and their bytes."""
        self.done = 0
        """The number up to which all are done."""
        self.told = 0
        """Importance that its publisher was told on this connection; 0: not yet."""
        self.unsynced: deque[UnsyncedBatch] = deque()
        """Judged, and what is to be on disk is not yet."""

    def finish(self, batch: LaneBatch) -> None:
        """They are done. Numbers of a lane rise, but where a publisher comes again with what it sent before."""
        last = batch.entries[-1]
        self.done = max(self.done, last.head.sequence if isinstance(last, Parcel) else last)
        self.bytes -= batch.whole
        self.admitted -= len(batch.entries)


class Completion(Protocol):
    """Told what becomes of a lane's objects."""

    def refuse(self, refused: Refused) -> None:
        """Objects were not taken."""
        ...

    def finish(self, lane: RegistrationLane, batch: LaneBatch, mail: int, refused: Refused) -> None:
        """They are done, when the mail up to that number is on disk (0: there is none), and those that are archived."""
        ...


class RegistrationLane(DeliveringWork):
    """One registration's objects between admission and done: work of a task (see WorkTurns). It is of whoever has the
    baton; other threads `put`, and see its `progress`."""

    def __init__(
        self,
        number: int,
        registration: Registration,
        turns: WorkTurns,
        pipeline: Pipeline,
        credit: tuple[int, int],
        completion: Completion,
    ) -> None:
        """`credit` in objects and bytes."""
        super().__init__(pipeline.distribution)
        self.number = number
        self.registration = registration
        self.progress = LaneProgress()
        self._pipeline = pipeline
        self._control = pipeline.control
        self._turns = turns
        self._completion = completion
        self._waiting: deque[Entry] = deque()
        self._contract = registration.contract or Contract()
        self._in_hand: JudgedRun | None = None
        """The run whose deliveries are blocked."""
        self.deferred = DeferredWork(turns, pipeline, registration, credit, self._finished, completion.refuse)
        self._buckets: Cache[Rate, TokenBucket] = Cache(RATES_MOST)
        """A bucket for each max_rate that policies have for its objects."""
        self.task = turns.task("judge", self, registration)
        registration.seconds = self.seconds

    def seconds(self) -> float:
        """Time to judge one object, for all subscriptions; 0.0: not known. Any thread."""
        if self.registration.totals.published < PUBLISHED_LEAST:
            return 0.0
        return self._turns.seconds(self.task) + self.deferred.seconds

    def put(self, entries: Sequence[Entry]) -> None:
        """Behind the others. Any thread."""
        self._waiting.extend(entries)

    # -- work of a task ------------------------------------------------------------------------------------------

    def importance(self) -> int:
        """The importance of the next object."""
        contract = self._contract
        first = self._waiting[0] if self._waiting else None
        if isinstance(first, Parcel) and (contract.by_object is not None or first.head.attributes is not None):
            return contract.of(first).importance
        return contract.settings.importance

    def size(self) -> int:
        """The size of the next object's metadata, in bytes: what judging it costs is in proportion to that."""
        if self._waiting:
            return _size(self._waiting[0])
        return 1 if self._blocked is not None or self.deferred.is_too_much else 0

    def step(self, most: int) -> tuple[int, int, float]:
        """Judge some objects."""
        if self._blocked is not None:
            if not self._is_unblocked():
                return 0, 0, self._backoff.pause()
            self._close()
        if self.deferred.is_too_much:
            return 0, 0, self.deferred.step()
        if not self._waiting:
            return 0, 0, 0.0
        first, contract = self._waiting[0], self._contract
        is_looked_at = (
            self._control.has_stages or contract.settings.max_rate is not None or contract.by_object is not None
        )
        if isinstance(first, Parcel) and (is_looked_at or not self._control.is_clear(self.registration, first.size)):
            pause = self._pause(first, time.monotonic())
            if pause:
                return 0, 0, pause
        rate = self._rate()
        batch, refused, mail = self._judge(self._next_run(most, rate))
        if rate is not None:  # what comes too fast waits, and its publisher is out of credit
            now = time.monotonic()
            self._bucket_of(rate, now).take(_amount(rate, len(batch.entries), batch.whole), now)
        return len(batch.entries), batch.size, self._hand_over(batch, refused, mail)

    def _pause(self, parcel: Parcel, now: float) -> float:
        """Seconds until an object may be judged; 0.0: now, or never, which it is told."""
        if self.registration.has_ended:
            return 0.0  # nothing holds back what nobody will get
        rate = self._contract.of(parcel).max_rate
        if rate is not None and (wait := self._bucket_of(rate, now).ready_in(now)):
            return min(wait, PACE_SECONDS)
        if pause := self._control.pause(self.registration, parcel):
            return pause
        if self._control.has_memory(self.importance()):
            try:
                pause = self._control.room_in(self.registration, parcel)
            except (BackPressureError, OversizeError, StorageError) as exc:
                return self._refuse_first(parcel, exc)
            if not pause:
                self._has_room()
                return 0.0
        self._since = min(self._since, now)
        if now - self._since < self._control.patience:
            return pause or self._backoff.pause()
        return self._refuse_first(parcel, self._control.no_stage() if pause else self._control.no_memory())

    def _refuse_first(self, parcel: Parcel, why: JbiError) -> float:
        """There is no room for the next object."""
        self._has_room()
        self._waiting.popleft()
        self.registration.totals.refused += 1
        self._finish(LaneBatch([parcel], 1, parcel.size), 0, [(parcel, why)])
        return AGAIN_FIRST

    def _next_run(self, most: int, rate: Rate | None) -> LaneBatch:
        """The batch to judge in one step: all of one importance, and of that rate."""
        waiting, by_object = self._waiting, self._contract.by_object
        importance, said = self.importance(), _attributes(waiting[0]) if waiting else None
        enough = rate.amount * RUN_SECONDS if rate is not None else math.inf
        has_stages = self._control.has_stages
        entries: list[Entry] = []
        size = whole = 0
        while waiting and len(entries) < RUN_MOST and whole < RUN_BYTES:
            entry = waiting[0]
            more, large = (len(entry.head.metadata) or 1, entry.size) if isinstance(entry, Parcel) else (1, 0)
            if entries and (
                size + more > most
                or (has_stages and not self._is_room_for(entry))
                or (rate is not None and _amount(rate, len(entries), whole) >= enough)
                or (by_object is not None and self._rate() != rate)
                or ((by_object is not None or _attributes(entry) is not said) and self.importance() != importance)
            ):
                break
            entries.append(waiting.popleft())
            size += more
            whole += large
        return LaneBatch(entries, size, whole)

    def _is_room_for(self, entry: Entry) -> bool:
        """Whether one more can go with those before it; else it is asked about when it is the first."""
        try:
            return not isinstance(entry, Parcel) or not self._control.room_in(self.registration, entry)
        except (BackPressureError, OversizeError, StorageError):
            return False

    def _rate(self) -> Rate | None:
        """The max_rate of the next object."""
        contract = self._contract
        if contract.by_object is not None and isinstance(first := self._waiting[0], Parcel):
            return contract.of(first).max_rate
        return contract.settings.max_rate

    def _bucket_of(self, rate: Rate, now: float) -> TokenBucket:
        bucket = self._buckets.get(rate)
        if bucket is None:
            bucket = self._buckets[rate] = TokenBucket(rate.amount, AT_ONCE, now)
        return bucket

    def _judge(self, batch: LaneBatch) -> tuple[LaneBatch, Refused, int]:
        """The part of it that was judged, which of these were refused, and the number of their last mail (0: none)."""
        refused: Refused = []
        mails, began = self._pipeline.persistence.mails, time.perf_counter()
        deliveries = Deliveries()
        entries = batch.entries
        for start in range(0, len(entries), LOOKED_AFTER):
            self._judge_some(entries[start : start + LOOKED_AFTER], deliveries, refused)
            if time.perf_counter() - began > STEP_LONG and start + LOOKED_AFTER < len(entries):
                batch = self._put_back(batch, start + LOOKED_AFTER)
                break
        try:
            self._is_handed_out(deliveries)
        except Exception as exc:  # noqa: BLE001  # noted; whatever it is, the objects behind it go on
            self._refuse_all(batch.entries, refused, fault_of(exc))
        after = self._pipeline.persistence.mails
        return batch, refused, after if after != mails else 0

    def _judge_some(self, entries: Sequence[Entry], deliveries: Deliveries, refused: Refused) -> None:
        run = [entry for entry in entries if isinstance(entry, Parcel)]
        if not run:
            return
        try:
            self._pipeline.judge(self.registration, run, deliveries, refused, self.deferred)
        except UnknownUidError as exc:
            refused += [(parcel, exc) for parcel in run]
        except Exception as exc:  # noqa: BLE001  # noted, as above
            self._refuse_all(run, refused, fault_of(exc))

    def _refuse_all(self, entries: Sequence[Entry], refused: Refused, why: JbiError) -> None:
        known = {id(parcel) for parcel, _ in refused}
        refused += [(entry, why) for entry in entries if isinstance(entry, Parcel) and id(entry) not in known]

    def _put_back(self, batch: LaneBatch, count: int) -> LaneBatch:
        """All but so many of a batch wait again, before the others; those that do not."""
        self._waiting.extendleft(reversed(batch.entries[count:]))
        entries = batch.entries[:count]
        whole = sum([entry.size for entry in entries if isinstance(entry, Parcel)])
        return LaneBatch(entries, sum(map(_size, entries)), whole)

    def _hand_over(self, batch: LaneBatch, refused: Refused, mail: int) -> float:
        """They are done, or are when what is left of them is; seconds until the next ones may be judged."""
        if self._blocked is None and self.deferred.run is None:  # nearly always
            self._finish(batch, mail, refused)
            return 0.0
        self._completion.refuse(refused)
        self._in_hand, self._left = self.deferred.put(batch, mail), self.deferred.taken()
        if self._blocked is not None:
            return self._backoff.pause()
        self._close()
        return 0.0

    def _finish(self, batch: LaneBatch, mail: int, refused: Refused) -> None:
        """They are done, behind those before them."""
        if not self.deferred.runs:
            self._completion.finish(self, batch, mail, refused)
            return
        self._completion.refuse(refused)
        self.deferred.close(self.deferred.put(batch, mail))

    def _close(self) -> None:
        """Close the run in hand: it is handed out."""
        run, self._in_hand = self._in_hand, None
        assert run is not None
        self.deferred.put_all(self._left)
        self.deferred.close(run)

    def _finished(self, batch: LaneBatch, mail: int) -> None:
        self._completion.finish(self, batch, mail, [])


def _attributes(entry: Entry) -> ObjectAttributes | None:
    return entry.head.attributes if isinstance(entry, Parcel) else None


def _size(entry: Entry) -> int:
    return len(entry.head.metadata) or 1 if isinstance(entry, Parcel) else 1


def _amount(rate: Rate, count: int, size: int) -> int:
    """Amount of a rate that so many objects, of so many bytes, take."""
    return count if rate.unit == "objects" else size
