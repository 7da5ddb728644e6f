"""The connection of a joined federate to its RTI: what it sends, answers, callbacks."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import ErrorReport, JbiError, ProtocolError, WireError, rebuild
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.values import converted, decoded, decoder_of
from jbi_pubsub.core.wire.endpoint import wait_for
from jbi_pubsub.core.wire.stream_socket import StreamSocket

from .exceptions import NotConnected
from .sessions import FRAME_MOST, LENGTH, PATIENCE_SECONDS, Said, received, whole_frames

ANSWER_SECONDS: Final = 30.0
"""For an RTI to answer a call, or to send more of what stands before the answer: on a slow line that may be much."""
INBOX_MOST: Final = 200_000
"""Callbacks that wait to be evoked; at more the RTI is not read, which slows down those who send."""
WAITING_SECONDS: Final = 3600.0
"""For an RTI to take something: it lets who sends wait while others do not read."""
BATCH_BYTES: Final = 256 << 10
"""Limit of calls that are sent together, each of which counts as LEAST_BYTES at least: so they are not more than an RTI
takes."""
LEAST_BYTES: Final = 64
CLOSE_SECONDS: Final = 5.0
"""For who reads a connection to let go of it."""
PAUSES: Final = 0.01, 0.25
"""Least and most seconds after which it is looked whether those who wait for what comes, and read it, still do."""
CALL_BYTES: Final = FRAME_MOST - 2 * BATCH_BYTES
"""A frame has what waited before, and one more call."""


class FrameSocket(StreamSocket):
    """The connection of a federate to its RTI, which one thread reads while others write."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.close = sock.close
        self.lease = 10.0
        """Seconds in which it has to be written to."""
        self._alive_at = time.monotonic()
        self.heard_at = 0.0
        """When something has come last."""
        self._got = bytearray()
        self._frames: list[bytes] = []
        """Those that have come whole and are not taken: whoever reads may be interrupted, and nothing is to be lost."""

    def set_lease(self, lease: float) -> None:
        """Be lost no sooner than that has ended."""
        self.lease = lease
        wait_for(self._sock, max(lease, PATIENCE_SECONDS))

    def write(self, entries: list[msgspec.Raw]) -> None:
        """A frame, however long the RTI lets it wait; for one thread at a time. Raises WireError."""
        body = msgspec.msgpack.encode(entries)
        self._alive_at = time.monotonic()
        self.send_frame((LENGTH.pack(len(body)) + body,), timeout=WAITING_SECONDS)

    def is_due(self) -> bool:
        """Whether it should be written to, as a sign of life."""
        return time.monotonic() - self._alive_at > self.lease / 3

    def read(self, timeout: float) -> list[Said]:
        """All that has come and is not taken, or comes within `timeout` seconds; for one thread at a time. Raises
        WireError, OSError."""
        if self.has_more(0.0 if self._frames else timeout):
            with self._use:
                data = received(self._sock)
            if data == b"" and not self._frames:
                raise WireError("the RTI has ended the connection")
            if data:
                self.heard_at = time.monotonic()
            self._got += data or b""
            self._frames += whole_frames(self._got, 4 * FRAME_MOST)
        said: list[Said] = []
        for frame in self._frames:
            more: list[Said] = decoded(_SAID, frame, "frame of an RTI")
            said.extend(more)
        return said

    def take(self) -> None:
        """Forget all that was read last: it is where nothing is lost."""
        self._frames.clear()


