"""Logs of nodes, as far as they are known here. Pure.

All that a node says reliably are blocks with consecutive serials of its log. What others cause here is bounded: logs of
each origin and of all together, with a small share for all origins that have not announced themselves; ranges of a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.network.datagram import Datagram

SERIAL_MOST: Final = 1 << 40
"""Serials of one start of a node."""
RANGES_MOST: Final = 10_000
"""Ranges of a set of serials: beyond them the lowest gap is closed."""
LOGS_MOST: Final = 10_000
LOGS_OF_ORIGIN: Final = 1_000
LOGS_OF_UNKNOWN: Final = 200
"""Logs of all origins together that have not announced themselves."""


class LogId(NamedTuple):
    """A log: the node that writes it, the epoch of its start, and the stream (0: for all)."""

    origin: bytes
    epoch: int
    stream: int = 0


@dataclass(slots=True)
class OriginLog:
    """A log, as far as it is known here, by whatever network it comes."""

    seen: RangeSet = field(default_factory=RangeSet)
    """Serials that have come, or need not come any more."""
    held: RangeSet = field(default_factory=RangeSet)
    """Serials that can be given."""
    given_up: RangeSet = field(default_factory=RangeSet)
    """Serials that have not come, and that nobody gave when they were asked for."""
    floor: int = 1
    """All before it is over."""
    gone_at: float = inf
    """When its origin had left, or was heard last though it has not announced itself since."""
    mentioned: float = 0.0
    """When anybody has said something of it last."""
    came_at: int = -1
    """Network that it came by first; -1: none."""
    is_far: bool = False
    """Its blocks have gone over as many nodes as they may: no other network gets or hears of them."""

    def goes_on(self, at: int) -> bool:
        """Whether a network is another one than that by which it came."""
        return self.came_at not in (-1, at)

    @property
    def is_gone(self) -> bool:
        """Whether its origin has left."""
        return self.gone_at != inf

    @property
    def settled(self) -> int:
        """The serial up to which nothing more comes, unless somebody is found who holds what was given up."""
        at = 0
        while True:
            end = next(self.seen.gaps(at + 1, SERIAL_MOST), (SERIAL_MOST + 1, 0))[0] - 1
            beyond = next(self.given_up.within(end + 1, end + 1), None)
            if beyond is None:
                return end
            at = next(self.given_up.gaps(end + 1, SERIAL_MOST), (SERIAL_MOST + 1, 0))[0] - 1

    def raise_floor(self, floor: int) -> None:
        """End all before it: nobody asks for it, or gives it."""
        if floor > self.floor:
            self.floor = floor
            self.end(1, floor - 1)

    def end(self, first: int, last: int) -> None:
        """These are over."""
        self.seen.add_range(first, last)
        self.held.remove_range(first, last)
        self.given_up.remove_range(first, last)

    def give_up_but(self, announced: RangeSet) -> None:
        """Nobody gives what lies between these and those that have come."""
        for low, high in self.seen:
            announced.add_range(low, high)
        for low, high in announced.gaps(self.floor, announced.top):
            self.given_up.add_range(low, high)

    def add(self, serial: int) -> bool:
        """A block has come; whether it is new."""
        if serial < self.floor or not self.seen.add(serial):
            return False
        self.held.add(serial)
        if self.given_up:
            self.given_up.remove_range(serial, serial)
        if len(self.seen) > RANGES_MOST:
            self.seen.add_range(*next(self.seen.gaps(1, SERIAL_MOST)))
        return True

    def take_back(self, serial: int) -> None:
        """A block that has come was not what it said."""
        self.seen.remove_range(serial, serial)
        self.held.remove_range(serial, serial)


class LogBook(dict[LogId, OriginLog]):
    """All logs that are known here. They come by `open`, and go by `forget_idle`."""

    def __init__(self, me: bytes, epoch: int, known: Container[bytes], *, is_relay: bool = False) -> None:
        """`epoch`: of our start; `known`: origins that have announced themselves, and are there; `is_relay`: we are on
        several networks."""
        super().__init__()
        self._me, self._epoch, self._is_relay = me, epoch, is_relay
        self._known = known
        self._of_origin: Counter[bytes] = Counter()
        self._unknown: set[LogId] = set()

    def concerns_us(self, log_id: LogId) -> bool:
        """Whether we hear a log, or pass it on: not what is directed to another one on our only network."""
        is_ours = not log_id.stream or log_id.origin == self._me or log_id.stream == stream_to(self._me)
        return is_ours or self._is_relay

    def is_told(self, log_id: LogId) -> bool:
        """Whether others can tell of a log: it concerns us, and is none of this start of ours, which we know best."""
        return self.concerns_us(log_id) and log_id[:2] != (self._me, self._epoch)

    def is_known(self, origin: bytes) -> bool:
        """Whether a node has announced itself, and is there; we ourselves are."""
        return origin == self._me or origin in self._known

    def has(self, origin: bytes) -> bool:
        """Whether there is a log of a node."""
        return self._of_origin[origin] > 0

    def open(self, log_id: LogId) -> OriginLog:
        """A log. Raises ProtocolError: there is no room for another one."""
        log = self.get(log_id)
        if log is not None:
            return log
        if log_id[:2] == (self._me, self._epoch):
            log = self[log_id] = OriginLog()
            return log
        is_known = self.is_known(log_id.origin)
        if not is_known and len(self._unknown) >= LOGS_OF_UNKNOWN:
            self._unknown = {each for each in self._unknown if not self.is_known(each.origin)}
        if (
            len(self) >= LOGS_MOST
            or self._of_origin[log_id.origin] >= LOGS_OF_ORIGIN
            or (not is_known and len(self._unknown) >= LOGS_OF_UNKNOWN)
        ):
            raise ProtocolError("more logs than there is room for")
        if not is_known:
            self._unknown.add(log_id)
        self._of_origin[log_id.origin] += 1
        log = self[log_id] = OriginLog()
        return log

    def mark_gone(self, now: float, epoch_of: Callable[[bytes], int]) -> None:
        """Note which origins have left, or been started anew. `epoch_of`: number of a node's start; 0: it has left."""
        for log_id, log in self.items():
            epoch = self._epoch if log_id.origin == self._me else epoch_of(log_id.origin)
            if epoch and log_id.epoch >= epoch:
                log.gone_at = inf
            elif not log.is_gone:
                log.gone_at = now

    def forget_idle(self, before: float, there: Iterable[bytes]) -> list[LogId]:
        """Forget those of which nothing lives, whose origin or addressee has left, and which nobody has mentioned
        since. `there`: other nodes that are heard."""
        streams = {0, stream_to(self._me), *map(stream_to, there)}
        idle = [
            log_id
            for log_id, log in self.items()
            if (log.is_gone or log_id.stream not in streams) and not log.held and log.mentioned <= before
        ]
        for log_id in idle:
            del self[log_id]
            if log_id[:2] == (self._me, self._epoch):
                continue  # ours are not counted
            self._unknown.discard(log_id)
            self._of_origin[log_id.origin] -= 1
            if not self._of_origin[log_id.origin]:
                del self._of_origin[log_id.origin]
        return idle


def log_of(datagram: Datagram) -> LogId:
    """Log that a block is of, if it has a serial."""
    return LogId(datagram.origin, datagram.footer.epoch, datagram.footer.stream)


def stream_to(node: bytes) -> int:
    """Stream of what is directed to a node."""
    return int.from_bytes(node[:8])
