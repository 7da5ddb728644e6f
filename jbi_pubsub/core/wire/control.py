"""The control plane: restricted rpyc. The only module that knows rpyc.

Rules, each from a failing run of stock rpyc with an untrusted peer:
- Handlers are PING, CLOSE and CALLATTR only; CALLATTR takes the name of an exported object and of one of its
  `@exported` methods. No attribute access, no references to objects, no callbacks, no exceptions by class.
- Arguments and results are one bytes value each (msgpack, decoded against the method's annotations, unknown
  fields refused). Nothing is ever unpickled.
- Frames are capped and compression is refused; one that does not go on ends, at a caller after the call's time, too.
- A frame is looked over before rpyc decodes it: 32 MB of its empty sets would become 3.6 GB.
- A client is asked nothing, a server answered nothing.
- Errors cross as `ErrorReport` and are rebuilt as our own classes. Whatever else a peer says, at either end, is a
  ProtocolError.
- One thread at a time uses a connection; a connection whose call timed out is thrown away.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import socket
import threading
import time
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from rpyc.core import brine, consts
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection
from rpyc.core.service import VoidService
from rpyc.core.stream import SocketStream

from jbi_pubsub.core.errors import (
    ConfigurationError,
    ErrorReport,
    JbiError,
    OversizeError,
    ProtocolError,
    WireError,
    WireTimeoutError,
    rebuild,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.values import decoded, decoder_of

from .dial import dial
from .endpoint import CONTROL, Caller, Login, Security, protocol_in, readable, recv_exactly
from .places import asked_by
from .port_connections import shut
from .ref import PROTOCOL, ServiceRef
from .tls import alert_in, explained

log = logging.getLogger("jbi_pubsub.wire")

MAX_CONTROL_FRAME: Final = 32 << 20
"""Batches of leases and attributes are far smaller, lookups come in pages; rpyc itself would take 4 GiB."""

FRAME_SECONDS: Final = 30.0
"""For the next PIECE_BYTES of a frame once its first byte is there: over a 7,200 bps link they take 9 s."""

PIECE_BYTES: Final = 8 << 10
"""Read and written of a frame at a time."""

FRAME_MOST: Final = 600.0
"""For a whole frame at a server, however it goes on: half a megabyte of that link."""

SLOW_RATE: Final = 500.0
"""Bytes a second that any link carries: what a call has in addition for a large request, FRAME_MOST in all. Whether
nothing goes any more, the connection tells."""

MAX_ANSWER: Final = MAX_CONTROL_FRAME - 1024
"""For arguments and results: a frame without what goes around them."""

MAX_VALUES: Final = 32
"""Values in a frame, tuples included: a call has 12, an answer 6. Bounds its depth as well."""

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds a caller waits for an answer unless it says otherwise."""

FIRST_SECONDS: Final = 15.0
"""Until the first call: whoever connects does it for a call. A large one takes longer, but it has begun."""

IDLE_SECONDS: Final = 60.0
"""Until the next call of a connection over which nobody has got or renewed a lease; who has one may be idle. A client
whose idle connection was closed opens another one with its next call."""

LOGIN: Final = "login"
"""Name of the exported object by whose method `login` a caller says who he is, for all later calls of a connection."""

