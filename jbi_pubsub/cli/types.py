"""`jbi types`: the type repository of a delegate over the network, or of a folder that no delegate has open."""

from __future__ import annotations

import getpass
import os
import posixpath
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from jbi_pubsub.codegen.bundle import parse_schema, read_bundle
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.registry import Registry, open_registry
from jbi_pubsub.codegen.types.sampling import tried
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.descriptors import Change, Descriptor, Held, Key, Kind, Property
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, SchemaError, UnknownUidError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, SchemaBundle, TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import check_endpoint
from jbi_pubsub.core.xml import XSD
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.protocol.entries import PublisherAdapterDelegate, local_name
from jbi_pubsub.protocol.repositories import REPOSITORIES
from jbi_pubsub.protocol.services import TypesProxy
from jbi_pubsub.subscriber import SubscriberAdapter

from .codegen import cache_of, existing_file, existing_folder, split_option
from .near import NearNames, told
from .settings import Settings, json_option, looking, pass_settings
from .show import Column, counted, printable, show_facts, show_json, show_table, sized

F = TypeVar("F", bound=Callable[..., Any])

DOCUMENT_BYTES: Final = 64 << 20
"""A document that is tried may have so many: metadata that are published have less."""


class Repository(Protocol):
    """What a delegate's `TypesProxy` does, and `_Folder` for a folder."""

    def all(self, kind: Kind) -> tuple[Descriptor, ...]: ...
    def show(self, key: Key) -> tuple[Descriptor, tuple[Property, ...]]: ...
    def held(self, key: Key) -> Held | None: ...
    def property(self, key: Key, name: str) -> bytes: ...
    def history(self, key: Key) -> tuple[Change, ...]: ...
    def faults(self) -> tuple[str, ...]: ...
    def add(self, kind: Kind, bundle: SchemaBundle, parent: TypeName | None, description: str) -> Descriptor: ...
    def describe(self, key: Key, text: str) -> Descriptor: ...
    def deprecate(self, key: Key, *, undo: bool = False) -> Descriptor: ...
    def set_property(self, key: Key, name: str, data: bytes | None) -> None: ...
    def remove(self, key: Key, *, force: bool = False) -> bool: ...
    def close(self) -> None: ...


