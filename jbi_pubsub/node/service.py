"""A node: lookup service, delegate, types, archive and gateways in one process, started and stopped as one.

It adds no way for an object: whatever comes, comes to the one `Delegate`. Parts are known by what they can do
(`Lookup`, `Dissemination`, `Gateway`; persistence is `pad.past.store_protocol.Keeping`, types
`pad.model.type_repository.ServedTypes`, rights `core.access.AccessPolicy`), and made by `Parts`.

They start from the lookup service on, and stop in this order, whatever fails on the way: gateways take nothing more;
the networks are left; the delegate leaves the lookup services, delivers what waits, and tells its subscribers; its
archive is synced; the type repository closes; the lookup service ends last, so that everybody else could sign off
there; then the folder is free.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

import msgspec

from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core import extras
from jbi_pubsub.core.access import AccessPolicy, Action, Subject
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, EntryError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.process import version
from jbi_pubsub.core.wire.control import trust_own
from jbi_pubsub.core.wire.endpoint import Caller, Login
from jbi_pubsub.lookup.entry import Entry, matches
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.opening import open_lookup
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.server import DisseminationServer, ServerHost
from jbi_pubsub.policy.settings import access_of
from jbi_pubsub.protocol.entries import bridge_name, origin_of
from jbi_pubsub.protocol.status.delegate import ClientStatus, DelegateStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus, TypeConflict
from jbi_pubsub.trust.settings import signer_of

from .admin import NODE, NodeCalls, NodeFacts, NodeReports
from .identity import Identity, NodeFolder, default_folder
from .log import NodeLog
from .reaching import DELEGATE, LOOKUP
from .tunnel import TunnelDoor, TunnelService, adopted_by

_log = logging.getLogger("jbi_pubsub.node")

CHARACTERISTIC: Final = "node"
"""The first of the two strings that a node's delegate is found by; the second is the node's name."""
NAME_MOST: Final = 100
TWIN_SECONDS: Final = 1.0
"""For what was said under an id that is another node's as well to go out."""


@dataclass(frozen=True, kw_only=True)
class NodeEntry(Entry):
    """On the item of a delegate that is a node's."""

    entry_name = "jbi.Node"
    id: str | None = None
    name: str | None = None


class Lookup(Protocol):
    """Where parties find each other."""

    @property
    def address(self) -> str:
        """host:port to connect to."""
        ...

    def adopt(self, sock: socket.socket, address: str) -> None:
        """See Dissemination."""
        ...

    def start(self) -> None:
        """Serve."""
        ...

    def stop(self) -> None:
        """End; what is kept stays kept."""
        ...


class Dissemination(Protocol):
    """Server that takes every object, from everywhere, and gives it to those who want it."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port to connect to, each."""
        ...

    def start(self) -> None:
        """Serve, and be found."""
        ...

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that has come by another way than its ports; `address`: what that is called."""
        ...

    def allow(self, caller: Caller, action: Action, subject: Subject) -> object:
        """Raises AccessDeniedError."""
        ...

    def clients(self) -> list[ClientStatus]:
        """Clients that are connected."""
        ...

    def status(self) -> DelegateStatus:
        """Everything a status page shows."""
        ...

    def show_networks(self, told: Callable[[], NetworksStatus]) -> None:
        """Tell of the node's networks in its status, too."""
        ...

    def stop(self, drain: float = 5.0, others: Callable[[float], int] = lambda seconds: 0) -> int:  # noqa: ARG005
        """Leave the lookup services, take nothing more, deliver for `drain` seconds, sync what is kept; how many
        objects are left. `others` ends, within so many seconds, what delivers beside it: how many objects that left."""
        ...


class NodeGateway(Protocol):
    """A further way in, over the client library."""

    @property
    def address(self) -> str:
        """Its URL."""
        ...

    def start(self) -> None:
        """Serve."""
        ...

    def stop(self) -> None:
        """Take nothing more, and end."""
        ...


