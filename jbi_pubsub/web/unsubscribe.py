"""Where the links in mails lead (see protocol/mail_links.py): a page with one button for people, one click for mail
programs (RFC 8058). No session, no cookie, no script: the link itself is the right.

Rules:
- Looking changes nothing: scanners of mail open every link. Only POST acts, with the body that RFC 8058 prescribes.
- All delegates and peer publishers are asked, at the same time: each that has the subscription does what the link says.
- Whether a subscription is there is not told to who has no link to it: a link that proves nothing reads like one whose
  subscription has ended.
- What strangers can cause is bounded: requests by address and altogether, bytes, requests under way, seconds.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError, UnknownUidError
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.protocol.mail_links import LINK_ACTIONS, LinkAction, uid_of
from jbi_pubsub.protocol.services import follow_link

from .federation import Observer

log = logging.getLogger("jbi_pubsub.web")

ANSWER_SECONDS: Final = 3.0
"""For one server to answer."""
ASKING: Final = 8
"""Servers asked at once for one request."""
BUSY_MOST: Final = 4
"""Requests under way at once; more are put off."""
BODY_MOST: Final = 4 << 10
"""Bytes of a request's body: RFC 8058 needs 26, as a form with parts some 200."""
FIELDS_MOST: Final = 10

ADDRESS_RATE: Final = 2.0
ADDRESS_BURST: Final = 30
"""Requests a second from one address, an IPv6 network of 64 bits counting as one, and so many at once."""
RATE: Final = 10.0
BURST: Final = 100
"""From all together."""
ADDRESSES_MOST: Final = 1_000
AGAIN_SECONDS: Final = 5
"""After which who is put off is to come again."""

CONFIRMED: Final[dict[LinkAction, tuple[str, str]]] = {
    "unsubscribe": ("List-Unsubscribe", "One-Click"),  # RFC 8058, section 3.2
    "renew": ("Renew", "Yes"),
}
"""Field and value without which nothing is done."""


class LinkOutcome(NamedTuple):
    """At how many servers it was done, and how many did not answer. `known` False: nobody to ask is known."""

    done: int = 0
    silent: int = 0
    known: bool = True


class MailLinks:
    """Asks the servers. Any thread."""

    def __init__(self, servers: Callable[[], Sequence[ServiceRef]], security: Security) -> None:
        """`servers` are the delegates and peer publishers that are known now."""
        self._servers = servers
        self._security = security

    def follow(self, action: LinkAction, token: str) -> LinkOutcome:
        """Do what the link says, wherever its subscription is. Blocks for as long as the servers take."""
        servers = self._servers()
        if not servers:
            return LinkOutcome(known=False)
        with ThreadPoolExecutor(min(ASKING, len(servers)), thread_name_prefix="jbi-mail-link") as pool:
            answers = list(pool.map(lambda ref: self._ask(ref, action, token), servers))
        return LinkOutcome(answers.count(True), answers.count(None))

    def _ask(self, ref: ServiceRef, action: LinkAction, token: str) -> bool | None:
        """Whether it was done there; None: no answer."""
        try:
            follow_link(ref, self._security, action, token, timeout=ANSWER_SECONDS)
        except UnknownUidError:
            return False
        except JbiError as exc:
            log.warning("a link of a mail was not followed at %s: %s", ", ".join(ref.endpoints), exc)
            return None
        return True


def observed(observer: Observer) -> Callable[[], Sequence[ServiceRef]]:
    """The delegates and peer publishers that an observer knows."""
    return lambda: [s.ref for s in observer.snapshot().servers if s.kind in ("delegate", "peer")]


class RequestLimits:
    """Limits of requests let through, by address and altogether; of addresses the last ADDRESSES_MOST are known.
    Not thread-safe: of the server's event loop."""

    def __init__(self, now: float) -> None:
        self._all = TokenBucket(RATE, BURST, now)
        self._each: Cache[str, TokenBucket] = Cache(ADDRESSES_MOST)

    def take(self, address: str, now: float) -> bool:
        """Whether a request of that address is let through."""
        key = _network(address)
        bucket = self._each[key] = self._each.get(key) or TokenBucket(ADDRESS_RATE, ADDRESS_BURST, now)
        return all(_spend(each, now) for each in (bucket, self._all))


def _spend(bucket: TokenBucket, now: float) -> bool:
    """Whether it had a token, which is taken."""
    if bucket.fill(now) < 1:
        return False
    bucket.take(1, now)
    return True


