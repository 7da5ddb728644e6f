"""Streams between two nodes, whose messages come in any order: bytes in order, once, bounded, ended by all that may
happen to a node."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import BackPressureError, ProtocolError
from jbi_pubsub.node.streams import (
    CHUNK,
    GAP_SECONDS,
    IDLE_SECONDS,
    OPEN_SECONDS,
    OVERHEAD,
    REFUSED_MOST,
    STREAMS_PER_NODE,
    VERSION,
    WINDOW,
    NodeStream,
    StreamData,
    StreamOpen,
    Streams,
    StreamTaken,
)

pytestmark = pytest.mark.unit

NEAR, FAR = b"n" * 16, b"f" * 16
HEARD = {NEAR: 1, FAR: 1}


class Ends:
    """Two nodes; messages between them go when they are told to, in what order the test's chance has."""

    def __init__(self, seed: int = 1) -> None:
        numbers = itertools.count(1)
        self.chance = random.Random(seed)
        self.near, self.far = (Streams(lambda: next(numbers)) for _ in range(2))
        self.under_way: list[tuple[bytes, bytes]] = []
        self.changed: dict[NodeStream, None] = {}

    def carry(self, *, most: int = 1_000_000) -> None:
        """Carry what there is to be said, until nothing is, or so many messages."""
        for _ in range(most):
            for streams in (self.near, self.far):
                self.under_way += streams.out
                streams.out.clear()
            if not self.under_way:
                return
            to, body = self.under_way.pop(self.chance.randrange(len(self.under_way)))
            at, of = (self.near, FAR) if to == NEAR else (self.far, NEAR)
            found = at.received(of, body, 0.0)
            if found is not None:
                self.changed[found] = None

    def opened(self, service: str = "delegate") -> tuple[NodeStream, NodeStream]:
        """A stream at both ends."""
        here = self.near.open(FAR, service, 0.0)
        self.changed = {}
        self.carry()
        (there,) = self.changed
        self.far.take(there, ("127.0.0.1:1",), 0.0)
        self.carry()
        assert (here.phase, there.phase, here.endpoints) == ("open", "open", ("127.0.0.1:1",))
        return here, there


def taken(streams: Streams, stream: NodeStream) -> bytes:
    """All that has come."""
    found = []
    while stream.inbox:
        found.append(stream.inbox[0])
        streams.took(stream, 0.0)
    return b"".join(found)


def body(kind: Any, *given: Any) -> bytes:
    """Bytes of a message."""
    return msgspec.msgpack.encode(kind(VERSION, *given))


@pytest.mark.parametrize("seed", range(8))
def test_bytes_come_in_order_in_both_directions_however_messages_overtake(seed: int) -> None:
    # Given an open stream, and messages that come in any order
    ends = Ends(seed)
    here, there = ends.opened()
    sides = [(ends.near, here), (ends.far, there)]
    whole = [ends.chance.randbytes(500_000) for _ in sides]
    at, got = [0, 0], [b"", b""]
    # When both send as they have room, and take what has come now and then
    while any(a < len(w) for a, w in zip(at, whole, strict=True)) or any(
        len(g) < len(w) for g, w in zip(got, reversed(whole), strict=True)
    ):
        for number, (streams, stream) in enumerate(sides):
            if stream.room and at[number] < len(whole[number]):
                size = ends.chance.randint(1, stream.room)
                streams.send(stream, whole[number][at[number] :][:size], 0.0)
                at[number] += size
            if ends.chance.random() < 0.5:
                got[number] += taken(streams, stream)
        ends.carry(most=ends.chance.randint(0, 5))
    # Expect what was sent, and the streams over when both have ended
    assert got == list(reversed(whole))
    for streams, stream in sides:
        streams.send(stream, b"", 0.0, is_last=True)
    ends.carry()
    assert [(e.phase, e.why) for _, e in sides] == [("over", "")] * 2
    assert (len(ends.near), len(ends.far)) == (0, 0)


