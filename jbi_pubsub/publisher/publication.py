"""Parts of both publishers' adapters: opening a registration's type, and making information objects."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple, NewType

import msgspec

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.arguments import Argument, Document, Source, content, path_of, source
from jbi_pubsub.core.config import ClientSection
from jbi_pubsub.core.errors import (
    ArgumentError,
    ConfigurationError,
    JbiError,
    OversizeError,
    SchemaError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import (
    DEFAULT_VERSION,
    Head,
    ObjectAttributes,
    Parcel,
    SchemaBundle,
    TypeName,
    check_type_name,
    pack,
)
from jbi_pubsub.core.quality import Wish, checked_wish
from jbi_pubsub.core.signing import Signer, SigningKey, anchor_of, digest, head_bytes, signed_uid
from jbi_pubsub.core.wire.stream import MAX_BATCH_BYTES
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.conformity import Conformity
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import MAX_OWNER, PublisherRequest
from jbi_pubsub.protocol.sending import SENDING, Sending, check_sending

from .payloads import Body, Payload

RegistrationUid = NewType("RegistrationUid", str)
"""Identifies a registration to publish, in all calls of the adapter that made it."""


METADATA: Final = Argument("publish_many", "metadata", Document | None)
PAYLOAD: Final = Argument("publish_many", "payload", Payload)

PAYLOAD_MOST: Final = ClientSection().max_payload

RUN_ITEMS: Final = 100
RUN_BYTES: Final = MAX_BATCH_BYTES
"""Bytes of objects that are published together: a batch, or a part of one."""
RUN_SECONDS: Final = 0.01
"""Time that objects wait for others to come: what has come may be all for a while."""


class PublisherTerms(NamedTuple):
    """Terms for all objects of a registration: see PublisherAdapterLight.register_publisher."""

    validate: bool = True
    well_formed: bool = True
    reliable: bool = True
    expiration: float = 0.0
    local: bool = False
    owner: str = ""
    qos: Wish = Wish()
    persist: bool | None = None
    max_metadata: int = MAX_METADATA_BYTES
    """Bytes."""
    max_payload: int = PAYLOAD_MOST
    """Bytes."""
    sending: Sending = SENDING


class RegistrationOptions(NamedTuple):
    """Arguments of register_publisher that say what is published and how, as they were given."""

    schema: Source | None
    marks: Source | None
    type_name: str | None
    version: str | None
    locations: Mapping[str, Path] | None
    validate: bool | None
    well_formed: bool | None
    qos: Wish | None
    persist: bool | None
    reliable: bool | None
    expiration: float | None
    local: bool
    owner: str | None
    sending: Sending | None

    def terms(self, client: ClientSection) -> PublisherTerms:
        """Terms as given, and for what was not given, as [client] says. Raises ConfigurationError."""
        seconds = client.expiration if self.expiration is None else self.expiration
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ConfigurationError(f"expiration {seconds} is not a time", hint="Seconds; 0 is never")
        owner = self.owner or ""
        if len(owner) > MAX_OWNER:
            raise ConfigurationError(f"owner has {len(owner)} characters, the limit is {MAX_OWNER}")
        if self.qos is not None:
            checked_wish(self.qos)
        reliable = client.reliable if self.reliable is None else self.reliable
        sending = self.sending or Sending("reliable" if reliable else "unreliable")
        check_sending(sending)
        return PublisherTerms(
            client.validate if self.validate is None else self.validate,
            client.well_formed if self.well_formed is None else self.well_formed,
            reliable, seconds, self.local, owner, self.qos or Wish(), self.persist,
            client.max_metadata, client.max_payload, sending,
        )  # fmt: skip

    def open_type(
        self, types: TypeRepository, known: Callable[[TypeName], SchemaBundle | None], *, validate: bool
    ) -> InformationType | UntypedGate:
        """The type of the schema; without one, of that which is `known` by the name. Raises SchemaError,
        TypeConflictError, ConfigurationError, ArgumentError."""
        check_type_name(self.type_name, self.version)
        if self.schema is None:
            if not self.type_name or self.marks is not None or self.locations is not None:
                raise ArgumentError(
                    "register_publisher without a schema takes type_name (and version),"
                    " and neither marks nor locations",
                    hint="Give the schema, or the name of a type in the type repository",
                    call="register_publisher",
                    argument="schema",
                )
            return _named_type(types, TypeName(self.type_name, self.version or DEFAULT_VERSION), validate, known)
        bundle = read_bundle(
            source(self.schema),
            marks=None if self.marks is None else source(self.marks),
            name=self.type_name or "",
            version=self.version or DEFAULT_VERSION,
            locations=self.locations or {},
        )
        return types.open_schema(bundle)


class LocalPublication:
    """A registration as its publisher sees it: numbers its objects and checks them before they leave.

    `lock` is held from numbering an object until it is queued, so that order is the order of publish calls. `uid` is
    public; the secret that it is made from is told to the delegates that are to publish under it, and nobody else.
    With a signer objects are signed, and the id is made from its key, too.
    """

    def __init__(
        self,
        info_type: InformationType | UntypedGate,
        entries: tuple[EntryRep, ...],
        terms: PublisherTerms,
        signer: Signer | None = None,
    ):
        self._secret = token_hex(16)
        self._signer = signer
        self.signs = signer is not None
        """Whether its objects are signed."""
        self._signing: SigningKey | None = None
        uid = owned_uid("registration", self._secret)
        if signer is not None:
            uid = signed_uid(anchor_of(self._secret), signer.public)
        self.uid = RegistrationUid(uid)
        self._bound_at = -1
        """Generation of the signer's certificate that delegates were told of."""
        self.info_type = info_type
        self.entries = entries
        self.terms = terms
        self.sequence = 0
        self.number = 1
        """Number of the registration at its delegate."""
        self.lock = threading.Lock()
        self._conformity = Conformity(info_type, entries, validate=terms.validate, well_formed=terms.well_formed)
        self._checked: bytes | None = None
        """The metadata that passed last, if any did: a source whose objects differ in their payloads alone need not
        wait for the same answer again."""

    def request(self) -> PublisherRequest:
        """Request to the delegate."""
        if self._signer is not None and self.is_renewed():
            self._bound_at = self._signer.generation
            self._signing = self._signer.bound(self.uid, anchor_of(self._secret))
        terms = self.terms
        return PublisherRequest(
            self.info_type.bundle, self.entries, terms.validate, self._secret, self._signing, terms.qos, terms.persist,
            terms.well_formed, terms.expiration, terms.local, terms.owner, sending=terms.sending,
        )  # fmt: skip

    def is_renewed(self) -> bool:
        """Whether another certificate answers for its key than the last `request` said."""
        return self._signer is not None and self._bound_at != self._signer.generation

    def renew_again(self) -> None:
        """The last `request` has not come."""
        self._bound_at = -1

    def check(self, metadata: bytes) -> None:
        """Raises MetadataError, InvariantError or OversizeError, each naming the element's path."""
        if metadata == self._checked:
            return
        size, limit = len(metadata), self.terms.max_metadata
        if size > limit:
            raise OversizeError(f"metadata has {size} bytes, the limit is {limit}", size=size, limit=limit)
        self._conformity.check(metadata)
        self._checked = metadata

    def next_objects(
        self, run: Sequence[tuple[bytes, Body]], attributes: ObjectAttributes | None = None
    ) -> list[Parcel]:
        """The next objects, of metadata and payloads, each with these attributes. Call under `lock`. Raises
        SignatureError."""
        kind, now, uid = self.info_type.type, time.time(), self.uid
        since = time.monotonic()
        first = self.sequence + 1
        parcels = [
            pack(
                Head("", uid, number, now, kind.name, kind.version, metadata, len(payload), attributes=attributes),
                payload,
                since,
            )
            for number, (metadata, payload) in enumerate(run, first)
        ]
        if self._signer is not None:
            signer = self._signer
            parcels = [_signed(each, body, signer) for each, (_, body) in zip(parcels, run, strict=True)]
        if attributes is not None and attributes.timeout:
            for parcel in parcels:
                parcel.expires = since + attributes.timeout
        self.sequence += len(run)
        return parcels


