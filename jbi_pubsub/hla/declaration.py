"""Declaration management: who publishes and who subscribes to what (IEEE 1516.1-2010, clause 5).

Of each federate and class: nothing -> published with some attributes -> more or fewer -> nothing; the same for
subscriptions, and for interaction classes. Subscribing makes what exists known: the federate discovers the instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from immutables import Map

from . import objects, ownership, regions
from .execution import Boxes, Handles, ServiceCall, put_entry
from .fom import checked_attributes, interaction_class, object_class, update_rate

# -- object classes -------------------------------------------------------------------------------------------------


def publish_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate may register instances of the class and own these attributes; adds to what it publishes (clause
    5.2)."""
    _set_attributes(call, "published", cls, attributes, is_in=True)
    ownership.offer_unowned(call, cls)


def unpublish_object_class(call: ServiceCall, cls: int) -> None:
    """The federate publishes nothing of the class; what it owned of its instances is unowned (clause 5.3)."""
    unpublish_object_class_attributes(call, cls, object_class(call.model.fom, cls).members)


def unpublish_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate publishes these no more; what it owned of them is unowned."""
    ownership.lose_unpublished(call, cls, _set_attributes(call, "published", cls, attributes, is_in=False))


def subscribe_object_class_attributes(
    call: ServiceCall, cls: int, attributes: Handles, rate: str = "", passive: bool = False,
    areas: Mapping[int, Boxes] | None = None,
) -> None:  # fmt: skip
    """The federate hears of instances of the class and those below it, and of these attributes; adds to what it
    subscribes to, and says of these anew how often it wants them, and whether others are advised of it (clause 5.6).
    `areas`: their regions, each of which has its own answer to that."""
    hertz = update_rate(call.model.fom, rate) if rate else 0.0
    areas = areas or dict.fromkeys(attributes, regions.DEFAULT)
    regions.use(call, "subscribed", cls, areas)
    _set_attributes(call, "subscribed", cls, attributes, is_in=True)
    _say(call, cls, areas, hertz, passive=passive)
    objects.discover(call, call.federate, call.execution.instances.by_handle, cls)


def unsubscribe_object_class(call: ServiceCall, cls: int) -> None:
    unsubscribe_object_class_attributes(call, cls, object_class(call.model.fom, cls).members)


def unsubscribe_object_class_attributes(
    call: ServiceCall, cls: int, attributes: Handles, areas: Mapping[int, Boxes] | None = None
) -> None:
    """The federate hears nothing of these attributes, but in other regions."""
    areas = areas or dict.fromkeys(attributes, regions.DEFAULT)
    _set_attributes(call, "subscribed", cls, regions.unuse(call, "subscribed", cls, areas), is_in=False)
    _say(call, cls, areas, 0.0, passive=False)


def get_update_rate_value_for_attribute(call: ServiceCall, instance: int, attribute: int) -> float:
    """The answer is how often a second the federate wants the attribute at most; 0.0: always (clause 10.14)."""
    known = call.known_class(instance, may_leave=True)
    checked_attributes(known, (attribute,))
    return regions.rate_of(call.execution, call.federate, known.handle, attribute)


def _say(call: ServiceCall, cls: int, areas: Mapping[int, Boxes], rate: float, *, passive: bool) -> None:
    """Note how often the federate wants attributes, and whether others are advised of it, in each of their regions."""
    uses = [(each, area) for each, boxes in areas.items() for area in boxes]
    _note(call, "rates", {(cls, *use): rate for use in uses})
    _note(call, "passive", {("o", cls, *use): passive for use in uses})


def _note(call: ServiceCall, table: str, said: dict[Any, float | bool]) -> None:
    """Some of what the federate says beside its subscriptions; of what is 0 nothing is kept."""
    declared = getattr(call.execution.declared, table)
    before = own = declared.get(call.federate, Map())
    for key, value in said.items():
        own = put_entry(own, key, value)
    if own is not before:
        call.change("declared", **{table: put_entry(declared, call.federate, own)})


def _set_attributes(call: ServiceCall, table: str, cls: int, attributes: Handles, *, is_in: bool) -> Handles:
    """Add attributes of a class, or take them out; which they are, checked."""
    said = checked_attributes(object_class(call.model.fom, cls), attributes)
    declared = getattr(call.execution.declared, table)
    own = declared.get(call.federate, Map())
    had = set(own.get(cls, ()))
    own = put_entry(own, cls, tuple(sorted(had.union(said) if is_in else had.difference(said))))
    call.change("declared", **{table: put_entry(declared, call.federate, own)})
    return said


# -- interaction classes --------------------------------------------------------------------------------------------


def publish_interaction_class(call: ServiceCall, cls: int) -> None:
    _set_class(call, "sends", cls, is_in=True)


def unpublish_interaction_class(call: ServiceCall, cls: int) -> None:
    _set_class(call, "sends", cls, is_in=False)


def subscribe_interaction_class(
    call: ServiceCall, cls: int, passive: bool = False, boxes: Boxes = regions.DEFAULT  # a service's argument
) -> None:  # fmt: skip
    """The federate gets interactions of the class and those below it; nobody is advised of it who subscribes passively
    (clause 5.8). `boxes`: in which regions."""
    regions.use(call, "hears", cls, {0: boxes})
    _set_class(call, "hears", cls, is_in=True)
    _note(call, "passive", {("i", cls, 0, area): passive for area in boxes})


def unsubscribe_interaction_class(call: ServiceCall, cls: int, boxes: Boxes = regions.DEFAULT) -> None:
    if regions.unuse(call, "hears", cls, {0: boxes}):
        _set_class(call, "hears", cls, is_in=False)
    _note(call, "passive", {("i", cls, 0, area): False for area in boxes})


def _set_class(call: ServiceCall, table: str, cls: int, *, is_in: bool) -> None:
    interaction_class(call.model.fom, cls)
    declared = getattr(call.execution.declared, table)
    classes = set(declared.get(call.federate, ()))
    classes = classes | {cls} if is_in else classes - {cls}
    call.change("declared", **{table: put_entry(declared, call.federate, tuple(sorted(classes)))})


# -- switches -------------------------------------------------------------------------------------------------------


def set_convey_producing_federate_switch(call: ServiceCall, on: bool) -> None:  # a service's argument
    told = call.execution.declared.conveyed
    call.change("declared", conveyed=put_entry(told, call.federate, on))
