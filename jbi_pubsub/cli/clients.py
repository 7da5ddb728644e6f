"""`jbi publish`, `subscribe`, `subscriptions`, `services`: applications for the command line."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import click
import msgspec
from rich.progress import Progress

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, JbiError, UnknownUidError, WireError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.spool import COPIED_BYTES
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.entry import MAX_FIELDS, EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, InformationType, SigningKeyEntry
from jbi_pubsub.protocol.requests import DIGEST_ATTRIBUTE
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, SubscriptionsProxy
from jbi_pubsub.publisher import PublisherAdapter, PublisherAdapterLight
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.adapter import matching_log

from .near import NearNames, told
from .settings import Settings, json_option, looking, pass_settings, try_folder
from .show import (
    Column,
    Table,
    View,
    console,
    counted,
    cut,
    printable,
    show_json,
    show_tables,
    terminal_width,
    view_of,
    view_options,
)
from .show import as_json as json_text
from .status import DISSEMINATORS, losses, namesakes
from .wishes import granted_shown, wish_of, wish_option

FLUSH_SECONDS: Final = 10.0
FLUSH_RATE: Final = 1e6
"""How long the delegate may take for what was published, and bytes a second of payloads beside that."""
GRANTED_SECONDS: Final = 3.0
"""For the first delegate to answer to a wish."""

T = TypeVar("T")

existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


combined_option = click.option(
    "--combined", is_flag=True, help="Ask the predicate of og:metadata, the platform's with the publisher's in it."
)


unfiltered_option = click.option(
    "--unfiltered", type=click.Choice(["withhold", "deliver"]),
    help="With --filter: what becomes of XML beyond what is filtered; default withhold, and told as lost.",
)  # fmt: skip


@click.command()
@click.option("--schema", type=existing_file, help="XML Schema of the metadata; default: the type repository's.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--invariants", type=existing_file, help="Invariant metadata; default: the first metadata file.")
@click.option("--metadata", type=existing_file, multiple=True, required=True, help="Metadata; repeatable.")
@click.option("--payload", type=existing_file, multiple=True, help="Payload, one for each --metadata, or for all.")
@click.option("--delegate", nargs=2, metavar="NAME LOCATION", help="Characteristics; '' is a wildcard.")
@click.option("--peer", is_flag=True, help="Publish peer to peer, without a delegate.")
@click.option(
    "--type-name", default="", help="Type name, when the schema does not give the right one, or is not given."
)
@click.option("--type-version", default="", help="Version of the type; default 1.0.")
@click.option("--untyped", is_flag=True, help="Any well-formed metadata, of a type that nobody has a schema of.")
@click.option("--expiration", type=click.FloatRange(0), metavar="SECONDS", help="Give up what waits longer; 0: never.")
@click.option(
    "--persist/--no-persist",
    default=None,
    help="Have the objects archived, or not; default: as the delegate's rules say.",
)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Publish everything so often.")
@click.option("--interval", type=click.FloatRange(0), default=0.0, help="Seconds between two rounds.")
@click.option(
    "--subscribers", type=click.IntRange(0), default=0, help="Wait up to 10 s until so many subscriptions match."
)
@wish_option
@json_option
@pass_settings
def publish(
    settings: Settings,
    schema: Path | None,
    marks: Path | None,
    invariants: Path | None,
    metadata: tuple[Path, ...],
    payload: tuple[Path, ...],
    delegate: tuple[str, str] | None,
    peer: bool,
    type_name: str,
    type_version: str,
    untyped: bool,
    persist: bool | None,
    expiration: float | None,
    count: int,
    interval: float,
    subscribers: int,
    wishes: tuple[str, ...],
    as_json: bool,
) -> int:
    """Publish information objects from files. Exit code 1: fewer --subscribers than were waited for, or refused.

    With files of the source distribution:

    \b
    jbi publish --delegate alpha rome --schema examples/data/intel_imagery/Intel_Imagery.xsd \\
        --metadata examples/data/intel_imagery/fig1.xml --payload examples/data/intel_imagery/image.png
    jbi publish --peer --schema examples/data/cap/cap12.xsd --marks examples/data/cap/marks.json \\
        --metadata examples/data/cap/canada.xml --count 10 --interval 1
    jbi publish --delegate alpha rome --type-name mil.af.rl.jbi.Intel_Imagery \\
        --metadata examples/data/intel_imagery/fig1.xml           # by the schema of the type repository
    jbi --node tent-3 publish --type-name mil.af.rl.jbi.Intel_Imagery \\
        --metadata examples/data/intel_imagery/fig1.xml           # at a node
    """
    if bool(delegate) == peer:
        raise ConfigurationError("give either --delegate NAME LOCATION (or --node NAME) or --peer")
    if schema is None and not type_name:
        raise ConfigurationError(
            "nothing says of what type the metadata are",
            hint="Give --schema FILE, or --type-name NAME of the type repository",
        )
    if untyped and (schema is not None or invariants is not None):
        raise ConfigurationError("--untyped goes with neither --schema nor --invariants")
    if len(payload) not in (0, 1, len(metadata)):
        raise ConfigurationError(
            f"{len(payload)} payloads for {len(metadata)} metadata", hint="Give none, one, or one each"
        )
    for option, path in (
        *(("--metadata", path) for path in metadata),
        *([("--invariants", invariants)] if invariants else []),
    ):
        if path.is_file():  # a pipe is read once
            parse_metadata(path.read_bytes(), what=f"{option} {path}")  # before anybody is looked for
    files = [(m, payload[i if len(payload) > 1 else 0] if payload else None) for i, m in enumerate(metadata)]
    config = settings.load()
    open_with = {
        "marks": marks, "type_name": type_name, "version": type_version or None, "validate": False if untyped else None,
        "qos": wish_of(wishes), "persist": persist, "expiration": expiration,
    }  # fmt: skip
    first = None if untyped else invariants or metadata[0]
    ids: list[str] = []
    refusals: list[JbiError] = []

    def refused(_object_id: str, why: JbiError) -> None:
        refusals.append(why)

    with PublisherAdapter(config) if peer else PublisherAdapterLight(config, refused=refused) as adapter:
        if isinstance(adapter, PublisherAdapterLight):
            assert delegate is not None
            wanted = ", ".join(part or "*" for part in delegate)
            with looking(config, f"a lookup service and delegate ({wanted})"):
                at = adapter.connect_to_delegate(delegate[0] or None, delegate[1] or None)
            registration = adapter.register_publisher(at, schema, first, **open_with)  # type: ignore[arg-type]  # two options of different types
        else:
            with looking(config):
                registration = adapter.register_publisher(schema, first, **open_with)  # type: ignore[arg-type]  # as above
        matched = adapter.wait_for_subscribers(registration, subscribers) if subscribers else 0
        with Progress(console=console(), transient=True, disable=not sys.stdout.isatty() or count == 1) as progress:
            for _ in progress.track(range(count), description="publishing"):
                ids += [adapter.publish(registration, m, p) for m, p in files]
                time.sleep(interval)
        left = adapter.flush(FLUSH_SECONDS + count * sum(p.stat().st_size for _, p in files if p) / FLUSH_RATE)
    if as_json:
        about = {"registration": registration, "published": ids, "undelivered": left or 0}
        show_json({**about, "refused": len(refusals)} if refusals else about)
    else:
        click.echo(f"published {counted(len(ids) - len(refusals), 'object')} under {registration}")
    if refusals:
        why = refusals[0]
        raise type(why)(f"the delegate refused {len(refusals)} of {len(ids)}: {why.message}", hint=why.hint)
    if matched < subscribers:
        click.echo(f"jbi: {matched} of {subscribers} subscriptions were there when it was published", err=True)
        return 1
    return 0


@click.command()
@click.option("--template", type=existing_file, help="Metadata document; its invariant values must be equal.")
@click.option("--schema", type=existing_file, help="XML Schema of the template.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--type", "type_name", default="", help="Information object type; the last part of its name will do.")
@click.option("--predicate", default="", help="XPath over the metadata.")
@combined_option
@click.option("--filter", "payload_filter", default="", help="XPath over an XML payload.")
@unfiltered_option
@click.option(
    "--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix in the XPaths; repeatable."
)
@click.option("--email", "recipients", metavar="ADDRESS", multiple=True, help="Deliver by e-mail; repeatable.")
@click.option("--digest", type=click.FloatRange(0), metavar="SECONDS", help="With --email: gather, many in one mail.")
@click.option("--policy", type=click.Choice(["drop_oldest", "drop_newest", "block"]), help="When the queue is full.")
@click.option("--bound", type=click.IntRange(1), help="Objects that may wait.")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Begin there: all, last, a time (2h, 2026-11-01T00:00Z), a place.",
)
@click.option(
    "--durable", metavar="NAME", help="Go on where this name was, the next time, whatever has come meanwhile."
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many objects.")
@click.option("--timeout", type=click.FloatRange(0), help="Stop when no object has come for so many seconds.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), callback=try_folder,
    help="Write metadata and payloads here.",
)  # fmt: skip
@wish_option
@json_option
@pass_settings
def subscribe(
    settings: Settings,
    template: Path | None,
    schema: Path | None,
    marks: Path | None,
    type_name: str,
    predicate: str,
    combined: bool,
    payload_filter: str,
    unfiltered: Any,
    namespaces: tuple[str, ...],
    recipients: tuple[str, ...],
    digest: float | None,
    policy: Any,
    bound: int | None,
    start: str | None,
    durable: str | None,
    count: int | None,
    timeout: float | None,
    out: Path | None,
    wishes: tuple[str, ...],
    as_json: bool,
) -> int:
    """Subscribe and show what arrives, or have it sent by e-mail.

    An e-mail subscription goes on after this command has ended, until it is cancelled with `jbi subscriptions cancel`
    or its lease runs out ([lease] mail). Exit code 1: fewer objects than --count came within --timeout.

    \b
    jbi subscribe --type mil.af.rl.jbi.Intel_Imagery
    jbi subscribe --type Intel_Imagery --predicate "//lat > 33" --count 5
    jbi subscribe --combined --predicate "//og:PayloadLength > 1000000 and //lat > 33"
    jbi subscribe --type Intel_Imagery --from 2h
    jbi subscribe --type Intel_Imagery --durable fusion-1 --timeout 10
    jbi subscribe --template examples/data/intel_imagery/fig3-template.xml \\
        --schema examples/data/intel_imagery/Intel_Imagery.xsd --filter "//descriptor[type='A10A']"
    jbi subscribe --type alert --namespace c=urn:oasis:names:tc:emergency:cap:1.2 \\
        --predicate "/c:alert/c:status = 'Actual'" --email ops@example.org --digest 3600
    """
    for_here = {"--count": count, "--timeout": timeout, "--out": out}
    useless = [option for option, given in for_here.items() if given is not None]
    if recipients and useless:
        raise ConfigurationError(
            f"{useless[0]} is not for --email", hint="It is for objects that are shown here; mail goes on without us"
        )
    config = settings.load()
    wish = wish_of(wishes)
    with _matches_told(), SubscriberAdapter(config) as adapter:
        with looking(config):
            uid = adapter.register_subscriber(
                template,
                schema=schema,
                marks=marks,
                type_name=type_name,
                predicate=predicate,
                view="combined" if combined else "metadata",
                payload_filter=payload_filter,
                unfiltered=unfiltered,
                namespaces=namespaces_of(namespaces),
                recipients=recipients,
                policy=policy,
                bound=bound,
                attributes={DIGEST_ATTRIBUTE: f"{digest:g}"} if digest else {},
                qos=wish,
                start=start,
                durable=durable,
            )
        if wish is not None:
            _tell_granted(adapter, uid, wish)
        if recipients:
            matched = adapter.wait_matched(uid, 1, 3.0)
            facts = {"subscription": uid, "delegates": matched, "lease": config.lease.mail}
            text = f"e-mail subscription {uid} at {counted(matched, 'delegate')}, lease {config.lease.mail:g} s"
            click.echo(json_text(facts) if as_json else text)
            return 0
        if not as_json and sys.stdout.isatty():
            console().print(f"[dim]subscription {uid}; Ctrl-C ends[/dim]")
        if not adapter.wait_matched(uid, 1, MATCHED_SECONDS):
            _check_let_in(config)
        seen = show_objects(adapter, uid, count=count, timeout=timeout, out=out, as_json=as_json)
        if not seen and (why := adapter.refusal(uid)) is not None:
            raise why
    return enough(seen, count)


def enough(seen: int, count: int | None) -> int:
    """The exit code: 1 for fewer than were asked for, which is told."""
    if count is None or seen >= count:
        return 0
    click.echo(f"jbi: {seen} of {counted(count, 'object')} came in time", err=True)
    return 1


def _check_let_in(config: Config) -> None:
    """Where nothing matches nobody is asked: so who may not even connect would wait for what never comes. Raises
    AccessDeniedError when that is so at each delegate that is listed."""
    with _community(config) as community:
        items = community.lookup(ServiceTemplate(types=(PAD_TYPE,)), DELEGATES_ASKED)
    why: AccessDeniedError | None = None
    for item in items:
        at = ServiceRef("", SUBSCRIPTIONS, item.proxy.endpoints)
        proxy = SubscriptionsProxy(at, config.security(), timeout=MATCHED_SECONDS)
        try:
            proxy.close_session(proxy.open("jbi", MATCHED_SECONDS).uid)
        except AccessDeniedError as exc:
            why = exc
        except JbiError:
            return  # who is away now may let us in later
        else:
            return
        finally:
            proxy.close()
    if why is not None:
        raise why


MATCHED_SECONDS: Final = 1.0
"""For those who have something to answer, and for each delegate to say whether we are let in."""
DELEGATES_ASKED: Final = 16


def _tell_granted(adapter: SubscriberAdapter, uid: SubscriptionUid, wish: Wish) -> None:
    """On stderr, as soon as the first has answered. Raises QosDeniedError."""
    adapter.wait_matched(uid, 1, GRANTED_SECONDS)
    for line in granted_shown(wish, adapter.qos(uid).items()):
        click.echo(printable(line), err=True)


@contextmanager
def _matches_told() -> Iterator[None]:
    """What the subscription matches, now and until something does, on stderr."""

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            click.echo(printable(record.getMessage()), err=True)

    said, was = Said(), (matching_log.level, matching_log.propagate)
    matching_log.addHandler(said)
    matching_log.setLevel(logging.INFO)
    matching_log.propagate = False
    try:
        yield
    finally:
        matching_log.removeHandler(said)
        matching_log.setLevel(was[0])
        matching_log.propagate = was[1]


def show_objects(
    adapter: SubscriberAdapter,
    uid: SubscriptionUid,
    *,
    count: int | None,
    timeout: float | None,
    out: Path | None,
    as_json: bool,
    only: str = "",
) -> int:
    """What comes, until it is enough, and how much that was; `only` of that registration."""
    seen = 0
    while count is None or seen < count:
        obj = adapter.receive(uid, timeout if timeout is not None else 3600.0)
        if obj is None:
            if timeout is not None:
                break
            continue
        if only and obj.platform.registration != only:
            continue
        seen += 1
        if out is not None:
            write_object(out, obj)
        click.echo(json_text(facts_of(obj)) if as_json else line_of(obj))
        sys.stdout.flush()
    losses = adapter.losses(uid)
    if losses:
        click.echo("lost: " + ", ".join(f"{cause} {number:,}" for cause, number in losses.items()), err=True)
    return seen


def facts_of(obj: InfoObject) -> dict[str, object]:
    """An object as plain data, without its payload."""
    return {
        "object": obj.object_id,
        "type": obj.type.name,
        "version": obj.type.version,
        "registration": obj.platform.registration,
        "sequence": obj.platform.sequence,
        "published": obj.platform.published,
        **({"position": obj.platform.position, "place": obj.platform.place} if obj.platform.position else {}),
        "metadata": obj.metadata.decode("utf-8", errors="replace"),
        "payload_length": obj.payload_size,
        "payload_published_length": obj.platform.payload_length,
        "payload_is_selection": obj.is_selection,
        "signed_by": obj.platform.verified,
    }


def line_of(obj: InfoObject) -> str:
    """An object as a line for people."""
    at = time.strftime("%H:%M:%S", time.localtime(obj.platform.published))
    cut = f" of {obj.platform.payload_length}" if obj.payload_size != obj.platform.payload_length else ""
    signed = f"  signed by {obj.platform.verified}" if obj.platform.verified else ""
    return printable(
        f"{at}  {obj.type.name}  #{obj.platform.sequence}  metadata {len(obj.metadata)} B"
        f"  payload {obj.payload_size}{cut} B  {obj.object_id}{signed}"
    )


def write_object(folder: Path, obj: InfoObject) -> None:
    """Metadata and payload as files named by the object's id; a peer publisher may say any, also one that is a path."""
    folder.mkdir(parents=True, exist_ok=True)  # again: it may have been taken away
    name = re.sub(r"[^0-9A-Za-z._-]", "_", obj.object_id)[:200]
    (folder / f"{name}.metadata.xml").write_bytes(obj.metadata)
    with obj.payload_file as payload, (folder / f"{name}.payload").open("wb") as out:
        shutil.copyfileobj(payload, out, COPIED_BYTES)


