"""Families: the rows of an index, kept by how they can be found.

A row is one conjunct of one predicate, named by a number. Its access key is all its equalities (up to MAX_KEYS)
together with up to two ranges closed on both sides, or one range open on one side. Rows with the same kind of key form
a family; finding the candidates of a document costs about the same however many rows there are.

Rules:
- One writer changes a family, any number of readers search it at the same time without a lock: what a dictionary
  holds is never changed, only replaced, each time by one store.
- `probe` is for a family none of whose keys occurs twice in the document; `search` is exact for every document: a range
  then holds if some node is high enough and some node, perhaps another, is low enough.
- Rows of a family with `checks` must pass their check as well; see check.py.
"""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, Protocol

from .check import Checks
from .reading import ABSENT_NUMBER, Many, Values

MAX_KEYS: Final = 4
"""Equalities in an access key. More add nothing measurable: four already choose very few rows."""

SMALL: Final = 16
"""Rows with equal equalities that are simply scanned (50 ns each); only more of them are worth a grid."""

CHUNK: Final = 1024
"""Bounds in one piece of a sorted record; an insertion copies one piece, 12 KiB."""

MAX_LEVELS: Final = 16
"""Sizes of cells in one grid. A row of a further size goes to a level with larger cells: correct, less selective."""

MAX_BUCKET: Final = 1 << 18
"""Bytes of a cell's rows, which an addition copies (15 us); a level of the same size takes what comes after."""

MAX_SEARCHED: Final = 1 << 14
"""Bytes of a cell in which an equal row is looked for."""

MAX_CELLS: Final = 64
"""Cells visited for a path that occurs several times; above, all cells of the level are."""

MAX_COMBINATIONS: Final = 1024
"""Combinations of values tried for paths that occur several times; above, all records are gone through."""

MAX_INTERNED: Final = 1024
"""Keys kept to be shared by rows; where there are more different ones, sharing saves nothing."""

_STRIDE: Final = float(2**26 + 3)
"""Joins two cell numbers into one key. Collisions only add candidates, each row is compared with its bounds."""

_SMALLEST_CELL: Final = 2.0**-40
_LARGEST_QUOTIENT: Final = 2.0**1000  # beyond it a cell number might overflow to infinity

Bounds = tuple[float, ...]
"""Lower and upper bound (closed) of each range; a single bound for a range open on one side; () without range."""

Key = Any  # one constant, or a tuple of them; what itemgetter makes of the same slots of a document
Probe = Callable[[Values, list[int]], None]


class Family(Protocol):
    """Rows with the same kind of access key."""

    slots: frozenset[int]
    checked: bool
    scoped: bool
    rows: int

    def packed(self, bounds: Bounds, row: int) -> bytes:
        """A row as bytes, its number last (four bytes, little-endian)."""

    def interned(self, key: Key) -> Key:
        """An equal key, the same object for many rows, to save memory."""

    def twin(self, key: Key, bounds: Bounds) -> int | None:
        """The number of a row with the same key and bounds, if one is found quickly."""

    def add(self, key: Key, packed: bytes) -> None:
        """Take in a row."""

    def remove(self, key: Key, packed: bytes) -> None:
        """Drop a row that was added with the same arguments."""

    def probe(self) -> Probe:
        """The fast search: a function that appends the rows which hold."""

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        """The exact search for a document in which paths occur several times."""

    def size(self) -> int:
        """Estimated bytes."""


class _Keyed:
    """What the families share: records by key, and the checks of their rows."""

    def __init__(
        self, keys: tuple[int, ...], ranges: tuple[int, ...], bounds: int, checked: bool, checks: Checks
    ) -> None:
        self._struct = struct.Struct("<" + "d" * bounds + "I")
        self._interned: dict[Key, Key] = {}
        self.slots = frozenset(keys) | frozenset(ranges)
        self.checked = checked
        self.scoped = False
        self.rows = 0
        self._keys = keys
        self._key: Callable[[Values], Key] = itemgetter(*keys) if keys else _no_key
        self._checks = checks
        self._records: dict[Key, Any] = {}

    def packed(self, bounds: Bounds, row: int) -> bytes:
        return self._struct.pack(*bounds, row)

    def interned(self, key: Key) -> Key:
        if len(self._interned) >= MAX_INTERNED:
            self._interned.clear()
        return self._interned.setdefault(key, key)

    def _records_for(self, values: Values, many: Many) -> Iterable[Any]:
        """The records whose equalities hold for some of the values."""
        choices = [dict.fromkeys(many.get(s, (values[s],))) for s in self._keys]
        if math.prod(map(len, choices)) > min(MAX_COMBINATIONS, len(self._records)):
            return [
                record
                for key, record in list(self._records.items())
                if all(k in c for k, c in zip(key if len(choices) > 1 else (key,), choices, strict=True))
            ]
        keys = itertools.product(*choices) if len(choices) != 1 else iter(choices[0])
        return [record for key in keys if (record := self._records.get(key)) is not None]

    def _pass(self, candidates: Iterable[int], values: Values, many: Many, found: list[int]) -> None:
        if self.checked or self.scoped:
            holds = self._checks.holds_for_many
            found.extend([row for row in candidates if holds(row, values, many)])
        else:
            found.extend(candidates)


