"""What a quantity did in the last seconds."""

from __future__ import annotations

import math

import pytest

from jbi_pubsub.core.series import Counter, Gauge


def test_a_counter_has_the_rate_of_its_window():
    # Given a counter that grows by 5 a second, then by 50
    counter = Counter(window=10.0)
    for second in range(21):
        counter.add(second, 5 * min(second, 10) + 50 * max(0, second - 10))
    # Expect the rate of the last ten seconds alone, in which nothing varied
    assert counter.rate(20) == pytest.approx(50)
    assert counter.rates.mean(20) == pytest.approx((5 + 10 * 50) / 11)
    assert counter.last() == 550


def test_one_sample_is_no_rate():
    counter = Counter()
    assert counter.rate(0) is None
    assert counter.last() is None
    counter.add(1, 1000)
    assert counter.rate(1) is None
    assert counter.rates.points(1) == []


def test_a_counter_that_falls_makes_no_peak():
    # Given a server that is restarted at a count of a million
    counter = Counter()
    counter.add(0, 1_000_000)
    counter.add(1, 1_000_010)
    counter.add(2, 3)
    counter.add(3, 13)
    # Expect what it grew by, and nothing for the second of the restart
    assert counter.rate(3) == pytest.approx(20 / 3)
    assert [rate for _, rate in counter.rates.points(3)] == [10, 0, 10]


def test_a_counter_after_a_pause_begins_anew():
    counter = Counter(window=10.0)
    counter.add(0, 0)
    counter.add(100, 5000)
    assert counter.rate(100) is None
    counter.add(101, 5007)
    assert counter.rate(101) == pytest.approx(7)


def test_a_gauge_has_mean_deviation_and_trend():
    gauge = Gauge(window=10.0)
    assert (gauge.last(), gauge.mean(0), gauge.deviation(0), gauge.trend(0)) == (None, None, None, None)
    for second, value in enumerate((100, 2, 4, 6)):
        gauge.add(second * 4, value)  # the first is older than the window at the end
    assert gauge.mean(12) == pytest.approx(4)
    assert gauge.deviation(12) == pytest.approx(math.sqrt(8 / 3))
    assert gauge.trend(12) == pytest.approx(0.5)
    assert gauge.last() == 6


def test_a_gauge_of_one_value_has_no_trend():
    gauge = Gauge()
    gauge.add(1, 7)
    assert (gauge.mean(1), gauge.deviation(1), gauge.trend(1)) == (7, 0, None)


def test_memory_is_bounded_and_nonsense_left_out():
    gauge = Gauge(window=1e9, most=50)
    for number in range(10_000):
        gauge.add(number, number)
        gauge.add(number, float("nan"))
        gauge.add(number, float("inf"))
    assert [at for at, _ in gauge.points(10_000)] == list(range(9_950, 10_000))
    # a clock that stands still: the newest value counts
    gauge.add(9_999, 1)
    assert gauge.points(10_000)[-1] == (9_999, 1)
    counter = Counter()
    counter.add(0, 1)
    counter.add(0, 4)
    counter.add(1, float("nan"))
    counter.add(1, 6)
    assert counter.rate(1) == pytest.approx(2)
