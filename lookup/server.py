"""A lookup service as a server: the registrar behind an endpoint, event channels, lease reaper, announcement.

Parts: `durable` has the registrar decide, `channels` send its events, `permissions` ask the policy, `presence` is its
port and its place among the others.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from jbi_pubsub.core.access import ADMIN, AccessAdmin, AccessPolicy, AllowAll, LoginCalls
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import PortInUseError
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.metrics import MetricsServer, Sample, expiries, refusals, samples_of
from jbi_pubsub.core.process import version
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported, leasing
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup import browse
from jbi_pubsub.lookup.channels import EventChannels
from jbi_pubsub.lookup.client.proxy import EXPORTED, Administered, RegistrarInfo
from jbi_pubsub.lookup.durable import BREATH, REAP_AT_ONCE, DurableRegistrar
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import (
    EventRegistration,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
)
from jbi_pubsub.lookup.permissions import LeasePermissions
from jbi_pubsub.lookup.presence import LookupPresence
from jbi_pubsub.lookup.registrar import Outcome, Registrar
from jbi_pubsub.lookup.status import LookupStatus
from jbi_pubsub.lookup.store import Store

REAP_MOST: Final = 0.5
"""Longest pause of the reaper in seconds: the grace within which an expiry is announced."""


class LookupServer:
    """One lookup service. `registrar` may have been restored from a store beforehand."""

    def __init__(
        self,
        config: Config,
        registrar: Registrar,
        *,
        store: Store | None = None,
        wall: Callable[[], float] = time.time,
        access: AccessPolicy | None = None,
        destroyed: Callable[[], None] = lambda: None,
    ) -> None:
        """Binds the port: raises PortInUseError or ConfigurationError. Where the registrar's groups, locators and port
        differ from `config`, an administrator has set them: the registrar's count.

        `store` is the registrar's log, whose content the registrar has been given; the server closes it, and `access`,
        which says who may do what (None: everybody everything). `destroyed` is called on that admin call.
        """
        self._config = config
        self._started = time.monotonic()
        self.access: Final = access or AllowAll()
        self._events = EventChannels(config.link.max_compressed)
        self.registrar: Final = DurableRegistrar(registrar, store, self._events.offer, wall=wall)
        self._permissions = LeasePermissions(self.access, self.registrar)
        self._presence = LookupPresence(
            config,
            self.registrar,
            self._events,
            control=lambda sock, caller: self._control.serve(sock, caller),
            destroyed=destroyed,
        )
        self._control = ControlServer(
            {
                EXPORTED: RegistrarExport(self.registrar, self._permissions, self._events, self._presence),
                "status": LookupStatusExport(self._permissions, self.status),
                ADMIN: AccessAdmin(self.access),
                LOGIN: LoginCalls(self.access),
            }
        )
        self._reaper = Job("lookup reaper", REAP_MOST, self._reap, slow=True)
        metrics = config.metrics
        try:
            self.metrics = MetricsServer(metrics, self.samples, self.access) if metrics.port >= 0 else None
        except PortInUseError:
            self._presence.stop()
            raise

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self._presence.endpoint.address

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that has come by another way (Endpoint.adopt)."""
        self._presence.endpoint.adopt(sock, address)

    def start(self) -> None:
        """Serve, join the other lookup services, and announce."""
        self._events.start()
        self._reaper.start()
        self._presence.start()

    def stop(self) -> None:
        """Say good-bye and end all threads; the state stays with the store."""
        if self.metrics is not None:
            self.metrics.stop()
        self._presence.stop()
        self._events.stop()
        self._reaper.stop()
        self.access.close()
        self.registrar.close()

    def info(self) -> RegistrarInfo:
        """Id and groups of this lookup service."""
        return self._presence.info()

    def status(self) -> LookupStatus:
        """Everything a status page shows."""
        registrar, admin = self.registrar.read(lambda registrar, _: (registrar.status(), registrar.admin()))
        return msgspec.structs.replace(
            LookupStatus(**registrar),
            id=registrar.service_id,
            pid=os.getpid(),
            version=version(),
            time=round(time.time(), 3),
            address=self.address,
            uptime=round(time.monotonic() - self._started, 1),
            connections=self._presence.connections,
            tls=self._presence.endpoint.tls(),
            threads=threading.active_count(),
            calls=self._control.calls,
            access=self.access.status(),
            locators=list(admin.locators),
            lookup_services=self._presence.lookup_services,
            faults=faults(),
            store=self.registrar.status(),
            **self._events.status(),
        )

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics port."""
        status = self.status()
        yield from samples_of(status, "lookup_")
        yield Sample("lookup_connections", "gauge", "Open connections", status.connections)
        yield from expiries(status.tls)
        yield from refusals(self.access.refused())
        fault = status.store is not None and bool(status.store.fault)
        yield Sample("lookup_store_fault", "gauge", "1: the state can't be written to the disk", float(fault))

    def _reap(self) -> float:
        pause = REAP_MOST
        with guarded("lookup reaper"):
            while self.registrar.change(lambda registrar, now: registrar.expire(now, REAP_AT_ONCE)) >= REAP_AT_ONCE:
                time.sleep(BREATH)
            due = self.registrar.read(lambda registrar, _: registrar.next_deadline())
            pause = REAP_MOST if due is None else min(REAP_MOST, max(0.01, due - time.monotonic()))
        self._permissions.ask_again()
        self._events.drop_idle(2 * max(self._config.lease.lookup, 30.0))
        self.registrar.align()
        return pause


class RegistrarExport:
    """The registrar's calls, as `RegistrarProxy` makes them."""

    def __init__(
        self,
        registrar: DurableRegistrar,
        permissions: LeasePermissions,
        events: EventChannels,
        presence: LookupPresence,
    ) -> None:
        self._registrar = registrar
        self._permissions = permissions
        self._events = events
        self._presence = presence

    @exported
    def describe(self, caller: Caller) -> RegistrarInfo:
        self._permissions.allow(caller, "connect")
        return self._presence.info()

    @exported
    @leasing
    def register(self, caller: Caller, item: ServiceItem, duration: float, key: str) -> ServiceRegistration:
        owner, version = caller.peer, self._permissions.access.version
        every = self._permissions.allow_item(caller, item)

        def register(registrar: Registrar, now: float) -> Outcome[ServiceRegistration]:
            outcome = registrar.register(item, duration, now, owner=owner, key=key)
            told = self._events.connected_among(listener for listener, _ in outcome.events)
            return msgspec.structs.replace(outcome, result=msgspec.structs.replace(outcome.result, told=told))

        granted = self._registrar.grant(register)
        self._permissions.remember(granted.lease_id, caller, every, version)
        self._presence.heard_of(msgspec.structs.replace(item, service_id=granted.service_id))
        return granted

    @exported
    def lookup(
        self,
        caller: Caller,
        template: ServiceTemplate,
        limit: int,
        total: bool,
        after: str,
    ) -> ServiceMatches:
        self._permissions.allow(caller, "connect")
        return self._registrar.search(template, limit, total=total, after=after)

    @exported
    @leasing
    def notify(
        self,
        caller: Caller,
        template: ServiceTemplate,
        transitions: int,
        duration: float,
        handback: str,
        listener: str,
    ) -> EventRegistration:
        owner, version = caller.peer, self._permissions.access.version
        self._permissions.allow(caller, "connect")
        registered = self._registrar.change(
            lambda registrar, now: registrar.notify(
                template, transitions, duration, now, handback=handback, owner=owner, listener=listener
            )
        )
        self._permissions.remember(registered.lease_id, caller, (), version)
        return registered

    @exported
    def open_events(self, caller: Caller, listener: str) -> str:
        self._permissions.allow(caller, "connect")
        return self._events.open(listener)

    @exported
    def add_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        entries: tuple[EntryRep, ...],
    ) -> None:
        self._permissions.allow_entries(caller, entries)
        self._registrar.decide(lambda registrar, now: registrar.add_attributes(service_id, lease_id, entries, now))

    @exported
    def set_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        entries: tuple[EntryRep, ...],
    ) -> None:
        self._permissions.allow_entries(caller, entries)
        self._registrar.decide(lambda registrar, now: registrar.set_attributes(service_id, lease_id, entries, now))

    @exported
    def modify_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        changes: tuple[tuple[EntryRep, EntryRep | None], ...],
    ) -> None:
        self._permissions.allow_entries(caller, (new for _, new in changes if new is not None))
        self._registrar.decide(lambda registrar, now: registrar.modify_attributes(service_id, lease_id, changes, now))

    @exported
    @leasing
    def renew(self, caller: Caller, leases: tuple[tuple[str, float], ...]) -> tuple[LeaseResult, ...]:
        self._permissions.allow(caller, "connect")  # leases of before a restart are asked about nowhere else
        return self._registrar.change(lambda registrar, now: registrar.renew_all(leases, now))

    @exported
    def cancel(self, caller: Caller, lease_ids: tuple[str, ...]) -> tuple[LeaseResult, ...]:  # noqa: ARG002  # the lease ids are the right
        return self._registrar.change(lambda registrar, now: registrar.cancel_all(lease_ids, now))

    @exported
    def entry_classes(self, caller: Caller, template: ServiceTemplate) -> tuple[str, ...]:
        self._permissions.allow(caller, "connect")
        return browse.entry_classes(self._registrar.matching(template), template)

    @exported
    def field_values(
        self,
        caller: Caller,
        template: ServiceTemplate,
        index: int,
        field: str,
    ) -> tuple[str | None, ...]:
        self._permissions.allow(caller, "connect")
        return browse.field_values(self._registrar.matching(template), template, index, field)

    @exported
    def service_types(self, caller: Caller, template: ServiceTemplate, prefix: str) -> tuple[str, ...]:
        self._permissions.allow(caller, "connect")
        return browse.service_types(self._registrar.matching(template), template, prefix)

    @exported
    def administered(self, caller: Caller) -> Administered:
        self._permissions.allow(caller, "administer")
        return self._presence.administered()

    @exported
    def set_groups(self, caller: Caller, groups: tuple[str, ...]) -> Administered:
        self._permissions.allow(caller, "administer")
        return self._presence.administer(lambda registrar, _: registrar.set_groups(groups))

    @exported
    def change_groups(self, caller: Caller, add: tuple[str, ...], remove: tuple[str, ...]) -> Administered:
        self._permissions.allow(caller, "administer")
        return self._presence.administer(
            lambda registrar, _: registrar.set_groups(_changed(registrar.admin().groups, add, remove))
        )

    @exported
    def set_locators(self, caller: Caller, locators: tuple[str, ...]) -> Administered:
        self._permissions.allow(caller, "administer")
        return self._presence.administer(lambda registrar, _: registrar.set_locators(locators))

    @exported
    def change_locators(self, caller: Caller, add: tuple[str, ...], remove: tuple[str, ...]) -> Administered:
        self._permissions.allow(caller, "administer")
        gone, added = (tuple(map(check_endpoint, each)) for each in (remove, add))
        return self._presence.administer(
            lambda registrar, _: registrar.set_locators(_changed(registrar.admin().locators, added, gone))
        )

    @exported
    def set_port(self, caller: Caller, port: int) -> Administered:
        self._permissions.allow(caller, "administer")
        return self._presence.set_port(port)

    @exported
    def destroy(self, caller: Caller) -> None:
        self._permissions.allow(caller, "administer")
        self._presence.destroy()


class LookupStatusExport:
    """Status of the lookup service."""

    def __init__(self, permissions: LeasePermissions, status: Callable[[], LookupStatus]) -> None:
        self._permissions = permissions
        self._status = status

    @exported
    def status(self, caller: Caller) -> LookupStatus:
        self._permissions.allow(caller, "status")
        return self._status()


def _changed(present: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in (*present, *add) if each not in remove))
