"""`jbi node install` and `jbi node uninstall`: a node that starts with the machine, or with its user."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from jbi_pubsub.core import extras
from jbi_pubsub.core.errors import StorageError

from .options import Arguments, command, flag, option

SYSTEMCTL_SECONDS: Final = 60.0


class _Service(Arguments):
    system: bool = option("Service of the system or of the user (default).", "--system/--user", default=False)


class _Install(_Service):
    defaults: bool = flag("Ask nothing.")
    name: str | None = option("Name for people; default: this host's name.")
    host: str | None = option("Address to listen on; default 127.0.0.1, for clients on this host only.")
    port: int | None = option("Port of its lookup service; default 4160.", type=click.IntRange(1, 65535))
    multicast: bool | None = option("Announce it by mDNS; default: no.", "--multicast/--no-multicast", default=None)
    archive: bool | None = option(
        "Keep objects; default: yes, if the library is installed.", "--archive/--no-archive", default=None
    )
    tls: str | None = option("TLS, as the party of that folder (see `jbi certs`).", metavar="FOLDER", type=click.Path())
    level: str | None = option(
        "Lowest level of the log; default info.", type=click.Choice(["debug", "info", "warning", "error"])
    )
    start: bool = option("Start it now and at each boot.", "--start/--no-start", default=True)


@command(None, _Install)
def install(given: _Install) -> None:
    """Install a node as a service, and start it.

    The service is a configuration and a systemd unit. The command asks for missing values, or takes defaults with
    --defaults. It does not change an existing configuration.

    \b
    jbi node install --defaults
    jbi node install --name tent-3 --host 10.0.0.7 --tls /etc/jbi/tent-3
    sudo jbi node install --system --defaults
    """
    from jbi_pubsub.node.installing import InstallOptions, hidden_from_services, places, write

    if given.system and (hidden := hidden_from_services(_parts())) is not None:
        raise StorageError(
            f"{hidden} can't be seen by a service of the system",
            hint="Install the library elsewhere, for example in a venv of /opt, and run the `jbi` there",
        )
    first = InstallOptions(socket.gethostname(), archive=not extras.missing("archive"))
    chosen = {key: value for key in QUESTIONS if (value := getattr(given, key)) is not None}
    not_taken = ", ".join(f"--{key}" for key in chosen)
    if not given.defaults:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask at: pass --defaults, and options for other values")
        for key, question in QUESTIONS.items():
            if key not in chosen:
                chosen[key] = click.prompt(question, default=getattr(first, key), type=type(getattr(first, key)))
    answers = InstallOptions(**{**{key: getattr(first, key) for key in first.__dataclass_fields__}, **chosen})
    where = places(is_system=given.system)
    is_new = write(where, answers, [sys.executable, "-m", "jbi_pubsub"])
    click.echo(f"configuration: {where.configuration}" + ("" if is_new else ", as it was"))
    if not is_new and not_taken:
        click.echo(
            f"jbi: {not_taken}: not taken, as there was a configuration. Change that, or remove it first", err=True
        )
    click.echo(f"unit: {where.unit}")
    _systemctl(given.system, ["daemon-reload"], ["enable", "--now", where.unit.stem], run=given.start)


QUESTIONS: Final = {
    "name": "Name of the node",
    "host": "Address to listen on (127.0.0.1: clients on this host alone)",
    "port": "Port of its lookup service",
    "multicast": "Found by mDNS",
    "archive": "Keep objects in an archive",
    "tls": "Folder of its certificate (empty: none)",
    "level": "Log level",
}


class _Uninstall(_Service):
    purge: bool = flag("Remove its data as well: identity, types, archive.")
    stop: bool = option("Stop it.", "--stop/--no-stop", default=True)


@command(None, _Uninstall)
def uninstall(given: _Uninstall) -> None:
    """Remove the service of a node.

    Its data stay, except with --purge.

    \b
    jbi node uninstall
    sudo jbi node uninstall --system --purge
    """
    from jbi_pubsub.node.identity import is_held
    from jbi_pubsub.node.installing import places, remove

    where = places(is_system=given.system)
    if not where.unit.exists() and not where.configuration.exists():
        raise StorageError(
            f"no node is installed here: there is no {where.unit}",
            hint="`jbi node install` installs one; --system means the system's",
        )
    _systemctl(given.system, ["disable", "--now", where.unit.stem], run=given.stop and where.unit.exists())
    if given.purge and is_held(where.folder):
        raise StorageError(f"a node runs in {where.folder}", hint="Stop it first: `jbi node stop`")
    for file in remove(where):
        click.echo(f"removed {file}")
    _systemctl(given.system, ["daemon-reload"], run=given.stop)
    if given.purge and where.folder.exists():
        try:
            shutil.rmtree(where.folder)
        except OSError as exc:
            raise StorageError(f"{where.folder}: {exc.strerror or exc}") from exc
        click.echo(f"removed {where.folder}")


def _parts() -> list[Path]:
    """Places that it is run from."""
    import jbi_pubsub

    return [Path(sys.executable), Path(sys.base_prefix), *map(Path, jbi_pubsub.__path__)]


def _systemctl(system: bool, *commands: list[str], run: bool) -> None:
    """Have systemd do that, where it runs; else say what to tell it. Raises StorageError."""
    program = ["systemctl", *([] if system else ["--user"])]
    here = shutil.which("systemctl") is not None and Path("/run/systemd/system").is_dir()
    for words in commands:
        if not (run and here):
            click.echo(f"to do: {' '.join([*program, *words])}")
            continue
        try:
            done = subprocess.run(  # noqa: S603  # our own words
                [*program, *words], capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise StorageError(f"systemctl {words[0]}: {exc}") from exc
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise StorageError(f"systemctl {words[0]}: {why}", hint="--no-start writes the files alone")
