"""Leases, as the Jini Distributed Leasing Specification and Reggie have them; time is a number."""

from __future__ import annotations

import math

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import LeaseDeniedError, UnknownLeaseError
from jbi_pubsub.core.lease import (
    ANY,
    FOREVER,
    FixedLeasePeriodPolicy,
    Landlord,
    LoadScaledLeasePeriodPolicy,
)


def landlord(maximum: float = 100.0, default: float = 50.0) -> Landlord[str]:
    return Landlord(FixedLeasePeriodPolicy(maximum=maximum, default=default))


@pytest.mark.parametrize(("asked", "granted"), [(ANY, 50.0), (FOREVER, 100.0), (101.0, 100.0), (7.0, 7.0), (0.0, 0.0)])
def test_a_grant_is_what_was_asked_for_up_to_the_maximum(asked, granted):
    assert landlord().grant("it", asked, 1000.0).duration == granted


@pytest.mark.parametrize("asked", [-2.0, -0.5, -math.inf, math.nan])
def test_a_negative_or_undefined_duration_is_refused(asked):
    with pytest.raises(LeaseDeniedError, match="lease duration"):
        landlord().grant("it", asked, 0.0)


def test_a_lease_ends_the_moment_its_time_has_passed_reaped_or_not():
    book = landlord()
    lease = book.grant("it", 10.0, 1000.0)
    assert book.is_live(lease.lease_id, 1009.999)
    assert not book.is_live(lease.lease_id, 1010.0)
    with pytest.raises(UnknownLeaseError):
        book.renew(lease.lease_id, 10.0, 1010.0)
    assert book.expire(1009.0) == []
    assert book.expire(1010.0) == ["it"]
    assert len(book) == 0


def test_a_renewal_counts_from_now_and_may_shorten():
    book = landlord()
    lease = book.grant("it", 90.0, 0.0)
    assert book.renew(lease.lease_id, 5.0, 10.0).duration == 5.0
    assert book.expire(15.0) == ["it"], "a shortened lease ends at its new time, not at the old one"


def test_a_clip_never_cuts_below_what_is_left_and_never_grants_more_than_asked():
    """Given 80 s left of a lease under a maximum that has become 30 s."""
    book = landlord()
    lease = book.grant("it", 80.0, 0.0)
    book.policy = FixedLeasePeriodPolicy(maximum=30.0, default=30.0)
    assert book.renew(lease.lease_id, FOREVER, 0.0).duration == 80.0
    assert book.renew(lease.lease_id, ANY, 0.0).duration == 80.0
    assert book.renew(lease.lease_id, 50.0, 0.0).duration == 50.0


def test_a_failed_renewal_leaves_the_lease_as_it_was():
    book = landlord()
    lease = book.grant("it", 10.0, 0.0)
    with pytest.raises(LeaseDeniedError):
        book.renew(lease.lease_id, -5.0, 1.0)
    assert book.left(lease.lease_id, 1.0) == 9.0


def test_a_cancelled_lease_is_unknown():
    book = landlord()
    lease = book.grant("it", 10.0, 0.0)
    assert book.cancel(lease.lease_id, 1.0) == "it"
    with pytest.raises(UnknownLeaseError, match="expired, cancelled, or was never granted"):
        book.cancel(lease.lease_id, 1.0)


def test_a_restored_lease_keeps_its_id_and_its_end_whatever_the_policy():
    book = landlord(maximum=10.0, default=10.0)
    book.restore("known", "it", 500.0)
    assert book.left("known", 100.0) == 400.0


def test_the_maximum_grows_with_the_load_so_that_renewals_stay_below_a_rate():
    """Reggie: at least 5 minutes, else 100 ms for each lease, so at most 10 renewals a second."""
    load = 0.0
    policy = LoadScaledLeasePeriodPolicy(lambda: load)
    assert policy.period(ANY, 0.0) == policy.period(FOREVER, 0.0) == 300.0
    load = 10_000.0
    assert policy.period(FOREVER, 0.0) == 1000.0
    assert policy.period(700.0, 0.0) == 700.0
    load = 0.0
    assert policy.period(FOREVER, 900.0) == 900.0, "what is left is not cut"
    assert policy.period(500.0, 900.0) == 500.0


