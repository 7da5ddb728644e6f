"""`jbi query`: what archives have, on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.history import Explanation
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.subscriber import Query, SubscriberAdapter

from .clients import (
    SINCE,
    TEMPLATE,
    TYPE_NAME,
    UNTIL,
    VERSION,
    Predicates,
    namespaces_of,
    show_object,
    show_objects,
    write_object,
)
from .options import FOLDER, SCHEMA, Arguments, JsonArguments, command, flag, option, repeated
from .settings import looking, try_folder
from .show import Column, Table, counted, lasted, printable, show_facts, show_table, show_tables

_GIVEN: Final = (
    "since", "until", "timeout", "template", "schema", "publisher", "at", "unfiltered", "version", "predicate",
    "language", "payload_filter", "latest_by",
)  # fmt: skip
"""Conditions that are passed on as they are."""
SHOWN: Final = 100
"""Results without --limit."""

_RESULTS = (
    Column("published"), Column("type", long=True, name=True, dotted=True), Column("position", right=True, spare=2),
    Column("metadata", right=True, spare=3), Column("payload", right=True, spare=1), Column("object"),
)  # fmt: skip
_STEPS = (
    Column("type", long=True, name=True, dotted=True), Column("rows", right=True),
    Column("by the index", long=True), Column("by lxml", long=True),
)  # fmt: skip


class _QueryType(Arguments):
    type_name: str = TYPE_NAME
    version: str = VERSION
    template: Path | None = TEMPLATE
    schema: Path | None = SCHEMA


class _Query(Predicates, _QueryType, JsonArguments):
    since: str | None = SINCE
    until: str | None = UNTIL
    publisher: str | None = option("Name of the publisher.", metavar="NAME")
    at: tuple[str, ...] = repeated("Archive of that delegate only; repeatable.", metavar="HOST:PORT")
    latest_by: str = option("Only the newest object of each key.", metavar="XPATH", default="")
    newest: bool = flag("The newest first.")
    limit: int | None = option(f"Maximum number of results; default {SHOWN}.", type=click.IntRange(1))
    timeout: float | None = option("Seconds to wait for the answer.", type=click.FloatRange(0, min_open=True))
    count_only: bool = flag("Print the number of results only.")
    explain: bool = flag("Explain the execution, without executing.")
    out: Path | None = option("Folder for metadata and payloads.", type=FOLDER, callback=try_folder)
    follow: bool = flag("Continue with new objects, without a gap.")

    def check(self) -> None:
        """Raises ConfigurationError for options that don't go together."""
        chosen = [f"--{name.replace('_', '-')}" for name in ("count_only", "explain", "follow") if getattr(self, name)]
        if len(chosen) > 1:
            raise ConfigurationError(f"{chosen[0]} does not go with {chosen[1]}")
        if self.out is not None and (self.count_only or self.explain):
            raise ConfigurationError(f"--out does not go with {chosen[0]}", hint="That fetches no objects")
        for name in ("until", "newest", "latest_by", "timeout", "publisher", "at"):
            if self.follow and getattr(self, name):
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} does not go with --follow", hint="That goes on to what is published"
                )

    def conditions(self) -> dict[str, Any]:
        """Conditions, as far as they are given."""
        named = {name: getattr(self, name) for name in _GIVEN if getattr(self, name)}
        order = {"order": "newest"} if self.newest else {}
        return {**named, **order, "view": self.view, "namespaces": namespaces_of(self.namespaces)}


