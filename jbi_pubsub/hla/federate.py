"""Callbacks of an RTI to a federate, by the standard's names in Python style (IEEE 1516.1-2010)."""

from __future__ import annotations

from jbi_pubsub.core.errors import JbiError

from .execution import Values


class FederateAmbassador:
    """A federate's side. Whoever wants a callback overrides it; the others do nothing, but for `call_refused`. They are
    called within `evoke_callback` and `evoke_multiple_callbacks`, on the thread that calls these."""

    def synchronization_point_registration_succeeded(self, label: str) -> None:
        """The point that it registered is one."""

    def synchronization_point_registration_failed(self, label: str, reason: str) -> None:
        """No point was registered: LABEL_NOT_UNIQUE, MEMBER_NOT_JOINED, BUSY."""

    def announce_synchronization_point(self, label: str, tag: bytes) -> None:
        """The federate is to get where the point asks it to be, and say so."""

    def announce_synchronization_point_to_set(self, label: str, tag: bytes, name: str) -> None:
        """A surrogate alone, of an RTI that has services for bridges: a point for a named set of federates."""

    def synchronization_point_withdrawn(self, label: str, reason: str) -> None:
        """The point is none any more: beyond a bridge it was refused."""

    def only_one_not_yet(self, kind: str, label: str, others_ok: bool) -> None:
        """The federate is the only one that has not reported, of such an RTI; kind: sync, save or restore."""

    def no_longer_only_one(self, kind: str, label: str) -> None:
        """A surrogate alone, of such an RTI: another one has joined, whom the point waits for."""

    def attribute_ownership_acquisition_withdrawn(self, instance: int, attributes: tuple[int, ...]) -> None:
        """A surrogate alone, of such an RTI: nobody wants these of it any more."""

    def synchronization_point_failed(self, label: str) -> None:
        """Somebody has said that he did not succeed there; federation_synchronized follows."""

    def federation_synchronized(self, label: str) -> None:
        """All have."""

    def initiate_federate_save(self, label: str, time: float | None) -> None:
        """The federate is to save: federate_save_begun, then _complete."""

    def federation_saved(self, label: str) -> None:
        """All have saved."""

    def federation_not_saved(self, label: str, reason: str) -> None:
        """Not all have: REPORTED_FAILURE, RESIGNED, ABORTED, STORAGE."""

    def federation_save_status_response(self, own: str, others: tuple[str, ...]) -> None:
        """Where the save is here, and in which states others are."""

    def request_federation_restore_succeeded(self, label: str) -> None:
        """The restore that it asked for begins."""

    def request_federation_restore_failed(self, label: str, reason: str) -> None:
        """No restore begins: UNKNOWN_LABEL, FEDERATES_DIFFER."""

    def federation_restore_begun(self) -> None:
        """A restore has begun."""

    def initiate_federate_restore(self, label: str, name: str, handle: int) -> None:
        """The federate is to be as it was, under the handle that it had, and say so."""

    def federation_restored(self, label: str) -> None:
        """All are as they were."""

    def federation_not_restored(self, label: str, reason: str) -> None:
        """Not all are."""

    def federation_restore_status_response(self, own: str, others: tuple[str, ...]) -> None:
        """Where the restore is here, and in which states others are."""

    def start_registration_for_object_class(self, cls: int) -> None:
        """Somebody wants instances of a class that the federate publishes: an advisory."""

    def stop_registration_for_object_class(self, cls: int) -> None:
        """Nobody does any more."""

    def turn_interactions_on(self, cls: int) -> None:
        """Somebody wants interactions of a class that the federate publishes: an advisory."""

    def turn_interactions_off(self, cls: int) -> None:
        """Nobody does any more."""

    def turn_updates_on_for_object_instance(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Somebody wants values of these, which the federate owns: an advisory."""

    def turn_updates_off_for_object_instance(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Nobody does any more."""

    def attributes_in_scope(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Somebody owns these, to which the federate subscribes: an advisory."""

    def attributes_out_of_scope(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Nobody does any more, or it subscribes to them no more."""

    def object_instance_name_reservation_succeeded(self, name: str) -> None:
        """The name is the federate's to give."""

    def object_instance_name_reservation_failed(self, name: str) -> None:
        """The name is given, or somebody has reserved it."""

    def multiple_object_instance_name_reservation_succeeded(self, names: tuple[str, ...]) -> None:
        """All of them are the federate's to give."""

    def multiple_object_instance_name_reservation_failed(self, names: tuple[str, ...]) -> None:
        """One of them is not, and none was reserved."""

    def discover_object_instance(self, instance: int, cls: int, name: str) -> None:
        """There is an instance."""

    def reflect_attribute_values(
        self, instance: int, values: Values, tag: bytes, time: float | None, retraction: int
    ) -> None:
        """New values, pairs of handles and bytes."""

    def receive_interaction(
        self, cls: int, parameters: Values, tag: bytes, time: float | None, retraction: int
    ) -> None:
        """An interaction."""

    def remove_object_instance(self, instance: int, tag: bytes, time: float | None, retraction: int) -> None:
        """The instance is no more."""

    def provide_attribute_value_update(self, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
        """Somebody wants values of what it owns."""

    def confirm_attribute_transportation_type_change(
        self, instance: int, attributes: tuple[int, ...], transportation: int
    ) -> None:
        """These are sent as the federate has asked."""

    def report_attribute_transportation_type(self, instance: int, attribute: int, transportation: int) -> None:
        """The type that it has."""

    def confirm_interaction_transportation_type_change(self, cls: int, transportation: int) -> None:
        """The federate's interactions of the class are sent as it has asked."""

    def report_interaction_transportation_type(self, federate: int, cls: int, transportation: int) -> None:
        """The type that those of a federate have."""

    def request_retraction(self, retraction: int) -> None:
        """The message that it got with that handle is taken back."""

    def request_attribute_ownership_assumption(self, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
        """The federate may acquire these."""

    def request_divestiture_confirmation(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Somebody takes what it divests: confirm_divestiture."""

    def attribute_ownership_acquisition_notification(
        self, instance: int, attributes: tuple[int, ...], tag: bytes
    ) -> None:
        """The federate owns these now."""

    def attribute_ownership_unavailable(self, instance: int, attributes: tuple[int, ...]) -> None:
        """Somebody owns these."""

    def request_attribute_ownership_release(self, instance: int, attributes: tuple[int, ...], tag: bytes) -> None:
        """Somebody wants these of it."""

    def confirm_attribute_ownership_acquisition_cancellation(self, instance: int, attributes: tuple[int, ...]) -> None:
        """The federate waits for these no more."""

    def inform_attribute_ownership(self, instance: int, attribute: int, is_owned: bool) -> None:
        """Whether somebody owns it."""

    def time_regulation_enabled(self, time: float) -> None:
        """The federate regulates, and is at that time."""

    def time_constrained_enabled(self, time: float) -> None:
        """The federate is constrained, and is at that time."""

    def time_advance_grant(self, time: float) -> None:
        """The federate is at that time."""

    def lower_bound(self, galt: float, alone: float, delay: float, may_send: float, reached: float) -> None:
        """Nothing below `galt` will come; nothing below `alone`, if the federate sends nothing that it may send from
        `may_send` on, and nothing within `delay` after what it sends. Others are at `reached`, at most."""

    def call_refused(self, error: JbiError) -> None:
        """An update or interaction without a time, which nobody waited for, was refused with that error, and nobody has
        got it. Unless this is overridden, the error is raised where callbacks are evoked."""
        raise error

    def connection_lost(self, reason: str) -> None:
        """The RTI is gone, or has resigned it; what it held there is lost."""
