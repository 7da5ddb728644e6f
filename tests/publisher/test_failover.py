"""A publisher goes on with another delegate of the same characteristics."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.processes
def test_when_a_delegate_dies_another_takes_over_and_every_object_comes_once_in_order(
    federation: Any, figures: Any, start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given two delegates of the same characteristics, each a process, a publisher at one of them, and a subscriber
    locator = federation.lookups[0].address
    arguments = ("--no-multicast", "--locator", locator, "--set", "lease.lookup=2", "pad", "alpha", "rome", "--json")
    delegates = {
        facts["id"]: process for process in (start(*arguments), start(*arguments)) for facts in [process.fact()]
    }
    publisher = federation.light()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    delegate = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    assert subscriber.wait_matched(uid) == 1
    for _ in range(50):
        publisher.publish(registration, figures.figure_1)
    publisher.flush()
    first = [subscriber.receive(uid).platform.sequence for _ in range(50)]
    # When that one is killed while the publisher goes on publishing
    used = subscriber.status()["sessions"][0]["delegate"]
    delegates[used].signal(signal.SIGKILL)
    for _ in range(50):
        publisher.publish(registration, figures.figure_1)
    # Expect the other one to get the registration, and the subscriber every object, once and in order
    publisher.flush(60.0)
    after = [subscriber.receive(uid).platform.sequence for _ in range(50)]
    assert first == list(range(1, 51))
    assert after == list(range(51, 101))
    assert subscriber.drain(uid) == []
    eventually(lambda: _stands_at_another(subscriber, uid, used))
    publisher.flush()  # while the delegate lives


def _stands_at_another(subscriber: Any, uid: str, used: str) -> bool:
    return any(uid in s["subscriptions"] for s in subscriber.status()["sessions"] if s["delegate"] != used)


@pytest.mark.processes
def test_of_several_delegates_that_are_listed_the_one_that_lives_is_found(
    federation: Any, figures: Any, start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given four delegates of the same characteristics, which a lookup service lists for a minute, dead or alive
    arguments = ("--no-multicast", "--locator", federation.lookups[0].address, "pad", "alpha", "rome", "--json")
    delegates = {facts["id"]: process for process in [start(*arguments) for _ in range(4)]
                 for facts in [process.fact()]}  # fmt: skip
    publisher, subscriber = federation.light(), federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    delegate = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid).platform.sequence == 1
    publisher.flush()
    # When the one in use and two others are killed
    used = publisher.status()["delegates"][delegate]["delegate"]
    others = [service_id for service_id in delegates if service_id != used]
    for service_id in (used, *others[:2]):
        delegates[service_id].signal(signal.SIGKILL)
        delegates[service_id].wait(10.0)
    publisher.publish(registration, figures.figure_1)
    # Expect the fourth to be used, long before the others' leases end, and the object to come
    obj = subscriber.receive(uid, 30.0)
    assert obj is not None
    assert obj.platform.sequence == 2
    assert publisher.status()["delegates"][delegate]["delegate"] == others[2]
    publisher.flush()
