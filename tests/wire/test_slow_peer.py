"""A peer that is slow, but takes something all the time, is not cut off; one that takes nothing is."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from jbi_pubsub.core.errors import WireTimeoutError
from jbi_pubsub.core.wire.stream import ITEMS
from jbi_pubsub.core.wire.stream_socket import StreamSocket


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends with small buffers, so that what is sent soon waits for who reads."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return ours, theirs


@pytest.mark.processes
def test_a_frame_may_take_longer_than_the_timeout_while_the_peer_takes_some_of_it() -> None:
    # Given a peer that takes a few kilobytes, then rests for a fifth of the sender's timeout
    ours, theirs = pair()
    got = bytearray()

    def take() -> None:
        while data := theirs.recv(8192):
            got.extend(data)
            time.sleep(0.4)  # the peer's own pace is what is tested

    peer = threading.Thread(target=take)
    peer.start()
    # When a frame is sent to it that needs several timeouts in all
    began = time.monotonic()
    StreamSocket(ours).send(ITEMS, [b"x" * 60_000], timeout=2.0)
    took = time.monotonic() - began
    ours.close()
    peer.join()
    theirs.close()
    # Expect it whole
    assert took > 2.0
    assert len(got) == 60_000 + 5


@pytest.mark.processes
def test_a_peer_that_takes_nothing_is_given_up() -> None:
    ours, theirs = pair()
    with pytest.raises(WireTimeoutError):
        StreamSocket(ours).send(ITEMS, [b"x" * 600_000], timeout=0.1)
    ours.close()
    theirs.close()
