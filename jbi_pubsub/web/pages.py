"""The pages that only look: overview, servers, subscriptions, plots, objects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.lookup.status import LookupStatus
from jbi_pubsub.protocol.status.delegate import DelegateOverview, PublishersStatus, SubscribersStatus

from . import (
    administration,
    archivepage,
    clientpage,
    domainpage,
    explain,
    networkpage,
    nodepage,
    simulations,
    subscriptionpage,
)
from .alarms import Alarm, alarms, full_queues
from .console import (
    LOOK_SECONDS,
    Canvas,
    Connect,
    Console,
    action,
    add_action,
    headed,
    later,
    mount,
    numbered,
    offer,
    region,
    said,
    show_rows,
    table,
    words,
)
from .federation import Observer, Server, Snapshot, disseminators
from .map import chart
from .picture import per_second, picture, state_of
from .plots import SeriesPlot
from .server import WebServer

ROWS: Final = 25
"""Rows of a page of a table."""
PAGE_SECONDS: Final = 5.0
"""Between two looks for full queues: each asks servers again."""
LEGENDS: Final = {
    "queued": "in queues", "in_flight": "sent, not acknowledged", "mail_waiting": "mails", "delay_ms": "delay",
}  # fmt: skip
"""Names of series that are not those of their counters."""
ALARMS_MOST: Final = 50
"""Alarms that are shown."""


def open_console(config: Config, observer: Observer, server: WebServer, nodes: Connect | None = None) -> Console:
    """The console in a server that has not started yet; to be closed when that has stopped. Once in a process. `nodes`:
    see Console."""
    console = Console(config, observer, server.gate, nodes)
    _build(console)
    explain.build(console)
    networkpage.build(console)
    domainpage.build(console)
    subscriptionpage.build(console)
    archivepage.build(console)
    administration.build(console)
    clientpage.build(console)
    nodepage.build(console)
    mount(server.app)
    return console


def _build(console: Console) -> None:
    console.page("/")(lambda: _overview(console))
    console.page("/servers")(lambda: _servers(console))
    console.page("/plots")(lambda: _plots(console))
    console.page("/federations")(lambda: _federations(console))

    @console.page("/objects")
    def _(type: str = "") -> None:  # noqa: A002  # the query's word
        _ObjectsPage(console, type)


def _overview(console: Console) -> None:
    problem = words("p", "", "jbi-problem").props("role=status")
    tiles = ui.element("dl").classes("jbi-tiles")
    names = {"published": "published", "delivered": "delivered", "waiting": "waiting", "lost": "lost",
             "subscriptions": "subscriptions", "mail": "mails waiting"}  # fmt: skip
    values = {}
    with tiles:
        for name, label in names.items():
            with ui.element("div"):
                words("dt", label)
                values[name] = words("dd", "-")
    full: list[Any] = []
    with region("What is wrong", "jbi-alarms"):
        wrong = table(
            (("what", "What"), ("where", "Where"), ("do", "What to do"), ("go", "Go to")),
            empty="Nothing is wrong", searched=False,
        )  # fmt: skip
        add_action(wrong, "go", '<a class="jbi-link" :href="props.row.href" :aria-label="props.row.key">More</a>')
    with ui.element("div").classes("jbi-wide"):
        wide = Canvas()
    with ui.element("div").classes("jbi-narrow"):
        narrow = Canvas()
    words("p", "Rates are objects per second over the last ten seconds. A server leads to its subscriptions.",
          "jbi-note")  # fmt: skip

    def look() -> None:
        shot = console.observer.snapshot()
        problem.text = shot.problem
        problem.set_visibility(bool(shot.problem))
        for name, text in totals(shot).items():
            values[name].text = text
        show_rows(wrong, alarm_rows(alarms(shot, full)))
        wide.show(picture(shot))
        narrow.show(picture(shot, narrow=True))

    async def fill() -> None:
        full[:] = await console.call(full_queues, console.observer)

    look()
    ui.timer(LOOK_SECONDS, look)
    ui.timer(PAGE_SECONDS, fill)


def alarm_rows(found: Sequence[Alarm]) -> list[dict[str, Any]]:
    """The first alarms, as the table has them."""
    return [
        {"key": f"{a.where}: {a.what}", "what": a.what if a.is_now else f"Earlier: {a.what}", "where": a.where,
         "do": a.do, "href": a.href}
        for a in found[:ALARMS_MOST]
    ]  # fmt: skip


def totals(shot: Snapshot) -> dict[str, str]:
    """Totals of all servers, in words."""
    known = disseminators(shot)
    facts = [each for _, each in known]
    rates = {
        name: sum(s.rates.get(name, 0.0) for s, _ in known if not s.error)
        for name in ("published", "delivered", "lost")
    }
    return {
        **{name: per_second(rate) for name, rate in rates.items()},
        "waiting": f"{sum(f.queued + f.in_flight for f in facts):,}",
        "subscriptions": f"{sum(f.counts.subscriptions for f in facts):,}",
        "mail": f"{sum(f.mail.queued for f in facts):,}",
    }


def _servers(console: Console) -> None:
    with region("Servers"):
        servers = table(
            (("name", "Name"), ("kind", "Kind"), ("address", "Address"), ("state", "State"), ("up", "#Up"),
             ("connections", "#Connections"), ("regs", "#Registrations"), ("subs", "#Subscriptions"),
             ("in", "#In"), ("out", "#Out")),
            empty="No server has been found yet", whole=("address",),
        )  # fmt: skip
    with region("Types"):
        types = table(
            (("server", "Server"), ("name", "Type"), ("registrations", "#Registrations"),
             ("published", "#Published"), ("unmatched", "#Unmatched"), ("subscriptions", "#Subscriptions")),
            empty="Nothing is published", rows=ROWS,
        )  # fmt: skip
    publishers, subscribers = _party_tables()
    with region("Leases that end next"):
        leases = table(
            (("left", "#Seconds left"), ("kind", "Holder"), ("name", "Name"), ("server", "At")),
            empty="No leases are held", rows=10,
        )  # fmt: skip
        words("p", "Leases are renewed at 2/5 of their term. One that only gets shorter belongs to a dead client.",
              "jbi-note")  # fmt: skip
    with region("Mail"):
        mail = table(
            (("server", "Delegate"), ("subscriptions", "#E-mail subscriptions"), ("waiting", "#Waiting"),
             ("mailed", "#Sent"), ("why", "Why it waits"), ("smtp", "Mail server")),
            empty="No delegate has e-mail subscriptions", whole=("smtp",),
        )  # fmt: skip
    with region("Losses and faults"):
        losses = table(
            (("server", "At"), ("what", "Cause or step"), ("kind", "Kind"), ("count", "#Times")),
            empty="Nothing was lost, nothing failed",
        )  # fmt: skip

    def look() -> None:
        shot = console.observer.snapshot()
        show_rows(servers, [_server_row(s) for s in shot.servers])
        known = disseminators(shot)
        show_rows(types, [row for s, facts in known for row in _type_rows(s, facts)])
        show_rows(publishers, [row for s, facts in known for row in _party_rows(s, facts.publishers)])
        show_rows(subscribers, [row for s, facts in known for row in _party_rows(s, facts.sessions)])
        ending = [row for s, facts in known for row in _lease_rows(s, facts)]
        show_rows(leases, sorted(ending, key=lambda row: float(row["left"])))
        show_rows(mail, [_mail_row(s, facts) for s, facts in known if facts.mailing or facts.mail.queued])
        show_rows(losses, [row for s in shot.servers for row in _loss_rows(s)])

    look()
    ui.timer(LOOK_SECONDS, look)


def _federations(console: Console) -> None:
    """Federations of simulations."""
    made = {}
    for title, heads in simulations.TABLES.items():
        with region(title):
            made[title] = table(headed(heads), empty="No simulation runs here", rows=ROWS)
    words("p", "Counts of a federate: objects that it may delete, updates sent, values reflected to it, "
          "interactions sent and received, messages that wait for it. One without a time has finished.",
          "jbi-note")  # fmt: skip

    def look() -> None:
        for title, rows in simulations.rows_of(console.observer.snapshot().rtis).items():
            show_rows(made[title], numbered(simulations.TABLES[title], rows))

    look()
    ui.timer(LOOK_SECONDS, look)


def _party_tables() -> tuple[ui.table, ui.table]:
    """Tables of publishers and of subscribers."""
    with region("Publishers"):
        publishers = table(
            (("name", "Publisher"), ("server", "At"), ("connections", "#Connections"),
             ("registrations", "#Registrations"), ("published", "#Published")),
            empty="No publisher is connected", rows=ROWS,
        )  # fmt: skip
    with region("Subscribers"):
        subscribers = table(
            (("name", "Subscriber"), ("server", "At"), ("sessions", "#Processes"), ("connected", "#Connected"),
             ("subscriptions", "#Subscriptions"), ("delivered", "#Delivered"), ("waiting", "#Waiting"),
             ("lost", "#Lost")), empty="No subscriber is connected", rows=ROWS,
        )  # fmt: skip
    return publishers, subscribers


def _server_row(server: Server) -> dict[str, Any]:
    facts = server.facts
    _, words_ = state_of(server)
    row: dict[str, Any] = {
        "key": server.id, "name": server.title, "kind": server.kind,
        "address": facts.address if facts else ", ".join(server.ref.endpoints),
        "state": f"{words_}: {server.error}" if server.error else words_ or "well",
    }  # fmt: skip
    if facts is None:
        return row
    if isinstance(facts, LookupStatus):
        inward, outward = "lookups", "events"
        counts = f"{facts.items:,} items", f"{facts.event_registrations:,} listeners"
    else:
        assert isinstance(facts, DelegateOverview)  # what else there is stands apart
        inward, outward = "published", "delivered"
        counts = f"{facts.counts.registrations:,}", f"{facts.counts.subscriptions:,}"
    return {
        **row, "up": lasted(facts.uptime), "connections": f"{facts.connections:,}",
        "regs": counts[0], "subs": counts[1],
        "in": per_second(server.rates.get(inward)), "out": per_second(server.rates.get(outward)),
    }  # fmt: skip


def _type_rows(server: Server, facts: DelegateOverview) -> list[dict[str, Any]]:
    return [
        {"key": f"{server.id} {t.name} {t.of}", "server": server.title,
         "name": t.name if t.of == 1 else f"{t.of:,} more types", "registrations": f"{t.registrations:,}",
         "published": f"{t.published:,}", "unmatched": f"{t.unmatched:,}", "subscriptions": f"{t.subscriptions:,}"}
        for t in facts.types
    ]  # fmt: skip


def _party_rows(server: Server, parties: Sequence[PublishersStatus | SubscribersStatus]) -> list[dict[str, Any]]:
    """Publishers or subscribers, by name."""
    rows = []
    for each in parties:
        counts = {name: f"{n:,}" for name, n in msgspec.structs.asdict(each).items() if isinstance(n, int)}
        if isinstance(each, SubscribersStatus):
            counts["waiting"] = f"{each.queued + each.in_flight:,}"
        name = (each.name or "(no name)") if each.of == 1 else f"{each.of:,} more"
        rows.append({**counts, "key": f"{server.id} {name}", "server": server.title, "name": name})
    return rows


def _lease_rows(server: Server, facts: DelegateOverview) -> list[dict[str, Any]]:
    return [
        {"key": f"{server.id} {number}", "left": f"{e.left:.1f}", "kind": e.kind, "name": e.name,
         "server": server.title}
        for number, e in enumerate(facts.ending)
    ]  # fmt: skip


def _mail_row(server: Server, facts: DelegateOverview) -> dict[str, Any]:
    mail = facts.mail
    waiting = "on its way, or gathered for a digest" if mail.queued else ""
    return {
        "key": server.id, "server": server.title, "subscriptions": f"{facts.mailing:,}",
        "waiting": f"{mail.queued:,}", "mailed": f"{facts.mailed:,}",
        "why": mail.fault or (mail.away if mail.queued else "") or waiting, "smtp": mail.server,
    }  # fmt: skip


def _loss_rows(server: Server) -> list[dict[str, Any]]:
    if server.facts is None:
        return []
    lost = server.delegate.lost if server.delegate is not None else {}
    found = [("lost", cause, count) for cause, count in sorted(lost.items()) if count]
    found += [("fault", step, count) for step, count in sorted(server.facts.faults.items())]
    if server.lookup is not None and server.lookup.events_lost:
        found.append(("lost", "events", server.lookup.events_lost))
    return [
        {"key": f"{server.id} {kind} {what}", "server": server.title, "kind": kind, "what": what, "count": f"{count:,}"}
        for kind, what, count in found
    ]


def _plots(console: Console) -> None:
    plots = (
        ("Objects per second", ("published", "delivered", "matched", "mailed")),
        ("Waiting", ("queued", "in_flight", "mail_waiting")),
        ("Delay in ms: from the queue to the slowest subscriber's acknowledgement", ("delay_ms",)),
        ("Lost per second, by cause", tuple(f"lost.{cause}" for cause in Cause)),
        ("Lookup services: per second", ("lookups", "changes", "events")),
    )
    with ui.element("div").classes("jbi-form"):
        at = ui.select({"": "all servers"}, value="", label="Server")
    charts = []
    with ui.element("div").classes("jbi-plots"):
        for title, names in plots:
            charts.append((SeriesPlot(title), names))
    words("p", "The delay is without the time in a queue. The page Objects shows the age of objects on arrival.",
          "jbi-note")  # fmt: skip

    def look() -> None:
        shot = console.observer.snapshot()
        titles = {s.id: f"{s.kind} {s.title}" for s in shot.servers}
        offer(at, {"": "all servers", **titles}, "")
        for made, names in charts:
            lines = [
                (LEGENDS.get(n, n.removeprefix("lost.")), console.observer.history(n, at.value or "")) for n in names
            ]
            moving = [(n, points) for n, points in lines if len(names) < 5 or any(p.value for p in points)]
            made.show(moving, shot.at)

    look()
    ui.timer(LOOK_SECONDS, look)


class _ObjectsPage:
    """One tab's. It subscribes to the type that is chosen."""

    def __init__(self, console: Console, wanted: str) -> None:
        self._console, self._wanted = console, wanted
        self._watched: tuple[str, str] | None = None
        """Name and version."""
        self._selected = ""
        self._shown: tuple[int, str] | None = None
        """Number of objects that had come, and the one that was selected, when the page was shown last."""
        with ui.element("div").classes("jbi-form"):
            self._kinds = ui.select({}, label="Type", with_input=False).classes("jbi-grow")
            self._button = action("Show its objects", on_click=self._watch)
        self._status = words("p", "Choose a type: this page subscribes to it.", "jbi-note").props("role=status")
        with later() as self._parts:
            with ui.element("div").classes("jbi-pair jbi-live"):
                with region("Map") as self._map:
                    self._chart = Canvas()
                with region("Object"):
                    self._about = words("p", "", "jbi-note")
                    self._metadata = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Metadata"')
                    self._payload = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Payload"')
            self._rows = table(
                (("time", "Published"), ("sequence", "#Number"), ("age", "#Age on arrival"), ("size", "#Payload"),
                 ("where", "Where"), ("id", "Id"), ("look", "Look")), empty="No object has come yet", whole=("id",),
            )  # fmt: skip
            add_action(
                self._rows, "look",
                """<q-btn flat dense no-caps color="primary" label="Look" :aria-label="'Look at ' + props.row.id"
                   @click="() => $parent.$emit('look', props.row.key)" />""",
            )  # fmt: skip
        self._rows.on("look", self._choose)
        ui.context.client.on_delete(self._leave)
        self._look()
        ui.timer(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        known = disseminators(self._console.observer.snapshot())
        names = sorted({t.name for _, facts in known for t in facts.types if t.of == 1})
        offer(self._kinds, {name: name for name in names}, self._wanted if self._wanted in names else None)
        if self._watched is None:
            return
        seen, came = self._console.objects.last(*self._watched)
        self._parts.set_visibility(bool(seen))
        if self._shown == (came, self._selected):
            return
        self._shown = came, self._selected
        self._status.text = f"{came:,} objects have come; the last {len(seen)} are shown"
        show_rows(self._rows, [
            {"key": o.object_id, "time": time.strftime("%H:%M:%S", time.localtime(o.arrived - o.age)),
             "sequence": f"{o.sequence:,}", "age": f"{o.age * 1000:,.0f} ms", "size": f"{o.size:,} B",
             "where": "; ".join(f"{p.north:g}, {p.east:g}" for p in o.places[:3]), "id": o.object_id[-24:]}
            for o in seen
        ])  # fmt: skip
        self._map.set_visibility(any(o.places for o in seen))
        self._chart.show(chart([(f"#{o.sequence}", p) for o in seen for p in o.places]))
        chosen = next((o for o in seen if o.object_id == self._selected), seen[0] if seen else None)
        if chosen is not None:
            self._about.text = f"{chosen.type}, {chosen.object_id}"
            self._metadata.text, self._payload.text = chosen.metadata, chosen.payload

    def _choose(self, event: GenericEventArguments) -> None:
        self._selected = str(event.args)
        self._look()

    async def _leave(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            await self._console.call(self._console.objects.leave, *watched)

    async def _watch(self) -> None:
        if not self._kinds.value:
            self._status.text = "No type is chosen."
            return
        name, _, version = self._kinds.value.rpartition(" ")
        self._button.disable()
        try:
            await self._leave()
            await self._console.call(self._console.objects.watch, name, version)
            self._watched, self._shown = (name, version), None
            if ui.context.client.is_deleted:  # the page was left meanwhile
                await self._leave()
        except JbiError as exc:
            self._status.text = said(exc)
        finally:
            self._button.enable()
        self._look()


def lasted(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(max(0.0, min(seconds, 1e9)))
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
