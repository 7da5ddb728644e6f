"""The exceptions of the Common API, each also the matching error of jbi-pubsub.

CapiException                      (JbiError)            base of all
 +- PermissionDeniedException      (AccessDeniedError)   the access policy refused the call
 +- UnsupportedVersionException    (ConfigurationError)  an attribute or document of a version that is not known here
 +- VersionNumberException         (ConfigurationError)  no version number, or another one is needed
 +- InvalidPayloadException        (ArgumentError)       the payload is no bytes, or can't be read
 +- InvalidMetadataException       (MetadataError)       metadata, or another document, are malformed or not valid
 +- ObjectSizeException            (OversizeError)       an object is larger than its limit
 +- PausedSequenceException        (AdapterStateError)   the sequence is paused
 +- SequenceStateException         (AdapterStateError)   the call is not for that state of the sequence
 +- InvalidPredicateException      (PredicateError)      the predicate, or its document, is malformed
 +- PredicateLanguageException     (PredicateError)      the predicate's language is not known here
 +- UnrecognizedObjectTypeException (SchemaError, UnknownUidError)  no such type, or another one than the sequence's
 +- ObjectUnavailableException     (UnknownUidError)     what is named is not there
 +- TimeoutException               (WireTimeoutError)    not within the time that was given
 +- ConnectionException            (WireError)           not connected, another's connection, or the node is away
 +- PlatformFailureException       (JbiError)            the platform could not do it; its cause says why

Names are those of the API. A call that raises one has changed nothing. What is of a type that a call does not take is
an ArgumentError, as anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    AdapterStateError,
    ArgumentError,
    BackPressureError,
    ConfigurationError,
    DelegateNotFoundError,
    JbiError,
    LookupNotFoundError,
    MetadataError,
    OversizeError,
    PredicateError,
    ProtocolError,
    SchemaError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)

P = ParamSpec("P")
R = TypeVar("R")


class CapiException(JbiError):
    """Base of the exceptions of the Common API."""

    code = "capi"


class PermissionDeniedException(CapiException, AccessDeniedError):
    """The access policy refused the call."""

    code = "capi_permission_denied"


class UnsupportedVersionException(CapiException, ConfigurationError):
    """An attribute or document of a version that is not known here."""

    code = "capi_unsupported_version"


class VersionNumberException(CapiException, ConfigurationError):
    """No version number, which is MAJOR.MINOR, or another one is needed."""

    code = "capi_version_number"


class InvalidPayloadException(CapiException, ArgumentError):
    """The payload is no bytes, or can't be read."""

    code = "capi_invalid_payload"


class InvalidMetadataException(CapiException, MetadataError):
    """Metadata, or the document of an attribute, connection or credentials, are malformed or not valid."""

    code = "capi_invalid_metadata"


class ObjectSizeException(CapiException, OversizeError):
    """An object is larger than its limit."""

    code = "capi_object_size"


class PausedSequenceException(CapiException, AdapterStateError):
    """The sequence is paused."""

    code = "capi_paused_sequence"


class SequenceStateException(CapiException, AdapterStateError):
    """The call is not for that state of the sequence, or the sequence is another connection's."""

    code = "capi_sequence_state"


class InvalidPredicateException(CapiException, PredicateError):
    """A predicate, or its document, is malformed."""

    code = "capi_invalid_predicate"


class PredicateLanguageException(CapiException, PredicateError):
    """A predicate's language is not known here."""

    code = "capi_predicate_language"


class UnrecognizedObjectTypeException(CapiException, SchemaError, UnknownUidError):
    """No such information object type, or another one than the sequence's."""

    code = "capi_unrecognized_object_type"


class ObjectUnavailableException(CapiException, UnknownUidError):
    """A thing that is named is not there."""

    code = "capi_object_unavailable"


class TimeoutException(CapiException, WireTimeoutError):
    """Not within the time that was given."""

    code = "capi_timeout"


class ConnectionException(CapiException, WireError):
    """Not connected, the connection is another's or not there any more, or the node is away (NodeAwayException)."""

    code = "capi_connection"


class NodeAwayException(ConnectionException):
    """The node is away, or does not answer: the same call may be good later."""

    code = "capi_node_away"


class PlatformFailureException(CapiException):
    """The platform could not do it; its cause says why."""

    code = "capi_platform_failure"


EXCEPTIONS: Final[tuple[type[CapiException], ...]] = (
    PermissionDeniedException, UnsupportedVersionException, VersionNumberException, InvalidPayloadException,
    InvalidMetadataException, ObjectSizeException, PausedSequenceException, SequenceStateException,
    InvalidPredicateException, PredicateLanguageException, UnrecognizedObjectTypeException, ObjectUnavailableException,
    TimeoutException, ConnectionException, NodeAwayException, PlatformFailureException,
)  # fmt: skip
"""All that a call may raise, but for ArgumentError."""

_MATCHING: Final[tuple[tuple[type[JbiError], type[CapiException]], ...]] = (
    (AccessDeniedError, PermissionDeniedException),
    (OversizeError, ObjectSizeException),
    (PredicateError, InvalidPredicateException),
    (MetadataError, InvalidMetadataException),
    (SchemaError, UnrecognizedObjectTypeException),
    (WireTimeoutError, TimeoutException),
    (DelegateNotFoundError, NodeAwayException),
    (LookupNotFoundError, NodeAwayException),
    (UnknownUidError, ObjectUnavailableException),
    (ProtocolError, PlatformFailureException),
    (BackPressureError, PlatformFailureException),
    (WireError, NodeAwayException),
)
"""By which exception what the adapters raise is told; the first that fits. All else is a failure of the platform."""


def exception_of(error: JbiError) -> JbiError:
    """The exception that stands for an error of the adapters: its words, the error as its cause. One of ours, and an
    ArgumentError, stands for itself."""
    if isinstance(error, CapiException | ArgumentError):
        return error
    kind = next((ours for theirs, ours in _MATCHING if isinstance(error, theirs)), PlatformFailureException)
    if isinstance(error.__cause__, AccessDeniedError):
        kind = PermissionDeniedException  # a publisher whose registration was refused later
    facts = {name: fact for name, fact in error.facts.items() if name not in ("message", "hint")}
    made = kind(error.message, hint=error.hint, **facts)
    made.__cause__ = error
    return made


def part_of(spoken: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a part of the call `spoken`, which speaks in its name."""

    def renamed(method: Callable[P, R]) -> Callable[P, R]:
        method.__qualname__ = spoken
        return method

    return renamed


def call(method: Callable[P, R]) -> Callable[P, R]:
    """A call of the API: its arguments are checked, and what it raises is an exception of the API or ArgumentError."""
    looked_at = checked(method)

    @wraps(method)
    def made(*given: P.args, **named: P.kwargs) -> R:
        try:
            return looked_at(*given, **named)
        except JbiError as error:
            told = exception_of(error)
            if told is error:
                raise
            raise told from error

    return made
