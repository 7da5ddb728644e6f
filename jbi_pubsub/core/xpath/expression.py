"""The grammar of XPath 1.0: text to tree, with everything checked that can be known without a document.

Rules (XPath 1.0 sections 2 to 4; where libxml2 differs, libxml2, because it evaluates):
- Lexical structure of section 3.7, with libxml2's exponents in numbers (`1e3`, and `1e` for 1).
- Functions are the core library of section 4 with its numbers of arguments; there are no variables and no
  extension functions. Prefixes must be bound; an unprefixed name is in no namespace.
- The tree is data; nothing of the text is ever executed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from jbi_pubsub.core.errors import PredicateError

MAX_LENGTH: Final = 8192
"""Characters of an expression. The paper's rectangle has 340; protects parse time and memory."""

MAX_NESTING: Final = 40
"""Parentheses, brackets and signs within each other. libxml2 stops at 5000; here a level costs eight Python frames."""

MAX_JOINED: Final = 8
"""Arguments of concat() that are no constants, in a whole expression: each may be as long as the document."""

MAX_COST: Final = 4
"""Highest accepted degree of the running time in the number of nodes of a document; see `cost`."""

_NAME: Final = r"[^\W\d][\w.\-\u00b7]*"
_TOKEN: Final = re.compile(
    r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]*)?)"  # number
    r"|(\"[^\"]*\"|'[^']*')"  # literal
    rf"|({_NAME}(?::(?!:)(?:{_NAME}|\*))?)"  # name
    r"|(\.\.|::|//|!=|<=|>=|[()\[\].@,/|+\-=<>*$])"  # symbol
    r"|([^ \t\r\n])"  # nothing that XPath knows
)
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What is no XML character (XML 1.0 production 2) can't occur in a document, and lxml refuses it in an expression."""

_OPERAND_FOLLOWS: Final = frozenset(
    ["@", "::", "(", "[", ",", "/", "//", "|", "+", "-", "=", "!=", "<", "<=", ">", ">="]
)
"""Section 3.7: after one of these (or an operator name, or at the start) `*` and a name are no operators."""

_POWER: Final[Mapping[str, int]] = {
    "or": 1,
    "and": 2,
    "=": 3,
    "!=": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "multiply": 6,
    "div": 6,
    "mod": 6,
    "|": 8,
}
"""Binding power, section 3.1 to 3.5; unary minus (7) binds less than a union."""

_OPERATOR_NAMES: Final = frozenset(["and", "or", "div", "mod"])

_UNION_POWER: Final = 8

AXES: Final = frozenset(
    [
        "ancestor",
        "ancestor-or-self",
        "attribute",
        "child",
        "descendant",
        "descendant-or-self",
        "following",
        "following-sibling",
        "namespace",
        "parent",
        "preceding",
        "preceding-sibling",
        "self",
    ]
)
_CHEAP_AXES: Final = frozenset(["child", "attribute", "self", "namespace"])
_NODE_TYPES: Final = frozenset(["comment", "text", "processing-instruction", "node"])

FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "last": (0, 0),
    "position": (0, 0),
    "count": (1, 1),
    "id": (1, 1),
    "local-name": (0, 1),
    "namespace-uri": (0, 1),
    "name": (0, 1),
    "string": (0, 1),
    "concat": (2, 1000),
    "starts-with": (2, 2),
    "contains": (2, 2),
    "substring-before": (2, 2),
    "substring-after": (2, 2),
    "substring": (2, 3),
    "string-length": (0, 1),
    "normalize-space": (0, 1),
    "translate": (3, 3),
    "boolean": (1, 1),
    "not": (1, 1),
    "true": (0, 0),
    "false": (0, 0),
    "lang": (1, 1),
    "number": (0, 1),
    "sum": (1, 1),
    "floor": (1, 1),
    "ceiling": (1, 1),
    "round": (1, 1),
}
"""The core function library, section 4: least and greatest number of arguments (concat: as many as fit)."""

BOOLEAN_FUNCTIONS: Final = frozenset(["not", "boolean", "true", "false", "contains", "starts-with", "lang"])
"""Those whose value is a boolean."""

_NODE_SET_ARGUMENT: Final = frozenset(["count", "sum", "local-name", "namespace-uri", "name"])

XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
"""The prefix `xml` is bound to it everywhere (Namespaces in XML 1.0, section 3)."""


class Literal(msgspec.Struct, frozen=True):
    """A quoted string; `hole` counts the literals and numbers of an expression from 0, left to right."""

    text: str
    hole: int


class Number(msgspec.Struct, frozen=True):
    """A number as written, without a sign; `hole` as in Literal."""

    text: str
    hole: int


class Negate(msgspec.Struct, frozen=True):
    """Unary minus."""

    operand: Expression


class Chain(msgspec.Struct, frozen=True):
    """Operands joined by operators of one binding power, left to right: `a or b or c`, `a + b - c`."""

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


class Call(msgspec.Struct, frozen=True):
    """A call of a core function."""

    name: str
    arguments: tuple[Expression, ...]


class Step(msgspec.Struct, frozen=True):
    """A location step. `test` is a name as `{uri}local` or `local`, `*`, `{uri}*`, or a node type with brackets."""

    axis: str
    test: str
    predicates: tuple[Expression, ...] = ()


class Path(msgspec.Struct, frozen=True):
    """A location path. `start` is "/" (the document), "" (the context node) or an expression."""

    start: Expression | str
    steps: tuple[Step, ...]


class Filter(msgspec.Struct, frozen=True):
    """A primary expression with predicates: `(//a)[1]`."""

    primary: Expression
    predicates: tuple[Expression, ...]


Expression = Literal | Number | Negate | Chain | Call | Path | Filter

CONSTANTS: Final = (Literal, Number)
PATHS: Final = (Path, Filter)

_SELF: Final = Step("self", "node()")
_PARENT: Final = Step("parent", "node()")
_ANY_DEPTH: Final = Step("descendant-or-self", "node()")


def check_text(expression: str, argument: str) -> None:
    """Refuse with PredicateError what is too long or holds characters that XML does not have."""
    if not isinstance(expression, str):
        raise PredicateError(f"{argument} must be text, not {type(expression).__name__}", argument=argument)
    if len(expression) > MAX_LENGTH:
        raise PredicateError(
            f"{argument} has {len(expression)} characters, the limit is {MAX_LENGTH}",
            hint="Split it into several subscriptions",
            argument=argument,
            expression=expression[:200] + "...",
            position=MAX_LENGTH,
        )
    illegal = _ILLEGAL.search(expression)
    if illegal:
        raise PredicateError(
            f"{argument} holds {illegal.group()!r} at position {illegal.start()}, which is no XML character",
            hint="Remove it",
            argument=argument,
            expression=expression,
            position=illegal.start(),
        )


def check_namespaces(namespaces: Mapping[str, str], expression: str, argument: str) -> None:
    """Refuse with PredicateError an empty prefix or URI: XPath 1.0 has no default namespace."""
    for prefix, uri in namespaces.items():
        if not prefix or not uri or _ILLEGAL.search(uri) or not re.fullmatch(_NAME, prefix):
            raise PredicateError(
                f"{argument}: the prefix {prefix!r} can't be bound to {uri!r}",
                hint="Bind a non-empty prefix to a non-empty URI; unprefixed names are in no namespace",
                argument=argument,
                expression=expression,
                position=0,
            )


def parse(expression: str, namespaces: Mapping[str, str], argument: str) -> tuple[Expression, list[str], int]:
    """The tree of `expression`, its literals and numbers as written, and its `cost`.

    Raises PredicateError with the position (in characters, from 0) of the fault.
    """
    parser = _Parser(expression, namespaces, argument)
    tree = parser.tree()
    return tree, parser.holes, parser.checked_cost(tree)


