"""Operations of the gateway on requests that were read: objects, subscriptions, archives, types; what is none of these
is the Common API's (common.py)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from jbi_pubsub import __version__
from jbi_pubsub.capi import TimeoutException
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    BackPressureError,
    ConfigurationError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import InfoObject, LossNotice, TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.subscriber.moments import is_place

from .cloudevents import event_reply, structured
from .feeds import EventFeed, FeedEvent
from .gate import Receive, Send
from .guests import Guest, Guests
from .listing import (
    Counted,
    Found,
    LossSaid,
    Next,
    ObjectSaid,
    Published,
    SequenceAsked,
    Subscribed,
    TypeSaid,
    TypesSaid,
)
from .operations import Operation, OperationTable
from .publishing import RegistrationTerms
from .replies import SAFE, GoneError, RefusedError, Reply, json_reply

AT_ONCE: Final = 65_536
"""Bytes of objects that are checked and queued on the loop; more are handed to a thread."""
INLINE_MOST: Final = 4 << 20
"""Bytes of a payload that comes with its object; a larger one is fetched by itself."""
PAGE_BYTES: Final = 16 << 20
"""Bytes of the objects in one answer, about."""
ALIVE_SECONDS: Final = 15.0
"""A stream that has nothing to say says so."""
SUBSCRIBE_SECONDS: Final = 5.0
"""For the lookup services to take a subscription."""

T = TypeVar("T")


@dataclass(slots=True)
class ApiRequest:
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


class RequestHandlers:
    """The handlers of all operations, by name. Of the event loop; what may wait is done by `call` (see Gateway)."""

    def __init__(self, guests: Guests, call: Callable[..., Awaitable[Any]], table: OperationTable) -> None:
        self._guests = guests
        self._call = call
        self._document = msgspec.json.encode(table.document(__version__))
        self._by_name: dict[str, Callable[[ApiRequest], Awaitable[Reply | None]]] = {
            "publishObjects": self._publish, "publishEvent": self._publish_event, "nextEvent": self._next_event,
            "getEvent": self._get_event, "subscribe": self._subscribe, "openSubscription": self._open,
            "nextObjects": self._next, "endSubscription": self._end, "queryObjects": self._query,
            "countObjects": self._count, "getObject": self._get, "getPayload": self._payload,
            "listTypes": self._types, "getDocument": self._say_document,
        }  # fmt: skip

    async def reply(self, request: ApiRequest) -> Reply | None:
        """The answer; None for one that was sent meanwhile. Raises JbiError, RefusedError, GoneError."""
        handler = self._by_name.get(request.operation.name)
        if handler is not None:
            return await handler(request)
        asked = request.body
        if isinstance(asked, SequenceAsked) and asked.kind == "subscriber":
            self._guests.check_subscribe(request.caller, asked.type, asked.version)
        answering = request.guest.common.answer(request.operation.name, request.given, asked)
        try:
            said = await (_while_connected(request.receive, answering) if request.operation.is_waiting else answering)
        except TimeoutException as exc:
            if request.operation.name != "getNext":
                raise
            raise RefusedError(409, exc) from exc  # none has come yet: nothing has failed
        return Reply(request.operation.answers[0].status, b"" if said is None else msgspec.json.encode(said))

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _publish(self, request: ApiRequest) -> Reply:
        given, objects = request.given, request.body
        terms = RegistrationTerms(
            TypeName(given["type"], given["version"]), given.get("validate", True), given.get("persist")
        )
        size = sum(len(metadata) + len(payload) for metadata, payload in objects)
        ids = request.guest.publishing.publish(terms, objects, opens=False) if size <= AT_ONCE else []
        seconds = given.get("wait", 0.0)
        try:
            if len(ids) < len(objects):
                ids = await self._call(lambda: request.guest.publishing.publish(terms, objects, ids), request.peer)
            if seconds:
                await self._call(lambda: request.guest.publishing.flush(ids, seconds), request.peer)
        except BackPressureError as exc:
            exc.facts.setdefault("published", len(ids))  # who sends these again has published them twice
            raise
        return json_reply(201 if seconds else 202, Published(tuple(ids)))

    async def _publish_event(self, request: ApiRequest) -> Reply:
        name, metadata, payload = request.body
        given = {"version": "1.0", "validate": False, **request.given, "type": name}
        return await self._publish(replace(request, given=given, body=[(metadata, payload)]))

    # -- subscribing --------------------------------------------------------------------------------------------

    def _check(self, request: ApiRequest, terms: Mapping[str, Any]) -> None:
        self._guests.check_subscribe(request.caller, terms["type_name"] or "", terms["version"] or "")

    async def _subscribe(self, request: ApiRequest) -> None:
        last = str(request.given.get("last_event_id", ""))
        missed: int | None = None
        feed = None
        is_behind = is_place(last) or last.isdecimal()
        if is_behind:
            await self._call(lambda: _check_one_archive(request.guest, request.given), request.peer)
            request.given["start"] = last
            request.given.pop("latest_by", None)  # of start=last, which has been
        terms = _terms(request.given)
        self._check(request, terms)
        if last and not is_behind:
            key, _, number = last.partition("-")
            try:
                feed = request.guest.feeds.find(key, terms)
                missed = feed.go_back(int(number) if number.isdecimal() and len(number) < 19 else 0)
            except UnknownUidError:
                missed = 0  # how many is not known
        is_new = feed is None
        if feed is None:
            feed = await request.guest.feeds.open(request.peer, **terms)
        begin = _sse("open", {"subscription": feed.key}, f"{feed.key}-0" if is_new and not is_place(last) else "")
        if missed or (is_new and missed is not None):
            begin += _sse("lost", _missed(missed or 0), "")
        reader = feed.begin()
        try:
            await _while_connected(request.receive, self._stream(feed, reader, request, terms, begin))
        finally:
            feed.end()
            if feed.is_placed and feed.is_read_by(reader):  # who comes back has a position: another one begins there
                await request.guest.feeds.end(feed)

    async def _stream(
        self, feed: EventFeed, reader: int, request: ApiRequest, terms: Mapping[str, Any], begin: bytes
    ) -> None:
        """Until the feed ends, another reader takes over, or the rules have changed and refuse it."""
        version = -1
        send, as_event = request.send, request.given.get("events", False)
        unbuffered = (b"x-accel-buffering", b"no")  # a proxy such as nginx would keep all events for itself
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), unbuffered, *SAFE]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": begin, "more_body": True})
        while True:
            events = await feed.take(reader, 64, ALIVE_SECONDS)
            if events is None:
                break
            if version != self._guests.version:
                version = self._guests.version
                try:
                    self._guests.check_connect(request.caller)
                    self._check(request, terms)
                except AccessDeniedError:
                    break  # which its client is told when it comes back
            if as_event:  # a large payload is read from its file
                body = await self._call(partial(_frames, feed, events, as_event=True), request.peer)
            else:
                body = _frames(feed, events)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _open(self, request: ApiRequest) -> Reply:
        terms = _terms(request.given)
        self._check(request, terms)
        feed = await request.guest.feeds.open(request.peer, **terms)
        at = f"/v1/subscriptions/{feed.key}"
        said = Subscribed(feed.key, f"{at}/next")
        return Reply(201, msgspec.json.encode(said), ((b"location", at.encode()),))

    async def _next(self, request: ApiRequest) -> Reply:
        events, missed, feed = await self._taken(request)
        objects = tuple(_said(each.what) for each in events if isinstance(each.what, InfoObject))
        losses = tuple(_lost(each.what) for each in events if isinstance(each.what, LossNotice))
        losses = (_missed(missed), *losses) if missed else losses
        return json_reply(200, Next(objects, losses, events[-1].number if events else feed.given))

    async def _next_event(self, request: ApiRequest) -> Reply:
        events, missed, feed = await self._taken(request)
        what = events[0].what if events else None
        headers = [(b"jbi-last", str(feed.given).encode())]
        if missed:
            headers.append((b"jbi-lost", b"missed=%d" % missed))
        if isinstance(what, LossNotice):
            headers.append((b"jbi-lost", f"{what.cause}={what.count}".encode()))
        if not isinstance(what, InfoObject):
            return Reply(204, b"", tuple(headers))
        mode = request.given.get("mode", "")  # a large payload is read from its file
        made: Reply = await self._call(lambda: event_reply(what, mode, tuple(headers)), request.peer)
        return made

    async def _taken(self, request: ApiRequest) -> tuple[list[FeedEvent], int, EventFeed]:
        """The next events, the number of those that are not kept any more, and where they come from."""
        given = request.given
        feed = request.guest.feeds.find(given["subscription"])
        self._check(request, feed.terms)
        missed = feed.go_back(given["after"]) if "after" in given else 0
        reader = feed.begin()
        taking = feed.take(reader, given.get("count", 1), given.get("timeout", 20.0))
        try:
            events = await _while_connected(request.receive, taking)
        finally:
            feed.end()
        if events is None and not feed.is_read_by(reader):
            raise RefusedError(409, BackPressureError("another request reads this subscription"))
        if events is None and feed.is_ending:
            raise UnknownUidError("this subscription has ended")
        if events is None:
            raise RefusedError(503, WireError("the gateway ends", hint="Come again"))
        return events, missed, feed

    async def _end(self, request: ApiRequest) -> Reply:
        await request.guest.feeds.end(request.guest.feeds.find(request.given["subscription"]))
        return Reply(204, b"")

    # -- archives -----------------------------------------------------------------------------------------------

    async def _query(self, request: ApiRequest) -> Reply:
        conditions = _conditions(request.given)
        limit, seconds = request.given.get("limit", 100), request.given.get("timeout", 30.0)

        def work() -> Found:
            found: list[InfoObject] = []
            size = 0
            query = request.guest.subscriber().open_query(
                _any(request.given["type"]), limit=limit + 1, timeout=seconds, **conditions
            )
            with query:
                try:
                    for obj in query:
                        if len(found) == limit or size >= PAGE_BYTES:
                            break
                        found.append(obj)
                        size += len(obj.metadata) + min(obj.payload_size, INLINE_MOST)
                    else:
                        return Found(tuple(map(_said, found)), False, query.partial, query.left_out)
                except WireTimeoutError:  # the next page goes on behind what came
                    if not found:
                        raise
            return Found(tuple(map(_said, found)), True, query.partial, query.left_out)

        made: Reply = await self._call(lambda: json_reply(200, work()), request.peer)
        return made

    async def _count(self, request: ApiRequest) -> Reply:
        conditions, seconds = _conditions(request.given), request.given.get("timeout", 30.0)
        of, subscriber = _any(request.given["type"]), request.guest.subscriber
        count = await self._call(lambda: subscriber().count(of, timeout=seconds, **conditions), request.peer)
        return json_reply(200, Counted(int(count), count.partial))

    async def _get(self, request: ApiRequest) -> Reply:
        made: Reply = await self._call(lambda: json_reply(200, _said(_object(request))), request.peer)
        return made

    async def _get_event(self, request: ApiRequest) -> Reply:
        mode = request.given.get("mode", "")
        made: Reply = await self._call(lambda: event_reply(_object(request), mode), request.peer)
        return made

    async def _payload(self, request: ApiRequest) -> Reply:
        payload = await self._call(lambda: _object(request).payload, request.peer)  # a large one is read from its file
        return Reply(200, payload, ((b"content-disposition", b"attachment"),), b"application/octet-stream")

    async def _types(self, request: ApiRequest) -> Reply:
        known = await self._call(lambda: request.guest.subscriber().types(), request.peer)
        found = self._guests.seen(request.caller, known)
        return json_reply(200, TypesSaid(tuple(TypeSaid(each.name, each.version) for each in found)))

    async def _say_document(self, _request: ApiRequest) -> Reply:
        return Reply(200, self._document)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result. Raises GoneError when the client has gone before it is there."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneError
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


def _frames(feed: EventFeed, events: Iterable[FeedEvent], *, as_event: bool = False) -> bytes:
    return b"".join(event_frame(feed, event, as_event=as_event) for event in events) or b": alive\n\n"


def event_frame(feed: EventFeed, event: FeedEvent, *, as_event: bool = False) -> bytes:
    """An event of a stream, under an id by which its client can go on."""
    if isinstance(event.what, LossNotice):
        return _sse("lost", _lost(event.what), "" if feed.is_placed else f"{feed.key}-{event.number}")
    feed.is_placed = event.what.platform.position > 0
    place = event.what.platform.place
    data = msgspec.Raw(structured(event.what)) if as_event else _said(event.what)
    return _sse("object", data, place or f"{feed.key}-{event.number}")


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
    asked = guest.subscriber().explain_query(_any(given["type"]), version=_any(given["version"]), whole_name=True)
    if len(asked) > 1:
        raise ConfigurationError(
            f"{len(asked)} archives have this type, and a position is of one", hint="Go on from a time: start="
        )


def _object(request: ApiRequest) -> InfoObject:
    return request.guest.subscriber().get(request.given["object"], 30.0)


def _any(name: str) -> str | None:
    return None if name == "*" else name


def namespaces_of(given: Iterable[str]) -> dict[str, str]:
    """Namespaces of `prefix=uri` texts. Raises ArgumentError."""
    found = {}
    for text in given:
        prefix, equals, uri = text.partition("=")
        if not (prefix and equals and uri):
            raise ArgumentError(f"ns: {text[:60]!r}", hint="It takes prefix=uri", argument="ns")
        found[prefix] = uri
    return found


def _terms(given: Mapping[str, Any]) -> dict[str, Any]:
    """Terms of a subscription, as the adapter calls them. Raises RefusedError, ArgumentError."""
    start: str | None = given.get("start")
    if given.get("latest_by") and start != "last":  # the document can't say that one parameter needs another
        raise RefusedError(422, ArgumentError("latest_by is for start=last", argument="latest_by"))
    return {
        "type_name": _any(given["type"]), "version": _any(given["version"]), "whole_name": True,
        "predicate": given.get("predicate"),
        "payload_filter": given.get("payload_filter"), "namespaces": namespaces_of(given.get("ns", [])),
        "suppress_empty": given.get("suppress_empty", False), "unfiltered": given.get("unfiltered"),
        "latest_by": given.get("latest_by"),
        "start": start, "view": given.get("view") or "metadata",
        "timeout": SUBSCRIBE_SECONDS,
    }  # fmt: skip


_SAME: Final = (
    "predicate", "payload_filter", "suppress_empty", "since", "until", "received", "after", "up_to", "at", "publisher",
    "least_payload", "most_payload", "latest_by", "order", "view", "unfiltered",
)  # fmt: skip


def _conditions(given: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions of a query, as the adapter calls them: `after` is what follows in the order of the answer. Raises
    RefusedError."""
    found = {name: given[name] for name in _SAME if name in given}
    if "after" in found and found.get("order") == "newest":
        if "latest_by" in found:  # below a place others are the newest of their keys
            error = ArgumentError("after is not for latest_by with order=newest", hint="order=oldest", argument="after")
            raise RefusedError(422, error)
        found["before"] = found.pop("after")
    spaces = namespaces_of(given.get("ns", []))
    return {**found, "version": _any(given["version"]), "whole_name": True, "namespaces": spaces}
