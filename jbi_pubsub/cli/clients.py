"""`jbi publish`, `subscribe`, `subscriptions`, `services`: applications for the command line."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import click
import msgspec
from rich.progress import Progress

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError, WireError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.entry import MAX_FIELDS, EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.pad.proxy import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, SubscriptionsProxy
from jbi_pubsub.pad.subscription import DIGEST_ATTRIBUTE, PAD_TYPE
from jbi_pubsub.publisher import PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid

from .settings import Settings, console, json_option, pass_settings, printable, show_json, show_rows
from .status import DISSEMINATORS

T = TypeVar("T")

existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--schema", type=existing_file, required=True, help="XML Schema of the metadata.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--invariants", type=existing_file, help="Invariant metadata; default: the first metadata file.")
@click.option("--metadata", type=existing_file, multiple=True, required=True, help="Metadata; repeatable.")
@click.option("--payload", type=existing_file, multiple=True, help="Payload, one for each --metadata, or for all.")
@click.option("--delegate", nargs=2, metavar="NAME LOCATION", help="Characteristics; '' is a wildcard.")
@click.option("--peer", is_flag=True, help="Publish peer to peer, without a delegate.")
@click.option("--type-name", default="", help="Type name, when the schema does not give the right one.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Publish everything so often.")
@click.option("--interval", type=click.FloatRange(0), default=0.0, help="Seconds between two rounds.")
@click.option(
    "--wait",
    "wait",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds for subscribers to come first.",
)
@json_option
@pass_settings
def publish(
    settings: Settings,
    schema: Path,
    marks: Path | None,
    invariants: Path | None,
    metadata: tuple[Path, ...],
    payload: tuple[Path, ...],
    delegate: tuple[str, str] | None,
    peer: bool,
    type_name: str,
    count: int,
    interval: float,
    wait: float,
    as_json: bool,
) -> None:
    """Publish information objects from files.

    \b
    jbi publish --delegate alpha rome --schema Intel_Imagery.xsd --metadata fig1.xml --payload image.jpg
    jbi publish --peer --schema cap12.xsd --marks marks.json --metadata alert.xml --count 10 --interval 1
    """
    if bool(delegate) == peer:
        raise ConfigurationError("give either --delegate NAME LOCATION or --peer")
    if len(payload) not in (0, 1, len(metadata)):
        raise ConfigurationError(
            f"{len(payload)} payloads for {len(metadata)} metadata", hint="Give none, one, or one each"
        )
    files = [(m, payload[i if len(payload) > 1 else 0] if payload else None) for i, m in enumerate(metadata)]
    config = settings.load()
    open_with = {"marks": marks, "type_name": type_name}
    first = invariants or metadata[0]
    ids: list[str] = []
    with PublisherAdapter(config) if peer else PublisherAdapterLight(config) as adapter:
        if isinstance(adapter, PublisherAdapterLight):
            assert delegate is not None
            at = adapter.connect_to_delegate(delegate[0] or None, delegate[1] or None)
            registration = adapter.register_publisher(at, schema, first, **open_with)  # type: ignore[arg-type]  # two options of different types
        else:
            registration = adapter.register_publisher(schema, first, **open_with)  # type: ignore[arg-type]  # as above
        time.sleep(wait)
        with Progress(console=console(), transient=True, disable=not sys.stdout.isatty() or count == 1) as progress:
            for _ in progress.track(range(count), description="publishing"):
                ids += [adapter.publish(registration, m, p) for m, p in files]
                time.sleep(interval)
        left = adapter.flush()
    if as_json:
        show_json({"registration": registration, "published": ids, "undelivered": left or 0})
    else:
        click.echo(f"published {len(ids)} objects under {registration}")


@click.command()
@click.option("--template", type=existing_file, help="Metadata document; its invariant values must be equal.")
@click.option("--schema", type=existing_file, help="XML Schema of the template.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--type", "type_name", default="", help="Information object type, without a template.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@click.option("--filter", "payload_filter", default="", help="XPath over an XML payload.")
@click.option(
    "--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in the XPaths; repeatable."
)
@click.option("--email", "recipients", metavar="ADDRESS", multiple=True, help="Deliver by e-mail; repeatable.")
@click.option("--digest", type=click.FloatRange(0), metavar="SECONDS", help="With --email: gather, many in one mail.")
@click.option("--policy", type=click.Choice(["drop_oldest", "drop_newest", "block"]), help="When the queue is full.")
@click.option("--bound", type=click.IntRange(1), help="Objects that may wait.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many objects.")
@click.option("--timeout", type=click.FloatRange(0), help="Stop when no object has come for so many seconds.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write metadata and payloads here.")
@json_option
@pass_settings
def subscribe(
    settings: Settings,
    template: Path | None,
    schema: Path | None,
    marks: Path | None,
    type_name: str,
    predicate: str,
    payload_filter: str,
    namespaces: tuple[str, ...],
    recipients: tuple[str, ...],
    digest: float | None,
    policy: Any,
    bound: int | None,
    count: int | None,
    timeout: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Subscribe and show what arrives, or have it sent by e-mail.

    An e-mail subscription goes on after this command has ended, until it is cancelled with `jbi subscriptions cancel`
    or its lease runs out ([lease] mail).

    \b
    jbi subscribe --type mil.af.rl.jbi.Intel_Imagery
    jbi subscribe --template fig3.xml --schema Intel_Imagery.xsd --predicate "//lat > 33" --count 5
    jbi subscribe --type alert --namespace c=urn:oasis:names:tc:emergency:cap:1.2 --email ops@example.org
    """
    config = settings.load()
    with SubscriberAdapter(config) as adapter:
        uid = adapter.register_subscriber(
            template,
            schema=schema,
            marks=marks,
            type_name=type_name,
            predicate=predicate,
            payload_filter=payload_filter,
            namespaces=_namespaces(namespaces),
            recipients=recipients,
            policy=policy,
            bound=bound,
            attributes={DIGEST_ATTRIBUTE: f"{digest:g}"} if digest else {},
        )
        if recipients:
            matched = adapter.wait_matched(uid, 1, 3.0)
            facts = {"subscription": uid, "delegates": matched, "lease": config.lease.mail}
            text = f"e-mail subscription {uid} at {matched} delegates, lease {config.lease.mail:g} s"
            click.echo(json.dumps(facts) if as_json else text)
            return
        if not as_json and sys.stdout.isatty():
            console().print(f"[dim]subscription {uid}; Ctrl-C ends[/dim]")
        _show_objects(adapter, uid, count=count, timeout=timeout, out=out, as_json=as_json)


