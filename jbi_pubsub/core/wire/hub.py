"""The sending end of many streams in one thread: what a server pushes to its clients.

A thread that reads and one that writes for each of a thousand clients cost more time in switches than in work. One
thread with a selector writes for all and reads all acknowledgements. Theory of operation:

- Whoever has something new for a client says `ready()`, which costs next to nothing and wakes the thread only when it
  is idle. The thread takes one batch from each ready stream in turn, so a large backlog of one holds up no other, and
  sends what the socket takes. What it does not take is sent when there is room; until then nothing more is taken.
- Whoever says `send()` instead takes and sends one batch itself, if the hub's thread is idle and nobody else is at that
  stream: no wake-up, no switch of threads. (While the thread is busy, what comes meanwhile makes its batches larger.)
  It never waits, and leaves all that may take its time to the hub's thread: what the socket does not take, whatever
  there is beyond a batch, TLS, compression, the end of a connection.
- A stream's `_turning` is held by whoever uses its connection and window. The hub's thread waits for it, which is for
  one batch at most; others don't: what they have found busy they leave to the hub's thread.
- The window, what is sent again after a reconnect, and the frames are those of Sender (see `stream`).
- The handshake is done by the connection's own thread, which then hands the socket over and ends.
- A hub may have Turns, which say of *paced* streams whose batch goes next, when, and of which levels. The others have
  turns as they come, as without. Turns learn of each batch that goes, and of each that is acknowledged.

The parts: `poll` waits for sockets and finds peers that take nothing, `hub_connection` is a stream's socket. Whatever
is called on the hub's thread (`take`, `acked`, `ended`) must not block.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from jbi_pubsub.core.errors import JbiError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.info_object import Part

from .deflate import Compression
from .hub_connection import HubConnection, Transport
from .poll import LOOK_SECONDS, SocketPoll, StallWatch
from .stream import MAX_BATCH_BYTES, MAX_BATCH_ITEMS, PACED_BATCHES, Batch, Window, acknowledged
from .stream_socket import SEND_SECONDS

log = logging.getLogger("jbi_pubsub.wire")

FAULT_SECONDS: Final = 0.1
"""Pause after a fault of the selector: it may fail again at once."""
PACED_TURNS: Final = 32
"""Turns of paced streams before sockets are looked at again."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_CLOSED: Final = "the hub has stopped"


class PacedAllowance(NamedTuple):
    """Allowance of a paced stream at its turn: items, bytes (one item may exceed them), and of which levels (a bit
    mask)."""

    max_items: int
    max_bytes: int
    levels: int


class Turns(Protocol):
    """Order in which paced streams send. On the hub's thread but for `put`; none may block."""

    def put(self, sender: HubSender) -> None:
        """Note that it has something to send, maybe at other levels than before. Any thread."""

    def next(self, now: float) -> tuple[HubSender, PacedAllowance] | None:
        """Stream whose turn it is."""

    def wait(self, now: float) -> float | None:
        """Seconds until `next` may say somebody else; None: not before something is put or acknowledged."""

    def sent(self, sender: HubSender, level: int, size: int, now: float) -> None:
        """Note that it has sent so many bytes, its framing included, compressed if that was agreed on. 0: it could not,
        and is put again when it can."""

    def acked(self, sender: HubSender, size: int, now: float) -> None:
        """So many bytes of those are acknowledged."""

    def gone(self, sender: HubSender) -> None:
        """Its connection is over."""


