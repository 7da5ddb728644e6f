"""Entries: what a service says of itself, and what a template asks for.

Rules (Jini Entry Specification; Jini Lookup Service Specification LU.2):
- An entry is an instance of a class whose fields are independent of each other; a subclass adds fields behind
  those of its superclass, so a superclass template is a prefix of a subclass entry.
- Values are compared by exact equality of their canonical text (XSD canonical lexical form). An unset field
  (None) in a template matches anything; an unset field in an entry equals no set template field.
- Across the wire an entry travels as data (`EntryRep`), never as code.
- Class identity is the name; the fingerprint tells two generations of one name apart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import ClassVar, Final, Self
from weakref import WeakKeyDictionary

import msgspec

from jbi_pubsub.core.errors import EntryError, IncompatibleEntryError

FieldType = type[str] | type[int] | type[bool] | type[float] | type[Decimal]
Value = str | int | bool | float | Decimal | None
_FIELD_TYPES: Mapping[str, FieldType] = {t.__name__: t for t in (str, int, bool, float, Decimal)}


class EntryClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The identity of an entry class: all its fields, superclass fields first, and its ancestry.

    `lineage` is (name, fingerprint) of the class itself, then of its superclasses, nearest first.
    """

    name: str
    fields: tuple[str, ...]
    lineage: tuple[tuple[str, str], ...]

    @property
    def fingerprint(self) -> str:
        """Hash of the name, the fields with their types, and the superclass's fingerprint."""
        return self.lineage[0][1]


class EntryRep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An entry, or an entry template, as data: canonical text per field, None where unset."""

    cls: EntryClass
    values: tuple[str | None, ...]

    def as_dict(self) -> dict[str, str | None]:
        """Field name to canonical value."""
        return dict(zip(self.cls.fields, self.values, strict=True))


def matches(template: EntryRep, entry: EntryRep) -> bool:
    """Jini LU.2.1: the template's class is the entry's class or an ancestor, and each set field is equal.

    Raises IncompatibleEntryError when the class name is the same but its fields differ: never a silent no-match.
    """
    name, fingerprint = template.cls.lineage[0]
    for known, known_fingerprint in entry.cls.lineage:
        if known == name:
            if known_fingerprint != fingerprint:
                raise IncompatibleEntryError(
                    f"entry class {name} of the template has other fields than the registered one",
                    hint="Generate both from the same schema",
                    entry_class=name,
                    template_fingerprint=fingerprint,
                    registered_fingerprint=known_fingerprint,
                )
            return _fields_match(template.values, entry.values)
    return False


def fits(template: EntryRep, entry: EntryRep) -> bool:
    """As `matches`, but another generation of the class is another class: no match and no error."""
    return template.cls.lineage[0] in entry.cls.lineage and _fields_match(template.values, entry.values)


def _fields_match(template: tuple[str | None, ...], entry: tuple[str | None, ...]) -> bool:
    # A set field that the entry lacks matches nothing: a forged class may claim an ancestor with more fields.
    return all(t is None or t == v for t, v in zip_longest(template, entry[: len(template)]))


MAX_FIELDS: Final = 256
"""Fields of one entry class at most: far above generated classes, low enough that a forged one stays cheap."""

MAX_LINEAGE: Final = 32
"""Superclasses of one entry class at most, itself included."""


def check_rep(rep: EntryRep) -> EntryRep:
    """`rep` if it is well formed; else EntryError. For reps that come from elsewhere.

    Well formed: a value per field, the lineage begins with the class itself, no name twice, none with a control
    character, and the bounds above.
    """
    cls = rep.cls
    names = [name for name, _ in cls.lineage]
    fault = (
        "its lineage does not begin with itself"
        if not names or names[0] != cls.name
        else "it names a class twice in its lineage"
        if len(set(names)) != len(names)
        else "it names a field twice"
        if len(set(cls.fields)) != len(cls.fields)
        else "it has not one value per field"
        if len(rep.values) != len(cls.fields)
        else "it is too large"
        if len(cls.fields) > MAX_FIELDS or len(names) > MAX_LINEAGE
        else "a class name is empty or has a control character"
        if any(not name or min(name) < " " for name in names)
        else ""
    )
    if fault:
        raise EntryError(
            f"entry of class {cls.name!r}: {fault}", hint="Make entries with Entry.rep()", entry_class=cls.name
        )
    return rep


def define(name: str, fields: Mapping[str, FieldType], parent: EntryClass | None = None) -> EntryClass:
    """The identity of class `name` that adds `fields` to `parent`. Equal arguments give equal fingerprints."""
    above = parent.lineage if parent else ()
    inherited = parent.fields if parent else ()
    clash = set(fields) & set(inherited)
    if clash:
        raise EntryError(f"entry class {name} declares inherited fields again: {sorted(clash)}")
    text = "\0".join([name, *(f"{f}:{t.__name__}" for f, t in fields.items()), above[0][1] if above else ""])
    fingerprint = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return EntryClass(name, (*inherited, *fields), ((name, fingerprint), *above))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Base of entry classes: frozen dataclasses whose fields are str, int, bool, float or Decimal, or None.

    `entry_name` is the name on the wire; without it the module and class name are used.
    """

    entry_name: ClassVar[str] = ""

    def rep(self) -> EntryRep:
        """This entry as data. Whole numbers may be int in all fields of numbers. Raises EntryError for a value that is
        not of its field's type: no other party could read it, and it would equal nothing."""
        cls, kinds = _described(type(self))
        return EntryRep(cls, tuple(_text(getattr(self, f), kinds[f], f"{cls.name}.{f}") for f in cls.fields))

    @classmethod
    def from_rep(cls, rep: EntryRep) -> Self:
        """The entry that `rep` (of this class or a subclass) stands for. Raises EntryError otherwise."""
        own, kinds = _described(cls)
        if own.lineage[0] not in rep.cls.lineage:
            raise EntryError(f"{rep.cls.name} is not a {own.name}")
        return cls(**{f: parse(v, kinds[f]) for f, v in zip(own.fields, rep.values, strict=False)})


