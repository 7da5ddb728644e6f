"""Object management: instances, their values, interactions (IEEE 1516.1-2010, clause 6).

An instance, for each federate:  unknown -> discovered (at the lowest class that it subscribes to) -> removed
A message:                       sent -> told at once (receive order), or given to time management (time-stamp order)

An RTI keeps no values: who wants what was sent before asks the owner for it. Own, where the standard leaves room: an
instance that is deleted at a logical time is gone for its owner, and its name free, at once; the deletion can't be
retracted.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from immutables import Map

from . import clock, ownership
from .exceptions import (
    AttributeNotOwned,
    DeletePrivilegeNotHeld,
    FederateOwnsAttributes,
    InteractionClassNotPublished,
    InteractionParameterNotDefined,
    InvalidArgument,
    ObjectClassNotPublished,
    ObjectInstanceNameInUse,
)
from .execution import Attributes, Callback, Execution, Instance, Model, Step, Told, Values, known, known_class, tell
from .fom import Order, checked_attributes, interaction_class, object_class

# -- instances ------------------------------------------------------------------------------------------------------


def register_object_instance(model: Model, execution: Execution, federate: int, cls: int, name: str = "") -> Step:
    """An instance comes to be, owned by the federate as far as it publishes the class; the answer is its handle (clause
    6.8). Raises InvalidObjectClassHandle, ObjectClassNotPublished, ObjectInstanceNameInUse."""
    kind = object_class(model.fom, cls)
    published = execution.declared.publishes(federate, cls)
    if not published:
        raise ObjectClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_object_class_attributes first"
        )
    handle = execution.handles + 1
    name = name or f"HLAobject-{handle}"
    if name in execution.instances.by_name:
        raise ObjectInstanceNameInUse(f"an object instance is called {name[:200]!r}", hint="Take another name")
    owned = tuple(sorted({*published, model.fom.privilege}))
    execution = execution._replace(handles=handle, owned=execution.owned.given(handle, owned, federate))
    heard = {federate: cls}
    told = []
    for each in sorted(execution.declared.subscribed):
        at = None if each == federate else _seen_as(execution.declared.subscribed[each], kind.above)
        if at is not None:
            heard[each] = at
            told.append(tell(each, "discover_object_instance", handle, at, name))
    instances = execution.instances._replace(
        by_handle=execution.instances.by_handle.set(handle, Instance(cls, name, Map(heard))),
        by_name=execution.instances.by_name.set(name, handle),
    )
    execution = execution._replace(instances=instances)
    execution, _, more = ownership.unowned_offered(model, execution, handle, kind, owned)
    return Step(execution, handle, (*told, *more))


def _seen_as(subscribed: Attributes, above: tuple[int, ...]) -> int | None:
    """The lowest class, of an instance's class and those above it, that is subscribed to."""
    return next((each for each in above if each in subscribed), None)


