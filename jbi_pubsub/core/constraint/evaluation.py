"""Constraints over values: whether they are true of a mapping, and in which order somebody wants what matches (OMG
Trading Object Service 1.0, annex B). Pure.

Truth has three values (Kleene's): a comparison with a property that is not there, or of another kind, is neither true
nor false, nor is its negation; what is not true in the end does not match. So `not exist x or x > 3` says what it
seems to. Numbers are those of XPath (IEEE 754 doubles); what comes to no number is neither true nor false.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath.language.terms import over

from .expression import (
    Arithmetic,
    Comparison,
    ConstantTerm,
    Exists,
    Expression,
    InclusionTerm,
    Junction,
    Negative,
    Not,
    PropertyTerm,
    Substring,
    parsed,
)

Values = Mapping[str, object]
"""Values by name: str, int, float, bool, and sequences of str."""
_Evaluator = Callable[[Values], object]
"""Its value; None where it is undefined."""
T = TypeVar("T")
EXACT: Final = 1 << 53
"""Whole numbers below are the same as doubles."""
_SIGNS: Final[Mapping[str, Callable[..., bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPERATIONS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": over,
}  # fmt: skip


class Constraint:
    """A constraint, made ready: `equalities` are values that properties have wherever it is true."""

    def __init__(self, text: str) -> None:
        """Raises PredicateError, with the position."""
        self.text = text
        self.tree = parsed(text)
        self.equalities: dict[str, str | int | float | bool] = {}
        parts = self.tree.parts if isinstance(self.tree, Junction) and self.tree.word == "and" else (self.tree,)
        for part in parts:
            self._note(part)
        self._of = _evaluator(self.tree)

    def matches(self, values: Values) -> bool:
        """Whether it is true."""
        return self._of(values) is True

    def _note(self, part: Expression) -> None:
        if isinstance(part, Comparison) and part.sign == "==":
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, PropertyTerm) and isinstance(other, ConstantTerm):
                    value = other.value
                    if not isinstance(value, float) or isinstance(value, bool) or abs(value) < EXACT:
                        self.equalities.setdefault(one.name, value)


class Preference:
    """The order in which somebody wants what matches: "max e", "min e", "with c", "random", "first" (the default)."""

    def __init__(self, text: str) -> None:
        """Raises PredicateError."""
        word, _, rest = text.strip().partition(" ")
        fault, position = "", len(word) + 1
        if word not in ("", "max", "min", "with", "random", "first"):
            fault, position = f"no preference: {text[:80]!r}", 1
        elif bool(rest.strip()) != (word in ("max", "min", "with")):
            fault = f"preference {text[:80]!r} {'has too much' if rest.strip() else 'lacks an expression'}"
        if fault:
            raise PredicateError(
                fault, hint="max E, min E, with C, random or first",
                argument="preference", expression=text[:200], position=position,
            )  # fmt: skip
        self._word = word
        self._of = _evaluator(parsed(rest)) if rest.strip() else None

    def ordered(self, found: Sequence[T], values: Callable[[T], Values]) -> list[T]:
        """All of them; what can't be evaluated comes last, in its order."""
        if self._word == "random":
            return random.sample(found, len(found))  # no secret
        if self._of is None:
            return list(found)
        of = self._of

        def place(each: T) -> float:
            value = of(values(each))
            if self._word == "with":
                return 0.0 if value is True else 1.0 if value is False else 2.0
            number = _number(value)
            return math.inf if number is None else -number if self._word == "max" else number

        return sorted(found, key=place)


def _number(value: object) -> float | None:
    if type(value) is float or type(value) is int:
        number = float(value)
        return None if math.isnan(number) else number
    return None


def _evaluator(of: Expression) -> _Evaluator:
    match of:
        case ConstantTerm(value):
            return lambda values: value  # noqa: ARG005  # whatever they are
        case PropertyTerm(name):
            return lambda values: values.get(name)
        case Exists(name):
            return lambda values: name in values
        case Not(inner):
            return _negated(_evaluator(inner))
        case Negative(inner):
            below = _evaluator(inner)
            return lambda values: None if (number := _number(below(values))) is None else -number
        case Junction(word, parts):
            return _junction(tuple(map(_evaluator, parts)), is_decided=word == "or")
        case Comparison(sign, left, right):
            return _comparison(sign, _evaluator(left), _evaluator(right))
        case InclusionTerm(member, sequence):
            return _membership(_evaluator(member), sequence.name)
        case Substring(part, whole):
            return _substring(_evaluator(part), _evaluator(whole))
        case Arithmetic(first, rest):
            return _arithmetic(_evaluator(first), tuple((sign, _evaluator(each)) for sign, each in rest))


def _negated(below: _Evaluator) -> _Evaluator:
    def evaluate(values: Values) -> object:
        value = below(values)
        return not value if isinstance(value, bool) else None

    return evaluate


def _junction(parts: tuple[_Evaluator, ...], *, is_decided: bool) -> _Evaluator:
    """`is_decided`: the value of a part that decides for all."""

    def evaluate(values: Values) -> object:
        result: bool | None = not is_decided
        for part in parts:
            value = part(values)
            if value is is_decided:
                return is_decided
            if not isinstance(value, bool):
                result = None
        return result

    return evaluate


def _comparison(sign: str, left: _Evaluator, right: _Evaluator) -> _Evaluator:
    holds, is_order = _SIGNS[sign], sign not in ("==", "!=")

    def evaluate(values: Values) -> object:
        one, other = left(values), right(values)
        number = _number(one)
        if number is not None:
            second = _number(other)
            return None if second is None else holds(number, second)
        if is_order or type(one) is not type(other) or not isinstance(one, str | bool):
            return None
        return holds(one, other)

    return evaluate


def _membership(member: _Evaluator, sequence: str) -> _Evaluator:
    def evaluate(values: Values) -> object:
        one, some = member(values), values.get(sequence)
        return one in some if isinstance(one, str) and isinstance(some, tuple | list) else None

    return evaluate


def _substring(part: _Evaluator, whole: _Evaluator) -> _Evaluator:
    def evaluate(values: Values) -> object:
        one, other = part(values), whole(values)
        return one in other if isinstance(one, str) and isinstance(other, str) else None

    return evaluate


def _arithmetic(first: _Evaluator, rest: tuple[tuple[str, _Evaluator], ...]) -> _Evaluator:
    def evaluate(values: Values) -> object:
        total = _number(first(values))
        for sign, each in rest:
            other = _number(each(values))
            if total is None or other is None:
                return None
            total = _number(_OPERATIONS[sign](total, other))
        return total

    return evaluate
