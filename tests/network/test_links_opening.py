"""Links as a configuration names them, those of plug-ins too."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core import plugins
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.links.opening import opened
from jbi_pubsub.network.links.tcp import TcpLink
from jbi_pubsub.network.links.udp import UdpLink

from .linked import driven, free_port, new_group


def terms(plugin: str = "udp", group: str = "", port: int = 0, **given: Any) -> NetworkSection:
    """A section on loopback."""
    return NetworkSection(plugin=plugin, group=group, port=port, **{"interfaces": ("lo",), **given})


def pair(first: NetworkSection, second: NetworkSection) -> tuple[DatagramLink, DatagramLink]:
    return opened("lan", first), opened("lan", second)


def shared(plugin: str) -> tuple[NetworkSection, NetworkSection]:
    """Sections of two nodes of one network."""
    port, other = (free_port(socket.SOCK_STREAM if plugin == "tcp" else socket.SOCK_DGRAM) for _ in range(2))
    group = new_group()
    return {
        "udp": (terms(group=group, port=port), terms(group=group, port=port)),
        "peers": (terms(port=port, peers=(f"[::1]:{other}",)), terms(port=other, peers=(f"[::1]:{port}",))),
        "tcp": (terms("tcp", "::1", port), terms("tcp", group, peers=(f"[::1]:{port}",))),
        "local": (terms("local", group), terms("local", group)),
    }[plugin]


@pytest.mark.parametrize(
    ("plugin", "kind"), [("udp", UdpLink), ("peers", UdpLink), ("tcp", TcpLink), ("local", LocalLink)]
)
def test_the_kind_of_link_that_is_named_is_opened(plugin: str, kind: type[Any]) -> None:
    links = pair(*shared(plugin))
    assert all(isinstance(each, kind) for each in links)
    with driven(*links) as net:

        def heard() -> bool:
            links[0].send([b"hello"])
            net.step()
            return b"hello" in net.came[1]

        net.until(heard)


def test_a_link_over_zenoh_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        "jbi_pubsub.network.links.opening.ZenohLink", lambda name, **given: made.append((name, given)) or "made"
    )
    assert opened("lan", terms("zenoh", "239.1.1.1", 7_447, peers=("r.example.org:7447",), send_buffer=9)) == "made"
    [(name, given)] = made
    assert name == "lan"
    assert given == {"port": 7_447, "host": "", "peers": [("r.example.org", 7_447)], "send_buffer": 9}


@pytest.mark.parametrize(
    ("section", "told", "hint", "key"),
    [
        (terms(port=4_170), "no group and no peers", "a multicast group", "network.lan"),
        (terms(group="239.1.1.1"), "no port", "Give it a port", "network.lan"),
        (
            terms(port=1, peers=("nowhere",)),
            "a peer of network lan: 'nowhere' is not HOST:PORT",
            "[::1]",
            "network.lan.peers",
        ),
        (terms("tcp", peers=("::1:4170",)), "is not HOST:PORT", "[::1]:4170", "network.lan.peers"),
        (terms("ucp"), "there is no 'ucp', but udp, tcp, local, zenoh", "Did you mean udp?", "network.lan.plugin"),
        (terms("pigeon"), "there is no 'pigeon'", "Install the plug-in", "network.lan.plugin"),
    ],
)
def test_what_can_not_be_is_told_with_its_setting(section: NetworkSection, told: str, hint: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r".") as failed:
        opened("lan", section)
    assert told in failed.value.message
    assert hint in failed.value.hint
    assert failed.value.facts["key"] == key


@pytest.fixture
def pigeon(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Installs a plug-in network.pigeon that makes links so."""

    def install(make: Callable[..., Any]) -> None:
        monkeypatch.setattr(plugins, "find", lambda kind, name: make if (kind, name) == ("network", "pigeon") else None)

    return install


def test_a_plug_in_makes_the_link(pigeon: Callable[[Callable[..., Any]], None]) -> None:
    pigeon(lambda name, section: (name, section.peers))
    assert opened("lan", terms("pigeon", peers=("loft",))) == ("lan", ("loft",))


def test_a_plug_in_that_fails_is_told(pigeon: Callable[[Callable[..., Any]], None]) -> None:
    def fails(name: str, section: NetworkSection) -> None:
        raise ZeroDivisionError("no bread")

    pigeon(fails)
    with pytest.raises(ConfigurationError, match=r"network\.pigeon made no link for network lan: no bread"):
        opened("lan", terms("pigeon"))

    def says(name: str, section: NetworkSection) -> None:
        raise ConfigurationError("its own words", hint="Its own hint")

    pigeon(says)
    with pytest.raises(ConfigurationError, match="its own words"):
        opened("lan", terms("pigeon"))
