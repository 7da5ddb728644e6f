"""The folder of an archive: one process's at a time, one user's, nothing else's.

ARCHIVE       says that it is one, and its id
LOCK          flock(2)ed as long as somebody has it; the process's id stands in it
archive.db    the catalogue
log/ packs/   volumes
index/        derived
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time
import uuid
from pathlib import Path
from typing import Final

from jbi_pubsub.archive.pack import Pack
from jbi_pubsub.archive.store import LOG, PACKS
from jbi_pubsub.archive.volume import HEAD, head_of
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import locked, locker, written

MARK: Final = "ARCHIVE"
LOCK: Final = "LOCK"
CATALOGUE: Final = "archive.db"
INDEX: Final = "index"
OURS: Final = frozenset((MARK, LOCK, CATALOGUE, LOG, PACKS, INDEX, "types"))
"""Names that may be in it from the beginning; all else in a folder without a mark is somebody else's."""
_FORMAT: Final = "jbi-pubsub archive 1"
_PATIENCE: Final = 3.0
"""Seconds that a helper of a process that has died may have the folder: the system ends it with that process."""


class Folder:
    """An archive's folder, taken: nobody else has it until it is closed."""

    def __init__(self, path: Path, *, patience: float = _PATIENCE) -> None:
        """Takes the folder, made for its owner alone if it is not there. Raises StorageError: another process has it
        (fact `pid`), it is another user's, not an archive's, of another version, or can't be used."""
        self.path = path
        self._fd = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(path)
            _check_content(path)
            _check_kinds(path)
            self._fd = self._locked(time.monotonic() + patience)
            path.chmod(0o700)
            self.archive: Final = _id_of(path)
            """Its id, 16 bytes."""
        except OSError as exc:
            self.close()
            if isinstance(exc, StorageError):
                raise
            raise StorageError(
                f"the archive's folder {path} can't be used: {exc.strerror or exc}",
                hint="It must be a folder of this user's, on a disk that can be written"
                + "; copy it to one" * (exc.errno == errno.EROFS),
                path=str(path),
            ) from exc

    @property
    def lock(self) -> int:
        """The locked file. A helper process that inherits it keeps others away as long as it lives."""
        return self._fd

    def look(self) -> os.statvfs_result:
        """Space left on its disk. Raises OSError: it is gone, or another one is in its place."""
        found = os.statvfs(self.path)
        if not os.path.samestat((self.path / LOCK).stat(), os.fstat(self._fd)):
            raise OSError(errno.ESTALE, "another folder is in its place")
        return found

    def close(self) -> None:
        """Let others have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _locked(self, until: float) -> int:
        while True:
            try:
                return locked(self.path / LOCK)
            except BlockingIOError as exc:
                pid = locker(self.path / LOCK)
                if _is_running(pid) or time.monotonic() >= until:
                    raise StorageError(
                        f"the archive in {self.path} is in use by process {pid}",
                        hint="Each delegate has a folder of its own: set [archive] folder, or stop that process",
                        path=str(self.path),
                        pid=pid,
                    ) from exc
            time.sleep(0.02)


def archive_of(path: Path) -> bytes:
    """The id of the archive in a folder, for those who only look. Raises StorageError."""
    try:
        first, _, rest = (path / MARK).read_text(encoding="ascii").partition("\n")
        if first == _FORMAT:
            return uuid.UUID(rest.strip()).bytes
    except FileNotFoundError:
        raise StorageError(f"{path} is not an archive's folder", path=str(path)) from None
    except (OSError, ValueError) as exc:
        raise StorageError(f"{path / MARK} can't be read: {exc}", path=str(path)) from exc
    if first.startswith(_FORMAT.rpartition(" ")[0]):
        raise StorageError(
            f"the archive in {path} is of another version: {first[:80]!r}", hint="Use the version that made it"
        )
    raise StorageError(f"{path / MARK} is damaged", path=str(path))


def _check_owner(path: Path) -> None:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        raise StorageError(
            f"the archive's folder {path} belongs to user {name}",
            hint="Run as that user, or set [archive] folder",
            path=str(path),
            owner=name,
        )


def _check_content(path: Path) -> None:
    """That it is an archive's, or empty."""
    names = {each.name for each in path.iterdir()}
    others = sorted(names - OURS) if MARK not in names else []
    if others:
        raise StorageError(
            f"{path} is not an archive's folder: there is {others[0]!r}",
            hint="Set [archive] folder to an empty folder, or to one that is not there yet",
            path=str(path),
        )


def _check_kinds(path: Path) -> None:
    """That nothing is in it that keeps whoever opens it waiting: a pipe, a device."""
    for place in (path, path / LOG, path / PACKS, path / INDEX):
        for each in place.iterdir() if place.is_dir() else ():
            try:
                mode = each.stat().st_mode
            except FileNotFoundError:  # a link to nowhere: whoever opens it says so
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise StorageError(
                    f"{each} is neither a file nor a folder",
                    hint="Take it away: no archive has made it",
                    path=str(each),
                )


def _id_of(path: Path) -> bytes:
    """The archive's id; a new one for an empty folder. Where the mark was lost, volumes say it."""
    mark = path / MARK
    try:
        return archive_of(path)
    except StorageError:
        known = _id_in_volumes(path)
        if known is None and mark.exists():
            raise
    found = known or uuid.uuid4().bytes
    with written(mark) as file:
        file.write(f"{_FORMAT}\n{uuid.UUID(bytes=found)}\n".encode())
    return found


def _id_in_volumes(path: Path) -> bytes | None:
    """Id in the first volume that can be read. None if the mark tells another version, or there is no volume."""
    mark = path / MARK
    if mark.exists() and mark.read_bytes().startswith(b"jbi-pubsub archive "):
        line = mark.read_bytes().partition(b"\n")[0]
        if line != _FORMAT.encode():
            return None
    for file in sorted((path / LOG).glob("*.log")):
        try:
            with file.open("rb") as data:
                return head_of(file, data.read(HEAD.size)).archive
        except (StorageError, OSError):  # the next one may say it
            continue
    for file in sorted((path / PACKS).glob("*.pack")):
        try:
            pack = Pack(file)
        except StorageError:
            continue
        pack.close()
        return pack.sealable.archive
    return None


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # it has just ended, or this is not Linux
        return True
    return state[:1] != ["Z"]  # dead, and not waited for by its parent
