"""The socket of a data connection: whole frames, with deadlines, read by one thread while another writes.

- A peer that takes nothing for SEND_SECONDS is disconnected; one that takes little has the time anew with each piece.
- No memory is taken for what a frame announces before that has come, beyond STEP_BYTES.
- It begins with a handshake: HELLO with a token, then WELCOME or REFUSED. A token comes from a control call, stands for
  what that call was about, and is good for one connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import OversizeError, ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.values import decoded

from .deflate import DEFLATE, Compression
from .port_connections import shut
from .stream import FRAME, HELLO, MAX_FRAME_BYTES, REFUSED, WELCOME, deflated
from .tls import alert_in, explained

STEP_BYTES: Final = 3 << 19
"""Most memory taken for what a frame announces before that has come: room for the batches of a fast link in one."""
HANDSHAKE_SECONDS: Final = 10.0
SEND_SECONDS: Final = 30.0
"""A peer that takes nothing of a batch for so long is disconnected (it may come back and resume)."""
IDLE_SECONDS: Final = 3600.0
"""Length of one wait for a frame before it is begun again; keepalive notices dead peers long before."""
BLOCKED_SECONDS: Final = 5
"""Time that the system waits for bytes in one call, without a poll before it."""
AHEAD_BYTES: Final = 8 << 10
"""Read at once where a frame begins: head and body of a small one, and what comes behind it, in one call."""
LARGE_BYTES: Final = 64 << 10
"""A frame of this size is worth a call of its own for its head."""
GATHERED_MOST: Final = 512
"""Parts that the system is given to gather in one call; it takes 1,024 (IOV_MAX)."""


class StreamSocket:
    """A socket that one thread may read while another writes, with deadlines; TLS sockets are locked for it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self.compression: Compression | None = None
        """Compression of the batches, if both ends have agreed on it (`greet`, `welcome`)."""
        self._use = threading.Lock()  # OpenSSL objects are not safe for a reader beside a writer
        self._sending = threading.Lock()  # one frame at a time
        self._ahead = bytearray()
        """Read, and of no frame yet."""
        self._was_large = False
        """The last frame was: the next one is likely to be."""
        self._wants_read = False
        """TLS can't write before something has come."""
        self._coming = select.poll()
        self._coming.register(sock, select.POLLIN)
        sock.setblocking(not self._tls)
        if not self._tls:  # the reader waits within `recv`; who sends says each time that it does not wait there
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", BLOCKED_SECONDS, 0))

    def send(self, kind: int, parts: Sequence[Part], timeout: float = SEND_SECONDS) -> None:
        """One frame. Raises WireError or WireTimeoutError; the line is unusable after either."""
        total = sum(map(len, parts))
        if total > MAX_FRAME_BYTES:
            raise OversizeError(f"frame of {total} bytes, the limit is {MAX_FRAME_BYTES}")
        self.send_frame([b"".join([FRAME.pack(total, kind), *parts])], timeout)

    def send_frame(self, frame: Sequence[Part], timeout: float = SEND_SECONDS) -> None:
        """The same for a frame that has its head already (`Batch.frame`)."""
        with self._sending:
            if self.compression is not None:
                frame = deflated(frame, self.compression)
            left, deadline = list(frame), time.monotonic() + timeout
            while left := self._written(left):
                size = sum(map(len, left))
                event = select.POLLIN if self._wants_read else select.POLLOUT
                self._wait(event, deadline, f"{size} bytes unsent")
                deadline = time.monotonic() + timeout  # a slow link is no dead one

    def receive(
        self, timeout: float = IDLE_SECONDS, limit: int = MAX_FRAME_BYTES, *, ahead: int = AHEAD_BYTES
    ) -> tuple[int, memoryview]:
        """The next frame of at most `limit` bytes: (kind, body). Up to `ahead` bytes behind its head are read with it:
        0 for who hands the socket over then. Raises WireError, WireTimeoutError, ProtocolError."""
        deadline = time.monotonic() + timeout
        got = self._ahead
        if self._was_large:  # what is read ahead of a large one would have to be copied, to be in one with the rest
            ahead = 0
        while len(got) < FRAME.size:
            space = bytearray(max(FRAME.size - len(got), ahead))
            read = self._read(space, deadline, len(got), FRAME.size)
            got += memoryview(space)[:read]
        length, kind = FRAME.unpack_from(got)
        if length > limit:
            alert = alert_in(bytes(got[: FRAME.size]))
            raise ProtocolError(alert or f"peer announces a frame of {length} bytes, the limit is {limit}")
        end = FRAME.size + length
        self._was_large = length >= LARGE_BYTES
        if len(got) >= end:
            self._ahead = got[end:]
            return kind, memoryview(got)[FRAME.size : end]
        self._ahead = bytearray()
        return kind, memoryview(self._rest(got, length, time.monotonic() + max(timeout, SEND_SECONDS)))

    def has_more(self, timeout: float) -> bool:
        """Whether there is something to read, or the line is over, within `timeout` seconds."""
        if self._ahead:
            return True
        if isinstance(self._sock, ssl.SSLSocket):
            with self._use:
                if self._sock.pending():
                    return True
        try:
            return bool(self._coming.poll(timeout * 1000))
        except (OSError, ValueError) as exc:
            raise WireError(f"connection lost: {explained(exc)}") from exc

    def takes_more(self) -> bool:
        """Whether the system takes a small frame at once; True for a line that is over, which `send` tells."""
        try:
            poller = select.poll()
            poller.register(self._sock, select.POLLOUT)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return True

    def shut(self) -> None:
        """Wake and end whoever reads or writes; the owner of the socket closes it."""
        shut(self._sock)

    def finish(self) -> None:
        """Nothing is written any more: the peer finds the end behind what was."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def _rest(self, got: bytearray, count: int, deadline: float) -> Part:
        """The body of a frame, of which `got` has the head and a part; not copied, if it comes in one piece."""
        body = got[FRAME.size :]
        while len(body) < count:
            piece = self._piece(min(count - len(body), STEP_BYTES), deadline, len(body), count)
            if len(piece) == count:
                return piece
            body += piece
        return body

    def _piece(self, most: int, deadline: float, at: int, count: int) -> Part:
        """So many bytes behind the first `at` of `count`; fewer when they come slowly."""
        if self._tls:
            space = memoryview(bytearray(most))
            came = 0
            while came < most:
                came += self._read(space[came:], deadline, at + came, count)
            return space
        while True:
            if deadline - time.monotonic() < BLOCKED_SECONDS:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
            try:  # all of it in one call, into memory that nobody has to clear before
                data = self._sock.recv(most, socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            if not data:
                raise WireError("connection closed by the peer")
            return data

    def _read(self, space: bytearray | memoryview, deadline: float, at: int, count: int) -> int:
        """Bytes read into `space`, at least one, after the first `at` of `count`."""
        while True:
            if not self._tls and deadline - time.monotonic() < BLOCKED_SECONDS:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
            try:
                if self._tls:
                    with self._use:
                        read = self._sock.recv_into(space)
                else:
                    read = self._sock.recv_into(space)
            except BlockingIOError:
                continue
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, deadline, "TLS renegotiation")
                continue
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            if not read:
                raise WireError("connection closed by the peer")
            return read

    def _written(self, parts: list[Part]) -> list[Part]:
        """Write as much as the socket takes now; the rest."""
        self._wants_read = False
        if self._tls and len(parts) > 1:
            parts = [b"".join(parts)]
        while parts:
            try:
                if self._tls:
                    with self._use:
                        sent = self._sock.send(parts[0])
                else:
                    sent = self._sock.sendmsg(parts[:GATHERED_MOST], (), socket.MSG_DONTWAIT)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return parts
            except ssl.SSLWantReadError:
                self._wants_read = True
                return parts
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            parts = rest_of(parts, sent)
        return parts

    def _wait(self, event: int, deadline: float, doing: str) -> None:
        left = deadline - time.monotonic()
        try:
            poller = select.poll()
            poller.register(self._sock, event)
            ready = left > 0 and poller.poll(left * 1000)
        except (OSError, ValueError) as exc:
            raise WireError(f"connection lost: {explained(exc)}") from exc
        if not ready:
            raise WireTimeoutError(f"peer is too slow: {doing}")


def rest_of(parts: list[Part], sent: int) -> list[Part]:
    """Rest of parts, of which so many bytes were sent."""
    for at, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[at + 1 :]] if sent else parts[at:]
        sent -= len(part)
    return []


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First frame of a data socket: the token, the last sequence number the client has received, and the names of
    compressions that it would take, one of which the server may agree to."""

    token: str
    position: int = 0
    compression: tuple[str, ...] = ()

    @classmethod
    def of(cls, token: str, position: int = 0, *, compression: str = "none") -> Hello:
        """With the compression that the configuration names (`link.compression`)."""
        return cls(token, position, () if compression == "none" else (compression,))


