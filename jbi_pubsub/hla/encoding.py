"""Encodings of values, as IEEE 1516.2-2010 has them (clause 4.13): basic types, texts, records and arrays.

    position = FixedRecord([("X", standard("HLAfloat64BE")), ("Y", standard("HLAfloat64BE"))])
    position.encode({"X": 1.0, "Y": 2.0})

Those of an object model's own types are there by name: `rti.fom.codec("SpatialStruct")`. A record is a dict, an array a
list, an enumerator its name; an array of octets is bytes, one of characters a text. A variant record has its
discriminant, and the alternative that goes with it.

Each has an octet boundary: it begins at a multiple of that from the beginning of the whole value, after zeros. The
boundary of a basic type is its size, of an array that of its elements (with a count at least 4), of a record the
greatest of what it has.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jbi_pubsub.bridge.elements import CODECS, Codec
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint

from .exceptions import DecoderException, EncoderException, NameNotFound

ELEMENTS_MOST: Final = 1 << 20
"""Limit of elements of one array."""

OCTET: Final = CODECS["HLAoctet"]
_COUNT: Final = struct.Struct(">I")
_NO_ZERO: Final = "there is no zero at its end"
_FAULTS: Final = (ValueError, OverflowError, struct.error, KeyError, TypeError, AttributeError)


class Encoding(ABC):
    """Encoding of values of a type as bytes."""

    boundary = 1
    """The octet boundary."""
    least = 0
    """Bytes of the shortest value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decode(self, data: bytes) -> Any:
        """The value. Raises DecoderException for bytes that are none."""
        try:
            value, end = self.read(bytes(data), 0)
            if end != len(data):
                raise ValueError(f"{len(data):,} bytes, of which it has {end:,}")
        except _FAULTS as exc:
            raise DecoderException(
                f"no {self.name}: {_why(exc)}", hint="Is it of that type, by the sender's object model?"
            ) from exc
        return value

    def encode(self, value: Any) -> bytes:
        """The bytes. Raises EncoderException for what is no value of the type."""
        out = bytearray()
        try:
            self.write(out, value)
        except _FAULTS as exc:
            raise EncoderException(
                f"no {self.name}: {_why(exc)}", hint="A record is a dict of all its fields, an array a list"
            ) from exc
        return bytes(out)

    @abstractmethod
    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        """The value that begins there, and where it ends. Raises ValueError, struct.error."""

    @abstractmethod
    def write(self, out: bytearray, value: Any) -> None:
        """Append the value. Raises ValueError, OverflowError, struct.error, KeyError, TypeError."""


def _why(exc: Exception) -> str:
    return f"{exc.args[0]!r} is missing" if isinstance(exc, KeyError) and exc.args else str(exc)


def _aligned(at: int, boundary: int) -> int:
    return at + -at % boundary


def _align(out: bytearray, boundary: int) -> None:
    out.extend(bytes(-len(out) % boundary))


def _named(of: Encoding, value: Any) -> Any:
    """The enumerator for True and False, where the type is HLAboolean."""
    if isinstance(value, bool) and of.name == "HLAboolean":
        return "HLAtrue" if value else "HLAfalse"
    return value


class Scalar(Encoding):
    """A value of a fixed size: a number, a character, an enumerator; HLAboolean takes True and False, too."""

    def __init__(self, codec: Codec, base: Codec | None = None, unit: str = "") -> None:
        """`base`: numbers that an enumeration has no name for stay numbers, of that encoding; `unit`: that of a number,
        where the model says it."""
        super().__init__(codec.name)
        self.codec, self.base, self.unit = codec, base, unit
        self.boundary = self.least = codec.size

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        end = at + self.least
        try:
            return self.codec.decode(data[at:end]), end
        except ValueError:
            if self.base is None:
                raise
            return self.base.decode(data[at:end]), end

    def write(self, out: bytearray, value: Any) -> None:
        value = _named(self, value)
        codec = self.base if self.base is not None and isinstance(value, int) else self.codec
        out += codec.encode(value)


