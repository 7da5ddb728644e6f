"""What is told to clients whose answers or connections are lost, and what strangers can't make a gateway do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from jbi_pubsub.core import spool
from jbi_pubsub.core.errors import BackPressureError, OversizeError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Platform, TypeName
from jbi_pubsub.core.wire.places import PeerShares
from jbi_pubsub.web import common, feeds, gateway, handlers, replies, server
from jbi_pubsub.web.feeds import EventFeed, EventFeeds
from jbi_pubsub.web.operations import objects_in

TYPE = "/v1/types/report/1.0"
ANY = f"{TYPE}/objects?wait=20&validate=false"
KEPT = f"{ANY}&persist=true"
LARGE = b"x" * 700_000


def report(n: int) -> bytes:
    return b"<report><n>%d</n></report>" % n


# -- what was lost on the way -----------------------------------------------------------------------------------------


def test_an_answer_that_was_lost_comes_again_and_what_can_not_is_told(
    reached: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given objects of which two are more than what is kept of those that were read
    it = reached(archive=False)
    at = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    it.publish(*((report(n), LARGE) for n in range(4)), at=ANY)
    feed = it.gateway.guests.own.feeds.find(at.split("/")[3])
    eventually(lambda: feed.last_number >= 2)
    first = it.ask("GET", f"{at}?count=2&timeout=20").json()
    assert [each["metadata"] for each in first["objects"]] == [report(n).decode() for n in range(2)]
    # Expect the last answer to come again, whole
    again = it.ask("GET", f"{at}?after=0&count=2&timeout=20").json()
    assert again == first
    # When one more has been given; Expect the loss of the one before it to be told
    eventually(lambda: feed.last_number == 4)
    assert it.ask("GET", f"{at}?count=2&timeout=20").json()["last"] == 4
    late = it.ask("GET", f"{at}?after=0&count=2&timeout=20").json()
    assert [(each["cause"], each["count"]) for each in late["lost"]] == [("missed", 2)]
    assert [each["metadata"] for each in late["objects"]] == [report(n).decode() for n in (2, 3)]
    # Expect who asks without saying what it has had to be told what that was
    assert it.ask("GET", f"{at}?timeout=0").json() == {"objects": [], "lost": [], "last": 4}
    assert it.ask("GET", f"{at}?timeout=0&after={MAX_POSITION}").json()["last"] == 4


def test_who_takes_a_stream_over_keeps_it(reached: Callable[..., Any]) -> None:
    # Given a stream with positions, of which its client has had nothing
    it = reached()
    stream = it.stream(f"{TYPE}/subscribe?start=now")
    # When it comes back while the first connection still stands, which has had an object meanwhile
    it.publish((report(1), b""), at=KEPT)
    assert stream.objects(1) == [report(1).decode()]
    again = it.stream(f"{TYPE}/subscribe?start=now", Last_Event_ID=stream.opened[2])
    # Expect the object, and those that come later
    assert again.objects(1) == [report(1).decode()]
    assert stream.answer.read() == b""
    it.publish((report(2), b""), at=KEPT)
    assert again.objects(1) == [report(2).decode()]
    again.close()
    stream.close()


def test_a_stream_of_the_newest_of_each_key_goes_on_behind_what_it_had(reached: Callable[..., Any]) -> None:
    # Given a stream of the newest of each key, which is cut
    it = reached()
    it.publish(*((b"<r><k>%d</k><n>%d</n></r>" % (n % 2, n), b"") for n in range(4)), at=KEPT)
    at = f"{TYPE}/subscribe?start=last&latest_by=//k"
    stream = it.stream(at)
    _, first, last = stream.next()
    stream.close()
    assert first["metadata"] == "<r><k>0</k><n>2</n></r>"
    # When it comes back, expect what came behind its last object
    again = it.stream(at, Last_Event_ID=last)
    assert again.objects(1) == ["<r><k>1</k><n>3</n></r>"]
    again.close()


@pytest.mark.parametrize(
    "other",
    [
        "/v1/types/other/1.0/subscribe?predicate=//n%3E0",
        "/v1/types/report/2.0/subscribe?predicate=//n%3E0",
        f"{TYPE}/subscribe",
        f"{TYPE}/subscribe?predicate=//n%3E1",
        f"{TYPE}/subscribe?predicate=//n%3E0&payload_filter=//a",
        f"{TYPE}/subscribe?predicate=//n%3E0&ns=a=urn:a",
    ],
)
def test_an_id_of_a_subscription_with_other_terms_begins_one_with_those_of_the_request(
    reached: Callable[..., Any], other: str
) -> None:
    # Given a stream that was cut with an object on its way
    it = reached(archive=False)
    mine = f"{TYPE}/subscribe?predicate=//n%3E0"
    stream = it.stream(mine)
    key = stream.opened[1]["subscription"]
    it.publish((report(1), b""), (report(2), b""), at=ANY)
    _, _, last = stream.next()
    stream.close()
    # When another subscription comes with its id, expect a new one, and to be told that objects may be missing
    begun = it.stream(other, Last_Event_ID=last)
    assert begun.opened[1]["subscription"] != key
    kind, data, _ = begun.next()
    assert (kind, data["cause"], data["count"]) == ("lost", "missed", 0)
    begun.close()
    # and the first to go on where it was
    again = it.stream(mine, Last_Event_ID=last)
    assert again.opened[1]["subscription"] == key
    assert again.objects(1) == [report(2).decode()]
    again.close()


def test_who_has_come_back_by_a_position_still_has_it_when_nothing_came(reached: Callable[..., Any]) -> None:
    it = reached()
    it.publish((report(1), b""), at=KEPT)
    stream = it.stream(f"{TYPE}/subscribe?start=now", Last_Event_ID="1")
    assert stream.opened[2] == ""  # which leaves a client's last id as it was
    stream.close()


def test_what_is_told_of_a_loss_leaves_the_position() -> None:
    # Given a feed whose last object had a position
    loop = asyncio.new_event_loop()
    feed = EventFeed(loop)
    told = handlers.event_frame(feed, feeds.FeedEvent(1, _object(position=7)))
    assert b"\nid: 7\n" in told
    # Expect a loss to have no id, and an object without a position its own
    lost = feeds.FeedEvent(2, LossNotice("s", Cause.QUEUE_OVERFLOW, 1))
    assert b"\nid:" not in handlers.event_frame(feed, lost)
    assert f"id: {feed.key}-3\n".encode() in handlers.event_frame(feed, feeds.FeedEvent(3, _object(position=0)))
    assert not feed.is_placed
    assert f"id: {feed.key}-2\n".encode() in handlers.event_frame(feed, lost)
    loop.close()


def _object(position: int) -> InfoObject:
    platform = Platform(1.0, "r-1", 1, 4, 0, position=position)
    return InfoObject("id", TypeName("report", "1.0"), b"<a/>", b"", platform)


def test_metadata_do_not_become_events(reached: Callable[..., Any]) -> None:
    # Given metadata that are events, with each line end that a client knows
    it = reached(archive=False)
    stream = it.stream(f"{TYPE}/subscribe")
    hostile = "<a>\n\nevent: lost\ndata: {}\n\r\r\nid: 9\r\u2028\u2029\x85\u0000</a>".encode()
    said = it.publish((hostile.replace(b"\x00", b""), b"\n\nevent: x\n\n"), (report(1), b""), at=ANY)
    assert said.status == 201, said.body
    # Expect one event for each object
    assert stream.objects(2) == [hostile.replace(b"\x00", b"").decode(), report(1).decode()]
    stream.close()


# -- what was published ----------------------------------------------------------------------------------------------


def test_who_waited_in_vain_is_told_what_is_not_to_be_sent_again(reached: Callable[..., Any]) -> None:
    # Given a delegate that has gone
    it = reached(archive=False)
    assert it.publish((report(0), b""), at=ANY).status == 201
    it.delegate.stop(0.0)
    # When two objects are published, and waited for
    said = it.publish((report(1), b""), (report(2), b""), at=f"{TYPE}/objects?validate=false&wait=0.2")
    # Expect both to be on their way
    assert (said.status, said.json()["facts"]["published"]) == (429, 2)
    it.give_up()


def test_who_waits_long_does_not_hold_up_the_end(reached: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    # Given a delegate that has gone, and clients that wait for it, for an object, and for events
    it = reached(archive=False)
    assert it.publish((report(0), b""), at=ANY).status == 201
    at = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    stream = it.stream(f"{TYPE}/subscribe")
    it.delegate.stop(0.0)
    with ThreadPoolExecutor(2) as pool:
        publishing = pool.submit(it.publish, (report(1), b""), at=f"{TYPE}/objects?validate=false&wait=300")
        polling = pool.submit(it.ask, "GET", f"{at}?timeout=300")
        feed = it.gateway.guests.own.feeds.find(at.split("/")[3])
        eventually(lambda: it.gateway._calls.taken == 1 and feed._readers == 1)
        # When it ends
        begun = time.monotonic()
        it.gateway.stop()
        # Expect it to take seconds, not minutes, and all to have an answer
        assert time.monotonic() - begun < 100
        assert (publishing.result().status, publishing.result().json()["code"]) == (503, "wire")
        assert polling.result().status == 503
    while stream.answer.readline():
        pass
    stream.close()


def test_a_request_that_is_cut_off_at_the_end_is_no_error(federation: Any, caplog: pytest.LogCaptureFixture) -> None:
    # Given a server with a request that never has its answer
    begun = threading.Event()

    class Endless(server.HttpServer):
        def served(self) -> Any:
            async def app(scope: Any, *_: Any) -> None:
                if scope["type"] == "http":
                    begun.set()
                    await asyncio.sleep(600)

            return app

    made = Endless(federation.config, "127.0.0.1", 0, section="web")
    made.start()
    with socket.create_connection(("127.0.0.1", made.port), timeout=30.0) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.wait(30.0)
        # When it stops, expect nothing to be said of that
        made.stop()
    assert [each.getMessage() for each in caplog.records if each.name.startswith("uvicorn")] == []


# -- places ---------------------------------------------------------------------------------------------------------


def _held(stack: ExitStack, port: int, text: str, host: str = "127.0.0.2") -> socket.socket:
    """A connection from `host` that has sent this."""
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20.0, source_address=(host, 0)))
    made.sendall(text.encode())
    return made


def _heads(connections: list[socket.socket]) -> list[bytes]:
    """The status line of each; b"" of one that was ended."""
    found = []
    for each in connections:
        with suppress(ConnectionError):
            found.append(each.recv(12))
    return found


@pytest.mark.parametrize("stranger", ["127.0.0.2", "127.0.0.1"])
def test_idle_connections_of_one_stranger_keep_nobody_out(reached: Callable[..., Any], stranger: str) -> None:
    # Given 280 connections that have been answered, and say nothing more; without credentials, or of the client's host
    it = reached(archive=False)
    with ExitStack() as stack:
        asked = "GET /v1/openapi.json HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        idle = [_held(stack, it.gateway.port, asked, stranger) for _ in range(280)]
        assert b"HTTP/1.1 403" in _heads(idle[-5:])
        assert len(it.gateway.connections) <= 192
        # Expect honest requests to be answered
        assert [it.ask("GET", "/v1/types").status for _ in range(20)] == [200] * 20


def test_a_peer_has_its_share_of_streams(reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a stranger with as many streams as one may have, and one more
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 16)
    monkeypatch.setattr(feeds, "FEEDS_MOST", 16)
    it = reached(archive=False)
    with ExitStack() as stack:
        asked = f"GET {TYPE}/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = [_held(stack, it.gateway.port, asked) for _ in range(12)]
        assert _heads(streams) == [b"HTTP/1.1 200"] * 12
        # Expect it to be told, and another one to have a stream
        over = [_held(stack, it.gateway.port, asked) for _ in range(3)]
        assert _heads(over) == [b"HTTP/1.1 503"] * 3
        other = it.stream(f"{TYPE}/subscribe")
        other.close()


def test_a_share_is_given_back() -> None:
    shares = PeerShares(8, "too much")
    with shares.held("a", 6), pytest.raises(BackPressureError, match="too much"):
        shares.take("a")
    shares.take("a", 6)
    shares.take("b", 2)
    with pytest.raises(BackPressureError):
        shares.take("c")
    shares.take("c", 0)
    shares.give("a", 6)
    shares.give("b", 2)
    assert shares.taken == 0


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_body_of_boundaries_alone_takes_no_more_room_than_its_bytes() -> None:
    body = b"\r\n--b" * 1_000_000
    tracemalloc.start()
    with pytest.raises(OversizeError, match="parts"):
        objects_in(body, "multipart/form-data; boundary=b")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(body)


def test_answers_that_nobody_takes_are_bounded(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given room for a megabyte of answers, an archived payload of 30, and a client that asks and does not read
    monkeypatch.setattr(gateway, "ANSWERS_MOST", 1 << 20)
    it = reached()
    ids = it.publish((report(1), b"x" * 30_000_000), (report(2), b"small"), at=KEPT).json()["ids"]
    path = f"/v1/objects/{ids[0]}/payload"
    with ExitStack() as stack:
        silent = stack.enter_context(closing(socket.socket()))
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", it.gateway.port))
        silent.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: it.gateway._answers.taken > 0)
        # Expect the next one to come again, and small answers as ever
        said = it.ask("GET", path)
        assert (said.status, said.json()["code"]) == (429, "back_pressure")
        assert it.ask("GET", f"/v1/objects/{ids[1]}/payload").body == b"small"
    # Expect room when it has gone, and the answer to be whole
    eventually(lambda: it.gateway._answers.taken == 0)
    assert it.ask("GET", path).body == b"x" * 30_000_000


@pytest.mark.parametrize("size", [0, 1, replies.PART - 1, replies.PART, replies.PART + 1, 2 * replies.PART + 1])
def test_an_answer_of_any_size_is_whole(size: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    whole = bytes(size)
    asyncio.run(replies.Reply(200, whole).write(send))
    assert b"".join(message["body"] for message in sent[1:]) == whole
    assert [bool(message.get("more_body")) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


def test_a_subscription_that_could_not_be_cancelled_is_cancelled_later() -> None:
    cancelled: list[str] = []
    is_full = True

    async def call(work: Callable[[], Any]) -> Any:
        if is_full and cancelled_is_next:
            raise BackPressureError("too much is under way")
        return work()

    class Adapter:
        def register_subscriber(self, **_: Any) -> str:
            return "s-1"

        def cancel_subscription(self, uid: str) -> None:
            cancelled.append(uid)

    async def run() -> None:
        nonlocal is_full, cancelled_is_next
        all_of = EventFeeds(call, Adapter)
        feed = await all_of.open("peer")
        cancelled_is_next = True
        with pytest.raises(BackPressureError):
            await all_of.end(feed)
        # Expect it to count until it is
        assert list(all_of._feeds) == [feed.key]
        is_full = False
        await all_of.end_idle()
        await all_of.end(feed)
        assert (cancelled, all_of._feeds) == (["s-1"], {})

    cancelled_is_next = False
    asyncio.run(run())


def test_rubbish_in_what_says_where_to_go_on_is_no_fault_of_the_gateway(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)
    key = it.ask("POST", f"{TYPE}/subscriptions").json()["subscription"]
    for last in (f"{key}-{'9' * 60}", f"{key}--1", f"{key}-", "-", "x-\xb2", f"{key}-1-2"):
        it.stream(f"{TYPE}/subscribe", Last_Event_ID=last).close()
    for last, refused in (("9" * 5_000, (400, "argument")), ("9" * 30, (404, "unknown_uid"))):  # there is no archive
        said = it.ask("GET", f"{TYPE}/subscribe", Last_Event_ID=last)
        assert (said.status, said.json()["code"]) == refused


def test_sequences_of_one_connection_may_be_made_at_once(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)

    def post(path: str, **body: str) -> Any:
        return it.ask("POST", f"/v1/capi{path}", json.dumps(body).encode(), Content_Type="application/json")

    made = post("/connections", name="c").json()["connection"]
    assert it.ask("POST", f"/v1/capi/connections/{made}/connect").status == 204
    # When more are made than there may be, by many at once
    with ThreadPoolExecutor(16) as pool:
        asked = {"kind": "publisher", "type": "report", "version": "1.0"}
        said = list(pool.map(lambda _: post(f"/connections/{made}/sequences", **asked).status, range(150)))
    # Expect as many as there may be, but for those that were looked at together
    assert set(said) == {201, 429}
    assert 64 <= said.count(201) <= 64 + 15
    at = f"/connections/{made}/repository"
    said = post(at, kind="property", type="report", name="n", value_base64="\xe9")
    assert (said.status, said.json()["code"]) == (400, "argument")


def test_what_sequences_keep_is_bounded_together(reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given documents up to what one user's sequences may keep, more are refused until a sequence is destroyed; one
    that takes another's place, or was not taken, counts once, or not."""
    monkeypatch.setattr(common, "KEPT_MOST", 300_000)
    it = reached(archive=False)
    json_ = {"Content_Type": "application/json"}

    def said(method: str, path: str, **body: str) -> Any:
        return it.ask(method, f"/v1/capi{path}", json.dumps(body).encode() if body else None, **(json_ if body else {}))

    made = said("POST", "/connections", name="c").json()["connection"]
    assert said("POST", f"/connections/{made}/connect").status == 204
    asked = {"kind": "subscriber", "type": "report", "version": "1.0"}
    one, two = (said("POST", f"/connections/{made}/sequences", **asked).json()["sequence"] for _ in range(2))

    def set_predicate(sequence: str, expression: str, padding: int = 160_000) -> int:
        parts = "<predicateType>XPath</predicateType>" + f"<predicateInstance>{expression}</predicateInstance>"
        document = f"<predicate>{parts}{' ' * padding}</predicate>"
        return int(said("PUT", f"/sequences/{sequence}/predicate", document=document).status)

    assert set_predicate(one, "/a") == set_predicate(one, "/b") == 204
    assert set_predicate(two, "/a") == 429
    assert set_predicate(two, "/a[", 100_000) == 422
    for n in range(3):
        assert said("PUT", f"/sequences/{two}/attributes/none{n}/1.0", document="<none/>").status >= 400
    [held] = it.gateway.guests.own.common._held.values()
    assert list(held.kept) == [(one, "")]
    assert set_predicate(two, "/a", 100_000) == 204
    assert set_predicate(two, "/a[", 10) == 422
    assert held.kept[two, ""] > 100_000
    assert said("DELETE", f"/connections/{made}/sequences/{one}").status == 204
    assert set_predicate(two, "/a") == 204


