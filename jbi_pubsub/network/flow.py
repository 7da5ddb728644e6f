"""Flow of a node's datagrams: what goes next on a network, how fast, and how far ahead of the slowest. Pure.

Rules:
- Requests and announcements go first: they are few, and without them nothing is repaired. Then the more important goes,
  and of the same importance repairs before what is new. A part of the turns is for what is new, whatever is asked for.
  What is directed to one node, such as calls to it, does not wait for all that is published: it has its turns.
- A rate that is not given is found: it rises by a quarter each round trip, after the first loss by a twentieth, and is
  halved when much of what was sent is asked for again. On a link that loses at any rate halving does not help: then it
  is as it was, and is halved when more is lost than that.
- The window is what can be given again: no more than half of the cache is said beyond what the slowest member has seen.
  One that gets on much more slowly than most for some time is not counted: it is served by repairs, as far as they go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import median
from typing import Final, Literal, NamedTuple

from jbi_pubsub.network.datagram import Datagram
from jbi_pubsub.network.log import LogId

LEVELS: Final = 5
USUAL_LEVEL: Final = 3
"""Importance of what does not say."""
TURNS: Final = 5
"""In so many turns what is new has one at least."""
CONTROL_MOST: Final = 64
"""Requests and announcements that wait; then the oldest go, as others follow."""
REPAIRS_MOST: Final = 20_000
"""Repairs that wait on a network."""
OUTAGE: Final = 0.9
"""Share of losses from which on a link has failed, which says nothing of its rate."""
LEAST_RATE: Final = 125_000.0
MOST_RATE: Final = 1e9
FIRST_RATE: Final = 1e6
"""Bytes a second where nothing is known."""
MUCH: Final = 0.1
"""Share of repairs or losses at which a rate is halved."""
PERIOD_LEAST: Final = 0.1
"""Seconds over which the share of repairs is counted, at least; and so many datagrams."""
PERIOD_DATAGRAMS: Final = 50
FIRST_STEP: Final = 1 / 4
"""Part by which a rate rises until something is lost for the first time."""
STEP: Final = 1 / 20
GROWING_LEAST: Final = 0.02
"""Seconds between two steps up, at least."""
ABOUT: Final = 0.7
SLOW_SHARE: Final = 0.2
"""Part of the median's speed below which a member is slow."""
SLOW_SECONDS: Final = 10.0
FADING: Final = 0.9
MEMBERS_MOST: Final = 10_000
STEP_BYTES: Final = 1 << 16
"""Bytes between two serials whose places are remembered."""


class BlockRepair(NamedTuple):
    """A block that is to be sent again."""

    log_id: LogId
    serial: int


@dataclass(eq=False, slots=True)
class OutgoingBlock:
    """A block of ours, or of another network, that has not left everywhere yet."""

    datagram: Datagram
    expires: float
    log_id: LogId | None = None
    """None: of an unreliable message."""
    serial: int = 0
    packed: bytes = b""
    """Bytes of it, when it has a serial."""
    objects: int = 0
    """Number of objects that end with it."""


Turn = BlockRepair | OutgoingBlock | bytes | Literal["relayed"]
"""Something that goes next; bytes: a request or an announcement; "relayed": what comes from other networks."""


