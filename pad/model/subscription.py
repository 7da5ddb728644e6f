"""Subscriptions as a delegate keeps them."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import UNSET

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import Contract, Unmet
from jbi_pubsub.core.xpath import CHARGED, Charge, PayloadFilter, Predicate
from jbi_pubsub.core.xpath.language.analysis import MAX_CONJUNCTS
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.protocol.conditions import MANY_ATTRIBUTE, compile_conditions
from jbi_pubsub.protocol.replies import PREFETCH_LEAST, PREFETCH_MANY
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.delegate import SubscriptionStatus
from jbi_pubsub.protocol.status.quality import ContractStatus

if TYPE_CHECKING:
    from jbi_pubsub.core.wire.endpoint import Caller
    from jbi_pubsub.pad.model.durable import Durable
    from jbi_pubsub.pad.model.rights import Rights


S = TypeVar("S", bound=SubscriptionStatus)

WIDE_CONJUNCTS: Final = 256
"""Conjuncts of a bridge's predicate, which stands for those of many (see MAX_CONJUNCTS)."""
FAR: Final = sys.maxsize
"""A position that no object reaches: of a subscription that is on its way into the match tables."""


@dataclass(eq=False, slots=True)
class Subscription:
    """A subscription at a delegate, compiled. `owner` is the id of the subscriber session, or "mail" of e-mail alone.

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
    """The lease of an e-mail-only subscription."""
    caller: Caller | None = field(default=None, repr=False)
    """The caller that has asked for it last; None: the application that a peer publisher lives in."""
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
    """Time that objects are gathered for one mail; 0 sends each by itself."""
    mail_waiting: int = 0
    """Objects in the mail queue."""
    mail_suspended: dict[str, str] = field(default_factory=dict)
    """Recipients that get no mail any more, and the answer of the mail server that was the reason."""
    place: int = 0
    """Position at which it was in all match tables: what came up to then, it gets from the buffer, if at all."""
    since: float = -math.inf
    """When it stood (delegate's clock), as far as that is known."""
    rights: Rights | None = field(default=None, repr=False)
    """Rights of its caller, where access is restricted."""
    unmet: tuple[Unmet, ...] = field(default=(), repr=False)
    """Requirements that publishers it gets objects of do not offer."""
    contract: Contract | None = field(default=None, repr=False)
    """Contract that policies have decided for it, with QoS."""
    narrowed_by: str = ""
    """The rules that let through a part of some type alone."""
    durable: Durable | None = field(default=None, repr=False)
    """Record of what it has had, over restarts."""
    set_aside: str = ""
    """Why it is not evaluated for some registration that it matches; "" where it is for all."""
    share: tuple[str, int] = field(default=("", 0), repr=False)
    """Share of its peer's quota that its request takes (see quota.RequestQuota)."""
    is_replayed: bool = False
    """Whether it began in the past, and catches up with an archive."""
    replayed: int = 0
    """Objects that it caught up with; they count in the others, too."""
    combined: Predicate | None = field(default=None, repr=False)
    """On the combined view, instead of one on the metadata (see core/combined.py)."""
    lost: Counter[str] = field(default_factory=Counter)
    revision: int = field(default=0, repr=False)
    """Revision of its terms; odd while they change."""
    ended: Cause = Cause.CANCELLED
    """Why what still comes for it after its end is lost."""

    @property
    def uid(self) -> str:
        """The subscriber's id for it."""
        return self.request.uid

    @property
    def is_selective(self) -> bool:
        """Whether it does not want all that it matches by the metadata: it has a predicate on the combined view, or
        does not want what some publish."""
        return self.combined is not None or bool(self.request.unlike) or self.request.local

    def meter_lost(self, type_name: str) -> None:
        """An object is lost that was in no queue."""
        if self.contract is not None and self.contract.meter is not None:
            self.contract.meter.lost(type_name)

    def amend(self, other: Subscription) -> None:
        """Take over the terms of `other`: what it asks for, not what came of it."""
        self.revision += 1
        self.request, self.set_aside = other.request, ""
        self.predicate, self.combined, self.payload_filter = other.predicate, other.combined, other.payload_filter
        self.narrowed_by, self.contract = other.narrowed_by, other.contract
        self.revision += 1

    @property
    def prefetch(self) -> int:
        """Number of objects that its subscriber may have, at least, under quality of service."""
        return PREFETCH_MANY if MANY_ATTRIBUTE in dict(self.request.attributes) else PREFETCH_LEAST

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges for what is evaluated: a predicate that the index does not take as a whole, a payload filter."""
        return self.charges_by(self.predicate)

    def charges_by(self, predicate: Predicate | None) -> tuple[Charge, ...]:
        """The same, where it is matched by another predicate than its own."""
        wanted = self.payload_filter
        charges: list[Charge] = []
        if predicate is not None and predicate.evaluates:
            charges.append(predicate.charge)
        if self.combined is not None and self.combined.evaluates:
            charges.append(self.combined.charge)
        if wanted is not None:
            charges.append(Charge(wanted, CHARGED * wanted.cost))
        return tuple(charges)

    def status(self, kind: type[S], **more: object) -> S:
        """One of its status, with `more` where that has more."""
        request = self.request
        evaluated = [each for each in (self.predicate, self.combined, self.payload_filter) if each is not None]
        return kind(
            uid=self.uid,
            owner=shown(self.owner),
            template=[shown_entry(e) for e in request.entries],
            predicate=request.predicate,
            filter=request.payload_filter,
            view=request.view if request.view != "metadata" else UNSET,
            unlike=request.unlike or UNSET,
            local=request.local or UNSET,
            narrowed_by=self.narrowed_by,
            recipients=list(request.recipients),
            direct=request.direct,
            policy=request.policy,
            bound=request.bound,
            matched=self.matched,
            delivered=self.delivered,
            mailed=self.mailed,
            mail_waiting=self.mail_waiting,
            mail_suspended=dict(self.mail_suspended),
            mail_digest_seconds=self.digest_seconds,
            suppressed=self.suppressed,
            unfiltered=self.unfiltered,
            unshaped=self.unshaped,
            saved=self.saved,
            failed=sum(each.errors for each in evaluated),
            last_failure=next((each.last_error for each in evaluated if each.last_error), ""),
            replayed=self.replayed,
            lost=dict(self.lost),
            set_aside=self.set_aside or UNSET,
            qos=_qos(self.contract) if self.contract is not None else UNSET,
            unmet=list(self.unmet) or UNSET,
            **more,
        )


def _qos(contract: Contract) -> ContractStatus:
    """Settings in force, and what came of them."""
    settings = contract.settings
    rate = settings.max_rate
    return ContractStatus(
        importance=settings.importance,
        deadline=settings.deadline,
        shapes=[str(shape) for shape in settings.shapes],
        max_size=settings.max_size,
        max_rate=f"{rate.amount:g} {rate.unit}/s" if rate is not None else None,
        replace=settings.replace,
        version=settings.version,
        **(contract.meter.status(time.monotonic()) if contract.meter is not None else {}),
    )


def shown(uid: str) -> str:
    """The form in which a session or connection id, the right to what it names, is shown to others."""
    kind, dash, _ = uid.partition("-")
    return f"{kind}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}" if dash else uid


def compile_subscription(
    request: SubscriptionRequest, *, owner: str, number: int, may_bridge: bool = False
) -> Subscription:
    """The subscription of a request, checked; that of a bridge may stand for many others. Raises PredicateError
    (naming the argument), AddressError, ConfigurationError, OversizeError."""
    is_wide = may_bridge and MANY_ATTRIBUTE in dict(request.attributes)
    conditions = compile_conditions(request, WIDE_CONJUNCTS if is_wide else MAX_CONJUNCTS)
    return Subscription(
        request, owner, number, conditions.predicate, conditions.payload_filter, combined=conditions.combined,
        digest_seconds=conditions.digest_seconds,
    )  # fmt: skip


def shown_entry(entry: EntryRep) -> str:
    """For people: its class, and the fields that are set."""
    set_fields = [f"{name}={value}" for name, value in entry.as_dict().items() if value is not None]
    return f"{entry.cls.name}({', '.join(set_fields)})"
