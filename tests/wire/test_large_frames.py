"""Large frames: read where they stay, whole or not at all, and not into memory that nobody has filled."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.wire.stream import FRAME, ITEMS, MAX_FRAME_BYTES
from jbi_pubsub.core.wire.stream_socket import StreamSocket

pytestmark = pytest.mark.processes

SIZES = (70_000, 3, 300_000, 0, 65_536, 2_500_000, 9_000, 65_531, 1 << 20)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, StreamSocket]]:
    """One who sends, and the line of who receives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, StreamSocket(theirs)


def frame(size: int, seed: int = 0) -> bytes:
    """A frame whose body says of each place which one it is."""
    return FRAME.pack(size, ITEMS) + bytes((seed + at) % 251 for at in range(size))


def test_frames_of_all_sizes_come_as_they_went(ends: tuple[socket.socket, StreamSocket]) -> None:
    # Given large frames and small ones, one behind the other
    ours, line = ends
    frames = [frame(size, number) for number, size in enumerate(SIZES)]
    # When they come in pieces that end anywhere
    sending = threading.Thread(target=lambda: [ours.sendall(bytes(part)) for part in _cut(b"".join(frames), 77_777)])
    sending.start()
    got = [line.receive(10.0) for _ in frames]
    sending.join()
    # Expect each as it was
    assert [(kind, FRAME.pack(len(body), kind) + bytes(body)) for kind, body in got] == [
        (ITEMS, each) for each in frames
    ]


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("came", [4, 5, 6, 40_000, 299_999])
def test_a_line_that_is_cut_within_a_large_frame_ends(came: int, ends: tuple[socket.socket, StreamSocket]) -> None:
    # Given a line that has carried a large frame
    ours, line = ends
    sending = threading.Thread(target=ours.sendall, args=(frame(300_000),))
    sending.start()
    line.receive(10.0)
    sending.join()
    # When it is cut in the middle of the next one
    sending = threading.Thread(target=lambda: (ours.sendall(frame(300_000)[:came]), ours.close()))
    sending.start()
    # Expect an error of ours, and nothing of the frame
    with pytest.raises(WireError, match="closed by the peer"):
        line.receive(10.0)
    sending.join()


def test_what_is_announced_and_does_not_come_takes_no_memory(ends: tuple[socket.socket, StreamSocket]) -> None:
    # Given the largest frame, announced, of which two megabytes come and no more
    ours, line = ends
    sending = threading.Thread(
        target=lambda: (ours.sendall(FRAME.pack(MAX_FRAME_BYTES, ITEMS) + bytes(2 << 20)), ours.close())
    )
    tracemalloc.start()
    try:
        sending.start()
        with pytest.raises(WireError):
            line.receive(10.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sending.join()
    # Expect no more memory than for what has come, and for one step
    assert most < 8 << 20
