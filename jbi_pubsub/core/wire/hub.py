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
- The window, what is sent again after a reconnect, and the frames are those of Sender (see `window`, `stream`).
- A peer that takes nothing of what waits for SEND_SECONDS is disconnected, and may come back and resume. The time in
  which this thread was kept from its work counts for nobody.
- The handshake is done by the connection's own thread, which then hands the socket over and ends.
- A hub may have Turns, which say of *paced* streams whose batch goes next, when, and of which levels. The others have
  turns as they come, as without.

Whatever is called on the hub's thread (`take`, `acked`, `ended`) must not block.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from jbi_pubsub.core.errors import JbiError, ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.info_object import Part

from .deflate import Compression
from .stream import ACK_BYTES, FRAME, MAX_BATCH_BYTES, MAX_BATCH_ITEMS, acknowledged, deflated
from .stream_socket import SEND_SECONDS
from .window import PACED_BATCHES, Batch, Window

log = logging.getLogger("jbi_pubsub.wire")

READ_BYTES: Final = 64 << 10
"""Read from a socket at once; acknowledgements have 13 bytes and their note."""
TURN_BYTES: Final = 1 << 20
"""Written to one socket before others get their turn: four full batches."""
TLS_BYTES: Final = 16 << 10
"""Given to a TLS socket at once: one record (RFC 8446, 5.1), so that what the peer takes is seen as it takes it."""
PARTS_AT_ONCE: Final = 64
"""Parts given to one sendmsg; far below IOV_MAX, which is 1,024 on Linux."""
LOOK_SECONDS: Final = 1.0
"""Time between two looks for stalled peers, while something is unsent."""

FAULT_SECONDS: Final = 0.1
"""Pause after a fault of the selector: it may fail again at once."""

TCP_INFO_BYTES: Final = 168
"""Bytes of struct tcp_info, up to its delivery rate (Linux 4.9)."""
PACED_TURNS: Final = 32
"""Turns of paced streams before sockets are looked at again."""
UNSENT_BYTES: Final = 16 << 10
"""Bytes of a paced stream that its socket takes beyond what is under way (TCP_NOTSENT_LOWAT)."""

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
        ...

    def next(self, now: float) -> tuple[HubSender, PacedAllowance] | None:
        """Stream whose turn it is."""
        ...

    def wait(self, now: float) -> float | None:
        """Seconds until `next` may say somebody else; None: not before something is put or acknowledged."""
        ...

    def sent(self, sender: HubSender, level: int, size: int, now: float) -> None:
        """Note that it has sent so many bytes, its framing included, compressed if that was agreed on. 0: it could not,
        and is put again when it can."""
        ...

    def acked(self, sender: HubSender, size: int, now: float) -> None:
        """So many bytes of those are acknowledged."""
        ...

    def gone(self, sender: HubSender) -> None:
        """Its connection is over."""
        ...


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
        self._clock = clock
        self._turns = turns
        self._regular: tuple[float, Callable[[], None]] | None = None
        self._regular_at = 0.0
        self._send_seconds = send_seconds
        self._selector: selectors.BaseSelector
        self._wake_read: socket.socket
        self._wake_write: socket.socket
        self._ready: deque[HubSender] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._unsent: set[HubSender] = set()
        self._look_at = 0.0
        self._looked = clock()
        self._listened = 0.0
        """Seconds in which the thread looked at its sockets: what peers are measured by."""
        self._asleep = False
        """Set by the thread before it looks for work the last time and waits: whoever brings some then wakes it."""
        self._lock = threading.Lock()  # covers what follows, and _orders: none is taken and then forgotten
        self._started = self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Open what the thread needs and start it: the first time, and not after `stop`."""
        with self._lock:
            if self._started or self._stopping:
                return
            self._started = True
            self._selector = selectors.DefaultSelector()
            self._wake_read, self._wake_write = socket.socketpair()
            for end in (self._wake_read, self._wake_write):
                end.setblocking(False)
            self._selector.register(self._wake_read, _READ)
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End all connections and the thread, within `timeout` seconds. Safe to repeat."""
        with self._lock:
            self._stopping = True
            started = self._started
        if not started:
            self._close()
            return
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def order(self, order: Callable[[], None]) -> bool:
        """Have the hub's thread call `order`, in the order of the calls. False: the hub has stopped."""
        with self._lock:
            if self._stopping:
                return False
            self._orders.append(order)
        self.wake()
        return True

    def every(self, seconds: float, step: Callable[[], None]) -> None:
        """Have the hub's thread call `step` about so often, instead of what it was told before. It must not block."""
        self._regular = seconds, step

    @property
    def is_idle(self) -> bool:
        """Whether the thread waits. It may be about to work again."""
        return self._asleep

    def enqueue(self, sender: HubSender) -> None:
        """Give the sender a turn soon. Any thread."""
        if sender.paced and self._turns is not None:
            self._turns.put(sender)
        else:
            self._ready.append(sender)
        self.wake()

    def wake(self) -> None:
        """Wake the thread if it waits."""
        if self._asleep:
            self._asleep = False
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake; closed: it has ended
            self._wake_write.send(b"\0")

    # -- the hub's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
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
            sender._do(sender._serve, mask)
        for _ in range(len(self._orders)):  # what is ordered meanwhile is done in the next round
            with guarded("an order to the hub"):
                self._orders.popleft()()
        for _ in range(len(self._ready)):  # and who gets ready meanwhile has his turn then
            sender = self._ready.popleft()
            sender._do(sender._turn)
        if self._turns is not None:
            self._pace(self._turns)
        if self._regular is not None and self._clock() >= self._regular_at:
            seconds, step = self._regular
            self._regular_at = self._clock() + seconds
            with guarded("a regular step of the hub"):
                step()
        if self._unsent and self._clock() >= self._look_at:
            self._drop_stalled()

    def _pace(self, turns: Turns) -> None:
        for _ in range(PACED_TURNS):
            found = turns.next(self._clock())
            if found is None:
                return
            sender, allowance = found
            sender._do(sender._paced_turn, turns, allowance)

    def _wait(self) -> list[tuple[HubSender, int]]:
        self._asleep = True
        busy = self._ready or self._orders or self._stopping
        seconds = 0 if busy else LOOK_SECONDS if self._unsent else None
        if self._turns is not None and not busy:
            seconds = self._shortened(seconds, self._turns)
        happened = self._selector.select(seconds)
        self._asleep = False
        now = self._clock()
        self._listened += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        served = []
        for key, mask in happened:
            if key.data is None:
                self._wake_read.recv(READ_BYTES)
            else:
                served.append((key.data, mask))
        return served

    def _shortened(self, seconds: float | None, turns: Turns) -> float | None:
        now = self._clock()
        for wait in (turns.wait(now), self._regular_at - now if self._regular is not None else None):
            if wait is not None and (seconds is None or wait < seconds):
                seconds = max(0.0, wait)
        return seconds

    def _drop_stalled(self) -> None:
        self._look_at = self._clock() + LOOK_SECONDS
        for sender in list(self._unsent):
            sender._do(sender._drop_if_stalled)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        while self._orders:  # of those who came while we were stopping: they are told at once
            with guarded("an order to the hub"):
                self._orders.popleft()()
        if not self._started:
            return
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                with guarded("the end of a stream"):
                    key.data._end(_CLOSED)
        self._ready.clear()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()


