"""`jbi query`: what archives have, on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
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
    combined_option,
    existing_file,
    facts_of,
    namespaces_of,
    show_objects,
    unfiltered_option,
    write_object,
)
from .settings import Settings, json_option, looking, pass_settings, try_folder
from .show import Column, Table, counted, lasted, printable, show_facts, show_json, show_tables
from .show import as_json as json_text

_GIVEN: Final = ("since", "until", "timeout", "template", "schema", "publisher", "at", "unfiltered")
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


@click.command()
@click.option("--type", "type_name", default="", help="Information object type; the last part of its name will do.")
@click.option("--version", default="", help="Version of the type; default: every one.")
@click.option("--template", type=existing_file, help="Metadata document; its invariant values must be equal.")
@click.option("--schema", type=existing_file, help="XML Schema of the template.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@combined_option
@click.option("--filter", "payload_filter", default="", help="XPath over an XML payload.")
@unfiltered_option
@click.option(
    "--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in the XPaths; repeatable."
)
@click.option("--since", metavar="TIME", help="Published then or later: 2h (ago), 2026-11-01T00:00Z.")
@click.option("--until", metavar="TIME", help="Published then or earlier.")
@click.option("--publisher", metavar="NAME", help="Published by who goes by that name.")
@click.option("--at", metavar="HOST:PORT", multiple=True, help="The archive of that delegate alone. Repeatable.")
@click.option("--latest-by", metavar="XPATH", default="", help="The newest object alone of each key.")
@click.option("--newest", is_flag=True, help="The newest first.")
@click.option("--limit", type=click.IntRange(1), help=f"Results at most; default {SHOWN}.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds that it may take.")
@click.option("--count", is_flag=True, help="Say how many there are, and fetch none.")
@click.option("--explain", is_flag=True, help="Say how it would be answered, and do not.")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), callback=try_folder, metavar="DIR",
    help="Write metadata and payloads here.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with what is published, without a gap.")
@json_option
@pass_settings
def query(
    settings: Settings,
    /,
    limit: int | None,
    count: bool,
    explain: bool,
    save: Path | None,
    follow: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Show what archives have of an information object type: the same predicates as of subscriptions, and the same
    answers. Exit code 1 if an archive did not answer.

    \b
    jbi query --type Intel_Imagery --since 2h
    jbi query --type Intel_Imagery --predicate "//lat > 33" --newest --limit 5
    jbi query --type Intel_Imagery --predicate "//lat > 33" --count
    jbi query --type Intel_Imagery --predicate "//lat > 33" --explain
    jbi query --type BFTrack --latest-by /metadata/force/ID --save positions
    jbi query --type Intel_Imagery --since 2026-11-01T00:00Z --follow --json
    """
    _check(count=count, explain=explain, save=save, follow=follow, given=given)
    conditions = _conditions(given)
    config = settings.load()
    type_name = given["type_name"] or None
    with SubscriberAdapter(config) as adapter:
        if explain:
            with looking(config, "archives"):
                explained = adapter.explain_query(type_name, **conditions)
            _show_explanations(explained, as_json=as_json)
            _tell_missing(explained.partial)
        elif count:
            with looking(config, "archives"):
                number = adapter.count(type_name, **conditions, limit=limit)
            click.echo(json_text({"count": int(number)}) if as_json else str(int(number)))
            _tell_missing(number.partial)
        elif follow:
            _follow(adapter, given, save, limit, as_json=as_json)
        else:
            with looking(config, "archives"):
                opened = adapter.open_query(type_name, **conditions, limit=limit or SHOWN)
            with opened:
                _show(opened, save, limit, as_json=as_json)