class FederateLink:
    """The session of a joined federate: what it sends, answers, callbacks.

    Who waits for an answer or a callback reads the connection himself: to be woken by another thread would cost as much
    as all the rest. In between, and where somebody is to be told of callbacks (`wake`), the link's own thread reads.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = FrameSocket(sock)
        self._sending = threading.Lock()
        self._entries: list[msgspec.Raw] = []
        self._size = 0
        self.batched = False
        self._ticket = 0
        self._changed = threading.Condition()  # covers what follows
        self._answers: dict[int, tuple[str, Any] | None] = {}
        """By ticket; None: it was asked for, and has not come."""
        self._inbox: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._is_read = False
        self._waits = 0
        """Number of waits."""
        self.wake: Callable[[], None] | None = None
        """Called when there are callbacks."""
        self.lost = ""
        """Why there is no connection any more."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="federate-link", daemon=True)
        self._thread.start()

    def join(self, name: str, action: str, kind: str) -> tuple[int, str]:
        """Handle and name. Raises what the RTI refused with."""
        handle, name, lease = self.ask("join_federation_execution", (name, action, *filter(None, (kind,))))
        self._socket.set_lease(float(lease))
        return int(handle), str(name)

    def ask(self, service: str, arguments: Sequence[Any]) -> Any:
        """The answer. Raises what the RTI refused this call with."""
        [answer] = self.ask_all([(service, arguments)])
        if isinstance(answer, JbiError):
            raise answer
        return answer

    def ask_all(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """The answers of calls that are sent together; what one was refused with in its place. Raises NotConnected."""
        with self._changed:
            self._check()
            tickets = range(self._ticket + 1, self._ticket + 1 + len(calls))
            self._ticket += len(calls)
        entries = [_entry(ticket, *call) for ticket, call in zip(tickets, calls, strict=True)]
        with self._changed:
            self._answers.update(dict.fromkeys(tickets))
        for entry in entries:
            self._put(entry)
            if self._size > BATCH_BYTES:
                self.flush()
        self.flush()
        with self._changed:
            heard, end = -1.0, time.monotonic() + WAITING_SECONDS
            while not (self._answers[tickets[-1]] or self.lost) and heard < self._socket.heard_at < end:
                heard = self._socket.heard_at
                self._await(lambda: self._answers[tickets[-1]] or self.lost, ANSWER_SECONDS)
            answers = [self._answers.pop(ticket) for ticket in tickets]
        if None in answers:
            if not self.lost:
                self._lose(f"the RTI has not answered for {ANSWER_SECONDS:g} s")
            raise NotConnected(f"{calls[answers.index(None)][0]} was not answered: {self.lost}", hint="Join again")
        return [
            rebuild(converted(value, ErrorReport)) if word == "!" else value for word, value in filter(None, answers)
        ]

    def send(self, service: str, arguments: Sequence[Any]) -> None:
        """Send a call; the callback `call_refused` tells what the RTI refuses it with. Raises NotConnected."""
        with self._changed:
            self._check()
        self._put(_entry(0, service, arguments))
        if not self.batched or self._size > BATCH_BYTES:
            self.flush()

    def _check(self) -> None:
        if self.lost:
            raise NotConnected(f"the federate is not joined any more: {self.lost}", hint="Join again")

    def _put(self, entry: msgspec.Raw) -> None:
        with self._sending:
            self._entries.append(entry)
            self._size += max(LEAST_BYTES, len(entry))

    def flush(self) -> None:
        """Send what waits. Raises NotConnected."""
        with self._sending:
            entries, self._entries, self._size = self._entries, [], 0
            if entries:
                self._write(entries)

    def _write(self, entries: list[msgspec.Raw]) -> None:
        try:
            self._socket.write(entries)
        except WireError as exc:
            self._lose(exc.message)
            raise NotConnected(f"the federate is not joined any more: {self.lost}", hint="Join again") from exc

    # -- what comes ---------------------------------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether callbacks wait."""
        return bool(self._inbox)

    def taken(self, most: int, timeout: float = 0.0) -> list[tuple[str, tuple[Any, ...]]]:
        """Callbacks that wait, at most so many; none when none comes within `timeout` seconds."""
        with self._changed:
            self._await(lambda: self._inbox or self._closed.is_set(), timeout)
            before = len(self._inbox)
            found = [self._inbox.popleft() for _ in range(min(most, before))]
            if len(self._inbox) <= INBOX_MOST // 2 < before:
                self._changed.notify_all()
        return found

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._socket.shut()
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_read, CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)
        self._socket.close()

    def _lose(self, reason: str) -> None:
        with self._changed:
            if not self.lost:
                self.lost = reason
                if not self._closed.is_set():
                    self._inbox.append(("connection_lost", (reason,)))
            self._changed.notify_all()
        if self.wake is not None:
            self.wake()

    def _await(self, has_come: Callable[[], object], timeout: float) -> None:
        """Under the lock: wait until something has come."""
        end = time.monotonic() + timeout
        while not has_come():
            left = max(0.0, end - time.monotonic())
            self._waits += 1
            if not (self._is_read or self.lost or self.wake is not None):
                self._read(left)
            elif left:
                self._changed.wait(left)
            if not left:
                return

    def _run(self) -> None:
        pause, seen = PAUSES[0], 0
        while not self._closed.wait(pause) and not self.lost:
            with self._changed:
                if self.wake is None and (self._is_read or self._waits != seen):
                    pause, seen = min(2 * pause, PAUSES[1]), self._waits
                else:
                    self._read(self._socket.lease)
                    pause = 0.0 if self.wake is not None or self._waits == seen else PAUSES[0]

    def _read(self, timeout: float) -> None:
        """Under the lock, which is let go meanwhile: take what comes, and give a sign of life where it is due."""
        self._is_read = True
        self._changed.release()
        try:
            with guarded("federate link"):
                self._step(min(timeout, self._socket.lease / 3))
        finally:
            self._changed.acquire()
            self._is_read = False
            self._changed.notify_all()

    def _step(self, timeout: float) -> None:
        try:
            if self._socket.is_due() and self._sending.acquire(blocking=False):  # else there is something better
                try:
                    self._write([])
                finally:
                    self._sending.release()
            if len(self._inbox) < INBOX_MOST:
                self._take(self._socket.read(timeout))
            else:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._inbox) < INBOX_MOST or self._closed.is_set(), timeout)
        except NotConnected:
            return  # it could not give a sign of life, and has said why
        except WireError as exc:
            self._lose(exc.message)
        except OSError as exc:
            self._lose(f"the connection is lost: {exc}")
        except Exception as exc:  # noqa: BLE001  # the link is over, and says why
            note("federate link", exc)
            self._lose(f"what came from the RTI was not understood: {exc}")

    def _take(self, said: list[Said]) -> None:
        callbacks: list[tuple[str, tuple[Any, ...]]] = []
        answers, lost = [], ""
        for ticket, word, value in said:
            if ticket:
                answers.append((ticket, word, value))
            elif word == "!":
                callbacks.append(("call_refused", (rebuild(converted(value, ErrorReport)),)))
            elif word == "connection_lost":
                lost = str(value[0])
            else:
                callbacks.append((word, tuple(map(_fixed, value))))
        with self._changed:
            for ticket, word, value in answers:
                if ticket in self._answers:
                    self._answers[ticket] = word, _fixed(value) if word == "" else value
            self._inbox.extend(callbacks)
            self._socket.take()
            self._changed.notify_all()
        if lost:
            self._lose(lost)
        elif callbacks and self.wake is not None:
            self.wake()


def _entry(ticket: int, service: str, arguments: Sequence[Any]) -> msgspec.Raw:
    """Call, packed as an entry of a frame. Raises ProtocolError."""
    data = msgspec.msgpack.encode((ticket, service, arguments))
    if len(data) > CALL_BYTES:
        raise ProtocolError(f"{service} has {len(data):,} bytes, {CALL_BYTES:,} at most", hint="Send less at once")
    return msgspec.Raw(data)


def _fixed(value: Any) -> Any:
    """Arrays as tuples."""
    return tuple(map(_fixed, value)) if type(value) is list else value


_SAID: Final = decoder_of(list[Said])
