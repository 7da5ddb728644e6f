"""Entry to the pages: a session for each browser that has shown the token, or a user's name and password; pages that
run no script but ours.

Rules:
- A page of another origin gets nothing from us: `Host` is an address of ours or a name that we were given (a name that
  is made to resolve to us, DNS rebinding, is neither), `Origin` is ours where there is one, also for websockets.
- The token in the URL that `jbi web` prints is good for one browser; it becomes a cookie that scripts can't read and
  other sites can't have sent (HttpOnly, SameSite=Strict). The next browser needs the next token.
- So does a name with a password (logins.py), by a form; such a session is of its user, and ends some hours after it.
- A session that has ended closes the websockets of its pages.
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

from jbi_pubsub.core.errors import AccessDeniedError, JbiError
from jbi_pubsub.core.hosts import is_ours, names_of

from .logins import FORM_MOST, LOGIN, LOGOUT, Logins, WebUser, login_page

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
"""After which a silent browser has to enter anew, and a user to log in anew, silent or not."""
USER_SESSIONS_MOST: Final = 4
"""Browsers of a user at once: his next login ends the oldest, and nobody else's."""
BODY_MOST: Final = 2 << 20
"""Bytes of a request: what is pasted into the explain form."""

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # without one a form of ours would come from the origin "null"
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
    """A browser that has entered, of a `visitor` if somebody has logged in. `dark`: what its user has chosen, None for
    what the system says. `used`: when it was heard of last; of a visitor, when he logged in."""

    used: float
    dark: bool | None = None
    visitor: WebUser | None = None

    @property
    def user(self) -> str:
        """Name of the visitor; "" for whoever has had the token."""
        return self.visitor.user if self.visitor is not None else ""

    @property
    def is_admin(self) -> bool:
        """Whether it may change something, where the console may."""
        return self.visitor is None or self.visitor.is_admin


