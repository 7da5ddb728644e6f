"""Questions to an index: the plan that live matching uses, on the paths that a type has.

Rules:
- An archive knows every path of a type. So a step to any name, and one to any depth, become the paths that there are; a
  name that no path has is false, and nothing is read.
- A condition is *possible* for a document if it may hold by what an index holds of it, *certain* if it does. They
  differ where a text is not held, or only a part of the condition can be asked. Negated, certain and possible change
  places, each opposite.
- A document is a candidate of a conjunct if all conditions are possible, or, where a path of `single` is repeated
  in it, those that follow all the same (the rule at the head of core/xpath/language/conditions.py). It is exact if all
  are certain, no path of `single` is repeated, nothing stands in `why`, and the document is not larger than
  the restriction's `sizes` say.
- Candidates of a restriction are those of any conjunct; exact if so for one of them.
- An open document is a candidate, and never exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec

from jbi_pubsub.archive.leaves import SIZES, TypePaths
from jbi_pubsub.core.combined import ABOVE, ALWAYS, PATHS, PAYLOAD_LENGTH
from jbi_pubsub.core.xpath.language import conditions
from jbi_pubsub.core.xpath.language.conditions import Condition
from jbi_pubsub.core.xpath.language.cost import MAX_SECONDS, rough_extent
from jbi_pubsub.core.xpath.language.terms import OF_ALL, Evaluation, Operand, Term, Where
from jbi_pubsub.core.xpath.predicate import Predicate

Constant = str | float


FIRST: Final = "first"
"""The number of the one node at a path."""


class Calculation(msgspec.Struct, frozen=True):
    """A term (core/xpath/language/conditions.py) on the paths that there are: arithmetic over `operands`; or FIRST,
    COUNT or SUM of what is at `paths`, which is not known where there is a value at one of `inner`."""

    operator: str
    operands: tuple[Calculation | float, ...] = ()
    paths: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()

    def leaves(self) -> Iterator[Calculation]:
        """Leaves that it is computed of."""
        if not self.operands:
            yield self
        for operand in self.operands:
            if isinstance(operand, Calculation):
                yield from operand.leaves()


class On(msgspec.Struct, frozen=True):
    """That some value at some path of `paths` passes a test, or its negation. EXISTS: that there is one. With a
    `calculation`, that what it comes to passes."""

    test: str
    paths: tuple[int, ...]
    constant: Constant = ""
    inner: tuple[int, ...] = ()
    """Paths below elements whose text the condition asks for and which had elements inside: what has a value there is
    possible."""
    negated: bool = False
    words: str = ""
    """The condition, for people."""
    calculation: Calculation | None = None

    @property
    def follows(self) -> bool:
        """Whether it has to hold also where a path of `single` is repeated."""
        first = self.calculation is not None and any(each.operator == FIRST for each in self.calculation.leaves())
        return not (self.negated or first)


class Conjunct(msgspec.Struct, frozen=True):
    """Conditions that hold together."""

    on: tuple[On, ...] = ()
    single: tuple[int, ...] = ()
    why: tuple[str, ...] = ()
    """Reasons why lxml is asked."""
    payload: tuple[tuple[str, float], ...] = ()
    """Comparisons of the payload's length, as published."""

    def within(self, rule: Conjunct) -> Conjunct:
        """The candidates of this one for which the rule holds; the exact ones are those for which it does certainly."""
        return Conjunct(self.on + rule.on, rule.single, rule.why, self.payload + rule.payload)


class Restriction(msgspec.Struct, frozen=True):
    """Which documents of a type may match, and of which the index can say that they do."""

    conjuncts: tuple[Conjunct, ...]
    sizes: int = len(SIZES)
    """Up to how many of SIZES it may be evaluated for any document; for larger ones nothing is exact."""

    @property
    def is_everything(self) -> bool:
        """Whether each document is a candidate."""
        return any(not (conjunct.on or conjunct.payload) for conjunct in self.conjuncts)

    @property
    def why(self) -> tuple[str, ...]:
        """Why lxml has the last word; () if it has not."""
        return tuple(dict.fromkeys(reason for conjunct in self.conjuncts for reason in conjunct.why))


