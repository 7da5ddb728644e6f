"""Port of a lookup service, its place among the others, its announcement; what an administrator sets.

A lookup service is a service too: its own item stands in its own registrar, and its JoinManager registers the same
item, leased, with the lookup services of its groups that its locators, mDNS, or items registered here name. What an
administrator sets is kept before the answer, then announced: in these items, and by mDNS.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import PortInUseError, StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.lookup.administration import RegistrarAdmin, check_port
from jbi_pubsub.lookup.channels import EventChannels
from jbi_pubsub.lookup.client.discovery import MAX_SUGGESTIONS
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EXPORTED, LOOKUP_TYPE, Administered, LookupService, RegistrarInfo
from jbi_pubsub.lookup.durable import DurableRegistrar
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Outcome, Registrar

if TYPE_CHECKING:
    from jbi_pubsub.lookup.client.multicast import Announcement

log = logging.getLogger("jbi_pubsub.lookup")

DESTROY_SECONDS: Final = 0.2
"""Between the answer to `destroy` and the end, or to a change of the port and the end of the old one: whoever called is
to get it."""


class LookupPresence:
    """See the module. `_administering` covers all of it: one admin call at a time."""

    def __init__(
        self,
        config: Config,
        registrar: DurableRegistrar,
        events: EventChannels,
        *,
        control: Callable[[socket.socket, Caller], None],
        destroyed: Callable[[], None],
    ) -> None:
        """Binds the port. `control` serves a control connection. Raises PortInUseError, ConfigurationError."""
        self._config = config
        self._registrar = registrar
        self._events = events
        self._control = control
        self._destroyed = destroyed
        self._administering = threading.RLock()
        self._stopping = threading.Event()
        self.endpoint = self._bind_first(self._admin())
        self._retired: list[tuple[threading.Timer, Endpoint]] = []
        self._community: JoinManager | None = None
        self._announcement: Announcement | None = None

    def start(self) -> None:
        """Serve, join the other lookup services, and announce."""
        with self._administering:
            admin = self._admin()
            self._put_own(admin)
            self.endpoint.start()
            if self._config.lookup.host in ("0.0.0.0", "::") and not self._config.lookup.advertise:  # noqa: S104  # compared
                log.warning("other hosts can't connect to %s: set [lookup] advertise", self.endpoint.address)
            self._join(admin)
            self._announce()

    def stop(self) -> None:
        """Say good-bye, and listen no more."""
        self._stopping.set()
        with self._administering:  # the admin call that is under way ends first; those behind it open nothing any more
            retired, self._retired = self._retired, []
        if self._announcement:
            self._announcement.stop()
        if self._community is not None:
            self._community.close()
        self.endpoint.stop()
        for timer, endpoint in retired:
            timer.cancel()
            endpoint.stop()
            timer.join(5.0)

    def info(self) -> RegistrarInfo:
        """Id and groups of this lookup service."""
        admin = self._admin()
        return RegistrarInfo(admin.service_id, admin.groups)

    def administered(self) -> Administered:
        """Settings as they are now."""
        admin = self._admin()
        return Administered(admin.groups, admin.locators, self.endpoint.port, admin.chosen)

    @property
    def connections(self) -> int:
        """Number of connections, those to the port of before as well."""
        return len(self.endpoint.connections) + sum(len(endpoint.connections) for _, endpoint in self._retired)

    @property
    def lookup_services(self) -> int:
        """Number of other lookup services that answer."""
        return self._community.connected() if self._community is not None else 0

    def administer(self, call: Callable[[Registrar, float], Outcome[RegistrarAdmin]]) -> Administered:
        """Change how it is set up, make that durable, and let everybody know."""
        with self._administering:
            return self._follow(self._registrar.change(call))

    def set_port(self, port: int) -> Administered:
        """Listen on another port from now on, 0 for any free one. The new one serves before the old one is closed.

        Raises PortInUseError, ConfigurationError, and StorageError where the disk takes nothing new: then all stays as
        it is. (StorageError as `_follow` as well.)
        """
        with self._administering:
            if self._stopping.is_set() or port == self.endpoint.port:
                return self.administer(lambda registrar, _: registrar.set_port(self.endpoint.port))
            check_port(port)
            new = self._bind(port)
            try:
                admin = self._registrar.change(lambda registrar, _: registrar.set_port(new.port))
            except StorageError:
                new.stop()
                raise
            old, self.endpoint = self.endpoint, new
            new.start()
            try:
                return self._follow(admin)
            finally:
                self._retire(old)

    def heard_of(self, item: ServiceItem) -> None:
        """Another lookup service is registered here: it is joined if it serves one of our groups."""
        if LOOKUP_TYPE in item.types and self._community is not None:
            self._community.heard_of(item)

    def destroy(self) -> None:
        """Forget all and end: the process's owner is told, once the caller has been answered.

        Raises StorageError when the disk has not taken that: it ends, but a restart finds what was there.
        """
        self._registrar.change(lambda registrar, _: registrar.destroy())
        _later("lookup-destroy", self._destroyed)
        self._registrar.admit()

    def _follow(self, admin: RegistrarAdmin) -> Administered:
        """Let everybody know what an administrator has set.

        Raises StorageError when the disk has not taken it: it holds, and is written as soon as that does again.
        """
        self._put_own(admin)
        if self._community is not None and not self._stopping.is_set():
            self._community.look_in(admin.groups, admin.locators)
            self._community.join(self._item(admin))
            self._announce()
        self._registrar.admit()
        return self.administered()

    def _admin(self) -> RegistrarAdmin:
        return self._registrar.read(lambda registrar, _: registrar.admin())

    def _put_own(self, admin: RegistrarAdmin) -> None:
        item = self._item(admin)
        self._registrar.change(lambda registrar, now: registrar.put_own(item, now))

    def _retire(self, endpoint: Endpoint) -> None:
        """Close the port of before, once the caller who has changed it has been answered over it."""
        closing = _later("lookup-old-port", endpoint.stop)
        self._retired = [(timer, old) for timer, old in self._retired if timer.is_alive()] + [(closing, endpoint)]

    def _bind_first(self, admin: RegistrarAdmin) -> Endpoint:
        if "port" not in admin.chosen:
            return self._bind(self._config.lookup.port)
        if admin.port != self._config.lookup.port:
            log.warning(
                "listening on port %d, which an administrator has set, not on %d", admin.port, self._config.lookup.port
            )
        try:
            return self._bind(admin.port)
        except PortInUseError as exc:
            raise PortInUseError(
                exc.message, hint="An administrator has set this port: stop what uses it, and start again", **exc.facts
            ) from exc

    def _bind(self, port: int) -> Endpoint:
        endpoint = Endpoint(
            self._config.lookup.host,
            port,
            name="lookup",
            security=self._config.security(),
            control=self._control,
            data=lambda sock, _: self._events.serve(sock, endpoint),
            advertise=self._config.lookup.advertise,
        )
        return endpoint

    def _item(self, admin: RegistrarAdmin) -> ServiceItem:
        """Our own item, registered here and elsewhere."""
        entry = LookupService(
            name=self._config.lookup.name or socket.gethostname(),
            groups=",".join(admin.groups) if admin.groups else None,
            address=self.endpoint.address,
        )
        proxy = ServiceRef(admin.service_id, EXPORTED, (self.endpoint.address,), (), self.endpoint.certificate)
        return ServiceItem(admin.service_id, (LOOKUP_TYPE,), proxy, (entry.rep(),))

    def _join(self, admin: RegistrarAdmin) -> None:
        """Be a member of the community like everybody else, and know again who has joined us before a restart."""
        section = msgspec.structs.replace(self._config.lookup, groups=admin.groups, locators=admin.locators)
        config = msgspec.structs.replace(self._config, lookup=section)
        self._community = JoinManager(config, name="lookup", secret=admin.secret, own=admin.service_id)
        self._community.join(self._item(admin))
        known = ServiceTemplate(types=(LOOKUP_TYPE,))
        for item in islice(self._registrar.matching(known), MAX_SUGGESTIONS):
            self._community.heard_of(item)

    def _announce(self) -> None:
        """Announce by mDNS, in place of what was announced before."""
        lookup = self._config.lookup
        info = self.info()
        if self._announcement:
            self._announcement.stop()
        self._announcement = None
        if lookup.multicast and info.groups:
            from jbi_pubsub.lookup.client.multicast import Announcement, interfaces_of  # here: not all have mDNS

            self._announcement = Announcement(info, self.endpoint.address, interfaces_of(self._config))
            self._announcement.start()


def _later(name: str, what: Callable[[], None]) -> threading.Timer:
    """Do it in DESTROY_SECONDS."""

    def do() -> None:
        with guarded(name):
            what()

    timer = threading.Timer(DESTROY_SECONDS, do)
    timer.name, timer.daemon = name, True
    timer.start()
    return timer
