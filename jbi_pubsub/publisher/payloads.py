"""Payloads as applications give them: bytes, texts, paths and files. What is large is copied to a file of ours."""

from __future__ import annotations

import os
import stat
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

from jbi_pubsub.core.arguments import XmlElement, content
from jbi_pubsub.core.errors import JbiError, MetadataError, OversizeError
from jbi_pubsub.core.spool import Spool, SpooledPayload, spooled
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES

MAX_PAYLOAD_BYTES: Final = MAX_ITEM_BYTES - (2 << 20)
"""Bytes of a payload in memory that stays there when it is published, however small [link] `spool` is."""


@runtime_checkable
class BinaryFile(Protocol):
    """A file that is open for reading in binary, or what is read like one."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; b"" at its end."""
        ...


Payload = bytes | bytearray | memoryview | str | Path | BinaryFile | SpooledPayload | XmlElement | None
"""A payload: bytes as they are, text as UTF-8, the content of a path or of a file from where it stands, what has come
in a file (`LargeObject.spooled`), an lxml element as XML, None for no payload."""

Body = bytes | SpooledPayload
"""The same as it goes on."""


class Payloads:
    """Payloads of an application, as they go on: bytes, or what lies in a file of ours. That is a copy:
    what happens to the application's file or buffer from then on changes nothing."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def body(self, payload: Payload, limit: int, seconds: float) -> Body:
        """Waits up to `seconds` for room for a large one. Raises MetadataError for a file that can't be read, or has
        changed meanwhile; OversizeError, BackPressureError, StorageError."""
        if type(payload) is bytes and len(payload) <= min(limit, MAX_PAYLOAD_BYTES):  # nearly always
            return payload
        if payload is None:
            return b""
        if isinstance(payload, str):
            payload = payload.encode()
        if isinstance(payload, bytes | bytearray | memoryview):
            return self._checked(bytes(payload), limit, seconds)
        if isinstance(payload, SpooledPayload):
            if len(payload) > limit:
                raise too_large(len(payload), limit)
            return payload
        if isinstance(payload, Path):
            return self._from_path(payload, limit, seconds)
        if isinstance(payload, BinaryFile):
            return self._from_file(payload, "payload", limit, seconds)
        return self._checked(content(payload, what="payload"), limit, seconds)

    def _checked(self, data: bytes, limit: int, seconds: float) -> Body:
        if len(data) > limit:
            raise too_large(len(data), limit)
        if len(data) <= MAX_PAYLOAD_BYTES:
            return data
        return spooled(BytesIO(data), self._spool, limit=limit, size=len(data), seconds=seconds)

    def _from_path(self, path: Path, limit: int, seconds: float) -> Body:
        try:
            with path.open("rb") as file:
                return self._from_file(file, f"payload {str(path)[:200]!r}", limit, seconds)
        except (OSError, ValueError) as exc:  # ValueError: a zero byte
            if isinstance(exc, JbiError):
                raise
            reason = getattr(exc, "strerror", None) or exc
            raise MetadataError(f"payload {str(path)[:200]!r}: {reason}", hint="Check the path") from exc

    def _from_file(self, file: BinaryFile, what: str, limit: int, seconds: float) -> Body:
        """From where it stands. One on disk has to stay as it is meanwhile."""
        before = _stamp(file)
        if before is not None and before.left > limit:
            raise too_large(before.left, limit)
        begun = _read(file, min(self._spool.above, limit) + 1, what)
        if len(begun) > limit:
            raise too_large(len(begun), limit, " or more")  # of which no more is read
        if len(begun) <= self._spool.above:
            body: Body = self._checked(begun, limit, seconds)
        else:
            size = before.left if before is not None else 0
            rest = _Behind(begun, file, what)
            del begun
            body = spooled(rest, self._spool, limit=limit, size=size, seconds=seconds)
        if before is not None and (len(body) != before.left or before.has_changed()):
            raise MetadataError(
                f"{what} has changed while it was read: {before.left} bytes before, {len(body)} were read",
                hint="Publish a file when it is complete, or a copy of it",
                argument="payload",
            )
        return body


def too_large(size: int, limit: int, more: str = "") -> OversizeError:
    """Error of a payload that nobody is to take."""
    return OversizeError(f"payload has {size} bytes{more}, the limit is {limit}", size=size, limit=limit)


class _Stamp(NamedTuple):
    """A file on disk before it is read: bytes from where it stands to its end, and what changes with it."""

    left: int
    fd: int
    facts: tuple[int, ...]

    def has_changed(self) -> bool:
        return _facts(os.fstat(self.fd)) != self.facts


def _stamp(file: BinaryFile) -> _Stamp | None:
    """None of what is no file on disk: a pipe, a socket, something in memory."""
    try:
        fd = file.fileno()  # type: ignore[attr-defined]  # what has none is none
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        return _Stamp(max(0, found.st_size - file.tell()), fd, _facts(found))  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None


def _facts(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ino


class _Behind:
    """A file of which the beginning was read."""

    def __init__(self, begun: bytes, file: BinaryFile, what: str) -> None:
        self._begun = begun
        self._file = file
        self._what = what

    def read(self, size: int) -> bytes:
        """The beginning first."""
        if self._begun:
            begun, self._begun = self._begun, b""
            return begun
        return _read_some(self._file, size, self._what)


def _read(file: BinaryFile, size: int, what: str) -> bytes:
    """So many bytes, if there are."""
    found = bytearray()
    while len(found) < size and (more := _read_some(file, size - len(found), what)):
        found += more
    return bytes(found)


def _read_some(file: BinaryFile, size: int, what: str) -> bytes:
    try:
        data = file.read(size)
    except (OSError, ValueError) as exc:  # ValueError: it is closed
        raise MetadataError(
            f"{what}: {getattr(exc, 'strerror', None) or exc}", hint="Give another file", argument="payload"
        ) from exc
    if not isinstance(data, bytes):
        raise MetadataError(
            f"{what} gives {type(data).__name__} where bytes belong",
            hint='Open it for reading in binary: open(path, "rb"), and let it block',
            argument="payload",
        )
    return data
