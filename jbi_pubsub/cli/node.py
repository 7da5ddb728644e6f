"""`jbi node`: a node of this host, and what it is doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ProtocolError, StorageError, UnknownUidError, WireTimeoutError

from .installation import install, uninstall
from .near import NearNames, told
from .options import COUNT, FOLDER, TIMEOUT, Arguments, JsonArguments, argument, command, flag, option
from .servers import announce, raise_file_limit, stop_on_signal, wait_for
from .settings import CommandSettings
from .show import counted, printable, show_facts, show_json, show_rows

if TYPE_CHECKING:
    from jbi_pubsub.node.admin import NodeProxy
    from jbi_pubsub.node.identity import NodeProcess
    from jbi_pubsub.node.service import NodeService

READY_SECONDS: Final = 60.0
"""For a node in the background to be ready: its archive may have to be recovered."""

FOLLOW_SECONDS: Final = 0.5
"""Between two looks at a log."""
READ_MOST: Final = 64 << 10
"""Bytes of what it says that are read."""


@click.group(cls=NearNames)
def node() -> None:
    """Run everything in one process: lookup service, delegate, types, archive.

    \b
    jbi node start                # until Ctrl-C
    jbi node start --detach       # in the background
    jbi node status
    jbi node clients              # connected clients; `sequences`: their registrations and subscriptions
    jbi node peers                # other nodes, with [network.NAME]; `networks`: their links
    jbi node log --follow
    jbi node stop
    """


def started(settings: CommandSettings, **own: object) -> Config:
    """Configuration that a node is started with. The default locators are for applications: two federations on a host
    are to stay two, unless it has no lookup service of its own."""
    config, origins = settings.explain(**own)
    lookup = config.lookup
    if "lookup.locators" not in origins and config.node.lookup == "own":
        lookup = msgspec.structs.replace(lookup, locators=())
    if "lookup.multicast" not in origins and config.network:  # nodes find each other by their networks, which is enough
        lookup = msgspec.structs.replace(lookup, multicast=False)
    return msgspec.structs.replace(config, lookup=lookup)


class _NodeFolder(Arguments):
    folder: Path | None = option("Folder of the node; default: [node] folder.", type=FOLDER)

    def running(self) -> tuple[Path, NodeProcess]:
        """The folder and the node that runs there. Raises StorageError."""
        from jbi_pubsub.node.identity import default_folder, is_held, running

        config = self.settings.load()
        path = self.folder or (Path(config.node.folder) if config.node.folder else default_folder())
        there = running(path)
        if there is None:
            starting = is_held(path)
            raise StorageError(
                f"a node is starting or stopping in {path}" if starting else f"no node runs in {path.absolute()}",
                hint="Try again" if starting else "Start one with `jbi node start`, or name its --folder",
            )
        return path, there


class _NodePlace(_NodeFolder):
    at: str | None = option("Address of another node.", metavar="HOST:PORT")

    @contextmanager
    def calls(self) -> Iterator[NodeProxy]:
        """The node that is meant: that of a folder, or `at` an address. Raises StorageError, WireError."""
        from jbi_pubsub.core.wire.address import check_endpoint
        from jbi_pubsub.node.admin import NodeProxy

        config = self.settings.load()
        address = check_endpoint(self.at) if self.at is not None else self.running()[1].address
        try:
            with closing(NodeProxy(address, config.security(), timeout=config.lookup.timeout)) as proxy:
                yield proxy
        except ProtocolError as exc:
            hint = "A node's address is that of its delegate, not of its lookup service: see `jbi services`"
            raise ProtocolError(
                f"{address} is not a node of this version: {exc.message}", hint=exc.hint or hint
            ) from exc


class _NodeShow(_NodePlace, JsonArguments):
    """A node of which something is shown."""


class _Start(_NodeFolder, JsonArguments):
    name: str | None = option("Name for people; default: [node] name.")
    port: int | None = option(
        "Port of its lookup service; default 4160, 0 any free one.", type=click.IntRange(0, 65535)
    )
    detach: bool = flag("Run in the background, with its log in the folder.")


@command(node, _Start)
def start(given: _Start) -> None:
    """Start a node, and run it until SIGTERM or Ctrl-C.

    \b
    jbi node start
    jbi node start --detach --name laptop
    jbi --set node.archive=false node start --folder /var/lib/jbi
    """
    folder = str(given.folder) if given.folder else None
    own: dict[str, object] = {"node__folder": folder, "node__name": given.name, "lookup__port": given.port}
    config = started(given.settings, **own)
    if given.detach:
        _start_detached(given.settings, config, own, as_json=given.as_json)
        return
    from jbi_pubsub.node.log import NodeLog  # here: what does not start a node is faster without
    from jbi_pubsub.node.service import NodeService

    raise_file_limit()
    stop = stop_on_signal()
    drains: list[float] = []

    def ended(drain: float) -> None:
        drains.append(drain)
        stop.set()

    log = NodeLog(config.log)
    try:
        service = NodeService(config, log=log, ended=ended)
        try:
            service.start()
            _tell(service, as_json=given.as_json)
            wait_for(stop)
        finally:
            left = service.stop(*drains[:1])
    finally:
        log.close()
    if left:
        click.echo(f"jbi: stopped with {counted(left, 'object')} undelivered", err=True)


def _tell(service: NodeService, *, as_json: bool) -> None:
    """That it is ready: who waits for it, and on this host."""
    from jbi_pubsub.node.identity import NodeProcess

    lookup = service.lookup.address if service.lookup is not None else ""
    identity = service.identity
    address = service.delegate.addresses[0]
    file = service.config.log.file and str(Path(service.config.log.file).absolute())
    gateway = ", ".join(service.gateways)
    running = NodeProcess(os.getpid(), identity.id, service.name, identity.epoch, address, lookup, file, gateway)
    service.folder.tell(running)
    facts = {"ready": "node", **msgspec.structs.asdict(running), "folder": str(service.folder.path)}
    where = f"{address}, lookup service at {lookup or 'none of its own'}" + (f", {gateway}" if gateway else "")
    announce(as_json, facts, f"node {service.name} {identity.id[:8]} at {where}")


def _start_detached(settings: CommandSettings, config: Config, own: dict[str, object], *, as_json: bool) -> None:
    """A process of its own, which this one waits for until it is ready. Raises StorageError with what it has said."""
    from jbi_pubsub.node.identity import default_folder

    folder = Path(config.node.folder) if config.node.folder else default_folder()
    log, said = Path(config.log.file or folder / "node.log"), folder / "node.err"
    own = {**{key.replace("__", "."): value for key, value in own.items()}, "log.file": log}
    given = [word for key, value in own.items() if value is not None for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "jbi_pubsub", *settings.words(), *given, "node", "start", "--json"]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            process = subprocess.Popen(  # noqa: S603  # ourselves
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, start_new_session=True
            )
    except OSError as exc:
        raise StorageError(
            f"[node] folder {folder}: {exc.strerror or exc}", hint="Name one that can be written"
        ) from exc
    line = _first_line(process)
    if not line:
        code = process.wait()
        with said.open("rb") as told:
            why = told.read(READ_MOST).decode(errors="replace").strip().splitlines()
        raise StorageError(f"the node has ended, exit code {code}: {why[-1] if why else 'it said nothing'}")
    process.returncode = 0  # it outlives us: nobody waits for it
    facts = msgspec.json.decode(line)
    also = f", {facts['gateway']}" if facts.get("gateway") else ""
    where = f"{facts['address']}, process {facts['pid']}, log {log}{also}"
    announce(as_json, facts, f"node {facts['name']} {facts['id'][:8]} at {where}")


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Within READY_SECONDS; b"" if it ends without one. Raises WireTimeoutError."""
    assert process.stdout is not None
    with process.stdout as told:
        ready, _, _ = select.select([told], [], [], READY_SECONDS)
        if not ready:
            process.terminate()
            raise WireTimeoutError(f"the node was not ready within {READY_SECONDS:g} s")
        return told.readline(READ_MOST)