class Gate:
    """The outermost of the application but for compression. Runs on the server's event loop alone."""

    def __init__(
        self,
        *,
        port: int,
        secure: bool,
        names: Iterable[str] = (),
        logins: Logins | None = None,
        entered: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` that we are reached by, beside localhost and addresses; `logins`: None where nobody has a password;
        `entered` is called when a token has been used, and there is a new one."""
        self.token = secrets.token_urlsafe(32)
        self.open: set[str] = set()
        self._cookie = f"jbi-{port}"  # cookies don't know ports
        self._scheme = "https" if secure else "http"
        self._names = names_of(names)
        self.logins = logins
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
        now, given = self._clock(), self._key(cookies)
        for key in [key for key, s in self._sessions.items() if s.used < now - IDLE_SECONDS]:
            del self._sessions[key]
        found = self._sessions.get(given)
        if found is None:
            return None
        if found.visitor is None:
            found.used = now
        elif self.logins is None or not self.logins.stands(found.visitor):
            del self._sessions[given]
            return None
        return found

    def _key(self, cookies: str) -> str:
        try:
            morsel = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return ""
        return morsel.value if morsel is not None else ""

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
        is_entry = scope["path"] == ENTER or (scope["path"] == LOGIN and self.logins is not None)
        if not is_entry and self.session(headers.get("cookie", "")) is None:
            return 401, "No session. Open the address that `jbi web` has printed last: it is good for one browser."
        return None

    async def _serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal(scope)
        if scope["type"] == "websocket":
            if refused is not None:
                await send({"type": "websocket.close", "code": 1008})
            else:
                await app(_without_foreign(scope), self._while_it_stands(scope, receive), send)
            return
        path, is_post = scope["path"], scope.get("method") == "POST"
        if refused is not None:
            wants_page = not is_post and "text/html" in headers_of(scope).get("accept", "")
            if refused[0] == 401 and self.logins is not None and wants_page:
                await _lead(send, LOGIN)
            else:
                await _say(send, *refused)
        elif path == ENTER:
            await self._enter(scope, send)
        elif path == LOGIN:
            await (self._log_in(scope, receive, send) if is_post else _say_page(send, 200, login_page()))
        elif path == LOGOUT and is_post:
            self._sessions.pop(self._key(headers_of(scope).get("cookie", "")), None)
            await (_lead(send, LOGIN) if self.logins is not None else _say(send, 200, "Logged out."))
        else:
            answer = _PageResponse(send, secrets.token_urlsafe(16))
            await app(_without_foreign(scope), _RequestBody(receive).receive, answer.send)

    def _while_it_stands(self, scope: Scope, receive: Receive) -> Receive:
        """Messages of a websocket until its session has ended; its client says something every few seconds."""
        cookies = headers_of(scope).get("cookie", "")

        async def received() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and self.session(cookies) is None:
                return {"type": "websocket.disconnect", "code": 1008}
            return message

        return received

    async def _enter(self, scope: Scope, send: Send) -> None:
        """A page that leads on, not a redirect: a strict cookie is not sent with one that another site has begun."""
        given = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            await _say(send, 403, "This token has been used, or is not valid. `jbi web` has printed the next address.")
            return
        self.token = secrets.token_urlsafe(32)
        cookie = self._begin(Session(self._clock()))
        self._entered()
        page = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">jbi-pubsub console</a>'
        await _say_page(send, 200, page, (cookie,))

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.logins is not None
        try:
            form = await _RequestBody(receive, FORM_MOST).whole()
            visitor = await self.logins.check(form, tuple(scope.get("client") or ("", 0)))
        except HTTPException as exc:
            await _say(send, exc.status_code, exc.detail)
        except JbiError as exc:
            status = 403 if isinstance(exc, AccessDeniedError) else 503
            await _say_page(send, status, login_page(f"Not logged in. {exc.message}."))
        else:
            own = [key for key, s in self._sessions.items() if s.user == visitor.user]
            for key in own[: max(0, len(own) - USER_SESSIONS_MOST + 1)]:  # the oldest are first
                del self._sessions[key]
            await _lead(send, "/", (self._begin(Session(self._clock(), visitor=visitor)),))

    def _begin(self, session: Session) -> tuple[bytes, bytes]:
        """The header with the cookie of a new session."""
        while len(self._sessions) >= SESSIONS_MOST:
            del self._sessions[min(self._sessions, key=lambda k: self._sessions[k].used)]
        key = secrets.token_urlsafe(32)
        self._sessions[key] = session
        secure = "; Secure" if self._scheme == "https" else ""
        return b"set-cookie", f"{self._cookie}={key}; Path=/; HttpOnly; SameSite=Strict{secure}".encode()


class _RequestBody:
    """The body of a request, up to `most` bytes."""

    def __init__(self, receive: Receive, most: int = BODY_MOST) -> None:
        self._receive, self._most = receive, most
        self._taken = 0

    async def receive(self) -> Message:
        """The next part. Raises HTTPException, which the application answers with."""
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        if self._taken > self._most:
            raise HTTPException(413, f"This request has at most {self._most} bytes.")
        return message

    async def whole(self) -> bytes:
        """All of it. Raises as `receive`; 400 when its client has gone."""
        body = b""
        while (message := await self.receive())["type"] == "http.request":
            body += bytes(message.get("body", b""))
            if not message.get("more_body"):
                return body
        raise HTTPException(400, "The request is incomplete.")


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


async def _lead(send: Send, to: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    await _say(send, 303, "", headers=((b"location", to.encode()), *headers))


async def _say_page(send: Send, status: int, page: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    await _say(send, status, page, kind=b"text/html; charset=utf-8", headers=headers)


async def _say(
    send: Send,
    status: int,
    text: str,
    *,
    kind: bytes = b"text/plain; charset=utf-8",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    body = text.encode() + b"\n"
    policy = (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    )
    own = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *_HEADERS, policy, *headers]})
    await send({"type": "http.response.body", "body": body})
