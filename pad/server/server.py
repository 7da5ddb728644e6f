"""A delegate as a server: endpoint, exported calls, data connections, lease reaper, presence in the lookup services.

The peer publisher runs the same server without the publishers' calls. Stopping has an order: leave the lookup
services, refuse publishers, flush what waits, end sessions, close the port.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from jbi_pubsub.core.access import ADMIN, AccessAdmin, AccessPolicy, Action, Decision, LoginCalls, Subject
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.lease import STALL_SECONDS
from jbi_pubsub.core.metrics import MetricsServer, Sample
from jbi_pubsub.core.process import version
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire.control import LOGIN, ControlServer
from jbi_pubsub.core.wire.credentials import Facts
from jbi_pubsub.core.wire.endpoint import Caller, Login
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.delegate.store import DelegateOptions, SubscriptionStore
from jbi_pubsub.pad.ingress.stages import Stages, stages_of
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.data import DataConnections
from jbi_pubsub.pad.server.endpoints import DelegateEndpoints
from jbi_pubsub.pad.server.exports import (
    AdminCalls,
    BridgingCalls,
    DelegateStatusCalls,
    HistoryCalls,
    JoinAdminCalls,
    MailLinkCalls,
    PublisherCalls,
    SubscriberCalls,
)
from jbi_pubsub.pad.server.guard import CallGuard
from jbi_pubsub.pad.server.metrics import delegate_samples
from jbi_pubsub.pad.server.presence import DelegatePresence
from jbi_pubsub.pad.server.repositories import Repositories
from jbi_pubsub.pad.server.service import DelegateService
from jbi_pubsub.pad.server.system_publisher import measuring
from jbi_pubsub.pad.server.types import TypeCalls
from jbi_pubsub.protocol.services import (
    BRIDGING,
    DELEGATE,
    HISTORY,
    JOIN_ADMIN,
    MAIL_LINKS,
    STATUS,
    SUBSCRIPTIONS,
    SUBSCRIPTIONS_METHODS,
    TYPES,
)
from jbi_pubsub.protocol.status.archive import ArchiveStatus
from jbi_pubsub.protocol.status.delegate import (
    ClientStatus,
    DelegateFacts,
    DelegateOverview,
    DelegateStatus,
    LimitsStatus,
)
from jbi_pubsub.protocol.status.networks import NetworksStatus

if TYPE_CHECKING:
    from jbi_pubsub.protocol.remote import RemoteArchive

log = logging.getLogger("jbi_pubsub.pad")

BALANCE_SECONDS: Final = 1.0
"""Interval at which it is looked at what predicates cost, and how important those are whose they are."""

LAST_SECONDS: Final = 1.0
"""For each step of a stop, at least, whatever those before have taken of the time."""
REAP_SECONDS: Final = 0.2
"""Interval at which leases are looked at: the grace within which an expired one is cleaned up."""


@dataclass(frozen=True)
class ServerHost:
    """Process of somebody else's that a server is part of: a node."""

    entries: tuple[EntryRep, ...] = ()
    """Entries for its item, beside its own."""
    exports: Mapping[str, object] = field(default_factory=dict)
    """Objects that it exports besides."""
    node: str = ""
    """The id that the process has for good."""
    login: Login | None = None
    """By which other parts of the process log in, who may do everything."""
    keeps_elsewhere: bool = False
    """Whether it has others keep what is to be kept, where there is no archive."""


class LeaseReaper:
    """Looks at leases, certificates and the balance of what predicates cost."""

    def __init__(self, delegate: Delegate, endpoints: DelegateEndpoints, data: DataConnections, stages: Stages) -> None:
        self._delegate = delegate
        self._endpoints = endpoints
        self._data = data
        self._is_managed = stages.quality is not None
        self._balanced = 0.0
        """When it was looked at last."""
        self._certificates: Facts | None = None
        """Those whose parties have been seen off."""
        self.job: Final = Job(f"{endpoints.name} reaper", REAP_SECONDS, self._clean_up, slow=True)

    def _clean_up(self) -> None:
        now = self._delegate.tables.clock()
        if self._is_managed and now - self._balanced >= BALANCE_SECONDS:
            self._balanced = now
            self._delegate.registrations.balance()
        facts = self._endpoints.first.facts()
        if facts is not None and facts is not self._certificates:
            self._certificates = facts
            if ended := self._delegate.review.end_held(facts.is_revoked):
                log.warning(
                    "%s: %d registrations and subscriptions of revoked certificates ended", self._endpoints.name, ended
                )
        if self._delegate.expire():
            self._data.forget_ended()


