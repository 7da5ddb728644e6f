"""Listing of a delegate's registrations: their items in the lookup services, and where their objects say that
they were published."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from jbi_pubsub.core import combined
from jbi_pubsub.core.errors import OversizeError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.quality import DEFAULT_IMPORTANCE, Contract, Settings
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem
from jbi_pubsub.pad.matching.registration import Entries
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import (
    PEER_TYPE,
    PUBLISHER_TYPE,
    ExpirationEntry,
    InformationType,
    LocalEntry,
    NumberedEntry,
    PersistentEntry,
    RelayedEntry,
    SigningKeyEntry,
    SparseEntry,
    local_name,
)
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.sending import SendingTerms, sending_entries

NO_SCHEMA: Final = SchemaBundle("", ())
IMPORTANT: Final = Contract(Settings(importance=5))
"""Contract of which the item says most."""


class Announcer(Protocol):
    """Makes registrations known to the lookup services."""

    def join(self, item: ServiceItem, secret: str = "") -> None:
        """Keep the item registered from now on; only who knows `secret` can take it over ("": nobody)."""
        ...

    def leave(self, *service_ids: str) -> None:
        """Cancel them, all at once."""
        ...


class RegistrationListing:
    """Listing of one delegate or peer publisher."""

    def __init__(self, announcer: Announcer, ref: ServiceRef, node: str, *, is_peer: bool) -> None:
        """`ref` is the proxy handed to subscribers; objects are said to be published at `node`."""
        self.announcer: Final = announcer
        self._ref = ref
        self._node = node
        ways = [each.rpartition(":")[0].strip("[]") for each in ref.endpoints if "/" not in each]
        self._hosts = tuple(dict.fromkeys(ways))
        """Hosts of the addresses that we are reached at."""
        self._item_types = (PEER_TYPE, PUBLISHER_TYPE) if is_peer else (PUBLISHER_TYPE,)

    def describe(self, uid: str, request: PublisherRequest, gate: InformationTypeGate) -> tuple[Entries, int]:
        """The entries that a registration is found by, and the size of its request. Raises SchemaError, OversizeError
        for one that no lookup service would list."""
        if request.schema.is_none and (request.validate or request.entries):
            raise SchemaError(
                f"there is no schema of {gate.type} to validate by, nor one that says what is invariant",
                hint="Give the schema, or register with validate=False and no invariant metadata",
            )
        name = gate.type.name
        described = InformationType(
            name=name, version=gate.type.version, schema=gate.digest, local=local_name(name)
        ).rep()
        entries = (described, *request.entries)
        try:
            BOUNDS.check("its item", self.item(uid, request, entries, IMPORTANT))
            return entries, BOUNDS.check_size("its request", msgspec.structs.replace(request, schema=NO_SCHEMA))
        except OversizeError as exc:
            raise OversizeError(
                f"no lookup service lists the registration of {gate.type}: {exc.message}",
                hint=f"{exc.hint}. Mark as variant what repeats or is long (docs/codegen.md)",
            ) from exc

    def item(
        self, uid: str, request: PublisherRequest, entries: Entries, contract: Contract | None = None
    ) -> ServiceItem:
        """Item that lookup services are told of a registration. `contract`: the one that gives it its importance; None:
        it has what it wishes."""
        key = SigningKeyEntry.reps(request.signing)
        local = (LocalEntry().rep(),) if request.local else ()
        lasting = (ExpirationEntry(seconds=repr(request.expiration)).rep(),) if request.expiration else ()
        kept = (PersistentEntry().rep(),) if request.persist else ()
        origin = request.origin
        told = () if origin is None else (RelayedEntry(via=" ".join(origin.via), bridge=origin.bridge).rep(),)
        numbered = () if origin is None or origin.first is None else (NumberedEntry().rep(),)
        sparse = () if origin is None or not origin.is_sparse else (SparseEntry().rep(),)
        importance = request.qos.importance if contract is None else contract.settings.importance
        told_importance = None if importance == DEFAULT_IMPORTANCE else importance
        sending = sending_entries(SendingTerms(request.sending, told_importance))
        told = (*told, *numbered, *sparse, *local, *lasting, *kept, *sending)
        return ServiceItem(uid, self._item_types, self._ref, (*entries, *key, *told))

    def origin(self, publisher: str, request: PublisherRequest) -> combined.Provenance:
        """Where the objects of a registration say that they were published."""
        is_relayed = request.origin is not None
        return combined.Provenance(publisher, self._node, self._hosts, request.owner, is_relayed)
