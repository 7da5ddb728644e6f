"""The sessions of federates at an RTI: sockets, frames, one thread.

A frame is its length (4 bytes, network order) and a msgpack array. What a federate calls comes as entries (ticket,
service, arguments), the first of them its joining; ticket 0 wants no answer. What an RTI says goes as entries (ticket,
word, value): the answer of the call with that ticket ("" and the answer, "!" and an error), or with ticket 0 a callback
by its name and arguments; "!" is then the error of a call that wanted no answer. An empty frame says that its sender
lives.

One thread reads all sockets, has what it reads done, and writes all that was said in a round with one send a session:
between a request and the grants of a hundred others no thread is switched. A session's turn is bounded in calls, bytes
and time. Few calls are done when they come. Many calls, or large ones, wait in a line, of which one session has its
turn in a round; a session is not read again before its calls are done. So nobody waits for the flood of another one.

Who does not read slows down those who send to it: with HIGH_BYTES unsent the others of its group are neither read nor
served, until it has taken RELIEF_BYTES or has ended; when it takes nothing for STALL_SECONDS its session ends. A slow
reader is behind by that much for long: turns are small until it is at LOW_BYTES, so that the others wait for a little
alone. With LOW_BYTES unsent its own calls wait; those of who is behind wait while the others do. Whose calls wait gets
an empty frame every SIGN_SECONDS.
A session from which nothing has come for its lease ends as well. The time in which this thread was kept from listening
counts for nobody.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec

from jbi_pubsub.core.errors import ProtocolError, WireTimeoutError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.values import decoded

log = logging.getLogger("jbi_pubsub.hla")

T = TypeVar("T")

LENGTH: Final = struct.Struct("!I")
FRAME_MOST: Final = 32 << 20
"""Bytes of a frame: a call with the most values, and more."""
CALLS_MOST: Final = 10_000
"""Limit of calls in a frame from a federate."""
LIGHT_BYTES: Final = 64 << 10
"""Calls of at most so many bytes do not wait in the line."""
TURN_CALLS: Final = 1_000
TURN_BYTES: Final = 1 << 20
TURN_SECONDS: Final = 0.01
READ_BYTES: Final = 64 << 10
"""Read at once. For more the C library maps memory anew each time, which costs more than most reads."""
NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
HIGH_BYTES: Final = 4 << 20
LOW_BYTES: Final = 1 << 20
RELIEF_BYTES: Final = 16 << 10
TIGHT_BYTES: Final = 16 << 10
"""Bytes of a turn while somebody of the group is far behind."""
STALL_SECONDS: Final = 30.0
SIGN_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 120.0
"""For TCP to wait for what was sent to be taken, unless the lease is longer: so nobody is lost before that ends, nor
while an RTI lets it wait for others."""
TICK_SECONDS: Final = 1.0
CALL_SECONDS: Final = 10.0
"""For something that is done on the thread while somebody waits."""
ENTRIES_MOST: Final = 5_000
"""Limit of entries in a frame to a federate."""

Call = tuple[int, str, msgspec.Raw]
"""Its arguments are not decoded."""
Said = tuple[int, str, Any]


def whole_frames(got: bytearray, most: int) -> list[bytes]:
    """Frames that have come as a whole, taken out of what has come. Raises ProtocolError for one of more than `most`
    bytes."""
    frames, at = [], 0
    while len(got) - at >= LENGTH.size:
        (length,) = LENGTH.unpack_from(got, at)
        if length > most:
            raise ProtocolError(f"a frame of {length:,} bytes, {most:,} at most")
        end = at + LENGTH.size + length
        if len(got) < end:
            break
        frames.append(memoryview(got)[at + LENGTH.size : end].tobytes())
        at = end
    if at:
        del got[:at]
    return frames


def received(sock: socket.socket) -> bytes | None:
    """Bytes that have come; b"": the other end has closed; None: nothing now. Raises OSError."""
    try:
        return sock.recv(READ_BYTES)
    except NOT_NOW:
        return None


def sent(sock: socket.socket, data: memoryview) -> int:
    """Number of its bytes that have gone. Raises OSError."""
    try:
        return sock.send(data[:READ_BYTES])
    except NOT_NOW:
        return 0


class SessionGroup:
    """Sessions of one federation, which wait for each other."""

    def __init__(self) -> None:
        self.sessions: set[FederateSession] = set()
        self.crowded: set[FederateSession] = set()
        """Sessions whose federate does not read, for which others wait."""
        self.behind: set[FederateSession] = set()
        """Those, and those which were so and are not at LOW_BYTES yet."""


class FederateSession:
    """One federate's connection."""

    def __init__(self, sock: socket.socket, close: Callable[[], None], group: SessionGroup, lease: float) -> None:
        """`close` closes the socket; `lease`: seconds that it may be silent."""
        self.sock = sock
        self.close = close
        self.group = group
        self.lease = lease
        self.federate = 0
        """Its handle; 0: it has not joined, or has resigned."""
        self.said: list[Said] = []
        """Notices that it gets at the end of this round."""
        self.leaving = False
        """Whether it ends when all is written."""
        self.reason = ""
        """Why it has ended."""
        self.heard = 0.0
        self.got = bytearray()
        self.calls: deque[msgspec.Raw] = deque()
        """Calls that are to be done."""
        self.out: deque[memoryview] = deque()
        self.unsent = 0
        self.taken_at = 0.0
        """When it has taken something last, or others have begun to wait for it."""
        self.mask = 0