def test_what_is_no_http_is_told_as_all_errors_and_ends_what_is_under_way(
    reached: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    it = reached(archive=False)

    def sent(*parts: bytes) -> bytes:
        got = b""
        with socket.create_connection(("127.0.0.1", it.gateway.port), timeout=20) as connection:
            for part in parts:
                connection.sendall(part)
                got += connection.recv(4096)
            while more := connection.recv(4096):
                got += more
        return got

    head, _, body = sent(b"\x00\xff\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    assert (json.loads(body)["code"], json.loads(body)["status"]) == ("argument", 400)
    # Given a stream whose request goes on; Expect it to end there, and nothing in the log
    begun = f"GET {TYPE}/subscribe HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert sent(begun, b"no number\r\n").count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


POST = b"POST /v1/types/report/1.0/objects HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\n<a/>\r\n"


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET /", b"x"),
        (b"GET /v1/types HTTP/1.1\r\nX", b"x"),
        (b"GET /v1/types HTTP/1.1\r\nX: ", b"x"),
        (b"GET /v1/types HTTP/1.1\r\n", b"X: y\r\n"),
        (CHUNKED + b"0\r\n", b"X: y\r\n"),
        (CHUNKED + b"0\r\nX: ", b"x"),
        (CHUNKED + b"4;", b"x"),
        (b"", b"GET /v1/types/report/1.0/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ],
    ids=("path", "name", "value", "headers", "trailers", "trailer", "chunk", "requests"),
)
def test_what_comes_without_end_is_cut_off(reached: Callable[..., Any], begun: bytes, more: bytes) -> None:
    it = reached(archive=False)

    def pour(connection: socket.socket) -> None:
        sent = connection.send(begun or more)
        while sent < 20_000_000:
            with contextlib.suppress(TimeoutError):  # who does not read has nothing of it
                sent += connection.send(more * 10_000)

    address = "127.0.0.1", it.gateway.port
    with socket.create_connection(address, timeout=0.2) as connection, pytest.raises(ConnectionError):
        pour(connection)
    assert it.ask("GET", "/v1/types").status == 200


def test_a_request_of_two_hosts_is_none(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)
    with socket.create_connection(("127.0.0.1", it.gateway.port), timeout=20) as connection:
        connection.sendall(b"GET /v1/types HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://evil.example/v1/types HTTP/1.1\r\nHost: localhost",
        b"GET http://evil@localhost/v1/types HTTP/1.1\r\nHost: localhost",
        b"GET http://evil.example?/v1/types HTTP/1.1\r\nHost: localhost",
        b"GET /v1/types HTTP/1.1\r\nHost: evil@localhost",
        b"GET /v1/types HTTP/1.1\r\nHost: localhost/evil",
        b"GET /v1/types HTTP/1.1\r\nHost: evil.example#@localhost",
    ],
)
def test_a_foreign_host_is_refused_in_whatever_form(reached: Callable[..., Any], head: bytes) -> None:
    it = reached(archive=False)
    with socket.create_connection(("127.0.0.1", it.gateway.port), timeout=20) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(12) in (b"HTTP/1.1 403", b"HTTP/1.1 400")
    # Expect the absolute form of our own to be as good as any
    with socket.create_connection(("127.0.0.1", it.gateway.port), timeout=20) as connection:
        connection.sendall(b"GET http://localhost/v1/types HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_large_payload_is_read_where_nobody_waits_for_it(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archived payload that lies in a file when it has come
    it = reached()
    large = bytes(9_000_000)
    (uid,) = it.publish((report(1), large), at=KEPT).json()["ids"]
    read, is_on_loop = spool.SpooledPayload.__bytes__, []

    def noted(self: spool.SpooledPayload) -> bytes:
        with suppress(RuntimeError):
            is_on_loop.append(asyncio.get_running_loop())
        return read(self)

    monkeypatch.setattr(spool.SpooledPayload, "__bytes__", noted)
    # Expect it whole, and not read on the thread of all connections
    assert it.ask("GET", f"/v1/objects/{uid}/payload").body == large
    assert is_on_loop == []
    # Expect one that is too large for memory to be told
    monkeypatch.setattr(spool, "MEMORY_BYTES", len(large) - 1)
    said = it.ask("GET", f"/v1/objects/{uid}/payload")
    assert (said.status, said.json()["code"]) == (413, "oversize")
