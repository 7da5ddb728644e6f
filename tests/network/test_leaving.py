"""A node that leaves: what it has said goes out first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, kind_of
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms


def test_what_a_node_has_said_goes_out_before_it_leaves(eventually: Callable[..., Any]) -> None:
    # Given a node that hears, and one on a link of 100,000 bytes a second
    name = f"leaving-{os.urandom(4).hex()}"
    heard: list[bytes] = []
    other = Network(b"o" * 16, 1, [NetworkLink(LocalLink(name))], lambda message: heard.append(message.body))
    leaving = Network(b"l" * 16, 1, [NetworkLink(LocalLink(name), SideTerms(100_000.0))], lambda _: None)
    other.start()
    leaving.start()
    try:
        # When it says 60,000 bytes and leaves
        said = [b"%02d" % number + bytes(998) for number in range(60)]
        for body in said:
            leaving.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body))
        leaving.stop(30.0)
        # Expect all of it
        eventually(lambda: sorted(heard) == said, timeout=10.0)
    finally:
        leaving.stop()
        other.stop()


def test_node_that_leaves_says_how_many_objects_its_link_has_not_taken() -> None:
    # Given a node on a link that takes half of what it is given at first, and then nothing
    class Stuck(LocalLink):
        taken: Sequence[bytes] = ()

        def send(self, datagrams: Sequence[bytes]) -> int:
            if self.taken:
                return 0
            self.taken = datagrams[: len(datagrams) // 2]
            return len(self.taken)

    link = Stuck(f"leaving-{os.urandom(4).hex()}")
    leaving = Network(b"l" * 16, 1, [NetworkLink(link, SideTerms(1e6))], lambda _: None)
    # When it says objects that need two datagrams each, and leaves
    for _ in range(40):
        leaving.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, os.urandom(2_000)))
    leaving.start()
    leaving.stop(0.3)
    # Expect those told that have not gone out as wholes
    taken = sum(kind_of(each) == DatagramKind.PUBLICATION for each in link.taken)
    assert taken
    assert leaving.unsent == 40 - taken // 2
