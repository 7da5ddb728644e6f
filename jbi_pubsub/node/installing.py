"""A node as a service of systemd, of the system or of a user: what is written where. Only `write` and `remove` touch
the disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jbi_pubsub.core.config import load
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.homes import user_folder

NAME: Final = "jbi-node"
"""Name of the unit."""
HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # named, not written


@dataclass(frozen=True)
class Places:
    """Where the parts of an installation lie."""

    is_system: bool
    configuration: Path
    unit: Path
    folder: Path
    """The node's."""


def places(*, is_system: bool) -> Places:
    """Places of the system's service, or of that of this user: after the Filesystem Hierarchy Standard 3.0 and the XDG
    Base Directory Specification 0.8. Raises ConfigurationError: this user has no home."""
    if is_system:
        return Places(
            True, Path("/etc/jbi/node.toml"), Path(f"/etc/systemd/system/{NAME}.service"), Path(f"/var/lib/{NAME}")
        )
    settings, state = user_folder("XDG_CONFIG_HOME", ".config"), user_folder("XDG_STATE_HOME", ".local/state")
    return Places(
        False,
        settings / "jbi" / "node.toml",
        settings / "systemd" / "user" / f"{NAME}.service",
        state / "jbi-pubsub" / "node",
    )


@dataclass(frozen=True)
class InstallOptions:
    """Answers of whoever installs a node; the defaults are those of a laptop: reached from this host alone."""

    name: str
    host: str = "127.0.0.1"
    port: int = 4160
    multicast: bool = False
    archive: bool = True
    tls: str = ""
    """Folder of a party, as `jbi certs issue` makes it; "" for none."""
    level: str = "info"


def _tables(answers: InstallOptions, where: Places) -> dict[str, dict[str, object]]:
    """The sections of the node's jbi.toml."""
    tables: dict[str, dict[str, object]] = {
        "node": {"name": answers.name, "folder": str(where.folder), "archive": answers.archive},
        "lookup": {"host": answers.host, "port": answers.port, "multicast": answers.multicast},
        "pad": {"host": answers.host},
        "log": {"level": answers.level},
    }
    if answers.tls:
        tables["tls"] = {"folder": answers.tls}
    return tables


def configuration(answers: InstallOptions, where: Places) -> str:
    """The node's jbi.toml."""
    lines = [f"# Of the node {json.dumps(answers.name)}; `jbi config` lists every setting."]
    for section, keys in _tables(answers, where).items():
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def unit(where: Places, program: Iterable[str]) -> str:
    """The unit; `program` is the `jbi` command."""
    start = shlex.join([*program, "--config", str(where.configuration), "node", "start"]).replace("%", "%%")
    service = [
        "Type=exec",
        f"ExecStart={start}",
        "Restart=on-failure",
        "RestartSec=2",
        "TimeoutStopSec=60",
        "LimitNOFILE=65536",
        "Environment=PYTHONUNBUFFERED=1",
        "NoNewPrivileges=yes",
        "UMask=0077",
    ]
    if where.is_system:
        service += [
            "",
            "DynamicUser=yes",
            f"StateDirectory={where.folder.name}",
            "StateDirectoryMode=0700",
            "CapabilityBoundingSet=",
            "LockPersonality=yes",
            "PrivateDevices=yes",
            "PrivateTmp=yes",
            "ProtectClock=yes",
            "ProtectControlGroups=yes",
            "ProtectHome=yes",
            "ProtectHostname=yes",
            "ProtectKernelLogs=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelTunables=yes",
            "ProtectSystem=strict",
            "# netlink: the names and addresses of interfaces, for mDNS",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
            "RestrictNamespaces=yes",
            "RestrictRealtime=yes",
            "RestrictSUIDSGID=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
        ]
    wants = ["Wants=network-online.target", "After=network-online.target"] if where.is_system else []
    target = "multi-user.target" if where.is_system else "default.target"
    head = ["# A node of jbi-pubsub; written by `jbi node install`.", "[Unit]", "Description=jbi-pubsub node", *wants]
    return "\n".join([*head, "", "[Service]", *service, "", "[Install]", f"WantedBy={target}"]) + "\n"


def write(where: Places, answers: InstallOptions, program: Iterable[str]) -> bool:
    """Write both; False: a configuration was there, and stays as it is. Raises StorageError, and ConfigurationError for
    one that no node would start with."""
    _check(answers, where)
    try:
        is_new = not where.configuration.exists()
        for file, text in ((where.configuration, configuration(answers, where)), (where.unit, unit(where, program))):
            file.parent.mkdir(parents=True, exist_ok=True)
            if file == where.unit or is_new:
                file.write_text(text, "utf-8")
    except OSError as exc:
        raise _refused(where, exc) from exc
    return is_new


def remove(where: Places) -> list[Path]:
    """Remove both; which there were. Raises StorageError."""
    try:
        found = [file for file in (where.unit, where.configuration) if file.exists()]
        for file in found:
            file.unlink()
    except OSError as exc:
        raise _refused(where, exc) from exc
    return found


def _check(answers: InstallOptions, where: Places) -> None:
    """That a node starts with that, or with what is there."""
    for what, text in (("name", answers.name), ("host", answers.host), ("tls", answers.tls)):
        if not text.isprintable() or (what != "tls" and not text.strip()):
            raise ConfigurationError(f"a node's {what} can't be {text!r}", hint="Characters that can be printed")
    if where.configuration.exists():
        config, _ = load(file=where.configuration, environment={})
    else:
        own = {f"{name}.{key}": value for name, keys in _tables(answers, where).items() for key, value in keys.items()}
        config, _ = load(file=None, environment={}, flags=own)
    for host in (config.lookup.host, config.pad.host):
        config.security().check(host, or_else="let it listen on 127.0.0.1")


def hidden_from_services(paths: Iterable[Path]) -> Path | None:
    """The first that a service of the system can't see: its unit has ProtectHome and PrivateTmp (systemd.exec(5))."""
    return next((path for path in paths if any(path.is_relative_to(each) for each in HIDDEN)), None)


def _refused(where: Places, exc: OSError) -> StorageError:
    return StorageError(
        f"{exc.filename or where.unit}: {exc.strerror or exc}",
        hint="Run it as root" if where.is_system else "Name a home that can be written",
    )
