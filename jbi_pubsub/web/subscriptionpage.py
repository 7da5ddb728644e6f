"""The pages of subscriptions: the list, durable ones by name, and one with its queue, losses and curve."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from nicegui import ui
from nicegui.events import GenericEventArguments

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.series import Counter, Gauge
from jbi_pubsub.core.values import converted
from jbi_pubsub.protocol.status.delegate import ListedSubscription

from .console import SEARCH_MOST, Console, add_action, later, offer, region, said, search_field, show_rows, table, words
from .explain import ExplainForm, readable
from .federation import HISTORY_SECONDS, disseminators, harmless
from .plots import SeriesPlot
from .remedies import remedy

ROWS: Final = 25
"""Rows of a page of the table of subscriptions."""
PAGE_SECONDS: Final = 5.0
"""Between two looks at it: each asks the servers again."""
CURVE_SECONDS: Final = 2.0
"""Between two looks at one subscription."""
CUT: Final = 160
"""Characters of a predicate or filter in the list; the page of the subscription has all."""
WHOLE: Final = 20_000
"""Characters of each text on the page of a subscription."""
SERVERS_MOST: Final = 50
"""Servers that are asked for durable subscriptions."""
ORDERS: Final = {
    "number": "as they came", "waiting": "most waiting", "lost": "most lost", "delivered": "most delivered",
    "matched": "most matched",
}  # fmt: skip
LINES: Final = ("matched", "delivered", "lost")
"""Counters of a subscription of which there is a curve."""


def build(console: Console) -> None:
    """Register the pages."""

    @console.page("/subscriptions")
    def _(server: str = "", order: str = "number") -> None:
        _ListPage(console, server, order if order in ORDERS else "number")

    @console.page("/subscription")
    def _(uid: str = "") -> None:
        _SubscriptionPage(console, uid[:SEARCH_MOST])


class _ListPage:
    """One tab's. The servers search and sort; a page of the table is asked for at a time."""

    def __init__(self, console: Console, server: str, order: str) -> None:
        self._console = console
        self._page = {"page": 1, "rowsPerPage": ROWS, "rowsNumber": 0}
        self._is_busy = False
        known = {s.id: s.title for s, _ in disseminators(console.observer.snapshot())}
        self._search = search_field()
        with ui.element("div").classes("jbi-form"):
            self._at = ui.select({"": "all servers", **known}, value=server if server in known else "", label="Server")
            self._order = ui.select(ORDERS, value=order, label="Order")
        self._found = words("p", "Asking the servers.", "jbi-note").props("role=status")
        with later() as self._parts:
            self._rows = rows = table(
                (("name", "Subscriber"), ("id", "Id"), ("server", "At"), ("wanted", "Wants"), ("matched", "#Matched"),
                 ("delivered", "#Delivered"), ("waiting", "#Waiting"), ("lost", "#Lost"), ("go", "Go to")),
                empty="No subscription", whole=("id", "server"), lines=("wanted",), rows=ROWS, searched=False,
            )  # fmt: skip
            rows.props(':rows-per-page-options="[25]"')
            links = _link("Look", "subscription?uid=")
            if console.admin:
                links += f" {_link('Cancel', 'administration?cancel=')}"
            add_action(rows, "go", links)
            with region("Durable subscriptions"):
                self._durables = table(
                    (("name", "Name"), ("owner", "Owner"), ("server", "Archive at"), ("open", "Open"),
                     ("position", "#Has"), ("end", "#Of"), ("unacknowledged", "#Unacknowledged"), ("ends", "#Ends in")),
                    empty="No archive keeps one", rows=ROWS,
                )  # fmt: skip
                self._troubles = words("p", "", "jbi-note").props("role=status")
        rows.on("request", self._turn, args=["pagination"])
        for field in (self._search, self._at, self._order):
            field.on_value_change(self._again)
        for look in (self._load, self._load_durables):
            ui.timer(PAGE_SECONDS, look)

    async def _load(self) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            observer, at, page = self._console.observer, self._at, self._page
            titles = {s.id: s.title for s, _ in disseminators(observer.snapshot())}
            offer(at, {"": "all servers", **titles}, "")
            asked = [at.value] if at.value else list(titles)
            search, order, start = self._search.value or "", self._order.value, (page["page"] - 1) * ROWS
            total, shown, silent = await self._console.call(
                lambda: observer.subscriptions(asked, search=search, order=order, start=start, count=ROWS)
            )
            page["rowsNumber"] = total
            show_rows(self._rows, [subscription_row(*each, titles) for each in shown])
            self._rows.pagination = dict(page)
            missing = f"; {len(silent)} servers do not answer" if silent else ""
            self._found.text = f"{total:,} subscriptions{missing}"
            self._parts.set_visibility(True)
        finally:
            self._is_busy = False

    async def _load_durables(self) -> None:
        rows, self._troubles.text = await self._console.call(_durables, self._console)
        show_rows(self._durables, rows)

    async def _turn(self, event: GenericEventArguments) -> None:
        self._page["page"] = max(1, int(event.args["pagination"]["page"]))
        await self._load()

    async def _again(self) -> None:
        self._page["page"] = 1
        await self._load()


