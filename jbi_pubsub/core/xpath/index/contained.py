"""Rows found by the beginning or a part of a text."""

from __future__ import annotations

from typing import Any, Final

from .document import Many, Values
from .family import Bounds, Key, Probe
from .listed import Listed

BETWEEN: Final = "\0"
"""Between texts that are searched together: no text of XML has it, so no text of a row either."""
CUT_COST: Final = 100
"""Cost of cutting out and looking up one part, in characters searched through."""


class Contained(Listed):
    """Rows whose text stands in the document's at one slot, or at its beginning: they are listed by that text.

    What a document holds is cut into texts of the lengths that rows have, and each is looked up; unless it is so long
    that looking for each of the rows' texts in all of it is less. Equal texts count once.
    """

    def __init__(self, slot: int, is_prefix: bool) -> None:
        super().__init__((slot,))
        self._slot = slot
        self._is_prefix = is_prefix
        self._lengths: dict[int, int] = {}

    def add(self, key: Key, bounds: Bounds, row: int) -> None:
        if len(key) not in self._lengths:
            self._lengths = {**self._lengths, len(key): 0}
        self._lengths[len(key)] += 1
        super().add(key, bounds, row)

    def remove(self, key: Key, bounds: Bounds, row: int) -> None:
        super().remove(key, bounds, row)
        self._lengths[len(key)] -= 1
        if not self._lengths[len(key)]:
            self._lengths = {length: rows for length, rows in self._lengths.items() if rows}

    def probe(self) -> Probe:
        slot, records = self._slot, self._records_in

        def probe(values: Values, found: list[int]) -> None:
            for record in records([values[slot] or ""]):
                found.extend(record)

        return probe

    def search(self, values: Values, many: Many, found: list[int]) -> None:
        for record in self._records_in([text or "" for text in many.get(self._slot, (values[self._slot],))]):
            found.extend(record)

    def _records_in(self, texts: list[str]) -> list[Any]:
        lengths = self._lengths
        get = self._records.get
        distinct = set(texts) if len(texts) > 1 else texts
        if self._is_prefix:
            parts = {text[:length] for text in distinct for length in lengths}
        else:
            sizes = list(map(len, distinct))
            count = sum(sum(size - length + 1 for size in sizes if size >= length) for length in lengths)
            if CUT_COST * count > len(self._records) * (CUT_COST + sum(sizes)):
                whole = BETWEEN.join(distinct)
                return [record for part, record in list(self._records.items()) if part in whole]
            parts = {
                text[at : at + length]
                for text in distinct
                for length in lengths
                for at in range(len(text) - length + 1)
            }
        return [record for part in parts if (record := get(part)) is not None]
