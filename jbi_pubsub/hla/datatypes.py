"""The tables of data types of an object model: how values are encoded, and in which units.

Read from the same modules as the model itself (IEEE 1516.2-2010, 4.13). An RTI has no use for them; a bridge has, that
changes values or shows them, and a federate that encodes its own. Basic representations are those of the standard, by
their names; arrays of characters are text.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from copy import deepcopy
from operator import itemgetter
from typing import Any, Final, NamedTuple

from jbi_pubsub.bridge.elements import CODECS, Codec, enumeration, is_unit, opaque
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint
from jbi_pubsub.core.xml import Element

from .encoding import (
    STANDARD,
    Alternative,
    Encoding,
    ExtendableVariantRecord,
    FixedArray,
    FixedRecord,
    OpenArray,
    Padding,
    Scalar,
    VariableArray,
    VariantRecord,
)
from .exceptions import ErrorReadingFom, InconsistentFom, NameNotFound
from .omt import children, elements, is_of_2025, local_name, root_of, text_of

DEPTH_MOST: Final = 32
"""Limit of types within types."""
TYPES_MOST: Final = 20_000
ENUMERATORS_MOST: Final = 10_000
"""Limit of one type: the RPR FOM's longest has some thousand."""
ALTERNATIVES_CHARS: Final = 64 << 10
"""Characters of the list of enumerators of an alternative."""

_BASIC: Final = re.compile(r"(?:RPR|HLA)?(unsigned)?integer(8|16|32|64)(BE|LE)?", re.IGNORECASE)
"""As the RPR FOM calls what the standard of 2010 has no name for."""
_OPEN: Final = {"RPRlengthlessArray": False, "RPRnullTerminatedArray": True}
_PADDING: Final = {"RPRpaddingTo32Array": 4, "RPRpaddingTo64Array": 8}


class DataType(NamedTuple):
    """A data type."""

    codec: Codec
    unit: str = ""
    """"": none, or one that is not known."""
    layout: Encoding | None = None
    """The same with what is within; None: that is not known."""
    depth: int = 0
    """Levels of types within it."""


