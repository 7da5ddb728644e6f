"""Captures as tcpdump and Wireshark write them, by the tests' own hand: they share nothing with what reads them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from typing import Final

ONE: Final = ("127.0.0.1", 47001)
GROUP: Final = ("239.192.1.1", 47001)


def udp(data: bytes, source: tuple[str, int] = ONE, to: tuple[str, int] = GROUP) -> bytes:
    """A packet of IP."""
    body = struct.pack("!HHHH", source[1], to[1], 8 + len(data), 0) + data
    ends = ipaddress.ip_address(source[0]).packed + ipaddress.ip_address(to[0]).packed
    if len(ends) == 8:
        return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 7, 0, 1, 17, 0) + ends + body
    return struct.pack("!IHBB", 6 << 28, len(body), 17, 1) + ends + body


def pcap(packets: Iterable[bytes], link: int = 101, *, order: str = "<", snap: int = 1 << 18) -> bytes:
    """A capture of packets, a tenth of a second apart."""
    found = struct.pack(f"{order}IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snap, link)
    for number, packet in enumerate(packets):
        seconds, tenth = divmod(number, 10)
        found += struct.pack(f"{order}IIII", 1000 + seconds, tenth * 100_000, min(snap, len(packet)), len(packet))
        found += packet[:snap]
    return found


def pcapng(packets: Iterable[bytes], link: int = 101, order: str = "<") -> bytes:
    """The same in the newer format, with times in nanoseconds."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack(f"{order}II", kind, len(body) + 12) + body + struct.pack(f"{order}I", len(body) + 12)

    found = block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
    found += block(1, struct.pack(f"{order}HHIHHB3xHH", link, 0, 0, 9, 1, 9, 0, 0))
    found += block(5, b"statistics")  # of a kind that nobody asks for
    for number, packet in enumerate(packets):
        at = 1000 * 10**9 + number * 10**8
        found += block(6, struct.pack(f"{order}IIIII", 0, at >> 32, at & 0xFFFFFFFF, len(packet), len(packet)) + packet)
    return found
