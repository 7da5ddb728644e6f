"""Announcements of a node: who it is, and what it holds. Pure.

Its own logs stand in each, and those of others where their origins are not heard themselves: those say it. Of either
as many ranges as there is room for, others each time, and of its own logs always the end. The end of a burst is
announced shortly, and again and again where something was lost lately; elsewhere as long as that takes a small part of
what is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from jbi_pubsub.core.intervals import Range
from jbi_pubsub.network.bodies import LogRanges, NodeAnnouncement
from jbi_pubsub.network.flow import OutgoingBlock
from jbi_pubsub.network.log import SERIAL_MOST, LogBook, LogId, OriginLog
from jbi_pubsub.network.peers import Peers

OWN_MOST: Final = 200
"""Logs of our own of which each announcement has the end: that for all, and the first ones of those to one node."""
RANGES_LEAST: Final = 2
"""Ranges in an announcement, at least: the first of them is the last one of the announcement before."""
TOLD: Final = 5
"""Announcements in which something new stands."""
TOLD_MOST: Final = 200


class NodeAnnouncer:
    """Announcements on all networks. One thread at a time."""

    def __init__(self, me: bytes, first: NodeAnnouncement, ranges: int, networks: int) -> None:
        """`first`: what stays the same in all of them; `ranges`: of our own logs, and of those of others, at most."""
        self._me = me
        self._first = first
        self._ranges = max(ranges, RANGES_LEAST)
        self._number = 0
        self._next = {(at, is_own): (0, 1) for at in range(networks) for is_own in (False, True)}
        """The first one of the logs of others, and of our own, in the next announcement on a network, and a serial."""
        self._before: dict[LogId, int] = {}
        """The first serial of a log that has not gone to that network yet."""
        self._settled: dict[bytes, tuple[int, int]] = {}
        """By sender up to where its log is settled, and the announcement in which that stood first."""

    def next(
        self, at: int, logs: LogBook, peers: Peers, losses: dict[bytes, float], waiting: Iterable[OutgoingBlock] = (),
        *, is_end: bool = False,
    ) -> NodeAnnouncement:  # fmt: skip
        """The next announcement on a network; `waiting`: what goes there yet, and is not told before; `is_end`: that of
        a burst, which tells of nobody else."""
        self._before = {}
        for each in waiting:
            if each.log_id is not None and each.serial:
                self._before[each.log_id] = min(each.serial, self._before.get(each.log_id, SERIAL_MOST))
        own: list[LogId] = []
        others: list[LogId] = []
        for log_id, log in logs.items():
            is_own = log_id[:2] == (self._me, self._first.epoch)
            if log.held or (is_own and not log_id.stream):
                if is_own:
                    own.append(log_id)
                elif not peers.is_heard(log_id.origin, log_id.epoch, at) and not (log.is_far and log.goes_on(at)):
                    others.append(log_id)
        self._number += 1
        held = (*self._of_own(at, logs, own), *self._in_turn(at, logs, others, self._ranges))
        if is_end:
            return msgspec.structs.replace(self._first, number=self._number, held=held)
        return msgspec.structs.replace(
            self._first, number=self._number, held=held, losses=losses, settled=self._news(logs)
        )  # fmt: skip

    def _of_own(self, at: int, logs: LogBook, log_ids: Sequence[LogId]) -> list[LogRanges]:
        """Ranges of our logs, in turn where there are many; then the last range of each stands beside."""
        held = [(each, logs.open(each)) for each in log_ids]
        if len(held) <= OWN_MOST and sum(len(log.held) for _, log in held) <= self._ranges:
            return self._in_turn(at, logs, log_ids, self._ranges, is_own=True)
        ends = [_of_own(each, log, tuple(self._told(each, log))[-1:]) for each, log in held[:OWN_MOST]]
        return ends + self._in_turn(at, logs, log_ids, max(self._ranges - len(ends), RANGES_LEAST), is_own=True)

    def _in_turn(
        self, at: int, logs: LogBook, log_ids: Sequence[LogId], room: int, *, is_own: bool = False
    ) -> list[LogRanges]:
        """As many ranges as there is room for, others each time. Those of a log go on with the last one that was told,
        as what lies between two of an origin's ranges is over."""
        found: list[LogRanges] = []
        begin, serial = self._next[at, is_own]
        self._next[at, is_own] = (begin, 1)
        for place in range(begin, begin + len(log_ids)):
            log_id = log_ids[place % len(log_ids)]
            log = logs.open(log_id)
            ranges = tuple(islice(self._told(log_id, log, serial), room))
            found.append(_of_own(log_id, log, ranges) if is_own else LogRanges(*log_id, ranges))
            room, serial = room - len(ranges), 1
            if room <= 0:
                self._next[at, is_own] = (place % len(log_ids), ranges[-1][0])
                break
        return found

    def _told(self, log_id: LogId, log: OriginLog, first: int = 1) -> Iterator[Range]:
        return log.held.within(first, self._before.get(log_id, SERIAL_MOST) - 1)

    def _news(self, logs: LogBook) -> dict[bytes, int]:
        """Up to where the logs of others are settled, where that is new; told some times, as announcements are lost."""
        before, self._settled = self._settled, {}
        for log_id, log in logs.items():
            if log_id.origin != self._me and not log_id.stream and not log.is_gone:
                sender, settled = log_id.origin[:4], log.settled
                known = before.get(sender, (-1, 0))
                self._settled[sender] = known if known[0] == settled else (settled, self._number)
        news = sorted(sender for sender, (at, since) in self._settled.items() if at and self._number - since < TOLD)
        begin = self._number * TOLD_MOST % max(len(news), 1)
        return {sender: self._settled[sender][0] for sender in (news[begin:] + news[:begin])[:TOLD_MOST]}


def _of_own(log_id: LogId, log: OriginLog, ranges: tuple[Range, ...]) -> LogRanges:
    """Ranges of a log of ours. Behind its last one all that was said is over."""
    is_end = not log.held or (bool(ranges) and ranges[-1][1] == log.held.top)
    return LogRanges(*log_id, ranges, log.floor, log.seen.top if is_end else 0)
