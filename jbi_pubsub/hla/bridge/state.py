"""The value of a bridge between two federations, and one turn of changing it.

A bridge is two surrogates, each an ordinary federate that stands for everything on the other side, two links, and the
transformation manager between them (Bridging the HLA, section 3). Here it is a value, as an execution is: what a
surrogate hears goes into a link, what leaves a link is a call on the far side.

    callback -> heard -> link -> due -> forwarded -> calls -> answered or refused

`side` is 0 or 1, and `1 - side` the other one; a link is named by the side it comes from.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, TypeVar

from immutables import Map

from .policy import Solutions
from .translation import Translation

Key = tuple[str, int, str, int]
"""Key of what is agreed on: "sync", "save" or "restore", the side where it began (0 for saves and restores, which are
the same on both), its label there, and a number: a label is free again on one side while it is not yet on the other."""

T = TypeVar("T")

NOTHING: Final[Map[Any, Any]] = Map()
EVERYTHING: Final = ("everything",)
"""Stream of what overtakes nothing."""


class Plan(NamedTuple):
    """Constants of a bridge's life."""

    names: tuple[str, str]
    """Names of the federations, by side."""
    policy: Solutions
    translation: Translation
    couples: bool = False
    """Time advances on both sides together."""
    lookahead: float = 1e-3
    """Lookahead of the surrogates, in seconds of logical time."""
    reordered: bool = False
    """Links do not keep the order of control entries. (For those who explore what comes of it.)"""
    forwards: bool = True
    """A federation that is done without its surrogate having been the last one says so. (As above.)"""


class Entry(NamedTuple):
    """Entry that goes over a link."""

    kind: str
    """request, completed, reopened, failed, aborted; discover, update, interaction, remove, provide; acquire, withdraw,
    granted, denied, offer;
    call: one that could not be made while its federation was saved or restored."""
    arguments: tuple[Any, ...]
    key: Key | None = None
    """Key of what is agreed on."""
    stream: tuple[Any, ...] = ()
    """Data entries of one stream keep their order, EVERYTHING that with all before it; () for control."""
    after: tuple[Key, ...] = ()
    """Rounds that have to be over on the far side first."""
    time: float | None = None
    """Its time stamp."""


class Link(NamedTuple):
    """From one side to the other."""

    control: tuple[Entry, ...] = ()
    data: tuple[Entry, ...] = ()


class Part(NamedTuple):
    """One federation's part in an agreement."""

    label: str = ""
    """Label there."""
    state: str = ""
    """"": not asked; asked; accepted; blocked: something else goes on there; announced; consented: by its surrogate;
    over."""
    sent: bool = False
    """That all others there have consented was sent to the other side."""
    far: str = ""
    """The other side's word: "", done, failed, aborted or withdrawn."""
    ok: bool = True
    """Whether it has ended well there."""


class Round(NamedTuple):
    """An agreement under way."""

    parts: tuple[Part, Part]
    tag: bytes = b""
    name: str = ""
    """Name of the set of federates for whom a point is."""


class Twin(NamedTuple):
    """An object instance as one side knows it."""

    cls: int
    twin: int = 0
    """Its handle on the other side; 0: it is not there, or not yet."""
    held: tuple[int, ...] = ()
    """Attributes that the surrogate here owns."""
    was_there: bool = False
    """Whether it was there before the surrogate: what it was told of its values before nobody knows here."""


class Pace(NamedTuple):
    """A surrogate's time."""

    alone: float = -1.0
    """The least time stamp that can still come from there if nothing goes there, as it was told last; below 0: it was
    not."""
    time: float = 0.0
    state: str = "off"
    """off, enabling, granted, advancing."""
    stale: bool = False
    """Whether its request was refused, since its federation is saved or restored."""
    delay: float = math.inf
    """The least time from a message that goes there until one that comes of it."""
    reached: float = 0.0
    """Time of the foremost of those there."""
    promised: float = 0.0
    """The surrogate sends nothing there below that time."""
    lookahead: float = 0.0
    """By which it says so; 0: it says it anew."""
    sent: tuple[float, ...] = ()
    """Time stamps, rising, of messages that went there, of which that was told without them, or may have been: none
    below what the surrogate may send, as the RTI has told last."""


class Bridge(NamedTuple):
    """See the module."""

    links: tuple[Link, Link] = (Link(), Link())
    rounds: Map[Key, Round] = Map()
    busy: tuple[str, str] = ("", "")
    """Labels of a save or restore that goes on; "?": one of which nothing was heard yet."""
    settled: tuple[bool, bool] = (False, False)
    """Whether what there was when the surrogate came is known."""
    objects: Map[tuple[int, int], Twin] = Map()
    """By side and handle."""
    values: Map[tuple[int, int], Map[int, bytes]] = Map()
    """The last values of what came from a side, as they are there, where the bridge remembers them."""
    asked: Map[tuple[int, int, int], tuple[str, bytes]] = Map()
    """By side, instance and attribute: why it is asked whether it is owned, and a tag."""
    unowned: Map[tuple[int, int], tuple[int, ...]] = Map()
    """Attributes of an instance of a side that nobody owns there, as the RTI of the other side is told."""
    claims: Map[tuple[int, int], Map[int, str]] = Map()
    """Attributes that a federate of a side wants and the surrogate there owns: why the surrogate asks for them on the
    other side: release, or confirm."""
    retractions: Map[tuple[int, int], int] = Map()
    """Handles of messages that came with a time stamp from a side, and what they are on the other."""
    deleted: Map[tuple[int, int], tuple[int, float]] = Map()
    """By side and retraction handle: an instance that is deleted at a time on both sides, which may be taken back."""
    paces: tuple[Pace, Pace] = (Pace(), Pace())
    kept: Map[str, Bridge] = Map()
    """States under way when both sides saved, by label."""
    order: tuple[str, ...] = ()
    """These labels, the oldest first."""
    counters: Map[str, int] = Map()
    """For people; what a bridge does never depends on them."""


