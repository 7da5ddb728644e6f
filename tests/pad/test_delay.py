"""How long deliveries take: from leaving the queue to the acknowledgement, of one item at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jbi_pubsub.pad.egress.flights import DELAY_SECONDS, Delay

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def test_one_item_at_a_time_is_looked_at() -> None:
    now = 100.0
    delay = Delay()
    assert delay.seconds(now) == 0
    # Given three items that go out, two of them before anything is acknowledged
    delay.sent(1, lambda: 100.0)
    delay.sent(1, lambda: 101.0)
    # Expect the first one to be looked at, and to be told of while it is under way
    assert delay.seconds(102.0) == 2.0
    delay.landed(1, lambda: 103.0)
    assert delay.seconds(103.0) == 3.0
    # the next one that goes out is looked at next, behind the one that was not
    delay.sent(1, lambda: 104.0)
    delay.landed(1, lambda: 104.5)
    assert delay.seconds(104.5) == 3.0
    delay.landed(1, lambda: 105.0)
    assert delay.seconds(105.0) == 1.0
    # and what was long ago says nothing of now
    assert delay.seconds(105.0 + DELAY_SECONDS + 1) == 0


def test_a_status_tells_the_delay_of_a_subscriber_that_does_not_acknowledge(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber that has got an object
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    publisher.connect_to_delegate("alpha", "rome")
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, timeout=60.0) is not None
    eventually(lambda: pad.status()["sessions"][0]["delay_ms"] > 0)
    assert 0 < pad.status()["delay_ms"] < 5_000

    # When a day goes by on the delegate's clock without an acknowledgement of the next one
    (session,) = pad.delegate.tables.sessions.values()
    clock = session._flights.clock
    session._flights.delay.sent(1, clock)
    session._flights.clock = lambda: clock() + 86_400

    # Expect it to be told
    assert pad.status()["delay_ms"] > 86_000_000