def test_who_does_not_take_what_comes_stops_the_sender_and_nobody_else() -> None:
    ends = Ends()
    slow, _ = ends.opened()
    quick, there = ends.opened()
    sent = 0
    while slow.room:
        sent += slow.room
        ends.near.send(slow, bytes(slow.room), 0.0)
        ends.carry()
    assert WINDOW - CHUNK < sent <= WINDOW
    for _ in range(20):
        ends.near.send(quick, bytes(CHUNK), 0.0)
        ends.carry()
        assert taken(ends.far, there) == bytes(CHUNK)
        ends.carry()


def test_small_messages_are_bounded_as_large_ones() -> None:
    ends = Ends()
    here, there = ends.opened()
    count = 0
    while here.room:
        ends.near.send(here, b"x", 0.0)
        count += 1
    ends.carry()
    assert count <= WINDOW // OVERHEAD
    assert taken(ends.far, there) == b"x" * count


def test_an_end_leaves_the_other_direction_open() -> None:
    ends = Ends()
    here, there = ends.opened()
    ends.near.send(here, b"a question", 0.0)
    ends.near.send(here, b"", 0.0, is_last=True)
    ends.carry()
    assert taken(ends.far, there) == b"a question"
    assert there.has_all
    assert not here.room
    ends.far.send(there, b"an answer", 0.0)
    ends.carry()
    assert taken(ends.near, here) == b"an answer"
    ends.far.send(there, b"", 0.0, is_last=True)
    ends.carry()
    assert (here.phase, here.why, len(ends.near), len(ends.far)) == ("over", "", 0, 0)


def test_a_stream_that_only_asks_is_over_with_the_answer() -> None:
    ends = Ends()
    here = ends.near.open(FAR, "lookup", 0.0, asks=True)
    ends.carry()
    (there,) = ends.changed
    ends.far.take(there, ("10.0.0.3:4160",), 0.0)
    ends.carry()
    assert (here.phase, here.why, here.endpoints) == ("over", "", ("10.0.0.3:4160",))
    assert (len(ends.near), len(ends.far)) == (0, 0)


def test_a_refusal_says_why() -> None:
    ends = Ends()
    here = ends.near.open(FAR, "shell", 0.0)
    ends.carry()
    (there,) = ends.changed
    ends.far.reset(there, "it serves no 'shell'")
    ends.carry()
    assert (here.phase, here.why) == ("over", "it serves no 'shell'")


def test_streams_are_bounded() -> None:
    # Given as many streams as one node may have
    ends = Ends()
    here = [ends.near.open(FAR, "delegate", 0.0) for _ in range(STREAMS_PER_NODE)]
    with pytest.raises(BackPressureError, match="streams to that node are open"):
        ends.near.open(FAR, "delegate", 0.0)
    ends.carry()
    # When the other node is asked for more by somebody who does not count
    before = len(ends.far)
    for number in range(1_000, 1_200):
        assert ends.far.received(NEAR, body(StreamOpen, number, "delegate"), 0.0) is None
    # Expect them refused, those that stand left alone, and room when one has ended
    assert len(ends.far) == before
    ends.carry()
    assert all(each.phase == "opening" for each in here)
    ends.near.reset(here[0], "no longer wanted")
    ends.carry()
    assert ends.far.received(NEAR, body(StreamOpen, 2_000, "delegate"), 0.0) is not None


def test_what_strangers_have_refused_is_bounded() -> None:
    # Given somebody who opens stream after stream to what there is not
    ends = Ends()
    for number in range(2 * REFUSED_MOST):
        stream = ends.far.received(NEAR, body(StreamOpen, number, "nothing"), 0.0)
        if stream is not None:
            ends.far.reset(stream, "there is no such service")
    # Expect no more answers to wait than may
    assert len(ends.far.out) == REFUSED_MOST


