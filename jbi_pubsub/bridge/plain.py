"""Platforms of another kind that have types and objects alone: what those have in common."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.files import written
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .platform import BridgedRegistration, PlatformAnswers

log = logging.getLogger("jbi_pubsub.bridge")

NOTED_AHEAD: Final = 1_000_000
"""Microseconds by which a note is beyond the number: so there is one a second at most."""


class TimedNumbers:
    """Numbers of objects, by the time. Each is beyond those before it, also those of a process before this one,
    whatever the wall clock says: subscribers and archives take what goes back for what they have. A file has up to
    which one they are given. Any thread."""

    def __init__(self, file: Path, wall: Callable[[], float]) -> None:
        self._file, self._wall = file, wall
        self._lock = threading.Lock()
        self._last = self._noted = 0
        self._is_broken = False

    def next(self) -> int:
        """Next number; it is noted before anybody has it."""
        with self._lock:
            number = max(self._last + 1, int(self._wall() * 1e6))
            if number > self._noted:
                number = max(number, self._read() + 1)  # another process may have it, too
                self._noted = number + NOTED_AHEAD
                self._write()
            self._last = number
        return number

    def _read(self) -> int:
        try:
            return int(self._file.read_bytes()[:16])
        except (FileNotFoundError, ValueError):
            return 0
        except OSError as exc:
            self._tell(exc)
            return 0

    def _write(self) -> None:
        try:
            with written(self._file, mode=None) as file:
                file.write(b"%d\n" % self._noted)
        except OSError as exc:
            self._tell(exc)

    def _tell(self, exc: OSError) -> None:
        if not self._is_broken:
            self._is_broken = True
            log.warning(
                "%s: %s. The bridge goes on, but after a restart with the clock set back its objects are lost until the"
                " clock is where it was; have the folder writable for it",
                self._file, exc.strerror,
            )  # fmt: skip


class PlainPlatform:
    """The part of a Platform that shows a registration for each type, without schema and without a past."""

    def __init__(
        self, kind: str, name: str, bridge: str, folder: Path, *, wall: Callable[[], float] = time.time
    ) -> None:
        """`bridge`: its name, the same in all its processes; `folder`: that of its file."""
        self.name = name
        """Name in `via`."""
        self._kind = kind
        self._wall = wall
        self._numbers = TimedNumbers(folder / f"{bridge}-{name}.number", wall)
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()  # covers what follows
        self._published: dict[TypeName, BridgedRegistration] = {}

    def published(self) -> Sequence[BridgedRegistration]:
        """A registration for each type."""
        with self._lock:
            return list(self._published.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that has changed."""
        self._changed = changed

    def wanted(self, changed: Callable[[Wanted], None], *, members: bool = False) -> None:  # noqa: ARG002  # nobody knows
        """Have `changed` told that all is wanted: it can't be asked who is there."""
        changed(EVERYTHING)

    def schema(self, published: BridgedRegistration) -> SchemaBundle:
        """None: nobody has one."""
        return bundle_without(published.type)

    def _registration_of(self, type_: TypeName, said: str) -> BridgedRegistration:
        """Its id is made of what is `said`: of bridges side by side one relays a type."""
        text = f"jbi-pubsub {self._kind} 1:{self.name}\0{said}"
        return BridgedRegistration(f"registration-{hashlib.sha256(text.encode()).hexdigest()[:32]}", type_)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """There is nobody to be told."""

    def query(self, request: QueryRequest) -> RemoteAnswers:  # noqa: ARG002  # the protocol's
        """No answers: there is no past that could be asked for."""
        return PlatformAnswers(None)

    def provide(self, foreign: RemoteArchive) -> None:
        """Nobody asks."""
