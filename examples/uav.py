"""Unmanned aerial vehicles for the examples: where they are, and their telemetry as metadata of an object."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import msgspec
from lxml import etree

from jbi_pubsub.examples.example import DATA

SCHEMA: Final = DATA / "uav" / "UAV_Telemetry.xsd"
TYPE: Final = "mil.af.rl.jbi.UAV_Telemetry"
PLACE: Final = "/metadata/State/LocationCoord"
"""Where its metadata say where it is."""
BEGIN: Final = datetime(2002, 4, 1, 6, tzinfo=UTC)
DEGREE: Final = 111_195.0
"""Metres of a degree of a great circle, on a sphere of 6,371 km."""


class GeographicPoint(msgspec.Struct, frozen=True, order=True):
    """A place in signed degrees, north and east positive."""

    latitude: float
    longitude: float

    @classmethod
    def of(cls, metadata: bytes, path: str) -> Self:
        """Point that metadata with unsigned degrees and hemisphere letters have at the path of their LocationCoord."""
        found = etree.fromstring(metadata).find("." + path.removeprefix("/metadata"))
        assert found is not None
        north, east = found.findtext("latord") == "N", found.findtext("longord") == "E"
        latitude, longitude = float(found.findtext("lat", "")), float(found.findtext("long", ""))
        return cls(latitude if north else -latitude, longitude if east else -longitude)

    def elements(self) -> str:
        """The other way round: the four elements."""
        return (
            f"<lat>{abs(self.latitude):.5f}</lat><latord>{'N' if self.latitude >= 0 else 'S'}</latord>"
            f"<long>{abs(self.longitude):.5f}</long><longord>{'E' if self.longitude >= 0 else 'W'}</longord>"
        )

    def metres_to(self, other: GeographicPoint) -> float:
        """Along a great circle (haversine formula)."""
        there, here = math.radians(other.latitude), math.radians(self.latitude)
        along = math.radians(other.longitude - self.longitude)
        half = math.sin((there - here) / 2) ** 2 + math.cos(here) * math.cos(there) * math.sin(along / 2) ** 2
        return 2 * math.degrees(math.asin(math.sqrt(half))) * DEGREE


class VehicleState(msgspec.Struct, frozen=True):
    """State of a vehicle at one moment, `second` after BEGIN."""

    at: GeographicPoint
    second: float
    heading: float = 0.0
    altitude: float = 3_200.0
    speed: float = 38.0


def telemetry(callsign: str, state: VehicleState) -> bytes:
    """The metadata of one report."""
    time = BEGIN + timedelta(seconds=state.second)
    return (
        "<metadata><mil.af.rl.jbi.UAV_Telemetry/>"
        f"<Vehicle><callsign>{callsign}</callsign><model>RQ-1</model></Vehicle>"
        f"<State><time>{time:%Y-%m-%dT%H:%M:%SZ}</time><LocationCoord>{state.at.elements()}</LocationCoord>"
        f"<altitude>{state.altitude:.0f}</altitude><heading>{state.heading:.1f}</heading>"
        f"<speed>{state.speed:.1f}</speed></State></metadata>"
    ).encode()


def orbit(middle: GeographicPoint, radius: float, count: int) -> list[VehicleState]:
    """So many reports of a vehicle that flies once around `middle`, `radius` degrees of latitude away."""
    shrink = math.cos(math.radians(middle.latitude))
    states = []
    for number in range(count):
        angle = 2 * math.pi * number / count
        at = GeographicPoint(
            middle.latitude + radius * math.cos(angle), middle.longitude + radius * math.sin(angle) / shrink
        )
        states.append(VehicleState(at, 10.0 * number, heading=(math.degrees(angle) + 90) % 360))
    return states
