"""`jbi status`: what lookup services, delegates and peer publishers are doing, once or all the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice, repeat
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, ProtocolError
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.hla.proxy import HLA_BRIDGE_TYPE
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import (
    ANSWERING_TYPES,
    PAD_TYPE,
    PUBLISHER_TYPE,
    RTI_TYPE,
)
from jbi_pubsub.protocol.services import STATUS, patience
from jbi_pubsub.protocol.status.federations import RtiStatus
from jbi_pubsub.web.simulations import federate_rows, federation_rows

from .community import at_address, name_of
from .options import TableArguments, argument, command, flag, option
from .pages import FEDERATES, FEDERATIONS
from .screen import Screen, is_screen
from .series import SERIES, show_series
from .settings import looking
from .show import (
    Column,
    Table,
    View,
    drawn,
    lasted,
    printable,
    rated,
    show_tables,
    sized,
)
from .show import as_json as json_text

Facts = dict[str, Any]
"""The status of one server, as it tells it, with what is computed here."""

DISSEMINATORS: Final = frozenset({PAD_TYPE, PUBLISHER_TYPE})
"""Types that delegates and peers are registered as; services of other kinds have nothing to say of our matters."""
ANSWER_SECONDS: Final = 3.0
"""For one server to answer: the others are not to wait for a dead one much longer than people do."""
EVERY_SECONDS: Final = 1.0
"""Between two looks of --watch, unless told otherwise."""
ROWS_MOST: Final = 50
"""Subscriptions shown of one server in a terminal, but with --wide."""

_SERVERS: Final = (
    Column("kind"), Column("name", long=True, name=True), Column("address", long=True, name=True),
    Column("up", right=True, spare=1), Column("regs", right=True, spare=1), Column("subs", right=True, spare=1),
    Column("leases", right=True, spare=3), Column("mail", right=True, spare=2), Column("kept", right=True, spare=4),
)  # fmt: skip
_LOOKUPS: Final = (
    Column("lookup at", long=True, name=True), Column("items", right=True), Column("listeners", right=True, spare=3),
    Column("lookups", right=True, spare=1), Column("changes", right=True, spare=3),
    Column("events", right=True, spare=2), Column("lost", right=True), Column("disk", long=True),
)  # fmt: skip
_OBJECTS: Final = (
    Column("objects at", long=True, name=True), Column("published", right=True),
    Column("unmatched", right=True, spare=3), Column("matched", right=True, spare=2),
    Column("suppressed", right=True, spare=3), Column("delivered", right=True), Column("waiting", right=True, spare=1),
    Column("sent", right=True, spare=3), Column("lost", right=True),
)  # fmt: skip
_MAILED: Final = (
    Column("mail at", long=True, name=True), Column("mailed", right=True), Column("waiting", right=True),
    Column("what is wrong", long=True),
)  # fmt: skip
ARCHIVED: Final = (
    Column("archive at", long=True, name=True), Column("position", right=True), Column("backlog", right=True),
    Column("metadata", right=True, spare=1), Column("payloads", right=True, spare=1),
    Column("index", right=True, spare=4), Column("volumes", right=True, spare=3),
    Column("queries", right=True, spare=2), Column("durables", right=True, spare=2),
    Column("what is wrong", long=True),
)  # fmt: skip
_BRIDGES: Final = (
    Column("bridge", long=True, name=True), Column("from", name=True), Column("to", name=True),
    Column("relays", right=True), Column("waiting", right=True, spare=2), Column("relayed", right=True),
    Column("filtered", right=True, spare=3), Column("lost", right=True), Column("state", long=True),
)  # fmt: skip
_CERTIFICATES: Final = (
    Column("certificate at", long=True, name=True), Column("of", long=True, name=True), Column("until", spare=1),
    Column("days", right=True), Column("what is wrong", long=True),
)  # fmt: skip
_LOSSES: Final = (Column("lost at", long=True, name=True), Column("cause"), Column("objects", right=True))
_FAULTS: Final = (
    Column("fault at", long=True, name=True), Column("step", long=True), Column("times", right=True)
)  # fmt: skip
_MORE: Final = (
    Column("also at", long=True, name=True), Column("what", long=True, name=True), Column("value", long=True)
)  # fmt: skip
_SUBSCRIPTIONS: Final = (
    Column("subscription", brief=True), Column("predicate", long=True, spare=1), Column("filter", long=True, spare=3),
    Column("policy", spare=4), Column("matched", right=True, spare=2), Column("suppressed", right=True, spare=4),
    Column("delivered", right=True), Column("waiting", right=True), Column("lost", long=True),
)  # fmt: skip
_LOOKUP_RATES: Final = {"lookups": "lookups/s", "events": "events/s"}
_OBJECT_RATES: Final = {"published": "in/s", "delivered": "out/s"}
_RATES: Final = tuple(Column(head, right=True) for head in (*_LOOKUP_RATES.values(), *_OBJECT_RATES.values()))
_ALL: Final = (
    _SERVERS, _LOOKUPS, _OBJECTS, _MAILED, ARCHIVED, _BRIDGES, FEDERATIONS, FEDERATES, _CERTIFICATES, _LOSSES,
    _FAULTS, _MORE, _SUBSCRIPTIONS, _RATES,
)  # fmt: skip
"""Every column that there may be."""
_OF_FEDERATIONS: Final = ("rti", "rti link", "federation bridge")
"""Kinds of servers that know of federations."""
_ANSWERING: Final = DISSEMINATORS | ANSWERING_TYPES | {RTI_TYPE, HLA_BRIDGE_TYPE}
"""Types of services that can be asked how they are, without lookup services."""
_TOLD: Final = frozenset({
    "kind", "name", "location", "address", "groups", "uptime", "counts", "leases", "mail", "mailed", "kept", "items",
    "event_registrations", "lookups", "changes", "events", "events_lost", "store", "published", "unmatched", "matched",
    "suppressed", "delivered", "queued", "in_flight", "lost", "faults", "rates", "subscriptions", "tls",
    "qos", "archive", "foreign", "federations", "link", "bridge",
})  # fmt: skip
"""Keys of a status that the tables show."""
_USUAL: Final = frozenset({
    "id", "service_id", "pid", "version", "time", "connections", "compressed", "threads", "calls", "locators",
    "lookup_services", "event_channels", "events_waiting", "owners", "item_lease_maximum", "event_lease_maximum",
    "renewals", "expired", "refused", "found_late", "queued_bytes", "catching_up", "publishers", "registrations",
    "sessions", "node", "state", "unfiltered", "replayed", "draining", "diagnostics",
    "access.file", "access.version", "access.rules", "access.since", "access.audit",
    "limits.metadata", "limits.payload", "limits.compressed", "limits.types",
})  # fmt: skip
"""Keys that --wide adds. A status may have more than these two: of a later version, of a stage that not all
have; what is not zero of that is shown to everybody."""
NO_ANSWER: Final = ("unreachable", "refused")
"""Kinds of those of which there is no status: they are away, or do not tell us."""
FEDERATES_MOST: Final = 20
"""Federates that are listed in a terminal, but with --wide."""
MORE_MOST: Final = 50
"""Others that are shown of one server."""
_COUNTERS: Final = ("published", "delivered", "mailed", "lookups", "changes", "events")
"""Counts that rates are told of."""


class _StatusArguments(TableArguments):
    addresses: tuple[str, ...] = argument(metavar="[HOST:PORT]...", nargs=-1)
    watch: bool = flag("Refresh every second, with rates.")
    every: float | None = option(
        "With --watch: seconds between two refreshes.", type=click.FloatRange(0.1, 3600.0), metavar="SECONDS"
    )
    count: int | None = option("With --watch: end after that many refreshes.", type=click.IntRange(1))
    subscriptions: bool = flag("Also the subscriptions, those with the longest queues first.")
    series: str = option("Recent values of a measurement of [qos]; * and ? are wildcards.", metavar="NAME", default="")
    as_csv: bool = flag("With --series: its points, for a spreadsheet.", "--csv")

    def check(self) -> None:
        """Raises ConfigurationError for options that don't go together."""
        if self.as_csv and not self.series:
            raise ConfigurationError("--csv is for --series", hint="For example --series 'links.*.used'")
        if self.series and self.watch:
            raise ConfigurationError("--series is one look", hint="Leave --watch out")
        if self.as_csv and self.as_json:
            raise ConfigurationError("--csv or --json?", hint="Give one of them")
        if not self.watch and (self.count or self.every):
            raise ConfigurationError(f"{'--count' if self.count else '--every'} is for --watch", hint="Add --watch")

    def turns(self, wait: Callable[[float], object]) -> Iterator[None]:
        """One each `every` seconds, the first at once; `count` of them, or without end. Who ends a `wait` has the
        next."""
        due = time.monotonic()
        for _ in repeat(None) if self.count is None else repeat(None, self.count):
            wait(max(0.0, due - time.monotonic()))
            due = time.monotonic() + (self.every or EVERY_SECONDS)
            yield


