"""Information objects: a type, XML metadata that are never modified, an opaque payload (paper section 1)."""

from __future__ import annotations

import enum
import io
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, cast

import msgspec

from .errors import ConfigurationError, ProtocolError
from .spool import SPOOL_LEAST, SpooledPayload

Part = bytes | bytearray | memoryview
"""Some of an object's bytes."""

if TYPE_CHECKING:
    _Bytes = bytes | memoryview
else:
    _Bytes = memoryview  # what is decoded is not copied

SIGNATURE_BYTES: Final = 64
"""Bytes of an Ed25519 signature (RFC 8032, section 5.1.6)."""
SEAL_BYTES: Final = 32 + SIGNATURE_BYTES
"""Size of a delegate's statement on a payload that it has cut: SHA-256 of the payload as published, its signature."""

SELECTION_NAMESPACE: Final = "urn:jbi-pubsub:selection:1"
"""Namespace of the elements around what a payload filter has selected."""
SELECTION_BEGIN: Final = f'<jbi:selection xmlns:jbi="{SELECTION_NAMESPACE}">'.encode()
"""Beginning of a payload that a filter has left."""

DEFAULT_VERSION: Final = "1.0"
"""Version of an information object type whose publisher names none."""


_ODD_VERSION: Final = re.compile(r"0[0-9]+\.[0-9]+|[0-9]+\.0[0-9]+", re.ASCII)


def has_zeros(version: str) -> bool:
    """Whether it is MAJOR.MINOR with zeros before a number: it would be another one than that without, to whoever
    compares texts, and the same to whoever reads numbers. There are none."""
    return _ODD_VERSION.fullmatch(version) is not None


class TypeName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True, gc=False):
    """Name and version of an information object type. Each pair has exactly one schema (paper section 2.1)."""

    name: str
    version: str = DEFAULT_VERSION

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class ObjectAttributes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Quality of service of one object, as its publisher says it: it travels in the head, and holds wherever the object
    goes."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    """1 (least) to 5: it is no more important than that, whatever policies say; 0: as they say."""
    timeout: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0
    """Seconds after publication at which it is lost (`expired`) if it still waits; 0.0: never. On each platform anew,
    as clocks are not compared."""
    reliable: bool = True
    """False: nothing makes way for it or waits for it, and it is sent once."""


NAME_LETTER: Final = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff"
    rf"\ufff0-\uffff{chr(0xE0000)}-{chr(0xE0FFF)}]"
)
"""The end of a pattern `[^...]` of the characters in names, of Python and ECMA-262 alike: none that controls,
separates, formats or is private. Unlike `str.isprintable` it is the same in all versions of Python, whose tables of
Unicode grow."""
_NAME: Final = re.compile(rf"[^\ud800-\udfff{NAME_LETTER}*")


def is_name(text: str) -> bool:
    """Whether all its characters may be in the name of a type."""
    return _NAME.fullmatch(text) is not None


def check_type_name(name: str | None, version: str | None = None) -> None:
    """Raises ConfigurationError for a name or version that no type has; "" and None stand for none."""
    for what, text in (("type_name", name), ("version", version)):
        if text and text != text.strip():
            raise ConfigurationError(f"{what} is {text[:80]!r}", hint="It has no space at its ends")


TIMES: Final = 10**15
"""Numbers of objects from here on are times, in microseconds: a bridge gives them to what comes from where there are no
numbers. Those between two of them are nobody's."""


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Part that the platform adds to an object. `published` is seconds since the epoch at the publisher.

    `sequence` counts the objects of one registration from 1 without gaps, or is a time (TIMES); `hops` and `via` are
    for relays and bridges, 0 and () when the object comes straight from its publisher.

    `verified` is the name in the certificate of whoever signed the object, if that was looked at here and holds
    (docs/signatures.md), else "". It never comes from elsewhere. `signature` is the publisher's, `seal` a delegate's
    statement about a payload that it has cut; both are b"" where there is none.
    """

    published: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    registration: Annotated[str, msgspec.Meta(max_length=64)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    metadata_length: Annotated[int, msgspec.Meta(ge=0)]
    payload_length: Annotated[int, msgspec.Meta(ge=0)]
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    via: tuple[str, ...] = ()
    signature: bytes = b""
    seal: bytes = b""
    verified: str = ""
    position: Annotated[int, msgspec.Meta(ge=0, lt=2**63)] = 0
    """Its place in the archive that it came from, which goes up; 0 where it came by itself. Never published."""
    archive: str = ""
    """The id of that archive's incarnation; "" where it is not known. Never published."""
    attributes: ObjectAttributes | None = None
    """The publisher's word on this object alone."""

    @property
    def place(self) -> str:
        """Position and archive, as `start=` of a subscription takes them: whoever goes on there is told if it is
        another archive. "" where it came by itself."""
        return f"{self.position}@{self.archive}" if self.archive and self.position else str(self.position or "")


class InfoObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An information object. `metadata` are the published bytes; `payload` may have been cut by a filter.

    `platform.payload_length` is the length as published, so that a receiver sees what a filter took away.
    """

    object_id: str
    type: TypeName
    metadata: bytes
    payload: bytes
    platform: Platform

    @property
    def payload_size(self) -> int:
        """Bytes of the payload, as it came."""
        return len(self.payload)

    @property
    def payload_file(self) -> BinaryIO:
        """The payload as a file to read, from its beginning; another one each time. Where the payload is large, it is
        never in memory whole."""
        return io.BytesIO(self.payload)

    @property
    def is_selection(self) -> bool:
        """Whether the payload is what a payload filter has left. To a subscription with a filter it is not where that
        was not applied: the payload is no XML, or came whole as the subscription wished (`unfiltered`)."""
        with self.payload_file as file:
            return file.read(len(SELECTION_BEGIN)) == SELECTION_BEGIN


class LargeObject(InfoObject, frozen=True, forbid_unknown_fields=True, gc=False):
    """One whose payload lies in a file, as long as the object is there; see [link] `spool`.

    `payload` is read each time that it is asked for. It raises OversizeError when that is too much for memory:
    `payload_file` has it all, in pieces.
    """

    spooled: SpooledPayload | None = None
    """Never None."""

    @property  # type: ignore[misc]  # in place of the field, which is empty here
    def payload(self) -> bytes:
        """All of it. Raises OversizeError, StorageError."""
        return bytes(self._spooled)

    @property
    def payload_size(self) -> int:
        """Bytes of the payload."""
        return len(self._spooled)

    @property
    def payload_file(self) -> BinaryIO:
        """The payload as a file to read."""
        return self._spooled.open()

    @property
    def _spooled(self) -> SpooledPayload:
        assert self.spooled is not None
        return self.spooled


class SchemaBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metadata schema with all it includes and imports, as data: nobody has to open a file or a URL for it.

    `documents` maps the schemaLocation as resolved relative to the main document to bytes; `main` is one of its
    names. `marks` is a marks file (JSON) for schemas that carry no marks, b"" without. `type` is the explicit type
    name; with name "" the marker element, else the root's qualified name, decides. With `main` "" it is none: of a
    type without a schema.
    """

    main: str
    documents: tuple[tuple[str, bytes], ...]
    marks: bytes = b""
    type: TypeName = TypeName("")

    @property
    def is_none(self) -> bool:
        """Whether there is no schema."""
        return not self.main and not self.documents


