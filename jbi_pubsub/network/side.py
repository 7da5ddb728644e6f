"""A network as a node sees it: its terms, its recovery, what waits to go there, and the numbers under which it goes.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from jbi_pubsub.core.pacing import RecentBytes
from jbi_pubsub.network.datagram import sent_anew
from jbi_pubsub.network.flow import REPAIRS_MOST, FoundRate, LinkBurst, SendingQueues
from jbi_pubsub.network.log import LogId
from jbi_pubsub.network.recovery import LogRecovery

NUMBER_BITS: Final = 32
"""Bits of a datagram's number that are of one start of its sender; above them is the epoch. More datagrams than these
have room for take those of the next epochs: none will begin in these seconds."""
LACKED_SECONDS: Final = 30.0
"""For so long a network loses where it has lost something."""
END_SHARE: Final = 0.06
"""Part of what is sent that announcements of the ends of bursts are, at most, where nothing is lost."""
SILENT_ROOM: Final = 0.25
"""Seconds until there may be room, where nothing is known of the rate."""
QUEUE_SECONDS: Final = 10.0
"""Time in which what is published is to go: more waits at its publisher, and not here, where it grows old."""
QUEUE_LEAST: Final = 1 << 18
"""Bytes that may wait where no rate is set, and nothing has waited for so long."""
LINK_SECONDS: Final = 1.0
"""Time in which what waits in a link is to leave it: nothing overtakes it there."""
LINK_LEAST: Final = 1 << 14


class SideTerms(NamedTuple):
    """Terms of a network."""

    rate: float = 0.0
    """Bytes a second; 0: it is found."""
    is_lossless: bool = False
    """All that is sent comes: nothing is asked for but what is announced."""
    reduced_relay: bool = False
    """Publications alone are carried on from it and to it; neither questions nor announcements are, nor repairs."""
    burst_seconds: float = 0.0
    """Seconds for which what is to go is gathered."""


class NetworkSide:
    """A network. One thread at a time."""

    def __init__(self, me: bytes, epoch: int, recovery: LogRecovery, terms: SideTerms) -> None:
        """`epoch`: of our start, which stands in the numbers, so that they never come again."""
        self._sender = me[:4]
        self.recovery = recovery
        self.terms = terms
        self.queues = SendingQueues()
        self.burst = LinkBurst(terms.burst_seconds)
        self.number = epoch << NUMBER_BITS
        self.announce_at = 0.0
        self.lacked_at = -1.0
        """When somebody asked here last for what is lost, or we did; at first when it began."""
        self._ended_at = 0
        """Bytes that had been sent when the end of a burst was announced last."""
        self.found = None if terms.rate else FoundRate()
        self._sent = 0
        """Bytes of all that was sent."""
        self._left, self._left_link = RecentBytes(QUEUE_SECONDS), RecentBytes(LINK_SECONDS)
        """Bytes that have left the link."""
        self._busy = (-inf, -inf)
        """Since when something has waited to go, and when that was seen last."""
        self.expired = 0
        """Datagrams that did not go in time."""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.found.rate if self.found is not None else self.terms.rate

    def repair(self, blocks: Iterable[tuple[LogId, int, int]]) -> None:
        """Send these again: log, serial and importance."""
        for log_id, serial, level in blocks:
            if self.queues.repairs < REPAIRS_MOST:
                self.queues.repair(log_id, serial, level)
            else:
                self.recovery.note_dropped(log_id, serial)

    def sent(
        self, data: bytes, now: float, log_id: LogId | None = None, serial: int = 0, *,
        expires: float = inf, is_repair: bool = False, is_relayed: bool = False,
    ) -> bytes:  # fmt: skip
        """A packed datagram as it goes. `log_id` and `serial`: those of a block of a log that is known here;
        `is_relayed`: it is from another network, and more is, about."""
        self.number += 1
        if log_id is not None and serial:
            if not is_repair:
                self.recovery.note_own(log_id, serial, now)
            self.recovery.note_sent(log_id, serial, self.number, now, is_repair=is_repair)
        self._sent += len(data)
        if self.found is not None and (is_repair or is_relayed or self.queues):
            self.found.note(self.number, len(data), now, self.recovery.delay)
        left = None if expires == inf else max(1, int((expires - now) * 1000))
        return sent_anew(data, self._sender, self.number, left, is_repair=is_repair)

    def room_in(self, most: int) -> float:
        """Seconds until no more bytes wait than `most`."""
        over = self.queues.waiting - most
        return 0.0 if over <= 0 else min(max(over / self.rate, 0.001), SILENT_ROOM)

    def turn_in(self, level: int, now: float) -> float:
        """Seconds until something new of that importance would go within QUEUE_SECONDS."""
        since, seen = self._busy
        is_known = seen - since >= QUEUE_SECONDS and now - seen < LINK_SECONDS
        least = LINK_LEAST if is_known else QUEUE_LEAST
        most = int(QUEUE_SECONDS * self.terms.rate) or max(self._left.size(now), least)
        over = self.queues.before(level) - most
        return 0.0 if over <= 0 else min(max(over * QUEUE_SECONDS / most, 0.001), SILENT_ROOM)

    def link_room(self, waiting: int, unsent: int, now: float) -> int:
        """Bytes that the link is to have beside those that are `waiting` there: no more than what has left it lately.
        `unsent`: with those that it has not taken."""
        since, seen = self._busy
        self._busy = (since if now - seen < LINK_SECONDS else now, now)
        self._left.note(self._sent - unsent, now)
        self._left_link.note(self._sent - unsent, now)
        return max(self._left_link.size(now), LINK_LEAST) - waiting

    def status(self) -> dict[str, int]:
        """Number of nodes whose datagrams come, and bytes that are new and wait to go."""
        return {"neighbours": len(self.recovery.senders), "waiting": self.queues.waiting}

    def may_end(self, size: int, now: float) -> bool:
        """Whether the end of a burst may be announced, in so many bytes: where something is lost, or is directed to one
        node, or as a small part of what was sent since the last time."""
        is_usual = now - self.lacked_at > LACKED_SECONDS and not self.recovery.is_directed
        if is_usual and END_SHARE * (self._sent - self._ended_at) < size:
            return False
        self._ended_at = self._sent
        return True

    def note_lost(self, numbers: Iterable[int]) -> None:
        """Datagrams of ours have been lost: those that are asked for again."""
        if self.found is not None:
            self.found.note_lost(numbers)
