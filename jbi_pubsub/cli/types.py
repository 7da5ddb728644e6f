"""`jbi types`: the type repository of a delegate over the network, or of a folder that no delegate has open."""

from __future__ import annotations

import getpass
import os
import posixpath
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from jbi_pubsub.codegen.bundle import parse_schema
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.registry import Registry, open_registry
from jbi_pubsub.codegen.types.sampling import Trial, tried
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.descriptors import Descriptor, Key, Kind, Property, StoredType
from jbi_pubsub.core.errors import ConfigurationError, SchemaError, UnknownUidError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, SchemaBundle, TypeName
from jbi_pubsub.core.xml import XSD
from jbi_pubsub.protocol.entries import local_name
from jbi_pubsub.protocol.services import TYPES, TypesProxy
from jbi_pubsub.subscriber import SubscriberAdapter

from .codegen import LOCATIONS, ROOT, bundle_of
from .community import at_address, calling
from .near import NearNames, told
from .options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    MARKS,
    Arguments,
    JsonArguments,
    argument,
    command,
    flag,
    option,
)
from .query import tell_missing
from .repositories import found_repository, named
from .settings import looking
from .show import Column, counted, moment, printable, show_facts, show_table, sized
from .type_conflicts import conflicts

DOCUMENT_BYTES: Final = 64 << 20
"""A document that is tried may have so many: metadata that are published have less."""


class _FolderRepository:
    """The repository of a folder as a delegate's `TypesProxy`, changed by the user of the command."""

    def __init__(self, registry: Registry, cache: Path | None) -> None:
        self._registry = registry
        self._types = TypeRepository(cache_dir=cache, registry=registry)
        self._who = _user()
        self.all, self.property, self.history = registry.all, registry.property, registry.history
        self.faults, self.close = registry.faults, registry.close

    def show(self, key: Key) -> tuple[Descriptor, tuple[Property, ...]]:
        properties = self._registry.properties(key)
        found = self._registry.find(key)
        assert found is not None  # the line above has asked
        return found, properties

    def held(self, key: Key) -> StoredType | None:
        found = self._registry.find(key)
        return StoredType(found, self._registry.schema(key)) if found is not None else None

    def add(self, kind: Kind, bundle: SchemaBundle, parent: TypeName | None, description: str) -> Descriptor:
        return self._types.add(bundle, by=self._who, kind=kind, parent=parent, description=description)

    def describe(self, key: Key, text: str) -> Descriptor:
        return self._registry.describe(key, text, self._who)

    def deprecate(self, key: Key, *, undo: bool = False) -> Descriptor:
        return self._registry.set_state(key, "active" if undo else "deprecated", self._who)

    def set_property(self, key: Key, name: str, data: bytes | None) -> None:
        self._registry.set_property(key, name, data, self._who)

    def remove(self, key: Key, *, force: bool = False) -> bool:
        return self._registry.remove(key, self._who, users=(), force=force)  # nobody has it open: nothing is published


Repository = TypesProxy | _FolderRepository


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"user {os.getuid()}"


@click.group(cls=NearNames)
def types() -> None:
    """Keep information object types, and publish by their names: the type repository of a delegate, or of a folder.

    \b
    jbi pad alpha rome --types types/                       # a delegate with a repository
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --description "pictures"
    jbi types list
    jbi types check examples/data/intel_imagery/Intel_Imagery.xsd --of Intel_Imagery --from data/
    jbi types list --folder types/                          # without a delegate

    A type is NAME/VERSION. The default version is 1.0, and the last part of the name is enough.
    """


types.add_command(conflicts)


class _RepositoryPlace(Arguments):
    at: str | None = option("Delegate with the repository; default: the one found.", metavar="HOST:PORT")
    folder: Path | None = option("Folder of a repository that no delegate has open.", type=FOLDER)

    def repository(self, *, changes: bool = False) -> AbstractContextManager[Repository]:
        """The one that is named, or the only one that the lookup services list."""
        if self.at and self.folder is not None:
            raise ConfigurationError("--at asks a delegate, --folder opens a folder", hint="Give one of them")
        if self.folder is not None:
            return closing(
                _FolderRepository(open_registry(self.folder, readonly=not changes), self.settings.load().type_cache())
            )
        config = self.settings.load()
        ref = at_address(self.at) if self.at else found_repository(config)
        missing = UnknownUidError(f"{self.at} is not a delegate", hint="`jbi services` lists those there are")
        return calling(TypesProxy, ref, config, TYPES, missing)


