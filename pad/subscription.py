"""Subscriptions and publisher registrations as clients send them and as a delegate keeps them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import msgspec

from jbi_pubsub.core import combined
from jbi_pubsub.core.errors import AccessDeniedError, AddressError, ConfigurationError, EntryError, OversizeError
from jbi_pubsub.core.history import MAX_POSITION, Count, Order, Position, Seconds
from jbi_pubsub.core.info_object import Cause, SchemaBundle
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.quality import Contract, GrantedQos, Unmet, Wish, checked_wish
from jbi_pubsub.core.signing import CHAIN_MOST, SigningKey, anchor_of, signed_uid
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xpath import CHARGED, Charge, PayloadFilter, Predicate, compile_filter, compile_predicate
from jbi_pubsub.core.xpath.predicate import XPATH, compiler_of
from jbi_pubsub.core.xpath.view import inside
from jbi_pubsub.lookup.entry import Entry, EntryRep
from jbi_pubsub.lookup.item import BOUNDS, ServiceTemplate

if TYPE_CHECKING:
    from jbi_pubsub.core.wire.endpoint import Caller
    from jbi_pubsub.pad.durable import Durable
    from jbi_pubsub.pad.rights import Rights

MAX_RECIPIENTS: Final = 100
"""RFC 5321 4.5.3.1.8: a server must take at least 100 recipients of one message."""
MAX_NAMESPACES: Final = 16_384
"""Characters of all prefixes and URIs of a request: what asks an archive has them once for each type."""
MAX_BOUND: Final = 10_000_000
MAX_BLOCK_SECONDS: Final = 60.0
"""Longest that one subscriber may hold a publisher up, under policy `block`."""
MAX_TEXT: Final = 1_024
MAX_OWNER: Final = 64
"""Characters of the name of an owner of registrations."""
MIN_SECRET: Final = 32
"""Characters of a secret that an id is made from: 128 bits in hexadecimal, as many as the id keeps of the digest."""
DIGEST_ATTRIBUTE: Final = "mail_digest_seconds"
"""Attribute of an e-mail subscription: objects are gathered for so many seconds, and sent in one mail."""
_ATTRIBUTES: Final = (DIGEST_ATTRIBUTE,)
_NEAR: Final = 0.8
"""Of difflib's ratio: three letters of a name of 19 may be others, or five be missing."""
MAX_DIGEST_SECONDS: Final = 86_400.0
"""A day: what is gathered longer takes room that other mail needs."""

Policy = Literal["drop_oldest", "drop_newest", "block"]


PAD_TYPE: Final = "jbi.PublisherAdapterDelegate"
"""Service type of a delegate in the lookup service."""
PUBLISHER_TYPE: Final = "jbi.PublisherRegistration"
"""Service type of whatever a subscriber can register with: a registration at a delegate or a peer publisher."""
BRIDGE_TYPE: Final = "jbi.Bridge"
"""Service type of the item by which a bridge has a platform's queries answered from another one as well."""
PROVIDER_TYPE: Final = "jbi.Provider"
"""Service type of the item by which an application answers queries of others itself."""
ANSWERING_TYPES: Final = frozenset((BRIDGE_TYPE, PROVIDER_TYPE))
"""Who answers queries, and has no archive to look after."""
PEER_TYPE: Final = "jbi.PeerPublisher"
"""Further service type of a peer publisher's registrations."""


@dataclass(frozen=True, kw_only=True)
class InformationType(Entry):
    """What a registration publishes: the information object type and a digest of its schema (paper 2.1).

    `local` is the last part of the name: who knows no more asks for that, also before anybody publishes the type.
    """

    entry_name = "jbi.InformationType"
    name: str | None = None
    version: str | None = None
    schema: str | None = None
    local: str | None = None


def local_name(name: str) -> str:
    """Of a type: what stands behind its namespace, or behind the last dot."""
    return re.split(r"[}.]", name)[-1]


@dataclass(frozen=True, kw_only=True)
class PublisherAdapterDelegate(Entry):
    """The two arbitrary strings that characterise a delegate (paper 2.4)."""

    entry_name = "jbi.PublisherAdapterDelegate"
    name: str | None = None
    location: str | None = None


