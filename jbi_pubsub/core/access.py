"""The one decision point: who may do what, to which subject.

`policy/` makes decisions from rules; whoever opens a contract (delegates, lookup services, gateways) asks here, when it
opens and again when `version` has changed, never per object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast, get_args, runtime_checkable

import msgspec

from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, ProtocolError
from jbi_pubsub.core.status import AccessStatus
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller

Action = Literal[
    "connect", "publish", "subscribe", "query", "persist", "mail", "types", "status", "steer", "administer", "bridge",
    "peer",
]  # fmt: skip
"""Action that a caller may be allowed. `connect`, `publish`, `subscribe` and `query` open contracts; `persist` and
`mail` are marks of theirs; `types` changes types; `status` looks; `steer` and `administer` change what runs; `bridge`
and `peer` speak for others."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of an action: an information object type, "" for none in particular; `name` is that of the delegate,
    registration, table, or a recipient's domain. `some`: of the type only what is named here is known yet; it is
    allowed if it is for some such type, and whoever asks asks again for each type that it comes to."""

    type: str = ""
    version: str = ""
    name: str = ""
    some: bool = False


Namespaces = tuple[tuple[str, str], ...]
"""Prefixes and what they are bound to."""
Impossible = Callable[[str, Mapping[str, str]], tuple[str, ...]]
"""Says of an XPath and its prefixes why it is never true for a type, by its schema; () if it may be."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Allowed or not, by which rule ("policy.toml:17"; "" by none). `where`: an XPath, with its own `namespaces`, that
    is ANDed to the subscription's or query's predicate; "" nearly always. `audit`: its rule wants it written down,
    whatever it is."""

    allowed: bool
    rule: str = ""
    where: str = ""
    namespaces: Namespaces = ()
    audit: bool = False

    def __bool__(self) -> bool:
        return self.allowed


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether somebody may do something, as data."""

    action: str
    user: str = ""
    address: str = ""
    client: str = ""
    type: str = ""
    version: str = ""
    name: str = ""


class AccessPolicy(Protocol):
    """Decides. Safe from several threads. Whoever is given one closes it."""

    @property
    def version(self) -> int:
        """Goes up whenever decisions may have changed."""
        ...

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """Whether `caller` may do that. Leaves no trace."""
        ...

    def record(self, caller: Caller, action: Action, subject: Subject, decision: Decision) -> None:
        """That was decided, and holds: it is counted and written down. Never waits, never fails."""
        ...

    def explain(self, caller: Caller, action: Action, subject: Subject) -> dict[str, Any]:
        """Decision of `allow` and its reasons, as plain data."""
        ...

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:
        """Warnings about rules whose XPaths are never true for a type, each with its place."""
        ...

    def refused(self) -> Mapping[str, int]:
        """Number of refusals, by action."""
        ...

    def status(self) -> AccessStatus:
        """Empty when there are no rules."""
        ...

    def close(self) -> None:
        """End what it runs. Safe to repeat."""
        ...


@runtime_checkable
class Accounts(Protocol):
    """An AccessPolicy that knows users by their passwords is one as well."""

    def login(self, caller: Caller, user: str, password: str) -> str:
        """Record that the password was checked against, while that holds. Raises AccessDeniedError, WireError."""
        ...


ADMIN: Final = "admin"
"""Name of the exported object that is asked about access."""

ALLOWED: Final = Decision(True)
NONE_IN_PARTICULAR: Final = Subject()


class AllowAll:
    """Everybody may do everything: without rules."""

    version: Final = 0

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:  # noqa: ARG002  # the protocol's parameters
        """Yes."""
        return ALLOWED

    def record(self, caller: Caller, action: Action, subject: Subject, decision: Decision) -> None:
        """Nobody asked for it."""

    def explain(self, caller: Caller, action: Action, subject: Subject) -> dict[str, Any]:
        """Decision of `allow`: there are no rules."""
        decision = self.allow(caller, action, subject)
        return {"allowed": decision.allowed, "rule": decision.rule, "where": decision.where, "reasons": [], "missed": 0}

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:  # noqa: ARG002
        """There are no rules."""
        return []

    def refused(self) -> Mapping[str, int]:
        """Nothing."""
        return {}

    def status(self) -> AccessStatus:
        """Nothing."""
        return AccessStatus()

    def close(self) -> None:
        """There is nothing to end."""


