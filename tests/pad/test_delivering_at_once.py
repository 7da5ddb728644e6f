"""Who delivers to one subscriber sends himself; a subscriber that takes nothing holds nobody up."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.info_object import Head, Parcel, pack
from jbi_pubsub.core.wire import hub as hub_module
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import StreamSocket
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.queue import Backlog
from jbi_pubsub.pad.egress.session import Deliveries, SubscriberSession
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.deliveries import ITEM, LAST_CHUNK, LOSS, OBJECT, Heard
from jbi_pubsub.protocol.requests import SubscriptionRequest

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in the main thread, for which the hub's sends."""
    monkeypatch.setattr(hub_module, "in_main_thread", lambda: False)


def _parcel(registration: int, sequence: int, size: int = 10) -> Parcel:
    head = Head(f"{registration}-{sequence}", f"registration-{registration}", sequence, 1.0, "t", "1.0", b"<m/>", size)
    return pack(head, bytes(size))


class Delegate:
    """Sessions of one hub, each with one subscription."""

    def __init__(self) -> None:
        self.hub = SenderHub(name="test-hub")
        self.hub.start()
        self.budget = Budget(1 << 30)
        self.sockets: list[socket.socket] = []

    def open(self, name: str, **options: Any) -> tuple[SubscriberSession, Subscription]:
        """A session and its subscription."""
        session = SubscriberSession(name, name=name, budget=self.budget, hub=self.hub)
        request = SubscriptionRequest(name, **{"bound": 100_000, **options})
        subscription = compile_subscription(request, owner=name, number=1)
        session.add(subscription)
        return session, subscription

    def connect(self, session: SubscriberSession, position: int = 0) -> socket.socket:
        """The subscriber's end of a new connection."""
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        self.sockets += [ours, theirs]
        session.attach(ours, position, ours.close)
        return theirs

    def close(self) -> None:
        """End all."""
        self.hub.stop()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def delegate() -> Iterator[Delegate]:
    made = Delegate()
    yield made
    made.close()


def deliver(*whose: tuple[SubscriberSession, Subscription, Parcel]) -> None:
    """What a batch of publications comes to."""
    deliveries = Deliveries()
    for session, subscription, parcel in whose:
        deliveries.add(session, subscription, parcel)
    assert deliveries.offer() == []


