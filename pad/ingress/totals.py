"""Totals of all objects that were ever here, whoever has gone since: for status and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final

from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription

OF_REGISTRATIONS: Final = ("published", "refused", "unmatched", "signed", "bad_signature")

OF_SUBSCRIPTIONS: Final = ("matched", "suppressed", "delivered", "mailed", "replayed")


class Totals:
    """Totals of registrations and subscriptions that have ended, and of what came for those. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def close_registration(self, registration: Registration) -> None:
        """Add the totals of a registration that has ended."""
        with self._lock:
            self._totals.update({name: getattr(registration.totals, name) for name in OF_REGISTRATIONS})

    def close_subscription(self, subscription: Subscription) -> None:
        """Add the totals of a subscription that has ended."""
        with self._lock:
            self._totals.update({name: getattr(subscription, name) for name in OF_SUBSCRIPTIONS})
            self._lost.update(+subscription.lost)

    def add(self, *, matched: int = 0, mailed: int = 0, lost: dict[str, int] | None = None) -> None:
        """Add what came of a subscription before our time, or of an object that came for one that had just ended."""
        with self._lock:
            self._totals["matched"] += matched
            self._totals["mailed"] += mailed
            self._lost.update(lost or {})

    def totals(
        self, registrations: Iterable[Registration], subscriptions: Iterable[Subscription]
    ) -> dict[str, int | dict[str, int]]:
        """With those that stand: the counters by name, and under `lost` those of losses by cause."""
        with self._lock:
            totals, lost = Counter(self._totals), Counter(self._lost)
        for registration in registrations:
            totals.update({name: getattr(registration.totals, name) for name in OF_REGISTRATIONS})
        for subscription in subscriptions:
            totals.update({name: getattr(subscription, name) for name in OF_SUBSCRIPTIONS})
            lost.update(subscription.lost)
        return {**{name: totals[name] for name in (*OF_REGISTRATIONS, *OF_SUBSCRIPTIONS)}, "lost": dict(lost)}
