"""Sequences: one publication, subscription or series of queries of a type, with its state.

A sequence is compiled to a registration, a subscription or queries of the adapters when it is activated; attributes
and callback belong to that, and are set before. Times are in milliseconds. All calls may come from any thread, and
from within callbacks. A call for which the state is wrong raises SequenceStateException, of a paused one that would
bring or take objects PausedSequenceException, and has changed nothing.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn, Protocol

from jbi_pubsub.core import info_object
from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    InvariantError,
    JbiError,
    MetadataError,
    SchemaError,
    TypeConflictError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import LossNotice, TypeName, prefix_of
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.subscriber import Query, SubscriberAdapter, SubscriptionUid

from . import bindings
from .attributes import Attributes, Role, SequenceAttribute
from .bindings import Document
from .callbacks import QueryCallback, SequenceCallback
from .errors import (
    InvalidPayloadException,
    ObjectUnavailableException,
    PausedSequenceException,
    PlatformFailureException,
    SequenceStateException,
    TimeoutException,
    UnrecognizedObjectTypeException,
    call,
    part_of,
)
from .objects import InfoObject, come
from .predicate import read_predicate

log = logging.getLogger("jbi_pubsub.capi")

QUERY_MS: Final = 3_600_000
"""For a query that names no time of its own."""
MS_MOST: Final = 31_536_000
"""To wait for an object: some 9 hours."""
COUNT_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""Within which who waits for an object is told that the rules do not allow it."""
REGISTRATIONS_MOST: Final = 16
"""Registrations of a publisher sequence whose objects differ in what their type calls invariant."""
_NAME: Final = re.compile(r"([A-Za-z_][\w.-]*)(:(?!:))?")
"""A name, and whether it is a prefix. Each is looked at once: of a long one not what it ends with as well."""

_claiming: Final = threading.Lock()
"""Covers that of two sequences one has a durable name."""


class SequenceState(enum.IntEnum):
    """State of a sequence."""

    NEW = 0
    ACTIVE = 1
    PAUSED = 2
    DESTROYED = 3


NEW, ACTIVE, PAUSED, DESTROYED = SequenceState


class Left(NamedTuple):
    """A durable sequence that waits in this process for whoever opens it again."""

    conditions: object
    uid: SubscriptionUid
    deliverer: _Deliverer | None


class Owner(Protocol):
    """The connection of a sequence."""

    owner: str
    """Owner whose publications are the connection's own."""
    durables: dict[str, Left | None]
    """Durable sequences of this process, by their names: open (None), or left by a connection that has ended while
    others go on."""

    def publisher(self, *, compress: bool | None) -> tuple[PublisherAdapterLight, DelegateUid]:
        """The adapter to publish with."""
        ...

    def subscriber(self) -> SubscriberAdapter:
        """The adapter to subscribe and ask with."""
        ...

    def node_addresses(self) -> list[str]:
        """Addresses of the node that it is connected to now."""
        ...

    def forget(self, sequence: InfoObjectSequence) -> None:
        """Forget a sequence that is destroyed."""
        ...


