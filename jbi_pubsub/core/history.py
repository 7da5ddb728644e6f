"""Questions to archives, and answers: plain data between a delegate, its archive and that one's worker."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.info_object import TypeName

MAX_POSITION: Final = 2**63 - 1
"""Positions are given by one counter a delegate, from 1; they go up, and are not given twice."""

Position = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITION)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Since the epoch."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

Order = Literal["oldest", "newest"]
State = Literal["running", "finished", "cancelled", "failed", "timed_out"]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objects of one type and version, and the condition that holds for them: the caller's predicate, and what access
    rules let him have of the type."""

    type: TypeName
    predicate: str = ""
    """XPath 1.0 over metadata; "" is true."""
    namespaces: tuple[tuple[str, str], ...] = ()
    registrations: tuple[str, ...] | None = None
    """Registrations whose objects are meant; None: all."""
    combined: str = ""
    """XPath 1.0 over the combined view (core/combined.py), which has to be true beside `predicate`; "" is true."""
    prefixes: tuple[tuple[str, str], ...] = ()
    """The namespaces of its prefixes."""
    origins: tuple[tuple[Provenance, tuple[str, ...]], ...] = ()
    """For that: who publishes under which registrations."""
    where: str = ""
    """Condition for an explanation: what an access rule lets the caller have, beside `predicate`. Nothing is said of
    it, and what it hides is not counted."""
    bound: tuple[tuple[str, str], ...] = ()
    """The namespaces of its prefixes."""


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Question to one archive; all conditions hold together. Times include their ends."""

    scopes: tuple[Scope, ...]
    after: Position = 0
    """Positions above this one."""
    up_to: Position = MAX_POSITION
    """And not above this one."""
    since: Seconds = 0.0
    until: Seconds = 1e11
    by_receipt: bool = False
    """Whether `since` and `until` are times of receipt at the delegate; else of publication."""
    least_payload: Count = 0
    most_payload: Count = 2**53
    """Bytes as published."""
    object_ids: tuple[str, ...] | None = None
    latest_by: str = ""
    """XPath of a key: of each key that it has in its scope's objects the newest alone; "" for all objects."""
    order: Order = "oldest"
    """By position."""
    limit: Count = 0
    """Results at most; 0: all."""
    is_narrowed: bool = False
    """Access rules hide something of what is asked: then only what is certain to be the caller's is counted."""


class QueryResult(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One result: the object's bytes as they came (see `info_object.Parcel.received`)."""

    position: int
    received: float
    data: bytes | memoryview


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a query."""

    state: State = "running"
    matched: int = 0
    candidates: int = 0
    """Objects that may match by the index; of what is not indexed each object."""
    verified: int = 0
    """Number of these that lxml was asked about."""
    done: Position = 0
    """The last position that was looked at."""
    end: Position = 0
    """The last that will be."""
    seconds: float = 0.0
    error: str = ""
    """Why it failed; of one that is finished, what is damaged, and so missing."""


class ExplanationStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Step for one alternative of a scope's predicate."""

    type: TypeName
    conditions: tuple[str, ...]
    """Those that columns decide, in words."""
    left: tuple[str, ...]
    """Conditions that lxml is asked about, each with the reason; () if columns decide all."""
    rows: int
    """Candidates, about."""


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Explanation of how a query would be answered."""

    steps: tuple[ExplanationStep, ...]
    objects: int
    """In its scopes and positions."""
    not_indexed: int
    """Number of these that are looked at one by one."""
    is_exact: bool
    """Whether the index alone decides."""
    seconds: float
    """About how long it takes."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registration of which objects are kept, or are to be. `entries` are its owner's: the archive does not read
    them."""

    uid: str
    type: TypeName
    publisher: str = ""
    entries: bytes = b""


class KeepRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[keep]]` of policy.toml: which objects are kept, and how long. The first rule whose types match counts; an
    object goes as soon as one of the bounds says so, but not while `latest_by` or `until_durables` holds it. Without a
    bound those two keep what they hold and nothing else; without them as well all is kept."""

    name: str = ""
    """policy.toml:17"""
    types: tuple[str, ...] = ("*",)
    """Globs of type names."""
    age: Seconds | None = None
    """Seconds after it was received."""
    count: Count | None = None
    """Objects of a type, the newest; 0: none is kept at all, unless its publisher says so."""
    bytes: Count | None = None
    """Bytes of all objects of a type, metadata and payload."""
    payload_age: Seconds | None = None
    """Seconds after which the payload alone goes."""
    latest_by: str = ""
    """XPath of a key: of each key the newest object is kept, whatever the bounds say; "" for none."""
    until_durables: bool = False
    """Kept until all durable subscriptions that it matches have it, whatever the bounds say."""
    relayed: bool = True
    """Whether objects that bridges bring are kept as well; else only what is published here."""


class GivenUp(msgspec.Struct, frozen=True):
    """Part of a volume that goes by the rules, or would. Positions include their ends."""

    first: int
    last: int
    objects: int
    """That are in it."""
    reasons: dict[str, int]
    """Number of them that go, or whose payloads go, by reason."""
    is_whole: bool
    is_done: bool
    """Whether they go now: else they wait until there are more in that volume."""


class TakenIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of objects that were brought: kept, here already, or deleted here before, which they stay."""

    kept: int = 0
    known: int = 0
    deleted: int = 0


class Consumer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A durable subscription: by what it is known, what it asks (its owner's), and what it has had."""

    name: str
    owner: str
    request: bytes
    position: Position
    """All that matches up to there is acknowledged."""
    acknowledged: tuple[tuple[Position, Position], ...] = ()
    """Above it: (first, last) of intervals, ascending."""
    ends: float = 0.0
    """When its lease ends, in seconds since the epoch."""