@command(None, _StatusArguments)
def status(given: _StatusArguments) -> int:
    """Show the state of lookup services, delegates and peer publishers.

    \b
    jbi status                                  # everything that is registered
    jbi status 127.0.0.1:4160                   # one server
    jbi --node tent-3 status                    # a node
    jbi status --watch                          # with rates: objects and events per second
    jbi status --subscriptions 127.0.0.1:40123  # queues and losses of each subscription
    jbi status --columns published,lost,in/s    # only these; --wide for all there are
    jbi status --watch --json --every 10        # a line every ten seconds, for scripts
    jbi status --series 'links.*.used' --csv    # measurements of quality of service, per second
    """
    given.check()
    view = given.view((*_ALL, SERIES))
    at = None if given.addresses else given.settings.node_at()
    servers = Servers(given.settings.load(), (at,) if at is not None else given.addresses)
    try:
        if given.series:
            show_series(servers.ask(), given.series, view, as_csv=given.as_csv, as_json=given.as_json)
        elif given.watch and given.as_json:
            _watch_json(servers, given)
        elif given.watch:
            _watch(servers, given, view)
        else:
            found = servers.ask()
            shown = tables(
                found, subscriptions=given.subscriptions, whole=view.wide, is_cut=sys.stdout.isatty() and not view.wide
            )
            given.show(found, lambda: show_tables(shown, view))
            silent = [facts for facts in found if facts["kind"] in NO_ANSWER]
            for facts in silent:
                click.echo(printable(f"{facts['address']}: {facts['error']}"), err=True)
            return 1 if silent else 0
    finally:
        servers.close()
    return 0