def _show_objects(
    adapter: SubscriberAdapter,
    uid: SubscriptionUid,
    *,
    count: int | None,
    timeout: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    seen = 0
    while count is None or seen < count:
        obj = adapter.receive(uid, timeout if timeout is not None else 3600.0)
        if obj is None:
            if timeout is not None:
                break
            continue
        seen += 1
        if out is not None:
            _write(out, obj)
        click.echo(json.dumps(_facts(obj)) if as_json else _line(obj))
        sys.stdout.flush()
    losses = adapter.losses(uid)
    if losses:
        click.echo(f"lost: {losses}", err=True)


def _facts(obj: InfoObject) -> dict[str, object]:
    return {
        "object": obj.object_id,
        "type": obj.type.name,
        "version": obj.type.version,
        "registration": obj.platform.registration,
        "sequence": obj.platform.sequence,
        "published": obj.platform.published,
        "metadata": obj.metadata.decode("utf-8", errors="replace"),
        "payload_length": len(obj.payload),
        "payload_published_length": obj.platform.payload_length,
    }


def _line(obj: InfoObject) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(obj.platform.published))
    cut = f" of {obj.platform.payload_length}" if len(obj.payload) != obj.platform.payload_length else ""
    return printable(
        f"{at}  {obj.type.name}  #{obj.platform.sequence}  metadata {len(obj.metadata)} B"
        f"  payload {len(obj.payload)}{cut} B  {obj.object_id}"
    )


def _write(folder: Path, obj: InfoObject) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{obj.object_id}.metadata.xml").write_bytes(obj.metadata)
    (folder / f"{obj.object_id}.payload").write_bytes(obj.payload)


