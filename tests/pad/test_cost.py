"""What subscriptions have evaluated for each object is bounded, by subscriber and by registration."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.pad.matching import match_table
from jbi_pubsub.protocol.requests import SubscriptionRequest

COSTLY = "count(//a[//b[//c{}]])>1"
FILTER = "//a[//b[//c{}]]"
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
            delegate.subscribers.subscribe(session, request, 60.0)
        except OversizeError:
            break
        made.append(request.uid)
    return made


def session(delegate: Any) -> str:
    return str(delegate.sessions.open("test", 60.0)[0])


def test_a_subscriber_over_its_budget_is_refused_and_told_how_to_mend_it(delegate: Any) -> None:
    # Given a subscriber with as many costly predicates as fit
    hostile = session(delegate)
    held = subscribed(delegate, hostile, COSTLY, 100)
    assert 0 < len(held) < 20
    # Expect the next one to be refused, by name of the budget
    with pytest.raises(OversizeError, match=r"of this subscriber may take .* the limit is 20 ms") as caught:
        delegate.subscribers.subscribe(hostile, SubscriptionRequest("next", predicate=COSTLY.format("next")), 60.0)
    assert "child steps" in caught.value.hint
    # Expect what the index takes, and what is evaluated already, to be taken still
    assert len(subscribed(delegate, hostile, INDEXED, 200)) == 200
    delegate.subscribers.subscribe(hostile, SubscriptionRequest("again", predicate=COSTLY.format(0)), 60.0)
    # Expect room for another one when one is cancelled
    delegate.subscribers.unsubscribe(hostile, held[1])
    delegate.subscribers.subscribe(hostile, SubscriptionRequest("next", predicate=COSTLY.format("next")), 60.0)


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
        delegate.subscribers.subscribe(late, SubscriptionRequest("late", predicate=COSTLY.format("late")), 60.0)
    assert len(subscribed(delegate, late, INDEXED, 100)) == 100


def test_the_budget_goes_with_the_session(delegate: Any) -> None:
    hostile = session(delegate)
    subscribed(delegate, hostile, COSTLY, 100)
    delegate.sessions.close(hostile)
    assert delegate.tables.costs == {}
    assert all(topic.table.budget.spent == 0.0 for topic in delegate.tables.topics)


def test_filters_are_charged_too(delegate: Any) -> None:
    filtering = session(delegate)
    held = subscribed(delegate, filtering, INDEXED, 100, payload_filter=FILTER.format("x"))
    assert len(held) == 100  # one filter, computed once
    for number in range(20):
        held += subscribed(delegate, filtering, INDEXED + str(number), 1, payload_filter=FILTER.format(number))
    assert 100 < len(held) < 120


MIXED = (
    "{p}lat>{n}", "contains({p}publisher,'a{n}')", "string-length({p}publisher) > {n}", "count({p}*[text()]) > {n}",
    "sum({p}lat)*2 > {n}", "{p}lat[. > {n}] and {p}lon", "starts-with(normalize-space({p}publisher),'x{n}')",
    "not({p}lat < {n}) or contains({p}title,'q')", "translate({p}publisher,'abc','ABC') = 'X{n}'",
    "{p}LocationCoord[lat > {n} and count(../*) > 2]", "{p}*[local-name()='lat'] > {n}",
    "/metadata/BasicMetadata/publisher='u{n}' and {p}LocationCoord[lat > {n} and count(../*) > 2]",
)  # fmt: skip
TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.parametrize("is_first", [True, False], ids=["before the publisher", "behind it"])
def test_hundreds_of_usual_predicates_of_one_process_are_taken(
    is_first: bool, federation: Any, figures: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a process with 500 predicates of a dozen kinds, most of which the index does not take, then none is refused
    or set aside, whoever has come first, and all are asked of each object."""
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    registration = None if is_first else figures.register(publisher)
    made = [
        subscriber.register_subscriber(type_name=TYPE, predicate=MIXED[n % len(MIXED)].format(p="//", n=n))
        for n in range(500)
    ]
    registration = registration or figures.register(publisher)
    eventually(lambda: all(subscriber.wait_matched(uid, timeout=0.0) for uid in made))
    assert all(subscriber.refusal(uid) is None for uid in made)
    publisher.publish(registration, figures.metadata(lat="499.5"))
    assert subscriber.receive(made[0], 60.0) is not None
    status = pad.status()
    assert [each.get("failed", 0) for each in status["subscriptions"]] == [0] * 500
    assert "refused" not in caplog.text
    assert "set aside" not in caplog.text


def test_what_costs_too_much_is_refused_and_refusal_says_why(
    federation: Any, figures: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a process with more costly predicates than one may have, then those beyond it are refused, and each says
    why to whoever asks; nothing is said to be lost."""
    federation.pad()
    subscriber, publisher = federation.subscriber(), federation.light()
    figures.register(publisher)
    made = [subscriber.register_subscriber(type_name=TYPE, predicate=COSTLY.format(n)) for n in range(20)]
    eventually(lambda: all(subscriber.wait_matched(u, timeout=0.0) or subscriber.refusal(u) for u in made))
    refusals = [why for uid in made if (why := subscriber.refusal(uid)) is not None]
    assert 0 < len(refusals) < 20
    assert all(isinstance(why, OversizeError) and "the limit is 20 ms" in str(why) for why in refusals)
    assert "lost" not in caplog.text
    eventually(lambda: caplog.text.count("is refused: by") == len(refusals))


def test_who_is_set_aside_at_a_registration_is_told_why(
    federation: Any, figures: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a subscription that stands, when a publisher comes whose registration has no room for its predicate, then
    it hears why, and not when it is amended to one that there is room for."""
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    publisher.register_publisher(at, figures.schema, figures.figure_1)
    uid = subscriber.register_subscriber(type_name=TYPE, predicate=COSTLY.format(1))
    assert subscriber.wait_matched(uid) == 1
    assert subscriber.refusal(uid) is None
    monkeypatch.setattr(match_table, "MAX_COST_OF_REGISTRATION", 0.001)
    publisher.register_publisher(at, figures.schema, figures.metadata(publisher="others"))
    why = eventually(lambda: subscriber.refusal(uid))
    assert isinstance(why, OversizeError)
    assert "all subscriptions to a registration" in why.message
    (status,) = pad.status()["subscriptions"]
    assert status["set_aside"] in str(why)
    assert "lost" not in caplog.text
    # When it is amended to what there is room for
    subscriber.amend_subscription(uid, predicate=INDEXED.format(1))
    assert subscriber.refusal(uid) is None
    (status,) = pad.status()["subscriptions"]
    assert "set_aside" not in status
