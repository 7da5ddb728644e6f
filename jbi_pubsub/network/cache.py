"""Blocks that a node can give: those that it has said, and those that it has got. Pure.

Bounded by bytes; the oldest go first, and what has expired goes before. Whoever gives a block up says so to its log.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from jbi_pubsub.network.log import LogId


class HeldBlock(NamedTuple):
    """A block as it travels, but for hops, sender, number and expiration, which are of each sending."""

    data: bytes
    expires: float
    """Monotonic seconds."""


class BlockCache:
    """Blocks in memory. One thread at a time."""

    def __init__(self, most: int) -> None:
        """`most`: bytes."""
        self._most = most
        self._blocks: OrderedDict[tuple[LogId, int], HeldBlock] = OrderedDict()
        self._expiring: list[tuple[float, LogId, int]] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, log_id: LogId, serial: int) -> HeldBlock | None:
        """A block, or None."""
        return self._blocks.get((log_id, serial))

    def put(self, log_id: LogId, serial: int, block: HeldBlock) -> Iterator[tuple[LogId, int]]:
        """Keep one more; those that are given up for it."""
        self._blocks[log_id, serial] = block
        self.size += len(block.data)
        heapq.heappush(self._expiring, (block.expires, log_id, serial))
        while self.size > self._most:
            (gone, number), old = self._blocks.popitem(last=False)
            self.size -= len(old.data)
            yield gone, number

    def expire(self, now: float) -> Iterator[tuple[LogId, int]]:
        """Those that are over by now."""
        while self._expiring and self._expiring[0][0] <= now:
            _, log_id, serial = heapq.heappop(self._expiring)
            if self.remove(log_id, serial):
                yield log_id, serial

    def remove(self, log_id: LogId, serial: int) -> bool:
        """Give one up; whether it was there."""
        block = self._blocks.pop((log_id, serial), None)
        self.size -= len(block.data) if block is not None else 0
        return block is not None