_descriptions: WeakKeyDictionary[type[Entry], tuple[EntryClass, dict[str, FieldType]]] = WeakKeyDictionary()


def entry_class(cls: type[Entry]) -> EntryClass:
    """The identity of a Python entry class, its superclasses included; worked out once per class."""
    return _described(cls)[0]


def _described(cls: type[Entry]) -> tuple[EntryClass, dict[str, FieldType]]:
    """The identity of an entry class, and the types of its fields."""
    known = _descriptions.get(cls)
    if known is None:
        kinds = _field_types(cls)
        known = _descriptions[cls] = _identify(cls, kinds), kinds
    return known


def _identify(cls: type[Entry], kinds: dict[str, FieldType]) -> EntryClass:
    above = [base for base in cls.__bases__ if issubclass(base, Entry) and base is not Entry]
    if len(above) > 1:
        raise EntryError(f"entry class {cls.__qualname__} has two entry superclasses; one is allowed")
    parent = entry_class(above[0]) if above else None
    inherited = parent.fields if parent else ()
    own = {f: t for f, t in kinds.items() if f not in inherited}
    name = cls.__dict__.get("entry_name") or f"{cls.__module__}.{cls.__qualname__}"
    return define(name, own, parent)


def _field_types(cls: type[Entry]) -> dict[str, FieldType]:
    hints = typing.get_type_hints(cls)
    found: dict[str, FieldType] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        options = [a for a in typing.get_args(hint) if a is not types.NoneType] or [hint]
        kind = _FIELD_TYPES.get(getattr(options[0], "__name__", ""))
        if len(options) != 1 or kind is not options[0]:
            raise EntryError(f"{cls.__qualname__}.{field.name}: entry fields are {', '.join(_FIELD_TYPES)} or None")
        found[field.name] = kind
    return found


def _text(value: Value, kind: FieldType, field: str) -> str | None:
    """Canonical text of a value of a field of that type."""
    if kind is float and type(value) is int:
        value = float(value)
    whole = kind is Decimal and type(value) is int
    if value is not None and not whole and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise EntryError(f"{field} is {value!r}, not of type {kind.__name__}", hint="Give the type of the field")
    return canonical(value)


def canonical(value: Value) -> str | None:
    """Canonical text of a field value (XML Schema part 2, canonical representations). Raises EntryError."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _canonical_float(value)
    if isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"
        whole, _, fraction = text.partition(".")
        fraction = fraction.rstrip("0")
        whole = whole.lstrip("0") if whole[:1] != "-" else "-" + whole[1:].lstrip("0")
        if whole in ("", "-"):
            whole = "-0" if whole == "-" and fraction else "0"
        return f"{whole}.{fraction}" if fraction else whole
    raise EntryError(f"{value!r} is not an entry value", hint=f"Use {', '.join(_FIELD_TYPES)} or None")


def _canonical_float(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "INF" if value > 0 else "-INF"
    return repr(value + 0.0) if value else "0.0"


def parse(text: str | None, kind: FieldType) -> Value:
    """The Python value of canonical text. Raises EntryError when it is not of that type."""
    if text is None or kind is str:
        return text
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        if kind is not bool:
            return kind(text)
    except (ValueError, ArithmeticError):
        pass  # the one error below names text and type
    raise EntryError(f"{text!r} is not of type {kind.__name__}")


def check_change(template: EntryRep, update: EntryRep | None) -> None:
    """Refuse an update of entries that match `template`, unless it is of their class or an ancestor's. Raises
    EntryError."""
    check_rep(template)
    if update is not None and check_rep(update).cls.lineage[0] not in template.cls.lineage:
        raise EntryError(
            f"update of class {update.cls.name} for a template of class {template.cls.name}",
            hint="The update's class must be the template's or one of its superclasses",
        )


def modified(entry: EntryRep, changes: Sequence[tuple[EntryRep, EntryRep | None]]) -> EntryRep | None:
    """`entry` after all changes whose template it matches as it is now; None if one of them deletes it."""
    updates = [update for template, update in changes if matches(template, entry)]
    values = entry.values
    for update in updates:
        if update is None:
            return None
        pairs = zip_longest(update.values[: len(values)], values)
        values = tuple(old if new is None else new for new, old in pairs)
    return EntryRep(entry.cls, values)
