"""A lookup service as a server: the registrar behind an endpoint, event channels, lease reaper, announcement.

Rules: the registrar decides under `_lock`; what it returns is made durable behind it, then sent, in the order in which
it was decided (`_Outbox`). Events go over the connection the client has opened, serially per client, batched; a client
that does not keep up loses events, is told so (a gap), and looks up again.

A lookup service is a service too: its own item stands in its own registrar, and its JoinManager registers the same
item, leased, with the lookup services of its groups that its locators, mDNS, or items registered here name. What an
administrator sets is kept before the answer, then announced: in these items, and by mDNS.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import (
    ADMIN,
    NONE_IN_PARTICULAR,
    AccessAdmin,
    AccessPolicy,
    Action,
    AllowAll,
    LoginCalls,
    Subject,
    demand,
)
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, OversizeError, PortInUseError, StorageError
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.metrics import MetricsServer, Sample, expiries, refusals, samples_of
from jbi_pubsub.core.process import version
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported, leasing
from jbi_pubsub.core.wire.deflate import Allowance, Compression
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint, check_endpoint
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.stream import Line, Tokens, listen, refuse, welcome
from jbi_pubsub.lookup import browse
from jbi_pubsub.lookup.client.discovery import MAX_SUGGESTIONS, Announcement, interfaces_of
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import (
    DIAGNOSTIC,
    EVENT,
    EVERYTHING,
    EXPORTED,
    GAP,
    LOOKUP_TYPE,
    Administered,
    LookupService,
    RegistrarInfo,
)
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.item import (
    EventRegistration,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
)
from jbi_pubsub.lookup.registrar import Outcome, Registrar, RegistrarAdmin, check_port
from jbi_pubsub.lookup.status import LookupStatus
from jbi_pubsub.lookup.store import Store

log = logging.getLogger("jbi_pubsub.lookup")

EVENTS_WAITING: Final = 10_000
"""Events kept for a client that does not keep up; then it has a gap and looks up again, which is cheaper."""

CHANNELS_MOST: Final = 10_000
"""Event channels open at once."""

LISTENER_MOST: Final = 64
"""Characters of a listener's name: a UUID in hexadecimal has 32."""

DESTROY_SECONDS: Final = 0.2
"""Between the answer to `destroy` and the end, or to a change of the port and the end of the old one: whoever called is
to get it."""

REAP_MOST: Final = 0.5
"""Longest pause of the reaper in seconds: the grace within which an expiry is announced."""

REAP_AT_ONCE: Final = 100
"""Leases that the reaper ends before it lets others in: 2 ms under the lock, no more than a commit
takes."""

BREATH: Final = 0.0002
"""Seconds that whoever holds the lock again and again leaves it to others: they have to be woken, some 0.05 ms each."""

PUBLISHER_TYPE: Final = "jbi.PublisherRegistration"
"""Service type of publishers' registrations, at delegates and peer publishers."""
PUBLISHERS: Final = (PUBLISHER_TYPE, "jbi.PeerPublisher")
"""Those that whoever may publish may have himself."""
TYPE_ENTRY: Final = "jbi.InformationType"
"""Name of the entry that says which information object type a registration is of: name, version, digest of the schema,
last part of the name."""

Asked = tuple[tuple[Action, Subject], ...]
"""Alternatives, of which one has to be allowed."""

PEER: Final[tuple[Action, Subject]] = ("peer", NONE_IN_PARTICULAR)

FORGET_MOST: Final = 1_000
"""Leases after which those that have ended are looked for."""

R = TypeVar("R")


