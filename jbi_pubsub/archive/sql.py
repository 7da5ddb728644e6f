"""Questions to an index in SQL, put together of its own words: numbers of tables, paths and kinds, and names of bound
parameters. No text of a user ever stands in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from jbi_pubsub.archive.held import LARGE, MORE, NOT_HELD, NUMBERS, OPEN, TEXTS, TypeIndex
from jbi_pubsub.archive.leaves import is_canonical
from jbi_pubsub.archive.plan import FIRST, Calculation, Conjunct, Constant, On, Restriction
from jbi_pubsub.core.history import HistoryQuery
from jbi_pubsub.core.info_object import numbered, prefix_of
from jbi_pubsub.core.xpath.language import conditions
from jbi_pubsub.core.xpath.language.number import number
from jbi_pubsub.core.xpath.language.terms import COUNT

PATHS_MOST: Final = 1024
LOOKS_MOST: Final = 16
"""Paths of one question that are compared in the first table, and looks into the second one. What a predicate asks
beyond that, over a type of very many paths, is lxml's: each takes the database time, and memory that it does not count.
"""


class Select:
    """A question in SQL, as it is put together."""

    def __init__(self, kind: TypeIndex, within: str = "true") -> None:
        """`within`: the condition of the positions that are asked about."""
        self._kind = kind
        self._within = within
        self._paths_left, self._looks_left = PATHS_MOST, LOOKS_MOST
        self.parameters: dict[str, Constant | list[str]] = {}
        self.rows = ""
        """Table and condition."""
        self._joined: dict[str, str] = {}
        self.exact = "false"
        """Condition by which a row that is found is known to match."""

    def parameter(self, value: Constant | list[str]) -> str:
        """Placeholder of a constant."""
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"${name}"

    @property
    def table(self) -> str:
        """The first table, and what is computed of the second one for it."""
        joined = (f"LEFT JOIN ({asked}) {name} USING (pos)" for asked, name in self._joined.items())
        return " ".join([f"o{self._kind.number}", *joined])

    def bounded(self, query: HistoryQuery) -> list[str]:
        """Conditions of the times and sizes that a query asks for."""
        bounds = []
        column = "received" if query.by_receipt else "published"
        if query.since > 0:
            bounds.append(f"{column} >= {self.parameter(float(query.since))}")
        if query.until < 1e11:
            bounds.append(f"{column} <= {self.parameter(float(query.until))}")
        if query.least_payload > 0:
            bounds.append(f"payload >= {int(query.least_payload)}")
        if query.most_payload < 2**53:
            bounds.append(f"payload <= {int(query.most_payload)}")
        return bounds

    def identified(self, ids: Sequence[str], registrations: Mapping[str, int]) -> str:
        """The condition that an object has one of these ids; `registrations`: their numbers."""
        by_prefix: dict[str, list[int]] = {}
        for uid, place in registrations.items():
            by_prefix.setdefault(prefix_of(uid), []).append(place)
        wanted: dict[int, list[int]] = {}
        for each in ids:
            prefix, digits = each[:-12], each[-12:]
            if prefix in by_prefix and digits.isalnum() and digits.isascii():
                try:
                    sequence = int(digits, 16)
                except ValueError:
                    continue
                if numbered(prefix, sequence) == each:
                    for place in by_prefix[prefix]:
                        wanted.setdefault(place, []).append(sequence)
        made_ids = [f"(registration = {place} AND {among('sequence', those)})" for place, those in wanted.items()]
        own = f"own IN (SELECT unnest({self.parameter(list(ids))}))" if ids else "false"
        return f"({own} OR (own IS NULL AND {either(made_ids)}))"

    def restricted(self, asked: Restriction) -> str:
        """The condition of candidates; sets `exact`."""
        kind = self._kind
        found = [self._conjunct(conjunct) for conjunct in asked.conjuncts]
        large = among("kind", kind.kinds_with(range(LARGE, 1 - asked.sizes)))
        if all(exact == "true" for _, exact in found) and large == "false":
            exact = "true"
        else:
            each = (_both([possible, exact]) for possible, exact in found)
            exact = _both([either(each), "true" if large == "false" else f"NOT ({large})"])
        possible = either(possible for possible, _ in found)
        if kind.has_open and possible != "true":
            possible = either([f"kind = {OPEN}", possible])
        if kind.has_open:
            exact = _both([f"kind <> {OPEN}", exact])
        self.exact = exact
        return possible

    def _conjunct(self, conjunct: Conjunct) -> tuple[str, str]:
        """The condition of candidates, and what has to hold besides for one to be exact."""
        repeated = among("kind", self._kind.kinds_with(conjunct.single))
        possible, exact = [], ["true" if repeated == "false" else f"NOT ({repeated})"]
        if conjunct.why:
            exact = ["false"]
        for test, constant in conjunct.payload:
            possible.append(f"payload {_OPERATORS[test]} {self.parameter(constant)}")
        for on in sorted(conjunct.on, key=_width):
            can, does = self._on(on) if self._is_affordable(on) else ("true", "false")
            if on.negated:
                can, does = _not(does), _not(can)
            exact.append("true" if can == does else does)
            possible.append(can if on.follows else either([can, repeated]))
        return _both(possible), _both(exact)

    def _is_affordable(self, on: On) -> bool:
        """Whether a condition is part of the question; then what it takes is taken."""
        flags = self._kind.flags
        asked = (*on.paths, *on.inner)
        paths = sum(1 for path in asked if flags[path] & (NUMBERS | TEXTS))
        parts = on.calculation.leaves() if on.calculation is not None else (on,)
        paths *= 1 if on.calculation is None else _CALCULATED
        looks = sum(any(flags[path] & MORE for path in those) for each in parts for those in (each.paths, each.inner))
        if paths > self._paths_left or looks > self._looks_left:
            return False
        self._paths_left -= paths
        self._looks_left -= looks
        return True

    def _on(self, on: On) -> tuple[str, str]:
        """Whether a condition is possible, and whether it is certain."""
        if on.test == conditions.EXISTS:
            there = self._present(on.paths)
            return there, there
        if on.calculation is not None:
            return self._compared(on.calculation, on.test, self.parameter(on.constant))
        flags = self._kind.flags
        constant = _Constant(self, on)
        can, does = [], []
        for path in on.paths:
            n = f"n{path}" if flags[path] & NUMBERS else ""
            t = f"t{path}" if flags[path] & TEXTS else ""
            if n or t:
                possible, certain = constant.passes(n, t)
                can.append(possible)
                does.append(certain)
        more = [path for path in on.paths if flags[path] & MORE]
        if more:
            possible, certain = constant.passes("n", "t")
            if any(flags[path] & NOT_HELD for path in more):
                can.append(self._more(more, either([possible, "(n IS NULL AND t IS NULL)"])))
            else:
                can.append(self._more(more, possible))
            does.append(self._more(more, certain))
        can.append(self._present(on.inner))
        return either(can), either(does)

    def _compared(self, calculation: Calculation, test: str, constant: str) -> tuple[str, str]:
        """Whether what a calculation comes to passes, possibly and certainly. NULL passes nothing; nor does NaN, which
        DuckDB has above all else."""
        value, unknown, spread = self._computed(calculation)
        passes = f"{value} {_OPERATORS[test]} {constant}"
        if spread == "0":
            can = does = _both([passes, f"NOT isnan({value})"])
        elif test == conditions.NUMBER_EQUAL:
            can, does = f"abs({value} - {constant}) <= {spread}", _both([passes, f"{spread} = 0"])
        else:
            wide, narrow = "+-" if test in (conditions.LESS, conditions.LESS_EQUAL) else "-+"
            can, does = f"{passes} {wide} {spread}", _both([f"{passes} {narrow} {spread}", f"NOT isnan({value})"])
        return either([unknown, can]), _both([_not(unknown), does])

    def _computed(self, part: Calculation | float) -> tuple[str, str, str]:
        """A number, or NULL for NaN; when it is not known; how far it may be off, as numbers were added up in another
        order."""
        if not isinstance(part, Calculation):
            return self.parameter(part), "false", "0"
        if not part.operands:
            return self._of_values(part)
        found = [self._computed(each) for each in part.operands]
        *left, right = (value for value, _, _ in found)
        value = f"({''.join(left)} {_ARITHMETIC[part.operator]} {right})"
        unknown, spread = [each for _, each, _ in found], found[0][2]
        last = part.operands[-1]
        if part.operator == "div" and isinstance(last, Calculation) and last.operator == COUNT:
            return value, either(unknown), spread if spread == "0" else f"({spread} / greatest({right}, 1))"  # a mean
        unknown += [f"{each} > 0" for _, _, each in found if each != "0"]
        if part.operator == "div":
            unknown.append(f"{right} = 0")  # the sign of a zero is not held
        return value, either(unknown), "0"

    def _of_values(self, part: Calculation) -> tuple[str, str, str]:
        """As `_computed`, of the values at some paths."""
        flags = self._kind.flags
        numbers = [f"n{path}" for path in part.paths if flags[path] & NUMBERS]
        texts = [path for path in part.paths if flags[path] & TEXTS]
        more = [path for path in part.paths if flags[path] & MORE]
        unknown = [self._present(part.inner)]
        s = self._summed(more) if more else ""
        if part.operator == COUNT:
            there = [self._present_in_columns(path) for path in part.paths if flags[path] & (NUMBERS | TEXTS)]
            counts = [f"({each})::INTEGER" for each in there] + [f"coalesce({s}.nodes, 0)"] * bool(s)
            return f"({' + '.join(counts) or 0})::DOUBLE", either(unknown), "0"
        if any(flags[path] & NOT_HELD for path in more):
            unknown.append(f"{s}.unheld IS TRUE")
        if part.operator == FIRST:
            one = [*numbers, *[f"{s}.n"] * bool(s), "NULL::DOUBLE"]
            return f"coalesce({', '.join(one)})", either(unknown), "0"
        no_number = [_both([f"t{p} IS NOT NULL", f"n{p} IS NULL" if flags[p] & NUMBERS else "true"]) for p in texts]
        no_number += [f"{s}.texts IS TRUE"] * bool(s)
        each = [f"coalesce({n}, 0)" for n in numbers]
        value = " + ".join([*each, *[f"coalesce({s}.n, 0)"] * bool(s), "0e0"])
        value = f"(CASE WHEN {either(no_number)} THEN NULL ELSE {value} END)"
        if not s and len(numbers) <= 2:
            return value, either(unknown), "0"
        many = " + ".join([*(f"({n} IS NOT NULL)::INTEGER" for n in numbers), *[f"coalesce({s}.numbers, 0)"] * bool(s)])
        size = " + ".join([*(f"abs({n})" for n in each), *[f"coalesce({s}.size, 0)"] * bool(s)])
        spread = f"(CASE WHEN {many} > 2 THEN ({size}) * ({many}) * {_ROUNDING} ELSE 0e0 END)"
        return value, either([*unknown, f"({spread} <> 0 AND {spread} NOT BETWEEN 1e-290 AND 1e290)"]), spread

    def _summed(self, paths: Sequence[int]) -> str:
        """The name of what is joined: of each object what its values at these paths in the second table come to."""
        asked = (
            "SELECT pos, sum(n) AS n, sum(abs(n)) AS size, count(n) AS numbers, count(*) AS nodes,"  # noqa: S608  # numbers and our own words
            " bool_or(n IS NULL AND t IS NOT NULL) AS texts, bool_or(n IS NULL AND t IS NULL) AS unheld"
            f" FROM m{self._kind.number} WHERE {_both([among('path', paths), self._within])} GROUP BY pos"
        )
        return self._joined.setdefault(asked, f"s{len(self._joined)}")

    def _present(self, paths: Iterable[int]) -> str:
        """That there is a value at one of these."""
        flags = self._kind.flags
        found = [self._present_in_columns(path) for path in paths]
        return either([*found, self._more([path for path in paths if flags[path] & MORE], "true")])

    def _present_in_columns(self, path: int) -> str:
        flags = self._kind.flags[path]
        return either([f"{name}{path} IS NOT NULL" for name, flag in (("n", NUMBERS), ("t", TEXTS)) if flags & flag])

    def _more(self, paths: Sequence[int], passes: str) -> str:
        """That there is a value at one of these in the second table that passes."""
        if not paths or passes == "false":
            return "false"
        return f"pos IN (SELECT pos FROM m{self._kind.number} WHERE {_both([among('path', paths), passes])})"  # noqa: S608  # numbers and our own words


class _Constant:
    """A condition's constant, and its test on a number and a text ("": there are none of these)."""

    def __init__(self, select: Select, on: On) -> None:
        self._select = select
        self._on = on
        self._parameters: dict[str, str] = {}

    def passes(self, n: str, t: str) -> tuple[str, str]:
        """Whether it is possible, and whether it is certain."""
        test, constant = self._on.test, self._on.constant
        if test in conditions.RELATIONS or test == conditions.NUMBER_EQUAL:
            return _same(f"{n} {_OPERATORS[test]} {self._number(constant)}" if n else "false")
        is_text = f"({n} IS NULL AND {t} IS NOT NULL)" if n and t else f"{t} IS NOT NULL" if t else "false"
        is_plain = f"({t} IS NULL AND {n} IS NOT NULL)" if n and t else f"{n} IS NOT NULL" if n else "false"
        if test == conditions.NUMBER_UNEQUAL:
            return _same(either([f"{n} <> {self._number(constant)}" if n else "false", is_text]))
        assert isinstance(constant, str)
        if test == conditions.EQUAL:
            if is_canonical(constant):
                equal = f"{n} = {self._number(number(constant))}" if n else "false"
                return _same(_both([equal, f"{t} IS NULL" if t else "true"]))
            return _same(f"{t} = {self._text(constant)}" if t else "false")
        if test == conditions.UNEQUAL:
            if is_canonical(constant):
                other = f"{n} <> {self._number(number(constant))}" if n else "false"
                return _same(either([other, f"{t} IS NOT NULL" if t else "false"]))
            return _same(either([f"{t} <> {self._text(constant)}" if t else "false", is_plain]))
        may_be_number = is_plain if set(constant.strip(_SPACES)) <= _IN_NUMBERS else "false"
        if test == conditions.NORMALIZED_EQUAL:
            word = self._text(constant.split()[0])
            return either([f"contains({t}, {word})" if t else "false", may_be_number]), "false"
        function = "contains" if test == conditions.CONTAINS else "starts_with"
        sure = f"{function}({t}, {self._text(constant)})" if t else "false"
        return either([sure, may_be_number]), sure

    def _number(self, value: Constant) -> str:
        return self._once(f"n{value!r}", float(value))

    def _text(self, value: str) -> str:
        return self._once(f"t{value}", value)

    def _once(self, key: str, value: Constant) -> str:
        known = self._parameters.get(key)
        if known is None:
            known = self._parameters[key] = self._select.parameter(value)
        return known


