"""The sending end of a stream at a client: a thread that takes items from a source and sends them.

Batches are sent while the window allows, and kept until they are acknowledged. A client has few streams, and a thread
for each; a server has many, and one thread for all (see `hub`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from jbi_pubsub.core.errors import JbiError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.info_object import Part

from .deflate import Compression
from .stream import ACK_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ITEMS, Window, acknowledged
from .stream_socket import StreamSocket

TAKE_SECONDS: Final = 1.0
"""Time that a sender waits for items before it looks whether its connection still stands."""


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
