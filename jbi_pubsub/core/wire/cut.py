"""Large objects in pieces, which go between what is small: not copied, and read as they go if they lie in a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from jbi_pubsub.core.info_object import Parcel, Part
from jbi_pubsub.core.spool import SpooledPayload

from .stream import CHUNK_BYTES


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
