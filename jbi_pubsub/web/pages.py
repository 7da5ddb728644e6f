"""The pages that only look: overview, servers, subscriptions, plots, objects."""

from __future__ import annotations

import time
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.lookup.status import LookupStatus
from jbi_pubsub.protocol.status.delegate import DelegateOverview, ListedSubscription

from . import administration, clientpage, domainpage, explain, networkpage, nodepage
from .console import (
    LOOK_SECONDS,
    Canvas,
    Connect,
    Console,
    action,
    add_action,
    mount,
    region,
    said,
    show_rows,
    table,
    words,
)
from .federation import Observer, Server, Snapshot
from .map import chart
from .picture import per_second, picture, state_of
from .plots import SeriesPlot
from .server import WebServer

ROWS: Final = 25
"""Rows of a page of the table of subscriptions."""
PAGE_SECONDS: Final = 5.0
"""Between two looks at it: each asks the servers anew."""
ORDERS: Final = {
    "number": "as they came", "waiting": "most waiting", "lost": "most lost", "delivered": "most delivered",
    "matched": "most matched",
}  # fmt: skip


def open_console(config: Config, observer: Observer, server: WebServer, nodes: Connect | None = None) -> Console:
    """The console in a server that has not started yet; to be closed when that has stopped. Once in a process. `nodes`:
    see Console."""
    console = Console(config, observer, server.gate, nodes)
    _build(console)
    explain.build(console)
    networkpage.build(console)
    domainpage.build(console)
    if console.admin:
        administration.build(console)
        clientpage.build(console)
    if console.nodes is not None:
        nodepage.build(console)
    mount(server.app)
    return console


def _build(console: Console) -> None:
    console.page("/")(lambda: _overview(console))
    console.page("/servers")(lambda: _servers(console))
    console.page("/plots")(lambda: _plots(console))

    @console.page("/subscriptions")
    def _(server: str = "") -> None:
        _subscriptions(console, server)

    @console.page("/objects")
    def _(type: str = "") -> None:  # noqa: A002  # the query's word
        _objects(console, type)


def _overview(console: Console) -> None:
    with console.frame("Overview"):
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
            wide.show(picture(shot))
            narrow.show(picture(shot, narrow=True))

        look()
        ui.timer(LOOK_SECONDS, look)


