"""Datagrams over Zenoh (extra `zenoh`), each a put at jbi/NETWORK: for sites with TCP, TLS or QUIC between them.

Rules:
- Zenoh has the ways: scouting, routers, its mesh, what it encrypts. A file that the variable ZENOH_CONFIG names says
  all that is not said here.
- Zenoh loses nothing between those who are there, so nodes have nothing to repair but for those who come later, and
  after a way has broken; whoever is slow slows down who says more, as TCP would.
- Its calls may wait: they are made by two threads here, with bounded queues. The only module that imports `zenoh`.
- What is to go waits for a while when the last other one has left, who may be back soon; then it is for nobody.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.fault_counts import FaultCounts
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.network.links.link import AWAY_SECONDS, DATAGRAM_MOST, SENDING_MOST, SendingRoom, Waitable

RECEIVING_MOST: Final = 4_096
"""Datagrams that have come and are not read; then Zenoh waits."""
CHANNEL: Final = 256
"""Datagrams in Zenoh's own queue to the thread that takes them."""
SLOW_LINKS: Final = {
    "transport/link/tx/batch_size": 16_384,
    "transport/link/tx/lease": 30_000,
    "transport/link/tx/queue/congestion_control/block/wait_before_close": 30_000_000,
}
"""Settings of Zenoh's (bytes, milliseconds, microseconds), where no file has some. By its own a connection ends where a
batch of 64 KiB takes longer than five seconds, and with it all that is on its way: each time, on a slow link."""
LOOK_SECONDS: Final = 0.05
"""Between two looks whether somebody is there again."""
STOP_SECONDS: Final = 5.0


def _text(exc: Exception) -> str:
    """The words of Zenoh's error, without the place in its source."""
    return str(exc).partition(" at /")[0]


class _ZenohPuts:
    """Datagrams on their way to Zenoh, by a thread, for its calls may wait."""

    def __init__(self, publisher: Any, error: type[Exception], most: int, faults: FaultCounts) -> None:
        self._publisher, self._error, self._most, self._faults = publisher, error, most, faults
        self._going: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.waiting = 0
        """Bytes; whoever changes it has the lock."""
        self._room = SendingRoom()
        self.thread = threading.Thread(target=self._run, name="network-zenoh-puts", daemon=True)
        self._closed = threading.Event()
        self._met_at = -inf
        """When somebody was there last."""

    def put(self, datagrams: Sequence[bytes]) -> int:
        """As many as there is room for."""
        taken, now = 0, time.monotonic()
        with self._lock:
            while taken < len(datagrams) and self._room.has(self.waiting, self._most, now):
                self.waiting += len(datagrams[taken])
                taken += 1
        for each in datagrams[:taken]:
            self._going.put(each)
        return taken

    def close(self) -> None:
        """The thread ends as soon as its call does."""
        self._closed.set()
        self._going.put(None)

    def _run(self) -> None:
        while (data := self._going.get()) is not None and not self._closed.is_set():
            try:
                is_somebody = self._found_others()
                self._publisher.put(data)
                if is_somebody:
                    self._met_at = time.monotonic()
            except self._error as exc:
                self._faults.note(_text(exc))
            with self._lock:
                self.waiting -= len(data)
                self._room.note(len(data), time.monotonic())

    def _found_others(self) -> bool:
        """Whether somebody is there, perhaps after a while."""
        while not self._publisher.matching_status.matching:
            if time.monotonic() - self._met_at >= AWAY_SECONDS or self._closed.wait(LOOK_SECONDS):
                return False
        return True


class _ZenohTakes:
    """Datagrams that have come, taken by a thread; where nobody reads them Zenoh waits."""

    def __init__(self, subscriber: Any, error: type[Exception], faults: FaultCounts) -> None:
        self._subscriber, self._error, self._faults = subscriber, error, faults
        self._coming: deque[bytes] = deque()
        self._room = threading.Condition()
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self.thread = threading.Thread(target=self._run, name="network-zenoh-takes", daemon=True)
        self._is_closed = False

    def take(self) -> list[bytes]:
        """All of them."""
        with suppress(OSError):
            self.ours.recv(4_096)
        with self._room:
            found = list(self._coming)
            self._coming.clear()
            self._room.notify()
        return found

    def close(self) -> None:
        """The thread ends as soon as its call does."""
        self._is_closed = True
        with self._room:
            self._room.notify()

    def end(self) -> None:
        """The thread has ended."""
        self.ours.close()
        self._theirs.close()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                payload = self._subscriber.recv().payload
            except self._error as exc:
                if not self._is_closed:
                    self._faults.note(_text(exc))
                return
            if not 0 < len(payload) <= DATAGRAM_MOST:
                self._faults.note("bytes that are not a datagram")
                continue
            data = payload.to_bytes()
            with self._room:
                while len(self._coming) >= RECEIVING_MOST and not self._is_closed:
                    self._room.wait()
                self._coming.append(data)
                is_first = len(self._coming) == 1
            if is_first:
                with suppress(OSError):  # full: it is awake
                    self._theirs.send(b"\0")


