"""Recipes: how the conjuncts of a plan become rows of an index.

Rules:
- The access key takes every equality that is not negated (up to MAX_KEYS), then up to two ranges bounded on both sides,
  or else one bound; without any of these, a part of a text, or existence. What is left becomes the row's check.
- A bound is closed by moving it to the next double: x > 5 says the same as x >= nextafter(5, inf).
- A conjunct that nothing selects by, and that is opaque, can't be a row: the predicate then is evaluated by lxml.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from jbi_pubsub.core.xpath.language import conditions
from jbi_pubsub.core.xpath.language.budget import Shares
from jbi_pubsub.core.xpath.language.conditions import Condition, Conjunct
from jbi_pubsub.core.xpath.language.terms import (
    COUNT,
    OF_ALL,
    Evaluation,
    Operand,
    Term,
    Where,
    is_relative,
    modulo,
    over,
    paths_in,
)
from jbi_pubsub.core.xpath.predicate import Predicate

from .contained import Contained
from .document import NUMBER, PRESENT, TEXT, Paths, count, total
from .family import MAX_KEYS, Bounds, Family, Key
from .grid import Celled
from .listed import Listed
from .residual import Check, Checks, Constants, Holds
from .sorted import Sorted

MAX_FAMILIES: Final = 64
"""Families of one index: each costs a document some 0.2 us. Further kinds of rows join a family with a smaller key."""

Form = tuple[str, tuple[int, ...], tuple[int, ...], bool, bool]
"""Key that tells families apart: kind, slots of the equalities, slots of the ranges, whether rows have checks, and
whether the predicates of its rows have several rows (so that one may be found twice)."""

_LOWER: Final = (conditions.GREATER, conditions.GREATER_EQUAL)
_UPPER: Final = (conditions.LESS, conditions.LESS_EQUAL)
_CLOSED: Final = {conditions.GREATER: conditions.GREATER_EQUAL, conditions.LESS: conditions.LESS_EQUAL}
_PARTS: Final = (conditions.STARTS_WITH, conditions.CONTAINS)
_READINGS: Final = {conditions.EXISTS: PRESENT, conditions.SINGLE: PRESENT} | dict.fromkeys(conditions.NUMERIC, NUMBER)


class Row(msgspec.Struct, frozen=True):
    """A row to be added: its family, key and bounds, and its check (None without)."""

    family: Family
    key: Key
    bounds: Bounds
    check: tuple[Holds, Constants, Check] | None


class Recipe(msgspec.Struct, frozen=True, eq=False):
    """Recipe by which one conjunct becomes a row, given the constants of a predicate.

    `keys` are the constants' numbers for the equalities (-1: existence); `ranges` the (number, test) of the lower and
    of the upper bounds of each range; `checked` the (number, test) of the constants of the check.
    """

    family: Family
    keys: tuple[int, ...]
    ranges: tuple[tuple[tuple[int, str], ...], ...]
    checked: tuple[tuple[int, str], ...]
    check: tuple[Holds, Check] | None

    def row(self, predicate: Predicate) -> Row | None:
        """The row of `predicate`; None when a bound is not finite."""
        constants = predicate.constants
        bounds: list[float] = []
        for place, side in enumerate(self.ranges):
            limits = [float(_closed(test, constants[number])) for number, test in side]
            upper = side[0][1] in _UPPER
            bounds.append(min(limits) if upper else max(limits))
            if not math.isfinite(bounds[place]):
                return None
        key = tuple([constants[k] if k >= 0 else "" for k in self.keys])
        check = None
        if self.check is not None:
            holds, shape = self.check
            values = [_closed(test, constants[number]) if number >= 0 else "" for number, test in self.checked]
            check = (holds, (*values, predicate) if shape.opaque or shape.scopes else tuple(values), shape)
        return Row(self.family, key[0] if len(key) == 1 else key, tuple(bounds), check)


class Cookbook:
    """Makes recipes, and the families they need. One writer."""

    def __init__(self, paths: Paths, checks: Checks) -> None:
        self._paths = paths
        self._checks = checks
        self.families: dict[Form, Family] = {}

    def recipes(
        self, plan: conditions.ConditionPlan, fixed: tuple[Any, ...]
    ) -> tuple[tuple[Recipe, ...] | None, Shares]:
        """A recipe for each conjunct of `plan`, with the constants that it calls `fixed` (None: lxml evaluates what it
        stands for), and the operands that there is room for."""
        literals = dict(zip(plan.fixed, fixed, strict=True))
        shares, room = conditions.shares_of(plan, fixed), self._paths.room
        has_room = room.more(shares) is not None
        conjuncts = [tuple(_given(c, literals, has_room=has_room) for c in each) for each in plan.conjuncts]
        choices = [choose(c) for c in conjuncts]
        if any(not c.selective and c.opaque for c in choices) or self._paths.full(sum(map(len, conjuncts))):
            return None, {}
        slots = self._slots(itertools.chain.from_iterable(conjuncts), shares)
        shares = shares if has_room and room.take(shares) else {}
        return tuple(self._recipe(c, slots, len(choices) > 1) for c in choices), shares

    def _recipe(self, choice: Choice, slots: Mapping[Condition, int], several: bool) -> Recipe:
        keys = sorted((slots[c], c.parameter) for c in (*choice.keys, *choice.part))
        ranges = sorted((slots[lows[0] if lows else highs[0]], lows, highs) for lows, highs in choice.ranges)
        rest, scopes = choice.rest, tuple(slots[c] for c in choice.scopes)
        if ranges:
            kind = "celled" if ranges[0][1] and ranges[0][2] else "lower" if ranges[0][1] else "upper"
        else:
            kind = choice.part[0].test if choice.part else "listed"
        checked = bool(rest) or choice.opaque
        form: Form = (kind, tuple(s for s, _ in keys), tuple(r[0] for r in ranges), checked, several)
        if form not in self.families and len(self.families) >= MAX_FAMILIES:
            kept = choice.keys[:1] if len(self.families) < 2 * MAX_FAMILIES else ()
            keys, ranges = [(slots[c], c.parameter) for c in kept], []
            rest = (*choice.keys[len(kept) :], *choice.bounds, *choice.part, *choice.rest)
            form = ("listed", tuple(s for s, _ in keys), (), True, several)
        family = self._family(form)
        family.asked |= {*scopes, *(slots[c] for c in rest)}
        conditions = tuple(
            (_CLOSED.get(c.test, c.test), slots[c], i if c.parameter >= 0 else -1, c.negated)
            for i, c in enumerate(rest)
        )
        check = None
        if form[3] or scopes:
            check = self._checks.prepared(Check(conditions, scopes, choice.opaque))
        return Recipe(
            family,
            tuple(p for _, p in keys),
            tuple(
                tuple((c.parameter, c.test) for c in side) for _, low, high in ranges for side in (low, high) if side
            ),
            tuple((c.parameter, c.test) for c in rest),
            check,
        )

    def _slots(self, asked: Iterable[Condition], shares: Shares) -> dict[Condition, int]:
        """The slot that each condition reads."""
        found: dict[Condition, int] = {}
        for condition in asked:
            where, reading = condition.where, _READINGS.get(condition.test, TEXT)
            if condition.test != conditions.OPAQUE:
                slot = found[condition] = self._paths.slot(where, reading)
                if isinstance(where, Evaluation):
                    self._paths.evaluated(slot, reading, where, shares[where].seconds)
                elif isinstance(where, Term):
                    self._compute(slot, where)
        return found

    def _compute(self, slot: int, term: Term) -> None:
        """Say how a term is computed; its text is made of numbers and of the templates below, nothing of the user's."""
        read = tuple(self._paths.slot(path, NUMBER) for path in paths_in(term, of_all=False))
        source = self._source(term)
        names = {"__builtins__": {}, "over": over, "modulo": modulo, "count": count, "sum": total}
        self._paths.computed(slot, read, lambda: eval(f"lambda v, m: {source}", names))  # noqa: S307  # see above

    def _source(self, operand: Operand) -> str:
        if isinstance(operand, Term) and operand.operator in OF_ALL:
            reading = PRESENT if operand.operator == COUNT else NUMBER
            return f"{operand.operator}(v, m, {self._paths.slot(operand.operands[0], reading)})"  # type: ignore[arg-type]  # a path
        if isinstance(operand, Term):
            parts = [self._source(each) for each in operand.operands]
            return _OPERATIONS[operand.operator, len(parts)].format(*parts)
        return f"v[{self._paths.slot(operand, NUMBER)}]" if isinstance(operand, tuple) else f"({operand})"

    def _family(self, form: Form) -> Family:
        family = self.families.get(form)
        if family is None:
            kind, keys, ranges, checked, _ = form
            if kind == "listed":
                family = Listed(keys)
            elif kind == "celled":
                family = Celled(keys, ranges)
            elif kind in _PARTS:
                family = Contained(keys[0], is_prefix=kind == conditions.STARTS_WITH)
            else:
                family = Sorted(keys, ranges[0], kind == "lower")
            family.checked = checked
            self.families[form] = family
        return family