class _SubscriptionPage:
    """One tab's page of one subscription, at all servers that have it."""

    def __init__(self, console: Console, uid: str) -> None:
        self._console, self._uid = console, uid
        self._counters = {name: Counter(HISTORY_SECONDS) for name in LINES}
        self._waiting = Gauge(HISTORY_SECONDS)
        self._name = words("p", uid, "jbi-name")
        self._problem = words("p", "", "jbi-problem").props("role=status")
        with later() as self._parts:
            with region("Wants"):
                self._template = words("p", "", "jbi-name")
                self._predicate = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Predicate"')
                self._filter = words("pre", "", "jbi-code").props('tabindex=0 aria-label="Payload filter"')
            with region("At each server"):
                self._servers = table(
                    (("server", "Server"), ("matched", "#Matched"), ("delivered", "#Delivered"),
                     ("waiting", "#Waiting"), ("bound", "#Queue holds"), ("policy", "When it is full"),
                     ("qos", "Quality of service"), ("failed", "Failed evaluations")),
                    empty="No server has it", searched=False,
                )  # fmt: skip
            with region("Losses"):
                self._losses = table(
                    (("cause", "Cause"), ("count", "#Objects"), ("do", "What to do")), empty="Nothing was lost",
                    searched=False,
                )  # fmt: skip
            with ui.element("div").classes("jbi-plots"):
                self._rates, self._queue = SeriesPlot("Objects per second"), SeriesPlot("Waiting")
            with region("Explain"):
                words("p", "Paste metadata of an object to see whether this subscription gets it, and why.", "jbi-note")
                ExplainForm(console, lambda: uid)
            if console.admin:
                ui.link("Cancel this subscription", f"/administration?cancel={quote(uid, safe='')}")
        ui.timer(CURVE_SECONDS, self._look)

    async def _look(self) -> None:
        observer, uid = self._console.observer, self._uid
        titles = {s.id: s.title for s, _ in disseminators(observer.snapshot())}
        _, found, silent = await self._console.call(
            lambda: observer.subscriptions(list(titles), search=uid, count=ROWS, characters=WHOLE)
        )
        rows = [(titles[at], row) for at, row in found if row.uid == uid]
        silence = f"{len(silent)} servers do not answer" if silent else ""
        self._problem.text = silence if rows else "No server has this subscription now"
        if rows:
            self._parts.set_visibility(True)
            self._show(rows)

    def _show(self, rows: list[tuple[str, ListedSubscription]]) -> None:
        now, one, lost = time.monotonic(), rows[0][1], dict[str, int]()
        for _, row in rows:
            for cause, count in row.lost.items():
                lost[cause] = lost.get(cause, 0) + count
        self._name.text = f"{_called(one)}: {self._uid}"
        self._template.text = "; ".join(map(readable, one.template)) or "every type"
        self._predicate.text, self._filter.text = one.predicate or "no predicate", one.filter
        show_rows(self._servers, [
            {"key": at, "server": at, "matched": f"{row.matched:,}", "delivered": f"{row.delivered + row.mailed:,}",
             "waiting": f"{row.waiting:,}", "bound": f"{row.bound:,}", "policy": row.policy.replace("_", " "),
             "qos": _quality(row), "failed": f"{row.failed:,} {row.last_failure}" if row.failed else ""}
            for at, row in rows
        ])  # fmt: skip
        show_rows(self._losses, [
            {"key": cause, "cause": cause, "count": f"{count:,}", "do": remedy(cause)}
            for cause, count in sorted(lost.items()) if count
        ])  # fmt: skip
        totals = (sum(r.matched for _, r in rows), sum(r.delivered + r.mailed for _, r in rows), sum(lost.values()))
        for name, count in zip(LINES, totals, strict=True):
            self._counters[name].add(now, count)
        self._waiting.add(now, sum(row.waiting for _, row in rows))
        self._rates.show([(name, counter.rates.points(now)) for name, counter in self._counters.items()], now)
        self._queue.show([("in the queue", self._waiting.points(now))], now)


