"""Information objects: a type, XML metadata that are never modified, an opaque payload (paper section 1)."""

from __future__ import annotations

import enum
import struct
from typing import Annotated, Final

import msgspec

from .errors import ProtocolError

DEFAULT_VERSION: Final = "1.0"
"""Version of an information object type whose publisher names none."""


class TypeName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """Name and version of an information object type. Each pair has exactly one schema (paper section 2.1)."""

    name: str
    version: str = DEFAULT_VERSION

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the platform adds to an object. `published` is seconds since the epoch at the publisher.

    `sequence` counts the objects of one registration from 1 without gaps; `hops` and `via` are for relays and
    bridges, 0 and () when the object comes straight from its publisher.
    """

    published: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    registration: Annotated[str, msgspec.Meta(max_length=64)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    metadata_length: Annotated[int, msgspec.Meta(ge=0)]
    payload_length: Annotated[int, msgspec.Meta(ge=0)]
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    via: tuple[str, ...] = ()


class InfoObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An information object. `metadata` are the published bytes; `payload` may have been cut by a filter.

    `platform.payload_length` is the length as published, so that a receiver sees what a filter took away.
    """

    object_id: str
    type: TypeName
    metadata: bytes
    payload: bytes
    platform: Platform


class SchemaBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metadata schema with all it includes and imports, as data: nobody has to open a file or a URL for it.

    `documents` maps the schemaLocation as resolved relative to the main document to bytes; `main` is one of its
    names. `marks` is a marks file (JSON) for schemas that carry no marks, b"" without. `type` is the explicit type
    name; with name "" the marker element, else the root's qualified name, decides.
    """

    main: str
    documents: tuple[tuple[str, bytes], ...]
    marks: bytes = b""
    type: TypeName = TypeName("")


class Cause(enum.StrEnum):
    """Why an object that matched did not reach a subscriber. Each lost object counts under exactly one."""

    QUEUE_OVERFLOW = "queue_overflow"
    """The subscription's queue was full; its policy says whether the oldest or the newest went."""
    BLOCK_TIMEOUT = "block_timeout"
    """The queue stayed full for the whole time that policy `block` holds a publisher up."""
    SUBSCRIBER_DEAD = "subscriber_dead"
    """The subscriber's lease ran out with objects waiting for it."""
    DELEGATE_DEAD = "delegate_dead"
    """The delegate or peer publisher went away; how many objects it held is not known (count 0)."""
    CANCELLED = "cancelled"
    """The subscription was cancelled with objects waiting for it."""
    SEQUENCE_GAP = "sequence_gap"
    """The publisher's numbering has a gap: objects that never came. Whether they would have matched is not known."""
    OVERSIZE = "oversize"
    """Larger than the delivery target takes."""
    MAIL_REFUSED = "mail_refused"
    """The mail server refused a recipient or the message for good (SMTP 5xx)."""
    MAIL_UNREACHABLE = "mail_unreachable"
    """The mail server could not be reached, or put us off, in all tries."""
    SHUTDOWN = "shutdown"
    """The delegate stopped before it could deliver."""


class LossNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tells a subscription that objects were lost for it (paper section 2.4(5)). Count 0: unknown how many."""

    subscription: str
    cause: Cause
    count: int
    detail: str = ""


class _Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    object_id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z._-]{1,64}\Z")]
    type: TypeName
    metadata: bytes
    platform: Platform


_LENGTH: Final = struct.Struct("!I")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Head)


def encode(obj: InfoObject) -> tuple[bytes, bytes]:
    """The object's bytes on the wire in two parts: all but the payload, and the payload itself, not copied."""
    head = _encoder.encode(_Head(obj.object_id, obj.type, obj.metadata, obj.platform))
    return _LENGTH.pack(len(head)) + head, obj.payload


def decode(data: memoryview) -> InfoObject:
    """The object of the joined parts of `encode`. Raises ProtocolError."""
    head, payload = decode_head(data)
    return msgspec.structs.replace(head, payload=bytes(payload))


def decode_head(data: memoryview) -> tuple[InfoObject, memoryview]:
    """The object without its payload, and the payload as a view. Raises ProtocolError."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        head = _decoder.decode(data[4 : 4 + length])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad information object: {exc}") from exc
    return InfoObject(head.object_id, head.type, head.metadata, b"", head.platform), data[4 + length :]