KEPT: Final = (Bridge, Entry, Link, Pace, Part, Round, Twin)
"""The kinds of values that a bridge is made of."""


class Call(NamedTuple):
    """A service that a surrogate is to call."""

    side: int
    service: str
    arguments: tuple[Any, ...] = ()
    entry: Entry | None = None
    """Entry that it comes from."""
    about: tuple[Any, ...] = ()
    """For whoever gets its answer."""


def changed(pair: tuple[T, T], side: int, value: T) -> tuple[T, T]:
    """Pair of both sides' values, with another value of one."""
    return (value, pair[1]) if side == 0 else (pair[0], value)


class Turn:
    """One turn of a bridge: changed in place, and closed to a value and the calls that are to be made."""

    def __init__(self, plan: Plan, bridge: Bridge) -> None:
        self.plan, self.bridge = plan, bridge
        self.calls: list[Call] = []

    def done(self) -> tuple[Bridge, tuple[Call, ...]]:
        """The turn is over."""
        return self.bridge, tuple(self.calls)

    def set(self, **fields: Any) -> None:
        """Change some fields."""
        self.bridge = self.bridge._replace(**fields)

    def call(self, side: int, service: str, *arguments: Any, entry: Entry | None = None, about: Any = ()) -> None:
        """To be called."""
        self.calls.append(Call(side, service, arguments, entry, about))

    def count(self, name: str, number: int = 1) -> None:
        """For people."""
        if number:
            counters = self.bridge.counters
            self.set(counters=counters.set(name, counters.get(name, 0) + number))

    def put(self, side: int, entry: Entry) -> None:
        """Into the link from a side. What may only happen once something is over waits for that."""
        after = self.over_here_alone(side) if entry.kind not in ("completed", "failed", "aborted", "reopened") else ()
        if after and self.plan.policy.barrier == "smart":
            self.count("buffered")
        queue = "data" if entry.stream else "control"
        link = self.bridge.links[side]
        self.set_link(side, link._replace(**{queue: (*getattr(link, queue), entry._replace(after=after))}))

    def put_back(self, side: int, entry: Entry) -> None:
        """In front of the link from a side."""
        queue = "data" if entry.stream else "control"
        link = self.bridge.links[side]
        self.set_link(side, link._replace(**{queue: (entry, *getattr(link, queue))}))

    def set_link(self, side: int, link: Link) -> None:
        """Set the link from a side."""
        self.set(links=changed(self.bridge.links, side, link))

    def over_here_alone(self, side: int) -> tuple[Key, ...]:
        """Rounds that are over on a side, and not on the other one."""
        rounds = self.bridge.rounds
        return tuple(
            key for key in sorted(rounds) if rounds[key].parts[side].state == "over" and rounds[key].parts[side].ok
        )

    # -- agreements ----------------------------------------------------------------------------------------------

    def part(self, key: Key, side: int) -> Part:
        """Part of a round on a side."""
        return self.bridge.rounds[key].parts[side]

    def set_part(self, key: Key, side: int, **fields: Any) -> Part:
        """Change it."""
        found = self.bridge.rounds[key]
        part = found.parts[side]._replace(**fields)
        parts = changed(found.parts, side, part)
        self.set(rounds=self.bridge.rounds.set(key, found._replace(parts=parts)))
        return part

    def set_busy(self, side: int, label: str) -> None:
        """Something goes on there in which nothing else can be done; "": it is over."""
        self.set(busy=changed(self.bridge.busy, side, label))

    # -- objects -------------------------------------------------------------------------------------------------

    def twin(self, side: int, instance: int) -> Twin:
        """Twin of an instance; an empty one if the bridge does not know it."""
        return self.bridge.objects.get((side, instance), _NO_TWIN)

    def set_twin(self, side: int, instance: int, **fields: Any) -> None:
        """Change it, if it is known."""
        objects = self.bridge.objects
        if (side, instance) in objects:
            self.set(objects=objects.set((side, instance), objects[side, instance]._replace(**fields)))

    def set_pace(self, side: int, **fields: Any) -> Pace:
        """Change it."""
        pace = self.bridge.paces[side]._replace(**fields)
        self.set(paces=changed(self.bridge.paces, side, pace))
        return pace


_NO_TWIN: Final = Twin(0)
