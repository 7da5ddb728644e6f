"""The worker of an archive: a process of its own that answers queries, indexes and seals; or, for small machines, a
thread.

Rules:
- Nobody who tells it something waits for it. What is under way is bounded: queries by `More`, the others by their kind.
- It is a fresh interpreter, and ends with the process whose it is, however that ends. Until it has, nobody else has the
  folder: it holds the lock as well.
- A process is started when it is told something first: until then nobody pays for the libraries that it loads.
- When it dies it is started again, after pauses that grow; whoever holds it is asked what it is to be told again.
- Frames: length (u32), MessagePack of one message. Nothing is unpickled.
"""

from __future__ import annotations

import logging
import os
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn

import msgspec

from jbi_pubsub.archive import desk, upkeep
from jbi_pubsub.archive.desk import Desk, Setup
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.child import end, end_with, environment
from jbi_pubsub.core.errors import ProtocolError, StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.protocol.status.archive import WorkerStatus

log = logging.getLogger("jbi_pubsub.archive")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
"""Seconds between a death and the next start."""
GOOD_SECONDS: Final = 30.0
"""Seconds that a worker has to live to be started again at once."""
END_SECONDS: Final = 10.0
"""Seconds that it may take to end."""
READ_BYTES: Final = 64 << 10
"""Read at once; for more the C library maps memory anew each time."""
MAX_FRAME: Final = 1 << 28
"""Two of the largest objects."""
ADDRESS_SPACE: Final = 8 << 30
"""Beside the memory of the index: what runs away ends."""
NICENESS: Final = 5
_LENGTH: Final = struct.Struct("!I")


class Said(msgspec.Struct, frozen=True, tag=True):
    """A line for the log of whoever holds the worker."""

    level: int
    text: str


Asked = (
    desk.Ask
    | desk.More
    | desk.Drop
    | desk.Explain
    | desk.Synced
    | desk.Deleted
    | desk.Rebuild
    | upkeep.Retain
    | upkeep.Free
)
Told = (
    desk.Results
    | desk.ExplainReply
    | desk.Indexed
    | upkeep.Going
    | upkeep.Retained
    | upkeep.Applied
    | upkeep.Stored
    | Said
)


