"""A publisher registration at a delegate, and the topic that it shares with others of equal entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET, UnsetType

from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import Head, TypeName, numbered, prefix_of
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.matching.dissemination import Judgement
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.matching.recent import RecentBuffer
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import Origin
from jbi_pubsub.protocol.status.delegate import RegistrationStatus

Entries = tuple[EntryRep, ...]

COUNTED: Final = 1_000
"""Visitors of a topic that are counted: of more it is not asked whether all that were told are there."""


@dataclass(eq=False, slots=True)
class Topic:
    """All registrations with equal entries share one match table and one buffer. It outlives the last of them for as
    long as somebody may come late for what they have published."""

    key: str
    entries: Entries
    type: TypeName
    table: MatchTable = field(default_factory=MatchTable)
    buffer: RecentBuffer = field(default_factory=RecentBuffer)
    registrations: int = 0
    began: float = math.inf
    """When the first of its registrations that stand came (delegate's clock)."""
    has_waited: bool = False
    """Whether a subscription has come to it that stood before that."""
    gate: InformationTypeGate | None = None
    """Its type, while there is a registration: what is made of a schema may be large."""
    is_validated: bool = True
    """By the schema of its type all metadata were."""
    is_partly_kept: bool = False
    """Not all objects that may lie in its buffer are archived."""
    announced: float = -math.inf
    """When a lookup service began to tell of one of them (delegate's clock), and how many it has told."""
    told: int = 0
    unannounced: set[str] = field(default_factory=set)
    """Registrations that no lookup service has told of: as long as there is one the buffer stays young."""
    came: set[tuple[str, Entries]] = field(default_factory=set)
    """Sessions with the templates that they have subscribed to it by, one for each that they watch for; COUNTED at
    most."""

    def note(self, subscription: Subscription) -> None:
        """A subscription has come."""
        if len(self.came) < COUNTED:
            self.came.add((subscription.owner, subscription.request.entries))

    @property
    def is_awaited(self) -> bool:
        """Whether somebody who was told of its objects, or is to be told yet, has not come."""
        told = min(self.told, COUNTED)
        return bool(self.buffer.kept) and (len(self.came) < told or math.isinf(self.buffer.young_until))


@dataclass(frozen=True, slots=True)
class DeclaredTerms:
    """Terms of a registration, as its publisher has them."""

    signing: SigningKey | None = None
    """Key that its objects are signed with."""
    persist: bool | None = None
    """Whether its objects are to be archived; None: it says nothing."""
    expiration: float = 0.0
    """Seconds after publication at which what waits is lost; 0.0: never."""
    origin: Origin | None = None
    """Origin of one that is relayed from another platform."""


@dataclass(slots=True)
class RegistrationTotals:
    """Numbers of a registration's objects."""

    published: int = 0
    refused: int = 0
    unmatched: int = 0
    signed: int = 0
    """Objects whose signature was looked at here and holds; `bad_signature`: that have none, or does not."""
    bad_signature: int = 0


@dataclass(slots=True)
class RegistrationMarks:
    """Marks of what happens once to a registration."""

    has_settled: bool = False
    """Its publisher has waited for those who come late."""
    is_torn: bool = False
    """Whether who relays it may lack what follows the last object taken; told before the next one."""


@dataclass(eq=False, slots=True)
class Registration:
    """A publisher registration at a delegate. `sequence` is that of the last object taken."""

    uid: str
    number: int
    connection: str = field(repr=False)
    topic: Topic
    judgement: Judgement
    terms: DeclaredTerms = field(default=DeclaredTerms(), repr=False)
    contract: Contract | None = field(default=None, repr=False)
    """Contract that policies have decided for it, with QoS."""
    seconds: Callable[[], float] | None = field(default=None, repr=False)
    """Time to judge one of its objects, with QoS, as soon as one has come."""
    archived: int | None = None
    """Number of the last object that the archive had when it came; None: its objects are not archived."""
    sequence: int = 0
    judged: int = 0
    """Number of the last object that was judged: what is between is under way."""
    totals: RegistrationTotals = field(default_factory=RegistrationTotals)
    share: tuple[str, int] = field(default=("", 0), repr=False)
    """Share of its peer's quota that its request takes (see quota.RequestQuota)."""
    has_ended: bool = False
    marks: RegistrationMarks = field(default_factory=RegistrationMarks)

    @property
    def gate(self) -> InformationTypeGate:
        """The type of its objects."""
        return self.judgement.gate

    @property
    def origin(self) -> Origin | None:
        """Origin of one that is relayed from another platform."""
        return self.terms.origin

    @property
    def persist(self) -> bool:
        """Whether its objects are archived."""
        return self.archived is not None

    @property
    def tells_gaps(self) -> bool:
        """Whether a number that does not come is an object that did not; the first one may be any."""
        origin = self.terms.origin
        return self.sequence > 0 and (origin is None or not (origin.first is None or origin.is_sparse))

    def check_head(self, head: Head) -> None:
        """Raises MetadataError for an object of another registration or type, or with another's id: mail servers and
        readers drop what has the id of a mail that they had."""
        known = self.judgement.gate.type
        if head.registration != self.uid or head.type_name != known.name or head.type_version != known.version:
            raise MetadataError(f"object {head.object_id} is not of registration {self.uid}")
        if head.own_id and head.own_id != numbered(prefix_of(self.uid), head.sequence):
            raise MetadataError(f"object id {head.object_id} is not that of number {head.sequence} of {self.uid}")
        if self.terms.origin is not None and not 0 < len(head.via) == head.hops:
            raise MetadataError(f"object {head.object_id} is relayed, and does not say by which platforms it came")

    def status(self, publisher: str | UnsetType = UNSET) -> RegistrationStatus:
        """Its status; `publisher` is the name of its connection."""
        return RegistrationStatus(
            uid=self.uid,
            type=str(self.gate.type),
            published=self.totals.published,
            refused=self.totals.refused,
            unmatched=self.totals.unmatched,
            persist=self.persist,
            via=list(self.origin.via) if self.origin is not None else [],
            signs=self.terms.signing is not None,
            signed=self.totals.signed,
            bad_signature=self.totals.bad_signature,
            subscriptions=len(self.topic.table),
            partitioned=self.topic.table.parts is not None,
            kept=len(self.topic.buffer.kept),
            publisher=publisher,
            owner=self.judgement.origin.owner or UNSET,
            **self.topic.table.stats(),
        )
