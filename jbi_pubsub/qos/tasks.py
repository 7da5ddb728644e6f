"""Turns to work: always the most important of what waits, one step of work at a time, or some where steps are long.

Whoever submits work that costs little when nothing waits and nothing is done takes a baton (see batons.py), and works
on his own thread, without a hand-over; otherwise the work waits in bins, and the thread `judge-<name>`, with further
ones where there are more batons, does one step after the other: who brings work is not to be held up by it. Who
publishes in this process (`run`) works on his own thread, too, when his turn comes.

Nobody with a baton waits, for a contract, a disk or a socket: a task whose step can't go on says when to try again,
and is parked meanwhile. Of an owner's tasks, such as those of a registration, there is one step at a time, which keeps
the order of what they do. What a step costs is measured (CPU time of its thread) and charged to its level; what the
next one will cost is estimated from that.

Steps of another kind than judging (`kind`: "match", "shape") share the same bins. Queries have no part in it: an
archive's worker evaluates predicates, a process of its own with less priority (archive/worker.py).
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.quality import LEVELS, Contract, Strategy
from jbi_pubsub.core.scheduling import Work
from jbi_pubsub.protocol.status.quality import BinStatus, TasksStatus, WorkStatus
from jbi_pubsub.qos.batons import Batons
from jbi_pubsub.qos.bins import Bins, Cost, Ticket

R = TypeVar("R")

STEP_SECONDS: Final = 0.002
"""Estimated cost of a step that has more than one piece: how long an important task waits for it at most."""
STEP_MOST: Final = 1 << 30
"""Bytes of a step when nothing is known of their cost: its work knows what it does at most."""
MEASURED_EVERY: Final = 8
"""Steps done at once, while nobody else wants anything, of which one in so many has its CPU time taken; of the others
the time that goes by is looked at: when that is long, which may be others' doing, the next one is measured."""
FAULT_SECONDS: Final = 1.0
"""Until what has failed in a way that nobody foresaw is tried again."""
TURN_SECONDS: Final = 30.0
"""Seconds that `run` waits for its turn at most."""
DRAIN_SECONDS: Final = 0.005
"""Seconds between two looks whether anything is left."""
IDLE_SECONDS: Final = 60.0
"""Seconds that the judging thread sleeps at most."""
JUDGES_MOST: Final = 4
"""Judging threads at most."""


class Task:
    """Work that is done when its turn comes, as often as it is submitted. TaskManager.task makes it."""

    __slots__ = ("cost", "is_queued", "is_suspect", "kind", "owner", "work")

    def __init__(self, kind: str, work: Work, owner: object) -> None:
        self.kind = kind
        self.work = work
        self.owner = owner
        self.cost = Cost()
        self.is_queued = False
        """Whether it waits, is parked or held, or its step is being done."""
        self.is_suspect = False
        """Its last step took long, and was not measured."""

    def place(self) -> tuple[int, float]:
        """The importance and estimated cost of its next step."""
        return self.work.importance(), self.cost.of(self.work.size())

    def most(self) -> int:
        """Bytes of one step, at least 1."""
        second = self.cost.of(1)
        return max(1, int(STEP_SECONDS / second)) if second * STEP_MOST > STEP_SECONDS else STEP_MOST


class _Waiter:
    """Caller who waits in `run` for his turn."""

    __slots__ = ("contract", "costs", "has_left", "owner", "ticket", "turn")

    def __init__(self, contract: Contract, owner: object, costs: Sequence[Cost]) -> None:
        """`costs` by level."""
        self.owner = owner
        self.contract = contract
        self.costs = costs
        self.turn = threading.Event()
        self.ticket: Ticket = 0
        self.has_left = False

    def place(self) -> tuple[int, float]:
        """As that of a task."""
        importance = self.contract.settings.importance
        return importance, self.costs[importance - 1].of(1)


