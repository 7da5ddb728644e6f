"""Nodes of this process, and as processes of their own, each in a folder of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import Config, NodeSection
from jbi_pubsub.node.service import NodeService, Parts


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
