"""A node's networks: its links, the infosphere on them, and the bridge between that and its delegate.

What is published at the node is told to other nodes, and what they publish is relayed to its delegate, by the bridge
that there is: the infosphere is one side of it (see infosphere), the node's own delegate the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.bridge.mirror import Direction, Mirror
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, ProtocolError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.node_sections import CERTIFICATES
from jbi_pubsub.core.sealing import DatagramSealing
from jbi_pubsub.network.datagram import HASHES, DatagramKind
from jbi_pubsub.network.disk import DiskBlocks
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.opening import check_plugin, opened
from jbi_pubsub.network.message import MessageForm, NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.peers import PeerChange, PeerEvent
from jbi_pubsub.network.sealing import MemberSealing, check_open, seal_of
from jbi_pubsub.network.side import SideTerms
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.status.networks import NetworksStatus, NetworkStatus, PeerStatus
from jbi_pubsub.subscriber.owner import user_secret

from .deletions import NodeDeletions
from .identity import Identity
from .infosphere import ANSWERS, Infosphere
from .keeping import DelegateStore
from .persistence import KINDS, STORES, NodePersistence
from .reaching import DELEGATE, named
from .tunnel import TunnelDoor, Tunnels, TunnelService
from .type_conflicts import TypeConflicts

log = logging.getLogger("jbi_pubsub.node")

DRAIN_LOOK: Final = 0.02
"""Seconds between two looks whether all that was published has come to the networks."""
LAST_SECONDS: Final = 1.0
"""For what has come there to go out, at least."""
TOGETHER_BLOCKS: Final = 4
"""Blocks of objects that go together: more cost little less, and the first of them would wait for the last on a slow
network."""


class NodeDirection(Direction):
    """A direction between the networks and the node's delegate. What a node keeps of others it answers with, as they
    may be gone: what has been over the networks before is as it was then."""

    def seen(self, obj: InfoObject) -> InfoObject | None:
        """See Direction."""
        via, name = obj.platform.via, self.target.name
        if name in via:
            via = via[: via.index(name)]
            obj = msgspec.structs.replace(obj, platform=msgspec.structs.replace(obj.platform, via=via, hops=len(via)))
        return super().seen(obj)


class NodeNetworks:
    """The networks of a node. `start` and `stop` are called once, by the same thread."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        name: str,
        servers: Mapping[str, TunnelService],
        server: DisseminationServer,
        twin: Callable[[], None],
        area: str = "",
    ) -> None:
        """Opens the links. `servers`: those that other nodes reach, by name; that of the delegate among them. `twin` is
        called when another node speaks under our id; `area` is that of all these networks. Raises ConfigurationError,
        PortInUseError, StorageError."""
        node = config.node
        self._id, self._delegate = identity.id, server.delegate
        self._names = list(config.network)
        bridge = f"{identity.id}{area and '.' + area}-{identity.epoch}"
        self.infosphere = Infosphere(lambda: self._network, node, bridge)
        self.infosphere.name += area and f"-{area}"
        reachable: dict[str, TunnelService] = {each: servers[each] for each in node.reachable if each in servers}
        self.links: list[DatagramLink] = []
        seals = [_seal(config, each, identity) for each in config.network]
        with ExitStack() as undo:  # whatever fails, nothing of it stays
            self._tunnels = Tunnels(lambda: self._network, reachable)
            undo.callback(self._tunnels.stop)
            for each, section in config.network.items():
                self.links.append(opened(each, section))
                undo.callback(self.links[-1].close)
            links = _with_terms(self.links, config, seals)
            self._network = Network(
                bytes.fromhex(identity.id), identity.epoch, links,
                self._deliver, _settings(config, name, servers[DELEGATE].endpoints, area),
                peers_changed=self._peers_changed, idle=self.infosphere.idle, streams=self._tunnels.came,
            )  # fmt: skip
            undo.callback(self._network.stop)
            self._twin = twin
            # by its id: names are for people, and two nodes may have one
            own = self._own = JbiPlatform(f"node-{identity.id[:8]}", config, ("node", name), bridge)
            undo.callback(own.close)
            self._mirror = _mirror(own, self.infosphere, bridge)
            self._persistence = _persistence(config, identity, self.infosphere, server.delegate, area)
            undo.callback(self._persistence.stop)
            self.conflicts = TypeConflicts(
                self.infosphere, server.registry, config.type_cache(), bytes.fromhex(identity.id), name,
                self._network.peers,
            )  # fmt: skip
            server.service.repositories.nodes = self.conflicts.publishing
            undo.pop_all()

    def deleted(self, ids: Sequence[str]) -> None:
        """Objects were deleted here: others are told."""
        self._persistence.deleted(ids)

    def start(self) -> None:
        """Be there for other nodes."""
        self._persistence.start()
        self._network.start()
        self._tunnels.start()
        self._mirror.start()
        self._own.wanted(self.infosphere.want)
        self.conflicts.say_again()

    def names(self) -> tuple[str, ...]:
        """Names of the nodes that are heard."""
        return tuple(sorted({each.name for each in self._network.peers().values()}))

    def door(self, name: str, service: str) -> TunnelDoor:
        """A way to a server of another node. Raises UnknownUidError, WireError."""
        return self._tunnels.door(named(self._network.peers(), name), service)

    def status(self) -> NetworksStatus:
        """Links, and the nodes that are heard."""
        told, side, peers = self._network.status(), self.infosphere.status(), self._network.peers()
        counts = self.infosphere.registrations()
        links = [
            NetworkStatus(
                name=name, plugin=each["plugin"], place=_place(each),
                peers=sum(peer.network == at for peer in peers.values()), rate=each["rate"],
                sent=each["sent"], sent_bytes=each["sent_bytes"], repairs=each["repairs"], repaired=each["repaired"],
                neighbours=each["neighbours"], waiting=each["waiting"],
                received=each["received"], received_bytes=each["received_bytes"],
                trouble="; ".join(f"{where}: {why}" for where, why in each.get("trouble", {}).items()),
                faults=each.get("faults", {}),
            )
            for at, (name, each) in enumerate(zip(self._names, told["links"], strict=True))
        ]  # fmt: skip
        return NetworksStatus(
            id=self._id,
            links=links,
            peers=[
                PeerStatus(
                    id=origin.hex(), name=each.name, epoch=each.epoch, network=self._names[each.network],
                    heard=round(each.silent, 1), loss=round(each.loss, 1), registrations=counts[origin],
                    roles=list(each.roles), addresses=list(each.addresses),
                )
                for origin, each in peers.items()
            ],
            nodes=len(peers),
            twin=told["twin"],
            cached_bytes=told["cached_bytes"],
            disk_bytes=told["disk_bytes"],
            own=side["own"],
            published=side["published"],
            waiting=side["waiting"], lost=sum(way.counts["lost"] for way in self._mirror.directions),
            kept=len(self._persistence.keeping()),
            lacking=self._persistence.lacking(),
            faults=told["faults"] | side["faults"],
            tunnels=self._tunnels.status(),
            troubles=[trouble for way in self._mirror.directions for trouble in way.status()["trouble"]],
        )  # fmt: skip

    def stop_listening(self) -> None:
        """Take nothing more from other nodes; what has come is the delegate's then."""
        self.infosphere.stop_listening()
        try:
            self._own.flush(LAST_SECONDS)
        except BackPressureError as exc:
            log.warning("the delegate does not take what has come from other nodes: %s", exc)

    def stop(self, drain: float) -> int:
        """Leave: what was said goes on by those who have it. What was published here goes out first; how many objects
        have not within so many seconds."""
        deadline, left = time.monotonic() + drain, 0

        def leave() -> None:
            self._network.stop(max(deadline - time.monotonic(), min(drain, LAST_SECONDS)))

        with ExitStack() as ending:  # from the last to the first, whatever fails
            ending.callback(leave)
            ending.callback(self._persistence.stop)
            ending.callback(self._tunnels.stop)
            ending.callback(self._mirror.close)
            while (left := self._waiting()) and time.monotonic() < deadline:
                time.sleep(DRAIN_LOOK)
            if left:  # whoever waits for room is not waited for
                self._mirror.directions[0].stop()
            self.infosphere.stop_listening()
            self._own.stop_publishing(min(drain, LAST_SECONDS))
        return left + self._network.unsent

    def _waiting(self) -> int:
        """Number of objects at the delegate, and on their way from there, that have not come to the networks."""
        sessions = list(self._delegate.tables.sessions.values())
        coming = sum(each.drain(0.0) for each in sessions if each.name == self._own.client)
        return coming + self._own.waiting() + self._mirror.directions[0].owed()

    def _peers_changed(self, change: PeerChange) -> None:
        """A node has come or left; on the network's delivery thread."""
        if change.event is PeerEvent.TWIN:
            self._twin()
        else:
            self.infosphere.peers_changed(change)

    def _deliver(self, message: NodeMessage) -> None:
        """A message of another node; on the network's delivery thread."""
        try:
            if message.kind in KINDS:
                if message.body:  # or something that holds no more
                    self._persistence.hear(message)
                return
            if message.kind == DatagramKind.PUBLICATION:
                self._persistence.came(message)
        except ProtocolError as exc:
            self.infosphere.fault(message.origin, exc)
            return
        self.infosphere.deliver(message)


