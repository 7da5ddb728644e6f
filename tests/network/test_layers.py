"""Layers of a node's network: messages above, connections between them, and links that know bytes alone."""

from __future__ import annotations

import ast
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import jbi_pubsub.network
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.links.tcp import TcpLink
from jbi_pubsub.network.links.udp import UdpLink

from .linked import driven, free_port, new_group

pytestmark = pytest.mark.row("G-127")

ROOM = Path(jbi_pubsub.network.__file__).parent
MESSAGES = {"message", "datagram", "log", "missing", "recovery", "cache", "durables", "bodies", "flow", "own"} | {
    "disk",
    "holding",
}
"""Message manager: marshals, cuts, keeps, recovers."""
CONNECTIONS = {"exchange", "relay", "side", "network", "peers", "announcing", "deliveries"}
"""Network manager: connections, and what goes on from one to others."""


def _imported(path: Path) -> set[str]:
    """Modules of the network that a file imports: the first word behind the room's name."""
    tree = ast.parse(path.read_text())
    names = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    names += [name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names]
    start = "jbi_pubsub.network."
    return {name.removeprefix(start).partition(".")[0] for name in names if name.startswith(start)}


@pytest.mark.parametrize("path", sorted(ROOM.glob("links/*.py")), ids=lambda path: path.stem)
def test_a_link_knows_nothing_of_what_it_carries(path: Path) -> None:
    assert _imported(path) <= {"links"}


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_messages_know_neither_connections_nor_links(name: str) -> None:
    assert not _imported(ROOM / f"{name}.py") & (CONNECTIONS | {"links"})


@pytest.mark.parametrize("name", sorted(CONNECTIONS - {"network"}))
def test_links_and_threads_are_known_to_the_network_alone(name: str) -> None:
    assert not _imported(ROOM / f"{name}.py") & {"links", "network"}


def local() -> list[DatagramLink]:
    return [LocalLink("layers") for _ in range(2)]


def group() -> list[DatagramLink]:
    name, port = new_group(), free_port()
    return [UdpLink(name, port, interfaces=["lo"]) for _ in range(2)]


def peers() -> list[DatagramLink]:
    ports = free_port(), free_port()
    return [UdpLink("", ports[at], peers=[("127.0.0.1", ports[1 - at])]) for at in range(2)]


def tcp() -> list[DatagramLink]:
    at = ("127.0.0.1", free_port(socket.SOCK_STREAM))
    return [TcpLink(*at), TcpLink(peers=[at])]


@pytest.mark.parametrize("links", [local, group, peers, tcp])
def test_a_link_carries_bytes_that_are_no_datagrams_as_they_are(links: Callable[[], list[DatagramLink]]) -> None:
    # Given bytes that look like headers of versions that nobody knows, and bytes by chance
    chance = random.Random(1)
    said = [b"JN\xff" + bytes(60), b"\0", b"JN\1\3" + chance.randbytes(200), *(chance.randbytes(1_300) for _ in "123")]
    with driven(*links()) as both:
        # When they are sent, once both ends are there, expect them as they were
        both.until(lambda: (both.send(0, [b"there?"]), both.came[1])[1])
        both.send(0, said)
        both.until(lambda: [each for each in both.came[1] if each != b"there?"] == said)
