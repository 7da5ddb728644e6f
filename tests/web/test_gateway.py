"""The gateway: objects in and out over HTTP, what goes wrong, and what strangers do."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from histories import Past, an_object

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.core.errors import ArgumentError, ConfigurationError, WireError
from jbi_pubsub.core.node_sections import GatewaySection
from jbi_pubsub.core.wire.places import PeerShares
from jbi_pubsub.publisher import lanes
from jbi_pubsub.web import connection, feeds, gateway
from jbi_pubsub.web.gateway import Gateway
from jbi_pubsub.web.operations import OBJECTS_MOST, objects_in

TYPE = "/v1/types/report/1.0"
ANY = f"{TYPE}/objects?wait=20&validate=false"
KEPT = f"{ANY}&persist=true"


def report(n: int) -> bytes:
    return b"<report><n>%d</n></report>" % n


@pytest.mark.row("G-139")
def test_what_is_posted_comes_to_who_subscribes_by_events_or_long_poll(reached: Callable[..., Any]) -> None:
    # Given a stream and a subscription to be polled
    it = reached(archive=False)
    stream = it.stream(f"{TYPE}/subscribe?predicate=//n%3E1")
    polled = it.ask("POST", f"{TYPE}/subscriptions")
    assert (polled.status, polled.headers["Location"]) == (201, polled.json()["next"].removesuffix("/next"))
    at = polled.json()["next"]
    # When
    said = it.publish((report(1), b""), (report(2), b"\x00\xff"), at=ANY)
    # Expect
    assert said.status == 201, said.body
    first, second = said.json()["ids"]
    kind, data, _ = stream.next()
    assert (kind, data["id"], data["metadata"]) == ("object", second, report(2).decode())
    assert (data["type"], data["version"], data["position"], data["payload_base64"]) == ("report", "1.0", 0, "AP8=")
    found: list[str] = []
    last = 0
    while len(found) < 2:
        answer = it.ask("GET", f"{at}?after={last}&count=10&timeout=20").json()
        found += [each["id"] for each in answer["objects"]]
        last = answer["last"]
    assert found == [first, second]
    # Expect what was not heard to come again, and an ended subscription to be none
    assert [each["id"] for each in it.ask("GET", f"{at}?after=0&count=10").json()["objects"]] == found
    assert it.ask("GET", f"{at}?after={last}&timeout=0").json() == {"objects": [], "lost": [], "last": last}
    assert it.ask("DELETE", polled.headers["Location"]).status == 204
    gone = it.ask("GET", at)
    assert (gone.status, gone.json()["code"]) == (404, "unknown_uid")
    stream.close()


def test_a_stream_that_was_cut_goes_on_by_the_id_of_its_last_event(
    reached: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given no archive, and a stream that is cut after the first of three objects
    it = reached(archive=False)
    stream = it.stream(f"{TYPE}/subscribe")
    it.publish(*((report(n), b"") for n in range(3)), at=ANY)
    _, data, last = stream.next()
    stream.close()
    assert data["metadata"] == report(0).decode()
    assert last.endswith("-1")
    it.publish((report(3), b""), at=ANY)
    # When it goes on; Expect nothing missed, nothing twice
    again = it.stream(f"{TYPE}/subscribe", Last_Event_ID=last)
    assert again.objects(3) == [report(n).decode() for n in (1, 2, 3)]
    again.close()
    # When too much time has gone; Expect that to be said, and what comes then
    late = it.stream(f"{TYPE}/subscribe", Last_Event_ID=f"{'0' * 32}-7")
    kind, data, _ = late.next()
    assert (kind, data["cause"], data["count"]) == ("lost", "missed", 0)
    it.publish((report(4), b""), at=ANY)
    assert late.objects(1) == [report(4).decode()]
    late.close()


def test_with_an_archive_the_id_of_an_event_is_a_position_which_holds_for_ever(reached: Callable[..., Any]) -> None:
    it = reached()
    it.publish(*((report(n), b"") for n in range(4)), at=KEPT)
    stream = it.stream(f"{TYPE}/subscribe?start=all")
    events = [stream.next() for _ in range(4)]
    stream.close()
    places = [key for _, _, key in events]
    assert places == [data["place"] for _, data, _ in events]
    positions = [data["position"] for _, data, _ in events]
    assert positions == [int(place.partition("@")[0]) for place in places] == sorted(positions)
    for key in (places[1], str(positions[1])):  # what earlier versions gave is of the archive that is there
        again = it.stream(f"{TYPE}/subscribe", Last_Event_ID=key)
        assert again.objects(2) == [report(n).decode() for n in (2, 3)]
        if key in places:
            it.publish((report(4), b""), at=KEPT)
            assert again.objects(1) == [report(4).decode()]
        again.close()


def test_the_id_of_an_object_that_no_archive_keeps_is_its_subscriptions(reached: Callable[..., Any]) -> None:
    # Given an archive, and a stream that gets an object of it and then one that is not kept
    it = reached()
    it.publish(*((report(n), b"") for n in range(2)), at=KEPT)
    stream = it.stream(f"{TYPE}/subscribe?start=now")
    it.publish((report(2), b""), at=KEPT)
    _, kept, place = stream.next()
    it.publish((report(3), b""), at=f"{ANY}&persist=false")
    _, passing, last = stream.next()
    assert (place, passing["position"], passing["place"]) == (kept["place"], 0, "")
    assert last.startswith(stream.opened[1]["subscription"])
    # When it is cut, and goes on; Expect what came meanwhile, and not the archive
    stream.close()
    it.publish((report(4), b""), at=f"{ANY}&persist=false")
    again = it.stream(f"{TYPE}/subscribe?start=now", Last_Event_ID=last)
    assert again.objects(1) == [report(4).decode()]
    again.close()


def test_who_comes_back_with_a_place_of_an_archive_that_is_no_more_is_told(reached: Callable[..., Any]) -> None:
    # Given an archive, and who has had the third object of one that was wiped since, or put back from a copy
    it = reached()
    it.publish(*((report(n), b"") for n in range(2)), at=KEPT)
    # When he comes back, expect him to be told, and to get all that there is
    stream = it.stream(f"{TYPE}/subscribe", Last_Event_ID=f"3@{'0' * 32}")
    events = [stream.next() for _ in range(3)]
    stream.close()
    assert [data["cause"] for kind, data, _ in events if kind == "lost"] == ["other_archive"]
    assert [data["metadata"] for kind, data, _ in events if kind == "object"] == [report(n).decode() for n in range(2)]


def test_archives_are_asked_page_by_page(reached: Callable[..., Any]) -> None:
    it = reached()
    ids = it.publish(*((report(n), b"x" * n) for n in range(5)), at=KEPT).json()["ids"]
    page = it.ask("GET", f"{TYPE}/query?limit=2&predicate=//n%3E0").json()
    assert ([each["id"] for each in page["objects"]], page["more"]) == (ids[1:3], True)
    rest = it.ask("GET", f"{TYPE}/query?predicate=//n%3E0&after={page['objects'][-1]['place']}").json()
    assert ([each["id"] for each in rest["objects"]], rest["more"], rest["partial"]) == (ids[3:], False, [])
    # and newest first, page by page to the oldest
    newest, at = list[str](), ""
    while (page := it.ask("GET", f"{TYPE}/query?order=newest&limit=2{at}").json())["more"]:
        newest += [each["id"] for each in page["objects"]]
        at = f"&after={page['objects'][-1]['place']}"
    assert newest + [each["id"] for each in page["objects"]] == ids[::-1]
    for address, count in ((it.delegate.address, 5), ("127.0.0.1:1", None)):  # of one archive, if there are several
        assert it.ask("GET", f"{TYPE}/count?at={address}").json().get("count") == count
    key = it.ask("GET", f"{TYPE}/query?order=newest&latest_by=//n&after=3")
    assert (key.status, key.json()["facts"]) == (422, {"argument": "after"})
    assert it.ask("GET", f"{TYPE}/count?least_payload=3").json() == {"count": 2, "partial": []}
    assert it.ask("GET", f"/v1/objects/{ids[1]}").json()["metadata"] == report(1).decode()
    payload = it.ask("GET", f"/v1/objects/{ids[3]}/payload")
    assert (payload.body, payload.headers["Content-Type"]) == (b"xxx", "application/octet-stream")
    empty = it.ask("GET", f"/v1/objects/{ids[0]}/payload")
    assert (empty.body, empty.headers["Content-Type"]) == (b"", "application/octet-stream")
    assert it.ask("GET", "/v1/objects/none").json()["code"] == "unknown_uid"


def test_a_page_has_what_came_in_time_of_an_archive_that_hangs(reached: Callable[..., Any]) -> None:
    # Given an archive that hangs after two of three objects
    it = reached(archive=False)
    past = Past(it.federation.config, [an_object(n, type_="report") for n in (1, 2, 3)], types="report")
    it.federation.stack.callback(past.stop)
    past.most = 2
    # When a page is asked for, expect these, the archive by name, and that there may be more
    page = it.ask("GET", "/v1/types/report/*/query?timeout=1").json()
    assert [each["position"] for each in page["objects"]] == [10, 20]
    assert (page["more"], len(page["partial"])) == (True, 1)
    # When it hangs before the first, expect an error
    past.most = 0
    assert it.ask("GET", "/v1/types/report/*/query?timeout=1").status == 504


def test_who_may_not_ask_is_refused_what_is_there(reached: Callable[..., Any], tmp_path: Path, figures: Any) -> None:
    # Given a delegate that allows somebody else everything, who has published, and the gateway nothing
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\nclient = "camera"\naction = "*"\n')
    it = reached(policy=str(policy))
    publisher = it.federation.light(name="camera")
    at = publisher.connect_to_delegate("alpha")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    published = publisher.publish(registration, figures.figure_1)
    publisher.flush()
    # When that is asked for, Expect a refusal
    imagery = "/v1/types/mil.af.rl.jbi.Intel_Imagery/1.0"
    for path in (
        f"{imagery}/query",
        f"{imagery}/count",
        f"/v1/objects/{published}",
        f"/v1/objects/{published}/payload",
    ):
        said = it.ask("GET", path)
        assert (said.status, said.json()["code"]) == (403, "access_denied"), path
    # and who subscribes to be told, and to get nothing
    stream = it.stream(f"{imagery}/subscribe")
    publisher.publish(registration, figures.figure_1)
    kind, lost, _ = stream.next()
    assert (kind, lost["cause"]) == ("lost", "refused")
    stream.close()


def test_a_type_with_invariants_is_published_under_each_set_of_them(reached: Callable[..., Any], figures: Any) -> None:
    # Given a type in the type repository
    it = reached(archive=False)
    it.types.add(read_bundle(figures.schema), by="test")
    at = "/v1/types/mil.af.rl.jbi.Intel_Imagery/1.0/objects?wait=20"
    stream = it.stream("/v1/types/mil.af.rl.jbi.Intel_Imagery/*/subscribe")
    # When objects of two sets of invariant values come, in one request
    other = figures.metadata(publisher="999th")
    said = it.publish((figures.figure_1, b""), (other, b""), (figures.figure_1, b""), at=at)
    assert said.status == 201, said.body
    # Expect all of them, and what is not valid to be refused, with where
    assert sorted(stream.objects(3)) == sorted(each.decode() for each in (figures.figure_1, other, figures.figure_1))
    bad = it.publish((figures.figure_1, b""), (b"<nonsense/>", b""), at=at)
    assert (bad.status, bad.json()["code"], bad.json()["facts"]["published"]) == (422, "metadata", 1)
    stream.close()


def test_clients_that_begin_together_share_a_registration(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jbi_pubsub.web.publishing.OPENING_SECONDS", 60.0)  # the first may take its time
    it = reached(archive=False)
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda n: it.publish((report(n), b""), at=ANY).status, range(8)))
    assert said == [201] * 8
    assert len(it.gateway.guests.own.publishing._open().status()["registrations"]) == 1


def test_bad_requests_are_told_what_is_wrong(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)
    form = {"Content_Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n<a/>\r\n--b--\r\n'
    for method, path, body, headers, status, code in (
        ("GET", "/", None, {}, 404, "unknown_uid"),
        ("GET", "/v1/../v1/types", None, {}, 404, "unknown_uid"),
        ("DELETE", "/v1/types", None, {}, 405, "argument"),
        ("GET", f"{TYPE}/subscribe?predicat=x", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?predicate=///", None, {}, 422, "predicate"),
        ("GET", f"{TYPE}/subscribe?predicate=a&predicate=b", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?predicate=%ff", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?predicate=" + "x" * 40_000, None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?ns=x", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?view=all", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?latest_by=n", None, {}, 422, "argument"),
        ("GET", f"{TYPE}/query?timeout=0.001", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/count?suppress_empty=true", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/subscribe?start=yesterday", None, {}, 422, "configuration"),
        ("GET", f"{TYPE}/query?limit=0", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/query?limit=many", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/query?timeout=nan", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/query?limit=1_0", None, {}, 400, "argument"),
        ("GET", f"{TYPE}/query?limit=%D9%A3", None, {}, 400, "argument"),  # a digit that is not ASCII
        ("GET", f"{TYPE}/query?limit=" + "9" * 5_000, None, {}, 400, "argument"),
        ("GET", "/v1/types//1.0/query", None, {}, 404, "unknown_uid"),
        ("GET", "/v1/capi/sequences/x/next?timeout=0&count=999", None, {}, 400, "argument"),
        ("POST", "/v1/types/*/1.0/objects?validate=false", b"<a/>", {"Content_Type": "text/xml"}, 400, "argument"),
        ("GET", f"{TYPE}/query", None, {}, 404, "unknown_uid"),  # there is no archive
        ("POST", f"{TYPE}/objects", b"<a/>", {}, 400, "argument"),
        ("POST", f"{TYPE}/objects", b"rubbish", form, 400, "argument"),
        ("POST", f"{TYPE}/objects", part % b"other", form, 400, "argument"),
        ("POST", f"{TYPE}/objects", (part % b"metadata")[:-4], form, 400, "argument"),
        ("POST", f"{TYPE}/objects", part % b"metadata", form, 422, "schema"),  # no type repository has one
        ("POST", f"{TYPE}/objects?validate=maybe", part % b"metadata", form, 400, "argument"),
        ("POST", f"{TYPE}/objects?validate=false", b"<a", {"Content_Type": "application/xml"}, 422, "metadata"),
        ("POST", "/v1/capi/connections", b"{}", {"Content_Type": "application/json"}, 400, "argument"),
        ("POST", "/v1/capi/connections", b'{"name": ""}', {"Content_Type": "application/json"}, 400, "argument"),
        ("POST", "/v1/capi/connections", b"[" * 100_000, {"Content_Type": "application/json"}, 400, "argument"),
        ("POST", "/v1/capi/connections", b"{}", {"Content_Type": "text/plain"}, 415, "argument"),
        ("POST", "/v1/capi/connections/x/connect", None, {}, 409, "capi_connection"),
        ("GET", "/v1/capi/sequences/x", None, {}, 409, "capi_sequence_state"),
    ):
        said = it.ask(method, path, body, **headers)
        assert (said.status, said.json()["code"]) == (status, code), (path, said.body)
        assert said.headers["Content-Type"] == "application/problem+json"
        assert said.json()["status"] == status
    assert "predicate?" in it.ask("GET", f"{TYPE}/subscribe?predicat=x").json()["hint"]
    assert it.ask("DELETE", "/v1/types").headers["Allow"] == "GET, HEAD"
    # and a title that names the problem, whichever class of error stands for it
    text = {"Content_Type": "text/plain"}
    for method, path, body, headers, title in (
        ("DELETE", "/v1/types", None, {}, "Method not allowed"),
        ("GET", "/v1/nothing", None, {}, "Unknown path"),
        ("POST", "/v1/capi/connections", b"{}", text, "Unsupported media type"),
        ("POST", "/v1/events", b"x", {"ce_id": "1", "ce_source": "s", "ce_type": "t"}, "Invalid CloudEvent"),
        ("GET", f"{TYPE}/subscribe?predicat=x", None, {}, "Invalid request"),
        ("DELETE", "/v1/subscriptions/x", None, {}, "Unknown resource"),
    ):
        assert it.ask(method, path, body, **headers).json()["title"] == title, path
    # Expect it to live
    assert (
        it.ask("POST", f"{TYPE}/objects?validate=false&wait=20", b"<a/>", Content_Type="application/xml").status == 201
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},  # DNS rebinding
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_pages_of_another_origin_get_nothing(reached: Callable[..., Any], headers: dict[str, str]) -> None:
    it = reached(archive=False)
    said = it.ask("GET", "/v1/types", **headers)
    assert (said.status, said.json()["code"]) == (403, "access_denied")
    assert it.ask("GET", "/v1/types", Host="localhost:1").status == 200


def test_beyond_loopback_it_needs_tls_and_a_token_which_is_asked_for(
    reached: Callable[..., Any], fixtures: Any, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(fixtures.test_config(), gateway=GatewaySection(host="0.0.0.0", port=0))
    with pytest.raises(ConfigurationError, match="without a token"):
        Gateway(config)
    token = tmp_path / "token"
    with pytest.raises(ConfigurationError, match="without TLS"):
        Gateway(msgspec.structs.replace(config, gateway=GatewaySection(host="0.0.0.0", port=0, token=str(token))))
    # Given the token that was made; Expect it to be asked for on loopback as well
    assert token.stat().st_mode & 0o077 == 0
    it = reached(archive=False, token=str(token))
    for headers in (
        {},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic eDp4"},
        {"Authorization": "Bearer \xff"},
    ):
        said = it.ask("GET", "/v1/types", **headers)
        assert (said.status, said.json()["code"], said.headers["WWW-Authenticate"]) == (401, "access_denied", "Bearer")
    assert it.ask("GET", "/v1/types", Authorization=f"Bearer {token.read_text().strip()}").status == 200


def test_servers_that_allow_nothing_refuse_what_reaches_them(
    reached: Callable[..., Any], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a gateway without rules of its own, before a delegate whose policy allows nobody anything
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\nuser = "nobody"\naction = "administer"\n')
    it = reached(policy=str(policy))
    json = {"Content_Type": "application/json"}
    made = it.ask("POST", "/v1/capi/connections", b'{"name": "c"}', **json).json()["connection"]
    # When each way to it is tried; Expect its refusal
    for method, path, code in (
        ("POST", ANY, "access_denied"),
        ("GET", "/v1/objects/x", "access_denied"),
        ("GET", "/v1/objects/x/payload", "access_denied"),
        ("POST", f"/v1/capi/connections/{made}/connect", "capi_permission_denied"),
    ):
        xml = {"Content_Type": "application/xml"} if path == ANY else {}
        said = it.ask(method, path, report(1) if path == ANY else None, **xml)
        assert (said.status, said.json()["code"]) == (403, code), (path, said.body[:300])
    # Expect a subscription, which servers are asked about when something matches, to be told then
    polled = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    stream = it.stream(f"{TYPE}/subscribe")
    policy.write_text('[[access]]\naction = ["connect", "publish"]\nallow = true\n')
    eventually(lambda: it.ask("POST", ANY, report(1), Content_Type="application/xml").status == 201)
    kind, data, _ = stream.next()
    assert (kind, data["cause"]) == ("lost", "refused")
    assert it.ask("GET", polled).json()["lost"][0]["cause"] == "refused"
    stream.close()


def test_what_does_not_fit_is_told_429_and_when_to_come_again(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given room for twenty objects at the publisher, and a delegate that has gone
    monkeypatch.setattr(lanes, "QUEUE_ITEMS", 20)
    it = reached(archive=False)
    assert it.publish((report(0), b""), at=ANY).status == 201
    it.delegate.stop(0.0)
    # When more come
    path = f"{TYPE}/objects?validate=false"
    said = it.publish(*((report(n), b"") for n in range(50)), at=path)
    # Expect
    assert (said.status, said.json()["code"], said.headers["Retry-After"]) == (429, "back_pressure", "1")
    assert 0 <= said.json()["facts"]["published"] < 50
    # Expect the same of subscriptions and bodies
    it.gateway.guests.own.feeds._shares = PeerShares(0, "too many subscriptions are open")
    assert it.ask("POST", f"{TYPE}/subscriptions").status == 429
    it.gateway._bodies = PeerShares(100, "too many bytes are under way here")
    assert it.publish((report(1), b"x" * 100), at=path).status == 429
    monkeypatch.setattr(gateway, "BODY_MOST", 200)
    assert it.publish((report(1), b"x" * 200), at=path).status == 413
    it.give_up()


def test_a_client_that_never_reads_delays_nobody_and_is_cut_off(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given one that subscribes and does not read, one that stops in the middle of a request, one that sends rubbish
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.5)
    it = reached(archive=False)
    address = ("127.0.0.1", it.gateway.port)
    with closing(socket.socket()) as silent, closing(socket.socket()) as halfway, closing(socket.socket()) as rubbish:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for each in (silent, halfway, rubbish):
            each.connect(address)
        silent.sendall(f"GET {TYPE}/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        halfway.sendall(f"POST {ANY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n--b".encode())
        rubbish.sendall(b"\x00\xff" * 5000)
        reader = it.stream(f"{TYPE}/subscribe")
        # When more comes than sockets hold
        taken: list[str] = []
        reading = threading.Thread(target=lambda: taken.extend(reader.objects(80)), name="test-reader")
        reading.start()
        begun = time.monotonic()
        for _ in range(80):
            assert it.publish((report(1), b"x" * 200_000), at=ANY).status == 201
        reading.join(60.0)
        # Expect the others to have had all, and the silent one to be cut off
        assert len(taken) == 80
        assert time.monotonic() - begun < 60
        reader.close()
        silent.settimeout(20)

        def is_cut() -> bool:
            try:
                return not silent.recv(1 << 20)
            except ConnectionError:
                return True

        eventually(is_cut)
        # Expect a client that has gone in the middle to have left nothing
        halfway.close()
        eventually(lambda: it.gateway._bodies.taken == 0)


def test_a_feed_that_is_full_holds_up_its_own_listener_alone(reached: Callable[..., Any]) -> None:
    # Given a subscription that nobody reads
    it = reached(archive=False)
    quiet = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    read = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    # When more comes than it holds
    for _ in range(20):
        it.publish(*((report(n), b"x" * 20_000) for n in range(10)), at=ANY)
    # Expect the other one to have all
    last = count = 0
    while count < 200:
        answer = it.ask("GET", f"{read}?after={last}&count=256&timeout=20").json()
        assert answer["objects"]
        count, last = count + len(answer["objects"]), answer["last"]
    feed = it.gateway.guests.own.feeds.find(quiet.split("/")[3])
    assert feed._waiting.size <= feeds.WAITING_BYTES + 21_000
    # Expect the first to get all of it when it comes
    last = count = 0
    while count < 200:
        answer = it.ask("GET", f"{quiet}?after={last}&count=256&timeout=20").json()
        assert answer["objects"]
        count, last = count + len(answer["objects"]), answer["last"]


def test_what_nobody_reads_or_uses_ends(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    from jbi_pubsub.web import common

    monkeypatch.setattr(gateway, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(common, "IDLE_SECONDS", 0.2)
    it = reached(archive=False)
    at = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]
    made = it.ask("POST", "/v1/capi/connections", b'{"name": "c"}', Content_Type="application/json").json()
    eventually(lambda: not it.gateway.guests.own.feeds._feeds and not it.gateway.guests.own.common._held)
    assert it.ask("GET", at).status == 404
    assert it.ask("POST", f"/v1/capi/connections/{made['connection']}/connect").json()["code"] == "capi_connection"


def test_a_gateway_that_was_kept_from_listening_ends_nothing_for_that(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    from jbi_pubsub.web import common

    # Given a subscription and a connection of the Common API that end when nobody uses them for a while
    monkeypatch.setattr(gateway, "TIDY_SECONDS", 0.05)
    for module in (feeds, common, gateway):
        monkeypatch.setattr(module, "IDLE_SECONDS", 1.2)
    it = reached(archive=False)
    made = it.ask("POST", "/v1/capi/connections", b'{"name": "c"}', Content_Type="application/json").json()
    at = it.ask("POST", f"{TYPE}/subscriptions").json()["next"]

    # When the gateway is kept from its work for longer
    feed = it.gateway.guests.own.feeds.find(at.split("/")[3])
    feed._come.loop.call_soon_threadsafe(time.sleep, 1.6)

    # Expect both to be there when they are used next, and to end when nobody uses them then
    assert it.ask("GET", f"{at}?timeout=0").status == 200
    assert made["connection"] in it.gateway.guests.own.common._held
    eventually(lambda: not it.gateway.guests.own.feeds._feeds and not it.gateway.guests.own.common._held)


def test_a_client_of_the_common_api_does_not_choose_what_the_gateway_reaches_or_who_it_is(
    reached: Callable[..., Any],
) -> None:
    it = reached(archive=False)
    space = 'xmlns="http://gdc4s.com/oim/gemini"'

    def post(path: str, **body: str) -> Any:
        return it.ask("POST", f"/v1/capi/connections{path}", msgspec.json.encode(body), Content_Type="application/json")

    elsewhere = f"<connectionDescriptor {space}><locator>10.0.0.1:4160</locator></connectionDescriptor>"
    assert post("", name="c", descriptor=elsewhere).json()["code"] == "capi_connection"
    made = post("", name="c").json()["connection"]
    folder = f"<credentials {space}><certificate>/etc/jbi</certificate></credentials>"
    assert post(f"/{made}/authenticate", document=folder).json()["code"] == "capi_connection"


def test_multipart_bodies_are_read_as_the_rfc_has_them() -> None:
    kind = 'multipart/form-data; charset=utf-8; boundary="a b"'
    part = b'--a b\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; filename="x"; name="%s"\r\n\r\n%s\r\n'
    end = b"--a b--\r\n"
    assert objects_in(part % (b"metadata", b"<a/>\r\n--a") + end, kind) == [(b"<a/>\r\n--a", b"")]
    assert objects_in(b"preamble\r\n" + part % (b"payload", b"\r\n\r\n") + end + b"epilogue", kind) == [
        (b"", b"\r\n\r\n")
    ]
    several = part % (b"metadata", b"1") + part % (b"metadata", b"2") + part % (b"payload", b"3")
    assert objects_in(several + end, kind) == [(b"1", b""), (b"2", b"3")]
    pair = part % (b"payload", b"4") + part % (b"metadata", b"5")
    for mixed in (several + part % (b"payload", b"4"), pair + pair, part % (b"payload", b"4") * 2, pair + several):
        with pytest.raises(ArgumentError, match="begins with its payload"):
            objects_in(mixed + end, kind)
    assert objects_in(part % (b"payload", b"2") + part % (b"metadata", b"1") + end, kind) == [(b"1", b"2")]
    for bad in (b"", end, part % (b"metadata", b"1"), b"--a b\r\nno blank line\r\n" + end, several[:-5] + end[:-4]):
        with pytest.raises(ArgumentError):
            objects_in(bad, kind)
    with pytest.raises(ArgumentError, match="no object"):
        objects_in(b"", "application/xml")
    with pytest.raises(ValueError, match="too many"):
        objects_in(part % (b"metadata", b"") * (2 * OBJECTS_MOST + 2) + end, kind)


def test_a_query_for_what_the_archive_has_not_is_told_as_the_table_says(reached: Callable[..., Any]) -> None:
    # Given an archive with a type, and a sequence for another one
    it = reached()
    assert it.publish((report(1), b""), at=f"{ANY}&persist=true").status == 201

    def post(path: str, **body: Any) -> Any:
        return it.ask("POST", f"/v1/capi{path}", msgspec.json.encode(body), Content_Type="application/json")

    made = post("/connections", name="c").json()["connection"]
    assert it.ask("POST", f"/v1/capi/connections/{made}/connect").status == 204
    asked = post(f"/connections/{made}/sequences", kind="query", type="other", version="1.0").json()["sequence"]
    assert it.ask("POST", f"/v1/capi/sequences/{asked}/activate").status == 204
    # When the node's archive is asked, and all archives
    for body in ({}, {"distributed": True, "timeout": 5_000}):
        said = post(f"/sequences/{asked}/execute", **body)
        # Expect that there is no such type
        assert (said.status, said.json()["code"]) == (422, "capi_unrecognized_object_type"), said.body
    # Expect a paused one to say that it is, though nothing was asked
    assert it.ask("POST", f"/v1/capi/sequences/{asked}/pause").status == 204
    for path in ("next?timeout=0", "count"):
        assert it.ask("GET", f"/v1/capi/sequences/{asked}/{path}").json()["code"] == "capi_paused_sequence"
    # and a version without its type to be refused
    assert it.ask("GET", f"/v1/capi/connections/{made}/repository?version=1.0").json()["code"] == "argument"


def test_a_version_has_one_way_to_be_written(reached: Callable[..., Any]) -> None:
    it = reached(archive=False)
    for method, path in (
        ("POST", "/v1/types/report/01.0/objects?validate=false"),
        ("POST", "/v1/types/report/1.00/subscriptions"),
        ("GET", "/v1/types/report/01.0/query"),
    ):
        said = it.ask(method, path, b"<a/>", Content_Type="application/xml")
        assert (said.status, said.json()["code"]) == (400, "argument"), said.body


@pytest.mark.parametrize("fault", [asyncio.CancelledError(), WireError("away"), KeyError("mistake")])
def test_an_answer_that_has_begun_is_not_begun_again(
    fault: BaseException, reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an answer that is under way when the gateway ends, or something fails
    at, sent = reached(archive=False).gateway, list[dict[str, Any]]()

    async def streams(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise fault

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setattr(at, "_answered", streams)
    # Expect no second beginning, for which the server would log a traceback, and no end that is none
    scope = {"type": "http", "path": "/", "method": "GET", "headers": [], "client": ("127.0.0.1", 1)}
    asyncio.run(at._serve(scope, None, send))
    assert [message["type"] for message in sent] == ["http.response.start"]
