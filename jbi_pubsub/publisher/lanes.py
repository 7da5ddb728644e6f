"""Lanes of what waits for a delegate: one for each registration, whose objects go in order; the lanes take turns.

With quality of service a registration has a *credit*: objects that the delegate may have and has not done. They stay
here until they are done, since a delegate that is killed loses what it has acknowledged and not done. A lane whose
credit is used up holds up no other, not at the bound of what may wait either. Important lanes have more turns. And
what has waited here tells its age, which counts against its deadlines.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Final

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Parcel, Part, left_out
from jbi_pubsub.core.quality import WEIGHTS, Strategy
from jbi_pubsub.core.scheduling import PriorityRing
from jbi_pubsub.core.spool import COST_LEAST, MEMORY_BYTES
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, ITEMS_AT, LENGTH, MAX_BATCH_ITEMS, ParcelCut
from jbi_pubsub.protocol.publications import ABANDONED, AGE_MOST, CHUNK, LAST_CHUNK, MAX_COMING, PUBLICATION, WHOLE
from jbi_pubsub.protocol.replies import Registered

log = logging.getLogger("jbi_pubsub.publisher")

QUEUE_ITEMS: Final = 10_000
QUEUE_BYTES: Final = 64 << 20
"""Bounds of what publish() may queue before it waits: a second or two of a fast publisher."""
RUN_ITEMS: Final = 50
"""Objects of one registration that go at a turn, as long as they are no more than a chunk."""


LANE_LEAST: Final = 64
"""Objects that each registration with credit may have waiting, however many there are."""
BATCHES_OF_CREDIT: Final = 4
"""A credit goes in so many batches at least: the delegate works on one while others are on their way."""


@dataclass(eq=False, slots=True)
class PublisherLane:
    """Objects of one registration, in order: `unfinished`, which are under way or at the delegate, and `parcels`, which
    wait."""

    number: int
    parcels: deque[Parcel] = field(default_factory=deque)
    size: int = 0
    """Size of those, in bytes."""
    unfinished: deque[Parcel] = field(default_factory=deque)
    unfinished_size: int = 0
    """Credit that those take, in bytes."""
    finished: int = 0
    """Objects that the delegate has (with credit: has done), or that are lost."""
    cutter: ParcelCut | None = None
    granted: Registered = field(default_factory=Registered)
    level: int = 0
    """Level of its turns, if its objects say no less; 0 is the least important."""
    reliable: bool = True
    expiration: float = 0.0
    """Seconds after which an object that still waits is given up; 0.0: never."""
    is_expiring: bool = False
    """Whether that may be said of single ones of its objects."""
    is_registered: bool = False
    """Whether the delegate has taken the registration, and it has not ended: nothing is kept of one that has."""
    is_held_back: bool = False
    """Whether the delegate does not take it: what is of it stays here, and holds up no other."""
    is_stalled: bool = False
    """Whether it has objects waiting and no credit for the next one."""

    @property
    def queued(self) -> int:
        """Objects that have come so far."""
        return self.finished + len(self.unfinished) + len(self.parcels)

    def add(self, run: Sequence[Parcel]) -> int:
        """These wait, too; their bytes."""
        size = 0
        for parcel in run:
            size += parcel.size
            if parcel.head.attributes is not None and parcel.head.timeout:
                self.is_expiring = True
        self.parcels.extend(run)
        self.size += size
        return size

    @property
    def turn(self) -> int:
        """Level of its next turn."""
        if self.cutter is None and not self.parcels:
            return self.level
        first = self.cutter.parcel if self.cutter is not None else self.parcels[0]
        return first.head.lowered(self.level + 1) - 1

    def pop(self) -> Parcel:
        """The next one that waits is under way from now on."""
        parcel = self.parcels.popleft()
        self.size -= parcel.size
        self.unfinished.append(parcel)
        self.unfinished_size += _credited(parcel)
        return parcel

    def finish(self) -> None:
        """The next one that is under way is done."""
        self.unfinished_size -= _credited(self.unfinished.popleft())
        self.finished += 1

    def finish_all(self) -> None:
        """All that is under way is done, or lost."""
        self.finished += len(self.unfinished)
        self.unfinished.clear()
        self.unfinished_size = 0

    def may_send(self) -> bool:
        """Whether there is credit for what comes next."""
        if not self.granted.credit or self.cutter is not None or not self.unfinished:
            return True
        return (
            len(self.unfinished) < self.granted.credit
            and self.unfinished_size + _credited(self.parcels[0]) <= self.granted.credit_bytes
        )

    def remove_late(self, now: float) -> int:
        """Take out what has waited for too long at that time (monotonic), as far as it is known since when; how much.
        In the place of the first ones, before which a delegate that is new may know of nothing, it is told that they
        are lost; of others the next one's number tells."""
        due = now - (self.expiration or math.inf)
        late = [0.0 < each.since <= due or 0.0 < each.expires <= now for each in self.parcels]
        gone = sum(is_late and not each.head.left_out for each, is_late in zip(self.parcels, late, strict=True))
        if gone:
            waiting = list(self.parcels)
            first = waiting[: (*late, False).index(False)]
            left = [each for each, is_late in zip(waiting, late, strict=True) if not is_late]
            self.parcels = deque([_lost(first), *left] if first else left)
            self.size = sum(parcel.size for parcel in self.parcels)
            self.finished += len(waiting) - len(self.parcels)
        return gone

    def take_run(
        self, items: list[tuple[Part, ...]], most: int, most_bytes: int, chunk: int, clock: Callable[[], float]
    ) -> list[Parcel]:
        """The next objects, up to a large one; put among `items` as they go."""
        number, parcels = self.number, self.parcels
        head = PUBLICATION.pack(WHOLE, number, 0)
        is_aged = self.granted.credit > 0 or not self.reliable or self.expiration > 0 or self.is_expiring
        now = clock() if is_aged else 0.0
        begin, end = now - 0.001, math.inf  # what was published between is of the age that `head` says
        run: list[Parcel] = []
        while parcels and len(run) < most and most_bytes > 0 and parcels[0].size <= chunk and self.may_send():
            parcel = self.pop()
            if is_aged and not begin < parcel.since <= end:
                age = _age(now, parcel.since)
                begin, end = now - (age + 1) / 1000, now - age / 1000
                head = PUBLICATION.pack(WHOLE, number, age)
            items.append((head, *parcel.parts))
            run.append(parcel)
            most_bytes -= parcel.size
        return run

    def take_chunk(self, cutter: ParcelCut, size: int, now: float) -> tuple[Part, ...]:
        """The next item of a large object, of about that size; the object is over with the last one."""
        try:
            pieces, is_last = cutter.take(size)
        except StorageError as exc:  # our own disk: what has gone of it is of no use
            log.error("object %s is dropped: %s", cutter.parcel.head.object_id, exc)
            self.cutter = None
            return (PUBLICATION.pack(ABANDONED, self.number, 0),)
        if not is_last:
            return PUBLICATION.pack(CHUNK, self.number, 0), *pieces
        self.cutter = None
        return PUBLICATION.pack(LAST_CHUNK, self.number, _age(now, cutter.parcel.since)), *pieces

    def drop(self) -> None:
        """All that is not done is lost."""
        self.finish_all()
        self.cutter = None
        self.finished += len(self.parcels)
        self.parcels.clear()
        self.size = 0

    def restart(self) -> int:
        """The delegate has nothing of what is not done: that waits again, before the rest, but for what goes once
        alone, which is lost; how much."""
        self.cutter, self.is_stalled = None, False
        again = [parcel for parcel in self.unfinished if self.reliable and parcel.head.is_reliable]
        lost = len(self.unfinished) - len(again)
        self.parcels.extendleft(reversed(again))
        self.size += sum(parcel.size for parcel in again)
        self.finished += lost
        self.unfinished.clear()
        self.unfinished_size = 0
        return lost


