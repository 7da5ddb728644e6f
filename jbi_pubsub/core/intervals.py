"""Sets of numbers as intervals: of objects that have come, where they may come in any order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

LEAST: Final = 16
"""Intervals that a set may have, however many sets there are."""

Range = tuple[int, int]
"""The first number and the last one."""


class RangeSet:
    """A set of numbers as ranges, exact. Whoever fills it bounds how many ranges it has."""

    __slots__ = ("_first", "_last")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for first, last in ranges:
            self.add_range(first, last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number) - 1
        return at >= 0 and number <= self._last[at]

    def __len__(self) -> int:
        """Ranges."""
        return len(self._first)

    def __iter__(self) -> Iterator[Range]:
        """The ranges, (first, last), rising."""
        return zip(self._first, self._last, strict=True)

    def __reversed__(self) -> Iterator[Range]:
        """The ranges, falling."""
        return zip(reversed(self._first), reversed(self._last), strict=True)

    @property
    def top(self) -> int:
        """The greatest number; 0: there is none."""
        return self._last[-1] if self._last else 0

    def count(self) -> int:
        """Numbers."""
        return sum(self._last) - sum(self._first) + len(self._first)

    def add(self, number: int) -> bool:
        """Add a number; whether it is new. The next one, or a later one, costs least."""
        last = self._last
        if not last or number > last[-1] + 1:
            self._first.append(number)
            last.append(number)
        elif number == last[-1] + 1:
            last[-1] = number
        elif number in self:
            return False
        else:
            self.add_range(number, number)
        return True

    def add_range(self, first: int, last: int) -> None:
        """Add all from one to another."""
        begin = bisect_left(self._last, first - 1)
        end = bisect_right(self._first, last + 1)
        if begin < end:
            first, last = min(first, self._first[begin]), max(last, self._last[end - 1])
        self._first[begin:end] = [first]
        self._last[begin:end] = [last]

    def remove_range(self, first: int, last: int) -> None:
        """Remove all from one to another."""
        begin = bisect_left(self._last, first)
        end = bisect_right(self._first, last)
        if begin >= end:
            return
        kept = [(self._first[begin], first - 1), (last + 1, self._last[end - 1])]
        kept = [each for each in kept if each[0] <= each[1]]
        self._first[begin:end] = [each[0] for each in kept]
        self._last[begin:end] = [each[1] for each in kept]

    def gaps(self, first: int, last: int) -> Iterator[Range]:
        """Ranges between one number and another that are not in it."""
        at = first
        place = bisect_left(self._last, first)
        while at <= last:
            if place == len(self._first) or self._first[place] > last:
                yield at, last
                return
            if self._first[place] > at:
                yield at, self._first[place] - 1
            at = self._last[place] + 1
            place += 1

    def within(self, first: int, last: int) -> Iterator[Range]:
        """Ranges between one number and another that are in it."""
        for place in range(bisect_left(self._last, first), len(self._first)):
            if self._first[place] > last:
                return
            yield max(first, self._first[place]), min(last, self._last[place])


class Intervals(RangeSet):
    """A set of numbers from 1 that grows, in bounded memory: beyond so many intervals the smaller half of the gaps
    between them is closed. Those are what a predicate left out between two objects of one delegate; what another
    delegate holds is a part of some length, so its gap stays."""

    __slots__ = ("guessed",)

    def __init__(self) -> None:
        super().__init__()
        self.guessed = 0
        """Numbers up to this one may be held although they never came: they stood in a gap that was closed."""

    def add_within(self, number: int, most: int) -> bool:
        """Add a number, with `most` intervals then; whether it is new."""
        last = self._last
        if last and number == last[-1] + 1:  # as nearly always
            last[-1] = number
            return True
        is_new = self.add(number)
        if is_new and len(last) > most:
            self._close_small_gaps()
        return is_new

    def _close_small_gaps(self) -> None:
        first, last = self._first, self._last
        gaps = [begin - end for begin, end in zip(first[1:], last, strict=False)]
        largest = sorted(gaps)[(len(gaps) - 1) // 2]
        closed = [at for at, gap in enumerate(gaps, 1) if gap <= largest]
        self.guessed = max(self.guessed, first[closed[-1]] - 1)
        for at in reversed(closed):
            del first[at], last[at - 1]