class _TypesKind(Arguments):
    attribute: bool = flag("An attribute (of a sequence) instead of a type.")

    @property
    def kind(self) -> Kind:
        """The kind of descriptor that is meant."""
        return "attribute" if self.attribute else "type"


class _NamedType(_RepositoryPlace, _TypesKind):
    given: str = argument(metavar="NAME[/VERSION]")

    @contextmanager
    def found(self, *, changes: bool = False) -> Iterator[tuple[Repository, Key]]:
        """The type or attribute, in its repository. Raises UnknownUidError, with the nearest."""
        with self.repository(changes=changes) as repository:
            yield repository, _find(repository, self.given, self.kind)


class _NamedJson(_NamedType, JsonArguments):
    """A type or attribute that is shown."""


class _Add(_RepositoryPlace, _TypesKind, JsonArguments, first=True):
    schema: Path = argument(type=EXISTING_FILE)
    name: str = option("Name; default: the schema's.", default="")
    version: str = option("Version.", shown=DEFAULT_VERSION)
    parent: str = option("Parent type.", default="", metavar="NAME/VERSION")
    description: str = option("Description for people.", default="")
    marks: Path | None = MARKS
    root: str = ROOT
    locations: tuple[tuple[str, str], ...] = LOCATIONS
    within: Path | None = option("Folder of all documents; default: the parent of the schema's.", type=EXISTING_FOLDER)


@command(types, _Add)
def add(given: _Add) -> None:
    """Add a type, with all that its schema includes and imports. Another schema needs another version.

    \b
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --description "pictures of places"
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --version 1.1 --parent Intel_Imagery/1.0
    jbi types add examples/data/cap/cap12.xsd --marks examples/data/cap/marks.json
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --attribute --name picture
    """
    root = given.root
    if given.attribute and given.marks is None and not root:
        root = _only_element(given.schema)
    bundle = bundle_of(
        given.schema,
        given.within,
        given.locations,
        marks=given.marks,
        root=root,
        name=given.name,
        version=given.version,
    )
    with given.repository(changes=True) as repository:
        above = _find(repository, given.parent, "type")[1] if given.parent else None
        found = repository.add(given.kind, bundle, above, given.description)
    text = printable(f"{found.kind} {found.type}, schema {found.digest}")
    given.show(_plain(found), text)


def _only_element(schema: Path) -> str:
    """Element of an attribute's schema: nothing in it is invariant of an object, so it needs no marks."""
    root = parse_schema(schema.name, schema.read_bytes())
    names = [str(each.get("name")) for each in root.iterchildren(f"{{{XSD}}}element")]
    if len(names) != 1:
        raise SchemaError(
            f"{schema} declares {counted(len(names), 'element')}, not one that an attribute's values are",
            hint="Name it with --root",
        )
    space = root.get("targetNamespace")
    return f"{{{space}}}{names[0]}" if space else names[0]


class _TypesList(_RepositoryPlace, _TypesKind, JsonArguments):
    """Types or attributes of a repository."""


@command(types, _TypesList, "list")
def list_(given: _TypesList) -> None:
    """List the types, or the attributes.

    \b
    jbi types list
    jbi types list --attribute --at 127.0.0.1:4200
    jbi types list --folder types/ --json
    """
    with given.repository() as repository:
        found = repository.all(given.kind)
        faults = repository.faults() if given.folder is not None else ()
    plain = {f"{given.kind}s": [_plain(each) for each in found], "faults": list(faults)}
    given.show(plain, lambda: _show_list(given.kind, found, faults))


def _show_list(kind: Kind, found: Sequence[Descriptor], faults: Sequence[str]) -> None:
    columns = (
        Column(kind, name=True, long=True, dotted=True), Column("version"), Column("state"),
        Column("parent", spare=3, long=True, dotted=True), Column("since", spare=2), Column("by", spare=1, long=True),
        Column("description", long=True),
    )  # fmt: skip
    rows = [
        (e.type.name, e.type.version, e.state, e.parent or "", moment(e.created), e.by, e.description) for e in found
    ]
    show_table(columns, rows, title=counted(len(found), kind))
    for fault in faults:
        click.echo(printable(f"damaged: {fault}"), err=True)


