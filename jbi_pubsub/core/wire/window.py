"""The window of a stream: batches that one receiver has been sent and has not acknowledged yet.

At most WINDOW_BATCHES batches and WINDOW_BYTES bytes are under way. An idle sender sends at once; under load batches
fill up to MAX_BATCH_ITEMS or MAX_BATCH_BYTES. Pure: no socket, thread or clock.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.core.info_object import Part

from .deflate import Compression
from .stream import BATCH, ITEMS, LENGTH, MAX_FRAME_BYTES

FAST_BATCHES, FAST_SECONDS = 4, 0.01
"""Usual batches that go as one where that takes no longer: each batch costs all parties as much as four objects."""
WINDOW_BATCHES: Final = 8
"""Unacknowledged batches; 4 to 8 kept the sockets busy on loopback without filling memory."""
PACED_BATCHES: Final = 256
"""Unacknowledged batches where something else bounds the bytes under way: small ones, over a long way."""
PARTIAL_BATCHES: Final = 2
"""Unacknowledged batches beside which one that is not full may go: a peer that is busy with two gains nothing from a
third one, and the third gains by waiting (RFC 896 says the same of segments)."""
WINDOW_BYTES: Final = 4 << 20
"""Unacknowledged bytes; a single larger object may still go when nothing else is under way."""
JOINED_BYTES: Final = 64 << 10
"""Parts of a batch below this size are joined: copying costs less than one more piece for the system to gather."""

_ITEMS_HEAD: Final = struct.Struct("!IBQI")  # FRAME and BATCH in one


@dataclass(frozen=True, slots=True)
class Batch:
    """Items on their way: the sequence number of the last, how many, and the frame that carries them (its head, then
    the items with their lengths before them), in parts that may be shared with other senders."""

    last: int
    count: int
    size: int
    frame: list[Part]
    made: float = 0.0
    """When, in seconds of its sender's clock."""
    under_way: int = 0
    """Bytes that had to arrive until it had: its own, and those before it that were not acknowledged then."""


class Window:
    """Items sent to one receiver that it has not acknowledged yet: numbers, what to send again, whether more may go.

    Not thread-safe; the owner's lock covers it, or its one thread.
    """

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._rate = 0.0  # bytes a second that have arrived, by the last acknowledgement
        self.sequence = 0
        """Number of the last item sent, or about to be."""
        self.position = 0
        """Number of the last item acknowledged."""

    @property
    def unacknowledged(self) -> int:
        """Items sent or about to be, not yet acknowledged."""
        return self.sequence - self.position

    def may_add(self, most: int = WINDOW_BATCHES) -> bool:
        """Whether one more batch may be under way, of `most` in all."""
        return not self._batches or (len(self._batches) < most and self._bytes < WINDOW_BYTES)

    def may_add_partial(self) -> bool:
        """Whether one that is not full may be."""
        return len(self._batches) < PARTIAL_BATCHES and self._bytes < WINDOW_BYTES

    def add(self, items: Sequence[Sequence[Part]], now: float = 0.0) -> Batch:
        """Number the items, and keep them as one batch until they are acknowledged. An item is the parts of its bytes.

        Raises OversizeError when they do not fit in a frame; nothing is kept then."""
        parts: list[Part] = [b""]
        size = 0
        head, pack = LENGTH.size, LENGTH.pack
        for item in items:
            length = sum(map(len, item))
            size += head + length
            parts.append(pack(length))
            parts.extend(item)
        if BATCH.size + size > MAX_FRAME_BYTES:
            raise OversizeError(f"batch of {size} bytes, the limit of a frame is {MAX_FRAME_BYTES}")
        count = len(items)
        parts[0] = _ITEMS_HEAD.pack(BATCH.size + size, ITEMS, self.sequence + 1, count)
        self.sequence += count
        batch = Batch(self.sequence, count, size, joined(parts, size), now, self._bytes + size)
        self._batches.append(batch)
        self._bytes += size
        return batch

    def batch_bytes(self, usual: int, compression: Compression | None = None) -> int:
        """Bytes that the next batch is filled up to: `usual`, or more in clear where that takes up to FAST_SECONDS."""
        return max(usual, (compression is None) * min(FAST_BATCHES * usual, int(self._rate * FAST_SECONDS)))

    def acknowledge(self, position: int, now: float = 0.0) -> int:
        """The receiver has all up to `position`; how many items it has more than before. Raises ProtocolError when it
        was never sent so many, or had acknowledged more."""
        if not self.position <= position <= self.sequence:
            raise ProtocolError(f"peer is at {position}, we are at {self.position}..{self.sequence}")
        count, self.position = position - self.position, position
        while self._batches and self._batches[0].last <= position:
            gone = self._batches.popleft()
            self._bytes -= gone.size
            if now > gone.made:
                self._rate = gone.under_way / (now - gone.made)
        return count

    def beyond(self, position: int) -> list[Batch]:
        """Batches with items behind `position`, in order: what to send again. The receiver passes over those items of
        the first one that it has."""
        return [batch for batch in self._batches if batch.last > position]

    def restart(self) -> None:
        """The receiver has forgotten us: begin at 1 again, and forget what was under way."""
        self._batches.clear()
        self._bytes = self.sequence = self.position = 0


def joined(parts: list[Part], size: int) -> list[Part]:
    """The same bytes in fewer parts: small ones joined, large ones not copied. `size`: of all of them."""
    if size < JOINED_BYTES or max(map(len, parts)) < JOINED_BYTES:
        return [b"".join(parts)]
    found: list[Part] = []
    small: list[Part] = []
    for part in parts:
        if len(part) < JOINED_BYTES:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    return [*found, b"".join(small)] if small else found
