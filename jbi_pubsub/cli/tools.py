"""`jbi completion`, `jbi config`: tools that need no server."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from jbi_pubsub.core.config import entries

from .options import JsonArguments, command
from .show import Column, show_table


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    source <(jbi completion bash)
    """
    from .app import jbi

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(jbi, {}, "jbi", "_JBI_COMPLETE").source())


@command(None, JsonArguments)
def config(given: JsonArguments) -> None:
    """Show the effective settings and their origins.

    \b
    jbi config
    JBI_LEASE_SUBSCRIBER=5 jbi --set queue.bound=100 config --json
    """
    effective, origins = given.settings.explain()
    rows = [(key, value, origins.get(key, "default")) for key, value in entries(effective)]
    columns = (Column("setting"), Column("value", long=True), Column("from", long=True))
    plain = {key: {"value": value, "origin": origin} for key, value, origin in rows}
    as_toml = [(key, json.dumps(value, ensure_ascii=False), origin) for key, value, origin in rows]
    given.show(plain, lambda: show_table(columns, as_toml))