class Serving(Protocol):
    """Holder of the federations. All is called on the thread of the sessions."""

    def called(self, session: FederateSession, call: Call) -> None:
        """Do what a federate called. Raises nothing that is the federate's fault."""
        ...

    def ended(self, session: FederateSession) -> None:
        """Note that a session is over, for `session.reason`."""
        ...

    def ticked(self) -> None:
        """Do what is done every TICK_SECONDS."""
        ...


class Sessions:
    """All sessions of an RTI. `order`, `done`, `start` and `stop` may be called from any thread, the rest only on its
    own."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._selector = selectors.DefaultSelector()
        self._orders: deque[Callable[[], None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._all: set[FederateSession] = set()
        self._dirty: dict[FederateSession, None] = {}
        self._line: dict[FederateSession, None] = {}
        """Sessions with calls that may be done."""
        self._clock = 0.0
        """Seconds in which this thread has listened: a round adds TICK_SECONDS at most, however long it took."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rti-sessions", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End all sessions, without a word to anybody, and the thread."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def order(self, act: Callable[[], None]) -> None:
        """Have something done on the thread."""
        self._orders.append(act)
        self._wake()

    def done(self, act: Callable[[], T]) -> T:
        """Something done on the thread. Raises what it raises, WireTimeoutError."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(act())
            except BaseException as exc:  # noqa: BLE001  # whoever waits gets it
                result.set_exception(exc)

        self.order(run)
        try:
            return result.result(CALL_SECONDS)
        except TimeoutError as exc:
            raise WireTimeoutError(f"the RTI is busy for more than {CALL_SECONDS:g} s", hint="Try again") from exc

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:
            return  # it is full of these already, or over

    def add(self, session: FederateSession) -> None:
        """A new session."""
        session.sock.setblocking(False)
        self._all.add(session)
        session.group.sessions.add(session)
        self._listen(session)
        if self._coming(session):
            self._do(self._read, session)

    def say(self, session: FederateSession, ticket: int, word: str, value: Any) -> None:
        """Something for a federate, at the end of this round."""
        session.said.append((ticket, word, value))
        self._dirty[session] = None

    def leave(self, session: FederateSession) -> None:
        """End a session when all is written that it is told; it calls nothing any more."""
        session.leaving = True
        session.calls.clear()
        self._dirty[session] = None

    def end(self, session: FederateSession, reason: str) -> None:
        """A session is over."""
        if session not in self._all:
            return
        session.reason = reason
        self._all.discard(session)
        self._dirty.pop(session, None)
        self._line.pop(session, None)
        if session.mask:
            self._selector.unregister(session.sock)
        session.group.sessions.discard(session)
        session.group.behind.discard(session)
        if session in session.group.crowded:
            session.group.crowded.discard(session)
            self._listen_all(session.group)
        session.close()
        self._serving.ended(session)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        began = tick = time.monotonic()
        while not self._stopping.is_set():
            found = self._selector.select(0.0 if self._line else TICK_SECONDS)
            now = time.monotonic()
            self._clock += min(now - began, TICK_SECONDS)
            began = now
            for key, mask in found:
                if key.data is None:
                    self._take_orders()
                    continue
                if mask & selectors.EVENT_READ:
                    self._do(self._read, key.data)
                if mask & selectors.EVENT_WRITE:
                    self._dirty[key.data] = None
            if self._line:
                self._do(self._serve, next(iter(self._line)))
            if now >= tick:
                tick = now + TICK_SECONDS
                self._look()
            while self._dirty:
                self._do(self._write, self._dirty.popitem()[0])
        self._take_orders()  # a session that has come just before is closed as well
        for session in list(self._all):
            session.close()

    def _do(self, act: Callable[[FederateSession], None], session: FederateSession) -> None:
        """Something for a session, whose fault ends that session alone."""
        try:
            if session in self._all:
                act(session)
        except NOT_NOW:
            return
        except ProtocolError as exc:
            self.end(session, exc.message)
        except OSError as exc:
            self.end(session, f"the federate's connection is lost: {exc}")
        except Exception as exc:  # noqa: BLE001  # see above
            note("rti session", exc)
            self.end(session, "a fault of the RTI")

    def _take_orders(self) -> None:
        try:
            self._woken.recv(4096)
        except OSError:
            return
        for _ in range(len(self._orders)):
            with guarded("rti order"):
                self._orders.popleft()()

    def _look(self) -> None:
        with guarded("rti federations"):
            self._serving.ticked()
        for session in list(self._all):
            with guarded("rti sessions"):
                if session in session.group.crowded and self._clock - session.taken_at > STALL_SECONDS:
                    self.end(session, f"the federate has read nothing for {STALL_SECONDS:g} s")
                elif (
                    self._clock - session.heard > session.lease
                    and session not in self._line
                    and not self._waits_for_others(session)
                ):
                    self.end(session, f"nothing has come from the federate for {session.lease:g} s")
                elif (
                    self._clock - session.taken_at > SIGN_SECONDS
                    and not session.out
                    and (session.calls or self._waits_for_others(session))
                ):
                    session.out.append(_SIGN)
                    session.unsent += len(_SIGN)
                    self._dirty[session] = None

    def _read(self, session: FederateSession) -> None:
        while not session.calls:
            data = session.sock.recv(READ_BYTES)
            if not data:
                self.end(session, "the federate's connection was closed")
                return
            session.heard = self._clock
            session.got += data
            if self._take(session) <= LIGHT_BYTES and self._may_call(session):
                self._turn(session)
            self._listen(session)
            if not self._coming(session):
                return

    def _serve(self, session: FederateSession) -> None:
        """The turn of who is first in the line."""
        del self._line[session]
        self._turn(session)
        self._listen(session)
        if self._coming(session):
            self._read(session)

    def _turn(self, session: FederateSession) -> None:
        """Some calls of a session."""
        until, size = time.monotonic() + TURN_SECONDS, 0
        most = TIGHT_BYTES if session.group.behind else TURN_BYTES
        for _ in range(TURN_CALLS):
            if session.leaving:
                session.calls.clear()
            if not session.calls:
                return
            data = session.calls.popleft()
            size += len(data)
            self._serving.called(session, decoded(_CALL, data, "call of a federate"))
            if size > most or time.monotonic() > until:
                return

    @staticmethod
    def _coming(session: FederateSession) -> bool:
        """Whether TLS has read more than it was asked for: the selector does not see that."""
        return isinstance(session.sock, ssl.SSLSocket) and session.sock.pending() > 0

    @staticmethod
    def _take(session: FederateSession) -> int:
        """The calls of all frames that are whole; how many bytes they have."""
        frames = whole_frames(session.got, FRAME_MOST)
        for frame in frames:
            calls: list[msgspec.Raw] = decoded(_CALLS, frame, "frame of a federate")
            session.calls.extend(calls)
        return sum(map(len, frames))

    def _write(self, session: FederateSession) -> None:
        said = session.said
        if said:
            session.said = []
            for at in range(0, len(said), ENTRIES_MOST):
                body = msgspec.msgpack.encode(said[at : at + ENTRIES_MOST])
                session.out.append(memoryview(LENGTH.pack(len(body)) + body))
                session.unsent += LENGTH.size + len(body)
        before = session.unsent
        with suppress(*NOT_NOW):
            while session.out:
                sent = session.sock.send(session.out[0])
                session.unsent -= sent
                if sent == len(session.out[0]):
                    session.out.popleft()
                else:
                    session.out[0] = session.out[0][sent:]
        if session.leaving and not session.out:
            self.end(session, "resigned")
            return
        if session.unsent < before:
            session.taken_at = self._clock
            if session.calls:
                session.heard = self._clock  # it is not read, but reads
        self._crowd(session)
        self._listen(session)

    def _crowd(self, session: FederateSession) -> None:
        crowded, behind = session.group.crowded, session.group.behind
        if session.unsent > HIGH_BYTES and session not in crowded:
            session.taken_at = self._clock
            crowded.add(session)
            behind.add(session)
            self._listen_all(session.group)
        elif session.unsent < HIGH_BYTES - RELIEF_BYTES and session in crowded:
            crowded.discard(session)
            self._listen_all(session.group)
        if session.unsent < LOW_BYTES:
            behind.discard(session)

    def _listen_all(self, group: SessionGroup) -> None:
        for session in group.sessions:
            self._listen(session)

    @staticmethod
    def _waits_for_others(session: FederateSession) -> bool:
        crowded = session.group.crowded
        return bool(crowded) and crowded != {session}

    @staticmethod
    def _may_call(session: FederateSession) -> bool:
        """Whether there is room for what its own calls say to it."""
        group = session.group
        return session.unsent < LOW_BYTES or (session in group.behind and session not in group.crowded)

    def _listen(self, session: FederateSession) -> None:
        """Wait for what is wanted of a session: its turn, when it has calls; else to read; neither while another one of
        its group is crowded. And to write, while there is something."""
        held = self._waits_for_others(session)
        if session.calls and not held and self._may_call(session):
            self._line.setdefault(session)
        else:
            self._line.pop(session, None)
        mask = (0 if held or session.calls else selectors.EVENT_READ) | (selectors.EVENT_WRITE if session.out else 0)
        if mask == session.mask or session not in self._all:
            return
        if not session.mask:
            self._selector.register(session.sock, mask, session)
        elif not mask:
            self._selector.unregister(session.sock)
        else:
            self._selector.modify(session.sock, mask, session)
        if mask & ~session.mask & selectors.EVENT_READ:
            session.heard = self._clock  # of who was not read nothing could come
        session.mask = mask


_CALLS: Final[msgspec.msgpack.Decoder[list[msgspec.Raw]]] = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=CALLS_MOST)]
)
_SIGN: Final = memoryview(LENGTH.pack(1) + msgspec.msgpack.encode([]))
_CALL: Final[msgspec.msgpack.Decoder[Call]] = msgspec.msgpack.Decoder(Call)
