"""Subscriptions and queries in the trader's words, over structured events."""

from __future__ import annotations

import pytest

from jbi_pubsub.core.errors import ConfigurationError, PredicateError
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


def test_subscription_is_amended_in_the_words_that_it_was_registered_in(federation: Federation) -> None:
    # Given a subscription in the trader's words, and one that gets everything
    federation.pad()
    subscriber, publisher = federation.subscriber(), federation.light()
    some = subscriber.register_subscriber(type_name="event", predicate="residual > 0.9", language="tcl")
    every = subscriber.register_subscriber(type_name="event")
    at = publisher.connect_to_delegate("alpha", "rome")
    uid = publisher.register_publisher(at, type_name="event", validate=False)
    assert subscriber.wait_matched(some) == 1
    # When it is amended: by what would be XPath as well, of another meaning; and by what does not parse
    subscriber.amend_subscription(some, predicate="residual > 0.1")
    with pytest.raises(PredicateError, match="constraint, position 12"):
        subscriber.amend_subscription(some, predicate="residual > ")
    for residual in (0.01, 0.5):
        publisher.publish(uid, _event(residual, "running"), b"")
    assert all(subscriber.receive(every, 30.0) is not None for _ in range(2))
    # Expect it to get what its second constraint says
    obj = subscriber.receive(some, 30.0)
    assert obj is not None
    assert b'"0.5"' in obj.metadata
    # When its predicate is taken away; expect it to get everything
    subscriber.amend_subscription(some, predicate="")
    publisher.publish(uid, _event(0.02, "running"), b"")
    obj = subscriber.receive(some, 30.0)
    assert obj is not None
    assert b'"0.02"' in obj.metadata


def test_constraint_over_the_combined_view_is_refused(federation: Federation) -> None:
    with pytest.raises(ConfigurationError, match="combined view"):
        federation.subscriber().register_subscriber(predicate="residual > 1", language="tcl", view="combined")
