"""Sockets: one listening port a process, for both planes. A preamble says which plane and which protocol.

Rules: TCP_NODELAY, keepalive and TCP_USER_TIMEOUT on both sides: a half-open peer is noticed in 10 s while something
is under way; when idle, in 25 s by the client of a data connection, which waits for what may never come, in 70 s by
others, who have calls with deadlines and leases for that (more eager probes would cost a 7,200 bps link a fifth); every
read has a deadline; a full file table slows accepting, it never ends it.

Places are bounded, and shared by peers: see `port_connections`. The client's end is `dial`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.errors import (
    ConfigurationError,
    JbiError,
    PortInUseError,
    ProtocolError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.hosts import elsewhere, with_port
from jbi_pubsub.core.status import TlsStatus

from . import detour, transport
from .address import is_loopback, split_endpoint
from .credentials import LOOK_SECONDS, Facts
from .places import PortPlace, peer_of
from .port_connections import PortConnections, RefusalLog, shut
from .ref import PROTOCOL
from .tls import TlsIdentity, explained, is_no_tls

log = logging.getLogger("jbi_pubsub.wire")

PREAMBLE: Final = struct.Struct("!4sBc")
MAGIC: Final = b"JBI\n"
CONTROL: Final = b"C"
DATA: Final = b"D"

HANDSHAKE_SECONDS: Final = 10.0
"""TLS and preamble together. Longer than a round trip of a 7,200 bps link; bounds what a silent client holds."""

STEP_BYTES: Final = 1 << 20
"""Memory taken for an announced length at first; it doubles as bytes come."""

WAITING_SECONDS, IDLE_SECONDS = 15, 60
"""Idle seconds before a connection is probed: by the client of a data connection; by servers and callers. Each end
probes for itself, with 2 segments at a time: every 15 s at both, five connections took 8 % of 7,200 bit/s."""

MAX_CONNECTIONS: Final = 2048
"""Below the usual 4,096 of file descriptors a process may open after raising its soft limit."""


TLS_HELLO: Final = b"\x16\x03"
"""Beginning of what a TLS client sends (RFC 8446, section 5.1: a record of type handshake)."""

ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""Answer to a peer of ours when the two ends do not agree on TLS: a fatal alert, unexpected_message (RFC 8446, 6)."""

ACCEPT_SECONDS: Final = 0.2
"""Until it is tried again to accept: when the file table is full, others need the time to close."""

LINGER_SECONDS: Final = 1.0
"""For the peer to read why it was refused."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Client at the other end: address, and the identity of its certificate ("" without TLS).

    `user` is who it is, `claimed` whether that is only what it says; an identity is the user, and no claim. `client`:
    the application's name, which it chooses itself; `role` is the duty that it says its user has."""

    address: str
    identity: str = ""
    place: PortPlace = field(default_factory=PortPlace, compare=False, repr=False)
    user: str = ""
    claimed: bool = False
    client: str = ""
    role: str = ""

    def __post_init__(self) -> None:
        if self.identity:
            object.__setattr__(self, "user", self.identity)
            object.__setattr__(self, "claimed", False)

    @property
    def peer(self) -> str:
        """Peer whose shares are used: its identity's, else those of the host that it is at, as places at a port are."""
        return self.identity or self.place.peer or self.address.rpartition(":")[0]

    @property
    def holder(self) -> str:
        """Holder of its certificate (`x509.Certificate.holder`), "" without TLS."""
        return self.place.holder


@dataclass(frozen=True, slots=True)
class Login:
    """By what a user proves who he is, to servers that ask."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """Settings by which a process listens and connects. Without `tls` only loopback may be bound, and only there is a
    password shown, unless `insecure`. `own`: logins at some addresses alone, where they come before `login`."""

    tls: TlsIdentity | None = None
    insecure: bool = False
    login: Login | None = None
    own: tuple[tuple[str, Login], ...] = ()

    def may_show_password(self, endpoint: str) -> bool:
        """Whether the way there is nobody else's."""
        is_here = not transport.is_tcp(endpoint) or is_loopback(split_endpoint(endpoint)[0])
        return self.tls is not None or self.insecure or (is_here and not detour.is_taken())

    def check(self, host: str, *, or_else: str = "pass --insecure on a network you trust") -> None:
        """Refuse to listen in clear beyond loopback; `or_else` is what helps instead of TLS. Raises
        ConfigurationError."""
        if self.tls is None and not self.insecure and not is_loopback(host):
            raise ConfigurationError(
                f"refusing to listen on {host} without TLS",
                hint=f"Pass --tls FOLDER (`jbi certs` makes it), or set [tls] certificate, key and ca, or {or_else}",
                host=host,
            )


