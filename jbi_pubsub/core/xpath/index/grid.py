"""Rows found by equalities and one or two ranges: cells of a grid."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any, Final

from .document import Many, Values
from .family import Bounds, Family, Key, Probe, aligned, span_of

SMALL: Final = 16
"""Rows with equal equalities that are simply scanned (50 ns each); only more of them are worth a grid."""

MAX_LEVELS: Final = 16
"""Sizes of cells in one grid. A row of a further size goes to a level with larger cells: correct, less selective."""

MAX_BUCKET: Final = 1 << 18
"""Bytes of a cell's rows, which an addition copies (15 us); a level of the same size takes what comes after."""

MAX_CELLS: Final = 64
"""Cells visited for a path that occurs several times; above, all cells of the level are."""

_STRIDE: Final = float(2**26 + 3)
"""Joins two cell numbers into one key. Collisions only add candidates, each row is compared with its bounds."""

_SMALLEST_CELL: Final = 2.0**-40

_LARGEST_QUOTIENT: Final = 2.0**1000  # beyond it a cell number might overflow to infinity


class Celled(Family):
    """Equalities and one or two ranges: the rows with a key lie in a grid of cells (tuple-space search).

    The side of a cell is the power of two next above the range's length (half of it with one range only, where finer
    cells cost little memory), so ranges of about the same size share a level of the grid, and touch few of its cells.
    A record is packed rows (bounds, then number) while they are few, else the levels: (side, side, cells' get, cells),
    the cells holding packed rows.
    """

    def __init__(self, keys: tuple[int, ...], ranges: tuple[int, ...]) -> None:
        super().__init__(keys, ranges)
        self._struct = struct.Struct("<" + "d" * 2 * len(ranges) + "I")
        self._ranges = ranges
        self._copies = 0
        self._cells = 0

    def add(self, key: Key, bounds: Bounds, row: int) -> None:
        packed = self._struct.pack(*bounds, row)
        record = self._records.get(key)
        self.rows += 1
        if record is None or (isinstance(record, bytes) and len(record) < SMALL * self._struct.size):
            self._records[key] = (record or b"") + packed
            self._copies += 1
            return
        if isinstance(record, bytes):
            rows = list(self._struct.iter_unpack(record))
            self._copies -= len(rows)
            record = ()
            for other in rows:
                record = self._into_grid(record, other[:-1], self._struct.pack(*other))
        self._records[key] = self._into_grid(record, bounds, packed)

    def remove(self, key: Key, bounds: Bounds, row: int) -> None:
        packed = self._struct.pack(*bounds, row)
        record = self._records[key]
        if isinstance(record, bytes):
            rest: Any = self._without(record, packed)
        else:
            rest = self._out_of_grid(record, bounds, packed)
        if rest:
            self._records[key] = rest
        else:
            del self._records[key]
        self.rows -= 1

    def _without(self, bucket: bytes, packed: bytes) -> bytes:
        place = aligned(bucket, packed)
        self._copies -= 1
        return bucket[:place] + bucket[place + len(packed) :]

    def _into_grid(self, grid: Any, bounds: Bounds, packed: bytes) -> Any:
        level = _level(grid, bounds)
        cells = level[3]
        for cell in _cell_keys(level, bounds):
            bucket = cells.get(cell)
            self._cells += bucket is None
            self._copies += 1
            cells[cell] = packed if bucket is None else bucket + packed
        return grid if any(g is level for g in grid) else (*grid, level)

    def _out_of_grid(self, grid: Any, bounds: Bounds, packed: bytes) -> Any:
        for level in _levels_for(grid, bounds):
            cells = level[3]
            keys = _cell_keys(level, bounds)
            if aligned(cells.get(keys[0], b""), packed) < 0:
                continue
            for cell in keys:
                rest = self._without(cells[cell], packed)
                if rest:
                    cells[cell] = rest
                else:
                    del cells[cell]
                    self._cells -= 1
            return grid if cells else tuple(g for g in grid if g is not level)
        raise AssertionError("a row is not where it was put")

    def probe(self) -> Probe:
        return self._probe_one_range() if len(self._ranges) == 1 else self._probe_two_ranges()

    def _probe_two_ranges(self) -> Probe:
        get, key, unpack = self._records.get, self._key, self._struct.iter_unpack
        first, second = self._ranges

        def probe(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is None:
                return
            x, y = values[first], values[second]
            if record.__class__ is bytes:
                for low, high, bottom, top, row in unpack(record):
                    if low <= x <= high and bottom <= y <= top:
                        found.append(row)
                return
            for width, height, cell, _ in record:
                bucket = cell(x // width * _STRIDE + y // height)
                if bucket is not None:
                    for low, high, bottom, top, row in unpack(bucket):
                        if low <= x <= high and bottom <= y <= top:
                            found.append(row)

        return probe

    def _probe_one_range(self) -> Probe:
        get, key, unpack = self._records.get, self._key, self._struct.iter_unpack
        (slot,) = self._ranges

        def probe(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is None:
                return
            x = values[slot]
            if record.__class__ is bytes:
                found += [row for low, high, row in unpack(record) if low <= x <= high]
                return
            for width, _, cell, _ in record:
                bucket = cell(x // width * _STRIDE)
                if bucket is not None:
                    found += [row for low, high, row in unpack(bucket) if low <= x <= high]

        return probe

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        spans = [span_of(slot, values, many) for slot in self._ranges]
        if None in spans:
            return
        for record in self._records_for(values, many):
            candidates: dict[int, None] = {}  # a row lies in several cells
            for bucket in _buckets(record, spans):
                for row in self._struct.iter_unpack(bucket):
                    if all(row[2 * i] <= s[1] and row[2 * i + 1] >= s[0] for i, s in enumerate(spans) if s):
                        candidates[row[-1]] = None
            found.extend(candidates)

    def size(self) -> int:
        return self._copies * self._struct.size + 90 * self._cells + 250 * len(self._records)


def _side(low: float, high: float) -> float:
    """The side of the cells for a range: the power of two next above its length, so that it touches at most two."""
    length = abs(high - low)
    _, exponent = math.frexp(max(length, _SMALLEST_CELL)) if math.isfinite(length) else (0.0, 2000)
    side = 2.0**exponent if exponent < 1000 else math.inf
    return side if max(abs(low), abs(high)) / side < _LARGEST_QUOTIENT else math.inf


def _sides(bounds: Bounds) -> tuple[float, float]:
    if len(bounds) == 2:
        return _side(bounds[0], bounds[1]) / 2, 1.0
    return _side(bounds[0], bounds[1]), _side(bounds[2], bounds[3])


def _level(grid: Any, bounds: Bounds) -> Any:
    """The level of `grid` for a row: with cells of its size, or when there are too many sizes, with larger ones."""
    width, height = _sides(bounds)
    same = [g for g in grid if g[0] == width and g[1] == height]
    for level in same:
        if len(level[3].get(_cell_keys(level, bounds)[0], b"")) < MAX_BUCKET:
            return level
    if len(grid) >= MAX_LEVELS:
        larger = same[-1:] or [g for g in grid if g[0] >= width and g[1] >= height]
        if larger:
            return min(larger, key=lambda g: (g[0], g[1]))
        width = height = math.inf
    cells: dict[float, bytes] = {}
    return width, height, cells.get, cells


def _levels_for(grid: Any, bounds: Bounds) -> list[Any]:
    """The levels in which a row may lie, its own size first."""
    width, height = _sides(bounds)
    fitting = [g for g in grid if g[0] >= width and g[1] >= height]
    return sorted(fitting, key=lambda g: (g[0] != width or g[1] != height, g[0], g[1]))


def _cell_keys(level: Any, bounds: Bounds) -> list[float]:
    first, last = bounds[0] // level[0], bounds[1] // level[0]
    if len(bounds) == 2:
        columns = {first: None, (first + 1 if first + 1 < last else last): None, last: None}
        return [c * _STRIDE for c in columns]
    columns = dict.fromkeys((first, last))
    rows = dict.fromkeys((bounds[2] // level[1], bounds[3] // level[1]))
    return list(dict.fromkeys(c * _STRIDE + r for c in columns for r in rows))


def _buckets(record: Any, spans: list[Any]) -> Iterator[bytes]:
    """The packed rows that may overlap `spans`."""
    if isinstance(record, bytes):
        yield record
        return
    for level in record:
        counts = [_cells_between(span, side) for span, side in zip(spans, level, strict=False)]
        if math.prod(counts) > MAX_CELLS:
            yield from list(level[3].values())
            continue
        numbers = [[s[0] // w + i for i in range(int(n))] for s, w, n in zip(spans, level, counts, strict=False)]
        for cell in itertools.product(*numbers):
            bucket = level[2](cell[0] * _STRIDE + (cell[1] if len(cell) > 1 else 0.0))
            if bucket is not None:
                yield bucket


def _cells_between(span: tuple[float, float], side: float) -> float:
    count = span[1] // side - span[0] // side + 1
    return count if count < MAX_CELLS else math.inf  # also for infinite and not-a-number counts
