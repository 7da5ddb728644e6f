"""Object management: instances, their values, interactions (IEEE 1516.1-2010, clause 6).

An instance, for each federate:  unknown -> discovered (at the lowest class that it subscribes to) -> removed
A message:                       sent -> told at once (receive order), or given to time management (time-stamp order)

The object model says whether what a federate sends may be lost. The owner of an instance attribute, or who publishes an
interaction class, may change it for what it sends from then on (clauses 6.23 to 6.30); with another owner it is again
what the model says.

An RTI keeps no values: who wants what was sent before asks the owner for it. Own, where the standard leaves room: an
instance that is deleted at a logical time is gone for its owner, and its name free, at once; it is there again when the
deletion is retracted. Who waits for that time gets values of it, sends those of what it owns, without regions and as
the model says, and may ask what it is. A name need not be reserved to be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from immutables import Map

from . import clock, ownership, regions
from .exceptions import (
    DeletePrivilegeNotHeld,
    IllegalName,
    InteractionClassNotPublished,
    InteractionParameterNotDefined,
    MessageCanNoLongerBeRetracted,
    ObjectClassNotPublished,
    ObjectInstanceNameInUse,
    ObjectInstanceNameNotReserved,
)
from .execution import (
    Attributes,
    Boxes,
    Callback,
    DeletedInstance,
    Handles,
    Instance,
    Owned,
    ServiceCall,
    Values,
    only_first,
    put_entry,
    without_first,
)
from .fom import BEST_EFFORT, Class, Order, checked_attributes, interaction_class, object_class

RESERVED_MOST: Final = 100_000
"""Names that are reserved at once in a federation; at more a reservation fails."""

# -- instances ------------------------------------------------------------------------------------------------------


def register_object_instance(
    call: ServiceCall, cls: int, name: str = "", areas: Mapping[int, Boxes] = MappingProxyType({})
) -> int:
    """An instance comes to be, owned by the federate as far as it publishes the class; the answer is its handle (clause
    6.8). `areas`: regions of attributes."""
    kind = object_class(call.model.fom, cls)
    declared, instances = call.execution.declared, call.execution.instances
    published = declared.publishes(call.federate, cls)
    if not published:
        raise ObjectClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_object_class_attributes first"
        )
    handle, made = call.next_name("HLAobject", instances.by_name)
    name = name or made
    if not _is_free(call, name):
        raise ObjectInstanceNameInUse(
            f"an object instance is called {name[:200]!r}, or somebody has reserved that", hint="Take another name"
        )
    owned = tuple(sorted({*published, call.model.fom.privilege}))
    heard = {call.federate: cls}
    call.execution = call.execution._replace(owned=call.execution.owned.given(handle, owned, call.federate))
    regions.use(call, "update", handle, areas)
    for each in sorted(declared.subscribed):
        at = 0 if each == call.federate else _seen_as(call, each, handle, kind.above)
        if at:
            heard[each] = at
            call.tell(each, "discover_object_instance", handle, at, name)
    call.change(
        "instances",
        by_handle=instances.by_handle.set(handle, Instance(cls, name, Map(heard))),
        by_name=instances.by_name.set(name, handle),
        reserved=instances.reserved.delete(name) if name in instances.reserved else instances.reserved,
    )
    ownership.offer_rest(call, handle, kind, owned)
    return handle


def _is_free(call: ServiceCall, name: str) -> bool:
    """Whether the federate may give an instance that name."""
    instances = call.execution.instances
    return name not in instances.by_name and instances.reserved.get(name, call.federate) == call.federate


def reserve_object_instance_name(call: ServiceCall, name: str) -> None:
    _reserve(call, (name,), "object_instance_name_reservation", name)


def reserve_multiple_object_instance_names(call: ServiceCall, names: tuple[str, ...]) -> None:
    _reserve(call, names, "multiple_object_instance_name_reservation", names)


def _reserve(call: ServiceCall, names: tuple[str, ...], callback: str, told: str | tuple[str, ...]) -> None:
    if wrong := [each for each in names if not each or each.startswith("HLA")] or not names:
        raise IllegalName(f"names that can't be reserved: {wrong}"[:300], hint="Give names that do not begin with HLA")
    reserved = call.execution.instances.reserved
    succeeds = len(reserved) + len(names) <= RESERVED_MOST and all(
        _is_free(call, each) and each not in reserved for each in names
    )
    if succeeds:
        call.change("instances", reserved=reserved.update(dict.fromkeys(names, call.federate)))
    call.tell(call.federate, f"{callback}_{'succeeded' if succeeds else 'failed'}", told)


def release_multiple_object_instance_names(call: ServiceCall, names: tuple[str, ...]) -> None:
    reserved = call.execution.instances.reserved
    for each in names:
        if reserved.get(each) != call.federate:
            raise ObjectInstanceNameNotReserved(
                f"the federate has not reserved {each[:200]!r}, or has given it", hint="There is nothing to release"
            )
        reserved = reserved.delete(each)
    call.change("instances", reserved=reserved)


def _seen_as(call: ServiceCall, federate: int, instance: int, above: Handles) -> int:
    """The lowest class, of an instance's class and those above it, that a federate subscribes to; 0: there is none, or
    its regions there have no attribute of the instance (clause 6.9)."""
    subscribed = call.execution.declared.subscribed.get(federate, Map())
    at = next((each for each in above if each in subscribed), 0)
    limits, owned = call.execution.regions, call.execution.owned
    if not limits.used or not at or not subscribed[at]:
        return at
    is_seen = any(
        regions.reaches(limits, owned.owner(instance, each), instance, each, (federate, at)) for each in subscribed[at]
    )
    return at if is_seen else 0


def hidden(call: ServiceCall, cls: int) -> Handles:
    """Instances of a class, or one below it, that the federate does not see for its regions."""
    objects, found = call.model.fom.objects, call.execution.instances.by_handle.items()
    above = {at: objects[each.cls - 1].above for at, each in found if call.federate not in each.known}
    return tuple(at for at in above if cls in above[at] and not _seen_as(call, call.federate, at, above[at]))


def discover(call: ServiceCall, federate: int, handles: Iterable[int], cls: int = 1) -> None:
    """A federate discovers those of the instances that it does not know, and subscribes to, and may assume what is
    unowned of them. `cls`: that or a class below it is theirs."""
    by_handle = call.execution.instances.by_handle
    for handle in sorted(handles):
        instance = by_handle.get(handle)
        if instance is None or federate in instance.known:
            continue
        above = call.model.fom.objects[instance.cls - 1].above
        at = _seen_as(call, federate, handle, above) if cls in above else 0
        if at:
            by_handle = by_handle.set(handle, instance._replace(known=instance.known.set(federate, at)))
            call.tell(federate, "discover_object_instance", handle, at, instance.name)
            ownership.offer_of(call, federate, handle, at)
    call.change("instances", by_handle=by_handle)


def discover_moved(call: ServiceCall) -> None:
    """Instances that have other owners or regions come to be seen by some."""
    for federate in sorted(call.execution.declared.subscribed) if call.moved and call.execution.regions.used else ():
        discover(call, federate, call.moved)


def delete_object_instance(call: ServiceCall, instance: int, tag: bytes = b"", time: float | None = None) -> int:
    found, privilege = call.known(instance), call.model.fom.privilege
    if call.execution.owned.owner(instance, privilege) != call.federate:
        raise DeletePrivilegeNotHeld(
            f"the federate does not own HLAprivilegeToDeleteObject of {found.name}", hint="Acquire it first"
        )
    if time is None or not clock.is_ordered(call, time) or _order(call, instance, privilege) != "timestamp":
        _remove_now(call, (instance,), tag, time)
        return 0
    retraction = call.next_handle()
    deleted, paces = _deleted(call, instance, found), call.execution.clock
    waiting = {each: cls for each, cls in found.known.items() if paces.pace(each).is_constrained}
    waiting.pop(call.federate, None)
    receivers = _delete(call, instance, tag, time, retraction, waiting)
    clock.send_in_order(call, time, retraction, receivers, deleted)
    return retraction


def _deleted(call: ServiceCall, instance: int, found: Instance) -> DeletedInstance:
    """All of an instance that is going to be deleted."""
    owned, instances = call.execution.owned, call.execution.instances
    return DeletedInstance(
        instance, found, owned.owners[instance],
        divesting=owned.divesting.get(instance, Map()), claims=owned.claims.get(instance, Map()),
        declared=owned.declared.get(instance, Map()),
        orders=only_first(instances.orders, instance), transports=only_first(instances.transports, instance),
        used=regions.uses_of(call, instance, found.known),
    )  # fmt: skip


def reinstate(call: ServiceCall, deleted: DeletedInstance) -> None:
    """The instance is there again, as its deletion is retracted; who has left has nothing of it, and who has subscribed
    meanwhile discovers it. Raises MessageCanNoLongerBeRetracted when its name is taken."""
    handle, found = deleted.handle, deleted.instance
    if not _is_free(call, found.name):
        raise MessageCanNoLongerBeRetracted(
            f"another object instance is called {found.name[:200]!r}", hint="Retract earlier"
        )
    instances, owned, joined = call.execution.instances, call.execution.owned, call.execution.members.joined
    known = Map({each: cls for each, cls in found.known.items() if each in joined})
    call.change(
        "instances",
        by_handle=instances.by_handle.set(handle, found._replace(known=known)),
        by_name=instances.by_name.set(found.name, handle),
        orders=instances.orders.update(deleted.orders), transports=instances.transports.update(deleted.transports),
        leaving=instances.leaving.delete(handle) if handle in instances.leaving else instances.leaving,
    )  # fmt: skip
    said = {name: getattr(deleted, name) for name in Owned._fields}
    call.change("owned", **{name: put_entry(getattr(owned, name), handle, each) for name, each in said.items()})
    regions.reuse(call, deleted.used)
    ownership.drop_absent(call, handle)
    for each in sorted(call.execution.declared.subscribed):
        discover(call, each, (handle,))


def _delete(
    call: ServiceCall, instance: int, tag: bytes, time: float | None, retraction: int = 0,
    waiting: Mapping[int, int] = MappingProxyType({}),
) -> clock.Receivers:  # fmt: skip
    """The instance is not there any more, but for those who wait for its removal; who is to be told."""
    instances = call.execution.instances
    found = instances.by_handle[instance]
    regions.forget(call, instance, found.known)
    call.change(
        "instances",
        by_handle=instances.by_handle.delete(instance), by_name=instances.by_name.delete(found.name),
        orders=without_first(instances.orders, instance), transports=without_first(instances.transports, instance),
        leaving=instances.leaving.set(instance, found._replace(known=Map(waiting))) if waiting else instances.leaving,
    )  # fmt: skip
    call.execution = call.execution._replace(owned=call.execution.owned.without(instance, waiting))
    callback = Callback("remove_object_instance", (instance, tag, time, retraction))
    return tuple((each, callback) for each in sorted(found.known) if each != call.federate)


def _remove_now(call: ServiceCall, instances: Handles, tag: bytes, time: float | None) -> None:
    """Instances are gone, in receive order, and with them what waits of them for anybody."""
    told, waiting = set[int](), call.execution.clock.waiting
    for each in instances:
        receivers = _delete(call, each, tag, time)
        clock.send_as_received(call, receivers)
        told.update(to for to, _ in receivers)
    for to in sorted(told):
        clock.forget(call, to, instances)
    if call.execution.clock.waiting is not waiting:
        clock.settle(call)


def delete_all(call: ServiceCall) -> None:
    """The federate resigns, and takes the instances with it that it may delete."""
    owned, privilege = call.execution.owned, call.model.fom.privilege
    mine = (each for each in sorted(owned.owners) if owned.owner(each, privilege) == call.federate)
    _remove_now(call, tuple(mine), b"", None)


def local_delete_object_instance(call: ServiceCall, instance: int) -> None:
    """The federate forgets an instance, until it subscribes to its class anew (clause 6.16), and what waits of it."""
    found, by_handle = call.known(instance, may_leave=True), call.execution.instances.by_handle
    ownership.check_has_none(call, instance, found.name)
    if instance in by_handle:
        regions.forget(call, instance, (call.federate,))
        forgotten = found._replace(known=found.known.delete(call.federate))
        call.change("instances", by_handle=by_handle.set(instance, forgotten))
    held = call.execution.clock.held
    left = tuple(each for each in held.get(call.federate, ()) if not each.is_about((instance,)))
    call.change("clock", held=put_entry(held, call.federate, left))
    clock.forget(call, call.federate, (instance,))
    clock.settle(call)


def get_object_instance_name(call: ServiceCall, instance: int) -> str:
    return call.known(instance, may_leave=True).name


def get_object_instance_handle(call: ServiceCall, name: str) -> int:
    handle = call.execution.instances.by_name.get(name, 0)
    call.known(handle)
    return handle


def get_known_object_class_handle(call: ServiceCall, instance: int) -> int:
    return call.known(instance, may_leave=True).known[call.federate]


# -- values ---------------------------------------------------------------------------------------------------------


def update_attribute_values(
    call: ServiceCall, instance: int, values: Values, tag: bytes = b"", time: float | None = None
) -> int:
    """New values of attributes that the federate owns; the answer is a retraction handle, 0 when nothing of it goes in
    time-stamp order (clause 6.10)."""
    found = call.known(instance, may_leave=True)
    attributes = tuple(each for each, _ in values)
    owners = call.execution.owned.owners.get(instance)
    for each in attributes:
        if owners is None or owners.get(each) != call.federate:
            checked_attributes(call.model.fom.objects[found.cls - 1], (each,))
            raise ownership.not_owned(call, found, each)
    if not clock.is_ordered(call, time) or time is None:
        _send_as_received(call, instance, values, tag, time)
        return 0
    ordered = tuple(v for v in values if _order(call, instance, v[0]) == "timestamp")
    rest = tuple(v for v in values if v not in ordered) if len(ordered) < len(values) else ()
    if rest:
        _send_as_received(call, instance, rest, tag, time)
    if not ordered:
        return 0
    handle = call.next_handle()
    clock.send_in_order(call, time, handle, _reflections(call, instance, ordered, tag, time, handle))
    return handle


def _send_as_received(call: ServiceCall, instance: int, values: Values, tag: bytes, time: float | None) -> None:
    """Values that go reliably, and those that do not, apart."""
    best = tuple(each for each in values if transportation_of(call, instance, each[0]) == BEST_EFFORT)
    if best:
        receivers = _reflections(call, instance, best, tag, time, 0)
        clock.send_as_received(call, tuple((to, _with_rates(call, to, each)) for to, each in receivers))
        values = tuple(each for each in values if each not in best)
    if values:
        clock.send_as_received(call, _reflections(call, instance, values, tag, time, 0))


def transportation_of(call: ServiceCall, instance: int, attribute: int) -> int:
    """The type of an instance's attribute."""
    changed = call.execution.instances.transports
    return changed.get((instance, attribute)) or call.model.fom.attributes[attribute - 1].transportation