@dataclass(frozen=True, kw_only=True)
class SigningKeyEntry(Entry):
    """What the objects of a registration are signed with: the fields of a SigningKey in base64, those of its chain with
    a space between."""

    entry_name = "jbi.SigningKey"
    key: str | None = None
    anchor: str | None = None
    chain: str | None = None
    statement: str | None = None
    consent: str | None = None

    @classmethod
    def of(cls, key: SigningKey) -> SigningKeyEntry:
        """The entry for a key."""
        texts = [_base64(part) for part in (key.key, key.anchor, key.statement, key.consent)]
        return cls(
            key=texts[0], anchor=texts[1], chain=" ".join(map(_base64, key.chain)), statement=texts[2], consent=texts[3]
        )

    def signing_key(self) -> SigningKey:
        """The key that it stands for. Raises EntryError; whether it holds is another question."""
        said = {
            "key": self.key, "anchor": self.anchor, "chain": (self.chain or "").split(" ", CHAIN_MOST),
            "statement": self.statement, "consent": self.consent,
        }  # fmt: skip
        try:
            return converted(said, SigningKey)
        except msgspec.ValidationError as exc:
            raise EntryError(f"a signing key that can't be read: {exc}", entry_class=self.entry_name) from exc


@dataclass(frozen=True, kw_only=True)
class ArchiveEntry(Entry):
    """On the item of a delegate, or an item of its own of a peer publisher: it has an archive, which takes queries
    (`proxy.HISTORY`, beside the SUBSCRIPTIONS that sessions are opened with). `types`: the names of the types in it,
    with a space between; unset: they are too many to say, or not known. `incarnation`: see `proxy.QueryOpened`."""

    entry_name = "jbi.Archive"
    types: str | None = None
    incarnation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProvenanceEntry(Entry):
    """Who publishes under a registration, and where, beside its other entries in an archive, and what goes from there
    to others: see core/combined.Provenance. `addresses` with a space between; `relayed` is set if that is so."""

    entry_name = "jbi.Provenance"
    publisher: str | None = None
    node: str | None = None
    addresses: str | None = None
    owner: str | None = None
    relayed: str | None = None

    @classmethod
    def of(cls, origin: combined.Provenance) -> ProvenanceEntry:
        """The entry for it."""
        return cls(
            publisher=origin.publisher,
            node=origin.node,
            addresses=" ".join(origin.addresses),
            owner=origin.owner,
            relayed="yes" if origin.is_relayed else None,
        )


@dataclass(frozen=True, kw_only=True)
class LocalEntry(Entry):
    """On the item of a registration whose objects are for the subscribers of its delegate alone: a bridge leaves it."""

    entry_name = "jbi.Local"


@dataclass(frozen=True, kw_only=True)
class ExpirationEntry(Entry):
    """On the item of a registration whose objects wait for so many seconds (PublisherRequest.expiration)."""

    entry_name = "jbi.Expiration"
    seconds: str | None = None


@dataclass(frozen=True, kw_only=True)
class TypesEntry(Entry):
    """On the item of a delegate that has a type repository: its export `types` says what is known there."""

    entry_name = "jbi.Types"


@dataclass(frozen=True, kw_only=True)
class RelayedEntry(Entry):
    """On the item of a registration that was made on another platform: the fields of its Origin, with a space between
    the names."""

    entry_name = "jbi.Relayed"
    via: str | None = None
    bridge: str | None = None


@dataclass(frozen=True, kw_only=True)
class NumberedEntry(Entry):
    """On the item of such a registration if a number that does not come is an object that did not (Origin.first)."""

    entry_name = "jbi.Numbered"


_OUR_ENTRIES: Final = {
    each.entry_name
    for each in (
        InformationType,
        PublisherAdapterDelegate,
        SigningKeyEntry,
        ArchiveEntry,
        TypesEntry,
        ProvenanceEntry,
        LocalEntry,
        ExpirationEntry,
        RelayedEntry,
        NumberedEntry,
    )
}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


HOPS_MOST: Final = 16
"""Platforms that an object may have passed: who comes to more goes in a circle."""
PLATFORM_NAME: Final = re.compile(r"[0-9A-Za-z._-]{1,64}")
"""Of a platform, of a bridge, and the id of a registration that is relayed."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a registration comes from that was made on another platform."""

    via: tuple[str, ...]
    """The names of the platforms that its objects have passed, in order: the first one is its publisher's."""
    bridge: str
    """The id of who relays it. It is public: of several bridges one has a registration, and the others see whose it
    is."""
    first: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    """From which number on it has all objects; 0: none has come yet. None: it does not say, and of numbers that do not
    come nothing is told (they are times, or the bridge is older than this field)."""


