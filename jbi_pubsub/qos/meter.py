"""Meters of contracts: objects and bytes, how late, how evenly; and series of all that managers tell. Pure.

Rules:
- A meter is told of each object that goes to its link and of each that is lost: its type, size and how long it has
  waited. Once a second `Meters.fold` adds what is new up, by type and by contract; those that had nothing cost nothing.
- Delays are counted in 40 buckets, each half as wide again as the one before: a percentile is right within a quarter.
- Jitter is RFC 3550's (6.4.1): differences of waiting times, smoothed by a sixteenth.
- Subscribers tell once a second how long one object waited for its application. With the way there, and how long the
  last one had waited here, that is one delay from publication to application: no clocks are compared. Its jitter is the
  sum of both, which is the most that it can be.
- Everything is bounded: types by name, contracts with a series of their own, series. Beyond that there are sums.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from operator import add
from typing import Any, Final

from msgspec import UNSET

from jbi_pubsub.core.series import MOST, WINDOW, Counter, Gauge
from jbi_pubsub.core.status import Status
from jbi_pubsub.protocol.status.quality import SeriesStatus, TypeQuality

BUCKETS: Final = 40
LEAST: Final = 1e-4
"""Seconds: all that is quicker is in the first bucket."""
LONGEST: Final = 1e3
"""All that is slower is in the last one."""
TYPES_MOST: Final = 1_000
"""Types that are told apart; the others are told together, under the name ""."""
TOLD_MOST: Final = 100
"""Types and contracts that a status tells, those with most."""
REACHED_MOST: Final = 8
"""Types of a contract of which a delay to the application is noted at once."""
RATED_MOST: Final = 1_000
"""Contracts with a series of their own."""
SERIES_MOST: Final = 500
PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

_STEPS: Final = (BUCKETS - 1) / math.log(LONGEST / LEAST)
_OFFSET: Final = 1 - math.log(LEAST) * _STEPS
_BETWEEN: Final = [LEAST * (LONGEST / LEAST) ** (n / (BUCKETS - 1)) for n in range(BUCKETS)]
"""The upper ends of the buckets."""
_log: Final = math.log

COUNTERS: Final = frozenset({
    "served", "cpu", "shaped", "unshaped", "saved", "seconds", "retransmits", "received", "dropped", "bytes", "sent",
    "at_once",
})  # fmt: skip
"""Last parts of names of what only grows: their series are what they grow by in a second."""


def bucket_of(seconds: float) -> int:
    """The number of the bucket that a delay is in."""
    if seconds <= LEAST:
        return 0
    return min(BUCKETS - 1, int(math.log(seconds) * _STEPS + _OFFSET))


def percentile(counts: Sequence[int], part: float) -> float | None:
    """Seconds that so many (0 to 1) took at most: the middle of their bucket; None without any."""
    wanted = part * sum(counts)
    if not wanted:
        return None
    bucket = -1
    while wanted > 0:
        bucket += 1
        wanted -= counts[bucket]
    upper = _BETWEEN[bucket]
    return upper if bucket in (0, BUCKETS - 1) else math.sqrt(_BETWEEN[bucket - 1] * upper)


class Tally:
    """Count of what went and what was lost, of one type for one contract, or of several together."""

    __slots__ = ("bytes", "counts", "dropped", "end_jitter", "ends", "jitter", "transit")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        """Objects that went, by how long they had waited."""
        self.dropped = self.bytes = 0
        self.jitter = 0.0
        self.transit = -1.0
        """Seconds that the last one took; -1 before the first."""
        self.ends: Sequence[int] = ()
        """Those of which it is known, by how long they took to their application."""
        self.end_jitter = 0.0

    @property
    def received(self) -> int:
        """Objects that went."""
        return sum(self.counts)

    def merge(self, other: Tally) -> None:
        """All of another, which is newer."""
        self.counts = list(map(add, self.counts, other.counts))
        self.dropped += other.dropped
        self.bytes += other.bytes
        self.jitter, self.transit = other.jitter, other.transit
        if other.ends:
            self.ends = list(map(add, self.ends, other.ends)) if self.ends else other.ends
            self.end_jitter = other.end_jitter

    def reached(self, seconds: float, jitter: float) -> None:
        """One like the last one took so long more to its application."""
        ends = list(self.ends) or [0] * BUCKETS
        ends[bucket_of(self.transit + seconds)] += 1
        self.ends, self.end_jitter = ends, min(LONGEST, self.jitter + jitter)

    def status(self) -> dict[str, Any]:
        """Plain data; times in seconds."""
        return {
            "received": self.received,
            "dropped": self.dropped,
            "bytes": self.bytes,
            "jitter": round(self.jitter, 6),
            **_percentiles(self.counts, ""),
            **_percentiles(self.ends, "end_"),
            **({"end_jitter": round(self.end_jitter, 6)} if self.ends else {}),
        }


def _percentiles(counts: Sequence[int], prefix: str) -> dict[str, float]:
    found = {f"{prefix}{name}": percentile(counts, part) for name, part in PERCENTILES}
    return {name: round(value, 6) for name, value in found.items() if value is not None}


_NOTHING: Final[dict[str, Tally]] = {}
"""Tallies of all meters that have nothing new; never changed."""


class Meter:
    """Meter of one contract. Any thread may tell it; the lock of its Meters covers it."""

    __slots__ = ("_fresh", "_last", "_lock", "_meters", "_whole", "rate")

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._lock = meters.lock
        self._fresh = _NOTHING
        """Tallies that are not added up yet, by type."""
        self._whole: Tally | None = None
        self._last = ""
        """The type of what went last, of what is added up."""
        self.rate: Counter | None = None
        """Objects, of those with most."""

    def took(self, type_name: str, size: int, waited: float) -> None:
        """An object goes out, of so many bytes, after so many seconds."""
        bucket = int(_log(waited) * _STEPS + _OFFSET) if waited > LEAST else 0
        with self._lock:
            tally = self._fresh.get(type_name) or self._begin(type_name)
            tally.bytes += size
            tally.counts[bucket if bucket < BUCKETS else -1] += 1
            if tally.transit >= 0:
                tally.jitter += (abs(waited - tally.transit) - tally.jitter) / 16
            tally.transit = waited

    def lost(self, type_name: str, count: int = 1) -> None:
        """Objects are lost."""
        with self._lock:
            tally = self._fresh.get(type_name) or self._begin(type_name)
            tally.dropped += count

    def reached(self, seconds: float, jitter: float) -> None:
        """One that went out lately took so long from there to its application."""
        with self._lock:
            if not self._fresh:
                if self._whole is None:
                    return
                self._begin(self._last)
            for tally in islice(self._fresh.values(), REACHED_MOST):
                if tally.transit >= 0:
                    tally.reached(seconds, jitter)

    def _begin(self, type_name: str) -> Tally:
        """Under the lock: there is something new of a type."""
        if not self._fresh:
            self._fresh = {}
            self._meters.active.append(self)
        tally = self._fresh[type_name] = Tally()
        if self._whole is not None:
            tally.jitter, tally.transit = self._whole.jitter, self._whole.transit
        return tally

    def fold(self) -> dict[str, Tally]:
        """Under the lock: what is new by type; it is part of the whole from now on."""
        fresh, self._fresh = self._fresh, _NOTHING
        whole = self._whole = self._whole or Tally()
        for self._last, tally in fresh.items():
            whole.merge(tally)
        return fresh

    @property
    def received(self) -> int:
        """All objects that went out, but for what is new."""
        return self._whole.received if self._whole is not None else 0

    def status(self, now: float) -> dict[str, Any]:
        """Plain data, as of a second ago; `rate` in objects a second over the last ten, with what it varies and grows
        by."""
        with self._lock:
            told = (self._whole or Tally()).status()
            return told if self.rate is None else {**told, **_rates(self.rate, now)}


class TypeMeter:
    """Meter of one type, over all contracts."""

    def __init__(self, window: float) -> None:
        self.whole = Tally()
        self.last: float | None = None
        """When something was received last, in seconds since the epoch."""
        self.received = Counter(window)
        self._lately: deque[tuple[float, Tally]] = deque()
        self._window = window

    def add(self, tally: Tally, now: float, wall: float) -> None:
        """Add what is new."""
        self.whole.merge(tally)
        self._lately.append((now, tally))
        if tally.received:
            self.last = wall

    def status(self, now: float, name: str = "") -> TypeQuality:
        """Counters of all there was, delays of the window, of the type `name`."""
        while self._lately and (self._lately[0][0] < now - self._window or len(self._lately) > MOST):
            self._lately.popleft()
        lately = Tally()
        for _, tally in self._lately:
            lately.merge(tally)
        whole = self.whole
        told = {
            **lately.status(),
            "received": whole.received,
            "dropped": whole.dropped,
            "bytes": whole.bytes,
            "last": self.last,
            "rates": [round(point.value, 3) for point in self.received.rates.points(now)],
            **_rates(self.received, now),
            "jitter": UNSET,  # one contract's says nothing of another's
            "end_jitter": UNSET,
        }
        return TypeQuality(name=name, **told)


class Meters:
    """Meters of all contracts in a process. Any thread."""

    def __init__(self, window: float = WINDOW) -> None:
        """`window`: seconds over which rates and delays are told."""
        self.lock = threading.Lock()
        self.active: list[Meter] = []
        """Those with something new."""
        self._window = window
        self._types: dict[str, TypeMeter] = {}
        self._rated: dict[Meter, None] = {}

    def meter(self) -> Meter:
        """For a contract that opens."""
        return Meter(self)

    def ended(self, meter: Meter) -> None:
        """Its contract is over; what it had stays in the sums."""
        with self.lock:
            self._rated.pop(meter, None)

    def fold(self, now: float, wall: float) -> None:
        """Add up what is new; once a second. `wall`: seconds since the epoch. Nobody waits for all of it: the lock is
        held for one contract at a time."""
        with self.lock:
            active, self.active = self.active, []
        new: dict[str, Tally] = {}
        for meter in active:
            with self.lock:
                fresh = meter.fold()
                if meter.rate is None and len(self._rated) < RATED_MOST:
                    meter.rate = Counter(self._window)
                    meter.rate.add(now - 1.0, 0.0)
                    self._rated[meter] = None
            for name, tally in fresh.items():
                new.setdefault(name, Tally()).merge(tally)
        for meter in list(self._rated):
            with self.lock:
                if meter.rate is not None:
                    meter.rate.add(now, meter.received)
        with self.lock:
            for name, tally in new.items():
                self._type(name, now).add(tally, now, wall)
            for each in self._types.values():
                each.received.add(now, each.whole.received)

    def _type(self, name: str, now: float) -> TypeMeter:
        if name not in self._types and len(self._types) >= TYPES_MOST:
            name = ""
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = TypeMeter(self._window)
            found.received.add(now - 1.0, 0.0)
        return found

    def types(self, now: float) -> list[TypeQuality]:
        """Those with the highest rates first."""
        with self.lock:
            first = nlargest(TOLD_MOST, self._types.items(), key=lambda each: each[1].received.rate(now) or 0.0)
            return [each.status(now, name[:200]) for name, each in first]


def _rates(counter: Counter, now: float) -> dict[str, Any]:
    """Rates of a counter: how fast it grows, and how that changes."""
    rates = counter.rates
    told = {
        "rate": counter.rate(now), "deviation": rates.deviation(now), "trend": rates.trend(now)
    }  # fmt: skip
    return {name: round(value, 3) for name, value in told.items() if value is not None}


class Monitor:
    """Series of every number that managers tell, once a second. Any thread."""

    def __init__(self, window: float = WINDOW) -> None:
        self._lock = threading.Lock()
        self._window = window
        self._series: dict[str, Gauge | Counter] = {}
        self._at: dict[str, float] = {}

    def sample(self, told: Status | Mapping[str, Any], now: float, wall: float) -> None:
        """Take the numbers that are told by now. Names that are not told any more are forgotten."""
        numbers = dict(numbers_in(told))
        with self._lock:
            for name in self._series.keys() - numbers:
                del self._series[name], self._at[name]
            for name, value in numbers.items():
                series = self._series.get(name)
                if series is None:
                    if len(self._series) >= SERIES_MOST:
                        continue
                    made = Counter if name.rpartition(".")[2] in COUNTERS else Gauge
                    series = self._series[name] = made(self._window)
                series.add(now, value)
                self._at[name] = wall

    def status(self, now: float) -> dict[str, SeriesStatus]:
        """By name: when and what last, mean, standard deviation and trend (what it grows by in a second) of the window,
        and its points: seconds since the epoch, value. Of what only grows these are of its rate."""
        with self._lock:
            found = {name: self._told(name, series, now) for name, series in self._series.items()}
        return {name: told for name, told in found.items() if told is not None}

    def _told(self, name: str, series: Gauge | Counter, now: float) -> SeriesStatus | None:
        gauge = series.rates if isinstance(series, Counter) else series
        points = gauge.points(now)
        if not points:
            return None
        at = self._at[name]
        found = {"mean": gauge.mean(now), "deviation": gauge.deviation(now), "trend": gauge.trend(now)}
        return SeriesStatus(
            at=round(at, 3),
            last=_round(points[-1].value),
            per_second=isinstance(series, Counter),
            **{what: _round(value) for what, value in found.items() if value is not None},
            points=[(round(at - points[-1].at + point.at, 3), _round(point.value)) for point in points],
        )


def numbers_in(told: object, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of plain data by dotted names; what is in a list is called by its `name`, or importance and
    bin, or number."""
    if isinstance(told, bool):
        return
    if isinstance(told, (int, float)):
        if math.isfinite(told):
            yield name, float(told)
    elif isinstance(told, Mapping):
        for key, value in dict(told).items():
            if key not in ("name", "importance", "bin", "rates"):
                yield from numbers_in(value, f"{name}.{key}" if name else str(key))
    elif isinstance(told, (list, tuple)):
        for number, each in enumerate(told, 1):
            yield from numbers_in(each, f"{name}.{_called(each, number)}")


def _called(each: object, number: int) -> str:
    if isinstance(each, Mapping):
        if isinstance(each.get("name"), str):
            return each["name"][:200] or "-"
        if "importance" in each:
            return f"{each['importance']}.{each.get('bin', 0)}"
    return str(number)


def _round(value: float) -> float:
    return float(f"{value:.6g}")
