"""Two results of a study side by side: what changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import result
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result, Table, Value

CHANGE_MOST: Final = 1e12
"""Per cent; what is beyond, as what was 0, is told without."""


def compare(before: Path, after: Path) -> Result:
    """What changed between two finished results. Raises StudyError for what is none, or of different studies."""
    one, two = result.read(before), result.read(after)
    if one.study != two.study:
        raise StudyError(f"{before} is of the study {one.study}, {after} of {two.study}", hint="Compare two of a kind")
    rows = [_row(name, one.numbers.get(name), two.numbers.get(name)) for name in sorted({*one.numbers, *two.numbers})]
    changed = [row for row in rows if row[1] != row[2]]
    facts = tuple((str(name), f"{was} -> {now} ({change} %)") for name, was, now, change in changed)
    relative = [row for row in changed if isinstance(row[3], float)]
    return Result(
        study="compare",
        question=f"What changed in the study {one.study}?",
        facts=facts or (("changed", "nothing"),),
        numbers={f"{row[0]}": float(row[3]) for row in relative},
        tables=(
            Table(
                name="numbers",
                title="Numbers",
                columns=(("number", "text"), ("before", "text"), ("after", "text"), ("change_percent", "text")),
                rows=tuple(tuple(map(_text, row)) for row in rows),
            ),
        ),
        plots=(
            Plot(
                name="changes",
                title="Change",
                kind="ranked",
                x="%",
                y="",
                series=(
                    Series("change", tuple(str(row[0]) for row in relative), tuple(float(row[3]) for row in relative)),
                ),
            ),
        )
        if relative
        else (),
    )


def _row(name: str, was: float | None, now: float | None) -> tuple[Value, Value, Value, Value]:
    if was is None or now is None:
        return name, "-" if was is None else was, "-" if now is None else now, "-"
    change = 100 * (now - was) / abs(was) if was else (math.inf if now else 0.0)
    return name, was, now, round(change, 2) if abs(change) <= CHANGE_MOST else "-"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"
