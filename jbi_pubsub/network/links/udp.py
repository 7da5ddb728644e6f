"""Datagrams of UDP: to a multicast group by each interface, and to single peers. IPv4 and IPv6.

Rules:
- Each group has a socket of its own for each interface, bound to the group, that hears no other group
  (IP_MULTICAST_ALL is off): two networks at one port do not hear each other.
- A busy link is tried again soon. An interface that is down, or not there yet, is joined anew each second, and told
  once; the others go on.
- Peers are heard by a socket of their own; what comes from one goes on to the others and to the group (`passing`).
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.network.links.link import Waitable, address_of
from jbi_pubsub.network.links.passing import PassedOn
from jbi_pubsub.network.links.trains import UdpSocket

log = logging.getLogger("jbi_pubsub.network")

REJOIN_SECONDS: Final = 1.0
BUFFER: Final = 4 << 20
"""Bytes that the kernel is asked for each way, where nobody says otherwise; it has a bound of its own."""
PEERS: Final = {socket.AF_INET: "peers", socket.AF_INET6: "peers (IPv6)"}
_MULTICAST_ALL: Final = 49
"""IP_MULTICAST_ALL, and IPV6_MULTICAST_ALL (29), which Python has no names for (linux/in.h, linux/in6.h)."""
_MULTICAST_ALL_6: Final = 29


class UdpLink:
    """See the module."""

    is_lossless: Final = False

    def __init__(
        self, group: str, port: int, *, interfaces: Sequence[str] = (), peers: Sequence[tuple[str, int]] = (),
        ttl: int = 1, send_buffer: int = 0, receive_buffer: int = 0,
    ) -> None:  # fmt: skip
        """`group`: a multicast address, "" for none; `interfaces`: names, () for all that can multicast; `peers`: where
        single nodes are, names looked up now. Raises ConfigurationError."""
        self._group = _group(group) if group else None
        self._port, self._ttl = port, ttl
        self._wanted = tuple(interfaces)
        self._peers = [address_of(*each, socket.SOCK_DGRAM) for each in peers]
        self._buffers = (send_buffer or BUFFER, receive_buffer or BUFFER)
        self._sockets: list[UdpSocket] = []
        self._waited: tuple[socket.socket, ...] = ()
        self._passed = PassedOn() if peers else None
        self._faults: Counter[str] = Counter()
        """Faults of sockets that are no more."""
        self._dropped = 0
        self._told: dict[str, str] = {}
        """Trouble by interface, until it is over."""
        self._good: set[str] = set()
        """Interfaces that have sent before."""
        self._look_at = 0.0
        self._look()
        if not self._sockets:
            why = "; ".join(f"{name}: {why}" for name, why in self._told.items()) or "there is none"
            raise ConfigurationError(
                f"no interface has taken {group or 'a socket'} at port {port}: {why}",
                hint="Name interfaces that are up and can multicast (`ip link` lists them), and a free port",
            )

    def sockets(self) -> Sequence[Waitable]:
        """See DatagramLink."""
        if time.monotonic() >= self._look_at:
            self._look()
        return self._waited

    def receive(self, sock: Waitable) -> list[bytes]:
        """See DatagramLink."""
        for each in self._sockets:
            if each.sock is sock:
                found = each.receive()
                if self._passed is None:
                    return [data for data, _ in found]
                return self._new(each, found, self._passed)
        return []

    def send(self, datagrams: Sequence[bytes]) -> int:
        """See DatagramLink. One that is down loses them."""
        taken = len(datagrams)
        for each in self._sockets:
            each.send(datagrams)
            taken = min(taken, *each.ahead)
        for each in self._sockets:
            each.ahead = [ahead - taken for ahead in each.ahead]
            if each.trouble is None:
                self._told.pop(each.name, None)
                self._good.add(each.name)
        if self._passed is not None:
            for data in datagrams[:taken]:
                self._passed.is_new(data)
        return taken

    def waiting(self) -> int:
        """See DatagramLink."""
        return max((each.waiting() for each in self._sockets), default=0)

    def status(self) -> dict[str, Any]:
        """See DatagramLink. Fault `no room`: datagrams that came, or trains of them, and the kernel had no room."""
        faults = sum((each.faults for each in self._sockets), self._faults)
        if dropped := self._dropped + sum(each.dropped for each in self._sockets):
            faults["no room"] = dropped
        return {
            "plugin": "udp",
            "group": str(self._group or ""),
            "port": self._port,
            "interfaces": [each.name for each in self._sockets if each.index],
            "peers": len(self._peers),
            "faults": dict(faults),
            "trouble": {name: why for name, why in self._told.items() if not self._is_no_wonder(name)},
        }

    def close(self) -> None:
        """See DatagramLink."""
        for each in self._sockets:
            each.sock.close()
        self._sockets, self._waited = [], ()
        self._look_at = float("inf")

    def _new(self, at: UdpSocket, found: list[tuple[bytes, Any]], passed: PassedOn) -> list[bytes]:
        """Those that were not here before; they go on."""
        new: list[bytes] = []
        for data, address in found:
            if passed.is_new(data):
                new.append(data)
                for each in self._sockets:
                    if each is not at or not at.index:
                        each.pass_on(data, address)
        return new

    def _look(self) -> None:
        """Sockets of interfaces that have come, or come back; none of those that are gone or in trouble."""
        self._look_at = time.monotonic() + REJOIN_SECONDS
        there: dict[str, int] = {}
        if self._group is not None:
            there = {name: at for at, name in socket.if_nameindex() if not self._wanted or name in self._wanted}
        good = [each for each in self._sockets if each.trouble is None and there.get(each.name, 0) == each.index]
        for each in self._sockets:
            if each not in good:
                self._tell(each.name, each.trouble or OSError(errno.ENODEV, "it is gone"))
                self._faults += each.faults
                self._dropped += each.dropped
                each.sock.close()
        self._sockets = good
        names = {each.name for each in good}
        for name in set(self._wanted) - there.keys() if self._group is not None else ():
            self._tell(name, OSError(errno.ENODEV, "no such interface"))
        is_six = self._group is not None and self._group.version == 6
        for name, index in there.items():
            if name not in names:
                to = (str(self._group), self._port, *((0, index) if is_six else ()))
                self._open(socket.AF_INET6 if is_six else socket.AF_INET, name, [to], index)
        for family, name in PEERS.items():
            peers = [address for of, address in self._peers if of == family]
            if peers and name not in names:
                self._open(family, name, peers)
        waited = tuple(each.sock for each in self._sockets)
        if waited != self._waited:
            self._waited = waited

    def _open(self, family: socket.AddressFamily, name: str, to: Sequence[tuple[Any, ...]], index: int = 0) -> None:
        """Open a socket that sends there: that of the group on the interface `index`, or one of peers."""
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as exc:  # this process has no room for one more, or the system none of that family
            self._tell(name, exc)
            return
        try:
            if self._group is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL_6, 0)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
            sock.bind(to[0] if index else ("", self._port))
            if index:
                self._join(sock, index)
        except OSError as exc:
            sock.close()
            self._tell(name, exc)
            return
        for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffers, strict=True):
            sock.setsockopt(socket.SOL_SOCKET, option, size)
        self._sockets.append(UdpSocket(sock, to, name, index))

    def _join(self, sock: socket.socket, index: int) -> None:
        assert self._group is not None
        if self._group.version == 6:
            member = struct.pack("16si", self._group.packed, index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self._ttl)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
        else:
            member = struct.pack("4s4si", self._group.packed, bytes(4), index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._ttl)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)

    def _tell(self, name: str, exc: OSError) -> None:
        why = exc.strerror or str(exc)
        if self._told.get(name) != why:
            self._told[name] = why
            log.log(
                logging.DEBUG if self._is_no_wonder(name) else logging.WARNING,
                "network %s: %s: %s; it is joined again", self._group or "of peers", name, why,
            )  # fmt: skip

    def _is_no_wonder(self, name: str) -> bool:
        """Whether trouble with an interface is none, as nobody has named it, and it has never sent."""
        return not self._wanted and self._group is not None and name not in self._good


def _group(text: str) -> Any:
    try:
        group = ip_address(text)
    except ValueError:
        group = None
    if group is None or not group.is_multicast:
        raise ConfigurationError(
            f"{text[:100]!r} is not a multicast address",
            hint="Set group of [network.NAME] to one of 239.0.0.0 to 239.255.255.255, or ff05::1",
        )
    return group
