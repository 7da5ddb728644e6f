"""Objects that a delegate has published and keeps for seconds: who comes late catches up with it.

A subscription that stood before an object was published is to get it, whenever the delegate hears of the subscription:
at a new registration, after a restart, at a fail-over, from a lookup service that comes late. So each object gets a
position, one counter a delegate, and lies in the buffer of its topic; a late joiner gets from there what came since it
stood, up to the position at which it was put into the match tables, and everything later through them: nothing twice,
nothing between. What has gone by then is counted, and told as `missed`.

Rules:
- A buffer is *young* until all who wait for its topic had `keep_seconds` to come: from each registration that joins the
  topic, and from its announcement by each lookup service. As long as none has announced it, it stays young. Otherwise
  it holds the last second alone, for those who subscribe and publish in one breath.
- All buffers together hold `keep_bytes`; beyond that the largest gives up its oldest: a flood of one type costs no
  other its first objects.
- Positions are given and buffers changed under one lock, held for a microsecond; the rest is done without it.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.xml import Element

OVERHEAD: Final = 1_000
"""Bytes that a kept object takes beside its own."""
OLD_SECONDS: Final = 1.0
OLD_BYTES: Final = 1 << 20
"""Bounds of a buffer that is not young: the way from `register_subscriber` to the delegate takes some ten ms."""
SPANS: Final = 64
"""Spans of time in which the objects that have gone are counted; the older, the longer."""
SPAN_SECONDS: Final = 0.25
"""Length of the latest one: a late joiner that came within it is told of up to so much too many."""


class Reader(Protocol):
    """Reads again what was good when it came."""

    @property
    def origin(self) -> Provenance:
        """The provenance: who publishes, and where."""
        ...

    def read(self, metadata: bytes) -> Element | Traced | None:
        """The document of metadata that have been checked; None: they are none."""
        ...


WITHDRAWN: Final = sys.maxsize
"""The position of an object that is nobody's any more: behind all places."""


class RecentObject(msgspec.Struct, eq=False, gc=False):
    """An object in the buffer. Nothing that it refers to leads back to it: see Parcel."""

    position: int
    time: float
    parcel: Parcel
    reader: Reader
    unmatched: bool = False
    """Whether it matched nobody when it came."""
    found: bool = False
    """Somebody who came later got it."""


