"""The audit log: one JSON object a line, appended, readable by its owner alone.

Rules:
- A decision never waits for it and never fails by it: what it is told waits in memory, bounded, for whoever calls
  `write`; what there is no room for is counted, and so is what the disk does not take.
- A file that has reached its size is renamed to FILE.1, that one to FILE.2 and so on; the oldest goes. Several
  processes may share a file: each line is one write, and who rotates holds a lock.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.core.files import lock
from jbi_pubsub.core.status import AuditStatus

from .file import failure

log = logging.getLogger("jbi_pubsub.policy")

FILE_BYTES: Final = 16 << 20
"""After which a file is rotated: some 60,000 lines."""
FILES_MOST: Final = 8
"""That are kept besides the current one."""
WAITING_MOST: Final = 10_000
"""Lines that wait to be written: a second's refusals by a stranger who does nothing else."""
WRITTEN_AT_ONCE: Final = 500


class AuditLog:
    """Any thread may `tell`; one at a time calls `write`."""

    def __init__(self, path: Path, *, most: int = FILE_BYTES, keep: int = FILES_MOST) -> None:
        """Makes the file. Raises PolicyError when that can't be."""
        self.path = path
        self._most = most
        self._keep = keep
        self._waiting: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()  # covers the counters
        self.written = 0
        self.lost = 0
        """Lines that there was no room for, or that the disk has not taken."""
        self.fault = ""
        """Why the disk takes nothing now."""
        self._is_torn = False
        """The file ends in the middle of a line."""
        try:
            self._file = self._opened()
        except OSError as exc:
            hint = "[policy] audit names a file that we may write"
            raise failure(str(path), f"audit log: {exc.strerror or exc}", hint=hint) from exc

    def tell(self, line: dict[str, Any]) -> None:
        """Have it written."""
        if len(self._waiting) >= WAITING_MOST:
            with self._lock:
                self.lost += 1
        else:
            self._waiting.append(line)

    def write(self) -> None:
        """Write what waits."""
        while self._waiting:
            lines = [self._waiting.popleft() for _ in range(min(len(self._waiting), WRITTEN_AT_ONCE))]
            try:
                self._make_room()
                torn = "\n" if self._is_torn else ""
                data = (torn + "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)).encode()
                taken = os.write(self._file, data)
                self._is_torn = taken < len(data) and (taken > 0 or self._is_torn)
                if taken < len(data):
                    raise OSError(f"{taken} of {len(data)} bytes taken")
            except OSError as exc:
                self._lose(len(lines), exc)
            else:
                with self._lock:
                    self.written += len(lines)
                if self.fault:
                    log.warning("the audit log %s is written again; %d lines are lost", self.path, self.lost)
                self.fault = ""

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.write()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def status(self) -> AuditStatus:
        """Lines written and lost."""
        return AuditStatus(file=str(self.path), written=self.written, lost=self.lost, fault=self.fault)

    def _lose(self, count: int, why: OSError) -> None:
        with self._lock:
            self.lost += count
        if not self.fault:
            log.error("the audit log %s can't be written, refusals are counted only: %s", self.path, why)
        self.fault = why.strerror or str(why)

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):  # a pipe that nobody empties would hold up who reads the policy
            os.close(file)
            raise OSError(f"{self.path} is not a regular file")
        return file

    def _make_room(self) -> None:
        """Follow a file that another process has rotated, or rotate ours when it is full."""
        if self._is_elsewhere():
            self._reopen()
        if os.fstat(self._file).st_size < self._most:
            return
        try:
            lock(self._file)
        except BlockingIOError:
            return  # another process is about to; whoever else has it must not hold us up
        if not self._is_elsewhere():  # else another process was first
            for number in range(self._keep, 0, -1):
                before = self.path if number == 1 else Path(f"{self.path}.{number - 1}")
                if before.exists():
                    before.replace(f"{self.path}.{number}")
        self._reopen()

    def _is_elsewhere(self) -> bool:
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return True
        mine = os.fstat(self._file)
        return (named.st_ino, named.st_dev) != (mine.st_ino, mine.st_dev)

    def _reopen(self) -> None:
        new = self._opened()
        os.close(self._file)
        self._file = new
