"""Service types of the trader: which properties the offers of a type have (OMG Trading Object Service 1.0, section
16.3.2; paper 4(2)(a)).

A service type is an entry class: a field for each property, its supertype the parent class. What an entry class does
not say (sequences, and which properties an offer has to have) goes beside it as an entry of its own, with each offer:
so a type is known where an offer of it is, and needs no keeper. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Final, cast

from jbi_pubsub.core.errors import EntryError, TypeConflictError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import (
    MAX_FIELDS,
    MAX_LINEAGE,
    Entry,
    EntryClass,
    EntryRep,
    FieldType,
    canonical,
    define,
    entry_class,
    parse,
)

PropertyValue = str | int | float | bool | tuple[str, ...]
"""Value of a property."""
TEXT_MOST: Final = 32_768
"""Characters of a string, and of a sequence with all of its members: as many as a query's constraint may have."""
NAME_MOST: Final = 1_024
"""Characters of a service type's name."""
PROPERTY_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TYPE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*([.:]+[A-Za-z][A-Za-z0-9_]*)*")
_LONG: Final = 1 << 63


class PropertyKind(enum.StrEnum):
    """Kinds of values that a property has: what the constraint language can compare."""

    STRING = "string"
    LONG = "long"
    """Whole numbers of 64 bits."""
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRINGS = "strings"
    """A sequence of strings."""


class PropertyMode(enum.StrEnum):
    """Modes of properties: whether each offer has to have one, and whether an offer may change it."""

    NORMAL = "normal"
    READONLY = "readonly"
    MANDATORY = "mandatory"
    MANDATORY_READONLY = "mandatory_readonly"


