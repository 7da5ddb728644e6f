"""Announcements of a node: who it is, and what it holds. Pure.

Its own logs stand in each, those of directed messages as long as something in them lives; those of others in turn, as
many ranges as there is room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from jbi_pubsub.network.bodies import LogRanges, NodeAnnouncement
from jbi_pubsub.network.log import LogId, OriginLog


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

    def next(self, at: int, logs: Mapping[LogId, OriginLog], losses: dict[bytes, float]) -> NodeAnnouncement:
        """The next announcement on a network."""
        own = [
            LogRanges(*log_id, tuple(log.held), log.floor)
            for log_id, log in logs.items()
            if log_id.origin == self._me and (log_id.stream == 0 or log.held)
        ]
        others = [
            LogRanges(*log_id, tuple(log.held)) for log_id, log in logs.items()
            if log_id.origin != self._me and log.held
        ]  # fmt: skip
        self._number += 1
        held = (*own, *self._rotated(at, others))
        return msgspec.structs.replace(self._first, number=self._number, held=held, losses=losses)

    def _rotated(self, at: int, others: Sequence[LogRanges]) -> list[LogRanges]:
        """As many as there is room for, others each time."""
        found: list[LogRanges] = []
        room = self._ranges
        for turn in range(len(others)):
            each = others[(self._rotations[at] + turn) % len(others)]
            if room <= 0:
                self._rotations[at] += turn
                break
            found.append(msgspec.structs.replace(each, ranges=each.ranges[:room]))
            room -= len(each.ranges)
        return found
