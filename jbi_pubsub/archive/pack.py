"""Volumes that nobody writes any more, made small: metadata deflated one by one, payloads apart.

Three names below one number: `.meta` and `.data`, as their stores keep items, and `.pack`, which is written last and
says what the others hold: until it is there, there is no pack.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES, ItemFile, ItemFolder, ItemStore, bytes_of, numbers
from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import stamp, sync_folder, written
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.values import decoder_of

MAGIC: Final = b"JBIPACK1"
AWAKE_MOST: Final = 32
"""Packs of one store that are ready to be read, some 2 MB each; to wake one takes 5 ms."""


class _PackTable(msgspec.Struct, frozen=True, array_like=True):
    """Table of a `.pack`, behind its magic and CRC-32."""

    archive: bytes
    first: int
    last: int
    previous: int
    """Last position before it."""
    began: float
    metadata: str
    payloads: str
    """Names of the stores."""
    size_metadata: int
    size_payloads: int
    """Bytes on disk."""
    count: int
    positions: bytes
    """Deflated: each as the difference to the one before (u64)."""
    received: bytes
    """Deflated (f64)."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Damages of the file that it was made of: the positions before and behind (0: the end)."""


_table = decoder_of(_PackTable)


class Sealable(msgspec.Struct, frozen=True):
    """Source of a pack: the head of a file of the log, or of an earlier pack."""

    archive: bytes
    first: int
    last: int
    previous: int
    began: float
    gaps: tuple[tuple[int, int], ...] = ()


def name_of(first: int) -> str:
    """Name of the pack that begins with that position."""
    return f"{first:020d}.pack"


def seal(
    of: Sealable,
    records: Sequence[Record],
    folder: Path,
    *,
    metadata: ItemStore,
    payloads: ItemStore,
    gone: Container[int] = (),
) -> Path:
    """Make a pack of a volume's objects, but for those that are `gone`, and force it to disk. One that is there under
    the same number is replaced. Raises StorageError; what was there before is there then."""
    kept = [record for record in records if record.kind == OBJECT and record.position not in gone]
    parcels = [Parcel.received(record.data) for record in kept]
    path = folder / name_of(of.first)
    turn = _turn(path)
    base = folder / f"{of.first:020d}{turn}"
    meta, data = base.with_suffix(".meta"), base.with_suffix(".data")
    kinds = [f"{parcel.head.type_name} {parcel.head.type_version}" for parcel in parcels]
    try:
        _remove(meta, data)
        try:
            sizes = (
                metadata.write(meta, ((_beginning(p),) for p in parcels), kinds),
                payloads.write(data, ((p.payload,) for p in parcels), kinds),
            )
        except OSError:
            with suppress(OSError):
                _remove(meta, data)  # where the disk is full, its part of it is missed
            raise
        table = _PackTable(
            of.archive, of.first, of.last, of.previous, of.began, metadata.name, payloads.name, *sizes, len(kept),
            zlib.compress(bytes_of(_differences([record.position for record in kept]))),
            zlib.compress(bytes_of(array("d", (record.received for record in kept)))),
            of.gaps,
        )  # fmt: skip
        _put(path, turn.encode() + msgspec.msgpack.encode(table))
    except OSError as exc:
        raise StorageError(f"{path} could not be made: {exc.strerror or exc}", path=str(path)) from exc
    other = folder / f"{of.first:020d}{_other(turn)}"
    _remove(other.with_suffix(".meta"), other.with_suffix(".data"))
    return path


class Awake:
    """Packs that have their positions in memory and their files open: so many at most, those used last."""

    def __init__(self, most: int = AWAKE_MOST) -> None:
        self._most = most
        self._packs: dict[Pack, None] = {}

    def touch(self, pack: Pack) -> None:
        """Note that a pack is used now."""
        self._packs.pop(pack, None)
        self._packs[pack] = None
        while len(self._packs) > self._most:
            next(iter(self._packs)).close()

    def forget(self, pack: Pack) -> None:
        """Note that a pack is not awake any more."""
        self._packs.pop(pack, None)