def test_who_breaks_the_window_loses_the_stream() -> None:
    ends = Ends()
    here, there = ends.opened()
    for number in range(1, 5):  # the first never comes
        ends.far.received(NEAR, body(StreamData, here.key.id, True, number + 1, 0, bytes(CHUNK)), 0.0)
    assert (there.phase, there.why) == ("over", "more was sent than there is room for")
    assert not there.coming.early or there.coming.came <= 2 * WINDOW
    ends.carry()
    assert here.why == "more was sent than there is room for"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda key: body(StreamData, key.id, False, 1, 1 << 40, b""), "more was taken than was sent"),
        (lambda key: body(StreamTaken, key.id, ("another:1",)), ""),
        (lambda key: body(StreamOpen, key.id, "delegate"), ""),
    ],
)
def test_what_does_not_belong_there_does_no_harm(given: Any, why: str) -> None:
    ends = Ends()
    here, _ = ends.opened()
    ends.near.received(FAR, given(here.key), 0.0)
    assert (here.why, here.endpoints) == (why, ("127.0.0.1:1",))


def test_rubbish_is_refused_with_our_error() -> None:
    chance, ends = random.Random(3), Ends()
    good = body(StreamData, 1, True, 1, 0, b"x" * 40)
    for _ in range(3_000):
        data = bytearray(good if chance.random() < 0.7 else chance.randbytes(60))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            ends.far.received(NEAR, bytes(data), 0.0)
        except ProtocolError:
            continue


def test_what_comes_for_a_stream_that_has_ended_is_answered_by_a_reset() -> None:
    # Given one end that has forgotten the stream, as a node does that was started anew
    ends = Ends()
    here, _ = ends.opened()
    ends.far = Streams(lambda: 0)
    ends.near.send(here, b"x", 0.0)
    ends.carry()
    assert here.why == "there is no such stream"


def test_a_stream_that_was_given_up_before_it_was_taken_stands_nowhere() -> None:
    # Given a stream whose reset comes before its opening
    ends = Ends()
    here = ends.near.open(FAR, "delegate", 0.0)
    ends.near.reset(here, "no longer wanted")
    (_, opening), (_, reset) = ends.near.out
    ends.near.out.clear()
    assert ends.far.received(NEAR, reset, 0.0) is None
    there = ends.far.received(NEAR, opening, 0.0)
    assert there is not None
    # When it is taken, expect it over at once
    ends.far.take(there, ("127.0.0.1:1",), 0.0)
    ends.carry()
    assert (there.why, len(ends.far)) == ("there is no such stream", 0)


@pytest.mark.parametrize(
    ("then", "why"), [({NEAR: 1}, "the node has left"), ({NEAR: 1, FAR: 2}, "the node was started again")]
)
def test_streams_end_with_their_node(then: dict[bytes, int], why: str) -> None:
    ends = Ends()
    here, _ = ends.opened()
    assert ends.near.tick(HEARD, 1.0) == []
    assert ends.near.tick(then, 2.0) == [here]
    assert (here.why, len(ends.near), list(ends.near.out)) == (why, 0, [])


def test_a_node_that_was_started_anew_before_it_was_looked_at_first_is_another_one() -> None:
    streams = Streams(lambda: 1)
    here = streams.open(FAR, "delegate", 0.0, epoch=1)
    assert streams.tick({FAR: 2}, 0.1) == [here]
    assert here.why == "the node was started again"


def test_nothing_waits_for_ever() -> None:
    ends = Ends()
    # one that nobody takes
    here = ends.near.open(FAR, "delegate", 0.0)
    assert ends.near.tick(HEARD, OPEN_SECONDS) == []
    assert ends.near.tick(HEARD, OPEN_SECONDS + 1) == [here]
    ends.near.out.clear()
    # one over which nothing goes
    idle, there = ends.opened()
    assert ends.near.tick(HEARD, IDLE_SECONDS) == []
    assert ends.near.tick(HEARD, IDLE_SECONDS + 1) == [idle]
    # and one of which a message does not come
    ends.far.tick(HEARD, 1.0)
    ends.far.received(NEAR, body(StreamData, idle.key.id, True, 2, 0, b"second"), 1.0)
    assert ends.far.tick(HEARD, GAP_SECONDS) == []
    assert ends.far.tick(HEARD, GAP_SECONDS + 2) == [there]
    assert there.why == "a part of it was lost"
