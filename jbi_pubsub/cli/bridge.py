"""`jbi bridge`: what is published on one platform is published on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from .near import NearNames
from .servers import stop_on_signal, tell_ready, wait_for
from .settings import Settings, json_option, pass_settings
from .show import Column, show_json, show_table

_LONG: Final = frozenset(("types", "only where", "what is done", "meaning"))
"""Columns that are cut when there is no room."""


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
    from jbi_pubsub.bridge.file import described  # here: `jbi --help` starts faster without

    found = described(file)
    stop = stop_on_signal()
    mirror = found.opened(settings.load())
    try:
        mirror.start()
        sides = " and ".join(found.sides)
        tell_ready(as_json, {"ready": "bridge", "sides": list(found.sides)}, f"bridge of {sides}")
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
    from jbi_pubsub.bridge.file import described  # as above

    found = described(file)
    found.check(settings.load())
    explained = found.explained(type_name)
    if as_json:
        show_json(explained.plain)
        return
    for number, table in enumerate(explained.tables):
        if table.title:
            click.echo(f"{'' if not number else chr(10)}{table.title}")
        show_table([Column(name, long=name in _LONG) for name in table.columns], table.rows)