class _Parts:
    """Parts that a pack needs to be read: 33 bytes an object, and two files."""

    def __init__(self, path: Path, turn: str, table: _PackTable) -> None:
        """Raises StorageError."""
        base = path.with_name(path.stem + turn)
        try:
            self.positions = _sums(zlib.decompress(table.positions))
            self.received = numbers("d", zlib.decompress(table.received))
            stores = METADATA_STORES[table.metadata], PAYLOAD_STORES[table.payloads]
        except (zlib.error, ValueError, KeyError) as exc:
            raise StorageError(f"{path} is not a pack that this version can read: {exc}", path=str(path)) from exc
        self.metadata: ItemFile | ItemFolder = stores[0].open(base.with_suffix(".meta"))
        try:
            self.payloads: ItemFile | ItemFolder = stores[1].open(base.with_suffix(".data"))
        except StorageError:
            self.metadata.close()
            raise
        parts = (self.positions, self.received, self.metadata, self.payloads)
        if {len(part) for part in parts} != {table.count}:
            self.close()
            raise StorageError(f"{path} is damaged: its parts are not of one length", path=str(path))

    def close(self) -> None:
        """Close its files."""
        self.metadata.close()
        self.payloads.close()


class Pack:
    """A pack: a volume like those of the log. One thread at a time."""

    def __init__(self, path: Path, archive: bytes | None = None, awake: Awake | None = None) -> None:
        """Raises StorageError for a file that is none, is damaged, or of another archive than `archive`. `awake`: those
        of which it is one; None: it is until it is closed."""
        self.path = path
        self._stamp = stamp(path)
        self._awake = awake or Awake()
        turn, table = _read(path)
        if archive is not None and table.archive != archive:
            raise StorageError(f"{path} is of another archive", hint="Put it back to where it is from", path=str(path))
        self._table = msgspec.structs.replace(table, positions=b"", received=b"")
        self.first, self.last, self.count = table.first, table.last, table.count
        self.gaps = table.gaps
        self._bad: dict[int, StorageError] = {}
        self._unread: StorageError | None = None
        """Why it could not be read again."""
        self._parts: _Parts | None = _Parts(path, turn, table)
        self._awake.touch(self)

    def close(self) -> None:
        """Keep nothing of it in memory, nor files open, until it is asked again."""
        self._awake.forget(self)
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    @property
    def previous(self) -> int:
        """The last position before it."""
        return self._table.previous

    @property
    def positions(self) -> Sequence[int]:
        """Positions of all its objects, those that can't be read as well."""
        parts = self._woken()
        return parts.positions if parts is not None else ()

    @property
    def bad(self) -> list[StorageError]:
        """Errors of what could not be read: an object each, or all of it."""
        return [*self._bad.values(), *filter(None, [self._unread])]

    def troubles(self, after: int = 0, up_to: int = MAX_POSITION) -> list[str]:
        """Messages about what could not be read between two positions."""
        gaps = [(a, b) for a, b in self.gaps if a < up_to and not 0 < b <= after + 1]
        lost = [f"{self.path}: made without what was damaged between {a} and {b or 'the end'}" for a, b in gaps]
        lost += [str(self._unread)] if self._unread is not None and after < self.last and up_to >= self.first else []
        return lost + [str(why) for position, why in self._bad.items() if after < position <= up_to]

    def is_replaced(self) -> bool:
        """Whether another one stands in its place by now."""
        return stamp(self.path) != self._stamp

    @property
    def sealable(self) -> Sealable:
        """Source that it can be made anew of."""
        table = self._table
        return Sealable(table.archive, table.first, table.last, table.previous, table.began, table.gaps)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of metadata and payloads on disk."""
        return self._table.size_metadata, self._table.size_payloads

    def refresh(self, up_to: int) -> int:  # noqa: ARG002  # as of a file of the log
        """Return 0: it does not grow."""
        return 0

    def read(self, after: int, up_to: int, *, newest_first: bool = False) -> Iterator[Record]:
        """Objects above one position and not above another."""
        parts = self._woken()
        if parts is None:
            return
        places = range(bisect_right(parts.positions, after), bisect_right(parts.positions, up_to))
        for place in reversed(places) if newest_first else places:
            yield from self._at(parts, place, whole=True)

    def get(self, positions: Sequence[int]) -> Iterator[Record]:
        """Objects by position, in that order; those that are not here are left out."""
        return self._records(positions, whole=True)

    def metadata(self, positions: Sequence[int]) -> Iterator[Record]:
        """The same, but of each object's bytes no more than its head: all but the payload."""
        return self._records(positions, whole=False)

    def _woken(self) -> _Parts | None:
        """Parts that there are to read; None: it is gone, or can't be read any more."""
        if self._parts is None:
            try:
                self._parts = _Parts(self.path, *_read(self.path))  # also of one that stands in its place by now
            except StorageError as exc:
                self._unread = exc if self.path.exists() else None
                return None
            self._unread = None
        self._awake.touch(self)
        return self._parts

    def _records(self, positions: Sequence[int], *, whole: bool) -> Iterator[Record]:
        parts = self._woken()
        if parts is None:
            return
        for position in positions:
            place = bisect_left(parts.positions, position)
            if place < len(parts.positions) and parts.positions[place] == position:
                yield from self._at(parts, place, whole=whole)

    def _at(self, parts: _Parts, place: int, *, whole: bool) -> Iterator[Record]:
        position = parts.positions[place]
        try:
            data = parts.metadata.get(place)
            if whole:
                data += parts.payloads.get(place)
        except (OSError, zlib.error) as exc:
            if self.is_replaced():  # by one without what was deleted; items that are files of their own went with it
                yield from self._replacement(position, whole=whole)
                return
            why = exc if isinstance(exc, StorageError) else StorageError(f"{self.path} is damaged: {exc}")
            self._bad[position] = why
            return
        yield Record(position, parts.received[place], OBJECT, data)

    def _replacement(self, position: int, *, whole: bool) -> Iterator[Record]:
        """An object as it is in what stands in this one's place, if it is there."""
        with suppress(StorageError), closing(Pack(self.path, self._table.archive)) as other:
            yield from other.get((position,)) if whole else other.metadata((position,))