def row_of(packed: bytes) -> int:
    """The number of a packed row."""
    return int.from_bytes(packed[-4:], "little")


def _aligned(rows: bytes, packed: bytes, size: int) -> int:
    """Where `packed` is in rows of `size` bytes, or -1."""
    place = rows.find(packed)
    while place > 0 and place % size:
        place = rows.find(packed, place + 1)
    return place


def _no_key(values: Values) -> Key:  # noqa: ARG001  # same signature as an itemgetter
    return ()


class Listed(_Keyed):
    """Equalities only: the rows with a key are an array of row numbers."""

    def __init__(self, keys: tuple[int, ...], checked: bool, checks: Checks) -> None:
        super().__init__(keys, (), 0, checked, checks)

    def twin(self, key: Key, bounds: Bounds) -> int | None:  # noqa: ARG002  # has no ranges
        record = self._records.get(key)
        return record[0] if record is not None else None

    def add(self, key: Key, packed: bytes) -> None:
        record = self._records.get(key)
        grown = array("I") if record is None else record[:]
        grown.append(row_of(packed))
        self._records[key] = grown
        self.rows += 1

    def remove(self, key: Key, packed: bytes) -> None:
        record = self._records[key]
        if len(record) == 1:
            del self._records[key]
        else:
            place = _aligned(record.tobytes(), packed[-4:], 4) // 4  # comparing bytes, not an object per number
            self._records[key] = record[:place] + record[place + 1 :]
        self.rows -= 1

    def probe(self) -> Probe:
        get, key, checks = self._records.get, self._key, self._checks.of

        def plain(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                found.extend(record)

        def checked(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                for row in record:
                    holds, constants, _ = checks[row]
                    if holds(values, constants):
                        found.append(row)

        return checked if self.checked else plain

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        for record in self._records_for(values, many):
            self._pass(record, values, many, found)

    def size(self) -> int:
        return 4 * self.rows + 250 * len(self._records)


class Sorted(_Keyed):
    """Equalities and one bound: the rows with a key are sorted by the bound, those that hold are one slice.

    A record is the least bounds of its pieces, and the pieces: bounds and row numbers, at most CHUNK of them.
    """

    def __init__(self, keys: tuple[int, ...], slot: int, lower: bool, checked: bool, checks: Checks) -> None:
        super().__init__(keys, (slot,), 1, checked, checks)
        self._slot = slot
        self._lower = lower

    def twin(self, key: Key, bounds: Bounds) -> int | None:
        least, pieces = self._records.get(key) or (array("d"), ())
        place = bisect_right(least, bounds[0]) - 1
        if place < 0:
            return None
        old, rows = pieces[place]
        at = bisect_right(old, bounds[0]) - 1
        return rows[at] if old[at] == bounds[0] else None

    def add(self, key: Key, packed: bytes) -> None:
        bound, row = self._struct.unpack(packed)
        least, pieces = self._records.get(key) or (array("d"), ())
        place = max(bisect_right(least, bound) - 1, 0)
        old, rows = pieces[place] if pieces else (array("d"), array("I"))
        at = bisect_right(old, bound)
        grown = old[:at] + array("d", (bound,)) + old[at:], rows[:at] + array("I", (row,)) + rows[at:]
        self._store(key, pieces[:place] + _halves(grown) + pieces[place + 1 :])
        self.rows += 1

    def remove(self, key: Key, packed: bytes) -> None:
        bound, row = self._struct.unpack(packed)
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
        get, key, checks, slot, slices = self._records.get, self._key, self._checks.of, self._slot, self._slices

        def plain(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                for rows in slices(record, values[slot]):
                    found.extend(rows)

        def checked(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                for rows in slices(record, values[slot]):
                    for row in rows:
                        holds, constants, _ = checks[row]
                        if holds(values, constants):
                            found.append(row)

        return checked if self.checked else plain

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        span = _span(self._slot, values, many)
        if span is not None:
            for record in self._records_for(values, many):
                for rows in self._slices(record, span[1] if self._lower else span[0]):
                    self._pass(rows, values, many, found)

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


class Celled(_Keyed):
    """Equalities and one or two ranges: the rows with a key lie in a grid of cells (tuple-space search).

    The side of a cell is the power of two next above the range's length (half of it with one range only, where finer
    cells cost little memory), so ranges of about the same size share a level of the grid, and touch few of its cells.
    A record is packed rows (bounds, then number) while they are few, else the levels: (side, side, cells' get, cells),
    the cells holding packed rows.
    """

    def __init__(self, keys: tuple[int, ...], ranges: tuple[int, ...], checked: bool, checks: Checks) -> None:
        super().__init__(keys, ranges, 2 * len(ranges), checked, checks)
        self._ranges = ranges
        self._copies = 0
        self._cells = 0

    def add(self, key: Key, packed: bytes) -> None:
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
        self._records[key] = self._into_grid(record, self._struct.unpack(packed)[:-1], packed)

    def remove(self, key: Key, packed: bytes) -> None:
        record = self._records[key]
        if isinstance(record, bytes):
            rest: Any = self._without(record, packed)
        else:
            rest = self._out_of_grid(record, self._struct.unpack(packed)[:-1], packed)
        if rest:
            self._records[key] = rest
        else:
            del self._records[key]
        self.rows -= 1

    def twin(self, key: Key, bounds: Bounds) -> int | None:
        packed = self._struct.pack(*bounds, 0)[:-4]
        record = self._records.get(key)
        if record is None:
            return None
        if isinstance(record, bytes):
            return self._found(record, packed)
        for level in _levels_for(record, bounds):
            bucket = level[3].get(_cell_keys(level, bounds)[0])
            row = self._found(bucket, packed) if bucket is not None and len(bucket) <= MAX_SEARCHED else None
            if row is not None:
                return row
        return None

    def _found(self, bucket: bytes, packed: bytes) -> int | None:
        place = self._place(bucket, packed)
        return None if place < 0 else int(self._struct.unpack_from(bucket, place)[-1])

    def _place(self, bucket: bytes, packed: bytes) -> int:
        return _aligned(bucket, packed, self._struct.size)

    def _without(self, bucket: bytes, packed: bytes) -> bytes:
        place = self._place(bucket, packed)
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
            if self._place(cells.get(keys[0], b""), packed) < 0:
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
        if len(self._ranges) == 1:
            return self._probe_one_range()
        return self._probe_checked() if self.checked else self._probe_two_ranges()

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
        get, key, unpack, checks, checked = (
            self._records.get, self._key, self._struct.iter_unpack, self._checks.of, self.checked,
        )  # fmt: skip
        (slot,) = self._ranges

        def probe(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is None:
                return
            x = values[slot]
            if record.__class__ is bytes:
                rows = [row for low, high, row in unpack(record) if low <= x <= high]
            else:
                rows = []
                for width, _, cell, _ in record:
                    bucket = cell(x // width * _STRIDE)
                    if bucket is not None:
                        rows += [row for low, high, row in unpack(bucket) if low <= x <= high]
            if checked:
                for row in rows:
                    holds, constants, _ = checks[row]
                    if holds(values, constants):
                        found.append(row)
            else:
                found += rows

        return probe

    def _probe_checked(self) -> Probe:
        plain, checks = self._probe_two_ranges(), self._checks.of

        def probe(values: Values, found: list[int]) -> None:
            rows: list[int] = []
            plain(values, rows)
            for row in rows:
                holds, constants, _ = checks[row]
                if holds(values, constants):
                    found.append(row)

        return probe

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        spans = [_span(slot, values, many) for slot in self._ranges]
        if None in spans:
            return
        for record in self._records_for(values, many):
            candidates: dict[int, None] = {}  # a row lies in several cells
            for bucket in _buckets(record, spans):
                for row in self._struct.iter_unpack(bucket):
                    if all(row[2 * i] <= s[1] and row[2 * i + 1] >= s[0] for i, s in enumerate(spans) if s):
                        candidates[row[-1]] = None
            self._pass(candidates, values, many, found)

    def size(self) -> int:
        return self._copies * self._struct.size + 90 * self._cells + 250 * len(self._records)


def _span(slot: int, values: Values, many: Many) -> tuple[float, float] | None:
    """The least and the greatest number at a slot; None when there is no number."""
    numbers = [n for n in many.get(slot, (values[slot],)) if n == n and n is not ABSENT_NUMBER]
    return (min(numbers), max(numbers)) if numbers else None


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
