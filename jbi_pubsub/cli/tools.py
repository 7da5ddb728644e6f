"""`jbi completion`: a tool that needs no server."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


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