class InfoObjectSequence:
    """Base of all sequences."""

    role: Role

    def __init__(self, connection: Owner, type_: TypeName) -> None:
        self._connection = connection
        self._type = type_
        self._lock = threading.Lock()
        self._state = NEW
        self._is_changing = False
        """A call is about to change the state: others that would have to wait for what it does, and are refused."""
        self._attributes = Attributes(self.role)

    # -- state --------------------------------------------------------------------------------------------------

    @call
    def activateSequence(self) -> None:
        """Open it: from now on it stands at the node. Raises SequenceStateException unless it is new, and what opening
        it raises: PermissionDeniedException, UnrecognizedObjectTypeException, InvalidPredicateException ..."""
        with self._change(NEW, to=ACTIVE, undo=self._close):
            self._open()

    @call
    def pauseSequence(self) -> None:
        """Have nothing published, or delivered, until `resumeSequence`. What comes waits, within bounds."""
        with self._change(ACTIVE, to=PAUSED):
            self._pause()

    @call
    def resumeSequence(self) -> None:
        """Go on."""
        with self._change(PAUSED, to=ACTIVE):
            self._resume()

    @call
    def getSequenceState(self) -> SequenceState:
        """0 new, 1 active, 2 paused, 3 destroyed."""
        return self._state

    @call
    def getType(self) -> str:
        """The name of its type."""
        return self._type.name

    @call
    def getVersion(self) -> str:
        """The version of its type."""
        return self._type.version

    # -- attributes ---------------------------------------------------------------------------------------------

    @call
    def setSequenceAttribute(self, name: str, version: str, document: str) -> None:
        """Set an attribute by its document, while the sequence is new. Raises ObjectUnavailableException for one that
        it does not have, UnsupportedVersionException, InvalidMetadataException, SequenceStateException."""
        with self._lock:
            self._require(NEW)
            self._attributes.read(name, version, document)

    @call
    def getSequenceAttribute(self, name: str, version: str) -> str:
        """The document of an attribute as it was set, by either form. Raises ObjectUnavailableException when it is not
        set, or not known, UnsupportedVersionException, SequenceStateException for a destroyed sequence."""
        with self._lock:
            self._require(NEW, ACTIVE, PAUSED)
            return self._attributes.written(name, version)

    @call
    def getSequenceAttributes(self) -> list[SequenceAttribute]:
        """All that are set, by name. Raises SequenceStateException for a destroyed sequence."""
        with self._lock:
            self._require(NEW, ACTIVE, PAUSED)
            return self._attributes.all()

    @call
    def setValidationAttribute(self, wellFormed: bool, valid: bool) -> None:
        """Whether metadata must be well-formed, and valid by the schema that is registered for the type: what is not is
        refused by a publisher sequence, and not delivered by the others. Same as attribute `Validation`."""
        self._put(
            bindings.ValidationAttribute(validate_xml_is_well_formed=wellFormed, validate_xml_against_schema=valid)
        )

    def _put(self, value: Document) -> None:
        with self._lock:
            self._require(NEW)
            self._attributes.put(value)

    # -- inside -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open it at the platform."""

    def _close(self) -> None:
        """Undo that; nothing to undo is fine."""

    def _pause(self) -> None: ...

    def _resume(self) -> None: ...

    def destroy(self, *, leave: bool = False) -> None:
        """For the connection. `leave`: what outlives its client is left for the next time. Raises
        SequenceStateException when it is destroyed already."""
        with self._lock:
            self._require(NEW, ACTIVE, PAUSED)
            self._state = DESTROYED
            is_changing = self._is_changing
        try:
            if not is_changing:  # else whoever is about to open it closes it again
                self._leave() if leave else self._close()
        finally:
            self._connection.forget(self)  # not before: it is told what the node refuses until then

    def _leave(self) -> None:
        self._close()

    @contextmanager
    def _change(
        self, *states: SequenceState, to: SequenceState, undo: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Go to another state by what is done inside, without the lock; if that fails the state stays. `undo`: it was
        destroyed meanwhile."""
        with self._lock:
            self._require(*states)
            if self._is_changing:
                raise SequenceStateException("another call is about to change the state of this sequence")
            self._is_changing = True
        done = False
        try:
            yield
            done = True
        finally:
            with self._lock:
                self._is_changing = False
                is_destroyed = self._state is DESTROYED
                if done and not is_destroyed:
                    self._state = to
            if is_destroyed:
                undo() if to is ACTIVE and states == (NEW,) else self._close()
        if is_destroyed:
            self._require(*states)

    def _require(self, *states: SequenceState) -> None:
        """Raises SequenceStateException."""
        state = self._state
        if state in states:
            return
        needed = " or ".join(each.name.lower() for each in states)
        raise SequenceStateException(
            f"the sequence of {self._type} is {state.name.lower()}; this is for one that is {needed}",
            hint="" if state is not NEW else "Call activateSequence() first",
            state=int(state),
        )

    def _require_active(self) -> None:
        """Raises PausedSequenceException, SequenceStateException."""
        if self._state is PAUSED:
            raise PausedSequenceException(
                f"the sequence of {self._type} is paused", hint="Call resumeSequence() first", state=int(PAUSED)
            )
        self._require(ACTIVE)


class PublisherSequence(InfoObjectSequence):
    """Publishes objects of one type."""

    role = "publisher"

    def __init__(self, connection: Owner, type_: TypeName) -> None:
        super().__init__(connection, type_)
        self._at: tuple[PublisherAdapterLight, DelegateUid] | None = None
        self._registrations: list[RegistrationUid] = []
        """One; of a type with invariant elements, and none said, one for each set of their values, the last first."""
        self._registering = threading.Lock()
        self._refusal: JbiError | None = None
        """Refusal of an object that was on its way: the next call raises it."""

    def publishInfoObject(self, io: InfoObject) -> str:
        """Publish an object of the sequence's type; its id. It is checked here, and then on its way. Raises
        PausedSequenceException, SequenceStateException, UnrecognizedObjectTypeException (of another type),
        InvalidMetadataException, InvalidPayloadException, ObjectSizeException, PermissionDeniedException (the rules
        have changed), PlatformFailureException (the node takes no more, or is away for long); and, having published
        nothing, why the node has refused an object that was on its way when the call before returned: its id is in the
        text."""
        at, registrations = self._at, self._registrations
        if (
            self._state is ACTIVE and type(io) is InfoObject and io._type is self._type and self._refusal is None
            and at is not None and registrations
        ):  # fmt: skip
            try:
                io._id = found = at[0].publish(registrations[0], io._metadata, io._payload)
            except InvariantError:
                pass  # another registration takes it
            except JbiError as exc:
                self._fail(exc)
            else:
                return found
        return self._publish_info_object(io)

    @call
    @part_of("PublisherSequence.publishInfoObject")
    def _publish_info_object(self, io: InfoObject) -> str:
        at = self._at
        if self._state is not ACTIVE or at is None:
            self._require_active()
            raise SequenceStateException("the sequence is about to change its state")
        if io._type != self._type:
            raise UnrecognizedObjectTypeException(
                f"the object is of {io._type}, the sequence of {self._type}", hint="Create a sequence for its type"
            )
        self._raise_refusal()
        try:
            io._id = found = self._publish(at[0], at[1], io)
        except JbiError as exc:
            self._fail(exc)
        return found

    @call
    def _fail(self, exc: JbiError) -> NoReturn:
        """Tell why an object was not published."""
        if isinstance(exc, UnknownUidError):  # destroyed at the same moment
            self._require_active()
        if isinstance(exc, MetadataError) and (
            isinstance(exc.__cause__, OSError) or exc.facts.get("argument") == "payload"
        ):
            raise InvalidPayloadException(exc.message, hint=exc.hint) from exc  # a file that can't be read
        raise exc

    def _publish(self, light: PublisherAdapterLight, delegate: DelegateUid, io: InfoObject) -> str:
        for registration in self._registrations:
            try:
                return light.publish(registration, io._metadata, io._payload)
            except InvariantError:
                if self._attributes.get(bindings.InvariantsAttribute) is not None:
                    raise
        with self._registering:
            if self._at is None:  # destroyed meanwhile: nobody would end the registration
                self._require_active()
            registration = self._registered(light, delegate, invariants=io._metadata or None)
            former = self._registrations
            self._registrations = [registration, *former][:REGISTRATIONS_MOST]
        for each in former[REGISTRATIONS_MOST - 1 :]:
            light.unregister_publisher(each)
        return light.publish(registration, io._metadata, io._payload)

    @call
    def setReliableDeliveryAttribute(self, reliable: bool, ms: int) -> None:
        """Whether what was under way when the node went away is sent again; `ms`: after so long an object that still
        waits, here or for a subscriber, is given up, 0 for never. Same as attribute `ReliableDelivery`."""
        _check_ms("setReliableDeliveryAttribute", ms, bindings.YEAR_MS)
        self._put(bindings.ReliableDeliveryAttribute(reliable=reliable, expiration=ms))

    @call
    def setPersistenceAttribute(self, on: bool) -> None:
        """Whether publications are archived; else the node's rules say. Same as attribute `Persistence`."""
        self._put(bindings.PersistenceAttribute(persist=on))

    @call
    def setCompressionAttribute(self, on: bool) -> None:
        """Whether publications are compressed on their way to the node; else [link] compression says. Same as attribute
        `Compression`."""
        self._put(bindings.CompressionAttribute(compress=on))

    @call
    def setLocalAttribute(self, on: bool) -> None:
        """Whether publications are for subscribers of this node alone. Same as attribute `Local`."""
        self._put(bindings.LocalAttribute(local_only=on))

    @call
    def setOrderAttribute(self, on: bool) -> None:
        """Whether objects have to come in the order of their publication, which they do in any case. Same as attribute
        `Order`."""
        self._put(bindings.OrderAttribute(in_order=on))

    @call
    def setInvariantsAttribute(self, metadata: str) -> None:
        """A metadata document whose invariant elements hold for all publications, of a type that has such: subscribers'
        templates match them before anything is published. Same as attribute `Invariants`."""
        _check_text("setInvariantsAttribute", "metadata", metadata, 1 << 20)
        self._put(bindings.InvariantsAttribute(metadata=metadata))

    def refused(self, uid: str, error: JbiError) -> None:
        """For the connection: the node has refused an object that was fine here, or a lookup service to list a
        registration."""
        if self._refusal is None:
            is_listed = uid not in self._registrations
            what = f"object {uid} was refused" if is_listed else f"a lookup service does not list {uid}"
            told = f"{what}: {error.message}"
            self._refusal = type(error)(told, hint=error.hint, **error.facts)

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def published(self, uid: str) -> bool:
        """For the connection: whether the object, or registration, is one of its own."""
        return uid in self._registrations or any(uid.startswith(prefix_of(each)) for each in self._registrations)

    def _open(self) -> None:
        compression = self._attributes.get(bindings.CompressionAttribute)
        light, delegate = self._connection.publisher(compress=None if compression is None else compression.compress)
        try:
            self._registrations = [self._registered(light, delegate)]
        except ArgumentError as exc:
            if exc.facts.get("argument") != "invariants":
                raise
        self._at = light, delegate

    def _registered(self, light: PublisherAdapterLight, delegate: DelegateUid, **more: bytes | None) -> RegistrationUid:
        """A new registration. Who says nothing of validation publishes what nobody has a schema of as well."""
        given = {
            "type_name": self._type.name, "version": self._type.version,
            **self._attributes.publishing(self._connection.owner), **more,
        }  # fmt: skip
        try:
            return light.register_publisher(delegate, **given)
        except SchemaError as exc:
            if "validate" in given or isinstance(exc, TypeConflictError):
                raise
        return light.register_publisher(delegate, **given, validate=False)

    def _close(self) -> None:
        at, self._at = self._at, None
        with self._registering:
            registrations = list(self._registrations)
        try:
            if at is not None:
                for registration in registrations:
                    at[0].unregister_publisher(registration)
        finally:
            self._registrations = []
        self._raise_refusal()

    def _leave(self) -> None:
        """Its registrations end with the connection's to the node, which waits once for what all have published."""
        self._at = None
        self._raise_refusal()


class _Deliverer:
    """Tells a sequence's callback (a SubscriptionListener)."""

    def __init__(self, callback: SequenceCallback) -> None:
        self.callback = callback

    def arrived(self, _subscription: SubscriptionUid, obj: info_object.InfoObject) -> None:
        """An object has come."""
        called(self.callback.infoObjectAvailable, come(obj))

    def lost(self, _subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Objects were lost."""
        told = getattr(self.callback, "infoObjectsLost", None)
        if told is not None:
            called(told, notice.cause.value, notice.count)


class SubscriberSequence(InfoObjectSequence):
    """Gets the objects of one type that its predicate is true for, by a callback or by `getNext`."""

    role = "subscriber"

    def __init__(self, connection: Owner, type_: TypeName) -> None:
        super().__init__(connection, type_)
        self._predicate = ""
        self._callback: SequenceCallback | None = None
        self._deliverer: _Deliverer | None = None
        self._at: tuple[SubscriberAdapter, SubscriptionUid] | None = None

    @call
    def setSequenceCallback(self, callback: SequenceCallback) -> None:
        """Have objects told to `callback`, on a thread of the library, instead of `getNext`. While the sequence is new.
        Raises SequenceStateException."""
        with self._lock:
            self._require(NEW)
            self._callback = callback

    @call
    def setSequencePredicate(self, document: str) -> None:
        """The predicate, over the metadata combined with what the platform says (docs/capi.md), as its document; not
        while the sequence is active. Of a paused one it counts from now on: what waits by the former one is given up.
        Raises InvalidPredicateException, PredicateLanguageException, SequenceStateException."""
        expression = read_predicate(document).expression
        _check_predicate(expression)
        with self._lock:
            self._require(NEW, PAUSED)
            if self._state is NEW:
                self._predicate = expression
                return
        if self._attributes.get(bindings.DurableAttribute) is not None:
            raise SequenceStateException(
                "the predicate of a durable sequence is that which it was opened with", hint="Make another one"
            )
        with self._change(PAUSED, to=PAUSED):
            former, before, self._predicate = self._at, self._predicate, expression
            try:
                self._open()
                self._pause()
            except JbiError:
                self._at, self._predicate = former, before
                raise
            if former is not None:
                former[0].cancel_subscription(former[1])

    def getNext(self, timeout: float) -> InfoObject:
        """The next object, within `timeout` ms. Raises TimeoutException, PermissionDeniedException (the rules do not
        allow it, or not any more; when they do it goes on by itself), PausedSequenceException, also when it is paused
        meanwhile, SequenceStateException, also when it is destroyed meanwhile or has a callback."""
        at = self._at
        if (
            self._state is ACTIVE and at is not None and self._callback is None and type(timeout) in (int, float)
            and 0 <= timeout <= MS_MOST
        ):  # fmt: skip
            left = timeout / 1000
            try:
                while (obj := at[0].receive(at[1], min(left, LOOK_SECONDS))) is None:
                    left -= LOOK_SECONDS
                    if left <= 0 or self._state is not ACTIVE or isinstance(at[0].refusal(at[1]), AccessDeniedError):
                        break
                else:
                    return come(obj)
            except UnknownUidError:  # destroyed at the same moment
                pass
        return self._nothing(timeout)

    @call
    @part_of("SubscriberSequence.getNext")
    def _nothing(self, timeout: float) -> NoReturn:
        """Tell why nothing came."""
        _check_ms("getNext", timeout, MS_MOST)
        self._require_active()
        if self._callback is not None:
            raise SequenceStateException("this sequence has a callback, which gets its objects")
        if (at := self._at) is None:
            raise SequenceStateException("the sequence is about to change its state")
        if isinstance(refusal := at[0].refusal(at[1]), AccessDeniedError):
            raise refusal
        raise TimeoutException(f"no object of {self._type} came within {timeout:g} ms")

    @call
    def setNamespacePrefixes(self, prefixes: Mapping[str, str]) -> None:
        """Set what prefixes stand for in the predicate; those of [client] namespaces (`og`) hold for others. Same as
        attribute `NamespacePrefixes`."""
        self._put(_prefixes(prefixes))

    @call
    def setLocalAttribute(self, on: bool) -> None:
        """Whether objects of this node's own publishers alone are wanted. Same as attribute `Local`."""
        self._put(bindings.LocalAttribute(local_only=on))

    @call
    def setOwnPublicationsAttribute(self, on: bool) -> None:
        """Whether what this connection publishes is wanted; it is by default. Same as attribute `OwnPublications`."""
        self._put(bindings.OwnPublicationsAttribute(receive_own=on))

    @call
    def setOrderAttribute(self, on: bool) -> None:
        """Whether the objects of a publisher have to come in order, which they do in any case. Same as attribute
        `Order`."""
        self._put(bindings.OrderAttribute(in_order=on))

    @call
    def setDurableAttribute(self, id: str) -> None:  # noqa: A002  # the API's word
        """Have the node remember, under this name, how far the sequence has come while its client is away: who opens it
        again gets what was published meanwhile. `destroySequence` ends it for good; leaving does not. Same as attribute
        `Durable`."""
        _check_text("setDurableAttribute", "id", id, 1_024)
        self._put(bindings.DurableAttribute(id=id))

    @call
    def setLatestAttribute(self, key: str) -> None:
        """Begin with the newest archived object of each value of `key`, an XPath. Same as attribute `Latest`."""
        _check_text("setLatestAttribute", "key", key, 32_768)
        self._put(bindings.LatestAttribute(key=key))

    def _open(self) -> None:
        adapter = self._connection.subscriber()
        durable, durables = self._durable(), self._connection.durables
        left = self._claimed(durable) if durable else None
        if left is not None:
            self._at = adapter, self._take_up(left)
        else:
            self._deliverer = _Deliverer(self._callback) if self._callback is not None else None
            try:
                uid = adapter.register_subscriber(
                    type_name=self._type.name, version=self._type.version, predicate=self._predicate or None,
                    view="combined", listener=self._deliverer, **self._attributes.subscribing(self._connection.owner),
                )  # fmt: skip
            except BaseException:
                durables.pop(durable, None)
                raise
            self._at = adapter, uid
        adapter.resume(self._at[1])

    def _claimed(self, durable: str) -> Left | None:
        """State that it left in this process; it is this sequence's from now on. Raises SequenceStateException."""
        durables = self._connection.durables
        with _claiming:
            if durable in durables:
                if (left := durables[durable]) is None:
                    raise SequenceStateException(f"the durable sequence {durable!r} is open in this process")
                if left.conditions != self._conditions():
                    raise SequenceStateException(
                        f"the durable sequence {durable!r} was left in this process with another type, predicate or "
                        "attributes",
                        hint="Open it as it was, or when all connections of the process have ended",
                    )
            left, durables[durable] = durables.get(durable), None
            return left

    def _take_up(self, left: Left) -> SubscriptionUid:
        """A durable sequence that was left in this process."""
        self._deliverer = left.deliverer
        if self._deliverer is not None and self._callback is not None:
            self._deliverer.callback = self._callback
        return left.uid

    def _conditions(self) -> object:
        return self._type, self._predicate, self._attributes.all(), self._callback is not None

    def _durable(self) -> str:
        found = self._attributes.get(bindings.DurableAttribute)
        return found.id if found is not None else ""

    def _close(self) -> None:
        at, self._at = self._at, None
        if at is not None:
            self._connection.durables.pop(self._durable(), None)
            at[0].cancel_subscription(at[1])

    def _leave(self) -> None:
        """A durable one stays with the adapter, silent, until that is closed: the node takes what it has not given out
        for what its client has not had."""
        at, durable = self._at, self._durable()
        if at is None or not durable:
            self._close()
        else:
            at[0].pause(at[1])
            self._connection.durables[durable] = Left(self._conditions(), at[1], self._deliverer)

    def _pause(self) -> None:
        if self._at is not None:
            self._at[0].pause(self._at[1])

    def _resume(self) -> None:
        if self._at is not None:
            self._at[0].resume(self._at[1])


class _Teller:
    """Tells a query's callback (a QueryListener)."""

    def __init__(self, callback: QueryCallback) -> None:
        self._callback = callback

    def arrived(self, query: Query, obj: info_object.InfoObject) -> None:  # noqa: ARG002  # the protocol's parameter
        """The next result."""
        called(self._callback.infoObjectAvailable, come(obj))

    def finished(self, query: Query, state: str) -> None:
        """Nothing comes any more."""
        try:
            if query.partial and (incomplete := getattr(self._callback, "queryIncomplete", None)) is not None:
                called(incomplete, list(query.partial))
        finally:
            if (told := getattr(self._callback, "queryFinished", None)) is not None:
                called(told, state)


class QuerySequence(InfoObjectSequence):
    """Asks archives for objects of one type, one query after the other."""

    role = "query"

    def __init__(self, connection: Owner, type_: TypeName) -> None:
        super().__init__(connection, type_)
        self._predicate = ""
        self._query: Query | None = None
        self._has_callback = False
        self._is_distributed = False
        self._is_asking = False

    @call
    def setSequencePredicate(self, document: str) -> None:
        """The predicate of the next query, over the metadata combined with what the platform says, as its document.
        Raises InvalidPredicateException, PredicateLanguageException, SequenceStateException for a destroyed one."""
        expression = read_predicate(document).expression
        _check_predicate(expression)
        with self._lock:
            self._require(NEW, ACTIVE, PAUSED)
            self._predicate = expression

    @call
    def executeQuery(self, callback: QueryCallback | None = None) -> None:
        """Ask the archive of the node that the connection is at; without a predicate for all objects of the type.
        Results come to `callback`, or by `getNext`. What was published and acknowledged before is seen. Raises
        PausedSequenceException, SequenceStateException (also while a former query has results that were not taken),
        UnrecognizedObjectTypeException (the archive has none of that type), ObjectUnavailableException (the node has no
        archive), PermissionDeniedException, PlatformFailureException."""
        self._execute(callback, QUERY_MS, at=self._connection.node_addresses())

    @call
    def executeDistributedQuery(self, timeout: float, callback: QueryCallback | None = None) -> None:
        """The same of all archives that can be found, for `timeout` ms at most; each object comes once. An archive that
        does not answer is left out, and named by `getMissingAnswers`. Raises as `executeQuery`."""
        _check_ms("executeDistributedQuery", timeout)
        if timeout <= 0:
            raise ArgumentError("executeDistributedQuery: timeout is 0 ms", hint="It needs some time")
        self._execute(callback, timeout, at=None)

    @call
    def getNext(self, count: int, timeout: float) -> list[InfoObject]:
        """The next `count` results: fewer when there are no more, or `timeout` ms are over; [] at the end. Raises
        TimeoutException when none came within that time, PausedSequenceException, SequenceStateException (there is no
        query, or it has a callback), PlatformFailureException (the query failed, or there are no more though the
        archive of `executeQuery` has not told all)."""
        _check_ms("getNext", timeout)
        if count < 1:
            raise ArgumentError(f"getNext: count is {count}", hint="It takes a number from 1 on")
        self._require_active()
        query = self._asked()
        if self._has_callback:
            raise SequenceStateException("this query has a callback, which gets its results")
        found = query.get_next(count, timeout / 1000)
        if not found and query.state == "running":
            self._require_active()
            raise TimeoutException(f"no result came within {timeout:g} ms")
        if not found and query.state == "cancelled":
            self._require_active()
        if not found:
            self._check_complete(query.partial)
        return [come(obj) for obj in found]

    @call
    def cancelQuery(self) -> None:
        """No results any more. Raises SequenceStateException when there is no query; one that has ended stays so."""
        self._asked().cancel()

    @call
    def getResultCount(self) -> int:
        """Number of results that the query has, taken or not; of those that are asked again, as they are now. Raises
        PausedSequenceException, SequenceStateException when there is no query, TimeoutException,
        PlatformFailureException (the archive of `executeQuery` could not count all)."""
        self._require_active()
        query = self._asked()
        count = query.count(COUNT_SECONDS)
        self._check_complete(count.partial)
        return int(count)

    @call
    def getMissingAnswers(self) -> list[str]:
        """The archives (addresses) that have not answered the query to the end so far, each with the reason: what they
        have is not among the results. Raises SequenceStateException when there is no query."""
        return list(self._asked().partial)

    @call
    def setNamespacePrefixes(self, prefixes: Mapping[str, str]) -> None:
        """Set what prefixes stand for in the predicate; those of [client] namespaces (`og`) hold for others. Same as
        attribute `NamespacePrefixes`."""
        self._put(_prefixes(prefixes))

    @call
    def setLatestAttribute(self, key: str) -> None:
        """Take only the newest object of each value of `key`, an XPath. Same as attribute `Latest`."""
        _check_text("setLatestAttribute", "key", key, 32_768)
        self._put(bindings.LatestAttribute(key=key))

    def _execute(self, callback: QueryCallback | None, timeout: float, *, at: list[str] | None) -> None:
        with self._lock:
            self._require_active()
            if self._is_asking or (self._query is not None and self._query.state == "running"):
                raise SequenceStateException(
                    "this sequence has a query under way", hint="Take all its results, or call cancelQuery()"
                )
            self._is_asking = True
            predicate = self._predicate
        query: Query | None = None
        try:
            query = self._connection.subscriber().open_query(
                self._type.name, version=self._type.version, predicate=predicate or None, view="combined",
                timeout=timeout / 1000, at=at, listener=_Teller(callback) if callback is not None else None,
                **self._attributes.querying(),
            )  # fmt: skip
        except UnknownUidError as exc:
            raise _no_archive(exc) from exc
        finally:
            with self._lock:
                self._is_asking = False
                state = self._state
                if query is not None and state is not DESTROYED:
                    self._query, self._has_callback, self._is_distributed = query, callback is not None, at is None
        if state is PAUSED:
            query.pause()
        elif state is DESTROYED:
            query.cancel()
            self._require_active()

    def _asked(self) -> Query:
        """Raises SequenceStateException."""
        self._require(ACTIVE, PAUSED)
        query = self._query
        if query is None:
            raise SequenceStateException("nothing was asked", hint="Call executeQuery() first", state=int(self._state))
        return query

    def _check_complete(self, partial: Sequence[str]) -> None:
        """Raises PlatformFailureException where one archive was asked, which has not told all."""
        if partial and not self._is_distributed:
            raise PlatformFailureException(f"the archive has not told all: {'; '.join(partial)}", hint="Ask again")

    def _open(self) -> None:
        self._connection.subscriber()

    def _close(self) -> None:
        query = self._query
        if query is not None:
            query.cancel()

    def _pause(self) -> None:
        if self._query is not None:
            self._query.pause()

    def _resume(self) -> None:
        if self._query is not None:
            self._query.resume()


def _no_archive(exc: UnknownUidError) -> JbiError:
    """No archive has the type, or there is none to ask."""
    if exc.facts.get("type"):
        return UnrecognizedObjectTypeException(exc.message, hint=exc.hint, **exc.facts)
    return ObjectUnavailableException(
        exc.message, hint="executeDistributedQuery asks all archives that there are; " + exc.hint, **exc.facts
    )


def _check_predicate(expression: str) -> None:
    """Whatever its prefixes stand for, which is said when it is used. Raises InvalidPredicateException."""
    compile_predicate(
        expression, namespaces=dict.fromkeys((name for name, colon in _NAME.findall(expression) if colon), "urn:any")
    )


def _prefixes(prefixes: Mapping[str, str]) -> bindings.NamespacePrefixesAttribute:
    for prefix, uri in prefixes.items():
        _check_text("setNamespacePrefixes", "prefix", prefix, 1_024)
        _check_text("setNamespacePrefixes", "uri", uri, 1_024)
    if len(prefixes) > 100:
        raise ArgumentError(f"setNamespacePrefixes: {len(prefixes)} prefixes", hint="It takes 100")
    return bindings.NamespacePrefixesAttribute(
        mapping=tuple(bindings.NamespaceMapping(prefix=prefix, uri=uri) for prefix, uri in prefixes.items())
    )


def _check_ms(spoken: str, ms: float, most: float | None = None) -> None:
    """Raises ArgumentError."""
    if not ms >= 0 or (most is not None and ms > most):
        raise ArgumentError(f"{spoken}: {ms} is no time in ms", hint="It takes milliseconds, from 0 on", call=spoken)


def _check_text(spoken: str, name: str, text: str, most: int) -> None:
    """Raises ArgumentError."""
    if not 1 <= len(text) <= most:
        raise ArgumentError(
            f"{spoken}: {name} has {len(text)} characters", hint=f"It takes 1 to {most}", call=spoken, argument=name
        )