_own_logins: Final[dict[str, Login]] = {}
"""By address, for servers of this process that know it by a secret."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def trust_own(address: str, login: Login | None) -> None:
    """Set how this process logs in at a server of its own from now on; None: as everywhere."""
    if login is None:
        _own_logins.pop(address, None)
    else:
        _own_logins[address] = login


def own_login(endpoints: tuple[str, ...]) -> Login | None:
    """Login of this process where one of its own servers is; None: there is none."""
    return next((_own_logins[each] for each in endpoints if each in _own_logins), None) if _own_logins else None


def exported(method: F) -> F:
    """Mark a method as callable over the wire: `def method(self, caller: Caller, ...) -> ...`, fully annotated."""
    method.__exported__ = True  # type: ignore[attr-defined]  # a mark on the function, read by ControlServer alone
    return method


def leasing(method: F) -> F:
    """Mark an exported method that grants or renews a lease: the connection of whoever has called it may be idle."""
    method.__leasing__ = True  # type: ignore[attr-defined]  # as above
    return method


class ControlServer:
    """Serves the exported methods of named objects on the sockets an Endpoint hands over.

    The objects' methods run in the connection's thread, several at once: they lock for themselves.
    """

    def __init__(self, exports: Mapping[str, object]) -> None:
        self._exports = dict(exports)
        self.calls = 0

    def serve(self, sock: socket.socket, caller: Caller) -> None:
        """Answer calls until the peer leaves, is idle without a lease, or the socket is shut."""
        connection = _ControlConnection(_Root(self, caller), _Channel(_Stream(sock), compress=False), _CONFIG)
        try:
            while not connection.closed and (left := caller.place.patience(FIRST_SECONDS, IDLE_SECONDS)) > 0:
                connection.serve(timeout=left)
        except (EOFError, OSError, JbiError) as exc:
            log.debug("control connection of %s ended: %s", caller.address, exc)
        finally:
            connection.close()

    def answer(self, caller: Caller, name: object, method: object, request: object) -> tuple[bool, bytes]:
        """(True, result) or (False, ErrorReport), both encoded."""
        self.calls += 1
        failure = ErrorReport("error", f"internal error in {name}.{method}"[:200])
        if caller.place.user:
            caller = dataclasses.replace(caller, identity=caller.place.user)
        asked_by.set(caller.place.peer)
        with caller.place.in_use(), guarded("control call"):
            try:
                target, function, arguments = self._called(name, method, request)
                answer = msgspec.msgpack.encode(function(target, caller, *arguments))
                if len(answer) > MAX_ANSWER:
                    raise OversizeError(f"{name}.{method}: answer of {len(answer)} bytes, the limit is {MAX_ANSWER}")
            except JbiError as exc:
                failure = report(exc)
            else:
                caller.place.leased |= getattr(function, "__leasing__", False)
                return True, answer
        return False, msgspec.msgpack.encode(failure)

    def _called(self, name: object, method: object, request: object) -> tuple[object, Callable[..., Any], Any]:
        """Which object, which of its methods, and the arguments. Raises ProtocolError."""
        target = self._exports.get(name) if isinstance(name, str) else None
        function = getattr(type(target), method, None) if target is not None and isinstance(method, str) else None
        if function is None or not getattr(function, "__exported__", False) or not isinstance(request, bytes):
            raise ProtocolError(f"no exported method {name}.{method}"[:200])
        return target, function, decoded(_decoder(function), request, f"arguments for {name}.{method}")


class ControlClient:
    """Calls exported methods of one service. Safe for several threads: one call at a time uses the connection."""

    def __init__(
        self, ref: ServiceRef, security: Security, *, timeout: float = DEFAULT_TIMEOUT, most: int = MAX_CONTROL_FRAME
    ) -> None:
        """`most`: bytes of an answer."""
        self.ref = ref
        self._most = most
        self._security = security
        self._timeout = timeout
        self._lock = threading.Lock()  # covers _connection; held for a whole call, whose length the timeout bounds
        self._connection: _ControlConnection | None = None
        self._closed = False

    def call(self, method: str, result: type[T] | Any, *arguments: object, timeout: float | None = None) -> T:
        """The decoded result. Raises the service's own JbiError, WireError or WireTimeoutError."""
        if self.ref.methods and method not in self.ref.methods:
            raise ProtocolError(f"{self.ref.exported} has no method {method}")
        request = msgspec.msgpack.encode(arguments)
        if len(request) > MAX_ANSWER:
            raise OversizeError(
                f"{method}: request of {len(request)} bytes, the limit is {MAX_ANSWER}",
                hint="Send less in one call",
            )
        seconds = self._timeout if timeout is None else timeout
        good, answer = self._exchange(method, request, seconds)
        said = f"answer of {self.ref.exported}.{method} at {', '.join(self.ref.endpoints)}"
        if not good:
            raise rebuild(decoded(_ERRORS, answer, said))
        known: T = decoded(decoder_of(result), answer, said)
        return known

    def close(self) -> None:
        """Close the connection; a call under way ends with WireError. Calls after this are refused."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.shut()
        if self._lock.acquire(blocking=False):  # else whoever is in a call takes the connection apart
            try:
                self._drop()
            finally:
                self._lock.release()

    def _exchange(self, method: str, request: bytes, seconds: float) -> tuple[bool, bytes]:
        if not self._lock.acquire(timeout=seconds):
            raise WireTimeoutError(f"{method}: earlier calls to {self.ref.endpoints} took over {seconds:g} s")
        try:
            if self._closed:
                raise WireError(f"connection to {self.ref.exported} is closed")
            connection = self._connected(seconds)
            if self._closed:  # meanwhile
                raise WireError(f"connection to {self.ref.exported} is closed")
            return self._answer(connection, self.ref.exported, method, request, seconds)
        except BaseException:  # an interrupt, too, leaves half an answer behind
            self._drop()
            raise
        finally:
            if self._closed:
                self._drop()
            self._lock.release()

    def _answer(
        self, connection: _ControlConnection, exported: str, method: str, request: bytes, seconds: float
    ) -> tuple[bool, bytes]:
        at = ", ".join(self.ref.endpoints)
        seconds += min(FRAME_MOST, max(0, len(request) - PIECE_BYTES) / SLOW_RATE)
        try:
            connection.limit_frames(seconds, self._most)
            answer = connection.async_request(
                consts.HANDLE_CALLATTR, exported, method, (request,), timeout=seconds
            ).value
        except TimeoutError as exc:
            raise WireTimeoutError(f"{exported}.{method} at {at}: no answer within {seconds:g} s") from exc
        except ProtocolError as exc:
            raise ProtocolError(f"{exported} at {at}: {exc.message}", hint=exc.hint, **exc.facts) from exc
        except (EOFError, OSError) as exc:
            raise WireError(f"{exported} at {at} is gone: {exc}") from exc
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], bytes)):
            raise ProtocolError(f"bad answer of {exported}.{method} at {at}")
        return bool(answer[0]), answer[1]

    def _connected(self, seconds: float) -> _ControlConnection:
        connection = self._connection
        if self._security.tls:
            self._security.tls.look()
        if connection is not None and (connection.closed or connection.is_stale()):
            self._drop()
            connection = None
        if connection is None:
            sock = dial(self.ref, CONTROL, self._security, seconds)
            connection = _ControlConnection(_Root(None, Caller("")), _Channel(_Stream(sock), compress=False), _CONFIG)
            self._connection = connection
            login = self._login()
            if login is not None:
                self._log_in(connection, login, seconds)
        return connection

    def _login(self) -> Login | None:
        """Login at this server; None: as nobody."""
        endpoints, security = self.ref.endpoints, self._security
        own = (login for address, login in security.own if address in endpoints)
        return own_login(endpoints) or next(own, security.login)

    def _log_in(self, connection: _ControlConnection, login: Login, seconds: float) -> None:
        """Before the first call over a connection. Raises AccessDeniedError; ConfigurationError, where others could
        read the password."""
        if not all(map(self._security.may_show_password, self.ref.endpoints)):
            raise ConfigurationError(
                f"refusing to show the password of {login.user} to {', '.join(self.ref.endpoints)} without TLS",
                hint="Set [tls], or tls.insecure = true on a network you trust",
            )
        request = msgspec.msgpack.encode((login.user, login.password))
        good, answer = self._answer(connection, LOGIN, "login", request, seconds)
        if not good:
            raise rebuild(decoded(_ERRORS, answer, f"answer to a login at {', '.join(self.ref.endpoints)}"))

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@lru_cache(maxsize=512)  # one for each exported method; there are a few dozen
def _decoder(function: Callable[..., Any]) -> msgspec.msgpack.Decoder[Any]:
    hints = typing.get_type_hints(function)
    names = list(inspect.signature(function).parameters)[2:]  # without self and caller
    arguments: Any = tuple.__class_getitem__(tuple(hints[n] for n in names))
    return decoder_of(arguments)


_ERRORS: Final = msgspec.msgpack.Decoder(ErrorReport)

_CONFIG: Final = {
    "allow_safe_attrs": False,  # else 7 .__pow__(6000000) stalls everyone
    "allow_exposed_attrs": False,
    "allow_public_attrs": False,
    "allow_all_attrs": False,
    "allow_getattr": False,
    "allow_setattr": False,
    "allow_delattr": False,
    "allow_pickle": False,
    "include_local_traceback": False,
    "include_local_version": False,
    "instantiate_custom_exceptions": False,
    "import_custom_exceptions": False,
    "propagate_KeyboardInterrupt_locally": False,
    "sync_request_timeout": DEFAULT_TIMEOUT,
    "bind_threads": False,
}


class _Root(VoidService):  # type: ignore[misc]  # rpyc is not annotated
    """Root of a connection: the server and who calls."""

    def __init__(self, server: ControlServer | None, caller: Caller) -> None:
        super().__init__()
        self.server = server
        self.caller = caller


class _Stream(SocketStream):  # type: ignore[misc]  # rpyc is not annotated
    """A socket whose frames go on, and end with a deadline; rpyc's own would wait for a half-sent one forever."""

    frame_seconds = FRAME_MOST
    _deadline = 0.0

    def begin_frame(self) -> None:
        """The first byte of a frame is there: from now on it has its time."""
        self._deadline = time.monotonic() + self.frame_seconds

    def read(self, count: int) -> bytes:
        data = bytearray()
        try:
            while (left := count - len(data)) > 0:
                data += recv_exactly(self.sock, min(left, PIECE_BYTES), self._patience())
        except WireError as exc:
            self.close()
            raise EOFError(str(exc)) from exc
        return bytes(data)

    def write(self, data: bytes) -> None:
        self.begin_frame()
        left = memoryview(data)
        try:
            while left:
                self.sock.settimeout(max(0.001, self._patience()))
                left = left[self.sock.send(left[:PIECE_BYTES]) :]
        except (OSError, ValueError) as exc:
            self.close()
            raise EOFError(explained(exc)) from exc

    def _patience(self) -> float:
        return min(FRAME_SECONDS, max(0.0, self._deadline - time.monotonic()))

    def poll(self, timeout: Any) -> bool:
        left = timeout.timeleft() if hasattr(timeout, "timeleft") else timeout
        try:
            return readable(self.sock, 3600.0 if left is None else max(0.0, left))
        except WireError as exc:
            raise EOFError(str(exc)) from exc


