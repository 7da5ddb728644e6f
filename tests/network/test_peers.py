"""Other nodes: what is known of them, what is told of them, and up to where their logs are settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import pytest

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.peers import PeerChange, PeerEvent
from jbi_pubsub.network.side import SideTerms

from .simulated import Node, Segment, World

Eventually = Callable[[Callable[[], object]], None]
SETTINGS = ExchangeSettings(name="alpha", addresses=("localhost:7001",), roles=("answers",), announce_seconds=0.05)
QUICK = ExchangeSettings(announce_seconds=0.5, node_timeout=2.0)


def _said(body: bytes) -> NodeMessage:
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body)


def _changes(node: Node) -> list[tuple[PeerEvent, int]]:
    return [(each.event, each.epoch) for each in node.exchange.peers.changes()]


@pytest.mark.row("G-54", "G-56", "G-132")
@pytest.mark.unit
def test_a_node_that_comes_restarts_and_leaves_is_told() -> None:
    # Given two nodes on a network
    world = World(1)
    segment = Segment(world)
    one, other = (Node(world, number, [segment], QUICK) for number in (1, 2))
    world.run(2.0)
    assert _changes(one) == [(PeerEvent.HEARD, 1)]
    # When one of them is started anew, and then is silent
    other.is_up = False
    again = Node(world, 2, [segment], QUICK, epoch=2)
    world.run(4.0)
    assert _changes(one) == [(PeerEvent.RESTARTED, 2)]
    again.is_up = False
    world.run(8.0)
    # Expect each to be told, once
    assert _changes(one) == [(PeerEvent.LEFT, 2)]
    assert not one.exchange.peers.has_twin


@pytest.mark.unit
@pytest.mark.parametrize("epochs", [(1, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("is_behind_relay", [False, True])
def test_of_two_nodes_with_one_id_one_notices(epochs: tuple[int, int], is_behind_relay: bool) -> None:
    # Given two nodes with one id, and a relay between them perhaps
    world = World(1)
    near, far = Segment(world), Segment(world)
    one = Node(world, 1, [near], QUICK, epoch=epochs[0])
    twin = Node(world, 1, [far if is_behind_relay else near], QUICK, epoch=epochs[1])
    Node(world, 2, [near, far] if is_behind_relay else [near], QUICK)
    world.run(1.0)
    one.say(b"one")
    for number in range(5):
        twin.say(b"twin %d" % number)
    world.run(6.0)
    # Expect the one with the earlier start to notice; of the same start one of them at least
    noticed = [epoch for epoch, each in zip(epochs, (one, twin), strict=True) if each.exchange.peers.has_twin]
    assert noticed in ([1], [1, 1])
    assert PeerEvent.TWIN in {event for each in (one, twin) for event, _ in _changes(each)}


@pytest.mark.unit
def test_a_relayed_or_repaired_message_of_ours_is_not_a_twins() -> None:
    # Given two relays side by side, and losses
    world = World(3)
    near, far = Segment(world, loss=0.2), Segment(world, loss=0.2)
    one = Node(world, 1, [near], QUICK)
    for number in (2, 3):
        Node(world, number, [near, far], QUICK)
    for number in range(100):
        one.say(b"%d" % number)
    world.run(6.0)
    one.is_up = False
    # When it is started anew, while what it had said before is repaired yet
    again = Node(world, 1, [near], QUICK, epoch=2)
    Node(world, 4, [far], QUICK)
    again.say(b"again")
    world.run(20.0)
    assert not one.exchange.peers.has_twin
    assert not again.exchange.peers.has_twin


@pytest.mark.unit
def test_a_node_notices_a_later_start_of_its_id_by_what_others_hold() -> None:
    # Given a node that has left, and another one that holds what it said
    world = World(1)
    segment = Segment(world)
    one, _ = (Node(world, number, [segment], QUICK, epoch=7) for number in (1, 2))
    for number in range(5):
        one.say(b"%d" % number)
    world.run(2.0)
    one.is_up = False
    world.run(6.0)
    # When it is back in an earlier epoch, as its folder was put back and its clock is wrong
    again = Node(world, 1, [segment], QUICK, epoch=6)
    world.run(8.0)
    # Expect it to notice, before it has said anything
    assert again.exchange.peers.has_twin


@pytest.mark.unit
def test_a_log_is_settled_up_to_what_is_missing() -> None:
    # Given a node that says five messages, the third of which is lost at another one
    one, other = (Exchange(bytes([number]) * 16, 7, 1, Random(1).uniform) for number in (1, 2))
    for number in range(5):
        one.say(_said(b"%d" % number), 0.0)
    sent = [one.outgoing(0, 0.0) or b"" for _ in range(5)]
    heard = [message for at in (0, 1, 3, 4) for message in other.received(0, sent[at], 0.0)]
    # Expect each message to say where it stands, and the log to be settled before the gap
    assert [(each.epoch, each.serial) for each in heard] == [(7, 1), (7, 2), (7, 4), (7, 5)]
    assert other.settled(one.me, 7) == 2
    assert next(other.received(0, sent[2], 0.0)).serial == 3
    assert other.settled(one.me, 7) == 5


@pytest.mark.row("G-57", "G-132")
@pytest.mark.unit
def test_a_message_of_many_blocks_has_the_serial_of_its_first() -> None:
    one, other = (Exchange(bytes([number]) * 16, 7, 1, Random(1).uniform) for number in (1, 2))
    one.say(_said(b"small"), 0.0)
    one.say(_said(bytes(5_000)), 0.0)
    sent = [one.outgoing(0, 0.0) or b"" for _ in range(5)]
    heard = [message for each in reversed(sent) for message in other.received(0, each, 0.0)]
    assert [(each.serial, len(each.body)) for each in heard] == [(2, 5_000), (1, 5)]


@contextmanager
def _networks(name: str, count: int, **given: object) -> Iterator[list[tuple[Network, list[object]]]]:
    """Nodes on a link in the process, and what is told to each."""
    with ExitStack() as stack:
        found: list[tuple[Network, list[object]]] = []
        for number in range(1, count + 1):
            told: list[object] = []
            network = Network(
                bytes([number]) * 16,
                3,
                [NetworkLink(LocalLink(name))],
                told.append,
                SETTINGS,
                peers_changed=told.append,
            )
            network.start()
            stack.callback(network.stop)
            found.append((network, told))
        yield found


def test_what_a_network_tells_of_its_nodes(eventually: Eventually) -> None:
    with _networks("peers", 2) as ((one, told), (_, heard)):
        # Expect the other one to be heard, with what it says of itself
        eventually(lambda: one.peers())
        peer = one.peers()[b"\2" * 16]
        assert (peer.name, peer.addresses, peer.roles, peer.epoch, peer.network) == (
            "alpha", ("localhost:7001",), ("answers",), 3, 0
        )  # fmt: skip
        assert 0 <= peer.silent < 10
        assert peer.loss == 0
        eventually(lambda: PeerChange(PeerEvent.HEARD, b"\2" * 16, 3) in told)
        # When it says something, expect its log to be settled when that has been delivered
        for number in range(20):
            one.say(_said(b"%d" % number))
        eventually(lambda: sum(isinstance(each, NodeMessage) for each in heard) == 20)
        assert [each.serial for each in heard if isinstance(each, NodeMessage)] == list(range(1, 21))


def test_a_log_is_settled_when_what_has_come_is_delivered(eventually: Eventually) -> None:
    # Given a receiver that looks at each message how far the log is settled
    told: list[NodeMessage] = []
    looked: list[tuple[int, int]] = []
    receiver: list[Network] = []

    def deliver(message: NodeMessage) -> None:
        time.sleep(0.001)  # the network is quicker
        looked.append((message.serial, receiver[0].settled(message.origin, message.epoch)))

    sender = Network(b"\1" * 16, 3, [NetworkLink(LocalLink("settled"))], told.append, SETTINGS)
    receiver.append(Network(b"\2" * 16, 1, [NetworkLink(LocalLink("settled"))], deliver, SETTINGS))
    sender.start()
    receiver[0].start()
    for number in range(100):
        sender.say(_said(b"%d" % number))
    eventually(lambda: len(looked) == 100)
    # Expect it never to be ahead of what was delivered, and to be there in the end
    assert all(settled <= serial for serial, settled in looked)
    eventually(lambda: receiver[0].settled(b"\1" * 16, 3) == 100)
    sender.stop()
    receiver[0].stop()


@pytest.mark.row("G-66", "G-163")
def test_a_message_without_room_is_refused_in_time() -> None:
    # Given a slow link, with room for some messages
    told: list[NodeMessage] = []
    settings = ExchangeSettings(queue_bytes=10_000)
    network = Network(b"\1" * 16, 1, [NetworkLink(LocalLink("slow"), SideTerms(50_000))], told.append, settings)
    network.start()

    def say_many() -> None:
        for _ in range(100):
            network.say(_said(bytes(1_300)))

    with pytest.raises(BackPressureError, match="no room") as refused:
        say_many()
    assert float(refused.value.facts["seconds"] or 0) > 0
    # Expect room, when time is given; and none when it is left
    network.say(_said(bytes(1_300)), timeout=30.0)
    network.stop()
    with pytest.raises(BackPressureError, match="is left"):
        network.say(_said(b""))
