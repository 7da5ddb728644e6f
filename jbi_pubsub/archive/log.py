"""The log: objects as they came, in files that are only ever appended to. What it says is on disk is on disk.

Rules:
- One writer, any number of readers. Positions go up; who appends gives them.
- A file (`volume.py`) has its room on disk from the beginning: a full disk is met when one is begun, where nothing has
  been promised yet. It ends when it is full, and is cut to its length.
- `sync` is one fdatasync(2) for all that was appended before, whoever asks; who comes meanwhile waits for the next.
- After a failed write or sync nothing may be trusted that was not on disk before (a system drops what it could not
  write, and says so once): the file is cut to what was, another is begun, and whoever asks whether the rest is on disk
  gets a StorageError.
- Recovery cuts what was being written when the process died, and nothing else. What is damaged otherwise stays where it
  is, is named, and passed over.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jbi_pubsub.archive.volume import (
    DELETED,
    HEAD,
    OBJECT,
    RECORD,
    Damage,
    LogVolume,
    VolumeHead,
    head_of,
    name_of,
    packed,
    seed_of,
)
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.info_object import Part

log = logging.getLogger("jbi_pubsub.archive")

VOLUME_BYTES: Final = 64 << 20
VOLUME_RECORDS: Final = 65_536
VOLUME_SECONDS: Final = 86_400.0
PARTS_AT_ONCE: Final = 1_000
"""Parts of one writev(2): IOV_MAX is 1,024."""
LOST_KNOWN: Final = 1_000
"""Ranges of positions that are known to be lost: whoever appended there asks within a batch."""
DELETED_AT_ONCE: Final = 10_000
SMALL_BYTES: Final = 64 << 10
"""Size of a file for deletions alone, where the disk has no room for a larger one: they are to make room."""


@dataclass
class Recovery:
    """Findings when a log was opened."""

    cut: int = 0
    """Bytes of a torn tail."""
    damages: list[Damage] = field(default_factory=list)


@dataclass
class _LogFile:
    """The file that is written."""

    path: Path
    fd: int
    room: int
    """Bytes that it has on disk."""
    end: int
    """Where the next record goes, and `synced`: as far as it is on disk."""
    synced: int
    began: float
    records: int = 0


class Log:
    """See the module. Any thread; who appends does so in the order of positions."""

    def __init__(
        self,
        folder: Path,
        archive: bytes,
        *,
        is_forced: bool = True,
        volume_bytes: int = VOLUME_BYTES,
        end: int = 0,
        known: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the log in `folder`, made if it is not there, of the archive with that id (16 bytes), and recovers it.
        `is_forced`: `sync` forces to the disk; else the system writes when it likes, or `force` is called. `end`: the
        last position that was ever given; `known`: that is on disk for sure. Raises StorageError."""
        self.folder = folder
        self.recovered = Recovery()
        self._archive = archive
        self._seed = seed_of(archive)
        self._is_forced = is_forced
        self._volume_bytes = volume_bytes
        self._volume_records = VOLUME_RECORDS
        self._clock = clock
        self._lock = threading.Lock()
        """Covers all state."""
        self._syncing = threading.Lock()
        """Whoever has it forces to the disk, or changes files. Taken before `_lock`."""
        self._lost: deque[tuple[int, int]] = deque(maxlen=LOST_KNOWN)
        """Positions (above, up to) that were appended, and are gone."""
        self._file: _LogFile | None = None
        self._is_closed = False
        self._end = self._synced = 0
        self.begun = 0
        """Files."""
        self._kept = 0
        """The last position in the files: those behind it, up to `_end`, are lost."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._recover(known)
        except OSError as exc:
            if isinstance(exc, StorageError):
                raise
            raise _failed(folder, "opened", exc) from exc
        self._end = self._synced = max(self._end, end)

    @property
    def end(self) -> int:
        """The last position that was appended."""
        return self._end

    @property
    def kept(self) -> int:
        """The last position that is in the files and was forced to the disk."""
        return self._kept

    @property
    def synced(self) -> int:
        """The last position that is on disk, or, where nothing is forced, with the system."""
        return self._synced if self._is_forced else self._end

    @property
    def room(self) -> int:
        """Bytes that are left in the file that is written, 0 if none is."""
        file = self._file
        return 0 if file is None else max(0, file.room - file.end)

    def is_lost(self, position: int) -> bool:
        """Whether what was appended there is gone."""
        with self._lock:
            return any(above < position <= up_to for above, up_to in self._lost)

    def append(self, run: Sequence[tuple[int, Sequence[Part]]], received: float) -> None:
        """Write objects under their positions. Raises StorageError: none of them is kept then."""
        if not run:
            return
        size = len(run) * RECORD.size + sum([len(part) for _, parts in run for part in parts])

        def parts_of(synced: int) -> list[Part]:
            out: list[Part] = []
            for position, parts in run:
                out += (packed(self._seed, position, received, synced, OBJECT, parts), *parts)
            return out

        self._write(run[0][0], run[-1][0], size, len(run), parts_of)

    def delete(self, positions: Sequence[int], now: float) -> None:
        """Write that objects are deleted. Raises StorageError."""
        for start in range(0, len(positions), DELETED_AT_ONCE):
            these = positions[start : start + DELETED_AT_ONCE]
            body = struct.pack(f"!{len(these)}Q", *these)

            def parts_of(synced: int, body: bytes = body) -> list[Part]:
                return [packed(self._seed, self._end, now, synced, DELETED, (body,)), body]

            self._write(0, 0, RECORD.size + len(body), 1, parts_of)
        self.force()

    def sync(self, position: int) -> None:
        """Return when what was appended up to that position is on disk. Raises StorageError if it never will be."""
        if self._is_forced and position > self._synced:
            self._force(position)
        if self._lost:
            self._check_lost(position)

    def force(self) -> None:
        """Force all that was appended to the disk, also where `sync` does not. Raises StorageError."""
        end = self._end
        self._force(end, always=True)
        if self._lost:
            self._check_lost(end)

    def check(self) -> None:
        """Leave the file that is written if somebody has taken it away: what is in it nobody finds. Now and then."""
        with self._syncing:
            file = self._file
            if file is not None and not os.fstat(file.fd).st_nlink:
                self._give_up(file, OSError(errno.ENOENT, "somebody has taken it away"))

    def close(self) -> None:
        """Force to the disk and close. Raises StorageError when that fails."""
        with self._syncing:
            if self._is_closed:
                return
            with self._lock:
                self._is_closed = True
                file, self._file = self._file, None
            if file is not None:
                self._finish(file)

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, first: int, last: int, size: int, count: int, parts_of: Callable[[int], list[Part]]) -> None:
        """`first`: where a new file begins, if one is begun, 0: behind the last object; `last`: the position of an
        object, 0 for none."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise StorageError(f"the archive in {self.folder} is closed")
                file = self._file
                if file is not None and self._fits(file, size, count):
                    try:
                        _write_all(file.fd, parts_of(self._synced), file.end)
                    except OSError as exc:
                        failure = exc
                        break
                    file.end += size
                    file.records += count
                    self._end = max(self._end, last)
                    return
            self._begin(first, size, count)
        with self._syncing:
            if self._file is file:
                self._give_up(file, failure)
        raise _failed(file.path, "written", failure) from failure

    def _fits(self, file: _LogFile, size: int, count: int) -> bool:
        return (
            file.end + size <= file.room
            and file.records + count <= max(self._volume_records, count)
            and 0.0 <= self._clock() - file.began < VOLUME_SECONDS  # less: the clock was ahead when it was begun
        )

    def _begin(self, first: int, size: int, count: int) -> None:
        """Another file, with room for so many bytes; `first` as in `_write`."""
        with self._syncing:
            with self._lock:
                file = self._file
                if self._is_closed or (file is not None and self._fits(file, size, count)):
                    return  # somebody else has begun one
                self._file = None
            if file is not None:
                self._finish(file)
            path = self.folder / name_of(first or self._end + 1)  # nobody appends meanwhile
            try:
                try:
                    begun = self._begun(path, first or self._end + 1, self._volume_bytes, size)
                except OSError as exc:
                    if first or exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    begun = self._begun(path, self._end + 1, SMALL_BYTES, size)
            except OSError as exc:
                raise _failed(path, "begun", exc) from exc
            with self._lock:
                self._file = begun
                self.begun += 1

    def _begun(self, path: Path, first: int, room: int, size: int) -> _LogFile:
        """A file with so many bytes, at least for `size` more. One with deletions alone has the name of the next: that
        goes on. Raises OSError."""
        now, end = self._clock(), HEAD.size
        if path.exists() and path.stat().st_size > end:
            end = _end_of_deletions(path, self._archive)
            room = max(room, end + size)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.posix_fallocate(fd, 0, room)
            except BaseException:
                os.close(fd)
                raise
        else:
            room = max(room, end + size)
            fd = _made(path, VolumeHead(self._archive, first, self._kept, now).packed(), room)
        return _LogFile(path, fd, room, end, end, now)

    def _finish(self, file: _LogFile) -> None:
        """Force a file to the disk, cut to its length, and close it. `_syncing` is held."""
        try:
            os.ftruncate(file.fd, file.end)
            os.fsync(file.fd)
        except OSError as exc:
            self._give_up(file, exc)
            raise _failed(file.path, "finished", exc) from exc
        os.close(file.fd)
        with self._lock:
            self._synced = self._kept = self._end

    def _force(self, position: int, *, always: bool = False) -> None:
        with self._syncing:
            with self._lock:
                file, end = self._file, self._end
                if file is None or (position <= self._synced and not always):
                    return
                reached = file.end
            try:
                os.fdatasync(file.fd)
            except OSError as exc:
                self._give_up(file, exc)
                raise _failed(file.path, "forced to the disk", exc) from exc
            with self._lock:
                self._synced = self._kept = max(self._synced, end)
                file.synced = reached

    # -- when a disk fails --------------------------------------------------------------------------------------

    def _give_up(self, file: _LogFile, why: OSError) -> None:
        """Cut a file to what is on disk for sure, and leave it. `_syncing` is held."""
        log.error("%s: %s; objects that are not on disk yet are refused", file.path, why.strerror or why)
        with self._lock:
            if self._end > self._synced:
                self._lost.append((self._synced, self._end))
            self._file = None
        try:
            os.ftruncate(file.fd, file.synced)
            os.fsync(file.fd)
        except OSError as exc:
            log.error("%s can't be cut to %d bytes: %s", file.path, file.synced, exc.strerror)
        finally:
            os.close(file.fd)

    def _check_lost(self, position: int) -> None:
        if self.is_lost(position):
            raise StorageError(
                f"the archive in {self.folder} could not write position {position}",
                hint="See the log of the delegate for what the disk said",
                position=position,
            )

    def _recover(self, known: int) -> None:
        """Find the end, and go on there."""
        files = sorted(self.folder.glob("*.log"))
        while files and not _has_head(files[-1]):
            log.warning("%s was incomplete when its writer died, and is deleted", files[-1])
            files.pop().unlink()
        if not files:
            return
        volume = LogVolume(files[-1], self._archive)
        try:
            cut = volume.recover(known)
            self._end = self._kept = volume.last
            self.recovered.damages = list(volume.damages)
            if volume.is_headless:
                log.error("the archive is damaged: the head of %s; its objects are read all the same", volume.path)
        finally:
            volume.close()
        for damage in self.recovered.damages:
            log.error("the archive is damaged: %s", damage)
        self._go_on(files[-1], volume, cut)

    def _go_on(self, path: Path, volume: LogVolume, cut: int) -> None:
        """Cut what was being written, and go on in that file if it is not full."""
        if cut:
            log.warning("%s: %d incomplete bytes of a killed writer are cut", path, cut)
            self.recovered.cut = cut
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        file = _LogFile(path, fd, self._volume_bytes, volume.end, volume.end, volume.head.began, volume.count)
        try:
            os.ftruncate(fd, file.end)
            if not self.recovered.damages and not volume.is_headless and self._fits(file, 0, 1):
                with suppress(OSError):  # no room: it ends here, and the next one is refused
                    os.posix_fallocate(fd, 0, file.room)
                    self._file = file
            os.fsync(fd)
        except OSError:
            self._file = None
            raise
        finally:
            if self._file is None:
                os.close(fd)


