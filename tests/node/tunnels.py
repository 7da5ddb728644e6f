"""Nodes of this process that have tunnels to each other, over links that lose datagrams."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Mapping
from contextlib import closing, suppress

from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.side import SideTerms
from jbi_pubsub.node.tunnel import Tunnels, TunnelService


class LossyLink(LocalLink):
    """A link of the process that loses a share of what comes."""

    def __init__(self, name: str, loss: float) -> None:
        super().__init__(name)
        self.loss, self._chance = loss, random.Random(7)

    def receive(self, sock: socket.socket) -> list[bytes]:
        """Those that are not lost."""
        return [each for each in super().receive(sock) if self._chance.random() >= self.loss]


class TunnelNode:
    """A node: network, tunnels, and a server `echo`, which gives `connect` what it is asked with."""

    def __init__(
        self,
        segment: str,
        name: str,
        *,
        epoch: int = 1,
        loss: float = 0.0,
        id: bytes = b"",  # noqa: A002
        services: Mapping[str, TunnelService] | None = None,
    ) -> None:
        self.id = id or os.urandom(16)
        self.link = LossyLink(segment, loss)
        self.callers: list[tuple[str, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self.tunnels = Tunnels(
            lambda: self, {"echo": TunnelService(("10.0.0.3:7", "[::1]:7"), self._echo), **(services or {})}
        )
        settings = ExchangeSettings(name=name, announce_seconds=0.2, node_timeout=2.0)
        self.network = Network(
            self.id,
            epoch,
            [NetworkLink(self.link, SideTerms(40e6))],
            lambda _: None,
            settings,
            streams=self.tunnels.came,
        )
        self.say, self.peers = self.network.say, self.network.peers

    def start(self) -> None:
        """Be there."""
        self.network.start()
        self.tunnels.start()

    def stop(self, *, suddenly: bool = False) -> None:
        """Leave; or be gone without a word."""
        if suddenly:
            self.link.loss = 1.0
            self.link.send = len  # type: ignore[method-assign,assignment]
            return
        self.tunnels.stop()
        self.network.stop()
        for _, sock in self.callers:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join(5.0)

    def _echo(self, caller: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.callers.append((caller, ours))
        self._threads.append(threading.Thread(target=_echoed, args=(ours,), daemon=True))
        self._threads[-1].start()
        return theirs


def _echoed(sock: socket.socket) -> None:
    """Sends what comes back, and ends when that does."""
    with closing(sock), suppress(OSError):
        while data := sock.recv(65_536):
            sock.sendall(data)