class _Parser:
    def __init__(self, text: str, namespaces: Mapping[str, str], argument: str) -> None:
        self._text = text
        self._namespaces = namespaces
        self._argument = argument
        self.holes: list[str] = []
        self._depth = 0
        self._joined = 0
        self._at = 0
        self._kinds: list[str] = []
        self._lexemes: list[str] = []
        self._powers: list[int] = []
        self._scan()

    def tree(self) -> Expression:
        tree = self._expression(1)
        if self._kinds[self._at] != "end":
            raise self._fault("unexpected " + repr(self._lexemes[self._at]))
        return tree

    def checked_cost(self, tree: Expression) -> int:
        degree = cost(tree)
        if degree > MAX_COST:
            raise self._fault(
                f"may take time with power {degree} of the document's size, the limit is {MAX_COST}",
                hint="Replace // and the axes ancestor, following, preceding by paths of child steps",
                place=0,
            )
        return degree

    def _scan(self) -> None:
        """Cut the text into tokens. Operators become kind "operator" by the rule of section 3.7."""
        previous = ""
        kinds, lexemes, powers = self._kinds, self._lexemes, self._powers
        for number, literal, name, symbol, stranger in _TOKEN.findall(self._text):
            power = 0
            if name:
                kind, lexeme = "name", name
                if name in _OPERATOR_NAMES and previous and previous not in _OPERAND_FOLLOWS:
                    kind, power = "operator", _POWER[name]
            elif symbol:
                kind, lexeme = "symbol", symbol
                if symbol == "*":
                    if previous and previous not in _OPERAND_FOLLOWS:
                        kind, lexeme, power = "operator", "multiply", _POWER["multiply"]
                elif symbol in _POWER:
                    kind, power = "operator", _POWER[symbol]
            elif number:
                kind, lexeme = "number", number
            elif literal:
                kind, lexeme = "literal", literal
            else:
                raise self._lexical_fault(stranger)
            kinds.append(kind)
            lexemes.append(lexeme)
            powers.append(power)
            previous = "(" if power else lexeme
        kinds.append("end")
        lexemes.append("")
        powers.append(0)

    def _expression(self, power: int) -> Expression:
        left = self._unary()
        powers = self._powers
        while True:
            strength = powers[self._at]
            if strength < power:
                return left
            operators: list[str] = []
            operands = [left]
            while powers[self._at] == strength:
                operators.append(self._lexemes[self._at])
                self._at += 1
                operands.append(self._expression(strength + 1))
            left = Chain(tuple(operators), tuple(operands))
            if strength == _UNION_POWER and any(isinstance(o, (Literal, Number, Negate, Chain)) for o in operands):
                raise self._fault("a union joins node-sets only")

    def _unary(self) -> Expression:
        if self._kinds[self._at] != "operator" or self._lexemes[self._at] != "-":
            return self._path()
        self._at += 1
        self._enter()
        operand = self._unary() if self._lexemes[self._at] == "-" else self._expression(_UNION_POWER)
        self._depth -= 1
        return Negate(operand)

    def _path(self) -> Expression:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if kind == "symbol" and lexeme in ("/", "//"):
            self._at += 1
            if lexeme == "//":
                return Path("/", (_ANY_DEPTH, *self._steps()))
            return Path("/", self._steps() if self._step_begins() else ())
        if self._primary_begins(kind, lexeme):
            return self._filter_path()
        return Path("", self._steps())

    def _primary_begins(self, kind: str, lexeme: str) -> bool:
        if kind in ("number", "literal"):
            return True
        if kind == "symbol":
            return lexeme == "(" or lexeme == "$"
        return kind == "name" and self._lexemes[self._at + 1] == "(" and lexeme not in _NODE_TYPES

    def _filter_path(self) -> Expression:
        primary = self._primary()
        predicates = self._predicates()
        if predicates:
            self._must_select(primary)
            primary = Filter(primary, predicates)
        if self._kinds[self._at] != "symbol" or self._lexemes[self._at] not in ("/", "//"):
            return primary
        self._must_select(primary)
        any_depth = (_ANY_DEPTH,) if self._lexemes[self._at] == "//" else ()
        self._at += 1
        return Path(primary, (*any_depth, *self._steps()))

    def _must_select(self, primary: Expression) -> None:
        if not selects(primary):
            raise self._fault("a predicate or a further step needs a node-set before it")

    def _primary(self) -> Expression:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        self._at += 1
        if kind == "number":
            self.holes.append(lexeme)
            return Number(lexeme, len(self.holes) - 1)
        if kind == "literal":
            self.holes.append(lexeme)
            return Literal(lexeme[1:-1], len(self.holes) - 1)
        if lexeme == "$":
            raise self._fault("there are no variables here", hint="Write the value itself", place=self._at - 1)
        if lexeme == "(":
            self._enter()
            inner = self._expression(1)
            self._depth -= 1
            self._take(")")
            return inner
        return self._call(lexeme)

    def _call(self, name: str) -> Call:
        place = self._at - 1
        arity = FUNCTIONS.get(name)
        if arity is None:
            raise self._fault(
                f"unknown function {name}()", hint="The functions are those of XPath 1.0, section 4", place=place
            )
        self._take("(")
        self._enter()
        arguments: list[Expression] = []
        if self._lexemes[self._at] != ")" or self._kinds[self._at] == "literal":
            arguments.append(self._expression(1))
            while self._lexemes[self._at] == "," and self._kinds[self._at] == "symbol":
                self._at += 1
                arguments.append(self._expression(1))
        self._depth -= 1
        self._take(")")
        if not arity[0] <= len(arguments) <= arity[1]:
            wanted = str(arity[0]) if arity[0] == arity[1] else f"{arity[0]} to {arity[1]}"
            raise self._fault(f"{name}() takes {wanted} arguments, not {len(arguments)}", place=place)
        if name in _NODE_SET_ARGUMENT and arguments and not selects(arguments[0]):
            raise self._fault(f"{name}() takes a node-set", place=place)
        if name == "concat":
            self._joined += sum(not isinstance(a, CONSTANTS) for a in arguments)
            if self._joined > MAX_JOINED:
                raise self._fault(f"joins more than {MAX_JOINED} texts of the document", place=place)
        return Call(name, tuple(arguments))

    def _steps(self) -> tuple[Step, ...]:
        steps = [self._step()]
        while self._kinds[self._at] == "symbol" and self._lexemes[self._at] in ("/", "//"):
            if self._lexemes[self._at] == "//":
                steps.append(_ANY_DEPTH)
            self._at += 1
            steps.append(self._step())
        return tuple(steps)

    def _step_begins(self) -> bool:
        return self._kinds[self._at] == "name" or (
            self._kinds[self._at] == "symbol" and self._lexemes[self._at] in ("*", "@", ".", "..")
        )

    def _step(self) -> Step:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if not self._step_begins():
            raise self._fault("an operand is missing" if kind == "end" else f"unexpected {lexeme!r}")
        if lexeme in (".", ".."):
            self._at += 1
            return _SELF if lexeme == "." else _PARENT
        axis = "child"
        if lexeme == "@":
            axis = "attribute"
            self._at += 1
        elif self._lexemes[self._at + 1] == "::":
            axis = lexeme
            if axis not in AXES:
                raise self._fault(f"unknown axis {axis}")
            self._at += 2
        test = self._node_test()
        return Step(axis, test, self._predicates())

    def _node_test(self) -> str:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if kind != "name" and not (kind == "symbol" and lexeme == "*"):
            raise self._fault("a name is missing")
        self._at += 1
        if kind == "name" and lexeme in _NODE_TYPES and self._lexemes[self._at] == "(":
            return self._node_type(lexeme)
        prefix, colon, local = lexeme.partition(":")
        if not colon:
            return lexeme
        uri = XML_NAMESPACE if prefix == "xml" else self._namespaces.get(prefix)
        if uri is None:
            raise self._fault(
                f"the prefix {prefix!r} is not bound",
                hint="Give its namespace with the subscription, for example namespaces={'" + prefix + "': 'urn:...'}",
                place=self._at - 1,
            )
        return f"{{{uri}}}{local}"

    def _node_type(self, name: str) -> str:
        self._take("(")
        target = ""
        if name == "processing-instruction" and self._kinds[self._at] == "literal":
            target = self._lexemes[self._at]
            self.holes.append(target)
            self._at += 1
        self._take(")")
        return f"{name}({target})"

    def _predicates(self) -> tuple[Expression, ...]:
        if self._lexemes[self._at] != "[":
            return ()
        found: list[Expression] = []
        while self._kinds[self._at] == "symbol" and self._lexemes[self._at] == "[":
            self._at += 1
            self._enter()
            found.append(self._expression(1))
            self._depth -= 1
            self._take("]")
        return tuple(found)

    def _take(self, lexeme: str) -> None:
        if self._kinds[self._at] != "symbol" or self._lexemes[self._at] != lexeme:
            raise self._fault(f"{lexeme!r} is missing")
        self._at += 1

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._fault(f"is nested deeper than {MAX_NESTING}", hint="Write it flatter")

    def _fault(self, what: str, *, hint: str = "", place: int | None = None) -> PredicateError:
        position = self._position(self._at if place is None else place)
        return PredicateError(
            f"{self._argument}: {what}, at position {position} of {around(self._text, position)}",
            hint=hint,
            argument=self._argument,
            expression=self._text,
            position=position,
        )

    def _lexical_fault(self, stranger: str) -> PredicateError:
        what = "a quoted text is not closed" if stranger in "'\"" else f"unexpected character {stranger!r}"
        return self._fault(what, place=len(self._lexemes))

    def _position(self, number: int) -> int:
        """Where token `number` begins; found again only when somebody wants to know."""
        found = next(itertools.islice(_TOKEN.finditer(self._text), number, None), None)
        return found.start() if found else len(self._text)