class LaneTurns(PriorityRing[PublisherLane]):
    """Order of the lanes that may send."""

    __slots__ = ("_is_strict",)

    def __init__(self) -> None:
        super().__init__(Strategy(), WEIGHTS)
        self._is_strict = False

    def admit(self, lane: PublisherLane) -> None:
        """Give a lane that has something to send a turn, or have it wait for credit."""
        lane.is_stalled = not lane.may_send()
        if not lane.is_stalled:
            self.put(lane, 1 << lane.turn)

    def take(self, chunk: int, *, begins: bool) -> tuple[int, PublisherLane]:
        """The level and the lane whose turn it is. Unless one `begins`, as fewer are under way than a delegate takes at
        once, no object larger than `chunk` does: those under way have turns, so there is always one."""
        passed_over = []
        while True:
            level = self.next()
            lane = self.pop(level)
            if lane.cutter is not None or begins or lane.parcels[0].size <= chunk:
                break
            passed_over.append(lane)  # not at once: it would be the first of its level again
        for each in passed_over:
            self.admit(each)
        return level, lane

    def follow(self, *, strict: bool) -> None:
        """The strategy by now. What was sent under another one is held against nobody."""
        if strict != self._is_strict:
            self._is_strict = strict
            self.set(Strategy("strict" if strict else "weighted_fair"), WEIGHTS)


