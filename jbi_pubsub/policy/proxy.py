"""The policy manager's proxy: its calls, as local managers and people's tools make them; what it is registered as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.entry import Entry
from jbi_pubsub.lookup.item import ServiceItem

from .space import LINKS_TOLD, PolicyStanding, Short

POLICY_MANAGER: Final = "policy_manager"
"""Name of the exported object."""
MANAGER_TYPE: Final = "jbi.PolicyManager"
"""Service type in the lookup services."""
NEWS: Final = b"N"
ALIVE: Final = b"A"
"""First byte of an item on a local manager's connection: a PolicyNews, or nothing but a sign of life."""


@dataclass(frozen=True, kw_only=True)
class PolicyManager(Entry):
    """Description of a policy manager by itself: its epoch, and where it answers."""

    entry_name = "jbi.PolicyManager"
    epoch: int | None = None
    address: str | None = None


def epoch_of(item: ServiceItem) -> int:
    """Epoch that a manager's item says; 0 where it says nothing."""
    for entry in item.entries:
        if entry.cls.name == PolicyManager.entry_name:
            try:
                return PolicyManager.from_rep(entry).epoch or 0
            except EntryError:
                return 0
    return 0


class Joining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A local manager that comes: the id of its service, what it is called, which policies it has, and its shares of
    links, bytes a second by name; `before`: the id that it had before it was restarted."""

    lqm: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    component: Short
    standing: PolicyStanding = PolicyStanding()
    rates: Annotated[dict[Short, float], msgspec.Meta(max_length=LINKS_TOLD)] = {}
    before: Short = ""


class Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version in force, and whether it is a new one."""

    version: int
    is_new: bool


class VersionTold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version without its text: since when (seconds since 1970), by whom, why."""

    version: int
    at: float
    who: str
    why: str


class PolicyProxy:
    """Calls one policy manager. Every call raises its own errors, WireError or WireTimeoutError."""

    def __init__(self, ref: ServiceRef, security: Security, *, timeout: float = 10.0) -> None:
        self.ref = ref
        self._client = ControlClient(ref, security, timeout=timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def join(self, who: Joining) -> str:
        """A local manager comes with what it has: the token for its data connection. Raises PolicyError when it is not
        to follow this one."""
        return self._client.call("join", str, who)

    def leave(self, lqm: str) -> None:
        """A local manager ends: what it had of links is free."""
        self._client.call("leave", None, lqm)

    def apply(self, toml: str, why: str) -> Changed:
        """Another set from now on. Raises PolicyError, OversizeError, StorageError."""
        return self._client.call("apply", Changed, toml, why)

    def set(self, key: str, value: str, why: str) -> Changed:
        """One key of the file says something else. Raises PolicyError, StorageError."""
        return self._client.call("set", Changed, key, value, why)

    def rollback(self, version: int, why: str) -> Changed:
        """Put what that version said in force again, as a new one. Raises PolicyError, StorageError."""
        return self._client.call("rollback", Changed, version, why)

    def history(self) -> tuple[VersionTold, ...]:
        """The versions that are kept, the oldest first."""
        return self._client.call("history", tuple[VersionTold, ...])

    def text(self, version: int = 0) -> str:
        """Text of a version, as TOML; 0: the one in force. Raises PolicyError."""
        return self._client.call("text", str, version)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return self._client.call("status", dict[str, Any])
