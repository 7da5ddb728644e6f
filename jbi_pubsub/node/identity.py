"""A node's folder: one process has it at a time, and who the node is lies in it, over restarts."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from pathlib import Path
from typing import Annotated, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.files import is_locked, locked, opened, written
from jbi_pubsub.core.homes import user_folder
from jbi_pubsub.core.values import from_json

log = logging.getLogger("jbi_pubsub.node")

IDENTITY: Final = "identity.json"
LOCK: Final = "lock"
RUNNING: Final = "running.json"
"""File of what others on this host have to know of the node that runs; whether one does, the lock says."""

FILE_MOST: Final = 64 << 10
"""Bytes of either file that are read."""
EPOCH_LIMIT: Final = 1 << 32
"""Epochs have so many bits in datagrams."""
CLOCK_MOST: Final = 0xF000_0000
"""The latest time that is an epoch; a clock behind it is wrong, and starts are counted on from here."""
LOOK_SECONDS: Final = 1.0
"""For those who look whether a node runs to have looked: they hold the lock for a moment."""


class Identity(msgspec.Struct, frozen=True):
    """A node's identity: `id` for good, `epoch` greater with each start, so that what it says now is later than all
    before. An epoch is the time of the start, in seconds: so it is greater than all that a copy of the folder does not
    know. Where the clock is behind, it is one more than the last."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=EPOCH_LIMIT)]


class NodeProcess(msgspec.Struct, frozen=True):
    """A node that runs: its process, where to call it, its log's file, and the URL of its gateway; "" for none."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    """0 and below stand for many processes, which are not to be ended."""
    id: str
    name: str
    epoch: int
    address: str
    lookup: str
    log: str = ""
    gateway: str = ""


def default_folder() -> Path:
    """Folder of a node that none is configured for. Raises ConfigurationError: its user has no home."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "jbi-pubsub" / "node"


class NodeFolder:
    """A node's folder, held until `close`."""

    def __init__(self, path: Path) -> None:
        """Makes it, for its user alone, if it is missing. Raises StorageError: another node has it, or it can't be
        written."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = locked(path / LOCK, patience=LOOK_SECONDS)
        except BlockingIOError as exc:
            there = running(path)
            raise StorageError(
                f"{path} is the folder of a node that runs" + (f", as process {there.pid}" if there else ""),
                hint="Stop it with `jbi node stop`, or give this one a [node] folder of its own",
            ) from exc
        except OSError as exc:
            raise _unusable(path, exc) from exc
        try:
            (path / RUNNING).unlink(missing_ok=True)  # of one that was killed: its process may be another's by now
            self.identity = self._next_epoch()
        except OSError as exc:
            self.close()
            raise _unusable(path, exc) from exc

    def _next_epoch(self) -> Identity:
        """Written and on disk before anybody is told. A file that can't be read is kept beside, and the node a new
        one."""
        file = self.path / IDENTITY
        known = None
        try:
            known = from_json(Identity, _read(file))
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError) as exc:
            log.error("%s is damaged and was renamed to %s.damaged: this node has a new id (%s)", file, IDENTITY, exc)
            file.replace(file.with_name(f"{IDENTITY}.damaged"))
        told = Identity(known.id, _epoch(known.epoch)) if known is not None else Identity(uuid4().hex, _epoch())
        self._write(file, msgspec.json.encode(told))
        return told

    def renew(self) -> Identity:
        """Be a new node from now on: another one has our id. Raises StorageError."""
        told = Identity(uuid4().hex, _epoch())
        try:
            self._write(self.path / IDENTITY, msgspec.json.encode(told))
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        self.identity = told
        return told

    def tell(self, told: NodeProcess) -> None:
        """Say on this host that the node runs. Raises StorageError."""
        try:
            self._write(self.path / RUNNING, msgspec.json.encode(told))
        except OSError as exc:
            raise _unusable(self.path, exc) from exc

    def _write(self, file: Path, data: bytes) -> None:
        with written(file) as out:
            out.write(data)

    def close(self) -> None:
        """Let others have it. Safe to repeat."""
        if self._lock >= 0:
            (self.path / RUNNING).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def running(path: Path) -> NodeProcess | None:
    """The node that has that folder now; None: none, or it has not said so yet. Raises StorageError."""
    if not is_held(path):
        return None
    try:
        return from_json(NodeProcess, _read(path / RUNNING))
    except (OSError, ValueError, RecursionError):
        return None


def is_held(path: Path) -> bool:
    """Whether a process has that folder. Raises StorageError: we may not look."""
    try:
        return is_locked(path / LOCK)
    except OSError as exc:
        raise _unusable(path, exc) from exc


def wait_until_free(path: Path, seconds: float) -> bool:
    """Whether nobody has that folder any more within `seconds`."""
    deadline = time.monotonic() + seconds
    while is_held(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _epoch(last: int = 0) -> int:
    return max(last + 1, min(int(time.time()), CLOCK_MOST))


def _read(file: Path) -> bytes:
    """Raises OSError, also for what is no file: a pipe would be waited for."""
    with opened(file) as reading:
        if not stat.S_ISREG(os.fstat(reading.fileno()).st_mode):
            raise OSError(errno.EINVAL, f"{file.name} is not a file")
        return reading.read(FILE_MOST)


def _unusable(path: Path, exc: OSError) -> StorageError:
    return StorageError(
        f"[node] folder {path}: {exc.strerror or exc}", hint="Name one that this user can write, with room on its disk"
    )
