"""A link that destinations share: its rate or an estimate of it, shares by importance, whose turn it is, and how much
may be under way. Pure: `now` (monotonic seconds) is an argument; the owner's lock covers it.

A tree of slices: link -> level -> destination. In it

- a level with unused guaranteed share goes first, from the top (HTB's rate); then the strategy decides, in bytes;
- destinations of a level take turns; one that has its own share (`each`) or its bytes under way used up is passed over
  until that is over;
- what is under way is not ours any more, so it is kept small: what the link carries in its own distance and STANDING.

A measured link's rate is what its acknowledgements say: bytes acknowledged since a batch left, by the time that took
or the time in which they were sent, whichever is longer: acknowledgements that were held up come all at once
(draft-cheng-iccrg-delivery-rate-estimation). The most of RATE_WINDOW counts. The STANDING data keep that
honest upwards; while the estimate grows, as much again as the distance holds, or a long way would be filled by a few
parts of a hundred in each round trip (BBR's startup). For distance each DRAIN_EVERY little is under way for a moment,
as in BBR (Cardwell and others 2016, section "ProbeRTT"); else our own standing data would be taken for distance, and
the bytes under way would grow without end. A batch that took much longer than distance and standing data explain says
that the rate has fallen: what was seen before does not count any more.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from jbi_pubsub.core.pacing import RoundTrip, TokenBucket
from jbi_pubsub.core.quality import LEVELS, LinkTerms, Strategy
from jbi_pubsub.core.scheduling import LEVELS_OF, PriorityRing
from jbi_pubsub.core.series import Counter

QUANTUM_SECONDS: Final = 0.05
"""A batch or chunk keeps the link busy for so long: what is important waits for one at most."""
QUANTUM_LEAST: Final = 512
QUANTUM_FIRST: Final = 8 << 10
"""Bytes, on a measured link of which nothing is known yet."""
BURST_SECONDS: Final = 0.01
"""Seconds of data that may go at once after a pause: as late as a thread wakes on a busy machine."""
STANDING: Final = 0.1
"""Seconds of data under way beyond the distance."""
RATE_WINDOW: Final = 2.0
DRAIN_EVERY: Final = 10.0
DRAIN_FIRST: Final = 1.0
DRAIN_LEAST: Final = 0.2
"""Seconds."""
STALLED_AFTER: Final = 1.0
"""Seconds without an acknowledgement, or four round trips: what is under way there takes nothing from others."""
LOOK_SECONDS: Final = 0.25
"""Seconds between two notes of what was sent, for the rate of the last seconds."""
STALLED_LOOK: Final = 0.1
"""Seconds between two looks for stalled ones."""
FALLEN: Final = 2.0
"""So many times what distance and standing data explain: the rate has fallen."""
GROWN: Final = 1.25
GROWING_TRIPS: Final = 3
"""An estimate that is so many times the one before grows, for so many round trips (both numbers are BBR's)."""
DRAINED: Final = 0.5
"""Share of what the distance holds that may be under way while distance is looked for, as in BBR's second version:
enough that nothing stands, and no idle second of a long way."""
SEGMENT: Final = 1_448
"""Bytes of a TCP segment over Ethernet with timestamps: what LinkTerms.overhead is added to."""
RESERVE_LEAST: Final = 100.0
"""Bytes a second that control calls have at least, on a link that has ten times that."""
SHARE_SECONDS: Final = 0.2
"""Seconds for which the part of a guaranteed share that is not used is kept."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that is under way: its bytes, when it left, what of the link had been acknowledged by then, when the last
    of that was, and when that had left."""

    size: int
    at: float
    acked: int
    acked_at: float
    acked_left: float


class LinkEstimator:
    """The rate of a link from samples, in bytes a second."""

    def __init__(self) -> None:
        self._most: deque[tuple[float, float]] = deque()
        """(when, rate), each smaller than those before it."""

    @property
    def rate(self) -> float | None:
        """None before the first sample."""
        return self._most[0][1] if self._most else None

    def sample(self, rate: float, now: float, *, is_full: bool) -> None:
        """One more. `is_full`: the link had more to carry all the time; one of which that is not so says what it can at
        least, and nothing else."""
        most = self._most
        if not is_full and most and rate < most[0][1]:
            return
        while most and most[-1][1] <= rate:
            most.pop()
        most.append((now, rate))
        while most[0][0] < now - RATE_WINDOW:
            most.popleft()

    def fallen(self, rate: float, now: float) -> None:
        """Note that it is that now, whatever was seen before."""
        self._most.clear()
        self._most.append((now, rate))


class Destination(Generic[T]):
    """One receiver on a link: a session's connection, or whatever else is paced."""

    def __init__(self, target: T, levels: Callable[[], int]) -> None:
        """`levels()`: bit mask of the levels that it has something for, now."""
        self.target = target
        self.levels = levels
        self.bucket: TokenBucket | None = None
        self.flying: deque[Sent] = deque()
        self.in_flight = 0
        self.is_capped = False
        """Passed over until something is acknowledged."""
        self.is_parked = False
        """Passed over until its own rate allows more."""
        self.heard_at = 0.0
        """When something was acknowledged, or sent while nothing was under way."""
        self.trip = RoundTrip()


class Link(Generic[T]):
    """See the module."""

    def __init__(self, terms: LinkTerms, strategy: Strategy, chunk: int, now: float) -> None:
        """`chunk`: bytes of a batch at most."""
        self.name = terms.name
        self._chunk = chunk
        self._turns: PriorityRing[Destination[T]] = PriorityRing(strategy, strategy.link)
        self._bucket: TokenBucket | None = None
        self._guaranteed: dict[int, TokenBucket] = {}
        self._parked: list[tuple[float, int, Destination[T]]] = []
        self._parkings = 0
        self._destinations: dict[Destination[T], None] = {}
        self._estimator = LinkEstimator()
        self._distance: float | None = None
        """Seconds there and back, and for a batch by itself, without what stands in queues."""
        self._distance_at = now - DRAIN_EVERY + DRAIN_FIRST
        self._is_draining = False
        self._drained_at = math.inf
        """Since then nearly nothing is under way."""
        self._drained = math.inf
        """The shortest way that was seen since."""
        self._stalled_then = -math.inf, 0
        self._window = 2 * QUANTUM_FIRST
        """Bytes that an estimate may have under way: twice as many in each round trip. A burst is no rate."""
        self._acked = 0
        self._acked_at = self._acked_left = now
        self._is_growing = False
        self._grown, self._grown_at = 0.0, -math.inf
        """Estimate when it had grown last, and when that was."""
        self._in_flight = 0
        self._bytes = Counter()
        self._looked_at = -math.inf
        self._total = 0
        self.by_level = [0] * LEVELS
        """Bytes so far."""
        self.trip = RoundTrip()
        self.set(terms, strategy, now)

    def set(self, terms: LinkTerms, strategy: Strategy, now: float) -> None:
        """Other terms from now on; what is under way and what waits stays."""
        self.terms = terms
        self._turns.set(strategy, strategy.link)
        if terms.rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(self.effective_rate, self._burst(self.effective_rate), now)
        else:
            self._bucket.set(self.effective_rate, self._burst(self.effective_rate), now)
        self._guarantee(now)
        for destination in self._destinations:
            self._limit(destination, now)

    # -- what it is like ----------------------------------------------------------------------------------------

    @property
    def effective_rate(self) -> float:
        """Bytes a second for what is scheduled; 0: not known yet."""
        rate = self.terms.rate
        if rate is None:
            return self._estimator.rate or 0.0
        return max(rate / 2, rate - max(rate * self.terms.reserve, RESERVE_LEAST if self.terms.reserve else 0.0))

    @property
    def is_measured(self) -> bool:
        """Whether its rate is estimated."""
        return self.terms.rate is None

    @property
    def quantum(self) -> int:
        """Bytes of a batch or chunk."""
        rate = self.effective_rate
        if not rate:
            return min(QUANTUM_FIRST, self._chunk)
        return int(min(max(rate * QUANTUM_SECONDS, QUANTUM_LEAST), self._chunk))

    @property
    def in_flight_most(self) -> int:
        """Bytes of all destinations that may be under way."""
        rate, distance = self.effective_rate, self._distance or 0.0
        if self._is_draining:
            return max(self.quantum, int(rate * distance * DRAINED))
        carried = int(rate * (distance + (max(STANDING, distance) if self._is_growing else STANDING)))
        return max(2 * self.quantum, min(carried, self._window) if self.is_measured else carried)

    def status(self, now: float) -> dict[str, Any]:
        """Plain data: rates in bytes a second, times in ms; `busy` is the used part of the rate."""
        self._bytes.add(now, self._total)
        used, rate = self._bytes.rate(now) or 0.0, self.effective_rate
        return {
            "name": self.name,
            "limit": self.terms.rate,
            "estimate": round(self._estimator.rate) if self.is_measured and self._estimator.rate else None,
            "used": round(used),
            "busy": round(min(1.0, used / rate), 3) if rate else 0.0,
            "sent": self._total,
            "sent_by_level": list(self.by_level),
            "waiting_by_level": self._turns.lengths(),
            "destinations": len(self._destinations),
            "pending": self._in_flight,
            "rtt_ms": round(1000 * self.trip.smoothed, 1),
            "rtt_min_ms": round(1000 * (self._distance or 0.0), 1),
            "quantum": self.quantum,
        }

    # -- destinations -------------------------------------------------------------------------------------------

    def join(self, destination: Destination[T], now: float) -> None:
        """One more."""
        self._destinations[destination] = None
        self._in_flight += destination.in_flight
        self._limit(destination, now)

    def leave(self, destination: Destination[T]) -> None:
        """Take it off the link: it is on none, or another one, from now on."""
        if destination not in self._destinations:
            return
        del self._destinations[destination]
        self.forget(destination)
        self._in_flight -= destination.in_flight
        self._parked = [each for each in self._parked if each[2] is not destination]
        heapq.heapify(self._parked)
        destination.is_capped = destination.is_parked = False

    def put(self, destination: Destination[T]) -> None:
        """Note that it has something for the levels that it says."""
        if not destination.is_capped and not destination.is_parked:
            self._turns.put(destination, destination.levels())

    def forget(self, destination: Destination[T]) -> None:
        """Note that it can't take anything before it is put again."""
        self._turns.remove(destination)

    def gone(self, destination: Destination[T]) -> None:
        """Its connection is over: what was under way on it is not any more."""
        self._in_flight -= destination.in_flight
        destination.flying.clear()
        destination.in_flight = 0
        destination.is_capped = False
        self.forget(destination)

    # -- turns --------------------------------------------------------------------------------------------------

    def ready_in(self, now: float) -> float:
        """Seconds until its bucket allows something."""
        return 0.0 if self._bucket is None else self._bucket.ready_in(now)

    def next(self, now: float) -> tuple[Destination[T], int] | None:
        """Destination whose turn it is, and at which level."""
        self._unpark(now)
        if not self._turns.levels or self.ready_in(now):
            return None
        self._look_for_distance(now)
        cap = self.in_flight_most
        if self._in_flight - self._stalled(now) >= cap:
            return None
        while self._turns.levels:  # who has nothing at one level any more may have come to another one meanwhile
            for level in self._order(now):
                found = self._front(level, cap, now)
                if found is not None:
                    return found, level
        return None

    def wait(self, now: float) -> float | None:
        """Seconds until `next` may say something else; None: not before something is put or acknowledged."""
        waits = [self._parked[0][0] - now] if self._parked else []
        if self._turns.levels:
            wait = self.ready_in(now)
            if self._in_flight - self._stalled(now) >= self.in_flight_most:
                wait = max(wait, STALLED_LOOK)  # if nobody answers until then
            waits.append(wait)
        return max(0.0, min(waits)) if waits else None

    def charge(self, level: int, size: int, now: float) -> None:
        """So many bytes went, at that level."""
        self._total += size
        self.by_level[level] += size
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._bytes.add(now, self._total)
        cost = size + self.terms.overhead * -(-size // SEGMENT)
        if self._bucket is not None:
            self._bucket.take(cost, now)
        if level in self._guaranteed:
            self._guaranteed[level].take(cost, now)
        self._turns.charge(level, cost)

    def sent(self, destination: Destination[T], level: int, size: int, now: float) -> None:
        """A batch went to one of its destinations."""
        self.charge(level, size, now)
        if destination.bucket is not None:
            destination.bucket.take(size, now)
        if not destination.in_flight:
            destination.heard_at = now
        if not self._in_flight:
            self._acked_at = self._acked_left = now
        destination.flying.append(Sent(size, now, self._acked, self._acked_at, self._acked_left))
        destination.in_flight += size
        self._in_flight += size

    def arrived(self, destination: Destination[T], size: int, now: float) -> None:
        """So many bytes of those under way to it were acknowledged: whole batches."""
        flying, last = destination.flying, None
        left = size
        while flying and left >= flying[0].size:
            last = flying.popleft()
            left -= last.size
        destination.in_flight -= size - left
        destination.heard_at = now
        self._in_flight -= size - left
        if last is not None:
            destination.trip.add(now - last.at, now)
            self.acked(size - left, last, now, is_full=self._turns.levels > 0 or destination.is_capped)
        if destination.is_capped:
            destination.is_capped = False
            self.put(destination)

    def acked(self, size: int, since: Sent, now: float, *, is_full: bool = True) -> None:
        """So many bytes were acknowledged, of which `since` was the last batch. `is_full`: see LinkEstimator."""
        self._acked += size
        self._acked_at, self._acked_left = now, since.at
        trip = now - since.at
        self.trip.add(trip, now)
        known = self.effective_rate
        own = since.size / known if known else 0.0
        if self.is_measured and now > since.acked_at:
            took = max(now - since.acked_at, since.at - since.acked_left, QUANTUM_SECONDS)  # less is a burst, no rate
            rate = (self._acked - since.acked) / took
            if known and trip > FALLEN * ((self._distance or 0.0) + STANDING + own):
                self._estimator.fallen(rate, now)
                self._window = self.in_flight_most
            else:
                self._estimator.sample(rate, now, is_full=is_full)
                if 2 * (self._in_flight + size) >= self._window:  # it is used
                    self._window += size
            self._look_for_growth(now)
        if self._is_draining:
            if since.at >= self._drained_at:
                self._drained = min(self._drained, trip)
        elif self._distance is None or trip <= self._distance:
            self._distance, self._distance_at = trip, now

    # -- within -------------------------------------------------------------------------------------------------

    def _burst(self, rate: float) -> float:
        return max(rate * BURST_SECONDS, QUANTUM_LEAST)

    def _guarantee(self, now: float) -> None:
        rate = self.effective_rate
        for level, share in enumerate(self.terms.min_share):
            if share <= 0 or not rate:
                self._guaranteed.pop(level, None)
                continue
            part = rate * share
            burst = max(part * SHARE_SECONDS, QUANTUM_LEAST)
            if level in self._guaranteed:
                self._guaranteed[level].set(part, burst, now)
            else:
                self._guaranteed[level] = TokenBucket(part, burst, now)

    def _limit(self, destination: Destination[T], now: float) -> None:
        each = self.terms.each
        if each is None:
            destination.bucket = None
        elif destination.bucket is None:
            destination.bucket = TokenBucket(each, self._burst(each), now)
        else:
            destination.bucket.set(each, self._burst(each), now)

    def _stalled(self, now: float) -> int:
        """Bytes under way to those who do not answer: no part of what the link carries."""
        at, stalled = self._stalled_then
        if now - at >= STALLED_LOOK:
            patience = max(STALLED_AFTER, 4 * self.trip.smoothed)
            late = (each for each in self._destinations if each.in_flight and now - each.heard_at >= patience)
            stalled = sum(each.in_flight for each in late)
            self._stalled_then = now, stalled
        return stalled

    def _order(self, now: float) -> Sequence[int]:
        order = self._turns.order()
        if not self._guaranteed:
            return order
        if self.is_measured:
            self._guarantee(now)
        first = [
            level
            for level in LEVELS_OF[self._turns.levels]
            if level in self._guaranteed and not self._guaranteed[level].ready_in(now)
        ]
        return first + [level for level in order if level not in first]

    def _front(self, level: int, cap: int, now: float) -> Destination[T] | None:
        bit = 1 << level
        for _ in range(self._turns.lengths()[level]):
            destination = self._turns.pop(level)
            if not destination.levels() & bit:
                self.put(destination)  # at others, if it has something there by now
                continue
            if destination.in_flight >= cap:
                destination.is_capped = True
                continue
            if destination.bucket is not None and (wait := destination.bucket.ready_in(now)):
                self._park(destination, now + wait)
                continue
            self._turns.put(destination, bit)
            return destination
        return None

    def _park(self, destination: Destination[T], until: float) -> None:
        if not destination.is_parked:
            destination.is_parked = True
            self._parkings += 1
            heapq.heappush(self._parked, (until, self._parkings, destination))

    def _unpark(self, now: float) -> None:
        while self._parked and self._parked[0][0] <= now:
            destination = heapq.heappop(self._parked)[2]
            destination.is_parked = False
            self.put(destination)

    def _look_for_growth(self, now: float) -> None:
        rate = self._estimator.rate or 0.0
        if rate >= GROWN * self._grown:
            self._is_growing = self._grown > 0
            self._grown, self._grown_at = rate, now
        elif now - self._grown_at > GROWING_TRIPS * self.trip.smoothed:
            self._is_growing = False
            self._grown = min(self._grown, rate)

    def _look_for_distance(self, now: float) -> None:
        """Each DRAIN_EVERY without a shorter way: little at a time, until a batch was seen that found nothing there."""
        if not self._is_draining:
            if now - self._distance_at > DRAIN_EVERY:
                self._is_draining, self._drained_at, self._drained = True, math.inf, math.inf
        elif self._drained_at == math.inf:
            if self._in_flight - self._stalled(now) <= self.in_flight_most:
                self._drained_at = now
        elif now - self._drained_at > DRAIN_LEAST and self._drained < math.inf:
            self._is_draining, self._distance, self._distance_at = False, self._drained, now
