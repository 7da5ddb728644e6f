"""Leases: the only clean-up path. Pure: `now` (seconds, any monotonic scale) is an argument everywhere.

Rules (Jini Distributed Leasing Specification; Apache River's Landlord):
- A grant is never longer than asked for; ANY asks for the policy's default, FOREVER for its maximum.
- Zero is accepted (already expired); a negative or not-a-number duration is refused.
- Renewal counts from now; a clip by the policy never cuts below what is left.
- An expired lease is unknown the moment its time has passed, reaped or not.
- The landlord only names what expired; somebody else revokes.
- Time in which the grantor did not listen, for it was stopped or busy, counts against nobody: see Landlord.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec

from .agenda import Agenda
from .errors import LeaseDeniedError, UnknownLeaseError

ANY: Final = -1.0
"""Duration: whatever the grantor likes (Jini's Lease.ANY)."""

FOREVER: Final = math.inf
"""Duration: as long as the grantor allows (Jini's Lease.FOREVER)."""

DEFAULT_DURATION: Final = 300.0
"""Seconds granted to ANY; Reggie's minimum of the maximum is five minutes as well."""


STALL_SECONDS: Final = 1.0
"""Between two looks of a grantor into its book: whoever leaves it for longer did not listen to renewals either."""

STALL_COUNTS: Final = 0.1
"""Seconds that such a gap counts as: a grantor that stalls all the time takes long to notice the dead, but does."""

DEFAULT_INTERVAL: Final = 0.1
"""Seconds between two renewals at most full load (Reggie's minRenewalInterval of 100 ms)."""


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A granted lease as the holder sees it: `duration` seconds from the moment of the grant."""

    lease_id: str
    duration: float


class LeasePeriodPolicy(Protocol):
    """Policy of how long a lease may last. `left` is what is left of it at a renewal, 0 at a grant; seconds."""

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
        return min(requested, max(self.maximum, left))


@dataclass(frozen=True, slots=True)
class LoadScaledLeasePeriodPolicy:
    """The maximum grows with the number of leases, so that all renewals together keep below a rate (Reggie).

    The maximum is `minimum` seconds, or `interval` seconds times `load()` where that is more: with one renewal a
    term, `load` leases make at most 1/`interval` renewals a second. ANY and FOREVER get the maximum. The defaults
    are Reggie's: 5 minutes, 100 ms.
    """

    load: Callable[[], float]
    minimum: float = DEFAULT_DURATION
    interval: float = DEFAULT_INTERVAL

    def __post_init__(self) -> None:
        if not (self.minimum > 0 and self.interval >= 0):
            raise LeaseDeniedError(
                f"lease policy: minimum {self.minimum} s, interval {self.interval} s must be positive"
            )

    @property
    def maximum(self) -> float:
        """Seconds granted at most, at the present load."""
        return max(self.minimum, self.interval * self.load())

    def period(self, requested: float, left: float) -> float:
        """Seconds to grant."""
        maximum = max(self.maximum, left)
        return maximum if requested == ANY else min(requested, maximum)


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
    """The lease book of one grantor: a map and an agenda. Not thread-safe; the owner's lock covers it.

    A renewal only moves the deadline in the map; the agenda has it when the one of before comes up (lazy deadlines), so
    renewing is one dictionary access.

    `stall`: seconds; the owner looks into the book more often, if only with `expire`. A longer gap between two looks is
    its own stall, in which nobody could renew: the leases that stood before it run longer by the gap.
    """

    def __init__(
        self,
        policy: LeasePeriodPolicy,
        *,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        stall: float = math.inf,
    ) -> None:
        self.policy = policy
        self._new_id = new_id
        self._stall = stall
        self._looked = math.inf
        self._book: dict[str, _Leased[T]] = {}
        self._due: Agenda[str] = Agenda()

    def __len__(self) -> int:
        return len(self._book)

    def grant(self, resource: T, requested: float, now: float, *, lease_id: str | None = None) -> Lease:
        """Lease `resource`. Raises LeaseDeniedError on a bad duration. `lease_id` restores a known lease."""
        self._look(now)
        duration = self.policy.period(check_duration(requested), 0.0)
        lease_id = lease_id or self._new_id()
        self.restore(lease_id, resource, now + duration)
        return Lease(lease_id, duration)

    def restore(self, lease_id: str, resource: T, expires: float) -> None:
        """Put a known lease back into the book, past the policy: its term was granted before."""
        self._book[lease_id] = _Leased(resource, expires)
        self._due.set_time(lease_id, expires)

    def renew(self, lease_id: str, requested: float, now: float) -> Lease:
        """A new term from now on. Raises UnknownLeaseError; a failed renewal leaves the lease as it was."""
        leased = self._live(lease_id, now)
        duration = self.policy.period(check_duration(requested), leased.expires - now)
        leased.expires = now + duration
        if leased.expires < self._due.time(lease_id):  # a lazy deadline may come up too early, never too late
            self._due.set_time(lease_id, leased.expires)
        return Lease(lease_id, duration)

    def cancel(self, lease_id: str, now: float) -> T:
        """End the lease and hand back its resource. Raises UnknownLeaseError."""
        resource = self._live(lease_id, now).resource
        self.drop(lease_id)
        return resource

    def resource(self, lease_id: str, now: float) -> T:
        """The leased resource. Raises UnknownLeaseError."""
        return self._live(lease_id, now).resource

    def drop(self, lease_id: str) -> None:
        """Forget the lease, known or not: its resource has gone another way."""
        self._book.pop(lease_id, None)
        self._due.discard(lease_id)

    def is_live(self, lease_id: str, now: float) -> bool:
        """Whether the lease exists and its time has not passed."""
        leased = self._book.get(lease_id)
        if leased is not None and leased.expires <= now:
            self._look(now)
        return leased is not None and leased.expires > now

    def left(self, lease_id: str, now: float) -> float:
        """Seconds left, 0 when unknown or expired."""
        self._look(now)
        leased = self._book.get(lease_id)
        return max(0.0, leased.expires - now) if leased else 0.0

    def expire(self, now: float, limit: int = 1000) -> list[T]:
        """Take out at most `limit` leases whose time has passed; their resources, earliest first."""
        self._look(now)
        gone: list[T] = []
        while len(gone) < limit and (lease_id := self._due.pop(now)) is not None:
            leased = self._book[lease_id]
            if leased.expires > now:
                self._due.set_time(lease_id, leased.expires)
            else:
                self.drop(lease_id)
                gone.append(leased.resource)
        return gone

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expire` may have work, or None."""
        first = self._due.first()
        return first if first < math.inf else None

    def overdue(self, now: float) -> Iterator[T]:
        """The resources of the leases whose time has passed and that `expire` has not taken out, in any order; costs
        as many steps as there are."""
        self._look(now)
        there = (self._book[lease_id] for lease_id in self._due.until(now))
        return (leased.resource for leased in there if leased.expires <= now)

    def items(self) -> Iterator[tuple[str, T, float]]:
        """(lease id, resource, expiry) of everything in the book, expired or not."""
        return ((k, v.resource, v.expires) for k, v in self._book.items())

    def _look(self, now: float) -> None:
        since, self._looked = self._looked, now
        if now - since > self._stall:
            for leased in self._book.values():
                if leased.expires > since:  # the heap need not know: a lazy deadline comes up too early, never too late
                    leased.expires += now - since - STALL_COUNTS

    def _live(self, lease_id: str, now: float) -> _Leased[T]:
        self._look(now)
        leased = self._book.get(lease_id)
        if leased is None or leased.expires <= now:
            raise UnknownLeaseError(
                f"lease {lease_id} is expired, cancelled, or was never granted",
                hint="Register again",
                lease_id=lease_id,
            )
        return leased
