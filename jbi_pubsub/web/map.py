"""Where objects are: locations found in metadata by the usual names, and a map without tiles. Pure.

Found are (a) an element or its attributes with a latitude and a longitude, as numbers with a sign or with letters N/S,
E/W beside them (as in core/xpath/geography.py); (b) texts of CAP 1.2 polygons and circles ("lat,lon lat,lon", "lat,lon
radius"), whose mean and centre count (OASIS CAP 1.2, section 3.2.4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.xml import Element

from .drawing import Drawing

PLACES_MOST: Final = 20
"""Places of one document."""
ELEMENTS_MOST: Final = 20_000
"""Elements of a document that are looked at."""

_LATITUDES: Final = ("lat", "latitude")
_LONGITUDES: Final = ("long", "lon", "lng", "longitude")
_NORTH: Final = ("latord", "ladir", "latdir", "ns", "hemisphere")
_EAST: Final = ("longord", "lodir", "londir", "longdir", "ew")
_PAIRS: Final = ("polygon", "circle", "pos", "point")
_PAIR: Final = re.compile(r"(-?\d{1,2}(?:\.\d+)?)[,\s]\s*(-?\d{1,3}(?:\.\d+)?)")

STEPS: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30)
"""Degrees between two lines of a graticule."""
LINES_MOST: Final = 6


class Location(NamedTuple):
    """Degrees, north and east positive."""

    north: float
    east: float


def places(root: Element) -> list[Location]:
    """The locations of a document, in its order, each once."""
    found: dict[Location, None] = {}
    for number, element in enumerate(root.iter()):
        if number >= ELEMENTS_MOST or len(found) >= PLACES_MOST:
            break
        if isinstance(element.tag, str):
            found |= dict.fromkeys(_of(element))
    return list(found)


def chart(places: Iterable[tuple[str, Location]]) -> Drawing:
    """A map of (title, place): equirectangular, as large a part of the globe as they need."""
    known = list(places)
    width, height = 440.0, 300.0
    drawing = Drawing(width, height, f"Map of {len(known)} places" if known else "Map without places")
    south, north = _range([p.north for _, p in known], 90.0)
    west, east = _range([p.east for _, p in known], 180.0)
    left, bottom, right, top = 52.0, height - 30, width - 20, 8.0

    def x(value: float) -> float:
        return left + (value - west) / (east - west) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - south) / (north - south) * (bottom - top)

    for value in _lines(west, east):
        drawing.line([(x(value), top), (x(value), bottom)], kind="zero" if value == 0 else "grid")
        drawing.text(x(value), bottom + 23, _degrees(value, "E", "W"), kind="axis", anchor="middle")
    for value in _lines(south, north):
        drawing.line([(left, y(value)), (right, y(value))], kind="zero" if value == 0 else "grid")
        drawing.text(left - 5, y(value) + 4, _degrees(value, "N", "S"), kind="axis", anchor="end")
    for title, place in known:
        drawing.dot(x(place.east), y(place.north), kind="place", title=f"{title}: {place.north:g}, {place.east:g}")
    return drawing


def _of(element: Element) -> list[Location]:
    """Places that one element names, by its attributes, its children, or its text."""
    for values in (
        {_local(str(name)): str(value) for name, value in element.attrib.items()},
        {_local(child.tag): child.text or "" for child in element if isinstance(child.tag, str)},
    ):
        north, east = _number(values, _LATITUDES), _number(values, _LONGITUDES)
        if north is not None and east is not None:
            north = -abs(north) if _letter(values, _NORTH) == "S" else north
            east = -abs(east) if _letter(values, _EAST) == "W" else east
            return _good(north, east)
    if _local(element.tag) in _PAIRS and element.text:
        pairs = [(float(a), float(b)) for a, b in _PAIR.findall(element.text[:10_000])]
        if pairs:
            return _good(sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs))
    return []


def _good(north: float, east: float) -> list[Location]:
    return [Location(round(north, 5), round(east, 5))] if abs(north) <= 90 and abs(east) <= 180 else []


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2].casefold()


def _number(values: Mapping[str, str], names: Sequence[str]) -> float | None:
    for name in names:
        try:
            value = float(values[name])
        except (KeyError, ValueError):
            continue
        if math.isfinite(value):
            return value
    return None


def _letter(values: Mapping[str, str], names: Sequence[str]) -> str:
    return next((values[name].strip()[:1].upper() for name in names if name in values), "")


def _range(values: Sequence[float], most: float) -> tuple[float, float]:
    """A little more than they take up; all of it without any."""
    if not values:
        return -most, most
    low, high = min(values), max(values)
    more = max(0.02, (high - low) * 0.15, 1.0 if low == high else 0.0)
    return max(-most, low - more), min(most, high + more)


def _lines(low: float, high: float) -> list[float]:
    step = next((s for s in STEPS if (high - low) / s <= LINES_MOST), 60.0)
    first = math.ceil(low / step)
    return [round(n * step, 6) for n in range(first, math.floor(high / step) + 1)]


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(value):g}°{positive if value > 0 else negative if value < 0 else ''}"
