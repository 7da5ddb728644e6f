"""Two results of a study side by side: what changed."""

from __future__ import annotations

import math
from math import isnan, nan
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import report, result
from jbi_pubsub.spark.page import ResultTable, numbers, texts
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result, StudyRun

CHANGE_MOST: Final = 1e12
"""Per cent; what is beyond, as what was 0, is told without."""


def compare(before: Path, after: Path) -> Result:
    """Compare two finished results. Raises StudyError for what is none, or of different studies, and where
    PyArrow is missing."""
    report.parquet_present()
    (one, ran), (two, ran_then) = result.read(before), result.read(after)
    if one.study != two.study:
        raise StudyError(f"{before} is of the study {one.study}, {after} of {two.study}", hint="Compare two of a kind")
    rows = [_row(name, one.numbers.get(name), two.numbers.get(name)) for name in sorted({*one.numbers, *two.numbers})]
    changed = [row for row in rows if row[1] != row[2]]
    relative = tuple(row for row in changed if not isnan(row[3]))
    return Result(
        study="compare",
        question=f"What changed in the study {one.study}?",
        facts=(
            ("before", _told(before, ran)),
            ("after", _told(after, ran_then)),
            ("numbers that changed", f"{len(changed)} of {len(rows)}"),
            *((row[0].replace("_", " "), _change(*row)) for row in changed),
        ),
        numbers={name: change for name, _, _, change in relative},
        tables=(
            ResultTable(
                name="numbers",
                title="Numbers",
                columns=texts("number") + numbers("before", "after", "change_percent"),
                rows=tuple(rows),
                note="-: not in one of them, or the share of nothing.",
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
                    Series(
                        "change", tuple(row[0].replace("_", " ") for row in relative), tuple(row[3] for row in relative)
                    ),
                ),
            ),
        )
        if relative
        else (),
    )


def _row(name: str, was: float | None, now: float | None) -> tuple[str, float, float, float]:
    if was is None or now is None:
        return name, nan if was is None else float(was), nan if now is None else float(now), nan
    change = 100 * (now - was) / abs(was) if was else (math.inf if now else 0.0)
    return name, float(was), float(now), round(change, 2) if abs(change) <= CHANGE_MOST else nan


def _change(name: str, was: float, now: float, change: float) -> str:  # noqa: ARG001  # a row
    shown = ["none" if isnan(value) else f"{value:,.10g}" for value in (was, now)]
    return " -> ".join(shown) + ("" if isnan(change) else f" ({change:+,.2f} %)")


def _told(folder: Path, run: StudyRun) -> str:
    """Message on what was asked of what."""
    asked = ", ".join(f"{name} {value}" for name, value in run.parameters.items())
    return f"{folder}" + (f", of {run.input}" if run.input else "") + (f", {asked}" if asked else "")
