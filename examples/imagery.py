"""`jbi demo imagery`: imagery and telemetry from a rectangle around Kabul, and a map (the paper's section 3.2, JView).

Two subscriptions by type and spatial limits: `bbox` writes the predicate. Three vehicles report where they are, images
come from all over the world; what arrives is compared with plain arithmetic, and drawn.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from lxml import etree

from jbi_pubsub import PublisherAdapterLight, RegistrationUid, SubscriberAdapter, bbox
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples import uav
from jbi_pubsub.examples.example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation
from jbi_pubsub.examples.uav import GeographicPoint, VehicleState, orbit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA: Final = DATA / "intel_imagery" / "Intel_Imagery.xsd"
FIGURE: Final = DATA / "intel_imagery" / "fig1.xml"
IMAGE: Final = DATA / "intel_imagery" / "image.png"
TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
PLACE: Final = "/metadata/ImageDescriptor/LocationCoord"

BOX: Final = (33.2, 65.7, 35.0, 70.0)
"""South, west, north, east: the paper's rectangle around Kabul (section 2.3.2)."""
VEHICLES: Final = {
    "HAWK": (GeographicPoint(34.15, 67.6), 0.4),
    "KITE": (GeographicPoint(34.9, 69.6), 0.75),
    "OWL": (GeographicPoint(32.6, 66.2), 0.45),
}
"""Callsign -> what it flies around, and how far away in degrees: inside, across the edge, outside."""
CITIES: Final = {
    "Kabul": GeographicPoint(34.53, 69.17),
    "Bamyan": GeographicPoint(34.82, 67.82),
    "Ghazni": GeographicPoint(33.55, 68.42),
    "Kandahar": GeographicPoint(31.61, 65.71),
    "Peshawar": GeographicPoint(34.01, 71.58),
}
SHOWN: Final = (31.0, 63.5, 36.5, 72.5)
"""Area that the map shows."""


class Stream(msgspec.Struct):
    """Points of one type: what was published, and what of it came."""

    name: str
    published: list[GeographicPoint]
    came: list[GeographicPoint] = []

    @property
    def expected(self) -> list[GeographicPoint]:
        """Points that must come, worked out with nothing but comparisons."""
        south, west, north, east = BOX
        return [p for p in self.published if south < p.latitude < north and west < p.longitude < east]

    @property
    def elsewhere(self) -> list[GeographicPoint]:
        """Points that did not come."""
        came = set(self.came)
        return [p for p in self.published if p not in came]


def run(options: ExampleOptions) -> ExampleOutcome:
    """Publish both streams, receive what lies in the rectangle, draw it."""
    tracks = {name: orbit(middle, radius, 24 if options.quick else 72) for name, (middle, radius) in VEHICLES.items()}
    places = scattered(100 if options.quick else 400)
    with (
        Federation().lookup().delegate("alpha", "rome") as here,
        PublisherAdapterLight(here.config) as publisher,
        SubscriberAdapter(here.config) as viewer,
    ):
        registered = register(publisher, tracks)
        images = viewer.register_subscriber(type_name=TYPE, predicate=bbox(*BOX, location=PLACE))
        reports = viewer.register_subscriber(type_name=uav.TYPE, predicate=bbox(*BOX, location=uav.PLACE))
        options.tell("subscribed to imagery and telemetry from the rectangle")
        publish(publisher, registered, tracks, places)
        options.tell(f"published {len(places)} images and {sum(map(len, tracks.values()))} telemetry reports")
        streams = (
            Stream("imagery", [rounded(place) for place in places]),
            Stream("telemetry", [rounded(state.at) for states in tracks.values() for state in states]),
        )
        for stream, subscription, path in zip(streams, (images, reports), (PLACE, uav.PLACE), strict=True):
            for _ in stream.expected:
                obj = viewer.receive(subscription, PATIENCE)
                if obj is None:
                    raise DemoError(f"only {len(stream.came)} objects of the {stream.name} came within {PATIENCE:g} s")
                stream.came.append(GeographicPoint.of(obj.metadata, path))
        strays = [obj for sub in (images, reports) for obj in (viewer.receive(sub, 0.3),) if obj is not None]
    draw(streams, options)
    return outcome(streams, len(strays))