class Servers:
    """The servers to be asked, over connections that stay open; those that are registered, or the given ones."""

    def __init__(self, config: Config, addresses: Sequence[str]) -> None:
        """Raises ConfigurationError: one is not HOST:PORT."""
        self._config = config
        self._fixed = {address: at_address(address, STATUS) for address in addresses}
        self._community = None if addresses else JoinManager(config, name="jbi")
        self._clients: dict[str, ControlClient] = {}
        self._before: dict[str, tuple[float, Facts]] = {}
        self._names: dict[tuple[str, ...], str] = {}

    def ask(self) -> list[Facts]:
        """The status of each, with `rates` from the second time on. One that does not answer is of kind `unreachable`,
        one that may not tell us of kind `refused`; both have an `error`.

        Raises LookupNotFoundError, and WireError for a given address where nobody answers.
        """
        return [self._ask(key, ref) for key, ref in self._refs().items()]

    def close(self) -> None:
        """End all connections."""
        for client in self._clients.values():
            client.close()
        if self._community is not None:
            self._community.close()

    def _refs(self) -> dict[str, ServiceRef]:
        if self._community is None:
            return self._fixed
        with looking(self._config):
            items = self._community.lookup(ServiceTemplate(), EVERYTHING)
        refs = {session.registrar_id: session.ref for session in self._community.sessions()}
        self._names = {item.proxy.endpoints: name for item in items if (name := name_of(item))}
        ours = [item.proxy for item in items if _ANSWERING.intersection(item.types)]
        # by address: one that was killed and started again there is listed twice until its former lease has run out
        return refs | {ref.service_id: ref for ref in {(ref.endpoints, ref.certificate): ref for ref in ours}.values()}

    def _ask(self, key: str, ref: ServiceRef) -> Facts:
        try:
            facts = checked(self._client(key, ref).call("status", Facts), ", ".join(ref.endpoints))
        except JbiError as exc:
            if self._community is None:
                raise
            self._before.pop(key, None)
            kind = "refused" if isinstance(exc, AccessDeniedError) else "unreachable"
            name = self._names.get(ref.endpoints, "")
            return {"kind": kind, "name": name, "address": ", ".join(ref.endpoints), "error": str(exc)}
        before, self._before[key] = self._before.get(key), (time.monotonic(), facts)
        return facts if before is None else {**facts, "rates": _rates(*before, *self._before[key])}

    def _client(self, key: str, ref: ServiceRef) -> ControlClient:
        client = self._clients.get(key)
        if client is None or client.ref.endpoints != ref.endpoints:
            if client is not None:
                client.close()
            own = msgspec.structs.replace(ref, exported=STATUS, methods=())
            seconds = ANSWER_SECONDS * patience(self._config)
            client = self._clients[key] = ControlClient(own, self._config.security(), timeout=seconds)
        return client


