"""`jbi certs`: the certificates of a deployment, from an authority in a folder."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .near import NearNames
from .options import Arguments, JsonArguments, argument, command, flag, option, repeated
from .show import Column, counted, show_table

if TYPE_CHECKING:
    from jbi_pubsub.trust.authority import Authority, Issued


FOLDER = Path("certs")


class _Authority(Arguments):
    folder: Path = option(
        "The authority's folder.", "--folder", type=click.Path(path_type=Path), metavar="FOLDER", shown=FOLDER
    )

    def opened(self) -> AbstractContextManager[Authority]:
        """The authority in the folder."""
        from jbi_pubsub.trust.authority import Authority  # here: cryptography takes 30 ms

        return Authority.opened(self.folder)


class _SigningKey(Arguments):
    passphrase_file: Path | None = option(
        "File with the passphrase of the authority's key.", type=click.Path(path_type=Path)
    )

    def passphrase(self) -> bytes:
        """The passphrase of the authority's key, b"" for none."""
        from jbi_pubsub.trust.authority import read_passphrase  # here: cryptography takes 30 ms

        return read_passphrase(self.passphrase_file) if self.passphrase_file else b""


@click.group(cls=NearNames)
def certs() -> None:
    """Make, renew and revoke TLS certificates.

    \b
    jbi certs init                                   # once: an authority, in ./certs
    jbi certs issue alpha --address 10.0.0.1         # a server
    jbi certs issue bravo                            # a client
    jbi --tls certs/alpha lookup --host 10.0.0.1     # use them
    jbi certs renew --expiring                       # daily, by a timer
    jbi certs revoke bravo
    """


class _Init(_SigningKey, first=True):
    folder: Path = argument(type=click.Path(path_type=Path), default=FOLDER)
    name: str = option("Name of the deployment.", shown="jbi-pubsub")
    days: int = option("Validity in days; default ten years.", type=click.IntRange(1, 3652), default=3652)


@command(certs, _Init)
def init(given: _Init) -> None:
    """Make an authority in FOLDER (default ./certs).

    \b
    jbi certs init
    jbi certs init /srv/jbi/certs --name "Northern Watch" --passphrase-file ~/.jbi-passphrase
    """
    from jbi_pubsub.trust.authority import Authority  # here: cryptography takes 30 ms

    folder = given.folder
    made = Authority.init(folder, given.name, now=time.time(), days=given.days, passphrase=given.passphrase())
    click.echo(f"authority {made.certificate.subject} in {folder}, valid until {_day(made.certificate.not_after)}")
    click.echo(f"Keep {folder} secret: with it anybody can issue certificates, if its key has no passphrase.")


class _Issue(_SigningKey, _Authority, JsonArguments, first=True):
    name: str = argument()
    role: str | None = option("Default: a server if it has an address.", type=click.Choice(("server", "client")))
    addresses: tuple[str, ...] = repeated("Address of the server; repeatable.", "--address", metavar="HOST")
    days: int = option("Validity in days.", type=click.IntRange(1, 3652), shown=90)


@command(certs, _Issue)
def issue(given: _Issue) -> None:
    """Issue a certificate for the party NAME: a folder with certificate, key and authority.

    \b
    jbi certs issue alpha --address 10.0.0.1 --address alpha.example.org   # a server
    jbi certs issue anna@example.org                                       # a client
    jbi certs issue sensor-7 --role server                                 # a server found only by the lookup service
    """
    with given.opened() as authority:
        made = authority.issue(
            given.name,
            "server" if given.role == "server" or (given.addresses and given.role is None) else "client",
            given.addresses,
            now=time.time(),
            days=given.days,
            passphrase=given.passphrase(),
        )
    folder = given.folder / given.name
    toml = f"[tls]\nfolder = {json.dumps(str(folder.absolute()), ensure_ascii=False)}"
    given.show(
        _facts(made, given.folder),
        f"certificate of {given.name} ({made.role}) in {folder}, valid until {_day(made.certificate.not_after)}\n"
        f"Use it with `jbi --tls {folder} ...`, or in jbi.toml:\n\n{toml}",
    )


