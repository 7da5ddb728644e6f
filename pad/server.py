"""A delegate as a server: endpoint, exported calls, data connections, lease reaper, presence in the lookup services.

The peer publisher runs the same server without the publishers' calls. Stopping has an order: leave the lookup
services, refuse publishers, flush what waits, end sessions, close the port.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from heapq import nlargest
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import (
    ADMIN,
    NONE_IN_PARTICULAR,
    AccessAdmin,
    AccessPolicy,
    Action,
    Decision,
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
    LookupNotFoundError,
    OversizeError,
    ProtocolError,
    TypeConflictError,
    UnknownUidError,
    WireError,
    report,
)
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.info_object import Cause, Parcel, Part, SchemaBundle, TypeName
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.metrics import MetricsServer, Sample, expiries
from jbi_pubsub.core.process import version
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlServer, exported, leasing
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.core.wire.stream import MAX_ITEM_BYTES, Hello, Line, Receiver, Tokens, listen, refuse, welcome
from jbi_pubsub.core.wire.transport import UnixListener
from jbi_pubsub.core.wire.x509 import RevocationList
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import EntryRep, check_rep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.delegate import Delegate, TypeRepository
from jbi_pubsub.pad.delivery import Deliveries
from jbi_pubsub.pad.explanation import recall
from jbi_pubsub.pad.mail.links import Action as Followed
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.overview import Terms
from jbi_pubsub.pad.pipeline import Refused
from jbi_pubsub.pad.proxy import (
    CHUNK,
    DELEGATE,
    DELEGATE_METHODS,
    JOIN_ADMIN,
    LAST_CHUNK,
    MAIL_LINKS,
    MAX_COMING,
    PUBLICATION,
    STANDING_SECONDS,
    STATUS,
    SUBSCRIBE_AT_ONCE,
    SUBSCRIPTIONS,
    SUBSCRIPTIONS_METHODS,
    TYPES,
    Answers,
    Opened,
    Subscribed,
)
from jbi_pubsub.pad.registration import Registration
from jbi_pubsub.pad.stages import stages_of
from jbi_pubsub.pad.store import SubscriptionStore
from jbi_pubsub.pad.subscription import (
    PAD_TYPE,
    PUBLISHER_TYPE,
    InformationType,
    PublisherAdapterDelegate,
    PublisherRequest,
    SubscriptionRequest,
)

log = logging.getLogger("jbi_pubsub.pad")

LOOKUP_SECONDS: Final = 2.0
"""For asking the lookup services about a type: a registration must not hang because one of them does."""

RUN_MOST: Final = 50
"""Publications of a batch after which what they come to is delivered: about half a millisecond's work."""
RUN_BYTES: Final = 1 << 20
"""The same for large objects: what is gathered counts in no queue's bound yet."""

STATUS_ROWS: Final = 5_000
"""Rows of a list in a status that is asked for over the network: about 3 MB of subscriptions."""

TOTALS: Final = (
    ("published", "Objects taken from publishers"),
    ("refused", "Publications refused"),
    ("unmatched", "Objects that matched no subscription"),
    ("matched", "Objects times subscriptions that they matched"),
    ("suppressed", "Objects of whose payload a filter selected nothing, not delivered"),
    ("delivered", "Objects delivered"),
    ("signed", "Objects whose signature was looked at and holds"),
    ("bad_signature", "Objects that are not signed, or whose signature does not hold"),
    ("mailed", "Objects times recipients sent by mail"),
    ("replayed", "Objects times subscriptions that came late and caught up with them"),
    ("found_late", "Objects that matched no subscription when they came, and one afterwards"),
)
"""The counters of a status that hold all there ever was, whoever has gone since, and what they mean."""

DRAIN_MOST: Final = 60.0
"""Seconds that a call to drain waits at most."""
ACCESS_REFUSED: Final = "Refused by the access policy, by action"

REAP_SECONDS: Final = 0.2
"""How often leases are looked at: the grace within which an expired one is cleaned up."""


