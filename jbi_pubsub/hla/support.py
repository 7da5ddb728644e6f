"""Support services: names and handles of what an object model has, switches (IEEE 1516.1-2010, clause 10)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from .encoding import Encoding, standard
from .exceptions import AttributeNotDefined, InteractionParameterNotDefined, NameNotFound, RtiError
from .fom import Class, Fom, Order, dimension_at, interaction_class, object_class, update_rate
from .services import ServiceCaller

T = TypeVar("T")


class TimeFactory(NamedTuple):
    """A kind of logical time (IEEE 1516.1-2010, 12.1): times are numbers, and these are the particular ones."""

    name: str
    codec: Encoding
    final: float
    """The last: who advances to it says that nothing follows."""
    epsilon: float
    """The smallest step."""
    initial: float = 0.0
    zero: float = 0.0


FLOAT_TIME: Final = TimeFactory("HLAfloat64Time", standard("HLAfloat64BE"), math.inf, math.ulp(0.0))
INTEGER_TIME: Final = TimeFactory("HLAinteger64Time", standard("HLAinteger64BE"), 2**53, 1, 0, 0)
"""Whole numbers are exact as times of an RTI as far as that."""


class SupportServices(ServiceCaller):
    """Services that tell, and those that switch."""

    @property
    @abstractmethod
    def fom(self) -> Fom:
        """The object model of the federation. Raises FederateNotExecutionMember."""

    @abstractmethod
    def _learned(self) -> bool:
        """Whether others that joined have added to the object model, which is known now."""

    def _looked(self, look: Callable[[Fom], T]) -> T:
        """The answer of the object model, or of what it is now. Raises what `look` raises."""
        try:
            return look(self.fom)
        except RtiError:
            if not self._learned():
                raise
        return look(self.fom)

    # -- names and handles --------------------------------------------------------------------------------------

    def get_object_class_handle(self, name: str) -> int:
        """With or without HLAobjectRoot (clause 10.6). Raises NameNotFound."""
        return self._looked(lambda fom: fom.object_class(name))

    def get_object_class_name(self, cls: int) -> str:
        """With those above it (clause 10.7). Raises InvalidObjectClassHandle."""
        return self._looked(lambda fom: object_class(fom, cls)).name

    def get_attribute_handle(self, cls: int, name: str) -> int:
        """Handle of an attribute of a class (clause 10.11). Raises NameNotFound."""
        return self._looked(lambda fom: fom.attribute(cls, name))

    def get_attribute_name(self, cls: int, attribute: int) -> str:
        """Raises InvalidObjectClassHandle, AttributeNotDefined (clause 10.12)."""
        self._looked(lambda fom: _check(object_class(fom, cls), attribute, AttributeNotDefined))
        return self.fom.attributes[attribute - 1].name

    def get_interaction_class_handle(self, name: str) -> int:
        """With or without HLAinteractionRoot (clause 10.15). Raises NameNotFound."""
        return self._looked(lambda fom: fom.interaction_class(name))

    def get_interaction_class_name(self, cls: int) -> str:
        """With those above it (clause 10.16). Raises InvalidInteractionClassHandle."""
        return self._looked(lambda fom: interaction_class(fom, cls)).name

    def get_parameter_handle(self, cls: int, name: str) -> int:
        """Handle of a parameter of a class (clause 10.17). Raises NameNotFound."""
        return self._looked(lambda fom: fom.parameter(cls, name))

    def get_parameter_name(self, cls: int, parameter: int) -> str:
        """Raises InvalidInteractionClassHandle, InteractionParameterNotDefined (clause 10.18)."""
        self._looked(lambda fom: _check(interaction_class(fom, cls), parameter, InteractionParameterNotDefined))
        return self.fom.parameters[parameter - 1].name

    def get_order_type(self, name: str) -> Order:
        """The types are Receive and TimeStamp (clause 10.19). Raises NameNotFound."""
        return _ORDERS[_known(name, _NAMES) - 1]

    def get_order_name(self, order: Order) -> str:
        """Receive or TimeStamp (clause 10.20)."""
        return _NAMES[_known(order, _ORDERS) - 1]

    def get_transportation_type_handle(self, name: str) -> int:
        """The types are HLAreliable and HLAbestEffort (clause 10.21). Raises NameNotFound."""
        return _known(name, _TRANSPORTATIONS)

    def get_transportation_type_name(self, handle: int) -> str:
        """Raises NameNotFound (clause 10.22)."""
        return _TRANSPORTATIONS[_known(handle, (1, 2)) - 1]

    def get_update_rate_value(self, designator: str) -> float:
        """The number a second at most; 0.0: all (clause 10.13). Raises InvalidUpdateRateDesignator."""
        return self._looked(lambda fom: update_rate(fom, designator))

    def get_update_rate_value_for_attribute(self, instance: int, attribute: int) -> float:
        """The number with which this federate has subscribed to it (clause 10.14)."""
        return float(self._ask("get_update_rate_value_for_attribute", instance, attribute))

    def get_available_dimensions_for_class_attribute(self, cls: int, attribute: int) -> tuple[int, ...]:
        """Dimensions of its regions (clause 10.23). Raises InvalidObjectClassHandle, AttributeNotDefined."""
        self._looked(lambda fom: _check(object_class(fom, cls), attribute, AttributeNotDefined))
        return tuple(map(self.fom.dimension, self.fom.attributes[attribute - 1].dimensions))

    def get_available_dimensions_for_interaction_class(self, cls: int) -> tuple[int, ...]:
        """Dimensions of its regions (clause 10.24). Raises InvalidInteractionClassHandle."""
        return tuple(map(self.fom.dimension, self._looked(lambda fom: interaction_class(fom, cls)).dimensions))

    def get_dimension_handle(self, name: str) -> int:
        """Handle of a dimension (clause 10.25). Raises NameNotFound."""
        return self._looked(lambda fom: fom.dimension(name))

    def get_dimension_name(self, dimension: int) -> str:
        """Raises InvalidDimensionHandle (clause 10.26)."""
        return self._looked(lambda fom: dimension_at(fom, dimension)).name

    def get_dimension_upper_bound(self, dimension: int) -> int:
        """The coordinates in a dimension are below that (clause 10.27). Raises InvalidDimensionHandle."""
        return self._looked(lambda fom: dimension_at(fom, dimension)).upper

    def get_time_factory(self) -> TimeFactory:
        """That of the times of a federation."""
        return FLOAT_TIME

    def normalize_federate_handle(self, federate: int) -> int:
        """Its coordinate in a dimension of federates (clause 10.31)."""
        return federate

    def normalize_service_group(self, group: str) -> int:
        """Its coordinate in the dimension HLAserviceGroup (clause 10.32), as `object management`. Raises
        NameNotFound."""
        return _known(group, _SERVICE_GROUPS) - 1

    # -- switches -----------------------------------------------------------------------------------------------

    def get_automatic_resign_directive(self) -> str:
        """Resign action with which the RTI resigns this federate when it dies (clause 10.2)."""
        return str(self._ask("get_automatic_resign_directive"))

    def set_automatic_resign_directive(self, action: str) -> None:
        """Another one (clause 10.3). Raises InvalidResignAction."""
        self._ask("set_automatic_resign_directive", action)

    def set_convey_producing_federate_switch(self, on: bool) -> None:
        """Each reflection, interaction and removal comes with the federate that has sent it, from now on: see
        `producing_federate`."""
        self._ask("set_convey_producing_federate_switch", on)

    def set_object_class_relevance_advisory_switch(self, on: bool) -> None:
        """Callbacks `start_` and `stop_registration_for_object_class` (clauses 10.33 and 10.34)."""
        self._ask("set_advisory_switch", "object_class_relevance", on)

    def set_attribute_relevance_advisory_switch(self, on: bool) -> None:
        """Callbacks `turn_updates_on_for_object_instance` and `..._off_...` (clauses 10.35 and 10.36)."""
        self._ask("set_advisory_switch", "attribute_relevance", on)

    def set_attribute_scope_advisory_switch(self, on: bool) -> None:
        """Callbacks `attributes_in_scope` and `attributes_out_of_scope` (clauses 10.37 and 10.38)."""
        self._ask("set_advisory_switch", "attribute_scope", on)

    def set_interaction_relevance_advisory_switch(self, on: bool) -> None:
        """Callbacks `turn_interactions_on` and `turn_interactions_off` (clauses 10.39 and 10.40)."""
        self._ask("set_advisory_switch", "interaction_relevance", on)


_NAMES: Final = ("Receive", "TimeStamp")
_ORDERS: Final[tuple[Order, ...]] = ("receive", "timestamp")
_TRANSPORTATIONS: Final = ("HLAreliable", "HLAbestEffort")
_SERVICE_GROUPS: Final = (
    "federation management", "declaration management", "object management", "ownership management", "time management",
    "data distribution management", "support services",
)  # fmt: skip


def _known(name: int | str, names: Sequence[int | str]) -> int:
    """Its place, from 1."""
    if name not in names:
        raise NameNotFound(f"no {str(name)[:200]!r} among {', '.join(map(str, names))}", hint="Take one of them")
    return names.index(name) + 1


def _check(cls: Class, member: int, error: type[RtiError]) -> None:
    if member not in cls.members:
        raise error(f"{cls.name} has nothing with the handle {member}", hint="Take get_..._handle", handle=member)