class _EventChannel:
    """Channel of events to one client over one connection. Any thread may offer; `_lock` covers what waits."""

    def __init__(self, hub: SenderHub) -> None:
        self.used = time.monotonic()
        self.lost = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Part, ...]] = deque()
        self._sender = HubSender(hub, take=self._take, acked=lambda _count, _note: None)

    def offer(self, kind: bytes, message: bytes) -> None:
        """To be sent, at the next `wake`."""
        with self._lock:
            if len(self._waiting) >= EVENTS_WAITING:
                self.lost += len(self._waiting) + 1
                self._waiting.clear()
                self._waiting.append((GAP,))
            else:
                self._waiting.append((kind, message))

    def wake(self) -> None:
        """Have what was offered sent now."""
        self._sender.ready()

    def attach(
        self, sock: socket.socket, position: int, close: Callable[[], None], compression: Compression | None
    ) -> None:
        """Use that connection, which `close` closes."""

        def ended() -> None:
            self.used = time.monotonic()
            close()

        self.used = time.monotonic()
        self._sender.attach(sock, position, ended=ended, compression=compression)

    @property
    def connected(self) -> bool:
        return self._sender.connected

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def stop(self) -> None:
        self._sender.stop()

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        items: list[tuple[Part, ...]] = []
        size = 0
        with self._lock:
            while self._waiting and len(items) < max_items and size < max_bytes:
                item = self._waiting.popleft()
                items.append(item)
                size += sum(map(len, item))
        return items


class _Said:
    """Outcome of a decision, to be told. `settled`: it can be said now; `holds`: it is to be said at all."""

    __slots__ = ("holds", "outcome", "settled")

    def __init__(self, outcome: Outcome[Any]) -> None:
        self.outcome = outcome
        self.settled = self.holds = False