def checked(facts: Facts, address: str) -> Facts:
    """The status if it can be shown: anybody may register as a server. Raises ProtocolError."""
    try:
        list(tables([facts], subscriptions=True, whole=True))
        _rates(0.0, facts, 1.0, facts)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        why = f"{type(exc).__name__} {exc}"[:200]
        raise ProtocolError(f"{address} gives a status that this version does not understand: {why}") from exc
    return facts


def _rates(then: float, before: Facts, now: float, after: Facts) -> dict[str, float]:
    """Per second; a counter that began again, after a restart, has none."""
    took = max(now - then, 1e-3)
    return {
        name: round((after[name] - before[name]) / took, 1)
        for name in _COUNTERS
        if name in after and name in before and after[name] >= before[name]
    }


def tables(
    found: Sequence[Facts], *, subscriptions: bool = False, whole: bool = False, is_cut: bool = False
) -> Iterator[Table]:
    """Tables for people; `whole`: also what they rarely ask for; `is_cut`: only as many rows as one looks at."""
    lookups = [facts for facts in found if facts["kind"] == "lookup"]
    known = [facts for facts in found if facts["kind"] not in ("lookup", *NO_ANSWER, *_OF_FEDERATIONS)]
    others = [facts for facts in found if facts["kind"] in ("lookup", *_OF_FEDERATIONS)]
    more = [name for name in _CELLS if any(name in facts for facts in known)]
    columns = [column for column in _SERVERS if column.head not in _CELLS or column.head in more]
    yield Table(columns, [_server_row(facts, more) for facts in found])
    if lookups:
        yield _with_rates(_LOOKUPS, [_lookup_row(facts) for facts in lookups], lookups, _LOOKUP_RATES)
    taking = [facts for facts in known if "foreign" not in facts]
    if taking:
        yield _with_rates(_OBJECTS, [_objects_row(facts) for facts in taking], taking, _OBJECT_RATES)
    bridges = [row for facts in (*known, *others) for row in _bridge_rows(facts.get("foreign") or {})]
    rtis = [converted(facts, RtiStatus) for facts in others if facts["kind"] in ("rti", "rti link")]
    federates = [row for each in rtis for row in federate_rows(each)]
    certificates = [_certificate_row(facts) for facts in (*others, *known) if facts.get("tls")]
    every = (*others, *known)
    made: list[tuple[Sequence[Column], Sequence[Sequence[object]]]] = [
        (_MAILED, [_mail_row(facts) for facts in known if _has_mail(facts)]),
        (ARCHIVED, [archive_row(_called(facts), facts["archive"]) for facts in known if "archive" in facts]),
        (_BRIDGES, list(dict.fromkeys(bridges))),
        (FEDERATIONS, [row for each in rtis for row in federation_rows(each)]),
        (FEDERATES, [] if is_cut and len(federates) > FEDERATES_MOST else federates),
        (_CERTIFICATES, [row for row in certificates if whole or row[-1]]),
        (_LOSSES, [row for facts in every for row in _count_rows(facts, "lost")]),
        (_FAULTS, [row for facts in every for row in _count_rows(facts, "faults")]),
        (_MORE, [(_called(facts), *each) for facts in every for each in _besides(facts, whole=whole)]),
    ]
    yield from (Table(columns, rows) for columns, rows in made if rows)
    if subscriptions:
        for facts in taking:
            yield _subscription_table(facts, ROWS_MOST if is_cut else None)


