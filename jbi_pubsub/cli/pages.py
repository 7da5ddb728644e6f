"""The pages of `jbi top`: each turns what the observer has seen (web/federation.py) into tables. A room that has more
to show adds a page to PAGES. What servers say is others' words."""

from __future__ import annotations

import math
import time
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from jbi_pubsub.core.guard import note
from jbi_pubsub.core.quality import LEVELS
from jbi_pubsub.core.series import Counter
from jbi_pubsub.core.status import ServerStatus
from jbi_pubsub.protocol.status.delegate import DelegateOverview, ListedSubscription
from jbi_pubsub.protocol.status.quality import ContractStatus, LinkStatus, QualityStatus
from jbi_pubsub.web.federation import Observer, Server, Snapshot, count_of
from jbi_pubsub.web.simulations import rows_of

from .show import Column, Table, bits, counted, lasted, rated, sized

ROWS_MOST: Final = 100
"""Subscriptions asked of one server, those that got most."""
BARS_MOST: Final = 10
"""Rates of a type that are drawn."""
BARS: Final = "▁▂▃▄▅▆▇█"


class SortedCell(NamedTuple):
    """A cell that is sorted by its value and shown as its text."""

    value: float
    text: str

    def __str__(self) -> str:
        return self.text


class PageFacts(NamedTuple):
    """Facts that a page is made of."""

    shot: Snapshot
    history: Callable[[str, str], Sequence[float]]
    """history("published", server id): its rates in the last WINDOW seconds."""
    subscriptions: Subscriptions | None = None


class Page(NamedTuple):
    """A page: what it is about, and its tables."""

    about: str
    tables: Callable[[PageFacts], list[Table]]


Row = tuple[str, ListedSubscription]
"""A subscription, with the id of its server."""


