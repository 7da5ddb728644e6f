"""A drawing of boxes, arrows, dots and texts, as plain data. Pure. Texts stay texts: the browser is given them as text
nodes (drawing.js), never as markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CHARACTER: Final = 0.62
"""Width of a character of a sans-serif font, in parts of its size: a wide one (DejaVu)."""


@dataclass(slots=True)
class Drawing:
    """`width` x `height` units, which become pixels of the page where there is room; `label` says what it is to who
    does not see it. `shapes` are for drawing.js."""

    width: float
    height: float
    label: str
    shapes: list[dict[str, Any]] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str], *, kind: str, href: str = "",
        title: str = "",
    ) -> None:  # fmt: skip
        """A box with one to three lines of text, the first bold; what is too long is cut, and whole in `title`. `href`
        (a path of ours) makes it a link."""
        room = width - 20
        step = height / (len(lines) + 0.6)
        texts = [
            {
                "t": cut(line, room, 13 if n == 0 else 12),
                "y": round((n + 0.95) * step, 1),
                "k": "head" if n == 0 else "",
            }
            for n, line in enumerate(lines)
        ]
        self.shapes.append(
            {"s": "box", "x": x, "y": y, "w": width, "h": height, "k": kind, "texts": texts, "href": href,
             "title": title or " - ".join(lines)}
        )  # fmt: skip

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, text: str, *, kind: str, at: float = 0.5, title: str = ""
    ) -> None:
        """A curve from left to right (or right to left) with a head at its end, and `text` on it at that part."""
        middle = (x1 + x2) / 2
        sign = 1 if x2 > x1 else -1
        end = x2 - 7 * sign
        curve = f"M{x1:.1f} {y1:.1f} C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {end:.1f} {y2:.1f}"
        head = f"M{end:.1f} {y2 - 4:.1f} L{x2:.1f} {y2:.1f} L{end:.1f} {y2 + 4:.1f} Z"
        part = 3 * at * at - 2 * at * at * at  # of such a curve, how far it has come from y1 to y2
        self.shapes.append(
            {"s": "arrow", "d": curve, "head": head, "k": kind, "t": text, "x": round(x1 + (end - x1) * at, 1),
             "y": round(y1 + (y2 - y1) * part, 1), "w": round(len(text) * 12 * CHARACTER + 8, 1), "title": title}
        )  # fmt: skip

    def line(self, points: Sequence[tuple[float, float]], *, kind: str) -> None:
        """A line through points."""
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.shapes.append({"s": "line", "d": path, "k": kind})

    def dot(self, x: float, y: float, *, kind: str, title: str) -> None:
        """A point of a map."""
        self.shapes.append({"s": "dot", "x": round(x, 1), "y": round(y, 1), "k": kind, "title": title})

    def text(self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> None:
        """A text of its own; `anchor` is start, middle or end."""
        self.shapes.append({"s": "text", "x": round(x, 1), "y": round(y, 1), "t": text, "k": kind, "a": anchor})

    def data(self) -> dict[str, Any]:
        """For the browser."""
        return {"width": self.width, "height": self.height, "label": self.label, "shapes": self.shapes}


def cut(text: str, width: float, size: float) -> str:
    """As much of a text as has room, with an ellipsis when it is not all."""
    room = width / (size * CHARACTER)
    used = 0.0
    for place, character in enumerate(text):
        used += 1.8 if unicodedata.east_asian_width(character) in "WF" else 1.0
        if used > room:
            return text[: max(0, place - 1)].rstrip() + "…"
    return text