def _given(condition: Condition, constants: Mapping[int, Any], *, has_room: bool) -> Condition:
    """The condition with the constants in its operand; without room for that, lxml has to look."""
    where = condition.where
    if condition.test == conditions.OPAQUE or not (isinstance(where, Term) or is_relative(where)):
        return condition
    if not has_room:
        return Condition(conditions.OPAQUE, ("no room for more operands",))
    return msgspec.structs.replace(condition, where=where.given(constants) if isinstance(where, Term) else where)


_OPERATIONS: Final = {
    ("+", 2): "({} + {})",
    ("-", 2): "({} - {})",
    ("-", 1): "(-{})",
    ("multiply", 2): "({} * {})",
    ("div", 2): "over({}, {})",
    ("mod", 2): "modulo({}, {})",
}


class Choice(msgspec.Struct, frozen=True):
    """Uses of the conditions of a conjunct: equalities, or a part of a text; ranges (lower and upper bounds of one
    path), and the rest."""

    keys: tuple[Condition, ...]
    part: tuple[Condition, ...]
    ranges: tuple[tuple[tuple[Condition, ...], tuple[Condition, ...]], ...]
    rest: tuple[Condition, ...]
    scopes: tuple[Condition, ...]
    reasons: tuple[str, ...]

    @property
    def opaque(self) -> bool:
        """Whether lxml has the last word."""
        return bool(self.reasons)

    @property
    def selective(self) -> bool:
        """Whether the access key chooses anything."""
        return bool(self.keys or self.part or self.ranges)

    @property
    def bounds(self) -> tuple[Condition, ...]:
        """The conditions of the ranges."""
        return tuple(c for low, high in self.ranges for c in (*low, *high))


