"""`jbi policy serve`, `apply`, `set`, `history`, `rollback`: the policy manager of an information space, its tools."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from jbi_pubsub.core.access import ADMIN
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, JbiError, LookupNotFoundError, PolicyError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import is_gone
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.policy.file import read
from jbi_pubsub.policy.policyset import PolicySet, policies_of, review
from jbi_pubsub.policy.proxy import MANAGER_TYPE, POLICY_MANAGER, Changed, PolicyProxy, VersionTold, epoch_of
from jbi_pubsub.policy.space import read_set
from jbi_pubsub.policy.writing import set_value as set_value_in
from jbi_pubsub.protocol.services import AdminProxy

from . import policies
from .community import at_address, calling, lacks, listed
from .options import FILE, HOST, PORT, Arguments, JsonArguments, argument, command, flag, option
from .show import Column, moment, printable, show_table


class _Manager(Arguments):
    at: str | None = option("Policy manager; default: the one found.", metavar="HOST:PORT")

    def manager(self) -> AbstractContextManager[PolicyProxy]:
        """The one at an address, or the one that the lookup services list. Raises PolicyError."""
        hint = "`jbi policy serve` is one; of a delegate with a policy file of its own `set` changes single values"
        return self.asked(PolicyError(f"{self.at} is no policy manager", hint=hint))

    def asked(self, otherwise: JbiError | None = None) -> AbstractContextManager[PolicyProxy]:
        """The same; whether it is one shows when it is asked."""
        config = self.settings.load()
        ref = at_address(self.at, POLICY_MANAGER) if self.at else _found(config)
        return calling(PolicyProxy, ref, config, POLICY_MANAGER, otherwise)


class _Change(_Manager, JsonArguments):
    why: str = option("A reason, for the history.", default="", metavar="TEXT")


class _PolicyServe(JsonArguments):
    file: Path = argument(type=FILE)
    state: Path | None = option("File for the history; default FILE.history.", type=FILE)
    ephemeral: bool = flag("Keep no history.")
    take_over: bool = flag("Replace another manager.")
    host: str | None = HOST
    port: int | None = PORT


@command(None, _PolicyServe)
def serve(given: _PolicyServe) -> None:
    """Run the policy manager of an information space. Delegates and peer publishers with quality of service, and
    without policies of their own, follow it.

    FILE is read at the start; then `jbi policy apply`, `set` and `rollback` change the policies. Its access rules
    decide who may do that.

    \b
    jbi policy serve policy.toml
    jbi policy serve policy.toml --port 4170 --state /var/lib/jbi/policy.history
    jbi policy serve policy.toml --take-over      # another manager is lost, or is to be replaced
    """
    from jbi_pubsub.policy.server import PolicyServer  # here: the other commands start faster without

    from .servers import serving, stop_on_signal, tell_ready

    if given.ephemeral and given.state is not None:
        raise ConfigurationError("--ephemeral keeps no history, --state does", hint="Give one of them")
    config = given.settings.load(pad__host=given.host, pad__port=given.port)
    stop = stop_on_signal()
    kept = None if given.ephemeral else given.state or given.file.with_name(f"{given.file.name}.history")
    server = PolicyServer(config, given.file, state=kept, take_over=given.take_over)
    with serving(server, stop):
        version = server.standing.version
        facts = {"ready": "policy", "id": server.manager, "address": server.address, "epoch": server.standing.epoch}
        text = f"policy manager {server.manager[:8]} at {server.address}, version {version}"
        tell_ready(given.as_json, {**facts, "version": version}, text)


class _Apply(_Change):
    file: Path = argument(type=FILE)


@command(None, _Apply)
def apply(given: _Apply) -> None:
    """Check a policy file, show the differences from the policies in force, and put it in force in the whole space.

    Access rules are not sent; each process has them in its own file.

    \b
    jbi policy apply policy.toml --why "more imagery for the night"
    """
    document, said = read(given.file, name=str(given.file))
    mine = policies_of(document)
    document.check()
    review(document, mine.rules)
    for line in [*said, *map(document.told, document.warnings)]:
        click.echo(printable(line), err=True)
    with given.manager() as proxy:
        found = _differences(read_set(proxy.text(), "the manager's"), mine)
        changed = proxy.apply(mine.write(), given.why or f"apply {given.file.name}")
    if not given.as_json:
        policies.tell_differences(found)
    _tell(given, changed, policies=found)


class _PolicySet(_Change, first=True):
    key: str = argument()
    value: str = argument()
    file: Path | None = option("Policy file; default the configured one.", type=click.Path(path_type=Path))


@command(None, _PolicySet, "set")
def set_value(given: _PolicySet) -> None:
    """Change one value of a policy file, or if none is configured, of the policies of a manager. Processes apply the
    change within a second.

    --at names a manager, or a delegate with a policy file of its own, which changes its file and applies it at once.

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
    configured = given.settings.load().policy.file
    if given.file is not None and given.at:
        raise ConfigurationError("--file changes a file, --at asks a server", hint="Give one of them")
    if given.file is not None or (configured and not given.at):
        _set_in_file(given, given.file or Path(configured))
        return
    try:
        with given.asked() as proxy:
            changed = proxy.set(given.key, given.value, given.why)
    except ProtocolError as exc:
        if not given.at or not lacks(exc, POLICY_MANAGER):
            raise
        _set_at_delegate(given, given.at)
        return
    _tell(given, changed)


