"""`jbi bridge`: what is published on one platform is published on another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .near import NearNames
from .options import FILE, JsonArguments, argument, command, option
from .servers import stop_on_signal, tell_ready, wait_for
from .show import Column, show_table

if TYPE_CHECKING:
    from jbi_pubsub.bridge.file import ExplanationTable

_LONG: Final = frozenset(("types", "only where", "what is done", "meaning"))
"""Columns that are cut when there is no room."""


class BridgeCommands(NearNames):
    """Commands; what is none of them is the bridge's file."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command; `run` for a file."""
        if args[0] not in self.commands and ("." in args[0] or "/" in args[0] or Path(args[0]).exists()):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=BridgeCommands, subcommand_metavar="FILE | check FILE")
def bridge() -> None:
    """Mirror the objects of two platforms.

    \b
    jbi bridge bridge.toml              # until Ctrl-C
    jbi bridge check bridge.toml        # what it does
    jbi bridge check bridge.toml --type mil.example.Track
    """


class _BridgeRun(JsonArguments):
    file: Path = argument(type=FILE)


@command(bridge, _BridgeRun, hidden=True)
def run(given: _BridgeRun) -> None:
    """Run the bridge of a file until SIGTERM or Ctrl-C.

    Who is not there yet is waited for; what can't be done now is told once in the log and tried again.

    \b
    jbi bridge bridge.toml
    jbi --config jbi.toml bridge bridge.toml --json
    """
    from jbi_pubsub.bridge.file import described  # here: `jbi --help` starts faster without

    found = described(given.file)
    stop = stop_on_signal()
    mirror = found.opened(given.settings.load())
    try:
        mirror.start()
        sides = " and ".join(found.sides)
        tell_ready(given.as_json, {"ready": "bridge", "sides": list(found.sides)}, f"bridge of {sides}")
        wait_for(stop)
        status = mirror.status()
    finally:
        mirror.close()
    lines = []
    for way in status["directions"]:
        counts = [f"{way[key]} {key}" for key in ("relayed", "filtered", "lost") if way[key] or key == "relayed"]
        lines.append(f"{way['from']} to {way['to']}: {', '.join(counts)}")
    given.show({"ended": "bridge", **status}, "\n".join(lines))


class _BridgeCheck(_BridgeRun):
    type_name: str | None = option("Show what happens to that type.", "--type", metavar="NAME")


@command(bridge, _BridgeCheck, short_help="Check the file of a bridge, and show what it does.")
def check(given: _BridgeCheck) -> None:
    """Check the file of a bridge, and show what it does, without a connection.

    \b
    jbi bridge check bridge.toml
    jbi bridge check bridge.toml --type mil.example.Track
    """
    from jbi_pubsub.bridge.file import described  # as above

    found = described(given.file)
    found.check(given.settings.load())
    explained = found.explained(given.type_name)
    given.show(explained.plain, lambda: _show(explained.tables))


def _show(tables: Sequence[ExplanationTable]) -> None:
    for number, table in enumerate(tables):
        if table.title:
            click.echo(f"{'' if not number else chr(10)}{table.title}")
        show_table([Column(name, long=name in _LONG) for name in table.columns], table.rows)
