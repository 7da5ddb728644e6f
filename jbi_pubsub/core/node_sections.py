"""Sections of a configuration for nodes: the node, its log, its gateway, its networks."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from .section import Limit, Port, Section, Term, Wait


class DomainSection(Section, frozen=True):
    """A domain: what is found by the same lookup services, `jbi trader serve`."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    """Number of the domain, another one for each."""
    name: str = ""
    """Name that people call it by."""
    central: tuple[str, ...] = ()
    """host:port of lookup services in which services of all domains are registered as well as in those of their own."""
    traders: tuple[str, ...] = ()
    """host:port of lookup services of other domains, at most 16: their traders are asked for what is not here."""


class NodeSection(Section, frozen=True):
    """A node: lookup service, delegate, types and archive in one process, `jbi node start`."""

    folder: str = ""
    """Where its identity is kept, and what its parts keep unless their own sections name other places, of one node at a
    time. "": jbi-pubsub/node in $XDG_STATE_HOME, or in ~/.local/state."""
    name: str = ""
    """Name that people call it by; "" is the host's name. Publishers find its delegate by ("node", name)."""
    lookup: Literal["own", "join"] = "own"
    """Whether it has a lookup service of its own, or is found through others alone."""
    archive: bool = True
    """Whether it keeps what publishers mark as persistent, and [[keep]] rules name."""
    types: bool = True
    """Whether it has a type repository."""
    gateway: bool = False
    """Whether it serves clients in any language over HTTP, as [gateway] says."""
    drain_seconds: Wait = 5.0
    """Seconds that deliveries may go on when it stops."""
    events: bool = True
    """Whether connections and sequences that are made, changed and gone are told as objects of type `jbi.Event`."""
    statistics_seconds: Wait = 10.0
    """Between two statistics of it as objects of type `jbi.Measurement`; 0 makes none."""
    announce_seconds: Term = 2.0
    """Between two announcements on its networks: who it is, and what it can give."""
    node_timeout: Term = 10.0
    """Seconds without an announcement after which another node is gone."""
    sequence_timeout: Term = 30.0
    """Seconds after which what a node published that is gone is not there any more; it is back as soon as that is."""
    object_seconds: Term = 60.0
    """Seconds for which other nodes can get an object again, of publishers that say no expiration."""
    max_hops: Annotated[int, msgspec.Meta(ge=1, le=255)] = 20
    """Nodes that pass on what this one says, one after the other."""
    hash: Literal["md5", "sha256", "blake2b"] = "md5"
    """Names of messages between nodes: a name, no proof."""
    compression: Literal["none", "zlib", "bz2", "lzma"] = "none"
    """Compression of what it says to other nodes."""
    reorder_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.005
    """Seconds within which datagrams overtake each other on its networks: nothing is asked for before."""
    cache_bytes: Limit = 256 << 20
    """Bytes that it keeps of what was said, to give it to those who lack it."""
    durable_cache: Limit = 10_000
    """Messages that hold until they are said otherwise, of all nodes: registrations, schemas, durable objects."""
    processed_hashes: Limit = 1_000_000
    """Messages that are remembered as complete, so that they do not come again."""
    ack_ranges: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    """Ranges of what it holds of others in an announcement; the rest comes in the next ones."""
    query_seconds: Term = 30.0
    """Seconds for which a query waits for other nodes, if it says nothing else."""
    reachable: tuple[Literal["delegate", "lookup"], ...] = ("delegate", "lookup")
    """Servers of this node that applications at other nodes reach through the networks (`jbi --node`); none: ()."""
    answer: bool = True
    """Whether it answers queries of other nodes from its archive."""
    silent_receivers: bool = True
    """Whether nodes may be there that hear and say nothing: all that is published goes out. If not, only objects of
    types that a node's subscribers want."""
    persist_elsewhere: bool = False
    """Whether other nodes are asked to keep what its publishers mark as persistent: they may do so then without an
    archive here."""
    volunteer: bool = True
    """Whether it keeps in its archive what other nodes ask for."""
    volunteers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 5
    """Other nodes that are to keep each registration."""
    offer_seconds: Term = 2.0
    """The longest that it waits by chance before it offers to keep something: the fewer offer of many."""


class LogSection(Section, frozen=True):
    """Where a node's log goes; `jbi node set` changes all but the file while it runs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of what is logged: this, and what is worse."""
    file: str = ""
    """File that it is written to; "" is stderr."""
    file_bytes: Limit = 10 << 20
    """A file that has grown to so many bytes becomes FILE.1, and that FILE.2; what was FILE.2 goes."""
    syslog: str = ""
    """Socket (/dev/log) or host:port (UDP) of a syslog that errors are told as well; "" for none."""
    journald: bool = False
    """Whether errors are told to the systemd journal as well."""


class GatewaySection(Section, frozen=True):
    """HTTP for clients in any language, `jbi gateway`."""

    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback it needs [tls] and `token`."""
    port: Port = 8170
    """0 takes a free one."""
    names: tuple[str, ...] = ()
    """Host names that clients reach it by, beside localhost, addresses, `host` and this host's own name; others are
    refused."""
    token: str = ""
    """File with the secret that clients send (Authorization: Bearer); it is made when it is missing. "": none is
    asked for, on loopback alone."""
    delegate: tuple[str, ...] = ()
    """Name and location of the delegate that it publishes through; none: any."""


class NetworkSection(Section, frozen=True):
    """A network of a node, `[network.NAME]`; a node may have several, and passes on what it hears."""

    plugin: str = "udp"
    """Kind of the link: udp, tcp, zenoh, local (within a process), or a plug-in `network.X`."""
    group: str = "239.74.66.73"
    """Multicast group, IPv4 or IPv6 (ff05::4a42); "" for none, and `peers` alone. Of tcp and zenoh the address to
    listen at, where a group is all of them."""
    port: Port = 4162
    """Its port, the same for all; 0 of tcp and zenoh: nobody connects to us."""
    interfaces: tuple[str, ...] = ()
    """Names of interfaces; without any, all that can multicast."""
    peers: tuple[str, ...] = ()
    """host:port of nodes that are sent to one by one, where multicast does not go."""
    ttl: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1
    """Routers that multicast passes, and one."""
    rate: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    """Bytes a second that this node sends at most; 0: it is found, as losses tell, from 1 Mbit/s on: slower links say
    theirs."""
    block: Annotated[int, msgspec.Meta(ge=64, le=60_000)] = 1_360
    """Bytes of data in a datagram."""
    send_buffer: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    """Bytes of the socket's buffer; 0: as the system has it."""
    receive_buffer: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 4 << 20
    """As for sending."""
    reduced_relay: bool = False
    """Whether publications alone are carried on from it and to it: what was lost there is asked for on the network
    where it came from, by those who are there."""
    area: Annotated[str, msgspec.Meta(pattern="^([A-Za-z][A-Za-z0-9-]{0,31})?$")] = ""
    """Area that it is of. From other areas the objects come that somebody here wants, by nodes that are on networks of
    both, and no word of other nodes there."""
    key: str = ""
    """File with the secret that all nodes of this network have; it is made when it is missing. "certificates": nodes
    whose certificate [tls] ca has signed give each other their keys. "": nothing is sealed, on loopback alone."""


CERTIFICATES: Final = "certificates"
"""A network's key where each node has its own."""
NETWORK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
