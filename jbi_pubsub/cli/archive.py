"""`jbi archive`: the archives of delegates over the network, or the folder of one that no process has open."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
import msgspec
from rich.progress import Progress

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, ProtocolError, StorageError, UnknownUidError
from jbi_pubsub.core.history import MAX_POSITION, GivenUp, Query, Scope, TakenIn
from jbi_pubsub.core.info_object import InfoObject, Parcel
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import check_endpoint
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.matching.recent import Shelves
from jbi_pubsub.pad.past.archiving import Archiving, entries_of
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.entries import ANSWERING_TYPES, ArchiveEntry
from jbi_pubsub.protocol.replies import Described
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.services import HistoryProxy, fetch_status
from jbi_pubsub.subscriber import Query as OpenQuery
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.asking import archives_with
from jbi_pubsub.subscriber.moments import seconds_at

from . import backup
from .clients import existing_file, facts_of, line_of, namespaces_of
from .near import NearNames
from .query import tell_left_out
from .settings import Settings, json_option, looking, pass_settings
from .show import Column, Table, console, counted, printable, show_facts, show_json, show_tables, sized
from .show import as_json as json_text
from .status import ARCHIVED, archive_row, archive_troubles

if TYPE_CHECKING:
    from jbi_pubsub.archive.inspection import Inspection

F = TypeVar("F", bound=Callable[..., Any])

SLICE: Final = 10_000
"""Objects that are deleted in one call: what is told of it meanwhile."""
CALL_SECONDS: Final = 300.0
"""For a slice to be deleted, or objects to be taken in."""
RETAIN_SECONDS: Final = 3_600.0
REBUILD_STUCK: Final = 15.0
"""Seconds without a further object in an index that is in trouble, after which nobody waits for it."""
REBUILD_AGAIN: Final = 0.25
"""Seconds between two looks at how far an index is."""
WIRE_BYTES: Final = 30 << 20
"""Of an object that goes over the control connection."""
TAIL: Final = 10

_GOING = (
    Column("archive", name=True), Column("from", right=True), Column("to", right=True), Column("objects", right=True),
    Column("go", right=True), Column("why", long=True), Column("when", long=True),
)  # fmt: skip


class _At(NamedTuple):
    """An archive of a server."""

    ref: ServiceRef
    name: str
    """Where it is reached."""
    item: ServiceItem | None = None
    """As the lookup services have it."""


@click.group(cls=NearNames)
def archive() -> None:
    """Look after archives: those of delegates, or the folder of one that no process has open.

    \b
    jbi archive status                              # of all that the lookup services know
    jbi archive tail --type Intel_Imagery           # what is archived now
    jbi archive retain                              # what the rules would give up, and why
    jbi archive delete --type Intel_Imagery --until 30d
    jbi archive export all.jsonl
    jbi archive check --folder /var/lib/jbi/archive # no process has it open
    """


def _where(command: F) -> F:
    """--at and --folder."""
    return _at(
        click.option(
            "--folder", type=click.Path(file_okay=False, path_type=Path),
            help="The folder of an archive that no process has open.",
        )(command)
    )  # fmt: skip


_at = click.option("--at", metavar="HOST:PORT", help="The archive of that server; default: all that are found.")


# -- looking --------------------------------------------------------------------------------------------------------


@archive.command()
@_where
@json_option
@pass_settings
def status(settings: Settings, at: str | None, folder: Path | None, as_json: bool) -> int:
    """Show what archives hold, how far their indexes are, and what is wrong. Exit code 1 if something is.

    \b
    jbi archive status
    jbi archive status --at 127.0.0.1:4161 --json
    jbi archive status --folder /var/lib/jbi/archive
    """
    if _is_folder(at, folder):
        return _show_inspection(_inspected(folder, whole=False), as_json=as_json, title="archive at rest")
    config = settings.load()
    found = {place.name: _status(config, place) for place in _archives(config, at)}
    if as_json:
        show_json(found)
    else:
        show_tables([Table(ARCHIVED, [_row(name, facts) for name, facts in found.items()])], more="--json")
        for name, facts in found.items():
            for trouble in _troubles(facts):
                click.echo(printable(f"{name}: {trouble}"))
    return 1 if any(_troubles(facts) for facts in found.values()) else 0


def _row(name: str, facts: dict[str, Any]) -> Sequence[object]:
    if "error" in facts:
        return name, *[""] * (len(ARCHIVED) - 2), facts["error"]
    return archive_row(name, facts)


def _troubles(facts: dict[str, Any]) -> list[str]:
    return [str(facts["error"])] if "error" in facts else archive_troubles(facts)


@archive.command()
@_where
@json_option
@pass_settings
def check(settings: Settings, at: str | None, folder: Path | None, as_json: bool) -> int:
    """Say what is wrong with archives. Exit code 1 if something is.

    Of a folder each object is read, and each byte that has a checksum is checked. Of archives that are in use it is
    told what they have found themselves.

    \b
    jbi archive check
    jbi archive check --folder /var/lib/jbi/archive
    """
    if _is_folder(at, folder):
        return _show_inspection(_inspected(folder, whole=True), as_json=as_json, title="archive, read whole")
    config = settings.load()
    found = {place.name: _troubles(_status(config, place)) for place in _archives(config, at)}
    if as_json:
        show_json(found)
    else:
        for name, troubles in found.items():
            for trouble in troubles or ["no trouble is known; to read all of it, stop it and give --folder"]:
                click.echo(printable(f"{name}: {trouble}"))
    return 1 if any(found.values()) else 0


def _inspected(folder: Path | None, *, whole: bool) -> Inspection:
    from jbi_pubsub.archive.inspection import inspected  # here: the other commands start faster without

    assert folder is not None
    with _telling("objects read") as tell:
        return inspected(folder, whole=whole, tell=tell)


def _show_inspection(found: Inspection, *, as_json: bool, title: str) -> int:
    if as_json:
        show_json(msgspec.to_builtins(found))
        return 1 if found.troubles else 0
    rows = [
        ("folder", found.folder),
        ("objects", f"{found.objects:,}, up to position {found.position:,}"),
        *((f"  {name}", f"{number:,}") for name, number in found.types.items()),
        ("deleted, and on disk still", f"{found.deleted:,}"),
        ("volumes", f"{found.volumes:,}, {found.packs:,} of them packs"),
        ("on disk", f"log {sized(found.log_bytes)}, packs {sized(found.pack_bytes)}, index {sized(found.index_bytes)}"),
        ("registrations", f"{found.registrations:,}"),
        ("durable subscriptions", f"{found.consumers:,}"),
    ]
    if found.torn:
        rows.append(("at the end", f"{found.torn:,} bytes that were being written: they are cut at the next start"))
    rows += [("trouble", trouble) for trouble in found.troubles]
    show_facts([*rows, ("result", "damaged" if found.troubles else "good")], title=title)
    return 1 if found.troubles else 0


@archive.command()
@click.option("--type", "type_name", default="", help="Of that type alone; the last part of its name will do.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@click.option("--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in it; repeatable.")
@click.option("-n", "--lines", type=click.IntRange(0), default=TAIL, show_default=True, help="So many of before.")
@click.option("--count", type=click.IntRange(1), help="End after so many objects.")
@click.option("--timeout", type=click.FloatRange(0), help="End when none has come for so many seconds.")
@json_option
@pass_settings
def tail(
    settings: Settings,
    type_name: str,
    predicate: str,
    namespaces: tuple[str, ...],
    lines: int,
    count: int | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Show the last objects that were archived, and those that are from now on, until Ctrl-C.

    \b
    jbi archive tail
    jbi archive tail -n 100 --type Intel_Imagery --predicate "//lat > 33"
    jbi archive tail --timeout 60 --json
    """
    config = settings.load()
    spaces = namespaces_of(namespaces)
    with SubscriberAdapter(config) as adapter:
        with looking(config, "archives"):
            before: list[InfoObject] = []
            # first what comes from now on, with its position: between the two there is no gap, and what comes twice is
            # known by its id
            uid = adapter.register_subscriber(
                type_name=type_name, predicate=predicate, namespaces=spaces, start=MAX_POSITION
            )
            if lines:
                named = {"predicate": predicate, "namespaces": spaces, "order": "newest", "limit": lines}
                with adapter.open_query(type_name or None, **named) as opened:  # type: ignore[arg-type]
                    before = list(opened)[::-1]
        for obj in _followed(adapter, uid, before, count, timeout):
            click.echo(json_text(facts_of(obj)) if as_json else line_of(obj))
            sys.stdout.flush()
        if losses := adapter.losses(uid):
            click.echo("lost: " + ", ".join(f"{cause} {number:,}" for cause, number in losses.items()), err=True)


