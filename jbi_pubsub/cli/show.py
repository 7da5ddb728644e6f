"""Display of results: tables that fit the terminal, plain lines when piped, JSON whole.

A table fits its width by what its columns are for: numbers and short words are never cut; what is `long` is cut at its
end; of names that are `dotted` the last part is shown; columns that are `spare` go when there is no room for them, the
most spare first, and it is said which; a `name` is cut only then, in its middle; if even that does not do, a row is
shown as lines of `column: value`. All columns are shown by `--wide`, or for `--columns`.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST: Final = 12
"""Characters that a long column keeps at least, unless its values need less."""
WORTH: Final = 20
"""The same for one that can go: with less of it, it is better gone."""
BRIEF: Final = 12
"""Characters of an id: two of a million have the same with a probability of 2 in 1,000."""
GAP: Final = 2
"""Spaces between columns."""
MARKS_MOST: Final = 3
"""Combining marks on one letter: Vietnamese has two, Hebrew three; hundreds would cover the lines above and below."""
INVISIBLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Letters and marks that Python calls printable and nobody sees: fillers, joiners, selectors of a variant (Unicode,
DerivedCoreProperties, Default_Ignorable_Code_Point), the blank of Braille."""


class Column(NamedTuple):
    """A column: its head, and what may happen to it when the table is too wide."""

    head: str
    long: bool = False
    spare: int = 0
    """Goes when there is no room: those with the largest number first, of these the last."""
    right: bool = False
    brief: bool = False
    """Ids: in a terminal their first 12 characters behind the kind, which commands take as well."""
    name: bool = False
    """Name of what the row is about: with `long`, cut only when the spare columns have gone, and in its middle."""
    dotted: bool = False
    """Names with dots or a namespace, of which the last part will do."""


