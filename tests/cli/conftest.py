"""The command line: in this process where nothing but its words matter, as processes where it talks to others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
