"""`jbi subscriptions`: e-mail subscriptions and durable ones, at every delegate."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import click
import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, UnknownUidError, WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, SubscriptionsProxy
from jbi_pubsub.subscriber import SubscriberAdapter

from .community import by_address, listed
from .options import Arguments, JsonArguments, TableArguments, argument, command, flag, group, option
from .settings import looking
from .show import Column, Table, counted, lasted, printable, show_tables
from .status import DISSEMINATORS, losses

T = TypeVar("T")


@group(TableArguments)
def subscriptions(given: TableArguments) -> None:
    """List e-mail and durable subscriptions; renew or cancel an e-mail one, reset or end a durable one.

    `suspended` lists recipients that get no mail until the subscription is made again: those that the mail server has
    refused permanently several times, with its last answer, and those who have unsubscribed. `mailed` and `lost` count
    objects times recipients. A durable subscription `has` what it matches up to that position of its archive; `of` is
    the archive's last position. `unacknowledged` objects are with its application, or on their way, while it is open.
    It ends after the time in `ends` unless it is opened before.

    \b
    jbi subscriptions
    jbi subscriptions renew 3f0c2a9be41d
    jbi subscriptions cancel 3f0c2a9be41d
    """
    view = given.view((_TERMS, _ACCOUNTS, _DURABLES))
    config = given.settings.load()
    rows: dict[str, dict[str, Any]] = {}
    answers = list(asked(_delegates(config), lambda proxy: (proxy.mail_subscriptions(), proxy.durable_subscriptions())))
    for _, (mailed, _) in answers:
        for known in mailed:
            row = rows.setdefault(known["uid"], {**known, "delegates": 0, "mailed": 0, "mail_waiting": 0, "lost": {}})
            row["delegates"] += 1
            row["mailed"] += known["mailed"]
            row["mail_waiting"] += known["mail_waiting"]
            row["lease"] = min(row["lease"], known["lease"])  # seconds; each delegate has granted its own
            row["mail_suspended"] = row["mail_suspended"] | known["mail_suspended"]
            row["lost"] = dict(Counter(row["lost"]) + Counter(known["lost"]))
    found = list(rows.values())
    durables = [
        {"durable": known.pop("name"), "archive": ", ".join(ref.endpoints), **known}
        for ref, (_, standing) in answers
        for known in standing
    ]
    tables = [*_mail_tables(found), *([_durable_table(durables)] if durables else [])]
    given.show([*found, *durables], lambda: show_tables(tables, view))


_TERMS = (
    Column("subscription", brief=True), Column("recipients", long=True), Column("template", long=True, spare=2),
    Column("predicate", long=True, spare=1), Column("filter", long=True, spare=3),
)  # fmt: skip
_ACCOUNTS = (
    Column("subscription", brief=True), Column("delegates", right=True), Column("mailed", right=True),
    Column("waiting", right=True), Column("lost", long=True, spare=1), Column("suspended", long=True, spare=2),
)  # fmt: skip
_DURABLES = (
    Column("durable", name=True, long=True), Column("owner", long=True, spare=3), Column("archive", spare=2),
    Column("open"), Column("has", right=True), Column("of", right=True),
    Column("unacknowledged", right=True, spare=1), Column("ends", right=True),
)  # fmt: skip


def _durable_table(durables: Sequence[dict[str, Any]]) -> Table:
    """Table of durable subscriptions, and how far each has come."""
    rows = [
        (d["durable"], d.get("owner", ""), d["archive"], "yes" if d["open"] else "no",
         f"{d['position']:,}", f"{d['end']:,}", d["unacknowledged"] if d["open"] else "",
         "" if d["open"] else f"in {lasted(max(0.0, d['ends']))}")
        for d in durables
    ]  # fmt: skip
    return Table(_DURABLES, rows, counted(len(durables), "durable subscription"))


def _mail_tables(subscriptions: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """Tables of what e-mail subscriptions ask for, and of what became of it."""
    terms = [
        (s["uid"], ", ".join(s["recipients"]), "; ".join(s["template"]), s["predicate"], s["filter"])
        for s in subscriptions
    ]
    yield Table(_TERMS, terms, counted(len(subscriptions), "e-mail subscription"))
    if subscriptions:
        accounts = [
            (s["uid"], s["delegates"], f"{s['mailed']:,}", f"{s['mail_waiting']:,}", losses(s["lost"]),
             "; ".join(f"{a}: {answer}" for a, answer in s["mail_suspended"].items()))
            for s in subscriptions
        ]  # fmt: skip
        yield Table(_ACCOUNTS, accounts)


class _MailSubscription(Arguments):
    uid: str = argument()


@command(subscriptions, _MailSubscription)
def cancel(given: _MailSubscription) -> None:
    """Cancel an e-mail subscription at every delegate. The first characters of its id are enough.

    \b
    jbi subscriptions cancel 3f0c2a9be41d
    """
    cancelled = _where_it_stands(given.settings.load(), given.uid, lambda proxy, uid: proxy.unsubscribe("", uid))
    click.echo(f"cancelled at {counted(len(cancelled), 'delegate')}")


@command(subscriptions, _MailSubscription)
def renew(given: _MailSubscription) -> None:
    """Renew the lease of an e-mail subscription at every delegate for [lease] mail from now. The first characters of
    its id are enough.

    \b
    jbi subscriptions renew 3f0c2a9be41d
    jbi --set lease.mail=604800 subscriptions renew 3f0c2a9be41d  # for a week
    """
    config = given.settings.load()
    leases = _where_it_stands(config, given.uid, lambda proxy, uid: proxy.renew_mail(uid, config.lease.mail))
    terms = "" if not leases else f", for {min(lease.duration for lease in leases):g} s"
    click.echo(f"renewed at {counted(len(leases), 'delegate')}{terms}")


class _Reset(Arguments):
    name: str = argument()
    start: str = option("now, all, last, a time (2h, 2026-11-01T00:00Z), a place.", required=True, metavar="WHERE")


@command(subscriptions, _Reset)
def reset(given: _Reset) -> None:
    """Set the position at which a durable subscription of yours continues.

    \b
    jbi subscriptions reset fusion-1 --start 2h
    jbi subscriptions reset fusion-1 --start all
    """
    config = given.settings.load()
    with SubscriberAdapter(config) as adapter, looking(config):
        known = adapter.reset_durable(given.name, given.start)
    click.echo(f"{printable(given.name)} begins at {printable(given.start)} at {counted(known, 'archive')}")


class _End(JsonArguments):
    name: str = argument()
    yes: bool = flag("Do not ask.")


@command(subscriptions, _End)
def end(given: _End) -> None:
    """End a durable subscription of yours: its position is forgotten, and it counts as new the next time.

    Exit code 1 if no archive knows one of that name, or while a process has it open.

    \b
    jbi subscriptions end fusion-1
    """
    config = given.settings.load()
    if not given.yes:
        what = f"the position of the durable subscription {printable(given.name)}"
        if not sys.stdin.isatty():
            raise ConfigurationError(f"this forgets {what}", hint="Say --yes")
        click.confirm(f"Forget {what}?", abort=True, err=True)
    with SubscriberAdapter(config) as adapter, looking(config):
        known = adapter.end_durable(given.name)
    given.tell(
        {"durable": given.name, "archives": known}, f"{printable(given.name)} ended at {counted(known, 'archive')}"
    )


def _where_it_stands(config: Config, given: str, do: Callable[[SubscriptionsProxy, str], T]) -> list[T]:
    """Results of `do` at each delegate that has the e-mail subscription whose id begins as `given`."""
    listed = asked(_delegates(config, wait=config.lookup.timeout), SubscriptionsProxy.mail_subscriptions)
    uid = _whole_id(given, {known["uid"] for _, standing in listed for known in standing})

    def done(proxy: SubscriptionsProxy) -> list[T]:
        stands = any(known["uid"] == uid for known in proxy.mail_subscriptions())
        return [do(proxy, uid)] if stands else []

    return [answer for _, answers in asked(_delegates(config), done) for answer in answers]


def _whole_id(given: str, known: Collection[str]) -> str:
    """The id that begins so, with or without its kind. Raises UnknownUidError when none does, or several."""
    fits = sorted(uid for uid in known if given and (uid.startswith(given) or uid.partition("-")[2].startswith(given)))
    if len(fits) == 1 or given in fits:
        return fits[0] if len(fits) == 1 else given
    if fits:
        raise UnknownUidError(f"{len(fits)} e-mail subscriptions begin with {given}", hint="Give more of the id")
    raise UnknownUidError(f"no e-mail subscription {given} at any delegate", hint="See `jbi subscriptions`")


def asked(
    proxies: Iterable[SubscriptionsProxy], ask: Callable[[SubscriptionsProxy], T]
) -> Iterator[tuple[ServiceRef, T]]:
    """Answers of each to `ask`. Of one that does not, people are told: it may have died, and is listed until its
    lease has run out; or it refuses. Raises AccessDeniedError when nobody answers, and somebody refuses."""
    refused: AccessDeniedError | None = None
    is_answered = False
    for proxy in proxies:
        at = ", ".join(proxy.ref.endpoints)
        try:
            with closing(proxy):
                answer = ask(proxy)
        except UnknownUidError:
            is_answered = True  # what is asked for does not stand at this one
        except WireError as exc:
            click.echo(f"jbi: passed over: {printable(exc.message)}", err=True)
        except AccessDeniedError as exc:
            click.echo(f"jbi: passed over {at}: {printable(exc.message)}", err=True)
            refused = refused or AccessDeniedError(f"{at}: {exc.message}", hint=exc.hint)
        else:
            is_answered = True
            yield proxy.ref, answer
    if refused is not None and not is_answered:
        raise refused


def _delegates(config: Config, *, wait: float = 0.0) -> Iterator[SubscriptionsProxy]:
    """`wait`: seconds for a first one to appear, when what is wanted is known to be with one."""
    return subscription_servers(config, ServiceTemplate(types=(PAD_TYPE,)), wait=wait)


def subscription_servers(
    config: Config,
    template: ServiceTemplate = ServiceTemplate(),  # noqa: B008  # a frozen value
    *,
    wait: float = 0.0,
) -> Iterator[SubscriptionsProxy]:
    """All delegates and peer publishers, to be asked of subscriptions."""
    items = listed(config, template, wait=wait)
    for item in by_address(item for item in items if DISSEMINATORS.intersection(item.types)):
        ref = msgspec.structs.replace(item.proxy, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        yield SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
