"""A link as a network sees it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol


class DatagramLink(Protocol):
    """A way for datagrams to all other nodes of a network. For the network's thread alone, but for `close`."""

    def sockets(self) -> Sequence[socket.socket]:
        """Sockets to be waited for; others than before when the link has made them anew."""
        ...

    def receive(self, sock: socket.socket) -> list[bytes]:
        """Datagrams that have come there, those of ourselves perhaps among them. Never waits, never raises."""
        ...

    def send(self, data: bytes) -> bool:
        """Send one to all others, now; False: not now, it is to be tried again soon. Never waits, never raises."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data."""
        ...

    def close(self) -> None:
        """Leave."""
        ...
