"""Datagrams between nodes: header, data, footer and extensions, as bytes. Pure.

The fields are those of tables 7, 8 and 9 of the Gemini report (section 9.2), by their names. Offsets, in network order:

     0  2  'JN'                        8  4  block (from 1)         36  4  sender: first bytes of its id
     2  1  version                    12  4  total blocks           40  8  number of the sender's datagram here
     3  1  kind                       16 16  originating node       48  n  message hash (16 or 32)
     4  1  flags                      32  2  inactivity (10 ms)        .  data, footer, extensions
     5  1  hash algorithm             34  2  length of data
     6  1  hops      7  1  most hops

Whoever passes a datagram on changes hops, sender and number, and nothing else. A sealed one (core/sealing.py) is opened
before it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.sealing import SEAL_BYTES

MAGIC: Final = b"JN"
VERSION: Final = 1
DATA_MOST: Final = 65_535 - 28 - 48 - 32 - 48 - SEAL_BYTES - 64
"""Bytes of data in a datagram of UDP over IPv4 (65,507), beside all else."""
EXTENSIONS_MOST: Final = 16
_HEAD: Final = Struct("!2s6B2I16s2H4sQ")
_RELIABLE: Final = Struct("!IQQI")
_DURABLE: Final = Struct("!16sQ")
_EXTENSION: Final = Struct("!BH")
_EXPIRATION: Final = Struct("!I")
_LENGTH: Final = Struct("!H")
_FLAGS_AT: Final = 4
_ALGORITHM_AT: Final = 5
_HOPS_AT: Final = 6
_LENGTH_AT: Final = 34
_SENDER: Final = Struct("!4sQ")
_SENDER_AT: Final = 36


class DatagramKind(IntEnum):
    """Kinds of messages: table 5 of the report, and three more."""

    REQUEST = 1
    """Retransmission request: recovery of lost blocks."""
    SEQUENCE = 2
    """Sequence information: a sequence and its characteristics."""
    PUBLICATION = 3
    """An information object."""
    ASSISTANCE = 4
    """Persistence assistance request: volunteers are asked for."""
    OFFER = 5
    """Persistence assistance offer."""
    ACCEPTED = 6
    """Persistence assistance accepted."""
    QUERY = 7
    """Query request."""
    RESULT = 8
    """Query result."""
    ANNOUNCEMENT = 9
    """Node announcement: presence, and what is held."""
    STREAM = 10
    """Part of a tunnel."""
    KEY = 11
    """Key of an epoch."""
    DELETION = 12
    """Objects that are to be nowhere any more."""


class DatagramMode(IntEnum):
    """Delivery modes of a message."""

    UNRELIABLE = 0
    RELIABLE = 1
    DURABLE = 2


class Holders(IntEnum):
    """Nodes that hold a reliable message to send it again."""

    ALL = 0
    """Each that gets it, until it expires."""
    ORIGIN = 1
    """Its origin alone, and relays."""
    UNTIL_SEEN = 2
    """The same; its origin until all nodes that are heard have seen it."""


_KINDS: Final = {int(each): each for each in DatagramKind}
_MODES: Final = tuple(DatagramMode)
COMPRESSED: Final = 4
REPAIR: Final = 8
SEALED: Final = 16
EXTENDED: Final = 32
_FLAGS: Final = 0x3F

HASHES: Final[tuple[tuple[str, int, Callable[[bytes], Any]], ...]] = (
    ("md5", 16, lambda data: hashlib.md5(data, usedforsecurity=False)),
    ("sha256", 32, hashlib.sha256),
    ("blake2b", 32, lambda data: hashlib.blake2b(data, digest_size=32)),
)
"""Name, bytes and function of each hash algorithm, by its number. A hash is a name here, no proof."""


class Footer(NamedTuple):
    """Footer of a reliable or durable block. `epoch` and `stream` say which of the origin's logs `serial` is of;
    `expiration`: milliseconds that are left."""

    epoch: int
    stream: int
    serial: int
    expiration: int
    durability: bytes = b""
    """Durability identifier, 16 bytes; empty for a reliable block."""
    update: int = 0
    """Last durability update: the greater one replaces."""


NO_FOOTER: Final = Footer(0, 0, 0, 0)
"""That of an unreliable block, which has none on the wire."""


class Extension(IntEnum):
    """Types of extensions; others are skipped."""

    TO = 1
    """Id of the node that the message is for."""
    LEVEL = 2
    """Importance, 1 to 5."""
    COMPRESSION = 3
    """Name of the compression."""
    TOGETHER = 4
    """The body is those of several messages, each behind its length in four bytes."""
    HOLDERS = 5
    """The nodes that hold it, of one byte: Holders."""


class Datagram(NamedTuple):
    """A block of a message on its way."""

    kind: DatagramKind
    mode: DatagramMode
    origin: bytes
    """Id of the originating node, 16 bytes."""
    message: bytes
    """Hash of the message's body before compression."""
    data: bytes | memoryview
    block: int = 1
    total: int = 1
    footer: Footer = NO_FOOTER
    hops: int = 0
    max_hops: int = 20
    inactivity: int = 10
    """Units of 10 ms."""
    algorithm: int = 0
    is_compressed: bool = False
    is_repair: bool = False
    is_sealed: bool = False
    extensions: tuple[tuple[int, bytes], ...] = ()
    sender: bytes = bytes(4)
    number: int = 0

    def extension(self, kind: Extension) -> bytes:
        """Value of an extension; b"": it has none."""
        if not self.extensions:
            return b""
        return next((value for type_, value in self.extensions if type_ == kind), b"")


