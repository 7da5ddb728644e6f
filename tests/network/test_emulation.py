"""The emulated link: bytes arrive whole and in order, no sooner than it lets them."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.core import guard
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.core.errors import AdapterStateError, ArgumentError, ConfigurationError, PortInUseError
from jbi_pubsub.core.wire.stream_socket import Hello
from jbi_pubsub.network import emulation
from jbi_pubsub.network.emulation import Link


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of somebody who says again what is said to him, to each that connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)
            except OSError:
                return  # the connection was cut

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # the end of the test
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join(60.0)


@pytest.fixture
def link() -> Iterator[Link]:
    """A link; nothing that nobody expected has happened on it."""
    before = guard.faults()
    with Link("127.0.0.2", seed=1) as made:
        yield made
    assert guard.faults() == before


@pytest.fixture
def connect(echo: str, link: Link) -> Iterator[Callable[[], socket.socket]]:
    """connect() is a connection through the link to the echo."""
    host, _, port = link.to(echo).partition(":")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((host, int(port)), timeout=20.0))


def _send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it was cut, which whoever reads notices
        sock.sendall(data)


def there_and_back(sock: socket.socket, data: bytes) -> float:
    """Seconds until all of it has come back, unchanged."""
    began = time.monotonic()
    sender = threading.Thread(target=_send, args=(sock, data))
    sender.start()
    came = bytearray()
    try:
        while len(came) < len(data):
            piece = sock.recv(1 << 16)
            assert piece, "the connection has ended"
            came += piece
    finally:
        sender.join()
    assert came == data
    return time.monotonic() - began


def test_each_direction_has_its_rate_and_connections_share_it(link: Link, connect: Callable[[], socket.socket]) -> None:
    # Given two connections over a link of 80,000 bit/s
    first, second = connect(), connect()
    there_and_back(first, b"open")
    there_and_back(second, b"open")
    link.shape(bits_per_second=80_000)

    # When 5,000 bytes go each way over either
    took: list[float] = []
    other = threading.Thread(target=lambda: took.append(there_and_back(second, bytes(5_000))))
    other.start()
    took.append(there_and_back(first, bytes(5_000)))
    other.join()

    # Expect that the 10,000 bytes of a direction take a second at least
    assert max(took) >= 1.0
    assert (link.passed["up"], link.passed["down"]) == (10_008, 10_008)


def test_a_long_way_takes_its_delay_and_jitter_and_keeps_the_order(
    link: Link, connect: Callable[[], socket.socket]
) -> None:
    # Given a way of 0.1 to 0.15 s each way
    sock = connect()
    link.shape(delay=0.1, jitter=0.05)

    # Expect a round trip of twice that, and that a lot does not wait for its round trips one after the other
    assert there_and_back(sock, b"there and back") >= 0.2
    assert there_and_back(sock, b"".join(b"%07d" % n for n in range(30_000))) < 30.0


def test_nothing_passes_in_an_outage_and_new_connections_pass_behind_it(
    link: Link, connect: Callable[[], socket.socket], eventually: Callable[..., Any]
) -> None:
    # Given a connection
    sock = connect()
    there_and_back(sock, b"before")

    # When the link fails, expect the connection to end, and a new one to be refused
    link.down()
    with pytest.raises((OSError, AssertionError)):
        there_and_back(sock, b"lost")
    with pytest.raises((OSError, AssertionError)):
        there_and_back(connect(), b"refused")

    # When it is back, expect a new one to pass
    link.up()
    there_and_back(connect(), b"after")


def test_a_silent_outage_holds_what_is_under_way_and_lets_it_go(
    link: Link, connect: Callable[[], socket.socket]
) -> None:
    # Given a link that hangs
    sock = connect()
    there_and_back(sock, b"before")
    link.down(silent=True)

    # When something is said, expect it to come when the link does not hang any more, and not before
    sock.sendall(b"held")
    sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        sock.recv(100)
    link.up()
    sock.settimeout(20.0)
    assert sock.recv(100) == b"held"


def test_a_cut_lets_through_what_comes_before_its_place(link: Link, connect: Callable[[], socket.socket]) -> None:
    # Given a link that is cut 1,000 bytes further on
    sock = connect()
    there_and_back(sock, b"before")
    link.cut_after("down", 1_000)

    # When more is said, expect 1,000 bytes of it, then the end
    sock.sendall(bytes(5_000))
    came = b""
    while piece := sock.recv(1 << 16):
        came += piece
    assert len(came) == 1_000
    assert link.cuts == 1


def test_a_sender_feels_a_slow_link(link: Link, connect: Callable[[], socket.socket]) -> None:
    # Given a link that lets nothing through
    sock = connect()
    there_and_back(sock, b"open")
    link.shape(bits_per_second=1)

    # When somebody sends without end, expect it to be held up: what is under way is bounded
    sock.settimeout(1.0)
    with pytest.raises(TimeoutError):
        sock.sendall(bytes(64 << 20))
    assert link.passed["up"] < 1_000


def test_connections_are_bounded(
    link: Link, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a link for two connections, which are there
    monkeypatch.setattr(emulation, "CONNECTIONS_MOST", 2)
    there_and_back(connect(), b"one")
    there_and_back(connect(), b"two")

    # Expect that a third gets no further
    with pytest.raises((OSError, AssertionError)):
        there_and_back(connect(), b"three")


def test_whoever_is_behind_it_is_told_its_addresses(link: Link, echo: str) -> None:
    # Given a configuration with a locator
    config = Config(lookup=LookupSection(locators=(echo,), multicast=False))

    # Expect that of who is behind the link to name the link, and what is said there as well
    [locator] = link.behind(config).lookup.locators
    assert locator == echo.replace("127.0.0.1", "127.0.0.2")
    with socket.create_connection(("127.0.0.2", int(echo.rpartition(":")[2])), timeout=20.0) as sock:
        sock.sendall(f"<{echo}>".encode())
        assert sock.recv(100) == f"<{locator}>".encode()


def test_what_a_lookup_service_tells_stays_readable(link: Link, echo: str) -> None:
    # Given a lookup service behind the link, here one that says what it was asked
    config = Config(lookup=LookupSection(locators=(echo,), multicast=False))
    [locator] = link.behind(config).lookup.locators
    host, _, port = locator.partition(":")

    # When somebody opens a data connection who would like compression, in one piece or in two
    hello = msgspec.msgpack.encode(Hello.of("token", compression="deflate"))
    middle = hello.index(b"flate")
    with socket.create_connection((host, int(port)), timeout=20.0) as sock:
        for pieces in ((hello,), (hello[:middle], hello[middle:])):
            came = b""
            for piece in pieces:
                sock.sendall(piece)
                came += sock.recv(100)
            # Expect that it is asked for something that it does not know, and declines: compressed, the addresses in
            # what it tells would lead past the link
            assert len(came) == len(hello)
            assert "deflate" not in msgspec.msgpack.decode(came, type=Hello).compression


def test_bad_figures_and_addresses_are_refused(link: Link, echo: str) -> None:
    for wrong in ({"bits_per_second": -1}, {"delay": -0.1}, {"jitter": 4_000.0}):
        with pytest.raises(ConfigurationError, match="Give a number from 0"):
            link.shape(**wrong)
    with pytest.raises(ArgumentError):
        link.shape(delay="0.1")  # type: ignore[arg-type]  # that is the test
    for wrong_host in ("127.0.0.1", "127.0.0.20", "example.org", ""):
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.2"):
            Link(wrong_host)
    with pytest.raises(ConfigurationError, match="on one machine"):
        link.to("192.0.2.1:4160")
    link.to(echo)
    with pytest.raises(PortInUseError, match="Close the other link"):
        link.to(echo)


def test_what_nobody_expected_ends_its_connection_alone_and_is_noted(
    echo: str, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a link with a fault that shows once
    faults = iter([ValueError("nobody expected this")])
    before = guard.faults().get("emulated link", 0)
    with Link("127.0.0.2") as made:
        note = made._note

        def faulty(*arguments: Any) -> None:
            for fault in faults:
                raise fault
            note(*arguments)

        monkeypatch.setattr(made, "_note", faulty)
        host, _, port = made.to(echo).partition(":")
        # Expect that it is noted, and that the next connection is as good as any
        with (
            socket.create_connection((host, int(port)), timeout=20.0) as sock,
            pytest.raises((OSError, AssertionError)),
        ):
            there_and_back(sock, b"ends")
        eventually(lambda: guard.faults().get("emulated link", 0) == before + 1)
        with socket.create_connection((host, int(port)), timeout=20.0) as sock:
            there_and_back(sock, b"passes")


def test_connections_that_end_while_the_link_is_closed_leave_nothing(echo: str) -> None:
    # Given links that are closed at the moment their connections end, and a bit later each
    for number in range(100):
        made = Link("127.0.0.3")
        host, _, port = made.to(echo).partition(":")
        opened = [socket.create_connection((host, int(port)), timeout=20.0) for _ in range(3)]
        there_and_back(opened[0], b"open")
        for sock in opened:
            sock.close()
        until = time.perf_counter() + number * 1e-5
        while time.perf_counter() < until:
            pass
        made.close()
    # Expect no connection to be left for the collector, which would tell
    gc.collect()


def test_a_closed_link_leaves_nothing_and_says_so(echo: str) -> None:
    # Given a link with a connection, closed twice
    made = Link("127.0.0.3")
    host, _, port = made.to(echo).partition(":")
    with socket.create_connection((host, int(port)), timeout=20.0) as sock:
        there_and_back(sock, b"open")
        made.close()
        made.close()
        # Expect the connection and the thread to have ended
        with pytest.raises((OSError, AssertionError)):
            there_and_back(sock, b"more")
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncio-link-127.0.0.3"]
    with pytest.raises(AdapterStateError, match="is closed"):
        made.cut()
