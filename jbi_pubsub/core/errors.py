"""The errors of jbi-pubsub. Each says what is wrong, where, and how to correct it.

JbiError
 +- ConfigurationError        (ValueError)       a setting that is unknown, malformed or unsafe
 |   +- ArgumentError         (TypeError)        an argument of a call is of a type that the call does not take
 |   +- PolicyError                              a policy file can't be used
 +- AdapterStateError         (RuntimeError)     an adapter used when it can't be: closed, forked, a second SA
 +- AccessDeniedError         (PermissionError)  the access policy refused the call
 +- PortInUseError            (OSError)          the address to listen on is taken
 +- StorageError              (OSError)          the durable store can't be read or written: disk full, damaged, in use
 +- OversizeError             (ValueError)       something is larger than its bound
 +- SchemaError               (ValueError)       a metadata schema, marks file or stylesheet can't be used
 |   +- TypeConflictError                        a second, different schema for one information object type
 +- MetadataError             (ValueError)       a metadata, template or invariant document is malformed or invalid
 |   +- InvariantError                           a publication changes what its registration declared invariant
 +- SignatureError            (ValueError)       an object's signature is missing or does not hold
 +- PredicateError            (ValueError)       an XPath predicate or payload filter can't be used
 +- AddressError              (ValueError)       not exactly one e-mail address
 +- UnknownUidError           (LookupError)      no such delegate, registration or subscription here
 +- DelegateNotFoundError     (LookupError)      no delegate has the wanted characteristics
 +- LookupNotFoundError       (LookupError)      no lookup service could be reached
 +- LeaseError
 |   +- LeaseDeniedError      (ValueError)       the lease was asked for with a bad duration, or is refused
 |   +- UnknownLeaseError     (LookupError)      the lease is expired, cancelled, or was never granted
 +- EntryError                (ValueError)       an entry or template can't be matched
 |   +- IncompatibleEntryError                   same entry class name, different fields
 +- StudyError                (RuntimeError)     a study can't run here, or its result failed its own check
 +- DemoError                 (RuntimeError)     the demo could not be played to its end
 +- ChildError                (RuntimeError)     work in a child process ran into a limit
 +- WireError                 (ConnectionError)  the other side is gone, slow, or breaks the protocol
     +- ProtocolError                            the peer sent what the protocol does not allow
     +- WireTimeoutError      (TimeoutError)     the other side did not answer in time
     +- BackPressureError     (TimeoutError)     a bounded queue stayed full for the whole timeout

Code that does not know this family can still catch the builtin in brackets. Errors cross the wire as
`ErrorReport` values and are rebuilt as the same class on the other side.
"""

from __future__ import annotations

import msgspec

Fact = str | int | float | bool | None


class JbiError(Exception):
    """Base of all errors raised by this package.

    `message` says what is wrong and where, `hint` how to correct it, `facts` carries the same as plain values
    (for example `expression`, `position`, `path`).
    """

    code = "error"
    is_final = False
    """The same call fails again until its cause is corrected; otherwise it may succeed later."""
    is_remote = False
    """Another process has raised it, and told us."""

    def __init__(self, message: str, *, hint: str = "", **facts: Fact) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __str__(self) -> str:
        end = "" if self.message.endswith("?") else "."
        return f"{self.message}{end} {self.hint}" if self.hint else self.message


class ConfigurationError(JbiError, ValueError):
    """A setting is unknown, malformed or unsafe."""

    code = "configuration"
    is_final = True


class ArgumentError(ConfigurationError, TypeError):
    """An argument of a call has a type that the call does not take; facts `call`, `argument`."""

    code = "argument"


class PolicyError(ConfigurationError):
    """A policy file can't be used; facts `file`, `line`, `column` (from 1; 0: the file as a whole)."""

    code = "policy"


class AdapterStateError(JbiError, RuntimeError):
    """An adapter can't be used: it is closed, in a forked process, or a second SubscriberAdapter of one name."""

    code = "adapter_state"


class AccessDeniedError(JbiError, PermissionError):
    """The access policy denies the call."""

    code = "access_denied"
    is_final = True


class QosDeniedError(JbiError):
    """A required quality of service is not granted; facts `field`, `policy`."""

    code = "qos_denied"
    is_final = True


class PortInUseError(JbiError, OSError):
    """The address to listen on is in use or can't be bound."""

    code = "port_in_use"