_FIELDS: Final[Mapping[PropertyKind, FieldType]] = {
    PropertyKind.STRING: str,
    PropertyKind.LONG: int,
    PropertyKind.DOUBLE: float,
    PropertyKind.BOOLEAN: bool,
    PropertyKind.STRINGS: str,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceTypeEntry(Entry):
    """Definition of a service type as it goes with an offer: its own properties, "mode kind name; ...", and its
    interface."""

    entry_name: ClassVar[str] = "jbi.ServiceType"
    name: str | None = None
    properties: str | None = None
    interface: str | None = None


@dataclasses.dataclass(frozen=True)
class PropertyType:
    """A property: its name (as in constraints), kind and mode."""

    name: str
    kind: PropertyKind = PropertyKind.STRING
    mode: PropertyMode = PropertyMode.NORMAL

    def __post_init__(self) -> None:
        """Raises EntryError for a name that no constraint can say."""
        if not PROPERTY_NAME.fullmatch(self.name):
            raise EntryError(
                f"property {self.name[:80]!r} has a name that no constraint can say",
                hint="Use a letter, then letters, digits and _, at most 64",
            )

    @classmethod
    def of(cls, text: str) -> PropertyType:
        """A property of "[mode] [kind] name", as "mandatory long domain". Raises EntryError."""
        words = text.split()
        modes, kinds = [mode.value for mode in PropertyMode], [kind.value for kind in PropertyKind]
        mode = words.pop(0) if len(words) > 1 and words[0] in modes else "normal"
        kind = words.pop(0) if len(words) > 1 and words[0] in kinds else "string"
        if len(words) != 1:
            raise EntryError(
                f"no property: {text[:80]!r}",
                hint=f"Write [{' | '.join(modes)}] [{' | '.join(kinds)}] name, as 'mandatory long domain'",
            )
        return cls(words[0], PropertyKind(kind), PropertyMode(mode))

    @property
    def is_mandatory(self) -> bool:
        """Whether each offer has to have it."""
        return self.mode in (PropertyMode.MANDATORY, PropertyMode.MANDATORY_READONLY)

    @property
    def is_readonly(self) -> bool:
        """Whether an offer keeps the value that it was exported with."""
        return self.mode in (PropertyMode.READONLY, PropertyMode.MANDATORY_READONLY)

    def text(self, value: PropertyValue) -> str:
        """The canonical text of a value. Raises EntryError when it is none of this kind."""
        fault = self._fault(value)
        if fault:
            raise EntryError(f"property {self.name} {fault}", hint=f"Its kind is {self.kind}")
        if isinstance(value, tuple):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return canonical(float(value) if self.kind is PropertyKind.DOUBLE else value) or ""

    def _fault(self, value: object) -> str:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        fits = {
            PropertyKind.STRING: isinstance(value, str),
            PropertyKind.LONG: isinstance(number, int) and -_LONG <= number < _LONG,
            PropertyKind.DOUBLE: number is not None and math.isfinite(number),
            PropertyKind.BOOLEAN: isinstance(value, bool),
            PropertyKind.STRINGS: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
        }[self.kind]
        if not fits:
            return f"is {value!r:.80}"
        size = sum(map(len, value)) + len(value) if isinstance(value, tuple) else len(str(value))
        return f"has {size:,} characters; at most {TEXT_MOST:,}" if size > TEXT_MOST else ""

    def value(self, text: str) -> PropertyValue:
        """The value of its canonical text. Raises EntryError."""
        found: object = None
        if self.kind is not PropertyKind.STRINGS:
            found = parse(text, _FIELDS[self.kind])
        elif len(text) <= 8 * TEXT_MOST:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = None  # the one error below names it
        value = tuple(found) if isinstance(found, list) else found
        if self._fault(value):
            raise EntryError(f"property {self.name} is {text[:80]!r}", hint=f"Its kind is {self.kind}")
        return cast(PropertyValue, value)

    def __str__(self) -> str:
        return f"{self.mode} {self.kind} {self.name}"


@dataclasses.dataclass(frozen=True)
class ServiceType:
    """A service type: its name, its properties beside those of its supertype, that, and the interface that its offers
    refer to: the name of an exported object, "" for that of the supertype, or any.

    Raises EntryError when a property is declared twice, or there are too many."""

    name: str
    properties: tuple[PropertyType, ...] = ()
    parent: ServiceType | None = None
    interface: str = dataclasses.field(default="", kw_only=True)
    every: Mapping[str, PropertyType] = dataclasses.field(init=False, compare=False, repr=False)
    """All properties by name, those of the supertype first."""
    identity: EntryClass = dataclasses.field(init=False, compare=False, repr=False)
    """Entry class of its offers."""

    def __post_init__(self) -> None:
        if len(self.name) > NAME_MOST or not _TYPE_NAME.fullmatch(self.name):
            raise EntryError(f"no name of a service type: {self.name[:80]!r}", hint="Write one as discover.Application")
        if self.name.startswith("jbi."):
            raise EntryError(f"service type {self.name}: names that begin with jbi. are reserved", hint="Use your own")
        own = {each.name: each for each in self.properties}
        if len(own) < len(self.properties):
            raise EntryError(f"service type {self.name} declares a property twice")
        above = self.parent.every if self.parent is not None else {}
        if len(own) + len(above) > MAX_FIELDS or len(self.lineage) > MAX_LINEAGE:
            raise EntryError(
                f"service type {self.name} is too large",
                hint=f"At most {MAX_FIELDS} properties, and {MAX_LINEAGE} types above each other",
            )
        parent = self.parent.identity if self.parent is not None else None
        fields = {each.name: _FIELDS[each.kind] for each in self.properties}
        object.__setattr__(self, "every", {**above, **own})
        object.__setattr__(self, "identity", define(self.name, fields, parent))

    @classmethod
    def of(cls, name: str, *properties: str, parent: ServiceType | None = None, interface: str = "") -> ServiceType:
        """A service type with properties as `PropertyType.of` reads them. Raises EntryError."""
        return cls(name, tuple(map(PropertyType.of, properties)), parent, interface=interface)

    @property
    def lineage(self) -> tuple[ServiceType, ...]:
        """The type itself, then its supertypes, nearest first."""
        above = self.parent.lineage if self.parent is not None else ()
        return (self, *above)

    def entries(self, values: Mapping[str, PropertyValue]) -> tuple[EntryRep, ...]:
        """An offer's entries: its values, and what the type and its supertypes are. Raises EntryError for a property
        that is not declared, lacks though it is mandatory, or is of another kind."""
        unknown = sorted(set(values) - set(self.every))
        if unknown:
            raise EntryError(
                f"service type {self.name} has no property {unknown[0][:80]!r}",
                hint=f"It has {', '.join(self.every) or 'none'}",
            )
        lacking = [each.name for each in self.every.values() if each.is_mandatory and each.name not in values]
        if lacking:
            raise EntryError(
                f"an offer of service type {self.name} lacks {', '.join(lacking)}", hint="Mandatory: give it a value"
            )
        texts = tuple(each.text(values[name]) if name in values else None for name, each in self.every.items())
        return (EntryRep(self.identity, texts), *(each._definition() for each in self.lineage))

    def values(self, texts: Sequence[str | None]) -> dict[str, PropertyValue]:
        """The values of an offer's entry. Raises EntryError."""
        every = self.every.values()
        return {each.name: each.value(text) for each, text in zip(every, texts, strict=False) if text is not None}

    def _definition(self) -> EntryRep:
        properties = "; ".join(map(str, self.properties))
        return ServiceTypeEntry(name=self.name, properties=properties, interface=self.interface or None).rep()

    def check_reference(self, reference: ServiceRef) -> None:
        """Raises EntryError when an offer refers to something else than the type's interface."""
        interface = next((each.interface for each in self.lineage if each.interface), reference.exported)
        if reference.exported != interface:
            raise EntryError(
                f"an offer of service type {self.name} refers to {reference.exported[:80]!r}",
                hint=f"Its interface is {interface[:80]!r}: give a reference to such a one",
            )

    def check_same(self, other: ServiceType) -> None:
        """Raises TypeConflictError when another type of this name is another one."""
        if other != self:
            raise TypeConflictError(
                f"service type {self.name} is offered by others with interface {other.interface!r:.60} and properties "
                f"{'; '.join(map(str, other.every.values())) or 'none'}"[:400],
                hint="Use theirs, or another name",
            )


def offered(entries: Iterable[EntryRep]) -> tuple[ServiceType, dict[str, PropertyValue]] | None:
    """The service type and the values that an item's entries say; None: it is no offer. Raises EntryError when it would
    be one, and contradicts itself."""
    entries = tuple(entries)
    own = entry_class(ServiceTypeEntry)
    told = [ServiceTypeEntry.from_rep(each) for each in entries if each.cls == own]
    if not told:
        return None
    rep = next((each for each in entries if each.cls.name == told[0].name), None)
    if rep is None:
        raise EntryError(f"an offer of {str(told[0].name)[:80]} has no values")
    made = _read(rep.cls, tuple((each.name or "", (each.properties or "", each.interface or "")) for each in told))
    return made, made.values(rep.values)


@lru_cache(maxsize=1_024)  # of few types there are many offers; a bound because others choose them
def _read(identity: EntryClass, definitions: tuple[tuple[str, tuple[str, str]], ...]) -> ServiceType:
    made: ServiceType | None = None
    texts = dict(definitions)
    for name, _ in reversed(identity.lineage):
        properties, interface = texts.get(name, ("", ""))
        made = ServiceType.of(name, *filter(None, properties.split("; ")), parent=made, interface=interface)
    if made is None or made.identity != identity:
        raise EntryError(f"an offer of {identity.name[:80]} has other properties than its service type")
    return made
