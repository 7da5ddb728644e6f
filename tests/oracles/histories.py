"""A server with a past: the exports and frames of an archive, over lists. What it answers is found by lxml alone."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from lxml import etree

from jbi_pubsub import Config
from jbi_pubsub.core.errors import JbiError, PredicateError, UnknownUidError, WireError
from jbi_pubsub.core.history import Explanation, Progress
from jbi_pubsub.core.info_object import InfoObject, Part, Platform, TypeName, encode
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlServer, exported, leasing
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream_socket import StreamSocket, listen, welcome
from jbi_pubsub.core.xpath.predicate import compiled_xpath
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.deliveries import CHUNK, FINISHED, ITEM, LAST_CHUNK, PLACED, POSITION, Heard
from jbi_pubsub.protocol.entries import PAD_TYPE, ArchiveEntry
from jbi_pubsub.protocol.replies import (
    Answers,
    Grant,
    ObjectCount,
    OpenReply,
    QueryEnd,
    QueryExplanation,
    QueryOpened,
    SubscribeReply,
)
from jbi_pubsub.protocol.requests import QueryRequest, Start, SubscriptionRequest
from jbi_pubsub.protocol.services import HISTORY, SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, Claims

CHUNK_BYTES = 1_000
"""Larger objects go in pieces."""


def an_object(
    number: int,
    *,
    published: float = 0.0,
    registration: str = "registration-1",
    type_: str = "t",
    payload: bytes = b"p",
) -> InfoObject:
    """Whose metadata say its number."""
    metadata = f"<m><n>{number}</n><key>{number % 3}</key></m>".encode()
    at = Platform(published or float(number), registration, number, len(metadata), len(payload))
    prefix = registration.rpartition("-")[2]
    return InfoObject(f"{prefix}{number:012x}", TypeName(type_), metadata, payload, at)


class _Stream:
    """What goes out under one number."""

    def __init__(
        self, found: Sequence[tuple[int, InfoObject]], bound: int, *, is_query: bool, most: int = sys.maxsize
    ) -> None:
        self.waiting = deque(found)
        self.count = len(found)
        self.bound = bound
        self.most = most
        self.is_query = is_query
        self.sent = self.consumed = 0
        self.ended = ""
        """How, when it is told; "-": it was."""
        self.places: list[int] = []
        self.acknowledged: list[int] = []

    @property
    def may_send(self) -> bool:
        """Whether the next object goes out now."""
        return bool(self.waiting) and self.sent < self.most and self.sent - self.consumed < self.bound


class _Session:
    """One subscriber: the source of its sender."""

    def __init__(self, name: str) -> None:
        self.streams: dict[int, _Stream] = {}
        self.lock = threading.Lock()
        self.sender = Sender(self, name=name, acked=self._acked)

    def take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:  # noqa: ARG002  # tests send little
        items: list[tuple[Part, ...]] = []
        with self.lock:
            for number, stream in self.streams.items():
                while stream.may_send and len(items) < max_items // 2:
                    position, obj = stream.waiting.popleft()
                    stream.sent += 1
                    stream.places.append(position)
                    items += _items(number, position, obj)
                if stream.is_query and not stream.waiting and stream.ended != "-":
                    end = QueryEnd(stream.ended or "finished", matched=stream.count)  # type: ignore[arg-type]
                    stream.ended = "-"
                    items.append((ITEM.pack(FINISHED, number) + msgspec.msgpack.encode(end),))
        return items

    def is_full(self) -> bool:
        return False

    def is_empty(self) -> bool:
        with self.lock:
            return not any(
                s.may_send or (s.is_query and not s.waiting and s.ended != "-") for s in self.streams.values()
            )

    def _acked(self, count: int, note: memoryview) -> None:  # noqa: ARG002  # nobody asks
        if len(note):
            heard = msgspec.msgpack.decode(note, type=Heard)
            with self.lock:
                for number, consumed in heard.consumed.items():
                    if number in self.streams:
                        self.streams[number].consumed = consumed
                for number, positions in heard.acknowledged.items():
                    self.streams[number].acknowledged += positions
        self.sender.push()


def _items(number: int, position: int, obj: InfoObject) -> list[tuple[Part, ...]]:
    parts = encode(obj)
    if sum(map(len, parts)) <= CHUNK_BYTES:
        return [(ITEM.pack(PLACED, number) + POSITION.pack(position), *parts)]
    data = b"".join(parts)
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    kinds = [CHUNK] * (len(pieces) - 1) + [LAST_CHUNK]
    return [(ITEM.pack(k, number) + POSITION.pack(position) + p,) for k, p in zip(kinds, pieces, strict=True)]


class Past:
    """An archive in the lookup services, with objects at positions 10, 20, ..."""

    def __init__(
        self,
        config: Config,
        objects: Sequence[InfoObject] = (),
        *,
        types: str | None = "t",
        port: str = "0",
        incarnations: tuple[str, ...] = (),
        is_listed: bool = True,
    ) -> None:
        self.incarnations = incarnations
        self.held = [(10 * (at + 1), obj) for at, obj in enumerate(objects)]
        self.server_id = uuid.uuid4().hex
        self.sessions: dict[str, _Session] = {}
        self.queries: list[QueryRequest] = []
        self.subscribed: list[SubscriptionRequest] = []
        self.cancelled: list[int] = []
        self.refusal: JbiError | None = None
        """What queries are answered with instead."""
        self.hangs = threading.Event()
        """Set: opening a query is not answered."""
        self.most = sys.maxsize
        """So many results are sent of a query that is opened: then it hangs."""
        self.durables: dict[tuple[str, str], set[int]] = {}
        """Positions acknowledged, by name and secret."""
        self._let_go = threading.Event()
        self._numbers = itertools.count(1)
        control = ControlServer({SUBSCRIPTIONS: _Subscriptions(self), HISTORY: _History(self)})
        self._endpoint = Endpoint(
            "127.0.0.1",
            int(port),
            name="past",
            security=config.security(),
            control=control.serve,
            data=self._serve_data,
        )
        self._endpoint.start()
        self._community = JoinManager(config, name="past")
        ref = ServiceRef(self.server_id, SUBSCRIPTIONS, (self._endpoint.address,), SUBSCRIPTIONS_METHODS, "")
        entry = ArchiveEntry(types=types, incarnation=incarnations[0] if incarnations else None)
        if is_listed:
            self._community.join(ServiceItem(self.server_id, (PAD_TYPE,), ref, (entry.rep(),)))
            self._community.wait_joined(self.server_id, 60.0)

    @property
    def end(self) -> int:
        return self.held[-1][0] if self.held else 0

    @property
    def address(self) -> str:
        return self._endpoint.address

    def stop(self) -> None:
        self._let_go.set()
        self._community.close()
        for session in self.sessions.values():
            session.sender.stop()
        self._endpoint.stop()

    def die(self) -> None:
        """Without a word, and forgetting its sessions."""
        for session in self.sessions.values():
            session.sender.stop()
        self._endpoint.stop()

    def publish(self, obj: InfoObject) -> None:
        """Behind all others, to all subscriptions."""
        position = self.end + 10
        self.held.append((position, obj))
        for session in self.sessions.values():
            with session.lock:
                for stream in session.streams.values():
                    if not stream.is_query:
                        stream.waiting.append((position, obj))
            session.sender.push()

    def streams(self) -> list[_Stream]:
        return [stream for session in list(self.sessions.values()) for stream in session.streams.values()]

    def open(self, session_id: str, stream: _Stream) -> int:
        session = self.session(session_id)
        number = next(self._numbers)
        with session.lock:
            session.streams[number] = stream
        session.sender.push()
        return number

    def session(self, session_id: str) -> _Session:
        if session_id not in self.sessions:
            raise UnknownUidError(f"no session {session_id[:8]}")
        return self.sessions[session_id]

    def found(self, request: QueryRequest) -> list[tuple[int, InfoObject]]:
        """Naively."""
        spaces = dict(request.namespaces)
        holds: Callable[[Any], Any] = lambda _root: True  # noqa: E731
        if request.predicate:
            holds = compiled_xpath(f"boolean({request.predicate})", spaces)
        found = [
            (position, obj)
            for position, obj in self.held
            if request.after < position <= request.up_to
            and request.type in ("", obj.type.name)
            and request.since <= obj.platform.published <= request.until
            and (request.object_ids is None or obj.object_id in request.object_ids)
            and holds(etree.fromstring(obj.metadata))
        ]
        if request.latest_by:
            key = compiled_xpath(f"string({request.latest_by})", spaces)
            found = sorted({key(etree.fromstring(obj.metadata)): (position, obj) for position, obj in found}.values())
        if request.order == "newest":
            found.reverse()
        return found[: request.limit or None]

    def refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def wait_while_hanging(self) -> None:
        if self.hangs.is_set():
            self._let_go.wait(60.0)
            raise WireError("never mind")

    def _serve_data(self, sock: socket.socket, caller: Caller) -> None:  # noqa: ARG002  # the endpoint's form
        line = StreamSocket(sock)
        hello = listen(line)
        session = self.session(hello.token)
        welcome(line, 0)
        session.sender.start()
        session.sender.run(line, hello.position)


class _Subscriptions:
    def __init__(self, past: Past) -> None:
        self._past = past

    @exported
    @leasing
    def open(self, caller: Caller, name: str, duration: float, claims: Claims) -> OpenReply:  # noqa: ARG002
        session_id = uuid.uuid4().hex
        self._past.sessions[session_id] = _Session(f"past-{session_id[:4]}")
        return OpenReply(session_id, Lease(session_id, duration), self._past.server_id)

    @exported
    @leasing
    def renew(self, caller: Caller, lease_id: str, duration: float) -> float:  # noqa: ARG002
        self._past.session(lease_id)
        return duration

    @exported
    def close(self, caller: Caller, session_id: str) -> None:  # noqa: ARG002
        self._past.sessions.pop(session_id).sender.stop()

    @exported
    def open_deliveries(self, caller: Caller, session_id: str) -> str:  # noqa: ARG002
        self._past.session(session_id)
        return session_id

    @exported
    def subscribe(
        self, caller: Caller, session_id: str, requests: tuple[SubscriptionRequest, ...], duration: float,  # noqa: ARG002
        ages: tuple[float, ...], elapsed: float, claims: Claims,  # noqa: ARG002
    ) -> Answers:  # fmt: skip
        past, answers = self._past, []
        for request in requests:
            past.subscribed.append(request)
            start = request.start
            had = past.durables.setdefault((request.durable, request.secret), set()) if request.durable else set()
            if had:
                start = Start("all")
            first = {"all": 0, "after": start.after, "since": 0, "new": 2**62, "last": past.end - 1}[start.kind]
            found = [
                (position, obj)
                for position, obj in past.held
                if position > first and obj.platform.published >= start.since and position not in had
            ]
            number = past.open(session_id, _Stream(found, request.bound, is_query=False))
            answers.append(SubscribeReply(Grant(number, placed=True)))
        return Answers(tuple(answers), 0.0)

    @exported
    def unsubscribe(self, caller: Caller, right: str, uid: str) -> None:  # noqa: ARG002
        for stream in self._past.session(right).streams.values():
            stream.waiting.clear()


class _History:
    def __init__(self, past: Past) -> None:
        self._past = past

    @exported
    def open_query(self, caller: Caller, session_id: str, request: QueryRequest, claims: Claims) -> QueryOpened:  # noqa: ARG002
        past = self._past
        past.wait_while_hanging()
        past.queries.append(request)
        past.refuse()
        if "refuse" in request.predicate:
            raise PredicateError("not here", argument="predicate")
        number = past.open(session_id, _Stream(past.found(request), request.bound, is_query=True, most=past.most))
        return QueryOpened(number, past.end, incarnations=past.incarnations)

    @exported
    def cancel_query(self, caller: Caller, session_id: str, number: int) -> None:  # noqa: ARG002
        past = self._past
        past.cancelled.append(number)
        session = past.session(session_id)
        with session.lock:
            stream = session.streams[number]
            stream.waiting.clear()
            stream.ended = stream.ended or "cancelled"
        session.sender.push()

    @exported
    def progress(self, caller: Caller, session_id: str, number: int) -> Progress:  # noqa: ARG002
        stream = self._past.session(session_id).streams[number]
        return Progress(matched=stream.sent, candidates=stream.count, verified=stream.sent, end=5)

    @exported
    def count(self, caller: Caller, request: QueryRequest, seconds: float, claims: Claims) -> ObjectCount:  # noqa: ARG002
        self._past.refuse()
        return ObjectCount(len(self._past.found(request)), incarnations=self._past.incarnations)

    @exported
    def reset(self, caller: Caller, name: str, secret: str, start: Start, claims: Claims) -> bool:  # noqa: ARG002
        had = self._past.durables.get((name, secret))
        if had is not None:
            had.clear()
            had.update(position for position, _ in self._past.held if position <= start.after)
        return had is not None

    @exported
    def explain_query(self, caller: Caller, request: QueryRequest, claims: Claims) -> QueryExplanation:  # noqa: ARG002
        self._past.refuse()
        return QueryExplanation(Explanation((), len(self._past.held), 0, False, 0.1))
