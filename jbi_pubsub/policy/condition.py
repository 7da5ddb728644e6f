"""The `when` of a policy: a condition over entities, operations, information and resources (QED, section IV). Pure.

Its grammar is that of Python's expressions, read by `ast.parse` and never evaluated by Python: what is not on the list
below is refused with its place, and what is becomes a tree of our own.

Rules:
- `and`, `or`, `not`; `==`, `!=`, `in`, `not in`, `like(name, "glob*")` of texts; `<`, `<=`, `>`, `>=`, also in chains,
  of quantities, which have units; `metadata("XPath")`, `attribute["name"]`; `True` and `False`.
- One side of a comparison is a property, the other what it is compared with.
- Negations are pushed down to the tests. A test about what is not known (None) does not hold, nor does its negation.
- Who is in several groups: `group == "a"` says that one of them is it, `group != "a"` that none is.
- When a contract opens, what is known of it is decided (`reduced`); what is left asks for objects and resources.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath import Predicate, compile_predicate

from .context import Addresses, CallerFacts, Globs
from .file import nearest
from .units import EXAMPLES, Unit, amount, with_unit

TEXT_MOST: Final = 2_000
DEPTH_MOST: Final = 32
OPERANDS_MOST: Final = 64
SOURCE: Final = "<condition of a policy>"
warnings.filterwarnings(
    "ignore", category=SyntaxWarning, module=re.escape(SOURCE)
)  # Python's: we have words of our own

Group = Literal["entity", "operation", "information", "resource"]
"""E, O, M and R of the paper. The first two are known when a contract opens."""

TEXTS: Final[Mapping[str, Group]] = {
    "user": "entity", "group": "entity", "role": "entity", "client": "entity", "component": "entity",
    "address": "entity", "action": "operation", "type": "operation", "version": "operation", "delivery": "operation",
    "payload_type": "information",
}  # fmt: skip
QUANTITIES: Final[Mapping[str, tuple[Unit, Group]]] = {
    "size": ("bytes", "information"), "bandwidth": ("rate", "resource"), "backlog": ("bytes", "resource"),
    "queue": ("count", "resource"), "queue_bytes": ("bytes", "resource"), "memory": ("bytes", "resource"),
    "cpu": ("share", "resource"), "loss": ("share", "resource"),
}  # fmt: skip
NAMES: Final = (*TEXTS, *QUANTITIES, "attribute", "metadata", "like")


class ConditionError(Exception):
    """Condition that can't be read; `at`: number of the character, from 0."""

    def __init__(self, message: str, at: int, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.hint = hint


class KnownValues(Protocol):
    """Facts about objects that tests ask for."""

    @property
    def size(self) -> int:
        """Bytes of metadata and payload, as published; -1: not known."""
        ...

    @property
    def payload_type(self) -> str:
        """For example image/jpeg; "" for what is not known."""
        ...

    def says(self, predicate: Predicate) -> bool | None:
        """Whether a predicate holds for the metadata; None: that is not known, as they are no XML, or it failed."""
        ...


class Exact:
    """Texts that are what they are: `==` and `in` know no globs."""

    __slots__ = ("said",)

    def __init__(self, said: Sequence[str]) -> None:
        self.said: Final = tuple(sorted(set(said)))

    def any_of(self, values: Sequence[str]) -> bool:
        """Whether one of the values is one of the texts."""
        return any(value in self.said for value in values)


Texts = Exact | Globs | Addresses


@dataclass(frozen=True, slots=True)
class TextTest:
    """One of the values of a property is among `texts`, or none is (`negated`)."""

    name: str
    group: Group
    texts: Texts
    negated: bool = False
    attribute: str = ""

    def of_facts(self, facts: CallerFacts) -> bool:
        """Whether it holds by what is known when a contract opens."""
        values = (facts.attribute_of(self.attribute),) if self.attribute else getattr(facts, self.name)
        return self.texts.any_of(values) is not self.negated


_COMPARES: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_OPERATORS: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """A quantity compared with a number."""

    name: str
    group: Group
    comparison: str
    limit: float

    def of(self, value: float | None) -> bool:
        """Whether it holds; not of what is not known."""
        return value is not None and _COMPARES[self.comparison](value, self.limit)


@dataclass(frozen=True, slots=True)
class Says:
    """An XPath holds for the metadata, or does not (`negated`)."""

    predicate: Predicate
    negated: bool = False
    name: str = "metadata"
    group: Group = "information"


@dataclass(frozen=True, slots=True)
class All:
    """All of them hold."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of them holds."""

    parts: tuple[Node, ...]


Test = TextTest | Bound | Says
Node = Test | All | Some | bool
"""True and False: it always holds, never."""


def parse_condition(text: str, namespaces: Mapping[str, str] | None = None) -> Node:
    """The tree of a `when`; `namespaces`: the prefixes in its XPaths. Raises ConditionError."""
    if len(text) > TEXT_MOST:
        raise ConditionError(f"more than {TEXT_MOST} characters", TEXT_MOST, "Make two policies")
    if "\\" in text:
        raise ConditionError("a backslash", text.index("\\"), "Texts stand between ' or \", whichever is not in them")
    line = text.translate(_ONE_LINE)
    start = len(line) - len(line.lstrip())
    try:
        tree = ast.parse(line[start:], SOURCE, mode="eval")
    except SyntaxError as exc:
        at = start + (exc.offset or 0) - 1
        ends = at < start or at >= len(line.rstrip())  # CPython says column 0 where it ends too early
        what = "is empty" if not line.strip() else "ends too early" if ends else f"is not a condition: {exc.msg}"
        at = len(line.rstrip()) if ends else at
        hint = 'For example: size > "50 KB" and like(type, "uav.*")'
        raise ConditionError(what, at, "Write == to compare" if line[at : at + 1] == "=" else hint) from exc
    except (ValueError, MemoryError, RecursionError) as exc:
        raise ConditionError("is not a condition that can be read: too deep, or strange signs in it", start) from exc
    return ConditionReader(line, start, namespaces or {}).read(tree.body)


_ONE_LINE: Final = {ord(sign): " " for sign in "\n\r\t\f\v"}


class ConditionReader:
    """From Python's tree to ours."""

    def __init__(self, line: str, start: int, namespaces: Mapping[str, str]) -> None:
        self._bytes = line[start:].encode()
        self._start = start
        self._namespaces = namespaces
        self._operands = 0

    def _fail(self, node: ast.AST, message: str, hint: str = "") -> ConditionError:
        column = getattr(node, "col_offset", 0)  # in bytes
        return ConditionError(message, self._start + len(self._bytes[:column].decode(errors="ignore")), hint)

    def read(self, node: ast.expr, *, negated: bool = False, depth: int = 0) -> Node:
        if depth > DEPTH_MOST:
            raise self._fail(node, f"more than {DEPTH_MOST} brackets within each other")
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self.read(each, negated=negated, depth=depth + 1) for each in values]
                return every(parts) if isinstance(op, ast.And) is not negated else either(parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.read(operand, negated=not negated, depth=depth + 1)
            case ast.Constant(value=bool(value)):
                return value is not negated
        self._operands += 1
        if self._operands > OPERANDS_MOST:
            raise self._fail(node, f"more than {OPERANDS_MOST} tests", "Make two policies")
        match node:
            case ast.Compare():
                return self._comparison(node, negated)
            case ast.Call(func=ast.Name(id="like"), args=[of, ast.Constant(value=str(glob))], keywords=[]):
                name, group, attribute = self._text_property(of)
                texts = self._texts(name, [glob], node) if name == "address" else Globs([glob])
                return TextTest(name, group, texts, negated, attribute)
            case ast.Call(func=ast.Name(id="metadata"), args=[ast.Constant(value=str(path)) as of], keywords=[]):
                return Says(self._predicate(path, of), negated)
            case ast.Call(func=ast.Name(id=("like" | "metadata") as name)):
                usage = 'like(type, "uav.*")' if name == "like" else "metadata(\"//Area='Kabul'\")"
                raise self._fail(node, f"{name} is written {usage}")
            case ast.Call(func=ast.Name(id=name)):
                raise self._fail(node, f"no function {name!r}", nearest(name, ("like", "metadata")))
            case ast.Name(id=name) if name in NAMES:
                raise self._fail(node, f"{name} is compared with nothing", f"For example {_example(name)}")
            case ast.Name(id=name):
                raise self._fail(node, f"unknown property {name!r}", nearest(name, NAMES))
        raise self._fail(node, f"{_described(node)} is not allowed in a condition")

    def _comparison(self, node: ast.Compare, negated: bool) -> Node:
        sides = [node.left, *node.comparators]
        pairs = [
            self._pair(one, op, other, negated) for one, op, other in zip(sides[:-1], node.ops, sides[1:], strict=True)
        ]
        self._operands += len(pairs) - 1
        return either(pairs) if negated else every(pairs)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr, negated: bool) -> Test:
        comparison = _OPERATORS.get(type(op), "in")
        if isinstance(op, ast.Is | ast.IsNot):
            raise self._fail(left, "`is` is not allowed in a condition", "Write ==")
        if not _is_property(left):
            if not _is_property(right):
                raise self._no_property(left, right)
            if comparison == "in":
                raise self._fail(left, "the property is on the left of `in`")
            left, right, comparison = right, left, _MIRRORED[comparison]
        elif _is_property(right):
            raise self._fail(right, "a property is compared with another one", "Compare it with a text or a quantity")
        if isinstance(left, ast.Name) and left.id in QUANTITIES:
            return self._bound(left, comparison, right, negated)
        name, group, attribute = self._text_property(left)
        if comparison in ("==", "!="):
            texts = self._texts(name, [self._text(right)], right)
            return TextTest(name, group, texts, (comparison == "!=") is not negated, attribute)
        if comparison != "in":
            raise self._fail(
                left, f"{name} is a text: {comparison} has no meaning", "There is ==, !=, in, not in, like"
            )
        if isinstance(right, ast.List | ast.Tuple):
            if not 0 < len(right.elts) <= OPERANDS_MOST:
                raise self._fail(right, f"a list of 1 to {OPERANDS_MOST} texts is meant")
            several = [self._text(each) for each in right.elts]
        elif name == "address":
            several = [self._text(right)]
        else:
            raise self._fail(right, f"{name} in what?", f'Write {name} in ["a", "b"], or like({name}, "a*")')
        return TextTest(
            name, group, self._texts(name, several, right), isinstance(op, ast.NotIn) is not negated, attribute
        )

    def _bound(self, left: ast.Name, comparison: str, right: ast.expr, negated: bool) -> Bound:
        unit, group = QUANTITIES[left.id]
        if comparison == "in":
            raise self._fail(left, f"{left.id} is a quantity: `in` has no meaning", "There is <, <=, >, >=, ==, !=")
        said = right.value if isinstance(right, ast.Constant) else None
        if not isinstance(said, str | int | float) or isinstance(said, bool):  # a truth value is an int
            raise self._fail(right, f"{left.id} is compared with {_described(right)}", f"For example {EXAMPLES[unit]}")
        try:
            limit = amount(said, unit)
        except (ValueError, OverflowError) as exc:
            raise self._fail(right, f"{left.id}: {exc}") from exc
        return Bound(left.id, group, _OPPOSITE[comparison] if negated else comparison, limit)

    def _no_property(self, left: ast.expr, right: ast.expr) -> ConditionError:
        for side in (left, right):
            if isinstance(side, ast.Name):
                return self._fail(side, f"unknown property {side.id!r}", nearest(side.id, NAMES))
            if isinstance(side, ast.Subscript) and isinstance(side.value, ast.Name):
                return self._fail(side, f"{side.value.id} has no [ ]", 'There is attribute["name"]')
            if not isinstance(side, ast.Constant | ast.List | ast.Tuple):
                return self._fail(side, f"{_described(side)} is not allowed in a condition")
        return self._fail(left, "neither side is a property", f"There is {', '.join(NAMES)}")

    def _text_property(self, node: ast.expr) -> tuple[str, Group, str]:
        match node:
            case ast.Name(id=name) if name in TEXTS:
                return name, TEXTS[name], ""
            case ast.Subscript(value=ast.Name(id="attribute"), slice=ast.Constant(value=str(attribute))) if attribute:
                return "attribute", "operation", attribute
            case ast.Subscript(value=ast.Name(id="attribute")):
                raise self._fail(node, "the name of an attribute is a text", 'For example attribute["area"]')
            case ast.Name(id=name) if name in NAMES:
                raise self._fail(node, f"{name} is not text", f"For example {_example(name)}")
            case ast.Name(id=name):
                raise self._fail(node, f"unknown property {name!r}", nearest(name, NAMES))
        raise self._fail(node, f"{_described(node)} is not a property")

    def _text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise self._fail(node, f"a text is meant, not {_described(node)}", 'For example "uav.imagery"')

    def _texts(self, name: str, texts: Sequence[str], node: ast.expr) -> Texts:
        try:
            return Addresses(texts) if name == "address" else Exact(texts)
        except ValueError as exc:
            raise self._fail(node, str(exc), "For example 10.1.0.0/16, 192.0.2.7 or 2001:db8::/32") from exc

    def _predicate(self, path: str, node: ast.expr) -> Predicate:
        try:
            return compile_predicate(path, namespaces=self._namespaces, argument="metadata")
        except PredicateError as exc:
            raise self._fail(node, exc.message, exc.hint) from exc


