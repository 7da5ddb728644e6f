"""Contents of a type repository: plain data between a delegate, its clients and whatever keeps it.

Three kinds of descriptors, as in the common API: information object types and attributes (a schema for the values of
a sequence attribute) are `Descriptor`, properties (any bytes attached to a type) are `Property`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from jbi_pubsub.core.errors import TypeConflictError, UnknownUidError
from jbi_pubsub.core.history import Seconds
from jbi_pubsub.core.info_object import SchemaBundle, TypeName

Kind = Literal["type", "attribute"]
State = Literal["active", "deprecated", "removed"]
"""`removed`: by force, while something still used it; nobody finds it, its schema stays until nothing does."""

Key = tuple[Kind, TypeName]
"""Key of a descriptor: types and attributes have names of their own."""

MAX_PROPERTY_BYTES: Final = 4 << 20
MAX_PROPERTIES: Final = 100
"""Most properties of one type."""
MAX_DESCRIPTORS: Final = 10_000
"""Most descriptors of one repository."""
MAX_DESCRIPTION: Final = 4_000
MAX_NAME: Final = 200
"""Characters of a property's name."""
MAX_HISTORY: Final = 1_000
"""Changes of one type that are remembered; of more the first are forgotten."""


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An information object type, or an attribute. `digest` is of the schema's meaning, `created` seconds since the
    epoch, `by` whoever has added it."""

    kind: Kind
    type: TypeName
    digest: str
    parent: TypeName | None = None
    state: State = "active"
    created: Seconds = 0.0
    by: str = ""
    description: str = ""

    @property
    def key(self) -> Key:
        """Key that it is found by."""
        return self.kind, self.type


class Property(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes attached to a type: how many, and their SHA-256."""

    name: str
    size: int
    digest: str


class TypeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Change of a type: `when` in seconds since the epoch."""

    when: Seconds
    who: str
    what: str


class StoredType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A descriptor with its schema: what one repository gives another."""

    descriptor: Descriptor
    bundle: SchemaBundle


class TypeRegistry(Protocol):
    """The descriptors of one repository, and the rules for changing them. Safe from several threads. All methods raise
    StorageError; those that are given a key UnknownUidError for one that is not there."""

    def find(self, key: Key, *, removed: bool = False) -> Descriptor | None:
        """Descriptor under that key; None for one that is not here, or, unless `removed`, was removed while in use."""
        ...

    def all(self, kind: Kind) -> tuple[Descriptor, ...]:
        """All of a kind, by name and version."""
        ...

    def schema(self, key: Key) -> SchemaBundle:
        """As it was added, byte for byte; also of a removed one that is still in use."""
        ...

    def describe(self, key: Key, text: str, by: str) -> Descriptor:
        """Another description."""
        ...

    def set_state(self, key: Key, state: State, by: str) -> Descriptor:
        """`active` or `deprecated`."""
        ...

    def remove(self, key: Key, by: str, *, users: Sequence[str], force: bool = False) -> bool:
        """Whether it is gone; False: by force, and `users` say what still uses it. Raises ConfigurationError while it
        is used, without force, and while other types name it as their parent."""
        ...

    def removed(self) -> tuple[Descriptor, ...]:
        """Those that were removed by force, while something used them."""
        ...

    def properties(self, key: Key) -> tuple[Property, ...]:
        """By name."""
        ...

    def property(self, key: Key, name: str) -> bytes:
        """Raises UnknownUidError."""
        ...

    def set_property(self, key: Key, name: str, data: bytes | None, by: str) -> None:
        """Add or replace one; None removes it. Raises OversizeError, ConfigurationError."""
        ...

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """Changes in order; also of one that is gone."""
        ...

    def keep(self, held: StoredType, by: str) -> Descriptor:
        """Keep a copy of what another repository holds. Raises TypeConflictError."""
        ...

    def faults(self) -> tuple[str, ...]:
        """Damages: files by their names, with what is wrong."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def conflict(type_: TypeName, known: str, offered: str, *, removed: bool = False) -> TypeConflictError:
    """Two schemas for one type."""
    state = "was removed from the type repository while in use, with" if removed else "is in the type repository with"
    return TypeConflictError(
        f"{type_} {state} schema {known}, not {offered or 'none'}",
        hint="Publish with the schema of the repository (`jbi types export`), or give the type another version",
        type=str(type_),
        known=known,
        offered=offered,
    )


def unknown(key: Key) -> UnknownUidError:
    """The error for what is not there."""
    kind, type_ = key
    return UnknownUidError(
        f"no {'information object type' if kind == 'type' else 'attribute'} {type_} in the repository",
        hint="`jbi types list` shows those there are",
        type=str(type_)[:200],
    )
