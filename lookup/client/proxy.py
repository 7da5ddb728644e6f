"""The registrar's proxy: the calls of a lookup service, as its clients make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.entry import Entry, EntryRep
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

LOOKUP_TYPE: Final = "jbi.Registrar"
"""Service type of a lookup service: each is registered with itself and with the others (Jini LU.1.3)."""


@dataclass(frozen=True, kw_only=True)
class LookupService(Entry):
    """Entry of a lookup service about itself: what people call it, the groups it serves (separated by commas, "" among
    them is the public one; none at all is unset) and where it answers."""

    entry_name = "jbi.LookupService"
    name: str | None = None
    groups: str | None = None
    address: str | None = None


EVERYTHING: Final = 1_000_001
"""Limit of a lookup that is to find all: as many items as a registrar holds (RegistrarLimits.items), and its own."""


class RegistrarInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of a lookup service: its own service id, and the groups it serves ("" is the public one)."""

    service_id: str
    groups: tuple[str, ...]


class Administered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a lookup service now: the groups it serves, the lookup services (host:port) that it joins, the port
    it listens on; `chosen` names those of them that an administrator has set, the others are as configured."""

    groups: tuple[str, ...]
    locators: tuple[str, ...]
    port: int
    chosen: tuple[str, ...] = ()


class RegistrarProxy:
    """Calls one lookup service. Every call raises the registrar's own errors, WireError or WireTimeoutError."""

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float = 10.0) -> None:
        self.ref = ref
        self._client = ControlClient(ref, security, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def describe(self) -> RegistrarInfo:
        """Identity of the lookup service that answers. The probe of discovery."""
        return self._client.call("describe", RegistrarInfo)

    def register(self, item: ServiceItem, duration: float, key: str = "") -> ServiceRegistration:
        """Register or replace an item under a lease. With a `key`, only who shows it can replace the item again."""
        return self._client.call("register", ServiceRegistration, item, duration, key)

    def lookup(self, template: ServiceTemplate, limit: int, *, total: bool = False) -> ServiceMatches:
        """At most `limit` matching items, each once, and how many matched in all at the beginning if `total`. Takes
        as many calls as there are pages, each with the time that one call has."""
        found: dict[str, ServiceItem] = {}
        matched = -1
        for page in self.pages(template, limit, total=total):
            matched = max(matched, page.total)
            found.update((item.service_id, item) for item in page.items)
        return ServiceMatches(tuple(found.values())[:limit], matched)

    def pages(self, template: ServiceTemplate, limit: int, *, total: bool = False) -> Iterator[ServiceMatches]:
        """The same page by page (see ServiceMatches), `total` with the first. Raises ProtocolError when they do not
        come to an end: a page that is not the last has something, and no lookup service holds more than EVERYTHING."""
        seen: set[str] = set()
        after, came = "", 0
        while True:
            page: ServiceMatches = self._client.call(
                "lookup", ServiceMatches, template, limit - len(seen), total, after
            )
            yield page
            seen.update(item.service_id for item in page.items)
            if not page.after or len(seen) >= limit:
                return
            came += len(page.items)
            if page.after == after or not page.items or came > 2 * EVERYTHING:  # twice: some may come again
                raise ProtocolError(f"the lookup service at {self.ref.endpoints} turns in a circle")
            after, total = page.after, False

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

    def administered(self) -> Administered:
        """Administration: how it is set up now."""
        return self._client.call("administered", Administered)

    def set_groups(self, groups: Sequence[str]) -> Administered:
        """Administration: the groups to serve from now on (Jini's DiscoveryAdmin.setMemberGroups)."""
        return self._client.call("set_groups", Administered, tuple(groups))

    def change_groups(self, add: Sequence[str], remove: Sequence[str]) -> Administered:
        """Administration: groups to serve as well, and to serve no more, in one step."""
        return self._client.call("change_groups", Administered, tuple(add), tuple(remove))

    def set_locators(self, locators: Sequence[str]) -> Administered:
        """Administration: the lookup services (host:port) to join from now on (Jini's JoinAdmin.setLookupLocators)."""
        return self._client.call("set_locators", Administered, tuple(locators))

    def change_locators(self, add: Sequence[str], remove: Sequence[str]) -> Administered:
        """Administration: lookup services to join as well, and to leave, in one step."""
        return self._client.call("change_locators", Administered, tuple(add), tuple(remove))

    def set_port(self, port: int) -> Administered:
        """Administration: the port to listen on from now on, 0 for any free one (Jini's DiscoveryAdmin
        .setUnicastPort). The old one is closed shortly behind the answer. Raises PortInUseError, and all stays."""
        return self._client.call("set_port", Administered, port)

    def destroy(self) -> None:
        """Administration: stop for good and forget all state."""
        self._client.call("destroy", None)
