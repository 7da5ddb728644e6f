"""`jbi policy simulate`: what a policy file would make of a workload."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.examples.example import Cell, ExampleOutcome, OutcomeTable
from jbi_pubsub.policy.file import nearest, parse, read
from jbi_pubsub.policy.policyset import PolicySet, policies_of
from jbi_pubsub.policy.units import amount, rate
from jbi_pubsub.policy.writing import changed, value_of
from jbi_pubsub.qos.simulate import JUDGING, Change, Simulated, SimulatedRun, Stage, Workload, demo
from jbi_pubsub.spark.plots import Plot, Series, thinned
from jbi_pubsub.subscriber.moments import seconds_at

from . import charts
from .options import FILE, JsonArguments, argument, command, option, repeated
from .settings import blamed, try_file
from .show import Column, printable, show_table

SECONDS_MOST: Final = 86_400.0
CHANGES_MOST: Final = 100
COLUMNS: Final = (
    "from s", "importance", "type", "subscriber", "matched", "delivered", "shaped", "lost", "rate/s", "share %",
    "delay s", "p50 s", "p95 s",
)  # fmt: skip


def _page_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    return charts.ready(context, parameter, try_file(context, parameter, path))


class _Simulate(JsonArguments):
    file: Path = argument(type=click.Path(path_type=Path))
    workload: str = option(
        "Publications and subscriptions: the paper's demonstration, or lines of JSON.",
        shown="demo",
        metavar="demo|FILE",
    )
    duration: str | None = option('Duration, "10 min"; default 10 min, or that of FILE.', metavar="TIME")
    begin: str | None = option(
        "Time of the first second, for policies in force at times: 2026-12-24T18:00Z; default now.", metavar="TIME"
    )
    said: tuple[str, ...] = repeated(
        'Change a key of the file at that time; "bandwidth" is the capacity of the links.',
        "--set",
        metavar="KEY=VALUE@TIME",
    )
    then: tuple[str, ...] = repeated("Change to another policy file at that time.", metavar="FILE@TIME")
    judging: str | None = option(f'Time to evaluate one object, "{JUDGING * 1e3:g} ms".', metavar="TIME")
    component: str = option('Server: "name@location".', shown="alpha@rome")
    page: Path | None = option(
        "Write plots and tables to this HTML file.", "--plot", type=FILE, metavar="FILE", callback=_page_file
    )


@command(None, _Simulate, "simulate")
def simulated(given: _Simulate) -> None:
    """Predict shares, delays and losses under a policy file, on a virtual clock.

    The simulation runs the classes that enforce policies, without processes and networks. A trace has lines such as
    {"at": 0.5, "type": "t", "size": 10000} for objects and {"subscriber": "Ops-1", "type": "t"} for subscriptions.

    \b
    jbi policy simulate policy.toml
    jbi policy simulate policy.toml --set "bandwidth=400 kbps@1 min" --set space.strategy=strict@2min
    jbi policy simulate policy.toml --then narrow.toml@300s
    jbi policy simulate policy.toml --workload trace.jsonl --plot simulated.html
    """
    policies = PolicySet.read(given.file)
    seconds = _positive("--duration", given.duration, 600.0)
    if given.workload == "demo":
        load = demo(seconds)
    else:
        load = Workload.read(Path(given.workload))
        seconds = _positive("--duration", given.duration, load.publications[-1].at + 1.0)
    changes = list(_changes(given.file, given.said, given.then))
    has_bandwidth = any(change.bandwidth is not None for change in changes)
    if has_bandwidth and not any(each.space.links for each in (policies, *(c.policies for c in changes if c.policies))):
        raise ConfigurationError(
            f"{given.file}: bandwidth of what? There is no [[link]]", hint="Write one, without a rate"
        )
    began = time.process_time()
    cost = _positive("--judging", given.judging, JUDGING)
    begins = time.time() if given.begin is None else seconds_at(given.begin, now=time.time(), what="--begin")
    run = SimulatedRun(policies, load, seconds, changes=changes, judging=cost, component=given.component, begins=begins)
    found = run.result()
    spent = time.process_time() - began
    if given.page is not None:
        lead = f"Simulated deliveries under {given.file}: {len(load.publications):,} objects in {seconds:g} s."
        outcome = ExampleOutcome(tuple(_tables(found)), (), tuple(_plots(found)))
        footer = f"jbi policy simulate {given.file}"
        charts.write_page(given.page, "Simulated quality of service", lead, outcome, footer)
    waiting = f", {found.waiting:,} still wait" if found.waiting else ""
    lines = [f"{seconds:g} s simulated in {spent:.1f} s{waiting}"]
    lines += [printable(f"written: {given.page}")] if given.page is not None else []
    given.show({"file": str(given.file), **found.plain()}, lambda: _show(found, lines))


def _show(found: Simulated, lines: Sequence[str]) -> None:
    for table in _tables(found):
        columns = [Column(head, right=at not in (2, 3, 7)) for at, head in enumerate(table.columns)]
        show_table(columns, table.rows, title=table.title)
    click.echo("\n".join(lines))


def _positive(name: str, said: str | None, default: float) -> float:
    seconds = default if said is None else _amount(name, said)
    if not 0 < seconds <= SECONDS_MOST:
        raise ConfigurationError(f"{name}: {seconds:g} s is not between 0 and a day", hint=f'{name} "10 min"')
    return seconds


def _amount(name: str, said: str) -> float:
    with blamed(name):
        return amount(said, "seconds")


def _at(name: str, said: str) -> tuple[str, float]:
    what, at, when = said.rpartition("@")
    if not at or not what:
        raise ConfigurationError(f"{name} {said!r} has no time", hint=f'{name} "...@60 s"')
    return what, _amount(f"{name} {said!r}", when)


def _changes(file: Path, said: tuple[str, ...], then: tuple[str, ...]) -> Iterator[Change]:
    """All of them, as they come; each key is changed in what the file says by then."""
    asked = [("--set", *_at("--set", each)) for each in said] + [("--then", *_at("--then", each)) for each in then]
    if len(asked) > CHANGES_MOST:
        raise ConfigurationError(f"{len(asked)} changes; {CHANGES_MOST} at most")
    document, _ = read(file)
    for number, (name, what, at) in enumerate(sorted(asked, key=lambda each: each[2]), 2):
        key, equals, value = (part.strip() for part in what.partition("="))
        if name == "--set" and key == "bandwidth":
            yield Change(at, bandwidth=_bandwidth(what, value))
            continue
        if name == "--set" and not equals:
            raise ConfigurationError(f"--set {what!r} is not KEY=VALUE@TIME", hint='"bandwidth=400 kbps@60 s"')
        if name == "--set" and "." not in key:
            raise ConfigurationError(f"--set: no key {key!r}", hint=f"{nearest(key, ['bandwidth'])} Others have dots")
        if name == "--then":
            document, _ = read(Path(what))
        else:
            document = parse(changed(document, key, value_of(key, value)), file.name)
        policies = policies_of(document)
        document.check()
        yield Change(at, policies=policies.of_version(number))


def _bandwidth(said: str, value: str) -> float:
    with blamed(f"--set {said!r}"):
        found = rate(value)
    if found.unit != "bytes":
        raise ConfigurationError(f"--set {said!r}: a link carries bytes", hint='For example "400 kbps"')
    return found.amount


def _tables(found: Simulated) -> Iterator[OutcomeTable]:
    for stage in found.stages:
        if stage.ends > stage.begins:
            title = f"{stage.begins:g} to {stage.ends:g} s"
            yield OutcomeTable(title, COLUMNS, [_row(stage, each) for each in stage.rows()])


def _row(stage: Stage, row: dict[str, Any]) -> tuple[Cell, ...]:
    lost = ", ".join(f"{count} {cause}" for cause, count in row["lost"].items()) or "-"
    said = printable(row["type"]), printable(row["subscriber"])
    counts = row["matched"], row["delivered"], row["shaped"]
    delays = (round(row[key], 3) for key in ("delay", "p50", "p95"))
    return (
        round(stage.begins, 1), row["importance"], *said, *counts, lost, row["rate"], round(100 * row["share"], 1),
        *delays,
    )  # fmt: skip


def _plots(found: Simulated) -> Iterator[Plot]:
    links = [
        Series.of(name, thinned([(at, 8 * used / 1000) for at, used in points])) for name, points in found.links.items()
    ]
    if links:
        title = f"What links carry: {', '.join(found.links)}"
        yield Plot(name="links", title=title, kind="lines", x="seconds", y="kbit/s", series=tuple(links))
    for number, stage in enumerate(found.stages):
        if stage.ends > stage.begins:
            yield _delays(number, stage)


def _delays(number: int, stage: Stage) -> Plot:
    rows = stage.rows()
    named = [(f"{row['importance']}: {row['type']}, {row['subscriber']}", row) for row in rows]
    series = tuple(Series.of(part, ((name, row[part]) for name, row in named)) for part in ("p50", "p95"))
    title = f"Delay by importance, {stage.begins:g} to {stage.ends:g} s"
    return Plot(name=f"delays-{number}", title=title, kind="ranked", x="seconds", y="", series=series)
