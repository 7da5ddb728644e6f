"""Leases are kept alive side by side: a grantor that hangs costs nobody else a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from jbi_pubsub.core.errors import JbiError, UnknownLeaseError, WireTimeoutError
from jbi_pubsub.core.renewal import LeaseRenewalManager

LONG = 5.0
"""Seconds after which a test is given up."""


@pytest.fixture
def manager() -> Iterator[LeaseRenewalManager]:
    made = LeaseRenewalManager("test")
    yield made
    made.stop()


@pytest.fixture
def hang() -> Iterator[Callable[[], float]]:
    """A grantor that does not answer until the end of the test; then it says that it took too long."""
    over = threading.Event()

    def renew() -> float:
        over.wait(LONG * 2)
        raise WireTimeoutError("no answer")

    yield renew
    over.set()


def _ignored(_why: JbiError) -> None: ...


@pytest.mark.parametrize("hanging", [1, 7])
def test_a_renewal_that_hangs_delays_no_other(
    hanging: int, manager: LeaseRenewalManager, hang: Callable[[], float]
) -> None:
    # Given leases whose grantors hang, due before one whose grantor answers
    renewed = threading.Semaphore(0)
    lost: list[JbiError] = []
    for number in range(hanging):
        manager.manage(f"hanging-{number}", 0.05, hang, _ignored)

    def answers() -> float:
        renewed.release()
        return 0.1

    manager.manage("answering", 0.1, answers, lost.append)
    # Expect that one to be renewed term after term, while the others still hang
    for _ in range(3):
        assert renewed.acquire(timeout=LONG)
    assert lost == []
    assert len(manager) == hanging + 1


def test_a_grantor_out_of_reach_is_asked_again_within_the_term(manager: LeaseRenewalManager) -> None:
    # Given a grantor that can't be reached at first
    calls: list[int] = []
    lost: list[JbiError] = []
    reached = threading.Event()

    def renew() -> float:
        calls.append(1)
        if len(calls) == 1:
            raise WireTimeoutError("no answer")
        reached.set()
        return 60.0

    # When its lease becomes due
    manager.manage("lease", 1.0, renew, lost.append)
    # Expect a second try to keep the lease
    assert reached.wait(LONG)
    assert lost == []
    assert len(manager) == 1


def test_a_lost_lease_is_told_once(manager: LeaseRenewalManager) -> None:
    # Given a grantor that does not know the lease any more
    lost: list[JbiError] = []
    told = threading.Event()

    def renew() -> float:
        raise UnknownLeaseError("no such lease")

    def tell(why: JbiError) -> None:
        lost.append(why)
        told.set()

    # When it is to be renewed
    manager.manage("lease", 0.05, renew, tell)
    # Expect that to be told, and the lease to be managed no longer
    assert told.wait(LONG)
    assert len(manager) == 0
    assert [type(why) for why in lost] == [UnknownLeaseError]
