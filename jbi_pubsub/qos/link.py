"""A link that destinations share: its rate or an estimate of it, shares by importance, whose turn it is, and how much
may be under way. Pure: `now` (monotonic seconds) is an argument; the owner's lock covers it.

A tree of slices: link -> level -> destination. In it

- a level with unused guaranteed share goes first, from the top (HTB's rate); then the strategy decides, in bytes;
- destinations of a level take turns; one that has its own share (`each`) or its bytes under way used up is passed over
  until that is over;
- what is under way is not ours any more, so it is kept small: what the link carries in its own distance and STANDING.

What is known of its rate and distance, and from where: see path.py.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import LEVELS, LinkTerms, Space, Strategy
from jbi_pubsub.core.scheduling import LEVELS_OF, PriorityRing
from jbi_pubsub.core.series import Counter
from jbi_pubsub.protocol.status.quality import LinkUsage

from .path import QUANTUM_LEAST, LinkPath, SentBatch

BURST_SECONDS: Final = 0.01
"""Seconds of data that may go at once after a pause: as late as a thread wakes on a busy machine."""
STALLED_AFTER: Final = 1.0
"""Seconds without an acknowledgement, or four round trips: what is under way there takes nothing from others."""
LOOK_SECONDS: Final = 0.25
"""Seconds between two notes of what was sent, for the rate of the last seconds."""
STALLED_LOOK: Final = 0.1
"""Seconds between two looks for stalled ones."""
SEGMENT: Final = 1_448
"""Bytes of a TCP segment over Ethernet with timestamps: what LinkTerms.overhead is added to."""
RESERVE_LEAST: Final = 100.0
"""Bytes a second that control calls have at least, on a link that has ten times that."""
SHARE_SECONDS: Final = 0.2
"""Seconds for which the part of a guaranteed share that is not used is kept."""

T = TypeVar("T")


class Destination(Generic[T]):
    """One receiver on a link: a session's connection, or whatever else is paced."""

    def __init__(self, target: T, levels: Callable[[], int]) -> None:
        """`levels()`: bit mask of the levels that it has something for, now."""
        self.target = target
        self.levels = levels
        self.bucket: TokenBucket | None = None
        self.flying: deque[SentBatch] = deque()
        self.in_flight = 0
        self.is_capped = False
        """Passed over until something is acknowledged."""
        self.is_parked = False
        """Passed over until its own rate allows more."""
        self.heard_at = 0.0
        """When something was acknowledged, or sent while nothing was under way."""


