"""Other nodes, as they announce themselves. Pure.

A node is there from its first announcement until nothing has come of it for the time-out. What changes is told, in the
order in which it happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from jbi_pubsub.network.bodies import NodeAnnouncement
from jbi_pubsub.network.datagram import Datagram

PEERS_MOST: Final = 10_000
OVERRUN_LOSS: Final = 50.0
"""Percent of a sender's datagrams."""
OVERRUN_SECONDS: Final = 30.0


class NodePeer(NamedTuple):
    """Facts of another node."""

    name: str
    addresses: tuple[str, ...]
    """HOST:PORT where its own port is."""
    roles: tuple[str, ...]
    epoch: int
    """That of its start."""
    network: int
    """Network where it was heard first, as a number from 0."""
    silent: float
    """Seconds since it was heard."""
    loss: float
    """Percent of its datagrams that did not come lately."""


class PeerEvent(StrEnum):
    """Something that happens to a node."""

    HEARD = "heard"
    """The peer is there."""
    RESTARTED = "restarted"
    """The peer is there with a new epoch."""
    LEFT = "left"
    """Nothing has been heard of it for the time-out."""
    TWIN = "twin"
    """Somebody else speaks under our own id."""


class PeerChange(NamedTuple):
    """An event, and the node that it happened to."""

    event: PeerEvent
    id: bytes
    epoch: int


@dataclass(slots=True)
class _HeardPeer:
    """A node that is heard. `at`: the network where it was heard first."""

    announcement: NodeAnnouncement
    at: int
    heard: float
    overrun_at: float = -inf
    """When it told of great losses last."""


class Peers(dict[bytes, _HeardPeer]):
    """Nodes that are heard, by their ids. One thread at a time. They come by `hear`, and go by `age`."""

    def __init__(self, me: bytes, timeout: float) -> None:
        """`timeout`: seconds without a datagram of a node after which it has left."""
        super().__init__()
        self._me = me
        self._timeout = timeout
        self._changes: list[PeerChange] = []
        self.has_twin = False
        """Somebody else spoke under our id."""

    def epoch(self, origin: bytes) -> int:
        """Number of a node's last start; 0: it is not there."""
        peer = self.get(origin)
        return peer.announcement.epoch if peer is not None else 0

    def is_heard(self, origin: bytes, epoch: int, at: int) -> bool:
        """Whether a node, of that start, announces itself on a network."""
        peer = self.get(origin)
        return peer is not None and peer.at == at and peer.announcement.epoch == epoch

    def is_overrun(self, origin: bytes) -> bool:
        """Whether a node has lost most of what somebody sends, lately: it takes much less than comes."""
        peer = self.get(origin)
        return peer is not None and peer.heard - peer.overrun_at < OVERRUN_SECONDS

    def hear(self, origin: bytes, announcement: NodeAnnouncement, at: int, now: float) -> bool:
        """A node has announced itself; False: it was of an earlier start, or there are too many."""
        known = self.get(origin)
        if known is None:
            if len(self) >= PEERS_MOST:
                return False
            self._changes.append(PeerChange(PeerEvent.HEARD, origin, announcement.epoch))
        elif announcement.epoch < known.announcement.epoch:
            return False
        elif announcement.epoch > known.announcement.epoch:
            self._changes.append(PeerChange(PeerEvent.RESTARTED, origin, announcement.epoch))
        overrun_at = known.overrun_at if known else -inf
        if max(announcement.losses.values(), default=0.0) > OVERRUN_LOSS:
            overrun_at = now
        self[origin] = _HeardPeer(announcement, known.at if known else at, now, overrun_at)
        return True

    def note(self, datagram: Datagram, now: float) -> None:
        """Something has come. Who sends what is its own is there, though its announcements may wait behind the rest."""
        peer = self.get(datagram.origin) if datagram.sender == datagram.origin[:4] else None
        if peer is not None and peer.announcement.epoch == datagram.footer.epoch:
            peer.heard = now

    def hear_twin(self, epoch: int) -> None:
        """Somebody else speaks under our id."""
        if not self.has_twin:
            self.has_twin = True
            self._changes.append(PeerChange(PeerEvent.TWIN, self._me, epoch))

    def age(self, now: float) -> list[bytes]:
        """Those that have left by now."""
        gone = [origin for origin, peer in self.items() if now - peer.heard > self._timeout]
        for origin in gone:
            epoch = self.pop(origin).announcement.epoch
            self._changes.append(PeerChange(PeerEvent.LEFT, origin, epoch))
        return gone

    def changes(self) -> list[PeerChange]:
        """Events since this was asked last."""
        found, self._changes = self._changes, []
        return found

    def facts(self, now: float, losses: Iterable[dict[bytes, float]]) -> dict[bytes, NodePeer]:
        """Each node by its id; `losses`: by sender, in percent, for each network."""
        by_network = list(losses)
        return {
            origin: NodePeer(
                each.announcement.name, each.announcement.addresses, each.announcement.roles,
                each.announcement.epoch, each.at, now - each.heard, by_network[each.at].get(origin[:4], 0.0),
            )
            for origin, each in self.items()
        }  # fmt: skip
