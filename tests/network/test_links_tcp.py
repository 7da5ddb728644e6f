"""Links of TCP over real sockets: hubs, meshes and rings, ends that come back, and ends that mean no good."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.network.links import tcp
from jbi_pubsub.network.links.tcp import HELLO, ID_SIZE, TcpLink

from .linked import Driven, driven, free_port


def port_of(host: str = "127.0.0.1") -> int:
    return free_port(socket.SOCK_STREAM, host)


def is_ended(sock: socket.socket) -> bool:
    """Whether the other end has left, whatever it said before."""
    try:
        while sock.recv(1_000):
            pass
    except ConnectionResetError:
        return True
    return True


def has(link: Any, count: int) -> bool:
    return len(link.status()["connections"]) == count


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before it connects again."""
    monkeypatch.setattr(tcp, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(tcp, "LONGEST_PAUSE", 0.1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_datagrams_come_whole_and_in_order_both_ways(host: str) -> None:
    port = port_of(host)
    with driven(TcpLink(host, port), TcpLink(peers=[(host, port)])) as net:
        net.until(lambda: has(net.links[0], 1) and has(net.links[1], 1))
        said = [b"%04d" % at + bytes(at * 13 % 60_000) for at in range(300)]
        net.send(1, said)
        net.send(0, [b"back"])
        net.until(lambda: len(net.came[0]) == 300 and net.came[1])
        assert net.came == [said, [b"back"]]


def test_a_link_that_listens_at_all_addresses_is_found_by_both_versions_of_ip() -> None:
    port = port_of()
    links = [TcpLink(port=port), TcpLink(peers=[("127.0.0.1", port)]), TcpLink(peers=[("::1", port)])]
    with driven(*links) as net:
        net.until(lambda: has(links[0], 2))
        net.send(1, [b"by 4"])
        net.send(2, [b"by 6"])
        net.until(lambda: all(net.came) and len(net.came[0]) == 2)
        assert net.came[1:] == [[b"by 6"], [b"by 4"]]


def test_those_who_are_connected_to_one_hear_each_other_once() -> None:
    # Given three links that know one, by itself and in a ring with another
    ports = [port_of() for _ in range(4)]
    here = [("127.0.0.1", port) for port in ports]
    links = [
        TcpLink(*here[0]), TcpLink(*here[1], peers=here[:1]), TcpLink(peers=here[:1]), TcpLink(peers=here[:2]),
    ]  # fmt: skip
    with driven(*links) as net:
        net.until(lambda: has(links[0], 3) and has(links[1], 2) and has(links[3], 2))
        for at in range(4):
            net.send(at, [b"from %d" % at])
        net.until(lambda: all(len(each) == 3 for each in net.came))
        for _ in range(5):
            net.step()
        assert [sorted(each) for each in net.came] == [
            [b"from %d" % other for other in range(4) if other != at] for at in range(4)
        ]


def test_two_that_know_each_other_keep_one_connection() -> None:
    here = [("127.0.0.1", port_of()) for _ in range(2)]
    links = [TcpLink(*here[0], peers=here[1:]), TcpLink(*here[1], peers=here[:1])]
    with driven(*links) as net:
        net.until(lambda: all(has(each, 1) for each in links) and links[0]._id == links[1]._connections[0].id)
        net.send(0, [b"there"])
        net.send(1, [b"back"])
        net.until(lambda: all(net.came))
        for _ in range(30):
            net.step()
        assert all(has(each, 1) for each in links)
        assert net.came == [[b"back"], [b"there"]]


def test_one_that_is_not_there_yet_and_one_that_comes_back_are_found() -> None:
    # Given a link whose peer is not there
    port = port_of()
    with driven(TcpLink(peers=[("127.0.0.1", port)])) as net:
        net.until(lambda: net.links[0].status()["faults"])
        for text in (b"first", b"second"):
            # When it comes, expect to hear it; then it leaves
            with driven(TcpLink("127.0.0.1", port)) as other:

                def heard(other: Driven = other, text: bytes = text) -> bool:
                    other.step(0.001)
                    other.links[0].send([text])
                    return text in net.came[0]

                net.until(heard)
            net.until(lambda: has(net.links[0], 0))


def test_one_that_reads_nothing_loses_what_others_get_and_holds_a_bounded_part() -> None:
    # Given two links, one of which reads nothing
    port = port_of()
    lazy = TcpLink(peers=[("127.0.0.1", port)])
    links = [TcpLink("127.0.0.1", port, send_buffer=100_000), TcpLink(peers=[("127.0.0.1", port)])]
    with driven(lazy) as idle, driven(*links) as net:
        net.until(lambda: (idle.step(0.001), has(links[0], 2))[1])

        # When much is said, expect the other to get all of it, and what waits for the lazy one to be bounded
        said = [b"%06d" % at + bytes(10_000) for at in range(3_000)]
        net.send(0, said)
        net.until(lambda: len(net.came[1]) == 3_000)
        assert net.came[1] == said
        assert links[0].status()["lost"] > 0
        assert max(len(each.going) for each in links[0]._connections) < 120_000


def test_what_waits_for_one_that_is_slow_is_what_it_takes_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link to one that takes 20,000 bytes a second, on a clock of ours
    now = [time.monotonic()]
    monkeypatch.setattr(tcp.time, "monotonic", lambda: now[0])
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with driven(TcpLink(peers=[("127.0.0.1", listening.getsockname()[1])])) as net:
            slow, _ = listening.accept()
            with slow:
                slow.settimeout(30.0)
                slow.sendall(HELLO + bytes(ID_SIZE))
                net.until(lambda: has(net.links[0], 1), timeout=1e9)
                # When more is said than it takes, for twenty seconds
                for _ in range(20):
                    for _ in range(10):
                        while net.links[0].send([bytes(1_000)]):
                            pass
                        slow.recv(2_000, socket.MSG_WAITALL)
                        net.step(0.0)
                        now[0] += 0.1
                # Expect little of it to wait, as that grows old
                assert net.links[0].waiting() < 120_000


def test_what_is_to_go_waits_for_the_one_that_has_left_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link that nobody has ever connected to, which says what it says to nobody
    now = [time.monotonic()]
    monkeypatch.setattr(tcp.time, "monotonic", lambda: now[0])
    port = port_of()
    with driven(TcpLink("127.0.0.1", port)) as net:
        assert net.links[0].send([b"early"]) == 1
        # When one comes, and leaves
        with driven(TcpLink(peers=[("127.0.0.1", port)])) as other:
            net.until(lambda: (other.step(0.001), has(net.links[0], 1))[1], timeout=1e9)
            assert net.links[0].send([b"here"]) == 1
        net.until(lambda: has(net.links[0], 0), timeout=1e9)
        # Expect what is said meanwhile not to be taken
        assert net.links[0].send([b"meanwhile"]) == 0
        # until it is away for long
        now[0] += tcp.AWAY_SECONDS
        assert net.links[0].send([b"late"]) == 1


def test_where_nobody_takes_anything_the_network_waits() -> None:
    port = port_of()
    with (
        driven(TcpLink(peers=[("127.0.0.1", port)])) as lazy,
        driven(TcpLink("127.0.0.1", port, send_buffer=100_000)) as net,
    ):
        net.until(lambda: (lazy.step(0.001), has(net.links[0], 1))[1])
        taken = 0
        while more := net.links[0].send([bytes([taken % 256]) * 10_000] * 10):
            taken += more
            assert taken < 10_000
        assert net.links[0].waiting() >= 100_000

        # When it is read, expect it to go on, and nothing to be lost
        net.until(lambda: (lazy.step(0.001), net.links[0].waiting() == 0)[1])
        assert net.links[0].send([b"more"]) == 1
        assert net.links[0].status()["lost"] == 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it does not speak as a node of a network"),
        (HELLO + bytes(ID_SIZE) + struct.pack("!I", 1 << 31), "it sends bytes that are not a datagram"),
        (HELLO + bytes(ID_SIZE) + bytes(4), "it sends bytes that are not a datagram"),
    ],
)
def test_whoever_speaks_otherwise_is_put_out(said: bytes, why: str) -> None:
    port = port_of()
    with driven(TcpLink("127.0.0.1", port)) as net, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(said)
        net.until(lambda: net.links[0].status()["faults"] == {why: 1})
        sock.settimeout(20.0)
        assert is_ended(sock)


