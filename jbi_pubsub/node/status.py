"""Status of a node's networks, for who may administer it."""

from __future__ import annotations

import msgspec

from jbi_pubsub.core.status import Count, Measure, Status


class PeerStatus(Status, frozen=True):
    """Another node, as it is heard."""

    id: str = ""
    name: str = ""
    epoch: Count = 0
    network: str = ""
    """Network where it was heard first."""
    heard: Measure = 0.0
    """Seconds since it was heard last."""
    loss: Measure = 0.0
    """Percent of our datagrams that have not come to it, as it says."""
    registrations: Count = 0
    """Registrations of its publishers that are relayed to this node."""
    roles: list[str] = msgspec.field(default_factory=list)
    addresses: list[str] = msgspec.field(default_factory=list)


class NetworkStatus(Status, frozen=True):
    """A network of a node: its link, and what went over it."""

    name: str = ""
    plugin: str = ""
    place: str = ""
    """Group, port and interfaces, or peers."""
    peers: Count = 0
    """Nodes that were heard here first."""
    sent: Count = 0
    """Datagrams."""
    sent_bytes: Count = 0
    received: Count = 0
    received_bytes: Count = 0
    repairs: Measure = 0.0
    """Percent of the datagrams sent that were sent again."""
    rate: Measure = 0.0
    """Bytes a second that it may send now."""
    trouble: str = ""
    faults: dict[str, Count] = msgspec.field(default_factory=dict)
    """Datagrams that were refused, by cause."""


class NetworksStatus(Status, frozen=True):
    """The networks of a node."""

    links: list[NetworkStatus] = msgspec.field(default_factory=list)
    peers: list[PeerStatus] = msgspec.field(default_factory=list)
    own: Count = 0
    """Registrations that this node tells others of."""
    published: Count = 0
    """Registrations of other nodes that are known here."""
    waiting: Count = 0
    """Objects that wait for those before them."""
    kept: Count = 0
    """Registrations of other nodes that this one keeps for them."""
    lacking: Count = 0
    """Registrations of its own that fewer other nodes keep than are to."""
    faults: dict[str, Count] = msgspec.field(default_factory=dict)
    troubles: list[str] = msgspec.field(default_factory=list)
    """Things that the bridge between the networks and the delegate can't do now."""
