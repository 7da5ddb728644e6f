"""`jbi archive`: the archives of delegates over the network, or the folder of one that no process has open; what goes
out and in is in transfer.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.history import MAX_POSITION, GivenUp
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.protocol.replies import DeletionCount
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.archive import KeptStatus
from jbi_pubsub.subscriber import SubscriberAdapter
from jbi_pubsub.subscriber.archives import archives_with, types_at
from jbi_pubsub.subscriber.moments import seconds_at

from .archives import CALL_SECONDS, AnyArchive, ArchiveServer, ObjectSelection, ServedArchive, names, opened
from .clients import namespaces_of, show_object, show_objects
from .near import NearNames
from .options import JsonArguments, argument, command, flag, option, repeated
from .settings import looking
from .show import Column, Table, counted, printable, show_facts, show_tables, sized, telling
from .status import ARCHIVED, archive_row, archive_troubles
from .transfer import export, import_

if TYPE_CHECKING:
    from jbi_pubsub.archive.inspection import Inspection

SLICE: Final = 10_000
"""Objects that are deleted in one call: what is told of it meanwhile."""
RETAIN_SECONDS: Final = 3_600.0
REBUILD_STUCK: Final = 15.0
"""Seconds without a further object in an index that is in trouble, after which nobody waits for it."""
REBUILD_AGAIN: Final = 0.25
"""Seconds between two looks at how far an index is."""
TAIL: Final = 10

_GOING = (
    Column("archive", name=True), Column("from", right=True), Column("to", right=True), Column("objects", right=True),
    Column("go", right=True), Column("why", long=True), Column("when", long=True),
)  # fmt: skip


@click.group(cls=NearNames)
def archive() -> None:
    """Manage archives: those of delegates, or the folder of one that no process has open.

    \b
    jbi archive status                              # all archives in the lookup services
    jbi archive tail --type Intel_Imagery           # what is archived now
    jbi archive retain                              # what the rules would remove, and why
    jbi archive delete --type Intel_Imagery --until 30d
    jbi archive export all.jsonl
    jbi archive check --folder /var/lib/jbi/archive # no process has it open
    """


archive.add_command(export)
archive.add_command(import_)


# -- looking --------------------------------------------------------------------------------------------------------


class _Look(AnyArchive, JsonArguments):
    def inspected(self, folder: Path, title: str, *, whole: bool) -> int:
        """Show what a folder holds; the exit code."""
        from jbi_pubsub.archive.inspection import inspected  # here: the other commands start faster without

        with telling("objects read") as tell:
            found = inspected(folder, whole=whole, tell=partial(tell, "objects read"))
        self.show(msgspec.to_builtins(found), lambda: _show_inspection(found, title))
        return 1 if found.troubles else 0


@command(archive, _Look)
def status(given: _Look) -> int:
    """Show the contents, index progress and problems of archives. Exit code 1 if there is a problem.

    \b
    jbi archive status
    jbi archive status --at 127.0.0.1:4161 --json
    jbi archive status --folder /var/lib/jbi/archive
    """
    if (folder := given.resting()) is not None:
        return given.inspected(folder, "archive at rest", whole=False)
    config = given.settings.load()
    found = {place.name: place.status(config) for place in given.places(config)}
    given.show(found, lambda: _show_states(found))
    return 1 if any(_troubles(facts) for facts in found.values()) else 0


def _show_states(found: dict[str, dict[str, Any]]) -> None:
    rows = [_row(name, facts) for name, facts in found.items()]
    show_tables([Table(ARCHIVED, rows)], more="--json")
    for name, facts in found.items():
        for trouble in _troubles(facts):
            click.echo(printable(f"{name}: {trouble}"))


def _row(name: str, facts: dict[str, Any]) -> Sequence[object]:
    if "error" in facts:
        return name, *[""] * (len(ARCHIVED) - 2), facts["error"]
    return archive_row(name, facts)


def _troubles(facts: dict[str, Any]) -> list[str]:
    return [str(facts["error"])] if "error" in facts else archive_troubles(facts)


@command(archive, _Look)
def check(given: _Look) -> int:
    """Check archives for damage. Exit code 1 if there is any.

    For a folder it reads each object, and checks each byte that has a checksum. For archives in use it prints what they
    have found themselves.

    \b
    jbi archive check
    jbi archive check --folder /var/lib/jbi/archive
    """
    if (folder := given.resting()) is not None:
        return given.inspected(folder, "archive, read whole", whole=True)
    config = given.settings.load()
    found = {place.name: _troubles(place.status(config)) for place in given.places(config)}
    nothing = "no trouble is known; to read all of it, stop it and give --folder"
    lines = [printable(f"{name}: {each}") for name, troubles in found.items() for each in troubles or [nothing]]
    given.show(found, "\n".join(lines))
    return 1 if any(found.values()) else 0


def _show_inspection(found: Inspection, title: str) -> None:
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


class _Tail(JsonArguments):
    type_name: str = ObjectSelection.type_name
    predicate: str = ObjectSelection.predicate
    namespaces: tuple[str, ...] = ObjectSelection.namespaces
    lines: int = option("Number of objects from before.", "-n", "--lines", type=click.IntRange(0), shown=TAIL)
    count: int | None = option("End after that many objects.", type=click.IntRange(1))
    timeout: float | None = option("End when no object has come for that many seconds.", type=click.FloatRange(0))


@command(archive, _Tail)
def tail(given: _Tail) -> None:
    """Show the last archived objects, and new ones until Ctrl-C.

    \b
    jbi archive tail
    jbi archive tail -n 100 --type Intel_Imagery --predicate "//lat > 33"
    jbi archive tail --timeout 60 --json
    """
    config = given.settings.load()
    spaces = namespaces_of(given.namespaces)
    with SubscriberAdapter(config) as adapter:
        with looking(config, "archives"):
            before: list[InfoObject] = []
            # first what comes from now on, with its position: between the two there is no gap, and what comes twice is
            # known by its id
            uid = adapter.register_subscriber(
                type_name=given.type_name, predicate=given.predicate, namespaces=spaces, start="now"
            )
            if given.lines:
                named = {"predicate": given.predicate, "namespaces": spaces, "order": "newest", "limit": given.lines}
                with adapter.open_query(given.type_name or None, **named) as opened:  # type: ignore[arg-type]
                    before = list(opened)[::-1]
        for obj in before[: given.count]:
            show_object(obj, as_json=given.as_json)
        known = {obj.object_id for obj in before}
        show_objects(
            adapter,
            uid,
            count=None if given.count is None else given.count - len(before),
            timeout=given.timeout,
            as_json=given.as_json,
            is_wanted=lambda obj: obj.platform.position > 0 and obj.object_id not in known,
        )


# -- changing -------------------------------------------------------------------------------------------------------


class _Retain(ServedArchive, JsonArguments):
    is_done: bool = flag("Remove it now, instead of showing it.", "--apply")


@command(archive, _Retain)
def retain(given: _Retain) -> None:
    """Show what the rules of policy.toml ([[keep]]) would remove now, and why; --apply removes it. The archive itself
    does so once an hour, in files that are full; objects in the file that is being written stay.

    \b
    jbi archive retain
    jbi archive retain --apply
    """
    config = given.settings.load()
    found: dict[str, tuple[GivenUp, ...]] = {}
    for place in given.places(config):
        with place.calls(config) as proxy:
            found[place.name] = proxy.retain(is_dry=not given.is_done, seconds=RETAIN_SECONDS)
    plain = {name: msgspec.to_builtins(going) for name, going in found.items()}
    given.show(plain, lambda: _show_going(found, is_done=given.is_done))


def _show_going(found: dict[str, tuple[GivenUp, ...]], *, is_done: bool) -> None:
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


class _Delete(ObjectSelection, ServedArchive, JsonArguments):
    object_ids: tuple[str, ...] = argument(metavar="[OBJECT]...", nargs=-1)
    type_name: str = option(
        "Type of the objects; the last part of its name is enough, except with --at.", "--type", default=""
    )
    positions: str | None = option("Positions in one archive.", metavar="FROM-TO")
    registrations: tuple[str, ...] = repeated("Registration of the objects; repeatable.", "--registration")
    everything: bool = flag("All objects.", "--all")
    yes: bool = flag("Do not ask.")

    def request(self) -> QueryRequest:
        """Raises ConfigurationError for a condition that is none, or where there is none."""
        asked = (self.type_name, self.version, self.predicate, self.namespaces, self.since, self.until)
        is_narrow = any((self.object_ids, *asked, self.positions, self.registrations))
        if is_narrow == self.everything:
            raise ConfigurationError(
                "--all does not go with conditions" if self.everything else "no objects are named for deletion",
                hint="Name objects, give conditions (--type, --predicate, --until, ...), or --all",
            )
        after, up_to = _positions(self.positions)
        now = time.time()
        return QueryRequest(
            type=self.type_name, version=self.version, predicate=self.predicate,
            namespaces=tuple(namespaces_of(self.namespaces).items()),
            since=seconds_at(self.since, now=now, what="--since") if self.since else 0.0,
            until=seconds_at(self.until, now=now, what="--until") if self.until else 1e11,
            after=after, up_to=up_to, registrations=self.registrations or None, object_ids=self.object_ids or None,
        )  # fmt: skip


@command(archive, _Delete)
def delete(given: _Delete) -> None:
    """Delete archived objects by id or by conditions, which hold together. When the command ends they are gone from
    every answer, and soon from the disk. It asks before, with their number.

    \b
    jbi archive delete 3f0c2a9be41d4a44b1f6f51d4ad6b2c9000000000001
    jbi archive delete --type mil.af.rl.jbi.Intel_Imagery --until 30d
    jbi archive delete --type mil.af.rl.jbi.Intel_Imagery --predicate "//lat > 33" --yes
    jbi archive delete --at 127.0.0.1:4161 --positions 100-200
    """
    request = given.request()
    config = given.settings.load()
    places = given.places(config)
    if request.type and not given.at:
        items = [place.item for place in places if place.item is not None]
        name, having = archives_with(request.type, items, types_at=partial(types_at, config))
        request = msgspec.structs.replace(request, type=name)
        places = [place for place in places if place.item in having]
    if given.positions and len(places) > 1:
        raise ConfigurationError("positions are of one archive", hint=f"--at one of {names(places)}")
    total = sum(_count(config, place, request) for place in places)
    if not given.yes and total:
        if not sys.stdin.isatty():
            raise ConfigurationError(f"this deletes {counted(total, 'object')}", hint="Say --yes")
        click.confirm(f"Delete {counted(total, 'object')} at {counted(len(places), 'archive')}?", abort=True, err=True)
    done = dict.fromkeys((place.name for place in places), 0)
    is_told = False
    with telling("objects deleted") as tell:
        for place in places:
            for found in _deleted(config, place, request):
                done[place.name] += found.count
                is_told = is_told or found.is_told
                tell("objects deleted", sum(done.values()), total)
    deleted = sum(done.values())
    text = f"{counted(deleted, 'object')} deleted at {counted(len(places), 'archive')}"
    text += "; the other nodes are told" * is_told
    given.show({"deleted": deleted, "archives": done}, text)


def _positions(given: str | None) -> tuple[int, int]:
    """The one before, and the last."""
    if given is None:
        return 0, MAX_POSITION
    first, dash, last = given.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or not 0 < int(first) <= int(last or first):
        raise ConfigurationError(f"--positions {given}: no positions", hint="FROM-TO, such as 100-200; or one")
    return int(first) - 1, min(int(last or first), MAX_POSITION)


def _count(config: Config, place: ArchiveServer, request: QueryRequest) -> int:
    with place.calls(config) as proxy:
        return proxy.count(request, CALL_SECONDS).count


def _deleted(config: Config, place: ArchiveServer, request: QueryRequest) -> Iterator[DeletionCount]:
    """Deletions, slice by slice; nothing that has come since it began. Ids are one slice, as a limit would be a further
    condition."""
    asked = request if request.object_ids else msgspec.structs.replace(request, limit=SLICE)
    with place.calls(config) as proxy:
        while True:
            found = proxy.delete(asked, CALL_SECONDS)
            yield found
            if found.count < SLICE:
                return
            asked = msgspec.structs.replace(asked, up_to=found.up_to)


class _Rebuild(AnyArchive):
    no_wait: bool = flag("Do not wait until it is built.")


@command(archive, _Rebuild)
def rebuild(given: _Rebuild) -> None:
    """Delete the index of an archive, and build it again from the archived objects. Meanwhile queries are slower.

    \b
    jbi archive rebuild
    jbi archive rebuild --at 127.0.0.1:4161 --no-wait
    jbi archive rebuild --folder /var/lib/jbi/archive
    """
    config = given.settings.load()
    if (folder := given.resting()) is not None:
        if given.no_wait:
            raise ConfigurationError("--no-wait is for archives in use: no process continues the work in a folder")
        with opened(config, folder) as kept:
            kept.rebuild()
            _await_index(kept.status)
        click.echo("the index is built again")
        return
    place = given.place(config)
    with place.calls(config) as proxy:
        proxy.rebuild()
    if given.no_wait:
        click.echo("the index is being built again; `jbi archive status` says how far it is")
        return
    _await_index(lambda: place.status(config))
    click.echo("the index is built again")


def _await_index(look: Callable[[], dict[str, Any] | KeptStatus]) -> None:
    """Until it has all that there was when it began. Raises StorageError when there will be none."""
    end, reached, since = None, -1, time.monotonic()
    with telling("objects indexed") as tell:
        while True:
            facts = look()
            if "error" in facts:
                raise StorageError(str(facts["error"]))
            end = facts["synced"] if end is None else end
            tell("objects indexed", facts["indexed"], end)
            if facts["indexed"] >= end:
                return
            if facts["indexed"] != reached or not facts["index_trouble"]:
                reached, since = facts["indexed"], time.monotonic()
            elif time.monotonic() - since >= REBUILD_STUCK:
                raise StorageError(f"there is no index: {facts['index_trouble']}")
            time.sleep(REBUILD_AGAIN)