class Lanes:
    """Publications waiting to be sent (Source). Registrations take turns, a run of objects each; large objects go in
    chunks. `_changed` covers all state."""

    def __init__(self, *, chunk: int = CHUNK_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        """`chunk`: see [link] chunk."""
        self._chunk = chunk
        self._clock = clock
        self._lock = threading.Lock()  # entered by itself: within Condition.__enter__ a signal's handler may leave it
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[int, PublisherLane] = {}
        """Lanes of what is registered, or has something waiting or under way."""
        self._turns = LaneTurns()
        self._creditors = 0
        """Lanes with credit."""
        self.wakers: set[Callable[[], None]] = set()
        """Called, under the lock, when there may be room. They must not wait."""
        self.given_up = 0
        """Objects that were not sent, or not again, by the terms of their registrations or for want of a file."""
        self._batch_most = MAX_BATCH_ITEMS
        self._taken: deque[tuple[PublisherLane, Parcel, bool]] = deque()
        """For each item under way its lane, its whole object, and whether that is done when the item is acknowledged:
        not before its last one, and not with credit."""
        self._cutters = 0
        """Large objects under way."""
        self._count = 0
        self._bytes = 0

    def put(self, number: int, run: Sequence[Parcel], timeout: float) -> int:
        """Queue the objects of a registration; how many, fewer than all if there was no room for the next one within
        `timeout` seconds."""
        deadline = 0.0
        done = 0
        with self._lock:
            try:
                while done < len(run):
                    fitting = _fitting(run[done:] if done else run, *self._room(number))
                    if not fitting:
                        deadline = deadline or time.monotonic() + timeout
                        if (left := deadline - time.monotonic()) <= 0.0:
                            break
                        self._changed.wait(left)
                        continue
                    lane = self._lane(number)
                    self._bytes += lane.add(fitting)
                    self._count += len(fitting)
                    done += len(fitting)
                    if len(lane.parcels) == len(fitting) and lane.cutter is None and not lane.is_held_back:
                        self._turns.admit(lane)
            except BaseException:  # a signal's handler, between any two of these steps
                self._count_again()
                raise
        return done

    def _count_again(self) -> None:
        """Under the lock: count what waits, and have whoever has something waiting wait for a turn."""
        for lane in self._lanes.values():
            lane.size = sum(parcel.size for parcel in lane.parcels)
            if lane.parcels and lane.cutter is None and not lane.is_held_back and lane not in self._turns.standing:
                self._turns.admit(lane)
        self._count = sum(len(lane.parcels) for lane in self._lanes.values())
        self._bytes = sum(lane.size for lane in self._lanes.values())

    def queued(self, number: int) -> int:
        """Objects of a registration that have come so far."""
        with self._lock:
            lane = self._lanes.get(number)
            return lane.queued if lane is not None else 0

    def _tell(self) -> None:
        self._changed.notify_all()
        for wake in tuple(self.wakers):
            wake()

    def _room(self, number: int) -> tuple[int, int, int, int]:
        """Objects that wait, and their bytes; how many may."""
        lane = self._lanes.get(number) if self._creditors else None
        if lane is None or not lane.granted.credit:
            return self._count, self._bytes, QUEUE_ITEMS, QUEUE_BYTES
        each = self._creditors
        return len(lane.parcels), lane.size, max(LANE_LEAST, QUEUE_ITEMS // each), QUEUE_BYTES // each

    def _lane(self, number: int) -> PublisherLane:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = PublisherLane(number)
        return lane

    def _remove_if_idle(self, lane: PublisherLane) -> None:
        """Forget a lane of what is not registered any more, when nothing is left of it."""
        if not (lane.is_registered or lane.unfinished or lane.parcels) and self._lanes.get(lane.number) is lane:
            del self._lanes[lane.number]

    @property
    def waiting(self) -> int:
        """Objects that are not sent yet."""
        return self._count

    def is_empty(self) -> bool:
        """Whether nothing may go (Source)."""
        return not self._turns.levels

    def is_full(self) -> bool:
        """Whether a full batch waits (Source)."""
        return self._count >= self._batch_most or self._bytes >= self._chunk

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        """Take what goes next (Source)."""
        items: list[tuple[Part, ...]] = []
        max_items = min(max_items, self._batch_most)
        with self._lock:
            while self._turns.levels and len(items) < max_items and max_bytes > 0:
                level, lane = self._turns.take(self._chunk, begins=self._cutters < MAX_COMING)
                if (lane.expiration or lane.is_expiring) and lane.cutter is None and not self._prune(lane):
                    continue
                if lane.cutter is not None or lane.parcels[0].size > self._chunk:
                    items.append(self._take_chunk(lane, max(self._chunk, max_bytes)))
                    size = sum(map(len, items[-1]))
                else:
                    size = self._take_run(lane, min(RUN_ITEMS, max_items - len(items)), max_bytes, items)
                max_bytes -= size
                self._turns.charge(level, size)
                if lane.parcels or lane.cutter is not None:
                    self._turns.admit(lane)
            self._tell()
        return items

    def _take_run(self, lane: PublisherLane, most: int, most_bytes: int, items: list[tuple[Part, ...]]) -> int:
        """The next objects of a registration, no more than a chunk together unless the first one is; their bytes."""
        before = lane.size
        run = lane.take_run(items, most, min(most_bytes, self._chunk), self._chunk, self._clock)
        is_done = not lane.granted.credit
        self._taken.extend([(lane, parcel, is_done) for parcel in run])
        size = before - lane.size
        self._count -= len(run)
        self._bytes -= size
        return size

    def _take_chunk(self, lane: PublisherLane, size: int) -> tuple[Part, ...]:
        cutter = lane.cutter
        if cutter is None:
            parcel = lane.pop()
            cutter = lane.cutter = ParcelCut(parcel)
            self._cutters += 1
            self._count -= 1
            self._bytes -= parcel.size
        item = lane.take_chunk(cutter, size, self._clock())
        is_over = lane.cutter is None
        self._cutters -= is_over
        self.given_up += len(item) == 1
        self._taken.append((lane, cutter.parcel, is_over and not lane.granted.credit))
        return item

    def acknowledged(self, count: int) -> None:
        """So many items more have been taken by the delegate."""
        with self._lock:
            for _ in range(min(count, len(self._taken))):
                lane, parcel, is_done = self._taken.popleft()
                if is_done and lane.unfinished and lane.unfinished[0] is parcel:
                    lane.finish()
                    self._remove_if_idle(lane)
            self._tell()

    def _prune(self, lane: PublisherLane) -> bool:
        """Under the lock: give up what has waited too long; whether anything is left."""
        count, size = len(lane.parcels), lane.size
        self.given_up += lane.remove_late(self._clock())
        self._count += len(lane.parcels) - count
        self._bytes += lane.size - size
        self._remove_if_idle(lane)
        return bool(lane.parcels)

    def grant(self, number: int, granted: Registered, *, reliable: bool = True, expiration: float = 0.0) -> None:
        """Take the delegate's answer to a registration, before its objects go there, and what of these may be given
        up."""
        with self._lock:
            lane = self._lane(number)
            lane.reliable, lane.expiration = reliable, expiration
            self._grant(lane, granted)

    def _grant(self, lane: PublisherLane, granted: Registered) -> None:
        lane.is_registered = True
        if not granted.credit:
            self._forget_credit(lane)
            return
        lane.level = granted.importance - 1
        self._turns.follow(strict=granted.strict)
        self._creditors += not lane.granted.credit
        lane.granted = granted
        self._batch_most = max(1, min(MAX_BATCH_ITEMS, granted.credit // BATCHES_OF_CREDIT))

    def _forget_credit(self, lane: PublisherLane) -> None:
        """Forget a credit: what is under way there is done when it is acknowledged, if it is."""
        if not lane.granted.credit:
            return
        lane.finish_all()
        lane.granted, lane.level = Registered(), 0
        self._creditors -= 1
        if lane.is_stalled:
            self._turns.admit(lane)
        if not self._creditors:
            self._batch_most = MAX_BATCH_ITEMS

    def done(self, upto: Mapping[int, int]) -> None:
        """The delegate has done all objects of these registrations up to those of their numbers."""
        with self._lock:
            for number, sequence in upto.items():
                lane = self._lanes.get(number)
                if lane is None or not lane.granted.credit:
                    continue
                while lane.unfinished and lane.unfinished[0].head.sequence <= sequence:
                    lane.finish()
                if lane.is_stalled:
                    self._turns.admit(lane)
            self._tell()

    def weigh(self, importance: Mapping[int, int], strict: bool | None = None) -> None:
        """Set how important registrations are by now, and whether the most important goes first (None: as before): from
        their next turns on."""
        with self._lock:
            if strict is not None:
                self._turns.follow(strict=strict)
            for number, each in importance.items():
                lane = self._lanes.get(number)
                if lane is not None and lane.granted.credit:
                    lane.level = each - 1

    def unfinished(self, number: int) -> int:
        """Objects of a registration that were published, and that the delegate has not done (without quality of
        service: has not acknowledged)."""
        with self._lock:
            lane = self._lanes.get(number)
            return lane.queued - lane.finished if lane is not None else 0

    def first(self, number: int) -> int:
        """The number of the first object of a registration that is not done; 0: there is none."""
        with self._lock:
            lane = self._lanes.get(number)
            own = chain(lane.unfinished, lane.parcels) if lane is not None else ()
            return next((each.head.sequence - max(0, each.head.left_out - 1) for each in own), 0)

    def restart(
        self, held_back: Collection[int] = (), granted: Mapping[int, Registered] = MappingProxyType({})
    ) -> None:
        """The delegate has forgotten us: whatever it has not acknowledged whole, or with credit has not done, goes
        again, before the rest; but what is of the registrations `held_back` stays. `granted`: what the delegate says
        now of the others."""
        with self._lock:
            self._turns.clear()
            self._taken.clear()
            self._cutters = 0
            for lane in self._lanes.values():
                self.given_up += lane.restart()
                lane.is_held_back = lane.number in held_back
            for number, answer in granted.items():
                self._grant(self._lane(number), answer)
            self._count_again()
            self._tell()

    def release(self, number: int) -> None:
        """The delegate takes the registration now."""
        with self._lock:
            lane = self._lanes.get(number)
            if lane is not None and lane.is_held_back:
                lane.is_held_back = False
                if lane.parcels:
                    self._turns.admit(lane)

    def forget(self, number: int, *, drops: bool = False) -> int:
        """A registration has ended, and nothing of it is waited for: what the delegate has not done by now it never
        says. With `drops` what waits is lost; how much."""
        with self._lock:
            lane = self._lanes.get(number)
            if lane is None:
                return 0
            lane.is_registered, lane.reliable, lane.expiration = False, True, 0.0
            self._forget_credit(lane)
            lost = len(lane.parcels) if drops else 0
            if drops:
                self._turns.remove(lane)
                self._count -= lost
                self._bytes -= lane.size
                lane.drop()
            self._remove_if_idle(lane)
            self._tell()
            return lost

    def wait_taken(self, timeout: float, number: int | None = None) -> int:
        """Wait until the delegate has all that is queued by now, of one registration or of all, whatever is queued
        meanwhile; how many of the objects it has not after `timeout` s."""
        deadline = time.monotonic() + timeout
        with self._lock:
            awaited = [(lane, lane.queued) for lane in self._lanes.values() if number is None or lane.number == number]
            while (waiting := sum(max(0, queued - lane.finished) for lane, queued in awaited)) and (
                left := deadline - time.monotonic()
            ) > 0:
                self._changed.wait(left)
            return waiting


def _fitting(run: Sequence[Parcel], waiting: int, size: int, most: int, most_bytes: int) -> Sequence[Parcel]:
    """The first ones for which there is room; one at least where nothing waits."""
    for at, parcel in enumerate(run, waiting):
        size += parcel.size
        if at and (at >= most or size > most_bytes):
            return run[: at - waiting]
    return run


def _lost(parcels: Sequence[Parcel]) -> Parcel:
    """Goes in the place of consecutive objects that are lost; how long ago the last was published goes with it."""
    last = parcels[-1]
    count = sum(each.head.left_out or 1 for each in parcels)
    told = left_out(last.head.registration, last.head.sequence, count, lost=True)
    told.since = last.since
    return told


def _credited(parcel: Parcel) -> int:
    """Bytes of credit that an object takes: what lies in a file here may be in memory at the delegate."""
    return parcel.size if parcel.size < COST_LEAST else max(parcel.size, min(len(parcel.payload), MEMORY_BYTES))


def _age(now: float, since: float) -> int:
    """In milliseconds, of what was published then; 0 where that is not known."""
    return min(AGE_MOST, max(0, int(1000 * (now - since)))) if since else 0


def aged(frame: list[Part], seconds: float) -> list[Part]:
    """A batch of publications as it is sent again, so long after it was made: all of them are as much older."""
    more = int(1000 * seconds)
    if more <= 0:
        return frame
    data = bytearray().join(frame)
    at = ITEMS_AT
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        kind, number, age = PUBLICATION.unpack_from(data, at)
        PUBLICATION.pack_into(data, at, kind, number, min(AGE_MOST, age + more))
        at += length
    return [memoryview(data)]
