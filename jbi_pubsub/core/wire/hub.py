"""The sending end of many streams in one thread: what a server pushes to its clients.

A thread that reads and one that writes for each of a thousand clients cost more time in switches than in work. One
thread with a selector writes for all and reads all acknowledgements. Theory of operation:

- Whoever has something new for a client says `ready()`, which costs next to nothing and wakes the thread only when it
  is idle. The thread takes one batch from each ready stream in turn, so a large backlog of one holds up no other, and
  sends what the socket takes. What it does not take is sent when there is room; until then nothing more is taken.
- Whoever says `send()` instead sends one batch itself, if that needs no waiting (see `hub_sender`).
- The window, what is sent again after a reconnect, and the frames are those of Sender (see `window`, `stream`).
- The handshake is done by the connection's own thread, which then hands the socket over and ends.

The parts: `poll` waits for sockets, `stalls` finds peers that take nothing, `turns` has the order of paced streams, and
`hub_connection` a stream's socket. Whatever is called on the hub's thread (`take`, `acked`, `ended`) must not block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from jbi_pubsub.core.guard import guarded

from .poll import SocketPoll
from .stalls import LOOK_SECONDS, StallWatch
from .stream_socket import SEND_SECONDS
from .turns import HubStream, Turns

FAULT_SECONDS: Final = 0.1
"""Pause after a fault of the selector: it may fail again at once."""
PACED_TURNS: Final = 32
"""Turns of paced streams before sockets are looked at again."""

_CLOSED: Final = "the hub has stopped"


class SenderHub:
    """One thread that sends for any number of HubSenders."""

    def __init__(
        self,
        *,
        name: str,
        send_seconds: float = SEND_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        """`name` of the thread; `send_seconds`: how long a peer may take nothing of what waits for it; `turns` of paced
        streams."""
        self.clock = clock
        self.turns = turns
        self._regular: tuple[float, Callable[[], None]] | None = None
        self._regular_at = 0.0
        self.poll: Final = SocketPoll()
        self.stalls: Final = StallWatch(send_seconds, clock())
        self._ready: deque[HubStream] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # covers what follows, and _orders: none is taken and then forgotten
        self._started = self.stopping = self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Open what the thread needs and start it: the first time, and not after `stop`."""
        with self._lock:
            if self._started or self.stopping:
                return
            self._started = True
            self.poll.open()
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End all connections and the thread, within `timeout` seconds. Safe to repeat."""
        with self._lock:
            self.stopping = True
            started = self._started
        if not started:
            self._close()
            return
        self.poll.ring()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def order(self, order: Callable[[], None]) -> bool:
        """Have the hub's thread call `order`, in the order of the calls. False: the hub has stopped."""
        with self._lock:
            if self.stopping:
                return False
            self._orders.append(order)
        self.poll.wake()
        return True

    def every(self, seconds: float, step: Callable[[], None]) -> None:
        """Have the hub's thread call `step` about so often, instead of what it was told before. It must not block."""
        self._regular = seconds, step

    @property
    def is_idle(self) -> bool:
        """Whether the thread waits. It may be about to work again."""
        return self.poll.is_asleep

    def enqueue(self, sender: HubStream) -> None:
        """Give the sender a turn soon. Any thread."""
        if sender.paced and self.turns is not None:
            self.turns.put(sender)
        else:
            self._ready.append(sender)
        self.poll.wake()

    # -- the hub's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.stopping:
            waited = False
            with guarded("hub"):
                happened = self._wait()
                waited = True
                self._round(happened)
            if not waited:
                time.sleep(FAULT_SECONDS)
        with guarded("the hub's end"):
            self._close()

    def _round(self, happened: Sequence[tuple[HubStream, int]]) -> None:
        for sender, mask in happened:
            sender.do(sender.serve, mask)
        for _ in range(len(self._orders)):  # what is ordered meanwhile is done in the next round
            with guarded("an order to the hub"):
                self._orders.popleft()()
        for _ in range(len(self._ready)):  # and who gets ready meanwhile has his turn then
            sender = self._ready.popleft()
            sender.do(sender.turn)
        if self.turns is not None:
            self._pace(self.turns)
        if self._regular is not None and self.clock() >= self._regular_at:
            seconds, step = self._regular
            self._regular_at = self.clock() + seconds
            with guarded("a regular step of the hub"):
                step()
        if self.stalls.unsent:
            self._drop_stalled()

    def _pace(self, turns: Turns) -> None:
        for _ in range(PACED_TURNS):
            found = turns.next(self.clock())
            if found is None:
                return
            sender, allowance = found
            sender.do(sender.paced_turn, allowance)

    def _wait(self) -> list[tuple[HubStream, int]]:
        self.poll.is_asleep = True
        busy = self._ready or self._orders or self.stopping
        seconds = 0 if busy else LOOK_SECONDS if self.stalls.unsent else None
        if self.turns is not None and not busy:
            seconds = self._shortened(seconds, self.turns)
        happened = self.poll.wait(seconds)
        self.stalls.listened(self.clock())
        return happened

    def _shortened(self, seconds: float | None, turns: Turns) -> float | None:
        now = self.clock()
        for wait in (turns.wait(now), self._regular_at - now if self._regular is not None else None):
            if wait is not None and (seconds is None or wait < seconds):
                seconds = max(0.0, wait)
        return seconds

    def _drop_stalled(self) -> None:
        for sender in self.stalls.due(self.clock()):
            sender.do(sender.drop_if_stalled)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        while self._orders:  # of those who came while we were stopping: they are told at once
            with guarded("an order to the hub"):
                self._orders.popleft()()
        if not self._started:
            return
        for sender in self.poll.streams():
            with guarded("the end of a stream"):
                sender.end(_CLOSED)
        self._ready.clear()
        self.poll.close()