class _Owned(msgspec.Struct, frozen=True):
    """A request whose `secret` proves whose id it is for: it is not shown."""

    def __repr__(self) -> str:
        names = (name for name in self.__struct_fields__ if name != "secret")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class PublisherRequest(_Owned, frozen=True, forbid_unknown_fields=True):
    """What a publisher registers: the schema of its metadata and its invariant metadata as Entries (paper 2.4(3)).

    `validate` False skips validation of each object; invariants are always checked. `secret` is the publisher's own:
    the registration's id is made from it (`owned_uid`), and with it another delegate can take the registration over
    in the lookup services; nobody else can do either. `signing` is what the objects are signed with, if they are: the
    id is made from that as well (`signed_uid`). `qos`: what it wishes.
    """

    schema: SchemaBundle
    entries: tuple[EntryRep, ...]
    validate: bool = True
    secret: str = ""
    signing: SigningKey | None = None
    qos: Wish = Wish()
    persist: bool | None = None
    """Whether its objects are archived; None: as the rules there say. True is refused where there is no archive."""
    well_formed: bool = True
    """Whether metadata are looked at for well-formedness; with `validate` or invariants they are in any case. Without,
    no predicate on them is true for what is none."""
    expiration: Seconds = 0.0
    """Seconds after publication at which an object that still waits for a subscriber is lost (`expired`); 0.0: never.
    What is archived stays there, and comes to who catches up with the archive."""
    local: bool = False
    """Whether its objects are for the subscribers of this delegate alone: bridges and networks do not take them on."""
    owner: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)] = ""
    """Of whom it is, for subscriptions that do not want what he publishes (`unlike`); "": nobody's."""
    origin: Origin | None = None
    """Of one that is relayed from another platform: it has the id that it has there, and `secret` is its bridge's."""


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a subscription begins, at a delegate with an archive. `new`: with what is published from now on; `all`:
    with the oldest object there; `since`: with the oldest published at or after `since`; `after`: behind that position,
    which is of one delegate alone; `last`: with the newest that matches, or of each key `latest_by` (an XPath)."""

    kind: Literal["new", "all", "since", "after", "last"] = "new"
    since: Seconds = 0.0
    after: Position = 0
    latest_by: str = ""
    archive: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)] = ""
    """The incarnation of the archive that gave the position: any other but its own later ones begins with the oldest
    object, and says so (`Granted.is_elsewhere`); "": not known, and taken for its own if it may be."""


NEW: Final = Start()

View = Literal["metadata", "combined"]
"""What a predicate is asked of: the metadata as they were published, or these within what the platform says of the
object (core/combined.py)."""

Unfiltered = Literal["withhold", "deliver"]
"""What becomes of an XML payload to which the payload filter can't be applied (core/xml.py, parse_payload): it is lost,
as `oversize`, or comes whole."""

Acknowledging = Literal["auto", "explicit"]
"""Of a durable subscription: what its application has taken is acknowledged (`Heard.consumed`), or what it says
(`Heard.acknowledged`)."""


class SubscriptionRequest(_Owned, frozen=True, forbid_unknown_fields=True):
    """What a subscriber registers with each delegate (paper 2.4(7)): one record of all that it can say.

    `uid` is the subscriber's own; `entries` the template, first level; `predicate` and `payload_filter` "" for
    none; `direct` asks for delivery to the subscriber's queue, `recipients` for e-mail; `attributes` are resolved
    once, here (`mail_digest_seconds`); `qos`: what it wishes. With recipients `uid` is made from `secret`
    (`owned_uid`), as it is not bound to a session alone: it stands in the mails, and says whose a lease is.
    """

    uid: str
    entries: tuple[EntryRep, ...] = ()
    predicate: str = ""
    payload_filter: str = ""
    namespaces: tuple[tuple[str, str], ...] = ()
    language: str = "xpath"
    suppress_empty: bool = False
    direct: bool = True
    recipients: tuple[str, ...] = ()
    bound: int = 10_000
    policy: Policy = "drop_oldest"
    block_seconds: float = 5.0
    attributes: tuple[tuple[str, str], ...] = ()
    secret: str = ""
    qos: Wish = Wish()
    start: Start = NEW
    """Where it begins; a durable one that is known goes on where it was."""
    durable: str = ""
    """The name that it is known by while its subscriber is away, with its owner; "" for none. Without certificates
    `secret` says whose it is."""
    ack: Acknowledging = "auto"
    view: View = "metadata"
    """Of the predicate; payload filter and template have nothing to do with it."""
    unlike: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)] = ""
    """Nothing of registrations with this `owner`; "": whoever publishes it."""
    local: bool = False
    """Only what was published at this delegate: nothing that a bridge or network has brought."""
    unfiltered: Unfiltered = "withhold"


def amended(standing: SubscriptionRequest, request: SubscriptionRequest) -> SubscriptionRequest | None:
    """What stands, with the terms of `request` that may be amended: template, predicate, payload filter and wish. None:
    it differs in others. Where it begins counts the first time alone."""
    changed = msgspec.structs.replace(
        standing,
        entries=request.entries,
        predicate=request.predicate,
        payload_filter=request.payload_filter,
        namespaces=request.namespaces,
        qos=request.qos,
    )
    return changed if changed == msgspec.structs.replace(request, start=standing.start) else None


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is asked of one delegate's archive (see core/history.py); all conditions hold together."""

    type: str = ""
    """Name of the information object type; "" for all that the caller may read."""
    version: str = ""
    """Of the type; "" for every one."""
    entries: tuple[EntryRep, ...] = ()
    """The template, as of a subscription."""
    predicate: str = ""
    payload_filter: str = ""
    namespaces: tuple[tuple[str, str], ...] = ()
    language: str = "xpath"
    suppress_empty: bool = False
    since: Seconds = 0.0
    until: Seconds = 1e11
    by_receipt: bool = False
    after: Position = 0
    archive: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)] = ""
    """The incarnation that gave that position, as of a `Start`: an archive that it is not of refuses."""
    up_to: Position = MAX_POSITION
    registrations: tuple[str, ...] | None = None
    """Ids of registrations; None for all."""
    publisher: str = ""
    """The name that their publisher goes by; "" for all."""
    least_payload: Count = 0
    most_payload: Count = 2**53
    object_ids: tuple[str, ...] | None = None
    latest_by: str = ""
    order: Order = "oldest"
    limit: Count = 0
    bound: int = 100
    """Results that the caller may have which its application has not taken."""
    timeout: float = 0.0
    """Seconds after which it ends as "timed_out", by the delegate's clock; 0.0: as long as the session."""
    qos: Wish = Wish()
    view: View = "metadata"
    """Of the predicate, as of a subscription. `latest_by` is of the metadata."""
    passed: Annotated[tuple[str, ...], msgspec.Meta(max_length=HOPS_MOST)] = ()
    """The names of the platforms from which bridges have brought it, in order. Everything of these is asked already."""
    unfiltered: Unfiltered = "withhold"