def _with_rates(
    columns: Sequence[Column], rows: list[Sequence[object]], found: Sequence[Facts], heads: Mapping[str, str]
) -> Table:
    """The table with rates, where there are any."""
    if not any("rates" in facts for facts in found):
        return Table(columns, rows)
    rates = [[rated(facts.get("rates", {}).get(name, 0.0)) for name in heads] for facts in found]
    with_rates = (*columns, *(Column(head, right=True) for head in heads.values()))
    return Table(with_rates, [(*row, *rate) for row, rate in zip(rows, rates, strict=True)])


def _count_rows(facts: Facts, key: str) -> Iterator[Sequence[object]]:
    """Losses or faults of a server, each with its cause or step."""
    counts = sorted((facts.get(key) or {}).items())
    return ((_called(facts), what, f"{count:,}") for what, count in counts if count)


def _besides(facts: Facts, *, whole: bool) -> list[tuple[str, str]]:
    """Numbers, texts and counters that no table of ours has a column for."""
    flat = (each for name in facts if name not in _TOLD for each in _flat(name, facts[name], 3))
    wrong = (each for each in _flat("qos", facts.get("qos"), 3) if each[0].endswith(".fault"))
    return list(islice((*wrong, *(each for each in flat if whole or not _is_usual(each[0]))), MORE_MOST))


def _is_usual(name: str) -> bool:
    """It, or what it is a part of."""
    return any(name == usual or name.startswith(f"{usual}.") for usual in _USUAL)


def _flat(name: str, value: object, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth:
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part, depth - 1)
    elif isinstance(value, (int, float, str)) and value:
        yield name, str(value)


def _called(facts: Facts) -> str:
    """A server, for people."""
    if facts["kind"] != "delegate":
        return str(facts["address"])
    return f"node {facts['location']}" if "node" in facts else f"{facts['name']}, {facts['location']}"


def _lookup_row(facts: Facts) -> Sequence[object]:
    store = facts["store"]
    disk = "-" if store is None else store["fault"] or "ok"
    counted = ("items", "event_registrations", "lookups", "changes", "events", "events_lost")
    return _called(facts), *(f"{facts[name]:,}" for name in counted), disk


