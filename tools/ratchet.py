"""Bounds on sizes of the product's code, and what is beyond them today: `make lint`.

    python tools/ratchet.py           # exit code 1 and a line each for what is beyond its bound
    python tools/ratchet.py --lower   # write down what has become smaller; nothing is ever raised

The bounds, and each exception with the number that it may have, are in ratchet.toml. A number only falls: what has
become smaller by a twentieth is to be written down, what is within its bound is an exception no more.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KINDS: Final = (
    "rooms",
    "files",
    "classes",
    "attributes",
    "functions",
    "parameters",
    "names",
    "circles",
    "comments",
    "prose",
)
"""Sections of ratchet.toml: lines of a room, a file, a class and a function, attributes of a class, parameters of a
function, definitions of a class name in the product, files of the circle of imports that a file is in, lint
exceptions of a kind, and docstrings of a room that do not begin with their subject."""
SLACK: Final = 20
"""A number that is smaller by less than this part of it need not be written down."""
NO_SUBJECTS: Final = ("What", "Of", "How", "It", "Who", "Whom", "Whose")
"""Words with which a docstring begins that leaves its subject out."""
COMMENTS: Final = {"type: ignore": re.compile(r"# type: ignore"), "broad except": re.compile(r"# noqa: .*BLE001")}


def measured(root: Path, rooms: dict[str, int]) -> dict[str, dict[str, int]]:
    """What there is, by kind and name."""
    found: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    names: dict[str, int] = defaultdict(int)
    trees: dict[str, ast.Module] = {}
    for room in rooms:
        inner = [each for each in rooms if each.startswith(f"{room}/")]
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if any(name.startswith(f"{each}/") for each in inner):
                continue
            text = path.read_text()
            lines = text.count("\n")
            found["rooms"][room] = found["rooms"].get(room, 0) + lines
            found["files"][name] = lines
            for what, pattern in COMMENTS.items():
                found["comments"][what] = found["comments"].get(what, 0) + len(pattern.findall(text))
            trees[name] = ast.parse(text)
            found["prose"][room] = found["prose"].get(room, 0) + _without_subject(trees[name])
            for kind, of, number in _of_tree(name, trees[name]):
                if kind == "names":
                    names[of] += number
                else:
                    found[kind][of] = max(number, found[kind].get(of, 0))
    found["names"] = dict(names)
    found["circles"] = {name: len(circle) for circle in circles(trees) for name in circle}
    return found


def _without_subject(tree: ast.Module) -> int:
    """Docstrings, those of constants and fields as well, that begin with one of NO_SUBJECTS."""
    within = (each.body for each in ast.walk(tree) if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef))
    said = (
        each.value.value
        for body in within
        for each in body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    )
    return sum(isinstance(text, str) and text.partition(" ")[0] in NO_SUBJECTS for text in said)


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Files that import each other in a loop: at import, within functions, or for their types alone."""
    modules = {_module_of(name): name for name in trees}
    imported = {
        name: {modules[each] for each in _imports(name, tree, modules) if each in modules} - {name}
        for name, tree in trees.items()
    }
    reached: dict[str, set[str]] = {}
    for name in imported:
        seen, front = set[str](), imported[name]
        while front:
            seen |= front
            front = set[str]().union(*(imported[each] for each in front)) - seen
        reached[name] = seen
    loops = {
        frozenset(each for each in seen if name in reached[each]) for name, seen in reached.items() if name in seen
    }
    return sorted(map(sorted, loops))


def _module_of(file: str) -> str:
    parts = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return parts if parts.split(".")[0] == "jbi_pubsub" else f"jbi_pubsub.{parts}"


def _imports(file: str, tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    package = _module_of(file if file.endswith("/__init__.py") else file.rpartition("/")[0])
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - each.level] if each.level else []
            base = ".".join([*above, *([each.module] if each.module else [])])
            parts = (f"{base}.{alias.name}" for alias in each.names)
            yield from (part if part in modules else base for part in parts)


def _of_tree(file: str, tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    def walk(node: ast.AST, within: str) -> Iterator[tuple[str, str, int]]:
        for each in ast.iter_child_nodes(node):
            inner = within
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{within}.{each.name}" if within else each.name
                lines = (each.end_lineno or each.lineno) - each.lineno + 1
                if isinstance(each, ast.ClassDef):
                    yield "names", each.name, 1
                    yield "classes", f"{file}:{inner}", lines
                    yield "attributes", f"{file}:{inner}", len(_attributes(each))
                else:
                    given = each.args
                    own = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                    is_method = bool(own) and own[0].arg in ("self", "cls")
                    yield "functions", f"{file}:{inner}", lines
                    yield "parameters", f"{file}:{inner}", len(own) - is_method
            yield from walk(each, inner)

    yield from walk(tree, "")


def _attributes(of: ast.ClassDef) -> set[str]:
    """Those that are assigned to self, and the fields of a struct."""
    assigned = {
        each.attr
        for each in ast.walk(of)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    fields = (each.target for each in of.body if isinstance(each, ast.AnnAssign))
    return assigned | {each.id for each in fields if isinstance(each, ast.Name)}


def faults(limits: dict[str, int], allowed: dict[str, dict[str, int]], there: dict[str, dict[str, int]]) -> list[str]:
    """A line for each number that is beyond what it may be, or below what is written down."""
    said = []
    for kind in KINDS:
        known, limit = allowed.get(kind, {}), limits.get(kind, 0)
        for name, number in sorted(there[kind].items()):
            most = known.get(name, limit)
            if number > most:
                said.append(f"{kind}: {name} has {number}, {most} at most")
            elif name in known and number <= most - max(1, most // SLACK):
                said.append(f"{kind}: {name} has only {number} now, {most} is written down: lower it")
        said += [f"{kind}: {name} is no more: take it out" for name in sorted(known.keys() - there[kind].keys())]
    return said


def lowered(text: str, limits: dict[str, int], there: dict[str, dict[str, int]]) -> str:
    """The file with smaller numbers, and without what is within its bound or is no more."""
    kind, lines = "", []
    for line in text.splitlines():
        if section := re.fullmatch(r"\[(\w+)\]", line):
            kind = section[1]
        entry = re.fullmatch(r'"(.+)" = (\d+)(.*)', line)
        if entry is None or kind not in KINDS:
            lines.append(line)
            continue
        number = min(int(entry[2]), there[kind].get(entry[1], 0))
        if kind in ("rooms", "comments") or number > limits.get(kind, 0):
            lines.append(f'"{entry[1]}" = {number}{entry[3]}')
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """The exit code."""
    file = ROOT / "tools" / "ratchet.toml"
    said = tomllib.loads(file.read_text())
    there = measured(ROOT, said["rooms"])
    if arguments == ["--lower"]:
        file.write_text(lowered(file.read_text(), said["limits"], there))
        return 0
    found = faults(said["limits"], said, there)
    for line in found:
        print(line)
    if found:
        print("make it smaller; `python tools/ratchet.py --lower` writes down what has become smaller")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
