"""One value of a delegate's own policy file, set over the network: `jbi policy set KEY VALUE --at DELEGATE`."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.core.access import NONE_IN_PARTICULAR
from jbi_pubsub.core.config import PolicySection, QosSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.services import AdminProxy

TYPE = "mil.af.rl.jbi.Intel_Imagery"
RULES = f"""# written by people
[space]
strategy = "weighted_fair"     # for now

[[policy]]
name = "imagery"
type = "{TYPE}"
importance = 2

[[link]]
name = "satcom"
members = "action == 'subscribe'"
rate = "800 kbps"

[[template]]
name = "convoy"
parameters = ["who"]

[[template.policy]]
name = "{{who}}: all"
user = "{{who}}"
importance = 5

[[mission]]
name = "Route Irish"
use = [{{ template = "convoy", who = "Patrol-1" }}]
active = true
"""

Told = Callable[..., tuple[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "policy.toml"
    found.write_text(RULES)
    found.chmod(0o640)
    return found


@pytest.fixture
def pad(federation: Any, path: Path, tmp_path: Path) -> DisseminationServer:
    """A delegate that follows a file of its own, and writes down what is done to it."""
    policy = PolicySection(file=str(path), audit=str(tmp_path / "audit.jsonl"))
    federation.config = msgspec.structs.replace(federation.config, policy=policy, qos=QosSection(mode="on"))
    return federation.pad()  # type: ignore[no-any-return]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Told:
    def said(*words: str, code: int = 0) -> tuple[str, str]:
        assert run(("policy", *words)) == code, capsys.readouterr()
        return tuple(capsys.readouterr())  # type: ignore[return-value]

    return said


def qos(pad: DisseminationServer) -> dict[str, Any]:
    """What is in force."""
    found: dict[str, Any] = pad.status()["qos"]["policy"]
    return found


@pytest.mark.row("Q-35", "Q-70")
def test_each_control_is_in_force_when_the_call_returns_and_stands_in_the_file(
    pad: DisseminationServer, path: Path, said: Told, figures: Any, federation: Any
) -> None:
    # Given a subscription and a publisher that stand
    figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    assert subscriber.wait_matched(uid) == 1
    # When each of the six is set; Expect it in force at once, and told which file says so
    controls = (
        ("link.satcom.rate", "400 kbps"), ("space.strategy", "strict"), ("space.shaping", "false"),
        ("policy.imagery.importance", "5"), ("policy.imagery.preference", "NoDrop"), ("role.Patrol-1", "cas"),
        ('mission."Route Irish".active', "false"),
    )  # fmt: skip
    for version, (key, value) in enumerate(controls, 2):
        out, _ = said("set", key, value, "--at", pad.address, "--why", "rain")
        assert out == f"version {version} is in force: {path} at {pad.address}\n"
        assert qos(pad)["version"] == version
    assert (qos(pad)["strategy"], qos(pad)["shaping"], qos(pad)["contracts"]) == ("strict", False, {"5": 2})
    (link,) = pad.status()["qos"]["links"]
    assert link["limit"] == 50_000
    # Expect all else as people wrote it, and the file's mode
    text = path.read_text()
    assert text.startswith('# written by people\n[space]\nshaping = false\nstrategy = "strict"     # for now\n')
    assert path.stat().st_mode & 0o777 == 0o640
    assert not [each for each in path.parent.iterdir() if each.name.startswith(".policy")]
    # When the same is said again, or from a program
    assert "in force already" in said("set", "space.strategy", "strict", "--at", pad.address)[0]
    told = json.loads(said("set", "space.strategy", "weighted_fair", "--at", pad.address, "--json")[0])
    assert told == {"version": 9, "changed": True, "file": str(path)}


def test_what_can_not_be_set_is_told_and_leaves_file_and_force_as_they_were(
    pad: DisseminationServer, path: Path, said: Told, tmp_path: Path
) -> None:
    before = path.read_text()
    for key, value, why in (
        ("policy.imagry.importance", "5", "Did you mean 'imagery'"),
        ("policy.imagery.importance", "9", "importance"),
        ("access.1.allow", "true", "is not a path of a policy file"),
        ("space.strategy", "fast", "strict"),
        ("space", "x", "is not a path"),
        ("x" * 10_001, "1", "more than 10000 characters"),
        ("policy.imagery.when", "size > '1 KB'; import os", "when"),
        ("\x1b[31m.x", "1", "is not a path"),
    ):
        _, err = said("set", key, value, "--at", pad.address, code=1)
        assert why in err
        assert "\x1b" not in err
    assert path.read_text() == before
    assert qos(pad)["version"] == 1
    # Nor can what is broken already, until people have mended it
    path.write_text("[space]\nstrategi = 1\n")
    assert "policy.toml:2:1" in said("set", "space.shaping", "false", "--at", pad.address, code=1)[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_can_not_be_written_is_told_and_leaves_nothing_behind(
    pad: DisseminationServer, path: Path, said: Told
) -> None:
    path.parent.chmod(0o555)
    try:
        assert "can't be written" in said("set", "space.shaping", "false", "--at", pad.address, code=1)[1]
    finally:
        path.parent.chmod(0o755)
    assert qos(pad)["shaping"] is True


def test_a_disk_that_is_full_is_told_and_leaves_nothing_behind(
    pad: DisseminationServer, path: Path, said: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("jbi_pubsub.core.files.os.fsync", full)
        assert "No space left" in said("set", "space.shaping", "false", "--at", pad.address, code=1)[1]
    assert qos(pad)["shaping"] is True
    assert path.read_text() == RULES


def test_only_who_may_steer_does_and_groups_and_roles_are_for_administrators(
    pad: DisseminationServer, path: Path, said: Told, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given rules by which everybody may look and steer, and nobody administer
    path.write_text(RULES + '\n[[access]]\naction = ["status", "connect", "steer"]\n')
    eventually(lambda: pad.status()["access"]["rules"] == 1)
    # Expect values to be set, but not who somebody is, however it is written
    said("set", "space.shaping", "false", "--at", pad.address)
    for key in ("role.mallory", '"role".mallory', "group.admins"):
        _, err = said("set", key, '["mallory"]', "--at", pad.address, code=1)
        assert "who may `administer`" in err.lower()
    assert "mallory" not in path.read_text()
    # When nobody may steer
    path.write_text(RULES + '\n[[access]]\naction = ["status", "connect"]\n')
    eventually(lambda: not pad._stages.access.allow(Caller("127.0.0.1:1"), "steer", NONE_IN_PARTICULAR))
    assert "may not steer space.shaping = true" in said("set", "space.shaping", "true", "--at", pad.address, code=1)[1]
    # Expect each to be in the audit log, allowed or not
    log = tmp_path / "audit.jsonl"

    def written() -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [(line["decision"], line["name"]) for line in lines if line["action"] == "steer"]

    eventually(lambda: len(written()) == 5, what=written)
    assert written()[0] == ("allowed", "space.shaping = false")
    assert written()[-1] == ("refused", "space.shaping = true")


def test_two_at_once_lose_nothing_of_each_other(pad: DisseminationServer, path: Path, federation: Any) -> None:
    # Given several who set at the same time
    ref = ServiceRef("", "", (pad.address,))

    def sets(number: int) -> None:
        proxy = AdminProxy(ref, federation.config.security(), timeout=60.0)
        for n in range(5):
            proxy.set_policy(f"role.user-{number}-{n}", "patrol", "")
        proxy.close()

    threads = [threading.Thread(target=sets, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect all of it in the file, and in force
    assert path.read_text().count('= "patrol"') == 20
    assert qos(pad)["version"] == 21
    # When people change the file afterwards: that is in force, as always
    began = time.monotonic()
    path.write_text(RULES.replace("weighted_fair", "strict"))
    while qos(pad)["strategy"] != "strict":
        assert time.monotonic() < began + 10.0
        time.sleep(0.02)


def test_who_has_no_policy_file_says_who_to_ask(federation: Any, said: Told) -> None:
    plain = federation.pad()
    assert "manages no quality of service" in said("set", "space.shaping", "false", "--at", plain.address, code=1)[1]
    peer = federation.peer()
    _, err = said("set", "space.shaping", "false", "--at", peer._server.address, code=2)
    assert "is no policy manager, and no delegate" in err


@pytest.mark.processes
def test_where_nobody_can_be_found_it_is_said_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given no lookup service
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", "127.0.0.1:9")
    monkeypatch.setenv("JBI_LOOKUP_MULTICAST", "false")
    monkeypatch.setenv("JBI_LOOKUP_TIMEOUT", "0.2")
    # Expect the ways that need none
    assert run(["policy", "set", "space.strategy", "strict"]) == 1
    assert "--at HOST:PORT" in (told := capsys.readouterr().err)
    assert "--file" in told
