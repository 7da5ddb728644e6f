"""Payloads that are too large for a record of the archive, in files beside its log, each named by its object's id.

Rules:
- A file is whole and on disk before its object is appended; the record has all but the payload.
- A file goes when the archive has no object of that id any more: that is looked at when objects were deleted, and now
  and then. A new one is left alone for a while: its object may not be on disk yet.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import BackPressureError, StorageError
from jbi_pubsub.core.files import TEMPORARY, written
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.spool import COPIED_BYTES, Spool, SpooledPayload
from jbi_pubsub.core.ticker import Job

FOLDER: Final = "large"
SUFFIX: Final = ".payload"
SWEEP_SECONDS: Final = 600.0
"""Between two looks at what is not needed any more, unless somebody has deleted."""
NEW_SECONDS: Final = 60.0
"""A file that is younger is of an object that may not be on disk yet."""
SWEPT_AT_ONCE: Final = 1_000
_NAME: Final = re.compile(r"[0-9A-Za-z._-]{1,200}")
"""Ids of objects that delegates take. One that was brought may have another, which is no name of a file here."""

Known = Callable[[Collection[str]], set[str]]
"""Which of these ids are those of objects in the archive; may raise."""


class LargePayloads:
    """The files of one archive. Any thread."""

    def __init__(self, archive: Path, limit: int) -> None:
        """`archive`: its folder; `limit`: bytes that all files may have together, 0: as many as the disk has."""
        self._folder = archive / FOLDER
        self._limit = limit
        self._known: Known = set
        self._spool = Spool(str(self._folder), 0, 0)
        self._sweeping = Job("archive-large", SWEEP_SECONDS, self._sweep, slow=True)

    def follow(self, known: Known) -> None:
        """Take files away, from now on, of objects that the archive has not."""
        self._known = known
        if self._folder.is_dir():
            self._sweeping.start(after=SWEEP_SECONDS)

    def keep(self, parcel: Parcel) -> Parcel:
        """Put the payload of an object on disk; the object without it. Raises StorageError."""
        payload = parcel.spooled
        assert payload is not None
        path = self._path(parcel.head.object_id)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if path.is_file() and path.stat().st_size == len(payload):  # it comes again
                os.utime(path)  # its object may not be on disk yet: it is new again
            else:
                self._check_room(len(payload))
                with written(path) as file:
                    for chunk in payload.chunks(COPIED_BYTES):
                        file.write(chunk)
        except OSError as exc:
            if isinstance(exc, StorageError):
                raise
            raise StorageError(
                f"{path} could not be written: {exc.strerror or exc}",
                hint="Make room, or register with persist=False", path=str(path),
            ) from exc  # fmt: skip
        self._sweeping.start(after=SWEEP_SECONDS)
        return parcel.with_payload(b"")

    def whole(self, parcel: Parcel) -> Parcel:
        """An object of the archive that has no payload, with it if that is here. Raises StorageError, BackPressureError
        when too many are read at once."""
        head = parcel.head
        if not _NAME.fullmatch(head.object_id):
            return parcel
        try:
            fd = os.open(self._path(head.object_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return parcel  # the rules have given it up
        except OSError as exc:
            raise self._spool.failed(exc) from exc
        try:
            self._spool.take(0, 0.0, files=1)
        except BackPressureError:
            os.close(fd)
            raise
        payload = SpooledPayload(self._spool, fd, 0)
        payload.found()
        if len(payload) != head.payload_length:
            raise StorageError(
                f"{self._path(head.object_id)} has {len(payload)} bytes of {head.payload_length}: it was damaged",
                hint="Bring it back from a backup, or delete the object", path=str(self._folder),
            )  # fmt: skip
        return Parcel.spooled_as(head, bytes(parcel.parts[0][: parcel.payload_at]), payload)

    def sweep(self) -> None:
        """Have files taken away, soon, that belong to nothing."""
        self._sweeping.wake()

    def close(self) -> None:
        """Sweep no more."""
        self._sweeping.stop(10.0)

    def take_away(self, older: float = NEW_SECONDS) -> int:
        """Take files away that belong to nothing, and are so many seconds old; how many. Raises what `known` does."""
        before, count = time.time() - older, 0
        files = [path for path, found in self._files() if found.st_mtime <= before]
        for path in files:
            if path.suffix == TEMPORARY:
                path.unlink(missing_ok=True)
        names = [path.name.removesuffix(SUFFIX) for path in files if path.suffix == SUFFIX]
        for start in range(0, len(names), SWEPT_AT_ONCE):
            these = names[start : start + SWEPT_AT_ONCE]
            for name in set(these) - self._known(these):
                self._path(name).unlink(missing_ok=True)
                count += 1
        return count

    def _check_room(self, size: int) -> None:
        used = sum(found.st_size for _, found in self._files()) if self._limit else 0
        if self._limit and used + size > self._limit:
            raise StorageError(
                f"large payloads in {self._folder} take {used} bytes of {self._limit}: no room for {size} more",
                hint="Make room, or raise [archive] max_payload_bytes", path=str(self._folder),
            )  # fmt: skip

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Those that are there; another thread may take some away, or rename them, meanwhile."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                yield path, path.stat()

    def _path(self, object_id: str) -> Path:
        return self._folder / f"{object_id}{SUFFIX}"

    def _sweep(self) -> None:
        self.take_away()
