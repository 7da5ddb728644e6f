"""Sockets: one listening port a process, for both planes. A preamble says which plane and which protocol.

Rules: TCP_NODELAY, keepalive and TCP_USER_TIMEOUT on both sides: a half-open peer is noticed in 10 s while something
is under way; when idle, in 25 s by the client of a data connection, which waits for what may never come, in 70 s by
others, who have calls with deadlines and leases for that (more eager probes would cost a 7,200 bps link a fifth); every
read has a deadline; a full file table slows accepting, it never ends it.

Places are bounded, and shared by peers: see `places`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import math
import select
import socket
import ssl
import struct
import threading
import time
import weakref
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
from .credentials import LOOK_SECONDS, Facts
from .places import PortPlace, has_more, peer_of, room, share_of
from .ref import PROTOCOL, ServiceRef
from .tls import TlsIdentity, check_server, explained, is_no_tls

log = logging.getLogger("jbi_pubsub.wire")

PREAMBLE: Final = struct.Struct("!4sBc")
MAGIC: Final = b"JBI\n"
CONTROL: Final = b"C"
DATA: Final = b"D"

HANDSHAKE_SECONDS: Final = 10.0
"""TLS and preamble together. Longer than a round trip of a 7,200 bps link; bounds what a silent client holds."""

STEP_BYTES: Final = 1 << 20
"""Memory taken for an announced length at first; it doubles as bytes come."""

MAX_HOST: Final = 253
"""Characters of a host name (RFC 1035 section 2.3.4, without the final dot)."""

WAITING_SECONDS, IDLE_SECONDS = 15, 60
"""Idle seconds before a connection is probed: by the client of a data connection; by servers and callers. Each end
probes for itself, with 2 segments at a time: every 15 s at both, five connections took 8 % of 7,200 bit/s."""

MAX_CONNECTIONS: Final = 2048
"""Below the usual 4,096 of file descriptors a process may open after raising its soft limit."""


GONE_SECONDS: Final = 1.0
"""To find out whether a server has died."""
MAX_ENDPOINTS: Final = 8
"""Endpoints of a service that are tried: one for each interface. Who answers late at thousands must cost no hour."""

TLS_HELLO: Final = b"\x16\x03"
"""Beginning of what a TLS client sends (RFC 8446, section 5.1: a record of type handshake)."""

ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""Answer to a peer of ours when the two ends do not agree on TLS: a fatal alert, unexpected_message (RFC 8446, 6)."""

ACCEPT_SECONDS: Final = 0.2
"""Until it is tried again to accept: when the file table is full, others need the time to close."""

LINGER_SECONDS: Final = 1.0
"""For the peer to read why it was refused."""

TOLD_MOST: Final = 20
"""Refusals that are logged in a minute, each peer and reason once."""


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


