"""The data plane: batches of items over one socket, in order, acknowledged, resumable.

One mechanism, three uses: publications (publisher -> delegate), deliveries (delegate -> subscriber) and lookup
events (lookup service -> client). Theory of operation:

- The client opens the socket with HELLO (a single-use token from a control call, how far it has received, and which
  compression it would like); the server answers WELCOME (how far it has received, and whether it agrees) or REFUSED.
- The sending side numbers items 1, 2, 3 ... and sends BATCH frames while its window allows: at most
  WINDOW_BATCHES batches and WINDOW_BYTES bytes unacknowledged. It keeps them until they are acknowledged.
- The receiving side hands a batch to its sink and then answers ACK(position, note). A sink that blocks thereby
  slows the sender down: credits end to end. The note carries what the use needs (refusals, consumption).
- Where a batch has to be on disk before it is acknowledged, the next ones are handed on meanwhile.
- After a reconnect both positions are exchanged, what was received is forgotten, the rest is sent again:
  no loss, no duplicates while both ends live.
- If they agreed, a batch that shrinks goes as DEFLATED in place of ITEMS (see `deflate`).
- An idle sender sends at once; under load batches fill up to MAX_BATCH_ITEMS or MAX_BATCH_BYTES.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError, OversizeError, ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.core.values import decoded

from .deflate import DEFLATE, INFLATED_MOST, Compression
from .settlement import Settle, Settlement
from .tls import alert_in, explained

FRAME: Final = struct.Struct("!IB")
BATCH: Final = struct.Struct("!QI")
LENGTH: Final = struct.Struct("!I")
_ITEMS_HEAD: Final = struct.Struct("!IBQI")  # FRAME and BATCH in one
ITEMS_AT: Final = _ITEMS_HEAD.size
"""Where in the frame of a batch its items begin, each behind its LENGTH."""

HELLO, WELCOME, REFUSED, ITEMS, ACK, BYE, DEFLATED = range(1, 8)

MAX_BATCH_ITEMS: Final = 500
"""Beyond about 100 objects a batch gains little (measured 1.1 us an object at 100)."""
MAX_BATCH_BYTES: Final = 256 << 10
"""A batch of this size takes 0.3 s at 7 Mbit/s; larger ones would delay what comes behind."""
FAST_BATCHES, FAST_SECONDS = 4, 0.01
"""Usual batches that go as one where that takes no longer: each batch costs all parties as much as four objects."""
WINDOW_BATCHES: Final = 8
"""Unacknowledged batches; 4 to 8 kept the sockets busy on loopback without filling memory."""
PACED_BATCHES: Final = 256
"""Unacknowledged batches where something else bounds the bytes under way: small ones, over a long way."""
PARTIAL_BATCHES: Final = 2
"""Unacknowledged batches beside which one that is not full may go: a peer that is busy with two gains nothing from a
third one, and the third gains by waiting (RFC 896 says the same of segments)."""
WINDOW_BYTES: Final = 4 << 20
"""Unacknowledged bytes; a single larger object may still go when nothing else is under way."""
MAX_ITEM_BYTES: Final = MEMORY_BYTES
"""Largest item, and the most that an object takes in memory. Checked before anything is allocated."""
STEP_BYTES: Final = 3 << 19
"""Most memory taken for what a frame announces before that has come: room for the batches of a fast link in one."""
ACK_BYTES: Final = 1 << 20
"""Largest acknowledgement: consumption of 100,000 subscriptions."""
CHUNK_BYTES: Final = MAX_BATCH_BYTES
"""Larger items go in chunks of this size, if nobody sets a smaller one; others take turns between them."""
MAX_FRAME_BYTES: Final = MAX_ITEM_BYTES + MAX_BATCH_BYTES + (1 << 20)

SEND_SECONDS: Final = 30.0
"""A peer that takes nothing of a batch for so long is disconnected (it may come back and resume)."""
TAKE_SECONDS: Final = 1.0
"""Time that a sender waits for items before it looks whether its connection still stands."""
HANDSHAKE_SECONDS: Final = 10.0
ACK_SECONDS: Final = 0.001
"""Time that an acknowledgement waits for more batches to go with it, while they come one upon the other."""
IDLE_SECONDS: Final = 3600.0
"""Length of one wait for a frame before it is begun again; keepalive notices dead peers long before."""
BLOCKED_SECONDS: Final = 5
"""Time that the system waits for bytes in one call, without a poll before it."""
AHEAD_BYTES: Final = 8 << 10
"""Read at once where a frame begins: head and body of a small one, and what comes behind it, in one call."""
LARGE_BYTES: Final = 64 << 10
"""A frame of this size is worth a call of its own for its head."""
GATHERED_MOST: Final = 512
"""Parts that the system is given to gather in one call; it takes 1,024 (IOV_MAX)."""
JOINED_BYTES: Final = 64 << 10
"""Parts of a batch below this size are joined: copying costs less than one more piece for the system to gather."""

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First frame of a data socket: the token, the last sequence number the client has received, and the names of
    compressions that it would take, one of which the server may agree to."""

    token: str
    position: int = 0
    compression: tuple[str, ...] = ()

    @classmethod
    def of(cls, token: str, position: int = 0, *, compression: str = "none") -> Hello:
        """With the compression that the configuration names (`link.compression`)."""
        return cls(token, position, () if compression == "none" else (compression,))


