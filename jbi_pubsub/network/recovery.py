"""Recovery of what is lost between nodes: who lacks a block asks for it, who holds it answers. Pure: times (seconds,
any monotonic scale) and random numbers are given.

Rules:
- A gap is seen by a later block, or by ranges that somebody announces. Nothing is asked for before the reorder window
  has passed in which it may still come.
- Whoever put a block on a network answers the first asking there. Others answer what is asked for again and was not
  answered, or whose origin is gone, each after a random delay, and are silent while they hear repairs of that log.
- A request says up to which number of each sender nothing more comes to the one who asks. Who has answered under a
  later number has the answer on its way, and does nothing; under an earlier one it was lost, and goes again at once.
  So does one that left long ago: perhaps nothing has come from there since.
- Repairs go in rising serials: one that comes says that those before it are lost.
- One request carries all that is due soon. Hearing another's request for the same puts the own one off.
- What nobody gives after some askings, each later than the one before, is given up when its origin has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from jbi_pubsub.core.intervals import Range, RangeSet
from jbi_pubsub.network.log import RANGES_MOST, SERIAL_MOST, LogBook, LogId, OriginLog
from jbi_pubsub.network.missing import MISSING_OF_LOG, AnswerTime, MissingRoom, MissingSerials
from jbi_pubsub.network.senders import Asker, Senders, SentNumbers

DELAY_LEAST: Final = 0.010
"""Seconds that waiting for others takes, at least."""
DELAY_MOST: Final = 2.0
REQUEST_RANGES: Final = 500
ANNOUNCED_AFTER: Final = (1, 3, 7, 15)
"""Delays after the last block of a burst at which its end is announced."""
MISSING_MOST: Final = 40_000
"""Serials of all logs on a network that are looked after one by one."""
MISSING_OF_UNKNOWN: Final = 4_000
REFUSED_SECONDS: Final = 1.0
"""A block that was not what it said is asked for again after so long: it may never be."""
LONG: Final = 6
"""Delays after which what we have sent has come, or is lost."""
WISH_SECONDS: Final = 10.0
"""An asking that has been answered by nobody else for so long is forgotten."""
WISHES_OF_LOG: Final = 4_000

Answers = list[tuple[LogId, int]]


@dataclass(slots=True)
class _Wish:
    """A serial that somebody lacks and we hold."""

    first_asked: float
    answer_at: float = inf
    """When we answer, if nobody else has until then."""


@dataclass(slots=True)
class _Recovered:
    """Recovery of one log on one network."""

    log: OriginLog
    missing: MissingSerials
    announced: RangeSet = field(default_factory=RangeSet)
    """Serials that somebody holds here, or that lie before a block that has come."""
    put: RangeSet = field(default_factory=RangeSet)
    """Serials that we have put on this network."""
    sent: dict[int, int] = field(default_factory=dict)
    """For each that we hold the number under which we have put them here last; 0: it waits to go."""
    edge: int = 0
    """The greatest serial that has come here, but for repairs."""
    repaired_at: float = -inf
    """When a repair was heard last."""
    wishes: dict[int, _Wish] = field(default_factory=dict)
    answer_from: float = inf
    """When the first of them is answered, or later."""

    def due(self) -> float:
        """When there is something to do."""
        return min(self.missing.due(), self.answer_from)


class Request(NamedTuple):
    """Ranges that somebody lacks, by log; and for each sender the number up to which nothing more comes to him."""

    wanted: Mapping[LogId, tuple[Range, ...]]
    closed: Mapping[bytes, int]


class LogRecovery:
    """Recovery on one network."""

    def __init__(
        self, me: bytes, logs: LogBook, uniform: Callable[[float, float], float], *, reorder: float = 0.0,
        round_trip: float = 0.005, is_lossless: bool = False,
    ) -> None:  # fmt: skip
        """`me`: the id under which our datagrams are numbered. `logs`: those of all networks. `reorder`: seconds within
        which a datagram may be overtaken. `round_trip`: the first estimate. `is_lossless`: a block that has not come is
        not missing, unless somebody announces it."""
        self.me = me
        self.senders = Senders()
        self._logs = logs
        self._here: dict[LogId, _Recovered] = {}
        self._uniform = uniform
        self._reorder = reorder
        self._is_lossless = is_lossless
        self._trip = AnswerTime(round_trip)
        self._rooms = (MissingRoom(MISSING_OF_UNKNOWN), MissingRoom(MISSING_MOST))
        self._next = inf
        """When something is to be asked for or answered, or later."""
        self._left = SentNumbers()
        self._announced = len(ANNOUNCED_AFTER)
        self._last_sent = -inf
        self.is_directed = False
        """The burst ends with a block to one node, where somebody may wait for it: others behind it do not count."""

    @property
    def round_trip(self) -> float:
        """Seconds from a request to its answer."""
        return self._trip.seconds

    @property
    def delay(self) -> float:
        """Seconds of which random delays are made: 2 round trips and what they vary by."""
        return min(max(2 * self.round_trip + self._trip.deviation, DELAY_LEAST), DELAY_MOST)

    # -- what is heard --------------------------------------------------------------------------------------------

    def note_block(self, log_id: LogId, serial: int, now: float, *, is_repair: bool) -> tuple[bool, int]:
        """A block has come; whether it is new, and the bit mask of the other networks where somebody lacks it. Raises
        ProtocolError: there is no room for its log."""
        here = self._of(log_id, now)
        log, missing = here.log, here.missing.pop(serial)
        if is_repair:
            here.repaired_at = now
            here.wishes.pop(serial, None)
            if missing is not None and not here.log.is_gone:
                self._trip.note(missing, now, 4 * self.delay)
            here.missing.hasten(serial, now + self._reorder + self._uniform(0, self.delay), now + self.round_trip)
        elif log.is_gone:
            log.gone_at = now  # its origin is back, and will say what it holds
        is_new = log.add(serial)
        first = max(log.floor, here.announced.top + 1)
        if self._is_lossless:
            self._announce(here, serial, serial)
        elif serial >= first:
            self._find_gaps(here, first, serial - 1, now)
            self._announce(here, first, serial)
        elif not is_repair and here.edge < serial - 1:
            self._find_gaps(here, max(log.floor, here.edge + 1), serial - 1, now, is_anew=here.edge > 0)
        if not is_repair:
            here.edge = max(here.edge, serial)
        self._follow(here, now)
        return is_new, missing.lacked_at if missing is not None else 0

    def note_announcement(
        self, log_id: LogId, ranges: Iterable[Range], now: float, *, floor: int = 0, last: int = 0, is_own: bool = False
    ) -> None:
        """Somebody holds these; `is_own`: it is the origin who says so, with its floor, and what it does not hold any
        more of what it has said is over, behind these up to `last`. Raises ProtocolError: there is no room for the
        log."""
        here = self._of(log_id, now)
        log = here.log
        found = RangeSet((low, min(high, SERIAL_MOST)) for low, high in ranges if 1 <= low <= min(high, SERIAL_MOST))
        if is_own:
            log.raise_floor(min(floor, SERIAL_MOST))
            for low, high in list(found.gaps(next(iter(found), (1, 0))[0], max(found.top, min(last, SERIAL_MOST)))):
                log.end(low, high)
        self._announce(here, 1, log.floor - 1)
        for low, high in found.within(log.floor, SERIAL_MOST):
            self._find_gaps(here, low, high, now, is_anew=is_own)
            self._announce(here, low, high)
        self._follow(here, now)

    def note_request(self, request: Request, now: float, asker: Asker) -> tuple[Answers, Answers, list[int]]:
        """Somebody lacks some; blocks that we are to send at once, rising, those that we have put here and do not hold
        any more, and the numbers under which those that are sent have been lost. Each may ask for so many a second.
        One who loses most of all gets little, and by nobody but who has put it here: else the others would get
        nothing."""
        delay, answers, lacking, lost = self.delay, Answers(), Answers(), list[int]()
        closed = max(request.closed.get(self.me, 0), self._left.before(now - LONG * delay))
        bucket = self.senders.bucket(asker, now)
        for log_id, ranges in request.wanted.items():
            here = self._here.get(log_id)
            if here is None and log_id in self._logs:
                here = self._of(log_id, now)
            room = min(MISSING_OF_LOG, int(bucket.fill(now)))
            if here is None or room <= 0:
                continue
            wanted = RangeSet(ranges[:room])
            serials = _first(here.log.held, wanted, room)
            again = [serial for serial in serials if 0 < here.sent.get(serial, 0) <= closed]
            lost += [here.sent[serial] for serial in again]
            answers += [(log_id, serial) for serial in again]
            here.sent.update(dict.fromkeys(again, 0))
            if here.log.is_gone or not asker.is_overrun:
                self._note_wishes(here, serials, now)
            gaps = RangeSet(gap for low, high in wanted for gap in here.log.held.gaps(max(low, here.log.floor), high))
            lacked = _first(here.put, gaps, room)
            lacking += [(log_id, serial) for serial in lacked]
            here.missing.put_off(wanted, now + 2 * delay + self.round_trip + self._uniform(0, delay))
            bucket.take(1 + len(ranges) + len(serials) + len(lacked), now)
            self._next = min(self._next, here.answer_from)
        return answers, lacking, lost

    def want(self, log_id: LogId, serial: int, at: int, now: float) -> None:
        """Somebody on another network lacks a block that we do not hold any more: it is asked for here."""
        self._of(log_id, now).missing.want(serial, at, now)
        self._next = min(self._next, now)

    def lack_again(self, log_id: LogId, serial: int, now: float) -> None:
        """A block that has come was not what it said: it is missing, and asked for again before long."""
        here = self._of(log_id, now)
        here.log.take_back(serial)
        self._find_gaps(here, serial, serial, now + REFUSED_SECONDS)
        self._follow(here, now)

    def announced(self, log_id: LogId) -> RangeSet:
        """Serials that somebody holds here, or that lie before a block that has come."""
        here = self._here.get(log_id)
        return here.announced if here is not None else RangeSet()

    # -- what is sent ---------------------------------------------------------------------------------------------

    def note_own(self, log_id: LogId, serial: int, now: float) -> None:
        """A block of ours, or one that we pass on, waits to go out here: we answer for it."""
        here = self._of(log_id, now)
        here.log.seen.add(serial)
        self._announce(here, serial, serial)
        here.sent[serial] = 0

    def note_sent(self, log_id: LogId, serial: int, number: int, now: float, *, is_repair: bool) -> None:
        """A block has left under this number."""
        here = self._of(log_id, now)
        self._left.note(number, now, self.delay)
        here.sent[serial] = number
        here.put.add(serial)
        if len(here.put) > RANGES_MOST:
            here.put.remove_range(*next(iter(here.put)))
        if is_repair:
            here.repaired_at = now
        elif log_id.stream or not self.is_directed or self._announced == len(ANNOUNCED_AFTER):
            self._announced, self._last_sent, self.is_directed = 0, now, log_id.stream != 0

    def has_put(self, log_id: LogId | None, serial: int) -> bool:
        """Whether a block has left here, be it in answer to somebody before its turn."""
        return log_id is not None and log_id in self._here and serial in self._here[log_id].put

    def give_up(self, log_id: LogId, serial: int) -> None:
        """A block is not held any more."""
        here = self._here.get(log_id)
        if here is not None:
            here.sent.pop(serial, None)
            here.wishes.pop(serial, None)

    def note_dropped(self, log_id: LogId, serial: int) -> None:
        """A repair had no room: it goes when it is asked for again."""
        here = self._here.get(log_id)
        if here is not None and serial in here.sent:
            here.sent[serial] = 1

    def forget(self, log_ids: Iterable[LogId]) -> None:
        """Nothing of these logs is of interest any more."""
        for here in filter(None, (self._here.pop(each, None) for each in log_ids)):
            here.missing.clear()

    # -- what is to be done ---------------------------------------------------------------------------------------

    def due(self) -> float:
        """When there is something to do: until then nothing changes by itself."""
        return min(self._next, self._announcement_due())

    def answers(self, now: float) -> Answers:
        """Blocks that we are to send in the place of those who had to, rising."""
        answers: Answers = []
        for log_id, here in self._here.items():
            if here.answer_from > now:
                continue
            here.answer_from = inf
            for serial in sorted(serial for serial, wish in here.wishes.items() if wish.answer_at <= now):
                if now - here.repaired_at < self.delay / 2:
                    here.wishes[serial].answer_at = now + self.delay / 2 + self._uniform(0, self.delay)
                    continue
                del here.wishes[serial]
                if serial in here.log.held:
                    here.sent[serial] = 0
                    answers.append((log_id, serial))
            here.answer_from = min((each.answer_at for each in here.wishes.values()), default=inf)
        return answers

    def request(self, now: float, gone_before: float, most: int = REQUEST_RANGES) -> Request | None:
        """Ranges to ask for now: what is due, and with it what will be soon, in `most` ranges. Of origins that had left
        before `gone_before` something may be given up."""
        if self._next > now:
            return None
        delay = self.delay
        wanted: dict[LogId, tuple[Range, ...]] = {}
        if any(here.missing.due() <= now for here in self._here.values()):
            for log_id, here in self._here.items():
                wait = self.round_trip + 2 * delay + self._uniform(0, delay)
                is_gone = here.log.gone_at <= gone_before
                found, given_up = here.missing.ask(here.log.seen, now, now + delay, wait, most, may_give_up=is_gone)
                for serial in given_up:
                    here.announced.remove_range(serial, serial)
                    if serial not in here.log.seen:
                        here.log.given_up.add(serial)
                if found:
                    wanted[log_id] = tuple(found)
                    most -= len(found)
                self._follow(here, now)
        self._next = min((here.due() for here in self._here.values()), default=inf)
        if not wanted:
            return None
        origins = {log_id.origin[:4] for log_id in wanted}
        return Request(wanted, self.senders.closed(now - self._reorder, now, origins))

    def announces(self, now: float) -> bool:
        """Whether the end of a burst is to be announced now."""
        if self._announcement_due() > now:
            return False
        self._announced += 1
        return True

    def tidy(self, now: float) -> None:
        """Forget what nobody has asked for again."""
        for here in self._here.values():
            for serial in [s for s, each in here.wishes.items() if each.first_asked < now - WISH_SECONDS]:
                del here.wishes[serial]
            here.put.remove_range(1, here.log.floor - 1)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _announcement_due(self) -> float:
        if self._announced == len(ANNOUNCED_AFTER) or self._is_lossless:
            return inf
        return self._last_sent + ANNOUNCED_AFTER[self._announced] * self.delay

    def _of(self, log_id: LogId, now: float) -> _Recovered:
        room = self._rooms[self._logs.is_known(log_id.origin)]
        here = self._here.get(log_id)
        if here is None:
            here = self._here[log_id] = _Recovered(self._logs.open(log_id), MissingSerials(room))
        here.missing.move(room)
        here.log.mentioned = now
        return here

    def _announce(self, here: _Recovered, first: int, last: int) -> None:
        """Somebody holds these."""
        if first <= last:
            here.announced.add_range(first, last)
            if len(here.announced) > RANGES_MOST:
                here.announced.remove_range(*next(iter(here.announced)))

    def _find_gaps(self, here: _Recovered, first: int, last: int, now: float, *, is_anew: bool = False) -> None:
        at = now + self._reorder
        due = at + self._uniform(0, self.delay)
        for low, high in here.log.seen.gaps(first, last):
            if not here.missing.add(low, high, due, at, is_anew=is_anew):
                break

    def _follow(self, here: _Recovered, now: float) -> None:
        """Look after more of what is missing, when there is room again."""
        missing = here.missing
        if missing.behind and len(missing) <= MISSING_OF_LOG // 2:
            behind, missing.behind = missing.behind, 0
            for low, high in here.announced.within(behind, here.announced.top):
                self._find_gaps(here, max(low, here.log.floor), high, now)
                if missing.behind:
                    break
        self._next = min(self._next, missing.due())

    def _note_wishes(self, here: _Recovered, serials: Iterable[int], now: float) -> None:
        """Wishes for what we have not put here are answered by others first."""
        delay = self.delay
        for serial in serials:
            wish = here.wishes.get(serial)
            if serial in here.sent or (wish is None and len(here.wishes) >= WISHES_OF_LOG):
                continue
            if wish is None:
                wish = here.wishes[serial] = _Wish(now)
            if wish.answer_at == inf and (here.log.is_gone or now - wish.first_asked > delay):
                wish.answer_at = now + delay / 2 + self._uniform(0, delay)
                here.answer_from = min(here.answer_from, wish.answer_at)


def _first(numbers: RangeSet, wanted: RangeSet, most: int) -> list[int]:
    """The first numbers that are in both sets."""
    found: list[int] = []
    for first, last in wanted:
        for low, high in numbers.within(first, last):
            found.extend(range(low, min(high, low + most - len(found) - 1) + 1))
            if len(found) >= most:
                return found
    return found
