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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import (
    ADMIN,
    NONE_IN_PARTICULAR,
    AccessAdmin,
    AccessPolicy,
    Action,
    Decision,
    LoginCalls,
    Subject,
    demand,
    denied,
)
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    ErrorReport,
    JbiError,
    PortInUseError,
    ProtocolError,
    TypeConflictError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.info_object import Parcel, Part, TypeName
from jbi_pubsub.core.lease import STALL_SECONDS
from jbi_pubsub.core.metrics import MetricsServer, Sample
from jbi_pubsub.core.process import version
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer
from jbi_pubsub.core.wire.credentials import Facts
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.core.wire.stream import Hello, Line, Receiver, Settle, Tokens, listen, refuse, welcome
from jbi_pubsub.core.wire.transport import UnixListener
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep, check_rep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.delegate.sessions import PART_SECONDS
from jbi_pubsub.pad.delegate.store import DelegateOptions, SubscriptionStore
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.admission import Admission, ReportThread, reported
from jbi_pubsub.pad.ingress.persistence import Refused
from jbi_pubsub.pad.ingress.pipeline import RUN_BYTES, RUN_MOST
from jbi_pubsub.pad.ingress.stages import stages_of
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import Quality
from jbi_pubsub.pad.model.type_repository import ServedTypes
from jbi_pubsub.pad.server.exports import (
    LOOKUP_SECONDS,
    AdminCalls,
    HistoryCalls,
    JoinAdminCalls,
    MailLinkCalls,
    PublisherCalls,
    StatusCalls,
    SubscriberCalls,
)
from jbi_pubsub.pad.server.measurements import Measurements
from jbi_pubsub.pad.server.metrics import samples_of
from jbi_pubsub.pad.server.types import Repositories, TypeCalls, users_of
from jbi_pubsub.protocol.entries import (
    PAD_TYPE,
    PUBLISHER_TYPE,
    ArchiveEntry,
    InformationType,
    Origin,
    PublisherAdapterDelegate,
    TypesEntry,
    origin_of,
)
from jbi_pubsub.protocol.publications import ABANDONED, CHUNK, LAST_CHUNK, MAX_COMING, PUBLICATION
from jbi_pubsub.protocol.replies import Registered, Taken
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.services import (
    DELEGATE,
    DELEGATE_METHODS,
    HISTORY,
    JOIN_ADMIN,
    MAIL_LINKS,
    STATUS,
    SUBSCRIPTIONS,
    SUBSCRIPTIONS_METHODS,
    TYPES,
    fetch_status,
)

if TYPE_CHECKING:
    from jbi_pubsub.protocol.remote import RemoteArchive

log = logging.getLogger("jbi_pubsub.pad")

CREDIT_SHARE: Final = 4
"""All registrations together are granted about a quarter of the memory for waiting objects, in bytes."""
CREDIT_LEAST: Final = 1 << 16
"""Each has so many at least."""

BALANCE_SECONDS: Final = 1.0
"""Interval at which it is looked at what predicates cost, and how important those are whose they are."""

