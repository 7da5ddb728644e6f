"""Services found: LookupCache, what matches a template at all lookup services, each service once."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

log = logging.getLogger("jbi_pubsub.lookup")


class ServiceListener(Protocol):
    """Told of services coming, changing and leaving; calls are serial. Must not block for long."""

    def service_added(self, item: ServiceItem) -> None:
        """The service matches now, at the first lookup service to say so."""

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        """The service matched before and matches now, but its item differs."""

    def service_removed(self, item: ServiceItem) -> None:
        """No lookup service lists the service any more."""


class LookupCache:
    """The services that match a template, seen through any number of lookup services (Jini's LookupCache).

    A lookup service that is away keeps its say for a while: what it listed stays until it answers again or is dropped
    with `forget`. Decides under `_changed`, tells the listener outside it but one call at a time.
    """

    def __init__(self, template: ServiceTemplate, listener: ServiceListener | None = None) -> None:
        self.template = template
        self._listener = listener
        self._changed = threading.Condition()
        self._telling = threading.RLock()
        self._seen: dict[str, dict[str, ServiceItem]] = {}  # service id -> registrar id -> item
        self._errors: dict[str, JbiError] = {}

    @property
    def error(self) -> JbiError | None:
        """Why a lookup service can't watch the template, if one said so and has not done it since."""
        with self._changed:
            return next(iter(self._errors.values()), None)

    def items(self) -> list[ServiceItem]:
        """Items that match now."""
        with self._changed:
            return [next(iter(by.values())) for by in self._seen.values()]

    def item(self, service_id: str) -> ServiceItem | None:
        """The service of that id, if it matches now."""
        with self._changed:
            return next(iter(self._seen.get(service_id, {}).values()), None)

    def wait(self, count: int, timeout: float) -> list[ServiceItem]:
        """The items, as soon as there are `count`, or those there are after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(self._seen) < count and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self.items()

    def snapshot(self, registrar: str, items: tuple[ServiceItem, ...]) -> None:
        """All that matches at one lookup service (Watcher)."""
        found = {item.service_id: item for item in items}
        with self._telling:
            with self._changed:
                self._errors.pop(registrar, None)
                gone = [sid for sid, by in self._seen.items() if registrar in by and sid not in found]
            for service_id in gone:
                self.changed(registrar, service_id, None)
            for item in items:
                self.changed(registrar, item.service_id, item)

    def changed(self, registrar: str, service_id: str, item: ServiceItem | None) -> None:
        """One service at one lookup service (Watcher)."""
        with self._telling:
            with self._changed:
                old, new = self._apply(registrar, service_id, item)
                self._changed.notify_all()
            self._tell(old, new)

    def refused(self, registrar: str, error: JbiError) -> None:
        """The lookup service can't watch the template (Watcher)."""
        log.error("lookup service %s can't watch: %s", registrar, error)
        with self._changed:
            self._errors[registrar] = error
            self._changed.notify_all()

    def forget(self, registrar: str) -> None:
        """Drop all that only this lookup service has listed."""
        self.snapshot(registrar, ())

    def _apply(
        self, registrar: str, service_id: str, item: ServiceItem | None
    ) -> tuple[ServiceItem | None, ServiceItem | None]:
        by = self._seen.get(service_id, {})
        old = next(iter(by.values()), None)
        if item is None:
            by.pop(registrar, None)
            if not by:
                self._seen.pop(service_id, None)
        elif by.get(registrar) != item:
            # what a lookup service has news of is what counts: the others are only slower; it stands first
            self._seen[service_id] = by = {
                registrar: item,
                **{other: its for other, its in by.items() if other != registrar},
            }
        return old, next(iter(by.values()), None)

    def _tell(self, old: ServiceItem | None, new: ServiceItem | None) -> None:
        if self._listener is None or old == new:
            return
        with guarded("lookup listener"):  # what it raises is no reason for the others to hear nothing
            if old is not None and new is not None:
                self._listener.service_changed(old, new)
            elif new is not None:
                self._listener.service_added(new)
            elif old is not None:
                self._listener.service_removed(old)
