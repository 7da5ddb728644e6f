"""`jbi lookup` and `jbi pad`: servers that run until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import json
import logging
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec

from jbi_pubsub.core.access import AccessPolicy
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError
from jbi_pubsub.core.metrics import MetricsServer
from jbi_pubsub.core.process import version
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.address import check_endpoint
from jbi_pubsub.lookup.client.proxy import EXPORTED, Administered, RegistrarProxy
from jbi_pubsub.lookup.opening import open_lookup

from .near import NearNames
from .options import HOST, METRICS_PORT, PORT, JsonArguments, argument, command, flag, group, option
from .settings import CommandSettings, pass_settings
from .show import counted
from .signals import ending_signals

if TYPE_CHECKING:
    from jbi_pubsub.pad.server.server import DisseminationServer

log = logging.getLogger("jbi_pubsub.cli")

Put = Callable[[RegistrarProxy, Sequence[str]], Administered]
Change = Callable[[RegistrarProxy, Sequence[str], Sequence[str]], Administered]


class _Lookup(JsonArguments):
    host: str | None = HOST
    port: int | None = option("Port to listen on; default 4160, 0 takes a free one.", type=click.IntRange(0, 65535))
    state: str | None = option("Keep registrations in this file over restarts.", type=click.Path(dir_okay=False))
    ephemeral: bool = flag("Keep nothing, even if the configuration says so.")
    metrics_port: int | None = METRICS_PORT


@group(_Lookup)
def lookup(given: _Lookup) -> None:
    """Run a lookup service, or administer one.

    \b
    jbi lookup                          # on 127.0.0.1:4160
    jbi lookup --port 0 --state reg.db  # any port, durable
    jbi --group lab lookup --port 0     # serves the group "lab"
    jbi lookup admin groups set lab ""  # other groups from now on
    """
    state = "" if given.ephemeral else given.state
    config, origins = given.settings.explain(
        lookup__host=given.host, lookup__port=given.port, lookup__state=state, metrics__port=given.metrics_port
    )
    if "lookup.locators" not in origins:  # the default is for applications: two federations on a host are to stay two
        config = msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, locators=()))
    raise_file_limit()
    stop = stop_on_signal()
    server = open_lookup(config, access_of(config, "lookup"), destroyed=stop.set)
    server.start()
    info = server.info()
    facts = {"id": info.service_id, "address": server.address, "groups": list(info.groups)}
    announce(
        given.as_json,
        {"ready": "lookup", **facts, **metrics_of(server.metrics)},
        f"lookup service {info.service_id[:8]} at {server.address}, groups {_groups(info.groups)}",
    )
    wait_for(stop)
    server.stop()


def access_of(config: Config, component: str) -> AccessPolicy | None:
    """Access policy of a server that is no delegate; None: everybody everything. Raises PolicyError."""
    if not config.policy.file and not config.policy.users:
        return None
    from jbi_pubsub.policy import settings  # here: what is off is not imported

    return settings.access_of(config, component)


@lookup.group(cls=NearNames)
@click.option("--at", "address", metavar="HOST:PORT", help="Lookup service; default: the configured locator.")
@pass_settings
@click.pass_context
def admin(context: click.Context, settings: CommandSettings, address: str | None) -> None:
    """Administer a running lookup service.

    \b
    jbi lookup admin groups                                   # the groups that it serves
    jbi --locator 10.0.0.7:4160 lookup admin locators add 10.0.0.8:4160
    jbi lookup admin --at 10.0.0.7:4160 port set 4161
    """
    context.meta["jbi.address"] = address or _administered(settings.load().lookup.locators)


def _administered(locators: tuple[str, ...]) -> str:
    """Which lookup service is meant when none is named. Raises ConfigurationError."""
    if len(locators) != 1:
        raise ConfigurationError(
            f"which lookup service? Locators are configured for {', '.join(locators) or 'none'}",
            hint="Name it with --at HOST:PORT",
        )
    return locators[0]


class _RegistrarChange(JsonArguments):
    action: str = argument(type=click.Choice(("show", "set", "add", "remove")), default="show")
    names: tuple[str, ...] = argument(metavar="[NAME]...", nargs=-1)
    none: bool = flag("With `set`: none.")

    def done(self, what: str, change: Change, put: Put) -> Administered:
        """The state after the action. Raises UsageError."""
        _check_set(self.names, self.action, what, self.none)
        with _registrar(self.settings) as proxy:
            match self.action:
                case "set":
                    return put(proxy, self.names)
                case "add" | "remove":
                    return change(proxy, *((self.names, ()) if self.action == "add" else ((), self.names)))
            if self.names:
                raise click.UsageError(f"`show` takes nothing more: {self.names[0]!r}")
            return proxy.administered()


@command(admin, _RegistrarChange)
def groups(given: _RegistrarChange) -> None:
    """Show or change the groups that it serves ("" is the public one).

    \b
    jbi lookup admin groups
    jbi lookup admin groups add lab
    jbi lookup admin groups set lab ""
    jbi lookup admin groups set --none         no client finds it
    """
    found = given.done("NAME", RegistrarProxy.change_groups, RegistrarProxy.set_groups)
    tell_ready(given.as_json, {"groups": list(found.groups)}, f"serves {_groups(found.groups)}")


class _Locators(_RegistrarChange):
    names: tuple[str, ...] = argument(metavar="[HOST:PORT]...", nargs=-1)


@command(admin, _Locators)
def locators(given: _Locators) -> None:
    """Show or change the lookup services that it joins in addition to those that discovery finds.

    \b
    jbi lookup admin locators
    jbi lookup admin locators add other.example.org:4160
    """
    found = given.done("HOST:PORT", RegistrarProxy.change_locators, RegistrarProxy.set_locators)
    line = f"joins {', '.join(found.locators) or 'nobody by address'}"
    tell_ready(given.as_json, {"locators": list(found.locators)}, line)


class _Port(JsonArguments):
    action: str = argument(type=click.Choice(("show", "set")), default="show")
    number: int | None = argument(type=click.IntRange(0, 65535), required=False)


@command(admin, _Port)
def port(given: _Port) -> None:
    """Show or change the port that it listens on; 0 takes a free one.

    \b
    jbi lookup admin port
    jbi lookup admin port set 4161
    """
    if (given.number is None) == (given.action == "set"):
        raise click.UsageError("`port set` needs a number, `port show` none")
    with _registrar(given.settings) as proxy:
        found = proxy.administered() if given.number is None else proxy.set_port(given.number)
    tell_ready(given.as_json, {"port": found.port}, f"listens on port {found.port}")


def _check_set(given: tuple[str, ...], action: str, what: str, none: bool) -> None:
    """Check that what is forgotten does not take a lookup service out of everything."""
    if none and (given or action != "set"):
        raise click.UsageError("--none goes with `set`, and without names")
    if action != "show" and not given and not none:
        raise click.UsageError(f"{action} what? Give a {what}" + (", or --none" if action == "set" else ""))


@admin.command()
@click.confirmation_option(prompt="Forget all registrations and end this lookup service?")
@pass_settings
def destroy(settings: CommandSettings) -> None:
    """End it permanently; all registrations are deleted.

    \b
    jbi lookup admin --at 10.0.0.7:4160 destroy --yes
    """
    with _registrar(settings) as proxy:
        proxy.destroy()
    click.echo("destroyed")


@contextmanager
def _registrar(settings: CommandSettings) -> Iterator[RegistrarProxy]:
    address = check_endpoint(click.get_current_context().meta["jbi.address"])
    try:
        with closing(RegistrarProxy(ServiceRef("", EXPORTED, (address,)), settings.load().security())) as proxy:
            yield proxy
    except ProtocolError as exc:
        raise ProtocolError(
            f"{address} is not a lookup service of this version: {exc.message}",
            hint="`jbi services` lists those there are",
        ) from exc


class _Pad(JsonArguments):
    name: str = argument()
    location: str = argument()
    host: str | None = HOST
    port: int | None = PORT
    state: str | None = option(
        "File for e-mail subscriptions; unsent mail is in FILE.mails.", type=click.Path(dir_okay=False)
    )
    policy: str | None = option("Policy file for access and quality of service.", type=click.Path(dir_okay=False))
    types: str | None = option("Folder for a type repository.", type=click.Path(file_okay=False), metavar="FOLDER")
    archive: str | None = option("Folder for an archive.", type=click.Path(file_okay=False), metavar="FOLDER")
    drain: float = option("Seconds for deliveries when stopping.", type=float, shown=5.0)
    metrics_port: int | None = METRICS_PORT


@command(None, _Pad)
def pad(given: _Pad) -> None:
    """Run a delegate with a name and a location of your choice.

    \b
    jbi pad alpha rome
    jbi --set mail.host=mail.example.org pad bravo paris --port 4200
    jbi pad alpha rome --policy policy.toml
    jbi pad alpha rome --types types/      # see `jbi types`
    jbi pad alpha rome --archive archive/  # see `jbi archive`, `jbi query`
    """
    for what, word in (("name", given.name), ("location", given.location)):
        if not word.strip():
            raise ConfigurationError(
                f"a delegate needs a {what}, not {word!r}",
                hint="Publishers find it by these two: jbi pad alpha rome",
            )
    # here, as a lookup service starts faster without them
    from jbi_pubsub.codegen.repository import repository_of
    from jbi_pubsub.pad.server.server import DisseminationServer

    managed = {} if given.policy is None else {"policy__file": given.policy, "qos__mode": "on"}
    config = given.settings.load(
        pad__host=given.host,
        pad__port=given.port,
        pad__state=given.state,
        metrics__port=given.metrics_port,
        types__folder=given.types,
        archive__folder=given.archive,
        **managed,
    )
    raise_file_limit()
    stop = stop_on_signal()
    repository = repository_of(config)
    try:
        server = DisseminationServer(config, repository, characteristics=(given.name, given.location))
        server.start()
        _run_pad(server, stop, given)
    finally:
        if repository.registry is not None:
            repository.registry.close()


def _run_pad(server: DisseminationServer, stop: threading.Event, given: _Pad) -> None:
    from jbi_pubsub.core.xpath.predicate import languages  # as above

    facts = {
        "ready": "pad", "id": server.server_id, "address": server.address, "name": given.name,
        "location": given.location, "languages": languages(), **metrics_of(server.metrics),
    }  # fmt: skip
    where = f"({given.name}, {given.location}) {server.server_id[:8]} at {server.address}"
    announce(given.as_json, facts, f"delegate {where}")
    if not _is_found(server, stop):
        away = server.community.refused() or server.community.absent(ALONE_SECONDS)
        log.warning("%s. Clients can't find this delegate until one answers. It continues to look", away)
    wait_for(stop)
    status = server.status()
    left = server.stop(given.drain)
    kept = server.status()["mail"]["kept"]  # not what has gone out meanwhile
    click.echo(_ended(left, status["mail"], kept, state=status["state"]), nl=False, err=True)


def _is_found(server: DisseminationServer, stop: threading.Event) -> bool:
    """Whether a lookup service answers in the time that people wait for one; or we are to stop."""
    deadline = time.monotonic() + ALONE_SECONDS
    while not (server.community.connected() or stop.wait(SIGNAL_SECONDS)):
        if time.monotonic() >= deadline:
            return False
    return True


def _ended(left: int, mail: dict[str, Any], kept: int, *, state: str) -> str:
    """Message on what a delegate leaves undone: lines, none when it is nothing. `mail` is its status before it stopped;
    `kept` mails are on disk now."""
    unsent = min(left, mail["queued"] - mail["kept"])
    told = [f"stopped with {counted(left, 'object')} undelivered, {unsent} of them by mail"] if left else []
    if mail["away"] and mail["queued"]:
        told.append(f"the mail server {mail['server']} is away: {mail['away']}")
    if unsent:
        told.append("with --state FILE, mail of e-mail subscriptions is kept for the next start")
    if kept:
        told.append(f"{counted(kept, 'mail')} waited in {state}.mails, to go out after the next start")
    return "".join(f"jbi: {line}\n" for line in told)


def announce(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """That a server is ready, in its log as well, which says what it is of before anything happens."""
    tell_ready(as_json, facts, text)
    log.info("%s, version %s", text, version())


def tell_ready(as_json: bool, facts: dict[str, Any], text: str) -> None:
    """A line at once: others wait for it. Where nobody reads our output any more, the log has it."""
    try:
        click.echo(json.dumps(facts) if as_json else text)
        sys.stdout.flush()
    except OSError as exc:
        log.warning("%s (stdout: %s)", text, exc.strerror)


class ServerProcess(Protocol):
    """Runs from its start until it is stopped."""

    def start(self) -> object: ...
    def stop(self) -> object: ...


@contextmanager
def serving(server: ServerProcess, stop: threading.Event) -> Iterator[None]:
    """A server that runs until it is to stop; in the `with` it is told that it is ready."""
    try:
        server.start()
        yield
        wait_for(stop)
    finally:
        server.stop()


def metrics_of(metrics: MetricsServer | None) -> dict[str, int]:
    """Where they are told, of the facts of a server."""
    return {"metrics": metrics.port} if metrics is not None else {}


SIGNAL_SECONDS: Final = 0.25
"""Delay at worst until a signal is noticed."""
ALONE_SECONDS: Final = 3.0
"""Longest that a delegate says nothing while no lookup service answers: with one there it takes a tenth."""


def stop_on_signal() -> threading.Event:
    """Set by SIGTERM, SIGHUP (see ending_signals) and SIGINT from now on: before anybody is told that we are ready."""
    stop = threading.Event()
    for number in (*ending_signals(), signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


class ServerEnd:
    """The end of a server: by a signal, or because it has failed, which is another exit code."""

    def __init__(self) -> None:
        self.stop = stop_on_signal()
        self.code = 0

    def fail(self) -> None:
        """The server has ended by itself."""
        self.code = 1
        self.stop.set()


def wait_for(stop: threading.Event) -> None:
    """Python runs a signal's handler only when the main thread runs on, and one that comes just before it begins to
    wait does not end that wait: so no wait is long. What a server is made of stays until then: the garbage collector
    need not look at it again."""
    gc.collect()
    gc.freeze()
    while not stop.wait(SIGNAL_SECONDS):
        pass
    gc.unfreeze()  # else libraries in C complain at the end that something of theirs was left


def raise_file_limit() -> None:
    """A connection is a file: use what the system allows us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _groups(names: tuple[str, ...]) -> str:
    return ", ".join(name or "public" for name in names) or "none"
