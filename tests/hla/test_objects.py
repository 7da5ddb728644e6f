"""Declaration and object management: who discovers, reflects, receives what."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc

GRANT = "time_advance_grant"


@pytest.mark.row("H-05")
def test_only_what_is_subscribed_to_is_reflected(rig: Any) -> None:
    # Given an aircraft, and federates that subscribe to one attribute, to both, to the class above, to nothing
    it = rig("owner", "one", "both", "above", "none")
    it.call("one", "subscribe_object_class_attributes", it.aircraft, (it.callsign,))
    it.call("both", "subscribe_object_class_attributes", it.aircraft, (it.position, it.callsign))
    it.call("above", "subscribe_object_class_attributes", it.vehicle, (it.position,))
    it.call("owner", "publish_object_class_attributes", it.aircraft, (it.position, it.callsign))
    aircraft = it.call("owner", "register_object_instance", it.aircraft, "LH1")
    # Expect each to discover it as what it knows
    assert it.heard("both") == [("discover_object_instance", aircraft, it.aircraft, "LH1")]
    assert it.heard("above") == [("discover_object_instance", aircraft, it.vehicle, "LH1")]
    it.forget()
    # When both attributes are updated; Expect each to get its own
    values = ((it.position, b"1"), (it.callsign, b"x"))
    it.call("owner", "update_attribute_values", aircraft, tuple(reversed(values)), b"tag")
    assert it.heard("both") == [("reflect_attribute_values", aircraft, tuple(sorted(values)), b"tag", None, 0)]
    assert it.heard("one") == [("reflect_attribute_values", aircraft, ((it.callsign, b"x"),), b"tag", None, 0)]
    assert it.heard("above") == [("reflect_attribute_values", aircraft, ((it.position, b"1"),), b"tag", None, 0)]
    assert it.heard("none") == it.heard("owner") == []
    # When one unsubscribes; Expect it to hear no more
    it.call("one", "unsubscribe_object_class", it.aircraft)
    it.call("owner", "update_attribute_values", aircraft, values)
    assert it.heard("one") == []


def test_a_subscription_to_no_attributes_is_none(rig: Any) -> None:
    # Given a federate that subscribes to a class, and to no attributes of the one below it, or of any
    it = rig("a", "b", "c")
    it.call("a", "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("b", "subscribe_object_class_attributes", it.vehicle, (it.position,))
    for each in "bc":
        it.call(each, "subscribe_object_class_attributes", it.aircraft, ())
    # When an instance is registered; Expect it to be discovered where it has attributes
    aircraft = it.call("a", "register_object_instance", it.aircraft, "LH1")
    assert it.heard("b") == [("discover_object_instance", aircraft, it.vehicle, "LH1")]
    assert it.heard("c") == []


@pytest.mark.row("H-06", "H-08")
def test_who_comes_late_discovers_and_asks_for_values(rig: Any) -> None:
    it = rig("owner")
    aircraft = it.aircraft_of("owner", name="LH1")
    it.join("late")
    it.call("late", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    assert it.heard("late") == [("discover_object_instance", aircraft, it.aircraft, "LH1")]
    # and once, whoever subscribes again or to its own
    for each in ("late", "owner"):
        it.call(each, "subscribe_object_class_attributes", it.aircraft, (it.position, it.callsign))
        assert it.heard(each) == []
    it.call("late", "request_attribute_value_update", aircraft, (it.position,), b"?")
    assert it.heard("owner") == [("provide_attribute_value_update", aircraft, (it.position,), b"?")]
    it.call("owner", "update_attribute_values", aircraft, ((it.position, b"1"),))
    assert it.heard("late") == [("reflect_attribute_values", aircraft, ((it.position, b"1"),), b"", None, 0)]
    assert it.heard("owner") == []
    it.call("late", "request_class_attribute_value_update", it.vehicle, (it.position,))
    assert it.heard("owner") == [("provide_attribute_value_update", aircraft, (it.position,), b"")]


@pytest.mark.row("H-06", "H-18")
def test_only_the_owner_updates_and_deletes(rig: Any) -> None:
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b", name="LH1")
    before = it.execution
    with pytest.raises(exc.AttributeNotOwned, match="position of LH1"):
        it.call("b", "update_attribute_values", aircraft, ((it.position, b""),))
    with pytest.raises(exc.AttributeNotDefined):
        it.call("a", "update_attribute_values", aircraft, ((it.position, b""), (999, b"")))
    with pytest.raises(exc.DeletePrivilegeNotHeld):
        it.call("b", "delete_object_instance", aircraft)
    with pytest.raises(exc.ObjectInstanceNotKnown):
        it.call("b", "update_attribute_values", 999, ())
    assert it.execution == before
    it.call("a", "delete_object_instance", aircraft, b"bye")
    assert it.heard("b") == [("remove_object_instance", aircraft, b"bye", None, 0)]
    with pytest.raises(exc.ObjectInstanceNotKnown):
        it.call("b", "get_object_instance_name", aircraft)


def test_names_of_instances_are_given_once(rig: Any) -> None:
    it = rig("a")
    aircraft = it.aircraft_of("a", name="LH1")
    with pytest.raises(exc.ObjectInstanceNameInUse):
        it.call("a", "register_object_instance", it.aircraft, "LH1")
    assert it.call("a", "get_object_instance_handle", "LH1") == aircraft
    assert it.call("a", "get_known_object_class_handle", aircraft) == it.aircraft
    it.call("a", "delete_object_instance", aircraft)
    assert it.call("a", "register_object_instance", it.aircraft, "LH1") != aircraft


def test_a_name_that_the_rti_makes_is_a_free_one(rig: Any) -> None:
    # Given instances that a bridge has given names as the RTI makes them, with numbers to come
    it = rig("a")
    last = it.aircraft_of("a")
    for number in range(last + 3, last + 6):
        it.call("a", "register_object_instance", it.aircraft, f"HLAobject-{number}")
    # When instances without a name are registered; Expect each to be there, under a name of its own
    made = [it.call("a", "register_object_instance", it.aircraft) for _ in range(5)]
    assert len({it.call("a", "get_object_instance_name", each) for each in made}) == 5


@pytest.mark.row("H-05")
def test_who_publishes_nothing_registers_and_sends_nothing(rig: Any) -> None:
    it = rig("a")
    with pytest.raises(exc.ObjectClassNotPublished):
        it.call("a", "register_object_instance", it.aircraft)
    with pytest.raises(exc.InteractionClassNotPublished):
        it.call("a", "send_interaction", it.radio, ())
    with pytest.raises(exc.InvalidObjectClassHandle):
        it.call("a", "publish_object_class_attributes", 99, ())
    with pytest.raises(exc.InvalidInteractionClassHandle):
        it.call("a", "subscribe_interaction_class", 99)


@pytest.mark.row("H-07")
def test_interactions_go_to_who_subscribes_to_their_class_or_one_above(rig: Any) -> None:
    it = rig("sender", "exact", "above", "none")
    it.call("sender", "publish_interaction_class", it.mayday)
    it.call("exact", "subscribe_interaction_class", it.mayday)
    it.call("exact", "subscribe_interaction_class", it.radio)
    it.call("above", "subscribe_interaction_class", it.radio)
    said = ((it.text, b"engine"), (it.souls, b"3"))
    it.call("sender", "send_interaction", it.mayday, said, b"!")
    assert it.heard("exact") == [("receive_interaction", it.mayday, tuple(sorted(said)), b"!", None, 0)]
    assert it.heard("above") == [("receive_interaction", it.radio, ((it.text, b"engine"),), b"!", None, 0)]
    assert it.heard("none") == it.heard("sender") == []
    with pytest.raises(exc.InteractionParameterNotDefined):
        it.call("sender", "send_interaction", it.mayday, ((99, b""),))


def test_who_publishes_or_hears_no_more_sends_or_gets_nothing(rig: Any) -> None:
    it = rig("sender", "reader")
    it.call("sender", "publish_interaction_class", it.radio)
    it.call("reader", "subscribe_interaction_class", it.radio)
    it.call("reader", "unsubscribe_interaction_class", it.radio)
    it.call("sender", "send_interaction", it.radio, ())
    assert it.heard("reader") == []
    it.call("sender", "unpublish_interaction_class", it.radio)
    with pytest.raises(exc.InteractionClassNotPublished):
        it.call("sender", "send_interaction", it.radio, ())


def test_interactions_go_in_the_order_that_their_sender_says(rig: Any) -> None:
    # Given a sender that regulates, and a reader that is constrained
    it = rig("sender", "reader")
    it.call("sender", "publish_interaction_class", it.radio)
    it.call("reader", "subscribe_interaction_class", it.radio)
    it.call("sender", "enable_time_regulation", 1.0)
    it.call("reader", "enable_time_constrained")
    it.call("reader", "enable_asynchronous_delivery")
    it.forget()
    # When it sends in time-stamp order, as the model says, and then in receive order
    assert it.call("sender", "send_interaction", it.radio, (), b"1", 5.0) > 0
    assert it.heard("reader") == []
    it.call("sender", "change_interaction_order_type", it.radio, "receive")
    assert it.call("sender", "send_interaction", it.radio, (), b"2", 5.0) == 0
    assert it.heard("reader") == [("receive_interaction", it.radio, (), b"2", 5.0, 0)]


def test_what_is_forgotten_is_discovered_anew(rig: Any) -> None:
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    with pytest.raises(exc.FederateOwnsAttributes):
        it.call("a", "local_delete_object_instance", aircraft)
    it.call("b", "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("b", "attribute_ownership_acquisition", aircraft, (it.position,))
    with pytest.raises(exc.OwnershipAcquisitionPending):
        it.call("b", "local_delete_object_instance", aircraft)
    it.call("b", "cancel_attribute_ownership_acquisition", aircraft, (it.position,))
    it.forget()
    it.call("b", "local_delete_object_instance", aircraft)
    it.call("a", "update_attribute_values", aircraft, ((it.position, b""),))
    assert it.heard("b") == []
    it.call("b", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    assert [each[0] for each in it.heard("b")] == ["discover_object_instance"]


def test_nothing_comes_of_what_is_forgotten(rig: Any) -> None:
    # Given values and interactions that wait for a constrained federate, in either order
    it = rig("a", "b")
    aircraft, other = it.aircraft_of("a", "b"), it.aircraft_of("a")
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    it.forget()
    for each in (aircraft, other):
        it.call("a", "update_attribute_values", each, ((it.callsign, b"now"),))
        last = it.call("a", "update_attribute_values", each, ((it.position, b"3"),), b"", 3.0)
    first = it.call("a", "update_attribute_values", aircraft, ((it.position, b"4"),), b"", 4.0)
    # When it forgets one of the instances, and time goes on
    it.call("b", "local_delete_object_instance", aircraft)
    it.call("a", "retract", first)
    it.call("a", "time_advance_request", 9.0)
    it.call("b", "time_advance_request", 6.0)
    # Expect what is of the other one
    assert it.heard("b") == [
        ("reflect_attribute_values", other, ((it.callsign, b"now"),), b"", None, 0),
        ("reflect_attribute_values", other, ((it.position, b"3"),), b"", 3.0, last),
        ("time_advance_grant", 6.0),
    ]


def test_others_send_what_they_own_until_an_instance_is_removed_for_them(rig: Any) -> None:
    # Given an aircraft that is deleted at 10, of which another federate owns the position, and a reader; both wait
    it = rig("a", "b", "c")
    aircraft = it.aircraft_of("a", "b", "c", name="LH1")
    it.call("b", "publish_object_class_attributes", it.aircraft, (it.position, it.callsign))
    it.call("b", "attribute_ownership_acquisition", aircraft, (it.position,))
    it.call("a", "attribute_ownership_divestiture_if_wanted", aircraft, (it.position,))
    for each in "ab":
        it.call(each, "enable_time_regulation", 1.0)
    for each in "bc":
        it.call(each, "enable_time_constrained")
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 10.0)
    it.forget()
    # When the owner of the position sends it before that time and behind it
    assert it.call("b", "is_attribute_owned_by_federate", aircraft, it.position)
    for time in (3.0, 12.0):
        it.call("b", "update_attribute_values", aircraft, ((it.position, b""),), b"", time)
    with pytest.raises(exc.AttributeNotOwned):
        it.call("b", "update_attribute_values", aircraft, ((it.callsign, b""),))
    before = it.execution
    # Expect what is before it to come, and nobody to own or send anything when it is removed
    it.call("a", "time_advance_request", 20.0)
    for each in "cb":
        it.call(each, "time_advance_request", 11.0)
    assert [each[0] for each in it.heard("c")] == ["reflect_attribute_values", "remove_object_instance", GRANT]
    assert [each[0] for each in it.heard("b")] == ["remove_object_instance", GRANT]
    with pytest.raises(exc.ObjectInstanceNotKnown):
        it.call("b", "update_attribute_values", aircraft, ((it.position, b""),), b"", 13.0)
    assert not it.execution.instances.leaving
    assert aircraft not in it.execution.owned.owners
    # When it resigns, or the deletion is taken back, instead; Expect nothing to be left, or all to be as it was
    it.execution = before
    it.call("b", "resign_federation_execution", "no_action")
    it.call("c", "resign_federation_execution", "no_action")
    assert not it.execution.instances.leaving
    assert aircraft not in it.execution.owned.owners
    it.execution = before
    it.call("a", "retract", retraction)
    assert it.call("b", "is_attribute_owned_by_federate", aircraft, it.position)
    assert it.call("a", "is_attribute_owned_by_federate", aircraft, it.callsign)
    assert not it.execution.instances.leaving


@pytest.mark.parametrize("ends", ["delete_object_instance", "resign_federation_execution"])
def test_a_removal_without_a_time_is_the_last_of_an_instance(rig: Any, ends: str) -> None:
    # Given a value that waits for a constrained federate, and one without a time
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    it.forget()
    it.call("a", "update_attribute_values", aircraft, ((it.position, b"5"),), b"", 5.0)
    it.call("a", "update_attribute_values", aircraft, ((it.callsign, b"now"),))
    # When the instance is gone, and nobody regulates any more
    it.call("a", ends, aircraft if ends == "delete_object_instance" else "delete_objects")
    if ends == "delete_object_instance":
        it.call("a", "disable_time_regulation")
    it.call("b", "next_message_request", 9.0)
    # Expect nothing behind its removal
    assert it.heard("b") == [
        ("reflect_attribute_values", aircraft, ((it.callsign, b"now"),), b"", None, 0),
        ("remove_object_instance", aircraft, b"", None, 0),
        ("time_advance_grant", 9.0),
    ]


@pytest.mark.parametrize("until", [[6.0, 9.0], [9.0]])
def test_a_removal_at_a_time_is_the_last_of_an_instance(rig: Any, until: list[float]) -> None:
    # Given values at 4 and at 8 of an aircraft that is deleted at 5, and of another one
    it = rig("a", "b")
    aircraft, other = it.aircraft_of("a", "b"), it.aircraft_of("a")
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    for each, time in ((other, 8.0), (aircraft, 4.0), (aircraft, 8.0)):
        last = it.call("a", "update_attribute_values", each, ((it.position, b""),), b"", time)
    it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    it.forget()
    # When time goes on; Expect nothing of it behind its removal, and nothing of that to be asked back
    for time in until:
        it.call("a", "time_advance_request", time - 0.5)
        it.call("b", "time_advance_request", time)
        if time < 8.0:
            it.call("a", "retract", last)
    told = [each for each in it.heard("b") if each[0] != "time_advance_grant"]
    assert [(name, of) for name, of, *_ in told] == [
        ("reflect_attribute_values", aircraft),
        ("remove_object_instance", aircraft),
        ("reflect_attribute_values", other),
    ]


def test_who_waits_for_a_removal_may_ask_what_it_gets_values_of(rig: Any) -> None:
    # Given an aircraft that is deleted at 5, of which constrained federates have a value to come
    it = rig("a", "b", "c")
    aircraft = it.aircraft_of("a", "b", "c", name="LH1")
    it.call("a", "enable_time_regulation", 1.0)
    for each in "bc":
        it.call(each, "enable_time_constrained")
    it.call("a", "update_attribute_values", aircraft, ((it.position, b"3"),), b"", 3.0)
    it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    it.call("a", "time_advance_request", 9.0)
    # When they have the value; Expect them to be told what it is of, and that it is not theirs
    for each in "bc":
        it.call(each, "time_advance_request", 4.0)
        assert it.call(each, "get_object_instance_name", aircraft) == "LH1"
        assert it.call(each, "get_known_object_class_handle", aircraft) == it.aircraft
        assert not it.call(each, "is_attribute_owned_by_federate", aircraft, it.position)
    # Expect nobody to acquire it, and who has deleted it not to know it
    it.call("b", "publish_object_class_attributes", it.aircraft, (it.position,))
    with pytest.raises(exc.ObjectInstanceNotKnown):
        it.call("b", "attribute_ownership_acquisition", aircraft, (it.position,))
    with pytest.raises(exc.ObjectInstanceNotKnown):
        it.call("a", "get_object_instance_name", aircraft)
    # When one forgets it; Expect the other one alone to be told of its removal
    it.call("c", "local_delete_object_instance", aircraft)
    it.forget()
    for each in "bc":
        it.call(each, "time_advance_request", 6.0)
    assert [each[0] for each in it.heard("b")] == ["remove_object_instance", "time_advance_grant"]
    assert [each[0] for each in it.heard("c")] == ["time_advance_grant"]
    for each in "bc":
        with pytest.raises(exc.ObjectInstanceNotKnown):
            it.call(each, "get_object_instance_name", aircraft)


def test_many_attributes_and_instances_stay_workable() -> None:
    # Given a class of 20,000 attributes
    from jbi_pubsub.hla import rti
    from jbi_pubsub.hla.execution import FederationModel
    from jbi_pubsub.hla.fom import parsed

    rows = b"".join(b"<attribute><name>a%d</name></attribute>" % n for n in range(20_000))
    text = (
        b"<objectModel><objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Wide</name>%s</objectClass>"
    )
    model = FederationModel(parsed(("wide.xml", text % rows + b"</objectClass></objects></objectModel>")))
    cls = model.fom.object_class("Wide")
    wide = model.fom.objects[cls - 1].members
    execution = rti.created("x")

    def call(federate: int, service: str, *arguments: Any) -> Any:
        nonlocal execution
        step = rti.call(model, execution, federate, service, *arguments)
        execution = step.execution
        return step.answer

    # When it is published, registered and updated attribute by attribute; Expect maps, not copies: this would take
    # minutes with one copy a call
    a = call(0, "join_federation_execution")
    call(a, "publish_object_class_attributes", cls, wide)
    instance = call(a, "register_object_instance", cls)
    for each in wide[1:]:
        call(a, "update_attribute_values", instance, ((each, b"1"),))
    assert execution.owned.owner(instance, wide[-1]) == a


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "arguments", "error"),
    [
        ("time_advance_request", (float("nan"),), exc.InvalidLogicalTime),
        ("request_federation_save", ("x", float("inf")), exc.InvalidLogicalTime),
        ("enable_time_regulation", (float("inf"),), exc.InvalidLookahead),
        ("time_advance_request", (-1.0,), exc.InvalidLogicalTime),
        ("time_advance_request", ("5",), exc.InvalidLogicalTime),
        ("time_advance_request", (True,), exc.InvalidLogicalTime),
        ("time_advance_request", (), exc.InvalidArgument),
        ("time_advance_request", (1.0, 2.0), exc.InvalidArgument),
        ("enable_time_regulation", (float("nan"),), exc.InvalidLookahead),
        ("enable_time_regulation", (-1,), exc.InvalidLookahead),
        ("request_federation_save", (5,), exc.InvalidArgument),
        ("request_federation_save", ("x" * 1001,), exc.InvalidArgument),
        ("request_federation_save", ("\ud800",), exc.InvalidArgument),
        ("request_federation_save", ("",), exc.InvalidArgument),
        ("publish_object_class_attributes", (1, 5), exc.InvalidArgument),
        ("publish_object_class_attributes", (1, "ab"), exc.InvalidArgument),
        ("publish_object_class_attributes", (1, (True,)), exc.InvalidArgument),
        ("publish_object_class_attributes", (-1, ()), exc.InvalidArgument),
        ("publish_object_class_attributes", (2**60, ()), exc.InvalidArgument),
        ("update_attribute_values", (1, ((1, "text"),)), exc.InvalidArgument),
        ("update_attribute_values", (1, (1, 2)), exc.InvalidArgument),
        ("update_attribute_values", (1, ((1, b""), (1, b""))), exc.InvalidArgument),
        ("update_attribute_values", (1, (), b"x" * 70_000), exc.InvalidArgument),
        ("change_interaction_order_type", (1, "sideways"), exc.InvalidArgument),
        ("watch_lower_bound", (1,), exc.InvalidArgument),
        ("_private", (), exc.UnknownService),
        ("time_advance_requets", (1.0,), exc.UnknownService),
    ],
)
def test_an_argument_of_another_kind_is_refused_and_changes_nothing(
    rig: Any, service: str, arguments: tuple[Any, ...], error: type[exc.RtiError]
) -> None:
    it = rig("a")
    before = it.execution
    with pytest.raises(error) as caught:
        it.call("a", service, *arguments)
    assert it.execution is before
    assert caught.value.hint
    assert str(caught.value).count("\n") == 0