class _Stop(_NodePlace):
    seconds: float = option("Seconds to wait for its end.", "--wait", type=float, shown=30.0)
    drain: float = option("With --at: seconds for deliveries.", type=click.FloatRange(0, 60), shown=5.0)


@command(node, _Stop)
def stop(given: _Stop) -> None:
    """Stop the node of a folder, and wait for its end; with --at, tell another node to stop.

    \b
    jbi node stop
    jbi node stop --at 10.0.0.7:4170
    jbi --node tent-3 node stop
    """
    from jbi_pubsub.node.identity import wait_until_free

    if given.at is not None:
        with given.calls() as calls:
            calls.shutdown(given.drain)
        click.echo(f"the node at {given.at} stops")
        return
    path, there = given.running()
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(there.pid, signal.SIGTERM)
    if not wait_until_free(path, given.seconds):
        raise WireTimeoutError(
            f"process {there.pid} has not ended within {given.seconds:g} s",
            hint="It delivers what waits; --wait longer",
        )
    click.echo(f"node {there.name} has stopped")


@command(node, _NodeShow)
def status(given: _NodeShow) -> None:
    """Show the status of a node, by its folder or address. Exit code 1: it does not run.

    \b
    jbi node status
    jbi --node tent-3 node status --json
    """
    path, there = (None, None) if given.at is not None else given.running()
    with given.calls() as calls:
        told = calls.details()
    known = (
        msgspec.structs.asdict(there) if there is not None else {"id": told.id, "name": told.name, "address": given.at}
    )
    found = _status(given.settings.load(), str(known["address"]))
    if given.as_json:
        show_json({**known, **({"folder": str(path)} if path is not None else {}), "status": found})
        return
    counts = found["counts"]
    facts = [("node", f"{known['name']} {known['id']}")]
    if there is not None:
        facts += [("epoch", str(there.epoch)), ("process", str(there.pid))]
    facts.append(("address", str(known["address"])))
    if there is not None:
        facts.append(("lookup service", there.lookup or "none of its own"))
        facts += [("gateway", there.gateway)] if there.gateway else []
        facts.append(("folder", str(path)))
    facts += [
        ("up", f"{found['uptime']:.0f} s"),
        ("clients", f"{counted(counts['publishers'], 'publisher')}, {counted(counts['sessions'], 'subscriber')}"),
        (
            "sequences",
            f"{counted(counts['registrations'], 'registration')}, {counted(counts['subscriptions'], 'subscription')}",
        ),
        ("published", str(found["published"])),
        ("delivered", str(found["delivered"])),
    ]
    if there is not None:
        facts.append(("memory", f"{_resident(there.pid) >> 20} MiB"))
    show_facts(facts, title=f"node {known['name']}")


