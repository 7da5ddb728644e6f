"""Whatever the other end of a control connection says, it comes to one of our errors, at the caller and at the server.

Both ends are driven over a socket pair in one thread: what the peer says is there before we read it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
import tracemalloc
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest
from rpyc.core import brine, consts

from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LookupSection, PadSection
from jbi_pubsub.core.errors import (
    ErrorReport,
    JbiError,
    OversizeError,
    ProtocolError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
    report,
)
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.wire import control
from jbi_pubsub.core.wire.control import ControlClient, ControlServer, exported
from jbi_pubsub.core.wire.endpoint import Caller, Security
from jbi_pubsub.core.wire.ref import ServiceRef
from jbi_pubsub.lookup.client.proxy import RegistrarInfo
from jbi_pubsub.lookup.item import ServiceItem, ServiceMatches
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.replies import OpenReply, SubscribeReply

pytestmark = pytest.mark.processes

pack = msgspec.msgpack.encode


def frame(data: bytes, *, compressed: int = 0) -> bytes:
    """As rpyc's channel sends it."""
    return struct.pack("!LB", len(data), compressed) + data + b"\n"


def message(kind: int, *value: object) -> bytes:
    """A frame with rpyc's message of that kind."""
    return frame(brine.I1.pack(kind) + brine.dump(value))


def reply(value: object, *, seq: int = 0, label: int = consts.LABEL_VALUE) -> bytes:
    """The answer to the first call of a connection."""
    return message(consts.MSG_REPLY, seq, (label, value))


def request(name: object, method: object, argument: bytes, *, seq: int = 0) -> bytes:
    """A call."""
    return message(consts.MSG_REQUEST, seq, (consts.HANDLE_CALLATTR, (consts.LABEL_VALUE, (name, method, (argument,)))))


REF: Final = ServiceRef("", "registrar", ("192.0.2.1:4160",))


