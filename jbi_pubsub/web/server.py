"""The HTTP server of `jbi web`: one FastAPI application behind one gate, on a thread of its own; and what it has in
common with the gateway's. No pages here.

It listens on loopback, or with [tls]; there is no way to have it in clear beyond that, as sessions would be anybody's.
With [tls] it shows the process's certificate and asks for none: a browser has the token instead, and who unsubscribes
by one click (RFC 8058) is a mail server of others. What comes later (gateways) is added as routers: see WebServer.add.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, PortInUseError, WireError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.places import PortPlace, has_more, peer_of, room, share_of

from .gate import ENTER, Gate, Receive, Scope, Send
from .logins import LOGIN, Logins
from .replies import problem_reply

log = logging.getLogger("jbi_pubsub.web")

START_SECONDS: Final = 20.0
"""For the server to begin to serve."""
STOP_SECONDS: Final = 2.0
"""For requests under way when it stops; then they are cut off."""
CONNECTIONS_MOST: Final = 256
"""Connections at once, shared as those of the control plane (core/wire/places.py): one too many is told 503."""
REFUSED_MOST: Final = 64
"""Connections that are to be told so: the one that has waited longest for its request goes without a word."""
REQUEST_SECONDS: Final = 20.0
"""For a request to have come, body and all, since the connection or the answer before it; at most twice that. A body of
which so much more has come meanwhile is waited for again:"""
BODY_LEAST: Final = 8_192
"""Bytes; 3,300 bit/s."""
BODY_WAITS: Final = 30
"""Times: ten minutes."""
HEAD_MOST: Final = 64 << 10
"""Bytes of a request without its body."""
MESSAGE_MOST: Final = 4 << 20
"""Bytes of a websocket message."""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it is no word of uvicorn's that requests are cut off when we stop: that is how it is to be."""
    is_cut_off = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not is_cut_off and "timeout graceful shutdown exceeded" not in str(record.msg)


logging.getLogger("uvicorn.error").addFilter(_is_news)


class HttpServer:
    """Binds when it is made, serves what `served` gives from `start` to `stop`, on a thread of its own."""

    def __init__(
        self, config: Config, host: str, port: int, *, section: str, ended: Callable[[], None] = lambda: None
    ) -> None:
        """`ended` is called when the server has ended although nobody has stopped it, which is logged; `section` is
        that of the configuration.

        Raises ConfigurationError beyond loopback without [tls], or with a certificate that is no good; PortInUseError.
        """
        security = config.security()
        Security(security.tls).check(host, or_else="leave it on loopback and come by ssh -L")  # --insecure: not here
        self._tls = security.tls
        if self._tls:
            self._tls.check_dates()
        self._socket = _bound(host, port, section)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._ended = ended
        self.connections = Connections()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name=f"jbi-{section}", daemon=True)

    @property
    def protocol(self) -> type[InTime]:
        """Class that reads requests of a connection."""
        return Http

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of uvicorn that are not its defaults."""
        return {"loop": "asyncio", "ws": partial(Websocket, self.connections)}

    def served(self) -> Any:
        """The ASGI application."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """http://host:port, as a browser on this host reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104  # not bound here
        return f"{'https' if self._tls else 'http'}://{with_port(host, self.port)}"

    def start(self) -> None:
        """Begin to serve. Raises WireError when that does not come about."""
        settings = uvicorn.Config(
            self.served(), interface="asgi3", log_config=None, access_log=False, server_header=False,
            proxy_headers=False,
            http=partial(self.protocol, self.connections),  # type: ignore[arg-type]  # it is called, as a class is
            h11_max_incomplete_event_size=HEAD_MOST, ws_max_size=MESSAGE_MOST,
            timeout_graceful_shutdown=int(STOP_SECONDS) - 1,
            ssl_context_factory=(lambda *_: tls.site_context()) if (tls := self._tls) else None, **self.settings,
        )  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._thread.start()
        for _ in range(int(START_SECONDS / 0.02)):
            if self._server.started or not self._thread.is_alive():
                break
            self._thread.join(0.02)
        if not self._server.started:
            self.stop()
            raise WireError("the web server does not start: see the log above")

    def stop(self) -> None:
        """End: requests under way have a second."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(STOP_SECONDS)
            self._server.force_exit = True
            self._thread.join(STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        assert self._server is not None
        with guarded("web server"), contextlib.suppress(SystemExit):  # uvicorn's word for "I can't", which is logged
            self._server.run(sockets=[self._socket])
        if not self._server.should_exit or not self._server.started:
            log.error("the web server at %s has ended", self.address)
            self._ended()


class WebServer(HttpServer):
    """That of `jbi web`."""

    def __init__(
        self,
        config: Config,
        *,
        entered: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`entered` is called, on the server's thread, when a browser has used the token: `url` is the next one's; the
        rest, and what it raises, as HttpServer; PolicyError, too."""
        web = config.web
        super().__init__(config, web.host, web.port, section="web", ended=ended)
        self._logins: Logins | None = None
        try:
            self._logins = Logins.of(config)
        except BaseException:
            self.stop()
            raise
        self.gate = Gate(
            port=self.port, secure=self._tls is not None, names=(web.host, socket.gethostname(), *web.names),
            logins=self._logins, entered=entered,
        )  # fmt: skip
        self.app = FastAPI(title="jbi-pubsub", docs_url=None, redoc_url=None, openapi_url=None)

    @property
    def url(self) -> str:
        """URL that lets one browser in."""
        return f"{self.address}{ENTER}?token={self.gate.token}"

    @property
    def login_url(self) -> str:
        """URL of the form for users with a password; "" where there are none."""
        return f"{self.address}{LOGIN}" if self._logins is not None else ""

    def stop(self) -> None:
        """See HttpServer."""
        super().stop()
        if self._logins is not None:
            self._logins.close()

    def add(self, router: APIRouter, *, session: bool = True) -> None:
        """More paths, before `start`; they need a session, like the console's. Without `session` these very paths (no
        parameters in them) are open to everybody, and need a right of their own: they don't ask for host, origin or
        session, only sizes are bounded. Raises ConfigurationError for such a path with parameters."""
        paths = {route.path for route in router.routes if isinstance(route, APIRoute)}
        if not session:
            if bad := [path for path in paths if "{" in path]:
                raise ConfigurationError(f"an open path has no parameters: {bad[0]}", hint="Use the query for them")
            self.gate.open |= paths
        self.app.include_router(router)

    def served(self) -> Any:
        """The console behind its gate."""
        return GZipMiddleware(self.gate.around(self._let_in), minimum_size=1_000)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "client" in scope:
            self.connections.called(scope["client"])
        await self.app(scope, receive, send)


