"""`jbi domain`: what is found by the same lookup services, and its links to other domains."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from jbi_pubsub.web.domainview import TABLES, DomainView, rows_of
from jbi_pubsub.web.federation import Observer

from .community import check_lookup
from .near import NearNames
from .options import TableArguments, command
from .settings import looking
from .show import Column, Table, show_tables

LOOK_SECONDS: Final = 0.1
"""Between two looks, until all have answered."""
_NAMES: Final = frozenset({"name", "address", "bridge", "from", "to", "type", "application", "client", "service type"})
_LONG: Final = frozenset({"state", "predicate", "for", "parameters", "watches", "constraint"}) | _NAMES - {"from", "to"}
_SPARE: Final = {"#importance": 1, "#lost": 1, "#relays": 2, "#crossed": 2}
_COLUMNS: Final = {
    title: [
        Column(
            head.lstrip("#"), head in _LONG, _SPARE.get(head, 0), head[0] == "#", name=head in _NAMES,
            dotted=head in ("type", "service type"),
        )
        for head in heads
    ]
    for title, heads in TABLES.items()
}  # fmt: skip


@click.group(cls=NearNames)
def domain() -> None:
    """Show a domain: the services in the same lookup services.

    \b
    jbi domain status
    """


@command(domain, TableArguments)
def status(given: TableArguments) -> None:
    """Show the servers and offers of a domain, and its links to other domains: the subscribers of their objects, and
    the copies that they save.

    \b
    jbi domain status
    jbi domain status --columns members,saved
    jbi domain status --json
    """
    view = given.view(_COLUMNS.values())
    config = given.settings.load()
    check_lookup(config)
    observer = Observer(config, every=LOOK_SECONDS)
    seen = DomainView(config, observer)
    observer.start()
    try:
        with looking(config):
            found = seen.wait(config.lookup.timeout)
    finally:
        seen.close()
        observer.stop()
    for trouble in found.troubles:
        click.echo(f"jbi: {trouble}", err=True)
    titles = {"Servers": found.title}
    tables = [
        Table(_COLUMNS[title], rows, titles.get(title, title.lower())) for title, rows in rows_of(found).items() if rows
    ]
    given.show(msgspec.to_builtins(found), lambda: show_tables(tables, view))
