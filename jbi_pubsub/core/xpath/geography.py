"""Rectangles on the globe as predicates over latitude and longitude with hemisphere letters.

Rules (the paper's Kabul predicate, section 2.3.2, carried to every rectangle):
- Metadata give unsigned degrees and a letter: lat with N or S, long with E or W. 0 and 180 degrees mean the same place
  with either letter.
- The rectangle is open: a point on its edge is outside. A pole (latitude 90 or -90) and a full circle of longitude are
  no edges: nothing lies beyond, so they belong to the rectangle.
- `west` greater than `east` crosses the antimeridian.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath.language.grammar import PATHS, parse
from jbi_pubsub.core.xpath.narrowing import prefixes_of

_POLE: Final = 90.0
_HALF_CIRCLE: Final = 180.0


@checked
def bbox(
    south: float,
    west: float,
    north: float,
    east: float,
    *,
    location: str = "/metadata/ImageDescriptor/LocationCoord",
    lat: str = "lat",
    latord: str = "latord",
    long: str = "long",
    longord: str = "longord",
) -> str:
    """The XPath predicate "the point lies in the rectangle"; signed degrees, north and east positive.

    `location` is the path of the element that holds the four others; the default is that of the paper's figure 1.
    `south` must be less than `north`, `west` different from `east`. Raises PredicateError, ArgumentError.
    """
    _check("south", south, _POLE)
    _check("north", north, _POLE)
    _check("west", west, _HALF_CIRCLE)
    _check("east", east, _HALF_CIRCLE)
    if south >= north or west == east or (west, east) == (_HALF_CIRCLE, -_HALF_CIRCLE):
        raise PredicateError(
            f"rectangle {south}..{north} north, {west}..{east} east is empty",
            hint="south must be less than north; west may be greater than east across the antimeridian",
            argument="bbox",
            expression="",
        )
    for name, step in (("lat", lat), ("latord", latord), ("long", long), ("longord", longord)):
        _check_path(location, name, step)
    latitude = _sectors(f"{location}/{lat}", f"{location}/{latord}", "N", "S", south, north, _POLE)
    longitude = _longitude(f"{location}/{long}", f"{location}/{longord}", west, east)
    return f"{_either(latitude)} and {_either(longitude)}"


def _longitude(number: str, letter: str, west: float, east: float) -> list[str]:
    west = -_HALF_CIRCLE if west == _HALF_CIRCLE else west  # the same meridian: an edge, not inside
    east = _HALF_CIRCLE if east == -_HALF_CIRCLE else east
    if west < east:
        full = west == -_HALF_CIRCLE and east == _HALF_CIRCLE
        return _sectors(number, letter, "E", "W", west, east, _HALF_CIRCLE if full else math.inf)
    # west .. 180 and -180 .. east: the antimeridian lies inside, so it belongs to either part
    return [
        *_sectors(number, letter, "E", "W", west, _HALF_CIRCLE, _HALF_CIRCLE),
        *_sectors(number, letter, "E", "W", -_HALF_CIRCLE, east, _HALF_CIRCLE),
    ]


def _sectors(
    number: str, letter: str, positive: str, negative: str, low: float, high: float, closed: float
) -> list[str]:
    """The open range low..high in one condition per hemisphere; a bound at +-`closed` belongs to it."""
    found = []
    if high > 0:
        above = f"{number}>{_degrees(low)}" if low >= 0 else f"{number}>=0"
        found.append(_sector(above, number, high, closed, letter, positive))
    if low < 0:
        above = f"{number}>{_degrees(-high)}" if high <= 0 else f"{number}>=0"
        found.append(_sector(above, number, -low, closed, letter, negative))
    return found


def _sector(above: str, number: str, limit: float, closed: float, letter: str, name: str) -> str:
    below = f"{number}{'<=' if limit == closed else '<'}{_degrees(limit)}"
    return f"{above} and {below} and {letter}='{name}'"


def _either(sectors: list[str]) -> str:
    return sectors[0] if len(sectors) == 1 else "(" + " or ".join(f"({s})" for s in sectors) + ")"


def _check_path(location: str, name: str, step: str) -> None:
    """Raises PredicateError unless `location` is one path, and goes on with `step` as one."""
    for argument, given, text in (("location", location, location), (name, step, f"{location}/{step}")):
        spaces = dict.fromkeys(prefixes_of(text), "urn:any")  # bound where the predicate is registered
        if not given.strip() or not isinstance(parse(text, spaces, argument).tree, PATHS):
            raise PredicateError(
                f"{argument} is {given!r}, which is not a path",
                hint="Give one path of elements, for example /metadata/ImageDescriptor/LocationCoord",
                argument=argument,
                expression=given,
            )


def _check(name: str, degrees: float, limit: float) -> None:
    if not -limit <= degrees <= limit:
        raise PredicateError(
            f"{name} is {degrees!r} degrees, the limits are -{limit:g} and {limit:g}",
            hint="Give signed decimal degrees, north and east positive",
            argument=name,
            expression="",
        )


def _degrees(value: float) -> str:
    """Decimal digits without an exponent (XPath 1.0 has none), reading back as the same double."""
    return f"{Decimal(repr(abs(float(value)))):f}"
