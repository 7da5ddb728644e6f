"""Leases are kept alive side by side: a grantor that hangs costs nobody else a lease."""

from __future__ import annotations

import itertools
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from jbi_pubsub.core.errors import JbiError, ProtocolError, UnknownLeaseError, WireTimeoutError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.renewal import (
    PAUSE_LEAST,
    RENEWALS_AT_ONCE,
    TERM_MOST,
    LeaseRenewalManager,
    is_term,
)

ENDING = """
import time
from jbi_pubsub.core.renewal import LeaseRenewalManager
manager = LeaseRenewalManager("ending")
manager.manage("slow", 0.2, lambda: time.sleep(1.0) or 0.2, print)
for number in range(20):
    manager.manage(number, 0.3, lambda: 0.3, print)
time.sleep(0.2)
"""
LONG = 30.0
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


# -- grantors of any kind -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", [0.0, 1e-300, 5e-324, 1e-9, -1.0, -math.inf, math.nan])
@pytest.mark.parametrize("first", [True, False])
def test_a_grantor_of_no_time_at_all_is_not_asked_without_end(
    term: float, first: bool, manager: LeaseRenewalManager
) -> None:
    # Given a grantor that grants next to nothing, or what is no time, at once or from the first renewal on
    asked: list[float] = []
    lost: list[JbiError] = []

    def renew() -> float:
        asked.append(time.monotonic())
        return term

    manager.manage("lease", term if first else 0.05, renew, lost.append)
    # When it is renewed again and again
    deadline = time.monotonic() + LONG
    while len(asked) < 4 and not lost and time.monotonic() < deadline:
        time.sleep(0.01)
    # Expect pauses between the calls, or the lease to be given up
    assert len(asked) >= 4 or lost
    assert all(later - sooner >= PAUSE_LEAST / 2 for sooner, later in itertools.pairwise(asked))
    # Expect who grants what is no term to lose it, by our error
    if not is_term(term):
        assert [type(why) for why in lost] == [ProtocolError]


@pytest.mark.parametrize("term", [math.inf, 1e300, 1e12])
def test_a_grantor_of_eternity_is_asked_again_within_a_year_and_holds_up_nobody(
    term: float, manager: LeaseRenewalManager
) -> None:
    # Given a lease for ever, as far as its grantor is concerned, and another one
    manager.manage("eternal", term, lambda: term, _ignored)
    manager.manage("renewed to eternity", 0.05, lambda: term, _ignored)
    # Expect the other to be renewed, and the first to be due before a year is over
    expect_renewals(manager)
    assert len(manager) == 3
    assert manager._due.time("eternal") < time.monotonic() + TERM_MOST
    assert manager._due.time("renewed to eternity") < time.monotonic() + TERM_MOST


def test_a_renewal_that_fails_in_an_unforeseen_way_is_tried_again(
    manager: LeaseRenewalManager, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a renewal that raises once what nobody expects
    renewed = threading.Event()
    lost: list[JbiError] = []
    before = faults().get("renewal of a lease", 0)

    def renew() -> float:
        if faults().get("renewal of a lease", 0) == before:
            raise KeyError("unexpected")
        renewed.set()
        return 60.0

    # When it is due; Expect that to be logged and counted, and the lease to be kept
    with caplog.at_level(logging.ERROR):
        manager.manage("lease", 1.0, renew, lost.append)
        assert renewed.wait(LONG)
    assert lost == []
    assert faults()["renewal of a lease"] == before + 1
    assert "renewal of a lease failed and continues: KeyError" in caplog.text
    assert len(manager) == 1


def test_who_fails_when_it_is_told_of_a_loss_ends_nothing(manager: LeaseRenewalManager) -> None:
    # Given somebody who fails when told that a lease is lost
    before = faults().get("renewal of a lease", 0)
    told = threading.Event()

    def refuse() -> float:
        raise UnknownLeaseError("no such lease")

    def fail(_why: JbiError) -> None:
        told.set()
        raise KeyError("unexpected")

    manager.manage("lease", 0.05, refuse, fail, grantor="one")
    assert told.wait(LONG)
    # Expect other leases to be renewed, of the same grantor as well
    renewed = threading.Event()
    manager.manage("other", 0.05, lambda: renewed.set() or 60.0, _ignored, grantor="one")
    assert renewed.wait(LONG)
    expect_renewals(manager)
    assert faults()["renewal of a lease"] == before + 1


def test_a_fault_in_the_loop_of_renewals_does_not_end_it(
    manager: LeaseRenewalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a loop whose next step fails
    failed = threading.Event()
    hands_out = manager._job.step

    def once() -> float | None:
        if not failed.is_set():
            failed.set()
            raise KeyError("unexpected")
        return hands_out()

    before = faults().get("lease renewal", 0)
    monkeypatch.setattr(manager._job, "step", once)
    # Expect renewals to go on
    expect_renewals(manager)
    assert failed.wait(LONG)
    expect_renewals(manager)
    assert faults()["lease renewal"] == before + 1


def test_a_lease_that_is_hastened_is_renewed_at_once(manager: LeaseRenewalManager) -> None:
    # Given a lease of a minute, whose grantor would give an hour by now
    renewed = threading.Event()

    def longer() -> float:
        renewed.set()
        return 3600.0

    manager.manage("lease", 60.0, longer, _ignored)
    assert not renewed.is_set()
    # When it is hastened; Expect it to be renewed now, not after 24 s; and nothing for one that is not managed
    manager.hasten("another")
    manager.hasten("lease")
    assert renewed.wait(LONG)


@pytest.mark.processes
def test_a_program_that_ends_without_closing_says_nothing_of_its_leases() -> None:
    # Given a program that ends while a lease is renewed slowly, and others are due
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120, check=True)
    # Expect no word of it
    assert (done.stdout, done.stderr) == ("", "")
