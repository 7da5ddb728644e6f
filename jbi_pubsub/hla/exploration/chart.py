"""Message charts: who told whom what, from top to bottom, as text and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from .script import FEDERATIONS
from .system import ChartEvent

_WIDTH: Final = 12
"""Characters between two lifelines."""
_STEP: Final = 150
"""Pixels between two lifelines."""
_ROW: Final = 30


def parties(events: Sequence[ChartEvent]) -> list[str]:
    """Parties: each federation's federates, its RTI, its surrogates; surrogates of a bridge side by side where that can
    be."""
    found = list(dict.fromkeys(name for each in events for name in (each.source, each.target)))
    return sorted(found, key=_place)


def _place(name: str) -> tuple[str, int, str]:
    if name.startswith("s_"):
        here, beyond = name[-1], name[2]
        return here, 0 if beyond < here else 3, name
    if name.startswith("RTI "):
        return name[-1], 2 if name[-1] == FEDERATIONS[0] else 1, name
    return name[0].upper(), 1 if name[0].upper() == FEDERATIONS[0] else 2, name


def text(events: Sequence[ChartEvent]) -> str:
    """A line for each event."""
    names = parties(events)
    places = {name: number * _WIDTH for number, name in enumerate(names)}
    head = "".join(name.ljust(_WIDTH) for name in names).rstrip()
    lines = [head]
    for event in events:
        row = [" "] * (_WIDTH * len(names))
        for place in places.values():
            row[place] = "|"
        one, other = places[event.source], places[event.target]
        for place in range(min(one, other) + 1, max(one, other)):
            row[place] = "-"
        row[other + (-1 if other > one else 1)] = ">" if other > one else "<"
        lines.append(f"{''.join(row).rstrip()}   {event.text}")
    return "\n".join(lines)


def svg(events: Sequence[ChartEvent]) -> str:
    """A picture that takes the colour of the page around it."""
    names = parties(events)
    places = {name: 70 + number * _STEP for number, name in enumerate(names)}
    width, height = 140 + (len(names) - 1) * _STEP, 60 + _ROW * len(events)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    looks = 'font-family="sans-serif" font-size="11" fill="currentColor" stroke="none" role="img"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {looks}>']
    for name, place in places.items():
        parts.append(f'<text x="{place}" y="16" text-anchor="middle" font-weight="bold">{escape(name)}</text>')
        parts.append(
            f'<line x1="{place}" y1="24" x2="{place}" y2="{height - 8}" stroke="currentColor" stroke-opacity="0.3"/>'
        )
    for number, event in enumerate(events):
        y = 50 + number * _ROW
        one, other = places[event.source], places[event.target]
        tip = other - 7 if other > one else other + 7
        dashes = ' stroke-dasharray="4 3"' if event.source.startswith("RTI ") else ""
        parts.append(f'<line x1="{one}" y1="{y}" x2="{other}" y2="{y}" stroke="currentColor"{dashes}/>')
        parts.append(f'<path d="M{other} {y} L{tip} {y - 4} L{tip} {y + 4} Z"/>')
        middle = (one + other) / 2
        parts.append(f'<text x="{middle:g}" y="{y - 5}" text-anchor="middle">{escape(event.text)}</text>')
    return "".join((*parts, "</svg>"))
