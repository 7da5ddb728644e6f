"""The client's end of a connection: a socket to a service, by the first of its endpoints that answers.

A service may be reached by another way than its endpoint says (see `detour`), and by another transport than TCP (see
`transport`). With TLS a server has to show the certificate that is expected of it (see `tls`).
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, WireError, WireTimeoutError

from . import detour, transport
from .address import MAX_HOST, check_endpoint, split_endpoint
from .endpoint import CONTROL, DATA, IDLE_SECONDS, MAGIC, PREAMBLE, WAITING_SECONDS, Security, tune
from .ref import PROTOCOL, ServiceRef
from .tls import check_server, explained

GONE_SECONDS: Final = 1.0
"""To find out whether a server has died."""
CONNECT_SECONDS: Final = 10.0
"""Until it is begun anew to connect, while there is time: the system asks an address that does not answer ever more
rarely, after half a minute of an outage once in 16 s, then in 32."""
MAX_ENDPOINTS: Final = 8
"""Endpoints of a service that are tried: one for each interface. Who answers late at thousands must cost no hour."""


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
        tune(sock, WAITING_SECONDS if plane == DATA else IDLE_SECONDS)
        if security.tls and isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            peer = security.tls.watch(sock)
            check_server(sock, peer.key, endpoint, host, certificate, security.tls.server_names)
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
    untried = addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    while untried and (left := deadline - time.monotonic()) > 0:
        (family, kind, protocol, _, address), *untried = untried
        sock = socket.socket(family, kind, protocol)
        if context is not None:  # not once it is connected: what a peer resets just then, `ssl` leaves open
            sock = context.wrap_socket(sock, do_handshake_on_connect=False)
        try:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF) if window else ():
                sock.setsockopt(socket.SOL_SOCKET, buffer, window)
            sock.settimeout(min(left, CONNECT_SECONDS))
            sock.connect(address)
            sock.settimeout(timeout)
        except OSError as exc:
            sock.close()
            failure = exc
            if not untried and isinstance(exc, TimeoutError):
                untried = addresses
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
