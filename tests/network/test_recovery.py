"""Questions and answers between nodes, one by one: who asks for what, who gives it, where it goes, and when."""

from __future__ import annotations

import pytest

from jbi_pubsub.network.bodies import decoded_request
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, read
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.log import LogId
from jbi_pubsub.network.message import MessageForm, NodeMessage
from jbi_pubsub.network.missing import AnswerTime, MissingSerial

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

SIZE = 1_300


def _dropped(segment: Segment, node: Node, *serials: int) -> None:
    """The first datagrams with these serials do not come to a node."""
    left = set(serials)

    def drops(to: Node, data: bytes) -> bool:
        found = read(data)
        serial = found.footer.serial if isinstance(found, Datagram) else 0
        is_lost = to is node and serial in left
        left.difference_update({serial} if is_lost else ())
        return is_lost

    segment.drops = drops


def _repairs(sent: list[Datagram]) -> list[int]:
    return [each.footer.serial for each in sent if each.is_repair]


@pytest.mark.row("G-81")
def test_a_request_names_exactly_the_missing_blocks_and_these_come_again() -> None:
    # Given a message of ten blocks, of which a node gets all but three
    world = World(1)
    segment = Segment(world)
    first, other = (Node(world, number, [segment], ExchangeSettings()) for number in (1, 2))
    world.run(2.5)
    _dropped(segment, other, 3, 4, 7)
    sent = segment.watch()
    first.say(world.chance.randbytes(10 * 1_360))
    assert world.run(5.0, lambda: bool(other.heard))
    # Expect one request, for these and no others, and an answer with each of them, once
    asked = [decoded_request(bytes(each.data)) for each in sent if each.kind == DatagramKind.REQUEST]
    assert [each.wanted for each in asked] == [{LogId(first.id, 1): ((3, 4), (7, 7))}]
    assert _repairs(sent) == [3, 4, 7]


@pytest.mark.row("G-183")
def test_a_block_that_waits_to_be_sent_again_is_not_queued_again() -> None:
    # Given a node that has said a block, which five others have not got, and ask for at once
    one = Exchange(b"1" * 16, 1, 1, lambda low, _: low, ExchangeSettings())
    one.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"lost"), 0.0)
    lost = one.outgoing(0, 0.0)
    one.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"heard"), 0.0)
    heard = one.outgoing(0, 0.0)
    assert lost is not None
    assert heard is not None
    requests = []
    for number in range(2, 7):
        other = Exchange(b"%d" % number * 16, 1, 1, lambda low, _: low, ExchangeSettings())
        list(other.received(0, heard, 0.001))
        other.tick(0.012)
        requests += list(iter(lambda other=other: other.outgoing(0, 0.012), None))  # type: ignore[misc]
    assert sum(data[3] == DatagramKind.REQUEST for data in requests) == 5
    # When their questions come before the block has left again, expect it to wait once
    for data in requests:
        list(one.received(0, data, 0.013))
    assert one.sides[0].queues.repairs == 1
    assert _repairs([datagram for data in iter(lambda: one.outgoing(0, 0.014), None)
                     if isinstance(datagram := read(data), Datagram)]) == [1]  # fmt: skip


@pytest.mark.row("G-205")
def test_repairs_go_where_a_block_was_missed_and_on_no_network_beside() -> None:
    # Given three networks around a relay, and two nodes on each, one of which misses some blocks
    world = World(1)
    segments = [Segment(world) for _ in range(3)]
    first = Node(world, 1, segments[:1], ExchangeSettings())
    Node(world, 2, segments, ExchangeSettings())
    ends = [Node(world, 10 * at + end, [segment], ExchangeSettings())
            for at, segment in enumerate(segments, 1) for end in (1, 2)]  # fmt: skip
    world.run(2.5)
    _dropped(segments[2], ends[-1], *range(10, 20))
    sent = [each.watch() for each in segments]
    for number in range(50):
        first.say(b"%06d" % number + bytes(SIZE))
    assert world.run(10.0, lambda: all(len(each.heard) == 50 for each in ends))
    world.run(12.0)
    # Expect these there, once, and neither a question nor a repair elsewhere
    assert [_repairs(each) for each in sent] == [[], [], list(range(10, 20))]
    assert [sum(datagram.kind == DatagramKind.REQUEST for datagram in each) for each in sent] == [0, 0, 1]


@pytest.mark.row("G-90")
@pytest.mark.parametrize("hours", [(0, 1, -1), (1, 0, 0), (0, 1_000, -1_000)])
def test_a_message_lives_as_long_as_it_says_whatever_the_clocks_show(hours: tuple[int, int, int]) -> None:
    # Given nodes whose clocks differ by hours, and a network that loses
    world = World(1)
    segment = Segment(world, loss=0.2)
    first, other = (Node(world, number, [segment], ExchangeSettings(), clock=3_600.0 * hours[number])
                    for number in (0, 1))  # fmt: skip
    world.run(2.5)
    for number in range(20):
        first.say(b"short %d" % number, expiration=4_000)
        first.say(b"long %d" % number, expiration=60_000)
    # Expect all of it there in time, and milliseconds that are left in each datagram
    sent = segment.watch()
    assert world.run(6.0, lambda: len(other.heard) == 40)
    lives = [each.footer.expiration for each in sent if each.kind == DatagramKind.PUBLICATION and each.footer]
    assert 0 < min(lives) <= max(lives) <= 60_000
    # When one whose clock is of another time comes later, expect what still lives and nothing else
    world.run(7.0)
    late = Node(world, 2, [segment], ExchangeSettings(), clock=3_600.0 * hours[2])
    world.run(20.0)
    assert sorted(each.body for each in late.heard) == sorted(b"long %d" % number for number in range(20))


