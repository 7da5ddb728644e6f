"""Pauses between tries of what fails: they double up to a bound, and jitter keeps many clients from trying together."""

from __future__ import annotations

import random
from collections.abc import Callable


def jitter() -> float:
    """Part of a pause that is waited."""
    return random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret


class Backoff:
    """Pauses of one task: `first` seconds, twice as long each time until it is `most`, each shortened by `jitter`. For
    one thread at a time."""

    __slots__ = ("_first", "_jitter", "_most", "_next")

    def __init__(self, first: float, most: float, jitter: Callable[[], float] = jitter) -> None:
        self._first = self._next = first
        self._most = most
        self._jitter = jitter

    def reset(self) -> None:
        """The next pause is the first one again: a try has succeeded."""
        self._next = self._first

    def pause(self) -> float:
        """Seconds until the next try."""
        pause = min(self._next, self._most)
        self._next = 2 * pause
        return pause * self._jitter()
