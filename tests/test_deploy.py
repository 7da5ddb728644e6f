"""What `deploy/` ships: the units of systemd, and the image's steps, as far as they go without a container engine."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import jbi

TOP = Path(__file__).parent.parent
DEPLOY = TOP / "deploy"
UNITS = ("jbi-lookup", "jbi-pad")
GUIDE = (TOP / "docs" / "machines.md").read_text()


def unit(name: str) -> configparser.SectionProxy:
    """The [Service] section."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(DEPLOY / f"{name}.service")
    return parser["Service"]


@pytest.mark.parametrize("name", UNITS)
def test_units_are_hardened(name: str) -> None:
    # Given a unit; Expect a user of its own, one place to write, no privileges, and a restart after a failure
    service = unit(name)
    assert (service["DynamicUser"], service["StateDirectory"], service["Restart"]) == ("yes", name, "on-failure")
    assert (service["ProtectSystem"], service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == (
        "strict", "yes", "",
    )  # fmt: skip
    assert f"--state /var/lib/{name}/" in service["ExecStart"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # Given a unit whose program is there, with the drop-in of the guide
    text = (DEPLOY / f"{name}.service").read_text().replace("/opt/jbi/bin/jbi", sys.executable)
    file = tmp_path / f"{name}.service"
    file.write_text(text)
    dropin = tmp_path / f"{name}.service.d" / "override.conf"
    dropin.parent.mkdir()
    dropin.write_text(re.findall(r"```ini\n(.*?)```", GUIDE, re.DOTALL)[0])
    # When systemd reads it, expect no complaint
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in said.stderr.splitlines() if name in line] == []
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize("name", UNITS)
def test_the_command_of_a_unit_is_one_of_ours(name: str) -> None:
    # Given a unit's command with its variables, and what the guide writes into /etc/jbi/pad.env
    service = unit(name)
    words = shlex.split(service["ExecStart"])
    (written,) = re.findall(r"```sh\n(PAD_NAME.*?)```", GUIDE, re.DOTALL)
    assert set(re.findall(r"\$\{(\w+)\}", service["ExecStart"])) <= set(re.findall(r"^(\w+)=", written, re.MULTILINE))
    # When click reads it, expect a command with options that it knows
    with jbi.make_context("jbi", words[1:]) as context:
        assert context._protected_args is not None
        name_of, command, rest = jbi.resolve_command(context, context._protected_args + context.args)
        assert command is not None
        made = command.make_context(name_of, list(rest), parent=context)
    assert made.params["state"] == re.findall(r"--state (\S+)", service["ExecStart"])[0]


def instructions() -> list[tuple[str, str]]:
    """The Containerfile's instructions: name and argument."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line and not line.startswith("#")]


def test_the_image_has_no_root_and_keeps_its_state() -> None:
    # Given the last stage of the Containerfile
    steps = instructions()
    last = dict(steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :])
    # Expect a user that the stage makes, a volume that is its home, and the port that a lookup service has
    assert f"--uid {last['USER']}" in last["RUN"]
    assert f"--home-dir {last['VOLUME']}" in last["RUN"]
    assert "4160" in last["EXPOSE"]
    assert {name for name, _ in steps} <= {
        "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_the_images_build_and_run() -> None:
    engines = [engine for engine in ("podman", "docker") if shutil.which(engine)]
    works = (
        each for each in engines if subprocess.run([each, "info"], capture_output=True, timeout=60).returncode == 0
    )
    engine = next(works, None)
    if engine is None:
        pytest.skip(f"no container engine runs here; installed: {', '.join(engines) or 'none'}")
    # Given a container engine; When the images are built, expect the demo to be right in the one, and the other to run
    done = subprocess.run(["make", "image", f"ENGINE={engine}"], cwd=TOP, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.row("G-33")
@pytest.mark.processes
def test_the_steps_of_the_image_make_a_command_that_runs(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    pytest.importorskip("setuptools")
    if shutil.which("git") is None or not (TOP / ".git").exists():
        pytest.skip("not in the repository")
    # Given the files of the repository, as COPY takes them, and folders in place of the image's
    source, home, state = tmp_path / "src", tmp_path / "opt" / "jbi", tmp_path / "lib"
    state.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (TOP / name).is_symlink() or (TOP / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, source / name, follow_symlinks=False)
    places = {"/src": str(source), "/opt/jbi": str(home), "/var/lib/jbi": str(state), "python ": f"{sys.executable} "}

    def here(text: str) -> str:
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)

    # When the steps of the first stage run, but that pip would fetch: the libraries are those of this environment, and
    # setuptools installs by itself what pip would have it make a wheel of
    make, install = [argument for name, argument in instructions() if name == "RUN"][:2]
    subprocess.run([*shlex.split(here(make)), "--without-pip"], check=True, timeout=120)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "beside.pth").write_text(f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n")
    assert install == "/opt/jbi/bin/pip install --no-cache-dir /src"
    subprocess.run(
        [
            home / "bin" / "python", "-W", "ignore", "-c", "import setuptools; setuptools.setup()", "--quiet",
            "install", "--single-version-externally-managed", "--record", tmp_path / "record", "--prefix", home,
        ], cwd=source, check=True, timeout=120,
    )  # fmt: skip
    # Expect what ENTRYPOINT and CMD name to run, from there and not from the repository, and to end when it is told to
    words = {name: json.loads(argument) for name, argument in instructions() if name in ("ENTRYPOINT", "CMD")}
    command = [str(home / "bin" / words["ENTRYPOINT"][0]), *map(here, words["CMD"])]
    settings = {"JBI_LOOKUP_PORT": "0", "JBI_LOOKUP_MULTICAST": "false", "PYTHONUNBUFFERED": "1", "PATH": "/usr/bin"}
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=state, env=settings, stdout=said, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: "lookup service" in (tmp_path / "said").read_text(), what=(tmp_path / "said").read_text)
        maps = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.terminate()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait(60.0)
    assert str(home).encode() in maps
    where = [str(home / "bin" / "python"), "-c", "import jbi_pubsub; print(jbi_pubsub.__file__)"]
    assert subprocess.run(where, cwd=state, capture_output=True, text=True, check=True).stdout.startswith(str(home))
    assert (state / "registrations.db").exists()