class Cause(enum.StrEnum):
    """Cause for which a matching object was not delivered. Each lost object counts under exactly one."""

    QUEUE_OVERFLOW = "queue_overflow"
    """The subscription's queue was full; its policy says whether the oldest or the newest object is dropped."""
    BLOCK_TIMEOUT = "block_timeout"
    """The queue stayed full for the whole time that policy `block` delays a publisher."""
    SUBSCRIBER_DEAD = "subscriber_dead"
    """The subscriber's lease expired while objects waited for it."""
    DELEGATE_DEAD = "delegate_dead"
    """The delegate or peer publisher ended with objects. The number is known if their publishers continue elsewhere,
    and all their objects are wanted; otherwise the count is 0, and perhaps none was lost."""
    CANCELLED = "cancelled"
    """The subscription was cancelled while objects waited for it."""
    SEQUENCE_GAP = "sequence_gap"
    """The publisher's numbering has a gap: these objects never arrived, a bridge or network has lost them, or their
    delegate refused them. They need not have matched."""
    LATE = "late"
    """The object came from a delegate after later objects of its registration had come from the delegate that took
    over. It is not delivered, to keep the order."""
    MISSED = "missed"
    """The object came during the subscription, and was no longer kept when the delegate learned of the subscription. It
    need not have matched the predicate."""
    BAD_SIGNATURE = "bad_signature"
    """The object's signature is missing or invalid, and `[tls] verify` requires one."""
    DEADLINE = "deadline"
    """The object waited longer than the policy or the subscription allows."""
    REPLACED = "replaced"
    """A newer object of the same key came while it waited."""
    RATE = "rate"
    """The object was beyond the rate that is granted to the subscription."""
    EXPIRED = "expired"
    """The object waited longer than its publisher's `expiration`; or the archive has removed it, by its rules, for
    want of room or because somebody has deleted it, before a durable subscription got it. In the second case all
    removed objects of the matching types and registrations count, whether or not they would have matched the
    predicate."""
    OTHER_ARCHIVE = "other_archive"
    """The subscription continues at an archive that was emptied, restored from a copy, or is not the one of its
    position. The number of lost objects is not known (count 0). The objects of this archive are delivered."""
    INVALID = "invalid"
    """The metadata are not well-formed, or not valid, and the subscription requires that they are."""
    LISTENER_FAILED = "listener_failed"
    """The subscription's listener failed on the object in all attempts."""
    FILTERED = "filtered"
    """A bridge from another platform left the object out, because its file says so or because the object can't be
    converted. It need not have matched the predicate."""
    OVERSIZE = "oversize"
    """The object is larger than its destination allows; or it is XML to which the payload filter can't be applied:
    beyond its limits, with a DOCTYPE, or against the rules of namespaces."""
    MAIL_REFUSED = "mail_refused"
    """The mail server refused a recipient or the message permanently (SMTP 5xx)."""
    MAIL_UNREACHABLE = "mail_unreachable"
    """The mail server could not be reached, or answered 4xx, in all attempts."""
    MAIL_SUSPENDED = "mail_suspended"
    """The recipient was refused permanently so often that no more mail is sent there until the subscription is made
    again."""
    REFUSED = "refused"
    """A delegate or peer publisher has refused the subscription; the subscriber tries again. The number of lost objects
    is not known."""
    STORAGE = "storage"
    """A disk could not store or return the object: the delegate's, for objects that must survive a restart; for a large
    payload, the delegate's or the subscriber's."""
    SHUTDOWN = "shutdown"
    """The delegate stopped before it could deliver the object."""


LOST: Final = "lost"
"""Version of what has no type, where it stands for objects that were lost."""
COUNT_BELIEVED: Final = 10**9
"""Losses that one notice may claim: those of nine hours at 30,000 objects a second."""


class LossNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tells a subscription that objects were lost for it (paper section 2.4(5)). Count 0: unknown how many, and
    `detail` says whether perhaps none; as it is for what nobody can have published: a number that skips 2^53 others
    says nothing of how many there were."""

    subscription: str
    cause: Cause
    count: int
    detail: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.count <= COUNT_BELIEVED:
            msgspec.structs.force_setattr(self, "count", 0)


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An information object on the wire, but for its payload: one flat array, no field names (on a slow link they
    would cost as much as an object's platform metadata)."""

    own_id: Annotated[str, msgspec.Meta(max_length=64)]
    """"": the one that is made from registration and number, and need not travel."""
    registration: Annotated[str, msgspec.Meta(max_length=64)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    published: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    type_name: str
    type_version: str
    metadata: _Bytes
    """A view of the parcel's bytes, if it was received: what waits in queues is held once."""
    payload_length: Annotated[int, msgspec.Meta(ge=0)]
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    via: Annotated[tuple[str, ...], msgspec.Meta(max_length=255)] = ()
    """As many as there may be hops: an empty name would cost a receiver eight times what it costs the sender."""
    signature: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""
    """Signature of all but hops, via and itself: it holds wherever the object goes (core/signing.py); b"": none."""
    attributes: ObjectAttributes | None = None
    """None: nothing is said of this object alone."""

    @property
    def object_id(self) -> str:
        """The object's."""
        return self.own_id or object_id_of(self.registration, self.sequence)

    @property
    def timeout(self) -> float:
        """Seconds for which it may wait; 0.0: nothing is said of that."""
        return self.attributes.timeout if self.attributes is not None else 0.0

    @property
    def is_reliable(self) -> bool:
        """Whether it is not to be lost for want of room."""
        return self.attributes is None or self.attributes.reliable

    def lowered(self, importance: int) -> int:
        """Importance of the object where policies say that one: its priority, if that is less."""
        priority = self.attributes.priority if self.attributes is not None else 0
        return min(importance, priority) if priority else importance

    @property
    def is_lost(self) -> bool:
        """Whether that stands for objects that were lost."""
        return not self.type_name and self.type_version == LOST

    @property
    def left_out(self) -> int:
        """Number of objects left out, of what is no object (see `left_out`); 0 of an object."""
        return 0 if self.type_name else self.payload_length


_PLAIN_ID: Final = re.compile(r"[0-9A-Za-z._-]+")
_PLACE: Final = re.compile(r"\$\[(\d{1,2})\]")
_LENGTH: Final = struct.Struct("!I")
_SEALED: Final = 1 << 31
"""Beside the length of the head: a seal stands between head and payload."""
_encode_head: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(Head).decode


class Parcel(msgspec.Struct, eq=False, gc=False):
    """An information object on its way: its head read, its bytes as they go over the wire, not copied.

    Whoever passes the object on passes `parts` on. The first one has all that is before the payload; that is the last
    one, or what is behind `payload_at` in all of them. It can't be part of a cycle, and the garbage collector need not
    look at it: a delegate keeps tens of thousands.
    """

    head: Head
    parts: tuple[Part, ...]
    """The last may be a SpooledPayload, which goes in chunks alone; whoever takes it for bytes is told so."""
    size: int
    """Size of all parts; what lies in a file counts as what it costs in memory."""
    payload_at: int
    """Where in the parts the payload begins; 0: it is the last one."""
    since: float = 0.0
    """When it was published, by our own monotonic clock; 0.0: not known."""
    position: int = 0
    """Its place in the delegate's archive; 0 without one."""
    was_kept: bool = False
    """The archive has it already, from before its publisher sent it again: at another place."""
    expires: float = 0.0
    """When it is lost if it still waits, by our own monotonic clock; 0.0: never."""

    @classmethod
    def received(cls, data: Part, since: float = 0.0, more: tuple[Part, ...] = ()) -> Parcel:
        """A parcel from the bytes of one, as its publisher sends it; `more`: what comes behind its head, in pieces.
        Raises ProtocolError."""
        head, payload_at, seal = _read(data)
        if seal:
            raise ProtocolError("bad information object: its payload was cut, which a delegate alone does")
        return cls(head, (data, *more), len(data) + sum(map(len, more)), payload_at, since)

    @classmethod
    def spooled_as(cls, head: Head, first: bytes, payload: SpooledPayload, since: float = 0.0) -> Parcel:
        """A parcel whose payload lies in a file, behind `first`, of which `head` is."""
        return cls(head, (first, cast("Part", payload)), len(first) + payload.cost, 0, since)

    @property
    def payload(self) -> Part:
        """The payload; copied only if it came in pieces, and then once for all who ask."""
        if not self.payload_at:
            return self.parts[-1]
        parts = self.parts
        if len(parts) > 1:
            self.parts = parts = (b"".join(parts),)
        return memoryview(parts[0])[self.payload_at :]

    @property
    def payload_size(self) -> int:
        """Bytes of the payload."""
        return self.size - self.payload_at if self.payload_at else len(self.parts[-1])

    @property
    def spooled(self) -> SpooledPayload | None:
        """The payload, if it lies in a file. Not if `size` is less than COST_LEAST."""
        last: object = self.parts[-1]
        return last if isinstance(last, SpooledPayload) else None

    def in_memory(self) -> Parcel:
        """The same with its payload in memory. Raises OversizeError, StorageError."""
        if self.spooled is None:
            return self
        return self.with_payload(bytes(self.payload))

    def with_payload(self, payload: bytes, seal: bytes = b"") -> Parcel:
        """The same object with what a filter has left of its payload, and the delegate's statement about that. Keeps
        nothing of what was taken away."""
        head, first = self.head, self.parts[0]
        is_received = self.payload_at > 0
        if is_received:
            first = bytes(first[: self.payload_at])
        end = len(first)
        if seal:
            first = _LENGTH.pack(end - 4 | _SEALED) + first[4:] + seal
        if is_received:
            head = _decode_head(memoryview(first)[4:end])
        size = len(first) + len(payload)
        return Parcel(head, (first, payload), size, 0, self.since, self.position, self.was_kept, self.expires)

    def unpacked(self) -> InfoObject:
        """The object as applications see it."""
        if (spooled := self.spooled) is not None:
            return large(self.head, spooled)
        return _unpacked(self.head, bytes(self.payload))


def _read(data: Part) -> tuple[Head, int, bytes]:
    """The head of an object's bytes, where its payload begins, and its seal. Raises ProtocolError."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        at, seal = 4 + length, b""
        if length >= _SEALED:
            length -= _SEALED
            at = 4 + length + SEAL_BYTES
            seal = bytes(data[4 + length : at])
            if len(seal) < SEAL_BYTES:
                raise ProtocolError("bad information object: its seal is cut off")
        if at > len(data):
            raise ProtocolError("bad information object: its head is cut off")
        head = _decode_head(memoryview(data)[4 : 4 + length])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"bad information object: {with_name(str(exc))}") from exc
    object_id = head.own_id or prefix_of(head.registration)  # what it is made from: its number is digits
    if not (object_id.isascii() and object_id.isalnum()) and not _PLAIN_ID.fullmatch(object_id):
        raise ProtocolError(f"bad information object: {object_id!r} is not an object id")
    return head, at, seal


def _unpacked(head: Head, payload: bytes, seal: bytes = b"", position: int = 0, archive: str = "") -> InfoObject:
    metadata = bytes(head.metadata)
    platform = _platform(head, metadata, seal, position, archive)
    return InfoObject(head.object_id, TypeName(head.type_name, head.type_version), metadata, payload, platform)


def large(head: Head, payload: SpooledPayload, seal: bytes = b"", position: int = 0, archive: str = "") -> LargeObject:
    """An object whose payload lies in a file, as applications see it."""
    metadata = bytes(head.metadata)
    type_, platform = TypeName(head.type_name, head.type_version), _platform(head, metadata, seal, position, archive)
    return LargeObject(head.object_id, type_, metadata, b"", platform, payload)


def _platform(head: Head, metadata: bytes, seal: bytes, position: int, archive: str) -> Platform:
    return Platform(
        head.published,
        head.registration,
        head.sequence,
        len(metadata),
        head.payload_length,
        head.hops,
        head.via,
        head.signature,
        seal,
        "",
        position,
        archive,
        head.attributes,
    )


def with_name(problem: str, of: type[msgspec.Struct] = Head) -> str:
    """Message of msgspec about `$[2]`, with the name of that field."""
    found, fields = _PLACE.search(problem), of.__struct_fields__
    name = fields[int(found[1])] if found and int(found[1]) < len(fields) else ""
    return f"{problem} ({name})" if name else problem


def object_id_of(registration: str, sequence: int) -> str:
    """The id of a registration's object: the registration's own with the number, unique without a random number."""
    return numbered(prefix_of(registration), sequence)


@lru_cache(1_024)
def prefix_of(registration: str) -> str:
    """Prefix of the ids of a registration's objects."""
    return registration.rpartition("-")[2]


def numbered(prefix: str, sequence: int) -> str:
    """The id of an object with that beginning: twelve hexadecimal digits of its number follow."""
    return f"{prefix}{sequence:012x}"


def pack(head: Head, payload: Part | SpooledPayload, since: float = 0.0) -> Parcel:
    """A new parcel; the payload is not copied."""
    encoded = _encode_head(head)
    size = len(payload)
    if size > SPOOL_LEAST and isinstance(payload, SpooledPayload):
        size = payload.cost
    first = _LENGTH.pack(len(encoded)) + encoded
    return Parcel(head, (first, cast("Part", payload)), 4 + len(encoded) + size, 0, since)


def left_out(registration: str, up_to: int, count: int, *, lost: bool = False) -> Parcel:
    """Goes in the place of objects of a registration that a bridge has left out: so many with numbers up
    to `up_to`; 0: nobody lacks what has not come up to there. It has no type. `lost`: in the place of those that were
    lost on their way to the bridge, as many (0: it is not known how many), or at their publisher."""
    return pack(Head("", registration, up_to, 0.0, "", LOST if lost else "", b"", count), b"")


def head_end(begun: Part) -> int:
    """Where in the bytes of an object its payload begins, of which at least four are there."""
    (length,) = _LENGTH.unpack_from(begun)
    return int(4 + length - _SEALED + SEAL_BYTES if length >= _SEALED else 4 + length)


def head_of(first: Part) -> tuple[Head, bytes]:
    """The head, and the seal, in an object's bytes before its payload. Raises ProtocolError."""
    head, _, seal = _read(first)
    return head, seal


def encode(obj: InfoObject) -> tuple[Part, ...]:
    """The object's bytes on the wire, in parts: all but the payload, and the payload itself, not copied."""
    parcel, seal = packed(obj).in_memory(), obj.platform.seal
    return (parcel.with_payload(obj.payload, seal) if seal else parcel).parts


def packed(obj: InfoObject, platform: str = "") -> Parcel:
    """A parcel of an object as applications see it, behind one platform more if that is named; nothing is said of what
    was cut."""
    known = obj.platform
    is_own = obj.object_id != object_id_of(known.registration, known.sequence)
    head = Head(
        obj.object_id if is_own else "",
        known.registration,
        known.sequence,
        known.published,
        obj.type.name,
        obj.type.version,
        obj.metadata,
        known.payload_length,
        known.hops + bool(platform),
        (*known.via, platform) if platform else known.via,
        known.signature,
        known.attributes,
    )
    return pack(head, obj.spooled if isinstance(obj, LargeObject) and obj.spooled is not None else obj.payload)


def decode(data: Part, position: int = 0, archive: str = "") -> InfoObject:
    """The object of the joined parts of `encode`, which came with its `position` in an archive, or by itself. Raises
    ProtocolError."""
    head, payload_at, seal = _read(data)
    return _unpacked(head, bytes(data[payload_at:]), seal, position, archive)


def decode_cut(parts: Sequence[Part], position: int = 0, archive: str = "") -> InfoObject:
    """The same of the pieces, at least one, into which these were cut: the payload is copied once. Raises
    ProtocolError."""
    first, *more = parts
    length = int.from_bytes(first[: _LENGTH.size], "big") & ~_SEALED
    if more and _LENGTH.size + length + SEAL_BYTES > len(first):
        first, more = b"".join(parts), []  # the first one may not hold the whole head
    head, payload_at, seal = _read(first)
    return _unpacked(head, b"".join([first[payload_at:], *more]), seal, position, archive)
