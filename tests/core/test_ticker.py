"""Jobs that are done every so many seconds on one thread."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jbi_pubsub.core import ticker as module
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.ticker import WORKERS_MOST, Job, Step, Ticker

Eventually = Callable[..., Any]


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    """One of which no thread is left."""
    made = Ticker("our-ticker")
    yield made
    assert _ours() == []


def _ours() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("our-ticker"))


def _job(ticker: Ticker, seconds: float, name: str, step: Step, *, slow: bool = False) -> Job:
    job = Job(name, seconds, step, slow=slow, ticker=ticker)
    job.start()
    return job


def _stop(*jobs: Job) -> None:
    for job in jobs:
        job.stop(60.0)


def test_jobs_are_called_at_once_and_again_on_one_thread(ticker: Ticker, eventually: Eventually) -> None:
    on: list[tuple[str, threading.Thread]] = []
    jobs = [_job(ticker, 0.01, name, lambda name=name: on.append((name, threading.current_thread()))) for name in "ab"]  # type: ignore[misc]  # None
    eventually(lambda: len([name for name, _ in on if name == "a"]) > 2 and len([n for n, _ in on if n == "b"]) > 2)
    assert len({thread for _, thread in on}) == 1
    assert _ours() == ["our-ticker"]
    _stop(*jobs)


def test_a_step_says_when_it_is_called_next_and_can_be_woken_before(ticker: Ticker, eventually: Eventually) -> None:
    calls: list[float] = []

    def step() -> float:
        calls.append(time.monotonic())
        return math.inf

    job = _job(ticker, 0.0, "seldom", step)
    eventually(lambda: calls)
    time.sleep(0.05)
    assert len(calls) == 1
    job.wake()
    eventually(lambda: len(calls) == 2)
    _stop(job)


@pytest.mark.parametrize("slow", [False, True])
def test_who_is_woken_in_the_middle_is_called_once_more(ticker: Ticker, eventually: Eventually, *, slow: bool) -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), list[int]()

    def step() -> float:
        calls.append(1)
        begun.set()
        go_on.wait(60.0)
        return math.inf

    job = _job(ticker, 0.0, "woken", step, slow=slow)
    assert begun.wait(60.0)
    job.wake()
    job.wake()
    go_on.set()
    eventually(lambda: len(calls) == 2)
    time.sleep(0.02)
    assert len(calls) == 2
    _stop(job)


def test_a_job_that_fails_is_told_and_called_again(ticker: Ticker, eventually: Eventually) -> None:
    before = faults().get("a job that fails", 0)

    def fail() -> None:
        raise KeyError("mistake")

    job = _job(ticker, 0.01, "a job that fails", fail)
    eventually(lambda: faults().get("a job that fails", 0) >= before + 3)
    _stop(job)


@pytest.mark.parametrize("slow", [False, True])
def test_a_step_that_exits_ends_its_job_and_none_of_the_others(
    ticker: Ticker, eventually: Eventually, *, slow: bool
) -> None:
    calls: list[str] = []

    def leave() -> None:
        calls.append("leaves")
        sys.exit()

    jobs = [_job(ticker, 0.0, "leaves", leave, slow=slow), _job(ticker, 0.01, "stays", lambda: calls.append("stays"))]
    eventually(lambda: calls.count("stays") > 3)
    assert calls.count("leaves") == 1
    _stop(*jobs)


def test_after_stop_no_step_begins_and_none_is_under_way(ticker: Ticker) -> None:
    begun, under_way = threading.Event(), list[int]()

    def step() -> None:
        under_way.append(1)
        begun.set()
        time.sleep(0.05)
        under_way.pop()

    jobs = [_job(ticker, 0.0, "long", step, slow=slow) for slow in (False, True)]
    assert begun.wait(60.0)
    _stop(*jobs)
    assert under_way == []
    _stop(*jobs)


def test_a_step_that_hangs_holds_up_whoever_stops_the_last_job_for_its_seconds_once(ticker: Ticker) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(60.0)

    job = _job(ticker, 0.0, "hangs", hang, slow=True)
    assert begun.wait(60.0)
    began = time.monotonic()
    assert not job.stop(0.8)
    assert time.monotonic() - began < 1.5
    go_on.set()
    _stop(job)


@pytest.mark.parametrize("slow", [False, True])
def test_a_job_may_stop_itself(ticker: Ticker, eventually: Eventually, *, slow: bool) -> None:
    calls: list[int] = []
    made: list[Job] = []
    given = threading.Event()

    def step() -> None:
        given.wait(60.0)
        calls.append(1)
        made[0].stop(60.0)

    made.append(_job(ticker, 0.0, "once", step, slow=slow))
    given.set()
    eventually(lambda: not _ours())
    assert calls == [1]


def test_slow_jobs_hold_up_neither_others_nor_one_another(ticker: Ticker, eventually: Eventually) -> None:
    # Given as many slow jobs that hang as there may be workers
    go_on, hanging, quick = threading.Event(), list[int](), list[int]()

    def hang() -> None:
        hanging.append(1)
        go_on.wait(60.0)

    jobs = [_job(ticker, 60.0, f"slow {n}", hang, slow=True) for n in range(WORKERS_MOST + 1)]
    jobs.append(_job(ticker, 0.01, "quick", lambda: quick.append(1)))
    # Expect all but one to be called, and the quick one again and again
    eventually(lambda: len(hanging) == WORKERS_MOST)
    count = len(quick)
    eventually(lambda: len(quick) > count + 3)
    assert len(hanging) == WORKERS_MOST
    # When they go on, expect the last one to be called
    go_on.set()
    eventually(lambda: len(hanging) == WORKERS_MOST + 1)
    _stop(*jobs)


def test_slow_jobs_that_do_not_hang_share_a_worker_and_it_ends_when_idle(
    ticker: Ticker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(module, "LATE_SECONDS", 60.0)
    calls: list[int] = []
    jobs = [_job(ticker, 60.0, "slow", lambda: calls.append(1), slow=True) for _ in range(5)]
    eventually(lambda: len(calls) == 5)
    eventually(lambda: _ours() == ["our-ticker"])
    _stop(*jobs)


def test_a_job_that_holds_the_thread_too_long_is_told_and_slow_from_then_on(
    ticker: Ticker, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "HELD_SECONDS", 0.01)
    on: list[str] = []

    def step() -> None:
        on.append(threading.current_thread().name)
        time.sleep(0.05)

    job = _job(ticker, 0.0, "a long one", step)
    eventually(lambda: len(on) == 3)
    assert on == ["our-ticker", "our-ticker-slow", "our-ticker-slow"]
    assert [record.getMessage().partition(" for ")[0] for record in caplog.records] == [
        "a long one delayed all other jobs"
    ]
    _stop(job)


def test_the_threads_end_with_the_last_job_and_begin_with_the_next(ticker: Ticker, eventually: Eventually) -> None:
    for _ in range(3):
        calls: list[int] = []
        job = _job(ticker, 60.0, "one", lambda calls=calls: calls.append(1), slow=True)  # type: ignore[misc]  # None
        eventually(lambda calls=calls: calls)
        job.stop()
        assert _ours() == []


def test_a_job_may_begin_later_and_never_does_when_it_was_stopped(ticker: Ticker, eventually: Eventually) -> None:
    calls: list[int] = []
    job = Job("later", 60.0, lambda: calls.append(1), ticker=ticker)
    job.start(after=60.0)
    job.start()  # it has begun
    time.sleep(0.02)
    assert calls == []
    job.wake()
    eventually(lambda: calls)
    assert job.stop()
    job.start()
    assert _ours() == []


FORKING = """
import os, threading, time, warnings
from jbi_pubsub.core.ticker import Job

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork in a process with threads
began, go_on = threading.Event(), threading.Event()
parents = Job("parent's", 60.0, lambda: began.set() or go_on.wait(60.0))
parents.start()
assert began.wait(60.0)
child = os.fork()
if not child:
    has_ended, called = parents.stop(60.0), threading.Event()
    Job("child's", 60.0, called.set).start()
    os._exit(not (has_ended and called.wait(60.0)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), go_on.set(), parents.stop())
"""


@pytest.mark.processes
def test_a_forked_child_has_jobs_of_its_own_and_waits_for_none_of_its_parents() -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0 None True\n", done.stderr
    assert time.monotonic() - begun < 60.0
