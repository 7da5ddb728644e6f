"""What an untrusted peer can't do to a server: reach objects, run code, exhaust it, use what is not its own."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  # what an attacker would send
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rpyc
from rpyc.core import consts
from rpyc.core.stream import SocketStream

from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.core.errors import ErrorReport, ProtocolError, WireError
from jbi_pubsub.core.wire.control import MAX_CONTROL_FRAME, ControlClient, ControlServer
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import ALERT, CONTROL, DATA, MAGIC, PREAMBLE, TLS_HELLO, Caller, Endpoint, Security
from jbi_pubsub.core.wire.ref import PROTOCOL, ServiceRef
from jbi_pubsub.core.wire.stream import FRAME, HELLO, MAX_FRAME_BYTES
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, Tokens, greet
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.server.server import DisseminationServer

EVERY_HANDLER = {
    name: number
    for name, number in vars(consts).items()
    if name.startswith("HANDLE_") and name not in ("HANDLE_PING", "HANDLE_CLOSE", "HANDLE_CALLATTR")
}


@pytest.fixture(scope="module")
def delegate() -> Iterator[DisseminationServer]:
    """A real delegate, on its own."""
    alone = LookupSection(port=0, multicast=False, locators=(), timeout=1.0)
    server = DisseminationServer(Config(lookup=alone), TypeRepository(), characteristics=("alpha", "rome"))
    server.start()
    yield server
    assert server.stop(0.5) == 0


class Pad:
    """The delegate, and what it is asked by somebody honest."""

    def __init__(self, server: DisseminationServer) -> None:
        self.address = server.address
        self.endpoint_port = int(server.address.rpartition(":")[2])
        self.client = ControlClient(ServiceRef("", "status", (self.address,)), Security(), timeout=60.0)

    def status(self) -> dict[str, Any]:
        """What the delegate says about itself."""
        return self.client.call("status", dict[str, Any])

    def held(self) -> dict[str, Any]:
        """What it holds for others."""
        status = self.status()
        keys = ("publishers", "registrations", "sessions", "subscriptions", "leases", "connections")
        return {key: status[key] for key in keys}


@pytest.fixture
def pad(delegate: DisseminationServer, eventually: Callable[..., Any]) -> Iterator[Pad]:
    """The delegate, which serves after the test as before, and holds nothing of the attacker."""
    asked = Pad(delegate)
    eventually(lambda: asked.held()["connections"] == 1)
    before = asked.held()
    yield asked
    eventually(lambda: asked.held() == before, what=asked.held)
    asked.client.close()


@pytest.fixture
def attacker(pad: Any, attack: Callable[..., Any]) -> Iterator[Any]:
    """Somebody connected to the delegate's control plane."""
    made = attack(pad.endpoint_port)
    yield made
    made.close()


@pytest.mark.row("C-04")
@pytest.mark.parametrize("handler", EVERY_HANDLER.values(), ids=EVERY_HANDLER)
@pytest.mark.parametrize("target", ["status", "delegate", "subscriptions"])
def test_no_handler_of_rpyc_but_a_call_is_answered(handler: int, target: str, attacker: Any) -> None:
    # Given an attacker who knows the names of the exported objects
    # When it asks for attributes, types, pickles, representations, items, context managers ... of one
    kind, answer = attacker.request(handler, target, "__class__", ("__init__",), ())

    # Expect an error that says nothing of the object
    assert kind == consts.MSG_EXCEPTION
    assert "class" not in repr(answer)
    # Expect that an honest request is still answered on the same connection
    assert attacker.request(consts.HANDLE_PING, "still there?") == (
        consts.MSG_REPLY,
        (consts.LABEL_VALUE, "still there?"),
    )


def test_stock_rpyc_gets_no_root_object(pad: Any, attack: Callable[..., Any]) -> None:
    # Given the stock rpyc client on our port
    sock = attack(pad.endpoint_port).sock
    connection = rpyc.connect_stream(SocketStream(sock), config={"sync_request_timeout": 5})

    # When it asks for the root, from which everything else would be reached
    # Expect a refusal
    with pytest.raises((EOFError, AttributeError, TypeError, ValueError, Exception)) as refused:
        connection.root  # noqa: B018
    assert not isinstance(refused.value, TimeoutError)
    connection.close()