def register(publisher: PublisherAdapterLight, tracks: dict[str, list[VehicleState]]) -> dict[str, RegistrationUid]:
    """Each vehicle has a registration of its own, as its callsign is invariant; all imagery has one."""
    delegate = publisher.connect_to_delegate("alpha", "rome")
    vehicles = {
        name: publisher.register_publisher(delegate, uav.SCHEMA, uav.telemetry(name, states[0]))
        for name, states in tracks.items()
    }
    return {TYPE: publisher.register_publisher(delegate, SCHEMA, FIGURE), **vehicles}


def publish(
    publisher: PublisherAdapterLight,
    registered: dict[str, RegistrationUid],
    tracks: dict[str, list[VehicleState]],
    places: list[GeographicPoint],
) -> None:
    """An image of each place, and each state of the vehicles."""
    figure, image = FIGURE.read_bytes(), IMAGE.read_bytes()
    publisher.publish_many(registered[TYPE], [(moved(figure, place), image) for place in places])
    for name, states in tracks.items():
        publisher.publish_many(registered[name], [(uav.telemetry(name, state), None) for state in states])
    publisher.flush(PATIENCE)


def outcome(streams: tuple[Stream, ...], strays: int) -> ExampleOutcome:
    """Outcome: what came of what was published."""
    south, west, north, east = BOX
    rows = [(s.name, len(s.published), len(s.expected), len(s.came)) for s in streams]
    title = f"From {south} to {north} degrees north, {west} to {east} degrees east"
    return ExampleOutcome(
        (OutcomeTable(title, ("stream", "published", "in the rectangle", "came"), rows),),
        (
            *(
                Promise(f"of the {s.name} came all that lies in the rectangle", sorted(s.came) == sorted(s.expected))
                for s in streams
            ),
            Promise("nothing else came, and nothing twice", strays == 0),
        ),
    )


