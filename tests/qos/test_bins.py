"""Who is served next: the bins against a scheduler that looks at every task, and the shares that come out."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.quality import Strategy
from jbi_pubsub.qos.bins import USUAL_COST, Bins

Name = Literal["strict", "weighted_fair"]
COSTS = st.floats(0, 10) | st.sampled_from([0.0, 1e-9, USUAL_COST, 1e6])
TASKS = st.lists(st.tuples(st.integers(1, 5), COSTS), max_size=60)


@dataclass
class Naive:
    """The rules word by word, over a list of everything that waits."""

    strategy: Strategy
    bins: int
    waiting: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(number, importance, bin, arrival)"""
    times: dict[int, float] = field(default_factory=lambda: dict.fromkeys(range(1, 6), 0.0))
    now: float = 0.0
    turns: int = 0
    arrived: int = 0

    def put(self, number: int, importance: int, cost: float) -> int:
        s = USUAL_COST * (1 - 1e-9) / (USUAL_COST + cost)  # less than 1: of its own level, though it cost nothing
        found = math.floor(self.bins / 5 * (importance - 1 + s))
        if all(each[1] != importance for each in self.waiting):
            self.times[importance] = max(self.times[importance], self.now)
        self.arrived += 1
        self.waiting.append((number, importance, found, self.arrived))
        return found

    def take(self) -> tuple[int, int]:
        if self.strategy.name == "strict" or self.bins == 1:
            chosen = max(self.waiting, key=lambda each: (each[2], -each[3]))
        else:
            active = {each[1] for each in self.waiting}
            level = min(active, key=lambda level: (self.times[level], -level))
            self.turns += 1
            mine = [each for each in self.waiting if each[1] == level]
            order = (lambda each: (0, -each[3])) if self.turns % 8 == 0 else (lambda each: (each[2], -each[3]))
            chosen = max(mine, key=order)
        self.now = self.times[chosen[1]]
        self.waiting.remove(chosen)
        return chosen[0], chosen[1]

    def at_once(self, importance: int) -> None:
        self.now = self.times[importance] = max(self.times[importance], self.now)

    def charge(self, importance: int, spent: float) -> None:
        self.times[importance] += spent / self.strategy.cpu[importance - 1]


@pytest.mark.row("Q-39")
@given(
    name=st.sampled_from(["strict", "weighted_fair"]),
    bins=st.integers(1, 50),
    tasks=TASKS,
    gaps=st.lists(st.integers(0, 3), min_size=60, max_size=60),
)
def test_the_order_is_that_of_the_rules(name: Name, bins: int, tasks: list[tuple[int, float]], gaps: list[int]) -> None:
    # Given
    strategy = Strategy(name=name)
    ours: Bins[int] = Bins(strategy, bins=bins)
    naive = Naive(strategy, bins)

    def take_one() -> None:
        task, ticket = ours.take()
        expected, importance = naive.take()
        assert task == expected
        ours.charge(ticket, tasks[task][1])
        naive.charge(importance, tasks[task][1])

    # When
    for number, ((importance, cost), gap) in enumerate(zip(tasks, gaps, strict=False)):
        # Expect
        assert ours.put(number, importance, cost) == naive.put(number, importance, cost)
        for _ in range(min(gap, len(ours))):
            take_one()
        if not len(ours):  # some are done without waiting
            ours.charge(ours.ticket(6 - importance, cost), cost)
            naive.at_once(6 - importance)
            naive.charge(6 - importance, cost)
    while len(ours):
        take_one()
    assert naive.waiting == []
    with pytest.raises(IndexError):
        ours.take()


@pytest.mark.row("Q-31", "Q-39")
@given(importance=st.integers(1, 4), cost=COSTS, other=COSTS, bins=st.sampled_from([5, 10, 15, 50]))
def test_importance_beats_any_cost_and_the_cheaper_of_equals_is_never_below(
    importance: int, cost: float, other: float, bins: int
) -> None:
    ours: Bins[int] = Bins(Strategy(), bins=bins)
    # Expect
    assert ours.put(1, importance + 1, cost) > ours.put(2, importance, other)
    assert ours.put(3, importance, min(cost, other)) >= ours.put(4, importance, max(cost, other))


@pytest.mark.row("Q-41", "Q-55")
@pytest.mark.parametrize("name", ["strict", "weighted_fair"])
def test_one_bin_is_first_come_first_served_and_five_are_levels(name: Name) -> None:
    # Given
    tasks = [(importance, cost) for importance in (2, 5, 1, 3, 4) for cost in (1.0, 0.0)]
    fifo: Bins[int] = Bins(Strategy(name=name), bins=1)
    levels: Bins[int] = Bins(Strategy(name="strict"), bins=5)
    # When
    for number, (importance, cost) in enumerate(tasks):
        fifo.put(number, importance, cost)
        levels.put(number, importance, cost)
    # Expect
    assert [fifo.take()[0] for _ in tasks] == list(range(10))
    assert [levels.take()[0] for _ in tasks] == [2, 3, 8, 9, 6, 7, 0, 1, 4, 5]