@pytest.mark.parametrize(("minimum", "interval"), [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (1.0, -0.1)])
def test_a_policy_without_sense_is_refused(minimum, interval):
    with pytest.raises(LeaseDeniedError):
        LoadScaledLeasePeriodPolicy(lambda: 0.0, minimum=minimum, interval=interval)


@pytest.mark.parametrize(("maximum", "default"), [(10.0, 20.0), (0.0, 0.0), (10.0, -1.0)])
def test_a_fixed_policy_needs_a_default_within_its_maximum(maximum, default):
    with pytest.raises(LeaseDeniedError):
        FixedLeasePeriodPolicy(maximum=maximum, default=default)


def test_memory_is_bounded_by_the_live_leases():
    """Given long leases cancelled at once, or shortened over and over, the book and its agenda stay small."""
    book = landlord()
    for _ in range(5000):
        book.cancel(book.grant("it", 100.0, 0.0).lease_id, 0.0)
    lease = book.grant("it", 100.0, 0.0)
    for _ in range(5000):
        book.renew(lease.lease_id, 90.0, 0.0)
        book.renew(lease.lease_id, 10.0, 0.0)
    assert len(book._due._heap) < 200
    assert book.next_deadline() == 10.0


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "renew", "cancel", "drop", "expire"]),
            st.integers(0, 5),
            st.sampled_from([0.0, 1.0, 5.0, 20.0]),
        ),
        max_size=60,
    )
)
def test_the_book_is_a_map_from_leases_to_ends(steps):
    """Given any history, the lazy deadlines name exactly what a scan over a plain dictionary names, in time order."""
    book, ends, now = landlord(), {}, 0.0
    for what, which, seconds in steps:
        key = f"lease-{which}"
        if what == "grant":
            book.grant(key, seconds, now, lease_id=key)
            ends[key] = now + seconds
        elif what == "renew" and ends.get(key, 0.0) > now:
            book.renew(key, seconds, now)
            ends[key] = now + seconds
        elif what == "cancel" and ends.get(key, 0.0) > now:
            assert book.cancel(key, now) == key
            del ends[key]
        elif what == "drop":
            book.drop(key)
            ends.pop(key, None)
        elif what == "expire":
            now += seconds
            due = book.next_deadline()
            assert due is None or due <= min(ends.values()), "never late"
            gone = book.expire(now)
            assert sorted(gone) == sorted(key for key, end in ends.items() if end <= now)
            passed = [ends.pop(key) for key in gone]
            assert passed == sorted(passed), "earliest first"
        assert {key: end for key, _, end in book.items()} == ends


def test_a_gap_in_which_the_grantor_did_not_look_counts_against_nobody() -> None:
    # Given a grantor that looks every second at least, and leases that stand and one that has run out
    book = Landlord[str](FixedLeasePeriodPolicy(maximum=100.0, default=50.0), stall=1.0)
    over = book.grant("over", 3.0, 0.0).lease_id
    silent = book.grant("silent", 10.0, 0.0).lease_id
    lively = book.grant("lively", 10.0, 0.0).lease_id
    for now in range(1, 5):
        book.left(silent, float(now))

    # When it looks again after a minute, however it does
    # Expect those that stood to have what was left of them, renewed or not, and the other to be gone
    assert book.is_live(silent, 64.0)
    assert book.left(silent, 64.0) == pytest.approx(5.9)
    assert book.renew(lively, 10.0, 64.0).duration == 10.0
    with pytest.raises(UnknownLeaseError):
        book.renew(over, 10.0, 64.0)
    assert book.expire(64.0) == ["over"]

    # When it looks every second from then on, expect who stays silent to be noticed in time
    assert [now for now in range(65, 80) for _ in book.expire(float(now))] == [70, 74]


def test_a_grantor_that_stalls_all_the_time_notices_the_dead_in_the_end() -> None:
    book = Landlord[str](FixedLeasePeriodPolicy(), stall=1.0)
    book.grant("it", 1.0, 0.0)
    looks = next(n for n in range(1, 100) if book.expire(60.0 * n))
    assert looks in {10, 11}


@pytest.mark.parametrize("look", ["is_live", "left", "resource"])
def test_the_first_look_after_a_gap_may_be_any(look: str) -> None:
    book = Landlord[str](FixedLeasePeriodPolicy(), stall=1.0)
    lease = book.grant("it", 10.0, 0.0).lease_id
    assert getattr(book, look)(lease, 60.0)
    assert list(book.overdue(61.0)) == book.expire(61.0) == []
