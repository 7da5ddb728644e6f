"""The problems of bridges (Bridging the HLA, section 5), each as a script that has it, and the solutions of section 6
for each: 24 cells, of which some are none, since no solution of that kind exists. Both are tables, in the folder
`data`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from jbi_pubsub.core import toml
from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.execution import RtiOptions

from .script import FEDERATIONS, FederateScript, read
from .search import STATES_MOST, Exploration, explore
from .system import DATA, Scene, System, built, fom, planned

SOLUTIONS: Final = ("add", "smart", "restrict", "ignore")


class Scenario(NamedTuple):
    """A script, and what it needs."""

    name: str
    problem: str
    about: str
    text: str
    couples: bool = False
    """Time advances on both sides together."""
    late: bool = False
    """Whether what comes before `---` happens before the bridges join."""
    one_at_a_time: bool = False

    @property
    def script(self) -> FederateScript:
        """Read."""
        return read(self.text)


class Cell(NamedTuple):
    """A solution for a problem; without a policy there is none, and `about` says why."""

    problem: str
    solution: str
    policy: Solutions | None
    scenarios: tuple[str, ...]
    about: str
    wrong: tuple[tuple[str, str], ...] = ()
    """Scenarios in which something is wrong by design, and what."""

    def expected(self, scenario: str) -> str:
        """The verdict."""
        return dict(self.wrong).get(scenario, "ok")


def _cell(row: Mapping[str, Any]) -> Cell:
    policy = Solutions(**row["policy"]) if "policy" in row else None
    names, wrong = tuple(row.get("scenarios", ())), tuple(row.get("wrong", {}).items())
    return Cell(row["problem"], row["solution"], policy, names, row["about"], wrong)


def _scenarios() -> Iterator[Scenario]:
    said, thing = toml.read(DATA / "scenarios.toml"), fom().object_class("Thing")
    handles = {"Thing": thing, "x": fom().attribute(thing, "x"), "Call": fom().interaction_class("Call")}
    words = {**handles, **{name: text.format_map(handles) for name, text in said["shared"].items()}}
    return (Scenario(**{**row, "text": row["text"].format_map(words)}) for row in said["scenario"])


SCENARIOS: Final = {each.name: each for each in _scenarios()}
CELLS: Final = tuple(map(_cell, toml.read(DATA / "cells.toml")["cell"]))


def line(count: int) -> tuple[tuple[int, int], ...]:
    """Bridges between federations in a row."""
    return tuple((each, each + 1) for each in range(count - 1))


def prepared(
    scenario: Scenario, policy: Solutions, sizes: tuple[int, ...], bridges: tuple[tuple[int, int], ...] | None = None
) -> tuple[Scene, System]:
    """Ready to be explored; between the federations, in a row by default. Raises ConfigurationError."""
    return built(
        sizes,
        line(len(sizes)) if bridges is None else bridges,
        planned(policy, couples=scenario.couples),
        scenario.script,
        options=RtiOptions(one_at_a_time=scenario.one_at_a_time, adds=True),
        late=scenario.late,
    )


class Explored(NamedTuple):
    """A scenario of a cell."""

    cell: Cell
    scenario: Scenario
    sizes: tuple[int, ...]
    setup: Scene
    system: System
    result: Exploration


def matrix(sizes: tuple[int, ...], *, most: int = STATES_MOST) -> Iterator[Explored]:
    """All cells, one scenario after the other; those with federates that are not there are left out."""
    there = {
        f"{name.lower()}{number}" for name, size in zip(FEDERATIONS, sizes, strict=False) for number in range(size)
    }
    for cell in CELLS:
        for name in cell.scenarios:
            scenario = SCENARIOS[name]
            script = scenario.script
            if cell.policy is None or not {who for who, _ in (*script.first, *script.programs)} <= there:
                continue
            setup, system = prepared(scenario, cell.policy, sizes)
            yield Explored(cell, scenario, sizes, setup, system, explore(setup, system, most=most))
