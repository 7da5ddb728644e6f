"""Objects of a node's registration on their way to other nodes: said in order, held, or left out with their numbers."""

from __future__ import annotations

import math

import msgspec
import pytest

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.info_object import Head, InfoObject, ObjectAttributes, Platform, TypeName, pack
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.node.bodies import VERSION, LeftOutBody, SequenceBody, decoded_body
from jbi_pubsub.node.own import HELD_MOST, HELD_SECONDS, OwnSequence

pytestmark = pytest.mark.unit


class Line:
    """Others, as far as what they hear is concerned: numbers, and (numbers that are left out)."""

    def __init__(self) -> None:
        self.said: list[int | tuple[int, ...]] = []
        self.ages: list[int] = []
        self.lost: list[int] = []
        """Of what was left out, each time."""
        self.lives: list[int] = []
        self.room = 1 << 30
        self.sequence = OwnSequence(SequenceBody(VERSION, "uid", TypeName("a.type"), bytes(16)), self._say)

    def _say(self, message: NodeMessage, timeout: float) -> None:  # noqa: ARG002  # the network's form
        if not self.room:
            raise BackPressureError("no room")
        self.room -= 1
        if message.kind == DatagramKind.PUBLICATION:
            self.said.append(int(message.body))
            self.lives.append(message.expiration)
            return
        body = decoded_body(message.body)
        assert isinstance(body, LeftOutBody)
        self.ages.append(body.age)
        self.lost.append(body.lost)
        self.said.append(tuple(range(body.up_to - body.count + 1, body.up_to + 1)))

    def go(self, now: float, number: int = 0) -> None:
        self.sequence.go(now, 0.0, number, _object(number) if number else None)

    def hold(self, number: int, until: float = HELD_SECONDS) -> None:
        self.sequence.hold(number, _object(number), until - HELD_SECONDS, math.inf, HELD_SECONDS, is_alone=True)


def _object(number: int) -> NodeMessage:
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d" % number)


@pytest.fixture
def line() -> Line:
    return Line()


def test_what_is_held_goes_first_and_what_is_over_is_left_out(line: Line) -> None:
    # Given objects that are held for different times; when another one goes as some are over
    line.hold(1, until=1.0)
    line.hold(2, until=1.0)
    line.hold(3)
    line.go(5.0, 4)
    assert line.said == [(1, 2), 3, 4]


def test_what_nobody_has_wanted_in_time_is_not_kept_and_told_with_its_age(line: Line) -> None:
    # Given an object that is held, and nobody who wants it
    line.hold(1, until=1.0)
    line.hold(2, until=2.0)
    line.sequence.look(1.5, is_wanted=False)
    # When somebody wants what follows later
    line.go(5.0, 3)
    # Expect those before to be left out, and when the last one came to be told
    assert (line.said, line.ages) == ([(1, 2), 3], [13_000])


@pytest.mark.parametrize("until", [1.0, 10.0])
def test_what_is_left_out_behind_what_is_held_is_told_behind_it(line: Line, until: float) -> None:
    # Given an object that is held, and others behind it that nobody wants, or that were left out before
    line.go(0.0, 1)
    line.hold(2, until=until)
    line.sequence.leave_out(3, 5, 0.0, 0.0)
    assert line.said == [1]
    # When something follows, expect each number once, in order
    line.go(5.0, 6)
    assert line.said == ([1, 2, (3, 4, 5), 6] if until > 5.0 else [1, (2, 3, 4, 5), 6])


def test_however_many_are_left_out_behind_what_is_held_they_are_kept_as_one(line: Line) -> None:
    # Given an object that is held, and others that are left out behind it, one after the other
    line.hold(1)
    for number in range(2, 1_002):
        line.sequence.leave_out(1, number, 0.0, 0.0)
    assert len(line.sequence._held) == 2
    # When the first one goes; Expect all of them to be told
    line.go(1.0, 1_002)
    assert line.said == [1, tuple(range(2, 1_002)), 1_002]


def test_of_what_does_not_go_it_is_told_how_many_were_lost(line: Line) -> None:
    # Given an object that is held, and behind it one that is left out, two that were lost, and one more
    line.hold(1)
    for number, count, lost in ((2, 1, False), (4, 2, True), (5, 1, False)):
        line.sequence.leave_out(count, number, 0.0, 0.0, lost=lost)
    line.go(1.0, 6)
    # When one is lost behind that; Expect each told once
    line.sequence.leave_out(1, 7, 0.0, 0.0, lost=True)
    line.go(1.0, 8)
    assert (line.said, line.lost) == ([1, (2, 3, 4, 5), 6, (7,), 8], [2, 1])


def test_of_too_many_that_are_held_the_first_are_left_out(line: Line) -> None:
    for number in range(1, HELD_MOST + 3):
        line.hold(number)
    line.go(0.0)
    assert line.said == [(1, 2), *range(3, HELD_MOST + 3)]


