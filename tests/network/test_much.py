"""Much at once, and again and again, in virtual time: nobody hangs, turns in circles or gets slower; and slow links."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, read
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.message import MessageForm, NodeMessage

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

MEGABYTE = 1_000_000


class CountedNode(Node):
    """A node that counts how often it was woken."""

    ticks = 0

    def _tick(self, due: float) -> None:
        self.ticks += due == self._armed
        super()._tick(due)


def _waits(nodes: list[Node]) -> list[int]:
    """What waits at each to be sent, asked for, or put together."""
    return [
        side.queues.waiting + side.queues.repairs + sum(len(here.missing) for here in side.recovery._here.values())
        + len(node.exchange.assembler)
        for node in nodes for side in node.exchange.sides
    ]  # fmt: skip


@pytest.mark.row("G-184")
def test_large_messages_over_a_network_that_loses_take_few_steps_for_each_datagram() -> None:
    # Given three nodes on a network that loses a tenth
    world = World(1)
    segment = Segment(world, loss=0.1)
    first, *others = [CountedNode(world, number, [segment], ExchangeSettings()) for number in (1, 2, 3)]
    world.run(2.5)
    # When one says several messages of 1 MB, all at once
    before = segment.datagrams
    for number in range(3):
        first.say(b"%d" % number + bytes(MEGABYTE), expiration=600_000)
    assert world.run(60.0, lambda: all(len(each.heard) == 3 for each in others))
    sent = segment.datagrams - before
    # Expect what is lost to be repaired while it is sent, and nobody woken more often than something goes
    assert world.now < 2.5 + 2 * 3 * MEGABYTE / segment.rate
    assert max(each.ticks for each in (first, *others)) < sent
    # and rest when all is there
    world.run(world.now + 5.0)
    assert _waits([first, *others]) == [0, 0, 0]
    begun = [each.ticks for each in others]
    world.run(world.now + 60.0)
    assert max(each.ticks - was for each, was in zip(others, begun, strict=True)) <= 40


@pytest.mark.row("G-189")
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_six_nodes_that_say_much_at_once_all_hear_all_and_come_to_rest(loss: float) -> None:
    # Given six nodes, each of which says many messages of 10 KB at once, more than the network takes in a second
    world = World(1)
    segment = Segment(world, loss=loss)
    nodes = [Node(world, number, [segment], ExchangeSettings()) for number in range(1, 7)]
    world.run(2.5)
    for number in range(40):
        for each in nodes:
            each.say(each.id + b"%06d" % number + world.chance.randbytes(10_000))
    # Expect all of it at all of them, once
    assert world.run(60.0, lambda: all(len(each.heard) == 5 * 40 for each in nodes))
    assert all(len({message.body for message in each.heard}) == 200 for each in nodes)
    # and nothing that waits or goes but announcements
    world.run(world.now + 10.0)
    assert _waits(list(nodes)) == [0] * 6
    sent = segment.watch()
    world.run(world.now + 10.0)
    assert {each.kind for each in sent} == {DatagramKind.ANNOUNCEMENT}


@pytest.mark.row("G-190")
def test_a_round_takes_no_more_work_or_datagrams_than_those_before_it() -> None:
    # Given three nodes on a network that loses, which say as much in each round
    world = World(1)
    segment = Segment(world, loss=0.1)
    settings = ExchangeSettings(cache_bytes=1_000_000, processed_hashes=100)
    nodes = [Node(world, number, [segment], settings) for number in (1, 2, 3)]
    world.run(2.5)
    calls: Counter[int] = Counter()
    sent: list[int] = []
    took: list[float] = []
    for turn in range(8):
        begun, before = world.now, segment.datagrams
        for number in range(20):
            for each in nodes:
                each.say(each.id + b"%d %d" % (turn, number) + bytes(5_000))

        def count(frame: object, event: str, argument: object, turn: int = turn) -> None:  # Python's
            calls[turn] += event == "call"

        sys.setprofile(count)
        try:
            assert world.run(begun + 20.0, lambda: all(len(each.heard) == 40 * (turn + 1) for each in nodes))  # noqa: B023
        finally:
            sys.setprofile(None)
        took.append(world.now - begun)
        sent.append(segment.datagrams - before)
        world.run(begun + 20.0)
    # Expect the last ones to be as the first ones, but for chance, which the last repair of a round is most
    for each, most in ((sent, 1.15), ([calls[turn] for turn in range(8)], 1.15), (took, 2.0)):
        assert sum(each[-3:]) <= most * sum(each[:3]), each


@pytest.mark.row("G-07")
def test_twenty_nodes_of_which_one_comes_or_goes_each_second_hear_all_that_is_said_while_they_are_there() -> None:
    # Given twenty nodes that talk, on a network that loses a little
    world = World(1)
    segment = Segment(world, loss=0.02)
    nodes = [Node(world, number, [segment], ExchangeSettings()) for number in range(1, 21)]
    world.run(3.0)
    stays, said = nodes[:10], list[bytes]()
    # When each second one of ten goes, or is back as a new start, and one that stays says something
    for second in range(30):
        away = nodes[10 + second // 2 % 10]
        if away.is_up:
            away.is_up = False
        else:
            segment.members.remove((away, 0))
            number = int.from_bytes(away.id[:4])
            nodes[10 + second // 2 % 10] = Node(world, number, [segment], ExchangeSettings(), epoch=second)
        said.append(b"%06d" % second + bytes(2_000))
        stays[second % 10].say(said[-1])
        world.run(world.now + 1.0)
    # Expect all of it at all who were there all the time, once; and at who came what is said from then on at least
    world.run(world.now + 5.0)
    for each in stays:
        assert sorted(message.body for message in each.heard) == sorted(set(said) - each.said)
    for each in nodes[10:]:
        if each.is_up:
            assert {message.body for message in each.heard} >= set(said[max(0, each.exchange.epoch) :])


@pytest.mark.row("G-132")
def test_serials_of_many_blocks_are_consecutive_and_none_comes_twice() -> None:
    # Given a node that says messages of all modes and importances, some of one block and some of many
    settings = ExchangeSettings(cache_bytes=100_000, form=MessageForm(block=100))
    exchange = Exchange(b"o" * 16, 1, 1, lambda low, _: low, settings)
    serials: list[int] = []
    for number in range(600):
        message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode(number % 3), b"%d" % number, level=number % 6)
        message = message._replace(body=message.body * (1 + number % 40 * 40), durability=b"%016d" % (number % 100))
        exchange.say(message._replace(update=number), number / 100)
        if number % 10 == 9:
            while (data := exchange.outgoing(0, number / 100)) is not None:
                found = read(data)
                assert isinstance(found, Datagram)
                serials += [found.footer.serial] if found.mode != DatagramMode.UNRELIABLE else []
    # Expect each block that is to be recovered to have the next serial
    assert len(serials) > 7_000
    assert serials == list(range(1, len(serials) + 1))


@pytest.mark.row("G-122")
def test_ten_kilobytes_take_six_seconds_over_19200_bits_a_second() -> None:
    world = World(1)
    segment = Segment(world, rate=2_400, delay=0.02)
    settings = ExchangeSettings(announce_seconds=30.0, node_timeout=120.0)
    first, other = (Node(world, number, [segment], settings) for number in (1, 2))
    world.run(5.0)
    begun = world.now
    first.say(world.chance.randbytes(10_000))
    assert world.run(begun + 30.0, lambda: bool(other.heard))
    assert world.now - begun <= 6.0


@pytest.mark.row("G-06", "G-12")
def test_over_a_modem_that_loses_a_third_overtakes_and_fails_for_a_while_all_that_lives_comes() -> None:
    # Given 19,200 bit/s, 600 ms there and back, 30 % loss, half of it overtaken
    world = World(1)
    segment = Segment(world, rate=2_400, delay=0.3, loss=0.3, overtaking=0.2)
    settings = ExchangeSettings(announce_seconds=10.0, node_timeout=60.0, reorder_seconds=0.2)
    first, other = (Node(world, number, [segment], settings) for number in (1, 2))
    world.run(20.0)
    # When something is said now and then, and the network fails for 20 seconds meanwhile
    for number in range(40):
        world.at(
            world.now + 2 * number, lambda number=number: first.say(b"%d" % number + bytes(800), expiration=300_000)
        )  # type: ignore[misc]
    world.at(world.now + 20.0, lambda: setattr(segment, "is_cut", True))
    world.at(world.now + 40.0, lambda: setattr(segment, "is_cut", False))
    # Expect all of it, once, before it expires
    assert world.run(world.now + 80.0 + 300.0, lambda: len(other.heard) == 40)
    assert len({each.body for each in other.heard}) == 40