def interactions_go_by(call: ServiceCall, federate: int, kind: Class) -> int:
    """The type of a federate's interactions of a class."""
    return call.execution.instances.sends.get((federate, kind.handle)) or kind.transportation


def _with_rates(call: ServiceCall, to: int, callback: Callback) -> Callback:
    """A reflection that may be lost, and the update rates of its receiver."""
    instance, values, *_ = callback.arguments
    at = call.known(instance, may_leave=True).known[to]
    has_any = to in call.execution.declared.rates
    rates = tuple(regions.rate_of(call.execution, to, at, each) for each, _ in values) if has_any else ()
    return callback._replace(is_best_effort=True, rates=rates)


def _order(call: ServiceCall, instance: int, attribute: int) -> Order:
    changed = call.execution.instances.orders.get((instance, attribute))
    return changed or call.model.fom.attributes[attribute - 1].order


def _reflections(
    call: ServiceCall, instance: int, values: Values, tag: bytes, time: float | None, retraction: int
) -> clock.Receivers:
    attributes = tuple(each for each, _ in values)
    made = []
    whole = Callback("reflect_attribute_values", (instance, values, tag, time, retraction))
    known, limits = call.known(instance, may_leave=True).known, call.execution.regions
    for federate, wanted in _reached(call.execution.declared.subscribed, known, attributes):
        if federate == call.federate:
            continue
        if limits.used:
            reader = federate, known[federate]
            wanted = tuple(each for each in wanted if regions.reaches(limits, call.federate, instance, each, reader))
            if not wanted:
                continue
        if len(wanted) == len(attributes):
            made.append((federate, whole))
        else:
            some = tuple(each for each in values if each[0] in wanted)
            made.append((federate, Callback("reflect_attribute_values", (instance, some, tag, time, retraction))))
    return tuple(made)