class DisseminationServer:
    """A delegate (`characteristics` given) or the serving side of a peer publisher (None)."""

    def __init__(
        self,
        config: Config,
        types: TypeRepository,
        *,
        characteristics: tuple[str, str] | None,
        access: AccessPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds the port: raises PortInUseError or ConfigurationError. `access` instead of what [policy] names."""
        self.server_id = uuid4().hex
        self.characteristics = characteristics
        self.name = "-".join(("pad", *characteristics)) if characteristics else "peer"
        self._stages = stages_of(config, "@".join(characteristics) if characteristics else "peer", access)
        self._access = self._stages.access
        self._started = clock()
        self._clock = clock
        self._tokens = Tokens(lambda: uuid4().hex)
        self._compressed = Allowance(config.link.max_compressed)
        self._publications: dict[str, Receiver] = {}
        self._revocations: tuple[RevocationList, ...] = ()
        """Those whose parties have been seen off."""
        self._stopping = threading.Event()
        self._draining = threading.Event()
        exports: dict[str, object] = {
            SUBSCRIPTIONS: _Subscriptions(self), STATUS: _Status(self), TYPES: _Types(self, types),
            MAIL_LINKS: _MailLinks(self),
            ADMIN: AccessAdmin(self._access),
        }  # fmt: skip
        if characteristics:
            exports |= {DELEGATE: _Delegate(self), JOIN_ADMIN: _JoinAdmin(self), ADMIN: _Admin(self, self._access)}
        self._control = ControlServer(exports)
        self._reaper = threading.Thread(target=self._reap, name=f"{self.name}-reaper", daemon=True)
        with ExitStack() as undo:  # what fails leaves no port, thread or file open
            undo.callback(self._access.close)
            self._open(config, types, undo)
            undo.pop_all()

    def _open(self, config: Config, types: TypeRepository, undo: ExitStack) -> None:
        self._endpoint = Endpoint(
            config.pad.host,
            config.pad.port,
            name=self.name,
            security=config.security(),
            control=self._control.serve,
            data=self._serve_data,
            advertise=config.pad.advertise,
        )
        undo.callback(self._endpoint.stop)
        self._sockets = self._beside(config)
        if self._sockets is not None:
            undo.callback(self._sockets.stop)
        self.community = JoinManager(config, name=self.name, joined=self._joined)
        undo.callback(self.community.close)
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
            peer=self.characteristics is None,
            store=store,
            mails=mails,
            stages=self._stages,
        )
        files.pop_all()  # they are the delegate's now
        undo.callback(self.delegate.close)
        metrics = config.metrics
        self.metrics = MetricsServer(metrics.host, metrics.port, self.samples) if metrics.port >= 0 else None

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
    def address(self) -> str:
        """host:port to connect to."""
        return self._endpoint.address

    def ref(self, exported_name: str, methods: tuple[str, ...]) -> ServiceRef:
        """A proxy for one of the exported objects."""
        ways = (self.address,) if self._sockets is None else (self._sockets.endpoint, self.address)
        return ServiceRef(self.server_id, exported_name, ways, methods, self._endpoint.certificate)

    def start(self) -> None:
        """Begin to serve; a delegate makes itself known."""
        self.delegate.start()
        self._endpoint.start()
        if self._sockets is not None:
            self._sockets.start()
        self._reaper.start()
        self._show()

    def _show(self) -> None:
        """A delegate registers with the lookup services."""
        if self.characteristics:
            name, location = self.characteristics
            entry = PublisherAdapterDelegate(name=name, location=location).rep()
            self.community.join(
                ServiceItem(self.server_id, (PAD_TYPE,), self.ref(DELEGATE, DELEGATE_METHODS), (entry,))
            )

    def drain(self, seconds: float) -> int:
        """Take no new publishers, nor be found by them; those there are, and subscribers, go on. How many objects still
        wait after `seconds`. Until `resume`, or the end."""
        self._draining.set()
        self.community.leave(self.server_id)
        return self.delegate.drain(seconds)

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
        self.delegate.wait_for_newcomers()
        self.community.close()
        self._stopping.set()
        for receiver in list(self._publications.values()):
            receiver.stop()
        left = self.delegate.drain(drain, closing=True)
        self.delegate.close()
        if self._sockets is not None:
            self._sockets.stop()
        self._endpoint.stop()
        self._reaper.join(5.0)
        return left

    def allow(self, caller: Caller, action: Action, subject: Subject = NONE_IN_PARTICULAR) -> Decision:
        """Raises AccessDeniedError if the access policy says no."""
        return demand(self._access, caller, (action, subject))

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Around what opens a contract: rules that change in the middle of it are asked about it."""
        version = self._access.version
        yield
        self.delegate.decided(version)

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
        gate = self.delegate.open_type(request.schema, caller)
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
                self.delegate.forget_type(gate.type)
                raise TypeConflictError(
                    f"information object type {gate.type} is published with another schema already",
                    hint="Use that schema, or publish under another version",
                    type=str(gate.type),
                )
        return gate.type

    def wait_announced(self, uid: str, timeout: float) -> None:
        """Wait until the lookup services hold a registration. Raises LookupNotFoundError after `timeout` seconds."""
        self.community.wait_joined(uid, timeout)

    def _joined(self, service_id: str, told: int) -> None:
        """A lookup service has an item of ours that it had not."""
        self.delegate.announced(service_id, told)

    def issue_token(self, kind: str, uid: str) -> str:
        """For a data connection."""
        return self._tokens.issue((kind, uid))

    def forget_publications(self, connection_id: str) -> None:
        """End the data connection of a publisher that has left."""
        receiver = self._publications.pop(connection_id, None)
        if receiver:
            receiver.stop()

    def status(self) -> dict[str, Any]:
        """Plain data for status pages."""
        return {**self._facts(), **self.delegate.status()}

    def overview(self) -> dict[str, Any]:
        """The same for who looks every second (see pad/overview.py)."""
        return {**self._facts(), **self.delegate.overview()}

    def _facts(self) -> dict[str, Any]:
        """What is not the delegate's."""
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
            "connections": self._endpoint.connections,
            "compressed": len(self._compressed),
            "tls": self._endpoint.tls(),
            "threads": threading.active_count(),
            "calls": self._control.calls,
            "faults": faults(),
            "draining": self._draining.is_set(),
            "access": self._access.status(),
        }

    def samples(self) -> Iterator[Sample]:
        """What the metrics port shows."""
        status = self.status()
        yield Sample("publishers", "gauge", "Connected publishers", len(status["publishers"]))
        yield Sample("subscribers", "gauge", "Connected subscriber processes", len(status["sessions"]))
        yield Sample("subscriptions", "gauge", "Subscriptions", len(status["subscriptions"]))
        yield Sample("leases", "gauge", "Leases held here", status["leases"])
        yield Sample("kept_bytes", "gauge", "Bytes kept for subscriptions that come late", status["kept"]["bytes"])
        yield Sample("catching_up", "gauge", "Subscriptions that are catching up", status["catching_up"])
        yield Sample("queued_bytes", "gauge", "Bytes waiting in subscriber queues", status["queued_bytes"])
        for name, meaning in TOTALS:
            yield Sample(name, "counter", meaning, status[name])
        yield from expiries(status["tls"])
        yield Sample("in_flight", "gauge", "Objects sent and not acknowledged", status["in_flight"])
        mail, subscriptions = status["mail"], status["subscriptions"]
        yield Sample("mails_waiting", "gauge", "Mails waiting", mail["queued"])
        yield Sample("mails_waiting_bytes", "gauge", "Bytes of the mails waiting", mail["bytes"])
        yield Sample("mail_oldest_seconds", "gauge", "For how long the first of the mails has waited", mail["oldest"])
        yield Sample("reminders", "counter", "Reminders of leases that end, times recipients", mail["reminders"])
        yield Sample("reminders_lost", "counter", "Such that could not be sent", mail["reminders_lost"])
        yield Sample("mail_connections", "gauge", "Connections to the mail server", mail["connections"])
        suspended = sum(len(s["mail_suspended"]) for s in subscriptions)
        yield Sample("mail_suspended", "gauge", "Recipients whose mail is suspended", suspended)
        for action, count in self._access.refused().items():
            yield Sample("access_refused", "counter", ACCESS_REFUSED, count, (("action", action),))
        for cause in Cause:
            value = status["lost"].get(cause, 0)
            yield Sample("lost", "counter", "Objects lost, by cause", value, (("cause", cause.value),))
        for registration in status["registrations"]:
            labels = (("registration", registration["uid"]), ("type", registration["type"]))
            for name in ("published", "refused", "unmatched"):
                yield Sample(f"registration_{name}", "counter", f"Objects {name}", registration[name], labels)
        for session in status["sessions"]:
            queued = sum(session["queued"].values())
            labels = (("session", session["session"]), ("subscriber", session["name"]))  # anybody may have the name
            yield Sample("queued", "gauge", "Objects waiting", queued, labels)

    # -- data connections ---------------------------------------------------------------------------------------

    def _serve_data(self, sock: socket.socket, caller: Caller) -> None:
        line = Line(sock)
        hello = listen(line)
        kind, uid = self._tokens.redeem(hello.token) or ("", "")
        caller.place.kept = bool(kind)
        if kind == "deliver":
            self._deliver(sock, line, uid, hello)
        elif kind == "publish":
            self._take_publications(line, uid, hello)
        else:
            refuse(line, "unknown or used token")

    def _deliver(self, sock: socket.socket, line: Line, uid: str, hello: Hello) -> None:
        try:
            session = self.delegate.session(uid)
        except UnknownUidError as exc:
            refuse(line, str(exc))
            return
        self.delegate.attached(uid)
        welcome(line, 0, self._compressed.grant(hello.compression))
        session.attach(sock, hello.position, self._endpoint.hand_over(sock), line.compression)

    def _take_publications(self, line: Line, connection_id: str, hello: Hello) -> None:
        receiver = self._publications.setdefault(connection_id, self._receiver(connection_id))
        try:
            self.delegate.connection(connection_id)  # now that whoever ends it finds the receiver
        except UnknownUidError as exc:
            self.forget_publications(connection_id)
            refuse(line, str(exc))
            return
        self.delegate.attached(connection_id)
        compression = self._compressed.grant(hello.compression)
        receiver.run(line, lambda position: welcome(line, position, compression))

    def _receiver(self, connection_id: str) -> Receiver:
        """Of a publisher's data connections, one after the other."""
        coming: dict[int, bytearray] = {}
        refused: list[tuple[str, ErrorReport]] = []
        return Receiver(
            lambda items: self._publish(connection_id, items, coming, refused), lambda: _encode_refusals(refused)
        )

    def _publish(
        self,
        connection_id: str,
        items: list[memoryview],
        coming: dict[int, bytearray],
        refused: list[tuple[str, ErrorReport]],
    ) -> None:
        """Disseminate a batch. A refused object is reported with the acknowledgement; the others go on.

        `coming` holds the chunks of large objects by registration number, `refused` what is to be reported.
        """
        try:
            registrations = self.delegate.connection(connection_id).registrations
        except UnknownUidError as exc:
            raise WireError(str(exc)) from exc
        deliveries = Deliveries()
        for number, run in _runs(items, coming):
            self.refuse_when_stopping()
            try:
                refusals = self._judge(registrations, number, run, deliveries)
                refused += [_reported(parcel, why) for parcel, why in refusals]
            finally:  # what was taken is delivered, also when something behind it ends the connection
                self.delegate.pipeline.deliver(deliveries)
        self.delegate.pipeline.sync()  # before the batch is acknowledged: then the publisher forgets it

    def _judge(
        self, registrations: Mapping[int, Registration], number: int, run: Sequence[Parcel], deliveries: Deliveries
    ) -> Refused:
        """What was refused of a run."""
        registration = registrations.get(number)
        if registration is None:
            why = UnknownUidError("publication for no registration of this publisher", number=number)
            return [(parcel, why) for parcel in run]
        return self.delegate.publish(registration, run, deliveries)

    def _reap(self) -> None:
        while not self._stopping.wait(REAP_SECONDS):
            with guarded(f"{self.name} reaper"):
                self._clean_up()

    def _clean_up(self) -> None:
        revocations = self._endpoint.revocations()
        if revocations is not self._revocations:
            self._revocations = revocations
            ended = self.delegate.end_held(lambda holder: any(each.names_holder(holder) for each in revocations))
            if ended:
                log.warning("%s: %d contracts of revoked certificates ended", self.name, ended)
        if self.delegate.expire():
            for connection_id in list(self._publications):
                try:
                    self.delegate.connection(connection_id)
                except UnknownUidError:
                    self.forget_publications(connection_id)


