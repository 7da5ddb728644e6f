"""Administration of a node: calls of the exported object `node`, and what it tells by itself, as
information objects: `jbi.Event 1.0`, what happens to connections and sequences, and `jbi.Measurement 1.0`, how much it
does. Looking on is a subscription like any other (`jbi node snoop`)."""

from __future__ import annotations

import logging
import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from jbi_pubsub.core.access import Action, Subject
from jbi_pubsub.core.config import Config, check_value
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.node_sections import LogSection
from jbi_pubsub.core.series import Counter, Gauge
from jbi_pubsub.core.signing import Signer
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient, exported
from jbi_pubsub.core.wire.endpoint import Caller, Security
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.model.events import Happening
from jbi_pubsub.pad.server.exports import STATUS_ROWS, shortened
from jbi_pubsub.pad.server.system_publisher import OwnRegistration
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.services import fetch_terms
from jbi_pubsub.protocol.status.delegate import ClientStatus, DelegateOverview, DelegateStatus, SequencesStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus, TypeConflict
from jbi_pubsub.protocol.status.quality import SeriesStatus
from jbi_pubsub.qos import measurement
from jbi_pubsub.qos.measurement import xml_text
from jbi_pubsub.qos.process import memory

from .log import NodeLog
from .tunnel import TunnelDoor

log = logging.getLogger("jbi_pubsub.node")

NODE: Final = "node"
"""Name of the exported object."""
EVENT: Final = TypeName("jbi.Event")
_EVENT_FILE: Final = "Event.xsd"
EVENTS_WAITING: Final = 10_000
"""That have happened and are not published yet; of more the oldest go, counted."""
EVENTS_AT_ONCE: Final = 500
TYPES_MEASURED: Final = 100
"""Types with a series of their own, those with most objects."""
SHORT_ID: Final = 8
"""Digits of a node's id that its series are named by."""
DRAIN_MOST: Final = 60.0
LINES_MOST: Final = 1_000
NAMES_MOST: Final = 1_000
NAME_MOST: Final = 200
"""Characters of a name that somebody asks for."""


class NodeFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that a client may know of its node: who it is, where, and within what bounds."""

    id: str
    name: str
    epoch: int
    version: str
    addresses: tuple[str, ...]
    lookup: str
    """Address of its lookup service, "" for none of its own."""
    compression: bool
    """Whether a client that asks for compression may get it."""
    archive: bool
    types: bool
    max_metadata: int
    """Bytes."""
    max_payload: int
    max_registrations: int
    max_sessions: int
    max_subscriptions: int
    uptime: float


class LogLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the log."""

    number: int
    text: str


class NodeState(Protocol):
    """The node, as its calls see it."""

    @property
    def log(self) -> NodeLog | None:
        """Its log, if that is its own."""
        ...

    def details(self) -> NodeFacts:
        """See NodeDetails."""
        ...

    def status(self) -> DelegateStatus:
        """Status of the delegate."""
        ...

    def clients(self) -> list[ClientStatus]:
        """Clients that are connected."""
        ...

    def networks(self) -> NetworksStatus:
        """Networks, and the nodes that are heard there."""
        ...

    def peer_names(self) -> tuple[str, ...]:
        """Names of the nodes that are heard on its networks."""
        ...

    def door(self, name: str, service: str) -> TunnelDoor:
        """A way to a server of another node. Raises UnknownUidError, WireError."""
        ...

    def type_conflicts(self) -> list[TypeConflict]:
        """Types of which nodes have different schemas."""
        ...

    def settle_type(self, type_: TypeName, node: str, by: str) -> None:
        """Decide that a type has the schema of a node."""
        ...

    def allow(self, caller: Caller, action: Action, subject: Subject) -> object:
        """Raises AccessDeniedError."""
        ...

    def end(self, drain: float) -> None:
        """Stop soon, with so many seconds for deliveries."""
        ...

    def measure_every(self, seconds: float) -> None:
        """Between two statistics; 0 for none."""
        ...