class TurnsAccount:
    """Account of one stream with the Turns of its hub, if it has any: the batches that are under way."""

    def __init__(self, turns: Turns | None) -> None:
        self.level = 0
        """Level of the last batch, where it is paced."""
        self.under_way: deque[tuple[int, int]] = deque()
        """Batches of a paced stream: the last number of each, and its bytes as they went."""
        self._turns = turns

    def sent(self, stream: HubSender, last: int, size: int, now: float) -> None:
        """A batch with items up to `last` has gone, in so many bytes; 0: none could."""
        if self._turns is None:
            return
        if size:
            self.under_way.append((last, size))
        self._turns.sent(stream, self.level, size, now)

    def acked(self, stream: HubSender, position: int, now: float) -> None:
        """The peer has all items up to `position`."""
        size = 0
        while self.under_way and self.under_way[0][0] <= position:
            size += self.under_way.popleft()[1]
        if size and self._turns is not None:
            self._turns.acked(stream, size, now)

    def gone(self, stream: HubSender) -> None:
        """Its connection is over, and what was under way on it."""
        self.under_way.clear()
        if stream.paced and self._turns is not None:
            self._turns.gone(stream)


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
        self.poll: Final = SocketPoll[HubSender]()
        self.stalls: Final = StallWatch[HubSender](send_seconds, clock())
        self._ready: deque[HubSender] = deque()
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

    def enqueue(self, sender: HubSender) -> None:
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

    def _round(self, happened: Sequence[tuple[HubSender, int]]) -> None:
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

    def _wait(self) -> list[tuple[HubSender, int]]:
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


