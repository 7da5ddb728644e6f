"""Large objects that come in chunks: in memory up to [link] `spool`, from there on in a file."""

from __future__ import annotations

import hashlib
from typing import Final

from .errors import JbiError, OversizeError, ProtocolError
from .info_object import Head, InfoObject, Parcel, Part, decode_cut, head_end, head_of, large
from .spool import Spool, SpooledPayload, failed_payload

KEPT_BYTES: Final = 4096
"""A smaller piece of a large object is copied: to keep it for itself costs more than what it holds."""
HEAD_MOST: Final = 4 << 20
"""Most bytes before a payload: metadata of 1 MiB at most, and what the platform adds."""


class Gathering:
    """One object that is coming. One thread at a time."""

    __slots__ = (
        "_chunks", "_first", "_head", "_is_cut", "_is_looked_at", "_limit", "_payload", "_seal", "_seconds", "_size",
        "_spool",
    )  # fmt: skip

    def __init__(
        self, spool: Spool, limit: int, seconds: float, *, is_cut: bool = False, is_looked_at: bool = False
    ) -> None:
        """`limit`: bytes that a payload may have that goes to a file; `seconds` to wait for room there. `is_cut`: a
        delegate sends it, which may have made less or more of it (a filter repeats namespaces). `is_looked_at`:
        somebody asks whether its signature holds, who is not to wait while all of it is read again."""
        self._spool = spool
        self._limit = limit
        self._seconds = seconds
        self._is_cut = is_cut
        self._is_looked_at = is_looked_at
        self._chunks: list[Part] = []
        self._size = 0
        self._payload: SpooledPayload | None = None
        """From when it is too much for memory."""
        self._first = b""
        """Beginning before that, and what it says."""
        self._head: Head | None = None
        self._seal = b""

    def add(self, chunk: memoryview) -> None:
        """Some more of it. Raises ProtocolError for what is no object, or more than it says that it is."""
        self._size += len(chunk)
        if self._payload is not None:
            self._write(chunk)
            return
        self.keep(chunk)
        if self._size > self._spool.above:
            self._spill()

    def keep(self, chunk: memoryview) -> None:
        """The same in memory, without keeping the batch that it came in."""
        if len(chunk) >= KEPT_BYTES and 2 * len(chunk) > memoryview(chunk.obj).nbytes:
            self._chunks.append(chunk)
        elif self._chunks and isinstance(self._chunks[-1], bytearray):
            self._chunks[-1] += chunk
        else:
            self._chunks.append(bytearray(chunk))

    @property
    def chunks(self) -> list[Part]:
        """Part of it that is in memory."""
        return self._chunks

    @property
    def failure(self) -> JbiError | None:
        """Why it is not there, though all of it has come."""
        return self._payload.failure if self._payload is not None else None

    def parcel(self, since: float) -> Parcel:
        """All of it, as its publisher has sent it. Raises ProtocolError."""
        if self._payload is None or self._head is None:
            first, *more = self._chunks
            if more and (len(first) < 4 or head_end(first) > len(first)):
                first, more = b"".join(self._chunks), []
            return Parcel.received(first, since, tuple(more))
        if self._seal:
            raise ProtocolError("bad information object: its payload was cut, which a delegate alone does")
        self._payload.finish()
        if self.failure is None and len(self._payload) < self._head.payload_length:
            raise ProtocolError(f"an object of {self._head.payload_length} bytes by its head has {len(self._payload)}")
        return Parcel.spooled_as(self._head, self._first, self._payload, since)

    def info_object(self, position: int, archive: str = "") -> InfoObject:
        """The same as applications see it, with its place in an archive. Raises ProtocolError."""
        if self._payload is None or self._head is None:
            return decode_cut(self._chunks, position, archive)
        self._payload.finish()
        return large(self._head, self._payload, self._seal, position, archive)

    def _spill(self) -> None:
        """Put its payload into a file, for it is too much for memory, as soon as it is known where that begins."""
        end = head_end(b"".join(bytes(chunk[:4]) for chunk in self._chunks[:4]))
        if end > HEAD_MOST:
            raise ProtocolError(f"bad information object: its head has {end} bytes, the limit is {HEAD_MOST}")
        if end > self._size:
            return
        begun = memoryview(b"".join(self._chunks))
        self._first = bytes(begun[:end])
        self._head, self._seal = head_of(self._first)
        self._payload = self._begin(self._head.payload_length)
        if self._is_looked_at and self._head.signature:
            self._payload.hashed = hashlib.sha256()
        self._chunks = []
        self._write(begun[end:])

    def _begin(self, size: int) -> SpooledPayload:
        try:
            self._check_size(size)
            return self._spool.begin(size, self._seconds)
        except JbiError as exc:
            return failed_payload(self._spool, exc)

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise OversizeError(
                f"payload has {size} bytes, the limit is {self._limit}",
                hint="See [client] max_payload", size=size, limit=self._limit,
            )  # fmt: skip

    def _write(self, chunk: memoryview) -> None:
        assert self._payload is not None
        assert self._head is not None
        size = self._size - len(self._first)
        if size > self._head.payload_length and not self._is_cut:
            raise ProtocolError(f"an object of {self._head.payload_length} bytes by its head has {self._size} or more")
        try:
            self._check_size(size)
            self._payload.write(chunk)
        except OversizeError as exc:
            self._payload = failed_payload(self._spool, exc)
