"""All states that a system can come to, breadth first, and what is wrong with any.

A terminal is a state in which nothing can happen any more. Its class is how everything has ended, and what has not.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import Final, NamedTuple

from . import witness
from .script import FEDERATIONS
from .system import Anomaly, ChartEvent, Move, Scene, System, after, moves

STATES_MOST: Final = 2_000_000


class Terminal(NamedTuple):
    """A class of terminals."""

    outcome: str
    states: int
    system: System
    """The one with the shortest way to it."""
    is_deadlock: bool
    is_split: bool
    """Federations have ended differently."""


class Violation(NamedTuple):
    """Something that must not be, the first time it was seen."""

    found: Anomaly
    system: System
    move: Move
    """That leads from that state to it."""


class Exploration(NamedTuple):
    """Result of an exploration."""

    states: int
    moves: int
    terminals: tuple[Terminal, ...]
    violations: tuple[Violation, ...]
    seconds: float
    whole: bool
    """All states were seen."""
    ways: dict[System, tuple[System, Move] | None]

    @property
    def verdict(self) -> str:
        """ok, DEADLOCK, SPLIT, or what must not be."""
        what = sorted({each.found.what for each in self.violations})
        if any(each.is_deadlock for each in self.terminals):
            what.append("DEADLOCK")
        if any(each.is_split for each in self.terminals):
            what.append("SPLIT")
        return " ".join(what) or ("ok" if self.whole else "not whole")

    def way(self, system: System) -> list[Move]:
        """The shortest one from the beginning."""
        found = []
        step = self.ways[system]
        while step is not None:
            found.append(step[1])
            step = self.ways[step[0]]
        return found[::-1]


def explore(setup: Scene, system: System, *, most: int = STATES_MOST) -> Exploration:
    """Every state that can be reached."""
    is_collecting = gc.isenabled()
    gc.disable()  # states have no circles, and looking for some takes a third of the time
    try:
        return _explored(setup, system, most)
    finally:
        if is_collecting:
            gc.enable()


def _explored(setup: Scene, system: System, most: int) -> Exploration:
    begun = time.perf_counter()
    ways: dict[System, tuple[System, Move] | None] = {system: None}
    queue = deque([system])
    number = 0
    ends: dict[str, tuple[int, System]] = {}
    violations: dict[str, Violation] = {}
    while queue and len(ways) <= most:
        here = queue.popleft()
        is_end = True
        for move in moves(setup, here):
            step = after(setup, here, move)
            if step is None:
                continue
            is_end = False
            number += 1
            there, found = step
            for each in found:
                violations.setdefault(each.what, Violation(each, here, move))
            way = (here, move)
            if ways.setdefault(there, way) is way:  # one look: the hash of a whole system is not cheap
                queue.append(there)
        if is_end:
            outcome = ended(setup, here)
            count, shortest = ends.get(outcome, (0, here))
            ends[outcome] = (count + 1, shortest)
            before = ways[here]  # None: it has ended before it began
            if before is not None:
                for what, detail in witness.missing(here.memories, _present(setup, here)):
                    violations.setdefault(what, Violation(Anomaly(what, detail), *before))
    terminals = tuple(
        Terminal(outcome, count, first, bool(deadlocks(setup, first)), is_split(setup, first))
        for outcome, (count, first) in sorted(ends.items())
    )
    seconds = time.perf_counter() - begun
    return Exploration(len(ways), number, terminals, tuple(violations.values()), seconds, not queue, ways)


def _present(setup: Scene, system: System) -> frozenset[int]:
    """Federates that are joined."""
    return frozenset(
        place
        for place, (federation, name, _) in enumerate(setup.federates)
        if name in system.executions[federation].members.names
    )


def events(setup: Scene, system: System, way: list[Move]) -> list[ChartEvent]:
    """Events on a way."""
    told: list[ChartEvent] = []
    for move in way:
        step = after(setup, system, move, told)
        if step is not None:
            system = step[0]
    return told


# -- how it has ended -----------------------------------------------------------------------------------------------


def ended(setup: Scene, system: System) -> str:
    """In words: what has ended how where, what waits, who is not done."""
    said = [
        f"{FEDERATIONS[federation]} {kind} {label}: {outcome}"
        for (federation, kind, label), outcome in sorted(system.outcomes.items())
    ]
    said.extend(deadlocks(setup, system))
    said.extend(
        f"{setup.federates[place][1]} waits for {program[0][0].name}"
        for place, program in enumerate(system.programs) if program and program[0][0].is_told
    )  # fmt: skip
    return "; ".join(said) or "nothing is pending"


def deadlocks(setup: Scene, system: System) -> list[str]:
    """Rounds that every ordinary federate of a federation has consented to, and that are pending all the same."""
    found = []
    for federation, execution in enumerate(system.executions):
        routes = {each: setup.route(federation, execution, each) or (0, 0) for each in execution.members.joined}
        name = FEDERATIONS[federation]
        saving = execution.saving
        ordinary = [state for each, state in saving.states.items() if routes[each][0] < 0]
        if saving.label and all(state in ("waiting", "failed") for state in ordinary):
            found.append(f"DEADLOCK({'restore' if saving.is_restore else 'save'}, {saving.label}) in {name}")
        for label in sorted(execution.points.pending):
            point = execution.points.pending[label]
            if all(has for each, has in point.achieved.items() if routes[each][0] < 0):
                found.append(f"DEADLOCK(sync, {label}) in {name}")
    return found


def is_split(setup: Scene, system: System) -> bool:
    """Whether something has ended differently in two federations. (What is renamed is called the same behind `:`.)"""
    ends: dict[tuple[str, str], set[str]] = {}
    for (_, kind, label), outcome in system.outcomes.items():
        ends.setdefault((kind, label.rpartition(":")[2]), set()).add(outcome)
    return any(len(each) > 1 for each in ends.values()) and len(setup.models) > 1
