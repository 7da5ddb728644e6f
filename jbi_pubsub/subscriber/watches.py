"""Watches of the lookup services: where the subscriptions of one template match, now and later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakMethod

from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, PUBLISHER_TYPE, ArchiveEntry
from jbi_pubsub.protocol.requests import NEW

from .subscription import LocalSubscription


class TemplateWatch:
    """The subscriptions of one template, and the caches that tell where they match (a ServiceListener)."""

    def __init__(
        self,
        serve: Callable[[LocalSubscription, ServiceItem], None],
        entries: tuple[EntryRep, ...],
        opened: TypeName | None,
    ) -> None:
        """`serve`, a method that is held weakly: has a subscription registered where it matches; `opened`: the type
        whose schema was opened for them."""
        self.entries = entries
        self.type = opened
        self._known = WeakMethod(serve)
        self._lock = threading.Lock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._cache: LookupCache | None = None
        self._delegates: LookupCache | None = None
        self._archives: LookupCache | None = None

    @property
    def cache(self) -> LookupCache:
        """Publisher registrations whose entries match."""
        assert self._cache is not None
        return self._cache

    def caches(self) -> list[LookupCache]:
        return [cache for cache in (self._cache, self._delegates, self._archives) if cache is not None]

    def hold(self, subscription: LocalSubscription) -> None:
        """One of its subscriptions from now on."""
        with self._lock:
            self._subscriptions[subscription.uid] = subscription

    def begin(self, subscription: LocalSubscription, community: JoinManager) -> None:
        """Have it stand wherever it matches."""
        with self._lock:
            if self._cache is None:
                template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=self.entries)
                self._cache = community.watch(template, self)
            if not subscription.request.direct and self._delegates is None:
                # An e-mail subscription also serves publishers that come when we are gone: every delegate gets it.
                self._delegates = community.watch(ServiceTemplate(types=(PAD_TYPE,)), _Elsewhere(self, _is_mail))
            if has_past(subscription) and self._archives is None:
                # An archive has objects of publishers that are gone, and keeps those of publishers that will come.
                template = ServiceTemplate(entries=(ArchiveEntry().rep(),))
                self._archives = community.watch(template, _Elsewhere(self, has_past))
            items = self._cache.items()
            items += self._delegates.items() if self._delegates and _is_mail(subscription) else []
            items += self._archives.items() if self._archives and has_past(subscription) else []
        for item in items:
            self._serve(subscription, item)

    def _serve(self, subscription: LocalSubscription, item: ServiceItem) -> None:
        serve = self._known()
        if serve is not None:
            serve(subscription, item)

    def remove(self, subscription: LocalSubscription) -> bool:
        """Whether it was the last one."""
        with self._lock:
            self._subscriptions.pop(subscription.uid, None)
            return not self._subscriptions

    def service_added(self, item: ServiceItem, whom: Callable[[LocalSubscription], bool] = lambda _: True) -> None:
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            if whom(subscription):
                self._serve(subscription, item)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        if old.proxy != new.proxy:
            self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Nothing: the subscription stays with the delegate, which may have the next matching publisher soon. The
        session itself notices when the delegate is gone."""


def _is_mail(subscription: LocalSubscription) -> bool:
    return not subscription.request.direct


def has_past(subscription: LocalSubscription) -> bool:
    """Whether archives have something for it."""
    request = subscription.request
    return bool(request.durable) or request.start != NEW


class _Elsewhere:
    """Hands every delegate, or archive, to some of a watch's subscriptions, whether something matches there or not."""

    def __init__(self, watch: TemplateWatch, whom: Callable[[LocalSubscription], bool]) -> None:
        self._watch = watch
        self._whom = whom

    def service_added(self, item: ServiceItem) -> None:
        self._watch.service_added(item, self._whom)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        if old.proxy != new.proxy:
            self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Nothing: see the watch."""
