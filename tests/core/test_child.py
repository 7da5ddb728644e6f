"""Work in child processes: what comes back, where the limits are, that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from jbi_pubsub.core.child import CallerAllowance, Children, Limits
from jbi_pubsub.core.errors import ChildError, SchemaError

pytestmark = [pytest.mark.processes, pytest.mark.children]

FOLDER = Path(__file__).parent
SOON = Limits(seconds=0.3, memory=256 << 20)


@pytest.fixture(autouse=True)
def _found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))


def work(name: str) -> str:
    return f"child_work:{name}"


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def cause(children: Children, name: str, data: bytes = b"", *, limits: Limits = SOON) -> tuple[str, str]:
    with pytest.raises(ChildError) as caught:
        children.run(work(name), data, limits=limits)
    return str(caught.value.facts["cause"]), caught.value.message


def test_a_function_gets_bytes_and_gives_bytes_whatever_it_prints() -> None:
    data = bytes(range(256)) * 4_000
    assert Children().run(work("echo"), data) == data


def test_an_error_of_ours_comes_back_as_it_was() -> None:
    with pytest.raises(SchemaError, match="no good") as caught:
        Children().run(work("refuse"), b"")
    assert (caught.value.hint, caught.value.facts) == ("Mend it", {"line": 3})


def test_time_and_memory_have_an_end_and_what_goes_wrong_is_said() -> None:
    children, soon = Children(), SOON._replace(clock=120.0)  # however busy the machine is
    assert cause(children, "spin", limits=soon) == ("seconds", "takes more than 0.3 s")
    assert cause(children, "grow", limits=soon) == ("memory", "takes more than 256 MiB of memory")
    assert cause(children, "crash")[0] == "crash"
    unexpected = "met an exception that nobody expected: ValueError: that was not expected"
    assert cause(children, "fail") == ("exception", unexpected)
    assert cause(children, "no_such_function")[0] == "exception"


@pytest.mark.slow
def test_the_clock_ends_a_child_that_only_waits() -> None:
    assert cause(Children(), "rest", b"60") == ("clock", f"did not end within {SOON.deadline} s by the clock")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_who_is_killed_from_outside_is_no_verdict_on_the_work(number: signal.Signals, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(cause, Children(), "pid", str(note).encode(), limits=Limits(20.0))
        eventually(lambda: note.exists() and note.read_text().endswith(" "))
        os.kill(int(note.read_text()), number)
        assert ended.result() == ("outside", f"ended its process by signal {number}")


def test_who_can_not_begin_or_meets_a_full_disk_is_no_verdict_on_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cause(Children(), "full") == ("outside", "was hindered: [Errno 28] No space left on device")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert cause(Children(), "echo")[0] == "outside"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert cause(Children(), "echo") == ("outside", "ended its process by status 1")


def test_a_child_gets_none_of_the_secrets_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hidden")
    assert b"hidden" not in Children().run(work("environment"), b"")


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    # Given a process with a child at work
    note = tmp_path / "pid"
    code = f"from jbi_pubsub.core.child import Children; Children().run('child_work:pid', {str(note).encode()!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        eventually(lambda: note.exists() and note.read_text().endswith(" "))
        child = int(note.read_text())
        # When it is killed
        os.kill(parent.pid, signal.SIGKILL)
    # Expect its child to end as well
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_no_more_children_than_places_and_who_waits_too_long_is_told(tmp_path: Path) -> None:
    # Given one place, taken by work without an end
    children, note = Children(places=1), tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(children.run, work("pid"), str(note).encode())
        eventually(lambda: note.exists() and note.read_text().endswith(" "))
        # When another one comes
        with pytest.raises(ChildError, match="no child process was free") as caught:
            children.run(work("echo"), b"", patience=0.05)
        assert caught.value.facts["cause"] == "busy"
        # Expect the place to be free when the first one is gone, however it went
        os.kill(int(note.read_text()), signal.SIGKILL)
        with pytest.raises(ChildError, match="signal 9"):
            taken.result()
    assert children.run(work("echo"), b"x") == b"x"


def test_one_caller_takes_one_place_and_leaves_the_others_to_others(tmp_path: Path) -> None:
    children, note = Children(places=2), tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(children.run, work("pid"), str(note).encode(), caller="stranger")
        eventually(lambda: note.exists() and note.read_text().endswith(" "))
        with pytest.raises(ChildError, match="no child process was free"):
            children.run(work("echo"), b"", caller="stranger", patience=0.05)
        assert children.run(work("echo"), b"x", caller="honest") == b"x"
        os.kill(int(note.read_text()), signal.SIGKILL)
        with pytest.raises(ChildError):
            taken.result()


def test_who_has_used_up_its_time_waits_and_others_do_not() -> None:
    children = Children(allowance=CallerAllowance(most=0.2, regained=0.001))
    with pytest.raises(ChildError):
        children.run(work("spin"), b"", limits=SOON, caller="stranger")
    with pytest.raises(ChildError, match="stranger used up the time") as caught:
        children.run(work("echo"), b"", caller="stranger")
    assert caught.value.facts["cause"] == "allowance"
    assert children.run(work("echo"), b"x", caller="honest") == b"x"


def test_time_comes_back_and_the_account_is_bounded() -> None:
    allowance = CallerAllowance(most=10.0, regained=0.1)
    allowance.use("a", 12.0, now=0.0)
    assert allowance.left("a", now=0.0) == -2.0
    assert allowance.wait("a", now=0.0) == pytest.approx(20.0)
    assert allowance.left("a", now=70.0) == pytest.approx(5.0)
    assert allowance.left("a", now=1e6) == 10.0
    for number in range(1_100):
        allowance.use(f"stranger {number}", 1.0, now=0.0)
    assert allowance.left("a", now=0.0) == -2.0  # who owes most is not forgotten


def test_many_threads_have_children_at_once() -> None:
    children = Children()
    before = {thread.name for thread in threading.enumerate()}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: children.run(work("echo"), b"%d" % n), range(8)))
    assert found == [b"%d" % n for n in range(8)]
    assert {thread.name for thread in threading.enumerate()} <= before
    assert not [child for child in psutil.Process().children() if "child_work" in " ".join(child.cmdline())]


def test_warnings_as_errors_do_not_hurt() -> None:
    code = "from jbi_pubsub.core.child import Children; print(Children().run('child_work:echo', b'x'))"
    said = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (said.stdout, said.stderr) == ("b'x'\n", "")
