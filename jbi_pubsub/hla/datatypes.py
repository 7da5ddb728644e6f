"""The tables of data types of an object model: how values are encoded, and in which units.

Read from the same modules as the model itself (IEEE 1516.2-2010, 4.13). An RTI has no use for them; a bridge has, that
changes values. Basic representations are those of the standard, by their names; arrays of characters are text; records
and other arrays are looked into no further than is needed to tell whether two of them are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from jbi_pubsub.bridge.elements import CODECS, Codec, enumeration, is_unit, opaque
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.xml import Element

from .exceptions import ErrorReadingFom
from .fom import children, local_name, root_of, text_of

DEPTH_MOST: Final = 32
"""Limit of types within types."""
TYPES_MOST: Final = 20_000
ENUMERATORS_MOST: Final = 10_000
"""Limit of one type: the RPR FOM's longest has some thousand."""

_BASIC: Final = re.compile(r"(?:RPR|HLA)?(unsigned)?integer(8|16|32|64)(BE|LE)?", re.IGNORECASE)
"""As the RPR FOM calls what the standard of 2010 has no name for."""
_TEXTS: Final = {"HLAASCIIchar": "HLAASCIIstring", "HLAunicodeChar": "HLAunicodeString"}


class DataType(NamedTuple):
    """A data type."""

    codec: Codec
    unit: str = ""
    """"": none, or one that is not known."""


class Types(NamedTuple):
    """The data types of a model."""

    said: dict[str, Element]
    """As the modules have them, by name."""
    known: dict[str, DataType]
    """Types that were looked up."""

    def get(self, name: str) -> DataType | None:
        """None for one of which nothing is known. Raises ErrorReadingFom."""
        if name not in self.known:
            if name not in self.said:
                codec = CODECS.get(name)
                return DataType(codec) if codec is not None else None
            self.known[name] = self._made(name, 0)
        return self.known[name]

    def _made(self, name: str, depth: int) -> DataType:
        element = self.said.get(name)
        if depth > DEPTH_MOST:
            raise ErrorReadingFom(f"data type {name} is made of itself, or of {DEPTH_MOST} types within each other")
        if element is None:
            return DataType(CODECS.get(name) or opaque(name, ("unknown", name)))
        kind = local_name(element)
        if kind == "basicData":
            return DataType(CODECS.get(name) or CODECS.get(_standard(name)) or opaque(name))
        if kind == "simpleData":
            unit = text_of(element, "units")
            return DataType(
                self._made(text_of(element, "representation"), depth + 1).codec, unit if is_unit(unit) else ""
            )
        if kind == "enumeratedData":
            return DataType(self._enumeration(name, element, depth))
        if kind == "arrayData":
            return DataType(self._array(name, element, depth))
        return DataType(opaque(name, self._form(element, depth)))

    def _enumeration(self, name: str, element: Element, depth: int) -> Codec:
        names = {}
        for each in children(element, "enumerator"):
            said = text_of(each, "name"), text_of(each, "value")
            try:
                names[said[0]] = int(said[1], 0)
            except ValueError:
                return opaque(name, ("enumerators", *sorted(names), *said))  # several values, or none: not one to one
        if len(set(names.values())) < len(names) or len(names) > ENUMERATORS_MOST:
            return opaque(name, ("enumerators", *sorted(names.items())))
        base = self._made(text_of(element, "representation"), depth + 1).codec
        try:
            return enumeration(name, base, names)
        except ConfigurationError as exc:
            raise ErrorReadingFom(f"{exc.message}", hint="Give it a representation of whole numbers") from exc

    def _array(self, name: str, element: Element, depth: int) -> Codec:
        of = text_of(element, "dataType")
        encoding, cardinality = text_of(element, "encoding"), text_of(element, "cardinality")
        if encoding == "HLAvariableArray" and of in _TEXTS:
            return CODECS[_TEXTS[of]]
        if name in CODECS:
            return CODECS[name]
        return opaque(name, ("array", encoding, cardinality, *self._made(of, depth + 1).codec.form))

    def _form(self, element: Element, depth: int) -> tuple[Any, ...]:
        """Form of a record: what its fields are called and are."""
        parts = []
        for each in element.iter():
            if each is not element and isinstance(each.tag, str) and children(each, "dataType"):
                label = f"{text_of(each, 'enumerator')}/{text_of(each, 'name')}"
                parts.append((label, self._made(text_of(each, "dataType"), depth + 1).codec.form))
        return local_name(element), text_of(element, "encoding"), *parts


def read(*modules: str | Path) -> Types:
    """The data types of modules in files. Raises ErrorReadingFom."""
    found = []
    for module in modules:
        try:
            found.append((str(module), Path(module).read_bytes()))
        except OSError as exc:
            raise ErrorReadingFom(
                f"the module {module} can't be read: {exc.strerror}", hint="Give a file in OMT XML", file=str(module)
            ) from exc
    return parsed(*found)


def parsed(*modules: tuple[str, bytes]) -> Types:
    """The data types of modules, each with its name, for messages. Of two of one name that of the module that sorts
    first counts, as modules that go together say the same. Raises ErrorReadingFom."""
    said: dict[str, Element] = {}
    for module, data in sorted(modules):
        for element in _tables(root_of(module, data)):
            said.setdefault(text_of(element, "name"), element)
            if len(said) > TYPES_MOST:
                raise ErrorReadingFom(f"{module}: more than {TYPES_MOST:,} data types", hint="Split the model")
    return Types(said, {})


def _tables(root: Element) -> Iterator[Element]:
    for part in children(root, "dataTypes"):
        for table in part:
            if isinstance(table.tag, str):
                yield from (each for each in table if isinstance(each.tag, str))


def _standard(name: str) -> str:
    """The standard's name of a representation that others call otherwise."""
    found = _BASIC.fullmatch(name)
    if found is None:
        return ""
    unsigned, bits, end = found.groups()
    if bits == "8":
        return "HLAoctet" if unsigned else ""
    return f"HLA{'unsignedInteger' if unsigned else 'integer'}{bits}{(end or 'BE').upper()}"
