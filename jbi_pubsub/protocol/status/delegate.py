"""Status of a delegate or peer publisher: whole (`status`), for who looks every second (`overview`), page by page."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from jbi_pubsub.core.quality import Unmet
from jbi_pubsub.core.status import (
    Count,
    MaybeText,
    Measure,
    ServerStatus,
    Status,
    counter,
    gauge,
)
from jbi_pubsub.protocol.status.archive import ArchiveStatus
from jbi_pubsub.protocol.status.bridge import RemoteStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus
from jbi_pubsub.protocol.status.quality import ContractStatus, QualityStatus


class LimitsStatus(Status, frozen=True):
    """Limits of a publisher or subscriber: bytes of metadata and payload, how many connections may be compressed,
    and whether there is a type repository."""

    metadata: Count = 0
    payload: Count = 0
    compressed: Count = 0
    types: bool = False


class BuffersStatus(Status, frozen=True):
    """Objects kept for subscriptions that come late, and their bytes."""

    objects: Count = 0
    bytes: Annotated[Count, gauge("Bytes kept for subscriptions that come late", "kept_bytes")] = 0


class MailStatus(Status, frozen=True):
    """Mails of a delegate, reminders of leases that end, and who takes them."""

    queued: Annotated[Count, gauge("Mails waiting", "mails_waiting")] = 0
    oldest: Annotated[Measure, gauge("Waiting time of the oldest mail", "mail_oldest_seconds")] = 0.0
    """Seconds."""
    kept: Count = 0
    """Those on disk."""
    bytes: Annotated[Count, gauge("Bytes of the mails waiting", "mails_waiting_bytes")] = 0
    under_way: Count = 0
    connections: Annotated[Count, gauge("Connections to the mail server", "mail_connections")] = 0
    fault: str = ""
    """Fault of the disk."""
    away: str = ""
    """Fault of the mail server."""
    server: str = ""
    """Its host and port."""
    reminders_waiting: Count = 0
    reminders: Annotated[Count, counter("Reminders of ending leases, times their recipients")] = 0
    reminders_lost: Annotated[Count, counter("Reminders that could not be sent")] = 0


class DelegateFacts(ServerStatus, frozen=True):
    """A delegate or peer publisher as a server."""

    name: str = ""
    location: str = ""
    calls: Count = 0
    compressed: Count = 0
    """Connections that are compressed."""
    draining: bool = False
    """Whether it takes no more publishers."""
    state: str = ""
    """Folder of what outlasts it."""
    limits: LimitsStatus = LimitsStatus()
    qos: QualityStatus | UnsetType = UNSET
    archive: ArchiveStatus | UnsetType = UNSET
    foreign: RemoteStatus | UnsetType = UNSET
    """The bridge that it is the door of."""
    node: MaybeText = UNSET
    """Id of the node that it is part of."""
    networks: NetworksStatus | UnsetType = UNSET
    """Networks of that node, if it has some."""


class ObjectTotals(DelegateFacts, frozen=True):
    """Counters of all there ever was, whoever has gone since."""

    published: Annotated[Count, counter("Objects accepted from publishers")] = 0
    refused: Annotated[Count, counter("Publications refused")] = 0
    unmatched: Annotated[Count, counter("Objects that matched no subscription")] = 0
    signed: Annotated[Count, counter("Objects with a valid signature")] = 0
    bad_signature: Annotated[Count, counter("Objects without a signature, or with an invalid one")] = 0
    matched: Annotated[Count, counter("Matches: objects times the subscriptions that they matched")] = 0
    suppressed: Annotated[Count, counter("Objects not delivered because the filter selected nothing")] = 0
    delivered: Annotated[Count, counter("Objects delivered")] = 0
    mailed: Annotated[Count, counter("Objects sent by e-mail, times their recipients")] = 0
    replayed: Annotated[Count, counter("Objects delivered to late joiners from the recent buffer")] = 0
    found_late: Annotated[Count, counter("Objects that matched no subscription on arrival, and a later one")] = 0
    lost: dict[str, Count] = {}
    """Objects lost, by cause."""


class DelegateLoad(ObjectTotals, frozen=True):
    """Load of a delegate: objects and mails that wait or are under way."""

    leases: Annotated[Count, gauge("Leases granted and active")] = 0
    queued: Count = 0
    """Objects that wait."""
    in_flight: Annotated[Count, gauge("Objects sent and not acknowledged")] = 0
    delay_ms: Annotated[float, Meta(ge=0, le=10**12)] = 0.0
    """From leaving the queue to the acknowledgement, of the slowest subscriber process lately."""
    queued_bytes: Annotated[Count, gauge("Bytes waiting in subscriber queues")] = 0
    kept: BuffersStatus = BuffersStatus()
    catching_up: Annotated[Count, gauge("Subscriptions that are catching up")] = 0
    mail: MailStatus = MailStatus()


class PublisherStatus(Status, frozen=True):
    """A publisher's connection."""

    id: str = ""
    name: str = ""
    registrations: Count = 0


class IndexCounters(Status, frozen=True):
    """Counters of a registration's predicate index (see PredicateIndex.stats)."""

    documents: Count = 0
    evaluations: Count = 0
    xpath_evaluations: Count = 0
    errors: Count = 0
    predicates: Count = 0
    always: Count = 0
    indexed: Count = 0
    fallback: Count = 0
    fallback_distinct: Count = 0
    distinct: Count = 0
    rows: Count = 0
    families: Count = 0
    paths: Count = 0
    bytes: Count = 0


