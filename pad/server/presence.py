"""Presence of a delegate in the lookup services, and whether it takes new work."""

from __future__ import annotations

import logging
import threading
from typing import Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, WireError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.endpoints import DelegateEndpoints
from jbi_pubsub.protocol.entries import PAD_TYPE, ArchiveEntry, Origin, PublisherAdapterDelegate, TypesEntry, origin_of
from jbi_pubsub.protocol.services import (
    DELEGATE,
    DELEGATE_METHODS,
    SUBSCRIPTIONS,
    SUBSCRIPTIONS_METHODS,
    fetch_status,
)

log = logging.getLogger("jbi_pubsub.pad")

LOOKUP_SECONDS: Final = 2.0
"""For asking the lookup services about a type: a registration must not hang because one of them does."""

NAMESAKE_SECONDS: Final = 5.0
"""For a lookup service to list other delegates of our name, and for each of them to answer."""


class DelegatePresence:
    """The item of a delegate, or of a peer publisher with an archive, in the lookup services, until it drains or
    stops."""

    def __init__(
        self,
        config: Config,
        characteristics: tuple[str, str] | None,
        community: JoinManager,
        endpoints: DelegateEndpoints,
        stages: Stages,
        types: ServedTypes,
        entries: tuple[EntryRep, ...],
    ) -> None:
        """`characteristics` of a delegate; `entries` beside its own."""
        self.community: Final = community
        self.is_draining = self.is_stopping = False
        self._characteristics = characteristics
        self._endpoints = endpoints
        self._archive, self._remote = stages.archive, stages.remote
        self._entries, self._has_types = entries, types.registry is not None
        self._security = config.security()
        self._name = endpoints.name
        tell = guarded(f"{self._name} namesakes")(self._tell_namesakes)
        self._namesakes = threading.Thread(target=tell, name=f"{self._name}-namesakes", daemon=True)

    def start(self) -> None:
        """Make it known, now and when another type is archived."""
        if self._archive is not None:
            self._archive.appeared = self.show
        self.show()
        if self._characteristics:
            self._namesakes.start()

    def drain(self) -> None:
        """Be found by no new publishers, until `resume`."""
        self.is_draining = True
        self.community.leave(self._endpoints.server_id)

    def resume(self) -> None:
        """Be found again."""
        self.refuse_when_stopping()
        if self.is_draining:
            self.is_draining = False
            self.show()

    def stop(self) -> None:
        """Leave the lookup services."""
        self.community.close()
        self.is_stopping = True

    def join(self) -> None:
        """Wait for who looks for others of our name."""
        if self._namesakes.is_alive():
            self._namesakes.join(1.0)

    def show(self) -> None:
        """A delegate registers with the lookup services, a peer publisher if it has an archive."""
        if self.is_stopping or self.is_draining:
            return
        archive = (self._archive.entry(),) if self._archive is not None else ()
        service_id = self._endpoints.server_id
        if self._characteristics:
            name, location = self._characteristics
            entry = PublisherAdapterDelegate(name=name, location=location).rep()
            types = (TypesEntry().rep(),) if self._has_types else ()
            ref = self._endpoints.ref(DELEGATE, DELEGATE_METHODS)
            self.community.join(ServiceItem(service_id, (PAD_TYPE,), ref, (entry, *types, *archive, *self._entries)))
        elif archive or self._remote is not None:
            ref = self._endpoints.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS)
            kind = (self._remote.service_type,) if self._remote is not None else ()
            self.community.join(ServiceItem(service_id, kind, ref, archive or (ArchiveEntry().rep(),)))

    def refuse_when_stopping(self) -> None:
        """Raises WireError: the server takes no new work."""
        if self.is_stopping:
            raise WireError(f"{self._name} is stopping")

    def refuse_when_draining(self) -> None:
        """Raises WireError: the server takes no new publishers."""
        self.refuse_when_stopping()
        if self.is_draining:
            raise WireError(f"{self._name} is draining: it takes no new publishers", hint="Use another delegate")

    def check_relayed(self, uid: str, origin: Origin) -> None:
        """Whether a registration may be relayed to here: not where the same lookup services hold the original, nor
        where another bridge relays it already. Raises AccessDeniedError; LookupNotFoundError when no lookup service
        can be asked."""
        for item in self.community.lookup(ServiceTemplate(service_id=uid), limit=1, timeout=LOOKUP_SECONDS):
            known = origin_of(item.entries)
            if known is None or known.bridge != origin.bridge:
                what = "is published here" if known is None else f"is relayed here by bridge {known.bridge[:64]}"
                raise AccessDeniedError(f"registration {uid} {what}: it can't be relayed", uid=uid)

    def wait_announced(self, uid: str, timeout: float) -> None:
        """Wait until the lookup services hold a registration, and know that something of its type is archived: who asks
        for what was published goes by that. Raises LookupNotFoundError after `timeout` seconds, and what a lookup
        service refused it with."""
        self.community.wait_joined(uid, timeout)
        if self._archive is not None and not (self.is_stopping or self.is_draining):
            self.community.wait_joined(self._endpoints.server_id, timeout)

    def _tell_namesakes(self) -> None:
        """Warn of others of our name that run: publishers take any of them. One that is listed may be dead."""
        name, location = self._characteristics or ("", "")
        ours = PublisherAdapterDelegate(name=name, location=location).rep()
        cache = self.community.watch(ServiceTemplate(types=(PAD_TYPE,), entries=(ours,)))
        try:
            self.community.wait_watching(cache, NAMESAKE_SECONDS)
            found = cache.items()
        except JbiError as exc:
            log.debug("%s: other delegates of the same name are not known: %s", self._name, exc)
            return
        finally:
            self.community.unwatch(cache)
        for item in found:
            if item.service_id != self._endpoints.server_id and not self.is_stopping and self._answers(item.proxy):
                told = "another delegate is called (%s, %s), at %s: each publisher uses the one that it finds first"
                log.warning(told, name, location, ", ".join(item.proxy.endpoints))

    def _answers(self, ref: ServiceRef) -> bool:
        try:
            fetch_status(ref, self._security, timeout=NAMESAKE_SECONDS)
        except JbiError as exc:  # who refuses runs
            return not isinstance(exc, WireError)
        return True