def recv_exactly(sock: socket.socket, count: int, timeout: float) -> bytearray:
    """`count` bytes within `timeout` seconds in all. Raises WireError (closed) or WireTimeoutError."""
    data = bytearray(min(count, STEP_BYTES))  # what is announced is not taken before it comes
    deadline = time.monotonic() + timeout
    got = 0
    while got < count:
        if got == len(data):
            data.extend(bytes(min(count - got, got)))
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireTimeoutError(f"peer sent {got} of {count} bytes within {timeout:g} s")
        try:
            sock.settimeout(left)
            with memoryview(data) as view:
                read = sock.recv_into(view[got:])
        except TimeoutError:
            continue
        except (OSError, ValueError) as exc:
            raise WireError(f"connection lost: {explained(exc)}") from exc
        if not read:
            raise WireError("connection closed by the peer")
        got += read
    return data


def protocol_in(head: bytes | bytearray) -> int:
    """The number of the protocol that a server speaks which answers with its own preamble, as to a client of another
    number; 0: it does not."""
    return head[len(MAGIC)] if head[: len(MAGIC)] == MAGIC and len(head) > len(MAGIC) else 0


def readable(sock: socket.socket, timeout: float) -> bool:
    """Whether there is something to read (or the end) within `timeout` seconds."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    try:
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    except (OSError, ValueError) as exc:
        raise WireError(f"connection lost: {exc}") from exc


class Endpoint:
    """A listening port. Each accepted connection gets a named thread of its own, which runs `control` or `data`.

    Handlers get (socket, caller) and own the socket until they return; it is closed behind them, unless they have
    called `connections.hand_over`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str,
        security: Security,
        control: Callable[[socket.socket, Caller], None],
        data: Callable[[socket.socket, Caller], None],
        advertise: str = "",
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Listens at once. Raises PortInUseError, and ConfigurationError for TLS files that are no good, or whose time
        is not now."""
        security.check(host)
        self.name = name
        self._handlers = {CONTROL: control, DATA: data}
        self._tls = security.tls
        self.certificate = security.tls.fingerprint() if security.tls else ""
        """SHA-256 (hex) of our certificate's key, "" without TLS."""
        if security.tls:
            security.tls.check_dates()
        self._listener = _listen(host, port)
        if security.tls and security.tls.revoked:
            self._listener.settimeout(LOOK_SECONDS)  # those who are connected may be revoked
        self.port = int(self._listener.getsockname()[1])
        self.address = with_port(advertise or host, self.port)
        self.connections: Final = PortConnections(max_connections)
        self._told = RefusalLog()
        self._thread = threading.Thread(target=self._accept_all, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, close every connection, join the threads within `timeout` seconds."""
        connections, threads = self.connections.stop()
        with contextlib.suppress(OSError):  # not connected: the shutdown is only there to wake accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in connections:
            shut(sock)
        deadline = time.monotonic() + timeout
        for thread in (self._thread, *threads):
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def facts(self) -> Facts | None:
        """Contents of the certificates and lists in force: the same object until they change; None without TLS."""
        return self._tls.facts() if self._tls else None

    def tls(self) -> TlsStatus:
        """`TlsIdentity.status`, empty without TLS."""
        return self._tls.status(time.time()) if self._tls else TlsStatus()

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that came by another transport (transport.py); `address` is what it is called, and what
        stands before a colon the peer whose place it takes."""
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            self._admit(sock, address.partition(":")[0], address)
            undo.pop_all()

    def _accept_all(self) -> None:
        failures = RefusalLog()  # of its own: strangers may fill the other one
        while not self.connections.stopping:
            with guarded("accepting a connection"):
                try:
                    if self._tls:
                        self._tls.look()
                    sock, address = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as exc:
                    if self.connections.stopping or exc.errno in (errno.EBADF, errno.EINVAL):
                        return
                    if failures.is_new("", str(exc), time.monotonic()):
                        log.warning("%s: accept failed, trying again: %s", self.name, exc)
                else:
                    with contextlib.ExitStack() as undo:
                        undo.callback(sock.close)
                        self._admit(sock, address[0], f"{address[0]}:{address[1]}")
                        undo.pop_all()
                    continue
            time.sleep(ACCEPT_SECONDS)

    def _admit(self, sock: socket.socket, host: str, address: str) -> None:
        place = PortPlace(peer_of(host))
        thread = threading.Thread(
            target=self._serve, args=(sock, address, place), name=f"{self.name}-{address}", daemon=True
        )
        if not self.connections.take(sock, place, thread):
            sock.close()
            return
        try:
            thread.start()
        except RuntimeError as exc:  # the system has no more threads for us
            self._tell(address, str(exc))
            self.connections.refuse(sock, thread)
            sock.close()

    def _serve(self, raw: socket.socket, address: str, place: PortPlace) -> None:
        with guarded("connection"):
            sock = raw
            try:
                tune(raw, IDLE_SECONDS)
                raw.settimeout(HANDSHAKE_SECONDS)
                identity = ""
                if self._tls:
                    sock = secured = self.connections.secure(raw, self._tls.server_context())
                    self._shake_hands(secured, address)
                    certificate = self._tls.watch(secured)
                    place.holder = certificate.holder
                    identity = certificate.identity
                    self.connections.identify(identity, place)
                plane = self._plane(sock, address)
                self._handlers[plane](sock, Caller(address, identity, place))
            except (JbiError, OSError) as exc:
                log.debug("%s: %s: %s", self.name, address, exc)
            finally:
                self.connections.leave(sock)

    def _plane(self, sock: socket.socket, address: str) -> bytes:
        magic, protocol, plane = PREAMBLE.unpack(recv_exactly(sock, PREAMBLE.size, HANDSHAKE_SECONDS))
        if magic[:2] == TLS_HELLO:
            self._tell(address, "it speaks TLS, and we do not: set [tls] here as well, or not there")
            _take_leave(sock, ALERT)
        if magic == MAGIC and protocol != PROTOCOL:
            self._tell(address, f"it speaks protocol {protocol}, and we {PROTOCOL}: have the same version at both ends")
            sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane))
            _take_leave(sock, b"")
        if magic != MAGIC or protocol != PROTOCOL or plane not in self._handlers:
            raise ProtocolError(f"{address} speaks another protocol ({magic!r} {protocol})")
        return bytes(plane)

    def _shake_hands(self, sock: ssl.SSLSocket, address: str) -> None:
        try:
            sock.do_handshake()
        except ssl.SSLError as exc:
            self._tell(address, explained(exc))
            _take_leave(sock, ALERT if is_no_tls(exc) else b"")
            raise

    def _tell(self, address: str, why: str) -> None:
        """Log a refusal that its operator has to mend; strangers can cause as many as they like."""
        if self._told.is_new(address.rpartition(":")[0], why, time.monotonic()):
            log.warning("%s: refused %s: %s", self.name, address, why)
        else:
            log.debug("%s: refused %s: %s", self.name, address, why)


def _take_leave(sock: socket.socket, last: bytes) -> None:
    """Before a connection is closed that the peer still sends on: else the system throws away what was said last, which
    is why it was refused. Beside TLS, whatever there is of it."""
    with contextlib.suppress(OSError):  # it has left
        sock.settimeout(LINGER_SECONDS)
        socket.socket.send(sock, last)
        socket.socket.shutdown(sock, socket.SHUT_WR)
        for _ in range(16):
            if not socket.socket.recv(sock, 4096):
                break


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as exc:
        listener.close()
        raise PortInUseError(
            f"can't listen on {with_port(host, port)}: {exc.strerror or exc}",
            hint=elsewhere(host, exc) or "Choose another port with --port (0 takes a free one), or stop what uses it",
            host=host,
            port=port,
        ) from exc
    return listener


def wait_for(sock: socket.socket, seconds: float) -> None:
    """Have TCP wait so long for what was sent to be taken. For who has other means to notice that a peer is dead, and
    peers that may take nothing for a while."""
    if sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def tune(sock: socket.socket, idle: int) -> None:
    """Set what TCP does at both ends; it is probed after `idle` seconds."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return  # no TCP: another transport looks after itself
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, name):  # Linux; elsewhere the lease alone ends a half-open peer
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