class Caught:
    """A client whose peer has answered already: what becomes of its call."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ends: tuple[socket.socket, socket.socket]
        self.dropped = False
        """Whether the last call has thrown its connection away."""
        patch.setattr(control, "dial", lambda *_rest, **_options: self._ends[0])

    def call(
        self, said: bytes | Callable[[socket.socket], None], result: Any = str, *, ends: bool = True,
        timeout: float = 5.0, size: int = 0,
    ) -> Any:  # fmt: skip
        """The result, or the error that the application gets. `said`: its bytes, or who sends them meanwhile."""
        self._ends = ours, theirs = socket.socketpair()
        if callable(said):
            threading.Thread(target=said, args=(theirs,), daemon=True).start()
            said, ends = b"", False
        if len(said) > 64 << 10:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * len(said))
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(said))
        theirs.sendall(said)
        if ends:
            theirs.shutdown(socket.SHUT_WR)
        self.client = client = ControlClient(REF, Security(), timeout=timeout)
        try:
            return client.call("describe", result, *([bytes(size)] if size else []))
        except JbiError as exc:
            return exc
        finally:
            self.dropped = client._connection is None
            client.close()
            ours.close()
            theirs.close()


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Caught:
    return Caught(monkeypatch)


NO_ANSWERS: Final = {
    "bad UTF-8": reply((True, b"\xd9\x02\xff\xfe")),
    "bad UTF-8 in a report": reply((False, b"\x82\xa4code\xa5error\xa7message\xa1\xff")),
    "no report": reply((False, pack("oops"))),
    "a deep report": reply((False, b"\x81\xa5facts" + b"\x91" * 50_000)),
    "another type": reply((True, pack({"service_id": 1}))),
    "truncated": reply((True, pack("text")[:-1])),
    "a claim of 4 billion": reply((True, b"\xdd\xff\xff\xff\xff")),
    "a long claim": reply((True, b"\xdb\xff\xff\xff\xff")),
    "no pair": reply(b"text"),
    "a number": reply(7),
    "text for bytes": reply((True, "text")),
    "three": reply((True, b"\xa1x", 1)),
    "nothing": reply(None),
    "a reference": reply(("builtins.object", 1, 2), label=consts.LABEL_REMOTE_REF),
    "our own reference": reply(1, label=consts.LABEL_LOCAL_REF),
    "boxed in boxes": reply(((consts.LABEL_VALUE, True), (consts.LABEL_VALUE, b"\xa1x")), label=consts.LABEL_TUPLE),
    "another label": reply((True, b"\xa1x"), label=77),
    "no label": message(consts.MSG_REPLY, 0, 5),
    "one value": frame(b"\x02" + brine.dump(0)),
    "an unhashable answer to it": message(consts.MSG_REPLY, (1, (2,)), (consts.LABEL_VALUE, (True, b"\xa1x"))),
    "refused by text": message(consts.MSG_EXCEPTION, 0, "TypeError: no"),
    "refused by a tuple": message(consts.MSG_EXCEPTION, 0, (("builtins", "SystemExit"), (), (), "")),
    "refused by a number": message(consts.MSG_EXCEPTION, 0, 10**100),
    "a question": request("registrar", "describe", pack(())),
    "a close": message(consts.MSG_REQUEST, 0, (consts.HANDLE_CLOSE, (consts.LABEL_VALUE, ()))),
    "no kind": frame(b"\x07" + brine.dump((0, 0))),
    "no brine": frame(b"\x02\xff\xff\xff"),
    "text that is none": frame(b"\x02" + brine.TAG_TUP2 + brine.dump(0) + brine.TAG_UNICODE + brine.dump(b"\xff\xfe")),
    "a number of many digits": frame(b"\x02" + brine.TAG_TUP2 + brine.TAG_INT_L4 + struct.pack("!L", 9) + b"9" * 9),
    "a number that is none": frame(b"\x02" + brine.TAG_TUP2 + brine.TAG_INT_L1 + b"\x03abc" + brine.dump(0)),
    "a deep tuple": frame(b"\x02" + brine.TAG_TUP1 * 200_000),
    "a deep set": frame(b"\x02" + brine.TAG_FSET * 200_000),
    "a deep slice": frame(b"\x02" + brine.TAG_SLICE * 200_000),
    "a wide tuple": frame(b"\x02" + brine.TAG_TUP_L4 + struct.pack("!L", 2**32 - 1)),
    "longer text than there is": frame(b"\x02" + brine.TAG_STR_L4 + struct.pack("!L", 2**32 - 1)),
    "compressed": frame(b"x" * 100, compressed=1),
    "a huge frame": struct.pack("!LB", 2**32 - 1, 0),
    "an alert of TLS": b"\x15\x03\x03\x00\x02\x02\x46",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half a head": b"\0\0",
    "half a frame": struct.pack("!LB", 100, 0) + b"half",
    "empty frames": frame(b"") * 1000,
    "the end": b"",
}


@pytest.mark.parametrize("said", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_an_answer_that_is_none_is_an_error_of_ours(said: bytes, caught: Caught) -> None:
    # Given a service that answers what no service of ours does; When it is called
    found = caught.call(said)
    # Expect an error of the wire that says who it was and not how we came to see it
    assert isinstance(found, WireError)
    assert "registrar" in found.message or "peer" in found.message


@pytest.mark.parametrize("name", ["bad UTF-8", "a deep tuple", "no pair", "a reference", "a question", "compressed"])
def test_what_is_the_peers_fault_is_called_so(name: str, caught: Caught) -> None:
    assert isinstance(caught.call(NO_ANSWERS[name]), ProtocolError)


def test_a_service_that_speaks_tls_to_us_is_said_to(caught: Caught) -> None:
    assert "TLS" in str(caught.call(NO_ANSWERS["an alert of TLS"]))


def test_an_answer_of_ours_is_taken_and_an_error_of_the_service_rebuilt(caught: Caught) -> None:
    assert caught.call(reply((True, pack("text")))) == "text"
    error = caught.call(reply((False, pack(report(UnknownUidError("no such", hint="Look again", uid="x"))))))
    assert (type(error), error.message, error.facts) == (UnknownUidError, "no such", {"uid": "x"})


def test_who_answers_with_half_a_frame_holds_the_caller_no_longer_than_the_call(caught: Caught) -> None:
    # Given a service that begins an answer, and does not go on; When it is called with a quarter of a second
    began = time.monotonic()
    found = caught.call(struct.pack("!LB", 100, 0) + b"half", ends=False, timeout=0.25)
    # Expect an error long before a frame of a slow link would have to be there
    assert isinstance(found, WireError)
    assert time.monotonic() - began < control.FRAME_SECONDS / 2


def test_a_large_answer_over_a_slow_link_comes_as_long_as_it_goes_on(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a link that carries the next piece of a frame in time, and the whole one in several times that
    monkeypatch.setattr(control, "FRAME_SECONDS", 0.5)
    text = "x" * 5 * control.PIECE_BYTES
    said = reply((True, pack(text)))

    def slowly(theirs: socket.socket) -> None:
        for at in range(0, len(said), control.PIECE_BYTES):
            theirs.sendall(said[at : at + control.PIECE_BYTES])
            time.sleep(0.2)

    # When it carries an answer; Expect all of it
    assert caught.call(slowly, timeout=60.0) == text


@pytest.mark.parametrize(("size", "is_waited_for"), [(1_000, False), (20_000, True)])
def test_a_large_request_has_the_time_that_a_slow_link_takes_for_it(
    size: int, is_waited_for: bool, caught: Caught
) -> None:
    # Given a service that has a request, and answers, after more than the time of a call
    def late(theirs: socket.socket) -> None:
        time.sleep(1.0)
        with contextlib.suppress(OSError):
            theirs.sendall(reply((True, pack("text"))))

    # When it is called; Expect it to be waited for if the request may have taken so long
    answer = caught.call(late, timeout=0.2, size=size)
    assert answer == "text" if is_waited_for else isinstance(answer, WireTimeoutError)


def test_a_request_that_does_not_go_on_ends_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a client that sends a part of a request, and does not go on
    monkeypatch.setattr(control, "FRAME_SECONDS", 0.2)
    near, theirs = socket.socketpair()
    with near, theirs:
        theirs.sendall(struct.pack("!LB", 100_000, 0) + b"half" * 3_000)
        began = time.monotonic()
        ControlServer({}).serve(near, Caller("stranger"))
        # Expect it to be given up long before the time of a whole one
        assert time.monotonic() - began < control.FRAME_MOST / 10


def test_who_does_not_answer_is_told_by_the_deadline(caught: Caught) -> None:
    assert isinstance(caught.call(b"", ends=False, timeout=0.05), WireTimeoutError)


BOMBS: Final = {
    "empty sets": (brine.TAG_FSET + brine.TAG_EMPTY_TUPLE) * (2 << 20),
    "empty tuples": brine.TAG_EMPTY_TUPLE * (4 << 20),
    "numbers": brine.TAG_FLOAT * (4 << 20),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_frame_is_not_decoded_into_many_times_its_size(bomb: bytes) -> None:
    # Given four megabytes that would become several hundred; When they are looked over
    data = b"\x02" + brine.TAG_TUP_L4 + struct.pack("!L", len(bomb)) + bomb
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        control.check_values(data, 1)
    # Expect no memory to be taken for them
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_an_interrupted_call_leaves_no_half_read_connection(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a call that is interrupted while it waits
    def interrupted(*_rest: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control._ControlConnection, "async_request", interrupted)
    # Expect that to pass, and the connection to be thrown away: what comes over it now belongs to nobody
    with pytest.raises(KeyboardInterrupt):
        caught.call(reply((True, pack("text"))))
    assert caught.dropped


# -- the server's end ---------------------------------------------------------------------------------------------


class Service:
    """What a server exports here."""

    @exported
    def echo(self, _caller: Caller, text: str) -> str:
        """The text."""
        return text

    @exported
    def fail(self, _caller: Caller) -> str:
        """A fault of ours."""
        raise KeyError("a fault")

    @exported
    def overflow(self, _caller: Caller) -> object:
        """What can't be encoded."""
        return 2**70

    @exported
    def much(self, _caller: Caller) -> bytes:
        """More than a frame holds."""
        return bytes(control.MAX_CONTROL_FRAME)


