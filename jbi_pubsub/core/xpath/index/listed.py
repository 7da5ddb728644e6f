"""Rows found by equalities alone."""

from __future__ import annotations

from array import array

from .document import Many, Values
from .family import Bounds, Family, Key, Probe, aligned


class Listed(Family):
    """Equalities only: the rows with a key are an array of row numbers."""

    def add(self, key: Key, bounds: Bounds, row: int) -> None:  # noqa: ARG002  # has no ranges
        record = self._records.get(key)
        grown = array("I") if record is None else record[:]
        grown.append(row)
        self._records[key] = grown
        self.rows += 1

    def remove(self, key: Key, bounds: Bounds, row: int) -> None:  # noqa: ARG002  # as above
        record = self._records[key]
        if len(record) == 1:
            del self._records[key]
        else:
            place = aligned(record.tobytes(), array("I", (row,)).tobytes()) // 4  # an object per number is slow
            self._records[key] = record[:place] + record[place + 1 :]
        self.rows -= 1

    def probe(self) -> Probe:
        get, key = self._records.get, self._key

        def probe(values: Values, found: list[int]) -> None:
            record = get(key(values))
            if record is not None:
                found.extend(record)

        return probe

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        for record in self._records_for(values, many):
            found.extend(record)

    def size(self) -> int:
        return 4 * self.rows + 250 * len(self._records)
