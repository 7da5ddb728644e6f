"""Families: the rows of an index, kept by how they can be found.

A row is one conjunct of one predicate, named by a number. Its access key is all its equalities (up to MAX_KEYS)
together with up to two ranges closed on both sides, or one range open on one side. Rows with the same kind of key form
a family; finding the candidates of a document costs about the same however many rows there are.

Rules:
- One writer changes a family, any number of readers search it at the same time without a lock: what a dictionary
  holds is never changed, only replaced, each time by one store.
- `probe` is for a family none of whose keys occurs twice in the document; `search` is exact for every document: a range
  then holds if some node is high enough and some node, perhaps another, is low enough.
- Rows of a family that is `checked` must pass their check as well (residual.py); where a path occurs twice, also those
  of one that has `scopes`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final

from .document import ABSENT_NUMBER, Many, Values

MAX_KEYS: Final = 4
"""Equalities in an access key. More add nothing measurable: four already choose very few rows."""

MAX_COMBINATIONS: Final = 1024
"""Combinations of values tried for paths that occur several times; above, all records are gone through."""

Bounds = tuple[float, ...]
"""Lower and upper bound (closed) of each range; a single bound for a range open on one side; () without range."""

Key = Any  # one constant, or a tuple of them; what itemgetter makes of the same slots of a document
Probe = Callable[[Values, list[int]], None]


class Family(ABC):
    """Rows with the same kind of access key: records by the key's equalities."""

    def __init__(self, keys: tuple[int, ...], ranges: tuple[int, ...] = ()) -> None:
        self.slots = frozenset(keys) | frozenset(ranges)
        self.checked = False
        self.asked: frozenset[int] = frozenset()
        """Slots that checks read, scopes among them."""
        self.rows = 0
        self._keys = keys
        self._key: Callable[[Values], Key] = itemgetter(*keys) if keys else _no_key
        self._records: dict[Key, Any] = {}

    @abstractmethod
    def add(self, key: Key, bounds: Bounds, row: int) -> None:
        """Take in a row."""

    @abstractmethod
    def remove(self, key: Key, bounds: Bounds, row: int) -> None:
        """Drop a row that was added with the same arguments."""

    @abstractmethod
    def probe(self) -> Probe:
        """The fast search: a function that appends the rows which hold."""

    @abstractmethod
    def search(self, values: Values, many: Many, found: list[int]) -> None:
        """The exact search for a document in which paths occur several times."""

    @abstractmethod
    def size(self) -> int:
        """Estimated bytes."""

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


def aligned(rows: bytes, packed: bytes) -> int:
    """Where `packed` is in rows of its size, or -1."""
    place = rows.find(packed)
    while place > 0 and place % len(packed):
        place = rows.find(packed, place + 1)
    return place


def _no_key(values: Values) -> Key:  # noqa: ARG001  # same signature as an itemgetter
    return ()


def span_of(slot: int, values: Values, many: Many) -> tuple[float, float] | None:
    """The least and the greatest number at a slot; None when there is no number."""
    numbers = [n for n in many.get(slot, (values[slot],)) if n == n and n is not ABSENT_NUMBER]
    return (min(numbers), max(numbers)) if numbers else None
