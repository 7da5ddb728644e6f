"""Who gets anything from the console's server, and who does not."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
import pytest
from fastapi import APIRouter, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse

from jbi_pubsub.core.config import WebSection
from jbi_pubsub.core.errors import ConfigurationError, PortInUseError
from jbi_pubsub.web.gate import BODY_MOST, ENTER, IDLE_SECONDS, SESSIONS_MOST, Gate
from jbi_pubsub.web.server import CONNECTIONS_MOST, WebServer

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def router() -> APIRouter:
    router = APIRouter()

    @router.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse("<html><script>let own = 1</script></html>")

    @router.post("/size")
    async def size(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @router.get("/prefix")
    def prefix(request: Request) -> Response:
        return Response(request.headers.get("x-forwarded-prefix", "none"))

    return router


def _unsubscribe() -> APIRouter:
    router = APIRouter()

    @router.post("/unsubscribe")
    def unsubscribe(token: str) -> dict[str, str]:
        return {"token": token}

    return router


@pytest.fixture
def serving(fixtures: Any) -> Iterator[Callable[..., WebServer]]:
    with ExitStack() as stack:

        def start(**web: Any) -> WebServer:
            config = msgspec.structs.replace(fixtures.test_config(), web=WebSection(port=0, **web))
            server = WebServer(config)
            stack.callback(server.stop)
            server.add(router())
            server.add(_unsubscribe(), session=False)
            server.start()
            return server

        yield start


@pytest.fixture
def server(serving: Callable[..., WebServer]) -> WebServer:
    return serving()


def ask(server: WebServer, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, str, Any]:
    """Status, text and headers; a header's name with _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def enter(server: WebServer) -> str:
    """The cookie of a browser that has opened the printed address."""
    status, _, headers = ask(server, server.url.removeprefix(server.address))
    assert status == 200
    return headers["Set-Cookie"].partition(";")[0]


def test_the_printed_address_lets_one_browser_in(server: WebServer) -> None:
    # Expect nothing without a session
    assert ask(server, "/")[0] == 401
    # When a browser opens the printed address; Expect a cookie that no script and no other site has
    printed = server.url.removeprefix(server.address)
    status, page, headers = ask(server, printed)
    assert status == 200
    assert 'http-equiv="refresh"' in page
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(headers["Set-Cookie"].split("; "))
    assert ask(server, "/", Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200
    # Expect the token to be good once, and the next one to be another
    assert ask(server, printed)[0] == 403
    assert server.url.removeprefix(server.address) != printed
    assert ask(server, f"{ENTER}?token=")[0] == 403
    assert ask(server, ENTER)[0] == 403
    # Expect a made-up cookie to be none
    assert ask(server, "/", Cookie=f"jbi-{server.port}=made-up")[0] == 401
    assert ask(server, "/", Cookie="a=b; ;;; =")[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8160"},  # DNS rebinding
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Host": "evil@localhost"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another port of this host is another origin
        {"Origin": "https://127.0.0.1"},
    ],
)
def test_a_foreign_host_or_origin_is_refused_with_a_session_too(server: WebServer, headers: dict[str, str]) -> None:
    assert ask(server, "/", Cookie=enter(server), **headers)[0] == 403


def test_names_that_are_ours_are_let_in(serving: Callable[..., WebServer]) -> None:
    server = serving(names=("console.example.org",))
    for host in ("localhost", "LOCALHOST:8160", "127.0.0.1:99", "[::1]:8160", "10.0.0.7", "console.example.org:443"):
        assert ask(server, "/", Cookie=enter(server), Host=host)[0] == 200
    own = f"127.0.0.1:{server.port}"
    assert ask(server, "/", Cookie=enter(server), Host=own, Origin=f"http://{own}")[0] == 200


