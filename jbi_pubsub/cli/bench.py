"""`jbi bench`: measures on this machine what the documentation promises."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.progress import Progress

from jbi_pubsub.examples.example import Outcome
from jbi_pubsub.examples.narrow import LIMIT, run_link
from jbi_pubsub.examples.overload import run_cpu
from jbi_pubsub.examples.targeting import FAST_SECONDS, run_demo

from . import charts
from . import matching as match_bench
from .examples import show_outcome
from .near import NearNames
from .settings import json_option, try_file
from .show import Column, console, show_json, show_table
from .show import as_json as json_text

EXPERIMENTS: Final[dict[str, Callable[..., Outcome]]] = {"cpu": run_cpu, "link": run_link, "demo": run_demo}
"""Each takes `tell`, `rounds` and `seconds`."""
FAST: Final[dict[str, dict[str, Any]]] = {
    "cpu": {"rounds": 1},
    "link": {"rounds": 1, "seconds": 8.0, "limits": (LIMIT,)},
    "demo": {"seconds": FAST_SECONDS},
}


@click.group(cls=NearNames)
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.argument("experiment", type=click.Choice([*EXPERIMENTS, "all"]), default="all")
@click.option("--rounds", type=click.IntRange(1, 100), help="Of all modes, in turn.  [default: 3]")
@click.option("--seconds", type=click.FloatRange(1, 3600), help="Counted in each run.  [default: by experiment]")
@click.option("--fast", is_flag=True, help="One round of each, some seconds; the demonstration in one minute.")
@click.option(
    "--plot",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    callback=charts.ready,
    metavar="FOLDER",
    help="Write plots here: index.html, and SVG.",
)
@json_option
def qos(
    experiment: str, rounds: int | None, seconds: float | None, fast: bool, folder: Path | None, as_json: bool
) -> int:  # fmt: skip
    """Overload real processes, and see who gets what: shares and ratios beside the paper's.

    cpu: too much to judge. link: too much for a link. demo: the paper's demonstration, whose policies change while it
    runs, beside its simulation. Exit code 1 when something is not as it is to be. The machine should do nothing else
    meanwhile.

    \b
    jbi bench qos cpu --rounds 1 --seconds 10 --json
    jbi bench qos demo --fast
    jbi bench qos --plot plots
    """
    began = time.monotonic()

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"{time.monotonic() - began:6.1f} s  {line}")

    names = [*EXPERIMENTS] if experiment == "all" else [experiment]
    outcomes = []
    for name in names:
        options: dict[str, Any] = dict(FAST[name]) if fast else {"rounds": 3}
        options |= {} if rounds is None else {"rounds": rounds}
        options |= {} if seconds is None else {"seconds": seconds}
        tell(f"{name} ...")
        outcomes.append(EXPERIMENTS[name](tell, **options))
    told: list[tuple[Any, ...]] = [(each.tables, each.promises, each.plots) for each in outcomes]
    outcome = Outcome(*(tuple(chain.from_iterable(parts)) for parts in zip(*told, strict=True)))
    if folder is not None:
        lead = "Who gets what when there is not enough for all: measured over processes of this machine."
        footer = f"jbi bench qos {experiment}, {platform.machine()}, {os.cpu_count()} processors"
        written = charts.write_folder(folder, "Quality of service", lead, outcome, footer)
        tell(f"{len(written)} files in {folder}")
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