class HubSender:
    """The sending end of one stream, as Sender is, without a thread.

    Any thread may call what is public. All else runs on the hub's thread, but for `_send_here` and what it calls.
    """

    def __init__(
        self,
        hub: SenderHub,
        *,
        take: Callable[..., Sequence[Sequence[Part]]],
        acked: Callable[[int, bytes], None],
        batch_bytes: int = MAX_BATCH_BYTES,
        levels: Callable[[], int] = lambda: 1,
        backlog: Callable[[], int] = lambda: 0,
    ) -> None:
        """`take(max_items, max_bytes)`: what goes out next. Fewer items and fewer bytes than that (one item may exceed
        them) means that there is no more until `ready` says so; [] that there is nothing. Of a stream that is paced
        `take(max_items, max_bytes, levels)`, which says by `level` at which of them it was.

        `acked(count, note)`: so many items more were acknowledged, with the receiver's note. Neither may block.
        `batch_bytes`: what a batch is filled up to. For Turns: `levels()`, a bit mask of what there is something for
        now, and `backlog()`, its bytes.
        """
        self.paced = False
        """Its turns are given by the hub's Turns, who say so."""
        self.level = 0
        """Level of the last batch, where it is paced."""
        self.levels = levels
        self.backlog = backlog
        self._under_way: deque[tuple[int, int]] = deque()
        """Batches of a paced stream: the last number of each, and its bytes as they went."""
        self._hub = hub
        self._batch_bytes = batch_bytes
        self._take = take
        self._acked = acked
        self._turning = threading.Lock()
        """Covers what follows. The selector, and the end of a connection, are the hub's thread's alone."""
        self._window = Window()
        self._connection: _Connection | None = None
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
        self._end("stopped")

    def _begin(
        self, sock: socket.socket, position: int, ended: Callable[[], None], compression: Compression | None
    ) -> None:
        self._end("a newer connection has come")
        if self._stopped or self._hub._stopping:
            _tell(ended)
            return
        try:
            self._hub._selector.register(sock, _READ, self)
        except (OSError, ValueError) as exc:
            log.warning("connection refused: %s", exc)
            _tell(ended)
            return
        self._do(self._resume, _Connection(sock, ended, compression), position)

    def _resume(self, connection: _Connection, position: int) -> None:
        self._connection = connection  # from here on others send over it, too: behind what was under way
        self.has_ended = False
        count = self._window.acknowledge(position)
        if count:
            self._acked(count, b"")
        for batch in self._window.beyond(position):
            connection.put(batch.frame)
            if self.paced:
                self._count_sent(batch)
        self._wanting = True
        self._serve(_READ | _WRITE)  # a TLS socket may hold what the selector does not see

    def _do(self, step: Callable[..., None], *arguments: object) -> None:
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
            self._end(why)

    def _serve(self, mask: int) -> None:
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
        count = self._window.acknowledge(acknowledged(kind, body), self._hub._clock())
        if self._under_way:
            self._count_acked()
        self._acked(count, body[8:])

    def _turn(self) -> None:
        """Send one batch, if there is one, and the window and the socket have room."""
        self._queued = False
        if self.paced:  # since it was put
            self.ready()
            return
        connection = self._connection
        if connection is not None:
            if connection.failed:
                raise WireError(connection.failed)
            if connection.unsent and self not in self._hub._unsent:
                self._flush(connection)  # what another thread has left
        batch = self._next_batch(connection)
        if batch is not None and connection is not None:
            connection.put(batch.frame)
            self._flush(connection)
            if self._is_full(batch):
                self.ready()  # there is more; the others come first

    def _paced_turn(self, turns: Turns, allowance: PacedAllowance) -> None:
        """The same, as Turns allow it."""
        sent = 0
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
                sent = connection.framed
                self._under_way.append((batch.last, sent))
            elif self.levels():  # what it was given its turn for has just gone: it has something else
                self.ready()
        finally:
            turns.sent(self, self.level, sent, self._hub._clock())

    def _count_sent(self, batch: Batch) -> None:
        """Count also what was under way when a connection broke: it goes again over the same link, before all else."""
        turns = self._hub._turns
        if turns is not None:
            size = sum(map(len, batch.frame))
            self._under_way.append((batch.last, size))
            turns.sent(self, self.level, size, self._hub._clock())

    def _count_acked(self) -> None:
        size, position = 0, self._window.position
        while self._under_way and self._under_way[0][0] <= position:
            size += self._under_way.popleft()[1]
        turns = self._hub._turns
        if size and turns is not None:
            turns.acked(self, size, self._hub._clock())

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

    def _next_batch(self, connection: _Connection | None) -> Batch | None:
        if connection is None or connection.unsent or not self._window.may_add():
            self._wanting = True
            return None
        self._wanting = False
        items = self._take(MAX_BATCH_ITEMS, self._window.batch_bytes(self._batch_bytes, self.compression))
        return self._window.add(items, self._hub._clock()) if items else None

    def _is_full(self, batch: Batch) -> bool:
        return batch.count >= MAX_BATCH_ITEMS or batch.size >= self._batch_bytes

    def _flush(self, connection: _Connection) -> None:
        took = connection.write()
        if not connection.unsent:
            self._hub._unsent.discard(self)
        elif took or self not in self._hub._unsent:
            connection.deadline = self._hub._listened + self._hub._send_seconds  # a slow link is no dead one
            self._hub._unsent.add(self)
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        wanted = _READ | _WRITE if connection.wants_room or connection.answers else _READ
        if wanted != connection.watched:
            connection.watched = wanted
            self._hub._selector.modify(connection.sock, wanted, self)

    def _drop_if_stalled(self) -> None:
        connection = self._connection
        if connection is not None and self._hub._listened >= connection.deadline:
            raise WireTimeoutError(f"peer is too slow: {connection.unsent} parts unsent")

    def _end(self, why: str) -> None:
        with self._turning:
            connection, self._connection = self._connection, None
        self._under_way.clear()
        if self.paced and self._hub._turns is not None:
            self._hub._turns.gone(self)
        if connection is not None:
            self.has_ended = True
            log.debug("connection ended: %s", why)
            self._hub._unsent.discard(self)
            try:
                self._hub._selector.unregister(connection.sock)
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


