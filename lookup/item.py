"""Values that clients register and ask for: ServiceItem, ServiceTemplate, ServiceMatches, ServiceEvent."""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Final

import msgspec

from jbi_pubsub.core.errors import EntryError, ErrorReport, OversizeError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep, check_rep, define, matches


class ServiceItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
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


class ItemBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one item, template or event registration at a lookup service. Who registers goes by the same, so that
    what will not be listed is refused when it is asked for.

    `entries`: a thousand points of a track, of which each is one. `postings`: values, each counted for each class of
    its entry's lineage, and the entry once more: what it costs the index, some 10 ms at most. `item_bytes` on the wire:
    entries of 200 bytes, as generated ones have.
    """

    item_bytes: int = 262_144
    entries: int = 1_024
    types: int = 64
    postings: int = 12_288
    text: int = 1_024

    def check(self, what: str, said: ServiceItem | ServiceTemplate) -> int:
        """The size of an item or template on the wire in bytes. Raises OversizeError, EntryError for malformed
        entries."""
        self.check_parts(what, said)
        return self.check_size(what, said)

    def check_parts(self, what: str, said: ServiceItem | ServiceTemplate) -> None:
        """The same but for the size."""
        self.check_text("service id", said.service_id)
        if len(said.types) > self.types:
            raise OversizeError(f"{what} with {len(said.types)} types", hint=f"At most {self.types}")
        entries = said.entries
        if len(entries) > self.entries:
            raise OversizeError(f"{what} with {len(entries):,} entries", hint=f"At most {self.entries:,}")
        for entry in entries:
            check_rep(entry)
        postings = sum(len(e.cls.lineage) * (1 + sum(value is not None for value in e.values)) for e in entries)
        if postings > self.postings:
            raise OversizeError(
                f"{what} with {postings:,} values, each counted for each class of its entry's lineage",
                hint=f"At most {self.postings:,}",
            )

    def check_size(self, what: str, value: object) -> int:
        """Bytes of `value` on the wire. Raises OversizeError, EntryError."""
        size = size_of(what, value)
        if size > self.item_bytes:
            raise OversizeError(f"{what} of {size:,} bytes", hint=f"At most {self.item_bytes:,}", size=size)
        return size

    def check_text(self, what: str, text: str) -> None:
        """Raises OversizeError."""
        if len(text) > self.text:
            raise OversizeError(f"{what} of {len(text):,} characters", hint=f"At most {self.text:,}")


BOUNDS: Final = ItemBounds()
"""Those of every lookup service."""


def size_of(what: str, value: object) -> int:
    """Bytes of `value` on the wire. Raises EntryError."""
    try:
        return len(msgspec.msgpack.encode(value))
    except UnicodeEncodeError as error:  # lone surrogates, from inside this process only
        raise EntryError(f"{what} with text that is not Unicode: {error}") from error


_TYPE = define("\0type", {"name": str})
_ID = define("\0id", {"service_id": str})


@lru_cache(maxsize=4096)  # names of service types are few; a bound because clients choose them
def _type_facet(name: str) -> EntryRep:
    return EntryRep(_TYPE, (name,))


def item_facets(item: ServiceItem) -> tuple[EntryRep, ...]:
    """All that a template can ask of `item` as entries: types and id become entries of reserved classes.

    So one index over entries answers whole service templates. Reserved names begin with NUL, which
    `check_rep` refuses in anybody else's class.
    """
    return (EntryRep(_ID, (item.service_id,)), *map(_type_facet, item.types), *item.entries)


def template_facets(template: ServiceTemplate) -> tuple[EntryRep, ...]:
    """The same of a template: `template` matches an item if each of its facets matches one of the item's."""
    own_id = (EntryRep(_ID, (template.service_id,)),) if template.service_id else ()
    return (*own_id, *map(_type_facet, template.types), *template.entries)


class ServiceMatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a lookup: some matching items, and the number of all matching ones (-1: not asked for).

    `after` is the cursor of the next page, "" when there is none. An item that matches all the while is in one of the
    pages; one that leaves and comes back meanwhile may be in two, or in none: events tell of it.
    """

    items: tuple[ServiceItem, ...]
    total: int = -1
    after: str = ""


class Transition(enum.IntFlag):
    """Change of an item's match with a template (Jini's ServiceRegistrar.TRANSITION_*)."""

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


class EventDiagnostic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a listener hears nothing: a service was registered whose entry class has the wanted name, but other fields.

    Sent beside the events, at most once per registration and foreign class; it takes no event number.
    """

    event_id: str
    service_id: str
    error: ErrorReport
    handback: str = ""


class ServiceRegistration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of register: the service's id (new, reused or as given), its lease (`duration` in seconds), and how many
    event registrations of connected clients are `told` of it."""

    service_id: str
    lease_id: str
    duration: float
    told: int = 0


class LeaseResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One lease's outcome in a batch: the seconds granted (0.0 for a cancel), or the error. Without its names on the
    wire: renewals are most of what an idle link carries."""

    lease_id: str
    duration: float = 0.0
    error: ErrorReport | None = None