class SettledTypes(Protocol):
    """Conflicts of schemas between nodes."""

    def found(self) -> list[TypeConflict]:
        """Types of which nodes have different schemas."""
        ...

    def settle(self, type_: TypeName, node: str, by: str) -> None:
        """Decide that a type has the schema of a node."""
        ...


class NodeBridge(Protocol):
    """The networks that it shares with other nodes."""

    def start(self) -> None:
        """Be there for other nodes."""
        ...

    def stop_listening(self) -> None:
        """Take nothing more from other nodes."""
        ...

    def stop(self, drain: float) -> int:
        """Leave; how many objects have not gone out within so many seconds."""
        ...

    def status(self) -> NetworksStatus:
        """Links and other nodes."""
        ...

    def names(self) -> tuple[str, ...]:
        """Names of the other nodes."""
        ...

    def door(self, name: str, service: str) -> TunnelDoor:
        """A way to a server of another node. Raises UnknownUidError, WireError."""
        ...

    @property
    def conflicts(self) -> SettledTypes:
        """Types of which nodes have different schemas."""
        ...


class NodeReporter(Protocol):
    """Tells as information objects what happens at the node, and how much."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """Tell no more."""
        ...

    def every(self, seconds: float) -> None:
        """Between two statistics; 0 for none."""
        ...


def _looking_up(config: Config, access: AccessPolicy | None, destroyed: Callable[[], None], node: str) -> LookupServer:
    """Nobody relays any more what this node did when it was killed, and nobody is where its delegate of then was."""
    delegate = NodeEntry(id=node).rep()

    def is_relayed(item: ServiceItem) -> bool:
        try:
            origin = origin_of(item.entries)
        except EntryError:
            return False
        return origin is not None and bridge_name(origin.bridge).partition(".")[0] == node  # behind "." is an area

    def gone(items: Sequence[ServiceItem]) -> set[str]:
        delegates = [each for each in items if any(matches(delegate, entry) for entry in each.entries)]
        addresses = {address for each in delegates for address in each.proxy.endpoints}
        return {each.service_id for each in items if addresses & set(each.proxy.endpoints) or is_relayed(each)}

    return open_lookup(config, access, destroyed=destroyed, gone=gone)


def _disseminating(
    config: Config, types: ServedTypes, strings: tuple[str, str], host: ServerHost
) -> DisseminationServer:
    return DisseminationServer(config, types, characteristics=strings, host=host)


def _reporting(config: Config, dissemination: Dissemination, name: str) -> NodeReporter:
    """Reports of a delegate of ours."""
    assert isinstance(dissemination, DisseminationServer)
    return NodeReports(config, dissemination.delegate, name, signer_of(config), dissemination.overview)


def _over_http(config: Config) -> NodeGateway:
    """As [gateway] says; what is off is not imported."""
    from jbi_pubsub.web.gateway import Gateway as HttpGateway

    logging.getLogger("uvicorn").setLevel(max(logging.ERROR, logging.getLogger().level))
    return HttpGateway(config)


def _networking(
    config: Config,
    identity: Identity,
    name: str,
    servers: Mapping[str, TunnelService],
    dissemination: Dissemination,
    twin: Callable[[], None],
) -> NodeBridge:
    """As [network.NAME] says; what is off is not imported."""
    from .areas import networks_of

    assert isinstance(dissemination, DisseminationServer)
    return networks_of(config, identity, name, servers, dissemination, twin)


@dataclass(frozen=True)
class Parts:
    """Makers of the parts of a node; each raises the errors of its room. `lookup` is given who may do what there, which
    is its to close, whom to tell when an administrator has ended it, and the node's id; `dissemination` the types, its
    two strings, and what it is to know of the node; `gateways` are those beside that of [node] gateway."""

    lookup: Callable[[Config, AccessPolicy | None, Callable[[], None], str], Lookup] = _looking_up
    types: Callable[[Config], ServedTypes] = repository_of
    dissemination: Callable[[Config, ServedTypes, tuple[str, str], ServerHost], Dissemination] = _disseminating
    reports: Callable[[Config, Dissemination, str], NodeReporter] = _reporting
    gateways: tuple[Callable[[Config], NodeGateway], ...] = ()
    networks: Callable[
        [Config, Identity, str, Mapping[str, TunnelService], Dissemination, Callable[[], None]], NodeBridge
    ] = _networking


class NodeService:
    """One node. `start` and `stop` are called once, by the same thread."""

    def __init__(
        self,
        config: Config,
        parts: Parts | None = None,
        *,
        log: NodeLog | None = None,
        ended: Callable[[float], None] = lambda drain: None,  # noqa: ARG005  # who lives in an application is ended by it
    ) -> None:
        """Takes the folder and binds the ports. `log` is administered with it, and its owner's to close; `ended` is
        called when an administrator shuts it down, with the seconds for deliveries. Raises ConfigurationError,
        StorageError, PortInUseError, PolicyError; nothing is left open then."""
        parts = parts or Parts()
        self.log = log
        self._ended = ended
        self.name = name_of(config)
        _check_extras(config)
        began = time.monotonic()
        with ExitStack() as undo:
            self.folder = NodeFolder(Path(config.node.folder) if config.node.folder else default_folder())
            undo.callback(self.folder.close)
            self.config = config = placed(config, self.folder.path)
            self.lookup = self._open_lookup(config, parts)
            if self.lookup is not None:
                undo.callback(self.lookup.stop)
                config = _joined(config, self.lookup.address)
                undo.callback(trust_own, self.lookup.address, None)
            self._types = parts.types(config)
            undo.callback(self._close_types)
            self.delegate = parts.dissemination(config, self._types, (CHARACTERISTIC, self.name), self._host())
            undo.callback(self.delegate.stop, 0.0)
            self._reports = parts.reports(config, self.delegate, self.name)
            self._networks: NodeBridge | None = None
            self._renewing = threading.Lock()
            """Held while the networks are made anew, or left."""
            if config.network:
                own = tuple((each, self._login) for each in self.delegate.addresses)
                self._make_networks = partial(parts.networks, msgspec.structs.replace(config, own=own))
                self._networks = self._networks_of(self.identity)
                undo.callback(self._networks.stop, 0.0)
                self.delegate.show_networks(self.networks)
            self._gateways: list[NodeGateway] = []
            for make in (*([_over_http] if config.node.gateway else ()), *parts.gateways):
                self._gateways.append(make(config))
                undo.callback(self._gateways[-1].stop)
            undo.pop_all()
        self.began = began

    @property
    def identity(self) -> Identity:
        """Identity of the node."""
        return self.folder.identity

    @property
    def gateways(self) -> tuple[str, ...]:
        """Their URLs."""
        return tuple(each.address for each in self._gateways)

    def start(self) -> None:
        """Serve."""
        if self.lookup is not None:
            self.lookup.start()
        self.delegate.start()
        if self.config.node.events or self.config.node.statistics_seconds:
            self._reports.start()
        with self._renewing:
            if self._networks is not None:
                self._networks.start()
        for gateway in self._gateways:
            gateway.start()
        _log.info("node %s (%s) is ready, epoch %d", self.name, self.identity.id[:8], self.identity.epoch)

    def stop(self, drain: float | None = None) -> int:
        """End all parts in their order; how many objects could not be delivered in `drain` seconds ([node]
        drain_seconds). What fails is logged, and the next part stops all the same."""
        left, seconds = 0, self.config.node.drain_seconds if drain is None else drain
        for gateway in reversed(self._gateways):
            with guarded("stopping a gateway"):
                gateway.stop()
        with self._renewing:
            networks, self._networks = [self._networks] if self._networks is not None else [], None

        def leave(seconds: float) -> int:
            with guarded("leaving the networks"):
                return networks.pop().stop(seconds) if networks else 0
            return 0

        with guarded("hearing no other nodes"):
            for each in networks:
                each.stop_listening()
        with guarded("stopping what the node tells"):
            self._reports.stop()
        with guarded("stopping the delegate"):
            left = self.delegate.stop(seconds, leave)
        left += leave(0.0)  # unless the delegate has come to it
        with guarded("closing the type repository"):
            self._close_types()
        if self.lookup is not None:
            with guarded("stopping the lookup service"):
                self.lookup.stop()
            trust_own(self.lookup.address, None)
        _log.info("node %s has stopped, %d objects undelivered", self.name, left)
        self.folder.close()
        return left

    # -- for administrators (node/admin.py) -----------------------------------------------------------------------

    def details(self) -> NodeFacts:
        """Facts that clients may know."""
        config, identity = self.config, self.identity
        return NodeFacts(
            id=identity.id,
            name=self.name,
            epoch=identity.epoch,
            version=version(),
            addresses=self.delegate.addresses,
            lookup=self.lookup.address if self.lookup is not None else "",
            compression=config.link.max_compressed > 0,
            archive=bool(config.archive.folder),
            types=bool(config.types.folder),
            max_metadata=config.client.max_metadata,
            max_payload=config.client.max_payload,
            max_registrations=config.pad.max_registrations,
            max_sessions=config.pad.max_sessions,
            max_subscriptions=config.pad.max_subscriptions,
            uptime=round(time.monotonic() - self.began, 1),
        )

    def status(self) -> DelegateStatus:
        """Status of the delegate."""
        return self.delegate.status()

    def clients(self) -> list[ClientStatus]:
        """Clients that are connected."""
        return self.delegate.clients()

    def networks(self) -> NetworksStatus:
        """Networks, and the nodes that are heard there."""
        networks = self._networks  # it may be left meanwhile
        return networks.status() if networks is not None else NetworksStatus()

    def peer_names(self) -> tuple[str, ...]:
        """Names of the nodes that are heard."""
        return self._networks.names() if self._networks is not None else ()

    def door(self, name: str, service: str) -> TunnelDoor:
        """A way to a server of another node. Raises UnknownUidError, WireError."""
        if self._networks is None:
            raise UnknownUidError(
                f"this node is on no network, and hears no {name[:NAME_MOST]}", hint="See [network.NAME]"
            )
        return self._networks.door(name, service)

    def type_conflicts(self) -> list[TypeConflict]:
        """Types of which nodes have different schemas."""
        return self._networks.conflicts.found() if self._networks is not None else []

    def settle_type(self, type_: TypeName, node: str, by: str) -> None:
        """Decide that a type has the schema of a node. Raises UnknownUidError, SchemaError, ConfigurationError,
        StorageError."""
        if self._networks is None:
            raise UnknownUidError("this node is on no network: there is no conflict", hint="See [network.NAME]")
        self._networks.conflicts.settle(type_, node, by)

    def _servers(self) -> dict[str, TunnelService]:
        """Those that other nodes may reach."""
        servers = {DELEGATE: TunnelService(self.delegate.addresses, adopted_by(self.delegate.adopt))}
        if self.lookup is not None:
            servers[LOOKUP] = TunnelService((self.lookup.address,), adopted_by(self.lookup.adopt))
        return servers

    def allow(self, caller: Caller, action: Action, subject: Subject) -> object:
        """Raises AccessDeniedError."""
        return self.delegate.allow(caller, action, subject)

    def end(self, drain: float) -> None:
        """An administrator wants it to stop."""
        self._ended(drain)

    def measure_every(self, seconds: float) -> None:
        """Between two statistics from now on. Raises ConfigurationError: it was started to tell nothing."""
        if not (self.config.node.events or self.config.node.statistics_seconds):
            raise ConfigurationError("this node was started to tell nothing", hint="Start it with [node] events = true")
        self._reports.every(seconds)

    def _host(self) -> ServerHost:
        """The node, as its delegate knows it."""
        config, identity = self.config, self.identity
        entry = NodeEntry(id=identity.id, name=self.name).rep()
        return ServerHost(
            (entry,), {NODE: NodeCalls(self)}, identity.id, self._login,
            keeps_elsewhere=config.node.persist_elsewhere and bool(config.network),
        )  # fmt: skip

    def _networks_of(self, identity: Identity) -> NodeBridge:
        return self._make_networks(identity, self.name, self._servers(), self.delegate, self._meet_twin)

    def _meet_twin(self) -> None:
        """Another node has our id: its folder or ours is a copy. In the networks we go on under a new one."""
        threading.Thread(target=self._renew, args=(self._networks,), name="node-renewal", daemon=True).start()

    def _renew(self, met: NodeBridge | None) -> None:
        """Be another node, in the place of that which has met its twin."""
        with guarded("a new id for the node"), self._renewing:
            if met is None or self._networks is not met:  # it stops, or is another one by now
                return
            before, identity = self.identity.id, self.folder.renew()
            _log.error(
                "another node speaks under our id %s, as if our folder had been copied: in the networks this node is %s"
                " from now on, and everywhere when it is started again", before, identity.id,
            )  # fmt: skip
            self._networks = None  # whatever fails now, they are left once
            if left := met.stop(TWIN_SECONDS):
                _log.warning("%d objects have not gone out to the networks before that", left)
            self._networks = self._networks_of(identity)
            self._networks.start()

    def _open_lookup(self, config: Config, parts: Parts) -> Lookup | None:
        """Rules hold there for others; the node's own parts log in by a secret of this process, there and at the
        delegate."""
        self._login = Login("the node", token_hex(16))  # a name that no user can have
        if config.node.lookup == "join":
            return None
        access = access_of(config, "lookup", self._login)
        metrics = msgspec.structs.replace(config.metrics, port=-1)  # the delegate has it
        made = parts.lookup(msgspec.structs.replace(config, metrics=metrics), access, self._destroyed, self.identity.id)
        trust_own(made.address, self._login if access is not None else None)
        return made

    def _destroyed(self) -> None:
        """An administrator has ended the lookup service for good: nobody could find the node any more."""
        _log.warning("the lookup service was ended: the node stops")
        self._ended(self.config.node.drain_seconds)

    def _close_types(self) -> None:
        if self._types.registry is not None:
            self._types.registry.close()


def name_of(config: Config) -> str:
    """Name that people call the node by. Raises ConfigurationError."""
    name = config.node.name or socket.gethostname()
    if not name.strip() or len(name) > NAME_MOST or not name.isprintable():
        raise ConfigurationError(
            f"[node] name {name[:NAME_MOST]!r} is not a name",
            hint=f"Up to {NAME_MOST} characters that can be printed",
            key="node.name",
        )
    return name


def placed(config: Config, folder: Path) -> Config:
    """With places in the node's folder for what its parts keep, where their own sections name none."""

    def place(section: msgspec.Struct, key: str, name: str, *, wanted: bool = True) -> Any:
        return (
            msgspec.structs.replace(section, **{key: str(folder / name)})
            if wanted and not getattr(section, key)
            else section
        )

    node = config.node
    types = place(config.types, "folder", "types", wanted=node.types)
    return msgspec.structs.replace(
        config,
        node=msgspec.structs.replace(node, folder=str(folder)),
        lookup=place(config.lookup, "state", "registrations.db", wanted=node.lookup == "own"),
        pad=place(config.pad, "state", "subscriptions.db"),
        types=place(types, "cache", "schemas"),
        archive=place(config.archive, "folder", "archive", wanted=node.archive),
    )


def _joined(config: Config, address: str) -> Config:
    """With the node's own lookup service first among those that are asked."""
    locators = (address, *(each for each in config.lookup.locators if each != address))
    return msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, locators=locators))


def _check_extras(config: Config) -> None:
    """Before anything is made. Raises ConfigurationError."""
    node = config.node
    for extra, part, is_on in (
        ("archive", "archive", node.archive and not config.archive.folder), ("web", "gateway", node.gateway),
    ):  # fmt: skip
        if is_on:
            extras.need(extra, f"a node's {part}", key=f"node.{part}", instead=f"set [node] {part} = false")
