"""Captures of packets, as tcpdump, Wireshark and others write them (pcap, pcapng), and the datagrams of UDP in them.

Never raises for what a capture has in it: what is no UDP, or can't be read, is counted. Bounded: one packet of
PACKET_MOST bytes at a time, and FRAGMENTS_MOST datagrams whose fragments have not all come.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from jbi_pubsub.core.errors import ConfigurationError

PACKET_MOST: Final = 1 << 20
"""Bytes of a packet, or of a block of pcapng."""
FRAGMENTS_MOST: Final = 256
"""Datagrams whose fragments have not all come, and fragments of one."""
INTERFACES_MOST: Final = 10_000
DATAGRAM_MOST: Final = 65_535
_PCAP: Final = {0xA1B2C3D4: 1e-6, 0xA1B23C4D: 1e-9}
"""Magic numbers of pcap, and the unit of its times."""
_SECTION, _INTERFACE, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 3, 6
_TAGS: Final = (0x8100, 0x88A8)
"""Types of Ethernet for a virtual network, whose packet follows."""
_IP_AT: Final = {0: 4, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
"""Where the IP packet begins in those of a link type: loopback (0, 108), raw IP, Linux cooked (113, 276)."""
_ETHERNET: Final = 1
_UDP, _FRAGMENT = 17, 44
_HEADERS: Final = (0, 43, 60)
"""Headers of IPv6 before what it carries: options of each hop, a route, options of the receiver."""


class CapturedFrame(NamedTuple):
    """A packet as its interface had it."""

    number: int
    """From 1, as other programs count them."""
    at: float
    """Seconds since 1970."""
    link_type: int
    data: bytes
    is_cut: bool
    """Whether the capture has not all of it."""


class CapturedDatagram(NamedTuple):
    """A datagram of UDP in a capture."""

    number: int
    at: float
    source: str
    destination: str
    data: bytes
    is_cut: bool = False


class Capture:
    """The datagrams of a capture, read once. `counts`: its packets, and those that are no datagrams of UDP, by why."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises ConfigurationError for what is no capture."""
        self._file = file
        self.counts: Counter[str] = Counter()
        self.trouble = ""
        """Why it ends before its end."""
        self._fragments: OrderedDict[tuple[bytes, int], dict[int, tuple[bytes, bool]]] = OrderedDict()
        begin = file.read(4)
        if int.from_bytes(begin) == _SECTION:
            self._frames = self._enhanced_frames(begin)
            return
        for order in "<>":
            unit = _PCAP.get(Struct(f"{order}I").unpack(begin)[0] if len(begin) == 4 else 0)
            if unit is not None and len(head := file.read(20)) == 20:
                self._frames = self._plain_frames(order, unit, Struct(f"{order}I").unpack_from(head, 16)[0] & 0xFFFF)
                return
        raise ConfigurationError("this is not a capture", hint="Make one with tcpdump -i lo -w FILE udp")

    def __iter__(self) -> Iterator[CapturedDatagram]:
        """The datagrams."""
        with suppress(EOFError):
            for frame in self._frames:
                self.counts["packets"] += 1
                try:
                    found = self._datagram(frame)
                except (struct.error, IndexError, ValueError):
                    found = "cut off"
                if isinstance(found, str):
                    self.counts[found] += 1
                else:
                    yield found

    # -- packets of files -----------------------------------------------------------------------------------------

    def _read(self, size: int, *, may_end: bool = False) -> bytes:
        """So many bytes. Raises EOFError: that was the end, or is more than a packet may have."""
        if size > PACKET_MOST:
            self.trouble = f"a packet of {size} bytes"
            raise EOFError
        data = self._file.read(size)
        if len(data) < size:
            self.trouble = "" if may_end and not data else "it ends within a packet"
            raise EOFError
        return data

    def _plain_frames(self, order: str, unit: float, link_type: int) -> Iterator[CapturedFrame]:
        head = Struct(f"{order}4I")
        for number in count(1):
            seconds, fraction, size, whole = head.unpack(self._read(head.size, may_end=True))
            yield CapturedFrame(number, seconds + fraction * unit, link_type, self._read(size), size < whole)

    def _enhanced_frames(self, begin: bytes) -> Iterator[CapturedFrame]:
        """Frames of pcapng: blocks of interfaces, and of packets that name one."""
        order, number, kind = ">", 0, begin
        interfaces: list[tuple[int, float]] = []
        while True:
            size = self._read(4)
            if int.from_bytes(kind) == _SECTION:
                interfaces.clear()
                magic = self._read(4)
                order = "<" if magic == b"\x4d\x3c\x2b\x1a" else ">"
                body = self._read(max(0, Struct(f"{order}I").unpack(size)[0] - 12))
            else:
                body = self._read(max(0, Struct(f"{order}I").unpack(size)[0] - 8))
            type_ = Struct(f"{order}I").unpack(kind)[0]
            if type_ == _INTERFACE and len(body) >= 8 and len(interfaces) < INTERFACES_MOST:
                interfaces.append((Struct(f"{order}H").unpack_from(body)[0], _unit(order, body[8:])))
            elif type_ in (_ENHANCED, _SIMPLE):
                number += 1
                frame = _framed(order, number, type_, body, interfaces)
                if frame is None:
                    self.counts["packets"] += 1
                    self.counts["cut off"] += 1
                else:
                    yield frame
            kind = self._read(4, may_end=True)

    # -- packets of networks --------------------------------------------------------------------------------------

    def _datagram(self, frame: CapturedFrame) -> CapturedDatagram | str:
        """Its datagram, or why it has none (yet)."""
        data = frame.data
        at = _IP_AT.get(frame.link_type, -1)
        if frame.link_type == _ETHERNET:
            at = 14
            while int.from_bytes(data[at - 2 : at]) in _TAGS:
                at += 4
        if at < 0:
            return f"of link type {frame.link_type}"
        version = data[at] >> 4
        if version == 4:
            return self._of_ip4(frame, data[at:])
        return self._of_ip6(frame, data[at:]) if version == 6 else "no IP"

    def _of_ip4(self, frame: CapturedFrame, data: bytes) -> CapturedDatagram | str:
        length, name, flags = _IP4.unpack_from(data, 2)
        if data[9] != _UDP:
            return "no UDP"
        ends, body = data[12:20], data[(data[0] & 15) * 4 : length or len(data)]
        if flags & 0x3FFF:
            whole = self._joined(ends, name, (flags & 0x1FFF) * 8, body, is_last=not flags & 0x2000)
            if whole is None:
                return "fragments"
            body = whole
        return _of_udp(frame, ends[:4], ends[4:], body)

    def _of_ip6(self, frame: CapturedFrame, data: bytes) -> CapturedDatagram | str:
        ends, kind, body = data[8:40], data[6], data[40:]
        length = int.from_bytes(data[4:6])
        body = body[:length] if length else body
        while kind in _HEADERS:
            kind, body = body[0], body[(body[1] + 1) * 8 :]
        if kind == _FRAGMENT:
            kind = body[0]
            place, name = _IP6_FRAGMENT.unpack_from(body, 2)
            if kind == _UDP:
                whole = self._joined(ends, name, place & 0xFFF8, body[8:], is_last=not place & 1)
                if whole is None:
                    return "fragments"
                body = whole
        return _of_udp(frame, ends[:16], ends[16:], body) if kind == _UDP else "no UDP"

    def _joined(self, ends: bytes, name: int, at: int, data: bytes, *, is_last: bool) -> bytes | None:
        """The whole, when its last missing fragment has come."""
        key = (ends, name)
        found = self._fragments.setdefault(key, {})
        room = 2 * DATAGRAM_MOST - sum(len(part) for part, _ in found.values())
        if at + len(data) <= DATAGRAM_MOST and len(data) <= room and len(found) < FRAGMENTS_MOST:
            found[at] = (data, is_last)
        if len(self._fragments) > FRAGMENTS_MOST:
            self._fragments.popitem(last=False)
        whole = b""
        while (part := found.get(len(whole))) is not None and (part[0] or part[1]):
            whole += part[0]
            if part[1]:
                self._fragments.pop(key, None)
                self.counts["fragments"] -= len(found) - 1
                return whole
        return None


