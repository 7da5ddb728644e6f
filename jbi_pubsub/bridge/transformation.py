"""Changes of a bridge to objects on their way, in one direction: types that go, their names, what is left out.

Pure. Whoever has more to do to an object (units, types, what is hidden) is another Transforming.

Rules:
- What only administrators may have (jbi.Event) goes where a direction names it, and by no glob: over there, and at a
  broker, others could read it.
- A type that is not wanted is not there for the other side; none of its objects counts.
- Of a type that is wanted an object that does not come through is left out, which is told there as `filtered`.
- Bytes of metadata and payload are never changed here. A type that is called otherwise keeps its objects' ids; what its
  publisher has signed holds no longer, as the name is part of it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.core.access import RESERVED
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ConfigurationError, MetadataError, OversizeError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, InfoObject, TypeName
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate, compile_predicate

TYPES_REMEMBERED: Final = 10_000


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rule for some types of a direction. The first rule whose `types` match counts."""

    types: tuple[str, ...]
    """Globs of type names."""
    where: str = ""
    """XPath on the metadata: objects for which it does not hold are left out."""
    namespaces: dict[str, str] = {}
    """Namespaces of the prefixes in `where`."""
    name: str = ""
    """Name of the type on the other side; of a rule for one type alone."""


class Transformation:
    """See the module."""

    def __init__(self, types: Sequence[str], without: Sequence[str], rules: Sequence[Rule]) -> None:
        """`types` are the globs of the types that go, but for those `without`. Raises ConfigurationError,
        PredicateError, SchemaError for a name that no type can have."""
        self._types, self._without = _globs(types), _globs(without)
        self._kept = RESERVED.keys() - set(types)
        self._rules = [(_globs(rule.types), rule, _condition(rule)) for rule in rules]
        self._conditions: Cache[str, Predicate | None] = Cache(TYPES_REMEMBERED, self._condition_of)
        for rule in rules:
            if rule.name and (len(rule.types) != 1 or _is_glob(rule.types[0])):
                raise ConfigurationError(
                    f"name = {rule.name!r} is for one type, and this rule has {', '.join(rule.types) or 'none'}",
                    hint="Write a rule for each type that is called otherwise",
                )
            checked_name(rule.name, DEFAULT_VERSION)
        self._names = {rule.types[0]: rule.name for rule in rules if rule.name}
        if len(set(self._names.values())) < len(self._names):
            raise ConfigurationError("two types are called the same on the other side", hint="A type has one schema")

    def wants(self, type_: TypeName) -> bool:
        """Whether objects of a type of the one side are for the other."""
        name = type_.name
        return bool(self._types(name)) and not self._without(name) and name not in self._kept

    def named(self, type_: TypeName) -> TypeName:
        """Name of a type on the other side."""
        name = self._names.get(type_.name)
        return type_ if name is None else TypeName(name, type_.version)

    def asked(self, name: str) -> str:
        """Name here of what the other side knows by a name, of which it may ask the past."""
        return next((own for own, other in self._names.items() if other == name), name)

    def apply(self, obj: InfoObject) -> InfoObject | None:
        """The object as it goes to the other side; None: it is left out, also when it can't be read."""
        condition = self._conditions[obj.type.name]
        if condition is not None:
            try:
                if not condition.matches(parse_metadata(obj.metadata)):
                    return None
            except (MetadataError, OversizeError):
                return None
        named = self.named(obj.type)
        if named == obj.type:
            return obj
        platform = msgspec.structs.replace(obj.platform, signature=b"", seal=b"")
        return msgspec.structs.replace(obj, type=named, platform=platform)

    def rule_of(self, name: str) -> Rule | None:
        """The rule that counts for a type."""
        return next((rule for matches, rule, _ in self._rules if matches(name)), None)

    def _condition_of(self, name: str) -> Predicate | None:
        return next((where for matches, _, where in self._rules if matches(name)), None)


def _globs(globs: Sequence[str]) -> Callable[[str], object]:
    """Pattern that matches names that one of some globs stands for."""
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)").match


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def literal(names: Sequence[str]) -> bool:
    """Whether none of some names stands for others."""
    return bool(names) and not any(map(_is_glob, names))


def _condition(rule: Rule) -> Predicate | None:
    return compile_predicate(rule.where, namespaces=rule.namespaces, argument="where") if rule.where else None
