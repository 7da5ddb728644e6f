"""Nodes that do not all hear each other, over each kind of link: what one says comes at all others, once, in order."""

from __future__ import annotations

import importlib.util
import json
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.fault_counts import FAULTS_MOST
from jbi_pubsub.network.datagram import DATA_MOST, Datagram, DatagramKind, DatagramMode, packed
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.links.tcp import TcpLink
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.links.zenoh import ZenohLink
from jbi_pubsub.network.message import MessageForm, NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms

from .linked import free_port, new_group

COUNT = 300


def udp_peers() -> list[DatagramLink]:
    """A chain of four."""
    here = [("::1", free_port(host="::1")) for _ in range(4)]
    ways = [here[1:2], [here[0], here[2]], [here[1], here[3]], here[2:3]]
    return [UdpLink("", port, peers=peers) for (_, port), peers in zip(here, ways, strict=True)]


def udp_group() -> list[DatagramLink]:
    """A group of three, and one that is a peer of one of these."""
    group, port, other = new_group(), free_port(), free_port()
    near: list[DatagramLink] = [UdpLink(group, port, interfaces=["lo"]) for _ in range(2)]
    between = UdpLink(group, port, interfaces=["lo"], peers=[("127.0.0.1", other)])
    return [*near, between, UdpLink("", other, peers=[("127.0.0.1", port)])]


def tcp() -> list[DatagramLink]:
    """One that listens, and three that connect to it."""
    at = ("127.0.0.1", free_port(socket.SOCK_STREAM))
    return [TcpLink(*at), *(TcpLink(peers=[at]) for _ in range(3))]


def zenoh() -> list[DatagramLink]:
    """A router, and three clients."""
    if importlib.util.find_spec("zenoh") is None:
        pytest.skip("eclipse-zenoh is not installed (extra zenoh)")
    at, name = ("127.0.0.1", free_port(socket.SOCK_STREAM)), uuid.uuid4().hex
    router = ZenohLink(name, host=at[0], port=at[1], mode="router")
    return [router, *(ZenohLink(name, peers=[at], mode="client") for _ in range(3))]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., list[tuple[Network, list[Any]]]]]:
    """Nodes on such links, started, each with what it has heard."""
    alone = tmp_path / "zenoh.json5"
    alone.write_text(json.dumps({"scouting": {"multicast": {"enabled": False}}}))
    monkeypatch.setenv("ZENOH_CONFIG", str(alone))
    made: list[Network] = []

    def start(*of_nodes: list[DatagramLink], block: int = 1_360) -> list[tuple[Network, list[Any]]]:
        found = []
        for number, links in enumerate(of_nodes, 1):
            heard: list[NodeMessage] = []
            settings = ExchangeSettings(name=f"node {number}", announce_seconds=0.3, form=MessageForm(block=block))
            on = [NetworkLink(link, SideTerms(20e6)) for link in links]
            made.append(Network(bytes([number]) * 16, 1, on, heard.append, settings))
            made[-1].start()
            found.append((made[-1], heard))
        return found

    yield start
    for network in made:
        network.stop()


@pytest.mark.parametrize("links", [udp_peers, udp_group, tcp, zenoh])
def test_each_node_hears_all_that_others_say(
    links: Callable[[], list[DatagramLink]], nodes: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given four nodes that know each other
    made = nodes(*([each] for each in links()))
    eventually(
        lambda: all(len(network.peers()) == 3 for network, _ in made), what=lambda: [n.status() for n, _ in made]
    )

    # When the first and the last say messages of several blocks each
    said = {}
    for at in (0, 3):
        me = bytes([at + 1]) * 16
        said[me] = [b"%d %04d" % (at, number) + bytes(3_000) for number in range(COUNT)]
        for body in said[me]:
            made[at][0].say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body, me), 20.0)

    # Expect all others to hear all of them, once
    wanted = {0: COUNT, 1: 2 * COUNT, 2: 2 * COUNT, 3: COUNT}
    eventually(lambda: all(len(made[at][1]) >= count for at, count in wanted.items()), timeout=20.0)
    for at, (_, heard) in enumerate(made):
        for me, bodies in said.items():
            if me != bytes([at + 1]) * 16:
                assert sorted(each.body for each in heard if each.origin == me) == bodies
    assert all(network.status()["faults"] == {} for network, _ in made)


@pytest.mark.row("G-39")
def test_a_node_is_on_networks_of_several_kinds_at_once(
    nodes: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a node on networks of three kinds, and one more on each of them
    group, port, ports, at = new_group(), free_port(), (free_port(), free_port()), free_port(socket.SOCK_STREAM)
    between = [
        UdpLink(group, port, interfaces=["lo"]), UdpLink("", ports[0], peers=[("127.0.0.1", ports[1])]),
        TcpLink("127.0.0.1", at),
    ]  # fmt: skip
    made = nodes(
        between, [UdpLink(group, port, interfaces=["lo"])], [UdpLink("", ports[1], peers=[("127.0.0.1", ports[0])])],
        [TcpLink(peers=[("127.0.0.1", at)])],
    )  # fmt: skip
    eventually(lambda: all(len(network.peers()) == 3 for network, _ in made))
    # When each says something, expect it at all others, once
    for number, (network, _) in enumerate(made):
        network.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d" % number), 20.0)
    eventually(lambda: all(len(heard) >= 3 for _, heard in made))
    for number, (network, heard) in enumerate(made):
        assert sorted(each.body for each in heard) == [b"%d" % each for each in range(4) if each != number]
        assert network.status()["faults"] == {}


def test_faults_are_counted_by_few_causes_whatever_comes(
    nodes: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a node, and datagrams of all versions and kinds that there are not, with any blocks, hops and numbers
    name = uuid.uuid4().hex
    [(network, _)] = nodes([LocalLink(name)])
    good = packed(Datagram(DatagramKind.QUERY, DatagramMode.UNRELIABLE, bytes(16), bytes(16), b"four", number=1))
    changes = [(2, bytes([each])) for each in range(2, 256)] + [(3, bytes([each])) for each in range(100, 256)]
    changes += [(6, bytes([each, 1])) for each in range(2, 256)]
    changes += [(8, struct.pack("!II", each, 1)) for each in range(2, 500)]
    # When they come
    other = LocalLink(name)
    for count, (at, new) in enumerate(changes, 1):
        other.send([good[:at] + new + good[at + len(new) :]])
        if count % 10 == 0 or count == len(changes):  # it has room for so many
            eventually(lambda count=count: sum(network.status()["faults"].values()) == count)
    other.close()
    # Expect each to be counted, and those of the same cause together
    faults = network.status()["faults"]
    assert len(faults) == FAULTS_MOST + 1
    assert faults["others"] > 100


@pytest.mark.row("G-57")
@pytest.mark.parametrize("links", [udp_peers, udp_group])
def test_blocks_of_the_largest_datagrams_go_over_udp(
    links: Callable[[], list[DatagramLink]], nodes: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given nodes whose datagrams are as large as UDP has them
    made = nodes(*([each] for each in links()), block=DATA_MOST)
    eventually(lambda: all(len(network.peers()) == 3 for network, _ in made))
    # When one says a message of four of them, and one of the largest block alone
    said = [bytes(3 * DATA_MOST) + b"end", b"x" * DATA_MOST]
    for body in said:
        made[0][0].say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body), 20.0)
    # Expect both at all others
    eventually(lambda: all(len(heard) == 2 for _, heard in made[1:]))
    assert all(sorted(each.body for each in heard) == sorted(said) for _, heard in made[1:])
