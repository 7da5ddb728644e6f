"""The path of a link: its rate, its distance, and how much may be under way, by acknowledgements. Pure.

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

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

QUANTUM_SECONDS: Final = 0.05
"""A batch or chunk keeps the link busy for so long: what is important waits for one at most."""
QUANTUM_FIRST: Final = 8 << 10
"""Bytes, on a measured link of which nothing is known yet."""
STANDING: Final = 0.1
"""Seconds of data under way beyond the distance."""
RATE_WINDOW: Final = 2.0
DRAIN_EVERY: Final = 10.0
DRAIN_FIRST: Final = 1.0
DRAIN_LEAST: Final = 0.2
"""Seconds."""
QUANTUM_LEAST: Final = 512
FALLEN: Final = 2.0
"""So many times what distance and standing data explain: the rate has fallen."""
GROWN: Final = 1.25
GROWING_TRIPS: Final = 3
"""An estimate that is so many times the one before grows, for so many round trips (both numbers are BBR's)."""
DRAINED: Final = 0.5
"""Share of what the distance holds that may be under way while distance is looked for, as in BBR's second version:
enough that nothing stands, and no idle second of a long way."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that is under way: its bytes, when it left, what of the link had been acknowledged by then, when the last
    of that was, and when that had left."""

    size: int
    at: float
    acked: int
    acked_at: float
    acked_left: float


class RateEstimate:
    """The rate of a link from samples, in bytes a second: the most of RATE_WINDOW."""

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


class LinkPath:
    """See the module."""

    def __init__(self, chunk: int, now: float) -> None:
        """`chunk`: bytes of a batch at most."""
        self._chunk = chunk
        self.rates = RateEstimate()
        self.distance: float | None = None
        """Seconds there and back, and for a batch by itself, without what stands in queues."""
        self.trip = 0.0
        """Seconds there and back, with that, smoothed (RFC 6298, section 2); 0 before the first acknowledgement."""
        self._distance_at = now - DRAIN_EVERY + DRAIN_FIRST
        self._is_draining = False
        self._drained_at = math.inf
        """Since then nearly nothing is under way."""
        self._drained = math.inf
        """The shortest way that was seen since."""
        self._window = 2 * QUANTUM_FIRST
        """Bytes that an estimate may have under way: twice as many in each round trip. A burst is no rate."""
        self._acked = 0
        self._acked_at = self._acked_left = now
        self._is_growing = False
        self._grown, self._grown_at = 0.0, -math.inf
        """Estimate when it had grown last, and when that was."""

    def quantum(self, rate: float) -> int:
        """Bytes of a batch or chunk at that rate; 0: it is not known yet."""
        if not rate:
            return min(QUANTUM_FIRST, self._chunk)
        return int(min(max(rate * QUANTUM_SECONDS, QUANTUM_LEAST), self._chunk))

    def most(self, rate: float, *, is_measured: bool) -> int:
        """Bytes that may be under way, at that rate."""
        distance, quantum = self.distance or 0.0, self.quantum(rate)
        if self._is_draining:
            return max(quantum, int(rate * distance * DRAINED))
        carried = int(rate * (distance + (max(STANDING, distance) if self._is_growing else STANDING)))
        return max(2 * quantum, min(carried, self._window) if is_measured else carried)

    def sent(self, size: int, now: float, *, is_alone: bool) -> SentBatch:
        """A batch leaves; `is_alone`: nothing else is under way."""
        if is_alone:
            self._acked_at = self._acked_left = now
        return SentBatch(size, now, self._acked, self._acked_at, self._acked_left)

    def acked(
        self, size: int, since: SentBatch, now: float, under_way: int, rate: float | None, *, is_full: bool
    ) -> None:
        """So many bytes were acknowledged, of which `since` was the last batch; `under_way`: those that were not, by
        now; `rate`: None for one that is measured; `is_full`: see RateEstimate."""
        self._acked += size
        self._acked_at, self._acked_left = now, since.at
        trip = now - since.at
        self.trip += (trip - self.trip) / 8 if self.trip else trip
        if rate is None and now > since.acked_at:
            self._measure(size, since, now, under_way, is_full=is_full)
        if self._is_draining:
            if since.at >= self._drained_at:
                self._drained = min(self._drained, trip)
        elif self.distance is None or trip <= self.distance:
            self.distance, self._distance_at = trip, now

    def _measure(self, size: int, since: SentBatch, now: float, under_way: int, *, is_full: bool) -> None:
        known = self.rates.rate or 0.0
        own = since.size / known if known else 0.0
        took = max(now - since.acked_at, since.at - since.acked_left, QUANTUM_SECONDS)  # less is a burst, no rate
        rate = (self._acked - since.acked) / took
        if known and now - since.at > FALLEN * ((self.distance or 0.0) + STANDING + own):
            self.rates.fallen(rate, now)
            self._window = self.most(rate, is_measured=True)
        else:
            self.rates.sample(rate, now, is_full=is_full)
            if 2 * (under_way + size) >= self._window:  # it is used
                self._window += size
        rate = self.rates.rate or 0.0
        if rate >= GROWN * self._grown:
            self._is_growing = self._grown > 0
            self._grown, self._grown_at = rate, now
        elif now - self._grown_at > GROWING_TRIPS * self.trip:
            self._is_growing = False
            self._grown = min(self._grown, rate)

    def look_for_distance(self, under_way: int, rate: float, now: float, *, is_measured: bool) -> None:
        """Each DRAIN_EVERY without a shorter way: little at a time, until a batch was seen that found nothing there."""
        if not self._is_draining:
            if now - self._distance_at > DRAIN_EVERY:
                self._is_draining, self._drained_at, self._drained = True, math.inf, math.inf
        elif self._drained_at == math.inf:
            if under_way <= self.most(rate, is_measured=is_measured):
                self._drained_at = now
        elif now - self._drained_at > DRAIN_LEAST and self._drained < math.inf:
            self._is_draining, self.distance, self._distance_at = False, self._drained, now