def _runs(items: Sequence[memoryview], coming: dict[int, bytearray]) -> Iterator[tuple[int, list[Parcel]]]:
    """A batch as runs: the number of a registration, and consecutive objects of it. Raises ProtocolError behind those
    before the bad item."""
    run: list[Parcel] = []
    last = size = 0
    for item in items:
        try:
            number, data = _whole(item, coming)
            parcel = Parcel.received(data) if data is not None else None
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


def _whole(item: memoryview, coming: dict[int, bytearray]) -> tuple[int, Part | None]:
    """The number of a registration, and the bytes of an object if the item completes one. Raises ProtocolError.

    A small one is copied, so that it does not hold the whole batch that it came in for as long as it waits.
    """
    if len(item) < PUBLICATION.size:
        raise ProtocolError("truncated publication")
    kind, number = PUBLICATION.unpack_from(item)
    body = item[PUBLICATION.size :]
    if kind not in (CHUNK, LAST_CHUNK):
        return number, bytes(body) if body.nbytes < memoryview(item.obj).nbytes // 2 else body
    gathered = coming.setdefault(number, bytearray())
    if len(gathered) + len(body) > MAX_ITEM_BYTES or len(coming) > MAX_COMING:
        raise ProtocolError(f"object of more than {MAX_ITEM_BYTES} bytes, or more than {MAX_COMING} at once")
    gathered += body
    return number, coming.pop(number) if kind == LAST_CHUNK else None