def _namespaces(pairs: Iterable[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    bad = [prefix for prefix, equals, uri in split if not (prefix and equals and uri)]
    if bad:
        raise ConfigurationError(f"--namespace {bad[0]}: no PREFIX=URI")
    return {prefix: uri for prefix, _, uri in split}


# -- looking around ---------------------------------------------------------------------------------------------


@contextmanager
def _community(config: Config) -> Iterator[JoinManager]:
    community = JoinManager(config, name="jbi")
    try:
        yield community
    finally:
        community.close()


@click.command()
@click.option("--type", "types", multiple=True, help="Service type, for example jbi.PublisherAdapterDelegate.")
@click.option("--field", "fields", metavar="FIELD=VALUE", multiple=True, help="A field of any entry; repeatable.")
@click.option(
    "--entry",
    "entries",
    metavar="CLASS[?FIELD=VALUE&...]",
    multiple=True,
    help="An entry of that class, or one derived from it, with all these values (as in a URL); repeatable.",
)
@click.option("--watch", is_flag=True, help="Show changes as they come.")
@json_option
@pass_settings
def services(
    settings: Settings, types: tuple[str, ...], fields: tuple[str, ...], entries: tuple[str, ...], watch: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """List what is registered in the lookup services.

    \b
    jbi services
    jbi services --type jbi.PublisherRegistration --field publisher=418th
    jbi services --entry 'RequiredMetadataEntry?publisher=418th&language=EN'
    jbi services --watch
    """
    wanted = [*(_Wanted("", dict([_pair(field)])) for field in fields), *map(_entry_wanted, entries)]
    template = ServiceTemplate(types=types)
    with _community(settings.load()) as community:
        if watch:
            _watch_services(community, template, wanted, as_json=as_json)
            return
        items = [item for item in community.lookup(template, EVERYTHING) if _has(item, wanted)]
    if as_json:
        show_json([_item_facts(item) for item in items])
    else:
        show_rows(("service", "type", "address", "entries"), map(_item_row, items), title=f"{len(items)} services")


def _watch_services(
    community: JoinManager, template: ServiceTemplate, wanted: Sequence[_Wanted], *, as_json: bool
) -> None:
    def say(change: str, item: ServiceItem) -> None:
        if _has(item, wanted):
            at = time.strftime("%H:%M:%S")
            click.echo(
                json.dumps({"change": change, **_item_facts(item)})
                if as_json
                else printable(f"{at}  {change:8}  " + "  ".join(_item_row(item)))
            )
            sys.stdout.flush()

    class Listener:
        def service_added(self, item: ServiceItem) -> None:
            say("added", item)

        def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
            say("changed", new)

        def service_removed(self, item: ServiceItem) -> None:
            say("removed", item)

    cache = community.watch(template, Listener())
    community.wait_watching(cache, 10.0)
    while True:
        time.sleep(3600.0)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--field {text}: no FIELD=VALUE")
    return name, value


class _Wanted(NamedTuple):
    """An entry of that class ("": any) with these values."""

    name: str
    values: dict[str, str]

    def fits(self, entry: EntryRep) -> bool:
        """The class by its whole name, or the last part of it."""
        names = [name for name, _ in entry.cls.lineage]
        known = not self.name or any(self.name in (name, re.split(r"[.#]", name)[-1]) for name in names)
        return known and self.values.items() <= entry.as_dict().items()


def _entry_wanted(text: str) -> _Wanted:
    name, question, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(question), max_num_fields=MAX_FIELDS)
    except ValueError as exc:
        raise ConfigurationError(f"--entry {text}: no CLASS[?FIELD=VALUE&...] ({exc})") from exc
    if not name:
        raise ConfigurationError(f"--entry {text}: no CLASS[?FIELD=VALUE&...]")
    return _Wanted(name, dict(pairs))


def _has(item: ServiceItem, wanted: Sequence[_Wanted]) -> bool:
    return all(any(map(one.fits, item.entries)) for one in wanted)


def _item_facts(item: ServiceItem) -> dict[str, object]:
    return {
        "id": item.service_id,
        "types": list(item.types),
        "server": item.proxy.service_id,
        "endpoints": list(item.proxy.endpoints),
        "entries": [{"class": e.cls.name, **e.as_dict()} for e in item.entries],
    }


def _item_row(item: ServiceItem) -> tuple[str, str, str, str]:
    return (
        item.service_id.removeprefix("registration-")[:8],
        item.types[0].removeprefix("jbi."),
        ", ".join(item.proxy.endpoints),
        "; ".join(_entry_text(e) for e in item.entries),
    )


def _entry_text(entry: EntryRep) -> str:
    values = {k: v for k, v in entry.as_dict().items() if v is not None and k != "schema"}
    return (
        f"{entry.cls.name.rpartition('#')[2].removeprefix('jbi.')}({', '.join(f'{k}={v}' for k, v in values.items())})"
    )


@click.group(invoke_without_command=True)
@json_option
@pass_settings
@click.pass_context
def subscriptions(context: click.Context, settings: Settings, as_json: bool) -> None:
    """List e-mail subscriptions, or cancel one.

    `suspended` are recipients that the mail server has refused for good again and again, and its last answer: they get
    no mail until the subscription is made again. `mailed` and `lost` count objects times recipients.

    \b
    jbi subscriptions
    jbi subscriptions cancel subscription-...
    """
    if context.invoked_subcommand:
        return
    rows: dict[str, dict[str, Any]] = {}
    for _, standing in asked(_delegates(settings.load()), SubscriptionsProxy.mail_subscriptions):
        for known in standing:
            row = rows.setdefault(known["uid"], {**known, "delegates": 0, "mailed": 0, "mail_waiting": 0, "lost": {}})
            row["delegates"] += 1
            row["mailed"] += known["mailed"]
            row["mail_waiting"] += known["mail_waiting"]
            row["mail_suspended"] = row["mail_suspended"] | known["mail_suspended"]
            row["lost"] = dict(Counter(row["lost"]) + Counter(known["lost"]))
    if as_json:
        show_json(list(rows.values()))
    else:
        columns = ("subscription", "recipients", "template", "predicate", "filter", "delegates", "mailed", "waiting",
                   "lost", "suspended")  # fmt: skip
        show_rows(
            columns,
            (
                (r["uid"], ", ".join(r["recipients"]), "; ".join(r["template"]), r["predicate"], r["filter"],
                 r["delegates"], r["mailed"], r["mail_waiting"], sum(r["lost"].values()),
                 "; ".join(f"{a}: {answer}" for a, answer in r["mail_suspended"].items()))
                for r in rows.values()
            ),
        )  # fmt: skip


@subscriptions.command()
@click.argument("uid")
@pass_settings
def cancel(settings: Settings, uid: str) -> None:
    """Cancel an e-mail subscription at every delegate."""
    config = settings.load()

    def ended(proxy: SubscriptionsProxy) -> bool:
        stands = any(known["uid"] == uid for known in proxy.mail_subscriptions())
        if stands:
            proxy.unsubscribe("", uid)
        return stands

    cancelled = sum(stood for _, stood in asked(_delegates(config, wait=config.lookup.timeout), ended))
    if not cancelled:
        raise ConfigurationError(f"no e-mail subscription {uid} at any delegate", hint="See `jbi subscriptions`")
    click.echo(f"cancelled at {cancelled} delegates")


def asked(
    proxies: Iterable[SubscriptionsProxy], ask: Callable[[SubscriptionsProxy], T]
) -> Iterator[tuple[ServiceRef, T]]:
    """What each answers to `ask`. Of one that does not, people are told: it may have died, and is listed until its
    lease has run out."""
    for proxy in proxies:
        try:
            answer = ask(proxy)
        except UnknownUidError:
            continue  # what is asked for does not stand at this one
        except WireError as exc:
            click.echo(f"jbi: passed over: {exc.message}", err=True)
        else:
            yield proxy.ref, answer
        finally:
            proxy.close()


def _delegates(config: Config, *, wait: float = 0.0) -> Iterator[SubscriptionsProxy]:
    """`wait`: seconds for a first one to appear, when what is wanted is known to be with one."""
    return subscription_servers(config, ServiceTemplate(types=(PAD_TYPE,)), wait=wait)


def subscription_servers(
    config: Config,
    template: ServiceTemplate = ServiceTemplate(),  # noqa: B008  # a frozen value
    *,
    wait: float = 0.0,
) -> Iterator[SubscriptionsProxy]:
    with _community(config) as community:
        if wait:
            community.watch(template).wait(1, wait)
        items = community.lookup(template, EVERYTHING)
    ours = [item for item in items if DISSEMINATORS.intersection(item.types)]
    for item in {item.proxy.service_id: item for item in ours}.values():
        ref = msgspec.structs.replace(item.proxy, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        yield SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