class _Outbox:
    """Queue of outcomes, in their order, until it is known whether they hold; `say` gets them, one at a time."""

    def __init__(self, say: Callable[[Outcome[Any]], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._waiting: deque[_Said] = deque()

    def add(self, outcome: Outcome[Any]) -> _Said:
        """Called under the lock of who decides. It must be settled, or nothing behind it is ever said."""
        said = _Said(outcome)
        if outcome.events or outcome.diagnostics:
            with self._lock:
                self._waiting.append(said)
        return said

    def settle(self, said: _Said, *, holds: bool) -> None:
        """Say it now, and what has waited for it; or never, if it was taken back: its numbers are missing then, and who
        is told the next one looks up again."""
        if not (said.outcome.events or said.outcome.diagnostics):
            return
        with self._lock:
            said.holds, said.settled = holds, True
            while self._waiting and self._waiting[0].settled:
                with guarded("lookup events"):
                    first = self._waiting.popleft()
                    if first.holds:
                        self._say(first.outcome)


class LookupServer:
    """One lookup service. `registrar` may have been restored from a store beforehand."""

    def __init__(
        self,
        config: Config,
        registrar: Registrar,
        *,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        access: AccessPolicy | None = None,
        destroyed: Callable[[], None] = lambda: None,
    ) -> None:
        """Binds the port: raises PortInUseError or ConfigurationError. Where the registrar's groups, locators and port
        differ from `config`, an administrator has set them: the registrar's count.

        `store` is the registrar's log, whose content the registrar has been given; the server closes it, and `access`,
        which says who may do what (None: everybody everything). `destroyed` is called on that admin call.
        """
        self._store = store
        self._config = config
        self._registrar = registrar
        self._clock = clock
        self._wall = wall
        self._started = clock()
        self.access: Final = access or AllowAll()
        self._asked_version = self.access.version
        """Version of the policy that all leases have been asked about."""
        self._granted: dict[str, tuple[Caller, tuple[Asked, ...]]] = {}
        """Under which question each lease was granted, where access is restricted."""
        self._granting = threading.Lock()  # covers it
        self._forget_at = FORGET_MOST
        self._destroyed = destroyed
        self._lock = threading.Lock()  # covers the registrar
        self._channels_lock = threading.Lock()
        self._channels: dict[str, _EventChannel] = {}
        self._lost_before = 0  # by channels that are no more
        self._hub = SenderHub(name="lookup-events")
        self._tokens = Tokens(lambda: uuid4().hex)
        self._compressed = Allowance(config.link.max_compressed)
        self._stopping = threading.Event()
        self._disk_fault = False
        self._outbox = _Outbox(self._offer)
        self._control = ControlServer(
            {
                EXPORTED: _Registrar(self),
                "status": _Status(self),
                ADMIN: AccessAdmin(self.access),
                LOGIN: LoginCalls(self.access),
            }
        )
        self._administering = threading.RLock()  # one admin call at a time; covers the endpoint, what follows, and stop
        self._endpoint = self._bind_first(registrar.admin())
        self._retired: list[tuple[threading.Timer, Endpoint]] = []
        self._community: JoinManager | None = None
        self._announcement: Announcement | None = None
        self._reaper = Job("lookup reaper", REAP_MOST, self._reap, slow=True)
        metrics = config.metrics
        try:
            self.metrics = MetricsServer(metrics, self.samples, self.access) if metrics.port >= 0 else None
        except PortInUseError:
            self._endpoint.stop()
            raise

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self._endpoint.address

    def start(self) -> None:
        """Serve, join the other lookup services, and announce."""
        with self._administering:
            admin = self.read(lambda registrar, _: registrar.admin())
            self.change(lambda registrar, now: registrar.put_own(self._item(registrar.admin().groups), now))
            self._hub.start()
            self._endpoint.start()
            self._reaper.start()
            if self._config.lookup.host in ("0.0.0.0", "::") and not self._config.lookup.advertise:  # noqa: S104  # compared
                log.warning("others can't be told to connect to %s: set [lookup] advertise", self.address)
            self._join(admin)
            self._announce()

    def stop(self) -> None:
        """Say good-bye and end all threads; the state stays with the store."""
        self._stopping.set()
        if self.metrics is not None:
            self.metrics.stop()
        with self._administering:  # the admin call that is under way ends first; those behind it open nothing any more
            retired, self._retired = self._retired, []
        if self._announcement:
            self._announcement.stop()
        if self._community is not None:
            self._community.close()
        self._endpoint.stop()
        for timer, endpoint in retired:
            timer.cancel()
            endpoint.stop()
            timer.join(5.0)
        self._hub.stop()
        self._reaper.stop()
        self.access.close()
        if self._store is not None:
            self._store.close()

    def info(self) -> RegistrarInfo:
        """Id and groups of this lookup service."""
        with self._lock:
            admin = self._registrar.admin()
        return RegistrarInfo(admin.service_id, admin.groups)

    def decide(self, call: Callable[[Registrar, float], Outcome[R]]) -> R:
        """Let the registrar decide under the lock; when that is durable, send what it wants sent.

        Raises StorageError; it holds then, is written with the next, and what was to be sent is: waiting for a disk
        that may be full for hours is worse.
        """
        return self._decide(call, lambda _: False)

    def grant(self, call: Callable[[Registrar, float], Outcome[ServiceRegistration]]) -> ServiceRegistration:
        """`decide` for what must be durable before anybody knows of it: if the disk fails, the lease is taken back.

        Raises StorageError.
        """
        return self._decide(call, self._is_taken_back)

    def _decide(self, call: Callable[[Registrar, float], Outcome[R]], take_back: Callable[[R], bool]) -> R:
        with self._lock:
            outcome = call(self._registrar, self._clock())
            said = self._outbox.add(outcome)
        holds = True
        try:
            if self._store is not None:
                self._store.sync()  # off the lock: whoever comes first commits for all that wait
        except StorageError:
            holds = not take_back(outcome.result)
            raise
        finally:
            self._outbox.settle(said, holds=holds)
        return outcome.result

    def _is_taken_back(self, granted: ServiceRegistration) -> bool:
        with self._lock:
            outcome = self._registrar.cancel(granted.lease_id, self._clock())
        self._outbox.settle(self._outbox.add(outcome), holds=False)
        return True

    def change(self, call: Callable[[Registrar, float], Outcome[R]]) -> R:
        """`decide` for what holds in memory whatever the disk does, and loses nothing of somebody's if it is forgotten
        (event registrations, which their clients make again; ends and renewals of leases), or has more to it (what an
        administrator sets): the store tries again, and says so."""
        result: list[R] = []

        def remember(registrar: Registrar, now: float) -> Outcome[R]:
            outcome = call(registrar, now)
            result.append(outcome.result)
            return outcome

        try:
            answer = self.decide(remember)
        except StorageError as exc:
            if not result:
                raise
            if not self._disk_fault:
                log.error("nothing new is taken until the disk does again: %s", exc)
            self._disk_fault = True
            return result[0]
        if self._disk_fault:
            log.warning("the disk takes what is new again")
        self._disk_fault = False
        return answer

    def read(self, call: Callable[[Registrar, float], R]) -> R:
        """Ask the registrar under the lock."""
        with self._lock:
            return call(self._registrar, self._clock())

    def search(self, template: ServiceTemplate, limit: int, *, total: bool, after: str) -> ServiceMatches:
        """A page of a lookup; others go in between where there is nothing in its first part."""
        matched = -1
        while True:
            page = self.read(lambda r, now: r.page(template, now, limit, total=total, after=after))  # noqa: B023  # called here
            matched = max(matched, page.total)
            if page.items or not page.after:
                return msgspec.structs.replace(page, total=matched)
            after, total = page.after, False
            time.sleep(BREATH)

    def matching(self, template: ServiceTemplate) -> Iterator[ServiceItem]:
        """All matching items, page by page, others in between."""
        after = ""
        while True:
            page = self.search(template, EVERYTHING, total=False, after=after)
            yield from page.items
            if not page.after:
                return
            after = page.after
            time.sleep(BREATH)

    def open_events(self, listener: str) -> str:
        """A token for the listener's event connection. Its channel is a new one: events that an earlier one holds are
        of no use, because a client that has connected again looks up again."""
        with self._channels_lock:
            before = self._channels.get(listener)
            if before is None:
                self._check_listener(listener)
            self._channels[listener] = channel = _EventChannel(self._hub)
            self._lost_before += before.lost if before is not None else 0
        if before is not None:
            before.stop()
        return self._tokens.issue(channel)

    def allow(self, caller: Caller, action: Action) -> None:
        """Raises AccessDeniedError."""
        demand(self.access, caller, (action, NONE_IN_PARTICULAR))

    def allow_item(self, caller: Caller, item: ServiceItem) -> tuple[Asked, ...]:
        """Whether somebody may register that. Raises AccessDeniedError. What was asked, to be asked again."""
        self.allow(caller, "connect")
        every = _asked_for(item)
        for asked in every:
            demand(self.access, caller, *asked)
        return every

    def allow_entries(self, caller: Caller, entries: Iterable[EntryRep]) -> None:
        """Whether somebody may say that of a service that he has registered. Raises AccessDeniedError."""
        for asked in _asked_for_types(entries):
            demand(self.access, caller, *asked)

    def remember(self, lease_id: str, caller: Caller, every: tuple[Asked, ...], version: int) -> None:
        """Under which question a lease was granted, and under which version of the policy."""
        if not isinstance(self.access, AllowAll):
            with self._granting:
                self._granted[lease_id] = (caller, every)
                if len(self._granted) >= self._forget_at:
                    self._forget_leases()
            if version != self._asked_version:  # the rules have changed meanwhile
                self._asked_version = -1

    def _ask_again(self) -> None:
        """Ask about all leases, if the policy has changed since: what may not be here any more goes."""
        version = self.access.version
        if version == self._asked_version:
            return
        self._asked_version = version  # first: what changes meanwhile is asked about again
        refused = []
        with self._granting:
            self._forget_leases()
            granted = list(self._granted.items())
        for lease_id, (caller, every) in granted:
            try:
                self.allow(caller, "connect")
                for asked in every:
                    demand(self.access, caller, *asked)
            except AccessDeniedError as exc:
                log.warning("a lease ends: %s", exc.message)
                refused.append(lease_id)
        for begin in range(0, len(refused), REAP_AT_ONCE):
            ending = tuple(refused[begin : begin + REAP_AT_ONCE])
            self.change(lambda registrar, now: registrar.cancel_all(ending, now))  # noqa: B023  # called here
            time.sleep(BREATH)

    def _forget_leases(self) -> None:
        """Those that have ended."""
        live = self.read(lambda registrar, now: {each for each in self._granted if registrar.has_lease(each, now)})
        self._granted = {lease_id: kept for lease_id, kept in self._granted.items() if lease_id in live}
        self._forget_at = max(FORGET_MOST, 2 * len(self._granted))

    def administered(self) -> Administered:
        """Settings as they are now."""
        admin = self.read(lambda registrar, _: registrar.admin())
        return Administered(admin.groups, admin.locators, self._endpoint.port, admin.chosen)

    def set_groups(self, groups: Sequence[str]) -> Administered:
        """Serve other groups from now on, and announce them. Raises EntryError, OversizeError, StorageError."""
        return self._administer(lambda registrar, _: registrar.set_groups(groups))

    def change_groups(self, add: Sequence[str], remove: Sequence[str]) -> Administered:
        """Serve some groups as well, and others no more. Raises EntryError, OversizeError, StorageError."""
        return self._administer(
            lambda registrar, _: registrar.set_groups(_changed(registrar.admin().groups, add, remove))
        )

    def set_locators(self, locators: Sequence[str]) -> Administered:
        """Join these lookup services from now on. Raises ConfigurationError, OversizeError, StorageError."""
        return self._administer(lambda registrar, _: registrar.set_locators(locators))

    def change_locators(self, add: Sequence[str], remove: Sequence[str]) -> Administered:
        """Join some lookup services as well, and leave others. Raises ConfigurationError, OversizeError,
        StorageError."""
        taken = tuple(map(check_endpoint, remove))
        return self._administer(
            lambda registrar, _: registrar.set_locators(
                _changed(registrar.admin().locators, tuple(map(check_endpoint, add)), taken)
            )
        )

    def set_port(self, port: int) -> Administered:
        """Listen on another port from now on, 0 for any free one. The new one serves before the old one is closed.

        Raises PortInUseError, ConfigurationError, and StorageError where the disk takes nothing new: then all stays as
        it is. (StorageError as `_follow` as well.)
        """
        with self._administering:
            if self._stopping.is_set() or port == self._endpoint.port:
                return self._administer(lambda registrar, _: registrar.set_port(self._endpoint.port))
            check_port(port)
            new = self._bind(port)
            try:
                admin = self.change(lambda registrar, _: registrar.set_port(new.port))
            except StorageError:
                new.stop()
                raise
            old, self._endpoint = self._endpoint, new
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
        self.change(lambda registrar, _: registrar.destroy())
        _later("lookup-destroy", self._destroyed)
        self._admit()

    def status(self) -> LookupStatus:
        """Everything a status page shows."""
        with self._lock:
            registrar = self._registrar.status()
            admin = self._registrar.admin()
        with self._channels_lock:
            channels = len(self._channels)
            lost = self._lost_before + sum(channel.lost for channel in self._channels.values())
            waiting = sum(channel.waiting for channel in self._channels.values())
        return msgspec.structs.replace(
            LookupStatus(**registrar),
            id=registrar.service_id,
            pid=os.getpid(),
            version=version(),
            time=round(time.time(), 3),
            address=self.address,
            uptime=round(self._clock() - self._started, 1),
            connections=self._endpoint.connections + sum(e.connections for _, e in self._retired),
            tls=self._endpoint.tls(),
            threads=threading.active_count(),
            calls=self._control.calls,
            access=self.access.status(),
            locators=list(admin.locators),
            lookup_services=self._community.connected() if self._community is not None else 0,
            event_channels=channels,
            compressed=len(self._compressed),
            events_waiting=waiting,
            events_lost=lost,
            faults=faults(),
            store=self._store.status() if self._store else None,
        )

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics port."""
        status = self.status()
        yield from samples_of(status, "lookup_")
        yield Sample("lookup_connections", "gauge", "Open connections", status.connections)
        yield from expiries(status.tls)
        yield from refusals(self.access.refused())
        fault = status.store is not None and bool(status.store.fault)
        yield Sample("lookup_store_fault", "gauge", "1: the disk takes nothing new", float(fault))

    def _administer(self, call: Callable[[Registrar, float], Outcome[RegistrarAdmin]]) -> Administered:
        """Change how it is set up, make that durable, and let everybody know."""
        with self._administering:
            return self._follow(self.change(call))

    def _follow(self, admin: RegistrarAdmin) -> Administered:
        """Let everybody know what an administrator has set.

        Raises StorageError when the disk has not taken it: it holds, and is written as soon as that does again.
        """
        self.change(lambda registrar, now: registrar.put_own(self._item(admin.groups), now))
        if self._community is not None and not self._stopping.is_set():
            self._community.look_in(admin.groups, admin.locators)
            self._community.join(self._item(admin.groups))
            self._announce()
        self._admit()
        return self.administered()

    def _admit(self) -> None:
        """Raise StorageError if what was decided last is not durable."""
        if self._store is not None:
            self._store.admit()

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
            control=self._control.serve,
            data=lambda sock, _: self._serve_events(sock, endpoint),
            advertise=self._config.lookup.advertise,
        )
        return endpoint

    def _item(self, groups: Sequence[str]) -> ServiceItem:
        """Item that we are registered as, here and elsewhere."""
        own = self._registrar.service_id
        entry = LookupService(
            name=self._config.lookup.name or socket.gethostname(),
            groups=",".join(groups) if groups else None,
            address=self.address,
        )
        proxy = ServiceRef(own, EXPORTED, (self.address,), (), self._endpoint.certificate)
        return ServiceItem(own, (LOOKUP_TYPE,), proxy, (entry.rep(),))

    def _join(self, admin: RegistrarAdmin) -> None:
        """Be a member of the community like everybody else, and know again who has joined us before a restart."""
        section = msgspec.structs.replace(self._config.lookup, groups=admin.groups, locators=admin.locators)
        config = msgspec.structs.replace(self._config, lookup=section)
        self._community = JoinManager(config, name="lookup", secret=admin.secret, own=admin.service_id)
        self._community.join(self._item(admin.groups))
        known = ServiceTemplate(types=(LOOKUP_TYPE,))
        for item in islice(self.matching(known), MAX_SUGGESTIONS):
            self._community.heard_of(item)

    def _announce(self) -> None:
        """Announce by mDNS, in place of what was announced before."""
        lookup = self._config.lookup
        info = self.info()
        if self._announcement:
            self._announcement.stop()
        self._announcement = None
        if lookup.multicast and info.groups:
            self._announcement = Announcement(info, self.address, interfaces_of(self._config))
            self._announcement.start()

    def _check_listener(self, listener: str) -> None:
        """Raises OversizeError if there is no room for its channel."""
        if len(listener) > LISTENER_MOST:
            raise OversizeError(f"listener of {len(listener)} characters", hint=f"At most {LISTENER_MOST}")
        if len(self._channels) >= CHANNELS_MOST:
            raise OversizeError(
                f"all {CHANNELS_MOST} event channels are open", hint="Use another lookup service, or wait"
            )

    def connected_among(self, listeners: Iterable[str]) -> int:
        """Number of the listeners that are connected now; one that is named twice counts twice."""
        channels = self._channels
        return sum(channel.connected for name in listeners if (channel := channels.get(name)) is not None)

    def _offer(self, outcome: Outcome[Any]) -> None:
        """Give what a decision has to say to its listeners' channels, and wake those."""
        offered: set[_EventChannel] = set()
        with self._channels_lock:
            for kind, messages in ((EVENT, outcome.events), (DIAGNOSTIC, outcome.diagnostics)):
                for listener, message in messages:
                    channel = self._channels.get(listener)
                    if channel is not None:  # else the client never opened it, or is long gone: its lease will run out
                        channel.offer(kind, msgspec.msgpack.encode(message))
                        offered.add(channel)
        for channel in offered:
            channel.wake()

    def _serve_events(self, sock: socket.socket, accepted_by: Endpoint) -> None:
        """Hand a client's event connection over to the hub; the endpoint may be that of the port of before."""
        line = Line(sock)
        hello = listen(line)
        channel: _EventChannel | None = self._tokens.redeem(hello.token)
        if channel is None:
            refuse(line, "unknown or used token")
            return
        welcome(line, 0, self._compressed.grant(hello.compression))
        channel.attach(sock, hello.position, accepted_by.hand_over(sock), line.compression)

    def _reap(self) -> float:
        pause = REAP_MOST
        with guarded("lookup reaper"):
            while self.change(lambda registrar, now: registrar.expire(now, REAP_AT_ONCE)) >= REAP_AT_ONCE:
                time.sleep(BREATH)
            due = self.read(lambda registrar, _: registrar.next_deadline())
            pause = REAP_MOST if due is None else min(REAP_MOST, max(0.01, due - self._clock()))
        self._ask_again()
        self._drop_idle_channels()
        if self._store is not None:
            self._store.align(self._clock(), self._wall())
        return pause

    def _drop_idle_channels(self) -> None:
        old = time.monotonic() - 2 * max(self._config.lease.lookup, 30.0)
        with self._channels_lock:
            idle = [key for key, c in self._channels.items() if not c.connected and c.used < old]
            dropped = [self._channels.pop(key) for key in idle]
            self._lost_before += sum(channel.lost for channel in dropped)
        for channel in dropped:
            channel.stop()


class _Registrar:
    """The registrar's calls, as `RegistrarProxy` makes them."""

    def __init__(self, server: LookupServer) -> None:
        self._server = server

    @exported
    def describe(self, caller: Caller) -> RegistrarInfo:
        self._server.allow(caller, "connect")
        return self._server.info()

    @exported
    @leasing
    def register(self, caller: Caller, item: ServiceItem, duration: float, key: str) -> ServiceRegistration:
        owner, version = caller.peer, self._server.access.version
        every = self._server.allow_item(caller, item)

        def register(registrar: Registrar, now: float) -> Outcome[ServiceRegistration]:
            outcome = registrar.register(item, duration, now, owner=owner, key=key)
            told = self._server.connected_among(listener for listener, _ in outcome.events)
            return msgspec.structs.replace(outcome, result=msgspec.structs.replace(outcome.result, told=told))

        granted = self._server.grant(register)
        self._server.remember(granted.lease_id, caller, every, version)
        self._server.heard_of(msgspec.structs.replace(item, service_id=granted.service_id))
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
        self._server.allow(caller, "connect")
        return self._server.search(template, limit, total=total, after=after)

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
        owner, version = caller.peer, self._server.access.version
        self._server.allow(caller, "connect")
        registered = self._server.change(
            lambda registrar, now: registrar.notify(
                template, transitions, duration, now, handback=handback, owner=owner, listener=listener
            )
        )
        self._server.remember(registered.lease_id, caller, (), version)
        return registered

    @exported
    def open_events(self, caller: Caller, listener: str) -> str:
        self._server.allow(caller, "connect")
        return self._server.open_events(listener)

    @exported
    def add_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        entries: tuple[EntryRep, ...],
    ) -> None:
        self._server.allow_entries(caller, entries)
        self._server.decide(lambda registrar, now: registrar.add_attributes(service_id, lease_id, entries, now))

    @exported
    def set_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        entries: tuple[EntryRep, ...],
    ) -> None:
        self._server.allow_entries(caller, entries)
        self._server.decide(lambda registrar, now: registrar.set_attributes(service_id, lease_id, entries, now))

    @exported
    def modify_attributes(
        self,
        caller: Caller,
        service_id: str,
        lease_id: str,
        changes: tuple[tuple[EntryRep, EntryRep | None], ...],
    ) -> None:
        self._server.allow_entries(caller, (new for _, new in changes if new is not None))
        self._server.decide(lambda registrar, now: registrar.modify_attributes(service_id, lease_id, changes, now))

    @exported
    @leasing
    def renew(self, caller: Caller, leases: tuple[tuple[str, float], ...]) -> tuple[LeaseResult, ...]:
        self._server.allow(caller, "connect")  # leases of before a restart are asked about nowhere else
        return self._server.change(lambda registrar, now: registrar.renew_all(leases, now))

    @exported
    def cancel(self, caller: Caller, lease_ids: tuple[str, ...]) -> tuple[LeaseResult, ...]:  # noqa: ARG002  # the lease ids are the right
        return self._server.change(lambda registrar, now: registrar.cancel_all(lease_ids, now))

    @exported
    def entry_classes(self, caller: Caller, template: ServiceTemplate) -> tuple[str, ...]:
        self._server.allow(caller, "connect")
        return browse.entry_classes(self._server.matching(template), template)

    @exported
    def field_values(
        self,
        caller: Caller,
        template: ServiceTemplate,
        index: int,
        field: str,
    ) -> tuple[str | None, ...]:
        self._server.allow(caller, "connect")
        return browse.field_values(self._server.matching(template), template, index, field)

    @exported
    def service_types(self, caller: Caller, template: ServiceTemplate, prefix: str) -> tuple[str, ...]:
        self._server.allow(caller, "connect")
        return browse.service_types(self._server.matching(template), template, prefix)

    @exported
    def administered(self, caller: Caller) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.administered()

    @exported
    def set_groups(self, caller: Caller, groups: tuple[str, ...]) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.set_groups(groups)

    @exported
    def change_groups(self, caller: Caller, add: tuple[str, ...], remove: tuple[str, ...]) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.change_groups(add, remove)

    @exported
    def set_locators(self, caller: Caller, locators: tuple[str, ...]) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.set_locators(locators)

    @exported
    def change_locators(self, caller: Caller, add: tuple[str, ...], remove: tuple[str, ...]) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.change_locators(add, remove)

    @exported
    def set_port(self, caller: Caller, port: int) -> Administered:
        self._server.allow(caller, "administer")
        return self._server.set_port(port)

    @exported
    def destroy(self, caller: Caller) -> None:
        self._server.allow(caller, "administer")
        self._server.destroy()


