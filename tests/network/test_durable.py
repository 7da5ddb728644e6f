"""Durable messages, and networks with terms of their own: what is kept, replaced, said again and carried on."""

from __future__ import annotations

import pytest

from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, Footer
from jbi_pubsub.network.durables import DurableBlocks
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.log import LogId

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

KEY = b"k" * 16
HOUR = 3_600_000


def _say(node: Node, update: int, body: bytes, key: bytes = KEY, expiration: int = HOUR) -> None:
    node.say(body, DatagramMode.DURABLE, durability=key, update=update, expiration=expiration)


def _world(count: int, settings: ExchangeSettings | None = None, **given: float) -> tuple[World, Segment, list[Node]]:
    world = World(1)
    segment = Segment(world, **given)
    return world, segment, [Node(world, at + 1, [segment], settings or ExchangeSettings()) for at in range(count)]


@pytest.mark.parametrize("is_gone", [False, True])
def test_one_who_comes_late_fetches_the_newest_update_alone(is_gone: bool) -> None:
    # Given a message of three blocks with thirty updates
    world, segment, (first, other) = _world(2, loss=0.1)
    world.run(1.0)
    for update in range(1, 31):
        _say(first, update, b"%d" % update + bytes(3_000))
    world.run(6.0)
    assert other.heard[-1].update == 30
    first.is_up = not is_gone
    # When a node comes late, perhaps when its origin has left
    world.run(20.0)
    sent = segment.watch()
    late = Node(world, 9, [segment], ExchangeSettings())
    world.run(40.0)
    # Expect the last update there, and no other one on the network
    assert [each.update for each in late.heard] == [30]
    assert {each.footer.update for each in sent if each.footer and each.kind == DatagramKind.PUBLICATION} == {30}
    assert len(late.exchange.held) == len(other.exchange.held) == 3


def test_publications_push_out_no_durable_message() -> None:
    world, segment, (first, other) = _world(2, ExchangeSettings(cache_bytes=20_000))
    world.run(0.5)
    _say(first, 1, b"lasts")
    for number in range(200):
        first.say(b"%d" % number + bytes(1_000))
    world.run(5.0)
    late = Node(world, 9, [segment], ExchangeSettings())
    world.run(15.0)
    assert b"lasts" in [each.body for each in late.heard]
    assert other.exchange.held.size < 25_000


@pytest.mark.row("G-89")
def test_a_durable_message_is_said_again_as_long_as_its_node_lives() -> None:
    # Given one that lives for ten seconds
    world, segment, (first, _) = _world(2)
    world.run(0.5)
    _say(first, 1, b"lasts", expiration=10_000)
    _say(first, 1, b"is cancelled", key=b"c" * 16, expiration=10_000)
    _say(first, 2, b"", key=b"c" * 16, expiration=10_000)
    # When a node comes after a minute, expect it there, and not what was cancelled
    world.run(60.0)
    late = Node(world, 9, [segment], ExchangeSettings())
    world.run(70.0)
    assert [each.body for each in late.heard] == [b"lasts"]
    # When its node has left, expect it to end
    first.is_up = False
    world.run(90.0)
    later = Node(world, 10, [segment], ExchangeSettings())
    world.run(100.0)
    assert later.heard == []


def test_an_update_of_a_later_start_is_newer_whatever_its_number() -> None:
    world, segment, (first, other) = _world(2)
    world.run(0.5)
    _say(first, 100, b"before")
    world.run(3.0)
    first.is_up = False
    again = Node(world, 1, [segment], ExchangeSettings(), epoch=2)
    _say(again, 1, b"after")
    world.run(6.0)
    assert [each.body for each in other.heard] == [b"before", b"after"]