@lru_cache(maxsize=4096)  # maps keep their hash, so that one answer serves all instances that the same federates know
def _reached(
    subscribed: Map[int, Attributes], known: Map[int, int], attributes: Handles
) -> tuple[tuple[int, Handles], ...]:
    """Federates that get values of some attributes, and of which."""
    found = []
    for federate in sorted(known):
        wanted = subscribed.get(federate, Map()).get(known[federate], ())
        both = tuple(each for each in attributes if each in wanted)
        if both:
            found.append((federate, both))
    return tuple(found)


def request_attribute_value_update(call: ServiceCall, instance: int, attributes: Handles, tag: bytes = b"") -> None:
    ask_owners(call, instance, checked_attributes(call.known_class(instance, may_leave=True), attributes), tag)


def request_class_attribute_value_update(call: ServiceCall, cls: int, attributes: Handles, tag: bytes = b"") -> None:
    wanted = checked_attributes(object_class(call.model.fom, cls), attributes)
    by_handle = call.execution.instances.by_handle
    for handle in sorted(by_handle):
        if cls in call.model.fom.objects[by_handle[handle].cls - 1].above:
            ask_owners(call, handle, wanted, tag)


def ask_owners(call: ServiceCall, instance: int, attributes: Handles, tag: bytes) -> None:
    """The owners of attributes of an instance are asked for values."""
    owners: dict[int, list[int]] = {}
    unowned = call.execution.owned.declared.get(instance, ())
    for each in attributes:
        owner = call.execution.owned.owner(instance, each)
        if owner and owner != call.federate and each not in unowned:
            owners.setdefault(owner, []).append(each)
    for owner in sorted(owners):
        call.tell(owner, "provide_attribute_value_update", instance, tuple(owners[owner]), tag)


