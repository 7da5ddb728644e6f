"""Times at which something is due, by key. Pure: `now` is an argument; the owner's lock covers it."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SWEPT: Final = 64
"""Entries of times that were changed that are not worth a sweep."""


class Agenda(Generic[K]):
    """Keys, each with the one time at which it is due: infinity when it waits for another one. To change a time leaves
    an entry behind, which is skipped; they are swept out when they outnumber the keys."""

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._tie = itertools.count()

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[K]:
        return iter(self._times)

    def __contains__(self, key: object) -> bool:
        return key in self._times

    def time(self, key: K) -> float:
        """When the key is due; minus infinity for one that is not here."""
        return self._times.get(key, -math.inf)

    def set_time(self, key: K, when: float) -> None:
        """The key is due then, and at no other time any more."""
        self._times[key] = when
        if when < math.inf:
            heapq.heappush(self._heap, (when, next(self._tie), key))
        self._sweep()

    def discard(self, key: K) -> None:
        """Forget the key, here or not."""
        self._times.pop(key, None)
        self._sweep()

    def first(self) -> float:
        """When the next one is due; infinity: none is."""
        while self._heap and not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop(self, now: float) -> K | None:
        """The key that has been due longest, which waits for another time from now on; None: none is due yet."""
        if self.first() > now:
            return None
        key = heapq.heappop(self._heap)[2]
        self._times[key] = math.inf
        return key

    def until(self, now: float) -> set[K]:
        """The keys that are due; costs as many steps as there are."""
        places, found = [0], set[K]()
        while places:
            place = places.pop()
            if place < len(self._heap) and self._heap[place][0] <= now:  # else what lies below is later still
                places += (2 * place + 1, 2 * place + 2)
                if self._is_valid(self._heap[place]):
                    found.add(self._heap[place][2])
        return found

    def _is_valid(self, entry: tuple[float, int, K]) -> bool:
        return self._times.get(entry[2]) == entry[0]

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._times) + SWEPT:
            self._heap = list(filter(self._is_valid, self._heap))
            heapq.heapify(self._heap)
