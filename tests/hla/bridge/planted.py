"""Tests with one planted defect: a text of a source below jbi_pubsub/hla, and another one in its place.

    python tests/hla/bridge/planted.py "a point loses its tag" tests/hla/bridge/test_oracle.py   # "": with none

The exit code is that of pytest. Sources stay as they are: the defect is in what is imported here.
"""

from __future__ import annotations

import os
import resource
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
SECONDS_MOST: Final = 120
"""Time of a processor: a defect by which nothing comes to an end is found, too."""
PLAIN: Final = ("-o", "addopts=--import-mode=importlib", "-W", "ignore", "-p", "no:cacheprovider", "-m", "not slow",
                "--confcutdir", str(ROOT / "tests/hla"), "-x", "-q")  # fmt: skip
"""Without the fixtures and plugins that these tests do not need: they take longer than most of the tests."""


class Defect(NamedTuple):
    """A patch of one place."""

    name: str
    found: str
    """The test that finds it, below tests/hla."""
    file: str
    """Below jbi_pubsub/hla."""
    old: str
    new: str

    @property
    def path(self) -> Path:
        """Of the source."""
        return ROOT / "jbi_pubsub/hla" / self.file

    def patched(self) -> str:
        """The source with the defect. Fails where its text is not there once."""
        text = self.path.read_text()
        count = text.count(self.old)
        assert count == 1, f"{self.name}: its text is {count} times in {self.file}: mend defects.toml"
        return text.replace(self.old, self.new)


DEFECTS: Final = tuple(
    Defect(**each) for each in tomllib.loads(Path(__file__).with_name("defects.toml").read_text())["defect"]
)


def plant(defect: Defect) -> list[str]:
    """Have it instead of what it replaces, in this process. The list is filled when that is imported."""
    loaded: list[str] = []
    as_it_is = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if Path(loader.path) != defect.path:
            return as_it_is(loader, name)
        loaded.append(name)
        return compile(defect.patched(), loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    return loaded


def main(name: str, *tests: str) -> int:
    """Exit code of the tests. Raises StopIteration if no defect has the name."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MOST, SECONDS_MOST))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    loaded = plant(next(each for each in DEFECTS if each.name == name)) if name else [""]
    code = int(pytest.main([*PLAIN, *tests]))
    assert loaded, f"{name}: the tests do not import its source"
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
