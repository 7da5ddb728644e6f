"""Room of an archive: what is kept takes so many bytes, more may come until a quota or the disk is full, and then the
oldest may give way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from jbi_pubsub.archive.folder import Folder
from jbi_pubsub.archive.log import Log
from jbi_pubsub.archive.registrations import Addition
from jbi_pubsub.archive.upkeep import Free, Stored
from jbi_pubsub.archive.volume import RECORD
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.errors import StorageError

TAIL_PARTS: Final = 16
"""Parts of a volume: the bytes of objects are counted together by these, until all of them are in packs."""
QUOTA_VOLUMES: Final = 8
"""Volumes that a quota has room for, at least, where the oldest one is to give way."""
VOLUME_LEAST: Final = 1 << 20
FREE_ABOVE: Final = 0.9
"""Share of a quota: above that the oldest go, where they are to give way."""


class ArchiveRoom:
    """Bytes that are kept, and that may be. Whoever changes what is kept has a lock of its own."""

    def __init__(self, section: ArchiveSection, folder: Folder, volume_bytes: int) -> None:
        self._section = section
        self._has_quota = section.max_metadata_bytes > 0 or section.max_payload_bytes > 0
        self._folder = folder
        quota = min(filter(None, (section.max_metadata_bytes, section.max_payload_bytes)), default=0)
        if quota and section.full == "drop_oldest":  # what is written can't give way
            volume_bytes = min(volume_bytes, max(quota // QUOTA_VOLUMES, VOLUME_LEAST))
        self.volume_bytes = volume_bytes
        """Size of a file of the log."""
        self._stored = Stored(0, 0, 0, 0, 0)
        """The worker's last word on what lies there."""
        self._begun_when_stored = 0
        self._tail: deque[Addition] = deque()
        """Additions that are in no pack yet, and below their bytes of metadata and of payloads."""
        self._tail_bytes = [0, 0]
        self.spare = self._reserve = 0
        """Bytes of the disk beyond the reserve, and the reserve."""
        self._lost_folder = ""
        """Why the folder can't be used any more."""
        self._lacking = 0
        """Bytes that there was no room for when that was asked last, though an empty archive would have it."""

    def add(self, additions: Iterable[Addition]) -> None:
        """Count what is in no pack yet."""
        for addition in additions:
            last = self._tail[-1] if self._tail else None
            if last is not None and last.metadata + last.payload < self.volume_bytes // TAIL_PARTS:
                self._tail[-1] = replace(
                    last,
                    last=addition.last,
                    objects=last.objects + addition.objects,
                    metadata=last.metadata + addition.metadata,
                    payload=last.payload + addition.payload,
                )
            else:
                self._tail.append(addition)
            self._tail_bytes[0] += addition.metadata
            self._tail_bytes[1] += addition.payload

    def store(self, stored: Stored, log: Log) -> None:
        """The worker tells of what lies there: what was put into packs is no tail any more."""
        self._stored, self._begun_when_stored = stored, log.begun
        while self._tail and self._tail[0].last <= stored.up_to:
            addition = self._tail.popleft()
            self._tail_bytes[0] -= addition.metadata
            self._tail_bytes[1] -= addition.payload

    @property
    def sealed(self) -> int:
        """The last position that lies in a pack, or went."""
        return self._stored.up_to

    def look(self) -> None:
        """Look at the disk."""
        try:
            found = self._folder.look()
        except OSError as exc:  # it is gone, or its disk
            self.spare, self._lost_folder = 0, f"it can't be looked at: {exc.strerror}"
            return
        self._lost_folder = ""
        share = int(self._section.reserve * found.f_frsize * found.f_blocks)
        self._reserve = min(share, self._section.reserve_bytes)
        self.spare = found.f_frsize * found.f_bavail - self._reserve

    def check_folder(self) -> None:
        """Raises StorageError where the folder is gone: SQLite goes on in files that nobody finds any more."""
        if self._lost_folder:
            raise StorageError(f"the archive in {self._folder.path} can't be written: {self._lost_folder}")

    def lack(self, size: int, log: Log, *, ahead: bool = False) -> str:
        """Why there is no room for so many bytes; "" if there is. `ahead`: nor for the next file of the log."""
        if size <= self.spare >= self.volume_bytes and not (self._has_quota or self._lost_folder):
            return ""  # nearly always: this is asked for each object
        why = self._lack(size, log, ahead)
        if why and size <= (self._section.max_payload_bytes or size):
            self._lacking = size
        return why

    def check(self, size: int, log: Log) -> None:
        """Raises StorageError when there is no room for so many bytes."""
        if why := self.lack(size, log):
            raise StorageError(
                f"the archive in {self._folder.path} has no room: {why}",
                hint="Make room, or shorten what is kept ([[keep]]); see [archive] full",
                path=str(self._folder.path),
            )

    def full(self, log: Log) -> str:
        """Why there is no room for what it was asked for last in vain; "": there is, or it was asked for nothing."""
        why = self._lack(self._lacking, log, ahead=False)
        if not why:
            self._lacking = 0
        return why

    def _lack(self, size: int, log: Log, ahead: bool) -> str:
        section, (metadata, payload) = self._section, self._bytes()
        if self._lost_folder:
            return self._lost_folder
        if section.max_metadata_bytes and metadata >= section.max_metadata_bytes:
            return f"metadata take {metadata:,} of {section.max_metadata_bytes:,} bytes"
        if section.max_payload_bytes and payload + size > section.max_payload_bytes:
            return f"payloads take {payload:,} of {section.max_payload_bytes:,} bytes"
        if (ahead or size + RECORD.size > log.room) and self.spare < max(self.volume_bytes, size):
            free, kept = self.spare + self._reserve >> 20, self._reserve >> 20
            file = max(self.volume_bytes, size) >> 20
            return f"{free:,} MiB of the disk are free, {kept:,} MiB are to stay so, and a file takes {file:,} MiB"
        return ""

    def can_give_way(self, log: Log) -> bool:
        """Whether there is a volume beside the one that is written: told, or begun since."""
        return self._stored.volumes + log.begun - self._begun_when_stored > 1

    def surplus(self, log: Log) -> Free | None:
        """Bytes that are to be given up in time for the next volumes; None: none, or nothing can give way."""
        most = (self._section.max_metadata_bytes, self._section.max_payload_bytes)
        over = [
            max(0, used - int(FREE_ABOVE * limit)) if limit else 0
            for used, limit in zip(self._bytes(), most, strict=True)
        ]
        both = max(0, 2 * self.volume_bytes - self.spare)
        return Free(over[0], over[1], both) if (both or any(over)) and self.can_give_way(log) else None

    def status(self) -> dict[str, Any]:
        """Volumes, packs and bytes."""
        metadata, payload = self._bytes()
        return {
            "spare_bytes": self.spare,
            "volumes": self._stored.volumes,
            "packs": self._stored.packs,
            "metadata_bytes": metadata,
            "payload_bytes": payload,
        }

    def _bytes(self) -> tuple[int, int]:
        return self._stored.metadata + self._tail_bytes[0], self._stored.payload + self._tail_bytes[1]