class _Status:
    """Status of the lookup service."""

    def __init__(self, server: LookupServer) -> None:
        self._server = server

    @exported
    def status(self, caller: Caller) -> LookupStatus:
        self._server.allow(caller, "status")
        return self._server.status()


def _asked_for(item: ServiceItem) -> tuple[Asked, ...]:
    """Permissions that the registration of a service needs: each of these, by one of its alternatives.

    Who registers publishers' registrations may publish the type, or speaks for others, as delegates do; our own other
    services (delegates, lookup services) speak for others; any other service counts as a type that is published.
    """
    every: tuple[Asked, ...] = ()
    others = item.types
    if PUBLISHER_TYPE in item.types:
        every = _asked_for_types(item.entries) or ((("publish", NONE_IN_PARTICULAR), PEER),)
        others = tuple(name for name in item.types if name not in PUBLISHERS)
    elif not item.types:
        every = ((PEER,),)
    return (*every, *((PEER if name.startswith("jbi.") else ("publish", Subject(name)),) for name in others))


def _asked_for_types(entries: Iterable[EntryRep]) -> tuple[Asked, ...]:
    """Permissions for entries that are found as one that says a type: by their lineage, and by the places of their
    values. What calls itself otherwise than a type's last name is no type that somebody may publish."""
    told = [entry.values for entry in entries if any(name == TYPE_ENTRY for name, _ in entry.cls.lineage)]
    every: list[Asked] = []
    for values in told:
        name, version, _, local = ((value or "") for value in (*values, "", "", "", "")[:4])
        fits = not local or local == re.split(r"[}.]", name)[-1]
        every.append((("publish", Subject(name, version)), PEER) if fits else (PEER,))
    return tuple(every)


def _later(name: str, what: Callable[[], None]) -> threading.Timer:
    """Do it in DESTROY_SECONDS."""

    def do() -> None:
        with guarded(name):
            what()

    timer = threading.Timer(DESTROY_SECONDS, do)
    timer.name, timer.daemon = name, True
    timer.start()
    return timer


def _changed(present: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in (*present, *add) if each not in remove))
