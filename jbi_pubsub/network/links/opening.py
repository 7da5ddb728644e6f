"""Links by what a node's configuration says."""

from __future__ import annotations

from typing import Final

from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.wire.endpoint import check_endpoint, split_endpoint

from .link import DatagramLink

KIND: Final = "network"
"""Kind of the plug-ins that make links."""


def _udp(name: str, section: NetworkSection) -> DatagramLink:  # noqa: ARG001  # the makers' form
    from .udp import UdpLink

    return UdpLink(
        section.group, section.port, interfaces=section.interfaces, ttl=section.ttl, send_buffer=section.send_buffer,
        peers=[split_endpoint(check_endpoint(each)) for each in section.peers], receive_buffer=section.receive_buffer,
    )  # fmt: skip


def _local(name: str, section: NetworkSection) -> DatagramLink:
    from .local import LocalLink

    return LocalLink(section.group or name)


_MADE: Final = {"udp": _udp, "local": _local}


def opened(name: str, section: NetworkSection) -> DatagramLink:
    """The link of the network `name`. Raises ConfigurationError."""
    make = _MADE.get(section.plugin) or plugins.find(KIND, section.plugin)
    if make is None:
        known = [*_MADE, *plugins.names(KIND)]
        near = near_name(section.plugin, known)
        raise ConfigurationError(
            f"[network.{name}] plugin: there is no {section.plugin[:100]!r}, but {', '.join(known)}",
            hint=f"Did you mean {near}?" if near else "Install the plug-in that it comes with",
            key=f"network.{name}.plugin",
        )
    link: DatagramLink = make(name, section)
    return link