_IP4: Final = Struct("!HHH")
_IP6_FRAGMENT: Final = Struct("!HI")
_UDP_HEAD: Final = Struct("!HHHH")


def _of_udp(frame: CapturedFrame, source: bytes, destination: bytes, body: bytes) -> CapturedDatagram:
    from_, to, length, _ = _UDP_HEAD.unpack_from(body)
    data = body[_UDP_HEAD.size : length or len(body)]
    is_cut = frame.is_cut and len(data) < length - _UDP_HEAD.size
    return CapturedDatagram(frame.number, frame.at, _end(source, from_), _end(destination, to), data, is_cut)


def _end(host: bytes, port: int) -> str:
    where = ip_address(host)
    return f"[{where}]:{port}" if where.version == 6 else f"{where}:{port}"


def _unit(order: str, options: bytes) -> float:
    """The unit of an interface's times: an option, a millionth of a second otherwise."""
    at = 0
    while at + 4 <= len(options):
        kind, size = Struct(f"{order}HH").unpack_from(options, at)
        if kind == 9 and size == 1 and at + 4 < len(options):
            power = options[at + 4]
            return float(2.0 ** -(power & 127) if power & 128 else 10.0**-power)
        at += 4 + (size + 3) // 4 * 4
    return 1e-6


def _framed(
    order: str, number: int, type_: int, body: bytes, interfaces: list[tuple[int, float]]
) -> CapturedFrame | None:
    """The frame of a block; None: it is none."""
    head = Struct(f"{order}5I" if type_ == _ENHANCED else f"{order}I")
    if len(body) < head.size + 4:
        return None
    fields = head.unpack_from(body)
    which = fields[0] if type_ == _ENHANCED else 0
    if which >= len(interfaces):
        return None
    link_type, unit = interfaces[which]
    whole = fields[-1]
    size = fields[3] if type_ == _ENHANCED else min(whole, len(body) - head.size - 4)
    at = ((fields[1] << 32) + fields[2]) * unit if type_ == _ENHANCED else 0.0
    return CapturedFrame(number, at, link_type, body[head.size : head.size + size], size < whole)