def change_attribute_order_type(call: ServiceCall, instance: int, attributes: Handles, order: Order) -> None:
    orders = call.execution.instances.orders
    for each in ownership.owned_by(call, instance, attributes):
        orders = orders.set((instance, each), order)
    call.change("instances", orders=orders)


# -- interactions ---------------------------------------------------------------------------------------------------


def send_interaction(
    call: ServiceCall, cls: int, parameters: Values, tag: bytes = b"", time: float | None = None,
    boxes: Boxes = regions.DEFAULT,
) -> int:  # fmt: skip
    """An interaction, for who subscribes to its class or one above it; the answer is a retraction handle, 0 in receive
    order (clause 6.12). `boxes`: its regions."""
    kind = published_class(call, cls)
    for handle, _ in parameters:
        if handle not in kind.members:
            raise InteractionParameterNotDefined(
                f"{kind.name} has no parameter with the handle {handle}",
                hint="Take get_parameter_handle",
                handle=handle,
            )
    order = call.execution.instances.sent.get((call.federate, cls)) or kind.order
    is_ordered = clock.is_ordered(call, time) and order == "timestamp"
    retraction = call.next_handle() if is_ordered else 0
    is_best_effort = not is_ordered and interactions_go_by(call, call.federate, kind) == BEST_EFFORT
    receivers = []
    for each, at in _hearing(call.execution.declared.hears, kind.above):
        wanted = call.execution.regions.used.get(("hears", each, at, 0), regions.DEFAULT)
        if each != call.federate and regions.meets(boxes, wanted):
            fits = call.model.fom.interactions[at - 1].members
            some = parameters if at == cls else tuple(v for v in parameters if v[0] in fits)
            said = (at, some, tag, time, retraction)
            receivers.append((each, Callback("receive_interaction", said, is_best_effort)))
    if is_ordered and time is not None:
        clock.send_in_order(call, time, retraction, tuple(receivers))
    else:
        clock.send_as_received(call, tuple(receivers))
    return retraction


