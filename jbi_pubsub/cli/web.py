"""`jbi web`: the console in a browser."""

from __future__ import annotations

import logging
import webbrowser
from typing import TYPE_CHECKING

import click

from jbi_pubsub.core import extras

from .options import JsonArguments, command, flag, option
from .servers import ServerEnd, tell_ready, wait_for

if TYPE_CHECKING:
    from jbi_pubsub.web.console import Connect


class _Web(JsonArguments):
    host: str | None = option("Address to listen on; default 127.0.0.1. Beyond loopback it needs [tls].")
    port: int | None = option("Port to listen on; default 8160, 0 takes a free one.", type=click.IntRange(0, 65535))
    admin: bool = flag("Allow to cancel, drain, and administer lookup services and nodes.")
    opens: bool = flag("Open it in this host's browser.", "--open")


@command(None, _Web)
def web(given: _Web) -> int:
    """Show a federation in a browser.

    Prints an address for one browser; after its use, an address for the next one. Ctrl-C ends.

    \b
    jbi web                  # http://127.0.0.1:8160, read only
    jbi web --admin --open   # with changes
    jbi web --port 0         # any free port
    ssh -L 8160:127.0.0.1:8160 HOST   # from another host, without TLS
    """
    extras.need("web", "the console")
    # here: these take a second to import
    from jbi_pubsub.web.federation import Observer
    from jbi_pubsub.web.pages import open_console
    from jbi_pubsub.web.server import WebServer
    from jbi_pubsub.web.unsubscribe import MailLinks, observed, router

    config = given.settings.load(web__host=given.host, web__port=given.port, web__admin=True if given.admin else None)
    for name in ("uvicorn", "nicegui", "socketio", "engineio", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.ERROR, logging.getLogger().level))
    ending = ServerEnd()

    def announce(ready: bool = False) -> None:
        facts = {"ready": "web"} if ready else {"next": "web"}
        text = f"console at {server.url}" if ready else f"another browser: {server.url}"
        if server.login_url:
            facts["login"] = server.login_url
            text += f"\nwith a password: {server.login_url}" * ready
        tell_ready(given.as_json, facts | {"url": server.url, "admin": config.web.admin}, text)

    server = WebServer(config, entered=announce, ended=ending.fail)
    observer = Observer(config)
    server.add(router(MailLinks(observed(observer), config.security())), session=False)
    console = open_console(config, observer, server, _nodes() if config.web.admin else None)
    try:
        observer.start()
        server.start()
        announce(ready=True)
        if given.opens:
            webbrowser.open(server.url)
        wait_for(ending.stop)
    finally:
        logging.getLogger("nicegui").setLevel(logging.CRITICAL)  # of tasks that take long to end, which end with us
        server.stop()
        console.close()
        observer.stop()
    return ending.code


def _nodes() -> Connect:
    """Function that connects to a node."""
    from jbi_pubsub.node.admin import NodeProxy

    return NodeProxy
