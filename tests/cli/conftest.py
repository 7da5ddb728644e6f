"""The command line: in this process where nothing but its words matter, as processes where it talks to others."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest

from jbi_pubsub.cli.app import run

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    def is_one_line(self) -> bool:
        """Whether it failed as a person wants to read it: one line on stderr, nothing on stdout, no traceback."""
        return self.out == "" and len(self.err.strip().splitlines()) == 1 and "Traceback" not in self.err


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Said]:
    """said("config", "--json") runs `jbi config --json` in an empty folder and environment."""
    for name in [name for name in os.environ if name.startswith("JBI_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def command(*arguments: str) -> Said:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


@pytest.fixture
def flags(federation: Any, world: str) -> list[str]:
    """The federation for the command line."""
    own = ["--no-multicast", "--group", world, "--locator", federation.lookups[0].address]
    return [*own, "--set", "lookup.timeout=20"]


# -- terminals ----------------------------------------------------------------------------------------------------


_SHELL: Final = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # this terminal is ours: Ctrl-C, Ctrl-Z and new sizes are told to us
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["jbi", *sys.argv[2:]]
    from jbi_pubsub.cli import main
    main()
events = open(int(sys.argv[1]), "w", buffering=1)
print("pid", pid, file=events)
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("stopped", file=events)
    else:
        sys.exit(os.waitstatus_to_exitcode(status))
"""
"""What a shell does for a command in the foreground; which process that is, and that it stands still, is told."""
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A pseudo-terminal with one command in it."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 30, **environment: str) -> None:
        self._ours, self._theirs = os.openpty()
        self.size(columns, lines)
        self.settings = termios.tcgetattr(self._theirs)
        self.output = ""
        told, telling = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SHELL, str(telling), *arguments],
            stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, start_new_session=True, pass_fds=[telling],
            env={"TERM": "xterm", **os.environ, **environment},
        )  # fmt: skip
        os.close(telling)
        self._events = open(told)  # noqa: PTH123, SIM115  # no path; closed by __exit__
        self.pid = int(self._events.readline().split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(60.0)
        self._events.close()
        os.close(self._ours)
        os.close(self._theirs)

    def size(self, columns: int, lines: int) -> None:
        """Make it that large; who runs in it is told."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type them."""
        os.write(self._ours, keys.encode())

    def read(self, seconds: float = 0.05) -> str:
        """What comes until nothing has come for so long."""
        before = len(self.output)
        while select.select([self._ours], [], [], seconds)[0]:
            self.output += os.read(self._ours, 65_536).decode(errors="replace")
        return self.output[before:]

    def until(self, text: str, seconds: float = 30.0) -> str:
        """What comes until `text` has come: from what was read last on."""
        said, left = "", round(seconds / 0.05)
        while text not in said:
            said += self.read()
            left -= 1
            if left < 0:
                pytest.fail(f"no {text!r} within {seconds:g} s in ...{said[-800:]!r}")
        return said

    def ends(self, seconds: float = 30.0) -> int:
        """The exit code, when it has ended."""
        for _ in range(round(seconds / 0.05)):
            self.read()
            if self.process.poll() is not None:
                self.read()
                return int(self.process.returncode)
        pytest.fail(f"goes on: {self.output[-500:]!r}")

    def wait_stopped(self) -> None:
        """Until it stands still, as after Ctrl-Z."""
        assert select.select([self._events], [], [], 30.0)[0]
        assert self._events.readline() == "stopped\n"
        self.read()

    def is_restored(self) -> bool:
        """Whether the settings of the terminal are those from before, and its own screen is shown with a cursor."""
        shown = self.output.rfind(OWN_SCREEN) >= self.output.rfind(OTHER_SCREEN)
        cursor = self.output.rfind("\x1b[?25h") >= self.output.rfind("\x1b[?25l")
        return shown and cursor and termios.tcgetattr(self._theirs) == self.settings

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        os.kill(self.pid, number)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> type[Terminal]:
    """terminal("status", columns=60) runs it in a pseudo-terminal, for a `with`."""
    monkeypatch.setenv("PYTHONPATH", str(DATA.parent.parent.parent), prepend=os.pathsep)
    for name in ("COLUMNS", "LINES", "TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Terminal