def choose(conjunct: Conjunct) -> Choice:
    """The access key and the check of a conjunct."""
    scopes = tuple(c for c in conjunct if c.test == conditions.SINGLE)
    reasons = tuple(str(c.where[0]) for c in conjunct if c.test == conditions.OPAQUE and isinstance(c.where, tuple))
    plain = [c for c in conjunct if c.test not in (conditions.SINGLE, conditions.OPAQUE)]
    positive = [c for c in plain if not c.negated]
    keys = _first_per_path([c for c in positive if c.test in (conditions.EQUAL, conditions.NUMBER_EQUAL)])[:MAX_KEYS]
    bounded = _by_path([c for c in positive if c.test in _LOWER], [c for c in positive if c.test in _UPPER])
    ranges = [r for r in bounded if r[0] and r[1]][:2] or bounded[:1]
    part = [] if keys or ranges else [c for c in positive if c.test in _PARTS][:1]
    if not keys and not ranges and not part:
        keys = [c for c in positive if c.test == conditions.EXISTS][:1]
    used = {*keys, *part, *(c for low, high in ranges for c in (*low, *high))}
    rest = tuple(c for c in plain if c not in used and not _implied(c, used))
    return Choice(tuple(keys), tuple(part), tuple(ranges), rest, scopes, reasons)


def _first_per_path(conditions: list[Condition]) -> list[Condition]:
    found: dict[tuple[Where | Term, str], Condition] = {}
    for condition in conditions:
        found.setdefault((condition.where, condition.test), condition)
    return list(found.values())


def _by_path(
    lower: list[Condition], upper: list[Condition]
) -> list[tuple[tuple[Condition, ...], tuple[Condition, ...]]]:
    """The bounds of each path, in the order of the paths' first bound."""
    paths = dict.fromkeys(c.where for c in (*lower, *upper))
    return [(tuple(c for c in lower if c.where == w), tuple(c for c in upper if c.where == w)) for w in paths]


def _implied(condition: Condition, used: set[Condition]) -> bool:
    """Existence follows from an access condition on the same path or below it."""
    where = condition.where
    if condition.test != conditions.EXISTS or condition.negated or isinstance(where, Term):
        return False
    return any(path[: len(where)] == where for u in used for path in paths_in(u.where, of_all=False))


def _closed(test: str, constant: str | float) -> str | float:
    if test == conditions.GREATER:
        return math.nextafter(constant, math.inf)  # type: ignore[arg-type]  # a relation's constant is a number
    if test == conditions.LESS:
        return math.nextafter(constant, -math.inf)  # type: ignore[arg-type]  # as above
    return constant
