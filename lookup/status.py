"""Status of a lookup service."""

from __future__ import annotations

from typing import Annotated

from jbi_pubsub.core.status import Count, Measure, ServerStatus, Status, counter, gauge


class StoreStatus(Status, frozen=True):
    """The file of a lookup service."""

    path: str = ""
    waiting: Count = 0
    """Records that wait for `sync`."""
    commits: Count = 0
    records: Count = 0
    """Records committed so far."""
    spared: Count = 0
    """Renewals that needed no write."""
    bytes: Count = 0
    """Size of the file and its log."""
    fault: str = ""
    """Fault of the disk."""


class RegistrarCounters(ServerStatus, frozen=True):
    """Counters of a registrar since it was made."""

    kind: str = "lookup"
    address: str = ""
    uptime: float = 0.0
    lookups: Annotated[Count, counter("Lookups")] = 0
    changes: Annotated[Count, counter("Changes of registered items")] = 0
    renewals: Annotated[Count, counter("Leases renewed")] = 0
    expired: Annotated[Count, counter("Leases expired")] = 0
    events: Annotated[Count, counter("Events generated")] = 0
    diagnostics: Count = 0
    refused: Annotated[Count, counter("Calls refused for a limit")] = 0


class RegistrarStatus(RegistrarCounters, frozen=True):
    """A registrar in numbers."""

    service_id: str = ""
    groups: tuple[str, ...] = ()
    items: Annotated[Count, gauge("Registered services")] = 0
    event_registrations: Annotated[Count, gauge("Event registrations")] = 0
    owners: Count = 0
    item_lease_maximum: Measure = 0.0
    """Seconds that a lease gets at most now."""
    event_lease_maximum: Measure = 0.0


class LookupStatus(RegistrarStatus, frozen=True):
    """A lookup service."""

    calls: Count = 0
    locators: list[str] = []
    """Lookup services that it joins, by host and port."""
    lookup_services: Count = 0
    """Those that it is joined to."""
    event_channels: Annotated[Count, gauge("Clients with an event channel")] = 0
    compressed: Count = 0
    """Connections that are compressed."""
    events_waiting: Annotated[Count, gauge("Events that wait for slow clients")] = 0
    events_lost: Annotated[Count, counter("Events dropped for slow clients")] = 0
    store: StoreStatus | None = None
    """None: nothing outlasts it."""
