"""Whose turn it is, by importance: shares of levels, and rings against a scheduler that looks at everybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.quality import LEVELS, Strategy
from jbi_pubsub.core.scheduling import ALL_LEVELS, PriorityRing, Shares

FAIR, STRICT = Strategy(), Strategy("strict")


def _served(shares: Shares, waiting: int, turns: int, size: int = 100) -> list[int]:
    served = [0] * 5
    for _ in range(turns):
        level = shares.next(waiting)
        served[level] += size
        shares.charge(level, size)
    return served


def test_levels_share_by_their_weights_in_what_they_are_charged() -> None:
    # Given weights 1 to 16, and sizes that differ a hundredfold between the levels
    shares, served = Shares(FAIR, FAIR.link), [0] * 5
    for _ in range(200_000):
        level = shares.next(0b11111)
        size = (1, 100, 7, 30, 50)[level]
        served[level] += size
        shares.charge(level, size)
    assert [part / served[0] for part in served] == pytest.approx([1, 2, 4, 8, 16], rel=0.01)


def test_who_was_idle_neither_makes_up_for_it_nor_is_held_back() -> None:
    # Given a level that was served alone for long
    shares = Shares(FAIR, (1, 1, 1, 1, 1))
    _served(shares, 0b10000, 1_000)
    # When others come, expect equal parts at once
    assert _served(shares, 0b10001, 100) == [5_000, 0, 0, 0, 5_000]
    assert shares.order(0b10011)[0] in (0, 1, 4)
    assert sorted(_served(shares, 0b10011, 300)) == [0, 0, 10_000, 10_000, 10_000]


def test_strict_serves_the_highest_and_a_change_to_fair_holds_nothing_against_it() -> None:
    shares = Shares(STRICT, STRICT.link)
    assert _served(shares, 0b10010, 50) == [0, 0, 0, 0, 5_000]
    assert list(shares.order(0b10110)) == [4, 2, 1]
    shares.set(FAIR, (1, 1, 1, 1, 1))
    assert _served(shares, 0b10010, 50) == [0, 2_500, 0, 0, 2_500]


class Naive:
    """The rules word by word: who waits where, in order, and levels with times of their own."""

    def __init__(self, strategy: Strategy) -> None:
        self.is_strict, self.weights = strategy.name == "strict", strategy.link
        self.waiting: list[tuple[int, int]] = []
        """(member, level), as they came"""
        self.times, self.present, self.active = [0.0] * LEVELS, 0.0, set[int]()

    def put(self, member: int, levels: int) -> None:
        new = [(member, level) for level in range(LEVELS) if levels >> level & 1]
        self.waiting += [each for each in new if each not in self.waiting]

    def next(self, levels: int) -> int:
        there = {level for _, level in self.waiting if levels >> level & 1}
        if not there or self.is_strict:
            return max(there, default=-1)
        for level in there - self.active:
            self.times[level] = max(self.times[level], self.present)
        self.active = there
        return min(there, key=lambda level: (self.times[level], -level))

    def pop(self, level: int) -> int:
        found = next(each for each in self.waiting if each[1] == level)
        self.waiting.remove(found)
        return found[0]

    def charge(self, level: int, amount: float) -> None:
        self.present = max(self.present, self.times[level])
        self.times[level] += amount / self.weights[level]

    def remove(self, member: int) -> None:
        self.waiting = [each for each in self.waiting if each[0] != member]


MASKS = st.integers(0, ALL_LEVELS)
STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(0, 9), MASKS)
    | st.tuples(st.just("take"), st.integers(0, 1_000), MASKS | st.just(ALL_LEVELS))
    | st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
    max_size=100,
)


@given(strategy=st.sampled_from([FAIR, STRICT, Strategy(link=(1, 1, 1, 1, 1))]), steps=STEPS)
def test_the_turns_are_those_of_the_rules(strategy: Strategy, steps: list[tuple[str, int, int]]) -> None:
    # Given
    ring: PriorityRing[int] = PriorityRing(strategy, strategy.link)
    naive = Naive(strategy)
    # When
    for kind, number, levels in steps:
        if kind == "put":
            ring.put(number, levels)
            naive.put(number, levels)
        elif kind == "remove":
            ring.remove(number)
            naive.remove(number)
        else:
            level = ring.next(levels)
            # Expect
            assert level == naive.next(levels)
            if level >= 0:
                assert ring.pop(level) == naive.pop(level)
                ring.charge(level, number)
                naive.charge(level, number)
        found = [[member for member, at in naive.waiting if at == level] for level in range(LEVELS)]
        assert ring.lengths() == list(map(len, found))
        assert ring.levels == sum(1 << level for level, members in enumerate(found) if members)
        assert ring.standing == {
            member: sum(1 << level for each, level in naive.waiting if each == member) for member, _ in naive.waiting
        }
        assert len(ring) == len(ring.standing)
    ring.clear()
    assert (ring.levels, ring.standing, ring.next()) == (0, {}, -1)


def test_there_is_nobody_to_take_where_nobody_waits() -> None:
    ring: PriorityRing[str] = PriorityRing(FAIR, FAIR.link)
    ring.put("a", 0b1)
    # Expect
    with pytest.raises(IndexError):
        ring.pop(2)
    assert (ring.pop(0), list(ring.order())) == ("a", [])
