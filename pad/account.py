"""What came of all objects that were ever here, whoever has gone since: for status and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final

from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.subscription import Subscription

OF_REGISTRATIONS: Final = ("published", "refused", "unmatched", "signed", "bad_signature")
OF_SUBSCRIPTIONS: Final = ("matched", "suppressed", "delivered", "mailed", "replayed")


STANDING_MOST: Final = 64 << 20
"""Bytes of all requests that one peer has standing at a delegate: a hundred thousand subscriptions of 600."""

Share = tuple[str, int]
"""Of a peer, so many bytes."""
NO_SHARE: Final[Share] = ("", 0)


class RequestQuota:
    """What peers have standing here, in bytes of their requests: registrations, subscriptions, open queries. Any
    thread."""

    def __init__(self, most: int = STANDING_MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, caller: Caller | None, size: int, instead: Share = NO_SHARE) -> Share:
        """So much more of it, until it is given back, or in place of another share; the application that a peer
        publisher lives in (None) has no bound. Raises OversizeError."""
        peer = caller.peer if caller is not None else ""
        with self._lock:
            taken = self._taken[peer] - (instead[1] if instead[0] == peer else 0)
            if peer and taken + size > self._most:
                raise OversizeError(
                    f"{peer} has {taken:,} bytes of registrations, subscriptions and queries here, and asks for"
                    f" {size:,} more",
                    hint=f"At most {self._most:,}: cancel some, or use another delegate",
                )
            self._add(instead[0], -instead[1])
            self._add(peer, size)
        return peer, size

    def put_back(self, share: Share, before: Share) -> None:
        """That one share was taken in the place of another is undone."""
        with self._lock:
            self._add(share[0], -share[1])
            self._add(before[0], before[1])

    def give_back(self, share: Share) -> None:
        """It stands no more."""
        with self._lock:
            self._add(share[0], -share[1])

    def _add(self, peer: str, size: int) -> None:
        self._taken[peer] += size
        if not self._taken[peer]:
            del self._taken[peer]


class Account:
    """Totals of registrations and subscriptions that have ended, and of what came for those. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def close_registration(self, registration: Registration) -> None:
        """It has ended."""
        with self._lock:
            self._totals.update({name: getattr(registration, name) for name in OF_REGISTRATIONS})

    def close_subscription(self, subscription: Subscription) -> None:
        """It has ended."""
        with self._lock:
            self._totals.update({name: getattr(subscription, name) for name in OF_SUBSCRIPTIONS})
            self._lost.update(+subscription.lost)

    def add(self, *, matched: int = 0, mailed: int = 0, lost: dict[str, int] | None = None) -> None:
        """What came of a subscription before our time, or of an object that came for one that had just ended."""
        with self._lock:
            self._totals["matched"] += matched
            self._totals["mailed"] += mailed
            self._lost.update(lost or {})

    def lose(self, cause: Cause, count: int) -> None:
        """Objects of a subscription that has ended."""
        with self._lock:
            self._lost[cause] += count

    def totals(
        self, registrations: Iterable[Registration], subscriptions: Iterable[Subscription]
    ) -> dict[str, int | dict[str, int]]:
        """With those that stand: the counters by name, and under `lost` those of losses by cause."""
        with self._lock:
            totals, lost = Counter(self._totals), Counter(self._lost)
        for registration in registrations:
            totals.update({name: getattr(registration, name) for name in OF_REGISTRATIONS})
        for subscription in subscriptions:
            totals.update({name: getattr(subscription, name) for name in OF_SUBSCRIPTIONS})
            lost.update(subscription.lost)
        return {**{name: totals[name] for name in (*OF_REGISTRATIONS, *OF_SUBSCRIPTIONS)}, "lost": dict(lost)}
