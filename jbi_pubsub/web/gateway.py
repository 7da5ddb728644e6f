"""HTTP for clients in any language (`jbi gateway`): publish, subscribe, query, and the calls of the Common API.

Rules:
- Made of the client's adapters alone: what a client of the gateway may do is what the gateway's process may do, or,
  with [policy] users, what the user may do whose password he sends (guests.py).
- One loop reads and writes sockets, and publishes what is small; all that may wait or take its time is done by a few
  threads. Requests, bodies, subscriptions and connections are bounded; for what does not fit a client is told 429 or
  413. Who reads slowly is waited for, then cut off (STALL_SECONDS); meanwhile his own subscription alone fills up.
- No page of another origin gets anything: `Host` must be ours, and a request with an `Origin` is refused. Beyond
  loopback TLS and a token, or users, are needed; with them, on loopback, too.
- `docs/openapi.json` is what all of it is read from: see operations.py.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jbi_pubsub import __version__
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    BackPressureError,
    ConfigurationError,
    JbiError,
    OversizeError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.hosts import is_ours, names_of
from jbi_pubsub.core.info_object import InfoObject, LossNotice, TypeName
from jbi_pubsub.core.values import from_json
from jbi_pubsub.core.wire.endpoint import Caller, is_loopback
from jbi_pubsub.core.wire.places import PeerShares, asked_by, peer_of, share_of
from jbi_pubsub.subscriber.moments import is_place
from jbi_pubsub.subscriber.owner import user_secret

from .feeds import IDLE_SECONDS, Event, Feed
from .gate import Receive, Scope, Send, headers_of
from .guests import Guest, Guests, NobodyError
from .listing import OPERATIONS, Counted, Found, LossSaid, Next, ObjectSaid, Published, Subscribed, TypeSaid, TypesSaid
from .operations import JSON, MULTIPART, Operation, Table, objects_in, read
from .problem import PROBLEM, RETRY_SECONDS, problem
from .publishing import Terms
from .server import HEAD_MOST, HttpServer, InTime

log = logging.getLogger("jbi_pubsub.web")

BODY_MOST: Final = 64 << 20
"""Bytes of a request: the largest object."""
JSON_MOST: Final = 4 << 20
"""Bytes of a request that is JSON."""
BODIES_MOST: Final = 256 << 20
"""Bytes of all requests that are being read."""
ANSWERS_MOST: Final = 256 << 20
"""Bytes of all large answers that clients have not taken."""
PART: Final = 256 << 10
"""Bytes of a large answer that are written at a time."""
AT_ONCE: Final = 65_536
"""Bytes of objects that are checked and queued on the loop; more are handed to a thread."""
INLINE_MOST: Final = 4 << 20
"""Bytes of a payload that comes with its object; a larger one is fetched by itself."""
PAGE_BYTES: Final = 16 << 20
"""Bytes of the objects in one answer, about."""
THREADS: Final = 32
"""For what waits, other than long polls of sequences."""
WAITING_MOST: Final = 256
"""Calls that wait for one of them."""
PIPELINED_MOST: Final = 1_000
"""Requests that wait behind one on its connection."""
STALL_SECONDS: Final = 30.0
"""For a client to take what is written to it."""
ALIVE_SECONDS: Final = 15.0
"""A stream that has nothing to say says so."""
TIDY_SECONDS: Final = 1.0
"""Between two looks for what nobody uses any more, and for users who are none any more."""
LATE_SECONDS: Final = 1.0
"""Beyond that: whoever was kept so long from looking for what nobody uses gives everybody IDLE_SECONDS more."""
SUBSCRIBE_SECONDS: Final = 5.0
"""For the lookup services to take a subscription."""

T = TypeVar("T")


class Gateway(HttpServer):
    """Binds when it is made, serves from `start` to `stop`. Raises what HttpServer does, ConfigurationError beyond
    loopback without [gateway] token or [policy] users, and when one of their files is no good."""

    def __init__(self, config: Config, *, ended: Callable[[], None] = lambda: None) -> None:
        section = config.gateway
        if not (section.token or config.policy.users) and not is_loopback(section.host):
            raise ConfigurationError(
                f"refusing to listen on {section.host} without a token",
                hint="Set [gateway] token to a file: it is made with a secret in it, which clients send",
            )
        if len(section.delegate) not in (0, 2):
            raise ConfigurationError("[gateway] delegate is no pair", hint='For example delegate = ["alpha", "rome"]')
        token = user_secret(section.token, "the gateway's token", "[gateway] token") if section.token else ""
        super().__init__(config, section.host, section.port, section="gateway", ended=ended)
        self._names = names_of((section.host, socket.gethostname(), *section.names))
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="jbi-gateway-call")
        self._calls = PeerShares(WAITING_MOST, "too many calls are under way here")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._bodies = PeerShares(BODIES_MOST, "too many bytes are under way here")
        self._answers = PeerShares(ANSWERS_MOST, "too many bytes of answers are on their way here")
        try:
            self.guests = Guests(config, token, self.call)
        except BaseException:
            super().stop()
            raise
        self._table = Table(OPERATIONS)
        self._handlers: dict[str, Callable[[Asked], Awaitable[Reply | None]]] = {
            "publishObjects": self._publish, "subscribe": self._subscribe, "openSubscription": self._open,
            "nextObjects": self._next, "endSubscription": self._end, "queryObjects": self._query,
            "countObjects": self._count, "getObject": self._get, "getPayload": self._payload,
            "listTypes": self._types, "getDocument": self._say_document,
        }  # fmt: skip
        self._document = msgspec.json.encode(self._table.document(__version__))
        self._tidying: list[asyncio.Task[None]] = []

    @property
    def protocol(self) -> type[InTime]:
        """See HttpServer."""
        return _Gathering

    @property
    def settings(self) -> dict[str, Any]:
        """See HttpServer: half of what a request costs is the loop's and the parser's."""
        return {"loop": "auto", "ws": "none"}

    def served(self) -> Any:
        """The ASGI application."""
        return self._serve

    def stop(self) -> None:
        """End: requests under way have a second; then subscriptions and connections end, each waiting for its own
        delegate alone."""
        self.guests.hush()
        super().stop()
        self.guests.close()  # queries that are under way end by it
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def call(self, work: Callable[[], T], peer: str = "") -> T:
        """Do on a thread what may wait, for `peer`, who has its share of them. Raises BackPressureError when too much
        does."""
        with self._calls.held(peer):
            async with self._turns.setdefault(peer, asyncio.Semaphore(share_of(THREADS))):
                run = copy_context().run
                return await asyncio.get_running_loop().run_in_executor(self._threads, run, work)

    # -- one request --------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        reply: Reply | None
        has_begun = False

        async def sending(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            reply = await self._answered(scope, receive, sending)
        except _RefusedError as exc:
            reply = _problem(exc.error, exc.status, exc.headers)
        except JbiError as exc:
            reply = _problem(exc)
        except _GoneError:
            return
        except asyncio.CancelledError:  # the server ends
            reply = _problem(WireError("the gateway ends", hint="Come again"), 503)
        except Exception:
            log.exception("the gateway failed at %s", ascii(scope["path"])[:200])
            reply = _problem(JbiError("the gateway failed", hint="Its log says at what"))
        if reply is not None and not has_begun:  # else the connection is cut: its client sees that this was not the end
            await self._write(send, reply, peer_of((scope["client"] or ("",))[0]))

    async def _write(self, send: Send, reply: Reply, peer: str) -> None:
        """A large answer in parts, as the client takes them: until then it counts."""
        size = min(len(reply.body), share_of(ANSWERS_MOST)) if len(reply.body) > PART else 0  # alone any goes
        try:
            self._answers.take(peer, size)
        except BackPressureError as exc:
            size, reply = 0, _problem(exc)
        try:
            await _write(send, reply)
        finally:
            self._answers.give(peer, size)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        headers = headers_of(scope)
        self._let_in(headers)
        guest, caller = await self._guest(headers, scope)
        self.connections.called(scope["client"], guest.user)
        asked_by.set(caller.place.peer)
        with guest.in_use():
            return await self._done(guest, caller, scope, headers, receive, send)

    async def _done(
        self, guest: Guest, caller: Caller, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> Reply | None:
        path = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1") or scope["path"]
        operation, values, methods = self._table.find(scope["method"], path)
        if operation is None:
            if methods:
                raise _RefusedError(
                    405,
                    ArgumentError(
                        f"{scope['method'][:20]} is not for this path", hint=f"It takes {', '.join(methods)}"
                    ),
                    (("allow", ", ".join(methods)),),
                )
            raise UnknownUidError("no such path", hint="GET /v1/openapi.json lists them")
        given = read(operation, values, scope["query_string"].decode("latin-1"), headers)
        taken, peer = [0], caller.place.peer
        try:
            body = await self._body(operation, headers, receive, taken, peer)
            asked = Asked(operation, given, body, guest, caller, receive, send)
            handler = self._handlers.get(operation.name)
            if handler is not None:
                return await handler(asked)
            said = await guest.common.answer(operation.name, given, body)
            answer = operation.answers[0]
            return Reply(answer.status, b"" if said is None else msgspec.json.encode(said))
        finally:
            self._bodies.give(peer, taken[0])

    def _let_in(self, headers: Mapping[str, str]) -> None:
        """Raises _RefusedError."""
        if not is_ours(headers.get("host", ""), self._names):
            raise _RefusedError(
                403,
                AccessDeniedError(
                    "this gateway is not reached by that name", hint="Use localhost, an address, or set [gateway] names"
                ),
            )
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise _RefusedError(
                403, AccessDeniedError("requests from pages are refused", hint="The gateway is for programs")
            )

    async def _guest(self, headers: Mapping[str, str], scope: Scope) -> tuple[Guest, Caller]:
        """Guest and caller that this request is for. Raises _RefusedError, and what `Guests.find` does."""
        try:
            return await self.guests.find(headers.get("authorization", ""), scope.get("client") or ("", 0))
        except NobodyError as exc:
            raise _RefusedError(401, exc.error, (("www-authenticate", self.guests.challenge),)) from exc

    async def _body(
        self, operation: Operation, headers: Mapping[str, str], receive: Receive, taken: list[int], peer: str
    ) -> Any:
        """Objects, a struct, or None; `taken` counts its bytes, which are given back with the answer."""
        if operation.body is None:
            return None
        most = BODY_MOST if operation.body == MULTIPART else JSON_MOST
        said = headers.get("content-length", "0")
        if not said.isascii() or not said.isdecimal() or int(said[:18]) > most:
            raise OversizeError(f"a request has at most {most} bytes", limit=most)
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            part = message.get("body", b"")
            parts.append(part)
            if taken[0] + len(part) > most:
                raise OversizeError(f"a request has at most {most} bytes", limit=most)
            self._bodies.take(peer, len(part))
            taken[0] += len(part)
            if not message.get("more_body"):
                break
        whole = b"".join(parts)
        kind = headers.get("content-type", "")
        if operation.body == MULTIPART:
            return objects_in(whole, kind)
        if kind.partition(";")[0].strip().lower() != JSON:
            raise ArgumentError(f"the body is {JSON}, not {kind[:60]!r}", hint=f"Content-Type: {JSON}")
        try:
            return from_json(operation.body, whole)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ArgumentError(f"the body is no {operation.body.__name__}: {exc}"[:300]) from exc

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._tidying = [
                    asyncio.create_task(self._tidy(each)) for each in (self.guests.dismiss, self.guests.end_idle)
                ]
                await send({"type": "lifespan.startup.complete"})
            else:
                for task in self._tidying:
                    task.cancel()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _tidy(self, end: Callable[[], Awaitable[None]]) -> None:
        while True:
            due = time.monotonic() + TIDY_SECONDS
            await asyncio.sleep(TIDY_SECONDS)
            if time.monotonic() - due > LATE_SECONDS:  # we did not listen: they may be about to use it
                await asyncio.sleep(IDLE_SECONDS)
            try:
                await end()
            except JbiError as exc:
                log.warning("the gateway could not end what nobody uses: %s", exc)
            except Exception:
                log.exception("the gateway could not end what nobody uses")

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _publish(self, asked: Asked) -> Reply:
        given, objects = asked.given, asked.body
        terms = Terms(TypeName(given["type"], given["version"]), given.get("validate", True), given.get("persist"))
        size = sum(len(metadata) + len(payload) for metadata, payload in objects)
        ids = asked.guest.publishing.publish(terms, objects, opens=False) if size <= AT_ONCE else []
        seconds = given.get("wait", 0.0)
        try:
            if len(ids) < len(objects):
                ids = await self.call(lambda: asked.guest.publishing.publish(terms, objects, ids), asked.peer)
            if seconds:
                await self.call(lambda: asked.guest.publishing.flush(ids, seconds), asked.peer)
        except BackPressureError as exc:
            exc.facts.setdefault("published", len(ids))  # who sends these again has published them twice
            raise
        return Reply(201 if seconds else 202, _encode(Published(tuple(ids))))

    # -- subscribing --------------------------------------------------------------------------------------------

    async def _opened(self, asked: Asked) -> Feed:
        guest, given = asked.guest, asked.given
        start: str | int | None = given.get("start")
        kwargs: dict[str, Any] = {
            "type_name": _any(given["type"]), "version": _any(given["version"]), "predicate": given.get("predicate"),
            "payload_filter": given.get("payload_filter"), "namespaces": _namespaces(given.get("ns", [])),
            "suppress_empty": given.get("suppress_empty", False), "unfiltered": given.get("unfiltered"),
            "latest_by": given.get("latest_by"),
            "start": MAX_POSITION if start == "now" else start, "view": given.get("view") or "metadata",
            "timeout": SUBSCRIBE_SECONDS,
        }  # fmt: skip
        named = kwargs["type_name"] or "", kwargs["version"] or ""
        await self.call(lambda: self.guests.check_subscribe(guest, asked.caller, *named), asked.peer)
        return await guest.feeds.open(asked.peer, **kwargs)

    async def _subscribe(self, asked: Asked) -> None:
        last = str(asked.given.get("last_event_id", ""))
        missed: int | None = None
        feed = None
        if is_place(last) or last.isdecimal():
            await self.call(lambda: _check_one_archive(asked.guest, asked.given), asked.peer)
            asked.given["start"] = last
        elif last:
            key, _, number = last.partition("-")
            try:
                feed = asked.guest.feeds.find(key)
                missed = feed.go_back(int(number) if number.isdecimal() and len(number) < 19 else 0)
            except UnknownUidError:
                missed = 0  # how many is not known
        is_new = feed is None
        if feed is None:
            feed = await self._opened(asked)
        begin = _sse("open", {"subscription": feed.key}, f"{feed.key}-0" if is_new and not is_place(last) else "")
        if missed or (is_new and missed is not None):
            begin += _sse("lost", _missed(missed or 0), "")
        reader = feed.begin()
        watching = asyncio.create_task(_disconnected(asked.receive))
        streaming = asyncio.create_task(self._stream(feed, reader, asked.send, begin))
        try:
            await asyncio.wait({watching, streaming}, return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        finally:
            for task in (watching, streaming):
                task.cancel()
            feed.end()
            if feed.is_placed and feed.is_read_by(reader):  # who comes back has a position: another one begins there
                await asked.guest.feeds.end(feed)

    async def _stream(self, feed: Feed, reader: int, send: Send, begin: bytes) -> None:
        """Until the feed ends, or another reader takes over."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *_SAFE]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": begin, "more_body": True})
        while True:
            events = await feed.take(reader, 64, ALIVE_SECONDS)
            if events is None:
                break
            body = b"".join(_event(feed, event) for event in events) or b": alive\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _open(self, asked: Asked) -> Reply:
        feed = await self._opened(asked)
        at = f"/v1/subscriptions/{feed.key}"
        return Reply(201, _encode(Subscribed(feed.key, f"{at}/next")), ((b"location", at.encode()),))

    async def _next(self, asked: Asked) -> Reply:
        given = asked.given
        feed = asked.guest.feeds.find(given["subscription"])
        missed = feed.go_back(given["after"]) if "after" in given else 0
        reader = feed.begin()
        waiting = asyncio.ensure_future(feed.take(reader, given.get("count", 1), given.get("timeout", 20.0)))
        watching = asyncio.create_task(_disconnected(asked.receive))
        try:
            await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise _GoneError
            events = waiting.result()
        finally:
            waiting.cancel()
            watching.cancel()
            feed.end()
        if events is None:
            raise _RefusedError(409, BackPressureError("another request reads this subscription, or it has ended"))
        objects = tuple(_said(each.what) for each in events if isinstance(each.what, InfoObject))
        losses = tuple(_lost(each.what) for each in events if isinstance(each.what, LossNotice))
        losses = (_missed(missed), *losses) if missed else losses
        return Reply(200, _encode(Next(objects, losses, events[-1].number if events else feed.given)))

    async def _end(self, asked: Asked) -> Reply:
        await asked.guest.feeds.end(asked.guest.feeds.find(asked.given["subscription"]))
        return Reply(204, b"")

    # -- archives -----------------------------------------------------------------------------------------------

    async def _query(self, asked: Asked) -> Reply:
        conditions = _conditions(asked.given)
        limit, seconds = asked.given.get("limit", 100), asked.given.get("timeout", 30.0)

        def work() -> Found:
            found: list[InfoObject] = []
            size = 0
            query = asked.guest.subscriber().open_query(
                _any(asked.given["type"]), limit=limit + 1, timeout=seconds, **conditions
            )
            with query:
                for obj in query:
                    if len(found) == limit or size >= PAGE_BYTES:
                        break
                    found.append(obj)
                    size += len(obj.metadata) + min(obj.payload_size, INLINE_MOST)
                else:
                    return Found(tuple(map(_said, found)), False, query.partial, query.left_out)
            return Found(tuple(map(_said, found)), True, query.partial, query.left_out)

        return Reply(200, await self.call(lambda: _encode(work()), asked.peer))

    async def _count(self, asked: Asked) -> Reply:
        conditions, seconds = _conditions(asked.given), asked.given.get("timeout", 30.0)
        count = await self.call(
            lambda: asked.guest.subscriber().count(_any(asked.given["type"]), timeout=seconds, **conditions), asked.peer
        )
        return Reply(200, _encode(Counted(int(count), count.partial)))

    async def _get(self, asked: Asked) -> Reply:
        return Reply(200, await self.call(lambda: _encode(_said(_object(asked))), asked.peer))

    async def _payload(self, asked: Asked) -> Reply:
        payload = await self.call(lambda: _object(asked).payload, asked.peer)  # a large one is read from its file
        return Reply(200, payload, ((b"content-disposition", b"attachment"),), b"application/octet-stream")

    async def _types(self, asked: Asked) -> Reply:
        known = await self.call(lambda: asked.guest.subscriber().types(), asked.peer)
        found = self.guests.seen(asked.caller, known)
        return Reply(200, _encode(TypesSaid(tuple(TypeSaid(each.name, each.version) for each in found))))

    async def _say_document(self, _asked: Asked) -> Reply:
        return Reply(200, self._document)


