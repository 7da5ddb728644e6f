"""All volumes of an archive, for readers: files of the log and packs, in the order of positions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from jbi_pubsub.archive.pack import AWAKE_MOST, Awake, Pack
from jbi_pubsub.archive.volume import LogVolume, Record
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import stamp
from jbi_pubsub.core.history import MAX_POSITION

LOG, PACKS = "log", "packs"
"""Folders of an archive."""


Volume = LogVolume | Pack
"""A file of the log, or a pack. One thread at a time."""


class VolumeStore:
    """See the module. One thread at a time; several may have one each, in any process."""

    def __init__(self, folder: Path, archive: bytes, *, awake_most: int = AWAKE_MOST) -> None:
        """Store of the archive in that folder, with that id. Sees nothing until `refresh`. `awake_most`: packs that are
        ready to be read at once."""
        self.folder = folder
        self._archive = archive
        self._volumes: dict[int, Volume] = {}
        self._order: list[int] = []
        self._awake = Awake(awake_most)
        self.troubles: list[str] = []
        """Files that can't be read, are of another archive, or missing."""
        self._holes: list[tuple[int, int, str]] = []
        """Those of them that are not there at all: above one position, up to another."""

    @property
    def volumes(self) -> list[Volume]:
        """By position."""
        return [self._volumes[first] for first in self._order]

    def refresh(self, up_to: int) -> None:
        """Learn which volumes have come or gone, and what is in them as far as that position, which is on disk."""
        found = {int(path.stem): path for path in (self.folder / LOG).glob("*.log") if path.stem.isdigit()}
        found |= {int(path.stem): path for path in (self.folder / PACKS).glob("*.pack") if path.stem.isdigit()}
        troubles: list[str] = []
        unread: dict[int, str] = {}
        for first, volume in list(self._volumes.items()):
            if found.get(first) != volume.path or (isinstance(volume, Pack) and volume.is_replaced()):
                volume.close()
                del self._volumes[first]
        for first, path in found.items():
            if first not in self._volumes:
                try:
                    self._volumes[first] = _open(path, self._archive, self._awake)
                except StorageError as exc:
                    unread[first] = str(exc)
        self._order = sorted(self._volumes)
        volumes = self.volumes
        ends = [*(volume.previous for volume in volumes[1:]), up_to]
        for volume, end in zip(volumes, ends, strict=False):  # of no volumes there is an end too
            volume.refresh(min(end, up_to))
            troubles += volume.troubles()
        starts = sorted(found)
        holes = [(first - 1, _next(starts, first) - 1, why) for first, why in unread.items()]
        for before, volume in pairwise(volumes):
            if before.last < volume.previous <= up_to:  # what comes behind was written meanwhile
                gap = f"between position {before.last} and {volume.previous}"
                holes.append((before.last, volume.previous, f"{self.folder}: {gap} a volume is missing, or damaged"))
        self._holes = holes
        self.troubles = troubles + [why for _, _, why in holes]

    def lacks(self, after: int, up_to: int) -> list[str]:
        """Gaps that are known by now between two positions, as messages: what is found there is incomplete."""
        lost = [why for low, high, why in self._holes if low < up_to and high > after]
        return lost + [why for volume in self.volumes for why in volume.troubles(after, up_to)]

    def read(self, after: int, up_to: int, *, newest_first: bool = False) -> Iterator[Record]:
        """Objects above one position and not above another."""
        low = max(0, bisect_right(self._order, after) - 1)
        volumes = self.volumes[low : bisect_right(self._order, up_to)]
        for volume in reversed(volumes) if newest_first else volumes:
            yield from volume.read(after, up_to, newest_first=newest_first)

    def get(self, positions: Sequence[int]) -> Iterator[Record]:
        """Objects by position, in that order (ascending or descending); those that are not there are left out."""
        return self._by_volume(positions, lambda volume: volume.get)

    def metadata(self, positions: Sequence[int]) -> Iterator[Record]:
        """The same, but of each object's bytes no more than its head: all but the payload."""
        return self._by_volume(positions, lambda volume: volume.metadata)

    def close(self) -> None:
        """Close all files."""
        for volume in self._volumes.values():
            volume.close()
        self._volumes, self._order = {}, []

    def _by_volume(
        self, positions: Sequence[int], of: Callable[[Volume], Callable[[Sequence[int]], Iterator[Record]]]
    ) -> Iterator[Record]:
        start = 0
        while start < len(positions):
            place = bisect_right(self._order, positions[start]) - 1
            end = start + 1
            while end < len(positions) and bisect_right(self._order, positions[end]) - 1 == place:
                end += 1
            if place >= 0:
                yield from of(self._volumes[self._order[place]])(positions[start:end])
            start = end


def _next(starts: Sequence[int], first: int) -> int:
    """Where the volume behind one begins."""
    place = bisect_right(starts, first)
    return starts[place] if place < len(starts) else MAX_POSITION


def _open(path: Path, archive: bytes, awake: Awake) -> Volume:
    """A volume; what it has become, if it was sealed or made anew since it was looked for. Raises StorageError."""
    if path.suffix != ".pack":
        try:
            return LogVolume(path, archive)
        except StorageError:
            path = path.parent.parent / PACKS / f"{path.stem}.pack"
            if not path.exists():
                raise
    while True:
        before = stamp(path)
        try:
            return Pack(path, archive, awake)
        except StorageError:
            if stamp(path) == before:
                raise
