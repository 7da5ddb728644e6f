"""Leases of durable subscriptions, when the wall clock is set. Both clocks are numbers, far apart."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from keeping import MemoryKeeping

from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.past.durable import Durables
from jbi_pubsub.protocol.requests import SubscriptionRequest

LEASE = 2_592_000.0
YEARS = 2 * 31_557_600.0
REQUEST = SubscriptionRequest("s" * 32, durable="fusion-1", secret="m" * 32)


@dataclass
class Session:
    """A subscriber's session."""

    session_id: str = "one"
    name: str = "asker"
    has_gone: bool = False

    def note_refused(self) -> None: ...


class World:
    """A delegate's durable subscriptions, on a host whose wall clock is set."""

    def __init__(self) -> None:
        self.clock, self.wall = 1_000.0, 1_800_000_000.0
        self.keeping = MemoryKeeping()
        self.start()

    def start(self) -> None:
        """Another process of the delegate."""
        self.durables = Durables(
            self.keeping, LEASE, list, RequestQuota(), wall=lambda: self.wall, clock=lambda: self.clock
        )

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.clock += seconds
        self.wall += seconds
        self.durables.note()

    def leave_behind(self) -> None:
        """A durable subscription whose subscriber is away."""
        self.durables.detach(self.durables.attach(REQUEST, Caller("1.2.3.4:5"), Session(), lambda: 0))
        self.later(1.0)

    def left(self) -> list[object]:
        """Seconds that those which are there have yet."""
        return [each["ends"] for each in self.durables.status()]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("step", [YEARS, -YEARS])
def test_it_goes_on_when_the_wall_clock_is_set_and_over_a_restart_then(world: World, step: float) -> None:
    # Given one whose subscriber is away
    world.leave_behind()
    # When the wall clock is set
    world.wall += step
    world.later(1.0)
    # Expect it to have what was left, also after a restart
    assert world.left() == [LEASE - 2.0]
    world.start()
    world.later(1.0)
    assert world.left() == [LEASE - 3.0]
    # And to end with that
    world.later(LEASE)
    assert world.left() == []
    assert not world.keeping.durables


def test_none_has_more_than_a_lease_when_the_clock_was_ahead_before_a_restart(world: World) -> None:
    # Given one of a delegate whose clock was ahead
    world.wall += YEARS
    world.start()
    world.leave_behind()
    # When the delegate is started again, with the clock right, expect a lease
    world.wall -= YEARS
    world.start()
    assert world.left() == [LEASE]
    world.later(LEASE + 1.0)
    assert world.left() == []
