"""Publishing, subscribing, taking, cancelling and cuts in any order: the account comes out even in the end."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.info_object import Cause, InfoObject

TYPE = "mil.af.rl.jbi.Intel_Imagery"
STEPS = 150
SIZES = (0, 10, 1_000, 20_000, 700_000)
FILTERED = b"<x><y>kept</y><z>left out</z></x>"


class Scene:
    """Two delegates with a publisher each, and the subscriptions of one process, of every policy."""

    def __init__(self, federation: Any, figures: Any, eventually: Callable[..., Any], chance: random.Random) -> None:
        queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.002)
        lease = msgspec.structs.replace(federation.config.lease, publisher=60.0, subscriber=60.0)  # none runs out
        federation.config = msgspec.structs.replace(federation.config, queue=queue, lease=lease)
        self.chance = chance
        self.eventually = eventually
        self.figures = figures
        self.pads = [federation.pad(name) for name in ("alpha", "beta")]
        self.publisher = federation.light()
        self.registrations = [
            self.publisher.register_publisher(
                self.publisher.connect_to_delegate(name), figures.schema, figures.figure_1
            )
            for name in ("alpha", "beta")
        ]
        self.subscriber = federation.subscriber()
        self.standing: list[Any] = []
        self.taken: dict[Any, list[InfoObject]] = {}
        self.published = Counter[str]()

    def subscribe(self) -> None:
        """One more, matched at both delegates."""
        uid = self.subscriber.register_subscriber(
            type_name=TYPE,
            bound=self.chance.choice([1, 3, 20, 1000]),
            policy=self.chance.choice(["drop_oldest", "drop_newest", "block"]),
            payload_filter=self.chance.choice(["", "", "//y"]),
        )
        assert self.subscriber.wait_matched(uid, 2) == 2
        self.standing.append(uid)
        self.taken[uid] = []

    def cancel(self) -> None:
        """The one that has stood longest."""
        if len(self.standing) > 3:
            self.subscriber.cancel_subscription(self.standing.pop(0))

    def publish(self) -> None:
        """Some objects of one registration."""
        registration = self.chance.choice(self.registrations)
        for _ in range(self.chance.choice([1, 1, 5, 40])):
            size = self.chance.choices(SIZES, (4, 8, 8, 4, 1))[0]
            payload = FILTERED if self.chance.random() < 0.2 else self.chance.randbytes(size)
            self.publisher.publish(registration, self.figures.figure_1, payload, timeout=20.0)
            self.published[registration] += 1

    def take(self) -> None:
        """What waits for some subscriptions."""
        for uid in self.chance.sample(self.standing, len(self.standing) // 2):
            self.taken[uid] += self.subscriber.drain(uid)

    def cut(self) -> None:
        """Connections of a delegate, of either plane, and of either party."""
        pad = self.chance.choice(self.pads)
        connections = list(pad.endpoints.first.connections._open)
        for sock in self.chance.sample(connections, min(2, len(connections))):
            with suppress(OSError):  # it is over already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def settle(self) -> None:
        """Everything that was published arrives, or is lost, and is taken."""

        def taken() -> bool:
            for uid in self.standing:
                self.taken[uid] += self.subscriber.drain(uid)
            with suppress(BackPressureError):
                self.publisher.flush(0.0)
                flushed.append(True)
            sessions = [s for pad in self.pads for s in pad.status()["sessions"]]
            waiting = any(s["in_flight"] or any(s["queued"].values()) or not s["connected"] for s in sessions)
            return bool(flushed) and not waiting and not any(pad.delegate.drain(0.0) for pad in self.pads)

        flushed: list[bool] = []
        self.eventually(taken)
        taken()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_account_is_even_after_any_order_of_events(
    seed: int, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two delegates, and three subscriptions
    scene = Scene(federation, figures, eventually, random.Random(seed))
    for _ in range(3):
        scene.subscribe()
    # When everything happens that may, in any order
    steps = [scene.subscribe, scene.cancel, scene.publish, scene.take, scene.cut]
    for step in scene.chance.choices(steps, (1, 1, 12, 8, 2), k=STEPS):
        step()
    scene.settle()

    for pad in scene.pads:
        status = pad.status()
        # Expect each delegate to have taken each object once
        (registration,) = status["registrations"]
        assert (registration["published"], registration["refused"]) == (scene.published[registration["uid"]], 0)
        # Expect what matched to be delivered or lost, in all and for each subscription that stands
        assert status["lost"].get(Cause.SEQUENCE_GAP, 0) == 0
        assert status["matched"] == status["delivered"] + sum(status["lost"].values())
        for each in status["subscriptions"]:
            assert each["matched"] == each["delivered"] + sum(each["lost"].values())
    local = scene.subscriber.status()["subscriptions"]
    for uid in scene.standing:
        # Expect what was delivered to have been taken, in order, and each loss to have been told
        there = [s for pad in scene.pads for s in pad.status()["subscriptions"] if s["uid"] == uid]
        assert len(scene.taken[uid]) == sum(s["delivered"] for s in there)
        assert local[uid]["duplicates"] == 0
        told = sum((Counter(s["lost"]) for s in there), Counter())
        eventually(lambda uid=uid, told=told: Counter(scene.subscriber.losses(uid)) == told)
        for registration in scene.registrations:
            numbers = [o.platform.sequence for o in scene.taken[uid] if o.platform.registration == registration]
            assert numbers == sorted(set(numbers))
    # Expect nothing to be left of it when all is cancelled
    for uid in scene.standing:
        scene.subscriber.cancel_subscription(uid)
    for pad in scene.pads:
        eventually(lambda pad=pad: pad.status()["subscriptions"] == [])
        assert pad.status()["queued_bytes"] == 0
