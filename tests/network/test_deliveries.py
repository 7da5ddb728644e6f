"""What has come is delivered in order, and a log is settled up to what has been delivered of it, not further."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.network import deliveries as module
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, hash_of, packed
from jbi_pubsub.network.deliveries import DELIVERIES_BYTES, NetworkDeliveries
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink

ORIGIN = b"o" * 16


def test_a_message_that_waits_is_not_settled_for_who_asks_between_two_deliveries(
    eventually: Callable[..., Any],
) -> None:
    # Given a message that is delivered, and another one that has come and is to be put
    delivered: list[bytes] = []
    asked: list[int] = []
    is_asking = threading.Event()

    def idle() -> None:
        if delivered and is_asking.is_set():
            asked.append(deliveries.settled(ORIGIN, 1, 2, deliveries.expected))

    deliveries = NetworkDeliveries(lambda message: delivered.append(message.body), None, idle)
    deliveries.start()
    try:
        deliveries.expect(1)
        deliveries.put(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"first", ORIGIN))
        eventually(lambda: delivered == [b"first"])
        deliveries.expect(1)
        is_asking.set()
        # When somebody asks meanwhile, expect the log not to be settled up to the second
        eventually(lambda: len(asked) > 1)
        assert set(asked) == {0}
        # And to be once that is delivered
        deliveries.put(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"second", ORIGIN))
        eventually(lambda: asked[-1] == 2)
    finally:
        deliveries.stop()


def test_who_delivers_nothing_is_full_and_takes_no_more_objects_but_is_still_there() -> None:
    # Given a queue whose messages nobody takes
    deliveries = NetworkDeliveries(lambda _: None, None)
    message = NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, bytes(1 << 20), ORIGIN)
    # When more bytes wait than may, expect it full, at once
    for _ in range(DELIVERIES_BYTES // (1 << 20)):
        assert not deliveries.refuses(DatagramKind.PUBLICATION)
        deliveries.put(message)
    deliveries.put(message)
    assert deliveries.refuses(DatagramKind.PUBLICATION)


def test_queries_and_words_that_nobody_takes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a node that delivers nothing, and room for ten objects
    monkeypatch.setattr(module, "DELIVERIES_MOST", 10)
    link = LocalLink("deliveries")
    network = Network(bytes(15) + b"\1", 1, [NetworkLink(link)], lambda _: None)
    try:
        # When more of each kind come than there is room for
        for kind in DatagramKind:
            for number in range(30):
                body = b"%d %d" % (kind, number)
                network._receive([(0, packed(Datagram(
                    kind, DatagramMode.UNRELIABLE, ORIGIN, hash_of(body, 0), body, sender=ORIGIN[:4], number=number + 1,
                )))])  # fmt: skip
        # Expect twice as much to wait, at most
        assert network._deliveries.expected == 21
        # And what is never delivered to be taken yet
        assert not any(network._deliveries.refuses(kind) for kind in module.UNDELIVERED)
    finally:
        network.stop()
