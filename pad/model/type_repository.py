"""Type repositories as a delegate is given one: it does not know how schemas are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jbi_pubsub.core.descriptors import Descriptor, Kind, TypeRegistry
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.protocol.conformity import InformationTypeGate


class DelegateTypes(Protocol):
    """The type repository as a delegate sees it: nobody else opens a schema."""

    def open(self, bundle: SchemaBundle, *, caller: str = "") -> InformationTypeGate:
        """`caller` is who gave it: each may cause so much work; a bundle that `is_none` stands for a type without a
        schema. Raises SchemaError, or TypeConflictError for a second, different schema of a type."""
        ...

    def find(self, type: TypeName) -> InformationTypeGate | None:  # noqa: A002  # the field's word
        """The type, if it is open."""
        ...

    def forget(self, type: TypeName) -> None:  # noqa: A002  # the field's word
        """The last registration of the type is gone."""
        ...


class ServedTypes(DelegateTypes, Protocol):
    """The type repository as a server sees it."""

    @property
    def registry(self) -> TypeRegistry | None:
        """The registry, which outlives the process; None without [types] folder."""
        ...

    @property
    def only_known(self) -> bool:
        """Whether types that are in no repository are refused."""
        ...

    def add(
        self,
        bundle: SchemaBundle,
        *,
        by: str,
        caller: str = "",
        kind: Kind = "type",
        parent: TypeName | None = None,
        description: str = "",
        agreed: Callable[[TypeName, str], None] = lambda type_, digest: None,  # noqa: ARG005  # nobody is asked
    ) -> Descriptor:
        """Add a type or an attribute to the registry, if `agreed(type, digest)` does not raise. Raises SchemaError,
        TypeConflictError, UnknownUidError for an unknown parent, OversizeError, ConfigurationError, StorageError."""
        ...