def totals(shot: Snapshot) -> dict[str, str]:
    """Totals of all servers, in words."""
    known = _disseminators(shot)
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
    with console.frame("Servers"):
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
        with region("Leases that end next"):
            leases = table(
                (("left", "#Seconds left"), ("kind", "Holder"), ("name", "Name"), ("server", "At")),
                empty="No leases are held", rows=10,
            )  # fmt: skip
            words("p", "Renewed at 2/5 of their term: one that keeps getting shorter is of somebody who has gone.",
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
            known = _disseminators(shot)
            show_rows(types, [row for s, facts in known for row in _type_rows(s, facts)])
            ending = [row for s, facts in known for row in _lease_rows(s, facts)]
            show_rows(leases, sorted(ending, key=lambda row: float(row["left"])))
            show_rows(mail, [_mail_row(s, facts) for s, facts in known if facts.mailing or facts.mail.queued])
            show_rows(losses, [row for s in shot.servers for row in _loss_rows(s)])

        look()
        ui.timer(LOOK_SECONDS, look)


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
        inward, outward, counts = "lookups", "events", (facts.items, facts.event_registrations)
    else:
        inward, outward, counts = "published", "delivered", (facts.counts.registrations, facts.counts.subscriptions)
    return {
        **row, "up": lasted(facts.uptime), "connections": f"{facts.connections:,}",
        "regs": f"{counts[0]:,}", "subs": f"{counts[1]:,}",
        "in": per_second(server.rates.get(inward)), "out": per_second(server.rates.get(outward)),
    }  # fmt: skip


def _type_rows(server: Server, facts: DelegateOverview) -> list[dict[str, Any]]:
    return [
        {"key": f"{server.id} {t.name} {t.of}", "server": server.title,
         "name": t.name if t.of == 1 else f"{t.of:,} more types", "registrations": f"{t.registrations:,}",
         "published": f"{t.published:,}", "unmatched": f"{t.unmatched:,}", "subscriptions": f"{t.subscriptions:,}"}
        for t in facts.types
    ]  # fmt: skip


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


def _subscriptions(console: Console, server: str) -> None:
    page = {"page": 1, "rowsPerPage": ROWS, "rowsNumber": 0}
    busy = {"loading": False}
    with console.frame("Subscriptions"):
        known = {s.id: s.title for s, _ in _disseminators(console.observer.snapshot())}
        with ui.element("div").classes("jbi-form"):
            search = ui.input("Search", placeholder="id, subscriber, type, predicate, recipient").props(
                'debounce=300 maxlength=200 clearable type=search aria-label="Search subscriptions"'
            )
            at = ui.select({"": "all servers", **known}, value=server if server in known else "", label="Server")
            order = ui.select(ORDERS, value="number", label="Order")
        found = words("p", "", "jbi-note").props("role=status")
        rows = table(
            (("name", "Subscriber"), ("id", "Id"), ("server", "At"), ("wanted", "Wants"), ("matched", "#Matched"),
             ("delivered", "#Delivered"), ("waiting", "#Waiting"), ("lost", "#Lost"), ("explain", "Go to")),
            empty="No subscription", whole=("id", "server"), lines=("wanted",), rows=ROWS,
        )  # fmt: skip
        rows.props(':rows-per-page-options="[25]"')
        to = "'/explain?subscription=' + encodeURIComponent(props.row.uid)"
        links = f'<a class="jbi-link" :href="{to}">Explain</a>'
        if console.admin:
            cancel = "'/administration?cancel=' + encodeURIComponent(props.row.uid)"
            links += f' <a class="jbi-link" :href="{cancel}">Cancel</a>'
        add_action(rows, "explain", links)

        async def load() -> None:
            if busy["loading"]:
                return
            busy["loading"] = True
            try:
                titles = {s.id: s.title for s, _ in _disseminators(console.observer.snapshot())}
                at.set_options({"": "all servers", **titles}, value=at.value if at.value in titles else "")
                start = (page["page"] - 1) * ROWS
                asked = [at.value] if at.value else list(titles)
                total, shown, silent = await console.call(
                    lambda: console.observer.subscriptions(
                        asked, search=search.value or "", order=order.value, start=start, count=ROWS
                    )
                )
                page["rowsNumber"] = total
                show_rows(rows, [subscription_row(*each, titles) for each in shown])
                rows.pagination = dict(page)
                missing = f"; {len(silent)} servers do not answer" if silent else ""
                found.text = f"{total:,} subscriptions{missing}"
            finally:
                busy["loading"] = False

        async def turn(event: GenericEventArguments) -> None:
            page["page"] = max(1, int(event.args["pagination"]["page"]))
            await load()

        async def anew() -> None:
            page["page"] = 1
            await load()

        rows.on("request", turn, args=["pagination"])
        for field in (search, at, order):
            field.on_value_change(anew)
        ui.timer(0.1, load, once=True)
        ui.timer(PAGE_SECONDS, load)


def subscription_row(server: str, row: ListedSubscription, titles: dict[str, str]) -> dict[str, Any]:
    """A subscription of a server as the table shows it; what that has left out is empty."""
    wanted = (
        ("; ".join(row.template) or "every type").replace("jbi.InformationType", "type"),
        f"predicate {row.predicate}" if row.predicate else "",
        f"filter {row.filter}" if row.filter else "",
    )
    return {
        "key": f"{server} {row.uid} {row.owner}",
        "uid": row.uid,
        "name": row.name + (f" e-mail to {', '.join(row.recipients)}" if row.recipients else ""),
        "id": row.uid.rpartition("-")[2][:12],
        "server": titles.get(server, ""),
        "wanted": "\n".join(filter(None, wanted)),
        "matched": f"{row.matched:,}",
        "waiting": f"{row.waiting:,}",
        "delivered": f"{row.delivered:,}{f' + {row.mailed:,} mailed' if row.recipients else ''}",
        "lost": ", ".join(f"{cause} {count}" for cause, count in row.lost.items() if count) or "0",
    }


def _plots(console: Console) -> None:
    plots = (
        ("Objects per second", ("published", "delivered", "matched", "mailed")),
        ("Waiting", ("queued", "in_flight", "mail_waiting")),
        ("Delay in ms: from the queue to the slowest subscriber's acknowledgement", ("delay_ms",)),
        ("Lost per second, by cause", tuple(f"lost.{cause}" for cause in Cause)),
        ("Lookup services: per second", ("lookups", "changes", "events")),
    )
    with console.frame("Plots"):
        with ui.element("div").classes("jbi-form"):
            at = ui.select({"": "all servers"}, value="", label="Server")
        charts = []
        with ui.element("div").classes("jbi-plots"):
            for title, names in plots:
                charts.append((SeriesPlot(title), names))
        words("p", "What waits in a queue is not in the delay; the age of objects on arrival is on the page Objects.",
              "jbi-note")  # fmt: skip

        def look() -> None:
            shot = console.observer.snapshot()
            titles = {s.id: f"{s.kind} {s.title}" for s in shot.servers}
            if at.options != {"": "all servers", **titles}:
                at.set_options({"": "all servers", **titles}, value=at.value if at.value in titles else "")
            for made, names in charts:
                lines = [(n.removeprefix("lost."), console.observer.history(n, at.value or "")) for n in names]
                moving = [(n, points) for n, points in lines if len(names) < 5 or any(p.value for p in points)]
                made.show(moving, shot.at)

        look()
        ui.timer(LOOK_SECONDS, look)


def _objects(console: Console, wanted: str) -> None:
    state: dict[str, Any] = {"watched": None, "selected": "", "came": -1}
    with console.frame("Objects"):
        with ui.element("div").classes("jbi-form"):
            kinds = ui.select([], label="Type", with_input=False).classes("jbi-grow")
            button = action("Show its objects")
        status = words("p", "Choose a type: a subscription is made for as long as this page is open.", "jbi-note")
        status.props("role=status")
        with ui.element("div").classes("jbi-pair"):
            with region("Map"):
                where = Canvas()
            with region("Object"):
                about = words("p", "", "jbi-note")
                metadata = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Metadata"')
                payload = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Payload"')
        rows = table(
            (("time", "Published"), ("sequence", "#Number"), ("age", "#Age on arrival"), ("size", "#Payload"),
             ("where", "Where"), ("id", "Id"), ("look", "Look")), empty="No object has come yet", whole=("id",),
        )  # fmt: skip
        add_action(
            rows, "look",
            """<q-btn flat dense no-caps color="primary" label="Look" :aria-label="'Look at ' + props.row.id"
               @click="() => $parent.$emit('look', props.row.key)" />""",
        )  # fmt: skip

        def look() -> None:
            names = sorted(
                {t.name for _, known in _disseminators(console.observer.snapshot()) for t in known.types if t.of == 1}
            )
            if kinds.options != names:
                kinds.set_options(
                    names, value=kinds.value if kinds.value in names else (wanted if wanted in names else None)
                )
            if state["watched"] is None:
                return
            seen, came = console.objects.last(*state["watched"])
            if (came, state["selected"]) == state["came"]:
                return
            state["came"] = (came, state["selected"])
            status.text = f"{came:,} objects have come; the last {len(seen)} are shown"
            show_rows(rows, [
                {"key": o.object_id, "time": time.strftime("%H:%M:%S", time.localtime(o.arrived - o.age)),
                 "sequence": f"{o.sequence:,}", "age": f"{o.age * 1000:,.0f} ms", "size": f"{o.size:,} B",
                 "where": "; ".join(f"{p.north:g}, {p.east:g}" for p in o.places[:3]), "id": o.object_id[-24:]}
                for o in seen
            ])  # fmt: skip
            where.show(chart([(f"#{o.sequence}", p) for o in seen for p in o.places]))
            chosen = next((o for o in seen if o.object_id == state["selected"]), seen[0] if seen else None)
            if chosen is not None:
                about.text = f"{chosen.type}, {chosen.object_id}"
                metadata.text, payload.text = chosen.metadata, chosen.payload

        def choose(event: GenericEventArguments) -> None:
            state["selected"] = str(event.args)
            look()

        async def leave() -> None:
            watched, state["watched"] = state["watched"], None
            if watched is not None:
                await console.call(console.objects.leave, *watched)

        async def watch() -> None:
            if not kinds.value:
                status.text = "No type is chosen."
                return
            name, _, version = kinds.value.rpartition(" ")
            button.disable()
            try:
                await leave()
                await console.call(console.objects.watch, name, version)
                state["watched"], state["came"] = (name, version), -1
                if ui.context.client.is_deleted:  # the page was left meanwhile
                    await leave()
            except JbiError as exc:
                status.text = said(exc)
            finally:
                button.enable()
            look()

        rows.on("look", choose)
        button.on_click(watch)
        ui.context.client.on_delete(leave)
        where.show(chart([]))
        look()
        ui.timer(LOOK_SECONDS, look)


def _disseminators(shot: Snapshot) -> list[tuple[Server, DelegateOverview]]:
    return [(s, s.delegate) for s in shot.servers if s.delegate is not None]


def lasted(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(max(0.0, min(seconds, 1e9)))
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"
