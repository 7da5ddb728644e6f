"""A policy file as tables that know where each key and value stands. Pure but for `read`.

Rules:
- tomllib decides whether a text is TOML and what its values are; it gives no positions, so these are found by a scan of
  our own, which looks at nothing but where keys, values and elements begin.
- A table that nobody knows is an error that names the nearest there is. Who reads a kind of table says so in `KINDS`.
- Problems are gathered: a file with five mistakes is told of five.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.core.near import KNOWN_MOST, near_name

MAX_BYTES: Final = 8 << 20
"""Of a policy file: 10,000 rules have some 2 MB."""
MAX_RULES: Final = 10_000
"""Of one kind."""
PROBLEMS_MOST: Final = 50
"""That are told of one file: what comes behind them is not looked at."""
WARNINGS_MOST: Final = 1_000
"""That are noted."""
KEYS_MOST: Final = 32
"""Names with dots between: the memory for their places goes by the square of it."""
WORD_MOST: Final = 200
"""Characters of a number or a name without quotes."""

QOS_KINDS: Final = ("space", "preference", "policy", "template", "mission", "link")
"""What policyfile.py reads."""
KINDS: Final = ("group", "role", "access", "keep", *QOS_KINDS)
"""The tables of a policy file. `[group]` and `[role]` are for all rules, `[[access]]` is access.py's, `[[keep]]`
keep.py's."""

Where = tuple[str | int, ...]
"""Where a value is: names of keys, and numbers of elements from 0: ("access", 3, "type")."""


class Place(NamedTuple):
    """A line and a column of the file, from 1; 0, 0: the file as a whole."""

    line: int
    column: int


WHOLE: Final = Place(0, 0)


class Problem(NamedTuple):
    """What is wrong at a place, and how to mend it. An error keeps the file from being used, a warning does not."""

    place: Place
    message: str
    hint: str = ""
    is_error: bool = True


class Document:
    """The tables of a file, and what was found to be wrong with it. `name` is how the file is called to people."""

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Any],
        places: Mapping[Where, tuple[Place, Place]],
        text: str = "",
        spans: Mapping[Where, tuple[int, int]] | None = None,
    ) -> None:
        """`places`: of each key, and of its value; `text` of the file; `spans`: which of its characters a value is."""
        self.text: Final = text
        self._spans = spans or {}
        self.name = name
        self.tables = tables
        self.problems: list[Problem] = []
        self._places = places
        self._lines = text.split("\n")
        self._errors = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether more than PROBLEMS_MOST errors were found: whoever looks for more may stop."""
        return self._errors > PROBLEMS_MOST

    def key(self, where: Where) -> Place:
        """Where a key stands, or the table, if it is one."""
        return self._place(where, 0)

    def value(self, where: Where) -> Place:
        """Where a value stands, or an element of it."""
        return self._place(where, 1)

    def inside(self, where: Where, number: int) -> Place:
        """Where character `number`, from 0, of a value stands that is a text."""
        line, column = place = self.value(where)
        if where not in self._places or not line:
            return place
        text = "\n".join([self._lines[line - 1][column - 1 :], *self._lines[line:]])
        token = _TOKEN.match(text)
        if token is None or token.lastgroup != "text":
            return place
        before = token[0][: _offset(token[0], number)]
        lines = before.count("\n")
        return Place(line + lines, len(before) - before.rfind("\n") if lines else column + len(before))

    def span(self, where: Where) -> tuple[int, int] | None:
        """The characters of the text that are the value of a key, from and up to; None for a key that is not there."""
        return self._spans.get(where)

    def _place(self, where: Where, which: int) -> Place:
        while where and where not in self._places:
            where = where[:-1]
        return self._places[where][which] if where else WHOLE

    def error(self, place: Place, message: str, hint: str = "") -> None:
        """The file can't be used."""
        self._errors += 1
        self.problems.append(Problem(place, message, hint))

    def warn(self, place: Place, message: str, hint: str = "") -> None:
        """It can, but hardly as it was meant."""
        if len(self.problems) - self._errors < WARNINGS_MOST:
            self.problems.append(Problem(place, message, hint, is_error=False))

    @property
    def errors(self) -> list[Problem]:
        """What keeps it from being used, in the order of the file."""
        return sorted((p for p in self.problems if p.is_error), key=lambda p: p.place)

    @property
    def warnings(self) -> list[Problem]:
        """What does not, in the order of the file."""
        return sorted((p for p in self.problems if not p.is_error), key=lambda p: p.place)

    def told(self, problem: Problem) -> str:
        """As compilers say it: file:line:column: error: what. How."""
        at = f":{problem.place.line}:{problem.place.column}" if problem.place.line else ""
        kind = "error" if problem.is_error else "warning"
        return f"{self.name}{at}: {kind}: {problem.message}" + (f". {problem.hint}" if problem.hint else "")

    def check(self) -> None:
        """Raises PolicyError about the first error, if there is one."""
        errors = self.errors
        if errors:
            first = errors[0]
            more = f" (and {len(errors) - 1} more: `jbi policy check {self.name}`)" if len(errors) > 1 else ""
            raise failure(self.name, first.message + more, first.place, first.hint)


