"""Ways to a delegate: its ports, one a host, and a socket for clients on this host."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, PortInUseError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.core.wire.transport import UnixListener

ControlService = Callable[[socket.socket, Caller], None]
"""Serves a control connection."""
DataService = Callable[[socket.socket, Caller, Endpoint], None]
"""Serves a data connection that has come to an endpoint."""


class DelegateEndpoints:
    """Everything that a delegate listens at; the first one is its address."""

    def __init__(self, config: Config, name: str, server_id: str, control: ControlService, data: DataService) -> None:
        """Binds the ports: raises PortInUseError or ConfigurationError."""
        self.name: Final = name
        self.server_id: Final = server_id
        self._sockets: UnixListener | None = None
        pad, security = config.pad, config.security()

        def listen(host: str, port: int, advertise: str = "") -> Endpoint:
            def serve(sock: socket.socket, caller: Caller) -> None:
                data(sock, caller, made)

            made = Endpoint(host, port, name=name, security=security, control=control, data=serve, advertise=advertise)
            undo.callback(made.stop)
            return made

        with ExitStack() as undo:
            self.first = listen(pad.host, pad.port, pad.advertise)
            self.all = [self.first]
            for host in pad.hosts:
                try:
                    self.all.append(listen(host, self.first.port))
                except PortInUseError:  # a free one, unless somebody has asked for a certain one
                    if pad.port:
                        raise
                    self.all.append(listen(host, 0))
            if pad.sockets:
                if config.tls.identity() is not None:
                    raise ConfigurationError(
                        "[pad] sockets and [tls] don't go together",
                        hint="Identities come from certificates, over TCP alone",
                    )
                self._sockets = UnixListener(Path(pad.sockets), server_id, adopt=self.first.adopt)
            undo.pop_all()
        self.addresses: Final = tuple(each.address for each in self.all)
        """host:port of all of them, the first one's first."""

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return sum(len(each.connections) for each in self.all)

    def ref(self, exported_name: str, methods: tuple[str, ...]) -> ServiceRef:
        """A proxy for one of the exported objects."""
        ways = self.addresses if self._sockets is None else (self._sockets.endpoint, *self.addresses)
        return ServiceRef(self.server_id, exported_name, ways, methods, self.first.certificate)

    def start(self) -> None:
        """Begin to serve."""
        for each in self.all:
            each.start()
        if self._sockets is not None:
            self._sockets.start()

    def stop(self) -> None:
        """End all connections, and close the ports."""
        if self._sockets is not None:
            self._sockets.stop()
        for each in self.all:
            each.stop()
