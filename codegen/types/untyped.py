"""A type without a schema: use of the repository is optional, and so are schemas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from jbi_pubsub.core.documents import AnyDocument
from jbi_pubsub.core.errors import MetadataError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import Element
from jbi_pubsub.lookup.entry import EntryRep


def bundle_without(type_: TypeName) -> SchemaBundle:
    """Bundle that is sent for a type without a schema."""
    return SchemaBundle("", (), b"", type_)


class UntypedGate(AnyDocument):
    """Stands for a type of which nobody has a schema: any well-formed metadata, none of them invariant. Immutable."""

    digest = ""

    def __init__(self, type_: TypeName) -> None:
        self.type = type_
        self.bundle = bundle_without(type_)

    def entries(self, root: Element, *, what: str = "invariant metadata") -> tuple[EntryRep, ...]:  # noqa: ARG002
        """Raises MetadataError: nothing says what is invariant."""
        raise MetadataError(
            f"{what} for {self.type}, of which there is no schema that says what is invariant",
            hint="Give the schema, or no invariant metadata",
        )

    def validate(self, root: Element, *, what: str = "metadata") -> None:  # noqa: ARG002 - there is nothing to ask
        """Raises SchemaError: it can't be."""
        raise SchemaError(f"{what} of {self.type} can't be validated: there is no schema of it")

    def condition(self, template: Sequence[EntryRep]) -> str:  # noqa: ARG002 - there is none that says more
        """Nothing can be said."""
        return ""

    def impossible(
        self,
        expression: str,  # noqa: ARG002
        namespaces: Mapping[str, str],  # noqa: ARG002
        registered: Collection[Sequence[EntryRep]] = (),  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Nothing is."""
        return ()

    def check_invariants(self, root: Element, registered: tuple[EntryRep, ...], metadata: bytes = b"") -> None:
        """There are none."""