@pytest.mark.row("G-159")
@pytest.mark.parametrize("delay", [0.0005, 0.02, 0.3])
def test_the_time_there_and_back_is_found_and_delays_follow_it(delay: float) -> None:
    # Given nodes that think that a question is answered in 5 ms, on a network that loses a tenth
    world = World(1)
    segment = Segment(world, loss=0.1, delay=delay, rate=1e6)
    first, *others = [Node(world, number, [segment], ExchangeSettings()) for number in range(1, 4)]
    world.run(2.5)
    # When much is said
    for number in range(600):
        world.at(world.now + number / 20, lambda number=number: first.say(b"%06d" % number + bytes(SIZE)))  # type: ignore[misc]
    assert world.run(100.0, lambda: all(len(each.heard) == 600 for each in others))
    # Expect them to know better
    for each in others:
        recovery = each.exchange.sides[0].recovery
        assert 1.9 * delay <= recovery.round_trip <= 2.2 * delay + 0.003
        assert recovery.delay >= 2 * recovery.round_trip


@pytest.mark.row("G-159")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("rate", "block"), [(2_400, 500), (1e6, 1_360)])
def test_on_a_long_way_what_is_lost_is_asked_for_and_sent_again_about_once(rate: float, block: int, seed: int) -> None:
    # Given four nodes on a network of 600 ms there and back that loses a twentieth, of 19,200 bit/s or a fast one
    world = World(seed)
    segment = Segment(world, loss=0.05, delay=0.3, rate=rate)
    settings = ExchangeSettings(announce_seconds=30.0, node_timeout=120.0, form=MessageForm(block=block))
    first, *others = [Node(world, number, [segment], settings) for number in range(1, 5)]
    world.run(5.0)
    lost, heard = 0, segment.watch()

    def counts(to: Node, data: bytes) -> bool:
        nonlocal lost
        found, is_lost = read(data), world.chance.random() < 0.05
        assert isinstance(found, Datagram)
        lost += is_lost and to is not first and found.kind == DatagramKind.PUBLICATION
        return is_lost

    segment.loss, segment.drops = 0.0, counts
    # When one says a message of two blocks each second
    for number in range(100):
        world.at(world.now + number, lambda: first.say(world.chance.randbytes(900), expiration=600_000))
    # Expect all of them soon, and little more repairs and questions than losses, once they know how long answers take
    assert world.run(world.now + 115.0, lambda: all(len(each.heard) == 100 for each in others))
    assert lost > 10
    most = 2 * lost + 12 * len(others)
    assert len(_repairs(heard)) <= most
    assert sum(each.kind == DatagramKind.REQUEST for each in heard) <= most


def test_an_answer_after_an_outage_says_nothing_of_the_time_there_and_back() -> None:
    # Given a block that was asked for before a network failed for a minute
    trip = AnswerTime(0.005)
    trip.note(MissingSerial(0.0, 0.0, 0.0, first_asked=0.0, asked_at=60.0, askings=9), 60.5, 1.0)
    # Expect it to be waited for as long as before
    assert trip.seconds == 0.005
    # When an answer has come behind eight askings in a second, expect answers to be waited for that long
    trip.note(MissingSerial(61.0, 61.0, 61.0, first_asked=61.0, asked_at=61.9, askings=8), 62.0, 1.0)
    assert trip.seconds == 1.0


def test_what_has_come_behind_a_lost_block_is_settled_when_that_is_over() -> None:
    # Given a node with something that lasts, and ten blocks behind it that do not, of which one comes to nobody
    world = World(1)
    segment = Segment(world)
    first, other = (Node(world, number, [segment], ExchangeSettings()) for number in (1, 2))
    world.run(2.5)
    segment.drops = lambda _, data: b"number 5" in data
    first.say(b"lasts", expiration=60_000)
    for number in range(1, 11):
        first.say(b"number %d." % number + bytes(SIZE), expiration=3_000)
    world.run(4.0)
    assert other.exchange.settled(first.id, 1) == 5
    # When it has expired, and its node says nothing more, expect nobody to wait for it
    assert world.run(12.0, lambda: other.exchange.settled(first.id, 1) == 11)


def test_what_nobody_has_of_a_node_that_has_left_is_settled_for_those_who_come_late() -> None:
    # Given messages of a node that has left, the first and the last of which live, at two others
    world = World(1)
    segments = [Segment(world), Segment(world)]
    first, *_ = (Node(world, number, [segments[0]], ExchangeSettings()) for number in (1, 2))
    Node(world, 3, segments, ExchangeSettings())
    world.run(2.5)
    for number in range(4_000):
        first.say(b"%d." % number + bytes(SIZE), expiration=4_000 if 3 < number < 3_990 else 300_000)
    world.run(12.0)
    first.is_up = False
    world.run(30.0)
    # When others come, expect what lives there, in its order, before long
    late = [Node(world, 4, segments[:1], ExchangeSettings()), Node(world, 5, segments[1:], ExchangeSettings())]
    assert world.run(36.0, lambda: all(len(each.heard) == 14 for each in late))
    assert world.run(52.0, lambda: all(each.exchange.settled(first.id, 1) == 4_000 for each in late))
