"""Bodies of what nodes tell each other: registrations, schemas, objects left out, queries, results, and what is kept,
and deleted, at several of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final, cast

import msgspec

from jbi_pubsub.bridge.platform import BridgedRegistration
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.quality import Importance
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.sending import SENDING, Sending
from jbi_pubsub.protocol.wanted import Wanted

VERSION: Final = 1
NAME_MOST: Final = 1_024
ENTRIES_MOST: Final = 1_024
VOLUNTEERS_MOST: Final = 64
IDS_MOST: Final = 500
"""Ids of one message of deletions."""
_Digest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
COUNT_MOST: Final = 1_000_000
"""Objects that do not come, of which a node's word is believed: sums of more have no room in a message of ours."""
_Name = Annotated[str, msgspec.Meta(max_length=NAME_MOST)]
_Uid = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MOST)]


def digest(data: bytes) -> bytes:
    """Name of 16 bytes for some bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


class SequenceBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="sequence"):
    """Sequence information: a registration of a node (Gemini, section 5.6)."""

    version: int
    uid: _Uid
    type: TypeName
    schema: _Digest
    """Digest of its schema, as a SchemaBody has it."""
    entries: Annotated[tuple[EntryRep, ...], msgspec.Meta(max_length=ENTRIES_MOST)] = ()
    signing: SigningKey | None = None
    via: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()
    expiration: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0
    last: _Count = 0
    """Number of the last object, when it has ended."""
    has_ended: bool = False
    is_persistent: bool = False
    """Whether other nodes are asked to keep its objects."""
    importance: Importance | None = None
    sending: Sending = SENDING
    update: _Count = 0
    """Number that makes the same again other words: what was heard already, word for word, is not heard again."""

    def registration(self) -> BridgedRegistration:
        """The same as a bridge sees it."""
        return BridgedRegistration(
            self.uid, self.type, self.entries, self.signing, self.via, expiration=self.expiration,
            importance=self.importance, sending=self.sending, first=0,
        )  # fmt: skip


class WantedBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="wanted"):
    """Interest of a node's subscribers."""

    version: int
    wanted: Wanted
    update: _Count = 0


class SchemaBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="schema"):
    """A schema, for all registrations that name its digest."""

    version: int
    bundle: SchemaBundle
    update: _Count = 0

    @property
    def name(self) -> bytes:
        """Digest of the schema."""
        return digest(msgspec.msgpack.encode(self.bundle))


class SettledBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="settled"):
    """The schema that a type has from now on, said by the node at which somebody has decided so."""

    version: int
    schema: SchemaBundle
    """With the type's name."""
    at: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    """When (seconds since the epoch): the last word holds."""
    node: _Name
    """Node that publishes by it."""
    update: _Count = 0


class LeftOutBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="left out"):
    """Objects of a registration that do not come, with numbers up to `up_to`."""

    version: int
    uid: _Name
    count: _Count
    up_to: _Count
    age: _Count = 0
    """Milliseconds since the last of them came to its node."""
    lost: _Count = 0
    """Those of them that were lost: nobody has left them out."""

    def by_cause(self) -> Iterator[tuple[str, int, int]]:
        """Causes that subscribers are told, each with the number of objects, COUNT_MOST at most, and of the last one; 0
        left out where none is lacking. No two have one number: what has been told is not told again."""
        lost, left = min(self.lost, self.count, COUNT_MOST), min(max(0, self.count - self.lost), COUNT_MOST)
        if left or not lost:
            yield "filtered", left, max(0, self.up_to - lost)
        if lost:
            yield "sequence_gap", lost, self.up_to


class QueryBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="query"):
    """A query to all nodes that answer."""

    version: int
    id: _Digest
    request: QueryRequest


class ResultBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="result"):
    """An object that a query finds, or with `is_last` the end of a node's answers, and what they lack."""

    version: int
    id: _Digest
    data: bytes = b""
    is_last: bool = False
    count: _Count = 0
    """Number of the object among the node's answers, from 1 (0: a node of an earlier version does not say it); of the
    end, how many there are: they come in any order."""
    lacks: Annotated[str, msgspec.Meta(max_length=4_096)] = ""
    signing: SigningKey | None = None
    """Key that objects of a registration among them are signed with, in a result of its own."""


class AssistanceBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="assistance"):
    """Persistence assistance, requested or accepted: word of a coordinator on one registration, who keeps it, and how
    many more are needed. A request when it begins or has lost somebody."""

    version: int
    uid: _Uid
    number: _Count
    """The greater one holds, over restarts of its node as well."""
    needed: Annotated[int, msgspec.Meta(ge=0, le=VOLUNTEERS_MOST)]
    """Volunteers that are still needed."""
    accepted: Annotated[tuple[_Digest, ...], msgspec.Meta(max_length=VOLUNTEERS_MOST)] = ()
    """Ids of those that were accepted and are there."""
    is_request: bool = False


class OfferBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="offer"):
    """Persistence assistance offer."""

    version: int
    uid: _Uid
    nonce: _Count
    """By which no two are the same message."""


class DeletionBody(msgspec.Struct, frozen=True, array_like=True, tag_field="body", tag="deletion"):
    """Objects that are to be nowhere any more."""

    version: int
    ids: Annotated[tuple[_Uid, ...], msgspec.Meta(max_length=IDS_MOST)]


NodeBody = SequenceBody | SchemaBody | WantedBody | SettledBody | LeftOutBody | QueryBody | ResultBody
PersistenceBody = AssistanceBody | OfferBody | DeletionBody
_body: Final[msgspec.msgpack.Decoder[NodeBody]] = decoder_of(NodeBody)  # type: ignore[arg-type]  # a union is a type here
_persistence: Final = decoder_of(cast("type[PersistenceBody]", PersistenceBody))


def encoded(body: NodeBody) -> bytes:
    """Bytes of a body."""
    return msgspec.msgpack.encode(body)


def decoded_body(data: bytes) -> NodeBody:
    """A body of its bytes. Raises ProtocolError."""
    return decoded(_body, data, "message of a node")


def decoded_assistance(data: bytes) -> PersistenceBody:
    """The same of what is kept, and deleted, at several nodes. Raises ProtocolError."""
    return decoded(_persistence, data, "message of a node")
