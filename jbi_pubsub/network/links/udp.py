"""Datagrams of UDP: to a multicast group by each interface, and to single peers. IPv4 and IPv6.

Rules:
- Each group has a socket of its own for each interface, bound to the group, that hears no other group (IP_MULTICAST_ALL
  is off, the destination is looked at): two networks at one port do not hear each other.
- A busy link is tried again soon. One that is down is joined anew each second, and told once.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from jbi_pubsub.core.errors import ConfigurationError

log = logging.getLogger("jbi_pubsub.network")

DATAGRAM_MOST: Final = 65_535
DRAIN_MOST: Final = 64
"""Datagrams that are read at once from a socket."""
REJOIN_SECONDS: Final = 1.0
_BUSY: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.EINTR})
_MULTICAST_ALL: Final = 49
"""IP_MULTICAST_ALL, and IPV6_MULTICAST_ALL (29), which Python has no names for (linux/in.h, linux/in6.h)."""
_MULTICAST_ALL_6: Final = 29


@dataclass(eq=False, slots=True)
class _UdpSocket:
    """A socket of an interface, or for peers."""

    sock: socket.socket
    to: tuple[tuple[Any, ...], ...]
    interface: str


class UdpLink:
    """See the module."""

    def __init__(
        self,
        group: str,
        port: int,
        *,
        interfaces: Sequence[str] = (),
        peers: Sequence[tuple[str, int]] = (),
        ttl: int = 1,
        send_buffer: int = 0,
        receive_buffer: int = 0,
    ) -> None:
        """`group`: a multicast address, "" for none; `interfaces`: names, () for all that can multicast; `peers`: where
        single nodes are. Raises ConfigurationError."""
        self._group = ip_address(group) if group else None
        if self._group is not None and not self._group.is_multicast:
            raise ConfigurationError(
                f"{group} is no multicast address", hint="239.0.0.0 to 239.255.255.255, or ff05::1"
            )
        self._port, self._ttl = port, ttl
        self._wanted = tuple(interfaces)
        self._peers = tuple(peers)
        self._buffers = (send_buffer, receive_buffer)
        self._ports: list[_UdpSocket] = []
        self._faults: Counter[str] = Counter()
        self._told = ""
        self._rejoin_at = 0.0
        self._join()
        if not self._ports:
            raise ConfigurationError(f"no interface has taken {group or 'a socket'}: {self._told}")

    def sockets(self) -> list[socket.socket]:
        """See Link."""
        if self._rejoin_at and time.monotonic() >= self._rejoin_at:
            self._join()
        return [each.sock for each in self._ports]

    def receive(self, sock: socket.socket) -> list[bytes]:
        """See Link."""
        found: list[bytes] = []
        for _ in range(DRAIN_MOST):
            try:
                found.append(sock.recv(DATAGRAM_MOST))
            except BlockingIOError:
                break
            except OSError as exc:
                self._fail(exc)
                break
        return found

    def send(self, data: bytes) -> bool:
        """See Link."""
        is_sent = True
        for port in self._ports:
            for address in port.to:
                try:
                    port.sock.sendto(data, address)
                except OSError as exc:
                    if exc.errno in _BUSY:
                        is_sent = False
                    else:
                        self._fail(exc)
        return is_sent

    def status(self) -> dict[str, Any]:
        """See Link."""
        return {
            "plugin": "udp",
            "group": str(self._group or ""),
            "port": self._port,
            "interfaces": [each.interface for each in self._ports],
            "peers": len(self._peers),
            "faults": dict(self._faults),
            "trouble": self._told,
        }

    def close(self) -> None:
        """See Link."""
        for each in self._ports:
            each.sock.close()
        self._ports = []

    def _join(self) -> None:
        """Sockets anew, as far as there are interfaces."""
        self.close()
        self._rejoin_at = 0.0
        self._told = ""
        if self._group is not None:
            for index, name in socket.if_nameindex():
                if not self._wanted or name in self._wanted:
                    self._open(name, index)
        if self._peers:
            self._open_for_peers()

    def _open(self, name: str, index: int) -> None:
        assert self._group is not None
        is_six = self._group.version == 6
        sock = socket.socket(socket.AF_INET6 if is_six else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._size(sock)
            where = str(self._group)
            if is_six:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL_6, 0)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self._ttl)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                sock.bind((where, self._port, 0, index))
                member = struct.pack("16si", self._group.packed, index)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
                to: tuple[Any, ...] = (where, self._port, 0, index)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._ttl)
                member = struct.pack("4s4si", self._group.packed, bytes(4), index)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member)
                sock.bind((where, self._port))
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
                to = (where, self._port)
            sock.setblocking(False)
        except OSError as exc:
            sock.close()
            if self._wanted:
                self._fail(exc)
            else:
                self._told = f"{name}: {exc.strerror}"
            return
        self._ports.append(_UdpSocket(sock, (to,), name))

    def _open_for_peers(self) -> None:
        families = {socket.AF_INET6 if ":" in host else socket.AF_INET for host, _ in self._peers}
        for family in families:
            sock = socket.socket(family, socket.SOCK_DGRAM)
            self._size(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("", self._port))
            sock.setblocking(False)
            to = tuple((host, port) for host, port in self._peers if (":" in host) == (family == socket.AF_INET6))
            self._ports.append(_UdpSocket(sock, to, "peers"))

    def _size(self, sock: socket.socket) -> None:
        for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffers, strict=True):
            if size:
                sock.setsockopt(socket.SOL_SOCKET, option, size)

    def _fail(self, exc: OSError) -> None:
        self._faults[errno.errorcode.get(exc.errno or 0, "?")] += 1
        why = exc.strerror or str(exc)
        if why != self._told:
            self._told = why
            log.warning("network %s: %s; it is joined again", self._group or "peers", why)
        if not self._rejoin_at:
            self._rejoin_at = time.monotonic() + REJOIN_SECONDS
