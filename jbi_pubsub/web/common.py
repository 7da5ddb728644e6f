"""The Common API over HTTP: connections and sequences are resources, each call one request.

Whoever knows the id of a connection or sequence, which can't be guessed, may use it. A connection that nobody uses for
IDLE_SECONDS ends, with its sequences. Calls block, and each is made on a thread: there are as many as calls may wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, Final

from jbi_pubsub.capi import (
    AttributeDescriptor,
    CapiException,
    Connection,
    ConnectionException,
    ConnectionManager,
    InfoObjectDescriptor,
    MetadataRepository,
    PermissionDeniedException,
    PropertyDescriptor,
    PublisherSequence,
    QuerySequence,
    SequenceStateException,
    SubscriberSequence,
    bindings,
)
from jbi_pubsub.capi.connection import Share
from jbi_pubsub.capi.objects import made
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ArgumentError, BackPressureError

from .listing import (
    Attribute,
    Attributes,
    CapiObjects,
    ConnectionAsked,
    ConnectionSaid,
    Descriptor,
    Descriptors,
    Document,
    Id,
    MissingAnswers,
    QueryAsked,
    ResultCount,
    SequenceAsked,
    SequenceSaid,
)
from .undelivered import UndeliveredObjects

CONNECTIONS_MOST: Final = 32
"""Connections of the Common API at once."""
SEQUENCES_MOST: Final = 64
"""Sequences of one connection."""
CALLS_MOST: Final = 64
"""Calls at once: one that waits for an object holds a thread."""
KEPT_MOST: Final = 16 << 20
"""Bytes of all documents, attributes and predicates, that the sequences of these connections keep."""
IDLE_SECONDS: Final = 120.0
"""Time that a connection may go unused."""

Sequence = PublisherSequence | SubscriberSequence | QuerySequence


@dataclass(eq=False, slots=True)
class _ApiConnection:
    """A connection and its sequences, by their ids."""

    connection: Connection
    used: float
    calls: int = 0
    sequences: dict[str, Sequence] = field(default_factory=dict)
    kept: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of documents, by sequence and attribute; "" for the predicate."""
    undelivered: dict[str, UndeliveredObjects] = field(default_factory=dict)
    """By sequence: objects that have reached no client."""


