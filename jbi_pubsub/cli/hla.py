"""`jbi hla`: federations of simulations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from jbi_pubsub.core.errors import ConfigurationError

from .near import NearNames
from .settings import Settings, json_option, pass_settings


@click.group(cls=NearNames)
def hla() -> None:
    """Federations in the sense of the HLA (IEEE 1516)."""


@hla.command()
@click.option("--federation", metavar="NAME", help="A federation execution to serve from the start.")
@click.option(
    "--fom", "modules", multiple=True, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="A module of its object model, in OMT XML; give it again for more.",
)  # fmt: skip
@click.option("--saves", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Keep saves here.")
@click.option(
    "--lease", metavar="SECONDS", type=click.FloatRange(0.5, 3600.0), default=10.0, show_default=True,
    help="After which a silent federate is resigned.",
)  # fmt: skip
@click.option("--one-at-a-time", is_flag=True, help="One synchronization point at a time.")
@click.option("--adds", is_flag=True, help="Have services for bridges that the standard does not have.")
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default any free one.")
@json_option
@pass_settings
def serve(
    settings: Settings,
    federation: str | None,
    modules: tuple[Path, ...],
    saves: Path | None,
    lease: float,
    one_at_a_time: bool,
    adds: bool,
    host: str | None,
    port: int | None,
    as_json: bool,
) -> None:
    """Run an RTI: federates find a federation execution by its name, wherever this runs. Ctrl-C ends.

    \b
    jbi hla serve --federation Air --fom air.xml
    jbi hla serve --federation Air --fom base.xml --fom air.xml --saves /var/lib/jbi/saves
    jbi hla serve                                  # federates create federation executions here
    """
    from jbi_pubsub.hla.execution import Options  # here: the other commands start faster without
    from jbi_pubsub.hla.fom import parsed
    from jbi_pubsub.hla.proxy import modules_of
    from jbi_pubsub.hla.server import RtiServer

    from .servers import access_of, raise_file_limit, stop_on_signal, wait_for

    if modules and not federation:
        raise ConfigurationError("--fom is the object model of a federation", hint="Give --federation NAME")
    parts = modules_of(modules)
    parsed(*parts)
    config = settings.load(pad__host=host, pad__port=port if port is not None else 0)
    raise_file_limit()
    stop = stop_on_signal()
    server = RtiServer(config, saves=saves, lease=lease, access=access_of(config, "rti"))
    try:
        server.start()
        if federation:
            server.create(federation, parts, Options(one_at_a_time=one_at_a_time, adds=adds))
        facts = {"ready": "rti", "address": server.address, "federation": federation or ""}
        text = f"RTI at {server.address}" + (f", serves {federation}" if federation else ", serves no federation yet")
        click.echo(json.dumps(facts) if as_json else text)
        sys.stdout.flush()
        wait_for(stop)
    finally:
        server.stop()