def selects(expression: Expression) -> bool:
    """Whether the value is a node-set (XPath 1.0 has no other way than these to make one)."""
    if isinstance(expression, Chain):
        return expression.operators[0] == "|"
    return isinstance(expression, PATHS) or (isinstance(expression, Call) and expression.name == "id")


def is_boolean(expression: Expression) -> bool:
    """Whether the value is a boolean whatever the document."""
    if isinstance(expression, Chain):
        return expression.operators[0] in ("and", "or", "=", "!=", "<", "<=", ">", ">=")
    return isinstance(expression, Call) and expression.name in BOOLEAN_FUNCTIONS


def cost(expression: Expression) -> int:
    """The degree d such that evaluation takes about n**d at most, for a document of n nodes.

    Child steps visit every node once (0 more). One more for each further step that may visit a node again, for each
    comparison or union of two node-sets, and for what is evaluated once per node and reads beyond its children.
    """
    if isinstance(expression, Path):
        return _cost_of_path(expression)
    if isinstance(expression, CONSTANTS):
        return 0
    if isinstance(expression, Negate):
        return cost(expression.operand)
    if isinstance(expression, Call):
        return max((cost(a) for a in expression.arguments), default=0) + (expression.name in ("translate", "id"))
    if isinstance(expression, Filter):
        return max(cost(expression.primary), _cost_inside(expression.predicates) + 1)
    degrees = [cost(o) for o in expression.operands]
    if expression.operators[0] in ("and", "or") or sum(map(selects, expression.operands)) < 2:
        return max(degrees)
    return sum(sorted(degrees)[-2:])  # each node of one set is compared with each of the other, in a union as well


