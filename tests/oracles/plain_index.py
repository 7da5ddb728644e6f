"""An index that holds rows in a list and looks at each: what `archive/plan.py` says, word for word.

It stands beside the one that is used: both have to choose the same candidates.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jbi_pubsub.archive.leaves import DocumentRow, TypePaths, Value, is_canonical, value_of
from jbi_pubsub.archive.plan import FIRST, Calculation, Conjunct, On, Restriction, restriction
from jbi_pubsub.archive.query import CandidateCount, Candidates, CompiledScope
from jbi_pubsub.archive.volume import Record
from jbi_pubsub.core.history import ExplanationStep, HistoryQuery, Order
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.xpath.language import conditions, terms
from jbi_pubsub.core.xpath.language.number import number


class _Held(NamedTuple):
    position: int
    received: float
    head: Head
    row: DocumentRow
    values: dict[int, list[Value]]


class PlainIndex:
    """See the module. An `archive.query.Asking`."""

    def __init__(self) -> None:
        self.position = 0
        self._rows: list[_Held] = []
        self._paths: dict[tuple[str, str], TypePaths] = {}

    def add(self, records: Iterable[Record], up_to: int) -> None:
        for record in records:
            head = Parcel.received(record.data).head
            paths = self._paths.setdefault((head.type_name, head.type_version), TypePaths())
            row = paths.read(bytes(head.metadata))
            values: dict[int, list[Value]] = {}
            for path, text in [*row.firsts.items(), *row.further]:
                values.setdefault(path, []).append(value_of(text))
            self._rows.append(_Held(record.position, record.received, head, row, values))
        self.position = up_to

    def window(self, after: int, up_to: int, rows: int, order: Order) -> tuple[int, int]:
        there = [held.position for held in self._rows if after < held.position <= up_to]
        if len(there) <= rows:
            return after, up_to
        return (there[-rows] - 1, up_to) if order == "newest" else (after, there[rows - 1])

    def candidates(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> Candidates:
        scope = asked.scope
        paths = self._paths.get((scope.type.name, scope.type.version))
        if paths is None:
            return Candidates([], [])
        restricted = restriction(asked.predicate, paths)
        found: list[tuple[int, bool]] = []
        for held in self._rows:
            head = held.head
            if (
                after < held.position <= up_to
                and (head.type_name, head.type_version) == (scope.type.name, scope.type.version)
                and (scope.registrations is None or head.registration in scope.registrations)
                and query.since <= (held.received if query.by_receipt else head.published) <= query.until
                and query.least_payload <= head.payload_length <= query.most_payload
                and (query.object_ids is None or head.object_id in query.object_ids)
            ):
                is_candidate, is_exact = judged(restricted, held.row, held.values)
                if is_candidate:
                    found.append((held.position, is_exact or asked.predicate is None))
        found.sort(reverse=query.order == "newest" or bool(query.latest_by))
        return Candidates([position for position, _ in found], [exact for _, exact in found])

    def count(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> CandidateCount:
        found = self.candidates(asked, query, after, up_to)
        return CandidateCount(len(found.positions), sum(found.exact))

    def latest(self, *_: object) -> Sequence[int] | None:
        return None

    def explain(self, *_: object) -> tuple[tuple[ExplanationStep, ...], int, bool]:
        raise NotImplementedError


def judged(restricted: Restriction, row: DocumentRow, values: dict[int, list[Value]]) -> tuple[bool, bool]:
    """Whether a document is a candidate, and whether it is exact."""
    if row.is_open:
        return True, False
    each = [_of(conjunct, row, values) for conjunct in restricted.conjuncts]
    return any(candidate for candidate, _ in each), any(exact for _, exact in each) and row.size < restricted.sizes


def _of(conjunct: Conjunct, row: DocumentRow, values: dict[int, list[Value]]) -> tuple[bool, bool]:
    is_repeated = not row.repeated.isdisjoint(conjunct.single)
    known = [(on, _holds(on, values)) for on in conjunct.on]
    candidate = all(
        (not certain if on.negated else possible) for on, (possible, certain) in known if on.follows or not is_repeated
    )
    sure = all((not possible if on.negated else certain) for on, (possible, certain) in known)
    return candidate, candidate and sure and not is_repeated and not conjunct.why


def _holds(on: On, values: dict[int, list[Value]]) -> tuple[bool, bool]:
    """Whether it is possible, and whether it is certain."""
    if on.calculation is not None:
        assert isinstance(on.constant, float)
        value, is_known, spread = _computed(on.calculation, values)
        known = [_compared(on.test, value + each, on.constant) for each in (-spread, spread)]
        if on.test == conditions.NUMBER_EQUAL:
            known = [abs(value - on.constant) <= spread, not spread and value == on.constant]
        return any(known) or not is_known, all(known) and is_known
    there = [value for path in on.paths for value in values.get(path, ())]
    if on.test == conditions.EXISTS:
        return bool(there), bool(there)
    each = [_passes(on.test, on.constant, value) for value in there]
    is_inner = any(path in values for path in on.inner)
    return is_inner or any(possible for possible, _ in each), any(certain for _, certain in each)


def _computed(part: Calculation | float, values: dict[int, list[Value]]) -> tuple[float, bool, float]:
    """A number, whether it is known, and how far it may be off."""
    if not isinstance(part, Calculation):
        return part, True, 0.0
    if part.operands:
        found = [_computed(each, values) for each in part.operands]
        numbers = [value for value, _, _ in found]
        is_known = all(known for _, known, _ in found)
        value, last = _ARITHMETIC[part.operator](*([0.0] * (len(numbers) < 2)), *numbers), part.operands[-1]
        if part.operator == "div" and isinstance(last, Calculation) and last.operator == terms.COUNT:
            return value, is_known, found[0][2] / max(numbers[-1], 1.0)
        is_zero = part.operator == "div" and numbers[-1] == 0
        return value, is_known and not any(spread for _, _, spread in found) and not is_zero, 0.0
    there = [value for path in part.paths for value in values.get(path, ())]
    is_known = not any(path in values for path in part.inner)
    if part.operator == terms.COUNT:
        return float(len(there)), is_known, 0.0
    is_known = is_known and (None, None) not in there
    each = [math.nan if number is None else number for number, _ in there]
    if part.operator == FIRST:
        return each[0] if each else math.nan, is_known, 0.0
    sizes = [abs(number) for number in each if number == number]
    spread = 4.5e-16 * len(sizes) * sum(sizes) if len(sizes) > 2 else 0.0
    return sum(each), is_known and (not spread or 1e-290 <= spread <= 1e290), spread


_ARITHMETIC = {
    "+": operator.add, "-": operator.sub, "multiply": operator.mul, "div": terms.over, "mod": terms.modulo
}  # fmt: skip


def _passes(test: str, constant: str | float, value: Value) -> tuple[bool, bool]:
    held, text = value
    if held is None and text is None:
        return True, False
    if test in conditions.NUMERIC:
        sure = _compared(test, held, constant)
        return sure, sure
    assert isinstance(constant, str)
    if text is None:
        assert held is not None
        if test in (conditions.EQUAL, conditions.UNEQUAL):
            sure = (is_canonical(constant) and held == number(constant) + 0.0) == (test == conditions.EQUAL)
            return sure, sure
        return set(constant.strip()) <= set("0123456789.-"), False
    if test == conditions.NORMALIZED_EQUAL:
        return constant.split()[0] in text, False
    sure = {
        conditions.EQUAL: text == constant,
        conditions.UNEQUAL: text != constant,
        conditions.CONTAINS: constant in text,
        conditions.STARTS_WITH: text.startswith(constant),
    }[test]
    return sure, sure


def _compared(test: str, held: float | None, constant: str | float) -> bool:
    assert isinstance(constant, float)
    if held is None:
        return test == conditions.NUMBER_UNEQUAL
    return {
        conditions.NUMBER_EQUAL: held == constant,
        conditions.NUMBER_UNEQUAL: held != constant,
        conditions.LESS: held < constant,
        conditions.LESS_EQUAL: held <= constant,
        conditions.GREATER: held > constant,
        conditions.GREATER_EQUAL: held >= constant,
    }[test]
