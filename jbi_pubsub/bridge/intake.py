"""Objects that a direction of a bridge hears at its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import InfoObject

from .listed import BridgedRegistration
from .platform import BridgePlatform
from .relayed import Relayed


class Hearing(Protocol):
    """A direction, as what it hears is told."""

    def arrived(self, obj: InfoObject) -> None:
        """An object of the source."""
        ...

    def lost_before(self, cause: str, count: int, uid: str = "", up_to: int = 0, name: str = "") -> None:
        """Objects did not come from the source."""
        ...

    def waiting(self, uid: str) -> int:
        """Number of a registration's last objects that the target has not taken."""
        ...

    def trouble(self, what: str, exc: JbiError | None) -> None:
        """Something can't be done now; None: it is done."""
        ...


class SideReceiver:
    """Receiver of a subscription: to types of a name, or of any."""

    def __init__(self, hearing: Hearing, name: str = "", count: Callable[[InfoObject], None] = lambda _: None) -> None:
        """`count` is told of each object."""
        self._hearing, self._name, self._count = hearing, name, count

    def arrived(self, obj: InfoObject) -> None:
        """An object."""
        self._count(obj)
        self._hearing.arrived(obj)

    def waiting(self, uid: str) -> int:
        """Number of objects that the other side has not taken."""
        return self._hearing.waiting(uid)

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None:
        """Objects were lost."""
        self._hearing.lost_before(cause, count, uid, up_to, self._name)


class WholeIntake:
    """All objects of some types of a source, or of all."""

    def __init__(self, source: BridgePlatform, hearing: Hearing, types: tuple[str, ...]) -> None:
        self._whole, self._hearing, self._names = source, hearing, types
        self._is_on = False

    def look(self, published: Mapping[str, BridgedRegistration], relays: Mapping[str, Relayed]) -> None:  # noqa: ARG002  # whatever is there
        """Hear them, if that was not possible before. `published`: registrations of the source that are for the target,
        by their ids; `relays`: how they are there."""
        if self._is_on:
            return
        try:
            self._whole.subscribe(self._names, SideReceiver(self._hearing))
        except JbiError as exc:
            self._hearing.trouble("subscription", exc)
        else:
            self._is_on = True
            self._hearing.trouble("subscription", None)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {"listening": self._is_on}

    def stop(self) -> None:
        """Change nothing any more."""