class SharedLink(Generic[T]):
    """See the module."""

    def __init__(self, terms: LinkTerms, strategy: Strategy, chunk: int, now: float) -> None:
        """`chunk`: bytes of a batch at most."""
        self._turns: PriorityRing[Destination[T]] = PriorityRing(strategy, strategy.link)
        self._bucket: TokenBucket | None = None
        self._guaranteed: dict[int, TokenBucket] = {}
        self._parked: list[tuple[float, int, Destination[T]]] = []
        self._parkings = 0
        self._destinations: dict[Destination[T], None] = {}
        self.path = LinkPath(chunk, now)
        self._stalled_then = -math.inf, 0
        self._in_flight = 0
        self._bytes = Counter()
        self._looked_at = -math.inf
        self.by_level = [0] * LEVELS
        """Bytes so far."""
        self.set(terms, strategy, now)

    def set(self, terms: LinkTerms, strategy: Strategy, now: float) -> None:
        """Other terms from now on; what is under way and what waits stays."""
        self.terms = terms
        self._turns.set(strategy, strategy.link)
        rate = self.effective_rate
        self._bucket = None if terms.rate is None else _bucket(self._bucket, rate, _burst(rate), now)
        self._guarantee(now)
        for destination in self._destinations:
            self._limit(destination, now)

    # -- what it is like ----------------------------------------------------------------------------------------

    @property
    def effective_rate(self) -> float:
        """Bytes a second for what is scheduled; 0: not known yet."""
        rate = self.terms.rate
        if rate is None:
            return self.path.rates.rate or 0.0
        return max(rate / 2, rate - max(rate * self.terms.reserve, RESERVE_LEAST if self.terms.reserve else 0.0))

    @property
    def is_measured(self) -> bool:
        """Whether its rate is estimated."""
        return self.terms.rate is None

    @property
    def quantum(self) -> int:
        """Bytes of a batch or chunk."""
        return self.path.quantum(self.effective_rate)

    @property
    def in_flight_most(self) -> int:
        """Bytes of all destinations that may be under way."""
        return self.path.most(self.effective_rate, is_measured=self.is_measured)

    def status(self, now: float) -> LinkUsage:
        """Its rates, and what is under way."""
        self._bytes.add(now, sum(self.by_level))
        used, rate = self._bytes.rate(now) or 0.0, self.effective_rate
        return LinkUsage(
            name=self.terms.name,
            limit=self.terms.rate,
            estimate=round(self.path.rates.rate) if self.is_measured and self.path.rates.rate else None,
            used=round(used),
            busy=round(min(1.0, used / rate), 3) if rate else 0.0,
            sent=sum(self.by_level),
            sent_by_level=list(self.by_level),
            waiting_by_level=self._turns.lengths(),
            destinations=len(self._destinations),
            pending=self._in_flight,
            rtt_ms=round(1000 * self.path.trip, 1),
            rtt_min_ms=round(1000 * (self.path.distance or 0.0), 1),
            quantum=self.quantum,
        )

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
        under_way, is_measured = self._in_flight - self._stalled(now), self.is_measured
        self.path.look_for_distance(under_way, self.effective_rate, now, is_measured=is_measured)
        cap = self.in_flight_most
        if under_way >= cap:
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
        self.by_level[level] += size
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._bytes.add(now, sum(self.by_level))
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
        destination.flying.append(self.path.sent(size, now, is_alone=not self._in_flight))
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
            is_full = self._turns.levels > 0 or destination.is_capped
            self.path.acked(size - left, last, now, self._in_flight, self.terms.rate, is_full=is_full)
        if destination.is_capped:
            destination.is_capped = False
            self.put(destination)

    # -- within -------------------------------------------------------------------------------------------------

    def _guarantee(self, now: float) -> None:
        rate = self.effective_rate
        for level, share in enumerate(self.terms.min_share):
            if share <= 0 or not rate:
                self._guaranteed.pop(level, None)
                continue
            part = rate * share
            burst = max(part * SHARE_SECONDS, QUANTUM_LEAST)
            self._guaranteed[level] = _bucket(self._guaranteed.get(level), part, burst, now)

    def _limit(self, destination: Destination[T], now: float) -> None:
        each = self.terms.each
        destination.bucket = None if each is None else _bucket(destination.bucket, each, _burst(each), now)

    def _stalled(self, now: float) -> int:
        """Bytes under way to those who do not answer: no part of what the link carries."""
        at, stalled = self._stalled_then
        if now - at >= STALLED_LOOK:
            patience = max(STALLED_AFTER, 4 * self.path.trip)
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


def _bucket(known: TokenBucket | None, rate: float, burst: float, now: float) -> TokenBucket:
    """A bucket of that rate: the known one, if there is one."""
    if known is None:
        return TokenBucket(rate, burst, now)
    known.set(rate, burst, now)
    return known


def _burst(rate: float) -> float:
    return max(rate * BURST_SECONDS, QUANTUM_LEAST)


def update_links(links: dict[str, SharedLink[T]], space: Space, chunk: int, now: float) -> None:
    """Make `links`, by name, those of the space; what waits and what is under way stays."""
    terms = {each.name: each for each in space.links}
    for name in links.keys() - terms:
        del links[name]
    for name, each in terms.items():
        if name in links:
            links[name].set(each, space.strategy, now)
        else:
            links[name] = SharedLink(each, space.strategy, chunk, now)