class Table(NamedTuple):
    """Columns, rows and title of a table. The first column, and the address of a server, say what a row is about."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    title: str = ""

    def of(self, names: Sequence[str]) -> Table | None:
        """With these columns alone, behind those that say what a row is about; None if it has none of them."""
        heads = [column.head for column in self.columns]
        wanted = [heads.index(name) for name in names if name in heads]
        if not wanted:
            return None
        keys = [i for i, head in enumerate(heads) if i == 0 or head == ADDRESS]
        shown = list(dict.fromkeys((*keys, *wanted)))
        return Table(
            [self.columns[i]._replace(spare=0) for i in shown],
            [[row[i] for i in shown] for row in self.rows],
            self.title,
        )


ADDRESS: Final = "address"
"""Head of the column with where a server is reached."""


class View(NamedTuple):
    """View that somebody wants of tables."""

    wide: bool = False
    columns: tuple[str, ...] = ()
    """Heads, in their order; () for those that there is room for."""

    def of(self, made: Iterable[Table]) -> list[Table]:
        """The tables that have something of it."""
        return [part for table in made if (part := table.of(self.columns) if self.columns else table) is not None]


MORE: Final = "--wide, --columns"
"""Options that show those columns that there is no room for."""


def show_tables(made: Iterable[Table], view: View = View(), *, more: str = MORE) -> None:  # noqa: B008  # a frozen value
    """Tables one below the other."""
    for number, table in enumerate(view.of(made)):
        if number:
            click.echo()
        show_table(*table, wide=view.wide, more=more)


def show_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    title: str = "",
    *,
    wide: bool = False,
    more: str = MORE,
) -> None:
    """A table in a terminal, tab-separated lines with all columns when piped."""
    if sys.stdout.isatty():
        click.echo(drawn(Table(columns, list(rows), title), width=None if wide else terminal_width(), more=more))
        return
    click.echo("\t".join(column.head for column in columns))
    for row in rows:
        click.echo("\t".join(map(printable, row)))


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """The same for columns of which each may be cut."""
    show_table([Column(head, long=True) for head in columns], rows, title=title)


def show_facts(facts: Sequence[tuple[str, str]], *, title: str) -> None:
    """Show the facts of something: below each other in a terminal, nothing cut; tab-separated lines when piped."""
    if not sys.stdout.isatty():
        click.echo("\n".join(f"{printable(name)}\t{printable(value)}" for name, value in facts))
        return
    left = max(places(name) for name, _ in facts) + GAP
    room = max(NARROWEST, terminal_width() - left)
    click.echo(title)
    for name, value in facts:
        lines = wrapped(printable(value), room) or [""]
        for number, line in enumerate(lines):
            before = "" if number else printable(name)
            click.echo(f"{before}{' ' * (left - places(before))}{line}".rstrip())


def show_losses(lost: Mapping[str, int]) -> None:
    """On stderr, what did not come and why, if anything."""
    if lost:
        click.echo("lost: " + ", ".join(f"{cause} {number:,}" for cause, number in lost.items()), err=True)


def terminal_width() -> int:
    """Places in a line of the terminal."""
    return shutil.get_terminal_size().columns


def drawn(table: Table, *, width: int | None, more: str = MORE) -> str:
    """The table as lines of at most `width` places; None: whole, however wide. `more` is what shows all of it."""
    columns = table.columns
    cells = [
        [_cell(c, value, whole=width is None) for c, value in zip(columns, row, strict=True)] for row in table.rows
    ]
    if width is None:
        widths = {i: max(map(places, (c.head, *(row[i] for row in cells)))) for i, c in enumerate(columns)}
        lines = _lines(columns, cells, list(widths), widths)
        return "\n".join([printable(table.title), *lines] if table.title else lines)
    shown = list(range(len(columns)))
    gone: list[str] = []
    widths_ = _widths(columns, cells, shown, width)
    if widths_ is None and any(column.dotted for column in columns):
        cells = [[_last(c, text) for c, text in zip(columns, row, strict=True)] for row in cells]
        widths_ = _widths(columns, cells, shown, width)
    while widths_ is None and (spare := [i for i in shown if columns[i].spare]):
        goes = max(spare, key=lambda i: (columns[i].spare, i))
        shown.remove(goes)
        gone.append(columns[goes].head)
        widths_ = _widths(columns, cells, shown, width)
    if widths_ is None:
        widths_ = _widths(columns, cells, shown, width, names=False)
    if widths_ is None:
        lines = _records(columns, cells, width)
    else:
        lines = _lines(columns, cells, shown, widths_)
        if gone:
            heads = ", ".join(column.head for column in columns if column.head in gone)
            lines += wrapped(f"(no room for {heads}: see {more})", width)
    return "\n".join([cut(printable(table.title), width), *lines] if table.title else lines)


def _cell(column: Column, value: object, *, whole: bool) -> str:
    text = printable(value)
    return text.rpartition("-")[2][:BRIEF] if column.brief and not whole else text


def _last(column: Column, text: str) -> str:
    return re.split(r"[.#}/]", text)[-1] or text if column.dotted else text


def _widths(
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    shown: Sequence[int],
    most: int,
    *,
    names: bool = True,
) -> dict[int, int] | None:
    """Width of each column; None when there is no room for them all, with whole `names` if these are kept."""
    widths = {i: max(map(places, (columns[i].head, *(row[i] for row in cells)))) for i in shown}
    least = {
        i: min(width, max(WORTH if columns[i].spare else NARROWEST, places(columns[i].head)))
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


def _lines(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], shown: Sequence[int], widths: dict[int, int]
) -> list[str]:
    """Head, rule and rows."""
    rule = ["-" * widths.get(i, 0) for i in range(len(columns))]
    return [_line(columns, row, shown, widths) for row in ([column.head for column in columns], rule, *cells)]


def _line(columns: Sequence[Column], row: Sequence[str], shown: Sequence[int], widths: dict[int, int]) -> str:
    parts = []
    for i in shown:
        text = cut(row[i], widths[i], middle=columns[i].name)
        pad = " " * (widths[i] - places(text))
        parts.append(pad + text if columns[i].right else text + pad)
    return (" " * GAP).join(parts).rstrip()


def _records(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as lines of its own."""
    longest = max(places(column.head) for column in columns)
    lines = []
    for row in cells:
        told = [
            f"{c.head:>{longest}}: {cut(text, width - longest - 2, middle=c.name)}"
            for c, text in zip(columns, row, strict=True)
            if text
        ]
        lines += ["", *(cut(line, width) for line in told)]
    return lines[1:]


