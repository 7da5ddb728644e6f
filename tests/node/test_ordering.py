"""Objects of a registration in the order of their numbers, though they come in any."""

from __future__ import annotations

import random

import pytest

from jbi_pubsub.node.ordering import WAITING_MOST, Numbered, ObjectOrder


def _numbered(number: int, *, first: int | None = None, epoch: int = 1) -> Numbered[int]:
    return Numbered(number, first or number, epoch, 10 * number, number)


def test_what_comes_before_its_turn_waits_for_those_before_it() -> None:
    # Given an order
    order: ObjectOrder[int] = ObjectOrder()
    # When the third comes before the first two
    assert list(order.add(_numbered(3))) == []
    assert list(order.add(_numbered(1))) == [1]
    # Expect it behind the second
    assert list(order.add(_numbered(2))) == [2, 3]
    assert len(order) == 0


def test_what_comes_twice_or_after_its_turn_does_not_go() -> None:
    order: ObjectOrder[int] = ObjectOrder()
    assert list(order.add(_numbered(1))) == [1]
    # When it comes again, and another one twice before its turn
    assert list(order.add(_numbered(1))) == []
    assert list(order.add(_numbered(3))) == list(order.add(_numbered(3))) == []
    # Expect each once
    assert list(order.add(_numbered(2))) == [2, 3]
    assert list(order.add(_numbered(4))) == [4]


def test_what_waits_for_something_that_does_not_come_goes_when_its_log_is_settled() -> None:
    # Given a node that has joined late: the first that comes is number 500
    order: ObjectOrder[int] = ObjectOrder()
    assert list(order.add(_numbered(500))) == list(order.add(_numbered(502))) == []
    # When the log is settled up to before it, nothing goes; up to it, it goes, and the next but one waits
    assert list(order.settled(1, 4_999)) == []
    assert list(order.settled(1, 5_000)) == [500]
    assert list(order.add(_numbered(501))) == [501, 502]


def test_nobody_waits_longer_than_what_is_missing_may_live() -> None:
    # Given objects each behind one that is missing, which may live until 1, 2 and 3 seconds
    order: ObjectOrder[int] = ObjectOrder()
    for number, until in ((2, 1.0), (4, 2.0), (6, 3.0)):
        assert list(order.add(_numbered(number)._replace(until=until))) == []
    # When those of the first two seconds have waited long enough, though their log is not settled, expect these
    assert list(order.settled(1, 0, 2.0)) == [2, 4]
    # When the missing one before the third comes, expect both
    assert list(order.add(_numbered(5))) == [5, 6]


def test_what_was_left_out_takes_the_place_of_all_its_numbers() -> None:
    order: ObjectOrder[int] = ObjectOrder()
    assert list(order.add(_numbered(4))) == []
    # When the first three are told as left out
    assert list(order.add(_numbered(3, first=1))) == [3, 4]


def test_of_too_many_that_wait_the_first_goes() -> None:
    order: ObjectOrder[int] = ObjectOrder()
    found = [each for number in range(2, WAITING_MOST + 4) for each in order.add(_numbered(number))]
    # Expect no more to wait than may, and all that has gone in order
    assert found == list(range(2, WAITING_MOST + 4))


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_with_losses_and_repeats_is_put_right(seed: int) -> None:
    # Given 200 objects of which some never come, some twice, near their turn
    chance = random.Random(seed)
    numbers = [number for number in range(1, 201) if chance.random() > 0.1]
    arrivals = sorted(numbers + chance.sample(numbers, 20), key=lambda number: number + chance.uniform(0, 10))
    order: ObjectOrder[int] = ObjectOrder()
    found: list[int] = []
    for at, number in enumerate(arrivals):
        found += order.add(_numbered(number))
        # When the log is settled as far as all that comes later allows
        found += order.settled(1, 10 * min(arrivals[at + 1 :], default=1_000) - 1)
    # Expect all that came, each once, in order
    assert found == numbers
