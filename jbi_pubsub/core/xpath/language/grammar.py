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
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import msgspec

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xml import NAME_LETTER, NAME_START

MAX_LENGTH: Final = 8192
"""Characters of an expression. The paper's rectangle has 340; protects parse time and memory."""

MAX_NESTING: Final = 40
"""Parentheses, brackets and signs within each other. libxml2 stops at 5000; here a level costs eight Python frames."""

MAX_JOINED: Final = 8
"""Arguments of concat() that are no constants, in a whole expression: each may be as long as the document. Bounds
memory; time is bounded by cost.py."""

_BLANKS: Final = " \t\r\n"
_NAME: Final = rf"[{NAME_START}][{NAME_LETTER}]*"
TOKEN: Final = re.compile(
    r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]*)?)"  # number
    r"|(\"[^\"]*\"|'[^']*')"  # literal
    rf"|({_NAME}(?::(?!:)(?:{_NAME}|\*))?)"  # name
    r"|(\.\.|::|//|!=|<=|>=|[()\[\].@,/|+\-=<>*$])"  # symbol
    r"|([^ \t\r\n])"  # nothing that XPath knows
)

_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are none of XML (XML 1.0 production 2): a document can't have them, and lxml refuses them."""

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
_NODE_TYPES: Final = frozenset(["comment", "text", "processing-instruction", "node"])
_BIND: Final = (
    "Give its namespace, for example namespaces={{'{prefix}': 'urn:...'}}, or write "
    "*[local-name()='{local}' and namespace-uri()='urn:...']"
)

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


class FunctionCall(msgspec.Struct, frozen=True):
    """A call of a core function."""

    name: str
    arguments: tuple[Expression, ...]


class LocationStep(msgspec.Struct, frozen=True):
    """A location step. `test` is a name as `{uri}local` or `local`, `*`, `{uri}*`, or a node type with brackets."""

    axis: str
    test: str
    predicates: tuple[Expression, ...] = ()


class Path(msgspec.Struct, frozen=True):
    """A location path. `start` is "/" (the document), "" (the context node) or an expression."""

    start: Expression | str
    steps: tuple[LocationStep, ...]


class Filter(msgspec.Struct, frozen=True):
    """A primary expression with predicates: `(//a)[1]`."""

    primary: Expression
    predicates: tuple[Expression, ...]


Expression = Literal | Number | Negate | Chain | FunctionCall | Path | Filter

CONSTANTS: Final = (Literal, Number)
PATHS: Final = (Path, Filter)

SELF: Final = LocationStep("self", "node()")
_PARENT: Final = LocationStep("parent", "node()")
_ANY_DEPTH: Final = LocationStep("descendant-or-self", "node()")


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
            f"{argument} holds {illegal.group()!r} at position {illegal.start()}, which is not an XML character",
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


def parse(expression: str, namespaces: Mapping[str, str], argument: str) -> Parsed:
    """Raises PredicateError with the position (in characters, from 0) of the fault."""
    return Parsed(expression, namespaces, argument)


