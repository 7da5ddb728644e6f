"""A file of the log: its format, and how it is read while somebody writes it, and when it is damaged.

    head    "JBILOG1\\n", the archive's id (16 bytes), first position, last position before it (u64 each), time
            (f64), CRC-32 of all that
    record  "JREC", length of the body, CRC-32 of all that follows (u32 each), position (u64), time of receipt (f64),
            the position up to which the log was on disk then (u64), kind (u8), body

All numbers are big-endian. A file is made with zeros behind the last record, which end it. The CRC begins with that of
the archive's id: what a publisher writes into a payload can't pass for a record when a reader looks for the next one
behind a damage. The "on disk" of later records tells a damage, of what was on disk, from a torn tail, which was not.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Part

MAGIC: Final = b"JBILOG1\n"
MARKER: Final = b"JREC"
HEAD: Final = struct.Struct("!8s16sQQdI")
RECORD: Final = struct.Struct("!4sIIQdQB")
_FRONT: Final = struct.Struct("!4sII")
_TAIL: Final = struct.Struct("!QdQB")
CHECKED_FROM: Final = _FRONT.size
"""Where in a record what its CRC covers begins."""
OBJECT: Final = 1
"""Body: an object's bytes as they came."""
DELETED: Final = 2
"""Body: positions of objects that are deleted (u64 each). Its own position is that of the record before."""
KINDS: Final = (OBJECT, DELETED)
MAX_BODY: Final = (1 << 27) - 1
"""Twice the largest object: a longer one is a damaged length."""
READ_BYTES: Final = 1 << 20
LOOK_BYTES: Final = 4 << 10
"""In so many is an object's head, mostly."""
_LAST: Final = 2**63 - 1


class Record(NamedTuple):
    """One record, read."""

    position: int
    received: float
    kind: int
    data: bytes


class Damage(NamedTuple):
    """A part of a file that can't be read, though it was on disk: from `offset` on, `size` bytes, behind the record of
    position `after`; `before` is the next that can be read, 0 for none."""

    path: Path
    offset: int
    size: int
    after: int
    before: int

    def __str__(self) -> str:
        behind = f"position {self.before}" if self.before else "the end"
        return f"{self.path}: {self.size} bytes at {self.offset}, between position {self.after} and {behind}"


class VolumeHead(NamedTuple):
    """Beginning of a file."""

    archive: bytes
    first: int
    previous: int
    """Last position before it: a file that is missing is seen."""
    began: float

    def packed(self) -> bytes:
        """Its bytes."""
        data = HEAD.pack(MAGIC, *self, 0)[:-4]
        return data + struct.pack("!I", zlib.crc32(data))


def name_of(first: int) -> str:
    """Name of the file that begins with that position: names sort as positions do."""
    return f"{first:020d}.log"


def seed_of(archive: bytes) -> int:
    """Seed of the CRC of an archive's records."""
    return zlib.crc32(archive)


def packed(seed: int, position: int, received: float, synced: int, kind: int, parts: Sequence[Part]) -> bytes:
    """The beginning of a record; its parts follow."""
    tail = _TAIL.pack(position, received, synced, kind)
    crc, length = zlib.crc32(tail, seed), 0
    for part in parts:
        crc = zlib.crc32(part, crc)
        length += len(part)
    return _FRONT.pack(MARKER, length, crc) + tail


class _RecordView(NamedTuple):
    """A record that is as it was written."""

    offset: int
    end: int
    record: Record
    synced: int


