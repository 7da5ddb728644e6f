"""`jbi explain` and `jbi subscriptions`: they ask every delegate, and one that has died hides nothing of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIGURE_1 = str(Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery" / "fig1.xml")


@pytest.fixture
def explained(federation: Any, figures: Any) -> tuple[Any, str]:
    """A publisher, and the id of a subscription with a predicate at its delegate."""
    federation.pad("alpha", "rome")
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate="//lat>33", policy="drop_newest", bound=7
    )
    assert subscriber.wait_matched(uid) == 1
    return publisher, uid


@pytest.fixture
def dead(federation: Any) -> Any:
    """A delegate that has died, and that the lookup service still lists, before all others."""
    pad = federation.pad("bravo", "paris")
    pad._endpoint.stop()
    return pad


def test_an_explanation_shows_all_parts_of_the_subscription(
    explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    for part in ("matches", "//lat>33", "drop_newest 7", "publisher=418th"):
        assert part in answer.out
    [facts] = json.loads(said(*flags, "explain", explained[1], "--metadata", FIGURE_1, "--json").out)
    assert facts["delivered"] is True
    assert (facts["terms"]["policy"], facts["terms"]["bound"], facts["terms"]["matched"]) == ("drop_newest", 7, 0)


def test_where_nobody_publishes_any_more_the_explanation_says_so(
    explained: tuple[Any, str], flags: list[str], federation: Any, figures: Any, said: Callable[..., Any]
) -> None:
    explained[0].close()
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    assert "nobody publishes here now" in answer.out


def test_a_subscription_that_stands_nowhere_is_told_why(
    federation: Any, flags: list[str], said: Callable[..., Any]
) -> None:
    federation.pad()
    answer = said(*flags, "explain", "subscription-unknown", "--metadata", FIGURE_1)
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "template matches" in answer.err


def test_a_dead_delegate_does_not_hide_what_the_others_explain(
    dead: Any, explained: tuple[Any, str], flags: list[str], said: Callable[..., Any]
) -> None:
    # Expect the explanation, and on stderr who did not answer
    answer = said(*flags, "explain", explained[1], "--metadata", FIGURE_1)
    assert answer.code == 0
    assert "matches" in answer.out
    assert dead.address in answer.err


def test_a_dead_delegate_does_not_hide_the_email_subscriptions_of_the_others(
    dead: Any, federation: Any, flags: list[str], said: Callable[..., Any]
) -> None:
    # Given an e-mail subscription that a living delegate has
    federation.pad("alpha", "rome")
    made = said(*flags, "subscribe", "--email", "ops@example.org", "--type", "other", "--json")
    uid = json.loads(made.out)["subscription"]
    answer = said(*flags, "subscriptions")
    assert (answer.code, uid in answer.out, dead.address in answer.err) == (0, True, True)
    # Expect it to be cancelled there
    answer = said(*flags, "subscriptions", "cancel", uid)
    assert (answer.code, "cancelled at 1" in answer.out, dead.address in answer.err) == (0, True, True)
