"""Links as a configuration names them: `udp`, `tcp`, `local`, `zenoh`, or what a plug-in `network.NAME` makes."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, cast

from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.wire.address import check_endpoint, split_endpoint
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.links.tcp import TcpLink
from jbi_pubsub.network.links.udp import UdpLink
from jbi_pubsub.network.links.zenoh import ZenohLink

_Maker = Callable[[str, NetworkSection], DatagramLink]


def check_plugin(name: str, section: NetworkSection) -> _Maker:
    """The maker of links of a section's `plugin`. Raises ConfigurationError where there is no such plug-in."""
    made = _BUILT_IN.get(section.plugin) or cast("_Maker | None", plugins.find("network", section.plugin))
    if made is None:
        known = (*_BUILT_IN, *plugins.names("network"))
        near = near_name(section.plugin, known)
        raise ConfigurationError(
            f"[network.{name}] plugin: there is no {section.plugin[:100]!r}, but {', '.join(known)}",
            hint=f"Did you mean {near}?" if near else "Install the plug-in that it comes with",
            key=f"network.{name}.plugin",
        )
    return made


def opened(name: str, section: NetworkSection) -> DatagramLink:
    """The link of the network `name`. Raises ConfigurationError."""
    made = check_plugin(name, section)
    if section.plugin in _BUILT_IN:
        return made(name, section)
    try:
        return made(name, section)
    except JbiError:
        raise
    except Exception as exc:  # foreign code: whatever it does when it is called
        raise ConfigurationError(
            f"the plug-in network.{section.plugin} made no link for network {name}: {exc}",
            hint="Ask the maker of that kind of link, or choose another",
            key=f"network.{name}.plugin",
        ) from exc


def _peers(name: str, section: NetworkSection) -> list[tuple[str, int]]:
    try:
        return [split_endpoint(check_endpoint(each)) for each in section.peers]
    except ConfigurationError as exc:
        raise ConfigurationError(
            f"a peer of network {name}: {exc.message}",
            hint="Write host:port, an IPv6 host in brackets: [::1]:4170",
            key=f"network.{name}.peers",
        ) from exc


def _udp(name: str, section: NetworkSection) -> DatagramLink:
    peers = _peers(name, section)
    if not section.port or not (section.group or peers):
        raise ConfigurationError(
            f"network {name} over UDP has {'no group and no peers' if section.port else 'no port'}",
            hint="Give it a port, and a multicast group (239.0.0.0 to 239.255.255.255, ff05::1) or peers, or both",
            key=f"network.{name}",
        )
    return UdpLink(
        section.group, section.port, interfaces=section.interfaces, peers=peers, ttl=section.ttl,
        send_buffer=section.send_buffer, receive_buffer=section.receive_buffer,
    )  # fmt: skip


def _host(section: NetworkSection) -> str:
    """Where to listen: a multicast group, which others of the links have, says nothing of it."""
    try:
        return "" if ip_address(section.group).is_multicast else section.group
    except ValueError:
        return section.group


def _tcp(name: str, section: NetworkSection) -> DatagramLink:
    return TcpLink(_host(section), section.port, peers=_peers(name, section), send_buffer=section.send_buffer)


def _local(name: str, section: NetworkSection) -> DatagramLink:
    return LocalLink(section.group or name)


def _zenoh(name: str, section: NetworkSection) -> DatagramLink:
    return ZenohLink(
        name, port=section.port, host=_host(section), peers=_peers(name, section), send_buffer=section.send_buffer
    )


_BUILT_IN: Final[dict[str, _Maker]] = {
    "udp": _udp,
    "tcp": _tcp,
    "local": _local,
    "zenoh": _zenoh,
}