def _reported(parcel: Parcel, why: JbiError) -> tuple[str, ErrorReport]:
    """What its publisher is told of an object that was refused."""
    object_id = parcel.head.object_id
    log.info("refused object %s: %s", object_id, why, extra={"object": object_id})
    return object_id, report(why)


def _encode_refusals(refusals: list[tuple[str, ErrorReport]]) -> bytes:
    if not refusals:
        return b""
    told, refusals[:] = tuple(refusals), []
    return msgspec.msgpack.encode(told)


class _Delegate:
    """The publishers' calls."""

    def __init__(self, server: DisseminationServer) -> None:
        self._server = server

    @exported
    @leasing
    def connect(self, caller: Caller, name: str, duration: float) -> Opened:
        caller = _named(caller, name)
        with self._server.deciding():
            self._server.allow(caller, "connect")
            self._server.refuse_when_draining()
            connection, lease = self._server.delegate.connect(name[:200], duration, caller)
            connection.holder = caller.place.holder
        return Opened(connection.connection_id, lease, self._server.server_id)

    @exported
    @leasing
    def renew(self, caller: Caller, lease_id: str, duration: float) -> float:  # noqa: ARG002  # the lease id is the right
        return self._server.delegate.renew(lease_id, duration).duration

    @exported
    def disconnect(self, caller: Caller, connection_id: str) -> None:  # noqa: ARG002  # the connection id is the right
        self._server.delegate.disconnect(connection_id)
        self._server.forget_publications(connection_id)

    @exported
    def register(self, caller: Caller, connection_id: str, request: PublisherRequest, uid: str, number: int) -> None:
        self._server.refuse_when_stopping()
        with self._server.deciding():
            self._register(caller, connection_id, request, uid, number)
        try:
            self._server.wait_announced(uid, LOOKUP_SECONDS)
        except LookupNotFoundError as exc:
            log.warning("registration %s is announced when a lookup service is back: %s", uid, exc)

    def _register(self, caller: Caller, connection_id: str, request: PublisherRequest, uid: str, number: int) -> None:
        caller = _named(caller, self._server.delegate.connection(connection_id).name)
        self._server.allow(caller, "connect")
        self._server.allow(caller, "publish", Subject(some=True))  # before it costs anything
        opened = self._server.check_type(request, caller.identity or caller.address.rpartition(":")[0])
        try:
            self._server.allow(caller, "publish", Subject(opened.name, opened.version))
        except JbiError:
            self._server.delegate.forget_type(opened)
            raise
        self._server.delegate.register_publisher(connection_id, request, uid=uid, number=number)

    @exported
    def unregister(self, caller: Caller, connection_id: str, uid: str) -> None:  # noqa: ARG002  # the id is the right
        self._server.delegate.unregister_publisher(connection_id, uid)

    @exported
    def wait_for_subscriptions(self, caller: Caller, connection_id: str, uid: str, count: int, seconds: float) -> int:  # noqa: ARG002  # the id is the right
        return self._server.delegate.wait_for_subscriptions(
            connection_id, uid, count, min(max(0.0, seconds), STANDING_SECONDS)
        )

    @exported
    def open_publications(self, caller: Caller, connection_id: str) -> str:  # noqa: ARG002  # the id is the right
        self._server.delegate.connection(connection_id)
        return self._server.issue_token("publish", connection_id)


