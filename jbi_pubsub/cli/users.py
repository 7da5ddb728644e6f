"""`jbi users`: the password file of [policy] users."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.policy.users import Account, PasswordFile, check_name, read_accounts, write_accounts

from .near import NearNames, told
from .settings import Settings, json_option, pass_settings
from .show import show_json, show_rows

file_option = click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), help="The password file; default [policy] users."
)
password_option = click.option(
    "--password-stdin", "from_stdin", is_flag=True, help="Read the password from stdin, its first line."
)

LINE_MOST: Final = 4_096
"""Characters of stdin that are read."""


@click.group(cls=NearNames)
def users() -> None:
    """Keep users and their passwords, for people and programs without a certificate.

    \b
    jbi users add alice --file users.txt
    jbi --set policy.users=users.txt node start
    JBI_CLIENT_USER=alice JBI_CLIENT_PASSWORD=... jbi subscribe --type intel.Report
    """


def _path(settings: Settings, file: Path | None) -> Path:
    """Raises ConfigurationError."""
    place = str(file) if file is not None else settings.load().policy.users
    if not place or "://" in place:
        raise ConfigurationError(
            "no password file is configured" if not place else f"[policy] users is a directory: {place}",
            hint="Name one with --file, or set [policy] users",
        )
    return Path(place)


def _password(*, from_stdin: bool) -> str:
    """From the first line of stdin, or typed twice. Raises ConfigurationError."""
    if from_stdin:
        return sys.stdin.readline(LINE_MOST).rstrip("\r\n")
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to type a password at", hint="Pass --password-stdin")
    said: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return said


def _changed(path: Path, change: Callable[[dict[str, Account]], None]) -> None:
    accounts = read_accounts(path) if path.exists() else {}
    change(accounts)
    write_accounts(path, accounts)


@users.command()
@click.argument("name")
@file_option
@password_option
@pass_settings
def add(settings: Settings, name: str, file: Path | None, from_stdin: bool) -> None:
    """Add a user, or give one another password.

    Whoever is logged in by the old one is out within a second.

    \b
    jbi users add alice --file users.txt
    pass show jbi/alice | jbi users add alice --password-stdin
    """
    check_name(name)
    path = _path(settings, file)
    account = Account.of(name, _password(from_stdin=from_stdin))
    _changed(path, lambda accounts: accounts.update({name: account}))
    click.echo(f"{name} is in {path}")


@users.command()
@click.argument("name")
@file_option
@pass_settings
def remove(settings: Settings, name: str, file: Path | None) -> None:
    """Remove a user.

    Whoever is logged in as that is out within a second.

    \b
    jbi users remove alice --file users.txt
    """
    path = _path(settings, file)

    def drop(accounts: dict[str, Account]) -> None:
        if accounts.pop(name, None) is None:
            raise UnknownUidError(f"{path}: {told('user', name, accounts)}")

    _changed(path, drop)
    click.echo(f"{name} is no longer in {path}")


@users.command("list")
@file_option
@json_option
@pass_settings
def list_(settings: Settings, file: Path | None, as_json: bool) -> None:
    """List the users of a file.

    \b
    jbi users list --file users.txt
    """
    names = sorted(read_accounts(_path(settings, file)))
    if as_json:
        show_json(names)
    else:
        show_rows(("user",), [(name,) for name in names])


@users.command()
@click.argument("name")
@file_option
@password_option
@pass_settings
@click.pass_context
def check(context: click.Context, settings: Settings, name: str, file: Path | None, from_stdin: bool) -> None:
    """Say whether a password is a user's. Exit code 1: it is not.

    \b
    jbi users check alice --file users.txt
    """
    found = PasswordFile(_path(settings, file)).check(name, _password(from_stdin=from_stdin))
    click.echo(f"that is {name}'s password" if found is not None else "no such user, or another password")
    context.exit(0 if found is not None else 1)
