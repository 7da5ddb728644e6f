"""Files that several may use at once: locked for one process, written as a whole, read again when they have changed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

T = TypeVar("T")

LOOK_SECONDS: Final = 1.0
"""Between two looks at a file that is watched."""
TEMPORARY: Final = ".tmp"
"""The end of a file's name that is being written, beside the one that it will replace. A dead process leaves one."""
_PAUSE: Final = 0.02
"""Seconds between two tries to lock a file."""
_WRITE_SECONDS: Final = 60.0
"""Seconds that somebody else may take to write the same file."""
_NO_LOCKS: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP))
"""Errors of a file system that has no locks."""

Stamp = tuple[int, ...]


def stamp(path: Path) -> Stamp:
    """Value that changes with a file, or with why it can't be looked at: two that are equal are of the same content,
    unless it was written again within the resolution of the file system's clock."""
    try:
        found = path.stat()
    except OSError as exc:
        return (exc.errno or 0,)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


# -- locks ------------------------------------------------------------------------------------------------------------


def locked(path: Path, *, patience: float = 0.0, needed: bool = True, mode: int = 0o600) -> int:
    """A descriptor of a file or folder that is this one's alone (flock(2)) until the descriptor is closed, and the
    copies of it that children have. The lock ends with its processes, however they end. A file is made if it is
    missing, and says the process (`locker`). `needed`: a file system without locks is an error. Raises BlockingIOError
    when another one has it after `patience` seconds, OSError."""
    kind = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    while True:
        fd = os.open(path, kind | os.O_CLOEXEC, mode)
        try:
            lock(fd, patience, needed=needed)
            if _is_named(fd, path):
                if kind & os.O_CREAT:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # of a file that another one has moved away or removed meanwhile


def lock(fd: int, patience: float = 0.0, *, needed: bool = True) -> None:
    """`locked` for a descriptor that is there already."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                if not needed and exc.errno in _NO_LOCKS:
                    return
                raise
            if time.monotonic() >= until:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process has locked it") from exc
        else:
            return
        time.sleep(_PAUSE)


def _is_named(fd: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def is_locked(path: Path) -> bool:
    """Whether somebody has locked that file now. Raises OSError: we may not look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def locker(path: Path) -> int:
    """The id of the process that has locked that file, or had; 0: it has not said so yet."""
    with suppress(OSError, ValueError):
        return int(path.read_bytes()[:20])
    return 0


def opened(path: Path) -> BinaryIO:
    """A file to read; a pipe does not hold us up. Raises OSError."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


# -- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def written(
    path: Path, *, mode: int | None = 0o600, is_durable: bool = True, replaces: bool = True
) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` as a whole when the block ends, and not at all when that raises:
    nobody sees half of it, and two that write it at once do so one after the other. `mode`: its permissions, None:
    those of the file that was there, or what the umask leaves; `is_durable`: it is on disk then; `replaces`: else a
    file that is there already stays. Raises OSError."""
    beside = path.with_name(f".{path.name}{TEMPORARY}")
    fd = locked(beside, patience=_WRITE_SECONDS, needed=False, mode=0o666 if mode is None else mode)
    with os.fdopen(fd, "wb") as file:
        try:
            os.ftruncate(fd, 0)
            yield file
            file.flush()
            if mode is None and path.exists():
                mode = path.stat().st_mode & 0o7777
            if mode is not None:
                os.fchmod(fd, mode)
            if is_durable:
                os.fsync(fd)
            if replaces:
                beside.replace(path)
            else:
                with suppress(FileExistsError):
                    os.link(beside, path)
                beside.unlink()
            if is_durable:
                sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


def sync_folder(path: Path) -> None:
    """Force the names in a folder to disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- watching ---------------------------------------------------------------------------------------------------------


class Watched(Generic[T]):
    """Contents of files, read again when they have changed. Nobody waits for that: whoever needs the value looks."""

    def __init__(
        self,
        paths: tuple[Path, ...],
        read: Callable[[], T],
        *,
        every: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads them at once. Raises what `read` does."""
        self._paths, self._read, self._every, self._clock = paths, read, every, clock
        self._lock = threading.Lock()
        self._stamps = self._stamped()  # of before the reading: what is written meanwhile is another change
        self._looked = clock()
        self.value = read()
        self.version = 1
        """Grows with each value."""

    def look(self) -> bool:
        """Whether there is another value now, once in `every` seconds at most. Raises what `read` does, once for each
        change: then the value of before stays."""
        now = self._clock()
        if 0 <= now - self._looked < self._every or not self._lock.acquire(blocking=False):
            return False
        try:
            self._looked = now
            stamps = self._stamped()
            if stamps == self._stamps:
                return False
            self._stamps = stamps
            self.value = self._read()
            self.version += 1
            return True
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Have the files read again at the next look, whether they have changed or not."""
        self._stamps = ()

    def _stamped(self) -> tuple[Stamp, ...]:
        return tuple(map(stamp, self._paths))