class DepartureCount:
    """Number of objects that have left a buffer, by when they came."""

    def __init__(self) -> None:
        self._spans: deque[list[float]] = deque()  # [when its first came, when its last, how many, the first's place]

    @property
    def last(self) -> float:
        """When the last of them came."""
        return self._spans[-1][1] if self._spans else -math.inf

    def add(self, time: float, position: int = 0, count: int = 1) -> None:
        """One that came then, or so many; no earlier than those before."""
        if self._spans and time - self._spans[-1][0] < SPAN_SECONDS:
            self._spans[-1][1] = max(time, self._spans[-1][1])
            self._spans[-1][2] += count
            return
        self._spans.append([time, time, count, position])
        if len(self._spans) > SPANS:
            self._merge()

    def since(self, time: float) -> int:
        """Number of objects that came at or after `time`; of a span that began before it a part, by its length."""
        count = 0.0
        for first, last, number, _ in self._spans:
            if first >= time:
                count += number
            elif last >= time:
                part = math.ceil(number * (last - time) / (last - first)) if last > first else number
                count += min(part, number)  # of a moment behind its beginning a fraction may be rounded up
        return int(count)

    def first_since(self, time: float) -> int | None:
        """The position of the first that came at or after `time`, or of one that came shortly before."""
        return next((int(position) for _, last, _, position in self._spans if last >= time), None)

    def _merge(self) -> None:
        """Each two of the older half become one."""
        spans = list(self._spans)
        older = [
            [a[0], b[1], a[2] + b[2], a[3]]
            for a, b in zip(spans[: SPANS // 2 : 2], spans[1 : SPANS // 2 : 2], strict=True)
        ]
        self._spans = deque([*older, *spans[SPANS // 2 :]])


@dataclass(eq=False, slots=True)
class RecentBuffer:
    """The last objects of one topic. The lock of the RecentBuffers covers it."""

    kept: deque[RecentObject] = field(default_factory=deque)
    size: int = 0
    """Bytes, with the overhead."""
    gone: DepartureCount = field(default_factory=DepartureCount)
    lost: dict[Cause, DepartureCount] = field(default_factory=dict)
    """Number of objects that never came to it, by when that was told."""
    total: int = 0
    """All that ever lay here."""
    last: float = -math.inf
    """When the latest came."""
    young_until: float = math.inf
    """By the delegate's clock; infinite while no lookup service has told of a registration."""

    def _pop(self) -> int:
        """The oldest goes; its bytes."""
        kept = self.kept.popleft()
        self.gone.add(kept.time, kept.position)
        size = kept.parcel.size + OVERHEAD
        self.size -= size
        return size


class RecentBuffers:
    """All buffers of a delegate, with its one counter of positions. Any thread."""

    def __init__(self, seconds: float, limit: int) -> None:
        """`seconds` for a young buffer, `limit` bytes for all of them; 0 seconds keeps nothing."""
        self._seconds = seconds
        self.limit = limit if seconds > 0 else 0
        self._lock = threading.Lock()
        self._filled: set[RecentBuffer] = set()
        self.position = 0
        """Position of the last object kept."""
        self.size = 0
        """Bytes in all buffers."""
        self.found_late = 0
        """Objects that matched nobody when they came, and somebody later."""

    def announced(self, buffer: RecentBuffer, now: float) -> None:
        """A lookup service tells of a registration of the topic: who waits for it comes now."""
        with self._lock:
            buffer.young_until = now + self._seconds

    def keep(
        self, buffer: RecentBuffer, run: Sequence[Parcel], reader: Reader, now: float, *, archived: int | None = None
    ) -> list[RecentObject]:
        """Give objects their positions, and put them into the buffer. `archived`: they go into an archive, which has
        those up to that number; the others' parcels say where they are in it."""
        if not run:
            return []
        size = sum([parcel.size for parcel in run]) + OVERHEAD * len(run)
        with self._lock:
            if now < buffer.last:  # another publisher has read the clock later, and was faster
                now = buffer.last
            buffer.last = now
            kept = [
                RecentObject(position, now, parcel, reader) for position, parcel in enumerate(run, self.position + 1)
            ]
            self.position += len(run)
            if archived is not None:
                for each in kept:
                    if each.parcel.head.sequence > archived:
                        each.parcel.position = each.position
                    else:
                        each.parcel.was_kept = True
            if not buffer.kept:
                self._filled.add(buffer)
            buffer.kept.extend(kept)
            buffer.total += len(run)
            buffer.size += size
            self.size += size
            if buffer.size > OLD_BYTES and now >= buffer.young_until:
                self._trim(buffer, -math.inf, OLD_BYTES // 2)  # to the half: not one for each that comes
            elif self.size > self.limit:
                self._give_up()
        return kept

    def reserve(self, count: int) -> int:
        """The first of so many positions, for objects that lie in no buffer."""
        with self._lock:
            self.position += count
            return self.position - count + 1

    def lose(self, buffer: RecentBuffer, cause: Cause, count: int, now: float) -> int:
        """So many objects of the topic never came; the position of that: who has a later place knows it by `mark`."""
        with self._lock:
            self.position += 1
            buffer.lost.setdefault(cause, DepartureCount()).add(now, self.position, count)
            return self.position

    def withdraw(self, kept: Sequence[RecentObject]) -> None:
        """These are refused after all: nobody finds them any more."""
        with self._lock:
            for each in kept:
                each.position, each.parcel.position = WITHDRAWN, 0

    def has_room(self, size: int) -> bool:
        """Whether an object of `size` bytes takes no other's place."""
        return self.size + size + OVERHEAD <= self.limit

    def is_crowded(self, buffer: RecentBuffer, size: int, now: float, settle: float) -> bool:
        """Whether an object of `size` bytes takes the place of one that lies there for less than `settle` seconds."""
        with self._lock:
            if self.has_room(size) or not buffer.kept or now >= buffer.young_until:
                return False
            is_largest = buffer.size == max(each.size for each in self._filled)
            return is_largest and now - buffer.kept[0].time < settle

    def unmatched(self, kept: RecentObject) -> None:
        """Note that it matched nobody when it came."""
        with self._lock:
            kept.unmatched = True
            self.found_late += kept.found

    def found(self, kept: RecentObject) -> None:
        """Somebody got it who came later."""
        with self._lock:
            self.found_late += kept.unmatched and not kept.found
            kept.found = True

    def mark(self, buffers: Sequence[RecentBuffer], since: float = math.inf) -> tuple[int, list[int], dict[Cause, int]]:
        """The place of a late joiner that is in the match tables now: the last position; how many lay on each of the
        buffers up to there; how many of them never came since then, by cause."""
        lost: Counter[Cause] = Counter()
        with self._lock:
            for buffer in buffers:
                for cause, gone in buffer.lost.items():
                    lost[cause] += gone.since(since)
            return self.position, [buffer.total for buffer in buffers], lost

    def stamp(self, mark: Callable[[int], None]) -> None:
        """Tell `mark` the position of the last object. Whoever has a later one finds done what it does."""
        with self._lock:
            mark(self.position)

    def look(
        self, buffer: RecentBuffer, joiners: Sequence[tuple[float, int]]
    ) -> tuple[list[RecentObject], int, list[int]]:
        """All that lies there, oldest first; how many have gone; and for each late joiner, (since when it stands, its
        mark here), how many it has missed: gone, not before it stood, and not behind its mark, as those came to it
        live."""
        with self._lock:
            gone = buffer.total - len(buffer.kept)
            missed = [max(0, buffer.gone.since(since) - max(0, gone - mark)) for since, mark in joiners]
            return list(buffer.kept), gone, missed

    def owes(self, buffer: RecentBuffer, since: float) -> bool:
        """Whether something that came since then lies there, or has gone."""
        with self._lock:
            return bool(buffer.kept and buffer.kept[-1].time >= since) or buffer.gone.last >= since

    def first_since(self, buffers: Sequence[RecentBuffer], since: float) -> int:
        """The position of the first that came since then, or of one that came shortly before; of none the next that
        will be given."""
        with self._lock:
            first = self.position + 1
            for buffer in buffers:
                found = buffer.gone.first_since(since)
                if found is None:
                    found = next((kept.position for kept in buffer.kept if kept.time >= since), first)
                first = min(first, found)
            return first

    def find(self, object_id: str) -> Parcel | None:
        """An object that still lies in a buffer."""
        with self._lock:
            parcels = [kept.parcel for buffer in self._filled for kept in buffer.kept if kept.position < WITHDRAWN]
        return next((parcel for parcel in parcels if parcel.head.object_id == object_id), None)

    def trim(self, now: float) -> None:
        """Drop what has lain long enough. Now and then."""
        with self._lock:
            for buffer in [s for s in self._filled if not math.isinf(s.young_until)]:
                is_young = now < buffer.young_until
                seconds = self._seconds if is_young else min(OLD_SECONDS, self._seconds)
                self._trim(buffer, now - seconds, self.limit if is_young else OLD_BYTES)

    def drop(self, buffer: RecentBuffer) -> None:
        """Its topic is gone: so is what lies there."""
        with self._lock:
            self._trim(buffer, math.inf, 0)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(buffer.kept) for buffer in self._filled)

    def _trim(self, buffer: RecentBuffer, before: float, most: int) -> None:
        """Drop what came before `before`, and as much more as is over `most` bytes."""
        while buffer.kept and (buffer.kept[0].time < before or buffer.size > most):
            self.size -= buffer._pop()
        if not buffer.kept:
            self._filled.discard(buffer)

    def _give_up(self) -> None:
        """The largest buffer gives way, by a sixteenth of all room at once: not by one for each that comes."""
        while self.size > self.limit and self._filled:
            buffer = max(self._filled, key=lambda buffer: buffer.size)
            over = self.size - self.limit + min(self.limit // 16, buffer.size // 2)
            self._trim(buffer, -math.inf, max(0, buffer.size - over))
