"""Byte strings by number, on disk: what packs are made of. Two kinds for metadata, two for payloads; one may be
replaced without the other.

A file of items: "JBIITEM1", a dictionary, the items one behind the other; a table, their lengths and CRC-32 (u32 each),
deflated; then where the table begins (u64), how many items there are (u32), how long the dictionary is (u32), and
CRC-32 of dictionary, table and these three. What comes back is what was put, byte for byte, or a StorageError.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import sync_folder
from jbi_pubsub.core.info_object import Part

MAGIC: Final = b"JBIITEM1"
FOOT: Final = struct.Struct("!QIII")
MAX_ITEM: Final = 1 << 27
"""Twice the largest object."""
DICTIONARY_BYTES: Final = 32 << 10
"""Deflate looks no further back (RFC 1951)."""
DICTIONARY_ITEMS: Final = 4
"""Samples of each kind of item: more of them save nothing."""
KINDS_MOST: Final = 8
WORTH: Final = 0.9
"""Share of the size: what gets no smaller than that is not deflated."""
VAIN_MOST: Final = 8
"""Items of a kind in a row that get no smaller, after which one in so many is tried: what is compressed already costs
twice as much to try as anything else that is done to it here."""
WRITE_BYTES: Final = 1 << 20
READ_AHEAD: Final = 64 << 10
"""Bytes that are read at a time of items that are asked for one after the other."""


class OneFile:
    """Items in one file, each encoded by itself."""

    def __init__(
        self,
        name: str,
        encode: Callable[[Iterable[Sequence[Part]], Sequence[str]], tuple[bytes, Iterable[bytes]]],
        decode: Callable[[bytes, bytes], bytes],
    ) -> None:
        """`name` stands in the packs that are made with it. `encode`: the dictionary, and items as they lie there;
        `decode` takes one of these and the dictionary."""
        self.name = name
        self._encode, self._decode = encode, decode

    def write(self, path: Path, items: Iterable[Sequence[Part]], kinds: Sequence[str]) -> int:
        """Write items, each in parts, below that path, forced to disk; `kinds`: for each, what it is like. Bytes on
        disk. Raises OSError."""
        return _write(path, *self._encode(items, kinds))

    def open(self, path: Path) -> ItemFile:
        """Raises StorageError."""
        return ItemFile(path, self._decode)

    def remove(self, path: Path) -> None:
        """Take away what was written there, if it is there."""
        path.unlink(missing_ok=True)


class FolderItems:
    """Items as files of a folder, for other tools: each as it is, under its number and CRC-32. Else as OneFile."""

    name = "folder"

    def write(self, path: Path, items: Iterable[Sequence[Part]], kinds: Sequence[str]) -> int:  # noqa: ARG002
        """See OneFile."""
        path.mkdir(mode=0o700)
        size = 0
        for number, parts in enumerate(items):
            crc = 0
            for part in parts:
                crc = zlib.crc32(part, crc)
            with (path / f"{number:08d}-{crc:08x}").open("xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
                size += file.tell()
        sync_folder(path)
        return size

    def open(self, path: Path) -> ItemFolder:
        """See OneFile."""
        return ItemFolder(path)

    def remove(self, path: Path) -> None:
        """See OneFile."""
        if path.is_dir():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


ItemStore = OneFile | FolderItems
"""A way to keep items."""


def numbers(code: str, data: bytes) -> array[int] | array[float]:
    """An array from its bytes, big-endian. Raises ValueError."""
    found = array(code)
    found.frombytes(data)
    if sys.byteorder == "little":
        found.byteswap()
    return found


def bytes_of(found: array[int] | array[float]) -> bytes:
    """The bytes of an array, big-endian."""
    swapped = found[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped.tobytes()


class ItemFile:
    """A file of items, open. One thread at a time."""

    def __init__(self, path: Path, decode: Callable[[bytes, bytes], bytes]) -> None:
        """Raises StorageError."""
        self._path = path
        self._decode = decode
        self._next = -1
        """Number of the item behind the last one that was asked for."""
        self._ahead, self._ahead_at = b"", 0
        """Bytes that were read ahead, and where they begin."""
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise StorageError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        try:
            self._read_table()
        except (struct.error, ValueError, zlib.error, OSError) as exc:
            os.close(self._fd)
            raise StorageError(f"{path} is not a file of items, or damaged: {exc}", path=str(path)) from exc

    def __len__(self) -> int:
        return len(self._crcs)

    def get(self, number: int) -> bytes:
        """One of them, from 0 on. Raises StorageError when it can't be read, or is not what was written."""
        start, end = self._ends[number], self._ends[number + 1]
        at = start - self._ahead_at
        if at >= 0 and end - self._ahead_at <= len(self._ahead):
            data = self._ahead[at : at + end - start]
        elif number == self._next:  # one after the other: the next ones as well
            self._ahead, self._ahead_at = os.pread(self._fd, max(end - start, READ_AHEAD), start), start
            data = self._ahead[: end - start]
        else:
            data = os.pread(self._fd, end - start, start)
        self._next = number + 1
        if len(data) != end - start or zlib.crc32(data) != self._crcs[number]:
            raise StorageError(
                f"{self._path} is damaged: item {number}, {end - start} bytes at {start}",
                path=str(self._path),
                offset=start,
            )
        return self._decode(data, self._dictionary)

    def close(self) -> None:
        """Close what is open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_table(self) -> None:
        size = os.fstat(self._fd).st_size
        if os.pread(self._fd, len(MAGIC), 0) != MAGIC or size < len(MAGIC) + FOOT.size:
            raise ValueError("it does not begin as one")
        foot = os.pread(self._fd, FOOT.size, size - FOOT.size)
        table_at, count, dictionary, crc = FOOT.unpack(foot)
        if not len(MAGIC) + dictionary <= table_at <= size - FOOT.size or count > size:
            raise ValueError("its end is damaged")
        table = os.pread(self._fd, size - FOOT.size - table_at, table_at)
        self._dictionary = os.pread(self._fd, dictionary, len(MAGIC))
        if zlib.crc32(foot[:-4], zlib.crc32(table, zlib.crc32(self._dictionary))) != crc:
            raise ValueError("its table is damaged")
        data = zlib.decompressobj().decompress(table, 8 * count + 1)
        lengths, self._crcs = numbers("I", data[: 4 * count]), numbers("I", data[4 * count :])
        self._ends = array("Q", accumulate(lengths, initial=len(MAGIC) + dictionary))
        if len(lengths) != count or len(self._crcs) != count or self._ends[-1] != table_at:
            raise ValueError("its table does not fit")


class ItemFolder:
    """A folder of items, open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._names = sorted(file.name for file in path.iterdir())
        except OSError as exc:
            raise StorageError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        missing = next((n for n, name in enumerate(self._names) if name[:9] != f"{n:08d}-"), None)
        if missing is not None:
            raise StorageError(f"{path} is damaged: item {missing} is missing", path=str(path))

    def __len__(self) -> int:
        return len(self._names)

    def get(self, number: int) -> bytes:
        """See ItemFile."""
        path = self._path / self._names[number]
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise StorageError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        if f"{zlib.crc32(data):08x}" != path.name[9:]:
            raise StorageError(f"{path} is damaged", path=str(path))
        return data

    def close(self) -> None:
        """See ItemFile."""


