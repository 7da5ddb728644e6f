"""What failed in a run of the suite runs again alone: tools/again.py decides what has failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import module_of

TOOLS = Path(__file__).resolve().parent.parent / "tools"
SUITE = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({late}))
def test_late(number):
    file = pathlib.Path(__file__).with_name(f"seen-{{number}}")
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    assert len(file.read_text()) > 1

@pytest.mark.parametrize("number", range({wrong}))
def test_wrong(number):
    assert False

def test_right():
    pass
"""


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """again(late, wrong): the exit code and the output after a run in which so many tests failed, of which the late
    ones pass at the second time."""

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading them takes longer than all else
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")

    def run(late: int, wrong: int) -> tuple[int, str]:
        (tmp_path / "test_suite.py").write_text(SUITE.format(late=late, wrong=wrong))
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        first = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, check=False, capture_output=True)
        assert first.returncode == 1
        module = module_of(TOOLS / "again.py")
        monkeypatch.setattr(module, "ROOT", tmp_path)
        return module.main([]), capfd.readouterr().out

    return run


@pytest.mark.parametrize(("late", "wrong", "code"), [(2, 0, 0), (1, 1, 1), (0, 1, 1), (5, 0, 0), (6, 0, 1)])
def test_a_few_that_pass_alone_are_named_and_all_else_has_failed(
    again: Callable[..., Any], tmp_path: Path, late: int, wrong: int, code: int
) -> None:
    found, out = again(late, wrong)
    assert found == code
    assert ("passed alone; to be mended" in out) is (code == 0)
    # Expect nothing else to run, and nothing at all where too many failed
    assert "test_right" not in out
    assert len((tmp_path / "seen-0").read_text() if late else "xx") == (1 if late > 5 else 2)
