"""`jbi bench`: measures on this machine what the documentation promises."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import msgspec
from rich.progress import Progress

from . import matching as match_bench
from .near import NearNames
from .settings import json_option, try_file
from .show import Column, console, show_table
from .show import as_json as json_text


@click.group(cls=NearNames)
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.option("--large", is_flag=True, help="Also a million predicates: a few minutes and 1 GB.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), callback=try_file, help="Write the rows as JSON here."
)
@json_option
def match(large: bool, out: Path | None, as_json: bool) -> None:
    """Match documents with 1,000, 10,000 and 100,000 predicates.

    \b
    jbi bench match
    jbi bench match --large --out match.json
    """
    sizes = (1_000, 10_000, 100_000, *((1_000_000,) if large else ()))
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("measuring", total=None)
        rows = match_bench.run(sizes, lambda what: progress.update(task, description=what))
    facts = json.loads(msgspec.json.encode(rows))
    if out is not None:
        out.write_text(json.dumps(facts, indent=1))
    if as_json:
        click.echo(json_text(facts))
    else:
        columns = [
            Column(name, long=isinstance(value, str), right=not isinstance(value, str))
            for name, value in facts[0].items()
        ]
        show_table(columns, (list(row.values()) for row in facts), title="content matching, us per document")