class Transport(NamedTuple):
    """State of a TCP connection as Linux says it (tcp(7), TCP_INFO): times in ms, bytes; the rate in bytes a second."""

    rtt_ms: float
    retransmits: int
    unsent: int
    rate: int

    @classmethod
    def of(cls, sock: socket.socket) -> Transport | None:
        """None for what is no TCP connection, not open any more, or of a system that says less."""
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except (OSError, AttributeError):
            return None
        if len(info) < TCP_INFO_BYTES:
            return None
        (rtt,), (retransmits,) = struct.unpack_from("I", info, 68), struct.unpack_from("I", info, 100)
        (unsent,), (rate,) = struct.unpack_from("I", info, 144), struct.unpack_from("Q", info, 160)
        return cls(rtt / 1000, retransmits, unsent, rate)


class _Connection:
    """A non-blocking socket, what it has not taken yet, and what has come of a frame."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None], compression: Compression | None) -> None:
        self.sock = sock
        self.ended = ended
        self.compression = compression
        self._plain: deque[Sequence[Part]] = deque()
        """To be compressed when what is before it has gone: one batch at a turn, for it takes milliseconds."""
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.watched = _READ
        self.deadline = 0.0
        """Until when it has to take something, by the hub's `_listened`."""
        self.wants_room = False
        """The socket is full: to be written when the selector says so."""
        self.failed = ""
        """Why it is to end, if that was found on another thread than the hub's."""
        self.answers = False
        """TLS has to write before it can read on (keys are renewed), and the socket is full."""
        self.framed = 0
        """Bytes of the last frame, compressed if it was; where it is paced."""
        self.is_paced = False
        self._out: deque[memoryview] = deque()
        self._came = bytearray()

    @property
    def unsent(self) -> int:
        """Parts that wait."""
        return len(self._out) + len(self._plain)

    def pace(self) -> None:
        """Let what waits wait here, and not in the system, as far as that lets us."""
        self.is_paced = True
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if option is not None and self.sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # an old system: bytes under way are bounded all the same
                self.sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)

    def put(self, frame: Sequence[Part]) -> None:
        """To be written behind what waits."""
        if self.compression is not None:
            self._plain.append(frame)
            return
        self._out.extend([memoryview(part) for part in frame if len(part)])

    def write(self) -> int:
        """Write what the socket takes, at most about TURN_BYTES; how much. Raises OSError."""
        out, took = self._out, 0
        self.wants_room = False
        if self.compression is not None and self._plain and not out:
            frame = deflated(self._plain.popleft(), self.compression)
            if self.is_paced:
                self.framed = sum(map(len, frame))
            out.extend(map(memoryview, frame))
        try:
            while out and took < TURN_BYTES:
                took += self._write_tls() if self.tls else self._write_plain()
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants_room = True
        except ssl.SSLWantReadError:
            pass  # the peer renews its keys: what it sends for that wakes us
        else:
            self.wants_room = bool(out or self._plain)
        return took

    def _write_plain(self) -> int:
        out = self._out
        sent = self.sock.send(out[0]) if len(out) == 1 else self.sock.sendmsg(list(islice(out, PARTS_AT_ONCE)))
        self._drop(sent)
        return sent

    def _write_tls(self) -> int:
        # The same bytes again until they are taken: OpenSSL has begun to encrypt them.
        sent = self.sock.send(self._out[0][:TLS_BYTES])
        self._drop(sent)
        return sent

    def _drop(self, count: int) -> None:
        out = self._out
        while out and count >= len(out[0]):
            count -= len(out.popleft())
        if count:
            out[0] = out[0][count:]

    def read(self) -> list[tuple[int, bytes]]:
        """The frames that have come, of at most ACK_BYTES each. Raises WireError when the peer has closed, OSError,
        ProtocolError."""
        self.answers = False
        try:
            while True:
                data = self.sock.recv(READ_BYTES)
                if not data:
                    raise WireError("connection closed by the peer")
                self._came += data
                if not (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                    break  # what OpenSSL holds decrypted, the selector does not see
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except ssl.SSLWantWriteError:
            self.answers = True
        return self._frames()

    def _frames(self) -> list[tuple[int, bytes]]:
        came, at, frames = self._came, 0, []
        while len(came) - at >= FRAME.size:
            length, kind = FRAME.unpack_from(came, at)
            if length > ACK_BYTES:
                raise ProtocolError(f"peer announces a frame of {length} bytes, the limit is {ACK_BYTES}")
            end = at + FRAME.size + length
            if end > len(came):
                break
            frames.append((kind, bytes(came[at + FRAME.size : end])))
            at = end
        del came[:at]
        return frames