class _Subscriptions:
    """The subscribers' calls: what the proxy in the lookup service offers, nothing else."""

    def __init__(self, server: DisseminationServer) -> None:
        self._server = server

    @exported
    @leasing
    def open(self, caller: Caller, name: str, duration: float) -> Opened:
        caller = _named(caller, name)
        with self._server.deciding():
            self._server.allow(caller, "connect")
            self._server.refuse_when_stopping()
            session_id, lease = self._server.delegate.open_session(name[:200], duration, caller)
            self._server.delegate.session(session_id).holder = caller.place.holder
        return Opened(session_id, lease, self._server.server_id)

    @exported
    @leasing
    def renew(self, caller: Caller, lease_id: str, duration: float) -> float:  # noqa: ARG002  # the lease id is the right
        return self._server.delegate.renew(lease_id, duration).duration

    @exported
    def close(self, caller: Caller, session_id: str) -> None:  # noqa: ARG002  # the session id is the right
        self._server.delegate.close_session(session_id)

    @exported
    def subscribe(
        self,
        caller: Caller,
        session_id: str,
        requests: tuple[msgspec.Raw, ...],
        duration: float,
        ages: tuple[float, ...],
        elapsed: float,
    ) -> Answers:
        """Each request is read by itself: one that makes no sense is refused, and none of the others."""
        self._server.refuse_when_stopping()
        if len(requests) > SUBSCRIBE_AT_ONCE:
            raise OversizeError(f"{len(requests)} subscriptions in one call, the limit is {SUBSCRIBE_AT_ONCE}")
        if len(ages) != len(requests):
            raise ProtocolError(f"{len(requests)} subscriptions with {len(ages)} ages")
        with self._server.deciding():
            given = tuple(
                self._subscribe(caller, session_id, request, duration, age, elapsed)
                for request, age in zip(requests, ages, strict=True)
            )
        return Answers(given, self._server.delegate.open_for(session_id))

    def _subscribe(
        self, caller: Caller, session_id: str, said: msgspec.Raw, duration: float, age: float, elapsed: float
    ) -> Subscribed:
        try:
            delegate, peer = self._server.delegate, caller.place.peer
            request = _request(said)
            rights = delegate.rights(caller, delegate.session(session_id).name if session_id else "")
            if rights is not None:
                rights.check(request)
            late = max(0.0, elapsed)
            granted = delegate.subscribe(session_id, request, duration, age, elapsed=late, peer=peer, rights=rights)
            if granted.lease is not None:
                delegate.hold(request.uid, caller.place.holder)
            return Subscribed(granted)
        except UnknownUidError:
            raise  # the session is gone, and with it all of the call
        except JbiError as exc:
            if session_id and isinstance(exc, AccessDeniedError):
                delegate.session(session_id).was_refused = True
            return Subscribed(error=report(exc))

    @exported
    def unsubscribe(self, caller: Caller, right: str, uid: str) -> None:
        if not right:  # somebody else's e-mail subscription; otherwise the session or lease id is the right
            self._server.allow(caller, "administer")
        self._server.delegate.unsubscribe(right, uid, administer=not right)

    @exported
    def open_deliveries(self, caller: Caller, session_id: str) -> str:  # noqa: ARG002  # the session id is the right
        self._server.delegate.session(session_id)
        return self._server.issue_token("deliver", session_id)

    @exported
    def explain(self, caller: Caller, uid: str, metadata: bytes, payload: bytes) -> dict[str, Any]:
        self._server.allow(caller, "status")
        return self._server.delegate.explain(uid, metadata, payload)

    @exported
    def explain_object(self, caller: Caller, uid: str, object_id: str) -> dict[str, Any]:
        self._server.allow(caller, "administer")  # it shows what is in an object that may not be the caller's
        self._server.allow_object(caller, recall(object_id, self._server.delegate.kept))
        return self._server.delegate.explain_object(uid, object_id)

    @exported
    def mail_subscriptions(self, caller: Caller) -> list[dict[str, Any]]:
        self._server.allow(caller, "administer")
        return self._server.delegate.mail_subscriptions()

    @exported
    def renew_mail(self, caller: Caller, uid: str, duration: float) -> Lease:
        self._server.allow(caller, "administer")
        return self._server.delegate.renew_mail(uid, duration)

    @exported
    def signing_key(self, caller: Caller, uid: str) -> SigningKey | None:
        self._server.allow(caller, "connect")
        return self._server.delegate.signing_key(uid)