def namespaces_of(pairs: Iterable[str]) -> dict[str, str]:
    """What --namespace says. Raises ConfigurationError."""
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
@view_options
@json_option
@pass_settings
def services(
    settings: Settings, types: tuple[str, ...], fields: tuple[str, ...], entries: tuple[str, ...], watch: bool,
    wide: bool, columns: str, as_json: bool,
) -> None:  # fmt: skip
    """List what is registered in the lookup services.

    \b
    jbi services
    jbi services --type jbi.PublisherRegistration --field publisher=418th
    jbi services --entry 'RequiredMetadataEntry?publisher=418th&language=EN'
    jbi services --watch
    jbi services --columns publishes,entries --wide
    """
    view = view_of(wide, columns, [_SERVICES], as_json=as_json)
    wanted = [*(_Wanted("", dict([_pair(field)])) for field in fields), *map(_entry_wanted, entries)]
    template = ServiceTemplate(types=types)
    config = settings.load()
    with _community(config) as community:
        if watch:
            _watch_services(config, community, template, wanted, view, as_json=as_json)
            return
        with looking(config):
            everything = community.lookup(template, EVERYTHING)
        items = [item for item in everything if _has(item, wanted)]
        for name, places in namesakes(_named(items)):
            told_of = f"{len(places)} delegates are called {name}, at {', '.join(places)}"
            click.echo(printable(f"jbi: {told_of}: publishers use one or the other"), err=True)
        if not items:
            known = everything or community.lookup(ServiceTemplate(), EVERYTHING)
            for line in _why_none(known, types if not everything else (), wanted):
                click.echo(printable(f"jbi: {line}"), err=True)
    if as_json:
        show_json([_item_facts(item) for item in items])
    else:
        show_tables([Table(_SERVICES, list(map(_item_row, items)), counted(len(items), "service"))], view)


