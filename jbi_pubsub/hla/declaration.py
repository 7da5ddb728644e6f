"""Declaration management: who publishes and who subscribes to what (IEEE 1516.1-2010, clause 5).

Of each federate and class: nothing -> published with some attributes -> more or fewer -> nothing; the same for
subscriptions, and for interaction classes. Subscribing makes what exists known: the federate discovers the instances.
"""

from __future__ import annotations

from immutables import Map

from . import objects, ownership
from .execution import Handles, ServiceCall, put_entry
from .fom import checked_attributes, interaction_class, object_class

# -- object classes -------------------------------------------------------------------------------------------------


def publish_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate may register instances of the class and own these attributes; adds to what it publishes (clause
    5.2). Raises InvalidObjectClassHandle, AttributeNotDefined."""
    _add(call, "published", cls, attributes)
    ownership.offer_unowned(call, cls)


def unpublish_object_class(call: ServiceCall, cls: int) -> None:
    """The federate publishes nothing of the class; what it owned of its instances is unowned (clause 5.3). Raises as
    unpublish_object_class_attributes."""
    unpublish_object_class_attributes(call, cls, object_class(call.model.fom, cls).members)


def unpublish_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate publishes these no more; what it owned of them is unowned. Raises as
    publish_object_class_attributes, and OwnershipAcquisitionPending while it waits for one of them."""
    ownership.lose_unpublished(call, cls, _take_out(call, "published", cls, attributes))


def subscribe_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate hears of instances of the class and those below it, and of these attributes; adds to what it
    subscribes to (clause 5.6). Raises InvalidObjectClassHandle, AttributeNotDefined."""
    _add(call, "subscribed", cls, attributes)
    objects.discover(call, cls)


def unsubscribe_object_class(call: ServiceCall, cls: int) -> None:
    """The federate hears nothing of the class; what it knows stays known (clause 5.7)."""
    unsubscribe_object_class_attributes(call, cls, object_class(call.model.fom, cls).members)


def unsubscribe_object_class_attributes(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate hears nothing of these attributes. Raises as subscribe_object_class_attributes."""
    _take_out(call, "subscribed", cls, attributes)


def _add(call: ServiceCall, table: str, cls: int, attributes: Handles) -> None:
    wanted = checked_attributes(object_class(call.model.fom, cls), attributes)
    declared = getattr(call.execution.declared, table)
    own = declared.get(call.federate, Map())
    whole = tuple(sorted({*own.get(cls, ()), *wanted}))
    call.change("declared", **{table: declared.set(call.federate, own.set(cls, whole))})


def _take_out(call: ServiceCall, table: str, cls: int, attributes: Handles) -> Handles:
    """Which they are, checked."""
    unwanted = checked_attributes(object_class(call.model.fom, cls), attributes)
    declared = getattr(call.execution.declared, table)
    own = declared.get(call.federate, Map())
    gone = set(unwanted)
    left = put_entry(own, cls, tuple(each for each in own.get(cls, ()) if each not in gone))
    call.change("declared", **{table: put_entry(declared, call.federate, left)})
    return unwanted


# -- interaction classes --------------------------------------------------------------------------------------------


def publish_interaction_class(call: ServiceCall, cls: int) -> None:
    """The federate may send interactions of the class (clause 5.4). Raises InvalidInteractionClassHandle."""
    _set_class(call, "sends", cls, is_in=True)


def unpublish_interaction_class(call: ServiceCall, cls: int) -> None:
    """The federate sends none any more (clause 5.5)."""
    _set_class(call, "sends", cls, is_in=False)


def subscribe_interaction_class(call: ServiceCall, cls: int) -> None:
    """The federate gets interactions of the class and those below it (clause 5.8)."""
    _set_class(call, "hears", cls, is_in=True)


def unsubscribe_interaction_class(call: ServiceCall, cls: int) -> None:
    """The federate gets none any more (clause 5.9)."""
    _set_class(call, "hears", cls, is_in=False)


def _set_class(call: ServiceCall, table: str, cls: int, *, is_in: bool) -> None:
    interaction_class(call.model.fom, cls)
    declared = getattr(call.execution.declared, table)
    classes = set(declared.get(call.federate, ()))
    classes = classes | {cls} if is_in else classes - {cls}
    call.change("declared", **{table: put_entry(declared, call.federate, tuple(sorted(classes)))})


# -- switches -------------------------------------------------------------------------------------------------------


def set_convey_producing_federate_switch(call: ServiceCall, on: bool) -> None:  # a service's argument
    """The federate is told by whom what it gets was sent, from now on."""
    told = call.execution.declared.conveyed
    put = told.set(call.federate, True) if on else told.delete(call.federate) if call.federate in told else told
    call.change("declared", conveyed=put)