class StorageError(JbiError, OSError):
    """A file or folder can't be read or written: the disk is full, the file is damaged or in use."""

    code = "storage"


class OversizeError(JbiError, ValueError):
    """The size is above a limit."""

    code = "oversize"
    is_final = True


class SchemaError(JbiError, ValueError):
    """A metadata schema, marks file or stylesheet can't be used."""

    code = "schema"
    is_final = True


class TypeConflictError(SchemaError):
    """The information object type has another schema already (paper section 2.1: exactly one)."""

    code = "type_conflict"


class MetadataError(JbiError, ValueError):
    """A metadata, template or invariant document is malformed or invalid; fact `path` names the element."""

    code = "metadata"
    is_final = True


class InvariantError(MetadataError):
    """The metadata change a value that the registration declares invariant (paper section 1)."""

    code = "invariant"


class SignatureError(JbiError, ValueError):
    """The signature of an object or of its publisher's key is missing or invalid; fact `object`."""

    code = "signature"
    is_final = True


class PredicateError(JbiError, ValueError):
    """An XPath predicate or payload filter can't be used; facts `argument`, `expression`, `position`."""

    code = "predicate"
    is_final = True


class AddressError(JbiError, ValueError):
    """The text is not exactly one e-mail address."""

    code = "address"
    is_final = True


class UnknownUidError(JbiError, LookupError):
    """The delegate, registration or subscription does not exist here."""

    code = "unknown_uid"


def unknown_uid(kind: str, uid: str, source: str) -> UnknownUidError:
    """The error of an adapter's call with an id that it has not given out: what it is of, and where one gets it."""
    return UnknownUidError(f"no {kind} {uid!r} of this adapter", hint=f"Use what {source} returned", uid=str(uid))


class DelegateNotFoundError(JbiError, LookupError):
    """No delegate has this name and location; the message lists those that exist."""

    code = "delegate_not_found"


class LookupNotFoundError(JbiError, LookupError):
    """No lookup service could be reached."""

    code = "lookup_not_found"


class LeaseError(JbiError):
    """Base of the lease errors."""

    code = "lease"


class LeaseDeniedError(LeaseError, ValueError):
    """The lease is refused, or its duration is invalid."""

    code = "lease_denied"


class UnknownLeaseError(LeaseError, LookupError):
    """The lease has expired, was cancelled, or was never granted."""

    code = "unknown_lease"


class EntryError(JbiError, ValueError):
    """An entry or template can't be matched."""

    code = "entry"
    is_final = True


class IncompatibleEntryError(EntryError):
    """An entry class has other fields at the other side: the two were generated from different schemas."""

    code = "incompatible_entry"


class StudyError(JbiError, RuntimeError):
    """A study can't run here (Java, Spark or Parquet missing or broken), or its result failed its own check."""

    code = "study"


class WireError(JbiError, ConnectionError):
    """The other side is gone, too slow, or breaks the protocol."""

    code = "wire"


class ProtocolError(WireError):
    """The other side sent data that the protocol does not allow."""

    code = "protocol"


class WireTimeoutError(WireError, TimeoutError):
    """The other side did not answer in time."""

    code = "wire_timeout"


class BackPressureError(WireError, TimeoutError):
    """A bounded queue stayed full for the whole timeout."""

    code = "back_pressure"


class DemoError(JbiError, RuntimeError):
    """The demo could not be completed."""

    code = "demo"


class ChildError(JbiError, RuntimeError):
    """Work in a child process exceeded a limit, or can't be done now; fact `cause` says which (`core/child.py`)."""

    code = "child"


class ErrorReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error as plain data, for the wire and for reports."""

    code: str
    message: str
    hint: str = ""
    facts: dict[str, Fact] = {}


def report(error: JbiError) -> ErrorReport:
    """The error as plain data."""
    return ErrorReport(error.code, error.message, error.hint, error.facts)


def rebuild(received: ErrorReport) -> JbiError:
    """The error of a report; an unknown code becomes a plain JbiError."""
    facts = {k: v for k, v in received.facts.items() if k not in ("message", "hint", "self")}
    error = _by_code().get(received.code, JbiError)(received.message, hint=received.hint, **facts)
    error.is_remote = True
    return error


def _by_code() -> dict[str, type[JbiError]]:
    found: dict[str, type[JbiError]] = {}
    waiting = [JbiError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found
