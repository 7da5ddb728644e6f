"""Analysis of an expression: the conditions that it is made of, in disjunctive normal form (see conditions).

Rules:
- What is asked of a parent's children is asked of more elements, and lxml has the last word.
- A term (terms.py) stands in the place of a path: arithmetic, or an evaluation of whatever else is no path. What only
  moves or scales one operand is taken out of it: `lat - 33 < 5` is a bound on `lat`, the last number for which libxml2
  finds it true (NumberBound).

What has to be proven of a condition that is left out because others imply it: they name the same nodes whatever the
document is. Names compare as whole paths, from the document element's own name on ("" there says nothing about it): a
condition on a path below another document element, or below one of any name, implies nothing about this one. Two
places leave something out: `_finished` here, and `_implied` in placement.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from jbi_pubsub.core.xml import NAME_LETTER

from .conditions import (
    CONTAINS,
    EQUAL,
    EXISTS,
    GREATER_EQUAL,
    HAS_CHILDREN,
    LESS,
    LESS_EQUAL,
    NORMALIZED_EQUAL,
    NUMBER_EQUAL,
    NUMERIC,
    OPAQUE,
    RELATIONS,
    STARTS_WITH,
    TRUE,
    UNEQUAL,
    Condition,
    ConditionPlan,
    Conjunct,
    Disjunction,
    both,
    either,
    opaque,
    opposite,
    single,
    with_sign,
)
from .cost import MAX_COST_OF_EVALUATION, USUAL_LITERAL, CostBound, TooCostlyError, terms_of
from .grammar import (
    CONSTANTS,
    Chain,
    Expression,
    Filter,
    FunctionCall,
    Literal,
    LocationStep,
    Negate,
    Number,
    Parsed,
    Path,
    asks_position,
    is_boolean,
    is_constant,
    parts_of,
    selects,
)
from .terms import (
    ARITHMETIC,
    EVALUATION,
    OF_ALL,
    SUM,
    Evaluation,
    NumberBound,
    Operand,
    Parameter,
    Term,
    Where,
    is_in_order,
    is_relative,
    paths_in,
)

MAX_CONJUNCTS: Final = 16
"""Conjuncts of a plan; a wider part of an expression becomes opaque. Each conjunct costs a row of the index."""

MAX_STEPS: Final = 200
MAX_OPERATIONS: Final = 16
"""Steps of a path and operations of a term; lxml decides on what has more."""

MAX_EVALUATIONS: Final = 16
"""Operands of one expression that are evaluated for each document; what has more lxml decides on."""

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


def analyse(parsed: Parsed, namespaces: Mapping[str, str], most: int = MAX_CONJUNCTS) -> ConditionPlan:
    """The plan of an expression, of `most` conjuncts, evaluated with the document element as context node."""
    analysis = _Analysis(parsed, namespaces, most)
    conjuncts = [_finished(c) for c in analysis.normal_form(parsed.tree, False, ("",))]
    each = [c for conjunct in conjuncts for c in conjunct]
    terms = [c.where for c in each if isinstance(c.where, Term)]
    fixed = dict.fromkeys(itertools.chain.from_iterable(term.parameters() for term in terms))
    costs: dict[Where | Term, CostBound] = {term: analysis.costs.get(term, _COST_OF_TERM) for term in terms}
    paths = itertools.chain.from_iterable(paths_in(c.where) for c in each if c.test != OPAQUE)
    costs |= {path: _COST_OF_RELATIVE for path in paths if is_relative(path)}
    is_opaque = bool(costs) or any(c.test == OPAQUE for c in each)
    return ConditionPlan(tuple(conjuncts), tuple(analysis.parameters), tuple(fixed), costs, is_opaque)


class _NotPlainError(Exception):
    """A path or an operand outside the fragment; never leaves this module."""


class _Analysis:
    """Negation is pushed inwards while descending, so each condition is met once, with its sign."""

    def __init__(self, parsed: Parsed, namespaces: Mapping[str, str], most: int) -> None:
        self.parameters: dict[Parameter, int] = {}
        self.costs: dict[Term, CostBound] = {}
        self._parsed = parsed
        self._namespaces = tuple(sorted(namespaces.items()))
        self._most = most

    def normal_form(self, expression: Expression, negated: bool, context: Where) -> Disjunction:
        """The disjunctive normal form of boolean(expression), or of its negation; `context` is the context node."""
        try:
            if isinstance(expression, Chain):
                return self._chain(expression, negated, context)
            if isinstance(expression, Path):
                return self._existence(expression, negated, context)
            if isinstance(expression, FunctionCall):
                return self._call(expression, negated, context)
            raise _NotPlainError(_named(expression))
        except _NotPlainError as reason:
            return self._evaluated(expression, negated, context) or [opaque(str(reason))]

    def _evaluated(self, expression: Expression, negated: bool, context: Where) -> Disjunction | None:
        """A condition on what an expression, or the operand that it compares with a constant, is evaluated to; None if
        that hangs on more than the nodes at a plain path, or costs too much."""
        context = ("",) if _context_free(expression) else context
        if is_relative(context) or is_constant(expression) or len(self.costs) >= MAX_EVALUATIONS:
            return None
        if expression is _OF_PARENT or asks_position(expression, inside=False):
            return None
        operator, left, right = _sides(expression)
        is_part = operator in (CONTAINS, STARTS_WITH)
        where = self._evaluation("string" if is_part else "" if operator else "boolean", left, context)
        if where is None:
            return None
        if is_part:
            condition = Condition(operator, where, self._parameter(right, "filled text"))
        elif operator in ("=", "!=") and not selects(left) and _is_number(left):
            condition = Condition("n" + operator, where, self._parameter(right, "number"))
        elif operator:
            condition = self._compared(operator, where, right, "text")
        else:
            condition = Condition(EXISTS, where)
        return [with_sign(condition, negated, ())]

    def _evaluation(self, function: str, part: Expression, context: Where) -> Evaluation | None:
        """The evaluation of `part`, or of a function of it."""
        *steps, last = (LocationStep("child", name or "*") for name in context)
        read = FunctionCall(function or "sum", (part,)) if function or selects(part) else part
        asked = Path("/", (*steps, LocationStep("child", last.test, (read,)))) if steps else read
        try:
            terms = terms_of(asked, is_sorted=False, most=MAX_COST_OF_EVALUATION, literal=USUAL_LITERAL)
        except TooCostlyError:
            return None
        (first, *rest), holes = self._parsed.pieces_of(part)
        *rest, end = (f"{function}({first}" if function else first, *rest)
        numbers = tuple(self._numbered(Parameter(hole, "written")) for hole in holes)
        pieces = (*rest, end + ")" if function else end)
        made = Evaluation(EVALUATION, numbers, context, pieces, self._namespaces)
        self.costs[made] = CostBound(lambda: terms)
        return made

    def _chain(self, chain: Chain, negated: bool, context: Where) -> Disjunction:
        operator = chain.operators[0]
        if operator in _MIRRORED:
            return self._comparison(chain, negated, context)
        if operator not in ("and", "or"):
            raise _NotPlainError(_named(chain))
        parts = [self.normal_form(o, negated, context) for o in chain.operands]
        return either(parts, self._most) if (operator == "or") != negated else both(parts, self._most)

    def _call(self, call: FunctionCall, negated: bool, context: Where) -> Disjunction:
        if call.name in ("not", "boolean"):
            return self.normal_form(call.arguments[0], negated != (call.name == "not"), context)
        if call.name in ("true", "false"):
            return [TRUE] if (call.name == "true") != negated else []
        if call.name in ("contains", "starts-with"):
            return self._part_of_text(call, negated, context)
        raise _NotPlainError(_named(call))

    def _existence(self, path: Path, negated: bool, context: Where) -> Disjunction:
        where, guards = self._resolve(path, context)
        is_of_all = not negated and all(_context_free(g) for g, _ in guards)
        if is_of_all and len(where) == 2 and where[1] == "*" and not is_relative(where[:1]):
            # as the paper writes it: some child of the document element exists, and what is in brackets is true anyway
            return self._guarded([Condition(HAS_CHILDREN, where[:1])], guards, negated)
        condition = [] if where == ("",) else [Condition(EXISTS, where)]
        return self._guarded(condition, guards, negated)

    def _comparison(self, chain: Chain, negated: bool, context: Where) -> Disjunction:
        if len(chain.operators) > 1:
            raise _NotPlainError("a chained comparison")
        operator, (left, right) = chain.operators[0], chain.operands
        if is_constant(left):
            operator, left, right = _MIRRORED[operator], right, left
        if (
            isinstance(right, FunctionCall)
            and right.name in ("true", "false")
            and operator in ("=", "!=")
            and selects(left)
        ):
            wanted = (right.name == "true") == (operator == "=")
            return self.normal_form(left, negated == wanted, context)
        if not is_constant(right):
            raise _NotPlainError("a comparison with something else than a constant")
        if isinstance(left, Path):
            where, guards = self._resolve(left, context)
            return self._guarded([self._compared(operator, where, right, "text")], guards, negated)
        if _is_arithmetic(left):
            return self._computed(operator, left, right, negated, context)
        return self._first_node(operator, left, right, negated, context)

    def _computed(
        self, operator: str, left: Expression, right: Expression, negated: bool, context: Where
    ) -> Disjunction:
        """Arithmetic compared with a constant."""
        moves: list[tuple[str, Parameter | None, bool]] = []
        if _operations(left) > MAX_OPERATIONS:
            raise _NotPlainError(f"more than {MAX_OPERATIONS} operations")
        kept = operator
        while operator in RELATIONS and (move := _move(left)) is not None:
            name, by, is_left, turns, left = move
            moves.insert(0, (name, None if by is None else _constant(by, "number"), is_left))
            operator = _MIRRORED[operator] if turns else operator
        operand = self._operand(left, context)
        if isinstance(operand, int | str):
            raise _NotPlainError("a constant")
        scopes = tuple(itertools.chain.from_iterable(single(path) for path in paths_in(operand, of_all=False)))
        constant = _constant(right, "number")
        if moves:
            bound = NumberBound(tuple(moves), kept, operator in (LESS, LESS_EQUAL))
            constant = msgspec.structs.replace(constant, bound=bound)
            operator = LESS_EQUAL if bound.is_upper else GREATER_EQUAL
        number = self._numbered(constant)
        if operator in RELATIONS:
            return [with_sign(Condition(operator, operand, number), negated, scopes)]
        if (operator == "!=") != negated:
            return [with_sign(Condition(NUMBER_EQUAL, operand, number), True, scopes)]
        bounds = (Condition(GREATER_EQUAL, operand, number), Condition(LESS_EQUAL, operand, number))
        return [(*bounds, *scopes)]

    def _operand(self, part: Expression, context: Where) -> Operand:
        """A part of arithmetic."""
        if isinstance(part, Number) or (isinstance(part, Negate) and isinstance(part.operand, Number)):
            return self._parameter(part, "number")
        if isinstance(part, Negate):
            return Term("-", (self._operand(part.operand, context),))
        if isinstance(part, Chain) and part.operators[0] in ARITHMETIC:
            term = self._operand(part.operands[0], context)
            for operator, right in zip(part.operators, part.operands[1:], strict=True):
                term = Term(operator, (term, self._operand(right, context)))
            return term
        if isinstance(part, FunctionCall) and part.name == "number" and part.arguments:
            return self._operand(part.arguments[0], context)
        if isinstance(part, FunctionCall) and part.name in OF_ALL and context == ("",):
            where = self._plain(part.arguments[0], context)
            if part.name == SUM and not is_in_order(where):
                raise _NotPlainError("a sum of nodes within each other")
            return Term(part.name, (where,))
        return self._plain(part, context)

    def _first_node(
        self, operator: str, left: Expression, right: Expression, negated: bool, context: Where
    ) -> Disjunction:
        """string(path), number(path), normalize-space(path) read the first node: the same when there is but one."""
        if (
            not isinstance(left, FunctionCall)
            or left.name not in ("string", "number", "normalize-space")
            or not left.arguments
        ):
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
        return [with_sign(condition, negated, single(where))]

    def _compared(self, operator: str, where: Where | Term, constant: Expression, kind: str) -> Condition:
        if operator in RELATIONS:
            return Condition(operator, where, self._parameter(constant, "number"))
        if isinstance(constant, Literal):
            return Condition(operator, where, self._parameter(constant, kind))
        return Condition("n" + operator, where, self._parameter(constant, "number"))

    def _part_of_text(self, call: FunctionCall, negated: bool, context: Where) -> Disjunction:
        text, part = call.arguments
        if isinstance(text, FunctionCall) and text.name == "string" and text.arguments:
            text = text.arguments[0]
        if not isinstance(part, Literal):
            raise _NotPlainError(f"{call.name}() with something else than a constant")
        where = self._plain(text, context)
        return [with_sign(Condition(call.name, where, self._parameter(part, "filled text")), negated, single(where))]

    def _plain(self, expression: Expression, context: Where) -> Where:
        if not isinstance(expression, Path):
            raise _NotPlainError(_named(expression))
        where, guards = self._resolve(expression, context)
        if guards:
            raise _NotPlainError("the first of several nodes")
        return where

    def _parameter(self, constant: Expression, kind: str) -> int:
        return self._numbered(_constant(constant, kind))

    def _numbered(self, parameter: Parameter) -> int:
        return self.parameters.setdefault(parameter, len(self.parameters))

    def _resolve(self, path: Path, context: Where) -> tuple[Where, _Guards]:
        """The plain path, and the predicates on its steps, each with the path of its own context node."""
        if path.start not in ("/", ""):
            raise _NotPlainError("a path from an expression")
        where: Where = () if path.start == "/" else context
        guards: _Guards = []
        steps = list(path.steps)
        while steps:
            step = steps.pop(0)
            if step == _PARENT and steps:
                guards.append((_OF_PARENT, where))
                step = steps.pop(0)
                where = _beside(where, step)
            else:
                where = _walked(where, step)
            guards.extend((p, where) for p in _boolean(step.predicates))
        if len(where) > MAX_STEPS:
            raise _NotPlainError(f"more than {MAX_STEPS} steps")
        if not where:
            raise _NotPlainError("the document node")
        return where, guards

    def _guarded(self, conditions: list[Condition], guards: _Guards, negated: bool) -> Disjunction:
        """`conditions` and the predicates of the path they stand on."""
        if not negated:
            found = [self.normal_form(g, False, w) for g, w in guards]
            scopes = [single(w) for g, w in guards if not _context_free(g)]
            return both([[(*conditions, *itertools.chain.from_iterable(scopes))], *found], self._most)
        if any(single(w) for _, w in guards):
            raise _NotPlainError("the negation of a condition on one of several nodes")
        denied: Disjunction = [(opposite(c),) for c in conditions]  # none: the document element is always there
        return either([denied, *(self.normal_form(g, True, w) for g, w in guards)], self._most)


_Guards = list[tuple[Expression, Where]]


def _walked(where: Where, step: LocationStep) -> Where:
    """One step further; () is the document node."""
    if where and where[-1].startswith("@"):
        raise _NotPlainError("a step from an attribute")
    axis, test = step.axis, step.test
    if where and axis == "self" and test == "node()":
        return where
    if test[-1] == ")" and axis in ("attribute", "child", "descendant"):
        raise _NotPlainError(f"the node type {test}")
    if test[0] != "*" and test[-1] == "*":
        raise _NotPlainError("a step to any name")  # of a namespace
    if where and axis == "attribute" and test != "*" and not step.predicates:
        return (*where, "@" + test)
    if axis == "child":
        return (*where, "" if test == "*" and not where else test)
    if axis == "descendant" and test != "*" and not any(s.startswith("//") for s in where):
        return (*where, "//" + test)
    raise _NotPlainError(f"the axis {axis}")


def _beside(where: Where, step: LocationStep) -> Where:
    """Children of the parents of the nodes at `where`, and perhaps more."""
    *above, last = where or ("",)
    if step.axis != "child" or step.test[-1] in "*)" or not (above or last.startswith("//")):
        raise _NotPlainError("the axis parent")
    return (*above, f"//{step.test}" if last.startswith("//") else step.test)


_PARENT: Final = LocationStep("parent", "node()")
_OF_PARENT: Final = Path("", (_PARENT,))
"""Stands for the condition that it is the child of such a parent: not understood, and about the node before."""


def _move(part: Expression) -> tuple[str, Number | Negate | None, bool, bool, Expression] | None:
    """Effect of the last operation on its operand, if it keeps or turns the order of numbers: operator, constant (None:
    -1), whether that stands left, whether it turns the order, and the operand; None if it is something else."""
    if isinstance(part, Negate):
        return None if is_constant(part) else ("multiply", None, False, True, part.operand)
    if (
        isinstance(part, FunctionCall)
        and part.name == "number"
        and part.arguments
        and _is_arithmetic(part.arguments[0])
    ):
        return _move(part.arguments[0])
    if not isinstance(part, Chain):
        return None
    *operators, operator = part.operators
    right = part.operands[-1]
    left = Chain(tuple(operators), part.operands[:-1]) if operators else part.operands[0]
    turning = operator in ("multiply", "div")
    if isinstance(right, Number) or (isinstance(right, Negate) and is_constant(right)):
        known = operator in ("+", "-", "multiply", "div") and not is_constant(left)
        return (operator, right, False, turning and isinstance(right, Negate), left) if known else None
    if isinstance(left, Number) or (isinstance(left, Negate) and is_constant(left)):
        turns = operator == "-" or (turning and isinstance(left, Negate))
        return (operator, left, True, turns, right) if operator in ("+", "-", "multiply") else None
    return None


def _operations(part: Expression) -> int:
    own = len(part.operators) if isinstance(part, Chain) else int(isinstance(part, Negate))
    return own + sum(map(_operations, parts_of(part)))


def _is_arithmetic(part: Expression) -> bool:
    if isinstance(part, FunctionCall) and part.name == "number" and part.arguments:
        return _is_arithmetic(part.arguments[0])
    if isinstance(part, FunctionCall):
        return part.name in OF_ALL
    return isinstance(part, Negate) or (isinstance(part, Chain) and part.operators[0] in ARITHMETIC)


def _constant(constant: Expression, kind: str) -> Parameter:
    if isinstance(constant, Negate):
        assert isinstance(constant.operand, Number)
        return Parameter(constant.operand.hole, "minus")
    assert isinstance(constant, CONSTANTS)
    return Parameter(constant.hole, kind)


def _boolean(predicates: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """`predicates`, if none of them may be a number: that would be a position (XPath 1.0 section 2.4)."""
    for predicate in predicates:
        is_text = isinstance(predicate, Literal) or not _is_number(predicate)
        if not (is_text or selects(predicate) or is_boolean(predicate)):
            raise _NotPlainError("a position")
    return predicates


def _context_free(expression: Expression) -> bool:
    """Whether the value is the same whatever the context node: every path in it is absolute."""
    if isinstance(expression, Path):
        return expression.start == "/" if isinstance(expression.start, str) else _context_free(expression.start)
    if isinstance(expression, Filter):
        return _context_free(expression.primary)
    if isinstance(expression, FunctionCall):
        is_of_context = not expression.arguments and expression.name not in ("true", "false")
        if is_of_context or expression.name in _CONTEXT_FUNCTIONS:
            return False
    return all(map(_context_free, parts_of(expression)))


def _finished(conjunct: Conjunct) -> Conjunct:
    """Each condition once, and without HAS_CHILDREN.

    There is one document element: a condition that needs a child element of it, whatever its name, implies that it has
    children, and what is left of HAS_CHILDREN is its name. Without such a condition lxml has to look, once.
    """
    conjunct = tuple(dict.fromkeys(conjunct))
    asked = {c.where: None for c in conjunct if c.test == HAS_CHILDREN}
    if not asked:
        return conjunct
    rest = tuple(c for c in conjunct if c.test != HAS_CHILDREN)
    needed = (c.where for c in rest if c.test in _REQUIRES_NODE and not c.negated)
    if not any(isinstance(where, tuple) and len(where) > 1 and where[1][0] != "@" for where in needed):
        rest = (*rest, Condition(EXISTS, _SOME_CHILD))
    named = (Condition(EXISTS, where) for where in asked if where != ("",))
    return tuple(dict.fromkeys((*rest, *named)))


def _sides(expression: Expression) -> tuple[str, Expression, Expression]:
    """The operator or function by which an expression compares an operand with a constant; "" if it does not."""
    if isinstance(expression, FunctionCall) and expression.name in (CONTAINS, STARTS_WITH):
        left, right = expression.arguments
        if isinstance(right, Literal):
            return expression.name, left, right
    if isinstance(expression, Chain) and expression.operators[0] in _MIRRORED and len(expression.operators) == 1:
        operator, (left, right) = expression.operators[0], expression.operands
        if is_constant(left):
            operator, left, right = _MIRRORED[operator], right, left
        if is_constant(right) and not is_boolean(left) and not _may_be_document(left):
            return operator, left, right
    return "", expression, expression


def _may_be_document(expression: Expression) -> bool:
    """Whether the document node may be among what is selected: lxml has no value for it."""
    if isinstance(expression, Path):
        last = expression.steps[-1] if expression.steps else _PARENT
        return last.test == "node()" and last.axis not in ("child", "attribute")
    if isinstance(expression, Filter):
        return _may_be_document(expression.primary)
    return selects(expression) and any(map(_may_be_document, getattr(expression, "operands", ())))


def _is_number(expression: Expression) -> bool:
    """Whether the value is a number, of what neither is a set of nodes nor true or false."""
    return not isinstance(expression, FunctionCall) or expression.name not in _STRING_FUNCTIONS


_SOME_CHILD: Final = Evaluation(EVALUATION, (), ("",), ("boolean(*)",))
_COST_OF_TERM: Final = CostBound(lambda: terms_of(Path("", (LocationStep("child", "*"),)), is_sorted=False))
"""Bound for that, and for arithmetic (0.3 us)."""
_COST_OF_RELATIVE: Final = CostBound(lambda: {(0, 0, 0, 0, 0): 2_000.0, (1, 0, 0, 0, 0): 300.0, (0, 1, 0, 1, 0): 1.0})
"""Bound for a walk over all nodes, with the texts of some (1 us)."""


def _named(expression: Expression) -> str:
    if isinstance(expression, FunctionCall):
        return f"{expression.name}()"
    if isinstance(expression, Chain):
        return f"the operator {expression.operators[0]}"
    return {Filter: "a filtered expression", Negate: "the operator -"}.get(type(expression), "a constant")


_NO_HYPHEN: Final = NAME_LETTER.removesuffix(r"\-")
_HOLE: Final = re.compile(
    r"(\"[^\"]*\"|'[^']*'"
    rf"|(?=[0-9.])(?<![{_NO_HYPHEN}:])(?<![{NAME_LETTER}]-)(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?![{_NO_HYPHEN}]))"
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
