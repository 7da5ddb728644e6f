"""Operands of conditions: paths, terms, which are computed for each document, and constants.

Rules:
- A term is arithmetic over the first nodes at paths, NaN for none, and over count() and sum() of the nodes at paths:
  computed from what the index has read.
- What is more than that is an evaluation: lxml evaluates it, once for a document, and its value is looked up as that
  of a path is. It is written as in the expression, with the literals as parameters, and evaluated with the nodes at a
  plain path as context, for each of them.
- A plan serves every expression of its shape: its constants are parameters, read from the literals as they are written.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from .number import number

COUNT: Final = "count"
SUM: Final = "sum"
OF_ALL: Final = frozenset([COUNT, SUM])
"""Functions of all nodes at a path."""

EVALUATION: Final = "evaluation"
"""Operator of an Evaluation."""

Where = tuple[str, ...]
"""A path: the document element's name ("" for any name), child names, perhaps "@name" at the end. Relative if a step is
"*" (children of any name) or "//name" (at any depth below; as first step any element)."""


class Term(msgspec.Struct, frozen=True):
    """Arithmetic: operands are paths (their first node's number), terms, and constants by parameter number; or COUNT or
    SUM of the nodes at a path."""

    operator: str
    operands: tuple[Operand, ...]

    def leaves(self, *, of_all: bool = True) -> Iterator[Where | int | str]:
        """The paths and constants in it; without `of_all` none of those whose nodes are all read."""
        for operand in self.operands if of_all or self.operator not in OF_ALL else ():
            if isinstance(operand, Term):
                yield from operand.leaves(of_all=of_all)
            else:
                yield operand

    def given(self, constants: Mapping[int, float | str]) -> Term:
        """The same with the constants in it."""
        return Term(self.operator, tuple(_given(each, constants) for each in self.operands))

    def parameters(self) -> list[int]:
        """The numbers of the constants in it."""
        return [each for each in self.leaves() if isinstance(each, int)]


class Evaluation(Term, frozen=True):
    """Expression that lxml evaluates for each of the nodes at `context`. `pieces` is its text between the constants, as
    they are written, which `operands` are the numbers of; `namespaces` binds its prefixes."""

    context: Where = ("",)
    pieces: tuple[str, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()

    def given(self, constants: Mapping[int, float | str]) -> Evaluation:
        written = [str(constants[number]) for number in self.parameters()]
        text = "".join(itertools.chain(*zip(self.pieces, [*written, ""], strict=True)))
        return Evaluation(self.operator, (), self.context, (text,), self.namespaces)

    def written(self, constants: Mapping[int, float | str]) -> str:
        """Its text for people."""
        pieces = tuple(_AROUND.sub(r"\1", piece) for piece in self.pieces)
        return msgspec.structs.replace(self, pieces=pieces).given(constants).pieces[0].strip()


_AROUND: Final = re.compile(r" *([()\[\],/@]|::) *")
"""Signs around which spaces say nothing."""


Operand = Where | Term | int | str
"""A path, a term, a constant by its number, or one as Python writes it (0.0 and -0.0 are two)."""


def _given(operand: Operand, constants: Mapping[int, float | str]) -> Operand:
    if isinstance(operand, Term):
        return operand.given(constants)
    return repr(constants[operand]) if isinstance(operand, int) else operand


def paths_in(where: Operand, *, of_all: bool = True) -> tuple[Where, ...]:
    """The paths in it; without `of_all` only those of whose nodes the first one is read."""
    leaves = where.leaves(of_all=of_all) if isinstance(where, Term) else (where,)
    return tuple(each for each in leaves if isinstance(each, tuple))


def is_relative(where: Where) -> bool:
    """Whether a step is another one than to a child or an attribute by name."""
    return any(step[:1] in ("*", "/") for step in where)


def is_in_order(where: Where) -> bool:
    """Whether nodes are found in the order of the document, in which they are added up."""
    return not any(step.startswith("//") and after[0] != "@" for step, after in itertools.pairwise(where))


def over(left: float, right: float) -> float:
    """`div`, which IEEE 754 defines for a zero, too."""
    if right:
        return left / right
    return math.nan if left == 0 or left != left else math.copysign(math.inf, left) * math.copysign(1.0, right)


def modulo(left: float, right: float) -> float:
    """`mod`: C's fmod(), NaN for what it is not defined for."""
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "multiply": operator.mul,
    "div": over,
    "mod": modulo,
}


class Parameter(msgspec.Struct, frozen=True):
    """A constant of the expression: which literal, and read as what ("text", "filled text", "number", "minus", or as it
    is "written"); or the `bound` that is made of it."""

    hole: int
    kind: str
    bound: NumberBound | None = None

    def number(self, token: str) -> float:
        """The literal, written as `token`, as a number, without what `bound` makes of it."""
        value = number(token[1:-1]) + 0.0 if token[0] in "'\"" else number(token)  # '-0' compares as 0: one constant
        return -value if self.kind == "minus" else value


class NumberBound(msgspec.Struct, frozen=True):
    """The last number x for which x, after all `moves`, compares as `test` with the constant: the greatest if it is an
    upper bound, else the least.

    Each move (operator, constant, whether the constant stands left) keeps the order of numbers or turns it around, and
    so does its rounding; so those for which it holds are all up to the bound, or all from it on.
    """

    moves: tuple[tuple[str, Parameter | None, bool], ...]
    test: str
    is_upper: bool

    def value(self, constant: float, holes: list[str]) -> float:
        """The bound; NaN when it holds for no finite number, for all of them, or a move is by 0."""
        moves = []
        for name, parameter, is_left in self.moves:
            by = parameter.number(holes[parameter.hole]) if parameter is not None else -1.0
            if not math.isfinite(by) or (by == 0 and name in ("multiply", "div")):
                return math.nan
            moves.append((ARITHMETIC[name], by, is_left))

        def holds(place: int) -> bool:
            x = _at(place)
            for function, by, is_left in moves:
                x = function(by, x) if is_left else function(x, by)
            return COMPARE[self.test](x, constant)

        good, bad = (-_LAST, _LAST) if self.is_upper else (_LAST, -_LAST)
        if holds(bad) or not holds(good):
            return math.nan
        while abs(good - bad) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return _at(good)


COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "n=": operator.eq, "n!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
"""Comparisons of numbers, by the tests of conditions.py."""

_LAST: Final = 0x7FEFFFFFFFFFFFFF
"""Place of the greatest finite double: they are numbered from 0 (for 0.0) up and down, as their bits are."""


def _at(place: int) -> float:
    value: float = struct.unpack("<d", abs(place).to_bytes(8, "little"))[0]
    return value if place >= 0 else -value