def cut(text: str, width: int, *, middle: bool = False) -> str:
    """The text in `width` places: its beginning, or with `middle` its two ends."""
    if places(text) <= width:
        return text
    if width < 3 or not middle:
        return _begin(text, max(0, width - 1)).rstrip() + "…"
    half = (width - 1) // 2
    return _begin(text, width - 1 - half) + "…" + _begin(text[::-1], half)[::-1]


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` places, broken between words; longer words are cut into pieces."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if places(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        while places(word) > width:
            piece = _begin(word, width) or word[0]
            lines[-1:], word = [piece, ""], word[len(piece) :]
        lines[-1] = word
    return lines if lines[-1] else lines[:-1]


def _begin(text: str, width: int) -> str:
    left = width
    for at, character in enumerate(text):
        left -= places(character)
        if left < 0:
            return text[:at]
    return text


def places(text: str) -> int:
    """Places in a terminal, at most: some characters take two, marks none; vowels that some terminals put into the
    letter before, and others next to it, take one."""
    if text.isascii():
        return len(text)
    from rich.cells import get_character_cell_size  # here, as a command that draws nothing starts faster without it

    return sum(
        2 if c in _SKINS else get_character_cell_size(c) or unicodedata.category(c) not in ("Mn", "Me") for c in text
    )


_SKINS: Final = frozenset("\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
"""Colours of the skin of the sign before; a terminal that does not know that shows them next to it."""


def console() -> Console:
    """Progress and screens that refresh; plain text when piped."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


Tell = Callable[[str, int, int], None]
"""A stage's name, how much of it is done, and of how much (0: not known)."""


@contextmanager
def telling(first: str = "", *, hidden: bool = False) -> Iterator[Tell]:
    """A progress bar for each stage, in a terminal; nothing elsewhere. That of the `first` is there from the start."""
    if hidden or not sys.stdout.isatty():
        yield lambda _stage, _done, _total: None
        return
    from rich.progress import Progress, TaskID  # here: a quarter of what a short command would take

    with Progress(console=console(), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None)
            progress.update(tasks[stage], completed=done, total=total or None)

        if first:
            tell(first, 0, 0)
        yield tell


def counted(count: int, noun: str) -> str:
    """So many of them, in English: "1 object", "2 objects"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rated(per_second: float) -> str:
    """A rate, with a decimal as long as that says something."""
    return f"{per_second:,.1f}" if per_second < 100 else f"{per_second:,.0f}"


def sized(count: float) -> str:
    """Bytes in three digits."""
    power = min(3, int(math.log10(count)) // 3) if count >= 1 else 0
    return f"{count / 1000**power:.3g} {('B', 'KB', 'MB', 'GB')[power]}"


def bits(rate: float) -> str:
    """Bytes a second, told in bits as those of links are, in three digits."""
    power = min(3, int(math.log10(rate * 8)) // 3) if rate * 8 >= 1 else 0
    return f"{rate * 8 / 1000**power:.3g} {('bps', 'kbps', 'Mbps', 'Gbps')[power]}"


def lasted(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def moment(at: float) -> str:
    """A time of here."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OSError, OverflowError, ValueError):  # a line of history that a disk has damaged
        return "?"


def printable(value: object) -> str:
    """Text from a peer without what a terminal would obey, and what nobody sees or a line can't hold: control and
    invisible characters become spaces, and no letter has more than some marks."""
    text = str(value)
    if text.isascii():
        return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    shown: list[str] = []
    marks = MARKS_MOST  # none at the beginning: they would go to what stands before
    for character in text:
        if _is_mark(character) and character not in INVISIBLE:
            marks += 1
            if marks > MARKS_MOST:
                continue
        else:
            marks = 0
        shown.append(character if character.isprintable() and character not in INVISIBLE else " ")
    return "".join(shown)


def _is_mark(character: str) -> bool:
    """Whether it goes with the letter before it: a mark, or a vowel or end of a Korean syllable."""
    vowel = "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff"
    return vowel or unicodedata.category(character)[0] == "M"


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
