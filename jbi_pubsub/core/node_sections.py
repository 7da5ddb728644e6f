"""Sections of a configuration for nodes: the node, its log, its gateway, its networks."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from .section import Limit, Port, Section, Term, Wait


class DomainSection(Section, frozen=True):
    """A domain: the services in the same lookup services, `jbi trader serve`."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    """Number of the domain, unique."""
    name: str = ""
    """Name of the domain for people."""
    central: tuple[str, ...] = ()
    """host:port of lookup services that have the services of all domains, in addition to the domain's own ones."""
    traders: tuple[str, ...] = ()
    """host:port of lookup services of other domains, at most 16. Their traders are queried for services that are not
    found here."""


class NodeSection(Section, frozen=True):
    """A node: lookup service, delegate, types and archive in one process, `jbi node start`."""

    folder: str = ""
    """Folder of its identity, and of the data of its parts unless their sections name other places; for one node at a
    time. "": jbi-pubsub/node in $XDG_STATE_HOME, or in ~/.local/state."""
    name: str = ""
    """Name of the node for people; "" is the host's name. Publishers find its delegate by ("node", name)."""
    lookup: Literal["own", "join"] = "own"
    """"own": it has a lookup service; "join": it uses only others."""
    archive: bool = True
    """Keep objects that publishers mark as persistent, and those of [[keep]] rules."""
    types: bool = True
    """Have a type repository."""
    gateway: bool = False
    """Serve clients in any language over HTTP, as [gateway] says."""
    drain_seconds: Wait = 5.0
    """Seconds for the remaining deliveries when it stops."""
    events: bool = True
    """Publish the opening, change and end of connections and sequences as objects of type `jbi.Event`."""
    statistics_seconds: Wait = 10.0
    """Seconds between two statistics of the node as objects of type `jbi.Measurement`; 0: none."""
    announce_seconds: Term = 2.0
    """Seconds between two announcements on its networks: its identity, and the messages that it has."""
    node_timeout: Term = 10.0
    """Seconds after which another node counts as gone of which nothing comes: more than `announce_seconds`, as some
    announcements are lost."""
    sequence_timeout: Term = 30.0
    """Seconds after which the publications of a node that is gone end; they return with the node."""
    object_seconds: Term = 60.0
    """Seconds in which other nodes can request an object again, for publishers without an expiration."""
    max_hops: Annotated[int, msgspec.Meta(ge=1, le=255)] = 20
    """Nodes in sequence that forward this node's messages, and their repairs; nodes behind them get neither."""
    hash: Literal["md5", "sha256", "blake2b"] = "md5"
    """Hash for the names of messages between nodes; not used for security."""
    compression: Literal["none", "zlib", "bz2", "lzma"] = "none"
    """Compression of messages to other nodes."""
    reorder_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.005
    """Seconds by which datagrams may be reordered on its networks; missing ones are requested after that."""
    cache_bytes: Limit = 256 << 20
    """Bytes of messages that are kept in memory for nodes that miss them."""
    cache_disk: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes of messages that are kept in `folder` when `cache_bytes` is full; 0: none."""
    durable_cache: Limit = 10_000
    """Messages that are valid until they are replaced, of all nodes: registrations, schemas, durable objects."""
    processed_hashes: Limit = 1_000_000
    """Completed messages that are remembered, to ignore repetitions."""
    ack_ranges: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    """Ranges of its own messages in an announcement, and of other nodes'; the rest follows in the next ones."""
    query_seconds: Term = 30.0
    """Seconds that a query waits for another node that says nothing, unless the query says its time."""
    reachable: tuple[Literal["delegate", "lookup"], ...] = ("delegate", "lookup")
    """Servers of this node that applications at other nodes reach through the networks (`jbi --node`); none: []."""
    answer: bool = True
    """Answer queries of other nodes from its archive."""
    silent_receivers: bool = True
    """Assume nodes that receive and never send: all publications are sent. If false: only objects of types that a
    node's subscribers want."""
    persist_elsewhere: bool = False
    """Request other nodes to keep objects that its publishers mark as persistent; publishers may then do so without an
    archive here."""
    volunteer: bool = True
    """Keep objects in its archive at the request of other nodes."""
    volunteers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 5
    """Number of other nodes that should keep each registration's objects."""
    offer_seconds: Term = 2.0
    """Longest random delay before it offers to keep a registration's objects; it limits the number of offers."""


class LogSection(Section, frozen=True):
    """Log of a node; `jbi node set` changes all keys but the file while it runs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    file: str = ""
    """File of the log; "" is stderr."""
    file_bytes: Limit = 10 << 20
    """Bytes at which the file is renamed to FILE.1, and that to FILE.2; an older FILE.2 is deleted."""
    syslog: str = ""
    """Socket (/dev/log) or host:port (UDP) of a syslog that gets errors, too; "": none."""
    journald: bool = False
    """Send errors to the systemd journal, too."""


class GatewaySection(Section, frozen=True):
    """HTTP for clients in any language, `jbi gateway`."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback it needs [tls] and `token`."""
    port: Port = 8170
    """0: any free port."""
    names: tuple[str, ...] = ()
    """Host names for clients in addition to localhost, addresses, `host` and this host's own name; other names are
    refused."""
    token: str = ""
    """File with the secret that clients send (Authorization: Bearer); it is made if it is missing. "": no secret, on
    loopback only."""
    delegate: tuple[str, ...] = ()
    """Name and location of the delegate that it publishes through; empty: any."""


class NetworkSection(Section, frozen=True):
    """A network of a node, `[network.NAME]`; a node may have several, and forwards messages between them."""

    plugin: str = "udp"
    """Kind of the link: udp, tcp, zenoh, local (within a process), or a plug-in `network.X`."""
    group: str = "239.74.66.73"
    """Multicast group, IPv4 or IPv6 (ff05::4a42); "": none, only `peers`. For tcp and zenoh: the address to listen on;
    a group means all addresses."""
    port: Port = 4162
    """Port of the network, the same for all nodes; 0 with tcp and zenoh: it does not listen."""
    interfaces: tuple[str, ...] = ()
    """Names of interfaces; if empty: all with multicast."""
    peers: tuple[str, ...] = ()
    """host:port of nodes without multicast, which get each datagram separately."""
    ttl: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1
    """Routers that multicast passes, plus one."""
    rate: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    """Bytes a second that this node sends at most, with the headers of IP and UDP, to each of its `peers`; 0:
    determined from losses, from 1 Mbit/s on. Set it for slower links."""
    block: Annotated[int, msgspec.Meta(ge=64, le=60_000)] = 1_360
    """Bytes of data in a datagram."""
    send_buffer: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    """Bytes of the socket's send buffer; 0: the system's default."""
    receive_buffer: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 4 << 20
    """Bytes of the socket's receive buffer; 0: the system's default."""
    reduced_relay: bool = False
    """Forward publications only, from and to this network. Losses are repaired on the network where they occurred, by
    the nodes there."""
    burst_seconds: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0
    """Seconds for which datagrams are gathered and then sent together, for radios that are keyed; 0: none wait."""
    area: Annotated[str, msgspec.Meta(pattern="^([A-Za-z][A-Za-z0-9-]{0,31})?$")] = ""
    """Area of the network. From other areas come only objects that are wanted here, by nodes on networks of both areas,
    and no messages about the nodes there."""
    key: str = ""
    """File with the secret of all nodes of this network; it is made if it is missing. "certificates": nodes with a
    certificate of [tls] ca exchange keys. "": no encryption, on loopback only."""


CERTIFICATES: Final = "certificates"
"""A network's key where each node has its own."""
NETWORK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
