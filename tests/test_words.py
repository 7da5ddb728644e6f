"""Texts for users keep to plain words: tools/words.py finds words of its list, and their number only falls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import module_of

TOOLS = Path(__file__).resolve().parent.parent / "tools"

PAGE = (
    "# A page\n\nWhoever asks\nwaits.\n\n```console\n$ whoever\n```\n\n"
    "`whoever` and a link [here](whoever.md): who\nasks?\n"
)
LIST = '[words]\n"whoever" = "the client"\n"who asks" = "the caller"\n\n[files]\n"README.md" = {}\n'


@pytest.fixture
def words() -> Any:
    return module_of(TOOLS / "words.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("tools", "docs", "jbi_pubsub/cli"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    return tmp_path


def test_words_in_prose_are_found_and_code_is_left_out(words: Any, root: Path) -> None:
    # Given a page with words of the list in its prose, one over two lines, and in its code
    places = words.in_file(root / "README.md", {"whoever": "the client", "who asks": "the caller"})
    # Expect those in the prose, with their lines
    assert [(each.line, each.word, each.instead) for each in places] == [
        (3, "Whoever", "the client"),
        (10, "who asks", "the caller"),
    ]


def test_strings_of_commands_are_read(words: Any, root: Path) -> None:
    # Given a word in a help text, in a name and in a comment; Expect the one in the help text
    code = root / "jbi_pubsub" / "cli" / "app.py"
    code.write_text('whoever = 1  # whoever\n\n\ndef run():\n    """Show whoever is there."""\n')
    assert [each.line for each in words.in_file(code, {"whoever": "the client"})] == [5]


def test_a_number_only_falls(words: Any, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given a page with two words; Expect a failure where one is allowed, with the places
    (root / "tools" / "words.toml").write_text(LIST.format(1))
    assert words.main([], root) == 1
    assert "README.md:10: 'who asks': write the caller" in capsys.readouterr().out
    # and none where three are, of which --lower makes two
    (root / "tools" / "words.toml").write_text(LIST.format(3))
    assert words.main([], root) == 0
    assert words.main(["--lower"], root) == 0
    assert (root / "tools" / "words.toml").read_text() == LIST.format(2)
    # When a third one comes, expect a failure, which --lower does not hide
    (root / "README.md").write_text(f"{PAGE}\nwhoever\n")
    assert words.main(["--lower"], root) == 0
    assert words.main([], root) == 1
