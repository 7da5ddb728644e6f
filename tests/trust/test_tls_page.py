"""The commands of docs/tls.md, as they are written there, on two machines: addresses of loopback, or network namespaces
with a link between them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = (Path(__file__).parents[2] / "docs" / "tls.md").read_text()
FIRST, SECOND = "10.0.0.1", "10.0.0.2"
"""The page's machines."""


def commands() -> list[tuple[str, str]]:
    """(machine, command) of all on the page, in their order."""
    found, machine = [], ""
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("# on "):
                machine = line.removeprefix("# on ")
            elif line:
                found.append((machine, line))
    return found


def serves(command: str) -> bool:
    """Whether a command runs until it is stopped."""
    return " lookup " in command or " pad " in command


def home(tmp_path: Path, machine: str) -> Path:
    """Where somebody works on that machine."""
    folder = tmp_path / machine
    folder.mkdir(exist_ok=True)
    return folder


def carry(tmp_path: Path) -> None:
    """What the page says between the commands of the two machines."""
    shutil.copytree(home(tmp_path, FIRST) / "certs" / "bravo", home(tmp_path, SECOND) / "bravo")
    passphrase = home(tmp_path, FIRST) / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    passphrase.chmod(0o600)


def test_the_first_five_commands_are_five() -> None:
    assert [command.split("--")[0].split()[1] for _, command in commands()[:3]] == ["certs"] * 3
    assert [serves(command) for _, command in commands()[:6]] == [False, False, False, True, True, False]


@pytest.mark.processes
def test_the_page_works_on_two_addresses(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    # Given two addresses of loopback that nobody else has for the two machines, and nothing configured
    net = f"127.{os.getpid() % 250 + 2}.{time.monotonic_ns() // 1000 % 250}"
    monkeypatch.delenv("JBI_CONFIG")
    monkeypatch.setenv("JBI_LOOKUP_MULTICAST", "false")
    said: dict[str, str] = {}
    # When the commands run as they are written
    for machine, command in commands():
        if machine == SECOND and not (home(tmp_path, SECOND) / "bravo").exists():
            carry(tmp_path)
        monkeypatch.chdir(home(tmp_path, machine))
        process = start(*_words(command.replace("10.0.0", net))[1:])
        if serves(command):
            said[command] = process.stdout.readline()
            assert said[command], process.stderr()
        else:
            said[command], errors = process.communicate()
            # Expect each to end well
            assert process.returncode == 0, (command, errors)
    # Expect the delegate on the second machine to be found from the first
    services = next(told for command, told in said.items() if command.endswith(" services"))
    assert "rome" in services
    assert f"{net}.2" in services
    # Expect nobody to be let in without a certificate, or with the one that the page revokes, and to be told why
    monkeypatch.setenv("JBI_LOOKUP_TIMEOUT", "2")
    monkeypatch.chdir(home(tmp_path, SECOND))
    for who, why in (([], "speaks TLS, and we do not"), (["--tls", "bravo"], "our certificate is revoked")):
        stranger = start(*who, "--locator", f"{net}.1:4160", "services")
        _, errors = stranger.communicate()
        assert stranger.returncode == 1
        assert why in errors


def _words(command: str) -> list[str]:
    return [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]


class Machines:
    """Two network namespaces with a link between them; `with` removes them."""

    def __init__(self) -> None:
        self.spaces = {machine: f"jbi-tls-{number}-{os.getpid()}" for number, machine in enumerate((FIRST, SECOND))}
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Machines:
        first, second = self.spaces.values()
        for space in (first, second):
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "link0", "type", "veth", "peer", "link0", "netns", second)
        for machine, space in self.spaces.items():
            _ip("-n", space, "address", "add", f"{machine}/24", "dev", "link0")
            _ip("-n", space, "link", "set", "link0", "up")
        return self

    def __exit__(self, *why: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def start(self, machine: str, command: str, folder: Path) -> subprocess.Popen[str]:
        """The command as a person on that machine runs it."""
        program = ["ip", "netns", "exec", self.spaces[machine], sys.executable, "-m", "jbi_pubsub"]
        environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [*program, *_words(command)[1:]],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.processes.append(process)
        return process


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=20.0)


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Skips, loudly, where there can be none."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux, root and iproute2")
    made = Machines()
    try:
        made.__enter__()
    except subprocess.CalledProcessError as exc:
        made.__exit__()
        pytest.skip(f"no network namespaces here: {exc.stderr.strip()}")
    yield made
    made.__exit__()


@pytest.mark.slow  # nine interpreters; in short above
@pytest.mark.processes
def test_the_page_works_on_two_machines(machines: Machines, tmp_path: Path) -> None:
    # Given two hosts with a link between them; When the commands run as they are written
    for machine, command in commands():
        if machine == SECOND:
            carry(tmp_path)
        process = machines.start(machine, command, home(tmp_path, machine))
        if serves(command):
            assert process.stdout is not None
            assert process.stdout.readline()
            continue
        out, errors = process.communicate(timeout=60.0)
        assert process.returncode == 0, (command, errors)
        if command.endswith(" services"):
            # Expect the delegate of the second to be found from the first
            assert "10.0.0.2" in out
    # Expect who was revoked on the page not to be let in any more, from the other machine
    asked = "jbi --tls bravo --set lookup.timeout=3 --locator 10.0.0.1:4160 services"
    process = machines.start(SECOND, asked, home(tmp_path, SECOND))
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert "our certificate is revoked" in errors
