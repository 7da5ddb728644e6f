"""The services that a federate calls, as methods: the standard's names in Python style (IEEE 1516.1-2010).

Handles are whole numbers; values of attributes and parameters are bytes, by their handles; times are seconds of logical
time. What every call may raise is not said each time: NotConnected, FederateNotExecutionMember, SaveInProgress,
RestoreInProgress, InvalidArgument, and for what an instance or class is named by ObjectInstanceNotKnown,
AttributeNotDefined; in time management InTimeAdvancingState, RequestForTimeConstrainedPending, and that something is
enabled already or is not. An update or interaction without a time is not waited for: what an RTI refuses of these is
told by the callback `call_refused`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from .fom import Order

Pairs = Iterable[tuple[int, int]]


class ServiceCaller(ABC):
    """Whoever brings a call to an RTI."""

    @abstractmethod
    def _ask(self, service: str, *arguments: Any) -> Any:
        """Call a service and wait for its answer."""

    @abstractmethod
    def _send(self, service: str, *arguments: Any) -> None:
        """Call a service and go on."""

    @abstractmethod
    def _ask_for_time(self, service: str, time: float) -> None:
        """Call a service that asks for a time, and wait for its answer where it may be refused."""

    def _send_at(self, time: float | None, service: str, *arguments: Any) -> int:
        """Call a service that sends something; with a time the retraction handle is waited for, 0: there is none."""
        if time is not None:
            return int(self._ask(service, *arguments, time))
        self._send(service, *arguments)
        return 0


class FederationServices(ServiceCaller):
    """Federation, declaration and time management."""

    # -- federation management --------------------------------------------------------------------------------------

    def register_federation_synchronization_point(
        self, label: str, tag: bytes = b"", federates: Iterable[int] | None = None
    ) -> None:
        """A synchronization point for all, or for some federates: the callbacks ..._registration_succeeded or
        _failed tell whether it is (clause 4.11)."""
        self._ask(
            "register_federation_synchronization_point", label, tag, None if federates is None else tuple(federates)
        )

    def synchronization_point_achieved(self, label: str, success: bool = True) -> None:  # the standard's
        """This federate is where the point asks it to be, or has tried in vain: synchronization_point_failed tells all
        (clause 4.14). Raises SynchronizationPointLabelNotAnnounced."""
        self._ask("synchronization_point_achieved", label, success)

    def query_synchronization_point(self, label: str) -> tuple[str, ...]:
        """In which states the other members of a point are: moving, achieved. Own. Raises
        SynchronizationPointLabelNotAnnounced."""
        return tuple(self._ask("query_synchronization_point", label))

    def join_set(self, name: str) -> None:
        """Become a member of a named set. Own, and only of an RTI that has services for bridges, as the next three;
        each raises ServiceNotEnabled."""
        self._ask("join_set", name)

    def leave_set(self, name: str) -> None:
        """Be none any more."""
        self._ask("leave_set", name)

    def register_synchronization_point_for_set(self, label: str, tag: bytes, name: str) -> None:
        """A synchronization point for the members of a set, also beyond bridges."""
        self._ask("register_synchronization_point_for_set", label, tag, name)

    def query_federation_state(self) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...], str]:
        """Pairs of an instance and an attribute that is owned, the labels of pending points, that of a save or
        restore that goes on."""
        owned, points, label = self._ask("query_federation_state")
        return owned, points, label

    def request_federation_save(self, label: str, time: float | None = None) -> None:
        """All are to save, now or at a logical time (clause 4.16). Raises FederateUnableToUseTime,
        LogicalTimeAlreadyPassed."""
        self._ask("request_federation_save", label, time)

    def federate_save_begun(self) -> None:
        """This federate saves (clause 4.18). Raises SaveNotInitiated."""
        self._ask("federate_save_begun")

    def federate_save_complete(self) -> None:
        """This federate has saved (clause 4.19). Raises FederateHasNotBegunSave."""
        self._ask("federate_save_complete")

    def federate_save_not_complete(self) -> None:
        """This federate could not save (clause 4.19). Raises FederateHasNotBegunSave."""
        self._ask("federate_save_not_complete")

    def abort_federation_save(self) -> None:
        """The save is given up (clause 4.21). Raises SaveNotInProgress."""
        self._ask("abort_federation_save")

    def query_federation_save_status(self) -> None:
        """Where the save is, by federation_save_status_response (clause 4.22)."""
        self._ask("query_federation_save_status")

    def request_federation_restore(self, label: str) -> None:
        """All are to go back to what was saved under a label (clause 4.24)."""
        self._ask("request_federation_restore", label)

    def federate_restore_complete(self) -> None:
        """This federate is as it was (clause 4.28). Raises RestoreNotRequested."""
        self._ask("federate_restore_complete")

    def federate_restore_not_complete(self) -> None:
        """This federate could not go back (clause 4.28). Raises RestoreNotRequested."""
        self._ask("federate_restore_not_complete")

    def abort_federation_restore(self) -> None:
        """The restore is given up (clause 4.30). Raises RestoreNotInProgress."""
        self._ask("abort_federation_restore")

    def query_federation_restore_status(self) -> None:
        """Where the restore is, by federation_restore_status_response (clause 4.31)."""
        self._ask("query_federation_restore_status")

    # -- declaration management -------------------------------------------------------------------------------------

    def publish_object_class_attributes(self, cls: int, attributes: Iterable[int]) -> None:
        """This federate may register instances of the class and own these attributes (clause 5.2). Raises
        InvalidObjectClassHandle, AttributeNotDefined."""
        self._ask("publish_object_class_attributes", cls, tuple(attributes))

    def unpublish_object_class(self, cls: int) -> None:
        """Publish nothing of the class any more (clause 5.3). Raises OwnershipAcquisitionPending."""
        self._ask("unpublish_object_class", cls)

    def unpublish_object_class_attributes(self, cls: int, attributes: Iterable[int]) -> None:
        """Publish these no more (clause 5.3). Raises OwnershipAcquisitionPending."""
        self._ask("unpublish_object_class_attributes", cls, tuple(attributes))

    def subscribe_object_class_attributes(
        self, cls: int, attributes: Iterable[int], *, rate: str = "", passive: bool = False
    ) -> None:
        """Hear of instances of the class and those below it, and of these attributes (clause 5.6). `rate`: an update
        rate of the model, above which values that go by best effort are left out; `passive`: nobody is advised of it.
        Raises InvalidObjectClassHandle, AttributeNotDefined, InvalidUpdateRateDesignator."""
        self._ask("subscribe_object_class_attributes", cls, tuple(attributes), rate, passive)

    def unsubscribe_object_class(self, cls: int) -> None:
        """Hear nothing of the class any more (clause 5.7), but what waits for its time."""
        self._ask("unsubscribe_object_class", cls)

    def unsubscribe_object_class_attributes(self, cls: int, attributes: Iterable[int]) -> None:
        """Hear nothing of these any more (clause 5.7), but what waits for its time."""
        self._ask("unsubscribe_object_class_attributes", cls, tuple(attributes))

    def publish_interaction_class(self, cls: int) -> None:
        """Declare that it may send interactions of the class (clause 5.4). Raises InvalidInteractionClassHandle."""
        self._ask("publish_interaction_class", cls)

    def unpublish_interaction_class(self, cls: int) -> None:
        """Send none any more (clause 5.5)."""
        self._ask("unpublish_interaction_class", cls)

    def subscribe_interaction_class(self, cls: int, *, passive: bool = False) -> None:
        """Get interactions of the class and those below it (clause 5.8). `passive`: nobody is advised of it. Raises
        InvalidInteractionClassHandle."""
        self._ask("subscribe_interaction_class", cls, passive)

    def unsubscribe_interaction_class(self, cls: int) -> None:
        """Get none any more (clause 5.9), but what waits for its time."""
        self._ask("unsubscribe_interaction_class", cls)

    # -- time management --------------------------------------------------------------------------------------------

    def enable_time_regulation(self, lookahead: float) -> None:
        """Send in time-stamp order from time_regulation_enabled on (clause 8.2). Raises TimeRegulationAlreadyEnabled,
        InvalidLookahead."""
        self._ask("enable_time_regulation", lookahead)

    def disable_time_regulation(self) -> None:
        """Regulate no more (clause 8.4)."""
        self._ask("disable_time_regulation")

    def enable_time_constrained(self) -> None:
        """Get messages in time-stamp order from time_constrained_enabled on (clause 8.5). Raises
        TimeConstrainedAlreadyEnabled."""
        self._ask("enable_time_constrained")

    def disable_time_constrained(self) -> None:
        """Be constrained no more (clause 8.7)."""
        self._ask("disable_time_constrained")

    def enable_asynchronous_delivery(self) -> None:
        """Messages in receive order come at any time (clause 8.14)."""
        self._ask("enable_asynchronous_delivery")

    def disable_asynchronous_delivery(self) -> None:
        """They come while it asks for a time (clause 8.15)."""
        self._ask("disable_asynchronous_delivery")

    def time_advance_request(self, time: float) -> None:
        """Ask to be at that time; time_advance_grant tells when it is (clause 8.8). With infinity the federate is
        through: it sends nothing any more in time-stamp order. Raises LogicalTimeAlreadyPassed, InTimeAdvancingState,
        InvalidLogicalTime."""
        self._ask_for_time("time_advance_request", time)

    def time_advance_request_available(self, time: float) -> None:
        """The same, where more at that very time may come (clause 8.9)."""
        self._ask_for_time("time_advance_request_available", time)

    def next_message_request(self, time: float) -> None:
        """Ask to be at its next message, or at that time (clause 8.10)."""
        self._ask_for_time("next_message_request", time)

    def next_message_request_available(self, time: float) -> None:
        """The same, where more at that very time may come (clause 8.11)."""
        self._ask_for_time("next_message_request_available", time)

    def flush_queue_request(self, time: float) -> None:
        """Get all that waits for it (clause 8.12)."""
        self._ask_for_time("flush_queue_request", time)

    def modify_lookahead(self, lookahead: float) -> None:
        """Another lookahead (clause 8.19). Raises TimeRegulationIsNotEnabled."""
        self._ask("modify_lookahead", lookahead)

    def retract(self, retraction: int) -> None:
        """A message that it has sent is taken back (clause 8.21). Raises MessageCanNoLongerBeRetracted."""
        self._ask("retract", retraction)

    def query_logical_time(self) -> float:
        """Its time (clause 8.17)."""
        return float(self._ask("query_logical_time"))

    def query_lookahead(self) -> float:
        """Its lookahead (clause 8.20). Raises TimeRegulationIsNotEnabled."""
        return float(self._ask("query_lookahead"))

    def query_galt(self) -> float:
        """The time to which it can be sure to advance; infinity when nobody else regulates (clause 8.16)."""
        return float(self._ask("query_galt"))

    def query_lits(self) -> float:
        """The least time stamp that may still come to it (clause 8.18)."""
        return float(self._ask("query_lits"))

    def watch_lower_bound(self, on: bool) -> None:
        """Its GALT is told by lower_bound from now on (own)."""
        self._ask("watch_lower_bound", on)


class ObjectServices(ServiceCaller):
    """Object and ownership management."""

    # -- object management ------------------------------------------------------------------------------------------

    def reserve_object_instance_name(self, name: str) -> None:
        """This federate alone may give that name to an instance: object_instance_name_reservation_succeeded or _failed
        tells (clause 6.2). Raises IllegalName."""
        self._ask("reserve_object_instance_name", name)

    def release_object_instance_name(self, name: str) -> None:
        """Anybody may take the name (clause 6.4). Raises ObjectInstanceNameNotReserved."""
        self._ask("release_multiple_object_instance_names", (name,))

    def reserve_multiple_object_instance_names(self, names: Iterable[str]) -> None:
        """All of them or none, as multiple_object_instance_name_reservation_succeeded or _failed tells (clause 6.5).
        Raises IllegalName."""
        self._ask("reserve_multiple_object_instance_names", tuple(names))

    def release_multiple_object_instance_names(self, names: Iterable[str]) -> None:
        """The same of several (clause 6.7). Raises ObjectInstanceNameNotReserved."""
        self._ask("release_multiple_object_instance_names", tuple(names))

    def register_object_instance(self, cls: int, name: str = "") -> int:
        """A new instance; its handle (clause 6.8). Raises ObjectClassNotPublished, ObjectInstanceNameInUse."""
        return int(self._ask("register_object_instance", cls, name))

    def update_attribute_values(
        self, instance: int, values: Mapping[int, bytes], tag: bytes = b"", time: float | None = None
    ) -> int:
        """New values of attributes that it owns; with a time the retraction handle, else 0 (clause 6.10). Raises
        AttributeNotOwned, InvalidLogicalTime."""
        return self._send_at(time, "update_attribute_values", instance, sorted(values.items()), tag)

    def send_interaction(
        self, cls: int, parameters: Mapping[int, bytes], tag: bytes = b"", time: float | None = None
    ) -> int:
        """An interaction; with a time the retraction handle, else 0 (clause 6.12). Raises InteractionClassNotPublished,
        InteractionParameterNotDefined, InvalidLogicalTime."""
        return self._send_at(time, "send_interaction", cls, sorted(parameters.items()), tag)

    def delete_object_instance(self, instance: int, tag: bytes = b"", time: float | None = None) -> int:
        """The instance is no more; the retraction handle, 0 in receive order (clause 6.14). Raises
        ObjectInstanceNotKnown, DeletePrivilegeNotHeld."""
        return int(self._ask("delete_object_instance", instance, tag, time))

    def local_delete_object_instance(self, instance: int) -> None:
        """This federate forgets the instance (clause 6.16). Raises FederateOwnsAttributes,
        OwnershipAcquisitionPending."""
        self._ask("local_delete_object_instance", instance)

    def request_attribute_value_update(self, instance: int, attributes: Iterable[int], tag: bytes = b"") -> None:
        """The owners are asked for values (clause 6.19)."""
        self._ask("request_attribute_value_update", instance, tuple(attributes), tag)

    def request_class_attribute_value_update(self, cls: int, attributes: Iterable[int], tag: bytes = b"") -> None:
        """The owners of all instances of the class are asked for values (clause 6.19)."""
        self._ask("request_class_attribute_value_update", cls, tuple(attributes), tag)

    def get_object_instance_name(self, instance: int) -> str:
        """Raises ObjectInstanceNotKnown."""
        return str(self._ask("get_object_instance_name", instance))

    def get_object_instance_handle(self, name: str) -> int:
        """Raises ObjectInstanceNotKnown."""
        return int(self._ask("get_object_instance_handle", name))

    def get_known_object_class_handle(self, instance: int) -> int:
        """The class at which this federate knows the instance. Raises ObjectInstanceNotKnown."""
        return int(self._ask("get_known_object_class_handle", instance))

    def change_attribute_order_type(self, instance: int, attributes: Iterable[int], order: Order) -> None:
        """In which order values of these are delivered (clause 8.23). Raises AttributeNotOwned."""
        self._ask("change_attribute_order_type", instance, tuple(attributes), order)

    def change_interaction_order_type(self, cls: int, order: Order) -> None:
        """In which order this federate's interactions of the class are delivered (clause 8.24). Raises
        InteractionClassNotPublished."""
        self._ask("change_interaction_order_type", cls, order)

    def request_attribute_transportation_type_change(
        self, instance: int, attributes: Iterable[int], transportation: int
    ) -> None:
        """Send these of an instance otherwise from now on, as a callback confirms (clause 6.23). Raises
        AttributeNotOwned, InvalidTransportationType."""
        self._ask("request_attribute_transportation_type_change", instance, tuple(attributes), transportation)

    def query_attribute_transportation_type(self, instance: int, attribute: int) -> None:
        """Its type, by report_attribute_transportation_type (clause 6.25)."""
        self._ask("query_attribute_transportation_type", instance, attribute)

    def request_interaction_transportation_type_change(self, cls: int, transportation: int) -> None:
        """Send interactions of the class otherwise from now on, as a callback confirms (clause 6.27). Raises
        InteractionClassNotPublished, InvalidTransportationType."""
        self._ask("request_interaction_transportation_type_change", cls, transportation)

    def query_interaction_transportation_type(self, federate: int, cls: int) -> None:
        """That of a federate's interactions, by report_interaction_transportation_type (clause 6.29)."""
        self._ask("query_interaction_transportation_type", federate, cls)

    # -- ownership management ---------------------------------------------------------------------------------------

    def unconditional_attribute_ownership_divestiture(self, instance: int, attributes: Iterable[int]) -> None:
        """This federate owns these no more (clause 7.2). Raises AttributeNotOwned."""
        self._ask("unconditional_attribute_ownership_divestiture", instance, tuple(attributes))

    def negotiated_attribute_ownership_divestiture(
        self, instance: int, attributes: Iterable[int], tag: bytes = b""
    ) -> None:
        """Offer these to somebody (clause 7.3). Raises AttributeNotOwned, AttributeAlreadyBeingDivested."""
        self._ask("negotiated_attribute_ownership_divestiture", instance, tuple(attributes), tag)

    def confirm_divestiture(self, instance: int, attributes: Iterable[int], tag: bytes = b"") -> None:
        """Give these to the first who claims them (clause 7.6). Raises AttributeDivestitureWasNotRequested,
        NoAcquisitionPending."""
        self._ask("confirm_divestiture", instance, tuple(attributes), tag)

    def attribute_ownership_acquisition(self, instance: int, attributes: Iterable[int], tag: bytes = b"") -> None:
        """Ask to own these (clause 7.8). Raises ObjectClassNotPublished, AttributeNotPublished,
        FederateOwnsAttributes."""
        self._ask("attribute_ownership_acquisition", instance, tuple(attributes), tag)

    def attribute_ownership_acquisition_if_available(self, instance: int, attributes: Iterable[int]) -> None:
        """Ask for those that nobody owns (clause 7.9). Raises ObjectClassNotPublished, AttributeNotPublished,
        FederateOwnsAttributes, AttributeAlreadyBeingAcquired."""
        self._ask("attribute_ownership_acquisition_if_available", instance, tuple(attributes))

    def attribute_ownership_release_denied(self, instance: int, attributes: Iterable[int]) -> None:
        """Keep what it was asked to release (clause 7.12). Raises AttributeNotOwned."""
        self._ask("attribute_ownership_release_denied", instance, tuple(attributes))

    def attribute_ownership_divestiture_if_wanted(self, instance: int, attributes: Iterable[int]) -> tuple[int, ...]:
        """Give up those that somebody waits for; which (clause 7.13). Raises AttributeNotOwned."""
        return tuple(self._ask("attribute_ownership_divestiture_if_wanted", instance, tuple(attributes)))

    def cancel_negotiated_attribute_ownership_divestiture(self, instance: int, attributes: Iterable[int]) -> None:
        """Keep these (clause 7.14). Raises AttributeDivestitureWasNotRequested."""
        self._ask("cancel_negotiated_attribute_ownership_divestiture", instance, tuple(attributes))

    def cancel_attribute_ownership_acquisition(self, instance: int, attributes: Iterable[int]) -> None:
        """Want these no more (clause 7.15). Raises AttributeAcquisitionWasNotRequested, AttributeAlreadyOwned."""
        self._ask("cancel_attribute_ownership_acquisition", instance, tuple(attributes))

    def query_attribute_ownership(self, instance: int, attribute: int) -> None:
        """Whether anybody owns it, by inform_attribute_ownership (clause 7.17)."""
        self._ask("query_attribute_ownership", instance, attribute)

    def is_attribute_owned_by_federate(self, instance: int, attribute: int) -> bool:
        """Whether this federate owns it (clause 7.19)."""
        return bool(self._ask("is_attribute_owned_by_federate", instance, attribute))


