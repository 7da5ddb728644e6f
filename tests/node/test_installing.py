"""A node as a service: what is written, that systemd takes it, that it starts, and that nothing stays."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import jbi as command
from jbi_pubsub.cli.app import run
from jbi_pubsub.core.config import load
from jbi_pubsub.node.installing import InstallOptions, configuration, hidden_from_services, places, unit

CONTAINERFILE = Path(__file__).parent.parent.parent / "deploy" / "Containerfile.node"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who installs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.row("G-10", "G-33", "G-34")
def test_installed_it_starts_and_uninstalled_nothing_stays(
    home: Path, start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a node that was installed without a question, for systemd to start later
    assert run(["node", "install", "--defaults", "--no-start", "--name", "tent-3", "--no-archive"]) == 0
    where = places(is_system=False)
    said = capsys.readouterr().out
    assert f"configuration: {where.configuration}\nunit: {where.unit}\n" in said
    assert "to do: systemctl --user enable --now jbi-node" in said
    # When the command of its unit runs, with a port that is free
    (line,) = [each for each in where.unit.read_text().splitlines() if each.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart="))
    assert words[1:3] == ["-m", "jbi_pubsub"]
    process = start("--set", "lookup.port=0", *words[3:], "--json")
    # Expect a node of that name in the folder; it is told to be gone before what it has kept goes
    assert process.fact()["name"] == "tent-3"
    assert run(["node", "uninstall", "--purge", "--no-stop"]) == 1
    assert "a node runs in" in capsys.readouterr().err
    assert run(["node", "stop", "--folder", str(where.folder)]) == 0
    assert run(["node", "uninstall", "--purge", "--no-stop"]) == 0
    assert not any(each.exists() for each in (where.configuration, where.unit, where.folder))
    assert run(["node", "uninstall"]) == 1
    assert "no node is installed here" in capsys.readouterr().err


def test_what_was_configured_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given an installation whose configuration somebody has changed; When it is installed again
    run(["node", "install", "--defaults", "--no-start"])
    where = places(is_system=False)
    where.configuration.write_text("[node]\nname = 'mine'\n")
    assert run(["node", "install", "--defaults", "--no-start", "--name", "other"]) == 0
    # Expect it as it was, and that what was asked for is told not to be taken
    assert where.configuration.read_text() == "[node]\nname = 'mine'\n"
    assert "--name: not taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without TLS"),
        (["--tls", "/nowhere"], "/nowhere"),
        (["--name", ""], "name can't be ''"),
    ],
)
def test_what_no_node_would_start_with_is_not_installed(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    # Given such an answer; When it is installed, expect why not, and nothing written
    assert run(["node", "install", "--defaults", "--no-start", *words]) != 0
    assert why in capsys.readouterr().err
    where = places(is_system=False)
    assert not where.unit.exists()
    assert not where.configuration.exists()
    # And the same of a configuration that was there
    where.configuration.parent.mkdir(parents=True)
    where.configuration.write_text("[log]\nlevel = 'chatty'\n")
    assert run(["node", "install", "--defaults", "--no-start"]) == 2
    assert "log.level = chatty" in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_told_without_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "/nowhere.toml", "node", "start"]) == 2
    assert "configuration file /nowhere.toml: No such file or directory. " in capsys.readouterr().err


def test_a_service_of_the_system_sees_no_homes() -> None:
    # Given where a library may lie; Expect the first that the unit hides
    assert hidden_from_services([Path("/opt/jbi/bin/python"), Path("/usr")]) is None
    assert hidden_from_services([Path("/opt/x"), Path("/home/ann/venv/bin/python")]) == Path(
        "/home/ann/venv/bin/python"
    )
    assert hidden_from_services([Path("/rooted/x"), Path("/root/.venv")]) == Path("/root/.venv")


def test_with_nobody_to_ask_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "install", "--no-start"]) == 2
    assert "pass --defaults" in capsys.readouterr().err
    assert not places(is_system=False).unit.exists()


@pytest.mark.parametrize("name", ['a"b', "50% \\n $HOME", "ünïcode", "[tls]\tx"])
def test_a_configuration_says_what_was_answered(tmp_path: Path, name: str) -> None:
    # Given answers with whatever a person types; Expect them back from the file
    where = places(is_system=True)
    answers = InstallOptions(
        name, host="10.0.0.7", port=4161, multicast=True, archive=False, tls="/etc/jbi/tls", level="debug"
    )
    file = tmp_path / "node.toml"
    file.write_text(configuration(answers, where))
    found, _ = load(file=file, environment={})
    assert (found.node.name, found.node.folder, found.node.archive) == (name, "/var/lib/jbi-node", False)
    assert (found.lookup.host, found.lookup.port, found.lookup.multicast) == ("10.0.0.7", 4161, True)
    assert (found.pad.host, found.tls.folder, found.log.level) == ("10.0.0.7", "/etc/jbi/tls", "debug")
    assert set(tomllib.loads(file.read_text())) == {"node", "lookup", "pad", "log", "tls"}


@pytest.mark.row("G-34")
@pytest.mark.parametrize("is_system", [True, False])
def test_systemd_accepts_the_unit(tmp_path: Path, is_system: bool) -> None:
    # Given a unit; Expect no complaint of systemd's, and the system's with a user of its own and no privileges
    text = unit(places(is_system=is_system), ["/bin/true"])
    assert ("DynamicUser=yes" in text, "CapabilityBoundingSet=\n" in text) == (is_system, is_system)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / "jbi-node.service"
    file.write_text(text)
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in said.stderr.splitlines() if "jbi-node" in line] == []


def test_the_image_runs_a_node_as_nobody_in_particular() -> None:
    # Given the last stage of the image; Expect a user, a volume that holds the folder, and a command of ours
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]
    last = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert last["USER"] == "10001"
    words = [each.strip('"') for each in last["CMD"].strip("[]").split(", ")]
    assert words[-1].startswith(last["VOLUME"])
    with command.make_context("jbi", words) as context:
        assert context.args or context._protected_args
    assert "'/src[node]'" in CONTAINERFILE.read_text()