def owned_uid(kind: str, secret: str) -> str:
    """The id of the registration or subscription (`kind`) that belongs to who knows `secret`.

    Half of a SHA-256 will do: who wants another's id has to find a second preimage (2^128 tries), who finds two
    secrets for one id (2^64) owns both. The label keeps it apart from whatever else is made from the secret.
    """
    return f"{kind}-{hashlib.sha256(f'jbi-pubsub {kind} 1:{secret}'.encode()).hexdigest()[:32]}"


def check_owner(kind: str, uid: str, secret: str) -> None:
    """Raises AccessDeniedError for an id that is not made from `secret`, or from one that can be guessed."""
    proper = MIN_SECRET <= len(secret) <= MAX_TEXT
    if not proper or not hmac.compare_digest(owned_uid(kind, secret).encode(), uid.encode()):
        raise AccessDeniedError(
            f"{kind} {uid[:64]!r} is not proven to be the caller's own",
            hint=f"Send the secret that it is made from, of at least {MIN_SECRET} characters; earlier versions don't",
            uid=uid[:64],
        )


def check_publisher(uid: str, request: PublisherRequest) -> None:
    """Raises AccessDeniedError for a registration's id that is not made from the request's secret, and its signing key
    if it has one, and for entries that are the delegate's to make: a registration would be found under another type."""
    for entry in request.entries:
        if own := next((name for name, _ in entry.cls.lineage if name in _OUR_ENTRIES), ""):
            raise AccessDeniedError(
                f"registration {uid[:64]!r} has an entry of class {own}, which its delegate makes",
                hint="Register the entries of the document alone",
                uid=uid[:64],
            )
    if request.origin is not None:
        _check_relayed(uid, request, request.origin)
        return
    if request.signing is None:
        check_owner("registration", uid, request.secret)
        return
    anchor, key = anchor_of(request.secret), request.signing.key
    proper = MIN_SECRET <= len(request.secret) <= MAX_TEXT
    if (
        not proper
        or anchor != request.signing.anchor
        or not hmac.compare_digest(signed_uid(anchor, key).encode(), uid.encode())
    ):
        raise AccessDeniedError(
            f"registration {uid[:64]!r} is not proven to be the caller's own",
            hint="Send the secret and the signing key that it is made from",
            uid=uid[:64],
        )


