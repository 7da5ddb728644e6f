"""`jbi demo`: shows the demo live, and whether everything arrived that had to."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import click
from rich.live import Live
from rich.text import Text

from jbi_pubsub.examples.demo import GROUP, Demo, SubscriberRow, play, publish, pump

from .examples import list_examples, play_example
from .options import FILE, JsonArguments, argument, command, flag, option
from .show import Column, Table, console, counted, drawn, terminal_width


class _Demo(JsonArguments):
    name: str | None = argument(required=False)
    listed: bool = flag("List the examples.", "--list")
    quick: bool = flag("A short run of an example.")
    output: Path | None = option("File that an example writes.", "--out", type=FILE)
    keep: bool = flag("Keep running and publishing until Ctrl-C.")
    as_json: bool = flag("Machine-readable summary only.", "--json")


@command(None, _Demo)
def demo(given: _Demo) -> int:
    """Run a whole federation on this machine and check what arrives, or the example NAME.

    Without a name: starts a lookup service, two delegates, three publishers and nine subscribers as separate
    processes, and an SMTP sink; publishes the imagery and target lists of the paper and real CAP alerts. Exit code 0 if
    all counts are right; of an example, if its result is right.

    \b
    jbi demo
    jbi demo --keep      # then, in another terminal: jbi --group demo services
    jbi demo --list
    jbi demo airborne
    jbi demo imagery --out kabul.svg
    """
    if given.listed:
        return list_examples(given)
    if given.name is not None:
        if given.keep:
            raise click.UsageError("--keep is of the demo without a name: an example ends by itself")
        return play_example(given.name, given, quick=given.quick, output=given.output)
    if given.quick or given.output is not None:
        raise click.UsageError("--quick and --out are of an example; `jbi demo --list` has their names")
    return _demonstrate(given)


def _demonstrate(given: _Demo) -> int:
    screen = console()
    live = Live(console=screen, auto_refresh=False) if sys.stdout.isatty() and not given.as_json else None
    stages: list[str] = []

    def show(state: Demo) -> None:
        if live is not None:
            live.update(Text(_table(state, terminal_width()), no_wrap=True), refresh=True)
        elif not given.as_json and state.stage not in stages:
            stages.append(state.stage)
            click.echo(f"{state.seconds:5.1f} s  {state.stage}")

    with live or nullcontext(), play(show) as state:
        if live is not None:
            live.stop()
        given.show(state.summary(), lambda: _summarise(state))
        right = state.right
        if given.keep:
            _keep(state)
        elif not given.as_json:
            click.echo(f"\nTry next:\n{next_steps(sys.argv[0])}")
    return 0 if right else 1


def _summarise(state: Demo) -> None:
    if not sys.stdout.isatty():
        for row in state.rows.values():
            click.echo("\t".join(_cells(row)))
    all_of_it = f"what {len(state.rows)} subscribers were to get" if state.without else "everything"
    verdict = f"{all_of_it} arrived, nothing twice" if state.right else "WRONG: see the lines that are not ok"
    click.echo(f"{state.published} objects published, {state.seconds:.1f} s: {verdict}")
    if state.without:
        click.echo(f"left out: {state.without}")


def next_steps(program: str) -> str:
    """Three commands to try after the demo; `program` is the `jbi` that was run."""
    is_usual = not program.endswith("/jbi") or program == shutil.which("jbi")
    jbi = "jbi" if is_usual else program
    return (
        f"  {jbi} demo --keep   # leaves it running: `{jbi} --group demo top`, in another terminal, shows it at work\n"
        f"  {jbi} demo --list   # lists more examples, such as `{jbi} demo alerts`\n"
        f"  {jbi} doctor        # checks this machine for servers of your own"
    )


def _keep(state: Demo) -> None:
    at = f"--group {GROUP} " + ("" if state.locator.endswith(":4160") else f"--locator {state.locator} ")
    click.echo(
        "\nEverything goes on, a round every two seconds. From another terminal:\n"
        f"  jbi {at}top\n  jbi {at}services\n  jbi {at}web     # in a browser; needs pip install 'jbi-pubsub[web]'\n"
        f"  jbi {at}subscribe --type mil.af.rl.jbi.Intel_Imagery --predicate \"//Area='Kabul'\"\n"
        f"  jbi {at}subscribe --type mil.af.rl.jbi.Target_List --filter \"//descriptor[type='A10A']\"\n"
        "Ctrl-C ends."
    )
    try:
        while True:
            publish(state)
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                pump(state, 0.2)
    except KeyboardInterrupt:
        click.echo("stopping")


def _table(state: Demo, width: int) -> str:
    title = f"jbi demo  {state.seconds:4.1f} s  {state.stage}"
    columns = (
        Column("subscriber"),
        Column("first level", long=True, name=True),
        Column("then", long=True, name=True),
        Column("got"),
        Column("by", spare=1),
        Column("from", spare=2),
        Column("last", spare=3),
    )
    rows = [_cells(row, judged=state.published > 0, done=state.stage == "done") for row in state.rows.values()]
    return drawn(Table(columns, rows, title), width=width, more="a wider terminal")


def _cells(row: SubscriberRow, *, judged: bool = True, done: bool = True) -> tuple[str, ...]:
    subscriber = row.subscriber
    verdict = " ok" if judged and row.right else " WRONG" if done else ""
    return (
        subscriber.name,
        subscriber.first_level,
        subscriber.second_level or (subscriber.filtered and f"only {subscriber.filtered}"),
        f"{row.got} of {row.must}{verdict}",
        "e-mail" if subscriber.recipients else "queue",
        counted(row.servers, "server"),
        row.last,
    )
