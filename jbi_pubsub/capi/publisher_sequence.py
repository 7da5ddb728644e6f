"""Publisher sequences: one publication of a type, with its state."""

from __future__ import annotations

import threading
from typing import Final, NoReturn

from jbi_pubsub.core.errors import (
    ArgumentError,
    InvariantError,
    JbiError,
    MetadataError,
    SchemaError,
    TypeConflictError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import TypeName, prefix_of
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight, RegistrationUid

from . import bindings
from .errors import (
    InvalidPayloadException,
    SequenceStateException,
    UnrecognizedObjectTypeException,
    call,
    part_of,
)
from .objects import InfoObject
from .sequences import ACTIVE, InfoObjectSequence, Owner, check_ms, check_text

REGISTRATIONS_MOST: Final = 16
"""Registrations of a publisher sequence whose objects differ in what their type calls invariant."""


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
        check_ms("setReliableDeliveryAttribute", ms, bindings.YEAR_MS)
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
        check_text("setInvariantsAttribute", "metadata", metadata, 1 << 20)
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
