"""How results are shown: tables that fit the terminal, plain lines when piped, JSON whole.

A table fits its width by what its columns are for: numbers and short words are never cut; what is `long` is cut at its
end; of names that are `dotted` the last part is shown; columns that are `spare` go when there is no room for them, the
last first, and it is said which; a `name` is cut only then; if even that does not do, a row is shown as lines of
`column: value`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 12
"""Characters that a long column keeps at least, unless its values need less."""
BRIEF: Final = 12
"""Characters of an id: two of a million have the same with a probability of 2 in 1,000."""
GAP: Final = 2
"""Spaces between columns."""


class Column(NamedTuple):
    """A column: its head, and what may happen to it when the table is too wide."""

    head: str
    long: bool = False
    spare: bool = False
    right: bool = False
    brief: bool = False
    """Ids: in a terminal their first 12 characters behind the kind, which commands take as well."""
    name: bool = False
    """Of what the row is about: with `long`, cut only when the spare columns have gone."""
    dotted: bool = False
    """Names with dots, of which the last part will do."""


class Table(NamedTuple):
    """Columns, rows and title of a table."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    title: str = ""


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table in a terminal, tab-separated lines with all columns when piped."""
    if sys.stdout.isatty():
        click.echo(drawn(Table(columns, list(rows), title), width=shutil.get_terminal_size().columns))
        return
    click.echo("\t".join(column.head for column in columns))
    for row in rows:
        click.echo("\t".join(map(printable, row)))


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """The same for columns of which each may be cut."""
    show_table([Column(head, long=True) for head in columns], rows, title=title)


def drawn(table: Table, *, width: int) -> str:
    """The table as lines of at most `width` characters."""
    columns = table.columns
    cells = [[_cell(c, value) for c, value in zip(columns, row, strict=True)] for row in table.rows]
    shown = list(range(len(columns)))
    gone: list[str] = []
    widths = _widths(columns, cells, shown, width)
    if widths is None and any(column.dotted for column in columns):
        cells = [[_last(c, text) for c, text in zip(columns, row, strict=True)] for row in cells]
        widths = _widths(columns, cells, shown, width)
    while widths is None and (spare := [i for i in shown if columns[i].spare]):
        shown.remove(spare[-1])
        gone.insert(0, columns[spare[-1]].head)
        widths = _widths(columns, cells, shown, width)
    if widths is None:
        widths = _widths(columns, cells, shown, width, names=False)
    if widths is None:
        lines = _records(columns, cells, width)
    else:
        rule = ["-" * widths.get(i, 0) for i in range(len(columns))]
        every = ([column.head for column in columns], rule, *cells)
        lines = [_line(columns, row, shown, widths) for row in every]
        if gone:
            lines.append(_cut(f"(no room for {', '.join(gone)}: see --json, or a wider terminal)", width))
    return "\n".join([_cut(printable(table.title), width), *lines] if table.title else lines)


def _cell(column: Column, value: object) -> str:
    text = printable(value)
    return text.rpartition("-")[2][:BRIEF] if column.brief else text


def _last(column: Column, text: str) -> str:
    return text.rpartition(".")[2] if column.dotted else text


def _widths(
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    shown: Sequence[int],
    most: int,
    *,
    names: bool = True,
) -> dict[int, int] | None:
    """How wide each column is to be; None when there is no room for them all, with whole `names` if these are kept."""
    widths = {i: max(map(_length, (columns[i].head, *(row[i] for row in cells)))) for i in shown}
    least = {
        i: min(width, max(NARROWEST, _length(columns[i].head)))
        if columns[i].long and not (names and columns[i].name)
        else width
        for i, width in widths.items()
    }
    room = most - GAP * (len(shown) - 1)
    if sum(least.values()) > room:
        return None
    while sum(widths.values()) > room:  # the widest gives first
        widest = max((i for i in shown if widths[i] > least[i]), key=widths.__getitem__)
        others = (widths[i] for i in shown if i != widest and widths[i] > least[i])
        too_much = sum(widths.values()) - room
        widths[widest] -= min(too_much, widths[widest] - max(least[widest], max(others, default=0) - 1))
    return widths


def _line(columns: Sequence[Column], row: Sequence[str], shown: Sequence[int], widths: dict[int, int]) -> str:
    parts = []
    for i in shown:
        text = _cut(row[i], widths[i])
        pad = " " * (widths[i] - _length(text))
        parts.append(pad + text if columns[i].right else text + pad)
    return (" " * GAP).join(parts).rstrip()


def _records(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as lines of its own."""
    longest = max(_length(column.head) for column in columns)
    lines = []
    for row in cells:
        told = [f"{c.head:>{longest}}: {text}" for c, text in zip(columns, row, strict=True) if text]
        lines += ["", *(_cut(line, width) for line in told)]
    return lines[1:]


def _cut(text: str, width: int) -> str:
    if _length(text) <= width:
        return text
    from rich.cells import set_cell_size  # here, as a command that draws nothing starts faster without it

    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _length(text: str) -> int:
    """Places in a terminal: some characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def console() -> Console:
    """Progress and screens that refresh; plain text when piped."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def counted(count: int, noun: str) -> str:
    """So many of them, in English: "1 object", "2 objects"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(value: object) -> str:
    """Text from a peer without what a terminal would obey: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def show_json(value: Any) -> None:
    """One JSON document, indented in a terminal."""
    click.echo(as_json(value, indent=2 if sys.stdout.isatty() else None))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that says what it holds and does nothing: what is not printable is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"
