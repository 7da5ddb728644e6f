"""The emulator of datagrams over real sockets: each member hears all others through its segment, as told to be."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core import guard
from jbi_pubsub.core.errors import ConfigurationError, PortInUseError
from jbi_pubsub.network import emulator
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.emulator import NetworkEmulator
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.tcp import TcpLink
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.topology import NetworkTopology

from .emulated import altered, link, nodes, own, port

GROUPS = """
[segment.lan.member]
alpha = { group = "239.192.1.1:47001" }
bravo = { group = "239.192.1.2:47001" }
charlie = { at = "127.0.0.1:1", node = "127.0.0.1:2" }
"""
SECONDS = 20.0
QUICK = ExchangeSettings(announce_seconds=0.3, round_trip=0.02)


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    """Nothing that nobody expected has happened."""
    yield
    assert guard.faults() == {}


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """opened(topology) runs its emulator; opened(topology, member) is a link there."""
    with ExitStack() as stack:

        def open_(topology: NetworkTopology, *member: str, **given: Any) -> Any:
            if not member:
                return stack.enter_context(NetworkEmulator(topology, **given))
            made = link(topology, "lan", *member)
            stack.callback(made.close)
            return made

        yield open_


def heard(at: UdpLink, count: int, seconds: float = SECONDS) -> list[bytes]:
    """What comes there, until it is so much, or nothing has come for so many seconds."""
    found: list[bytes] = []
    (sock,) = at.sockets()
    sock.settimeout(seconds)
    while len(found) < count:
        try:
            found.append(sock.recv(65_535))
        except TimeoutError:
            break
    return found


def test_each_hears_all_others_once_and_nobody_itself_twice(opened: Callable[..., Any]) -> None:
    # Given three on a perfect segment, two at groups and one between two ports
    topology = own(GROUPS)
    running = opened(topology)
    alpha, bravo, charlie = (opened(topology, name) for name in ("alpha", "bravo", "charlie"))
    # When each says something, and alpha the last word
    for each, said in ((alpha, b"a"), (bravo, b"b"), (charlie, b"c" * 60_000), (alpha, b"end")):
        each.send([said])
    # Expect it at all others, and one's own at a group as ever
    assert sorted(heard(alpha, 4)) == [b"a", b"b", b"c" * 60_000, b"end"]
    assert sorted(heard(bravo, 4)) == [b"a", b"b", b"c" * 60_000, b"end"]
    assert sorted(heard(charlie, 3)) == [b"a", b"b", b"end"]
    wait_for(running, "delivered", 8)
    counts = running.status()["segments"]["lan"]
    assert (counts["received"], counts["delivered"], counts["lost"], counts["bytes"]) == (4, 8, 0, 60_005)


def test_pairs_of_ports_may_be_of_either_ip(opened: Callable[..., Any]) -> None:
    # Given two nodes between ports, one of IPv6
    topology = own(GROUPS.replace('group = "239.192.1.2:47001"', 'at = "127.0.0.1:3", node = "127.0.0.1:4"'))
    bravo = msgspec.structs.replace(
        topology.segment["lan"].member["bravo"], at=f"[::1]:{port()}", node=f"[::1]:{port()}"
    )
    topology = altered(topology, "lan", member=topology.segment["lan"].member | {"bravo": bravo})
    opened(topology)
    six, four = opened(topology, "bravo"), opened(topology, "charlie")
    # Expect either to hear the other
    six.send([b"of six"])
    assert heard(four, 1) == [b"of six"]
    four.send([b"of four"])
    assert heard(six, 1) == [b"of four"]


def test_the_same_ones_are_lost_by_a_seed_and_others_by_another(opened: Callable[..., Any]) -> None:
    # Given a loss of 20 %, and 400 datagrams, three times
    found = []
    for seed in (1, 1, 2):
        topology = altered(own(GROUPS), "lan", loss=0.2)
        with NetworkEmulator(topology, seed=seed) as running:
            alpha, bravo = opened(topology, "alpha"), opened(topology, "bravo")
            got: list[bytes] = []
            for number in range(400):
                alpha.send([b"%d" % number])
                if number % 50 == 49:  # a socket's buffer is small
                    wait_for(running, "delivered", 2 * number + 2, "lost")
                    got += bravo.receive(bravo.sockets()[0])
            counts = running.status()["segments"]["lan"]
        found.append(got)
        # Expect about that share, and all that came to be counted
        assert 400 * 0.8 - 32 <= len(got) <= 400 * 0.8 + 32
        assert counts["received"] == 400
        assert counts["delivered"] + counts["lost"] == 800
    # Expect the same ones for the same seed
    assert found[0] == found[1] != found[2]


def wait_for(running: NetworkEmulator, what: str, count: int, *more: str) -> None:
    """Until so many are counted."""
    until = time.monotonic() + SECONDS
    while sum(running.status()["segments"]["lan"][each] for each in (what, *more)) < count:
        assert time.monotonic() < until, running.status()
        time.sleep(0.001)


@pytest.mark.row("G-119")
def test_a_slow_segment_takes_its_time_and_a_far_one_its_delay(opened: Callable[..., Any]) -> None:
    # Given 10,000 bytes a second, and 0.1 s on the way
    topology = altered(own(GROUPS), "lan", rate=10_000, delay=0.1)
    opened(topology)
    alpha, bravo = opened(topology, "alpha"), opened(topology, "bravo")
    begun = time.monotonic()
    for _ in range(5):
        alpha.send([bytes(1_000)])
    # Expect five datagrams of 1,000 bytes to take 0.6 s at least
    assert len(heard(bravo, 5)) == 5
    assert time.monotonic() - begun >= 0.6


@pytest.mark.row("G-119")
def test_some_are_overtaken_and_some_come_twice(opened: Callable[..., Any]) -> None:
    topology = altered(own(GROUPS), "lan", reorder=0.3, reorder_seconds=0.1, duplication=0.2)
    running = opened(topology)
    alpha, bravo = opened(topology, "alpha"), opened(topology, "bravo")
    for number in range(100):
        alpha.send([b"%03d" % number])
    wait_for(running, "received", 100)
    got = heard(bravo, 200, 0.5)
    # Expect all of them, out of order, and some twice
    assert len(set(got)) == 100
    assert got != sorted(got)
    assert 105 <= len(got) <= 140


def test_nothing_passes_in_an_outage_and_the_script_goes_on_behind_it(opened: Callable[..., Any]) -> None:
    # Given an outage from the beginning to 0.3 s, and a script
    text = (
        "segment.lan.outages = [[0, 0.3]]"
        + GROUPS
        + '[[change]]\nat = 0.3\nsegment = "lan"\nmember = "bravo"\nloss = 1\n'
    )
    topology = own(text)
    done: list[tuple[float, bool]] = []
    running = opened(topology, changed=lambda change: done.append((change.at, change.down)))
    alpha, bravo, charlie = (opened(topology, name) for name in ("alpha", "bravo", "charlie"))
    # Expect what is said meanwhile to come to nobody, and what is said after to charlie alone, as bravo loses all
    number = 0
    while len(done) < 3:
        number += 1
        alpha.send([b"early %d" % number])
        wait_for(running, "received", number)
        time.sleep(0.01)
    alpha.send([b"late"])
    came = heard(charlie, 1)
    assert came == [b"late"] or came[0] == b"early %d" % number  # the last of them may be behind the end
    assert heard(bravo, 1, 0.1) == []
    # Until somebody changes that
    running.change("lan", "bravo", loss=0.0)
    while not heard(bravo, 1, 0.05):
        alpha.send([b"again"])
    with pytest.raises(ConfigurationError, match="no 'delta' is emulated"):
        running.change("lan", "delta", loss=0.0)


def test_what_is_under_way_is_bounded(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a way that takes a minute, and room for 10,000 bytes
    monkeypatch.setattr(emulator, "FLYING_BYTES", 10_000)
    topology = altered(own(GROUPS), "lan", delay=60)
    running = opened(topology)
    alpha = opened(topology, "alpha")
    for _ in range(20):
        alpha.send([bytes(1_000)])
    wait_for(running, "no_room", 30)
    assert running.status()["under_way"] == 10


def test_strangers_are_not_passed_on(opened: Callable[..., Any]) -> None:
    # Given somebody who is no node, and speaks to a port of the emulator
    topology = own(GROUPS)
    running = opened(topology)
    bravo, charlie = opened(topology, "bravo"), opened(topology, "charlie")
    host, _, number = topology.segment["lan"].member["charlie"].at.partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"strange", (host, int(number)))
        wait_for(running, "strange", 1)
    # Expect that to come to nobody, and a node's word to come
    charlie.send([b"good"])
    assert heard(bravo, 1) == [b"good"]


def test_a_second_emulator_of_the_same_addresses_is_refused_and_leaves_nothing(opened: Callable[..., Any]) -> None:
    topology = own(GROUPS)
    opened(topology)
    with pytest.raises(PortInUseError, match=r"segment lan, member alpha.*End the other emulator"):
        NetworkEmulator(topology)


def test_a_stream_passes_whole_and_hears_of_its_outage(opened: Callable[..., Any]) -> None:
    # Given a server of TCP, of which an address is told
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        topology = own('[segment.lan]\nhost = "127.0.0.3"\ndelay = 0.05\ntcp = ["127.0.0.1:1"]\n')
        topology = altered(topology, "lan", tcp=(f"127.0.0.1:{number}",))
        running = opened(topology)
        with socket.create_connection(("127.0.0.3", number), timeout=SECONDS) as sock:
            server.settimeout(SECONDS)
            other, _ = server.accept()
            begun = time.monotonic()
            other.sendall(b"I am at 127.0.0.1")
            # Expect it to come late, with not a byte changed; and the connection to end in an outage
            assert sock.recv(100) == b"I am at 127.0.0.1"
            assert time.monotonic() - begun >= 0.05
            running.change("lan", down=True)
            with pytest.raises((ConnectionError, AssertionError)):
                assert sock.recv(100)
            other.close()
        assert running.status()["segments"]["lan"] == {"connections": 1, "bytes_up": 0, "bytes_down": 17}


@pytest.mark.row("G-06", "G-12")
def test_nodes_hear_all_messages_once_through_a_loss_of_a_fifth(eventually: Callable[..., Any]) -> None:
    # Given two nodes, and 20 % of the datagrams lost on each way, requests and repairs among them
    topology = altered(own(GROUPS[: GROUPS.index("charlie")]), "lan", loss=0.2)
    with NetworkEmulator(topology, seed=3) as running, nodes(topology) as both:
        alpha, bravo = both.values()
        eventually(lambda: alpha.network.peers() and bravo.network.peers())
        # When either says a hundred messages of three blocks each
        bodies = {name: [b"%s %d" % (name.encode(), each) + bytes(3_000) for each in range(100)] for name in both}
        for mine, yours in zip(bodies["alpha"], bodies["bravo"], strict=True):
            alpha.say(mine)
            bravo.say(yours)
        eventually(lambda: len(alpha.heard) >= 100 and len(bravo.heard) >= 100, what=running.status)
        # Expect all of them at the other one, once
        assert sorted(each.body for each in bravo.heard) == sorted(bodies["alpha"])
        assert sorted(each.body for each in alpha.heard) == sorted(bodies["bravo"])
        assert {each.kind for each in alpha.heard} == {DatagramKind.PUBLICATION}
        assert running.status()["segments"]["lan"]["lost"] > 60


@pytest.mark.row("G-166")
def test_nodes_on_tcp_hear_each_other_again_behind_an_outage(eventually: Callable[..., Any]) -> None:
    # Given a node that listens, and one that connects to it over an emulated way
    heard: dict[str, list[bytes]] = {"listens": [], "connects": []}
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as free:
            number = free.getsockname()[1]
        topology = own('[segment.way]\nhost = "127.0.0.4"\nrate = 2_000_000\ndelay = 0.01\ntcp = ["127.0.0.1:1"]\n')
        topology = altered(topology, "way", tcp=(f"127.0.0.1:{number}",))
        running = stack.enter_context(NetworkEmulator(topology))
        links = (TcpLink("127.0.0.1", number), TcpLink(peers=(("127.0.0.4", number),)))
        made = {}
        for name, its in zip(heard, links, strict=True):
            deliver = heard[name].append
            node = made[name] = Network(
                name.encode().ljust(16), 1, [NetworkLink(its)], lambda each, to=deliver: to(each.body), QUICK
            )
            node.start()
            stack.callback(node.stop)
        eventually(lambda: all(each.peers() for each in made.values()))
        # When the way fails while messages are under way, and comes back
        bodies = [b"%d" % each + bytes(5_000) for each in range(40)]
        for body in bodies[:20]:
            made["listens"].say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body))
        running.change("way", down=True)
        for body in bodies[20:]:
            made["listens"].say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body))
        running.change("way", down=False)
        # Expect all of them, once
        eventually(lambda: len(heard["connects"]) >= 40, what=running.status)
        assert sorted(heard["connects"]) == sorted(bodies)
        assert running.status()["segments"]["way"]["connections"] >= 2
