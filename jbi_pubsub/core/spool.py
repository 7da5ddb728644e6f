"""Large payloads on disk: what is larger than [link] `spool` lies in a file, and is never in memory whole.

Rules:
- A file has no name: it goes with the last who refers to it, and with its process, however that ends. Nothing is left
  over that somebody would have to take away.
- Who reads has a place of their own in the file (pread(2)), so that one file is for all deliveries.
- All files of one publisher, delegate or subscriber have [link] `spool_bytes` at most. Room is taken when an object
  begins, for all that it says it has.
- What can't be written keeps its `failure` in place of a file: whoever waits for the object is told of it.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, cast

from .errors import BackPressureError, JbiError, OversizeError, StorageError

MEMORY_BYTES: Final = 64 << 20
"""The most that one object may take in memory. Beyond that it is read from its file, in pieces."""
SPOOL_LEAST: Final = 64 << 10
"""Smaller payloads always stay in memory."""
COST_LEAST: Final = 520 << 10
"""Least that an object in a file counts as where memory is counted: it goes in chunks, two of which may be there."""
COST_PART: Final = 32
"""A byte on disk counts as so small a part of one in memory, so that who takes nothing fills no disk, either: a queue
holds an eighth of [pad] `max_queued_bytes`, 4 GiB of payloads if nothing else is set."""
FILES_MOST: Final = 512
"""Files of one party: a process may often have 1,024 open, sockets among them."""
COPIED_BYTES: Final = 1 << 20
"""Read or written at once."""


class Spool:
    """Where one party's large payloads lie. Any thread."""

    def __init__(self, folder: str, above: int, limit: int) -> None:
        """`above`: bytes that a payload may have in memory; `limit`: of all files together. `folder` "": where this
        host has its temporary files, on disk."""
        self.above: Final = above
        self._limit = limit
        self._folder = Path(folder) if folder else _temporary()
        self._changed = threading.Condition()  # may be entered again: a file can go wherever the last reference does
        self._used = self._files = 0

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    def begin(self, size: int, seconds: float = 0.0) -> SpooledPayload:
        """An empty file with room for so many bytes, as soon as there is some, at last after `seconds`. Raises
        OversizeError, BackPressureError, StorageError."""
        self.take(size, seconds, files=1)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                fd = os.dup(file.fileno())
        except OSError as exc:
            self.give_back(size, files=1)
            raise self.failed(exc) from exc
        return SpooledPayload(self, fd, size)

    def take(self, size: int, seconds: float, held: int = 0, files: int = 0) -> None:
        """Room for so many bytes, beside what the same payload has, and files. Raises OversizeError,
        BackPressureError."""
        if held + size > self._limit:
            raise OversizeError(
                f"a payload of {held + size} bytes does not fit into {self._limit} for all that lie in files",
                hint="See [link] spool_bytes", size=held + size, limit=self._limit,
            )  # fmt: skip
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(size, files), seconds):
                raise BackPressureError(
                    f"large payloads take {self._used} of {self._limit} bytes, in {self._files} of {FILES_MOST} files:"
                    f" no room for {size} more within {seconds:g} s",
                    hint="Who takes them is too slow; publish more slowly, or raise [link] spool_bytes",
                )
            self._used += size
            self._files += files

    def _has_room(self, size: int, files: int) -> bool:
        return self._used + size <= self._limit and self._files + files <= FILES_MOST

    def give_back(self, size: int, files: int = 0) -> None:
        """Room that is not used any more."""
        if size or files:
            with self._changed:
                self._used -= size
                self._files -= files
                self._changed.notify_all()

    def failed(self, why: OSError) -> StorageError:
        """Error for a file that can't be made, written or read."""
        return StorageError(
            f"a large payload in {self._folder}: {why.strerror or why}",
            hint="Make room there, or name another folder in [link] spool_folder",
            path=str(self._folder),
        )


