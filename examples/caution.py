"""`jbi demo caution`: a master caution panel (the paper's section 3.3, MCP).

A vehicle's ground station publishes what it sees: telemetry as metadata, the picture as payload. The panel subscribes
to that, correlates each object with the targets of its database, judges the damage by the picture, and publishes the
assessment: one process, publisher and subscriber. Whoever is interested subscribes to assessments, here the panel too.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub import Config, InfoObject, PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples import uav
from jbi_pubsub.examples.example import DATA, ExampleOptions, ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.federation import PATIENCE, Federation, application, say
from jbi_pubsub.examples.uav import PLACE, GeographicPoint, VehicleState

SCHEMA: Final = DATA / "caution" / "Battle_Damage.xsd"
TYPE: Final = "mil.af.rl.jbi.Battle_Damage"
STATION: Final = "ground station"
OBSERVATIONS: Final = 10
CALLSIGN: Final = "TRAINER"
NEAR: Final = 2_000.0
"""Metres within which an observation is of a target."""
DARK: Final = 60
"""Brightness of 255: pixels below count as burnt."""
PICTURE: Final = (64, 48)
DAMAGE: Final = ((0.02, "none"), (0.15, "light"), (1.0, "severe"))
"""Up to which share of burnt pixels a target has which damage."""


class Target(msgspec.Struct, frozen=True):
    """A row of the air operations database."""

    name: str
    category: str
    priority: int
    at: GeographicPoint


class Assessment(msgspec.Struct, frozen=True):
    """Assessment of an observation that the panel publishes."""

    target: Target
    damage: str
    burnt: float
    distance: float


def run(options: ExampleOptions) -> ExampleOutcome:
    """The panel; the ground station is a process of its own."""
    with (
        Federation().lookup().delegate("aoc", "rome") as here,
        SubscriberAdapter(here.config, name="panel") as subscriber,
        PublisherAdapterLight(here.config, name="panel") as publisher,
    ):
        delegate = publisher.connect_to_delegate("aoc", "rome")
        registration = publisher.register_publisher(delegate, SCHEMA, _SOURCE % b"")
        here.start(STATION, "caution")
        here.until(lambda: STATION in here.ready, "the ground station")
        observations = subscriber.register_subscriber(type_name=uav.TYPE)
        assessments = subscriber.register_subscriber(type_name=TYPE)
        options.tell("the panel has subscribed; the vehicle takes off")
        here.word(STATION, "fly")
        told: list[str] = []
        here.until(lambda: told, "the flight", lambda facts: told.extend(facts.get("seen", ())))
        options.tell(f"the ground station has published {len(told)} observations")
        database = targets_database()
        for _ in told:
            observation = subscriber.receive(observations, PATIENCE)
            if observation is None:
                raise DemoError(f"an observation did not come within {PATIENCE:g} s")
            correlate(database, publisher, registration, observation)
        options.tell("the panel has correlated them with its database")
        came = [subscriber.receive(assessments, PATIENCE) for _ in told]
        strays = subscriber.receive(assessments, 0.3)
    return outcome(told, [obj for obj in came if obj is not None], strays is not None)


def correlate(
    database: sqlite3.Connection,
    publisher: PublisherAdapterLight,
    registration: RegistrationUid,
    observation: InfoObject,
) -> None:
    """Publish the assessment of an observation, with its picture; nothing if it is of no target."""
    found = assess(database, GeographicPoint.of(observation.metadata, PLACE), observation.payload)
    if found is not None:
        publisher.publish(registration, assessment_metadata(found, observation), observation.payload)


def assess(database: sqlite3.Connection, at: GeographicPoint, picture: bytes) -> Assessment | None:
    """The nearest target, how far away, and its damage; None where there is none within NEAR."""
    margin = 2 * NEAR / uav.DEGREE
    rows = database.execute(
        "SELECT name, category, priority, latitude, longitude FROM target"
        " WHERE latitude BETWEEN ? AND ? AND longitude BETWEEN ? AND ?",
        (at.latitude - margin, at.latitude + margin, at.longitude - 2 * margin, at.longitude + 2 * margin),
    )
    candidates = [
        Target(name, kind, priority, GeographicPoint(north, east)) for name, kind, priority, north, east in rows
    ]
    target = min(candidates, key=lambda t: at.metres_to(t.at), default=None)
    if target is None or at.metres_to(target.at) > NEAR:
        return None
    share = burnt(picture)
    return Assessment(target, next(word for most, word in DAMAGE if share <= most), share, at.metres_to(target.at))


def burnt(picture: bytes) -> float:
    """The share of dark pixels in a grey picture (PGM, P5). Raises DemoError for anything else."""
    head = picture.split(b"\n", 3)
    if len(head) != 4 or head[0] != b"P5" or head[2] != b"255":
        raise DemoError("the payload of an observation is not a PGM picture")
    return sum(pixel < DARK for pixel in head[3]) / max(1, len(head[3]))


def assessment_metadata(found: Assessment, observation: InfoObject) -> bytes:
    """Metadata of the object that is published."""
    root = etree.fromstring(observation.metadata)
    return (
        _SOURCE
        % (
            f"<Assessment><target>{found.target.name}</target><category>{found.target.category}</category>"
            f"<priority>{found.target.priority}</priority><damage>{found.damage}</damage>"
            f"<burnt>{found.burnt:.3f}</burnt><distance>{found.distance:.0f}</distance>"
            f"<seenBy>{root.findtext('Vehicle/callsign')}</seenBy><object>{observation.object_id}</object>"
            f"<time>{root.findtext('State/time')}</time></Assessment>"
        ).encode()
    )


_SOURCE: Final = b"<metadata><mil.af.rl.jbi.Battle_Damage/><Source><assessor>MCP</assessor></Source>%s</metadata>"


def outcome(told: list[str], came: list[InfoObject], more: bool) -> ExampleOutcome:
    """Assessments of the panel, and whether it is what the ground station has flown over."""
    roots = [etree.fromstring(obj.metadata) for obj in came]
    columns = ("target", "category", "priority", "damage", "burnt", "distance")
    rows = [tuple(root.findtext(f"Assessment/{column}", "") for column in columns) for root in roots]
    seen = [f"{row[0]} {row[3]}" for row in rows]
    origins = {root.findtext("Assessment/object") for root in roots}
    return ExampleOutcome(
        (OutcomeTable(f"{len(told)} observations in, {len(came)} assessments out", columns, rows),),
        (
            Promise(f"{OBSERVATIONS} objects in, {OBSERVATIONS} objects out", len(told) == len(came) == OBSERVATIONS),
            Promise("each is of the target that was flown over, with the damage done there", seen == told),
            Promise("each is of an object of its own, and none came twice", len(origins) == len(told) and not more),
        ),
    )


# -- the database ---------------------------------------------------------------------------------------------------


def targets() -> list[Target]:
    """Those of the air operations database: more than are flown over. The same each time."""
    chance = random.Random(3)  # noqa: S311  # data to play with
    kinds = ("bridge", "depot", "radar", "airfield")
    return [
        Target(
            f"BE{number:04}",
            kinds[number % 4],
            1 + number % 5,
            GeographicPoint(33.3 + number * 0.05, chance.uniform(66, 69.5)),
        )
        for number in range(3 * OBSERVATIONS)
    ]


def targets_database() -> sqlite3.Connection:
    """All of them in a table."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE TABLE target (name TEXT PRIMARY KEY, category TEXT, priority INT, latitude REAL, longitude REAL)"
    )
    rows = [(t.name, t.category, t.priority, t.at.latitude, t.at.longitude) for t in targets()]
    database.executemany("INSERT INTO target VALUES (?, ?, ?, ?, ?)", rows)
    return database


