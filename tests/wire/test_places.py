"""Places at a port are bounded, and go to those who are good for something: strangers who say nothing, or connect ten
thousand times, keep nobody out."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.wire import control
from jbi_pubsub.core.wire.control import ControlClient, ControlServer, exported, leasing
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, MAGIC, PREAMBLE, Caller, Endpoint, Security
from jbi_pubsub.core.wire.places import PortPlace, peer_of
from jbi_pubsub.core.wire.ref import PROTOCOL, ServiceRef
from jbi_pubsub.core.wire.tls import TlsIdentity

pytestmark = pytest.mark.processes


class Service:
    """What is exported at the port of a test."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    @exported
    def ask(self, _caller: Caller) -> str:
        """Something."""
        return "answer"

    @exported
    @leasing
    def renew(self, _caller: Caller) -> str:
        """A lease."""
        return "renewed"

    @exported
    def ponder(self, _caller: Caller) -> str:
        """Until the test says so."""
        self.begun.set()
        self.may_end.wait(60.0)
        return "thought"


class Port:
    """A port with few places, whose data connections are kept from their first byte on."""

    def __init__(self, stack: ExitStack, places: int) -> None:
        self._stack = stack
        self.service = Service()
        self.endpoint = Endpoint(
            "127.0.0.1",
            0,
            name="small",
            security=Security(),
            control=ControlServer({"service": self.service}).serve,
            data=self._data,
            max_connections=places,
        )
        self.endpoint.start()
        stack.callback(self.endpoint.stop)

    def _data(self, sock: socket.socket, caller: Caller) -> None:
        sock.settimeout(60.0)
        while data := sock.recv(1024):
            caller.place.kept = True
            sock.sendall(data)

    def stranger(self, host: str = "127.0.0.1", plane: bytes = CONTROL) -> socket.socket:
        """Somebody at `host` who says the preamble and no more."""
        sock = socket.create_connection(("127.0.0.1", self.endpoint.port), 5.0, source_address=(host, 0))
        self._stack.callback(sock.close)
        sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane))
        return sock

    def client(self, *calls: str) -> ControlClient:
        """Somebody who makes these calls, and stays connected."""
        client = ControlClient(ServiceRef("", "service", (f"127.0.0.1:{self.endpoint.port}",)), Security(), timeout=60)
        self._stack.callback(client.close)
        for call in calls:
            client.call(call, str)
        return client

    def publisher(self, host: str = "127.0.0.1") -> socket.socket:
        """Somebody with a data connection in use."""
        sock = self.stranger(host, DATA)
        sock.sendall(b"object")
        assert sock.recv(6) == b"object"
        return sock


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed, or does soon."""
    sock.settimeout(60.0)
    with suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


def is_open(sock: socket.socket) -> bool:
    """Whether it has not."""
    sock.settimeout(0.0)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.fixture
def port(eventually: Callable[..., Any]) -> Iterator[Callable[[int], Port]]:
    """port(places) opens one."""
    before = set(threading.enumerate())
    with ExitStack() as stack:
        yield lambda places: Port(stack, places)
    eventually(lambda: set(threading.enumerate()) <= before)


def test_who_has_said_nothing_gives_way_the_first_to_come_first(
    port: Callable[[int], Port], eventually: Callable[..., Any]
) -> None:
    # Given a port of four places, three for a peer: a publisher, and two who have said the preamble alone
    small = port(4)
    publisher = small.publisher()
    silent = [small.stranger() for _ in range(2)]
    eventually(lambda: len(small.endpoint.connections) == 3)
    # When others come, expect them to be served, and those who say nothing to go in the order in which they came
    caller = small.client("ask")
    assert is_closed(silent[0])
    assert is_open(silent[1])
    small.client("ask")
    assert is_closed(silent[1])
    # Expect that neither caller nor publisher have lost anything
    assert caller._connection is not None
    assert not caller._connection.is_stale()
    publisher.sendall(b"again")
    assert publisher.recv(5) == b"again"
    assert small.endpoint.connections.refused == 2


def test_of_those_who_have_called_the_longest_idle_gives_way_and_calls_on(port: Callable[[int], Port]) -> None:
    # Given a port of three places, taken by callers of whom the first has called again
    small = port(3)
    first, second, third = (small.client("ask") for _ in range(3))
    first.call("ask", str)
    # When a fourth comes
    small.client("ask")
    # Expect the second to have lost its place, which it notices by nothing: its next call takes another one
    assert second._connection is not None
    assert second._connection.is_stale()
    assert not first._connection.is_stale()  # type: ignore[union-attr]  # it has called
    assert [each.call("ask", str) for each in (first, second, third)] == ["answer"] * 3


def test_a_call_under_way_and_a_data_connection_keep_their_places(port: Callable[[int], Port]) -> None:
    # Given a port of two places, one with a publisher, one with a call that takes its time
    small = port(2)
    publisher = small.publisher()
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(small.client().call("ponder", str)))
    asking.start()
    assert small.service.begun.wait(60.0)
    # When somebody else comes, expect that one to be refused
    with pytest.raises(WireError):
        small.client("ask")
    # Expect both to go on
    small.service.may_end.set()
    asking.join(60.0)
    assert answers == ["thought"]
    publisher.sendall(b"again")
    assert publisher.recv(5) == b"again"
    # When the call is over, expect its place to be free for others
    small.client("ask")


def test_whoever_has_most_places_gives_way_to_others(port: Callable[[int], Port]) -> None:
    # Given a port of eight places, of which a stranger at one address has called on six, and two others on one each
    small = port(8)
    others = [small.stranger(f"127.0.0.{host}") for host in (2, 3)]
    crowd = [small.client("ask") for _ in range(6)]
    # When ten more come from it, expect them to take each other's places and not those of others, who have said less
    crowd += [small.client("ask") for _ in range(10)]
    assert all(is_open(other) for other in others)
    # When a third address comes, expect a place for it as well
    assert is_open(small.stranger("127.0.0.4"))
    assert all(is_open(other) for other in others)


def test_no_peer_has_more_than_three_quarters_whatever_it_does(
    port: Callable[[int], Port], eventually: Callable[..., Any]
) -> None:
    # Given a port of eight places, and a peer with six data connections, which nobody takes away
    small = port(8)
    for _ in range(6):
        small.publisher()
    # When it wants more, expect a refusal; and places for others
    assert is_closed(small.stranger())
    for host in (2, 3):
        small.publisher(f"127.0.0.{host}")
    eventually(lambda: len(small.endpoint.connections) == 8)


def test_with_a_certificate_a_peer_is_who_that_says_wherever_it_connects_from(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a TLS port of eight places, and a peer that has taken six of them from six addresses
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def identity(name: str) -> TlsIdentity:
        issued = authority.issue_cert(name, "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
        return TlsIdentity(tmp_path / f"{name}.pem", tmp_path / f"{name}.pem", tmp_path / "ca.pem")

    served = ControlServer({"service": Service()}).serve
    endpoint = Endpoint(
        "127.0.0.1",
        0,
        name="small",
        security=Security(identity("server")),
        control=served,
        data=served,
        max_connections=8,
    )
    endpoint.start()
    with ExitStack() as stack:
        stack.callback(endpoint.stop)

        def connect(name: str, host: str) -> ssl.SSLSocket:
            sock = socket.create_connection(("127.0.0.1", endpoint.port), 5.0, source_address=(host, 0))
            secured = identity(name).client_context().wrap_socket(sock)
            stack.callback(secured.close)
            secured.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, CONTROL))
            return secured

        crowd = [connect("crowd", f"127.0.0.{host}") for host in range(1, 7)]
        places = endpoint.connections._open
        eventually(lambda: sum(place.peer == "crowd" for place in list(places.values())) == 6)
        # When it connects from a seventh, expect a refusal; and a place for another one from the same address
        assert is_closed(connect("crowd", "127.0.0.7"))
        other = connect("other", "127.0.0.7")
        eventually(lambda: sorted(place.peer for place in places.values()) == ["crowd"] * 6 + ["other"])
        assert is_open_tls(other)
        assert all(map(is_open_tls, crowd))


def is_open_tls(sock: ssl.SSLSocket) -> bool:
    """Whether the other end has not closed."""
    sock.settimeout(0.0)
    try:
        return sock.recv(1) != b""
    except ssl.SSLWantReadError:
        return True


def test_a_peer_without_a_certificate_is_its_host_in_ipv6_its_network() -> None:
    assert peer_of("192.0.2.1") == "192.0.2.1"
    assert peer_of("2001:db8::1") == peer_of("2001:db8::ffff:1") != peer_of("2001:db8:0:1::1")
    assert peer_of("fe80::1%eth0") == peer_of("fe80::2%eth0")


def test_a_silent_connection_is_closed_and_one_with_a_lease_is_not(
    port: Callable[[int], Port], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a port that waits a fifth of a second for a first call, and two fifths for the next
    monkeypatch.setattr(control, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(control, "IDLE_SECONDS", 0.4)
    small = port(8)
    holder, caller = small.client("renew"), small.client("ask")
    silent = small.stranger()
    pinging = small.stranger()
    # When nobody calls any more, though one says something again and again
    for _ in range(20):
        with suppress(OSError):
            pinging.sendall(b"\0\0\0\0\0\n")
        time.sleep(0.02)
    # Expect all to be closed but who has renewed a lease
    eventually(lambda: len(small.endpoint.connections) == 1)
    assert is_closed(silent)
    assert caller._connection is not None
    assert caller._connection.is_stale()
    assert holder._connection is not None
    assert not holder._connection.is_stale()
    # Expect who was closed to notice nothing of it when it calls again
    assert caller.call("ask", str) == "answer"


def test_patience_is_counted_from_what_the_connection_was_good_for_last() -> None:
    place = PortPlace()
    assert 14.0 < place.patience(15.0, 60.0) <= 15.0
    with place.in_use():
        assert place.busy
    assert not place.busy
    assert 59.0 < place.patience(15.0, 60.0) <= 60.0
    place.since -= 100.0
    assert place.patience(15.0, 60.0) < 0
    place.leased = True
    assert place.patience(15.0, 60.0) > 1000.0


def test_two_thousand_strangers_who_say_nothing_keep_nobody_out(federation: Any) -> None:
    # Given a delegate, and more connections than it has places for that say the preamble alone
    pad = federation.pad()
    host, _, number = pad.address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(socket.create_connection((host, int(number)), 5.0))
            sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, CONTROL))
        pad.endpoints.first.connections._most = 300  # as if they were 2,048
        # When somebody wants to publish, expect that to be possible
        publisher = federation.light()
        assert publisher.connect_to_delegate("alpha", "rome")
        assert pad.status()["connections"] <= 300
