"""The part of XPath that the index understands, as conditions on the nodes at plain paths.

Rules:
- A plain path is made of child steps by name from the document element, and may end in an attribute. A condition
  compares the nodes there with a constant, or asks whether there are any.
- A plan is a disjunction of conjunctions of such conditions. It says the same as the expression for every document
  in which no path named by a `SINGLE` condition occurs twice.
- For any other document, and where a conjunct holds an `OPAQUE` condition, the conjunct's other conditions that are
  not negated still follow from the expression: they may choose candidates, and lxml has the last word.
- Constants are parameters, so that one plan serves every expression of the same shape.

What has to be proven of a condition that is left out because others imply it: they name the same nodes whatever the
document is. Names compare as whole paths, from the document element's own name on ("" there says nothing about it): a
condition on a path below another document element, or below one of any name, implies nothing about this one. Two
places leave something out: `_finished` here, and `_implied` in placement.py.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from .grammar import (
    BOOLEAN_FUNCTIONS,
    CONSTANTS,
    Call,
    Chain,
    Expression,
    Filter,
    Literal,
    Negate,
    Number,
    Path,
    Step,
    selects,
)
from .number import number

MAX_CONJUNCTS: Final = 16
"""Conjuncts of a plan; a wider part of an expression becomes opaque. Each conjunct costs a row of the index."""

CONDITION_BYTES: Final = 350
"""Of a condition with its path, and as much again in the recipe that is made of it (measured)."""

Where = tuple[str, ...]
"""A plain path: the document element's name ("" for any name), child names, perhaps "@name" at the end."""

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

_REQUIRES_NODE: Final = NUMERIC | {EQUAL, UNEQUAL, EXISTS}
_MIRRORED: Final[Mapping[str, str]] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_STRING_FUNCTIONS: Final = frozenset(
    [
        "local-name",
        "namespace-uri",
        "name",
        "string",
        "concat",
        "substring-before",
        "substring-after",
        "substring",
        "normalize-space",
        "translate",
    ]
)
_CONTEXT_FUNCTIONS: Final = frozenset(["position", "last", "lang"])


class Condition(msgspec.Struct, frozen=True):
    """One condition: `test` on the nodes at `where` with parameter number `parameter` (-1: none), or its negation.

    For OPAQUE, `where` holds the reason instead.
    """

    test: str
    where: Where
    parameter: int = -1
    negated: bool = False


Conjunct = tuple[Condition, ...]


