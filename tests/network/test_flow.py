"""Flow between nodes: what goes first, how fast, and who is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.flow import FIRST_RATE, BlockRepair, FoundRate, OutgoingBlock, SeenWindow, SendingQueues, Turn
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.log import LogId
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms

from .simulated import Node, Segment, World

LOG = LogId(bytes(16), 1)
SIZE = 1_000


def _block(data: bytes = b"") -> OutgoingBlock:
    return OutgoingBlock(
        Datagram(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, bytes(16), bytes(16), data), math.inf
    )


def _turns(queues: SendingQueues, *, is_relaying: bool = False) -> list[Turn]:
    found = []
    while (turn := queues.next(is_relaying=is_relaying)) is not None:
        found.append(turn)
        if turn == "relayed":
            break
    return found


@pytest.mark.unit
def test_the_more_important_goes_first_and_repairs_before_what_is_new() -> None:
    queues = SendingQueues()
    low, usual, high, question = _block(b"low"), _block(b"usual"), _block(b"high"), b"question"
    queues.add([low], 1)
    queues.add([usual], 0)
    queues.repair(LOG, 1, 3)
    queues.repair(LOG, 2, 5)
    queues.control([question])
    queues.add([high], 4)
    assert queues.waiting == 12
    assert _turns(queues) == [question, BlockRepair(LOG, 2), high, BlockRepair(LOG, 1), usual, low]
    assert not queues
    assert queues.waiting == 0


@pytest.mark.unit
def test_what_others_ask_for_leaves_turns_for_what_is_new() -> None:
    queues = SendingQueues()
    for serial in range(1_000):
        queues.repair(LOG, serial, 5)
    queues.add([_block() for _ in range(100)], 1)
    first = [queues.next(is_relaying=False) for _ in range(100)]
    assert sum(isinstance(each, OutgoingBlock) for each in first) == 20


@pytest.mark.unit
def test_what_comes_from_other_networks_goes_between() -> None:
    queues = SendingQueues()
    queues.add([_block(b"new")], 3)
    queues.repair(LOG, 1, 3)
    high = _block(b"high")
    queues.add([high], 4)
    assert _turns(queues, is_relaying=True) == [high, BlockRepair(LOG, 1), "relayed"]


@pytest.mark.unit
@pytest.mark.parametrize("repairs", [0, 1_000])
def test_what_comes_from_other_networks_and_what_is_said_here_take_turns(repairs: int) -> None:
    # Given much from other networks, much that is new here, and perhaps much that is asked for
    queues = SendingQueues()
    queues.add([_block() for _ in range(100)], 0)
    for serial in range(repairs):
        queues.repair(LOG, serial, 0)
    # Expect as much of the one as of the other
    first = [queues.next(is_relaying=True) for _ in range(100)]
    count = 10 if repairs else 50
    assert [first.count("relayed"), sum(isinstance(each, OutgoingBlock) for each in first)] == [count, count]


@pytest.mark.unit
def test_requests_that_wait_are_bounded() -> None:
    queues = SendingQueues()
    for number in range(1_000):
        queues.control([b"%d" % number])
    turns = _turns(queues)
    assert len(turns) == 64
    assert turns[-1] == b"999"


def _found(seconds: float, capacity: float, loss: float = 0.0) -> float:
    """The rate that is found, in the middle, on a link of so many bytes a second that loses a share besides."""
    rate, found = FoundRate(), []
    for step in range(1, int(seconds * 500)):
        lost = max(0.0, rate.rate - capacity) / rate.rate
        lost += (1 - lost) * loss
        rate.note(step, int(rate.rate / 500), step / 500, 0.02)
        rate.note_lost([step] if step * lost % 1 < lost else [])
        found.append(rate.rate)
    found = found[len(found) // 2 :]
    return sum(found) / len(found)


@pytest.mark.row("G-159")
@pytest.mark.unit
@pytest.mark.parametrize("capacity", [2e5, 3e6, 2e7])
def test_a_rate_is_found(capacity: float) -> None:
    assert 0.5 * capacity <= _found(20.0, capacity) <= 1.5 * capacity


@pytest.mark.unit
def test_a_rate_is_found_soon_where_nothing_is_lost() -> None:
    rate, now = FoundRate(), 0.0
    while rate.rate < 16 * FIRST_RATE:
        now += 0.002
        rate.note(int(now * 500), int(rate.rate / 500), now, 0.02)
    assert now < 0.5


@pytest.mark.unit
def test_a_link_that_fails_for_a_while_has_its_rate_when_it_is_back() -> None:
    # Given a rate that was found; when nothing of what is sent comes for ten seconds
    rate = FoundRate()
    for step in range(1, 5_000):
        rate.note(step, int(rate.rate / 500), step / 500, 0.02)
        rate.note_lost([step])
    # Expect it to say nothing of what the link carries
    assert rate.rate >= FIRST_RATE


@pytest.mark.unit
def test_a_rate_is_found_for_what_is_passed_on_as_well() -> None:
    # Given a node on two networks, the second of which has no rate
    relay = Exchange(b"r" * 16, 1, 2, lambda low, _: low, ExchangeSettings(), [SideTerms(5e6), SideTerms()])
    origin = Exchange(b"o" * 16, 1, 1, lambda low, _: low, ExchangeSettings())
    now = 0.0
    for number in range(4_000):
        # When more comes on the first one than goes on the second
        for each in range(2):
            origin.say(
                NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d %d" % (number, each) * 50), now
            )
            list(relay.received(0, origin.outgoing(0, now) or b"", now))
        relay.tick(now)
        now += len(relay.outgoing(1, now) or b"") / relay.sides[1].rate
    # Expect the second to be tried faster, as nothing is lost there
    assert relay.sides[1].rate > 2 * FIRST_RATE


@pytest.mark.unit
@pytest.mark.parametrize("loss", [0.12, 0.2, 0.5])
def test_a_link_that_loses_at_any_rate_is_not_left_idle(loss: float) -> None:
    assert 0.4 * 3e6 <= _found(20.0, 3e6, loss) <= 2.5 * 3e6


@pytest.mark.unit
def test_a_window_is_full_until_all_who_are_counted_have_seen() -> None:
    # Given a window of a million bytes, and two members
    window = SeenWindow(1_000_000, 6.0)
    window.note_said(1, SIZE)
    window.note_seen(b"a", 1, 0.0)
    window.note_seen(b"b", 1, 0.0)
    for serial in range(2, 1_202):
        window.note_said(serial, SIZE)
    assert window.room(1.0) < 0
    window.note_seen(b"a", 1_201, 1.0)
    assert window.room(1.0) < 0
    window.note_seen(b"b", 1_100, 1.0)
    assert window.room(1.0) > 800_000
    # When one is silent for long, or leaves, expect it not to be counted
    for serial in range(1_202, 2_402):
        window.note_said(serial, SIZE)
    window.note_seen(b"a", 2_401, 8.0)
    assert window.room(8.0) > 900_000
    window.note_seen(b"b", 0, 8.0)
    assert window.room(8.0) < 0
    window.forget(b"b")
    assert window.room(8.0) > 900_000


@pytest.mark.unit
def test_one_who_comes_late_is_not_waited_for() -> None:
    window = SeenWindow(1_000_000, 6.0)
    for serial in range(1, 2_001):
        window.note_said(serial, SIZE)
    window.note_seen(b"late", 100, 0.0)
    assert window.room(0.0) > 900_000
    window.note_seen(b"late", 1_900, 1.0)
    assert window.room(1.0) < 900_000


@pytest.mark.unit
@pytest.mark.parametrize(("part", "is_waited_for"), [(0.1, False), (0.8, True)])
def test_a_member_that_is_much_slower_is_not_waited_for(part: float, is_waited_for: bool) -> None:
    # Given five members that see all, and one that sees a part of it in the same time
    window, said, slow = SeenWindow(5_000_000, 6.0), 0, 0
    for second in range(120):
        if window.room(second) > 0:
            for _ in range(1_000):
                said += 1
                window.note_said(said, SIZE)
        slow = min(said, slow + int(1_000 * part))
        for name in (b"a", b"b", b"c", b"d", b"e"):
            window.note_seen(name, said, second)
        window.note_seen(b"slow", slow, second)
        window.judge(second)
    # Expect the others to get what there is, or what it can take
    assert window._counts(window._members[b"slow"], 120) == is_waited_for
    assert said / 120_000 > (0.75 if is_waited_for else 0.85)
    assert said - slow < 6_000 or not is_waited_for


@pytest.mark.row("G-193")
@pytest.mark.unit
def test_a_node_at_a_tenth_of_the_speed_does_not_hold_up_the_others() -> None:
    # Given four nodes, and one that takes a tenth of what comes
    world = World(1)
    segment = Segment(world, rate=1e5)
    settings = ExchangeSettings(cache_bytes=800_000, queue_bytes=5_000, announce_seconds=1.0)
    first, *others = [Node(world, number, [segment], settings) for number in range(1, 6)]
    slow = others[-1]
    slow.most = 1e4
    world.run(3.0)
    # When much is said for some time, as far as there is room
    said = 0

    def say() -> None:
        nonlocal said
        while not first.exchange.room(world.now) and said < 100_000:
            first.say(b"%06d" % said + bytes(SIZE), expiration=600_000)
            said += 1
        world.at(world.now + 0.02, say)

    say()
    world.run(43.0)
    # Expect the others to get most of what the link carries
    assert min(len(each.heard) for each in others[:-1]) * SIZE >= 0.6 * 40 * 1e5


def test_on_a_link_of_unknown_speed_little_is_lost(eventually: Callable[[Callable[[], object]], None]) -> None:
    # Given a link that has room for some datagrams at a time, and no rate for it
    told: list[NodeMessage] = []
    links = [NetworkLink(LocalLink("found"), SideTerms(0)), NetworkLink(LocalLink("found"))]
    one, other = (
        Network(bytes([number]) * 16, 1, [link], take)
        for number, link, take in ((1, links[0], lambda _: None), (2, links[1], told.append))
    )
    one.start()
    other.start()
    for number in range(300):
        one.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d" % number + bytes(10_000)), 30.0)
    eventually(lambda: len(told) == 300)
    rate = one.status()["links"][0]["rate"]
    one.stop()
    other.stop()
    assert rate > 0
