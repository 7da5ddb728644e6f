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
from .options import FILE, Arguments, JsonArguments, argument, command, flag, option
from .show import show_rows

LINE_MOST: Final = 4_096
"""Characters of stdin that are read."""


@click.group(cls=NearNames)
def users() -> None:
    """Manage users and passwords, for people and programs without a certificate.

    \b
    jbi users add alice --file users.txt
    jbi --set policy.users=users.txt node start
    JBI_CLIENT_USER=alice JBI_CLIENT_PASSWORD=... jbi subscribe --type intel.Report
    """


class _UsersFile(Arguments):
    file: Path | None = option("The password file; default [policy] users.", type=FILE)

    def path(self) -> Path:
        """Raises ConfigurationError."""
        place = str(self.file) if self.file is not None else self.settings.load().policy.users
        if not place or "://" in place:
            raise ConfigurationError(
                "no password file is configured" if not place else f"[policy] users is a directory: {place}",
                hint="Name one with --file, or set [policy] users",
            )
        return Path(place)


class _User(_UsersFile):
    name: str = argument()


class _Password(_User):
    from_stdin: bool = flag("Read the password from stdin, its first line.", "--password-stdin")

    def password(self) -> str:
        """From the first line of stdin, or typed twice. Raises ConfigurationError."""
        if self.from_stdin:
            return sys.stdin.readline(LINE_MOST).rstrip("\r\n")
        if not sys.stdin.isatty():
            raise ConfigurationError("there is no terminal to type a password at", hint="Pass --password-stdin")
        said: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return said


class _UsersList(_UsersFile, JsonArguments):
    """The password file whose users are listed."""


def _changed(path: Path, change: Callable[[dict[str, Account]], None]) -> None:
    accounts = read_accounts(path) if path.exists() else {}
    change(accounts)
    write_accounts(path, accounts)


@command(users, _Password)
def add(given: _Password) -> None:
    """Add a user, or change a password.

    Sessions with the old password end within a second.

    \b
    jbi users add alice --file users.txt
    pass show jbi/alice | jbi users add alice --password-stdin
    """
    check_name(given.name)
    path = given.path()
    account = Account.of(given.name, given.password())
    _changed(path, lambda accounts: accounts.update({given.name: account}))
    click.echo(f"{given.name} is in {path}")


@command(users, _User)
def remove(given: _User) -> None:
    """Remove a user.

    Sessions of this user end within a second.

    \b
    jbi users remove alice --file users.txt
    """
    path = given.path()

    def drop(accounts: dict[str, Account]) -> None:
        if accounts.pop(given.name, None) is None:
            raise UnknownUidError(f"{path}: {told('user', given.name, accounts)}")

    _changed(path, drop)
    click.echo(f"{given.name} is no longer in {path}")


@command(users, _UsersList, "list")
def list_(given: _UsersList) -> None:
    """List the users of a file.

    \b
    jbi users list --file users.txt
    """
    names = sorted(read_accounts(given.path()))
    given.show(names, lambda: show_rows(("user",), [(name,) for name in names]))


@command(users, _Password)
def check(given: _Password) -> int:
    """Check a user's password. Exit code 1: it is wrong.

    \b
    jbi users check alice --file users.txt
    """
    found = PasswordFile(given.path()).check(given.name, given.password())
    click.echo(f"that is {given.name}'s password" if found is not None else "no such user, or another password")
    return 0 if found is not None else 1
