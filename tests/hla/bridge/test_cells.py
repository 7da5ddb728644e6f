"""Each cell of the matrix does what its word says: in a story in which it matters federates are told something that
they are told in no other cell of its problem."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest

from jbi_pubsub.hla.bridge.policy import CELLS, Solutions
from jbi_pubsub.hla.execution import RtiOptions
from jbi_pubsub.hla.exploration import script, search
from jbi_pubsub.hla.exploration.scenarios import SCENARIOS, line
from jbi_pubsub.hla.exploration.system import built, planned

from .test_oracle import JOIN, RESIGN, THING, Step, World, X

LABEL, INSTANCE = ("L",), ("@a", (X,))

STORIES: dict[str, list[list[Step]]] = {
    "consensus": [
        [
            (1, RESIGN, ("delete_objects_then_divest",)),
            (0, "register_federation_synchronization_point", ("L", b"")),
            (0, "synchronization_point_achieved", LABEL),  # all of that side
            (1, JOIN, ()),
            (2, "synchronization_point_achieved", LABEL),
            (1, "synchronization_point_achieved", LABEL),
        ]
    ],
    "ownership": [
        [
            (0, "register_object_instance", (THING, "a")),
            (2, "attribute_ownership_acquisition", (*INSTANCE, b"")),
            (0, "attribute_ownership_divestiture_if_wanted", INSTANCE),
        ],
        [
            (0, "register_object_instance", (THING, "a")),
            (2, "attribute_ownership_acquisition", (*INSTANCE, b"")),
            (2, "cancel_attribute_ownership_acquisition", INSTANCE),
            (0, "attribute_ownership_divestiture_if_wanted", INSTANCE),
        ],
    ],
    "unowned": [
        [
            (0, "register_object_instance", (THING, "a")),
            (0, "update_attribute_values", ("@a", ((X, b"1"),), b"")),
            (0, "unconditional_attribute_ownership_divestiture", INSTANCE),
            (2, "request_attribute_value_update", (*INSTANCE, b"")),
            (2, "query_attribute_ownership", ("@a", X)),
        ]
    ],
}
"""By problem: what two federates of one federation, 0 and 1, and one of another, 2, do one after the other."""

_BOTH = """f0: register_federation_synchronization_point("A", b"")
g0: register_federation_synchronization_point("A", b"")
"""
RACES: dict[str, list[str]] = {
    "barrier": [SCENARIOS["barrier"].text],
    "failure": [
        SCENARIOS["failure"].text,
        _BOTH + 'f0 <- announce_synchronization_point: synchronization_point_achieved("A")\n',
        ('* <- announce_synchronization_point: synchronization_point_achieved($1)\n'
        'f0: register_federation_synchronization_point("B", b"")\n'),
    ],
    "addressing": [SCENARIOS["sets"].text],
}  # fmt: skip
"""By problem: what federates do at once, in whatever order."""


def told(problem: str, cell: str) -> list[Any]:
    """Everything that federates are told, and how it can end."""
    policy = Solutions(**{problem: cell})
    if cell in ("add", "allow-add"):
        policy = policy._replace(consensus="add")
    said: list[Any] = []
    for steps in STORIES.get(problem, []):
        world = World((2, 1), ((0, 1),), policy, Random(1))
        said += [world.step(step) for step in steps]
    for text in RACES.get(problem, []):
        plan = planned(policy)
        found = search.explore(*built((1, 1), line(2), plan, script.read(text), options=RtiOptions(adds=True)))
        said.append((found.verdict, {each.outcome for each in found.terminals}))
    return said


@pytest.mark.parametrize("problem", [*STORIES, *RACES])
def test_each_cell_has_an_effect_of_its_own(problem: str) -> None:
    # Given what federates are told in each cell of a problem
    by_cell = {cell: told(problem, cell) for cell in CELLS[problem]}
    # Expect no two to be the same
    for one, other in combinations(by_cell, 2):
        assert by_cell[one] != by_cell[other], f"{problem}: {one} is {other}"


def test_all_problems_have_a_story() -> None:
    # `info` is about what was before a bridge: see test_values_from_before_the_bridge_are_asked_for
    assert {*STORIES, *RACES, "info"} == set(CELLS)
