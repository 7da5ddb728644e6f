"""Estimates of cost follow what was measured."""

from __future__ import annotations

import pytest

from jbi_pubsub.qos.bins import USUAL_COST, Cost


def test_nothing_known_is_the_usual_cost() -> None:
    assert Cost().of(10) == Cost().of(10_000) == USUAL_COST


@pytest.mark.row("Q-08")
def test_an_estimate_is_in_proportion_to_the_size() -> None:
    # Given
    cost = Cost()
    # When: 10 objects of 1,000 bytes each in 20 ms
    cost.learn(0.02, 10, 10_000)
    # Expect
    assert cost.of(1_000) == pytest.approx(0.002)
    assert cost.of(4_000) == pytest.approx(0.008)


def test_an_estimate_follows_within_some_dozens_of_objects() -> None:
    # Given: 6 us an object
    cost = Cost()
    for _ in range(100):
        cost.learn(0.0003, 50, 50_000)
    assert cost.of(1_000) == pytest.approx(6e-6)
    # When: subscriptions have come that make it 28 ms
    for _ in range(40):
        cost.learn(0.028, 1, 1_000)
    # Expect
    assert cost.of(1_000) == pytest.approx(0.028, rel=0.01)


@pytest.mark.row("Q-09")
@pytest.mark.parametrize("at_once", [1, 5, 25])
def test_fifty_objects_are_enough_however_many_a_step_has(at_once: int) -> None:
    # Given: 0.1 ms an object
    cost = Cost()
    for _ in range(20):
        cost.learn(0.0001 * at_once, at_once, 1_000 * at_once)
    # When: there are twice as many predicates, and fifty objects come
    for _ in range(50 // at_once):
        cost.learn(0.0002 * at_once, at_once, 1_000 * at_once)
    # Expect
    assert cost.of(1_000) == pytest.approx(0.0002, rel=0.01)


def test_a_clock_that_stands_or_nothing_to_read_breaks_nothing() -> None:
    cost = Cost()
    cost.learn(-1.0, 1, 0)
    assert cost.of(0) == 0.0
    assert cost.of(1_000) == 0.0
