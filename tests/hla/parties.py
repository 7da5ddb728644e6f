"""Federates for tests over sockets."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.sessions import LENGTH

CALLBACKS = [name for name in vars(FederateAmbassador) if name[0] != "_"]


class Noting(FederateAmbassador):
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in CALLBACKS:
            return lambda *arguments: self.log.append((name, *arguments))
        return super().__getattribute__(name)


class Federate:
    """A joined federate, and what it was told."""

    def __init__(self, config: Any, name: str, federation: str = "Air", **options: Any) -> None:
        self.rti = RTIAmbassador(config)
        self.told = Noting()
        self.rti.connect(self.told)
        try:
            self.handle = self.rti.join_federation_execution(federation, name, timeout=20.0, **options)
        except BaseException:
            self.rti.disconnect()
            raise

    def until(self, name: str) -> tuple[Any, ...]:
        """The next callback of that name; those before it are dropped."""
        for _ in range(3000):
            for at, each in enumerate(self.told.log):
                if each[0] == name:
                    del self.told.log[: at + 1]
                    return each
            self.rti.evoke_callback(0.01)
        pytest.fail(f"no {name}: {self.told.log}")


def session(federation: Any, name: str) -> socket.socket:
    """A connection of a federate that speaks for itself."""
    rti = RTIAmbassador(federation.config)
    rti.connect(FederateAmbassador())
    try:
        found = rti._federation(name, 20.0)
    finally:
        rti.disconnect()
    client = ControlClient(found.proxy, Security(), timeout=20.0)
    token = client.call("join", str, name, [], [])
    client.close()
    sock = dial(found.proxy, DATA, Security(), 20.0)
    greet(StreamSocket(sock), Hello.of(token))
    sock.settimeout(20.0)
    body = msgspec.msgpack.encode([(1, "join_federation_execution", ["ugly", "delete_objects"])])
    sock.sendall(LENGTH.pack(len(body)) + body)
    return sock
