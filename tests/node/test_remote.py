"""Other nodes: what they want, as long as it can reach them. Pure."""

from __future__ import annotations

import pytest

from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.node.remote import RemoteSequences
from jbi_pubsub.protocol.wanted import Wanted, WantedType

TRACK, OTHER = TypeName("track", "1.0"), TypeName("other", "1.0")
BRAVO = b"b" * 16


@pytest.mark.unit
def test_a_node_that_is_gone_wants_what_it_did_as_long_as_objects_live() -> None:
    # Given a node that wants tracks
    remote = RemoteSequences()
    peers = {BRAVO: NodePeer("bravo", (), (), 1, 0, 0.0, 0.0)}
    remote.look(peers, 0.0, timeout=30.0, seconds=60.0)
    remote.hear(BRAVO, 1, 0.0).wanted = Wanted(1, (WantedType(TRACK),))
    # When it has not been heard for longer and longer
    told = []
    for now in (0.0, 40.0, 89.0, 91.0):
        remote.look({}, now, timeout=30.0, seconds=60.0)
        told.append((remote.is_wanted(TRACK), remote.is_wanted(OTHER), remote.is_alone()))
    # Expect it to be counted as long as what is said may live until it is back
    assert told == [(True, False, False), (True, False, True), (True, False, True), (False, False, True)]
    # and again from when it is back
    remote.look(peers, 100.0, timeout=30.0, seconds=60.0)
    assert remote.is_wanted(TRACK)
