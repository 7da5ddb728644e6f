"""The folder in which what was made of schemas is kept, for other processes of the same user.

Rules:
- Who can write there could have any documents taken for valid: the folder is the user's own (mode 0700 when it is made
  here) or the system's, and so is each file; others are left alone. Files are plain data with a checksum, bounded in
  size, and nothing of them is run.
- What is damaged, or of another version, is made anew. A folder that can't be used costs time, not correctness.
- Of several processes that come with one schema at once one has it opened, the others wait for that.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.files import TEMPORARY, written

MAX_FILES: Final = 500
"""Files of a folder; the oldest go first."""

MAX_BYTES: Final = 128 << 20
"""Bytes of all of them; Intel_Imagery has 5,000, the largest schemas looked at 1,000,000."""

MAX_FILE_BYTES: Final = 32 << 20

_SUM_BYTES: Final = 16

log = logging.getLogger("jbi_pubsub.codegen")


class SchemaFolder:
    """Folder of what was made of schemas, on disk. Several threads and processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, key: str) -> bool:
        """Whether there is something under `key`, good or not."""
        return self._file(key).exists()

    def find(self, key: str, make: Callable[[], bytes], is_good: Callable[[bytes], bool]) -> bytes:
        """The content under `key`, if it `is_good`, else what is made, which stands there from now on if it can. Raises
        what `make` does."""
        found: bytes | None = None
        try:
            self._check()
            found = self._read(key, is_good)
            if found is None:
                with written(self._file(key), is_durable=False) as file:
                    found = self._read(key, is_good) or make()  # another process may have been faster
                    file.write(_sum(key, found) + found)
                self._thin()
        except JbiError:
            raise
        except OSError as exc:
            log.info("the schema cache in %s is not written: %s", self._path, exc)
        return make() if found is None else found

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.type"

    def _check(self) -> None:
        """Raises OSError where others could write."""
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_safe(self._path.stat()):
            log.warning(
                "%s is not used as schema cache, because other users may write there: chmod go-w, or rm -r", self._path
            )
            raise PermissionError("others may write there")

    def _read(self, key: str, is_good: Callable[[bytes], bool]) -> bytes | None:
        with suppress(OSError):  # none, a symbolic link
            fd = os.open(self._file(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode) and _is_safe(status):
                    whole = file.read(MAX_FILE_BYTES + 1)
                    found = whole[_SUM_BYTES:]
                    if len(whole) <= MAX_FILE_BYTES and whole[:_SUM_BYTES] == _sum(key, found) and is_good(found):
                        return found
        return None

    def _thin(self) -> None:
        """Take the oldest files away where there is too much."""
        files = []
        for path in (*self._path.glob("*.type"), *self._path.glob(f".*{TEMPORARY}")):
            with suppress(OSError):  # another process took it away
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        files.sort()
        count, size = len(files), sum(size for _, size, _ in files)
        for _, each, path in files:
            if count <= MAX_FILES and size <= MAX_BYTES:
                break
            path.unlink(missing_ok=True)
            count, size = count - 1, size - each


def _is_safe(status: os.stat_result) -> bool:
    """Whether only the system and we can write it."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def _sum(key: str, data: bytes) -> bytes:
    return blake2b(data, digest_size=_SUM_BYTES, key=key.encode()).digest()