class ThreadWorker:
    """A worker that is a thread of this process."""

    def __init__(self, setup: Setup, hear: Callable[[Told], None]) -> None:
        """`hear` is called by the worker's thread."""
        self._setup = setup
        self._hear = hear
        self._inbox: SimpleQueue[Asked | None] = SimpleQueue()
        """Messages; None: there is something else to do."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="archive-worker", daemon=True)
        self._thread.start()

    def tell(self, message: Asked) -> None:
        """Never waits."""
        self._inbox.put(message)

    def status(self) -> WorkerStatus:
        """Whether it runs."""
        return WorkerStatus(kind="thread", is_running=self._thread.is_alive())

    def close(self) -> None:
        """End it."""
        self._is_closed = True
        self._wake()
        self._thread.join(timeout=END_SECONDS)

    def _run(self) -> None:
        place = Desk(self._setup, self._hear)
        place.wake = self._wake
        work(place, self._receive)

    def _wake(self) -> None:
        self._inbox.put(None)

    def _receive(self, pause: float) -> list[Asked] | None:
        found = []
        with suppress(Empty):
            found.append(self._inbox.get(timeout=max(0.0, pause)))
            while True:
                found.append(self._inbox.get_nowait())
        return None if self._is_closed else [each for each in found if each is not None]


class ProcessWorker:
    """A worker that is a process of its own."""

    def __init__(
        self,
        setup: Callable[[], Setup],
        hear: Callable[[Told], None],
        again: Callable[[Callable[[], None]], Iterable[Asked]],
        *,
        lock: int,
    ) -> None:
        """`setup`: what it is to work on when it starts; `again`: all that it is to be told then, given a function that
        drops what waits to be sent; `hear` is called for what it says, by one thread, as the others are. `lock`: the
        locked file of the folder."""
        self._setup = setup
        self._hear = hear
        self._again = again
        self._lock_file = lock
        self._lock = threading.Lock()
        self._outbox: deque[Asked] = deque()
        self._is_wanted, self._is_closed = threading.Event(), threading.Event()
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.starts = 0
        self.pid = 0
        """0: none is running."""
        self._thread = threading.Thread(target=self._run, name="archive-worker", daemon=True)
        self._thread.start()

    def tell(self, message: Asked) -> None:
        """Never waits."""
        with self._lock:
            if isinstance(message, desk.Synced) and self._outbox and isinstance(self._outbox[-1], desk.Synced):
                self._outbox.pop()  # one that takes nothing for a day has no more to take then
            self._outbox.append(message)
        self._is_wanted.set()
        self._wake()

    def status(self) -> WorkerStatus:
        """Whether it runs, or nobody needs it yet."""
        is_missing = self._is_wanted.is_set() and self.pid == 0
        return WorkerStatus(kind="process", is_running=not is_missing, pid=self.pid, starts=self.starts)

    def close(self) -> None:
        """End it, if need be by force."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._is_wanted.set()
        self._wake()
        self._thread.join(timeout=2 * END_SECONDS)
        os.close(self._wake_out)
        os.close(self._wake_in)

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # full: it wakes anyway
            os.write(self._wake_out, b"\0")

    # -- its thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The thread's life. A child ends with the thread that has started it, so it is this one."""
        pause, backoff = 0.0, Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._is_wanted.wait()
        while not self._is_closed.wait(pause):
            started = time.monotonic()
            with guarded("archive worker"):
                self._live()
            if self._is_closed.is_set():
                return
            lived = time.monotonic() - started
            pause = backoff.pause()
            if lived > GOOD_SECONDS:
                backoff.reset()
                pause = 0.0
            log.error("the archive's worker has ended after %.1f s; it is started again in %.1f s", lived, pause)

    def _live(self) -> None:
        """Start a process, and talk with it until it ends."""
        ours, its = socket.socketpair()
        command = [sys.executable, "-P", "-m", "jbi_pubsub.archive.worker", str(its.fileno()), str(os.getpid())]
        try:
            child = subprocess.Popen(  # noqa: S603  # our own interpreter with words of our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment(),
                pass_fds=(its.fileno(), self._lock_file),
                start_new_session=True,
            )
        except OSError as exc:
            ours.close()
            raise StorageError(f"the archive's worker can't be started: {exc.strerror}") from exc
        finally:
            its.close()
        self.starts += 1
        try:
            first = [self._setup(), *self._again(self._forget)]
            self.pid = child.pid
            self._talk(ours, b"".join(map(_framed, first)))
        finally:
            self.pid = 0
            ours.close()
            end(child, (0, END_SECONDS if self._is_closed.is_set() else 0.0))

    def _talk(self, ours: socket.socket, out: bytes) -> None:
        ours.setblocking(False)
        received = Frames()
        view = memoryview(out)
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            while not self._is_closed.is_set():
                if not view:
                    view = memoryview(self._outgoing())
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if view else 0)
                selector.modify(ours, wanted)
                for key, events in selector.select(1.0):
                    if key.fileobj is not ours:
                        with suppress(BlockingIOError):
                            os.read(self._wake_in, 4096)
                        continue
                    try:
                        if events & selectors.EVENT_WRITE:
                            view = view[ours.send(view) :]
                        data = ours.recv(READ_BYTES) if events & selectors.EVENT_READ else None
                    except BlockingIOError:
                        continue
                    except ConnectionError:
                        return
                    if data == b"":
                        return
                    for frame in received.feed(data or b""):
                        self._take(frame)

    def _forget(self) -> None:
        with self._lock:
            self._outbox.clear()

    def _outgoing(self) -> bytes:
        with self._lock:
            messages, self._outbox = self._outbox, deque()
        return b"".join(map(_framed, messages))

    def _take(self, frame: bytes) -> None:
        message = decoded(_told, frame, "message of the archive's worker")
        if isinstance(message, Said):
            log.log(message.level, "worker: %s", message.text)
        else:
            self._hear(message)


