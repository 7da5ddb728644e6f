"""TOML texts as tables that know where each key and value stands, and what is meant by a key that nobody knows.

tomllib decides whether a text is TOML and what its values are; it gives no positions, so these are found by a scan of
our own, which looks at nothing but where keys, values and elements begin.
"""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from .near import near_hint, near_name
from .values import converted

T = TypeVar("T")

MAX_BYTES: Final = 8 << 20
"""Most bytes of a file."""
KEYS_MOST: Final = 32
"""Names with dots between: the memory for their places goes by the square of it."""
WORD_MOST: Final = 200
"""Characters of a number or a name without quotes."""

Where = tuple[str | int, ...]
"""The way to a value: names of keys, and numbers of elements from 0: ("access", 3, "type")."""


class TextPlace(NamedTuple):
    """A line and a column of a file, from 1; 0, 0: the file as a whole."""

    line: int
    column: int

    def of(self, file: object) -> str:
        """The place as compilers say it: file:line:column."""
        return f"{file}:{self.line}:{self.column}" if self.line else str(file)


WHOLE: Final = TextPlace(0, 0)


class TomlError(ValueError):
    """A text that can't be used: what is wrong at a place, and how to mend it; `key`: that nobody knows."""

    def __init__(self, message: str, place: TextPlace = WHOLE, hint: str = "", key: str = "") -> None:
        """See above."""
        super().__init__(message)
        self.message, self.place, self.hint, self.key = message, place, hint, key

    def told(self, file: object) -> str:
        """The fault with the file that it is in, and the place there."""
        return f"{self.place.of(file)}: {self.message}"


class TomlDocument(dict[str, Any]):
    """The tables of a text."""

    def __init__(self, text: str) -> None:
        """Raises TomlError: not TOML, or no use to anybody."""
        if len(text) > MAX_BYTES:
            raise TomlError(f"more than {MAX_BYTES >> 20} MB")
        scan = _Scan(text)
        scan.check()
        try:
            super().__init__(tomllib.loads(text))
            self._places = scan.places()
        except tomllib.TOMLDecodeError as exc:
            at = re.search(r" \(at line (\d+), column (\d+)\)$", str(exc))
            place = TextPlace(int(at[1]), int(at[2])) if at else _end(text)
            message = str(exc).removesuffix(" (at end of document)")
            message = message[: at.start()] if at else message
            raise TomlError(message, place, _hint_of(message, text, place)) from exc
        except RecursionError as exc:
            raise TomlError("too many brackets within each other") from exc
        self.text: Final = text
        self._spans = scan.spans
        self._lines = text.split("\n")

    def key(self, where: Where) -> TextPlace:
        """Where a key stands, or the table, if it is one."""
        return self._place(where, 0)

    def value(self, where: Where) -> TextPlace:
        """Where a value stands, or an element of it."""
        return self._place(where, 1)

    def inside(self, where: Where, number: int) -> TextPlace:
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
        return TextPlace(line + lines, len(before) - before.rfind("\n") if lines else column + len(before))

    def span(self, where: Where) -> tuple[int, int] | None:
        """The characters of the text that are the value of a key, from and up to; None for a key that is not there."""
        return self._spans.get(where)

    def _place(self, where: Where, which: int) -> TextPlace:
        while where and where not in self._places:
            where = where[:-1]
        return self._places[where][which] if where else WHOLE


def _hint_of(message: str, text: str, place: TextPlace) -> str:
    """The hint for a text that is not TOML."""
    lines = text.split("\n")
    rest = lines[place.line - 1][place.column - 1 :] if 0 < place.line <= len(lines) else ""
    word = re.match(r"[A-Za-z]\w*", rest)
    if message != "Invalid value" or word is None:
        return "It is TOML, see https://toml.io"
    near = near_name(word[0].lower(), ("true", "false"))
    return f"Did you mean {near}?" if near else f'A text needs quotes: "{word[0][:60]}"'


def text_of(data: bytes) -> str:
    """The text of a file, of which MAX_BYTES + 1 have been read. Raises TomlError."""
    if len(data) > MAX_BYTES:
        raise TomlError(f"more than {MAX_BYTES >> 20} MB")
    data = data.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with it
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        place = TextPlace(data.count(b"\n", 0, exc.start) + 1, exc.start - data.rfind(b"\n", 0, exc.start))
        raise TomlError("not UTF-8", place, "TOML is UTF-8; save it as such") from exc


