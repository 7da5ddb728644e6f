"""What has come is delivered in order, and a log is settled up to what has been delivered of it, not further."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.deliveries import DELIVERIES_BYTES, NetworkDeliveries
from jbi_pubsub.network.message import NodeMessage

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
        assert not deliveries.is_full
        deliveries.put(message)
    deliveries.put(message)
    assert deliveries.is_full
