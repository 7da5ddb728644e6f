"""`jbi top`: what all servers are doing now, in pages that refresh every second.

The observer (web/federation.py) looks; a page (pages.py) turns what it has seen into tables; they are drawn as those of
other commands. What servers say is others' words: it is drawn as text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError, LookupNotFoundError
from jbi_pubsub.core.series import WINDOW
from jbi_pubsub.protocol.status.delegate import ListedSubscription
from jbi_pubsub.web.alarms import alarms, full_queues
from jbi_pubsub.web.federation import Observer, Server, Snapshot

from .community import check_lookup
from .near import begins_so, told
from .options import JsonArguments, argument, command, flag, option, repeated
from .pages import PAGES, PageFacts, SortedCell, Subscriptions
from .screen import Screen, is_screen
from .show import (
    Table,
    cut,
    drawn,
    printable,
    show_tables,
    wrapped,
)

KEY_SECONDS: Final = 0.25
"""Delay at worst until a new look is drawn."""
LOOKS: Final = 3
"""For rates of a single look: those of the time between the first of these and the last."""
MORE: Final = "a wider terminal"


@dataclass(frozen=True, slots=True)
class Look:
    """View that the user at the terminal wants. `sort`: number of a column of the page's first table, -1 for the
    page's own order."""

    page: str
    sort: int = -1
    upside_down: bool = False
    first: int = 0
    """Line of the page at the top."""
    paused: bool = False
    helped: bool = False


def pressed(look: Look, key: str, columns: int, page_lines: int) -> Look | None:
    """View that is wanted after a key; None to quit. `columns`: of the first table, `page_lines` fit on the screen."""
    names = list(PAGES)
    at = names.index(look.page)
    match key:
        case "q" | "Q":
            return None
        case "escape":
            return replace(look, helped=False) if look.helped else None
        case "?" | "h":
            return replace(look, helped=not look.helped)
        case "right" | "left":
            step = 1 if key == "right" else -1
            return Look(names[(at + step) % len(names)], paused=look.paused)
        case "s":
            return replace(look, sort=-1 if look.sort + 1 >= columns else look.sort + 1)
        case "r":
            return replace(look, upside_down=not look.upside_down)
        case " ":
            return replace(look, paused=not look.paused)
        case "up" | "k" | "down" | "j" | "page up" | "page down":
            lines = page_lines if "page" in key else 1
            return replace(look, first=max(0, look.first + (lines if key in ("down", "j", "page down") else -lines)))
        case _ if key.isdecimal() and key.isascii() and 0 < int(key) <= len(names):
            return Look(names[int(key) - 1], paused=look.paused)
    return look


_HELP: Final = (
    "1 2 3 ...        a page by its number",
    "left right Tab   the page before, the next one",
    "up down j k      a line; PgUp PgDn a screen",
    "s                sort by the next column",
    "r                turn the order",
    "space            hold still, go on",
    "? h              this help",
    "q Esc Ctrl-C     end",
)


def page_of(seen: PageFacts, look: Look) -> list[Table]:
    """The tables of the page, in the order wanted."""
    first, *others = PAGES[look.page].tables(seen) or [Table((), ())]
    if not first.columns:
        return []
    rows = list(first.rows)
    if look.sort >= 0:
        numbers = any(isinstance(row[look.sort], SortedCell) for row in rows)
        rows.sort(key=lambda row: row[look.sort].value if numbers else str(row[look.sort]), reverse=numbers)  # type: ignore[attr-defined]  # a column's cells are of one kind
    if look.upside_down:
        rows.reverse()
    return [first._replace(rows=rows), *others]


