"""What one receiver has been sent and not acknowledged, against a model that remembers everything."""

from __future__ import annotations

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.core.wire.deflate import Compression
from jbi_pubsub.core.wire.stream import (
    BATCH,
    FRAME,
    ITEMS,
    LENGTH,
    MAX_FRAME_BYTES,
    WINDOW_BATCHES,
    WINDOW_BYTES,
    Batch,
    Window,
)


def items_of(batch: Batch) -> dict[int, bytes]:
    """What a receiver reads from the batch's frame: sequence number -> bytes."""
    frame = b"".join(batch.frame)
    length, kind = FRAME.unpack_from(frame)
    first, count = BATCH.unpack_from(frame, FRAME.size)
    assert (length, kind) == (len(frame) - FRAME.size, ITEMS)
    at, items = FRAME.size + BATCH.size, {}
    for number in range(first, first + count):
        (size,) = LENGTH.unpack_from(frame, at)
        items[number] = frame[at + LENGTH.size : at + LENGTH.size + size]
        at += LENGTH.size + size
    assert at == len(frame)
    return items


steps = st.one_of(
    st.tuples(st.just("add"), st.lists(st.lists(st.binary(max_size=9), max_size=3), min_size=1, max_size=4)),
    st.tuples(st.just("acknowledge"), st.floats(0, 1)),
    st.tuples(st.just("reconnect"), st.floats(0, 1)),
)


@settings(derandomize=True, max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=40))
def test_what_is_to_be_sent_again_is_what_the_receiver_lacks(script: list[tuple[str, object]]) -> None:
    # Given any history of batches, acknowledgements and reconnects, and a model of all that was ever sent
    window = Window()
    sent: list[bytes] = []
    lasts: list[int] = []
    position = 0
    for step, what in script:
        if step == "add" and window.may_add():
            batch = window.add(what)  # type: ignore[arg-type]  # a list of items
            added = [b"".join(parts) for parts in what]  # type: ignore[attr-defined]  # the same
            numbers = range(len(sent) + 1, len(sent) + len(added) + 1)
            assert items_of(batch) == dict(zip(numbers, added, strict=True))
            sent += added
            lasts.append(len(sent))
        elif step == "acknowledge":
            before, position = position, position + round(what * (len(sent) - position))  # type: ignore[operator]
            assert window.acknowledge(position) == position - before
        elif step == "reconnect":
            # Expect that from anywhere between, the rest comes again, in order, without a gap
            has = position + round(what * (len(sent) - position))  # type: ignore[operator]
            again: dict[int, bytes] = {}
            for batch in window.beyond(has):
                again |= items_of(batch)
            assert [n for n in again if n > has] == list(range(has + 1, len(sent) + 1))
            assert all(sent[number - 1] == item for number, item in again.items())
        # Expect the window to be open while fewer batches than it holds are under way
        assert window.unacknowledged == len(sent) - position
        assert window.may_add() == (sum(last > position for last in lasts) < WINDOW_BATCHES)


def test_a_window_full_of_bytes_is_shut_but_one_larger_batch_may_go() -> None:
    # Given a batch as large as the window
    window = Window()
    assert window.may_add()
    batch = window.add([[bytes(WINDOW_BYTES)]])

    # Expect nothing beside it, until it is acknowledged; its bytes are not copied
    assert not window.may_add()
    assert [len(part) for part in batch.frame][-1] == WINDOW_BYTES
    window.acknowledge(1)
    assert window.may_add()


@pytest.mark.parametrize("position", [0, 1, 4, 2**63])
def test_a_position_that_can_not_be_is_refused_and_changes_nothing(position: int) -> None:
    # Given three items of which two are acknowledged
    window = Window()
    window.add([[b"1"], [b"2"], [b"3"]])
    window.acknowledge(2)

    # When the receiver goes back, or acknowledges what was never sent
    with pytest.raises(ProtocolError):
        window.acknowledge(position)

    # Expect that what is kept is as before
    assert (window.position, window.unacknowledged) == (2, 1)
    assert [batch.last for batch in window.beyond(2)] == [3]


def test_a_batch_that_fits_in_no_frame_is_refused_and_takes_no_number() -> None:
    # Given parts that exceed a frame together (the same bytes again and again)
    window = Window()
    large = bytes(1 << 20)
    with pytest.raises(OversizeError):
        window.add([[large] * (MAX_FRAME_BYTES >> 20)] * 2)

    # Expect that the next item is the first
    assert items_of(window.add([[b"next"]])) == {1: b"next"}


def test_a_receiver_that_has_forgotten_all_is_begun_with_again() -> None:
    # Given items under way
    window = Window()
    window.add([[b"1"], [b"2"]])
    window.acknowledge(1)

    # When the window begins again, expect nothing kept, and numbers from 1
    window.restart()
    assert (window.beyond(0), window.unacknowledged, window.may_add()) == ([], 0, True)
    assert items_of(window.add([[b"first"]])) == {1: b"first"}


def test_a_batch_is_larger_where_the_link_is_fast_and_never_where_it_is_slow() -> None:
    # Given a window that has heard nothing; Expect the usual batch
    window = Window()
    assert window.batch_bytes(1000) == 1000
    # When two batches of 30,000 bytes together take a second until the second one has come
    window.add([(b"x" * 15_000,)], 1.0)
    window.add([(b"x" * 15_000,)], 1.0)
    window.acknowledge(2, 2.0)
    # Expect the usual one: more would take longer than a hundredth of a second
    assert window.batch_bytes(1000) == 1000
    # When they take a hundredth
    window.add([(b"x" * 15_000,)], 3.0)
    window.add([(b"x" * 15_000,)], 3.0)
    window.acknowledge(4, 3.01)
    # Expect up to four usual ones, of what goes in that time
    assert window.batch_bytes(1000) == 4000
    assert 30_000 <= window.batch_bytes(10_000) <= 30_100
    assert window.batch_bytes(64_000) == 64_000
    # but for what is compressed, which has a largest batch
    assert window.batch_bytes(1000, Compression()) == 1000
