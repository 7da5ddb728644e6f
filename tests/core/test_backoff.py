"""Pauses between tries."""

from __future__ import annotations

from jbi_pubsub.core.backoff import Backoff


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_success() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 1.0)
    assert [backoff.pause() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.pause() == 0.1


def test_a_first_pause_beyond_the_bound_is_the_bound() -> None:
    assert Backoff(60.0, 30.0, lambda: 1.0).pause() == 30.0


def test_each_pause_is_shortened_by_up_to_half_at_random() -> None:
    pauses = [Backoff(1.0, 1.0).pause() for _ in range(100)]
    assert 0.5 <= min(pauses) < max(pauses) <= 1.0
