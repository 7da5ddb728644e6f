"""The say of type repositories in what is published at a delegate.

Whoever does not know a type asks those delegates that have a repository, and believes them when they are of one mind; a
delegate with a repository of its own keeps a copy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from jbi_pubsub.core.descriptors import Key, StoredType, conflict
from jbi_pubsub.core.errors import JbiError, SchemaError, TypeConflictError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import check_rep
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.delegate.registrations import Registrations
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.presence import LOOKUP_SECONDS
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE, InformationType
from jbi_pubsub.protocol.repositories import ASK_SECONDS, held_elsewhere
from jbi_pubsub.protocol.requests import PublisherRequest

log = logging.getLogger("jbi_pubsub.pad")

NOBODY_SECONDS: Final = 10.0
"""Time for which it counts that no lookup service was there to ask."""
ASKING: Final = 8
"""Types that others are asked about at once: whoever calls us with names of his own must not keep all of them busy."""
NODES_TOLD: Final = 10
"""Nodes that an error names."""
USERS_MOST: Final = 1_000
"""Registrations elsewhere that are counted."""


class Repositories:
    """The say of type repositories, ours and those of other delegates, in what is published here."""

    def __init__(
        self,
        server_id: str,
        types: ServedTypes,
        community: JoinManager,
        security: Security,
        registrations: Registrations,
    ) -> None:
        self.users: Final[list[Callable[[TypeName], str]]] = []
        """Further users of types: each says in words what uses one, "" for nothing."""
        self.nodes: Callable[[str], list[str]] = lambda type_: []  # noqa: ARG005  # it is on no network of nodes
        """Names of other nodes that publish a type."""
        self._server_id = server_id
        self._registrations = registrations
        self._types = types
        self._community = community
        self._security = security
        self._asking = threading.BoundedSemaphore(ASKING)
        self._nobody_until = 0.0
        """Monotonic seconds until which nobody waits for a lookup service again."""

    def check_type(self, request: PublisherRequest, caller: str = "") -> TypeName:
        """The type, opened for that caller. Exactly one schema per type, also across delegates. Raises EntryError,
        SchemaError, TypeConflictError."""
        for described in request.entries:
            check_rep(described)
        try:
            gate = self._registrations.open_type(request.schema, caller)
        except TypeConflictError as exc:
            nodes = self.nodes(str(exc.facts.get("type")))
            if not nodes:
                raise
            text = f"{exc.message}; it is published at {', '.join(nodes[:NODES_TOLD])}"
            raise TypeConflictError(text, hint=exc.hint, **exc.facts) from exc
        try:
            self._check(gate)
        except JbiError:
            self._registrations.forget_type(gate.type)
            raise
        wanted = InformationType(name=gate.type.name, version=gate.type.version).rep()
        template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=(wanted,))
        try:
            standing = self._community.lookup(template, limit=1, timeout=LOOKUP_SECONDS)
        except JbiError as exc:
            log.warning("schema of %s not compared with other delegates: %s", gate.type, exc)
            return gate.type
        for item in standing:
            entry = next((e for e in item.entries if e.cls == wanted.cls), None)
            if entry is not None and InformationType.from_rep(entry).schema != gate.digest:
                self._registrations.forget_type(gate.type)
                raise TypeConflictError(
                    f"information object type {gate.type} is published with another schema already",
                    hint="Use that schema, or publish under another version",
                    type=str(gate.type),
                )
        return gate.type

    def users_of(self, type_: TypeName) -> tuple[str, ...]:
        """Users of a type, in words: registrations here and at other delegates, and what others say; () for nothing."""
        here = self._registrations.publishing(type_)
        found = [_counted(here, "here")] if here else []
        wanted = InformationType(name=type_.name, version=type_.version).rep()
        template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=(wanted,))
        try:
            items = self._community.lookup(template, limit=USERS_MOST, timeout=ASK_SECONDS)
        except JbiError as exc:
            log.warning("the registrations of %s at other delegates are not counted: %s", type_, exc)
            items = []
        elsewhere = sum(item.proxy.service_id != self._server_id for item in items)
        found += [_counted(elsewhere, "elsewhere")] if elsewhere else []
        return (*found, *filter(None, (each(type_) for each in self.users)))

    def _check(self, gate: InformationTypeGate) -> None:
        """A type that is about to be published: ours said its word when it was opened. Raises TypeConflictError, and
        SchemaError for one that has to be known and is not."""
        registry = self._types.registry
        key = _type(gate.type)
        if registry is None and not self._types.only_known:
            return
        known = registry.find(key) if registry is not None else None
        if known is not None:
            if known.state == "deprecated":
                log.warning("%s is deprecated, and a publisher uses it", gate.type)
            return
        held = self.elsewhere(key)
        if held is None:
            if self._types.only_known:
                raise SchemaError(
                    f"{gate.type} is in no type repository, and none but known types are published here",
                    hint="Add it (`jbi types add`), or unset [types] only_known",
                    type=str(gate.type),
                )
            return
        if held.descriptor.digest != gate.digest:
            raise conflict(gate.type, held.descriptor.digest, gate.digest)
        if registry is not None:  # the schema that we have opened: what the other one says of its own is its word
            named = msgspec.structs.replace(gate.bundle, type=gate.type)
            registry.keep(StoredType(held.descriptor, named), f"copy for {self._server_id[:8]}")

    def schema(self, type_: TypeName) -> SchemaBundle | None:
        """The schema by which a type is known, published here or in a repository, ours or another's; None for one that
        is not. Raises TypeConflictError, StorageError."""
        open_ = self._types.find(type_)
        if open_ is not None and not open_.bundle.is_none:
            return open_.bundle
        registry, key = self._types.registry, _type(type_)
        if registry is not None and registry.find(key) is not None:
            return registry.schema(key)
        held = self.elsewhere(key)
        return held.bundle if held is not None else None

    def elsewhere(self, key: Key) -> StoredType | None:
        """The type as other delegates' repositories hold it. Raises TypeConflictError when they disagree."""
        if not self._community.connected() and time.monotonic() < self._nobody_until:
            return None  # it was waited for just now: strangers must not make all threads wait
        if not self._asking.acquire(timeout=ASK_SECONDS):
            log.warning("other type repositories are not queried for %s: too many queries already", key[1])
            return None
        try:
            return held_elsewhere(self._community, self._security, key, but=self._server_id)
        finally:
            if not self._community.connected():
                self._nobody_until = time.monotonic() + NOBODY_SECONDS
            self._asking.release()


def _type(type_: TypeName) -> Key:
    return "type", type_


def _counted(count: int, where: str) -> str:
    return f"{count} registration{'' if count == 1 else 's'} {where}"
