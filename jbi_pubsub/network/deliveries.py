"""Messages and news of nodes on their way from the network's thread to whoever takes them, in order, on a thread of
their own.

Whoever keeps an order asks up to which serial a log is settled: true is what held when something was put last that has
been taken by now. So no message that the answer counts as come waits here still.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from jbi_pubsub.core.guard import guarded
from jbi_pubsub.network.datagram import DatagramKind
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import PeerChange

DELIVERIES_MOST: Final = 10_000
"""Messages that have come and are not delivered: beyond them, and so many bytes, objects are not taken; beyond
twice as much nothing that is delivered."""
DELIVERIES_BYTES: Final = 64 << 20
UNDELIVERED: Final = frozenset({DatagramKind.REQUEST, DatagramKind.ANNOUNCEMENT, DatagramKind.STREAM})
"""Kinds that never wait here."""
IDLE_SECONDS: Final = 0.1
"""Seconds between two times that `idle` is called."""
STOP_SECONDS: Final = 5.0
LOGS_MOST: Final = 10_000
"""Logs that are looked after; then all are forgotten, and asked for anew."""

Delivered = NodeMessage | PeerChange


class NetworkDeliveries:
    """The queue, and its thread. Any thread."""

    def __init__(
        self, deliver: Callable[[NodeMessage], None], changed: Callable[[PeerChange], None] | None,
        idle: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """These are called one after the other, and may wait; `idle` from time to time."""
        self._deliver, self._changed, self._idle = deliver, changed, idle
        self._queue: queue.SimpleQueue[tuple[Delivered, ...] | None] = queue.SimpleQueue()
        self._bytes = 0
        """Size of what waits."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network-deliveries", daemon=True)
        self._lock = threading.Lock()
        self.expected = self._taken = 0
        """Number of all that have been expected so far, and of those that are done."""
        self._is_taking = False
        """The thread has one in hand, which counts as taken for whoever it is given to."""
        self._settled: dict[tuple[bytes, int], int] = {}
        self._to_be: dict[tuple[bytes, int], tuple[int, int]] = {}
        """Number up to which a log is settled when so many have been taken."""

    def start(self) -> None:
        """Deliver from now on."""
        self._thread.start()

    def expect(self, count: int) -> None:
        """So many more will be put: said under the lock that covers what `settled` is told."""
        with self._lock:
            self.expected += count

    def put(self, *things: Delivered) -> None:
        """Deliver some more that were expected."""
        with self._lock:
            self._bytes += sum(map(_size, things))
        self._queue.put(things)

    def refuses(self, kind: int) -> bool:
        """Whether no more of a kind are to be taken: they can be had again when there is room. Objects leave as much
        room to all others."""
        if kind in UNDELIVERED:
            return False
        times = 1 if kind == DatagramKind.PUBLICATION else 2
        return self._bytes > times * DELIVERIES_BYTES or self.expected - self._taken > times * DELIVERIES_MOST

    def settled(self, origin: bytes, epoch: int, up_to: int, put: int) -> int:
        """The serial up to which all that will come of a log has been taken. `up_to`: that up to which all has come,
        when `put` were expected."""
        key = (origin, epoch)
        with self._lock:
            taken = self._taken + (self._is_taking and threading.current_thread() is self._thread)
            count, serial = self._to_be.get(key, (put, up_to))
            if taken >= count:
                self._settled[key] = max(serial, self._settled.get(key, 0))
                self._to_be.pop(key, None)
            if taken >= put:
                self._settled[key] = max(up_to, self._settled.get(key, 0))
            elif key not in self._to_be:
                self._to_be[key] = (put, up_to)
            found = self._settled.get(key, 0)
            if len(self._settled) > LOGS_MOST or len(self._to_be) > LOGS_MOST:
                self._settled, self._to_be = {}, {}
        return found

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stopping.set()
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stopping.is_set():
            with suppress(queue.Empty):
                if (things := self._queue.get(timeout=IDLE_SECONDS)) is None:
                    return
                for one in things:
                    self._take(one)
            if self._idle is not None and time.monotonic() - looked >= IDLE_SECONDS:
                looked = time.monotonic()
                with guarded("network delivery"):
                    self._idle()

    def _take(self, one: Delivered) -> None:
        if self._stopping.is_set():
            return
        self._is_taking = True
        with guarded("network delivery"):
            if not isinstance(one, PeerChange):
                self._deliver(one)
            elif self._changed is not None:
                self._changed(one)
        with self._lock:
            self._taken, self._is_taking = self._taken + 1, False
            self._bytes -= _size(one)


def _size(one: Delivered) -> int:
    return 0 if isinstance(one, PeerChange) else len(one.body)