def is_loopback(host: str) -> bool:
    """Only literal loopback addresses and `localhost`: another name may resolve to anything."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_endpoint(text: str, *, default_port: int = 0) -> tuple[str, int]:
    """host:port -> (host, port); [::1]:port works as well. Raises ConfigurationError."""
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    try:
        number = int(port) if port else default_port
    except ValueError:
        number = -1
    if not host or not 0 < number < 65536:
        raise ConfigurationError(f"{text!r} is not HOST:PORT", hint="For example 127.0.0.1:4160", endpoint=text)
    return host.strip("[]"), number


def check_endpoint(text: str) -> str:
    """`text` as host:port in one form (host in lower case, an IPv6 host in brackets), so that equal ones are equal
    text; jbi://host:port (Jini's form of a locator, DJ.5) is the same. Stricter than `split_endpoint`: for what people
    write and others send. Raises ConfigurationError."""
    host, colon, port = text.removeprefix("jbi://").rpartition(":")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host.replace(":", " ")
    good = bool(colon and 0 < len(bare) <= MAX_HOST and port.isascii() and port.isdecimal())
    if not good or any(not c.isprintable() or c in " []/@" for c in bare):
        raise ConfigurationError(
            f"{text!r} is not HOST:PORT", hint="For example 127.0.0.1:4160, an IPv6 host in brackets", endpoint=text
        )
    host, number = split_endpoint(f"{host}:{port}")
    return with_port(host, number).lower()


def dial(ref: ServiceRef, plane: bytes, security: Security, timeout: float, *, window: int = 0) -> socket.socket:
    """A socket to the first endpoint that answers, preamble sent. `window`: bytes that may be under way on it each way,
    which bounds what waits in front of a slow link; 0 leaves that to TCP. Raises the last WireTimeoutError or
    WireError."""
    failure = WireError(f"{ref.exported} has no endpoint")
    for endpoint in ref.endpoints[:MAX_ENDPOINTS]:
        try:
            if not transport.is_tcp(endpoint):
                return _dial_otherwise(endpoint, plane, security, timeout)
            return _dial(endpoint, plane, security, ref.certificate, timeout, window)
        except WireError as exc:
            failure = exc
    raise failure


def is_gone(ref: ServiceRef, security: Security) -> bool:
    """Whether a service that lookup services still hold has died: nobody listens where it was. One that can't be
    reached for another reason may live."""
    try:
        dial(ref, CONTROL, security, GONE_SECONDS).close()
    except WireError as exc:
        return isinstance(exc.__cause__, ConnectionRefusedError)
    return False


def _dial(
    endpoint: str, plane: bytes, security: Security, certificate: str, timeout: float, window: int
) -> socket.socket:
    try:
        host, way = split_endpoint(check_endpoint(endpoint))[0], detour.way_to(check_endpoint(endpoint))
    except ConfigurationError as exc:
        raise ProtocolError(f"a service is said to be at {endpoint[:MAX_HOST]!r}, which is not HOST:PORT") from exc
    try:
        sock = _connect(*split_endpoint(way), timeout, window, security.tls.client_context() if security.tls else None)
    except TimeoutError as exc:
        raise WireTimeoutError(f"no answer from {endpoint} within {timeout:g} s", endpoint=endpoint) from exc
    except (OSError, UnicodeError) as exc:
        raise WireError(f"can't reach {endpoint}: {getattr(exc, 'strerror', None) or exc}", endpoint=endpoint) from exc
    try:
        _tune(sock, WAITING_SECONDS if plane == DATA else IDLE_SECONDS)
        if security.tls and isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            security.tls.watch(sock)
            check_server(sock, endpoint, host, certificate, security.tls.server_names)
        sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    except WireError:
        sock.close()
        raise
    except (OSError, ValueError) as exc:
        sock.close()
        raise WireError(f"{endpoint}: {explained(exc)}", endpoint=endpoint) from exc
    return sock


def _connect(host: str, port: int, timeout: float, window: int, context: ssl.SSLContext | None) -> socket.socket:
    """To the first address that answers, within `timeout` seconds for all of them, with buffers set before: a window
    that was offered is not taken back (RFC 9293, section 3.8.6). With a `context` TLS's, before the handshake."""
    failure = OSError(f"{host} has no address")
    deadline = time.monotonic() + timeout
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if (left := deadline - time.monotonic()) <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        if context is not None:  # not once it is connected: what a peer resets just then, `ssl` leaves open
            sock = context.wrap_socket(sock, do_handshake_on_connect=False)
        try:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF) if window else ():
                sock.setsockopt(socket.SOL_SOCKET, buffer, window)
            sock.settimeout(left)
            sock.connect(address)
            sock.settimeout(timeout)
        except OSError as exc:
            sock.close()
            failure = exc
        else:
            return sock
    raise failure


