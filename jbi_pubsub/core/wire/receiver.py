"""The receiving end of a stream: batches are handed to a sink, and acknowledged.

A sink that blocks slows the sender down. Where a batch has to be on disk before it is acknowledged, the next ones are
handed on meanwhile (see Settlement). What the sender sends again after a reconnect is passed over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.errors import JbiError, ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import note

from .deflate import Compression
from .stream import ACK, BATCH, BYE, MAX_BATCH_BYTES, MAX_BATCH_ITEMS, WINDOW_BATCHES, inflated, split
from .stream_socket import SEND_SECONDS, StreamSocket

ACK_SECONDS: Final = 0.001
"""Time that an acknowledgement waits for more batches to go with it, while they come one upon the other."""
LOOK_SECONDS: Final = 1.0
"""Length of one wait before it is begun again."""

Settle = Callable[[], None]
"""Returns when a batch may be acknowledged, as for whether it is on disk."""


class Settlement:
    """Batches that were handed on and are not acknowledged yet, in order: each is when its `settle` has returned, and
    those before have. A thread of its own waits for that, from the first such batch of a line to its end."""

    def __init__(self, report: Callable[[], None], fail: Callable[[], None], *, most: int) -> None:
        """`report` acknowledges, `fail` ends the line; `most` batches wait, beyond that `put` does."""
        self._most = most
        self._report = report
        self._fail = fail
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Settle | None]] = deque()
        """With the position before."""
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._has_failed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def settled(self, position: int) -> int:
        """Last position that may be acknowledged of what was handed on up to there."""
        try:
            return min(position, self._waiting[0][0])
        except IndexError:
            return position

    def put(self, before: int, settle: Settle | None) -> None:
        """A batch; waits while there are many."""
        with self._changed:
            while len(self._waiting) >= self._most and not self._has_failed:
                self._changed.wait(LOOK_SECONDS)
            self._waiting.append((before, settle))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="acknowledge", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def end(self, position: int) -> int:
        """The line is over: wait for all, and for the thread. The last position that may be acknowledged."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(LOOK_SECONDS)
        position = self.settled(position)
        self._waiting.clear()
        self._thread, self._is_ending, self._has_failed = None, False, False
        return position

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait(LOOK_SECONDS)
                count = len(self._waiting)
            if not count:
                return
            try:
                for _ in range(count):
                    settle = self._waiting[0][1]
                    if settle is not None:
                        settle()
                    with self._changed:
                        self._waiting.popleft()
                        self._changed.notify_all()
            except Exception as exc:  # noqa: BLE001  # noted; as for a sink that fails, the rest comes again
                note("settling what was received", exc)
                with self._changed:
                    self._has_failed = True
                    self._changed.notify_all()
                self._fail()
                return
            self._report()


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
        items = split(body[BATCH.size :], count)
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
