"""The type repository: the one place where schemas are opened (paper section 2.1: one schema for each type)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec
from lxml import etree

from jbi_pubsub.codegen.binder import Binder
from jbi_pubsub.codegen.bundle import parse_schema
from jbi_pubsub.codegen.compiled import validator
from jbi_pubsub.codegen.model import one_line
from jbi_pubsub.codegen.opening import OPENER, OpenedSchema, Opener, checked_name, opened
from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.descriptors import Descriptor, Kind, conflict
from jbi_pubsub.core.documents import Particle, Texts
from jbi_pubsub.core.documents.certain import LeafTypes
from jbi_pubsub.core.documents.outline import SchemaOutline
from jbi_pubsub.core.documents.simple import UnclearError
from jbi_pubsub.core.errors import ConfigurationError, MetadataError, SchemaError, TypeConflictError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.impossible import impossible
from jbi_pubsub.lookup.entry import EntryRep

if TYPE_CHECKING:
    from jbi_pubsub.codegen.derive import Derivation
    from jbi_pubsub.codegen.types.registry import Registry

MAX_TYPES: Final = 1_000
"""Types held at once; each takes a compiled schema (about 0.2 MB for CAP), and schemas come from publishers."""

MAX_TYPES_BYTES: Final = 256 << 20
"""Bytes of the documents of all types held at once; they are held twice, as they came and as libxml2 reads them."""

MAX_ERRORS_SHOWN: Final = 5
"""Further validation errors follow from the first ones more often than not."""


class InformationType:
    """One information object type, ready for work. Immutable; several threads may use it at once.

    `digest` is of the bundle's meaning: two bundles that differ in comments, layout or file names have one digest,
    if the names are in the same order.
    """

    def __init__(self, found: OpenedSchema, bundle: SchemaBundle) -> None:
        """Compiles the schema for validation. Raises SchemaError."""
        model = found.model
        self.type: TypeName = model.type
        self.root: str = model.root
        self.digest = found.digest
        self.bundle = bundle
        self.model = model
        self._opened = found
        self._binder = Binder(model)
        self._schema = validator(found.main, found.documents, found.names)
        self._one_run = threading.Lock()

    def validate(self, root: Element, *, what: str = "metadata") -> None:
        """Raises MetadataError (facts `path`, `line`) unless the document is valid; it says what was expected.

        So it does, without these facts, for a document that libxml2 fails on.
        """
        with self._one_run:  # lxml keeps one error log per compiled schema
            try:
                if self._schema.validate(root):
                    return
            except etree.XMLSchemaValidateError as exc:
                raise MetadataError(
                    f"{what} can't be validated by the schema of {self.type}: {exc}",
                    hint="Look for a value outside of every range in use, such as a year of 18 digits",
                ) from exc
            log = [(e.line, e.path or "", e.message) for e in self._schema.error_log]
        first = log[0] if log else (0, "", "the document is invalid")
        shown = "; ".join(f"line {line}: {one_line(text)}" for line, _, text in log[:MAX_ERRORS_SHOWN])
        path = self._readable(root, first[1])
        raise MetadataError(
            f"{what} does not conform to the schema of {self.type}: at {path or '/'}: {shown}",
            hint="Publish the full metadata, not the invariants alone, in the order and with the values of the schema",
            path=path,
            line=first[0],
            reason=first[2],
        )

    def _readable(self, root: Element, path: str) -> str:
        """libxml2's /*/*[4] as /c:alert/c:scope."""
        try:
            found = root.getroottree().xpath(path, namespaces={p: uri for p, uri in root.nsmap.items() if p} or None)
        except etree.XPathError:
            return path  # a prefix that is declared further down
        element = found[0] if isinstance(found, list) and found else None
        return self._binder.where(element) if isinstance(element, etree._Element) else path

    @property
    def has_invariants(self) -> bool:
        """Whether anything in its documents is invariant."""
        return bool(self.model.entries)

    def entries(self, root: Element, *, what: str = "invariant metadata") -> tuple[EntryRep, ...]:
        """The entries of the invariant part. Raises MetadataError (facts `path`, `value`, `type`)."""
        return self._binder.entries(root, what)

    def check_complete(self, root: Element, *, what: str = "invariant metadata") -> None:
        """Raises InvariantError (fact `path`) if an invariant is missing that each valid document has."""
        self._binder.check_complete(root, what)

    def template(self, root: Element, *, what: str = "template") -> tuple[EntryRep, ...]:
        """The entry templates of a template document (paper, figure 3); () if all is wildcard.

        Raises MetadataError for a bad value, a value on a variant element, an unknown element.
        """
        return self._binder.template(root, what)

    def condition(self, template: Sequence[EntryRep]) -> str:
        """An XPath that holds for all documents whose entries a template matches; "" if nothing can be said so."""
        return self._binder.condition(template)

    def check_invariants(self, root: Element, registered: tuple[EntryRep, ...], metadata: bytes = b"") -> None:
        """Raises InvariantError (facts `path`, `registered`, `found`) if the document's invariants are others; with its
        bytes (`metadata`) it is faster."""
        self._binder.check(root, registered, metadata)

    def texts(self, path: Sequence[str]) -> Texts | None:
        """Texts that the leaf at `path` (tags from the document element down) of a valid document may hold instead of
        its own, with the document as valid; None: none for certain."""
        return self._certain.texts(path)

    def attribute(self, path: Sequence[str], name: str) -> Texts | None:
        """Texts that the attribute `name`, in no namespace, of the element at `path` may hold instead of its own."""
        return self._certain.attribute(path, name)

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:
        """A content model of the element at `path` in which each of `tags`, its children in a valid document, has one
        place; see core/documents/shape.py."""
        return self._certain.content(path, tags)

    def is_invariant(self, path: Sequence[str]) -> bool:
        """Whether the element at `path` belongs to the invariant part."""
        return self._binder.is_invariant(path)

    @cached_property
    def _certain(self) -> LeafTypes:
        return LeafTypes(self._parsed(), self._opened.main)

    def _parsed(self) -> dict[str, Element]:
        return {name: parse_schema(name, data) for name, data in self._opened.documents.items()}

    @cached_property
    def _outline(self) -> SchemaOutline | None:
        try:
            return SchemaOutline(self._parsed().values(), self.root)
        except UnclearError:
            return None

    def impossible(
        self, expression: str, namespaces: Mapping[str, str], registered: Collection[Sequence[EntryRep]] = ()
    ) -> tuple[str, ...]:
        """Why an XPath is false for, or selects nothing in, all valid documents; () if it may not, or none can say.
        `registered`: the entries of all registrations whose documents it is asked of; () for any."""
        outline = self._outline
        why = impossible(expression, namespaces, outline, dict(self.model.prefixes)) if outline is not None else ()
        if not why and registered:
            from jbi_pubsub.codegen.derive import missed_invariants  # see explain

            why = missed_invariants(self._binder, expression, namespaces, registered)
        return tuple(map(str, why))

    def derive(self, predicate: str, namespaces: Mapping[str, str] = {}) -> tuple[EntryRep, ...]:
        """Entry templates that match whatever publishes an object for which `predicate` is true; () for none."""
        return self.explain(predicate, namespaces).templates

    def explain(self, predicate: str, namespaces: Mapping[str, str] = {}) -> Derivation:
        """The same as plain data: for each condition where it went and why."""
        from jbi_pubsub.codegen.derive import derive  # it takes a while to load, and not every process derives

        return derive(self._binder, predicate, namespaces)


