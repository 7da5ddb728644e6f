"""Rows found by equalities and one bound: a slice of a sorted array."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final

from .document import Many, Values
from .family import Bounds, Family, Key, Probe, span_of

CHUNK: Final = 1024
"""Bounds in one piece of a sorted record; an insertion copies one piece, 12 KiB."""


class Sorted(Family):
    """Equalities and one bound: the rows with a key are sorted by the bound, those that hold are one slice.

    A record is the least bounds of its pieces, and the pieces: bounds and row numbers, at most CHUNK of them.
    """

    def __init__(self, keys: tuple[int, ...], slot: int, lower: bool) -> None:
        super().__init__(keys, (slot,))
        self._slot = slot
        self._lower = lower

    def add(self, key: Key, bounds: Bounds, row: int) -> None:
        (bound,) = bounds
        least, pieces = self._records.get(key) or (array("d"), ())
        place = max(bisect_right(least, bound) - 1, 0)
        old, rows = pieces[place] if pieces else (array("d"), array("I"))
        at = bisect_right(old, bound)
        grown = old[:at] + array("d", (bound,)) + old[at:], rows[:at] + array("I", (row,)) + rows[at:]
        self._store(key, pieces[:place] + _halves(grown) + pieces[place + 1 :])
        self.rows += 1

    def remove(self, key: Key, bounds: Bounds, row: int) -> None:
        (bound,) = bounds
        least, pieces = self._records[key]
        for place in range(max(bisect_left(least, bound) - 1, 0), len(pieces)):
            old, rows = pieces[place]
            low, high = bisect_left(old, bound), bisect_right(old, bound)
            if row in rows[low:high]:
                at = rows.index(row, low)
                rest = old[:at] + old[at + 1 :], rows[:at] + rows[at + 1 :]
                self._store(key, pieces[:place] + ((rest,) if rest[0] else ()) + pieces[place + 1 :])
                self.rows -= 1
                return
        raise AssertionError(f"row {row} is not where it was put")

    def _store(self, key: Key, pieces: tuple[tuple[array[float], array[int]], ...]) -> None:
        if pieces:
            self._records[key] = array("d", [p[0][0] for p in pieces]), pieces
        else:
            del self._records[key]

    def probe(self) -> Probe:
        get, key, slot, slices = self._records.get, self._key, self._slot, self._slices

        def probe(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                for rows in slices(record, values[slot]):
                    found.extend(rows)

        return probe

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        span = span_of(self._slot, values, many)
        if span is not None:
            for record in self._records_for(values, many):
                for rows in self._slices(record, span[1] if self._lower else span[0]):
                    found.extend(rows)

    def _slices(self, record: Any, value: float) -> Iterator[array[int]]:
        """The rows whose bound holds for `value`: lower bounds up to it, or upper bounds from it on."""
        if value != value:
            return
        least, pieces = record
        if self._lower:
            last = bisect_right(least, value) - 1
            for _, rows in pieces[: max(last, 0)]:
                yield rows
            if last >= 0:
                bounds, rows = pieces[last]
                yield rows[: bisect_right(bounds, value)]
        else:
            first = bisect_left(least, value)
            if first:
                bounds, rows = pieces[first - 1]
                yield rows[bisect_left(bounds, value) :]
            for _, rows in pieces[first:]:
                yield rows

    def size(self) -> int:
        return 12 * self.rows + 500 * len(self._records)


def _halves(piece: tuple[array[float], array[int]]) -> tuple[tuple[array[float], array[int]], ...]:
    bounds, rows = piece
    if len(bounds) <= CHUNK:
        return (piece,)
    half = len(bounds) // 2
    return (bounds[:half], rows[:half]), (bounds[half:], rows[half:])