_SPACES: Final = " \t\r\n"
_IN_NUMBERS: Final = frozenset("0123456789.-")
_OPERATORS: Final = {
    conditions.NUMBER_EQUAL: "=",
    conditions.LESS: "<",
    conditions.LESS_EQUAL: "<=",
    conditions.GREATER: ">",
    conditions.GREATER_EQUAL: ">=",
}


_ARITHMETIC: Final = {"+": "+", "-": "-", "multiply": "*", "div": "/", "mod": "%"}
_CALCULATED: Final = 16
"""A path in a calculation counts as so many: that is how often it is named."""
_ROUNDING: Final = 4.5e-16
"""Error of a sum, in proportion to its numbers and how many they are: twice what adding up two ways may differ by."""


def _width(on: On) -> int:
    return len(on.paths) + len(on.inner)


def _same(condition: str) -> tuple[str, str]:
    return condition, condition


def _not(condition: str) -> str:
    if condition in ("true", "false"):
        return "false" if condition == "true" else "true"
    return f"({condition}) IS NOT TRUE"


def either(parts: Iterable[str]) -> str:
    found = [part for part in dict.fromkeys(parts) if part != "false"]
    if "true" in found:
        return "true"
    return (found[0] if len(found) == 1 else f"({' OR '.join(found)})") if found else "false"


def _both(parts: Iterable[str]) -> str:
    found = [part for part in dict.fromkeys(parts) if part != "true"]
    if "false" in found:
        return "false"
    return (found[0] if len(found) == 1 else f"({' AND '.join(found)})") if found else "true"


def among(column: str, numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"{column} IN ({', '.join(map(str, map(int, found)))})" if found else "false"
