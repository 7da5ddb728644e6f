"""Publishers' adapters that a program has left open: closed when the interpreter ends, so that what they have queued is
not lost without a word. A process that is killed, or ends by `os._exit`, closes none."""

from __future__ import annotations

import atexit
import time
from typing import Final, Protocol

from jbi_pubsub.core.guard import guarded

EXIT_SECONDS: Final = 5.0
"""For all adapters together to hand over what is queued: their senders work side by side meanwhile."""


class ClosablePublisher(Protocol):
    """A publisher's adapter."""

    def close(self, timeout: float) -> None:
        """Leave, handing over what is queued within `timeout` seconds. Safe to call twice, and in a forked child."""


class OpenPublishers:
    """Those of this process that are open."""

    def __init__(self) -> None:
        self._open: set[ClosablePublisher] = set()

    def add(self, adapter: ClosablePublisher) -> None:
        """It is open from now on."""
        self._open.add(adapter)

    def discard(self, adapter: ClosablePublisher) -> None:
        """It is closed."""
        self._open.discard(adapter)

    def close(self) -> None:
        """Close all. What is not handed over is logged by each."""
        deadline = time.monotonic() + EXIT_SECONDS
        for adapter in list(self._open):
            with guarded("closing a publisher at the end of the process"):
                adapter.close(max(0.0, deadline - time.monotonic()))


OPEN: Final = OpenPublishers()
"""They are closed when the program's own threads have ended: until then these may publish."""

atexit.register(OPEN.close)