NAMESAKE_SECONDS: Final = 5.0
"""For a lookup service to list other delegates of our name, and for each of them to answer."""
REAP_SECONDS: Final = 0.2
"""Interval at which leases are looked at: the grace within which an expired one is cleaned up."""


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
        clock: Callable[[], float] = time.monotonic,
        entries: tuple[EntryRep, ...] = (),
        also: Mapping[str, object] = {},
        node: str = "",
    ) -> None:
        """Binds the port: raises PortInUseError or ConfigurationError. `access` instead of what [policy] names. Whoever
        has it in a process of his own adds `entries` to its item, and `also` to what it exports; `node` is the
        id that he has for good. `remote` answers queries from another platform: then we are a bridge's."""
        self.server_id = uuid4().hex
        self._entries = entries
        self._node = node
        self.characteristics = characteristics
        self.name = "-".join(("pad", *characteristics)) if characteristics else "peer"
        self._stages = stages_of(config, "@".join(characteristics) if characteristics else "peer", access)
        if remote is not None:
            self._stages = replace(self._stages, remote=remote)
        self._access = self._stages.access
        self._config = config
        self._types = types
        self.users: list[Callable[[TypeName], str]] = []
        """Further users of types: each says in words what uses one, "" for nothing."""
        self._balanced = 0.0
        """When it was looked at last."""
        self._tasks = self._stages.quality.tasks if self._stages.quality is not None else None
        self._reports = ReportThread(self.name) if self._tasks is not None else None
        self._started = clock()
        self._clock = clock
        self._tokens = Tokens(lambda: uuid4().hex)
        self._compressed = Allowance(config.link.max_compressed)
        self.spool = config.link.spooling()
        """Where large payloads are."""
        self._publications: dict[str, Receiver] = {}
        self._coming: dict[str, dict[int, Gathering]] = {}
        """Objects that come in chunks on the same connections, by numbers of registrations."""
        self._certificates: Facts | None = None
        """Those whose parties have been seen off."""
        self._stopping = threading.Event()
        self._draining = threading.Event()
        exports: dict[str, object] = {
            SUBSCRIPTIONS: SubscriberCalls(self), STATUS: StatusCalls(self), MAIL_LINKS: MailLinkCalls(self),
            TYPES: TypeCalls(self, types, self._access),
            ADMIN: AccessAdmin(self._access),
            LOGIN: LoginCalls(self._access),
        }  # fmt: skip
        if characteristics:
            exports |= {
                DELEGATE: PublisherCalls(self),
                JOIN_ADMIN: JoinAdminCalls(self),
                ADMIN: AdminCalls(self, self._access),
            }
        if self._stages.archive is not None or remote is not None:
            exports[HISTORY] = HistoryCalls(self)
        if self._stages.archive is not None:
            self.users.append(self._stages.archive.uses)
        self._control = ControlServer(exports | dict(also))
        self._reaper = Job(f"{self.name} reaper", REAP_SECONDS, self._clean_up, slow=True)
        tell = guarded(f"{self.name} namesakes")(self._tell_namesakes)
        self._namesakes = threading.Thread(target=tell, name=f"{self.name}-namesakes", daemon=True)
        with ExitStack() as undo:  # what fails leaves no port, thread or file open
            undo.callback(self._access.close)
            if self._stages.quality is not None:
                undo.callback(self._stages.quality.close)
            if self._stages.archive is not None:
                undo.callback(self._stages.archive.close)
            self._open(config, types, undo)
            undo.pop_all()

    def _open(self, config: Config, types: ServedTypes, undo: ExitStack) -> None:
        self._endpoint = self._listen(config.pad.host, config.pad.port, config.pad.advertise)
        undo.callback(self._endpoint.stop)
        self._further: list[Endpoint] = []
        for host in config.pad.hosts:
            self._further.append(self._listen_beside(host))
            undo.callback(self._further[-1].stop)
        self._sockets = self._beside(config)
        if self._sockets is not None:
            undo.callback(self._sockets.stop)
        self.community = JoinManager(config, name=self.name, joined=self._joined, refused=self._unlisted)
        undo.callback(self.community.close)
        self.repositories = Repositories(self.server_id, types, self.community, config.security())
        files = undo.enter_context(ExitStack())
        store = mails = None
        if self.characteristics and config.pad.state:
            store = SubscriptionStore(Path(config.pad.state))
            files.callback(store.close)
            mails = MailStore(Path(config.pad.state + ".mails"))
            files.callback(mails.close)
        self.delegate = Delegate(
            self.server_id,
            config=config,
            types=types,
            announcer=self.community,
            subscriptions_ref=self.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS),
            clock=self._clock,
            stages=self._stages,
            options=DelegateOptions(
                peer=self.characteristics is None, store=store, mails=mails, node=self._node, stall=STALL_SECONDS
            ),
        )
        files.pop_all()  # they are the delegate's now
        undo.callback(self.delegate.close)
        stages = self._stages
        self._measurements: Measurements | None = None
        if stages.quality is not None and config.qos.publish_measurements:
            self._measurements = Measurements(self.delegate, stages.quality, stages.signer)
        metrics = config.metrics
        self.metrics = MetricsServer(metrics, self.samples, stages.access) if metrics.port >= 0 else None

    def _listen(self, host: str, port: int, advertise: str = "") -> Endpoint:
        def data(sock: socket.socket, caller: Caller) -> None:
            self._serve_data(sock, caller, endpoint)

        endpoint = Endpoint(
            host,
            port,
            name=self.name,
            security=self._config.security(),
            control=self._control.serve,
            data=data,
            advertise=advertise,
        )
        return endpoint

    def _listen_beside(self, host: str) -> Endpoint:
        """At the first one's port; at a free one where that is taken, and nobody has asked for a certain one."""
        try:
            return self._listen(host, self._endpoint.port)
        except PortInUseError:
            if self._config.pad.port:
                raise
            return self._listen(host, 0)

    def _beside(self, config: Config) -> UnixListener | None:
        """A further way to us for clients on this host."""
        if not config.pad.sockets:
            return None
        if config.tls.identity() is not None:
            raise ConfigurationError(
                "[pad] sockets and [tls] don't go together", hint="Identities come from certificates, over TCP alone"
            )
        return UnixListener(Path(config.pad.sockets), self.server_id, adopt=self._endpoint.adopt)

    @property
    def quality(self) -> Quality | None:
        """Quality of service: who is served first; None without it."""
        return self._stages.quality

    @property
    def state(self) -> str:
        """The file that e-mail subscriptions are kept in; "" without one."""
        return self._config.pad.state

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self._endpoint.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them, that first."""
        return self.address, *(each.address for each in self._further)

    def ref(self, exported_name: str, methods: tuple[str, ...]) -> ServiceRef:
        """A proxy for one of the exported objects."""
        ways = self.addresses if self._sockets is None else (self._sockets.endpoint, *self.addresses)
        return ServiceRef(self.server_id, exported_name, ways, methods, self._endpoint.certificate)

    def start(self) -> None:
        """Begin to serve; a delegate makes itself known."""
        for fault in self._types.registry.faults() if self._types.registry is not None else ():
            log.error("type repository: %s", fault)
        self.delegate.start()
        for endpoint in (self._endpoint, *self._further):
            endpoint.start()
        if self._sockets is not None:
            self._sockets.start()
        if self._stages.archive is not None:
            self._stages.archive.appeared = self._show_again
        self._show()
        if self.characteristics:
            self._namesakes.start()
        self._reaper.start()
        if self._stages.quality is not None:
            self._stages.quality.follow(self.community, self.server_id)
        if self._measurements is not None:
            self._measurements.start()

    def _show(self) -> None:
        """A delegate registers with the lookup services, a peer publisher if it has an archive."""
        archive = (self._stages.archive.entry(),) if self._stages.archive is not None else ()
        if self.characteristics:
            name, location = self.characteristics
            entry = PublisherAdapterDelegate(name=name, location=location).rep()
            types = (TypesEntry().rep(),) if self._types.registry is not None else ()
            ref = self.ref(DELEGATE, DELEGATE_METHODS)
            self.community.join(
                ServiceItem(self.server_id, (PAD_TYPE,), ref, (entry, *types, *archive, *self._entries))
            )
        elif archive or self._stages.remote is not None:
            ref = self.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS)
            kind = (self._stages.remote.service_type,) if self._stages.remote is not None else ()
            self.community.join(ServiceItem(self.server_id, kind, ref, archive or (ArchiveEntry().rep(),)))

    def _tell_namesakes(self) -> None:
        """Warn of others of our name that run: publishers take any of them. One that is listed may be dead."""
        name, location = self.characteristics or ("", "")
        ours = PublisherAdapterDelegate(name=name, location=location).rep()
        cache = self.community.watch(ServiceTemplate(types=(PAD_TYPE,), entries=(ours,)))
        try:
            self.community.wait_watching(cache, NAMESAKE_SECONDS)
            found = cache.items()
        except JbiError as exc:
            log.debug("%s: who else has our name is not known: %s", self.name, exc)
            return
        finally:
            self.community.unwatch(cache)
        for item in found:
            if item.service_id != self.server_id and not self._stopping.is_set() and self._answers(item.proxy):
                told = "another delegate is called (%s, %s), at %s: each publisher uses the one that it finds first"
                log.warning(told, name, location, ", ".join(item.proxy.endpoints))

    def _answers(self, ref: ServiceRef) -> bool:
        try:
            fetch_status(ref, self._config.security(), timeout=NAMESAKE_SECONDS)
        except JbiError as exc:  # who refuses runs
            return not isinstance(exc, WireError)
        return True

    def _show_again(self) -> None:
        """Another type is archived."""
        if not (self._stopping.is_set() or self._draining.is_set()):
            self._show()

    def drain(self, seconds: float) -> int:
        """Take no new publishers, nor be found by them; those there are, and subscribers, go on. How many objects still
        wait after `seconds`. Until `resume`, or the end."""
        self._draining.set()
        self.community.leave(self.server_id)
        began = self._clock()
        if self._tasks is not None:
            self._tasks.drain(seconds)
        return self.delegate.drain(max(0.0, seconds - (self._clock() - began)))

    def resume(self) -> None:
        """Take publishers again."""
        self.refuse_when_stopping()
        if self._draining.is_set():
            self._draining.clear()
            self._show()

    def stop(self, drain: float = 5.0) -> int:
        """Stop in order; how many objects could not be delivered within `drain` seconds."""
        if self.metrics is not None:
            self.metrics.stop()
        if self._measurements is not None:
            self._measurements.stop()
        self.delegate.publishers.wait_for_late_joiners()
        self.community.close()
        self._stopping.set()
        self._reaper.stop()  # no lease ends any more, so that subscribers have until the end of the drain
        if self._tasks is not None and self._reports is not None:
            self._tasks.drain(drain)  # what is admitted is done, and told; what is not, publishers send to another one
            self._reports.flush(PART_SECONDS)
        for receiver in list(self._publications.values()):
            receiver.stop()
        if self._reports is not None:
            self._reports.stop()
        left = self.delegate.drain(drain, closing=True)
        self.delegate.close()
        if self._sockets is not None:
            self._sockets.stop()
        for endpoint in (self._endpoint, *self._further):
            endpoint.stop()
        if self._stages.quality is not None:
            self._stages.quality.close()
        if self._namesakes.is_alive():
            self._namesakes.join(1.0)
        return left

    def allow(self, caller: Caller, action: Action, subject: Subject = NONE_IN_PARTICULAR) -> Decision:
        """Raises AccessDeniedError if the access policy says no."""
        return demand(self._access, caller, (action, subject))

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Around what opens a contract: rules that change in the middle of it are asked about it."""
        version = self._access.version
        yield
        self.delegate.contracts.permissions.decided(version)

    def allow_type(self, caller: Caller, type_: TypeName) -> None:
        """Whether somebody may know what a type is: who has to do with it. Raises AccessDeniedError."""
        subject = Subject(type_.name, type_.version)
        demand(self._access, caller, ("subscribe", subject), ("publish", subject), ("status", subject))

    def allow_object(self, caller: Caller, parcel: Parcel) -> None:
        """Whether somebody may know what is in an object: who might have got it. Raises AccessDeniedError."""
        head = parcel.head
        subject = Subject(head.type_name, head.type_version)
        decision = self.allow(caller, "subscribe", subject)
        if decision.where:
            predicate = compile_predicate(decision.where, namespaces=dict(decision.namespaces))
            if not predicate.matches(parse_metadata(bytes(head.metadata))):
                self._access.record(caller, "subscribe", subject, Decision(False, decision.rule))
                raise denied(caller, "subscribe", subject)

    def refuse_when_stopping(self) -> None:
        """Raises WireError: the server takes no new work."""
        if self._stopping.is_set():
            raise WireError(f"{self.name} is stopping")

    def refuse_when_draining(self) -> None:
        """Raises WireError: the server takes no new publishers."""
        self.refuse_when_stopping()
        if self._draining.is_set():
            raise WireError(f"{self.name} is draining: it takes no new publishers", hint="Use another delegate")

    def check_type(self, request: PublisherRequest, caller: str = "") -> TypeName:
        """The type, opened for that caller. Exactly one schema per type, also across delegates. Raises EntryError,
        SchemaError, TypeConflictError."""
        for described in request.entries:
            check_rep(described)
        gate = self.delegate.registrations.open_type(request.schema, caller)
        try:
            self.repositories.check(gate)
        except JbiError:
            self.delegate.registrations.forget_type(gate.type)
            raise
        wanted = InformationType(name=gate.type.name, version=gate.type.version).rep()
        template = ServiceTemplate(types=(PUBLISHER_TYPE,), entries=(wanted,))
        try:
            standing = self.community.lookup(template, limit=1, timeout=LOOKUP_SECONDS)
        except JbiError as exc:
            log.warning("schema of %s not compared with other delegates: %s", gate.type, exc)
            return gate.type
        for item in standing:
            entry = next((e for e in item.entries if e.cls == wanted.cls), None)
            if entry is not None and InformationType.from_rep(entry).schema != gate.digest:
                self.delegate.registrations.forget_type(gate.type)
                raise TypeConflictError(
                    f"information object type {gate.type} is published with another schema already",
                    hint="Use that schema, or publish under another version",
                    type=str(gate.type),
                )
        return gate.type

    def check_relayed(self, uid: str, origin: Origin) -> None:
        """Whether a registration may be relayed to here: not where the same lookup services hold the original, nor
        where another bridge relays it already. Raises AccessDeniedError; LookupNotFoundError when no lookup service
        can be asked."""
        for item in self.community.lookup(ServiceTemplate(service_id=uid), limit=1, timeout=LOOKUP_SECONDS):
            known = origin_of(item.entries)
            if known is None or known.bridge != origin.bridge:
                what = "is published here" if known is None else f"is relayed here by bridge {known.bridge[:64]}"
                raise AccessDeniedError(f"registration {uid} {what}: it can't be relayed", uid=uid)

    def type_users(self, type_: TypeName) -> tuple[str, ...]:
        """Users of a type, in words; () for nothing."""
        standing = self.delegate.registrations.publishing(type_)
        return users_of(type_, standing, self.community, self.server_id, self.users)

    def wait_announced(self, uid: str, timeout: float) -> None:
        """Wait until the lookup services hold a registration, and know that something of its type is archived: who asks
        for what was published goes by that. Raises LookupNotFoundError after `timeout` seconds, and what a lookup
        service refused it with."""
        self.community.wait_joined(uid, timeout)
        if self._stages.archive is not None and not (self._stopping.is_set() or self._draining.is_set()):
            self.community.wait_joined(self.server_id, timeout)

    def _joined(self, service_id: str, told: int) -> None:
        """A lookup service has an item of ours that it had not."""
        self.delegate.registrations.announced(service_id, told)

    def _unlisted(self, service_id: str, why: JbiError) -> None:
        """A lookup service refuses an item of ours."""
        self.delegate.publishers.unlisted(service_id, why)

    def issue_token(self, kind: str, uid: str) -> str:
        """For a data connection."""
        return self._tokens.issue((kind, uid))

    def forget_publications(self, connection_id: str) -> None:
        """End the data connection of a publisher that has left."""
        receiver = self._publications.pop(connection_id, None)
        coming = self._coming.pop(connection_id, None)
        if receiver:
            receiver.stop()
        if coming:
            coming.clear()

    def status(self) -> dict[str, Any]:
        """Plain data for status pages."""
        return {**self._facts(), **self.delegate.status()}

    def clients(self) -> list[dict[str, Any]]:
        """Publishers and subscriber processes, with who they are and where."""
        return self.delegate.reports.clients()

    def overview(self) -> dict[str, Any]:
        """The same for who looks every second (see pad/delegate/overview.py)."""
        return {**self._facts(), **self.delegate.overview()}

    def _facts(self) -> dict[str, Any]:
        """Facts that are not the delegate's."""
        return {
            "kind": "delegate" if self.characteristics else "peer",
            "name": self.characteristics[0] if self.characteristics else "",
            "location": self.characteristics[1] if self.characteristics else "",
            "id": self.server_id,
            "pid": os.getpid(),
            "version": version(),
            "time": round(time.time(), 3),
            "address": self.address,
            "uptime": round(self._clock() - self._started, 1),
            "connections": sum(each.connections for each in (self._endpoint, *self._further)),
            "compressed": len(self._compressed),
            "tls": self._endpoint.tls(),
            "threads": threading.active_count(),
            "calls": self._control.calls,
            "faults": faults(),
            "draining": self._draining.is_set(),
            "state": self._config.pad.state,
            "limits": {
                "metadata": self._config.client.max_metadata,
                "payload": self._config.client.max_payload,
                "compressed": self._config.link.max_compressed,
                "types": self._types.registry is not None,
            },
            "access": self._access.status(),
            **({"qos": self._stages.quality.status()} if self._stages.quality is not None else {}),
            **self._archived(),
            **({"foreign": self._stages.remote.status()} if self._stages.remote is not None else {}),
            **({"node": self._node} if self._node else {}),
        }

    def _archived(self) -> dict[str, Any]:
        if self._stages.archive is None or self.delegate.history is None:
            return {}
        return {"archive": {**self._stages.archive.status(), "queries": self.delegate.history.status()}}

    def samples(self) -> Iterator[Sample]:
        """Samples that the metrics port shows."""
        return samples_of(self.status(), self._access.refused())

    # -- data connections ---------------------------------------------------------------------------------------

    def _serve_data(self, sock: socket.socket, caller: Caller, endpoint: Endpoint) -> None:
        line = Line(sock)
        hello = listen(line)
        kind, uid = self._tokens.redeem(hello.token) or ("", "")
        caller.place.kept = bool(kind)
        if kind == "deliver":
            self._deliver(sock, line, uid, hello, endpoint)
        elif kind == "publish":
            self._take_publications(line, uid, hello)
        else:
            refuse(line, "unknown or used token")

    def _deliver(self, sock: socket.socket, line: Line, uid: str, hello: Hello, endpoint: Endpoint) -> None:
        try:
            session = self.delegate.tables.session(uid)
        except UnknownUidError as exc:
            refuse(line, str(exc))
            return
        self.delegate.tables.attached(uid)
        welcome(line, 0, self._compressed.grant(hello.compression))
        session.attach(sock, hello.position, endpoint.hand_over(sock), line.compression)

    def _take_publications(self, line: Line, connection_id: str, hello: Hello) -> None:
        receiver = self._publications.setdefault(connection_id, self._receiver(connection_id))
        try:
            self.delegate.tables.connection(connection_id)  # now that whoever ends it finds the receiver
        except UnknownUidError as exc:
            self.forget_publications(connection_id)
            refuse(line, str(exc))
            return
        self.delegate.tables.attached(connection_id)
        compression = self._compressed.grant(hello.compression)
        receiver.run(line, lambda position: welcome(line, position, compression))

    def _receiver(self, connection_id: str) -> Receiver:
        """The receiver of a publisher's data connections, one after the other."""
        coming = self._coming.setdefault(connection_id, defaultdict(self._gathering))
        if self._tasks is not None and self._reports is not None:
            admission = Admission(self._tasks, self.delegate.pipeline, self._reports, self._config.qos, self.granted)
            return admission.receive(lambda items: self._admit(connection_id, items, coming, admission))
        refused: list[tuple[str, ErrorReport]] = []
        return Receiver(
            lambda items: self._publish(connection_id, items, coming, refused), lambda: _encode_refusals(refused)
        )

    def _gathering(self) -> Gathering:
        """A large object begins to come. With quality of service its connection does not wait for room."""
        seconds = self._config.queue.block_seconds if self._tasks is None else 0.0
        looks = self._stages.signatures is not None
        return Gathering(self.spool, self._config.client.max_payload, seconds, is_looked_at=looks)

    def _publish(
        self,
        connection_id: str,
        items: list[memoryview],
        coming: dict[int, Gathering],
        refused: list[tuple[str, ErrorReport]],
    ) -> Settle | None:
        """Disseminate a batch. A refused object is reported with the acknowledgement; the others go on. What waits for
        the disk before it is acknowledged: then the publisher forgets it.

        `coming` holds the chunks of large objects by registration number, `refused` what is to be reported.
        """
        try:
            registrations = (connection := self.delegate.tables.connection(connection_id)).registrations
        except UnknownUidError as exc:
            raise WireError(str(exc)) from exc
        refused += self.delegate.publishers.refusals(connection)
        deliveries = Deliveries()
        pipeline = self.delegate.pipeline
        taken: list[Parcel] = []
        comes_again = False
        for number, run in _runs(items, coming):
            self.refuse_when_stopping()
            try:
                refusals = self._judge(registrations, number, run, deliveries)
                refused += [reported(parcel, why) for parcel, why in refusals]
            finally:  # what was taken is delivered, also when something behind it ends the connection
                pipeline.distribution.deliver(deliveries)
            if pipeline.persistence.archives:
                taken += (kept := [parcel for parcel in run if parcel.position])
                comes_again |= len(kept) < len(run) and number in registrations and registrations[number].persist
        if not taken and not comes_again:
            pipeline.persistence.sync()
            return None

        def settle() -> None:
            lost = pipeline.persistence.sync(taken, comes_again=comes_again)
            refused.extend([reported(parcel, why) for parcel, why in lost])

        return settle

    def _admit(
        self, connection_id: str, items: list[memoryview], coming: dict[int, Gathering], admission: Admission
    ) -> None:
        """The same with quality of service: it is acknowledged when it is admitted, and judged by turns."""
        try:
            registrations = (connection := self.delegate.tables.connection(connection_id)).registrations
        except UnknownUidError as exc:
            raise WireError(str(exc)) from exc
        admission.tell(self.delegate.publishers.refusals(connection))
        admission.begin()
        try:
            for number, run in _runs(items, coming, self._clock()):
                self.refuse_when_stopping()
                admission.take(registrations, number, run)
        finally:
            admission.end()

    def granted(self, registration: Registration) -> Registered:
        """The terms that the publisher of a registration is told."""
        if self._tasks is None:
            return Registered()
        settings = (registration.contract or Contract()).settings
        qos, pad = self._config.qos, self._config.pad
        share = pad.max_queued_bytes // CREDIT_SHARE // max(1, len(self.delegate.tables.registrations))
        return Registered(
            qos.credit,
            settings.importance,
            settings.version,
            min(qos.credit_bytes, max(CREDIT_LEAST, share)),
            self._tasks.is_strict,
        )

    def _judge(
        self, registrations: Mapping[int, Registration], number: int, run: Sequence[Parcel], deliveries: Deliveries
    ) -> Refused:
        """Judge a run; what was refused of it."""
        registration = registrations.get(number)
        if registration is None:
            why = UnknownUidError("publication for no registration of this publisher", number=number)
            return [(parcel, why) for parcel in run]
        return self.delegate.publishers.publish(registration, run, deliveries)

    def _clean_up(self) -> None:
        if self._tasks is not None and self._clock() - self._balanced >= BALANCE_SECONDS:
            self._balanced = self._clock()
            self.delegate.registrations.balance()
        facts = self._endpoint.facts()
        if facts is not None and facts is not self._certificates:
            self._certificates = facts
            if ended := self.delegate.review.end_held(facts.is_revoked):
                log.warning("%s: %d contracts of revoked certificates ended", self.name, ended)
        if self.delegate.expire():
            for connection_id in list(self._publications):
                try:
                    self.delegate.tables.connection(connection_id)
                except UnknownUidError:
                    self.forget_publications(connection_id)


