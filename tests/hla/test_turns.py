"""What one federate does to an RTI holds up no other one, whatever it sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.hla import rti
from jbi_pubsub.hla.connection import FrameSocket
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.hla.sessions import FRAME_MOST, LENGTH, FederateSession, SessionGroup, whole_frames
from tests.hla.parties import Federate, session

LEASE = 1.0
HELD_SECONDS = 3.0
"""CPU time of this process, which a busy machine does not stretch; less than any of the floods here took."""


@pytest.fixture
def served(federation: Any, air: bytes) -> RtiServer:
    """An RTI with two federations."""
    server = RtiServer(federation.config, lease=LEASE)
    federation.stack.callback(server.stop)
    server.start()
    for name in ("Air", "Sea"):
        server.create(name, [Module("air.xml", air)])
    return server


def framed(calls: Any) -> bytes:
    body = calls if isinstance(calls, bytes) else msgspec.msgpack.encode(calls)
    assert len(body) <= FRAME_MOST
    return LENGTH.pack(len(body)) + body


def items(number: int, item: bytes) -> bytes:
    """An array of items of msgpack, which is quickly made."""
    return b"\xdd" + number.to_bytes(4, "big") + item * number


def call(service: str, *arguments: bytes, ticket: int = 7) -> bytes:
    """A call with arguments in msgpack."""
    head = msgspec.msgpack.encode(ticket) + msgspec.msgpack.encode(service)
    return b"\x93" + head + bytes([0x90 + len(arguments)]) + b"".join(arguments)


FLOODS: dict[str, Callable[[], bytes]] = {
    "a long name": lambda: framed([(7, "join" * 7_500_000, [])]),
    "a long text": lambda: framed([(7, "query_synchronization_point", ["L" * 30_000_000])]),
    "a million calls": lambda: framed(items(1_500_000, call("x", ticket=0))),
    "many calls": lambda: framed(items(10_000, call("x"))) * 20,
    "handles": lambda: framed(b"\x91" + call("request_attribute_value_update", b"\x01", items(30_000_000, b"\x01"))),
    "arrays": lambda: framed(b"\x91" + call("update_attribute_values", b"\x01", items(30_000_000, b"\x90"))),
    "arrays in a few bytes": lambda: (
        framed(b"\x91" + call("update_attribute_values", b"\x01", items(1_000_000, b"\x90"))) * 5
    ),
    "large values": lambda: framed(
        b"\x91" + call("update_attribute_values", b"\x01", b"\x92\x01" + msgspec.msgpack.encode(b"x" * 30_000_000))
    ),
    "a map": lambda: framed(b"\x91" + call("time_advance_request", b"\xdf\x00\x98\x96\x80" + b"\x01\x01" * 10_000_000)),
    "reports": lambda: (
        framed(
            items(10_000, call("register_federation_synchronization_point", b"\xa1p", b"\xc4\x00", items(900, b"\x01")))
        )
        * 2
    ),
}


@pytest.mark.parametrize(("name", "where"), [*((name, "Air") for name in FLOODS), ("many calls", "Sea")])
def test_honest_federates_go_on_while_one_floods_the_rti(
    federation: Any, served: RtiServer, eventually: Callable[..., Any], name: str, where: str
) -> None:
    # Given two federates whose time goes on together, and one that sends as much as it can, and reads nothing
    a, b = (Federate(federation.config, each) for each in ("a", "b"))
    for each in (a, b):
        federation.stack.callback(each.rti.disconnect)
        each.rti.enable_time_regulation(1.0)
        each.rti.enable_time_constrained()
        each.until("time_constrained_enabled")
    hostile, flooding = session(federation, where), FLOODS[name]()
    ended = threading.Event()

    faults = served.status()["faults"]  # of this process: other tests make some

    def flood() -> None:
        try:
            while not ended.is_set():
                hostile.sendall(flooding)
        except OSError:
            return  # its session was ended

    thread = threading.Thread(target=flood, name="flood")
    thread.start()
    # Expect time to go on, without long work in between
    began, step, longest = time.monotonic(), 0, 0.0
    while time.monotonic() - began < LEASE or step < 20:
        step += 1
        asked = time.process_time()
        for each in (a, b):
            each.rti.time_advance_request(step)
        for each in (a, b):
            assert each.until("time_advance_grant") == ("time_advance_grant", step)
        longest = max(longest, time.process_time() - asked)
    ended.set()
    with suppress(OSError):  # its session may have been ended
        hostile.shutdown(socket.SHUT_RDWR)
    thread.join(20.0)
    hostile.close()
    assert longest < HELD_SECONDS
    # and nobody else to be resigned
    air = next(each for each in served.status()["federations"] if each["name"] == "Air")
    assert air["federates"][:2] == ["a", "b"]
    assert served.status()["faults"] == faults


@pytest.mark.usefixtures("served")
def test_who_waits_for_the_rti_reads_what_it_says_and_nobody_else_is_woken(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given two federates whose time goes on together
    reads: list[str] = []
    read = FrameSocket.read

    def noted(line: FrameSocket, timeout: float) -> Any:
        found = read(line, timeout)
        if found:
            reads.append(threading.current_thread().name)
        return found

    a, b = (Federate(federation.config, each) for each in ("a", "b"))
    for each in (a, b):
        federation.stack.callback(each.rti.disconnect)
        each.rti.enable_time_regulation(1.0)
        each.rti.enable_time_constrained()
        each.until("time_constrained_enabled")
    # When they go on for a while
    monkeypatch.setattr(FrameSocket, "read", noted)
    for step in range(1, 101):
        for each in (a, b):
            each.rti.time_advance_request(step)
        for each in (a, b):
            assert each.until("time_advance_grant") == ("time_advance_grant", step)
    # Expect their own thread to have read most answers and callbacks; a busy machine may keep it from some
    assert reads.count(threading.current_thread().name) > len(reads) / 2
    # and what comes for one that waits for nothing to be read as well
    reads.clear()
    b.rti.register_federation_synchronization_point("go")
    eventually(a.rti._joined().waits)
    assert "federate-link" in reads


@pytest.mark.usefixtures("served")
def test_who_resigns_ends_the_wait_of_another_thread_for_callbacks(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a thread that waits for callbacks, and so reads the connection
    a = Federate(federation.config, "a")
    federation.stack.callback(a.rti.disconnect)
    link = a.rti._joined()
    found: list[bool] = []
    waits = threading.Thread(target=lambda: found.append(a.rti.evoke_callback(200.0)), name="waits")
    waits.start()
    eventually(lambda: link._is_read)
    # When another one resigns, expect its answer to come, and the wait to end
    a.rti.resign_federation_execution()
    waits.join(60.0)
    assert len(found) == 1


def _subscribed(federation: Any, radio: int) -> socket.socket:
    """A federate that speaks for itself, and wants to be told much."""
    sock = session(federation, "Air")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    sock.sendall(framed([(0, "subscribe_interaction_class", [radio])]))
    return sock


NOTES = 3_000
NOTE = bytes(10_000)


def _noting(a: Federate, radio: int) -> threading.Thread:
    """A thread on which it sends more than an RTI keeps."""
    text = a.rti.get_parameter_handle(radio, "text")
    a.rti.publish_interaction_class(radio)

    def send() -> None:
        for _ in range(NOTES):
            a.rti.send_interaction(radio, {text: NOTE})

    thread = threading.Thread(target=send, name="sender")
    thread.start()
    return thread


def test_who_waits_for_one_that_does_not_read_is_told_that_the_rti_lives(
    federation: Any, air: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an RTI that lets others wait for a federate for longer than they wait for an answer
    monkeypatch.setattr("jbi_pubsub.hla.sessions.STALL_SECONDS", 5.0)
    monkeypatch.setattr("jbi_pubsub.hla.sessions.SIGN_SECONDS", 0.5)
    monkeypatch.setattr("jbi_pubsub.hla.connection.ANSWER_SECONDS", 2.5)
    served = RtiServer(federation.config, lease=60.0)
    federation.stack.callback(served.stop)
    served.start()
    served.create("Air", [Module("air.xml", air)])
    a, other = Federate(federation.config, "a"), Federate(federation.config, "other")
    for each in (a, other):
        federation.stack.callback(each.rti.disconnect)
    radio = a.rti.get_interaction_class_handle("Radio")
    # When that one reads nothing of what is sent to it, expect others to be answered when it is resigned
    sock = _subscribed(federation, radio)
    thread = _noting(a, radio)
    while served.status()["federations"][0]["federates"] == ["a", "other", "ugly"]:
        assert other.rti.query_logical_time() == 0.0
    thread.join(20.0)
    assert served.status()["federations"][0]["federates"] == ["a", "other"]
    sock.close()


def test_a_federate_that_reads_no_answers_holds_up_nobody(
    federation: Any, served: RtiServer, eventually: Callable[..., Any]
) -> None:
    a = Federate(federation.config, "a")
    federation.stack.callback(a.rti.disconnect)
    hostile = session(federation, "Air")
    hostile.settimeout(0.2)
    try:
        for _ in range(2_000):
            hostile.sendall(framed(items(1_000, call("query_federation_state"))))
    except TimeoutError:
        pass
    else:
        pytest.fail("what it calls is taken without an end")
    # Expect its calls to wait for it to read: others are served, and what waits for it is bounded
    assert a.rti.query_logical_time() == 0.0
    assert served.status()["federations"][0]["unsent"] < 2 << 20
    # When it reads, it is served
    hostile.settimeout(20.0)
    got = 0
    while got < 4 << 20:
        data = hostile.recv(1 << 20)
        assert data
        got += len(data)
    hostile.close()


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A service that keeps the RTI busy until this is set."""
    real, go_on = rti.call, threading.Event()

    def called(*arguments: Any, **options: Any) -> Any:
        if "query_lits" in arguments:
            go_on.wait(60.0)
        return real(*arguments, **options)

    monkeypatch.setattr("jbi_pubsub.hla.rti.call", called)
    yield go_on
    go_on.set()