class Recorded(socket.socket):
    """A socket that keeps what is written to it: nobody reads the other end meanwhile."""

    written = b""

    def send(self, data: Any, _flags: int = 0) -> int:
        """Keep it."""
        self.written += data
        return len(data)


def served(server: ControlServer, said: bytes) -> bytes:
    """What a server answers to a peer that says so and leaves."""
    near, theirs = socket.socketpair()
    with theirs, Recorded(fileno=near.detach()) as ours:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        server.serve(ours, Caller("stranger"))
        return ours.written


def answers(heard: bytes) -> list[Any]:
    """The messages in what a server has sent: (kind, value)."""
    found = []
    while heard:
        (length, _), heard = struct.unpack("!LB", heard[:5]), heard[5:]
        found.append((heard[0], brine.load(heard[1:length])[1]))
        heard = heard[length + 1 :]
    return found


def test_a_bad_text_argument_costs_a_line_of_log_at_most_and_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    # Given a server; When it is called with text that is no UTF-8
    before = faults()
    heard = served(ControlServer({"service": Service()}), request("service", "echo", b"\x91\xa1\xff"))
    # Expect the peer to be told that, and not a fault of ours
    ((_, (_, (good, answer))),) = answers(heard)
    assert (good, msgspec.msgpack.decode(answer, type=ErrorReport).code) == (False, "protocol")
    assert faults() == before
    assert len(caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("method", ["fail", "overflow"])
def test_a_fault_of_ours_in_a_call_is_counted_and_told_as_such(method: str) -> None:
    # Given a method that fails in a way nobody expected, called twice; When the peer goes on
    before = faults().get("control call", 0)
    said = request("service", method, pack(())) * 2 + request("service", "echo", pack(("x",)))
    heard = answers(served(ControlServer({"service": Service()}), said))
    # Expect it to be told no more than that, the fault to be counted, and the next call to be answered
    assert [value[1][0] for _, value in heard] == [False, False, True]
    assert msgspec.msgpack.decode(heard[0][1][1][1], type=ErrorReport).message == f"internal error in service.{method}"
    assert faults()["control call"] == before + 2


def test_an_answer_that_no_frame_holds_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER", 1000)
    ((_, (_, (good, answer))),) = answers(
        served(ControlServer({"service": Service()}), request("service", "much", pack(())))
    )
    assert (good, msgspec.msgpack.decode(answer, type=ErrorReport).code) == (False, OversizeError.code)


# -- many --------------------------------------------------------------------------------------------------------

MANY = pytest.mark.parametrize(
    ("count", "seed"), [(2_500, 1), pytest.param(100_000, 2, marks=(pytest.mark.slow, pytest.mark.timeout(900)))]
)
RESULTS: Final = (
    str,
    None,
    float,
    dict[str, Any],
    OpenReply,
    RegistrarInfo,
    ServiceMatches,
    tuple[SubscribeReply, ...],
)


def value_of(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """Some value of a type, as a client would send it."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return value_of(inside[0], chance, depth)
    if origin in (typing.Union, types.UnionType):
        return value_of(chance.choice(inside), chance, depth)
    if origin is typing.Literal:
        return chance.choice(inside)
    if origin is tuple and inside[-1:] != (Ellipsis,):
        return tuple(value_of(each, chance, depth + 1) for each in inside)
    if origin in (tuple, list):
        return [value_of(inside[0], chance, depth + 1) for _ in range(chance.randrange(0, 3 if depth < 4 else 1))]
    if origin is dict:
        return {value_of(inside[0], chance, depth + 1): value_of(inside[1], chance, depth + 1) for _ in range(2)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        values = {name: value_of(hints[name], chance, depth + 1) for name in kind.__struct_fields__}
        return list(values.values()) if kind.__struct_config__.array_like else values
    return {
        str: lambda: chance.choice(("", "x", "a b", "\0", "\u202e", "\N{BOM}", "a" * 300, "urn:x", "jbi.Registrar")),
        bytes: lambda: chance.choice((b"", b"\xff", b"<a/>", b"x" * 1000)),
        bool: lambda: chance.random() < 0.5,
        int: lambda: chance.choice((0, 1, -1, 2**31, 2**53, 2**63, -(2**63))),
        float: lambda: chance.choice((0.0, -1.0, 1e-300, 60.0, 1e300, float("inf"), float("nan"), -float("inf"))),
        type(None): lambda: None,
    }.get(kind, lambda: chance.choice((None, 1, "x", [1, ["y"]], {"z": 2.5})))()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes of it others, gone, or twice."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randrange(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + chance.randrange(1, 16)]
            case 3:
                changed[at:at] = chance.randbytes(chance.randrange(1, 8))
            case _:
                changed[at : at + 1] = bytes([chance.choice((0x91, 0x81, 0xC0, 0xC1, 0xD9, 0xDD, 0xDF, 0xFF, 0xCB))])
    return bytes(changed)


def brined(chance: random.Random, depth: int = 0) -> Any:
    """Some value that brine takes."""
    if depth < 5 and chance.random() < 0.4:
        return tuple(brined(chance, depth + 1) for _ in range(chance.randrange(5)))
    return chance.choice(
        (None, True, 0, 7, -3, 2**80, 1.5, 2j, b"", b"\x90", b"x" * 300, "", "ü", Ellipsis, slice(1, 2))
    )


def reframed(said: bytes, chance: random.Random) -> bytes:
    """A frame whose content is mutated, and whose length is right: it is read to its end."""
    return frame(mutated(said[5:-1], chance)) if chance.random() < 0.7 else mutated(said, chance)


@MANY
def test_no_answer_raises_what_is_not_ours(count: int, seed: int, caught: Caught) -> None:
    # Given services that answer well, almost well, or anything
    chance = random.Random(seed)
    known = faults()
    seen: dict[str, int] = {}
    for _ in range(count):
        result = chance.choice(RESULTS)
        kinds = (
            lambda result=result: reply((True, pack(value_of(result, chance)))),
            lambda: reply((False, pack(value_of(ErrorReport, chance)))),
            lambda result=result: reply((True, mutated(pack(value_of(result, chance)), chance))),
            lambda: reply((False, mutated(pack(value_of(ErrorReport, chance)), chance))),
            lambda: reply((chance.random() < 0.5, chance.randbytes(20))),
            lambda: reply(brined(chance), label=chance.choice((1, 2, 3, 4, 0))),
            lambda: message(chance.randrange(5), brined(chance), brined(chance)),
            lambda: frame(chance.randbytes(chance.randrange(30))),
        )
        said = chance.choice(kinds)()
        if chance.random() < 0.5:
            said = reframed(said, chance)
        # When they are called, expect the answer or an error of ours, and no other
        found = caught.call(said, result)
        name = type(found).__name__ if isinstance(found, Exception) else "answer"
        seen[name] = seen.get(name, 0) + 1
    assert {"answer", "ProtocolError", "JbiError", "WireError"} <= seen.keys()
    assert faults() == known


@pytest.fixture(scope="module", params=["delegate", "lookup service"])
def exports(request: pytest.FixtureRequest) -> Iterator[ControlServer]:
    """All that a server exports."""
    alone = LookupSection(port=0, multicast=False, locators=(), timeout=0.05)
    if request.param == "lookup service":
        lookup = LookupServer(Config(lookup=alone), Registrar())
        yield lookup._control
        lookup.stop()
        return
    few = PadSection(max_sessions=20, max_subscriptions=20)
    server = DisseminationServer(Config(lookup=alone, pad=few), TypeRepository(), characteristics=("alpha", "rome"))
    ref = server.endpoints.ref("delegate", ())
    server.community.join(ServiceItem(server.server_id, (), ref))  # which one may administer
    yield server._control
    server.delegate.close()
    server.endpoints.stop()
    server.community.close()


def calls_of(server: ControlServer) -> list[tuple[str, str, list[Any]]]:
    """(object, method, types of its arguments) of all that is exported."""
    found = []
    for name, target in server._exports.items():
        for method, function in vars(type(target)).items():
            if getattr(function, "__exported__", False):
                hints = typing.get_type_hints(function, include_extras=True)
                del hints["caller"], hints["return"]
                found.append((name, method, list(hints.values())))
    return found


SLOW_CALLS: Final = (("delegate", "register"), ("registrar", "destroy"), ("registrar", "set_port"))
"""They compile schemas, ask the lookup services or end the server: what they are given is no good."""


@MANY
def test_no_call_of_a_stranger_is_a_fault_of_ours(
    count: int, seed: int, exports: ControlServer, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a server, and strangers who call all that it exports with values of the right types, others, or anything
    chance = random.Random(seed)
    calls = calls_of(exports)
    known = faults()
    told = 0
    for _ in range(count // 20):
        said = []
        for seq in range(10):
            name, method, types_ = chance.choice(calls)
            argument = pack([value_of(each, chance) for each in types_])
            if (name, method) in SLOW_CALLS or chance.random() < 0.3:
                argument = mutated(argument, chance) if (name, method) not in SLOW_CALLS else b"\x93\xd9\x01\xff"
            said.append(request(name, method, argument, seq=seq))
        if chance.random() < 0.5:
            said[-1] = reframed(said[-1], chance)
        if chance.random() < 0.1:
            said[-1] = message(consts.MSG_REQUEST, brined(chance), brined(chance))
        # When they have called, expect an answer or an error of ours each time, or the end of that connection alone
        told += len(answers(served(exports, b"".join(said))))
    assert told > count * 0.4
    assert faults() == known
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
