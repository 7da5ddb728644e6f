"""Datagrams within a process: for tests, and for nodes that live together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from jbi_pubsub.network.links.link import DATAGRAM_MOST, Waitable

DRAIN_MOST: Final = 64


class LocalLink:
    """A link to all others of the same name in this process. What a member has no room for is lost, as over UDP."""

    is_lossless: Final = False
    _segments: ClassVar[dict[str, list[socket.socket]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self._name = name
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._waited = (self._ours,)
        with self._lock:
            self._segments.setdefault(name, []).append(self._theirs)

    def sockets(self) -> Sequence[Waitable]:
        """See DatagramLink."""
        return self._waited

    def receive(self, sock: Waitable) -> list[bytes]:  # noqa: ARG002  # there is one
        """See DatagramLink."""
        found: list[bytes] = []
        with suppress(OSError):
            while len(found) < DRAIN_MOST:
                found.append(self._ours.recv(DATAGRAM_MOST))
        return found

    def send(self, datagrams: Sequence[bytes]) -> int:
        """See DatagramLink."""
        with self._lock:
            others = [each for each in self._segments.get(self._name, ()) if each is not self._theirs]
        for data in datagrams:
            for each in others:
                with suppress(OSError):  # it is full, or has left
                    each.send(data)
        return len(datagrams)

    def waiting(self) -> int:
        """See DatagramLink."""
        return 0

    def status(self) -> dict[str, Any]:
        """See DatagramLink."""
        return {"plugin": "local", "name": self._name}

    def close(self) -> None:
        """See DatagramLink."""
        with self._lock:
            members = self._segments.get(self._name, [])
            if self._theirs in members:
                members.remove(self._theirs)
            if not members:
                self._segments.pop(self._name, None)
        self._ours.close()
        self._theirs.close()
