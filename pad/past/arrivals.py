"""Objects that are on their way into an archive beside the delegate's pipeline, which has delivered them already: who
begins in the past waits for them, or he would get them by neither."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakKeyDictionary


class ArrivalWay(Protocol):
    """A way on which objects come."""

    def due(self) -> int:
        """Number of all that have come on it so far."""

    def has_taken(self, number: int) -> bool:
        """Whether so many are in the archive; or the others will not be soon, as it does not accept them."""


class Arrivals:
    """All such ways. Who asks is of one thread."""

    def __init__(self) -> None:
        self._ways: list[ArrivalWay] = []
        self._awaited: WeakKeyDictionary[object, list[tuple[ArrivalWay, int]]] = WeakKeyDictionary()

    def add(self, way: ArrivalWay) -> None:
        """Wait for what comes on one more."""
        self._ways.append(way)

    def have_come(self, asker: object) -> bool:
        """Whether all is in the archive that was on its way when this was asked first; who asks again then begins
        anew."""
        awaited = self._awaited.pop(asker, None) or [(way, way.due()) for way in self._ways]
        if all(way.has_taken(number) for way, number in awaited):
            return True
        self._awaited[asker] = awaited
        return False