def _set_at_delegate(given: _PolicySet, at: str) -> None:
    """Set it at a delegate that is no manager, and may have a policy file of its own. Raises PolicyError."""
    other = PolicyError(f"{at} is no policy manager, and no delegate", hint="`jbi services` lists both")
    with calling(AdminProxy, at_address(at), given.settings.load(), ADMIN, other) as proxy:
        told = proxy.set_policy(given.key, given.value, given.why)
    state = "in force" if told.changed else "in force already, and says that"
    text = printable(f"version {told.version} is {state}: {told.file} at {at}")
    plain = {"version": told.version, "changed": told.changed, "file": told.file}
    given.show(plain, text)


def _set_in_file(given: _PolicySet, path: Path) -> None:
    found = _differences(*set_value_in(path, given.key, given.value))
    plain = {"file": str(path), "changed": bool(found), "policies": found}
    given.show(plain, lambda: policies.tell_differences(found))


def _differences(before: PolicySet, after: PolicySet) -> list[dict[str, Any]]:
    """Groups and roles as well."""
    people = [
        each
        for kind in ("group", "role")
        for each in policies.changes(kind, before.tables.get(kind, {}), after.tables.get(kind, {}))
    ]
    return [*policies.differences(before, after), *people]


class _History(_Manager, JsonArguments):
    version: int | None = argument(type=click.IntRange(1), required=False)


@command(None, _History)
def history(given: _History) -> None:
    """List the versions of the policies with time, author and reason, and the delegates that follow. With VERSION: show
    that version.

    \b
    jbi policy history
    jbi policy history 7
    """
    with given.manager() as proxy:
        if given.version is not None:
            text = proxy.text(given.version)
            lines = "\n".join(map(printable, text.split("\n")))
            given.show({"version": given.version, "toml": text}, lambda: click.echo(lines, nl=False))
            return
        versions, status = proxy.history(), proxy.status()
    told = [{"version": e.version, "at": e.at, "who": e.who, "why": e.why} for e in versions]
    given.show({"versions": told, "manager": status}, lambda: _show_history(versions, status))


def _show_history(versions: Sequence[VersionTold], status: dict[str, Any]) -> None:
    columns = (Column("version", right=True), Column("since"), Column("who", name=True), Column("why", long=True))
    show_table(
        columns,
        [(each.version, moment(each.at), each.who, each.why) for each in reversed(versions)],
        title=f"manager {status['manager'][:8]} at {status['address']}, epoch {status['epoch']}",
    )
    rows = [(each["component"], each["version"], _heard(each), each["fault"]) for each in status["local"]]
    columns = (Column("follows", name=True), Column("version", right=True), Column("heard"), Column("fault", long=True))
    show_table(columns, rows)
    if status["fault"]:
        click.echo(printable(f"fault: {status['fault']}"))


class _Rollback(_Change):
    version: int = argument(type=click.IntRange(1))


@command(None, _Rollback)
def rollback(given: _Rollback) -> None:
    """Put an earlier version in force again, as a new version.

    \b
    jbi policy rollback 7 --why "back to how it was before the storm"
    """
    with given.manager() as proxy:
        changed = proxy.rollback(given.version, given.why)
    _tell(given, changed)


def _tell(given: _Change, changed: Changed, **more: object) -> None:
    """The version that is in force now; `more` for programs."""
    state = "in force" if changed.is_new else "in force already, and says that"
    plain = {"version": changed.version, "changed": changed.is_new, **more}
    given.show(plain, f"version {changed.version} is {state}")


def _found(config: Config) -> ServiceRef:
    try:
        found = listed(config, ServiceTemplate(types=(MANAGER_TYPE,)))
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


def _heard(row: dict[str, float | None]) -> str:
    if row["away"] is not None:
        return f"away for {row['away']:.0f} s"
    return "not yet" if row["heard"] is None else f"{row['heard']:.0f} s ago"
