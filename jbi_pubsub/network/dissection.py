"""Dissection of the datagrams between nodes: each field, and the messages that they are blocks of; counts of a capture.

Never raises for what it is given: a datagram that is none is told with why. Bounded: messages of MESSAGE_MOST bytes, as
many senders and gaps as are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.core.sealing import FLAGS_AT, HEADER_BYTES, SEAL_BYTES, SESSION_BYTES, TAG_BYTES, SealFault
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.network.bodies import decoded_announcement, decoded_request
from jbi_pubsub.network.captures import CapturedDatagram
from jbi_pubsub.network.datagram import (
    COMPRESSED,
    EXTENDED,
    HASHES,
    MAGIC,
    NO_FOOTER,
    REPAIR,
    SEALED,
    VERSION,
    Datagram,
    DatagramKind,
    DatagramMode,
    Extension,
    read,
)
from jbi_pubsub.network.message import Assembler, NodeMessage
from jbi_pubsub.network.side import NUMBER_BITS

Plain = dict[str, Any]

MESSAGE_MOST: Final = 64 << 20
"""Bytes of a message that is put together."""
SENDERS_MOST: Final = 10_000
GAPS_MOST: Final = 10_000
"""Gaps between a sender's numbers that are counted; what comes between them then is not."""
TRAIN_MOST: Final = 128
REASON_MOST, REASONS_MOST = 80, 100
"""Characters of why one is malformed, and whys that are counted apart."""
DEPTH_MOST: Final = 30
"""Values within each other that are shown."""
_BEGIN: Final = MAGIC + bytes((VERSION,))
_LENGTH_AT, _LENGTH_MOST = 34, 65_535
_OPAQUE: Final = (DatagramKind.PUBLICATION, DatagramKind.RESULT, DatagramKind.STREAM)
"""Kinds whose bodies are not shown: objects, and what others say."""
_anything: Final = decoder_of(Any)

Opener = Callable[[bytes], bytes | SealFault]
_BODIES: Final[Mapping[DatagramKind, Callable[[bytes], object]]] = {
    DatagramKind.REQUEST: decoded_request,
    DatagramKind.ANNOUNCEMENT: decoded_announcement,
}
"""Readers of bodies, by kind; each raises ProtocolError. Of others the values are shown, where they are MessagePack."""


class _HeardSender:
    """Numbers of a sender's datagrams on a network, since one of its starts."""

    __slots__ = ("datagrams", "doubled", "numbers")

    def __init__(self) -> None:
        self.datagrams = self.doubled = 0
        self.numbers = RangeSet()

    def add(self, number: int) -> None:
        """One has come."""
        self.datagrams += 1
        if number in self.numbers:
            self.doubled += 1
        elif len(self.numbers) < GAPS_MOST or number == self.numbers.top + 1:
            self.numbers.add(number)

    def plain(self) -> Plain:
        """Counts: `lost` are numbers that have not come between those that have."""
        first = next(iter(self.numbers), (0, 0))[0]
        count, last = self.numbers.count(), self.numbers.top
        lost = last - first + 1 - count if count else 0
        share = round(lost / (lost + count), 4) if count else 0.0
        return {
            "datagrams": self.datagrams, "first": first, "last": last, "lost": lost, "loss": share,
            "doubled": self.doubled,
        }  # fmt: skip


