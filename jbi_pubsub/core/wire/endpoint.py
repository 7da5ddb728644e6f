"""Sockets: one listening port a process, for both planes. A preamble says which plane and which protocol.

Rules: TCP_NODELAY, keepalive and TCP_USER_TIMEOUT on both sides: a half-open peer is noticed in 10 s while something
is under way; when idle, in 25 s by the client of a data connection, which waits for what may never come, in 70 s by
others, who have calls with deadlines and leases for that (more eager probes would cost a 7,200 bps link a fifth); every
read has a deadline; connections are capped; a full file table slows accepting, it never ends it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import select
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.errors import (
    ConfigurationError,
    JbiError,
    PortInUseError,
    ProtocolError,
    WireError,
    WireTimeoutError,
)

from . import transport
from .ref import PROTOCOL, ServiceRef
from .tls import TlsIdentity, peer_fingerprint, peer_name

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


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end: address, and the identity of its certificate ("" without TLS)."""

    address: str
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Security:
    """How a process listens and connects. Without `tls` only loopback may be bound, unless `insecure`."""

    tls: TlsIdentity | None = None
    insecure: bool = False

    def check(self, host: str) -> None:
        """Refuse to listen in clear beyond loopback. Raises ConfigurationError."""
        if self.tls is None and not self.insecure and not _is_loopback(host):
            raise ConfigurationError(
                f"refusing to listen on {host} without TLS",
                hint="Set [tls] certificate, key and ca, or pass --insecure on a network you trust",
                host=host,
            )


def _is_loopback(host: str) -> bool:
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
        raise ConfigurationError(f"{text!r} is no host:port", hint="For example 127.0.0.1:4160", endpoint=text)
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
            f"{text!r} is no host:port", hint="For example 127.0.0.1:4160, an IPv6 host in brackets", endpoint=text
        )
    host, number = split_endpoint(f"{host}:{port}")
    return f"[{host}]:{number}".lower() if ":" in host else f"{host}:{number}".lower()


def dial(ref: ServiceRef, plane: bytes, security: Security, timeout: float, *, window: int = 0) -> socket.socket:
    """A socket to the first endpoint that answers, preamble sent. `window`: bytes that may be under way on it each way,
    which bounds what waits in front of a slow link; 0 leaves that to TCP. Raises the last WireTimeoutError or
    WireError."""
    failure = WireError(f"{ref.exported} has no endpoint")
    for endpoint in ref.endpoints:
        try:
            if not transport.is_tcp(endpoint):
                return _dial_otherwise(endpoint, plane, security, timeout)
            return _dial(endpoint, plane, security, ref.certificate, timeout, window)
        except WireError as exc:
            failure = exc
    raise failure


def _dial(
    endpoint: str, plane: bytes, security: Security, certificate: str, timeout: float, window: int
) -> socket.socket:
    host, port = split_endpoint(endpoint)
    try:
        sock = _connect(host, port, timeout, window)
    except TimeoutError as exc:
        raise WireTimeoutError(f"no answer from {endpoint} within {timeout:g} s", endpoint=endpoint) from exc
    except (OSError, UnicodeError) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise WireError(f"can't reach {endpoint}: {why}", endpoint=endpoint) from exc
    try:
        _tune(sock, WAITING_SECONDS if plane == DATA else IDLE_SECONDS)
        if security.tls:
            secured = security.tls.client_context().wrap_socket(sock)
            sock = secured
            if certificate and peer_fingerprint(secured) != certificate:
                raise ProtocolError(f"{endpoint} shows another certificate than its service reference promises")
        sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    except WireError:
        sock.close()
        raise
    except OSError as exc:
        sock.close()
        raise WireError(f"{endpoint}: {exc}", endpoint=endpoint) from exc
    return sock


def _connect(host: str, port: int, timeout: float, window: int) -> socket.socket:
    """As socket.create_connection, with buffers set before: a window that was offered is not taken back (RFC 9293,
    section 3.8.6)."""
    if not window:
        return socket.create_connection((host, port), timeout=timeout)
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                sock.setsockopt(socket.SOL_SOCKET, buffer, window)
            sock.settimeout(timeout)
            sock.connect(address)
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
    sock = transport.connect(endpoint, timeout)
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
            raise WireError(f"connection lost: {exc}") from exc
        if not read:
            raise WireError("connection closed by the peer")
        got += read
    return data


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
        security.check(host)
        self.name = name
        self._handlers = {CONTROL: control, DATA: data}
        self._context = security.tls.server_context() if security.tls else None
        self.certificate = security.tls.fingerprint() if security.tls else ""
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        shown = advertise or host
        self.address = f"[{shown}]:{self.port}" if ":" in shown else f"{shown}:{self.port}"
        self._max = max_connections
        self._open: dict[socket.socket, threading.Thread | None] = {}
        """With the thread that serves it; None: handed over."""
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Those that serve, and those that have left `_open` and are about to end."""
        self._lock = threading.Lock()  # covers _open, _threads and _stopping
        self._stopping = False
        self.refused = 0
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
                self._open[sock] = None

        def close() -> None:
            with self._lock:
                self._open.pop(sock, None)
            sock.close()

        return close

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that came by another transport (transport.py); `address` is what it is called."""
        self._admit(sock, address)

    def _accept_all(self) -> None:
        while not self._stopping:
            try:
                sock, address = self._listener.accept()
            except OSError as exc:
                if self._stopping or exc.errno in (errno.EBADF, errno.EINVAL):
                    return
                log.warning("%s: accept failed, trying again: %s", self.name, exc)
                time.sleep(0.2)  # EMFILE and friends: give others the time to close
                continue
            self._admit(sock, f"{address[0]}:{address[1]}")

    def _admit(self, sock: socket.socket, address: str) -> None:
        with self._lock:
            full = self._stopping or len(self._open) >= self._max
            if not full:
                thread = threading.Thread(
                    target=self._serve, args=(sock, address), name=f"{self.name}-{address}", daemon=True
                )
                self._open[sock] = thread
                self._threads.add(thread)
        if full:
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

    def _serve(self, raw: socket.socket, address: str) -> None:
        sock = raw
        try:
            _tune(raw, IDLE_SECONDS)
            raw.settimeout(HANDSHAKE_SECONDS)
            identity = ""
            if self._context:
                sock = secured = self._secure(raw, self._context)
                secured.do_handshake()
                identity = peer_name(secured)
            magic, protocol, plane = PREAMBLE.unpack(recv_exactly(sock, PREAMBLE.size, HANDSHAKE_SECONDS))
            if magic != MAGIC or protocol != PROTOCOL or plane not in self._handlers:
                raise ProtocolError(f"{address} speaks another protocol ({magic!r} {protocol})")
            self._handlers[plane](sock, Caller(address, identity))
        except (JbiError, OSError) as exc:
            log.debug("%s: %s: %s", self.name, address, exc)
        except Exception:  # the peer is not trusted, and one connection must not end with a traceback on stderr
            log.exception("%s: connection of %s failed", self.name, address)
        finally:
            with self._lock:
                ours = self._open.get(sock) is threading.current_thread()
                if ours:
                    del self._open[sock]
            if ours:
                sock.close()

    def _secure(self, raw: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The TLS socket in the place of `raw`, before the handshake: so `stop` can end that as well."""
        with self._lock:
            if self._stopping:
                raise WireError("stopping")
            secured = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            self._open[secured] = self._open.pop(raw)
        return secured


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
            f"can't listen on {host}:{port}: {exc.strerror or exc}",
            hint="Choose another port with --port (0 takes a free one), or stop what uses it",
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
