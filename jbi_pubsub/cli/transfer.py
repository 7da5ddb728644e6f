"""`jbi archive export` and `import`: objects of archives as rows of files (see backup.py), and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.history import HistoryQuery, Scope, TakenIn
from jbi_pubsub.core.info_object import InfoObject, Parcel
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.past.archiving import Archiving, entries_of
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.replies import ArchivedSource
from jbi_pubsub.subscriber import Query as OpenQuery
from jbi_pubsub.subscriber import SubscriberAdapter

from . import backup
from .archives import CALL_SECONDS, AnyArchive, ObjectSelection, found, opened
from .clients import namespaces_of
from .options import EXISTING_FILE, FOLDER, JsonArguments, argument, command, option
from .query import tell_left_out, tell_missing
from .settings import looking, try_file
from .show import counted, printable, telling

WIRE_BYTES: Final = 30 << 20
"""Bytes of an object that goes over the control connection."""


def _tried(context: click.Context, parameter: click.Parameter, path: Path) -> Path | None:
    return path if str(path) == backup.STDIO else try_file(context, parameter, path)


class _ArchiveExport(ObjectSelection, AnyArchive, JsonArguments):
    file: Path = argument(type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), callback=_tried)
    payloads: bool = option("With payloads, or metadata alone.", "--payloads/--no-payloads", default=True)

    def conditions(self) -> dict[str, Any]:
        """Conditions of a query, as far as they are given."""
        given = {name: getattr(self, name) for name in ("version", "predicate", "since", "until")}
        given["at"] = (self.at,) if self.at else ()
        return {**{k: v for k, v in given.items() if v}, "namespaces": namespaces_of(self.namespaces)}


@command(None, _ArchiveExport)
def export(given: _ArchiveExport) -> int:
    """Write archived objects to a file: JSON lines (.jsonl; - for stdout) or Parquet (.parquet). `jbi study import`
    reads both, and `jbi archive import` restores the objects. Exit code 1 if an archive did not answer, objects
    have no valid signature, or payloads are left out because they are too large.

    \b
    jbi archive export all.parquet
    jbi archive export kabul.jsonl --type Intel_Imagery --predicate "//Area='Kabul'" --since 30d
    jbi archive export - --no-payloads --since 1h     # to stdout
    jbi archive export alpha.jsonl --at 127.0.0.1:4161
    jbi archive export rescued.jsonl --folder /var/lib/jbi/archive
    jbi study import all.parquet --out data
    """
    if str(given.file) != backup.STDIO:
        backup.form_of(given.file)
    count, large, partial = _exported(given)
    for each in partial:
        tell_missing(each)
    large = large if given.payloads else 0
    if large:
        click.echo(backup.left_out(large), err=True)
    if str(given.file) != backup.STDIO:
        facts = {"objects": count, "file": str(given.file), "incomplete": list(partial), "without_payload": large}
        written = printable(f"{counted(count, 'object')} written to {given.file}")
        given.show(facts, written)
    return 1 if partial or large else 0


def _exported(given: _ArchiveExport) -> tuple[int, int, Sequence[str]]:
    """Counts of objects and of those without their payloads, and the archives that have not answered."""
    config, conditions = given.settings.load(), given.conditions()
    if (folder := given.resting()) is not None:
        if any(conditions.values()) or given.type_name:
            raise ConfigurationError("--folder exports all", hint="Conditions are for archives that answer queries")
        with opened(config, folder) as kept, backup.writing(given.file, payloads=given.payloads) as sink:
            sources = {source.uid: entries_of(source.entries) for source in kept.sources()}
            position = kept.status()["position"]
            return *_written(_objects(kept), sink, position, lambda uid: sources.get(uid, ())), ()
    with SubscriberAdapter(config) as adapter:
        with looking(config, "archives"):
            query = adapter.open_query(given.type_name or None, **conditions)
        with query, backup.writing(given.file, payloads=given.payloads) as sink, _describing(config) as described:
            count, large = _written(query, sink, _total(query), described)
        tell_left_out(query.left_out)
        return count, large, query.partial


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
    """Entries that archives know of a registration; () where none does, or says it."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(place.calls(config)) for place in found(config)]

        def described(uid: str) -> backup.Entries:
            for proxy in proxies:
                try:
                    known = proxy.describe([uid])
                except JbiError:
                    continue  # the query tells of it
                if known:
                    return known[0].entries
            return ()

        yield described


