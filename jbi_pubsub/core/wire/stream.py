"""The data plane: batches of items over one socket, in order, acknowledged, resumable. The frames, and their bounds.

One mechanism, three uses: publications (publisher -> delegate), deliveries (delegate -> subscriber) and lookup
events (lookup service -> client). Theory of operation:

- The client opens the socket with HELLO (a single-use token from a control call, how far it has received, and which
  compression it would like); the server answers WELCOME (how far it has received, and whether it agrees) or REFUSED.
- The sending side numbers items 1, 2, 3 ... and sends BATCH frames while its window allows. It keeps them until they
  are acknowledged (see `window`).
- The receiving side hands a batch to its sink and then answers ACK(position, note). A sink that blocks thereby
  slows the sender down: credits end to end. The note carries what the use needs (refusals, consumption).
- After a reconnect both positions are exchanged, what was received is forgotten, the rest is sent again:
  no loss, no duplicates while both ends live.
- If they agreed, a batch that shrinks goes as DEFLATED in place of ITEMS (see `deflate`).

The parts: `stream_socket`, `handshake`, `window`, `sender` (of a client; of a server `hub`) and `receiver`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from jbi_pubsub.core.errors import ProtocolError, WireError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.spool import MEMORY_BYTES

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