def test_of_durable_objects_the_newest_of_each_key_is_held_as_long_as_it_lives(line: Line) -> None:
    def hold(number: int, key: bytes) -> None:
        message = _object(number)._replace(durability=key * 16, expiration=60_000)
        line.sequence.hold(number, message, 0.0, 60.0, 2.0, is_alone=False)

    # Given objects of two keys that live for a minute, and many of a third one, which nobody wants
    for number, key in enumerate((b"a", b"b", b"a"), 1):
        hold(number, key)
    for number in range(4, 2 * HELD_MOST):
        hold(number, b"c")
    # When somebody wants them 50 seconds later, expect the newest of each, with what is left of its life
    line.sequence.look(50.0, is_wanted=False)
    line.go(50.0, 2 * HELD_MOST)
    numbers = [each if isinstance(each, int) else len(each) for each in line.said]
    assert numbers == [1, 2, 3, 2 * HELD_MOST - 5, 2 * HELD_MOST - 1, 2 * HELD_MOST]
    assert line.lives == [10_000, 10_000, 10_000, 0]


def test_nothing_is_lost_or_said_twice_where_there_is_no_room_for_a_while(line: Line) -> None:
    # Given things of each kind
    line.hold(1, until=0.0)
    line.hold(2)
    line.sequence.leave_out(1, 3, 0.0, 0.0)
    # When there is room for one at a time
    for _ in range(4):
        line.room = 1
        try:
            line.go(0.0, 4)
        except BackPressureError:
            continue
        break
    # Expect each once, in order
    assert line.said == [(1,), 2, (3,), 4]


def test_what_was_left_out_and_finds_no_room_is_counted_once_when_it_is_said_again(line: Line) -> None:
    line.room = 0
    for _ in range(2):
        with pytest.raises(BackPressureError):
            line.sequence.leave_out(3, 3, 0.0, 0.0)
    line.room = 9
    line.sequence.leave_out(3, 3, 0.0, 0.0)
    line.go(0.0, 4)
    assert line.said == [(1, 2, 3), 4]


@pytest.mark.row("D-39")
@pytest.mark.parametrize(
    ("registration", "own", "lives"),
    [(0.0, 0.0, 0.0), (0.0, 5.0, 5.0), (9.0, 5.0, 5.0), (9.0, 50.0, 9.0), (90.0, 0.0, 90.0), (0.0, 1e-6, 1e-6)],
)
def test_an_object_lives_no_longer_than_it_or_its_registration_says(
    registration: float, own: float, lives: float
) -> None:
    body = SequenceBody(VERSION, "uid", TypeName("a.type"), bytes(16), expiration=registration)
    head = Head("", "registration-1", 1, 1.0, "t", "1.0", b"", 0, attributes=ObjectAttributes(timeout=own))
    sequence, obj = OwnSequence(body, lambda *_: None), pack(head, b"").unpacked()
    assert sequence.life(obj, 0.0) == (lives or math.inf)
    assert sequence.life(obj, 4.0) == (lives or math.inf) - 4.0, "it has waited"


def test_what_is_held_is_said_with_the_life_that_it_has_left(line: Line) -> None:
    # Given an object that lives for five seconds, one that lives for a second, and one of which nobody says that
    for number, life in ((1, 5.0), (2, 1.0), (3, math.inf)):
        line.sequence.hold(number, _object(number)._replace(expiration=9), 0.0, life, 10.0, is_alone=False)
    # When somebody wants them two seconds later
    line.go(2.0)
    # Expect them with what is left of it
    assert (line.said, line.lives) == ([1, (2,), 3], [3_000, 9])


def test_all_that_is_said_of_a_registration_has_one_importance() -> None:
    # Given a registration of the least importance, which it would have more of later
    said: list[NodeMessage] = []
    body = SequenceBody(VERSION, "uid", TypeName("a.type"), bytes(16), importance=1)
    sequence = OwnSequence(body, lambda message, _: said.append(message))

    def publish(number: int) -> None:
        obj = InfoObject(f"o-{number}", TypeName("a.type"), b"<x/>", b"", Platform(0.0, "uid", number, 4, 0))
        sequence.go(0.0, 0.0, number, sequence.message(obj, "here", math.inf, 60.0, is_reliable=False))

    publish(1)
    sequence.change(msgspec.structs.replace(body, importance=5))
    # When objects go, and others are left out
    sequence.leave_out(2, 3, 0.0, 0.0)
    publish(4)
    # Expect none to overtake another one
    kinds = [DatagramKind.PUBLICATION, DatagramKind.SEQUENCE, DatagramKind.PUBLICATION]
    assert [(each.kind, each.level) for each in said] == [(kind, 1) for kind in kinds]