class SendingQueues:
    """Datagrams that wait to go to a network."""

    def __init__(self) -> None:
        self._control: deque[bytes] = deque(maxlen=CONTROL_MOST)
        self._repairs: list[deque[BlockRepair]] = [deque() for _ in range(LEVELS)]
        self._new: list[deque[OutgoingBlock]] = [deque() for _ in range(LEVELS + 1)]
        """By importance; at the end what is directed to one node, which takes turns with what is usual."""
        self.objects = 0
        """Number of objects of which all blocks have been next."""
        self._turn = 0
        self.repairs = 0
        """Repairs that wait."""
        self._sizes = [0] * (LEVELS + 1)
        """Bytes that are new, in the same order."""

    @property
    def waiting(self) -> int:
        """Bytes that are new."""
        return sum(self._sizes)

    def before(self, level: int) -> int:
        """Bytes that are new and go before anything of that importance that is said now."""
        return sum(self._sizes[_place(level) : LEVELS])

    def repair(self, log_id: LogId, serial: int, level: int) -> None:
        """Send a block again; where there is no room it is asked for again."""
        self._repairs[_place(level)].append(BlockRepair(log_id, serial))
        self.repairs += 1

    def control(self, datagrams: Iterable[bytes]) -> None:
        """Send a request or an announcement."""
        self._control.extend(datagrams)

    def add(self, blocks: Iterable[OutgoingBlock], level: int) -> None:
        """Send something new."""
        for each in blocks:
            place = LEVELS if each.log_id is not None and each.log_id.stream else _place(level)
            self._new[place].append(each)
            self._sizes[place] += len(each.datagram.data)

    def __bool__(self) -> bool:
        return bool(self._control or self.repairs or any(self._new))

    def __iter__(self) -> Iterator[OutgoingBlock]:
        return chain.from_iterable(self._new)

    def next(self, *, is_relaying: bool) -> Turn | None:
        """Have the next one go. `is_relaying`: something comes from other networks: it takes turns as well."""
        if self._control:
            return self._control.popleft()
        self._turn = (self._turn + 1) % (2 * TURNS)
        is_new_first = not self._turn % TURNS and (is_relaying or any(self._new))
        for place in range(LEVELS - 1, -1, -1):
            if self._repairs[place] and not is_new_first:
                self.repairs -= 1
                return self._repairs[place].popleft()
            is_usual = place == _place(0)
            waiting = [each for each in (place, *[LEVELS] * is_usual) if self._new[each]]
            if is_relaying and is_usual and self._turn % (len(waiting) + 1) == len(waiting):
                return "relayed"
            if waiting:
                at = waiting[self._turn % len(waiting)]
                found = self._new[at].popleft()
                self._sizes[at] -= len(found.datagram.data)
                self.objects += found.objects
                return found
        return None


class LinkBurst:
    """Gathering of what is to go over a link, so that a transmitter is keyed once for all of it."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: from the first of it on; 0: nothing waits."""
        self._seconds = seconds
        self._begins = inf

    def wait(self, now: float, *, is_waiting: bool) -> float:
        """Seconds until what waits may go; 0: it may, and what comes meanwhile, until nothing waits any more."""
        self._begins = min(self._begins, now + self._seconds) if is_waiting else inf
        return max(0.0, self._begins - now) if is_waiting else 0.0


@dataclass(slots=True)
class _Period:
    """Datagrams that were sent one after the other, at one rate."""

    first: int
    begun: float
    sent: int = 0
    datagrams: int = 0
    lost: int = 0
    seconds: float = 0.0

    @property
    def came(self) -> float:
        """Bytes a second that came."""
        return self.sent / self.seconds * (1 - self.share)

    @property
    def share(self) -> float:
        """Share that was lost."""
        return self.lost / self.datagrams


class FoundRate:
    """A rate that is found: bytes a second. Losses count for when that was sent which is lost, not for when it is sent
    again: else a backlog of repairs would halve the rate again and again."""

    def __init__(self) -> None:
        self.rate = FIRST_RATE
        self._usual = 0.0
        """Share that is lost at half the rate too."""
        self._tried = 0.0
        """Bytes a second that came before the rate was halved last; 0: it was not."""
        self._period: _Period | None = None
        self._before: _Period | None = None
        """The period before, which is judged at the end of this one."""
        self._step = FIRST_STEP
        self._is_used = True
        """The rate was used lately: else a processor or a line has no more."""
        self._grown_at = 0.0

    def note(self, number: int, size: int, now: float, delay: float) -> None:
        """A datagram has left, while others waited. `delay`: seconds until a loss is told, about."""
        period = self._period = self._period or _Period(number, now)
        period.sent += size
        period.datagrams += 1
        period.seconds = now - period.begun
        if period.datagrams >= PERIOD_DATAGRAMS and period.seconds >= max(PERIOD_LEAST, 3 * delay):
            self._is_used = period.sent / period.seconds >= ABOUT * self.rate
            before, self._before, self._period = self._before, period, None
            if before is not None:
                self._judge(before)
        if self._is_used and now - self._grown_at >= max(delay, GROWING_LEAST):
            self.rate = min(self.rate * (1 + self._step), MOST_RATE)
            self._grown_at = now

    def note_lost(self, numbers: Iterable[int]) -> None:
        """Datagrams are asked for again."""
        for number in numbers:
            self._step = STEP
            for period in (self._period, self._before):
                if period is not None and number - period.first >= 0:
                    period.lost += period.lost < period.datagrams
                    break

    def _judge(self, period: _Period) -> None:
        """If about as much comes at half the rate, it was too high; if half as much comes, the link loses that at any
        rate, and the rate is as it was."""
        if period.share > OUTAGE:
            return
        tried, self._tried = self._tried, 0.0
        if tried and period.came < ABOUT * tried:
            self.rate = min(2 * self.rate, MOST_RATE)
            self._usual = period.share
        elif period.share > max(MUCH, 1.5 * self._usual):
            self._tried = period.came
            self.rate = max(min(self.rate, period.sent / period.seconds) / 2, LEAST_RATE)
        else:
            self._usual = min(self._usual, period.share)
            return
        self._period = self._before = None