def test_whoever_is_silent_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HELLO_SECONDS", 0.1)
    monkeypatch.setattr(tcp, "SILENT_SECONDS", 0.2)
    port = port_of()
    with (
        driven(TcpLink("127.0.0.1", port)) as net,
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as polite,
    ):
        polite.sendall(HELLO + bytes(ID_SIZE))
        net.until(lambda: has(net.links[0], 1))
        net.until(lambda: net.links[0].status()["faults"] == {"silent for too long": 2})


def test_connections_are_bounded_and_another_host_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link for four connections, which one host has
    monkeypatch.setattr(tcp, "CONNECTIONS_MOST", 4)
    port = port_of()
    with driven(TcpLink("127.0.0.1", port)) as net:
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
        try:
            net.until(lambda: net.links[0].status()["faults"] == {"too many connections": 2})

            # When another host comes, expect it to have the place of one of those
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as elsewhere:
                elsewhere.bind(("127.0.0.9", 0))
                elsewhere.connect(("127.0.0.1", port))
                elsewhere.sendall(HELLO + bytes(ID_SIZE))
                net.until(lambda: has(net.links[0], 1))
                assert net.links[0].status()["faults"]["its place is another's"] == 1
        finally:
            for each in many:
                each.close()


def test_where_no_more_can_be_accepted_it_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a process that has no room for another socket
    monkeypatch.setattr(tcp, "ACCEPT_SECONDS", 0.05)
    port = port_of()
    with driven(TcpLink("127.0.0.1", port)) as net:
        listener = net.links[0]._listener  # type: ignore[attr-defined]  # to have it fail
        full = [True]

        class Full:
            def accept(self) -> Any:
                if full[0]:
                    raise OSError(24, "Too many open files")
                return listener.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(listener, name)

        net.links[0]._listener = Full()  # type: ignore[attr-defined]  # as above
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(HELLO + bytes(ID_SIZE))
            net.until(lambda: net.links[0].status()["faults"])

            # Expect it not to be asked in a circle, and to accept when there is room
            began = time.process_time()
            for _ in range(20):
                net.step(0.01)
            assert net.links[0].status()["faults"]["Too many open files"] <= 10
            assert time.process_time() - began < 1.0
            full[0] = False
            net.until(lambda: has(net.links[0], 1))


def test_where_no_more_can_be_connected_it_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    make = socket.socket

    def full(*_: Any) -> socket.socket:
        raise OSError(24, "Too many open files")

    port = port_of()
    monkeypatch.setattr(tcp.socket, "socket", full)
    link = TcpLink(peers=[("127.0.0.1", port)])
    assert link.status()["faults"] == {"Too many open files": 1}
    monkeypatch.setattr(tcp.socket, "socket", make)
    with driven(TcpLink("127.0.0.1", port), link) as net:
        net.until(lambda: has(link, 1))


def test_what_can_not_be_is_told() -> None:
    with pytest.raises(ConfigurationError, match="neither listens nor connects") as told:
        TcpLink()
    assert "peers" in told.value.hint
    with pytest.raises(ConfigurationError, match="has no address"):
        TcpLink(peers=[("no.such.host.invalid", 1)])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError, match="in use") as told:
        TcpLink("127.0.0.1", taken.getsockname()[1])
    assert "another port" in told.value.hint