def _cost_of_path(path: Path) -> int:
    start = 0 if isinstance(path.start, str) else cost(path.start)
    degree = max(start, 1)
    wide = start > 0
    for step in path.steps:
        if step.axis not in _CHEAP_AXES:
            degree += wide  # the first wide step visits each node once, a further one again for each of them
            wide = True
        if step.predicates:
            degree += _cost_inside(step.predicates)
    return degree


def _cost_inside(predicates: tuple[Expression, ...]) -> int:
    """What evaluating `predicates` for each node adds: nothing for constants and for plain steps downwards."""
    return max(0 if _reads_little(p) else cost(p) for p in predicates)


def _reads_little(expression: Expression) -> bool:
    if isinstance(expression, Path):
        return expression.start == "" and all(
            s.axis in _CHEAP_AXES and all(_reads_little(p) for p in s.predicates) for s in expression.steps
        )
    if isinstance(expression, Chain):
        if sum(selects(o) for o in expression.operands) > 1 and expression.operators[0] not in ("and", "or"):
            return False
        return all(_reads_little(o) for o in expression.operands)
    if isinstance(expression, Call):
        return all(_reads_little(a) for a in expression.arguments)
    if isinstance(expression, Negate):
        return _reads_little(expression.operand)
    return isinstance(expression, CONSTANTS)


def around(expression: str, position: int) -> str:
    """The part of the expression around the position, for people."""
    start = max(0, position - 40)
    part = expression[start : position + 40]
    return f"{'...' if start else ''}{part}{'...' if len(expression) > position + 40 else ''}"