class _Channel(Channel):  # type: ignore[misc]  # rpyc is not annotated
    """rpyc's frames, with a limit and without compression (29 kB became 330 MB)."""

    most = MAX_CONTROL_FRAME

    def recv(self) -> bytes:
        self.stream.begin_frame()
        header = self.stream.read(self.FRAME_HEADER.size)
        if theirs := protocol_in(header):
            self.stream.close()
            raise ProtocolError(
                f"the other side speaks protocol {theirs}, and we {PROTOCOL}",
                hint="Have the same version of jbi-pubsub at both ends",
                theirs=theirs,
                ours=PROTOCOL,
            )
        length, compressed = self.FRAME_HEADER.unpack(header)
        if compressed or length > self.most:
            self.stream.close()
            raise ProtocolError(alert_in(header) or f"refused frame: {length} bytes, compressed={compressed}")
        return bytes(self.stream.read(length + 1)[:-1])


class _ControlConnection(Connection):  # type: ignore[misc]  # rpyc is not annotated
    """rpyc's connection with all that refers to objects taken out."""

    @classmethod
    def _request_handlers(cls) -> dict[int, Callable[..., Any]]:
        return {
            consts.HANDLE_PING: cls._handle_ping,
            consts.HANDLE_CLOSE: cls._handle_close,
            consts.HANDLE_CALLATTR: cls._handle_callattr,
        }

    def _dispatch(self, data: bytes) -> None:
        """Whatever cannot be taken as a message is the peer's fault. That of our own methods `answer` has caught."""
        asked = data[:1] == brine.I1.pack(consts.MSG_REQUEST)
        if asked != (self._local_root.server is not None):
            raise ProtocolError("the peer answers what it was not asked" if not asked else "the peer asks its client")
        try:
            check_values(data, 1)
            super()._dispatch(data)
        except (JbiError, EOFError, OSError):
            raise
        except Exception as exc:
            raise ProtocolError(
                f"the peer sent bytes that are not a message: {type(exc).__name__}: {exc}"[:600]
            ) from exc

    def limit_frames(self, seconds: float, most: int) -> None:
        """A frame has no longer than that, as the call has not, and no more bytes."""
        self._channel.stream.frame_seconds = seconds
        self._channel.most = most

    def _handle_callattr(self, obj: object, name: object, args: object, kwargs: object = ()) -> tuple[bool, bytes]:
        root: _Root = self._local_root
        if root.server is None or not isinstance(args, tuple) or len(args) != 1 or kwargs:
            raise ProtocolError("not a server, or not one argument")
        return root.server.answer(root.caller, obj, name, args[0])

    def _box(self, obj: object) -> tuple[int, object]:
        if not brine.dumpable(obj):
            raise ProtocolError(f"{type(obj).__name__} is not a plain value")
        return consts.LABEL_VALUE, obj

    def _unbox(self, package: Any) -> Any:
        label, value = package
        if label != consts.LABEL_VALUE:
            raise ProtocolError("the peer sent a reference to an object")
        return value

    def _box_exc(self, typ: Any, val: Any, _tb: Any) -> Any:
        return f"{typ.__name__}: {val}"[:500].encode(errors="replace").decode()

    def _unbox_exc(self, raw: Any) -> Exception:
        return ProtocolError(f"the peer refused: {raw}"[:600])

    def close(self) -> None:
        """Close at once; rpyc's own would wait for an answer from a silent peer."""
        if not self._closed:
            self._cleanup()

    def shut(self) -> None:
        """Wake and end whoever is in a call. Its state is its own: rpyc's takes apart what another thread uses."""
        sock = self._channel.stream.sock
        if isinstance(sock, socket.socket):  # else closed
            shut(sock)

    def is_stale(self) -> bool:
        """Whether the idle connection has something to read: the peer has closed it."""
        try:
            return bool(self._channel.poll(0))
        except (EOFError, OSError):
            return True


