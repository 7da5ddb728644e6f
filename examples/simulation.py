"""A federate of `jbi demo hla`, a process of its own: it flies aircraft, moves weather, or looks at what comes.

It plays to a plan: a point "start", steps of logical time, a point "half" and a save, more steps, a point "end", a
restore, and the steps behind the save once more. What it has is a function of time, so that its state is its time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Final

from jbi_pubsub import Config
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples.federation import PATIENCE, application, say
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.encoding import Encoding
from jbi_pubsub.hla.execution import Values
from jbi_pubsub.hla.federate import FederateAmbassador

LEADER: Final = "flights"
"""Federate that registers points, and asks for the save and the restore."""
LOOKAHEAD: Final = 1.0
SAVED: Final = "half"

Row = tuple[float, str, tuple[tuple[str, float], ...]]
"""Time, name of the instance, and values by attribute."""

OWNS: Final[dict[str, tuple[str, dict[str, tuple[float, ...]]]]] = {
    "flights": (
        "Aircraft",
        {
            "LH441": (50.03, 2.10, 0.11, 0.62, 31_000.0, 120.0, 1000.0),
            "BA117": (53.91, 4.27, -0.23, 0.41, 35_000.0, -90.0, 2341.0),
            "AF006": (48.77, 9.83, 0.37, -0.29, 28_000.0, 210.0, 7221.0),
        },
    ),
    "storms": ("Cell", {"front": (51.3, 5.1, 0.07, 0.13, 40_000.0), "squall": (49.1, 8.2, 0.21, -0.05, 15_000.0)}),
}
"""By role: a class, and for each instance where it is at time 0, how that changes in a step, and what else it has."""
SEES: Final = {("radar", "Air"): "Hazard", ("forecast", "Weather"): "Traffic", ("radar", "One"): "Cell",
               ("forecast", "One"): "Aircraft", ("tower", "Air"): "Aircraft", ("tower", "One"): "Aircraft"}  # fmt: skip
"""By role and federation: a class."""
SECTOR: Final = (5005, 5200)
"""Region of the tower, which sees nothing else: hundredths of a degree of latitude."""


def state(role: str, name: str, at: float) -> dict[str, float]:
    """Values of an instance at a time."""
    latitude, longitude, north, east, *more = OWNS[role][1][name]
    if role == "flights":
        height, climb, squawk = more
        return {"lat": latitude + north * at, "lon": longitude + east * at, "altitude": height + climb * at,
                "squawk": squawk}  # fmt: skip
    phi, theta = math.radians(latitude + north * at), math.radians(longitude + east * at)
    return {"phi": phi, "lambda": theta, "extent": more[0] + 500.0 * at}


def latitude(state: dict[str, float]) -> int:
    """Coordinate of an aircraft in the dimension of regions."""
    return int(100 * state["lat"])


class Simulation(FederateAmbassador):
    """Federate that keeps what it was told."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.attributes: dict[int, tuple[str, Encoding]] = {}
        """Name and encoding, by handle."""
        self.rows: list[Row] = []
        self.now = 0.0
        self.heard: set[tuple[str, str]] = set()

    def discover_object_instance(self, instance: int, cls: int, name: str) -> None:  # noqa: ARG002  # the standard's
        self.names[instance] = name

    def reflect_attribute_values(
        self,
        instance: int,
        values: Values,
        tag: bytes,  # noqa: ARG002  # as above
        time: float | None,
        retraction: int,  # noqa: ARG002  # as above
    ) -> None:
        found = []
        for handle, data in values:
            name, encoding = self.attributes[handle]
            found.append((name, float(encoding.decode(data))))
        self.rows.append((-1.0 if time is None else time, self.names[instance], tuple(sorted(found))))

    def time_advance_grant(self, time: float) -> None:
        self.now = time

    def time_regulation_enabled(self, time: float) -> None:  # noqa: ARG002  # as above
        self.heard.add(("enabled", "regulation"))

    def time_constrained_enabled(self, time: float) -> None:  # noqa: ARG002  # as above
        self.heard.add(("enabled", "constrained"))

    def announce_synchronization_point(self, label: str, tag: bytes) -> None:  # noqa: ARG002  # as above
        self.heard.add(("announced", label))

    def federation_synchronized(self, label: str) -> None:
        self.heard.add(("synchronized", label))

    def initiate_federate_save(self, label: str, time: float | None) -> None:  # noqa: ARG002  # as above
        self.heard.add(("save", label))

    def federation_saved(self, label: str) -> None:
        self.heard.add(("saved", label))

    def initiate_federate_restore(self, label: str, name: str, handle: int) -> None:  # noqa: ARG002  # as above
        self.heard.add(("restore", label))

    def federation_restored(self, label: str) -> None:
        self.heard.add(("restored", label))

    def connection_lost(self, reason: str) -> None:
        raise DemoError(f"the federation is lost: {reason}")