def _named(items: Sequence[ServiceItem]) -> Iterator[dict[str, str | None]]:
    for item in items:
        for entry in item.entries if PAD_TYPE in item.types else ():
            facts = entry.as_dict()
            if {"name", "location"} <= facts.keys():
                yield {**facts, "address": ", ".join(item.proxy.endpoints)}


_SERVICES = (
    Column("service"), Column("type", spare=1), Column("publishes", long=True, name=True, dotted=True),
    Column("address", long=True, name=True), Column("entries", long=True, spare=2),
)  # fmt: skip


def _why_none(known: Sequence[ServiceItem], types: Sequence[str], wanted: Sequence[_Wanted]) -> Iterator[str]:
    """What was asked for that nobody has, and what is nearest to it."""
    names = {name for item in known for name in item.types}
    yield from (told("service type", name, names) for name in types if name not in names)
    entries = [entry for item in known for entry in item.entries]
    for one in wanted if not types else ():
        having = [entry for entry in entries if one.is_class_of(entry)]
        if not having:
            yield told("entry class", one.name, (entry.cls.name for entry in entries))
            continue
        fields = {name for entry in having for name in entry.cls.fields}
        for field, value in one.values.items():
            if field not in fields:
                yield told("field", field, fields)
            elif not any(entry.as_dict().get(field) == value for entry in having):
                values = (entry.as_dict().get(field) for entry in having)
                yield told(f"{field} that is", value, (known for known in values if known is not None))


