"""What subscriptions have evaluated for each object is bounded, by subscriber and by registration."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.pad.subscription import SubscriptionRequest

COSTLY = "//a[//b[//c{}]]"
USUAL = "//lat>{}"
INDEXED = "/metadata/ImageDescriptor/LocationCoord/lat>{}"


@pytest.fixture
def delegate(federation: Any, figures: Any) -> Any:
    """A delegate with one registration."""
    pad = federation.pad()
    publisher = federation.light()
    publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1)
    return pad.delegate


def subscribed(delegate: Any, session: str, predicate: str, count: int, **options: Any) -> list[str]:
    """The ids of so many subscriptions, of as many as the delegate takes."""
    made: list[str] = []
    for number in range(count):
        request = SubscriptionRequest(f"{session}-{predicate}-{number}", predicate=predicate.format(number), **options)
        try:
            delegate.subscribe(session, request, 60.0)
        except OversizeError:
            break
        made.append(request.uid)
    return made


def session(delegate: Any) -> str:
    return str(delegate.open_session("test", 60.0)[0])


def test_a_subscriber_over_its_budget_is_refused_and_told_how_to_mend_it(delegate: Any) -> None:
    # Given a subscriber with as many costly predicates as fit
    hostile = session(delegate)
    held = subscribed(delegate, hostile, COSTLY, 100)
    assert 0 < len(held) < 20
    # Expect the next one to be refused, by name of the budget
    with pytest.raises(OversizeError, match=r"of this subscriber may take .* the limit is 50 ms") as caught:
        delegate.subscribe(hostile, SubscriptionRequest("next", predicate=COSTLY.format("next")), 60.0)
    assert "child steps" in caught.value.hint
    # Expect what the index takes, and what is evaluated already, to be taken still
    assert len(subscribed(delegate, hostile, INDEXED, 200)) == 200
    delegate.subscribe(hostile, SubscriptionRequest("again", predicate=COSTLY.format(0)), 60.0)
    # Expect room for another one when one is cancelled
    delegate.unsubscribe(hostile, held[1])
    delegate.subscribe(hostile, SubscriptionRequest("next", predicate=COSTLY.format("next")), 60.0)


def test_usual_predicates_are_far_from_the_budget(delegate: Any) -> None:
    assert len(subscribed(delegate, session(delegate), USUAL, 500)) == 500


def test_a_registration_has_a_budget_that_many_subscribers_share(delegate: Any) -> None:
    # Given subscribers that each keep to their budget
    held = [len(subscribed(delegate, session(delegate), COSTLY.replace("//a", f"//a{n}"), 100)) for n in range(20)]
    # Expect the first ones to be taken, the last ones refused, and honest ones still to be served by the index
    assert held[0] > 0
    assert held[-1] == 0
    late = session(delegate)
    with pytest.raises(OversizeError, match="all subscriptions to a registration"):
        delegate.subscribe(late, SubscriptionRequest("late", predicate=COSTLY.format("late")), 60.0)
    assert len(subscribed(delegate, late, INDEXED, 100)) == 100


def test_the_budget_goes_with_the_session(delegate: Any) -> None:
    hostile = session(delegate)
    subscribed(delegate, hostile, COSTLY, 100)
    delegate.close_session(hostile)
    assert delegate._costs == {}
    assert all(topic.table.budget.spent == 0.0 for topic in delegate._topics)


def test_filters_are_charged_too(delegate: Any) -> None:
    filtering = session(delegate)
    held = subscribed(delegate, filtering, INDEXED, 100, payload_filter=COSTLY.format("x"))
    assert len(held) == 100  # one filter, computed once
    for number in range(20):
        held += subscribed(delegate, filtering, INDEXED + str(number), 1, payload_filter=COSTLY.format(number))
    assert 100 < len(held) < 120
