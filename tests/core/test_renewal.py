"""Leases are kept alive side by side: a grantor that hangs costs nobody else a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from jbi_pubsub.core.errors import JbiError, UnknownLeaseError, WireTimeoutError
from jbi_pubsub.core.renewal import RENEWALS_AT_ONCE, SWEPT, LeaseRenewalManager

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


def expect_renewals(manager: LeaseRenewalManager) -> None:
    """A grantor that answers is asked term after term."""
    renewed = threading.Semaphore(0)
    lost: list[JbiError] = []

    def answers() -> float:
        renewed.release()
        return 0.1

    manager.manage("answering", 0.1, answers, lost.append)
    for _ in range(3):
        assert renewed.acquire(timeout=LONG)
    assert lost == []


@pytest.mark.parametrize("hanging", [1, 7])
def test_a_renewal_that_hangs_delays_no_other(
    hanging: int, manager: LeaseRenewalManager, hang: Callable[[], float]
) -> None:
    # Given leases whose grantors hang, due before one whose grantor answers
    for number in range(hanging):
        manager.manage(f"hanging-{number}", 0.05, hang, _ignored)
    # Expect that one to be renewed term after term, while the others still hang
    expect_renewals(manager)
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


def test_a_grantor_of_many_leases_that_hangs_delays_nobody_elses(
    manager: LeaseRenewalManager, hang: Callable[[], float]
) -> None:
    # Given a grantor that hangs and has granted more leases than there are renewals at once, all due before another's
    for number in range(5 * RENEWALS_AT_ONCE):
        manager.manage(f"hanging-{number}", 0.05, hang, _ignored, grantor="hanging")
    # Expect that one to be renewed term after term
    expect_renewals(manager)


def test_the_leases_of_a_grantor_are_renewed_one_after_the_other_the_first_to_expire_first(
    manager: LeaseRenewalManager,
) -> None:
    # Given a grantor that is asked for a lease, and others of it that become due meanwhile
    asked, answer, done = threading.Event(), threading.Event(), threading.Semaphore(0)
    order: list[str] = []

    def slowly() -> float:
        asked.set()
        assert answer.wait(LONG)
        return 60.0

    def renewing(name: str) -> Callable[[], float]:
        def renew() -> float:
            order.append(name)
            done.release()
            return 60.0

        return renew

    manager.manage("first", 0.0, slowly, _ignored, grantor="one")
    assert asked.wait(LONG)
    for number in (3, 1, 2):
        manager.manage(f"lease-{number}", 0.05 * number, renewing(f"lease-{number}"), _ignored, grantor="one")
    others = threading.Semaphore(0)
    manager.manage("other", 0.2, lambda: others.release() or 60.0, _ignored)  # due behind them
    assert others.acquire(timeout=LONG)
    # When it answers
    answer.set()
    # Expect them to have their turns
    for _ in range(3):
        assert done.acquire(timeout=LONG)
    assert order == ["lease-1", "lease-2", "lease-3"]


def test_leases_that_come_and_go_leave_nothing_behind(manager: LeaseRenewalManager) -> None:
    # Given a long lease that stays
    manager.manage("stays", 86_400.0, lambda: 86_400.0, _ignored)
    # When thousands of others come and go
    for number in range(5000):
        manager.manage(number, 86_400.0, lambda: 86_400.0, _ignored)
        manager.remove(number)
    # Expect no more to be remembered of them than what is not worth a sweep
    assert len(manager) == 1
    assert len(manager._due) <= 2 + SWEPT


def test_leases_are_renewed_when_the_system_has_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a system that has no more threads for a while
    manager = LeaseRenewalManager("test")
    start, refused, renewed = threading.Thread.start, threading.Semaphore(2), threading.Event()

    def refuses(thread: threading.Thread) -> None:
        if thread.name.startswith("test-renew_") and refused.acquire(blocking=False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    # When a lease becomes due
    manager.manage("lease", 1.0, lambda: renewed.set() or 60.0, _ignored)
    # Expect it to be renewed in the end
    assert renewed.wait(LONG)
    manager.stop()
