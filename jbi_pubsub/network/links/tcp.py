"""Datagrams over TCP, each behind its length: through routers and NAT. IPv4 and IPv6.

Rules:
- A link listens at a port, connects to peers, or both. Each end says hello with an id of the link that is new each
  time; of two that have connected to each other the connection stays that the smaller id has made.
- What comes from one goes on to the others (`passing`), so those who are connected to one only hear each other.
- All is bounded: connections, what they may be silent for, what waits for each. Whoever takes nothing loses what others
  take; where nobody takes anything the network waits.
- Addresses of peers are looked up once, when the link is made: nothing here may wait.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.network.links.link import (
    AWAY_SECONDS,
    DATAGRAM_MOST,
    SENDING_MOST,
    SendingRoom,
    Waitable,
    address_of,
)
from jbi_pubsub.network.links.passing import PassedOn

log = logging.getLogger("jbi_pubsub.network")

CONNECTIONS_MOST: Final = 64
UNSENT_LEAST: Final = 4_096
"""Bytes that the kernel takes beyond what it sends, at least; else a quarter of as many."""
UNSENT_FIRST: Final = 1 << 14
"""The same before it is known how fast they go."""
READ_MOST: Final = 1 << 18
"""Bytes that are read at once from a connection."""
HELLO_SECONDS: Final = 10.0
"""Until a connection is there and has said hello."""
SILENT_SECONDS: Final = 60.0
"""Until one that says nothing any more is closed: nodes announce themselves each few seconds."""
ACCEPT_SECONDS: Final = 1.0
"""Until it accepts again, where that has failed."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
HELLO: Final = b"JBI network 1\n"
ID_SIZE: Final = 16
_LENGTH: Final = struct.Struct("!I")
_SIOCOUTQNSD: Final = 0x894B
"""Bytes of a connection that have not been sent at all (linux/sockios.h)."""


class _TcpPeer:
    """A peer that is connected to."""

    def __init__(self, family: int, address: Any, name: str) -> None:
        self.family, self.address, self.name = family, address, name
        self.backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.retry_at = 0.0
        self.id = b""
        """The node that was there last."""
        self.is_open = False