def _server_row(facts: Facts, more: Sequence[str]) -> Sequence[object]:
    if facts["kind"] in NO_ANSWER:
        return facts["kind"], facts["name"], facts["address"], *[""] * (len(_SERVERS) - 5 + len(more))
    if facts["kind"] == "lookup":
        name = ", ".join(group or "(public)" for group in facts["groups"])
        counts = ("", "", facts["items"] + facts["event_registrations"])
    elif facts["kind"] in ("federation bridge", "rti link"):
        name, counts = "", ("", "", "")
    elif facts["kind"] == "rti":
        name, counts = "", ("", "", sum(len(each["federates"]) for each in facts["federations"]))
    else:
        name = f"{facts['name']}, {facts['location']}" if facts["kind"] == "delegate" else ""
        counts = (facts["counts"]["registrations"], facts["counts"]["subscriptions"], facts["leases"])
    cells = (_CELLS[name](facts[name]) if name in facts else "" for name in more)
    return *_kind(facts, name), facts["address"], lasted(facts["uptime"]), *counts, *cells


def _kind(facts: Facts, name: str) -> tuple[str, str]:
    """Kind of a server, for people, and its name."""
    if "node" in facts:
        return "node", facts["location"]
    foreign = facts.get("foreign")
    return (foreign["kind"], foreign["name"]) if foreign else (facts["kind"], name)


def _bridge_rows(foreign: Facts) -> Iterator[tuple[str, ...]]:
    """A bridge, by direction. What it can't do now is in its log."""
    away = ", ".join(f"{side} is away" for side, is_there in foreign.get("sides", {}).items() if not is_there)
    for way in foreign.get("directions", ())[:2]:
        state = "" if way["listening"] else str(foreign.get("trouble") or "not subscribed yet")
        troubles = f"{way['troubles']:,} troubles, see its log" if way["troubles"] else ""
        numbers = (f"{way[key]:,}" for key in ("registrations", "waiting", "relayed", "filtered", "lost"))
        wrong = "; ".join(each for each in (away, state, troubles) if each)
        yield str(foreign["name"]), str(way["from"]), str(way["to"]), *numbers, wrong or "ok"


_CELLS: Final[dict[str, Callable[[Facts], str]]] = {
    "mail": lambda mail: f"{mail['queued']:,}",
    "kept": lambda kept: sized(kept["bytes"]),
}
"""Cells of what not every server has: mails that wait, the size of what is in a delegate's buffers."""


def _has_mail(facts: Facts) -> bool:
    """Whether there is anything to be told of its mail."""
    mail = facts.get("mail")
    return mail is not None and bool(facts.get("mailed") or mail["queued"] or mail["fault"])


def _mail_row(facts: Facts) -> Sequence[object]:
    """With `matched`, `delivered` and `lost` the account of docs/mail.md; behind the mails that wait for how long the
    first of them has. That a mail server was away when it was last tried is nobody's concern while nothing waits for
    it."""
    mail = facts["mail"]
    wrong = mail["fault"] or (mail.get("away", "") if mail["queued"] else "")
    oldest = f" ({lasted(mail['oldest'])})" if mail["queued"] and "oldest" in mail else ""
    return _called(facts), f"{facts.get('mailed', 0):,}", f"{mail['queued']:,}{oldest}", wrong


def archive_row(called: str, archive: Facts) -> Sequence[object]:
    """Row of what an archive holds, does, and lacks."""
    sizes = (sized(archive.get(f"{name}_bytes", 0)) for name in ("metadata", "payload", "index"))
    behind = max(0, archive["position"] - archive["indexed"])
    numbers = (archive.get("volumes", 0), archive["queries"]["open"], archive.get("consumers", 0))
    counts = (f"{number:,}" for number in numbers)
    return called, f"{archive['position']:,}", f"{behind:,}", *sizes, *counts, "; ".join(archive_troubles(archive))


def archive_troubles(archive: Facts) -> list[str]:
    """Troubles of an archive, with what to do where that is known."""
    found = [str(each) for each in archive.get("troubles", ())]
    if archive.get("full"):
        found.append(f"no room: {archive['full']} (make room, or shorten what is kept: [[keep]])")
    if archive.get("index_trouble"):
        found.append(f"index: {archive['index_trouble']}")
    if archive.get("worker", {}).get("is_running") is False:
        found.append("its worker does not run: nothing is answered")
    return found


