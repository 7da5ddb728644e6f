"""The registrar's proxy: the calls of a lookup service, as its clients make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import (
    EventRegistration,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
)

EXPORTED: Final = "registrar"
"""Name of the registrar behind a lookup service's endpoint."""

EVENT: Final = b"E"
DIAGNOSTIC: Final = b"D"
GAP: Final = b"G"
"""First byte of an item on an event connection: a ServiceEvent, an EventDiagnostic, or "events are lost, look up"."""


class RegistrarInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a lookup service is: its own service id, and the groups it serves ("" is the public one)."""

    service_id: str
    groups: tuple[str, ...]


class RegistrarProxy:
    """Calls one lookup service. Every call raises the registrar's own errors, WireError or WireTimeoutError."""

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float = 10.0) -> None:
        self.ref = ref
        self._client = ControlClient(ref, security, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def describe(self) -> RegistrarInfo:
        """Who answers. The probe of discovery."""
        return self._client.call("describe", RegistrarInfo)

    def register(self, item: ServiceItem, duration: float) -> ServiceRegistration:
        """Register or replace an item under a lease."""
        return self._client.call("register", ServiceRegistration, item, duration)

    def lookup(self, template: ServiceTemplate, limit: int, *, total: bool = False) -> ServiceMatches:
        """At most `limit` matching items, and how many match in all if `total`."""
        return self._client.call("lookup", ServiceMatches, template, limit, total)

    def notify(
        self, template: ServiceTemplate, transitions: int, duration: float, handback: str, listener: str
    ) -> EventRegistration:
        """Ask for events on the event channel `listener`."""
        return self._client.call("notify", EventRegistration, template, transitions, duration, handback, listener)

    def open_events(self, listener: str) -> str:
        """A token for the data connection over which the events of `listener` come."""
        return self._client.call("open_events", str, listener)

    def set_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep]) -> None:
        """Replace the entries of an item."""
        self._client.call("set_attributes", None, service_id, lease_id, tuple(entries))

    def add_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep]) -> None:
        """Add entries to an item; those it has already stay once."""
        self._client.call("add_attributes", None, service_id, lease_id, tuple(entries))

    def modify_attributes(
        self,
        service_id: str,
        lease_id: str,
        changes: Sequence[tuple[EntryRep, EntryRep | None]],
    ) -> None:
        """Change entries by pairs (template, update); update None deletes (Jini LU.2.6)."""
        self._client.call("modify_attributes", None, service_id, lease_id, tuple(changes))

    def renew(self, leases: Sequence[tuple[str, float]]) -> tuple[LeaseResult, ...]:
        """Renew (lease id, seconds) in one call; a result for each."""
        return self._client.call("renew", tuple[LeaseResult, ...], tuple(leases))

    def cancel(self, lease_ids: Sequence[str]) -> tuple[LeaseResult, ...]:
        """Cancel leases in one call; a result for each."""
        return self._client.call("cancel", tuple[LeaseResult, ...], tuple(lease_ids))

    def entry_classes(self, template: ServiceTemplate) -> tuple[str, ...]:
        """Names of the entry classes of matching items (browsing, Jini LU.2.5)."""
        return self._client.call("entry_classes", tuple[str, ...], template)

    def field_values(self, template: ServiceTemplate, index: int, field: str) -> tuple[str | None, ...]:
        """Values of `field` over the entries that match entry template number `index`."""
        return self._client.call("field_values", tuple[str | None, ...], template, index, field)

    def service_types(self, template: ServiceTemplate, prefix: str) -> tuple[str, ...]:
        """Names of the types of matching items that begin with `prefix`."""
        return self._client.call("service_types", tuple[str, ...], template, prefix)

    def set_groups(self, groups: Sequence[str]) -> None:
        """Administration: the groups to serve from now on."""
        self._client.call("set_groups", None, tuple(groups))

    def destroy(self) -> None:
        """Administration: stop for good and forget all state."""
        self._client.call("destroy", None)