def _status(config: Config, at: str) -> dict[str, Any]:
    from jbi_pubsub.core.wire import ServiceRef
    from jbi_pubsub.core.wire.control import ControlClient
    from jbi_pubsub.protocol.services import STATUS

    with closing(ControlClient(ServiceRef("", STATUS, (at,)), config.security())) as client:
        return client.call("overview", dict[str, Any])


@command(node, _NodeShow)
def details(given: _NodeShow) -> None:
    """Show the public data of a node: id, addresses, limits.

    \b
    jbi node details
    jbi node details --at 10.0.0.7:4170 --json
    """
    with given.calls() as calls:
        told = msgspec.to_builtins(calls.details())
    facts = [(name.replace("_", " "), _plain(fact)) for name, fact in told.items()]
    given.show(told, lambda: show_facts(facts, title=f"node {told['name']}"))


def _plain(fact: object) -> str:
    """A fact as people read it."""
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, float):
        return f"{fact:.0f} s"
    return ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)


@command(node, _NodeShow)
def clients(given: _NodeShow) -> None:
    """List the connected clients.

    \b
    jbi node clients
    """
    with given.calls() as calls:
        found = calls.clients()
    names = ("id", "role", "client", "user", "address", "sequences")
    given.show(found, lambda: show_rows(names, [tuple(each[name] for name in names) for each in found]))


@command(node, _NodeShow)
def networks(given: _NodeShow) -> None:
    """List the networks of a node, with their traffic.

    \b
    jbi node networks
    jbi node networks --json
    """
    with given.calls() as calls:
        found = calls.networks()
    rows = [
        (e.name, e.plugin, e.place, e.peers, e.sent, e.received, f"{e.repairs:.1f} %", f"{e.rate:,.0f}", e.trouble)
        for e in found.links
    ]
    heads = ("network", "plugin", "place", "nodes", "sent", "received", "again", "bytes/s", "trouble")
    given.show(msgspec.to_builtins(found), lambda: show_rows(heads, rows))


@command(node, _NodeShow)
def peers(given: _NodeShow) -> None:
    """List the other nodes that a node hears on its networks.

    \b
    jbi node peers
    """
    with given.calls() as calls:
        found = calls.networks().peers
    rows = [
        (e.name, e.id[:8], e.network, f"{e.heard:.1f} s", f"{e.loss:.1f} %", e.registrations, ", ".join(e.roles))
        for e in found
    ]
    heads = ("node", "id", "network", "heard", "loss", "registrations", "does")
    given.show(msgspec.to_builtins(found), lambda: show_rows(heads, rows))


