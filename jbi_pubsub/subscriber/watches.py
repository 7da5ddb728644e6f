"""Watches of the lookup services: where subscriptions match, now and later. Those of one template share a watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from jbi_pubsub.core.errors import unknown_uid
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import ANSWERING_TYPES, PAD_TYPE, PUBLISHER_TYPE, ArchiveEntry
from jbi_pubsub.protocol.requests import NEW

from .first_level import FirstLevelTemplates
from .subscription import LocalSubscription

Serve = Callable[[LocalSubscription, ServiceItem], None]
Whom = Callable[[LocalSubscription], bool]


def _is_any(_subscription: LocalSubscription) -> bool:
    return True


def _is_mail(subscription: LocalSubscription) -> bool:
    return not subscription.request.direct


def has_past(subscription: LocalSubscription) -> bool:
    """Whether archives have something for it."""
    request = subscription.request
    return bool(request.durable) or request.start != NEW


ELSEWHERE: Final[tuple[tuple[ServiceTemplate, Whom], ...]] = (
    # An e-mail subscription also serves publishers that come when we are gone: every delegate gets it.
    (ServiceTemplate(types=(PAD_TYPE,)), _is_mail),
    # An archive has objects of publishers that are gone, and keeps those of publishers that will come.
    (ServiceTemplate(entries=(ArchiveEntry().rep(),)), has_past),
)
"""Services where some subscriptions are registered whether something matches there or not."""


class TemplateWatch:
    """The subscriptions of one template, and the caches that tell where they match."""

    def __init__(self, serve: Serve, entries: tuple[EntryRep, ...], opened: TypeName | None) -> None:
        """`serve`: has a subscription registered where it matches; `opened`: the type whose schema was opened for the
        template."""
        self.entries = entries
        self.type = opened
        self._serve = serve
        self._lock = threading.Lock()
        self._subscriptions: dict[str, LocalSubscription] = {}
        self._caches: dict[Whom, LookupCache] = {}

    @property
    def cache(self) -> LookupCache:
        """Publisher registrations whose entries match."""
        return self._caches[_is_any]

    def caches(self) -> list[LookupCache]:
        """All of them."""
        return list(self._caches.values())

    def add(self, subscription: LocalSubscription) -> None:
        """Have one subscription more."""
        with self._lock:
            self._subscriptions[subscription.uid] = subscription

    def begin(self, subscription: LocalSubscription, community: JoinManager) -> None:
        """Have it stand wherever it matches."""
        items: list[ServiceItem] = []
        with self._lock:
            for template, whom in (
                (ServiceTemplate(types=(PUBLISHER_TYPE,), entries=self.entries), _is_any),
                *ELSEWHERE,
            ):
                if whom(subscription):
                    if whom not in self._caches:
                        self._caches[whom] = community.watch(template, _WatchListener(self, whom))
                    items += self._caches[whom].items()
        for item in items:
            self._serve_at(subscription, item)

    def serve_all(self, item: ServiceItem, whom: Whom) -> None:
        """Have those of its subscriptions registered there which that is for."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            if whom(subscription):
                self._serve_at(subscription, item)

    def _serve_at(self, subscription: LocalSubscription, item: ServiceItem) -> None:
        """Have it registered there, but where queries are answered and nothing is published."""
        if ANSWERING_TYPES.isdisjoint(item.types):
            self._serve(subscription, item)

    def note_gone(self, server: str) -> None:
        """A registration at a delegate or peer publisher (service id) has gone."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            subscription.note_gone(server)

    def remove(self, subscription: LocalSubscription) -> bool:
        """Let go of a subscription; whether it was the last one."""
        with self._lock:
            self._subscriptions.pop(subscription.uid, None)
            return not self._subscriptions


class _WatchListener:
    """Listener (a ServiceListener) that hands what a cache finds to those subscriptions of a watch which it is for."""

    def __init__(self, watch: TemplateWatch, whom: Whom) -> None:
        self._watch = watch
        self._whom = whom

    def service_added(self, item: ServiceItem) -> None:
        self._watch.serve_all(item, self._whom)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        if old.proxy != new.proxy:
            self._watch.serve_all(new, self._whom)

    def service_removed(self, item: ServiceItem) -> None:
        """A registration has gone. The subscription stays with the delegate, which may have the next matching publisher
        soon. The session itself notices when the delegate is gone."""
        if self._whom is _is_any:
            self._watch.note_gone(item.proxy.service_id)


class TemplateWatches:
    """The watches of a subscriber. `_lock` covers which there are, and what they have."""

    def __init__(self, community: JoinManager, templates: FirstLevelTemplates, serve: Serve) -> None:
        """`serve`: has a subscription registered with the delegate or peer publisher of a matching item."""
        self._community = community
        self._templates = templates
        self._serve = serve
        self._lock = threading.RLock()
        self._by_template: dict[tuple[EntryRep, ...], TemplateWatch] = {}
        self._by_uid: dict[str, TemplateWatch] = {}

    def all(self) -> list[TemplateWatch]:
        """Those that there are now."""
        with self._lock:
            return list(self._by_template.values())

    def of(self, uid: str) -> TemplateWatch | None:
        """The watch of a subscription."""
        with self._lock:
            return self._by_uid.get(uid)

    def add(self, subscription: LocalSubscription, opened: TypeName | None) -> TemplateWatch:
        """Have a subscription watched for, once its watch has begun; `opened`: the type whose schema was opened for its
        template."""
        with self._lock:
            watch = self._by_uid[subscription.uid] = self._taken(subscription, subscription.request.entries, opened)
        return watch

    def begin(self, watch: TemplateWatch, subscription: LocalSubscription, deadline: float) -> None:
        """Have it stand wherever it matches; returns when the lookup services watch. Raises LookupNotFoundError."""
        watch.begin(subscription, self._community)
        self._community.wait_watching(watch.cache, max(0.0, deadline - time.monotonic()))

    def remove(self, subscription: LocalSubscription) -> None:
        """Watch no more for a subscription."""
        with self._lock:
            watch = self._by_uid.pop(subscription.uid, None)
            if watch is not None:
                self._let_go(watch, subscription)

    @contextmanager
    def exchanging(
        self, subscription: LocalSubscription, entries: tuple[EntryRep, ...], opened: TypeName | None, deadline: float
    ) -> Iterator[None]:
        """Have it stand wherever that template matches as well, and no more by its own once what is done meanwhile has
        succeeded. Raises UnknownUidError, LookupNotFoundError."""
        with self._lock:
            former = self._by_uid.get(subscription.uid)
            if former is None:
                self._templates.forget_if_idle(opened)
                raise unknown_uid("subscription", subscription.uid, "register_subscriber")
            watch = self._taken(subscription, entries, opened)
        kept = former
        try:
            if watch is not former:
                self.begin(watch, subscription, deadline)
            yield
            kept = watch
        finally:
            with self._lock:
                if stands := self._by_uid.get(subscription.uid) is former:
                    self._by_uid[subscription.uid] = kept
                if watch is not former:  # the former one has let go of what was cancelled meanwhile
                    self._let_go(former if stands and kept is watch else watch, subscription)

    def item(self, uid: str) -> ServiceItem | None:
        """Listing of a registration, or of a delegate."""
        return next((item for cache in self._caches() if (item := cache.item(uid)) is not None), None)

    def matched(self, uid: str) -> list[str]:
        """Registrations that a subscription matches now."""
        watch = self.of(uid)
        return [] if watch is None else [item.service_id for item in watch.cache.items()]

    def is_listed(self, service_id: str) -> bool:
        """Whether something is listed at that delegate."""
        return any(item.proxy.service_id == service_id for cache in self._caches() for item in cache.items())

    def _caches(self) -> list[LookupCache]:
        return [cache for watch in self.all() for cache in watch.caches()]

    def _taken(
        self, subscription: LocalSubscription, entries: tuple[EntryRep, ...], opened: TypeName | None
    ) -> TemplateWatch:
        """Under the lock: the watch of that template, which ends with the last subscription that it has."""
        watch = self._by_template.get(entries)
        if watch is None:
            watch = self._by_template[entries] = TemplateWatch(self._serve, entries, opened)
        watch.add(subscription)
        return watch

    def _let_go(self, watch: TemplateWatch, subscription: LocalSubscription) -> None:
        """Under the lock: a watch ends with the last subscription that it has."""
        if watch.remove(subscription):
            del self._by_template[watch.entries]
            for cache in watch.caches():
                self._community.unwatch(cache)
            self._templates.forget_if_idle(watch.type)
