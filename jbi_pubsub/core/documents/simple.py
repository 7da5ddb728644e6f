"""Texts of simple types, as far as they are valid for certain in every processor (XML Schema part 2)."""

from __future__ import annotations

import math
import re
from typing import Final

from jbi_pubsub.core.documents.shape import ANY_TEXT, SOLID, Texts

MAX_ENUMERATED_CHARS: Final = 2_000
"""Most characters of an enumeration: each stencil holds them in its expression. CAP's longest list has 120."""

_DATE: Final = (
    r"[1-9]\d{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"
_ZONE: Final = r"(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d)?"
_ANY: Final = frozenset(("anyType", "anySimpleType"))
_STRINGS: Final = frozenset(("string", "normalizedString", "token"))
_LEXICAL: Final = {
    "boolean": r"(?:true|false|[01])",
    "float": r"[+-]?+\d{1,9}+(?>\.\d{1,9}+|)",
    "double": r"[+-]?+\d{1,9}+(?>\.\d{1,9}+|)(?>[eE][+-]?+\d{1,2}+|)",
    "dateTime": f"{_DATE}T{_TIME}{_ZONE}",
    "date": f"{_DATE}{_ZONE}",
    "time": f"{_TIME}{_ZONE}",
    "language": r"[a-zA-Z]{1,8}(?:-[a-zA-Z0-9]{1,8})*+",
    "NMTOKEN": r"[A-Za-z0-9._-]++",
    "Name": r"[A-Za-z_][A-Za-z0-9._-]*+",
    "NCName": r"[A-Za-z_][A-Za-z0-9._-]*+",
    "integer": r"[+-]?\d{1,9}",
    "long": r"[+-]?\d{1,9}",
    "int": r"[+-]?\d{1,9}",
    "short": r"[+-]?\d{1,4}",
    "byte": r"[+-]?\d{1,2}",
    "nonNegativeInteger": r"\d{1,9}",
    "positiveInteger": r"[1-9]\d{0,8}",
    "unsignedLong": r"\d{1,9}",
    "unsignedInt": r"\d{1,9}",
    "unsignedShort": r"\d{1,4}",
    "unsignedByte": r"\d{1,2}",
}
"""Part of the lexical space of built-in types (part 2, section 3)."""

_NUMBERS: Final = _LEXICAL.keys() - {"boolean", "dateTime", "date", "time", "language", "NMTOKEN", "Name", "NCName"} | {
    "decimal"
}
_DECIMAL_DIGITS: Final = 18
"""libxml2 takes 24, other processors at least these (part 2, section 3.2.3)."""
_BOUNDS: Final = ("minInclusive", "minExclusive", "maxInclusive", "maxExclusive")
_SIGNED: Final = {"decimal": True, "integer": True, "long": True, "int": True, "nonNegativeInteger": False}
_FRACTION: Final = r"(?>\.\d{1,9}+|)"
_SINGLE_SPACED: Final = f"{SOLID}++(?: {SOLID}++)*+"
_WHOLE: Final = re.compile(r"\d{1,4}", re.ASCII)

Facets = tuple[dict[str, list[str]], ...]
"""The facets of a type's restrictions by name, the innermost restriction first."""


class UnclearError(Exception):
    """Internal: something that is not understood here."""


def builtin_texts(name: str, restrictions: Facets) -> Texts | None:
    enumerations = [own["enumeration"] for own in restrictions if "enumeration" in own]
    facets: dict[str, list[str]] = {}
    for own in restrictions:
        for facet, values in own.items():
            if facet != "enumeration":
                facets.setdefault(facet, []).extend(values)
    if enumerations:
        lexical = _SINGLE_SPACED if name in _STRINGS else _of_decimal({}) if name == "decimal" else _LEXICAL.get(name)
        if lexical is None or facets:
            return None
        return _one_of(set(enumerations[0]).intersection(*enumerations), lexical)
    if name in _ANY and not facets:
        return ANY_TEXT
    if name in _STRINGS:
        return _of_string(facets)
    bounds = {facet: facets.pop(facet) for facet in _BOUNDS if facet in facets}
    if bounds and name not in _NUMBERS:
        return None
    if name == "float" and ("minExclusive" in bounds or "maxExclusive" in bounds):
        return None  # what lies beside the bound may be the bound itself when rounded to 24 bits
    lexical = _of_decimal(facets) if name == "decimal" else None if facets else _LEXICAL.get(name)
    if lexical is None:
        return None
    lows = [_bound(value) for facet in _BOUNDS[:2] for value in bounds.get(facet, ())]
    highs = [_bound(value) for facet in _BOUNDS[2:] for value in bounds.get(facet, ())]
    above, below = max(lows, default=-math.inf), min(highs, default=math.inf)
    is_decimal = name == "decimal" and not facets
    is_whole = name != "decimal" and name in _SIGNED
    sure = _sure(name, above, below, is_decimal=is_decimal) if is_decimal or is_whole else ""
    is_open = above == 0 and any(_bound(value) == 0 for value in bounds.get("minExclusive", ()))
    return Texts(lexical, above, below, "" if is_open else sure)


def _sure(name: str, above: float, below: float, *, is_decimal: bool) -> str:
    """Pattern for what is between whole bounds by its digits, without these; "" where that is not so easy."""
    bounds = [bound for bound in (above, below) if not math.isinf(bound)]
    if not bounds or not all(bound.is_integer() and abs(bound) < 10**9 for bound in bounds) or not above <= 0 < below:
        return ""
    sign = f"-{_less(-above)}|" if above < 0 and (is_decimal or _SIGNED[name]) else ""
    return f"(?>{sign}{_less(below)}){_FRACTION if is_decimal else ''}"


def _less(bound: float) -> str:
    """Whole numbers below a whole one, from 0 on: digit by digit, the longest first."""
    if math.isinf(bound):
        return r"\d{1,9}+"
    digits = str(int(bound))
    rest = len(digits) - 1
    parts = [f"{digits[:at]}[0-{int(d) - 1}]\\d{{{rest - at}}}" for at, d in enumerate(digits) if d != "0"]
    return "(?>" + "|".join([*parts, *([rf"\d{{1,{rest}}}+"] if rest else [])]) + ")"


def _one_of(values: set[str], lexical: str) -> Texts | None:
    """Those of the values that are texts of the type for certain: of others, such as a year of 18 digits, libxml2 may
    take the enumeration and fail on the document."""
    plain = sorted(value for value in values if value.isascii() and re.fullmatch(lexical, value))
    if not plain or sum(map(len, plain)) > MAX_ENUMERATED_CHARS:
        return None
    return Texts("(?:" + "|".join(map(re.escape, sorted(plain, key=len, reverse=True))) + ")")


def _of_string(facets: dict[str, list[str]]) -> Texts | None:
    if not facets:
        return ANY_TEXT
    if not facets.keys() <= {"length", "minLength", "maxLength"}:
        return None
    least = max([counted(v) for name in ("length", "minLength") for v in facets.get(name, ())], default=0)
    most = [counted(v) for name in ("length", "maxLength") for v in facets.get(name, ())]
    return Texts(f"{SOLID}{{{least},{min(most) if most else ''}}}") if not most or least <= min(most) else None


def _of_decimal(facets: dict[str, list[str]]) -> str | None:
    """Decimals within totalDigits and fractionDigits, the digits of either side of the point bounded apart."""
    if not facets.keys() <= {"totalDigits", "fractionDigits"}:
        return None
    total = min([*map(counted, facets.get("totalDigits", ())), _DECIMAL_DIGITS])
    fraction = min(map(counted, facets.get("fractionDigits", ())), default=total // 2)
    if total - fraction < 1:
        return None
    after = rf"(?>\.\d{{1,{fraction}}}+|)" if fraction else ""
    return rf"[+-]?+\d{{1,{total - fraction}}}+{after}"


def counted(value: str) -> int:
    if not _WHOLE.fullmatch(value.strip()):
        raise UnclearError
    return int(value)


def _bound(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        raise UnclearError from None
    if math.isnan(found):
        raise UnclearError
    return found
