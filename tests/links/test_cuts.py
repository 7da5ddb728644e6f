"""Connections are cut anywhere, at any byte; while the leases live nobody loses or repeats anything."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

OBJECTS = 20
CUTS = st.lists(st.integers(1, 30_000), min_size=1, max_size=3, unique=True)
FEW = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
"""The same few examples each time; the fixture stays open over all of them on purpose."""


def expect_once_and_in_order(scene: Any, first: int, sent: list[bytes]) -> None:
    """Every object from that number on arrives once, in order, with its bytes."""
    came = scene.receive(scene.published)
    assert [obj.platform.sequence for obj in came] == list(range(first, scene.published + 1))
    assert [obj.payload for obj in came] == sent


def payloads(count: int, *, seed: int = 1) -> list[bytes]:
    """Of 0 to 3 kB."""
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(3_000)) for _ in range(count)]


@pytest.mark.parametrize(("kind", "compression"), [("delegate", "none"), ("delegate", "deflate"), ("peer", "none")])
def test_cuts_of_a_subscribers_connections_lose_and_repeat_nothing(kind: str, compression: str, scene: Any) -> None:
    # Given a subscriber behind a link, whose lease outlives the test
    scene.leases(60.0)
    scene.set("link", compression=compression)
    scene.open(kind)
    link = scene.subscribers_link
    sent = payloads(OBJECTS)
    made = 0

    @FEW
    @given(down=CUTS, up=st.lists(st.integers(1, 300), max_size=2, unique=True))
    @example(down=[1], up=[1])
    @example(down=[7_000, 7_001, 7_002], up=[])
    def each(down: list[int], up: list[int]) -> None:
        nonlocal made
        # When objects are published, and the link is cut after so many bytes to and from the subscriber
        first, before = scene.published + 1, link.cuts
        link.cut_after("down", *down)
        link.cut_after("up", *up)
        scene.publish(*sent)

        expect_once_and_in_order(scene, first, sent)
        made += link.cuts - before

    each()
    link.cut_after("up")
    link.cut_after("down")

    # Expect that there were cuts, that the subscription is the one it was, and that the account is even
    assert made >= 6
    assert scene.local()["lost"] == {}
    assert scene.account()["delivered"] == scene.local()["arrived"] == scene.published
    assert scene.node.status()["lost"] == {}


def test_cuts_of_a_publishers_connections_lose_and_repeat_nothing(scene: Any) -> None:
    # Given a publisher behind a link, whose lease outlives the test
    scene.leases(60.0)
    scene.open()
    link = scene.publishers_link
    sent = payloads(OBJECTS)
    made = 0

    @FEW
    @given(up=st.lists(st.integers(1, 30_000), min_size=1, max_size=2, unique=True))
    @example(up=[1, 2])
    def each(up: list[int]) -> None:
        nonlocal made
        # When it publishes, and the link is cut after so many bytes
        first, before = scene.published + 1, link.cuts
        link.cut_after("up", *up)
        scene.publish(*sent)

        expect_once_and_in_order(scene, first, sent)
        made += link.cuts - before

    each()
    link.cut_after("up")
    link.cut_after("down")

    # Expect that there were cuts, and that the delegate has counted each object once
    assert made >= 5
    assert scene.local()["duplicates"] == 0
    assert scene.node.status()["published"] == scene.published
    assert scene.account()["delivered"] == scene.published


@pytest.mark.parametrize("side", ["subscribers_link", "publishers_link"])
def test_a_large_object_that_is_cut_in_the_middle_arrives_whole_and_once(side: str, scene: Any) -> None:
    # Given a link that is cut three times while 2 MB pass
    scene.leases(60.0)
    scene.open()
    link = getattr(scene, side)
    direction = "down" if side == "subscribers_link" else "up"
    large = random.Random(2).randbytes(2 << 20)
    link.cut_after(direction, 100_000, 900_000, 1_900_000)

    # When an object of 2 MB is published between two small ones
    scene.publish(b"before", large, b"after")

    # Expect all three, in order, each once
    came = scene.receive(3)
    digests = [hashlib.sha256(obj.payload).hexdigest() for obj in came]
    assert digests == [hashlib.sha256(payload).hexdigest() for payload in (b"before", large, b"after")]
    assert link.cuts == 3
    assert scene.local()["duplicates"] == 0
    assert scene.account()["delivered"] == 3


def test_cuts_at_both_ends_at_once_lose_and_repeat_nothing(scene: Any) -> None:
    # Given publisher and subscriber behind links that are cut again and again
    scene.leases(60.0)
    scene.open()
    rng = random.Random(3)
    for link, direction in ((scene.subscribers_link, "down"), (scene.publishers_link, "up")):
        link.cut_after(direction, *(rng.randrange(1, 400_000) for _ in range(5)))

    # When 300 objects are published
    scene.publish(*payloads(300))

    # Expect each once, in order
    assert scene.sequences(300) == list(range(1, 301))
    assert scene.subscribers_link.cuts + scene.publishers_link.cuts >= 8
    assert scene.account() == {
        "published": 300, "unmatched": 0, "suppressed": 0, "delivered": 300, "lost": 0, "waiting": 0,
    }  # fmt: skip


def test_objects_on_a_long_way_arrive_in_order_and_do_not_wait_for_each_other(
    scene: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber behind a link with 0.1 to 0.12 s delay each way (jitter within a connection keeps its order)
    scene.open()
    scene.subscribers_link.shape(delay=0.1, jitter=0.02)

    # When 300 objects are published
    began = time.monotonic()
    scene.publish(*payloads(300))

    # Expect all in order, long before 300 round trips of 0.2 s
    assert scene.sequences(300) == list(range(1, 301))
    assert time.monotonic() - began < 30.0
    assert scene.account()["delivered"] == 300