class HubSender:
    """The sending end of one stream, as Sender is, without a thread.

    Any thread may call what is public, but for `do` and the steps that the hub has it do. Those
    and all else run on the hub's thread, but for `_send_here` and what it calls.
    """

    def __init__(
        self,
        hub: SenderHub,
        *,
        take: Callable[..., Sequence[Sequence[Part]]],
        acked: Callable[[int, bytes], None],
        batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """`take(max_items, max_bytes)`: what goes out next. Fewer items and fewer bytes than that (one item may exceed
        them) means that there is no more until `ready` says so; [] that there is nothing. Of a stream that is paced
        `take(max_items, max_bytes, levels)`, which says by `account.level` at which of them it was.

        `acked(count, note)`: so many items more were acknowledged, with the receiver's note. Neither may block.
        `batch_bytes`: what a batch is filled up to.
        """
        self.paced = False
        """Its turns are given by the hub's Turns, who say so."""
        self.levels: Callable[[], int] = lambda: 1
        """For Turns: a bit mask of what there is something for now."""
        self.backlog: Callable[[], int] = lambda: 0
        """For Turns: its bytes."""
        self.account: Final = TurnsAccount(hub.turns)
        self._hub = hub
        self._batch_bytes = batch_bytes
        self._take = take
        self._acked = acked
        self._turning = threading.Lock()
        """Covers what follows. The selector, and the end of a connection, are the hub's thread's alone."""
        self._window = Window()
        self._connection: HubConnection | None = None
        self._queued = False
        self._wanting = False
        """There may be something to take, but the connection or the window does not allow it yet."""
        self._stopped = False
        self.has_ended = False
        """There was a connection, and there is none now."""

    @property
    def unacknowledged(self) -> int:
        """Items sent or about to be, not yet acknowledged."""
        return self._window.unacknowledged

    @property
    def connected(self) -> bool:
        """Whether a socket is attached."""
        return self._connection is not None

    def ready(self) -> None:
        """There is something to take."""
        if not self._queued:  # two threads at once queue it twice, which costs one empty turn
            self._queued = True
            self._hub.enqueue(self)

    def send(self) -> None:
        """There is something to take: a batch of it goes out at once, on this thread, as far as the socket takes it.
        Never waits; what can't be done without, the hub's thread does.

        `take` is called here, so not to be used under a lock that others need for long.
        """
        if (
            self.paced
            or in_main_thread()
            or self._queued
            or not self._hub.is_idle
            or not self._turning.acquire(blocking=False)
        ):
            self.ready()
            return
        try:
            is_left = self._send_here()
        finally:
            self._turning.release()
        if is_left:
            self.ready()

    @property
    def compression(self) -> Compression | None:
        """Compression of the attached connection, None in clear."""
        connection = self._connection
        return connection.compression if connection is not None else None

    def transport(self) -> Transport | None:
        """State of the way as the system knows it, None where it does not say, or nothing is attached."""
        connection = self._connection
        return Transport.of(connection.sock) if connection is not None else None

    def heard(self) -> None:
        """Turns have it among those who wait: `ready` puts it again from now on."""
        self._queued = False

    def attach(
        self, sock: socket.socket, position: int, *, ended: Callable[[], None], compression: Compression | None = None
    ) -> None:
        """Use `sock` from now on: send again what the peer, which is at `position`, has not received, then the rest;
        compressed, if that was agreed on.

        A newer connection wins over an older one. `ended` is called once, when the connection is over (at once, if the
        hub or this sender has stopped): it closes the socket.
        """
        sock.setblocking(False)
        if not self._hub.order(lambda: self._begin(sock, position, ended, compression)):
            ended()

    def stop(self) -> None:
        """End the connection, and take no other. What is unacknowledged stays so."""
        self._hub.order(self._stop)

    def _stop(self) -> None:
        self._stopped = True
        self.end("stopped")

    def _begin(
        self, sock: socket.socket, position: int, ended: Callable[[], None], compression: Compression | None
    ) -> None:
        self.end("a newer connection has come")
        if self._stopped or self._hub.stopping:
            _tell(ended)
            return
        try:
            self._hub.poll.selector.register(sock, _READ, self)
        except (OSError, ValueError) as exc:
            log.warning("connection refused: %s", exc)
            _tell(ended)
            return
        self.do(self._resume, HubConnection(sock, ended, compression), position)

    def _resume(self, connection: HubConnection, position: int) -> None:
        self._connection = connection  # from here on others send over it, too: behind what was under way
        self.has_ended = False
        count = self._window.acknowledge(position)
        if count:
            self._acked(count, b"")
        for batch in self._window.beyond(position):
            connection.put(batch.frame)
            if self.paced:  # counted again: it goes over the same link, before all else
                self.account.sent(self, batch.last, sum(map(len, batch.frame)), self._hub.clock())
        self._wanting = True
        self.serve(_READ | _WRITE)  # a TLS socket may hold what the selector does not see

    def do(self, step: Callable[..., None], *arguments: object) -> None:
        """Do a step; whatever fails ends this connection, and no other: neither the peer nor the source is trusted so
        far."""
        try:
            with self._turning:
                step(*arguments)
        except Exception as exc:  # noqa: BLE001  # noted
            why = _why(exc)
        else:
            return
        with guarded("the end of a stream"):
            self.end(why)

    def serve(self, mask: int) -> None:
        """The socket can be read, written, or both."""
        connection = self._connection
        if connection is None:
            return
        if connection.failed:
            raise WireError(connection.failed)
        if mask & _READ or connection.tls:
            for kind, body in connection.read():
                self._take_ack(kind, body)
        if connection.unsent and (mask & _WRITE or connection.tls):
            self._flush(connection)
        self._watch(connection)
        if self._wanting:
            self.ready()

    def _take_ack(self, kind: int, body: bytes) -> None:
        count = self._window.acknowledge(acknowledged(kind, body), self._hub.clock())
        if self.account.under_way:
            self.account.acked(self, self._window.position, self._hub.clock())
        self._acked(count, body[8:])

    def turn(self) -> None:
        """Send one batch, if there is one, and the window and the socket have room."""
        self._queued = False
        if self.paced:  # since it was put
            self.ready()
            return
        connection = self._connection
        if connection is not None:
            if connection.failed:
                raise WireError(connection.failed)
            if connection.unsent and self not in self._hub.stalls.unsent:
                self._flush(connection)  # what another thread has left
        batch = self._next_batch(connection)
        if batch is not None and connection is not None:
            connection.put(batch.frame)
            self._flush(connection)
            if self._is_full(batch):
                self.ready()  # there is more; the others come first

    def paced_turn(self, allowance: PacedAllowance) -> None:
        """The same, as Turns allow it."""
        last = sent = 0
        try:
            connection = self._connection
            if connection is not None and connection.failed:
                raise WireError(connection.failed)
            self._wanting = connection is None or connection.unsent > 0 or not self._window.may_add(PACED_BATCHES)
            if connection is None or self._wanting:
                return
            if not connection.is_paced:
                connection.pace()
            items = self._take(*allowance)
            if items:
                batch = self._window.add(items)
                connection.framed = sum(map(len, batch.frame))
                connection.put(batch.frame)
                self._flush(connection)
                last, sent = batch.last, connection.framed
            elif self.levels():  # what it was given its turn for has just gone: it has something else
                self.ready()
        finally:
            self.account.sent(self, last, sent, self._hub.clock())

    def _send_here(self) -> bool:
        """The same on any thread; whether something is left for the hub's. Under `_turning`."""
        connection = self._connection
        if connection is not None and (connection.failed or connection.tls or connection.compression is not None):
            return True
        try:
            batch = self._next_batch(connection)
            if batch is None or connection is None:
                return False
            connection.put(batch.frame)
            connection.write()
        except Exception as exc:  # noqa: BLE001  # noted; whoever had something for this peer has no part in it
            if connection is not None:
                connection.failed = _why(exc)
            return True
        return connection.unsent > 0 or self._is_full(batch)

    def _next_batch(self, connection: HubConnection | None) -> Batch | None:
        if connection is None or connection.unsent or not self._window.may_add():
            self._wanting = True
            return None
        self._wanting = False
        items = self._take(MAX_BATCH_ITEMS, self._window.batch_bytes(self._batch_bytes, self.compression))
        return self._window.add(items, self._hub.clock()) if items else None

    def _is_full(self, batch: Batch) -> bool:
        return batch.count >= MAX_BATCH_ITEMS or batch.size >= self._batch_bytes

    def _flush(self, connection: HubConnection) -> None:
        took = connection.write()
        if not connection.unsent:
            self._hub.stalls.unsent.discard(self)
        elif took or self not in self._hub.stalls.unsent:
            connection.deadline = self._hub.stalls.deadline()  # a slow link is no dead one
            self._hub.stalls.unsent.add(self)
        self._watch(connection)

    def _watch(self, connection: HubConnection) -> None:
        wanted = _READ | _WRITE if connection.wants_room or connection.answers else _READ
        if wanted != connection.watched:
            connection.watched = wanted
            self._hub.poll.selector.modify(connection.sock, wanted, self)

    def drop_if_stalled(self) -> None:
        """Raises WireTimeoutError when the peer has taken nothing for too long."""
        connection = self._connection
        if connection is not None and self._hub.stalls.is_past(connection.deadline):
            raise WireTimeoutError(f"peer is too slow: {connection.unsent} parts unsent")

    def end(self, why: str) -> None:
        """End the connection, if there is one."""
        with self._turning:
            connection, self._connection = self._connection, None
        self.account.gone(self)
        if connection is not None:
            self.has_ended = True
            log.debug("connection ended: %s", why)
            self._hub.stalls.unsent.discard(self)
            try:
                self._hub.poll.selector.unregister(connection.sock)
            finally:
                _tell(connection.ended)


def in_main_thread() -> bool:
    """Whether a signal's handler of the application may end what we do, in the middle of a frame."""
    return threading.current_thread() is threading.main_thread()


def _why(exc: Exception) -> str:
    """Why a connection ends. What nobody expected is noted."""
    if isinstance(exc, (JbiError, OSError)):
        return str(exc) or type(exc).__name__
    note("a stream of the hub", exc)
    return "failure"


def _tell(ended: Callable[[], None]) -> None:
    with guarded("closing a connection"):  # whoever owned it must not end the thread of all others
        ended()
