"""`jbi hla`: federations of simulations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_hint

from .near import NearNames, pair
from .options import FILE, FOLDER, HOST, METRICS_PORT, PORT, JsonArguments, command, flag, option, repeated
from .settings import blamed
from .show import Column, show_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jbi_pubsub.hla.bridge.policy import Solutions
    from jbi_pubsub.hla.exploration.scenarios import Explored


@click.group(cls=NearNames)
def hla() -> None:
    """Federations in the sense of the HLA (IEEE 1516).

    \b
    jbi hla serve --federation Air --fom air.xml    # an RTI
    jbi hla link --federation Air --at 10.0.0.7:4160
    jbi hla explore --scenario save                 # all possible ends of bridged federations
    """


class _HlaServe(JsonArguments):
    federation: str | None = option("Federation execution to create at the start.", metavar="NAME")
    modules: tuple[Path, ...] = repeated(
        "Module of its object model, in OMT XML; repeatable.", "--fom", metavar="FILE", type=FILE
    )
    saves: Path | None = option("Folder for saves.", type=FOLDER)
    lease: float = option(
        "Time after which a silent federate is resigned.",
        metavar="SECONDS",
        type=click.FloatRange(0.5, 3600.0),
        shown=10.0,
    )
    one_at_a_time: bool = flag("One synchronization point at a time.")
    adds: bool = flag("Offer services for bridges beyond the standard.")
    host: str | None = HOST
    port: int | None = PORT
    metrics_port: int | None = METRICS_PORT


@command(hla, _HlaServe)
def serve(given: _HlaServe) -> None:
    """Run an RTI: federates find a federation execution by its name, wherever this runs. Ctrl-C ends.

    \b
    jbi hla serve --federation Air --fom air.xml
    jbi hla serve --federation Air --fom base.xml --fom air.xml --saves /var/lib/jbi/saves
    jbi hla serve                                  # federates create federation executions here
    """
    from jbi_pubsub.hla.execution import RtiOptions  # here: the other commands start faster without
    from jbi_pubsub.hla.fom import parsed
    from jbi_pubsub.hla.proxy import modules_of
    from jbi_pubsub.hla.server import RtiServer

    from .servers import access_of, metrics_of, raise_file_limit, serving, stop_on_signal, tell_ready

    federation = given.federation
    if given.modules and not federation:
        raise ConfigurationError("--fom is the object model of a federation", hint="Give --federation NAME")
    parts = modules_of(given.modules)
    parsed(*parts)
    config = given.settings.load(pad__host=given.host, pad__port=given.port or 0, metrics__port=given.metrics_port)
    raise_file_limit()
    stop = stop_on_signal()
    server = RtiServer(config, saves=given.saves, lease=given.lease, access=access_of(config, "rti"))
    with serving(server, stop):
        if federation:
            server.create(federation, parts, RtiOptions(one_at_a_time=given.one_at_a_time, adds=given.adds))
        facts = {"ready": "rti", "address": server.address, "federation": federation or ""}
        serves = f"serves {federation}" if federation else "serves no federation yet"
        tell_ready(given.as_json, {**facts, **metrics_of(server.metrics)}, f"RTI at {server.address}, {serves}")


class _Link(JsonArguments):
    federation: str = option("The federation execution.", required=True, metavar="NAME")
    locators: tuple[str, ...] = repeated(
        "Lookup service in the other place; repeatable.", "--at", required=True, metavar="HOST:PORT"
    )
    groups: tuple[str, ...] = repeated(
        "Group in the other place; default: the local ones.", "--in-group", metavar="GROUP"
    )
    name: str | None = option("Local name; default: the same.", "--as", metavar="NAME")
    host: str | None = HOST
    port: int | None = PORT


@command(hla, _Link, short_help="Have a federation of another place joined here.")
def link(given: _Link) -> None:
    """Connect to a federation in another place: federates here join it as if its RTI were here. Ctrl-C ends.

    For places with different object models, or with restrictions, use jbi bridge.

    \b
    jbi hla link --federation Air --at 10.0.0.7:4160
    jbi --locator 127.0.0.1:4161 hla link --federation Air --at 127.0.0.1:4160 --as Sea
    """
    import msgspec  # here: the other commands start faster without

    from jbi_pubsub.core.wire.address import check_endpoint
    from jbi_pubsub.hla.link import RtiLink

    from .servers import access_of, raise_file_limit, serving, stop_on_signal, tell_ready

    if not given.federation:
        raise ConfigurationError("--federation '' is not a name", hint="For example --federation Air")
    for each in given.locators:
        check_endpoint(each)
    config = given.settings.load(pad__host=given.host, pad__port=given.port or 0)
    beyond = {"locators": given.locators, "multicast": False, **({"groups": given.groups} if given.groups else {})}
    far = msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, **beyond))
    raise_file_limit()
    stop = stop_on_signal()
    door = RtiLink(config, far, given.federation, given.name or "", access=access_of(config, "rti"))
    with serving(door, stop):
        facts = {"ready": "rti link", "address": door.address, "federation": given.name or given.federation}
        tell_ready(given.as_json, facts, f"link to {given.federation} at {door.address}")


class _Explore(JsonArguments):
    sizes: str = option(
        "Number of federates of each federation; bridges join the federations in a row.",
        "--federates",
        metavar="N,N,...",
        shown="2,2",
    )
    bridges: str | None = option("Bridges between other federations; 0-1,1-2,2-0 is a ring.", metavar="N-N,...")
    file: Path | None = option(
        "A bridge's file with a table [policy]; default: smart.", "--policy", metavar="FILE", type=FILE
    )
    cells: tuple[str, ...] = repeated("Solution for one problem.", "--set", metavar="PROBLEM=SOLUTION")
    scenario: str | None = option("Scenario to run; `--scenario list` shows all.", metavar="NAME")
    script: Path | None = option("File with a scenario of your own.", metavar="FILE", type=FILE)
    matrix: bool = flag("All problems and solutions.")
    report: Path | None = option("Write a page with charts here.", type=FOLDER)
    most: int = option("Limit of states.", metavar="STATES", type=click.IntRange(1), shown=2_000_000)


@command(hla, _Explore, short_help="Try every order in which federations and bridges can act.")
def explore(given: _Explore) -> int:
    """Try every order in which federates, RTIs and bridges can act, and show all possible ends.

    Exit code 1 if a deadlock, two owners or two different ends are possible; with --matrix, if they are not documented.

    \b
    jbi hla explore --scenario save
    jbi hla explore --scenario save --set consensus=naive      # the deadlock, with a chart
    jbi hla explore --federates 1,1,1 --bridges 0-1,1-2,2-0 --scenario save
    jbi hla explore --matrix --report explored
    """
    from jbi_pubsub.hla.exploration import report as pages  # here: the other commands start faster without
    from jbi_pubsub.hla.exploration import scenarios

    if given.scenario == "list":
        show_table(
            [Column("scenario"), Column("problem"), Column("what happens", long=True)],
            [(each.name, each.problem, each.about) for each in scenarios.SCENARIOS.values()],
        )
        return 0
    counts = _sizes(given.sizes)
    if given.matrix:
        is_told = not given.as_json and sys.stderr.isatty()
        explored = list(_told(scenarios.matrix(counts, most=given.most), is_told=is_told))
        is_good = all(each.result.verdict == each.cell.expected(each.scenario.name) for each in explored)
    else:
        explored = [_one(given, counts)]
        is_good = explored[0].result.verdict == "ok"
    plain = {"explored": [_plain(each) for each in explored], "ok": is_good}
    given.show(plain, lambda: _show(explored, alone=not given.matrix))
    if given.report is not None:
        path = pages.write(given.report, explored)
        click.echo(f"written to {path}", err=given.as_json)
    return 0 if is_good else 1


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
    if not 1 <= len(counts) <= 8 or not all(0 <= each <= 9 for each in counts) or not any(counts):
        hint = "For example 2,2: up to 8 federations of 0 to 9, with one federate at least"
        raise ConfigurationError(f"--federates {said[:60]!r}", hint=hint)
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


def _policy(file: Path | None, cells: tuple[str, ...]) -> Solutions:
    from jbi_pubsub.bridge.file import parsed
    from jbi_pubsub.hla.bridge.policy import read

    table: Any = parsed(file).get("policy", {}) if file is not None else {}
    if not isinstance(table, dict):
        raise ConfigurationError(
            f"bridge file {file}: policy = {str(table)[:60]} is not a table", hint="For example [policy]"
        )
    said = dict(table)
    for each in cells:
        otherwise = ConfigurationError(f"--set {each[:60]!r}", hint="For example --set consensus=naive")
        problem, solution = pair(each, otherwise)
        said[problem] = solution
    return read({**said, "override": True})  # nobody is harmed by what is only explored


def _one(given: _Explore, counts: tuple[int, ...]) -> Explored:
    from jbi_pubsub.hla.exploration.scenarios import CELLS, SCENARIOS, Cell, Explored, Scenario, prepared
    from jbi_pubsub.hla.exploration.search import explore as search

    name, script = given.scenario or "save", given.script
    edges, policy = _edges(given.bridges, len(counts)), _policy(given.file, given.cells)
    if script is not None:
        with blamed(f"script {script}"):
            found = Scenario(script.stem, "", "", script.read_text("utf-8"))
    elif name in SCENARIOS:
        found = SCENARIOS[name]
    else:
        raise ConfigurationError(f"no scenario {name[:60]!r}", hint=near_hint(name, SCENARIOS))
    setup, system = prepared(found, policy, counts, edges)
    cell = next((each for each in CELLS if each.policy == policy and each.problem == found.problem), None)
    cell = cell or Cell(found.problem, "", policy, (found.name,), "")
    return Explored(cell, found, counts, setup, system, search(setup, system, most=given.most))


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
