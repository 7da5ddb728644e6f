"""Status of a node's networks: its links, and other nodes as they are heard."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jbi_pubsub.core.status import Count, Measure, Status, counter, gauge

PEERS_TOLD: Final = 100
"""Nodes that a delegate's status tells of, those of which most is lost first; a node itself tells of more."""


class PeerStatus(Status, frozen=True):
    """Another node, as it is heard."""

    id: str = ""
    name: str = ""
    epoch: Count = 0
    network: str = ""
    """Network where it was heard first."""
    heard: Annotated[Measure, gauge("Seconds since another node was heard", "heard_seconds")] = 0.0
    """Seconds since it was heard last."""
    loss: Annotated[Measure, gauge("Percentage of another node's recent datagrams that were lost")] = 0.0
    """Percent of its datagrams that did not come lately."""
    registrations: Annotated[Count, gauge("Registrations of another node that are relayed to this one")] = 0
    """Registrations of its publishers that are relayed to this node."""
    roles: list[str] = msgspec.field(default_factory=list)
    addresses: list[str] = msgspec.field(default_factory=list)


class NetworkStatus(Status, frozen=True):
    """A network of a node: its link, and what went over it."""

    name: str = ""
    plugin: str = ""
    place: str = ""
    """Group, port and interfaces, or peers."""
    peers: Annotated[Count, gauge("Nodes that were first heard on the network")] = 0
    """Nodes that were heard here first."""
    neighbours: Annotated[Count, gauge("Nodes whose datagrams arrive over the network")] = 0
    """Nodes whose datagrams come here, whatever else they are on."""
    sent: Annotated[Count, counter("Datagrams sent to the network")] = 0
    """Datagrams."""
    sent_bytes: Annotated[Count, counter("Bytes sent to the network")] = 0
    received: Annotated[Count, counter("Datagrams received from the network")] = 0
    received_bytes: Annotated[Count, counter("Bytes received from the network")] = 0
    repairs: Measure = 0.0
    """Percent of the datagrams sent that were sent again."""
    repaired: Annotated[Count, counter("Datagrams sent again to the network, among those sent", "repairs")] = 0
    """Datagrams that were sent again."""
    rate: Annotated[Measure, gauge("Bytes a second that may be sent to the network now", "rate_bytes")] = 0.0
    """Bytes a second that it may send now."""
    waiting: Annotated[Count, gauge("Bytes of new blocks that wait for the network", "waiting_bytes")] = 0
    """Bytes of new blocks that wait to go."""
    trouble: Annotated[str, gauge("1: a part of the network can't be used")] = ""
    faults: dict[str, Count] = msgspec.field(default_factory=dict)
    """Datagrams that were refused, by cause."""


class ConflictingSchema(Status, frozen=True):
    """One of several schemas of a type, and who publishes by it."""

    digest: str = ""
    nodes: list[str] = msgspec.field(default_factory=list)
    is_settled: bool = False
    """Whether it was decided that the type has this one."""


class TypeConflict(Status, frozen=True):
    """A type of which nodes have different schemas."""

    name: str = ""
    version: str = ""
    schemas: list[ConflictingSchema] = msgspec.field(default_factory=list)
    differs: str = ""
    """The first declaration in which two of them differ."""


class NetworksStatus(Status, frozen=True):
    """The networks of a node."""

    id: str = ""
    """Our id there: not that of the node, once another one has spoken under it."""
    links: list[NetworkStatus] = msgspec.field(default_factory=list)
    peers: list[PeerStatus] = msgspec.field(default_factory=list)
    nodes: Annotated[Count, gauge("Other nodes that are heard")] = 0
    """Number of other nodes that are heard, also of those that are not told."""
    twin: Annotated[bool, gauge("1: another node speaks under the id of this one")] = False
    """Whether another node speaks under our id."""
    own: Annotated[Count, gauge("Registrations that are announced to other nodes")] = 0
    """Registrations that this node tells others of."""
    published: Annotated[Count, gauge("Registrations of other nodes that are known here")] = 0
    """Registrations of other nodes that are known here."""
    waiting: Annotated[Count, gauge("Objects of other nodes that wait for those before them")] = 0
    """Objects that wait for those before them."""
    lost: Annotated[Count, counter("Objects lost between networks and delegate")] = 0
    """Objects that got lost between the networks and the delegate."""
    kept: Annotated[Count, gauge("Registrations of other nodes whose objects are kept here for them")] = 0
    """Registrations of other nodes that this one keeps for them."""
    lacking: Annotated[Count, gauge("Registrations of this node that too few other nodes keep")] = 0
    """Registrations of its own that fewer other nodes keep than are to."""
    cached_bytes: Annotated[Count, gauge("Bytes of blocks that are kept in memory to be sent again")] = 0
    """Bytes of blocks in memory that can be given again."""
    disk_bytes: Annotated[Count, gauge("Bytes of blocks that are kept on disk to be sent again")] = 0
    """Bytes of blocks on disk that can be given again."""
    faults: dict[str, Count] = msgspec.field(default_factory=dict)
    tunnels: dict[str, Count] = {}
    """`doors` that are open to servers of other nodes, `streams` to and from them, and connections that were `refused`,
    as there were too many."""
    troubles: list[str] = msgspec.field(default_factory=list)
    """Things that the bridge between the networks and the delegate can't do now."""

    def brief(self) -> NetworksStatus:
        """The same with PEERS_TOLD nodes at most."""
        worst = sorted(self.peers, key=lambda each: (-each.loss, each.name, each.id))
        return msgspec.structs.replace(self, peers=worst[:PEERS_TOLD])