class RegistrationStatus(IndexCounters, frozen=True):
    """A publisher's registration."""

    uid: str = ""
    type: str = ""
    """Name and version."""
    published: Annotated[Count, counter("Objects published", "registration_published")] = 0
    refused: Annotated[Count, counter("Objects refused", "registration_refused")] = 0
    unmatched: Annotated[Count, counter("Objects unmatched", "registration_unmatched")] = 0
    persist: bool = False
    via: list[str] = []
    """Platforms by which its objects come, for one that is relayed."""
    signs: bool = False
    signed: Count = 0
    bad_signature: Count = 0
    subscriptions: Count = 0
    """Subscriptions that its objects may match."""
    partitioned: bool = False
    """Predicates stand by importance."""
    kept: Count = 0
    """Objects kept for subscriptions that come late."""
    publisher: MaybeText = UNSET
    """Name of its publisher."""
    owner: MaybeText = UNSET
    """Owner that its publisher gives, for subscriptions that do not want his objects (`unlike`)."""


class SessionStatus(Status, frozen=True):
    """A subscriber process."""

    session: str = ""
    name: str = ""
    connected: bool = False
    compression: str = ""
    ratio: Measure = 1.0
    """Size of batches, as a multiple of what goes over the connection."""
    in_flight: Count = 0
    delay_ms: Measure = 0.0
    queued: dict[str, Count] = {}
    """Objects that wait, by subscription."""


class TermsStatus(Status, frozen=True):
    """Terms of a subscription."""

    uid: str = ""
    owner: str = ""
    template: list[str] = []
    predicate: str = ""
    filter: str = ""
    view: MaybeText = UNSET
    unlike: MaybeText = UNSET
    local: bool | UnsetType = UNSET
    narrowed_by: str = ""
    recipients: list[str] = []
    direct: bool = True
    policy: str = ""
    bound: Count = 0


class SubscriptionCounters(TermsStatus, frozen=True):
    """Counters of the objects that matched it."""

    matched: Count = 0
    delivered: Count = 0
    mailed: Count = 0
    """Objects times recipients."""
    mail_waiting: Count = 0
    mail_suspended: dict[str, str] = {}
    """Answer of the mail server, by recipient."""
    mail_digest_seconds: Measure = 0.0
    suppressed: Count = 0
    unfiltered: Count = 0
    unshaped: Count = 0
    saved: Count = 0
    """Bytes saved by shapes."""
    failed: Count = 0
    """Evaluations that failed."""
    last_failure: str = ""
    replayed: Count = 0
    lost: dict[str, Count] = {}


class SubscriptionStatus(SubscriptionCounters, frozen=True):
    """A subscription."""

    set_aside: MaybeText = UNSET
    qos: ContractStatus | UnsetType = UNSET
    unmet: list[Unmet] | UnsetType = UNSET
    """Requirements that publishers do not offer."""


class ListedSubscription(SubscriptionStatus, frozen=True):
    """A subscription on a page."""

    name: str = ""
    """Its subscriber's."""
    waiting: Count = 0
    """Objects and mails."""


class MailSubscription(SubscriptionStatus, frozen=True):
    """An e-mail-only subscription."""

    lease: Measure = 0.0
    """Seconds left."""


class PageStatus(Status, frozen=True):
    """Rows of all that there are in `total`."""

    total: Count = 0
    rows: list[ListedSubscription] = []


class CountsStatus(Status, frozen=True):
    """Number of rows in the lists of a status, also of those that are not told."""

    publishers: Annotated[Count, gauge("Connected publishers")] = 0
    registrations: Count = 0
    sessions: Annotated[Count, gauge("Connected subscriber processes", "subscribers")] = 0
    subscriptions: Annotated[Count, gauge("Subscriptions")] = 0


class DelegateStatus(DelegateLoad, frozen=True):
    """Everything that there is to be told."""

    publishers: list[PublisherStatus] = []
    registrations: list[RegistrationStatus] = []
    sessions: list[SessionStatus] = []
    subscriptions: list[SubscriptionStatus] = []
    counts: CountsStatus | UnsetType = UNSET


class SequencesStatus(Status, frozen=True):
    """Registrations and subscriptions alone."""

    registrations: list[RegistrationStatus] = []
    subscriptions: list[SubscriptionStatus] = []
    counts: CountsStatus | UnsetType = UNSET


class PublishersStatus(Status, frozen=True, kw_only=True):
    """Publishers of one name; `of`: how many names these are (more than one: all that are not told)."""

    name: str
    of: Count
    connections: Count
    registrations: Count
    published: Count


class SubscribersStatus(Status, frozen=True, kw_only=True):
    """Subscriber processes of one name; `of` as above."""

    name: str
    of: Count
    sessions: Count
    connected: Count
    subscriptions: Count
    delivered: Count
    queued: Count
    in_flight: Count
    lost: Count


class PublishedType(Status, frozen=True, kw_only=True):
    """Registrations of one type; `subscriptions`: the most that one of them has."""

    name: str
    of: Count
    registrations: Count
    published: Count
    unmatched: Count
    subscriptions: Count


class EndingLease(Status, frozen=True, kw_only=True):
    """A lease that ends soon if it is not renewed; `left` in seconds."""

    kind: str
    name: str
    left: float


class DelegateOverview(DelegateLoad, frozen=True):
    """The same for who looks every second: without rows, what is of one name together."""

    publishers: list[PublishersStatus] = []
    sessions: list[SubscribersStatus] = []
    types: list[PublishedType] = []
    ending: list[EndingLease] = []
    mailing: Count = 0
    """Subscriptions by mail."""
    counts: CountsStatus = CountsStatus()


class ClientStatus(Status, frozen=True):
    """A publisher or subscriber process: who it is, and where; `sequences`: its registrations or subscriptions."""

    id: str = ""
    role: str = ""
    client: str = ""
    user: str = ""
    address: str = ""
    sequences: Count = 0