def lines_of(seen: PageFacts, look: Look, width: int, height: int, clock: str) -> list[str]:
    """The screen: a bar with what is shown, the page from the line wanted on, a bar with the keys."""
    made = page_of(seen, look)
    if look.helped:
        pages = (f"{number}  {name}: {page.about}" for number, (name, page) in enumerate(PAGES.items(), 1))
        body = [cut(line, width) for line in (*_HELP, "", *pages)]
    elif not made:
        body = wrapped(printable(seen.shot.problem or "nothing to show yet"), width)
    else:
        body = "\n\n".join(drawn(table, width=width, more=MORE) for table in made).split("\n")
    room = max(1, height - 2)
    first = min(look.first, max(0, len(body) - room))
    heads = made[0].columns if made else ()
    parts = [f" jbi top: {look.page}", clock]
    parts += ["held still"] if look.paused else []
    parts += [f"by {heads[look.sort].head}"] if 0 <= look.sort < len(heads) else []
    parts += [f"lines {first + 1}-{min(len(body), first + room)} of {len(body)}"] if len(body) > room else []
    parts += [f"{seen.shot.unseen} servers more"] if seen.shot.unseen else []
    shown = body[first : first + room]
    keys = " ".join(f"{number} {name}" for number, name in enumerate(PAGES, 1))
    return ["  ".join(parts), *shown, *[""] * (room - len(shown)), f" q quit  ? help  s sort  {keys}"]


class _Top(JsonArguments):
    page: str = argument(metavar="[PAGE]", default="overview", shell_complete=begins_so(lambda: PAGES))
    addresses: tuple[str, ...] = repeated("Only this server; repeatable.", "--server", metavar="HOST:PORT")
    every: float = option(
        "Seconds between two refreshes; default 1.", type=click.FloatRange(0.1, 60.0), default=1.0, metavar="SECONDS"
    )
    sort: str = option("Order of the page's first table.", metavar="COLUMN", default="")
    once: bool = flag("Print once, as lines.")


@command(None, _Top)
def top(given: _Top) -> int:
    """Show all servers live, in pages: overview, subscriptions, mail, leases, parties, links and bins, types, networks
    of nodes, federations of simulations.

    Keys: 1 to 9, arrows and Tab change the page, s sorts, ? is help, q ends. Piped, or with --once, it prints once as
    lines, after two seconds. Rates are those of the last 10 s.

    \b
    jbi top
    jbi top subscriptions --sort waiting
    jbi top mail --once
    jbi top types                       # deliveries of each type, with [qos] mode = "on"
    jbi top --json                      # everything once, for programs
    """
    if given.page not in PAGES:
        raise ConfigurationError(told("page", given.page, PAGES))
    config = given.settings.load()
    is_once = given.as_json or given.once or not is_screen()
    if is_once and not given.addresses:
        check_lookup(config)
    observer = Observer(config, addresses=given.addresses, every=given.every)
    known = Subscriptions(observer)
    observer.start()
    try:
        if is_once:
            seen = _first_look(observer, known, given.page, config.lookup.timeout)
            full = full_queues(observer) if given.as_json else ()
            look = Look(given.page, _sort_number(seen, given.page, given.sort))
            given.show(facts_of(seen, given.page, full), lambda: show_tables(page_of(seen, look), more=MORE))
            if given.page == "subscriptions" and len(known.rows) < known.total:
                those = f"{len(known.rows):,} of {known.total:,} subscriptions, those with the most deliveries"
                click.echo(f"{those}; `jbi status --subscriptions` lists all", err=True)
            silent = [each for each in (*seen.shot.servers, *seen.shot.rtis) if each.error]
            for each in silent:
                click.echo(printable(f"{each.title}: {each.error}"), err=True)
            return 1 if silent else 0
        _watch(observer, known, given.page, given.sort, given.every)
    finally:
        known.stop()
        observer.stop()
    return 0


def _sort_number(seen: PageFacts, page: str, sort: str) -> int:
    """The column of that head. Raises ConfigurationError."""
    made = PAGES[page].tables(seen)
    heads = [column.head for column in made[0].columns] if made else []
    if not sort or not heads:
        return -1
    if sort not in heads:
        raise ConfigurationError(f"--sort: {told('column', sort, heads)}")
    return heads.index(sort)


