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

from jbi_pubsub.examples import domains as domains_bench
from jbi_pubsub.examples.example import ExampleOutcome
from jbi_pubsub.examples.narrow import LIMIT, run_link
from jbi_pubsub.examples.overload import run_cpu
from jbi_pubsub.examples.targeting import FAST_SECONDS, run_demo

from . import charts
from . import matching as match_bench
from .examples import show_outcome
from .near import NearNames
from .options import FILE, FOLDER, JsonArguments, argument, command, flag, option
from .servers import raise_file_limit
from .settings import try_file
from .show import Column, console, show_table
from .show import as_json as json_text

EXPERIMENTS: Final[dict[str, Callable[..., ExampleOutcome]]] = {"cpu": run_cpu, "link": run_link, "demo": run_demo}
"""Each takes `tell`, `rounds` and `seconds`."""
FAST: Final[dict[str, dict[str, Any]]] = {
    "cpu": {"rounds": 1},
    "link": {"rounds": 1, "seconds": 8.0, "limits": (LIMIT,)},
    "demo": {"seconds": FAST_SECONDS},
}


@click.group(cls=NearNames)
def bench() -> None:
    """Measure on this machine.

    \b
    jbi bench match
    jbi bench qos cpu --rounds 1 --seconds 10
    jbi bench domains bytes --quick
    """


class _Plotted(JsonArguments):
    experiment: str
    folder: Path | None = option(
        "Write plots here: index.html, SVG, and data.json.",
        "--plot",
        type=FOLDER,
        callback=charts.ready,
        metavar="FOLDER",
    )

    def teller(self, began: float) -> Callable[[str], None]:
        """Says how far it is, and when; nothing to programs."""

        def tell(line: str) -> None:
            if not self.as_json:
                click.echo(f"{time.monotonic() - began:6.1f} s  {line}")

        return tell


class _Qos(_Plotted, first=True):
    experiment: str = argument(type=click.Choice([*EXPERIMENTS, "all"]), default="all")
    rounds: int | None = option("Rounds of all modes, in turn.  [default: 3]", type=click.IntRange(1, 100))
    seconds: float | None = option(
        "Measured seconds of each run.  [default: by experiment]", type=click.FloatRange(1, 3600)
    )
    fast: bool = flag("One short round of each; the demonstration in one minute.")


@command(bench, _Qos)
def qos(given: _Qos) -> int:
    """Overload real processes, and compare the shares with the paper's.

    cpu: too much evaluation. link: too much for a link. demo: the paper's demonstration, with changes of policies,
    compared with its simulation. Exit code 1 if a result is out of range. The machine should have no other load.

    \b
    jbi bench qos cpu --rounds 1 --seconds 10 --json
    jbi bench qos demo --fast
    jbi bench qos --plot plots
    """
    began = time.monotonic()
    tell = given.teller(began)
    names = [*EXPERIMENTS] if given.experiment == "all" else [given.experiment]
    outcomes = []
    for name in names:
        options: dict[str, Any] = dict(FAST[name]) if given.fast else {"rounds": 3}
        options |= {} if given.rounds is None else {"rounds": given.rounds}
        options |= {} if given.seconds is None else {"seconds": given.seconds}
        tell(f"{name} ...")
        outcomes.append(EXPERIMENTS[name](tell, **options))
    told: list[tuple[Any, ...]] = [(each.tables, each.promises, each.plots) for each in outcomes]
    outcome = ExampleOutcome(*(tuple(chain.from_iterable(parts)) for parts in zip(*told, strict=True)))
    lead = "Deliveries by importance under overload, measured with processes on this machine."
    return _end(given, outcome, began, "Quality of service", lead)


class _Domains(_Plotted, first=True):
    experiment: str = argument(type=click.Choice([*domains_bench.EXPERIMENTS, "all"]), default="all")
    quick: bool = flag("A short run of some seconds.")


@command(bench, _Domains)
def domains(given: _Domains) -> int:
    """Measure two domains, with single clients and with a bridge that brings wanted objects only, and traders.

    bytes: over the link, by what clients have in common. latency: of 1 to 64 clients, on one host and with 40 ms each
    way. polling: events compared with a request each second. matching: an aggregate compared with its members. offers:
    a query by the number of offers. traders: a query over several traders. All take eight minutes. Exit code 1 if a
    result is out of range. The machine should have no other load.

    \b
    jbi bench domains bytes --quick
    jbi bench domains latency --json
    jbi bench domains --plot plots
    """
    raise_file_limit()
    began = time.monotonic()
    names = [*domains_bench.EXPERIMENTS] if given.experiment == "all" else [given.experiment]
    outcome = domains_bench.run(given.teller(began), names, quick=given.quick)
    lead = "Bytes over the link between two domains, latencies, and queries: measured over processes of this machine."
    return _end(given, outcome, began, "Domains", lead)


def _end(given: _Plotted, outcome: ExampleOutcome, began: float, title: str, lead: str) -> int:
    if given.folder is not None:
        told = f"{click.get_current_context().command_path} {given.experiment}"
        footer = f"{told}, {platform.machine()}, {os.cpu_count()} processors"
        written = charts.write_folder(given.folder, title, lead, outcome, footer)
        given.teller(began)(f"{len(written)} files in {given.folder}")
    plain = {"right": outcome.right, **msgspec.to_builtins(outcome)}
    given.show(plain, lambda: show_outcome(outcome, time.monotonic() - began))
    return 0 if outcome.right else 1


class _BenchMatch(JsonArguments):
    large: bool = flag("Also a million predicates: a few minutes and 1 GB.")
    out: Path | None = option("Write the rows as JSON here.", type=FILE, callback=try_file)


@command(bench, _BenchMatch)
def match(given: _BenchMatch) -> None:
    """Match documents with 1,000, 10,000 and 100,000 predicates.

    \b
    jbi bench match
    jbi bench match --large --out match.json
    """
    sizes = (1_000, 10_000, 100_000, *((1_000_000,) if given.large else ()))
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("measuring", total=None)
        rows = match_bench.run(sizes, lambda what: progress.update(task, description=what))
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1), "utf-8")
    if given.as_json:
        click.echo(json_text(rows))
    else:
        columns = [
            Column(name, long=isinstance(value, str), right=not isinstance(value, str))
            for name, value in rows[0].items()
        ]
        show_table(columns, (list(row.values()) for row in rows), title="content matching, us per document")
