"""Predicates that cover others: true wherever those are, so that what is brought for the one is enough for both.

Theory of operation: two expressions that differ in their literals alone have one plan. Each comparison with a literal
has a sign there, how often it is negated around it; so a literal that moves to the side of more makes the whole true
for more, whatever the document is. For expressions of different plans only that counts which holds for each document,
also where a path occurs twice: of the narrow one the conditions that are not negated follow from it, and the wide one
is to say no more than conditions of which each can be met by another node.

A wrong yes would lose objects, a wrong no costs a copy: what is not understood covers its equal alone. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, KeysView, Sequence
from typing import Final, Generic, TypeVar

from .language.analysis import skeleton
from .language.conditions import (
    EQUAL,
    EXISTS,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    NUMBER_EQUAL,
    NUMBER_UNEQUAL,
    NUMERIC,
    OPAQUE,
    RELATIONS,
    SINGLE,
    UNEQUAL,
    Condition,
    Conjunct,
)
from .language.terms import COMPARE, Parameter, Term, is_relative
from .predicate import XPATH, Predicate

K = TypeVar("K", bound=Hashable)

_UPPER: Final = (LESS, LESS_EQUAL)
_NODE: Final = NUMERIC | {EQUAL, UNEQUAL, EXISTS}
"""Tests that need a node."""
_Values = Sequence[str | float]


def covers(wide: Predicate, narrow: Predicate) -> bool:
    """Whether `wide` is true for every document for which `narrow` is; False where that is not known."""
    if wide.identity == narrow.identity:
        return True
    if wide.language != XPATH or narrow.language != XPATH:
        return False
    if wide.plan is narrow.plan and wide.namespaces == narrow.namespaces:
        return _is_looser(wide, narrow)
    is_exact = all(_is_sure(each) for conjunct in wide.plan.conjuncts for each in conjunct)
    if wide.plan.is_opaque or not is_exact or not narrow.plan.conjuncts:
        return False
    return all(
        any(_follows(goal, wide.constants, given, narrow.constants) for goal in wide.plan.conjuncts)
        for given in narrow.plan.conjuncts
    )


def _is_looser(wide: Predicate, narrow: Predicate) -> bool:
    """Whether of one plan the literals of `wide` are true for all that those of `narrow` are."""
    plan, of_wide, of_narrow = wide.plan, wide.constants, narrow.constants
    free: set[int] = set()
    """Literals that the conditions speak for."""
    for condition in (each for conjunct in plan.conjuncts for each in conjunct if each.parameter >= 0):
        number = condition.parameter
        if condition.test in RELATIONS and number not in plan.fixed:
            more, less = of_wide[number], of_narrow[number]
            if not isinstance(more, float) or not isinstance(less, float):
                return False
            is_upper = (condition.test in _UPPER) is not condition.negated
            if not (more >= less if is_upper else more <= less):
                return False
            free |= set(_literals(plan.parameters[number]))
        elif of_wide[number] != of_narrow[number]:
            return False
    (form, literals), (other, others) = skeleton(wide.expression), skeleton(narrow.expression)
    if form != other:
        return False  # what is too irregular shares a plan that says nothing
    return all(text == literals[hole] or hole in free for hole, text in enumerate(others))


def _literals(parameter: Parameter) -> Iterator[int]:
    """Numbers of the literals that a parameter is made of."""
    yield parameter.hole
    for _, moved, _ in parameter.bound.moves if parameter.bound is not None else ():
        if moved is not None:
            yield moved.hole


def _is_sure(condition: Condition) -> bool:
    """Whether it says the same of each document, whatever occurs twice there: then it follows from its conjunct."""
    return not (condition.negated or condition.test in (OPAQUE, SINGLE) or isinstance(condition.where, Term))


def _follows(goal: Conjunct, goal_values: _Values, given: Conjunct, given_values: _Values) -> bool:
    """Whether all conditions of `goal` follow from those of `given` that hold for each document."""
    sure = list(filter(_is_sure, given))
    return all(any(_implied(wanted, goal_values, each, given_values) for each in sure) for wanted in goal)


def _implied(wanted: Condition, wanted_values: _Values, given: Condition, given_values: _Values) -> bool:
    if wanted.test == EXISTS and given.test in _NODE:
        return wanted.where == given.where or _is_above(wanted, given)
    if wanted.where != given.where:
        return False
    limit = wanted_values[wanted.parameter] if wanted.parameter >= 0 else None
    known = given_values[given.parameter] if given.parameter >= 0 else None
    if wanted.test == given.test and limit == known:
        return True
    if wanted.test == UNEQUAL:
        return given.test == EQUAL and limit != known
    if not isinstance(limit, float) or not isinstance(known, float):
        return False
    return _implied_number(wanted.test, limit, given.test, known)


def _is_above(wanted: Condition, given: Condition) -> bool:
    """Whether the one's nodes are those around the other's."""
    above, below = wanted.where, given.where
    if isinstance(above, Term) or isinstance(below, Term) or is_relative(above) or is_relative(below):
        return False
    return len(above) < len(below) and below[: len(above)] == above


def _implied_number(wanted: str, limit: float, given: str, known: float) -> bool:
    """Whether a number that compares so with `known` compares so with `limit`."""
    if given == NUMBER_EQUAL:
        return wanted in NUMERIC and COMPARE[wanted](known, limit)
    if given in _UPPER and wanted in (LESS, LESS_EQUAL, NUMBER_UNEQUAL):
        return known < limit or (known == limit and (given == LESS or wanted == LESS_EQUAL))
    if given in (GREATER, GREATER_EQUAL) and wanted in (GREATER, GREATER_EQUAL, NUMBER_UNEQUAL):
        return known > limit or (known == limit and (given == GREATER or wanted == GREATER_EQUAL))
    return False


class Aggregate(Generic[K]):
    """Predicates by key, and those of them that no other one covers."""

    def __init__(self) -> None:
        self._predicates: dict[K, Predicate] = {}
        self._below: dict[K, K | None] = {}
        """For each the one that covers it; None: it is one of the widest."""

    def __len__(self) -> int:
        return len(self._predicates)

    @property
    def keys(self) -> KeysView[K]:
        """All of them."""
        return self._predicates.keys()

    @property
    def widest(self) -> list[K]:
        """Keys of those that no other one covers, of those that cover each other the first."""
        return [key for key, above in self._below.items() if above is None]

    def add(self, key: K, predicate: Predicate) -> bool:
        """One more; whether the widest are others now."""
        self._predicates[key] = predicate
        above = next((each for each in self.widest if covers(self._predicates[each], predicate)), None)
        if above is None:
            lower = [each for each in self.widest if covers(predicate, self._predicates[each])]
            moved = {*lower}
            self._below = {each: key if each in moved or of in moved else of for each, of in self._below.items()}
        self._below[key] = above
        return above is None

    def remove(self, key: K) -> bool:
        """One less; whether the widest are others now. Raises KeyError."""
        del self._predicates[key]
        if self._below.pop(key) is not None:
            return False
        for each in [each for each, above in self._below.items() if above == key]:
            del self._below[each]
            self.add(each, self._predicates[each])
        return True
