"""Durable messages: of each the newest update, and our own said again before their life ends. Pure.

A newer update replaces the older one as soon as its first block comes: what the older one took is given up, so that who
comes late fetches the newest alone. A later start of the origin is newer than any update of an earlier one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.network.datagram import Datagram, DatagramMode
from jbi_pubsub.network.log import LogId
from jbi_pubsub.network.message import NodeMessage

DURABLE_CACHE: Final = 10_000
"""Durable messages of all nodes."""
AGAIN: Final = 0.5
"""Part of its life after which a durable message of ours is said again."""

_Place = tuple[LogId, int]


@dataclass(slots=True)
class _Durable:
    """The newest update of a durable message."""

    newness: tuple[int, int]
    """Start of its origin, and number of the update."""
    blocks: dict[int, _Place] = field(default_factory=dict)
    """Where each block stands."""
    delivered: tuple[int, int] = (-1, -1)
    """Newness of what was delivered last."""


class DurableBlocks:
    """Durable messages of all nodes. One thread at a time."""

    def __init__(self, most: int = DURABLE_CACHE) -> None:
        """`most`: messages; beyond them that of the origin that has most is given up which was said longest ago."""
        self._most = most
        self._of: dict[bytes, OrderedDict[bytes, _Durable]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def replace(self, log_id: LogId, datagram: Datagram) -> tuple[bool, list[_Place]]:
        """A block of a durable message has come, or is said: whether it is of the newest update, and what is given up
        for it."""
        footer = datagram.footer
        if datagram.mode != DatagramMode.DURABLE:
            return True, []
        newness = (footer.epoch, footer.update)
        of_origin = self._of.setdefault(log_id.origin, OrderedDict())
        known = of_origin.get(footer.durability)
        given_up: list[_Place] = []
        if known is None:
            known = of_origin[footer.durability] = _Durable(newness)
            self._count += 1
            given_up = self._make_room()
        elif newness < known.newness:
            return False, []
        elif newness > known.newness:
            given_up = list(known.blocks.values())
            known.newness, known.blocks = newness, {}
        place = (log_id, footer.serial)
        before = known.blocks.get(datagram.block, place)
        if before > place:
            return False, given_up
        if before != place:
            given_up.append(before)
        known.blocks[datagram.block] = place
        of_origin.move_to_end(footer.durability)
        return True, given_up

    def is_news(self, message: NodeMessage) -> bool:
        """A durable message is complete: whether it is newer than what was delivered before."""
        known = self._of.get(message.origin, OrderedDict[bytes, _Durable]()).get(message.durability)
        newness = (message.epoch, message.update)
        if known is None or newness < known.newness or newness <= known.delivered:
            return False
        known.delivered = newness
        return True

    def forget(self, origin: bytes) -> None:
        """Nothing of an origin is of interest any more."""
        self._count -= len(self._of.pop(origin, ()))

    def _make_room(self) -> list[_Place]:
        given_up: list[_Place] = []
        while self._count > self._most:
            largest = max(self._of, key=lambda origin: len(self._of[origin]))
            _, oldest = self._of[largest].popitem(last=False)
            given_up += oldest.blocks.values()
            self._count -= 1
            if not self._of[largest]:
                del self._of[largest]
        return given_up


@dataclass(slots=True)
class _OwnDurable:
    message: NodeMessage
    again_at: float


class OwnDurables:
    """Durable messages of ours, which are said again as long as we live."""

    def __init__(self, most: int = DURABLE_CACHE) -> None:
        """`most`: messages; of more the first ones are not said again."""
        self._most = most
        self._own: OrderedDict[bytes, _OwnDurable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._own)

    def note(self, message: NodeMessage, now: float) -> None:
        """One is said. One without a body cancels: it is not said again."""
        if message.mode != DatagramMode.DURABLE:
            return
        self._own.pop(message.durability, None)
        if message.body:
            self._own[message.durability] = _OwnDurable(message, now + AGAIN * message.expiration / 1000)
        while len(self._own) > self._most:
            self._own.popitem(last=False)

    def due(self, now: float) -> Iterator[NodeMessage]:
        """Those that are to be said again by now."""
        for each in [each for each in self._own.values() if each.again_at <= now]:
            yield each.message