_HELLOS: Final = msgspec.msgpack.Decoder(Hello)


class StreamSocket:
    """A socket that one thread may read while another writes, with deadlines; TLS sockets are locked for it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self.compression: Compression | None = None
        """Compression of the batches, if both ends have agreed on it (`greet`, `welcome`)."""
        self._use = threading.Lock()  # OpenSSL objects are not safe for a reader beside a writer
        self._sending = threading.Lock()  # one frame at a time
        self._ahead = bytearray()
        """Read, and of no frame yet."""
        self._was_large = False
        """The last frame was: the next one is likely to be."""
        self._wants_read = False
        """TLS can't write before something has come."""
        self._coming = select.poll()
        self._coming.register(sock, select.POLLIN)
        sock.setblocking(not self._tls)
        if not self._tls:  # the reader waits within `recv`; who sends says each time that it does not wait there
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", BLOCKED_SECONDS, 0))

    def send(self, kind: int, parts: Sequence[Part], timeout: float = SEND_SECONDS) -> None:
        """One frame. Raises WireError or WireTimeoutError; the line is unusable after either."""
        total = sum(map(len, parts))
        if total > MAX_FRAME_BYTES:
            raise OversizeError(f"frame of {total} bytes, the limit is {MAX_FRAME_BYTES}")
        self.send_frame([b"".join([FRAME.pack(total, kind), *parts])], timeout)

    def send_frame(self, frame: Sequence[Part], timeout: float = SEND_SECONDS) -> None:
        """The same for a frame that has its head already (`Batch.frame`)."""
        with self._sending:
            if self.compression is not None:
                frame = deflated(frame, self.compression)
            left, deadline = list(frame), time.monotonic() + timeout
            while left := self._written(left):
                size = sum(map(len, left))
                event = select.POLLIN if self._wants_read else select.POLLOUT
                self._wait(event, deadline, f"{size} bytes unsent")
                deadline = time.monotonic() + timeout  # a slow link is no dead one

    def receive(
        self, timeout: float = IDLE_SECONDS, limit: int = MAX_FRAME_BYTES, *, ahead: int = AHEAD_BYTES
    ) -> tuple[int, memoryview]:
        """The next frame of at most `limit` bytes: (kind, body). Up to `ahead` bytes behind its head are read with it:
        0 for who hands the socket over then. Raises WireError, WireTimeoutError, ProtocolError."""
        deadline = time.monotonic() + timeout
        got = self._ahead
        if self._was_large:  # what is read ahead of a large one would have to be copied, to be in one with the rest
            ahead = 0
        while len(got) < FRAME.size:
            space = bytearray(max(FRAME.size - len(got), ahead))
            read = self._read(space, deadline, len(got), FRAME.size)
            got += memoryview(space)[:read]
        length, kind = FRAME.unpack_from(got)
        if length > limit:
            alert = alert_in(bytes(got[: FRAME.size]))
            raise ProtocolError(alert or f"peer announces a frame of {length} bytes, the limit is {limit}")
        end = FRAME.size + length
        self._was_large = length >= LARGE_BYTES
        if len(got) >= end:
            self._ahead = got[end:]
            return kind, memoryview(got)[FRAME.size : end]
        self._ahead = bytearray()
        return kind, memoryview(self._rest(got, length, time.monotonic() + max(timeout, SEND_SECONDS)))

    def has_more(self, timeout: float) -> bool:
        """Whether there is something to read, or the line is over, within `timeout` seconds."""
        if self._ahead:
            return True
        if isinstance(self._sock, ssl.SSLSocket):
            with self._use:
                if self._sock.pending():
                    return True
        try:
            return bool(self._coming.poll(timeout * 1000))
        except (OSError, ValueError) as exc:
            raise WireError(f"connection lost: {explained(exc)}") from exc

    def takes_more(self) -> bool:
        """Whether the system takes a small frame at once; True for a line that is over, which `send` tells."""
        try:
            poller = select.poll()
            poller.register(self._sock, select.POLLOUT)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return True

    def shut(self) -> None:
        """Wake and end whoever reads or writes; the owner of the socket closes it."""
        with contextlib.suppress(OSError):  # already disconnected
            # Not SSLSocket's own shutdown: that takes the TLS state away from under a thread that reads or writes.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def finish(self) -> None:
        """Nothing is written any more: the peer finds the end behind what was."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def _rest(self, got: bytearray, count: int, deadline: float) -> Part:
        """The body of a frame, of which `got` has the head and a part; not copied, if it comes in one piece."""
        body = got[FRAME.size :]
        while len(body) < count:
            piece = self._piece(min(count - len(body), STEP_BYTES), deadline, len(body), count)
            if len(piece) == count:
                return piece
            body += piece
        return body

    def _piece(self, most: int, deadline: float, at: int, count: int) -> Part:
        """So many bytes behind the first `at` of `count`; fewer when they come slowly."""
        if self._tls:
            space = memoryview(bytearray(most))
            came = 0
            while came < most:
                came += self._read(space[came:], deadline, at + came, count)
            return space
        while True:
            if deadline - time.monotonic() < BLOCKED_SECONDS:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
            try:  # all of it in one call, into memory that nobody has to clear before
                data = self._sock.recv(most, socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            if not data:
                raise WireError("connection closed by the peer")
            return data

    def _read(self, space: bytearray | memoryview, deadline: float, at: int, count: int) -> int:
        """Bytes read into `space`, at least one, after the first `at` of `count`."""
        while True:
            if not self._tls and deadline - time.monotonic() < BLOCKED_SECONDS:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
            try:
                if self._tls:
                    with self._use:
                        read = self._sock.recv_into(space)
                else:
                    read = self._sock.recv_into(space)
            except BlockingIOError:
                continue
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, deadline, f"{at} of {count} bytes received")
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, deadline, "TLS renegotiation")
                continue
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            if not read:
                raise WireError("connection closed by the peer")
            return read

    def _written(self, parts: list[Part]) -> list[Part]:
        """Write as much as the socket takes now; the rest."""
        self._wants_read = False
        if self._tls and len(parts) > 1:
            parts = [b"".join(parts)]
        while parts:
            try:
                if self._tls:
                    with self._use:
                        sent = self._sock.send(parts[0])
                else:
                    sent = self._sock.sendmsg(parts[:GATHERED_MOST], (), socket.MSG_DONTWAIT)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return parts
            except ssl.SSLWantReadError:
                self._wants_read = True
                return parts
            except (OSError, ValueError) as exc:
                raise WireError(f"connection lost: {explained(exc)}") from exc
            parts = rest_of(parts, sent)
        return parts

    def _wait(self, event: int, deadline: float, doing: str) -> None:
        left = deadline - time.monotonic()
        try:
            poller = select.poll()
            poller.register(self._sock, event)
            ready = left > 0 and poller.poll(left * 1000)
        except (OSError, ValueError) as exc:
            raise WireError(f"connection lost: {explained(exc)}") from exc
        if not ready:
            raise WireTimeoutError(f"peer is too slow: {doing}")


def rest_of(parts: list[Part], sent: int) -> list[Part]:
    """Rest of parts, of which so many bytes were sent."""
    for at, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[at + 1 :]] if sent else parts[at:]
        sent -= len(part)
    return []


def joined(parts: list[Part], size: int) -> list[Part]:
    """The same bytes in fewer parts: small ones joined, large ones not copied. `size`: of all of them."""
    if size < JOINED_BYTES or max(map(len, parts)) < JOINED_BYTES:
        return [b"".join(parts)]
    found: list[Part] = []
    small: list[Part] = []
    for part in parts:
        if len(part) < JOINED_BYTES:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    return [*found, b"".join(small)] if small else found


def deflated(frame: Sequence[Part], compression: Compression) -> Sequence[Part]:
    """Replacement that is sent for a frame, if it carries a batch that shrinks; else the frame."""
    if frame[0][FRAME.size - 1] != ITEMS:
        return frame
    size = sum(map(len, frame)) - FRAME.size
    if size > INFLATED_MOST:
        compression.passed(size)
        return frame
    packed = compression.deflate(b"".join(frame)[FRAME.size :])
    return frame if packed is None else [FRAME.pack(len(packed), DEFLATED), packed]


def inflated(kind: int, body: memoryview, compression: Compression | None) -> memoryview:
    """The batch in a frame of either kind. Raises ProtocolError when it is none, or not what was agreed on."""
    if kind == ITEMS:
        if compression is not None:
            compression.passed(len(body))
        return body
    if kind != DEFLATED or compression is None:
        raise ProtocolError(f"frame of kind {kind} where a batch belongs")
    return compression.inflate(body)


class ItemSource(Protocol):
    """Where a sender takes items from."""

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        """Items that wait, in order, at once; [] when nothing does. An item is the parts of its bytes."""
        ...

    def is_full(self) -> bool:
        """Whether a full batch waits."""
        ...

    def is_empty(self) -> bool:
        """Whether `take` would give nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Items on their way: the sequence number of the last, how many, and the frame that carries them (its head, then
    the items with their lengths before them), in parts that may be shared with other senders."""

    last: int
    count: int
    size: int
    frame: list[Part]
    made: float = 0.0
    """When, in seconds of its sender's clock."""
    under_way: int = 0
    """Bytes that had to arrive until it had: its own, and those before it that were not acknowledged then."""


