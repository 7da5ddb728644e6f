"""Values of a policy file, each read by a function of its own, which raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.quality import (
    LEVELS,
    PayloadShape,
    QueuePolicy,
    shape_of,
)
from jbi_pubsub.core.xpath import compile_predicate

from .file import nearest
from .units import amount, rate

WEIGHTS_WITHIN: Final = 0.001, 1_000_000
"""Bounds of weights: what is served is divided by them, and summed up for as long as the process lives."""


def _importance(said: object) -> int:
    if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= LEVELS:
        return said
    hint = ". Write it without quotes" if isinstance(said, str) and said.isdecimal() else ""
    raise ValueError(f"{str(said)[:50]!r} is not a whole number from 1 (least) to {LEVELS} (most important){hint}")


def _positive(said: object) -> float:
    seconds = amount(said, "seconds")
    if seconds <= 0:
        raise ValueError("nothing is as quick as that")
    return seconds


def _size(said: object) -> int:
    return int(amount(said, "bytes"))


def _shapes(said: object) -> tuple[PayloadShape, ...]:
    several = said if isinstance(said, list) else [said]
    if not 0 < len(several) <= 8:
        raise ValueError("1 to 8 shapes")
    return tuple(map(shape_of, several))


def _one_of(known: Sequence[str]) -> Callable[[object], str]:
    def reads(said: object) -> str:
        if isinstance(said, str) and said in known:
            return said
        raise ValueError(f"unknown {str(said)[:50]!r}. {nearest(str(said), known)}")

    return reads


REPLACE_KEYS: Final = ("registration", "type")


def _replace(said: object) -> str:
    if not isinstance(said, str) or not said:
        raise ValueError('"registration", "type", or an XPath to what is the same in an object and its successor')
    if said not in REPLACE_KEYS:
        try:
            compile_predicate(said, argument="replace")
        except PredicateError as exc:
            raise ValueError(". ".join(filter(None, (exc.message.removeprefix("replace: "), exc.hint)))) from exc
    return said


def _range(said: object) -> tuple[int, int]:
    if not isinstance(said, list) or len(said) != 2:
        raise ValueError("the least and the most, for example [1, 3]")
    low, high = map(_importance, said)
    if low > high:
        raise ValueError("the least is more than the most")
    return low, high


def _bytes_a_second(said: object) -> float:
    found = rate(said)
    if found.unit != "bytes":
        raise ValueError("is in bits or bytes a second here")
    return found.amount


def _truth(said: object) -> bool:
    if isinstance(said, bool):
        return said
    raise ValueError("is true or false")


def hours_of(said: object) -> tuple[float, float]:
    found = re.fullmatch(r"(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)", said) if isinstance(said, str) else None
    if found is None or int(found[1]) > 23 or int(found[3]) > 24 or max(int(found[2]), int(found[4])) > 59:
        raise ValueError('hours of UTC, for example "08:00-16:30"')
    first, last = (3600.0 * int(found[at]) + 60.0 * int(found[at + 1]) for at in (1, 3))
    if first == last or last > 86_400:
        raise ValueError("no time is between them")
    return first, last % 86_400


def weights_of(said: object) -> tuple[float, ...]:
    least, most = WEIGHTS_WITHIN
    numbers = said if isinstance(said, list) else []
    if len(numbers) != LEVELS or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and least <= each <= most for each in numbers
    ):
        what = f"{LEVELS} numbers above 0, from {least:g} to {most:,}, of importance 1 to {LEVELS}"
        raise ValueError(f"{what}, for example [1, 2, 4, 8, 16]")
    return tuple(map(float, numbers))


def _shares(said: object) -> tuple[float, ...]:
    if not isinstance(said, dict) or not said:
        raise ValueError("parts of the rate by importance, for example { 1 = 0.02, 5 = 0.30 }")
    shares = [0.0] * LEVELS
    for level, part in said.items():
        if level not in map(str, range(1, LEVELS + 1)):
            raise ValueError(f"no importance {level!r}, there is 1 to {LEVELS}")
        if not isinstance(part, int | float) or isinstance(part, bool) or not 0 <= part <= 1:
            raise ValueError(f"{str(part)[:50]} of importance {level} is not a part from 0 to 1")
        shares[int(level) - 1] = float(part)
    if sum(shares) > 1:
        raise ValueError(f"{sum(shares):g} in sum, more than there is")
    return tuple(shares)


def _overhead(said: object) -> int:
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= 1448:
        return said
    raise ValueError("bytes for each 1,448 that are sent, 0 to 1448; 52 is TCP over IP")


def _reserve(said: object) -> float:
    if isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said < 1:
        return float(said)
    raise ValueError("a part of the rate, 0 to 1; 0.03 is three hundredths")


NEVER_NONE: Final = frozenset(["importance", "oversize", "queue"])

FIELD_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "importance": _importance, "deadline": _positive, "shape": _shapes, "max_rate": rate, "max_size": _size,
    "oversize": _one_of(("shape", "drop")), "replace": _replace, "queue": _one_of(get_args(QueuePolicy)),
}  # fmt: skip

ALLOW_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "importance": _range, "deadline": _positive, "max_rate": _bytes_a_second, "max_size": _size, "shape": _truth,
    "replace": _truth,
}  # fmt: skip

LINK_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rate": _bytes_a_second, "min_share": _shares, "each": _bytes_a_second, "overhead": _overhead, "reserve": _reserve,
}  # fmt: skip
