"""The constraint language's grammar (OMG Trading Object Service 1.0, annex B): text to a tree, with positions. Pure.

    expression  or > and > == != < <= > >= (one) > in > ~ > + - > * / > not > primary     from loose to tight
    primary     ( expression ) | exist property | property | number | - number | 'text' | TRUE | FALSE
    property    a letter, then letters, digits and _; $domain, $type, $name, $qos.x of a structured event
    text        in single quotes; \\' and \\\\ stand for ' and \\

Chains of one precedence are one node, and what is inside each other is bounded, so that no text makes a tree that is
deep.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import PredicateError

LENGTH_MOST: Final = 32_768
"""Characters of a constraint."""
DEPTH_MOST: Final = 32
"""Parentheses, and `not`, inside each other. A level takes eleven Python frames; XPath has 40 levels."""
WORDS: Final = ("or", "and", "in", "not", "exist", "TRUE", "FALSE")
"""Words that are no names of properties."""
COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<name>\$?[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)?)
    |'(?P<text>(?:[^'\\]|\\['\\])*)'
    |(?P<sign>==|!=|<=|>=|[<>~+\-*/()]))""",
    re.VERBOSE | re.ASCII,
)
_HEADER: Final = re.compile(r"\$(domain|type|name|qos\.[A-Za-z][A-Za-z0-9_]*)")

Scalar = str | float | bool


class ConstantTerm(msgspec.Struct, frozen=True):
    """A text, number or truth value."""

    value: Scalar


class PropertyTerm(msgspec.Struct, frozen=True):
    """The value of a property."""

    name: str


class Exists(msgspec.Struct, frozen=True):
    """Whether a property is there, whatever its value."""

    name: str


class Not(msgspec.Struct, frozen=True):
    """A negation."""

    of: Expression


class Junction(msgspec.Struct, frozen=True):
    """All of the parts ("and"), or one of them ("or")."""

    word: str
    parts: tuple[Expression, ...]


class Comparison(msgspec.Struct, frozen=True):
    """Two values: == and != of one kind, the others of numbers."""

    sign: str
    left: Expression
    right: Expression


class InclusionTerm(msgspec.Struct, frozen=True):
    """Whether a text is in a sequence."""

    member: Expression
    sequence: PropertyTerm


class Substring(msgspec.Struct, frozen=True):
    """Whether a text is in another one."""

    part: Expression
    whole: Expression


class Arithmetic(msgspec.Struct, frozen=True):
    """Terms with + and -, or factors with * and /, from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


class Negative(msgspec.Struct, frozen=True):
    """A number below zero."""

    of: Expression


Expression = (
    ConstantTerm
    | PropertyTerm
    | Exists
    | Not
    | Junction
    | Comparison
    | InclusionTerm
    | Substring
    | Arithmetic
    | Negative
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parsed(text: str) -> Expression:
    """The tree of a constraint; an empty one is true. Raises PredicateError with the position and what was expected."""
    if len(text) > LENGTH_MOST:
        raise _fault(text, LENGTH_MOST, f"it has {len(text):,} characters; at most {LENGTH_MOST:,}")
    if not text.strip():
        return ConstantTerm(value=True)
    return _ConstraintParser(text).whole()


def _fault(text: str, at: int, why: str) -> PredicateError:
    near = text[at : at + 20]
    return PredicateError(
        f"constraint, position {at + 1}{f' (at {near!r})' if near else ''}: {why}",
        hint="In the words of the OMG trader: name == 'heat' and load < 0.5 (docs/domains.md)",
        argument="constraint",
        expression=text[:200],
        position=at + 1,
    )


class _ConstraintParser:
    """By recursive descent, a method for each precedence."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._read())
        self._next = 0
        self._depth = 0

    def whole(self) -> Expression:
        """The whole text."""
        found = self._junction("or")
        if self._token.kind != "end":
            raise self._expected("an operator, or the end")
        return found

    def _read(self) -> list[_Token]:
        found: list[_Token] = []
        at, end = 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                begin = end - len(self._text[at:end].lstrip())
                raise _fault(self._text, begin, "no word, number, 'text' in quotes, or sign begins here")
            kind = match.lastgroup or ""
            text, begin = match[kind], match.start(kind) - (kind == "text")
            if kind == "name" and not (_HEADER.fullmatch(text) or text.replace("_", "a").isalnum()):
                raise _fault(self._text, begin, "names have letters, digits, _, or are $domain, $type, $name, $qos.x")
            if kind == "name" and text in WORDS:
                kind = "word"
            found.append(_Token(kind, text, begin))
            at = match.end()
        return [*found, _Token("end", "", len(self._text))]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _is(self, *texts: str) -> bool:
        return self._token.kind in ("sign", "word") and self._token.text in texts

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _expected(self, what: str) -> PredicateError:
        return _fault(self._text, self._token.at, f"expected {what}")

    def _junction(self, word: str) -> Expression:
        below = self._comparison if word == "and" else lambda: self._junction("and")
        parts = [below()]
        while self._is(word):
            self._take()
            parts.append(below())
        return Junction(word, tuple(parts)) if len(parts) > 1 else parts[0]

    def _comparison(self) -> Expression:
        left = self._membership()
        if not self._is(*COMPARISONS):
            return left
        found = Comparison(self._take().text, left, self._membership())
        if self._is(*COMPARISONS):
            raise self._expected("no second comparison: set the first one in parentheses")
        return found

    def _membership(self) -> Expression:
        member = self._substring()
        if not self._is("in"):
            return member
        self._take()
        return InclusionTerm(member, PropertyTerm(self._name("the name of a sequence")))

    def _substring(self) -> Expression:
        part = self._arithmetic("+-")
        if not self._is("~"):
            return part
        self._take()
        return Substring(part, self._arithmetic("+-"))

    def _arithmetic(self, signs: str) -> Expression:
        below = self._negation if signs == "*/" else lambda: self._arithmetic("*/")
        first, rest = below(), []
        while self._is(*signs):
            sign = self._take().text
            rest.append((sign, below()))
        return Arithmetic(first, tuple(rest)) if rest else first

    def _negation(self) -> Expression:
        if not self._is("not", "-", "+"):
            return self._primary()
        self._deeper()
        sign = self._take().text
        of = self._negation() if sign == "not" else self._primary()
        self._depth -= 1
        return Not(of) if sign == "not" else Negative(of) if sign == "-" else of

    def _primary(self) -> Expression:
        if self._is("("):
            self._deeper()
            self._take()
            inner = self._junction("or")
            if not self._is(")"):
                raise self._expected("an operator or )")
            self._take()
            self._depth -= 1
            return inner
        if self._is("exist"):
            self._take()
            return Exists(self._name("the name of a property"))
        if self._is("TRUE", "FALSE"):
            return ConstantTerm(self._take().text == "TRUE")
        if self._token.kind == "number":
            return ConstantTerm(self._number())
        if self._token.kind == "text":
            return ConstantTerm(re.sub(r"\\(.)", r"\1", self._take().text, flags=re.DOTALL))
        return PropertyTerm(self._name("a property, number, 'text', TRUE, FALSE, exist, not or ("))

    def _number(self) -> float:
        value = float(self._token.text)
        if value == float("inf"):
            raise self._expected("a number below 1.8e308")
        self._take()
        return value

    def _name(self, what: str) -> str:
        if self._token.kind != "name":
            raise self._expected(what)
        return self._take().text

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MOST:
            raise self._expected(f"no more than {DEPTH_MOST} parentheses and `not` inside each other")