def published_class(call: ServiceCall, cls: int) -> Class:
    """An interaction class that the federate publishes."""
    kind = interaction_class(call.model.fom, cls)
    if cls not in call.execution.declared.sends.get(call.federate, ()):
        raise InteractionClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_interaction_class first"
        )
    return kind


@lru_cache(maxsize=4096)
def _hearing(hears: Map[int, Handles], above: Handles) -> tuple[tuple[int, int], ...]:
    """Federates that get interactions of a class, and as which: the lowest class that each subscribes to."""
    found = []
    for federate in sorted(hears):
        at = next((each for each in above if each in hears[federate]), None)
        if at is not None:
            found.append((federate, at))
    return tuple(found)


def change_interaction_order_type(call: ServiceCall, cls: int, order: Order) -> None:
    published_class(call, cls)
    call.change("instances", sent=call.execution.instances.sent.set((call.federate, cls), order))


# -- transportation types -------------------------------------------------------------------------------------------


def request_attribute_transportation_type_change(
    call: ServiceCall, instance: int, attributes: Handles, transportation: int
) -> None:
    owned = ownership.owned_by(call, instance, attributes)
    changed = call.execution.instances.transports.update({(instance, each): transportation for each in owned})
    call.change("instances", transports=changed)
    call.tell(call.federate, "confirm_attribute_transportation_type_change", instance, owned, transportation)


def query_attribute_transportation_type(call: ServiceCall, instance: int, attribute: int) -> None:
    checked_attributes(call.known_class(instance, may_leave=True), (attribute,))
    found = transportation_of(call, instance, attribute)
    call.tell(call.federate, "report_attribute_transportation_type", instance, attribute, found)


def request_interaction_transportation_type_change(call: ServiceCall, cls: int, transportation: int) -> None:
    published_class(call, cls)
    call.change("instances", sends=call.execution.instances.sends.set((call.federate, cls), transportation))
    call.tell(call.federate, "confirm_interaction_transportation_type_change", cls, transportation)


def query_interaction_transportation_type(call: ServiceCall, federate: int, cls: int) -> None:
    """The type of a federate's interactions, by a callback (clause 6.29). Of one who is not there it is what the model
    says: nobody is told who else there is."""
    found = interactions_go_by(call, federate, interaction_class(call.model.fom, cls))
    call.tell(call.federate, "report_interaction_transportation_type", federate, cls, found)
