"""How fast."""

from __future__ import annotations

import random

import pytest

from jbi_pubsub.core.pacing import RecentBytes, TokenBucket


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


def test_what_has_left_lately_is_that_of_the_last_seconds() -> None:
    # Given something that leaves at 1,000 bytes a second, and then at 100
    left, total = RecentBytes(10.0), 0
    left.note(0, 0.0)
    sizes = {}
    for tenth in range(1, 601):
        total += 100 if tenth <= 300 else 10
        left.note(total, tenth / 10)
        sizes[tenth / 10] = left.size(tenth / 10)
    # Expect all of it at first, then as much as ten seconds take, or a tenth more
    assert sizes[5.0] == 5_000
    assert 10_000 <= sizes[30.0] <= 11_000
    assert 1_000 <= sizes[60.0] <= 1_100
    # and after a pause what has left since
    left.note(total + 7, 3_600.0)
    assert left.size(3_600.0) == 7