@dataclass(slots=True)
class _Member:
    """A node that tells how much of our log it has seen."""

    place: int
    """Bytes of our log that it has seen."""
    began: int
    """Bytes that it had seen when speeds were looked at last."""
    heard: float
    slow_since: float = 0.0
    """Since when it has been slow; 0: it is not."""


class SeenWindow:
    """Bytes of our log that not all members have seen."""

    def __init__(self, most: int, timeout: float) -> None:
        """`most`: bytes; `timeout`: seconds after which a member that is silent is not counted."""
        self._most = most
        self._timeout = timeout
        self._members: dict[bytes, _Member] = {}
        self._serials: list[int] = []
        self._places: list[int] = []
        self._said = 0
        self._usual = 0.0
        """Speed of the members in the middle, bytes a second: the last one, or somewhat less than one before."""
        self._judged = 0.0

    def note_said(self, serial: int, size: int) -> None:
        """A block of ours has left."""
        self._said += size
        if not self._places or self._said - self._places[-1] >= STEP_BYTES:
            self._serials.append(serial)
            self._places.append(self._said)
            old = bisect_right(self._places, self._said - 2 * self._most)
            if old > len(self._places) // 2:
                del self._serials[:old], self._places[:old]

    def note_seen(self, member: bytes, serial: int, now: float) -> None:
        """A member has seen all of our log up to a serial; 0: it does not say, and has seen what it had. One that has
        come late is none before it has most of what is said."""
        known = self._members.get(member)
        place = self._place(serial) if serial else 0
        if known is not None:
            known.heard, known.place = now, max(known.place, place)
        elif serial and self._said - place <= self._most // 2 and len(self._members) < MEMBERS_MOST:
            self._members[member] = _Member(place, place, now)

    def forget(self, member: bytes) -> None:
        """A node has left."""
        self._members.pop(member, None)

    def room(self, now: float) -> int:
        """Bytes that there is room for; below 0: it is full."""
        counted = [each.place for each in self._members.values() if self._counts(each, now)]
        return self._most - (self._said - min(counted, default=self._said))

    def judge(self, now: float) -> None:
        """Find out who is slow, if it is time. When one that is slow has filled the window all others wait for it, so
        that their speed is its own: what they had before counts, and fades."""
        seconds = now - self._judged
        if seconds < SLOW_SECONDS / 2:
            return
        self._judged = now
        speeds = {name: (each.place - each.began) / seconds for name, each in self._members.items()}
        self._usual = max(median(speeds.values()) if speeds else 0.0, FADING * self._usual)
        for name, each in self._members.items():
            is_slow = each.place < self._said - STEP_BYTES and speeds[name] < SLOW_SHARE * self._usual
            if is_slow:
                each.slow_since = each.slow_since or now
            elif each.place > self._said - self._most // 2:  # else it only has less to catch up with
                each.slow_since = 0.0
            each.began = each.place

    def _counts(self, member: _Member, now: float) -> bool:
        is_slow = member.slow_since and now - member.slow_since >= SLOW_SECONDS / 2
        return not is_slow and now - member.heard <= self._timeout

    def _place(self, serial: int) -> int:
        at = bisect_right(self._serials, serial)
        if not self._serials or (at == len(self._serials) and serial > self._serials[-1]):
            return self._said
        return self._places[at - 1] if at else 0


def _place(level: int) -> int:
    return min(max(level or USUAL_LEVEL, 1), LEVELS) - 1
