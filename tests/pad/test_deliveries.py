"""Delivery connections: one thread for all, resumed where the subscriber is, none held up by another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream import ACK, BATCH, ITEMS
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS


class Subscriber:
    """A subscriber process reduced to its session and its delivery connection."""

    def __init__(self, pad: DisseminationServer, name: str) -> None:
        self.pad = pad
        self.name = name
        self.session, _ = pad.delegate.sessions.open(name, 60.0)
        pad.delegate.subscribers.subscribe(self.session, SubscriptionRequest(name), 60.0)
        self.sock: socket.socket
        self.line: StreamSocket

    def connect(self, position: int = 0) -> None:
        """Open a delivery connection."""
        self.sock = dial(self.pad.endpoints.ref(SUBSCRIPTIONS, ()), DATA, Security(), 5.0)
        self.line = StreamSocket(self.sock)
        greet(self.line, Hello(self.pad.service.data.issue_token("deliver", self.session), position))

    def next(self) -> tuple[int, int]:
        """The first number and the count of the next batch."""
        kind, body = self.line.receive(10.0)
        assert kind == ITEMS
        first, count = BATCH.unpack_from(body)
        return int(first), int(count)

    def acknowledge(self, position: int) -> None:
        """Say how far it has received."""
        self.line.send(ACK, [position.to_bytes(8, "big")])

    def status(self) -> dict[str, Any]:
        """Of its session at the delegate."""
        return next(s for s in self.pad.status()["sessions"] if s["name"] == self.name)


@pytest.fixture
def subscribers(federation: Any) -> Iterator[Callable[[DisseminationServer, int], list[Subscriber]]]:
    """subscribers(pad, n) are so many, not connected yet."""
    made: list[Subscriber] = []
    with ExitStack() as stack:

        def begin(pad: DisseminationServer, count: int) -> list[Subscriber]:
            made.extend(Subscriber(pad, f"subscriber-{n}") for n in range(count))
            stack.callback(lambda: [each.sock.close() for each in made])
            return made

        yield begin


def test_delivery_connections_cost_no_threads(
    federation: Any, figures: Any, subscribers: Callable[..., list[Subscriber]], eventually: Callable[..., Any]
) -> None:
    # Given a delegate with a publisher and 50 subscribers
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    everybody = subscribers(pad, 50)
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    before, open_before = threading.active_count(), pad.status()["connections"]

    # When all connect, expect as many connections more, and not one thread
    for subscriber in everybody:
        subscriber.connect()
    eventually(lambda: threading.active_count() <= before)
    assert pad.status()["connections"] == open_before + 50

    # Expect each to be delivered to
    publisher.publish(registration, figures.figure_1)
    for subscriber in everybody:
        got = 0
        while got < 2:
            got = sum(subscriber.next()) - 1
        subscriber.acknowledge(2)
    eventually(lambda: pad.status()["delivered"] == 100)

    # When half of them leave, expect their connections to be over
    for subscriber in everybody[:25]:
        subscriber.sock.close()
    eventually(lambda: pad.status()["connections"] == open_before + 25)
    assert [s["connected"] for s in pad.status()["sessions"]].count(True) == 25


def test_a_newer_delivery_connection_wins_and_goes_on_where_the_subscriber_is(
    federation: Any, figures: Any, subscribers: Callable[..., list[Subscriber]], eventually: Callable[..., Any]
) -> None:
    # Given a subscriber that has got two objects, and told of one of them before it lost its connection half
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    [subscriber] = subscribers(pad, 1)
    subscriber.connect()
    for number in (1, 2):
        publisher.publish(registration, figures.figure_1)
        assert subscriber.next() == (number, 1)
    subscriber.acknowledge(1)
    eventually(lambda: subscriber.status()["in_flight"] == 1)

    # When it connects again and says that it has both, expect the third to be what comes
    older = subscriber.sock
    subscriber.connect(position=2)
    eventually(lambda: pad.status()["delivered"] == 2)
    publisher.publish(registration, figures.figure_1)
    assert subscriber.next() == (3, 1)

    # Expect the older connection to be over
    older.settimeout(60.0)
    assert older.recv(1) == b""
    older.close()

    # When it connects once more without having got the third, expect it again
    before = subscriber.sock
    subscriber.connect(position=2)
    assert subscriber.next() == (3, 1)
    before.close()
