"""The RTI ambassador: how a federate uses a federation execution, wherever its RTI runs.

    class Radar(FederateAmbassador):
        def reflect_attribute_values(self, instance, values, tag, time, retraction): ...

    with RTIAmbassador() as rti:
        rti.connect(Radar())
        rti.join_federation_execution("Air", "radar")
        position = rti.get_attribute_handle(rti.get_object_class_handle("Aircraft"), "position")
        ...
        rti.evoke_callback(1.0)

The RTI is found in the lookup service by the federation's name; no address stands in a federate. One thread of the
ambassador reads what comes, and says every third of a lease that the federate lives. Callbacks wait until they are
evoked. When the RTI is gone, or has resigned the federate, the callback `connection_lost` says so, and calls raise
NotConnected; the federate may join again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from jbi_pubsub.core.arguments import called, check_callbacks
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import ErrorReport, JbiError, LookupNotFoundError, ProtocolError, WireError, rebuild
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.values import converted, decoded, decoder_of
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import DATA, dial
from jbi_pubsub.core.wire.stream import Hello, StreamSocket, greet
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE

from .exceptions import (
    CallNotAllowedFromWithinCallback,
    FederateAlreadyExecutionMember,
    FederateNotExecutionMember,
    FederationExecutionDoesNotExist,
    NotConnected,
)
from .execution import CONVEYED
from .federate import FederateAmbassador
from .fom import Fom, Order, parsed
from .proxy import Layers, Rti, living, modules_of
from .services import FederateServices
from .sessions import FRAME_MOST, LENGTH, Said, received, whole_frames
from .support import SupportServices

FIND_SECONDS: Final = 5.0
"""For a federation to be found in the lookup services."""
ANSWER_SECONDS: Final = 30.0
"""For an RTI to answer a call."""
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


class RTIAmbassador(FederateServices, SupportServices):
    """See the module. For one thread; `evoke_...` and calls of services may be on different ones."""

    def __init__(self, config: Config | None = None) -> None:
        """`config`: that of the process by default (its file and JBI_* variables)."""
        self._config = config or effective()
        self._community: JoinManager | None = None
        self._ambassador = FederateAmbassador()
        self._fom: Fom | None = None
        self._execution: ServiceItem | None = None
        self._federation_name = ""
        self._link: FederateLink | None = None
        self._evoking = False
        self._enabled = True
        self.producing_federate = 0
        """Who has sent what the callback that is being called brings; 0: it is not known, as without
        `set_convey_producing_federate_switch`; -1: the RTI itself."""
        self.sent_order: Order = "receive"
        """In which order that was sent."""
        self._handle = 0
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- coming and going ---------------------------------------------------------------------------------------

    def connect(self, ambassador: FederateAmbassador) -> None:
        """Set the receiver of callbacks; and look for lookup services (clause 4.2). Raises ConfigurationError, and
        ArgumentError for a callback that is an `async def`."""
        callbacks = [name for name in dir(FederateAmbassador) if not name.startswith("_")]
        check_callbacks("RTIAmbassador.connect", "ambassador", ambassador, callbacks)
        self._ambassador = ambassador
        if self._community is None:
            self._community = JoinManager(self._config, name="federate")

    def disconnect(self) -> None:
        """Resign, if that is not done, and end all threads (clause 4.3)."""
        self.leave()
        if self._community is not None:
            self._community.close()
            self._community = None

    def leave(self) -> None:
        """Resign, if that is not done; it can join again."""
        if self._link is not None and not self._link.lost:
            with contextlib.suppress(JbiError):  # the RTI may be gone, and finds out that we are
                self.resign_federation_execution("cancel_then_delete_then_divest")
        self._drop()

    def create_federation_execution(self, name: str, modules: Sequence[str | Path], *, timeout: float = 5.0) -> None:
        """Have an RTI serve another federation execution, with an object model of these files (clause 4.5). Raises
        FederationExecutionAlreadyExists, ErrorReadingFom, InconsistentFom, NotConnected when there is no RTI."""
        parts = modules_of(modules)
        parsed(*parts)
        found = self._found(ServiceTemplate(types=(RTI_TYPE,)), timeout)
        if not found:
            raise NotConnected("no RTI was found", hint="Start one: jbi hla serve")
        self._call(found[0], "create", str, name, parts)

    def destroy_federation_execution(self, name: str, *, timeout: float = FIND_SECONDS) -> None:
        """A federation execution that nobody is joined to ends (clause 4.6). Raises FederatesCurrentlyJoined,
        FederationExecutionDoesNotExist."""
        self._call(self._federation(name, timeout), "destroy", type(None), name)

    def list_federation_executions(self, *, timeout: float = FIND_SECONDS) -> tuple[str, ...]:
        """Names of all federation executions (clause 4.7)."""
        entries = [Rti.from_rep(each) for item in self._found(ServiceTemplate(types=(RTI_TYPE,)), timeout)
                   for each in item.entries if each.cls.name == Rti.entry_name]  # fmt: skip
        return tuple(sorted({each.federation for each in entries if each.federation}))

    def join_federation_execution(
        self,
        federation: str,
        name: str = "",
        *,
        federate_type: str = "",
        resign_action: str = "cancel_then_delete_then_divest",
        modules: Sequence[str | Path] = (),
        timeout: float = FIND_SECONDS,
    ) -> int:
        """Join; the handle of this federate (clause 4.9). `name` is its own in the federation; `federate_type` what it
        is, for who monitors the federation; `resign_action` what is done when it dies; `modules` files that the object
        model of the federation has from then on. Raises FederationExecutionDoesNotExist when none is found within
        `timeout` seconds, FederateNameAlreadyInUse, FederateAlreadyExecutionMember, SaveInProgress,
        InvalidResignAction, ErrorReadingFom, InconsistentFom."""
        if self._link is not None and not self._link.lost:
            raise FederateAlreadyExecutionMember(f"the federate is joined, as {self._name}", hint="Resign first")
        own = modules_of(modules)
        self._drop()
        item = self._federation(federation, timeout)
        token = self._call(item, "join", str, federation, own, [name, resign_action, federate_type])
        self._execution, self._federation_name, self._fom = item, federation, None
        self._learned()
        sock = dial(item.proxy, DATA, self._config.security(), ANSWER_SECONDS)
        try:
            greet(StreamSocket(sock), Hello.of(token))
            self._link = FederateLink(sock)
        except BaseException:
            sock.close()
            raise
        try:
            self._handle, self._name = self._link.join(name, resign_action, federate_type)
        except BaseException:
            self._drop()
            raise
        return self._handle

    def resign_federation_execution(self, action: str = "cancel_then_delete_then_divest") -> None:
        """Leave (clause 4.10). Raises FederateOwnsAttributes, OwnershipAcquisitionPending, InvalidResignAction."""
        self._ask("resign_federation_execution", action)
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _federation(self, name: str, timeout: float) -> ServiceItem:
        template = ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation=name).rep(),))
        found = self._found(template, timeout)
        if not found:
            raise FederationExecutionDoesNotExist(
                f"no federation {name[:200]!r} was found within {timeout:g} s",
                hint="Start it: jbi hla serve --federation NAME --fom FILE",
            )
        return found[0]

    def _found(self, template: ServiceTemplate, timeout: float) -> list[ServiceItem]:
        """Services that match and live, as soon as there are some."""
        if self._community is None:
            raise NotConnected("the ambassador is not connected", hint="Call connect first")
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                held = self._community.lookup(template, timeout=max(0.05, left))
            except LookupNotFoundError as exc:
                raise NotConnected(exc.message, hint=exc.hint) from exc
            found = living(held, self._config.security())
            if found or left <= 0.1:
                return sorted(found, key=lambda item: item.service_id)
            time.sleep(0.1)

    def _call(self, item: ServiceItem, method: str, result: Any, *arguments: Any) -> Any:
        security = self._config.security()
        with contextlib.closing(ControlClient(item.proxy, security, timeout=ANSWER_SECONDS)) as client:
            return client.call(method, result, *arguments)

    # -- services -----------------------------------------------------------------------------------------------

    def _ask(self, service: str, *arguments: Any) -> Any:
        return self._joined().ask(service, arguments)

    def _send(self, service: str, *arguments: Any) -> None:
        self._joined().send(service, arguments)

    def _joined(self) -> FederateLink:
        if self._link is None:
            raise FederateNotExecutionMember("the federate is not joined", hint="Call join_federation_execution")
        return self._link

    @contextlib.contextmanager
    def batched(self) -> Iterator[None]:
        """Updates and interactions without a time are sent together, at the end of the block at the latest."""
        link = self._joined()
        link.batched = True
        try:
            yield
        finally:
            link.batched = False
            link.flush()

    # -- callbacks ----------------------------------------------------------------------------------------------

    def evoke_callback(self, timeout: float = 0.0) -> bool:
        """Have one callback called, waiting `timeout` seconds for it; whether there was one (clause 10.41). What the
        callback raises is raised. Raises CallNotAllowedFromWithinCallback."""
        return self._evoke(time.monotonic() + timeout)

    def evoke_multiple_callbacks(self, minimum: float = 0.0, maximum: float = 0.0) -> bool:
        """Have callbacks called for `minimum` seconds, and as long as there are more, up to `maximum`; whether there
        are more (clause 10.42)."""
        began = time.monotonic()
        while self._evoke(began + minimum):
            if time.monotonic() >= began + max(minimum, maximum):
                break
        return self._link is not None and self._link.waits()

    def enable_callbacks(self) -> None:
        """Callbacks are called again where they are evoked (clause 10.43)."""
        self._enabled = True

    def disable_callbacks(self) -> None:
        """None are called, wherever they are evoked, until they are enabled (clause 10.44)."""
        self._enabled = False

    def _evoke(self, until: float) -> bool:
        if self._evoking:
            raise CallNotAllowedFromWithinCallback(
                "callbacks are evoked from within a callback", hint="Return from it first"
            )
        link = self._joined()
        callbacks = link.taken(1, max(0.0, until - time.monotonic())) if self._enabled else []
        if not callbacks:
            return False
        name, arguments = self._told_by(*callbacks[0])
        act = getattr(self._ambassador, name, None)
        if act is None or name.startswith("_"):
            raise ProtocolError(f"the RTI tells of {name[:100]!r}, which is not a callback")
        if name == "initiate_federate_restore":
            self._handle = arguments[2]
        self._evoking = True
        try:
            called(act, *arguments)
        finally:
            self._evoking = False
        return True

    def _told_by(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """A callback as it is called, without its producer, who is kept."""
        if name in CONVEYED:
            most = CONVEYED[name]
            self.sent_order = "timestamp" if arguments[most - 1] else "receive"
            self.producing_federate = arguments[most] if len(arguments) > most else 0
        return name, arguments[: CONVEYED.get(name)]

    # -- what the object model says -----------------------------------------------------------------------------

    @property
    def fom(self) -> Fom:
        """The object model of the federation. Raises FederateNotExecutionMember."""
        if self._fom is None:
            raise FederateNotExecutionMember("the federate is not joined", hint="Call join_federation_execution")
        return self._fom

    def _learned(self) -> bool:
        if self._execution is None or (self._fom is not None and (self._link is None or self._link.lost)):
            return False
        layers = self._call(self._execution, "modules", Layers, self._federation_name)
        if self._fom is not None and len(layers) == len(self._fom.layers):
            return False
        self._fom = parsed(*layers[0], added=layers[1:])
        return True

    @property
    def federate_handle(self) -> int:
        """This federate's."""
        return self._handle

    @property
    def federate_name(self) -> str:
        """This federate's, also where it gave none."""
        return self._name


