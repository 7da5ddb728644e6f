"""Permissions at a lookup service: who may call it, register what, and say what of it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable
from typing import Final

from jbi_pubsub.core.access import NONE_IN_PARTICULAR, AccessPolicy, Action, AllowAll, Subject, demand
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.durable import BREATH, REAP_AT_ONCE, DurableRegistrar
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem

log = logging.getLogger("jbi_pubsub.lookup")

PUBLISHER_TYPE: Final = "jbi.PublisherRegistration"
"""Service type of publishers' registrations, at delegates and peer publishers."""
PUBLISHERS: Final = (PUBLISHER_TYPE, "jbi.PeerPublisher")
"""Those that whoever may publish may have himself."""
TYPE_ENTRY: Final = "jbi.InformationType"
"""Name of the entry that says which information object type a registration is of: name, version, digest of the schema,
last part of the name."""

Asked = tuple[tuple[Action, Subject], ...]
"""Alternatives, of which one has to be allowed."""

PEER: Final[tuple[Action, Subject]] = ("peer", NONE_IN_PARTICULAR)

FORGET_MOST: Final = 1_000
"""Leases after which those that have ended are looked for."""


class LeasePermissions:
    """Rules of `access`, and the questions under which leases were granted: these are asked again when the rules have
    changed."""

    def __init__(self, access: AccessPolicy, registrar: DurableRegistrar) -> None:
        self.access: Final = access
        self._registrar = registrar
        self._asked_version = access.version
        """Version of the policy that all leases have been asked about."""
        self._granted: dict[str, tuple[Caller, tuple[Asked, ...]]] = {}
        """Under which question each lease was granted, where access is restricted."""
        self._granting = threading.Lock()  # covers it
        self._forget_at = FORGET_MOST

    def allow(self, caller: Caller, action: Action) -> None:
        """Raises AccessDeniedError."""
        demand(self.access, caller, (action, NONE_IN_PARTICULAR))

    def allow_item(self, caller: Caller, item: ServiceItem) -> tuple[Asked, ...]:
        """Whether somebody may register that. Raises AccessDeniedError. What was asked, to be asked again."""
        self.allow(caller, "connect")
        every = _asked_for(item)
        for asked in every:
            demand(self.access, caller, *asked)
        return every

    def allow_entries(self, caller: Caller, entries: Iterable[EntryRep]) -> None:
        """Whether somebody may say that of a service that he has registered. Raises AccessDeniedError."""
        for asked in _asked_for_types(entries):
            demand(self.access, caller, *asked)

    def remember(self, lease_id: str, caller: Caller, every: tuple[Asked, ...], version: int) -> None:
        """Under which question a lease was granted, and under which version of the policy."""
        if not isinstance(self.access, AllowAll):
            with self._granting:
                self._granted[lease_id] = (caller, every)
                if len(self._granted) >= self._forget_at:
                    self._forget_leases()
            if version != self._asked_version:  # the rules have changed meanwhile
                self._asked_version = -1

    def ask_again(self) -> None:
        """Ask about all leases, if the policy has changed since: what may not be here any more goes."""
        version = self.access.version
        if version == self._asked_version:
            return
        self._asked_version = version  # first: what changes meanwhile is asked about again
        refused = []
        with self._granting:
            self._forget_leases()
            granted = list(self._granted.items())
        for lease_id, (caller, every) in granted:
            try:
                self.allow(caller, "connect")
                for asked in every:
                    demand(self.access, caller, *asked)
            except AccessDeniedError as exc:
                log.warning("a lease ends: %s", exc.message)
                refused.append(lease_id)
        for begin in range(0, len(refused), REAP_AT_ONCE):
            ending = tuple(refused[begin : begin + REAP_AT_ONCE])
            self._registrar.change(lambda registrar, now: registrar.cancel_all(ending, now))  # noqa: B023  # called here
            time.sleep(BREATH)

    def _forget_leases(self) -> None:
        """Those that have ended."""
        live = self._registrar.read(
            lambda registrar, now: {each for each in self._granted if registrar.has_lease(each, now)}
        )
        self._granted = {lease_id: kept for lease_id, kept in self._granted.items() if lease_id in live}
        self._forget_at = max(FORGET_MOST, 2 * len(self._granted))


def _asked_for(item: ServiceItem) -> tuple[Asked, ...]:
    """Permissions that the registration of a service needs: each of these, by one of its alternatives.

    Who registers publishers' registrations may publish the type, or speaks for others, as delegates do; our own other
    services (delegates, lookup services) speak for others; any other service counts as a type that is published.
    """
    every: tuple[Asked, ...] = ()
    others = item.types
    if PUBLISHER_TYPE in item.types:
        every = _asked_for_types(item.entries) or ((("publish", NONE_IN_PARTICULAR), PEER),)
        others = tuple(name for name in item.types if name not in PUBLISHERS)
    elif not item.types:
        every = ((PEER,),)
    return (*every, *((PEER if name.startswith("jbi.") else ("publish", Subject(name)),) for name in others))


def _asked_for_types(entries: Iterable[EntryRep]) -> tuple[Asked, ...]:
    """Permissions for entries that are found as one that says a type: by their lineage, and by the places of their
    values. What calls itself otherwise than a type's last name is no type that somebody may publish."""
    told = [entry.values for entry in entries if any(name == TYPE_ENTRY for name, _ in entry.cls.lineage)]
    every: list[Asked] = []
    for values in told:
        name, version, _, local = ((value or "") for value in (*values, "", "", "", "")[:4])
        fits = not local or local == re.split(r"[}.]", name)[-1]
        every.append((("publish", Subject(name, version)), PEER) if fits else (PEER,))
    return tuple(every)