class Window:
    """Items sent to one receiver that it has not acknowledged yet: numbers, what to send again, whether more may go.

    Pure: no socket, thread or clock. Not thread-safe; the owner's lock covers it, or its one thread.
    """

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._rate = 0.0  # bytes a second that have arrived, by the last acknowledgement
        self.sequence = 0
        """Number of the last item sent, or about to be."""
        self.position = 0
        """Number of the last item acknowledged."""

    @property
    def unacknowledged(self) -> int:
        """Items sent or about to be, not yet acknowledged."""
        return self.sequence - self.position

    def may_add(self, most: int = WINDOW_BATCHES) -> bool:
        """Whether one more batch may be under way, of `most` in all."""
        return not self._batches or (len(self._batches) < most and self._bytes < WINDOW_BYTES)

    def may_add_partial(self) -> bool:
        """Whether one that is not full may be."""
        return len(self._batches) < PARTIAL_BATCHES and self._bytes < WINDOW_BYTES

    def add(self, items: Sequence[Sequence[Part]], now: float = 0.0) -> Batch:
        """Number the items, and keep them as one batch until they are acknowledged. An item is the parts of its bytes.

        Raises OversizeError when they do not fit in a frame; nothing is kept then."""
        parts: list[Part] = [b""]
        size = 0
        for item in items:
            length = sum(map(len, item))
            size += LENGTH.size + length
            parts.append(LENGTH.pack(length))
            parts.extend(item)
        if BATCH.size + size > MAX_FRAME_BYTES:
            raise OversizeError(f"batch of {size} bytes, the limit of a frame is {MAX_FRAME_BYTES}")
        count = len(items)
        parts[0] = _ITEMS_HEAD.pack(BATCH.size + size, ITEMS, self.sequence + 1, count)
        self.sequence += count
        batch = Batch(self.sequence, count, size, joined(parts, size), now, self._bytes + size)
        self._batches.append(batch)
        self._bytes += size
        return batch

    def batch_bytes(self, usual: int, compression: Compression | None = None) -> int:
        """Bytes that the next batch is filled up to: `usual`, or more in clear where that takes up to FAST_SECONDS."""
        return max(usual, (compression is None) * min(FAST_BATCHES * usual, int(self._rate * FAST_SECONDS)))

    def acknowledge(self, position: int, now: float = 0.0) -> int:
        """The receiver has all up to `position`; how many items it has more than before. Raises ProtocolError when it
        was never sent so many, or had acknowledged more."""
        if not self.position <= position <= self.sequence:
            raise ProtocolError(f"peer is at {position}, we are at {self.position}..{self.sequence}")
        count, self.position = position - self.position, position
        while self._batches and self._batches[0].last <= position:
            gone = self._batches.popleft()
            self._bytes -= gone.size
            if now > gone.made:
                self._rate = gone.under_way / (now - gone.made)
        return count

    def beyond(self, position: int) -> list[Batch]:
        """Batches with items behind `position`, in order: what to send again. The receiver passes over those items of
        the first one that it has."""
        return [batch for batch in self._batches if batch.last > position]

    def restart(self) -> None:
        """The receiver has forgotten us: begin at 1 again, and forget what was under way."""
        self._batches.clear()
        self._bytes = self.sequence = self.position = 0


