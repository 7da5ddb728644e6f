"""What is registered and what is asked for: ServiceItem, ServiceTemplate, ServiceMatches, ServiceEvent."""

from __future__ import annotations

import enum

import msgspec

from jbi_pubsub.core.wire import ServiceRef

from jbi_pubsub.lookup.entry import EntryRep, matches


class ServiceItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service as it is registered.

    `service_id` "" asks the registrar for a new one. `types` are the names of what the service is, concrete type
    first, then its supertypes (Jini: the classes and interfaces of the proxy). `proxy` is how to reach it.
    """

    service_id: str
    types: tuple[str, ...]
    proxy: ServiceRef
    entries: tuple[EntryRep, ...] = ()


class ServiceTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service item matches a template if (Jini LU.2.1):

    - `service_id` is "" or equals the item's;
    - the item is an instance of every type in `types`;
    - for each entry template at least one entry of the item matches it (one entry may serve several).

    "" and () are wildcards.
    """

    service_id: str = ""
    types: tuple[str, ...] = ()
    entries: tuple[EntryRep, ...] = ()

    def matches(self, item: ServiceItem) -> bool:
        """Whether `item` matches, straight from the definition. Raises IncompatibleEntryError."""
        return (
            self.service_id in ("", item.service_id)
            and all(t in item.types for t in self.types)
            and all(any(matches(t, e) for e in item.entries) for t in self.entries)
        )


class ServiceMatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a lookup: some matching items, and the number of all matching ones (-1: not asked for)."""

    items: tuple[ServiceItem, ...]
    total: int = -1


class Transition(enum.IntFlag):
    """How an item's match with a template changed (Jini's ServiceRegistrar.TRANSITION_*)."""

    MATCH_NOMATCH = 1
    NOMATCH_MATCH = 2
    MATCH_MATCH = 4


ALL_TRANSITIONS = Transition.MATCH_NOMATCH | Transition.NOMATCH_MATCH | Transition.MATCH_MATCH


class ServiceEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that a listener asked for. `number` grows by one per event of one registration; a gap means loss.

    `item` is the new state, None when the item is gone. `handback` is what the listener gave at registration.
    """

    event_id: str
    number: int
    service_id: str
    transition: int
    item: ServiceItem | None = None
    handback: str = ""


class EventRegistration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of notify: the event id, the number before the first event, the lease."""

    event_id: str
    number: int
    lease_id: str
    duration: float
