"""A delegate or peer publisher that stops in order says so: what it could not deliver is told, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _stop(walk: Any) -> None:
    if walk.kind == "delegate":
        walk.publishing.pad.stop(0.1)
    else:
        walk.publishing.adapter.close(0.1)


def test_who_has_got_everything_is_told_of_no_loss(own_walk: Any, eventually: Callable[..., Any]) -> None:
    # Given a subscription that has got all that was published
    uid = own_walk.subscribe()
    own_walk.publish(payload=b"all")
    assert own_walk.payloads(uid) == [b"all"]
    # When who delivers it stops in order
    _stop(own_walk)
    # Expect the session to end, with no loss to be told of
    eventually(lambda: not any(s["subscriptions"] for s in own_walk.subscriber.status()["sessions"]))
    assert own_walk.subscriber.losses(uid) == {}


def test_what_could_not_be_delivered_is_told_with_its_number(own_walk: Any, eventually: Callable[..., Any]) -> None:
    # Given a subscription with room for two, which takes none of five: two are with it, two wait, one is lost
    uid = own_walk.subscribe(bound=2, policy="drop_newest")
    own_walk.publish(payload=b"1")
    own_walk.publish(payload=b"2")
    eventually(lambda: own_walk.subscriber.queue_size(uid) == 2)
    for payload in (b"3", b"4", b"5"):
        own_walk.publish(payload=payload)
    # When who delivers stops
    _stop(own_walk)
    # Expect those that waited to be told, the others to be there, and nothing unknown
    eventually(lambda: "shutdown" in own_walk.subscriber.losses(uid))
    eventually(lambda: not any(s["subscriptions"] for s in own_walk.subscriber.status()["sessions"]))
    assert own_walk.subscriber.losses(uid) == {"queue_overflow": 1, "shutdown": 2}
    assert [obj.payload for obj in own_walk.subscriber.drain(uid)] == [b"1", b"2"]