class SpooledPayload:
    """A payload in a file. One writes, then any thread reads. The file goes with the last reference."""

    __slots__ = ("__weakref__", "_fd", "_room", "_size", "_spool", "failure", "hashed")

    def __init__(self, spool: Spool, fd: int, room: int, failure: JbiError | None = None) -> None:
        """See `Spool.begin` and `failed_payload`."""
        self._spool = spool
        self._fd = fd
        """-1: there is none any more."""
        self._room = room
        """Bytes that it has in the spool."""
        self._size = 0
        self.failure = failure
        """Why there is nothing in it, and will not be."""
        self.hashed: hashlib._Hash | None = None
        """Digest of what was written, if somebody has set it: who asks for the digest need not read all of it again."""

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self._close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a payload in a file can't be copied or pickled: read it, and copy what was read")

    @property
    def cost(self) -> int:
        """Bytes that it counts as where memory is counted."""
        return max(COST_LEAST, self._size // COST_PART)

    def write(self, data: bytes | memoryview, seconds: float = 0.0) -> None:
        """Some more of it; what is beyond the room that it began with waits up to `seconds` for some. What goes wrong
        is its `failure` from then on."""
        if self._fd < 0:
            return
        try:
            if (more := self._size + len(data) - self._room) > 0:
                more = max(more, COPIED_BYTES)
                self._spool.take(more, seconds, self._room)
                self._room += more
            with memoryview(data) as left:
                at = 0
                while at < len(left):
                    at += os.pwrite(self._fd, left[at:], self._size + at)
            self._size += len(data)
            if self.hashed is not None:
                self.hashed.update(data)
        except OSError as exc:
            self._fail(exc if isinstance(exc, JbiError) else self._spool.failed(exc))
        except JbiError as exc:
            self._fail(exc)

    def found(self) -> None:
        """Take over a file that was written before, by somebody else."""
        self._size = os.fstat(self._fd).st_size

    def finish(self) -> None:
        """That was all: the room that is left is given back."""
        self._spool.give_back(self._room - self._size)
        self._room = self._size

    def read(self, at: int, count: int) -> bytes:
        """Bytes from there, as many as there are up to `count`. Raises StorageError."""
        if self._fd < 0:
            raise self.failure or StorageError("a large payload is gone")
        try:
            data = os.pread(self._fd, min(count, self._size - at), at)
        except OSError as exc:
            raise self._spool.failed(exc) from exc
        if not data and at < self._size:
            raise StorageError(f"a large payload has {self._size} bytes, and ends at {at}")
        return data

    def chunks(self, size: int) -> Iterator[memoryview]:
        """All of it in pieces of at most so many bytes. Raises StorageError."""
        at = 0
        while at < self._size:
            data = self.read(at, size)
            at += len(data)
            yield memoryview(data)

    def __bytes__(self) -> bytes:
        """All of it. Raises OversizeError when that is too much for memory, StorageError."""
        if self._size > MEMORY_BYTES:
            raise OversizeError(
                f"a payload of {self._size} bytes is too large for memory, the limit is {MEMORY_BYTES}",
                hint="Read it in pieces: `payload_file`, getPayloadFile()", size=self._size, limit=MEMORY_BYTES,
            )  # fmt: skip
        return b"".join(self.chunks(COPIED_BYTES))

    def open(self) -> BinaryIO:
        """A file to read it from, with a place of its own."""
        return cast(BinaryIO, io.BufferedReader(_Reader(self), COPIED_BYTES // 4))

    def _fail(self, why: JbiError) -> None:
        self.failure = why
        self._size = 0
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._spool.give_back(self._room, files=1)
            self._room = 0


class _Reader(io.RawIOBase):
    """One reader's place in a payload."""

    def __init__(self, payload: SpooledPayload) -> None:
        self._payload = payload
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, space: Any) -> int:
        if self._at >= len(self._payload):
            return 0
        data = self._payload.read(self._at, len(space))
        space[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._payload)}[whence]
        if at < 0:
            raise ValueError(f"negative position {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at


def failed_payload(spool: Spool, why: JbiError) -> SpooledPayload:
    """In place of one for which there is no file."""
    return SpooledPayload(spool, -1, 0, why)


def spooled(file: Any, spool: Spool, *, limit: int, size: int = 0, seconds: float = 0.0) -> SpooledPayload:
    """Payload from a binary file, from where it stands: up to `limit` bytes, one more is refused. `size`: what it is
    said to have, for which room is taken at once. Waits up to `seconds` for more. Raises OversizeError,
    BackPressureError, StorageError, OSError of that file, TypeError if it gives no bytes."""
    deadline = time.monotonic() + seconds
    payload = spool.begin(size, seconds)
    while data := file.read(COPIED_BYTES):
        if len(payload) + len(data) > limit:
            size = len(payload) + len(data)
            raise OversizeError(f"payload has {size} bytes or more, the limit is {limit}", size=size, limit=limit)
        payload.write(data, max(0.0, deadline - time.monotonic()))
        if payload.failure is not None:
            raise payload.failure
    payload.finish()
    return payload


def _temporary() -> Path:
    """Where temporary files are kept on disk: /tmp may be memory."""
    kept = Path("/var/tmp")  # noqa: S108  # files in it have no names
    return Path(tempfile.gettempdir()) if os.environ.get("TMPDIR") or not kept.is_dir() else kept
