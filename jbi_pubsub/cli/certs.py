"""`jbi certs`: the certificates of a deployment, from an authority in a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .near import NearNames
from .settings import json_option
from .show import Column, counted, show_json, show_table

if TYPE_CHECKING:
    from jbi_pubsub.trust.authority import Issued


FOLDER = Path("certs")

_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=FOLDER,
    show_default=True,
    help="The authority's folder.",
)
_passphrase = click.option(
    "--passphrase-file", type=click.Path(path_type=Path), help="File with the passphrase of the authority's key."
)


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


@certs.command()
@click.argument("folder", type=click.Path(path_type=Path), default=FOLDER)
@click.option("--name", default="jbi-pubsub", show_default=True, help="What the deployment is called.")
@click.option("--days", type=click.IntRange(1, 3652), default=3652, help="How long it is good; ten years if not given.")
@_passphrase
def init(folder: Path, name: str, days: int, passphrase_file: Path | None) -> None:
    """Make an authority in FOLDER (default ./certs).

    \b
    jbi certs init
    jbi certs init /srv/jbi/certs --name "Northern Watch" --passphrase-file ~/.jbi-passphrase
    """
    from jbi_pubsub.trust.authority import Authority  # here: an extra

    made = Authority.init(folder, name, now=time.time(), days=days, passphrase=_read(passphrase_file))
    click.echo(f"authority {made.certificate.subject} in {folder}, valid until {_day(made.certificate.not_after)}")
    click.echo(f"Keep {folder} to yourself: whoever has it can issue certificates, if its key has no passphrase.")


@certs.command()
@click.argument("name")
@click.option("--role", type=click.Choice(("server", "client")), help="Default: a server if it has an address.")
@click.option("--address", "addresses", metavar="HOST", multiple=True, help="Where it is reached; repeatable.")
@click.option("--days", type=click.IntRange(1, 3652), default=90, show_default=True, help="How long it is good.")
@_folder
@_passphrase
@json_option
def issue(
    name: str,
    role: str | None,
    addresses: tuple[str, ...],
    days: int,
    folder: Path,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Issue a certificate for the party NAME: a folder with all that it needs.

    \b
    jbi certs issue alpha --address 10.0.0.1 --address alpha.example.org   # a server
    jbi certs issue anna@example.org                                       # a client
    jbi certs issue sensor-7 --role server                                 # serves, found by the lookup service alone
    """
    from jbi_pubsub.trust.authority import Authority  # here: an extra

    with Authority.opened(folder) as authority:
        made = authority.issue(
            name,
            "server" if role == "server" or (addresses and role is None) else "client",
            addresses,
            now=time.time(),
            days=days,
            passphrase=_read(passphrase_file),
        )
    if as_json:
        show_json(_facts(made, folder))
        return
    where = (folder / name).absolute()
    click.echo(
        f"certificate of {name} ({made.role}) in {folder / name}, valid until {_day(made.certificate.not_after)}"
    )
    click.echo(f"Use it with `jbi --tls {folder / name} ...`, or in jbi.toml:\n\n[tls]\nfolder = {_quoted(where)}")


@certs.command("list")
@click.option("--all", "everything", is_flag=True, help="Also what was renewed or replaced.")
@_folder
@json_option
def list_(everything: bool, folder: Path, as_json: bool) -> None:
    """List what was issued, the latest of each name.

    \b
    jbi certs list
    jbi certs list --all --json
    """
    from jbi_pubsub.trust.authority import Authority  # here: an extra

    with Authority.opened(folder) as authority:
        found = authority.issued() if everything else sorted(authority.latest().values(), key=lambda each: each.name)
    now = time.time()
    if as_json:
        show_json([_facts(each, folder) for each in found])
        return
    columns = (
        Column("name", long=True, name=True),
        Column("role"),
        Column("state"),
        Column("ends", right=True),
        Column("addresses", long=True, spare=True),
        Column("serial", long=True, spare=True),
    )
    rows = [
        (
            each.name,
            each.role,
            each.state(now),
            _left(each.certificate.not_after, now),
            ", ".join(each.addresses),
            f"{each.certificate.serial:x}",
        )
        for each in found
    ]
    show_table(columns, rows)


@certs.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are not revoked.")
@click.option("--expiring", is_flag=True, help="Those that end soon, or have ended.")
@click.option("--days", type=click.IntRange(1, 3652), help="How long they are good; default as long as before.")
@_folder
@_passphrase
def renew(
    names: tuple[str, ...],
    everything: bool,
    expiring: bool,
    days: int | None,
    folder: Path,
    passphrase_file: Path | None,
) -> None:
    """Renew certificates for the same keys. Who uses them takes them without a restart.

    \b
    jbi certs renew alpha
    jbi certs renew --expiring          # by a timer; nothing to do is no error
    """
    if bool(names) + everything + expiring != 1:
        raise click.UsageError("Renew which? Give names, or --all, or --expiring.")
    from jbi_pubsub.trust.authority import Authority  # here: an extra

    now = time.time()
    passphrase = _read(passphrase_file)
    with Authority.opened(folder) as authority:
        standing = [each for each in authority.latest().values() if not each.is_revoked]
        chosen = names or [each.name for each in standing if everything or each.ends_soon(now)]
        for name in chosen:
            made = authority.renew(name, now=now, days=days or 0, passphrase=passphrase)
            click.echo(f"renewed {name} until {_day(made.certificate.not_after)}")
            if not authority.holds_key(name):
                click.echo(f"its key is not here: copy {folder / name / 'certificate.pem'} to where it is")
    if not chosen:
        click.echo("nothing to renew")


@certs.command()
@click.argument("which", metavar="NAME|SERIAL")
@_folder
@_passphrase
def revoke(which: str, folder: Path, passphrase_file: Path | None) -> None:
    """Revoke the key of a party: nobody who has the new list takes it any more.

    \b
    jbi certs revoke bravo
    """
    from jbi_pubsub.trust.authority import Authority  # here: an extra

    with Authority.opened(folder) as authority:
        ended = authority.revoke(which, now=time.time(), passphrase=_read(passphrase_file))
    click.echo(f"revoked {ended[0].name}: {counted(len(ended), 'certificate')}")
    click.echo(f"Folders in {folder} have the new list; copy {folder / 'authority' / 'crl.pem'} to those elsewhere.")


def _read(path: Path | None) -> bytes:
    from jbi_pubsub.trust.authority import read_passphrase  # here: an extra

    return read_passphrase(path) if path else b""


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


def _quoted(path: Path) -> str:
    """As a TOML string."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
