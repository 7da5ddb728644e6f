"""Rates of the guard: updates and interactions of a class that go over a bridge in a second."""

from __future__ import annotations

import time

from jbi_pubsub.hla.execution import Callback

from .state import Bridge, Plan


class ClassRates:
    """Token buckets, one for each side and rule. A class without a rule has no limit."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, bool, int], tuple[float, float]] = {}

    def allows(self, plan: Plan, bridge: Bridge, side: int, callback: Callback) -> bool:
        """Whether it goes."""
        is_interaction = callback.name == "receive_interaction"
        cls = callback.arguments[0]
        if not is_interaction:
            twin = bridge.objects.get((side, cls))
            cls = twin.cls if twin is not None else 0
        limit = plan.translation.limit(side, cls, of_interaction=is_interaction)
        if limit is None:
            return True
        now = time.monotonic()
        key = (side, is_interaction, limit.key)
        tokens, at = self._buckets.get(key, (limit.burst, now))
        tokens = min(limit.burst, tokens + (now - at) * limit.rate)
        allowed = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if allowed else tokens, now)
        return allowed