def _with_terms(links: Sequence[DatagramLink], config: Config, seals: Sequence[DatagramSealing]) -> list[NetworkLink]:
    terms = (
        SideTerms(each.rate, reduced_relay=each.reduced_relay, burst_seconds=each.burst_seconds)
        for each in config.network.values()
    )
    return [NetworkLink(*each) for each in zip(links, terms, seals, strict=True)]


def _mirror(own: JbiPlatform, infosphere: Infosphere, bridge: str) -> Mirror:
    everything = Transformation(("*",), ("jbi.*",), ())
    directions = (
        NodeDirection(own, infosphere, everything, bridge=bridge),
        NodeDirection(infosphere, own, everything, bridge=bridge),
    )
    return Mirror((own, infosphere), directions, name="infosphere")


def _persistence(
    config: Config, identity: Identity, side: Infosphere, delegate: Delegate, area: str
) -> NodePersistence:
    """Raises StorageError."""
    archive, history = delegate.registrations.archive, delegate.history
    store = deletions = None
    if archive is not None and history is not None and history.administration is not None:
        told = history.administration.deletions
        store = DelegateStore(delegate, archive, told)
        deletions = NodeDeletions(Path(config.node.folder) / f"deletions{area and '.' + area}.db")
    made = NodePersistence(bytes.fromhex(identity.id), identity.epoch, config.node, side, store, deletions)
    if deletions is not None:
        told.told = made.deleted
    return made


