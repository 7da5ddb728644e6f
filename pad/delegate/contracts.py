"""Contracts of a delegate with those who publish and subscribe: what policies give them, and their share of it.

Under the delegate's lock; without quality of service nothing is decided, and no wish is granted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.access import AccessPolicy, Action, AllowAll, Subject, demand
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish, unmanaged
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.tables import ContractEvents, Tables
from jbi_pubsub.pad.matching.requested_offered import Offers
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.model.rights import Rights, type_wanted
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.requests import SubscriptionRequest

log = logging.getLogger("jbi_pubsub.pad")

CONTRADICTED_MOST: Final = 200
"""Types whose warnings are kept, and warnings in the status."""


class Permissions:
    """The access policy, as a delegate asks it when contracts open and when the policy has changed."""

    def __init__(self, access: AccessPolicy) -> None:
        self.access: Final = access
        self.asked_version = access.version
        """Version of the policy that all standing contracts have been asked about."""

    def decided(self, version: int) -> None:
        """A contract stands now that was decided under that version of the policy: if all others have been asked about
        a later one since, it is to be asked about, too."""
        if version != self.asked_version:
            self.ask_all()

    def ask_all(self) -> None:
        """Other rules may hold for a contract that stands: all are to be asked about."""
        self.asked_version = -1

    def rights_of(self, caller: Caller | None) -> Rights | None:
        """Rights of somebody who subscribes; None where all are allowed everything."""
        return None if caller is None or isinstance(self.access, AllowAll) else Rights(self.access, caller)

    def is_allowed(self, caller: Caller, action: Action, subject: Subject) -> bool:
        """Whether the caller may do that; a refusal is logged."""
        try:
            demand(self.access, caller, (action, subject))
        except AccessDeniedError as exc:
            log.warning("%s: %s", caller.client or caller.address, exc.message)
            return False
        return True


class QosContracts:
    """Opened with each registration, subscription and query, and ended with it."""

    def __init__(
        self, tables: Tables, permissions: Permissions, quality: Quality | None, own: Caller, *, is_peer: bool
    ) -> None:
        """`own`: the application that a peer publisher lives in."""
        self._tables = tables
        self.permissions: Final = permissions
        self.quality: Final = quality
        self.quota: Final = RequestQuota()
        self.offers: Final = Offers()
        self._own = own
        self._is_peer = is_peer
        self._contradictions: Cache[str, tuple[str, ...]] = Cache(CONTRADICTED_MOST)
        """Warnings by the digest of the schema that was judged."""

    def open(
        self,
        caller: Caller | None,
        action: Action,
        type_: TypeName,
        wish: Wish,
        *,
        by_mail: bool = False,
        changed: Callable[[GrantedQos], None] | None = None,
    ) -> tuple[Contract | None, GrantedQos]:
        """Decision of the policies on a contract that opens; None without quality of service, where no wish is granted.
        Raises ConfigurationError, QosDeniedError."""
        if self.quality is None:
            return None, unmanaged(wish)
        delivery = "mail" if by_mail else "peer" if self._is_peer else "queue"
        told = changed if wish != Wish() else None
        return self.quality.opened(caller or self._own, action, type_.name, type_.version, delivery, wish, told)

    def open_for(
        self, subscription: Subscription, wish: Wish, request: SubscriptionRequest | None = None
    ) -> tuple[Contract | None, GrantedQos]:
        """A subscription's contract; `request`: where it is not the subscription's own yet. Raises as `open`."""
        return self.open(
            subscription.caller,
            "subscribe",
            type_wanted(request or subscription.request),
            wish,
            by_mail=not subscription.request.direct,
            changed=lambda _given: self.tell_quality([subscription]),
        )

    def check_type(self, gate: InformationTypeGate, told: Container[str] = ()) -> None:
        """Tell an operator of rules and policies that contradict the schema of a type, but for what was `told`; once
        for each schema, until `forget_types`."""
        if gate.digest in self._contradictions:
            return
        said: list[str] = []
        asked = gate.type.name, gate.type.version, gate.impossible
        with guarded("judging rules by a schema"):  # a doubt of ours refuses no publisher
            said += self.permissions.access.contradictions(*asked)
            said += self.quality.contradictions(*asked) if self.quality is not None else []
        self._contradictions[gate.digest] = tuple(said)
        for line in said:
            if line not in told:
                log.warning("%s", line)

    def forget_types(self) -> set[str]:
        """Before rules and policies that are in force now are judged by all types again; what was told of them."""
        told = set(self.contradictions())
        self._contradictions.clear()
        return told

    def contradictions(self) -> list[str]:
        """Warnings of `check_type` that hold now."""
        said = sorted({line for lines in list(self._contradictions.values()) for line in lines})
        return said[:CONTRADICTED_MOST]

    def end(self, contract: Contract | None) -> None:
        """A contract is over."""
        if self.quality is not None and contract is not None:
            self.quality.ended(contract)

    def tell_quality(self, subscriptions: Iterable[Subscription]) -> None:
        """To their subscribers: what they have got by now. By e-mail nobody is told; the status says it."""
        for subscription in subscriptions:
            session = self._tables.sessions.get(subscription.owner)
            if session is not None:
                session.tell_quality(subscription, partial(self.granted_to, subscription))

    def granted_to(self, subscription: Subscription) -> GrantedQos:
        """Quality that a subscription has got by now."""
        if self.quality is None or subscription.contract is None:
            return unmanaged(subscription.request.qos)
        return msgspec.structs.replace(self.quality.granted(subscription.contract), unmet=subscription.unmet)


class DelegateCore(NamedTuple):
    """Common to all parts of a delegate."""

    config: Config
    tables: Tables
    contracts: QosContracts
    events: ContractEvents


def holder_of(caller: Caller | None) -> str:
    """Certificate of a caller; "" for none."""
    return caller.holder if caller is not None else ""