def test_an_rti_that_did_not_listen_blames_nobody(
    federation: Any, served: RtiServer, stalls: threading.Event, eventually: Callable[..., Any]
) -> None:
    # Given federates that say all the time that they live, one of them of another federation
    a, b = Federate(federation.config, "a"), Federate(federation.config, "b", "Sea")
    for each in (a, b):
        federation.stack.callback(each.rti.disconnect)
    # When a service takes longer than their leases
    thread = threading.Thread(target=a.rti.query_lits, name="stalled")
    thread.start()
    began = time.monotonic()
    while time.monotonic() - began < 2 * LEASE:
        time.sleep(0.05)
    stalls.set()
    thread.join(20.0)
    # Expect nobody to be resigned, then or at the next look
    began = time.monotonic()
    while time.monotonic() - began < LEASE:
        assert [each["federates"] for each in served.status()["federations"]] == [["a"], ["b"]]
        time.sleep(0.05)
    assert a.rti.query_logical_time() == b.rti.query_logical_time() == 0.0


def test_what_a_federate_calls_after_it_has_resigned_is_not_done(federation: Any, served: RtiServer) -> None:
    # Given a federate that speaks for itself
    sock, faults = session(federation, "Air"), served.status()["faults"]
    # When it resigns, and calls more in the same frame
    sock.sendall(framed([(2, rti.LEAVE, ["no_action"]), (3, rti.JOIN, ["again", "no_action"]), (4, "query_lits", [])]))
    # Expect the answer to the first alone, and the end of the session
    with sock, sock.makefile("rb") as stream:
        body = stream.read()
    entries = [entry for frame in whole_frames(bytearray(body), FRAME_MOST) for entry in msgspec.msgpack.decode(frame)]
    assert [(ticket, word) for ticket, word, _ in entries if ticket] == [(1, ""), (2, "")]
    assert served.status()["faults"] == faults
    assert served.status()["federations"][0]["federates"] == []


def test_a_connection_that_comes_as_an_rti_stops_is_closed(served: RtiServer, eventually: Callable[..., Any]) -> None:
    # Given an RTI that is busy, and a session that comes meanwhile
    sessions, closed = served._sessions, threading.Event()
    begun, go_on = threading.Event(), threading.Event()
    sessions.order(lambda: begun.set() or go_on.wait(60.0))  # type: ignore[func-returns-value]  # first the one
    assert begun.wait(20.0)
    near, far = socket.socketpair()
    with near, far:
        coming = FederateSession(near, closed.set, SessionGroup(), LEASE)
        sessions.order(lambda: sessions.add(coming))
        # When it is stopped
        stop = threading.Thread(target=sessions.stop, name="stop")
        stop.start()
        eventually(sessions._stopping.is_set)
        go_on.set()
        stop.join(20.0)
    # Expect that it is closed
    assert closed.is_set()