def _has_head(path: Path) -> bool:
    """Whether a file was begun so far that it may hold something."""
    with path.open("rb") as file:
        data, rest = file.read(HEAD.size), file.read(1)
    try:
        head_of(path, data)
    except StorageError:
        return bool(rest.strip(b"\0"))
    return True


def _end_of_deletions(path: Path, archive: bytes) -> int:
    """Where a file goes on in which there are deletions alone. Raises FileExistsError for another one."""
    with closing(LogVolume(path, archive)) as volume:
        volume.recover()
        if volume.count or volume.damages:
            raise FileExistsError(errno.EEXIST, "it is there already")
        return volume.end


def _made(path: Path, head: bytes, room: int) -> int:
    """A new file that begins so and has that much room on disk. Who sees it sees its head."""
    try:
        with written(path) as file:  # also in place of one that was given up before anything was in it
            os.posix_fallocate(file.fileno(), 0, room)
            file.write(head)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_all(fd: int, parts: Sequence[Part], offset: int) -> None:
    """All of it, though a call may write less."""
    for start in range(0, len(parts), PARTS_AT_ONCE):
        some = parts[start : start + PARTS_AT_ONCE]
        size = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        while written < size:
            rest = memoryview(b"".join(some))[written:]
            more = os.pwritev(fd, [rest], offset + written)
            if not more:
                raise OSError(errno.EIO, "nothing was written")
            written += more
        offset += size


def _failed(path: Path, what: str, why: OSError) -> StorageError:
    return StorageError(
        f"{path} could not be {what}: {why.strerror or why}",
        hint="What was not on disk yet is refused; see [archive] full for a full disk",
        path=str(path),
    )
