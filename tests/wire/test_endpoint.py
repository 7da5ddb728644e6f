"""A listening port ends what it has begun, whatever state its connections are in."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from jbi_pubsub.core.errors import ProtocolError, WireError
from jbi_pubsub.core.wire import dial as dial_module
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, MAGIC, PREAMBLE, Caller, Endpoint, Security, recv_exactly
from jbi_pubsub.core.wire.ref import PROTOCOL, ServiceRef
from jbi_pubsub.core.wire.tls import TlsIdentity


def identity(folder: Path) -> TlsIdentity:
    """A certificate and its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("server.example")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "own.pem"))
    issued.private_key_pem.write_to_path(str(folder / "own.key"))
    return TlsIdentity(folder / "own.pem", folder / "own.key", folder / "ca.pem")


class Unanswered(socket.socket):
    """A socket whose address answers the third that connects; each had so many seconds."""

    tries: ClassVar[list[float | None]] = []

    def connect(self, address: Any) -> None:
        """Connect, or do not."""
        self.tries.append(self.gettimeout())
        if len(self.tries) < 3:
            raise TimeoutError
        super().connect(address)


def test_to_connect_is_begun_anew_while_there_is_time(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a server behind a link that is down, over which the system asks ever more rarely
    served = serve(Security())
    monkeypatch.setattr(Unanswered, "tries", [])
    monkeypatch.setattr(socket, "socket", Unanswered)
    # When a client has a minute to connect; Expect it to ask anew each ten seconds until the link is back
    ref = ServiceRef("", "x", (f"127.0.0.1:{served.endpoint.port}",))
    dial(ref, CONTROL, Security(), 60.0).close()
    assert Unanswered.tries == [dial_module.CONNECT_SECONDS] * 3


@pytest.mark.parametrize("secure", [False, True], ids=["in clear", "TLS"])
def test_a_client_of_another_protocol_is_told_our_number(
    secure: bool, serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a client of a version that speaks another number
    security = Security(identity(tmp_path)) if secure else Security()
    served = serve(security)
    with socket.create_connection(("127.0.0.1", served.endpoint.port), timeout=60.0) as raw:
        sock = security.tls.client_context().wrap_socket(raw) if security.tls else raw
        sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL - 1, CONTROL))
        # Expect our number and the end, and both numbers in the log of whoever runs the server
        assert recv_exactly(sock, PREAMBLE.size, 5.0) == PREAMBLE.pack(MAGIC, PROTOCOL, CONTROL)
        assert sock.recv(1) == b""
        sock.close()
    assert f"it speaks protocol {PROTOCOL - 1}, and we {PROTOCOL}" in caplog.text


@pytest.mark.processes
def test_a_client_says_which_protocol_the_other_side_speaks() -> None:
    # Given a server of a later version
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                recv_exactly(sock, PREAMBLE.size, 5.0)
                sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL + 1, CONTROL))
                with suppress(OSError):  # the client may have left by now, with bytes of ours unread
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass

        serving = threading.Thread(target=serve)
        serving.start()
        # When it is called; Expect both numbers
        client = ControlClient(
            ServiceRef("", "echo", (f"127.0.0.1:{server.getsockname()[1]}",)), Security(), timeout=5.0
        )
        with closing(client), pytest.raises(ProtocolError) as told:
            client.call("say", str, "hello")
        serving.join(10.0)
    assert f"the other side speaks protocol {PROTOCOL + 1}, and we {PROTOCOL}" in str(told.value)
    assert told.value.facts == {"theirs": PROTOCOL + 1, "ours": PROTOCOL}


