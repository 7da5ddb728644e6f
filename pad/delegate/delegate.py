"""The delegate: who publishes, who subscribes, who gets what. No network here.

One code for the publisher-adapter delegate (behind `server`) and the peer publisher (inside the application). This is
where its parts are put together, and what concerns all of them; each decides under the lock of `tables`, and acts after
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.access_review import AccessReview
from jbi_pubsub.pad.delegate.contracts import DelegateCore, Permissions, QosContracts
from jbi_pubsub.pad.delegate.interest import RelayedInterest
from jbi_pubsub.pad.delegate.listing import Announcer, RegistrationListing
from jbi_pubsub.pad.delegate.mail_subscriptions import MailSubscriptions
from jbi_pubsub.pad.delegate.publishers import PublisherConnections
from jbi_pubsub.pad.delegate.registrations import Registrations
from jbi_pubsub.pad.delegate.sessions import SubscriberSessions
from jbi_pubsub.pad.delegate.status import StatusReports
from jbi_pubsub.pad.delegate.store import DelegateOptions
from jbi_pubsub.pad.delegate.subscribers import SubscriptionRegistry
from jbi_pubsub.pad.delegate.tables import ContractEvents, Tables
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.buffer_pass import LateDelivery
from jbi_pubsub.pad.egress.late_join import LateJoiners
from jbi_pubsub.pad.ingress.control import AdmissionControl
from jbi_pubsub.pad.ingress.distribution import Distribution
from jbi_pubsub.pad.ingress.persistence import Persistence
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.pad.ingress.stages import PEER, Stages, stages_of
from jbi_pubsub.pad.matching.dissemination import Seal
from jbi_pubsub.pad.matching.signatures import Seals
from jbi_pubsub.pad.model.type_repository import DelegateTypes
from jbi_pubsub.protocol.status.delegate import DelegateFacts, DelegateOverview, DelegateStatus

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.service import ArchiveService

log = logging.getLogger("jbi_pubsub.pad")


NO_FACTS: Final = DelegateFacts(kind="delegate", address="", uptime=0.0)
"""Facts of a delegate without a server."""


class Delegate:
    """Its parts, and its life. Methods raise our errors and are safe from several threads."""

    def __init__(
        self,
        delegate_id: str,
        *,
        config: Config,
        types: DelegateTypes,
        announcer: Announcer,
        subscriptions_ref: ServiceRef,
        clock: Callable[[], float],
        stages: Stages | None = None,
        options: DelegateOptions | None = None,
    ) -> None:
        """`subscriptions_ref` is the proxy handed to subscribers; `stages` of the pipeline, by default those of the
        configuration. Raises StorageError."""
        options = options or DelegateOptions()
        stages = stages or stages_of(config, PEER if options.peer else delegate_id)
        short = delegate_id[:8]
        budget = Budget(config.pad.max_queued_bytes)
        self.delegate_id: Final = delegate_id
        self.seals = Seals(stages.signer, delegate_id) if stages.signer is not None else None
        self.tables: Final = Tables(config, stages.buffers, clock, options.stall)
        self.events: Final = ContractEvents(self.tables)
        own = Caller("", user=config.client.user, claimed=True, role=config.client.role)
        self.contracts: Final = QosContracts(
            self.tables, Permissions(stages.access), stages.quality, own, is_peer=options.peer
        )
        core = DelegateCore(config, self.tables, self.contracts, self.events)
        self.mail: Final = MailSubscriptions(core, options, name=short, forget=lambda key: self.subscribers.forget(key))
        self.pipeline: Final = Pipeline(
            stages, AdmissionControl(config, stages, budget, clock),
            Persistence(stages, self.mail.dispatcher.writer, clock), self._distribution_of(stages, clock), clock,
        )  # fmt: skip
        self.history: Final = self._history_of(stages, config, options)
        node = options.node or (stages.archive.keeping.id if stages.archive is not None else "") or delegate_id
        self.registrations: Final = Registrations(
            core, types=types, signatures=stages.signatures, archive=stages.archive,
            keeps_elsewhere=options.keeps_elsewhere,
            listing=RegistrationListing(announcer, subscriptions_ref, node, is_peer=options.peer),
        )  # fmt: skip
        self.publishers: Final = PublisherConnections(core, self.registrations, self.pipeline)
        self.subscribers: Final = SubscriptionRegistry(
            core, registrations=self.registrations, mail=self.mail, history=self.history,
            late_joiners=self._late_joiners_of(stages, budget),
        )  # fmt: skip
        self.sessions: Final = SubscriberSessions(core, self.subscribers, budget=budget, name=f"deliver-{short}")
        self.review: Final = AccessReview(core, self.publishers, self.subscribers, self.sessions)
        self.interest: Final = RelayedInterest(self.tables, self.pipeline.control.stopping)
        self.reports: Final = StatusReports(core, self.subscribers.late_joiners, self.mail.dispatcher, budget)
        self.mail.start()

    @property
    def _seal(self) -> Seal | None:
        return self.seals.seal if self.seals is not None else None

    def _distribution_of(self, stages: Stages, clock: Callable[[], float]) -> Distribution:
        sessions, mail, totals = self.tables.sessions, self.mail.dispatcher, self.tables.account
        return Distribution(sessions, mail, totals, seal=self._seal, shaper=stages.shaper, clock=clock)

    def _late_joiners_of(self, stages: Stages, budget: Budget) -> LateJoiners:
        delivery = LateDelivery(
            stages.buffers, budget, self.pipeline.distribution.mail_out, self.pipeline.distribution.refuse,
            seal=self._seal, shaper=stages.shaper,
        )  # fmt: skip
        return LateJoiners(delivery, name=f"catch-up-{self.delegate_id[:8]}")

    def _history_of(self, stages: Stages, config: Config, options: DelegateOptions) -> ArchiveService | None:
        """Service that subscribers ask about the past, here or elsewhere; what is off is not imported."""
        archive = stages.archive or stages.remote
        if archive is None:
            return None
        from jbi_pubsub.pad.past.feeds import FeedThread
        from jbi_pubsub.pad.past.service import ArchiveService

        name = f"history-{self.delegate_id[:8]}"
        make_thread = partial(FeedThread, name, seal=self._seal, shaper=stages.shaper)
        numbers = self.tables.next_number
        return ArchiveService(archive, make_thread, stages.access, self.contracts, numbers, config, options.wall)

    def start(self) -> None:
        """Begin to deliver."""
        self.sessions.hub.start()

    def renew(self, lease_id: str, duration: float) -> Lease:
        """Renew the lease of a publisher, subscriber or e-mail subscription. Raises UnknownLeaseError."""
        return self.mail.renew(lease_id, duration)

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key of the objects of a registration that is here, or was, or that queries find; our own if it is our id.
        Raises StorageError."""
        if uid == self.delegate_id:
            return self.seals.key if self.seals is not None else None
        known = self.registrations.signing_key(uid)
        return known if known is not None or self.history is None else self.history.signing_key(uid)

    def status(self, facts: DelegateFacts = NO_FACTS) -> DelegateStatus:
        """Everything a status page shows; `facts` of its server."""
        return self.reports.status(facts)

    def overview(self, facts: DelegateFacts = NO_FACTS) -> DelegateOverview:
        """The same for who looks every second."""
        return self.reports.overview(facts)

    def expire(self) -> int:
        """Clean up whose lease has run out; how many there were."""
        with self.tables.lock:
            gone = self.tables.leases.landlord.expire(self.tables.clock())
        for drop in gone:
            try:
                drop()
            except JbiError as exc:
                log.error("cleaning up after a lease failed: %s", exc)
        self.mail.remind()
        if self.history is not None and self.history.catch_ups is not None:
            self.history.catch_ups.tend()
        self.tables.buffers.trim(self.tables.clock())
        with self.tables.lock:
            self.tables.topics.forget_ghosts(self.tables.clock())
        return len(gone) + self.review.ask_again()

    def drain(self, timeout: float, *, closing: bool = False) -> int:
        """Wait for deliveries and mails to go out; how many objects are left after `timeout` seconds.

        `closing` leaves nothing for later that would not survive."""
        deadline = self.tables.clock() + timeout
        left = self.sessions.drain(timeout, closing=closing)
        return left + self.mail.dispatcher.drain(max(0.0, deadline - self.tables.clock()), closing=closing)

    def close(self) -> None:
        """End everything: registrations leave the lookup services, what still waits is lost (shutdown)."""
        self.pipeline.control.stopping.set()
        self.subscribers.late_joiners.stop()
        if self.history is not None:
            self.history.stop()
        with self.tables.lock:
            self.tables.changed.notify_all()
            connections, sessions = list(self.tables.connections), list(self.tables.sessions)
        for connection_id in connections:
            self.publishers.drop(connection_id)
        self.sessions.part()
        for session_id in sessions:
            self.sessions.drop(session_id, Cause.SHUTDOWN)
        self.sessions.hub.stop()
        self.mail.dispatcher.stop()
        if self.history is not None and self.history.catch_ups is not None:
            self.history.catch_ups.note()
        if self.registrations.archive is not None:
            self.registrations.archive.close()
        self.contracts.permissions.access.close()
        if self.mail.store is not None:
            self.mail.remind()  # what was sent at the end
            self.mail.store.close()
