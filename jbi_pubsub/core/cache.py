"""Things remembered so that they need not be made or asked for again: so many things, or as many as fit into so many
bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import Lock, RLock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(OrderedDict[K, V]):
    """Values by key, `most` of them: for one more the one goes that was set longest ago. Several threads may read and
    set; each then sees what one of them has set.

    A dict finds its first key by passing all places whose keys are gone; here one more costs the same, however many
    there are."""

    __slots__ = ("_lock", "_make", "most")

    def __init__(self, most: int, make: Callable[[K], V] | None = None) -> None:
        """`make`: gives the value of a key that is asked for by `cache[key]`, and is not there."""
        super().__init__()
        self.most = most
        self._make = make
        self._lock = RLock()  # keys that compare in Python let other threads in, which an OrderedDict does not stand

    def __missing__(self, key: K) -> V:
        if self._make is None:
            raise KeyError(key)
        value = self[key] = self._make(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock, suppress(KeyError):  # another thread has popped it meanwhile
            super().__setitem__(key, value)
            self.move_to_end(key)
            while len(self) > self.most:
                self.popitem(last=False)


class SizedCache(Generic[K, V]):
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
        """Value that was put, if it is not forgotten."""
        return self._values.get(key)

    def put(self, key: K, value: V, size: int) -> V:
        """Remember `value`, which takes `size` bytes with its key; it is returned."""
        if self.size + size > self._limit:
            self._values, self.size = {}, 0
        if size <= self._limit:
            self._values[key] = value
            self.size += size
        return value


class InUse(Generic[K, V]):
    """Objects that are in use, by what makes them equal, so that equal ones are one. Any thread may use it."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[K, V] = WeakValueDictionary()
        self._lock = Lock()

    def find(self, key: K) -> V | None:
        """The object, if there is one."""
        with self._lock:
            return self._objects.get(key)

    def one(self, key: K, made: V) -> V:
        """The object, which is `made` unless there is one."""
        with self._lock:
            return self._objects.setdefault(key, made)
