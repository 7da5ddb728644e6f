"""`jbi gateway`: HTTP for clients in any language."""

from __future__ import annotations

import json
import logging

import click

from jbi_pubsub.core import extras

from .options import JsonArguments, command, flag, option
from .servers import ServerEnd, serving, tell_ready


class _Gateway(JsonArguments):
    host: str | None = option("Address to listen on; default 127.0.0.1. Beyond loopback it needs [tls] and a token.")
    port: int | None = option("Port to listen on; default 8170, 0 takes a free one.", type=click.IntRange(0, 65535))
    token: str | None = option(
        "File with the secret that clients send; made if it is missing.", metavar="FILE", type=click.Path()
    )
    document: bool = flag("Print the OpenAPI document and end.")


@command(None, _Gateway)
def gateway(given: _Gateway) -> int:
    """Serve clients in any language over HTTP: publish, subscribe, query, Common API. Ctrl-C ends.

    \b
    jbi gateway                            # http://127.0.0.1:8170
    jbi gateway --document                 # the calls, as an OpenAPI document
    jbi gateway --token token.txt          # clients send Authorization: Bearer
    curl http://127.0.0.1:8170/v1/types
    """
    extras.need("web", "the gateway")
    # here: these take a second to import
    from jbi_pubsub import __version__
    from jbi_pubsub.web.gateway import Gateway
    from jbi_pubsub.web.listing import OPERATIONS
    from jbi_pubsub.web.operations import OperationTable

    if given.document:
        click.echo(json.dumps(OperationTable(OPERATIONS).document(__version__), indent=1))
        return 0
    config = given.settings.load(gateway__host=given.host, gateway__port=given.port, gateway__token=given.token)
    logging.getLogger("uvicorn").setLevel(max(logging.ERROR, logging.getLogger().level))
    ending = ServerEnd()
    server = Gateway(config, ended=ending.fail)
    with serving(server, ending.stop):
        facts, at = {"ready": "gateway", "url": server.address}, server.address
        tell_ready(given.as_json, facts, f"gateway at {at}, /v1/openapi.json says what it does")
    return ending.code
