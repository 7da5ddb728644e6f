"""Information objects that become interactions of a federation: the rules of a bridge's file, and what they make."""

from __future__ import annotations

import fnmatch
import re
import struct
from typing import Any, NamedTuple

import msgspec

from jbi_pubsub.bridge.elements import Codec
from jbi_pubsub.core.errors import JbiError, MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import PayloadFilter, compile_filter

from .datatypes import Types
from .documents import element_name
from .encoding import ElementArray, Encoding, FixedRecord, Padding, Scalar, VariantRecord
from .execution import Values
from .fom import Fom
from .omt import children, local_name


class Take(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[side.NAME.take]]`: information objects that become interactions. The first that fits counts."""

    interaction: str
    """Name of the interaction class, with or without HLAinteractionRoot."""
    types: tuple[str, ...] = ("*",)
    """Globs of the types' names."""
    parameter: dict[str, str] = {}
    """XPath on the metadata, by parameter: the text of the first that it selects, of a record or array what is in it;
    without one the parameter is left out."""
    metadata: str = ""
    """The parameter that gets the metadata as they are; "": none."""
    payload: str = ""
    """The one that gets the payload."""
    id: str = ""
    """The one that gets the object's id, as text."""


class InteractionMaker(NamedTuple):
    """A rule, in the words of an object model."""

    fits: re.Pattern[str]
    cls: int
    paths: tuple[tuple[int, PayloadFilter, Codec | Encoding | None], ...]
    metadata: int
    payload: int
    id: int
    id_codec: Codec | None

    def parameters(self, obj: InfoObject) -> Values:
        """An object's interaction. Raises MetadataError for one that does not fit."""
        found: dict[int, bytes] = {}
        try:
            root = parse_metadata(obj.metadata)
            for handle, path, codec in self.paths:
                first = _first(path, root)
                if first is None:
                    continue
                if isinstance(codec, Encoding):
                    found[handle] = codec.encode(_value(codec, first))
                else:
                    found[handle] = encoded(codec, _text(first))
            if self.id:
                found[self.id] = encoded(self.id_codec, obj.object_id)
        except (JbiError, ValueError) as exc:
            raise MetadataError(f"an object of {obj.type.name} can't be an interaction: {exc}") from exc
        if self.metadata:
            found[self.metadata] = obj.metadata
        if self.payload:
            found[self.payload] = bytes(obj.payload)
        return tuple(sorted(found.items()))


def maker_of(fom: Fom, types: Types, take: Take) -> InteractionMaker:
    """The rule, where a federation has that model. Raises NameNotFound."""
    cls = fom.interaction_class(take.interaction)

    def found(name: str) -> tuple[int, Codec | None]:
        if not name:
            return 0, None
        handle = fom.parameter(cls, name)
        known = types.get(fom.parameters[handle - 1].data_type)
        return handle, known.codec if known is not None and known.codec.kind != "octets" else None

    paths: list[tuple[int, PayloadFilter, Codec | Encoding | None]] = []
    for name, path in take.parameter.items():
        handle, codec = found(name)
        is_structure = codec is not None and codec.kind == "structure"
        whole = types.layout(fom.parameters[handle - 1].data_type) if is_structure else codec
        paths.append((handle, compile_filter(path), whole))
    fits = re.compile("|".join(map(fnmatch.translate, take.types)) or "(?!)")
    return InteractionMaker(fits, cls, tuple(paths), found(take.metadata)[0], found(take.payload)[0], *found(take.id))


def encoded(codec: Codec | None, text: str) -> bytes:
    """A text as the value of a parameter; without an encoding it is UTF-8. Raises ValueError."""
    if codec is None:
        return text.encode()
    try:
        if codec.kind == "number":
            return codec.encode(int(text) if codec.is_whole else float(text))
        return codec.encode(text)
    except (OverflowError, struct.error, KeyError, TypeError) as exc:
        raise ValueError(str(exc)) from exc


def _first(path: PayloadFilter, root: Any) -> Element | None:
    """The first that it selects; None: it selects nothing."""
    selection = path.apply(root)
    if not selection.count:
        return None
    first: Element = parse_metadata(selection.payload, limit=len(selection.payload) + 1)[0]
    return first


def _text(element: Element) -> str:
    return "".join(element.itertext())


def _value(of: Encoding, element: Element) -> Any:
    """The value that an element says, as documents.py writes it. Raises ValueError."""
    if isinstance(of, FixedRecord):
        return {name: _value(each, _child(element, name)) for name, each in of.fields if not isinstance(each, Padding)}
    if isinstance(of, VariantRecord):
        kind = _value(of.of, _child(element, of.discriminant))
        name, inner = of.alternative(kind)
        return {of.discriminant: kind} | ({} if inner is None else {name: _value(inner, _child(element, name))})
    text = _text(element).strip()
    if isinstance(of, ElementArray):
        if of.is_octets:
            return bytes.fromhex(text)
        return _text(element) if of.coding else [_value(of.of, each) for each in element if isinstance(each.tag, str)]
    codec = of.codec if isinstance(of, Scalar) else None
    if codec is not None and codec.kind == "number":
        return int(text) if codec.is_whole else float(text)
    return int(text) if text.isdecimal() and codec is not None and codec.kind == "enumeration" else text


def _child(element: Element, field: str) -> Element:
    found = children(element, element_name(field))
    if not found:
        raise ValueError(f"{local_name(element)} has no {field[:100]}")
    return found[0]
