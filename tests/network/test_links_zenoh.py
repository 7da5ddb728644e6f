"""Links over Zenoh: peers, a router between clients, three processes, and what can not be."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.network.links import zenoh
from jbi_pubsub.network.links.zenoh import ZenohLink

from .linked import driven, free_port

pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed (extra zenoh)")

HOST = "127.0.0.1"


@pytest.fixture
def name() -> str:
    """Of a network that nobody else has."""
    return uuid.uuid4().hex


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nobody looks for others by multicast, and no thread stays."""
    file = tmp_path / "zenoh.json5"
    off = {"scouting": {"multicast": {"enabled": False}}, "listen": {"endpoints": [f"tcp/{HOST}:0"]}}
    file.write_text(json.dumps(off))
    monkeypatch.setenv("ZENOH_CONFIG", str(file))
    yield
    assert not [each.name for each in threading.enumerate() if "zenoh" in each.name]


def tcp_port() -> int:
    return free_port(socket.SOCK_STREAM)


def hear_each_other(net: Any) -> None:
    """Each has heard each other one; then nothing is left of that."""
    count = len(net.links)

    def said() -> bool:
        for at in range(count):
            net.links[at].send([b"here %d" % at])
        net.step()
        return all(len(set(each)) == count - 1 for each in net.came)

    net.until(said)
    for at in range(count):
        net.send(at, [b"end %d" % at])
    net.until(lambda: all(sum(one.startswith(b"end") for one in each) == count - 1 for each in net.came))
    for each in net.came:
        each.clear()


@pytest.mark.parametrize("mode", ["peer", "router"])
def test_all_hear_each_other_once_and_in_order(name: str, mode: str) -> None:
    # Given three links: all peers, or a router between two clients
    port = tcp_port()
    others = "peer" if mode == "peer" else "client"
    links = [
        ZenohLink(name, port=port, host=HOST, mode=mode),
        *(ZenohLink(name, peers=[(HOST, port)], mode=others) for _ in range(2)),
    ]
    with driven(*links) as net:
        hear_each_other(net)
        assert ("1 routers, 0 peers" if mode == "router" else "0 routers, 2 peers") in links[1].status()["place"]

        # When each says a lot, expect the others to have all of it as it was, in order, and nobody to hear itself
        said = [[b"%d %05d" % (at, number) + bytes(1_400) for number in range(1_000)] for at in range(3)]
        left = [list(each) for each in said]
        while any(left):
            for at in range(3):
                del left[at][: links[at].send(left[at])]
            net.step(0.0)
        net.until(lambda: all(len(each) == 2_000 for each in net.came))
        for at in range(3):
            for other in range(3):
                heard = [each for each in net.came[at] if each.startswith(b"%d " % other)]
                assert heard == ([] if at == other else said[other])
        assert all(each.is_lossless and each.status()["faults"] == {} for each in links)


def test_one_that_comes_later_is_found(name: str) -> None:
    port = tcp_port()
    with driven(ZenohLink(name, peers=[(HOST, port)], mode="peer"), ZenohLink(name, port=port, host=HOST)) as net:
        hear_each_other(net)


class Line:
    """A line to a port that can stop, with little room on it."""

    def __init__(self, to: int) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self._to = to
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._listener.bind((HOST, 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="line")]
        self._threads[0].start()

    def close(self) -> None:
        self.goes.set()
        for each in (self._listener, *self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        for each in (self._listener, *self._ends):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._ends.append(near)
                far = socket.create_connection((HOST, self._to))
                self._ends.append(far)
                for way in ((near, far), (far, near)):
                    self._threads.insert(0, threading.Thread(target=self._carry, args=way, name="line"))
                    self._threads[0].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4_096):
                if target.getpeername()[1] == self._to:
                    self.goes.wait(60.0)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


STOPS: Final = 7.0
"""Seconds: Zenoh's own patience with what it may not send is five."""


def test_a_line_that_stops_for_a_while_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link over a slow line, with no file of Zenoh's
    monkeypatch.delenv("ZENOH_CONFIG")
    port = tcp_port()
    line = Line(port)
    here = ZenohLink(name, port=port, host=HOST, peers=[(HOST, tcp_port())], mode="router")
    there = ZenohLink(name, peers=[(HOST, line.port)], mode="client", send_buffer=16_384)
    with closing(line), driven(here, there) as net:
        hear_each_other(net)
        said = [b"%05d" % number + bytes(1_400) for number in range(400)]
        left = list(said)
        # When it stops, and what is said has no room on it any more
        line.goes.clear()
        end = time.monotonic() + STOPS
        while time.monotonic() < end:
            del left[: there.send(left)]
            net.step(0.05)
        assert left
        # Expect all of it to come when it goes on, in order, and little of it to have been taken before it could go
        assert there.waiting() <= 16_384 + 1_405
        line.goes.set()
        while left:
            del left[: there.send(left)]
            net.step(0.01)
        net.until(lambda: len(net.came[0]) >= len(said))
        assert net.came[0] == said