class TypeRepository:
    """The information object types of this process, by name and version. Several threads may use it at once.

    `cache_dir` keeps on disk what was made of schemas, by content and library versions; processes may share it, and
    removing files from it is harmless. `limit` bounds the number of types. `opener` opens schemas not seen before.
    `registry` has the descriptors that outlive the process: no type that it knows may have another schema here; whoever
    made it closes it. `only_known`: types that are in no repository are refused, by the server.
    """

    def __init__(
        self,
        *,
        cache_dir: Path | None = None,
        limit: int = MAX_TYPES,
        opener: Opener = OPENER,
        registry: Registry | None = None,
        only_known: bool = False,
    ) -> None:
        self._cache_dir = cache_dir
        self._limit = limit
        self._opener = opener
        self.registry: Final = registry
        self.only_known: Final = only_known
        self._lock = threading.Lock()
        self._types: dict[TypeName, InformationType | UntypedGate] = {}
        self._alive: WeakSet[InformationType] = WeakSet()
        """Those that somebody holds, forgotten or not: what is made of a schema may be large."""

    def open(self, bundle: SchemaBundle, *, caller: str = "") -> InformationType | UntypedGate:
        """Stand-in for a type that somebody publishes: see `open_schema`, and `untyped` where there is none."""
        return self.untyped(bundle.type) if bundle.is_none else self.open_schema(bundle, caller=caller)

    def open_schema(self, bundle: SchemaBundle, *, caller: str = "") -> InformationType:
        """The type that `bundle` describes; the same object for an equal bundle. It may take seconds for a schema that
        was not seen before; no other caller waits for that.

        `caller` names who gave the bundle (a peer's address or identity): each may cause so much work, and no more.
        Raises SchemaError (invalid, without marks, too large or too costly), TypeConflictError for a second, different
        schema of a type that is known.
        """
        with self._lock:
            known = next((t for t in self._alive if t.bundle == bundle), None)
        if known is not None:
            self._check_registered(known.type, known.digest)
            return self._held(known)
        found = self._opener.open(bundle, cache_dir=self._cache_dir, caller=caller)
        self._check_registered(found.model.type, found.digest)
        return self._kept(found, bundle)

    def untyped(self, type: TypeName) -> UntypedGate:  # noqa: A002 - the interface's word for it
        """Stands for a type without a schema. Raises TypeConflictError for one that has a schema here, SchemaError."""
        name = checked_name(type.name, type.version)
        if not name.name:
            raise SchemaError("a type without a schema needs a name", hint="Give type_name=, or the schema")
        self._check_registered(name, UntypedGate.digest)
        found = self._taken(UntypedGate(name))
        assert isinstance(found, UntypedGate)
        return found

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
        """Add a type, or an attribute, to the repository; what it says of it, also if it is there with this schema.
        `agreed(type, digest)` raises if it may not be added: what type it is shows when it is opened.

        Raises SchemaError, TypeConflictError (in the repository, or published here, with another schema),
        UnknownUidError for an unknown parent, OversizeError, ConfigurationError without a repository, StorageError.
        """
        if self.registry is None:
            raise ConfigurationError("there is no type repository here", hint="Name a folder: [types] folder")
        found = self._opener.open(bundle, cache_dir=self._cache_dir, caller=caller)
        type_ = found.model.type
        agreed(type_, found.digest)
        with self._lock:
            published = self._types.get(type_) if kind == "type" else None
        if published is not None and published.digest != found.digest:
            raise _conflict(type_, published.digest, found.digest)
        named = msgspec.structs.replace(bundle, type=type_)
        return self.registry.add((kind, type_), found.digest, named, by=by, parent=parent, description=description)

    def _check_registered(self, type_: TypeName, digest: str) -> None:
        known = self.registry.find(("type", type_), removed=True) if self.registry is not None else None
        if known is not None and known.digest != digest:
            raise conflict(type_, known.digest, digest, removed=known.state == "removed")

    def _kept(self, found: OpenedSchema, bundle: SchemaBundle) -> InformationType:
        with self._lock:
            known = self._types.get(found.model.type)
        if known is not None and known.digest != found.digest:
            raise _conflict(known.type, known.digest, found.digest)
        if not isinstance(known, InformationType):
            known = InformationType(found, bundle)  # outside the lock: it compiles
        return self._held(known)

    def _held(self, made: InformationType) -> InformationType:
        held = self._taken(made)
        assert isinstance(held, InformationType)
        with self._lock:
            self._alive.add(held)
        return held

    def _taken(self, made: InformationType | UntypedGate) -> InformationType | UntypedGate:
        """That one, or the one that is there already. Raises TypeConflictError, SchemaError."""
        with self._lock:
            known = self._types.get(made.type)
            if known is None:
                held = sum(map(_size, (t.bundle for t in self._types.values()))) + _size(made.bundle)
                if len(self._types) >= self._limit or held > MAX_TYPES_BYTES:
                    raise SchemaError(
                        f"{len(self._types)} information object types are known already",
                        hint="Remove registrations of types that are not in use, or raise the limit",
                        limit=self._limit,
                    )
                self._types[made.type] = known = made
        if known.digest != made.digest:
            raise _conflict(known.type, known.digest, made.digest)
        return known

    def find(self, type: TypeName) -> InformationType | UntypedGate | None:  # noqa: A002 - the interface's word for it
        """The type, or None."""
        with self._lock:
            return self._types.get(type)

    def forget(self, type: TypeName) -> None:  # noqa: A002 - as above
        """Forget the type, known or not: its last registration is gone, and its schema may change."""
        with self._lock:
            self._types.pop(type, None)


