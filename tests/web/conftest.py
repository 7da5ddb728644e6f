"""A gateway in this process, in front of a delegate with an archive and a type repository; a plain HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.codegen.types.registry import open_registry
from jbi_pubsub.core.config import ArchiveSection, PolicySection, TypesSection
from jbi_pubsub.core.node_sections import GatewaySection
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.web.gateway import Gateway


class Answer:
    """Of one request."""

    def __init__(self, got: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = got.status, got.headers, got.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Reached:
    """A gateway, and requests to it."""

    def __init__(self, gateway: Gateway, federation: Any, types: TypeRepository, delegate: Any) -> None:
        self.gateway, self.federation, self.types, self.delegate = gateway, federation, types, delegate

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own; a header's name with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def publish(self, *objects: tuple[bytes, bytes], at: str = "/v1/types/report/1.0/objects?wait=20") -> Answer:
        """Objects as multipart."""
        body = b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name, data)
            for metadata, payload in objects
            for name, data in ((b"metadata", metadata), (b"payload", payload))
        )
        return self.ask("POST", at, body + b"--b--\r\n", Content_Type="multipart/form-data; boundary=b")

    def give_up(self) -> None:
        """The gateway's own publisher waits no longer for a delegate that has gone."""
        self.gateway.guests.own.publishing._open().close(0.0)

    def stream(self, path: str, **headers: str) -> Stream:
        """Events."""
        return Stream(self.gateway.port, path, {name.replace("_", "-"): value for name, value in headers.items()})


class Stream:
    """Events as they come."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=headers)
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.opened = self.next()
        assert self.opened[0] == "open"

    def next(self) -> tuple[str, Any, str]:
        """Kind, data and id of the next event."""
        found = {"event": "", "data": "", "id": ""}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            found[name or "comment"] = value.strip()
        return (found["event"], json.loads(found["data"]), found["id"]) if found["event"] else self.next()

    def objects(self, count: int) -> list[str]:
        """The metadata of the next objects."""
        return [data["metadata"] for kind, data, _ in (self.next() for _ in range(count)) if kind == "object"]

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@pytest.fixture
def reached(federation: Any, tmp_path: Path) -> Iterator[Callable[..., Reached]]:
    """`reached()` starts a delegate and a gateway; `archive=False` without an archive."""
    begun: list[Gateway] = []

    def start(*, archive: bool = True, policy: str = "", users: str = "", rules: str = "", **gateway: Any) -> Reached:
        """With `users` the gateway has the policy as well, as in a node; without them `rules` of its own."""
        types = tmp_path / "types"
        types.mkdir(exist_ok=True)
        registry = open_registry(types)
        federation.stack.callback(registry.close)
        repository = TypeRepository(registry=registry)
        config = msgspec.structs.replace(
            federation.config,
            archive=ArchiveSection(folder=str(tmp_path / "archive") if archive else "", workers=0, reserve=0.0),
            types=TypesSection(folder=str(types)),
            policy=PolicySection(file=policy, users=users),
        )
        server = DisseminationServer(config, repository, characteristics=("alpha", "rome"))
        server.start()
        federation.stack.callback(server.stop, 0.5)
        own = PolicySection(file=policy if users else rules, users=users)
        config = msgspec.structs.replace(federation.config, gateway=GatewaySection(port=0, **gateway), policy=own)
        begun.append(Gateway(config))
        begun[-1].start()
        return Reached(begun[-1], federation, repository, server)

    yield start
    for gateway in begun:
        gateway.stop()