class RegionServices(ServiceCaller):
    """Data distribution management. `pairs`: attributes, each with a region. What takes regions raises InvalidRegion,
    RegionNotCreatedByThisFederate, and what uses them InvalidRegionContext."""

    # fmt: off

    def create_region(self, dimensions: Iterable[int]) -> int:
        """A region, as wide as its dimensions; its handle (clause 9.2). Raises InvalidDimensionHandle."""
        return int(self._ask("create_region", tuple(dimensions)))
    def commit_region_modifications(self, regions: Iterable[int]) -> None:
        """The bounds that were set count from now on (clause 9.3)."""
        self._ask("commit_region_modifications", tuple(regions))
    def delete_region(self, region: int) -> None:
        """Raises RegionInUseForUpdateOrSubscription (clause 9.4)."""
        self._ask("delete_region", region)
    def get_dimension_handle_set(self, region: int) -> tuple[int, ...]:
        """The dimensions of a region (clause 10.28)."""
        return tuple(self._ask("get_dimension_handle_set", region))
    def get_range_bounds(self, region: int, dimension: int) -> tuple[int, ...]:
        """Both bounds, as they were set last (clause 10.29). Raises RegionDoesNotContainSpecifiedDimension."""
        return tuple(self._ask("get_range_bounds", region, dimension))
    def set_range_bounds(self, region: int, dimension: int, lower: int, upper: int) -> None:
        """From `lower` to below `upper`, when it is committed (clause 10.30). Raises
        RegionDoesNotContainSpecifiedDimension, InvalidRangeBound."""
        self._ask("set_range_bounds", region, dimension, lower, upper)
    def register_object_instance_with_regions(self, cls: int, pairs: Pairs, name: str = "") -> int:
        """As register_object_instance (clause 9.5). Raises AttributeNotPublished, too."""
        return int(self._ask("register_object_instance_with_regions", cls, tuple(pairs), name))
    def associate_regions_for_updates(self, instance: int, pairs: Pairs) -> None:
        """Attributes are in more regions, while this federate owns them (clause 9.6)."""
        self._ask("associate_regions_for_updates", instance, tuple(pairs))
    def unassociate_regions_for_updates(self, instance: int, pairs: Pairs) -> None:
        """They are there no more; without regions they are everywhere (clause 9.7)."""
        self._ask("unassociate_regions_for_updates", instance, tuple(pairs))
    def subscribe_object_class_attributes_with_regions(
        self, cls: int, pairs: Pairs, *, rate: str = "", passive: bool = False
    ) -> None:
        """As subscribe_object_class_attributes, of what is there (clause 9.8)."""
        self._ask("subscribe_object_class_attributes_with_regions", cls, tuple(pairs), rate, passive)
    def unsubscribe_object_class_attributes_with_regions(self, cls: int, pairs: Pairs) -> None:
        """Hear nothing of them there any more (clause 9.9)."""
        self._ask("unsubscribe_object_class_attributes_with_regions", cls, tuple(pairs))
    def subscribe_interaction_class_with_regions(
        self, cls: int, regions: Iterable[int], *, passive: bool = False
    ) -> None:
        """As subscribe_interaction_class, of what is sent there (clause 9.10)."""
        self._ask("subscribe_interaction_class_with_regions", cls, tuple(regions), passive)
    def unsubscribe_interaction_class_with_regions(self, cls: int, regions: Iterable[int]) -> None:
        """Get none there any more (clause 9.11)."""
        self._ask("unsubscribe_interaction_class_with_regions", cls, tuple(regions))
    def send_interaction_with_regions(
        self, cls: int, parameters: Mapping[int, bytes], regions: Iterable[int], tag: bytes = b"",
        time: float | None = None,
    ) -> int:  # fmt: skip
        """As send_interaction, for who listens there (clause 9.12)."""
        arguments = cls, sorted(parameters.items()), tuple(regions), tag
        return self._send_at(time, "send_interaction_with_regions", *arguments)
    def request_attribute_value_update_with_regions(self, cls: int, pairs: Pairs, tag: bytes = b"") -> None:
        """The owners of all instances of the class are asked for values that are there (clause 9.13)."""
        self._ask("request_attribute_value_update_with_regions", cls, tuple(pairs), tag)
