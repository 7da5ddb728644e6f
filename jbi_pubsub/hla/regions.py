"""Regions: which of them overlap, and who is reached over that (IEEE 1516.1-2010, clause 9.1).

Regions overlap where their ranges do in each dimension that both have. An attribute or interaction without regions has
the default region, which overlaps all others. `Declared` has what a federate subscribes to, with regions or without;
`Regions` what is limited by regions, and 0 among them where it is subscribed to without any as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from immutables import Map

from .exceptions import RtiInternalError
from .execution import Box, Boxes, Execution, Handles, Regions, ServiceCall, Use

DEFAULT: Final[Boxes] = Map({0: ()})
"""The default region alone."""
AREAS_MOST: Final = 1_000
"""Regions of one use: of an attribute that is updated or subscribed to, of an interaction class."""

Ranges = dict[int, tuple[int, int]]


@lru_cache(maxsize=1024)
def index_of(boxes: Boxes) -> tuple[int, int, list[int], list[Box]]:
    """The boxes in the order of their lower bounds in the dimension that tells them apart best: the dimension (0: they
    have none in common), the widest range in it, the lower bounds, the boxes."""
    found = {box: _ranges(box) for box in boxes.values()}
    best = (2.0, 0, 0)
    for each in set.intersection(*map(set, found.values())):
        ranges = [box[each] for box in found.values()]
        widest = max(upper - lower for lower, upper in ranges)
        best = min(best, (widest / (max(upper for _, upper in ranges) - min(ranges)[0]), each, widest))
    _, at, widest = best
    lows = sorted((found[box].get(at, (0, 0))[0], box) for box in found)
    return at, widest, [low for low, _ in lows], [box for _, box in lows]


def _ranges(box: Box) -> Ranges:
    return {each: (lower, upper) for each, lower, upper in box}


@lru_cache(maxsize=4096)  # maps keep their hash
def meets(sent: Boxes, wanted: Boxes) -> bool:
    """Whether one of those that something is sent with overlaps one of those that are wanted."""
    if 0 in wanted or 0 in sent:
        return True
    at, widest, lows, boxes = index_of(wanted)
    for box in map(_ranges, sent.values()):
        near = boxes
        if at in box:
            near = boxes[bisect_right(lows, box[at][0] - widest) : bisect_left(lows, box[at][1])]
        if any(_overlap(one, box) for one in near):
            return True
    return False


def _overlap(one: Box, other: Ranges) -> bool:
    return all(each not in other or (a < other[each][1] and other[each][0] < b) for each, a, b in one)


def reaches(regions: Regions, owner: int, instance: int, attribute: int, reader: tuple[int, int]) -> bool:
    """Whether values of an attribute reach a federate, which subscribes to it at a class; `reader`: both."""
    wanted = regions.used.get(("subscribed", *reader, attribute))
    sent = regions.used.get(("update", owner, instance, attribute), DEFAULT)
    return wanted is None or (owner != 0 and meets(sent, wanted))


def is_passive(execution: Execution, federate: int, cls: int, attribute: int = 0) -> bool:
    """Whether nobody is advised of a federate's subscription to an attribute, or to an interaction class: those in all
    of its regions are passive."""
    passive = execution.declared.passive.get(federate)
    if passive is None:
        return False
    kind, what = ("subscribed", "o") if attribute else ("hears", "i")
    areas = execution.regions.used.get((kind, federate, cls, attribute), DEFAULT)
    return all((what, cls, attribute, area) in passive for area in areas)


def rate_of(execution: Execution, federate: int, cls: int, attribute: int) -> float:
    """Number of values of an attribute a second that a federate wants at most, by the highest rate of its regions; 0.0:
    all."""
    rates = execution.declared.rates.get(federate)
    if rates is None:
        return 0.0
    areas = execution.regions.used.get(("subscribed", federate, cls, attribute), DEFAULT)
    said = [rates.get((cls, attribute, area), 0.0) for area in areas]
    return max(said) if all(said) else 0.0


# -- uses -----------------------------------------------------------------------------------------------------------


def use(call: ServiceCall, kind: str, at: int, areas: Mapping[int, Boxes]) -> None:
    """The federate uses more regions, by attributes."""
    regions = call.execution.regions
    for attribute, boxes in areas.items():
        place = (kind, call.federate, at, attribute)
        if boxes is not DEFAULT or place in regions.used:
            regions = regions.put(place, _before(call, place).update(boxes))
            if len(regions.used.get(place, ())) > AREAS_MOST:
                raise RtiInternalError(f"more than {AREAS_MOST:,} regions in one use", hint="Take some wider ones")
    call.execution = call.execution._replace(regions=regions)


def unuse(call: ServiceCall, kind: str, at: int, areas: Mapping[int, Boxes]) -> Handles:
    """The federate uses these regions no more; the answer is for which attributes it uses none now."""
    regions, gone = call.execution.regions, []
    for attribute, boxes in areas.items():
        place = (kind, call.federate, at, attribute)
        left = Map({each: box for each, box in _before(call, place).items() if each not in boxes})
        regions = regions.put(place, left) if place in regions.used else regions
        gone += [attribute] if not left else []
    call.execution = call.execution._replace(regions=regions)
    return tuple(gone)


def _before(call: ServiceCall, place: Use) -> Boxes:
    """Regions of a use, the default region among them where it is subscribed to without regions."""
    kind, federate, at, attribute = place
    declared, found = call.execution.declared, call.execution.regions.used.get(place)
    if found is None and kind != "update":
        plain = declared.subscribed.get(federate, Map()).get(at, ()) if attribute else declared.hears.get(federate, ())
        return DEFAULT if (attribute or at) in plain else Map()
    return found or Map()


def uses_of(call: ServiceCall, instance: int, federates: Iterable[int]) -> Map[Use, Boxes]:
    """Uses of federates for updates of an instance."""
    used = call.execution.regions.used
    members = call.model.fom.objects[call.execution.instances.by_handle[instance].cls - 1].members
    places = (("update", one, instance, each) for one in federates for each in members if used)
    return Map({each: used[each] for each in places if each in used})


def forget(call: ServiceCall, instance: int, federates: Iterable[int]) -> None:
    """Regions are used for an instance no more: it is gone, or gone for these federates."""
    regions = call.execution.regions
    for place in uses_of(call, instance, federates):
        regions = regions.put(place, Map())
    call.execution = call.execution._replace(regions=regions)


def reuse(call: ServiceCall, uses: Map[Use, Boxes]) -> None:
    """Regions are used again as they were, those that are still there, with the bounds that they have now."""
    regions = call.execution.regions
    for place, boxes in uses.items():
        own = regions.made.get(place[1], Map())
        regions = regions.put(place, Map({each: own[each].committed for each in boxes if each in own}))
    call.execution = call.execution._replace(regions=regions)
