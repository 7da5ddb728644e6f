"""Checks of `jbi doctor` of others: lookup services, servers, their versions and clocks."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, ProtocolError
from jbi_pubsub.core.process import version
from jbi_pubsub.core.wire import PROTOCOL
from jbi_pubsub.lookup.client.discovery import shown_groups
from jbi_pubsub.lookup.client.proxy import RegistrarInfo

from .parties import Answer, Checkup, Finding, State
from .status import namesakes

SLOW_SECONDS: Final = 1.0
"""A call that takes longer is worth a warning: leases are renewed by such calls."""
SKEW_SECONDS, SKEW_WRONG = 1.0, 300.0
"""Clocks that differ by more than the first make times of publication hard to read, by more than the second
certificates and mail wrong."""


def locators(checkup: Checkup) -> Iterator[Finding]:
    """Whether a lookup service of our groups answers at each locator, and how fast; and which mDNS has found."""
    found, config = checkup.found(), checkup.config
    if found.problem:
        yield Finding("locators", "skipped", found.problem)
        return
    answered = [a for a in (*found.locators, *found.announced) if a.error is None]
    for answer in found.locators:
        if answer.error is None:
            yield _served(answer, config)
        else:
            yield _unanswered(answer, is_set=checkup.is_set("lookup.locators"), others=bool(answered))
    for answer in found.announced:
        if answer.error is None:
            yield _served(answer, config)
    if not found.locators and not answered:
        yield Finding("locators", "warning", "no lookup service found", "jbi lookup")


def _served(answer: Answer, config: Config) -> Finding:
    info: RegistrarInfo = answer.value
    text = (
        f"{answer.at}: lookup service {info.service_id[:8]}, {shown_groups(info.groups)}, {_shown_time(answer.seconds)}"
    )
    if not set(info.groups) & set(config.lookup.groups):
        wanted = shown_groups(config.lookup.groups)
        group = info.groups[0] if info.groups else ""
        return Finding(
            "locators", "warning", f"{text}: not {wanted}", f"jbi --group '{group}' ..." if info.groups else ""
        )
    if answer.seconds > SLOW_SECONDS:
        return Finding("locators", "warning", f"{text}: slow", "Look at its load: jbi status --watch")
    return Finding("locators", "ok", text)


def _unanswered(answer: Answer, *, is_set: bool, others: bool) -> Finding:
    host, _, port = answer.at.rpartition(":")
    error = answer.error
    assert error is not None
    if "theirs" in error.facts:
        return Finding("locators", "failure", f"{answer.at}: {error.message}", _same_version(error))
    text = error.message if answer.at in error.message else f"{answer.at}: {error.message}"
    local = host in ("127.0.0.1", "localhost", "[::1]")
    if "TLS" in text:
        return Finding("locators", "failure", text, "[tls] has to be set at both ends, or at none: jbi doctor tls")
    if isinstance(error, ProtocolError):
        who = f"Something else answers: sudo ss -ltnp 'sport = :{port}'"
        return Finding("locators", "failure", text, f"{who}; or name the right place in [lookup] locators")
    advice = f"jbi lookup --port {port}" if local else f"On {host}: jbi lookup --host {host.strip('[]')} --port {port}"
    if not is_set:  # nobody has said that one is there
        return Finding("locators", "skipped" if others else "warning", text, "" if others else advice)
    return Finding("locators", "failure", text, f"{advice}; or take it out of [lookup] locators")


def servers(checkup: Checkup) -> Iterator[Finding]:
    """Whether each delegate, peer publisher and lookup service that is listed answers, and how fast."""
    found = checkup.found()
    for answer in found.servers:
        if answer.error is not None:
            if "theirs" in answer.error.facts:
                continue  # `versions` tells
            if isinstance(answer.error, AccessDeniedError):
                advice = "[client] user and password, or [tls] folder, of somebody whom its rules allow `status`"
                yield Finding("servers", "warning", f"{answer.at}: {answer.error.message}", advice)
                continue
            advice = "Start it again; a dead one leaves the lists when its lease ends: jbi status --watch"
            yield Finding("servers", "failure", answer.error.message, advice)
            continue
        facts = answer.value
        text = f"{answer.called}, {_shown_time(answer.seconds)}"
        certificate, faults = facts.get("tls"), facts.get("faults")
        if isinstance(certificate, dict) and (certificate.get("ends_soon") or certificate.get("revoked")):
            name, wrong = certificate.get("identity"), f"ends in {certificate.get('days')} days"
            advice = f"jbi certs renew {name}, and copy it there"
            if certificate.get("revoked"):  # with its key, which can't be renewed
                wrong, advice = (
                    "is revoked",
                    f"jbi certs issue {name} --address HOST, and copy certificate and key there",
                )
            yield Finding("servers", "warning", f"{text}: its certificate {wrong}", advice)
        if isinstance(faults, dict) and faults:
            told = ", ".join(f"{step} {count}" for step, count in list(faults.items())[:5])
            yield Finding("servers", "warning", f"{text}: faults: {told}", f"jbi status {answer.at}; see its log")
        elif answer.seconds > SLOW_SECONDS:
            yield Finding("servers", "warning", f"{text}: slow", f"jbi status --watch {answer.at}")
        else:
            yield Finding("servers", "ok", text)
    for name, places in namesakes(a.value for a in found.servers if a.error is None):
        text = f"{len(places)} delegates are called {name}, at {', '.join(places)}: publishers use one or the other"
        yield Finding("servers", "warning", text, "Give one another name: jbi pad NAME LOCATION")
    if found.unseen:
        yield Finding("servers", "warning", f"{found.unseen:,} more are listed, and not asked", "jbi status")
    if not found.servers:
        yield Finding("servers", "skipped", found.problem or "none found")


def versions(checkup: Checkup) -> Iterator[Finding]:
    """Whether all speak our protocol, and are of our version."""
    found = checkup.found()
    others = [
        a.error for a in (*found.locators, *found.announced, *found.servers) if a.error and "theirs" in a.error.facts
    ]
    for error in others:
        yield Finding("versions", "failure", error.message, _same_version(error))
    own = version()
    told = {a.at: str(a.value.get("version", "older")) for a in found.servers if a.error is None}
    different = {at: theirs for at, theirs in told.items() if theirs != own}
    if different:
        text = ", ".join(f"{at} is {theirs}" for at, theirs in list(different.items())[:8])
        yield Finding("versions", "warning", f"we are {own}, {text}", f"pip install jbi-pubsub=={own} there")
    elif told:
        yield Finding("versions", "ok", f"{len(told)} servers, all {own}, protocol {PROTOCOL}")
    elif not others:
        yield Finding("versions", "skipped", found.problem or "no server found")


def _same_version(error: JbiError) -> str:
    theirs = error.facts["theirs"]
    older = "there" if isinstance(theirs, int) and theirs < PROTOCOL else "here"
    return f"pip install --upgrade jbi-pubsub {older}: both ends have to be of one protocol"


def clock(checkup: Checkup) -> Iterator[Finding]:
    """Whether our clock is kept by others, does not jump, and agrees with the servers'."""
    ahead = time.time() - time.monotonic()
    yield _kept()
    found = checkup.found()
    jump = time.time() - time.monotonic() - ahead
    if abs(jump) > 0.1:
        advice = "See who sets it: journalctl -u systemd-timesyncd -u chrony"
        yield Finding("clock", "warning", f"it has jumped by {jump:+.1f} s while we looked", advice)
    off = {a.at: float(a.value["time"]) - a.clock for a in found.servers if a.error is None and _tells_time(a.value)}
    worst = max(off, key=lambda at: abs(off[at]), default="")
    if not worst:
        return
    text = f"{len(off)} servers, {worst} most: {off[worst]:+.3f} s"
    slack = max(a.seconds for a in found.servers if a.at == worst) / 2
    if abs(off[worst]) - slack > SKEW_SECONDS:
        state: State = "failure" if abs(off[worst]) > SKEW_WRONG else "warning"
        yield Finding("clock", state, f"differs from {text}", "sudo timedatectl set-ntp true, on both machines")
    else:
        yield Finding("clock", "ok", f"as that of {text}")


def _tells_time(facts: Mapping[str, Any]) -> bool:
    told = facts.get("time")
    return isinstance(told, (int, float)) and 0 < told < 1e11


def _kept() -> Finding:
    """By NTP, as systemd says."""
    command = shutil.which("timedatectl")
    if command is None:
        return Finding("clock", "skipped", "its source of time is not known: no timedatectl")
    try:
        done = subprocess.run(  # noqa: S603  # the system's own
            [command, "show", "-p", "NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Finding("clock", "skipped", f"its source of time is not known: {exc}")
    said = done.stdout.strip()
    if said == "yes":
        return Finding("clock", "ok", "kept by NTP")
    if said == "no":
        return Finding("clock", "warning", "not kept by NTP", "sudo timedatectl set-ntp true")
    why = done.stderr.strip()[:200] or "it says nothing"
    return Finding("clock", "skipped", f"its source of time is not known: timedatectl: {why}")


def _shown_time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
