"""A fault that nobody expected ends no thread of the wire: it is logged and counted, and the loop goes on. In the
thread of a connection it ends that connection, whose peer sees a cut, and no other."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.wire import sender as sender_module
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Endpoint, Security
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream import ACK, BATCH, FRAME
from jbi_pubsub.core.wire.stream_socket import StreamSocket

pytestmark = pytest.mark.processes

Counting = Callable[[str], Any]


@pytest.fixture
def counted(caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]) -> Counting:
    """`with counted("hub"):` expects a fault of that name to be counted and logged meanwhile."""

    @contextmanager
    def counting(what: str, most: int = 1) -> Iterator[None]:
        before = faults().get(what, 0)
        with caplog.at_level(logging.ERROR):
            yield
        eventually(lambda: any(record.getMessage().startswith(f"{what} failed") for record in caplog.records))
        assert 0 < faults()[what] - before <= most

    return counting


class Once:
    """Fails the first `times` times it is called, in a way nobody expects; then does what it stands for."""

    def __init__(self, does: Callable[..., Any], times: int = 1) -> None:
        self._does = does
        self._left = times
        self.failed = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._left:
            self._left -= 1
            self.failed.set()
            raise LookupError("nobody expected this")
        return self._does(*arguments, **options)


# -- endpoint -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["_admit", "_make_room"])
def test_a_fault_in_accepting_costs_one_connection(
    where: str, serve: Callable[..., Any], counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a port at which accepting fails once
    served = serve()
    client = ControlClient(served.ref, Security(), timeout=60.0)
    at = served.endpoint if where == "_admit" else served.endpoint.connections
    monkeypatch.setattr(at, where, Once(getattr(at, where)))
    # When somebody connects, expect that one to see a cut, and the next one to be served
    with counted("accepting a connection"), pytest.raises(WireError):
        client.call("echo", str, "hello")
    assert client.call("echo", str, "hello") == "hello"
    client.close()


def test_a_fault_in_the_thread_of_a_connection_is_a_cut_for_its_peer_alone(
    serve: Callable[..., Any], counted: Counting, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given two clients, and a port whose next connection fails behind the preamble
    served = serve()
    standing, other = (ControlClient(served.ref, Security(), timeout=60.0) for _ in range(2))
    assert standing.call("echo", str, "hello") == "hello"
    handlers = served.endpoint._handlers
    monkeypatch.setattr(served.endpoint, "_handlers", {k: Once(v) for k, v in handlers.items()})
    # When the other one calls, expect it to see a cut, nothing to be left of it, and the first to go on
    with counted("connection"), pytest.raises(WireError):
        other.call("echo", str, "hello")
    eventually(lambda: len(served.endpoint.connections) == 1)
    assert [each.call("echo", str, "again") for each in (standing, other)] == ["again"] * 2
    standing.close()
    other.close()


def test_accepting_goes_on_behind_a_broken_listener(
    counted: Counting, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a listener whose accept fails in a way nobody expects
    heard = threading.Event()
    endpoint = Endpoint(
        "127.0.0.1", 0, name="odd", security=Security(), control=lambda *_: heard.set(), data=lambda *_: None
    )
    listener = endpoint._listener

    class Odd:
        """It."""

        accept = Once(listener.accept, times=2)

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    endpoint._listener = Odd()  # type: ignore[assignment]  # as a socket
    with counted("accepting a connection", most=2):
        endpoint.start()
        with socket.create_connection(("127.0.0.1", endpoint.port), 5.0) as sock:
            sock.sendall(b"JBI\n\x04C")
            # Expect it to be tried again
            eventually(lambda: faults().get("accepting a connection", 0) >= 2)
    endpoint.stop()


# -- hub ----------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of a hub, and its far end."""

    far: list[socket.socket]
    """All far ends of a test."""

    def __init__(self, hub: SenderHub, items: int = 1) -> None:
        self.left = items
        self.sender = HubSender(hub, take=self._take, acked=lambda _count, _note: None)
        self.ended = threading.Event()
        self.attach()

    def attach(self, position: int = 0) -> None:
        """Connect (again)."""
        ours, theirs = socket.socketpair()
        Stream.far += [ours, theirs]
        self.line = StreamSocket(theirs)
        self.ended.clear()

        def end() -> None:
            ours.close()
            self.ended.set()

        self.sender.attach(ours, position, ended=end)
        self.sender.ready()

    def _take(self, _items: int, _bytes: int) -> Sequence[Sequence[Part]]:
        if not self.left:
            return []
        self.left -= 1
        return [(b"item",)]

    def expect_item(self, number: int) -> None:
        """The next item comes."""
        _, body = self.line.receive(5.0)
        assert BATCH.unpack_from(body)[0] == number


