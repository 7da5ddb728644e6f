"""Marks of an index: positions at which its objects were counted, so that a query looks at a part first. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from jbi_pubsub.core.history import Order

MARK_ROWS: Final = 4096
"""Objects between positions at which they were counted."""


class PositionMarks:
    """Positions, in order, and the objects before each, from the one before it."""

    def __init__(self, marks: Sequence[tuple[int, int]] = ()) -> None:
        """`marks`: positions and objects, as they are kept."""
        self._positions = [position for position, _ in marks]
        self._rows = [rows for _, rows in marks]
        self._since = 0
        """Objects behind the last one."""

    def add(self, up_to: int, count: int) -> int:
        """So many objects more have come, up to that position; how many a new mark there has, 0 if there is none."""
        self._since += count
        if self._since < MARK_ROWS:
            return 0
        rows, self._since = self._since, 0
        self._positions.append(up_to)
        self._rows.append(rows)
        return rows

    def window(self, after: int, up_to: int, rows: int, order: Order) -> tuple[int, int]:
        """Bounds of the part, within these, that has so many objects; the whole where marks tell of none."""
        total = 0
        if order == "oldest":
            for place in range(bisect_right(self._positions, after), len(self._positions)):
                total += self._rows[place]
                if total >= rows:
                    return after, min(up_to, self._positions[place])
            return after, up_to
        for place in range(bisect_left(self._positions, up_to) - 1, -1, -1):
            if self._positions[place] <= after:
                break
            total += self._rows[place + 1] if place + 1 < len(self._positions) else 0
            if total >= rows:
                return self._positions[place], up_to
        return after, up_to
