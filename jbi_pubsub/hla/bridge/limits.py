"""Rates of the guard: updates and interactions of a class that go over a bridge in a second."""

from __future__ import annotations

import time

from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.hla.execution import Callback

from .state import Bridge, Plan


class ClassRates:
    """Token buckets, one for each side and rule. A class without a rule has no limit."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, bool, int], TokenBucket] = {}

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
        bucket = self._buckets.setdefault(key, TokenBucket(limit.rate, limit.burst, now))
        if allowed := bucket.fill(now) >= 1.0:
            bucket.take(1.0, now)
        return allowed
