"""Leases: the only clean-up path. Pure: `now` (seconds, any monotonic scale) is an argument everywhere.

Rules (Jini Distributed Leasing Specification; Apache River's Landlord):
- A grant is never longer than asked for; ANY asks for the policy's default, FOREVER for its maximum.
- Zero is accepted (already expired); a negative or not-a-number duration is refused.
- Renewal counts from now; a clip by the policy never cuts below what is left.
- An expired lease is unknown the moment its time has passed, reaped or not.
- The landlord only names what expired; somebody else revokes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec

from .errors import LeaseDeniedError, UnknownLeaseError

ANY: Final = -1.0
"""Duration: whatever the grantor likes (Jini's Lease.ANY)."""

FOREVER: Final = math.inf
"""Duration: as long as the grantor allows (Jini's Lease.FOREVER)."""

DEFAULT_DURATION: Final = 300.0
"""Seconds granted to ANY; Reggie's minimum of the maximum is five minutes as well."""


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A granted lease as the holder sees it: `duration` seconds from the moment of the grant."""

    lease_id: str
    duration: float


class LeasePeriodPolicy(Protocol):
    """How long a lease may last. `left` is what is left of it at a renewal, 0 at a grant; seconds."""

    def period(self, requested: float, left: float) -> float: ...


@dataclass(frozen=True, slots=True)
class FixedLeasePeriodPolicy:
    """ANY gets `default` seconds, everything else at most `maximum` seconds."""

    maximum: float = DEFAULT_DURATION
    default: float = DEFAULT_DURATION

    def __post_init__(self) -> None:
        if not 0 < self.default <= self.maximum:
            raise LeaseDeniedError(f"lease policy: default {self.default} s must lie in 0..{self.maximum} s")

    def period(self, requested: float, left: float) -> float:
        """Seconds to grant."""
        if requested == ANY:
            return max(self.default, left)
        if requested > self.maximum:
            return max(self.maximum, left)
        return requested


def check_duration(requested: float) -> float:
    """`requested` if it is ANY, FOREVER or a number of seconds >= 0; else LeaseDeniedError."""
    if requested == ANY or requested >= 0:  # NaN fails both
        return requested
    raise LeaseDeniedError(
        f"lease duration {requested} s", hint="Use ANY (-1), FOREVER (inf) or seconds >= 0", duration=requested
    )


T = TypeVar("T")


@dataclass(slots=True)
class _Leased(Generic[T]):
    resource: T
    expires: float


class Landlord(Generic[T]):
    """The lease book of one grantor: a map and a heap. Not thread-safe; the owner's lock covers it.

    A renewal only moves the deadline in the map; the heap entry is corrected when it comes up (lazy deadlines),
    so renewing is one dictionary access.
    """

    def __init__(self, policy: LeasePeriodPolicy, *, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
        self.policy = policy
        self._new_id = new_id
        self._book: dict[str, _Leased[T]] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._book)

    def grant(self, resource: T, requested: float, now: float, *, lease_id: str | None = None) -> Lease:
        """Lease `resource`. Raises LeaseDeniedError on a bad duration. `lease_id` restores a known lease."""
        duration = self.policy.period(check_duration(requested), 0.0)
        lease_id = lease_id or self._new_id()
        self._book[lease_id] = _Leased(resource, now + duration)
        heapq.heappush(self._heap, (now + duration, lease_id))
        return Lease(lease_id, duration)

    def renew(self, lease_id: str, requested: float, now: float) -> Lease:
        """A new term from now on. Raises UnknownLeaseError; a failed renewal leaves the lease as it was."""
        leased = self._live(lease_id, now)
        duration = self.policy.period(check_duration(requested), leased.expires - now)
        if now + duration < leased.expires:  # lazy deadlines only move a heap entry later, never earlier
            heapq.heappush(self._heap, (now + duration, lease_id))
        leased.expires = now + duration
        return Lease(lease_id, duration)

    def cancel(self, lease_id: str, now: float) -> T:
        """End the lease and hand back its resource. Raises UnknownLeaseError."""
        resource = self._live(lease_id, now).resource
        del self._book[lease_id]
        return resource

    def resource(self, lease_id: str, now: float) -> T:
        """The leased resource. Raises UnknownLeaseError."""
        return self._live(lease_id, now).resource

    def drop(self, lease_id: str) -> None:
        """Forget the lease, known or not: its resource has gone another way."""
        self._book.pop(lease_id, None)

    def is_live(self, lease_id: str, now: float) -> bool:
        """Whether the lease exists and its time has not passed."""
        leased = self._book.get(lease_id)
        return leased is not None and leased.expires > now

    def left(self, lease_id: str, now: float) -> float:
        """Seconds left, 0 when unknown or expired."""
        leased = self._book.get(lease_id)
        return max(0.0, leased.expires - now) if leased else 0.0

    def expire(self, now: float, limit: int = 1000) -> list[T]:
        """Take out at most `limit` leases whose time has passed; their resources, earliest first."""
        gone: list[T] = []
        while self._heap and self._heap[0][0] <= now and len(gone) < limit:
            _, lease_id = heapq.heappop(self._heap)
            leased = self._book.get(lease_id)
            if leased is None:
                continue
            if leased.expires > now:
                heapq.heappush(self._heap, (leased.expires, lease_id))
            else:
                gone.append(self._book.pop(lease_id).resource)
        return gone

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expire` may have work, or None."""
        while self._heap and self._heap[0][1] not in self._book:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def items(self) -> Iterator[tuple[str, T, float]]:
        """(lease id, resource, expiry) of everything in the book, expired or not."""
        return ((k, v.resource, v.expires) for k, v in self._book.items())

    def _live(self, lease_id: str, now: float) -> _Leased[T]:
        leased = self._book.get(lease_id)
        if leased is None or leased.expires <= now:
            raise UnknownLeaseError(
                f"lease {lease_id} is expired, cancelled, or was never granted",
                hint="Register again",
                lease_id=lease_id,
            )
        return leased