@command(types, _NamedJson)
def show(given: _NamedJson) -> None:
    """Show a type: description, state, schema documents, properties.

    \b
    jbi types show Intel_Imagery
    jbi types show mil.Report/1.1 --json
    """
    with given.found() as (repository, key):
        found, properties = repository.show(key)
        bundle = _held(repository, key).bundle
    documents = [{"name": name, "bytes": len(data)} for name, data in bundle.documents]
    plain = {**_plain(found), "documents": documents, "properties": msgspec.to_builtins(properties)}
    given.show(plain, lambda: _show_type(found, properties, bundle))


def _show_type(found: Descriptor, properties: Sequence[Property], bundle: SchemaBundle) -> None:
    size = sum(len(data) for _, data in bundle.documents)
    facts = [
        ("name", found.type.name), ("version", found.type.version), ("state", found.state),
        ("description", found.description), ("parent", str(found.parent or "")),
        ("schema", f"{found.digest}, {counted(len(bundle.documents), 'document')}, {sized(size)}"),
        ("added", f"{moment(found.created)} by {found.by}"),
    ]  # fmt: skip
    show_facts([each for each in facts if each[1]], title=printable(str(found.type)))
    if properties:
        show_table(
            (Column("property", name=True, long=True), Column("bytes", right=True)),
            [(each.name, f"{each.size:,}") for each in properties],
        )


class _TypesExport(_NamedType):
    output: Path | None = option("Folder for its documents.", "-o", "--out", type=FOLDER)


@command(types, _TypesExport)
def export(given: _TypesExport) -> None:
    """Write the schema of a type, byte for byte: to stdout, or all its documents into a folder.

    \b
    jbi types export Intel_Imagery               # to stdout, if it is one document
    jbi types export mil.Report/1.1 -o report/
    """
    with given.found() as (repository, key):
        bundle = _held(repository, key).bundle
    if given.output is not None:
        _write_documents(bundle, given.output)
        return
    if len(bundle.documents) != 1 or bundle.marks:
        beside = " and a marks file" if bundle.marks else ""
        raise ConfigurationError(
            f"the schema is {counted(len(bundle.documents), 'document')}{beside}", hint="Name a folder: -o FOLDER"
        )
    _to_stdout(bundle.documents[0][1])


def _write_documents(bundle: SchemaBundle, output: Path) -> None:
    """As they refer to each other: those at addresses below a folder for each host, with the option that tells so."""
    names = [name for name, _ in bundle.documents if not urlsplit(name).scheme]
    up = max((posixpath.normpath(name).split("/").count("..") for name in names), default=0)
    written: list[tuple[str, Path, bytes]] = []
    for name, data in bundle.documents:
        parts = urlsplit(name)
        local = f"{parts.netloc or parts.scheme}/{parts.path}" if parts.scheme else posixpath.join("schema/" * up, name)
        path = output / posixpath.normpath(local).lstrip("/")
        if not path.resolve().is_relative_to(output.resolve()) or path.resolve() == output.resolve():
            raise SchemaError(f"the schema has a document called {name[:200]!r}, which is not a name for a file")
        written.append((name, path, data))
    if bundle.marks:
        written.append(("marks", output / "marks.json", bundle.marks))
    for _, path, _ in written:
        if path.exists():
            raise ConfigurationError(f"{path} is there already", hint="Name another folder")
    for name, path, data in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        option = f"  (--locations {name}={path})" if urlsplit(name).scheme else ""
        click.echo(printable(f"{path}{option}"), err=True)


class _Describe(_NamedType):
    text: str = argument()


@command(types, _Describe)
def describe(given: _Describe) -> None:
    """Describe a type for people.

    \b
    jbi types describe Intel_Imagery "pictures of places, from above"
    """
    with given.found(changes=True) as (repository, key):
        found = repository.describe(key, given.text)
    click.echo(printable(f"{found.kind} {found.type}: {found.description}"))


class _Deprecate(_NamedType):
    undo: bool = flag("Make it active again.")


@command(types, _Deprecate)
def deprecate(given: _Deprecate) -> None:
    """Deprecate a type. Publishing it causes a warning in the delegate's log.

    \b
    jbi types deprecate mil.Report/1.0
    jbi types deprecate mil.Report/1.0 --undo
    """
    with given.found(changes=True) as (repository, key):
        found = repository.deprecate(key, undo=given.undo)
    click.echo(printable(f"{found.kind} {found.type} is {found.state}"))


