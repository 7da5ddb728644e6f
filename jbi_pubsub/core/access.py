"""The one decision point: who may do what, to which subject.

`policy/` makes decisions from rules; whoever opens a contract (delegates, lookup services, gateways) asks here, when it
opens and again when `version` has changed, never per object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from jbi_pubsub.core.wire.endpoint import Caller

Action = Literal[
    "connect", "publish", "subscribe", "query", "persist", "mail", "types", "status", "steer", "administer", "bridge",
    "peer",
]  # fmt: skip
"""What a caller may be allowed. `connect`, `publish`, `subscribe` and `query` open contracts; `persist` and `mail` are
marks of theirs; `types` changes types; `status` looks; `steer` and `administer` change what runs; `bridge` and `peer`
speak for others."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What something is done to: an information object type, "" for none in particular; `name` is that of the
    delegate, registration, table, or a recipient's domain."""

    type: str = ""
    version: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Allowed or not, by which rule ("policy.toml:17"; "" by none). `where`: an XPath that is ANDed to the
    subscription's or query's predicate; "" nearly always."""

    allowed: bool
    rule: str = ""
    where: str = ""

    def __bool__(self) -> bool:
        return self.allowed


class AccessPolicy(Protocol):
    """Decides. Safe from several threads."""

    @property
    def version(self) -> int:
        """Goes up whenever decisions may have changed."""
        ...

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """Whether `caller` may do that."""
        ...


ALLOWED: Final = Decision(True)


class AllowAll:
    """Everybody may do everything: without rules."""

    version: Final = 0

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:  # noqa: ARG002  # the protocol's parameters
        """Yes."""
        return ALLOWED
