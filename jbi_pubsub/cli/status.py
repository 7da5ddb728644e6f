"""`jbi status`: what lookup services, delegates and peer publishers are doing, once or all the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import repeat
from typing import Any, Final

import click
import msgspec
from rich.console import Group
from rich.live import Live

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.proxy import STATUS
from jbi_pubsub.pad.subscription import PAD_TYPE, PUBLISHER_TYPE

from .settings import Settings, console, json_option, json_text, pass_settings, show_json, show_rows, table

Facts = dict[str, Any]
"""The status of one server, as it tells it, with what is computed here."""

DISSEMINATORS: Final = frozenset({PAD_TYPE, PUBLISHER_TYPE})
"""What a delegate or peer publisher is registered as; services of other kinds have nothing to say of our matters."""
ANSWER_SECONDS: Final = 3.0
"""For one server to answer: the others are not to wait for a dead one much longer than people do."""
ROWS_MOST: Final = 50
"""Subscriptions shown of one server to people; JSON has all that the server tells."""

_LOOKUPS: Final = (
    "lookup service", "address", "groups", "up s", "items", "listeners", "leases", "masks", "lookups", "changes",
    "events", "events lost", "disk",
)  # fmt: skip
_SERVERS: Final = (
    "kind", "name", "address", "up s", "registrations", "subscriptions", "published", "unmatched", "matched",
    "suppressed", "delivered", "queued", "lost", "leases", "mails",
)  # fmt: skip
_SUBSCRIPTIONS: Final = (
    "subscription", "predicate", "filter", "policy", "matched", "suppressed", "delivered", "queued", "lost",
)  # fmt: skip
_COUNTERS: Final = ("published", "delivered", "mailed", "lookups", "changes", "events")
"""What rates are told of."""


@click.command()
@click.argument("addresses", metavar="[HOST:PORT]...", nargs=-1)
@click.option("--watch", is_flag=True, help="Go on, with rates; every second.")
@click.option("--every", type=click.FloatRange(0.1, 3600.0), default=1.0, metavar="SECONDS", help="With --watch.")
@click.option("--count", type=click.IntRange(1), help="With --watch: end after so many times.")
@click.option("--subscriptions", is_flag=True, help="Also the subscriptions, those with most in their queues first.")
@json_option
@pass_settings
def status(
    settings: Settings,
    addresses: tuple[str, ...],
    watch: bool,
    every: float,
    count: int | None,
    subscriptions: bool,
    as_json: bool,
) -> None:
    """Show what lookup services, delegates and peer publishers are doing.

    \b
    jbi status                                  everything that is registered
    jbi status 127.0.0.1:4160                   one server
    jbi status --watch                          with rates: objects and events per second
    jbi status --subscriptions 127.0.0.1:40123  queues and losses of each subscription
    jbi status --watch --json --every 10        a line every ten seconds, for scripts
    """
    servers = Servers(settings.load(), addresses)
    try:
        if watch:
            _watch(servers, every, count, subscriptions=subscriptions, as_json=as_json)
        elif as_json:
            show_json(servers.ask())
        else:
            for columns, rows, title in tables(servers.ask(), subscriptions=subscriptions):
                show_rows(columns, rows, title=title)
    finally:
        servers.close()


class Servers:
    """The servers to be asked, over connections that stay open; those that are registered, or the given ones."""

    def __init__(self, config: Config, addresses: Sequence[str]) -> None:
        self._config = config
        self._fixed = {address: ServiceRef("", STATUS, (address,)) for address in addresses}
        self._community = None if addresses else JoinManager(config, name="jbi")
        self._clients: dict[str, ControlClient] = {}
        self._before: dict[str, tuple[float, Facts]] = {}

    def ask(self) -> list[Facts]:
        """The status of each, with `rates` from the second time on. One that does not answer is of kind `unreachable`.

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
        items = self._community.lookup(ServiceTemplate(), EVERYTHING)
        refs = {session.registrar_id: session.ref for session in self._community.sessions()}
        ours = [item for item in items if DISSEMINATORS.intersection(item.types)]
        return refs | {item.proxy.service_id: item.proxy for item in ours}

    def _ask(self, key: str, ref: ServiceRef) -> Facts:
        try:
            facts: Facts = self._client(key, ref).call("status", Facts)
        except JbiError as exc:
            if self._community is None:
                raise
            self._before.pop(key, None)
            return {"kind": "unreachable", "name": "", "address": ", ".join(ref.endpoints), "error": str(exc)}
        before, self._before[key] = self._before.get(key), (time.monotonic(), facts)
        return facts if before is None else {**facts, "rates": _rates(*before, *self._before[key])}

    def _client(self, key: str, ref: ServiceRef) -> ControlClient:
        client = self._clients.get(key)
        if client is None or client.ref.endpoints != ref.endpoints:
            if client is not None:
                client.close()
            own = msgspec.structs.replace(ref, exported=STATUS, methods=())
            client = self._clients[key] = ControlClient(own, self._config.security(), timeout=ANSWER_SECONDS)
        return client


