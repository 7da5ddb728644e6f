"""Records of a registrar's log: what has to survive it, and what of its administration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from jbi_pubsub.lookup.administration import RegistrarAdmin
from jbi_pubsub.lookup.events import Interest
from jbi_pubsub.lookup.item import ServiceItem

Kind = Literal["items", "event_registrations"]
"""Purpose of a lease. Clients may choose service ids, so an id alone does not tell."""


class ItemKept(msgspec.Struct, frozen=True, tag="item", gc=False):
    """Log record: an item is registered, or has a new state. `expires` is monotonic, `term` what was granted, `size`
    the item's on the wire (a log may say somewhat more), `seal` the hash of the key it was registered with ("":
    none)."""

    item: ServiceItem
    lease_id: str
    owner: str
    expires: float
    term: float
    size: int
    seal: str = ""


class InterestKept(msgspec.Struct, frozen=True, tag="interest"):
    """Log record: an event registration."""

    interest: Interest
    expires: float
    term: float


class LeaseMoved(msgspec.Struct, frozen=True, tag="lease"):
    """Log record: the lease of the item or event registration `kept` was renewed."""

    kind: Kind
    kept: str
    expires: float
    term: float


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """Log record: the item or event registration `kept` is gone."""

    kind: Kind
    kept: str


LogRecord = ItemKept | InterestKept | LeaseMoved | Dropped | RegistrarAdmin


class RegistrarLog(Protocol):
    """Where a registrar writes what has to survive it. Both are called under the registrar's lock: don't block."""

    def admit(self) -> None:
        """Raise StorageError if nothing new may be accepted (the disk is full)."""

    def write(self, records: Sequence[LogRecord]) -> None:
        """Take the records of one call; they become durable together."""


class KeptState(msgspec.Struct, frozen=True):
    """All that a log has kept, for `Registrar.restore`. `expires` are on the scale of the new `now`; the interests'
    numbers are those to go on from."""

    admin: RegistrarAdmin | None = None
    items: tuple[ItemKept, ...] = ()
    interests: tuple[InterestKept, ...] = ()
