"""`jbi demo sensors`: 200 sensors, a fusion engine, and tasking (the paper's sections 3.4 and 3.5).

Four processes simulate fifty sensors each; every sensor has a registration of its own. The fusion engine, this process,
makes one track out of the reports of an area, and publishes it. Sensors take tasks through a service of their own kind
(tasking.py): the engine looks that of the area whose reports scatter most up by Entry, and asks for more accuracy.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub import Config, PublisherAdapterLight, Services, SubscriberAdapter
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples.example import DATA, Cell, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation, application, say
from jbi_pubsub.examples.tasking import SENSOR_TASKING, Tasking, task

REPORT: Final = "mil.af.rl.jbi.Sensor_Report"
REPORT_SCHEMA: Final = DATA / "sensors" / "Sensor_Report.xsd"
TRACK: Final = "mil.af.rl.jbi.Fused_Track"
TRACK_SCHEMA: Final = DATA / "sensors" / "Fused_Track.xsd"

AREAS: Final = {"north": 300.0, "east": 250.0, "south": 900.0, "west": 350.0}
"""Each area, and the standard deviation in metres of what its sensors say, before they are tasked."""
EACH: Final = 50
"""Sensors of an area."""
SENSORS: Final = EACH * len(AREAS)
FINER: Final = 10.0
"""By how much mode `fine` divides the deviation."""


class Report(msgspec.Struct, frozen=True):
    """Report of one sensor at one step, metres from the middle of its area."""

    sensor: str
    area: str
    step: int
    east: float
    north: float


class Track(msgspec.Struct, frozen=True):
    """Where the target of an area was at one step, by so many reports."""

    area: str
    step: int
    east: float
    north: float
    scatter: float
    reports: int

    @property
    def error(self) -> float:
        """Metres from where it really was."""
        east, north = truth(self.area, self.step)
        return math.hypot(self.east - east, self.north - north)


class Fusion:
    """Makes tracks of reports: a step of an area is over when each of its sensors has reported it or a later one, as
    the objects of a registration keep their order. `sensors` says how many an area has."""

    def __init__(self, sensors: dict[str, int]) -> None:
        self._sensors = sensors
        self._latest: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._open: defaultdict[str, dict[int, list[Report]]] = defaultdict(dict)
        self.seen: Counter[str] = Counter()
        """Reports by sensor."""

    def add(self, report: Report) -> list[Track]:
        """The tracks that are complete with it."""
        latest, steps = self._latest[report.area], self._open[report.area]
        self.seen[report.sensor] += 1
        latest[report.sensor] = report.step
        steps.setdefault(report.step, []).append(report)
        if len(latest) < self._sensors.get(report.area, 0):
            return []
        over = min(latest.values())
        return [fused(steps.pop(step)) for step in sorted(steps) if step <= over]


def fused(reports: list[Report]) -> Track:
    """The mean of the reports of a step."""
    east, north = statistics.fmean(r.east for r in reports), statistics.fmean(r.north for r in reports)
    scatter = math.sqrt(statistics.fmean((r.east - east) ** 2 + (r.north - north) ** 2 for r in reports) / 2)
    return Track(reports[0].area, reports[0].step, east, north, scatter, len(reports))


class Half(msgspec.Struct, frozen=True):
    """One half of a run: the tracks that the engine has made and received back, and the seconds from the first report
    to the last track."""

    tracks: list[Track]
    seconds: float


def run(options: ExampleOptions) -> ExampleOutcome:
    """The fusion engine; the sensors are processes of their own."""
    steps = 5 if options.quick else 100
    with (
        Federation().lookup().delegate("fusion", "rome") as here,
        SubscriberAdapter(here.config, name="engine") as subscriber,
        PublisherAdapterLight(here.config, name="engine") as publisher,
        Services(here.config, name="engine") as services,
    ):
        for area in AREAS:
            here.start(area, "sensors", area, str(steps))
        here.until(lambda: here.ready.keys() >= AREAS.keys(), f"{SENSORS} sensors")
        found = [each.properties for each in services.find(SENSOR_TASKING, "kind == 'radar'")]
        options.tell(f"{SENSORS} sensors are registered; {len(found)} tasking services found by Entry")
        engine = Engine(subscriber, publisher, {str(each["area"]): int(str(each["sensors"])) for each in found})
        first = engine.work(here, steps)
        worst = max(AREAS, key=lambda area: scatter(first, area))
        named = services.find(SENSOR_TASKING, f"area == '{worst}'")
        obeyed = sum(task(services, offer, "fine") for offer in named)
        options.tell(f"reports of area {worst} scatter most; {obeyed} sensors have been tasked")
        second = engine.work(here, steps)
    return outcome(steps, engine, first, second, [str(offer.properties["area"]) for offer in named], obeyed)


class Engine:
    """Subscribes to reports and publishes tracks, to which it subscribes as well. `work` is called by one thread."""

    def __init__(
        self, subscriber: SubscriberAdapter, publisher: PublisherAdapterLight, sensors: dict[str, int]
    ) -> None:
        self._subscriber = subscriber
        self._publisher = publisher
        self.fusion = Fusion(sensors)
        delegate = publisher.connect_to_delegate("fusion", "rome")
        self._registration = publisher.register_publisher(delegate, TRACK_SCHEMA, _track(None))
        self._reports = subscriber.register_subscriber(type_name=REPORT, policy="block")
        self._tracks = subscriber.register_subscriber(type_name=TRACK, policy="block")

    def work(self, here: Federation, steps: int) -> Half:
        """Have all sensors report so many steps, and fuse them. Raises DemoError when reports do not come."""
        began = time.monotonic()
        for area in AREAS:
            here.word(area, "go")
        for number in range(steps * SENSORS):
            obj = self._subscriber.receive(self._reports, PATIENCE)
            if obj is None:
                raise DemoError(f"{steps * SENSORS - number} of {steps * SENSORS} reports did not come")
            for track in self.fusion.add(_report(obj.metadata)):
                self._publisher.publish(self._registration, _track(track))
        came = [self._subscriber.receive(self._tracks, PATIENCE) for _ in range(steps * len(AREAS))]
        return Half([_told(obj.metadata) for obj in came if obj is not None], time.monotonic() - began)


def scatter(half: Half, area: str) -> float:
    """Scatter of the reports of an area, metres."""
    return statistics.fmean(track.scatter for track in half.tracks if track.area == area)


def error(half: Half, area: str) -> float:
    """Error of the tracks of an area, metres."""
    return math.sqrt(statistics.fmean(track.error**2 for track in half.tracks if track.area == area))


def outcome(steps: int, engine: Engine, first: Half, second: Half, named: list[str], obeyed: int) -> ExampleOutcome:
    """Outcome: what the engine has made of the reports, before and after tasking."""
    worst = max(AREAS, key=lambda area: AREAS[area])
    halves = (first, second)
    return ExampleOutcome(
        (_accuracy(first, second), _throughput(steps, first, second)),
        (
            Promise(
                f"all {2 * steps * SENSORS:,} reports of {SENSORS} sensors came, each once",
                engine.fusion.seen == Counter({f"{a}-{n:02}": 2 * steps for a in AREAS for n in range(EACH)}),
            ),
            Promise(
                "each step of each area made one track of all its sensors",
                sorted((t.area, t.step, t.reports) for half in halves for t in half.tracks)
                == sorted((area, step, EACH) for area in AREAS for step in range(2 * steps)),
            ),
            Promise(
                "tracks are three times nearer to the truth than reports",
                all(3 * error(h, area) < scatter(h, area) * math.sqrt(2) for h in halves for area in AREAS),
            ),
            Promise(
                f"one tasking service was found for area {worst}, and its {EACH} sensors obeyed",
                (named, obeyed) == ([worst], EACH),
            ),
            Promise(
                "its reports scatter less than a fifth of before, those of the others as before",
                all(
                    5 * scatter(second, area) < scatter(first, area)
                    if area == worst
                    else 0.5 < scatter(second, area) / scatter(first, area) < 2
                    for area in AREAS
                ),
            ),
        ),
    )


def _accuracy(first: Half, second: Half) -> OutcomeTable:
    rows: list[tuple[Cell, ...]] = []
    for area in AREAS:
        figures = (figure(half, area) for half in (first, second) for figure in (scatter, error))
        rows.append((area, EACH, *(f"{figure:.0f}" for figure in figures)))
    columns = ("area", "sensors", "scatter", "track off by", "tasked: scatter", "track off by")
    return OutcomeTable(
        "How far reports scatter and tracks are from the truth, in metres, before and after tasking", columns, rows
    )


def _throughput(steps: int, first: Half, second: Half) -> OutcomeTable:
    count = steps * SENSORS
    rows: list[tuple[Cell, ...]] = [
        (name, f"{count:,}", len(half.tracks), f"{half.seconds:.1f}", f"{count / half.seconds:,.0f}")
        for name, half in (("before", first), ("after", second))
    ]
    return OutcomeTable("Throughput", ("tasking", "reports", "tracks", "seconds", "reports a second"), rows)


def _report(metadata: bytes) -> Report:
    sensor, report = etree.fromstring(metadata)[1:3]
    return Report(
        sensor.findtext("id", ""),
        sensor.findtext("area", ""),
        int(report.findtext("step", "")),
        float(report.findtext("east", "")),
        float(report.findtext("north", "")),
    )


def _track(track: Track | None) -> bytes:
    """Its metadata; of None what all have in common."""
    said = "" if track is None else (
        f"<Track><step>{track.step}</step><target>{track.area}</target><east>{track.east:.2f}</east>"
        f"<north>{track.north:.2f}</north><scatter>{track.scatter:.2f}</scatter><reports>{track.reports}</reports></Track>"
    )  # fmt: skip
    return f"<metadata><mil.af.rl.jbi.Fused_Track/><Engine><name>mean</name></Engine>{said}</metadata>".encode()


def _told(metadata: bytes) -> Track:
    track = etree.fromstring(metadata)[2]
    east, north, spread = (float(track.findtext(name, "")) for name in ("east", "north", "scatter"))
    step, reports = (int(track.findtext(name, "")) for name in ("step", "reports"))
    return Track(track.findtext("target", ""), step, east, north, spread, reports)


# -- the sensors ----------------------------------------------------------------------------------------------------


def truth(area: str, step: int) -> tuple[float, float]:
    """Where the target of an area is: metres east and north of its middle. It flies in a circle."""
    angle = 0.1 * step + list(AREAS).index(area)
    return 4_000 * math.cos(angle), 4_000 * math.sin(angle)


def sense(config: Config, area: str, steps: str) -> None:
    """The sensors of one area: each line of stdin is so many steps more."""
    chance = random.Random(area)  # noqa: S311  # data to play with
    mode = Mode()
    with (
        PublisherAdapterLight(config, name=area) as publisher,
        Services(config, name=area) as services,
    ):
        services.offer(SENSOR_TASKING, {"area": area, "kind": "radar", "sensors": EACH}, calls=Tasking(mode.set))
        delegate = publisher.connect_to_delegate("fusion", "rome")
        names = [f"{area}-{number:02}" for number in range(EACH)]
        sensors = [
            publisher.register_publisher(delegate, REPORT_SCHEMA, _sensed(name, area, 0, (0, 0), mode.now))
            for name in names
        ]
        say(ready=area)
        for turn, _ in enumerate(sys.stdin):
            for step in range(turn * int(steps), (turn + 1) * int(steps)):
                east, north = truth(area, step)
                deviation = AREAS[area] / (FINER if mode.now == "fine" else 1)
                for name, sensor in zip(names, sensors, strict=True):
                    seen = chance.gauss(east, deviation), chance.gauss(north, deviation)
                    publisher.publish(sensor, _sensed(name, area, step, seen, mode.now))
            publisher.flush(PATIENCE)


class Mode:
    """Mode that the sensors of a process look in. Set by the tasking service's threads, read by that of the sensors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = "coarse"

    @property
    def now(self) -> str:
        """The mode."""
        with self._lock:
            return self._mode

    def set(self, mode: str) -> int:
        """Look so from now on; how many sensors do."""
        with self._lock:
            self._mode = mode
        return EACH


def _sensed(sensor: str, area: str, step: int, seen: tuple[float, float], mode: str) -> bytes:
    return (
        f"<metadata><mil.af.rl.jbi.Sensor_Report/><Sensor><id>{sensor}</id><area>{area}</area><kind>radar</kind></Sensor>"
        f"<Report><step>{step}</step><target>{area}</target><east>{seen[0]:.2f}</east><north>{seen[1]:.2f}</north>"
        f"<mode>{mode}</mode></Report></metadata>"
    ).encode()


if __name__ == "__main__":
    sys.exit(application(sense))
