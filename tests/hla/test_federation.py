"""Federation management: joining, resigning, synchronization points, save, restore."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla import rti
from jbi_pubsub.hla.execution import RtiOptions


def test_a_name_is_one_federates_and_handles_are_never_given_twice(rig: Any) -> None:
    # Given a federate; When another one takes its name; Expect the standard's exception
    it = rig("a")
    with pytest.raises(exc.FederateNameAlreadyInUse):
        it.join("a")
    # and after it has left, the name is free, its handle is not
    first = it.handles["a"]
    it.call("a", "resign_federation_execution", "no_action")
    assert it.join("a") > first


def test_a_federate_without_a_name_gets_a_free_one(rig: Any) -> None:
    # Given one that has come back under a name that an RTI had made, with a number to come
    it = rig("a")
    it.join(f"federate-{it.handles['a'] + 2}")
    # When others join without a name; Expect them to be joined
    for _ in range(3):
        it.join("")
    assert len(it.execution.members.names) == 5


def test_who_has_not_joined_calls_nothing(rig: Any) -> None:
    it = rig("a")
    it.call("a", "resign_federation_execution", "no_action")
    with pytest.raises(exc.FederateNotExecutionMember):
        it.call("a", "query_logical_time")


@pytest.mark.row("H-03")
@pytest.mark.parametrize(
    ("action", "exists", "owned"),
    [
        ("unconditionally_divest_attributes", True, False),
        ("delete_objects", False, False),
        ("delete_objects_then_divest", False, False),
        ("cancel_then_delete_then_divest", False, False),
    ],
)
def test_what_a_federate_owns_goes_as_it_says_when_it_resigns(rig: Any, action: str, exists: bool, owned: bool) -> None:
    # Given an aircraft of a, which b knows
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    # When a resigns, expect the aircraft to be gone, or to be nobody's
    it.call("a", "resign_federation_execution", action)
    assert (aircraft in it.execution.instances.by_handle) is exists
    assert (("remove_object_instance", aircraft, b"", None, 0) in it.heard("b")) is not exists
    if exists:
        it.call("b", "query_attribute_ownership", aircraft, it.position)
        assert it.heard("b") == [("inform_attribute_ownership", aircraft, it.position, owned)]


@pytest.mark.row("H-03")
def test_who_owns_something_says_what_becomes_of_it(rig: Any) -> None:
    it = rig("a", "b")
    it.aircraft_of("a", "b")
    before = it.execution
    with pytest.raises(exc.FederateOwnsAttributes):
        it.call("a", "resign_federation_execution", "no_action")
    with pytest.raises(exc.InvalidResignAction):
        it.call("a", "resign_federation_execution", "explode")
    assert it.execution is before


# -- synchronization points -----------------------------------------------------------------------------------------


def test_who_does_not_succeed_at_a_point_says_so_and_all_are_told(rig: Any) -> None:
    # Given a point; When one of two has tried in vain
    it = rig("a", "b")
    it.call("a", "register_federation_synchronization_point", "ready", b"")
    it.forget()
    it.call("a", "synchronization_point_achieved", "ready", False)
    assert it.call("b", "query_synchronization_point", "ready") == ("achieved", "failed")
    # Expect all to be told so when the point is over, which waits for nobody else
    it.call("b", "synchronization_point_achieved", "ready")
    for each in "ab":
        assert it.heard(each) == [("synchronization_point_failed", "ready"), ("federation_synchronized", "ready")]


@pytest.mark.row("H-09", "H-14")
def test_a_point_is_reached_when_all_have_said_so(rig: Any) -> None:
    # Given two federates; When one registers a point
    it = rig("a", "b")
    it.call("a", "register_federation_synchronization_point", "start", b"go")
    assert it.heard("a") == [
        ("synchronization_point_registration_succeeded", "start"),
        ("announce_synchronization_point", "start", b"go"),
    ]
    assert it.heard("b") == [("announce_synchronization_point", "start", b"go")]
    # and a third one joins; Expect it to be a member too
    it.join("c")
    assert it.heard("c") == [("announce_synchronization_point", "start", b"go")]
    # When two are there; Expect nothing; When the third is; Expect all to be told, and the label to be free
    it.call("a", "synchronization_point_achieved", "start")
    it.call("b", "synchronization_point_achieved", "start")
    assert it.heard("a") == it.heard("b") == []
    it.call("c", "synchronization_point_achieved", "start")
    assert [it.heard(each) for each in "abc"] == [[("federation_synchronized", "start")]] * 3
    it.call("a", "register_federation_synchronization_point", "start")
    assert it.heard("a")[0] == ("synchronization_point_registration_succeeded", "start")


@pytest.mark.row("H-16")
def test_a_point_of_some_federates_is_theirs_alone(rig: Any) -> None:
    it = rig("a", "b", "c")
    members = (it.handles["a"], it.handles["b"])
    it.call("c", "register_federation_synchronization_point", "pair", b"", members * 3)
    assert it.heard("c") == [("synchronization_point_registration_succeeded", "pair")]
    assert it.heard("b") == [("announce_synchronization_point", "pair", b"")]
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        it.call("c", "synchronization_point_achieved", "pair")
    for each in "ab":
        it.call(each, "synchronization_point_achieved", "pair")
    assert it.heard("a")[-1] == ("federation_synchronized", "pair")
    assert it.heard("c") == []


@pytest.mark.row("H-15")
@pytest.mark.parametrize(
    ("options", "label", "members", "reason"),
    [
        (RtiOptions(), "start", None, "LABEL_NOT_UNIQUE"),
        (RtiOptions(), "other", (99,), "MEMBER_NOT_JOINED"),
        (RtiOptions(one_at_a_time=True), "other", None, "BUSY"),
    ],
)
def test_why_a_point_is_not_registered_is_told(
    rig: Any, options: RtiOptions, label: str, members: Any, reason: str
) -> None:
    # Given a pending point; When another one can't be
    it = rig("a", "b", options=options)
    it.call("a", "register_federation_synchronization_point", "start")
    it.forget()
    it.call("b", "register_federation_synchronization_point", label, b"", members)
    # Expect its registrant alone to be told
    assert it.heard("b") == [("synchronization_point_registration_failed", label, reason)]
    assert it.heard("a") == []


@pytest.mark.row("H-08")
def test_nobody_waits_for_who_has_left(rig: Any) -> None:
    it = rig("a", "b")
    it.call("a", "register_federation_synchronization_point", "start")
    it.call("a", "synchronization_point_achieved", "start")
    with pytest.raises(exc.SynchronizationPointLabelNotAnnounced):
        it.call("a", "synchronization_point_achieved", "start")
    it.forget()
    it.call("b", "resign_federation_execution", "no_action")
    assert it.heard("a") == [("federation_synchronized", "start")]


# -- save and restore -----------------------------------------------------------------------------------------------


def save(it: Any, label: str, *names: str) -> None:
    """All save."""
    it.call(names[0], "request_federation_save", label)
    for each in names:
        it.call(each, "federate_save_begun")
        it.call(each, "federate_save_complete")


@pytest.mark.row("H-11")
def test_a_federation_is_saved_when_all_have_saved(rig: Any) -> None:
    # Given two federates; When one asks for a save; Expect both to be told, the one that asked too
    it = rig("a", "b")
    it.call("a", "request_federation_save", "L")
    assert it.heard("a") == it.heard("b") == [("initiate_federate_save", "L", None)]
    # When they save, expect them to be told in the end
    with pytest.raises(exc.FederateHasNotBegunSave):
        it.call("a", "federate_save_complete")
    it.call("a", "federate_save_begun")
    with pytest.raises(exc.SaveNotInitiated):
        it.call("a", "federate_save_begun")
    it.call("a", "federate_save_complete")
    it.call("b", "query_federation_save_status")
    assert it.heard("b") == [("federation_save_status_response", "instructed", ("waiting",))]
    it.call("b", "federate_save_begun")
    assert it.heard("a") == []
    it.call("b", "federate_save_complete")
    assert it.heard("a") == it.heard("b") == [("federation_saved", "L")]


@pytest.mark.row("H-13")
def test_everything_else_is_refused_while_a_federation_is_saved_or_restored(rig: Any) -> None:
    # Given federations that are being saved, and restored
    saving, restoring = rig("a", "b"), rig("a", "b")
    saving.call("a", "request_federation_save", "L")
    save(restoring, "L", "a", "b")
    restoring.call("a", "request_federation_restore", "L")
    free = {name for name, service in rti.SERVICES.items() if service.is_for == "both"}
    assert len(free) == 4
    saves = {"federate_save_begun", "federate_save_complete", "federate_save_not_complete", "abort_federation_save"}
    restores = {"federate_restore_complete", "federate_restore_not_complete", "abort_federation_restore"}
    # When any service is called that is none of the save's or restore's; Expect the standard's exception
    for it, own, refusal in (
        (saving, saves, exc.SaveInProgress),
        (restoring, restores, exc.RestoreInProgress),
    ):
        before = it.execution
        for name, service in rti.SERVICES.items():
            if name in free | own:
                continue
            with pytest.raises(refusal):
                rti.call(it.model, before, 0 if name == rti.JOIN else it.handles["a"], name, *[1] * service.required)


@pytest.mark.parametrize("how", ["not complete", "resigned", "aborted"])
def test_a_save_that_fails_fails_for_all_and_keeps_nothing(rig: Any, how: str) -> None:
    it = rig("a", "b")
    it.call("a", "request_federation_save", "L")
    it.call("a", "federate_save_begun")
    it.call("a", "federate_save_complete")
    it.forget()
    # When the other one can't save, leaves, or somebody gives up
    if how == "not complete":
        it.call("b", "federate_save_begun")
        it.call("b", "federate_save_not_complete")
    elif how == "resigned":
        it.call("b", "resign_federation_execution", "no_action")
    else:
        it.call("b", "abort_federation_save")
    reason = {"not complete": "REPORTED_FAILURE", "resigned": "RESIGNED", "aborted": "ABORTED"}[how]
    assert it.heard("a") == [("federation_not_saved", "L", reason)]
    # Expect the federation to go on, and no save of that label
    assert it.call("a", "query_logical_time") == 0.0
    it.call("a", "request_federation_restore", "L")
    assert it.heard("a") == [("request_federation_restore_failed", "L", "UNKNOWN_LABEL")]


def test_a_restore_that_is_given_up_changes_nothing(rig: Any) -> None:
    it = rig("a", "b")
    save(it, "L", "a", "b")
    it.call("a", "enable_time_regulation", 1.0)
    with pytest.raises(exc.RestoreNotInProgress):
        it.call("a", "abort_federation_restore")
    before = it.execution
    it.call("a", "request_federation_restore", "L")
    it.forget()
    it.call("b", "abort_federation_restore")
    assert it.heard("a") == it.heard("b") == [("federation_not_restored", "L", "ABORTED")]
    assert it.execution == before


@pytest.mark.row("H-12")
def test_a_restored_federation_is_as_it_was_with_the_handles_that_it_had(rig: Any) -> None:
    # Given an aircraft, a time, a message that waits, and a save
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    it.call("a", "update_attribute_values", aircraft, ((it.position, b"5"),), b"", 5.0)
    save(it, "L", "a", "b")
    saved, handles = it.execution._replace(saving=rti.created("x").saving, handles=0), dict(it.handles)
    # When it goes on, one leaves and comes again, and it is restored
    it.call("a", "time_advance_request", 9.0)
    it.call("b", "resign_federation_execution", "no_action")
    it.join("b")
    assert it.handles["b"] != handles["b"]
    it.forget()
    it.call("b", "request_federation_restore", "L")
    assert it.heard("b") == [
        ("request_federation_restore_succeeded", "L"),
        ("federation_restore_begun",),
        ("initiate_federate_restore", "L", "b", handles["b"]),
    ]
    it.call("a", "federate_restore_complete")
    it.call("b", "query_federation_restore_status")
    assert it.heard("b") == [("federation_restore_status_response", "instructed", ("waiting",))]
    it.call("b", "federate_restore_complete")
    # Expect it to be as it was
    assert it.heard("b") == [("federation_restored", "L")]
    assert it.execution._replace(saving=saved.saving, handles=0) == saved
    it.handles = handles
    # and the message that waited to come at its time
    it.call("b", "time_advance_request", 5.0)
    it.call("a", "time_advance_request", 6.0)
    assert it.heard("b") == [
        ("reflect_attribute_values", aircraft, ((it.position, b"5"),), b"", 5.0, 4), ("time_advance_grant", 5.0),
    ]  # fmt: skip


@pytest.mark.row("H-12")
def test_a_restore_needs_the_federates_that_were_saved_and_fails_for_all(rig: Any) -> None:
    it = rig("a", "b")
    save(it, "L", "a", "b")
    it.join("c")
    it.forget()
    it.call("a", "request_federation_restore", "L")
    assert it.heard("a") == [("request_federation_restore_failed", "L", "FEDERATES_DIFFER")]
    it.call("c", "resign_federation_execution", "no_action")
    with pytest.raises(exc.UnknownService):
        it.call("a", "restore")
    before = it.execution
    it.call("a", "request_federation_restore", "L")
    with pytest.raises(exc.RestoreInProgress):
        it.call("a", "request_federation_save", "M")
    it.call("a", "federate_restore_complete")
    with pytest.raises(exc.RestoreNotRequested):
        it.call("a", "federate_restore_complete")
    it.call("b", "federate_restore_not_complete")
    assert it.heard("b")[-1] == ("federation_not_restored", "L", "REPORTED_FAILURE")
    assert it.execution == before


def test_a_save_at_a_time_begins_when_nothing_before_it_can_come(rig: Any) -> None:
    # Given a regulating federate, and one that is constrained
    it = rig("a", "b")
    with pytest.raises(exc.FederateUnableToUseTime):
        it.call("a", "request_federation_save", "L", 5.0)
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    with pytest.raises(exc.LogicalTimeAlreadyPassed):
        it.call("a", "request_federation_save", "L", 0.5)
    # When a save at 5 is asked for
    it.call("a", "request_federation_save", "L", 5.0)
    it.forget()
    it.call("b", "time_advance_request", 4.0)
    it.call("a", "time_advance_request", 4.0)
    # Expect times up to 5 to be granted, and the save before any later one
    assert it.heard("b") == [("time_advance_grant", 4.0)]
    it.call("b", "time_advance_request", 6.0)
    it.forget()
    it.call("a", "time_advance_request", 10.0)
    assert it.heard("b") == [("initiate_federate_save", "L", 5.0)]
    for each in "ab":
        it.call(each, "federate_save_begun")
        it.call(each, "federate_save_complete")
    assert it.heard("b") == [("federation_saved", "L"), ("time_advance_grant", 6.0)]
