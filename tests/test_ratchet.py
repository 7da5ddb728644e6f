"""Sizes of the code only fall: tools/ratchet.py says what is beyond its bound, and what has become smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import module_of

TOOLS = Path(__file__).resolve().parent.parent / "tools"

LARGE = "class A:\n    def f(self, b, *, c):\n        self.x = b\n        self.y = c  # type: ignore[misc]\n"
LIMITS = {"files": 10, "classes": 3, "attributes": 1, "functions": 3, "parameters": 1, "names": 1}


@pytest.fixture
def ratchet() -> Any:
    return module_of(TOOLS / "ratchet.py")


@pytest.fixture
def there(ratchet: Any, tmp_path: Path) -> Any:
    (tmp_path / "room" / "inner").mkdir(parents=True)
    (tmp_path / "room" / "one.py").write_text(LARGE)
    (tmp_path / "room" / "inner" / "two.py").write_text("class A:\n    b: int\n")
    return ratchet.measured(tmp_path, {"room": 0, "room/inner": 0})


def test_what_is_beyond_its_bound_is_told(ratchet: Any, there: Any) -> None:
    # Given a class of four lines with two attributes, and another one of its name; Expect a line for each
    allowed = {"rooms": {"room": 4, "room/inner": 1}, "comments": {"type: ignore": 1, "broad except": 0}}
    assert ratchet.faults(LIMITS, allowed, there) == [
        "rooms: room/inner has 2, 1 at most",
        "classes: room/one.py:A has 4, 3 at most",
        "attributes: room/one.py:A has 2, 1 at most",
        "parameters: room/one.py:A.f has 2, 1 at most",
        "names: A has 2, 1 at most",
    ]


def test_exceptions_only_fall(ratchet: Any, there: Any) -> None:
    # Given numbers that are written down, some larger than what is there by now
    text = (
        '[limits]\nnames = 1\n[rooms]\n# lines\n"room" = 100\n"room/inner" = 2\n[classes]\n"room/one.py:A" = 9\n'
        '"room/gone.py:B" = 9\n[names]\n"A" = 1\n[comments]\n"type: ignore" = 3\n"broad except" = 0\n'
    )
    lowered = ratchet.lowered(text, LIMITS, there)
    assert lowered == (
        '[limits]\nnames = 1\n[rooms]\n# lines\n"room" = 4\n"room/inner" = 2\n[classes]\n"room/one.py:A" = 4\n'
        '[names]\n[comments]\n"type: ignore" = 1\n"broad except" = 0\n'
    )
    # Expect to be told of what is smaller than written down, or no more
    allowed = {"classes": {"room/one.py:A": 9, "room/gone.py:B": 9}}
    told = ratchet.faults(LIMITS, allowed, there)
    assert "classes: room/one.py:A has only 4 now, 9 is written down: lower it" in told
    assert "classes: room/gone.py:B is no more: take it out" in told


@pytest.mark.parametrize(
    "text", ["from .two import B", "import jbi_pubsub.room.two", "def f():\n    from jbi_pubsub.room import two"]
)
def test_circles_of_imports_are_told_also_of_types_alone(ratchet: Any, tmp_path: Path, text: str) -> None:
    # Given a file that imports another one, which needs it for types, and a third that nobody imports
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text(f"{text}\n")
    (tmp_path / "room" / "two.py").write_text("if TYPE_CHECKING:\n    from . import one\nclass B: ...\n")
    (tmp_path / "room" / "three.py").write_text("from . import one, two\n")
    there = ratchet.measured(tmp_path, {"room": 0})
    # Expect both to be told, and an exception that is none any more
    allowed = {"rooms": {"room": 9}, "circles": {"room/three.py": 2}}
    assert [line for line in ratchet.faults({}, allowed, there) if line.startswith("circles")] == [
        "circles: room/one.py has 2, 0 at most",
        "circles: room/two.py has 2, 0 at most",
        "circles: room/three.py is no more: take it out",
    ]


def test_docstrings_that_leave_their_subject_out_are_counted(ratchet: Any, tmp_path: Path) -> None:
    # Given a room with docstrings of a module, a constant, a class and a function
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text(
        '"""The room."""\nBOUND = 1\n"""Of a queue."""\nclass A:\n    """What is held."""\n'
        '    x: int = 0\n    """The number."""\ndef f():\n    """Whether it is so."""\n'
    )
    there = ratchet.measured(tmp_path, {"room": 9})
    # Expect those two
    assert there["prose"] == {"room": 2}
    assert "prose: room has 2, 1 at most" in ratchet.faults({}, {"prose": {"room": 1}}, there)
