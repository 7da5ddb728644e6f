"""Clients and proxies of others, as they are: what they ask for in passing, keep back, or leave while they wait."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from jbi_pubsub.web import connection, server

ANY = "/v1/types/report/1.0/objects?wait=20&validate=false"
JSON = {"Content_Type": "application/json"}


def report(n: int) -> bytes:
    return b"<report><n>%d</n></report>" % n


def head(method: str, path: str, *fields: str) -> bytes:
    """Of a request as Java's HttpClient sends it: it would rather speak HTTP/2."""
    wish = ("Host: localhost", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEA", "Upgrade: h2c")
    return "\r\n".join((f"{method} {path} HTTP/1.1", *wish, *fields, "", "")).encode()


def answers(connected: socket.socket, count: int) -> list[int]:
    """Statuses of the next answers; each has a length."""
    found = []
    with connected.makefile("rb") as lines:
        for _ in range(count):
            found.append(int(lines.readline().split()[1]))
            fields = dict(line.split(b": ", 1) for line in iter(lines.readline, b"\r\n"))
            lines.read(int(fields[b"content-length"]))
    return found


@pytest.mark.parametrize("pause", [False, True], ids=["one packet", "head first"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_a_client_that_would_rather_speak_another_protocol_keeps_its_body(
    reached: Callable[..., Any], eventually: Callable[..., Any], is_chunked: bool, pause: bool
) -> None:
    it = reached()
    fields = ["Content-Type: application/xml"]
    body = report(1)
    if is_chunked:
        fields.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        fields.append(f"Content-Length: {len(body)}")
    with closing(socket.create_connection(("127.0.0.1", it.gateway.port), timeout=30)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            client.sendall(head("POST", f"{ANY}&persist=true", *fields))
            if pause:  # until the head alone has been read
                eventually(lambda: any(each.cycle is not None for each in it.gateway.connections._open.values()))
            client.sendall(body)
            assert answers(client, 1) == [201]
    assert it.ask("GET", "/v1/types/report/1.0/count").json()["count"] == 2


def test_requests_behind_one_that_asks_for_another_protocol_are_answered(reached: Callable[..., Any]) -> None:
    it = reached()
    post = head("POST", ANY, "Content-Type: application/xml", f"Content-Length: {len(report(1))}") + report(1)
    get = head("GET", "/v1/types")
    with closing(socket.create_connection(("127.0.0.1", it.gateway.port), timeout=30)) as client:
        client.sendall(post + get + get + post)
        assert answers(client, 4) == [201, 200, 200, 201]


def test_a_stream_asks_proxies_to_keep_nothing_back(reached: Callable[..., Any]) -> None:
    stream = reached().stream("/v1/types/report/1.0/subscribe")
    assert stream.answer.headers["X-Accel-Buffering"] == "no"
    stream.close()


def test_a_body_that_comes_too_slowly_is_told_so(reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.3)
    it = reached()
    slow = http.client.HTTPConnection("127.0.0.1", it.gateway.port, timeout=30)
    slow.putrequest("POST", ANY)
    slow.putheader("Content-Length", "1000")
    slow.putheader("Content-Type", "application/xml")
    slow.endheaders(b"<report>")
    answer = slow.getresponse()
    told = json.loads(answer.read())
    assert (answer.status, told["status"], told["code"]) == (408, 408, "wire_timeout")
    assert told["detail"].startswith("the body comes too slowly: less than 8192 bytes of it in 0.3 s, or not all")
    slow.close()


@pytest.mark.parametrize(("waits", "status"), [(1_000, 201), (3, 408)])
def test_a_body_that_comes_over_a_slow_line_is_waited_for_with_an_end(
    waits: int, status: int, reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given so little time for a request, and a client whose body comes in a hundred pieces over six times as much
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "BODY_LEAST", 1_000)
    monkeypatch.setattr(server, "BODY_WAITS", waits)
    it = reached()
    slow = http.client.HTTPConnection("127.0.0.1", it.gateway.port, timeout=30)
    slow.putrequest("POST", ANY)
    text = b"<report>" + b"x" * 100_000 + b"</report>"
    slow.putheader("Content-Length", str(len(text)))
    slow.putheader("Content-Type", "application/xml")
    slow.endheaders()
    with suppress(ConnectionError):
        for at in range(0, len(text), 1_000):
            slow.send(text[at : at + 1_000])
            threading.Event().wait(0.03)
    # Expect its answer, or that it took too long in all
    assert slow.getresponse().status == status
    slow.close()


class ApiClient:
    """A connection of the Common API, and a sequence of it."""

    def __init__(self, it: Any, kind: str) -> None:
        self._it = it
        made = it.ask("POST", "/v1/capi/connections", b'{"name": "c"}', **JSON).json()["connection"]
        assert it.ask("POST", f"/v1/capi/connections/{made}/connect").status == 204
        asked = json.dumps({"kind": kind, "type": "report", "version": "1.0"}).encode()
        self.key = it.ask("POST", f"/v1/capi/connections/{made}/sequences", asked, **JSON).json()["sequence"]
        assert it.ask("POST", f"/v1/capi/sequences/{self.key}/activate").status == 204

    def leave(self, eventually: Callable[..., Any]) -> None:
        """Wait for an object, and go before it comes."""
        common = self._it.gateway.guests.own.common
        gone = http.client.HTTPConnection("127.0.0.1", self._it.gateway.port, timeout=30)
        gone.request("GET", f"/v1/capi/sequences/{self.key}/next?timeout=60000")
        eventually(lambda: common._calls == 1)
        gone.close()

    def next(self, *, count: int = 1) -> list[str]:
        """Metadata of the next objects."""
        got = self._it.ask("GET", f"/v1/capi/sequences/{self.key}/next?timeout=20000&count={count}")
        assert got.status == 200, got.body
        return [each["metadata"] for each in got.json()["objects"]]


def test_an_object_that_comes_for_a_client_of_the_common_api_that_has_gone_is_for_the_next(
    reached: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    it = reached()
    client = ApiClient(it, "subscriber")
    for n in range(0, 6, 2):
        client.leave(eventually)
        it.publish((report(n), b""), (report(n + 1), b""), at=ANY)
        assert client.next() == [report(n).decode()]
        assert client.next() == [report(n + 1).decode()]
    # Expect nobody to wait any more for those who have gone
    eventually(lambda: it.gateway.guests.own.common._calls == 0)


def test_objects_that_reached_nobody_come_before_all_others(reached: Callable[..., Any]) -> None:
    # Given an answer that was ready when its client had gone
    it = reached()
    client = ApiClient(it, "query")
    it.publish(*((report(n), b"") for n in range(4)), at=f"{ANY}&persist=true")
    parts = "<predicateName/><predicateType>XPath</predicateType><predicateInstance>//n</predicateInstance>"
    asked = json.dumps({"document": f"<predicate>{parts}</predicate>"}).encode()
    assert it.ask("PUT", f"/v1/capi/sequences/{client.key}/predicate", asked, **JSON).status == 204
    assert it.ask("POST", f"/v1/capi/sequences/{client.key}/execute", b"{}", **JSON).status == 204
    undelivered = it.gateway.guests.own.common._of[client.key].undelivered
    assert client.next() == [report(0).decode()]
    taken = undelivered[client.key].take(2, 20_000, threading.Event())
    undelivered[client.key].put_back(taken)
    # Expect it, and what follows
    assert client.next() == [report(1).decode()]
    assert [*client.next(count=3), *client.next(count=3)] == [report(n).decode() for n in (2, 3)]
    assert client.next() == []


def test_who_waits_for_a_subscription_is_told_why_it_ends(
    reached: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    it = reached()
    ends: list[tuple[int, str]] = []

    def wait(key: str) -> threading.Thread:
        feed = it.gateway.guests.own.feeds.find(key)
        before = feed._reader

        def ask() -> None:
            got = it.ask("GET", f"/v1/subscriptions/{key}/next?timeout=60")
            ends.append((got.status, got.json()["detail"]))

        waiting = threading.Thread(target=ask)
        waiting.start()
        eventually(lambda: feed._reader > before)
        return waiting

    # When another one reads, when it is ended, and when the gateway ends
    key = it.ask("POST", "/v1/types/report/1.0/subscriptions").json()["subscription"]
    first, second = wait(key), wait(key)
    first.join(20)
    it.ask("DELETE", f"/v1/subscriptions/{key}")
    second.join(20)
    third = wait(it.ask("POST", "/v1/types/report/1.0/subscriptions").json()["subscription"])
    it.gateway.stop()
    third.join(20)
    # Expect each to be told that
    assert ends == [
        (409, "another request reads this subscription"),
        (404, "this subscription has ended"),
        (503, "the gateway ends"),
    ]
