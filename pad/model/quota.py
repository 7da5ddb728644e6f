"""Quota of what the requests of one peer take, together."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.wire.endpoint import Caller

STANDING_MOST: Final = 64 << 20
"""Bytes of all requests that one peer has standing at a delegate: a hundred thousand subscriptions of 600."""

Share = tuple[str, int]
"""Share of a peer, in bytes."""
NO_SHARE: Final[Share] = ("", 0)


class RequestQuota:
    """Requests that peers have standing here, in bytes: registrations, subscriptions, open queries. Any thread."""

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

    def give_back(self, share: Share, before: Share = NO_SHARE) -> None:
        """Give back the share of a request that stands no more, or that stands as `before` again."""
        with self._lock:
            self._add(share[0], -share[1])
            self._add(before[0], before[1])

    def _add(self, peer: str, size: int) -> None:
        self._taken[peer] += size
        if not self._taken[peer]:
            del self._taken[peer]