def _check_relayed(uid: str, request: PublisherRequest, origin: Origin) -> None:
    """That its id is its own, its bridge vouches for, unless it signs: then the id is made from its key."""
    names = (uid, origin.bridge, *origin.via)
    if not all(map(PLATFORM_NAME.fullmatch, names)) or not 1 <= len(origin.via) <= HOPS_MOST:
        raise AccessDeniedError(
            f"registration {uid[:64]!r} can't be relayed: {len(origin.via)} platforms passed, or a name that is none",
            hint=f"1 to {HOPS_MOST} platforms; names of letters, digits, '.', '_' and '-', 64 at most",
            uid=uid[:64],
        )
    if not MIN_SECRET <= len(request.secret) <= MAX_TEXT:
        raise AccessDeniedError(f"registration {uid} is relayed without a secret of the bridge's", uid=uid)
    if request.signing is not None and signed_uid(request.signing.anchor, request.signing.key) != uid:
        raise AccessDeniedError(f"registration {uid} is not that of its signing key", uid=uid)


def origin_of(entries: Iterable[EntryRep]) -> Origin | None:
    """What the entries of an item say of that; None: its publisher is here. Raises EntryError."""
    known = {rep.cls.name: rep for rep in entries}
    rep = known.get(RelayedEntry.entry_name)
    if rep is None:
        return None
    said = RelayedEntry.from_rep(rep)
    first = 0 if NumberedEntry.entry_name in known else None
    return Origin(tuple((said.via or "").split(" ", HOPS_MOST)), said.bridge or "", first)


NOT_BEFORE: Final = -math.inf
"""The age of a subscription that wants nothing of what was published before it came here."""


PREFETCH_LEAST: Final = 64
"""Objects that a subscriber may have beyond what its application has taken, under quality of service, however slow that
is: so many do not wait where others may pass them."""