def _watch_services(
    config: Config,
    community: JoinManager,
    template: ServiceTemplate,
    wanted: Sequence[_Wanted],
    view: View,
    *,
    as_json: bool,
) -> None:
    def line(change: str, item: ServiceItem) -> str:
        [table] = view.of([Table(_SERVICES, [_item_row(item)])])
        text = printable(f"{time.strftime('%H:%M:%S')}  {change:8}  " + "  ".join(map(str, table.rows[0])))
        return cut(text, terminal_width()) if sys.stdout.isatty() and not view.wide else text

    def say(change: str, item: ServiceItem) -> None:
        if _has(item, wanted):
            click.echo(json_text({"change": change, **_item_facts(item)}) if as_json else line(change, item))
            sys.stdout.flush()

    class Listener:
        def service_added(self, item: ServiceItem) -> None:
            say("added", item)

        def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
            say("changed", new)

        def service_removed(self, item: ServiceItem) -> None:
            say("removed", item)

    cache = community.watch(template, Listener())
    with looking(config):
        community.wait_watching(cache, config.lookup.timeout)
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
        """Whether the entry is what is wanted."""
        return self.is_class_of(entry) and self.values.items() <= entry.as_dict().items()

    def is_class_of(self, entry: EntryRep) -> bool:
        """By the class's whole name, or the last part of it."""
        names = [name for name, _ in entry.cls.lineage]
        return not self.name or any(self.name in (name, re.split(r"[.#]", name)[-1]) for name in names)


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


