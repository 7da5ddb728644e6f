"""The connections of a port: which are open, who has a place, and who closes them.

A connection is closed by its thread, or by whoever it was handed over to. Places are bounded, and shared by peers: see
`places`. A full port takes a place away only by shutting the connection, whose thread then closes it.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.errors import WireError

from .places import PortPlace, has_more, room, share_of

TOLD_MOST: Final = 20
"""Refusals that are logged in a minute, each peer and reason once."""


class PortConnections:
    """Open connections of a port, each with its place, and the threads that serve them. Safe from several threads."""

    def __init__(self, most: int) -> None:
        """`most` at once."""
        self._most = most
        self._open: dict[socket.socket, PortPlace] = {}
        self._handed_over: set[socket.socket] = set()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Those that serve, and those that have left `_open` and are about to end."""
        self._lock = threading.Lock()  # covers all state
        self.stopping = False
        self.refused = 0
        """Connections that got no place, or lost it to another."""

    def __len__(self) -> int:
        """Number of them."""
        return len(self._open)

    def stop(self) -> tuple[list[socket.socket], list[threading.Thread]]:
        """Take no more; those that are open, for the caller to shut, and their threads, to be waited for."""
        with self._lock:
            self.stopping = True
            return list(self._open), list(self._threads)

    def take(self, sock: socket.socket, place: PortPlace, thread: threading.Thread) -> bool:
        """Whether there is a place for a connection, which `thread` will serve."""
        with self._lock:
            taken = not self.stopping and self._make_room(place.peer)
            if taken:
                self._open[sock] = place
                self._threads.add(thread)
        self.refused += not taken
        return taken

    def refuse(self, sock: socket.socket, thread: threading.Thread) -> None:
        """Take its place away again: its thread can't start."""
        self.refused += 1
        with self._lock:
            self._open.pop(sock, None)
            self._threads.discard(thread)

    def _make_room(self, peer: str) -> bool:
        """Whether there is a place for one more of `peer`, one being taken from another connection if need be. Called
        under the lock."""
        going = room(self._open, peer, self._most)
        for victim in going or ():
            self.refused += 1
            del self._open[victim]  # its thread closes it
            shut(victim)
        return going is not None

    def secure(self, raw: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The TLS socket in the place of `raw`, before the handshake: so `stop` can end that as well."""
        with self._lock:
            if self.stopping or raw not in self._open:
                raise WireError("stopping")
            raw.getpeername()  # raises OSError: a peer that has reset it already; `ssl` would leave that open
            secured = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            self._open[secured] = self._open.pop(raw)
        return secured

    def identify(self, identity: str, place: PortPlace) -> None:
        """The peer is who its certificate says, and has its share as that. Raises WireError."""
        with self._lock:
            place.peer = identity or place.peer
            too_many = has_more(self._open, place.peer, self._most)
        if too_many:
            self.refused += 1
            raise WireError(f"{identity} has its {share_of(self._most)} of {self._most} connections")

    def hand_over(self, sock: socket.socket) -> Callable[[], None]:
        """For a handler: the connection outlives its thread. It goes on to count, and `stop` shuts it down; whoever has
        it from now on calls what is returned, which closes it, when that or anything else has ended it."""
        with self._lock:
            if sock in self._open:
                self._open[sock].kept = True
                self._handed_over.add(sock)

        def close() -> None:
            with self._lock:
                self._open.pop(sock, None)
                self._handed_over.discard(sock)
            sock.close()

        return close

    def leave(self, sock: socket.socket) -> None:
        """Its thread is done with it; whoever has it now closes it."""
        with self._lock:
            handed_over = sock in self._handed_over
            if not handed_over:
                self._open.pop(sock, None)
        if not handed_over:
            sock.close()


class RefusalLog:
    """Log of what a port refuses, which may happen often: each reason once a minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = -math.inf
        self._known: set[tuple[str, str]] = set()

    def is_new(self, peer: str, why: str, now: float) -> bool:
        """Whether to log it: not yet in this minute, and not one of too many."""
        with self._lock:
            if now - self._since >= 60.0:
                self._since, self._known = now, set()
            if (peer, why) in self._known or len(self._known) >= TOLD_MOST:
                return False
            self._known.add((peer, why))
            return True


def shut(sock: socket.socket) -> None:
    """Wake and end whoever reads or writes."""
    with contextlib.suppress(OSError):  # already gone: that is what was wanted
        # Not SSLSocket's own shutdown: that takes the TLS state away from under a thread that reads or writes.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
