"""From an XPath predicate to entry templates (paper sections 2.1 and 4: the predicate as the complete subscription).

Soundness: whenever the predicate is true for a document, each derived template matches an entry of that document.
Since a publication's invariants equal the registered ones, the templates then match the registration as well, so
looking up by them loses nothing. What can't be shown to be sound stays with the predicate, which is evaluated by lxml
for each object in any case.

Derived: equality of an invariant leaf with a quoted literal, and with a number where distinct values of the leaf's type
are distinct for XPath, too; joined by `and` and by predicates of location steps. Left: or, not, !=, < and >, functions,
//, unions, text(), '', axes other than child, attribute, self and parent. Conditions on one element come into one
template; each mention of a repeated element may mean another one and gets a template of its own.

elementpath gives the syntax tree only. It refuses some legal XPath 1.0: then nothing is derived, and no subscription is
refused. Relative paths start at the document element, as in evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from typing import Any, Final

import msgspec
from elementpath import ElementPathError, XPath1Parser

from jbi_pubsub.codegen.binder import Binder, Node, Slot
from jbi_pubsub.codegen.model import XML
from jbi_pubsub.codegen.values import INTEGERS, NotAValueError, canonical_text
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.xpath.impossible import MAX_REASONS, ImpossibleCondition
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, canonical

MAX_PREDICATE_CHARS: Final = 16_384
"""Longer predicates are generated ones; parsing this much takes about 0.1 s."""

MAX_EXACT_INTEGER: Final = 1 << 53
"""Below it distinct integers are distinct IEEE doubles, which XPath 1.0 computes with (section 3.5)."""

MAX_EXACT_DIGITS: Final = 14
"""Distinct decimals of so many digits stay distinct doubles, even if either is off by a few last bits (libxml2)."""

REGISTERED_MOST: Final = 100
"""Registrations whose invariants are compared with a predicate, some 2 ms; of more nothing is said."""

COMPARED_CHARS: Final = 2_000
"""Characters of a predicate that is compared: some 10 ms."""

VALUES_SHOWN: Final = 8
VALUE_MOST: Final = 40
"""Invariant values told as the reason, and characters of each."""

_NO_WORD: Final = re.compile(r"\W", re.ASCII)
_LONG_NUMBER: Final = re.compile(r"\d{400}")  # the largest double has 309 digits; Python prints no more than 4,300
_COMPARISONS: Final = frozenset(("=", "!=", "<", "<=", ">", ">="))
_PATHS: Final = frozenset(("/", "//", "[", "(name)", ":", "*", "@", "attribute", "child", "self", ".", ".."))
_WHY_LEFT: Final = {
    "or": "either side may make it true",
    "not": "a negation holds for what is not there, too",
    "|": "either path may make it true",
    "//": "it may mean elements outside the invariant part",
}


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One condition that the predicate makes necessary. `went` is "template" or "predicate", `reason` says why.

    For "template": the entry class, its field and the canonical value.
    """

    expression: str
    went: str
    reason: str
    entry: str = ""
    field: str = ""
    value: str = ""