class _Remove(_NamedType):
    force: bool = flag("Also while it is in use: the schema is kept until nothing uses it.")


@command(types, _Remove)
def remove(given: _Remove) -> None:
    """Remove a type that nothing uses.

    \b
    jbi types remove mil.Report/1.0
    jbi types remove mil.Report/1.0 --force
    """
    with given.found(changes=True) as (repository, key):
        gone = repository.remove(key, force=given.force)
    state = "is removed" if gone else "is removed; its schema is kept until nothing uses it"
    click.echo(printable(f"{key[0]} {key[1]} {state}"))


class _Property(_NamedType):
    name: str | None = argument(required=False)
    file: Path | None = option("Set it to the bytes of this file.", "--set", type=EXISTING_FILE)
    removes: bool = flag("Remove it.", "--remove")
    output: Path | None = option("File for its bytes.", "-o", "--out", type=FILE)


@command(types, _Property, "property")
def property_(given: _Property) -> None:
    """List the properties of a type (attached bytes). With NAME: read, set or remove one.

    \b
    jbi types property Intel_Imagery
    jbi types property Intel_Imagery icon --set examples/data/intel_imagery/image.png
    jbi types property Intel_Imagery icon -o copy.png
    jbi types property Intel_Imagery icon --remove
    """
    name, file, output = given.name, given.file, given.output
    if sum((file is not None, given.removes, output is not None)) > 1 or (
        name is None and (file or given.removes or output)
    ):
        raise ConfigurationError("give one of --set, --remove and -o, with the name of a property")
    with given.found(changes=file is not None or given.removes) as (repository, key):
        if name is None:
            for each in repository.show(key)[1]:
                click.echo(printable(f"{each.name}  {each.size:,} bytes  {each.digest}"))
        elif file is not None or given.removes:
            repository.set_property(key, name, file.read_bytes() if file is not None else None)
        elif output is not None:
            output.write_bytes(repository.property(key, name))
        else:
            _to_stdout(repository.property(key, name))


@command(types, _NamedJson)
def history(given: _NamedJson) -> None:
    """List the changes of a type, also of a removed one, with time and author.

    \b
    jbi types history mil.Report/1.0
    """
    with given.repository() as repository:
        key: Key = given.kind, named(given.given)
        try:
            key = _find(repository, given.given, given.kind)
        except UnknownUidError as exc:
            try:
                found = repository.history(key)  # it may be gone
            except UnknownUidError:
                raise exc from None
        else:
            found = repository.history(key)
    columns = (Column("when"), Column("who", name=True, long=True), Column("what", long=True))
    rows = [(moment(each.when), each.who, each.what) for each in found]
    given.show(msgspec.to_builtins(found), lambda: show_table(columns, rows, title=str(key[1])))


class _Check(_RepositoryPlace, JsonArguments, first=True):
    schema: Path = argument(type=EXISTING_FILE)
    given: str = option("Type of the documents.", "--of", required=True, metavar="NAME[/VERSION]")
    samples: Path | None = option("Folder of metadata documents (*.xml, also below).", "--from", type=EXISTING_FOLDER)
    archived: int | None = option("The last N archived objects of the type.", type=click.IntRange(1), metavar="N")
    marks: Path | None = MARKS
    root: str = ROOT


@command(types, _Check)
def check(given: _Check) -> int:
    """Validate documents of a type by a new schema, and show how many valid ones it would refuse, with their first
    errors. Exit code 1 if there are any.

    \b
    jbi types check examples/data/intel_imagery/Intel_Imagery.xsd --of Intel_Imagery --from examples/data/intel_imagery
    jbi types check examples/data/intel_imagery/Intel_Imagery.xsd --of Intel_Imagery/1.1 --archived 10000
    """
    if (given.samples is None) == (given.archived is None):
        raise ConfigurationError("nothing to try it on", hint="Give --from FOLDER or --archived N")
    config = given.settings.load()
    with given.repository() as repository:
        key = _find(repository, given.given, "type")
        held = _held(repository, key)
    cache = TypeRepository(cache_dir=config.type_cache())
    old = cache.open_schema(held.bundle)
    cache.forget(old.type)
    marks, version = given.marks or held.bundle.marks or None, f"{key[1].version} tried"
    new = cache.open_schema(bundle_of(given.schema, marks=marks, root=given.root, name=key[1].name, version=version))
    if given.samples is not None:
        found = tried(new, old, _documents(given.samples))
        if not found.documents:
            raise ConfigurationError(f"no *.xml below {given.samples}", hint="Name a folder of metadata documents")
    else:
        found = tried(new, old, archived_documents(config, key[1], given.archived or 0))
        if not found.documents:
            raise UnknownUidError(f"no archived objects of {key[1]}", hint="Try the schema on files: --from FOLDER")
    is_same = old.digest == new.digest
    plain = {"type": str(key[1]), "same_schema": is_same, **msgspec.to_builtins(found)}
    given.show(plain, lambda: _show_tried(found, given.schema, key[1], is_same=is_same))
    return 1 if found.refused else 0


