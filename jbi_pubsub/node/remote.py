"""Other nodes and the sequences that they publish: tables. One thread at a time.

Rules:
- What a node does not say again is over, as is what it said before it was started anew.
- Of several nodes that say one registration the first has it; when it ends there, or that node is not heard any more,
  it is another one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from jbi_pubsub.core.info_object import InfoObject, TypeName
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.protocol.wanted import EVERYTHING, Wanted

from .bodies import LeftOutBody, SequenceBody
from .ordering import ObjectOrder, WaitingRoom

SEQUENCES_MOST: Final = 10_000
"""Sequences of one node; of all together ten times as many."""
NODES_MOST: Final = 10_000
OTHERS_MOST: Final = 8
"""Further nodes that say the same registration."""
ENDED_SECONDS: Final = 30.0
"""For the last objects of a sequence that has ended."""
UNKNOWN_SECONDS: Final = 120.0
"""For the registration of objects that have come before it."""
SAID_SECONDS: Final = 4_000.0
"""For a sequence to be said again: three times, and some more."""

Thing = InfoObject | LeftOutBody


@dataclass(slots=True)
class _OtherNode:
    """A node, when it was heard last (monotonic seconds), and what its subscribers want."""

    epoch: int
    heard: float
    wanted: Wanted = EVERYTHING
    is_here: bool = True
    is_awaited: bool = True
    """Something that is said now may reach it, should it come back: objects live so long."""


@dataclass(slots=True)
class RemoteSequence:
    """A registration of another node. `body` None: its objects have come before it."""

    origin: bytes
    epoch: int
    order: ObjectOrder[Thing]
    said: float
    """When it was told last, or an object has come where it was not (monotonic seconds)."""
    body: SequenceBody | None = None
    ended: float = 0.0
    """When its end was told; 0.0: it stands."""
    others: dict[bytes, tuple[int, SequenceBody]] = field(default_factory=dict)
    """The same of further nodes, with their starts."""

    def life(self, seconds: float) -> float:
        """Seconds that its objects live; `seconds`: where it does not say."""
        return (self.body.expiration if self.body is not None else 0.0) or seconds

    def lacking(self) -> Iterator[LeftOutBody]:
        """Its last objects, if they have not come although its end was told; nothing where none of it has ever come: we
        may have been late."""
        came, body = self.order.next - 1, self.body
        if body is not None and self.ended and 0 < came < body.last:
            yield LeftOutBody(body.version, body.uid, body.last - came, body.last, lost=body.last - came)

    def is_over(self, now: float, seconds: float) -> bool:
        """Whether it has ended, and its last object has come, or can't come any more. `seconds`: that objects live
        which say no expiration."""
        if self.body is None:
            return now - self.said > UNKNOWN_SECONDS and not len(self.order)
        if now - self.said > SAID_SECONDS:
            return True
        if not self.ended:
            return False
        has_all = self.order.next > self.body.last
        life = ENDED_SECONDS if has_all else max(ENDED_SECONDS, self.life(seconds))
        return now - self.ended > life


class RemoteSequences:
    """See the module."""

    def __init__(self) -> None:
        self._sequences: dict[str, RemoteSequence] = {}
        self._of: Counter[bytes] = Counter()
        """Number of sequences of each node."""
        self._nodes: dict[bytes, _OtherNode] = {}
        """Nodes that are heard, or were once."""
        self.room = WaitingRoom()

    def __iter__(self) -> Iterator[RemoteSequence]:
        return iter(self._sequences.values())

    def get(self, uid: str) -> RemoteSequence | None:
        """A sequence by its registration."""
        return self._sequences.get(uid)

    def counts(self) -> Counter[bytes]:
        """Number of sequences of each node that stand."""
        return Counter(each.origin for each in self if each.body is not None and not each.ended)

    def schemas(self) -> set[bytes]:
        """Names of the schemas that they have."""
        return {each.body.schema for each in self if each.body is not None}

    def standing(self) -> list[tuple[bytes, SequenceBody]]:
        """Sequences that stand, with their nodes."""
        return [(each.origin, each.body) for each in self if each.body is not None and not each.ended]

    def known(self) -> list[SequenceBody]:
        """Sequences as their nodes say them, of those that are heard."""
        return [each.body for each in self if each.body is not None and self._is_here(each.origin)]

    def look(self, peers: Mapping[bytes, NodePeer], now: float, *, timeout: float, seconds: float) -> list[LeftOutBody]:
        """Note which nodes have not been heard for `timeout`, and forget sequences that are over (see is_over); what of
        them has not come."""
        for origin, peer in peers.items():
            self.hear(origin, peer.epoch, now)
        for node in self._nodes.values():
            node.is_here = now - node.heard <= timeout
            node.is_awaited = now - node.heard <= timeout + seconds
        over = {uid: each for uid, each in self._sequences.items() if each.is_over(now, seconds)}
        for uid in over:
            self._forget(uid)
        for each in [each for each in self if each.others and not self._is_here(each.origin)]:
            self._hand_over(each, now)
        return [lacking for each in over.values() for lacking in each.lacking()]

    def hear(self, origin: bytes, epoch: int, now: float) -> _OtherNode:
        """A node is there. What it said before it was started anew is over."""
        node = self._nodes.get(origin)
        if node is None or epoch > node.epoch:
            node = self._nodes[origin] = _OtherNode(epoch, now)
            for uid, each in list(self._sequences.items()):
                each.others = {key: it for key, it in each.others.items() if key != origin or it[0] >= epoch}
                if each.origin == origin and each.epoch < epoch and not self._hand_over(each, now):
                    self._forget(uid)
            if len(self._nodes) > NODES_MOST:
                del self._nodes[min(self._nodes, key=lambda each: self._nodes[each].heard)]
        node.heard, node.is_here, node.is_awaited = now, True, True
        return node

    def of(self, uid: str, message: NodeMessage, now: float) -> RemoteSequence | None:
        """The sequence of which a node says an object. None: it is another node's, or over, or one too many."""
        found = self._opened(uid, message, now)
        if found is not None and found.body is None:
            found.said = now
        return found if found is not None and found.origin == message.origin else None

    def tell(self, message: NodeMessage, body: SequenceBody, now: float) -> Iterable[Thing]:
        """A node says a sequence; objects that wait no more for what the node before might have said."""
        found = self._opened(body.uid, message, now)
        if found is None:
            return ()
        things: Iterable[Thing] = ()
        if found.origin != message.origin:
            is_free = found.body is None or found.ended or not self._is_here(found.origin)
            if not is_free or body.has_ended:
                found.others.pop(message.origin, None)
                if not body.has_ended and len(found.others) < OTHERS_MOST:
                    found.others[message.origin] = message.epoch, body
                return ()
            things = list(found.order.all())
            self._move(found, message.origin, message.epoch)
        found.body, found.said = body, now
        found.ended = now if body.has_ended else 0.0
        if found.ended:
            self._hand_over(found, now)
        return things

    def _opened(self, uid: str, message: NodeMessage, now: float) -> RemoteSequence | None:
        node = self._nodes.get(message.origin)
        epoch = message.epoch or (node.epoch if node is not None else 0)
        if node is not None and epoch < node.epoch:
            return None
        if epoch:
            self.hear(message.origin, epoch, now)
        found = self._sequences.get(uid)
        if found is None and self._of[message.origin] < SEQUENCES_MOST and len(self._sequences) < 10 * SEQUENCES_MOST:
            found = RemoteSequence(message.origin, message.epoch, ObjectOrder(self.room), now)
            self._sequences[uid] = found
            self._of[message.origin] += 1
        return found

    def _hand_over(self, sequence: RemoteSequence, now: float) -> bool:
        """Whether there is another node that has it from now on."""
        origin = next(filter(self._is_here, sequence.others), None)
        if origin is None:
            return False
        epoch, body = sequence.others.pop(origin)
        self._move(sequence, origin, epoch)
        sequence.body, sequence.said, sequence.ended = body, now, 0.0
        return True

    def _move(self, sequence: RemoteSequence, origin: bytes, epoch: int) -> None:
        sequence.others.pop(origin, None)
        self._count(sequence.origin, -1)
        self._count(origin, 1)
        sequence.origin, sequence.epoch = origin, epoch

    def _forget(self, uid: str) -> None:
        gone = self._sequences.pop(uid)
        self._count(gone.origin, -1)
        self.room.size -= gone.order.size

    def _count(self, origin: bytes, by: int) -> None:
        self._of[origin] += by
        if not self._of[origin]:
            del self._of[origin]

    def _is_here(self, origin: bytes) -> bool:
        node = self._nodes.get(origin)
        return node is not None and node.is_here

    def is_alone(self) -> bool:
        """Whether no other node is there."""
        return not any(each.is_here for each in self._nodes.values())

    def is_wanted(self, type_: TypeName, *, is_told: bool = False) -> bool:
        """Whether subscribers somewhere want objects of a type, or at a node that may be back in time for them. A node
        that has not said yet wants everything; `is_told`: nothing."""
        nodes = [each for each in self._nodes.values() if each.is_awaited]
        interests = [each.wanted.types for each in nodes if not is_told or each.wanted is not EVERYTHING]
        return any(types is None or any(each.type == type_ for each in types) for types in interests)

    def demand(self, type_: TypeName, demand: str) -> bool:
        """Whether subscribers somewhere demand something of a type's objects."""
        wanted = [each for node in self._nodes.values() if node.is_here for each in node.wanted.types or ()]
        return any(each.type == type_ and demand in each.demands for each in wanted)