class ZenohLink:
    """See the module."""

    is_lossless: Final = True

    def __init__(
        self, name: str, *, port: int = 0, host: str = "", peers: Sequence[tuple[str, int]] = (), mode: str = "",
        send_buffer: int = 0,
    ) -> None:  # fmt: skip
        """`name`: of the network; `port`: where others may connect to, at `host`, 0 for any; `peers`: Zenoh's routers
        or peers that it connects to, which turns its scouting by multicast off; `mode`: peer, client or router, ""
        for what Zenoh's configuration says. Raises ConfigurationError."""
        library = _library()
        self._error = library.ZError
        self._name = name
        self._faults = FaultCounts()
        try:
            self._session = library.open(_configuration(library, port, host, peers, mode, send_buffer))
            try:
                publisher, subscriber = _declared(library, self._session, f"jbi/{name}")
            except self._error:
                self._session.close()
                raise
        except self._error as exc:
            raise ConfigurationError(
                f"Zenoh can't be where network {name[:100]!r} is to be: {str(exc)[:300]}",
                hint="Look at its port, its peers and its name, and at the file that ZENOH_CONFIG names",
            ) from exc
        self._puts = _ZenohPuts(publisher, self._error, send_buffer or SENDING_MOST, self._faults)
        self._takes = _ZenohTakes(subscriber, self._error, self._faults)
        self._waited = (self._takes.ours,)
        self._puts.thread.start()
        self._takes.thread.start()

    def sockets(self) -> Sequence[Waitable]:
        """See DatagramLink."""
        return self._waited

    def receive(self, sock: Waitable) -> list[bytes]:  # noqa: ARG002  # there is one
        """See DatagramLink."""
        return self._takes.take()

    def send(self, datagrams: Sequence[bytes]) -> int:
        """See DatagramLink."""
        return self._puts.put(datagrams)

    def waiting(self) -> int:
        """See DatagramLink."""
        return self._puts.waiting

    def status(self) -> dict[str, Any]:
        """See DatagramLink."""
        routers: list[str] = []
        peers: list[str] = []
        with suppress(self._error):  # it is closed
            routers = [str(each) for each in self._session.info.routers_zid()]
            peers = [str(each) for each in self._session.info.peers_zid()]
        return {
            "plugin": "zenoh",
            "place": f"jbi/{self._name}, {len(routers)} routers, {len(peers)} peers",
            "faults": self._faults.counts(),
        }

    def close(self) -> None:
        """See DatagramLink."""
        self._puts.close()
        self._takes.close()
        with suppress(self._error):
            self._session.close()
        self._puts.thread.join(STOP_SECONDS)
        self._takes.thread.join(STOP_SECONDS)
        self._takes.end()


def _configuration(
    library: Any, port: int, host: str, peers: Sequence[tuple[str, int]], mode: str, send_buffer: int
) -> Any:
    has_file = bool(os.environ.get("ZENOH_CONFIG"))
    config = library.Config.from_env() if has_file else library.Config()
    for key, value in SLOW_LINKS.items() if not has_file else ():
        config.insert_json5(key, json.dumps(value))
    if send_buffer:
        config.insert_json5("transport/link/tcp/so_sndbuf", json.dumps(send_buffer))
    if mode:
        config.insert_json5("mode", json.dumps(mode))
    if port:
        config.insert_json5("listen/endpoints", json.dumps([f"tcp/{with_port(host or '::', port)}"]))
    if peers:
        config.insert_json5("connect/endpoints", json.dumps([f"tcp/{with_port(*each)}" for each in peers]))
        config.insert_json5("scouting/multicast/enabled", "false")
    return config


def _declared(library: Any, session: Any, key: str) -> tuple[Any, Any]:
    others = library.Locality.REMOTE
    publisher = session.declare_publisher(
        key, congestion_control=library.CongestionControl.BLOCK, allowed_destination=others
    )
    return publisher, session.declare_subscriber(key, library.handlers.FifoChannel(CHANNEL), allowed_origin=others)


def _library() -> Any:
    try:
        return importlib.import_module("zenoh")
    except ModuleNotFoundError as exc:  # an extra
        raise ConfigurationError(
            "networks over Zenoh need the library `eclipse-zenoh`, which is not installed",
            hint="Install it with: pip install 'jbi-pubsub[zenoh]'",
        ) from exc