class Parameter(msgspec.Struct, frozen=True):
    """A constant of the expression: which literal, and read as what ("text", "filled text", "number", "minus")."""

    hole: int
    kind: str


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The conjuncts of an expression and the parameters that its conditions refer to. Compared by identity."""

    conjuncts: tuple[Conjunct, ...]
    parameters: tuple[Parameter, ...]

    @property
    def is_opaque(self) -> bool:
        """Whether lxml has a part in it: not only where several nodes are at one path."""
        return any(c.test == OPAQUE for conjunct in self.conjuncts for c in conjunct)

    @property
    def size(self) -> int:
        """Memory in bytes, about."""
        return CONDITION_BYTES * (1 + sum(map(len, self.conjuncts)) + len(self.parameters))

    def constants(self, holes: list[str]) -> tuple[str | float, ...] | None:
        """The values of the parameters, from the literals as written; None when a value does not fit the plan.

        That is a number that is not finite (every comparison with NaN needs care), or an empty text where
        string() of an absent node could equal it.
        """
        values: list[str | float] = []
        for parameter in self.parameters:
            token = holes[parameter.hole]
            quoted = token[0] in "'\""
            if parameter.kind in ("number", "minus"):
                value = number(token[1:-1] if quoted else token)
                if not math.isfinite(value):
                    return None
                values.append(-value if parameter.kind == "minus" else value)
            else:
                if parameter.kind == "filled text" and len(token) == 2:
                    return None
                values.append(token[1:-1])
        return tuple(values)


def opaque_plan(reason: str) -> Plan:
    """The plan of an expression of which nothing is understood."""
    return Plan((_opaque(reason),), ())


def analyse(expression: Expression) -> Plan:
    """The plan of `expression`, evaluated with the document element as context node."""
    analysis = _Analysis()
    conjuncts = [_finished(c) for c in analysis.normal_form(expression, False, ("",))]
    return Plan(tuple(conjuncts), tuple(analysis.parameters))


def _opaque(reason: str) -> Conjunct:
    return (Condition(OPAQUE, (reason,)),)


class _NotPlainError(Exception):
    """A path or an operand outside the fragment; never leaves this module."""


_Disjunction = list[Conjunct]
_TRUE: Final[Conjunct] = ()


class _Analysis:
    """Negation is pushed inwards while descending, so each condition is met once, with its sign."""

    def __init__(self) -> None:
        self.parameters: dict[Parameter, int] = {}

    def normal_form(self, expression: Expression, negated: bool, context: Where) -> _Disjunction:
        """The disjunctive normal form of boolean(expression), or of its negation; `context` is the context node."""
        try:
            if isinstance(expression, Chain):
                return self._chain(expression, negated, context)
            if isinstance(expression, Path):
                return self._existence(expression, negated, context)
            if isinstance(expression, Call):
                return self._call(expression, negated, context)
            raise _NotPlainError(_named(expression))
        except _NotPlainError as reason:
            return [_opaque(str(reason))]

    def _chain(self, chain: Chain, negated: bool, context: Where) -> _Disjunction:
        operator = chain.operators[0]
        if operator in _MIRRORED:
            return self._comparison(chain, negated, context)
        if operator not in ("and", "or"):
            raise _NotPlainError(_named(chain))
        parts = [self.normal_form(o, negated, context) for o in chain.operands]
        return _either(parts) if (operator == "or") != negated else _both(parts)

    def _call(self, call: Call, negated: bool, context: Where) -> _Disjunction:
        if call.name in ("not", "boolean"):
            return self.normal_form(call.arguments[0], negated != (call.name == "not"), context)
        if call.name in ("true", "false"):
            return [_TRUE] if (call.name == "true") != negated else []
        if call.name in ("contains", "starts-with"):
            return self._part_of_text(call, negated, context)
        raise _NotPlainError(_named(call))

    def _existence(self, path: Path, negated: bool, context: Where) -> _Disjunction:
        where, guards = self._resolve(path, context)
        if where[-1] == "*":
            return self._children(where[:-1], guards, negated)
        condition = [] if where == ("",) else [Condition(EXISTS, where)]
        return self._guarded(condition, guards, negated)

    def _children(self, where: Where, guards: _Guards, negated: bool) -> _Disjunction:
        """`*[...]` as the paper writes it: some child of the document element exists, and ... is true anyway."""
        if negated or any(not _context_free(g) for g, _ in guards):
            raise _NotPlainError("a step to any name")
        return self._guarded([Condition(HAS_CHILDREN, where)], guards, negated)

    def _comparison(self, chain: Chain, negated: bool, context: Where) -> _Disjunction:
        if len(chain.operators) > 1:
            raise _NotPlainError("a chained comparison")
        operator, (left, right) = chain.operators[0], chain.operands
        if _is_constant(left):
            operator, left, right = _MIRRORED[operator], right, left
        if isinstance(right, Call) and right.name in ("true", "false") and operator in ("=", "!=") and selects(left):
            wanted = (right.name == "true") == (operator == "=")
            return self.normal_form(left, negated == wanted, context)
        if not _is_constant(right):
            raise _NotPlainError("a comparison with something else than a constant")
        if isinstance(left, Path):
            where, guards = self._resolve(left, context)
            if where[-1] == "*":
                raise _NotPlainError("a step to any name")
            return self._guarded([self._compared(operator, where, right, "text")], guards, negated)
        return self._first_node(operator, left, right, negated, context)

    def _first_node(
        self, operator: str, left: Expression, right: Expression, negated: bool, context: Where
    ) -> _Disjunction:
        """string(path), number(path), normalize-space(path) read the first node: the same when there is but one."""
        if not isinstance(left, Call) or left.name not in ("string", "number", "normalize-space") or not left.arguments:
            raise _NotPlainError(_named(left))
        where = self._plain(left.arguments[0], context)
        if operator == "!=":  # with at most one node, absent read as "" or NaN: exactly the negation of =
            operator, negated = "=", not negated
        if left.name == "normalize-space":
            if operator != "=" or not isinstance(right, Literal):
                raise _NotPlainError("a number made from normalize-space()")
            condition = Condition(NORMALIZED_EQUAL, where, self._parameter(right, "text"))
        elif left.name == "number" and operator == "=":
            condition = Condition(NUMBER_EQUAL, where, self._parameter(right, "number"))
        else:
            condition = self._compared(operator, where, right, "filled text")
        return [_with_sign(condition, negated, _single(where))]

    def _compared(self, operator: str, where: Where, constant: Expression, kind: str) -> Condition:
        if operator in RELATIONS:
            return Condition(operator, where, self._parameter(constant, "number"))
        if isinstance(constant, Literal):
            return Condition(operator, where, self._parameter(constant, kind))
        return Condition("n" + operator, where, self._parameter(constant, "number"))

    def _part_of_text(self, call: Call, negated: bool, context: Where) -> _Disjunction:
        text, part = call.arguments
        if isinstance(text, Call) and text.name == "string" and text.arguments:
            text = text.arguments[0]
        if not isinstance(part, Literal):
            raise _NotPlainError(f"{call.name}() with something else than a constant")
        where = self._plain(text, context)
        return [_with_sign(Condition(call.name, where, self._parameter(part, "text")), negated, _single(where))]

    def _plain(self, expression: Expression, context: Where) -> Where:
        if not isinstance(expression, Path):
            raise _NotPlainError(_named(expression))
        where, guards = self._resolve(expression, context)
        if guards or where[-1] == "*":
            raise _NotPlainError("the first of several nodes")
        return where

    def _parameter(self, constant: Expression, kind: str) -> int:
        if isinstance(constant, Negate):
            assert isinstance(constant.operand, Number)
            parameter = Parameter(constant.operand.hole, "minus")
        else:
            assert isinstance(constant, CONSTANTS)
            parameter = Parameter(constant.hole, kind)
        return self.parameters.setdefault(parameter, len(self.parameters))

    def _resolve(self, path: Path, context: Where) -> tuple[Where, _Guards]:
        """The plain path, and the predicates on its steps, each with the path of its own context node."""
        steps = path.steps
        if path.start == "/":
            if not steps:
                raise _NotPlainError("the document node")
            if steps[0].axis != "child":
                raise _NotPlainError(f"the axis {steps[0].axis}")
            name = "" if steps[0].test == "*" else _child_name(steps[0])
            where: Where = (name,)
            guards: _Guards = [(p, where) for p in _boolean(steps[0].predicates)]
            steps = steps[1:]
        elif path.start == "":
            where, guards = context, []
        else:
            raise _NotPlainError("a path from an expression")
        for step in steps:
            where = _walked(where, step)
            guards.extend((p, where) for p in _boolean(step.predicates))
        return where, guards

    def _guarded(self, conditions: list[Condition], guards: _Guards, negated: bool) -> _Disjunction:
        """`conditions` and the predicates of the path they stand on."""
        if not negated:
            found = [self.normal_form(g, False, w) for g, w in guards]
            scopes = [_single(w) for _, w in guards if w[-1] != "*"]  # what stands on any name reads no context
            return _both([[(*conditions, *itertools.chain.from_iterable(scopes))], *found])
        if any(_single(w) for _, w in guards):
            raise _NotPlainError("the negation of a condition on one of several nodes")
        opposite: _Disjunction = [(_opposite(c),) for c in conditions]  # none: the document element is always there
        return _either([opposite, *(self.normal_form(g, True, w) for g, w in guards)])


_Guards = list[tuple[Expression, Where]]


def _walked(where: Where, step: Step) -> Where:
    if where[-1] == "*":
        raise _NotPlainError("a step to any name")
    if where[-1].startswith("@"):
        raise _NotPlainError("a step from an attribute")
    if step.axis == "self" and step.test == "node()":
        return where
    if step.axis == "attribute" and not step.predicates and step.test[-1] not in "*)":
        return (*where, "@" + step.test)
    if step.axis == "child" and step.test == "*" and len(where) == 1:
        return (*where, "*")
    if step.axis != "child":
        raise _NotPlainError(f"the axis {step.axis}")
    return (*where, _child_name(step))


def _child_name(step: Step) -> str:
    if step.test[-1] == "*":
        raise _NotPlainError("a step to any name")
    if step.test[-1] == ")":
        raise _NotPlainError(f"the node type {step.test}")
    return step.test


def _boolean(predicates: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """`predicates`, if none of them may be a number: that would be a position (XPath 1.0 section 2.4)."""
    for predicate in predicates:
        known = (
            isinstance(predicate, (Path, Filter, Literal))
            or (isinstance(predicate, Chain) and predicate.operators[0] not in ("+", "-", "multiply", "div", "mod"))
            or (isinstance(predicate, Call) and predicate.name in BOOLEAN_FUNCTIONS | _STRING_FUNCTIONS | {"id"})
        )
        if not known:
            raise _NotPlainError("a position")
    return predicates


def _context_free(expression: Expression) -> bool:
    """Whether the value is the same whatever the context node: every path in it is absolute."""
    if isinstance(expression, Path):
        inside = (_context_free(expression.start) if not isinstance(expression.start, str) else True,)
        return expression.start != "" and all(inside)
    if isinstance(expression, Chain):
        return all(_context_free(o) for o in expression.operands)
    if isinstance(expression, Call):
        if expression.name in _CONTEXT_FUNCTIONS or (
            not expression.arguments and expression.name not in ("true", "false")
        ):
            return False
        return all(_context_free(a) for a in expression.arguments)
    if isinstance(expression, Negate):
        return _context_free(expression.operand)
    if isinstance(expression, Filter):
        return _context_free(expression.primary)
    return True


def _single(where: Where) -> Conjunct:
    """The condition that there is at most one node at `where`; the document element always is alone."""
    return (Condition(SINGLE, where),) if len(where) > 1 else ()


def _with_sign(condition: Condition, negated: bool, further: Conjunct) -> Conjunct:
    return ((_opposite(condition) if negated else condition), *further)


def _opposite(condition: Condition) -> Condition:
    return msgspec.structs.replace(condition, negated=not condition.negated)


def _either(parts: list[_Disjunction]) -> _Disjunction:
    found = list(itertools.chain.from_iterable(parts))
    return found if len(found) <= MAX_CONJUNCTS else [_opaque(f"more than {MAX_CONJUNCTS} alternatives")]


def _both(parts: list[_Disjunction]) -> _Disjunction:
    """The product, narrow parts first; a part that would make it too wide becomes opaque."""
    found: _Disjunction = [_TRUE]
    for part in sorted(parts, key=len):
        fits = len(found) * len(part) <= MAX_CONJUNCTS
        factor = part if fits else [_opaque(f"more than {MAX_CONJUNCTS} alternatives")]
        found = [a + b for a in found for b in factor]
    return found


def _finished(conjunct: Conjunct) -> Conjunct:
    """Each condition once, and without HAS_CHILDREN.

    There is one document element: a condition that needs a child element of it, whatever its name, implies that it has
    children, and what is left of HAS_CHILDREN is its name. Without such a condition lxml has to look.
    """
    conjunct = tuple(dict.fromkeys(conjunct))
    asked = {c.where for c in conjunct if c.test == HAS_CHILDREN}
    if not asked:
        return conjunct
    rest = tuple(c for c in conjunct if c.test != HAS_CHILDREN)
    if not any(c.test in _REQUIRES_NODE and not c.negated and len(c.where) > 1 and c.where[1][0] != "@" for c in rest):
        return (*rest, *_opaque("a step to any name"))
    named = (Condition(EXISTS, where) for where in sorted(asked) if where != ("",))
    return tuple(dict.fromkeys((*rest, *named)))


def _is_constant(expression: Expression) -> bool:
    if isinstance(expression, Negate):
        return isinstance(expression.operand, Number)
    return isinstance(expression, CONSTANTS)


def _named(expression: Expression) -> str:
    if isinstance(expression, Call):
        return f"{expression.name}()"
    if isinstance(expression, Chain):
        return f"the operator {expression.operators[0]}"
    return {Filter: "a filtered expression", Negate: "the operator -"}.get(type(expression), "a constant")


_HOLE: Final = re.compile(
    r"(\"[^\"]*\"|'[^']*'|(?<![\w.\u00b7:])(?<![\w.\-\u00b7]-)(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?![\w.\u00b7]))"
)


def skeleton(expression: str) -> tuple[tuple[str, ...], list[str]]:
    """The expression with its literals taken out, and the literals as written.

    Equal skeletons whose literals are those that the grammar sees (to be checked once) have equal trees but for the
    literals.
    """
    parts = _HOLE.split(expression)
    holes = parts[1::2]
    kinds = "".join(["'" if h[0] in "'\"" else "0" for h in holes])
    return (kinds, *parts[::2]), holes
