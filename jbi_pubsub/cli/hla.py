"""`jbi hla`: federations of simulations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_name

from .near import NearNames
from .settings import Settings, json_option, pass_settings
from .show import Column, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jbi_pubsub.hla.bridge.policy import Policy
    from jbi_pubsub.hla.exploration.scenarios import Explored


@click.group(cls=NearNames)
def hla() -> None:
    """Federations in the sense of the HLA (IEEE 1516)."""


@hla.command()
@click.option("--federation", metavar="NAME", help="A federation execution to serve from the start.")
@click.option(
    "--fom", "modules", multiple=True, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="A module of its object model, in OMT XML; give it again for more.",
)  # fmt: skip
@click.option("--saves", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep saves here.")
@click.option(
    "--lease", metavar="SECONDS", type=click.FloatRange(0.5, 3600.0), default=10.0, show_default=True,
    help="After which a silent federate is resigned.",
)  # fmt: skip
@click.option("--one-at-a-time", is_flag=True, help="One synchronization point at a time.")
@click.option("--adds", is_flag=True, help="Have services for bridges that the standard does not have.")
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default any free one.")
@click.option("--metrics-port", type=click.IntRange(-1, 65535), help="Prometheus metrics; -1 for none, 0 any port.")
@json_option
@pass_settings
def serve(
    settings: Settings,
    federation: str | None,
    modules: tuple[Path, ...],
    saves: Path | None,
    lease: float,
    one_at_a_time: bool,
    adds: bool,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    """Run an RTI: federates find a federation execution by its name, wherever this runs. Ctrl-C ends.

    \b
    jbi hla serve --federation Air --fom air.xml
    jbi hla serve --federation Air --fom base.xml --fom air.xml --saves /var/lib/jbi/saves
    jbi hla serve                                  # federates create federation executions here
    """
    from jbi_pubsub.hla.execution import Options  # here: the other commands start faster without
    from jbi_pubsub.hla.fom import parsed
    from jbi_pubsub.hla.proxy import modules_of
    from jbi_pubsub.hla.server import RtiServer

    from .servers import access_of, raise_file_limit, stop_on_signal, wait_for

    if modules and not federation:
        raise ConfigurationError("--fom is the object model of a federation", hint="Give --federation NAME")
    parts = modules_of(modules)
    parsed(*parts)
    config = settings.load(pad__host=host, pad__port=port if port is not None else 0, metrics__port=metrics_port)
    raise_file_limit()
    stop = stop_on_signal()
    server = RtiServer(config, saves=saves, lease=lease, access=access_of(config, "rti"))
    try:
        server.start()
        if federation:
            server.create(federation, parts, Options(one_at_a_time=one_at_a_time, adds=adds))
        facts: dict[str, Any] = {"ready": "rti", "address": server.address, "federation": federation or ""}
        if server.metrics is not None:
            facts["metrics"] = server.metrics.port
        text = f"RTI at {server.address}" + (f", serves {federation}" if federation else ", serves no federation yet")
        click.echo(json.dumps(facts) if as_json else text)
        sys.stdout.flush()
        wait_for(stop)
    finally:
        server.stop()


@hla.command(short_help="Have a federation of another place joined here.")
@click.option("--federation", required=True, metavar="NAME", help="The federation execution.")
@click.option(
    "--at", "locators", multiple=True, required=True, metavar="HOST:PORT",
    help="A lookup service where it is; give it again for more.",
)  # fmt: skip
@click.option("--in-group", "groups", multiple=True, metavar="GROUP", help="A group there; default: those of here.")
@click.option("--as", "name", metavar="NAME", help="What it is called here; default: the same.")
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default any free one.")
@json_option
@pass_settings
def link(
    settings: Settings,
    federation: str,
    locators: tuple[str, ...],
    groups: tuple[str, ...],
    name: str | None,
    host: str | None,
    port: int | None,
    as_json: bool,
) -> None:
    """Be a door to a federation of another place: federates here join it as if its RTI were here. Ctrl-C ends.

    Where both places are to have their own object models, or not to see everything: jbi bridge.

    \b
    jbi hla link --federation Air --at 10.0.0.7:4160
    jbi --locator 127.0.0.1:4161 hla link --federation Air --at 127.0.0.1:4160 --as Sea
    """
    import msgspec  # here: the other commands start faster without

    from jbi_pubsub.core.wire.endpoint import check_endpoint
    from jbi_pubsub.hla.link import RtiLink

    from .servers import access_of, raise_file_limit, stop_on_signal, wait_for

    for each in locators:
        check_endpoint(each)
    config = settings.load(pad__host=host, pad__port=port if port is not None else 0)
    beyond = {"locators": locators, "multicast": False, **({"groups": groups} if groups else {})}
    far = msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, **beyond))
    raise_file_limit()
    stop = stop_on_signal()
    door = RtiLink(config, far, federation, name or "", access=access_of(config, "rti"))
    try:
        door.start()
        facts = {"ready": "rti link", "address": door.address, "federation": name or federation}
        click.echo(json.dumps(facts) if as_json else f"link to {federation} at {door.address}")
        sys.stdout.flush()
        wait_for(stop)
    finally:
        door.stop()


@hla.command(short_help="Try every order in which federations and bridges can act.")
@click.option(
    "--federates", "sizes", metavar="N,N,...", default="2,2", show_default=True,
    help="How many each federation has; bridges join the federations in a row.",
)  # fmt: skip
@click.option("--bridges", metavar="N-N,...", help="Bridges between other federations; 0-1,1-2,2-0 is a ring.")
@click.option(
    "--policy", "file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="A bridge's file, whose [policy] counts; default: smart.",
)  # fmt: skip
@click.option("--set", "cells", multiple=True, metavar="PROBLEM=SOLUTION", help="One cell of the policy.")
@click.option("--scenario", metavar="NAME", help="What happens; --scenario list shows what there is.")
@click.option(
    "--script", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="What happens, in your words."
)
@click.option("--matrix", is_flag=True, help="All problems and solutions.")
@click.option(
    "--report", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Write a page with charts here."
)
@click.option("--most", metavar="STATES", type=click.IntRange(1), default=2_000_000, show_default=True, help="Bound.")
@json_option
def explore(
    sizes: str,
    bridges: str | None,
    file: Path | None,
    cells: tuple[str, ...],
    scenario: str | None,
    script: Path | None,
    matrix: bool,
    report: Path | None,
    most: int,
    as_json: bool,
) -> None:
    """Try every order in which federates, RTIs and bridges can act, and tell how it can end.

    Ends with exit code 1 where a deadlock, two owners or two different ends can come of it; with --matrix only what is
    documented to be so may.

    \b
    jbi hla explore --scenario save
    jbi hla explore --scenario save --set consensus=naive      # the deadlock, with a chart
    jbi hla explore --federates 1,1,1 --bridges 0-1,1-2,2-0 --scenario save
    jbi hla explore --matrix --report explored
    """
    from jbi_pubsub.hla.exploration import report as pages  # here: the other commands start faster without
    from jbi_pubsub.hla.exploration import scenarios

    if scenario == "list":
        show_table(
            [Column("scenario"), Column("problem"), Column("what happens", long=True)],
            [(each.name, each.problem, each.about) for each in scenarios.SCENARIOS.values()],
        )
        return
    counts = _sizes(sizes)
    if matrix:
        explored = list(_told(scenarios.matrix(counts, most=most), is_told=not as_json and sys.stderr.isatty()))
        is_good = all(each.result.verdict == each.cell.expected(each.scenario.name) for each in explored)
    else:
        explored = [_one(scenario or "save", script, counts, _edges(bridges, len(counts)), _policy(file, cells), most)]
        is_good = explored[0].result.verdict == "ok"
    if as_json:
        show_json({"explored": [_plain(each) for each in explored], "ok": is_good})
    else:
        _show(explored, alone=not matrix)
    if report is not None:
        path = pages.write(report, explored)
        click.echo(f"written to {path}", err=as_json)
    if not is_good:
        raise click.exceptions.Exit(1)


def _told(explored: Iterator[Explored], *, is_told: bool) -> Iterator[Explored]:
    """The same, with a line in a terminal that says how far it is."""
    for number, each in enumerate(explored, 1):
        yield each
        if is_told:
            said = f"{number} explored: {each.cell.problem}, {each.cell.solution}: {each.scenario.name}"
            click.echo(f"\r{said}\033[K", err=True, nl=False)
    if is_told:
        click.echo("\r\033[K", err=True, nl=False)


def _sizes(said: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in said.split(","))
    except ValueError:
        counts = ()
    if not 1 <= len(counts) <= 8 or not all(1 <= each <= 9 for each in counts):
        raise ConfigurationError(f"--federates {said[:60]!r}", hint="For example 2,2: up to 8 federations of 1 to 9")
    return counts


def _edges(said: str | None, count: int) -> tuple[tuple[int, int], ...] | None:
    if said is None:
        return None
    try:
        pairs = [tuple(int(end) for end in each.split("-")) for each in said.split(",")] if said else []
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 or pair[0] == pair[1] or not all(0 <= end < count for end in pair) for pair in pairs):
        raise ConfigurationError(f"--bridges {said[:60]!r}", hint="For example 0-1,1-2, federations count from 0")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _policy(file: Path | None, cells: tuple[str, ...]) -> Policy:
    from jbi_pubsub.bridge.file import parsed
    from jbi_pubsub.hla.bridge.policy import read

    said: dict[str, Any] = dict(parsed(file).get("policy", {})) if file is not None else {}
    for each in cells:
        problem, equals, solution = each.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {each[:60]!r}", hint="For example --set consensus=naive")
        said[problem] = solution
    return read({**said, "override": True})  # nobody is harmed by what is only explored


def _one(
    name: str,
    script: Path | None,
    counts: tuple[int, ...],
    edges: tuple[tuple[int, int], ...] | None,
    policy: Policy,
    most: int,
) -> Explored:
    from jbi_pubsub.hla.exploration.scenarios import CELLS, SCENARIOS, Cell, Explored, Scenario, prepared
    from jbi_pubsub.hla.exploration.search import explore as search

    if script is not None:
        try:
            found = Scenario(script.stem, "", "", script.read_text())
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"script {script}: {getattr(exc, 'strerror', None) or exc}") from exc
    elif name in SCENARIOS:
        found = SCENARIOS[name]
    else:
        near = near_name(name, SCENARIOS)
        raise ConfigurationError(
            f"no scenario {name[:60]!r}",
            hint=f"Did you mean {near}?" if near else f"There are {', '.join(SCENARIOS)}",
        )
    setup, system = prepared(found, policy, counts, edges)
    cell = next((each for each in CELLS if each.policy == policy and each.problem == found.problem), None)
    cell = cell or Cell(found.problem, "", policy, (found.name,), "")
    return Explored(cell, found, counts, setup, system, search(setup, system, most=most))


def _plain(each: Explored) -> dict[str, Any]:
    result = each.result
    return {
        "problem": each.cell.problem,
        "solution": each.cell.solution,
        "scenario": each.scenario.name,
        "federates": list(each.sizes),
        "states": result.states,
        "moves": result.moves,
        "seconds": round(result.seconds, 3),
        "whole": result.whole,
        "verdict": result.verdict,
        "terminals": [{"outcome": end.outcome, "states": end.states} for end in result.terminals],
        "violations": [{"what": one.found.what, "detail": one.found.detail} for one in result.violations],
    }


def _show(explored: list[Explored], *, alone: bool) -> None:
    from jbi_pubsub.hla.exploration.chart import text
    from jbi_pubsub.hla.exploration.report import EVENTS_MOST, shown

    rows = [
        (each.cell.problem, each.cell.solution, each.scenario.name, "+".join(map(str, each.sizes)),
         f"{each.result.states:,}", str(len(each.result.terminals)), each.result.verdict)
        for each in explored
    ]  # fmt: skip
    names = ("problem", "solution", "scenario", "federates", "states", "ends", "verdict")
    show_table([Column(name) for name in names], rows)
    if not alone:
        return
    [only] = explored
    for end in only.result.terminals:
        click.echo(f"ends: {end.outcome}")
    if only.result.verdict not in ("ok", "not whole"):
        what, told = shown(only)
        click.echo(f"\nThe shortest way to {what}:\n")
        click.echo(text(told[:EVENTS_MOST]))