def acknowledged(kind: int, body: Part) -> int:
    """The position in a frame from the receiving end; its note is body[8:]. Raises ProtocolError when the frame is no
    acknowledgement, WireError when it says good-bye."""
    if kind == BYE:
        raise WireError("the peer said good-bye")
    if kind != ACK or len(body) < 8:
        raise ProtocolError(f"frame of kind {kind} where an acknowledgement belongs")
    return int.from_bytes(body[:8], "big")


class Sender:
    """The sending end of a client, which has few streams (a server with many has a SenderHub). One thread takes from
    the source and sends; whoever owns the socket calls `run`.

    Who has put something into the source says `push`, which costs next to nothing while the thread is at work, or the
    window closed: it looks again when it has done (`_is_sending`). `_lock` covers all state; the source's `take` and
    the socket are used outside it. (Sending on the caller's own thread was tried: no less work, later by a third of a
    millisecond at 12,500 objects/s, and a signal's handler may end it in the middle of a frame.)
    """

    def __init__(
        self,
        source: ItemSource,
        *,
        name: str,
        acked: Callable[[int, memoryview], None],
        batch_bytes: int = MAX_BATCH_BYTES,
        aged: Callable[[list[Part], float], list[Part]] = lambda frame, _seconds: frame,
    ) -> None:
        """`acked(count, note)`: so many items more were acknowledged, with the receiver's note; `batch_bytes`: what a
        batch is filled up to; `aged(frame, seconds)`: a batch as it is sent again so long after it was made."""
        self._source = source
        self._aged = aged
        self._batch_bytes = batch_bytes
        self._acked = acked
        self._lock = threading.Lock()  # entered by itself: within Condition.__enter__ a signal's handler may leave it
        self._changed = threading.Condition(self._lock)
        self._line: StreamSocket | None = None
        self._window = Window()
        self._stopping = False
        self._started = False
        self._is_sending = False
        """The thread is at work, or about to be."""
        self._held: list[tuple[Part, ...]] = []
        """Taken from the source, and in no batch yet: what has failed is done again."""
        self._thread = threading.Thread(target=self._send_all, name=f"{name}-send", daemon=True)

    @property
    def unacknowledged(self) -> int:
        """Items sent or about to be, not yet acknowledged."""
        return self._window.unacknowledged

    @property
    def connected(self) -> bool:
        """Whether a socket is attached."""
        return self._line is not None

    @property
    def compression(self) -> Compression | None:
        """Compression of the attached connection, None in clear."""
        line = self._line
        return line.compression if line is not None else None

    def start(self) -> None:
        """Begin, once. Raises WireError after `stop`."""
        with self._lock:
            if self._stopping:
                raise WireError("stopped")
            if not self._started:
                self._started = True
                self._thread.start()
        self.push()

    def push(self) -> None:
        """There is something to take. Raises nothing."""
        try:
            if self._is_sending or self._source.is_empty() or not self._may_send():
                return  # the thread looks again when it has done; and so does who opens the window
        except Exception as exc:  # noqa: BLE001  # noted; `guarded` would cost as much as the rest
            note("sender", exc)
        with self._lock:
            self._is_sending = True
            self._changed.notify_all()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and the connection, within `timeout` seconds. What is unacknowledged stays so."""
        with self._lock:
            self._stopping = True
            line = self._line
            self._changed.notify_all()
        if line:
            line.shut()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def forget_all(self) -> None:
        """The peer has forgotten us: begin at 1 again. The source gives again what was not acknowledged. Not while
        `run` is running."""
        with self._lock:
            while self._is_sending and not self._stopping:
                self._changed.wait(1.0)
            self._held = []
            self._window.restart()

    def run(self, line: StreamSocket, position: int) -> None:
        """Use `line` until it fails: send again what the peer has not received, then read its acknowledgements.

        Always ends with WireError (ProtocolError when the peer breaks the rules).
        """
        with self._lock:
            if self._line is not None:
                self._line.shut()  # a newer connection of the same peer wins
                self._line = None
            count = self._window.acknowledge(position)
        try:
            if count:
                self._acked(count, memoryview(b""))
            self._catch_up(line, position)
            while True:
                self.push()
                self._read_ack(line)
        except (JbiError, OSError):
            raise
        except Exception as exc:
            note("stream of a sender", exc)
            raise WireError(f"sending has failed here: {type(exc).__name__}: {exc}") from exc
        finally:
            with self._lock:
                if self._line is line:
                    self._line = None

    def _catch_up(self, line: StreamSocket, sent: int) -> None:
        """Send what is kept; attach the line at the moment when nothing is left, so that order holds."""
        while True:
            with self._lock:
                waiting = self._window.beyond(sent)
                if self._stopping:
                    raise WireError("stopped")
                if not waiting:
                    self._line = line
                    return
            for batch in waiting:
                line.send_frame(self._aged(batch.frame, time.monotonic() - batch.made))
                sent = batch.last

    def _read_ack(self, line: StreamSocket) -> None:
        try:
            kind, body = line.receive(limit=ACK_BYTES)
        except WireTimeoutError:
            return  # an idle line is no failure
        position = acknowledged(kind, body)
        with self._lock:
            count = self._window.acknowledge(position, time.monotonic())
        self._acked(count, body[8:])

    def _may_send(self) -> bool:
        window = self._window
        return self._line is not None and window.may_add() and (window.may_add_partial() or self._source.is_full())

    def _send_all(self) -> None:
        while True:
            with self._lock:
                while not self._is_sending and not self._stopping:
                    self._changed.wait(TAKE_SECONDS)
                if self._stopping:
                    self._is_sending = False
                    self._changed.notify_all()
                    return
            has_failed = True
            with guarded("sender"):
                self._send_what_waits()
                has_failed = False
            if has_failed:
                with self._lock:
                    self._is_sending = True  # wherever it has failed, it is done again
                    self._changed.wait(TAKE_SECONDS)

    def _send_what_waits(self) -> None:
        while True:
            while self._may_send():
                size = self._window.batch_bytes(self._batch_bytes, self.compression)
                self._held = self._held or self._source.take(MAX_BATCH_ITEMS, size)
                if not self._held:
                    break
                self._send()
            with self._lock:
                self._is_sending = False
                self._changed.notify_all()
            # What came after the last look, and found us at work, is ours.
            if self._source.is_empty() or not self._may_send():
                return
            with self._lock:
                self._is_sending = True

    def _send(self) -> None:
        with self._lock:
            batch = self._window.add(self._held, time.monotonic())
            self._held = []
            line = self._line
        if line is not None:
            try:
                line.send_frame(batch.frame)
            except WireError:
                line.shut()  # `run` notices and ends; the batch is kept and sent again on the next line
            except Exception:
                line.shut()
                raise


class Receiver:
    """The receiving end: hands each item on once, in order. One thread runs it; `report` may come from others.

    What comes after a pause is acknowledged at once. While batches come one upon the other, up to `ack_after` of them
    are acknowledged together, fewer when they have the bytes of a full one, or when no more has come for ACK_SECONDS.
    """

    def __init__(
        self,
        sink: Callable[[list[memoryview]], Settle | None],
        note: Callable[[], bytes],
        *,
        ack_after: int = 1,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """`sink` takes the items of a batch and may block; what it returns is called before the batch is acknowledged,
        by another thread, while the next one is taken. `note()` is what the next ACK carries. `ack_after`: far
        fewer than the sender may have under way, so that it never waits for us. `opened`: each line begins with that;
        what the line before was told may not have come."""
        self._sink = sink
        self._note = note
        self._ack_after = ack_after
        self._opened = opened
        self._line: StreamSocket | None = None
        self._running = threading.Lock()  # held while a line is served: one after the other, never two
        self._reporting = threading.Lock()  # positions go out in their order
        self._has_left = False
        self._unsettled = Settlement(self.report, self.stop, most=WINDOW_BATCHES)
        self.position = 0

    @property
    def compression(self) -> Compression | None:
        """Compression of the connection that is served, None in clear."""
        line = self._line
        return line.compression if line is not None else None

    def run(self, line: StreamSocket, greet_with: Callable[[int], None] | None = None) -> None:
        """Read batches until the line fails. Always ends with WireError.

        A line that is still served is ended first, and its last batch finished; only then `greet_with` is told how
        far we have received, so that the peer sends nothing again that is under way here.
        """
        before = self._line
        if before is not None:
            before.shut()
        if not self._running.acquire(timeout=SEND_SECONDS):
            raise WireTimeoutError("the connection before is still busy")
        try:
            self._line = line
            if greet_with is not None:
                greet_with(self.position)
            self._read_batches(line)
        except (JbiError, OSError):
            raise
        except Exception as exc:
            note("stream of a receiver", exc)
            raise WireError(f"receiving has failed here: {type(exc).__name__}: {exc}") from exc
        finally:
            self.position = self._unsettled.end(self.position)
            if self._line is line:
                self._line = None
            self._running.release()

    def _read_batches(self, line: StreamSocket) -> None:
        self._opened()
        self.report()  # what the last line may have swallowed
        reported = 0.0
        count = size = 0  # of batches that are not acknowledged yet
        while True:
            if count and not (count < self._ack_after and size < MAX_BATCH_BYTES and _goes_on(line, reported)):
                self.report()
                reported = time.monotonic()
                count = size = 0
            try:
                kind, body = line.receive()
            except WireTimeoutError:
                continue  # an idle line is no failure
            if kind == BYE:
                raise WireError("the peer said good-bye")
            if not self._take(inflated(kind, body, line.compression)):
                continue
            count += 1
            size += len(body)

    def report(self) -> None:
        """Send an ACK now. On a dead line nothing is sent: the reconnect carries the position."""
        with self._reporting:
            self._report()

    def report_unless_full(self) -> bool:
        """The same for a thread that may not wait for this peer: False when the socket takes nothing now."""
        line = self._line
        if line is None:
            return True
        if not line.takes_more() or not self._reporting.acquire(blocking=False):
            return False
        try:
            self._report()
        finally:
            self._reporting.release()
        return True

    def _report(self) -> None:
        line = self._line
        if line is not None and not self._has_left:
            try:
                position = self._unsettled.settled(self.position)
                line.send(ACK, [position.to_bytes(8, "big"), self._note()])
            except WireError:
                line.shut()  # `run` notices and ends
            except Exception as exc:  # noqa: BLE001  # noted
                note("acknowledging", exc)
                line.shut()

    def leave(self, timeout: float) -> None:
        """Send a last ACK, and end `run` when the peer has read it, or after `timeout` seconds. A line that is shut at
        once may lose it on its way: what has come and is not read has the peer told that it was broken off."""
        with self._reporting:
            self._report()
            self._has_left = True
            line = self._line
        if line is not None:
            line.finish()
            if self._running.acquire(timeout=timeout):
                self._running.release()
        self.stop()

    def stop(self) -> None:
        """End `run`."""
        line = self._line
        if line is not None:
            line.shut()

    def _take(self, body: memoryview) -> bool:
        """Hand a batch on; whether it may be acknowledged."""
        if len(body) < BATCH.size:
            raise ProtocolError("truncated batch")
        first, count = BATCH.unpack_from(body)
        if first > self.position + 1:
            raise ProtocolError(f"batch starts at {first}, expected {self.position + 1}")
        if count > MAX_BATCH_ITEMS:  # an item of no bytes would cost us fifty times what it costs the peer
            raise ProtocolError(f"batch of {count} items, the limit is {MAX_BATCH_ITEMS}")
        items = _split(body[BATCH.size :], count)
        fresh = items[self.position + 1 - first :]
        settle = self._sink(fresh) if fresh else None
        waits = settle is not None or bool(self._unsettled)
        if waits:
            self._unsettled.put(self.position, settle)
        self.position += len(fresh)
        return not waits


def _goes_on(line: StreamSocket, reported: float) -> bool:
    """Whether more comes at once; for a line that is busy, which was acknowledged moments ago, within ACK_SECONDS."""
    is_busy = time.monotonic() - reported < ACK_SECONDS
    return line.has_more(ACK_SECONDS if is_busy else 0.0)


def _split(body: memoryview, count: int) -> list[memoryview]:
    items = []
    at = 0
    unpack = LENGTH.unpack_from
    for _ in range(count):
        if at + LENGTH.size > len(body):
            raise ProtocolError("truncated batch")
        (length,) = unpack(body, at)
        at += LENGTH.size
        items.append(body[at : at + length])
        at += length
    if at != len(body):
        raise ProtocolError(f"batch of {count} items has {len(body)} bytes, {at} used")
    return items


def greet(line: StreamSocket, hello: Hello) -> int:
    """Client side of the handshake: the server's position. From here on the line is compressed, if the server has
    agreed to that. Raises ProtocolError when refused."""
    line.send(HELLO, [msgspec.msgpack.encode(hello)], HANDSHAKE_SECONDS)
    kind, body = line.receive(HANDSHAKE_SECONDS, limit=1024)
    if kind == REFUSED:
        raise ProtocolError(f"data connection refused: {bytes(body[:200]).decode(errors='replace')}")
    agreed = bytes(body[8:]).decode(errors="replace")
    if kind != WELCOME or len(body) < 8 or agreed not in ("", *hello.compression):
        raise ProtocolError(f"frame of kind {kind} where a welcome belongs")
    if agreed:
        line.compression = Compression()
    return int.from_bytes(body[:8], "big")


def listen(line: StreamSocket) -> Hello:
    """Server side, first half: the client's HELLO."""
    kind, body = line.receive(HANDSHAKE_SECONDS, limit=1024, ahead=0)
    if kind != HELLO:
        raise ProtocolError(f"frame of kind {kind} where a hello belongs")
    return decoded(_HELLOS, body, "hello")


def welcome(line: StreamSocket, position: int, compression: Compression | None = None) -> None:
    """Server side, second half: accept, and say how far we have received. `compression`: what the line uses from here
    on, if the client has asked for it."""
    agreed = DEFLATE if compression is not None else ""
    line.compression = compression
    line.send(WELCOME, [position.to_bytes(8, "big"), agreed.encode()], HANDSHAKE_SECONDS)


def refuse(line: StreamSocket, why: str) -> None:
    """Server side, second half: say no."""
    line.send(REFUSED, [why.encode()[:200]], HANDSHAKE_SECONDS)


class Tokens:
    """Single-use tokens for data connections, each standing for a value. Thread-safe; at most `limit` wait."""

    def __init__(self, new_token: Callable[[], str], *, limit: int = 10_000) -> None:
        self._new_token = new_token
        self._waiting: Cache[str, Any] = Cache(limit)
        self._lock = threading.Lock()

    def issue(self, value: object) -> str:
        """A token; when too many wait, the oldest is forgotten (its client asks again)."""
        token = self._new_token()
        with self._lock:
            self._waiting[token] = value
        return token

    def redeem(self, token: str) -> Any:
        """The value, or None: unknown or used before."""
        with self._lock:
            return self._waiting.pop(token, None)
