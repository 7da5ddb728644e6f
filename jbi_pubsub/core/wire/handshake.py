"""The handshake of a data connection: HELLO with a token, then WELCOME or REFUSED.

A token comes from a control call, stands for what that call was about, and is good for one connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.values import decoded

from .deflate import DEFLATE, Compression
from .stream import HELLO, REFUSED, WELCOME
from .stream_socket import StreamSocket

HANDSHAKE_SECONDS: Final = 10.0


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

    def __init__(self, new_token: Callable[[], str], *, limit: int = 10_000) -> None:
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