def failure(file: str, message: str, place: Place = WHOLE, hint: str = "") -> PolicyError:
    """The error about a file."""
    at = f":{place.line}:{place.column}" if place.line else ""
    return PolicyError(f"{file}{at}: {message}", hint=hint, file=file, line=place.line, column=place.column)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is none of the known ones."""
    words = list(itertools.islice(known, KNOWN_MOST))
    near = near_name(word, words, 0.5)
    return f"Did you mean {near!r}?" if near else f"There is {', '.join(map(repr, words[:20])) or 'none'}"


def read(path: Path, *, name: str = "") -> tuple[Document, list[str]]:
    """The file, and what is to be said of its owner. Raises PolicyError: missing, unreadable, no regular file, too
    large, not UTF-8, not TOML, or a file that everybody may write: who can do that could give himself every right."""
    name = name or path.name
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  # a pipe does not hold us up
            found = os.fstat(file.fileno())
            said = _checked(found, str(path))  # before anything is read
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise failure(str(path), exc.strerror or str(exc), hint="Name a policy file that can be read") from exc
    if len(data) > MAX_BYTES:
        raise failure(str(path), f"more than {MAX_BYTES >> 20} MB", hint="10,000 rules have some 2 MB")
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        place = Place(data.count(b"\n", 0, exc.start) + 1, exc.start - data.rfind(b"\n", 0, exc.start))
        raise failure(str(path), "not UTF-8", place, "TOML is UTF-8; save it as such") from exc
    return parse(text, name), said


def _checked(found: os.stat_result, path: str) -> list[str]:
    if not stat.S_ISREG(found.st_mode):
        raise failure(path, "no regular file", hint="Name a file, not a folder or a pipe")
    if found.st_mode & stat.S_IWOTH:
        raise failure(path, "everybody may write it", hint=f"chmod o-w {path}")
    if found.st_uid not in (0, os.geteuid()):
        return [f"{path} belongs to user {found.st_uid}, who can give himself every right"]
    return []


def check_shape(text: str, name: str) -> None:
    """Raises PolicyError for what tomllib would take minutes or gigabytes for: before it is asked."""
    if len(text) > MAX_BYTES:
        raise failure(name, f"more than {MAX_BYTES >> 20} MB")
    _Scan(text).check(name)


def parse(text: str, name: str) -> Document:
    """The tables of a text. Raises PolicyError when it is not TOML; other problems are in the document."""
    scan = _Scan(text)
    scan.check(name)
    try:
        tables = tomllib.loads(text)
        places = scan.places()
    except tomllib.TOMLDecodeError as exc:
        at = re.search(r" \(at line (\d+), column (\d+)\)$", str(exc))
        place = Place(int(at[1]), int(at[2])) if at else _end(text)
        message = str(exc).removesuffix(" (at end of document)")
        raise failure(name, message[: at.start()] if at else message, place, "It is TOML, see https://toml.io") from exc
    except RecursionError as exc:
        raise failure(name, "too many brackets within each other") from exc
    document = Document(name, tables, places, text, scan.spans)
    for kind in itertools.takewhile(lambda _kind: not document.is_hopeless, tables):
        if kind not in KINDS:
            document.error(document.key((kind,)), f"unknown table {kind!r}", nearest(kind, KINDS))
    return document


def _end(text: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


_TOKEN: Final = re.compile(
    r"(?P<skip>[ \t\r]+|\#[^\n]*)"
    r"|(?P<text>\"\"\"(?:\\.|[^\\])*?\"\"\"\"{0,2}|'''.*?''''{0,2}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*')"
    r"|(?P<mark>[\[\]{},=.\n])"
    r"|(?P<bare>[^\s\[\]{},=.\"'#]+)",
    re.DOTALL,
)


_ESCAPED: Final = re.compile(r"\\u.{4}|\\U.{8}|\\[ \t]*\r?\n\s*|\\.|.", re.DOTALL)


def _offset(written: str, number: int) -> int:
    """Where, in a text as it is written with its quotes, the character of that number is."""
    quotes = 3 if written[:3] in ('"""', "'''") else 1
    at = quotes
    if quotes == 3 and (line := re.compile(r"\r?\n").match(written, at)):  # TOML drops the first line break
        at = line.end()
    if written[0] == "'":
        return min(at + number, len(written) - quotes)
    for sign in _ESCAPED.finditer(written, at, len(written) - quotes):
        if number == 0:
            return sign.start()
        number -= not re.match(r"\\[ \t]*\r?\n", sign[0])
    return len(written) - quotes