class _Folder:
    """The repository of a folder, changed by whoever runs the command."""

    def __init__(self, registry: Registry, cache: Path) -> None:
        self._registry = registry
        self._types = TypeRepository(cache_dir=cache, registry=registry)
        self._who = _user()

    def all(self, kind: Kind) -> tuple[Descriptor, ...]:
        return self._registry.all(kind)

    def show(self, key: Key) -> tuple[Descriptor, tuple[Property, ...]]:
        properties = self._registry.properties(key)
        found = self._registry.find(key)
        assert found is not None  # the line above has asked
        return found, properties

    def held(self, key: Key) -> Held | None:
        found = self._registry.find(key)
        return Held(found, self._registry.schema(key)) if found is not None else None

    def property(self, key: Key, name: str) -> bytes:
        return self._registry.property(key, name)

    def history(self, key: Key) -> tuple[Change, ...]:
        return self._registry.history(key)

    def faults(self) -> tuple[str, ...]:
        return self._registry.faults()

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

    def close(self) -> None:
        self._registry.close()


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

    A type is NAME/VERSION; the version is 1.0 where none is given, and of the name the last part will do.
    """


_attribute = click.option("--attribute", is_flag=True, help="An attribute (of a sequence) instead of a type.")
_type = click.argument("given", metavar="NAME[/VERSION]")


def _where(command: F) -> F:
    at = click.option("--at", metavar="HOST:PORT", help="The delegate to ask; default: the one that is found.")
    folder = click.option(
        "--folder", type=click.Path(file_okay=False, path_type=Path), help="A repository that no delegate has open."
    )
    return at(folder(command))


class _Asked(NamedTuple):
    """What a command is about: a type or attribute of a repository."""

    settings: Settings
    given: str
    kind: Kind
    at: str | None
    folder: Path | None

    @contextmanager
    def found(self, *, changes: bool = False) -> Iterator[tuple[Repository, Key]]:
        """Raises UnknownUidError, with the nearest."""
        with _repository(self.settings, self.at, self.folder, changes=changes) as repository:
            yield repository, _find(repository, self.given, self.kind)


def _about(command: Callable[..., Any]) -> Callable[..., Any]:
    """NAME[/VERSION] --attribute, --at and --folder, as one `_Asked`."""

    @pass_settings
    @wraps(command)
    def run(settings: Settings, /, given: str, attribute: bool, at: str | None, folder: Path | None, **own: Any) -> Any:
        return command(_Asked(settings, given, _kind(attribute), at, folder), **own)

    return _type(_attribute(_where(run)))


@types.command()
@click.argument("schema", type=existing_file)
@click.option("--name", default="", help="Name; default: what the schema says.")
@click.option("--version", default=DEFAULT_VERSION, show_default=True, help="Version.")
@click.option("--parent", default="", metavar="NAME/VERSION", help="Type that it is a kind of.")
@click.option("--description", default="", help="What it is, for people.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--root", default="", help="Document element, when the schema declares several.")
@click.option(
    "--locations",
    callback=split_option("ADDRESS=PATH", at_last=True),
    metavar="ADDRESS=PATH",
    multiple=True,
    help="Local copy of a document, or folder of copies for the beginning of addresses; repeatable.",
)
@click.option("--within", type=existing_folder, help="Folder that all documents lie in; default the one above.")
@_attribute
@_where
@json_option
@pass_settings
def add(
    settings: Settings,
    schema: Path,
    name: str,
    version: str,
    parent: str,
    description: str,
    marks: Path | None,
    root: str,
    locations: tuple[tuple[str, str], ...],
    within: Path | None,
    attribute: bool,
    at: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Add a type, with all that its schema includes and imports. Another schema needs another version.

    \b
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --description "pictures of places"
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --version 1.1 --parent Intel_Imagery/1.0
    jbi types add examples/data/cap/cap12.xsd --marks examples/data/cap/marks.json
    jbi types add examples/data/intel_imagery/Intel_Imagery.xsd --attribute --name picture
    """
    if attribute and marks is None and not root:
        root = _only_element(schema)
    bundle = read_bundle(
        schema,
        marks=marks,
        root=root,
        name=name,
        version=version,
        locations={key: Path(path) for key, path in locations},
        within=within or schema.absolute().parent.parent,
    )
    with _repository(settings, at, folder, changes=True) as repository:
        above = _find(repository, parent, "type")[1] if parent else None
        found = repository.add("attribute" if attribute else "type", bundle, above, description)
    if as_json:
        show_json(_plain(found))
    else:
        click.echo(printable(f"{found.kind} {found.type}, schema {found.digest}"))


def _only_element(schema: Path) -> str:
    """Of the schema of an attribute: nothing in it is invariant of an object, so it needs no marks."""
    root = parse_schema(schema.name, schema.read_bytes())
    names = [str(each.get("name")) for each in root.iterchildren(f"{{{XSD}}}element")]
    if len(names) != 1:
        raise SchemaError(
            f"{schema} declares {counted(len(names), 'element')}, not one that an attribute's values are",
            hint="Name it with --root",
        )
    space = root.get("targetNamespace")
    return f"{{{space}}}{names[0]}" if space else names[0]


@types.command("list")
@_attribute
@_where
@json_option
@pass_settings
def list_(settings: Settings, attribute: bool, at: str | None, folder: Path | None, as_json: bool) -> None:
    """List the types, or the attributes.

    \b
    jbi types list
    jbi types list --attribute --at 127.0.0.1:4200
    jbi types list --folder types/ --json
    """
    kind = _kind(attribute)
    with _repository(settings, at, folder) as repository:
        found = repository.all(kind)
        faults = repository.faults() if folder is not None else ()
    if as_json:
        show_json({f"{kind}s": [_plain(each) for each in found], "faults": list(faults)})
        return
    columns = (
        Column(kind, name=True, long=True, dotted=True), Column("version"), Column("state"),
        Column("parent", spare=3, long=True, dotted=True), Column("since", spare=2), Column("by", spare=1, long=True),
        Column("description", long=True),
    )  # fmt: skip
    rows = [
        (e.type.name, e.type.version, e.state, e.parent or "", _moment(e.created), e.by, e.description) for e in found
    ]
    show_table(columns, [tuple(map(printable, row)) for row in rows], title=counted(len(found), kind))
    for fault in faults:
        click.echo(printable(f"damaged: {fault}"), err=True)


