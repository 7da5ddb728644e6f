"""Times, sizes and rates as people write them in a policy: a number and its unit. Pure.

A bare number is refused where a unit is missing: "5" of what?
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, Literal

from jbi_pubsub.core.quality import QUANTITY_MOST, RATE_LEAST, Rate

Unit = Literal["seconds", "bytes", "rate", "share", "count"]

_BYTES: Final = {
    "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3,
}  # fmt: skip
_UNITS: Final[Mapping[Unit, Mapping[str, float]]] = {
    "seconds": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "bytes": _BYTES,
    "rate": {
        "bps": 1 / 8, "kbps": 1e3 / 8, "Mbps": 1e6 / 8, "Gbps": 1e9 / 8, **{f"{u}/s": f for u, f in _BYTES.items()},
    },
    "share": {"%": 0.01},
    "count": {"": 1.0},
}  # fmt: skip
"""Thousands are those of the SI; rates of links are told in bits, 8 to a byte."""
EXAMPLES: Final[Mapping[Unit, str]] = {
    "seconds": '"5 s", "2 min"', "bytes": '"50 KB" (50,000 bytes)', "rate": '"64 kbps" (bits), "8 KB/s"',
    "share": '"80 %"', "count": "1000",
}  # fmt: skip
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z%/]*)\s*")


def amount(said: object, unit: Unit) -> float:
    """In seconds, bytes, bytes a second, parts of one, or as it is. Raises ValueError, which says what is wrong and
    gives an example."""
    if unit == "count":
        if isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said < math.inf:
            if said > QUANTITY_MOST:
                raise ValueError(f"{_shown(said)} is too large")
            return float(said)
        raise ValueError(f"{_shown(said)} is not a number. For example {EXAMPLES[unit]}")
    if not isinstance(said, str):
        what = "has no unit" if isinstance(said, int | float) and not isinstance(said, bool) else "is not text"
        raise ValueError(f"{_shown(said)} {what}. For example {EXAMPLES[unit]}")
    found = _QUANTITY.fullmatch(said)
    factor = _UNITS[unit].get(found[2]) if found else None
    if found is None or factor is None:
        problem = "has no unit" if found and not found[2] else f"is not in {', '.join(_UNITS[unit])}"
        raise ValueError(f"{_shown(said)} {problem}. For example {EXAMPLES[unit]}")
    value = float(found[1]) * factor
    if value > QUANTITY_MOST:
        raise ValueError(f"{_shown(said)} is too large")
    return value


def rate(said: object) -> Rate:
    """Bytes a second ("64 kbps") or objects a second ("2/s"). Raises ValueError."""
    if isinstance(said, str) and (found := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*/\s*s\s*", said)):
        value, unit = float(found[1]), "objects"
    else:
        value, unit = amount(said, "rate"), "bytes"
    if value < RATE_LEAST:
        raise ValueError(f"{_shown(said)} lets nothing through")
    if value > QUANTITY_MOST:
        raise ValueError(f"{_shown(said)} is too large")
    return Rate(value, "objects" if unit == "objects" else "bytes")


def with_unit(value: float, unit: Unit) -> str:
    """As people write it: in the largest unit that leaves three digits behind the point at most."""
    steps = _LADDERS.get(unit, ())
    for name in steps:
        scaled = value / _UNITS[unit][name]
        if scaled >= 1 and abs(scaled - round(scaled, 3)) < 1e-9:
            return f"{round(scaled, 3):.12g} {name}"
    return f"{value / _UNITS[unit][steps[-1]]:.12g} {steps[-1]}" if steps else f"{value:g}"


_LADDERS: Final[Mapping[Unit, tuple[str, ...]]] = {
    "seconds": ("d", "h", "min", "s", "ms"), "bytes": ("GB", "MB", "KB", "B"),
    "rate": ("Gbps", "Mbps", "kbps", "bps"), "share": ("%",),
}  # fmt: skip


def _shown(said: object) -> str:
    text = repr(said)  # of a file, or a condition: nothing of more than 4,300 digits
    return text if len(text) <= 60 else text[:57] + "..."
