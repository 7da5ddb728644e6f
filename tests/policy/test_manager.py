"""A policy that is in force: changed while it runs, refusals counted and written down."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jbi_pubsub.core.access import Decision, Subject, demand
from jbi_pubsub.core.errors import AccessDeniedError, PolicyError
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.policy import audit
from jbi_pubsub.policy.audit import AuditLog
from jbi_pubsub.policy.manager import AccessManager

ALICE = Caller("192.0.2.7:1", identity="alice")
ONLY_ALICE = "[[access]]\nuser = 'alice'\n"
ONLY_BOB = "[[access]]\nuser = 'bob'\n"


@pytest.fixture
def manage(tmp_path: Path) -> Iterator[Callable[..., AccessManager]]:
    with ExitStack() as stack:

        def make(text: str = ONLY_ALICE, *, log: AuditLog | None = None, **options: bool) -> AccessManager:
            (tmp_path / "policy.toml").write_text(text)
            manager = AccessManager(tmp_path / "policy.toml", component="alpha@rome", audit_log=log, **options)
            stack.callback(manager.close)
            return manager

        yield make


def may(manager: AccessManager) -> bool:
    return bool(manager.allow(ALICE, "connect", Subject()))


def test_a_changed_file_is_in_force_within_moments(
    manage: Callable[..., AccessManager], eventually: Callable[..., None]
) -> None:
    manager = manage()
    assert may(manager)
    manager.path.write_text(ONLY_BOB)
    eventually(lambda: manager.version == 2)
    assert not may(manager)
    # Expect a file that is moved into its place to do as well
    other = manager.path.with_suffix(".new")
    other.write_text(ONLY_ALICE)
    other.replace(manager.path)
    eventually(lambda: may(manager))


def test_a_refusal_is_logged_with_its_rule(
    manage: Callable[..., AccessManager], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a policy without an audit log; When somebody is refused, by a rule and for want of one
    caplog.set_level(logging.INFO, logger="jbi_pubsub.policy")
    manager = manage()
    manager.record(ALICE, "publish", Subject("intel.Report"), Decision(False, "policy.toml:3"))
    manager.record(ALICE, "connect", Subject(), Decision(False))
    # Expect the log to say why
    said = caplog.messages[-2:]
    assert said[0].endswith(" may not publish intel.Report (policy.toml:3)")
    assert said[1].endswith(" may not connect (no rule allows it)")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.write_text("[[access]]\nusr = 'bob'\n"), "policy.toml:2:1: unknown key 'usr'"),
        (lambda path: path.write_text("[[access]\n"), "policy.toml:1:9:"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text(""), "empty, as a full disk leaves"),
        (lambda path: path.chmod(0o666), "everybody may write it"),
    ],
)
def test_a_file_that_is_no_good_leaves_the_old_rules_in_force_and_says_so(
    manage: Callable[..., AccessManager],
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path], object],
    told: str,
) -> None:
    manager = manage()
    change(manager.path)
    eventually(lambda: manager.fault)
    assert told in manager.fault
    assert told in str(manager.status()["fault"])
    assert told in caplog.text
    assert (manager.version, may(manager)) == (1, True)
    # When it is mended
    manager.path.write_text(ONLY_BOB)
    manager.path.chmod(0o644)
    # Expect it to be in force
    eventually(lambda: manager.version == 2)
    assert manager.fault == ""
    assert not may(manager)


def test_a_file_without_rules_that_is_not_empty_allows_all(
    manage: Callable[..., AccessManager], eventually: Callable[..., None]
) -> None:
    manager = manage()
    manager.path.write_text("# all is allowed\n")
    eventually(lambda: manager.version == 2)
    assert (manager.fault, manager.rules.rules) == ("", ())


def test_a_file_in_the_middle_of_a_write_is_not_taken(manage: Callable[..., AccessManager]) -> None:
    # Given a manager that is looked at by hand
    manager = manage()
    manager.close()
    # When every look finds the file longer than before, and valid each time
    for length in range(1, 5):
        manager.path.write_text(ONLY_BOB * length)
        manager.look()
        assert manager.version == 1
    # Expect it to be read when it stands still
    manager.look()
    assert (manager.version, len(manager.rules.rules)) == (2, 4)


@pytest.mark.parametrize("text", ["", "[[access]]\nusr = 'a'\n"])
def test_a_start_with_a_bad_or_missing_file_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.toml"
    if text:
        file.write_text(text)
    with pytest.raises(PolicyError):
        AccessManager(file, component="c")


def lines(log: AuditLog) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def test_each_refusal_is_counted_and_written_down(
    manage: Callable[..., AccessManager], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    manager = manage(log=log)
    manager.record(ALICE, "connect", Subject(), Decision(True, "policy.toml:1"))
    bob = Caller("192.0.2.8:99", identity="bob\n{}\x1b[31m", client="x" * 1000)
    manager.record(bob, "subscribe", Subject("intel.Report", "1.0"), Decision(False))
    eventually(lambda: log.written == 1)
    (line,) = lines(log)
    assert line["client"] == "x" * 200
    assert {key: line[key] for key in ("decision", "action", "user", "address", "type", "component", "rule")} == {
        "decision": "refused",
        "action": "subscribe",
        "user": "bob\n{}\x1b[31m",
        "address": "192.0.2.8",
        "type": "intel.Report",
        "component": "alpha@rome",
        "rule": "",
    }
    assert "\x1b" not in log.path.read_text()
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert manager.status()["refused"] == {"subscribe": 1}


def test_who_logs_in_with_the_certificate_of_another_is_written_down_with_both_names(
    manage: Callable[..., AccessManager], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    manager = manage(log=log)
    for user in ("carol", "bob"):
        place = PortPlace(peer="bob", holder="1", user=user)
        manager.record(Caller("192.0.2.8:99", user, place), "publish", Subject(), Decision(False))
    eventually(lambda: log.written == 2)
    assert [(line["user"], line.get("certificate")) for line in lines(log)] == [("carol", "bob"), ("bob", None)]


def test_what_is_allowed_is_written_down_on_demand(
    manage: Callable[..., AccessManager], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    manager = manage(ONLY_ALICE + "audit = true\n", log=log)
    manager.record(ALICE, "connect", Subject(), manager.allow(ALICE, "connect", Subject()))
    eventually(lambda: log.written == 1)
    assert (lines(log)[0]["decision"], lines(log)[0]["rule"]) == ("allowed", "policy.toml:1")
    other = AuditLog(tmp_path / "all.jsonl")
    everything = manage(ONLY_ALICE, log=other, everything=True)
    everything.record(ALICE, "connect", Subject(), everything.allow(ALICE, "connect", Subject()))
    eventually(lambda: other.written == 1)


def test_a_refusal_names_each_right_of_which_one_would_do(manage: Callable[..., AccessManager]) -> None:
    manager, report = manage(ONLY_BOB), Subject("report", "1.0")
    with pytest.raises(AccessDeniedError, match=r"^alice may not subscribe report 1\.0\."):
        demand(manager, ALICE, ("subscribe", report))
    with pytest.raises(AccessDeniedError, match=r"^alice may not subscribe, publish or status report 1\.0\."):
        demand(manager, ALICE, ("subscribe", report), ("publish", report), ("status", report))
    # Expect one of them to do
    assert demand(manage(ONLY_ALICE + "action = 'publish'\n"), ALICE, ("subscribe", report), ("publish", report))


def test_a_full_log_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", most=300, keep=2)
    for number in range(40):
        log.tell({"n": number, "filler": "x" * 80})
        log.write()
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [json.loads(line)["n"] for name in reversed(names) for line in (tmp_path / name).read_text().splitlines()]
    assert kept == list(range(40 - len(kept), 40))
    assert log.written == 40


def test_two_processes_may_share_a_log(tmp_path: Path) -> None:
    one, other = (AuditLog(tmp_path / "audit.jsonl", most=500, keep=50) for _ in range(2))
    for number in range(60):
        writer = one if number % 2 else other
        writer.tell({"n": number, "filler": "x" * 80})
        writer.write()
    told = [json.loads(line)["n"] for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(told) == list(range(60))
    one.close()
    other.close()


def test_a_disk_that_takes_nothing_is_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given a disk that takes 100 bytes of a file more
    caplog.set_level(logging.WARNING)
    log = AuditLog(tmp_path / "audit.jsonl")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for number in range(3):
            log.tell({"n": number, "filler": "x" * 70})
            log.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # Expect the lines to be lost, counted, and told once
    assert (log.written, log.lost) == (1, 2)
    assert log.status()["fault"]
    assert caplog.text.count("can't be written") == 1
    # When there is room again, expect a line of its own behind the torn one
    log.tell({"n": 9})
    log.write()
    log.close()
    assert json.loads(log.path.read_text().splitlines()[-1]) == {"n": 9}
    assert log.fault == ""


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WAITING_MOST", 10)
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(25):
        log.tell({"n": number})
    log.close()
    assert (log.written, log.lost) == (10, 15)


def test_a_log_that_can_not_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="audit log"):
        AuditLog(tmp_path / "none" / "audit.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PolicyError, match="audit log"):
        AuditLog(tmp_path / "link")


def test_a_pipe_is_no_log_and_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    os.mkfifo(path)
    with pytest.raises(PolicyError, match="audit log"):
        AuditLog(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # with somebody who takes nothing out of it
    with pytest.raises(PolicyError, match="not a regular file"):
        AuditLog(path)
    os.close(reader)
    # Expect the same when one is put in the place of a log that is in use: its lines are lost, and said to be
    path.unlink()
    log = AuditLog(path)
    path.unlink()
    os.mkfifo(path)
    log.tell({"n": 1})
    log.write()
    assert (log.written, log.lost) == (0, 1)
    assert log.fault
    path.unlink()
    log.tell({"n": 2})
    log.write()
    assert (log.written, log.fault) == (1, "")
    log.close()


def test_whoever_has_a_log_locked_does_not_hold_us_up(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", most=10)
    log.tell({"n": 1})
    log.write()
    with log.path.open() as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        log.tell({"n": 2})
        log.write()
    log.tell({"n": 3})
    log.close()
    assert (log.written, log.lost) == (3, 0)
    assert [json.loads(line)["n"] for line in log.path.with_name("audit.jsonl.1").read_text().splitlines()] == [1, 2]


def test_a_file_with_many_doubts_does_not_fill_the_log(
    manage: Callable[..., AccessManager], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a hundred groups that nobody is in
    text = "[group]\n" + "".join(f"g{number} = []\n" for number in range(100))
    with caplog.at_level(logging.WARNING, "jbi_pubsub.policy"):
        manager = manage(text)
    # Expect some to be told, and how many there are
    assert sum("is empty" in line for line in caplog.messages) <= 20
    assert f"and 81 more: `jbi policy check {manager.path}`" in caplog.messages
