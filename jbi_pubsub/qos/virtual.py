"""Connections and links on a virtual clock: what processes' queues and sockets do, for simulation."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.quality import Contract, Resources, Space
from jbi_pubsub.core.wire.stream import CHUNK_BYTES

from .link import Destination, SharedLink, update_links
from .queue import LevelQueue

DISTANCE: Final = 0.001
"""Seconds there and back."""
ITEM_BYTES: Final = 5
BATCH_BYTES: Final = 21
"""Bytes that an item and a batch add to what they carry (core/wire/stream.py)."""
SAMPLE_SECONDS: Final = 1.0
"""Between two points of what a link carries."""


class StageResult(msgspec.Struct):
    """Result of a subscription in one stage."""

    subscriber: str
    type: str
    importance: int = 0
    matched: int = 0
    late: list[float] = msgspec.field(default_factory=list)
    """Seconds, of each that was delivered."""
    size: int = 0
    """Bytes delivered."""
    shaped: int = 0
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    """By cause."""

    def quantile(self, part: float) -> float:
        """Quantile of the delays; 0.0 when nothing came."""
        late = sorted(self.late)
        return late[min(len(late) - 1, int(len(late) * part))] if late else 0.0

    def row(self, seconds: float, total: int) -> dict[str, Any]:
        """Plain data; `total`: bytes delivered to all."""
        mean = statistics.fmean(self.late) if self.late else 0.0
        return {
            "subscriber": self.subscriber,
            "type": self.type,
            "importance": self.importance,
            "matched": self.matched,
            "delivered": len(self.late),
            "shaped": self.shaped,
            "lost": dict(self.lost),
            "rate": round(len(self.late) / seconds, 3),
            "share": round(self.size / total, 4) if total else 0.0,
            "delay": round(mean, 4),
            "deviation": round(statistics.pstdev(self.late) if self.late else 0.0, 4),
            "p50": round(self.quantile(0.5), 4),
            "p95": round(self.quantile(0.95), 4),
        }


class SimulatedObject(msgspec.Struct, eq=False):
    """An object of a subscription."""

    parcel: Parcel
    arrived: float
    got: StageResult
    shaped: bool


class SimulatedQueue:
    """Objects that one subscription has waiting."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.queue: LevelQueue[SimulatedObject] = LevelQueue(contract, self._lost)
        self.size = 0
        """Bytes that wait."""
        self.cutting: SimulatedObject | None = None
        self.left = 0
        """Bytes of it that have not gone."""
        self.cut_level = 0

    @property
    def levels(self) -> int:
        """As pad/egress/levels.py has it."""
        if self.cutting is not None:
            return 1 << max(self.cut_level, self.queue.levels.bit_length() - 1)
        return self.queue.levels

    def put(self, waiting: SimulatedObject, now: float) -> None:
        """One more waits."""
        self.size += waiting.parcel.size
        self.queue.put(waiting, now)

    def _lost(self, waiting: SimulatedObject, cause: Cause) -> None:
        self.size -= waiting.parcel.size
        waiting.got.lost[cause.value] += 1

    def take(self, level: int, most: int, now: float) -> tuple[int, SimulatedObject | None]:
        """An object, or a piece of a large one: its bytes, and what is complete with it."""
        if self.cutting is None:
            waiting = self.queue.select(level, now)
            if waiting is None:
                return 0, None
            self.queue.take()
            self.size -= waiting.parcel.size
            if waiting.parcel.size <= 2 * most:
                return ITEM_BYTES + waiting.parcel.size, waiting
            self.cutting, self.left, self.cut_level = waiting, waiting.parcel.size, level
        piece = min(most, self.left)
        self.left -= piece
        whole = self.cutting if not self.left else None
        if whole is not None:
            self.cutting = None
        return ITEM_BYTES + piece, whole


class SimulatedSession:
    """A subscriber's connection."""

    def __init__(self) -> None:
        self.outlets: deque[SimulatedQueue] = deque()
        self.link = ""
        self.destination: Destination[SimulatedSession] = Destination(self, self.levels)

    def levels(self) -> int:
        """Bit mask of what it has something for."""
        mask = 0
        for outlet in self.outlets:
            mask |= outlet.levels
        return mask

    def waiting(self) -> int:
        """Objects that have not gone, or not all of them."""
        return sum(len(outlet.queue) + (outlet.cutting is not None) for outlet in self.outlets)

    def backlog(self) -> int:
        """Bytes that wait."""
        return sum(outlet.size + outlet.left for outlet in self.outlets)

    def take(self, level: int, most: int, now: float) -> tuple[int, list[SimulatedObject]]:
        """A batch of that level: its bytes, and what is complete with it. Outlets take turns."""
        size, done = 0, []
        while size < most:
            outlet = next((each for each in self.outlets if each.levels >> level & 1), None)
            if outlet is None:
                break
            self.outlets.remove(outlet)
            self.outlets.append(outlet)
            taken, whole = outlet.take(level, most, now)
            size += taken
            if whole is not None:
                done.append(whole)
        return size, done


