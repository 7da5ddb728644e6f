"""The type repository: the one place where schemas are opened (paper section 2.1: one schema for each type)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.codegen.binder import Binder
from jbi_pubsub.codegen.bundle import Sources, normalize
from jbi_pubsub.codegen.certain import LeafTypes
from jbi_pubsub.codegen.derive import Explanation, derive
from jbi_pubsub.codegen.model import TypeModel
from jbi_pubsub.codegen.passes import build
from jbi_pubsub.codegen.schema import read_schema, validator
from jbi_pubsub.core.errors import MetadataError, SchemaError, TypeConflictError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import Texts
from jbi_pubsub.lookup.entry import EntryRep

MAX_TYPES: Final = 1_000
"""Types held at once; each takes a compiled schema (about 0.2 MB for CAP), and schemas come from publishers."""

MAX_ERRORS_SHOWN: Final = 5
"""Further validation errors follow from the first ones more often than not."""

MAX_NAME_CHARS: Final = 500
"""Of a type's name and version together; a namespace and a local name need about 100."""

_CACHE_FORMAT: Final = "1"  # changes with the model's meaning; the library versions below cover the rest


class InformationType:
    """One information object type, ready for work. Immutable; several threads may use it at once.

    `digest` is of the bundle's meaning: two bundles that differ in comments, layout or file names have one digest.
    """

    def __init__(self, model: TypeModel, bundle: SchemaBundle, digest: str, schema: etree.XMLSchema) -> None:
        self.type: TypeName = model.type
        self.root: str = model.root.tag
        self.digest = digest
        self.bundle = bundle
        self.model = model
        self._binder = Binder(model)
        self._schema = schema
        self._leaf_types: LeafTypes | None = None
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
        shown = "; ".join(f"line {line}: {text.rstrip('. ')}" for line, _, text in log[:MAX_ERRORS_SHOWN])
        raise MetadataError(
            f"{what} does not conform to the schema of {self.type}: at {first[1] or '/'}: {shown}",
            hint="Publish the full metadata, not the invariants alone, in the order and with the values of the schema",
            path=self._readable(root, first[1]),
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

    def entries(self, root: Element, *, what: str = "invariant metadata") -> tuple[EntryRep, ...]:
        """The entries of the invariant part. Raises MetadataError (facts `path`, `value`, `type`)."""
        return self._binder.entries(root, what)

    def template(self, root: Element, *, what: str = "template") -> tuple[EntryRep, ...]:
        """The entry templates of a template document (paper, figure 3); () if all is wildcard.

        Raises MetadataError for a bad value, a value on a variant element, an unknown element.
        """
        return self._binder.template(root, what)

    def check_invariants(self, root: Element, registered: tuple[EntryRep, ...]) -> None:
        """Raises InvariantError (facts `path`, `registered`, `found`) if the document's invariants are others."""
        self._binder.check(root, registered)

    def texts(self, path: Sequence[str]) -> Texts | None:
        """Texts that the leaf at `path` (tags from the document element down) of a valid document may hold instead of
        its own, with the document as valid and its invariants the same; None: none for certain."""
        if self._binder.is_invariant(path):
            return None
        if self._leaf_types is None:
            sources = normalize(self.bundle)
            self._leaf_types = LeafTypes(sources.documents, sources.main)
        return self._leaf_types.texts(path)

    def derive(self, predicate: str, namespaces: Mapping[str, str] = {}) -> tuple[EntryRep, ...]:
        """Entry templates that match whatever publishes an object for which `predicate` is true; () for none."""
        return derive(self._binder, predicate, namespaces).templates

    def explain(self, predicate: str, namespaces: Mapping[str, str] = {}) -> Explanation:
        """The same as plain data: for each condition where it went and why."""
        return derive(self._binder, predicate, namespaces)


class TypeRepository:
    """The information object types of this process, by name and version. Several threads may use it at once.

    `cache_dir` keeps models on disk, by content and library versions; processes may share it, and removing files from
    it is harmless. `limit` bounds the number of types.
    """

    def __init__(self, *, cache_dir: Path | None = None, limit: int = MAX_TYPES) -> None:
        self._cache_dir = cache_dir
        self._limit = limit
        self._lock = threading.Lock()
        self._types: dict[TypeName, InformationType] = {}

    def open(self, bundle: SchemaBundle) -> InformationType:
        """The type that `bundle` describes; the same object for an equal bundle.

        Raises SchemaError (invalid, without marks, too large), TypeConflictError for a second, different schema of a
        type that is known.
        """
        with self._lock:
            known = next((t for t in self._types.values() if t.bundle == bundle), None)
        if known is not None:
            return known
        opened = open_type(bundle, cache_dir=self._cache_dir)  # outside the lock: it takes tens of milliseconds
        with self._lock:
            known = self._types.get(opened.type)
            if known is None:
                if len(self._types) >= self._limit:
                    raise SchemaError(
                        f"{self._limit} information object types are known already",
                        hint="Remove registrations of types that are not in use, or raise the limit",
                        limit=self._limit,
                    )
                self._types[opened.type] = known = opened
        if known.digest != opened.digest:
            raise TypeConflictError(
                f"{opened.type} is known with another schema",
                hint="Publish with the schema in use, or give the type another version",
                type=str(opened.type),
                known=known.digest,
                offered=opened.digest,
            )
        return known

    def find(self, type: TypeName) -> InformationType | None:  # noqa: A002 - the interface's word for it
        """The type, or None."""
        with self._lock:
            return self._types.get(type)

    def forget(self, type: TypeName) -> None:  # noqa: A002 - as above
        """Forget the type, known or not: its last registration is gone, and its schema may change."""
        with self._lock:
            self._types.pop(type, None)


def open_type(bundle: SchemaBundle, *, cache_dir: Path | None = None) -> InformationType:
    """One type on its own, without a repository (for the command line and studies). Raises SchemaError."""
    sources = normalize(bundle)
    schema = validator(sources)  # first: the model's reader leaves the check of what is variant to it
    return InformationType(_cached(sources, bundle.type, cache_dir), bundle, sources.digest, schema)


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


def _cached(sources: Sources, wanted: TypeName, cache_dir: Path | None) -> TypeModel:
    if cache_dir is None:
        return _model(sources, wanted)
    path = cache_dir / f"{_cache_key(sources, wanted)}.model.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):  # no file, or a damaged one: made anew below
        return msgspec.json.decode(path.read_bytes(), type=TypeModel)
    model = _model(sources, wanted)
    with contextlib.suppress(OSError):  # a full or read-only disk costs time, not correctness
        _store(path, msgspec.json.encode(model))
    return model


def _model(sources: Sources, wanted: TypeName) -> TypeModel:
    draft = read_schema(sources)
    name = wanted.name or draft.marker or draft.root.tag
    if not (name + wanted.version).isprintable() or len(name) + len(wanted.version) > MAX_NAME_CHARS:
        raise SchemaError(
            f"{name[:40]!r} {wanted.version[:20]!r} is no name and version of a type",
            hint=f"Use printable characters, {MAX_NAME_CHARS} at most",
        )
    return build(draft, TypeName(name, wanted.version))


def _cache_key(sources: Sources, wanted: TypeName) -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jbi-pubsub", "xmlschema", "elementpath")]
    text = "\0".join([_CACHE_FORMAT, *versions, wanted.name, wanted.version, sources.digest])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _store(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(temporary).replace(path)
