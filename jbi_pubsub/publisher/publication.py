"""What both publishers' adapters share: opening a registration's type, and making information objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import NewType

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.core.arguments import Document, Source, content, path_of, source
from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, Head, Parcel, object_id_of, pack
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.dissemination import Conformity
from jbi_pubsub.pad.subscription import PublisherRequest, owned_uid

RegistrationUid = NewType("RegistrationUid", str)
"""Identifies a registration to publish, in all calls of the adapter that made it."""

Payload = bytes | bytearray | memoryview | str | Path | Element | None
"""A payload: bytes as they are, text as UTF-8, a file's content, an lxml element as XML, None for no payload."""


class Publication:
    """A registration as its publisher sees it: numbers its objects and checks them before they leave.

    `lock` is held from numbering an object until it is queued, so that order is the order of publish calls. `uid` is
    public; the secret that it is made from is told to the delegates that are to publish under it, and nobody else.
    """

    def __init__(self, info_type: InformationType, entries: tuple[EntryRep, ...], validate: bool):
        self._secret = token_hex(16)
        self.uid = RegistrationUid(owned_uid("registration", self._secret))
        self.info_type = info_type
        self.entries = entries
        self.validate = validate
        self.sequence = 0
        self.number = 1
        """Of the registration at its delegate."""
        self.lock = threading.Lock()
        self._conformity = Conformity(info_type, entries, validate=validate)
        self._checked: bytes | None = None
        """The metadata that passed last, if any did: a source whose objects differ in their payloads alone need not
        wait for the same answer again."""

    def request(self) -> PublisherRequest:
        """What the delegate is told."""
        return PublisherRequest(self.info_type.bundle, self.entries, self.validate, self._secret)

    def check(self, metadata: bytes) -> None:
        """Raises MetadataError, InvariantError or OversizeError, each naming the element's path."""
        if metadata == self._checked:
            return
        self._conformity.check(metadata)
        self._checked = metadata

    def next_object(self, metadata: bytes, payload: bytes) -> Parcel:
        """The next object. Call under `lock`."""
        self.sequence = sequence = self.sequence + 1
        kind = self.info_type.type
        object_id = object_id_of(self.uid, sequence)
        return pack(
            Head(object_id, self.uid, sequence, time.time(), kind.name, kind.version, metadata, len(payload)), payload
        )


def open_type(
    types: TypeRepository,
    schema: Source,
    *,
    marks: Source | None,
    type_name: str | None,
    version: str | None,
    locations: Mapping[str, Path] | None,
) -> InformationType:
    """The type of a schema. Raises SchemaError or TypeConflictError."""
    bundle = read_bundle(
        source(schema),
        marks=None if marks is None else source(marks),
        name=type_name or "",
        version=version or DEFAULT_VERSION,
        locations=locations or {},
    )
    return types.open(bundle)


def payload_bytes(payload: Payload) -> bytes:
    """The payload's bytes. Raises MetadataError (unreadable file) or OversizeError."""
    if payload is None:
        return b""
    if isinstance(payload, str):
        data = payload.encode()
    elif isinstance(payload, bytearray | memoryview):
        data = bytes(payload)
    elif isinstance(payload, bytes):
        data = payload
    else:
        data = content(payload, what="payload")
    if len(data) > MAX_ITEM_BYTES - (2 << 20):
        limit = MAX_ITEM_BYTES - (2 << 20)
        raise OversizeError(f"payload has {len(data)} bytes, the limit is {limit}", size=len(data), limit=limit)
    return data


def opened(info_type: InformationType, invariants: Document, *, validate: bool) -> Publication:
    """A new registration with its invariant metadata (paper section 2.4(3)). Raises MetadataError."""
    path = path_of(invariants)
    what = "invariant metadata" if path is None else f"invariant metadata {path}"
    root = parse_metadata(content(invariants, what="invariant metadata"), what=what)
    entries = info_type.entries(root)
    return Publication(info_type, entries, validate)
