"""`jbi gateway`: HTTP for clients in any language."""

from __future__ import annotations

import json
import logging
import sys
import threading
from importlib.util import find_spec

import click

from jbi_pubsub.core.errors import ConfigurationError

from .servers import stop_on_signal, wait_for
from .settings import Settings, json_option, pass_settings


@click.command()
@click.option("--host", help="Address to listen on; default 127.0.0.1. Beyond loopback it needs [tls] and a token.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default 8170, 0 takes a free one.")
@click.option("--token", metavar="FILE", help="File with the secret that clients send; made when it is missing.")
@click.option("--document", is_flag=True, help="Print the OpenAPI document and end.")
@json_option
@pass_settings
def gateway(
    settings: Settings, host: str | None, port: int | None, token: str | None, document: bool, as_json: bool
) -> int:
    """Serve clients in any language over HTTP: publish, subscribe, query, the Common API. Ctrl-C ends.

    \b
    jbi gateway                            # http://127.0.0.1:8170
    jbi gateway --document                 # what there is to call, as OpenAPI
    jbi gateway --token secret             # clients send Authorization: Bearer
    curl http://127.0.0.1:8170/v1/types
    """
    if find_spec("uvicorn") is None:
        raise ConfigurationError(
            "the gateway needs uvicorn, which is not installed", hint="pip install 'jbi-pubsub[web]'"
        )
    # here: these take a second to import
    from jbi_pubsub import __version__
    from jbi_pubsub.web.gateway import Gateway
    from jbi_pubsub.web.listing import OPERATIONS
    from jbi_pubsub.web.operations import Table

    if document:
        click.echo(json.dumps(Table(OPERATIONS).document(__version__), indent=1))
        return 0
    config = settings.load(gateway__host=host, gateway__port=port, gateway__token=token)
    logging.getLogger("uvicorn").setLevel(max(logging.ERROR, logging.getLogger().level))
    stop = stop_on_signal()
    failed = threading.Event()

    def ended() -> None:
        failed.set()
        stop.set()

    server = Gateway(config, ended=ended)
    try:
        server.start()
        facts = {"ready": "gateway", "url": server.address}
        click.echo(json.dumps(facts) if as_json else f"gateway at {server.address}, /v1/openapi.json says what it does")
        sys.stdout.flush()
        wait_for(stop)
    finally:
        server.stop()
    return 1 if failed.is_set() else 0