class Granted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a subscription: its number on the session's delivery connection; a lease if it is e-mail-only; what it
    has got of what it wishes; `prefetch`: a quarter of so many that its application has taken is told by itself, 0: of
    its bound."""

    number: int
    lease: Lease | None = None
    qos: GrantedQos = GrantedQos()
    prefetch: int = 0
    placed: bool = False
    """Whether its objects come with their positions (items PLACED): it begins elsewhere than with what is new, or is
    durable, and there is an archive."""
    incarnations: tuple[str, ...] = ()
    """Which archive that is: see `proxy.QueryOpened`."""
    is_elsewhere: bool = False
    """Whether it was to begin behind a position that this archive has not given: all that is here comes."""
    is_new: bool = False
    """Whether no durable subscription of that name was known here: it begins by its `start`."""
    narrowed: bool = False
    """Whether access rules may keep objects from it that it matches: a number that does not come need not be a loss."""


FAR: Final = sys.maxsize
"""A position that no object reaches: of a subscription that is on its way into the match tables."""


@dataclass(eq=False, slots=True)
class Subscription:
    """A subscription at a delegate, compiled. `owner` is the subscriber session's id, or the lease id of e-mail.

    `number` names it on the data plane of its session. Counters of objects are changed under the lock of
    who holds them, the session or the mail queue.
    """

    request: SubscriptionRequest
    owner: str = field(repr=False)
    number: int
    predicate: Predicate | None
    """On the metadata."""
    payload_filter: PayloadFilter | None
    lease_id: str = field(default="", repr=False)
    """Of an e-mail-only subscription."""
    caller: Caller | None = field(default=None, repr=False)
    """Who has asked for it, the last time; None: the application that a peer publisher lives in."""
    matched: int = 0
    delivered: int = 0
    suppressed: int = 0
    unfiltered: int = 0
    """Payloads passed on unchanged because they are not XML, although there is a filter."""
    unshaped: int = 0
    """Payloads passed on unchanged although its contract has a shape."""
    saved: int = 0
    """Bytes less that were queued for it, by its shape."""
    mailed: int = 0
    """Objects times recipients that the mail server has taken."""
    digest_seconds: float = 0.0
    """How long objects are gathered for one mail; 0 sends each by itself."""
    mail_waiting: int = 0
    """Objects in the mail queue."""
    mail_suspended: dict[str, str] = field(default_factory=dict)
    """Recipients that get no mail any more, and the answer of the mail server that was the reason."""
    place: int = 0
    """Position at which it was in all match tables: what came up to then, it gets from the shelf, if at all."""
    rights: Rights | None = field(default=None, repr=False)
    """Of its caller, where access is restricted."""
    unmet: tuple[Unmet, ...] = field(default=(), repr=False)
    """What it requires and publishers that it gets objects of do not offer."""
    contract: Contract | None = field(default=None, repr=False)
    """What policies have decided for it, with QoS."""
    narrowed_by: str = ""
    """The rules that let through a part of some type alone."""
    durable: Durable | None = field(default=None, repr=False)
    """What it has had, over restarts."""
    set_aside: str = ""
    """Why it is not evaluated for some registration that it matches; "" where it is for all."""
    share: tuple[str, int] = field(default=("", 0), repr=False)
    """What its request takes of its peer's (see account.RequestQuota)."""
    is_replayed: bool = False
    """It began in the past, and catches up with an archive."""
    replayed: int = 0
    """Objects that it caught up with; they count in the others, too."""
    combined: Predicate | None = field(default=None, repr=False)
    """On the combined view, instead of one on the metadata (see core/combined.py)."""
    is_selective: bool = field(default=False, repr=False)
    """It does not want all that it matches by the metadata: it has a predicate on the combined view, or does not want
    what some publish."""
    lost: Counter[str] = field(default_factory=Counter)
    revision: int = field(default=0, repr=False)
    """Of its terms; odd while they change."""
    ended: Cause = Cause.CANCELLED
    """Why what still comes for it after its end is lost."""

    @property
    def uid(self) -> str:
        """The subscriber's id for it."""
        return self.request.uid

    def meter_lost(self, type_name: str) -> None:
        """An object is lost that was in no queue."""
        if self.contract is not None and self.contract.meter is not None:
            self.contract.meter.lost(type_name)

    def amend(self, other: Subscription) -> None:
        """It has the terms of `other` from now on: what it asks for, not what came of it."""
        self.revision += 1
        self.request, self.set_aside = other.request, ""
        self.predicate, self.combined, self.payload_filter = other.predicate, other.combined, other.payload_filter
        self.is_selective, self.narrowed_by, self.contract = other.is_selective, other.narrowed_by, other.contract
        self.revision += 1

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What is evaluated for it: a predicate that the index does not take as a whole, a payload filter."""
        return self.charges_by(self.predicate)

    def charges_by(self, predicate: Predicate | None) -> tuple[Charge, ...]:
        """The same, where it is matched by another predicate than its own."""
        wanted = self.payload_filter
        charges: list[Charge] = []
        if predicate is not None and predicate.evaluates:
            charges.append((predicate.identity, CHARGED * predicate.cost))
        if self.combined is not None and self.combined.evaluates:
            charges.append((self.combined.identity, CHARGED * self.combined.cost))
        if wanted is not None:
            charges.append((wanted, CHARGED * wanted.cost))
        return tuple(charges)

    def status(self) -> dict[str, object]:
        """Plain data for status pages."""
        request = self.request
        evaluated = [each for each in (self.predicate, self.combined, self.payload_filter) if each is not None]
        return {
            "uid": self.uid,
            "owner": shown(self.owner),
            "template": [shown_entry(e) for e in request.entries],
            "predicate": request.predicate,
            "filter": request.payload_filter,
            **({"view": request.view} if request.view != "metadata" else {}),
            **({"unlike": request.unlike} if request.unlike else {}),
            **({"local": request.local} if request.local else {}),
            "narrowed_by": self.narrowed_by,
            "recipients": list(request.recipients),
            "direct": request.direct,
            "policy": request.policy,
            "bound": request.bound,
            "matched": self.matched,
            "delivered": self.delivered,
            "mailed": self.mailed,
            "mail_waiting": self.mail_waiting,
            "mail_suspended": dict(self.mail_suspended),
            "mail_digest_seconds": self.digest_seconds,
            "suppressed": self.suppressed,
            "unfiltered": self.unfiltered,
            "unshaped": self.unshaped,
            "saved": self.saved,
            "failed": sum(each.errors for each in evaluated),
            "last_failure": next((each.last_error for each in evaluated if each.last_error), ""),
            "replayed": self.replayed,
            "lost": dict(self.lost),
            **({"set_aside": self.set_aside} if self.set_aside else {}),
            **({"qos": _qos(self.contract)} if self.contract is not None else {}),
            **({"unmet": msgspec.to_builtins(self.unmet)} if self.unmet else {}),
        }


def _qos(contract: Contract) -> dict[str, object]:
    """Plain data: what is in force, and what came of it."""
    settings = contract.settings
    rate = settings.max_rate
    return {
        "importance": settings.importance,
        "deadline": settings.deadline,
        "shapes": [str(shape) for shape in settings.shapes],
        "max_size": settings.max_size,
        "max_rate": f"{rate.amount:g} {rate.unit}/s" if rate is not None else None,
        "replace": settings.replace,
        "version": settings.version,
        **(contract.meter.status(time.monotonic()) if contract.meter is not None else {}),
    }


def shown(uid: str) -> str:
    """How a session or connection id, which is the right to what it names, is shown to others."""
    kind, dash, _ = uid.partition("-")
    return f"{kind}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}" if dash else uid


def compile_subscription(request: SubscriptionRequest, *, owner: str, number: int) -> Subscription:
    """Check and compile. Raises PredicateError (naming the argument), AddressError, ConfigurationError."""
    if not request.direct and not request.recipients:
        raise ConfigurationError("a subscription needs a queue, e-mail recipients, or both")
    if request.view not in get_args(View):
        raise ConfigurationError(f"unknown view {request.view!r}", hint=f"Use {' or '.join(get_args(View))}")
    check_unfiltered(request.unfiltered)
    if len(request.unlike) > MAX_OWNER:
        raise ConfigurationError(f"unlike has {len(request.unlike)} characters, the limit is {MAX_OWNER}")
    if request.policy not in get_args(Policy):
        raise ConfigurationError(f"unknown queue policy {request.policy!r}", hint=f"Use {', '.join(get_args(Policy))}")
    if not (math.isfinite(request.block_seconds) and 0 <= request.block_seconds <= MAX_BLOCK_SECONDS):
        raise ConfigurationError(f"block_seconds {request.block_seconds} is not in 0..{MAX_BLOCK_SECONDS:g}")
    if max(len(request.uid), *(len(k) + len(v) for k, v in (*request.attributes, ("", "")))) > MAX_TEXT:
        raise OversizeError(f"a subscription's id or attribute has more than {MAX_TEXT} characters")
    _check_attributes(request.attributes)
    checked_wish(request.qos)  # first: what is of no type of ours has no size
    check_request(request)
    _check_start(request)
    if not 1 <= request.bound <= MAX_BOUND:
        raise ConfigurationError(f"queue bound {request.bound} is not in 1..{MAX_BOUND}", bound=request.bound)
    check_recipients(request.recipients)
    check_namespaces(request.namespaces)
    spaces = dict(request.namespaces)
    predicate = payload_filter = None
    if request.language != XPATH:
        compiler_of(request.language)  # also of one that says nothing in it
    if request.predicate:
        predicate = compile_predicate(request.predicate, namespaces=spaces, language=request.language)
    if request.payload_filter:
        payload_filter = compile_filter(request.payload_filter, namespaces=spaces)
    digest = _digest_seconds(request)
    made = Subscription(request, owner, number, predicate, payload_filter, digest_seconds=digest)
    if request.view == "combined" and predicate is not None:
        within = inside(request.predicate, spaces, combined.TOP) if request.language == XPATH else None
        if within is None:
            made.predicate, made.combined = None, predicate
        else:
            made.predicate = compile_predicate(within, namespaces=spaces)
    made.is_selective = made.combined is not None or bool(request.unlike) or request.local
    return made


def check_request(request: SubscriptionRequest) -> int:
    """Its size in bytes, all that it says together, so that it is kept and watched for. Raises OversizeError,
    EntryError."""
    BOUNDS.check_parts("a subscription", ServiceTemplate(entries=request.entries))
    return BOUNDS.check_size("a subscription", request)


def check_unfiltered(choice: str) -> None:
    """Raises ConfigurationError."""
    if choice not in get_args(Unfiltered):
        raise ConfigurationError(f"unfiltered: {choice[:40]!r}", hint=f"Use {' or '.join(get_args(Unfiltered))}")


def check_namespaces(namespaces: tuple[tuple[str, str], ...]) -> None:
    """Raises OversizeError."""
    size = sum(len(prefix) + len(uri) for prefix, uri in namespaces)
    if size > MAX_NAMESPACES:
        raise OversizeError(f"namespaces have {size} characters, the limit is {MAX_NAMESPACES}", limit=MAX_NAMESPACES)


def _check_start(request: SubscriptionRequest) -> None:
    """Raises ConfigurationError, PredicateError."""
    start = request.start
    if request.ack != "auto" and not request.durable:
        raise ConfigurationError(f"ack {request.ack!r} is for durable subscriptions", hint="Give it a name")
    if start.kind == "new" and not request.durable:
        return
    if request.recipients or not request.direct:
        what = "a subscription that begins in the past, or is durable, needs a queue, and no e-mail"
        raise ConfigurationError(what, hint="Mail is of what is published from now on: leave `start` out, or ask twice")
    if request.language != "xpath":
        what = f"a subscription that begins in the past, or is durable, is in XPath, not in {request.language[:40]!r}"
        raise ConfigurationError(what, hint="Leave the language out")
    if start.latest_by:
        if start.kind != "last":
            raise ConfigurationError('latest_by is for start "last" alone')
        compile_predicate(start.latest_by, namespaces=dict(request.namespaces), argument="latest_by")


def _check_attributes(attributes: tuple[tuple[str, str], ...]) -> None:
    """Names that are not known are others' to use; but one that is nearly a known one is a mistake, and would be
    without effect. Raises ConfigurationError."""
    for name, _ in attributes:
        known = near_name(name.casefold(), _ATTRIBUTES, _NEAR)
        if known and name not in _ATTRIBUTES:
            raise ConfigurationError(f"no attribute {name!r}", hint=f"Did you mean {known!r}?")


def _digest_seconds(request: SubscriptionRequest) -> float:
    value = dict(request.attributes).get(DIGEST_ATTRIBUTE, "0")
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_DIGEST_SECONDS:
        raise ConfigurationError(f"attribute {DIGEST_ATTRIBUTE} = {value!r} is not in 0..{MAX_DIGEST_SECONDS:g}")
    if seconds and not request.recipients:
        raise ConfigurationError(f"attribute {DIGEST_ATTRIBUTE} is for e-mail", hint="Name recipients")
    return seconds


def check_recipients(recipients: Sequence[str]) -> tuple[str, ...]:
    """The recipients, each exactly one e-mail address. Raises AddressError or OversizeError.

    Envelope strings would be rewritten silently by SMTP libraries, and "a@x, b@x" taken for one (measured).
    """
    if len(recipients) > MAX_RECIPIENTS:
        raise OversizeError(f"{len(recipients)} recipients, the limit is {MAX_RECIPIENTS} (RFC 5321 4.5.3.1.8)")
    for address in recipients:
        if len(address) > ADDRESS_MOST or not _PLAIN.fullmatch(address):
            shown = address[:ADDRESS_MOST]
            raise AddressError(
                f"{shown!r} is not exactly one plain e-mail address",
                hint="For example ops@example.org",
                address=shown,
            )
    return tuple(recipients)


ADDRESS_MOST: Final = 254
"""Characters of an e-mail address (RFC 5321 4.5.3.1.3, without the brackets)."""
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_PLAIN: Final = re.compile(rf"{_ATOM}(\.{_ATOM})*@([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|\[[A-Za-z0-9.:]+\])")
"""RFC 5321 4.1.2, without quotes and comments. No library reads it: strangers send these, and Python's parser of
addresses ends with errors that are not its own for some (`a@[`, thousands of parentheses)."""


def shown_entry(entry: EntryRep) -> str:
    """For people: its class, and the fields that are set."""
    set_fields = [f"{name}={value}" for name, value in entry.as_dict().items() if value is not None]
    return f"{entry.cls.name}({', '.join(set_fields)})"