class Dissector:
    """Datagrams of a capture, one after the other. One thread."""

    def __init__(self, *, opener: Opener | None = None) -> None:
        """`opener`: reader of sealed datagrams, when there is a key."""
        self._opener = opener
        self._assembler = Assembler(processed=100_000, most_bytes=MESSAGE_MOST, message_most=MESSAGE_MOST)
        self._senders: dict[tuple[str, str, int], _HeardSender] = {}
        self._kinds: dict[str, Counter[str]] = {}
        self._malformed: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._first = self._last = 0.0

    def add(self, captured: CapturedDatagram) -> Iterator[Plain]:
        """Fields of a datagram, as plain data; several, if it is a train of them (UDP_SEGMENT); none, if it is not one
        of ours. `malformed` says why it is none."""
        if captured.data[:2] != MAGIC:
            self._counts["other"] += 1
            return
        self._first = self._first or captured.at
        self._last = captured.at
        for data in _cars(captured.data):
            self._counts["datagrams"] += 1
            self._counts["bytes"] += len(data)
            yield {
                "packet": captured.number, "at": captured.at, "from": captured.source, "to": captured.destination,
                "size": len(data), **self._dissected(captured, data),
            }  # fmt: skip

    def _dissected(self, captured: CapturedDatagram, data: bytes) -> Plain:
        unsealed: bytes | SealFault = data
        if self._opener is not None and len(data) > FLAGS_AT and data[FLAGS_AT] & SEALED:
            unsealed = self._opener(data)
        is_opened = unsealed is not data and not isinstance(unsealed, SealFault)
        bare = data if isinstance(unsealed, SealFault) else unsealed
        found = "cut off by the capture" if captured.is_cut else _read(bare)
        if isinstance(found, str):
            return self._is_malformed(found)
        counts = self._kinds.setdefault(found.kind.name.lower(), Counter())
        counts["datagrams"] += 1
        counts["bytes"] += len(data)
        counts["repairs"] += found.is_repair
        self._counts["sealed"] += found.is_sealed or is_opened
        start, number = _numbered(found)
        place = (found.sender.hex(), captured.destination, start)
        if place in self._senders or len(self._senders) < SENDERS_MOST:
            self._senders.setdefault(place, _HeardSender()).add(number)
        fields = _fields(found)
        if isinstance(unsealed, SealFault):
            fields["seal"] = str(unsealed)
        if found.is_sealed:
            return fields
        if is_opened:
            fields["flags"].append("sealed")
        try:
            message = self._assembler.add(found, captured.at)
            if message is not None:
                counts["messages"] += 1
                fields["message"] = self._message(message)
        except ProtocolError as exc:
            return fields | self._is_malformed(exc.message)
        return fields

    def _is_malformed(self, why: str) -> Plain:
        if why[:REASON_MOST] in self._malformed or len(self._malformed) < REASONS_MOST:
            self._malformed[why[:REASON_MOST]] += 1
        else:
            self._malformed["for other reasons"] += 1
        return {"malformed": why}

    def _message(self, message: NodeMessage) -> Plain:
        """The message that a block completes. Raises ProtocolError."""
        found: Plain = {"size": len(message.body)}
        reader = _BODIES.get(message.kind)
        if reader is not None:
            found["body"] = plain(reader(message.body))
        elif message.kind not in _OPAQUE and message.body:
            try:
                found["body"] = plain(decoded(_anything, message.body, "body"))
            except ProtocolError:
                found["body"] = message.body[:64].hex()
        return found

    def statistics(self) -> Plain:
        """Counts so far."""
        repairs = sum(each["repairs"] for each in self._kinds.values())
        good = sum(each["datagrams"] for each in self._kinds.values())
        return {
            "seconds": round(max(0.0, self._last - self._first), 6),
            **{name: self._counts[name] for name in ("datagrams", "bytes", "sealed", "other")},
            "repairs": repairs,
            "repair_share": round(repairs / good, 4) if good else 0.0,
            "malformed": dict(self._malformed.most_common()),
            "kinds": {
                kind: {name: each[name] for name in ("datagrams", "bytes", "repairs", "messages")}
                for kind, each in sorted(self._kinds.items())
            },
            "incomplete": len(self._assembler),
            "senders": [
                {"sender": sender, "to": to, "start": start, **each.plain()}
                for (sender, to, start), each in sorted(self._senders.items())
            ],
        }


def _read(data: bytes) -> Datagram | str:
    """A datagram, or why it is none. Of a sealed one the header; what is behind it nobody can read."""
    if len(data) < HEADER_BYTES or not data[FLAGS_AT] & SEALED:
        return read(data)
    mode, algorithm = data[FLAGS_AT] & 3, data[FLAGS_AT + 1]
    if mode == 3 or algorithm >= len(HASHES):
        return read(data)
    behind = len(data) - HEADER_BYTES - SEAL_BYTES
    if not 0 <= behind <= _LENGTH_MOST:
        return "shorter than its seal" if behind < 0 else "longer than a datagram"
    bare = bytearray(
        data[:HEADER_BYTES] + bytes(HASHES[algorithm][1]) + data[HEADER_BYTES + SESSION_BYTES : -TAG_BYTES]
    )
    bare[FLAGS_AT] &= COMPRESSED | REPAIR | SEALED
    bare[_LENGTH_AT : _LENGTH_AT + 2] = behind.to_bytes(2)
    found = read(bytes(bare))
    return found if isinstance(found, str) else found._replace(mode=DatagramMode(mode), message=b"")


def _cars(data: bytes) -> list[bytes]:
    """The datagrams of a train, as a sender's own capture has it: all of one size, but for the last one."""
    at = data.find(_BEGIN, HEADER_BYTES)
    for _ in range(TRAIN_MOST):
        if at < 0:
            break
        cars = [data[each : each + at] for each in range(0, len(data), at)]
        if all(each.startswith(_BEGIN) and not isinstance(_read(each), str) for each in cars):
            return cars
        at = data.find(_BEGIN, at + 1)
    return [data]


def _fields(datagram: Datagram) -> Plain:
    """Header, footer and extensions, by their names."""
    start, number = _numbered(datagram)
    flags = {"compressed": datagram.is_compressed, "repair": datagram.is_repair, "sealed": datagram.is_sealed}
    found: Plain = {
        "kind": datagram.kind.name.lower(), "mode": datagram.mode.name.lower(),
        "flags": [name for name, is_set in flags.items() if is_set],
        "hash_algorithm": HASHES[datagram.algorithm][0], "hops": datagram.hops, "max_hops": datagram.max_hops,
        "block": datagram.block, "total": datagram.total, "origin": datagram.origin.hex(),
        "inactivity_ms": datagram.inactivity * 10, "sender": datagram.sender.hex(), "start": start,
        "number": number,
        "hash": datagram.message.hex(), "data": len(datagram.data),
    }  # fmt: skip
    if datagram.footer is not NO_FOOTER:
        found["footer"] = plain(datagram.footer)
    if datagram.extensions:
        found["extensions"] = [[_extension(type_), value.hex()] for type_, value in datagram.extensions]
    return found


