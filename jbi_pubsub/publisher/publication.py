"""What both publishers' adapters share: opening a registration's type, and making information objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final, NewType

import msgspec

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.core.arguments import Argument, Document, Source, content, path_of, source
from jbi_pubsub.core.errors import ArgumentError, JbiError, OversizeError
from jbi_pubsub.core.info_object import DEFAULT_VERSION, Head, Parcel, pack
from jbi_pubsub.core.quality import Wish, checked_wish
from jbi_pubsub.core.signing import Signer, SigningKey, anchor_of, digest, head_bytes, signed_uid
from jbi_pubsub.core.wire.stream import MAX_BATCH_BYTES, MAX_ITEM_BYTES
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.dissemination import Conformity
from jbi_pubsub.pad.subscription import PublisherRequest, owned_uid

RegistrationUid = NewType("RegistrationUid", str)
"""Identifies a registration to publish, in all calls of the adapter that made it."""

Payload = bytes | bytearray | memoryview | str | Path | Element | None
"""A payload: bytes as they are, text as UTF-8, a file's content, an lxml element as XML, None for no payload."""


METADATA: Final = Argument("publish_many", "metadata", Document)
PAYLOAD: Final = Argument("publish_many", "payload", Payload)

RUN_ITEMS: Final = 100
RUN_BYTES: Final = MAX_BATCH_BYTES
"""Of objects that are published together: a batch, or a part of one."""
RUN_SECONDS: Final = 0.01
"""How long objects wait for others to come: what has come may be all for a while."""


class Publication:
    """A registration as its publisher sees it: numbers its objects and checks them before they leave.

    `lock` is held from numbering an object until it is queued, so that order is the order of publish calls. `uid` is
    public; the secret that it is made from is told to the delegates that are to publish under it, and nobody else.
    With a signer objects are signed, and the id is made from its key, too.
    """

    def __init__(
        self,
        info_type: InformationType,
        entries: tuple[EntryRep, ...],
        validate: bool,
        signer: Signer | None = None,
        qos: Wish | None = None,
    ):
        self._secret = token_hex(16)
        self._signer = signer
        self._signing: SigningKey | None = None
        uid = owned_uid("registration", self._secret)
        if signer is not None:
            uid = signed_uid(anchor_of(self._secret), signer.public)
        self.uid = RegistrationUid(uid)
        self._bound_at = -1
        """Generation of the signer's certificate that delegates were told of."""
        self.info_type = info_type
        self.entries = entries
        self.validate = validate
        self.qos = qos or Wish()
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
        if self._signer is not None and self.is_renewed():
            self._bound_at = self._signer.generation
            self._signing = self._signer.bound(self.uid, anchor_of(self._secret))
        return PublisherRequest(
            self.info_type.bundle, self.entries, self.validate, self._secret, self._signing, self.qos
        )

    def is_renewed(self) -> bool:
        """Whether another certificate answers for its key than the last `request` said."""
        return self._signer is not None and self._bound_at != self._signer.generation

    def renew_again(self) -> None:
        """The last `request` has not come."""
        self._bound_at = -1

    @property
    def signs(self) -> bool:
        """Whether its objects are signed."""
        return self._signer is not None

    def check(self, metadata: bytes) -> None:
        """Raises MetadataError, InvariantError or OversizeError, each naming the element's path."""
        if metadata == self._checked:
            return
        self._conformity.check(metadata)
        self._checked = metadata

    def next_objects(self, run: Sequence[tuple[bytes, bytes]]) -> list[Parcel]:
        """The next objects, of metadata and payloads. Call under `lock`. Raises SignatureError."""
        kind, now, uid = self.info_type.type, time.time(), self.uid
        since = time.monotonic()
        first = self.sequence + 1
        parcels = [
            pack(
                Head("", uid, number, now, kind.name, kind.version, metadata, len(payload)),
                payload,
                since,
            )
            for number, (metadata, payload) in enumerate(run, first)
        ]
        if self._signer is not None:
            signer = self._signer
            parcels = [_signed(each, body, signer) for each, (_, body) in zip(parcels, run, strict=True)]
        self.sequence += len(run)
        return parcels


def _signed(parcel: Parcel, payload: bytes, signer: Signer) -> Parcel:
    signature = signer.sign(head_bytes(parcel.head, digest(payload)))
    return pack(msgspec.structs.replace(parcel.head, signature=signature), payload, parcel.since)


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


def runs_of(
    objects: Iterable[tuple[Document, Payload]], check: Callable[[bytes], None] = lambda _metadata: None
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Many objects in runs of some, their metadata checked; from a source that takes its time, one by one. What comes
    before a bad one is given first; then the errors of `check` are raised, or the source's own, or ArgumentError for
    what is no pair of metadata and payload."""
    run: list[tuple[bytes, bytes]] = []
    size = 0
    began = time.monotonic()
    try:
        for given in objects:
            metadata, payload = _pair(given)
            check(metadata)
            run.append((metadata, payload))
            size += len(metadata) + len(payload)
            if len(run) == RUN_ITEMS or size >= RUN_BYTES or time.monotonic() - began > RUN_SECONDS:
                yield run
                run, size, began = [], 0, time.monotonic()
    except Exception:
        if run:
            yield run
        raise
    if run:
        yield run


@contextmanager
def counting(ids: Sized) -> Iterator[None]:
    """Whatever ends the publishing of many says how many objects, of `ids`, were published before."""
    try:
        yield
    except JbiError as exc:
        exc.facts["published"] = len(ids) + published(exc)
        raise
    except Exception as exc:
        exc.add_note(f"publish_many: {len(ids)} objects were published before")
        raise


def published(exc: JbiError) -> int:
    """How many objects of many were published before one was refused."""
    count = exc.facts.get("published")
    return count if isinstance(count, int) else 0


def _pair(given: object) -> tuple[bytes, bytes]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentError(
            f"publish_many takes pairs (metadata, payload), not {type(given).__name__}",
            hint="Give None as the payload where there is none",
            call="publish_many",
            argument="objects",
        )
    metadata, payload = given
    if type(metadata) is not bytes:
        METADATA.check(metadata)
        metadata = content(metadata, what="metadata")
    if type(payload) is not bytes:
        PAYLOAD.check(payload)
    return metadata, payload_bytes(payload)


def opened(
    info_type: InformationType,
    invariants: Document,
    *,
    validate: bool,
    signer: Signer | None = None,
    qos: Wish | None = None,
) -> Publication:
    """A new registration with its invariant metadata (paper section 2.4(3)). Raises MetadataError, and
    ConfigurationError for a wish that makes no sense."""
    if qos is not None:
        checked_wish(qos)
    path = path_of(invariants)
    what = "invariant metadata" if path is None else f"invariant metadata {path}"
    root = parse_metadata(content(invariants, what="invariant metadata"), what=what)
    entries = info_type.entries(root)
    return Publication(info_type, entries, validate, signer, qos)
