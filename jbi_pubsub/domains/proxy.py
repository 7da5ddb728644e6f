"""The trader's proxy: its calls, as applications and linked traders make them; what it is registered as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.entry import Entry

from .trader import OfferAnswer, OfferQuery

TRADER: Final = "trader"
"""Name of the exported object."""
TRADER_TYPE: Final = "jbi.Trader"
"""Service type in the lookup services."""
GRACE_SECONDS: Final = 2.0
"""For an answer that says what is missing after its query's time is over."""


@dataclass(frozen=True, kw_only=True)
class DomainEntry(Entry):
    """Description of a domain, on what belongs to it."""

    entry_name = "jbi.Domain"
    number: int | None = None
    name: str | None = None


class OfferedType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service type as plain data: its name, that of its supertype ("" for none), its own properties as
    "mode kind name", and how many offers there are of it and its subtypes."""

    name: str
    parent: str
    properties: tuple[str, ...]
    offers: int


class TraderProxy:
    """Calls one trader. Every call raises its own errors, WireError or WireTimeoutError."""

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float = 10.0) -> None:
        self.ref = ref
        self._client = ControlClient(ref, security, timeout=timeout + GRACE_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def query(self, query: OfferQuery) -> OfferAnswer:
        """The offers that match, of those that we may know of. Raises PredicateError, AccessDeniedError."""
        return self._client.call("query", OfferAnswer, query)

    def types(self) -> tuple[OfferedType, ...]:
        """Service types of which there are offers."""
        return self._client.call("types", tuple[OfferedType, ...])
