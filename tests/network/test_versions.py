"""Nodes of several versions on one network: what a later one says besides, an earlier one skips."""

from __future__ import annotations

import msgspec
import pytest

from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, hash_of, packed, read
from jbi_pubsub.network.exchange import ExchangeSettings

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

LATER = 99
"""An extension that nobody knows yet."""


def _later(data: bytes) -> bytes:
    """A datagram as a later version may say it: with an extension more, and a field more in its body."""
    found = read(data)
    assert isinstance(found, Datagram)
    if found.kind in (DatagramKind.REQUEST, DatagramKind.ANNOUNCEMENT) and found.total == 1:
        body = msgspec.msgpack.encode([*msgspec.msgpack.decode(found.data), "later"])
        found = found._replace(data=body, message=hash_of(body, found.algorithm))
    return packed(found._replace(extensions=(*found.extensions, (LATER, b"later"))))


@pytest.mark.row("G-160")
def test_nodes_of_an_earlier_and_a_later_version_hear_all_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a network that loses a fifth, two nodes, and one of a version that says more than they know
    world = World(1)
    segment = Segment(world, loss=0.2)
    later, *earlier = nodes = [Node(world, number, [segment], ExchangeSettings()) for number in (1, 2, 3)]
    send = segment._send
    monkeypatch.setattr(segment, "_send", lambda node, data: send(node, _later(data) if node is later else data))
    world.run(2.5)
    # When all of them say things, repair what is lost, and ask each other
    for number in range(60):
        for each in nodes:
            mode = DatagramMode.DURABLE if number % 3 == 0 else DatagramMode.RELIABLE
            each.say(each.id + b"%d" % number + bytes(2_000), mode, durability=b"%016d" % number)
    # Expect all of it at each other one, once, and that each knows the others
    assert world.run(30.0, lambda: all(len(each.heard) == 120 for each in nodes))
    assert all(len(each.exchange.peers) == 2 for each in earlier)