class _Scan:
    """Where keys and values of a text begin that tomllib has read: what follows on what is known to be right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, Place]] = []
        self._starts: list[int] = []
        self.spans: dict[Where, tuple[int, int]] = {}
        """Of each value of a key: from which character up to which it goes."""
        line, begin = 1, 0
        for token in _TOKEN.finditer(text):
            said = token[0]
            if token.lastgroup != "skip":
                self._tokens.append((said, Place(line, token.start() - begin + 1)))
                self._starts.append(token.start())
            lines = said.count("\n")
            if lines:
                line, begin = line + lines, token.start() + said.rindex("\n") + 1
        self._tokens.append(("\n", Place(line, len(text) - begin + 1)))
        self._starts.append(len(text))
        self._at = 0
        self._found: dict[Where, tuple[Place, Place]] = {}
        self._counts: dict[Where, int] = {}
        """Elements so far of each array of tables."""

    def check(self, name: str) -> None:
        """Raises PolicyError for what is no use to anybody, and costs whoever reads it much: names with many dots,
        numbers without end."""
        dots, before = 0, ""
        for said, place in self._tokens:
            if said == ".":
                dots += 1
                if dots > KEYS_MOST:
                    raise failure(name, f"more than {KEYS_MOST} names with dots between", place)
            elif before != ".":
                dots = 0
            if len(said) > WORD_MOST and said[0] not in "\"'":
                hint = "A longer name stands in quotes"
                raise failure(name, f"a number or name of more than {WORD_MOST} characters", place, hint)
            before = said

    def places(self) -> dict[Where, tuple[Place, Place]]:
        """Of each key or element, and of its value."""
        table: Where = ()
        while self._at < len(self._tokens):
            said, place = self._tokens[self._at]
            if said == "\n":
                self._at += 1
            elif said == "[":
                table = self._header(place)
            else:
                self._pair(table)
        return self._found

    def _header(self, place: Place) -> Where:
        self._at += 1
        is_element = self._said == "["
        self._at += is_element
        *before, last = self._names()
        self._at += 1 + is_element
        where: Where = ()
        for name in before:
            self._found.setdefault((*where, name), (place, place))
            where = self._current((*where, name))
        where = (*where, last)
        if is_element:
            self._found.setdefault(where, (place, place))
            self._counts[where] = self._counts.get(where, 0) + 1
        where = self._current(where)
        self._found.setdefault(where, (place, place))
        return where

    def _current(self, where: Where) -> Where:
        return (*where, self._counts[where] - 1) if where in self._counts else where

    @property
    def _said(self) -> str:
        return self._tokens[self._at][0]

    def _names(self) -> list[str]:
        """A key with its dots."""
        names = [_name(self._next())]
        while self._said == ".":
            self._at += 1
            names.append(_name(self._next()))
        return names

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _pair(self, table: Where) -> None:
        place = self._tokens[self._at][1]
        names = self._names()
        self._at += 1  # =
        where = table
        for name in names:
            where = (*where, name)
            self._found.setdefault(where, (place, self._tokens[self._at][1]))
        first = self._at
        self._value(where)
        last = self._at - 1
        self.spans[where] = self._starts[first], self._starts[last] + len(self._tokens[last][0])

    def _value(self, where: Where) -> None:
        if self._said == "[":
            self._at += 1
            self._elements(where)
        elif self._said == "{":
            self._at += 1
            while self._said != "}":
                self._at += self._said in ",\n"
                if self._said not in "},\n":
                    self._pair(where)
            self._at += 1
        else:
            while self._said not in ",]}\n":
                self._at += 1

    def _elements(self, where: Where) -> None:
        number = 0
        while self._said != "]":
            if self._said in ",\n":
                self._at += 1
                continue
            place = self._tokens[self._at][1]
            self._found[*where, number] = (place, place)
            self._value((*where, number))
            number += 1
        self._at += 1


def _name(said: str) -> str:
    """What a key is called that is written so."""
    if said[:1] == '"' and "\\" in said:
        return str(tomllib.loads(f"key = {said}")["key"])
    return said[1:-1] if said[:1] in "\"'" else said


def texts(document: Document, table: Mapping[str, Any], where: Where, key: str) -> tuple[str, ...] | None:
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


def flag(document: Document, table: Mapping[str, Any], where: Where, key: str, *, default: bool) -> bool:
    """The value of a key that is true or false."""
    value = table.get(key, default)
    if not isinstance(value, bool):
        document.error(document.value((*where, key)), f"{key} is true or false, not {_kind(value)}")
        return default
    return value


def _kind(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), "a time")
