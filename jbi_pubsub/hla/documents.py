"""Values that a federation tells, as metadata of information objects: a document of a class's name, with an element for
each value, in the words of the object model.

    <Aircraft object="LH441" time="12.5"><altitude>32808.0</altitude><callsign>LUFTHANSA 441</callsign></Aircraft>

A record has an element for each of its fields, an array an `item` for each of its elements:

    <Spatial><WorldLocation><X>3905.5</X><Y>0.0</Y><Z>-12.0</Z></WorldLocation></Spatial>

Octets stand in hexadecimal, with `encoding="hex"`. So do the bytes of a text that XML can't have, of a value of no
known data type, and of one that is not what its data type says: who sends it may send anything. The payload has all
values as they were sent. interactions.py reads back what is written here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import msgspec
from immutables import Map

from jbi_pubsub.bridge.elements import Codec
from jbi_pubsub.core.xml import NO_XML

from .datatypes import DataType, Types
from .encoding import ElementArray, Encoding, FixedRecord, VariantRecord
from .exceptions import DecoderException
from .fom import PRIVILEGE, Class, Fom

TEXT_MOST: Final = 64 << 10
"""Characters of a value in metadata; of a longer one they are cut there, and marked. Bytes of a record or an array; a
longer one stands in hexadecimal."""
STRUCTURE_MOST: Final = 1 << 20
"""Characters of the elements of a record or array."""


class Shown(NamedTuple):
    """A class, as documents have it."""

    type: str
    """The information object type."""
    element: str
    """The class's own name, without those above it."""
    members: Map[int, tuple[str, DataType | None]]
    """Name and data type of each attribute or parameter; None: of none that is known."""


class FederationEvent(NamedTuple):
    """Something that a federation tells."""

    values: Sequence[tuple[int, bytes]] = ()
    name: str = ""
    """Name of the object instance; "": it is an interaction."""
    time: float | None = None
    tag: bytes = b""
    is_removed: bool = False


def shown(fom: Fom, types: Types, prefix: str, cls: Class, *, is_object: bool) -> Shown:
    """A class. Raises ErrorReadingFom for a data type that is made of itself."""
    members = fom.attributes if is_object else fom.parameters
    found = {}
    for handle in cls.members:
        member = members[handle - 1]
        if member.name != PRIVILEGE:
            found[handle] = member.name, types.get(member.data_type)
    short = cls.name.partition(".")[2] or cls.name
    return Shown(f"{prefix}.{short}", short.rpartition(".")[2], Map(found))


def metadata(cls: Shown, event: FederationEvent) -> bytes:
    """The document."""
    said = [f"object={quoteattr(NO_XML.sub(chr(0xFFFD), event.name), _ATTRIBUTE)}"] if event.name else []
    if event.time is not None:
        said.append(f'time="{_number(event.time)}"')
    if event.is_removed:
        said.append('removed="true"')
    if event.tag:
        said.append(_tag(event.tag))
    parts = [_element(*cls.members[handle], data) for handle, data in event.values if handle in cls.members]
    return f"<{' '.join((cls.element, *said))}>{''.join(parts)}</{cls.element}>".encode()


def payload(cls: Shown, event: FederationEvent) -> bytes:
    """The values as they were sent: in msgpack, bytes by name, and the tag."""
    values = {cls.members[handle][0]: data for handle, data in event.values if handle in cls.members}
    return msgspec.msgpack.encode({"values": values, "tag": event.tag})


def _element(name: str, of: DataType | None, data: bytes) -> str:
    if of is None:
        return _hex(name, data)
    if of.layout is not None and (of.codec.kind == "structure" or is_octets(of.layout)):
        return _structured(name, of.layout, data) or _hex(name, data)
    text = _decoded(of.codec, data)
    if text is None:
        return _hex(name, data)
    if len(text) > TEXT_MOST:
        return f'<{name} cut="true">{escape(text[:TEXT_MOST], _ESCAPES)}</{name}>'
    return f"<{name}>{escape(text, _ESCAPES)}</{name}>"


def is_octets(of: Encoding) -> bool:
    """Whether its values are octets, of whatever number."""
    return isinstance(of, ElementArray) and of.is_octets


def _hex(name: str, data: bytes, most: int = TEXT_MOST // 2) -> str:
    cut = data[:most]
    mark = ' cut="true"' if len(cut) < len(data) else ""
    return f'<{name} encoding="hex"{mark}>{cut.hex()}</{name}>'


def _structured(name: str, of: Encoding, data: bytes) -> str | None:
    """A record or array; None: it is none, or too large."""
    if len(data) > TEXT_MOST and not is_octets(of):
        return None
    try:
        value = of.decode(data)
    except DecoderException:
        return None
    text = "".join(_parts(name, of, value)) if not isinstance(value, bytes) else _hex(name, value)
    return text if len(text) <= STRUCTURE_MOST else None


def _parts(name: str, of: Encoding, value: Any) -> Iterator[str]:
    """A value with what is within it."""
    if isinstance(value, str) and NO_XML.search(value):
        value = of.encode(value)
    if isinstance(value, bytes):
        yield _hex(name, value, len(value))
        return
    yield f"<{name}>"
    if isinstance(value, dict | list):
        for each, inner, within in _inner(of, value):
            yield from _parts(each, inner, within)
    else:
        yield escape(_said(value), _ESCAPES)
    yield f"</{name}>"


def _inner(of: Encoding, value: Any) -> Iterator[tuple[str, Encoding, Any]]:
    """Parts of a record or array: the name of the element, the encoding, the value of each."""
    if isinstance(of, ElementArray):
        yield from (("item", of.of, each) for each in value)
    fields: Sequence[tuple[str, Encoding | None]] = of.fields if isinstance(of, FixedRecord) else ()
    if isinstance(of, VariantRecord):
        fields = (of.discriminant, of.of), of.alternative(value[of.discriminant])
    for name, inner in fields:
        if inner is not None and name in value:
            yield element_name(name), inner, value[name]


def element_name(field: str) -> str:
    """The name of a field's element."""
    return field if _NAME.fullmatch(field) else "_" + _NO_NAME.sub("_", field)


def _decoded(codec: Codec, data: bytes) -> str | None:
    """None: it can't be said in XML."""
    if codec.kind == "octets":
        return None
    try:
        text = _said(codec.decode(data))
    except (ValueError, OverflowError, struct.error, UnicodeError, KeyError):
        return None
    return None if NO_XML.search(text) else text


def _said(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(value)


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters of the names of fields that those of elements can't have."""


def _tag(tag: bytes) -> str:
    try:
        text = tag[:TEXT_MOST].decode()
    except UnicodeDecodeError:
        text = "\0"
    if NO_XML.search(text):
        return f'tag="{tag[:TEXT_MOST].hex()}" tag-encoding="hex"'
    return f"tag={quoteattr(text, _ATTRIBUTE)}"


def _number(value: float) -> str:
    """As XML Schema writes a double."""
    return repr(value).replace("inf", "INF").replace("nan", "NaN")


_ESCAPES: Final = {"\r": "&#13;"}
"""A parser would read a bare one as a line feed."""
_ATTRIBUTE: Final = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
