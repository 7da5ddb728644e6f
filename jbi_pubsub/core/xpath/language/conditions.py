"""Conditions on the nodes at plain paths: the part of XPath that the index understands.

Rules:
- A plain path is made of child steps by name from the document element, and may end in an attribute. A relative one
  has steps to any name, and once to any depth, as well. A condition compares the nodes there with a constant, or asks
  whether there are any.
- A plan is a disjunction of conjunctions of such conditions. It says the same as the expression for every document
  in which no path named by a `SINGLE` condition occurs twice.
- For any other document, and where a conjunct holds an `OPAQUE` condition, the conjunct's other conditions that are
  not negated still follow from the expression: they may choose candidates, and lxml has the last word. About a term
  nothing follows where one of its paths occurs twice.
- Constants are parameters, so that one plan serves every expression of the same shape.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Final

import msgspec

from .budget import OperandShare, Shares
from .cost import CostBound, longest
from .terms import Evaluation, Parameter, Term, Where, is_relative, paths_in

CONDITION_BYTES: Final = 350
EVALUATION_BYTES: Final = 2 << 10
"""Size of a condition with its path, and as much again in its recipe; of an evaluation (both measured)."""

EQUAL: Final = "="
UNEQUAL: Final = "!="
NUMBER_EQUAL: Final = "n="
NUMBER_UNEQUAL: Final = "n!="
LESS: Final = "<"
LESS_EQUAL: Final = "<="
GREATER: Final = ">"
GREATER_EQUAL: Final = ">="
EXISTS: Final = "exists"
CONTAINS: Final = "contains"
STARTS_WITH: Final = "starts-with"
NORMALIZED_EQUAL: Final = "normalize-space="
SINGLE: Final = "single"
HAS_CHILDREN: Final = "has-children"
OPAQUE: Final = "opaque"

RELATIONS: Final = frozenset([LESS, LESS_EQUAL, GREATER, GREATER_EQUAL])
NUMERIC: Final = RELATIONS | {NUMBER_EQUAL, NUMBER_UNEQUAL}


class Condition(msgspec.Struct, frozen=True):
    """One condition: `test` on the nodes at `where` with parameter number `parameter` (-1: none), or its negation.

    For OPAQUE, `where` holds the reason instead.
    """

    test: str
    where: Where | Term
    parameter: int = -1
    negated: bool = False


Conjunct = tuple[Condition, ...]
Disjunction = list[Conjunct]
TRUE: Final[Conjunct] = ()


class ConditionPlan(msgspec.Struct, frozen=True, eq=False):
    """The conjuncts of an expression and the parameters that its conditions refer to. Compared by identity."""

    conjuncts: tuple[Conjunct, ...]
    parameters: tuple[Parameter, ...]
    fixed: tuple[int, ...] = ()
    """Parameters inside of terms: only where these are equal as well, predicates read the same of a document."""

    costs: Mapping[Where | Term, CostBound] = {}
    """Bounds for its operands, each read once for a document: terms and relative paths."""

    is_opaque: bool = False
    """Whether lxml may have a part in it, not only where several nodes are at one plain path: it has the last word,
    evaluates operands, or decides when an index has no room for these."""

    @property
    def is_shared(self) -> bool:
        """Whether an index that has room for its operands needs no more of lxml than these, but where several nodes are
        at one plain path."""
        each = itertools.chain.from_iterable(self.conjuncts)
        alone = (c.test == OPAQUE or (c.test == SINGLE and any(map(is_relative, paths_in(c.where)))) for c in each)
        return bool(self.costs) and not any(alone)

    @property
    def size(self) -> int:
        """Memory in bytes, about."""
        conditions = 1 + sum(map(len, self.conjuncts)) + len(self.parameters)
        return CONDITION_BYTES * conditions + EVALUATION_BYTES * len(self.costs)

    def constants(self, holes: list[str]) -> tuple[str | float, ...] | None:
        """The values of the parameters, from the literals as written; None when a value does not fit the plan.

        That is a number that is not finite (every comparison with NaN needs care), or an empty text where
        string() of an absent node could equal it.
        """
        values: list[str | float] = []
        for parameter in self.parameters:
            token = holes[parameter.hole]
            if parameter.kind in ("number", "minus"):
                value = parameter.number(token)
                if parameter.bound is not None and math.isfinite(value):
                    value = parameter.bound.value(value, holes)
                if not math.isfinite(value):
                    return None
                values.append(value)
            else:
                if parameter.kind == "filled text" and len(token) == 2:
                    return None
                values.append(token if parameter.kind == "written" else token[1:-1])
        return tuple(values)


@functools.lru_cache(1024)
def shares_of(plan: ConditionPlan, fixed: tuple[str | float, ...]) -> Shares:
    """The operands of a plan with the constants that it calls so."""
    constants, found = dict(zip(plan.fixed, fixed, strict=True)), {}
    for operand, cost in plan.costs.items():
        numbers = operand.parameters() if isinstance(operand, Term) else []
        seconds = functools.partial(cost.seconds, literal=longest(str(constants[each]) for each in numbers))
        given = operand.given(constants) if isinstance(operand, Term) else operand
        alike = operand.given(dict.fromkeys(numbers, "0")) if isinstance(operand, Evaluation) else given
        found[given] = OperandShare(alike, seconds)
    return found


def opaque_plan(reason: str) -> ConditionPlan:
    """The plan of an expression of which nothing is understood."""
    return ConditionPlan((opaque(reason),), (), is_opaque=True)


def opaque(reason: str) -> Conjunct:
    """A conjunct of which nothing is understood."""
    return (Condition(OPAQUE, (reason,)),)


def single(where: Where) -> Conjunct:
    """The condition that there is at most one node at `where`; the document element always is alone."""
    return (Condition(SINGLE, where),) if len(where) > 1 or is_relative(where) else ()


def with_sign(condition: Condition, negated: bool, further: Conjunct) -> Conjunct:
    """A condition or its negation, and what else has to hold."""
    return ((opposite(condition) if negated else condition), *further)


def opposite(condition: Condition) -> Condition:
    """The negation of a condition."""
    return msgspec.structs.replace(condition, negated=not condition.negated)


def either(parts: list[Disjunction], most: int) -> Disjunction:
    """The sum of alternatives; opaque where they are more than `most`."""
    found = list(itertools.chain.from_iterable(parts))
    return found if len(found) <= most else [opaque(f"more than {most} alternatives")]


def both(parts: list[Disjunction], most: int) -> Disjunction:
    """The product, narrow parts first; a part that would make it too wide becomes opaque."""
    found: Disjunction = [TRUE]
    for part in sorted(parts, key=len):
        factor = part if len(found) * len(part) <= most else [opaque(f"more than {most} alternatives")]
        found = [a + b for a in found for b in factor]
    return found
