"""Declaration management: who publishes and who subscribes to what (IEEE 1516.1-2010, clause 5).

Of each federate and class: nothing -> published with some attributes -> more or fewer -> nothing; the same for
subscriptions, and for interaction classes. Subscribing makes what exists known: the federate discovers the instances.
"""

from __future__ import annotations

from immutables import Map

from . import objects, ownership
from .execution import Attributes, Execution, Model, Step
from .fom import checked_attributes, interaction_class, object_class

# -- object classes -------------------------------------------------------------------------------------------------


def publish_object_class_attributes(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> Step:
    """The federate may register instances of the class and own these attributes; adds to what it publishes (clause
    5.2). Raises InvalidObjectClassHandle, AttributeNotDefined."""
    wanted = checked_attributes(object_class(model.fom, cls), attributes)
    declared = execution.declared
    published = _with(declared.published, federate, cls, declared.publishes(federate, cls), wanted)
    execution = execution._replace(declared=declared._replace(published=published))
    return ownership.offered(model, execution, federate, cls)


def unpublish_object_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate publishes nothing of the class; what it owned of its instances is unowned (clause 5.3). Raises as
    unpublish_object_class_attributes."""
    known = object_class(model.fom, cls)
    return unpublish_object_class_attributes(model, execution, federate, cls, known.members)


def unpublish_object_class_attributes(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> Step:
    """The federate publishes these no more; what it owned of them is unowned. Raises as
    publish_object_class_attributes, and OwnershipAcquisitionPending while it waits for one of them."""
    unwanted = checked_attributes(object_class(model.fom, cls), attributes)
    declared = execution.declared
    published = _less(declared.published, federate, cls, declared.publishes(federate, cls), unwanted)
    execution = execution._replace(declared=declared._replace(published=published))
    execution, told = ownership.unpublished(model, execution, federate, cls, unwanted)
    return Step(execution, None, told)


def subscribe_object_class_attributes(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> Step:
    """The federate hears of instances of the class and those below it, and of these attributes; adds to what it
    subscribes to (clause 5.6). Raises InvalidObjectClassHandle, AttributeNotDefined."""
    wanted = checked_attributes(object_class(model.fom, cls), attributes)
    declared = execution.declared
    subscribed = _with(declared.subscribed, federate, cls, declared.subscribes(federate, cls), wanted)
    execution = execution._replace(declared=declared._replace(subscribed=subscribed))
    return objects.discovered(model, execution, federate, cls)


def unsubscribe_object_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate hears nothing of the class; what it knows stays known (clause 5.7)."""
    known = object_class(model.fom, cls)
    return unsubscribe_object_class_attributes(model, execution, federate, cls, known.members)


def unsubscribe_object_class_attributes(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> Step:
    """The federate hears nothing of these attributes. Raises as subscribe_object_class_attributes."""
    unwanted = checked_attributes(object_class(model.fom, cls), attributes)
    declared = execution.declared
    subscribed = _less(declared.subscribed, federate, cls, declared.subscribes(federate, cls), unwanted)
    return Step(execution._replace(declared=declared._replace(subscribed=subscribed)))


def _with(
    table: Map[int, Attributes], federate: int, cls: int, there: tuple[int, ...], more: tuple[int, ...]
) -> Map[int, Attributes]:
    whole = tuple(sorted({*there, *more}))
    return table.set(federate, table.get(federate, Map()).set(cls, whole))


def _less(
    table: Map[int, Attributes], federate: int, cls: int, there: tuple[int, ...], unwanted: tuple[int, ...]
) -> Map[int, Attributes]:
    gone = set(unwanted)
    left = tuple(each for each in there if each not in gone)
    of_federate = table.get(federate, Map())
    if left:
        return table.set(federate, of_federate.set(cls, left))
    if cls not in of_federate:
        return table
    rest = of_federate.delete(cls)
    return table.set(federate, rest) if rest else table.delete(federate)


# -- interaction classes --------------------------------------------------------------------------------------------


def publish_interaction_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate may send interactions of the class (clause 5.4). Raises InvalidInteractionClassHandle."""
    interaction_class(model.fom, cls)
    sends = _and(execution.declared.sends, federate, cls)
    return Step(execution._replace(declared=execution.declared._replace(sends=sends)))


def unpublish_interaction_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate sends none any more (clause 5.5)."""
    interaction_class(model.fom, cls)
    sends = _but(execution.declared.sends, federate, cls)
    return Step(execution._replace(declared=execution.declared._replace(sends=sends)))


def subscribe_interaction_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate gets interactions of the class and those below it (clause 5.8)."""
    interaction_class(model.fom, cls)
    hears = _and(execution.declared.hears, federate, cls)
    return Step(execution._replace(declared=execution.declared._replace(hears=hears)))


def unsubscribe_interaction_class(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """The federate gets none any more (clause 5.9)."""
    interaction_class(model.fom, cls)
    hears = _but(execution.declared.hears, federate, cls)
    return Step(execution._replace(declared=execution.declared._replace(hears=hears)))


def _and(table: Map[int, tuple[int, ...]], federate: int, cls: int) -> Map[int, tuple[int, ...]]:
    return table.set(federate, tuple(sorted({*table.get(federate, ()), cls})))


def _but(table: Map[int, tuple[int, ...]], federate: int, cls: int) -> Map[int, tuple[int, ...]]:
    left = tuple(each for each in table.get(federate, ()) if each != cls)
    if left:
        return table.set(federate, left)
    return table.delete(federate) if federate in table else table
