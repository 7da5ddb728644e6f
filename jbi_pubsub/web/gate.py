"""Entry to the pages: a session for each browser that has shown the token; pages that run no script but ours.

Rules:
- A page of another origin gets nothing from us: `Host` is an address of ours or a name that we were given (a name that
  is made to resolve to us, DNS rebinding, is neither), `Origin` is ours where there is one, also for websockets.
- The token in the URL that `jbi web` prints is good for one browser; it becomes a cookie that scripts can't read and
  other sites can't have sent (HttpOnly, SameSite=Strict). The next browser needs the next token.
- Each page has a nonce: scripts that our own template has brought run, what data would bring does not, event handlers
  in attributes never (Content Security Policy 3). `unsafe-eval` stays: Vue compiles its templates in the browser.
- Paths that are open (see WebServer.add) need no session, and must have a right of their own.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

from jbi_pubsub.core.hosts import is_ours, names_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ENTER: Final = "/enter"
"""Where a token becomes a session: /enter?token=..."""
SESSIONS_MOST: Final = 16
"""Browsers at once; of more the one that was silent longest has to enter anew."""
IDLE_SECONDS: Final = 12 * 3600.0
"""After which a silent browser has to enter anew."""
BODY_MOST: Final = 2 << 20
"""Bytes of a request: what is pasted into the explain form."""

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_FOREIGN: Final = ("x-forwarded-", "forwarded", "x-nicegui-")
"""Headers of proxies and of other ways to be mounted: we have none, and a page's links are made of them."""


@dataclass(eq=False, slots=True)
class Session:
    """A browser that has entered. `dark`: what its user has chosen, None for what the system says."""

    used: float
    dark: bool | None = None


class Gate:
    """The outermost of the application but for compression. Runs on the server's event loop alone."""

    def __init__(
        self,
        *,
        port: int,
        secure: bool,
        names: Iterable[str] = (),
        entered: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` that we are reached by, beside localhost and addresses; `entered` is called when a token has been
        used, and there is a new one."""
        self.token = secrets.token_urlsafe(32)
        self.open: set[str] = set()
        self._cookie = f"jbi-{port}"  # cookies don't know ports
        self._scheme = "https" if secure else "http"
        self._names = names_of(names)
        self._entered = entered
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def around(self, app: App) -> App:
        """The application behind this gate."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
            else:
                await self._serve(app, scope, receive, send)

        return guarded

    def session(self, cookies: str) -> Session | None:
        """That of a `Cookie` header, if it stands."""
        now = self._clock()
        for key in [key for key, s in self._sessions.items() if s.used < now - IDLE_SECONDS]:
            del self._sessions[key]
        try:
            morsel = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return None
        found = self._sessions.get(morsel.value) if morsel is not None else None
        if found is not None:
            found.used = now
        return found

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and text for a request that is not let in; None for one that is."""
        headers = headers_of(scope)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > BODY_MOST:
            return 413, f"A request has at most {BODY_MOST} bytes."
        if scope["path"] in self.open:
            return None
        if not is_ours(headers.get("host", ""), self._names):
            return 403, "This console is not reached by that name. Use localhost, an address, or set [web] names."
        origin = headers.get("origin")
        if origin is not None and origin != f"{self._scheme}://{headers['host']}":
            return 403, "Requests from pages of another origin are refused."
        if headers.get("sec-fetch-site", "none") == "cross-site" and scope["type"] == "websocket":
            return 403, "Requests from pages of another origin are refused."
        if scope["path"] != ENTER and self.session(headers.get("cookie", "")) is None:
            return 401, "No session. Open the address that `jbi web` has printed last: it is good for one browser."
        return None

    async def _serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal(scope)
        if scope["type"] == "websocket":
            if refused is not None:
                await send({"type": "websocket.close", "code": 1008})
            else:
                await app(_without_foreign(scope), receive, send)
            return
        if refused is not None:
            await _say(send, *refused)
        elif scope["path"] == ENTER:
            await self._enter(scope, send)
        else:
            answer = _PageResponse(send, secrets.token_urlsafe(16))
            await app(_without_foreign(scope), _RequestBody(receive).receive, answer.send)

    async def _enter(self, scope: Scope, send: Send) -> None:
        """A page that leads on, not a redirect: a strict cookie is not sent with one that another site has begun."""
        given = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            await _say(send, 403, "That token has been used, or never was one. `jbi web` has printed the next address.")
            return
        self.token = secrets.token_urlsafe(32)
        key = secrets.token_urlsafe(32)
        while len(self._sessions) >= SESSIONS_MOST:
            del self._sessions[min(self._sessions, key=lambda k: self._sessions[k].used)]
        self._sessions[key] = Session(self._clock())
        self._entered()
        secure = "; Secure" if self._scheme == "https" else ""
        cookie = f"{self._cookie}={key}; Path=/; HttpOnly; SameSite=Strict{secure}"
        page = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">jbi-pubsub console</a>'
        await _say(send, 200, page, kind=b"text/html; charset=utf-8", headers=((b"set-cookie", cookie.encode()),))


class _RequestBody:
    """The body of a request, up to BODY_MOST."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._taken = 0

    async def receive(self) -> Message:
        """The next part. Raises HTTPException, which the application answers with."""
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > BODY_MOST:
            raise HTTPException(413, f"A request has at most {BODY_MOST} bytes.")
        return message


class _PageResponse:
    """A response with our headers; in a page the scripts of its template get the nonce."""

    def __init__(self, send: Send, nonce: str) -> None:
        self._send = send
        self._nonce = nonce
        self._start: Message | None = None
        self._page = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", [])]
            given = dict(headers)
            own = [*_HEADERS, (b"content-security-policy", _POLICY.format(nonce=self._nonce).encode())]
            if b"cache-control" not in given:
                own.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*headers, *own]}
            if given.get(b"content-type", b"").startswith(b"text/html"):
                self._start = message
                return
        elif self._start is not None:
            self._page += message.get("body", b"")
            if message.get("more_body"):
                return
            body = self._page.replace(b"<script", f'<script nonce="{self._nonce}"'.encode())
            headers = [(n, v) for n, v in self._start["headers"] if n != b"content-length"]
            start = {**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
            self._start = None
            await self._send(start)
            message = {**message, "body": body}
        await self._send(message)


def headers_of(scope: Scope) -> Mapping[str, str]:
    """By name; of those that come twice the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


def _without_foreign(scope: Scope) -> Scope:
    kept = [(n, v) for n, v in scope["headers"] if not n.decode("latin-1").lower().startswith(_FOREIGN)]
    return {**scope, "headers": kept}


async def _say(
    send: Send,
    status: int,
    text: str,
    *,
    kind: bytes = b"text/plain; charset=utf-8",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    body = text.encode() + b"\n"
    policy = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
    own = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *_HEADERS, policy, *headers]})
    await send({"type": "http.response.body", "body": body})
