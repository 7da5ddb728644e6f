"""The metrics port: strangers bind neither threads nor memory, labels are what they say, faults are shown."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jbi_pubsub.core import metrics
from jbi_pubsub.core.access import AllowAll, Decision
from jbi_pubsub.core.config import MetricsSection
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.metrics import CONNECTIONS_MOST, REQUEST_BYTES, MetricsServer, Sample

pytestmark = pytest.mark.processes

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Shown:
    """A metrics server of a test, and what it shows."""

    def __init__(self) -> None:
        self.samples: list[Sample] = [Sample("things", "gauge", "Things", 7)]
        self.fails = False
        self.server = MetricsServer(MetricsSection(port=0), self._collect)

    def _collect(self) -> list[Sample]:
        if self.fails:
            raise KeyError("unexpected")
        return self.samples

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.server.port), 5.0)

    def ask(self, request: bytes = GET) -> tuple[str, str]:
        """Status and body of an answer."""
        with self.connect() as sock:
            sock.sendall(request)
            return heard(sock)

    def values(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All series."""
        status, body = self.ask()
        assert status == "200 OK"
        found = [s for family in text_string_to_metric_families(body) for s in family.samples]
        series = {(s.name, tuple(s.labels.items())): s.value for s in found}
        assert len(series) == len(found), "a series twice"
        return series


def heard(sock: socket.socket) -> tuple[str, str]:
    """Status and body of an answer, ("", "") without one."""
    said = b""
    with suppress(ConnectionError):
        while data := sock.recv(1 << 16):
            said += data
    head, _, body = said.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].partition(b" ")[2].decode(), body.decode()


@pytest.fixture
def shown() -> Iterator[Shown]:
    before = set(threading.enumerate())
    made = Shown()
    yield made
    made.server.stop()
    assert set(threading.enumerate()) <= before


def test_whoever_asks_for_metrics_gets_them(shown: Shown) -> None:
    assert shown.values()[("jbi_things", ())] == 7
    assert shown.ask(b"GET / HTTP/1.0\r\n\r\n")[0] == "200 OK"
    assert shown.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n") == ("200 OK", "")
    assert shown.ask(b"GET /other HTTP/1.1\r\n\r\n")[0] == "404 Not Found"
    assert shown.ask(b"POST /metrics HTTP/1.1\r\n\r\n")[0] == "405 Method Not Allowed"
    accepts = b"application/openmetrics-text;version=1.0.0", b"text/plain;version=x.y", b"*/*", b"\xff;;version="
    for accept in accepts:
        assert shown.ask(b"GET /metrics HTTP/1.1\r\nAccept: " + accept + b"\r\n\r\n")[0] == "200 OK"


@pytest.mark.parametrize(
    "hosts", [b"Host: evil.example\r\n", b"Host: evil@localhost\r\n", b"Host: localhost\r\nHost: evil.example\r\n"]
)
def test_a_page_that_is_made_to_reach_it_gets_nothing(shown: Shown, hosts: bytes) -> None:
    assert shown.ask(b"GET /metrics HTTP/1.1\r\n" + hosts + b"\r\n")[0] == "403 Forbidden"


def test_who_may_not_look_gets_no_metrics() -> None:
    class Rules(AllowAll):
        """Of one who lets a single address look."""

        def allow(self, caller: Any, action: Any, _: Any) -> Decision:
            return Decision(action == "status" and caller.address.startswith("127.0.0.2:"))

    server = MetricsServer(MetricsSection(port=0), list, Rules())
    with ExitStack() as stack:
        stack.callback(server.stop)
        for host, wanted in (("127.0.0.1", "403 Forbidden"), ("127.0.0.2", "200 OK")):
            made = socket.create_connection(("127.0.0.1", server.port), 5.0, source_address=(host, 0))
            stack.enter_context(made).sendall(GET)
            assert heard(made)[0] == wanted


def test_half_requests_hold_no_threads_and_keep_nobody_out(shown: Shown, eventually: Callable[..., Any]) -> None:
    # Given six hundred who have sent half a request
    threads = threading.active_count()
    with ExitStack() as stack:
        halves = [stack.enter_context(shown.connect()) for _ in range(600)]
        for half in halves:
            with suppress(ConnectionError):
                half.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        # When somebody scrapes, expect an answer; no thread for any of them, and few connections
        assert shown.values()[("jbi_things", ())] == 7
        assert threading.active_count() == threads
        eventually(lambda: len(shown.server._writers) <= CONNECTIONS_MOST)
        # Expect the oldest to have gone
        assert heard(halves[0]) == ("", "")


def test_a_crowd_from_one_address_ends_no_connection_of_another(shown: Shown) -> None:
    with ExitStack() as stack:
        # Given somebody who is slow, and a stranger who connects more often than there are places
        slow = stack.enter_context(shown.connect())
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(3 * CONNECTIONS_MOST):
            address = "127.0.0.1", shown.server.port
            stack.enter_context(socket.create_connection(address, 5.0, source_address=("127.0.0.2", 0)))
        # Expect the slow one to have its answer
        assert shown.values()[("jbi_things", ())] == 7
        slow.sendall(b"\r\n")
        assert heard(slow)[0] == "200 OK"


def test_half_a_request_and_a_large_one_end_by_themselves(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 0.05)
    with shown.connect() as half:
        half.sendall(b"GET /metr")
        assert heard(half) == ("", "")
    with shown.connect() as large:
        with suppress(ConnectionError):
            large.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * REQUEST_BYTES)
        assert heard(large) == ("", "")


def test_who_does_not_read_its_answer_is_cut_off(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an answer that no socket takes at once, and somebody who does not read it
    monkeypatch.setattr(metrics, "ANSWER_SECONDS", 0.1)
    shown.samples = [Sample("many", "gauge", "Many", 1, (("n", f"{n} {'x' * 1000}"),)) for n in range(5_000)]
    with shown.connect() as slow:
        slow.sendall(GET)
        # When others ask meanwhile, expect them to be answered
        shown.samples = shown.samples[:1]
        assert sum(name == "jbi_many" for name, _ in shown.values()) == 1
        slow.settimeout(60.0)
        threading.Event().wait(0.3)
        # Expect the end of it, before it is whole
        assert len(heard(slow)[1]) < 5_000_000


def test_labels_that_clients_have_chosen_are_shown_without_control_characters(shown: Shown) -> None:
    names = ("\x1b]0;title\x07", "one\ntwo", "\u202eright", "\x9b31m", 'quote " and \\', "Größe 東京")
    shown.samples = [
        Sample("named", "gauge", "Named", n, (("id", str(n)), ("name", name))) for n, name in enumerate(names)
    ]
    _, body = shown.ask()
    assert all(c.isprintable() or c == "\n" for c in body)
    found = {labels[1][1]: value for (name, labels), value in shown.values().items() if name.endswith("named")}
    assert found["Größe 東京"] == 5
    assert found['quote " and \\'] == 4


def test_faults_of_threads_are_shown_and_one_of_the_collector_ends_nothing(shown: Shown) -> None:
    # Given a step of a thread that has failed
    with guarded("a loop of the metrics' test"):
        raise KeyError("unexpected")
    assert shown.values()[("jbi_faults_total", (("where", "a loop of the metrics' test"),))] == 1
    # When collecting fails in a way nobody expected
    before = faults().get("metrics", 0)
    shown.fails = True
    assert shown.ask()[0] == "500 Internal Server Error"
    # Expect that to be counted, and the next request to be answered
    shown.fails = False
    assert shown.values()[("jbi_faults_total", (("where", "metrics"),))] == before + 1