class _MailLinks:
    """What whoever reads a mail may do with it."""

    def __init__(self, server: DisseminationServer) -> None:
        self._server = server

    @exported
    def follow(self, caller: Caller, action: Followed, token: str) -> None:  # noqa: ARG002  # the token is the right
        self._server.delegate.follow(action, token)


class _Types:
    """The information object types that are published here."""

    def __init__(self, server: DisseminationServer, types: TypeRepository) -> None:
        self._server = server
        self._types = types

    @exported
    def get(self, caller: Caller, name: str, version: str) -> SchemaBundle:
        self._server.allow_type(caller, TypeName(name, version))
        found = self._types.find(TypeName(name, version))
        if found is None:
            raise UnknownUidError(f"{name[:200]} {version[:200]} is not published here")
        return found.bundle


class _JoinAdmin:
    """What an administrator may do to the delegate's own entry in the lookup services (Jini's JoinAdmin)."""

    def __init__(self, server: DisseminationServer) -> None:
        self._server = server

    @exported
    def lookup_attributes(self, caller: Caller) -> tuple[EntryRep, ...]:
        self._server.allow(caller, "status")
        return self._server.community.lookup_attributes(self._server.server_id)

    @exported
    def add_lookup_attributes(self, caller: Caller, entries: tuple[EntryRep, ...]) -> None:
        self._server.allow(caller, "administer")
        self._server.community.add_lookup_attributes(self._server.server_id, entries)

    @exported
    def remove_lookup_attributes(self, caller: Caller, templates: tuple[EntryRep, ...]) -> int:
        self._server.allow(caller, "administer")
        return self._server.community.remove_lookup_attributes(self._server.server_id, templates)


