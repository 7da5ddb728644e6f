"""A node on networks of several areas: in each it has an infosphere of its own, and its delegate is between them.

Nothing goes from one to the other but by the delegate, as over any bridge: no announcement, no question, nothing that
nodes say of themselves. In each area the node says the registrations of the others as its own, and of their objects
those that somebody there wants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import UnknownUidError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.status.networks import NetworksStatus, TypeConflict

from .identity import Identity
from .networks import LAST_SECONDS, NodeNetworks
from .tunnel import TunnelDoor, TunnelService


class NodeAreas:
    """See the module. Its methods are those of NodeNetworks."""

    def __init__(self, areas: list[NodeNetworks]) -> None:
        self._areas = areas
        self.links: list[DatagramLink] = [link for each in areas for link in each.links]

    @property
    def conflicts(self) -> NodeAreas:
        """Types of which nodes of an area have different schemas."""
        return self

    def start(self) -> None:
        """Be there for other nodes."""
        for each in self._areas:
            each.start()

    def stop_listening(self) -> None:
        """Take nothing more from other nodes."""
        for each in self._areas:
            each.stop_listening()

    def stop(self, drain: float) -> int:
        """Leave; how many objects have not gone out within so many seconds."""
        deadline = time.monotonic() + drain
        left: list[int] = []

        def end(area: NodeNetworks) -> None:
            left.append(area.stop(max(min(drain, LAST_SECONDS), deadline - time.monotonic())))

        with ExitStack() as ending:  # whatever fails
            for each in self._areas:
                ending.callback(end, each)
        return sum(left)

    def names(self) -> tuple[str, ...]:
        """Names of the nodes that are heard."""
        return tuple(sorted({name for each in self._areas for name in each.names()}))

    def door(self, name: str, service: str) -> TunnelDoor:
        """A way to a server of another node. Raises UnknownUidError, WireError."""
        for area in self._areas:
            if name in area.names():
                return area.door(name, service)
        for area in self._areas[:-1]:
            with suppress(UnknownUidError):  # it may be an id, of another one
                return area.door(name, service)
        return self._areas[-1].door(name, service)

    def status(self) -> NetworksStatus:
        """Links, and the nodes that are heard."""
        told, *more = [each.status() for each in self._areas]
        for each in more:
            told = msgspec.structs.replace(told, **{
                name: _both(getattr(told, name), getattr(each, name)) for name in NetworksStatus.__struct_fields__
            })  # fmt: skip
        return told

    def deleted(self, ids: Sequence[str]) -> None:
        """Objects were deleted here: others are told."""
        for each in self._areas:
            each.deleted(ids)

    def publishing(self, type_: str) -> list[str]:
        """Names of other nodes that publish a type."""
        return sorted({name for each in self._areas for name in each.conflicts.publishing(type_)})

    def found(self) -> list[TypeConflict]:
        """Types of which nodes have different schemas."""
        return [conflict for each in self._areas for conflict in each.conflicts.found()]

    def settle(self, type_: TypeName, node: str, by: str) -> None:
        """Decide that a type has the schema of a node, in the areas where there is a conflict."""
        having = [e for e in self._areas if any(TypeName(c.name, c.version) == type_ for c in e.conflicts.found())]
        if not having:
            raise UnknownUidError(f"nodes have no different schemas of {type_}", hint="See `jbi types conflicts`")
        for each in having:
            each.conflicts.settle(type_, node, by)


def networks_of(
    config: Config,
    identity: Identity,
    name: str,
    servers: Mapping[str, TunnelService],
    server: DisseminationServer,
    twin: Callable[[], None],
) -> NodeNetworks | NodeAreas:
    """As [network.NAME] says (see NodeNetworks)."""
    areas: dict[str, dict[str, NetworkSection]] = {}
    for each, section in config.network.items():
        areas.setdefault(section.area, {})[each] = section
    node = msgspec.structs.replace(config.node, silent_receivers=config.node.silent_receivers and len(areas) == 1)
    made: list[NodeNetworks] = []
    try:
        for area, sections in areas.items():
            own = msgspec.structs.replace(config, node=node, network=sections)
            made.append(NodeNetworks(own, identity, name, servers, server, twin, area))
    except BaseException:
        NodeAreas(made).stop(0.0)
        raise
    if len(made) == 1:
        return made[0]
    between = NodeAreas(made)
    server.service.repositories.nodes = between.publishing
    history = server.delegate.history
    if history is not None and history.administration is not None and history.administration.deletions.told is not None:
        history.administration.deletions.told = between.deleted
    return between


def _both(one: Any, other: Any) -> Any:
    """A value of two areas as one."""
    if isinstance(one, str | bool):
        return one or other
    return one | other if isinstance(one, dict) else one + other
