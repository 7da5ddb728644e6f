"""`jbi bridge`: what is published on one platform is published on another."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .near import NearNames
from .servers import stop_on_signal, wait_for
from .settings import Settings, json_option, pass_settings
from .show import Column, show_json, show_table

if TYPE_CHECKING:
    from jbi_pubsub.bridge.file import Way


class BridgeCommands(NearNames):
    """What is no command is the bridge's file."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command; `run` for a file."""
        if args[0] not in self.commands and ("." in args[0] or "/" in args[0] or Path(args[0]).exists()):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=BridgeCommands, subcommand_metavar="FILE | check FILE")
def bridge() -> None:
    """Publish on each of two platforms what is published on the other.

    \b
    jbi bridge bridge.toml              # until Ctrl-C
    jbi bridge check bridge.toml        # what it would do
    jbi bridge check bridge.toml --type mil.example.Track
    """


@bridge.command(hidden=True)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@pass_settings
def run(settings: Settings, file: Path, as_json: bool) -> None:
    """Run the bridge of a file until SIGTERM or Ctrl-C.

    Who is not there yet is waited for; what can't be done now is told once in the log and tried again.

    \b
    jbi bridge bridge.toml
    jbi --config jbi.toml bridge bridge.toml --json
    """
    from jbi_pubsub.bridge.file import opened, read  # here: `jbi --help` starts faster without

    read_file = read(file)
    stop = stop_on_signal()
    mirror = opened(file, read_file, settings.load())
    try:
        mirror.start()
        sides = " and ".join(read_file.side)
        click.echo(json.dumps({"ready": "bridge", "sides": list(read_file.side)}) if as_json else f"bridge of {sides}")
        sys.stdout.flush()
        wait_for(stop)
        status = mirror.status()
    finally:
        mirror.close()
    if as_json:
        show_json({"ended": "bridge", **status})
        return
    for way in status["directions"]:
        counts = [f"{way[key]} {key}" for key in ("relayed", "filtered", "lost") if way[key] or key == "relayed"]
        click.echo(f"{way['from']} to {way['to']}: {', '.join(counts)}")


@bridge.command(short_help="Check the file of a bridge, and show what it does.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--type", "type_name", metavar="NAME", help="Say what becomes of that type.")
@json_option
@pass_settings
def check(settings: Settings, file: Path, type_name: str | None, as_json: bool) -> None:
    """Check the file of a bridge, and show what it does; nobody is connected to.

    \b
    jbi bridge check bridge.toml
    jbi bridge check bridge.toml --type mil.example.Track
    """
    from jbi_pubsub.bridge.file import check_sides, read  # as above

    read_file = read(file)
    check_sides(file, read_file, settings.load())
    rows = [row for way in read_file.ways for row in _rows(file, way, type_name)]
    if as_json:
        names = ("from", "to", "types", "where", "name")
        show_json({"name": read_file.name, "directions": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    columns = ("from", "to", "types", "only where", "called there")
    show_table([Column(name, long=name in ("types", "only where")) for name in columns], rows)


def _rows(file: Path, way: Way, type_name: str | None) -> list[tuple[str, ...]]:
    """What a direction does, with a type or with all."""
    from jbi_pubsub.bridge.file import transformation_of  # as above
    from jbi_pubsub.core.info_object import TypeName

    ends = way.source, way.target
    if type_name is not None:
        transformation = transformation_of(file, way)
        type_ = TypeName(type_name)
        if not transformation.wants(type_):
            return [(*ends, "does not go", "", "")]
        rule = transformation.rule_of(type_name)
        return [(*ends, type_name, rule.where if rule else "", transformation.named(type_).name)]
    rows = [(*ends, " ".join(rule.types), rule.where, rule.name) for rule in way.rule]
    without = f", without {' '.join(way.without)}" if way.without else ""
    return [*rows, (*ends, f"{' '.join(way.types)}{without}", "", "")]
