"""Roles of a domain, as the file of rules that is shipped gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jbi_pubsub.core.access import Subject
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.domains import data
from jbi_pubsub.policy.access import access_rules, review
from jbi_pubsub.policy.file import read

pytestmark = pytest.mark.unit

FILE = Path(data.__path__[0]) / "roles.toml"


@pytest.mark.row("D-21")
@pytest.mark.row("D-42")
@pytest.mark.parametrize(
    ("user", "publishes", "subscribes"),
    [
        ("heat", {"Monitoring", "Steering"}, {"Steering"}),
        ("anna", {"Collaboration"}, {"Monitoring", "Steering", "Collaboration"}),
        ("bob", {"Steering", "Collaboration"}, {"Monitoring", "Steering", "Collaboration"}),
        ("eve", set(), set()),
    ],
)
def test_roles_may_do_what_the_figure_says(user: str, publishes: set[str], subscribes: set[str]) -> None:
    # Given the rules
    document, _ = read(FILE, name=str(FILE))
    rules = access_rules(document)
    review(document, rules)
    assert (document.errors, document.warnings) == ([], [])
    # When each is asked about each type
    caller = Caller("192.0.2.7:1", identity=user)
    for action, meant in (("publish", publishes), ("subscribe", subscribes)):
        may = {
            type_
            for type_ in ("Monitoring", "Steering", "Collaboration")
            if rules.decide(caller, action, Subject(f"discover.{type_}", "1.0"), component="alpha@rome")  # type: ignore[arg-type]
        }
        # Expect the figure
        assert may == meant, action
