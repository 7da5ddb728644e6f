"""Transportation types: whether what a federate sends may be lost (IEEE 1516.1-2010, clauses 6.23 to 6.30).

The object model says it at first. The owner of an instance attribute, or who publishes an interaction class, may change
it for what it sends from then on; with another owner it is again what the model says.
"""

from __future__ import annotations

from . import objects, ownership
from .execution import Handles, ServiceCall
from .fom import checked_attributes, interaction_class


def request_attribute_transportation_type_change(
    call: ServiceCall, instance: int, attributes: Handles, transportation: int
) -> None:
    owned = ownership.owned_by(call, instance, attributes)
    changed = call.execution.instances.transports.update({(instance, each): transportation for each in owned})
    call.change("instances", transports=changed)
    call.tell(call.federate, "confirm_attribute_transportation_type_change", instance, owned, transportation)


def query_attribute_transportation_type(call: ServiceCall, instance: int, attribute: int) -> None:
    checked_attributes(call.known_class(instance, may_leave=True), (attribute,))
    found = objects.transportation_of(call, instance, attribute)
    call.tell(call.federate, "report_attribute_transportation_type", instance, attribute, found)


def request_interaction_transportation_type_change(call: ServiceCall, cls: int, transportation: int) -> None:
    objects.published_class(call, cls)
    call.change("instances", sends=call.execution.instances.sends.set((call.federate, cls), transportation))
    call.tell(call.federate, "confirm_interaction_transportation_type_change", cls, transportation)


def query_interaction_transportation_type(call: ServiceCall, federate: int, cls: int) -> None:
    """The type of a federate's interactions, by a callback (clause 6.29). Of one who is not there it is what the model
    says: nobody is told who else there is."""
    found = objects.interactions_go_by(call, federate, interaction_class(call.model.fom, cls))
    call.tell(call.federate, "report_interaction_transportation_type", federate, cls, found)
