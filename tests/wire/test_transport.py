"""Other transports than TCP: the same services, with applications that do not know."""

from __future__ import annotations

import os
import queue
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError, PortInUseError, WireError
from jbi_pubsub.core.wire import ServiceRef, transport
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream import MAX_BATCH_BYTES
from jbi_pubsub.core.wire.transport import UnixListener
from jbi_pubsub.pad.server.endpoints import DelegateEndpoints

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for sockets, with a path short enough for them."""
    short = Path(f"/tmp/jbi-{os.getpid()}")
    short.mkdir()
    yield short
    assert list(short.iterdir()) == [], "sockets that were left behind"
    short.rmdir()


@pytest.fixture
def federation(federation: Any, folder: Path) -> Any:
    """The federation, whose delegates and peer publishers offer a Unix socket as well."""
    pad = msgspec.structs.replace(federation.config.pad, sockets=str(folder))
    federation.config = msgspec.structs.replace(federation.config, pad=pad)
    yield federation
    federation.stack.close()


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The endpoints of other transports that were connected to."""
    asked: list[str] = []
    connect = transport.connect

    def noting(endpoint: str, timeout: float) -> socket.socket:
        made = connect(endpoint, timeout)
        asked.append(endpoint)
        return made

    monkeypatch.setattr(transport, "connect", noting)
    return asked


def exchange(publishing: Any, federation: Any, figures: Any) -> Any:
    """A large object and a small one, published and received; the subscriber's session."""
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(uid) == 1
    for payload in (b"x" * 3_000_000, b"small"):
        publishing.publish(registration, figures.figure_1, payload)
        assert subscriber.receive(uid).payload == payload
    return subscriber.status()["sessions"][0]


@pytest.mark.row("J-14", "J-28")
def test_publications_and_deliveries_go_over_a_unix_socket_with_unchanged_adapters(
    publishing: Any, federation: Any, figures: Any, folder: Path, dialled: list[str]
) -> None:
    # Given a delegate, and a peer publisher, that offer a Unix socket; When adapters publish and subscribe
    session = exchange(publishing, federation, figures)
    # Expect all of it to go over that, calls and objects; the port stays for others
    [path] = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert session["address"] == f"unix://{path}, {publishing.status()['address']}"
    assert set(dialled) == {f"unix://{path}"}
    assert len(dialled) >= 3, "calls, renewals, deliveries"


def test_who_cannot_use_a_transport_takes_the_next_endpoint(
    federation: Any, figures: Any, folder: Path, dialled: list[str]
) -> None:
    # Given a delegate whose socket is not to be found, as from another host
    federation.pad()
    next(folder.iterdir()).unlink()
    # When adapters publish and subscribe; Expect TCP to do
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid) is not None
    assert dialled == []


@pytest.mark.row("J-28")
def test_a_transport_of_a_plugin_is_used(federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an installed transport, `pipe`, by which a server is reached through a pair of sockets
    calls: list[str] = []

    def connect(address: str, timeout: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        calls.append(address)
        servers[address].endpoints.first.adopt(theirs, f"pipe:{len(calls)}")
        return ours

    monkeypatch.setattr(
        "jbi_pubsub.core.plugins.find", lambda kind, name: connect if (kind, name) == ("transport", "pipe") else None
    )
    ref = DelegateEndpoints.ref
    monkeypatch.setattr(
        DelegateEndpoints,
        "ref",
        lambda server, *given: msgspec.structs.replace(ref(server, *given), endpoints=(f"pipe://{server.server_id}",)),
    )
    servers: dict[str, Any] = {}
    pad = federation.pad()
    servers[pad.server_id] = pad
    # When its reference is all that is registered, and applications publish and subscribe
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1, b"through the pipe")
    # Expect everything to have gone through it
    assert subscriber.receive(uid).payload == b"through the pipe"
    assert set(calls) == {pad.server_id}


@pytest.mark.processes
@pytest.mark.parametrize(
    "endpoint", ["unix://relative", "unix:///nobody/here.sock", "carrier-pigeon://x", "unix://a\0b", "://"]
)
def test_an_endpoint_that_cannot_be_reached_is_our_error(endpoint: str) -> None:
    with pytest.raises(WireError):
        dial(ServiceRef("", "x", (endpoint,)), DATA, Security(), 1.0)


def test_with_certificates_only_tcp_is_used(folder: Path, federation: Any) -> None:
    # Given a client with [tls]; Expect a reference to a socket to be passed over
    with pytest.raises(WireError, match=r"with \[tls\] only TCP"):
        dial(ServiceRef("", "x", (f"unix://{folder}/x.sock",)), DATA, Security(tls=object()), 1.0)  # type: ignore[arg-type]  # it is not looked at
    # and a server that is to have both to be refused
    tls = msgspec.structs.replace(federation.config.tls, certificate="a")
    config = msgspec.structs.replace(federation.config, tls=tls)
    with pytest.raises(ConfigurationError):
        federation.pad(config=config)


@pytest.mark.processes
def test_a_socket_that_another_user_listens_on_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a socket of ours, and that we are somebody else
    listener = UnixListener(folder, "a" * 32, adopt=lambda sock, _: sock.close())
    listener.start()
    try:
        transport.connect(listener.endpoint, 1.0).close()
        monkeypatch.setattr("os.getuid", lambda: 12345)
        credentials = transport._CREDENTIALS.unpack
        monkeypatch.setattr(transport, "_CREDENTIALS", _Theirs(credentials))
        with pytest.raises(WireError, match=r"another user \(54321\) listens there"):
            transport.connect(listener.endpoint, 1.0)
    finally:
        listener.stop()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("unix-aaaa")]


class _Theirs:
    """The credentials of a stranger."""

    size = 12

    def __init__(self, unpack: Any) -> None:
        self._unpack = unpack

    def unpack(self, data: bytes) -> tuple[int, int, int]:
        pid, _, group = self._unpack(data)
        return pid, 54321, group


@pytest.mark.processes
def test_both_ends_of_a_unix_socket_take_a_batch_at_once(folder: Path) -> None:
    # Given a connection by a Unix socket
    accepted: queue.Queue[socket.socket] = queue.Queue()
    listener = UnixListener(folder, "a" * 32, adopt=lambda sock, _: accepted.put(sock))
    listener.start()
    try:
        with transport.connect(listener.endpoint, 1.0) as ours, accepted.get(timeout=5.0) as theirs:
            # When either end sends a usual batch, as far as the system lets it, and nobody reads
            for end in (ours, theirs):
                end.setblocking(False)
                most = int(Path("/proc/sys/net/core/wmem_max").read_text())
                # Expect the system to take it, if it takes so much of anybody
                assert end.send(bytes(MAX_BATCH_BYTES)) == MAX_BATCH_BYTES or most < 2 * MAX_BATCH_BYTES
    finally:
        listener.stop()


@pytest.mark.processes
def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="longer than the 107 bytes"):
        UnixListener(tmp_path / ("a" * 100), "b" * 32, adopt=lambda *_: None)
    (tmp_path / "file").write_text("")
    with pytest.raises((PortInUseError, ConfigurationError)):
        UnixListener(tmp_path / "file", "b" * 32, adopt=lambda *_: None)
