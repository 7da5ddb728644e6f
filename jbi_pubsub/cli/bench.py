"""`jbi bench`: measures on this machine what the documentation promises."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
import msgspec
from rich.progress import Progress

from jbi_pubsub.examples.overload import EXPERIMENTS

from . import matching as match_bench
from .examples import show_outcome
from .near import NearNames
from .settings import json_option, try_file
from .show import Column, console, show_json, show_table
from .show import as_json as json_text


@click.group(cls=NearNames)
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.argument("experiment", type=click.Choice(list(EXPERIMENTS)), default="cpu")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Of all modes, in turn.")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=15.0, show_default=True, help="Counted in each run.")
@json_option
def qos(experiment: str, rounds: int, seconds: float, as_json: bool) -> int:
    """Overload real processes, and see who gets what: shares and ratios beside the paper's.

    Exit code 1 when one of them is not as it is to be. The machine should do nothing else meanwhile.

    \b
    jbi bench qos cpu
    jbi bench qos cpu --rounds 1 --seconds 10 --json
    """
    began = time.monotonic()

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"{time.monotonic() - began:6.1f} s  {line}")

    outcome = EXPERIMENTS[experiment](tell, rounds=rounds, seconds=seconds)
    if as_json:
        show_json({"right": outcome.right, **msgspec.to_builtins(outcome)})
    else:
        show_outcome(outcome, time.monotonic() - began)
    return 0 if outcome.right else 1


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
