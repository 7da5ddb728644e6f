"""Processes that hang for a while: SIGSTOP, and SIGCONT."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def test_a_subscriber_that_hangs_does_not_delay_others(field: Any, figures: Any) -> None:
    # Given two subscribers at one delegate, under leases that outlive the test
    field.leases(subscriber=60.0)
    pad = field.pad()
    adapter = field.light()
    registration = adapter.register_publisher(
        adapter.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    hanging = field.subscriber(bound=10)
    assert hanging.ready["servers"] == 1

    # When one hangs, and far more is published than its socket and its queue can hold
    hanging.signal(signal.SIGSTOP)
    payload = bytes(512 << 10)
    slowest = 0.0
    for _ in range(60):
        began = time.monotonic()
        sent = adapter.publish(registration, figures.figure_1, payload)
        received = subscriber.receive(subscription, 10.0)
        slowest = max(slowest, time.monotonic() - began)
        assert received is not None
        assert received.object_id == sent

    # Expect that the other got each object at once, and the hanging one has lost what its bound does not hold
    assert slowest < 1.0
    assert subscriber.losses(subscription) == {}
    status = {s["uid"]: s for s in field.status(pad)["subscriptions"]}
    assert set(status) == {subscription, hanging.ready["subscription"]}
    assert status[hanging.ready["subscription"]]["lost"]["queue_overflow"] >= 60 - 10 - 10
    queued = {k: v for s in field.status(pad)["sessions"] for k, v in s["queued"].items()}
    assert queued[hanging.ready["subscription"]] <= 10

    # When it goes on, expect that it gets the newest, in order
    hanging.signal(signal.SIGCONT)
    sequences = [hanging.fact()["sequence"]]
    while sequences[-1] != 60:
        sequences.append(hanging.fact()["sequence"])
    assert sequences == sorted(set(sequences))
    assert sequences[-10:] == list(range(51, 61))


def test_a_publisher_that_hangs_longer_than_its_lease_publishes_again(
    field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher process that has published three objects
    pad = field.pad()
    publisher = field.publisher()
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    publisher.ask(3)

    # When it hangs until the delegate has given it up, then goes on and publishes three more
    publisher.signal(signal.SIGSTOP)
    eventually(lambda: field.status(pad)["publishers"] == [], field.within)
    assert field.status(pad)["registrations"] == []
    publisher.signal(signal.SIGCONT)
    publisher.ask(3)

    # Expect all six, once each, in order
    received = []
    while len(received) < 6 and (obj := subscriber.receive(subscription, 5.0)) is not None:
        received.append((obj.platform.registration, obj.platform.sequence))
    assert received == [(publisher.ready["registration"], n) for n in range(1, 7)]
    publisher.ask(1)
    marker = subscriber.receive(subscription)
    assert marker is not None
    assert marker.platform.sequence == 7


def test_a_subscriber_that_hangs_longer_than_its_lease_receives_again(
    field: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber process that has received an object
    pad = field.pad()
    adapter = field.light()
    registration = adapter.register_publisher(
        adapter.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    subscriber = field.subscriber()
    adapter.publish(registration, figures.figure_1)
    assert subscriber.fact() == {"sequence": 1}

    # When it hangs until the delegate has dropped it, then goes on
    subscriber.signal(signal.SIGSTOP)
    eventually(lambda: field.status(pad)["sessions"] == [], field.within)
    assert field.status(pad)["subscriptions"] == []
    subscriber.signal(signal.SIGCONT)

    # Expect that it stands at the delegate again under its id, and receives
    eventually(lambda: [s["uid"] for s in field.status(pad)["subscriptions"]] == [subscriber.ready["subscription"]])
    adapter.publish(registration, figures.figure_1)
    assert subscriber.fact() == {"sequence": 2}


def test_a_subscriber_that_hangs_shorter_than_its_lease_loses_nothing(field: Any, figures: Any) -> None:
    # Given a subscriber process under a lease that outlives the test
    field.leases(subscriber=60.0)
    field.pad()
    adapter = field.light()
    registration = adapter.register_publisher(
        adapter.connect_to_delegate("alpha", "rome"), figures.schema, figures.figure_1
    )
    subscriber = field.subscriber()

    # When 500 objects are published while it hangs
    subscriber.signal(signal.SIGSTOP)
    for _ in range(500):
        adapter.publish(registration, figures.figure_1)
    adapter.flush()
    subscriber.signal(signal.SIGCONT)

    # Expect all of them, in order, once
    assert [subscriber.fact()["sequence"] for _ in range(500)] == list(range(1, 501))
