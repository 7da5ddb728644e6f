"""Sockets that a hub waits for, others that wake it, and peers that take nothing of what waits for them.

A peer that takes nothing for so many seconds is disconnected, and may come back and resume. The time in which the hub's
thread was kept from its work counts for nobody.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

LOOK_SECONDS: Final = 1.0
"""Time between two looks for stalled peers, while something is unsent."""
_DRAINED_BYTES: Final = 64 << 10

S = TypeVar("S", bound=Hashable)  # a stream


class SocketPoll(Generic[S]):
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

    def wait(self, seconds: float | None) -> list[tuple[S, int]]:
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

    def streams(self) -> list[S]:
        """Streams whose sockets are watched."""
        return [key.data for key in list(self.selector.get_map().values()) if key.data is not None]


class StallWatch(Generic[S]):
    """Streams with something unsent, and the clock by which their peers are measured. For the hub's thread."""

    def __init__(self, seconds: float, now: float) -> None:
        """`seconds`: how long a peer may take nothing."""
        self.unsent: set[S] = set()
        self._seconds = seconds
        self._listened = 0.0
        """Seconds in which the thread looked at its sockets: what peers are measured by."""
        self._looked = now
        self._look_at = 0.0

    def listened(self, now: float) -> None:
        """Note that the thread has looked at its sockets."""
        self._listened += min(now - self._looked, LOOK_SECONDS)
        self._looked = now

    def deadline(self) -> float:
        """Until when a peer has to take something that has just taken some."""
        return self._listened + self._seconds

    def is_past(self, deadline: float) -> bool:
        """Whether a peer has taken nothing for too long."""
        return self._listened >= deadline

    def due(self, now: float) -> list[S]:
        """Streams to be looked at, once in LOOK_SECONDS."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        return list(self.unsent)
