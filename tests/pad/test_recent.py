"""What lies in a buffer and what has gone from it, against a list that forgets nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jbi_pubsub.core.info_object import Cause, Head, Parcel, object_id_of, pack
from jbi_pubsub.pad.matching.recent import (
    OLD_BYTES,
    OLD_SECONDS,
    OVERHEAD,
    SPAN_SECONDS,
    SPANS,
    DepartureCount,
    RecentBuffer,
    RecentBuffers,
)

UID = "registration-" + 32 * "a"


def parcel(number: int, size: int = 0) -> Parcel:
    return pack(Head(object_id_of(UID, number), UID, number, 0.0, "t", "1.0", b"<m/>", size), bytes(size))


def numbers(buffers: RecentBuffers, buffer: RecentBuffer) -> list[int]:
    return [kept.parcel.head.sequence for kept in buffers.look(buffer, [])[0]]


READER: Any = object()


@given(st.lists(st.floats(0, 3.0), max_size=60), st.lists(st.floats(-1.0, 200.0), min_size=1, max_size=5))
def test_what_has_gone_is_counted_exactly_while_each_came_in_a_span_of_its_own(
    pauses: list[float], moments: list[float]
) -> None:
    # Given objects that came at certain moments and have gone
    gone, now, times = DepartureCount(), 0.0, []
    for pause in pauses:
        now += 1.01 * SPAN_SECONDS + pause  # not to the last bit
        times.append(now)
        gone.add(now)
    # Expect for any moment as many as came since then
    for moment in [*moments, *times]:
        assert gone.since(moment) == sum(time >= moment for time in times)


@given(st.lists(st.floats(0, 2.0), max_size=400), st.lists(st.floats(-1.0, 500.0), min_size=1, max_size=5))
@example([0.0, 0.09333431976227181, 0.0001], [0.0, 4.526072967020483e-78])
def test_what_has_gone_long_ago_is_counted_to_within_a_span(pauses: list[float], moments: list[float]) -> None:
    gone, now, times = DepartureCount(), 0.0, []
    for pause in pauses:
        now += pause
        times.append(now)
        gone.add(now)
    # Expect all of them from the first on, none from behind the last, never more from later on, and bounded memory
    assert gone.since(-1.0) == len(times)
    assert gone.since(now + 0.001) == 0
    counts = [gone.since(moment) for moment in sorted(moments)]
    assert counts == sorted(counts, reverse=True)
    assert len(gone._spans) <= SPANS


def test_a_young_buffer_keeps_for_its_seconds_and_an_old_one_for_the_last_second() -> None:
    # Given a buffer whose registration was announced at 0
    buffers, buffer = RecentBuffers(10.0, 1 << 20), RecentBuffer()
    buffers.announced(buffer, 0.0)
    for second in range(9):
        buffers.keep(buffer, [parcel(second + 1)], READER, float(second))
    # Expect all of it before 10 s have gone, and then what came within the last second
    buffers.trim(9.5)
    assert numbers(buffers, buffer) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    buffers.keep(buffer, [parcel(10)], READER, 9.6)
    buffers.trim(10.1)
    assert numbers(buffers, buffer) == [10]
    assert buffers.look(buffer, [(0.0, 10), (4.0, 10), (9.0, 10)])[2] == [9, 5, 0]
    buffers.trim(9.6 + OLD_SECONDS + 0.1)
    assert len(buffers) == buffers.size == 0


def test_while_no_lookup_service_has_told_of_it_a_buffer_stays_young() -> None:
    buffers, buffer = RecentBuffers(10.0, 1 << 20), RecentBuffer()
    buffers.keep(buffer, [parcel(1)], READER, 0.0)
    buffers.trim(1e6)
    assert numbers(buffers, buffer) == [1]


def test_an_old_buffer_holds_few_bytes_however_fast_they_come() -> None:
    buffers, buffer = RecentBuffers(10.0, 1 << 30), RecentBuffer()
    buffers.announced(buffer, -100.0)
    for number in range(1, 100):
        buffers.keep(buffer, [parcel(number, 100_000)], READER, 0.0)
        assert buffers.size <= OLD_BYTES
    assert numbers(buffers, buffer)[-1] == 99


def test_the_largest_buffer_gives_up_its_oldest_and_a_quiet_one_keeps_its_first() -> None:
    # Given room for ten objects, and a quiet registration's first one
    limit = 10 * (parcel(999, 5000).size + OVERHEAD)
    buffers, quiet, loud = RecentBuffers(10.0, limit), RecentBuffer(), RecentBuffer()
    buffers.keep(quiet, [parcel(1, 5000)], READER, 0.0)
    # When another floods
    for number in range(1, 1000):
        buffers.keep(loud, [parcel(number, 5000)], READER, 0.001 * number)
        assert buffers.size <= limit
    # Expect the quiet one's first, and the latest of the other; all that has gone is counted
    assert numbers(buffers, quiet) == [1]
    assert numbers(buffers, loud) == list(range(991, 1000))
    assert buffers.look(loud, [(0.0, 999)])[2] == [990]


def test_an_object_larger_than_all_the_room_is_counted_as_gone() -> None:
    buffers, buffer = RecentBuffers(10.0, 50_000), RecentBuffer()
    buffers.keep(buffer, [parcel(1, 60_000)], READER, 1.0)
    assert (len(buffers), buffers.size) == (0, 0)
    assert buffers.look(buffer, [(0.0, 1), (2.0, 1)])[2] == [1, 0]


def test_without_seconds_nothing_is_kept_and_everything_counted() -> None:
    buffers, buffer = RecentBuffers(0.0, 1 << 30), RecentBuffer()
    for number in range(1, 6):
        assert buffers.keep(buffer, [parcel(number)], READER, float(number))[0].position == number
    assert buffers.size == 0
    assert buffers.look(buffer, [(3.0, 5), (0.0, 2)])[2] == [3, 2]


def test_an_object_is_found_by_its_id_while_it_lies_there() -> None:
    buffers, buffer = RecentBuffers(10.0, 1 << 20), RecentBuffer()
    buffers.keep(buffer, [parcel(7)], READER, 0.0)
    found = buffers.find(object_id_of(UID, 7))
    assert found is not None
    assert found.head.sequence == 7
    buffers.drop(buffer)
    assert buffers.find(object_id_of(UID, 7)) is None


@pytest.mark.parametrize("found_first", [True, False])
def test_an_object_counts_as_found_late_once_whoever_comes_first(found_first: bool) -> None:
    # Given an object that matches nobody, and two who find it, one of them before that was known
    buffers, buffer = RecentBuffers(10.0, 1 << 20), RecentBuffer()
    (kept,) = buffers.keep(buffer, [parcel(1)], READER, 0.0)
    steps = [buffers.found, buffers.unmatched] if found_first else [buffers.unmatched, buffers.found]
    for step in (*steps, buffers.found):
        step(kept)
    assert buffers.found_late == 1


def test_what_never_came_to_a_buffer_is_known_to_who_comes_late() -> None:
    # Given two buffers, of which one has lost a thousand objects one by one, and some at once later
    buffers, buffer, other = RecentBuffers(10.0, 1 << 20), RecentBuffer(), RecentBuffer()
    for number in range(1_000):
        buffers.lose(buffer, Cause.FILTERED, 1, number / 1_000)
    position = buffers.lose(buffer, Cause.SEQUENCE_GAP, 7, 9.0)
    # Expect that a late joiner to both is told of all since it stands, up to its place
    for since, lost in (
        (0.0, {Cause.FILTERED: 1_000, Cause.SEQUENCE_GAP: 7}),
        (5.0, {Cause.SEQUENCE_GAP: 7}),
        (9.1, {}),
    ):
        place, _, told = buffers.mark([buffer, other], since)
        assert {cause: count for cause, count in told.items() if count} == lost
        assert place == position
    # And that one who does not come late is told of what is behind its place
    assert buffers.lose(buffer, Cause.SEQUENCE_GAP, 1, 9.2) > place
