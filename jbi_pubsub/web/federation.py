"""The observer: what all servers of a federation are doing, asked every second. Knows no browser and no terminal.

It finds lookup services, delegates and peer publishers as any client does, by events: looking costs the lookup services
nothing. Each server is asked under a time limit by one of a few threads, so that a dead one delays no other; one that
does not answer is asked less and less often. What servers tell is taken for what it is, others' words: decoded
strictly, texts cut and made harmless, lists bounded.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, ProtocolError, UnknownUidError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.series import Counter, Gauge, SeriesPoint
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.lookup.status import LookupStatus
from jbi_pubsub.protocol.entries import BRIDGE_TYPE, PAD_TYPE, PEER_TYPE, RTI_TYPE
from jbi_pubsub.protocol.services import STATUS, fetch_page, patience
from jbi_pubsub.protocol.status.delegate import DelegateOverview, ListedSubscription, PageStatus
from jbi_pubsub.protocol.status.federations import RtiStatus
from jbi_pubsub.protocol.status.networks import NetworksStatus

log = logging.getLogger("jbi_pubsub.web")

Kind = Literal["lookup", "delegate", "peer", "bridge", "rti", "unknown"]
Facts = DelegateOverview | LookupStatus | RtiStatus

EVERY: Final = 1.0
"""Seconds between two looks, unless told otherwise."""
ANSWER_SECONDS: Final = 3.0
"""For one server to answer."""
AGAIN_MOST: Final = 30.0
"""Seconds at most until a server that does not answer is asked again."""
ASKING: Final = 8
"""Servers asked at once."""
SERVERS_MOST: Final = 200
"""Servers observed; of more it is said how many."""
HISTORY_SECONDS: Final = 300.0
"""Time that plots show."""
TEXT_MOST: Final = 300
"""Characters kept of a text that a server tells."""
ROWS_MOST: Final = 500
"""Entries kept of a list or table that a server tells."""
DEPTH_MOST: Final = 8
VALUES_MOST: Final = 50_000
"""Values kept of what a server tells, at all depths together."""
ANSWER_MOST: Final = 1 << 20
"""Bytes of an answer: some hundred names, counts and leases are a tenth of that."""

COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "lookup": ("lookups", "changes", "events", "events_lost"),
    "delegate": ("published", "matched", "suppressed", "delivered", "mailed", "lost", "refused"),
    "peer": ("published", "matched", "suppressed", "delivered", "mailed", "lost", "refused"),
    "bridge": (),
    "rti": (),
    "unknown": (),
}
"""Counters of which rates are kept, by kind of server; `lost` is the sum over causes."""
MEASURED: Final = ("queued", "in_flight", "mail_waiting")
"""Measures that go up and down."""
NETWORK: Final = "network."
"""Begin of the names of series of a node's networks, `network.NAME.SERIES`. A second: datagrams `sent`, `received`, and
`repairs`; in percent: `again`, repairs of what was sent, and `loss` of the worst node; in bytes: `waiting`."""
LINKS_MOST: Final = 16
"""Networks of a node of which there are series."""
DELAY: Final = "delay_ms"
"""The same, but of several servers the largest counts, not the sum."""


KINDS: Final[Mapping[str, type[Facts]]] = {
    "lookup": LookupStatus,
    "delegate": DelegateOverview,
    "peer": DelegateOverview,
    "rti": RtiStatus,
    "rti link": RtiStatus,
}
"""Status of each kind of server."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it was last seen. `facts` are its last answer, None before the first; `told` is the same as it came
    (made harmless), with what this version does not know; `error` says why it does not answer now, "" when it does;
    `rates` are per second over 10 s, by name of the counter (COUNTED, `lost.CAUSE`), without those not known yet;
    `listed`: a lookup service lists it (a delegate that is drained is not)."""

    id: str
    kind: Kind
    ref: ServiceRef
    facts: Facts | None
    told: Mapping[str, Any]
    error: str
    rates: Mapping[str, float]
    listed: bool

    @property
    def delegate(self) -> DelegateOverview | None:
        """The last answer of a delegate or peer publisher."""
        return self.facts if isinstance(self.facts, DelegateOverview) else None

    @property
    def lookup(self) -> LookupStatus | None:
        """The last answer of a lookup service."""
        return self.facts if isinstance(self.facts, LookupStatus) else None

    @property
    def title(self) -> str:
        """Name that people call it by."""
        if self.facts is None:
            return ", ".join(self.ref.endpoints)
        if self.kind == "delegate" and (known := self.delegate) is not None:
            return f"node {known.location}" if known.node else f"{known.name}, {known.location}"
        return self.facts.address


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow of the picture: publishers of one name `publish` to a server, which `deliver`s to subscribers of one
    name, or `mail`s. `of`: how many names these are together; `count`: registrations or subscriptions; `rate`: objects
    per second, None while not known; `waiting` objects or mails."""

    kind: Literal["publish", "deliver", "mail"]
    server: str
    name: str
    of: int
    count: int
    rate: float | None
    waiting: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A look. `number` grows by one with each; `unseen`: servers beyond SERVERS_MOST; `problem`: why nothing is found,
    "" when something is."""

    number: int = 0
    at: float = 0.0
    servers: tuple[Server, ...] = ()
    edges: tuple[Edge, ...] = ()
    unseen: int = 0
    problem: str = "looking for a lookup service"
    bridges: tuple[Server, ...] = ()
    rtis: tuple[Server, ...] = ()
    """Links to other platforms, and servers of federations of simulations, apart from the servers of this one."""


@dataclass(eq=False, slots=True)
class _Watched:
    """A server that is asked. The lock of the observer covers all of it."""

    ref: ServiceRef
    kind: Kind
    backoff: Backoff
    listed: bool = True
    facts: Facts | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    due: float = 0.0
    asking: Future[None] | None = None
    client: ControlClient | None = None
    counters: dict[str, Counter] = field(default_factory=dict)
    edges: dict[tuple[str, str], Counter] = field(default_factory=dict)
    history: dict[str, Gauge] = field(default_factory=dict)


class Observer:
    """Looks every so often until it is stopped. Any thread may read; `_changed` covers all state."""

    def __init__(
        self,
        config: Config,
        *,
        addresses: Sequence[str] = (),
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`addresses`: host:port of the servers to ask, instead of those that are registered. Raises
        ConfigurationError."""
        self._config = config
        self._security = config.security()
        self._every = every
        self._clock = clock
        self._seconds = ANSWER_SECONDS * patience(config)
        """For one server to answer."""
        self._fixed = {address: ServiceRef("", STATUS, (check_endpoint(address),)) for address in addresses}
        self._changed = threading.Condition()
        self._watched: dict[str, _Watched] = {}
        self._totals: dict[str, Gauge] = {}
        self._last = Snapshot()
        self._stopping = threading.Event()
        self._community: JoinManager | None = None
        self._caches: tuple[LookupCache, ...] = ()
        self._pool = ThreadPoolExecutor(ASKING, thread_name_prefix="jbi-observer-ask")
        self._thread = threading.Thread(target=self._run, name="jbi-observer", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        if not self._fixed:
            self._community = JoinManager(self._config, name="jbi-observer")
            types = PAD_TYPE, PEER_TYPE, BRIDGE_TYPE, RTI_TYPE
            self._caches = tuple(self._community.watch(ServiceTemplate(types=(kind,))) for kind in types)
        self._thread.start()

    def stop(self) -> None:
        """End all threads and connections; takes ANSWER_SECONDS at most beside what a lookup service takes."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            clients = [w.client for w in self._watched.values() if w.client is not None]
        for client in clients:
            client.close()  # wakes a call that hangs
        if self._thread.ident is not None:
            self._thread.join(ANSWER_SECONDS)
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._community is not None:
            self._community.close()

    def snapshot(self) -> Snapshot:
        """The last look; its number is 0 before the first."""
        with self._changed:
            return self._last

    def wait(self, number: int, timeout: float) -> Snapshot:
        """The first look behind that `number`, or the last there is after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._last.number > number or self._stopping.is_set(), timeout)
            return self._last

    def history(self, name: str, server: str = "") -> list[SeriesPoint]:
        """The last five minutes of one server (by id; "" is all together) for a plot: of a counter per second, else the
        value; [] when not known. Times are of the observer's clock."""
        now = self._clock()
        with self._changed:
            if not server:
                gauge = self._totals.get(name)
            else:
                watched = self._watched.get(server)
                gauge = watched.history.get(name) if watched is not None else None
            return gauge.points(now) if gauge is not None else []

    def ref(self, server: str) -> ServiceRef:
        """Reference to a server, to reach it. Raises UnknownUidError."""
        with self._changed:
            watched = self._watched.get(server)
        if watched is None:
            raise UnknownUidError(f"no server {server[:100]} any more", uid=server[:100])
        return watched.ref

    def subscriptions(
        self,
        servers: Sequence[str],
        *,
        search: str = "",
        order: str = "number",
        start: int = 0,
        count: int = 50,
        characters: int = TEXT_MOST,
    ) -> tuple[int, list[tuple[str, ListedSubscription]], list[str]]:
        """Number of subscriptions of these servers (by id) in which `search` occurs, and `count` of them from
        number `start` on, each with the id of its server. The servers follow each other; `order` (see
        pad/delegate/overview.py) holds within each. Those that do not answer are named last. A text has at most so
        many `characters`.

        Blocks for as long as the servers take to answer, ANSWER_SECONDS each at most: not for an event loop.
        """
        total, rows, silent = 0, list[tuple[str, ListedSubscription]](), list[str]()
        for server in servers:
            first = max(0, start - total)
            wanted = max(0, count - len(rows)) if start + count > total else 0
            try:
                said = fetch_page(self.ref(server), self._security, search, order, first, wanted, timeout=self._seconds)
                page = converted(harmless(said, characters), PageStatus)
            except (JbiError, msgspec.ValidationError) as exc:
                log.info("no subscriptions of %s: %s", server, exc)
                silent.append(server)
                continue
            total += page.total
            rows += [(server, row) for row in page.rows[:wanted]]
        return total, rows, silent

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = self._clock()
            with guarded("observer"):
                self._look()
            self._stopping.wait(max(0.05, began + self._every - self._clock()))

    def _look(self) -> None:
        found, problem = self._found()
        now = self._clock()
        with self._changed:
            gone = self._take_in(found)
            due = [(key, w) for key, w in self._watched.items() if w.asking is None and w.due <= now]
            for _, watched in due:
                watched.asking = self._pool.submit(self._ask, watched)
            asked = [w.asking for _, w in due if w.asking is not None]
        for client in gone:
            client.close()
        wait_for(asked, timeout=self._every / 2)  # who takes longer is in the next look
        with self._changed:
            self._last = self._seen(self._clock(), unseen=max(0, len(found) - SERVERS_MOST), problem=problem)
            self._changed.notify_all()

    def _found(self) -> tuple[dict[str, tuple[Kind, ServiceRef]], str]:
        """The servers by id, and why there is none."""
        if self._community is None:
            return {address: ("unknown", ref) for address, ref in self._fixed.items()}, ""
        found: dict[str, tuple[Kind, ServiceRef]] = {}
        for session in self._community.sessions():
            found[session.registrar_id] = ("lookup", session.ref)
        for kind, cache in zip(("delegate", "peer", "bridge", "rti"), self._caches, strict=True):
            for item in cache.items():  # an RTI has one for each of its federations
                key = item.proxy.service_id if kind != "rti" else ", ".join(item.proxy.endpoints)
                found.setdefault(key, (kind, item.proxy))  # type: ignore[arg-type]  # one of Kind
        if found:
            return found, ""
        lookup = self._config.lookup
        places = [*lookup.locators, *(["by mDNS"] if lookup.multicast else [])]
        return {}, f"no lookup service found ({', '.join(places) or 'nowhere to look'})"

    def _take_in(self, found: Mapping[str, tuple[Kind, ServiceRef]]) -> list[ControlClient]:
        """Under the lock. Connections to be closed: of servers that are listed no more and do not answer either."""
        gone = []
        for key, watched in list(self._watched.items()):
            watched.listed = key in found
            if not watched.listed and watched.error:
                del self._watched[key]
                if watched.client is not None:
                    gone.append(watched.client)
        for key, (kind, ref) in list(found.items())[:SERVERS_MOST]:
            known = self._watched.get(key)
            if known is None:
                self._watched[key] = _Watched(ref, kind, Backoff(self._every, AGAIN_MOST))
            elif known.ref.endpoints != ref.endpoints:
                known.ref, known.due = ref, 0.0
        return gone

    def _ask(self, watched: _Watched) -> None:
        """On a thread of the pool."""
        with guarded("observer ask"):
            facts: Facts | None = None
            told: dict[str, Any] = {}
            error = ""
            began = self._clock()
            try:
                told, facts = self._call(watched)
            except JbiError as exc:
                error = harmless(str(exc))
            with self._changed:
                self._note(watched, facts, told, error, began, self._clock())
        with self._changed:
            watched.asking = None

    def _call(self, watched: _Watched) -> tuple[dict[str, Any], Facts]:
        with self._changed:
            if self._stopping.is_set():
                raise ProtocolError("the observer is stopping")
            ref, old = watched.ref, watched.client
            if old is None or old.ref.endpoints != ref.endpoints:
                own = msgspec.structs.replace(ref, exported=STATUS, methods=())
                watched.client = ControlClient(own, self._security, timeout=self._seconds, most=ANSWER_MOST)
            else:
                old = None
            client, kind = watched.client, watched.kind
        assert client is not None
        if old is not None:
            old.close()
        if kind == "unknown":  # an address alone: a lookup service has no overview
            said: Any = client.call("status", dict[str, Any]).get("kind")
            if said not in KINDS:
                raise ProtocolError(f"{', '.join(ref.endpoints)} is not a server of ours: {str(said)[:50]!r}")
            kind = watched.kind = "rti" if said == "rti link" else said
        told: dict[str, Any] = client.call("status" if kind in ("lookup", "rti") else "overview", dict[str, Any])
        return harmless(told), checked(told, ref)

    def _note(
        self,
        watched: _Watched,
        facts: Facts | None,
        told: dict[str, Any],
        error: str,
        began: float,
        now: float,
    ) -> None:
        """Under the lock: an answer, or none. One that took longer than any may (we were stopped meanwhile) is as old
        as that: it counts for no rate."""
        watched.error = error
        if facts is None:
            watched.due = now + watched.backoff.pause()
            return
        watched.backoff.reset()
        watched.due = 0.0
        watched.facts, watched.told = facts, told
        if now - began > 2 * self._seconds:
            return
        delegate = facts if isinstance(facts, DelegateOverview) else None
        counts = {name: count_of(facts, name) for name in COUNTED[watched.kind]}
        if delegate is not None:
            counts |= {f"lost.{cause}": delegate.lost[cause] for cause in Cause if cause in delegate.lost}
            of_networks = dict(_network_counts(delegate.networks or NetworksStatus()))
            for gone in [n for n in watched.counters if n.startswith(NETWORK) and n not in of_networks]:
                del watched.counters[gone]
            counts |= of_networks
        for name, count in counts.items():
            watched.counters.setdefault(name, Counter()).add(now, count)
        shown = {(e.kind, e.name): count for e, count in _edges_of("", facts)}
        for edge in watched.edges.keys() - shown.keys():
            del watched.edges[edge]
        for edge, count in shown.items():
            watched.edges.setdefault(edge, Counter(most=32)).add(now, count)
        values: dict[str, float | None] = {name: c.rate(now) for name, c in watched.counters.items()}
        if delegate is not None:
            values |= {name: count_of(delegate, name) for name in MEASURED} | {DELAY: delegate.delay_ms}
            values |= dict(_network_measures(delegate.networks or NetworksStatus(), values))
            for gone in [n for n in watched.history if n.startswith(NETWORK) and n not in values]:
                del watched.history[gone]
        _keep(watched.history, values, now)

    def _seen(self, now: float, *, unseen: int, problem: str) -> Snapshot:
        """Under the lock."""
        servers, bridges, rtis, edges = list[Server](), list[Server](), list[Server](), list[Edge]()
        totals: dict[str, float] = {}
        for key, w in self._watched.items():
            rates = {name: rate for name, c in w.counters.items() if (rate := c.rate(now)) is not None}
            of = {"bridge": bridges, "rti": rtis}.get(w.kind, servers)
            of.append(Server(key, w.kind, w.ref, w.facts, w.told, w.error, rates, w.listed))
            if w.facts is None or w.error or of is not servers:
                continue
            for edge, _ in _edges_of(key, w.facts):
                counter = w.edges.get((edge.kind, edge.name))
                edges.append(replace(edge, rate=counter.rate(now) if counter is not None else None))
            for name, rate in rates.items():
                if name.startswith(NETWORK):
                    continue  # another node's network may have the same name
                totals[name] = totals.get(name, 0.0) + rate
            if isinstance(w.facts, DelegateOverview):
                for name in MEASURED:
                    totals[name] = totals.get(name, 0.0) + count_of(w.facts, name)
                totals[DELAY] = max(totals.get(DELAY, 0.0), w.facts.delay_ms)
        _keep(self._totals, totals, now)
        order = ("lookup", "delegate", "peer", "unknown")
        servers.sort(key=lambda s: (order.index(s.kind), s.title, s.id))
        apart = tuple(bridges), tuple(rtis)
        return Snapshot(self._last.number + 1, now, tuple(servers), tuple(edges), unseen, problem, *apart)