class NodeCalls:
    """The exported object `node`. All but the first three are for administrators."""

    def __init__(self, node: NodeState) -> None:
        self._node = node

    @exported
    def details(self, caller: Caller) -> NodeFacts:
        """For clients, which may `connect`."""
        self._node.allow(caller, "connect", Subject())
        return self._node.details()

    @exported
    def peer_names(self, caller: Caller) -> tuple[str, ...]:
        """Names of the nodes that it hears, NAMES_MOST at most, for clients, which may `connect`."""
        self._node.allow(caller, "connect", Subject())
        return self._node.peer_names()[:NAMES_MOST]

    @exported
    def peer_address(self, caller: Caller, name: str, service: str) -> TunnelDoor:
        """An address of this host by which another node's server is reached (`delegate`, `lookup`), for whom may `peer`
        with a node of that name. Raises UnknownUidError, WireError, BackPressureError."""
        self._node.allow(caller, "peer", Subject(name=name[:NAME_MOST]))
        return self._node.door(name, service[:NAME_MOST])

    @exported
    def clients(self, caller: Caller) -> list[ClientStatus]:
        """Publishers and subscriber processes, STATUS_ROWS at most."""
        self._node.allow(caller, "administer", Subject())
        return self._node.clients()[:STATUS_ROWS]

    @exported
    def networks(self, caller: Caller) -> NetworksStatus:
        """Networks, and the nodes that are heard there, STATUS_ROWS at most."""
        self._node.allow(caller, "administer", Subject())
        told = self._node.networks()
        return msgspec.structs.replace(told, peers=told.peers[:STATUS_ROWS])

    @exported
    def type_conflicts(self, caller: Caller) -> list[TypeConflict]:
        """Types of which nodes have different schemas, STATUS_ROWS at most, for whom may see `status`."""
        self._node.allow(caller, "status", Subject())
        return self._node.type_conflicts()[:STATUS_ROWS]

    @exported
    def settle_type(self, caller: Caller, name: str, version: str, node: str) -> None:
        """Decide that a type has the schema of a node, at all nodes, for whom may change `types`. Raises
        UnknownUidError, SchemaError, ConfigurationError, StorageError."""
        node = node[:NAME_MOST]
        self._node.allow(caller, "types", Subject(name, version, f"settle by node {node}"))
        self._node.settle_type(TypeName(name, version), node, caller.user or caller.identity or caller.address)

    @exported
    def sequences(self, caller: Caller) -> SequencesStatus:
        """`registrations` and `subscriptions` with their accounts, STATUS_ROWS of each at most."""
        self._node.allow(caller, "administer", Subject())
        told = shortened(self._node.status())
        return SequencesStatus(registrations=told.registrations, subscriptions=told.subscriptions, counts=told.counts)

    @exported
    def log(self, caller: Caller, after: int, most: int) -> tuple[LogLine, ...]:
        """The last lines of the log, those behind number `after`."""
        self._node.allow(caller, "administer", Subject())
        return tuple(LogLine(*each) for each in self._log().lines(after, min(most, LINES_MOST)))

    @exported
    def set(self, caller: Caller, key: str, value: str) -> str:
        """Change a setting while the node runs, until it is started again: what it is now. Raises
        ConfigurationError."""
        subject = Subject(name=f"{key} = {value}"[:200])
        self._node.allow(caller, "administer", subject)
        section, _, name = key.partition(".")
        if key == "node.statistics_seconds":
            self._node.measure_every(seconds := float(check_value(section, name, value)))
            said = f"{seconds:g}"
        elif section == "log" and name in LogSection.__struct_fields__:
            own = self._log()
            own.set(msgspec.structs.replace(own.section, **{name: check_value(section, name, value)}))
            said = str(getattr(own.section, name))
        else:
            check_value(section, name, value)  # it may not be one at all
            raise ConfigurationError(
                f"{key[:100]} is taken when a node starts",
                hint="Set it in its jbi.toml and start it again; log.* and node.statistics_seconds change at once",
                key=key[:100],
            )
        log.warning("%s has set %s", caller.identity or caller.address, subject.name)
        return said

    @exported
    def shutdown(self, caller: Caller, drain: float) -> None:
        """Stop the node in order, once this is answered."""
        self._node.allow(caller, "administer", Subject())
        log.warning("%s shuts the node down", caller.identity or caller.address)
        self._node.end(min(max(0.0, drain), DRAIN_MOST))

    def _log(self) -> NodeLog:
        if self._node.log is None:
            raise ConfigurationError("this node's log is not its own: it lives in an application")
        return self._node.log


@dataclass(frozen=True)
class SnoopTerms:
    """Terms of looking on at a sequence, as `register_subscriber` takes them, and of which registration
    alone; "" of all. `says_more`: its template does, and more will come than it gets."""

    terms: dict[str, Any]
    registration: str = ""
    says_more: bool = False


