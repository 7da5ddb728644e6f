"""The networks of a node: one thread for all links and times, and one that delivers."""

from __future__ import annotations

import logging
import os
import queue
import random
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import BackPressureError, ProtocolError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.message import NodeMessage

log = logging.getLogger("jbi_pubsub.network")

PACED_SECONDS: Final = 0.02
"""Seconds of a link's rate that go at once."""
RATE: Final = 5e6
LONGEST_WAIT: Final = 0.5
BUSY_SECONDS: Final = 0.002
"""Until a busy link is tried again."""
DELIVERIES_MOST: Final = 10_000
"""Messages that have come and are not delivered."""
STOP_SECONDS: Final = 5.0


class NetworkLink(NamedTuple):
    """A link and its terms."""

    link: DatagramLink
    rate: float = RATE
    """Bytes a second at most."""


class Network:
    """A node on its links. Any thread."""

    def __init__(
        self,
        me: bytes,
        epoch: int,
        links: Sequence[NetworkLink],
        deliver: Callable[[NodeMessage], None],
        settings: ExchangeSettings | None = None,
    ) -> None:
        """`deliver` is called by a thread of its own, one after the
        other, and may wait."""
        self._exchange = Exchange(me, epoch, len(links), random.Random().uniform, settings)  # noqa: S311  # delays, no secrets
        self._links = [each.link for each in links]
        now = time.monotonic()
        self._buckets = [TokenBucket(each.rate, max(PACED_SECONDS * each.rate, 1_500), now) for each in links]
        self._deliver = deliver
        self._lock = threading.Lock()
        """Covers the exchange."""
        self._stopping = threading.Event()
        self._deliveries: queue.Queue[NodeMessage | None] = queue.Queue(DELIVERIES_MOST)
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._faults: Counter[str] = Counter()
        self._held: list[bytes | None] = [None] * len(links)
        """A datagram that a busy link has not taken."""
        self._threads = [
            threading.Thread(target=self._run, name="network", daemon=True),
            threading.Thread(target=self._run_deliveries, name="network-deliveries", daemon=True),
        ]

    def start(self) -> None:
        """Be there from now on."""
        for each in self._threads:
            each.start()

    def say(self, message: NodeMessage) -> None:
        """Say a message on all links. Raises BackPressureError when we leave."""
        if self._stopping.is_set():
            raise BackPressureError("the network is left")
        with self._lock:
            self._exchange.say(message, time.monotonic())
        self._wake()

    def peers(self) -> frozenset[bytes]:
        """Ids of the nodes that are heard."""
        with self._lock:
            return frozenset(self._exchange.peers)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            peers = {origin.hex(): each.announcement.name for origin, each in self._exchange.peers.items()}
        return {"peers": peers, "links": [each.status() for each in self._links], "faults": dict(self._faults)}

    def stop(self) -> None:
        """Leave."""
        self._stopping.set()
        self._wake()
        with suppress(queue.Full):
            self._deliveries.put_nowait(None)
        for each in self._threads:
            if each.is_alive():
                each.join(STOP_SECONDS)
        for link in self._links:
            link.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_out, b"\0")

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            with guarded("network"):
                pause = self._step(pause)

    def _step(self, pause: float) -> float:
        """Wait so many seconds at most, and do what is to be done; seconds to wait then."""
        for at, sock in self._ready(pause):
            for data in self._links[at].receive(sock):
                self._receive(at, data)
        now = time.monotonic()
        with self._lock:
            if self._exchange.due() <= now:
                self._exchange.tick(now)
        waits = [self._send(at) for at in range(len(self._links))]
        with self._lock:
            due = self._exchange.due()
        return max(0.0, min(LONGEST_WAIT, due - time.monotonic(), *waits))

    def _ready(self, pause: float) -> list[tuple[int, Any]]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ, -1)
            for at, link in enumerate(self._links):
                for sock in link.sockets():
                    selector.register(sock, selectors.EVENT_READ, at)
            found = [(key.data, key.fileobj) for key, _ in selector.select(pause)]
        if any(at < 0 for at, _ in found):
            with suppress(BlockingIOError):
                os.read(self._wake_in, 4_096)
        return [each for each in found if each[0] >= 0]

    def _receive(self, at: int, data: bytes) -> None:
        try:
            with self._lock:
                messages = list(self._exchange.received(at, data, time.monotonic()))
        except ProtocolError as exc:
            self._faults[exc.message[:60]] += 1
            return
        for each in messages:
            while not self._stopping.is_set():
                try:
                    self._deliveries.put(each, timeout=LONGEST_WAIT)
                    break
                except queue.Full:
                    continue

    def _send(self, at: int) -> float:
        """Send what may go; seconds until more may."""
        link, bucket = self._links[at], self._buckets[at]
        while True:
            now = time.monotonic()
            if (wait := bucket.ready_in(now)) > 0:
                with self._lock:
                    return wait if self._held[at] is not None or self._exchange.has_outgoing(at) else LONGEST_WAIT
            data = self._held[at]
            if data is None:
                with self._lock:
                    data = self._exchange.outgoing(at, now)
            if data is None:
                return LONGEST_WAIT
            if not link.send(data):
                self._held[at] = data
                return BUSY_SECONDS
            self._held[at] = None
            bucket.take(len(data), now)

    def _run_deliveries(self) -> None:
        while (message := self._deliveries.get()) is not None and not self._stopping.is_set():
            with guarded("network delivery"):
                self._deliver(message)