def _numbered(datagram: Datagram) -> tuple[int, int]:
    """The start of its sender, and its number since then."""
    return datagram.number >> NUMBER_BITS, datagram.number & (1 << NUMBER_BITS) - 1


def _extension(type_: int) -> str:
    return Extension(type_).name.lower() if type_ in list(Extension) else str(type_)


def plain(value: Any, depth: int = 0) -> Any:
    """Plain data for JSON: structs by the names of their fields, bytes as hexadecimal digits."""
    if depth == DEPTH_MOST:
        return "..."
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), depth + 1) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(each, depth + 1) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {_key(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    is_plain = isinstance(value, str | int | None) or (isinstance(value, float) and isfinite(value))
    return value if is_plain else str(value)


def _key(key: Any) -> str:
    """A key of JSON; of ids of logs, which are several values, all with slashes between."""
    found = plain(key)
    values = list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else [found]
    return "/".join(map(str, values))


# -- explained byte by byte -------------------------------------------------------------------------------------------


class ExplainedField(NamedTuple):
    """A field of a datagram, where it stands in it."""

    offset: int
    bytes: str
    """Hexadecimal digits."""
    field: str
    value: str


_HEAD: Final = (
    ("magic", 2), ("version", 1), ("kind", 1), ("flags", 1), ("hash algorithm", 1), ("hops", 1), ("most hops", 1),
    ("block", 4), ("total blocks", 4), ("originating node", 16), ("inactivity", 2), ("length of data", 2),
    ("sender", 4), ("number", 8),
)  # fmt: skip
_RELIABLE: Final = (("epoch", 4), ("stream", 8), ("serial", 8), ("expiration", 4))
_DURABLE: Final = (("durability identifier", 16), ("last durability update", 8))
_IDS: Final = ("originating node", "sender", "message hash", "durability identifier", "session", "tag")
SHOWN_MOST: Final = 16
"""Bytes of a field that are shown."""


def explained(data: bytes) -> list[ExplainedField]:
    """The bytes of a datagram, field by field, as far as there are any."""
    found: list[ExplainedField] = []
    at = 0

    def take(*fields: tuple[str, int]) -> None:
        nonlocal at
        for name, size in fields:
            part = data[at : at + size]
            if part:
                found.append(ExplainedField(at, _shown(part), name, _value(name, part)))
            at += size

    take(*_HEAD)
    if len(data) < HEADER_BYTES:
        return found
    flags, algorithm = data[FLAGS_AT], min(data[FLAGS_AT + 1], len(HASHES) - 1)
    if flags & SEALED:
        sealed = max(0, len(data) - at - SEAL_BYTES)
        take(("session", SESSION_BYTES), ("sealed", sealed), ("tag", TAG_BYTES))
        return found
    take(("message hash", HASHES[algorithm][1]))
    take(("data", int.from_bytes(data[_LENGTH_AT : _LENGTH_AT + 2])))
    take(*(_RELIABLE if flags & 3 else ()), *(_DURABLE if flags & 3 == DatagramMode.DURABLE else ()))
    while flags & EXTENDED and at + 3 <= len(data):
        take((f"extension {_extension(data[at])}", 3 + int.from_bytes(data[at + 1 : at + 3])))
    take(("more than it says", max(0, len(data) - at)))
    return found


def _shown(part: bytes) -> str:
    return part[:SHOWN_MOST].hex(" ", 4) + (" ..." if len(part) > SHOWN_MOST else "")


def _value(name: str, part: bytes) -> str:
    number = int.from_bytes(part) if len(part) <= 8 else 0
    if name == "magic":
        return ascii(part.decode("latin-1"))
    if name == "number" and number >> NUMBER_BITS:
        return f"{number & (1 << NUMBER_BITS) - 1} since start {number >> NUMBER_BITS}"
    if name == "kind":
        return DatagramKind(number).name.lower() if number in list(DatagramKind) else f"{number}, which is none"
    if name == "flags":
        names = {COMPRESSED: "compressed", REPAIR: "repair", SEALED: "sealed", EXTENDED: "extended"}
        mode = DatagramMode(number & 3).name.lower() if number & 3 != 3 else "no mode"
        return ", ".join([mode, *(name for flag, name in names.items() if number & flag)])
    if name == "hash algorithm":
        return HASHES[number][0] if number < len(HASHES) else f"{number}, which is none"
    if name in ("inactivity", "expiration"):
        return f"{number * (10 if name == 'inactivity' else 1)} ms"
    if name in _IDS:
        return ""
    if name.startswith("extension"):
        value = part[3:]
        return ascii(value.decode()) if name.endswith("compression") and value.isascii() else value[:SHOWN_MOST].hex()
    return f"{len(part)} bytes" if name in ("data", "sealed", "more than it says") else str(number)
