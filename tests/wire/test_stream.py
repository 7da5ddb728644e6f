"""The data plane over lines that break: in order, once, bounded."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from jbi_pubsub.core.errors import ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.wire.deflate import Compression
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream import ACK, BATCH, ITEMS, LENGTH, MAX_BATCH_ITEMS, WINDOW_BATCHES, WINDOW_BYTES
from jbi_pubsub.core.wire.stream_socket import StreamSocket
from tests.conftest import eventually

pytestmark = pytest.mark.processes


class Numbers:
    """A source of so many numbered items, at most `at_once` in a batch."""

    def __init__(self, count: int, *, at_once: int = MAX_BATCH_ITEMS, size: int = 8) -> None:
        self.count = count
        self.taken = 0
        self._at_once = at_once
        self._size = size

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:  # noqa: ARG002  # a Source
        """The next ones."""
        first = self.taken + 1
        self.taken = min(self.count, self.taken + min(max_items, self._at_once))
        return [(n.to_bytes(8, "big"), bytes(self._size - 8)) for n in range(first, self.taken + 1)]

    def is_empty(self) -> bool:
        """Whether there are no more."""
        return self.taken >= self.count

    def is_full(self) -> bool:
        """Whether a full batch waits."""
        return self.count - self.taken >= self._at_once


class Pipe:
    """Two ends of a line with a relay between them that cuts the line after so many bytes in one direction."""

    def __init__(self, cut_after: int | None = None, *, cut_acks_after: int | None = None) -> None:
        self.sending, near = socket.socketpair()
        far, self.receiving = socket.socketpair()
        self._sockets = (self.sending, near, far, self.receiving)
        self._relays = [
            threading.Thread(target=self._relay, args=(near, far, cut_after)),
            threading.Thread(target=self._relay, args=(far, near, cut_acks_after)),
        ]
        for relay in self._relays:
            relay.start()

    def _relay(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while left is None or left > 0:
                data = source.recv(1500 if left is None else min(left, 1500))
                if not data:
                    break
                target.sendall(data)
                left = None if left is None else left - len(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for relay in self._relays:
            relay.join()
        for sock in self._sockets:
            sock.close()


def run(end: Callable[[], None]) -> None:
    """Run one end of a line until it fails."""
    with suppress(WireError, OSError):  # OSError: cut before this thread came to it
        end()


class Threaded:
    """A sender with a thread of its own."""

    compressed = False

    def __init__(self, source: Numbers) -> None:
        self.sender = Sender(source, name="test", acked=lambda _count, _note: None)
        self.sender.start()

    def run(self, sock: socket.socket, position: int) -> None:
        """Use the socket until it fails."""
        line = StreamSocket(sock)
        line.compression = Compression() if self.compressed else None
        self.sender.run(line, position)

    def stop(self) -> None:
        """End."""
        self.sender.stop()


class Hubbed:
    """A sender in a hub: the rules are the same."""

    compressed = False

    def __init__(self, source: Numbers) -> None:
        self._source = source
        self._hub = SenderHub(name="test-hub")
        self._hub.start()
        self.sender = HubSender(self._hub, take=self._take, acked=lambda _count, _note: None)

    def run(self, sock: socket.socket, position: int) -> None:
        """Use the socket until it fails."""
        ended = threading.Event()
        own = sock.dup()  # the hub's: whoever has the other one may close it at any time

        def end() -> None:
            own.close()
            ended.set()

        self.sender.attach(own, position, ended=end, compression=Compression() if self.compressed else None)
        assert ended.wait(60.0)

    def stop(self) -> None:
        """End."""
        self._hub.stop()

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        items = self._source.take(max_items, max_bytes)
        if self._source.taken < self._source.count:
            self.sender.ready()
        return items


class ThreadedDeflating(Threaded):
    """The same over compressed lines."""

    compressed = True


class HubbedDeflating(Hubbed):
    """The same over compressed lines."""

    compressed = True


Senders = Callable[[Numbers], Threaded | Hubbed]


def meet(sender: Threaded | Hubbed, receiver: Receiver, pipe: Pipe, until: Callable[[], bool]) -> None:
    """Connect both ends as a reconnecting client and its server do, until the line is cut or `until()` is true."""
    position = receiver.position
    receiving = StreamSocket(pipe.receiving)
    receiving.compression = Compression() if sender.compressed else None
    ends = [
        threading.Thread(target=run, args=(lambda: sender.run(pipe.sending, position),)),
        threading.Thread(target=run, args=(lambda: receiver.run(receiving),)),
    ]
    for end in ends:
        end.start()
    while all(end.is_alive() for end in ends) and not until():
        ends[0].join(0.005)
    pipe.close()
    for end in ends:
        end.join()


@pytest.fixture(params=[Threaded, Hubbed])
def senders(request: pytest.FixtureRequest) -> Iterator[Senders]:
    """Senders of either kind that are stopped in the end."""
    made: list[Threaded | Hubbed] = []

    def begin(source: Numbers) -> Threaded | Hubbed:
        made.append(request.param(source))
        return made[-1]

    yield begin
    for sender in made:
        sender.stop()


@pytest.mark.parametrize("senders", [Threaded, Hubbed, ThreadedDeflating, HubbedDeflating], indirect=True)
@pytest.mark.parametrize("direction", ["items", "acknowledgements", "both"])
@pytest.mark.parametrize("seed", range(4))
def test_a_line_that_is_cut_again_and_again_loses_and_doubles_nothing(
    direction: str, seed: int, senders: Senders
) -> None:
    # Given 5,000 items, in clear or compressed, and lines that are cut in the middle of a frame, of an acknowledgement,
    # or of both
    chance = random.Random(seed)
    source = Numbers(5000, at_once=50, size=20)
    received: list[int] = []
    sender = senders(source)
    receiver = Receiver(lambda items: received.extend(int.from_bytes(i[:8], "big") for i in items), lambda: b"")

    # When both ends meet on one line after the other, the last of which holds
    cuts = 0
    for _ in range(25):
        items = chance.randrange(1, 2_000 if sender.compressed else 12_000) if direction != "acknowledgements" else None
        acks = chance.randrange(1, 150) if direction != "items" else None
        meet(sender, receiver, Pipe(items, cut_acks_after=acks), lambda: len(received) == 5000)
        cuts += len(received) < 5000
    meet(sender, receiver, Pipe(), lambda: len(received) == 5000 and sender.sender.unacknowledged == 0)

    # Expect every item once, in order
    assert cuts > 3
    assert received == list(range(1, 5001))
    assert sender.sender.unacknowledged == 0


def test_a_receiver_that_does_not_acknowledge_bounds_the_sender(senders: Senders) -> None:
    # Given a sender with far more to send than its window, one item a batch, and a receiver that only reads
    source = Numbers(1000, at_once=1)
    sender = senders(source)
    ours, theirs = socket.socketpair()
    end = threading.Thread(target=run, args=(lambda: sender.run(ours, 0),))
    end.start()
    line = StreamSocket(theirs)
    firsts = [BATCH.unpack_from(line.receive(5.0)[1])[0] for _ in range(WINDOW_BATCHES)]

    # Expect as many batches as the window allows and not one more
    assert firsts == list(range(1, WINDOW_BATCHES + 1))
    with pytest.raises(WireTimeoutError):
        line.receive(0.3)
    assert source.taken == sender.sender.unacknowledged == WINDOW_BATCHES

    # When one is acknowledged, expect one more
    line.send(ACK, [(1).to_bytes(8, "big")])
    kind, body = line.receive(5.0)
    assert (kind, BATCH.unpack_from(body)) == (ITEMS, (WINDOW_BATCHES + 1, 1))
    with pytest.raises(WireTimeoutError):
        line.receive(0.2)
    assert source.taken == WINDOW_BATCHES + 1
    line.shut()
    end.join()
    ours.close()
    theirs.close()


def test_the_window_counts_bytes_as_well(senders: Senders) -> None:
    # Given items of which three exceed the window's bytes
    size = WINDOW_BYTES // 3 + 1
    source = Numbers(1000, at_once=1, size=size)
    sender = senders(source)
    ours, theirs = socket.socketpair()
    end = threading.Thread(target=run, args=(lambda: sender.run(ours, 0),))
    end.start()
    line = StreamSocket(theirs)

    # Expect three and not one more
    for _ in range(3):
        line.receive(5.0)
    with pytest.raises(WireTimeoutError):
        line.receive(0.3)
    assert source.taken == 3
    line.shut()
    end.join()
    ours.close()
    theirs.close()


def test_nothing_is_taken_from_the_source_without_a_line(senders: Senders) -> None:
    # Given a sender that nobody has connected to, and another that works meanwhile
    idle, busy = Numbers(10), Numbers(10)
    waiting = senders(idle)
    received: list[int] = []
    receiver = Receiver(lambda items: received.extend(range(len(items))), lambda: b"")

    # When the other one has sent all it has
    meet(senders(busy), receiver, Pipe(), lambda: len(received) == 10)

    # Expect that the first has taken nothing: what waits in the source can still be dropped or counted there
    assert (idle.taken, waiting.sender.unacknowledged, waiting.sender.connected) == (0, 0, False)


@pytest.mark.parametrize("position", [6, 2**63])
def test_acknowledging_what_was_never_sent_is_refused(position: int) -> None:
    # Given five items sent
    sender = Threaded(Numbers(5, at_once=1))
    ours, theirs = socket.socketpair()
    refused: list[BaseException] = []

    def serve() -> None:
        try:
            sender.run(ours, 0)
        except WireError as exc:
            refused.append(exc)

    end = threading.Thread(target=serve)
    end.start()
    line = StreamSocket(theirs)
    for _ in range(5):
        line.receive(5.0)

    # When more is acknowledged
    line.send(ACK, [position.to_bytes(8, "big")])
    end.join(60.0)

    # Expect the line to end as a breach of the protocol, and what was sent to be kept
    assert [type(exc) for exc in refused] == [ProtocolError]
    assert sender.sender.unacknowledged == 5
    sender.stop()
    ours.close()
    theirs.close()


def batch(first: int, count: int, *items: bytes) -> list[bytes]:
    """The body of a frame of items."""
    return [BATCH.pack(first, count), *(LENGTH.pack(len(item)) + item for item in items)]


@pytest.mark.parametrize(
    "body",
    [
        batch(2, 1, b"a gap before it"),
        batch(1, 2, b"fewer than it says"),
        batch(1, 1, b"more", b"than it says"),
        [BATCH.pack(1, 1), LENGTH.pack(100), b"short"],
        [b"short"],
        batch(1, MAX_BATCH_ITEMS + 1, *[b""] * (MAX_BATCH_ITEMS + 1)),
    ],
    ids=["gap", "fewer", "more", "truncated item", "truncated batch", "more items than any batch has"],
)
def test_a_bad_batch_ends_the_line_and_hands_nothing_on(body: list[bytes]) -> None:
    # Given a receiver
    received: list[bytes] = []
    receiver = Receiver(lambda items: received.extend(bytes(i) for i in items), lambda: b"")
    ours, theirs = socket.socketpair()
    refused: list[BaseException] = []

    def serve() -> None:
        try:
            receiver.run(StreamSocket(ours))
        except WireError as exc:
            refused.append(exc)

    end = threading.Thread(target=serve)
    end.start()

    # When a batch comes that breaks the rules
    StreamSocket(theirs).send(ITEMS, body)
    end.join(60.0)

    # Expect a breach of the protocol, nothing handed on, and the position as before
    assert [type(exc) for exc in refused] == [ProtocolError]
    assert (received, receiver.position) == ([], 0)
    ours.close()
    theirs.close()


def test_who_leaves_waits_until_the_last_of_it_was_read() -> None:
    # Given a receiver that has taken a batch, on a line of which its peer reads nothing just now
    ours, theirs = socket.socketpair()
    taken = threading.Event()
    receiver = Receiver(lambda _: taken.set(), lambda: b"taken" if left.is_set() else b"")
    left = threading.Event()
    reading = threading.Thread(target=run, args=(lambda: receiver.run(StreamSocket(theirs)),))
    reading.start()
    peer = StreamSocket(ours)
    peer.send(ITEMS, batch(1, 1, b"x"))
    assert taken.wait(60.0)
    # When it leaves
    left.set()
    leaving = threading.Thread(target=receiver.leave, args=(10.0,))
    leaving.start()
    # Expect it to wait until the peer has read that, and the end behind it
    notes = []
    while True:
        try:
            assert leaving.is_alive()
            notes.append(bytes(peer.receive(5.0)[1])[8:])
        except WireError:
            break
    assert notes[-1] == b"taken"
    ours.close()
    leaving.join(10.0)
    assert not leaving.is_alive()
    reading.join(60.0)
    theirs.close()


def test_who_leaves_waits_no_longer_than_that() -> None:
    # Given a peer that reads nothing
    ours, theirs = socket.socketpair()
    receiver = Receiver(lambda _: None, lambda: b"")
    reading = threading.Thread(target=run, args=(lambda: receiver.run(StreamSocket(theirs)),))
    reading.start()
    eventually(lambda: receiver._line is not None)
    receiver.leave(0.05)
    reading.join(60.0)
    assert not reading.is_alive()
    ours.close()
    theirs.close()