def subscription_row(server: str, row: ListedSubscription, titles: dict[str, str]) -> dict[str, Any]:
    """A subscription of a server as the table shows it; what that has left out is empty."""
    wanted = (
        "; ".join(map(readable, row.template)) or "every type",
        f"predicate {brief(row.predicate)}" if row.predicate else "",
        f"filter {brief(row.filter)}" if row.filter else "",
    )
    return {
        "key": f"{server} {row.uid} {row.owner}",
        "uid": row.uid,
        "name": _called(row),
        "id": row.uid.rpartition("-")[2][:12],
        "server": titles.get(server, ""),
        "wanted": "\n".join(filter(None, wanted)),
        "matched": f"{row.matched:,}",
        "waiting": f"{row.waiting:,}",
        "delivered": f"{row.delivered:,}{f' + {row.mailed:,} mailed' if row.recipients else ''}",
        "lost": ", ".join(f"{cause} {count}" for cause, count in row.lost.items() if count) or "0",
    }


def brief(text: str) -> str:
    """The beginning of a predicate, cut between two words where there are some."""
    if len(text) <= CUT:
        return text
    head = text[: CUT - 1]
    return f"{head[:place] if (place := head.rfind(' ')) > CUT // 2 else head}…"


def _called(row: ListedSubscription) -> str:
    return row.name + (f" e-mail to {', '.join(row.recipients)}" if row.recipients else "")


def _quality(row: ListedSubscription) -> str:
    """The contract in force, in words; "" without one."""
    if row.qos is UNSET:
        return ""
    of = (
        f"importance {row.qos.importance}" if row.qos.importance else "",
        f"deadline {row.qos.deadline:g} s" if row.qos.deadline else "",
        f"at most {row.qos.max_rate}" if row.qos.max_rate else "",
        f"newest per {row.qos.replace}" if row.qos.replace else "",
    )
    return ", ".join(filter(None, of))


class DurableFacts(msgspec.Struct, frozen=True):
    """A durable subscription as an archive tells it: it has what it matches up to `position`; `ends` in seconds, unless
    it is opened before."""

    name: str = ""
    owner: str = ""
    open: bool = False
    position: int = 0
    end: int = 0
    unacknowledged: int = 0
    ends: float = 0.0


def _durables(console: Console) -> tuple[list[dict[str, Any]], str]:
    """Durable subscriptions of all archives, as rows, and why there are none of some. Blocks until they answer."""
    rows, troubles = list[dict[str, Any]](), list[str]()
    having = [s for s, d in disseminators(console.observer.snapshot()) if d.archive is not UNSET and not s.error]
    for server in having[:SERVERS_MOST]:
        try:
            with console.subscriptions(server) as proxy:
                told = converted(harmless(proxy.durable_subscriptions()), list[DurableFacts])
        except JbiError as exc:
            troubles.append(f"{server.title}: {said(exc)}")
            continue
        except msgspec.ValidationError as exc:
            troubles.append(f"{server.title}: {str(exc)[:200]}")
            continue
        rows += [
            {"key": f"{server.id} {each.owner} {each.name}", "server": server.title, "name": each.name,
             "owner": each.owner, "open": "yes" if each.open else "no",
             "position": f"{each.position:,}", "end": f"{each.end:,}",
             "unacknowledged": f"{each.unacknowledged:,}", "ends": "" if each.open else f"{each.ends:,.0f}s"}
            for each in told
        ]  # fmt: skip
    return rows, "; ".join(troubles)


def _link(text: str, to: str) -> str:
    """Markup of a link that ends with the id of the row's subscription."""
    return f"""<a class="jbi-link" :href="'/{to}' + encodeURIComponent(props.row.uid)">{text}</a>"""