_HELLOS: Final = msgspec.msgpack.Decoder(Hello)


def greet(line: StreamSocket, hello: Hello) -> int:
    """Client side of the handshake: the server's position. From here on the line is compressed, if the server has
    agreed to that. Raises ProtocolError when refused."""
    line.send(HELLO, [msgspec.msgpack.encode(hello)], HANDSHAKE_SECONDS)
    kind, body = line.receive(HANDSHAKE_SECONDS, limit=1024)
    if kind == REFUSED:
        raise ProtocolError(f"data connection refused: {bytes(body[:200]).decode(errors='replace')}")
    agreed = bytes(body[8:]).decode(errors="replace")
    if kind != WELCOME or len(body) < 8 or agreed not in ("", *hello.compression):
        raise ProtocolError(f"frame of kind {kind} where a welcome belongs")
    if agreed:
        line.compression = Compression()
    return int.from_bytes(body[:8], "big")


def listen(line: StreamSocket) -> Hello:
    """Server side, first half: the client's HELLO."""
    kind, body = line.receive(HANDSHAKE_SECONDS, limit=1024, ahead=0)
    if kind != HELLO:
        raise ProtocolError(f"frame of kind {kind} where a hello belongs")
    return decoded(_HELLOS, body, "hello")


def welcome(line: StreamSocket, position: int, compression: Compression | None = None) -> None:
    """Server side, second half: accept, and say how far we have received. `compression`: what the line uses from here
    on, if the client has asked for it."""
    agreed = DEFLATE if compression is not None else ""
    line.compression = compression
    line.send(WELCOME, [position.to_bytes(8, "big"), agreed.encode()], HANDSHAKE_SECONDS)


def refuse(line: StreamSocket, why: str) -> None:
    """Server side, second half: say no."""
    line.send(REFUSED, [why.encode()[:200]], HANDSHAKE_SECONDS)


class Tokens:
    """Single-use tokens for data connections, each standing for a value. Thread-safe; at most `limit` wait."""

    def __init__(self, new_token: Callable[[], str] = lambda: uuid4().hex, *, limit: int = 10_000) -> None:
        self._new_token = new_token
        self._waiting: Cache[str, Any] = Cache(limit)
        self._lock = threading.Lock()

    def issue(self, value: object) -> str:
        """A token; when too many wait, the oldest is forgotten (its client asks again)."""
        token = self._new_token()
        with self._lock:
            self._waiting[token] = value
        return token

    def redeem(self, token: str) -> Any:
        """The value, or None: unknown or used before."""
        with self._lock:
            return self._waiting.pop(token, None)