def remove(path: Path) -> None:
    """Take a pack away: first what says that it is there. Raises OSError."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
    for turn in ("", "b"):
        base = path.with_name(path.stem + turn)
        _remove(base.with_suffix(".meta"), base.with_suffix(".data"))


def _beginning(parcel: Parcel) -> bytes:
    """All of an object but its payload."""
    return bytes(memoryview(parcel.parts[0])[: parcel.payload_at])


def _turn(path: Path) -> str:
    """Names of the next pack under a number: another one may be read meanwhile."""
    try:
        return _other(_read(path)[0])
    except StorageError:
        return ""


def _other(turn: str) -> str:
    return "b" if turn == "" else ""


def _read(path: Path) -> tuple[str, _PackTable]:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise StorageError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
    body = data[len(MAGIC) + 4 :]
    if data[: len(MAGIC)] != MAGIC or zlib.crc32(body).to_bytes(4, "big") != data[len(MAGIC) : len(MAGIC) + 4]:
        raise StorageError(f"{path} is not a pack, or damaged", path=str(path))
    turn = "b" if body[:1] == b"b" else ""
    try:
        return turn, _table.decode(body[len(turn) :])
    except msgspec.DecodeError as exc:
        raise StorageError(f"{path} is not a pack that this version can read: {exc}", path=str(path)) from exc


def _put(path: Path, body: bytes) -> None:
    """Write a file in one step."""
    sync_folder(path.parent)
    with written(path) as file:
        file.write(MAGIC + zlib.crc32(body).to_bytes(4, "big") + body)


def _remove(metadata: Path, payloads: Path) -> None:
    for store in METADATA_STORES.values():
        store.remove(metadata)
    for store in PAYLOAD_STORES.values():
        if payloads.exists() and payloads.is_dir() == (store.name == "folder"):
            store.remove(payloads)


def _differences(positions: Sequence[int]) -> array[int]:
    return array("Q", (b - a for a, b in zip([0, *positions], positions, strict=False)))


def _sums(data: bytes) -> array[int]:
    return array("Q", accumulate(map(int, numbers("Q", data))))
