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
from types import MappingProxyType
from typing import Final

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.quality import LEVELS, WEIGHTS
from jbi_pubsub.core.spool import COST_LEAST, MEMORY_BYTES
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, ITEMS_AT, LENGTH, MAX_BATCH_ITEMS, chunks
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


class _Account:
    """Numbers of objects of a registration that were queued, and that the delegate has (with credit: has done),
    since none waited."""

    __slots__ = ("acknowledged", "queued")

    def __init__(self) -> None:
        self.queued = self.acknowledged = 0


class _Credit:
    """Credit of a registration: what it may have at the delegate, and has: `unfinished`, in order, until it is done."""

    __slots__ = ("bytes_waiting", "granted", "size", "unfinished", "waiting")

    def __init__(self, granted: Registered) -> None:
        self.granted = granted
        self.unfinished: deque[Parcel] = deque()
        self.size = 0
        """Size of the unfinished ones, in bytes."""
        self.waiting = self.bytes_waiting = 0

    def allows(self, size: int) -> bool:
        """Whether one more object of so many bytes may go."""
        if not self.unfinished:
            return True
        return len(self.unfinished) < self.granted.credit and self.size + size <= self.granted.credit_bytes

    def went(self, parcel: Parcel) -> None:
        """One more is under way."""
        self.unfinished.append(parcel)
        self.size += _credited(parcel)

    def waits(self, parcel: Parcel, count: int) -> None:
        """One more (1) or fewer (-1) waits."""
        self.waiting += count
        self.bytes_waiting += count * parcel.size


class _Cutting:
    """Rest of a large object; a payload in a file is read as it goes, one chunk ahead."""

    __slots__ = ("_chunks", "_next")

    def __init__(self, parcel: Parcel, size: int) -> None:
        self._chunks = chunks(parcel.parts, size)
        self._next: memoryview | None = next(self._chunks)

    def take(self) -> tuple[memoryview, bool]:
        """The next chunk, and whether it is the last. Raises StorageError."""
        chunk = self._next
        assert chunk is not None
        self._next = next(self._chunks, None)
        return chunk, self._next is None


class _Turns:
    """Order of turns, where registrations have levels: that of the level with the least virtual time, which grows by
    bytes sent by its weight; under strict of the highest one. In a level in turn."""

    def __init__(self) -> None:
        self._lines: list[deque[int]] = [deque() for _ in range(LEVELS)]
        self._times = [0.0] * LEVELS
        self._now = 0.0
        self.levels: dict[int, int] = {}
        """Levels of registrations; 0 is the least important."""
        self._length = 0
        self.is_strict = False

    def __len__(self) -> int:
        return self._length

    def append(self, number: int) -> None:
        """Behind the others of its level."""
        level = self.levels.get(number, 0)
        line = self._lines[level]
        if not line:
            self._times[level] = max(self._times[level], self._now)
        line.append(number)
        self._length += 1

    def popleft(self) -> int:
        """The next one."""
        active = [level for level in range(LEVELS - 1, -1, -1) if self._lines[level]]
        level = active[0] if self.is_strict else min(active, key=self._times.__getitem__)
        self._now = self._times[level]
        self._length -= 1
        return self._lines[level].popleft()

    def follow(self, *, strict: bool) -> None:
        """The strategy by now. What was sent under another one is held against nobody."""
        if strict != self.is_strict:
            self.is_strict = strict
            self._times = [self._now] * LEVELS

    def charge(self, number: int, size: int) -> None:
        """Charge a registration's level with bytes that it has sent."""
        level = self.levels.get(number, 0)
        self._times[level] += size / WEIGHTS[level]


