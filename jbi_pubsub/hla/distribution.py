"""Data distribution management: in which regions of the model's dimensions values are, and in which they are wanted
(IEEE 1516.1-2010, clause 9).

A region: created -> its bounds set, and committed -> used for updates, subscriptions, interactions -> used no more ->
deleted. It has all of its dimensions until other bounds are committed, and what it has not is not limited. An attribute
of an instance is in the regions of its owner; those that another federate associates count when it owns the attribute.

What takes a region raises InvalidRegion and RegionNotCreatedByThisFederate; what uses some, InvalidRegionContext, too.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from . import declaration, objects
from .exceptions import (
    AttributeNotPublished,
    InvalidRangeBound,
    InvalidRegion,
    InvalidRegionContext,
    RegionDoesNotContainSpecifiedDimension,
    RegionInUseForUpdateOrSubscription,
    RegionNotCreatedByThisFederate,
    RtiInternalError,
)
from .execution import Boxes, Handles, Region, ServiceCall, Values, put_entry
from .fom import Class, checked_attributes, dimension_at, interaction_class, object_class
from .regions import DEFAULT, meets, unuse, use

REGIONS_MOST: Final = 10_000
"""Regions of a federate."""

Pairs = tuple[tuple[int, int], ...]
"""Attributes, each with a region."""

# -- regions --------------------------------------------------------------------------------------------------------


def create_region(call: ServiceCall, dimensions: Handles) -> int:
    box = tuple((each, 0, dimension_at(call.model.fom, each).upper) for each in sorted(set(dimensions)))
    if len(call.execution.regions.made.get(call.federate, ())) >= REGIONS_MOST:
        raise RtiInternalError(f"the federate has {REGIONS_MOST:,} regions", hint="Delete some, or change their bounds")
    handle = call.next_handle()
    _keep(call, handle, Region(box, box))
    return handle


def get_dimension_handle_set(call: ServiceCall, region: int) -> Handles:
    return tuple(each for each, _, _ in _own(call, region).bounds)


def get_range_bounds(call: ServiceCall, region: int, dimension: int) -> Handles:
    found = {each: bounds for each, *bounds in _own(call, region).bounds}
    if dimension not in found:
        raise RegionDoesNotContainSpecifiedDimension(
            f"region {region} has no dimension {dimension}", hint="Take one that it was created with", handle=dimension
        )
    return tuple(found[dimension])


def set_range_bounds(call: ServiceCall, region: int, dimension: int, lower: int, upper: int) -> None:
    get_range_bounds(call, region, dimension)
    most = dimension_at(call.model.fom, dimension).upper
    if not lower < upper <= most:
        raise InvalidRangeBound(f"no range: {lower} to {upper}", hint=f"Give 0 <= lower < upper <= {most}")
    found = _own(call, region)
    rest = (each for each in found.bounds if each[0] != dimension)
    _keep(call, region, found._replace(bounds=tuple(sorted((*rest, (dimension, lower, upper))))))


def commit_region_modifications(call: ServiceCall, regions: Handles) -> None:
    moved = {each: _own(call, each) for each in regions}
    for each, region in moved.items():
        _keep(call, each, region._replace(committed=region.bounds))
    used = before = call.execution.regions.used
    changed: dict[int, Boxes] = {}  # what was one stays one: so it is compared at once
    places = sorted({place for region in moved.values() for place in region.uses})
    for place in places:
        boxes = before[place]
        if id(boxes) not in changed:
            changed[id(boxes)] = boxes.update({each: moved[each].bounds for each in boxes if each in moved})
        used = used.set(place, changed[id(boxes)])
    call.change("regions", used=used)
    call.moved.extend({at for kind, _, at, _ in places if kind == "update"})
    for cls in sorted({at for kind, _, at, _ in places if kind == "subscribed"}):
        objects.discover(call, call.federate, call.execution.instances.by_handle, cls)


def delete_region(call: ServiceCall, region: int) -> None:
    if uses := _own(call, region).uses:
        raise RegionInUseForUpdateOrSubscription(
            f"region {region} is used {len(uses)} times", hint="Unassociate it, and unsubscribe with it"
        )
    made = call.execution.regions.made
    call.change("regions", made=put_entry(made, call.federate, made[call.federate].delete(region)))


def _keep(call: ServiceCall, handle: int, region: Region) -> None:
    made = call.execution.regions.made
    call.change("regions", made=made.set(call.federate, made.get(call.federate, Map()).set(handle, region)))


def _own(call: ServiceCall, region: int) -> Region:
    made = call.execution.regions.made
    found = made.get(call.federate, Map()).get(region)
    if found is None:
        error = RegionNotCreatedByThisFederate if any(region in each for each in made.values()) else InvalidRegion
        raise error(f"the federate has no region {region}", hint="Take what create_region returned", handle=region)
    return found


def _boxes(call: ServiceCall, regions: Handles, available: tuple[str, ...]) -> Boxes:
    """Regions where these dimensions are available."""
    boxes = {each: _own(call, each).committed for each in regions}
    for region, box in boxes.items():
        if wrong := {call.model.fom.dimensions[each - 1].name for each, _, _ in box}.difference(available):
            raise InvalidRegionContext(
                f"region {region} has the dimension {min(wrong)}, which is not available there",
                hint=f"Take a region of {', '.join(available) or 'no dimension'}",
                handle=region,
            )
    return Map(boxes)


def _areas(call: ServiceCall, kind: Class, pairs: Pairs) -> dict[int, Boxes]:
    """Regions by attribute of a class."""
    found: dict[int, set[int]] = {}
    for attribute, region in pairs:
        found.setdefault(attribute, set()).add(region)
    attributes, shared = call.model.fom.attributes, dict[Boxes, Boxes]()  # as in commit_region_modifications
    made = {
        each: _boxes(call, tuple(found[each]), attributes[each - 1].dimensions)
        for each in checked_attributes(kind, tuple(found))
    }
    return {each: shared.setdefault(boxes, boxes) for each, boxes in made.items()}


# -- objects --------------------------------------------------------------------------------------------------------


def register_object_instance_with_regions(call: ServiceCall, cls: int, pairs: Pairs, name: str = "") -> int:
    areas = _areas(call, object_class(call.model.fom, cls), pairs)
    handle = objects.register_object_instance(call, cls, name, areas)
    if wrong := set(areas).difference(call.execution.declared.publishes(call.federate, cls)):
        named = call.model.fom.attributes[min(wrong) - 1].name
        raise AttributeNotPublished(
            f"the federate does not publish {named}", hint="Publish it first", handle=min(wrong)
        )
    return handle


def associate_regions_for_updates(call: ServiceCall, instance: int, pairs: Pairs) -> None:
    use(call, "update", instance, _areas(call, call.known_class(instance), pairs))
    call.moved.append(instance)


def unassociate_regions_for_updates(call: ServiceCall, instance: int, pairs: Pairs) -> None:
    """Attributes are there no more; with the last region they have the default one (clause 9.7)."""
    unuse(call, "update", instance, _areas(call, call.known_class(instance), pairs))
    call.moved.append(instance)


def subscribe_object_class_attributes_with_regions(
    call: ServiceCall, cls: int, pairs: Pairs, rate: str = "", passive: bool = False
) -> None:
    if areas := _areas(call, object_class(call.model.fom, cls), pairs):
        declaration.subscribe_object_class_attributes(call, cls, tuple(areas), rate, passive, areas)


def unsubscribe_object_class_attributes_with_regions(call: ServiceCall, cls: int, pairs: Pairs) -> None:
    """The federate discovers at a class above what these regions hid, where it wants nothing of the class any more."""
    areas, hidden = _areas(call, object_class(call.model.fom, cls), pairs), objects.hidden(call, cls)
    declaration.unsubscribe_object_class_attributes(call, cls, tuple(areas), areas)
    objects.discover(call, call.federate, hidden)


def request_attribute_value_update_with_regions(call: ServiceCall, cls: int, pairs: Pairs, tag: bytes = b"") -> None:
    areas = _areas(call, object_class(call.model.fom, cls), pairs)
    by_handle, owned, used = call.execution.instances.by_handle, call.execution.owned, call.execution.regions.used
    for at in sorted(by_handle):
        if cls in call.model.fom.objects[by_handle[at].cls - 1].above:
            sent = {each: used.get(("update", owned.owner(at, each), at, each), DEFAULT) for each in areas}
            objects.ask_owners(call, at, tuple(each for each in areas if meets(sent[each], areas[each])), tag)


# -- interactions ---------------------------------------------------------------------------------------------------


def subscribe_interaction_class_with_regions(
    call: ServiceCall, cls: int, regions: Handles, passive: bool = False
) -> None:
    if boxes := _boxes(call, regions, interaction_class(call.model.fom, cls).dimensions):
        declaration.subscribe_interaction_class(call, cls, passive, boxes)


def unsubscribe_interaction_class_with_regions(call: ServiceCall, cls: int, regions: Handles) -> None:
    boxes = _boxes(call, regions, interaction_class(call.model.fom, cls).dimensions)
    declaration.unsubscribe_interaction_class(call, cls, boxes)


def send_interaction_with_regions(
    call: ServiceCall, cls: int, parameters: Values, regions: Handles, tag: bytes = b"", time: float | None = None
) -> int:
    boxes = _boxes(call, regions, interaction_class(call.model.fom, cls).dimensions)
    return objects.send_interaction(call, cls, parameters, tag, time, boxes or DEFAULT)
