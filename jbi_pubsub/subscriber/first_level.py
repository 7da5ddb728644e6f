"""First levels of subscriptions and queries: templates made of a document, a schema, or a type's name; and checks that
metadata are well-formed, or valid by that schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType as OpenType
from jbi_pubsub.codegen.repository import TypeRepository, type_name
from jbi_pubsub.core.arguments import Document, Source, content, path_of, source
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, MetadataError, SchemaError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, InfoObject, SchemaBundle, TypeName
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.entries import InformationType, local_name

from .options import TypeOptions, check_version
from .published import PublishedTypes

XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"


class Screening(NamedTuple):
    """Objects that are left of those that were looked at, how many were dropped, and why the first of them."""

    objects: Sequence[InfoObject]
    dropped: int = 0
    why: str = ""


class Fitness:
    """The check that metadata are well-formed, or valid by their type's schema, where a subscription or query is to
    have those alone that are: publishers and delegates may not look at them. Any thread."""

    def __init__(self, by: OpenType | None) -> None:
        """`by`: the type that they are to be valid by; None: well-formed will do, and so will none at all."""
        self._by = by
        self._last: tuple[bytes, str] = b"", "" if by is None else "there are no metadata, which are to be valid"
        """The metadata looked at last, and what was wrong with them."""

    def look(self, objects: Sequence[InfoObject]) -> Screening:
        """Drop those that are not."""
        found = [self._fault(each) for each in objects]
        if not any(found):
            return Screening(objects)
        good = [each for each, fault in zip(objects, found, strict=True) if not fault]
        return Screening(good, len(objects) - len(good), next(filter(None, found)))

    def _fault(self, obj: InfoObject) -> str:
        """Fault of an object; "" for none."""
        if self._by is not None and obj.type != self._by.type:
            return f"it is of {obj.type}, and the schema of {self._by.type}"
        metadata, fault = self._last
        if obj.metadata != metadata:
            fault = self._fault_of(obj.metadata)
            self._last = obj.metadata, fault
        return fault

    def _fault_of(self, metadata: bytes) -> str:
        if not metadata:
            return "" if self._by is None else "there are no metadata, which are to be valid"
        try:
            root = parse_metadata(metadata)
            if self._by is not None:
                self._by.validate(root)
        except JbiError as exc:
            return exc.message
        return ""


@dataclass(frozen=True)
class FirstLevel:
    """Options that a template is made of, and made anew for another predicate. `is_derived`: with what follows from the
    predicate; `is_whole`: the name is in full, if there is one."""

    template: Document | None
    name: str
    options: TypeOptions
    is_derived: bool = False
    is_whole: bool = False

    @property
    def version(self) -> str:
        """Version of the type; "" for every one."""
        return self.options.get("version") or ""

    @property
    def last_part(self) -> str:
        """The name, where it may be the last part of one; else ""."""
        return "" if self.is_whole or local_name(self.name) != self.name else self.name

    def bundle(self, schema: Source) -> SchemaBundle:
        """The schema with its marks. Raises SchemaError, MetadataError."""
        marks = self.options.get("marks")
        return read_bundle(
            source(schema),
            marks=None if marks is None else source(marks),
            name=self.name,
            version=self.version or DEFAULT_VERSION,
            locations=self.options.get("locations") or {},
        )


class FirstLevelTemplates:
    """Templates, and checks of metadata, made of what an application has given. Safe for several threads."""

    def __init__(self, published: PublishedTypes, config: Config, is_used: Callable[[TypeName], bool]) -> None:
        """`is_used`: whether the schema of that type was opened for a template that is watched."""
        self._published = published
        self._types = TypeRepository(cache_dir=config.type_cache())
        self._is_used = is_used

    def digest(self, opened: TypeName | None) -> str:
        """Digest of the schema that was opened for a template; "" for none."""
        known = None if opened is None else self._types.find(opened)
        return "" if known is None else known.digest

    def forget_if_idle(self, opened: TypeName | None) -> None:
        """Have the schema of a type that no template is watched for not stand in the way of another one."""
        if opened is not None and not self._is_used(opened):
            self._types.forget(opened)

    def entries(
        self, given: FirstLevel, predicate: str, namespaces: Mapping[str, str]
    ) -> tuple[tuple[EntryRep, ...], TypeName | None]:
        """The templates of the first level, and the type whose schema was opened for them."""
        name, version, schema = given.name, given.version, given.options.get("schema")
        check_version(version)
        root = kept = None
        # Not of any version: the invariants of one would keep others away, which the predicate may hold for.
        predicate = predicate if given.is_derived and version else ""
        if given.template is not None:
            root = parse_metadata(content(given.template, what="template"), what="template")
            schema = schema or _hinted_schema(root, given.template)
        if schema is not None:
            given, meant = self._in_full(given, schema)
            opened: OpenType | None = (named := self._types.open_schema(given.bundle(schema)))
            kept, meant = named.type, meant or InformationType(name=named.type.name)
            predicate = predicate if meant.name else ""  # the invariants of a type have its name
        elif root is not None:
            wanted = TypeName(name or type_name(root), version or DEFAULT_VERSION)
            opened, meant = self._published.registered(wanted), InformationType(name=wanted.name)
            if opened is None:
                raise MetadataError(
                    f"no schema is known for the template's type {wanted}",
                    hint="Give schema=, or xsi:noNamespaceSchemaLocation with a file in the folder of the template, or "
                    "add the type to the type repository (`jbi types add`)",
                )
        else:
            meant = self._meant(given) if name else InformationType()
            opened = self._published.opened(meant.name, version) if meant.name and predicate else None
        typed = (replace(meant, version=version or None).rep(),) if name or version or opened is not None else ()
        try:
            bound = opened.template(root) if opened is not None and root is not None else ()
            derived = opened.derive(predicate, namespaces) if opened is not None and predicate else ()
        except JbiError:
            self.forget_if_idle(kept)
            raise
        return (*typed, *bound, *derived), kept

    def fitness(self, given: FirstLevel) -> Fitness | None:
        """The check that metadata have to pass here. Raises ConfigurationError, SchemaError."""
        if not given.options.get("validate"):
            return Fitness(None) if given.options.get("well_formed") else None
        if (schema := given.options.get("schema")) is not None:
            return Fitness(self._published.by(self._in_full(given, schema)[0].bundle(schema)))
        if not (given.name and given.version):
            raise ConfigurationError(
                "validate=True needs the type and its version", hint="Name both, or give the schema"
            )
        wanted = TypeName(self._meant(given).name or given.name, given.version)
        by = self._published.opened(wanted.name, wanted.version) or self._published.registered(wanted)
        if by is None:
            raise SchemaError(
                f"no schema is known to validate {wanted} by",
                hint="Give the schema, or add the type to the type repository (`jbi types add`)",
                type=str(wanted),
            )
        return Fitness(by)

    def _meant(self, given: FirstLevel) -> InformationType:
        """Template of the name."""
        return InformationType(name=given.name) if given.is_whole else self._published.meant(given.name)

    def _in_full(self, given: FirstLevel, schema: Source) -> tuple[FirstLevel, InformationType | None]:
        """The options with the whole name of the type, where they have the last part of the one that the schema gives
        itself, or of a published one; and the template of its name, if that is another than the name: whatever will
        have that last part, as long as nobody publishes it."""
        if not (called := given.last_part):
            return given, None
        own = self._published.by(replace(given, name="").bundle(schema)).type.name
        meant = self._published.meant(called, own)
        if meant.name is not None:
            return replace(given, name=meant.name), None
        if own == called or local_name(own) != called:
            return given, None
        return replace(given, name=own), meant if given.template is None else None


def _hinted_schema(root: Element, template: Document) -> Path | None:
    """The file named by xsi:schemaLocation for the namespace of the document element, or xsi:noNamespaceSchemaLocation,
    next to the template or in this folder."""
    words = root.get(f"{XSI}schemaLocation", "").split()
    said = dict(zip(words[::2], words[1::2], strict=False)).get(str(root.tag).rpartition("}")[0][1:])
    hint = said or root.get(f"{XSI}noNamespaceSchemaLocation", "")
    file = path_of(template)
    folders = [file.parent] if file is not None else []
    names = (hint, unquote(hint)) if hint and "://" not in hint else ()
    candidates = [folder / name for name in names for folder in (*folders, Path())]
    return next((path for path in candidates if path.is_file()), None)
