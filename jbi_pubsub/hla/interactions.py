"""Information objects that become interactions of a federation: the rules of a bridge's file, and what they make."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Final, NamedTuple

import msgspec

from jbi_pubsub.bridge.elements import Codec
from jbi_pubsub.core.errors import JbiError, MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import PayloadFilter, compile_filter

from .datatypes import Types
from .documents import element_name, is_octets
from .encoding import ElementArray, Encoding, ExtendableVariantRecord, FixedRecord, Padding, Scalar, VariantRecord
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
    without one the parameter is left out. `encoding="hex"` is read as documents.py writes it."""
    metadata: str = ""
    """The parameter that gets the metadata as they are, as a value of its data type; "": none."""
    payload: str = ""
    """The one that gets the payload."""
    id: str = ""
    """The one that gets the object's id, as text."""


class InteractionMaker(NamedTuple):
    """A rule, in the words of an object model."""

    fits: re.Pattern[str]
    cls: int
    paths: tuple[tuple[int, PayloadFilter, Encoding | None], ...]
    """None: of no encoding that is known, here as below."""
    metadata: tuple[int, Encoding | None]
    payload: tuple[int, Encoding | None]
    id: tuple[int, Encoding | None]

    def parameters(self, obj: InfoObject) -> Values:
        """An object's interaction. Raises MetadataError for one that does not fit."""
        found: dict[int, bytes] = {}
        try:
            root = parse_metadata(obj.metadata)
            for handle, path, of in self.paths:
                first = _first(path, root)
                if first is not None:
                    found[handle] = _encoded(of, first)
            wholes = (self.id, obj.object_id.encode()), (self.metadata, obj.metadata), (self.payload, obj.payload)
            for (handle, of), data in wholes:
                if handle:
                    found[handle] = _whole(of, bytes(data))
        except (JbiError, ValueError) as exc:
            raise MetadataError(f"an object of {obj.type.name} can't be an interaction: {exc}") from exc
        return tuple(sorted(found.items()))


def maker_of(fom: Fom, types: Types, take: Take) -> InteractionMaker:
    """The rule, where a federation has that model. Raises NameNotFound, ErrorReadingFom."""
    cls = fom.interaction_class(take.interaction)

    def found(name: str) -> tuple[int, Encoding | None]:
        if not name:
            return 0, None
        handle = fom.parameter(cls, name)
        known = types.get(fom.parameters[handle - 1].data_type)
        return handle, known.layout if known is not None else None

    paths = tuple((handle, compile_filter(path), of) for name, path in take.parameter.items()
                  for handle, of in [found(name)])  # fmt: skip
    fits = re.compile("|".join(map(fnmatch.translate, take.types)) or "(?!)")
    return InteractionMaker(fits, cls, paths, found(take.metadata), found(take.payload), found(take.id))


def _whole(of: Encoding | None, data: bytes) -> bytes:
    """Bytes of an object as the value of a parameter: octets, a text in UTF-8, or what is a value already. Raises
    ValueError, JbiError."""
    if of is None:
        return data
    if is_octets(of):
        return of.encode(data)
    if isinstance(of, ElementArray) and of.coding:
        return of.encode(data.decode())
    of.decode(data)
    return data


def _encoded(of: Encoding | None, element: Element) -> bytes:
    """An element as the value of a parameter; without an encoding a text is UTF-8. Raises ValueError, JbiError."""
    if of is not None:
        return of.encode(_value(of, element))
    return bytes.fromhex(_text(element)) if _is_hex(element) else _text(element).encode()


def _first(path: PayloadFilter, root: Any) -> Element | None:
    """The first that it selects; None: it selects nothing."""
    selection = path.apply(root)
    if not selection.count:
        return None
    first: Element = parse_metadata(selection.payload, limit=len(selection.payload) + 1)[0]
    return first


def _text(element: Element) -> str:
    return "".join(element.itertext())


def _is_hex(element: Element) -> bool:
    """Whether it stands in hexadecimal. Raises ValueError for what is not whole."""
    if element.get("cut") == "true":
        raise ValueError(f"{local_name(element)} is cut")
    return element.get("encoding") == "hex"


def _value(of: Encoding, element: Element) -> Any:
    """The value that an element says, as documents.py writes it. Raises ValueError, JbiError."""
    is_hex, text = _is_hex(element), _text(element)
    if is_octets(of):
        return bytes.fromhex(text)
    if is_hex:
        return of.decode(bytes.fromhex(text))
    if isinstance(of, FixedRecord):
        return {name: _value(each, _child(element, name)) for name, each in of.fields if not isinstance(each, Padding)}
    if isinstance(of, VariantRecord):
        kind = _value(of.of, _child(element, of.discriminant))
        name, inner = of.alternative(kind)
        may_lack = isinstance(of, ExtendableVariantRecord) and not children(element, element_name(name))
        if inner is None or may_lack:
            return {of.discriminant: kind}
        return {of.discriminant: kind, name: _value(inner, _child(element, name))}
    if isinstance(of, ElementArray):
        return text if of.coding else [_value(of.of, each) for each in element if isinstance(each.tag, str)]
    return _scalar(of.codec, text) if isinstance(of, Scalar) else text


def _scalar(codec: Codec, text: str) -> int | float | str:
    """A number, a character, the name or number of an enumerator. Raises ValueError."""
    said = text.strip()
    if codec.kind == "number":
        return int(said) if codec.is_whole else float(said)
    if codec.kind == "enumeration":
        return int(said) if _WHOLE.fullmatch(said) else said
    return text


_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
"""A number that no enumerator is called by."""


def _child(element: Element, field: str) -> Element:
    found = children(element, element_name(field))
    if not found:
        raise ValueError(f"{local_name(element)} has no {field[:100]}")
    return found[0]