class _Status:
    """What everybody may know; the terms of contracts are for administrators."""

    def __init__(self, server: DisseminationServer) -> None:
        self._server = server

    @exported
    def status(self, caller: Caller) -> dict[str, Any]:
        self._server.allow(caller, "status")
        return shortened(self._server.status())

    @exported
    def overview(self, caller: Caller) -> dict[str, Any]:
        self._server.allow(caller, "status")
        return self._server.overview()

    @exported
    def subscriptions(self, caller: Caller, search: str, order: str, start: int, count: int) -> dict[str, Any]:
        self._server.allow(caller, "status")
        return self._server.delegate.page(search, order, start, count)

    @exported
    def terms(self, caller: Caller, after: int, count: int) -> tuple[Terms, ...]:
        self._server.allow(caller, "administer")  # what somebody asks for says what he looks for
        return self._server.delegate.terms(after, count)


class _Admin(AccessAdmin):
    """What an administrator may do to what stands here."""

    def __init__(self, server: DisseminationServer, access: AccessPolicy) -> None:
        super().__init__(access)
        self._server = server

    @exported
    def cancel(self, caller: Caller, uid: str) -> int:
        self._server.allow(caller, "administer")
        return self._server.delegate.cancel(uid)

    @exported
    def drain(self, caller: Caller, seconds: float) -> int:
        self._server.allow(caller, "administer")
        return self._server.drain(min(max(0.0, seconds), DRAIN_MOST))

    @exported
    def resume(self, caller: Caller) -> None:
        self._server.allow(caller, "administer")
        self._server.resume()


def shortened(status: dict[str, Any], most: int = STATUS_ROWS) -> dict[str, Any]:
    """A delegate's status with at most so many rows in each list, and `counts`, which says how many there are; of each
    session's queues the longest. The whole of a large one would not go into an answer."""
    lists = ("publishers", "registrations", "sessions", "subscriptions")
    cut = {name: status[name][:most] for name in lists}
    per_session = max(10, most // max(1, len(cut["sessions"])))
    cut["sessions"] = [
        {**s, "queued": dict(nlargest(per_session, s["queued"].items(), key=lambda pair: pair[1]))}
        for s in cut["sessions"]
    ]
    return {**status, **cut, "counts": {name: len(status[name]) for name in lists}}


_decode_request: Final = msgspec.msgpack.Decoder(SubscriptionRequest).decode


def _request(said: msgspec.Raw) -> SubscriptionRequest:
    try:
        return _decode_request(said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"bad subscription request: {exc}") from exc


def _named(caller: Caller, client: str) -> Caller:
    """With the name that the application has given itself."""
    return dataclasses.replace(caller, client=client[:200])
