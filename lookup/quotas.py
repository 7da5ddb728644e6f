"""Quotas: the places and bytes that each owner may have at a lookup service."""

from __future__ import annotations

from collections import Counter

from jbi_pubsub.core.errors import LeaseDeniedError
from jbi_pubsub.lookup.item import ItemBounds
from jbi_pubsub.lookup.records import Kind


class RegistrarLimits(ItemBounds, frozen=True, forbid_unknown_fields=True):
    """Bounds, so that no client can take all memory: those of one item, and how many there are.

    A million items of 2 KB are 2 GB. One owner gets a tenth of the places, and of the bytes on the wire of all that he
    has here 128 MiB. `matches` bounds the items of one page.
    """

    items: int = 1_000_000
    items_per_owner: int = 100_000
    event_registrations: int = 1_000_000
    event_registrations_per_owner: int = 100_000
    bytes_per_owner: int = 1 << 27
    matches: int = 10_000
    groups: int = 64


class Quotas:
    """The places and bytes on the wire that owners have."""

    def __init__(self, limits: RegistrarLimits) -> None:
        self._limits = limits
        self.is_closed = False
        """Nothing is accepted any more: the lookup service was destroyed."""
        self._owned: Counter[tuple[Kind, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self.refused = 0
        """Calls that were refused."""

    @property
    def owners(self) -> int:
        """Number of owners that have something."""
        return len({owner for _, owner in self._owned})

    def add(self, kind: Kind, owner: str, size: int, count: int = 1) -> None:
        """An owner has so much more; or less, below 0."""
        self._owned[kind, owner] += count
        self._bytes[owner] += size
        if not self._owned[kind, owner]:
            del self._owned[kind, owner]
        if not self._bytes[owner]:
            del self._bytes[owner]

    def check_place(self, kind: Kind, taken: int, owner: str, replaced: str | None = None) -> None:
        """Raise LeaseDeniedError if `owner` can't have one more than the `taken` ones; `replaced` is the owner whose
        place becomes free."""
        most = self._limits.items if kind == "items" else self._limits.event_registrations
        own = self._limits.items_per_owner if kind == "items" else self._limits.event_registrations_per_owner
        if self.is_closed:
            why = "the lookup service was destroyed"
        elif taken - (replaced is not None) >= most:
            why = f"the lookup service has its {most} {kind}"
        elif self._owned[kind, owner] - (replaced == owner) >= own:
            why = f"{owner or 'this client'} has its {own} {kind}"
        else:
            return
        raise self._refusal(why, kind=kind)

    def check_bytes(self, owner: str, more: int) -> None:
        """Raise LeaseDeniedError if `owner` can't have so many bytes more."""
        most = self._limits.bytes_per_owner
        if more > 0 and self._bytes[owner] + more > most:
            what = (
                f"{owner or 'this client'} has {self._bytes[owner]:,} of its {most:,} bytes, and asks for {more:,} more"
            )
            raise self._refusal(what)

    def _refusal(self, why: str, **facts: str) -> LeaseDeniedError:
        self.refused += 1
        return LeaseDeniedError(why, hint="Cancel some, or use another lookup service", **facts)
