"""Whoever drives links waits for all of their sockets at once, and can be woken.

What has come is taken from the kernel before any of it is looked at, and again after each SLICE of it: the kernel's
buffers are small, and what has no room there is lost. So a burst waits here, up to a bound.
"""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from jbi_pubsub.network.links.link import DatagramLink, Waitable

SLICE: Final = 64
"""Datagrams that are looked at before more are taken."""
COMING_MOST: Final = 32 << 20
"""Bytes that wait here; then they stay where they are."""
_WAKING: Final = -1


class LinkWaiter:
    """For one thread, but for `wake`."""

    def __init__(self, links: Sequence[DatagramLink]) -> None:
        self._links = links
        self._registered: list[Sequence[Waitable]] = [()] * len(links)
        self._coming: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        """Bytes of what waits."""
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_in, selectors.EVENT_READ, (_WAKING, None))

    def came(self, pause: float) -> list[tuple[int, bytes]]:
        """The next datagrams, each with the position of its link, within so many seconds."""
        if self._bytes < COMING_MOST:
            for at, sock in self.ready(0.0 if self._coming else pause):
                for data in self._links[at].receive(sock):
                    self._coming.append((at, data))
                    self._bytes += len(data)
        found = [self._coming.popleft() for _ in range(min(SLICE, len(self._coming)))]
        self._bytes -= sum(len(data) for _, data in found)
        return found

    def ready(self, pause: float) -> list[tuple[int, Waitable]]:
        """Sockets that can be read within so many seconds, each with the position of its link."""
        now = [each.sockets() for each in self._links]
        changed = [at for at, each in enumerate(now) if each is not self._registered[at]]
        for at in changed:  # all before any is new: a number of one that is closed may be another's by now
            for sock in self._registered[at]:
                with suppress(KeyError):
                    self._selector.unregister(sock)
        for at in changed:
            self._registered[at] = now[at]
            for sock in now[at]:
                self._selector.register(sock, selectors.EVENT_READ, (at, sock))
        found = [key.data for key, _ in self._selector.select(pause)]
        if any(at == _WAKING for at, _ in found):
            with suppress(BlockingIOError):
                os.read(self._wake_in, 4_096)
        return [each for each in found if each[0] != _WAKING]

    def wake(self) -> None:
        """Have `ready` return at once. Any thread, also when it is closed."""
        with suppress(OSError):
            os.write(self._wake_out, b"\0")

    def close(self) -> None:
        """Let go."""
        self._selector.close()
        out, self._wake_out = self._wake_out, -1
        os.close(self._wake_in)
        os.close(out)