def _settings(config: Config, name: str, addresses: tuple[str, ...], area: str) -> ExchangeSettings:
    """Raises ConfigurationError for terms by which other nodes would be gone between two of their announcements,
    StorageError."""
    node = config.node
    if node.node_timeout <= node.announce_seconds:
        raise ConfigurationError(
            f"[node] node_timeout = {node.node_timeout:g} is not more than announce_seconds ="
            f" {node.announce_seconds:g}: other nodes would count as gone between two announcements",
            hint=f"Set node_timeout to several times announce_seconds, such as {5 * node.announce_seconds:g}",
            key="node.node_timeout",
        )
    block = min(each.block for each in config.network.values())
    roles = (ANSWERS,) * node.answer + (STORES,) * (node.volunteer and bool(config.archive.folder))
    form = MessageForm(block, _HASHES[node.hash], node.compression, node.max_hops, together=TOGETHER_BLOCKS * block)
    file = Path(node.folder) / f"blocks{area and '.' + area}.db"
    disk = DiskBlocks(file, node.cache_disk) if node.cache_disk else None
    return ExchangeSettings(
        name=name, addresses=addresses, roles=roles, form=form,
        announce_seconds=node.announce_seconds, node_timeout=node.node_timeout, cache_bytes=node.cache_bytes,
        disk=disk,
        reorder_seconds=node.reorder_seconds, durable_cache=node.durable_cache,
        processed_hashes=node.processed_hashes, ack_ranges=node.ack_ranges,
    )  # fmt: skip


def _seal(config: Config, name: str, identity: Identity) -> DatagramSealing:
    """Raises ConfigurationError for a network of no plug-in, or that would be open to others without a key."""
    section, me = config.network[name], bytes.fromhex(identity.id)
    check_plugin(name, section)  # first: whether a key is needed depends on it
    if section.key == CERTIFICATES:
        return MemberSealing(config, name, me)
    secret = user_secret(section.key, f"the key of network {name}", f"[network.{name}] key") if section.key else ""
    if not secret:
        check_open(name, section, insecure=config.tls.insecure)
    return seal_of(secret, me)


def _place(link: dict[str, Any]) -> str:
    """Where a link is, for people."""
    if "place" in link:
        return str(link["place"])
    group, interfaces = link.get("group", ""), link.get("interfaces", [])
    places = [f"{group} port {link['port']}" if group and "port" in link else group, ", ".join(interfaces)]
    return " on ".join(filter(None, places)) or (f"{link['peers']} peers" if "peers" in link else "")


_HASHES: Final = {name: number for number, (name, _, _) in enumerate(HASHES)}
