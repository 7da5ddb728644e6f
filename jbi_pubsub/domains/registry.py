"""A registry of offers: the lookup services of a domain, or central ones, with what is offered there (paper 3.3.1)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.lookup.administration import ALL_GROUPS
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

from .service_type import ServiceTypeEntry
from .trader import Trader

log = logging.getLogger("jbi_pubsub.domains")

ALL_OFFERS: Final = ServiceTemplate(entries=(ServiceTypeEntry().rep(),))
WITHDRAWN_MOST: Final = 1_000
"""Offers of this process that are remembered as withdrawn, until a lookup service says so too."""


class OfferRegistry:
    """Offers that lookup services list, from when they are asked for first on (a ServiceListener). Any thread."""

    def __init__(self, config: Config, name: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when an offer comes, changes or goes. Raises ConfigurationError."""
        self.trader: Final = Trader()
        self.community: Final = JoinManager(config, name=name)
        self._changed = changed
        self._lock = threading.Lock()
        self._cache: LookupCache | None = None
        self._telling = threading.Lock()  # covers what follows, and what the trader is told
        self._own: dict[str, ServiceItem] = {}
        """Offers of this process as they are: a lookup service's word for one may be late."""
        self._withdrawn: Cache[str, None] = Cache(WITHDRAWN_MOST)

    def watch(self, timeout: float) -> None:
        """Know of all offers, within so many seconds; with 0 nobody waits for that. Raises LookupNotFoundError."""
        with self._lock:
            if self._cache is None:
                self._cache = self.community.watch(ALL_OFFERS, self)
            cache = self._cache
        if timeout:
            self.community.wait_watching(cache, timeout)

    def close(self) -> None:
        """Leave, with all that was registered."""
        self.community.close()

    def offer(self, item: ServiceItem) -> None:
        """Register an offer of this process, or one that has changed; it is found here at once. Raises EntryError for
        one that contradicts itself."""
        with self._telling:
            self.trader.put(item)
            self._own[item.service_id] = item
        self.community.join(item)

    def withdraw(self, offer_id: str) -> None:
        """End an offer of this process; it is not found here any more."""
        with self._telling:
            self._own.pop(offer_id, None)
            self._withdrawn[offer_id] = None
            self.trader.remove(offer_id)
        self.community.leave(offer_id)

    def service_added(self, item: ServiceItem) -> None:
        """An offer has come. One that contradicts itself is none."""
        with self._telling:
            if item.service_id in self._withdrawn:
                return
            try:
                self.trader.put(self._own.get(item.service_id, item))
            except EntryError as exc:
                log.warning("offer %s is left out: %s", item.service_id[:64], exc)
                self.trader.remove(item.service_id)
        self._changed()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """An offer is another one."""
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """An offer is gone."""
        with self._telling:
            self._withdrawn.pop(item.service_id, None)
            self.trader.remove(item.service_id)
        self._changed()


def elsewhere(config: Config, *locators: str) -> Config:
    """The settings for lookup services of others, whatever their groups are."""
    there = msgspec.structs.replace(config.lookup, locators=locators, multicast=False, groups=(ALL_GROUPS,))
    return msgspec.structs.replace(config, lookup=there)
