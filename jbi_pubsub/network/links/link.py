"""A link as a network sees it, and addresses of peers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

from jbi_pubsub.core.errors import ConfigurationError

DATAGRAM_MOST: Final = 65_535
"""Bytes of a datagram on any link."""


def address_of(host: str, port: int, kind: socket.SocketKind) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Family and address of a peer, which is looked up now. Raises ConfigurationError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    except (OSError, UnicodeError) as exc:
        raise ConfigurationError(
            f"peer {host[:100]!r} has no address: {exc}", hint="Give its address, or a name that is known here"
        ) from exc
    return family, address


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
