"""Sockets that one thread waits for, and by which others wake it: the poll of a hub."""

from __future__ import annotations

import contextlib
import selectors
import socket
from typing import Final

from .turns import HubStream

_DRAINED_BYTES: Final = 64 << 10


class SocketPoll:
    """The sockets of streams, and a pair of sockets to wake who waits. One thread waits; any may wake it."""

    def __init__(self) -> None:
        self.is_asleep = False
        """Set by the thread before it looks for work the last time and waits: whoever brings some then wakes it."""
        self.selector: selectors.BaseSelector
        """Each stream registers its socket here, with itself as data. The hub's thread alone uses it."""
        self._wake_read: socket.socket
        self._wake_write: socket.socket

    def open(self) -> None:
        """Take what it needs of the system. Before all that follows."""
        self.selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self.selector.register(self._wake_read, selectors.EVENT_READ)

    def close(self) -> None:
        """Give it back."""
        self.selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def wake(self) -> None:
        """Wake the thread if it waits."""
        if self.is_asleep:
            self.is_asleep = False
            self.ring()

    def ring(self) -> None:
        """Wake the thread, or keep it from waiting."""
        with contextlib.suppress(OSError):  # full: it will wake; closed: it has ended
            self._wake_write.send(b"\0")

    def wait(self, seconds: float | None) -> list[tuple[HubStream, int]]:
        """Streams whose sockets can be read, written (or both), at the latest after so many seconds."""
        happened = self.selector.select(seconds)
        self.is_asleep = False
        served = []
        for key, mask in happened:
            if key.data is None:
                self._wake_read.recv(_DRAINED_BYTES)
            else:
                served.append((key.data, mask))
        return served

    def streams(self) -> list[HubStream]:
        """Streams whose sockets are watched."""
        return [key.data for key in list(self.selector.get_map().values()) if key.data is not None]