def router(links: MailLinks) -> APIRouter:
    """GET and POST /unsubscribe and /renew, with ?token=; for WebServer.add(..., session=False)."""
    made = APIRouter()
    limits = RequestLimits(time.monotonic())
    busy = threading.BoundedSemaphore(BUSY_MOST)

    def add(action: LinkAction) -> None:
        @made.api_route(f"/{action}", methods=["GET", "HEAD"])
        async def show(token: str = "") -> HTMLResponse:
            uid = _named(token)
            return _page(200, *_ASKED[action], uid=uid, button=action) if uid else _page(404, *_NO_LINK)

        @made.post(f"/{action}")
        async def act(request: Request, token: str = "") -> HTMLResponse:
            if not limits.take(request.client.host if request.client else "", time.monotonic()):
                return _page(429, *_TOO_MANY, again=True)
            uid = _named(token)
            if not uid:
                return _page(404, *_NO_LINK)
            body = await _body(request)
            if body is None:
                return _page(413, *_TOO_LARGE)
            if not _confirms(action, body, request.headers.get("content-type", "")):
                return _page(400, *_NOT_ASKED, uid=uid)
            if not busy.acquire(blocking=False):
                return _page(503, *_BUSY, uid=uid, again=True)
            try:
                outcome = await run_in_threadpool(links.follow, action, token)
            finally:
                busy.release()
            log.info("%s of %s by a link: %s", action, uid, outcome)
            return _told(action, uid, outcome)

    for action in LINK_ACTIONS:
        add(action)
    return made


def _told(action: LinkAction, uid: str, outcome: LinkOutcome) -> HTMLResponse:
    if outcome.done and outcome.silent and action == "unsubscribe":
        return _page(200, *_PARTLY, uid=uid)
    if outcome.done:
        return _page(200, *_DONE[action], uid=uid)
    if outcome.silent or not outcome.known:
        return _page(503, *_AWAY, uid=uid, again=True)
    return _page(410, *_ENDED, uid=uid)


def _named(token: str) -> str:
    """The subscription that a link names; "" for what is no link."""
    try:
        return uid_of(token)
    except UnknownUidError:
        return ""


async def _body(request: Request) -> bytes | None:
    """None: it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_MOST:
            return None
    return body


def _confirms(action: LinkAction, body: bytes, kind: str) -> bool:
    """Whether the field is there, in one of the two forms of RFC 8058, section 3.2."""
    name, value = CONFIRMED[action]
    if kind.lower().startswith("multipart/form-data"):
        part = rb'name="?%s"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n%s\r\n' % (name.encode(), value.encode())
        return re.search(part, body) is not None
    try:
        fields = parse_qs(body.decode("ascii", "replace"), max_num_fields=FIELDS_MOST)
    except ValueError:
        return False
    return fields.get(name) == [value]


def _network(address: str) -> str:
    """Network that counts as one address."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is None:
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)


# -- what people read: fixed text, and a subscription's id, which is hexadecimal ----------------------------------

_ASKED: Final[dict[LinkAction, tuple[str, str]]] = {
    "unsubscribe": ("Unsubscribe", "Nothing has changed yet. Press the button to stop this mail."),
    "renew": ("Renew", "Nothing has changed yet. Press the button to have this subscription go on."),
}
_DONE: Final[dict[LinkAction, tuple[str, str]]] = {
    "unsubscribe": (
        "Unsubscribed",
        "You get no more mail of this subscription. Mail that is already on its way may still arrive.",
    ),
    "renew": ("Renewed", "This subscription goes on. You are reminded again before it ends."),
}
_PARTLY: Final = (
    "Unsubscribed",
    "The delegates that have answered send you no more of this mail. If mail still arrives, open the link again.",
)
_ENDED: Final = ("Ended", "No mail is sent by this link any more: its subscription has ended, or you have left it.")
_AWAY: Final = ("Not now", "No server that could do it has answered. Please open the link again in some minutes.")
_BUSY: Final = ("Not now", "The server is busy. Please press the button again in some seconds.")
_TOO_MANY: Final = ("Too many requests", "Please try again in some seconds.")
_TOO_LARGE: Final = ("Too large", f"A request has at most {BODY_MOST} bytes.")
_NOT_ASKED: Final = ("Nothing has changed", "The request does not say List-Unsubscribe=One-Click. Use the button.")
_NO_LINK: Final = ("No such link", "This is not a link of a mail, or not the whole of one.")

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}
_STYLE: Final = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:3rem auto;padding:0 1rem;color-scheme:light dark}"
    "code{overflow-wrap:anywhere}button{font:inherit;padding:.6rem 1.2rem}"
)


def _page(
    status: int, title: str, text: str, *, uid: str = "", button: LinkAction | None = None, again: bool = False
) -> HTMLResponse:
    form = ""
    if button is not None:
        name, value = CONFIRMED[button]
        form = f'<form method="post"><input type="hidden" name="{name}" value="{value}"><button>{title}</button></form>'
    named = f"<p>E-mail subscription <code>{uid}</code></p>" if uid else ""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{title}</h1><p>{text}</p>{named}{form}</body></html>"
    )
    headers = {**_HEADERS, **({"Retry-After": str(AGAIN_SECONDS)} if again else {})}
    return HTMLResponse(page, status, headers)