def read(path: Path) -> TomlDocument:
    """The tables of a file. Raises TomlError, OSError."""
    with path.open("rb") as file:
        return TomlDocument(text_of(file.read(MAX_BYTES + 1)))


# -- as structs -------------------------------------------------------------------------------------------------------


class TomlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as a struct: a key that it has no field for is an error."""


def typed(tables: Mapping[str, Any], kind: type[T]) -> T:
    """The tables as a struct. Raises TomlError for what does not fit, where it stands if `tables` is a TomlDocument,
    with the name that was meant by one that nobody knows."""
    try:
        return converted(dict(tables), kind)
    except (msgspec.ValidationError, RecursionError) as exc:
        place_of = tables.key if isinstance(tables, TomlDocument) else lambda _where: WHOLE
        for where, known in _unknown(tables, inspect.type_info(kind), ()):
            key = str(where[-1])
            place = place_of(where if f"unknown field `{key}`" in str(exc) else _way(str(exc)))
            raise TomlError(str(exc), place, near_hint(key, known), key) from exc
        raise TomlError(str(exc), place_of(_way(str(exc)))) from exc


def _way(said: str) -> Where:
    """Where the value is that msgspec complains about, as far as it says so: of dicts it leaves out the keys."""
    path = re.search(r" - at `\$(.*?)(\[\.\.\.\].*)?`$", said)
    steps = re.findall(r"\.([^.\[]+)|\[(\d+)\]", path[1]) if path else []
    return tuple(name or int(number) for name, number in steps)


def _unknown(value: Any, kind: inspect.Type, where: Where) -> Iterator[tuple[Where, list[str]]]:
    """Keys that no table of that kind has, and those that it may have."""
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, each in value.items():
            if key in fields:
                yield from _unknown(each, fields[key], (*where, key))
            else:
                yield (*where, key), list(fields)
    elif isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _unknown(each, kind.value_type, (*where, key))
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _unknown(each, kind.item_type, (*where, number))


# -- where everything stands ------------------------------------------------------------------------------------------


def _end(text: str) -> TextPlace:
    return TextPlace(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


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
        self._tokens: list[tuple[str, TextPlace]] = []
        self._starts: list[int] = []
        self.spans: dict[Where, tuple[int, int]] = {}
        """Span of each value of a key: from which character up to which it goes."""
        line, begin = 1, 0
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "skip":
                continue
            said, start = token[0], token.start()
            self._tokens.append((said, TextPlace(line, start - begin + 1)))
            self._starts.append(start)
            if said == "\n":
                line, begin = line + 1, start + 1
            elif kind == "text" and "\n" in said:
                line, begin = line + said.count("\n"), start + said.rindex("\n") + 1
        self._tokens.append(("\n", TextPlace(line, len(text) - begin + 1)))
        self._starts.append(len(text))
        self._at = 0
        self._found: dict[Where, tuple[TextPlace, TextPlace]] = {}
        self._counts: dict[Where, int] = {}
        """Elements so far of each array of tables."""

    def check(self) -> None:
        """Raises TomlError for what is no use to anybody, and costs whoever reads it much: names with many dots,
        numbers without end."""
        dots, before = 0, ""
        for said, place in self._tokens:
            if said == ".":
                dots += 1
                if dots > KEYS_MOST:
                    raise TomlError(f"more than {KEYS_MOST} names with dots between", place)
            elif before != ".":
                dots = 0
            if len(said) > WORD_MOST and said[0] not in "\"'":
                hint = "Write a longer name in quotes"
                raise TomlError(f"a number or name of more than {WORD_MOST} characters", place, hint)
            before = said

    def places(self) -> dict[Where, tuple[TextPlace, TextPlace]]:
        """Places of each key or element, and of its value."""
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

    def _header(self, place: TextPlace) -> Where:
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
    """Name of a key that is written so."""
    if said[:1] == '"' and "\\" in said:
        return str(tomllib.loads(f"key = {said}")["key"])
    return said[1:-1] if said[:1] in "\"'" else said