class Parsed:
    """An expression that was read: `tree`; its literals and numbers as written, left to right (`holes`); what stands
    `between` these in the text that lxml is to evaluate, if that is not the expression as written."""

    def __init__(self, text: str, namespaces: Mapping[str, str], argument: str) -> None:
        self._text = text
        self._namespaces = namespaces
        self._argument = argument
        self.holes: list[str] = []
        self._depth = 0
        self._joined = 0
        self._spans: dict[int, tuple[int, int]] = {}
        self._shortened: list[int] = []
        self._hole_places: list[int] = []
        self._at = 0
        self._kinds: list[str] = []
        self._lexemes: list[str] = []
        self._powers: list[int] = []
        self._scan()
        self.tree: Final = self._expression(1)
        if self._kinds[self._at] != "end":
            raise self._fault("unexpected " + repr(self._lexemes[self._at]))
        self.between: Final = self.pieces_of(None)[0] if self._shortened else ()

    def pieces_of(self, part: Expression | None) -> tuple[tuple[str, ...], range]:
        """Text for lxml of a part, or of the whole, between its holes, and their numbers. `//name[...]` without a
        position is `/descendant::name[...]` there: libxml2 then visits elements alone, in document order, with nothing
        to sort."""
        begin, end = self._spans[id(part)] if part is not None else (0, len(self._lexemes))
        written = zip(self._lexemes[begin:end], self._powers[begin:end], strict=True)
        lexemes = ["*" if power and lexeme == "multiply" else lexeme for lexeme, power in written]
        for at in (divider - begin for divider in self._shortened if begin <= divider < end):
            lexemes[at] = "/descendant::"
            if lexemes[at + 1 : at + 3] == ["child", "::"]:
                lexemes[at + 1 : at + 3] = ["", ""]
        holes = range(bisect_left(self._hole_places, begin), bisect_left(self._hole_places, end))
        places = [place - begin for place in self._hole_places[holes.start : holes.stop]]
        cuts = zip([0, *(place + 1 for place in places)], [*places, end - begin], strict=True)
        return tuple(" ".join(["", *lexemes[a:b], ""]) for a, b in cuts), holes

    def text_of(self, part: Expression) -> str:
        """A part of the tree, as it was written."""
        begin, end = self._spans[id(part)]
        return self._text[self._position(begin) : self._position(end)].rstrip(_BLANKS)

    def _scan(self) -> None:
        """Cut the text into tokens. Operators become kind "operator" by the rule of section 3.7."""
        previous = ""
        kinds, lexemes, powers = self._kinds, self._lexemes, self._powers
        for number, literal, name, symbol, stranger in TOKEN.findall(self._text):
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
                what = f"unexpected character {stranger!r}" if stranger not in "'\"" else "a quoted text is not closed"
                raise self._fault(what, place=len(lexemes))
            kinds.append(kind)
            lexemes.append(lexeme)
            powers.append(power)
            previous = "(" if power else lexeme
        kinds.append("end")
        lexemes.append("")
        powers.append(0)

    def _expression(self, power: int) -> Expression:
        begin = self._at
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
            left = self._spanned(begin, Chain(tuple(operators), tuple(operands)))
            if strength == _UNION_POWER and not all(map(selects, operands)):
                raise self._fault("a union joins node-sets only")

    def _spanned(self, begin: int, part: Expression) -> Expression:
        self._spans[id(part)] = begin, self._at
        return part

    def _unary(self) -> Expression:
        begin = self._at
        if self._lexemes[begin] != "-":
            return self._spanned(begin, self._path())
        self._at += 1
        self._enter()
        operand = self._unary() if self._lexemes[self._at] == "-" else self._expression(_UNION_POWER)
        self._depth -= 1
        return self._spanned(begin, Negate(operand))

    def _path(self) -> Expression:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if lexeme in ("/", "//"):
            self._at += 1
            if lexeme == "//":
                return Path("/", self._steps(from_any_depth=True))
            return Path("/", self._steps() if self._step_begins() else ())
        is_call = kind == "name" and self._lexemes[self._at + 1] == "(" and lexeme not in _NODE_TYPES
        if is_call or kind in ("number", "literal") or lexeme in ("(", "$"):
            return self._filter_path()
        return Path("", self._steps())

    def _filter_path(self) -> Expression:
        primary = self._primary()
        predicates = self._predicates()
        if predicates:
            self._must_select(primary)
            primary = Filter(primary, predicates)
        if self._lexemes[self._at] not in ("/", "//"):
            return primary
        self._must_select(primary)
        self._at += 1
        return Path(primary, self._steps(from_any_depth=self._lexemes[self._at - 1] == "//"))

    def _must_select(self, primary: Expression) -> None:
        if not selects(primary):
            raise self._fault("a predicate or a further step needs a node-set before it")

    def _primary(self) -> Expression:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        self._at += 1
        if kind == "number":
            return Number(lexeme, self._hole(lexeme))
        if kind == "literal":
            return Literal(lexeme[1:-1], self._hole(lexeme))
        if lexeme == "$":
            raise self._fault("there are no variables here", hint="Write the value itself", place=self._at - 1)
        if lexeme == "(":
            self._enter()
            inner = self._expression(1)
            self._depth -= 1
            self._take(")")
            return inner
        return self._call(lexeme)

    def _hole(self, lexeme: str) -> int:
        """The number of the hole that the token just taken makes."""
        self.holes.append(lexeme)
        self._hole_places.append(self._at - 1)
        return len(self.holes) - 1

    def _call(self, name: str) -> FunctionCall:
        place = self._at - 1
        arity = FUNCTIONS.get(name)
        if arity is None:
            raise self._fault(
                f"unknown function {name}()", hint="The functions are those of XPath 1.0, section 4", place=place
            )
        self._take("(")
        self._enter()
        arguments: list[Expression] = []
        if self._lexemes[self._at] != ")":
            arguments.append(self._expression(1))
            while self._lexemes[self._at] == ",":
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
        return FunctionCall(name, tuple(arguments))

    def _steps(self, *, from_any_depth: bool = False) -> tuple[LocationStep, ...]:
        """Steps divided by / and //; `from_any_depth`: a // stands before the first."""
        steps = list(self._step_at_any_depth()) if from_any_depth else [self._step()]
        while self._lexemes[self._at] in ("/", "//"):
            self._at += 1
            steps += self._step_at_any_depth() if self._lexemes[self._at - 1] == "//" else (self._step(),)
        return tuple(steps)

    def _step_at_any_depth(self) -> tuple[LocationStep, ...]:
        divider = self._at - 1
        step = self._step()
        if step.axis != "child" or not all(map(_is_no_position, step.predicates)):
            return _ANY_DEPTH, step
        self._shortened.append(divider)
        return (LocationStep("descendant", step.test, step.predicates),)

    def _step_begins(self) -> bool:
        return self._kinds[self._at] == "name" or self._lexemes[self._at] in ("*", "@", ".", "..")

    def _step(self) -> LocationStep:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if not self._step_begins():
            raise self._fault("an operand is missing" if kind == "end" else f"unexpected {lexeme!r}")
        if lexeme in (".", ".."):
            self._at += 1
            return SELF if lexeme == "." else _PARENT
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
        return LocationStep(axis, test, self._predicates())

    def _node_test(self) -> str:
        kind, lexeme = self._kinds[self._at], self._lexemes[self._at]
        if kind != "name" and lexeme != "*":
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
                hint=_BIND.format(prefix=prefix, local=local),
                place=self._at - 1,
            )
        return f"{{{uri}}}{local}"

    def _node_type(self, name: str) -> str:
        self._take("(")
        target = ""
        if name == "processing-instruction" and self._kinds[self._at] == "literal":
            target = self._lexemes[self._at]
            self._at += 1
            self._hole(target)
        self._take(")")
        return f"{name}({target})"

    def _predicates(self) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while self._lexemes[self._at] == "[":
            self._at += 1
            self._enter()
            found.append(self._expression(1))
            self._depth -= 1
            self._take("]")
        return tuple(found)

    def _take(self, lexeme: str) -> None:
        if self._lexemes[self._at] != lexeme:
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

    def _position(self, number: int) -> int:
        """Where token `number` begins; found again only when somebody wants to know."""
        found = next(itertools.islice(TOKEN.finditer(self._text), number, None), None)
        return found.start() if found else len(self._text)