def _written(
    objects: Iterable[InfoObject], sink: backup.Sink, total: int, described: Callable[[str], backup.Entries]
) -> tuple[int, int]:
    """Number written, and number of those whose payloads are too large to be written."""
    count = large = 0
    told: set[str] = set()
    with telling("objects") as tell:
        for obj in objects:
            uid = obj.platform.registration
            sink(obj, () if uid in told else described(uid))
            told.add(uid)
            count += 1
            large += backup.is_too_large(obj)
            if count % 100 == 0:
                tell("objects", count, total)
    return count, large


def _objects(kept: Keeping) -> Iterator[InfoObject]:
    """All objects of an archive, in their order."""
    scopes = tuple(Scope(type_) for type_ in sorted({source.type for source in kept.sources()}))
    if scopes:
        answers = Archiving(kept, RecentBuffers(0.0, 0)).answers(HistoryQuery(scopes=scopes))
        yield from (Parcel.received(each.data).unpacked() for each in answers)


class _ArchiveImport(AnyArchive, JsonArguments):
    file: Path = argument(type=EXISTING_FILE)
    folder: Path | None = option(
        "Folder of an archive that no process has open; it is made if it is missing.", type=FOLDER
    )


@command(None, _ArchiveImport, "import")
def import_(given: _ArchiveImport) -> int:
    """Import the objects of a file of `jbi archive export`, or of another file with the columns of `jbi study`. They
    keep their ids, and each is imported once. Queries, replays and durable subscriptions to the past get them; other
    subscriptions do not. Objects that were deleted here stay deleted. Exit code 1 if something could not be read.

    \b
    jbi archive import all.parquet
    jbi archive import kabul.jsonl --at 127.0.0.1:4161
    jbi archive import rescued.jsonl --folder /var/lib/jbi/archive
    """
    reading = backup.ObjectFile(given.file, **({} if given.folder is not None else {"most": WIRE_BYTES}))
    taken = TakenIn()
    size = given.file.stat().st_size
    with _taking_in(given) as take_in, telling("bytes read") as tell:
        for batch in reading.batches():
            some = take_in(batch, reading.entries)
            taken = TakenIn(taken.kept + some.kept, taken.known + some.known, taken.deleted + some.deleted)
            tell("bytes read", reading.bytes_read, size)
    plain = {**msgspec.to_builtins(taken), "rejected": reading.rejects, "reasons": reading.reasons}
    given.show(plain, lambda: _tell_taken(taken, reading, given.file))
    return 1 if reading.rejects else 0


def _tell_taken(taken: TakenIn, reading: backup.ObjectFile, file: Path) -> None:
    aside = ((taken.known, "here already"), (taken.deleted, "deleted before"), (reading.rejects, "not imported"))
    told = "".join(f", {number:,} {what}" for number, what in aside if number)
    click.echo(f"{counted(taken.kept, 'object')} kept{told}")
    for reason in reading.reasons:
        click.echo(printable(f"jbi: {file}: {reason}"), err=True)


@contextmanager
def _taking_in(given: _ArchiveImport) -> Iterator[Callable[[Sequence[Parcel], Mapping[str, backup.Entries]], TakenIn]]:
    """Function that keeps objects: that of an archive that is in use, or one at rest."""
    config = given.settings.load()
    if (folder := given.resting()) is not None:
        with opened(config, folder, is_made=True) as kept:
            yield Archiving(kept, RecentBuffers(0.0, 0)).take_in
        return
    with given.place(config).calls(config) as proxy:

        def take_in(batch: Sequence[Parcel], entries: Mapping[str, backup.Entries]) -> TakenIn:
            uids = {parcel.head.registration for parcel in batch}
            of = [ArchivedSource(uid, entries[uid]) for uid in uids if uid in entries]
            return proxy.take_in([b"".join(map(bytes, parcel.parts)) for parcel in batch], of, CALL_SECONDS)

        yield take_in