class _CertsList(_Authority, JsonArguments, first=True):
    everything: bool = flag("Also renewed and replaced ones.", "--all")


@command(certs, _CertsList, "list")
def list_(given: _CertsList) -> None:
    """List the issued certificates, the latest of each name.

    \b
    jbi certs list
    jbi certs list --all --json
    """
    with given.opened() as authority:
        latest = sorted(authority.latest().values(), key=lambda each: each.name)
        found = authority.issued() if given.everything else latest
    now = time.time()
    columns = (
        Column("name", long=True, name=True), Column("role"), Column("state"), Column("ends", right=True),
        Column("addresses", long=True, spare=True), Column("serial", long=True, spare=True),
    )  # fmt: skip
    rows = [
        (
            each.name, each.role, each.state(now), _left(each.certificate.not_after, now), ", ".join(each.addresses),
            f"{each.certificate.serial:x}",
        )
        for each in found
    ]  # fmt: skip
    given.show([_facts(each, given.folder) for each in found], lambda: show_table(columns, rows))


class _Renew(_SigningKey, _Authority, first=True):
    names: tuple[str, ...] = argument(metavar="[NAME]...", nargs=-1)
    everything: bool = flag("All except revoked ones.", "--all")
    expiring: bool = flag("Those that end soon, or have ended.")
    days: int | None = option("Validity in days; default as before.", type=click.IntRange(1, 3652))


@command(certs, _Renew)
def renew(given: _Renew) -> None:
    """Renew certificates for the same keys. Running processes use them without a restart.

    \b
    jbi certs renew alpha
    jbi certs renew --expiring          # by a timer; no error if there are none
    """
    if bool(given.names) + given.everything + given.expiring != 1:
        raise click.UsageError("Renew which? Give names, or --all, or --expiring.")
    now = time.time()
    passphrase = given.passphrase()
    with given.opened() as authority:
        standing = [each for each in authority.latest().values() if not each.is_revoked]
        chosen = given.names or [each.name for each in standing if given.everything or each.ends_soon(now)]
        for name in chosen:
            made = authority.renew(name, now=now, days=given.days or 0, passphrase=passphrase)
            click.echo(f"renewed {name} until {_day(made.certificate.not_after)}")
            if not authority.holds_key(name):
                click.echo(f"its key is not here: copy {given.folder / name / 'certificate.pem'} to where it is")
    if not chosen:
        click.echo("nothing to renew")


class _Revoke(_SigningKey, _Authority):
    which: str = argument(metavar="NAME|SERIAL")


@command(certs, _Revoke)
def revoke(given: _Revoke) -> None:
    """Revoke the key of a party. Processes with the new list refuse it.

    \b
    jbi certs revoke bravo
    """
    with given.opened() as authority:
        ended = authority.revoke(given.which, now=time.time(), passphrase=given.passphrase())
    click.echo(f"revoked {ended[0].name}: {counted(len(ended), 'certificate')}")
    crl = given.folder / "authority" / "crl.pem"
    click.echo(f"Folders in {given.folder} have the new list; copy {crl} to those elsewhere.")


def _facts(issued: Issued, folder: Path) -> dict[str, object]:
    now = time.time()
    return {
        "name": issued.name,
        "role": issued.role,
        "state": issued.state(now),
        "addresses": list(issued.addresses),
        "serial": f"{issued.certificate.serial:x}",
        "not_before": issued.certificate.not_before,
        "not_after": issued.certificate.not_after,
        "folder": str(folder / issued.name),
    }


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _left(until: float, now: float) -> str:
    """In how long, or how long ago."""
    days = (until - now) / 86_400
    if -1 < days < 1:
        return f"{days * 24:.0f} h"
    return f"{days:.0f} d"
