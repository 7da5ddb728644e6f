"""The plain model of an information object type: what a schema and its marks say, and nothing of how it was read.

Rules:
- One entry class per invariant complex element, and one per repeated simple element (a value entry with the single
  field `value`), so that a repeat becomes several entries of one item and the fields of one entry stay correlated.
- XSD extension becomes a subclass: a base-class template matches derived entries (Jini Lookup Service LU.2.1).
- The wire name of a class is "<type name>#<ClassName>". The version is not part of it: a template finds all versions
  whose classes have the same fields. Where others alone are registered, that is an IncompatibleEntryError.
- Names of elements and attributes are in Clark notation ({namespace}local); attributes carry a leading "@".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.lookup.entry import EntryClass, define

XML: Final = "http://www.w3.org/XML/1998/namespace"
"""That of xml:lang and its kin, whose prefix is never declared."""

TEXT: Final = "."
"""The `tag` of a field that holds the element's own text."""


class ValueType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An XSD simple type, reduced to what canonicalising and checking one value needs.

    `name` is for messages, `builtin` the local name of the nearest built-in type (XML Schema part 2, section 3),
    `space` the whiteSpace facet. `items` is the item type of a list, `members` the member types of a union.
    `enumeration` holds canonical values, `facets` (name, value) pairs of bounds, lengths and digits. `is_loose`: it has
    a pattern, or bounds of dates, which are not checked here.
    """

    name: str
    builtin: str
    space: str = "collapse"
    items: ValueType | None = None
    members: tuple[ValueType, ...] = ()
    enumeration: tuple[str, ...] = ()
    facets: tuple[tuple[str, str], ...] = ()
    is_loose: bool = False


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of an entry class: a simple child element, an attribute ("@name") or the element's text (TEXT).

    `name` is the Python identifier, `tag` the Clark name, `default` what the schema declares by `default` or
    `fixed`: an empty element has it, an absent one or an attribute has not.
    """

    name: str
    tag: str
    type: ValueType
    documentation: str = ""
    default: str | None = None


class EntryModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry class. `fields` are its own, behind those of `base` (a class name, "" for none).

    `path` is where its elements lie ("/metadata/RequiredMetadata", readable), or "type B" for a class that stands
    for a named complex type.
    """

    name: str
    wire: str
    path: str
    base: str = ""
    fields: tuple[Field, ...] = ()
    documentation: str = ""


class Below(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A child element that has a part of its own: its name, the number of that part, whether it may repeat, and the
    `default` of its text, if it is empty."""

    tag: str
    part: int
    repeated: bool = False
    default: str | None = None


class ModelPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of documents at an element of the invariant part; recursive ones share a part.

    `entry` names its class ("" when no field is invariant here). `below` are the child elements that have parts of
    their own. `variant` lists variant children and "@attributes", `required` those that no valid document lacks (of a
    choice none is), `is_open` says that a wildcard allows others. `typed` holds the numbers of the parts to use for an
    xsi:type (Clark name).
    """

    entry: str = ""
    below: tuple[Below, ...] = ()
    variant: tuple[str, ...] = ()
    is_open: bool = False
    typed: tuple[tuple[str, int], ...] = ()
    required: tuple[str, ...] = ()


class TypeModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An information object type: the name of its document element, its parts (that of the document element first), its
    entry classes (bases first), its prefixes for paths."""

    type: TypeName
    root: str
    parts: tuple[ModelPart, ...]
    entries: tuple[EntryModel, ...]
    prefixes: tuple[tuple[str, str], ...] = ()
    documentation: str = ""

    @property
    def invariants(self) -> tuple[tuple[str, Field], ...]:
        """(readable path, field) of each invariant leaf, in class order; a path may end in "/@name"."""
        return tuple(
            (entry.path if field.tag == TEXT else f"{entry.path}/{readable(field.tag, dict(self.prefixes))}", field)
            for entry in self.entries
            for field in entry.fields
        )


def fields_of(model: TypeModel) -> dict[str, tuple[Field, ...]]:
    """Class name to all its fields, inherited ones first."""
    found: dict[str, tuple[Field, ...]] = {"": ()}
    for entry in model.entries:
        found[entry.name] = found[entry.base] + entry.fields
    return found


def classes_of(model: TypeModel) -> dict[str, EntryClass]:
    """Class name to its identity, equal to that of the generated Python class."""
    found: dict[str, EntryClass] = {}
    for entry in model.entries:
        found[entry.name] = define(entry.wire, {f.name: str for f in entry.fields}, found.get(entry.base))
    return found


def readable(tag: str, prefixes: Mapping[str, str]) -> str:
    """`tag` with a prefix instead of a namespace, where `prefixes` (namespace to prefix) knows one."""
    mark, name = ("@", tag[1:]) if tag.startswith("@") else ("", tag)
    namespace, brace, local = name[1:].partition("}")
    if not brace:
        return tag
    prefix = prefixes.get(namespace)
    return f"{mark}{prefix}:{local}" if prefix else tag


def some(names: Iterable[str], limit: int = 20) -> str:
    """The first `limit` of `names`, sorted, for a message."""
    found = sorted(names)
    return ", ".join(found[:limit]) + (", ..." if len(found) > limit else "")


MAX_REASON_CHARS: Final = 300
"""Characters of what a library says is wrong; more is a dump of its state."""


def one_line(text: str) -> str:
    """Message of a library on a fault, on one line that a person reads."""
    line = " ".join(text.split()).rstrip(". ")
    return line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]} ..."