class VirtualClock:
    """Events in their order, at virtual times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have something done then; what is past, now."""
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), do))

    def run(self, until: float) -> None:
        """Do all that is to be done up to then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()


class SimulatedNetwork:
    """Links and connections: what the processes' sockets do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.sessions: dict[tuple[str, str], SimulatedSession] = {}
        self.links: dict[str, SharedLink[SimulatedSession]] = {}
        self.bandwidth: float | None = None
        """Bytes a second that links carry."""
        self.carried: dict[str, list[tuple[float, float]]] = {}
        """Rates of each link: (when, bytes a second since)."""
        self._carried_by: Counter[str] = Counter()
        self._free: dict[str, float] = {}
        """When each link has carried all that was given to it."""
        self._waking: dict[str, float] = {}

    def use(self, space: Space) -> None:
        """Other links, rates or shares from now on."""
        update_links(self.links, space, CHUNK_BYTES, self._clock.now)
        for name in self.links:
            self.carried.setdefault(name, [])

    def resources(self, link: str) -> Resources:
        """Resources of a link, as far as they are known."""
        found = self.links.get(link)
        if found is None:
            return Resources()
        backlog = sum(each.backlog() for each in self.sessions.values() if each.link == link)
        return Resources(bandwidth=found.effective_rate or None, backlog=float(backlog))

    def follow(self) -> None:
        """Follow a change: what waits has the settings of now, sessions are behind their links."""
        for session in self.sessions.values():
            for outlet in session.outlets:
                outlet.queue.refresh(self._clock.now)
                outlet.queue.expire(self._clock.now)
            link = next((outlet.contract.settings.link for outlet in session.outlets), "")
            link = link if link in self.links else ""
            if link != session.link:
                if session.link in self.links:
                    self.links[session.link].leave(session.destination)
                session.link = link
                if link:
                    self.links[link].join(session.destination, self._clock.now)
            self.ready(session)

    def ready(self, session: SimulatedSession) -> None:
        """Let go what may, of one that may have something to send."""
        link = self.links.get(session.link)
        if link is not None:
            link.put(session.destination)
            self._pump(link)
            return
        while levels := session.levels():
            _, done = session.take(levels.bit_length() - 1, CHUNK_BYTES, self._clock.now)
            self._arrived(done, self._clock.now + DISTANCE)

    def _pump(self, link: SharedLink[SimulatedSession]) -> None:
        """All that may go now; the next time is when the link says."""
        while found := link.next(self._clock.now):
            destination, level = found
            size, done = destination.target.take(level, link.quantum, self._clock.now)
            if not size:
                link.forget(destination)
                link.put(destination)
                continue
            size += BATCH_BYTES
            link.sent(destination, level, size, self._clock.now)
            link.put(destination)
            self._carry(link, destination, size, done)
        wait = link.wait(self._clock.now)
        if wait is not None:
            when = self._clock.now + max(wait, 1e-4)
            if self._waking.get(link.terms.name, math.inf) > when or self._waking[link.terms.name] <= self._clock.now:
                self._waking[link.terms.name] = when
                self._clock.at(when, lambda: self._wake(link))

    def _wake(self, link: SharedLink[SimulatedSession]) -> None:
        self._waking.pop(link.terms.name, None)
        if self.links.get(link.terms.name) is link:
            self._pump(link)

    def _carry(
        self,
        link: SharedLink[SimulatedSession],
        destination: Destination[SimulatedSession],
        size: int,
        done: list[SimulatedObject],
    ) -> None:
        self._carried_by[link.terms.name] += size
        own = size / self.bandwidth if self.bandwidth else 0.0
        arrives = self._free[link.terms.name] = max(self._free.get(link.terms.name, 0.0), self._clock.now) + own
        self._arrived(done, arrives + DISTANCE / 2)
        self._clock.at(arrives + DISTANCE, lambda: self._acked(link, destination, size))

    def _acked(self, link: SharedLink[SimulatedSession], destination: Destination[SimulatedSession], size: int) -> None:
        link.arrived(destination, size, self._clock.now)
        self._pump(link)

    def _arrived(self, done: Iterable[SimulatedObject], when: float) -> None:
        for waiting in done:
            got = waiting.got
            got.late.append(when - waiting.arrived)
            got.size += waiting.parcel.size
            got.shaped += waiting.shaped

    def sample(self) -> None:
        """Note what links carry, each second."""
        for name, points in self.carried.items():
            points.append((self._clock.now, self._carried_by[name] / SAMPLE_SECONDS))
        self._carried_by.clear()
        self._clock.at(self._clock.now + SAMPLE_SECONDS, self.sample)