def disseminators(shot: Snapshot) -> list[tuple[Server, DelegateOverview]]:
    """Delegates and peer publishers that have answered, with their last answers."""
    return [(s, s.delegate) for s in shot.servers if s.delegate is not None]


def count_of(facts: Facts, name: str) -> int:
    """One of COUNTED or MEASURED."""
    if name == "mail_waiting":
        return facts.mail.queued if isinstance(facts, DelegateOverview) else 0
    count: int | dict[str, int] = getattr(facts, name)
    return sum(count.values()) if isinstance(count, dict) else count


def _network_counts(networks: NetworksStatus) -> Iterator[tuple[str, int]]:
    """Counters of a node's networks, by the names of their series."""
    for link in networks.links[:LINKS_MOST]:
        for name, count in (("sent", link.sent), ("received", link.received), ("repairs", link.repaired)):
            yield f"{NETWORK}{link.name}.{name}", count


def _network_measures(networks: NetworksStatus, rates: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """Measures of a node's networks, some from the rates of its counters."""
    for link in networks.links[:LINKS_MOST]:
        sent, repairs = (rates.get(f"{NETWORK}{link.name}.{name}") for name in ("sent", "repairs"))
        if sent is not None and repairs is not None:
            yield f"{NETWORK}{link.name}.again", 100 * repairs / sent if sent else 0.0
        yield f"{NETWORK}{link.name}.waiting", float(link.waiting)
        losses = (peer.loss for peer in networks.peers if peer.network == link.name)
        yield f"{NETWORK}{link.name}.loss", max(losses, default=0.0)


def checked(told: Mapping[str, Any], ref: ServiceRef) -> Facts:
    """The status that a server tells, if it can be shown: anybody may register as a server. Raises ProtocolError."""
    try:
        return converted(harmless(told), KINDS[str(told.get("kind"))])
    except (KeyError, msgspec.ValidationError, RecursionError) as exc:
        at = ", ".join(ref.endpoints)
        raise ProtocolError(f"{at} gives a status that this version does not understand: {str(exc)[:200]}") from exc


def harmless(value: Any, characters: int = TEXT_MOST) -> Any:
    """Value told by a peer, bounded (each text to so many characters), and without what a terminal would obey: control
    characters become spaces, numbers that are none too. (A browser is shown texts as texts.)"""
    return _harmless(value, DEPTH_MOST, iter(range(VALUES_MOST)), characters)


def _harmless(value: Any, depth: int, left: Iterator[int], characters: int) -> Any:
    """`left`: so many values may still come."""
    if next(left, None) is None:
        return "..."
    if isinstance(value, str):
        cut = value if len(value) <= characters else f"{value[: characters - 1]}…"
        return "".join(c if c.isprintable() else " " for c in cut)
    if isinstance(value, Mapping) and depth:
        some = islice(value.items(), ROWS_MOST)
        return {_harmless(str(k), 0, left, characters): _harmless(v, depth - 1, left, characters) for k, v in some}
    if isinstance(value, Sequence) and not isinstance(value, bytes) and depth:
        return [_harmless(each, depth - 1, left, characters) for each in value[:ROWS_MOST]]
    if isinstance(value, float) and not math.isfinite(value):
        return " "
    return value if value is None or isinstance(value, bool | int | float) else "..."


def _edges_of(key: str, facts: Facts) -> Iterator[tuple[Edge, int]]:
    """The arrows of a server, each with what its rate is of. A peer publishes to nobody: it is its own server."""
    if not isinstance(facts, DelegateOverview):
        return
    if facts.kind == "delegate":
        for p in facts.publishers:
            yield Edge("publish", key, p.name, p.of, p.registrations, None), p.published
    for s in facts.sessions:
        yield (
            Edge("deliver", key, s.name, s.of, s.subscriptions, None, s.queued + s.in_flight, s.lost),
            s.delivered,
        )
    if facts.mailing:
        yield Edge("mail", key, "", 1, facts.mailing, None, facts.mail.queued), facts.mailed


def _keep(history: dict[str, Gauge], values: Mapping[str, float | None], now: float) -> None:
    for name, value in values.items():
        if value is not None:
            history.setdefault(name, Gauge(HISTORY_SECONDS, int(HISTORY_SECONDS))).add(now, value)
