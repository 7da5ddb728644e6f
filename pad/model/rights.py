"""Owner of a subscription, and what he may have of each type.

Asked when it opens, when it comes to a further type, and again when the policy has changed; never per object.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from jbi_pubsub.core.access import AccessPolicy, Decision, Subject, demand
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.core.xpath.narrowing import Condition, narrowed
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.requests import SubscriptionRequest


class Rights:
    """Rights of the caller who has made a subscription."""

    __slots__ = ("_policy", "_refused", "caller")

    def __init__(self, policy: AccessPolicy, caller: Caller) -> None:
        self._policy = policy
        self.caller: Final = caller
        self._refused: frozenset[TypeName] = frozenset()
        """Types that he was refused: each is recorded once."""

    def check(self, request: SubscriptionRequest) -> None:
        """Whether he may subscribe at all to what he asks for, mail it there, and have it archived elsewhere. Raises
        AccessDeniedError."""
        subject = wanted(request)
        demand(self._policy, self.caller, ("connect", Subject()))
        demand(self._policy, self.caller, ("subscribe", subject))
        if "persist" in request.demands:
            demand(self._policy, self.caller, ("persist", subject))
        for domain in sorted({address.rpartition("@")[2].casefold() for address in request.recipients}):
            demand(self._policy, self.caller, ("mail", dataclasses.replace(subject, name=domain)))

    def may_bridge(self) -> bool:
        """Whether he may relay some type: what he subscribes to may stand for many."""
        return bool(self._policy.allow(self.caller, "bridge", Subject(some=True)))

    def of(self, type_: TypeName) -> Decision:
        """Whether he may have objects of a type, and which."""
        subject = Subject(type_.name, type_.version)
        decision = self._policy.allow(self.caller, "subscribe", subject)
        if not decision and type_ not in self._refused:
            self._refused |= {type_}
            self._policy.record(self.caller, "subscribe", subject, decision)
        elif decision:
            self._refused -= {type_}
        return decision


def wanted(request: SubscriptionRequest) -> Subject:
    """The subject of a subscription, as far as it says: perhaps no type, or no version of it."""
    for entry in request.entries:
        if entry.cls.name == InformationType.entry_name:
            told = InformationType.from_rep(entry)
            return Subject(told.name or "", told.version or "", some=not (told.name and told.version))
    return Subject(some=True)


def type_wanted(request: SubscriptionRequest) -> TypeName:
    """The type that a subscription is for, as far as it says: name and version may be ""."""
    subject = wanted(request)
    return TypeName(subject.type, subject.version)


def effective(own: Predicate | None, decision: Decision) -> Predicate | None:
    """The predicate that a subscription is matched by: its own predicate, and what the rules let through. Raises
    PredicateError, which does not say what the rules are."""
    if not decision.where:
        return own
    condition: Condition = (decision.where, decision.namespaces)
    try:
        return narrowed(own, condition)
    except PredicateError as exc:
        raise PredicateError(
            "the predicate is too long or too costly together with what the access policy adds",
            hint="Make it simpler",
            argument="predicate",
        ) from exc
