"""The rules of a type repository, above whatever keeps it: what may be added, changed and removed, and by whom it was.

The schema of a type never changes: that is a new version. Description, properties and state may at any time, and each
change is a line of history. `now` comes from `wall`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jbi_pubsub.codegen.types.catalogue import FolderTypes, TypeCatalogue
from jbi_pubsub.core import plugins
from jbi_pubsub.core.descriptors import (
    MAX_DESCRIPTION,
    MAX_DESCRIPTORS,
    MAX_NAME,
    MAX_PROPERTIES,
    MAX_PROPERTY_BYTES,
    Descriptor,
    Key,
    Kind,
    Property,
    State,
    StoredType,
    TypeChange,
    conflict,
    unknown,
)
from jbi_pubsub.core.errors import ConfigurationError, OversizeError, StorageError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName

WHO_MOST = 200
"""Characters of who has made a change."""


class Registry:
    """A core.descriptors.TypeRegistry on a catalogue, which it closes."""

    def __init__(self, catalogue: TypeCatalogue, *, wall: Callable[[], float] = time.time) -> None:
        self._catalogue = catalogue
        self._wall = wall
        self._lock = threading.RLock()

    def find(self, key: Key, *, removed: bool = False) -> Descriptor | None:
        """See TypeRegistry."""
        with self._lock:
            found = self._catalogue.find(key)
        return found if found is not None and (removed or found.state != "removed") else None

    def all(self, kind: Kind) -> tuple[Descriptor, ...]:
        """See TypeRegistry."""
        with self._lock:
            return tuple(each for each in self._catalogue.all() if each.kind == kind and each.state != "removed")

    def schema(self, key: Key) -> SchemaBundle:
        """See TypeRegistry."""
        with self._lock:
            return self._catalogue.bundle(key)

    def add(
        self, key: Key, digest: str, bundle: SchemaBundle, *, by: str, parent: TypeName | None, description: str
    ) -> Descriptor:
        """A new one; the one that is there, for the same schema. Raises TypeConflictError (facts `known`, `offered`),
        UnknownUidError for an unknown parent, OversizeError, ConfigurationError, StorageError."""
        _check_text("description", description, MAX_DESCRIPTION, lines=True)
        with self._lock:
            known = self._catalogue.find(key)
            self._check_conflict(key, known, digest)
            if known is not None and known.state != "removed":
                return self._mended(known, bundle, by)
            if parent is not None and self.find(("type", parent)) is None:
                raise UnknownUidError(
                    f"no information object type {parent} in the repository to be the parent of {key[1]}",
                    hint="Add the parent first",
                    type=str(parent)[:200],
                )
            return self._put_new(
                Descriptor(*key, digest, parent, "active", self._wall(), by[:WHO_MOST], description),
                bundle,
                "added",
                by,
            )

    def keep(self, held: StoredType, by: str) -> Descriptor:
        """See TypeRegistry. A parent that is not here is left out, and what was removed here stays so."""
        told = held.descriptor
        with self._lock:
            known = self._catalogue.find(told.key)
            self._check_conflict(told.key, known, told.digest)
            if known is not None:
                return known
            own = msgspec.structs.replace(
                told,
                parent=told.parent if told.parent is not None and self.find(("type", told.parent)) else None,
                state="deprecated" if told.state == "deprecated" else "active",
                by=told.by[:WHO_MOST],
                description=told.description[:MAX_DESCRIPTION],
            )
            return self._put_new(own, held.bundle, "copied", by)

    def describe(self, key: Key, text: str, by: str) -> Descriptor:
        """See TypeRegistry."""
        _check_text("description", text, MAX_DESCRIPTION, lines=True)
        return self._changed(key, by, "described", description=text)

    def set_state(self, key: Key, state: State, by: str) -> Descriptor:
        """See TypeRegistry."""
        if state not in ("active", "deprecated"):
            raise ConfigurationError(f"a type becomes active or deprecated, not {state}", hint="Remove it instead")
        return self._changed(key, by, "deprecated" if state == "deprecated" else "made active again", state=state)

    def remove(self, key: Key, by: str, *, users: Sequence[str], force: bool = False) -> bool:
        """See TypeRegistry. Called again for a removed one that nothing uses any more, it goes."""
        with self._lock:
            known = self._catalogue.find(key)
            if known is None or (known.state == "removed" and users):
                raise unknown(key)
            children = [str(e.type) for e in self._catalogue.all() if e.parent == key[1] and e.kind == key[0] == "type"]
            if children:
                raise ConfigurationError(
                    f"{key[1]} is the parent of {', '.join(children[:5])}", hint="Remove these first, or deprecate it"
                )
            if users and not force:
                raise ConfigurationError(
                    f"{key[1]} is in use: {', '.join(users)}",
                    hint="Deprecate it; by force (--force) it is removed, and its schema kept until nothing uses it",
                )
            if users:
                self._changed(key, by, f"removed by force, in use: {', '.join(users)}", state="removed")
                return False
            self._catalogue.drop(key, self._change(by, "removed"))
            return True

    def removed(self) -> tuple[Descriptor, ...]:
        """Those that were removed by force while something used them."""
        with self._lock:
            return tuple(each for each in self._catalogue.all() if each.state == "removed")

    def properties(self, key: Key) -> tuple[Property, ...]:
        """See TypeRegistry."""
        with self._lock:
            self._known(key)
            return self._catalogue.properties(key)

    def property(self, key: Key, name: str) -> bytes:
        """See TypeRegistry."""
        with self._lock:
            self._known(key)
            found = self._catalogue.property(key, name)
        if found is None:
            raise UnknownUidError(f"{key[1]} has no property {name[:MAX_NAME]}", hint="`jbi types property` lists them")
        return found

    def set_property(self, key: Key, name: str, data: bytes | None, by: str) -> None:
        """See TypeRegistry."""
        _check_text("name of a property", name, MAX_NAME)
        if not name:
            raise ConfigurationError("a property needs a name")
        if data is not None and len(data) > MAX_PROPERTY_BYTES:
            raise OversizeError(
                f"property {name} has {len(data)} bytes, the limit is {MAX_PROPERTY_BYTES}",
                size=len(data),
                limit=MAX_PROPERTY_BYTES,
            )
        with self._lock:
            self._known(key)
            there = {each.name for each in self._catalogue.properties(key)}
            if data is None and name not in there:
                raise UnknownUidError(f"{key[1]} has no property {name}", hint="`jbi types property` lists them")
            if data is not None and name not in there and len(there) >= MAX_PROPERTIES:
                raise OversizeError(f"{key[1]} has its limit of {MAX_PROPERTIES} properties")
            what = f"property {name} removed" if data is None else f"property {name} set, {len(data)} bytes"
            self._catalogue.put_property(key, name, data, self._change(by, what))

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """See TypeRegistry."""
        with self._lock:
            found = self._catalogue.history(key)
            if not found and self._catalogue.find(key) is None:
                raise unknown(key)
            return found

    def faults(self) -> tuple[str, ...]:
        """See TypeRegistry."""
        with self._lock:
            return self._catalogue.faults()

    def close(self) -> None:
        """See TypeRegistry."""
        with self._lock:
            self._catalogue.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _known(self, key: Key) -> Descriptor:
        found = self.find(key)
        if found is None:
            raise unknown(key)
        return found

    def _check_conflict(self, key: Key, known: Descriptor | None, digest: str) -> None:
        if known is not None and known.digest != digest:
            raise conflict(key[1], known.digest, digest, removed=known.state == "removed")

    def _put_new(self, told: Descriptor, bundle: SchemaBundle, what: str, by: str) -> Descriptor:
        if len(self._catalogue.all()) >= MAX_DESCRIPTORS:
            raise OversizeError(f"the type repository holds its limit of {MAX_DESCRIPTORS} types and attributes")
        self._catalogue.put(told, self._change(by, f"{what}, schema {told.digest}"), bundle)
        return told

    def _mended(self, known: Descriptor, bundle: SchemaBundle, by: str) -> Descriptor:
        """Added again: where its documents are damaged, those that come are as good."""
        try:
            self._catalogue.bundle(known.key)
        except StorageError:
            self._catalogue.put(known, self._change(by, "added again: its files were damaged"), bundle)
        return known

    def _changed(self, key: Key, by: str, what: str, **fields: str) -> Descriptor:
        with self._lock:
            told = msgspec.structs.replace(self._known(key), **fields)
            self._catalogue.put(told, self._change(by, what))
            return told

    def _change(self, by: str, what: str) -> TypeChange:
        return TypeChange(self._wall(), by[:WHO_MOST], what)


def registry_at(place: str) -> Registry:
    """The repository of a folder, or of a plug-in's store (NAME://ADDRESS). Raises StorageError, ConfigurationError."""
    found = plugins.named("types", place, key="types.folder", does="keeps type repositories")
    if found is None:
        return open_registry(Path(place))
    made, address = found
    return Registry(made(address))


def open_registry(folder: Path, *, readonly: bool = False) -> Registry:
    """The repository of a folder. Raises StorageError."""
    return Registry(FolderTypes(folder, readonly=readonly))


def _check_text(what: str, text: str, most: int, *, lines: bool = False) -> None:
    shown = text.replace("\n", "").replace("\t", "") if lines else text
    if len(text) > most:
        raise OversizeError(f"the {what} has {len(text)} characters, the limit is {most}", limit=most)
    if not shown.isprintable():
        raise ConfigurationError(f"the {what} {text[:40]!r} has characters that can't be printed")