@command(node, _NodeShow)
def sequences(given: _NodeShow) -> None:
    """List registrations and subscriptions, with their counters.

    \b
    jbi node sequences
    """
    with given.calls() as calls:
        found = calls.sequences()
        names = {each["id"]: each["client"] for each in calls.clients()}
    rows: list[tuple[object, ...]] = [
        (each["uid"], "publisher", each["publisher"], each["type"], each["published"], "")
        for each in found["registrations"]
    ]
    rows += [
        (each["uid"], "subscriber", names.get(each["owner"], ""), " ".join(each["template"]), "", each["delivered"])
        for each in found["subscriptions"]
    ]
    heads = ("sequence", "role", "client", "type or template", "published", "delivered")
    given.show(found, lambda: show_rows(heads, rows))


class _Snoop(_NodeShow):
    sequence: str = argument()
    count: int | None = COUNT
    timeout: float | None = TIMEOUT


@command(node, _Snoop)
def snoop(given: _Snoop) -> int:
    """Show the objects of a registration or a subscription.

    The command makes a subscription by the type of the registration, or by the type and the predicate of the
    subscription. It needs the right to subscribe and to administer. If the subscription has a template as well, the
    command says so.

    \b
    jbi node sequences
    jbi node snoop registration-1f0a33c2 --count 10
    """
    with given.calls() as calls:
        named = _named(calls.sequences(), given.sequence)
        wanted, lookup = calls.snooped(named), calls.details().lookup
    if wanted.says_more:
        click.echo("jbi: its template has more conditions: all objects of its type and predicate are shown", err=True)
    config = given.settings.load(lookup__locators=[lookup] if lookup else None)
    from jbi_pubsub.subscriber.adapter import SubscriberAdapter

    from .clients import enough, show_objects

    with SubscriberAdapter(config) as adapter:
        uid = adapter.register_subscriber(**wanted.terms)
        adapter.wait_matched(uid, 1, config.lookup.timeout)
        click.echo(f"jbi: watching {printable(named)}, Ctrl-C ends", err=True)
        seen = show_objects(
            adapter,
            uid,
            count=given.count,
            timeout=given.timeout,
            as_json=given.as_json,
            is_wanted=lambda obj: wanted.registration in ("", obj.platform.registration),
        )
    return enough(seen, given.count)


def _named(found: dict[str, Any], sequence: str) -> str:
    """The one that begins so. Raises UnknownUidError."""
    known = [str(each["uid"]) for kind in ("registrations", "subscriptions") for each in found[kind]]
    uids = {uid for uid in known if uid.startswith(sequence)}
    if len(uids) != 1:
        told_of = f"{len(uids)} sequences begin with {sequence}" if uids else told("sequence", sequence, known)
        raise UnknownUidError(told_of, hint="`jbi node sequences` lists them")
    return uids.pop()


class _Log(_NodePlace):
    lines: int = option("Number of last lines.", type=click.IntRange(1, 1000), shown=20)
    follow: bool = flag("Continue with new lines, until Ctrl-C.")
    level: str | None = option("New level of the log.", type=click.Choice(["debug", "info", "warning", "error"]))


@command(node, _Log, "log")
def log_(given: _Log) -> None:
    """Show a node's log, or change its level.

    \b
    jbi node log
    jbi node log --follow
    jbi node log --level debug
    """
    with given.calls() as calls:
        if given.level is not None:
            click.echo(f"log.level is {calls.set('log.level', given.level)}")
            return
        last, most = 0, given.lines
        while True:
            for line in calls.log(last, most):
                click.echo(printable(line.text))
                last = line.number
            if not given.follow:
                return
            most = 1_000
            time.sleep(FOLLOW_SECONDS)


class _NodeSet(_NodePlace):
    key: str = argument(metavar="SECTION.KEY")
    value: str = argument()


@command(node, _NodeSet, "set")
def set_(given: _NodeSet) -> None:
    """Change a setting of a node while it runs.

    The change is valid until the node's restart. Possible are the settings of [log] except its file, and
    node.statistics_seconds.

    \b
    jbi node set log.level debug
    jbi node set log.syslog /dev/log
    jbi node set node.statistics_seconds 1
    """
    with given.calls() as calls:
        click.echo(f"{given.key} is {printable(calls.set(given.key, given.value))}")


def _resident(pid: int) -> int:
    """Bytes; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


node.add_command(install)
node.add_command(uninstall)