def _show_tried(found: Trial, schema: Path, type_: TypeName, *, is_same: bool) -> None:
    if is_same:
        click.echo(printable(f"{schema} means the same as the schema of {type_}"))
    aside = [
        f"{count} {what}"
        for count, what in ((found.before, f"not by the schema of {type_} either"), (found.unreadable, "no XML"))
        if count
    ]
    told_aside = f"; {', '.join(aside)}" if aside else ""
    click.echo(printable(f"{found.refused} of {counted(found.documents, 'document')} would be refused{told_aside}"))
    columns = (Column("documents", right=True), Column("at", name=True, long=True), Column("first", long=True),
               Column("error", long=True))  # fmt: skip
    rows = [(each.documents, each.path, each.first, each.error) for each in found.reasons]
    if rows:
        show_table(columns, rows)
    if found.others:
        click.echo(f"and {found.others} for further reasons")


def archived_documents(config: Config, type_: TypeName, count: int) -> Iterator[tuple[str, bytes]]:
    """Id and metadata of the last `count` archived objects of a type, newest first. An archive that does not answer is
    told."""
    with SubscriberAdapter(config) as adapter:
        with looking(config, "archives"):
            opened = adapter.open_query(type_.name, version=type_.version, whole_name=True, order="newest", limit=count)
        with opened:
            for obj in opened:
                yield obj.object_id, obj.metadata
        for archive in opened.partial:
            tell_missing(archive)


def _documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*.xml")):
        if path.is_file() and path.stat().st_size <= DOCUMENT_BYTES:
            yield str(path.relative_to(folder)), path.read_bytes()


# -- inside -----------------------------------------------------------------------------------------------------


def _find(repository: Repository, given: str, kind: Kind) -> Key:
    """The descriptor that is called so. Raises UnknownUidError, with the nearest."""
    wanted = named(given)
    known = [each.type for each in repository.all(kind)]
    if wanted in known:
        return kind, wanted
    having = [each for each in known if local_name(each.name) == wanted.name and each.version == wanted.version]
    if len(having) == 1:
        return kind, having[0]
    if having:
        raise UnknownUidError(
            f"{given} may be one of several: {', '.join(map(str, having[:5]))}", hint="Name it in full"
        )
    versions = sorted(each.version for each in known if wanted.name in (each.name, local_name(each.name)))
    if versions:
        raise UnknownUidError(f"no version {wanted.version} of {wanted.name}; there are: {', '.join(versions[:10])}")
    raise UnknownUidError(told(kind, wanted.name, {each.name for each in known}))


def _held(repository: Repository, key: Key) -> StoredType:
    found = repository.held(key)
    if found is None:
        raise UnknownUidError(f"{key[1]} has been removed meanwhile")
    return found


def _plain(told_: Descriptor) -> dict[str, Any]:
    parent = {"name": told_.parent.name, "version": told_.parent.version} if told_.parent else None
    return {
        "kind": told_.kind, "name": told_.type.name, "version": told_.type.version, "digest": told_.digest,
        "state": told_.state, "parent": parent, "created": told_.created, "by": told_.by,
        "description": told_.description,
    }  # fmt: skip


def _to_stdout(data: bytes) -> None:
    """Bytes of others: as they are into a file or pipe, harmless in a terminal."""
    if not sys.stdout.isatty():
        click.echo(data, nl=False)
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{len(data):,} bytes that are not text", hint="Give -o FILE") from exc
    click.echo("\n".join(map(printable, text.splitlines())))
