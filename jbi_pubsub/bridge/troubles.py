"""Troubles of a bridge's direction: what can't be done now, and losses, each logged once or seldom."""

from __future__ import annotations

import logging
import threading
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError

from .relayed import RELAYS_MOST

log = logging.getLogger("jbi_pubsub.bridge")

LOST_PAUSE: Final = 1.0
"""Seconds between two lines in the log on losses of one cause; all are counted."""


class DirectionTroubles:
    """See the module. Any thread."""

    def __init__(self, way: str) -> None:
        """`way`: the direction, for the log."""
        self._way = way
        self._lock = threading.Lock()
        self._told: Cache[str, str] = Cache(RELAYS_MOST)
        """Last trouble told of each thing that can't be done now."""
        self._lost: dict[str, float] = {}
        """When losses of a cause were told last (clock)."""

    def tell(self, what: str, exc: JbiError | None) -> None:
        """Something can't be done now: that is told once. None: it is done."""
        text = f"{self._way}: {exc.message}" if exc is not None else None
        with self._lock:
            before = self._told.pop(what, None)
            if text is not None:
                self._told[what] = text
        if text not in (None, before):
            log.warning("%s", text)

    def tell_loss(self, cause: str, count: int, now: float) -> None:
        """So many objects were lost `now` (clock); 0: it is not known how many."""
        with self._lock:
            is_due = now - self._lost.get(cause, -LOST_PAUSE) >= LOST_PAUSE
            if is_due:
                self._lost[cause] = now
        if is_due:
            log.warning("%s: %s objects lost (%s)", self._way, count or "some", cause)

    def all(self) -> list[str]:
        """Those that there are now."""
        with self._lock:
            return list(self._told.values())
