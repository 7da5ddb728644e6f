"""Compression of what goes over one data connection, for slow links; negotiated, off by default.

Theory of operation: the stream of batches of a connection is one raw deflate stream (RFC 1951) that is flushed at the
end of each batch, as in permessage-deflate (RFC 7692, section 7.2.1: the empty block that the flush ends with is not
sent). So a batch is coded with references to the 32 KiB before it, and metadata that repeats costs a tenth. What does
not shrink, as most imagery, goes as it is and leaves the stream as it was. Batches are kept for sending again in clear:
the state belongs to the connection and ends with it.

A deflated batch announces how long it is, INFLATED_MOST at most, and nothing beyond that is ever inflated.
"""

from __future__ import annotations

import struct
import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.info_object import Part

if TYPE_CHECKING:
    from zlib import _Compress, _Decompress

DEFLATE: Final = "deflate"
"""Word by which a client asks in its HELLO, and the server agrees in its WELCOME."""

INFLATED_MOST: Final = 1 << 20
"""Longest batch that is compressed. Ours are below 0.6 MB (MAX_BATCH_BYTES and one chunk behind them). A bomb comes to
this, no more, which is what a peer may have us take anyway (STEP_BYTES)."""
SHRUNK: Final = 16
"""A batch that shrinks by less than one part in so many goes as it is: not worth the receiver's time."""
SAMPLE_BYTES: Final = 4 << 10
"""So much out of the middle of a large batch is tried first, which takes a hundredth of the time."""
LARGE_BYTES: Final = 16 << 10
"""A batch is large from here on: half of deflate's window (RFC 1951, section 2)."""

_FLUSHED: Final = b"\x00\x00\xff\xff"  # the empty block at the end of a sync flush (RFC 7692, section 7.2.1)
_RAW: Final = -zlib.MAX_WBITS
_LENGTH: Final = struct.Struct("!I")


class Compression:
    """The deflate stream of one data connection, at either end. Batches go one way only, so each end makes one of
    the two contexts, when it is needed: 268 kB to deflate, twice that while it does, and 40 kB to inflate (zlib's
    zconf.h: (1 << windowBits+2) + (1 << memLevel+9); 1 << windowBits and 7 kB).

    Not thread-safe: the line's lock covers it, or the hub's one thread.
    """

    def __init__(self) -> None:
        self._compress: _Compress | None = None
        self._decompress: _Decompress | None = None
        self.plain = 0
        """Bytes of the batches so far."""
        self.carried = 0
        """Bytes that they came to on the connection."""

    def deflate(self, body: bytes) -> bytes | None:
        """Replacement that is sent for a batch of at most INFLATED_MOST bytes; None: it goes as it is."""
        packed = self._packed(body)
        self.plain += len(body)
        self.carried += len(body if packed is None else packed)
        return packed

    def _packed(self, body: bytes) -> bytes | None:
        if len(body) > LARGE_BYTES and not _shrinks(_sample(body)):
            return None
        before = self._compress or zlib.compressobj(wbits=_RAW)
        tried = before.copy()  # what the receiver is not given must not be referred to
        packed = tried.compress(body) + tried.flush(zlib.Z_SYNC_FLUSH)
        packed = _LENGTH.pack(len(body)) + packed[: -len(_FLUSHED)]
        shrank = len(packed) <= len(body) - len(body) // SHRUNK - 1
        self._compress = tried if shrank else before
        return packed if shrank else None

    def inflate(self, packed: Part) -> memoryview:
        """The batch again. Raises ProtocolError when it is not exactly as long as it says, or says too much."""
        if len(packed) < _LENGTH.size:
            raise ProtocolError("truncated deflated batch")
        (length,) = _LENGTH.unpack_from(packed)
        if length > INFLATED_MOST or len(packed) > length:
            raise ProtocolError(
                f"peer announces a batch of {length} bytes deflated to {len(packed)}, the limit is {INFLATED_MOST}"
            )
        stream = self._decompress = self._decompress or zlib.decompressobj(wbits=_RAW)
        try:
            body = stream.decompress(b"".join((memoryview(packed)[_LENGTH.size :], _FLUSHED)), length + 1)
        except zlib.error as exc:
            raise ProtocolError(f"bad deflated batch: {exc}") from exc
        if len(body) != length or stream.unconsumed_tail or stream.eof:
            raise ProtocolError(f"deflated batch of {length} bytes has {len(body)} or more")
        self.plain += length
        self.carried += len(packed)
        return memoryview(body)

    def passed(self, size: int) -> None:
        """A batch of so many bytes goes, or came, as it is."""
        self.plain += size
        self.carried += size


def described(compression: Compression | None) -> dict[str, object]:
    """For status pages: whether a connection is compressed, and how many times longer its batches are than what went
    over it."""
    if compression is None:
        return {"compression": "none", "ratio": 1.0}
    return {"compression": DEFLATE, "ratio": round(compression.plain / max(1, compression.carried), 2)}


class Allowance:
    """Number of a server's connections that may be compressed at once: their memory is the server's. Thread-safe."""

    def __init__(self, most: int) -> None:
        """`most`: 0 declines all."""
        self._most = most
        self._granted: weakref.WeakSet[Compression] = weakref.WeakSet()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of them now."""
        return len(self._granted)

    def grant(self, asked: Sequence[str]) -> Compression | None:
        """For a client that asks for one of these; None: in clear. It counts for as long as somebody holds it."""
        if DEFLATE not in asked:
            return None
        with self._lock:
            if len(self._granted) >= self._most:
                return None
            compression = Compression()
            self._granted.add(compression)
        return compression


def _sample(body: bytes) -> bytes:
    at = (len(body) - SAMPLE_BYTES) // 2
    return body[at : at + SAMPLE_BYTES]


def _shrinks(data: bytes) -> bool:
    return len(zlib.compress(data, zlib.Z_BEST_SPEED, _RAW)) <= len(data) - len(data) // SHRUNK