def _write(path: Path, dictionary: bytes, items: Iterable[bytes]) -> int:
    """A file of items; its size."""
    lengths, crcs = array("I"), array("I")
    with path.open("xb", buffering=WRITE_BYTES) as file:
        file.write(MAGIC + dictionary)
        for item in items:
            file.write(item)
            lengths.append(len(item))
            crcs.append(zlib.crc32(item))
        table = zlib.compress(bytes_of(lengths) + bytes_of(crcs))
        foot = FOOT.pack(len(MAGIC) + len(dictionary) + sum(lengths), len(lengths), len(dictionary), 0)[:-4]
        file.write(table + foot + zlib.crc32(foot, zlib.crc32(table, zlib.crc32(dictionary))).to_bytes(4, "big"))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _deflated(items: Iterable[Sequence[Part]], kinds: Sequence[str]) -> tuple[bytes, Iterator[bytes]]:
    """Small items that are like each other: each deflated by itself (RFC 1951), with some of them as a dictionary."""
    whole = [b"".join(parts) for parts in items]
    dictionary = _dictionary(whole, kinds)

    def deflated(item: bytes) -> bytes:
        squeeze = zlib.compressobj(6, zlib.DEFLATED, -15, 6, zdict=dictionary)  # so small, 1 would be no faster
        return squeeze.compress(item) + squeeze.flush()

    return dictionary, map(deflated, whole)


def _inflated(data: bytes, dictionary: bytes) -> bytes:
    return zlib.decompressobj(-15, zdict=dictionary).decompress(data, MAX_ITEM)


def _dictionary(items: Sequence[bytes], kinds: Sequence[str]) -> bytes:
    """Typical items: what is commonest stands last, where it is nearest."""
    often = [kind for kind, _ in Counter(kinds).most_common(KINDS_MOST)]
    chosen: list[bytes] = []
    for kind in often:
        those = [number for number, each in enumerate(kinds) if each == kind]
        step = max(1, len(those) // DICTIONARY_ITEMS)
        chosen = [*(items[number] for number in those[::step][:DICTIONARY_ITEMS]), *chosen]
        if sum(map(len, chosen)) >= DICTIONARY_BYTES:
            break
    return b"".join(chosen)[-DICTIONARY_BYTES:]


def _squeezed(items: Iterable[Sequence[Part]], kinds: Sequence[str]) -> Iterator[bytes]:
    """Items, each with a byte in front that says whether it is deflated."""
    vain: Counter[str] = Counter()
    for number, (parts, kind) in enumerate(zip(items, kinds, strict=True)):
        deflated = b""
        if vain[kind] < VAIN_MOST or number % VAIN_MOST == 0:
            squeeze = zlib.compressobj(1)
            deflated = b"".join([squeeze.compress(part) for part in parts]) + squeeze.flush()
            is_worth = len(deflated) < WORTH * sum(map(len, parts))
            vain[kind] = 0 if is_worth else vain[kind] + 1
        yield b"\1" + deflated if deflated and not vain[kind] else b"\0" + b"".join(parts)


def _stretched(data: bytes, _dictionary: bytes) -> bytes:
    return zlib.decompressobj().decompress(data[1:], MAX_ITEM) if data[:1] == b"\1" else data[1:]


_DEFLATED: Final = OneFile("deflated", _deflated, _inflated)
_PLAIN: Final = OneFile("plain", lambda items, _kinds: (b"", map(b"".join, items)), lambda data, _dictionary: data)
_FILE: Final = OneFile("file", lambda items, kinds: (b"", _squeezed(items, kinds)), _stretched)
METADATA_STORES: Final[dict[str, ItemStore]] = {each.name: each for each in (_DEFLATED, _PLAIN)}
PAYLOAD_STORES: Final[dict[str, ItemStore]] = {each.name: each for each in (_FILE, FolderItems())}
"""Ways to keep items, by name. "file": items of any size, each as it is, or deflated where that saves a tenth."""
