"""`jbi demo hla`: two small simulations in two federations of other models, and a bridge with a guard.

Flights fly in the one, weather moves in the other; each federation's observer sees what the other one simulates, in its
own names and units, traffic no finer than it may. A tower subscribes with a region, and sees what is there alone. All
start together, advance in lockstep, save in the middle, and go back to that once. The same simulations in one
federation under one RTI say what should have come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples.example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import Federation
from jbi_pubsub.examples.simulation import OWNS, SECTOR, Row, latitude, state

MODELS: Final = DATA / "hla"
STEPS: Final = 20
GRID: Final = 0.5
"""Degrees that are left of where traffic is."""
METRES: Final = 100.0
"""And of how high."""
FOOT: Final = 0.3048
MILE: Final = 1852.0
"""Metres."""
ROLES: Final = {"flights": "Air", "radar": "Air", "storms": "Weather", "forecast": "Weather",
                "tower": "Air"}  # fmt: skip


def run(options: ExampleOptions) -> ExampleOutcome:
    """Once with two federations and a bridge, once with one."""
    steps = STEPS // 2 if options.quick else STEPS
    with Federation().lookup() as here:
        for federation, model in (("Air", "air.xml"), ("Weather", "weather.xml")):
            here.server(federation, "hla", "serve", "--federation", federation, "--fom", str(MODELS / model))
        here.server("bridge", "bridge", str(MODELS / "bridge.toml"))
        options.tell("two federations, and a bridge between them")
        bridged = _played(here, ROLES, steps, options)
    with Federation().lookup() as here:
        modules = [word for model in ("air.xml", "weather.xml") for word in ("--fom", str(MODELS / model))]
        here.server("One", "hla", "serve", "--federation", "One", *modules)
        options.tell("the same in one federation")
        alone = _played(here, dict.fromkeys(ROLES, "One"), steps, options)
    file = options.output or Path("jbi-hla.svg")
    _draw(file, bridged, steps)
    options.tell(f"map: {file}")
    return _outcome(bridged, alone, steps)


def _played(here: Federation, roles: dict[str, str], steps: int, options: ExampleOptions) -> dict[str, dict[str, Any]]:
    """Facts that each federate told in the end."""
    for role, federation in roles.items():
        here.start(role, "simulation", role, federation, str(steps))
    here.until(lambda: all(role in here.ready for role in roles), "the federates")
    options.tell("all federates are there; they start together")
    said = here.asked(roles, "start", "rows", "the simulations")
    for role in roles:
        here.word(role, "end")
    return said


# -- what should have come --------------------------------------------------------------------------------------------


def rows_of(said: dict[str, Any]) -> tuple[list[Row], list[Row]]:
    """Rows that an observer saw, and those it saw again behind the restore."""
    rows = [(time, name, tuple((key, value) for key, value in values)) for time, name, values in said["rows"]]
    return rows[: said["first"]], rows[said["first"] :]


def seen_by(role: str, row: Row) -> Row:
    """Row as it would be beyond the bridge: of other names and units, on the guard's grid."""
    time, name, values = row
    known = dict(values)
    if role == "radar":
        there = {
            "lat": math.degrees(known["phi"]),
            "lon": math.degrees(known["lambda"]),
            "radius": known["extent"] / MILE,
        }
    else:
        there = {
            "latitude": round(known["lat"] / GRID) * GRID,
            "longitude": round(known["lon"] / GRID) * GRID,
            "height": round(known["altitude"] * FOOT / METRES) * METRES,
        }
    return time, name, tuple(sorted(there.items()))


