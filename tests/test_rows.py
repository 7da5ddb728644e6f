"""Each claim of the papers has its test, or the reason why not: tools/rows.py, and docs/rows.md that it makes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import module_of

TOP = Path(__file__).resolve().parent.parent

CLAIMS = """
[paper.A]
title = "A paper"
source = "Somebody, 1999."
[paper.A.rows]
A-1 = ["1", "this | that"]
A-2 = ["2", "more"]
A-3 = ["", "most"]
[open]
A-3 = "not built yet"
[partly]
A-2 = "the rest"
"""
TESTS = """
import pytest

@pytest.mark.row("A-1", "A-2")
@pytest.mark.slow
def test_this_and_that(): ...

class TestInside:
    @pytest.mark.row("A-2")
    def test_more(self): ...
"""


@pytest.fixture
def tool() -> Any:
    return module_of(TOP / "tools" / "rows.py")


@pytest.fixture
def shown(tool: Any, tmp_path: Path) -> dict[str, list[str]]:
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room" / "test_one.py").write_text(TESTS)
    (tmp_path / "tests" / "test_two.py").write_text('pytestmark = [pytest.mark.unit, pytest.mark.row("A-1")]\n')
    return tool.marks(tmp_path / "tests")  # type: ignore[no-any-return]


def test_marks_are_read_of_functions_classes_and_files(shown: dict[str, list[str]]) -> None:
    assert shown == {
        "A-1": ["tests/room/test_one.py::test_this_and_that", "tests/test_two.py"],
        "A-2": ["tests/room/test_one.py::test_this_and_that", "tests/room/test_one.py::TestInside::test_more"],
    }


def test_what_marks_and_claims_lack_is_told(tool: Any, shown: dict[str, list[str]]) -> None:
    # Given claims that all have a test or a reason; Expect nothing to be said
    claims = tomllib.loads(CLAIMS)
    assert tool.faults(claims, shown) == []
    # When a mark names no row, a row has neither, reasons are for what is shown, for no row, or beside no test
    claims["open"] = {"A-1": "not built yet", "A-5": "not built yet"}
    claims["partly"] = {"A-3": "the rest"}
    # Expect a line for each
    assert tool.faults(claims, {**shown, "A-4": ["tests/test_two.py"]}) == [
        "A-4 is no row of docs/rows.toml, in tests/test_two.py",
        "A-3 has no test, and no reason in [open]",
        "A-1 is in [open], and shown by tests/room/test_one.py::test_this_and_that",
        "A-3 is in [partly], and no test shows any of it",
        "A-5 is in [open], and no row",
    ]


def test_the_page_has_each_row_with_its_tests_or_the_reason(tool: Any, shown: dict[str, list[str]]) -> None:
    page = tool.page(tomllib.loads(CLAIMS), shown)
    assert "| A | A paper | 3 | 1 | 1 | 1 |" in page
    assert "| A-1 | this \\| that | 1 | this and that (`room/test_one.py`); all of `test_two.py` |" in page
    assert "(`room/test_one.py`); more (`room/test_one.py`). *Not shown: the rest*" in page
    assert "| A-3 | most |  | *open: not built yet* |" in page


@pytest.mark.row("X-15")
def test_each_claim_of_the_papers_has_its_test_or_a_reason(tool: Any) -> None:
    # Given the claims, and the marks of all tests; Expect no fault, and the page that they make
    claims = tomllib.loads((TOP / "docs" / "rows.toml").read_text())
    there = tool.marks(TOP / "tests")
    assert tool.faults(claims, there) == []
    assert (TOP / "docs" / "rows.md").read_text() == tool.page(claims, there), "python tools/rows.py"


def test_the_tests_of_a_row_are_printed(
    tool: Any,
    shown: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "rows.toml").write_text(CLAIMS)
    (tmp_path / "docs" / "rows.md").write_text(tool.page(tomllib.loads(CLAIMS), shown))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main(["A-2"]) == 0
    assert capsys.readouterr().out.splitlines() == shown["A-2"]
    # and of a row that no test shows, that
    assert tool.main(["A-3"]) == 1
    assert capsys.readouterr().err == "A-3: no test shows it\n"