def scattered(count: int) -> list[GeographicPoint]:
    """Places of images: most near the rectangle, every fourth at its mirror image in another hemisphere, where only the
    letters differ."""
    chance = random.Random(7)  # noqa: S311  # data to play with
    south, west, north, east = SHOWN
    places = [GeographicPoint(chance.uniform(south, north), chance.uniform(west, east)) for _ in range(count)]
    mirrors = ((-1, 1), (1, -1), (-1, -1))
    for number in range(0, count, 4):
        up, right = mirrors[number // 4 % 3]
        places[number] = GeographicPoint(up * places[number].latitude, right * places[number].longitude)
    return places


def rounded(point: GeographicPoint) -> GeographicPoint:
    """As metadata say it."""
    return GeographicPoint(float(f"{point.latitude:.5f}"), float(f"{point.longitude:.5f}"))


def moved(figure: bytes, place: GeographicPoint) -> bytes:
    """Figure 1, with an image of another place."""
    root = etree.fromstring(figure)
    coordinates = root.find("." + PLACE.removeprefix("/metadata"))
    assert coordinates is not None
    for wanted in etree.fromstring(f"<at>{place.elements()}</at>"):
        element = coordinates.find(str(wanted.tag))
        assert element is not None
        element.text = wanted.text
    return etree.tostring(root)


# -- the map ------------------------------------------------------------------------------------------------------

INK, SOFT, PAPER, LAND = "#24303c", "#8a97a3", "#ffffff", "#f4f6f2"
INSIDE, FLOWN, OUTSIDE = "#0b6e99", "#c4501b", "#b9c2ca"


def draw(streams: tuple[Stream, ...], options: ExampleOptions) -> None:
    """The map as a file, its kind by its suffix (.png, .svg, .pdf). Without matplotlib it says so, and that is all.

    Raises DemoError for a file that can't be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # here: the extra `plot`
        from matplotlib.figure import Figure
    except ImportError:
        options.tell("no map: matplotlib is not installed (pip install 'jbi-pubsub[plot]')")
        return
    figure = Figure(figsize=(8.4, 6.4), facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _graticule(axes)
    _points(axes, streams)
    _labels(axes)
    hidden = sum(not _is_shown(p) for stream in streams for p in stream.published)
    axes.set_title(
        "What a subscription to the rectangle around Kabul receives", loc="left", color=INK, fontsize=13, pad=26
    )
    axes.text(
        0, 1.02, f"{sum(len(s.came) for s in streams)} of {sum(len(s.published) for s in streams)} objects came; "
        f"{hidden} lie in other hemispheres, beyond this map", transform=axes.transAxes, color=SOFT, fontsize=9.5,
    )  # fmt: skip
    file = options.output or Path("jbi-imagery.png")
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as exc:
        raise DemoError(f"the map can't be written to {file}: {exc}", hint="--out takes .png, .svg or .pdf") from exc
    options.tell(f"map: {file}")


def _graticule(axes: Axes) -> None:
    south, west, north, east = SHOWN
    axes.set_facecolor(LAND)
    axes.set_xlim(west, east)
    axes.set_ylim(south, north)
    axes.set_aspect(1 / math.cos(math.radians((south + north) / 2)))
    meridians, parallels = range(math.ceil(west), math.floor(east) + 1), range(math.ceil(south), math.floor(north) + 1)
    axes.set_xticks(list(meridians), [f"{degree}° E" for degree in meridians])
    axes.set_yticks(list(parallels), [f"{degree}° N" for degree in parallels])
    axes.grid(color=PAPER, linewidth=1.2)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=SOFT, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _points(axes: Axes, streams: tuple[Stream, ...]) -> None:
    for stream, marker, size in zip(streams, ("s", "o"), (22, 10), strict=True):
        for points, colour, label in (
            (stream.elsewhere, OUTSIDE, ""),
            (stream.came, INSIDE if stream.name == "imagery" else FLOWN, f"{stream.name}: came"),
        ):
            shown = [point for point in points if _is_shown(point)]
            axes.scatter(
                [p.longitude for p in shown], [p.latitude for p in shown], s=size, marker=marker, label=label,
                facecolor=PAPER if colour == OUTSIDE else colour, edgecolor=colour, linewidth=1.0, zorder=3,
            )  # fmt: skip
    axes.scatter([], [], s=22, marker="s", facecolor=PAPER, edgecolor=OUTSIDE, label="did not")


def _labels(axes: Axes) -> None:
    from matplotlib.patheffects import withStroke

    south, west, north, east = BOX
    edge: dict[str, Any] = {"color": INSIDE, "linewidth": 1.8, "zorder": 4}
    axes.plot([west, east, east, west, west], [south, south, north, north, south], **edge)
    axes.fill([west, east, east, west], [south, south, north, north], color=INSIDE, alpha=0.06, zorder=1)
    halo: dict[str, Any] = {"path_effects": [withStroke(linewidth=3, foreground=LAND)], "zorder": 6}
    for callsign, (middle, _) in VEHICLES.items():
        at = middle.longitude, middle.latitude
        axes.text(*at, callsign, color=FLOWN, fontsize=10, weight="bold", ha="center", va="center", **halo)
    for name, place in CITIES.items():
        at = place.longitude, place.latitude
        axes.plot(*at, marker="+", color=INK, markersize=9, zorder=6)
        side = -1 if place.longitude > east else 1  # room beside the edge of the map
        anchor = "right" if side < 0 else "left"
        axes.annotate(name, at, (6 * side, -13), textcoords="offset points", color=INK, ha=anchor, **halo)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, -0.13), ncols=3, frameon=False, labelcolor=INK, fontsize=9.5,
        handletextpad=0.2, columnspacing=1.4, borderpad=0,
    )  # fmt: skip


def _is_shown(point: GeographicPoint) -> bool:
    south, west, north, east = SHOWN
    return south <= point.latitude <= north and west <= point.longitude <= east
