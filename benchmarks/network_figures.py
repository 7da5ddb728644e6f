"""Figures of networks, beside those that are to be reached, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

WIDTH: Final = 46
"""Columns for the words of a row: 80 in all."""


class NetworkFigure(NamedTuple):
    """A figure. `most`: it is to be no more; `least`: no less; neither: it is told beside the others."""

    what: str
    reached: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def is_reached(self) -> bool:
        """Whether it is what it is to be."""
        return (self.most is None or self.reached <= self.most) and (self.least is None or self.reached >= self.least)

    @property
    def aim(self) -> str:
        """Bound, for people."""
        if self.most is None and self.least is None:
            return ""
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"

    def line(self) -> str:
        """A row of the table."""
        verdict = "" if not self.aim else "yes" if self.is_reached else "NO"
        return f"{self.what:<{WIDTH}}{self.aim:>9}{_short(self.reached):>9} {self.unit:<10}{verdict:>3}"

    def facts(self) -> dict[str, Any]:
        """Plain data."""
        return self._asdict() | {"is_reached": self.is_reached}


def head() -> str:
    """Words above the columns."""
    return f"{'':<{WIDTH}}{'to reach':>9}{'reached':>9}"


def shown(figures: Iterable[NetworkFigure], *, as_json: bool) -> bool:
    """Print them as they come; whether all are reached."""
    if not as_json:
        print(head())
    is_good = True
    for each in figures:
        print(json.dumps(each.facts()) if as_json else each.line(), flush=True)
        is_good &= each.is_reached
    return is_good


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
