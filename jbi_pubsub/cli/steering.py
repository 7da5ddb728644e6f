"""`jbi policy serve`, `apply`, `set`, `history`, `rollback`: the policy manager of an information space, its tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from jbi_pubsub.core.access import ADMIN
from jbi_pubsub.core.errors import ConfigurationError, LookupNotFoundError, PolicyError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import check_endpoint, is_gone
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.policy.file import read
from jbi_pubsub.policy.policy import PolicySet
from jbi_pubsub.policy.policyfile import policies_of, review
from jbi_pubsub.policy.proxy import MANAGER_TYPE, POLICY_MANAGER, Changed, PolicyProxy, epoch_of
from jbi_pubsub.policy.space import read_set
from jbi_pubsub.policy.writing import set_value as set_value_in
from jbi_pubsub.protocol.services import AdminProxy

from . import policies
from .settings import Settings, json_option, looking, pass_settings
from .show import Column, printable, show_json, show_table

at_option = click.option("--at", metavar="HOST:PORT", help="The policy manager; default: the one that is found.")
why_option = click.option("--why", default="", metavar="TEXT", help="A reason, for the history.")
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.command()
@_file
@click.option("--state", type=click.Path(path_type=Path, dir_okay=False), help="Keep the history here; FILE.history.")
@click.option("--ephemeral", is_flag=True, help="Keep no history.")
@click.option("--take-over", is_flag=True, help="Have the say also where another manager has it.")
@click.option("--host", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; default any free one.")
@json_option
@pass_settings
def serve(
    settings: Settings,
    file: Path,
    state: Path | None,
    ephemeral: bool,
    take_over: bool,
    host: str | None,
    port: int | None,
    as_json: bool,
) -> None:
    """Run the policy manager of an information space: delegates and peer publishers that have quality of service, and
    no policies of their own, follow it.

    FILE is read at the start; from then on `jbi policy apply`, `set` and `rollback` change what is in force. Its access
    rules say who may do that.

    \b
    jbi policy serve policy.toml
    jbi policy serve policy.toml --port 4170 --state /var/lib/jbi/policy.history
    jbi policy serve policy.toml --take-over      # another manager is lost, or is to be replaced
    """
    from jbi_pubsub.policy.server import PolicyServer  # here: the other commands start faster without

    from .servers import stop_on_signal, wait_for

    if ephemeral and state is not None:
        raise ConfigurationError("--ephemeral keeps no history, --state does", hint="Give one of them")
    config = settings.load(pad__host=host, pad__port=port)
    stop = stop_on_signal()
    kept = None if ephemeral else state or file.with_name(f"{file.name}.history")
    server = PolicyServer(config, file, state=kept, take_over=take_over)
    try:
        server.start()
        standing = server.standing
        facts = {
            "ready": "policy", "id": server.manager, "address": server.address, "epoch": standing.epoch,
            "version": standing.version,
        }  # fmt: skip
        text = f"policy manager {server.manager[:8]} at {server.address}, version {standing.version}"
        click.echo(json.dumps(facts) if as_json else text)
        sys.stdout.flush()
        wait_for(stop)
    finally:
        server.stop()


@click.command()
@_file
@at_option
@why_option
@json_option
@pass_settings
def apply(settings: Settings, file: Path, at: str | None, why: str, as_json: bool) -> None:
    """Check a policy file, show what differs from what is in force, and put it in force in the whole space.

    Access rules stay where they are: at each process, in its own file.

    \b
    jbi policy apply policy.toml --why "more imagery for the night"
    """
    document, said = read(file, name=str(file))
    mine = policies_of(document)
    document.check()
    review(document, mine)
    for line in [*said, *map(document.told, document.warnings)]:
        click.echo(printable(line), err=True)
    with _manager(settings, at) as proxy:
        found = _differences(read_set(proxy.text(), "the manager's"), mine)
        changed = proxy.apply(mine.write(), why or f"apply {file.name}")
    if as_json:
        show_json({"version": changed.version, "changed": changed.is_new, "policies": found})
        return
    policies.tell_differences(found)
    _tell(changed)


@click.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--file", type=click.Path(path_type=Path), help="Policy file; default the configured one.")
@at_option
@why_option
@json_option
@pass_settings
def set_value(
    settings: Settings, key: str, value: str, file: Path | None, at: str | None, why: str, as_json: bool
) -> None:
    """Change one value of a policy file, or where none is configured, of the policies that a manager keeps; all else
    stays as it is. Whoever follows does so within a second.

    --at names a manager, or a delegate with a policy file of its own: that writes the value into its file, and goes by
    it at once.

    KEY is the file's own path, with names for numbers.

    \b
    jbi policy set space.strategy strict
    jbi policy set space.shaping false
    jbi policy set policy.BFTrack.importance 5
    jbi policy set policy.Report.preference NoDrop --file policy.toml
    jbi policy set link.satcom.rate "800 kbps" --at 10.0.0.7:4170 --why "rain"
    jbi policy set space.strategy strict --at 10.0.0.9:4171     # a delegate
    jbi policy set role.Patrol-1 cas
    jbi policy set 'mission."Route Irish".active' false
    """
    configured = settings.load().policy.file
    if file is not None and at:
        raise ConfigurationError("--file changes a file, --at asks a server", hint="Give one of them")
    if file is not None or (configured and not at):
        _set_in_file(file or Path(configured), key, value, as_json=as_json)
        return
    try:
        with _asked(settings, at) as proxy:
            changed = proxy.set(key, value, why)
    except ProtocolError as exc:
        if not at or not _is_unknown(exc, POLICY_MANAGER):
            raise
        _set_at_delegate(settings, at, (key, value, why), as_json=as_json)
        return
    if as_json:
        show_json({"version": changed.version, "changed": changed.is_new})
    else:
        _tell(changed)


def _set_at_delegate(settings: Settings, at: str, said: tuple[str, str, str], *, as_json: bool) -> None:
    """Who is no manager may have a policy file of his own. Raises PolicyError."""
    config = settings.load()
    proxy = AdminProxy(ServiceRef("", "", (check_endpoint(at),)), config.security(), timeout=config.lookup.timeout)
    try:
        told = proxy.set_policy(*said)
    except ProtocolError as exc:
        if not _is_unknown(exc, ADMIN):
            raise
        raise PolicyError(f"{at} is no policy manager, and no delegate", hint="`jbi services` lists both") from exc
    finally:
        proxy.close()
    if as_json:
        show_json({"version": told.version, "changed": told.changed, "file": told.file})
    else:
        state = "in force" if told.changed else "in force already, and says that"
        click.echo(printable(f"version {told.version} is {state}: {told.file} at {at}"))


def _is_unknown(exc: ProtocolError, exported: str) -> bool:
    return f"no exported method {exported}." in exc.message


def _set_in_file(path: Path, key: str, value: str, *, as_json: bool) -> None:
    before, after = set_value_in(path, key, value)
    found = _differences(before, after)
    if as_json:
        show_json({"file": str(path), "changed": bool(found), "policies": found})
    else:
        policies.tell_differences(found)


def _differences(before: PolicySet, after: PolicySet) -> list[dict[str, Any]]:
    """Groups and roles as well."""
    people = []
    for kind in ("group", "role"):
        was, will = before.tables.get(kind, {}), after.tables.get(kind, {})
        people += [
            {"kind": kind, "name": name, "before": was.get(name), "after": will.get(name)}
            for name in sorted({*was, *will})
            if was.get(name) != will.get(name)
        ]
    return [*policies.differences(before, after), *people]


@click.command()
@click.argument("version", type=click.IntRange(1), required=False)
@at_option
@json_option
@pass_settings
def history(settings: Settings, version: int | None, at: str | None, as_json: bool) -> None:
    """List the versions of the policies: since when, by whom, why; and who follows. With VERSION: what that one says.

    \b
    jbi policy history
    jbi policy history 7
    """
    with _manager(settings, at) as proxy:
        if version is not None:
            text = proxy.text(version)
            if as_json:
                show_json({"version": version, "toml": text})
            else:
                click.echo("\n".join(map(printable, text.split("\n"))), nl=False)
            return
        versions, status = proxy.history(), proxy.status()
    if as_json:
        told = [{"version": e.version, "at": e.at, "who": e.who, "why": e.why} for e in versions]
        show_json({"versions": told, "manager": status})
        return
    columns = (Column("version", right=True), Column("since"), Column("who", name=True), Column("why", long=True))
    show_table(
        columns,
        [(each.version, _moment(each.at), printable(each.who), printable(each.why)) for each in reversed(versions)],
        title=f"manager {status['manager'][:8]} at {status['address']}, epoch {status['epoch']}",
    )
    rows = [(printable(e["component"]), e["version"], _heard(e), printable(e["fault"])) for e in status["local"]]
    columns = (Column("follows", name=True), Column("version", right=True), Column("heard"), Column("fault", long=True))
    show_table(columns, rows)
    if status["fault"]:
        click.echo(printable(f"fault: {status['fault']}"))


@click.command()
@click.argument("version", type=click.IntRange(1))
@at_option
@why_option
@json_option
@pass_settings
def rollback(settings: Settings, version: int, at: str | None, why: str, as_json: bool) -> None:
    """Put in force again what an earlier version said. That makes a new version.

    \b
    jbi policy rollback 7 --why "back to how it was before the storm"
    """
    with _manager(settings, at) as proxy:
        changed = proxy.rollback(version, why)
    if as_json:
        show_json({"version": changed.version, "changed": changed.is_new})
    else:
        _tell(changed)


def _tell(changed: Changed) -> None:
    click.echo(f"version {changed.version} is in force" + ("" if changed.is_new else " already, and says that"))


@contextmanager
def _manager(settings: Settings, at: str | None) -> Iterator[PolicyProxy]:
    """The policy manager at an address, or the one that the lookup services list. Raises PolicyError."""
    try:
        with _asked(settings, at) as proxy:
            yield proxy
    except ProtocolError as exc:
        if not _is_unknown(exc, POLICY_MANAGER):
            raise
        raise PolicyError(
            f"{at} is no policy manager",
            hint="`jbi policy serve` is one; of a delegate with a policy file of its own `set` changes single values",
        ) from exc


@contextmanager
def _asked(settings: Settings, at: str | None) -> Iterator[PolicyProxy]:
    """The same; whether it is one shows when it is asked."""
    config = settings.load()
    ref = ServiceRef("", POLICY_MANAGER, (check_endpoint(at),)) if at else _found(settings)
    proxy = PolicyProxy(ref, config.security(), timeout=config.lookup.timeout)
    try:
        yield proxy
    finally:
        proxy.close()


def _found(settings: Settings) -> ServiceRef:
    config = settings.load()
    try:
        with closing(JoinManager(config, name="jbi")) as community, looking(config):
            found = community.lookup(ServiceTemplate(types=(MANAGER_TYPE,)))
    except LookupNotFoundError as exc:
        hint = "Name a policy manager or delegate with --at HOST:PORT, or for `set` a file with --file"
        raise LookupNotFoundError(exc.message, hint=hint) from exc
    if not found:
        raise PolicyError(
            "no policy manager is registered with the lookup services",
            hint="Start one: jbi policy serve FILE; or name it: --at HOST:PORT",
        )
    living = [item for item in found if not is_gone(item.proxy, config.security())]
    return max(living or found, key=epoch_of).proxy


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _heard(row: dict[str, float | None]) -> str:
    if row["away"] is not None:
        return f"away for {row['away']:.0f} s"
    return "not yet" if row["heard"] is None else f"{row['heard']:.0f} s ago"
