"""`jbi services`: what is registered in the lookup services, now and as it changes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import click

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.domains.proxy import TRADER_TYPE
from jbi_pubsub.hla.proxy import HLA_BRIDGE_TYPE, RTI_LINK_TYPE
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EVERYTHING, LOOKUP_TYPE
from jbi_pubsub.lookup.entry import MAX_FIELDS, EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import (
    ANSWERING_TYPES,
    PAD_TYPE,
    PEER_TYPE,
    PUBLISHER_TYPE,
    RTI_TYPE,
    InformationType,
    SigningKeyEntry,
)

from .community import community
from .near import pair, told
from .options import TableArguments, command, flag, repeated
from .settings import looking
from .show import Column, Table, View, counted, cut, printable, show_tables, terminal_width
from .show import as_json as json_text
from .status import namesakes


class _Services(TableArguments):
    types: tuple[str, ...] = repeated("Service type, for example jbi.PublisherAdapterDelegate.", "--type")
    fields: tuple[str, ...] = repeated("A field of any entry; repeatable.", "--field", metavar="FIELD=VALUE")
    entries: tuple[str, ...] = repeated(
        "Entry of that class or a subclass, with all these values (as in a URL); repeatable.",
        "--entry",
        metavar="CLASS[?FIELD=VALUE&...]",
    )
    watch: bool = flag("Show changes as they come.")


@command(None, _Services)
def services(given: _Services) -> None:
    """List what is registered in the lookup services.

    \b
    jbi services
    jbi services --type jbi.PublisherRegistration --field publisher=418th
    jbi services --entry 'RequiredMetadataEntry?publisher=418th&language=EN'
    jbi services --watch
    jbi services --columns publishes,entries --wide
    """
    view = given.view([_SERVICES])
    fields = (pair(each, ConfigurationError(f"--field {each}: no FIELD=VALUE")) for each in given.fields)
    wanted = [*(_EntryPattern("", dict([field])) for field in fields), *map(_entry_wanted, given.entries)]
    template = ServiceTemplate(types=given.types)
    config = given.settings.load()
    with community(config) as joined:
        if given.watch:
            _watch_services(config, joined, template, wanted, view, as_json=given.as_json)
            return
        with looking(config):
            everything = joined.lookup(template, EVERYTHING)
        items = [item for item in everything if _has(item, wanted)]
        for name, places in namesakes(_named(items)):
            told_of = f"{len(places)} delegates are called {name}, at {', '.join(places)}"
            click.echo(printable(f"jbi: {told_of}: publishers use one or the other"), err=True)
        if not items:
            known = everything or joined.lookup(ServiceTemplate(), EVERYTHING)
            for line in _why_none(known, given.types if not everything else (), wanted):
                click.echo(printable(f"jbi: {line}"), err=True)
    table = Table(_SERVICES, list(map(_item_row, items)), counted(len(items), "service"))
    given.show([_item_facts(item) for item in items], lambda: show_tables([table], view))


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


_OURS: Final = ANSWERING_TYPES | {
    LOOKUP_TYPE, PAD_TYPE, PEER_TYPE, PUBLISHER_TYPE, RTI_TYPE, TRADER_TYPE, RTI_LINK_TYPE, HLA_BRIDGE_TYPE,
}  # fmt: skip
"""Types that services of this library have; applications have further ones."""


def _why_none(known: Sequence[ServiceItem], types: Sequence[str], wanted: Sequence[_EntryPattern]) -> Iterator[str]:
    """Reasons why nothing was found: what nobody has, and what is nearest to it."""
    names = {name for item in known for name in item.types}
    for name in types:
        if name not in names:
            yield f"no {name} is registered now" if name in _OURS else told("service type", name, names | _OURS)
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
    joined: JoinManager,
    template: ServiceTemplate,
    wanted: Sequence[_EntryPattern],
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

    cache = joined.watch(template, Listener())
    with looking(config):
        joined.wait_watching(cache, config.lookup.timeout)
    while True:
        time.sleep(3600.0)


class _EntryPattern(NamedTuple):
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


def _entry_wanted(text: str) -> _EntryPattern:
    name, question, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(question), max_num_fields=MAX_FIELDS)
    except ValueError as exc:
        raise ConfigurationError(f"--entry {text}: no CLASS[?FIELD=VALUE&...] ({exc})") from exc
    if not name:
        raise ConfigurationError(f"--entry {text}: no CLASS[?FIELD=VALUE&...]")
    return _EntryPattern(name, dict(pairs))


def _has(item: ServiceItem, wanted: Sequence[_EntryPattern]) -> bool:
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
    """Without what has a column of its own."""
    values = {k: v for k, v in entry.as_dict().items() if v is not None and k != "schema"}
    if entry.cls.name == InformationType.entry_name:
        values.pop("name", None)
    if entry.cls.name == SigningKeyEntry.entry_name:
        values = {"key": values.get("key", "")}  # the rest is kilobytes that prove it
    return (
        f"{entry.cls.name.rpartition('#')[2].removeprefix('jbi.')}({', '.join(f'{k}={v}' for k, v in values.items())})"
    )