class ElementArray(Encoding):
    """Elements one after the other. Arrays of octets are bytes, those of characters are texts."""

    def __init__(self, of: Encoding, name: str) -> None:
        """Raises ConfigurationError for elements that may have no bytes: their number would be anybody's guess."""
        super().__init__(name)
        if not of.least:
            raise ConfigurationError(f"{name}: a {of.name} may have no bytes, and can't be an element")
        self.of = of
        self.boundary = of.boundary
        codec = of.codec if isinstance(of, Scalar) else None
        self.is_octets = codec is not None and codec.form == OCTET.form
        self.coding = codec.form[1] if codec is not None and codec.form[0] == "one" else ""

    def _elements(self, data: bytes, at: int, count: int) -> tuple[Any, int]:
        of, size = self.of, self.of.least
        if count > min(ELEMENTS_MOST, (len(data) - at) // size):
            raise ValueError(f"{count:,} elements in {max(0, len(data) - at):,} bytes")
        if self.is_octets or self.coding:
            part = data[at : at + count * size]
            return (part if self.is_octets else part.decode(self.coding)), at + count * size
        found = []
        for _ in range(count):
            value, at = of.read(data, _aligned(at, of.boundary))
            found.append(value)
        return found, at

    def _sized(self, value: Any) -> tuple[Any, int]:
        """The value as it is written, and its elements."""
        if self.coding:
            value = value.encode(self.coding)
        elif isinstance(value, str) or (isinstance(value, bytes) and not self.is_octets):
            raise ValueError(f"{type(value).__name__}, where a list is due")
        return value, len(value) // (self.of.least if self.coding else 1)

    def _put(self, out: bytearray, value: Any) -> None:
        if self.is_octets or self.coding:
            out += bytes(value)
            return
        for each in value:
            _align(out, self.of.boundary)
            self.of.write(out, each)


class FixedArray(ElementArray):
    """HLAfixedArray: so many elements."""

    def __init__(self, of: Encoding, count: int, name: str = "HLAfixedArray") -> None:
        """Raises ConfigurationError."""
        super().__init__(of, name)
        if not 0 <= count <= ELEMENTS_MOST:
            raise ConfigurationError(f"{name}: {count} elements, of 0 to {ELEMENTS_MOST:,}")
        self.count = count
        self.least = count * of.least

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        return self._elements(data, at, self.count)

    def write(self, out: bytearray, value: Any) -> None:
        value, count = self._sized(value)
        if count != self.count:
            raise ValueError(f"{count:,} elements, not {self.count:,}")
        self._put(out, value)


class VariableArray(ElementArray):
    """HLAvariableArray: the number of its elements comes first."""

    def __init__(self, of: Encoding, name: str = "HLAvariableArray") -> None:
        """Raises ConfigurationError."""
        super().__init__(of, name)
        self.boundary = max(4, of.boundary)
        self.least = 4

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        (count,) = _COUNT.unpack_from(data, at)
        return self._elements(data, _aligned(at + 4, self.of.boundary) if count else at + 4, count)

    def write(self, out: bytearray, value: Any) -> None:
        value, count = self._sized(value)
        out += _COUNT.pack(count)
        self._put(out, value)


class OpenArray(ElementArray):
    """RPRlengthlessArray and RPRnullTerminatedArray of the RPR FOM: no count; it goes on to the end, or to a zero."""

    def __init__(self, of: Encoding, name: str = "RPRlengthlessArray", *, is_terminated: bool = False) -> None:
        """Raises ConfigurationError."""
        super().__init__(of, name)
        self._end = bytes(of.least) if is_terminated else b""
        self.least = len(self._end)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        if self.is_octets or self.coding:
            return self._found_at_once(data, at)
        found: list[Any] = []
        while at < len(data):
            at = _aligned(at, self.of.boundary)
            if self._end and data.startswith(self._end, at):
                return found, at + len(self._end)
            if len(found) == ELEMENTS_MOST:
                raise ValueError(f"more than {ELEMENTS_MOST:,} elements")
            value, at = self.of.read(data, at)
            found.append(value)
        if self._end:
            raise ValueError(_NO_ZERO)
        return found, at

    def _found_at_once(self, data: bytes, at: int) -> tuple[Any, int]:
        """Octets or characters, whose number follows from their bytes."""
        size = self.of.least
        if not self._end:
            return self._elements(data, at, -(-(len(data) - at) // size))
        end = next((each for each in range(at, len(data), size) if data.startswith(self._end, each)), None)
        if end is None:
            raise ValueError(_NO_ZERO)
        return self._elements(data, at, (end - at) // size)[0], end + len(self._end)

    def write(self, out: bytearray, value: Any) -> None:
        self._put(out, self._sized(value)[0])
        if self._end:
            _align(out, self.of.boundary)
            out += self._end


class Padding(Encoding):
    """RPRpaddingTo32Array and RPRpaddingTo64Array: octets up to a boundary, of no value."""

    def __init__(self, to: int, name: str = "RPRpaddingTo64Array") -> None:
        super().__init__(name)
        self._to = to

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        end = _aligned(at, self._to)
        if end > len(data):
            raise ValueError("it is cut")
        return b"", end

    def write(self, out: bytearray, value: Any) -> None:  # noqa: ARG002  # whatever the value
        _align(out, self._to)


class FixedRecord(Encoding):
    """HLAfixedRecord: fields in their order."""

    def __init__(self, fields: Sequence[tuple[str, Encoding]], name: str = "HLAfixedRecord") -> None:
        super().__init__(name)
        self.fields = tuple(fields)
        self.boundary = max((each.boundary for _, each in fields), default=1)
        self.least = sum(each.least for _, each in fields)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        found = {}
        for name, each in self.fields:
            try:
                value, at = each.read(data, _aligned(at, each.boundary))
            except _FAULTS as exc:
                raise ValueError(f"{name}: {_why(exc)}") from exc
            if not isinstance(each, Padding):
                found[name] = value
        return found, at

    def write(self, out: bytearray, value: Any) -> None:
        if extra := set(value) - {name for name, _ in self.fields}:
            raise ValueError(f"it has no field {min(map(str, extra))[:100]!r}")
        for name, each in self.fields:
            _align(out, each.boundary)
            try:
                each.write(out, None if isinstance(each, Padding) else value[name])
            except _FAULTS as exc:
                raise ValueError(f"{name}: {_why(exc)}") from exc


Alternative = tuple[str, Encoding | None]
"""Its name, and what it has; None: nothing."""


class VariantRecord(Encoding):
    """HLAvariantRecord: a discriminant, and what goes with it."""

    def __init__(
        self, discriminant: str, of: Encoding, alternatives: Mapping[Any, Alternative], *,
        other: Alternative = ("", None), name: str = "HLAvariantRecord",
    ) -> None:  # fmt: skip
        """`alternatives` by values of the discriminant, `other` for all the rest (HLAother)."""
        super().__init__(name)
        self.discriminant, self.of, self.other = discriminant, of, other
        self.alternatives: dict[Any, Alternative] = dict(alternatives)
        self._to = max((each.boundary for _, each in (*alternatives.values(), other) if each is not None), default=1)
        self.boundary = max(of.boundary, self._to)
        self.least = of.least

    def alternative(self, value: Any) -> Alternative:
        """That which goes with a value of the discriminant."""
        return self.alternatives.get(_named(self.of, value), self.other)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        kind, at = self.of.read(data, at)
        name, of = self.alternative(kind)
        if of is None:
            return {self.discriminant: kind}, at
        value, at = of.read(data, _aligned(at, self._to))
        return {self.discriminant: kind, name: value}, at

    def write(self, out: bytearray, value: Any) -> None:
        name, of = self.alternative(value[self.discriminant])
        if extra := set(value) - {self.discriminant, name}:
            raise ValueError(f"{min(map(str, extra))[:100]!r} does not go with {value[self.discriminant]!r}")
        self.of.write(out, value[self.discriminant])
        if of is not None:
            _align(out, self._to)
            of.write(out, value[name])


class ExtendableVariantRecord(VariantRecord):
    """HLAextendableVariantRecord (IEEE 1516.2-2025, 4.14.10.3): the length of the alternative comes before it, so that
    an unknown one is passed over."""

    def __init__(
        self, discriminant: str, of: Encoding, alternatives: Mapping[Any, Alternative], **options: Any
    ) -> None:
        """As VariantRecord."""
        super().__init__(discriminant, of, alternatives, **options)
        self._to = self.boundary = 8
        self.least = _aligned(of.least, 4) + 4

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        kind, at = self.of.read(data, at)
        at = _aligned(at, 4)
        (length,) = _COUNT.unpack_from(data, at)
        name, of = self.alternative(kind)
        begin = _aligned(at + 4, 8) if length else at + 4
        end = begin + length
        if end > len(data):
            raise ValueError(f"an alternative of {length:,} bytes is cut")
        if of is None or not length:
            return {self.discriminant: kind}, end
        value, till = of.read(data[:end], begin)
        if till != end:
            raise ValueError(f"{name} has {till - begin:,} bytes, not {length:,}")
        return {self.discriminant: kind, name: value}, end

    def write(self, out: bytearray, value: Any) -> None:
        name, of = self.alternative(value[self.discriminant])
        self.of.write(out, value[self.discriminant])
        _align(out, 4)
        at = len(out)
        out += bytes(4)
        if of is not None and name in value:  # whoever sent it may have left it out
            _align(out, 8)
            begin = len(out)
            of.write(out, value[name])
            _COUNT.pack_into(out, at, len(out) - begin)


def _standard() -> dict[str, Encoding]:
    found: dict[str, Encoding] = {name: Scalar(codec) for name, codec in CODECS.items() if codec.size}
    pairs = {end: Scalar(CODECS[f"HLAunsignedInteger16{end}"]) for end in ("BE", "LE")}
    found |= {f"HLAoctetPair{end}": each for end, each in pairs.items()}
    of = {"HLAASCIIstring": "HLAASCIIchar", "HLAunicodeString": "HLAunicodeChar", "HLAopaqueData": "HLAbyte"}
    return found | {name: VariableArray(found[each], name) for name, each in of.items()}


STANDARD: Final[Mapping[str, Encoding]] = _standard()
"""By name: the basic types of the standard, texts, and octets."""


def standard(name: str) -> Encoding:
    """That of the standard by a name, as HLAinteger32BE. Raises NameNotFound."""
    found = STANDARD.get(name)
    if found is None:
        raise NameNotFound(f"the standard has no data type {name[:200]!r}", hint=near_hint(name, sorted(STANDARD)))
    return found