class TaskManager:
    """The Task Management LQM (QED, section III.A). `_lock` covers all state; steps are done without it."""

    def __init__(self, name: str, strategy: Strategy | None = None, *, bins: int = 15, judges: int = 1) -> None:
        """`name` of the delegate; `bins`: see [qos] bins; `judges`: steps at a time at most."""
        self._name = f"judge-{name}"
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """For the judging threads."""
        self._bins: Bins[Task | _Waiter] = Bins(strategy or Strategy(), bins=bins)
        self._batons: Batons[Task | _Waiter] = Batons(judges)
        self._handed: deque[tuple[Task, Ticket]] = deque()
        """Tasks that a judging thread is to do, each with a baton, which is its own then."""
        self._parked: list[tuple[float, int, Task]] = []
        self._threads: list[threading.Thread] = []
        self._is_stopping = False
        self._run_costs = [Cost() for _ in range(LEVELS)]
        self._done: list[list[float]] = [[0, 0.0] for _ in range(LEVELS * bins)]
        """Pieces of each level and bin that were done, and their seconds."""
        self._kinds: dict[str, list[float]] = {}
        """The same of each kind."""
        self._at_once = 0
        self._failing: dict[Task, str] = {}

    @property
    def is_strict(self) -> bool:
        """Whether nothing is done while something more important waits."""
        return self._bins.strategy.name == "strict"

    def task(self, kind: str, work: Work, owner: object) -> Task:
        """A task, to be submitted whenever there is something to do for it; one at a time of an `owner`."""
        return Task(kind, work, owner)

    def seconds(self, task: Task) -> float:
        """Seconds that a piece of it takes, by what was measured; 0.0: nothing was."""
        return task.cost.each

    def submit(self, task: Task) -> None:
        """There is something to do. Never waits, but does it at once, on this thread, when it costs little and nothing
        else is to be done. One whose step is being done is looked at again behind that."""
        with self._lock:
            if task.is_queued or not (size := task.work.size()):
                return
            task.is_queued = True
            cost = task.cost.of(size)
            if self._batons.out or self._bins.waiting or self._is_stopping or cost > STEP_SECONDS:
                self._bins.put(task, task.work.importance(), cost)
                self._hand_out()
                return
            self._batons.may_begin(task)
            self._at_once += 1
            ticket: Ticket | None = self._bins.ticket(task.work.importance(), cost)
        while ticket is not None:  # nobody else wants it
            ticket = self._step(task, ticket, alone=True)

    def run(self, contract: Contract, owner: object, work: Callable[[], R]) -> R:
        """Do work of an `owner` on this thread when it is its turn: among all that waits by the contract's importance.
        Raises what it raises, and BackPressureError when its turn has not come within TURN_SECONDS."""
        importance = contract.settings.importance
        ticket = self._turn(contract, owner)
        began = time.thread_time()
        try:
            return work()
        finally:
            spent = time.thread_time() - began
            with self._lock:
                self._run_costs[importance - 1].learn(spent, 1, 1)
                self._batons.learn(spent)
                self._account("publish", ticket, 1, spent)
                self._pass_on(owner)

    def _turn(self, contract: Contract, owner: object) -> Ticket:
        """Wait for the baton."""
        with self._lock:
            waiter = _Waiter(contract, owner, self._run_costs)
            if not self._batons.out and not self._bins.waiting:
                self._batons.may_begin(waiter)
                self._at_once += 1
                return self._bins.ticket(*waiter.place())
            self._bins.put(waiter, *waiter.place())
            self._hand_out()
        has_turn = False
        try:
            has_turn = waiter.turn.wait(TURN_SECONDS)
        finally:  # an application may be interrupted here
            if not has_turn:
                self._leave(waiter)
        if not has_turn:
            raise BackPressureError(
                f"what is more important has kept this object waiting for {TURN_SECONDS:g} s",
                hint="Publish less, or have a policy that gives it more importance",
            )
        return waiter.ticket

    def _leave(self, waiter: _Waiter) -> None:
        """Give away what a waiter whose time is over, or who was interrupted, may have got at that moment."""
        with self._lock:
            waiter.has_left = True
            if waiter.turn.is_set():
                self._pass_on(waiter.owner)

    def changed(self, strategy: Strategy | None = None) -> None:
        """Contracts have other settings, or levels another strategy: what waits already follows them; what is parked is
        looked at again, as it may have been so by its contract."""
        with self._lock:
            if strategy is not None and strategy != self._bins.strategy:
                self._bins.switch(strategy)
            for each in self._bins.clear():
                self._bins.put(each, *each.place())
            parked, self._parked = self._parked, []
            for _, _, task in parked:
                self._take_back(task)
            self._hand_out()

    # -- the batons: all under the lock, but for `_step` ----------------------------------------------------------

    def _pass_on(self, owner: object) -> None:
        """Lay down the baton of that owner's step: it goes to what is most important now."""
        for each in self._batons.lay_down(owner):
            self._bins.put(each, *each.place())
        self._hand_out(looking=int(threading.current_thread() in self._threads))

    def _hand_out(self, looking: int = 0) -> None:
        """Give the free batons to what is most important now; `looking`: threads that look for tasks next, unwoken."""
        if self._parked:
            self._unpark()
        while len(self._bins) and self._batons.is_free:
            next_, ticket = self._bins.take()
            is_wanted = not (self._is_stopping if isinstance(next_, Task) else next_.has_left)
            if not is_wanted or not self._batons.may_begin(next_):
                continue
            if isinstance(next_, Task):
                self._handed.append((next_, ticket))
                self._wake(looking)
            else:
                next_.ticket = ticket
                next_.turn.set()

    def _unpark(self) -> None:
        while self._is_due():
            self._take_back(heapq.heappop(self._parked)[2])

    def _take_back(self, task: Task) -> None:
        """Take back a task that is not parked any more."""
        task.is_queued = task.work.size() > 0
        if task.is_queued:
            self._bins.put(task, *task.place())

    def _is_due(self) -> bool:
        return bool(self._parked) and self._parked[0][0] <= time.monotonic()

    def _park(self, task: Task, seconds: float) -> None:
        heapq.heappush(self._parked, (time.monotonic() + seconds, id(task), task))
        if self._parked[0][2] is task:
            self._wake()

    def _wake(self, looking: int = 0) -> None:
        number = len(self._threads)
        if number < max(1, len(self._batons.out)) and not self._is_stopping:
            name = f"{self._name}-{number + 1}" if number else self._name
            self._threads.append(threading.Thread(target=self._judge, name=name, daemon=True))
            self._threads[-1].start()
        self._changed.notify(max(1, len(self._handed)) - looking)

    def _step(self, task: Task, ticket: Ticket, *, alone: bool = False) -> Ticket | None:
        """With the baton: one step, then it is passed on. `alone`: not, if there is a next one and nobody else wants
        it; the ticket of that then."""
        count, size, pause = 1, 1, FAULT_SECONDS
        fault: Exception | None = None
        is_measured = not alone or task.is_suspect or not self._at_once % MEASURED_EVERY or not task.cost.is_known
        clock = time.thread_time if is_measured else time.monotonic  # which costs a sixth
        began = clock()
        try:
            count, size, pause = task.work.step(task.most())
        except Exception as exc:  # noqa: BLE001  # noted; `guarded` would cost as much as a match
            note(f"{self._name}: {task.kind}", exc)
            fault = exc
        spent = clock() - began
        next_: Ticket | None = None
        with self._lock:
            try:
                task.is_suspect = not is_measured and spent > STEP_SECONDS
                if count and is_measured:
                    task.cost.learn(spent, count, size)
                    self._batons.learn(spent)
                self._account(task.kind, ticket, count, spent)
                if fault is not None:
                    self._failing[task] = f"{task.kind}: {type(fault).__name__}: {fault}"
                elif self._failing:
                    self._failing.pop(task, None)
                next_ = self._next(task, pause, alone=alone)
            finally:
                if next_ is None:
                    self._pass_on(task.owner)
        return next_

    def _next(self, task: Task, pause: float, *, alone: bool) -> Ticket | None:
        """Behind a step: the ticket of the next one, if that follows at once; otherwise the task waits, is parked, or
        has nothing."""
        size = task.work.size()
        if pause:
            self._park(task, pause)
        elif not size:
            task.is_queued = False
        elif (
            alone
            and not len(self._bins)
            and not self._batons.is_awaited(task.owner)
            and task.cost.of(size) <= STEP_SECONDS
            and not self._is_due()
            and not self._is_stopping
        ):
            return self._bins.ticket(task.work.importance(), task.cost.of(size))
        else:
            self._bins.put(task, task.work.importance(), task.cost.of(size))
        return None

    def _account(self, kind: str, ticket: Ticket, count: int, spent: float) -> None:
        self._bins.charge(ticket, spent)
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = [0, 0.0]
        for each in (self._done[ticket], known):
            each[0] += count
            each[1] += spent

    # -- the judging thread -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        while not self._is_stopping:
            with guarded(self._name):
                self._work()
                continue
            with self._changed:
                self._changed.wait(FAULT_SECONDS)

    def _work(self) -> None:
        """Do what was handed over; else wait for it, or for what is parked."""
        with self._changed:
            while not self._handed:
                if self._is_stopping:
                    return
                due = self._parked[0][0] - time.monotonic() if self._parked else IDLE_SECONDS
                if due > 0:
                    self._changed.wait(min(due, IDLE_SECONDS))
                else:
                    self._hand_out(looking=1)
            task, ticket = self._handed.popleft()
        self._step(task, ticket)

    # -- life ---------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to do; whether that was within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                if not (self._batons.out or self._bins.waiting or self._parked):
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(DRAIN_SECONDS)

    def close(self, timeout: float = 5.0) -> None:
        """End the threads, behind their steps. What waits is not done any more."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            threads = list(self._threads)
        until = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            while self._handed:
                self._pass_on(self._handed.popleft()[0].owner)

    def status(self) -> TasksStatus:
        """Work that waits and was done; bins alone that had work, of the least important level first."""
        with self._lock:
            strategy, kinds = self._bins.strategy, self._kinds.items()
            return TasksStatus(
                strategy=strategy.name,
                weights=list(strategy.cpu),
                bins=_rows(self._done, self._bins.depths()),
                waiting=len(self._bins),
                parked=len(self._parked),
                at_once=self._at_once,
                kinds={
                    kind: WorkStatus(served=int(count), cpu=round(cpu, 6), each=round(cpu / max(1, count), 9))
                    for kind, (count, cpu) in kinds
                },
                fault="; ".join(list(self._failing.values())[:3])[:500],
            )


def _rows(done: Sequence[Sequence[float]], depths: Sequence[Sequence[int]]) -> list[BinStatus]:
    """Status of each level and bin that had work."""
    places = [(level, at, depth) for level, bins in enumerate(depths) for at, depth in enumerate(bins)]
    return [
        BinStatus(importance=level + 1, bin=at, depth=depth, served=int(count), cpu=round(cpu, 6))
        for (level, at, depth), (count, cpu) in zip(places, done, strict=True)
        if depth or count
    ]
