"""Words that engineers of other countries read twice, in pages, help texts and messages: `make lint`.

    python tools/words.py                # exit code 1, and the places in each file that has more of them than allowed
    python tools/words.py docs/qos.md    # all places in a file, with words to write instead
    python tools/words.py --lower        # write the smaller numbers down; no number is ever raised

The words, and the number that each file may have, are in words.toml. Code in pages is left out. Of the code the strings
are read: messages, headings, log lines. Docstrings are read where they become help texts or pages.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ("README.md", "docs/*.md")
CODE: Final = tuple(f"{room}/**/*.py" for room in ("jbi_pubsub", "lookup", "pad", "spark", "codegen", "examples"))
"""The links below jbi_pubsub are not followed."""
SHOWN: Final = re.compile(r"/cli/[^/]*\.py$|/core/errors\.py$")
"""Files whose docstrings are help texts, or in docs/errors.md."""
MADE: Final = ("docs/rows.md",)
"""Pages that quote texts of others."""
BLOCK: Final = re.compile(r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


class Place(NamedTuple):
    """A word of the list, where it is, and words to write instead."""

    line: int
    word: str
    instead: str


def found(text: str, words: dict[str, str], *, first: int = 1) -> Iterator[Place]:
    """Places of `words` in a text whose first line has the number `first`."""
    for word, instead in words.items():
        pattern = word.replace(" ", r"\s+")
        for hit in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield Place(first + text.count("\n", 0, hit.start()), " ".join(hit[0].split()), instead)


def in_file(path: Path, words: dict[str, str]) -> list[Place]:
    """Places in a page, without its code, or in the strings of a Python file."""
    text = path.read_text()
    if path.suffix != ".py":
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n") + " ", text)
        return sorted(found(prose, words))
    nodes = list(ast.walk(ast.parse(text)))
    left_out = () if SHOWN.search(path.as_posix()) else {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
    strings = [
        each
        for each in nodes
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in left_out
    ]
    # one word in small letters is a name of the code: of a key, of an attribute
    texts = (each for each in strings if not (each.value.isidentifier() and each.value.islower()))
    return sorted(place for each in texts for place in found(each.value, words, first=each.lineno))


def files(root: Path) -> dict[str, Path]:
    """Pages and code with texts for users, by their names."""
    paths = (path for pattern in (*PAGES, *CODE) for path in root.glob(pattern))
    return {name: path for path in sorted(paths) if (name := path.relative_to(root).as_posix()) not in MADE}


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit code."""
    file = root / "tools" / "words.toml"
    said = tomllib.loads(file.read_text())
    places = {name: in_file(path, said["words"]) for name, path in files(root).items()}
    if arguments == ["--lower"]:
        head = file.read_text().partition("[files]")[0]
        most = {name: min(len(each), said["files"].get(name, 0)) for name, each in places.items()}
        lines = [f'"{name}" = {number}' for name, number in most.items() if number]
        file.write_text("\n".join([f"{head}[files]", *lines, ""]))
        return 0
    beyond = {name: each for name, each in places.items() if len(each) > said["files"].get(name, 0)}
    for name, each in ({name: places.get(name, []) for name in arguments} or beyond).items():
        print(f"{name} has {len(each)} words of tools/words.toml, {said['files'].get(name, 0)} at most")
        for place in each:
            print(f"  {name}:{place.line}: {place.word!r}: write {place.instead}")
    return 1 if beyond and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
