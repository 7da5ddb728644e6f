"""Formats of the wire change with their numbers: tools/wire.py, and tools/wire.txt that it makes."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from tests.conftest import module_of

TOP = Path(__file__).resolve().parent.parent


def test_what_goes_over_the_wire_changes_with_its_number() -> None:
    """docs/upgrade.md: programs of two versions that have the same numbers go together."""
    wire = module_of(TOP / "tools" / "wire.py")
    told = unified_diff(wire.FILE.read_text().splitlines(), wire.formats(), n=0, lineterm="")
    changes = [line for line in told if not line.startswith(("---", "+++", "@@"))]
    assert not changes, wire.TOLD.format(changes="\n".join(changes))
