"""What is remembered so that it need not be made again: as many things as fit into so many bytes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key. One that does not fit any more makes all others forgotten: they are made anew when needed.

    One writer at a time; what a reader gets meanwhile is what was put, or None.
    """

    def __init__(self, limit: int) -> None:
        """`limit` bytes of all values together, as who puts them says."""
        self._limit = limit
        self._values: dict[K, V] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """What was put, if it is not forgotten."""
        return self._values.get(key)

    def put(self, key: K, value: V, size: int) -> V:
        """Remember `value`, which takes `size` bytes with its key; it is returned."""
        if self.size + size > self._limit:
            self._values, self.size = {}, 0
        if size <= self._limit:
            self._values[key] = value
            self.size += size
        return value