def _runs(
    items: Sequence[memoryview], coming: dict[int, Gathering], now: float = 0.0
) -> Iterator[tuple[int, list[Parcel]]]:
    """A batch as runs: the number of a registration, and consecutive objects of it, each `since` it was published if
    `now` says when the batch has come, or it tells its age. Raises ProtocolError behind those before the bad item."""
    run: list[Parcel] = []
    last = size = 0
    for item in items:
        try:
            number, age, data = _whole(item, coming)
            since = (now or time.monotonic()) - age / 1000 if now or age else 0.0
            if isinstance(data, Gathering):
                parcel: Parcel | None = data.parcel(since)
            else:
                parcel = Parcel.received(data, since) if data is not None else None
        except ProtocolError:
            if run:
                yield last, run
            raise
        if parcel is None:
            continue
        if run and (number != last or len(run) == RUN_MOST or size > RUN_BYTES):
            yield last, run
            run, size = [], 0
        run.append(parcel)
        last = number
        size += parcel.size
    if run:
        yield last, run


def _whole(item: memoryview, coming: dict[int, Gathering]) -> tuple[int, int, Part | Gathering | None]:
    """The number of a registration, an age in ms, and the bytes of an object if the item completes one. Raises
    ProtocolError.

    A small one is copied, so that it does not hold the whole batch that it came in for as long as it waits.
    """
    if len(item) < PUBLICATION.size:
        raise ProtocolError("truncated publication")
    kind, number, age = PUBLICATION.unpack_from(item)
    body = item[PUBLICATION.size :]
    if kind == ABANDONED:
        coming.pop(number, None)
        return number, age, None
    if kind not in (CHUNK, LAST_CHUNK):
        return number, age, bytes(body) if body.nbytes < memoryview(item.obj).nbytes // 2 else body
    coming[number].add(body)
    if len(coming) > MAX_COMING:
        raise ProtocolError(f"more than {MAX_COMING} large objects at once")
    return number, age, coming.pop(number) if kind == LAST_CHUNK else None


def _encode_refusals(refusals: list[tuple[str, ErrorReport]]) -> bytes:
    if not refusals:
        return b""
    told = tuple(refusals)
    del refusals[: len(told)]  # more may come meanwhile
    return msgspec.msgpack.encode(Taken(told))
