"""Passing messages on from one network to the others. Pure.

Rules:
- A message goes on to a network when it is complete for the first time here, and none of its blocks was heard there.
- Where another node has passed messages on lately, it waits for a random time first, drawn once for a burst on a
  network, so that order stays. Who hears another node pass on there what it has heard elsewhere too waits for that: of
  nodes side by side one does it, and as it hears no other one it waits no more.
- Its blocks are the same bytes, but for hops, sender and number; it goes over as many nodes as its sender allows.
- Of a node's announcements that wait for a slow network the first goes in its turn, and of the others the last alone.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, passed_on
from jbi_pubsub.network.flow import OutgoingBlock
from jbi_pubsub.network.log import log_of
from jbi_pubsub.network.message import NodeMessage

KEPT_BYTES: Final = 64 << 20
"""Bytes of blocks whose message is not complete, or waits to go on."""
KEPT_MOST: Final = 20_000
"""Messages of which it is known where they were heard."""
OVERHEAD: Final = 300
"""Bytes that a block takes beside its data."""
OTHERS_SECONDS: Final = 30.0
"""Another node that passed messages on so long ago may do so again."""
BURST_SECONDS: Final = 0.05
"""Messages that come this close to each other go on after the same delay."""


_Key = tuple[bytes, int, bytes]
"""Origin of a message, its start, and hash."""


@dataclass(slots=True)
class _Passing:
    """Blocks of a message, and the networks where it was heard."""

    heard: int = 0
    """Bit mask of networks."""
    blocks: dict[int, OutgoingBlock] = field(default_factory=dict)
    """As they go on; without bytes one that has gone over as many nodes as it may."""
    size: int = 0
    waits: int = 0
    """Networks that it is to go on to yet."""
    left: dict[int, list[int]] = field(default_factory=dict)
    """Blocks that have not gone on, by network, falling."""


class Relay:
    """Messages between networks. One thread at a time."""

    def __init__(self, networks: int) -> None:
        """`networks`: their number; of one nothing is kept."""
        self._networks = networks
        self._messages: OrderedDict[_Key, _Passing] = OrderedDict()
        self._size = 0
        self._planned: list[tuple[float, int, int, _Key]] = []
        self._count = 0
        self._bursts: list[tuple[float, float]] = [(-inf, 0.0)] * networks
        """When the last message was planned on a network, and the delay of its burst."""
        self._queues: list[deque[_Key]] = [deque() for _ in range(networks)]
        """Messages that go on now, by network."""
        self._quiet_until = [-inf] * networks
        """Until then another node passes messages on there."""
        self._announced: Cache[tuple[int, bytes], tuple[_Passing, bool]] = Cache(KEPT_MOST)
        """By network and node the announcement that came last, and whether one before it waited then."""

    def hear(self, at: int, datagram: Datagram, data: bytes, now: float) -> None:
        """A block, with its bytes, was heard on a network."""
        if self._networks == 1 or datagram.kind == DatagramKind.REQUEST:
            return
        key = _key_of(datagram)
        passing = self._messages.get(key)
        if passing is None:
            passing = self._messages[key] = _Passing()
        if not datagram.is_repair:
            passing.heard |= 1 << at
        if datagram.block not in passing.blocks:
            expires = now + datagram.footer.expiration / 1000 if datagram.mode != DatagramMode.UNRELIABLE else inf
            block = OutgoingBlock(datagram, expires, log_of(datagram), datagram.footer.serial, passed_on(data) or b"")
            passing.blocks[datagram.block] = block
            passing.size += len(datagram.data) + OVERHEAD
            self._size += len(datagram.data) + OVERHEAD
        while (self._size > KEPT_BYTES or len(self._messages) > KEPT_MOST) and len(self._messages) > 1:
            self._forget(next(iter(self._messages)))

    def delay_on(self, at: int, now: float, most: float, uniform: Callable[[float, float], float]) -> float:
        """Seconds that a message waits before it goes on to a network; 0 where nobody else does that."""
        if now - self._quiet_until[at] > OTHERS_SECONDS:
            return 0.0
        when, delay = self._bursts[at]
        if now - when > BURST_SECONDS + most:
            delay = uniform(0, most)
        self._bursts[at] = (now, delay)
        return delay

    def yield_to_other(self, at: int, datagram: Datagram, until: float) -> None:
        """Another node passes a message on there: if it stands beside us, as we heard that elsewhere too, ours wait."""
        passing = self._messages.get(_key_of(datagram))
        if passing is None or not passing.heard & ~(1 << at):
            return
        self._quiet_until[at] = until
        while self._queues[at]:
            self._count += 1
            heapq.heappush(self._planned, (until, self._count, at, self._queues[at].popleft()))

    def plan(self, at: int, message: NodeMessage, when: float) -> None:
        """Have a message go on to a network at a time, unless it was heard there, or has come far enough."""
        key = (message.origin, message.epoch, message.hash)
        passing = self._messages.get(key)
        if len(self._planned) > KEPT_MOST:
            return
        if passing is None or passing.heard >> at & 1:
            return
        if not next(iter(passing.blocks.values())).packed:
            return
        if message.kind == DatagramKind.ANNOUNCEMENT:
            before, follows = self._announced.get((at, message.origin), (passing, False))
            before.heard |= (follows and before.waits > 0) << at
            self._announced[at, message.origin] = passing, before.waits > 0
        passing.waits += 1
        self._count += 1
        heapq.heappush(self._planned, (when, self._count, at, key))

    def forget(self, message: NodeMessage) -> None:
        """Drop a message that has come to whom it was for."""
        self._forget((message.origin, message.epoch, message.hash))

    def due(self) -> float:
        """When the next one goes on."""
        return self._planned[0][0] if self._planned else inf

    def tick(self, now: float) -> None:
        """Have those go on whose time has come."""
        while self._planned and self._planned[0][0] <= now:
            _, _, at, key = heapq.heappop(self._planned)
            if now < self._quiet_until[at]:
                self._count += 1
                heapq.heappush(self._planned, (self._quiet_until[at], self._count, at, key))
            elif len(self._queues[at]) < KEPT_MOST:
                self._queues[at].append(key)

    def has_next(self, at: int) -> bool:
        """Whether something goes on to a network now, perhaps."""
        return bool(self._queues[at])

    def waiting(self, at: int) -> Iterator[OutgoingBlock]:
        """Blocks that go on to a network, now or later."""
        planned = (key for _, _, to, key in self._planned if to == at)
        for passing in filter(None, map(self._messages.get, chain(self._queues[at], planned))):
            yield from passing.blocks.values()

    def next(self, at: int) -> OutgoingBlock | None:
        """The next block that goes on to a network."""
        queue = self._queues[at]
        while queue:
            passing = self._messages.get(queue[0])
            if passing is not None and not passing.heard >> at & 1:
                block = (
                    passing.left[at].pop() if passing.left.setdefault(at, sorted(passing.blocks, reverse=True)) else 0
                )
                if block:
                    return passing.blocks[block]
            queue.popleft()
            if passing is not None:
                self._is_over(passing)
        return None

    def _is_over(self, passing: _Passing) -> None:
        passing.waits -= 1
        if not passing.waits:
            self._size -= passing.size
            passing.blocks, passing.size = {}, 0

    def _forget(self, key: _Key) -> None:
        passing = self._messages.pop(key, None)
        if passing is not None:
            self._size -= passing.size


def _key_of(datagram: Datagram) -> _Key:
    return datagram.origin, datagram.footer.epoch, datagram.message
