"""No object is missing: published = not matched + suppressed + delivered + lost + waiting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"
TYPE = "mil.af.rl.jbi.Intel_Imagery"

SUBSCRIBER = f"""
import json, sys
import msgspec
from jbi_pubsub import Config, SubscriberAdapter
with SubscriberAdapter(msgspec.json.decode(CONFIG, type=Config)) as adapter:
    subscription = adapter.register_subscriber(type_name={TYPE!r}, **OPTIONS)
    print(json.dumps({{"matched": adapter.wait_matched(subscription)}}), flush=True)
    while True:
        obj = adapter.receive(subscription, 60.0)
        print(json.dumps({{"sequence": obj and obj.platform.sequence}}), flush=True)
"""


@pytest.fixture
def subscriber_process(start: Callable[..., Any]) -> Callable[..., Any]:
    """A subscriber as a process of its own, which tells what it receives."""

    def begin(config: Any, **options: Any) -> Any:
        made = f"CONFIG = {msgspec.json.encode(config)!r}\nOPTIONS = {options!r}\n"
        process = start(script=made + SUBSCRIBER)
        assert process.fact() == {"matched": 1}
        return process

    return begin


@pytest.mark.row("Q-03")
@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_what_matches_nobody_and_what_a_filter_suppresses_is_in_the_account(
    kind: str, scene: Any, figures: Any
) -> None:
    # Given a subscription with a predicate, and a filter that selects something in one of two payloads
    scene.open(
        kind,
        predicate="/metadata/ImageDescriptor/LocationCoord/lat>33.2",
        payload_filter="//a",
        suppress_empty=True,
    )

    # When three objects match, one of which is suppressed, and two do not
    scene.publish(b"<x><a/></x>", b"<x><b/></x>")
    scene.publish(b"<x/>", b"<x/>", metadata=figures.metadata(lat="10"))
    scene.publish(b"<x><a/></x>")

    # Expect each in its place
    assert scene.sequences(5) == [1, 5]
    assert scene.account() == {
        "published": 5, "unmatched": 2, "suppressed": 1, "delivered": 2, "lost": 0, "waiting": 0,
    }  # fmt: skip


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "size"), [("delegate", 100), ("peer", 1_500_000)], ids=["delegate-small", "peer-in chunks"]
)
def test_what_was_on_its_way_to_a_killed_subscriber_is_lost_and_counted(
    kind: str, size: int, scene: Any, subscriber_process: Callable[..., Any]
) -> None:
    # Given a subscriber process that hangs after its first object, with more on the way to it
    scene.set("lease", subscriber=4.0)  # longer than publishing takes on a busy machine
    scene.open_publisher(kind)
    subscriber = subscriber_process(scene.config)
    scene.publish(b"first")
    assert subscriber.fact() == {"sequence": 1}
    scene.account()
    subscriber.signal(signal.SIGSTOP)
    scene.publish(*[bytes(size)] * 8)
    if kind == "delegate":
        scene.publisher.flush()

    # When it is killed and its lease has run out
    subscriber.signal(signal.SIGKILL)
    scene.eventually(lambda: scene.node.status()["sessions"] == [], what="the lease runs out")

    # Expect that all eight are lost for one reason, and that later ones match nobody
    scene.eventually(
        lambda: scene.node.status()["lost"] == {"subscriber_dead": 8}, what=lambda: scene.node.status()["lost"]
    )
    scene.publish(b"after")
    assert scene.account() == {
        "published": 10, "unmatched": 1, "suppressed": 0, "delivered": 1, "lost": 8, "waiting": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("bound", "size"), [(50, 100), (5, 1_500_000)], ids=["small", "in chunks"])
def test_what_waits_for_a_subscription_that_is_cancelled_is_lost_and_counted(bound: int, size: int, scene: Any) -> None:
    # Given a subscription whose application takes nothing: so many are with it as the bound says, three more wait
    scene.open("peer", bound=bound, policy="block")
    scene.publish(*[bytes(size)] * (bound + 3))
    scene.eventually(lambda: scene.account() and scene.node.status()["delivered"] == bound)
    assert scene.account()["waiting"] == 3

    # When it is cancelled
    scene.subscriber.cancel_subscription(scene.subscription)

    # Expect the three in the account
    assert scene.node.status()["lost"] == {"cancelled": 3}
    assert scene.account()["delivered"] == bound


def test_what_a_node_could_not_deliver_before_it_stopped_is_lost_and_counted(scene: Any) -> None:
    # Given a delegate with objects for a subscriber whose link hangs
    scene.open()
    scene.publish(b"first")
    assert scene.sequences(1) == [1]
    scene.account()
    scene.subscribers_link.down(silent=True)
    scene.publish(*[b"more"] * 5)
    scene.publisher.flush()

    # When it stops
    left = scene.node.stop(0.2)

    # Expect that it says so
    assert left == 5
    assert scene.node.status()["lost"] == {"shutdown": 5}
    scene.subscribers_link.up()


def test_a_publisher_held_up_for_a_subscription_that_is_cancelled_goes_on_and_nothing_is_missing(scene: Any) -> None:
    # Given a subscription with room for one object that holds its publisher up, and an application that takes nothing
    scene.set("queue", block_seconds=30.0)
    scene.open("peer", bound=1, policy="block")

    # When one object is with it, one waits, the publisher is held up with the third, and the subscription is cancelled
    publishing = threading.Thread(target=scene.publish, args=(b"delivered", b"waits", b"held up"))
    publishing.start()
    scene.eventually(lambda: scene.published == 2 and scene.node.status()["published"] == 3)
    scene.eventually(lambda: scene.node.status()["delivered"] == 1)
    scene.subscriber.cancel_subscription(scene.subscription)

    # Expect that the publisher goes on at once, that all three are in the account, and that no memory is held
    publishing.join(60.0)
    assert not publishing.is_alive()
    assert scene.node.status()["lost"] == {"cancelled": 2}
    assert scene.account()["delivered"] == 1
    assert scene.node.status()["queued_bytes"] == 0
