"""Pausing: what comes waits, nobody is told of it, and nothing is lost but by the bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.subscriber.listeners import FunctionListener, ListenerPool, SubscriptionUid
from jbi_pubsub.subscriber.subscription import LocalSubscription


def objects(*numbers: int) -> list[InfoObject]:
    return [InfoObject(str(n), TypeName("t"), b"<a/>", b"", Platform(1.0, "registration-1", n, 4, 0)) for n in numbers]


@pytest.fixture
def pool() -> Iterator[ListenerPool]:
    made = ListenerPool("pausing")
    yield made
    made.stop()


def nothing(count: int) -> None:
    """Whom a credit is returned to."""


def test_a_paused_subscription_gives_nothing_to_whoever_waits_and_all_of_it_afterwards(pool: ListenerPool) -> None:
    # Given
    one = LocalSubscription(SubscriptionRequest("s"), None, pool)
    waiting = threading.Thread(target=lambda: got.append(one.queue.take(30.0)))
    got: list[InfoObject | None] = []
    waiting.start()
    # When
    one.queue.pause()
    waiting.join(60.0)
    one.add(objects(1, 2), nothing)
    # Expect
    assert got == [None]
    one.queue.resume()
    assert [obj.object_id for obj in one.queue.drain()] == ["1", "2"]


def test_the_listener_of_a_paused_subscription_is_not_called_until_it_goes_on(
    pool: ListenerPool, eventually: Any
) -> None:
    # Given
    told: list[str] = []
    began, go = threading.Event(), threading.Event()

    def arrived(uid: SubscriptionUid, obj: InfoObject) -> None:
        began.set()
        go.wait(60.0)
        told.append(obj.object_id)

    one = LocalSubscription(SubscriptionRequest("s"), FunctionListener(arrived), pool)
    one.add(objects(1, 2, 3), nothing)
    began.wait(60.0)
    # When: it returns when the call under way has
    pausing = threading.Thread(target=one.queue.pause)
    pausing.start()
    go.set()
    pausing.join(20.0)
    paused_at = list(told)
    one.add(objects(4), nothing)
    # Expect
    assert len(paused_at) < 4
    assert told == paused_at
    one.queue.resume()
    eventually(lambda: told == ["1", "2", "3", "4"])


def test_a_listener_may_pause_and_resume_its_own_subscription(pool: ListenerPool, eventually: Any) -> None:
    # Given
    told: list[str] = []

    def arrived(uid: SubscriptionUid, obj: InfoObject) -> None:
        told.append(obj.object_id)
        one.queue.pause()

    one = LocalSubscription(SubscriptionRequest("s"), FunctionListener(arrived), pool)
    # When
    one.add(objects(1, 2), nothing)
    # Expect: one at a time
    eventually(lambda: told == ["1"] and not one.queue._is_submitted)
    one.queue.resume()
    eventually(lambda: told == ["1", "2"])