ALL: Final = Restriction((Conjunct(),))
"""Every document, without asking."""

COMPARED: Final = (*conditions.RELATIONS, conditions.NUMBER_EQUAL)


class Within:
    """The paths of a type as they are in the combined view."""

    def __init__(self, paths: TypePaths | Within) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def where(self, number: int) -> Where:
        """The path of that number."""
        return (*ABOVE, *self._paths.where(number))

    def is_inner(self, number: int) -> bool:
        """Whether elements there had others inside."""
        return self._paths.is_inner(number)


class _StepPaths:
    """The paths of a type that conditions of one predicate ask for: those of the same steps are looked for once."""

    def __init__(self, paths: TypePaths | Within) -> None:
        self.is_within = isinstance(paths, Within)
        self.at = cache(lambda where: tuple(places(where, paths)))
        """The paths that steps lead to."""
        self.below = cache(lambda where: below(self.at(where), paths))
        """Those below them."""
        self.inner = cache(lambda where: below((n for n in self.at(where) if paths.is_inner(n)), paths))
        """Those below the ones where elements had others inside."""


def restriction(predicate: Predicate | None, paths: TypePaths | Within) -> Restriction:
    """Restriction by a predicate of documents that have no other paths than these, and in the combined view those of
    the platform; None is true."""
    if predicate is None:
        return ALL
    sizes = sum(1 for size in SIZES if predicate.seconds(rough_extent(size)) <= MAX_SECONDS)
    why = () if sizes else ("what it costs depends on the document",)
    steps = _StepPaths(paths)
    found = (_conjunct(conjunct, predicate.constants, steps, why) for conjunct in predicate.plan.conjuncts)
    return Restriction(tuple(conjunct for conjunct in found if conjunct is not None), sizes)


def places(where: Where, paths: TypePaths | Within) -> list[int]:
    """The paths that there are, of those that `where` leads to."""
    last = where[-1].removeprefix("//") if where else ""
    is_any = last in ("", "*")
    found = ((number, paths.where(number)) for number in range(len(paths)))
    return [number for number, path in found if (is_any or path[-1:] == (last,)) and leads_to(where, path)]


def below(numbers: Iterable[int], paths: TypePaths | Within) -> tuple[int, ...]:
    """The paths below some."""
    above = {paths.where(number) for number in numbers}
    lengths = {len(where) for where in above}
    return tuple(
        number
        for number, where in ((n, paths.where(n)) for n in (range(len(paths)) if above else ()))
        if any(where[:length] in above for length in lengths if length < len(where))
    )


def leads_to(where: Where, path: Where) -> bool:
    """Whether `path`, of a document, is one of those that `where` names."""
    if not where:
        return not path
    step, rest = where[0], where[1:]
    if step.startswith("//"):
        return any(name == step[2:] and leads_to(rest, path[place + 1 :]) for place, name in enumerate(path))
    if not path:
        return False
    fits = path[0][0] != "@" if step in ("", "*") else path[0] == step
    return fits and leads_to(rest, path[1:])