def _item_row(item: ServiceItem) -> tuple[str, str, str, str, str]:
    published = (e.as_dict().get("name") or "" for e in item.entries if e.cls.name == InformationType.entry_name)
    return (
        item.service_id.removeprefix("registration-")[:8],
        item.types[0].removeprefix("jbi."),
        ", ".join(str(name) for name in published),
        ", ".join(item.proxy.endpoints),
        "; ".join(_entry_text(e) for e in item.entries),
    )


def _entry_text(entry: EntryRep) -> str:
    """Without what stands in a column of its own."""
    values = {k: v for k, v in entry.as_dict().items() if v is not None and k != "schema"}
    if entry.cls.name == InformationType.entry_name:
        values.pop("name", None)
    if entry.cls.name == SigningKeyEntry.entry_name:
        values = {"key": values.get("key", "")}  # the rest is kilobytes that prove it
    return (
        f"{entry.cls.name.rpartition('#')[2].removeprefix('jbi.')}({', '.join(f'{k}={v}' for k, v in values.items())})"
    )


@click.group(cls=NearNames, invoke_without_command=True)
@view_options
@json_option
@pass_settings
@click.pass_context
def subscriptions(context: click.Context, settings: Settings, wide: bool, columns: str, as_json: bool) -> None:
    """List e-mail subscriptions; renew or cancel one. Reset a durable one.

    `suspended` are recipients that the mail server has refused for good again and again, and its last answer: they get
    no mail until the subscription is made again; and those who have unsubscribed. `mailed` and `lost` count objects
    times recipients.

    \b
    jbi subscriptions
    jbi subscriptions renew 3f0c2a9be41d
    jbi subscriptions cancel 3f0c2a9be41d
    """
    if context.invoked_subcommand:
        return
    view = view_of(wide, columns, (_TERMS, _ACCOUNTS), as_json=as_json)
    rows: dict[str, dict[str, Any]] = {}
    for _, standing in asked(_delegates(settings.load()), SubscriptionsProxy.mail_subscriptions):
        for known in standing:
            row = rows.setdefault(known["uid"], {**known, "delegates": 0, "mailed": 0, "mail_waiting": 0, "lost": {}})
            row["delegates"] += 1
            row["mailed"] += known["mailed"]
            row["mail_waiting"] += known["mail_waiting"]
            row["lease"] = min(row["lease"], known["lease"])  # seconds; each delegate has granted its own
            row["mail_suspended"] = row["mail_suspended"] | known["mail_suspended"]
            row["lost"] = dict(Counter(row["lost"]) + Counter(known["lost"]))
    if as_json:
        show_json(list(rows.values()))
    else:
        show_tables(_mail_tables(list(rows.values())), view)


