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
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

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
from jbi_pubsub.core.hosts import is_ours, names_of
from jbi_pubsub.core.values import from_json
from jbi_pubsub.core.wire.address import is_loopback
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PeerShares, asked_by, peer_of, share_of
from jbi_pubsub.subscriber.owner import user_secret

from .cloudevents import event_in, is_structured
from .connection import BoundedHttp
from .feeds import IDLE_SECONDS
from .gate import Receive, Scope, Send, headers_of
from .guests import Guest, Guests, NobodyError
from .handlers import ApiRequest, RequestHandlers
from .listing import OPERATIONS
from .operations import CLOUDEVENT, JSON, MULTIPART, CodingError, Operation, OperationTable, objects_in, read
from .replies import PART, GoneError, RefusedError, Reply, problem_reply
from .server import HttpServer, InTime

log = logging.getLogger("jbi_pubsub.web")

BODY_MOST: Final = 64 << 20
"""Bytes of a request: the largest object."""
JSON_MOST: Final = 4 << 20
"""Bytes of a request that is JSON."""
BODIES_MOST: Final = 256 << 20
"""Bytes of all requests that are being read."""
ANSWERS_MOST: Final = 256 << 20
"""Bytes of all large answers that clients have not taken."""
THREADS: Final = 32
"""For what waits, other than long polls of sequences."""
WAITING_MOST: Final = 256
"""Calls that wait for one of them."""
TIDY_SECONDS: Final = 1.0
"""Between two looks for what nobody uses any more, and for users who are none any more."""
LATE_SECONDS: Final = 1.0
"""Beyond that: whoever was kept so long from looking for what nobody uses gives everybody IDLE_SECONDS more."""

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
            raise ConfigurationError(
                "[gateway] delegate is not a pair", hint='For example delegate = ["alpha", "rome"]'
            )
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
        self._table = OperationTable(OPERATIONS)
        self._handlers = RequestHandlers(self.guests, self.call, self._table)
        self._tidying: list[asyncio.Task[None]] = []

    @property
    def protocol(self) -> type[InTime]:
        """See HttpServer."""
        return BoundedHttp

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
        except RefusedError as exc:
            reply = exc.reply
        except JbiError as exc:
            reply = problem_reply(exc)
        except GoneError:
            return
        except asyncio.CancelledError:  # the server ends
            reply = problem_reply(WireError("the gateway ends", hint="Come again"), 503)
        except Exception:
            log.exception("the gateway failed at %s", ascii(scope["path"])[:200])
            reply = problem_reply(JbiError("the gateway failed", hint="Its log has the error"))
        if reply is not None and not has_begun:  # else the connection is cut: its client sees that this was not the end
            await self._write(send, reply, peer_of((scope["client"] or ("",))[0]))

    async def _write(self, send: Send, reply: Reply, peer: str) -> None:
        """A large answer in parts, as the client takes them: until then it counts."""
        size = min(len(reply.body), share_of(ANSWERS_MOST)) if len(reply.body) > PART else 0  # alone any goes
        try:
            self._answers.take(peer, size)
        except BackPressureError as exc:
            size, reply = 0, problem_reply(exc)
        try:
            await reply.write(send)
        finally:
            self._answers.give(peer, size)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        headers = headers_of(scope)
        self._let_in(headers)
        try:
            guest, caller = await self.guests.find(headers.get("authorization", ""), scope.get("client") or ("", 0))
        except NobodyError as exc:
            raise RefusedError(401, exc.error, (("www-authenticate", self.guests.challenge),)) from exc
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
                raise RefusedError(
                    405,
                    ArgumentError(
                        f"{scope['method'][:20]} is not for this path", hint=f"Allowed: {', '.join(methods)}"
                    ),
                    (("allow", ", ".join(methods)),),
                    title="Method not allowed",
                )
            nothing = UnknownUidError("no such path", hint="GET /v1/openapi.json lists them")
            raise RefusedError(404, nothing, title="Unknown path")
        given = read(operation, values, scope["query_string"].decode("latin-1"), headers)
        taken, peer = [0], caller.place.peer
        try:
            body = await self._body(operation, headers, receive, taken, peer)
            request = ApiRequest(operation, given, body, guest, caller, receive, send)
            return await self._handlers.reply(request)
        finally:
            self._bodies.give(peer, taken[0])

    def _let_in(self, headers: Mapping[str, str]) -> None:
        """Raises RefusedError."""
        if not is_ours(headers.get("host", ""), self._names):
            raise RefusedError(
                403,
                AccessDeniedError(
                    "this gateway is not reached by that name", hint="Use localhost, an address, or set [gateway] names"
                ),
            )
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RefusedError(
                403, AccessDeniedError("requests from pages are refused", hint="The gateway is for programs")
            )

    async def _body(
        self, operation: Operation, headers: Mapping[str, str], receive: Receive, taken: list[int], peer: str
    ) -> Any:
        """Objects, a struct, or None; `taken` counts its bytes, which are given back with the answer."""
        if operation.body is None:
            return None
        _check_codings(headers)
        is_raw = operation.body == MULTIPART or (operation.body == CLOUDEVENT and not is_structured(headers))
        most = BODY_MOST if is_raw else JSON_MOST
        said = headers.get("content-length", "0")
        if not said.isascii() or not said.isdecimal() or int(said[:18]) > most:
            raise OversizeError(f"a request has at most {most} bytes", limit=most)
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise GoneError
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
            try:
                return objects_in(whole, kind)
            except CodingError as exc:
                raise RefusedError(415, exc.error, title="Unsupported media type") from exc
        if operation.body == CLOUDEVENT:
            try:
                return event_in(whole, headers)
            except ArgumentError as exc:
                raise RefusedError(400, exc, title="Invalid CloudEvent") from exc
        if kind.partition(";")[0].strip().lower() != JSON:
            other = ArgumentError(f"the body is {JSON}, not {kind[:60]!r}", hint=f"Content-Type: {JSON}")
            raise RefusedError(415, other, title="Unsupported media type")
        try:
            return from_json(operation.body, whole)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ArgumentError(f"the body is not of type {operation.body.__name__}: {exc}"[:300]) from exc

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
                log.warning("the gateway could not close idle connections: %s", exc)
            except Exception:
                log.exception("the gateway could not close idle connections")


def _check_codings(headers: Mapping[str, str]) -> None:
    """Raises RefusedError where a body is not to be read as it is (RFC 9110, section 8.4; RFC 9112, section 6.1)."""
    content, transfer = headers.get("content-encoding", "identity"), headers.get("transfer-encoding", "chunked")
    if content.strip().lower() != "identity":
        error = CodingError("Content-Encoding", content, "Send the body as it is").error
        raise RefusedError(415, error, (("accept-encoding", "identity"),), title="Unsupported media type")
    if transfer.strip().lower() != "chunked":
        error = CodingError("Transfer-Encoding", transfer, "Send the body in chunks alone, or with its length").error
        raise RefusedError(501, error, title="Not implemented")