def test_durable_messages_are_bounded_by_those_of_who_has_most() -> None:
    # Given room for ten
    durables = DurableBlocks(10)
    body = Datagram(DatagramKind.SEQUENCE, DatagramMode.DURABLE, bytes(16), bytes(16), b"")

    def add(origin: bytes, number: int) -> None:
        footer = Footer(1, 0, number, HOUR, number.to_bytes(16), 1)
        assert durables.replace(LogId(origin, 1), body._replace(origin=origin, footer=footer))[0]

    add(b"a" * 16, 1)
    for number in range(1, 1_000):
        add(b"b" * 16, number)
    assert len(durables) == 10
    assert len(durables._of[b"a" * 16]) == 1


def test_on_a_lossless_network_a_gap_is_no_loss() -> None:
    # Given a network where all comes, late and in another order; and one who comes late
    world, segment, _ = _world(0, overtaking=0.05)
    segment.is_lossless = True
    first = Node(world, 1, [segment], ExchangeSettings())
    sent = segment.watch()
    other = Node(world, 2, [segment], ExchangeSettings())
    world.run(0.5)
    for number in range(100):
        first.say(b"%d" % number)
    world.run(0.6)
    assert len(other.heard) == 100
    assert not any(each.kind == DatagramKind.REQUEST for each in sent)
    late = Node(world, 3, [segment], ExchangeSettings())
    world.run(12.0)
    assert len(late.heard) == 100


@pytest.mark.row("G-96", "G-66")
def test_a_reduced_network_carries_publications_alone() -> None:
    # Given two networks, one of them far and narrow, with a node on both
    world = World(1)
    near, far = Segment(world), Segment(world)
    far.reduced_relay = True
    one, relay = Node(world, 1, [near], ExchangeSettings()), Node(world, 2, [near, far], ExchangeSettings())
    other = Node(world, 3, [far], ExchangeSettings())
    world.run(3.0)
    sent = far.watch()
    one.say(b"publication")
    sequence = relay.exchange
    world.run(6.0)
    # Expect what is published, and announcements of those who are there alone
    assert [each.body for each in other.heard] == [b"publication"]
    assert {each.origin for each in sent if each.kind == DatagramKind.ANNOUNCEMENT} == {relay.id, other.id}
    assert set(sequence.peers) == {one.id, other.id}
    assert set(other.exchange.peers) == {relay.id}


@pytest.mark.row("G-89", "G-134")
def test_of_nodes_that_have_left_nothing_is_remembered() -> None:
    # Given a node that hears durable messages of fifteen others, which leave one after the other; one is back
    world, segment, (first, stays) = _world(2)
    world.run(1.0)
    _say(stays, 1, b"stays")
    others = [Node(world, number, [segment], ExchangeSettings()) for number in range(10, 25)]
    world.run(4.0)
    for each in others:
        _say(each, 1, each.id, expiration=10_000)
    world.run(6.0)
    assert len(first.exchange.held.durables) == 16
    for each in others:
        each.is_up = False
    again = Node(world, 10, [segment], ExchangeSettings(), epoch=2)
    _say(again, 1, b"again")
    # When their messages are over, expect those of the nodes that are there
    world.run(60.0)
    assert len(first.exchange.held.durables) == 2
    assert {each.body for each in first.heard} >= {b"stays", b"again"}


def test_what_is_said_again_is_not_the_oldest() -> None:
    # Given room for two durable messages of a node, and one that is said again
    blocks = DurableBlocks(2)
    log_id = LogId(b"o" * 16, 1)

    def put(key: bytes, serial: int) -> list[tuple[LogId, int]]:
        footer = Footer(1, 0, serial, HOUR, key * 16, 1)
        return blocks.replace(log_id, Datagram(
            DatagramKind.PUBLICATION, DatagramMode.DURABLE, log_id.origin, bytes(16), b"", footer=footer,
        ))[1]  # fmt: skip

    assert [put(b"a", 1), put(b"b", 2), put(b"a", 3)] == [[], [], [(log_id, 1)]]
    # When a third one comes, expect the other one to be given up
    assert put(b"c", 4) == [(log_id, 2)]
