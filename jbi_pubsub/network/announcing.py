"""Announcements of a node: who it is, and what it holds. Pure.

Its own logs stand in each; those of others in turn, as many ranges as there is room for, where their origins are not
heard themselves: those say it. The end of a burst is announced shortly, and again and again where
something was lost lately; elsewhere as long as that takes a small part of what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from jbi_pubsub.network.bodies import LogRanges, NodeAnnouncement
from jbi_pubsub.network.log import LogBook, LogId
from jbi_pubsub.network.peers import Peers

OWN_MOST: Final = 200
"""Logs of our own that an announcement tells of: that for all, and the first ones of those to one node."""

TOLD: Final = 5
"""Announcements in which something new stands."""
TOLD_MOST: Final = 200


class NodeAnnouncer:
    """Announcements on all networks. One thread at a time."""

    def __init__(self, me: bytes, first: NodeAnnouncement, ranges: int, networks: int) -> None:
        """`first`: what stays the same in all of them; `ranges`: of the logs of others, at most."""
        self._me = me
        self._first = first
        self._ranges = ranges
        self._number = 0
        self._rotations = [0] * networks
        """Of the logs of others, the first one that stands in the next announcement, by network."""
        self._settled: dict[bytes, tuple[int, int]] = {}
        """By sender up to where its log is settled, and the announcement in which that stood first."""

    def next(
        self, at: int, logs: LogBook, peers: Peers, losses: dict[bytes, float], *, is_end: bool = False
    ) -> NodeAnnouncement:
        """The next announcement on a network; `is_end`: that of a burst, which tells of nobody else."""
        own: list[LogId] = []
        others: list[LogId] = []
        for log_id, log in logs.items():
            is_own = log_id[:2] == (self._me, self._first.epoch)
            if log.held or (is_own and not log_id.stream):
                if is_own:
                    own.append(log_id)
                elif not peers.is_heard(log_id.origin, log_id.epoch, at):
                    others.append(log_id)
        self._number += 1
        held = (
            *(self._ranges_of(logs, each, self._ranges, is_own=True) for each in own[:OWN_MOST]),
            *self._rotated(at, logs, others),
        )
        if is_end:
            return msgspec.structs.replace(self._first, number=self._number, held=held)
        return msgspec.structs.replace(
            self._first, number=self._number, held=held, losses=losses, settled=self._news(logs)
        )  # fmt: skip

    def _ranges_of(self, logs: LogBook, log_id: LogId, most: int, *, is_own: bool = False) -> LogRanges:
        log = logs.get(log_id)
        assert log is not None
        return LogRanges(*log_id, tuple(islice(log.held, most)), log.floor if is_own else 0)

    def _rotated(self, at: int, logs: LogBook, others: Sequence[LogId]) -> list[LogRanges]:
        """As many as there is room for, others each time."""
        found: list[LogRanges] = []
        room = self._ranges
        for turn in range(len(others)):
            if room <= 0:
                self._rotations[at] = (self._rotations[at] + turn) % len(others)
                break
            found.append(self._ranges_of(logs, others[(self._rotations[at] + turn) % len(others)], room))
            room -= len(found[-1].ranges)
        return found

    def _news(self, logs: LogBook) -> dict[bytes, int]:
        """Up to where the logs of others are settled, where that is new; told some times, as announcements are lost."""
        before, self._settled = self._settled, {}
        for log_id, log in logs.items():
            if log_id.origin != self._me and not log_id.stream and not log.is_gone:
                sender, settled = log_id.origin[:4], log.settled
                known = before.get(sender, (-1, 0))
                self._settled[sender] = known if known[0] == settled else (settled, self._number)
        news = sorted((since, sender) for sender, (_, since) in self._settled.items() if self._number - since < TOLD)
        return {sender: self._settled[sender][0] for _, sender in news[:TOLD_MOST] if self._settled[sender][0]}
