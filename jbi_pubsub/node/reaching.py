"""Other nodes by their names: for the node that hears them, and for applications on its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from string import hexdigits
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, UnknownUidError, WireError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.wire import detour
from jbi_pubsub.network.peers import NodePeer

from .admin import NodeProxy
from .identity import default_folder, running
from .tunnel import TunnelDoor

ID_LEAST: Final = 8
"""Digits of an id that name a node."""
DELEGATE: Final = "delegate"
LOOKUP: Final = "lookup"


def named(peers: Mapping[bytes, NodePeer], name: str) -> bytes:
    """The node of that name, or whose id begins so. Raises UnknownUidError with the nearest."""
    found = [id_ for id_, each in peers.items() if each.name == name]
    if not found and is_id(name):
        found = [id_ for id_ in peers if id_.hex().startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownUidError(
            f"{len(found)} nodes are called {name[:100]}",
            hint=f"Name one by its id: {', '.join(sorted(each.hex()[:ID_LEAST] for each in found)[:5])}",
        )
    near = near_name(name, [each.name for each in peers.values()], 0.5)
    raise UnknownUidError(
        f"no node {name[:100]} is heard" + (f"; did you mean {near}?" if near else ""),
        hint="`jbi node peers` lists those that are",
    )


def is_id(name: str) -> bool:
    """Whether a name is one of an id."""
    return ID_LEAST <= len(name) <= 32 and all(c in hexdigits for c in name)


class NearNode:
    """The node of this host, as a way to others that it hears."""

    def __init__(self, address: str, config: Config) -> None:
        self._address, self._config = address, config

    def _calls(self) -> NodeProxy:
        return NodeProxy(self._address, self._config.security(), timeout=self._config.lookup.timeout)

    def names(self) -> tuple[str, ...]:
        """Names of the nodes that it hears; none if it does not say."""
        with suppress(JbiError), closing(self._calls()) as calls:
            return calls.peer_names()
        return ()

    def reach(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """From now on this process reaches that node, and nobody else: endpoints of its delegate, and of its lookup
        service, if it has one. Raises UnknownUidError, AccessDeniedError, WireError."""
        doors = self._doors(name)
        detour.take(f"node {name}", lambda: _ways(self._doors(name)))
        return doors[0].endpoints, doors[1].endpoints if len(doors) > 1 else ()

    def _doors(self, name: str) -> list[TunnelDoor]:
        with closing(self._calls()) as calls:
            doors = [calls.peer_address(name, DELEGATE)]
            with suppress(WireError):  # it is found through others'
                doors.append(calls.peer_address(name, LOOKUP))
        return doors


def _ways(doors: Iterable[TunnelDoor]) -> dict[str, str]:
    return {endpoint: door.address for door in doors for endpoint in door.endpoints}


def near_node(config: Config) -> NearNode | None:
    """The node of the folder on this host that the configuration means, if it runs."""
    with suppress(JbiError):  # its folder is nobody's to look at, or in nobody's home
        there = running(Path(config.node.folder) if config.node.folder else default_folder())
        if there is not None:
            return NearNode(there.address, config)
    return None