def discovered(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """A federate subscribes to a class: it discovers the instances that it does not know, and may assume what is
    unowned of them."""
    told = []
    by_handle = execution.instances.by_handle
    for handle in sorted(by_handle):
        instance = by_handle[handle]
        kind = model.fom.objects[instance.cls - 1]
        if federate in instance.known or cls not in kind.above:
            continue
        at = _seen_as(execution.declared.subscribed[federate], kind.above) or cls
        by_handle = by_handle.set(handle, instance._replace(known=instance.known.set(federate, at)))
        told.append(tell(federate, "discover_object_instance", handle, at, instance.name))
        told.extend(ownership.offer_of(model, execution, federate, handle, at))
    return Step(execution._replace(instances=execution.instances._replace(by_handle=by_handle)), None, tuple(told))


def delete_object_instance(
    model: Model, execution: Execution, federate: int, instance: int, tag: bytes = b"", time: float | None = None
) -> Step:
    """The instance is no more (clause 6.14). Raises ObjectInstanceNotKnown, DeletePrivilegeNotHeld,
    InvalidLogicalTime."""
    found = known(execution, federate, instance)
    if execution.owned.owner(instance, model.fom.privilege) != federate:
        raise DeletePrivilegeNotHeld(
            f"the federate does not own HLAprivilegeToDeleteObject of {found.name}", hint="Acquire it first"
        )
    ordered = clock.is_ordered(execution, federate, time) and _order(model, execution, instance, model.fom.privilege)
    receivers = tuple(
        (each, Callback("remove_object_instance", (instance, tag, time, 0)))
        for each in sorted(found.known)
        if each != federate
    )
    execution = without(execution, instance)
    if ordered == "timestamp" and time is not None:
        execution, told = clock.sent(execution, federate, time, 0, receivers)
        return Step(execution, 0, told)
    execution, told = clock.received(execution, receivers)
    return Step(execution, 0, told)


def without(execution: Execution, instance: int) -> Execution:
    """After an instance has been deleted."""
    instances = execution.instances
    orders = instances.orders
    for key in orders:
        if key[0] == instance:
            orders = orders.delete(key)
    instances = instances._replace(
        by_handle=instances.by_handle.delete(instance),
        by_name=instances.by_name.delete(instances.by_handle[instance].name),
        orders=orders,
    )
    return execution._replace(instances=instances, owned=execution.owned.without(instance))


def deleted_by(model: Model, execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    """A federate resigns, and takes the instances with it that it may delete."""
    told: list[Told] = []
    for instance in sorted(execution.owned.owners):
        if execution.owned.owner(instance, model.fom.privilege) == federate:
            receivers = tuple(
                (each, Callback("remove_object_instance", (instance, b"", None, 0)))
                for each in sorted(execution.instances.by_handle[instance].known)
                if each != federate
            )
            execution = without(execution, instance)
            execution, more = clock.received(execution, receivers)
            told.extend(more)
    return execution, tuple(told)


def local_delete_object_instance(model: Model, execution: Execution, federate: int, instance: int) -> Step:
    """The federate forgets an instance, until it subscribes to its class anew (clause 6.16). Raises
    ObjectInstanceNotKnown, FederateOwnsAttributes."""
    found = known(execution, federate, instance)
    if ownership.has_any(execution, federate, instance):
        raise FederateOwnsAttributes(
            f"the federate owns attributes of {found.name}, or waits for some", hint="Divest them first"
        )
    by_handle = execution.instances.by_handle.set(instance, found._replace(known=found.known.delete(federate)))
    return Step(execution._replace(instances=execution.instances._replace(by_handle=by_handle)))


def get_object_instance_name(model: Model, execution: Execution, federate: int, instance: int) -> Step:
    """The answer is the name of an instance. Raises ObjectInstanceNotKnown."""
    return Step(execution, known(execution, federate, instance).name)


def get_object_instance_handle(model: Model, execution: Execution, federate: int, name: str) -> Step:
    """The answer is the handle of an instance. Raises ObjectInstanceNotKnown."""
    handle = execution.instances.by_name.get(name, 0)
    known(execution, federate, handle)
    return Step(execution, handle)


def get_known_object_class_handle(model: Model, execution: Execution, federate: int, instance: int) -> Step:
    """The answer is the class at which the federate knows an instance. Raises ObjectInstanceNotKnown."""
    return Step(execution, known(execution, federate, instance).known[federate])


# -- values ---------------------------------------------------------------------------------------------------------


def update_attribute_values(
    model: Model, execution: Execution, federate: int, instance: int, values: Values, tag: bytes = b"",
    time: float | None = None,
) -> Step:  # fmt: skip
    """New values of attributes that the federate owns; the answer is a retraction handle, 0 when nothing of it goes in
    time-stamp order (clause 6.10). Raises ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned,
    InvalidLogicalTime."""
    found = known(execution, federate, instance)
    attributes = tuple(each for each, _ in values)
    owners = execution.owned.owners.get(instance)
    for each in attributes:
        if owners is None or owners.get(each) != federate:
            _refuse_update(model, found, each)
    if len(attributes) > 1 and any(a >= b for a, b in itertools.pairwise(attributes)):
        raise InvalidArgument("attributes come sorted by handle, each once", hint="Sort them")
    if not clock.is_ordered(execution, federate, time):
        execution, told = clock.received(
            execution, _reflections(execution, federate, found, instance, values, tag, time, 0)
        )
        return Step(execution, 0, told)
    ordered = tuple(v for v in values if _order(model, execution, instance, v[0]) == "timestamp")
    rest = tuple(v for v in values if v not in ordered) if len(ordered) < len(values) else ()
    everything: tuple[Told, ...] = ()
    handle = 0
    if rest:
        execution, everything = clock.received(
            execution, _reflections(execution, federate, found, instance, rest, tag, time, 0)
        )
    if ordered and time is not None:
        handle = execution.handles + 1
        receivers = _reflections(execution, federate, found, instance, ordered, tag, time, handle)
        execution, told = clock.sent(execution._replace(handles=handle), federate, time, handle, receivers)
        everything += told
    return Step(execution, handle, everything)


def _refuse_update(model: Model, found: Instance, attribute: int) -> None:
    checked_attributes(model.fom.objects[found.cls - 1], (attribute,))
    raise AttributeNotOwned(
        f"the federate does not own {model.fom.attributes[attribute - 1].name} of {found.name}",
        hint="Acquire it first",
        handle=attribute,
    )


def _order(model: Model, execution: Execution, instance: int, attribute: int) -> Order:
    changed = execution.instances.orders.get((instance, attribute))
    return changed or model.fom.attributes[attribute - 1].order


def _reflections(
    execution: Execution, sender: int, found: Instance, instance: int, values: Values, tag: bytes, time: float | None,
    retraction: int,
) -> tuple[tuple[int, Callback], ...]:  # fmt: skip
    attributes = tuple(each for each, _ in values)
    made = []
    whole = Callback("reflect_attribute_values", (instance, values, tag, time, retraction))
    for federate, wanted in _reached(execution.declared.subscribed, found.known, attributes):
        if federate == sender:
            continue
        if len(wanted) == len(attributes):
            made.append((federate, whole))
        else:
            some = tuple(each for each in values if each[0] in wanted)
            made.append((federate, Callback("reflect_attribute_values", (instance, some, tag, time, retraction))))
    return tuple(made)


@lru_cache(maxsize=4096)  # maps keep their hash, so that one answer serves all instances that the same federates know
def _reached(
    subscribed: Map[int, Attributes], known: Map[int, int], attributes: tuple[int, ...]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Who gets values of some attributes, and of which."""
    found = []
    for federate in sorted(known):
        wanted = subscribed.get(federate, Map()).get(known[federate], ())
        both = tuple(each for each in attributes if each in wanted)
        if both:
            found.append((federate, both))
    return tuple(found)


def request_attribute_value_update(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The owners are asked for values (clause 6.19). Raises ObjectInstanceNotKnown, AttributeNotDefined."""
    wanted = checked_attributes(known_class(model, execution, federate, instance), attributes)
    return Step(execution, None, _asked(execution, federate, instance, wanted, tag))


def request_class_attribute_value_update(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The owners of all instances of a class and those below it are asked for values. Raises InvalidObjectClassHandle,
    AttributeNotDefined."""
    wanted = checked_attributes(object_class(model.fom, cls), attributes)
    told: list[Told] = []
    for handle in sorted(execution.instances.by_handle):
        if cls in model.fom.objects[execution.instances.by_handle[handle].cls - 1].above:
            told.extend(_asked(execution, federate, handle, wanted, tag))
    return Step(execution, None, tuple(told))


def _asked(
    execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes
) -> tuple[Told, ...]:
    owners: dict[int, list[int]] = {}
    unowned = execution.owned.declared.get(instance, ())
    for each in attributes:
        owner = execution.owned.owner(instance, each)
        if owner and owner != federate and each not in unowned:
            owners.setdefault(owner, []).append(each)
    return tuple(
        tell(owner, "provide_attribute_value_update", instance, tuple(owners[owner]), tag) for owner in sorted(owners)
    )


def change_attribute_order_type(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], order: Order
) -> Step:
    """In which order values of attributes that the federate owns are delivered (clause 8.23). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned."""
    found = known(execution, federate, instance)
    orders = execution.instances.orders
    for each in checked_attributes(model.fom.objects[found.cls - 1], attributes):
        if execution.owned.owner(instance, each) != federate:
            _refuse_update(model, found, each)
        orders = orders.set((instance, each), order)
    return Step(execution._replace(instances=execution.instances._replace(orders=orders)))


# -- interactions ---------------------------------------------------------------------------------------------------


def send_interaction(
    model: Model, execution: Execution, federate: int, cls: int, parameters: Values, tag: bytes = b"",
    time: float | None = None,
) -> Step:  # fmt: skip
    """An interaction, for who subscribes to its class or one above it; the answer is a retraction handle, 0 in receive
    order (clause 6.12). Raises InvalidInteractionClassHandle, InteractionClassNotPublished,
    InteractionParameterNotDefined, InvalidLogicalTime."""
    kind = interaction_class(model.fom, cls)
    if cls not in execution.declared.sends.get(federate, ()):
        raise InteractionClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_interaction_class first"
        )
    for handle, _ in parameters:
        if handle not in kind.members:
            raise InteractionParameterNotDefined(
                f"{kind.name} has no parameter with the handle {handle}",
                hint="Take get_parameter_handle",
                handle=handle,
            )
    order = execution.instances.sent.get((federate, cls)) or kind.order
    is_ordered = clock.is_ordered(execution, federate, time) and order == "timestamp"
    retraction = execution.handles + 1 if is_ordered else 0
    receivers = []
    for each, at in _hearing(execution.declared.hears, kind.above):
        if each != federate:
            fits = model.fom.interactions[at - 1].members
            some = parameters if at == cls else tuple(v for v in parameters if v[0] in fits)
            receivers.append((each, Callback("receive_interaction", (at, some, tag, time, retraction))))
    if is_ordered and time is not None:
        execution = execution._replace(handles=retraction)
        execution, told = clock.sent(execution, federate, time, retraction, tuple(receivers))
    else:
        execution, told = clock.received(execution, tuple(receivers))
    return Step(execution, retraction, told)


@lru_cache(maxsize=4096)
def _hearing(hears: Map[int, tuple[int, ...]], above: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Who gets interactions of a class, and as which: the lowest class that each subscribes to."""
    found = []
    for federate in sorted(hears):
        at = next((each for each in above if each in hears[federate]), None)
        if at is not None:
            found.append((federate, at))
    return tuple(found)


def change_interaction_order_type(model: Model, execution: Execution, federate: int, cls: int, order: Order) -> Step:
    """In which order the federate's interactions of a class are delivered (clause 8.24). Raises
    InvalidInteractionClassHandle, InteractionClassNotPublished."""
    kind = interaction_class(model.fom, cls)
    if cls not in execution.declared.sends.get(federate, ()):
        raise InteractionClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_interaction_class first"
        )
    sent = execution.instances.sent.set((federate, cls), order)
    return Step(execution._replace(instances=execution.instances._replace(sent=sent)))
