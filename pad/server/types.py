"""The type repository over the network: answers of a delegate about types (its questions are in repositories.py).

A delegate with a repository has an entry `jbi.Types` on its item. `held` is answered from its own repository alone, so
that a question ends.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from jbi_pubsub.core.access import AccessPolicy, Subject, denied
from jbi_pubsub.core.descriptors import (
    Descriptor,
    Key,
    Kind,
    Property,
    StoredType,
    TypeChange,
    TypeRegistry,
    conflict,
    unknown,
)
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.service import DelegateService
from jbi_pubsub.protocol.entries import local_name

log = logging.getLogger("jbi_pubsub.pad")

PAGE: Final = 500
"""Descriptors, or changes, in one answer: 4 MB with the longest descriptions."""


class TypeCalls:
    """The exported object `types`: the information object types that are published or known here. Reading is action
    `status`, also `publish` or `subscribe` for the schema of one's type; changing is action `types`, and is in the
    audit log whether a rule asks for that or not."""

    def __init__(self, server: DelegateService, types: ServedTypes, access: AccessPolicy) -> None:
        self._server = server
        self._types = types
        self._access = access

    # -- reading ------------------------------------------------------------------------------------------------

    @exported
    def get(self, caller: Caller, name: str, version: str) -> SchemaBundle:
        type_ = TypeName(name, version)
        self._server.guard.allow_type(caller, type_)
        found = self._server.repositories.schema(type_) or self._server.delegate.registrations.former_schema(type_)
        if found is None:
            told = f"{name[:200]} {version[:200]} is not published here, and in no type repository"
            raise UnknownUidError(told, hint=self._meant(caller, name))
        return found

    def _meant(self, caller: Caller, name: str) -> str:
        """A hint at the type of our repository that was meant, if the caller may know of it: its name ends so, or is
        like that."""
        registry = self._types.registry
        known = [each.type.name for each in registry.all("type")] if registry is not None else []
        near = next((each for each in known if local_name(each) == name), "") or near_name(name, known)
        may = near and any(self._access.allow(caller, action, Subject(near)) for action in ("publish", "status"))
        return f"Did you mean {near}?" if may else ""

    @exported
    def held(self, caller: Caller, kind: Kind, name: str, version: str) -> StoredType | None:
        """From our own repository alone."""
        key: Key = (kind, TypeName(name, version))
        self._server.guard.allow_type(caller, key[1])
        registry = self._types.registry
        told = registry.find(key) if registry is not None else None
        return StoredType(told, registry.schema(key)) if registry is not None and told is not None else None

    @exported
    def list(self, caller: Caller, kind: Kind, after: int) -> tuple[Descriptor, ...]:
        self._server.guard.allow(caller, "status")
        return self._registry().all(kind)[max(0, after) :][:PAGE]

    @exported
    def show(self, caller: Caller, kind: Kind, name: str, version: str) -> tuple[Descriptor, tuple[Property, ...]]:
        registry, key = self._reading(caller, kind, name, version)
        told = registry.find(key)
        if told is None:
            raise unknown(key)
        return told, registry.properties(key)

    @exported
    def property(self, caller: Caller, kind: Kind, name: str, version: str, wanted: str) -> bytes:
        registry, key = self._reading(caller, kind, name, version)
        return registry.property(key, wanted)

    @exported
    def history(self, caller: Caller, kind: Kind, name: str, version: str, after: int) -> tuple[TypeChange, ...]:
        registry, key = self._reading(caller, kind, name, version)
        return registry.history(key)[max(0, after) :][:PAGE]

    @exported
    def faults(self, caller: Caller) -> tuple[str, ...]:
        self._server.guard.allow(caller, "administer")  # it names files
        return self._registry().faults()

    # -- changing -----------------------------------------------------------------------------------------------

    @exported
    def add(
        self, caller: Caller, kind: Kind, bundle: SchemaBundle, parent: TypeName | None, description: str
    ) -> Descriptor:
        self._changing(caller, bundle.type, f"add {kind}", some=True)
        self._sweep(self._registry())
        party = caller.identity or caller.address.rpartition(":")[0]
        told = self._types.add(
            bundle,
            by=_who(caller),
            caller=party,
            kind=kind,
            parent=parent,
            description=description,
            agreed=lambda type_, digest: self._agree(caller, (kind, type_), digest),
        )
        log.info("%s has added %s %s", _who(caller), kind, told.type)
        return told

    @exported
    def describe(self, caller: Caller, kind: Kind, name: str, version: str, text: str) -> Descriptor:
        registry, key = self._writing(caller, kind, name, version, "describe")
        return registry.describe(key, text, _who(caller))

    @exported
    def deprecate(self, caller: Caller, kind: Kind, name: str, version: str, undo: bool) -> Descriptor:
        registry, key = self._writing(caller, kind, name, version, "deprecate")
        return registry.set_state(key, "active" if undo else "deprecated", _who(caller))

    @exported
    def set_property(
        self, caller: Caller, kind: Kind, name: str, version: str, wanted: str, data: bytes | None
    ) -> None:
        registry, key = self._writing(caller, kind, name, version, f"property {wanted[:100]}")
        registry.set_property(key, wanted, data, _who(caller))

    @exported
    def remove(self, caller: Caller, kind: Kind, name: str, version: str, force: bool) -> bool:
        registry, key = self._writing(caller, kind, name, version, "remove")
        self._sweep(registry)
        users = self._server.repositories.users_of(key[1]) if kind == "type" else ()
        gone = registry.remove(key, _who(caller), users=users, force=force)
        log.info("%s has removed %s %s%s", _who(caller), kind, key[1], "" if gone else ", which is in use")
        return gone

    # -- inside -------------------------------------------------------------------------------------------------

    def _registry(self) -> TypeRegistry:
        if self._types.registry is None:
            raise ConfigurationError(
                f"{self._server.name} has no type repository", hint="Start it with `--types FOLDER`, or [types] folder"
            )
        return self._types.registry

    def _reading(self, caller: Caller, kind: Kind, name: str, version: str) -> tuple[TypeRegistry, Key]:
        self._server.guard.allow(caller, "status", Subject(name, version))
        return self._registry(), (kind, TypeName(name, version))

    def _writing(self, caller: Caller, kind: Kind, name: str, version: str, what: str) -> tuple[TypeRegistry, Key]:
        self._changing(caller, TypeName(name, version), f"{what} ({kind})")
        return self._registry(), (kind, TypeName(name, version))

    def _changing(self, caller: Caller, type_: TypeName, what: str, *, some: bool = False) -> None:
        """Raises AccessDeniedError. `some`: what type it is shows when its schema has been opened, which costs."""
        subject = Subject(type_.name, type_.version if type_.name else "", what, some=some)
        decision = self._access.allow(caller, "types", subject)
        if not some or not decision:
            self._access.record(caller, "types", subject, dataclasses.replace(decision, audit=True))
        if not decision:
            raise denied(caller, "types", subject)

    def _agree(self, caller: Caller, key: Key, digest: str) -> None:
        """Whether it may be added: by the rules, and by what other repositories hold."""
        self._changing(caller, key[1], f"add {key[0]}")
        held = self._server.repositories.elsewhere(key)
        if held is not None and held.descriptor.digest != digest:
            raise conflict(key[1], held.descriptor.digest, digest)

    def _sweep(self, registry: TypeRegistry) -> None:
        """Remove what was removed by force, once nothing uses it any more."""
        for told in registry.removed():
            if not self._server.repositories.users_of(told.type):
                registry.remove(told.key, "nothing uses it any more", users=())


def _who(caller: Caller) -> str:
    return caller.user or caller.identity or caller.address.rpartition(":")[0] or caller.address