class NodeProxy:
    """A node's calls, at a host:port."""

    def __init__(self, address: str, security: Security, *, timeout: float = 10.0) -> None:
        self._ref, self._security, self._timeout = ServiceRef("", "", (address,)), security, timeout
        self._client = ControlClient(ServiceRef("", NODE, (address,)), security, timeout=timeout)

    def details(self) -> NodeFacts:
        """See NodeCalls."""
        return self._client.call("details", NodeFacts)

    def peer_names(self) -> tuple[str, ...]:
        """See NodeCalls."""
        return self._client.call("peer_names", tuple[str, ...])

    def peer_address(self, name: str, service: str) -> TunnelDoor:
        """See NodeCalls."""
        return self._client.call("peer_address", TunnelDoor, name, service)

    def clients(self) -> list[dict[str, Any]]:
        """See NodeCalls."""
        return self._client.call("clients", list[dict[str, Any]])

    def networks(self) -> NetworksStatus:
        """See NodeCalls."""
        return self._client.call("networks", NetworksStatus)

    def type_conflicts(self) -> list[TypeConflict]:
        """See NodeCalls."""
        return self._client.call("type_conflicts", list[TypeConflict])

    def settle_type(self, type_: TypeName, node: str) -> None:
        """See NodeCalls."""
        self._client.call("settle_type", None, type_.name, type_.version, node)

    def sequences(self) -> dict[str, Any]:
        """See NodeCalls."""
        return self._client.call("sequences", dict[str, Any])

    def snooped(self, uid: str) -> SnoopTerms:
        """Terms of looking on at a registration or subscription. Raises UnknownUidError."""
        for each in self.sequences()["registrations"]:
            if each["uid"] == uid:
                name, _, version = each["type"].rpartition(" ")
                return SnoopTerms({"type_name": name, "version": version}, uid)
        terms = next((e for e in fetch_terms(self._ref, self._security, timeout=self._timeout) if e.uid == uid), None)
        if terms is None:
            raise UnknownUidError(f"{uid[:100]} has ended, or never was")
        types = [InformationType.from_rep(e) for e in terms.entries if e.cls.name == InformationType.entry_name]
        named = {"type_name": types[0].name or types[0].local, "version": types[0].version} if types else {}
        asked = {
            **named,
            "predicate": terms.predicate or None,
            "payload_filter": terms.payload_filter or None,
            "namespaces": dict(terms.namespaces),
            "language": terms.language,
        }
        return SnoopTerms(asked, says_more=len(terms.entries) > len(types))

    def log(self, after: int, most: int) -> tuple[LogLine, ...]:
        """See NodeCalls."""
        return self._client.call("log", tuple[LogLine, ...], after, most)

    def set(self, key: str, value: str) -> str:
        """See NodeCalls."""
        return self._client.call("set", str, key, value)

    def shutdown(self, drain: float) -> None:
        """See NodeCalls."""
        self._client.call("shutdown", None, drain)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


# -- what it tells ------------------------------------------------------------------------------------------------


def event_schema() -> SchemaBundle:
    """Schema of jbi.Event."""
    data = files("jbi_pubsub.node").joinpath("data", _EVENT_FILE).read_bytes()
    return SchemaBundle(_EVENT_FILE, ((_EVENT_FILE, data),), type=EVENT)


def event_document(component: str, at: float, told: Happening) -> bytes:
    """The metadata of an event."""
    return (
        f"<Event><component>{xml_text(component)}</component><at>{at:.3f}</at><of>{told.of}</of><what>{told.what}</what>"
        f"<role>{told.role}</role><id>{xml_text(told.uid)}</id><client>{xml_text(told.client)}</client>"
        f"<user>{xml_text(told.user)}</user><type>{xml_text(told.type)}</type></Event>"
    ).encode()