class Passing:
    """An AccessPolicy that another one decides for; its subclasses have a say before. Closes `inner`."""

    def __init__(self, inner: AccessPolicy) -> None:
        self._inner = inner

    @property
    def version(self) -> int:
        """See AccessPolicy."""
        return self._inner.version

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """See AccessPolicy."""
        return self._inner.allow(caller, action, subject)

    def record(self, caller: Caller, action: Action, subject: Subject, decision: Decision) -> None:
        """See AccessPolicy."""
        self._inner.record(caller, action, subject, decision)

    def explain(self, caller: Caller, action: Action, subject: Subject) -> dict[str, Any]:
        """See AccessPolicy."""
        return self._inner.explain(caller, action, subject)

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:
        """See AccessPolicy."""
        return self._inner.contradictions(type_name, version, impossible)

    def refused(self) -> Mapping[str, int]:
        """See AccessPolicy."""
        return self._inner.refused()

    def status(self) -> AccessStatus:
        """See AccessPolicy."""
        return self._inner.status()

    def close(self) -> None:
        """See AccessPolicy."""
        self._inner.close()


RESERVED: Final[Mapping[str, Action]] = {"jbi.Event": "administer"}
"""Types that say of others what only those may know who may do that besides: nor may others publish them."""


class Reserved(Passing):
    """Rules that allow much by a pattern of types leave reserved ones to whom they are for."""

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """See AccessPolicy."""
        if subject.type in RESERVED and action in ("publish", "subscribe", "query", "persist", "types"):
            decision = self._inner.allow(caller, RESERVED[subject.type], NONE_IN_PARTICULAR)
            if not decision:
                return decision
        return self._inner.allow(caller, action, subject)


def demand(policy: AccessPolicy, caller: Caller, *asked: tuple[Action, Subject]) -> Decision:
    """The decision that allows the first of `asked` that is allowed. Raises AccessDeniedError, which names all; the
    rule behind the first is in the audit log, not in what the caller is told."""
    for action, subject in asked:
        decision = policy.allow(caller, action, subject)
        if decision:
            policy.record(caller, action, subject, decision)
            return decision
    action, subject = asked[0]
    policy.record(caller, action, subject, policy.allow(caller, action, subject))
    raise denied(caller, action, subject, *(other for other, _ in asked[1:]))


def denied(caller: Caller, action: Action, subject: Subject, *others: Action) -> AccessDeniedError:
    """Error for a caller who may not do that; nor any of the `others`, of which one would do as well."""
    told = " or ".join((", ".join((action, *others[:-1])), *others[-1:]))
    what = " ".join(text[:200] for text in (subject.type, subject.version, subject.name) if text)
    return AccessDeniedError(
        f"{caller.user or caller.address} may not {told} {what}".rstrip(),
        hint=f"{'' if caller.user else 'Nobody is logged in: set [client] user and password, or [tls] folder. '}"
        "The audit log of this server has the reason",
        action=action,
        type=subject.type[:200],
    )


class LoginCalls:
    """The exported object `login`."""

    def __init__(self, policy: AccessPolicy) -> None:
        self._policy = policy

    @exported
    def login(self, caller: Caller, user: str, password: str) -> bool:
        """From now on the connection's calls are that user's. False: passwords count for nothing here."""
        if not isinstance(self._policy, Accounts):
            return False
        if caller.place.user:  # its contracts are that one's, and asked about by it
            raise ProtocolError(f"this connection is {caller.place.user}'s already", hint="Open another one")
        proof = self._policy.login(caller, user, password)
        caller.place.user, caller.place.proof = user, proof
        return True


class AccessAdmin:
    """The exported object `admin`: what an administrator may ask about access."""

    def __init__(self, policy: AccessPolicy) -> None:
        self._policy = policy

    @exported
    def explain(self, caller: Caller, asked: Question) -> dict[str, Any]:
        """Explain what somebody may do here, and why."""
        demand(self._policy, caller, ("administer", NONE_IN_PARTICULAR))
        if asked.action not in get_args(Action):
            known = ", ".join(get_args(Action))
            raise ConfigurationError(f"unknown action {asked.action[:200]!r}", hint=f"There is {known}")
        who = Caller(asked.address, user=asked.user, client=asked.client)
        subject = Subject(asked.type, asked.version, asked.name)
        return self._policy.explain(who, cast("Action", asked.action), subject)
