"""The baton: one step of work at a time, the most important one first, and nobody with it waits."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator

import pytest

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.quality import Contract, Settings, Strategy
from jbi_pubsub.qos import tasks
from jbi_pubsub.qos.tasks import TaskManager
from tests.conftest import eventually

STRICT = Strategy(name="strict")


class Pieces:
    """Work of one contract: pieces, each of which says who did it; it stops at `gate` where there is one."""

    def __init__(self, log: list[str], name: str, importance: int = 3) -> None:
        self.contract = Contract(Settings(importance=importance))
        self.waiting: deque[str] = deque()
        self.threads: list[str] = []
        self.gate: threading.Event | None = None
        self.pauses: deque[float] = deque()
        self.failures = 0
        self.cpu = 0.0
        """Seconds of CPU that a piece takes."""
        self.has_begun = False
        self._log = log
        self._name = name

    def importance(self) -> int:
        return self.contract.settings.importance

    def size(self) -> int:
        return len(self.waiting) and 100

    def step(self, most: int) -> tuple[int, int, float]:
        assert most > 0
        self.has_begun = True
        if self.gate is not None:
            assert self.gate.wait(60.0)
        if self.failures:
            self.failures -= 1
            raise ValueError("a fault of ours")
        if self.pauses:
            return 0, 0, self.pauses.popleft()
        began = time.thread_time()
        while time.thread_time() - began < self.cpu:
            pass
        self.threads.append(threading.current_thread().name)
        self._log.append(f"{self._name}{self.waiting.popleft()}")
        return 1, 100, 0.0


@pytest.fixture
def manager() -> Iterator[TaskManager]:
    manager = TaskManager("test", STRICT)
    yield manager
    manager.close()


def busy(manager: TaskManager, log: list[str]) -> tuple[threading.Event, threading.Thread]:
    """Another thread has the baton, until the event is set."""
    holder = Pieces(log, "holder")
    holder.gate = threading.Event()
    holder.waiting.append("")
    task = manager.task("judge", holder, holder)
    thread = threading.Thread(target=manager.submit, args=(task,), name="connection")
    thread.start()
    eventually(lambda: task.is_queued)
    return holder.gate, thread


def test_when_nothing_waits_the_thread_that_brings_it_does_it(manager: TaskManager) -> None:
    # Given
    log: list[str] = []
    pieces = Pieces(log, "a")
    task = manager.task("judge", pieces, pieces)
    # When
    pieces.waiting.extend("123")
    manager.submit(task)
    # Expect: done when submit returns, without a thread of the manager's
    assert log == ["a1", "a2", "a3"]
    assert pieces.threads == [threading.current_thread().name] * 3
    assert not [each for each in threading.enumerate() if each.name == "judge-test"]
    assert manager.status()["at_once"] == 1
    assert manager.status()["kinds"]["judge"]["served"] == 3


def test_otherwise_it_waits_and_the_most_important_goes_first_in_its_own_order(manager: TaskManager) -> None:
    # Given: somebody else has the baton
    log: list[str] = []
    gate, thread = busy(manager, log)
    works = [Pieces(log, name, importance) for name, importance in (("low", 1), ("high", 5), ("mid", 3))]
    # When
    for work in works:
        work.waiting.extend("12")
        manager.submit(manager.task("judge", work, work))  # returns at once
    assert log == []
    assert manager.status()["waiting"] == 3
    gate.set()
    assert manager.drain(30)
    thread.join(60.0)
    # Expect
    assert log == ["holder", "high1", "high2", "mid1", "mid2", "low1", "low2"]
    assert {name for work in works for name in work.threads} == {"judge-test"}


def with_long_steps(manager: TaskManager) -> None:
    """Steps of more than 2 ms were usual until now."""
    usual = Pieces([], "usual")
    usual.cpu = 0.01
    usual.waiting.extend("12345678")
    manager.submit(manager.task("judge", usual, usual))
    assert manager.drain(30)


def test_long_steps_of_different_owners_are_done_at_a_time() -> None:
    # Given: two steps at a time at most; somebody holds the one, and a step of little importance the other
    log: list[str] = []
    manager = TaskManager("test", STRICT, judges=2)
    low, high, mid = (Pieces(log, name, importance) for name, importance in (("low", 1), ("high", 5), ("mid", 3)))
    for work in (low, high, mid):
        work.waiting.extend("12")
        work.cpu = 0.01
    with_long_steps(manager)
    gate, thread = busy(manager, log)
    low.gate = threading.Event()
    bringer = threading.Thread(target=manager.submit, args=(manager.task("judge", low, low),), name="bringer")
    bringer.start()
    eventually(lambda: low.has_begun)
    # When: more comes
    manager.submit(manager.task("judge", high, high))
    manager.submit(manager.task("judge", mid, mid))
    assert log == []
    low.gate.set()
    # Expect: who came first is first; of what waits the most important goes on, while the other step is not over
    eventually(lambda: len(log) == 6)
    assert log == ["low1", "high1", "high2", "mid1", "mid2", "low2"]
    gate.set()
    assert manager.drain(30)
    bringer.join(60.0)
    thread.join(60.0)
    manager.close()
    assert log[-1] == "holder"


def test_of_one_owner_one_step_is_done_at_a_time_whatever_else_is_free() -> None:
    # Given: long steps, two at a time; two tasks of one owner
    log: list[str] = []
    manager = TaskManager("test", STRICT, judges=2)
    with_long_steps(manager)
    first, second, other = Pieces(log, "first", 5), Pieces(log, "second", 5), Pieces(log, "other", 1)
    first.gate = threading.Event()
    for work in (first, second, other):
        work.waiting.extend("1")
    owner = object()
    task = manager.task("judge", first, owner)
    thread = threading.Thread(target=manager.submit, args=(task,), name="connection")
    thread.start()
    eventually(lambda: task.is_queued)
    # When
    manager.submit(manager.task("match", second, owner))
    manager.submit(manager.task("judge", other, other))
    # Expect: the less important one of another owner goes before
    eventually(lambda: log == ["other1"])
    assert manager.drain(0.0) is False
    first.gate.set()
    assert manager.drain(30)
    assert log == ["other1", "first1", "second1"]
    thread.join(60.0)
    manager.close()


def test_work_that_is_held_waits_for_one_step_of_its_owner_not_for_all() -> None:
    # Given: long steps are usual, two at a time; an owner's unimportant work, done at once by who brings it
    log: list[str] = []
    manager = TaskManager("test", STRICT, judges=2)
    with_long_steps(manager)
    owner = object()
    low, high = Pieces(log, "low", 1), Pieces(log, "high", 5)
    low.gate = threading.Event()
    low.waiting.extend("1234")
    high.waiting.append("1")
    task = manager.task("judge", low, owner)
    thread = threading.Thread(target=manager.submit, args=(task,), name="connection")
    thread.start()
    eventually(lambda: task.is_queued)
    # When
    manager.submit(manager.task("match", high, owner))
    low.gate.set()
    assert manager.drain(30)
    thread.join(60.0)
    manager.close()
    # Expect
    assert log == ["low1", "high1", "low2", "low3", "low4"]


def test_of_equals_what_is_likely_to_cost_less_goes_first(manager: TaskManager) -> None:
    # Given: two tasks of equal importance, one of which has cost 10 ms a piece so far, the other 0.1 ms
    log: list[str] = []
    gate, thread = busy(manager, log)
    for name, cost in (("costly", 0.01), ("cheap", 0.0001)):
        work = Pieces(log, name)
        work.waiting.extend("12")
        task = manager.task("judge", work, work)
        task.cost.learn(cost, 1, 100)
        # When
        manager.submit(task)
    gate.set()
    assert manager.drain(30)
    thread.join(60.0)
    # Expect
    assert log == ["holder", "cheap1", "cheap2", "costly1", "costly2"]


def test_levels_share_the_time_that_their_work_takes_and_not_its_pieces() -> None:
    # Given: weights 4:1; what is important takes 0.5 ms a piece, what is not 1.5 ms, and there is enough of both
    manager = TaskManager("test", Strategy(cpu=(1, 1, 1, 1, 4)))
    log: list[str] = []
    gate, thread = busy(manager, log)
    for name, importance, cpu, count in (("low", 1, 0.0015, 80), ("high", 5, 0.0005, 80)):
        work = Pieces(log, name, importance)
        work.cpu = cpu
        work.waiting.extend("." * count)
        manager.submit(manager.task("judge", work, work))
    # When
    gate.set()
    eventually(lambda: log.count("high.") == 80)
    manager.close()
    thread.join(60.0)
    # Expect: 40 ms of the one, 10 ms of the other meanwhile
    until = len(log) - log[::-1].index("high.")
    assert log[:until].count("low.") == pytest.approx(40 / 4 / 1.5, abs=1.5)


def test_what_was_done_while_nobody_else_wanted_anything_is_held_against_nobody() -> None:
    # Given: a level that was served at once for long, on its own and by way of a publisher of this process
    manager = TaskManager("test", Strategy(cpu=(1, 1, 1, 1, 1)))
    log: list[str] = []
    alone = Pieces(log, "alone", 5)
    alone.cpu = 0.001
    alone.waiting.extend("." * 40)
    manager.submit(manager.task("judge", alone, alone))
    manager.run(alone.contract, alone, lambda: alone.waiting.extend("." * 40))
    # When: it has to share with another one
    gate, thread = busy(manager, log)
    for name, importance in (("low", 1), ("high", 5)):
        work = Pieces(log, name, importance)
        work.cpu = 0.001
        work.waiting.extend("." * 20)
        manager.submit(manager.task("judge", work, work))
    gate.set()
    assert manager.drain(30)
    manager.close()
    thread.join(60.0)
    # Expect: turns, from the first on
    first = [each for each in log if each in ("low.", "high.")][:20]
    assert first.count("high.") == pytest.approx(10, abs=3), first


def test_what_is_brought_by_the_way_is_seen_behind_the_step(manager: TaskManager) -> None:
    # Given: a task whose step is being done
    log: list[str] = []
    pieces = Pieces(log, "a")
    pieces.gate = threading.Event()
    pieces.waiting.append("1")
    task = manager.task("judge", pieces, pieces)
    thread = threading.Thread(target=manager.submit, args=(task,))
    thread.start()
    eventually(lambda: task.is_queued)
    # When
    pieces.waiting.append("2")
    manager.submit(task)
    pieces.gate.set()
    thread.join(60.0)
    # Expect
    assert log == ["a1", "a2"]


def test_who_publishes_here_gets_the_baton_by_importance_and_works_on_his_own_thread(manager: TaskManager) -> None:
    # Given
    log: list[str] = []
    gate, holder = busy(manager, log)
    threads = []

    def publish(importance: int) -> None:
        contract = Contract(Settings(importance=importance))
        assert manager.run(contract, object(), lambda: log.append(threading.current_thread().name) or 42) == 42

    for importance in (1, 4, 5, 2):
        threads.append(threading.Thread(target=publish, args=(importance,), name=f"importance {importance}"))
        threads[-1].start()
        eventually(lambda: manager.status()["waiting"] == len(threads))
    # When
    gate.set()
    for thread in (holder, *threads):
        thread.join(60.0)
    # Expect
    assert log == ["holder", "importance 5", "importance 4", "importance 2", "importance 1"]


def test_what_run_raises_is_its_callers_and_the_baton_goes_on(manager: TaskManager) -> None:
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        manager.run(Contract(), object(), fail)
    assert manager.run(Contract(), object(), lambda: "next") == "next"


def test_whose_turn_does_not_come_is_told_and_leaves_nothing_behind(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    monkeypatch.setattr(tasks, "TURN_SECONDS", 0.05)
    gate, thread = busy(manager, [])
    # When
    with pytest.raises(BackPressureError, match="more important"):
        manager.run(Contract(Settings(importance=1)), object(), lambda: pytest.fail("his time is over"))
    gate.set()
    thread.join(60.0)
    # Expect
    assert manager.drain(30)
    assert manager.run(Contract(), object(), lambda: 1) == 1


def test_a_parked_task_waits_by_itself_and_comes_back(manager: TaskManager) -> None:
    # Given: something that can't go on for 0.2 s
    log: list[str] = []
    parked, other = Pieces(log, "parked", 5), Pieces(log, "other", 1)
    parked.pauses.append(0.2)
    parked.waiting.append("")
    other.waiting.extend("12")
    # When
    manager.submit(manager.task("judge", parked, parked))
    assert manager.status()["parked"] == 1
    manager.submit(manager.task("judge", other, other))
    # Expect: others are served meanwhile, on their own thread; and it is done at last
    assert log == ["other1", "other2"]
    assert manager.drain(30)
    assert log == ["other1", "other2", "parked"]


def test_what_is_parked_is_looked_at_again_when_contracts_change(manager: TaskManager) -> None:
    # Given: something that can't go on for an hour, as its contract is
    log: list[str] = []
    parked = Pieces(log, "parked")
    parked.pauses.append(3_600.0)
    parked.waiting.append("")
    manager.submit(manager.task("judge", parked, parked))
    assert (manager.status()["parked"], log) == (1, [])
    # When
    manager.changed()
    # Expect
    eventually(lambda: log == ["parked"])
    assert manager.drain(30)


def test_a_change_of_importance_moves_what_waits_already(manager: TaskManager) -> None:
    # Given
    log: list[str] = []
    gate, thread = busy(manager, log)
    low, high = Pieces(log, "low", 1), Pieces(log, "high", 5)
    for work in (low, high):
        work.waiting.extend("12")
        manager.submit(manager.task("judge", work, work))
    # When
    low.contract.settings, high.contract.settings = Settings(importance=5), Settings(importance=2)
    manager.changed()
    gate.set()
    assert manager.drain(30)
    thread.join(60.0)
    # Expect
    assert log == ["holder", "low1", "low2", "high1", "high2"]


def test_the_strategy_is_switched_while_tasks_wait() -> None:
    # Given
    log: list[str] = []
    manager = TaskManager("test", Strategy(name="weighted_fair"))
    gate, thread = busy(manager, log)
    low, high = Pieces(log, "low", 1), Pieces(log, "high", 5)
    for work in (low, high):
        work.waiting.extend("1" * 40)
        manager.submit(manager.task("judge", work, work))
    # When
    manager.changed(STRICT)
    gate.set()
    assert manager.drain(30)
    thread.join(60.0)
    manager.close()
    # Expect
    assert log == ["holder", *["high1"] * 40, *["low1"] * 40]
    assert manager.status()["strategy"] == "strict"


def test_a_fault_in_a_step_is_told_and_tried_again_and_others_go_on(
    manager: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    monkeypatch.setattr(tasks, "FAULT_SECONDS", 0.1)
    log: list[str] = []
    failing, good = Pieces(log, "failing"), Pieces(log, "good")
    failing.failures = 2
    failing.waiting.append("")
    good.waiting.append("")
    before = faults().get("judge-test: judge", 0)
    # When
    manager.submit(manager.task("judge", failing, failing))
    # Expect
    assert manager.status()["fault"] == "judge: ValueError: a fault of ours"
    manager.submit(manager.task("judge", good, good))
    assert log == ["good"]
    assert manager.drain(30)
    assert log == ["good", "failing"]
    assert manager.status()["fault"] == ""
    assert faults()["judge-test: judge"] == before + 2


def test_the_judging_thread_survives_what_nobody_foresaw(manager: TaskManager, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: a task that does not even tell its size
    monkeypatch.setattr(tasks, "FAULT_SECONDS", 0.1)
    log: list[str] = []
    gate, thread = busy(manager, log)

    class Broken(Pieces):
        def step(self, most: int) -> tuple[int, int, float]:
            self.size = lambda: most // 0  # type: ignore[method-assign]
            return 1, 1, 0.0

    broken, good = Broken(log, "broken", 5), Pieces(log, "good", 1)
    for work in (broken, good):
        work.waiting.append("")
        manager.submit(manager.task("judge", work, work))
    # When
    gate.set()
    thread.join(60.0)
    # Expect: the baton is not lost with it
    eventually(lambda: log == ["holder", "good"], what=lambda: log)
    assert faults()["judge-test"] >= 1
    assert manager.run(Contract(), object(), lambda: 1) == 1


def test_closing_ends_the_thread_and_lets_nobody_wait(manager: TaskManager) -> None:
    # Given: a thread of the manager's, something parked, something waiting
    log: list[str] = []
    parked = Pieces(log, "parked")
    parked.pauses.append(60.0)
    parked.waiting.append("")
    manager.submit(manager.task("judge", parked, parked))
    gate, thread = busy(manager, log)
    waiting = Pieces(log, "waiting")
    waiting.waiting.append("")
    manager.submit(manager.task("judge", waiting, waiting))
    ran: list[int] = []
    publisher = threading.Thread(target=lambda: ran.append(manager.run(Contract(), object(), lambda: 1)))
    publisher.start()
    eventually(lambda: manager.status()["waiting"] == 2)
    # When
    began = time.monotonic()
    manager.close()
    gate.set()
    # Expect
    for each in (thread, publisher):
        each.join(60.0)
    assert ran == [1]
    assert log == ["holder"]
    assert time.monotonic() - began < 50  # what is parked would be waited for a minute
    assert not [each for each in threading.enumerate() if each.name == "judge-test"]


@pytest.mark.row("Q-38")
def test_the_status_tells_each_level_and_kind(manager: TaskManager) -> None:
    # Given
    for kind, importance, count in (("judge", 1, 1), ("query", 5, 4)):
        work = Pieces([], "a", importance)
        work.waiting.extend("1" * count)
        manager.submit(manager.task(kind, work, work))
    # When
    told = manager.status()
    # Expect
    served = Counter[int]()
    for row in told["bins"]:
        served[row["importance"]] += row["served"]
        assert 3 * (row["importance"] - 1) <= row["bin"] < 3 * row["importance"]
    assert served == {1: 1, 5: 4}
    assert {kind: facts["served"] for kind, facts in told["kinds"].items()} == {"judge": 1, "query": 4}
    assert (told["waiting"], told["parked"], told["fault"]) == (0, 0, "")


def test_each_step_counts_at_its_own_importance_though_nothing_else_waits(manager: TaskManager) -> None:
    # Given: work whose pieces are as important as they say
    work = Pieces([], "a")
    work.importance = lambda: int(work.waiting[0])  # type: ignore[method-assign]
    work.waiting.extend("15515")
    # When
    manager.submit(manager.task("judge", work, work))
    # Expect
    served = Counter[int]()
    for row in manager.status()["bins"]:
        served[row["importance"]] += row["served"]
    assert served == {1: 2, 5: 3}


def test_costly_work_is_never_done_by_who_brings_it(manager: TaskManager) -> None:
    # Given: 28 ms a piece, and nothing else to do
    pieces = Pieces([], "a")
    task = manager.task("judge", pieces, pieces)
    task.cost.learn(0.028, 1, 100)
    # When
    pieces.waiting.extend("12")
    manager.submit(task)
    # Expect
    assert manager.drain(30)
    assert pieces.threads == ["judge-test", "judge-test"]


def test_work_that_becomes_costly_is_noticed_with_the_second_step(manager: TaskManager) -> None:
    # Given: work that has cost little, done at once, of which few steps are measured
    pieces = Pieces([], "a")
    task = manager.task("judge", pieces, pieces)
    for _ in range(tasks.MEASURED_EVERY):
        pieces.waiting.append("")
        manager.submit(task)
    step = pieces.step

    def costly(most: int) -> tuple[int, int, float]:
        began = time.thread_time()
        while time.thread_time() - began < 0.03:
            pass
        return step(most)

    pieces.step = costly  # type: ignore[method-assign]
    del pieces.threads[:]
    # When
    pieces.waiting.extend("1" * 6)
    manager.submit(task)
    assert manager.drain(30)
    # Expect
    assert len(pieces.threads) == 6
    assert pieces.threads[2:] == ["judge-test"] * 4