def _rates(then: float, before: Facts, now: float, after: Facts) -> dict[str, float]:
    """Per second; what was counted anew since, after a restart, has none."""
    took = max(now - then, 1e-3)
    return {
        name: round((after[name] - before[name]) / took, 1)
        for name in _COUNTERS
        if name in after and name in before and after[name] >= before[name]
    }


def tables(
    found: Sequence[Facts], *, subscriptions: bool = False
) -> Iterator[tuple[Sequence[str], list[Sequence[object]], str]]:
    """What people are shown: columns, rows and title of each table."""
    lookups = [facts for facts in found if facts["kind"] == "lookup"]
    servers = [facts for facts in found if facts["kind"] != "lookup"]
    if lookups:
        yield _LOOKUPS, [_lookup_row(facts) for facts in lookups], ""
    if servers or not found:
        yield _SERVERS, [_server_row(facts) for facts in servers], ""
    if subscriptions:
        for facts in servers:
            if facts["kind"] != "unreachable":
                yield _subscription_table(facts)


def _lookup_row(facts: Facts) -> Sequence[object]:
    store = facts["store"]
    disk = "-" if store is None else store["fault"] or "ok"
    return (
        facts["id"][:8], facts["address"], ", ".join(group or "(public)" for group in facts["groups"]),
        facts["uptime"], facts["items"], facts["event_registrations"], facts["items"] + facts["event_registrations"],
        facts["item_index"]["tables"] + facts["template_index"]["tables"], _counted(facts, "lookups"),
        _counted(facts, "changes"), _counted(facts, "events"), facts["events_lost"], disk,
    )  # fmt: skip


def _server_row(facts: Facts) -> Sequence[object]:
    if facts["kind"] == "unreachable":
        return "unreachable", "", facts["address"], *[""] * (len(_SERVERS) - 3)
    name = f"{facts['name']}, {facts['location']}" if facts["kind"] == "delegate" else ""
    mail = facts["mail"]
    return (
        facts["kind"], name, facts["address"], facts["uptime"], facts["counts"]["registrations"],
        facts["counts"]["subscriptions"], _counted(facts, "published"), _counted(facts, "unmatched"),
        _counted(facts, "matched"), _counted(facts, "suppressed"), _counted(facts, "delivered"),
        _waiting(facts["queued"], facts["in_flight"]), losses(facts["lost"]), facts["leases"],
        mail["fault"] or mail["queued"],
    )  # fmt: skip


def _subscription_table(facts: Facts) -> tuple[Sequence[str], list[Sequence[object]], str]:
    queued = {uid: waiting for session in facts["sessions"] for uid, waiting in session["queued"].items()}
    known = sorted(
        facts["subscriptions"], key=lambda s: queued.get(s["uid"], 0) + sum(s["lost"].values()), reverse=True
    )
    rows: list[Sequence[object]] = [
        (
            s["uid"].removeprefix("subscription-")[:12], s["predicate"], s["filter"], f"{s['policy']} {s['bound']}",
            s["matched"], s["suppressed"], s["delivered"], queued.get(s["uid"], 0), losses(s["lost"]),
        )
        for s in known[:ROWS_MOST]
    ]  # fmt: skip
    of = facts["counts"]["subscriptions"]
    shown = "" if len(rows) == of else f" (the first {len(rows)} of {of})"
    return _SUBSCRIPTIONS, rows, f"subscriptions at {facts['address']}{shown}"


def _counted(facts: Facts, name: str) -> str:
    rate = facts.get("rates", {}).get(name)
    return f"{facts[name]:,}" if rate is None else f"{facts[name]:,} ({rate:,}/s)"


def _waiting(queued: int, in_flight: int) -> object:
    return f"{queued:,} + {in_flight:,} sent" if in_flight else queued


def losses(lost: dict[str, int]) -> str:
    """Losses by cause, for people."""
    return ", ".join(f"{cause} {count:,}" for cause, count in sorted(lost.items()) if count) or "0"


def _watch(servers: Servers, every: float, count: int | None, *, subscriptions: bool, as_json: bool) -> None:
    """A screen that refreshes in a terminal; else one table or one JSON line after the other."""
    screen = Live(console=console(), auto_refresh=False) if sys.stdout.isatty() and not as_json else None
    with screen or nullcontext():
        for _ in repeat(None) if count is None else repeat(None, count):
            began = time.monotonic()
            found = servers.ask()
            if as_json:
                click.echo(json_text({"time": round(time.time(), 3), "servers": found}))
            elif screen is not None:
                made = (table(c, rows, title=title) for c, rows, title in tables(found, subscriptions=subscriptions))
                screen.update(Group(*made), refresh=True)
            else:
                click.echo(time.strftime("%H:%M:%S"))
                for columns, rows, title in tables(found, subscriptions=subscriptions):
                    show_rows(columns, rows, title=title)
            sys.stdout.flush()
            time.sleep(max(0.0, began + every - time.monotonic()))
