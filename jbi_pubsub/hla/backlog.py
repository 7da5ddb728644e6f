"""Backlog in the order of time stamps, as a value: a tuple of tuples, each of CHUNK items at most.

One tuple of all would be copied whole for each item that comes in. Up to CHUNK items that come in order make one tuple,
so that short backlogs that hold the same are equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, Protocol, TypeVar

CHUNK: Final = 256


class Stamped(Protocol):
    """Anything with a time stamp, in seconds of logical time."""

    @property
    def time(self) -> float: ...


T = TypeVar("T", bound=Stamped)
Backlog = tuple[tuple[T, ...], ...]


def put(backlog: Backlog[T], item: T) -> Backlog[T]:
    """With one more item, behind those of the same time."""
    if not backlog:
        return ((item,),)
    where = max(0, bisect_right(backlog, item.time, key=_first) - 1)
    chunk = backlog[where]
    at = bisect_right(chunk, item.time, key=_time)
    whole = (*chunk[:at], item, *chunk[at:])
    cut = CHUNK if at == CHUNK else CHUNK // 2
    parts = (whole[:cut], whole[cut:]) if len(whole) > CHUNK else (whole,)
    return (*backlog[:where], *parts, *backlog[where + 1 :])


_time: Final = attrgetter("time")


def _first(chunk: tuple[Stamped, ...]) -> float:
    return chunk[0].time


def split(backlog: Backlog[T], time: float) -> tuple[tuple[T, ...], Backlog[T]]:
    """The items up to a time, that time too, in their order; and the rest."""
    where = bisect_right(backlog, time, key=_first)
    if not where:
        return (), backlog
    last = backlog[where - 1]
    at = bisect_right(last, time, key=_time)
    taken = tuple(each for chunk in backlog[: where - 1] for each in chunk) + last[:at]
    return taken, (last[at:], *backlog[where:]) if at < len(last) else backlog[where:]


def items(backlog: Backlog[T]) -> Iterator[T]:
    """All of them, in their order."""
    for chunk in backlog:
        yield from chunk


def without(backlog: Backlog[T], unwanted: Callable[[T], bool]) -> Backlog[T]:
    """Without some; it is the same object where there are none such."""
    if not any(map(unwanted, items(backlog))):
        return backlog
    left = (tuple(each for each in chunk if not unwanted(each)) for chunk in backlog)
    return tuple(chunk for chunk in left if chunk)
