"""`jbi trader`: services of applications: offer them, find them by a constraint, and answer for a domain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec

from jbi_pubsub.core.errors import ConfigurationError, EntryError

from .near import NearNames, pair
from .options import HOST, PORT, JsonArguments, argument, command, option, repeated
from .settings import FOUND_SECONDS
from .show import Column, counted, printable, show_table


@click.group(cls=NearNames)
def trader() -> None:
    """Offer services of any kind, and find them by a constraint over their properties.

    \b
    jbi trader export demo.Tasking area=north sensors=3 \\
        --property "mandatory string area" --property "long sensors"
    jbi trader query demo.Tasking "area == 'north' and sensors > 2"
    jbi trader types
    jbi --set domain.traders=10.0.0.7:4160 trader serve
    """


class _TraderServe(JsonArguments):
    host: str | None = HOST
    port: int | None = PORT


@command(trader, _TraderServe)
def serve(given: _TraderServe) -> None:
    """Run the trader of a domain. It finds the offers in the lookup services, and queries the traders in [domain]
    traders for others.

    \b
    jbi trader serve
    jbi --set domain.traders=10.0.0.7:4160,10.0.0.8:4160 trader serve
    """
    from jbi_pubsub.domains.server import TraderServer  # here: the other commands start faster without

    from .servers import access_of, serving, stop_on_signal, tell_ready

    config = given.settings.load(pad__host=given.host, pad__port=given.port)
    stop = stop_on_signal()
    server = TraderServer(config, access=access_of(config, "trader"))
    with serving(server, stop):
        facts = {"ready": "trader", "id": server.service_id, "address": server.address, "domain": config.domain.number}
        text = f"trader {server.service_id[:8]} of domain {config.domain.number} at {server.address}"
        tell_ready(given.as_json, facts, text)


@command(trader, JsonArguments, name="types")
def types_(given: JsonArguments) -> None:
    """List service types with offers.

    \b
    jbi trader types
    """
    from jbi_pubsub.domains.services import Services

    with Services(given.settings.load(lookup__refused=FOUND_SECONDS), name="trader") as services:
        found = services.types()
    plain = [
        {"type": of.name, "parent": of.parent.name if of.parent else "", "properties": list(map(str, of.properties)),
         "offers": count}
        for of, count in found
    ]  # fmt: skip
    columns = (
        Column("type", name=True, long=True, dotted=True), Column("under", long=True, dotted=True),
        Column("properties", long=True), Column("offers", right=True),
    )  # fmt: skip
    rows = [
        (of.name, of.parent.name if of.parent else "", ", ".join(map(str, of.properties)), count) for of, count in found
    ]
    given.show(plain, lambda: show_table(columns, rows))


class _OfferQuery(JsonArguments):
    type_name: str = argument(metavar="TYPE")
    constraint: str = argument(required=False, default="", metavar="[CONSTRAINT]")
    prefer: str = option('Order: "max E", "min E", "with C", "random".', default="", metavar="PREFERENCE")
    limit: int = option("Maximum number of offers.", type=click.IntRange(1, 1_000), shown=100)
    exact: bool = option("No subtypes.", is_flag=True)
    follow: Any = option(
        "When to query the traders of other domains.", shown="if_no_local",
        type=click.Choice(["local_only", "if_no_local", "always"]),
    )  # fmt: skip
    timeout: float = option("Seconds to wait for the answer.", type=click.FloatRange(0, 60, min_open=True), shown=5.0)


@command(trader, _OfferQuery, name="query")
def query_(given: _OfferQuery) -> None:
    """Find offers of a service type with a CONSTRAINT over their properties.

    \b
    jbi trader query demo.Tasking
    jbi trader query demo.Tasking "sensors > 2" --prefer "max sensors" --limit 1
    jbi trader query demo.Tasking "'senior' in categories" --follow always --json
    """
    from jbi_pubsub.domains.services import Services
    from jbi_pubsub.domains.trader import OfferQuery

    asked = OfferQuery(
        given.type_name, given.constraint, given.prefer, exact_type=given.exact, returned=given.limit,
        follow=given.follow, timeout=given.timeout,
    )  # fmt: skip
    with Services(given.settings.load(lookup__refused=FOUND_SECONDS), name="trader") as services:
        found = services.query(asked)
    plain = {"offers": msgspec.to_builtins(found.offers), "partial": list(found.partial)}
    columns = (
        Column("offer"), Column("type", name=True, long=True, dotted=True), Column("at", long=True),
        Column("properties", long=True),
    )  # fmt: skip
    rows = [
        (each.id[:8], each.type, ", ".join(each.reference.endpoints), _shown(each.properties.items()))
        for each in found.offers
    ]

    def show() -> None:
        show_table(columns, rows, title=counted(len(rows), "offer"))
        for note in found.partial:
            click.echo(printable(note), err=True)

    given.show(plain, show)


class _Export(JsonArguments):
    type_name: str = argument(metavar="TYPE")
    values: tuple[str, ...] = argument(nargs=-1, metavar="[NAME=VALUE]...")
    properties: tuple[str, ...] = repeated(
        "Property of the type; repeatable. Without any: the type of existing offers.", "--property",
        metavar="'[MODE] [KIND] NAME'",
    )  # fmt: skip
    parent: str = option("Supertype, with existing offers.", default="", metavar="TYPE")


@command(trader, _Export)
def export(given: _Export) -> None:
    """Offer a service with its properties until this command ends. The address of the service is one of them.

    KIND is string, long, double, boolean or strings (parts with commas between); MODE is mandatory, readonly or
    mandatory_readonly.

    \b
    jbi trader export demo.Camera name=roof url=rtsp://10.0.0.9/roof \\
        --property "mandatory string name" --property "string url"
    """
    from jbi_pubsub.domains.service_type import ServiceType
    from jbi_pubsub.domains.services import Services

    from .servers import stop_on_signal, tell_ready, wait_for

    stop = stop_on_signal()
    with Services(given.settings.load(), name="trader") as services:
        known = {each.name: each for each, _ in services.types()}
        if given.parent and given.parent not in known:
            raise ConfigurationError(f"no offer has service type {given.parent}", hint="jbi trader types")
        type_ = known.get(given.type_name)
        if given.properties or given.parent or type_ is None:
            type_ = ServiceType.of(given.type_name, *given.properties, parent=known.get(given.parent))
        offer_id = services.offer(type_, dict(_values(type_, given.values)))
        facts = {"ready": "offer", "id": offer_id, "type": type_.name}
        tell_ready(given.as_json, facts, f"offer {offer_id[:8]} of {type_.name}; Ctrl-C withdraws it")
        wait_for(stop)


def _values(type_: Any, given: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """Values of texts, by their properties' kinds. Raises ConfigurationError, EntryError."""
    for text in given:
        name, value = pair(text, ConfigurationError(f"{text!r:.80} is not NAME=VALUE"))
        kind = type_.every[name].kind if name in type_.every else "string"
        try:
            yield name, _KINDS[kind](value)
        except (KeyError, ValueError):
            raise EntryError(f"property {name} is {value!r:.80}", hint=f"Its kind is {kind}") from None


_KINDS: dict[str, Any] = {
    "string": str,
    "long": int,
    "double": float,
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "strings": lambda text: tuple(part.strip() for part in text.split(",")) if text else (),
}


def _shown(values: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(
        f"{name}={'/'.join(value) if isinstance(value, tuple | list) else value}" for name, value in values
    )
