"""Connections of the gateway's clients, over httptools: what its parser does not bound is bounded here."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from jbi_pubsub.core.errors import ArgumentError, JbiError, WireTimeoutError

from .replies import problem_reply
from .server import BODY_LEAST, BODY_WAITS, HEAD_MOST, REQUEST_SECONDS, InTime

PIPELINED_MOST: Final = 1_000
"""Requests that wait behind one on its connection."""
STALL_SECONDS: Final = 30.0
"""For a client to take what is written to it."""
_ONCE: Final = (b"host", b"authorization")
"""Headers that say who is meant, and who asks: of two, others on the way may have believed another one."""


class BoundedHttp(InTime, HttpToolsProtocol):
    """Sends head and body of a small answer by one call of the system: each costs as much as reading the request. Ends
    a connection whose peer takes nothing for STALL_SECONDS. What the parser does not bound is bounded here: the head
    of a request, what stands behind its body, and how many wait behind one another."""

    parser: PlainParser
    _stalled: asyncio.TimerHandle | None = None
    _head = 0
    """Bytes of head and trailers of a request so far."""
    _unread = 0
    """Bytes that the parser has said nothing of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = PlainParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

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
        if self.parser.upgrades:  # it is read again
            return
        if len(self.pipeline) >= PIPELINED_MOST or not any(name == b"host" for name, _ in self.headers):
            raise ValueError("too many requests, or no host")
        if not self.url.startswith((b"/", b"*")):  # RFC 9112, section 3.2.2: this host counts, whatever the header says
            meant = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [(name, meant if name == b"host" else value) for name, value in self.headers]
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedCycle

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Its end."""
        if not self.parser.upgrades:
            super().on_message_complete()

    @property
    def plain_head(self) -> bytes:
        """The head that was read, without the wish for another protocol."""
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((first, *fields, b"", b""))

    def _took(self, size: int) -> None:
        self._unread = 0
        self._head += size
        if self._head > HEAD_MOST:
            raise ValueError("the head is too large")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Somebody has connected."""
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]  # it has all of its methods

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        self._moves()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer that what came is no HTTP: said as all errors are, unless it came behind what is being answered."""
        if self.cycle is None or self.cycle.response_complete:
            said = ArgumentError(
                msg.rstrip("."), hint="RFC 9112; a letter beyond ASCII is percent-encoded in an address"
            )
            self.transport.write(_last(b"400 Bad Request", said))
        self.transport.close()

    def end_late(self) -> None:
        """Say so to a client whose body has begun, unless it has an answer."""
        if self.cycle is None or self.cycle.response_started or not self.cycle.more_body:
            self.give_up()
            return
        said = WireTimeoutError(
            f"the body comes too slowly: less than {BODY_LEAST} bytes of it in {REQUEST_SECONDS:g} s, or not all of it"
            f" in {BODY_WAITS * REQUEST_SECONDS:g} s",
            hint="Send fewer or smaller objects in a request",
        )
        self.transport.write(_last(b"408 Request Timeout", said))
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


class PlainParser(httptools.HttpRequestParser):
    """Reads HTTP/1.1 to the end, whatever else a client would rather speak (RFC 9110, section 7.8): Java's asks for
    HTTP/2 with each first request. Of such a request httptools would take the body for bytes of the other protocol, so
    it gets the head once more, without that wish."""

    def __init__(self, protocol: BoundedHttp) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    @property
    def upgrades(self) -> bool:
        """Whether the head that was read asks for another protocol."""
        return bool(self.should_upgrade()) and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        """See HttpRequestParser."""
        while True:
            try:
                super().feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                if not self.upgrades:
                    raise
                data = memoryview(data)[exc.args[0] :]
                super().feed_data(self._protocol.plain_head)


class UnchunkedCycle(RequestResponseCycle):
    """Request and answer of a client that knows no chunks (RFC 9112, section 6.1): what has no length ends with the
    connection."""

    _has_no_length = False

    async def send(self, message: Any) -> None:
        """For the application."""
        if message["type"] == "http.response.start":
            self._has_no_length = not any(name == b"content-length" for name, _ in message["headers"])
            self.chunked_encoding = False if self._has_no_length else None
        elif self._has_no_length:
            self.expected_content_length = len(message["body"]) + bool(message.get("more_body"))
        await super().send(message)


class GatheringTransport:
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


def _last(status: bytes, error: JbiError) -> bytes:
    """An error as the last answer of a connection."""
    reply = problem_reply(error, int(status[:3]))
    head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, reply.kind, len(reply.body)) + reply.body