class Derivation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Explanation of a predicate: each condition, and the templates they add up to."""

    predicate: str
    conditions: tuple[Demand, ...]
    templates: tuple[EntryRep, ...]


@dataclass(frozen=True, eq=False)
class _Spot:
    """Where a path has led: an element (`node`), a leaf of it (`slot`), the document node (neither), or `unknown`.

    `identity` is equal for two mentions that must mean the same element.
    """

    node: Node | None = None
    slot: Slot | None = None
    identity: tuple[str, ...] = ()
    above: _Spot | None = None
    unknown: str = ""


_DOCUMENT: Final = _Spot()
_Key = tuple[str, tuple[str, ...], int]


def derive(binder: Binder, predicate: str, namespaces: Mapping[str, str]) -> Derivation:
    """The entry templates that `predicate` makes necessary, with reasons. Never raises for a bad predicate."""
    if len(predicate) > MAX_PREDICATE_CHARS:
        return _nothing(predicate, f"longer than {MAX_PREDICATE_CHARS} characters")
    if _LONG_NUMBER.search(predicate):
        return _nothing(predicate, "a number that no IEEE double holds")
    known = {"xml": XML, **{prefix: uri for prefix, uri in namespaces.items() if prefix}}
    try:
        tree = XPath1Parser(namespaces=known).parse(predicate)
        work = _Derivation(binder, known)
        work.necessary(tree, _Spot(binder.root, identity=("",), above=_DOCUMENT))
    except ElementPathError as exc:
        return _nothing(predicate, f"not understood here ({exc}); it is evaluated unchanged")
    except RecursionError:  # a tower of brackets or minus signs: lxml decides what becomes of it
        return _nothing(predicate, "nested too deeply")
    return Derivation(predicate, tuple(work.conditions), work.templates())


def missed_invariants(
    binder: Binder, predicate: str, namespaces: Mapping[str, str], registered: Collection[Sequence[EntryRep]]
) -> tuple[ImpossibleCondition, ...]:
    """Why `predicate` is false for whatever `registered` publish, by their invariants; () if it may be true for what
    one of them does."""
    if len(registered) > REGISTERED_MOST or len(predicate) > COMPARED_CHARS or "=" not in predicate:
        return ()
    named, fields = _NO_WORD.sub("_", predicate), {f for reps in registered for each in reps for f in each.cls.fields}
    if not any(field in named for field in fields):  # most demand nothing of an invariant, and are not parsed for that
        return ()
    demands = [each for each in derive(binder, predicate, namespaces).conditions if each.went == "template"]
    found: dict[Demand, dict[str, None]] = {}
    for entries in registered:
        texts = {each: _texts(binder.classes[each.entry], each.field, entries) for each in demands}
        missed = {each: has for each, has in texts.items() if each.value not in has}
        if not missed:
            return ()
        for each, has in missed.items():
            found.setdefault(each, {}).update(dict.fromkeys(has))
    return tuple(_contrary(each, [*has]) for each, has in list(found.items())[:MAX_REASONS])


def _texts(cls: EntryClass, field_name: str, entries: Iterable[EntryRep]) -> list[str]:
    """Values of a field in the entries of a class."""
    values = (each.as_dict().get(field_name) for each in entries if cls.lineage[0] in each.cls.lineage)
    return [value for value in values if value is not None]


def _contrary(demand: Demand, has: Sequence[str]) -> ImpossibleCondition:
    near = near_name(demand.value, has)
    shown = ", ".join(repr(value[:VALUE_MOST]) for value in has[:VALUES_SHOWN])
    reason = f"{demand.field} is invariant, and {shown or 'empty'}{', ...' if has[VALUES_SHOWN:] else ''}"
    return ImpossibleCondition(demand.expression, f"{reason} in what is published", repr(near) if near else "")


def _nothing(predicate: str, reason: str) -> Derivation:
    return Derivation(predicate, (Demand(predicate[:200], "predicate", reason),), ())


@dataclass(eq=False)
class _Derivation:
    """One walk over a syntax tree, collecting what must hold where."""

    binder: Binder
    namespaces: Mapping[str, str]
    conditions: list[Demand] = field(default_factory=list)
    found: dict[_Key, tuple[Node, dict[int, str]]] = field(default_factory=dict)
    fresh: Any = field(default_factory=count)

    def templates(self) -> tuple[EntryRep, ...]:
        """One template per element that conditions were found for; equal ones once."""
        reps = {
            EntryRep(self.binder.classes[node.entry], tuple(values.get(at) for at in range(len(node.fields)))): None
            for node, values in self.found.values()
        }
        return tuple(reps)

    def necessary(self, tree: Any, context: _Spot) -> None:
        """Note what must hold for `tree` to be true as a boolean at `context`."""
        waiting = [tree]
        while waiting:
            token = waiting.pop()
            if token.symbol == "and" and len(token) == 2:
                waiting.extend((token[1], token[0]))
            elif token.symbol == "(" and len(token) == 1:
                waiting.append(token[0])
            elif token.symbol in _COMPARISONS and len(token) == 2:
                self._comparison(token, context)
            elif _is_path(token):
                place = self._walk(token, context)
                self._left(token, place.unknown or "existence, not equality")
            else:
                self._left(token, _WHY_LEFT.get(token.symbol, "no equality of a path with a literal"))

    def _comparison(self, token: Any, context: _Spot) -> None:
        left, right = _unwrap(token[0]), _unwrap(token[1])
        if _is_path(right) and not _is_path(left):
            left, right = right, left
        literal = _literal(right)
        if not _is_path(left) or (literal is None and not _is_path(right)):
            # A boolean on the other side would be satisfied by an empty node-set as well.
            self._left(token, "no equality of a path with a literal")
            return
        place = self._walk(left, context)  # the path must select something: predicates of its steps must hold
        if literal is None:
            self._walk(right, context)
            self._left(token, "compares two paths")
        elif token.symbol != "=":
            self._left(token, f"{token.symbol} is not an equality")
        else:
            self._equality(token, place, literal)

    def _equality(self, token: Any, place: _Spot, literal: str | Decimal) -> None:
        slot = place.slot or (place.node.text if place.node is not None else None)
        if slot is None or place.node is None:
            self._left(token, place.unknown or "the path does not lead to an invariant value")
            return
        value, reason = _template_value(literal, slot)
        if value is None:
            self._left(token, reason)
            return
        self._demand(place, place.node, slot.at, value)
        self.conditions.append(Demand(token.source, "template", reason, place.node.entry, slot.field.name, value))

    def _demand(self, place: _Spot, node: Node, at: int, value: str) -> None:
        for attempt in count():
            _, values = self.found.setdefault((node.entry, place.identity, attempt), (node, {}))
            if values.setdefault(at, value) == value:
                return  # else: one element with two values, which is never true: two templates, neither in vain

    def _left(self, token: Any, reason: str) -> None:
        self.conditions.append(Demand(token.source, "predicate", reason))

    def _walk(self, token: Any, at: _Spot) -> _Spot:
        """Where `token`, a location path or step, leads from `at`; predicates on the way are noted."""
        symbol = token.symbol
        if symbol == "/":
            if len(token) == 0:
                return _DOCUMENT
            return (
                self._walk(token[0], _DOCUMENT) if len(token) == 1 else self._walk(token[1], self._walk(token[0], at))
            )
        if symbol == "//":
            if len(token) == 2:
                self._walk(token[0], at)
            return self._walk(token[-1], _Spot(unknown=_WHY_LEFT["//"]))
        if symbol == "[":
            place = self._walk(token[0], at)
            if _literal(token[1]) is None:
                self.necessary(token[1], place)
            return place
        if symbol == "(" and len(token) == 1:
            return self._walk(token[0], at)
        return self._step(token, at)

    def _step(self, token: Any, at: _Spot) -> _Spot:
        symbol = token.symbol
        if symbol == "." or (symbol == "self" and token[0].symbol == "node"):
            return at
        if symbol == "..":
            return at.above or _Spot(unknown="the path leaves the document")
        if symbol in ("@", "attribute"):
            return self._attribute(self._name(token[0]), at)
        if symbol == "child":
            return self._child(token[0], at)
        if symbol in ("(name)", ":", "*"):
            return self._child(token, at)
        return _Spot(unknown=f"{symbol} is not followed here")

    def _child(self, test: Any, at: _Spot) -> _Spot:
        node = at.node
        if at.unknown or at.slot is not None:
            return _Spot(unknown=at.unknown or "nothing invariant lies below a value", above=at)
        root = self.binder.root
        if test.symbol == "*" and len(test) == 0 and node is None:
            return _Spot(root, identity=("",), above=_DOCUMENT)  # a document has one element
        name = self._name(test)
        if node is None:
            return _Spot(root, identity=("",), above=_DOCUMENT) if name == self.binder.root_tag else _unknown(test, at)
        if name in node.leaves:
            return _Spot(node, node.leaves[name], at.identity, at)
        if name in node.nodes:
            mention = "" if name in node.single else f" {next(self.fresh)}"
            return _Spot(node.nodes[name], identity=(*at.identity, f"{name}{mention}"), above=at)
        return _unknown(test, at)

    def _attribute(self, name: str, at: _Spot) -> _Spot:
        if at.node is None or at.slot is not None or name not in at.node.attributes:
            return _Spot(unknown=at.unknown or f"the attribute {name or '*'} is not invariant here")
        return _Spot(at.node, at.node.attributes[name], at.identity, at)

    def _name(self, test: Any) -> str:
        """The Clark name of a name test, "" for anything else."""
        if test.symbol == "(name)":
            return str(test.value)  # XPath 1.0, section 2.3: no prefix means no namespace
        if test.symbol == ":" and len(test) == 2 and test[1].symbol == "(name)":
            uri = self.namespaces.get(str(test[0].value))
            return f"{{{uri}}}{test[1].value}" if uri else ""
        return ""


def _unknown(test: Any, at: _Spot) -> _Spot:
    where = at.identity[-1].partition(" ")[0] if at.identity else "the document"
    return _Spot(unknown=f"{test.source} is not in the invariant part of {where or 'the document element'}", above=at)


def _unwrap(token: Any) -> Any:
    while token.symbol == "(" and len(token) == 1:
        token = token[0]
    return token


def _is_path(token: Any) -> bool:
    token = _unwrap(token)
    if token.symbol == "*":
        return len(token) == 0
    return token.symbol in _PATHS


def _literal(token: Any) -> str | Decimal | None:
    token = _unwrap(token)
    if token.symbol == "(string)":
        return str(token.value)
    if token.symbol in ("(integer)", "(decimal)"):
        return Decimal(token.value)
    if token.symbol == "-" and len(token) == 1:
        positive = _literal(token[0])
        return positive.copy_negate() if isinstance(positive, Decimal) else None
    return None


def _template_value(literal: str | Decimal, slot: Slot) -> tuple[str | None, str]:
    """The canonical value a template may ask for, or None; and the reason."""
    kind = slot.field.type
    if slot.in_context:
        return None, f"{kind.name} depends on the namespaces in scope"
    if isinstance(literal, Decimal):
        return _number_value(literal, slot)
    if not literal.strip():
        return None, "an empty value is a wildcard in a template"
    try:
        value = canonical_text(literal, kind)
    except NotAValueError as exc:
        return None, f"never true: {literal[:40]!r} is not {exc}"
    return (value, f"equality, as {kind.name}") if value else (None, "an empty value is a wildcard in a template")


def _number_value(literal: Decimal, slot: Slot) -> tuple[str | None, str]:
    kind = slot.field.type
    whole = literal == literal.to_integral_value()
    if kind.builtin in INTEGERS and whole and abs(literal) < MAX_EXACT_INTEGER:
        return canonical(literal), f"equality by value, as {kind.name}"
    digits = min((int(bound) for facet, bound in kind.facets if facet == "totalDigits"), default=None)
    exact = digits is not None and digits <= MAX_EXACT_DIGITS >= len(literal.as_tuple().digits)
    if kind.builtin == "decimal" and exact:
        return canonical(literal), f"equality by value, as {kind.name}"
    return None, f"several values of {kind.name} can equal a number in XPath; write the value in quotes"
