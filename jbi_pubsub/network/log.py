"""Recovery of what is lost between nodes: who lacks a block asks for it, who holds it answers.

All that a node says reliably are blocks with consecutive serials of its log. Pure: times (seconds, any monotonic scale)
and random numbers are given.

Rules:
- A gap is seen by a later block, or by ranges that somebody announces. Nothing is asked for before the reorder window
  has passed in which it may still come.
- Whoever put a block on a network answers the first asking there. Others answer what is asked for again and was not
  answered, or whose origin is gone, each after a random delay, and are silent while they hear repairs of that log.
- A request says up to which number of each sender nothing more comes to the one who asks. Who has answered under a
  later number has the answer on its way, and does nothing; under an earlier one it was lost, and goes again at once.
- Repairs go in rising serials: one that comes says that those before it are lost.
- One request carries all that is due soon. Hearing another's request for the same puts the own one off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from jbi_pubsub.core.intervals import Range, RangeSet
from jbi_pubsub.core.pacing import RoundTrip

DELAY_LEAST: Final = 0.010
"""Seconds that waiting for others takes, at least."""
NUMBERS_MOST: Final = 1 << 32
"""Numbers by which a sender that was started anew is ahead, at least."""
LEAST_TRIP: Final = 1e-6
SERIAL_MOST: Final = (1 << 64) - 1
REQUEST_RANGES: Final = 500
ANNOUNCED_AFTER: Final = (1, 3, 7, 15)
"""Delays after the last block of a burst at which its end is announced."""


class LogId(NamedTuple):
    """A log: the node that writes it, how often that had been started, and the stream (0: for all)."""

    origin: bytes
    epoch: int
    stream: int = 0


@dataclass(slots=True)
class _Missing:
    """A serial that is known to exist, and has not come."""

    due: float
    """When it is asked for."""
    not_before: float
    """Until then it may still come by itself."""
    asked_at: float = -inf
    """When it was asked for last, by us."""
    is_for_others: bool = False
    """The block has come before, and is not held any more: somebody on another network lacks it."""


@dataclass(slots=True)
class _Wish:
    """A serial that somebody lacks and we hold."""

    first_asked: float
    answer_at: float = inf
    """When we answer, if nobody else has until then."""


@dataclass(slots=True)
class OriginLog:
    """A log, as far as it is known here, by whatever network it comes."""

    seen: RangeSet = field(default_factory=RangeSet)
    """Serials that have come, or need not come any more."""
    held: RangeSet = field(default_factory=RangeSet)
    """Serials that can be given."""
    floor: int = 1
    """All before it is over."""
    is_gone: bool = False
    """Its origin has left."""

    @property
    def settled(self) -> int:
        """The serial up to which nothing more comes."""
        first_gap = next(self.seen.gaps(1, SERIAL_MOST), (SERIAL_MOST + 1, 0))
        return first_gap[0] - 1

    def raise_floor(self, floor: int) -> None:
        """End all before it: nobody asks for it, or gives it."""
        if floor > self.floor:
            self.floor = floor
            self.seen.add_range(1, floor - 1)
            self.held.remove_range(1, floor - 1)


@dataclass(slots=True)
class _Recovered:
    """Recovery of one log on one network."""

    log: OriginLog
    announced: RangeSet = field(default_factory=RangeSet)
    """Serials that somebody holds here, or that lie before a block that has come."""
    put: RangeSet = field(default_factory=RangeSet)
    """Serials that we have put on this network."""
    repaired_at: float = -inf
    """When a repair was heard last."""
    missing: dict[int, _Missing] = field(default_factory=dict)
    wishes: dict[int, _Wish] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what has come meanwhile, or is over."""
        seen = self.log.seen
        for serial in [each for each, missing in self.missing.items() if each in seen and not missing.is_for_others]:
            del self.missing[serial]
        if self.wishes:
            for serial in [serial for serial in self.wishes if serial < self.log.floor]:
                del self.wishes[serial]


class Request(NamedTuple):
    """Ranges that somebody lacks, by log; and for each sender the number up to which nothing more comes to him."""

    wanted: Mapping[LogId, tuple[Range, ...]]
    closed: Mapping[bytes, int]


class _Sender:
    """Numbers of a sender's datagrams that have come."""

    __slots__ = ("_came", "_counted", "_late", "closed", "loss", "top")

    def __init__(self) -> None:
        self.top = 0
        self.loss = 0.0
        """Percent that did not come, when it was counted last."""
        self._came = 0
        self._counted = 0
        """The greatest number when it was counted last."""
        self.closed = 0
        """The number up to which nothing more comes."""
        self._late: list[tuple[float, int]] = []
        """When a number became the greatest: what is below it comes within the reorder window, or never."""

    def note(self, number: int, now: float) -> None:
        self._came += 1
        if number > self.top:
            if number - self.top > NUMBERS_MOST:  # it has been started anew
                self._came, self._counted = 1, number - 1
            self.top = number
            if not self._late or now > self._late[-1][0]:
                self._late.append((now, number))
            else:
                self._late[-1] = (now, number)

    def count_loss(self) -> None:
        """Count what has not come since this was done last."""
        sent = self.top - self._counted
        if sent > 0:
            self.loss = 100 * max(0.0, 1 - self._came / sent)
            self._came, self._counted = 0, self.top

    def close(self, before: float) -> int:
        """The number up to which nothing more comes, where all was sent before a time."""
        at = 0
        while at < len(self._late) and self._late[at][0] <= before:
            self.closed = self._late[at][1]
            at += 1
        del self._late[:at]
        return self.closed