class Subscriptions:
    """Those that have got most, asked of all servers again and again on a thread of its own, with rates."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="jbi-top")
        self._asking: Future[tuple[int, list[Row], list[str]]] | None = None
        self._counters: dict[tuple[str, str], Counter] = {}
        self.rows: list[tuple[str, ListedSubscription, float | None]] = []
        """With the id of the server, and what each gets per second; None: not known yet."""
        self.total = 0
        self.silent: list[str] = []
        self.looks = 0
        self._asked = -math.inf
        self._stopping = False

    def look(self, shot: Snapshot, now: float, every: float) -> None:
        """Take what has come, and ask for more when it is time. Does not wait. `now` in seconds, by any clock."""
        if self._asking is not None and self._asking.done():
            self._take(self._asking, now)
            self._asking = None
        if self._asking is None and now - self._asked >= every:
            self._asked = now
            self._asking = self._pool.submit(self._ask, [s.id for s, _ in _knots(shot)])

    def stop(self) -> None:
        """End the thread, when the server that is asked has answered or its time is over."""
        self._stopping = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, asked: Future[tuple[int, list[Row], list[str]]], now: float) -> None:
        if (failure := asked.exception()) is not None:
            note("asking for subscriptions", failure)  # type: ignore[arg-type]  # a future's are Exceptions
            return
        self.total, rows, self.silent = asked.result()
        known, self._counters = self._counters, {}
        for server, row in rows:
            counter = self._counters[server, row.uid] = known.get((server, row.uid)) or Counter()
            counter.add(now, row.delivered + row.mailed)
        self.rows = [(server, row, self._counters[server, row.uid].rate(now)) for server, row in rows]
        self.looks += 1

    def _ask(self, servers: Sequence[str]) -> tuple[int, list[Row], list[str]]:
        total, rows, silent = 0, list[Row](), list[str]()
        for server in servers:
            if self._stopping:
                break
            of, found, unheard = self._observer.subscriptions([server], order="delivered", count=ROWS_MOST)
            total += of
            silent += unheard
            rows += found
        return total, rows, silent


# -- pages --------------------------------------------------------------------------------------------------------


def overview(seen: PageFacts) -> list[Table]:
    """Servers with rates, and what is lost why."""
    return [table for table in (_disseminators(seen), _lookups(seen), _losses(seen), _away(seen)) if table.rows]


def _disseminators(seen: PageFacts) -> Table:
    rows = []
    for s, facts in _knots(seen.shot):
        rows.append((
            s.title, _per(s, "published"), spark(seen.history("published", s.id)), _per(s, "delivered"),
            spark(seen.history("delivered", s.id)), _count(facts.queued), _count(facts.in_flight),
            _count(count_of(facts, "lost")), _per(s, "lost"), _count(facts.counts.subscriptions), _up(facts),
        ))  # fmt: skip
    return Table(_DISSEMINATORS, rows)


_DISSEMINATORS: Final = (
    Column("server", long=True, name=True), Column("in/s", right=True), Column("10 s in", spare=2),
    Column("out/s", right=True), Column("10 s out", spare=1), Column("waiting", right=True),
    Column("sent", right=True, spare=3), Column("lost", right=True), Column("lost/s", right=True, spare=3),
    Column("subs", right=True, spare=3), Column("up", right=True, spare=4),
)  # fmt: skip


def _lookups(seen: PageFacts) -> Table:
    rows = [
        (
            s.title, _count(s.lookup.items), _per(s, "lookups"), _per(s, "events"),
            spark(seen.history("events", s.id)), _count(s.lookup.events_lost), _up(s.lookup),
        )
        for s in seen.shot.servers if s.lookup is not None and not s.error
    ]  # fmt: skip
    return Table(_LOOKUPS, rows)


_LOOKUPS: Final = (
    Column("lookup at", long=True, name=True), Column("items", right=True), Column("lookups/s", right=True),
    Column("events/s", right=True), Column("10 s events", spare=1), Column("lost", right=True),
    Column("up", right=True, spare=4),
)  # fmt: skip


def _losses(seen: PageFacts) -> Table:
    counts: Tally[str] = Tally()
    rates: Tally[str] = Tally()
    for s, facts in _knots(seen.shot):
        counts.update(facts.lost)
        rates.update({name.removeprefix("lost."): rate for name, rate in s.rates.items() if name[:5] == "lost."})
    rows = [
        (cause, _count(count), SortedCell(rates[cause], rated(rates[cause])))
        for cause, count in counts.most_common()
        if count
    ]
    return Table((Column("lost by"), Column("objects", right=True), Column("per s", right=True)), rows)


def _away(seen: PageFacts) -> Table:
    rows = [(s.title, s.error) for s in seen.shot.servers if s.error]
    return Table((Column("does not answer", long=True, name=True), Column("why", long=True)), rows)


def subscriptions(seen: PageFacts) -> list[Table]:
    """Subscriptions, those that get most first."""
    known = seen.subscriptions
    if known is None:
        return []
    titles = {s.id: s.title for s in seen.shot.servers}
    is_managed = any(row.qos is not UNSET for _, row, _ in known.rows)
    rows = [
        (
            row.uid, row.name, SortedCell(rate or 0.0, rated(rate) if rate is not None else "-"),
            _count(row.delivered + row.mailed), _count(row.waiting), _count(sum(row.lost.values())),
            *(_contract(row.qos) if is_managed else ()), titles.get(server, server), row.predicate,
        )
        for server, row, rate in sorted(known.rows, key=lambda each: (-(each[2] or 0.0), -each[1].delivered))
    ]  # fmt: skip
    of = f"{len(rows)} of {counted(known.total, 'subscription')}"
    silent = f"; not told by {', '.join(titles.get(s, s) for s in known.silent)}" if known.silent else ""
    columns = (*_SUBSCRIPTIONS[:6], *(_CONTRACT if is_managed else ()), *_SUBSCRIPTIONS[6:])
    return [Table(columns, rows, of + silent if known.looks else "asking")]


_SUBSCRIPTIONS: Final = (
    Column("subscription", brief=True), Column("subscriber", long=True, spare=2), Column("per s", right=True),
    Column("delivered", right=True), Column("waiting", right=True), Column("lost", right=True),
    Column("at", long=True, name=True, spare=1), Column("predicate", long=True, spare=3),
)  # fmt: skip


_CONTRACT: Final = (
    Column("imp", right=True, spare=4), Column("deadline", right=True, spare=4),
    Column("p95 delay", right=True, spare=4), Column("p95 to application", right=True, spare=5),
    Column("jitter", right=True, spare=5),
)  # fmt: skip
"""Behind the counts, where quality of service is managed."""


def _contract(contract: ContractStatus | UnsetType) -> tuple[SortedCell, ...]:
    """Importance, deadline, delays and jitter, where quality of service is managed."""
    if contract is UNSET:
        return (SortedCell(0, "-"),) * 5
    times = (contract.deadline, contract.p95, contract.end_p95, contract.jitter)
    return _count(contract.importance), *(_time(each) for each in times)


def mail(seen: PageFacts) -> list[Table]:
    """Mail of each delegate, and what is wrong with it."""
    rows = [
        (
            s.title, _per(s, "mailed"), _count(facts.mailed), _count(facts.mail.queued),
            SortedCell(facts.mail.bytes, sized(facts.mail.bytes)), _count(facts.mail.under_way), facts.mail.server,
            facts.mail.fault or facts.mail.away,
        )
        for s, facts in _knots(seen.shot) if s.kind == "delegate"
    ]  # fmt: skip
    return [Table(_MAIL, rows)]


_MAIL: Final = (
    Column("mail at", long=True, name=True), Column("per s", right=True), Column("mailed", right=True),
    Column("waiting", right=True), Column("bytes", right=True, spare=1), Column("under way", right=True, spare=3),
    Column("by", long=True, spare=2), Column("what is wrong", long=True),
)  # fmt: skip


def leases(seen: PageFacts) -> list[Table]:
    """Leases that end first if they are not renewed."""
    rows = [
        (SortedCell(e.left, f"{e.left:,.1f} s"), e.kind, e.name, s.title)
        for s, facts in _knots(seen.shot)
        for e in facts.ending
    ]  # fmt: skip
    return [Table(_LEASES, sorted(rows))]


_LEASES: Final = (
    Column("ends in", right=True), Column("of"), Column("who", long=True, name=True), Column("at", long=True, name=True)
)  # fmt: skip


def parties(seen: PageFacts) -> list[Table]:
    """Publishers and subscribers, by name, at which server."""
    titles = {s.id: s.title for s in seen.shot.servers}
    rows = [
        (
            e.name or (f"{e.of} others" if e.of > 1 else "-"), _DOES[e.kind],
            titles.get(e.server, e.server), SortedCell(e.rate or 0.0, rated(e.rate) if e.rate is not None else "-"),
            _count(e.count), _count(e.waiting), _count(e.lost),
        )
        for e in sorted(seen.shot.edges, key=lambda e: -(e.rate or 0.0))
    ]  # fmt: skip
    return [Table(_PARTIES, rows)]


_DOES: Final = {"publish": "sends", "deliver": "gets", "mail": "mails"}
_PARTIES: Final = (
    Column("who", long=True, name=True), Column("does"), Column("at", long=True, name=True),
    Column("per s", right=True), Column("contracts", right=True, spare=2), Column("waiting", right=True, spare=1),
    Column("lost", right=True, spare=1),
)  # fmt: skip


def links(seen: PageFacts) -> list[Table]:
    """Where policies are enforced: links and bins, how much waits for them, and what is in force."""
    managed = _managed(seen)
    if not managed:
        return [_UNMANAGED]
    made = [
        Table(_LINKS, [_link_row(s, link) for s, q in managed for link in q.links]),
        Table(_BINS, [row for s, q in managed for row in _bin_rows(s, q)]),
        Table(_IN_FORCE, [_in_force(s, q) for s, q in managed]),
    ]
    return [table for table in made if table.rows]


def _link_row(server: Server, link: LinkStatus) -> tuple[object, ...]:
    limit, estimate = (SortedCell(rate or 0.0, bits(rate) if rate else "-") for rate in (link.limit, link.estimate))
    waiting = " ".join(f"{count:,}" for count in link.waiting_by_level[:LEVELS]) or "-"
    return (
        link.name or "(all others)", limit, estimate, SortedCell(link.used, bits(link.used)),
        SortedCell(link.busy, f"{link.busy:.0%}"), SortedCell(link.backlog, sized(link.backlog)), waiting,
        SortedCell(link.rtt_ms, f"{link.rtt_ms:,.0f} ms"), _count(link.retransmits),
        SortedCell(link.pending, sized(link.pending)), server.title,
    )  # fmt: skip


_LINKS: Final = (
    Column("link", long=True, name=True), Column("limit", right=True), Column("measured", right=True, spare=1),
    Column("used", right=True), Column("busy", right=True, spare=2), Column("waiting", right=True),
    Column("ready 1-5", right=True, spare=3), Column("rtt", right=True, spare=2),
    Column("resent", right=True, spare=5), Column("under way", right=True, spare=4),
    Column("at", long=True, name=True, spare=1),
)  # fmt: skip


def _bin_rows(server: Server, quality: QualityStatus) -> list[tuple[object, ...]]:
    """The most important first, of these the cheapest."""
    bins = sorted(quality.tasks.bins, key=lambda each: (each.importance, each.bin), reverse=True)
    whole = sum(each.cpu for each in bins)
    return [
        (
            _count(each.importance), _count(each.bin), _count(each.depth), _count(each.served),
            SortedCell(each.cpu, f"{each.cpu:,.1f} s"), SortedCell(each.cpu, f"{each.cpu / whole:.1%}" if whole else
            "-"), server.title, ) for each in bins ]  # fmt: skip


_BINS: Final = (
    Column("importance", right=True), Column("bin", right=True), Column("waiting", right=True),
    Column("done", right=True), Column("cpu", right=True, spare=1), Column("share", right=True),
    Column("at", long=True, name=True),
)  # fmt: skip


def _in_force(server: Server, quality: QualityStatus) -> tuple[object, ...]:
    policy, shaping = quality.policy, quality.shaping
    contracts = " ".join(f"{policy.contracts.get(str(level), 0):,}" for level in range(1, LEVELS + 1))
    shaped = f"{shaping.shaped:,}, {sized(shaping.saved)} saved" if shaping.on else "off"
    return (
        server.title, _count(policy.policies), _count(policy.version), policy.digest[:8] or "-",
        quality.tasks.strategy or "-", contracts, shaped, policy.following or policy.source or "-",
        policy.fault or quality.tasks.fault,
    )  # fmt: skip


_IN_FORCE: Final = (
    Column("in force at", long=True, name=True), Column("policies", right=True, spare=2),
    Column("version", right=True), Column("digest", spare=3), Column("strategy"),
    Column("contracts 1-5", right=True, spare=2),
    Column("shaped", spare=2), Column("from", long=True, spare=3), Column("what is wrong", long=True),
)  # fmt: skip


def types(seen: PageFacts) -> list[Table]:
    """Each type as its subscribers get it (figure 7 of the QED paper)."""
    rows = [
        (
            each.name or "others", ", ".join(each.sources) or "-",
            _count(each.received or 0), _count(each.dropped or 0),
            SortedCell(each.last or 0.0, time.strftime("%H:%M:%S", time.localtime(each.last)) if each.last else "-"),
            SortedCell(each.rate or 0.0, rated(each.rate) if each.rate is not UNSET else "-"),
            spark((each.rates or [])[-BARS_MOST:]),
            _time(each.p50), _time(each.p95), _time(each.end_p95), s.title,
        )
        for s, quality in _managed(seen)
        for each in quality.types
    ]  # fmt: skip
    return [Table(_TYPES, rows) if _managed(seen) else _UNMANAGED]


_TYPES: Final = (
    Column("type", long=True, name=True, dotted=True), Column("source", long=True, spare=2),
    Column("received", right=True), Column("dropped", right=True), Column("last", right=True, spare=1),
    Column("per s", right=True), Column("10 s", spare=2), Column("delay", right=True),
    Column("p95", right=True, spare=3), Column("p95 to application", right=True, spare=4),
    Column("at", long=True, name=True, spare=4),
)  # fmt: skip


_UNMANAGED: Final = Table(
    (Column("quality of service", long=True),), [("no server manages it: no policies, or [qos] mode is off",)]
)


def _managed(seen: PageFacts) -> list[tuple[Server, QualityStatus]]:
    """Servers that manage quality of service, and what they say of it."""
    return [(s, facts.qos) for s, facts in _knots(seen.shot) if facts.qos is not UNSET]


def networks(seen: PageFacts) -> list[Table]:
    """Networks of the nodes, and the other nodes that each hears."""
    found = [(s, facts.networks) for s, facts in _knots(seen.shot) if facts.networks is not UNSET]
    links = [
        (
            link.name, s.title, _count(link.neighbours), _count(link.sent), _per(s, f"network.{link.name}.sent"),
            _count(link.received), _per(s, f"network.{link.name}.received"), _percent(link.repairs),
            SortedCell(link.rate, f"{sized(link.rate)}/s"), SortedCell(link.waiting, sized(link.waiting)), link.plugin,
            "; ".join(filter(None, (link.trouble, "another node uses its id" if told.twin else "", *told.troubles))),
        )
        for s, told in found for link in told.links
    ]  # fmt: skip
    peers = [
        (
            each.name, each.id[:8], each.network, SortedCell(each.heard, f"{each.heard:.1f} s"), _percent(each.loss),
            _count(each.registrations), ", ".join(each.roles), s.title,
        )
        for s, told in found for each in told.peers
    ]  # fmt: skip
    unseen = sum(told.nodes - len(told.peers) for _, told in found)
    return [Table(_NETWORKS, links), Table(_PEERS, peers, f"{unseen} more are not told" if unseen > 0 else "")] if (
        found
    ) else [_ALONE]  # fmt: skip


_NETWORKS: Final = (
    Column("network", name=True), Column("at", long=True, name=True), Column("nodes", right=True),
    Column("sent", right=True, spare=3), Column("sent/s", right=True), Column("received", right=True, spare=3),
    Column("received/s", right=True), Column("again", right=True), Column("rate", right=True, spare=1),
    Column("waiting", right=True), Column("plugin", spare=2), Column("trouble", long=True),
)  # fmt: skip
_PEERS: Final = (
    Column("node heard", long=True, name=True), Column("id", spare=2), Column("network", name=True),
    Column("heard", right=True), Column("loss", right=True), Column("registrations", right=True, spare=1),
    Column("does", long=True, spare=3), Column("at", long=True, name=True),
)  # fmt: skip
_ALONE: Final = Table((Column("networks", long=True),), [("no node here has networks: [network.NAME] makes one",)])


def _percent(share: float) -> SortedCell:
    return SortedCell(share, f"{share:.1f} %")


def _time(seconds: float | UnsetType | None) -> SortedCell:
    """A short time; "-" for none."""
    if not isinstance(seconds, float | int):
        return SortedCell(0.0, "-")
    return SortedCell(seconds, f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.0f} ms")


def simulations(seen: PageFacts) -> list[Table]:
    """Federations of simulations, and their federates."""
    made = rows_of(seen.shot.rtis)
    return [Table(FEDERATIONS, made["Federations"]), Table(FEDERATES, made["Federates"])] if seen.shot.rtis else []


FEDERATIONS: Final = (
    Column("federation", long=True, name=True), Column("at", name=True), Column("federates", right=True),
    Column("objects", right=True), Column("calls", right=True, spare=2), Column("callbacks", right=True, spare=2),
    Column("unsent", right=True, spare=3), Column("resigned", right=True), Column("state", long=True),
)  # fmt: skip
FEDERATES: Final = (
    Column("federate", long=True, name=True), Column("of", name=True), Column("type", spare=3),
    Column("time", right=True), Column("lookahead", right=True, spare=2), Column("objects", right=True),
    Column("updates", right=True), Column("reflected", right=True, spare=1), Column("sent", right=True),
    Column("received", right=True, spare=1), Column("waiting", right=True, spare=1), Column("state", long=True),
)  # fmt: skip


PAGES: Final[dict[str, Page]] = {
    "overview": Page("servers with rates, losses by cause", overview),
    "subscriptions": Page("subscriptions by rate", subscriptions),
    "mail": Page("mail that waits, and why", mail),
    "leases": Page("leases about to end", leases),
    "parties": Page("publishers and subscribers", parties),
    "links": Page("links and bins, and the policies in force", links),
    "types": Page("types as their subscribers get them", types),
    "networks": Page("networks of nodes, and the nodes that are heard there", networks),
    "federations": Page("federations of simulations, and their federates", simulations),
}
"""By name, in the order of their keys."""


def spark(rates: Sequence[float]) -> str:
    """Rates as bars, the highest of them full; none is lower than zero."""
    most = max(rates, default=0.0)
    return "".join(BARS[round((len(BARS) - 1) * rate / most) if most > 0 else 0] for rate in rates)


def _knots(shot: Snapshot) -> list[tuple[Server, DelegateOverview]]:
    """Delegates and peer publishers that answer."""
    return [(s, s.delegate) for s in shot.servers if s.delegate is not None and not s.error]


def _per(server: Server, name: str) -> SortedCell:
    rate = server.rates.get(name)
    return SortedCell(rate or 0.0, rated(rate) if rate is not None else "-")


def _up(facts: ServerStatus) -> SortedCell:
    return SortedCell(facts.uptime, lasted(facts.uptime))


def _count(number: float) -> SortedCell:
    return SortedCell(number, f"{number:,}")