_ONCE: Final = (b"host", b"authorization")
"""Headers that say who is meant, and who asks: of two, others on the way may have believed another one."""


class _Gathering(InTime, HttpToolsProtocol):
    """Sends head and body of a small answer by one call of the system: each costs as much as reading the request. Ends
    a connection whose peer takes nothing for STALL_SECONDS. What the parser does not bound is bounded here: the head
    of a request, what stands behind its body, and how many wait behind one another."""

    _stalled: asyncio.TimerHandle | None = None
    _head = 0
    """Bytes of head and trailers of a request so far."""
    _unread = 0
    """Bytes that the parser has said nothing of."""

    def data_received(self, data: bytes) -> None:
        """More of a request. What is said of none of it is a name, value or chunk that does not end."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > HEAD_MOST + len(data):
            self.give_up()

    def on_message_begin(self) -> None:
        """For the parser, as the next ones; what they raise ends the connection with status 400."""
        self._head = self._unread = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of it."""
        self._took(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header or trailer."""
        self._took(len(name) + len(value))
        if (said := name.lower()) in _ONCE and any(known == said for known, _ in self.headers):
            raise ValueError("two of a header")  # RFC 9112, section 3.2; RFC 9110, section 5.3
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._unread = 0
        if len(self.pipeline) >= PIPELINED_MOST or not any(name == b"host" for name, _ in self.headers):
            raise ValueError("too many requests, or no host")
        if not self.url.startswith((b"/", b"*")):  # RFC 9112, section 3.2.2: this host counts, whatever the header says
            meant = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [(name, meant if name == b"host" else value) for name, value in self.headers]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._unread = 0
        super().on_body(body)

    def _took(self, size: int) -> None:
        self._unread = 0
        self._head += size
        if self._head > HEAD_MOST:
            raise ValueError("the head is too large")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Somebody has connected."""
        super().connection_made(_Writer(transport, self.loop))  # type: ignore[arg-type]  # it has all of its methods

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._moves()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer that what came is no HTTP: said as all errors are, unless it came behind what is being answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_no_http(msg))
        self.transport.close()

    def pause_writing(self) -> None:
        """The peer does not take what is written."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The peer takes what is written again."""
        self._moves()
        super().resume_writing()

    def _watch(self, size: int) -> None:
        self._stalled = self.loop.call_later(STALL_SECONDS, self._look_again, size)

    def _look_again(self, before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._watch(size)
        else:
            self.give_up()

    def _moves(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _Writer:
    """A transport that writes at the end of the loop's turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """As soon as the loop comes to it."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# -- values -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """A request that was read."""

    operation: Operation
    given: dict[str, Any]
    body: Any
    guest: Guest
    caller: Caller
    receive: Receive
    send: Send

    @property
    def peer(self) -> str:
        """Peer whose share of what there is for all it takes."""
        return self.caller.place.peer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is written at once."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    kind: bytes = JSON.encode()


class _RefusedError(Exception):
    """An error with a status of its own."""

    def __init__(self, status: int, error: JbiError, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(str(error))
        self.status, self.error = status, error
        self.headers = tuple((name.encode(), value.encode()) for name, value in headers)


class _GoneError(Exception):
    """The client has gone: nobody is to be told anything."""


_SAFE: Final = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'; sandbox"))


def _problem(error: JbiError, status: int | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    told = problem(error, status)
    if told.status in (429, 503):
        headers = (*headers, (b"retry-after", str(RETRY_SECONDS).encode()))
    return Reply(told.status, _encode(told), headers, PROBLEM.encode())


def _no_http(said: str) -> bytes:
    reply = _problem(ArgumentError(said.rstrip("."), hint="RFC 9112"))
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (reply.kind, len(reply.body)) + reply.body


async def _write(send: Send, reply: Reply) -> None:
    length = (b"content-length", str(len(reply.body)).encode())
    own = [(b"content-type", reply.kind)] if reply.status != 204 else []
    headers = [*own, length, (b"cache-control", b"no-store"), *_SAFE, *reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for begin in range(0, len(reply.body) - PART, PART):
        await send({"type": "http.response.body", "body": reply.body[begin : begin + PART], "more_body": True})
        await asyncio.sleep(0)  # for _Writer to write it: only then it is known whether the client takes it
    last = (max(1, len(reply.body)) - 1) // PART * PART
    await send({"type": "http.response.body", "body": reply.body[last:]})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _event(feed: Feed, event: Event) -> bytes:
    if isinstance(event.what, LossNotice):
        return _sse("lost", _lost(event.what), "" if feed.is_placed else f"{feed.key}-{event.number}")
    feed.is_placed = event.what.platform.position > 0
    place = event.what.platform.place
    return _sse("object", _said(event.what), place or f"{feed.key}-{event.number}")


def _sse(kind: str, data: Any, key: str) -> bytes:
    """An event as text/event-stream has it (WHATWG HTML, section 9.2); JSON has no line ends."""
    named = f"id: {key}\n".encode() if key else b""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), named, msgspec.json.encode(data))


def _missed(count: int) -> LossSaid:
    return LossSaid("missed", count, "not kept here any more")


def _lost(notice: LossNotice) -> LossSaid:
    return LossSaid(str(notice.cause), notice.count, notice.detail)


def _said(obj: InfoObject) -> ObjectSaid:
    """An object as JSON has it: metadata as text if they are UTF-8; a large payload has to be fetched."""
    platform = obj.platform
    try:
        metadata, encoded = obj.metadata.decode(), None
    except UnicodeDecodeError:
        metadata, encoded = None, base64.b64encode(obj.metadata).decode()
    inline = obj.payload_size <= INLINE_MOST
    return ObjectSaid(
        id=obj.object_id, type=obj.type.name, version=obj.type.version, metadata=metadata, metadata_base64=encoded,
        payload_base64=base64.b64encode(obj.payload).decode() if inline else None,
        payload_length=platform.payload_length, is_selection=obj.is_selection,
        registration=platform.registration, sequence=platform.sequence,
        published=datetime.fromtimestamp(platform.published, UTC).isoformat(), position=platform.position,
        place=platform.place,
    )  # fmt: skip


def _check_one_archive(guest: Guest, given: Mapping[str, Any]) -> None:
    """A position is of one archive. Raises ConfigurationError when several have the type."""
    asked = guest.subscriber().explain_query(_any(given["type"]), version=_any(given["version"]))
    if len(asked) > 1:
        raise ConfigurationError(
            f"{len(asked)} archives have this type, and a position is of one", hint="Go on from a time: start="
        )


def _object(asked: Asked) -> InfoObject:
    return asked.guest.subscriber().get(asked.given["object"], 30.0)


def _any(name: str) -> str | None:
    return None if name == "*" else name


def _namespaces(given: Iterable[str]) -> dict[str, str]:
    """Namespaces of `prefix=uri` texts. Raises ArgumentError."""
    found = {}
    for text in given:
        prefix, equals, uri = text.partition("=")
        if not (prefix and equals and uri):
            raise ArgumentError(f"ns: {text[:60]!r}", hint="It takes prefix=uri", argument="ns")
        found[prefix] = uri
    return found


_SAME: Final = (
    "predicate", "payload_filter", "suppress_empty", "since", "until", "received", "after", "up_to", "publisher",
    "least_payload", "most_payload", "latest_by", "order", "view", "unfiltered",
)  # fmt: skip


def _conditions(given: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions of a query, as the adapter calls them."""
    found = {name: given[name] for name in _SAME if name in given}
    return {**found, "version": _any(given["version"]), "namespaces": _namespaces(given.get("ns", []))}