def hash_of(body: bytes, algorithm: int) -> bytes:
    """Hash of a message's body."""
    digest: bytes = HASHES[algorithm][2](body).digest()
    return digest


def kind_of(data: bytes) -> int:
    """Kind of a datagram by its bytes; 0 of what is too short to be one."""
    return data[3] if len(data) > _HEAD.size else 0


def is_repair(data: bytes) -> bool:
    """Whether the bytes of a datagram are those of a block that is sent again."""
    return bool(data[4] & REPAIR)


def packed(datagram: Datagram) -> bytes:
    """Bytes of a datagram, before it is sealed."""
    flags = (
        datagram.mode | COMPRESSED * datagram.is_compressed | REPAIR * datagram.is_repair | SEALED * datagram.is_sealed
        | EXTENDED * bool(datagram.extensions)
    )  # fmt: skip
    head = _HEAD.pack(
        MAGIC, VERSION, datagram.kind, flags, datagram.algorithm, datagram.hops, datagram.max_hops, datagram.block,
        datagram.total, datagram.origin, datagram.inactivity, len(datagram.data), datagram.sender, datagram.number,
    )  # fmt: skip
    parts: list[bytes | memoryview] = [head, datagram.message, datagram.data]
    if datagram.mode != DatagramMode.UNRELIABLE:
        parts.append(_RELIABLE.pack(*datagram.footer[:4]))
    if datagram.mode == DatagramMode.DURABLE:
        parts.append(_DURABLE.pack(*datagram.footer[4:]))
    for type_, value in datagram.extensions:
        parts += (_EXTENSION.pack(type_, len(value)), value)
    return b"".join(parts)


def passed_on(data: bytes) -> bytes | None:
    """Packed bytes of a block as another network gets them; None: it has gone over as many nodes as it may."""
    hops = data[_HOPS_AT] + 1
    return data[:_HOPS_AT] + bytes((hops,)) + data[_HOPS_AT + 1 :] if hops <= data[_HOPS_AT + 1] else None


def sent_anew(data: bytes, sender: bytes, number: int, expiration: int | None, *, is_repair: bool = False) -> bytes:
    """Packed bytes of a block as they are sent now, or once more, by this sender: all else is as it was. `expiration`:
    milliseconds that are left of one that has a footer; None: as it says."""
    changed = bytearray(data)
    _SENDER.pack_into(changed, _SENDER_AT, sender, number)
    changed[_FLAGS_AT] = changed[_FLAGS_AT] & ~REPAIR | REPAIR * is_repair
    if expiration is not None:
        size = _LENGTH.unpack_from(changed, _LENGTH_AT)[0]
        footer_at = _HEAD.size + HASHES[changed[_ALGORITHM_AT]][1] + size
        _EXPIRATION.pack_into(changed, footer_at + _RELIABLE.size - _EXPIRATION.size, expiration)
    return bytes(changed)


def read(data: bytes | memoryview) -> Datagram | str:
    """A datagram, or why bytes are none; a sealed one is opened before. Never raises, whatever comes."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        return "shorter than a header"
    fields = _HEAD.unpack_from(view)
    magic, version, kind, flags, algorithm, hops, max_hops, block, total, origin, inactivity, length, *last = fields
    sender, number = last
    if magic != MAGIC or version != VERSION:
        return "of another protocol" if magic != MAGIC else f"of version {version}"
    why = _fault(kind, flags, algorithm, hops, max_hops, block, total, number)
    if why:
        return why
    mode = _MODES[flags & 3]
    at = _HEAD.size + HASHES[algorithm][1]
    end = at + length
    footer_size = (_RELIABLE.size if mode else 0) + (_DURABLE.size if mode == DatagramMode.DURABLE else 0)
    if end + footer_size > len(view):
        return "shorter than it says"
    footer = _footer(view, end, mode)
    extensions = _extensions(view[end + footer_size :]) if flags & EXTENDED else ()
    if extensions is None or (not flags & EXTENDED and end + footer_size != len(view)):
        return "longer than it says" if extensions is not None else "with extensions that are none"
    return Datagram(
        _KINDS[kind], mode, origin, bytes(view[_HEAD.size : at]), view[at:end], block, total, footer, hops,
        max_hops, inactivity, algorithm, bool(flags & COMPRESSED), bool(flags & REPAIR), bool(flags & SEALED),
        extensions, sender, number,
    )  # fmt: skip


def _fault(kind: int, flags: int, algorithm: int, hops: int, max_hops: int, block: int, total: int, number: int) -> str:
    """Why a header is none; "" if it is one."""
    if not DatagramKind.REQUEST <= kind <= DatagramKind.DELETION:
        return f"of kind {kind}"
    if flags & ~_FLAGS or flags & 3 == 3 or algorithm >= len(HASHES):
        return "with flags or a hash that nobody has set"
    if hops > max_hops:
        return "after more hops than it may go"
    if not 1 <= block <= total or not number:
        return "with a block or a number that can not be"
    return ""


def _footer(view: memoryview, at: int, mode: DatagramMode) -> Footer:
    if mode == DatagramMode.UNRELIABLE:
        return NO_FOOTER
    durable = _DURABLE.unpack_from(view, at + _RELIABLE.size) if mode == DatagramMode.DURABLE else ()
    return Footer(*_RELIABLE.unpack_from(view, at), *durable)


def _extensions(view: memoryview) -> tuple[tuple[int, bytes], ...] | None:
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(view):
        if at + _EXTENSION.size > len(view) or len(found) == EXTENSIONS_MOST:
            return None
        type_, length = _EXTENSION.unpack_from(view, at)
        at += _EXTENSION.size + length
        if at > len(view):
            return None
        found.append((type_, bytes(view[at - length : at])))
    return tuple(found)
