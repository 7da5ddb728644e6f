"""The finding of a delegate for a publisher's connection: by its characteristics, in the lookup services."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import DelegateNotFoundError, WireError
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, PublisherAdapterDelegate

TRIED_MOST: Final = 100
"""Delegates that are remembered for not answering."""

ENDED_SECONDS: Final = 0.05
"""Between two looks, while a delegate is awaited, whether the application has closed: too short to be felt."""


class DelegateFinder:
    """Finds a delegate with characteristics, if possible none that was tried in vain: the dead are listed until their
    leases end. For one thread at a time."""

    def __init__(self, community: JoinManager, name: str | None, location: str | None) -> None:
        """`name` and `location` as of `connect_to_delegate`."""
        self._community = community
        self._name = name
        self._location = location
        self._tried: Cache[str, float] = Cache(TRIED_MOST)
        """Delegates that have not answered, and when they were asked last (monotonic seconds)."""

    def note_in_vain(self, service_id: str) -> None:
        """That delegate has not answered."""
        self._tried[service_id] = time.monotonic()

    def forget_tried(self) -> None:
        """One has answered."""
        self._tried.clear()

    def find(self, timeout: float, ended: Callable[[], bool] = lambda: False) -> ServiceItem:
        """One that was not tried in vain, else the one that was longest ago. When it has `ended`, nobody wants one any
        more. Raises DelegateNotFoundError, LookupNotFoundError."""
        name, location = self._name, self._location
        wanted = PublisherAdapterDelegate(name=name, location=location).rep()
        template = ServiceTemplate(types=(PAD_TYPE,), entries=(wanted,))
        cache = self._community.watch(template)
        deadline = time.monotonic() + timeout
        try:
            while not (found := cache.wait(1, min(ENDED_SECONDS, deadline - time.monotonic()))):
                if ended():
                    raise DelegateNotFoundError("not looked for any more: the connection is closed")
                if time.monotonic() >= deadline or self._community.refused() is not None:
                    break
        finally:
            self._community.unwatch(cache)
        if not found:
            # raises when there is no lookup service; the time for finding one has been spent above
            existing = self._community.lookup(ServiceTemplate(types=(PAD_TYPE,)), timeout=0.5, waited=timeout)
            found = [item for item in existing if template.matches(item)]  # it has come meanwhile
        if found:
            return min(found, key=lambda item: self._tried.get(item.service_id, 0.0))
        known = sorted(f"({_shown(d.name)}, {_shown(d.location)})" for item in existing for d in _characteristics(item))
        raise DelegateNotFoundError(
            f"no delegate ({_shown(name)}, {_shown(location)}) within {timeout:.3g} s;"
            f" there are: {', '.join(known) or 'none'}",
            hint="Start one with `jbi pad NAME LOCATION`",
            name=name,
            location=location,
        )

    def silence(self, item: ServiceItem, why: WireError, timeout: float) -> DelegateNotFoundError:
        """The error that this one has not answered within the time."""
        return DelegateNotFoundError(
            f"the delegate ({_shown(self._name)}, {_shown(self._location)}) at {', '.join(item.proxy.endpoints)}"
            f" is listed, but did not answer within {timeout:.3g} s: {why.message}",
            hint="It may be dead: see `jbi status`, or start another with `jbi pad NAME LOCATION`",
            name=self._name,
            location=self._location,
        )


def _characteristics(item: ServiceItem) -> list[PublisherAdapterDelegate]:
    own = PublisherAdapterDelegate.entry_name
    return [PublisherAdapterDelegate.from_rep(e) for e in item.entries if e.cls.name == own]


def _shown(characteristic: str | None) -> str:
    """For people: None is a wildcard, "" is not. Others choose their names: a line break among them is not one."""
    shown = "*" if characteristic is None else characteristic or '""'
    return shown if shown.isprintable() else repr(shown)