def _signed(parcel: Parcel, payload: Body, signer: Signer) -> Parcel:
    signature = signer.sign(head_bytes(parcel.head, digest(payload)))
    return pack(msgspec.structs.replace(parcel.head, signature=signature), payload, parcel.since)


def _named_type(
    types: TypeRepository, type_: TypeName, validate: bool, known: Callable[[TypeName], SchemaBundle | None]
) -> InformationType | UntypedGate:
    hint = "Give the schema, add it to the repository (`jbi types add`), or register with validate=False"
    try:
        bundle = known(type_)
    except UnknownUidError as exc:
        bundle, hint = None, exc.hint or hint
    if bundle is None:
        if validate:
            raise SchemaError(
                f"there is no schema of {type_}: none was given, and no type repository has one",
                hint=hint,
                type=str(type_),
            )
        return types.untyped(type_)
    found = types.open_schema(bundle)
    if found.type != type_:
        types.forget(found.type)
        raise SchemaError(f"what the type repository gives for {type_} is the schema of {found.type}", type=str(type_))
    return found


def metadata_bytes(metadata: Document | None) -> bytes:
    """The bytes of metadata; none of what has no metadata. Raises MetadataError (unreadable file)."""
    return b"" if metadata is None else content(metadata, what="metadata")


def runs_of(
    objects: Iterable[tuple[Document | None, Payload]],
    check: Callable[[bytes], None] = lambda _metadata: None,
    *,
    body: Callable[[Payload], Body],
    at_once: int = 0,
) -> Iterator[list[tuple[bytes, Body]]]:
    """Many objects in runs of some, their metadata checked; from a source that takes its time, one by one. Payloads of
    up to `at_once` bytes that are bytes go as they are, others as `body` says. What comes before a bad one is given
    first; then the errors of `check` or `body` are raised, or the source's own, or ArgumentError for what is no pair of
    metadata and payload."""
    run: list[tuple[bytes, Body]] = []
    size = 0
    began = time.monotonic()
    try:
        for given in objects:
            metadata, payload = given if type(given) is tuple and len(given) == 2 else _pair(given)
            if type(metadata) is not bytes:
                METADATA.check(metadata)
                metadata = metadata_bytes(metadata)
            if type(payload) is not bytes:
                PAYLOAD.check(payload)
                payload = body(payload)
            elif len(payload) > at_once:
                payload = body(payload)
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
    """Number of objects of many that were published before one was refused."""
    count = exc.facts.get("published")
    return count if isinstance(count, int) else 0


