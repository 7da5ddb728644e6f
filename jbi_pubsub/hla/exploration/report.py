"""Report of an exploration, a page of HTML: a table of all cells, and a chart for what is wrong, or else for an end."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import StorageError

from . import chart
from .scenarios import CELLS, SOLUTIONS, Explored
from .search import events
from .system import DATA, ChartEvent

EVENTS_MOST: Final = 200
"""Limit of a chart."""


def shown(explored: Explored) -> tuple[str, list[ChartEvent]]:
    """The shortest way to what is wrong, or else to an end, and what that is."""
    result = explored.result
    if result.violations:
        worst = result.violations[0]
        way = [*result.way(worst.system), worst.move]
        return f"{worst.found.what}: {worst.found.detail}", events(explored.setup, explored.system, way)
    ends = sorted(result.terminals, key=lambda each: (not each.is_deadlock, not each.is_split))
    if not ends:
        return "nothing ends", []
    return ends[0].outcome, events(explored.setup, explored.system, result.way(ends[0].system))


def page(explored: Sequence[Explored]) -> str:
    """The whole page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        f"<title>Bridges between federations</title><style>\n{(DATA / 'report.css').read_text('utf-8')}</style>",
        "<h1>Bridges between federations</h1>",
        "<p>Six problems of bridges, four kinds of solutions; each cell with scripts of which every order was tried.",
        " Federates of each federation: ",
        escape(", ".join(sorted({"+".join(map(str, each.sizes)) for each in explored}))),
        f". States: {sum(each.result.states for each in explored):,}.</p>",
        _table(explored),
    ]
    parts.extend(_details(each) for each in explored)
    return "".join((*parts, "</html>\n"))


def _table(explored: Sequence[Explored]) -> str:
    rows = ["<table><tr><th>problem</th>", *(f"<th>{each}</th>" for each in SOLUTIONS), "</tr>"]
    for problem in dict.fromkeys(cell.problem for cell in CELLS):
        rows.append(f"<tr><th>{problem}</th>")
        for cell in (each for each in CELLS if each.problem == problem):
            if cell.policy is None:
                rows.append(f"<td class='none'>there is none: {escape(cell.about)}</td>")
                continue
            rows.append(f"<td>{escape(cell.about)}")
            for each in explored:
                if each.cell == cell:
                    kind = "ok" if each.result.verdict == "ok" else "bad"
                    sizes = "+".join(map(str, each.sizes))
                    rows.append(
                        f"<br><a href='#{_anchor(each)}'>{each.scenario.name} {sizes}</a> "
                        f"<span class='{kind}'>{escape(each.result.verdict)}</span>"
                    )
            rows.append("</td>")
        rows.append("</tr>")
    return "".join((*rows, "</table>"))


def _anchor(each: Explored) -> str:
    return f"{each.cell.problem}-{each.cell.solution}-{each.scenario.name}-{'-'.join(map(str, each.sizes))}"


def _details(each: Explored) -> str:
    result = each.result
    what, told = shown(each)
    ends = "".join(f"<li>{escape(end.outcome)} ({end.states:,} states)</li>" for end in result.terminals)
    return (
        f"<section id='{_anchor(each)}'><h2>{each.cell.problem}, {each.cell.solution}: {each.scenario.name}, "
        f"{'+'.join(map(str, each.sizes))}</h2>"
        f"<p>{escape(each.scenario.about)}. {result.states:,} states, {result.moves:,} moves: "
        f"<strong>{escape(result.verdict)}</strong></p><pre>{escape(each.scenario.text.strip())}</pre>"
        f"<p>It ends so:</p><ul>{ends}</ul><details><summary>{escape(what)}</summary>"
        f"<figure>{chart.svg(told[:EVENTS_MOST])}</figure></details></section>"
    )


def write(folder: Path, explored: Sequence[Explored]) -> Path:
    """`bridges.html` in a folder. Raises StorageError."""
    path = folder / "bridges.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page(explored), encoding="utf-8")
    except OSError as exc:
        raise StorageError(f"{path} can't be written: {exc.strerror}", hint="Give another folder") from exc
    return path