@types.command()
@_about
@json_option
def show(asked: _Asked, as_json: bool) -> None:
    """Show what is said of a type: description, state, schema documents, properties.

    \b
    jbi types show Intel_Imagery
    jbi types show mil.Report/1.1 --json
    """
    with asked.found() as (repository, key):
        found, properties = repository.show(key)
        bundle = _held(repository, key).bundle
    if as_json:
        documents = [{"name": name, "bytes": len(data)} for name, data in bundle.documents]
        show_json({**_plain(found), "documents": documents, "properties": msgspec.to_builtins(properties)})
        return
    size = sum(len(data) for _, data in bundle.documents)
    facts = [
        ("name", found.type.name), ("version", found.type.version), ("state", found.state),
        ("description", found.description), ("parent", str(found.parent or "")),
        ("schema", f"{found.digest}, {counted(len(bundle.documents), 'document')}, {sized(size)}"),
        ("added", f"{_moment(found.created)} by {found.by}"),
    ]  # fmt: skip
    show_facts([(name, printable(text)) for name, text in facts if text], title=printable(str(found.type)))
    if properties:
        show_table(
            (Column("property", name=True, long=True), Column("bytes", right=True)),
            [(printable(each.name), f"{each.size:,}") for each in properties],
        )


@types.command()
@_about
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for its documents.")
def export(asked: _Asked, output: Path | None) -> None:
    """Write the schema of a type, byte for byte: to stdout, or all its documents into a folder.

    \b
    jbi types export Intel_Imagery               # to stdout, if it is one document
    jbi types export mil.Report/1.1 -o report/
    """
    with asked.found() as (repository, key):
        bundle = _held(repository, key).bundle
    if output is not None:
        _write_documents(bundle, output)
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
            raise SchemaError(f"the schema has a document called {name[:200]!r}, which is no name for a file")
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


@types.command()
@_about
@click.argument("text")
def describe(asked: _Asked, text: str) -> None:
    """Say what a type is, for people.

    \b
    jbi types describe Intel_Imagery "pictures of places, from above"
    """
    with asked.found(changes=True) as (repository, key):
        found = repository.describe(key, text)
    click.echo(printable(f"{found.kind} {found.type}: {found.description}"))


@types.command()
@_about
@click.option("--undo", is_flag=True, help="Make it active again.")
def deprecate(asked: _Asked, undo: bool) -> None:
    """Say that a type should not be used any more. It can be, with a warning in the delegate's log.

    \b
    jbi types deprecate mil.Report/1.0
    jbi types deprecate mil.Report/1.0 --undo
    """
    with asked.found(changes=True) as (repository, key):
        found = repository.deprecate(key, undo=undo)
    click.echo(printable(f"{found.kind} {found.type} is {found.state}"))


@types.command()
@_about
@click.option("--force", is_flag=True, help="Also while it is in use: the schema is kept until nothing uses it.")
def remove(asked: _Asked, force: bool) -> None:
    """Remove a type that nothing uses.

    \b
    jbi types remove mil.Report/1.0
    jbi types remove mil.Report/1.0 --force
    """
    with asked.found(changes=True) as (repository, key):
        gone = repository.remove(key, force=force)
    state = "is removed" if gone else "is removed; its schema is kept until nothing uses it"
    click.echo(printable(f"{key[0]} {key[1]} {state}"))


