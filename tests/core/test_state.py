"""State tables: what follows, what can't happen, what the diagram shows."""

from __future__ import annotations

from enum import Enum, auto

import pytest

from jbi_pubsub.core.state import IllegalTransitionError, StateTable


class Door(Enum):
    """States of a door."""

    OPEN = auto()
    SHUT = auto()
    GONE = auto()


class Act(Enum):
    """What happens to it."""

    PUSHED = auto()
    KNOCKED = auto()
    BURNT = auto()


TABLE = StateTable(
    "door",
    Door.SHUT,
    {
        (Door.SHUT, Act.PUSHED): Door.OPEN,
        (Door.SHUT, Act.KNOCKED): Door.SHUT,
        (Door.OPEN, Act.PUSHED): Door.SHUT,
        (Door.SHUT, Act.BURNT): Door.GONE,
        (Door.OPEN, Act.BURNT): Door.GONE,
    },
)


def test_events_lead_from_state_to_state() -> None:
    # Given a door that is shut; When it is pushed twice; Expect it open, then shut
    opened = TABLE.after(TABLE.initial, Act.PUSHED)
    assert (opened, TABLE.after(opened, Act.PUSHED)) == (Door.OPEN, Door.SHUT)


def test_what_the_table_does_not_have_raises_and_says_what_and_where() -> None:
    with pytest.raises(IllegalTransitionError, match="door: KNOCKED can't happen in state OPEN"):
        TABLE.after(Door.OPEN, Act.KNOCKED)
    assert not TABLE.allows(Door.OPEN, Act.KNOCKED)
    # and nothing at all in the last state
    assert [TABLE.is_final(each) for each in Door] == [False, False, True]


def test_a_state_that_nothing_leads_to_is_a_mistake_in_the_table() -> None:
    with pytest.raises(ValueError, match="door: no event leads to GONE, OPEN"):
        StateTable("door", Door.SHUT, {(Door.SHUT, Act.KNOCKED): Door.SHUT})


def test_the_diagram_has_all_ways_between_states() -> None:
    assert TABLE.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> SHUT",
        "    SHUT --> OPEN: pushed",
        "    OPEN --> SHUT: pushed",
        "    SHUT --> GONE: burnt",
        "    OPEN --> GONE: burnt",
        "    GONE --> [*]",
    ]
