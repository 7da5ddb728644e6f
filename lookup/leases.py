"""The leases of a registrar: those of items, and those of event registrations.

Rules (Jini Distributed Leasing Specification)
- Lease ids are secrets: who has one, may renew, cancel and change. Expired, cancelled, superseded and foreign lease ids
  are all the same UnknownLeaseError.
- Event leases last longer than item leases, by a factor.

Pure, as the registrar: see there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.errors import UnknownLeaseError
from jbi_pubsub.core.lease import (
    DEFAULT_DURATION,
    DEFAULT_INTERVAL,
    FOREVER,
    Landlord,
    Lease,
    LeasePeriodPolicy,
    LoadScaledLeasePeriodPolicy,
)
from jbi_pubsub.lookup.records import Dropped, Kind, LeaseMoved

EVENT_LEASE_FACTOR: Final = 6
"""Event leases last that many times longer than item leases (Reggie: 30 minutes to 5): a lost listener costs less
than a dead service that clients still find."""

OWN_LEASE: Final = "own"
"""Lease id of the registrar's own item in the book of leases; nobody can renew or cancel it."""


class LeaseBook:
    """Both kinds of leases. Without policies of the caller's, their maxima grow with the load, so that all renewals
    together stay below 10 a second (LoadScaledLeasePeriodPolicy)."""

    def __init__(
        self,
        items: LeasePeriodPolicy | None,
        events: LeasePeriodPolicy | None,
        *,
        new_id: Callable[[], str],
        stall: float = math.inf,
    ) -> None:
        self.items: Landlord[str] = Landlord(items or self._scaled(1), new_id=new_id, stall=stall)
        self.events: Landlord[str] = Landlord(events or self._scaled(EVENT_LEASE_FACTOR), new_id=new_id, stall=stall)
        self.renewals = 0

    def maxima(self) -> tuple[float, float]:
        """Seconds that a lease of an item, and of an event registration, gets at most now."""
        return self.items.policy.period(FOREVER, 0.0), self.events.policy.period(FOREVER, 0.0)

    def renew(self, lease_id: str, duration: float, now: float) -> tuple[Lease, LeaseMoved]:
        """A new term for a lease, and the log's record of it. Raises UnknownLeaseError, LeaseDeniedError."""
        kind, landlord = self._landlord(lease_id, now)
        kept = landlord.resource(lease_id, now)
        lease = landlord.renew(lease_id, duration, now)
        self.renewals += 1
        return lease, LeaseMoved(kind, kept, now + lease.duration, lease.duration)

    def is_live(self, lease_id: str, now: float) -> bool:
        """Whether the lease of an item or event registration lives."""
        return self.items.is_live(lease_id, now) or self.events.is_live(lease_id, now)

    def cancel(self, lease_id: str, now: float) -> Dropped:
        """End a lease; the log's record of what has to go for it. Raises UnknownLeaseError."""
        kind, landlord = self._landlord(lease_id, now)
        return Dropped(kind, landlord.cancel(lease_id, now))

    def next_deadline(self) -> float | None:
        """The earliest moment at which one may end, or None."""
        deadlines = (self.items.next_deadline(), self.events.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def clear(self) -> None:
        """End all."""
        for landlord in (self.items, self.events):
            for lease_id, _, _ in tuple(landlord.items()):
                landlord.drop(lease_id)

    def _landlord(self, lease_id: str, now: float) -> tuple[Kind, Landlord[str]]:
        if lease_id == OWN_LEASE:  # known to everybody, and nobody's
            raise unknown_lease(lease_id)
        if self.events.is_live(lease_id, now):
            return "event_registrations", self.events
        return "items", self.items

    def _scaled(self, factor: int) -> LeasePeriodPolicy:
        return LoadScaledLeasePeriodPolicy(
            lambda: len(self.items) + len(self.events) / EVENT_LEASE_FACTOR,
            minimum=factor * DEFAULT_DURATION,
            interval=factor * DEFAULT_INTERVAL,
        )


def unknown_lease(lease_id: str) -> UnknownLeaseError:
    """An error for who shows a lease that is none, or none of his."""
    return UnknownLeaseError(
        f"lease {lease_id} is expired, cancelled, or not of this service", hint="Register again", lease_id=lease_id
    )
