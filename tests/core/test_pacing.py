"""How fast, how far, and whose turn."""

from __future__ import annotations

import random

import pytest

from jbi_pubsub.core.pacing import RoundTrip, Shares, TokenBucket
from jbi_pubsub.core.quality import Strategy

FAIR, STRICT = Strategy(), Strategy("strict")


def test_a_bucket_lets_its_rate_through_and_never_more_than_its_burst_and_an_item_beyond_it() -> None:
    # Given 1,000 bytes a second, and items of 10 to 700 bytes that always wait
    bucket, chance, now = TokenBucket(1_000, 100), random.Random(1), 0.0
    sent: list[tuple[float, int]] = []
    while now < 100:
        wait = bucket.ready_in(now)
        if wait:
            now += wait
            continue
        size = chance.randrange(10, 700)
        bucket.take(size, now)
        sent.append((now, size))
    # Expect the mean, and in every second no more than rate, burst and one item
    assert sum(size for _, size in sent) / 100 == pytest.approx(1_000, rel=0.01)
    assert all(sum(s for at, s in sent if begin <= at <= begin + 1) <= 1_000 + 100 + 700 for begin, _ in sent)


def test_a_pause_saves_up_no_more_than_the_burst() -> None:
    bucket = TokenBucket(1_000, 100)
    bucket.take(100, 0.0)
    assert bucket.fill(3_600.0) == 100


def test_another_rate_holds_at_once_and_a_debt_is_paid_by_when_it_was_to_be() -> None:
    bucket = TokenBucket(1_000, 100)
    bucket.take(1_100, 0.0)
    assert bucket.ready_in(0.0) == pytest.approx(1.0)
    bucket.set(10_000, 1_000, 0.5)
    assert bucket.ready_in(0.5) == pytest.approx(0.5)
    bucket.set(10, 1, 0.5)
    assert bucket.ready_in(0.5) == pytest.approx(0.5)
    bucket.take(10, 1.0)
    assert bucket.ready_in(1.0) == pytest.approx(1.0)


def test_a_debt_is_paid_sooner_where_that_is_wanted_and_the_new_rate_does() -> None:
    bucket = TokenBucket(1_000, 100)
    bucket.take(1_100, 0.0)
    bucket.set(10_000, 1_000, 0.5, sooner=True)
    assert bucket.ready_in(0.5) == pytest.approx(0.05)
    bucket.set(10, 1, 0.5, sooner=True)
    assert bucket.ready_in(0.5) == pytest.approx(0.05)


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(1_000, 100, now=50.0)
    bucket.take(300, 50.0)
    assert bucket.ready_in(10.0) == pytest.approx(0.2)
    assert bucket.ready_in(50.1) == pytest.approx(0.1)


def test_the_least_round_trip_is_that_of_ten_seconds_and_the_smoothed_one_follows() -> None:
    trip = RoundTrip()
    assert (trip.least(0.0), trip.smoothed) == (0.0, 0.0)
    for now, sample in enumerate((0.5, 0.1, 0.3, 0.4)):
        trip.add(sample, now)
    assert trip.least(4.0) == 0.1
    assert trip.least(11.5) == 0.3
    assert trip.least(99.0) == 0.4
    for now in range(100, 160):
        trip.add(0.2, now)
    assert trip.smoothed == pytest.approx(0.2, rel=0.01)


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
    assert shares.order(0b10110) == [4, 2, 1]
    shares.set(FAIR, (1, 1, 1, 1, 1))
    assert _served(shares, 0b10010, 50) == [0, 2_500, 0, 0, 2_500]
