"""A link as a network sees it, and addresses of peers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.pacing import RecentBytes

DATAGRAM_MOST: Final = 65_535
"""Bytes of a datagram on any link."""
SENDING_MOST: Final = 1 << 20
"""Bytes that wait on a line, at most, where nobody says otherwise."""
SENDING_LEAST: Final = 16_384
"""Bytes that may wait in any case; else as many as were sent in SENDING_SECONDS: what waits there grows old, and
nothing overtakes it."""
SENDING_SECONDS: Final = 4.0
AWAY_SECONDS: Final = 30.0
"""Time for which what is to go waits when the last one has left, who may be back soon; then it is for nobody."""


def address_of(host: str, port: int, kind: socket.SocketKind) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Family and address of a peer, which is looked up now. Raises ConfigurationError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    except (OSError, UnicodeError) as exc:
        raise ConfigurationError(
            f"peer {host[:100]!r} has no address: {exc}", hint="Give its address, or a name that is known here"
        ) from exc
    return family, address


class SendingRoom:
    """Room for what waits on a line. Once it is full half of it goes before more comes: so what is lost, and what is
    not, is one after the other, which are whole messages."""

    def __init__(self) -> None:
        self._sent = 0
        self._lately = RecentBytes(SENDING_SECONDS)
        self._is_full = False

    def note(self, count: int, now: float) -> None:
        """So many bytes more have left."""
        self._sent += count
        self._lately.note(self._sent, now)

    def lately(self, now: float) -> int:
        """Bytes that have left in the last SENDING_SECONDS."""
        return self._lately.size(now)

    def has(self, waiting: int, most: int, now: float) -> bool:
        """Whether more may wait where so many bytes do, of no more than `most`."""
        most = min(max(SENDING_LEAST, self.lately(now)), most)
        self._is_full = waiting >= (most // 2 if self._is_full else most)
        return not self._is_full


class Waitable(Protocol):
    """A socket, or what is waited for as one is."""

    def fileno(self) -> int:
        """Its number in the system."""
        ...


class DatagramLink(Protocol):
    """A way for datagrams to all other nodes of a network. For the network's thread alone, but for `close`."""

    @property
    def is_lossless(self) -> bool:
        """Whether all comes that somebody has taken who was there, in order, or its loss is told in `status`."""
        ...

    def sockets(self) -> Sequence[Waitable]:
        """Sockets to be waited for until they can be read. The same sequence until they change: when the link has made
        them anew it is another. Does what the link has to do from time to time."""
        ...

    def receive(self, sock: Waitable) -> list[bytes]:
        """Datagrams that have come there, those of ourselves perhaps among them. Never waits, never raises."""
        ...

    def send(self, datagrams: Sequence[bytes]) -> int:
        """Send these to all others, now; how many of them, from the first, it has taken. The others are given first
        when it is tried again, soon. Never waits, never raises."""
        ...

    def waiting(self) -> int:
        """Bytes that it has taken and that have not left this machine yet, about."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data."""
        ...

    def close(self) -> None:
        """Leave."""
        ...
