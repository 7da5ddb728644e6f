"""Checks: the conditions of a row that its access key does not cover."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any, Final

import msgspec

from jbi_pubsub.core.cache import SizedCache
from jbi_pubsub.core.xpath.language import conditions

from .document import ABSENT_NUMBER, Many, Values

_SPACES: Final = re.compile("[ \t\r\n]+")
"""White space of XPath 1.0 (production 39), and no other."""

MAX_ENTRIES_BYTES: Final = 4 << 20
MAX_FUNCTIONS_BYTES: Final = 8 << 20
"""Memory of the checks and functions remembered for sharing; what is forgotten rows to come share among themselves."""

FUNCTION_BYTES: Final = 4 << 10
ENTRY_BYTES: Final = 300
CONDITION_BYTES: Final = 300
"""Size of them, about, and what each condition or constant adds (measured)."""

Constants = tuple[Any, ...]
Holds = Callable[[Values, Constants], bool]


class Check(msgspec.Struct, frozen=True, eq=False):
    """The conditions of rows of one shape: (test, slot, constant's number, negated); constants differ by row.

    `scopes` are slots that must not occur twice for the conditions to be meant; then, and when `opaque`, lxml decides
    on the predicate, which is the last constant.
    """

    conditions: tuple[tuple[str, int, int, bool], ...]
    scopes: tuple[int, ...]
    opaque: bool

    def single(self) -> Holds:
        """The check for documents in which no path occurs twice, put together once per shape.

        One expression is four times as fast as a call per condition. Its text is made of the templates below and of
        numbers; constants and names of the user's are never part of it.
        """
        parts = [_source(*c) for c in self.conditions]
        if self.opaque:
            parts.append("verified(v, c)")
        made: Holds = eval(f"lambda v, c: {' and '.join(parts) or True}", dict(_NAMES))  # noqa: S307  # see above
        return made

    def holds_for_many(self, values: Values, many: Many, constants: Constants) -> bool:
        """The check for any document."""
        if any(scope in many for scope in self.scopes):
            return _verified(values, constants)
        for test, slot, place, negated in self.conditions:
            constant = constants[place] if place >= 0 else None
            if _some(test, _present(values, many, slot), constant) == negated:
                return False
        return not self.opaque or _verified(values, constants)


class Checks:
    """The checks of an index's rows: `of[row]` is the function, its constants, and its shape, or None without.

    Rows with equal checks share one: it then is in the processor's cache, which matters more than what it does.
    """

    def __init__(self) -> None:
        self.of: list[Any] = []
        self.born = array("Q")
        """Operands that had come to the index when a row came."""
        self._entries: SizedCache[tuple[Holds, Constants], tuple[Holds, Constants, Check]]
        self._entries = SizedCache(MAX_ENTRIES_BYTES)
        self._functions: SizedCache[tuple[Any, ...], tuple[Holds, Check]] = SizedCache(MAX_FUNCTIONS_BYTES)

    def append(self) -> None:
        """Make room for one more row."""
        self.of.append(None)
        self.born.append(0)

    def before(self, arrivals: int, rows: list[int]) -> list[int]:
        """Those of the rows that came before an operand with that number."""
        return [row for row in rows if self.born[row] <= arrivals]

    def prepared(self, check: Check) -> tuple[Holds, Check]:
        """The function for a shape of check, made once."""
        shape = (check.conditions, check.scopes, check.opaque)
        known = self._functions.get(shape)
        if known is None:
            size = FUNCTION_BYTES + CONDITION_BYTES * len(check.conditions)
            known = self._functions.put(shape, (check.single(), check), size)
        return known

    def entry(self, holds: Holds, constants: Constants, check: Check) -> tuple[Holds, Constants, Check]:
        """Entry to keep for a row."""
        if check.opaque or check.scopes:
            return holds, constants, check  # holds the predicate itself: no other row has an equal one
        known = self._entries.get((holds, constants))
        if known is None:
            size = ENTRY_BYTES + CONDITION_BYTES * len(constants) + sum(len(c) for c in constants if isinstance(c, str))
            known = self._entries.put((holds, constants), (holds, constants, check), size)
        return known

    def holds_for_many(self, row: int, values: Values, many: Many) -> bool:
        """The check of `row`, if it has one, for a document in which paths occur several times."""
        entry = self.of[row]
        return entry is None or bool(entry[2].holds_for_many(values, many, entry[1]))


def _verified(values: Values, constants: Constants) -> bool:
    """Whether the visit in slot 0, which lets lxml decide once per predicate and document, finds the row's true."""
    return bool(values[0].verifies(constants[-1]))


def _present(values: Values, many: Many, slot: int) -> list[Any]:
    several = many.get(slot)
    if several is not None:
        return several
    value = values[slot]
    return [] if value is None or value is ABSENT_NUMBER else [value]


def _some(test: str, found: list[Any], constant: Any) -> bool:
    """Whether `test` holds for a node-set with the values `found`: for one of them (XPath 1.0 section 3.4).

    Functions of texts read the first node, "" when there is none.
    """
    if test in (conditions.EQUAL, conditions.NUMBER_EQUAL):
        return any(v == constant for v in found)
    if test in (conditions.UNEQUAL, conditions.NUMBER_UNEQUAL):
        return any(v != constant for v in found)
    if test == conditions.LESS_EQUAL:
        return any(v <= constant for v in found)
    if test == conditions.GREATER_EQUAL:
        return any(v >= constant for v in found)
    if test == conditions.EXISTS:
        return bool(found)
    first = found[0] if found else ""
    if test == conditions.CONTAINS:
        return constant in first
    if test == conditions.STARTS_WITH:
        return bool(first.startswith(constant))
    assert test == conditions.NORMALIZED_EQUAL
    return bool(normalized(first) == constant)


def normalized(text: str) -> str:
    """normalize-space(text), XPath 1.0 section 4.2."""
    return _SPACES.sub(" ", text).strip(" ")


_TEMPLATES: Final = {
    conditions.EQUAL: "v[{slot}] == c[{place}]",
    conditions.UNEQUAL: "v[{slot}] is not None and v[{slot}] != c[{place}]",
    conditions.NUMBER_EQUAL: "v[{slot}] == c[{place}]",
    conditions.NUMBER_UNEQUAL: "v[{slot}] is not absent and v[{slot}] != c[{place}]",
    conditions.LESS_EQUAL: "v[{slot}] <= c[{place}]",
    conditions.GREATER_EQUAL: "v[{slot}] >= c[{place}]",
    conditions.EXISTS: "v[{slot}] is not None",
    conditions.CONTAINS: "c[{place}] in (v[{slot}] or '')",
    conditions.STARTS_WITH: "(v[{slot}] or '').startswith(c[{place}])",
    conditions.NORMALIZED_EQUAL: "normalized(v[{slot}] or '') == c[{place}]",
}
"""Each test for at most one node, of the values v and the constants c. Absent: None, or `absent` in number slots."""

_NAMES: Final[dict[str, Any]] = {
    "__builtins__": {},
    "absent": ABSENT_NUMBER,
    "normalized": normalized,
    "verified": _verified,
}


def _source(test: str, slot: int, place: int, negated: bool) -> str:
    text = _TEMPLATES[test].format(slot=int(slot), place=int(place))
    return f"not ({text})" if negated else f"({text})"