def _check(*, count: bool, explain: bool, save: Path | None, follow: bool, given: dict[str, Any]) -> None:
    """Raises ConfigurationError for options that don't go together."""
    chosen = [name for name, on in (("--count", count), ("--explain", explain), ("--follow", follow)) if on]
    if len(chosen) > 1:
        raise ConfigurationError(f"{chosen[0]} does not go with {chosen[1]}")
    if save is not None and (count or explain):
        raise ConfigurationError(f"--save does not go with {chosen[0]}", hint="That fetches no objects")
    if follow:
        for option in ("until", "newest", "latest_by", "timeout", "publisher", "at"):
            if given[option]:
                raise ConfigurationError(
                    f"--{option.replace('_', '-')} does not go with --follow", hint="That goes on to what is published"
                )


def _conditions(given: dict[str, Any]) -> dict[str, Any]:
    named = {name: given[name] for name in _GIVEN if given[name]}
    texts = {name: given[name] for name in ("version", "predicate", "payload_filter", "latest_by") if given[name]}
    order = {"order": "newest"} if given["newest"] else {}
    view = {"view": "combined"} if given["combined"] else {}
    return {**named, **texts, **order, **view, "namespaces": namespaces_of(given["namespaces"])}


def _follow(
    adapter: SubscriberAdapter, given: dict[str, Any], save: Path | None, limit: int | None, *, as_json: bool
) -> None:
    """The same conditions as a subscription that begins in the past."""
    uid = adapter.register_subscriber(
        given["template"],
        schema=given["schema"],
        type_name=given["type_name"],
        version=given["version"],
        predicate=given["predicate"],
        view="combined" if given["combined"] else "metadata",
        payload_filter=given["payload_filter"],
        unfiltered=given["unfiltered"],
        namespaces=namespaces_of(given["namespaces"]),
        start=given["since"] or "all",
    )
    show_objects(adapter, uid, count=limit, timeout=None, out=save, as_json=as_json)


def _show(opened: Query, save: Path | None, limit: int | None, *, as_json: bool) -> None:
    """Results as they come; in a terminal as a table at the end."""
    seen = 0

    def saved() -> Iterator[InfoObject]:
        nonlocal seen
        for obj in opened:
            seen += 1
            if save is not None:
                write_object(save, obj)
            yield obj

    if as_json:
        for obj in saved():
            click.echo(json_text(facts_of(obj)))
    elif sys.stdout.isatty():
        rows = list(map(_row, saved()))
        show_tables([Table(_RESULTS, rows, counted(len(rows), "object"))], more="a wider terminal, --json")
    else:
        _stream(map(_row, saved()))
    if limit is None and seen == SHOWN:
        click.echo(f"jbi: these are the first {SHOWN}; --limit says how many", err=True)
    if save is not None:
        click.echo(f"jbi: {counted(seen, 'object')} written to {printable(save)}", err=True)
    tell_left_out(opened.left_out)
    _tell_missing(opened.partial)


def tell_left_out(left_out: Sequence[str]) -> None:
    """What access rules keep back: type and version as they were asked for."""
    for named in left_out:
        what = "what there is" if named == "* *" else named
        click.echo(f"jbi: of {printable(what)} something is left out: you may not read all of it", err=True)


def _tell_missing(archives: Sequence[str]) -> None:
    """What is shown is without these: that is an exit code of its own."""
    for archive in archives:
        click.echo(f"jbi: not complete: the archive at {printable(archive)}", err=True)
    if archives:
        raise click.exceptions.Exit(1)


def _stream(rows: Iterable[Sequence[object]]) -> None:
    click.echo("\t".join(column.head for column in _RESULTS))
    for row in rows:
        click.echo("\t".join(map(printable, row)))


def _row(obj: InfoObject) -> tuple[object, ...]:
    at = datetime.fromtimestamp(obj.platform.published, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        at.replace("+00:00", "Z"), obj.type.name, obj.platform.position, len(obj.metadata), obj.payload_size,
        obj.object_id,
    )  # fmt: skip


def _show_explanations(explained: dict[str, Explanation], *, as_json: bool) -> None:
    if as_json:
        show_json({address: msgspec.to_builtins(one) for address, one in explained.items()})
        return
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