@types.command("property")
@_about
@click.argument("name", required=False)
@click.option("--set", "file", type=existing_file, help="Take the bytes of this file.")
@click.option("--remove", "removes", is_flag=True, help="Remove it.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write its bytes here.")
def property_(asked: _Asked, name: str | None, file: Path | None, removes: bool, output: Path | None) -> None:
    """List the properties of a type: any bytes that are attached to it. With NAME: read, set or remove one.

    \b
    jbi types property Intel_Imagery
    jbi types property Intel_Imagery icon --set examples/data/intel_imagery/image.png
    jbi types property Intel_Imagery icon -o copy.png
    jbi types property Intel_Imagery icon --remove
    """
    if sum((file is not None, removes, output is not None)) > 1 or (name is None and (file or removes or output)):
        raise ConfigurationError("give one of --set, --remove and -o, with the name of a property")
    with asked.found(changes=file is not None or removes) as (repository, key):
        if name is None:
            for each in repository.show(key)[1]:
                click.echo(printable(f"{each.name}  {each.size:,} bytes  {each.digest}"))
        elif file is not None or removes:
            repository.set_property(key, name, file.read_bytes() if file is not None else None)
        elif output is not None:
            output.write_bytes(repository.property(key, name))
        else:
            _to_stdout(repository.property(key, name))


@types.command()
@_about
@json_option
def history(asked: _Asked, as_json: bool) -> None:
    """List what was done to a type, also to one that is gone: when, by whom.

    \b
    jbi types history mil.Report/1.0
    """
    with _repository(asked.settings, asked.at, asked.folder) as repository:
        key: Key = asked.kind, named(asked.given)
        try:
            key = _find(repository, asked.given, asked.kind)
        except UnknownUidError as exc:
            try:
                found = repository.history(key)  # it may be gone
            except UnknownUidError:
                raise exc from None
        else:
            found = repository.history(key)
    if as_json:
        show_json(msgspec.to_builtins(found))
        return
    columns = (Column("when"), Column("who", name=True, long=True), Column("what", long=True))
    rows = [(_moment(each.when), printable(each.who), printable(each.what)) for each in found]
    show_table(columns, rows, title=printable(str(key[1])))