class Connections:
    """Those of one server, by the address of the client, each with its place. Of the event loop alone."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], InTime] = {}
        self._refused: dict[InTime, None] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, new: InTime) -> None:
        """One more: another one ends for it, or it is told that there is no place."""
        places = {client: each.place for client, each in self._open.items()}
        for client, place in places.items():
            place.busy = self._open[client].is_busy
        going = room(places, new.place.peer, CONNECTIONS_MOST)
        for client in going or ():
            self._open[client].give_up()
        if going is None:
            self.refuse(new)
        else:
            self._open[new.address] = new

    def refuse(self, one: InTime) -> None:
        """Tell it with its next request."""
        self.leave(one.address)
        if len(self._refused) >= REFUSED_MOST:
            next(iter(self._refused)).give_up()
        one.app = _full
        self._refused[one] = None

    def called(self, client: tuple[str, int] | None, user: str = "") -> None:
        """A request was let in, of `user`, whose share counts now. Raises BackPressureError."""
        one = self._open.get(client or _NOWHERE)
        if one is None:
            return
        one.place.called()
        if user and one.place.user != user:
            one.place.user, one.place.peer = user, f"user {user}"
            if has_more({client: each.place for client, each in self._open.items()}, one.place.peer, CONNECTIONS_MOST):
                self.refuse(one)
                raise BackPressureError(f"{user} has {share_of(CONNECTIONS_MOST)} connections", hint="Close some")

    def leave(self, client: tuple[str, int], one: InTime | None = None) -> None:
        """Forget a connection that has ended."""
        self._open.pop(client, None)
        if one is not None:
            self._refused.pop(one, None)


_NOWHERE: Final = ("", 0)


async def _full(_: Scope, __: Receive, send: Send) -> None:
    told = BackPressureError("no connection is free here for yours", hint="Close others, or come again")
    await problem_reply(told, 503, (("connection", "close"),)).write(send)


class InTime(asyncio.Protocol):
    """Connection of uvicorn's that has a place, and whose requests come in time. Uvicorn waits for ever, and would
    refuse all others meanwhile."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None
    app: Any
    cycle: Any
    _came = 0
    """Bytes since the last look."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Somebody has connected."""
        super().connection_made(transport)
        self.address = self.client or _NOWHERE
        self.place = PortPlace(peer_of(self.address[0]))
        self._next_look = self.loop.call_later(REQUEST_SECONDS, self._look, None)
        if self.client is None:  # it has left again
            self.give_up()
        else:
            self._places.enter(self)

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        self._came += len(data)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._next_look.cancel()
        self._places.leave(self.address, self)
        super().connection_lost(exc)

    @property
    def is_busy(self) -> bool:
        """Whether a request that is there whole is being answered."""
        return not (self.cycle is None or self.cycle.response_complete or self.cycle.more_body)

    def give_up(self) -> None:
        """End it without a word."""
        self._places.leave(self.address, self)
        self.transport.abort()

    def end_late(self) -> None:
        """End it: no request has come in time."""
        self.give_up()

    def _look(self, before: Any, waits: int = BODY_WAITS) -> None:
        """`before`: the request at the look before. Is it over, or still coming, then nothing came in between, but for
        more of its body, for which there are so many `waits`."""
        came, self._came = self._came, 0
        is_late = self.cycle is before and (before is None or before.response_complete or before.more_body)
        is_coming = is_late and before is not None and not before.response_complete and came >= BODY_LEAST
        if is_late and not (is_coming and waits > 1):
            self.end_late()
        else:
            again = waits - 1 if is_coming else BODY_WAITS
            self._next_look = self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle, again)


class Http(InTime, H11Protocol):
    """A connection of the console's, which may become a websocket."""

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From now on it is none of ours, but for its place."""
        if self.app is _full:
            self.give_up()
            return
        self._next_look.cancel()
        self.place.kept = True
        super().handle_websocket_upgrade(event)


class Websocket(WSProtocol):
    """One of the console's, in the place of the connection that it was."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = connections

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._places.leave(self.client or _NOWHERE)
        super().connection_lost(exc)


def _bound(host: str, port: int, section: str) -> socket.socket:
    """Raises PortInUseError, ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except OSError as exc:
        made.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is taken", hint=f"Set [{section}] port to another, or to 0 for any", port=port
            ) from exc
        raise ConfigurationError(
            f"can't listen on {with_port(host, port)}: {exc.strerror or exc}", hint=f"See [{section}] host"
        ) from exc
    return made
