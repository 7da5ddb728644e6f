"""The one door to matplotlib: plots of studies and benchmarks, as SVG that goes into a page and as PNG.

A plot is data first, so that what a study says can be tested, and drawn last. In a page its ink is the page's own
colour: the same picture serves light and dark, and paper.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jbi_pubsub.core.errors import StudyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK: Final = "#123457"
"""Drawn in this, replaced by `currentColor` in a page."""
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which nobody confuses (Color Universal Design)."""
_SIZE: Final = (7.2, 3.6)
"""Inches: two stand on a printed page."""
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_FIXED: Final = re.compile(r'\b(?:width|height)="[\d.]+pt"')
_BARS_MOST: Final = 30
_TEXT_MOST: Final = 44
"""Characters of a bar's name."""
_LINE: Final = 64
"""Characters below an axis that stand beside each other without touching."""
_TICKS: Final = 6
_LARGE: Final = 1e7
"""From here on ticks have prefixes (M, G), else all their digits."""


class Series(msgspec.Struct, frozen=True):
    """Points or bars of one colour: their label, where they stand (numbers, or names of bars), and how high. Lines may
    have a band around them, from `low` to `high`."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @staticmethod
    def of(label: str, points: Iterable[tuple[float | str, float]]) -> Series:
        """From (x, y)."""
        known = list(points)
        return Series(label, tuple(x for x, _ in known), tuple(y for _, y in known))


def by_octave(label: str, counts: Iterable[tuple[int, int]]) -> Series:
    """Bars of how many there are of each number, those between two powers of two together: 0, 1, 2-3, 4-7 ..."""
    sums: Counter[int] = Counter()
    for number, count in counts:
        sums[number.bit_length()] += count
    order = range(max(sums, default=0) + 1)
    names = ("0" if n == 0 else "1" if n == 1 else f"{1 << n - 1}-{(1 << n) - 1}" for n in order)
    return Series(label, tuple(names), tuple(float(sums[n]) for n in order))


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Plot to be drawn. "bars" stand in groups over numbers, "ranked" lie one below the other with their names, "lines"
    and "points" are what they say. Logarithmic axes begin at the least value above 0."""

    name: str
    title: str
    kind: Literal["bars", "ranked", "lines", "points"]
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False


def thinned(points: Sequence[tuple[float, float]], most: int = 60) -> list[tuple[float, float]]:
    """Means of neighbours, so that no more than so many are left: a line through thousands of points is a surface."""
    each = max(1, -(-len(points) // most))
    parts = [points[at : at + each] for at in range(0, len(points), each)]
    return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in parts]


def present() -> None:
    """Raises StudyError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401  # asked only whether it is there
    except ImportError as error:
        raise StudyError(f"plots need matplotlib: {error}", hint="pip install 'jbi-pubsub[plot]'") from error


def drawn(plot: Plot) -> tuple[str, bytes]:
    """SVG and PNG of a plot, the same bytes for the same plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK)
    settings = {**ink, "svg.hashsalt": plot.name, "svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11}
    with mpl.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]  # its keys are literals
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # of a PNG; an SVG's reader has fonts of its own
        figure = Figure(figsize=_SIZE if plot.kind != "ranked" else _tall(plot), layout="constrained")
        axes = figure.subplots()
        if any(y for series in plot.series for y in series.y):
            _fill(axes, plot)
            if len(plot.series) > 1:
                figure.legend(loc="outside right upper", frameon=False)
        else:
            axes.set(title=plot.title, xticks=[], yticks=[])
            axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, ha="center", va="center")
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def for_page(svg: str) -> str:
    """An SVG as part of an HTML page: in the page's colour, no wider than the page, without a head of its own."""
    body = _METADATA.sub("", svg[svg.index("<svg") :]).replace(_INK, "currentColor")
    return re.sub(
        r'<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", re.sub(r'\bheight="[^"]*pt"', "", body, count=1), count=1
    )


def _tall(plot: Plot) -> tuple[float, float]:
    rows = max((len(series.x) for series in plot.series), default=1)
    return _SIZE[0], 1.0 + 0.24 * min(_BARS_MOST, max(3, rows))


def _fill(axes: Axes, plot: Plot) -> None:
    many = len(plot.series)
    for n, series in enumerate(plot.series):
        colour = _COLOURS[n % len(_COLOURS)]
        if plot.kind == "ranked":
            names, heights = [_short(str(x)) for x in series.x[:_BARS_MOST]], series.y[:_BARS_MOST]
            places = [at + 0.8 * (n - (many - 1) / 2) / many for at in range(len(names))]
            axes.barh(places, heights, 0.8 / many, label=series.label, color=colour)
            axes.set_yticks(range(len(names)), names)
        elif plot.kind == "bars":
            places = [at + 0.8 * (n - (many - 1) / 2) / many for at in range(len(series.x))]
            axes.bar(places, series.y, 0.8 / many, label=series.label, color=colour)
            step = max(1, len(series.x) // 16)
            labels = [_short(_number(x), _TEXT_MOST // 2) for x in series.x[::step]]
            axes.set_xticks(range(0, len(series.x), step), labels)
            if max(map(len, labels), default=0) * len(labels) > _LINE:
                axes.set_xticks(axes.get_xticks(), labels, rotation=30, ha="right")
        elif plot.kind == "lines":
            axes.plot(series.x, series.y, marker="o", markersize=3, label=series.label, color=colour)
            if series.low:
                axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.2, linewidth=0)
        else:
            axes.scatter(series.x, series.y, s=10, label=series.label, color=colour, alpha=0.7)
    _dress(axes, plot)


def _dress(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

    axes.set_title(plot.title)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    if plot.kind == "ranked":
        axes.invert_yaxis()
    if plot.log_x and any(isinstance(x, int | float) and x > 0 for series in plot.series for x in series.x):
        axes.set_xscale("log")
    if plot.log_y and any(y > 0 for series in plot.series for y in series.y):
        axes.set_yscale("log")
    _tick(axes)
    if plot.kind in ("lines", "points") and not plot.log_x:
        counts = all(float(x).is_integer() for series in plot.series for x in series.x)
        axes.xaxis.set_major_locator(MaxNLocator(_TICKS, integer=counts))
    if not (plot.log_x if plot.kind == "ranked" else plot.log_y):
        axis = axes.xaxis if plot.kind == "ranked" else axes.yaxis
        values = [y for series in plot.series for y in (*series.y, *series.low, *series.high)]
        axis.set_major_locator(MaxNLocator(_TICKS, integer=all(y.is_integer() for y in values)))
        large = max(map(abs, values), default=0.0) >= _LARGE
        axis.set_major_formatter(EngFormatter() if large else StrMethodFormatter("{x:,.12g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="x" if plot.kind == "ranked" else "y", alpha=0.25, color=_INK)
    axes.set_axisbelow(True)


def _tick(axes: Axes) -> None:
    """Few and plain numbers on logarithmic axes: of two powers of ten 1, 2 and 5, of more the powers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis, is_log in ((axes.xaxis, axes.get_xscale() == "log"), (axes.yaxis, axes.get_yscale() == "log")):
        if is_log:
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
            axis.set_major_formatter("{x:,.12g}")
            axis.set_minor_formatter(NullFormatter())


def _short(text: str, most: int = _TEXT_MOST) -> str:
    text = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)  # XML has no others
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return cut.replace("$", r"\$")  # what stands between two is set as a formula


def _number(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:,.0f}" if float(x).is_integer() else f"{x:,.2g}"