class _TcpConnection:
    """A connection, and what it waits for."""

    def __init__(self, sock: socket.socket, name: str, peer: _TcpPeer | None, now: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._room = SendingRoom()
        self._unsent_most = 0
        """Bytes that the kernel takes beyond what it sends."""
        self._take(UNSENT_FIRST)
        self.name = name
        self.peer = peer
        """None: it has come to us."""
        self.heard = now
        self.id = b""
        """Id of the other end, as soon as it has said hello."""
        self.is_connecting = peer is not None
        self.coming = bytearray()
        self.going = bytearray()

    def read(self) -> None:
        """Take what has come. Raises OSError when there is nothing, or no more."""
        data = self.sock.recv(READ_MOST)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it has left")
        self.coming += data

    def greet(self) -> bool:
        """Whether it has said hello. Raises ProtocolError when it says something else."""
        if not self.id:
            size = min(len(HELLO), len(self.coming))
            if self.coming[:size] != HELLO[:size]:
                raise ProtocolError("it does not speak as a node of a network")
            if len(self.coming) >= len(HELLO) + ID_SIZE:
                self.id = bytes(self.coming[len(HELLO) : len(HELLO) + ID_SIZE])
                del self.coming[: len(HELLO) + ID_SIZE]
        return bool(self.id)

    def datagrams(self) -> Iterator[bytes]:
        """Those that are whole. Raises ProtocolError for one that is too long, or empty."""
        at, there = 0, len(self.coming)
        try:
            while there - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self.coming, at)
                if not 0 < size <= DATAGRAM_MOST:
                    raise ProtocolError("it sends bytes that are not a datagram")
                if there - at - _LENGTH.size < size:
                    break
                at += _LENGTH.size + size
                yield bytes(self.coming[at - size : at])
        finally:
            del self.coming[:at]

    def put(self, datagram: bytes) -> None:
        """Let a datagram go with the next `flush`."""
        self.going += _LENGTH.pack(len(datagram))
        self.going += datagram

    def has_room(self, most: int, now: float) -> bool:
        """Whether another datagram may wait, of no more than `most` bytes."""
        return self._room.has(len(self.going), most, now)

    def flush(self) -> None:
        """Send what goes at once. Raises OSError."""
        if self.going and not self.is_connecting:
            sent = 0
            with suppress(BlockingIOError), memoryview(self.going) as view:
                sent = self.sock.send(view)
                view.release()
                del self.going[:sent]
            now = time.monotonic()
            self._room.note(sent, now)
            if self.going:  # the kernel has what it takes
                self._take(max(UNSENT_LEAST, self._room.lately(now) // 4))

    def _take(self, size: int) -> None:
        """Have the kernel take about so many bytes beyond what it sends."""
        if sys.platform == "linux" and not size / 2 < self._unsent_most < size * 2:
            self._unsent_most = min(size, 1 << 30)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent_most)

    def waiting(self) -> int:
        """Bytes here and in the kernel that have not been sent."""
        unsent = 0
        if sys.platform == "linux":
            with suppress(OSError):  # it is closed
                (unsent,) = struct.unpack("i", fcntl.ioctl(self.sock, _SIOCOUTQNSD, bytes(4)))
        return len(self.going) + int(unsent)


class TcpLink:
    """See the module."""

    is_lossless: Final = False

    def __init__(
        self, host: str = "", port: int = 0, *, peers: Sequence[tuple[str, int]] = (), send_buffer: int = 0
    ) -> None:
        """`port`: where it listens, at `host` ("" for all addresses of the machine), 0 for nowhere; `peers`: where it
        connects to. Raises ConfigurationError."""
        self._id = os.urandom(ID_SIZE)
        self._most = send_buffer or SENDING_MOST
        self._peers = [_TcpPeer(*address_of(*each, socket.SOCK_STREAM), with_port(*each)) for each in peers]
        self._selector = selectors.DefaultSelector()
        self._waited = (self._selector,)  # epoll's and kqueue's can be waited for as a socket
        self._connections: list[_TcpConnection] = []
        self._passed = PassedOn()
        self._faults: Counter[str] = Counter()
        self._lost = 0
        self._listener: socket.socket | None = None
        if not peers and not port:
            raise ConfigurationError(
                "a link of TCP that neither listens nor connects", hint="Give it a port, or peers as host:port"
            )
        if port:
            self._listener = _listener(host, port)
        self._accept_at = 0.0
        self._met_at = -inf
        """When somebody was connected last."""
        self.sockets()

    def sockets(self) -> Sequence[Waitable]:
        """See DatagramLink. One that stands for all."""
        now = time.monotonic()
        if self._listener is not None and self._accept_at <= now and self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        for each in list(self._connections):
            if now - each.heard > (SILENT_SECONDS if each.id else HELLO_SECONDS):
                self._end(each, "silent for too long")
        ids = {each.id for each in self._connections if each.id}
        for peer in self._peers:
            if not peer.is_open and peer.retry_at <= now and peer.id not in ids:
                self._connect(peer, now)
        return self._waited

    def receive(self, sock: Waitable) -> list[bytes]:  # noqa: ARG002  # there is one
        """See DatagramLink."""
        found: list[bytes] = []
        for key, events in self._selector.select(0):
            if key.data is None:
                self._accept()
                continue
            connection: _TcpConnection = key.data
            if connection not in self._connections:
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    self._go_on(connection)
                if events & selectors.EVENT_READ:
                    self._read(connection, found)
            except ProtocolError as exc:
                self._end(connection, exc.message)
            except OSError as exc:
                self._end(connection, exc.strerror or str(exc))
        self._flush()
        return found

    def send(self, datagrams: Sequence[bytes]) -> int:
        """See DatagramLink."""
        to, now = [each for each in self._connections if each.id], time.monotonic()
        taken = 0
        if to:
            self._met_at = now
        elif now - self._met_at < AWAY_SECONDS:
            return 0
        for data in datagrams:
            room = [each for each in to if each.has_room(self._most, now)]
            if to and not room:
                break
            self._passed.is_new(data)
            self._lost += len(to) - len(room)
            for each in room:
                each.put(data)
            taken += 1
        self._flush()
        return taken

    def waiting(self) -> int:
        """See DatagramLink. For whom the least waits: others are behind, or leave."""
        return min((each.waiting() for each in self._connections if each.id), default=0)

    def status(self) -> dict[str, Any]:
        """See DatagramLink. `lost`: datagrams that one of several had no room for."""
        listens = [with_port(*self._listener.getsockname()[:2])] if self._listener is not None else []
        return {
            "plugin": "tcp",
            "place": ", ".join((*(f"at {each}" for each in listens), *(each.name for each in self._peers))),
            "connections": [each.name for each in self._connections if each.id],
            "faults": dict(self._faults),
            "lost": self._lost,
        }

    def close(self) -> None:
        """See DatagramLink."""
        for each in self._connections:
            each.sock.close()
        self._connections, self._peers = [], []
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._selector.close()

    def _connect(self, peer: _TcpPeer, now: float) -> None:
        try:
            sock = socket.socket(peer.family, socket.SOCK_STREAM)
        except OSError as exc:  # this process has no room for one more
            self._faults[exc.strerror or str(exc)] += 1
            peer.retry_at = now + peer.backoff.pause()
            return
        connection = _TcpConnection(sock, peer.name, peer, now)
        error = sock.connect_ex(peer.address)
        peer.is_open = True
        if error in (0, errno.EINPROGRESS):
            self._begin(connection)
        else:
            self._lose(connection, os.strerror(error))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as exc:  # there is no room for one more in this process: it is not asked in a circle
            self._faults[exc.strerror or str(exc)] += 1
            self._selector.unregister(self._listener)
            self._accept_at = time.monotonic() + ACCEPT_SECONDS
            return
        name = with_port(*address[:2])
        if self._make_room(name):
            self._begin(_TcpConnection(sock, name, None, time.monotonic()))
        else:
            self._faults["too many connections"] += 1
            sock.close()

    def _make_room(self, name: str) -> bool:
        """Whether one more may come to us, the last one of the host that has the most being taken for it if need be."""
        have = [each for each in self._connections if each.peer is None]
        hosts = Counter(each.name.rpartition(":")[0] for each in have)
        if len(have) < CONNECTIONS_MOST:
            return True
        [(busiest, count)] = hosts.most_common(1)
        if count <= hosts[name.rpartition(":")[0]] + 1:
            return False
        self._end([each for each in have if each.name.rpartition(":")[0] == busiest][-1], "its place is another's")
        return True

    def _begin(self, connection: _TcpConnection) -> None:
        connection.going += HELLO + self._id
        self._connections.append(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _go_on(self, connection: _TcpConnection) -> None:
        """Go on with a connection that can be written to, or could not be made."""
        if connection.is_connecting:
            if error := connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            connection.is_connecting = False

    def _read(self, connection: _TcpConnection, found: list[bytes]) -> None:
        with suppress(BlockingIOError):
            connection.read()
            was_met = bool(connection.id)
            if not connection.greet() or (not was_met and not self._meet(connection)):
                return
            for data in connection.datagrams():
                connection.heard = time.monotonic()
                if self._passed.is_new(data):
                    found.append(data)
                    for each in self._connections:
                        if each is not connection and each.id:
                            self._pass_on(each, data)

    def _pass_on(self, to: _TcpConnection, data: bytes) -> None:
        if to.has_room(self._most, time.monotonic()):
            to.put(data)
        else:
            self._lost += 1

    def _meet(self, connection: _TcpConnection) -> bool:
        """Meet an end that has said hello; whether it stays."""
        if connection.peer is not None:
            connection.peer.id = connection.id
        if connection.id == self._id:
            self._end(connection, "it is ourselves")
            return False
        for other in list(self._connections):
            if other is not connection and other.id == connection.id:
                is_ours = (connection.peer is not None) == (self._id < connection.id)
                is_other_ours = (other.peer is not None) == (self._id < connection.id)
                goes = other if is_ours and not is_other_ours else connection
                self._end(goes, "connected twice")
                if goes is connection:
                    return False
        if connection.peer is not None:
            connection.peer.backoff.reset()
        log.info("network of TCP: %s is connected", connection.name)
        return True

    def _flush(self) -> None:
        for each in list(self._connections):
            try:
                each.flush()
            except OSError as exc:
                self._end(each, exc.strerror or str(exc))
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if each.going or each.is_connecting else 0)
            if self._selector.get_key(each.sock).events != wanted:
                self._selector.modify(each.sock, wanted, each)

    def _end(self, connection: _TcpConnection, why: str) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.sock)
        self._lose(connection, why)

    def _lose(self, connection: _TcpConnection, why: str) -> None:
        connection.sock.close()
        self._faults[why] += 1
        log.log(logging.INFO if connection.id else logging.DEBUG, "network of TCP: %s: %s", connection.name, why)
        if (peer := connection.peer) is not None:
            peer.is_open = False
            peer.retry_at = time.monotonic() + peer.backoff.pause()


def _listener(host: str, port: int) -> socket.socket:
    """For both versions of IP where no host is given."""
    is_any = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_any or ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, dualstack_ipv6=is_any, backlog=128)
    except OSError as exc:
        raise ConfigurationError(
            f"a link of TCP can't listen at {host or '*'} port {port}: {exc.strerror or exc}",
            hint="Choose another port, or stop what uses it",
        ) from exc
    made.setblocking(False)
    return made