class Common:
    """All connections. `answer` is of the event loop, all else of its threads; `lock` covers the tables."""

    def __init__(self, config: Config, share: Share, *, user: str = "") -> None:
        """`share`: whose connections they are; `user`: who that is, "" for whoever they say."""
        self.lock = threading.Lock()
        self._user = user
        self._manager = ConnectionManager(config, share)
        self._held: dict[str, _ApiConnection] = {}
        self._of: dict[str, _ApiConnection] = {}
        """By sequence."""
        self._threads = ThreadPoolExecutor(CALLS_MOST, thread_name_prefix="jbi-gateway-capi")
        self._calls = 0

    async def answer(self, name: str, given: Mapping[str, Any], body: Any) -> Any:
        """Result of a call, as a struct; None for nothing. Raises the API's exceptions, ArgumentError, and
        BackPressureError when too many calls are under way. When it is cancelled, its client has gone: what getNext
        takes for that is for the next one."""
        if self._calls >= CALLS_MOST:
            raise BackPressureError(f"{CALLS_MOST} calls of the Common API are under way", hint="Come again")
        self._calls += 1
        gone = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, copy_context().run, self._made, name, given, gone if name == "getNext" else body
        )
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            gone.set()
            running.add_done_callback(partial(self._put_back, given))
            raise

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls -= 1
        if not call.cancelled():
            call.exception()  # known to be looked at, also when its client has gone

    def _put_back(self, given: Mapping[str, Any], call: asyncio.Future[Any]) -> None:
        held = self._of.get(given.get("sequence", ""))
        if held is not None and not (call.cancelled() or call.exception()) and isinstance(call.result(), CapiObjects):
            undelivered = held.undelivered.get(given["sequence"])
            if undelivered is not None:
                undelivered.put_back(call.result().objects)

    def __len__(self) -> int:
        return len(self._held)

    async def end_idle(self) -> None:
        """Destroy connections that nobody uses."""
        now = time.monotonic()
        with self.lock:
            idle = [key for key, held in self._held.items() if not held.calls and now - held.used > IDLE_SECONDS]
        for key in idle:
            await self.answer("destroyConnection", {"connection": key}, None)

    def close(self) -> None:
        """Destroy all."""
        with self.lock:
            held, self._held = list(self._held.values()), {}
            self._of.clear()
        with ThreadPoolExecutor(CONNECTIONS_MOST, thread_name_prefix="jbi-gateway-end") as ending:
            list(ending.map(self._destroy, held))  # each waits for its own node
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _destroy(self, held: _ApiConnection) -> None:
        with contextlib.suppress(CapiException):  # by a call at the same moment; what is lost is logged
            self._manager.destroyConnection(held.connection)

    # -- one call -----------------------------------------------------------------------------------------------

    def _made(self, name: str, given: Mapping[str, Any], body: Any) -> Any:
        if name == "createConnection":
            return self._create_connection(body)
        held = self._find(given)
        held.calls += 1
        try:
            call: Callable[..., Any] = _CALLS.get(name) or getattr(self, f"_{name}")
            if "sequence" not in given:
                return call(held, given, body)
            sequence = held.sequences.get(given["sequence"])
            if sequence is None:
                raise SequenceStateException("the sequence is destroyed, or another connection's", state=3)
            return call(held, sequence, given, body)
        finally:
            held.calls -= 1
            held.used = time.monotonic()

    def _find(self, given: Mapping[str, Any]) -> _ApiConnection:
        with self.lock:
            if "connection" in given:
                held = self._held.get(given["connection"])
                if held is None:
                    raise ConnectionException("there is no such connection", hint="It was destroyed, or left alone")
            else:
                held = self._of.get(given["sequence"])
                if held is None:
                    raise SequenceStateException("there is no such sequence", hint="Its connection has ended", state=3)
            return held

    def _create_connection(self, asked: ConnectionAsked) -> ConnectionSaid:
        if asked.descriptor:
            said = bindings.read(bindings.ConnectionDescriptor, asked.descriptor)
            if said.locator or said.group:
                raise ConnectionException(
                    "the gateway alone says which lookup services are asked", hint="Leave out locator and group"
                )
        with self.lock:
            if len(self._held) >= CONNECTIONS_MOST:
                raise BackPressureError(f"{CONNECTIONS_MOST} connections are there", hint="Destroy one, or come again")
            new = _ApiConnection(self._manager.createConnection(asked.name, asked.descriptor), time.monotonic())
            key = token_hex(16)
            self._held[key] = new
            return ConnectionSaid(key)

    def _destroyConnection(self, held: _ApiConnection, given: Mapping[str, Any], _: None) -> None:  # noqa: N802  # the API's names, here and below
        with self.lock:
            self._held.pop(given["connection"], None)
            self._of = {key: of for key, of in self._of.items() if of is not held}
        self._manager.destroyConnection(held.connection)

    def _authenticate(self, held: _ApiConnection, _: Any, body: Document) -> None:
        said = bindings.read(bindings.Credentials, body.document)
        if self._user and (said.password is not None or said.user not in (None, self._user)):
            raise PermissionDeniedException(
                f"by HTTP you are {self._user}, and nobody else",
                hint="Leave out user and password: give the role alone",
            )
        if said.certificate is not None:
            raise ConnectionException(
                "credentials with a certificate name a folder of the gateway's host", hint="Give user and role"
            )
        held.connection.authenticate(body.document)

    def _createSequence(self, held: _ApiConnection, _: Any, asked: SequenceAsked) -> SequenceSaid:  # noqa: N802
        makers: dict[str, Callable[[str, str], Sequence]] = {
            "publisher": held.connection.createPublisherSequence,
            "subscriber": held.connection.createSubscriberSequence,
            "query": held.connection.createQuerySequence,
        }
        with self.lock:
            known = list(held.sequences.values())
        if sum(sequence.getSequenceState() != 3 for sequence in known) >= SEQUENCES_MOST:
            raise BackPressureError(f"{SEQUENCES_MOST} sequences of this connection are there", hint="Destroy one")
        new, key = makers[asked.kind](asked.type, asked.version), token_hex(16)
        with self.lock:
            held.sequences[key] = new
            self._of[key] = held
            while len(held.sequences) > 2 * SEQUENCES_MOST:  # ids of destroyed ones are known for a while
                gone = next(k for k, sequence in held.sequences.items() if sequence.getSequenceState() == 3)
                del held.sequences[gone], self._of[gone]
        return _sequence(key, new)

    def _destroySequence(self, held: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], __: None) -> None:  # noqa: N802
        held.connection.destroySequence(sequence)
        held.undelivered.pop(given["sequence"], None)
        with self.lock:
            held.kept = {key: size for key, size in held.kept.items() if key[0] != given["sequence"]}

    def _setSequenceAttribute(  # noqa: N802
        self, held: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], body: Document
    ) -> None:
        with self._keeping(held, (given["sequence"], given["name"]), body.document):
            sequence.setSequenceAttribute(given["name"], given["version"], body.document)

    def _setSequencePredicate(  # noqa: N802
        self, held: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], body: Document
    ) -> None:
        if isinstance(sequence, PublisherSequence):
            raise _no_such_call(sequence)
        with self._keeping(held, (given["sequence"], ""), body.document):
            sequence.setSequencePredicate(body.document)
        if isinstance(sequence, SubscriberSequence):
            held.undelivered.pop(given["sequence"], None)

    @contextlib.contextmanager
    def _keeping(self, held: _ApiConnection, key: tuple[str, str], document: str) -> Iterator[None]:
        """Around what keeps a document, which counts from then on. Raises BackPressureError."""
        size = len(document.encode())
        with self.lock:
            before = {key: held.kept[key]} if key in held.kept else {}
            if sum(sum(each.kept.values()) for each in self._held.values()) - before.get(key, 0) + size > KEPT_MOST:
                raise BackPressureError(
                    f"the sequences of these connections keep {KEPT_MOST:,} bytes of documents", hint="Destroy some"
                )
            held.kept[key] = size
        try:
            yield
        except BaseException:
            with self.lock:
                held.kept.pop(key, None)
                held.kept |= before
            raise

    def _publishInfoObject(  # noqa: N802
        self, _: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], body: list[tuple[bytes, bytes]]
    ) -> Id:
        if not isinstance(sequence, PublisherSequence):
            raise _no_such_call(sequence)
        if len(body) != 1:
            raise ArgumentError(
                f"publishInfoObject takes one object, not {len(body)}", hint="publishObjects takes many"
            )
        metadata, payload = body[0]
        named = given.get("type", sequence.getType()), given.get("version", sequence.getVersion())
        return Id(sequence.publishInfoObject(made(*named, payload, metadata or None)))

    def _getNext(  # noqa: N802
        self, held: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], gone: threading.Event
    ) -> CapiObjects:
        if isinstance(sequence, PublisherSequence):
            raise _no_such_call(sequence)
        count = given.get("count", 1) if isinstance(sequence, QuerySequence) else 1
        undelivered = held.undelivered.setdefault(given["sequence"], UndeliveredObjects(sequence))
        return CapiObjects(undelivered.take(count, given["timeout"], gone))

    def _executeQuery(  # noqa: N802
        self, held: _ApiConnection, sequence: Sequence, given: Mapping[str, Any], body: QueryAsked
    ) -> None:
        query = _query(sequence)
        if body.distributed:
            query.executeDistributedQuery(body.timeout)
        else:
            query.executeQuery()
        held.undelivered.pop(given["sequence"], None)

    def _listDescriptors(self, held: _ApiConnection, given: Mapping[str, Any], _: None) -> Descriptors:  # noqa: N802
        of = None
        if "type" in given:
            found = _named({"kind": "type", **given})
            assert isinstance(found, InfoObjectDescriptor)
            of = found
        elif "version" in given:
            raise ArgumentError("a version needs its type", hint="Add type=", argument="version")
        return Descriptors(tuple(_described(each) for each in held.connection.getMetadataRepository().list(of)))


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "connect": lambda held, *_: held.connection.connect(),
    "disconnect": lambda held, *_: held.connection.disconnect(),
    "getNodeDetails": lambda held, *_: held.connection.getNodeDetails(),
    "addDescriptor": lambda held, _, body: _repository(held).add(_descriptor(body)),
    "updateDescriptor": lambda held, _, body: _repository(held).update(_descriptor(body)),
    "removeDescriptor": lambda held, given, _: _repository(held).remove(_named(given)),
    "getDescriptor": lambda held, given, _: _described(_repository(held).get(_named(given))),
    "getSequenceState": lambda _, sequence, given, __: _sequence(given["sequence"], sequence),
    "activateSequence": lambda _, sequence, *__: sequence.activateSequence(),
    "pauseSequence": lambda _, sequence, *__: sequence.pauseSequence(),
    "resumeSequence": lambda _, sequence, *__: sequence.resumeSequence(),
    "getSequenceAttributes": lambda _, sequence, *__: Attributes(
        tuple(Attribute(*each) for each in sequence.getSequenceAttributes())
    ),
    "getSequenceAttribute": lambda _, sequence, given, __: Attribute(
        given["name"], given["version"], sequence.getSequenceAttribute(given["name"], given["version"])
    ),
    "cancelQuery": lambda _, sequence, *__: _query(sequence).cancelQuery(),
    "getMissingAnswers": lambda _, sequence, *__: MissingAnswers(tuple(_query(sequence).getMissingAnswers())),
    "getResultCount": lambda _, sequence, *__: ResultCount(_query(sequence).getResultCount()),
}
"""Calls that are handed on: of a connection, the values of the path and the body; or of a connection, its sequence and
those two."""


