"""Connections through the network: intact whatever is lost, bounded, and ended with the node that they come to."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import BackPressureError, WireError
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.node import tunnel
from jbi_pubsub.node.streams import STREAMS_PER_NODE, VERSION, WINDOW, StreamReset

from .tunnels import TunnelNode

Make = Callable[..., TunnelNode]


@pytest.fixture
def make() -> Iterator[Make]:
    """make("name", loss=0.2) starts a node; all are on one segment, and stopped at the end."""
    segment = f"tunnel-{os.urandom(6).hex()}"
    with ExitStack() as stack:

        def made(name: str, *, loss: float = 0.0, epoch: int = 1, id: bytes = b"") -> TunnelNode:  # noqa: A002
            node = TunnelNode(segment, name, epoch=epoch, loss=loss, id=id)
            stack.callback(node.stop)
            node.start()
            return node

        yield made


@pytest.fixture
def pair(make: Make, eventually: Any) -> Callable[..., tuple[TunnelNode, TunnelNode]]:
    """pair(loss=0.2) starts two nodes, and waits until they hear each other."""

    def made(loss: float = 0.0) -> tuple[TunnelNode, TunnelNode]:
        near, far = make("near", loss=loss), make("far", loss=loss)
        eventually(lambda: far.id in near.peers() and near.id in far.peers())
        return near, far

    return made


def connect(node: TunnelNode, to: TunnelNode, service: str = "echo") -> socket.socket:
    """A connection by a door."""
    host, _, port = node.tunnels.door(to.id, service).address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60.0)


def echoed(sock: socket.socket, size: int) -> tuple[str, str]:
    """Hashes of what is sent over a connection, and of what comes back."""
    data = random.Random(size).randbytes(size)
    sender = threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    got = hashlib.sha256()
    while part := sock.recv(65_536):
        got.update(part)
    sender.join()
    return hashlib.sha256(data).hexdigest(), got.hexdigest()


@pytest.mark.row("G-170")
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_megabyte_both_ways_comes_intact(pair: Any, loss: float) -> None:
    # Given two nodes that lose a share of all datagrams
    near, far = pair(loss)
    # When something connects, and sends; expect the same back, and the end of it
    with connect(near, far) as sock:
        sent, got = echoed(sock, 1 << 20)
    assert sent == got
    # and the far server to know by which node it came
    assert [caller for caller, _ in far.callers] == [f"node-{near.id.hex()[:8]}"]


@pytest.mark.row("G-170")
def test_the_door_says_where_the_service_is_there(pair: Any) -> None:
    near, far = pair()
    door = near.tunnels.door(far.id, "echo")
    assert (door.endpoints, door.node, door.service) == (("10.0.0.3:7", "[::1]:7"), far.id.hex(), "echo")
    assert door.address.startswith("127.0.0.1:")
    assert near.tunnels.door(far.id, "echo") == door, "there is one door to a service"


def test_ten_connections_at_once(pair: Any) -> None:
    near, far = pair(0.05)
    found: list[tuple[str, str]] = []

    def play(size: int) -> None:
        with connect(near, far) as sock:
            found.append(echoed(sock, size))

    threads = [threading.Thread(target=play, args=(100_000 + number,)) for number in range(10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({sent for sent, _ in found}) == 10
    assert all(sent == got for sent, got in found)


def test_a_slow_reader_stops_its_own_stream_alone(pair: Any, eventually: Any) -> None:
    # Given a connection whose far end sends back more than its client reads
    near, far = pair()
    with connect(near, far) as slow, connect(near, far) as quick:
        slow.setblocking(False)
        sent = 0

        def is_full() -> bool:
            nonlocal sent
            with suppress(BlockingIOError):
                while True:
                    sent += slow.send(bytes(65_536))
            return sent > WINDOW

        eventually(is_full)
        # Expect another one to go on
        for _ in range(20):
            quick.sendall(b"x" * 50_000)
            got = 0
            while got < 50_000:
                got += len(quick.recv(65_536))
        # and all that was taken to come when it is read at last
        slow.setblocking(True)
        slow.settimeout(60.0)
        ender = threading.Thread(target=lambda: slow.shutdown(socket.SHUT_WR))
        ender.start()
        got = 0
        while part := slow.recv(65_536):
            got += len(part)
        ender.join()
        assert got == sent


def test_one_that_ends_its_half_still_gets_the_answer(pair: Any) -> None:
    near, far = pair()
    with connect(near, far) as sock:
        sock.sendall(b"question")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b"question"
        assert sock.recv(100) == b""


def test_what_the_far_node_does_not_serve_is_refused_with_the_reason(pair: Any) -> None:
    near, far = pair()
    for service in ("shell", "10.0.0.1:22", "x" * 299):
        with pytest.raises(WireError, match="it serves no '"):
            near.tunnels.door(far.id, service)
    assert far.tunnels.status()["streams"] == 0


def test_connections_end_with_the_node_that_they_come_to(pair: Any, eventually: Any) -> None:
    # Given an open connection
    near, far = pair()
    with connect(near, far) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        # When the far node is gone without a word, expect the connection reset when it has not been heard long enough
        far.stop(suddenly=True)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    # and no door to it
    eventually(lambda: near.tunnels.status() == {"doors": 0, "streams": 0, "refused": 0})


def test_connections_end_when_the_far_node_was_started_anew(make: Make, eventually: Any) -> None:
    near, far = make("near"), make("far")
    eventually(lambda: far.id in near.peers() and near.id in far.peers())
    with connect(near, far) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        far.stop(suddenly=True)
        again = make("far", epoch=2, id=far.id)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    eventually(lambda: near.id in again.peers())
    eventually(lambda: near.tunnels.status()["doors"] == 0)
    with connect(near, again) as sock:
        sock.sendall(b"y")
        assert sock.recv(1) == b"y"


def test_a_far_server_that_ends_a_connection_ends_it_here(pair: Any) -> None:
    near, far = pair()
    with connect(near, far) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        far.callers[0][1].shutdown(socket.SHUT_RDWR)
        assert sock.recv(1) == b""


def test_a_flood_of_connections_is_refused_and_those_that_stand_go_on(pair: Any, eventually: Any) -> None:
    near, far = pair()
    with ExitStack() as stack:
        first = stack.enter_context(connect(near, far))
        first.sendall(b"x")
        assert first.recv(1) == b"x"
        address = first.getpeername()
        refused = sum(_is_refused(address, stack) for _ in range(STREAMS_PER_NODE + 20))
        assert refused == near.tunnels.status()["refused"] == 21
        first.sendall(b"y")
        assert first.recv(1) == b"y"
        assert near.tunnels.status()["streams"] == STREAMS_PER_NODE
    eventually(lambda: near.tunnels.status()["streams"] == far.tunnels.status()["streams"] == 0)


def _is_refused(address: Any, stack: ExitStack) -> bool:
    try:
        sock = stack.enter_context(socket.create_connection(address, timeout=60.0))
        sock.sendall(b"z")
        return sock.recv(1) != b"z"
    except ConnectionError:
        return True


def test_doors_are_bounded_and_the_one_that_was_idle_longest_gives_way(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair()
    monkeypatch.setattr(tunnel, "DOORS_MOST", 2)
    far.tunnels._services = dict.fromkeys("abcd", far.tunnels._services["echo"])
    first = near.tunnels.door(far.id, "a")
    with connect(near, far, "b") as used:
        used.sendall(b"x")
        assert used.recv(1) == b"x"
        near.tunnels.door(far.id, "c")
        assert near.tunnels.status()["doors"] == 2
        assert near.tunnels.door(far.id, "a").address != first.address
        with connect(near, far, "a") as other:
            other.sendall(b"x")
            assert other.recv(1) == b"x"
            with pytest.raises(BackPressureError, match="2 tunnels are in use"):
                near.tunnels.door(far.id, "d")


def test_a_door_that_nobody_uses_is_shut(pair: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = pair()
    monkeypatch.setattr(tunnel, "DOOR_SECONDS", 0.0)
    address = near.tunnels.door(far.id, "echo").address
    eventually(lambda: near.tunnels.status()["doors"] == 0)
    host, _, port = address.rpartition(":")

    def is_shut() -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(is_shut)


def test_a_door_whose_node_leaves_as_we_stop_is_shut(
    pair: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a door to a node
    near, far = pair()
    host, _, port = near.tunnels.door(far.id, "echo").address.rpartition(":")
    # When that has left, and we stop as it is noticed
    stop = threading.Thread(target=near.tunnels.stop, name="stop")

    def nobody() -> dict[bytes, Any]:
        stop.start()
        eventually(near.tunnels._stopping.is_set)
        return {}

    monkeypatch.setattr(near, "peers", nobody)
    eventually(lambda: stop.ident)
    stop.join(60.0)
    # Expect nobody to listen there any more
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60.0)


def test_a_door_goes_on_when_no_file_was_free_for_a_moment(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a node that can't open one more file, once
    near, far = pair()
    near.tunnels.door(far.id, "echo")
    [door] = near.tunnels._doors.values()
    listener, failed = door.listener, []

    class Failing:
        def accept(self) -> Any:
            if not failed:
                failed.append(True)
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    monkeypatch.setattr(door, "listener", Failing())
    # Expect who comes to be served all the same
    with connect(near, far) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    assert failed


def test_who_stops_resets_what_is_open(make: Make, eventually: Any) -> None:
    near, far = make("near"), make("far")
    eventually(lambda: far.id in near.peers() and near.id in far.peers())
    with connect(near, far) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        far.tunnels.stop()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        far.tunnels.stop = lambda: None  # type: ignore[method-assign]


def test_what_comes_behind_the_end_touches_no_file_of_others(pair: Any, tmp_path: Path) -> None:
    # Given tunnels that have ended, and files that have the numbers of theirs
    near, far = pair()
    number = near.tunnels._wake_out
    near.tunnels.stop()
    with ExitStack() as stack:
        files = [stack.enter_context((tmp_path / f"{each}").open("wb", 0)) for each in range(64)]
        assert any(each.fileno() == number for each in files)
        # When the network still hears something; Expect them untouched
        reset = msgspec.msgpack.encode(StreamReset(VERSION, 7, True, "over"))
        near.tunnels.came(NodeMessage(DatagramKind.STREAM, DatagramMode.UNRELIABLE, reset, far.id))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 64