def senders(session: SubscriberSession, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Who takes something out of the session's queues, as it happens."""
    threads: list[threading.Thread] = []
    take = session._sender._take

    def noted(max_items: int, max_bytes: int) -> Any:
        threads.append(threading.current_thread())
        return take(max_items, max_bytes)

    monkeypatch.setattr(session._sender, "_take", noted)
    return threads


def test_a_delivery_for_one_subscriber_is_sent_by_who_delivers_and_for_several_by_the_hub(
    delegate: Delegate, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given two subscribers
    one, other = (delegate.open(name) for name in ("one", "other"))
    for session, _ in (one, other):
        delegate.connect(session)
    eventually(lambda: one[0].connected and other[0].connected and delegate.hub.is_idle)
    ours, others = (senders(session, monkeypatch) for session, _ in (one, other))
    # When something comes for one of them, expect it to be on its way at once
    deliver((*one, _parcel(1, 1)))
    assert ours == [threading.current_thread()]
    assert one[0].in_flight == 1
    # When something comes for both, expect one thread to see to it that waits for such
    eventually(lambda: delegate.hub.is_idle)
    deliver((*one, _parcel(1, 2)), (*other, _parcel(1, 2)))
    eventually(lambda: one[0].in_flight == 2 and other[0].in_flight == 1)
    assert set(ours[1:]) == set(others) == {delegate.hub._thread}


def test_who_comes_late_and_has_missed_nothing_wakes_nobody(
    delegate: Delegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber, and who is told that it has something to send
    session, subscription = delegate.open("late")
    told: list[str] = []
    monkeypatch.setattr(session._sender, "ready", lambda: told.append("ready"))
    # When a subscription is done with the past, and had nothing there, expect that to be nobody's business
    session.catch_up([(subscription, Backlog(subscription, 1 << 20), 0)])
    assert told == []
    # When it has missed something, expect that to be told
    session.catch_up([(subscription, Backlog(subscription, 1 << 20), 3)])
    assert told == ["ready"]


def test_a_subscriber_that_takes_nothing_holds_up_no_deliverer(
    delegate: Delegate, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber that reads nothing, with room for 50 objects
    session, subscription = delegate.open("stalled", bound=50)
    theirs = delegate.connect(session)
    eventually(lambda: session.connected and delegate.hub.is_idle)
    # When two threads deliver far more than its socket and its queue take, expect both to come to their ends
    threads = [
        threading.Thread(
            target=lambda n=n: [deliver((session, subscription, _parcel(n, k, 5_000))) for k in range(1, 301)]
        )
        for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    # Expect the queue to hold its bound at most, as much to be under way, and the rest to be lost by its policy
    eventually(lambda: delegate.hub.is_idle)
    assert session.queued <= 50
    assert session.in_flight <= 50
    assert subscription.matched == 600 == session.queued + session.in_flight + subscription.lost["queue_overflow"]
    # When the subscriber reads, expect it to get what was kept, in order, and to be told of the rest
    got: dict[int, list[int]] = {1: [], 2: []}
    told = [0]

    def take(items: list[memoryview]) -> None:
        for item in items:
            kind, _ = ITEM.unpack_from(item)
            if kind == OBJECT:
                head = Parcel.received(item[ITEM.size :]).head
                got[int(head.registration[-1])].append(head.sequence)
            elif kind == LOSS:
                told[0] += msgspec.msgpack.decode(item[ITEM.size :])["count"]

    taken = lambda: sum(map(len, got.values()))  # noqa: E731
    receiver = Receiver(take, lambda: msgspec.msgpack.encode(Heard({1: taken()})))
    reading = threading.Thread(target=_run, args=(receiver, StreamSocket(theirs)))
    reading.start()
    eventually(lambda: session.queued == session.in_flight == 0)
    assert all(each == sorted(set(each)) for each in got.values())
    assert subscription.delivered == taken()
    eventually(lambda: told == [600 - taken()])
    theirs.shutdown(socket.SHUT_RDWR)
    reading.join(60.0)


@pytest.mark.parametrize("seed", range(4))
def test_deliverers_that_send_over_connections_that_are_cut_lose_and_double_nothing(
    seed: int, delegate: Delegate, eventually: Callable[..., Any]
) -> None:
    # Given three publishers' threads that deliver to the same subscriber, in batches of any size
    chance = random.Random(seed)
    session, subscription = delegate.open("cut", policy="block", block_seconds=60.0, bound=500)
    sizes = [chance.choice((10, 100, 3_000, 400_000)) for _ in range(100)]
    batches = [chance.randint(1, 6) for _ in range(100)]

    def publish(registration: int) -> None:
        sequence = 0
        for at in range(400):
            count = batches[(at + registration) % 100]
            run = [
                _parcel(registration, sequence + k, sizes[(sequence + k) % 100] if at % 20 == 0 else 10)
                for k in range(1, count + 1)
            ]
            sequence += count
            deliver(*((session, subscription, parcel) for parcel in run))
        totals[registration] = sequence

    totals: dict[int, int] = {}
    got: dict[int, list[int]] = {1: [], 2: [], 3: []}
    chunks: list[bytes] = []

    def take(items: list[memoryview]) -> None:
        for item in items:
            kind, _ = ITEM.unpack_from(item)
            if kind != OBJECT:
                chunks.append(bytes(item[ITEM.size :]))
            if kind in (OBJECT, LAST_CHUNK):
                head = Parcel.received(item[ITEM.size :] if kind == OBJECT else b"".join(chunks)).head
                chunks.clear()
                got[int(head.registration[-1])].append(head.sequence)

    receiver = Receiver(take, lambda: msgspec.msgpack.encode(Heard({1: sum(map(len, got.values()))})), ack_after=4)
    publishers = [threading.Thread(target=publish, args=(n,)) for n in (1, 2, 3)]
    for publisher in publishers:
        publisher.start()
    # When its connection is cut again and again
    for cut in range(12):
        theirs = delegate.connect(session, receiver.position)
        reading = threading.Thread(target=_run, args=(receiver, StreamSocket(theirs)))
        reading.start()
        aim = receiver.position + chance.randint(1, 300)
        while cut < 11 and reading.is_alive() and receiver.position < aim and len(totals) < 3:
            reading.join(0.001)
        if cut < 11:
            theirs.shutdown(socket.SHUT_RDWR)
            reading.join(60.0)
            assert not reading.is_alive()
    for publisher in publishers:
        publisher.join(60.0)
    # Expect each object once, in the order of its publisher, and the account to be even
    eventually(lambda: session.queued == session.in_flight == 0)
    assert got == {n: list(range(1, totals[n] + 1)) for n in (1, 2, 3)}
    assert subscription.matched == subscription.delivered == sum(totals.values())
    assert delegate.budget.used == 0
    theirs.shutdown(socket.SHUT_RDWR)
    reading.join(60.0)


def test_who_closes_a_session_while_somebody_delivers_to_it_ends_both_in_order(
    delegate: Delegate, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a thread in the middle of sending to a session
    session, subscription = delegate.open("closing")
    theirs = delegate.connect(session)
    eventually(lambda: session.connected and delegate.hub.is_idle)
    entered, gate = threading.Event(), threading.Event()
    take = session._sender._take

    def hold(max_items: int, max_bytes: int) -> Any:
        items = take(max_items, max_bytes)
        entered.set()
        assert gate.wait(60.0)
        return items

    monkeypatch.setattr(session._sender, "_take", hold)
    delivering = threading.Thread(target=deliver, args=((session, subscription, _parcel(1, 1)),))
    delivering.start()
    assert entered.wait(60.0)
    # When the session is closed meanwhile, expect the object to be lost once, and the connection to end
    session.close(subscription.ended)
    gate.set()
    delivering.join(60.0)
    assert not delivering.is_alive()
    theirs.settimeout(60.0)
    while theirs.recv(1000):
        pass
    assert (subscription.matched, subscription.delivered) == (1, 0)
    assert subscription.lost == {subscription.ended: 1}
    assert delegate.budget.used == 0


def _run(receiver: Receiver, line: StreamSocket) -> None:
    with suppress(WireError):
        receiver.run(line)