def _repository(held: _ApiConnection) -> MetadataRepository:
    return held.connection.getMetadataRepository()


def _no_such_call(sequence: Sequence) -> SequenceStateException:
    return SequenceStateException(
        f"a {sequence.role} sequence has no such call", state=int(sequence.getSequenceState())
    )


def _query(sequence: Sequence) -> QuerySequence:
    """Raises SequenceStateException for a call that its kind of sequence does not have."""
    if not isinstance(sequence, QuerySequence):
        raise _no_such_call(sequence)
    return sequence


def _sequence(key: str, sequence: Sequence) -> SequenceSaid:
    return SequenceSaid(key, sequence.getType(), sequence.getVersion(), int(sequence.getSequenceState()))


def _named(given: Mapping[str, Any]) -> InfoObjectDescriptor | AttributeDescriptor | PropertyDescriptor:
    return _descriptor(
        Descriptor(given["kind"], given["type"], given.get("version", "1.0"), name=given.get("name", ""))
    )


def _descriptor(said: Descriptor) -> InfoObjectDescriptor | AttributeDescriptor | PropertyDescriptor:
    """Raises ArgumentError, and what its calls raise."""
    if said.kind == "property":
        prop = PropertyDescriptor()
        prop.setType(said.type)
        prop.setVersion(said.version)
        if said.name:
            prop.setName(said.name)
        try:
            prop.setValue(base64.b64decode(said.value_base64, validate=True))
        except ValueError as exc:  # or binascii.Error, which is one
            raise ArgumentError(f"value_base64: {exc}", argument="value_base64") from exc
        return prop
    if said.kind == "attribute":
        attribute = AttributeDescriptor()
        attribute.setName(said.type)
        attribute.setXMLSchema(said.schema)
        attribute.setVersion(said.version)
        attribute.setDescription(said.description)
        return attribute
    of_type = InfoObjectDescriptor()
    of_type.setType(said.type)
    of_type.setVersion(said.version)
    of_type.setMetadataXMLSchema(said.schema)
    of_type.setDescription(said.description)
    if said.parent_type:
        of_type.setParentType(said.parent_type, said.parent_version)
    return of_type


def _described(found: InfoObjectDescriptor | AttributeDescriptor | PropertyDescriptor) -> Descriptor:
    if isinstance(found, PropertyDescriptor):
        value = base64.b64encode(found.getValue()).decode()
        return Descriptor("property", found.getType(), found.getVersion(), name=found.getName(), value_base64=value)
    if isinstance(found, AttributeDescriptor):
        return Descriptor(
            "attribute", found.getName(), found.getVersion(), found.getXMLSchema(), found.getDescription()
        )
    return Descriptor(
        "type", found.getType(), found.getVersion(), found.getMetadataXMLSchema(), found.getDescription(),
        found.getParentType(), found.getParentVersion() or "1.0",
    )  # fmt: skip
