"""The data plane: batches of items over one socket, in order, acknowledged, resumable. Frames, windows, and large
objects in pieces. Pure: no socket, thread or clock.

One mechanism, three uses: publications (publisher -> delegate), deliveries (delegate -> subscriber) and lookup
events (lookup service -> client). Theory of operation:

- The client opens the socket with HELLO (a single-use token from a control call, how far it has received, and which
  compression it would like); the server answers WELCOME (how far it has received, and whether it agrees) or REFUSED.
- The sending side numbers items 1, 2, 3 ... and sends BATCH frames while its window allows: WINDOW_BATCHES batches and
  WINDOW_BYTES bytes at most. It keeps them until they are acknowledged. An idle sender sends at once; under load
  batches fill up to MAX_BATCH_ITEMS or MAX_BATCH_BYTES.
- The receiving side hands a batch to its sink and then answers ACK(position, note). A sink that blocks thereby
  slows the sender down: credits end to end. The note carries what the use needs (refusals, consumption).
- After a reconnect both positions are exchanged, what was received is forgotten, the rest is sent again:
  no loss, no duplicates while both ends live.
- If they agreed, a batch that shrinks goes as DEFLATED in place of ITEMS (see `deflate`).

The parts: `stream_socket` with the handshake, `sender` (of a client; of a server `hub`) and `receiver`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.errors import OversizeError, ProtocolError, WireError
from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.spool import MEMORY_BYTES, SpooledPayload

from .deflate import INFLATED_MOST, Compression

FRAME: Final = struct.Struct("!IB")
BATCH: Final = struct.Struct("!QI")
LENGTH: Final = struct.Struct("!I")
ITEMS_AT: Final = FRAME.size + BATCH.size
"""Where in the frame of a batch its items begin, each behind its LENGTH."""

HELLO, WELCOME, REFUSED, ITEMS, ACK, BYE, DEFLATED = range(1, 8)

MAX_BATCH_ITEMS: Final = 500
"""Beyond about 100 objects a batch gains little (measured 1.1 us an object at 100)."""
MAX_BATCH_BYTES: Final = 256 << 10
"""A batch of this size takes 0.3 s at 7 Mbit/s; larger ones would delay what comes behind."""
MAX_ITEM_BYTES: Final = MEMORY_BYTES
"""Largest item, and the most that an object takes in memory. Checked before anything is allocated."""
ACK_BYTES: Final = 1 << 20
"""Largest acknowledgement: consumption of 100,000 subscriptions."""
CHUNK_BYTES: Final = MAX_BATCH_BYTES
"""Larger items go in chunks of this size, if nobody sets a smaller one; others take turns between them."""
MAX_FRAME_BYTES: Final = MAX_ITEM_BYTES + MAX_BATCH_BYTES + (1 << 20)
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


def deflated(frame: Sequence[Part], compression: Compression) -> Sequence[Part]:
    """Replacement that is sent for a frame, if it carries a batch that shrinks; else the frame."""
    if frame[0][FRAME.size - 1] != ITEMS:
        return frame
    size = sum(map(len, frame)) - FRAME.size
    if size > INFLATED_MOST:
        compression.passed(size)
        return frame
    packed = compression.deflate(b"".join(frame)[FRAME.size :])
    return frame if packed is None else [FRAME.pack(len(packed), DEFLATED), packed]


def inflated(kind: int, body: memoryview, compression: Compression | None) -> memoryview:
    """The batch in a frame of either kind. Raises ProtocolError when it is none, or not what was agreed on."""
    if kind == ITEMS:
        if compression is not None:
            compression.passed(len(body))
        return body
    if kind != DEFLATED or compression is None:
        raise ProtocolError(f"frame of kind {kind} where a batch belongs")
    return compression.inflate(body)


def split(body: memoryview, count: int) -> list[memoryview]:
    """The items of a batch, not copied. Raises ProtocolError when they are not exactly as long as they say."""
    items = []
    at = 0
    unpack = LENGTH.unpack_from
    for _ in range(count):
        if at + LENGTH.size > len(body):
            raise ProtocolError("truncated batch")
        (length,) = unpack(body, at)
        at += LENGTH.size
        items.append(body[at : at + length])
        at += length
    if at != len(body):
        raise ProtocolError(f"batch of {count} items has {len(body)} bytes, {at} used")
    return items


def acknowledged(kind: int, body: Part) -> int:
    """The position in a frame from the receiving end; its note is body[8:]. Raises ProtocolError when the frame is no
    acknowledgement, WireError when it says good-bye."""
    if kind == BYE:
        raise WireError("the peer said good-bye")
    if kind != ACK or len(body) < 8:
        raise ProtocolError(f"frame of kind {kind} where an acknowledgement belongs")
    return int.from_bytes(body[:8], "big")


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


class ParcelCut:
    """The rest of a large object: pieces as large as they may be by then."""

    def __init__(self, parcel: Parcel) -> None:
        """Raises StorageError."""
        self.parcel: Final = parcel
        self._chunks = _chunks(parcel.parts)
        """The chunks; of what lies in a file no more is read than goes."""
        self._views: deque[memoryview] = deque()
        self._fill()

    def take(self, size: int) -> tuple[list[memoryview], bool]:
        """About so many bytes (of what lies in a file a chunk at most), and whether that was all. Raises
        StorageError."""
        if self.parcel.spooled is not None:
            size = min(size, CHUNK_BYTES)
        pieces: list[memoryview] = []
        while self._views and size > 0:
            view = self._views[0]
            pieces.append(view[:size])
            if len(view) <= size:
                self._views.popleft()
                self._fill()
            else:
                self._views[0] = view[size:]
            size -= len(pieces[-1])
        return pieces, not self._views

    def _fill(self) -> None:
        if not self._views and (chunk := next(self._chunks, None)) is not None:
            self._views.append(chunk)


def _chunks(parts: Sequence[Part]) -> Iterator[memoryview]:
    """The bytes of an item, those that lie in a file in chunks. Raises StorageError."""
    for part in parts:
        source: object = part
        if isinstance(source, SpooledPayload):
            yield from source.chunks(CHUNK_BYTES)
        elif len(part):
            yield memoryview(part)