class DisseminationServer:
    """A delegate (`characteristics` given) or the serving side of a peer publisher (None)."""

    def __init__(
        self,
        config: Config,
        types: ServedTypes,
        *,
        characteristics: tuple[str, str] | None,
        access: AccessPolicy | None = None,
        remote: RemoteArchive | None = None,
        host: ServerHost | None = None,
    ) -> None:
        """Binds the port: raises PortInUseError or ConfigurationError. `access` instead of what [policy] names; `host`:
        of whoever has it in a process of his own. `remote` answers queries from another platform: then we are a
        bridge's."""
        self.server_id: Final = uuid4().hex
        self.characteristics: Final = characteristics
        self.name: Final = "-".join(("pad", *characteristics)) if characteristics else "peer"
        """For the log, and names of threads."""
        self._host = host or ServerHost()
        self._config = config
        self._started = time.monotonic()
        component = "@".join(characteristics) if characteristics else "peer"
        self._stages = stages_of(config, component, access, self._host.login)
        if remote is not None:
            self._stages = replace(self._stages, remote=remote)
        self.registry: Final = types.registry
        self._networks: Callable[[], NetworksStatus] | None = None
        with ExitStack() as undo:  # what fails leaves no port, thread or file open
            for stage in (self._stages.access, self._stages.quality, self._stages.archive):
                if stage is not None:
                    undo.callback(stage.close)
            self.service: Final = self._open(types, undo)
            self._control = ControlServer(self._exports(types) | dict(self._host.exports))
            stages = self._stages
            self._reaper = LeaseReaper(self.delegate, self.endpoints, self.service.data, stages)
            self._measuring: Job | None = None
            if stages.quality is not None and config.qos.publish_measurements:
                self._measuring = measuring(self.delegate, stages.quality, stages.signer)
            metrics = config.metrics
            self.metrics = MetricsServer(metrics, self.samples, stages.access) if metrics.port >= 0 else None
            undo.pop_all()

    def _open(self, types: ServedTypes, undo: ExitStack) -> DelegateService:
        config, stages, name = self._config, self._stages, self.name
        self.endpoints = DelegateEndpoints(
            config, name, self.server_id,
            control=lambda sock, caller: self._control.serve(sock, caller),
            data=lambda sock, caller, endpoint: self.service.data.serve(sock, caller, endpoint),
        )  # fmt: skip
        undo.callback(self.endpoints.stop)
        community = JoinManager(
            config, name=name,
            joined=lambda service_id, told: self.delegate.registrations.announced(service_id, told),
            refused=lambda service_id, why: self.delegate.publishers.unlisted(service_id, why),
        )  # fmt: skip
        undo.callback(community.close)
        files = undo.enter_context(ExitStack())
        store = mails = None
        if self.characteristics and config.pad.state:
            store = SubscriptionStore(Path(config.pad.state))
            files.callback(store.close)
            mails = MailStore(Path(config.pad.state + ".mails"))
            files.callback(mails.close)
        delegate = Delegate(
            self.server_id,
            config=config,
            types=types,
            announcer=community,
            subscriptions_ref=self.endpoints.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS),
            clock=time.monotonic,
            stages=stages,
            options=DelegateOptions(
                peer=self.characteristics is None,
                store=store,
                mails=mails,
                node=self._host.node,
                keeps_elsewhere=self._host.keeps_elsewhere,
                stall=STALL_SECONDS,
            ),
        )
        files.pop_all()  # they are the delegate's now
        undo.callback(delegate.close)
        guard = CallGuard(delegate.contracts.permissions)
        shown = self._host.entries
        presence = DelegatePresence(config, self.characteristics, community, self.endpoints, stages, types, shown)
        repositories = Repositories(self.server_id, types, community, config.security(), delegate.registrations)
        if stages.archive is not None:
            repositories.users.append(stages.archive.uses)
        data = DataConnections(config, delegate, presence, stages, name)
        return DelegateService(self.server_id, name, delegate, guard, presence, repositories, data, stages.quality)

    def _exports(self, types: ServedTypes) -> dict[str, object]:
        service, access = self.service, self._stages.access
        exports: dict[str, object] = {
            SUBSCRIPTIONS: SubscriberCalls(service),
            STATUS: DelegateStatusCalls(service, self.status, self.overview),
            MAIL_LINKS: MailLinkCalls(service),
            TYPES: TypeCalls(service, types, access),
            ADMIN: AccessAdmin(access),
            LOGIN: LoginCalls(access),
        }
        if self.characteristics:
            exports |= {
                DELEGATE: PublisherCalls(service),
                BRIDGING: BridgingCalls(service),
                JOIN_ADMIN: JoinAdminCalls(service),
                ADMIN: AdminCalls(service, access),
            }
        if self._stages.archive is not None or self._stages.remote is not None:
            exports[HISTORY] = HistoryCalls(service)
        return exports

    @property
    def delegate(self) -> Delegate:
        """The broker itself."""
        return self.service.delegate

    @property
    def community(self) -> JoinManager:
        """Our way to the lookup services."""
        return self.service.presence.community

    @property
    def quality(self) -> Quality | None:
        """Quality of service: who is served first; None without it."""
        return self._stages.quality

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self.endpoints.first.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them, that first."""
        return self.endpoints.addresses

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connection that has come by another way (Endpoint.adopt)."""
        self.endpoints.first.adopt(sock, address)

    def start(self) -> None:
        """Begin to serve; a delegate makes itself known."""
        for fault in self.registry.faults() if self.registry is not None else ():
            log.error("type repository: %s", fault)
        self.delegate.start()
        self.endpoints.start()
        self.service.presence.start()
        self._reaper.job.start()
        if self.quality is not None:
            self.quality.follow(self.community, self.server_id)
        if self._measuring is not None:
            self._measuring.start()

    def allow(self, caller: Caller, action: Action, subject: Subject) -> Decision:
        """Raises AccessDeniedError if the access policy says no."""
        return self.service.guard.allow(caller, action, subject)

    def stop(self, drain: float = 5.0, others: Callable[[float], int] = lambda seconds: 0) -> int:  # noqa: ARG005
        """Stop in order; how many objects could not be delivered within `drain` seconds. `others` is called when
        nothing more is taken, and ends within so many seconds what delivers beside us: how many objects that left."""
        deadline = time.monotonic() + drain
        if self.metrics is not None:
            self.metrics.stop()
        if self._measuring is not None:
            self._measuring.stop()
        self.delegate.publishers.wait_for_late_joiners()
        self.service.presence.stop()
        self._reaper.job.stop()  # no lease ends any more, so that subscribers have until the end of the drain
        least = min(drain, LAST_SECONDS)
        self.service.data.stop(max(least, deadline - time.monotonic()))
        left = others(max(least, deadline - time.monotonic()))
        left += self.delegate.drain(max(least, deadline - time.monotonic()), closing=True)
        self.delegate.close()
        self.endpoints.stop()
        if self.quality is not None:
            self.quality.close()
        self.service.presence.join()
        return left

    def show_networks(self, told: Callable[[], NetworksStatus]) -> None:
        """Tell of the networks of its node in its own status from now on."""
        self._networks = told

    def status(self) -> DelegateStatus:
        """Everything a status page shows."""
        return self.delegate.status(self._facts())

    def clients(self) -> list[ClientStatus]:
        """Publishers and subscriber processes, with who they are and where."""
        return self.delegate.reports.clients()

    def overview(self) -> DelegateOverview:
        """The same for who looks every second (see pad/delegate/overview.py)."""
        return self.delegate.overview(self._facts())

    def _facts(self) -> DelegateFacts:
        """Facts that are not the delegate's."""
        stages = self._stages
        return DelegateFacts(
            kind="delegate" if self.characteristics else "peer",
            name=self.characteristics[0] if self.characteristics else "",
            location=self.characteristics[1] if self.characteristics else "",
            id=self.server_id,
            pid=os.getpid(),
            version=version(),
            time=round(time.time(), 3),
            address=self.address,
            uptime=round(self.delegate.tables.clock() - self._started, 1),
            connections=self.endpoints.connections,
            compressed=len(self.service.data.compressed),
            tls=self.endpoints.first.tls(),
            threads=threading.active_count(),
            calls=self._control.calls,
            faults=faults(),
            draining=self.service.presence.is_draining,
            state=self._config.pad.state,
            limits=LimitsStatus(
                metadata=self._config.client.max_metadata,
                payload=self._config.client.max_payload,
                compressed=self._config.link.max_compressed,
                types=self.registry is not None,
            ),
            access=msgspec.structs.replace(
                stages.access.status(), contradictions=self.delegate.contracts.contradictions() or UNSET
            ),
            archive=self._archived(),
            foreign=stages.remote.status() if stages.remote is not None else UNSET,
            node=self._host.node or UNSET,
            networks=self._networks().brief() if self._networks is not None else UNSET,
        )

    def _archived(self) -> ArchiveStatus | UnsetType:
        if self._stages.archive is None or self.delegate.history is None:
            return UNSET
        return msgspec.structs.replace(self._stages.archive.status(), queries=self.delegate.history.status())

    def samples(self) -> Iterator[Sample]:
        """Samples that the metrics port shows."""
        return delegate_samples(self.status(), self._stages.access.refused())