def _first_look(observer: Observer, known: Subscriptions, page: str, timeout: float) -> PageFacts:
    """When all that answer have been seen LOOKS times. Raises LookupNotFoundError."""
    deadline = time.monotonic() + timeout
    shot = observer.snapshot()
    looks = 0
    while time.monotonic() < deadline:
        before, shot = shot.number, observer.wait(shot.number, 0.5)
        if page == "subscriptions":
            known.look(shot, time.monotonic(), 0.0)
        asked = (*shot.servers, *shot.rtis)
        looks += shot.number > before and bool(asked) and all(s.error or s.facts for s in asked)
        if looks >= LOOKS and (page != "subscriptions" or known.looks >= LOOKS):
            break
    if not shot.servers and not shot.rtis:
        raise LookupNotFoundError(shot.problem, hint="Start one with `jbi lookup`, or name its address with --locator")
    return _seen(observer, shot, known)


def _seen(observer: Observer, shot: Snapshot, known: Subscriptions) -> PageFacts:
    def history(name: str, server: str) -> Sequence[float]:
        return [point.value for point in observer.history(name, server) if point.at > shot.at - WINDOW]

    return PageFacts(shot, history, known)


def _watch(observer: Observer, known: Subscriptions, page: str, sort: str, every: float) -> None:
    """Draw each look, and after each key, until somebody has had enough."""
    look: Look | None = Look(page)
    with Screen(keys=True) as screen:
        drawn_for: object = None
        seen = _seen(observer, observer.snapshot(), known)
        while look is not None:
            shot = observer.snapshot()
            if not look.paused:
                if look.page == "subscriptions":
                    known.look(shot, time.monotonic(), every)
                seen = _seen(observer, shot, known)
            if sort and seen.shot.servers:
                look, sort = replace(look, sort=_sort_number(seen, page, sort)), ""
            size = screen.width, screen.height
            if drawn_for != (wanted := (seen.shot.number, known.looks, look, size)):
                lines = lines_of(seen, look, *size, time.strftime("%H:%M:%S"))
                screen.show(lines, bars=(0, len(lines) - 1))
                drawn_for = wanted
            key = screen.wait(KEY_SECONDS)
            if key:
                made = page_of(seen, look)
                look = pressed(look, key, len(made[0].columns) if made else 0, size[1] - 2)
            elif screen.was_away:
                drawn_for = None


def facts_of(seen: PageFacts, page: str, full: Sequence[tuple[str, ListedSubscription]]) -> dict[str, Any]:
    """All that was seen, for programs; `full`: subscriptions whose queues are full, by the titles of their servers."""
    shot = seen.shot
    told_: dict[str, Any] = {
        "page": page,
        "problem": shot.problem,
        "unseen": shot.unseen,
        "alarms": [msgspec.to_builtins(each) for each in alarms(shot, full)],
        "servers": [_server_facts(s, seen) for s in (*shot.servers, *shot.rtis)],
        "edges": [
            {name: getattr(e, name) for name in ("kind", "server", "name", "of", "count", "rate", "waiting", "lost")}
            for e in shot.edges
        ],
    }
    if page == "subscriptions" and seen.subscriptions is not None:
        rows = seen.subscriptions.rows
        told_["subscriptions"] = [_subscription_facts(*each) for each in rows]
        told_["subscriptions_in_all"] = seen.subscriptions.total
    return told_


def _subscription_facts(server: str, row: ListedSubscription, rate: float | None) -> dict[str, Any]:
    names = ("uid", "name", "predicate", "matched", "delivered", "mailed", "waiting", "lost")
    qos = msgspec.to_builtins(row.qos) if row.qos is not msgspec.UNSET else None
    return {"server": server, **{name: getattr(row, name) for name in names}, "qos": qos, "rate": rate}


def _server_facts(server: Server, seen: PageFacts) -> Mapping[str, Any]:
    return {
        "id": server.id,
        "kind": server.kind,
        "title": server.title,
        "error": server.error,
        "rates": server.rates,
        "last_10_s": {name: list(seen.history(name, server.id)) for name in server.rates},
        "status": server.told,
    }
