"""What waits for a delegate: a lane for each registration, whose objects go in order; the lanes take turns."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, MAX_BATCH_ITEMS, chunks
from jbi_pubsub.pad.proxy import CHUNK, LAST_CHUNK, MAX_COMING, PUBLICATION, WHOLE

QUEUE_ITEMS: Final = 10_000
QUEUE_BYTES: Final = 64 << 20
"""Bounds of what publish() may queue before it waits: a second or two of a fast publisher."""
RUN_ITEMS: Final = 50
"""Objects of one registration that go at a turn, as long as they are no more than a chunk."""


class _Account:
    """How many objects of a registration were queued, and how many of them the delegate has, since none waited."""

    __slots__ = ("acknowledged", "queued")

    def __init__(self) -> None:
        self.queued = self.acknowledged = 0


class Lanes:
    """Publications waiting to be sent (Source). Registrations take turns, a run of objects each; large objects go in
    chunks. `_changed` covers all state."""

    def __init__(self, *, chunk: int = CHUNK_BYTES) -> None:
        """`chunk`: see [link] chunk."""
        self._chunk = chunk
        self._lock = threading.Lock()  # entered by itself: within Condition.__enter__ a signal's handler may leave it
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[int, deque[Parcel]] = {}
        self._turns: deque[int] = deque()
        self._cutting: dict[int, deque[memoryview]] = {}
        self._taken: deque[tuple[int, Parcel, bool]] = deque()
        """For each item under way its registration, its whole object, and whether it is the last of that, until it is
        acknowledged."""
        self._held_back: set[int] = set()
        """Registrations that the delegate does not take: what is of them stays here, and holds up no other."""
        self._accounts: dict[int, _Account] = {}
        """Of registrations that have something waiting or under way."""
        self._awaiting = 0
        """Who waits until the delegate has something."""
        self._blocked = 0
        """Who waits for room."""
        self._whole: dict[int, Parcel] = {}
        self._count = 0
        self._bytes = 0

    def put(self, number: int, run: Sequence[Parcel], timeout: float) -> int:
        """Queue the objects of a registration; how many, fewer than all if there was no room for the next one within
        `timeout` seconds."""
        deadline = 0.0
        with self._lock:
            for at, parcel in enumerate(run):
                while self._count and (self._count >= QUEUE_ITEMS or self._bytes + parcel.size > QUEUE_BYTES):
                    now = time.monotonic()
                    deadline = deadline or now + timeout
                    if now >= deadline:
                        return at
                    self._wait_for_room(deadline - now)
                self._append(number, parcel)
        return len(run)

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
        if len(lane) == 1 and number not in self._cutting and number not in self._held_back:
            self._turns.append(number)
        self._count += 1
        self._bytes += parcel.size

    @property
    def waiting(self) -> int:
        """Objects that are not sent yet."""
        return self._count

    def is_empty(self) -> bool:
        """Whether nothing may go (Source)."""
        return not self._turns

    def is_full(self) -> bool:
        """Whether a full batch waits (Source)."""
        return self._count >= MAX_BATCH_ITEMS or self._bytes >= self._chunk

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        """What goes next (Source)."""
        items: list[tuple[Part, ...]] = []
        with self._lock:
            while self._turns and len(items) < max_items and max_bytes > 0:
                number = self._turn()
                lane = self._lanes[number]
                if number in self._cutting or lane[0].size > self._chunk:
                    items.append(self._next_chunk(number, lane))
                    max_bytes -= sum(map(len, items[-1]))
                else:
                    max_bytes -= self._take_run(number, lane, min(RUN_ITEMS, max_items - len(items)), max_bytes, items)
                if lane or number in self._cutting:
                    self._turns.append(number)
                else:
                    del self._lanes[number]
            if self._blocked:
                self._changed.notify_all()
        return items

    def _turn(self) -> int:
        """Whose turn it is. A large object begins only when fewer are under way than a delegate takes at once; those
        under way have turns, so there is always one."""
        while True:
            number = self._turns.popleft()
            if number in self._cutting or len(self._cutting) < MAX_COMING or self._lanes[number][0].size <= self._chunk:
                return number
            self._turns.append(number)

    def _take_run(
        self, number: int, lane: deque[Parcel], most: int, most_bytes: int, items: list[tuple[Part, ...]]
    ) -> int:
        """The next objects of a registration, no more than a chunk together unless the first one is; their bytes."""
        head = PUBLICATION.pack(WHOLE, number)
        most_bytes = min(most_bytes, self._chunk)
        taken = size = 0
        while lane and taken < most and size < most_bytes and lane[0].size <= self._chunk:
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
            cutting = self._cutting[number] = deque(chunks(parcel.parts, self._chunk))
            self._count -= 1
            self._bytes -= parcel.size
        chunk = cutting.popleft()
        self._taken.append((number, self._whole[number], not cutting))
        if cutting:
            return PUBLICATION.pack(CHUNK, number), chunk
        del self._cutting[number], self._whole[number]
        return PUBLICATION.pack(LAST_CHUNK, number), chunk

    def acknowledged(self, count: int) -> None:
        """So many items more have been taken by the delegate."""
        with self._lock:
            for _ in range(min(count, len(self._taken))):
                number, _, last = self._taken.popleft()
                if last:
                    account = self._accounts[number]
                    account.acknowledged += 1
                    if account.acknowledged == account.queued:
                        del self._accounts[number]
            if self._awaiting:
                self._changed.notify_all()

    def restart(self, held_back: Collection[int] = ()) -> None:
        """The delegate has forgotten us: whatever it has not acknowledged whole goes again, before the rest; but what
        is of the registrations `held_back` stays."""
        with self._lock:
            self._held_back = set(held_back)
            again: dict[int, list[Parcel]] = {}
            for number, parcel, _ in self._taken:
                lane = again.setdefault(number, [])
                if not lane or lane[-1] is not parcel:
                    lane.append(parcel)
            for number in self._cutting:
                lane = again.setdefault(number, [])
                if not lane or lane[-1] is not self._whole[number]:
                    lane.append(self._whole[number])
            for number, lane in again.items():
                self._lanes.setdefault(number, deque()).extendleft(reversed(lane))
                self._count += len(lane)
                self._bytes += sum(parcel.size for parcel in lane)
            self._taken.clear()
            self._cutting.clear()
            self._whole.clear()
            self._turns = deque(n for n, waiting in self._lanes.items() if waiting and n not in self._held_back)

    def release(self, number: int) -> None:
        """The delegate takes the registration now."""
        with self._lock:
            if number in self._held_back:
                self._held_back.discard(number)
                if self._lanes.get(number):
                    self._turns.append(number)

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