class Statistics:
    """Series of a node: what it did in a second, what it holds."""

    COUNTED: Final = ("published", "delivered", "lost")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def take(self, status: DelegateOverview) -> dict[str, SeriesStatus]:
        """Series of a delegate's overview, each with `at`, `last`, `mean`, `deviation`, and `trend` if it has one."""
        now = self._clock()
        for name in self.COUNTED:
            count = getattr(status, name)
            self._counted(name, now, sum(count.values()) if isinstance(count, Mapping) else count)
        types = sorted(status.types, key=lambda row: -row.published)[:TYPES_MEASURED]
        counts = {f"types.{row.name}.published": row.published for row in types if row.name}
        for gone in [name for name in self._counters if name.startswith("types.") and name not in counts]:
            del self._counters[gone]
        for name, count in counts.items():
            self._counted(name, now, count)
        measured: dict[str, float] = dict(msgspec.structs.asdict(status.counts))
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._counted("cpu", now, used.ru_utime + used.ru_stime)
        measured["memory"] = memory() or used.ru_maxrss * 1024.0
        if status.networks is not UNSET:
            self._take_networks(status.networks, now, measured)
        for name, value in measured.items():
            self._gauges.setdefault(name, Gauge(window=60.0)).add(now, value)
        for gone in self._gauges.keys() - measured.keys():
            del self._gauges[gone]
        return dict(self._all(now))

    def _take_networks(self, networks: NetworksStatus, now: float, measured: dict[str, float]) -> None:
        """Series of each network and of each node that is told of; measures are added to `measured`."""
        for link in networks.links:
            for key, count in (("sent", link.sent), ("received", link.received), ("repairs", link.repaired)):
                self._counted(f"network.{link.name}.{key}", now, count)
            losses = [peer.loss for peer in networks.peers if peer.network == link.name]
            own = {"loss": max(losses, default=0.0), "rate": link.rate, "waiting": float(link.waiting)}
            measured |= {f"network.{link.name}.{key}": value for key, value in own.items()}
        measured["peers"] = networks.nodes
        for peer in networks.peers:
            series = f"peer.{peer.id[:SHORT_ID]}"
            measured |= {
                f"{series}.loss": peer.loss,
                f"{series}.heard": peer.heard,
                f"{series}.registrations": float(peer.registrations),
            }

    def _counted(self, name: str, now: float, count: float) -> None:
        self._counters.setdefault(name, Counter(window=60.0)).add(now, count)

    def _all(self, now: float) -> Iterator[tuple[str, SeriesStatus]]:
        gauges = {**self._gauges, **{name: each.rates for name, each in self._counters.items()}}
        for name, gauge in gauges.items():
            last, mean, deviation = gauge.last(), gauge.mean(now), gauge.deviation(now)
            if last is None or mean is None or deviation is None:
                continue
            trend = gauge.trend(now)
            told = SeriesStatus(at=time.time(), last=last, mean=mean, deviation=deviation)
            yield name, told if trend is None else msgspec.structs.replace(told, trend=trend)


class NodeReports:
    """Publishes what happens and how much, at its own delegate, as long as somebody has subscribed."""

    def __init__(
        self,
        config: Config,
        delegate: Delegate,
        name: str,
        signer: Signer | None,
        overview: Callable[[], DelegateOverview],
    ) -> None:
        """`overview`: of the delegate's server, which knows more than the delegate."""
        self._delegate = delegate
        self._overview = overview
        self._name = name
        invariants = f"<Event><component>{xml_text(name)}</component></Event>".encode()
        self._events = OwnRegistration(delegate, signer, event_schema(), invariants, "events")
        self._measurements = OwnRegistration(
            delegate, signer, measurement.schema(), measurement.invariants(f"node {name}"), "statistics"
        )
        self._tells_events = config.node.events
        self._statistics = Statistics()
        self._happened: deque[tuple[float, Happening]] = deque(maxlen=EVENTS_WAITING)
        self.lost = 0
        """Events that were not published, for others came too fast."""
        self._told_lost = 0
        self._telling = Job("telling events", math.inf, self._tell, slow=True)
        self._measured = time.monotonic()
        self._measuring = Job(
            "telling statistics", config.node.statistics_seconds or math.inf, self._measure, slow=True
        )

    def start(self) -> None:
        """Begin."""
        if self._tells_events:
            self._delegate.events.witness = self._note
            self._telling.start()
        self._measuring.start()

    def stop(self) -> None:
        """Tell nothing more. Safe to repeat."""
        self._delegate.events.witness = None
        self._telling.stop()
        self._measuring.stop()

    def every(self, seconds: float) -> None:
        """Between two statistics from now on; 0 for none."""
        self._measuring.seconds = seconds or math.inf
        self._measuring.wake()

    def _note(self, told: Happening) -> None:
        if len(self._happened) == EVENTS_WAITING:
            self.lost += 1
        self._happened.append((time.time(), told))
        self._telling.wake()

    def _tell(self) -> None:
        is_wanted = self._events.is_wanted  # registers: whoever subscribes is to find it
        if self.lost > self._told_lost:
            log.error("%d events were not published: they came too fast", self.lost - self._told_lost)
            self._told_lost = self.lost
        while self._happened:
            told = [self._happened.popleft() for _ in range(min(EVENTS_AT_ONCE, len(self._happened)))]
            if is_wanted:
                self._events.publish(event_document(self._name, at, each) for at, each in told)

    def _measure(self) -> float | None:
        if (left := self._measured + self._measuring.seconds - time.monotonic()) > 0:
            return left
        self._measured = time.monotonic()
        if self._measurements.is_wanted:
            series = self._statistics.take(self._overview())
            self._measurements.publish(measurement.documents(f"node {self._name}", series))
        return None
