"""When a receiver acknowledges: at once on an idle line, together while batches come one upon the other."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from jbi_pubsub.core.errors import WireError, WireTimeoutError
from jbi_pubsub.core.wire import receiver as receiver_module
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream import ACK, BATCH, ITEMS, LENGTH, MAX_BATCH_BYTES, WINDOW_BATCHES
from jbi_pubsub.core.wire.stream_socket import StreamSocket

pytestmark = pytest.mark.processes


class Peer:
    """The sending end of a line whose receiver runs in a thread."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.sock, self._theirs = socket.socketpair()
        self.line = StreamSocket(self.sock)
        self._sent = 0
        self._thread: threading.Thread | None = None

    def send(self, *sizes: int) -> None:
        """A batch of one item for each size."""
        for size in sizes:
            self._sent += 1
            item = self._sent.to_bytes(8, "big") + bytes(size)
            self.line.send(ITEMS, [BATCH.pack(self._sent, 1), LENGTH.pack(len(item)), item])

    def begin(self, **options: int) -> Receiver:
        """Have the receiver read from now on."""
        receiver = Receiver(self._take, lambda: b"note", **options)

        def run() -> None:
            with suppress(WireError):
                receiver.run(StreamSocket(self._theirs))

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return receiver

    def ended(self) -> None:
        """The receiver has ended the line."""
        assert self._thread is not None
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    def acknowledged(self, count: int) -> list[int]:
        """The positions of the next acknowledgements."""
        frames = [self.line.receive(10.0) for _ in range(count)]
        assert {(kind, bytes(body[8:])) for kind, body in frames} == {(ACK, b"note")}
        return [int.from_bytes(body[:8], "big") for _, body in frames]

    def expect_no_more(self) -> None:
        """No acknowledgement waits, and none comes."""
        with pytest.raises(WireTimeoutError):
            self.line.receive(0.1)

    def close(self) -> None:
        """End both."""
        self.sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(60.0)
        self.sock.close()
        self._theirs.close()

    def _take(self, items: list[memoryview]) -> None:
        self.received += [int.from_bytes(item[:8], "big") for item in items]


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_batches_that_wait_are_acknowledged_together(peer: Peer) -> None:
    # Given ten batches that have come already
    peer.send(*[10] * 10)
    # When a receiver that may let four of them wait reads, expect an acknowledgement when it begins, two in the middle,
    # and one as soon as there is no more
    peer.begin(ack_after=4)
    assert peer.acknowledged(4) == [0, 4, 8, 10]
    peer.expect_no_more()
    assert peer.received == list(range(1, 11))


def test_each_batch_is_acknowledged_by_a_receiver_whose_sender_counts_on_it(peer: Peer) -> None:
    peer.send(*[10] * 5)
    peer.begin()
    assert peer.acknowledged(6) == [0, 1, 2, 3, 4, 5]
    peer.expect_no_more()


def test_full_batches_do_not_wait(peer: Peer) -> None:
    # Given batches of half the largest size, read while they are sent
    sending = threading.Thread(target=peer.send, args=[MAX_BATCH_BYTES // 2] * 6)
    peer.begin(ack_after=100)
    sending.start()
    # Expect each two of them to be acknowledged, at least: what a sender may have under way is counted in bytes, too
    acknowledged = [0]
    while acknowledged[-1] < 6:
        acknowledged += peer.acknowledged(1)
    sending.join()
    assert all(later - earlier <= 2 for earlier, later in itertools.pairwise(acknowledged))


def test_on_an_idle_line_nothing_waits(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a line on which everything comes after a pause
    monkeypatch.setattr(receiver_module, "ACK_SECONDS", 0.0)
    waits: list[float] = []
    has_more = StreamSocket.has_more

    def noted(line: StreamSocket, timeout: float) -> bool:
        waits.append(timeout)
        return has_more(line, timeout)

    monkeypatch.setattr(StreamSocket, "has_more", noted)
    peer.begin(ack_after=4)
    assert peer.acknowledged(1) == [0]
    # When batches come, expect each to be acknowledged before the next one, and no wait
    for n in (1, 2, 3):
        peer.send(10)
        assert peer.acknowledged(1) == [n]
    assert waits == [0.0] * 3


def test_on_a_busy_line_an_acknowledgement_waits_for_a_moment_and_no_longer(
    peer: Peer, eventually: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a line that was acknowledged a moment ago
    monkeypatch.setattr(receiver_module, "ACK_SECONDS", 1000.0)
    waits: list[float] = []
    come = threading.Event()
    has_more = StreamSocket.has_more

    def noted(line: StreamSocket, timeout: float) -> bool:
        waits.append(timeout)
        assert come.wait(60.0)
        return has_more(line, 0.0)  # as if the time were over

    peer.begin(ack_after=4)
    peer.send(10)
    assert peer.acknowledged(2) == [0, 1]
    monkeypatch.setattr(StreamSocket, "has_more", noted)
    # When a batch comes, and another one while its acknowledgement waits
    peer.send(10)
    eventually(lambda: waits == [1000.0])
    peer.send(10)
    come.set()
    # Expect one acknowledgement for both, when no more has come in time
    assert peer.acknowledged(1) == [3]
    assert waits == [1000.0] * 2
    peer.expect_no_more()


class Slow(Peer):
    """Its batches may be acknowledged when their permit is there, and not when there is a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.is_faulty = False

    def _take(self, items: list[memoryview]) -> Callable[[], None] | None:  # type: ignore[override]
        super()._take(items)
        return self._settle if self.received[-1] % 2 else None

    def _settle(self) -> None:
        assert self.permits.acquire(timeout=10.0)
        if self.is_faulty:
            raise ValueError("a fault")


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.permits.release(100)
    made.close()


def test_the_next_batches_are_taken_while_one_waits_for_the_disk(slow: Slow, eventually: Callable[..., object]) -> None:
    # Given a receiver, each second of whose batches has to be on disk before it is acknowledged
    slow.begin()
    assert slow.acknowledged(1) == [0]
    # When three come, expect all to be taken, and none to be acknowledged
    slow.send(10, 10, 10)
    eventually(lambda: slow.received == [1, 2, 3])
    slow.expect_no_more()
    # When the first and the third are on disk, expect all to be acknowledged, in their order, and what comes then
    slow.permits.release(2)
    slow.send(10)
    positions = [0]
    while positions[-1] < 4:
        positions += slow.acknowledged(1)
    assert positions == sorted(positions)


def test_no_more_wait_for_the_disk_than_a_sender_has_under_way(slow: Slow, eventually: Callable[..., object]) -> None:
    # Given a sender that minds no window
    slow.begin()
    slow.send(*[10] * 40)
    # Expect the receiver to take as many as it may, and one
    eventually(lambda: len(slow.received) > WINDOW_BATCHES)
    assert slow.acknowledged(1) == [0]
    slow.expect_no_more()
    assert len(slow.received) == WINDOW_BATCHES + 1


def test_what_could_not_be_settled_is_asked_for_again(slow: Slow) -> None:
    # Given two batches that were settled, and acknowledged
    slow.permits.release()
    receiver = slow.begin()
    slow.send(10, 10)
    while slow.acknowledged(1) != [2]:
        pass
    # When the third can't be, expect the line to end, and the next one to begin before it
    slow.is_faulty = True
    slow.permits.release()
    slow.send(10)
    slow.ended()
    assert slow.received == [1, 2, 3]
    assert receiver.position == 2
