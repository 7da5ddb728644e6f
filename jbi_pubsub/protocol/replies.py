"""Replies of a delegate to the requests of publishers and subscribers."""

from __future__ import annotations

from typing import Final

import msgspec

from jbi_pubsub.core.errors import ErrorReport
from jbi_pubsub.core.history import Explanation, Position, State
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import DEFAULT_IMPORTANCE, GrantedQos, Importance
from jbi_pubsub.lookup.entry import EntryRep

PREFETCH_LEAST: Final = 64
"""Objects that a subscriber may have beyond what its application has taken, under quality of service, however slow that
is: so many do not wait where others may pass them."""
PREFETCH_MANY: Final = 16
"""The same of one that stands for many: it hands on what it gets, often to a slow network."""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """Which archive that is: see `replies.QueryOpened`."""
    is_elsewhere: bool = False
    """Whether it was to begin behind a position that this archive has not given: all that is here comes."""
    is_new: bool = False
    """Whether no durable subscription of that name was known here: it begins by its `start`."""
    narrowed: bool = False
    """Whether access rules may keep objects from it that it matches: a number that does not come need not be a loss."""


Refusals = tuple[tuple[str, ErrorReport], ...]
"""(object id, why it was refused), or of a registration, why a lookup service does not list it."""


class Registered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a registration.

    `credit`: how many of its objects, and `credit_bytes` of them, the delegate may have that are not done; 0: any
    number, and what is acknowledged is done. A larger object goes when none is under way. `importance` and the
    `version` of the policies that it comes from; `strict`: the most important goes first, else levels have shares.
    """

    credit: int = 0
    importance: Importance = DEFAULT_IMPORTANCE
    version: int = 0
    credit_bytes: int = 0
    strict: bool = False


class Taken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Note of a delegate's acknowledgements: what it refused, and for registrations with credit up to which number of
    theirs all objects are done; how important they are by now, and `strict` (see Registered), where it has changed."""

    refusals: Refusals = ()
    done: dict[int, int] = msgspec.field(default_factory=dict)
    importance: dict[int, Importance] = msgspec.field(default_factory=dict)
    strict: bool | None = None


class OpenReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A connection or session with its lease. `server` is who has opened it: another one may stand at an address
    where ours was."""

    uid: str
    lease: Lease
    server: str = ""


class SubscribeReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to one subscription of a call: granted, or why not."""

    granted: Grant | None = None
    error: ErrorReport | None = None
    impossible: tuple[str, ...] = ()
    """Why it can match nothing of what is registered now, by the schemas of these types; () if it may."""
    judged: int = 0
    """Number of registrations of which that is said."""


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To all subscriptions of a call, in their order. `open_for`: seconds that the session is open by now, which ties
    the two clocks anew; 0 without a session."""

    answers: tuple[SubscribeReply, ...]
    open_for: float = 0.0


class QueryOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query's results come over the session's delivery connection as items PLACED (or chunks) of that `number`, last
    of all FINISHED; nothing beyond position `end` is seen."""

    number: int
    end: Position
    left_out: tuple[str, ...] = ()
    """Types of which the caller may not read all, in his own words: `* *` if he has named no type."""
    qos: GrantedQos = GrantedQos()
    incarnations: tuple[str, ...] = ()
    """Which archive answers: the id of this time that it is open, then of those before. So whoever knows of one that
    was open here can tell whether this is the same, and not another one, or a copy of before; (): not known."""


class QueryEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last that comes of a query: how it ended. See `core.history.Progress`."""

    state: State
    matched: int = 0
    candidates: int = 0
    verified: int = 0
    seconds: float = 0.0
    error: str = ""
    left_out: tuple[str, ...] = ()


class ObjectCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number of objects that a query finds."""

    count: int
    left_out: tuple[str, ...] = ()
    lacks: str = ""
    """Damage where it looked: objects that are perhaps not counted, or not there to be had."""
    incarnations: tuple[str, ...] = ()
    """Which archive answers: see `QueryOpened`."""


class ArchivedSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registration of which objects are archived, with its entries, which templates match."""

    uid: str
    entries: tuple[EntryRep, ...]


class DeletionCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number of objects that were deleted, of those up to a position."""

    count: int
    up_to: Position
    is_told: bool = False
    """Whether other nodes are told of it, who may have what is not here."""


class QueryExplanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Explanation of how a query would be answered."""

    explanation: Explanation
    left_out: tuple[str, ...] = ()