class Lanes:
    """Publications waiting to be sent (Source). Registrations take turns, a run of objects each; large objects go in
    chunks. `_changed` covers all state."""

    def __init__(self, *, chunk: int = CHUNK_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        """`chunk`: see [link] chunk."""
        self._chunk = chunk
        self._clock = clock
        self._lock = threading.Lock()  # entered by itself: within Condition.__enter__ a signal's handler may leave it
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[int, deque[Parcel]] = {}
        self._turns: deque[int] | _Turns = deque()
        self._credits: dict[int, _Credit] = {}
        """Credits of registrations that have one."""
        self._stalled: set[int] = set()
        """Registrations that have objects waiting and no credit for the next one."""
        self._terms: dict[int, tuple[bool, float]] = {}
        """Registrations of which something may be given up: whether they are reliable, and seconds until they expire
        (0.0: never)."""
        self.given_up = 0
        """Objects that were not sent, or not again, by that."""
        self._batch_most = MAX_BATCH_ITEMS
        self._cutting: dict[int, _Cutting] = {}
        self._taken: deque[tuple[int, Parcel, bool]] = deque()
        """For each item under way its registration, its whole object, and whether it is the last of that, until it is
        acknowledged."""
        self._held_back: set[int] = set()
        """Registrations that the delegate does not take: what is of them stays here, and holds up no other."""
        self._accounts: dict[int, _Account] = {}
        """Accounts of registrations that have something waiting or under way."""
        self._awaiting = 0
        """Callers that wait until the delegate has something."""
        self._blocked = 0
        """Callers that wait for room."""
        self._whole: dict[int, Parcel] = {}
        self._count = 0
        self._bytes = 0

    def put(self, number: int, run: Sequence[Parcel], timeout: float) -> int:
        """Queue the objects of a registration; how many, fewer than all if there was no room for the next one within
        `timeout` seconds."""
        deadline = 0.0
        with self._lock:
            for at, parcel in enumerate(run):
                while (
                    not self._has_room(number, parcel.size)
                    if self._credits
                    else self._count and (self._count >= QUEUE_ITEMS or self._bytes + parcel.size > QUEUE_BYTES)
                ):
                    now = time.monotonic()
                    deadline = deadline or now + timeout
                    if now >= deadline:
                        return at
                    self._wait_for_room(deadline - now)
                self._append(number, parcel)
        return len(run)

    def _has_room(self, number: int, size: int) -> bool:
        credit = self._credits.get(number)
        if credit is None:
            return not self._count or (self._count < QUEUE_ITEMS and self._bytes + size <= QUEUE_BYTES)
        most, most_bytes = QUEUE_ITEMS // len(self._credits), QUEUE_BYTES // len(self._credits)
        has_room = credit.waiting < max(LANE_LEAST, most) and credit.bytes_waiting + size <= most_bytes
        return has_room or not credit.waiting

    def _wait_for_room(self, seconds: float) -> None:
        self._blocked += 1
        try:
            self._changed.wait(seconds)
        finally:  # an application may be interrupted here
            self._blocked -= 1

    def _append(self, number: int, parcel: Parcel) -> None:
        account = self._accounts.get(number)
        if account is None:
            account = self._accounts[number] = _Account()
        account.queued += 1
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = deque()
        lane.append(parcel)
        if self._credits and (credit := self._credits.get(number)) is not None:
            credit.waits(parcel, 1)
        if len(lane) == 1 and number not in self._cutting and number not in self._held_back:
            self._make_ready(number)
        self._count += 1
        self._bytes += parcel.size

    def _make_ready(self, number: int) -> None:
        """Give a registration that has something to send a turn, or have it wait for credit."""
        credit = self._credits.get(number) if self._credits else None
        if credit is None or number in self._cutting or credit.allows(_credited(self._lanes[number][0])):
            self._turns.append(number)
        else:
            self._stalled.add(number)

    @property
    def waiting(self) -> int:
        """Objects that are not sent yet."""
        return self._count

    def is_empty(self) -> bool:
        """Whether nothing may go (Source)."""
        return not self._turns

    def is_full(self) -> bool:
        """Whether a full batch waits (Source)."""
        return self._count >= self._batch_most or self._bytes >= self._chunk

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        """Take what goes next (Source)."""
        items: list[tuple[Part, ...]] = []
        max_items = min(max_items, self._batch_most)
        with self._lock:
            while self._turns and len(items) < max_items and max_bytes > 0:
                number = self._turn()
                lane = self._lanes[number]
                if self._terms and number not in self._cutting and not self._prune(number, lane):
                    del self._lanes[number]
                    continue
                if number in self._cutting or lane[0].size > self._chunk:
                    items.append(self._next_chunk(number, lane))
                    size = sum(map(len, items[-1]))
                else:
                    size = self._take_run(number, lane, min(RUN_ITEMS, max_items - len(items)), max_bytes, items)
                max_bytes -= size
                if isinstance(self._turns, _Turns):
                    self._turns.charge(number, size)
                if lane or number in self._cutting:
                    self._make_ready(number)
                else:
                    del self._lanes[number]
            if self._blocked:
                self._changed.notify_all()
        return items

    def _turn(self) -> int:
        """Registration whose turn it is. A large object begins only when fewer are under way than a delegate takes at
        once; those under way have turns, so there is always one."""
        passed_over = []
        while True:
            number = self._turns.popleft()
            if number in self._cutting or len(self._cutting) < MAX_COMING or self._lanes[number][0].size <= self._chunk:
                break
            passed_over.append(number)  # not at once: it would be the first of its level again
        for each in passed_over:
            self._turns.append(each)
        return number

    def _take_run(
        self, number: int, lane: deque[Parcel], most: int, most_bytes: int, items: list[tuple[Part, ...]]
    ) -> int:
        """The next objects of a registration, no more than a chunk together unless the first one is; their bytes."""
        head = PUBLICATION.pack(WHOLE, number, 0)
        most_bytes = min(most_bytes, self._chunk)
        credit = self._credits.get(number) if self._credits else None
        is_aged = credit is not None or (bool(self._terms) and number in self._terms)
        now = self._clock() if is_aged else 0.0
        begin, end = now - 0.001, math.inf  # what was published between is of the age that `head` says
        taken = size = 0
        while lane and taken < most and size < most_bytes and lane[0].size <= self._chunk:
            if credit is not None:
                if not credit.allows(lane[0].size):
                    break
                credit.waits(lane[0], -1)
                credit.went(lane[0])
            if is_aged and not begin < (since := lane[0].since) <= end:
                age = _age(now, since)
                begin, end = now - (age + 1) / 1000, now - age / 1000
                head = PUBLICATION.pack(WHOLE, number, age)
            parcel = lane.popleft()
            items.append((head, *parcel.parts))
            self._taken.append((number, parcel, True))
            taken += 1
            size += parcel.size
        self._count -= taken
        self._bytes -= size
        return size

    def _next_chunk(self, number: int, lane: deque[Parcel]) -> tuple[Part, ...]:
        cutting = self._cutting.get(number)
        if cutting is None:
            parcel = self._whole[number] = lane.popleft()
            cutting = self._cutting[number] = _Cutting(parcel, self._chunk)
            self._count -= 1
            self._bytes -= parcel.size
            if (credit := self._credits.get(number)) is not None:
                credit.waits(parcel, -1)
                credit.went(parcel)
        whole = self._whole[number]
        try:
            chunk, is_last = cutting.take()
        except StorageError as exc:  # our own disk: what has gone of it is of no use
            log.error("object %s is given up: %s", whole.head.object_id, exc)
            self.given_up += 1
            del self._cutting[number], self._whole[number]
            self._taken.append((number, whole, True))
            return (PUBLICATION.pack(ABANDONED, number, 0),)
        self._taken.append((number, whole, is_last))
        if not is_last:
            return PUBLICATION.pack(CHUNK, number, 0), chunk
        del self._cutting[number], self._whole[number]
        return PUBLICATION.pack(LAST_CHUNK, number, _age(self._clock(), whole.since)), chunk

    def acknowledged(self, count: int) -> None:
        """So many items more have been taken by the delegate."""
        with self._lock:
            for _ in range(min(count, len(self._taken))):
                number, _, last = self._taken.popleft()
                if not last or (self._credits and number in self._credits):
                    continue  # with credit it is kept until it is done
                account = self._accounts.get(number)
                if account is not None:
                    account.acknowledged += 1
                    if account.acknowledged == account.queued:
                        del self._accounts[number]
            if self._awaiting:
                self._changed.notify_all()

    def _settle(self, number: int, count: int) -> None:
        account = self._accounts.get(number)
        if account is not None:
            account.acknowledged += count
            if account.acknowledged >= account.queued:
                del self._accounts[number]

    def expect(self, number: int, *, reliable: bool, expiration: float) -> None:
        """Set what may be given up of a registration; of others nothing is."""
        if not reliable or expiration:
            with self._lock:
                self._terms[number] = reliable, expiration

    def _prune(self, number: int, lane: deque[Parcel]) -> bool:
        """Under the lock: give up what has waited too long; whether anything is left."""
        _, expiration = self._terms.get(number, (True, 0.0))
        if expiration:
            due = self._clock() - expiration
            gone = [parcel for parcel in lane if 0.0 < parcel.since <= due]
            if gone:
                left = [parcel for parcel in lane if not 0.0 < parcel.since <= due]
                lane.clear()
                lane.extend(left)
                self._give_up(number, gone)
        return bool(lane)

    def _give_up(self, number: int, gone: Sequence[Parcel]) -> None:
        """Under the lock: these waited, and go nowhere."""
        self._count -= len(gone)
        self._bytes -= sum(parcel.size for parcel in gone)
        if (credit := self._credits.get(number)) is not None:
            for parcel in gone:
                credit.waits(parcel, -1)
        self._settle(number, len(gone))
        self.given_up += len(gone)
        if self._awaiting:
            self._changed.notify_all()

    def grant(self, number: int, granted: Registered) -> None:
        """Take the delegate's answer to a registration, before its objects go there."""
        with self._lock:
            self._grant(number, granted)

    def _grant(self, number: int, granted: Registered) -> None:
        if not granted.credit:
            self._forget_credit(number)
            return
        if not isinstance(self._turns, _Turns):
            before, self._turns = self._turns, _Turns()
            for each in before:
                self._turns.append(each)
        self._turns.levels[number] = granted.importance - 1
        self._turns.follow(strict=granted.strict)
        credit = self._credits.get(number)
        if credit is None:
            credit = self._credits[number] = _Credit(granted)
            for parcel in self._lanes.get(number, ()):
                credit.waits(parcel, 1)
        credit.granted = granted
        self._batch_most = max(1, min(MAX_BATCH_ITEMS, granted.credit // BATCHES_OF_CREDIT))

    def _forget_credit(self, number: int) -> None:
        """Forget a credit: what is under way there is done when it is acknowledged, if it is."""
        credit = self._credits.pop(number, None)
        if credit is not None:
            self._settle(number, len(credit.unfinished))
            if number in self._stalled:
                self._stalled.discard(number)
                self._turns.append(number)
            if not self._credits:
                self._batch_most = MAX_BATCH_ITEMS

    def done(self, upto: Mapping[int, int]) -> None:
        """The delegate has done all objects of these registrations up to those of their numbers."""
        with self._lock:
            for number, sequence in upto.items():
                credit = self._credits.get(number)
                if credit is None:
                    continue
                before = len(credit.unfinished)
                while credit.unfinished and credit.unfinished[0].head.sequence <= sequence:
                    credit.size -= _credited(credit.unfinished.popleft())
                self._settle(number, before - len(credit.unfinished))
                if number in self._stalled and credit.allows(_credited(self._lanes[number][0])):
                    self._stalled.discard(number)
                    self._turns.append(number)
            if self._awaiting:
                self._changed.notify_all()

    def weigh(self, importance: Mapping[int, int], strict: bool | None = None) -> None:
        """Set how important registrations are by now, and whether the most important goes first (None: as before): from
        their next turns on."""
        with self._lock:
            if isinstance(self._turns, _Turns):
                if strict is not None:
                    self._turns.follow(strict=strict)
                self._turns.levels |= {
                    number: each - 1 for number, each in importance.items() if number in self._credits
                }

    def unfinished(self, number: int) -> int:
        """Objects of a registration that were published, and that the delegate has not done (without quality of
        service: has not acknowledged)."""
        with self._lock:
            account = self._accounts.get(number)
            return account.queued - account.acknowledged if account is not None else 0

    def first(self, number: int) -> int:
        """The number of the first object of a registration that is not done; 0: there is none."""
        with self._lock:
            credit, whole = self._credits.get(number), self._whole.get(number)
            own = [*(credit.unfinished if credit is not None else ()), *(p for n, p, _ in self._taken if n == number)]
            own += [parcel for parcel in (whole, next(iter(self._lanes.get(number, ())), None)) if parcel is not None]
            return min((each.head.sequence - max(0, each.head.left_out - 1) for each in own), default=0)

    def restart(
        self, held_back: Collection[int] = (), granted: Mapping[int, Registered] = MappingProxyType({})
    ) -> None:
        """The delegate has forgotten us: whatever it has not acknowledged whole, or with credit has not done, goes
        again, before the rest; but what is of the registrations `held_back` stays. `granted`: what the delegate says
        now of the others."""
        with self._lock:
            self._held_back = set(held_back)
            again: dict[int, list[Parcel]] = {}
            for number, credit in self._credits.items():
                again[number] = list(credit.unfinished)
                credit.unfinished.clear()
                credit.size = 0
                for parcel in again[number]:
                    credit.waits(parcel, 1)
            for number, parcel, _ in self._taken:
                if number in self._credits:
                    continue
                lane = again.setdefault(number, [])
                if not lane or lane[-1] is not parcel:
                    lane.append(parcel)
            for number in self._cutting:
                if number in self._credits:
                    continue
                lane = again.setdefault(number, [])
                if not lane or lane[-1] is not self._whole[number]:
                    lane.append(self._whole[number])
            for number, lane in again.items():
                self._lanes.setdefault(number, deque()).extendleft(reversed(lane))
                self._count += len(lane)
                self._bytes += sum(parcel.size for parcel in lane)
                if self._terms and not self._terms.get(number, (True, 0.0))[0]:
                    for _ in lane:
                        self._lanes[number].popleft()
                    self._give_up(number, lane)
            self._taken.clear()
            self._cutting.clear()
            self._whole.clear()
            self._stalled.clear()
            while self._turns:
                self._turns.popleft()
            for number, answer in granted.items():
                self._grant(number, answer)
            for number, waiting in self._lanes.items():
                if waiting and number not in self._held_back:
                    self._make_ready(number)

    def release(self, number: int) -> None:
        """The delegate takes the registration now."""
        with self._lock:
            if number in self._held_back:
                self._held_back.discard(number)
                if self._lanes.get(number):
                    self._make_ready(number)

    def forget(self, number: int) -> None:
        """A registration has ended, and nothing of it is waited for: what the delegate has not done by now it never
        says."""
        with self._lock:
            self._terms.pop(number, None)
            self._forget_credit(number)

    def drop(self, number: int) -> int:
        """A registration that is held back has ended; how many objects are lost with it."""
        with self._lock:
            self._held_back.discard(number)
            lane = self._lanes.pop(number, deque())
            self._count -= len(lane)
            self._bytes -= sum(parcel.size for parcel in lane)
            account = self._accounts.pop(number, None)
            if account is not None:
                account.acknowledged = account.queued  # nobody has to wait for them any more
            self._stalled.discard(number)
            self._forget_credit(number)
            self._changed.notify_all()
            return len(lane)

    def wait_taken(self, timeout: float, number: int | None = None) -> int:
        """Wait until the delegate has all that is queued by now, of one registration or of all, whatever is queued
        meanwhile; how many of the objects it has not after `timeout` s."""
        deadline = time.monotonic() + timeout
        with self._lock:
            awaited = [(a, a.queued) for known, a in self._accounts.items() if number is None or known == number]
            self._awaiting += 1
            try:
                while (waiting := sum(max(0, queued - a.acknowledged) for a, queued in awaited)) and (
                    left := deadline - time.monotonic()
                ) > 0:
                    self._changed.wait(left)
            finally:  # an application may be interrupted here
                self._awaiting -= 1
            return waiting


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
