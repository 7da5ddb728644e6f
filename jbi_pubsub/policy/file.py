"""A policy file as tables that know where each key and value stands. Pure but for `read`.

Rules:
- A table that nobody knows is an error that names the nearest there is. Who reads a kind of table says so in `KINDS`.
- Problems are gathered: a file with five mistakes is told of five.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.core.files import opened
from jbi_pubsub.core.near import KNOWN_MOST, near_name
from jbi_pubsub.core.toml import MAX_BYTES, WHOLE, TextPlace, TomlDocument, TomlError, Where, text_of

MAX_RULES: Final = 10_000
"""Rules of one kind."""
PROBLEMS_MOST: Final = 50
"""That are told of one file: what comes behind them is not looked at."""
WARNINGS_MOST: Final = 1_000
"""That are noted."""
QOS_KINDS: Final = ("space", "preference", "policy", "template", "mission", "link")
"""Kinds that policyfile.py reads."""
KINDS: Final = ("group", "role", "access", "keep", *QOS_KINDS)
"""The tables of a policy file. `[group]` and `[role]` are for all rules, `[[access]]` is access.py's, `[[keep]]`
keep.py's."""


class PolicyProblem(NamedTuple):
    """Problem at a place, and how to mend it. An error keeps the file from being used, a warning does not."""

    place: TextPlace
    message: str
    hint: str = ""
    is_error: bool = True

    def told(self, file: str) -> str:
        """As compilers say it: file:line:column: error: what. How."""
        kind = "error" if self.is_error else "warning"
        return f"{self.place.of(file)}: {kind}: {self.message}" + (f". {self.hint}" if self.hint else "")


class PolicyDocument(TomlDocument):
    """The tables of a file, and what was found to be wrong with it. `name` is how the file is called to people."""

    def __init__(self, name: str, text: str) -> None:
        """Raises TomlError."""
        super().__init__(text)
        self.name = name
        self.problems: list[PolicyProblem] = []
        self._errors = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether more than PROBLEMS_MOST errors were found: whoever looks for more may stop."""
        return self._errors > PROBLEMS_MOST

    def error(self, place: TextPlace, message: str, hint: str = "") -> None:
        """The file can't be used."""
        self._errors += 1
        self.problems.append(PolicyProblem(place, message, hint))

    def warn(self, place: TextPlace, message: str, hint: str = "") -> None:
        """Note that the file can be used, but hardly as it was meant."""
        if len(self.problems) - self._errors < WARNINGS_MOST:
            self.problems.append(PolicyProblem(place, message, hint, is_error=False))

    @property
    def errors(self) -> list[PolicyProblem]:
        """Problems that keep it from being used, in the order of the file."""
        return sorted((p for p in self.problems if p.is_error), key=lambda p: p.place)

    @property
    def warnings(self) -> list[PolicyProblem]:
        """Problems that do not, in the order of the file."""
        return sorted((p for p in self.problems if not p.is_error), key=lambda p: p.place)

    def told(self, problem: PolicyProblem) -> str:
        """A problem with the file's name."""
        return problem.told(self.name)

    def check(self) -> None:
        """Raises PolicyError about the first error, if there is one."""
        errors = self.errors
        if errors:
            first = errors[0]
            more = f" (and {len(errors) - 1} more: `jbi policy check {self.name}`)" if len(errors) > 1 else ""
            raise failure(self.name, first.message + more, first.place, first.hint)


