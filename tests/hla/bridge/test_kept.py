"""What a bridge keeps: nothing of what its RTIs know but what docs/hla-bridge.md lists, each in its modes alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.bridge.state import Bridge, Turn
from jbi_pubsub.hla.exploration import search
from jbi_pubsub.hla.exploration.scenarios import SCENARIOS, prepared

pytestmark = [pytest.mark.unit, pytest.mark.row("H-29")]

PAGE = Path(__file__).parents[3] / "docs" / "hla-bridge.md"
USUAL = Solutions()
MODES = {
    "smart": USUAL,
    "add": Solutions(consensus="add", failure="add", ownership="allow-add", unowned="add"),
    "least": Solutions(consensus="restrict", failure="restrict", ownership="deny", unowned="ignore", info="ignore"),
}
ALONE = {"failure", "sets", "addressing"}
"""Scenarios of problems of agreement that keep nothing which others do not, and take long."""


class Kept(NamedTuple):
    """Something that a bridge keeps."""

    listed: str
    """First cell of its row on the page."""
    when: Callable[[Solutions], bool] = lambda _: True


TABLES = {
    "links": Kept("messages that are under way"),
    "rounds": Kept("agreements that are under way"),
    "busy": Kept("agreements that are under way"),
    "settled": Kept("agreements that are under way"),
    "objects": Kept("pairs of instances"),
    "retractions": Kept("handles of messages with a time stamp"),
    "deleted": Kept("handles of messages with a time stamp"),
    "paces": Kept("the time of each surrogate"),
    "counters": Kept("counts"),
    "claims": Kept("claims of attributes", lambda policy: policy.ownership != "deny"),
    "asked": Kept("questions that an RTI has not answered", lambda policy: policy.unowned != "ignore"),
    "values": Kept("last values of attributes", lambda policy: policy.unowned == "smart"),
    "unowned": Kept("attributes that nobody owns", lambda policy: policy.unowned == "add"),
    "kept": Kept("what it keeps, as it was at each save", lambda policy: policy.consensus != "restrict"),
    "order": Kept("what it keeps, as it was at each save", lambda policy: policy.consensus != "restrict"),
}


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Tables in which a bridge has had something at the end of a turn."""
    found: set[str] = set()
    done = Turn.done

    def noted(turn: Turn) -> object:
        usual = Bridge._field_defaults
        found.update(name for name, value in turn.bridge._asdict().items() if value != usual[name])
        return done(turn)

    monkeypatch.setattr(Turn, "done", noted)
    return found


def test_all_that_a_bridge_keeps_is_listed() -> None:
    section = PAGE.read_text().partition("## What a bridge keeps")[2].partition("\n## ")[0]
    rows = {each.strip() for each in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)}
    assert TABLES.keys() == set(Bridge._fields)
    assert {each.listed for each in TABLES.values()} == rows - {"kept", "---"}


@pytest.mark.parametrize("policy", MODES.values(), ids=MODES)
def test_a_bridge_keeps_what_its_mode_needs_and_nothing_else(policy: Solutions, filled: set[str]) -> None:
    # When federates do all that they can, in every order
    for name, scenario in SCENARIOS.items():
        if name not in ALONE:
            sizes = (2, 1) if "f1" in scenario.text else (1, 1)
            search.explore(*prepared(scenario, policy, sizes))
    # Expect that nothing stands in what its mode has no need of, and something in each of the others
    allowed = {name for name, each in TABLES.items() if each.when(policy)}
    assert filled <= allowed
    assert filled >= allowed - {"settled", "deleted"}