class Types(NamedTuple):
    """The data types of a model."""

    said: dict[str, Element]
    """As the modules have them, by name."""
    known: dict[str, DataType]
    """Types that were looked up."""

    def get(self, name: str) -> DataType | None:
        """None for one of which nothing is known. Raises ErrorReadingFom."""
        if name not in self.said and name not in CODECS:
            return None
        return self._made(name, 0)

    def layout(self, name: str) -> Encoding:
        """Encoding of a type, with all that is within it. Raises NameNotFound, ErrorReadingFom."""
        found = self.get(name)
        if found is None:
            raise NameNotFound(
                f"no data type {name[:200]!r} in the object model",
                hint=near_hint(name, sorted({*self.said, *STANDARD})),
            )
        if found.layout is None:
            raise ErrorReadingFom(
                f"how values of {name[:200]}, or of what is within, are encoded is not known",
                hint="Give the model its module of data types; encodings of the standard and the RPR FOM are known",
            )
        return found.layout

    def _made(self, name: str, depth: int) -> DataType:
        """A type within others, and those within it; each is looked up once."""
        found = self.known.get(name)
        if found is None and depth <= DEPTH_MOST:
            self.known[name] = found = self._looked_up(name, depth)
        if found is None or depth + found.depth > DEPTH_MOST:
            raise ErrorReadingFom(f"data type {name} is made of itself, or of {DEPTH_MOST} types within each other")
        return found

    def _looked_up(self, name: str, depth: int) -> DataType:
        element = self.said.get(name)
        kind = local_name(element) if element is not None else ""
        if name in STANDARD and (kind == "arrayData" or name == "HLAboolean"):
            element = None  # the standard's own module has these, too
        if element is None or kind == "basicData":
            base = _standard(name)
            layout = STANDARD.get(name) or STANDARD.get(base)
            unknown = opaque(name, ("unknown", name)) if element is None else opaque(name)
            return DataType(CODECS.get(name) or CODECS.get(base) or unknown, "", layout)
        if kind == "simpleData":
            unit = text_of(element, "units")
            found = self._made(text_of(element, "representation"), depth + 1)
            unit, layout = unit if is_unit(unit) else "", found.layout
            layout = Scalar(layout.codec, layout.base, unit) if isinstance(layout, Scalar) and unit else layout
            return DataType(found.codec, unit, layout, found.depth + 1)
        if kind == "enumeratedData":
            return self._enumeration(name, element, depth)
        if kind == "arrayData":
            return self._array(name, element, depth)
        return self._record(name, element, depth)

    def _enumeration(self, name: str, element: Element, depth: int) -> DataType:
        base = self._made(text_of(element, "representation"), depth + 1)
        plain = base.layout if isinstance(base.layout, Scalar) else None
        names = _enumerators(element)
        if names is None or len(set(names.values())) < len(names) or len(names) > ENUMERATORS_MOST:
            said = [(text_of(each, "name"), text_of(each, "value")) for each in children(element, "enumerator")]
            return DataType(opaque(name, ("enumerators", *sorted(said))), "", plain)  # not one to one
        try:
            codec = enumeration(name, base.codec, names)
        except ConfigurationError as exc:
            raise ErrorReadingFom(f"{exc.message}", hint="Give it a representation of whole numbers") from exc
        return DataType(codec, "", Scalar(codec, base.codec) if plain is not None else None)

    def _array(self, name: str, element: Element, depth: int) -> DataType:
        of = self._made(text_of(element, "dataType"), depth + 1)
        encoding, cardinality = text_of(element, "encoding"), text_of(element, "cardinality")
        try:
            layout = _array_layout(of.layout, name, encoding, cardinality) if of.layout is not None else None
        except ConfigurationError:  # as of elements that have no bytes
            layout = None
        text = _TEXTS.get(of.codec.name, "") if encoding == "HLAvariableArray" else ""
        codec = CODECS.get(text) or CODECS.get(name)
        if codec is None:
            codec = _structure(name, layout, ("array", encoding, cardinality, *of.codec.form))
        return DataType(codec, "", layout, of.depth + 1)

    def _record(self, name: str, element: Element, depth: int) -> DataType:
        """Its form is what its fields are called and are."""
        parts = [
            (f"{text_of(each, 'enumerator', ALTERNATIVES_CHARS)}/{text_of(each, 'name')}", each)
            for each in elements(element)
            if children(each, "dataType")
        ]
        inner = {text_of(each, "dataType") for each in (element, *(each for _, each in parts))} - {"", "NA"}
        known = {of: self._made(of, depth + 1) for of in sorted(inner)}
        form = [(label, known[of].codec.form) for label, each in parts if (of := text_of(each, "dataType")) in known]
        layouts = {of: found.layout for of, found in known.items() if found.layout is not None}
        layout = self._record_layout(name, element, layouts) if len(layouts) == len(known) else None
        codec = _structure(name, layout, (local_name(element), text_of(element, "encoding"), *form))
        return DataType(codec, "", layout, 1 + max((each.depth for each in known.values()), default=0))

    def _record_layout(self, name: str, element: Element, known: dict[str, Encoding]) -> Encoding | None:
        encoding = text_of(element, "encoding")
        if local_name(element) == "fixedRecordData" and encoding in ("HLAfixedRecord", ""):
            fields = [
                (text_of(each, "name"), known.get(text_of(each, "dataType"))) for each in children(element, "field")
            ]
            return FixedRecord([(each, of) for each, of in fields if of is not None], name)
        record, kind = _VARIANTS.get(encoding), text_of(element, "dataType")
        of = known.get(kind)
        if record is None or not isinstance(of, Scalar) or of.codec.kind != "enumeration":
            return None
        if encoding == "RPRextendedVariantRecord" and of.least != 4:
            return None  # with four bytes it is as the one of 2025
        names = enumerators_of(self.said.get(kind))
        found: dict[Any, Alternative] = {}
        for each in children(element, "alternative"):
            made = text_of(each, "name"), known.get(text_of(each, "dataType"))
            said = text_of(each, "enumerator", ALTERNATIVES_CHARS)
            found.update(dict.fromkeys(enumerators_for(said, names), made))
        other = found.pop("HLAother", ("", None))
        return record(text_of(element, "discriminant") or "discriminant", of, found, other=other, name=name)


_TEXTS: Final = {"HLAASCIIchar": "HLAASCIIstring", "HLAunicodeChar": "HLAunicodeString"}
_VARIANTS: Final = {
    "": VariantRecord, "HLAvariantRecord": VariantRecord,
    "HLAextendableVariantRecord": ExtendableVariantRecord, "RPRextendedVariantRecord": ExtendableVariantRecord,
}  # fmt: skip


def number_of(said: str) -> int:
    """Number of an enumerator, in decimal (`010` is ten) or as `0x1F`. Raises ValueError."""
    return int(said) if said.lstrip("+-").isdecimal() else int(said, 0)


def _enumerators(element: Element) -> dict[str, int] | None:
    """Numbers by names; None: one has several values, or none."""
    names = {}
    for each in children(element, "enumerator"):
        try:
            names[text_of(each, "name")] = number_of(text_of(each, "value"))
        except ValueError:
            return None
    return names


def enumerators_of(element: Element | None) -> dict[str, int]:
    """Numbers of the enumerators of an enumerated data type, by name, the least first; of the standard's HLAboolean,
    when there is none."""
    found = {"HLAfalse": 0, "HLAtrue": 1} if element is None else _enumerators(element) or {}
    return dict(sorted(found.items(), key=itemgetter(1)))


def enumerators_for(said: str, known: dict[str, int]) -> Iterator[str]:
    """Enumerators that an alternative is for: `A, [C .. E]`, which goes by their numbers; as it stands, what is none.
    `known`: as above."""
    labels, numbers = list(known), list(known.values())
    for part in said.split(","):
        first, dots, last = part.strip().strip("[]").partition("..")
        ends = known.get(first.strip()), known.get(last.strip())
        if dots and ends[0] is not None and ends[1] is not None and ends[0] <= ends[1]:
            yield from labels[bisect_left(numbers, ends[0]) : bisect_right(numbers, ends[1])]
        else:
            yield part.strip()


