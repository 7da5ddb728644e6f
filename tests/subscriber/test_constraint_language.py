"""Subscriptions and queries in the trader's words, over structured events."""

from __future__ import annotations

import pytest

from jbi_pubsub.core.errors import PredicateError
from tests.conftest import Federation


def _event(residual: float, state: str) -> str:
    return (
        f"<event><header><domain>heat</domain></header>"
        f'<body><residual number="{residual}"/><state string="{state}"/></body></event>'
    )


@pytest.mark.row("D-62")
@pytest.mark.row("X-03")
def test_subscription_in_the_traders_words_gets_what_the_constraint_says(federation: Federation) -> None:
    # Given a subscription by a constraint, and one to everything
    federation.pad()
    subscriber, publisher = federation.subscriber(), federation.light()
    words = "residual > 0.01 and not (state == 'paused')"
    some = subscriber.register_subscriber(type_name="event", predicate=words, language="tcl")
    every = subscriber.register_subscriber(type_name="event")
    at = publisher.connect_to_delegate("alpha", "rome")
    uid = publisher.register_publisher(at, type_name="event", validate=False)
    # When events are published
    for residual, state in ((0.5, "running"), (0.5, "paused"), (0.001, "running"), (2.0, "computing")):
        publisher.publish(uid, _event(residual, state), b"")
    assert all(subscriber.receive(every, 30.0) is not None for _ in range(4))
    # Expect those for which it is true, and the delegate to know of XPath alone
    got = [obj.metadata for _ in range(2) if (obj := subscriber.receive(some, 30.0)) is not None]
    assert [b'"0.5"' in each or b'"2.0"' in each for each in got] == [True, True]
    assert subscriber.queue_size(some) == 0


def test_constraint_that_does_not_parse_is_refused_at_once_with_its_position(federation: Federation) -> None:
    with pytest.raises(PredicateError, match="position 12") as caught:
        federation.subscriber().register_subscriber(type_name="event", predicate="residual > ", language="tcl")
    assert caught.value.facts["position"] == 12
