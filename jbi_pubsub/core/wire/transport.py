"""Other ways to a service than TCP: endpoints that name their transport, `unix:///run/jbi/ID.sock`.

A transport gives connected stream sockets, and nothing above it knows which: preamble, calls, publications, deliveries
and events are the same. A service reference lists its endpoints in order of preference, so that whoever can't use the
first takes the next.

- `unix`, built in: sockets in a folder of this host ([pad] sockets), each under its server's id, so that a path never
  means another host's server. Their files are their owner's alone, and a client takes one that its own user, or root,
  listens on, and no other.
- Others are plug-ins, `transport.NAME` (core/plugins.py): a `Connector`. Whoever serves by one hands the sockets that
  it accepts to `Endpoint.adopt`, and registers the reference with its endpoint.

Identities come from certificates, which these do not show: where [tls] is set, none of them is used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import ConfigurationError, PortInUseError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded

from .port_connections import RefusalLog

log = logging.getLogger("jbi_pubsub.wire")

Connector = Callable[[str, float], socket.socket]
"""connect(address, timeout): a connected stream socket; `address` is what stands behind `NAME://`. Raises OSError."""

UNIX: Final = "unix"

MAX_PATH: Final = 107
"""Bytes of a socket's path (unix(7): sun_path, with a zero byte at its end)."""

SEND_BYTES: Final = 1 << 20
"""Bytes that the system takes of who sends on a Unix socket before it is full: a batch, as over TCP. By itself it takes
a fifth of that, and wakes who sends for the rest; it takes no more than its own limit (socket(7), wmem_max)."""

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid of who listens (unix(7), SO_PEERCRED)."""


def is_tcp(endpoint: str) -> bool:
    """host:port, or jbi://host:port (Jini's form of a locator)."""
    return "://" not in endpoint or endpoint.startswith("jbi://")


def connect(endpoint: str, timeout: float) -> socket.socket:
    """A socket to an endpoint that names its transport. Raises WireError, WireTimeoutError."""
    name, _, address = endpoint.partition("://")
    connector = _connect_unix if name == UNIX else cast("Connector | None", plugins.find("transport", name))
    if connector is None:
        known = ", ".join((UNIX, *plugins.names("transport")))
        raise WireError(
            f"{endpoint[:200]}: no transport {name[:50]!r} here; there are {known}", endpoint=endpoint[:200]
        )
    try:
        sock = connector(address, timeout)
    except TimeoutError as exc:
        raise WireTimeoutError(f"no answer from {endpoint} within {timeout:g} s", endpoint=endpoint) from exc
    except (OSError, ValueError) as exc:
        raise WireError(f"can't reach {endpoint}: {exc}", endpoint=endpoint) from exc
    sock.settimeout(timeout)
    return sock


def _connect_unix(path: str, timeout: float) -> socket.socket:
    if not Path(path).is_absolute():
        raise ValueError("the path of a socket begins with /")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        sock.connect(path)
        if hasattr(socket, "SO_PEERCRED"):  # Linux; elsewhere the rights of the folder have to do
            _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if user not in (0, os.getuid()):
                raise PermissionError(f"another user ({user}) listens there")
    except BaseException:
        sock.close()
        raise
    return sock


class UnixListener:
    """Accepts on a Unix socket of a folder, and hands over what comes."""

    def __init__(self, folder: Path, server_id: str, *, adopt: Callable[[socket.socket, str], None]) -> None:
        """Listens at once. `adopt(socket, address)` takes a connection. Raises PortInUseError, ConfigurationError."""
        self.path = folder.absolute() / f"{server_id}.sock"
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise ConfigurationError(
                f"the path {self.path} is longer than the {MAX_PATH} bytes that a socket may have",
                hint="Name a folder with a shorter path in [pad] sockets",
            )
        self._adopt = adopt
        self._count = 0
        self._stopping = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._listener.bind(os.fspath(self.path))
            self.path.chmod(0o600)  # before it listens: until then nobody can connect
            self._listener.listen(128)
        except OSError as exc:
            self._listener.close()
            raise PortInUseError(
                f"can't listen on {self.path}: {exc.strerror or exc}", hint="See [pad] sockets"
            ) from exc
        self._thread = threading.Thread(target=self._accept_all, name=f"unix-{server_id[:8]}-accept", daemon=True)

    @property
    def endpoint(self) -> str:
        """For service references."""
        return f"{UNIX}://{self.path}"

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more; the file is taken away."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # not connected: the shutdown is only there to wake accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self.path.unlink(missing_ok=True)

    def _accept_all(self) -> None:
        failures = RefusalLog()
        while not self._stopping.is_set():
            with guarded("accepting on a Unix socket"):
                try:
                    sock, _ = self._listener.accept()
                except OSError as exc:
                    if not self._stopping.is_set() and failures.is_new("", str(exc), time.monotonic()):
                        log.warning("%s: accept failed, trying again: %s", self.path, exc)
                    self._stopping.wait(0.2)  # a full file table: others need the time to close
                    continue
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
                self._count += 1
                self._adopt(sock, f"unix:{self._count}")