def _pair(given: object) -> tuple[Any, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentError(
            f"publish_many takes pairs (metadata, payload), not {type(given).__name__}",
            hint="Give None as the payload where there is none",
            call="publish_many",
            argument="objects",
        )
    return given


def opened(
    info_type: InformationType | UntypedGate,
    invariants: Document | None,
    terms: PublisherTerms,
    signer: Signer | None = None,
) -> LocalPublication:
    """A new registration with its invariant metadata (paper section 2.4(3)); None where nothing is. Raises
    MetadataError, ArgumentError, InvariantError (one is missing that all valid metadata have), SchemaError for what
    can't be validated."""
    if invariants is None:
        if isinstance(info_type, InformationType) and info_type.has_invariants:
            raise ArgumentError(
                f"register_publisher: invariants is None, and {info_type.type} has a schema that asks for them",
                hint="Give a document with the elements that stay constant",
                call="register_publisher",
                argument="invariants",
            )
        return LocalPublication(info_type, (), terms, signer)
    path = path_of(invariants)
    what = "invariant metadata" if path is None else f"invariant metadata {path}"
    root = parse_metadata(content(invariants, what="invariant metadata"), what=what)
    entries = info_type.entries(root)
    if isinstance(info_type, InformationType) and terms.validate:
        info_type.check_complete(root, what=what)
    return LocalPublication(info_type, entries, terms, signer)