def agree(ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Whether two logs say the same: of one time in whichever order, values to the last bits."""
    one, other = sorted(ours), sorted(theirs)
    return len(one) == len(other) and all(
        a[:2] == b[:2]
        and [key for key, _ in a[2]] == [key for key, _ in b[2]]
        and all(math.isclose(x, y, rel_tol=1e-12, abs_tol=1e-12) for (_, x), (_, y) in zip(a[2], b[2], strict=True))
        for a, b in zip(one, other, strict=True)
    )


def _sector(steps: int) -> list[Row]:
    """Rows of all flights while they are in the tower's region."""
    flown = [(float(at), name, state("flights", name, float(at))) for at in range(1, steps + 1)
             for name in OWNS["flights"][1]]  # fmt: skip
    return [(at, name, (("lat", now["lat"]), ("lon", now["lon"]))) for at, name, now in flown
            if SECTOR[0] <= latitude(now) < SECTOR[1]]  # fmt: skip


def _is_ordered(rows: Sequence[Row]) -> bool:
    times = [row[0] for row in rows]
    return times == sorted(times)


def _outcome(bridged: dict[str, dict[str, Any]], alone: dict[str, dict[str, Any]], steps: int) -> ExampleOutcome:
    table, promises = [], []
    for role, of in (("radar", "storms"), ("forecast", "flights")):
        (first, again), (one, once_more) = rows_of(bridged[role]), rows_of(alone[role])
        count = steps * len(OWNS[of][1])
        expected = [seen_by(role, row) for row in one]
        right = len(first) == count and agree(first, expected)
        same = agree(again, [row for row in first if row[0] > steps // 2]) and agree(
            again, [seen_by(role, row) for row in once_more]
        )
        table.append((role, ROLES[role], len(first), len(one), len(again)))
        promises += [
            Promise(f"{role} saw what one RTI would have shown it, in its own names and units", right),
            Promise(f"{role} saw the same again after the restore", same),
            Promise(f"{role} saw nothing out of order", _is_ordered(first) and _is_ordered(again)),
        ]
    (first, again), (one, _) = rows_of(bridged["tower"]), rows_of(alone["tower"])
    table.append(("tower", ROLES["tower"], len(first), len(one), len(again)))
    there = agree(first, _sector(steps)) and agree(one, first)
    same = agree(again, [row for row in first if row[0] > steps // 2])
    promises.append(Promise("tower saw what was in its region, and nothing else", there and same))
    hidden = all("squawk" not in dict(values) for _, _, values in bridged["forecast"]["rows"])
    coarse = all(
        dict(values)["latitude"] % GRID == 0 and dict(values)["height"] % METRES == 0
        for _, _, values in bridged["forecast"]["rows"]
    )
    promises.append(Promise("nobody beyond the bridge saw who flies, or where exactly", hidden and coarse))
    columns = ("observer", "federation", "values by the bridge", "by one RTI", "again after the restore")
    return ExampleOutcome((OutcomeTable("What came", columns, tuple(table)),), tuple(promises))


# -- the picture ----------------------------------------------------------------------------------------------------

INK, SOFT, PAPER = "#24303c", "#8a97a3", "#ffffff"
COLOURS: Final = dict(
    zip(
        [name for _, each in OWNS.values() for name in each],
        ("#0b6e99", "#c4501b", "#3b7a57", "#7a4fa3", "#a3334f"),
        strict=False,
    )
)
BOX: Final = (47.0, 0.0, 58.0, 16.0)
"""South, west, north, east of what is shown."""
SIZE: Final = (420, 420)


def _draw(file: Path, bridged: dict[str, dict[str, Any]], steps: int) -> None:
    """Both sides' tracks, as each observer saw them beside what was simulated there. Raises DemoError."""
    if file.suffix != ".svg":
        raise DemoError(f"the picture can't be written to {file}: it is an .svg", hint="--out tracks.svg")
    width, height = SIZE
    hazards = _seen("storms", rows_of(bridged["radar"])[0], "lon", "lat")
    traffic = _seen("flights", rows_of(bridged["forecast"])[0], "longitude", "latitude")
    flown = {role: _flown(role, steps) for role in OWNS}
    looks = f'viewBox="0 0 {2 * width + 60} {height + 90}" font-family="sans-serif" font-size="12" fill="{INK}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {looks}>', f'<rect width="100%" height="100%" fill="{PAPER}"/>']
    parts.append(_panel(20, "Air: its flights, and the weather beyond the bridge", flown["flights"], hazards))
    parts.append(_panel(40 + width, "Weather: its cells, and traffic as it may know it", flown["storms"], traffic))
    parts.append(
        f'<text x="20" y="{height + 76}" fill="{SOFT}">lines: simulated here; dots: seen over the bridge, one for each '
        "step of logical time</text></svg>"
    )
    try:
        file.write_text("".join(parts), encoding="utf-8")
    except OSError as exc:
        hint = "Give --out FILE.svg"
        raise DemoError(f"the picture can't be written to {file}: {exc.strerror}", hint=hint) from exc


def _seen(role: str, rows: Sequence[Row], east: str, north: str) -> dict[str, list[tuple[float, float]]]:
    places = [(name, dict(values)) for _, name, values in rows]
    return {name: [(at[east], at[north]) for of, at in places if of == name] for name in OWNS[role][1]}


def _flown(role: str, steps: int) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(each[1] + each[3] * at, each[0] + each[2] * at) for at in range(1, steps + 1)]
        for name, each in OWNS[role][1].items()
    }


def _panel(
    left: int, title: str, lines: dict[str, list[tuple[float, float]]], dots: dict[str, list[tuple[float, float]]]
) -> str:
    width, height = SIZE
    south, west, north, east = BOX

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return (
            left + (point[0] - west) / (east - west) * width,
            40 + (north - point[1]) / (north - south) * height,
        )

    parts = [
        f'<text x="{left}" y="26" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="40" width="{width}" height="{height}" fill="#f4f6f2"/>',
    ]
    for name, points in lines.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
        x, y = at(points[-1])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 5:.1f}" y="{y:.1f}" fill="{COLOURS[name]}">{escape(name)}</text>')
    for name, points in dots.items():
        colour = COLOURS[name]
        for x, y in map(at, points):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.6"/>')
        if points:
            x, y = at(points[-1])
            parts.append(f'<text x="{x + 6:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)