def _is_property(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return name in TEXTS or name in QUANTITIES
        case ast.Subscript(value=ast.Name(id="attribute")):
            return True
    return False


def _example(name: str) -> str:
    if name in QUANTITIES:
        return f"{name} > {EXAMPLES[QUANTITIES[name][0]].partition(',')[0]}"
    return {"attribute": 'attribute["area"] == "Kabul"', "metadata": "metadata(\"//Area='Kabul'\")"}.get(
        name, f'{"type" if name == "like" else name} == "text"'
    )


def _described(node: ast.AST) -> str:
    names = {
        ast.Call: "a call", ast.Attribute: "a dot", ast.Lambda: "a lambda",
        ast.IfExp: "an if", ast.BinOp: "arithmetic", ast.JoinedStr: "an f-string", ast.Subscript: "a subscript",
        ast.NamedExpr: "an assignment", ast.Constant: "such a value", ast.Name: "a name",
    }  # fmt: skip
    return names.get(type(node), type(node).__name__)


def every(parts: Sequence[Node]) -> Node:
    """All hold, made simpler where one is decided."""
    left = [part for part in parts if part is not True]
    if any(part is False for part in left):
        return False
    return All(tuple(left)) if len(left) > 1 else left[0] if left else True


def either(parts: Sequence[Node]) -> Node:
    """One holds, made simpler where one is decided."""
    left = [part for part in parts if part is not False]
    if any(part is True for part in left):
        return True
    return Some(tuple(left)) if len(left) > 1 else left[0] if left else False


def replaced(node: Node, decide: Callable[[Test], Node]) -> Node:
    """The tree with what `decide` says of each test in its place."""
    if isinstance(node, bool):
        return node
    if isinstance(node, All | Some):
        parts = [replaced(part, decide) for part in node.parts]
        return every(parts) if isinstance(node, All) else either(parts)
    return decide(node)


def reduced(node: Node, facts: CallerFacts) -> Node:
    """Remainder of it when the contract is known: tests of objects and resources, or True, or False."""

    def decide(test: Test) -> Node:
        if isinstance(test, TextTest) and test.group != "information":
            return test.of_facts(facts)
        return test

    return replaced(node, decide)


def about_resources(node: Node, decide: Callable[[Bound], bool]) -> Node:
    """Remainder of it when `decide` has said which tests of resources hold."""
    return replaced(node, lambda test: decide(test) if isinstance(test, Bound) and test.group == "resource" else test)


def holds(node: Node, known: KnownValues) -> bool:
    """Whether it holds for an object, as far as that is known; nothing else may be left in it."""
    if isinstance(node, bool):
        return node
    if isinstance(node, All):
        return all(holds(part, known) for part in node.parts)
    if isinstance(node, Some):
        return any(holds(part, known) for part in node.parts)
    if isinstance(node, Says):
        return known.says(node.predicate) is (not node.negated)
    if isinstance(node, TextTest):
        return known.payload_type != "" and node.texts.any_of((known.payload_type,)) is not node.negated
    return known.size >= 0 and node.of(known.size)


def tests_of(node: Node) -> Iterator[Test]:
    """All tests in it."""
    if isinstance(node, All | Some):
        for part in node.parts:
            yield from tests_of(part)
    elif not isinstance(node, bool):
        yield node


def restricts(node: Node) -> frozenset[str]:
    """The properties that it is about, whichever way it comes to hold: of an `or`, those on all its sides."""
    if isinstance(node, All):
        return frozenset().union(*map(restricts, node.parts))
    if isinstance(node, Some):
        return frozenset.intersection(*map(restricts, node.parts))
    return frozenset() if isinstance(node, bool) else frozenset([node.name])


def shown_node(node: Node) -> str:
    """For people."""
    if isinstance(node, bool):
        return str(node)
    if isinstance(node, All | Some):
        word = " and " if isinstance(node, All) else " or "
        return word.join(f"({shown_node(p)})" if isinstance(p, All | Some) else shown_node(p) for p in node.parts)
    if isinstance(node, Says):
        return f"{'not ' * node.negated}metadata({node.predicate.expression!r})"
    if isinstance(node, Bound):
        return f"{node.name} {node.comparison} {with_unit(node.limit, QUANTITIES[node.name][0])}"
    name = f"attribute[{node.attribute!r}]" if node.attribute else node.name
    return f"{name} {'not ' * node.negated}in {list(node.texts.said)!r}"