class LogVolume:
    """A file of the log, for readers; it may grow meanwhile. One thread at a time.

    `first` and `last` are positions of objects, `last` and `count` of what was read so far (`refresh`); `damages` what
    could not be.
    """

    def __init__(self, path: Path, archive: bytes | None = None) -> None:
        """Raises StorageError for a file that is none, or of another archive than `archive`."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise StorageError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        self.is_headless = False
        """Whether its head is damaged: its name says where it begins, and its records are good."""
        try:
            self.head = self._read_head(archive)
        except BaseException:
            os.close(self._fd)
            raise
        self.first = self.head.first
        self.last = self.head.previous
        self.damages: list[Damage] = []
        self.deleted: list[int] = []
        """Positions of objects that records here say are deleted."""
        self.end = HEAD.size
        """Where what was read so far ends."""
        self._known = 0
        """The position up to which all was on disk, as others say."""
        self._seed = seed_of(self.head.archive)
        self._positions = array("Q")
        self._offsets = array("Q")

    @property
    def count(self) -> int:
        """Objects read so far."""
        return len(self._positions)

    @property
    def positions(self) -> Sequence[int]:
        """Positions of objects read so far."""
        return self._positions

    @property
    def previous(self) -> int:
        """The last position before it."""
        return self.head.previous

    def troubles(self, after: int = 0, up_to: int = _LAST) -> list[str]:
        """Messages about what could not be read between two positions."""
        return [str(each) for each in self.damages if each.after < up_to and not 0 < each.before <= after + 1]

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def refresh(self, up_to: int) -> int:
        """Learn what has come, as far as that position, which is on disk, here or before: what is missing up to there
        is damaged. How many objects that is."""
        return sum(1 for _ in self.come(up_to))

    def come(self, up_to: int) -> Iterator[Record]:
        """The same: the objects themselves."""
        for seen in self._scan(up_to):
            self._learn(seen)
            if seen.record.kind == OBJECT:
                yield seen.record

    def recover(self, known: int = 0) -> int:
        """Learn all that is good, of a file whose writer has died. How many bytes behind it are a torn tail: written,
        but not known to be on disk; up to position `known` they are, and what is missing is damaged."""
        self._known = known
        for seen in self._scan(_LAST):
            self._learn(seen)
        size = os.fstat(self._fd).st_size
        rest = 0
        for base in range(self.end, size, READ_BYTES):
            data = os.pread(self._fd, READ_BYTES, base).rstrip(b"\0")
            rest = base + len(data) - self.end if data else rest
        if self.last >= known:
            return rest
        self.damages.append(Damage(self.path, self.end, rest, self.last, 0))
        self.end += rest
        return 0

    def read(self, after: int, up_to: int, *, newest_first: bool = False) -> Iterator[Record]:
        """Objects above one position and not above another."""
        places = range(bisect_right(self._positions, after), bisect_right(self._positions, up_to))
        data, base = b"", 0
        for place in reversed(places) if newest_first else places:
            offset = self._offsets[place]
            start = offset - base
            if start < 0 or len(data) - start < RECORD.size + _length(data, start):
                size = RECORD.size + self._length_at(offset)
                base = max(0, offset + size - READ_BYTES) if newest_first else offset
                base = min(base, offset)
                data, start = os.pread(self._fd, max(READ_BYTES, size), base), offset - base
            seen = self._check(data, start, offset)
            if seen is not None:
                yield seen.record
            else:
                self._note(place)

    def get(self, positions: Sequence[int]) -> Iterator[Record]:
        """Objects by position, in that order; those that are not here are left out."""
        for place in self._places(positions):
            if (record := self._at(place)) is not None:
                yield record

    def metadata(self, positions: Sequence[int]) -> Iterator[Record]:
        """The same, but of each object's bytes no more than its head: all but the payload. Not checked by CRC."""
        return map(self._head_at, self._places(positions))

    # -- inside -------------------------------------------------------------------------------------------------

    def _read_head(self, archive: bytes | None) -> VolumeHead:
        data = os.pread(self._fd, HEAD.size, 0)
        try:
            return head_of(self.path, data, archive)
        except StorageError:
            self._seed = seed_of(archive or b"")
            start = os.pread(self._fd, RECORD.size, HEAD.size)
            start += os.pread(self._fd, min(_length(start), MAX_BODY), HEAD.size + RECORD.size)
            if archive is None or not self.path.stem.isdigit() or self._check(start, 0, HEAD.size) is None:
                raise  # of another archive, or nothing of it can be used
            self.is_headless = True
            first = int(self.path.stem)
            return VolumeHead(archive, first, first - 1, os.fstat(self._fd).st_mtime)

    def _places(self, positions: Sequence[int]) -> Iterator[int]:
        """Places of those of these that are here."""
        for position in positions:
            place = bisect_left(self._positions, position)
            if place < len(self._positions) and self._positions[place] == position:
                yield place

    def _at(self, place: int) -> Record | None:
        """A record that was good when it was read first; None when it is no more."""
        offset = self._offsets[place]
        seen = self._check(os.pread(self._fd, RECORD.size + self._length_at(offset), offset), 0, offset)
        if seen is None:
            self._note(place)
            return None
        return seen.record

    def _note(self, place: int) -> None:
        """A record that was good is no more."""
        ends, places = [*self._offsets[place + 1 : place + 2], self.end], self._positions
        after = places[place - 1] if place else self.head.previous
        before = places[place + 1] if place + 1 < len(places) else 0
        damage = Damage(self.path, self._offsets[place], ends[0] - self._offsets[place], after, before)
        if damage not in self.damages:
            self.damages.append(damage)

    def _head_at(self, place: int) -> Record:
        offset = self._offsets[place]
        start = os.pread(self._fd, LOOK_BYTES, offset)
        _, _, _, position, received, _, kind = RECORD.unpack_from(start)
        end = RECORD.size + 4 + int.from_bytes(start[RECORD.size : RECORD.size + 4], "big")
        if end > len(start):
            start = os.pread(self._fd, end, offset)
        return Record(position, received, kind, start[RECORD.size : end])

    def _learn(self, seen: _RecordView) -> None:
        record = seen.record
        if record.kind == OBJECT:
            self._positions.append(record.position)
            self._offsets.append(seen.offset)
            self.last = record.position
        elif record.kind == DELETED:
            self.deleted += struct.unpack(f"!{len(record.data) // 8}Q", record.data)
        self.end = seen.end

    def _scan(self, up_to: int) -> Iterator[_RecordView]:
        """Good records behind what is known, passing over what is damaged."""
        data, base = b"", 0
        offset, last = self.end, self.last
        while True:
            start = offset - base
            if len(data) - start < RECORD.size + _length(data, start):
                size = max(READ_BYTES, RECORD.size + self._length_at(offset))
                data, base, start = os.pread(self._fd, size, offset), offset, 0
            seen = self._check(data, start, offset)
            if seen is None or not self._follows(seen, last):
                seen = self._behind(offset, last, up_to)
                if seen is None:
                    return
                data = b""
            if seen.record.position > up_to:
                return
            offset, last = seen.end, seen.record.position
            yield seen

    def _behind(self, offset: int, last: int, up_to: int) -> _RecordView | None:
        """The first record behind a damage; None at the end, or before what was being written when its writer died."""
        if last >= up_to:
            return None
        seen = None
        for good in self._good_ones(offset, last):
            seen = seen or good
            if up_to != _LAST or max(good.synced, self._known) > last:
                break
        else:  # none of those behind says that more than that was on disk when it was written
            if up_to == _LAST:
                return None
        size = os.fstat(self._fd).st_size
        if offset >= size:  # it ends here: what is missing was in another one
            return None
        end, before = (seen.offset, seen.record.position) if seen is not None else (size, 0)
        damage = Damage(self.path, offset, end - offset, last, before)
        if damage not in self.damages:
            self.damages.append(damage)
        return seen

    def _length_at(self, offset: int) -> int:
        return min(_length(os.pread(self._fd, RECORD.size, offset)), MAX_BODY)

    def _follows(self, seen: _RecordView, last: int) -> bool:
        position, kind = seen.record.position, seen.record.kind
        return position > last if kind == OBJECT else position >= last

    def _check(self, data: bytes, start: int, offset: int) -> _RecordView | None:
        """The record at `start`, which is `offset` in the file, if it is whole and as it was written."""
        if len(data) - start < RECORD.size:
            return None
        marker, length, crc, position, received, synced, kind = RECORD.unpack_from(data, start)
        end = start + RECORD.size + length
        if marker != MARKER or length > MAX_BODY or end > len(data) or kind not in KINDS:
            return None
        body = data[start + RECORD.size : end]
        if zlib.crc32(body, zlib.crc32(data[start + CHECKED_FROM : start + RECORD.size], self._seed)) != crc:
            return None
        return _RecordView(offset, offset + RECORD.size + length, Record(position, received, kind, body), synced)

    def _good_ones(self, offset: int, last: int) -> Iterator[_RecordView]:
        """The good records behind `offset`."""
        for at in self._markers(offset):
            start = os.pread(self._fd, RECORD.size, at)
            if _length(start) > MAX_BODY:
                continue
            seen = self._check(start + os.pread(self._fd, _length(start), at + RECORD.size), 0, at)
            if seen is not None and self._follows(seen, last):
                last = seen.record.position
                yield seen

    def _markers(self, offset: int) -> Iterator[int]:
        """Where records may begin, from behind `offset` on."""
        base = offset + 1
        while data := os.pread(self._fd, READ_BYTES, base):
            for found in re.finditer(MARKER, data):
                yield base + found.start()
            if len(data) < len(MARKER):
                return
            base += max(1, len(data) - len(MARKER) + 1)


def head_of(path: Path, data: bytes, archive: bytes | None = None) -> VolumeHead:
    """The head of a file that begins with `data`. Raises StorageError."""
    try:
        magic, *fields, crc = HEAD.unpack(data)
    except struct.error as exc:
        raise StorageError(f"{path} is not a file of the log: it has {len(data)} bytes", path=str(path)) from exc
    if magic != MAGIC or crc != zlib.crc32(data[:-4]):
        raise StorageError(f"{path} is not a file of the log, or its head is damaged", path=str(path))
    head = VolumeHead(*fields)
    if archive is not None and head.archive != archive:
        raise StorageError(f"{path} is of another archive", hint="Put it back to where it is from", path=str(path))
    return head


def _length(data: bytes, start: int = 0) -> int:
    """Length of a record's body, by its beginning; 0 if that is not there."""
    return int.from_bytes(data[start + 4 : start + 8], "big") if len(data) - start >= 8 else 0
