"""Which test shows which claim of the papers: docs/rows.md from the marks in tests/ and the claims in docs/rows.toml.

    python tools/rows.py             # writes docs/rows.md
    python tools/rows.py --check     # exit code 1 and a line each for what is wrong with marks, claims and page
    python tools/rows.py J-05 X-01   # the tests of these rows, one a line: pytest $(python tools/rows.py J-05)

A test says `@pytest.mark.row("J-05")`, a file whose tests show a row together `pytestmark = pytest.mark.row("J-05")`.
Marks are read, not run: no test is imported.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
HEAD: Final = """\
<!-- made by tools/rows.py from docs/rows.toml and the marks in tests/: change these, and run it -->
# Claims and their tests

This software is built from five papers. Each behaviour that they promise is a row here, with the tests that show it.
A row with a letter and a number is one behaviour; its section is that of the paper, "std" where the standard says it
that the paper refers to, "inferred" where it has to be so for what the paper says to work, T and a number a table.

To run the tests of a row, from a checkout after `make unit`:

<!-- not run: needs a checkout with its test environment -->
```console
$ .venv/bin/python -m pytest -m "" $(.venv/bin/python tools/rows.py J-05)
```

`python tools/rows.py J-05` prints the tests of that row, one a line; `-m ""` takes those along that take many seconds.
Where no test shows a row, or not all of it, the table says what is missing. Bounds in seconds and rates that no shared
machine holds are no tests: `jbi bench` and `benchmarks/` print them ([measurements](measurements.md)).
"""


def marks(tests: Path) -> dict[str, list[str]]:
    """The tests of each row that is marked, as pytest names them, by their files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        text = path.read_text()
        for test, row in _of_body(ast.parse(text).body, name) if "mark.row(" in text else ():
            found[row].append(test)
    return dict(found)


def _of_body(body: list[ast.stmt], name: str) -> Iterator[tuple[str, str]]:
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            inner = f"{name}::{each.name}"
            yield from ((inner, row) for row in _rows(each.decorator_list))
            if isinstance(each, ast.ClassDef):
                yield from _of_body(each.body, inner)
        elif isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == ["pytestmark"]:
            said = each.value.elts if isinstance(each.value, ast.List | ast.Tuple) else [each.value]
            yield from ((name, row) for row in _rows(said))


def _rows(expressions: Iterable[ast.expr]) -> Iterator[str]:
    for each in expressions:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.row":
            yield from (str(ast.literal_eval(argument)) for argument in each.args)


def faults(claims: dict[str, Any], shown: dict[str, list[str]]) -> list[str]:
    """A line for each mark without a row, each row without a test or a reason, each reason that is none any more."""
    known = {row for paper in claims["paper"].values() for row in paper["rows"]}
    reasons, rests = claims["open"], claims["partly"]
    said = [f"{row} is no row of docs/rows.toml, in {shown[row][0]}" for row in sorted(shown.keys() - known)]
    said += [f"{row} has no test, and no reason in [open]" for row in sorted(known - shown.keys() - reasons.keys())]
    said += [f"{row} is in [open], and shown by {shown[row][0]}" for row in sorted(reasons.keys() & shown.keys())]
    said += [f"{row} is in [partly], and no test shows any of it" for row in sorted(rests.keys() - shown.keys())]
    said += [f"{row} is in [open], and no row" for row in sorted(reasons.keys() - known)]
    return said


def page(claims: dict[str, Any], shown: dict[str, list[str]]) -> str:
    """The whole page."""
    papers = claims["paper"].items()
    lines = ["| | of | rows | shown | shown in part | open |", "|---|---|---|---|---|---|"]
    for letter, paper in papers:
        there = paper["rows"].keys()
        counts = (
            there,
            there & shown.keys() - claims["partly"].keys(),
            there & claims["partly"].keys(),
            there - shown.keys(),
        )
        lines.append(" | ".join([f"| {letter} | {paper['title']}", *(str(len(each)) for each in counts)]) + " |")
    for letter, paper in papers:
        lines += ["", f"## {letter}: {paper['title']}", "", paper["source"], ""]
        lines += ["| row | claim | section | shown by |", "|---|---|---|---|"]
        for row, (section, claim) in paper["rows"].items():
            by = "; ".join(map(_readable, shown.get(row, ()))) or f"*open: {claims['open'].get(row)}*"
            if rest := claims["partly"].get(row):
                by += f". *Not shown: {rest}*"
            lines.append(f"| {row} | {_cell(claim)} | {_cell(section)} | {by} |")
    return HEAD + "\n" + "\n".join(lines) + "\n"


def _readable(test: str) -> str:
    file, _, name = test.removeprefix("tests/").partition("::")
    words = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    return f"{words} (`{file}`)" if words else f"all of `{file}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main(arguments: list[str]) -> int:
    """The exit code."""
    claims = tomllib.loads((ROOT / "docs" / "rows.toml").read_text())
    shown = marks(ROOT / "tests")
    made, there = page(claims, shown), ROOT / "docs" / "rows.md"
    if arguments == ["--check"]:
        said = faults(claims, shown)
        if not there.exists() or there.read_text() != made:
            said.append("docs/rows.md is not what the marks say: python tools/rows.py")
    elif arguments:
        tests = dict.fromkeys(test for row in arguments for test in shown.get(row, ()))
        said = [f"{row}: no test shows it" for row in arguments if row not in shown]
        print("\n".join(tests), end="\n" if tests else "")
    else:
        said = faults(claims, shown)
        there.write_text(made)
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