def _conjunct(
    asked: Sequence[Condition], constants: Sequence[Constant], steps: _StepPaths, reasons: Iterable[str]
) -> Conjunct | None:
    """None: it holds for no document."""
    on: list[On] = []
    single: set[int] = set()
    why: list[str] = []
    payload: list[tuple[str, float]] = []
    several = False
    for condition in asked:
        where, test = condition.where, condition.test
        if test in (conditions.OPAQUE, conditions.HAS_CHILDREN) or isinstance(where, Evaluation):
            why.append(where[0] if isinstance(where, tuple) else _told(where, constants))
            continue
        if isinstance(where, Term):
            calculation = _calculation(where, constants, steps)
            if calculation is None:
                why.append("what the platform says")
            else:
                on.append(_computed(condition, calculation, constants))
            continue
        found = steps.at(where)
        said = [path for path in PATHS if leads_to(where, path)] if steps.is_within else []
        if test == conditions.SINGLE:
            single.update(found)
            if len(found) + len(said) > 1:
                several = True
                why.append(f"the first of several nodes at {shown(where)}")
            continue
        constant = constants[condition.parameter] if condition.parameter >= 0 else ""
        if said and not found and test == conditions.EXISTS and not ALWAYS.isdisjoint(said):
            if condition.negated:
                return None
            continue
        if said == [PAYLOAD_LENGTH] and not found and test in COMPARED and not condition.negated:
            payload.append((test, float(constant)))
            continue
        if said:
            why.append("what the platform says")
            continue
        made = _on(condition, where, constants, steps)
        if made is None:
            why.append("a comparison with the empty text of what may not be there")
        elif made.paths or made.inner:
            on.append(made)
        elif not condition.negated:
            return None
    if several:
        on = [each for each in on if each.follows]
    return Conjunct(tuple(on), tuple(sorted(single)), tuple(dict.fromkeys((*why, *reasons))), tuple(payload))


def _calculation(term: Operand, constants: Sequence[Constant], steps: _StepPaths) -> Calculation | None:
    """None: it asks for what the platform says."""
    where = term.operands[0] if isinstance(term, Term) and term.operator in OF_ALL else term
    if isinstance(where, Term):
        operands = [
            float(constants[each]) if isinstance(each, int) else _calculation(each, constants, steps)
            for each in where.operands
        ]
        known = tuple(each for each in operands if each is not None)
        return Calculation(where.operator, known) if len(known) == len(operands) else None
    assert isinstance(where, tuple)
    if steps.is_within and any(leads_to(where, path) for path in PATHS):
        return None
    operator = term.operator if isinstance(term, Term) else FIRST
    return Calculation(operator, (), steps.at(where), steps.inner(where))


def _computed(condition: Condition, calculation: Calculation, constants: Sequence[Constant]) -> On:
    leaves = list(calculation.leaves())
    return On(
        condition.test,
        tuple(path for each in leaves for path in each.paths),
        constants[condition.parameter],
        tuple(path for each in leaves for path in each.inner),
        condition.negated,
        _words(condition, constants),
        calculation,
    )


def _words(condition: Condition, constants: Sequence[Constant]) -> str:
    sign = "not " if condition.negated else ""
    constant = f" {constants[condition.parameter]!r}" if condition.parameter >= 0 else ""
    return f"{sign}{_told(condition.where, constants)} {condition.test}{constant}"


def _told(where: Operand, constants: Sequence[Constant]) -> str:
    if isinstance(where, str):
        return where
    if isinstance(where, int):
        return f"{constants[where]:g}"
    if isinstance(where, tuple):
        return shown(where)
    if isinstance(where, Evaluation):
        return where.written(dict(enumerate(constants)))
    *left, right = (_told(each, constants) for each in where.operands)
    if where.operator in OF_ALL:
        return f"{where.operator}({right})"
    return f"({' '.join([*left, _SIGNS.get(where.operator, where.operator), right])})"


_SIGNS: Final = {"multiply": "*"}


def _on(condition: Condition, where: Where, constants: Sequence[Constant], steps: _StepPaths) -> On | None:
    """None: nothing follows from it."""
    test = condition.test
    constant = constants[condition.parameter] if condition.parameter >= 0 else ""
    words = _words(condition, constants)
    if test == conditions.EXISTS:
        return On(test, tuple({*steps.at(where), *steps.below(where)}), negated=condition.negated, words=words)
    if test == conditions.NORMALIZED_EQUAL and not str(constant).split():
        return None
    return On(test, steps.at(where), constant, steps.inner(where), condition.negated, words)


def shown(where: Where) -> str:
    """A path as XPath writes it."""
    steps = [step or "*" for step in where]
    return "".join(step if step.startswith("//") else "/" + step for step in steps)