def test_a_client_silent_in_its_tls_handshake_does_not_outlive_the_server(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client that has connected to a TLS port and says nothing
    served = serve(Security(identity(tmp_path)))
    begun = threading.Event()
    shake = ssl.SSLSocket.do_handshake

    def begin(sock: ssl.SSLSocket, block: bool = False) -> None:
        begun.set()
        shake(sock, block)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", begin)
    with socket.create_connection(("127.0.0.1", served.endpoint.port)) as client:
        assert begun.wait(60.0)

        # When the server stops, long before the handshake's deadline
        served.endpoint.stop()

        # Expect the connection to be over on both sides (that its thread is, `serve` looks)
        client.settimeout(60.0)
        assert client.recv(1) == b""
    assert len(served.endpoint.connections) == 0


def test_stop_waits_for_threads_that_are_about_to_end(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a connection that is over and counts no more, whose thread has not ended
    served = serve()
    leaving, may_leave = threading.Event(), threading.Event()
    close = socket.socket.close

    def slowly(sock: socket.socket) -> None:
        if threading.current_thread().name.startswith("echo-127"):
            leaving.set()
            may_leave.wait(60.0)
        close(sock)

    monkeypatch.setattr(socket.socket, "close", slowly)
    socket.create_connection(("127.0.0.1", served.endpoint.port)).close()
    assert leaving.wait(60.0)
    assert len(served.endpoint.connections) == 0

    # When the server stops, expect that it waits for the thread
    stopping = threading.Thread(target=served.endpoint.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive()
    may_leave.set()
    stopping.join()
    assert [t.name for t in threading.enumerate() if t.name.startswith("echo-")] == []


@pytest.mark.processes
def test_a_connection_that_is_handed_over_outlives_its_thread_and_not_the_server(
    eventually: Callable[..., Any],
) -> None:
    # Given a server whose handler hands its connections over and returns
    closes: list[Callable[[], None]] = []
    kept: list[socket.socket] = []

    def keep(sock: socket.socket, _caller: Caller) -> None:
        kept.append(sock)
        closes.append(endpoint.connections.hand_over(sock))

    endpoint = Endpoint("127.0.0.1", 0, name="keeper", security=Security(), control=keep, data=keep)
    endpoint.start()
    ref = ServiceRef("id", "keeper", (endpoint.address,))
    with dial(ref, DATA, Security(), 5.0) as first, dial(ref, DATA, Security(), 5.0) as second:
        eventually(lambda: len(closes) == 2 and not serving(endpoint))

        # Expect both to count and to be open
        assert len(endpoint.connections) == 2
        for sock in kept:
            sock.sendall(b"still here")
        for client in (first, second):
            client.settimeout(60.0)
            assert client.recv(100) == b"still here"

        # When one is closed by whoever has it, expect it to count no more
        mine = next(n for n, sock in enumerate(kept) if sock.getpeername() == first.getsockname())
        closes[mine]()
        assert first.recv(1) == b""
        assert len(endpoint.connections) == 1

        # When the server stops, expect the other one to be over as well
        endpoint.stop()
        assert second.recv(1) == b""
    for close in closes:
        close()
    assert len(endpoint.connections) == 0


def serving(endpoint: Endpoint) -> list[str]:
    """Threads that serve a connection of the endpoint."""
    return [t.name for t in threading.enumerate() if t.name.startswith(f"{endpoint.name}-127")]


@pytest.mark.parametrize("window", [4096, 0])
def test_a_connection_for_a_slow_link_takes_no_more_than_its_window(window: int, serve: Callable[..., Any]) -> None:
    # Given a server, and a client that wants so many bytes under way at most
    served = serve()
    with dial(served.ref, DATA, Security(), 5.0, window=window) as sock:
        buffers = [sock.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)]

        # Expect buffers as small as that (Linux doubles them for its own use, socket(7)), and a connection that works
        assert (max(buffers) <= 2 * 4096) == bool(window)
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"

    # Expect that nobody there is told as ever
    served.close()
    with pytest.raises(WireError, match="can't reach"):
        dial(served.ref, DATA, Security(), 5.0, window=window)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system's keepalive is not tunable")
@pytest.mark.parametrize(("plane", "seconds"), [(DATA, 15), (CONTROL, 60)])
def test_who_waits_for_what_may_never_come_probes_often(plane: bytes, seconds: int, serve: Callable[..., Any]) -> None:
    # Expect the client of a data connection to notice a peer that has gone sooner than one that only calls
    with dial(serve().ref, plane, Security(), 5.0) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == seconds


@pytest.mark.parametrize("close_after", range(0, 60, 3))
def test_closing_a_client_ends_the_call_of_another_thread_and_nothing_else(
    serve: Callable[..., Any], close_after: int
) -> None:
    # Given a client that another thread calls with all the time
    served = serve()
    client = ControlClient(served.ref, Security(), timeout=60.0)
    client.call("echo", str, "hello")
    ended: list[Exception] = []

    def call() -> None:
        try:
            while True:
                client.call("echo", str, "hello")
        except Exception as exc:  # noqa: BLE001  # whatever it is, the test says
            ended.append(exc)

    caller = threading.Thread(target=call)
    caller.start()
    # When it is closed, sooner or later
    while len(served.echo.callers) < close_after:
        pass
    client.close()
    caller.join(60.0)
    # Expect the other thread to be told, by our error
    assert [type(exc) for exc in ended] == [WireError]


class _FullTable:
    """A listening socket of a process that may open no more files."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.tries = 0

    def accept(self) -> Any:
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.mark.processes
def test_a_port_that_can_accept_nothing_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    # Given a port of a process that may open no more files
    monkeypatch.setattr("jbi_pubsub.core.wire.endpoint.ACCEPT_SECONDS", 0.001)
    nothing: Callable[[socket.socket, Caller], None] = lambda _sock, _caller: None  # noqa: E731  # of two kinds
    endpoint = Endpoint("127.0.0.1", 0, name="full", security=Security(), control=nothing, data=nothing)
    full = _FullTable(endpoint._listener)
    monkeypatch.setattr(endpoint, "_listener", full)
    # When it tries again and again; Expect one line in the log
    endpoint.start()
    eventually(lambda: full.tries > 20)
    endpoint.stop()
    assert [each.getMessage() for each in caplog.records].count(
        "full: accept failed, trying again: [Errno 24] Too many open files"
    ) == 1