def _followed(
    adapter: SubscriberAdapter,
    uid: SubscriptionUid,
    before: Sequence[InfoObject],
    count: int | None,
    timeout: float | None,
) -> Iterator[InfoObject]:
    """What is there, then what is archived from now on; of this, what is not kept is left out."""
    known = {obj.object_id for obj in before}
    seen = 0
    for obj in before:
        yield obj
        seen += 1
        if seen == count:
            return
    while True:
        came = adapter.receive(uid, timeout if timeout is not None else 3600.0)
        if came is None and timeout is not None:
            return
        if came is not None and came.platform.position and came.object_id not in known:
            yield came
            seen += 1
            if seen == count:
                return


# -- changing -------------------------------------------------------------------------------------------------------


@archive.command()
@_at
@click.option("--apply", "is_done", is_flag=True, help="Give it up now, instead of saying what would go.")
@json_option
@pass_settings
def retain(settings: Settings, at: str | None, is_done: bool, as_json: bool) -> None:
    """Show what the rules of policy.toml ([[keep]]) would give up now, and why; with --apply it goes. By itself that is
    done once an hour, of files that are full: what lies in the one that is written stays.

    \b
    jbi archive retain
    jbi archive retain --apply
    """
    config = settings.load()
    found: dict[str, tuple[GivenUp, ...]] = {}
    for place in _archives(config, at):
        with _proxy(config, place) as proxy:
            found[place.name] = proxy.retain(is_dry=not is_done, seconds=RETAIN_SECONDS)
    if as_json:
        show_json({name: msgspec.to_builtins(going) for name, going in found.items()})
        return
    later = "when half of the volume goes"
    rows = [
        (
            name, f"{each.first:,}", f"{each.last:,}", f"{each.objects:,}", f"{sum(each.reasons.values()):,}",
            ", ".join(f"{_WHY.get(why, why)}: {number:,}" for why, number in sorted(each.reasons.items())),
            (("gone" if is_done else "now") if each.is_done else later),
        )
        for name, going in found.items()
        for each in going
    ]  # fmt: skip
    if rows:
        show_tables([Table(_GOING, rows)], more="--json")
    now = sum(sum(each.reasons.values()) for going in found.values() for each in going if each.is_done)
    verb = "are given up" if is_done else "would go; --apply gives them up"
    click.echo(f"jbi: {counted(now, 'object')} {verb}", err=True)


