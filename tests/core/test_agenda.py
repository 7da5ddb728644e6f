"""Times at which something is due."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.agenda import SWEPT, Agenda

KEYS = st.sampled_from("abc")
TIMES = st.sampled_from([1.0, 2.0, 3.0, 4.0, math.inf])


@given(st.lists(st.one_of(st.tuples(KEYS, TIMES), KEYS, st.sampled_from([0, 1, 2, 3, 4]))))
def test_it_says_what_a_plain_dict_of_times_says(steps: list[tuple[str, float] | str | int]) -> None:
    agenda, times = Agenda[str](), dict[str, float]()
    for step in steps:
        if isinstance(step, tuple):
            agenda.set_time(*step)
            times[step[0]] = step[1]
        elif isinstance(step, str):
            agenda.discard(step)
            times.pop(step, None)
        elif (key := agenda.pop(step)) is None:
            assert all(when > step for when in times.values())
        else:
            assert times[key] == min(times.values()) <= step
            times[key] = math.inf
        assert agenda.first() == min(times.values(), default=math.inf)
        assert {key: agenda.time(key) for key in agenda} == times
        assert agenda.until(2.0) == {key for key, when in times.items() if when <= 2.0}


def test_of_equal_times_the_first_said_is_the_first_due() -> None:
    agenda = Agenda[str]()
    for key in "cab":
        agenda.set_time(key, 1.0)
    assert [agenda.pop(1.0) for _ in range(4)] == ["c", "a", "b", None]


def test_keys_that_come_and_go_and_times_that_change_leave_little_behind() -> None:
    agenda = Agenda[int]()
    agenda.set_time(0, 5.0)
    for number in range(1, 5000):
        agenda.set_time(number, 10.0 + number)
        agenda.discard(number)
        agenda.set_time(0, 5.0 + number)
        assert len(agenda._heap) <= 2 * 2 + SWEPT
    assert list(agenda) == [0]