def _array_layout(of: Encoding, name: str, encoding: str, cardinality: str) -> Encoding | None:
    """Raises ConfigurationError."""
    if encoding in _OPEN:
        return OpenArray(of, name, is_terminated=_OPEN[encoding])
    if encoding in _PADDING:
        return Padding(_PADDING[encoding], name)
    *outer, inner = [each.strip() for each in cardinality.split(",")]  # of several dimensions the last is the innermost
    for count in (inner, *reversed(outer)):
        if encoding == "HLAfixedArray" and count.isdecimal():
            of = FixedArray(of, int(count[:9]), name)
        elif encoding == "HLAvariableArray" or (encoding == "HLAfixedArray" and outer):
            of = VariableArray(of, name)
        else:
            return None
    return of


def _structure(name: str, layout: Encoding | None, form: tuple[Any, ...]) -> Codec:
    """Codec of a record or an array. Its form is a digest: those of types within it make it up."""
    short = (form[0], hashlib.sha256(repr(form).encode()).hexdigest())
    return Codec(name, "structure", short, layout.decode, layout.encode) if layout is not None else opaque(name, short)


class TypeRow(NamedTuple):
    """A data type as a module has it."""

    module: str
    element: Element

    @property
    def where(self) -> str:
        """Module and line."""
        return f"{self.module}:{self.element.sourceline}"


def parsed(*modules: tuple[str, bytes]) -> Types:
    """The data types of modules, each with its name, for messages. Raises ErrorReadingFom, InconsistentFom."""
    roots = [(module, root_of(module, data)) for module, data in sorted(modules)]
    return Types({name: row.element for name, row in merged(roots).items()}, {})


def merged(modules: list[tuple[str, Element]]) -> dict[str, TypeRow]:
    """The data types that modules have together, by name: two that both have one say the same of it. A module of
    IEEE 1516.2-2025 may add enumerators and alternatives. Raises ErrorReadingFom, InconsistentFom."""
    said: dict[str, TypeRow] = {}
    for module, root in sorted(modules, key=lambda each: is_of_2025(each[1])):
        here: set[str] = set()
        tables = (table for part in children(root, "dataTypes") for table in elements(part))
        for element in (each for table in tables for each in elements(table)):
            row, name = TypeRow(module, element), text_of(element, "name")
            if name in here and name:
                raise ErrorReadingFom(f"{row.where}: there are two data types of the name {name}", hint="Leave one")
            here.add(name)
            said[name] = _joined(name, said[name], row, is_of_2025(root)) if name in said else row
            if len(said) > TYPES_MOST:
                raise ErrorReadingFom(f"{module}: more than {TYPES_MOST:,} data types", hint="Split the model")
    return said


def _joined(name: str, one: TypeRow, other: TypeRow, is_added_to: bool) -> TypeRow:
    """A data type as two modules together say it."""
    (form, rows), (other_form, other_rows) = _form(one.element), _form(other.element)
    if form != other_form or (rows.keys() != other_rows.keys() and not is_added_to):
        raise InconsistentFom(
            f"{one.where} and {other.where} say different things of the data type {name}",
            hint="Say the same in both, or leave it out in one; modules of IEEE 1516.2-2025 may add to it",
        )
    if rows.keys() >= other_rows.keys():
        return one
    both = deepcopy(one.element)
    both.extend([deepcopy(each) for said, each in other_rows.items() if said not in rows])
    return TypeRow(f"{one.module} and {other.module}", both)


def _form(element: Element) -> tuple[list[_Said], dict[_Said, Element]]:
    """The parts of a data type that count, and its enumerators or alternatives."""
    form: list[_Said] = [(local_name(element),)]
    rows: dict[_Said, Element] = {}
    for each in elements(element):
        if (kind := local_name(each)) not in _COUNTS:
            continue
        inner = [one for one in elements(each) if local_name(one) in _COUNTS]
        said = (kind, *(" ".join((one.text or "").split()) for one in inner or [each]))
        if kind in ("enumerator", "alternative"):
            rows[said] = each
        else:
            form.append(said)
    return sorted(form) if local_name(element) != "fixedRecordData" else form, rows


_Said = tuple[str, ...]
_COUNTS: Final = frozenset(
    ("size", "endian", "representation", "dataType", "cardinality", "encoding", "discriminant", "field", "enumerator",
     "alternative", "name", "value")
)  # fmt: skip
"""Parts of a data type that count for its encoding; the rest is for people."""


def is_basic(name: str) -> bool:
    """A basic representation that is known without a module."""
    found = STANDARD.get(name) or STANDARD.get(_standard(name))
    return isinstance(found, Scalar) and found.codec.kind != "enumeration" and name not in _TEXTS


def _standard(name: str) -> str:
    """The standard's name of a representation that others call otherwise."""
    found = _BASIC.fullmatch(name)
    if found is None:
        return ""
    unsigned, bits, end = found.groups()
    if bits == "8":
        return "HLAoctet" if unsigned else ""
    return f"HLA{'unsignedInteger' if unsigned else 'integer'}{bits}{(end or 'BE').upper()}"