def serve(bins: Bins[tuple[int, float]], costs: dict[int, list[float]], seconds: float) -> dict[int, float]:
    """Seconds that each importance was served for, when each always has a task, with these costs in turn."""
    turns = {importance: itertools.cycle(own) for importance, own in costs.items()}
    had = dict.fromkeys(costs, 0.0)
    for importance, own in turns.items():
        cost = next(own)
        bins.put((importance, cost), importance, cost)
    while sum(had.values()) < seconds:
        (importance, cost), ticket = bins.take()
        had[importance] += cost
        bins.charge(ticket, cost)
        later = next(turns[importance])
        bins.put((importance, later), importance, later)
    return had


@pytest.mark.row("Q-43")
@pytest.mark.parametrize("weights", [(1, 2, 4, 8, 16), (1, 1, 1, 1, 1), (3, 1, 1, 1, 64)])
def test_fair_shares_are_those_of_the_weights_in_seconds_not_in_tasks(weights: tuple[float, ...]) -> None:
    # Given: tasks of the important levels cost twenty times those of the others
    bins: Bins[tuple[int, float]] = Bins(Strategy(cpu=weights))
    costs = {1: [0.001, 0.02], 2: [0.001], 3: [0.005], 4: [0.02], 5: [0.02, 0.003]}
    # When
    had = serve(bins, costs, 400.0)
    # Expect: within 2 %, or one task where a share is small
    whole = sum(had.values())
    for importance, weight in enumerate(weights, 1):
        share = weight / sum(weights)
        assert had[importance] / whole == pytest.approx(share, rel=0.02, abs=0.02 / 400)


@pytest.mark.row("Q-44")
def test_who_was_away_has_saved_nothing_up() -> None:
    # Given: level 1 alone is served for 10 s
    bins: Bins[tuple[int, float]] = Bins(Strategy(cpu=(1, 1, 1, 1, 1)))
    serve(bins, {1: [0.01]}, 10.0)
    # When: level 2 comes, and both always have something
    had = serve(bins, {1: [0.01], 2: [0.01]}, 4.0)
    # Expect
    assert had[2] / had[1] == pytest.approx(1.0, rel=0.03)


def test_a_costly_task_of_a_level_comes_although_cheap_ones_never_end() -> None:
    # Given
    bins: Bins[str] = Bins(Strategy())
    bins.put("costly", 3, 10.0)
    # When
    taken = []
    for _ in range(9):
        bins.put("cheap", 3, 0.0)
        task, ticket = bins.take()
        bins.charge(ticket, 0.0)
        taken.append(task)
    # Expect
    assert Counter(taken) == {"cheap": 8, "costly": 1}


def test_the_strategy_is_switched_while_tasks_wait() -> None:
    # Given
    bins: Bins[int] = Bins(Strategy(name="weighted_fair", cpu=(1, 1, 1, 1, 1)))
    for number in range(40):
        bins.put(number, 1 + number % 2 * 4, 0.001)
    first = [bins.take() for _ in range(10)]
    for _, ticket in first:
        bins.charge(ticket, 0.001)
    # When
    bins.switch(Strategy(name="strict"))
    strict = [bins.take()[0] for _ in range(len(bins) // 2)]
    bins.switch(Strategy(name="weighted_fair"))
    rest = [bins.take()[0] for _ in range(len(bins))]
    # Expect: nothing is lost or comes twice, and strict means strict
    assert sorted([task for task, _ in first] + strict + rest) == list(range(40))
    odd = [number % 2 for number in strict]
    assert odd == sorted(odd, reverse=True)


@pytest.mark.row("Q-42")
def test_strict_starts_nothing_while_something_higher_waits() -> None:
    # Given
    random_ = random.Random(7)
    bins: Bins[tuple[int, int]] = Bins(Strategy(name="strict"))
    waiting: list[int] = []
    # When
    for number in range(5_000):
        if waiting and random_.random() < 0.49:
            (_, at), _ = bins.take()
            # Expect
            assert at == max(waiting)
            waiting.remove(at)
        importance, cost = random_.randint(1, 5), random_.expovariate(200)
        at = int((importance - 1 + USUAL_COST / (USUAL_COST + cost)) * 3)
        assert bins.put((number, at), importance, cost) == at
        waiting.append(at)
        assert sum(map(sum, bins.depths())) == len(bins) == len(waiting)


@pytest.mark.row("Q-40")
def test_a_put_and_a_take_cost_the_same_however_many_wait() -> None:
    # Given
    def cost(strategy: Strategy, waiting: int) -> float:
        """CPU seconds of a thousand, the best of ten, with so many tasks waiting."""
        bins: Bins[int] = Bins(strategy)
        for number in range(waiting):
            bins.put(number, 1 + number % 5, number % 100 / 10_000)

        def turns() -> float:
            began = time.thread_time()
            for number in range(1_000):
                bins.take()
                bins.put(number, 1 + number % 5, number % 100 / 10_000)
            return time.thread_time() - began

        return min(turns() for _ in range(10))

    # Expect: a list would take a thousand times as long; benchmarks/qos.py looks closer
    for strategy in (Strategy(), Strategy(name="strict")):
        assert cost(strategy, 50_000) < 20 * cost(strategy, 100)