def test_a_websocket_of_another_origin_or_without_session_is_refused(server: WebServer) -> None:
    def shake(**headers: str) -> int:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        return ask(server, "/socket", **upgrade, Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==", **headers)[0]

    assert shake() == 403
    assert shake(Cookie=enter(server), Origin="http://evil.example") == 403


def test_requests_are_bounded(server: WebServer) -> None:
    cookie = enter(server)
    assert ask(server, "/size", "POST", b"x" * 1000, Cookie=cookie)[:2] == (200, '{"bytes":1000}')
    assert ask(server, "/size", "POST", b"x" * (BODY_MOST + 1), Cookie=cookie)[0] == 413
    assert ask(server, "/size", "POST", b"", Cookie=cookie, Content_Length="many")[0] in (400, 413)
    # Expect one without a length, in chunks, to be cut off too
    chunks = (b"x" * 65536 for _ in range(BODY_MOST // 65536 + 2))
    assert ask(server, "/size", "POST", chunks, Cookie=cookie)[0] == 413


def test_a_peer_has_its_share_of_websockets(
    serving: Callable[..., WebServer], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a browser that opens more websockets than there are connections
    monkeypatch.setattr("jbi_pubsub.web.server.CONNECTIONS_MOST", 8)
    server = serving()

    @server.app.websocket("/echo")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        with suppress(WebSocketDisconnect):
            await socket.receive_text()

    shake = (
        f"GET /echo HTTP/1.1\r\nHost: localhost\r\nCookie: {enter(server)}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with ExitStack() as stack:
        said = []
        for _ in range(12):
            made = socket.create_connection(("127.0.0.1", server.port), 10.0, source_address=("127.0.0.2", 0))
            stack.enter_context(made).sendall(shake.encode())
            with suppress(ConnectionError):
                said.append(made.recv(12))
        # Expect it to have its share, and others to be let in
        assert said.count(b"HTTP/1.1 101") == 6
        assert ask(server, "/", Cookie=enter(server))[0] == 200
    # Expect the places to be free when it has gone
    eventually(lambda: len(server.connections) == 0)


def _half(server: WebServer, text: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), 10.0)
    made.sendall(text.encode())
    return made


def test_half_requests_end_and_keep_nobody_out(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given as many connections as there may be, which never come to a request; Expect them to give way
    cookie = enter(server)
    with ExitStack() as stack:
        for number in range(CONNECTIONS_MOST + 20):
            stack.enter_context(_half(server, "GET / HTTP/1.1\r\n" if number % 2 else ""))
        assert ask(server, "/", Cookie=cookie)[0] == 200
    # Expect one that comes too slowly to be cut off: before its head, in its body, in the second request
    monkeypatch.setattr("jbi_pubsub.web.server.REQUEST_SECONDS", 0.2)
    head = f"Host: localhost\r\nCookie: {cookie}\r\n"
    whole = f"GET / HTTP/1.1\r\n{head}\r\n"
    body = f"POST /size HTTP/1.1\r\n{head}Content-Length: 9\r\n\r\nx"
    for text in ("", "GET / HTTP/1.1\r\nHost: lo", body, f"{whole}GET / HT"):
        with _half(server, text) as made, suppress(ConnectionResetError):
            made.settimeout(60.0)
            while made.recv(65536):
                pass  # the answer to what was whole
    assert ask(server, "/", Cookie=cookie)[0] == 200


def test_the_head_of_a_request_is_bounded(server: WebServer) -> None:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 60_000) for number in range(1_000))
    with _half(server, "GET / HTTP/1.1\r\nHost: localhost\r\n") as made, pytest.raises(ConnectionError):
        made.sendall(fields)


def test_a_page_runs_the_scripts_of_its_template_alone(server: WebServer) -> None:
    _, page, headers = ask(server, "/", Cookie=enter(server))
    policy = headers["Content-Security-Policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">let own = 1</script>' in page
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert nonce not in ask(server, "/", Cookie=enter(server))[1]
    # Expect the headers that keep others out, and pages in no cache; on what is refused as well
    for path in ("/", "/nowhere"):
        for cookie in (enter(server), "none"):
            headers = ask(server, path, Cookie=cookie)[2]
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"
            assert headers["Cache-Control"] == "no-store"
            assert "server" not in headers
    # Expect what a proxy would say to be nobody's word
    assert ask(server, "/prefix", Cookie=enter(server), X_Forwarded_Prefix=HOSTILE)[1] == "none"


def test_an_open_path_needs_no_session_but_is_that_path_alone(server: WebServer) -> None:
    assert ask(server, "/unsubscribe?token=t", "POST", Host="mail.example.org")[:2] == (200, '{"token":"t"}')
    assert ask(server, "/unsubscribe/x?token=t", "POST")[0] == 401
    assert ask(server, "/unsubscribe?token=t", "POST", b"x" * (BODY_MOST + 1))[0] == 413
    router = APIRouter()
    router.add_api_route("/open/{path:path}", lambda: None)
    with pytest.raises(ConfigurationError, match="has no parameters"):
        server.add(router, session=False)


def test_sessions_are_bounded_and_end() -> None:
    now = 0.0
    gate = Gate(port=1, secure=True, clock=lambda: now)
    cookies = []
    for number in range(SESSIONS_MOST + 1):
        now = float(number)
        cookies.append(_entered(gate))
    # Expect the one that was silent longest to have given way
    assert gate.session(cookies[0]) is None
    assert all(gate.session(cookie) for cookie in cookies[1:])
    now += IDLE_SECONDS + 1
    assert gate.session(cookies[-1]) is None


def _entered(gate: Gate) -> str:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": ENTER, "headers": [(b"host", b"localhost")]}
    scope["query_string"] = f"token={gate.token}".encode()
    coroutine = gate.around(None)(scope, None, send)  # type: ignore[arg-type]  # neither is reached
    with pytest.raises(StopIteration):
        coroutine.send(None)
    [cookie] = [value for name, value in sent[0]["headers"] if name == b"set-cookie"]
    assert b"; Secure" in cookie
    return cookie.decode().partition(";")[0]


def test_a_server_that_ends_by_itself_is_told(fixtures: Any, eventually: Callable[..., Any]) -> None:
    told: list[str] = []
    config = msgspec.structs.replace(fixtures.test_config(), web=WebSection(port=0))
    server = WebServer(config, ended=lambda: told.append("ended"))
    server.start()
    # When its loop fails; Expect to be told; Expect not to be told of a stop
    server._server.on_tick = None  # type: ignore[assignment, union-attr]  # what its loop calls
    eventually(lambda: told == ["ended"])
    server.stop()
    other = WebServer(config, ended=lambda: told.append("other"))
    other.start()
    other.stop()
    assert told == ["ended"]


def test_it_listens_on_loopback_or_with_tls(fixtures: Any) -> None:
    config = fixtures.test_config()
    for tls in (config.tls, msgspec.structs.replace(config.tls, insecure=True)):
        with pytest.raises(ConfigurationError, match=r"refusing to listen on 0\.0\.0\.0 without TLS"):
            WebServer(msgspec.structs.replace(config, tls=tls, web=WebSection(host="0.0.0.0", port=0)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is taken"):
            WebServer(msgspec.structs.replace(config, web=WebSection(port=port)))