def selects(expression: Expression) -> bool:
    """Whether the value is a node-set (XPath 1.0 has no other way than these to make one)."""
    if isinstance(expression, Chain):
        return expression.operators[0] == "|"
    return isinstance(expression, PATHS) or (isinstance(expression, FunctionCall) and expression.name == "id")


def is_constant(expression: Expression) -> bool:
    """Whether it is a literal, or a number with a sign or without."""
    unsigned = expression.operand if isinstance(expression, Negate) else expression
    return isinstance(unsigned, Number) or isinstance(expression, Literal)


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """The operands or arguments that its value is made of; what stands in a path are no parts."""
    if isinstance(expression, Chain):
        return expression.operands
    if isinstance(expression, FunctionCall):
        return expression.arguments
    return (expression.operand,) if isinstance(expression, Negate) else ()


def is_boolean(expression: Expression) -> bool:
    """Whether the value is a boolean whatever the document."""
    if isinstance(expression, Chain):
        return expression.operators[0] in ("and", "or", "=", "!=", "<", "<=", ">", ">=")
    return isinstance(expression, FunctionCall) and expression.name in BOOLEAN_FUNCTIONS


def _is_no_position(predicate: Expression) -> bool:
    """Whether a condition of a step is the same whatever position the node has: no number, and it asks for none."""
    return (selects(predicate) or is_boolean(predicate) or isinstance(predicate, Literal)) and not asks_position(
        predicate
    )


def asks_position(expression: Expression, *, inside: bool = True) -> bool:
    """Whether position() or last() occur, about the expression's own context node or about one `inside`."""
    if isinstance(expression, FunctionCall) and expression.name in ("position", "last"):
        return True
    asked = [*parts_of(expression)]
    if isinstance(expression, Path):
        asked += [] if isinstance(expression.start, str) else [expression.start]
        asked += [p for step in expression.steps for p in step.predicates if inside]
    elif isinstance(expression, Filter):
        asked += [expression.primary, *(expression.predicates if inside else ())]
    return any(asks_position(each, inside=inside) for each in asked)


def around(expression: str, position: int) -> str:
    """The part of the expression around the position, for people."""
    start = max(0, position - 40)
    part = expression[start : position + 40]
    return f"{'...' if start else ''}{part}{'...' if len(expression) > position + 40 else ''}"
