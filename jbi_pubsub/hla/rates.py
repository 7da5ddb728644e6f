"""Update rates of subscriptions: how often values that go by best effort are reflected at most (IEEE 1516.1-2010, 5.6).

Each attribute of each instance is due at a time, for each federate. What comes earlier is left out, but for the last
half of an interval: of who sends at just that rate, though unevenly, nothing is lost. The next interval is longer then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .execution import Callback

LEAST_KEPT: Final = 1_000


class UpdateRates:
    """Values that are due in a federation. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._due: dict[tuple[int, int, int], float] = {}
        """By federate, instance and attribute."""
        self._most = LEAST_KEPT
        self.reduced = 0
        """Values that were left out."""

    def within(self, federate: int, callback: Callback) -> Callback | None:
        """A reflection with the values that are due; None: none is."""
        if not callback.rates:
            return callback
        (instance, values, *rest), now = callback.arguments, self._clock()
        rated = zip(values, callback.rates, strict=True)
        due = tuple(v for v, rate in rated if not rate or self._is_due((federate, instance, v[0]), 1.0 / rate, now))
        self.reduced += len(values) - len(due)
        if len(self._due) > self._most:  # what is due by now need not be known
            self._due = {key: at for key, at in self._due.items() if at > now}
            self._most = 2 * len(self._due) + LEAST_KEPT
        return callback._replace(arguments=(instance, due, *rest)) if due else None

    def _is_due(self, key: tuple[int, int, int], interval: float, now: float) -> bool:
        at = self._due.get(key, now)
        if now < at - interval / 2:
            return False
        self._due[key] = max(now, at) + interval
        return True