class LogRecovery:
    """Recovery on one network."""

    def __init__(
        self,
        me: bytes,
        logs: dict[LogId, OriginLog],
        uniform: Callable[[float, float], float],
        *,
        reorder: float = 0.0,
        round_trip: float = 0.005,
        most: float = 2.0,
    ) -> None:
        """`me`: the id under which our datagrams are numbered. `logs`: those of all networks. `reorder`: seconds within
        which a datagram may be overtaken. `round_trip`: the first estimate. `most`: seconds that a delay is at most."""
        self.me = me
        self._logs = logs
        self._here: dict[LogId, _Recovered] = {}
        self._uniform = uniform
        self._reorder = reorder
        self._most = most
        self._trip = RoundTrip()
        self._first_trip = round_trip
        self._senders: dict[bytes, _Sender] = {}
        self._sent: dict[tuple[LogId, int], int] = {}
        """Number under which we have put a block on this network last; 0: it waits to go."""
        self._announce_from = inf
        self._announced = len(ANNOUNCED_AFTER)
        self._last_sent = -inf

    @property
    def round_trip(self) -> float:
        """Seconds from a request to its answer."""
        return self._trip.smoothed or self._first_trip

    @property
    def delay(self) -> float:
        """Seconds of which random delays are made: 2 round trips and what they vary by."""
        return min(max(2 * self.round_trip + self._trip.deviation, DELAY_LEAST), self._most)

    # -- what is heard --------------------------------------------------------------------------------------------

    def note_number(self, sender: bytes, number: int, now: float) -> None:
        """A datagram of a sender has come, whatever it is."""
        self._senders.setdefault(sender, _Sender()).note(number, now)

    def note_block(self, log_id: LogId, serial: int, now: float, *, is_repair: bool) -> bool:
        """A block has come; whether it is new."""
        here = self._of(log_id)
        log, missing = here.log, here.missing.pop(serial, None)
        if is_repair:
            here.repaired_at = now
            here.wishes.pop(serial, None)
            if missing is not None and now - missing.asked_at < 4 * self.delay:
                self._trip.add(max(now - missing.asked_at, LEAST_TRIP))
            self._hasten(here, serial, now)
        is_new = serial >= log.floor and log.seen.add(serial)
        if is_new:
            log.held.add(serial)
        top = here.announced.top
        if serial > top:
            self._find_gaps(here, max(log.floor, top + 1), serial - 1, now)
            here.announced.add_range(max(log.floor, top + 1) if top else log.floor, serial)
        return is_new

    def note_announcement(self, log_id: LogId, ranges: Iterable[Range], now: float, *, floor: int = 0) -> None:
        """Somebody holds these; `floor`: of the origin alone."""
        here = self._of(log_id)
        here.log.raise_floor(floor)
        for first, last in ranges:
            first = max(first, here.log.floor)
            if first <= last:
                self._find_gaps(here, first, last, now)
                here.announced.add_range(first, last)

    def note_request(self, request: Request, now: float) -> tuple[list[tuple[LogId, int]], list[tuple[LogId, int]]]:
        """Somebody lacks some; blocks that we are to send at once, rising, and those that we have put here and do not
        hold any more."""
        delay, answers, lacking = self.delay, [], []
        closed = request.closed.get(self.me, 0)
        for log_id, ranges in request.wanted.items():
            if log_id not in self._logs:
                continue
            here = self._of(log_id)
            for first, last in ranges:
                for low, high in here.log.held.within(first, last):
                    answers += self._answers(log_id, here, range(low, high + 1), closed, now)
                for low, high in here.log.held.gaps(max(first, here.log.floor), last):
                    for begin, end in here.put.within(low, high):
                        lacking += [(log_id, serial) for serial in range(begin, end + 1)]
                for serial, missing in here.missing.items():
                    if first <= serial <= last:
                        missing.due = max(missing.due, now + 2 * delay + self.round_trip + self._uniform(0, delay))
        return answers, lacking

    def want(self, log_id: LogId, serial: int, now: float) -> None:
        """Somebody on another network lacks a block that we do not hold any more: it is asked for here."""
        here = self._of(log_id)
        if serial not in here.missing:
            here.missing[serial] = _Missing(now, now, is_for_others=True)

    def count_losses(self) -> None:
        """Count what has not come of each sender since this was done last."""
        for each in self._senders.values():
            each.count_loss()

    def losses(self) -> dict[bytes, float]:
        """Percent of each sender's datagrams that did not come, when it was counted last."""
        return {sender: each.loss for sender, each in self._senders.items()}

    # -- what is sent ---------------------------------------------------------------------------------------------

    def note_own(self, log_id: LogId, serial: int) -> None:
        """A block of ours, or one that we pass on, waits to go out here: we answer for it."""
        here = self._of(log_id)
        here.log.seen.add(serial)
        here.announced.add(serial)
        self._sent[log_id, serial] = 0

    def note_sent(self, log_id: LogId, serial: int, number: int, now: float, *, is_repair: bool) -> None:
        """A block has left under this number."""
        self._sent[log_id, serial] = number
        self._of(log_id).put.add(serial)
        if is_repair:
            self._of(log_id).repaired_at = now
        else:
            self._announced, self._last_sent = 0, now

    # -- what is to be done ---------------------------------------------------------------------------------------

    def due(self) -> float:
        """When there is something to do: until then nothing changes by itself."""
        return min(
            min((each.due for here in self._here.values() for each in here.missing.values()), default=inf),
            min((each.answer_at for here in self._here.values() for each in here.wishes.values()), default=inf),
            self._announcement_due(),
        )

    def answers(self, now: float) -> list[tuple[LogId, int]]:
        """Blocks that we are to send in the place of those who had to, rising."""
        delay, answers = self.delay, []
        for log_id, here in self._here.items():
            for serial in sorted(serial for serial, wish in here.wishes.items() if wish.answer_at <= now):
                if now - here.repaired_at < delay / 2:
                    here.wishes[serial].answer_at = now + delay / 2 + self._uniform(0, delay)
                    continue
                del here.wishes[serial]
                if serial in here.log.held:
                    self._sent[log_id, serial] = 0
                    answers.append((log_id, serial))
        return answers

    def request(self, now: float, most: int = REQUEST_RANGES) -> Request | None:
        """Ranges to ask for now: what is due, and with it what will be soon, in `most` ranges."""
        if all(each.due > now for here in self._here.values() for each in here.missing.values()):
            return None
        delay = self.delay
        wanted: dict[LogId, tuple[Range, ...]] = {}
        for log_id, here in self._here.items():
            here.clear()
            found = RangeSet()
            for serial in sorted(here.missing):
                missing = here.missing[serial]
                if missing.due <= now + delay and missing.not_before <= now and len(found) < most:
                    found.add(serial)
                    missing.asked_at = now
                    missing.due = now + self.round_trip + 2 * delay + self._uniform(0, delay)
            if found:
                wanted[log_id] = tuple(found)
                most -= len(found)
        closed = {sender: each.close(now - self._reorder) for sender, each in self._senders.items()}
        return Request(wanted, closed) if wanted else None

    def announces(self, now: float) -> bool:
        """Whether the end of a burst is to be announced now."""
        if self._announcement_due() > now:
            return False
        self._announced += 1
        return True

    # -- inside ---------------------------------------------------------------------------------------------------

    def _announcement_due(self) -> float:
        if self._announced == len(ANNOUNCED_AFTER):
            return inf
        return self._last_sent + ANNOUNCED_AFTER[self._announced] * self.delay

    def _of(self, log_id: LogId) -> _Recovered:
        here = self._here.get(log_id)
        if here is None:
            here = self._here[log_id] = _Recovered(self._logs.setdefault(log_id, OriginLog()))
        return here

    def _find_gaps(self, here: _Recovered, first: int, last: int, now: float) -> None:
        at = now + self._reorder
        due = at + self._uniform(0, self.delay)
        for low, high in here.log.seen.gaps(first, last):
            for serial in range(low, high + 1):
                if serial not in here.missing:
                    here.missing[serial] = _Missing(due, at)

    def _hasten(self, here: _Recovered, serial: int, now: float) -> None:
        """A repair has come: those before it that were asked for with it are lost. While repairs flow, others wait."""
        lost = now + self._reorder + self._uniform(0, self.delay)
        for each, missing in here.missing.items():
            if missing.asked_at != -inf:
                missing.due = min(missing.due, lost) if each < serial else max(missing.due, now + self.round_trip)

    def _answers(
        self, log_id: LogId, here: _Recovered, serials: Iterable[int], closed: int, now: float
    ) -> list[tuple[LogId, int]]:
        """Those of our blocks that go at once; others are noted."""
        answers, delay = [], self.delay
        for serial in serials:
            number = self._sent.get((log_id, serial))
            if number is not None:
                if 0 < number <= closed:
                    self._sent[log_id, serial] = 0
                    answers.append((log_id, serial))
                continue
            wish = here.wishes.get(serial)
            if wish is None:
                wish = here.wishes[serial] = _Wish(now)
            if wish.answer_at == inf and (here.log.is_gone or now - wish.first_asked > delay):
                wish.answer_at = now + delay / 2 + self._uniform(0, delay)
        return answers