def test_what_is_said_while_the_last_one_is_away_waits_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link whose only other one has left
    port = tcp_port()
    there = ZenohLink(name, peers=[(HOST, port)], mode="peer")
    with driven(ZenohLink(name, port=port, host=HOST, mode="peer"), there) as net:
        hear_each_other(net)
        net.links[0].close()
        # When it says something, and the other one is back, expect that to come
        said = [b"%d" % number for number in range(100)]
        assert there.send(said) == 100
        net.links[0] = ZenohLink(name, port=port, host=HOST, mode="peer")
        net.until(lambda: len(net.came[0]) == 100)
        assert net.came[0] == said
        # When it is away for long, expect what is said to be for nobody
        net.links[0].close()
        monkeypatch.setattr(zenoh, "AWAY_SECONDS", 0.1)
        assert there.send(said) == 100
        net.until(lambda: not there.waiting())


SPEAKER = """
import sys, time
from jbi_pubsub.network.links.zenoh import ZenohLink
name, port, text = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
link = ZenohLink(name, peers=[("127.0.0.1", port)], mode="client")
heard = set()
end = time.monotonic() + 60.0
while len(heard) < 2 and time.monotonic() < end:
    link.send([text])
    heard.update(link.receive(link.sockets()[0]))
    time.sleep(0.01)
print(sorted(each.decode() for each in heard), flush=True)
sys.stdin.read()
link.close()
"""


@pytest.mark.processes
def test_three_processes_hear_each_other_through_a_router_in_one_of_them(name: str) -> None:
    # Given a router here, and two processes that connect to it
    port = tcp_port()
    with driven(ZenohLink(name, port=port, host=HOST, mode="router")) as net:
        made = [
            subprocess.Popen(
                [sys.executable, "-c", SPEAKER, name, str(port), text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )
            for text in ("bravo", "charlie")
        ]  # fmt: skip
        try:
            # When all speak, expect each to hear both others
            def heard() -> bool:
                net.links[0].send([b"alpha"])
                return set(net.came[0]) == {b"bravo", b"charlie"}

            net.until(heard)
            told: list[str] = []
            readers = [threading.Thread(target=lambda each=each: told.append(each.stdout.readline())) for each in made]
            for each in readers:
                each.start()

            def all_told() -> bool:
                net.links[0].send([b"alpha"])
                return len(told) == 2

            net.until(all_told)
            assert sorted(told) == ["['alpha', 'bravo']\n", "['alpha', 'charlie']\n"]
        finally:
            for process in made:
                process.communicate(timeout=30.0)
            for each in readers:
                each.join()


def test_where_nobody_reads_the_network_waits_and_nothing_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a link that reads nothing
    monkeypatch.setattr(zenoh, "RECEIVING_MOST", 100)
    port = tcp_port()
    links = [
        ZenohLink(name, port=port, host=HOST, mode="peer", send_buffer=1 << 18),
        ZenohLink(name, peers=[(HOST, port)], mode="peer"),
    ]
    with driven(*links) as net:
        hear_each_other(net)

        # When it is given more and more, expect it to take no more at some time
        said: list[bytes] = []
        refused = 0
        while refused < 20:
            batch = [b"%06d" % (len(said) + at) + bytes(10_000) for at in range(10)]
            taken = links[0].send(batch)
            said += batch[:taken]
            refused = 0 if taken else refused + 1
            assert len(said) < 20_000
            threading.Event().wait(0 if taken else 0.01)
        assert len(links[1]._takes._coming) == 100
        assert 1 << 17 <= links[0].waiting() <= (1 << 18) + 10_006

        # When it reads, expect all of it
        net.until(lambda: len(net.came[1]) == len(said))
        assert net.came[1] == said
        assert links[0].waiting() == 0


def test_what_is_no_datagram_is_counted(name: str) -> None:
    import zenoh as library

    port = tcp_port()
    with driven(ZenohLink(name, port=port, host=HOST, mode="router")) as net:
        config = library.Config()
        for key, value in (("mode", "client"), ("connect/endpoints", [f"tcp/{HOST}:{port}"])):
            config.insert_json5(key, json.dumps(value))
        with library.open(config) as stranger:

            def told() -> bool:
                stranger.put(f"jbi/{name}", bytes(70_000))
                stranger.put(f"jbi/{name}", b"")
                return net.links[0].status()["faults"].get("bytes that are not a datagram", 0) >= 2

            net.until(told)
        assert net.came == [[]]


def test_what_can_not_be_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ({"mode": "prince"}, {"peers": [("nowhere.invalid", 1)], "mode": "client"}):
        with pytest.raises(ConfigurationError, match="Zenoh can't be where network") as told:
            ZenohLink(name, **given)  # type: ignore[arg-type]  # several kinds
        assert "ZENOH_CONFIG" in told.value.hint
    with pytest.raises(ConfigurationError, match="Key Expr"):
        ZenohLink("*/#")
    with socket.create_server((HOST, 0)) as taken, pytest.raises(ConfigurationError, match="in use"):
        ZenohLink(name, port=taken.getsockname()[1], host=HOST)
    monkeypatch.setitem(sys.modules, "zenoh", None)
    with pytest.raises(ConfigurationError, match="not installed") as told:
        ZenohLink(name)
    assert "jbi-pubsub[zenoh]" in told.value.hint
