"""A node for clients of the Common API: a lookup service, and a delegate with an archive and a type repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.capi import CapiException, Connection, ConnectionManager
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.registry import open_registry
from jbi_pubsub.core.config import ArchiveSection, Config, PolicySection, TypesSection
from jbi_pubsub.pad.server.server import DisseminationServer

PREDICATE = (
    "<predicate><predicateName/><predicateType>XPath</predicateType>"
    "<predicateInstance>{}</predicateInstance></predicate>"
)


class Node:
    """Servers, and the connections that were made to them."""

    def __init__(self, federation: Any, folder: Path) -> None:
        self.federation = federation
        self.folder = folder
        federation.lookup()
        self.servers: list[DisseminationServer] = []
        self._managers: list[tuple[ConnectionManager, Connection]] = []

    @property
    def config(self) -> Config:
        return self.federation.config  # type: ignore[no-any-return]

    def start(
        self, name: str = "node", *, policy: str = "", users: str = "", archive: bool = True
    ) -> DisseminationServer:
        """A delegate."""
        folder = self.folder / name
        config = msgspec.structs.replace(
            self.config,
            archive=ArchiveSection(folder=str(folder / "archive") if archive else "", workers=0, reserve=0.0),
            types=TypesSection(folder=str(folder / "types")),
            policy=PolicySection(file=policy, users=users),
        )
        (folder / "types").mkdir(parents=True, exist_ok=True)
        registry = open_registry(folder / "types")
        self.federation.stack.callback(registry.close)
        server = DisseminationServer(config, TypeRepository(registry=registry), characteristics=("node", name))
        server.start()
        self.federation.stack.callback(server.stop, 0.5)
        self.servers.append(server)
        return server

    def created(self, name: str = "client", descriptor: str = "") -> Connection:
        manager = ConnectionManager(self.config)
        connection = manager.createConnection(name, descriptor)
        self._managers.append((manager, connection))
        return connection

    def connected(self, name: str = "client", descriptor: str = "") -> Connection:
        connection = self.created(name, descriptor)
        connection.connect()
        return connection

    def leave(self) -> None:
        for _, connection in self._managers:
            if connection._state != "destroyed":
                with suppress(CapiException):  # what was published may be lost
                    connection.destroy()


@pytest.fixture
def empty_node(federation: Any, tmp_path: Path) -> Iterator[Node]:
    """A lookup service alone."""
    made = Node(federation, tmp_path)
    yield made
    made.leave()


@pytest.fixture
def node(empty_node: Node) -> Node:
    """With one delegate."""
    empty_node.start()
    return empty_node


@pytest.fixture
def connection(node: Node) -> Connection:
    """One that is connected."""
    return node.connected()


@pytest.fixture
def publisher(connection: Connection) -> Callable[..., Any]:
    """publisher("t"): an active sequence for any metadata."""

    def make(type_: str = "t", at: Connection | None = None) -> Any:
        made = (at or connection).createPublisherSequence(type_, "1.0")
        made.setValidationAttribute(True, False)
        made.activateSequence()
        return made

    return make


@pytest.fixture
def predicate() -> Callable[[str], str]:
    """predicate("//a"): its document; < is escaped."""
    return lambda expression: PREDICATE.format(expression.replace("&", "&amp;").replace("<", "&lt;"))
