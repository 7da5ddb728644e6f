"""What has come of a registration in any order: new once, in bounded memory."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.intervals import Intervals

NO_BOUND = 10**9


@given(st.lists(st.integers(1, 60), max_size=120))
def test_a_number_is_new_once_in_whatever_order(numbers: list[int]) -> None:
    # Given a set of what came
    held, naive = Intervals(), set[int]()
    for number in numbers:
        # When a number comes, expect it to be new exactly when it is not in the set
        assert held.add_within(number, NO_BOUND) == (number not in naive)
        naive.add(number)
    # Expect as many intervals as there are runs of numbers, and nothing guessed
    assert len(held) == sum(number - 1 not in naive for number in naive)
    assert held.guessed == 0
    assert [number for number in range(62) if number in held] == sorted(naive)


@given(st.lists(st.integers(1, 400), max_size=200), st.integers(2, 10))
def test_memory_is_bounded_and_nothing_is_new_twice(numbers: list[int], most: int) -> None:
    held, naive = Intervals(), set[int]()
    for number in numbers:
        is_new = held.add_within(number, most)
        # Expect no number twice; one that never came and is not new lies where gaps were closed
        assert not (is_new and number in naive)
        assert is_new or number in naive or number <= held.guessed
        naive.add(number)
        assert len(held) <= most


def test_what_a_predicate_left_out_is_given_up_before_the_part_of_another_delegate() -> None:
    # Given a delegate that has numbers 1 to 1,000 and 5,001 to 6,000, of which each tenth matches
    held = Intervals()
    for number in (*range(1, 1_000, 10), *range(5_001, 6_000, 10)):
        assert held.add_within(number, 64)
    # When the part between them comes from another one, expect each of its objects to be new
    assert all(held.add_within(number, 64) for number in range(1_001, 5_001, 10))


def test_a_long_history_in_order_costs_little() -> None:
    # When every seventh of a million numbers comes, and then the rest of the last thousand
    held = Intervals()
    began = time.process_time()
    for number in range(1, 1_000_000, 7):
        held.add_within(number, 4_096)
    taken = time.process_time() - began
    # Expect bounded memory, and some microseconds for each, not more the more there are
    assert len(held) <= 4_096
    assert taken / (1_000_000 / 7) < 200e-6