_TERMS = (
    Column("subscription", brief=True), Column("recipients", long=True), Column("template", long=True, spare=2),
    Column("predicate", long=True, spare=1), Column("filter", long=True, spare=3),
)  # fmt: skip
_ACCOUNTS = (
    Column("subscription", brief=True), Column("delegates", right=True), Column("mailed", right=True),
    Column("waiting", right=True), Column("lost", long=True, spare=1), Column("suspended", long=True, spare=2),
)  # fmt: skip


def _mail_tables(subscriptions: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """What e-mail subscriptions ask for, and what became of it."""
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


@subscriptions.command()
@click.argument("uid")
@pass_settings
def cancel(settings: Settings, uid: str) -> None:
    """Cancel an e-mail subscription at every delegate. The first characters of its id will do.

    \b
    jbi subscriptions cancel 3f0c2a9be41d
    """
    cancelled = _where_it_stands(settings.load(), uid, lambda proxy, uid: proxy.unsubscribe("", uid))
    click.echo(f"cancelled at {counted(len(cancelled), 'delegate')}")


@subscriptions.command()
@click.argument("uid")
@pass_settings
def renew(settings: Settings, uid: str) -> None:
    """Renew the lease of an e-mail subscription at every delegate: it ends [lease] mail from now. The first characters
    of its id will do.

    \b
    jbi subscriptions renew 3f0c2a9be41d
    jbi --set lease.mail=604800 subscriptions renew 3f0c2a9be41d  # for a week
    """
    config = settings.load()
    leases = _where_it_stands(config, uid, lambda proxy, uid: proxy.renew_mail(uid, config.lease.mail))
    terms = "" if not leases else f", for {min(lease.duration for lease in leases):g} s"
    click.echo(f"renewed at {counted(len(leases), 'delegate')}{terms}")


@subscriptions.command()
@click.argument("name")
@click.option("--to", required=True, metavar="WHERE", help="all, new, last, a time (2h, 2026-11-01T00:00Z), a place.")
@pass_settings
def reset(settings: Settings, name: str, to: str) -> None:
    """Have a durable subscription of yours go on from another place the next time.

    \b
    jbi subscriptions reset fusion-1 --to 2h
    jbi subscriptions reset fusion-1 --to all
    """
    config = settings.load()
    with SubscriberAdapter(config) as adapter, looking(config):
        known = adapter.reset_durable(name, to)
    click.echo(f"{printable(name)} begins at {printable(to)} at {counted(known, 'archive')}")


def _where_it_stands(config: Config, given: str, do: Callable[[SubscriptionsProxy, str], T]) -> list[T]:
    """What comes of it at each delegate that has the e-mail subscription whose id begins as `given`."""
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
    with _community(config) as community, looking(config):
        if wait:
            community.watch(template).wait(1, wait)
        items = community.lookup(template, EVERYTHING)
    ours = [item for item in items if DISSEMINATORS.intersection(item.types)]
    # by address: one that was killed and started again there is listed twice until its former lease has run out
    for item in {(item.proxy.endpoints, item.proxy.certificate): item for item in ours}.values():
        ref = msgspec.structs.replace(item.proxy, exported=SUBSCRIPTIONS, methods=SUBSCRIPTIONS_METHODS)
        yield SubscriptionsProxy(ref, config.security(), timeout=config.lookup.timeout)