@types.command()
@click.argument("schema", type=existing_file)
@click.option("--of", "given", required=True, metavar="NAME[/VERSION]", help="The type whose next schema it may be.")
@click.option("--from", "samples", type=existing_folder, help="Folder of metadata documents (*.xml, also below).")
@click.option("--archived", type=click.IntRange(1), metavar="N", help="The last N archived objects of the type.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--root", default="", help="Document element, when the schema declares several.")
@_where
@json_option
@pass_settings
def check(
    settings: Settings,
    schema: Path,
    given: str,
    samples: Path | None,
    archived: int | None,
    marks: Path | None,
    root: str,
    at: str | None,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Try a new schema on documents of a type: how many it would refuse that are good now, with their first errors.
    Exit code 1 if there are any.

    \b
    jbi types check examples/data/intel_imagery/Intel_Imagery.xsd --of Intel_Imagery --from examples/data/intel_imagery
    jbi types check examples/data/intel_imagery/Intel_Imagery.xsd --of Intel_Imagery/1.1 --archived 10000
    """
    if (samples is None) == (archived is None):
        raise ConfigurationError("nothing to try it on", hint="Give --from FOLDER or --archived N")
    config = settings.load()
    with _repository(settings, at, folder) as repository:
        key = _find(repository, given, "type")
        held = _held(repository, key)
    cache = TypeRepository(cache_dir=cache_of(settings))
    old = cache.open_schema(held.bundle)
    cache.forget(old.type)
    new = cache.open_schema(
        read_bundle(
            schema, marks=marks or held.bundle.marks or None, root=root, name=key[1].name,
            version=f"{key[1].version} tried", within=schema.absolute().parent.parent,
        )
    )  # fmt: skip
    documents = _documents(samples) if samples is not None else archived_documents(config, key[1], archived or 0)
    found = tried(new, old, documents)
    if found.documents == 0 and samples is None:
        raise UnknownUidError(f"no archived objects of {key[1]}", hint="Try the schema on files: --from FOLDER")
    if found.documents == 0:
        raise ConfigurationError(f"no *.xml below {samples}", hint="Name a folder of metadata documents")
    if as_json:
        show_json({"type": str(key[1]), "same_schema": old.digest == new.digest, **msgspec.to_builtins(found)})
        return 1 if found.refused else 0
    if old.digest == new.digest:
        click.echo(printable(f"{schema} means the same as the schema of {key[1]}"))
    aside = [
        f"{count} {what}"
        for count, what in ((found.before, f"not by the schema of {key[1]} either"), (found.unreadable, "no XML"))
        if count
    ]
    told_aside = f"; {', '.join(aside)}" if aside else ""
    click.echo(printable(f"{found.refused} of {counted(found.documents, 'document')} would be refused{told_aside}"))
    columns = (Column("documents", right=True), Column("at", name=True, long=True), Column("first", long=True),
               Column("error", long=True))  # fmt: skip
    rows = [
        (each.documents, printable(each.path), printable(each.first), printable(each.error)) for each in found.reasons
    ]
    if rows:
        show_table(columns, rows)
    if found.others:
        click.echo(f"and {found.others} for further reasons")
    return 1 if found.refused else 0


def archived_documents(config: Config, type_: TypeName, count: int) -> Iterator[tuple[str, bytes]]:
    """Id and metadata of the last `count` archived objects of a type, newest first. An archive that does not answer is
    told."""
    with SubscriberAdapter(config) as adapter:
        with looking(config, "archives"):
            opened = adapter.open_query(type_.name, version=type_.version, order="newest", limit=count)
        with opened:
            for obj in opened:
                yield obj.object_id, obj.metadata
        for archive in opened.partial:
            click.echo(f"jbi: not complete: the archive at {printable(archive)}", err=True)


def _documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*.xml")):
        if path.is_file() and path.stat().st_size <= DOCUMENT_BYTES:
            yield str(path.relative_to(folder)), path.read_bytes()


# -- inside -----------------------------------------------------------------------------------------------------


def named(given: str) -> TypeName:
    """NAME or NAME/VERSION; names may hold a namespace, whose slashes are no versions."""
    name, slash, version = given.rpartition("/")
    return TypeName(name, version) if slash and name and version and "}" not in version else TypeName(given)


def _kind(attribute: bool) -> Kind:
    return "attribute" if attribute else "type"


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


def _held(repository: Repository, key: Key) -> Held:
    found = repository.held(key)
    if found is None:
        raise UnknownUidError(f"{key[1]} has been removed meanwhile")
    return found


@contextmanager
def _repository(
    settings: Settings, at: str | None, folder: Path | None, *, changes: bool = False
) -> Iterator[Repository]:
    """The one that is named, or the only one that the lookup services list."""
    if at and folder is not None:
        raise ConfigurationError("--at asks a delegate, --folder opens a folder", hint="Give one of them")
    repository: Repository
    if folder is not None:
        repository = _Folder(open_registry(folder, readonly=not changes), cache_of(settings))
    else:
        config = settings.load()
        ref = ServiceRef("", "", (check_endpoint(at),)) if at else _found(config)
        repository = TypesProxy(ref, config.security(), timeout=config.lookup.timeout)
    try:
        yield repository
    except ProtocolError as exc:
        if "no exported method types." not in exc.message:
            raise
        raise UnknownUidError(f"{at} is no delegate", hint="`jbi services` lists those there are") from exc
    finally:
        repository.close()


def _found(config: Config) -> ServiceRef:
    with closing(JoinManager(config, name="jbi")) as community, looking(config):
        found = community.lookup(REPOSITORIES)
    # by address: one that was killed and started again there is listed twice until its former lease has run out
    items = {item.proxy.endpoints: item for item in found}
    if len(items) == 1:
        return next(iter(items.values())).proxy
    own = PublisherAdapterDelegate.entry_name
    names = [
        f"{', '.join(item.proxy.endpoints)} ({entry.name}, {entry.location})"
        for item in items.values()
        for rep in item.entries
        if rep.cls.name == own
        for entry in [PublisherAdapterDelegate.from_rep(rep)]
    ]
    if names:
        raise ConfigurationError(
            f"several delegates have a type repository: {'; '.join(sorted(names)[:10])}",
            hint="Name one: --at HOST:PORT",
        )
    raise UnknownUidError(
        "no delegate with a type repository is registered with the lookup services",
        hint="Start one: jbi pad NAME LOCATION --types FOLDER; or open a folder: --folder FOLDER",
    )


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
        raise ConfigurationError(f"{len(data):,} bytes that are no text", hint="Give -o FILE") from exc
    click.echo("\n".join(map(printable, text.splitlines())))


def _moment(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OSError, OverflowError, ValueError):  # a line of history that a disk has damaged
        return "?"
