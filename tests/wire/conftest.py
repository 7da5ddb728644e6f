"""The wire: servers of one test, and somebody who speaks raw rpyc to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from rpyc.core import brine, consts
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from jbi_pubsub.core.wire.control import ControlServer, exported
from jbi_pubsub.core.wire.endpoint import CONTROL, MAGIC, PREAMBLE, Caller, Endpoint, Security
from jbi_pubsub.core.wire.ref import PROTOCOL, ServiceRef
from tests.conftest import eventually


class Attacker:
    """A peer that may send anything: bytes, rpyc frames, rpyc requests."""

    def __init__(self, port: int, *, preamble: bytes = PREAMBLE.pack(MAGIC, PROTOCOL, CONTROL)) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        self.sock.sendall(preamble)
        self.channel = Channel(SocketStream(self.sock), compress=False)
        self._sequence = 0

    def request(self, handler: int, *arguments: Any) -> tuple[int, Any]:
        """(message kind, what came back) for one of rpyc's requests with plain arguments."""
        return self.boxed(handler, (consts.LABEL_VALUE, arguments))

    def boxed(self, handler: int, package: Any) -> tuple[int, Any]:
        """The same with a package as rpyc boxes it: values, or references to objects."""
        self._sequence += 1
        self.channel.send(brine.I1.pack(consts.MSG_REQUEST) + brine.dump((self._sequence, (handler, package))))
        data = self.channel.recv()
        return data[0], brine.load(data[1:])[1]

    def is_disconnected(self) -> bool:
        """Whether the server closes the connection, soon and without a further byte."""
        self.sock.settimeout(60.0)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Leave."""
        self.channel.close()
        self.sock.close()


class Echo:
    """A service with one exported method and secrets beside it."""

    secret = "secret"

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    @exported
    def echo(self, caller: Caller, text: str) -> str:
        """The text."""
        self.callers.append(caller)
        return text

    def unmarked(self, _caller: Caller, text: str) -> str:
        """Not for the wire."""
        return f"unmarked {text}"


class Served:
    """An endpoint with an Echo on its control plane, and a data plane that sends back what it gets."""

    def __init__(self, security: Security, host: str = "127.0.0.1") -> None:
        self.echo = Echo()
        self.endpoint = Endpoint(
            host, 0, name="echo", security=security, control=ControlServer({"echo": self.echo}).serve, data=self._data
        )
        self.endpoint.start()
        self.ref = ServiceRef(
            "id", "echo", (f"127.0.0.1:{self.endpoint.port}",), ("echo",), certificate=self.endpoint.certificate
        )

    def _data(self, sock: socket.socket, _caller: Caller) -> None:
        sock.settimeout(60.0)
        while data := sock.recv(1024):
            sock.sendall(data)

    def close(self) -> None:
        """Stop."""
        self.endpoint.stop()


@pytest.fixture
def attack() -> Iterator[Callable[..., Attacker]]:
    """attack(port) connects an attacker; preamble=b"..." instead of the right one."""
    with ExitStack() as stack:

        def begin(port: int, **options: Any) -> Attacker:
            attacker = Attacker(port, **options)
            stack.callback(attacker.close)
            return attacker

        yield begin


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """serve(security) starts an Echo."""
    before = set(threading.enumerate())
    with ExitStack() as stack:

        def begin(security: Security | None = None, **options: Any) -> Served:
            served = Served(security or Security(), **options)
            stack.callback(served.close)
            return served

        yield begin

    def left() -> list[str]:
        """Threads that are not there any more; tickers are this process's, which the first who needs one starts."""
        return [t.name for t in threading.enumerate() if t not in before and not t.name.startswith("ticker")]

    eventually(lambda: not left(), what=left)
