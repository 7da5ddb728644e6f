"""The attributes of a sequence: set as XML or by methods, which is the same value, and compiled once, when it opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

from . import bindings
from .bindings import Document
from .errors import ObjectUnavailableException, UnsupportedVersionException

VERSION: Final = "1.0"
"""Version of all attributes."""

Role = Literal["publisher", "subscriber", "query"]

_ALL: Final[tuple[Role, ...]] = ("publisher", "subscriber", "query")

T = TypeVar("T", bound=Document)


class SequenceAttribute(NamedTuple):
    """An attribute as it was set: its name, version and document."""

    name: str
    version: str
    document: str


class _AttributeKind(NamedTuple):
    """Class of an attribute's value, and which sequences take it."""

    binding: type[Document]
    roles: tuple[Role, ...]


KINDS: Final[Mapping[str, _AttributeKind]] = {
    "Validation": _AttributeKind(bindings.ValidationAttribute, _ALL),
    "ReliableDelivery": _AttributeKind(bindings.ReliableDeliveryAttribute, ("publisher",)),
    "Persistence": _AttributeKind(bindings.PersistenceAttribute, ("publisher",)),
    "Compression": _AttributeKind(bindings.CompressionAttribute, ("publisher",)),
    "Invariants": _AttributeKind(bindings.InvariantsAttribute, ("publisher",)),
    "NamespacePrefixes": _AttributeKind(bindings.NamespacePrefixesAttribute, ("subscriber", "query")),
    "Local": _AttributeKind(bindings.LocalAttribute, ("publisher", "subscriber")),
    "OwnPublications": _AttributeKind(bindings.OwnPublicationsAttribute, ("subscriber",)),
    "Order": _AttributeKind(bindings.OrderAttribute, ("publisher", "subscriber")),
    "Durable": _AttributeKind(bindings.DurableAttribute, ("subscriber",)),
    "Latest": _AttributeKind(bindings.LatestAttribute, ("subscriber", "query")),
}
"""By their names, which are exact."""


class SequenceAttributes:
    """Attributes that are set for one sequence. Its sequence has the lock."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._set: dict[str, Document] = {}

    def put(self, value: Document) -> None:
        """Set one by its value. Raises ObjectUnavailableException when the sequence does not take it."""
        name = next(name for name, kind in KINDS.items() if kind.binding is type(value))
        self._kind(name, VERSION)
        bindings.write(value)  # what can't be told as XML is not set
        self._set[name] = value

    def read(self, name: str, version: str, document: str) -> None:
        """Set one by its document. Raises ObjectUnavailableException, UnsupportedVersionException,
        InvalidMetadataException."""
        self._set[name] = bindings.read(self._kind(name, version), document)

    def written(self, name: str, version: str) -> str:
        """The document of one that is set. Raises ObjectUnavailableException, UnsupportedVersionException."""
        self._kind(name, version)
        value = self._set.get(name)
        if value is None:
            raise ObjectUnavailableException(f"attribute {name} is not set", hint="The platform's default holds")
        return bindings.write(value)

    def all(self) -> list[SequenceAttribute]:
        """Those that are set, by name."""
        return [SequenceAttribute(name, VERSION, bindings.write(self._set[name])) for name in sorted(self._set)]

    def get(self, kind: type[T]) -> T | None:
        """The value of one, None if it is not set."""
        return next((value for value in self._set.values() if isinstance(value, kind)), None)

    def publishing(self, owner: str) -> dict[str, Any]:
        """As arguments of `register_publisher`; `owner`: whose the connection's publications are."""
        given: dict[str, Any] = {"owner": owner, **self._validating()}
        if (reliable := self.get(bindings.ReliableDeliveryAttribute)) is not None:
            given |= {"reliable": reliable.reliable, "expiration": reliable.expiration / 1000}
        if (persistence := self.get(bindings.PersistenceAttribute)) is not None:
            given["persist"] = persistence.persist
        if (local := self.get(bindings.LocalAttribute)) is not None:
            given["local"] = local.local_only
        if (invariants := self.get(bindings.InvariantsAttribute)) is not None:
            given["invariants"] = invariants.metadata.encode()
        return given

    def subscribing(self, owner: str) -> dict[str, Any]:
        """As arguments of `register_subscriber`; `owner`: whose publications are the connection's own."""
        given = self.querying()
        if (own := self.get(bindings.OwnPublicationsAttribute)) is not None and not own.receive_own:
            given["unlike"] = owner
        if (local := self.get(bindings.LocalAttribute)) is not None:
            given["local"] = local.local_only
        if (durable := self.get(bindings.DurableAttribute)) is not None:
            given["durable"] = durable.id
        if "latest_by" in given:
            given["start"] = "last"
        return given

    def querying(self) -> dict[str, Any]:
        """As conditions of a query; a subscription has them, too."""
        given = self._validating()
        if (prefixes := self.get(bindings.NamespacePrefixesAttribute)) is not None:
            given["namespaces"] = {each.prefix: each.uri for each in prefixes.mapping}
        if (latest := self.get(bindings.LatestAttribute)) is not None:
            given["latest_by"] = latest.key
        return given

    def _validating(self) -> dict[str, Any]:
        if (validation := self.get(bindings.ValidationAttribute)) is None:
            return {}
        return {
            "well_formed": validation.validate_xml_is_well_formed,
            "validate": validation.validate_xml_against_schema,
        }

    def _kind(self, name: str, version: str) -> type[Document]:
        kind = KINDS.get(name)
        own = [known for known, each in KINDS.items() if self._role in each.roles]
        if kind is None or self._role not in kind.roles:
            what = "there is no attribute" if kind is None else f"{self._role} sequences have no attribute"
            raise ObjectUnavailableException(f"{what} {name[:60]!r}", hint=f"They have {', '.join(own)}")
        if version != VERSION:
            raise UnsupportedVersionException(
                f"attribute {name} is known in version {VERSION}, not {version[:60]!r}", hint=f"Use version {VERSION}"
            )
        return kind.binding
