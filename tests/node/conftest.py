"""Nodes of this process, and as processes of their own, each in a folder of the test."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.node_sections import NetworkSection, NodeSection
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.node.areas import NodeAreas, networks_of
from jbi_pubsub.node.identity import Identity
from jbi_pubsub.node.networks import NodeNetworks
from jbi_pubsub.node.service import Dissemination, NodeService, Parts
from jbi_pubsub.node.tunnel import TunnelService
from jbi_pubsub.pad.server.server import DisseminationServer


@pytest.fixture
def settings(tmp_path: Path, fixtures: Any) -> Config:
    """Of a node without an archive, on loopback, without mDNS."""
    node = NodeSection(folder=str(tmp_path / "node"), name="home", archive=False)
    return msgspec.structs.replace(fixtures.test_config(), node=node)


@pytest.fixture
def node(settings: Config) -> Iterator[Callable[..., NodeService]]:
    """node() starts one; all are stopped at the end."""
    with ExitStack() as stack:

        def begin(config: Config = settings, parts: Parts | None = None) -> NodeService:
            service = NodeService(config, parts)
            stack.callback(service.stop, 0.5)
            service.start()
            return service

        yield begin


def of(service: NodeService) -> Config:
    """What clients of a node are configured with."""
    assert service.lookup is not None
    locators = (service.lookup.address,)
    config = service.config
    return msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, locators=locators))


class NodesOnNetworks:
    """Nodes of this process that share networks within it. `loss`: share of the datagrams that do not come; `is_cut`:
    none comes to the nodes named there."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self.config = folder, config
        self._stack = ExitStack()
        self._chance = random.Random(1)
        self.loss = 0.0
        self.cut: set[str] = set()
        self.areas: dict[str, str] = {}
        """Areas of networks."""
        self.rate = 0.0
        """Rate of all networks, bytes a second; 0: it is found."""
        self.links: dict[str, list[DatagramLink]] = {}
        self._standing: set[NodeService] = set()
        self.running: dict[str, NodeService] = {}

    def start(
        self,
        name: str,
        networks: Sequence[str] = ("lab",),
        *,
        key: str = "",
        config: Config | None = None,
        called: str = "",
        **node: Any,
    ) -> NodeService:
        """A node on some networks, with a file for their key, and changes to [node]; `config`: of all else; `called`:
        its name, where that is not the one that it has here."""
        section = NodeSection(folder=str(self._folder / name), name=called or name, **{
            "archive": False, "announce_seconds": 0.2, "node_timeout": 2.0, "sequence_timeout": 3.0,
            "statistics_seconds": 0.0, **node,
        })  # fmt: skip
        sections = {
            each: NetworkSection(
                plugin="local",
                group=f"{self._folder}-{each}",
                key=key,
                area=self.areas.get(each, ""),
                rate=self.rate,
            )
            for each in networks
        }
        service = NodeService(
            msgspec.structs.replace(config or self.config, node=section, network=sections),
            Parts(networks=self._networks),
        )
        self._standing.add(service)
        self._stack.callback(self.stop, service)
        service.start()
        self.running[name] = service
        return service

    def stop(self, service: NodeService, drain: float = 0.5) -> int:
        """Stop one, unless that was done already; see NodeService."""
        if service not in self._standing:
            return 0
        self._standing.remove(service)
        return service.stop(drain)

    def _networks(
        self,
        config: Config,
        identity: Identity,
        name: str,
        servers: Mapping[str, TunnelService],
        server: Dissemination,
        twin: Callable[[], None],
    ) -> NodeNetworks | NodeAreas:
        assert isinstance(server, DisseminationServer)
        made = networks_of(config, identity, name, servers, server, twin)
        self.links[name] = made.links
        for link in made.links:
            receive = link.receive
            link.receive = lambda sock, receive=receive: [  # type: ignore[method-assign]  # a fault of this test
                data for data in receive(sock) if name not in self.cut and self._chance.random() >= self.loss
            ]
        return made

    def close(self) -> None:
        """Stop all."""
        self._stack.close()


@pytest.fixture
def nodes(tmp_path: Path, fixtures: Any) -> Iterator[NodesOnNetworks]:
    """nodes.start("alpha") is a node on a network; all are stopped at the end."""
    made = NodesOnNetworks(tmp_path, fixtures.test_config())
    yield made
    made.close()
