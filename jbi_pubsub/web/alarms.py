"""Alarms of a federation: what is wrong now, where, and what to do. Pure: a look in, rows out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import msgspec

from jbi_pubsub.protocol.status.delegate import DelegateOverview, ListedSubscription

from .federation import Observer, Server, Snapshot
from .picture import counted, per_second
from .remedies import remedy

FULL = 0.8
"""Part of its bound from which a queue is reported as full."""
ASKED_MOST = 8
"""Servers asked for full queues, those with most objects waiting."""
LISTED = 5
"""Subscriptions asked of each."""


class Alarm(msgspec.Struct, frozen=True):
    """A thing that is wrong: `what`, `where` (title of a server or subscriber), and what to `do`. `is_now`: it goes on
    now; other alarms are of the past. `href` is the page of the console about it."""

    what: str
    where: str
    do: str
    is_now: bool = True
    href: str = "/servers"


def alarms(shot: Snapshot, full: Sequence[tuple[str, ListedSubscription]] = ()) -> list[Alarm]:
    """All alarms of a look, those that go on now first. `full`: subscriptions whose queues are full, by the titles of
    their servers."""
    found = list[Alarm]()
    if shot.problem:
        found.append(Alarm(shot.problem, "lookup services", "Start `jbi lookup`, or name one by --locator."))
    for server in shot.servers:
        found += _of_server(server)
        if server.delegate is not None:
            found += _of_delegate(server, server.delegate)
    for title, row in full:
        found.append(
            Alarm(
                f"A queue is full: {row.waiting:,} of {row.bound:,} objects",
                f"{row.name or 'no name'} at {title}", remedy("queue_overflow"),
                href=f"/subscription?uid={quote(row.uid, safe='')}",
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: not each.is_now)


def full_queues(observer: Observer) -> list[tuple[str, ListedSubscription]]:
    """Subscriptions whose queue is full. Blocks for as long as their servers take to answer."""
    waiting = [s for s in observer.snapshot().servers if s.delegate is not None and s.delegate.queued and not s.error]
    waiting.sort(key=lambda s: -s.delegate.queued if s.delegate is not None else 0)
    found = []
    for server in waiting[:ASKED_MOST]:
        _, rows, _ = observer.subscriptions([server.id], order="waiting", count=LISTED)
        found += [(server.title, row) for _, row in rows if row.bound and row.waiting >= FULL * row.bound]
    return found


def _of_server(server: Server) -> Iterator[Alarm]:
    title = f"{server.kind} {server.title}"
    if server.error:
        yield Alarm(
            f"Does not answer: {server.error}", title,
            "Check that its process runs and that this host reaches it. It disappears here when its lease has ended.",
        )  # fmt: skip
    if server.facts is None:
        return
    for step, count in sorted(server.facts.faults.items()):
        yield Alarm(f"A step failed {counted(count, 'time')}: {step}", title, "The exception is in its log.")
    if server.lookup is not None:
        if server.lookup.store is not None and server.lookup.store.fault:
            yield Alarm(f"It can't store its items: {server.lookup.store.fault}", title, "Free space on its disk.")
        if server.lookup.events_lost:
            is_now = server.rates.get("events_lost", 0.0) > 0
            lost = counted(server.lookup.events_lost, "event")
            yield Alarm(f"{lost} lost", title, "None: clients look again.", is_now)


def _of_delegate(server: Server, facts: DelegateOverview) -> Iterator[Alarm]:
    title = f"{server.kind} {server.title}"
    href = f"/subscriptions?server={quote(server.id, safe='')}&order=lost"
    for cause, count in sorted(facts.lost.items(), key=lambda each: -each[1]):
        if count:
            rate = server.rates.get(f"lost.{cause}", 0.0)
            now = f", {per_second(rate)} now" if rate else ""
            yield Alarm(f"{counted(count, 'object')} lost{now}: {cause}", title, remedy(cause), rate > 0, href)
    if facts.mail.fault:
        yield Alarm(f"It can't store its mails: {facts.mail.fault}", title, "Free space on its disk.")
    if facts.mail.away and facts.mail.queued:
        waiting = counted(facts.mail.queued, "mail")
        yield Alarm(f"{waiting} waiting: {facts.mail.away}", title, f"Start the mail server {facts.mail.server}.")
    if facts.draining:
        yield Alarm("Draining: it takes no publishers", title, "Stop it, or let it resume (Administration).")
