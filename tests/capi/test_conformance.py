"""The conformance script, unchanged, as a program of its own against servers that are processes (docs/capi.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_pages import TOP, blocks

(COMMAND,) = (b.text.split() for b in blocks(TOP / "docs" / "capi.md") if b.value == "tests/capi/test_conformance.py")
"""What the page says to type: `python SCRIPT CLASS`."""
DESCRIPTOR = """<connectionDescriptor xmlns="http://gdc4s.com/oim/gemini">
<locator>{}</locator><group>{}</group><name>alpha</name><location>rome</location></connectionDescriptor>"""
RUN = """
import runpy, sys
sys.argv = [{script!r}, {manager!r}, {descriptor!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.row("Q-37", "G-01", "G-02", "G-43")
@pytest.mark.processes
def test_a_client_that_knows_a_class_name_finds_all_as_promised(
    start: Callable[..., Any], world: str, tmp_path: Path
) -> None:
    # Given
    locator = start("lookup", "--port", "0", "--json").fact()["address"]
    archive, types = str(tmp_path / "archive"), str(tmp_path / "types")
    at = ("--set", f"lookup.locators={locator}", "--set", "archive.reserve=0")
    start(*at, "pad", "alpha", "rome", "--archive", archive, "--types", types, "--json").fact()
    descriptor = tmp_path / "descriptor.xml"
    descriptor.write_text(DESCRIPTOR.format(locator, world))
    # When
    client = start(script=RUN.format(script=str(TOP / COMMAND[1]), manager=COMMAND[2], descriptor=str(descriptor)))
    said, errors = client.communicate(120.0)
    # Expect
    assert client.returncode == 0, errors
    lines = said.splitlines()
    assert len(lines) >= 25
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.processes
def test_the_script_tells_what_is_not_as_promised(start: Callable[..., Any], tmp_path: Path, world: str) -> None:
    """A node without an archive and types: the script must be able to fail."""
    locator = start("lookup", "--port", "0", "--json").fact()["address"]
    start("--set", f"lookup.locators={locator}", "pad", "alpha", "rome", "--json").fact()
    descriptor = tmp_path / "descriptor.xml"
    descriptor.write_text(DESCRIPTOR.format(locator, world))
    client = start(script=RUN.format(script=str(TOP / COMMAND[1]), manager=COMMAND[2], descriptor=str(descriptor)))
    said, errors = client.communicate(120.0)
    assert client.returncode == 1
    assert "failed a query finds what was published" in said
    assert "ok     what is published comes to who subscribes" in said
    assert "Traceback" in errors