class Frames:
    """Cuts what comes over a socket into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole by now. Raises ProtocolError for one that is too long."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            frame = bytes(memoryview(self._data)[_LENGTH.size : end])
            del self._data[:end]
            yield frame


def work(place: Desk, receive: Callable[[float], Iterable[Asked] | None]) -> None:
    """The life of a worker. `receive` gives what it is told within so many seconds, None: it is to end."""
    try:
        with guarded("archive worker"):
            place.begin()
        pause = 0.0
        while (messages := receive(pause)) is not None:
            pause = 0.2
            for message in messages:
                with guarded("archive worker"):
                    place.take(message)
            with guarded("archive worker"):
                pause = place.step()
    finally:
        place.close()


def _framed(message: object) -> bytes:
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


_told: Final[msgspec.msgpack.Decoder[Told]] = decoder_of(Told)  # type: ignore[arg-type]  # a union of types
_asked: Final[msgspec.msgpack.Decoder[Setup | Asked]] = decoder_of(Setup | Asked)  # type: ignore[arg-type]


# -- in the process -------------------------------------------------------------------------------------------------


class _Line:
    """The worker's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._frames = Frames()
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_in, selectors.EVENT_READ)

    def tell(self, message: Told) -> None:
        """Waits until it is taken. Ends the process when nobody is there any more."""
        try:
            with self._lock:
                self._sock.sendall(_framed(message))
        except OSError:
            os._exit(1)

    def receive(self, pause: float) -> list[Any] | None:
        """Messages that come within so many seconds."""
        ready = [key.fileobj for key, _ in self._selector.select(max(0.0, pause))]
        if self._wake_in in ready:
            os.read(self._wake_in, 4096)
        if self._sock not in ready:
            return []
        data = self._sock.recv(READ_BYTES)
        if not data:
            return None
        return [decoded(_asked, frame, "message to the archive's worker") for frame in self._frames.feed(data)]

    def wake(self) -> None:
        """Have `receive` return. Any thread."""
        with suppress(BlockingIOError):  # full: it returns anyway
            os.write(self._wake_out, b"\0")


class _ToHolder(logging.Handler):
    """Lines of this process's log go to the log of whose it is."""

    def __init__(self, line: _Line) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self._line.tell(Said(record.levelno, self.format(record)))


def main(arguments: list[str]) -> NoReturn:
    """The process's whole life. Its arguments: the number of its socket, and of the process that it is of."""
    if len(arguments) != 2 or not all(word.isdigit() for word in arguments):
        sys.exit("jbi_pubsub.archive.worker is started by a delegate that has an archive, not by hand")
    number, parent = map(int, arguments)
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    os.umask(0o077)  # the index has no word for the rights of its files
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=number) as sock:
        line = _Line(sock)
        logging.basicConfig(handlers=[_ToHolder(line)], format="%(message)s", level=logging.INFO)
        messages: list[Any] = []
        while not messages:
            received = line.receive(60.0)
            if received is None:
                sys.exit(0)
            messages = received
        setup = messages.pop(0)
        if not isinstance(setup, Setup) or not Path(setup.folder).is_dir():
            sys.exit("the archive's worker was told nothing to work on")
        most = ADDRESS_SPACE + setup.memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        place = Desk(setup, line.tell)
        place.wake = line.wake

        def receive(pause: float) -> list[Any] | None:
            nonlocal messages
            first, messages = messages, []
            more = line.receive(0.0 if first else pause)
            return None if more is None else [*first, *more]

        work(place, receive)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
