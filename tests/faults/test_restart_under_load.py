"""Delegates end and come back under a publisher that goes on: what is missing is told, and nothing comes twice."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import LossNotice
from jbi_pubsub.core.info_object import Cause

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"
EVERY = 0.02


class Account:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.notices: list[LossNotice] = []

    def arrived(self, _uid: str, obj: Any) -> None:
        self.sequences.append(obj.platform.sequence)

    def lost(self, _uid: str, notice: LossNotice) -> None:
        self.notices.append(notice)


class Stream(threading.Thread):
    """A publisher that does not care what happens."""

    def __init__(self, publish: Callable[[], Any]) -> None:
        super().__init__(name="stream")
        self._publish = publish
        self.ended = threading.Event()
        self.published = 0

    def run(self) -> None:
        while not self.ended.wait(EVERY):
            self._publish()
            self.published += 1

    def stop(self) -> None:
        self.ended.set()
        self.join()


@pytest.mark.parametrize(
    ("number", "down", "delegates"),
    [
        (signal.SIGINT, 1.0, 1),
        (signal.SIGKILL, 0.5, 1),
        (signal.SIGTERM, 0.5, 2),
        *(
            pytest.param(None, None, None, marks=[pytest.mark.slow, pytest.mark.timeout(180)], id=f"random {seed}")
            for seed in range(50)
        ),
    ],
)
def test_what_is_missing_after_a_restart_is_told(
    number: int | None,
    down: float | None,
    delegates: int | None,
    federation: Any,
    figures: Any,
    start: Callable[..., Any],
    eventually: Callable[..., Any],
    request: pytest.FixtureRequest,
) -> None:
    # Given one or two delegates of the same characteristics, a publisher with 50 objects a second, and a subscriber
    dice = random.Random(request.node.name)
    number = number or dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    down = dice.choice((0.0, 0.3, 1.0, 3.0, 7.0)) if down is None else down
    delegates = delegates or dice.choice((1, 1, 2))
    locator = federation.lookups[0].address
    arguments = ("--no-multicast", "--locator", locator, "--set", "lease.lookup=5", "pad", "alpha", "rome", "--json")
    running = {facts["id"]: process for process in [start(*arguments) for _ in range(delegates)]
               for facts in [process.fact()]}  # fmt: skip
    account = Account()
    subscriber, publisher = federation.subscriber(), federation.light()
    subscriber.register_subscriber(type_name=TYPE, listener=account)
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
    stream = Stream(lambda: publisher.publish(registration, figures.figure_1, b"x", timeout=30.0))
    stream.start()
    try:
        # When, with no care for who has got how far, the one in use ends in that way and is started again so much later
        eventually(lambda: len(account.sequences) > dice.randrange(1, 60))
        used = publisher.status()["delegates"][at]["delegate"]
        running[used].signal(number)
        code = running[used].wait(15.0)
        threading.Event().wait(down)
        start(*arguments).fact()
        before = len(account.sequences)
        eventually(lambda: len(account.sequences) > before, 60.0, what="it goes on")
    finally:
        stream.stop()
    publisher.flush(60.0)

    # Expect every object once and in order, or to be told that it is lost: by a delegate that stops its number, by one
    # that is killed none
    def missing() -> set[int]:
        return set(range(1, stream.published + 1)) - set(account.sequences)

    def told() -> float:
        if any(notice.count == 0 for notice in account.notices):
            return float("inf")
        return sum(notice.count for notice in account.notices)

    eventually(lambda: account.sequences[-1] == stream.published and len(missing()) <= told(), 30.0,
               what=lambda: (len(missing()), sorted(missing())[:5], account.notices, code))  # fmt: skip
    assert account.sequences == sorted(set(account.sequences))
    causes = {notice.cause for notice in account.notices}
    assert causes <= ({Cause.DELEGATE_DEAD} if number == signal.SIGKILL else {Cause.SHUTDOWN})
    assert len(missing()) < 50, "no backlog is lost"
