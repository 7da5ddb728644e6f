"""Networks with a key, and without one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.sealing import SEALED_FLAG, SealFault
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.sealing import check_open, seal_of

MARKER = b"<position>34.5 69.2</position>" * 100


class _Nodes:
    """Nodes on local segments, and what each has heard."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._name = uuid4().hex
        self.heard: list[list[bytes]] = []

    def node(self, *sides: tuple[str, str]) -> Network:
        """One more, on these segments, with the secret of each, "" for none."""
        heard: list[bytes] = []
        self.heard.append(heard)
        me = os.urandom(16)
        links = [NetworkLink(LocalLink(self._name + where), seal=seal_of(secret, me)) for where, secret in sides]
        network = Network(me, 1, links, lambda message: heard.append(message.body))
        network.start()
        self._stack.callback(network.stop)
        return network

    def tap(self, where: str) -> LocalLink:
        """Somebody who hears and says what he likes on a segment."""
        link = LocalLink(self._name + where)
        self._stack.callback(link.close)
        return link


@pytest.fixture
def nodes() -> Iterator[_Nodes]:
    with ExitStack() as stack:
        yield _Nodes(stack)


def told(body: bytes) -> NodeMessage:
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body)


@pytest.mark.row("G-179")
def test_nodes_with_one_key_hear_each_other_and_nobody_else_reads_it(
    nodes: _Nodes, eventually: Callable[..., object]
) -> None:
    # Given a relay between two segments, each with a key of its own, and somebody who listens on both
    first, second = nodes.tap("a"), nodes.tap("b")
    alpha = nodes.node(("a", "one" * 20))
    relay = nodes.node(("a", "one" * 20), ("b", "two" * 20))
    nodes.node(("b", "two" * 20))
    # When one node says something
    alpha.say(told(MARKER))
    # Expect that the other two hear it, one of them behind the relay
    eventually(lambda: nodes.heard == [[], [MARKER], [MARKER]])
    # And that whoever listened has datagrams of both, all sealed, none with what was said in it
    for tap in (first, second):
        captured = tap.receive(tap.sockets()[0])
        assert len(captured) > 2
        assert all(each[4] & SEALED_FLAG for each in captured)
        assert not any(MARKER[:30] in each for each in captured)
    # And that there were no faults
    assert relay.status()["faults"] == {}


@pytest.mark.row("G-179", "G-181")
def test_those_with_another_key_or_none_are_counted_and_not_heard(
    nodes: _Nodes, eventually: Callable[..., object]
) -> None:
    # Given nodes with a key, with another one, and with none
    members = [nodes.node(("", secret)) for secret in ("one" * 20, "one" * 20, "two" * 20, "")]
    for number, each in enumerate(members):
        each.say(told(b"%d" % number))
    # Expect that each hears those of its own, and counts the others by cause
    eventually(lambda: nodes.heard[:2] == [[b"1"], [b"0"]])
    eventually(lambda: set(members[0].status()["faults"]) == {SealFault.FORGED, SealFault.OPEN})
    eventually(lambda: set(members[2].status()["faults"]) == {SealFault.FORGED, SealFault.OPEN})
    eventually(lambda: set(members[3].status()["faults"]) == {SealFault.SEALED})
    assert nodes.heard[2:] == [[], []]


@pytest.mark.row("G-181")
def test_what_is_played_again_is_counted_and_comes_once(nodes: _Nodes, eventually: Callable[..., object]) -> None:
    # Given two nodes, and somebody who sends again whatever he has heard
    tap = nodes.tap("")
    alpha, bravo = nodes.node(("", "one" * 20)), nodes.node(("", "one" * 20))
    alpha.say(told(b"once"))
    eventually(lambda: nodes.heard[1] == [b"once"])
    tap.send(tap.receive(tap.sockets()[0]))
    # Expect that it is dropped before it is read
    eventually(lambda: bravo.status()["faults"].get(SealFault.REPLAYED, 0) > 0)
    alpha.say(told(b"twice"))
    eventually(lambda: nodes.heard[1] == [b"once", b"twice"])


def test_beyond_loopback_a_network_has_a_key() -> None:
    # Given a network on loopback, and within the process
    for good in (
        NetworkSection(interfaces=("lo",)),
        NetworkSection(plugin="local"),
        NetworkSection(key="lan.key"),
        NetworkSection(plugin="tcp", key="lan.key"),
    ):
        check_open("lan", good, insecure=False)
    # Expect that these alone may be in clear
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    for bad, where in (
        (NetworkSection(), "all interfaces"),
        (NetworkSection(interfaces=("lo", "eth99")), "on eth99 without"),
        (NetworkSection(interfaces=("x" * 40,)), "x" * 40),
        (NetworkSection(interfaces=("lo",), peers=("127.0.0.1:4162",)), "any interface, by udp"),
        (NetworkSection(plugin="tcp", interfaces=("lo",)), "any interface, by tcp"),
        *((NetworkSection(interfaces=(each,)), each) for each in others),
    ):
        with pytest.raises(ConfigurationError, match="without a key") as info:
            check_open("lan", bad, insecure=False)
        assert where in info.value.message
        assert "[network.lan] key" in info.value.hint
        assert "--insecure" in info.value.hint
        check_open("lan", bad, insecure=True)