_WHY: Final = {
    "age": "older than age", "count": "beyond count", "bytes": "beyond bytes", "payload_age": "payload older",
    "latest_by": "not the newest of its key", "until_durables": "durables have it", "full": "no room",
}  # fmt: skip


@archive.command()
@click.argument("object_ids", metavar="[OBJECT]...", nargs=-1)
@_at
@click.option("--type", "type_name", default="", help="Of that type; the last part of its name will do, but with --at.")
@click.option("--version", default="", help="Version of the type; default: every one.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@click.option("--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in it; repeatable.")
@click.option("--since", metavar="TIME", help="Published then or later: 2h (ago), 2026-11-01T00:00Z.")
@click.option("--until", metavar="TIME", help="Published then or earlier.")
@click.option("--positions", metavar="FROM-TO", help="Of these positions, of one archive.")
@click.option("--registration", "registrations", multiple=True, help="Of that registration; repeatable.")
@click.option("--all", "everything", is_flag=True, help="All there is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_settings
def delete(
    settings: Settings,
    /,
    object_ids: tuple[str, ...],
    at: str | None,
    everything: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Delete archived objects, by id or by what they are: gone from every answer when this ends, from the disk soon,
    and they do not come back. All conditions hold together. It is asked before, with their number.

    \b
    jbi archive delete 3f0c2a9be41d4a44b1f6f51d4ad6b2c9000000000001
    jbi archive delete --type mil.af.rl.jbi.Intel_Imagery --until 30d
    jbi archive delete --type mil.af.rl.jbi.Intel_Imagery --predicate "//lat > 33" --yes
    jbi archive delete --at 127.0.0.1:4161 --positions 100-200
    """
    request = _request(object_ids, given, everything=everything)
    config = settings.load()
    places = list(_archives(config, at))
    if request.type and not at:
        items = [place.item for place in places if place.item is not None]
        name, having = archives_with(request.type, items, is_published=lambda _: False)
        request = msgspec.structs.replace(request, type=name)
        places = [place for place in places if place.item in having]
    if given["positions"] and len(places) > 1:
        raise ConfigurationError("positions are of one archive", hint=f"--at one of {_names(places)}")
    numbers = {place: _count(config, place, request) for place in places}
    total = sum(numbers.values())
    if not yes and total:
        if not sys.stdin.isatty():
            raise ConfigurationError(f"this deletes {counted(total, 'object')}", hint="Say --yes")
        click.confirm(f"Delete {counted(total, 'object')} at {counted(len(places), 'archive')}?", abort=True, err=True)
    done = dict.fromkeys((place.name for place in places), 0)
    with _telling("objects deleted") as tell:
        for place in places:
            for count in _deleted(config, place, request):
                done[place.name] += count
                tell(sum(done.values()), total)
    if as_json:
        show_json({"deleted": sum(done.values()), "archives": done})
    else:
        click.echo(f"{counted(sum(done.values()), 'object')} deleted at {counted(len(places), 'archive')}")


def _request(object_ids: tuple[str, ...], given: dict[str, Any], *, everything: bool) -> QueryRequest:
    """Raises ConfigurationError for a condition that is none, or where there is none."""
    is_narrow = bool(object_ids) or any(given.values())
    if is_narrow == everything:
        raise ConfigurationError(
            "--all does not go with conditions" if everything else "nothing is said of what is to be deleted",
            hint="Name objects, give conditions (--type, --predicate, --until, ...), or --all",
        )
    after, up_to = _positions(given["positions"])
    now = time.time()
    return QueryRequest(
        type=given["type_name"], version=given["version"], predicate=given["predicate"],
        namespaces=tuple(namespaces_of(given["namespaces"]).items()),
        since=seconds_at(given["since"], now=now, what="--since") if given["since"] else 0.0,
        until=seconds_at(given["until"], now=now, what="--until") if given["until"] else 1e11,
        after=after, up_to=up_to, registrations=given["registrations"] or None, object_ids=object_ids or None,
    )  # fmt: skip


def _positions(given: str | None) -> tuple[int, int]:
    """The one before, and the last."""
    if given is None:
        return 0, MAX_POSITION
    first, dash, last = given.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or not 0 < int(first) <= int(last or first):
        raise ConfigurationError(f"--positions {given}: no positions", hint="FROM-TO, such as 100-200; or one")
    return int(first) - 1, min(int(last or first), MAX_POSITION)


def _count(config: Config, place: _At, request: QueryRequest) -> int:
    with _proxy(config, place) as proxy:
        return proxy.count(request, CALL_SECONDS).count


def _deleted(config: Config, place: _At, request: QueryRequest) -> Iterator[int]:
    """How many, slice by slice; nothing that has come since it began."""
    asked = msgspec.structs.replace(request, limit=SLICE)
    with _proxy(config, place) as proxy:
        while True:
            found = proxy.delete(asked, CALL_SECONDS)
            yield found.count
            if found.count < SLICE:
                return
            asked = msgspec.structs.replace(asked, up_to=found.up_to)


@archive.command()
@_where
@click.option("--no-wait", is_flag=True, help="Do not wait until it is made.")
@pass_settings
def rebuild(settings: Settings, at: str | None, folder: Path | None, no_wait: bool) -> None:
    """Throw the index of an archive away, and make it anew from what is kept. Queries go on meanwhile, slower.

    \b
    jbi archive rebuild
    jbi archive rebuild --at 127.0.0.1:4161 --no-wait
    jbi archive rebuild --folder /var/lib/jbi/archive
    """
    config = settings.load()
    if _is_folder(at, folder):
        assert folder is not None
        if no_wait:
            raise ConfigurationError("--no-wait is for archives in use: a folder has nobody who would go on")
        with _opened(config, folder) as opened:
            opened.rebuild()
            _await_index(opened.status)
        click.echo("the index is made anew")
        return
    places = list(_archives(config, at))
    if len(places) > 1:
        raise ConfigurationError("there are several archives", hint=f"--at one of {_names(places)}")
    with _proxy(config, places[0]) as proxy:
        proxy.rebuild()
    if no_wait:
        click.echo("the index is being made anew; `jbi archive status` says how far it is")
        return
    _await_index(lambda: _status(config, places[0]))
    click.echo("the index is made anew")


def _await_index(look: Callable[[], dict[str, Any]]) -> None:
    """Until it has all that there was when it began. Raises StorageError when there will be none."""
    end, reached, since = None, -1, time.monotonic()
    with _telling("objects indexed") as tell:
        while True:
            facts = look()
            if "error" in facts:
                raise StorageError(str(facts["error"]))
            end = facts["synced"] if end is None else end
            tell(facts["indexed"], end)
            if facts["indexed"] >= end:
                return
            if facts["indexed"] != reached or not facts["index_trouble"]:
                reached, since = facts["indexed"], time.monotonic()
            elif time.monotonic() - since >= REBUILD_STUCK:
                raise StorageError(f"there is no index: {facts['index_trouble']}")
            time.sleep(REBUILD_AGAIN)


# -- out and in -----------------------------------------------------------------------------------------------------


@archive.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path),
              help="The folder of an archive that no process has open.")  # fmt: skip
@click.option("--type", "type_name", default="", help="Of that type alone; the last part of its name will do.")
@click.option("--version", default="", help="Version of the type; default: every one.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@click.option("--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in it; repeatable.")
@click.option("--since", metavar="TIME", help="Published then or later: 2h (ago), 2026-11-01T00:00Z.")
@click.option("--until", metavar="TIME", help="Published then or earlier.")
@click.option("--payloads/--no-payloads", default=True, help="With their payloads, or metadata alone.")
@json_option
@pass_settings
def export(settings: Settings, /, file: Path, folder: Path | None, payloads: bool, as_json: bool, **given: Any) -> int:
    """Write archived objects to a file: JSON lines (.jsonl; - for stdout) or Parquet (.parquet). `jbi study import`
    reads both, and `jbi archive import` makes the same objects of them. Exit code 1 if an archive did not answer, or
    payloads are left out because they are too large.

    \b
    jbi archive export all.parquet
    jbi archive export kabul.jsonl --type Intel_Imagery --predicate "//Area='Kabul'" --since 30d
    jbi archive export - --no-payloads --since 1h     # to stdout
    jbi archive export rescued.jsonl --folder /var/lib/jbi/archive
    jbi study import all.parquet --out data
    """
    if str(file) != backup.STDIO:
        backup.form_of(file)
    config = settings.load()
    conditions = {name: given[name] for name in ("version", "predicate", "since", "until") if given[name]}
    conditions["namespaces"] = namespaces_of(given["namespaces"])
    partial: tuple[str, ...] = ()
    if folder is not None:
        if any(conditions.values()) or given["type_name"]:
            raise ConfigurationError("--folder exports all", hint="Conditions are for archives that answer queries")
        with _opened(config, folder) as opened, backup.writing(file, payloads=payloads) as sink:
            sources = {source.uid: entries_of(source.entries) for source in opened.sources()}
            described = lambda uid: sources.get(uid, ())  # noqa: E731  # a line
            count, large = _written(_objects(opened), sink, opened.status()["position"], described)
    else:
        with SubscriberAdapter(config) as adapter:
            with looking(config, "archives"):
                query = adapter.open_query(given["type_name"] or None, **conditions)
            with query, backup.writing(file, payloads=payloads) as sink, _describing(config) as described:
                count, large = _written(query, sink, _total(query), described)
            partial = query.partial
            tell_left_out(query.left_out)
    for each in partial:
        click.echo(f"jbi: not complete: the archive at {printable(each)}", err=True)
    large = large if payloads else 0
    if large:
        click.echo(backup.left_out(large), err=True)
    if str(file) != backup.STDIO:
        if as_json:
            show_json({"objects": count, "file": str(file), "incomplete": list(partial), "without_payload": large})
        else:
            click.echo(printable(f"{counted(count, 'object')} written to {file}"))
    return 1 if partial or large else 0


def _total(query: OpenQuery) -> int:
    """For the bar; 0: not known."""
    if not sys.stdout.isatty():
        return 0
    try:
        return query.count()
    except JbiError:
        return 0


@contextmanager
def _describing(config: Config) -> Iterator[Callable[[str], backup.Entries]]:
    """What archives know of a registration; () where none does, or says it."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(_proxy(config, place)) for place in _archives(config, None)]

        def described(uid: str) -> backup.Entries:
            for proxy in proxies:
                try:
                    found = proxy.describe([uid])
                except JbiError:
                    continue  # the query tells of it
                if found:
                    return found[0].entries
            return ()

        yield described


def _written(
    objects: Iterable[InfoObject], sink: backup.Sink, total: int, described: Callable[[str], backup.Entries]
) -> tuple[int, int]:
    """How many, and how many of them have payloads that are too large to be written."""
    count = large = 0
    told: set[str] = set()
    with _telling("objects") as tell:
        for obj in objects:
            uid = obj.platform.registration
            sink.add(obj, () if uid in told else described(uid))
            told.add(uid)
            count += 1
            large += backup.is_too_large(obj)
            if count % 100 == 0:
                tell(count, total)
    return count, large


def _objects(opened: Keeping) -> Iterator[InfoObject]:
    """All objects of an archive, in their order."""
    scopes = tuple(Scope(type_) for type_ in sorted({source.type for source in opened.sources()}))
    if scopes:
        found = Archiving(opened, Shelves(0.0, 0)).answers(Query(scopes=scopes))
        yield from (Parcel.received(each.data).unpacked() for each in found)


@contextmanager
def _opened(config: Config, folder: Path, *, is_made: bool = False) -> Iterator[Keeping]:
    """The archive in a folder, in this process; `is_made`: also where there is none yet. Raises StorageError while
    another one has it."""
    from jbi_pubsub.archive.engine import Archive  # here: the other commands start faster without
    from jbi_pubsub.archive.folder import archive_of

    if not is_made:
        archive_of(folder)
    section = msgspec.structs.replace(config.archive, folder=str(folder), workers=0)
    with closing(Archive(msgspec.structs.replace(config, archive=section))) as opened:
        yield opened


@archive.command("import")
@click.argument("file", type=existing_file)
@_at
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path),
              help="The folder of an archive that no process has open; it is made if it is not there.")  # fmt: skip
@json_option
@pass_settings
def import_(settings: Settings, file: Path, at: str | None, folder: Path | None, as_json: bool) -> int:
    """Keep the objects of a file of `jbi archive export`, or of others with the columns of `jbi study`: under the ids
    that they have, and each once. Queries, replays and durable subscriptions that come for the past get them; nobody
    else does. What was deleted here stays deleted. Exit code 1 if something could not be read.

    \b
    jbi archive import all.parquet
    jbi archive import kabul.jsonl --at 127.0.0.1:4161
    jbi archive import rescued.jsonl --folder /var/lib/jbi/archive
    """
    config = settings.load()
    reading = backup.Reading(file)
    found = TakenIn()
    size = file.stat().st_size
    with _taking_in(config, at, folder) as take_in, _telling("bytes read") as tell:
        for batch in reading.batches():
            some = take_in(batch, reading.entries)
            found = TakenIn(found.kept + some.kept, found.known + some.known, found.deleted + some.deleted)
            tell(reading.bytes_read, size)
    if as_json:
        show_json({**msgspec.to_builtins(found), "rejected": reading.rejects, "reasons": reading.reasons})
    else:
        aside = ((found.known, "here already"), (found.deleted, "deleted before"), (reading.rejects, "not readable"))
        told = "".join(f", {number:,} {what}" for number, what in aside if number)
        click.echo(f"{counted(found.kept, 'object')} kept{told}")
        for reason in reading.reasons:
            click.echo(printable(f"jbi: {file}: {reason}"), err=True)
    return 1 if reading.rejects else 0


@contextmanager
def _taking_in(
    config: Config, at: str | None, folder: Path | None
) -> Iterator[Callable[[Sequence[Parcel], Mapping[str, backup.Entries]], TakenIn]]:
    """What keeps objects: an archive that is in use, or one at rest."""
    if _is_folder(at, folder):
        assert folder is not None
        with _opened(config, folder, is_made=True) as opened:
            yield Archiving(opened, Shelves(0.0, 0)).take_in
        return
    places = list(_archives(config, at))
    if len(places) > 1:
        raise ConfigurationError("there are several archives", hint=f"--at one of {_names(places)}")
    with _proxy(config, places[0]) as proxy:

        def take_in(batch: Sequence[Parcel], entries: Mapping[str, backup.Entries]) -> TakenIn:
            for parcel in batch:
                if parcel.size > WIRE_BYTES:
                    raise ConfigurationError(
                        f"object {parcel.head.object_id} has {parcel.size:,} bytes, {WIRE_BYTES:,} at most go over the"
                        " network so",
                        hint="Import into the folder while no process has it open: --folder",
                    )
            uids = {parcel.head.registration for parcel in batch}
            of = [Described(uid, entries[uid]) for uid in uids if uid in entries]
            return proxy.take_in([b"".join(map(bytes, parcel.parts)) for parcel in batch], of, CALL_SECONDS)

        yield take_in


# -- inside ---------------------------------------------------------------------------------------------------------


def _is_folder(at: str | None, folder: Path | None) -> bool:
    if at and folder is not None:
        raise ConfigurationError("--at asks a server, --folder opens a folder", hint="Give one of them")
    return folder is not None


def _archives(config: Config, at: str | None) -> Iterator[_At]:
    """The one at an address, or all that the lookup services know. Raises UnknownUidError where there is none."""
    if at:
        endpoint = check_endpoint(at)
        yield _At(ServiceRef("", "", (endpoint,)), endpoint)
        return
    with closing(JoinManager(config, name="jbi")) as community, looking(config, "archives"):
        items = community.lookup(ServiceTemplate(entries=(ArchiveEntry().rep(),)), EVERYTHING)
    items = [item for item in items if ANSWERING_TYPES.isdisjoint(item.types)]  # who has one elsewhere, or none
    # by address: one that was killed and started again there is listed twice until its former lease has run out
    found = {item.proxy.endpoints: _At(item.proxy, ", ".join(item.proxy.endpoints), item) for item in items}
    if not found:
        raise UnknownUidError(
            "the lookup services know of no archive",
            hint="Start a delegate with one: jbi pad NAME LOCATION --archive FOLDER; or name a folder: --folder",
        )
    yield from sorted(found.values(), key=lambda place: place.name)


def _names(places: Sequence[_At]) -> str:
    return ", ".join(place.name for place in places[:10])


@contextmanager
def _proxy(config: Config, place: _At) -> Iterator[HistoryProxy]:
    proxy = HistoryProxy(place.ref, config.security(), timeout=config.lookup.timeout)
    try:
        yield proxy
    except ProtocolError as exc:
        if "no exported method history." not in exc.message:
            raise
        raise UnknownUidError(
            f"{place.name} has no archive", hint="`jbi archive status` lists those there are"
        ) from exc
    finally:
        proxy.close()


def _status(config: Config, place: _At) -> dict[str, Any]:
    """What a server says of its archive; `error` where it does not."""
    try:
        facts = fetch_status(place.ref, config.security(), timeout=config.lookup.timeout).get("archive")
    except JbiError as exc:
        return {"error": f"no answer: {exc.message}"}
    if facts is None:
        return {"error": "it has no archive"}
    try:
        archive_row(place.name, facts)
        return {**facts, "synced": int(facts["synced"]), "indexed": int(facts["indexed"])}
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        return {"error": f"it says of its archive what none of ours says: {exc}"}


@contextmanager
def _telling(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar in a terminal; nothing elsewhere. It is told (done, of all; 0: not known)."""
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)
