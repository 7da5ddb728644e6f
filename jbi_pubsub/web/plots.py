"""Plots of series over the last five minutes, as the observer keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nicegui import ui

from jbi_pubsub.core.series import SeriesPoint

from .console import region, words
from .federation import HISTORY_SECONDS

INK: Final = "#767b84"
"""Colour of text in plots: readable on light and dark."""
LINES: Final = ("#2f7ed8", "#d9822b", "#2e9e6b", "#b5489a", "#7a6ff0", "#c0392b", "#1f9eb0", "#8f8f2b")


class SeriesPlot:
    """A plot in a part of a page of its own, with the newest values below it as text."""

    def __init__(self, title: str) -> None:
        with region(title):
            self._chart = ui.echart(plot_options([])).classes("jbi-plot")
            self._chart.props(f'role=img aria-label="Plot: {title}, the last five minutes"')
            self._note = words("p", "", "jbi-note")

    def show(self, lines: Sequence[tuple[str, Sequence[SeriesPoint]]], at: float) -> None:
        """Lines by their names, those that have points; `at`: now, by the clock of the points."""
        some = [(name, points) for name, points in lines if points]
        self._chart.options.clear()
        self._chart.options.update(plot_options([(name, [(p.at - at, p.value) for p in ps]) for name, ps in some]))
        now = ", ".join(f"{name} {points[-1].value:,.1f}" for name, points in some)
        self._note.text = f"now: {now}" if now else "nothing in the last five minutes"


def plot_options(lines: list[tuple[str, list[tuple[float, float]]]]) -> dict[str, Any]:
    """An ECharts plot of lines over the last seconds: (name, [(seconds, value)])."""
    text = {"color": INK, "fontSize": 12}
    return {
        "animation": False,
        "color": list(LINES),
        "textStyle": text,
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 8, "containLabel": True},
        "legend": {"top": 0, "left": 0, "type": "scroll", "textStyle": text},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {"type": "value", "min": -HISTORY_SECONDS, "max": 0, "splitLine": {"show": False},
                  "axisLabel": {**text, "formatter": "{value} s", "alignMinLabel": "left"}},
        "yAxis": {"type": "value", "min": 0, **({} if lines else {"max": 1}), "axisLabel": text,
                  "splitLine": {"lineStyle": {"color": f"{INK}44"}}},
        "series": [
            {"type": "line", "name": name, "showSymbol": False, "lineStyle": {"width": 2},
             "data": [[round(x, 1), round(y, 2)] for x, y in points]}
            for name, points in lines
        ],
    }  # fmt: skip