class FrameSocket(StreamSocket):
    """The connection of a federate to its RTI, which one thread reads while others write."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.close = sock.close
        self.lease = 10.0
        """Seconds in which it has to be written to."""
        self._alive_at = time.monotonic()
        self._got = bytearray()

    def write(self, entries: list[msgspec.Raw]) -> None:
        """A frame, however long the RTI lets it wait; for one thread at a time. Raises WireError."""
        body = msgspec.msgpack.encode(entries)
        self._alive_at = time.monotonic()
        self.send_frame((LENGTH.pack(len(body)) + body,), timeout=WAITING_SECONDS)

    def is_due(self) -> bool:
        """Whether it should be written to, as a sign of life."""
        return time.monotonic() - self._alive_at > self.lease / 3

    def read(self, timeout: float) -> list[Said]:
        """All that has come, or comes within `timeout` seconds; for one thread at a time. Raises WireError, OSError."""
        said: list[Said] = []
        if not self.has_more(timeout):
            return said
        with self._use:
            data = received(self._sock)
        if data == b"":
            raise WireError("the RTI has ended the connection")
        self._got += data or b""
        for frame in whole_frames(self._got, 4 * FRAME_MOST):
            more: list[Said] = decoded(_SAID, frame, "frame of an RTI")
            said.extend(more)
        return said


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
        self._socket.lease = float(lease)
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
        except WireError as exc:
            self._lose(exc.message)
        except OSError as exc:
            self._lose(f"the connection is lost: {exc}")
        except Exception as exc:  # noqa: BLE001  # the link is over, and says why
            note("federate link", exc)
            self._lose(f"what came from the RTI was not understood: {exc}")

    def _take(self, said: list[Said]) -> None:
        callbacks: list[tuple[str, tuple[Any, ...]]] = []
        answers = []
        for ticket, word, value in said:
            if ticket:
                answers.append((ticket, word, value))
            elif word == "!":
                callbacks.append(("call_refused", (rebuild(converted(value, ErrorReport)),)))
            else:
                callbacks.append((word, tuple(map(_fixed, value))))
        with self._changed:
            self._inbox.extend(callbacks)
            for ticket, word, value in answers:
                if ticket in self._answers:
                    self._answers[ticket] = word, _fixed(value) if word == "" else value
            self._changed.notify_all()
        if callbacks and self.wake is not None:
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