@command(None, _Query)
def query(given: _Query) -> None:
    """Show archived objects of a type, by the predicates of subscriptions and with the same results. Exit code 1 if an
    archive did not answer, or objects have no valid signature.

    \b
    jbi query --type Intel_Imagery --since 2h
    jbi query --type Intel_Imagery --predicate "//lat > 33" --newest --limit 5
    jbi query --type Intel_Imagery --predicate "//lat > 33" --count-only
    jbi query --type Intel_Imagery --predicate "//lat > 33" --explain
    jbi query --type BFTrack --latest-by /metadata/force/ID --out positions
    jbi query --type Intel_Imagery --since 2026-11-01T00:00Z --follow --json
    """
    given.check()
    conditions, type_name = given.conditions(), given.type_name or None
    config = given.settings.load_within(given.timeout)
    with SubscriberAdapter(config) as adapter:
        if given.follow:
            _follow(adapter, given)
            return
        with looking(config, "archives"):
            if given.explain:
                explained = adapter.explain_query(type_name, **conditions)
            elif given.count_only:
                number = adapter.count(type_name, **conditions, limit=given.limit)
            else:
                opened = adapter.open_query(type_name, **conditions, limit=given.limit or SHOWN)
        if given.explain:
            plain = {address: msgspec.to_builtins(one) for address, one in explained.items()}
            given.show(plain, lambda: _show_explanations(explained))
            _tell_partial(explained.partial)
        elif given.count_only:
            given.tell({"count": int(number)}, str(int(number)))
            _tell_partial(number.partial)
        else:
            with opened:
                _show(opened, given)


def _follow(adapter: SubscriberAdapter, given: _Query) -> None:
    """The same conditions as a subscription that begins in the past."""
    uid = adapter.register_subscriber(
        given.template,
        schema=given.schema,
        type_name=given.type_name,
        version=given.version,
        start=given.since or "all",
        **given.terms(),
    )
    show_objects(adapter, uid, count=given.limit, timeout=None, out=given.out, as_json=given.as_json)


def _show(opened: Query, given: _Query) -> None:
    """Results as they come; in a terminal as a table at the end."""
    seen, save = 0, given.out

    def saved() -> Iterator[InfoObject]:
        nonlocal seen
        for obj in opened:
            seen += 1
            if save is not None:
                write_object(save, obj)
            yield obj

    if given.as_json:
        for obj in saved():
            show_object(obj, as_json=True)
    elif sys.stdout.isatty():
        rows = list(map(_row, saved()))
        show_tables([Table(_RESULTS, rows, counted(len(rows), "object"))], more="a wider terminal, --json")
    else:
        show_table(_RESULTS, map(_row, saved()))
    for line in () if seen else opened.impossible():
        click.echo(f"jbi: {printable(line)}", err=True)
    if given.limit is None and seen == SHOWN:
        click.echo(f"jbi: these are the first {SHOWN}; --limit says how many", err=True)
    if save is not None:
        click.echo(f"jbi: {counted(seen, 'object')} written to {printable(save)}", err=True)
    tell_left_out(opened.left_out)
    _tell_partial(opened.partial)


def tell_left_out(left_out: Sequence[str]) -> None:
    """Tell what access rules keep back: type and version as they were asked for."""
    for named in left_out:
        what = "the archives" if named == "* *" else named
        click.echo(f"jbi: {printable(what)}: some objects are left out, which you may not read", err=True)


def tell_missing(archive: str) -> None:
    """An archive that has not answered."""
    click.echo(f"jbi: not complete: the archive at {printable(archive)}", err=True)


def _tell_partial(archives: Sequence[str]) -> None:
    """Tell that these archives are missing in what is shown: that is an exit code of its own."""
    for archive in archives:
        tell_missing(archive)
    if archives:
        raise click.exceptions.Exit(1)


def _row(obj: InfoObject) -> tuple[object, ...]:
    at = datetime.fromtimestamp(obj.platform.published, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        at.replace("+00:00", "Z"), obj.type.name, obj.platform.position, len(obj.metadata), obj.payload_size,
        obj.object_id,
    )  # fmt: skip


def _show_explanations(explained: dict[str, Explanation]) -> None:
    for number, (address, one) in enumerate(explained.items()):
        if number:
            click.echo()
        show_facts(
            [
                ("archive", address),
                ("objects", f"{one.objects:,}"),
                ("not indexed yet", f"{one.not_indexed:,}"),
                ("decided by", "the index alone" if one.is_exact else "the index, then lxml"),
                ("about", f"{max(0.001, one.seconds):.2g} s" if one.seconds < 60 else lasted(one.seconds)),
            ],
            title="",
        )
        rows = [
            (step.type, f"{step.rows:,}", " and ".join(step.conditions) or "everything", "; ".join(step.left) or "-")
            for step in one.steps
        ]
        if rows:
            click.echo()
            show_tables([Table(_STEPS, rows)], more="a wider terminal, --json")
