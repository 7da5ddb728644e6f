"""Serials of a log that are known to exist, and have not come: when each is asked for. Pure.

However many are missing, so many at most are looked after one by one, the lowest first; of the others it is remembered
where they begin. A repair costs as many steps as it passes serials that were asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Final

from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.core.pacing import RoundTrip

MISSING_OF_LOG: Final = 4_000
"""Serials of a log that are looked after one by one."""
PATIENT: Final = 4
"""Askings after which each waits twice as long as the one before."""
LAST_ASKING: Final = 9
"""Askings after which what nobody gives is given up."""
ASKING_MOST: Final = 5.0
"""Seconds between two askings, at most."""
LAGS: Final = 6
"""First askings whose answers tell of the time there and back."""
UNANSWERED: Final = 6
"""Askings again from which on it is thought that answers take long, rather than that all of these were lost."""
LEAST_TRIP: Final = 1e-6
LAG_MOST: Final = 10.0
"""Seconds beyond which an answer says nothing of the way: the network has failed meanwhile."""


@dataclass(slots=True)
class MissingRoom:
    """Room for missing serials that logs share."""

    left: int


@dataclass(slots=True)
class MissingSerial:
    """A serial that is known to exist, and has not come."""

    due: float
    """When it is asked for."""
    not_before: float
    """Until then it may still come by itself."""
    queued: float
    """When it is looked at next."""
    first_asked: float = inf
    """When it was asked for first, by us; -inf: others have asked for it as well."""
    asked_at: float = -inf
    """When it was asked for last, by us."""
    askings: int = 0
    is_flying: bool = False
    """Asked for, and no repair of a later one has come since."""
    lacked_at: int = 0
    """Bit mask of the other networks where somebody lacks it: it has come before, and is not held any more."""


class AnswerTime:
    """Seconds from an asking to its answer, as estimated.

    Which of several askings an answer follows is not known (RFC 6298, section 3). So it takes at most the time since
    the first one, and about the least of these where much was asked again.
    """

    def __init__(self, first: float) -> None:
        """`first`: the estimate until something was answered."""
        self._first = first
        self._trip = RoundTrip()
        self._lags: dict[float, tuple[float, int]] = {}
        """By when it was asked first the seconds until something came, and how often it was asked; the last LAGS."""

    @property
    def seconds(self) -> float:
        """The estimate."""
        unanswered = sum(askings - 1 for _, askings in self._lags.values())
        least = min(self._lags.values())[0] if unanswered >= UNANSWERED else 0.0
        return max(self._trip.smoothed or self._first, least)

    @property
    def deviation(self) -> float:
        """Seconds by which answers to a single asking differ."""
        return self._trip.deviation

    def note(self, missing: MissingSerial, now: float, most: float) -> None:
        """One has come as an answer; after more than `most` seconds it is thought to answer somebody else."""
        lag = now - missing.first_asked
        if not 0 <= lag < LAG_MOST:  # else we have not asked, or others as well
            return
        if missing.first_asked not in self._lags:
            self._lags[missing.first_asked] = max(lag, LEAST_TRIP), missing.askings
            if len(self._lags) > LAGS:
                del self._lags[next(iter(self._lags))]
        if missing.askings == 1 and lag < most:
            self._trip.add(max(lag, LEAST_TRIP))


class MissingSerials:
    """Missing serials of a log on a network."""

    __slots__ = ("_due", "_flying", "_missing", "_quiet_from", "_quiet_until", "_room", "behind")

    def __init__(self, room: MissingRoom) -> None:
        self._room = room
        self._missing: dict[int, MissingSerial] = {}
        self._due: list[tuple[float, int]] = []
        """Heap: when each is looked at."""
        self._flying: list[int] = []
        """Rising."""
        self._quiet_from, self._quiet_until = 0, -inf
        """Repairs flow: from this serial on nothing is asked for again until then."""
        self.behind = 0
        """The lowest serial that there was no room for; 0: there is none."""

    def __len__(self) -> int:
        return len(self._missing)

    def __contains__(self, serial: object) -> bool:
        return serial in self._missing

    def move(self, room: MissingRoom) -> None:
        """Take other room."""
        if room is not self._room:
            self._room.left += len(self._missing)
            room.left -= len(self._missing)
            self._room = room

    def add(self, first: int, last: int, due: float, not_before: float, *, is_anew: bool = False) -> bool:
        """All from one to another are missing; whether there is room for more. `is_anew`: those are asked for soon that
        have been asked for often."""
        if self.behind and first >= self.behind and not is_anew:
            return False
        for serial in range(first, last + 1):
            known = self._missing.get(serial)
            if known is not None:
                if is_anew and known.askings > PATIENT:
                    known.askings = 0
                    self._look(serial, known, min(due, known.due))
            elif len(self._missing) >= MISSING_OF_LOG or self._room.left <= 0:
                self.behind = min(self.behind or serial, serial)
                return False
            else:
                self._put(serial, MissingSerial(due, not_before, due))
        return True

    def want(self, serial: int, at: int, now: float) -> None:
        """Somebody on another network lacks one that had come."""
        if serial not in self._missing and self._room.left > 0:
            self._put(serial, MissingSerial(now, now, now))
        if serial in self._missing:
            self._missing[serial].lacked_at |= 1 << at

    def pop(self, serial: int) -> MissingSerial | None:
        """One has come."""
        missing = self._missing.pop(serial, None)
        if missing is not None:
            self._room.left += 1
            if not self._missing:
                self._due, self._flying = [], []
        return missing

    def clear(self) -> None:
        """Forget all."""
        self._room.left += len(self._missing)
        self._missing, self._due, self._flying, self.behind = {}, [], [], 0

    def hasten(self, serial: int, lost: float, quiet_until: float) -> None:
        """A repair has come: those before it that were asked for with it are lost. While repairs flow, others wait."""
        at = bisect_left(self._flying, serial)
        for each in self._flying[:at]:
            missing = self._missing.get(each)
            if missing is not None and missing.is_flying:
                missing.is_flying = False
                self._look(each, missing, min(missing.due, lost))
        del self._flying[:at]
        self._quiet_from, self._quiet_until = serial, quiet_until

    def put_off(self, ranges: RangeSet, until: float) -> None:
        """Somebody else has asked for these."""
        serials: Iterable[int]
        if ranges.count() < len(self._missing):
            serials = [each for low, high in ranges for each in range(low, high + 1) if each in self._missing]
        else:
            serials = [each for each in self._missing if each in ranges]
        for serial in serials:
            missing = self._missing[serial]
            missing.due = max(missing.due, until)
            missing.first_asked = -inf
            if missing.asked_at != -inf:
                self._fly(serial, missing)
        self._flying.sort()

    def due(self) -> float:
        """When the next one is asked for."""
        while self._due:
            when, serial = self._due[0]
            missing = self._missing.get(serial)
            if missing is not None and missing.queued == when:
                if missing.asked_at != -inf and serial >= self._quiet_from:
                    missing.due = max(missing.due, self._quiet_until)
                if missing.due == when:
                    return when
                self._look(serial, missing, missing.due)
            heappop(self._due)
        return inf

    def ask(
        self, seen: RangeSet, now: float, soon: float, wait: float, most: int, *, may_give_up: bool
    ) -> tuple[RangeSet, list[int]]:
        """Serials to be asked for now, as they are due `soon`, in `most` ranges, and again in `wait` seconds; and those
        that are given up. `may_give_up`: the origin has left for good."""
        ready, early, given_up = [], [], []
        while self.due() <= soon:
            serial = heappop(self._due)[1]
            missing = self._missing[serial]
            missing.queued = inf
            if serial in seen and not missing.lacked_at:
                self.pop(serial)
            elif missing.not_before > now:
                early.append(serial)
            elif missing.askings >= LAST_ASKING and (may_give_up or missing.lacked_at):
                given_up.append(serial)
                self.pop(serial)
            else:
                ready.append(serial)
        for serial in early:
            self._look(serial, self._missing[serial], max(self._missing[serial].due, self._missing[serial].not_before))
        found = RangeSet()
        for serial in sorted(ready):
            missing = self._missing[serial]
            if len(found) < most or serial - 1 in found:
                found.add(serial)
                missing.first_asked = min(missing.first_asked, now)
                missing.asked_at = now
                pause = min(wait * 2 ** min(max(0, missing.askings - PATIENT), 20), max(ASKING_MOST, wait))
                missing.askings += 1
                self._fly(serial, missing)
                self._look(serial, missing, now + pause)
            else:
                self._look(serial, missing, missing.due)
        self._flying.sort()
        return found, given_up

    def _put(self, serial: int, missing: MissingSerial) -> None:
        self._room.left -= 1
        self._missing[serial] = missing
        heappush(self._due, (missing.due, serial))

    def _look(self, serial: int, missing: MissingSerial, due: float) -> None:
        missing.due = due
        if missing.queued != due:
            missing.queued = due
            heappush(self._due, (due, serial))

    def _fly(self, serial: int, missing: MissingSerial) -> None:
        if not missing.is_flying:
            missing.is_flying = True
            self._flying.append(serial)