# -- the ground station ---------------------------------------------------------------------------------------------


def fly(config: Config) -> None:
    """Fly over every third target, publish what is seen there, and tell what the panel has to find out."""
    chance = random.Random(11)  # noqa: S311  # data to play with
    told = []
    with PublisherAdapterLight(config, name=STATION) as publisher:
        delegate = publisher.connect_to_delegate("aoc", "rome")
        home = uav.telemetry(CALLSIGN, VehicleState(GeographicPoint(34.57, 69.21), 0.0))
        registration = publisher.register_publisher(delegate, uav.SCHEMA, home)
        say(ready=STATION)
        sys.stdin.readline()
        for number, target in enumerate(targets()[::3]):
            north, east = chance.uniform(-5e-3, 5e-3), chance.uniform(-5e-3, 5e-3)
            at = GeographicPoint(target.at.latitude + north, target.at.longitude + east)
            share, damage = ((0.0, "none"), (0.08, "light"), (0.4, "severe"))[number % 3]
            metadata = uav.telemetry(CALLSIGN, VehicleState(at, 60.0 * number, heading=chance.uniform(0, 360)))
            publisher.publish(registration, metadata, picture(chance, share))
            told.append(f"{target.name} {damage}")
        publisher.flush(PATIENCE)
        say(seen=told)
        sys.stdin.read()


def picture(chance: random.Random, share: float) -> bytes:
    """A grey picture (PGM) of bright ground, about such a share of it dark."""
    width, height = PICTURE
    dark = round(share * width * height)
    pixels = [chance.randrange(DARK) for _ in range(dark)]
    pixels += [chance.randrange(DARK + 40, 256) for _ in range(width * height - dark)]
    chance.shuffle(pixels)
    return b"P5\n%d %d\n255\n" % PICTURE + bytes(pixels)


if __name__ == "__main__":
    sys.exit(application(fly))
