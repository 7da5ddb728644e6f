"""A node that leaves: what it has said goes out first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
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
