"""Sequences: one publication, subscription or series of queries of a type, with its state.

A sequence is compiled to a registration, a subscription or queries of the adapters when it is activated; attributes
and callback belong to that, and are set before. Times are in milliseconds. All calls may come from any thread, and
from within callbacks. A call for which the state is wrong raises SequenceStateException, of a paused one that would
bring or take objects PausedSequenceException, and has changed nothing.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn, Protocol

from jbi_pubsub.core import info_object
from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ArgumentError,
    JbiError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import LossNotice, TypeName
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid

from . import bindings
from .attributes import Role, SequenceAttribute, SequenceAttributes
from .bindings import Document
from .callbacks import SequenceCallback
from .errors import (
    PausedSequenceException,
    SequenceStateException,
    TimeoutException,
    call,
    part_of,
)
from .objects import InfoObject, come
from .predicate import read_predicate

MS_MOST: Final = 31_536_000
"""To wait for an object: some 9 hours."""
LOOK_SECONDS: Final = 1.0
"""Within which who waits for an object is told that the rules do not allow it."""

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
    deliverer: SequenceListener | None


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
        self._attributes = SequenceAttributes(self.role)

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


class SequenceListener:
    """A sequence's callback as a SubscriptionListener."""

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
        self._deliverer: SequenceListener | None = None
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
        expression = read_predicate(document)
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
        check_ms("getNext", timeout, MS_MOST)
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
        self._put(prefixes_of(prefixes))

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
        check_text("setDurableAttribute", "id", id, 1_024)
        self._put(bindings.DurableAttribute(id=id))

    @call
    def setLatestAttribute(self, key: str) -> None:
        """Begin with the newest archived object of each value of `key`, an XPath. Same as attribute `Latest`."""
        check_text("setLatestAttribute", "key", key, 32_768)
        self._put(bindings.LatestAttribute(key=key))

    def _open(self) -> None:
        adapter = self._connection.subscriber()
        durable, durables = self._durable(), self._connection.durables
        left = self._claimed(durable) if durable else None
        if left is not None:
            self._at = adapter, self._take_up(left)
        else:
            self._deliverer = SequenceListener(self._callback) if self._callback is not None else None
            try:
                uid = adapter.register_subscriber(
                    type_name=self._type.name, version=self._type.version, whole_name=True,
                    predicate=self._predicate or None, view="combined", listener=self._deliverer,
                    **self._attributes.subscribing(self._connection.owner),
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


def prefixes_of(prefixes: Mapping[str, str]) -> bindings.NamespacePrefixesAttribute:
    for prefix, uri in prefixes.items():
        check_text("setNamespacePrefixes", "prefix", prefix, 1_024)
        check_text("setNamespacePrefixes", "uri", uri, 1_024)
    if len(prefixes) > 100:
        raise ArgumentError(f"setNamespacePrefixes: {len(prefixes)} prefixes", hint="It takes 100")
    return bindings.NamespacePrefixesAttribute(
        mapping=tuple(bindings.NamespaceMapping(prefix=prefix, uri=uri) for prefix, uri in prefixes.items())
    )


def check_ms(spoken: str, ms: float, most: float | None = None) -> None:
    """Raises ArgumentError."""
    if not ms >= 0 or (most is not None and ms > most):
        raise ArgumentError(f"{spoken}: {ms} is not a time in ms", hint="It takes milliseconds, from 0 on", call=spoken)


def check_text(spoken: str, name: str, text: str, most: int) -> None:
    """Raises ArgumentError."""
    if not 1 <= len(text) <= most:
        raise ArgumentError(
            f"{spoken}: {name} has {len(text)} characters", hint=f"It takes 1 to {most}", call=spoken, argument=name
        )