def failure(file: str, message: str, place: TextPlace = WHOLE, hint: str = "") -> PolicyError:
    """The error about a file."""
    return PolicyError(f"{place.of(file)}: {message}", hint=hint, file=file, line=place.line, column=place.column)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is none of the known ones."""
    words = list(itertools.islice(known, KNOWN_MOST))
    near = near_name(word, words, 0.5)
    return f"Did you mean {near!r}?" if near else f"There is {', '.join(map(repr, words[:20])) or 'none'}"


def read(path: Path, *, name: str = "") -> tuple[PolicyDocument, list[str]]:
    """The file, and what is to be said of its owner. Raises PolicyError: missing, unreadable, no regular file, too
    large, not UTF-8, not TOML, or a file that everybody may write: who can do that could give himself every right."""
    name = name or path.name
    try:
        with opened(path) as file:
            found = os.fstat(file.fileno())
            said = _checked(found, str(path))  # before anything is read
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise failure(str(path), exc.strerror or str(exc), hint="Name a policy file that can be read") from exc
    try:
        text = text_of(data)
    except TomlError as exc:
        raise failure(str(path), exc.message, exc.place, exc.hint or "10,000 rules have some 2 MB") from exc
    return parse(text, name), said


def _checked(found: os.stat_result, path: str) -> list[str]:
    if not stat.S_ISREG(found.st_mode):
        raise failure(path, "not a regular file", hint="Name a file, not a folder or a pipe")
    if found.st_mode & stat.S_IWOTH:
        raise failure(path, "everybody may write it", hint=f"chmod o-w {path}")
    if found.st_uid not in (0, os.geteuid()):
        return [f"{path} belongs to user {found.st_uid}, which can take every right"]
    return []


def parse(text: str, name: str) -> PolicyDocument:
    """The tables of a text. Raises PolicyError when it is not TOML; other problems are in the document."""
    try:
        document = PolicyDocument(name, text)
    except TomlError as exc:
        raise failure(name, exc.message, exc.place, exc.hint) from exc
    for kind in itertools.takewhile(lambda _kind: not document.is_hopeless, document):
        if kind not in KINDS:
            document.error(document.key((kind,)), f"unknown table {kind!r}", nearest(kind, KINDS))
    return document


def tables_in(
    document: PolicyDocument,
    kind: str,
    within: Mapping[str, Any] | None = None,
    at: Where = (),
    *,
    what: str = "",
    hint: str = "Use groups and globs",
) -> Iterator[tuple[Mapping[str, Any], Where]]:
    """Those of an array of tables of the document, or `within` another table of it that stands `at`, each with its own
    place: at most MAX_RULES, of `what` and how to do with fewer the `hint` says."""
    found = (document if within is None else within).get(kind, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        name = ".".join([*(str(each) for each in at if isinstance(each, str)), kind])
        place = document.key((*at, kind))
        document.error(place, f"{name} is a list of tables", f"Write [[{name}]], with two brackets")
        return
    if len(found) > MAX_RULES:
        place = document.key((*at, kind, MAX_RULES))
        document.error(place, f"more than {MAX_RULES} {what or f'of {kind}'}", hint)
    for number, table in enumerate(found[:MAX_RULES]):
        if not document.is_hopeless:
            yield table, (*at, kind, number)


def namespaces_of(document: PolicyDocument, table: Mapping[str, Any], at: Where) -> dict[str, str]:
    """Prefixes of the XPaths in a table."""
    found = table.get("namespaces", {})
    if isinstance(found, dict) and all(isinstance(space, str) for space in found.values()):
        return found
    document.error(document.value((*at, "namespaces")), "namespaces is a table of prefix = 'URI'")
    return {}


def texts(document: PolicyDocument, table: Mapping[str, Any], where: Where, key: str) -> tuple[str, ...] | None:
    """The value of a key that is a text or a list of texts; None when it is not there, or is something else, which is a
    problem then."""
    if key not in table:
        return None
    value = table[key]
    many: Sequence[Any] = value if isinstance(value, list) else [value]
    for number, each in enumerate(many):
        if not isinstance(each, str):
            at = (*where, key, number) if isinstance(value, list) else (*where, key)
            document.error(document.value(at), f"{key} is a text or a list of texts, not {_kind(each)}")
            return None
    if not many:
        document.error(document.value((*where, key)), f"{key} is empty: nobody has none", f"Leave {key} out for any")
        return None
    return tuple(many)


def flag(document: PolicyDocument, table: Mapping[str, Any], where: Where, key: str, *, default: bool) -> bool:
    """The value of a key that is true or false."""
    value = table.get(key, default)
    if not isinstance(value, bool):
        document.error(document.value((*where, key)), f"{key} is true or false, not {_kind(value)}")
        return default
    return value


def _kind(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), "a time")


# -- as text ----------------------------------------------------------------------------------------------------


def dumped(tables: Mapping[str, Any]) -> str:
    """As TOML: tables that have a name of their own with headers, all others in line."""
    lines: list[str] = []
    for kind, value in tables.items():
        if value == []:
            continue
        if _are_tables(value):
            for table in value:
                _dump(lines, f"[[{key_text(kind)}]]", table, kind)
        elif kind == "preference" and _are_tables(list(value.values())):
            for name, table in value.items():
                _dump(lines, f"[{kind}.{key_text(name)}]", table, kind)
        else:
            _dump(lines, f"[{key_text(kind)}]", value, kind)
    return "\n".join(lines) + "\n" if lines else ""


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(each, dict) for each in value)


def _dump(lines: list[str], header: str, table: Mapping[str, Any], kind: str) -> None:
    lines += ([""] if lines else []) + [header]
    apart = "policy" if kind == "template" and _are_tables(table.get("policy")) else ""
    lines += [f"{key_text(key)} = {value_text(value)}" for key, value in table.items() if key != apart]
    for inner in table.get(apart, []) if apart else []:
        _dump(lines, f"[[{kind}.{apart}]]", inner, "")


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def key_text(name: str) -> str:
    return name if _BARE.fullmatch(name) else value_text(name)


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key_text(str(key))} = {value_text(each)}" for key, each in value.items()) + " }"
    raise TypeError(f"{type(value).__name__} is not a value of TOML")
