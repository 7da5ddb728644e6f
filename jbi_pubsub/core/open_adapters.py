"""Adapters that a program has left open: closed when the interpreter ends, so that what publishers have queued is not
lost without a word, and what subscribers have taken does not come again. A process that is killed, or ends by
`os._exit`, closes none."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from jbi_pubsub.core.guard import guarded

PUBLISHERS_SECONDS: Final = 5.0
"""For all publishers together to hand over what is queued: their senders work side by side meanwhile."""

SUBSCRIBERS_SECONDS: Final = 2.0
"""For all subscribers together to tell what was taken."""


class Closable(Protocol):
    """An adapter, or the part of one that is to be closed."""

    def close(self, timeout: float) -> None:
        """Leave within `timeout` seconds. Safe to call twice."""


class Closing:
    """Closing of an adapter, which is done once. A call while another one is under way does nothing; one that was
    interrupted, as by Ctrl-C, is gone on with by the next."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """Whether it is done, or under way."""
        return self._lock.locked()

    def run(self, close: Callable[[], None]) -> None:
        """Close, unless that is done or under way."""
        if self._lock.acquire(blocking=False):
            try:
                close()
            except BaseException:
                self._lock.release()
                raise


class OpenAdapters(set[Closable]):
    """Adapters of a kind in this process that are open."""

    def close(self, seconds: float) -> None:
        """Close all. What is not handed over is logged by each."""
        deadline = time.monotonic() + seconds
        for adapter in list(self):
            with guarded("closing an adapter at the end of the process"):
                adapter.close(max(0.0, deadline - time.monotonic()))


PUBLISHERS: Final = OpenAdapters()
SUBSCRIBERS: Final = OpenAdapters()


def _close_all() -> None:
    """Subscribers are first: their listeners may publish. The program's own threads have ended, which may as well until
    then."""
    SUBSCRIBERS.close(SUBSCRIBERS_SECONDS)
    PUBLISHERS.close(PUBLISHERS_SECONDS)


atexit.register(_close_all)
for _each in (PUBLISHERS, SUBSCRIBERS):
    os.register_at_fork(after_in_child=_each.clear)  # they are its parent's