class Player:
    """Plays a role."""

    def __init__(self, rti: RTIAmbassador, role: str, federation: str) -> None:
        self.rti, self.role = rti, role
        self.told = Simulation()
        rti.connect(self.told)
        rti.join_federation_execution(federation, role, timeout=PATIENCE)
        self.own: dict[str, int] = {}
        self.regions: dict[str, int] = {}
        """Regions that flights are in."""
        self.encodings: dict[str, tuple[int, Encoding]] = {}
        if role in OWNS:
            cls = rti.get_object_class_handle(OWNS[role][0])
            names = state(role, next(iter(OWNS[role][1])), 0.0)
            self.encodings = {name: self._encoded(rti.get_attribute_handle(cls, name)) for name in names}
            rti.publish_object_class_attributes(cls, [handle for handle, _ in self.encodings.values()])
            self.own = {name: rti.register_object_instance(cls, name) for name in OWNS[role][1]}
            for name, instance in self.own.items() if role == "flights" else ():
                self.regions[name] = rti.create_region([rti.get_dimension_handle("Latitude")])
                places = [(self.encodings[each][0], self.regions[name]) for each in ("lat", "lon")]
                rti.associate_regions_for_updates(instance, places)
            rti.enable_time_regulation(LOOKAHEAD)
            self.until(("enabled", "regulation"))
        else:
            self._look(SEES[role, federation])
        rti.enable_time_constrained()
        self.until(("enabled", "constrained"))

    def _look(self, cls_name: str) -> None:
        cls = self.rti.get_object_class_handle(cls_name)
        members = [each for each in self.rti.fom.objects[cls - 1].members if each != self.rti.fom.privilege]
        for handle in members:
            self.told.attributes[handle] = self.rti.get_attribute_name(cls, handle), self._encoded(handle)[1]
        if self.role == "tower":
            region = self.rti.create_region([self.rti.get_dimension_handle("Latitude")])
            self._place(region, *SECTOR)
            places = [(self.rti.get_attribute_handle(cls, each), region) for each in ("lat", "lon")]
            self.rti.subscribe_object_class_attributes_with_regions(cls, places)
        else:
            self.rti.subscribe_object_class_attributes(cls, members)

    def _place(self, region: int, lower: int, upper: int) -> None:
        """Where a region is from now on."""
        self.rti.set_range_bounds(region, self.rti.get_dimension_handle("Latitude"), lower, upper)
        self.rti.commit_region_modifications([region])

    def _encoded(self, attribute: int) -> tuple[int, Encoding]:
        fom = self.rti.fom
        return attribute, fom.codec(fom.attributes[attribute - 1].data_type)

    def until(self, what: tuple[str, str]) -> None:
        """Until it was told that."""
        self._wait(lambda: what in self.told.heard, " ".join(what))
        self.told.heard.discard(what)

    def _wait(self, good: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not good():
            if time.monotonic() > deadline:
                raise DemoError(f"{self.role} has waited {PATIENCE:g} s for {what}")
            self.rti.evoke_callback(0.2)

    def meet(self, label: str) -> None:
        """A synchronization point of all federates, of both federations."""
        if self.role == LEADER:
            self.rti.register_federation_synchronization_point(label)
        self.until(("announced", label))
        self.rti.synchronization_point_achieved(label)
        self.until(("synchronized", label))

    def fly(self, begin: int, end: int) -> None:
        """Steps of logical time."""
        for step in range(begin, end):
            for name, instance in self.own.items():
                values, now = {}, state(self.role, name, step + 1.0)
                if name in self.regions:
                    self._place(self.regions[name], latitude(now), latitude(now) + 1)
                for attribute, value in now.items():
                    handle, encoding = self.encodings[attribute]
                    values[handle] = encoding.encode(int(value) if attribute == "squawk" else value)
                self.rti.update_attribute_values(instance, values, time=step + 1.0)
            self.rti.time_advance_request(step + 1.0)
            self._wait(lambda wanted=step + 1.0: self.told.now == wanted, f"time {step + 1}")  # type: ignore[misc]

    def save(self) -> None:
        """All save."""
        if self.role == LEADER:
            self.rti.request_federation_save(SAVED)
        self.until(("save", SAVED))
        self.rti.federate_save_begun()
        self.rti.federate_save_complete()
        self.until(("saved", SAVED))

    def restore(self, to: float) -> None:
        """All go back."""
        if self.role == LEADER:
            self.rti.request_federation_restore(SAVED)
        self.until(("restore", SAVED))
        self.told.now = to
        self.rti.federate_restore_complete()
        self.until(("restored", SAVED))


def play(config: Config, role: str, federation: str, count: str) -> None:
    """The whole plan."""
    steps = int(count)
    half = steps // 2
    with RTIAmbassador(config) as rti:
        player = Player(rti, role, federation)
        say(ready=role)
        sys.stdin.readline()  # all are there
        player.meet("start")
        player.fly(0, half)
        player.meet("half")
        player.save()
        player.fly(half, steps)
        player.meet("end")
        first = len(player.told.rows)
        player.restore(float(half))
        player.fly(half, steps)
        player.meet("over")
        say(rows=player.told.rows, first=first)
        sys.stdin.readline()


if __name__ == "__main__":
    sys.exit(application(play))
