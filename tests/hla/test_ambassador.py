"""The thread that reads a federate's connection: whoever waits for an answer is held up by no pause of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from jbi_pubsub.hla import connection
from jbi_pubsub.hla.connection import FederateLink, FrameSocket
from jbi_pubsub.hla.exceptions import NotConnected
from jbi_pubsub.hla.sessions import FRAME_MOST, LENGTH, whole_frames

CALLS = 50


class Pauses(threading.Event):
    """Notes what is waited for in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(timeout)


def answering(sock: socket.socket) -> None:
    """An RTI that answers each call with its service."""
    got = bytearray()
    while data := sock.recv(65536):
        got += data
        for frame in whole_frames(got, FRAME_MOST):
            if said := [(ticket, "", service) for ticket, service, _ in msgspec.msgpack.decode(frame) if ticket]:
                body = msgspec.msgpack.encode(said)
                sock.sendall(LENGTH.pack(len(body)) + body)


@pytest.fixture
def link() -> Iterator[FederateLink]:
    """A link to an RTI that answers, which tells of callbacks, as a surrogate's does: its thread reads all."""
    near, far = socket.socketpair()
    rti = threading.Thread(target=answering, args=(far,), daemon=True)
    rti.start()
    made = FederateLink(near)
    made.wake = lambda: None
    yield made
    made.close()
    rti.join(10.0)
    far.close()


def test_an_answer_for_who_is_told_of_callbacks_waits_for_no_pause(
    link: FederateLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a link whose pauses and reads are noted
    reads: list[int] = []
    read = FrameSocket.read

    def counted(self: FrameSocket, timeout: float) -> Any:
        said = read(self, timeout)
        reads.append(len(said))
        return said

    monkeypatch.setattr(FrameSocket, "read", counted)
    monkeypatch.setattr(link, "_closed", pauses := Pauses())
    link.ask("first", ())
    pauses.seconds.clear()
    reads.clear()
    # When calls are made one after the other
    assert [link.ask("service", ()) for _ in range(CALLS)] == ["service"] * CALLS
    # Expect no pause between two reads, and each of them to have waited until something came
    assert not any(pauses.seconds)
    assert len(reads) <= CALLS + 1
    assert all(reads)


def test_what_came_is_there_though_whoever_reads_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given callbacks in several frames, which the caller reads himself
    near, far = socket.socketpair()
    monkeypatch.setattr(FederateLink, "_run", lambda self: None)  # noqa: ARG005
    link = FederateLink(near)
    for begin in range(0, 100, 20):
        body = msgspec.msgpack.encode([(0, "told", [number]) for number in range(begin, begin + 20)])
        far.sendall(LENGTH.pack(len(body)) + body)
    # When Ctrl-C comes somewhere in the middle of each reading
    left = [7, 55, 93]
    fixed = connection._fixed

    def interrupted(value: Any) -> Any:
        if left and left[0] == value:
            del left[0]
            raise KeyboardInterrupt
        return fixed(value)

    monkeypatch.setattr(connection, "_fixed", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            link.taken(1, 5.0)
    # Expect each of them once, in order
    assert link.taken(200, 5.0) == [("told", (number,)) for number in range(100)]
    link.close()
    far.close()


def test_an_answer_behind_much_else_is_waited_for_as_long_as_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a slow line, over which a second passes until what stands before an answer has come
    monkeypatch.setattr("jbi_pubsub.hla.connection.ANSWER_SECONDS", 0.3)
    near, far = socket.socketpair()
    link = FederateLink(near)
    bodies = [msgspec.msgpack.encode(each) for each in ([(0, "time_advance_grant", [1.0])], [(1, "", 7)])]
    data = b"".join(LENGTH.pack(len(body)) + body for body in bodies)

    def say() -> None:
        for at in range(0, len(data), 4):
            time.sleep(0.1)
            far.sendall(data[at : at + 4])

    thread = threading.Thread(target=say, name="line")
    thread.start()
    # Expect it to be waited for; and where nothing comes, not for long
    assert link.ask("query_galt", ()) == 7
    thread.join()
    with pytest.raises(NotConnected, match="has not answered"):
        link.ask("query_galt", ())
    link.close()
    far.close()