@pytest.mark.row("C-04")
@pytest.mark.parametrize(
    "method",
    [
        "__import__", "__class__", "__init__", "__getattribute__", "__reduce_ex__", "__dict__", "__subclasshook__",
        "_server", "_call", "status.__globals__", "", "statuss",
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["status", "delegate", "subscriptions", "nothing", ""])
def test_only_exported_methods_are_called(target: str, method: str, attacker: Any) -> None:
    # When an attacker calls what is not exported
    kind, answer = attacker.request(consts.HANDLE_CALLATTR, target, method, (msgspec.msgpack.encode(()),))

    # Expect a report of our own, not a result
    assert kind == consts.MSG_REPLY
    good, report = answer[1]
    assert good is False
    assert msgspec.msgpack.decode(report, type=ErrorReport).code == "protocol"


def test_an_unmarked_public_method_is_not_called(serve: Callable[..., Any], attack: Callable[..., Any]) -> None:
    # Given an object with a public method that is not marked as exported, and a public attribute
    served = serve()
    attacker = attack(served.endpoint.port)

    # When they are called
    # Expect a refusal; and the marked one answers
    for name in ("unmarked", "secret"):
        _, (_, (good, _)) = attacker.request(consts.HANDLE_CALLATTR, "echo", name, (msgspec.msgpack.encode(("x",)),))
        assert good is False
    _, (_, answer) = attacker.request(consts.HANDLE_CALLATTR, "echo", "echo", (msgspec.msgpack.encode(("x",)),))
    assert answer == (True, msgspec.msgpack.encode("x"))


@pytest.mark.parametrize("label", [consts.LABEL_REMOTE_REF, consts.LABEL_LOCAL_REF])
def test_references_to_objects_are_refused(label: int, attacker: Any) -> None:
    # When an attacker passes a reference (netref) where a value belongs, so that we would call back into it
    reference = (label, ("builtins.object", 1, 2))
    kind, answer = attacker.boxed(
        consts.HANDLE_CALLATTR,
        (consts.LABEL_TUPLE, ((consts.LABEL_VALUE, "status"), (consts.LABEL_VALUE, "status"), reference)),
    )

    # Expect a refusal, and no question about the object
    assert kind == consts.MSG_EXCEPTION
    assert "builtins" not in repr(answer)


class Bomb:
    """Unpickling this makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(attacker: Any, tmp_path: Path) -> None:
    # Given a pickle that leaves a trace when it is loaded
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))

    # When it is sent wherever bytes are taken
    attacker.request(consts.HANDLE_PICKLE, "status", bomb)
    attacker.request(consts.HANDLE_CALLATTR, "delegate", "connect", (bomb,))
    attacker.request(consts.HANDLE_CALLATTR, bomb, bomb, (bomb,))

    # Expect no trace
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        b"",
        b"\xff" * 64,
        b"\x91" * 100_000,
        msgspec.msgpack.encode(()),
        msgspec.msgpack.encode((1, 2, 3, 4)),
        msgspec.msgpack.encode(({"name": "x"}, "soon")),
        msgspec.msgpack.encode(("x", float("nan"))),
        msgspec.msgpack.encode(("x", -5.0)),
    ],
    ids=["empty", "garbage", "deeply nested", "too few", "too many", "other types", "nan", "negative"],
)
def test_bad_arguments_are_refused_and_leave_nothing(arguments: bytes, attacker: Any, pad: Any) -> None:
    # When an attacker connects as a publisher with arguments that no client of ours would send
    kind, answer = attacker.request(consts.HANDLE_CALLATTR, "delegate", "connect", (arguments,))

    # Expect an error report, and no publisher
    assert kind == consts.MSG_REPLY
    assert answer[1][0] is False
    assert pad.status()["publishers"] == []


@pytest.mark.parametrize("count", [0, 2])
def test_not_exactly_one_argument_is_refused(count: int, attacker: Any) -> None:
    # Expect that the call's one bytes value can be neither left out nor accompanied
    kind, _ = attacker.request(consts.HANDLE_CALLATTR, "status", "status", (msgspec.msgpack.encode(()),) * count)
    assert kind == consts.MSG_EXCEPTION


@pytest.mark.row("G-181")
@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_an_oversize_frame_is_refused_before_it_is_read(plane: bytes, pad: Any, attack: Callable[..., Any]) -> None:
    # When an attacker announces a frame over the limit, and sends not a byte of it
    attacker = attack(pad.endpoint_port, preamble=PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    head = struct.pack("!LB", MAX_CONTROL_FRAME + 1, 0) if plane == CONTROL else FRAME.pack(MAX_FRAME_BYTES + 1, HELLO)
    attacker.sock.sendall(head)

    # Expect to be disconnected at once, not after a deadline
    assert attacker.is_disconnected()


def test_a_hello_far_larger_than_a_hello_is_refused(pad: Any, attack: Callable[..., Any]) -> None:
    # When a data connection opens with a hello of a megabyte
    attacker = attack(pad.endpoint_port, preamble=PREAMBLE.pack(MAGIC, PROTOCOL, DATA))
    attacker.sock.sendall(FRAME.pack(1 << 20, HELLO))
    try:
        attacker.sock.sendall(bytes(1 << 20))
    except ConnectionError:
        return  # already disconnected

    # Expect to be disconnected
    assert attacker.is_disconnected()


def test_a_compressed_frame_is_refused(attacker: Any) -> None:
    # When an attacker sends a frame marked as compressed (a small one may grow ten thousandfold)
    attacker.sock.sendall(struct.pack("!LB", 100, 1) + bytes(101))

    # Expect to be disconnected
    assert attacker.is_disconnected()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(64),
    "another protocol number": PREAMBLE.pack(MAGIC, PROTOCOL + 1, CONTROL),
    "another magic": PREAMBLE.pack(b"JBI\0", PROTOCOL, CONTROL),
    "another plane": PREAMBLE.pack(MAGIC, PROTOCOL, b"X"),
}


@pytest.mark.parametrize("preamble", GARBAGE.values(), ids=GARBAGE)
def test_who_does_not_speak_our_protocol_is_disconnected(preamble: bytes, pad: Any, attack: Callable[..., Any]) -> None:
    # Expect that the wrong preamble ends the connection without an answer, but for whom speaks TLS, or our protocol
    # under another number, and that number is told
    attacker = attack(pad.endpoint_port, preamble=preamble)
    if preamble[:2] == TLS_HELLO:
        assert attacker.sock.recv(100) == ALERT
    if preamble == GARBAGE["another protocol number"]:
        assert attacker.sock.recv(100) == PREAMBLE.pack(MAGIC, PROTOCOL, CONTROL)
    assert attacker.is_disconnected()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!LB", 4, 0) + b"\xff\xff\xff\xff\n",
        struct.pack("!LB", 4, 0) + b"\x01\xff\xff\xff\n",
        struct.pack("!LB", 5, 0) + b"\x02abcd\n",
        struct.pack("!LB", 1, 0) + b"\x01\n",
    ],
    ids=["no message", "no brine", "a reply to nothing", "only a kind"],
)
def test_garbage_in_a_frame_ends_the_connection_and_only_that(data: bytes, attacker: Any, pad: Any) -> None:
    # When an attacker sends frames that hold no request
    attacker.sock.sendall(data)

    # Expect to be disconnected (that others are served the fixture sees)
    assert attacker.is_disconnected()


def test_an_empty_frame_is_passed_over(attacker: Any) -> None:
    # When an attacker sends empty frames, then a request
    attacker.sock.sendall((struct.pack("!LB", 0, 0) + b"\n") * 100)

    # Expect the request to be answered: an empty frame neither blocks the connection nor counts as an answer
    assert attacker.request(consts.HANDLE_PING, "x") == (consts.MSG_REPLY, (consts.LABEL_VALUE, "x"))


@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_half_a_frame_holds_up_nobody_else(plane: bytes, pad: Any, attack: Callable[..., Any], figures: Any) -> None:
    # Given attackers who have sent half a preamble, half a frame's head and half a frame's body
    attack(pad.endpoint_port, preamble=b"JBI")
    head = attack(pad.endpoint_port, preamble=PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    head.sock.sendall(b"\0\0")
    body = attack(pad.endpoint_port, preamble=PREAMBLE.pack(MAGIC, PROTOCOL, plane))
    body.sock.sendall(struct.pack("!LB", 1000, 0 if plane == CONTROL else HELLO) + b"half")

    # When somebody else calls
    client = ControlClient(ServiceRef("", "status", (pad.address,)), Security(), timeout=60.0)
    status = client.call("status", dict[str, Any])
    client.close()

    # Expect an answer; and when the attackers leave, nothing is left of them (which the fixture sees)
    assert status["kind"] == "delegate"
    for attacker in (head, body):
        attacker.close()


@pytest.mark.processes
def test_a_token_opens_one_data_connection(pad: Any) -> None:
    # Given a publisher with a token for its data connection, which it has used
    ref = ServiceRef("", "delegate", (pad.address,))
    client = ControlClient(ref, Security())
    opened = client.call("connect", dict[str, Any], "publisher", 60.0, {})
    token = client.call("open_publications", str, opened["uid"])
    first = dial(ref, DATA, Security(), 5.0)
    assert greet(StreamSocket(first), Hello(token)) == 0

    # When the same token, or one that was never issued, is used
    # Expect a refusal
    for bad in (token, "", "x" * 32):
        second = dial(ref, DATA, Security(), 5.0)
        with pytest.raises(ProtocolError, match="refused"):
            greet(StreamSocket(second), Hello(bad))
        second.close()

    # Expect that the first connection still stands
    assert pad.status()["connections"] >= 3
    client.call("disconnect", None, opened["uid"])
    first.close()
    client.close()


def test_tokens_are_good_once_and_bounded() -> None:
    # Given at most two waiting tokens
    names = iter("abc")
    tokens = Tokens(lambda: next(names), limit=2)
    for value in (1, 2, 3):
        tokens.issue(value)

    # Expect the oldest forgotten, each other good once
    assert [tokens.redeem(t) for t in ("a", "b", "b", "c", "c", "d")] == [None, 2, None, 3, None, None]


def test_one_publishers_connection_id_is_no_use_without_knowing_it(attacker: Any, pad: Any) -> None:
    # When an attacker asks for data connections of publishers and sessions it made up
    # Expect "unknown" each time
    for target, method in (("delegate", "open_publications"), ("subscriptions", "open_deliveries")):
        _, (_, (good, answer)) = attacker.request(
            consts.HANDLE_CALLATTR, target, method, (msgspec.msgpack.encode(("made-up",)),)
        )
        assert good is False
        assert msgspec.msgpack.decode(answer, type=ErrorReport).code == "unknown_uid"


@pytest.mark.row("J-42")
def test_the_subscribers_proxy_reaches_no_publishers_calls(publishing: Any, federation: Any, figures: Any) -> None:
    # Given a registration in the lookup service, and the proxy that comes with it
    publishing.register(figures.figure_1, figures.schema)
    community = JoinManager(federation.config, name="finder")
    found = community.watch(ServiceTemplate(types=("jbi.PublisherRegistration",))).wait(1, 5.0)
    community.close()
    proxies = [item.proxy for item in found]
    assert proxies

    # When publishers' calls are made through it
    # Expect a refusal by the client library, and by the server of a client that leaves that check out
    for proxy in proxies:
        for careful in (proxy, msgspec.structs.replace(proxy, methods=())):
            client = ControlClient(careful, Security())
            for method in ("connect", "register", "disconnect", "open_publications"):
                with pytest.raises(ProtocolError):
                    client.call(method, object, "x", 1.0)
            client.close()


def test_a_call_whose_connection_another_thread_closes_ends_with_an_error_of_ours(federation: Any) -> None:
    # Given a client that is about to send a call
    client = ControlClient(ServiceRef("", "status", (federation.lookups[0].address,)), Security(), timeout=60.0)
    assert client.call("status", dict[str, Any])
    channel = client._connection._channel
    send = channel.send

    def closed_meanwhile(data: bytes) -> None:
        # When it is closed just then
        client.close()
        send(data)

    channel.send = closed_meanwhile
    # Expect that to be said, and not how it comes about
    with pytest.raises(WireError):
        client.call("status", dict[str, Any])


def test_a_hostile_endpoint_that_others_name_ends_nobodys_discovery(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given an endpoint that answers whoever asks with text that is no UTF-8, suggested as a lookup service
    asked: list[str] = []

    class Hostile(ControlServer):
        """It."""

        def answer(self, caller: Caller, name: object, method: object, request: object) -> tuple[bool, bytes]:
            asked.append(f"{caller.address} {name} {method} {request!r}")
            return len(asked) % 2 > 0, b"\x82\xaaservice_id\xa1\xff\xa6groups\x90"

    hostile = Endpoint(
        "127.0.0.1", 0, name="hostile", security=Security(), control=Hostile({}).serve, data=lambda *_: None
    )
    hostile.start()
    section = msgspec.structs.replace(federation.config.lookup, locators=(hostile.address,), probe=0.05)
    community = JoinManager(msgspec.structs.replace(federation.config, lookup=section), name="victim")
    federation.stack.callback(community.close)
    federation.stack.callback(hostile.stop)
    # When it has been asked, again and again
    eventually(lambda: len(asked) >= 4)
    # Expect discovery to go on: who comes later is found
    community.heard_of(
        ServiceItem("x", ("jbi.Registrar",), ServiceRef("x", "registrar", (federation.lookups[0].address,)))
    )
    assert community.lookup(ServiceTemplate(), limit=1, timeout=5.0)
    count = len(asked)
    eventually(lambda: len(asked) > count)
