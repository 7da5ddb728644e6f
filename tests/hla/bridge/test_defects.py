"""Defects that are planted in the bridge and in the RTI, one at a time: each has to be found by the explorer, by the
oracle (one RTI against several), or by the scenarios of the room.

    make defects                      # the table: each defect, and who found it first
    make defects ARGS="barrier"       # those whose names have it

A defect is a text of the source and another one in its place (defects.toml). It is tried in a copy of the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import jbi_pubsub

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGE: Final = Path(jbi_pubsub.__file__).resolve().parent
BRIDGE: Final = "tests/hla/bridge"
FINDERS: Final = {
    "explorer": (f"{BRIDGE}/test_witness.py", f"{BRIDGE}/test_exploration.py"),
    "oracle": (f"{BRIDGE}/test_oracle.py",),
    "scenarios": (
        f"{BRIDGE}/test_translation.py",
        *(f"tests/hla/test_{each}.py" for each in ("federation", "objects", "ownership", "extensions", "timing")),
    ),
}
"""Test files of each who may find a defect, in their turn."""
SECONDS_MOST: Final = 120
"""Time of a finder: a defect by which nothing comes to an end is found, too."""
STORIES: Final = "100"
"""Stories of the oracle."""


class Defect(NamedTuple):
    """A patch of one place."""

    name: str
    file: str
    """Below jbi_pubsub/hla."""
    old: str
    new: str
    found: str = ""
    """Finder that is known to find it; "": none is yet."""


DEFECTS: Final = tuple(
    Defect(**each) for each in tomllib.loads(Path(__file__).with_name("defects.toml").read_text())["defect"]
)


def patched(defect: Defect) -> str:
    """The file with the defect. Fails where its text is not there once."""
    text = (PACKAGE / "hla" / defect.file).read_text()
    count = text.count(defect.old)
    assert count == 1, f"{defect.name}: its text is {count} times in {defect.file}: mend the table"
    return text.replace(defect.old, defect.new)


def found_by(defect: Defect, folder: Path) -> str:
    """Who finds a defect first; "": nobody does."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)
    (copy / "hla" / defect.file).write_text(patched(defect))
    given = {**os.environ, "PYTHONPATH": str(folder), "STORIES": STORIES, "PYTHONDONTWRITEBYTECODE": "1"}
    for finder, files in FINDERS.items():
        # without the folder in which it runs on the path, where the package is as it should be
        command = [sys.executable, "-P", "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *files]
        try:
            done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=SECONDS_MOST)
        except subprocess.TimeoutExpired:
            return finder
        if done.returncode == 1:
            return finder
        assert done.returncode == 0, done.stdout + done.stderr
    return ""


def test_each_defect_is_a_patch_of_one_place() -> None:
    assert len(DEFECTS) >= 30
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)
    for each in DEFECTS:
        compile(patched(each), each.file, "exec")


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_defect_nothing_is_found(tmp_path: Path) -> None:
    assert found_by(Defect("none", "bridge/bridge.py", "RACES: Final", "RACES: Final"), tmp_path) == ""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.found], ids=lambda defect: defect.name)
def test_a_planted_defect_is_found(defect: Defect, tmp_path: Path) -> None:
    assert found_by(defect, tmp_path)


def main(names: list[str]) -> int:
    """The table, of those whose names have one of these. Exit code 1 if one is not found."""
    found: dict[str, int] = {}
    for each in DEFECTS:
        if not names or any(name in each.name for name in names):
            with tempfile.TemporaryDirectory() as folder:
                by = found_by(each, Path(folder)) or "NOT FOUND"
            found[by] = found.get(by, 0) + 1
            sys.stdout.write(f"{by:10} {each.file.rpartition('/')[2]:13} {each.name}\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{by}: {number}" for by, number in sorted(found.items())) + "\n")
    return 1 if "NOT FOUND" in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
