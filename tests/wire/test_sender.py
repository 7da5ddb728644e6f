"""A client's sender: whoever has something says so, and waits for nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream import ACK, MAX_BATCH_BYTES, MAX_BATCH_ITEMS, Window
from jbi_pubsub.core.wire.stream_socket import StreamSocket

pytestmark = pytest.mark.processes

LARGE = 4 << 20


class Waiting:
    """Items that wait to be sent."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.takers: set[threading.Thread] = set()

    def take(self, max_items: int, _max_bytes: int) -> list[tuple[Part, ...]]:
        """The next."""
        self.takers.add(threading.current_thread())
        taken, self.items = self.items[:max_items], self.items[max_items:]
        return [(item,) for item in taken]

    def is_empty(self) -> bool:
        """Whether none waits."""
        return not self.items

    def is_full(self) -> bool:
        """Whether a full batch waits."""
        return len(self.items) >= MAX_BATCH_ITEMS


class Pair:
    """A sender on one end of a line; the other end is read by hand, or by a receiver."""

    def __init__(self, source: Waiting) -> None:
        self.source = source
        self.acked = 0
        self.sender = Sender(source, name="pair", acked=self._acked)
        self.sender.start()
        self.received: list[bytes] = []
        self.receiver = Receiver(lambda items: self.received.extend(bytes(i) for i in items), lambda: b"")
        self._ends: list[tuple[StreamSocket, socket.socket, threading.Thread]] = []
        self.connect()

    def connect(self) -> None:
        """A new line in place of the one before."""
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        line, self.line = StreamSocket(ours), StreamSocket(theirs)
        running = threading.Thread(target=self._run, args=(line,))
        running.start()
        self._ends += [(line, ours, running), (self.line, theirs, threading.Thread())]

    def receive(self) -> None:
        """Read all that comes, in a thread."""
        thread = threading.Thread(target=self._receive)
        thread.start()
        self._ends.append((self.line, socket.socket(), thread))

    def cut(self) -> None:
        """End the line."""
        self._ends[-1][0].shut()

    def close(self) -> None:
        """End all."""
        self.sender.stop()
        for line, sock, thread in self._ends:
            line.shut()
            if thread.ident is not None:
                thread.join(60.0)
            sock.close()

    def _acked(self, count: int, _note: memoryview) -> None:
        self.acked += count

    def _run(self, line: StreamSocket) -> None:
        with suppress(WireError):
            self.sender.run(line, self.receiver.position)

    def _receive(self) -> None:
        with suppress(WireError):
            self.receiver.run(self.line)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(Waiting())
    yield made
    made.close()


def test_what_waits_is_sent_by_the_senders_thread(pair: Pair, eventually: Callable[..., Any]) -> None:
    # Given an open line; When something waits
    pair.source.items = [b"one"]
    pair.sender.push()
    # Expect it to be on its way, sent by nobody whom a signal's handler may interrupt
    assert pair.line.receive(5.0)[1][-3:] == b"one"
    assert pair.sender.unacknowledged == 1
    assert pair.source.takers == {pair.sender._thread}


def test_a_peer_that_takes_nothing_makes_nobody_wait_and_gets_all_when_it_does(
    pair: Pair, eventually: Callable[..., Any]
) -> None:
    # Given a peer that reads nothing; When more is pushed than its socket takes
    pair.source.items = [bytes([n]) * LARGE for n in range(3)]
    pair.sender.push()
    pair.source.items.append(b"behind")
    pair.sender.push()
    # Expect the caller to be back, before anything is acknowledged
    assert pair.acked == 0
    # When it reads, expect everything in order
    pair.receive()
    eventually(lambda: pair.acked == 4)
    assert pair.received == [*(bytes([n]) * LARGE for n in range(3)), b"behind"]


def test_a_line_that_is_cut_in_the_middle_of_a_frame_costs_nothing(pair: Pair, eventually: Callable[..., Any]) -> None:
    # Given a frame of which a part has gone, and the rest waits for a socket that is full
    pair.source.items = [b"a" * LARGE, b"b"]
    pair.sender.push()
    eventually(lambda: pair.sender._is_sending and pair.sender.unacknowledged)
    # When the line is cut, and there is another one
    pair.cut()
    eventually(lambda: not pair.sender._is_sending)
    pair.connect()
    pair.receive()
    # Expect each item once, in order
    eventually(lambda: pair.acked == 2)
    assert pair.received == [b"a" * LARGE, b"b"]


def test_a_sender_that_is_stopped_while_a_peer_takes_nothing_ends(pair: Pair) -> None:
    # Given a thread that waits for a full socket
    pair.source.items = [b"a" * LARGE]
    pair.sender.push()
    # When it is stopped, expect it to end
    pair.sender.stop(5.0)
    assert not pair.sender._thread.is_alive()


def test_of_threads_that_push_at_once_nothing_is_left_behind(pair: Pair, eventually: Callable[..., Any]) -> None:
    # Given a receiver, and threads that each put items and push
    pair.receive()
    lock = threading.Lock()
    take = pair.source.take

    def taking(most: int, size: int) -> list[tuple[Part, ...]]:
        with lock:
            return take(most, size)

    pair.source.take = taking  # type: ignore[method-assign]

    def put(name: int) -> None:
        for number in range(2_000):
            with lock:
                pair.source.items.append(name.to_bytes(2, "big") + number.to_bytes(4, "big"))
            pair.sender.push()

    # When all are done
    threads = [threading.Thread(target=put, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect everything to arrive without another push, each one's in order
    eventually(lambda: len(pair.received) == 8_000)
    for name in range(4):
        own = [item[2:] for item in pair.received if item[:2] == name.to_bytes(2, "big")]
        assert own == [number.to_bytes(4, "big") for number in range(2_000)]


# -- frames ---------------------------------------------------------------------------------------------------------


class Counting(socket.socket):
    """Counts what is asked of the system."""

    calls = 0

    def sendmsg(self, *given: Any) -> int:
        """One call."""
        self.calls += 1
        return super().sendmsg(*given)

    def recv_into(self, *given: Any) -> int:  # type: ignore[override]
        """One call."""
        self.calls += 1
        return super().recv_into(*given)


def _counting(sock: socket.socket) -> Counting:
    counting = Counting(fileno=sock.detach())
    counting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    return counting


@pytest.mark.parametrize(
    ("count", "size"), [(1, 10), (MAX_BATCH_ITEMS, 100), (250, 1 << 10), (5, 60 << 10), (1, MAX_BATCH_BYTES)]
)
def test_a_batch_leaves_in_one_call(count: int, size: int) -> None:
    # Given a batch of small items, one that is full by its bytes, one of a large item
    left, right = socket.socketpair()
    ours = _counting(left)
    batch = Window().add([(b"head", bytes(size)) for _ in range(count)])
    # Expect one call
    StreamSocket(ours).send_frame(batch.frame)
    assert ours.calls == 1
    # And nothing large to be copied
    assert size < (64 << 10) or any(len(part) == size for part in batch.frame)
    ours.close()
    right.close()


def test_small_frames_are_read_together() -> None:
    # Given acknowledgements that have come together
    left, right = socket.socketpair()
    sending, ours = StreamSocket(left), _counting(right)
    for number in range(100):
        sending.send(ACK, [number.to_bytes(8, "big")])
    # When they are read
    line = StreamSocket(ours)
    bodies = [bytes(line.receive()[1]) for _ in range(100)]
    # Expect them in order, for one call
    assert bodies == [number.to_bytes(8, "big") for number in range(100)]
    assert ours.calls == 1
    left.close()
    ours.close()
