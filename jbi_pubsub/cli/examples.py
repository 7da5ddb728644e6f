"""`jbi demo NAME`: one example, what happened as tables, and whether what it promises came true."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import msgspec

from jbi_pubsub.examples.example import EXAMPLES, WRITES, ExampleOptions, ExampleOutcome, find, left_out

from .near import told
from .options import JsonArguments
from .show import Column, show_table, terminal_width, wrapped


def list_examples(given: JsonArguments) -> int:
    """The names, and what each shows."""
    columns = [Column("name"), Column("shows", long=True)]
    given.show(EXAMPLES, lambda: show_table(columns, list(EXAMPLES.items())))
    return 0


def play_example(name: str, given: JsonArguments, *, quick: bool, output: Path | None) -> int:
    """Play one to its end; the exit code. Raises UsageError for a name that is none."""
    if name not in EXAMPLES:
        raise click.UsageError(told("example", name, EXAMPLES))
    if output is not None and name not in WRITES:
        raise click.UsageError(f"{name} writes no file for --output; {', '.join(sorted(WRITES))} does")
    began = time.monotonic()

    def tell(line: str) -> None:
        if not given.as_json:
            click.echo(f"{time.monotonic() - began:5.1f} s  {line}")

    outcome = find(name)(ExampleOptions(tell, quick=quick, output=output))
    seconds = time.monotonic() - began
    without = left_out(name)
    plain = {"right": outcome.right, "seconds": round(seconds, 1), "without": without, **msgspec.to_builtins(outcome)}
    given.show(plain, lambda: show_outcome(outcome, seconds))
    if without and not given.as_json:
        click.echo(f"left out: {without}")
    return 0 if outcome.right else 1


def show_outcome(outcome: ExampleOutcome, seconds: float) -> None:
    """For people: the tables, then what was promised."""
    width = terminal_width() if sys.stdout.isatty() else sys.maxsize
    for table in outcome.tables:
        columns = [
            Column(head, long=isinstance(cell, str) and not _is_number(cell), right=_is_number(cell))
            for head, cell in zip(table.columns, table.rows[0] if table.rows else table.columns, strict=True)
        ]
        click.echo()
        if table.title:
            click.echo("\n".join(wrapped(table.title, width)))
        show_table(columns, table.rows)
    click.echo()
    for promise in outcome.promises:
        lines = wrapped(promise.says, max(1, width - len("WRONG  ")))
        click.echo(f"{'ok   ' if promise.kept else 'WRONG'}  " + ("\n" + " " * len("WRONG  ")).join(lines))
    kept = sum(promise.kept for promise in outcome.promises)
    click.echo(f"{kept} of {len(outcome.promises)} promises came true, {seconds:.1f} s")


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or str(cell).replace(",", "").replace(".", "", 1).isdigit()