def _dial_otherwise(endpoint: str, plane: bytes, security: Security, timeout: float) -> socket.socket:
    """By another transport than TCP."""
    if security.tls:
        raise WireError(f"{endpoint}: with [tls] only TCP is used: nothing else shows certificates", endpoint=endpoint)
    sock = transport.connect(detour.way_to(endpoint), timeout)
    try:
        sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    except OSError as exc:
        sock.close()
        raise WireError(f"{endpoint}: {exc}", endpoint=endpoint) from exc
    return sock


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
    called `hand_over`.
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
        self._most = max_connections
        self._open: dict[socket.socket, PortPlace] = {}
        self._handed_over: set[socket.socket] = set()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Those that serve, and those that have left `_open` and are about to end."""
        self._lock = threading.Lock()  # covers _open, _handed_over, _threads and _stopping
        self._stopping = False
        self.refused = 0
        """Connections that got no place, or lost it to another."""
        self._told = _RefusalLog()
        self._thread = threading.Thread(target=self._accept_all, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, close every connection, join the threads within `timeout` seconds."""
        with self._lock:
            self._stopping = True
            connections = list(self._open)
            threads = [self._thread, *self._threads]
        with contextlib.suppress(OSError):  # not connected: the shutdown is only there to wake accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in connections:
            _shut(sock)
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

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

    def facts(self) -> Facts | None:
        """Contents of the certificates and lists in force: the same object until they change; None without TLS."""
        return self._tls.facts() if self._tls else None

    def tls(self) -> TlsStatus:
        """`TlsIdentity.status`, empty without TLS."""
        return self._tls.status(time.time()) if self._tls else TlsStatus()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that came by another transport (transport.py); `address` is what it is called, and what
        stands before a colon the peer whose place it takes."""
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            self._admit(sock, address.partition(":")[0], address)
            undo.pop_all()

    def _accept_all(self) -> None:
        while not self._stopping:
            with guarded("accepting a connection"):
                try:
                    if self._tls:
                        self._tls.look()
                    sock, address = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as exc:
                    if self._stopping or exc.errno in (errno.EBADF, errno.EINVAL):
                        return
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
        with self._lock:
            taken = not self._stopping and self._make_room(place.peer)
            if taken:
                self._open[sock] = place
                self._threads.add(thread)
        if not taken:
            self.refused += 1
            sock.close()
            return
        try:
            thread.start()
        except RuntimeError as exc:  # the system has no more threads for us
            log.warning("%s: %s refused: %s", self.name, address, exc)
            self.refused += 1
            with self._lock:
                self._open.pop(sock, None)
                self._threads.discard(thread)
            sock.close()

    def _make_room(self, peer: str) -> bool:
        """Whether there is a place for one more of `peer`, one being taken from another connection if need be. Called
        under the lock."""
        going = room(self._open, peer, self._most)
        for victim in going or ():
            self.refused += 1
            del self._open[victim]  # its thread closes it
            _shut(victim)
        return going is not None

    def _serve(self, raw: socket.socket, address: str, place: PortPlace) -> None:
        with guarded("connection"):
            sock = raw
            try:
                _tune(raw, IDLE_SECONDS)
                raw.settimeout(HANDSHAKE_SECONDS)
                identity = ""
                if self._tls:
                    sock = secured = self._secure(raw, self._tls.server_context())
                    self._shake_hands(secured, address)
                    certificate = self._tls.watch(secured)
                    place.holder = certificate.holder
                    identity = self._identify(certificate.identity, place)
                plane = self._plane(sock, address)
                self._handlers[plane](sock, Caller(address, identity, place))
            except (JbiError, OSError) as exc:
                log.debug("%s: %s: %s", self.name, address, exc)
            finally:
                self._leave(sock)

    def _leave(self, sock: socket.socket) -> None:
        """Its thread is done with it; whoever has it now closes it."""
        with self._lock:
            handed_over = sock in self._handed_over
            if not handed_over:
                self._open.pop(sock, None)
        if not handed_over:
            sock.close()

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

    def _identify(self, identity: str, place: PortPlace) -> str:
        """The peer is who its certificate says, and has its share as that. Raises WireError."""
        with self._lock:
            place.peer = identity or place.peer
            too_many = has_more(self._open, place.peer, self._most)
        if too_many:
            self.refused += 1
            raise WireError(f"{identity} has its {share_of(self._most)} of {self._most} connections")
        return identity

    def _tell(self, address: str, why: str) -> None:
        """Log a refusal that its operator has to mend; strangers can cause as many as they like."""
        if self._told.is_new(address.rpartition(":")[0], why, time.monotonic()):
            log.warning("%s: refused %s: %s", self.name, address, why)
        else:
            log.debug("%s: refused %s: %s", self.name, address, why)

    def _secure(self, raw: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The TLS socket in the place of `raw`, before the handshake: so `stop` can end that as well."""
        with self._lock:
            if self._stopping or raw not in self._open:
                raise WireError("stopping")
            raw.getpeername()  # raises OSError: a peer that has reset it already; `ssl` would leave that open
            secured = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            self._open[secured] = self._open.pop(raw)
        return secured


class _RefusalLog:
    """Which refusals were logged in this minute."""

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


def _tune(sock: socket.socket, idle: int) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return  # no TCP: another transport looks after itself
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, name):  # Linux; elsewhere the lease alone ends a half-open peer
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # already gone: that is what was wanted
        # Not SSLSocket's own shutdown: that takes the TLS state away from under a thread that reads or writes.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
