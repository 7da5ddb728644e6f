"""A socket of UDP that sends and receives trains: datagrams of one size, the last perhaps shorter, in one call.

Linux cuts a train at the last moment before the device (UDP_SEGMENT), and joins those that come (UDP_GRO); elsewhere
each goes by a call of its own.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from jbi_pubsub.network.links.link import DATAGRAM_MOST

TRAIN_MOST: Final = 44
"""Datagrams of a train."""
TRAIN_BYTES: Final = 65_000
DRAIN_MOST: Final = 64
"""Trains that are read at once."""
BUSY_MOST: Final = 5.0
"""Seconds that a socket may take nothing; then it counts as down."""
_BUSY: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.EINTR})
_DOWN: Final = frozenset({
    errno.ENETDOWN, errno.ENODEV, errno.ENXIO, errno.EPERM, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL,
})  # fmt: skip
_NO_TRAINS: Final = frozenset({errno.EINVAL, errno.EIO})
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SO_RXQ_OVFL: Final = 40
"""Which Python has no names for (linux/udp.h, asm-generic/socket.h)."""
_ANCILLARY: Final = 2 * socket.CMSG_SPACE(4)
_IS_LINUX: Final = sys.platform == "linux"


class UdpSocket:
    """See the module. `name` is its interface's, or says that it is for peers."""

    def __init__(self, sock: socket.socket, to: Sequence[tuple[Any, ...]], name: str, index: int = 0) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.to = tuple(to)
        self.name = name
        self.index = index
        self.trouble: OSError | None = None
        """Why it has to be made anew."""
        self.ahead = [0] * len(self.to)
        """For each addressee, how many of those that are given next it has been sent already."""
        self.dropped = 0
        """Datagrams that came and had no room in the kernel, or trains of them."""
        self.faults: Counter[str] = Counter()
        self._train = TRAIN_MOST if _IS_LINUX else 1
        self._busy_since = 0.0
        if _IS_LINUX:
            for level, option in ((socket.IPPROTO_UDP, _UDP_GRO), (socket.SOL_SOCKET, _SO_RXQ_OVFL)):
                with suppress(OSError):  # an older kernel: each comes by itself, and nobody counts what was lost
                    sock.setsockopt(level, option, 1)

    def send(self, datagrams: Sequence[bytes]) -> None:
        """Send to each addressee what it is not ahead of, as far as there is room; `ahead` says how far."""
        for at, address in enumerate(self.to):
            while self.trouble is None and self.ahead[at] < len(datagrams):
                run = self._run(datagrams, self.ahead[at])
                try:
                    self._put(run, address)
                except OSError as exc:
                    if exc.errno in _BUSY:
                        self._note_busy(exc)
                        break
                    if len(run) > 1 and exc.errno in _NO_TRAINS:
                        self._train = 1
                        continue
                    self._fail(exc)
                else:
                    self._busy_since = 0.0
                self.ahead[at] += len(run)
        if self.trouble is not None:
            self.ahead = [len(datagrams)] * len(self.to)

    def pass_on(self, datagram: bytes, came_from: Any = None) -> None:
        """Send it to all but the one that it came from; what there is no room for is lost."""
        for address in self.to:
            if address != came_from and self.trouble is None:
                try:
                    self.sock.sendto(datagram, address)
                except OSError as exc:
                    self._fail(exc)

    def receive(self) -> list[tuple[bytes, Any]]:
        """Datagrams that have come, and from where."""
        found: list[tuple[bytes, Any]] = []
        for _ in range(DRAIN_MOST):
            try:
                data, ancillary, _, address = self.sock.recvmsg(DATAGRAM_MOST, _ANCILLARY)
            except OSError as exc:
                if exc.errno not in _BUSY:
                    self._fail(exc)
                break
            size = len(data)
            for level, kind, value in ancillary:
                if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
                    size = int.from_bytes(value[:4], sys.byteorder)
                elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                    self.dropped = int.from_bytes(value[:4], sys.byteorder)
            if size >= len(data):
                found.append((data, address))
            else:
                found.extend((data[at : at + size], address) for at in range(0, len(data), max(1, size)))
        return found

    def waiting(self) -> int:
        """Bytes in the kernel that have not left, with what it needs to keep them."""
        with suppress(OSError):  # closed
            return int(struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))[0])
        return 0

    def _run(self, datagrams: Sequence[bytes], at: int) -> Sequence[bytes]:
        """As many from there as make a train."""
        size = len(datagrams[at])
        most = min(self._train, max(1, TRAIN_BYTES // max(1, size)), len(datagrams) - at)
        end = at + 1
        while end < at + most and len(datagrams[end]) == size:
            end += 1
        if end < at + most and 0 < len(datagrams[end]) < size:
            end += 1
        return datagrams[at:end]

    def _put(self, run: Sequence[bytes], address: Any) -> None:
        if len(run) == 1:
            self.sock.sendto(run[0], address)
        else:
            size = struct.pack("H", len(run[0]))
            self.sock.sendmsg(run, [(socket.IPPROTO_UDP, _UDP_SEGMENT, size)], 0, address)

    def _note_busy(self, exc: OSError) -> None:
        now = time.monotonic()
        if not self._busy_since:
            self._busy_since = now
        elif now - self._busy_since > BUSY_MOST:
            self._fail(exc)
            self.trouble = exc

    def _fail(self, exc: OSError) -> None:
        self.faults[errno.errorcode.get(exc.errno or 0, "?")] += 1
        if exc.errno in _DOWN:
            self.trouble = exc
