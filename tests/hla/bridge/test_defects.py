"""Defects that are planted in the bridge and in the RTI, one at a time: each has to be found by the explorer, by the
oracle (one RTI against several), or by the scenarios of the room.

    make defects                      # the table: each defect, and who finds it
    make defects ARGS="barrier"       # those whose names have it

`found` in defects.toml is the test that finds it; where it does not any more, all others are tried.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.hla.bridge.planted import DEFECTS, ROOT, Defect

BRIDGE: Final = "bridge/test_"
FINDERS: Final = {
    "explorer": (f"{BRIDGE}witness.py", f"{BRIDGE}exploration.py", f"{BRIDGE}pace.py"),
    "oracle": (f"{BRIDGE}oracle.py",),
    "scenarios": (
        f"{BRIDGE}translation.py",
        *(f"test_{each}.py" for each in ("federation", "objects", "ownership", "extensions", "timing")),
    ),
}
"""Test files, below tests/hla, of each who may find a defect, in their turn."""
NOBODY: Final = "NOT FOUND"
STORIES: Final = "100"
"""Stories of the oracle."""
SAMPLE: Final = DEFECTS[::5]
"""Defects of `make check`, which has other things to do; `make defects` has all."""


def is_found(name: str, *tests: str) -> bool:
    """Whether tests find a defect."""
    given = {**os.environ, "STORIES": STORIES, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("planted.py")), name]
    command += [f"tests/hla/{each}" for each in tests]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, -signal.SIGXCPU), done.stdout + done.stderr
    return done.returncode != 0


def finder_of(defect: Defect) -> str:
    """Who finds a defect, as the table says."""
    return next(finder for finder, files in FINDERS.items() if defect.found.partition("::")[0] in files)


def found_by(defect: Defect) -> str:
    """Who finds a defect."""
    if is_found(defect.name, defect.found):
        return finder_of(defect)
    other = next((finder for finder, files in FINDERS.items() if is_found(defect.name, *files)), "")
    return f"{other}, by another test" if other else NOBODY


def test_the_documentation_says_how_many_are_found_by_whom() -> None:
    found = Counter(finder_of(each) for each in DEFECTS)
    said = (
        f"{len(DEFECTS)} defects are planted in the bridge and in the RTI, one at a time: the explorer finds "
        f"{found['explorer']}, the comparison of bridged federations with one RTI {found['oracle']}, scenarios of the "
        f"RTI {found['scenarios']}."
    )
    assert said in " ".join((ROOT / "docs/hla-bridge.md").read_text().split())


def test_each_defect_is_a_patch_of_one_place_and_names_the_test_that_finds_it() -> None:
    assert len(DEFECTS) >= 30
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)
    for each in DEFECTS:
        compile(each.patched(), each.file, "exec")
        file, _, test = each.found.partition("::")
        assert any(file in files for files in FINDERS.values()), each.name
        assert f"\ndef {test}(" in (ROOT / "tests/hla" / file).read_text(), each.name


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_defect_nothing_is_found() -> None:
    assert not is_found("", *sorted({each.found for each in DEFECTS}))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("defect", SAMPLE, ids=lambda defect: defect.name)
def test_a_planted_defect_is_found(defect: Defect) -> None:
    assert is_found(defect.name, defect.found)


def main(names: list[str]) -> int:
    """The table, of those whose names have one of these. Exit code 1 if one is not found."""
    found: dict[str, int] = {}
    for each in DEFECTS:
        if not names or any(name in each.name for name in names):
            by = found_by(each)
            found[by] = found.get(by, 0) + 1
            sys.stdout.write(f"{by:10} {each.file.rpartition('/')[2]:13} {each.name}\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{by}: {number}" for by, number in sorted(found.items())) + "\n")
    return 1 if NOBODY in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
