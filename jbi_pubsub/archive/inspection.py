"""A look at the folder of an archive that no process has open: what is in it, and whether all of it can be read.

Nothing is changed, but that the folder is taken meanwhile: whoever would write is kept away.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.archive.catalogue import VERSION, read_only
from jbi_pubsub.archive.folder import CATALOGUE, INDEX, Folder, archive_of
from jbi_pubsub.archive.store import LOG, PACKS, Volume, VolumeStore
from jbi_pubsub.archive.volume import LogVolume
from jbi_pubsub.core.errors import ProtocolError, StorageError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Parcel

TOLD_MOST: Final = 1_000
"""Troubles that are told in words; beyond that there is one more."""


class Inspection(msgspec.Struct):
    """Contents of a folder. Bytes are of files."""

    folder: str
    position: int = 0
    """Position of the last object."""
    objects: int = 0
    """On disk, those among them that are deleted and not taken out yet."""
    deleted: int = 0
    types: dict[str, int] = msgspec.field(default_factory=dict)
    """Objects of each; without reading all: kept ever."""
    volumes: int = 0
    packs: int = 0
    log_bytes: int = 0
    pack_bytes: int = 0
    index_bytes: int = 0
    registrations: int = 0
    consumers: int = 0
    torn: int = 0
    """Bytes at the end that were being written when the last process died: they are cut when it is opened."""
    troubles: list[str] = msgspec.field(default_factory=list)


def inspected(path: Path, *, whole: bool, tell: Callable[[int, int], None] = lambda _done, _all: None) -> Inspection:
    """`whole`: each object is read. `tell` hears how many objects of how many were. Raises StorageError for a folder
    that is no archive's, is in use by a process, or can't be read."""
    archive_of(path)
    folder = Folder(path, patience=0.5)
    try:
        found = Inspection(str(path))
        store = VolumeStore(path, folder.archive)
        with closing(store):
            _look_at_volumes(store, found, _checkpoint(path / CATALOGUE))
            if whole:
                _read_all(store, found, tell)
        _look_at_catalogue(path / CATALOGUE, folder.archive, found, whole=whole)
        found.log_bytes, found.pack_bytes, found.index_bytes = (_size(path / name) for name in (LOG, PACKS, INDEX))
        aside = (*path.glob(f"{LOG}/*.damaged"), *path.glob("*.damaged*"))
        found.troubles += [f"{each}: set aside as damaged" for each in sorted(aside)]
        del found.troubles[TOLD_MOST:]
        return found
    finally:
        folder.close()


def _checkpoint(path: Path) -> int:
    """Position that was on disk by the catalogue; 0 if it says nothing, which is told where it is looked at."""
    try:
        with read_only(path) as base:
            return int(base.execute("SELECT checkpoint FROM archive").fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def _look_at_volumes(store: VolumeStore, found: Inspection, known: int) -> None:
    store.refresh(0)
    for volume in store.volumes:
        if isinstance(volume, LogVolume):
            is_last = volume is store.volumes[-1]  # of others what is missing is a damage, which is found below
            found.torn = volume.recover(known if is_last else 0)
            found.deleted += len(set(volume.deleted))
    last = max((volume.last for volume in store.volumes), default=0)
    store.refresh(last)  # now that the end is known, what is missing between is
    found.troubles += store.troubles
    found.position = last
    found.objects = sum(volume.count for volume in store.volumes)
    found.volumes = len(store.volumes)
    found.packs = sum(not isinstance(volume, LogVolume) for volume in store.volumes)


def _read_all(store: VolumeStore, found: Inspection, tell: Callable[[int, int], None]) -> None:
    types: Counter[str] = Counter()
    read = 0
    for volume in store.volumes:
        before = set(volume.troubles())
        read += _read(volume, types, found)
        found.troubles += [trouble for trouble in volume.troubles() if trouble not in before]
        tell(read, found.objects)
    found.types = dict(sorted(types.items()))


def _read(volume: Volume, types: Counter[str], found: Inspection) -> int:
    count = 0
    for record in volume.read(0, MAX_POSITION):
        count += 1
        try:
            head = Parcel.received(record.data).head
        except ProtocolError as exc:
            found.troubles.append(f"{volume.path}: position {record.position} is not an object: {exc.message}")
        else:
            types[f"{head.type_name} {head.type_version}"] += 1
    return count


def _look_at_catalogue(path: Path, archive: bytes, found: Inspection, *, whole: bool) -> None:
    if not path.exists():
        found.troubles += [f"{path} is missing: durable subscriptions and ids of deleted objects are lost"]
        return
    try:
        with read_only(path) as base:
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                found.troubles.append(f"{path} is of version {version}, not {VERSION}")
                return
            (said,) = base.execute(f"PRAGMA {'integrity_check' if whole else 'quick_check'}(1)").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(str(said))
            found.registrations, found.consumers = (
                base.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608  # names of ours
                for name in ("registrations", "consumers")
            )
            owner, ends = base.execute("SELECT id, ends FROM archive").fetchone() or (None, 0)
            if owner != archive:
                found.troubles.append(f"{path} is of another archive")
            elif ends > found.position:
                said = f"the catalogue knows of objects up to position {ends}, the volumes end at {found.position}"
                found.troubles.append(f"{said}: those between were refused when the disk failed, or are damaged")
            if not whole:
                rows = base.execute(
                    "SELECT type || ' ' || version, sum(objects) FROM registrations GROUP BY 1 ORDER BY 1"
                )
                found.types = dict(rows.fetchall())
    except sqlite3.Error as exc:
        found.troubles.append(f"{path} is damaged: {exc}")


def _size(folder: Path) -> int:
    """Bytes that the files of a folder take on disk."""
    try:
        return sum(each.stat().st_blocks * 512 for each in folder.rglob("*") if each.is_file())
    except OSError as exc:
        raise StorageError(f"{folder} can't be read: {exc.strerror}", path=str(folder)) from exc