@pytest.fixture
def hub() -> Iterator[SenderHub]:
    made = SenderHub(name="guarded-hub")
    Stream.far = []
    made.start()
    yield made
    made.stop()
    assert not made._thread.is_alive()
    for sock in Stream.far:
        sock.close()


@pytest.mark.parametrize("where", ["_wait", "_round", "_drop_stalled"])
def test_a_fault_in_the_hubs_own_work_does_not_end_it(
    where: str, hub: SenderHub, counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a hub with a stream, and a fault in its next round
    first = Stream(hub)
    first.expect_item(1)
    once = Once(getattr(hub, where))
    with counted("hub"):
        monkeypatch.setattr(hub, where, once)
        first.sender._connection.deadline = math.inf  # type: ignore[union-attr]  # it has one
        # When others come, expect them to be served
        other = Stream(hub)
        while not once.failed.wait(0.01):
            hub.stalls.unsent.add(first.sender)  # as if something waited: then stalled ones are looked for
            hub.poll.wake()
    other.expect_item(1)
    first.left = 1
    first.sender.ready()
    first.expect_item(2)


def test_an_order_that_fails_holds_up_no_other(hub: SenderHub, counted: Counting) -> None:
    done = threading.Event()
    with counted("an order to the hub"):
        assert hub.order(Once(lambda: None))
        assert hub.order(done.set)
        assert done.wait(60.0)
    Stream(hub).expect_item(1)


@pytest.mark.parametrize("where", ["_take", "_acked"])
def test_a_fault_of_one_stream_ends_its_connection_and_no_other(
    where: str, hub: SenderHub, counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two streams, one of which fails once when it gives or is told something
    faulty, other = Stream(hub, items=2), Stream(hub, items=2)
    faulty.expect_item(1)
    other.expect_item(1)
    monkeypatch.setattr(faulty.sender, where, Once(getattr(faulty.sender, where)))
    # When both go on
    with counted("a stream of the hub"):
        for each in (faulty, other):
            each.line.send(ACK, [(1).to_bytes(8, "big")])
            each.sender.ready()
        assert faulty.ended.wait(60.0)
    # Expect the other to go on, and the faulty one to resume when its peer comes back
    other.expect_item(2)
    assert not other.ended.is_set()
    faulty.attach(1)
    faulty.expect_item(2)


def test_who_can_not_close_a_connection_does_not_end_the_hub(hub: SenderHub, counted: Counting) -> None:
    faulty, other = Stream(hub), Stream(hub)
    faulty.expect_item(1)
    faulty.sender._connection.ended = Once(lambda: None)  # type: ignore[union-attr]  # it has one
    with counted("closing a connection"):
        faulty.sender.stop()
    other.expect_item(1)
    Stream(hub).expect_item(1)


# -- a client's stream --------------------------------------------------------------------------------------------


class Numbers:
    """A source of so many items."""

    def __init__(self, count: int) -> None:
        self._left = list(range(1, count + 1))

    def take(self, _items: int, _bytes: int) -> list[tuple[Part, ...]]:
        """The next."""
        return [(self._left.pop(0).to_bytes(8, "big"),)] if self._left else []

    def is_empty(self) -> bool:
        """Whether there are no more."""
        return not self._left

    def is_full(self) -> bool:
        """It is not."""
        return False


@pytest.mark.parametrize("where", ["turn", "take", "window", "frame", "acked"])
def test_a_fault_in_sending_loses_nothing_and_the_next_connection_goes_on(
    where: str, counted: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a sender of five items, of whose steps one fails once
    monkeypatch.setattr(sender_module, "TAKE_SECONDS", 0.02)
    source = Numbers(5)
    acked: list[int] = []
    sender = Sender(source, name="guarded", acked=lambda count, _note: acked.append(count))
    received: list[int] = []
    receiver = Receiver(lambda items: received.extend(int.from_bytes(i[:8], "big") for i in items), lambda: b"")
    what = "stream of a sender" if where == "acked" else "sender"
    with counted(what):
        match where:
            case "turn":
                monkeypatch.setattr(sender, "_may_send", Once(sender._may_send))
            case "take":
                monkeypatch.setattr(source, "take", Once(source.take))
            case "window":
                monkeypatch.setattr(sender._window, "add", Once(sender._window.add))
            case "frame":
                send, once = StreamSocket.send_frame, Once(StreamSocket.send_frame)
                monkeypatch.setattr(
                    StreamSocket, "send_frame", lambda *given: (send if is_ack(given[1]) else once)(*given)
                )
            case _:
                monkeypatch.setattr(sender, "_acked", Once(sender._acked))
        sender.start()
        # When it meets its receiver, again if the connection has ended
        for _ in range(5):
            if received[-1:] != [5] or sum(acked) < 4:
                _meet(sender, receiver, lambda: received[-1:] == [5] and sender.unacknowledged == 0)
    # Expect every item once, in order
    assert received == [1, 2, 3, 4, 5]
    sender.stop()


def is_ack(parts: Sequence[Part]) -> bool:
    """Whether a frame acknowledges."""
    return parts[0][FRAME.size - 1] == ACK


def _meet(sender: Sender, receiver: Receiver, until: Callable[[], bool]) -> None:
    """Connect both until one of them ends, or `until()`."""
    ours, theirs = socket.socketpair()
    lines = StreamSocket(ours), StreamSocket(theirs)
    ends = [
        threading.Thread(target=_run, args=(sender.run, lines[0], receiver.position)),
        threading.Thread(target=_run, args=(receiver.run, lines[1])),
    ]
    for end in ends:
        end.start()
    while all(end.is_alive() for end in ends) and not until():
        ends[0].join(0.005)
    for line in lines:
        line.shut()
    for end in ends:
        end.join(60.0)
    ours.close()
    theirs.close()


def _run(end: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises(WireError):
        end(*arguments)


def test_a_note_that_fails_is_a_cut_and_comes_again(counted: Counting) -> None:
    # Given a receiver whose note of what it has consumed fails once
    received: list[bytes] = []
    receiver = Receiver(lambda items: received.extend(bytes(i) for i in items), Once(lambda: b""))
    sender = Sender(Numbers(2), name="guarded", acked=lambda _count, _note: None)
    sender.start()
    with counted("acknowledging"):
        _meet(sender, receiver, lambda: False)
    _meet(sender, receiver, lambda: len(received) == 2 and sender.unacknowledged == 0)
    sender.stop()


def test_a_fault_in_taking_a_batch_is_a_cut_and_the_batch_comes_again(counted: Counting) -> None:
    # Given a receiver that can't take its first batch, for a fault of ours
    received: list[bytes] = []
    sink = Once(lambda items: received.extend(bytes(i) for i in items))
    receiver = Receiver(sink, lambda: b"")
    sender = Sender(Numbers(2), name="guarded", acked=lambda _count, _note: None)
    sender.start()
    # When they meet, expect WireError on both sides; and all of it when they meet again
    with counted("stream of a receiver"):
        _meet(sender, receiver, lambda: False)
    assert received == []
    _meet(sender, receiver, lambda: len(received) == 2)
    assert [int.from_bytes(i, "big") for i in received] == [1, 2]
    sender.stop()
