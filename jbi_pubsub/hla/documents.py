"""Values that a federation tells, as metadata of information objects: a document of a class's name, with an element for
each value, in the words of the object model.

    <Aircraft object="LH441" time="12.5"><altitude>32808.0</altitude><callsign>LUFTHANSA 441</callsign></Aircraft>

A record has an element for each of its fields, an array an `item` for each of its elements:

    <Spatial><WorldLocation><X>3905.5</X><Y>0.0</Y><Z>-12.0</Z></WorldLocation></Spatial>

Octets stand in hexadecimal, with `encoding="hex"`; so does a value of no known data type, and one that is not what its
data type says: who sends it may send anything. The payload has all values as they were sent.
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

from .datatypes import Types
from .exceptions import DecoderException
from .fom import PRIVILEGE, Class, ClassMember, Fom

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
    members: Map[int, tuple[str, Codec | None]]
    """Name and encoding of each attribute or parameter; None: of no encoding that is known."""


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
            found[handle] = member.name, _codec(types, member)
    short = cls.name.partition(".")[2] or cls.name
    return Shown(f"{prefix}.{short}", short.rpartition(".")[2], Map(found))


def _codec(types: Types, member: ClassMember) -> Codec | None:
    known = types.get(member.data_type)
    return known.codec if known is not None and known.codec.kind != "octets" else None


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


def _element(name: str, codec: Codec | None, data: bytes) -> str:
    if codec is not None and codec.kind == "structure":
        whole = _structured(name, codec, data)
        if whole is not None:
            return whole
        codec = None
    text = _decoded(codec, data)
    if text is None:
        return _hex(name, data)
    if len(text) > TEXT_MOST:
        return f'<{name} cut="true">{escape(text[:TEXT_MOST], _ESCAPES)}</{name}>'
    return f"<{name}>{escape(text, _ESCAPES)}</{name}>"


def _hex(name: str, data: bytes) -> str:
    cut = data[: TEXT_MOST // 2]
    mark = ' cut="true"' if len(cut) < len(data) else ""
    return f'<{name} encoding="hex"{mark}>{cut.hex()}</{name}>'


def _structured(name: str, codec: Codec, data: bytes) -> str | None:
    """A record or array; None: it is none, or too large."""
    if len(data) > TEXT_MOST:
        return None
    try:
        text = "".join(_parts(name, codec.decode(data)))
    except DecoderException:
        return None
    return text if len(text) <= STRUCTURE_MOST else None


def _parts(name: str, value: Any) -> Iterator[str]:
    """A value with what is within it."""
    if isinstance(value, bytes):
        yield _hex(name, value)
        return
    yield f"<{name}>"
    if isinstance(value, dict):
        for each, inner in value.items():
            yield from _parts(element_name(each), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts("item", inner)
    else:
        yield escape(NO_XML.sub(chr(0xFFFD), _said(value)), _ESCAPES)
    yield f"</{name}>"


def element_name(field: str) -> str:
    """The name of a field's element."""
    return field if _NAME.fullmatch(field) else "_" + _NO_NAME.sub("_", field)


def _decoded(codec: Codec | None, data: bytes) -> str | None:
    """None: it can't be said in XML."""
    if codec is None:
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