_NOTHING_MORE: Final = frozenset(
    {
        brine.TAG_NONE,
        brine.TAG_TRUE,
        brine.TAG_FALSE,
        brine.TAG_EMPTY_STR,
        brine.TAG_EMPTY_TUPLE,
        *brine.IMM_INTS_LOADER,
    }
)
_BYTES: Final = {brine.TAG_STR1: 1, brine.TAG_STR2: 2, brine.TAG_STR3: 3, brine.TAG_STR4: 4, brine.TAG_FLOAT: 8}
_LONG: Final = {brine.TAG_STR_L1: brine.I1, brine.TAG_INT_L1: brine.I1, brine.TAG_STR_L4: brine.I4}
_VALUES: Final = {brine.TAG_UNICODE: 1, brine.TAG_TUP1: 1, brine.TAG_TUP2: 2, brine.TAG_TUP3: 3, brine.TAG_TUP4: 4}
"""Parts behind brine's tags: so many bytes; a length and so many bytes; so many values. We have no use for others."""


def check_values(data: bytes, at: int) -> None:
    """Raises ProtocolError unless `data` hold from `at` on one value of brine that we have a use for, of MAX_VALUES at
    most. Nothing is decoded, and no memory taken."""
    left = values = 1
    while left:
        tag = data[at : at + 1]
        at += 1
        more = 0
        if tag in _LONG:
            at += _LONG[tag].size + int(_LONG[tag].unpack_from(data, at)[0])
        elif tag in _VALUES:
            more = _VALUES[tag]
        elif tag == brine.TAG_TUP_L1:
            more = data[at]
            at += 1
        elif tag in _BYTES:
            at += _BYTES[tag]
        elif tag not in _NOTHING_MORE:
            raise ProtocolError(f"the peer sent a value that we have no use for, of tag {tag!r}")
        left += more - 1
        values += more
        if values > MAX_VALUES or at > len(data):
            raise ProtocolError(f"the peer sent a frame of more than {MAX_VALUES} values, or a truncated one")
