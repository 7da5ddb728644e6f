"""`jbi types conflicts`: types of which the nodes of a network have different schemas."""

from __future__ import annotations

from contextlib import closing

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.protocol.entries import local_name
from jbi_pubsub.protocol.status.networks import TypeConflict

from .options import JsonArguments, argument, command, option
from .repositories import found_repository, named
from .show import Column, counted, printable, show_table


class _Conflicts(JsonArguments):
    given: str = argument(required=False, default="", metavar="[NAME[/VERSION]]")
    use: str = option("Use the schema of this node on all nodes.", default="", metavar="NODE")
    at: str | None = option("Node to ask; default: the one found.", metavar="HOST:PORT")


@command(None, _Conflicts)
def conflicts(given: _Conflicts) -> None:
    """List types with different schemas at the nodes of a network, or decide for one schema.

    \b
    jbi types conflicts
    jbi types conflicts Intel_Imagery/1.0 --use bravo
    """
    from jbi_pubsub.node.admin import NodeProxy

    if given.use and not given.given:
        raise ConfigurationError("no type is named", hint="jbi types conflicts NAME/VERSION --use NODE")
    config, type_ = given.settings.load(), named(given.given)
    address = check_endpoint(given.at) if given.at else found_repository(config).endpoints[0]
    with closing(NodeProxy(address, config.security(), timeout=config.lookup.timeout)) as node:
        told = [each for each in node.type_conflicts() if not given.given or _is_called(each, type_)]
        if not given.use:
            given.show(msgspec.to_builtins(told), lambda: _show(told))
            return
        if len(told) == 1:
            type_ = TypeName(told[0].name, told[0].version)
        node.settle_type(type_, given.use)
    text = f"{type_} has the schema of node {given.use} now: a registration with another schema is refused"
    given.show({"type": str(type_), "node": given.use}, printable(text))


def _is_called(conflict: TypeConflict, type_: TypeName) -> bool:
    return type_.name in (conflict.name, local_name(conflict.name)) and conflict.version == type_.version


def _show(told: list[TypeConflict]) -> None:
    columns = (
        Column("type", name=True, long=True, dotted=True), Column("version"), Column("schema"),
        Column("nodes", long=True), Column("settled"), Column("differs at", long=True),
    )  # fmt: skip
    rows = [
        (of.name, of.version, each.digest or "none", ", ".join(each.nodes), "yes" * each.is_settled, of.differs)
        for of in told
        for each in of.schemas
    ]
    show_table(columns, rows, title=counted(len(told), "conflict"))
    if told and not any(each.is_settled for of in told for each in of.schemas):
        click.echo("settle one: jbi types conflicts NAME/VERSION --use NODE")
