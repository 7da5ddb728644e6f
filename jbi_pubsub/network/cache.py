"""Blocks in memory, to be given again. Pure.

Bounded by bytes; the oldest go first, and what has expired goes before. Whoever gives a block up says so to its log.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from jbi_pubsub.network.log import LogId

OVERHEAD: Final = 300
"""Bytes that a block takes beside its own."""
EXPIRING_LEAST: Final = 1_000


class HeldBlock(NamedTuple):
    """A block as it travels, but for hops, sender, number and expiration, which are of each sending."""

    data: bytes
    expires: float
    """Monotonic seconds."""
    level: int = 0
    """Importance of its message; 0: it does not say."""


class BlockCache:
    """Blocks in memory. One thread at a time. Where there is no room those go whose origin has most here."""

    def __init__(self, most: int) -> None:
        """`most`: bytes."""
        self._most = most
        self._blocks: dict[bytes, OrderedDict[tuple[LogId, int], HeldBlock]] = {}
        self._sizes: dict[bytes, int] = {}
        self._expiring: list[tuple[float, LogId, int]] = []
        self._count = 0
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def get(self, log_id: LogId, serial: int) -> HeldBlock | None:
        """A block, or None."""
        blocks = self._blocks.get(log_id.origin)
        return blocks.get((log_id, serial)) if blocks is not None else None

    def put(self, log_id: LogId, serial: int, block: HeldBlock) -> Iterator[tuple[LogId, int, HeldBlock]]:
        """Keep one more; those that are given up for it."""
        self.remove(log_id, serial)
        self._blocks.setdefault(log_id.origin, OrderedDict())[log_id, serial] = block
        self._count_in(log_id.origin, len(block.data) + OVERHEAD, 1)
        heapq.heappush(self._expiring, (block.expires, log_id, serial))
        if len(self._expiring) > 2 * self._count + EXPIRING_LEAST:
            self._expiring = [
                (each.expires, *key) for blocks in self._blocks.values() for key, each in blocks.items()
            ]  # fmt: skip
            heapq.heapify(self._expiring)
        while self.size > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            (gone, number), oldest = next(iter(self._blocks[largest].items()))
            self.remove(gone, number)
            yield gone, number, oldest

    def expire(self, now: float) -> Iterator[tuple[LogId, int]]:
        """Those that are over by now."""
        while self._expiring and self._expiring[0][0] <= now:
            _, log_id, serial = heapq.heappop(self._expiring)
            held = self.get(log_id, serial)
            if held is not None and held.expires <= now and self.remove(log_id, serial):
                yield log_id, serial

    def remove(self, log_id: LogId, serial: int) -> bool:
        """Give one up; whether it was there."""
        blocks = self._blocks.get(log_id.origin)
        block = blocks.pop((log_id, serial), None) if blocks is not None else None
        if block is not None:
            self._count_in(log_id.origin, -len(block.data) - OVERHEAD, -1)
        return block is not None

    def _count_in(self, origin: bytes, size: int, count: int) -> None:
        self.size += size
        self._count += count
        self._sizes[origin] = self._sizes.get(origin, 0) + size
        if not self._sizes[origin]:
            del self._sizes[origin], self._blocks[origin]
