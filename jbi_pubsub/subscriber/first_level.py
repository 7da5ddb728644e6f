"""First levels of subscriptions and queries: templates made of a document, a schema, or a type's name; and checks that
metadata are well-formed, or valid by that schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType as OpenType
from jbi_pubsub.codegen.repository import TypeRepository, type_name
from jbi_pubsub.core.arguments import Document, Source, content, path_of, source
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, MetadataError, SchemaError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, TypeName
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.entries import InformationType

from .asking import check_version
from .fitness import Fitness
from .published import Published

XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"


@dataclass(frozen=True, kw_only=True)
class FirstLevel:
    """What an application has given of the first level: the template is made of it, and made anew for another
    predicate. `is_derived`: with what follows from the predicate."""

    template: Document | None
    schema: Source | None = None
    marks: Source | None = None
    name: str = ""
    version: str = ""
    is_derived: bool = False
    locations: Mapping[str, Path] = field(default_factory=dict)
    well_formed: bool = False
    """Whether metadata that are not are dropped by the subscriber."""
    validate: bool = False
    """Whether those are that are not valid by the schema."""


class FirstLevelTemplates:
    """Makes templates, and checks of metadata, of what an application has given. Safe for several threads."""

    def __init__(self, published: Published, config: Config, forget_if_idle: Callable[[TypeName | None], None]) -> None:
        """`forget_if_idle(type)`: its schema was opened for nothing."""
        self._published = published
        self._types = TypeRepository(cache_dir=config.type_cache())
        self._forget_if_idle = forget_if_idle

    def forget(self, opened: TypeName) -> None:
        """The schema of that type is not needed any more."""
        self._types.forget(opened)

    def entries(
        self, given: FirstLevel, predicate: str, namespaces: Mapping[str, str]
    ) -> tuple[tuple[EntryRep, ...], TypeName | None]:
        """The templates of the first level, and the type whose schema was opened for them."""
        name, version, schema = given.name, given.version, given.schema
        check_version(version)
        root = None
        predicate = predicate if given.is_derived else ""
        if given.template is not None:
            root = parse_metadata(content(given.template, what="template"), what="template")
            schema = schema or _hinted_schema(root, given.template)
        if schema is None:
            if root is not None:
                return self._entries_by_name(root, name, version, predicate, namespaces), None
            return self._entries_of_type(name, version, predicate, namespaces), None
        bundle = read_bundle(
            source(schema),
            marks=None if given.marks is None else source(given.marks),
            name=name,
            version=version or DEFAULT_VERSION,
            locations=given.locations,
        )
        opened = self._types.open_schema(bundle)
        typed = InformationType(name=opened.type.name, version=version or None).rep()
        try:
            bound = () if root is None else opened.template(root)
            return (typed, *bound, *_derived(opened, predicate, namespaces)), opened.type
        except JbiError:
            self._forget_if_idle(opened.type)
            raise

    def _entries_by_name(
        self, root: Element, name: str, version: str, predicate: str, namespaces: Mapping[str, str]
    ) -> tuple[EntryRep, ...]:
        """The templates of the first level for a template document without a schema: by that of a type repository.
        Raises MetadataError."""
        wanted = TypeName(name or type_name(root), version or DEFAULT_VERSION)
        opened = self._published.registered(wanted)
        if opened is None:
            raise MetadataError(
                f"no schema is known for the template's type {wanted}",
                hint="Give schema=, or xsi:noNamespaceSchemaLocation with a file beside the template, or add the type "
                "to the type repository (`jbi types add`)",
            )
        typed = InformationType(name=wanted.name, version=version or None).rep()
        return (typed, *opened.template(root), *_derived(opened, predicate, namespaces))

    def _entries_of_type(
        self, called: str, version: str, predicate: str, namespaces: Mapping[str, str]
    ) -> tuple[EntryRep, ...]:
        """The templates of the first level for whoever knows a type by name at most."""
        meant = self._published.meant(called) if called else InformationType()
        typed = (replace(meant, version=version or None).rep(),) if called or version else ()
        # Not of any version: the invariants of one would keep later ones away, which the predicate may hold for.
        opened = self._published.opened(meant.name, version) if meant.name and version and predicate else None
        return typed if opened is None else (*typed, *_derived(opened, predicate, namespaces))

    def fitness(self, given: FirstLevel) -> Fitness | None:
        """The check that metadata have to pass here. Raises ConfigurationError, SchemaError."""
        if not given.validate:
            return Fitness(None) if given.well_formed else None
        if given.schema is not None:
            bundle = read_bundle(
                source(given.schema), marks=None if given.marks is None else source(given.marks), name=given.name,
                version=given.version or DEFAULT_VERSION, locations=given.locations,
            )  # fmt: skip
            return Fitness(self._published.by(bundle))
        if not (given.name and given.version):
            raise ConfigurationError(
                "validate=True needs the type and its version", hint="Name both, or give the schema"
            )
        wanted = TypeName(self._published.meant(given.name).name or given.name, given.version)
        by = self._published.opened(wanted.name, wanted.version) or self._published.registered(wanted)
        if by is None:
            raise SchemaError(
                f"no schema is known to validate {wanted} by",
                hint="Give the schema, or add the type to the type repository (`jbi types add`)",
                type=str(wanted),
            )
        return Fitness(by)


def _derived(opened: OpenType, predicate: str, namespaces: Mapping[str, str]) -> tuple[EntryRep, ...]:
    return opened.derive(predicate, namespaces) if predicate else ()


def _hinted_schema(root: Element, template: Document) -> Path | None:
    """The file named by xsi:noNamespaceSchemaLocation or xsi:schemaLocation, beside the template or in this folder."""
    hint = root.get(f"{XSI}noNamespaceSchemaLocation") or (root.get(f"{XSI}schemaLocation") or "").split(" ")[-1]
    file = path_of(template)
    folders = [file.parent] if file is not None else []
    candidates = [folder / hint for folder in (*folders, Path.cwd())] if hint and "://" not in hint else []
    return next((path for path in candidates if path.is_file()), None)
