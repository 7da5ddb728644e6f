"""What all commands share: the effective configuration, and how results are shown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jbi_pubsub.core.config import Config, Origins, default_file, entries, load

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


class Settings:
    """Loads the configuration once; commands may add flags of their own."""

    def __init__(self, file: str | None, flags: Mapping[str, object]) -> None:
        self._file = file
        self._flags = dict(flags)

    def load(self, **own: object) -> Config:
        """The configuration with `own` flags (section__key=value, None for not given) on top."""
        return self.explain(**own)[0]

    def explain(self, **own: object) -> tuple[Config, Origins]:
        """The same with the origin of each value."""
        flags = self._flags | {k.replace("__", "."): v for k, v in own.items() if v is not None}
        file = Path(self._file) if self._file else default_file(os.environ, Path.cwd(), Path.home())
        return load(file=file, environment=os.environ, flags=flags)


pass_settings = click.make_pass_decorator(Settings)


def console() -> Console:
    """Colours and tables in a terminal, plain text when piped."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table in a terminal, tab-separated lines when piped."""
    if sys.stdout.isatty():
        console().print(table(columns, rows, title=title))
        return
    click.echo("\t".join(columns))
    for row in rows:
        click.echo("\t".join(printable(cell) for cell in row))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A rich table of plain values."""
    made = Table(title=title or None, title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def printable(value: object) -> str:
    """Text from a peer without what a terminal would obey: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """As JSON (RFC 8259), in which people read their own letters and a terminal obeys nothing: what is not printable
    (control, bidirectional and zero-width characters) is escaped, as every reader of JSON takes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]


def show_json(value: Any) -> None:
    """One JSON document."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


@click.command()
@json_option
@pass_settings
def config(settings: Settings, as_json: bool) -> None:
    """Show the effective settings and where each comes from.

    \b
    jbi config
    JBI_LEASE_SUBSCRIBER=5 jbi --set queue.bound=100 config --json
    """
    effective, origins = settings.explain()
    rows = [(key, value, origins.get(key, "default")) for key, value in entries(effective)]
    if as_json:
        show_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        show_rows(("setting", "value", "from"), rows)
