"""Conformity of metadata to what was registered: valid, with its invariants. Pure: no network, thread or clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from jbi_pubsub.core.documents import AnyDocument, Grammar, Invariants, Traced, known_documents
from jbi_pubsub.core.errors import MetadataError, OversizeError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, Element, parse_metadata, read_metadata
from jbi_pubsub.lookup.entry import EntryRep


class InformationTypeGate(Grammar, Protocol):
    """The type of a registration, as the type repository opens it: all that a delegate knows of schemas."""

    @property
    def type(self) -> TypeName:
        """Name and version."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the schema and its marks."""
        ...

    @property
    def bundle(self) -> SchemaBundle:
        """The schema as its publisher gave it."""
        ...

    def entries(self, root: Element) -> tuple[EntryRep, ...]:
        """The entries of invariant metadata. Raises MetadataError."""
        ...

    def condition(self, template: Sequence[EntryRep]) -> str:
        """An XPath that holds for all documents whose entries a template matches; "" if nothing can be said so."""
        ...

    def impossible(
        self, expression: str, namespaces: Mapping[str, str], registered: Collection[Sequence[EntryRep]] = ()
    ) -> tuple[str, ...]:
        """Why an XPath is false for, or selects nothing in, all valid documents; () if it may not, or none can say.
        `registered`: the entries of all registrations whose documents it is asked of; () for any."""
        ...

    def validate(self, root: Element) -> None:
        """Raises MetadataError with the path of the element."""
        ...

    def check_invariants(self, root: Element, registered: tuple[EntryRep, ...], metadata: bytes = b"") -> None:
        """Raises InvariantError naming path, registered and found value; `metadata`: the bytes of the document."""
        ...


REMEMBERED_BYTES: Final = 16 << 10
"""Larger metadata are judged each time: with 10,000 registrations the answers kept hold 160 MB of metadata at most."""

MAX_PASSED: Final = 8
"""Ways to write the invariants of a registration that are remembered."""

UNLIKE: Final = 64
UNLIKE_EVERY: Final = 16
"""With a source that had so many documents in turn that were like no known ones, one in so many is looked at."""


class _Unvalidated(AnyDocument):
    """Grammar of documents that are not validated, in which the gate says what is invariant."""

    def __init__(self, gate: Grammar) -> None:
        self._gate = gate

    def is_invariant(self, path: Sequence[str]) -> bool:
        """Whether the gate says so."""
        return self._gate.is_invariant(path)


class Conformity:
    """Whether the metadata of one registration's objects are what was registered: valid, with its invariants.

    Metadata that are like known ones of the type are told without a parser, once its invariants as they are written
    have passed. Several threads may use it.
    """

    __slots__ = ("_entries", "_gate", "_known", "_passed", "_reads", "_unlike", "is_exacting", "validates")

    def __init__(
        self,
        gate: InformationTypeGate,
        entries: tuple[EntryRep, ...],
        *,
        validate: bool,
        well_formed: bool = True,
    ) -> None:
        """`well_formed` False: what is neither validated nor has invariants is not looked at."""
        self._gate = gate
        self._entries = entries
        self.validates = validate
        self.is_exacting = validate or bool(entries)
        """Whether there have to be metadata."""
        self._reads = self.is_exacting or well_formed
        self._known = known_documents((gate.digest, validate), gate if validate else _Unvalidated(gate))
        self._passed: frozenset[Invariants] = frozenset()
        self._unlike = 0

    def check(self, metadata: bytes) -> Element | Traced | None:
        """The document, parsed if need be; None: there are no metadata, or they are not looked at. Raises
        MetadataError, InvariantError or OversizeError."""
        unlike = self._unlike
        traced = self._known.trace(metadata) if unlike < UNLIKE or not unlike % UNLIKE_EVERY else None
        self._unlike = unlike + 1 if traced is None else 0
        if traced is not None and traced.invariants in self._passed:
            return traced
        if not (metadata and self._reads):
            self._unread(metadata)
            return None
        root = parse_metadata(metadata)
        self._judge(root, metadata)
        if traced is None:
            self._known.parsed(metadata)
        else:
            self._pass(traced.invariants)
        return root

    def misfit(self, metadata: bytes, root: Element | None) -> str:
        """Why metadata would not pass, "" if they would; nothing is remembered. `root`: their document, if they are
        one."""
        try:
            if not (metadata and self._reads):
                self._unread(metadata)
            elif root is None:
                parse_metadata(metadata)  # it says why
            else:
                self._judge(root, metadata)
        except (MetadataError, OversizeError) as exc:
            return exc.message
        return ""

    def read(self, metadata: bytes) -> Element | Traced | None:
        """The document of metadata that passed before; None: they are none."""
        return self._known.trace(metadata) or (
            parse_metadata(metadata) if self.is_exacting else read_metadata(metadata)
        )

    def _judge(self, root: Element, metadata: bytes) -> None:
        if self.validates:
            self._gate.validate(root)
        self._gate.check_invariants(root, self._entries, metadata)

    def _unread(self, metadata: bytes) -> None:
        if self.is_exacting:
            what = "validated" if self.validates else "compared with the registered invariants"
            raise MetadataError(f"there are no metadata, which are {what}", hint="Give a document")
        if len(metadata) > MAX_METADATA_BYTES:
            size, limit = len(metadata), MAX_METADATA_BYTES
            raise OversizeError(f"metadata has {size} bytes, the limit is {limit}", size=size, limit=limit)

    def _pass(self, invariants: Invariants) -> None:
        """Remember invariants that are the registered ones."""
        if sum(len(text or b"") for text in invariants[1]) <= REMEMBERED_BYTES:
            before = self._passed if len(self._passed) < MAX_PASSED else frozenset()
            self._passed = before | {invariants}
