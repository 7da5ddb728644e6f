"""Requests to a delegate: publisher registrations, subscriptions and queries, with the bounds of each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, get_args

import msgspec

from jbi_pubsub.core.errors import AddressError, ConfigurationError, OversizeError
from jbi_pubsub.core.history import MAX_POSITION, Count, Order, Position, Seconds
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import BOUNDS, ServiceTemplate
from jbi_pubsub.protocol.entries import HOPS_MOST, Origin
from jbi_pubsub.protocol.sending import SENDING, Sending
from jbi_pubsub.protocol.wanted import Demand

MAX_RECIPIENTS: Final = 100
"""RFC 5321 4.5.3.1.8: a server must take at least 100 recipients of one message."""

MAX_NAMESPACES: Final = 16_384
"""Characters of all prefixes and URIs of a request: what asks an archive has them once for each type."""

MAX_TEXT: Final = 1_024
MAX_OWNER: Final = 64
"""Characters of the name of an owner of registrations."""

DIGEST_ATTRIBUTE: Final = "mail_digest_seconds"
"""Attribute of an e-mail subscription: objects are gathered for so many seconds, and sent in one mail."""

Policy = Literal["drop_oldest", "drop_newest", "block"]


class _Owned(msgspec.Struct, frozen=True):
    """A request whose `secret` proves whose id it is for: it is not shown."""

    def __repr__(self) -> str:
        names = (name for name in self.__struct_fields__ if name != "secret")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class PublisherRequest(_Owned, frozen=True, forbid_unknown_fields=True):
    """Registration of a publisher: the schema of its metadata and its invariant metadata as Entries (paper 2.4(3)).

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
    """Owner, for subscriptions that do not want what he publishes (`unlike`); "" for none."""
    origin: Origin | None = None
    """Origin of one relayed from another platform: it has the id that it has there, and `secret` is its bridge's."""
    sending: Sending = SENDING
    """Way of its objects over networks of nodes."""


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
"""Documents that a predicate is asked of: the metadata as they were published, or these within what the platform says
of the object (core/combined.py)."""

Unfiltered = Literal["withhold", "deliver"]
"""Fate of an XML payload to which the payload filter can't be applied (core/xml.py, parse_payload): it is lost, as
`oversize`, or comes whole."""

Acknowledging = Literal["auto", "explicit"]
"""Acknowledgement of a durable subscription: what its application has taken (`Heard.consumed`), or what it says
(`Heard.acknowledged`)."""


class SubscriptionRequest(_Owned, frozen=True, forbid_unknown_fields=True):
    """Registration of a subscriber with each delegate (paper 2.4(7)): one record of all that it can say.

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
    """View of the predicate; payload filter and template have nothing to do with it."""
    unlike: Annotated[str, msgspec.Meta(max_length=MAX_OWNER)] = ""
    """Nothing of registrations with this `owner`; "": whoever publishes it."""
    local: bool = False
    """Only what was published at this delegate: nothing that a bridge or network has brought."""
    unfiltered: Unfiltered = "withhold"
    demands: Annotated[tuple[Demand, ...], msgspec.Meta(max_length=len(get_args(Demand)))] = ()
    """Demands on publishers elsewhere, whatever these say themselves."""

    def __post_init__(self) -> None:
        """Each recipient once: domains are compared without case (RFC 5321 2.4), as they were written first."""
        if len(self.recipients) > 1:
            once: dict[tuple[str, str], str] = {}
            for address in self.recipients:
                local, _, domain = address.rpartition("@")
                once.setdefault((local, domain.lower()), address)
            msgspec.structs.force_setattr(self, "recipients", tuple(once.values()))


def amended(standing: SubscriptionRequest, request: SubscriptionRequest) -> SubscriptionRequest | None:
    """Standing request with the terms of `request` that may be amended: template, predicate, payload filter and wish.
    None: it differs in others. Where it begins counts the first time alone."""
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
    """Query to one delegate's archive (see core/history.py); all conditions hold together."""

    type: str = ""
    """Name of the information object type; "" for all that the caller may read."""
    version: str = ""
    """Version of the type; "" for every one."""
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
    """View of the predicate, as of a subscription. `latest_by` is of the metadata."""
    passed: Annotated[tuple[str, ...], msgspec.Meta(max_length=HOPS_MOST)] = ()
    """The names of the platforms from which bridges have brought it, in order. Everything of these is asked already."""
    unfiltered: Unfiltered = "withhold"


NOT_BEFORE: Final = -math.inf
"""The age of a subscription that wants nothing of what was published before it came here."""


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
