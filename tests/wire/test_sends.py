"""What a window of batches costs in system calls: one send a batch, whatever is in it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream import FRAME, ITEMS, MAX_BATCH_BYTES, MAX_BATCH_ITEMS, WINDOW_BATCHES
from jbi_pubsub.core.wire.stream_socket import StreamSocket


class Sent:
    """What was sent, and by how many calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.data = bytearray()
        self.changed = threading.Condition()

    def add(self, data: bytes) -> int:
        """One call."""
        with self.changed:
            self.calls += 1
            self.data += data
            self.changed.notify_all()
        return len(data)

    def batches(self) -> int:
        """Frames of items that are there as a whole."""
        found = at = 0
        while at + FRAME.size <= len(self.data):
            length, kind = FRAME.unpack_from(self.data, at)
            at += FRAME.size + length
            found += kind == ITEMS and at <= len(self.data)
        return found


class CountingSocket(socket.socket):
    """Takes all that it is given at once, for the peer never reads: how full a socket is would be chance."""

    sent: Sent

    def send(self, data: Any, *_flags: int) -> int:
        return self.sent.add(bytes(data))

    def sendmsg(self, buffers: Any, *_more: Any) -> int:
        return self.sent.add(b"".join(map(bytes, buffers)))

    def sendall(self, data: Any, *_flags: int) -> None:
        self.sent.add(bytes(data))


class Items:
    """A source of so many items of `size` bytes in two parts, as objects are: head and payload."""

    def __init__(self, count: int, size: int) -> None:
        self.left = count
        self._item = (bytes(size // 2), bytes(size - size // 2))

    def take(self, max_items: int, max_bytes: int, timeout: float = 0.0) -> list[tuple[bytes, ...]]:  # noqa: ARG002  # a Source
        """As many as fill a batch."""
        size = sum(map(len, self._item))
        count = min(self.left, max_items, -(-max_bytes // size))
        self.left -= count
        return [self._item] * count

    def wake(self) -> None:
        """It never waits."""

    def is_full(self) -> bool:
        """There is always more, until there is none."""
        return self.left > 0


def by_sender(source: Items, sock: CountingSocket) -> Callable[[], None]:
    """Send it by a client's sender; what ends that."""
    sender = Sender(source, name="test", acked=lambda _count, _note: None)
    sender.start()

    def run() -> None:
        with suppress(WireError):
            sender.run(StreamSocket(sock), 0)

    running = threading.Thread(target=run)
    running.start()

    def end() -> None:
        sender.stop()
        running.join()

    return end


def by_hub(source: Items, sock: CountingSocket) -> Callable[[], None]:
    """Send it by a server's hub; what ends that."""
    hub = SenderHub(name="test-hub")
    hub.start()
    sender = HubSender(hub, take=source.take, acked=lambda _count, _note: None)
    sender.attach(sock, 0, ended=lambda: None)
    sender.ready()
    return hub.stop


@pytest.mark.processes
@pytest.mark.parametrize("begin", [by_sender, by_hub])
@pytest.mark.parametrize(
    ("size", "each"),
    [
        pytest.param(100, MAX_BATCH_ITEMS, id="full of small items"),
        pytest.param(2_000, -(-MAX_BATCH_BYTES // 2_000), id="filled up to its bytes"),
        pytest.param(MAX_BATCH_BYTES, 1, id="one large item"),
    ],
)
def test_a_batch_leaves_with_one_send(begin: Callable[..., Callable[[], None]], size: int, each: int) -> None:
    # Given a peer that takes everything, and acknowledges nothing
    near, far = socket.socketpair()
    sent = Sent()
    with far, CountingSocket(fileno=near.detach()) as sock:
        sock.sent = sent
        # When there is more to send than its window lets through
        end = begin(Items(each * (WINDOW_BATCHES + 2), size), sock)
        try:
            with sent.changed:
                full = sent.changed.wait_for(lambda: sent.batches() >= WINDOW_BATCHES, 10.0)
        finally:
            end()
    # Expect that it is full, by no more calls than there are batches
    assert full
    assert sent.batches() == WINDOW_BATCHES
    assert sent.calls <= WINDOW_BATCHES
