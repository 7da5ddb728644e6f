"""Platforms of another kind that have types and objects alone: what those have in common."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence

from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.protocol.remote import RemoteAnswers, RemoteArchive
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .platform import BridgedRegistration, PlatformAnswers


class PlainPlatform:
    """The part of a Platform that shows a registration for each type, without schema and without a past."""

    def __init__(self, kind: str, name: str, wall: Callable[[], float] = time.time) -> None:
        self.name = name
        """Name in `via`."""
        self._kind = kind
        self._wall = wall
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()  # covers what follows
        self._published: dict[TypeName, BridgedRegistration] = {}
        self._numbers: dict[str, int] = {}

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

    def _next(self, uid: str) -> int:
        """Number of the next object of a registration."""
        with self._lock:
            number = self._numbers[uid] = max(self._numbers.get(uid, 0) + 1, int(self._wall() * 1e6))
        return number

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:
        """There is nobody to be told."""

    def query(self, request: QueryRequest) -> RemoteAnswers:  # noqa: ARG002  # the protocol's
        """No answers: there is no past that could be asked for."""
        return PlatformAnswers(None)

    def provide(self, foreign: RemoteArchive) -> None:
        """Nobody asks."""