def _certificate_row(facts: Facts) -> Sequence[object]:
    """Its own certificate, or what ends before that: of an authority or a list of revoked ones."""
    tls = facts["tls"]
    wrong = "it is revoked" if tls["revoked"] else "it ends soon: jbi certs renew" if tls["ends_soon"] else ""
    until = time.strftime("%Y-%m-%d", time.gmtime(tls["until"])) if tls["until"] is not None else ""
    return _called(facts), str(tls["identity"]), until, f"{tls['days']:,}" if tls["days"] is not None else "", wrong


def _objects_row(facts: Facts) -> Sequence[object]:
    counted = ("published", "unmatched", "matched", "suppressed", "delivered", "queued", "in_flight")
    return _called(facts), *(f"{facts[name]:,}" for name in counted), f"{sum(facts['lost'].values()):,}"


def _subscription_table(facts: Facts, most: int | None) -> Table:
    queued = {uid: waiting for session in facts["sessions"] for uid, waiting in session["queued"].items()}

    def waiting(s: Facts) -> int:
        return int(queued.get(s["uid"], 0) + s["mail_waiting"])

    known = sorted(facts["subscriptions"], key=lambda s: waiting(s) + sum(s["lost"].values()), reverse=True)
    rows: list[Sequence[object]] = [
        (
            s["uid"], s["predicate"], s["filter"], f"{s['policy']} {s['bound']}" if s["direct"] else "e-mail",
            s["matched"], s["suppressed"], _delivered(s), waiting(s), losses(s["lost"]),
        )
        for s in known[:most]
    ]  # fmt: skip
    of = facts["counts"]["subscriptions"]
    shown = "" if len(rows) == of else f" (the first {len(rows)} of {of})"
    return Table(_SUBSCRIPTIONS, rows, f"subscriptions at {facts['address']}{shown}")


def _delivered(subscription: Facts) -> object:
    """To the queue and by mail: the latter counts objects times recipients."""
    delivered, mailed = subscription["delivered"], f"{subscription['mailed']:,} mailed"
    if not subscription["recipients"]:
        return delivered
    return f"{delivered:,} + {mailed}" if subscription["direct"] else mailed


def losses(lost: dict[str, int]) -> str:
    """Losses by cause, for people."""
    return ", ".join(f"{cause} {count:,}" for cause, count in sorted(lost.items()) if count) or "0"


def _watch(servers: Servers, given: _StatusArguments, view: View) -> None:
    """A screen that refreshes, where a terminal can and its width is to be kept; else one table after the other."""
    screen = Screen() if is_screen() and not view.wide else None
    seen: list[Table] = []
    try:
        with screen or nullcontext():
            for _ in given.turns(screen.wait if screen is not None else time.sleep):
                seen = view.of(
                    tables(servers.ask(), subscriptions=given.subscriptions, whole=view.wide, is_cut=screen is not None)
                )
                if screen is not None:
                    screen.show("\n\n".join(drawn(table, width=screen.width) for table in seen).split("\n"))
                else:
                    click.echo(time.strftime("%H:%M:%S"))
                    show_tables(seen, view)
                    sys.stdout.flush()
    finally:
        if screen is not None:  # what was seen last stays, as that of other commands does
            show_tables(seen, view)


def _watch_json(servers: Servers, given: _StatusArguments) -> None:
    """One line after the other."""
    for _ in given.turns(time.sleep):
        click.echo(json_text({"time": round(time.time(), 3), "servers": servers.ask()}))
        sys.stdout.flush()


def namesakes(delegates: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Names that several delegates have, each with their addresses; of each are known `name`, `location`, `address`."""
    places: dict[str, list[str]] = {}
    for each in delegates:
        if each.get("location"):
            places.setdefault(f"({each.get('name')}, {each['location']})", []).append(str(each.get("address")))
    yield from ((name, sorted(found)) for name, found in sorted(places.items()) if len(found) > 1)
