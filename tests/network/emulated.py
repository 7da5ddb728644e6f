"""Emulated networks of tests: groups and ports that no other test has, and nodes on them."""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.core import toml
from jbi_pubsub.network import topology
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.topology import NetworkTopology, address_of

FOLDER: Final = Path(__file__).parent / "topologies"
_numbers: Final = itertools.count()


def port() -> int:
    """A free one of UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def own(text: str) -> NetworkTopology:
    """A topology with groups and ports of this test alone instead of those that it names."""
    process, test = os.getpid(), next(_numbers)
    first = f"239.{process >> 8 & 127}.{process & 255}"
    groups = {
        each: f"{first}.{(test * 16 + number) % 255}" for number, each in enumerate(dict.fromkeys(_GROUP.findall(text)))
    }
    ports = {each: str(port()) for each in dict.fromkeys(re.findall(r"127\.0\.0\.1:(\d+)", text))}
    for each, mine in groups.items():
        text = re.sub(rf"{re.escape(each)}:\d+", f"{mine}:{20_000 + process % 10_000}", text)
    text = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)
    found = toml.typed(toml.TomlDocument(text), NetworkTopology)
    topology.check(found)
    return found


_GROUP: Final = re.compile(r"(239\.\d+\.\d+\.\d+):\d+")


def link(topology: NetworkTopology, segment: str, member: str) -> UdpLink:
    """The link of a node there."""
    place = topology.segment[segment].member[member]
    if place.group:
        group, number = address_of(place.group, "", is_group=True)
        return UdpLink(group, number, interfaces=("lo",))
    return UdpLink("", address_of(place.node, "")[1], peers=(address_of(place.at, ""),))


class EmulatedNode:
    """A node on all segments where a topology has it."""

    def __init__(self, topology: NetworkTopology, name: str, number: int, **settings: Any) -> None:
        places = [
            (segment, member)
            for segment, of in topology.segment.items()
            for member, each in of.member.items()
            if name in (each.nodes or (member,))
        ]
        self.name = name
        self.heard: list[NodeMessage] = []
        links = [NetworkLink(link(topology, *place)) for place in places]
        settings = {"announce_seconds": 0.3, "round_trip": 0.02} | settings
        self.network = Network(
            os.urandom(15) + bytes((number,)), 1, links, self.heard.append, ExchangeSettings(name=name, **settings)
        )

    def say(self, body: bytes) -> None:
        """Say a reliable publication."""
        self.network.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body))


@contextmanager
def nodes(topology: NetworkTopology, **settings: Any) -> Iterator[dict[str, EmulatedNode]]:
    """All nodes of a topology, running."""
    names = dict.fromkeys(
        name
        for segment in topology.segment.values()
        for member, each in segment.member.items()
        for name in each.nodes or (member,)
    )
    made = {name: EmulatedNode(topology, name, number, **settings) for number, name in enumerate(names)}
    for each in made.values():
        each.network.start()
    try:
        yield made
    finally:
        for each in made.values():
            each.network.stop()


def altered(topology: NetworkTopology, segment: str, **terms: Any) -> NetworkTopology:
    """A topology with other terms of a segment."""
    changed = msgspec.structs.replace(topology.segment[segment], **terms)
    return msgspec.structs.replace(topology, segment=topology.segment | {segment: changed})
