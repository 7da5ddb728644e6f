"""The connection of a hub's stream: a socket that never waits, and the state that the system tells of its way.

What the socket does not take waits here, and goes in turns of TURN_BYTES at most. The hub's thread uses it, or one that
sends in its place: whoever holds the stream's `_turning` (see `hub`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import ProtocolError, WireError
from jbi_pubsub.core.info_object import Part

from .deflate import Compression
from .stream import ACK_BYTES, FRAME, deflated

READ_BYTES: Final = 64 << 10
"""Read from a socket at once; acknowledgements have 13 bytes and their note."""
TURN_BYTES: Final = 1 << 20
"""Written to one socket before others get their turn: four full batches."""
TLS_BYTES: Final = 16 << 10
"""Given to a TLS socket at once: one record (RFC 8446, 5.1), so that what the peer takes is seen as it takes it."""
PARTS_AT_ONCE: Final = 64
"""Parts given to one sendmsg; far below IOV_MAX, which is 1,024 on Linux."""
TCP_INFO_BYTES: Final = 168
"""Bytes of struct tcp_info, up to its delivery rate (Linux 4.9)."""
UNSENT_BYTES: Final = 16 << 10
"""Bytes of a paced stream that its socket takes beyond what is under way (TCP_NOTSENT_LOWAT)."""


class Transport(NamedTuple):
    """State of a TCP connection as Linux says it (tcp(7), TCP_INFO): times in ms, bytes; the rate in bytes a second."""

    rtt_ms: float
    retransmits: int
    unsent: int
    rate: int

    @classmethod
    def of(cls, sock: socket.socket) -> Transport | None:
        """None for what is no TCP connection, not open any more, or of a system that says less."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except (OSError, AttributeError):
            return None
        if len(info) < TCP_INFO_BYTES:
            return None
        (rtt,), (retransmits,) = struct.unpack_from("I", info, 68), struct.unpack_from("I", info, 100)
        (unsent,), (rate,) = struct.unpack_from("I", info, 144), struct.unpack_from("Q", info, 160)
        return cls(rtt / 1000, retransmits, unsent, rate)


class HubConnection:
    """A non-blocking socket, what it has not taken yet, and what has come of a frame."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None], compression: Compression | None) -> None:
        self.sock = sock
        self.ended = ended
        self.compression = compression
        self._plain: deque[Sequence[Part]] = deque()
        """To be compressed when what is before it has gone: one batch at a turn, for it takes milliseconds."""
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.watched = selectors.EVENT_READ
        self.deadline = 0.0
        """Until when it has to take something, by its StallWatch."""
        self.wants_room = False
        """The socket is full: to be written when the selector says so."""
        self.failed = ""
        """Why it is to end, if that was found on another thread than the hub's."""
        self.answers = False
        """TLS has to write before it can read on (keys are renewed), and the socket is full."""
        self.framed = 0
        """Bytes of the last frame, compressed if it was; where it is paced."""
        self.is_paced = False
        self._out: deque[memoryview] = deque()
        self._came = bytearray()

    @property
    def unsent(self) -> int:
        """Parts that wait."""
        return len(self._out) + len(self._plain)

    def pace(self) -> None:
        """Let what waits wait here, and not in the system, as far as that lets us."""
        self.is_paced = True
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if option is not None and self.sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # an old system: bytes under way are bounded all the same
                self.sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)

    def put(self, frame: Sequence[Part]) -> None:
        """To be written behind what waits."""
        if self.compression is not None:
            self._plain.append(frame)
            return
        self._out.extend([memoryview(part) for part in frame if len(part)])

    def write(self) -> int:
        """Write what the socket takes, at most about TURN_BYTES; how much. Raises OSError."""
        out, took = self._out, 0
        self.wants_room = False
        if self.compression is not None and self._plain and not out:
            frame = deflated(self._plain.popleft(), self.compression)
            if self.is_paced:
                self.framed = sum(map(len, frame))
            out.extend(map(memoryview, frame))
        try:
            while out and took < TURN_BYTES:
                took += self._write_some()
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants_room = True
        except ssl.SSLWantReadError:
            pass  # the peer renews its keys: what it sends for that wakes us
        else:
            self.wants_room = bool(out or self._plain)
        return took

    def _write_some(self) -> int:
        out = self._out
        if self.tls:  # the same bytes again until they are taken: OpenSSL has begun to encrypt them
            sent = self.sock.send(out[0][:TLS_BYTES])
        elif len(out) == 1:
            sent = self.sock.send(out[0])
        else:
            sent = self.sock.sendmsg(list(islice(out, PARTS_AT_ONCE)))
        left = sent
        while out and left >= len(out[0]):
            left -= len(out.popleft())
        if left:
            out[0] = out[0][left:]
        return sent

    def read(self) -> list[tuple[int, bytes]]:
        """The frames that have come, of at most ACK_BYTES each. Raises WireError when the peer has closed, OSError,
        ProtocolError."""
        self.answers = False
        try:
            while True:
                data = self.sock.recv(READ_BYTES)
                if not data:
                    raise WireError("connection closed by the peer")
                self._came += data
                if not (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                    break  # what OpenSSL holds decrypted, the selector does not see
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except ssl.SSLWantWriteError:
            self.answers = True
        return self._frames()

    def _frames(self) -> list[tuple[int, bytes]]:
        came, at, frames = self._came, 0, []
        while len(came) - at >= FRAME.size:
            length, kind = FRAME.unpack_from(came, at)
            if length > ACK_BYTES:
                raise ProtocolError(f"peer announces a frame of {length} bytes, the limit is {ACK_BYTES}")
            end = at + FRAME.size + length
            if end > len(came):
                break
            frames.append((kind, bytes(came[at + FRAME.size : end])))
            at = end
        del came[:at]
        return frames