def repository_of(config: Config) -> TypeRepository:
    """Repository that [types] asks for: with its folder, the one there, which the caller closes (`registry`). Raises
    StorageError, ConfigurationError."""
    registry = None
    if config.types.folder:
        from jbi_pubsub.codegen.types.registry import registry_at  # here: what is off is not imported

        registry = registry_at(config.types.folder)
    return TypeRepository(cache_dir=config.type_cache(), registry=registry, only_known=config.types.only_known)


def open_type(bundle: SchemaBundle) -> InformationType:
    """One type on its own, opened in this process and without limits: for schemas of one's own. Raises SchemaError."""
    return InformationType(opened(bundle), bundle)


def _conflict(type_: TypeName, known: str, offered: str) -> TypeConflictError:
    return TypeConflictError(
        f"{type_} is known with another schema: {known or 'none at all'}, not {offered or 'none'}",
        hint="Publish with the schema in use, or give the type another version",
        type=str(type_),
        known=known,
        offered=offered,
    )


def _size(bundle: SchemaBundle) -> int:
    return sum(len(data) for _, data in bundle.documents)


def type_name(root: Element) -> str:
    """The information object type name that a document itself gives.

    The first child element of the document element, if it is a marker: no children, no text, no attributes, and a dot
    in its local name, as in <mil.af.rl.jbi.Intel_Imagery/>; its local name is the type name. Without a marker it is
    the document element's qualified name in Clark notation.
    """
    first = next(root.iterchildren("*"), None)
    if first is None or len(first) or first.attrib or (first.text or "").strip():
        return str(root.tag)
    local = str(first.tag).rpartition("}")[2]
    return local if "." in local else str(root.tag)
