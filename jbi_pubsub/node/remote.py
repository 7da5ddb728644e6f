"""Other nodes and the sequences that they publish: tables. One thread at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .bodies import LeftOutBody, SequenceBody
from .ordering import ObjectOrder

SEQUENCES_MOST: Final = 10_000
"""Sequences of one node; of all together ten times as many."""
ENDED_SECONDS: Final = 30.0
"""For the last objects of a sequence that has ended."""


@dataclass(slots=True)
class _OtherNode:
    """A node, when it was heard last (monotonic seconds), and what its subscribers want."""

    epoch: int
    heard: float
    wanted: Wanted = EVERYTHING


@dataclass(slots=True)
class RemoteSequence:
    """A registration of another node. `body` None: its objects have come before it."""

    origin: bytes
    epoch: int
    body: SequenceBody | None = None
    order: ObjectOrder[InfoObject | LeftOutBody] = field(default_factory=ObjectOrder)
    ended: float = 0.0
    """When its end was told (monotonic seconds); 0.0: it stands."""

    def is_over(self, now: float, seconds: float) -> bool:
        """Whether it has ended, and its last object has come, or can't come any more. `seconds`: that objects live
        which say no expiration."""
        if not self.ended or self.body is None:
            return False
        has_all = self.order.next > self.body.last
        life = ENDED_SECONDS if has_all else max(ENDED_SECONDS, self.body.expiration or seconds)
        return now - self.ended > life


class RemoteSequences:
    """See the module."""

    def __init__(self) -> None:
        self._sequences: dict[str, RemoteSequence] = {}
        self._nodes: dict[bytes, _OtherNode] = {}
        """Nodes that are heard, or were not long ago."""

    def __iter__(self) -> Iterator[RemoteSequence]:
        return iter(self._sequences.values())

    def get(self, uid: str) -> RemoteSequence | None:
        """A sequence by its registration."""
        return self._sequences.get(uid)

    def counts(self) -> Counter[bytes]:
        """Number of sequences of each node that stand."""
        return Counter(each.origin for each in self if each.body is not None and not each.ended)

    def known(self) -> list[SequenceBody]:
        """Sequences as their nodes say them, of those that are heard."""
        return [each.body for each in self if each.body is not None and each.origin in self._nodes]

    def look(self, peers: Mapping[bytes, NodePeer], now: float, *, timeout: float, seconds: float) -> None:
        """Forget nodes that have not been heard for `timeout`, and sequences that are over; see is_over."""
        for origin, peer in peers.items():
            self.hear(origin, peer.epoch, now)
        for origin in [origin for origin, node in self._nodes.items() if now - node.heard > timeout]:
            del self._nodes[origin]
        for uid in [uid for uid, each in self._sequences.items() if each.is_over(now, seconds)]:
            del self._sequences[uid]

    def hear(self, origin: bytes, epoch: int, now: float) -> _OtherNode:
        """A node is there. What it said before it was started anew is over."""
        node = self._nodes.get(origin)
        if node is None or epoch > node.epoch:
            node = self._nodes[origin] = _OtherNode(epoch, now)
            for uid in [uid for uid, e in self._sequences.items() if e.origin == origin and e.epoch < epoch]:
                del self._sequences[uid]
        node.heard = now
        return node

    def of(self, uid: str, message: NodeMessage) -> RemoteSequence | None:
        """The sequence of which a node says something. None: it is another node's, or over, or one too many."""
        node = self._nodes.get(message.origin)
        if node is not None and 0 < message.epoch < node.epoch:
            return None
        found = self._sequences.get(uid)
        if found is None:
            own = sum(each.origin == message.origin for each in self)
            if own >= SEQUENCES_MOST or len(self._sequences) >= 10 * SEQUENCES_MOST:
                return None
            found = self._sequences[uid] = RemoteSequence(message.origin, message.epoch)
        return found if found.origin == message.origin else None

    def is_alone(self) -> bool:
        """Whether no other node is known."""
        return not self._nodes

    def is_wanted(self, type_: TypeName) -> bool:
        """Whether subscribers somewhere want objects of a type."""
        interests = [each.wanted.types for each in self._nodes.values()]
        return any(types is None or any(each.type == type_ for each in types) for types in interests)

    def demand(self, type_: TypeName, demand: str) -> bool:
        """Whether subscribers somewhere demand something of a type's objects."""
        wanted = [each for node in self._nodes.values() for each in node.wanted.types or ()]
        return any(each.type == type_ and demand in each.demands for each in wanted)
