"""Channels of a lookup service's events, one for each client that has opened it: serially per client, batched. A client
that does not keep up loses events, is told so (a gap), and looks up again."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.wire.deflate import Allowance, Compression
from jbi_pubsub.core.wire.endpoint import Endpoint
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.stream_socket import StreamSocket, Tokens, listen, refuse, welcome
from jbi_pubsub.lookup.client.proxy import DIAGNOSTIC, EVENT, GAP
from jbi_pubsub.lookup.registrar import Outcome

EVENTS_WAITING: Final = 10_000
"""Events kept for a client that does not keep up; then it has a gap and looks up again, which is cheaper."""

CHANNELS_MOST: Final = 10_000
"""Event channels open at once."""

LISTENER_MOST: Final = 64
"""Characters of a listener's name: a UUID in hexadecimal has 32."""


class EventChannel:
    """Channel of events to one client over one connection. Any thread may offer; `_lock` covers what waits."""

    def __init__(self, listener: str, hub: SenderHub) -> None:
        self.listener = listener
        self.used = time.monotonic()
        self.lost = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Part, ...]] = deque()
        self._sender = HubSender(hub, take=self._take, acked=lambda _count, _note: None)

    def offer(self, kind: bytes, message: bytes) -> None:
        """To be sent, at the next `wake`."""
        with self._lock:
            if len(self._waiting) >= EVENTS_WAITING:
                self.lost += len(self._waiting) + 1
                self._waiting.clear()
                self._waiting.append((GAP,))
            else:
                self._waiting.append((kind, message))

    def wake(self) -> None:
        """Have what was offered sent now."""
        self._sender.ready()

    def attach(
        self, sock: socket.socket, position: int, ended: Callable[[], None], compression: Compression | None
    ) -> None:
        """Use that connection, which `ended` closes."""
        self.used = time.monotonic()
        self._sender.attach(sock, position, ended=ended, compression=compression)

    @property
    def connected(self) -> bool:
        """Whether the client is there."""
        return self._sender.connected

    @property
    def waiting(self) -> int:
        """Events that wait."""
        return len(self._waiting)

    def stop(self) -> None:
        """End, with its connection."""
        self._sender.stop()

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        items: list[tuple[Part, ...]] = []
        size = 0
        with self._lock:
            while self._waiting and len(items) < max_items and size < max_bytes:
                item = self._waiting.popleft()
                items.append(item)
                size += sum(map(len, item))
        return items


class EventChannels:
    """The channels by listener. `_lock` covers them."""

    def __init__(self, max_compressed: int) -> None:
        """`max_compressed`: connections that may be compressed at a time."""
        self._lock = threading.Lock()
        self._channels: dict[str, EventChannel] = {}
        self._lost_before = 0  # by channels that are no more
        self._hub = SenderHub(name="lookup-events")
        self._tokens = Tokens()
        self._compressed = Allowance(max_compressed)

    def start(self) -> None:
        """Begin to send."""
        self._hub.start()

    def stop(self) -> None:
        """Send no more."""
        self._hub.stop()

    def open(self, listener: str) -> str:
        """A token for the listener's event connection. Its channel is a new one: events that an earlier one holds are
        of no use, because a client that has connected again looks up again."""
        with self._lock:
            before = self._channels.get(listener)
            if before is None:
                self._check_listener(listener)
            self._channels[listener] = channel = EventChannel(listener, self._hub)
            self._lost_before += before.lost if before is not None else 0
        if before is not None:
            before.stop()
        return self._tokens.issue(channel)

    def _check_listener(self, listener: str) -> None:
        """Raises OversizeError if there is no room for its channel."""
        if len(listener) > LISTENER_MOST:
            raise OversizeError(f"listener of {len(listener)} characters", hint=f"At most {LISTENER_MOST}")
        if len(self._channels) >= CHANNELS_MOST:
            raise OversizeError(
                f"all {CHANNELS_MOST} event channels are open", hint="Use another lookup service, or wait"
            )

    def connected_among(self, listeners: Iterable[str]) -> int:
        """Number of the listeners that are connected now; one that is named twice counts twice."""
        channels = self._channels
        return sum(channel.connected for name in listeners if (channel := channels.get(name)) is not None)

    def offer(self, outcome: Outcome[Any]) -> None:
        """Give what a decision has to say to its listeners' channels, and wake those."""
        offered: set[EventChannel] = set()
        with self._lock:
            for kind, messages in ((EVENT, outcome.events), (DIAGNOSTIC, outcome.diagnostics)):
                for listener, message in messages:
                    channel = self._channels.get(listener)
                    if channel is not None:  # else the client never opened it, or is long gone: its lease will run out
                        channel.offer(kind, msgspec.msgpack.encode(message))
                        offered.add(channel)
        for channel in offered:
            channel.wake()

    def serve(self, sock: socket.socket, accepted_by: Endpoint) -> None:
        """Hand a client's event connection over to the hub; the endpoint may be that of the port of before."""
        line = StreamSocket(sock)
        hello = listen(line)
        channel: EventChannel | None = self._tokens.redeem(hello.token)
        if channel is None:
            refuse(line, "unknown or used token")
            return
        welcome(line, 0, self._compressed.grant(hello.compression))
        close = accepted_by.connections.hand_over(sock)

        def ended() -> None:
            close()
            self._forget(channel)  # who connects again has a new one

        channel.attach(sock, hello.position, ended, line.compression)

    def _forget(self, channel: EventChannel) -> None:
        with self._lock:
            if self._channels.get(channel.listener) is channel:
                del self._channels[channel.listener]
                self._lost_before += channel.lost

    def drop_idle(self, seconds: float) -> None:
        """Forget those to which nobody has connected for so long."""
        old = time.monotonic() - seconds
        with self._lock:
            idle = [key for key, c in self._channels.items() if not c.connected and c.used < old]
            dropped = [self._channels.pop(key) for key in idle]
            self._lost_before += sum(channel.lost for channel in dropped)
        for channel in dropped:
            channel.stop()

    def status(self) -> dict[str, int]:
        """Plain data."""
        with self._lock:
            channels = list(self._channels.values())
            lost = self._lost_before + sum(channel.lost for channel in channels)
        return {
            "event_channels": len(channels),
            "compressed": len(self._compressed),
            "events_waiting": sum(channel.waiting for channel in channels),
            "events_lost": lost,
        }
